"""What if: how long an iteration would take with other operation times or delays, in its order.

The iteration's graph is replayed: every operation starts its delay after the last of those that it
follows has ended, a transfer later where that ran on another rank.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.graph import Graph
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.values import frozen


@frozen
class WhatIf:
    """An iteration under one change, all else as measured.

    Attributes:
        name: stable name of the change.
        change: what it is, for people.
        makespan_ns: window of the iteration over all ranks.
        bubble_ratio: its ``schedule`` ratio; None for an iteration without any length.
    """

    name: str
    change: str
    makespan_ns: int
    bubble_ratio: float | None


#: Changes that remove the delays of one cause: name, what it is, and the cause.
_WITHOUT = (
    ("no-host", "every operation launched in time", Cause.HOST),
    ("no-transfer", "transfers take no time", Cause.COMMUNICATION),
    ("no-collective", "collectives move data in no time", Cause.COLLECTIVE),
    ("no-profiler", "no profiler overhead", Cause.PROFILER),
    ("no-latency", "no launch latency or other unexplained delay", Cause.OTHER),
)


def what_if(graph: Graph, operations: Operations, ranks: int) -> tuple[WhatIf, ...]:
    """Return an iteration as measured, then under each change.

    Args:
        graph: the iteration.
        operations: of all ranks.
        ranks: number of ranks in the iteration.
    """
    busy_ns, delay_ns, transfer_ns = graph.busy_ns, graph.delay_ns, graph.transfer_ns

    def changed(name: str, change: str, busy: Ints, delay: Ints, transfer: Ints) -> WhatIf:
        makespan_ns = replayed(graph, busy, delay, transfer)
        whole = ranks * makespan_ns
        ratio = (whole - int(busy.sum())) / whole if whole > 0 else None
        return WhatIf(name, change, makespan_ns, ratio)

    changes = [changed("measured", "as measured", busy_ns, delay_ns, transfer_ns)]
    no_transfer_ns = np.zeros_like(transfer_ns)
    for name, change, cause in _WITHOUT:
        removed_ns = graph.delay_by_cause[:, cause]
        moving_ns = no_transfer_ns if cause is Cause.COMMUNICATION else transfer_ns
        if removed_ns.any() or cause is Cause.COMMUNICATION:
            changes.append(changed(name, change, busy_ns, delay_ns - removed_ns, moving_ns))
    median_ns = _medians(graph, operations)
    change = "every operation takes the median of its kind"
    changes.append(changed("no-stragglers", change, median_ns, delay_ns, transfer_ns))
    even_ns = _balanced(graph, operations, median_ns)
    change = "every stage takes the mean of all stages"
    changes.append(changed("balanced", change, even_ns, delay_ns, transfer_ns))
    # Who waits in a collective depends on its last member, as on the producer of an input.
    early_ns = np.minimum(delay_ns, graph.delay_by_cause[:, Cause.DEPENDENCY])
    change = "the same order without any delay"
    changes.append(changed("no-delay", change, busy_ns, early_ns, no_transfer_ns))
    return tuple(changes)


def replayed(graph: Graph, busy_ns: Ints, delay_ns: Ints, transfer_ns: Ints) -> int:
    """Return the makespan of an iteration with other times, in the same order.

    Args:
        graph: the iteration.
        busy_ns: how long each operation works.
        delay_ns: how long each starts after the last of those that it follows.
        transfer_ns: how long the input of each is in transfer from another rank.
    """
    if len(graph.rows) == 0:
        return 0
    # The last place stands for no operation; an operation that follows none starts as measured.
    ends = [NEVER] * (len(graph.rows) + 1)
    free = np.where(graph.follows, NEVER, graph.start_ns).tolist()
    remote_delay = (delay_ns + transfer_ns).tolist()
    columns = (*graph.before.tolist(), delay_ns.tolist(), remote_delay, busy_ns.tolist(), free)
    for place, (same_rank, first, second, delay, remote, busy, start_ns) in enumerate(
        zip(*columns, strict=True)
    ):
        ends[place] = busy + max(
            ends[same_rank] + delay, ends[first] + remote, ends[second] + remote, start_ns
        )
    return max(ends[:-1]) - int(graph.start_ns.min())


def _medians(graph: Graph, operations: Operations) -> Ints:
    """Return for each operation the median time of its rank, chunk and phase."""
    kind = groups_of(graph.rank, operations.chunk[graph.rows], operations.phase[graph.rows]).of_row
    order = np.lexsort((graph.busy_ns, kind))
    first = np.searchsorted(kind[order], np.arange(int(kind.max(initial=-1)) + 1))
    count = np.bincount(kind, minlength=len(first))
    middle: Ints = graph.busy_ns[order][first + (count - 1) // 2]
    # An operation that stands for several (a W of all remaining microbatches) has no kind.
    single = operations.microbatch[graph.rows] >= 0
    return np.where(single, middle[kind], graph.busy_ns)


def _balanced(graph: Graph, operations: Operations, median_ns: Ints) -> Ints:
    """Return the times with every stage as fast as the mean of all stages, phase by phase.

    Each operation keeps its ratio to the median of its kind.
    """
    phases = operations.phase[graph.rows]
    result = graph.busy_ns.copy()
    for phase in distinct(phases).tolist():
        at = np.flatnonzero((phases == phase) & (median_ns > 0))
        if len(at):
            scale = median_ns[at].mean() / median_ns[at]
            result[at] = np.rint(graph.busy_ns[at] * scale).astype(np.int64)
    return result
