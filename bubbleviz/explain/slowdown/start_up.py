"""Remove start-up collectives: one-off communication before an iteration begins to compute.

The window of a ratio begins with the first compute operation of an iteration. DDP broadcasts its
parameters and buffers before the first forward, and these broadcasts wait for ranks that start
late::

    iteration 0    ├──────── start-up broadcast ────────┤├─ F0 ─┤├─ F1 ─┤ ...
    iteration 1                                   ├usual┤├─ F0 ─┤├─ F1 ─┤ ...

A replay with these broadcasts would be longer than the measured window. Advice would then promise
to save time that other iterations do not spend.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.slowdown.messages import CLOCK_NS
from bubbleviz.explain.slowdown.run_work import find_computing_rows
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations

#: Maximum time by which collectives may precede the first compute operation, as a multiple of the
#: usual time.
_MAX_LEAD = 2


def remove_start_up(
    collectives: CollectiveIntervals, operations: Operations, averaged: Bools
) -> CollectiveIntervals:
    """Cut off one-off collectives before the first compute operation of their iteration.

    The earliest allowed time in an iteration is the start of its first compute operation.
    Collectives that begin earlier are shortened to start at this time. Collectives that end by this
    time are removed.

    If collectives usually run before the first compute operation, the allowed time is earlier, by
    twice the usual lead (:func:`_find_earliest_starts`).

    Args:
        collectives: Collectives of all ranks, on one clock.
        operations: Operations of all ranks.
        averaged: Mask of the iterations that are replayed. Collectives of other iterations are
            returned unchanged.
    """
    rows = find_computing_rows(operations, averaged)
    is_averaged = np.append(averaged, False)[collectives.iteration]
    if not len(rows) or not is_averaged.any():
        return collectives
    replayed = collectives.take(is_averaged)
    limit_ns = _find_earliest_starts(replayed, operations, rows, len(averaged))
    limit_ns = np.append(limit_ns, NEVER)
    limit_of_row_ns = limit_ns[np.where(is_averaged, collectives.iteration, NONE)]
    start_ns = np.maximum(collectives.start_ns, limit_of_row_ns)
    return collectives.replace_columns(start_ns=start_ns).take(collectives.end_ns > limit_of_row_ns)


def _find_earliest_starts(
    collectives: CollectiveIntervals, operations: Operations, rows: Ints, n_iterations: int
) -> Ints:
    """Return the earliest time in each iteration at which collectives are kept, in ns.

    - If an iteration has no compute operation, the time is ``NEVER``.
    - If the usual lead is 0, the time is the start of the first compute operation.
    - Otherwise, the time is earlier by twice the usual lead plus ``CLOCK_NS``.

    The lead of an iteration is the time from the start of its first collective to its first compute
    operation. A lead is never negative. It is 0 if there are no collectives. The usual lead is the
    lower median over the iterations that have a compute operation, or 0 if there is only one.

    Args:
        collectives: Collectives of the averaged iterations.
        operations: Operations of all ranks.
        rows: Rows of the compute operations in the averaged iterations.
        n_iterations: Number of iterations in the run, including those that are not averaged.
    """
    first_ns, last_ns = group_extents(
        operations.iteration[rows], n_iterations, operations.start_ns[rows], operations.end_ns[rows]
    )
    entered_ns, left_ns = group_extents(
        collectives.iteration, n_iterations, collectives.start_ns, collectives.end_ns
    )
    computes, communicates = first_ns <= last_ns, entered_ns <= left_ns
    lead_ns = np.where(communicates, np.maximum(first_ns - entered_ns, 0), 0)
    leads_ns = np.sort(lead_ns[computes])
    usual_ns = int(leads_ns[(len(leads_ns) - 1) // 2]) if len(leads_ns) > 1 else 0
    max_lead_ns = _MAX_LEAD * usual_ns + CLOCK_NS if usual_ns else 0
    return np.where(computes, first_ns - max_lead_ns, NEVER)
