"""The critical path: the chain of operations that bounds an iteration, and the slack beside it.

Every operation starts its delay after the last of those that it follows: the operation before it
on its rank, and the producers of its input on other ranks, a transfer after they end. The path
runs backwards from the operation that ends last, always to the one that it followed last::

    rank 0   ██ F0 ██ ██ F1 ██                      ██ B0 ██
                    │                               │
    rank 1          └─delay─██ F0 ████ B0 ██─delay──┘          F0, F0, B0, B0 are critical
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.graph import Graph
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen


@frozen
class PathPart:
    """A part of the critical path: the work of one rank in one phase, or one cause of delay.

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


@frozen
class CriticalPath:
    """The chain of operations that bounds an iteration, each delayed only by the one before it.

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
    parts: tuple[PathPart, ...]
    slack_ns: Ints


def critical_path(graph: Graph, operations: Operations, iteration: int) -> CriticalPath:
    """Return the critical path of an iteration, and the slack of each of its operations.

    Args:
        graph: the iteration.
        operations: of all ranks.
        iteration: index of the iteration.
    """
    slack_ns = np.full(len(operations), NONE, np.int64)
    if len(graph.rows) == 0:
        nothing = np.empty(0, np.int64)
        return CriticalPath(iteration, nothing, 0, (), slack_ns)
    # Of those that an operation follows, the last to arrive; of several the one on its own rank.
    which = graph.arrived_ns.argmax(axis=0)
    last = np.take_along_axis(graph.before, which[None], axis=0)[0]
    at = int(graph.end_ns.argmax())
    chain = []
    while at != NONE:
        chain.append(at)
        at = int(last[at])
    places = np.array(chain[::-1], np.int64)
    slack_ns[graph.rows] = _slack(graph)
    return CriticalPath(
        iteration,
        graph.rows[places],
        int(graph.end_ns[places[-1]] - graph.start_ns[places[0]]),
        _parts(graph, operations, places, which[places] > 0),
        slack_ns,
    )


def _slack(graph: Graph) -> Ints:
    """Return how much later each operation could end: from the last one backwards."""
    took, transfer = (graph.busy_ns + graph.delay_ns).tolist(), graph.transfer_ns.tolist()
    same_rank, first, second = graph.before.tolist()
    # The last place stands for no operation.
    latest = [int(graph.end_ns.max())] * (len(took) + 1)
    for at in range(len(took) - 1, -1, -1):
        start = latest[at] - took[at]
        latest[same_rank[at]] = min(latest[same_rank[at]], start)
        for producer in (first[at], second[at]):
            latest[producer] = min(latest[producer], start - transfer[at])
    return np.array(latest[:-1], np.int64) - graph.end_ns


def _parts(
    graph: Graph, operations: Operations, places: Ints, remote: Bools
) -> tuple[PathPart, ...]:
    """Return the parts of a chain: work by rank and phase, and delays by rank and cause.

    Args:
        graph: the iteration.
        operations: of all ranks.
        places: of the chain, in the graph.
        remote: whether each follows an operation on another rank.
    """
    rank = graph.rank[places]
    phase = operations.phase[graph.rows[places]]
    # An operation can begin before the one that it followed ended: no time counts twice.
    until_ns = np.maximum.accumulate(graph.end_ns[places])
    since_ns = np.append(graph.start_ns[places[:1]], until_ns[:-1])
    gap_ns = np.maximum(graph.start_ns[places] - since_ns, 0)
    parts = []
    work = groups_of(rank, phase)
    total = intervals.group_sum(work.of_row, len(work), until_ns - since_ns - gap_ns)
    counts = np.bincount(work.of_row, minlength=len(work)).tolist()
    for first, time_ns, count in zip(work.first.tolist(), total.tolist(), counts, strict=True):
        label = Phase(int(phase[first])).label
        parts.append(PathPart(int(rank[first]), label, time_ns, count))
    delays = graph.delay_by_cause[places]
    delays[:, Cause.COMMUNICATION] += np.where(remote, graph.transfer_ns[places], 0)
    delays = np.clip(delays, 0, gap_ns[:, None] - _before(delays, gap_ns))
    for number in distinct(rank[1:]).tolist():
        rows = np.flatnonzero(rank == number)
        for cause in Cause:
            if delays[rows, cause].any():
                count = int((delays[rows, cause] > 0).sum())
                parts.append(PathPart(number, cause.label, int(delays[rows, cause].sum()), count))
        rest = int(gap_ns[rows].sum() - delays[rows].sum())
        if rest:
            parts.append(PathPart(number, "other work", rest, len(rows[rows > 0])))
    return tuple(sorted(parts, key=lambda part: (-part.time_ns, part.rank, part.what)))


def _before(delays: Ints, most_ns: Ints) -> Ints:
    """Return how much of the delay of each row the causes before each cause take, at most all."""
    before: Ints = np.minimum(np.cumsum(delays, axis=1) - delays, most_ns[:, None])
    return before
