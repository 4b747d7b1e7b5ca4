"""Gap calls: the calls of a profile that matter to idle gaps."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from bubbleviz.analyses.idle.gaps import Gaps
from bubbleviz.analyses.idle.held_work import HeldWork, RecordTimes
from bubbleviz.conventions.host_activities import (
    BLOCKED_BY_COMMUNICATION,
    BLOCKED_BY_COMPUTE,
    BLOCKED_BY_COPIES,
)
from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.model.grouping import distinct, found_in
from bubbleviz.model.profile import Activities, CallLog, Calls, process_of
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


# Blocked gaps: how long the stream of the work after each gap waited for an event.


class Kind(IntEnum):
    """What work is that others wait for."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


#: The activity that idle time is attributed to, by what it waited for.
BLOCKED = {
    Kind.COMPUTE: BLOCKED_BY_COMPUTE,
    Kind.COMMUNICATION: BLOCKED_BY_COMMUNICATION,
    Kind.COPY: BLOCKED_BY_COPIES,
}
#: What tables call it.
KIND_NAMES = {Kind.COMPUTE: "compute", Kind.COMMUNICATION: "communication", Kind.COPY: "copy"}


@frozen
class BlockedGaps:
    """How long the stream of the work after each gap waited; shape (gaps,).

    Attributes:
        held: row of the held work: that work; -1 where none is proved to have waited.
        until_ns: until when; before everything where none.
        kind: code of :class:`Kind`: what it waited for; means nothing where none.
    """

    held: Ints
    until_ns: Ints
    kind: Ints


def blocked_gaps_of(gaps: Gaps, held: HeldWork, kind: Ints) -> BlockedGaps:
    """Return how long the stream of the work after each gap waited.

    Args:
        gaps: of a device.
        held: work that waited for an event.
        kind: code of :class:`Kind` of what each of these waited for.
    """
    at = found_in(held.work, gaps.after)
    until_ns = np.append(held.end_ns, np.iinfo(np.int64).min)[at]
    return BlockedGaps(at, until_ns, np.append(kind, Kind.COMPUTE)[at])


def kinds_of(activities: Activities, rows: Ints, kinds: Kinds) -> Ints:
    """Return the code of :class:`Kind` of some activities; ``kinds`` names communication."""
    communication = np.append(matching(activities.names, kinds.communication), False)
    communicates = communication[activities.name_id[rows]]
    copies = rows >= activities.kernels
    return np.select((copies, communicates), (Kind.COPY, Kind.COMMUNICATION), Kind.COMPUTE).astype(
        np.int64
    )
