"""Offsets: bounds on the constant offsets of clocks, from events with a known order.

An event on one clock that cannot be later than an event on another clock bounds the difference of
the clocks from one side. A pair of events in the other direction closes the interval::

    clock 0   F ─────┤                     ├───── B
    clock 1           ├───── F   B ──────┤
                     └┘ moves left at most this far
                                         └─┘ moves right at most this far

All clocks are solved together as difference constraints: the correction of a clock relative to
another clock lies between two shortest paths (Cormen et al., Introduction to Algorithms,
"Difference constraints and shortest paths").

The bounds form a matrix: ``limit[after, before]`` is the maximum by which the correction of
``before`` can exceed the correction of ``after``, or infinite without a bound. A finite limit is an
arc (after, before, limit) that leads from ``after`` to ``before``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bubbleviz.model.columns import NONE, Floats, Ints, Table, join_tables, scatter
from bubbleviz.model.grouping import find_first_rows


@dataclass(frozen=True, eq=False, repr=False)
class Precedences(Table):
    """Pairs of events on two clocks of which the first is not later than the second.

    Attributes:
        before: clock of the first event.
        after: clock of the second, another.
        before_ns: time of the first on its own clock.
        after_ns: time of the second on its own clock.
        before_row: row of what the first event is; -1 none.
        after_row: likewise of the second.
        iteration: of the second, counted over all ranks.
    """

    before: Ints
    after: Ints
    before_ns: Ints
    after_ns: Ints
    before_row: Ints
    after_row: Ints
    iteration: Ints


def together(*parts: Precedences) -> Precedences:
    """Return all of them as one table."""
    return join_tables([part for part in parts if len(part)] or [Precedences.make_empty()])


#: Finite limits: indices of ``after``, indices of ``before``, and the limits.
_Arcs = tuple[Ints, Ints, Floats]


def tightest_limits(precedences: Precedences, clocks: int) -> tuple[Floats, Ints]:
    """Return the least ``after - before`` of each pair (after, before) of clocks, and its row."""
    slack = precedences.after_ns - precedences.before_ns
    pair = precedences.after * clocks + precedences.before
    least = find_first_rows(pair, slack)
    row = scatter(clocks * clocks, pair[least], least)
    limit = np.where(row == NONE, np.inf, np.append(slack, 0)[row]).reshape(clocks, clocks)
    np.fill_diagonal(limit, 0.0)
    return limit, row.reshape(clocks, clocks)


def _arcs(limit: Floats) -> _Arcs:
    after, before = np.nonzero(np.isfinite(limit) & ~np.eye(len(limit), dtype=bool))
    return after, before, limit[after, before]


def _longer(arcs: _Arcs, walks: Floats) -> Floats:
    """Return the shortest walks to each clock that are one arc longer; infinite without one."""
    found = np.full(len(walks), np.inf)
    np.minimum.at(found, arcs[1], walks[arcs[0]] + arcs[2])
    return found


def needed_slack(limit: Floats) -> tuple[float, list[int]]:
    """Return the slack that each bound needs so that constant offsets exist, and the worst circle.

    It is the negative of the least mean length of a circle (Karp 1978, "A characterization of
    the minimum cycle mean in a digraph"), with walks that may begin anywhere; 0 or less where no
    bound needs any. The clocks of that circle are returned in the order of its arcs, which lead
    from ``after`` to ``before``. It takes clocks times arcs.
    """
    clocks, arcs = len(limit), _arcs(limit)
    walks = np.zeros((clocks + 1, clocks))
    for length in range(clocks):
        walks[length + 1] = _longer(arcs, walks[length])
    ends = np.flatnonzero(np.isfinite(walks[clocks]))
    if len(ends) == 0:
        return -np.inf, []
    steps = (clocks - np.arange(clocks))[:, None]
    means = ((walks[clocks, ends] - walks[:clocks, ends]) / steps).max(axis=0)
    # The longest walk to the clock with the least mean runs through that circle.
    walk = [int(ends[means.argmin()])]
    for length in range(clocks - 1, -1, -1):
        after, _, limit_ns = (column[arcs[1] == walk[-1]] for column in arcs)
        walk.append(int(after[(walks[length][after] + limit_ns).argmin()]))
        if walk[-1] in walk[:-1]:
            break
    return -float(means.min()), walk[walk.index(walk[-1]) + 1 :][::-1]


def rounded_up(slack: float) -> float:
    """Return the slack with what sums of it may lose by rounding; 0 where none is needed."""
    return slack + 0.5 if slack > 0 else 0.0


def intervals(limit: Floats, reference: int) -> tuple[Floats, Floats]:
    """Return the middle of each clock's interval, and half its width, by limits without a circle.

    That is infinite for clocks that the reference does not bound from both sides. They are set
    against the first clock that does, which keeps its own time.
    """
    from scipy.sparse.csgraph import johnson

    after, before, limit_ns = _arcs(limit)
    paths = johnson(build_graph((after, before), limit_ns, len(limit)))
    bounded = np.isfinite(paths) & np.isfinite(paths.T)
    root = np.where(bounded[reference], reference, bounded.argmax(axis=1))
    every = np.arange(len(limit))
    there, back = paths[root, every], paths[every, root]
    return (there - back) / 2, np.where(root == reference, (there + back) / 2, np.inf)


def build_graph(ends: tuple[Ints, Ints], length: Floats, nodes: int) -> Any:
    """Return a graph of arcs (tails, heads) for SciPy, which annotates little."""
    from scipy.sparse import csr_array

    return csr_array((length, ends), shape=(nodes, nodes))
