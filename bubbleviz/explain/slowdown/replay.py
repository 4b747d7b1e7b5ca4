"""Replay iterations in the measured order of their work, with changed durations and delays.

Communication moves data once the last member of its meeting has started, and each member ends after
its own transfer time (:mod:`bubbleviz.schedules.timing`)::

    rank 0   ├─ compute ─┤├▒ waits ▒│▓ transfer ▓┤├─ compute ─┤
    rank 1   ├────── compute ──────┤├▓ transfer ▓┤├─ compute ─┤

All iterations and ranks are replayed together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.work import Role, Work
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import find_run_starts, sort_rows
from bubbleviz.schedules.timing import Timing, build_timing


@dataclass(frozen=True)
class Replay:
    """Work in the order in which it is replayed, and the rows that can end iterations.

    An iteration whose dependencies contain a cycle is not replayed.

    Attributes:
        timing: Replayed rows of the work table in topological order.
        iterations: Numbers of the replayed iterations, ascending.
        closing: Positions in :attr:`rows` at which an iteration can end, sorted by iteration.
        first_closing: For each iteration, the index of its first entry in ``closing``.
    """

    timing: Timing
    iterations: Ints
    closing: Ints
    first_closing: Ints

    @property
    def rows(self) -> Ints:
        """Rows of the work table in replay order."""
        return self.timing.rows

    @property
    def unordered(self) -> Ints:
        """Rows of the work table that are part of a dependency cycle or depend on one."""
        return self.timing.unordered

    def compute_ends(self, own_ns: Ints, delay_ns: Ints, *, in_replay_order: bool = False) -> Ints:
        """Return when each row ends, in ns from the start of its iteration.

        Args:
            own_ns: Duration of each row; for communication, its transfer time. Shape (rows,
                scenarios).
            delay_ns: For each row, the time from the end of its last predecessor to its start;
                shape (rows,) or (rows, scenarios).
            in_replay_order: Whether both arrays are in the order of :attr:`rows` rather than the
                order of the work table.

        Returns:
            End of each row in the order of :attr:`rows`, shape (rows, scenarios).
        """
        if not in_replay_order:
            own_ns, delay_ns = own_ns[self.rows], delay_ns[self.rows]
        return self.timing.compute_ends(own_ns, delay_ns)

    def lengths_ns(self, own_ns: Ints, delay_ns: Ints, *, in_replay_order: bool = False) -> Ints:
        """Return the iteration durations in ns, as an array of shape (iterations, scenarios).

        A rank has finished an iteration when its last optimizer ends, or its last work if it has no
        optimizer. The iteration ends when the last rank has finished. :meth:`compute_ends`
        describes the arguments.
        """
        if not len(self.iterations):
            return np.zeros((0, own_ns.shape[1]), np.int64)
        return self.find_iteration_ends(
            self.compute_ends(own_ns, delay_ns, in_replay_order=in_replay_order)
        )

    def find_iteration_ends(self, ends_ns: Ints) -> Ints:
        """Return the end of each iteration, shape (iterations, scenarios).

        The end of an iteration is the latest end of its rows in :attr:`closing`.

        Args:
            ends_ns: Ends of rows as returned by :meth:`compute_ends`, shape (rows, scenarios).
        """
        closing_ns = ends_ns[self.closing]
        return np.asarray(np.maximum.reduceat(closing_ns, self.first_closing, axis=0), np.int64)

    def mask_mixed(self, group: Ints) -> Bools:
        """Mark the rows that depend on rows in several groups.

        A row depends on itself and on its direct and indirect predecessors. The rows of a meeting
        also depend on each other's predecessors. The mask is False for rows that are not replayed.

        Args:
            group: Group number of each work row, for example its replica.
        """
        group_at = group[self.rows]
        # Group numbers are replayed as end times, so the largest group propagates along all edges.
        # Negated group numbers propagate the smallest group in the same way.
        extremes = np.stack((group_at, -group_at), axis=1)
        nothing = np.zeros_like(extremes)
        largest, negative_smallest = self.timing.compute_ends(nothing, nothing, earliest=extremes).T
        mixed = np.zeros(len(group), bool)
        mixed[self.rows] = largest != -negative_smallest
        return mixed


def build_replay(work: Work, order: Dependencies) -> Replay:
    """Build the replay of work: sort it topologically, and find the rows that can end iterations.

    Iterations whose dependencies contain a cycle are left out.

    Args:
        work: Work table of all ranks.
        order: Dependencies of the work, as pairs of a row and one of its predecessors.
    """
    timing = build_timing(order.successor, order.predecessor, work.meeting, work.iteration)
    rows = timing.rows
    closing = _find_closing_positions(work, rows)
    iterations = work.iteration[rows[closing]]
    first = find_run_starts(iterations)
    return Replay(timing, iterations[first], closing, first)


def _find_closing_positions(work: Work, rows: Ints) -> Ints:
    """Return the positions in ``rows`` at which an iteration can end, sorted by iteration.

    A rank can end the iteration with any of its optimizers or, if it has none in the iteration,
    with any of its rows.

    Args:
        work: Work table of all ranks.
        rows: Work rows in replay order.
    """
    if not len(rows):
        return rows
    is_optimizer = work.role[rows] == Role.OPTIMIZER
    rank_iteration = work.rank_iteration[rows]
    has_optimizer = np.bincount(rank_iteration, is_optimizer) > 0
    closing = np.flatnonzero(is_optimizer | ~has_optimizer[rank_iteration])
    return closing[sort_rows(work.iteration[rows[closing]])]
