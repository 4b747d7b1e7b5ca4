"""Lower bounds for partial layouts, which assign layers only to the first stages.

The length of a path through a plan is a weighted sum over the virtual stages, with fixed factors
for each stage. The memory of a device at one moment is a sum of the same form::

    value(layout) = sum over stages s of  factors[s] . features(layers of s)  +  transfers

For such a sum, dynamic programming finds the cheapest way to place layer ``i`` and all later layers
on stage ``s`` and all later stages. The minimum does not depend on the earlier stages. Adding it to
the sum over the first stages of a layout gives a lower bound for all ways to complete the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.schedules.layout.layers import Layers
from bubbleviz.schedules.layout.recurrence import Path


class Sums:
    """Weighted sums over the stages of a layout, and lower bounds on the sums for partial layouts.

    There are K sums, for S stages and L layers.

    Args:
        layers: The L layers of the model.
        stages: Number of virtual stages, S.
        edges: Additional transfer time over each boundary, down and up, shape (2, S - 1). None adds
            nothing.

    Attributes:
        up_to: ``up_to[k, s, i]`` is what layers 0 to i-1 would add to sum k if all of them were on
            stage s; shape (K, S, L + 1).
        into: ``into[k, s, i]`` is what the transfers into stage s add to sum k if the stage's first
            layer is i; shape (K, S, L + 1).
        rest: ``rest[k, s, i]`` is the minimum that stage s and all later stages add to sum k if
            stage s starts with layer i. Infinity if stage s cannot start there. Shape (K, S + 1, L
            + 1).
    """

    def __init__(self, layers: Layers, stages: int, edges: Ints | None = None) -> None:
        self.stages, self.count = stages, len(layers)
        features = layers.features
        zero = np.zeros((len(features), 1))
        self._layer_sums = np.concatenate((zero, features.cumsum(axis=1)), axis=1)
        # No transfer crosses the ends of the model.
        ways = np.stack((layers.down_ns, layers.up_ns)).astype(float)
        none = np.zeros((2, 1))
        self._edges = np.zeros((2, stages))
        if edges is not None:
            self._edges[:, 1:] = edges
        self._crossing = np.concatenate((none, ways[:, :-1], none), axis=1)
        self.up_to = np.empty((0, stages, self.count + 1))
        self.into = np.empty((0, stages, self.count + 1))
        self.rest = np.empty((0, stages + 1, self.count + 1))
        self._copy_by_layer()

    def __len__(self) -> int:
        return len(self.up_to)

    def add(self, paths: Sequence[Path]) -> None:
        """Add one sum per path. Its value for a layout is the length of the path with that layout.

        Args:
            paths: Paths through the plan, given as the factors of each stage and boundary.
        """
        if not paths:
            return
        first = np.zeros((2, 1))
        crossed = np.stack([np.concatenate((first, path), axis=1) for _, path in paths])
        self.add_values(
            np.stack([factors.T @ self._layer_sums for factors, _ in paths]),
            np.einsum("kws,wi->ksi", crossed, self._crossing)
            + np.einsum("kws,ws->ks", crossed, self._edges)[:, :, None],
        )

    def add_values(self, up_to: Floats, into: Floats) -> None:
        """Add sums, given their rows of :attr:`up_to` and :attr:`into`."""
        self.up_to = np.concatenate((self.up_to, up_to))
        self.into = np.concatenate((self.into, into))
        self.rest = np.concatenate((self.rest, self._compute_rest(up_to, into)))
        self._copy_by_layer()

    def select(self, rows: Ints | Bools) -> None:
        """Keep only the sums that are selected."""
        self.up_to, self.into, self.rest = self.up_to[rows], self.into[rows], self.rest[rows]
        self._copy_by_layer()

    def _copy_by_layer(self) -> None:
        """Copy the arrays so that all K sums of a stage and layer are adjacent in memory.

        The search gathers the sums of many layouts, which is faster from the copies. A stage whose
        first layer is i adds ``into[:, s, i] - up_to[:, s, i]`` at its start.
        """
        self._up_to_by_layer, self._start_by_layer, self._rest_by_layer = (
            np.ascontiguousarray(values.transpose(1, 2, 0))
            for values in (self.up_to, self.into - self.up_to, self.rest)
        )

    def _compute_rest(self, up_to: Floats, into: Floats) -> Floats:
        """Return the minimum value of each stage and all later stages; see :attr:`rest`.

        Dynamic programming goes from the last stage to the first. Each stage gets at least one
        layer, and the last stage gets all remaining layers.
        """
        rest = np.full((len(up_to), self.stages + 1, self.count + 1), np.inf)
        rest[:, self.stages, self.count] = 0.0
        for stage in reversed(range(self.stages)):
            # Choose the best end for the stage among all layers after its first layer.
            with_end = up_to[:, stage] + rest[:, stage + 1]
            best = np.minimum.accumulate(with_end[:, ::-1], axis=1)[:, ::-1]
            first = into[:, stage, :-1] - up_to[:, stage, :-1]
            rest[:, stage, :-1] = first + best[:, 1:]
        return rest

    def values(self, bounds: Ints) -> Floats:
        """Compute all K sums for n partial layouts, over their first s stages.

        The value of a stage is the value of its layers (from ``up_to``) plus the value of the
        transfers into the stage (from ``into``).

        Args:
            bounds: First layer of each of the s stages, followed by the end of the last one, shape
                (n, s + 1).

        Returns:
            The sums, shape (n, K).
        """
        total = np.zeros((len(bounds), len(self)))
        # One buffer for all stages is faster than a new array for each stage.
        gathered = np.empty_like(total)
        for stage in range(bounds.shape[1] - 1):
            for sums, layer in (
                (self._up_to_by_layer[stage], bounds[:, stage + 1]),
                (self._start_by_layer[stage], bounds[:, stage]),
            ):
                np.take(sums, layer, axis=0, out=gathered, mode="clip")
                total += gathered
        return total

    def sum_started(self, partial_layouts: Ints) -> Floats:
        """Return the part of each sum that partial layouts determine.

        This part consists of the first stages, and of what the next stage adds at its start. Added
        to a row of :meth:`bound_rest`, it is a lower bound for all layouts that extend the
        partial layout in the same way.

        Args:
            partial_layouts: Stage borders of each partial layout (see :class:`.Layout`), shape (n,
                s + 1).

        Returns:
            The parts, shape (n, K).
        """
        stage, first = partial_layouts.shape[1] - 1, partial_layouts[:, -1]
        sums: Floats = self.values(partial_layouts) + self._start_by_layer[stage, first]
        return sums

    def bound_rest(self, stage: int) -> Floats:
        """Return the minimum that a stage and all later stages add to each sum after its start.

        Args:
            stage: Index of the stage.

        Returns:
            The minimum for each end of the stage's layers (exclusive), shape (L + 1, K).
        """
        rest: Floats = self._up_to_by_layer[stage] + self._rest_by_layer[stage + 1]
        return rest


def find_bottleneck_layout(
    placement: tuple[int, ...], paths: list[Path], sums: Sums
) -> tuple[Floats, Ints] | None:
    """Find the layout that minimizes the longest device path, by dynamic programming.

    A device path contains all operations of a device. This method requires one stage per device.
    The path then contains every earlier stage equally often and no later stage. Its length depends
    only on the layers i to j-1 of the device::

        head and tail of layers 0 to i-1  +  m times the work of layers i to j-1

    Args:
        placement: Device index of each virtual stage.
        paths: The path of each device (see :meth:`.Recurrence.find_device_paths`).
        sums: Sums whose first S entries are the lengths of the device paths.

    Returns:
        rest: ``rest[s, i]`` is the length of the longest device path among stage s and all later
            stages. It is minimized over all layouts whose stage s begins with layer i. Shape (S +
            1, L + 1).
        bounds: Bounds of the best layout, shape (S + 1,).

        The result is None if the placement is not one stage per device in order, or if a path
        depends on more than the layers of its device.
    """
    stages, count = len(placement), sums.count
    if placement != tuple(range(stages)) or len(paths) != stages:
        return None
    for stage, (factors, crossed) in enumerate(paths):
        earlier, later = factors[:, :stage], factors[:, stage + 1 :]
        if (earlier != earlier[:, :1]).any() or later.any() or crossed[:, stage:].any():
            return None
    lengths = _measure_device_paths(sums, stages)
    rest = np.full((stages + 1, count + 1), np.inf)
    rest[stages, count] = 0.0
    for stage in reversed(range(stages)):
        rest[stage] = np.maximum(lengths[stage], rest[stage + 1][None, :]).min(axis=1)
    bounds = [0]
    for stage in range(stages):
        bounds.append(int(np.maximum(lengths[stage][bounds[-1]], rest[stage + 1]).argmin()))
    return rest, np.array(bounds, np.int64)


def _measure_device_paths(sums: Sums, stages: int) -> Floats:
    """Return the length of each device's path for every possible range of layers on the device.

    The path of a device is the way of one microbatch through all earlier stages, plus all work of
    the device. All earlier stages have the same factors, so only the sum over their layers matters.
    Each boundary between earlier stages is assumed to be at the layer where its transfer takes the
    least time.

    Args:
        sums: Sums whose first S entries are the lengths of the device paths.
        stages: Number of stages, with one stage per device.

    Returns:
        Array of shape (S, L + 1, L + 1). Entry ``[s, i, j]`` is the length for device s with layers
        i to j-1, or infinity if i >= j.
    """
    lengths = np.empty((stages, sums.count + 1, sums.count + 1))
    for stage in range(stages):
        up_to = sums.up_to[stage]
        lengths[stage] = up_to[stage][None, :] - up_to[stage][:, None]
        if stage:
            into = sums.into[stage][1 : stage + 1, 1:-1].min(axis=1).sum()
            lengths[stage] += up_to[0][:, None] + into
    layer = np.arange(sums.count + 1)
    lengths[:, layer[:, None] >= layer[None, :]] = np.inf
    return lengths


def find_possible_starts(memory: Sums, limits: Floats) -> Bools:
    """Return which layers can come first on each stage so that the remaining layers fit in memory.

    Layer i is possible for stage s if layers i to L-1 can be divided among stages s to S-1. Each
    stage must get at least one layer, and must fit in memory. A stage fits if its contribution to
    every sum is at most that sum's limit. Stages are checked one by one, so all stages of a device
    together may still exceed its memory.

    Args:
        memory: K sums, which are the memory of each device at its moments of peak use.
        limits: Upper limit of each sum, shape (K,).

    Returns:
        Mask whose entry [s, i] is True if layer i is possible for stage s, shape (S + 1, L + 1). In
        the last row, only entry L is True.
    """
    is_possible = np.zeros((memory.stages + 1, memory.count + 1), bool)
    is_possible[memory.stages, memory.count] = True
    layer = np.arange(memory.count + 1)
    is_after = layer[:, None] < layer[None, :]
    for stage in reversed(range(memory.stages)):
        up_to = memory.up_to[:, stage]
        of_stage = up_to[:, None, :] - up_to[:, :, None]
        fits = (of_stage <= limits[:, None, None]).all(axis=0) & is_after
        is_possible[stage] = (fits & is_possible[stage + 1][None, :]).any(axis=1)
    return is_possible
