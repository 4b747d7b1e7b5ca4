"""Compute the makespan of a plan for thousands of layouts at once, and the longest paths.

The order of the operations is fixed, and their durations depend on the layout. Makespans are exact:
they are equal to the makespans of :func:`bubbleviz.schedules.simulation.simulate`.

For a given layout, the length of the longest path is a sum of stage times with fixed factors. The
same path also exists for every other layout, where its length is a lower bound on the makespan.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.layout.layers import (
    ACTIVATION,
    FEATURES,
    RESIDENT,
    WEIGHT_ACTIVATION,
    Layers,
)
from bubbleviz.schedules.operation_graph import build_operation_graph
from bubbleviz.schedules.plan import Order, Plan
from bubbleviz.schedules.timing import compute_ends, compute_ends_of_scenarios, find_longest_path

#: Index of each phase in :attr:`Layers.times`.
_COLUMN = {Phase.F: 0, Phase.B: 1, Phase.W: 2, Phase.BW: 3}
#: Directions of transfers over a boundary: activations go down, gradients up.
_DOWN, _UP = 0, 1
#: Number of layouts to evaluate at once. An array of this length (32 kB) fits in the cache.
BLOCK = 4096
#: A path through a plan, as two arrays of counts.
#: The first array counts each feature of each virtual stage on the path, shape (7, S).
#: The second array counts crossings of each stage boundary, down and up, shape (2, S - 1).
Path = tuple[Floats, Floats]


class Recurrence:
    """Computes the makespan of a plan for any layout.

    Args:
        plan: The plan.
        links: Transfer time in ns between each pair of devices, which is added to the transfer
            times of the layers. None adds nothing.

    Raises:
        MismatchError: The plan deadlocks.
    """

    def __init__(self, plan: Plan, links: Ints | None = None) -> None:
        self.plan = plan
        #: Number of virtual stages per pipeline; all replicas have the same layers.
        self.length = len(plan.placement) // plan.replicas
        self.placement = plan.placement[: self.length]
        self._graph = build_operation_graph(plan)
        #: For each operation, the index of its duration: (phase index, virtual stage in the
        #: pipeline).
        self._length_index = [
            (_COLUMN[operation.phase], operation.virtual_stage % self.length)
            for operation in self._graph.operations
        ]
        #: For each lag in the graph, the index of its transfer time: (direction, boundary). An
        #: activation crosses the boundary after its virtual stage. A gradient crosses the boundary
        #: before its virtual stage.
        self._transfer_index = [
            (direction, stage % self.length - direction)
            for direction in (_DOWN, _UP)
            for stage in range(plan.virtual_stages)
        ]
        #: Additional transfer time over each boundary, down and up.
        self.edges = get_edges(self.placement, links)

    def compute_makespans(self, layers: Layers, bounds: Ints) -> Ints:
        """Return the makespan of each layout in ns, as an array of shape (n,).

        Args:
            layers: Layers of the model.
            bounds: Bounds of each layout (see :class:`Layout`), shape (n, S + 1).
        """
        makespans_ns = np.empty(len(bounds), np.int64)
        for first in range(0, len(bounds), BLOCK):
            block = slice(first, first + BLOCK)
            lengths, transfers = self._sum_times(layers, bounds[block])
            operation_ns = [lengths[index] for index in self._length_index]
            lags = [transfers[index] for index in self._transfer_index]
            end_ns = compute_ends_of_scenarios(self._graph.edges, operation_ns, lags)
            makespans_ns[block] = end_ns[list(self._graph.last)].max(axis=0)
        return makespans_ns

    def path(self, layers: Layers, bounds: Ints) -> Path:
        """Find the longest path through the plan for one layout, given its bounds."""
        return self._find_longest(*self._sum_times(layers, bounds[None, :]))

    def find_device_paths(self, layers: Layers) -> list[Path]:
        """Return, for each device, a path that contains all operations of the device.

        To find the path, the operations of this device are made much longer than all others. The
        longest path then contains all of them.

        Args:
            layers: Layers of the model, which determine the relative durations of F, B, W and BW.
                These durations are assumed to be equal on all virtual stages.
        """
        totals = [int(phase_length.sum()) for phase_length in layers.times]
        phase_length = [1 + total * 1000 // (1 + sum(totals)) for total in totals]
        lengths = np.array(phase_length, np.int64)[:, None, None]
        lengths = np.repeat(lengths, self.length, axis=1)
        paths = []
        for device in range(self.plan.stages):
            weight = np.where(np.array(self.plan.placement) == device, 1 << 20, 1)
            weight = weight.reshape(-1, self.length).max(axis=0)
            transfers = np.ones((2, self.length, 1), np.int64)
            paths.append(self._find_longest(lengths * weight[:, None], transfers))
        return paths

    def _find_longest(self, lengths: Ints, transfers: Ints) -> Path:
        """Return the longest path, given the times of one layout.

        If several devices end last at the same time, the path ends on the first of them in the
        graph.
        """
        edges = self._graph.edges
        operation_ns = [int(lengths[column, stage, 0]) for column, stage in self._length_index]
        lags = [int(transfers[way, boundary, 0]) for way, boundary in self._transfer_index]
        end_ns = compute_ends(edges, operation_ns, lags)
        factors, crossed = np.zeros((FEATURES, self.length)), self._make_uncrossed()
        last = max(self._graph.last, key=lambda row: end_ns[row], default=NONE)
        for row, lag in find_longest_path(last, edges, end_ns, operation_ns, lags):
            factors[self._length_index[row]] += 1
            if lag != NONE:
                crossed[self._transfer_index[lag]] += 1
        return factors, crossed

    def _sum_times(self, layers: Layers, bounds: Ints) -> tuple[Ints, Ints]:
        """Sum the times of the layers in each virtual stage.

        Args:
            layers: Layers of the model.
            bounds: Bounds of each layout, shape (n, S + 1).

        Returns:
            lengths: Times of F, B, W and BW of each virtual stage, shape (4, S, n).
            transfers: Transfer time over the boundary after each virtual stage, down and up, shape
                (2, S, n). The time after the last virtual stage is 0.
        """
        layer_lengths = np.stack(layers.times)
        zero = np.zeros((4, 1), np.int64)
        sums = np.concatenate((zero, layer_lengths.cumsum(axis=1)), axis=1)
        bound = bounds.T
        layer_transfers = np.stack((layers.down_ns, layers.up_ns))
        transfers = np.zeros((2, self.length, len(bounds)), np.int64)
        transfers[:, :-1] = layer_transfers[:, bound[1:-1] - 1] + self.edges[:, :, None]
        return sums[:, bound[1:]] - sums[:, bound[:-1]], transfers

    def _make_uncrossed(self) -> Floats:
        """Return an array of zeros to count the crossings of each boundary, down and up."""
        return np.zeros((2, max(0, self.length - 1)))

    @cached_property
    def memory_rows(self) -> list[tuple[int, Path]]:
        """Formulas for the memory of each device, one per moment at which it may peak.

        The order of operations determines how many microbatches a device stores after each
        operation. The device's peak memory is the maximum over all such moments. A moment is left
        out if another moment never needs less memory. At that other moment, no stage has fewer
        microbatches between F and B, or fewer between B and W.

        The list contains one (device, path) pair per moment. The path contains the factors of each
        stage's memory features at that moment. All other factors are 0.
        """
        rows: list[tuple[int, Path]] = []
        for device, order in enumerate(self.plan.orders):
            moments = np.unique(self._count_in_memory(order), axis=0)
            present = (np.array(self.plan.placement) == device).reshape(-1, self.length).sum(axis=0)
            for moment in _find_undominated(moments):
                factors = np.zeros((FEATURES, self.length))
                factors[ACTIVATION], factors[WEIGHT_ACTIVATION] = np.split(moment, 2)
                factors[RESIDENT] = present
                rows.append((device, (factors, self._make_uncrossed())))
        return rows

    def _count_in_memory(self, order: Order) -> Ints:
        """Count the microbatches that a device stores, at the start and after each operation.

        Args:
            order: The n operations of the device.

        Returns:
            Counts, shape (n + 1, 2 S). The first S columns contain the number of microbatches
            between F and B of each stage. The other columns contain the number of microbatches
            between B and W.
        """
        change = np.zeros((len(order) + 1, 2, self.length), np.int64)
        for index, op in enumerate(order, 1):
            stage = op.virtual_stage % self.length
            if op.phase is Phase.F:
                change[index, :, stage] = 1
            if op.phase in (Phase.B, Phase.BW):
                change[index, 0, stage] = -1
            if op.phase in (Phase.W, Phase.BW):
                change[index, 1, stage] = -1
        in_memory = change.cumsum(axis=0)
        until_backward, until_weight = in_memory[:, 0], in_memory[:, 1] - in_memory[:, 0]
        return np.concatenate((until_backward, until_weight), axis=1)


def _find_undominated(moments: Ints) -> Ints:
    """Return the rows that are not dominated by any other row.

    A row is dominated if another row is at least as large in every column.

    Args:
        moments: Distinct rows.
    """
    undominated: list[Ints] = []
    for row in moments[np.argsort(-moments.sum(axis=1), kind="stable")]:
        if not any((other >= row).all() for other in undominated):
            undominated.append(row)
    return np.array(undominated, np.int64).reshape(len(undominated), moments.shape[1])


def get_edges(placement: tuple[int, ...], links: Ints | None) -> Ints:
    """Return the transfer time over each boundary of a placement, down and up.

    Args:
        placement: Device index of each virtual stage.
        links: Transfer time in ns between each pair of devices, shape (devices, devices). If None,
            all additional times are 0.

    Returns:
        The transfer times, shape (2, S - 1). The times are 0 between virtual stages on the same
        device.
    """
    edges = np.zeros((2, len(placement) - 1), np.int64)
    if links is not None and len(placement) > 1:
        device, next_device = np.array(placement[:-1]), np.array(placement[1:])
        edges[_DOWN], edges[_UP] = links[device, next_device], links[next_device, device]
        edges[:, device == next_device] = 0
    return edges
