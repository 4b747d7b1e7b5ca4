"""The layout with the shortest iteration: branch and bound over contiguous layers.

::

    start      layouts of equal shares, and of the shortest longest device, each improved by moving
               layers
    sums       paths through the plan: one through all of each device, the mean of these, and the
               longest path of every good layout; each bounds the makespan of every layout
    search     stages from the first to the last, thousands of beginnings at a time; where a bound
               reaches the best makespan so far they are dropped, and what is complete is timed

The makespan of a fixed order is the longest of its paths, so the result is the best of all
layouts, unless the search is broken off for its size: then the bound that was reached stands
beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.layout.layers import Layers, Layout, check_enough
from bubbleviz.schedules.layout.recurrence import BLOCK, Path, Recurrence
from bubbleviz.schedules.plan_memory import ROUNDING

# Lower bounds of sums over stages: what the rest of a model costs at least.
#
# A path through a plan (and what a device holds at one moment) is a sum over the virtual stages,
# each with its own factors::
#
#     value(layout) = sum over stages s of  factors[s] . features(layers of s)  +  what is crossed
#
# For such a sum the cheapest way to place the layers from ``i`` on the stages from ``s`` on is
# found by dynamic programming, whatever stands before; so the sum over the first stages of a
# layout, plus that, bounds every way to go on.


class Sums:
    """Sums over the stages of layouts, and bounds of those that are not complete.

    Args:
        layers: of the model.
        stages: number of virtual stages, S.
        edges: what crossing each boundary takes beside the layers' own transfers, down and up;
            shape (2, S - 1); None for nothing.
    """

    def __init__(self, layers: Layers, stages: int, edges: Ints | None = None) -> None:
        self.stages, self.count = stages, len(layers)
        features = layers.features
        zero = np.zeros((len(features), 1))
        self._summed = np.concatenate((zero, features.cumsum(axis=1)), axis=1)
        # The boundary before layer 0, and that behind the last, are none.
        ways = np.stack((layers.down_ns, layers.up_ns)).astype(float)
        none = np.zeros((2, 1))
        self._edges = np.zeros((2, stages))
        if edges is not None:
            self._edges[:, 1:] = edges
        self._crossing = np.concatenate((none, ways[:, :-1], none), axis=1)
        #: By sum: value of layers up to each, by stage; shape (K, S, L + 1).
        self.up_to = np.empty((0, stages, self.count + 1))
        #: By sum: what the crossing into each stage costs, by its first layer.
        self.into = np.empty((0, stages, self.count + 1))
        #: By sum: the least value of the stages from one on, by its first layer; (K, S + 1, L + 1).
        self.rest = np.empty((0, stages + 1, self.count + 1))

    def __len__(self) -> int:
        return len(self.up_to)

    def add(self, paths: Sequence[Path]) -> None:
        """Add sums."""
        if not paths:
            return
        first = np.zeros((2, 1))
        crossed = np.stack([np.concatenate((first, path), axis=1) for _, path in paths])
        self.extend(
            np.stack([factors.T @ self._summed for factors, _ in paths]),
            np.einsum("kws,wi->ksi", crossed, self._crossing)
            + np.einsum("kws,ws->ks", crossed, self._edges)[:, :, None],
        )

    def extend(self, up_to: Floats, into: Floats) -> None:
        """Add sums by what they are of each stage, as in the attributes."""
        self.up_to = np.concatenate((self.up_to, up_to))
        self.into = np.concatenate((self.into, into))
        self.rest = np.concatenate((self.rest, self.least(up_to, into)))

    def keep(self, rows: Ints | Bools) -> None:
        """Forget all but some of the sums."""
        self.up_to, self.into, self.rest = self.up_to[rows], self.into[rows], self.rest[rows]

    def least(self, up_to: Floats, into: Floats) -> Floats:
        """Return the least values of the stages from each on, as in ``rest``."""
        rest = np.full((len(up_to), self.stages + 1, self.count + 1), np.inf)
        rest[:, self.stages, self.count] = 0.0
        for stage in reversed(range(self.stages)):
            # The stage ends before layer j; the best of all j behind its first layer.
            ends = up_to[:, stage] + rest[:, stage + 1]
            best = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
            first = into[:, stage, :-1] - up_to[:, stage, :-1]
            rest[:, stage, :-1] = first + best[:, 1:]
        return rest

    def values(self, bounds: Ints) -> Floats:
        """Return the sums over the stages that some layouts have so far; shape (n, K).

        Args:
            bounds: the first layer of each stage, and the end of the last; shape (n, s + 1).
        """
        total = np.zeros((len(self), len(bounds)))
        for stage in range(bounds.shape[1] - 1):
            low, high = bounds[:, stage], bounds[:, stage + 1]
            total += self.up_to[:, stage, high] - self.up_to[:, stage, low]
            total += self.into[:, stage, low]
        return total.T


# The longest device: with one virtual stage a device, a bound that looks at all of them at once.
#
# Where each device has one stage, the path through all that it runs takes every stage before it
# equally often, and none behind it. So it depends on nothing but the device's own layers::
#
#     head and tail of layers 0 .. i-1  +  m times the work of layers i .. j-1
#
# and the layout whose longest such path is the shortest is found by dynamic programming.


def bottleneck_of(
    placement: tuple[int, ...], paths: list[Path], sums: Sums
) -> tuple[Floats, Ints] | None:
    """Return the shortest longest path of what is left, and the layout that has it.

    Args:
        placement: device of each virtual stage.
        paths: one through each device, by device.
        sums: whose first sums these are.

    Returns:
        By stage and its first layer, shape (S + 1, L + 1), and bounds of the layout; None where
        paths depend on more than a device's layers.
    """
    stages, count = len(placement), sums.count
    if placement != tuple(range(stages)) or len(paths) != stages:
        return None
    for stage, (factors, crossed) in enumerate(paths):
        before, behind = factors[:, :stage], factors[:, stage + 1 :]
        if (before != before[:, :1]).any() or behind.any() or crossed[:, stage:].any():
            return None
    #: By stage that holds layers i to j-1.
    lengths = np.full((stages, count + 1, count + 1), np.inf)
    for stage in range(stages):
        up_to = sums.up_to[stage]
        # Each stage before takes the same of its layers; of what is crossed counts the cheapest.
        lengths[stage] = up_to[stage][None, :] - up_to[stage][:, None]
        if stage:
            into = sums.into[stage][1 : stage + 1, 1:-1].min(axis=1).sum()
            lengths[stage] += up_to[0][:, None] + into
    place = np.arange(count + 1)
    lengths[:, place[:, None] >= place[None, :]] = np.inf
    rest = np.full((stages + 1, count + 1), np.inf)
    rest[stages, count] = 0.0
    for stage in reversed(range(stages)):
        rest[stage] = np.maximum(lengths[stage], rest[stage + 1][None, :]).min(axis=1)
    bounds = [0]
    for stage in range(stages):
        bounds.append(int(np.maximum(lengths[stage][bounds[-1]], rest[stage + 1]).argmin()))
    return rest, np.array(bounds, np.int64)


# The best layout so far, and how one is found quickly: by moving layers.


#: Longer than any.
NEVER = int(np.iinfo(np.int64).max)


def _moves(stages: int) -> Ints:
    """Return changes of the bounds: each run of boundaries by a layer, single ones by two."""
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
    """Return the layout whose boundaries lie closest to equal shares of all work."""
    work = layers.forward_ns + layers.backward_ns + layers.weight_ns
    done = np.concatenate(([0], work.cumsum()))
    wanted = done[-1] * np.arange(stages + 1) / stages
    bounds = np.abs(done[None, :] - wanted[:, None]).argmin(axis=1)
    # Where layers take no time, several places are equally close.
    bounds[0], bounds[-1] = 0, len(layers)
    # At least one layer a stage, from either end.
    least = np.arange(stages + 1)
    bounds = np.maximum.accumulate(bounds - least) + least
    most = len(layers) - least[::-1]
    result: Ints = np.minimum(bounds, most)
    return result


#: Numbers that a step of the search holds at once.
_ROOM = 1 << 22
#: Sums that are looked at; those of devices, and the last that were met.
_MOST_SUMS = 64
#: Beginnings of layouts that are looked at, and operations that are timed, at most.
MOST_BEGINNINGS, MOST_TIMED = 8_000_000, 600_000_000
#: Makespans are whole; so much may a bound be rounded up.
_ROUNDING = 0.25


@dataclass(frozen=True)
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
    """Branch and bound; its open beginnings lie on a stack, the best on top.

    Args:
        recurrence: the order.
        layers: of the model.
        limit: memory by device; None for no limit.

    Attributes:
        bounds: the best layout so far within the memory; None where none is known that fits.
        makespan_ns: its makespan, ``NEVER`` where there is none.
        timed: how many layouts were timed.
        memory: what devices hold, as sums.
        limits: by sum.
        sums: lower bounds.
        bottleneck: of :func:`bottleneck_of`.
        open_ns: no layout that was not looked at is shorter.
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
        # The longest of some sums is no less than their mean, whose least value says how far all
        # devices can be busy at once.
        mean = [each.mean(axis=0)[None] for each in (self.sums.up_to, self.sums.into)]
        self.sums.extend(*mean)
        self.bottleneck = bottleneck_of(recurrence.placement, devices, self.sums)
        self.open_ns = np.inf

    def learn(self, *layouts: Ints) -> None:
        """Add the longest paths of layouts to the sums."""
        self.sums.add([self.recurrence.path(self.layers, bounds) for bounds in layouts])

    def times(self, bounds: Ints) -> Ints:
        """Return the makespans of layouts that fit the memory, and keep the best."""
        self.timed += len(bounds)
        makespans = self.recurrence.makespans(self.layers, bounds)
        if len(bounds) and makespans.min() < self.makespan_ns:
            at = int(makespans.argmin())
            self.bounds, self.makespan_ns = bounds[at].copy(), int(makespans[at])
        return makespans

    def climb(self, bounds: Ints) -> Ints:
        """Move single boundaries, and runs of them, while that is better; return the last layout.

        Args:
            bounds: a layout; one that does not fit is brought nearer to the memory first.
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
        """Return by how much each layout exceeds the memory, and its makespan; keep the best."""
        excess = np.maximum(self.memory.values(bounds) - self.limits, 0.0).sum(axis=1)
        fits = excess == 0
        makespans = np.full(len(bounds), NEVER)
        makespans[fits] = self.times(bounds[fits])
        # Of those that do not fit, how long they take matters little.
        return excess, makespans

    def run(self, watch: Watch, beginnings: int) -> None:
        """Search until nothing is open, or too much was looked at."""
        possible, fixed = _possible(self.memory, self.limits), len(self.sums)
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
        """Bounds below leave room for something better."""
        return self.makespan_ns - 1 + _ROUNDING

    def _further(self, begun: Ints, possible: Bools) -> list[tuple[Floats, Ints]]:
        """Return what goes on from some beginnings, one stage longer, the best last."""
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
        # The last piece is the next.
        cuts = range(len(grown) % size, len(grown), size) if len(grown) else range(0)
        parts = np.split(np.arange(len(grown)), list(cuts))
        return [(bound[order[part]], grown[part]) for part in parts if len(part)]

    @staticmethod
    def _bounds(sums: Sums, begun: Ints, row: Ints, end: Ints, stage: int) -> Floats:
        """Return the sums of beginnings, of one stage more, and of the best way on; (n, K)."""
        first = begun[:, -1]
        before = sums.values(begun).T + sums.into[:, stage, first] - sums.up_to[:, stage, first]
        behind = sums.up_to[:, stage, :] + sums.rest[:, stage + 1, :]
        result: Floats = (before[:, row] + behind[:, end]).T
        return result

    def _time(self, bound: Floats, layouts: Ints, fixed: int) -> None:
        """Time complete layouts, and learn from those that looked better than they are."""
        makespans = self.times(layouts)
        wrong = np.argsort(bound - makespans, kind="stable")[:1]
        shortest = np.argsort(makespans, kind="stable")[:1]
        chosen = dict.fromkeys((*wrong.tolist(), *shortest.tolist()))
        self.learn(*(layouts[at] for at in chosen))
        if len(self.sums) > max(_MOST_SUMS, fixed + 8):
            kept = np.arange(len(self.sums))
            recent = len(self.sums) - max(_MOST_SUMS, fixed + 8)
            self.sums.keep((kept < fixed) | (kept >= fixed + recent))


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
