"""Lower bounds of sums over stages: what the rest of a model costs at least.

A path through a plan (and what a device holds at one moment) is a sum over the virtual stages,
each with its own factors::

    value(layout) = sum over stages s of  factors[s] . features(layers of s)  +  transfers crossed

For such a sum the cheapest way to place the layers from ``i`` on the stages from ``s`` on is found
by dynamic programming, whatever stands before; so the sum over the first stages of a layout, plus
that, bounds every way to go on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.schedules.layout.layers import Layers
from bubbleviz.schedules.layout.recurrence import Path


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
        crossed = np.stack([np.concatenate((first, path.crossed), axis=1) for path in paths])
        self.extend(
            np.stack([path.factors.T @ self._summed for path in paths]),
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

    def best_layout(self, up_to: Floats, into: Floats, rest: Floats) -> Ints:
        """Return a layout with the least value of one sum, given its ``least``."""
        bounds = [0]
        for stage in range(self.stages):
            low = bounds[-1]
            ends = up_to[stage, low + 1 :] - up_to[stage, low] + into[stage, low]
            bounds.append(low + 1 + int(np.argmin(ends + rest[stage + 1, low + 1 :])))
        return np.array(bounds, np.int64)

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
