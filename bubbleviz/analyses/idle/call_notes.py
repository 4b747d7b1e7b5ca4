"""Call notes: of all the CUDA calls of a profile those that idle gaps are told by.

They are the calls that launched the work after a gap, and those that took their time in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.model.grouping import found_in
from bubbleviz.model.profile import CallLog, Calls, process_of
from bubbleviz.sources.in_memory import no_calls

#: Shorter calls and ranges are not told apart from what is around them.
GRAIN_NS = 1_000
#: So many calls in gaps are kept, give or take a block; where there are more, the longer ones.
_MOST = 1 << 20


@dataclass(frozen=True)
class CallNotes:
    """Some calls of a profile, in order of their rows.

    Attributes:
        calls: these.
        launched: row of the activities that a call launched; -1 none.
        shortest_ns: calls in gaps that are shorter are not among them.
    """

    calls: Calls
    launched: Ints
    shortest_ns: int


def notes_of(
    log: CallLog, call: Codes, wanted: Ints, idle: Mapping[int, intervals.Intervals]
) -> CallNotes:
    """Return the calls that idle gaps are told by.

    Args:
        log: the profile's calls.
        call: row of the launching call of each activity; -1 unknown.
        wanted: rows of calls that are, distinct and ascending.
        idle: when a device of each process was idle.
    """
    kept: list[Calls] = []
    count, shortest_ns = 0, GRAIN_NS
    for block in log.blocks():
        chosen = block.take(
            (found_in(wanted, block.row) != NONE) | _in_gaps(block, idle, shortest_ns)
        )
        kept.append(chosen)
        count += len(chosen)
        while count > _MOST + len(wanted):
            shortest_ns *= 2
            some = joined(kept)
            lasting = some.end_ns - some.start_ns >= shortest_ns
            kept = [some.take(lasting | (found_in(wanted, some.row) != NONE))]
            count = len(kept[0])
    calls = joined(kept) if kept else no_calls().calls
    calls = calls.take(np.argsort(calls.row, kind="stable"))
    return CallNotes(calls, _launched(calls, call), shortest_ns)


def _in_gaps(calls: Calls, idle: Mapping[int, intervals.Intervals], shortest_ns: int) -> Bools:
    """Tell which calls last so long, and touch a time in which a device was idle."""
    touching = np.zeros(len(calls), bool)
    lasting = np.flatnonzero(calls.end_ns - calls.start_ns >= shortest_ns)
    process = process_of(calls.thread[lasting])
    for own in np.unique(process).tolist():
        if own in idle:
            rows = lasting[process == own]
            before = np.searchsorted(idle[own][1], calls.start_ns[rows], side="right")
            touching[rows] = before < np.searchsorted(idle[own][0], calls.end_ns[rows])
    return touching


def _launched(calls: Calls, call: Codes) -> Ints:
    """Return an activity that each call launched; -1 none."""
    launched = np.full(len(calls), NONE, np.int64)
    at = found_in(calls.row, call)
    rows = np.flatnonzero(at != NONE)
    launched[at[rows]] = rows
    return launched
