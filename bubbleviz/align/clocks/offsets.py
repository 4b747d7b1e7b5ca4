"""Offsets: bounds on the constant offsets of clocks, derived from events whose order is known.

An event on one clock that cannot be later than an event on another clock bounds the difference
between the clocks on one side. A second pair of events, in the opposite direction, provides the
bound on the other side::

    clock 0   F ─────┤                     ├───── B
    clock 1           ├───── F   B ──────┤
                     └┘ moves left at most this far
                                         └─┘ moves right at most this far

All clocks are solved together as difference constraints: the correction of a clock relative to
another clock is bounded by two shortest paths (Cormen et al., Introduction to Algorithms,
"Difference constraints and shortest paths").

The bounds form a matrix: ``limit[later, earlier]`` is the maximum by which the correction of the
clock ``earlier`` can exceed the correction of the clock ``later``. A limit is infinite if there is
no bound. A finite limit is an arc from ``later`` to ``earlier``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bubbleviz.model.columns import NONE, Floats, Ints, Table, join_tables, scatter
from bubbleviz.model.grouping import find_first_rows


@dataclass(frozen=True, eq=False, repr=False)
class Precedences(Table):
    """Event pairs on two clocks, in which the first event cannot be later than the second.

    Attributes:
        earlier_clock: Index of the first event's clock.
        later_clock: Index of the second event's clock. Always differs from ``earlier_clock``.
        earlier_ns: Time of the first event, on ``earlier_clock``.
        later_ns: Time of the second event, on ``later_clock``.
        earlier_row: Row of the first event's operation, or -1 if it is not an operation.
        later_row: Row of the second event's operation, or -1 if it is not an operation.
        iteration: Common iteration to which the second event belongs.
    """

    earlier_clock: Ints
    later_clock: Ints
    earlier_ns: Ints
    later_ns: Ints
    earlier_row: Ints
    later_row: Ints
    iteration: Ints


def join_precedences(*parts: Precedences) -> Precedences:
    """Concatenate tables of precedences. The result is empty if there are no tables."""
    return join_tables([part for part in parts if len(part)] or [Precedences.make_empty()])


#: Finite limits: indices of the later clocks, indices of the earlier clocks, and the limits.
_Arcs = tuple[Ints, Ints, Floats]


def find_tightest_limits(precedences: Precedences, n_clocks: int) -> tuple[Floats, Ints]:
    """Find the tightest bound between every two clocks.

    Args:
        precedences: Precedences between the clocks.
        n_clocks: Number of clocks.

    Returns:
        limit: Smallest ``later_ns - earlier_ns`` for each clock pair, shape (clocks, clocks),
            indexed [later, earlier]. Infinite if the pair has no precedence, and 0 on the diagonal.
        row: Row of the precedence that determines each limit, same shape as ``limit``, or -1 if
            there is none. The smallest row wins ties.
    """
    slack = precedences.later_ns - precedences.earlier_ns
    pair = precedences.later_clock * n_clocks + precedences.earlier_clock
    tightest = find_first_rows(pair, slack)
    row = scatter(n_clocks * n_clocks, pair[tightest], tightest)
    limit = np.where(row == NONE, np.inf, np.append(slack, 0)[row]).reshape(n_clocks, n_clocks)
    np.fill_diagonal(limit, 0.0)
    return limit, row.reshape(n_clocks, n_clocks)


def _list_arcs(limit: Floats) -> _Arcs:
    """List all finite limits that are not on the diagonal."""
    later, earlier = np.nonzero(np.isfinite(limit) & ~np.eye(len(limit), dtype=bool))
    return later, earlier, limit[later, earlier]


def _extend_walks(arcs: _Arcs, walks: Floats) -> Floats:
    """Extend the shortest walk to each clock from k arcs to k + 1 arcs, and return its length.

    Args:
        arcs: All arcs of the graph.
        walks: Length of the shortest walk to each clock that has k arcs, or infinity if there is
            none.
    """
    tail, head, limit_ns = arcs
    extended = np.full(len(walks), np.inf)
    np.minimum.at(extended, head, walks[tail] + limit_ns)
    return extended


def find_worst_cycle(limit: Floats) -> tuple[float, list[int]]:
    """Find the slack that must be added to all bounds so that constant offsets exist.

    The slack is the negated minimum cycle mean of the graph (Karp 1978, "A characterization of the
    minimum cycle mean in a digraph"), where walks may start at any node. The running time is
    proportional to the number of clocks times the number of arcs.

    Args:
        limit: Limits of all clock pairs, indexed [later, earlier].

    Returns:
        slack: Required slack. The slack is not positive if the bounds are consistent, and negative
            infinity if the graph has no cycle.
        cycle: Clocks in the cycle with the minimum mean, in the order of its arcs. Each arc leads
            from the later to the earlier clock of a limit. Empty if the graph has no cycle.
    """
    n_clocks, arcs = len(limit), _list_arcs(limit)
    walks = np.zeros((n_clocks + 1, n_clocks))
    for n_arcs in range(n_clocks):
        walks[n_arcs + 1] = _extend_walks(arcs, walks[n_arcs])
    reached = np.flatnonzero(np.isfinite(walks[n_clocks]))
    if len(reached) == 0:
        return -np.inf, []
    remaining = (n_clocks - np.arange(n_clocks))[:, None]
    means = ((walks[n_clocks, reached] - walks[:n_clocks, reached]) / remaining).max(axis=0)
    # The longest walk to the clock with the smallest mean contains the cycle. Trace it backwards.
    walk = [int(reached[means.argmin()])]
    for n_arcs in range(n_clocks - 1, -1, -1):
        tail, _, limit_ns = (column[arcs[1] == walk[-1]] for column in arcs)
        walk.append(int(tail[(walks[n_arcs][tail] + limit_ns).argmin()]))
        if walk[-1] in walk[:-1]:
            break
    return -float(means.min()), walk[walk.index(walk[-1]) + 1 :][::-1]


def round_up(slack: float) -> float:
    """Return the slack plus 0.5 ns to cover rounding errors, or 0 if the slack is not positive."""
    return slack + 0.5 if slack > 0 else 0.0


def compute_intervals(limit: Floats, reference: int) -> tuple[Floats, Floats]:
    """Compute the interval of possible corrections for each clock, relative to a reference clock.

    If the reference does not bound a clock from both sides, the interval is relative to the first
    clock that bounds it from both sides.

    Args:
        limit: Limits of all clock pairs, indexed [later, earlier]. Must not have a negative
            cycle.
        reference: Clock whose correction is 0.

    Returns:
        offset: Midpoint of each clock's interval.
        half_width: Half the width of the interval, or infinity if the reference does not bound the
            clock.
    """
    from scipy.sparse.csgraph import johnson

    later, earlier, limit_ns = _list_arcs(limit)
    paths = johnson(build_graph((later, earlier), limit_ns, len(limit)))
    is_bounded = np.isfinite(paths) & np.isfinite(paths.T)
    root = np.where(is_bounded[reference], reference, is_bounded.argmax(axis=1))
    clock = np.arange(len(limit))
    to_clock, from_clock = paths[root, clock], paths[clock, root]
    half_width = np.where(root == reference, (to_clock + from_clock) / 2, np.inf)
    return (to_clock - from_clock) / 2, half_width


def build_graph(arcs: tuple[Ints, Ints], length: Floats, n_nodes: int) -> Any:
    """Build the sparse adjacency matrix of a graph for SciPy.

    Args:
        arcs: Tails and heads of the arcs, as node numbers.
        length: Length of each arc.
        n_nodes: Number of nodes.
    """
    from scipy.sparse import csr_array

    return csr_array((length, arcs), shape=(n_nodes, n_nodes))
