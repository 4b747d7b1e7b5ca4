"""The critical path of an iteration, what other operations have to spare, and what could be won.

Every operation starts some time (its lag) after the last of what it follows: the end of the
operation before it on its rank, and the arrival of what it takes from others, a transfer after the
ends of those. Put together again with other times, that tells how long the iteration would take::

    rank 0   ██ F0 ██ ██ F1 ██                      ██ B0 ██
                    │                               │
    rank 1          └──lag──██ F0 ████ B0 ███──lag──┘          F0, F0, B0, B0 are critical
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz import intervals
from bubbleviz.causes import Cause, Idle
from bubbleviz.columns import NONE, Bools, Ints
from bubbleviz.grouping import groups_of
from bubbleviz.model import Operations
from bubbleviz.needs import NEVER, Needs
from bubbleviz.phases import WORK, Phase
from bubbleviz.receives import Receives

#: More operations than this in one iteration are not put together again: it takes seconds.
MOST_OPERATIONS = 500_000


@dataclass(frozen=True)
class Step:
    """A part of the critical path: what one rank did in one phase, or one cause of delay.

    Attributes:
        rank: the rank.
        what: printed name of the phase, or of the cause.
        time_ns: how much of the path it is.
        count: operations, or delays.
    """

    rank: int
    what: str
    time_ns: int
    count: int


@dataclass(frozen=True)
class CriticalPath:
    """What bounds an iteration: a chain of operations without a pause that is not their own.

    Attributes:
        iteration: index of the iteration.
        operations: rows of the chain, in order.
        length_ns: from the start of the first to the end of the last.
        parts: what the length is made of, largest first.
        slack_ns: of every operation of the iteration, how much later it could end without a
            longer iteration, all else as measured; -1 for operations of other iterations.
    """

    iteration: int
    operations: Ints
    length_ns: int
    parts: tuple[Step, ...]
    slack_ns: Ints


@dataclass(frozen=True)
class WhatIf:
    """What an iteration would be under one change, all else as measured.

    Attributes:
        name: stable name of the change.
        change: what it is, for people.
        makespan_ns: window of the iteration over all ranks.
        bubble_ratio: its ``schedule`` ratio; None of an iteration without any length.
    """

    name: str
    change: str
    makespan_ns: int
    bubble_ratio: float | None


#: Changes that take lag away: name, what it is, and the cause that goes.
_WITHOUT = (
    ("no-host", "every operation launched in time", Cause.HOST),
    ("no-transfer", "transfers take no time", Cause.COMMUNICATION),
    ("no-collective", "no exposed collectives", Cause.COLLECTIVE),
    ("no-profiler", "the profiler takes no time", Cause.PROFILER),
    ("no-latency", "no launch latency, or whatever else nothing explains", Cause.OTHER),
)


@dataclass(frozen=True)
class Graph:
    """The operations of one iteration in order of their start, and what each follows.

    Attributes:
        rows: of the operations table.
        rank: of each.
        start_ns: end less busy time, as if an operation waited only before it began.
        busy_ns: how long it works, beyond what runs before it on its rank has covered.
        before: places of what each follows: the one before it on its rank, and up to two of other
            ranks (an overlapped pair takes two results); -1 none, shape (3, operations).
        transfer_ns: how long what it takes from others is on its way.
        lag_ns: from the last of what it follows to ``start_ns``; 0 where it follows none.
        lag_by_cause: how much of the lag has which cause, shape (operations, causes).
    """

    rows: Ints
    rank: Ints
    start_ns: Ints
    busy_ns: Ints
    before: Ints
    transfer_ns: Ints
    lag_ns: Ints
    lag_by_cause: Ints

    @property
    def end_ns(self) -> Ints:
        """When each ended."""
        return self.start_ns + self.busy_ns

    @property
    def follows(self) -> Bools:
        """Which follow any other; the rest start when they did."""
        return np.asarray((self.before != NONE).any(axis=0), bool)

    @property
    def arrived_ns(self) -> Ints:
        """When each of what it follows had ended and arrived, shape (3, operations)."""
        return _arrived(self.before, self.end_ns, self.transfer_ns)


def _arrived(before: Ints, end_ns: Ints, transfer_ns: Ints) -> Ints:
    ends = np.append(end_ns, NEVER)[before]
    ends[1:] += np.where(before[1:] == NONE, 0, transfer_ns)
    return ends


def graph_of(
    operations: Operations,
    needs: Needs,
    receives: Receives,
    idle: Sequence[Idle],
    iteration: int,
) -> Graph:
    """Return the operations of one iteration, and what each follows.

    Args:
        operations: of all ranks.
        needs: whose results they take.
        receives: of operations.
        idle: idle time of each rank.
        iteration: index of the iteration.
    """
    rows = np.flatnonzero(
        (operations.iteration == iteration)
        & (operations.has_span == 1)
        & np.isin(operations.phase, WORK)
    )
    start_ns = operations.end_ns[rows] - operations.busy_ns[rows]
    order = np.lexsort((rows, operations.end_ns[rows], start_ns))
    rows, start_ns = rows[order], start_ns[order]
    rank, end_ns = operations.rank[rows], operations.end_ns[rows]
    start_ns, end_ns = _side_by_side(rank, start_ns, end_ns)
    by_rank = np.lexsort((np.arange(len(rows)), rank))
    next_to = rank[by_rank[1:]] == rank[by_rank[:-1]]
    before = np.full((3, len(rows)), NONE, np.int64)
    before[0, by_rank[1:][next_to]] = by_rank[:-1][next_to]
    before[1:] = _given(rows, len(operations), needs)
    transfer_ns = _transfers(operations, receives)[rows]
    # No transfer takes longer than there was between the two.
    given_ns = np.append(end_ns, NEVER)[before[1:]].max(axis=0)
    given = given_ns != NEVER
    room_ns = np.where(given, start_ns - np.where(given, given_ns, 0), 0)
    transfer_ns = np.clip(transfer_ns, 0, np.maximum(room_ns, 0))
    ready_ns = _arrived(before, end_ns, transfer_ns).max(axis=0)
    follows = (before != NONE).any(axis=0)
    lag_ns = np.where(follows, start_ns - ready_ns, 0)
    lags = np.zeros((len(rows), len(Cause)), np.int64)
    by_number = np.searchsorted(rank[by_rank], np.arange(len(idle) + 1)).tolist()
    for own, low, high in zip(idle, by_number[:-1], by_number[1:], strict=True):
        at = by_rank[low:high]
        at = at[follows[at]]
        since_ns = np.minimum(ready_ns[at], end_ns[at])
        for cause in Cause if len(at) else ():
            times = own.of((cause,))
            lags[at, cause] = intervals.measure_within(times, since_ns, end_ns[at])
    # A span that begins with work which needs no input has idle time behind its start.
    room_ns = np.maximum(lag_ns, 0)[:, None] - np.cumsum(lags, axis=1) + lags
    lags = np.clip(lags, 0, np.maximum(room_ns, 0))
    busy_ns = end_ns - start_ns
    return Graph(rows, rank, start_ns, busy_ns, before, transfer_ns, lag_ns, lags)


def _side_by_side(rank: Ints, start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return times in which no two operations of a rank overlap: each goes on where others end.

    ::

        stream 1   ├────── F3 ──────┤              ├────── F3 ──────┤
        stream 2        ├──── B1 ────────┤                          ├ B1 ┤
    """
    start_ns, end_ns = start_ns.copy(), end_ns.copy()
    order = np.argsort(rank, kind="stable")
    bounds = np.flatnonzero(np.append(True, rank[order][1:] != rank[order][:-1]))[: len(rank)]
    for own in np.split(order, bounds[1:]):
        latest_ns = np.maximum.accumulate(end_ns[own])
        covered_ns = np.append(NEVER, latest_ns[:-1])
        start_ns[own] = np.maximum(start_ns[own], covered_ns)
        end_ns[own] = np.maximum(end_ns[own], start_ns[own])
    return start_ns, end_ns


def _transfers(operations: Operations, receives: Receives) -> Ints:
    """Return how long what each operation takes from others is on its way.

    Of a receive that waited that was seen; another one began late itself, and its transfer is the
    usual one of its virtual stage and direction.
    """
    row = receives.operation
    waited = receives.wait_ns > 0
    forward = np.isin(operations.phase[row], (Phase.F, Phase.FB)).astype(np.int64)
    kind = groups_of(operations.virtual_stage[row], forward).of_row
    usual = np.zeros(int(kind.max(initial=-1)) + 1, np.int64)
    seen = receives.transfer_ns[waited]
    order = np.lexsort((seen, kind[waited]))
    of_kind = kind[waited][order]
    first = np.searchsorted(of_kind, np.arange(len(usual)))
    count = np.bincount(of_kind, minlength=len(usual))
    known = count > 0
    usual[known] = seen[order][(first + (count - 1) // 2)[known]]
    transfer_ns = np.zeros(len(operations), np.int64)
    transfer_ns[row] = np.where(waited, receives.transfer_ns, usual[kind])
    return transfer_ns


def _given(rows: Ints, operations: int, needs: Needs) -> Ints:
    """Return the places of up to two operations of other ranks that each takes results of.

    What it takes of its own rank has run before it there, and need not be followed twice.
    """
    place = np.full(operations, NONE, np.int64)
    place[rows] = np.arange(len(rows))
    remote = needs.take(needs.remote)
    later, earlier = place[remote.after], place[remote.before]
    # What seems to run before what it needs (clocks can be off) cannot be followed.
    held = (later != NONE) & (earlier != NONE) & (earlier < later)
    later, earlier = later[held], earlier[held]
    order = np.argsort(later, kind="stable")
    later, earlier = later[order], earlier[order]
    again = np.append(False, later[1:] == later[:-1])[: len(later)]
    given = np.full((2, len(rows)), NONE, np.int64)
    given[0, later[~again]] = earlier[~again]
    given[1, later[again]] = earlier[again]
    return given


def replayed(graph: Graph, busy_ns: Ints, lag_ns: Ints, transfer_ns: Ints) -> int:
    """Return the makespan of an iteration with other times, in the same order.

    Args:
        graph: the iteration.
        busy_ns: how long each operation works.
        lag_ns: how long after the last of what it follows each starts.
        transfer_ns: how long what each takes from others is on its way.
    """
    if len(graph.rows) == 0:
        return 0
    # The last place is that of no operation; what follows none starts when it did.
    ends = [NEVER] * (len(graph.rows) + 1)
    free = np.where(graph.follows, NEVER, graph.start_ns).tolist()
    late = (lag_ns + transfer_ns).tolist()
    columns = (*graph.before.tolist(), lag_ns.tolist(), late, busy_ns.tolist(), free)
    for place, (own, one, two, lag, after, busy, start_ns) in enumerate(zip(*columns, strict=True)):
        ends[place] = max(ends[own] + lag, ends[one] + after, ends[two] + after, start_ns) + busy
    return max(ends[:-1]) - int(graph.start_ns.min())


def critical_path(graph: Graph, operations: Operations, iteration: int) -> CriticalPath:
    """Return what bounds an iteration, and what each of its operations has to spare."""
    slack = np.full(len(operations), NONE, np.int64)
    if len(graph.rows) == 0:
        nothing = np.empty(0, np.int64)
        return CriticalPath(iteration, nothing, 0, (), slack)
    # Of what an operation follows, the last to be there; of several its own rank's.
    which = graph.arrived_ns.argmax(axis=0)
    last = np.take_along_axis(graph.before, which[None], axis=0)[0]
    at = int(graph.end_ns.argmax())
    chain = []
    while at != NONE:
        chain.append(at)
        at = int(last[at])
    places = np.array(chain[::-1], np.int64)
    slack[graph.rows] = _slack(graph)
    return CriticalPath(
        iteration,
        graph.rows[places],
        int(graph.end_ns[places[-1]] - graph.start_ns[places[0]]),
        _parts(graph, operations, places, which[places] > 0),
        slack,
    )


def _slack(graph: Graph) -> Ints:
    """Return how much later each operation could end: from the last one backwards."""
    took, transfer = (graph.busy_ns + graph.lag_ns).tolist(), graph.transfer_ns.tolist()
    own, one, two = graph.before.tolist()
    # The last place is that of no operation.
    latest = [int(graph.end_ns.max())] * (len(took) + 1)
    for at in range(len(took) - 1, -1, -1):
        least = latest[at] - took[at]
        latest[own[at]] = min(latest[own[at]], least)
        for earlier in (one[at], two[at]):
            latest[earlier] = min(latest[earlier], least - transfer[at])
    return np.array(latest[:-1], np.int64) - graph.end_ns


def _parts(graph: Graph, operations: Operations, places: Ints, given: Bools) -> tuple[Step, ...]:
    """Return what a chain is made of: work by rank and phase, and delays by rank and cause.

    ``given`` tells which of the places were held up by what another rank gave.
    """
    rank = graph.rank[places]
    phase = operations.phase[graph.rows[places]]
    found = []
    work = groups_of(rank, phase)
    total = intervals.group_sum(work.of_row, len(work), graph.busy_ns[places])
    counts = np.bincount(work.of_row, minlength=len(work)).tolist()
    for first, time_ns, count in zip(work.first.tolist(), total.tolist(), counts, strict=True):
        label = Phase(int(phase[first])).label
        found.append(Step(int(rank[first]), label, time_ns, count))
    inner, given = places[1:], given[1:]
    for number in np.unique(graph.rank[inner]).tolist():
        on_rank = graph.rank[inner] == number
        own = inner[on_rank]
        delays = graph.lag_by_cause[own].copy()
        delays[:, Cause.COMMUNICATION] += np.where(given[on_rank], graph.transfer_ns[own], 0)
        for cause in Cause:
            if delays[:, cause].any():
                count = int((delays[:, cause] > 0).sum())
                found.append(Step(number, cause.label, int(delays[:, cause].sum()), count))
        rest = int(graph.lag_ns[own].sum() - graph.lag_by_cause[own].sum())
        if rest:
            found.append(Step(number, "other work", rest, len(own)))
    return tuple(sorted(found, key=lambda s: (-s.time_ns, s.rank, s.what)))


def what_if(graph: Graph, operations: Operations, ranks: int) -> tuple[WhatIf, ...]:
    """Return what an iteration would be under some changes, as measured first.

    Args:
        graph: the iteration.
        operations: of all ranks.
        ranks: that take part in it.
    """
    busy_ns, lag_ns, transfer_ns = graph.busy_ns, graph.lag_ns, graph.transfer_ns

    def changed(name: str, change: str, busy: Ints, lag: Ints, moving: Ints) -> WhatIf:
        makespan_ns = replayed(graph, busy, lag, moving)
        whole = ranks * makespan_ns
        ratio = (whole - int(busy.sum())) / whole if whole > 0 else None
        return WhatIf(name, change, makespan_ns, ratio)

    found = [changed("measured", "as measured", busy_ns, lag_ns, transfer_ns)]
    nothing = np.zeros_like(transfer_ns)
    for name, change, cause in _WITHOUT:
        gone = graph.lag_by_cause[:, cause]
        moving = nothing if cause is Cause.COMMUNICATION else transfer_ns
        if gone.any() or moving is nothing:
            found.append(changed(name, change, busy_ns, lag_ns - gone, moving))
    usual = _medians(graph, operations)
    median = "every operation takes the median of its kind"
    found.append(changed("no-stragglers", median, usual, lag_ns, transfer_ns))
    even = _balanced(graph, operations, usual)
    mean = "every stage takes the mean of all stages"
    found.append(changed("balanced", mean, even, lag_ns, transfer_ns))
    tight = np.minimum(lag_ns, 0)
    found.append(changed("no-delay", "the same order, without any delay", busy_ns, tight, nothing))
    return tuple(found)


def _medians(graph: Graph, operations: Operations) -> Ints:
    """Return for each operation the median time of its rank, chunk and phase."""
    kind = groups_of(graph.rank, operations.chunk[graph.rows], operations.phase[graph.rows]).of_row
    order = np.lexsort((graph.busy_ns, kind))
    first = np.searchsorted(kind[order], np.arange(int(kind.max(initial=-1)) + 1))
    count = np.bincount(kind, minlength=len(first))
    middle: Ints = graph.busy_ns[order][first + (count - 1) // 2]
    # One that stands for several (a W of all microbatches that are left) is of no kind.
    single = operations.microbatch[graph.rows] >= 0
    return np.where(single, middle[kind], graph.busy_ns)


def _balanced(graph: Graph, operations: Operations, usual_ns: Ints) -> Ints:
    """Return the times with every stage as fast as the mean of all stages, phase by phase.

    What an operation takes against the median of its kind stays.
    """
    phase = operations.phase[graph.rows]
    result = graph.busy_ns.copy()
    for one in np.unique(phase).tolist():
        at = np.flatnonzero((phase == one) & (usual_ns > 0))
        if len(at):
            scale = usual_ns[at].mean() / usual_ns[at]
            result[at] = np.rint(graph.busy_ns[at] * scale).astype(np.int64)
    return result
