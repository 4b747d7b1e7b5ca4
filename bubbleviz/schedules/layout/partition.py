"""The layout with the shortest iteration: branch and bound over contiguous layers.

::

    start      layouts of equal shares, of the shortest longest device, of what mixtures prefer,
               each improved by moving layers
    sums       paths through the plan: one through all of each device, and the longest path of
               every good layout; a path bounds the makespan of every layout (see ``bounds``)
    mixtures   of these, whose least value is large (see ``mixtures``)
    search     stages from the first to the last, thousands of beginnings at a time; where a bound
               reaches the best makespan so far they are dropped, and what is complete is timed

The makespan of a fixed order is the longest of its paths, so the result is the best of all
layouts, unless the search is broken off for its size: then the bound that was reached stands
beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.layout.bottleneck import bottleneck_of
from bubbleviz.schedules.layout.bounds import Sums
from bubbleviz.schedules.layout.incumbent import Incumbent, balanced
from bubbleviz.schedules.layout.layers import Layers, Layout, check_enough
from bubbleviz.schedules.layout.mixtures import add_mixtures
from bubbleviz.schedules.layout.recurrence import BLOCK, Recurrence

#: Numbers that a step of the search holds at once.
_ROOM = 1 << 22
#: Sums that are looked at; those of devices and mixtures, and the last that were met.
_MOST_SUMS = 64
#: Beginnings of layouts that are looked at, and operations that are timed, at most.
MOST_BEGINNINGS, MOST_TIMED = 8_000_000, 600_000_000
#: Makespans are whole; so much may a bound be rounded up.
_ROUNDING = 0.25


@frozen
class Partition:
    """The best layout that was found for one order.

    Attributes:
        layout: which layers each virtual stage holds.
        makespan_ns: of the order with it.
        least_ns: no layout within the memory has a shorter makespan.
        timed: how many layouts were timed.
    """

    layout: Layout
    makespan_ns: int
    least_ns: int
    timed: int

    @property
    def proven(self) -> bool:
        """Whether no layout is better."""
        return self.least_ns >= self.makespan_ns


class NoLayout(Enum):
    """Why no layout was found, in words."""

    NONE_FITS = "no layout fits the memory"
    BROKEN_OFF = "none that fits the memory was found before the search was broken off"


def best_partition(
    recurrence: Recurrence,
    layers: Layers,
    limit: Sequence[float] | None = None,
    starts: Sequence[Layout] = (),
    watch: Watch = unwatched,
    *,
    beginnings: int = MOST_BEGINNINGS,
) -> Partition | NoLayout:
    """Return the layout with the shortest makespan of one order, or why there is none.

    Args:
        recurrence: the order.
        layers: of the model, at least one a virtual stage.
        limit: memory by device, in the unit of the layers; None for no limit.
        starts: layouts to begin with.
        watch: called with the share of the search that is done.
        beginnings: how many beginnings of layouts are looked at, at most.

    Raises:
        UsageError: there are fewer layers than virtual stages.
    """
    check_enough(len(layers), recurrence.length)
    incumbent = Incumbent(recurrence, layers, limit)
    sums = Sums(layers, recurrence.length, recurrence.edges)
    devices = recurrence.device_paths(layers)
    sums.add(devices)
    bottleneck = bottleneck_of(recurrence.placement, devices, sums)
    likely = [np.array(start.bounds, np.int64) for start in starts]
    likely.append(balanced(layers, recurrence.length))
    likely += [] if bottleneck is None else [bottleneck.layout()]
    for bounds in likely:
        sums.add([recurrence.path(layers, incumbent.climb(bounds))])
    add_mixtures(sums, incumbent)
    search = _Search(incumbent, sums, None if bottleneck is None else bottleneck.rest)
    search.run(watch, beginnings)
    if incumbent.bounds is None:
        return NoLayout.NONE_FITS if np.isinf(search.open_ns) else NoLayout.BROKEN_OFF
    layout = Layout(recurrence.placement, tuple(incumbent.bounds.tolist()))
    least_ns = int(min(incumbent.makespan_ns, np.ceil(search.open_ns - _ROUNDING)))
    return Partition(layout, incumbent.makespan_ns, least_ns, incumbent.timed)


class _Search:
    """Branch and bound; its open beginnings lie on a stack, the best on top.

    Args:
        incumbent: the best so far.
        sums: lower bounds.
        longest: least longest device of what is left, by stage and first layer; None unknown.

    Attributes:
        open_ns: no layout that was not looked at is shorter.
    """

    def __init__(self, incumbent: Incumbent, sums: Sums, longest: Floats | None) -> None:
        self.incumbent, self.sums, self.longest = incumbent, sums, longest
        self.stages, self.count = sums.stages, sums.count
        self.open_ns = np.inf
        self._possible = _possible(incumbent.memory, incumbent.limits)
        self._fixed = len(sums)
        self._looked = 0

    def run(self, watch: Watch, beginnings: int) -> None:
        """Search until nothing is open, or too much was looked at."""
        operations = sum(map(len, self.incumbent.recurrence.plan.orders))
        before = self.incumbent.timed
        least = self.sums.rest[:, 0, 0].max(initial=0.0)
        if self.longest is not None:
            least = max(least, self.longest[0, 0])
        stack = [(np.array([float(least)]), np.zeros((1, 1), np.int64))]
        while stack:
            bound, begun = stack.pop()
            alive = self._alive(bound)
            bound, begun = bound[alive], begun[alive]
            if len(begun) == 0:
                continue
            spent = max(
                self._looked / beginnings, (self.incumbent.timed - before) * operations / MOST_TIMED
            )
            watch(min(1.0, spent))
            if spent >= 1:
                self.open_ns = min(bound.min(), *(part.min() for part, _ in stack), np.inf)
                return
            if begun.shape[1] == self.stages + 1:
                self._time(bound, begun)
            else:
                stack += self._further(begun)
        watch(1.0)

    def _alive(self, bound: Floats) -> Bools:
        """Tell which bounds leave room for something better."""
        result: Bools = bound < self.incumbent.makespan_ns - 1 + _ROUNDING
        return result

    def _further(self, begun: Ints) -> list[tuple[Floats, Ints]]:
        """Return what goes on from some beginnings, one stage longer, the best last."""
        stage = begun.shape[1] - 1
        low, high = begun[:, -1] + 1, self.count - (self.stages - stage - 1)
        ends = high - low + 1 if stage + 1 < self.stages else np.ones_like(low)
        row = np.repeat(np.arange(len(begun)), ends)
        place = np.arange(len(row)) - np.repeat(ends.cumsum() - ends, ends)
        end = low[row] + place if stage + 1 < self.stages else np.full(len(row), self.count)
        self._looked += len(row)
        fits = self._bounds(self.incumbent.memory, begun, row, end, stage)
        keep = (fits <= self.incumbent.limits).all(axis=1) & self._possible[stage + 1, end]
        row, end = row[keep], end[keep]
        bound = self._bounds(self.sums, begun, row, end, stage).max(axis=1, initial=0.0)
        if self.longest is not None:
            bound = np.maximum(bound, self.longest[stage + 1, end])
        alive = self._alive(bound)
        row, end, bound = row[alive], end[alive], bound[alive]
        order = np.argsort(-bound, kind="stable")
        grown = np.concatenate((begun[row[order]], end[order, None]), axis=1)
        size = self._size(grown.shape[1] - 1)
        # The last piece is the next.
        cuts = range(len(grown) % size, len(grown), size) if len(grown) else range(0)
        parts = np.split(np.arange(len(grown)), list(cuts))
        return [(bound[order[part]], grown[part]) for part in parts if len(part)]

    def _size(self, stages: int) -> int:
        """Return how many beginnings of so many stages are gone on from at once."""
        if stages == self.stages:
            return BLOCK
        return max(1, _ROOM // ((_MOST_SUMS + len(self.incumbent.memory)) * self.count))

    @staticmethod
    def _bounds(sums: Sums, begun: Ints, row: Ints, end: Ints, stage: int) -> Floats:
        """Return the sums of beginnings, of one stage more, and of the best way on; (n, K)."""
        first = begun[:, -1]
        before = sums.values(begun).T + sums.into[:, stage, first] - sums.up_to[:, stage, first]
        behind = sums.up_to[:, stage, :] + sums.rest[:, stage + 1, :]
        result: Floats = (before[:, row] + behind[:, end]).T
        return result

    def _time(self, bound: Floats, layouts: Ints) -> None:
        """Time complete layouts, and learn from those that looked better than they are."""
        makespans = self.incumbent.times(layouts)
        wrong = np.argsort(bound - makespans, kind="stable")[:1]
        shortest = np.argsort(makespans, kind="stable")[:1]
        recurrence, layers = self.incumbent.recurrence, self.incumbent.layers
        chosen = dict.fromkeys((*wrong.tolist(), *shortest.tolist()))
        self.sums.add([recurrence.path(layers, layouts[at]) for at in chosen])
        if len(self.sums) > max(_MOST_SUMS, self._fixed + 8):
            kept = np.arange(len(self.sums))
            recent = len(self.sums) - max(_MOST_SUMS, self._fixed + 8)
            self.sums.keep((kept < self._fixed) | (kept >= self._fixed + recent))


def _possible(memory: Sums, limits: Floats) -> Bools:
    """Tell where the stages from one on can begin so that each fits the memory by itself.

    Args:
        memory: what devices hold.
        limits: of these sums.

    Returns:
        By stage and first layer; shape (S + 1, L + 1).
    """
    result = np.zeros((memory.stages + 1, memory.count + 1), bool)
    result[memory.stages, memory.count] = True
    place = np.arange(memory.count + 1)
    behind = place[:, None] < place[None, :]
    for stage in reversed(range(memory.stages)):
        up_to = memory.up_to[:, stage]
        own = up_to[:, None, :] - up_to[:, :, None]
        fits = (own <= limits[:, None, None]).all(axis=0) & behind
        result[stage] = (fits & result[stage + 1][None, :]).any(axis=1)
    return result
