"""Find ranks that begin iterations later than the same stage of other pipelines.

The first operation of the first stage needs no input. If all pipelines wait for each other between
iterations, they could begin the next iteration together. A rank that begins later, for example
because its data loader is late, delays all other ranks::

    replica 0   ├ F0 ┤├ F1 ┤├ B0 ┤├ B1 ┤ · waits ·│├ F0 ┤├ F1 ┤
    replica 1   · late ·├ F0 ┤├ F1 ┤├ B0 ┤├ B1 ┤  │· late ·├ F0 ┤

Only operations whose launch was not recorded are examined, because a recorded launch shows directly
whether it was late.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.model.columns import NONE, Bools, Ints, make_mask
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.intervals import group_extents

#: Minimum delay of a late first operation, in ns.
MIN_LATE_NS = 20_000
#: Maximum overlap of consecutive iterations of ranks that wait for each other, as a fraction of an
#: iteration.
_MAX_OVERLAP = 0.01


def measure_late_starts(run: ReplayedRun, rows: Ints) -> Ints:
    """Measure how much later each rank begins an iteration than the first rank does, in ns.

    Only the first operation of a rank in an iteration has a delay. It must need no input, have no
    recorded launch, and start more than 20 us after the first rank. All other delays are 0.

    All delays are 0 in the following cases, in which ranks do not wait for each other or cannot be
    compared:

    - A rank begins an iteration well before all ranks have ended the previous one
      (:func:`_wait_for_each_other`).
    - There is only one iteration.
    - The ranks are on several hosts, whose clocks differ.

    Args:
        run: The replayed run.
        rows: Rows of the compute operations in averaged iterations.

    Returns:
        Delay of each entry of ``rows`` in ns.
    """
    operations = run.operations
    late_ns = np.zeros(len(rows), np.int64)
    if not len(rows) or len({rank.host for rank in run.ranks}) > 1:
        return late_ns
    start_ns, iteration = operations.start_ns[rows], operations.iteration[rows]
    iterations = group_rows(iteration)
    is_start = _mask_starts(run, rows)
    if not is_start.any():
        return late_ns
    first_ns, _ = group_extents(
        iterations.of_row[is_start], len(iterations), start_ns[is_start], start_ns[is_start]
    )
    if not _wait_for_each_other(run, rows, first_ns):
        return late_ns
    delay_ns = start_ns - first_ns[iterations.of_row]
    is_late = is_start & (operations.launched_ns[rows] == NONE) & (delay_ns > MIN_LATE_NS)
    late_ns[is_late] = delay_ns[is_late]
    return late_ns


def _mask_starts(run: ReplayedRun, rows: Ints) -> Bools:
    """Return a mask of the rows that need no input and are the first of their rank in an iteration.

    Args:
        run: The replayed run.
        rows: Rows of operations.
    """
    operations, dependencies = run.operations, run.explained().dependencies
    start_ns = operations.start_ns[rows]
    parts = group_rows(operations.rank[rows], operations.iteration[rows])
    first_ns, _ = group_extents(parts.of_row, len(parts), start_ns, start_ns)
    has_input = make_mask(len(operations), dependencies.successor)[rows]
    return np.asarray((start_ns == first_ns[parts.of_row]) & ~has_input, bool)


def _wait_for_each_other(run: ReplayedRun, rows: Ints, first_ns: Ints) -> bool:
    """Return whether each iteration begins after the previous one has ended on all ranks.

    An overlap of up to 1 % of the median iteration length is allowed, because ranks that
    synchronize their gradients still run their optimizers separately. The result is False if there
    are fewer than two iterations.

    Args:
        run: The replayed run.
        rows: Rows of operations.
        first_ns: First start of each iteration that contains any of ``rows``, ascending.
    """
    operations = run.operations
    iterations = group_rows(operations.iteration[rows])
    end_ns = operations.end_ns[rows]
    _, last_ns = group_extents(iterations.of_row, len(iterations), end_ns, end_ns)
    if len(iterations) < 2:
        return False
    tolerance_ns = _MAX_OVERLAP * float(np.median(last_ns - first_ns))
    return bool((first_ns[1:] >= last_ns[:-1] - tolerance_ns).all())
