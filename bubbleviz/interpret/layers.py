"""Kernel time of each model layer.

A kernel belongs to the layer whose range was open when the kernel was launched::

    operation  F3.0.0 ├───────────────────────────┤
    layers     layers.0 ├─────┤ layers.1 ├────┤        outermost layer ranges inside an operation
    launches          │ │  │      │ │   │      │       the first and last belong to no layer

PyTorch runs the backward pass on a separate thread. The layer range must be on the launching
thread, because module hooks and ``emit_nvtx`` open their ranges there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bubbleviz.conventions.layer_names import LayerName, parse_layer_name
from bubbleviz.interpret.linking import LinkedWork, LinkRule
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import group_rows, list_rows_by_value, lookup_values
from bubbleviz.model.intervals import find_last_before, group_extents, group_sum
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK
from bubbleviz.model.profile import Ranges


@dataclass(frozen=True, eq=False, repr=False)
class LayerTimes(Table):
    """Time of compute kernels, one row per combination of rank, chunk, phase and layer.

    Attributes:
        rank: Index of the rank in its profile.
        chunk: Chunk in the names of the operations, or -1 if the names contain none.
        phase: Phase of the operations.
        layer: Index into ``layers``, or -1 for kernels outside all layer ranges.
        kernel_ns: Sum of the kernel durations, in ns.
        first_ns: Earliest launch time of the kernels.
        layers: Distinct layers, in the order in which range names mention them.
    """

    rank: Ints
    chunk: Ints
    phase: Ints
    layer: Ints
    kernel_ns: Ints
    first_ns: Ints
    layers: tuple[LayerName, ...] = field(metadata={"shared": True})


class LayerRanges:
    """Outermost layer ranges of each thread.

    Args:
        ranges: All ranges of a profile.
        operations: Ranges whose names denote operations. A layer range is not used if an operation
            on the same thread starts inside it.

    Attributes:
        layers: Distinct layers, in the order in which range names mention them.
    """

    def __init__(self, ranges: Ranges, operations: Ranges) -> None:
        layers = Numbering[LayerName]()
        parsed = map(parse_layer_name, ranges.names)
        layer_of_name = np.array(
            [NONE if layer is None else layers.number(layer) for layer in parsed], np.int64
        )
        self.layers = layers.values
        layer_ranges = ranges.take(layer_of_name[ranges.name_id] != NONE)
        outermost = [np.empty(0, np.int64)]
        for thread, rows in list_rows_by_value(layer_ranges.thread):
            starts_ns = np.sort(operations.start_ns[operations.thread == thread])
            outermost.append(rows[_find_outermost_ranges(layer_ranges.take(rows), starts_ns)])
        self._ranges = layer_ranges.take(np.concatenate(outermost))
        self._layer = np.append(layer_of_name[self._ranges.name_id], NONE)

    def around(self, thread: Ints, time_ns: Ints) -> Ints:
        """Return, for each query, the index of the layer whose range is open, or -1 if none is.

        A range is open from its start to its end, both inclusive.

        Args:
            thread: Thread id of each query.
            time_ns: Time of each query.
        """
        ranges = self._ranges
        last = find_last_before(ranges.thread, ranges.start_ns, thread, time_ns, or_at=True)
        is_open = time_ns <= np.append(ranges.end_ns, NONE)[last]
        return self._layer[np.where(is_open, last, NONE)]


def measure_layers(
    ranges: LayerRanges,
    work: LinkedWork,
    placed_ranges: OperationRanges,
    keys: Operations,
) -> LayerTimes:
    """Measure how long the kernels of each layer ran in the operations of a profile.

    A kernel belongs to the layer whose range was open on the launching thread at its launch. The
    layer is -1 if no layer range was open or if the launch is unknown. Only compute kernels of
    operations whose phase is in ``WORK`` are measured.

    Args:
        ranges: Outermost layer ranges.
        work: All kernels and copies of the profile.
        placed_ranges: Ranges assigned to ranks, with the operation of each range.
        keys: Operations of the profile.
    """
    rows, operation = _find_compute_kernels(work, placed_ranges, keys)
    launched_ns, thread = work.launched_ns[rows], work.threads[work.thread[rows]]
    layer = ranges.around(thread, launched_ns)
    layer[work.rule[rows] == LinkRule.UNLINKED] = NONE
    columns = keys.rank[operation], keys.chunk[operation], keys.phase[operation], layer
    groups = group_rows(*columns)
    kernel_ns = group_sum(groups.of_row, len(groups), work.end_ns[rows] - work.start_ns[rows])
    first_ns, _ = group_extents(groups.of_row, len(groups), launched_ns, launched_ns)
    rank, chunk, phase, layer = (column[groups.first] for column in columns)
    return LayerTimes(rank, chunk, phase, layer, kernel_ns, first_ns, ranges.layers)


def _find_compute_kernels(
    work: LinkedWork, placed_ranges: OperationRanges, keys: Operations
) -> tuple[Ints, Ints]:
    """Find the compute kernels of the operations whose phase is in ``WORK``.

    Args:
        work: All kernels and copies of the profile.
        placed_ranges: Ranges assigned to ranks, with the operation of each range.
        keys: Operations of the profile.

    Returns:
        rows: Rows of the kernels.
        operation: Row of the operation that each kernel in ``rows`` belongs to.
    """
    rows = np.flatnonzero(work.compute & (work.range != NONE))
    keys_of_rows = work.range[rows].astype(np.int64), work.rank[rows].astype(np.int64)
    operation = lookup_values(
        (placed_ranges.range, placed_ranges.rank), placed_ranges.operation, keys_of_rows
    )
    is_work = np.append(mask_phases(keys.phase, WORK), False)[operation]
    return rows[is_work], operation[is_work]


def _find_outermost_ranges(ranges: Ranges, starts_ns: Ints) -> Ints:
    """Return the rows of the ranges that no other range contains, sorted by start.

    Ranges that contain the start of an operation are removed first, because they do not belong to a
    single operation.

    Args:
        ranges: Layer ranges of one thread.
        starts_ns: Host starts of the operations on this thread, ascending.
    """
    n_before = np.searchsorted(starts_ns, ranges.start_ns, side="right")
    contains_start = np.searchsorted(starts_ns, ranges.end_ns, side="left") > n_before
    rows = np.flatnonzero(~contains_start)
    rows = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
    latest_end_ns = np.maximum.accumulate(ranges.end_ns[rows])
    is_inner = np.zeros(len(rows), bool)
    is_inner[1:] = ranges.end_ns[rows[1:]] <= latest_end_ns[:-1]
    return rows[~is_inner]
