"""The critical path of an iteration, what other operations have to spare, and what could be won.

Every operation starts some time (its lag) after the last of what it follows: the end of the
operation before it on its rank, and the arrival of what it takes from others, a transfer after the
ends of those. Put together again with other times, that tells how long the iteration would take::

    rank 0   ██ F0 ██ ██ F1 ██                      ██ B0 ██
                    │                               │
    rank 1          └──lag──██ F0 ████ B0 ███──lag──┘          F0, F0, B0, B0 are critical
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.dependencies import NEVER
from bubbleviz.explain.graph import Graph
from bubbleviz.explain.idle import Cause
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase

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
