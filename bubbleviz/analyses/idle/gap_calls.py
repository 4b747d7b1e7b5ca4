"""Gap calls: the calls of a profile that matter to idle gaps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.analyses.idle.record_times import RecordTimes
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.model.grouping import distinct, found_in
from bubbleviz.model.profile import CallLog, Calls, process_of
from bubbleviz.model.values import frozen
from bubbleviz.sources.in_memory import no_calls

#: Shorter calls and ranges count as part of what is around them.
GRAIN_NS = 1_000
#: About so many calls in gaps are kept; where there are more, the longer ones.
_MOST = 1 << 20


@frozen
class GapCalls:
    """The calls of a profile that matter to idle gaps, in order of their rows.

    They are the calls that launched the work after a gap, and those that ran during one.

    Attributes:
        calls: themselves.
        launched: row of the activities: the one that a call launched; -1 none.
        shortest_ns: calls in gaps that are shorter are left out.
    """

    calls: Calls
    launched: Ints
    shortest_ns: int


def gap_calls_of(
    log: CallLog,
    call: Codes,
    launching: Ints,
    idle: Mapping[int, intervals.Intervals],
    records: RecordTimes | None = None,
) -> GapCalls:
    """Return the calls that matter to idle gaps.

    Args:
        log: the profile's calls.
        call: row of the launching call of each activity; -1 unknown.
        launching: rows of the calls that launched the work after gaps, distinct and ascending.
        idle: when a device of each process was idle.
        records: sees all calls; None for nothing.
    """
    kept: list[Calls] = []
    count, shortest_ns = 0, GRAIN_NS
    for block in log.blocks():
        if records is not None:
            records.add(block)
        chosen = block.take(
            (found_in(launching, block.row) != NONE) | _in_gaps(block, idle, shortest_ns)
        )
        kept.append(chosen)
        count += len(chosen)
        while count > _MOST + len(launching):
            shortest_ns *= 2
            calls = joined(kept)
            lasting = calls.end_ns - calls.start_ns >= shortest_ns
            kept = [calls.take(lasting | (found_in(launching, calls.row) != NONE))]
            count = len(kept[0])
    calls = joined(kept) if kept else no_calls().calls
    calls = calls.take(np.argsort(calls.row, kind="stable"))
    return GapCalls(calls, _launched(calls, call), shortest_ns)


def _in_gaps(calls: Calls, idle: Mapping[int, intervals.Intervals], shortest_ns: int) -> Bools:
    """Tell which calls last long enough and touch a time in which a device was idle."""
    touching = np.zeros(len(calls), bool)
    lasting = np.flatnonzero(calls.end_ns - calls.start_ns >= shortest_ns)
    process = process_of(calls.thread[lasting])
    for number in distinct(process).tolist():
        if number in idle:
            rows = lasting[process == number]
            before = np.searchsorted(idle[number][1], calls.start_ns[rows], side="right")
            touching[rows] = before < np.searchsorted(idle[number][0], calls.end_ns[rows])
    return touching


def _launched(calls: Calls, call: Codes) -> Ints:
    """Return an activity that each call launched; -1 none."""
    launched = np.full(len(calls), NONE, np.int64)
    at = found_in(calls.row, call)
    rows = np.flatnonzero(at != NONE)
    launched[at[rows]] = rows
    return launched
