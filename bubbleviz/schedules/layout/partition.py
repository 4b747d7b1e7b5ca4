"""The layout with the shortest iteration: branch and bound over contiguous layers.

::

    start      layouts with equal shares, and the one whose longest device path is the shortest,
               each improved by moving layers
    sums       paths through the plan: one through all of each device, the mean of these, and the
               longest path of every good layout; each bounds the makespan of every layout
    search     stages from the first to the last, thousands of partial layouts at a time; those
               whose bound reaches the best makespan so far are dropped, complete ones are timed

The makespan of a fixed order is the longest of its paths, so the result is the best of all layouts.
A search that gets too large is broken off, and its result comes with the bound that was reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.layout.layers import Layers, Layout, check_enough
from bubbleviz.schedules.layout.lower_bounds import Sums, bottleneck_of, find_possible_starts
from bubbleviz.schedules.layout.recurrence import BLOCK, Recurrence
from bubbleviz.schedules.plan_memory import ROUNDING

#: Makespan without a layout.
NEVER = int(np.iinfo(np.int64).max)


def _moves(stages: int) -> Ints:
    """Return changes of the bounds: runs of boundaries by one layer, single ones also by two."""
    moves = []
    for low in range(1, stages):
        for high in range(low, stages):
            step = np.zeros(stages + 1, np.int64)
            step[low : high + 1] = 1
            moves += [step, -step]
            if low == high:
                moves += [2 * step, -2 * step]
    return np.array(moves, np.int64).reshape(len(moves), stages + 1)


def balanced(layers: Layers, stages: int) -> Ints:
    """Return the layout whose boundaries are closest to equal shares of all work."""
    work = layers.forward_ns + layers.backward_ns + layers.weight_ns
    done = np.concatenate(([0], work.cumsum()))
    wanted = done[-1] * np.arange(stages + 1) / stages
    bounds = np.abs(done[None, :] - wanted[:, None]).argmin(axis=1)
    # Layers without time make several boundaries equally close, so the outer ones are set.
    bounds[0], bounds[-1] = 0, len(layers)
    # Each stage needs at least one layer.
    least = np.arange(stages + 1)
    bounds = np.maximum.accumulate(bounds - least) + least
    most = len(layers) - least[::-1]
    result: Ints = np.minimum(bounds, most)
    return result


#: Number of values that a step of the search computes together.
_ROOM = 1 << 22
#: Maximum number of sums, which are those of devices and the latest ones.
_MOST_SUMS = 64
#: Maximum number of partial layouts, and maximum number of operations that are timed.
MOST_BEGINNINGS, MOST_TIMED = 8_000_000, 600_000_000
#: Rounding error of a bound. Makespans are whole numbers.
_ROUNDING = 0.25


@dataclass(frozen=True)
class Partition:
    """The best layout found for one order.

    Attributes:
        layout: Layers of each virtual stage.
        makespan_ns: Makespan of the order with this layout.
        least_ns: Lower bound of the makespan of all layouts that fit.
        timed: Number of layouts that were timed.
    """

    layout: Layout
    makespan_ns: int
    least_ns: int
    timed: int

    @property
    def proven(self) -> bool:
        """Whether no layout is better."""
        return self.least_ns >= self.makespan_ns


#: Why no layout was found.
NONE_FITS = "no layout fits the memory"
BROKEN_OFF = "the search found no layout that fits the memory"


def best_partition(
    recurrence: Recurrence,
    layers: Layers,
    limit: Sequence[float] | None = None,
    starts: Sequence[Layout] = (),
    watch: Watch = unwatched,
    *,
    beginnings: int = MOST_BEGINNINGS,
) -> Partition | str:
    """Return the layout with the shortest makespan of one order, or why there is none.

    Args:
        recurrence: The order.
        layers: Layers of the model, at least one per virtual stage.
        limit: Memory of each device, in the unit of the layers, or None if there is no limit.
        starts: Layouts to start with.
        watch: Function that is called with the share of the search that is done.
        beginnings: Maximum number of partial layouts.

    Raises:
        UsageError: There are fewer layers than virtual stages.
    """
    check_enough(len(layers), recurrence.length)
    search = _Search(recurrence, layers, limit)
    likely = [np.array(start.bounds, np.int64) for start in starts]
    likely.append(balanced(layers, recurrence.length))
    likely += [] if search.bottleneck is None else [search.bottleneck[1]]
    for bounds in likely:
        search.learn(search.climb(bounds))
    search.run(watch, beginnings)
    if search.bounds is None:
        return NONE_FITS if np.isinf(search.open_ns) else BROKEN_OFF
    layout = Layout(recurrence.placement, tuple(search.bounds.tolist()))
    least_ns = int(min(search.makespan_ns, np.ceil(search.open_ns - _ROUNDING)))
    return Partition(layout, search.makespan_ns, least_ns, search.timed)


class _Search:
    """Branch and bound with a stack of partial layouts, the best one on top.

    Args:
        recurrence: The order.
        layers: Layers of the model.
        limit: Memory of each device, or None if there is no limit.

    Attributes:
        bounds: Bounds of the best layout so far that fits, or None if there is none.
        makespan_ns: Makespan of this layout, or ``NEVER``.
        timed: Number of layouts that were timed.
        memory: Memory of devices, as sums.
        limits: Limit of each of these sums.
        sums: Lower bounds of the makespan.
        bottleneck: Result of :func:`bottleneck_of`.
        open_ns: Lower bound of the makespan of layouts that were not examined.
    """

    def __init__(
        self, recurrence: Recurrence, layers: Layers, limit: Sequence[float] | None
    ) -> None:
        self.recurrence, self.layers = recurrence, layers
        self.stages, self.count = recurrence.length, len(layers)
        self.bounds: Ints | None = None
        self.makespan_ns = NEVER
        self.timed = self._looked = 0
        self.memory = Sums(layers, recurrence.length)
        self.limits: Floats = np.empty(0)
        if limit is not None:
            rows = recurrence.memory_rows()
            self.memory.add([path for _, path in rows])
            self.limits = np.array([limit[device] for device, _ in rows]) * (1 + ROUNDING)
        self.sums = Sums(layers, recurrence.length, recurrence.edges)
        devices = recurrence.device_paths(layers)
        self.sums.add(devices)
        # The longest of several sums is at least their mean. The least value of the mean shows how
        # far all devices can be busy at the same time.
        mean = [each.mean(axis=0)[None] for each in (self.sums.up_to, self.sums.into)]
        self.sums.extend(*mean)
        self.bottleneck = bottleneck_of(recurrence.placement, devices, self.sums)
        self.open_ns = np.inf

    def learn(self, *layouts: Ints) -> None:
        """Add the longest paths of layouts to the sums."""
        self.sums.add([self.recurrence.path(self.layers, bounds) for bounds in layouts])

    def times(self, bounds: Ints) -> Ints:
        """Return the makespans of layouts that fit, and keep the best layout."""
        self.timed += len(bounds)
        makespans = self.recurrence.makespans(self.layers, bounds)
        if len(bounds) and makespans.min() < self.makespan_ns:
            at = int(makespans.argmin())
            self.bounds, self.makespan_ns = bounds[at].copy(), int(makespans[at])
        return makespans

    def climb(self, bounds: Ints) -> Ints:
        """Move single boundaries, and runs of them, while that helps; return the last layout.

        Args:
            bounds: Bounds of a layout. If it does not fit, its memory is reduced first.
        """
        moves = _moves(self.recurrence.length)
        excess, makespan_ns = self._measured(bounds[None, :])
        now = float(excess[0]), int(makespan_ns[0])
        while True:
            near = bounds + moves
            near = near[(np.diff(near, axis=1) > 0).all(axis=1)]
            if len(near) == 0:
                return bounds
            excess, makespan_ns = self._measured(near)
            at = int(np.lexsort((makespan_ns, excess))[0])
            if (float(excess[at]), int(makespan_ns[at])) >= now:
                return bounds
            bounds, now = near[at], (float(excess[at]), int(makespan_ns[at]))

    def _measured(self, bounds: Ints) -> tuple[Floats, Ints]:
        """Return the memory above the limits and the makespan of layouts, and keep the best."""
        excess = np.maximum(self.memory.values(bounds) - self.limits, 0.0).sum(axis=1)
        fits = excess == 0
        makespans = np.full(len(bounds), NEVER)
        makespans[fits] = self.times(bounds[fits])
        # The makespans of layouts that do not fit do not matter.
        return excess, makespans

    def run(self, watch: Watch, beginnings: int) -> None:
        """Search until no partial layout is left, or the limits of the search are reached."""
        possible, fixed = find_possible_starts(self.memory, self.limits), len(self.sums)
        operations = sum(map(len, self.recurrence.plan.orders))
        before = self.timed
        least = self.sums.rest[:, 0, 0].max(initial=0.0)
        if self.bottleneck is not None:
            least = max(least, self.bottleneck[0][0, 0])
        stack = [(np.array([float(least)]), np.zeros((1, 1), np.int64))]
        while stack:
            bound, begun = stack.pop()
            alive = bound < self._better_ns
            bound, begun = bound[alive], begun[alive]
            if len(begun) == 0:
                continue
            spent = max(self._looked / beginnings, (self.timed - before) * operations / MOST_TIMED)
            watch(min(1.0, spent))
            if spent >= 1:
                self.open_ns = min(bound.min(), *(part.min() for part, _ in stack), np.inf)
                return
            if begun.shape[1] == self.stages + 1:
                self._time(bound, begun, fixed)
            else:
                stack += self._further(begun, possible)
        watch(1.0)

    @property
    def _better_ns(self) -> float:
        """Upper limit of the bounds of layouts that may be better than the best one."""
        return self.makespan_ns - 1 + _ROUNDING

    def _further(self, begun: Ints, possible: Bools) -> list[tuple[Floats, Ints]]:
        """Return the partial layouts with one more stage, the best ones last."""
        stage = begun.shape[1] - 1
        low, high = begun[:, -1] + 1, self.count - (self.stages - stage - 1)
        ends = high - low + 1 if stage + 1 < self.stages else np.ones_like(low)
        row = np.repeat(np.arange(len(begun)), ends)
        place = np.arange(len(row)) - np.repeat(ends.cumsum() - ends, ends)
        end = low[row] + place if stage + 1 < self.stages else np.full(len(row), self.count)
        self._looked += len(row)
        fits = self._bounds(self.memory, begun, row, end, stage)
        keep = (fits <= self.limits).all(axis=1) & possible[stage + 1, end]
        row, end = row[keep], end[keep]
        bound = self._bounds(self.sums, begun, row, end, stage).max(axis=1, initial=0.0)
        if self.bottleneck is not None:
            bound = np.maximum(bound, self.bottleneck[0][stage + 1, end])
        alive = bound < self._better_ns
        row, end, bound = row[alive], end[alive], bound[alive]
        order = np.argsort(-bound, kind="stable")
        grown = np.concatenate((begun[row[order]], end[order, None]), axis=1)
        size = BLOCK  # complete ones are timed
        if grown.shape[1] <= self.stages:
            size = max(1, _ROOM // ((_MOST_SUMS + len(self.memory)) * self.count))
        # The search goes on with the last part.
        cuts = range(len(grown) % size, len(grown), size) if len(grown) else range(0)
        parts = np.split(np.arange(len(grown)), list(cuts))
        return [(bound[order[part]], grown[part]) for part in parts if len(part)]

    @staticmethod
    def _bounds(sums: Sums, begun: Ints, row: Ints, end: Ints, stage: int) -> Floats:
        """Return the sums of partial layouts with one more stage and the best rest; (n, K)."""
        first = begun[:, -1]
        before = sums.values(begun).T + sums.into[:, stage, first] - sums.up_to[:, stage, first]
        rest = sums.up_to[:, stage, :] + sums.rest[:, stage + 1, :]
        result: Floats = (before[:, row] + rest[:, end]).T
        return result

    def _time(self, bound: Floats, layouts: Ints, fixed: int) -> None:
        """Time complete layouts, and learn from the one whose bound was furthest off."""
        makespans = self.times(layouts)
        wrong = np.argsort(bound - makespans, kind="stable")[:1]
        shortest = np.argsort(makespans, kind="stable")[:1]
        chosen = dict.fromkeys((*wrong.tolist(), *shortest.tolist()))
        self.learn(*(layouts[at] for at in chosen))
        if len(self.sums) > max(_MOST_SUMS, fixed + 8):
            kept = np.arange(len(self.sums))
            recent = len(self.sums) - max(_MOST_SUMS, fixed + 8)
            self.sums.keep((kept < fixed) | (kept >= fixed + recent))
