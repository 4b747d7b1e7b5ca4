"""Difference constraints between constant offsets, as a matrix of limits.

``limit[after, before]`` is the most by which the correction of ``before`` can exceed that of
``after``; infinite where nothing bounds it.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.bounds.clock_segments import Floats
from bubbleviz.align.bounds.precedences import Precedences
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import least_of_each
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


def tightest_limits(precedences: Precedences, clocks: int) -> tuple[Floats, Ints]:
    """Return the least ``after - before`` of each pair (after, before) of clocks, and its row.

    That is the most by which the correction of ``before`` can exceed that of ``after``.
    """
    slack = precedences.after_ns - precedences.before_ns
    pair = precedences.after * clocks + precedences.before
    row = least_of_each(pair, clocks * clocks, slack)
    limit = np.where(row == NONE, np.inf, np.append(slack, 0)[row]).reshape(clocks, clocks)
    np.fill_diagonal(limit, 0.0)
    return limit, row.reshape(clocks, clocks)


@frozen
class _Arcs(Table):
    """The finite limits between different clocks, in order of (before, after).

    Attributes:
        after: clock that an arc leads from.
        before: clock that it leads to.
        limit_ns: its length.
    """

    after: Ints
    before: Ints
    limit_ns: Floats

    @classmethod
    def of(cls, limit: Floats) -> _Arcs:
        """Return the arcs of a matrix of limits."""
        before, after = np.nonzero(np.isfinite(limit.T) & ~np.eye(len(limit), dtype=bool))
        return cls(after, before, limit[after, before])

    def reversed(self) -> _Arcs:
        """Return arcs that lead back, as long as these."""
        order = sorted_rows(self.after, self.before)
        return _Arcs(self.before[order], self.after[order], self.limit_ns[order])

    def shortest(self, walks: Floats) -> Floats:
        """Return the shortest walks to each clock that are one arc longer; infinite without one."""
        longer = np.full(len(walks), np.inf)
        if len(self):
            first = np.flatnonzero(np.diff(self.before, prepend=NONE))
            found = np.minimum.reduceat(walks[self.after] + self.limit_ns, first)
            longer[self.before[first]] = found
        return longer


def needed_slack(limit: Floats) -> tuple[float, list[int]]:
    """Return the slack that each bound needs so that constant offsets exist, and the worst circle.

    It is the negative of the least mean length of a circle (Karp 1978, "A characterization of
    the minimum cycle mean in a digraph"), with walks that may begin anywhere; 0 or less where no
    bound needs any. The clocks of that circle are returned in the order of its arcs, which lead
    from ``after`` to ``before``. It takes clocks times arcs.
    """
    clocks, arcs = len(limit), _Arcs.of(limit)
    walks = np.zeros((clocks + 1, clocks))
    for length in range(clocks):
        walks[length + 1] = arcs.shortest(walks[length])
    ends = np.flatnonzero(np.isfinite(walks[clocks]))
    if len(ends) == 0:
        return -np.inf, []
    steps = (clocks - np.arange(clocks))[:, None]
    means = ((walks[clocks, ends] - walks[:clocks, ends]) / steps).max(axis=0)
    # The longest walk to the clock with the least mean runs through that circle.
    walk = [int(ends[means.argmin()])]
    for length in range(clocks - 1, -1, -1):
        into = arcs.take(np.flatnonzero(arcs.before == walk[-1]))
        walk.append(int(into.after[(walks[length][into.after] + into.limit_ns).argmin()]))
        if walk[-1] in walk[:-1]:
            break
    return -float(means.min()), walk[walk.index(walk[-1]) + 1 :][::-1]


def rounded_up(slack: float) -> float:
    """Return the slack with what sums of it may lose by rounding; 0 where none is needed."""
    return slack + 0.5 if slack > 0 else 0.0


def _between(arcs: _Arcs, root: Ints) -> tuple[Floats, Floats]:
    """Return the shortest paths from each clock's root to it, and back (Bellman and Ford).

    No circle is negative. Clocks of one root reach each other, and no path between two of them
    leads over another one.
    """
    own = arcs.take(np.flatnonzero(root[arcs.after] == root[arcs.before]))
    found = []
    for way in (own, own.reversed()):
        paths = np.where(root == np.arange(len(root)), 0.0, np.inf)
        for _ in range(len(root)):
            nearer = np.minimum(paths, way.shortest(paths))
            if (nearer == paths).all():
                break
            paths = nearer
        found.append(paths)
    return found[0], found[1]


def _roots(arcs: _Arcs, clocks: int, reference: int) -> Ints:
    """Return the first of the clocks that bound each one from both sides, or the reference."""
    part = _strong_parts(arcs, clocks)
    first = np.full(clocks, clocks)
    np.minimum.at(first, part, np.arange(clocks))
    first[part[reference]] = reference
    return np.asarray(first[part], np.int64)


def _strong_parts(arcs: _Arcs, clocks: int) -> Ints:
    """Return a number for each clock that those share which reach each other.

    Kosaraju's two searches (Sharir 1981, "A strong-connectivity algorithm and its applications in
    data flow analysis"): clocks in the order in which a search leaves them, the last one first,
    then all that lead to each, as far as they have no number yet.
    """
    onward: list[list[int]] = [[] for _ in range(clocks)]
    backward: list[list[int]] = [[] for _ in range(clocks)]
    for tail, head in zip(arcs.after.tolist(), arcs.before.tolist(), strict=True):
        onward[tail].append(head)
        backward[head].append(tail)
    part = [NONE] * clocks
    for number, clock in enumerate(reversed(_left(onward))):
        found = [clock] if part[clock] == NONE else []
        for other in found:
            part[other] = number
            for before in backward[other]:
                if part[before] == NONE:
                    part[before] = number
                    found.append(before)
    return np.array(part, np.int64)


def _left(onward: list[list[int]]) -> list[int]:
    """Return clocks in the order in which a search in depth leaves them."""
    left: list[int] = []
    seen = [False] * len(onward)
    for clock in range(len(onward)):
        path = [] if seen[clock] else [(clock, iter(onward[clock]))]
        seen[clock] = True
        while path:
            at, others = path[-1]
            following = next((other for other in others if not seen[other]), None)
            if following is None:
                left.append(at)
                path.pop()
            else:
                seen[following] = True
                path.append((following, iter(onward[following])))
    return left


def middles(limit: Floats, reference: int) -> tuple[Floats, Bools]:
    """Return the middle of each clock's interval, and whether it is bounded from both sides.

    Clocks that are not bounded against the reference are set against the first clock that bounds
    them, which keeps its own time.
    """
    arcs = _Arcs.of(limit)
    root = _roots(arcs, len(limit), reference)
    there, back = _between(arcs, root)
    return (there - back) / 2, root == reference


def half_widths(limit: Floats, reference: int) -> Floats:
    """Return half of what is left open of each clock against the reference; infinite for all."""
    arcs = _Arcs.of(limit)
    root = _roots(arcs, len(limit), reference)
    there, back = _between(arcs, root)
    return np.where(root == reference, (there + back) / 2, np.inf)
