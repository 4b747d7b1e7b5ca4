"""Start-up collectives: one-off communication before the first compute of an iteration.

The windows of ratios begin with the first compute of an iteration. DDP broadcasts its parameters
and buffers before the first forward, and these broadcasts wait for ranks that start late::

    iteration 0    ├──────── start-up broadcast ────────┤├─ F0 ─┤├─ F1 ─┤ ...
    iteration 1                                   ├usual┤├─ F0 ─┤├─ F1 ─┤ ...

A replay that contained them would take longer than the iteration was measured to take, and advice
would promise to save what no other iteration has.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.waits import NEVER
from bubbleviz.explain.slowdown.run_work import CLOCK_NS, computing_rows
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations

#: Multiple of the usual time before the first compute from which on it is not usual.
_UNUSUAL = 2


def without_start_up(
    collectives: CollectiveIntervals, operations: Operations, averaged: Bools
) -> CollectiveIntervals:
    """Return collectives without one-off ones before the first compute of their iteration.

    What begins before is cut there, and left out if it also ends before. Collectives that run
    there in most iterations are kept, for as long as twice their usual time. A single iteration
    has no usual time.

    Args:
        collectives: Collectives of all ranks, on one clock.
        operations: Operations of all ranks.
        averaged: Mask of the iterations that are replayed.
    """
    rows = computing_rows(operations, averaged)
    inside = np.append(averaged, False)[collectives.iteration]
    if not len(rows) or not inside.any():
        return collectives
    iterations, own = len(averaged), collectives.take(inside)
    first_ns, last_ns = group_extents(
        operations.iteration[rows], iterations, operations.start_ns[rows], operations.end_ns[rows]
    )
    entered_ns, left_ns = group_extents(own.iteration, iterations, own.start_ns, own.end_ns)
    computes, communicates = first_ns <= last_ns, entered_ns <= left_ns
    lead_ns = np.where(communicates, np.maximum(first_ns - entered_ns, 0), 0)
    known_ns = np.sort(lead_ns[computes])
    usual_ns = int(known_ns[(len(known_ns) - 1) // 2]) if len(known_ns) > 1 else 0
    allowed_ns = _UNUSUAL * usual_ns + CLOCK_NS if usual_ns else 0
    limit_ns = np.append(np.where(computes, first_ns - allowed_ns, NEVER), NEVER)
    of_row_ns = limit_ns[np.where(inside, collectives.iteration, NONE)]
    start_ns = np.maximum(collectives.start_ns, of_row_ns)
    return collectives.changed(start_ns=start_ns).take(collectives.end_ns > of_row_ns)
