"""Layers: how long kernels of each layer of a model ran, by the ranges of layers around launches.

::

    range     F3.0.0 ├───────────────────────────┤
    ranges    layers.0 ├─────┤ layers.1 ├────┤        the outermost of a layer inside an operation
    launches         │ │  │      │ │   │      │       the last is of no layer

Backward of PyTorch runs on a thread of its own; ranges count where they are on the thread that
launches (hooks of modules, ``emit_nvtx``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bubbleviz.conventions.layer_names import LayerName, parse_layer_name
from bubbleviz.interpret.linking import LinkedWork, LinkRule
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import group_rows, list_rows_by_value, lookup_values
from bubbleviz.model.intervals import find_last_before, group_extents, group_sum
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK
from bubbleviz.model.profile import Ranges


@dataclass(frozen=True, eq=False, repr=False)
class LayerTimes(Table):
    """How long compute kernels of each layer ran, by rank, chunk and phase of their operations.

    Attributes:
        rank: the profile's own.
        chunk: as names of operations give it; -1 none.
        phase: of the operations.
        layer: row of ``layers``; -1 kernels outside the ranges of layers.
        kernel_ns: durations of the kernels, added up.
        first_ns: when the first of them was launched.
        layers: distinct layers.
    """

    rank: Ints
    chunk: Ints
    phase: Ints
    layer: Ints
    kernel_ns: Ints
    first_ns: Ints
    layers: tuple[LayerName, ...] = field(metadata={"shared": True})


class LayerRanges:
    """The ranges of layers, by thread.

    Args:
        ranges: of a profile, of any name.
        operations: those that name operations, which lie inside those of no layer.

    Attributes:
        layers: distinct layers.
    """

    def __init__(self, ranges: Ranges, operations: Ranges) -> None:
        layers, names = Numbering[LayerName](), map(parse_layer_name, ranges.names)
        of_name = np.array([NONE if n is None else layers.number(n) for n in names], np.int64)
        self.layers = layers.values
        named = ranges.take(of_name[ranges.name_id] != NONE)
        outer = [np.empty(0, np.int64)]
        for thread, rows in list_rows_by_value(named.thread):
            begun_ns = np.sort(operations.start_ns[operations.thread == thread])
            outer.append(rows[_find_outermost(named.take(rows), begun_ns)])
        self._ranges = named.take(np.concatenate(outer))
        self._layer = np.append(of_name[self._ranges.name_id], NONE)

    def around(self, thread: Ints, time_ns: Ints) -> Ints:
        """Return the layer whose range on that thread is around each time; -1 none."""
        ranges = self._ranges
        at = find_last_before(ranges.thread, ranges.start_ns, thread, time_ns, or_at=True)
        inside = time_ns <= np.append(ranges.end_ns, NONE)[at]
        return self._layer[np.where(inside, at, NONE)]


def measure_layers(
    ranges: LayerRanges,
    work: LinkedWork,
    placed: OperationRanges,
    keys: Operations,
) -> LayerTimes:
    """Return how long kernels of layers ran in the operations of a profile.

    Args:
        ranges: Ranges of layers.
        work: All work of the profile.
        placed: Ranges of operations, by rank.
        keys: Operations of the profile.
    """
    rows, operation = _find_compute_kernels(work, placed, keys)
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
    work: LinkedWork, placed: OperationRanges, keys: Operations
) -> tuple[Ints, Ints]:
    """Return the compute kernels of operations that are work, and the operation of each."""
    rows = np.flatnonzero(work.compute & (work.range != NONE))
    wanted = work.range[rows].astype(np.int64), work.rank[rows].astype(np.int64)
    operation = lookup_values((placed.range, placed.rank), placed.operation, wanted)
    kept = np.append(mask_phases(keys.phase, WORK), False)[operation]
    return rows[kept], operation[kept]


def _find_outermost(ranges: Ranges, begun_ns: Ints) -> Ints:
    """Return the rows of ranges that lie in no other, in order of time.

    One inside which an operation begins is around operations, and is left out first.
    """
    first = np.searchsorted(begun_ns, ranges.start_ns, side="right")
    around: Bools = np.searchsorted(begun_ns, ranges.end_ns, side="left") > first
    rows = np.flatnonzero(~around)
    rows = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
    reached = np.maximum.accumulate(ranges.end_ns[rows])
    inner = np.zeros(len(rows), bool)
    inner[1:] = ranges.end_ns[rows[1:]] <= reached[:-1]
    return rows[~inner]
