"""The best layout so far, and how one is found quickly: by moving layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import Floats, Ints
from bubbleviz.schedules.layout.bounds import Sums
from bubbleviz.schedules.layout.layers import Layers
from bubbleviz.schedules.layout.recurrence import Recurrence
from bubbleviz.schedules.memory_limits import ROUNDING

#: Longer than any.
NEVER = int(np.iinfo(np.int64).max)


class Incumbent:
    """The best layout so far within the memory.

    Args:
        recurrence: the order.
        layers: of the model.
        limit: memory by device; None for no limit.

    Attributes:
        bounds: the layout; None where none is known that fits.
        makespan_ns: its makespan, ``NEVER`` where there is none.
        timed: how many layouts were timed.
        memory: what devices hold, as sums.
        limits: by sum.
    """

    def __init__(
        self, recurrence: Recurrence, layers: Layers, limit: Sequence[float] | None
    ) -> None:
        self.recurrence, self.layers = recurrence, layers
        self.bounds: Ints | None = None
        self.makespan_ns = NEVER
        self.timed = 0
        self.memory = Sums(layers, recurrence.length)
        self.limits: Floats = np.empty(0)
        if limit is not None:
            rows = recurrence.memory_rows()
            self.memory.add([path for _, path in rows])
            self.limits = np.array([limit[device] for device, _ in rows]) * (1 + ROUNDING)

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
