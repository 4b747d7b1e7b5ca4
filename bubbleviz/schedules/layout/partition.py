"""Find the layout with the shortest iteration by branch and bound over contiguous layers.

1. The search starts from two layouts: one that divides the time equally, and one that minimizes the
   longest device path. Both are improved by moving layers.
2. The lengths of several paths through the plan are lower bounds on the makespan. One path per
   device contains all operations of the device. In addition, the longest path of each good layout
   is used. The mean length of the device paths is a lower bound as well.
3. Stages are added from first to last, to thousands of partial layouts at a time. Partial layouts
   whose bound reaches the best makespan so far are dropped. Complete layouts are timed.

The makespan of a fixed order is the length of its longest path, so a complete search finds the best
of all layouts. A search that becomes too large is stopped. Its result contains the lower bound
reached so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.layout.layers import Layers, Layout, check_enough
from bubbleviz.schedules.layout.lower_bounds import (
    Sums,
    find_bottleneck_layout,
    find_possible_starts,
)
from bubbleviz.schedules.layout.recurrence import BLOCK, Recurrence
from bubbleviz.schedules.plan_memory import ROUNDING

#: Makespan of a layout that does not fit in memory, or of a search that found no layout.
NEVER = int(np.iinfo(np.int64).max)


def _list_moves(stages: int) -> Ints:
    """Return the moves that a local search tries, as changes to the bounds.

    A move shifts adjacent boundaries together by one layer, or a single boundary by one or two
    layers, in either direction.

    Args:
        stages: Number of virtual stages, S.

    Returns:
        Changes to add to a layout's bounds, one move per row, shape (n, S + 1).
    """
    moves = []
    for low in range(1, stages):
        for high in range(low, stages):
            step = np.zeros(stages + 1, np.int64)
            step[low : high + 1] = 1
            moves += [step, -step]
            if low == high:
                moves += [2 * step, -2 * step]
    return np.array(moves, np.int64).reshape(len(moves), stages + 1)


def balance_layers(layers: Layers, stages: int) -> Ints:
    """Return the layout that divides the time of F, B and W most evenly among the stages.

    The boundary before stage s is placed where the total time of all earlier layers is closest to s
    / S of the time of all layers. Each stage gets at least one layer. There must be at least as
    many layers as stages.

    Returns:
        Bounds of the layout (see :class:`Layout`), shape (S + 1,).
    """
    work = layers.forward_ns + layers.backward_ns + layers.weight_ns
    done = np.concatenate(([0], work.cumsum()))
    target = done[-1] * np.arange(stages + 1) / stages
    bounds = np.abs(done[None, :] - target[:, None]).argmin(axis=1)
    # Layers that take no time can make several boundaries equally close, so the outer bounds are
    # set explicitly.
    bounds[0], bounds[-1] = 0, len(layers)
    # Each stage needs at least one layer.
    min_bound = np.arange(stages + 1)
    bounds = np.maximum.accumulate(bounds - min_bound) + min_bound
    max_bound = len(layers) - min_bound[::-1]
    result: Ints = np.minimum(bounds, max_bound)
    return result


#: Maximum number of values to compute together in one step of the search.
_MAX_VALUES = 1 << 22
#: Maximum number of sums to keep: those from before the search, and the latest ones.
_MAX_SUMS = 64
#: Maximum number of partial layouts that a search examines, and maximum number of operations that
#: it times.
MAX_NODES, MAX_TIMED = 8_000_000, 600_000_000
#: Maximum rounding error of a bound, in ns. Makespans are whole numbers.
_ROUNDING = 0.25


@dataclass(frozen=True)
class Partition:
    """The best layout found for a given order.

    Attributes:
        layout: The layers in each virtual stage.
        makespan_ns: Makespan of the order with this layout.
        least_ns: Lower bound on the makespan of all layouts that fit.
        timed: Number of layouts that were timed.
    """

    layout: Layout
    makespan_ns: int
    least_ns: int
    timed: int

    @property
    def proven(self) -> bool:
        """Whether no better layout exists."""
        return self.least_ns >= self.makespan_ns


#: Reasons why no layout was found.
NONE_FITS = "no layout fits into memory"
BROKEN_OFF = "the search found no layout that fits into memory"


def find_best_partition(
    recurrence: Recurrence,
    layers: Layers,
    limit: Sequence[float] | None = None,
    starts: Sequence[Layout] = (),
    watch: Watch = unwatched,
    *,
    max_nodes: int = MAX_NODES,
) -> Partition | str:
    """Find the layout that gives a fixed order the shortest makespan.

    Args:
        recurrence: The recurrence for the order of operations.
        layers: Layers of the model, at least one per virtual stage.
        limit: Memory available on each device, in the same unit as the layer sizes, or None if
            there is no limit.
        starts: Layouts to improve before the search starts, in addition to the layout that divides
            the time equally.
        watch: Callback that receives the completed fraction of the search.
        max_nodes: Maximum number of partial layouts to examine before the search is stopped.

    Returns:
        The best layout that was found. If no layout was found, the result is the reason:
        ``NONE_FITS`` after a complete search, or ``BROKEN_OFF`` if the search was stopped early.

    Raises:
        UsageError: There are fewer layers than virtual stages, or too many layers.
    """
    check_enough(len(layers), recurrence.length)
    search = _Search(recurrence, layers, limit)
    candidates = [np.array(start.bounds, np.int64) for start in starts]
    candidates.append(balance_layers(layers, recurrence.length))
    candidates += [] if search.bottleneck is None else [search.bottleneck[1]]
    for bounds in candidates:
        search.add_longest_paths(search.improve(bounds))
    search.run(watch, max_nodes)
    if search.bounds is None:
        return NONE_FITS if np.isinf(search.open_ns) else BROKEN_OFF
    layout = Layout(recurrence.placement, tuple(search.bounds.tolist()))
    least_ns = int(min(search.makespan_ns, np.ceil(search.open_ns - _ROUNDING)))
    return Partition(layout, search.makespan_ns, least_ns, search.timed)


class _Search:
    """Branch and bound with a stack of partial layouts, with the best one on top.

    Args:
        recurrence: The recurrence for the order of operations.
        layers: Layers of the model.
        limit: Memory available on each device, or None if there is no limit.

    Attributes:
        bounds: Bounds of the best layout found so far that fits in memory, or None if there is
            none.
        makespan_ns: Makespan with ``bounds``, or ``NEVER``.
        timed: Number of layouts that were timed.
        memory: Memory of each device at its moments of peak use, as sums over its stages. Empty if
            there is no limit.
        limits: Upper limit of each sum in ``memory``.
        sums: Lengths of paths through the plan, as sums over the stages. Each sum is a lower bound
            on the makespan.
        bottleneck: Result of :func:`find_bottleneck_layout`.
        open_ns: Lower bound on the makespan of all layouts that were not examined, or infinity if
            the search was complete.
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
            rows = recurrence.memory_rows
            self.memory.add([path for _, path in rows])
            self.limits = np.array([limit[device] for device, _ in rows]) * (1 + ROUNDING)
        self.sums = Sums(layers, recurrence.length, recurrence.edges)
        devices = recurrence.find_device_paths(layers)
        self.sums.add(devices)
        # The mean of several lower bounds is also a lower bound, and it takes all devices into
        # account.
        mean = [each.mean(axis=0)[None] for each in (self.sums.up_to, self.sums.into)]
        self.sums.add_values(*mean)
        self.bottleneck = find_bottleneck_layout(recurrence.placement, devices, self.sums)
        self.open_ns = np.inf

    def add_longest_paths(self, *layouts: Ints) -> None:
        """For each layout, add the length of the longest path through the plan to ``sums``."""
        self.sums.add([self.recurrence.path(self.layers, bounds) for bounds in layouts])

    def measure_makespans(self, bounds: Ints) -> Ints:
        """Return the makespan of each layout, and keep track of the best layout so far.

        If a layout is faster than the best layout so far, it replaces ``self.bounds``, and its
        makespan replaces ``self.makespan_ns``.

        Args:
            bounds: Bounds of the layouts, one layout per row. All layouts must fit in memory.
        """
        self.timed += len(bounds)
        makespans = self.recurrence.compute_makespans(self.layers, bounds)
        if len(bounds) and makespans.min() < self.makespan_ns:
            index = int(makespans.argmin())
            self.bounds, self.makespan_ns = bounds[index].copy(), int(makespans[index])
        return makespans

    def improve(self, bounds: Ints) -> Ints:
        """Improve a layout by moving boundaries, and return the bounds of the local optimum.

        A move shifts a single boundary, or several adjacent ones (see :func:`_list_moves`). In each
        step, all moves are tried, and the move that leads to the least memory above the limits is
        made. On a tie, the shortest makespan decides. The search ends when no move is an
        improvement.

        Args:
            bounds: Bounds of a layout, which does not have to fit in memory.
        """
        moves = _list_moves(self.recurrence.length)
        excess, makespan_ns = self._measure_layouts(bounds[None, :])
        best = float(excess[0]), int(makespan_ns[0])
        while True:
            neighbors = bounds + moves
            neighbors = neighbors[(np.diff(neighbors, axis=1) > 0).all(axis=1)]
            if len(neighbors) == 0:
                return bounds
            excess, makespan_ns = self._measure_layouts(neighbors)
            index = int(np.lexsort((makespan_ns, excess))[0])
            if (float(excess[index]), int(makespan_ns[index])) >= best:
                return bounds
            bounds, best = neighbors[index], (float(excess[index]), int(makespan_ns[index]))

    def _measure_layouts(self, bounds: Ints) -> tuple[Floats, Ints]:
        """Measure layouts, and keep the best layout that fits in memory.

        Args:
            bounds: Bounds of each layout, shape (n, S + 1).

        Returns:
            excess: For each layout, the memory above the limits, summed over all limits, or 0 if
                the layout fits; shape (n,).
            makespans: Makespan of each layout, or ``NEVER`` if it does not fit; shape (n,).
        """
        excess = np.maximum(self.memory.values(bounds) - self.limits, 0.0).sum(axis=1)
        fits = excess == 0
        makespans = np.full(len(bounds), NEVER)
        makespans[fits] = self.measure_makespans(bounds[fits])
        # Layouts that do not fit keep the makespan ``NEVER``.
        return excess, makespans

    def run(self, watch: Watch, max_nodes: int) -> None:
        """Search until no partial layout is left or the limits of the search are reached.

        If the search is stopped, ``open_ns`` is set to the smallest bound of the remaining layouts.
        """
        possible, fixed = find_possible_starts(self.memory, self.limits), len(self.sums)
        operations = sum(map(len, self.recurrence.plan.orders))
        timed_at_start = self.timed
        lower_bound = self.sums.rest[:, 0, 0].max(initial=0.0)
        if self.bottleneck is not None:
            lower_bound = max(lower_bound, self.bottleneck[0][0, 0])
        stack = [(np.array([float(lower_bound)]), np.zeros((1, 1), np.int64))]
        while stack:
            bound, partial_layouts = stack.pop()
            is_open = bound < self._better_ns
            bound, partial_layouts = bound[is_open], partial_layouts[is_open]
            if len(partial_layouts) == 0:
                continue
            budget_used = max(
                self._looked / max_nodes, (self.timed - timed_at_start) * operations / MAX_TIMED
            )
            watch(min(1.0, budget_used))
            if budget_used >= 1:
                self.open_ns = min(bound.min(), *(part.min() for part, _ in stack), np.inf)
                return
            if partial_layouts.shape[1] == self.stages + 1:
                self._measure_complete(bound, partial_layouts, fixed)
            else:
                stack += self._branch(partial_layouts, possible)
        watch(1.0)

    @property
    def _better_ns(self) -> float:
        """A layout can beat the best layout only if its lower bound is below this value."""
        return self.makespan_ns - 1 + _ROUNDING

    def _branch(self, partial_layouts: Ints, possible: Bools) -> list[tuple[Floats, Ints]]:
        """Extend partial layouts by one stage in all ways that may still lead to the best layout.

        An extension is dropped in three cases:

        - It exceeds a memory limit.
        - The remaining layers do not fit on the later stages.
        - Its lower bound reaches the best makespan so far.

        Args:
            partial_layouts: Stage borders of each partial layout (see :class:`Layout`), shape (n, s
                + 1).
            possible: Result of :func:`find_possible_starts`.

        Returns:
            (lower bounds of the makespans, extended layouts) pairs. All extensions are sorted by
            decreasing lower bound, and then split into pairs of limited size.
        """
        stage = partial_layouts.shape[1] - 1
        started = self.sums.sum_started(partial_layouts)
        rest = self.sums.bound_rest(stage)
        row, end = self._list_extensions(partial_layouts, started, rest, possible[stage + 1])
        if len(self.memory):
            row, end = self._select_fitting(partial_layouts, row, end)
        bounds = np.take(started, row, axis=0)
        bounds += np.take(rest, end, axis=0)
        bound = bounds.max(axis=1, initial=0.0)
        if self.bottleneck is not None:
            bound = np.maximum(bound, self.bottleneck[0][stage + 1, end])
        is_open = bound < self._better_ns
        row, end, bound = row[is_open], end[is_open], bound[is_open]
        order = np.argsort(-bound, kind="stable")
        grown = np.concatenate((partial_layouts[row[order]], end[order, None]), axis=1)
        size = BLOCK  # complete layouts are timed in blocks of this size
        if grown.shape[1] <= self.stages:
            size = max(1, _MAX_VALUES // ((_MAX_SUMS + len(self.memory)) * self.count))
        # The search continues with the last part.
        cuts = range(len(grown) % size, len(grown), size) if len(grown) else range(0)
        parts = np.split(np.arange(len(grown)), list(cuts))
        return [(bound[order[part]], grown[part]) for part in parts if len(part)]

    def _list_extensions(
        self, partial_layouts: Ints, started: Floats, rest: Floats, possible: Bools
    ) -> tuple[Ints, Ints]:
        """List the extensions by one stage that are possible and pass a fast check of two sums.

        The added stage and each later stage get at least one layer. The last stage gets all
        remaining layers.

        Args:
            partial_layouts: Stage borders of each partial layout (see :class:`Layout`), shape (n, s
                + 1).
            started: Result of :meth:`.Sums.sum_started`.
            rest: Result of :meth:`.Sums.bound_rest`.
            possible: Mask of the layers that can come first on the next stage, shape (L + 1,).

        Returns:
            row: Index of the partial layout that each extension starts from.
            end: End of the layers of the added stage (exclusive), for each extension.
        """
        stage = partial_layouts.shape[1] - 1
        low = partial_layouts[:, -1:] + 1
        first = self.count if stage + 1 == self.stages else int(low.min())
        stop = self.count + 1 - (self.stages - stage - 1)
        is_open = np.arange(first, stop) >= low
        self._looked += int(np.count_nonzero(is_open))
        is_open &= possible[first:stop]
        for device in self._list_critical_devices(stage):
            # Each device path has the index of its device among the sums.
            bound = started[:, device, None] + rest[first:stop, device]
            is_open &= bound < self._better_ns
        row, index = is_open.nonzero()
        return row, first + index

    def _list_critical_devices(self, stage: int) -> Sequence[int]:
        """Return the devices whose paths alone rule out most extensions that are too slow.

        The path of the stage's own device is too long if the stage gets too many layers. The path
        of the next stage's device is too long if the stage gets too few.
        """
        placement = self.recurrence.placement
        return tuple(dict.fromkeys(placement[stage : stage + 2]))

    def _select_fitting(self, partial_layouts: Ints, row: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Select the extensions that may fit in memory.

        Args:
            partial_layouts: Stage borders of each partial layout, shape (n, s + 1).
            row: Index of the partial layout that each extension starts from.
            end: End of the layers of the added stage (exclusive), for each extension.

        Returns:
            ``row`` and ``end`` of the selected extensions.
        """
        stage = partial_layouts.shape[1] - 1
        memory = np.take(self.memory.sum_started(partial_layouts), row, axis=0)
        memory += np.take(self.memory.bound_rest(stage), end, axis=0)
        may_fit = (memory <= self.limits).all(axis=1)
        return row[may_fit], end[may_fit]

    def _measure_complete(self, bound: Floats, layouts: Ints, fixed: int) -> None:
        """Measure complete layouts, and derive new lower bounds from two of them.

        The first is the layout with the shortest makespan. The second is the layout whose lower
        bound is furthest below its makespan. The lengths of their longest paths are added to
        ``self.sums``. If there are too many sums after this, only the first ``fixed`` sums and the
        latest sums are kept.

        Args:
            bound: Lower bound on the makespan of each layout.
            layouts: Bounds of each layout, shape (n, S + 1).
            fixed: Number of sums that existed before the search began.
        """
        makespans = self.measure_makespans(layouts)
        worst_bound = np.argsort(bound - makespans, kind="stable")[:1]
        shortest = np.argsort(makespans, kind="stable")[:1]
        selected = dict.fromkeys((*worst_bound.tolist(), *shortest.tolist()))
        self.add_longest_paths(*(layouts[at] for at in selected))
        if len(self.sums) > max(_MAX_SUMS, fixed + 8):
            sum_index = np.arange(len(self.sums))
            recent = len(self.sums) - max(_MAX_SUMS, fixed + 8)
            self.sums.select((sum_index < fixed) | (sum_index >= fixed + recent))
