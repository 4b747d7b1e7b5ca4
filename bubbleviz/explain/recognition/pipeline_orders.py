"""Group the orders of ranks by pipeline. Replicas with equal orders are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.explain.recognition.order_codes import FORWARD, get_chunk, get_kind, get_microbatch
from bubbleviz.explain.recognition.orders import IterationOrders
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.operations import Rank


@dataclass(frozen=True)
class PipelineOrders:
    """The orders of one pipeline in one iteration, one entry per distinct (device, order) pair.

    Attributes:
        devices: Number of devices in the pipeline.
        places: Device (stage) that ran each order, or -1 if unknown.
        orders: Orders as codes of operations. The orders of a device are distinct.
        replicas: Number of ranks on the device that ran each order.
    """

    devices: int
    places: tuple[int, ...]
    orders: tuple[Ints, ...]
    replicas: tuple[int, ...]

    @property
    def is_placed(self) -> bool:
        """Whether the device of each order is known."""
        return min(self.places, default=NONE) >= 0

    @property
    def without_places(self) -> PipelineOrders:
        """A copy of the orders in which all devices are unknown."""
        return replace(self, places=(NONE,) * len(self.places))

    @cached_property
    def chunks(self) -> int:
        """Number of model chunks per device: the most frequent number over all orders."""
        return _find_most_frequent(
            [int(get_chunk(order).max(initial=0)) + 1 for order in self.orders]
        )

    @cached_property
    def microbatches(self) -> int:
        """Number of microbatches: the most frequent number of distinct forwards per chunk."""
        counts = []
        for order in self.orders:
            forward = order[get_kind(order) == FORWARD]
            chunks, _ = grouping.find_distinct_rows(get_chunk(forward), get_microbatch(forward))
            counts += np.bincount(chunks).tolist()
        return _find_most_frequent(counts)

    @property
    def missing_microbatches(self) -> Ints:
        """Microbatch numbers that no rank ran, below the highest number that ran, ascending."""
        ran = grouping.find_distinct(*map(get_microbatch, self.orders))
        return grouping.subtract_values(np.arange(int(ran.max(initial=-1)) + 1), ran)


@dataclass(frozen=True)
class Pipeline:
    """One pipeline in one iteration.

    Attributes:
        key: Hashable key. Pipelines that have the same orders share the same key.
        orders: Orders of the pipeline.
        cells: For each rank of the pipeline, its index in :attr:`.IterationOrders.rank`.
        order_of_cell: For each entry of ``cells``, the index of its order in ``orders``.
    """

    key: tuple[object, ...]
    orders: PipelineOrders
    cells: list[int]
    order_of_cell: list[int]


#: Maximum number of cached pipelines.
_MAX_KEPT = 4096


def group_pipelines(
    ranks: Sequence[Rank], parts: Sequence[IterationOrders], patterns: Sequence[Ints]
) -> Iterator[tuple[IterationOrders, list[Pipeline]]]:
    """Yield each iteration with its pipelines.

    A rank is left out of an iteration if the microbatch of any of its operations is unknown.
    Iterations in which all ranks are left out are skipped. If the stage of any rank is unknown, the
    devices of all orders in its pipeline are unknown.

    Args:
        ranks: Ranks in the report.
        parts: Orders of each iteration.
        patterns: List of distinct orders.
    """
    stage_of, pipeline_of = (column.tolist() for column in list_stages_and_pipelines(ranks))
    devices = _count_devices(parts, stage_of, pipeline_of)
    # Most pipelines have the same orders in all iterations, so they are cached.
    kept_pipelines: dict[tuple[object, ...], Pipeline] = {}
    for part in parts:
        rank_of = part.rank.tolist()
        pipelines = []
        for number, cells in _group_cells(part, pipeline_of).items():
            places = [stage_of[rank_of[cell]] for cell in cells]
            if min(places) < 0:
                places = [NONE] * len(cells)
            pairs = tuple(zip(places, [part.pattern[cell] for cell in cells], strict=True))
            key = devices[number], pairs
            if key not in kept_pipelines:
                if len(kept_pipelines) > _MAX_KEPT:
                    kept_pipelines.clear()
                kept_pipelines[key] = _make_pipeline(devices[number], pairs, patterns)
            pipelines.append(replace(kept_pipelines[key], cells=cells))
        if pipelines:
            yield part, pipelines


def _group_cells(part: IterationOrders, pipeline_of: Sequence[int]) -> dict[int, list[int]]:
    """Group the ranks whose microbatches are known by pipeline.

    Args:
        part: Orders of one iteration.
        pipeline_of: Pipeline of each rank.

    Returns:
        Indices of the ranks in ``part``, ascending, keyed by pipeline.
    """
    cells_of_pipeline: dict[int, list[int]] = {}
    for cell, (rank, pattern) in enumerate(zip(part.rank.tolist(), part.pattern, strict=True)):
        if pattern != NONE:
            cells_of_pipeline.setdefault(pipeline_of[rank], []).append(cell)
    return cells_of_pipeline


def _count_devices(
    parts: Sequence[IterationOrders], stage_of: Sequence[int], pipeline_of: Sequence[int]
) -> dict[int, int]:
    """Return the number of devices of each pipeline, keyed by pipeline.

    The number of devices is the number of stages in the pipeline. The most frequent number of
    stages over all pipelines is used if it is larger, because the last stages of a pipeline may
    have no profile. If any stage of the pipeline is unknown, the number of ranks is used.

    Args:
        parts: Orders of each iteration.
        stage_of: Stage of each rank, or -1 if it is unknown.
        pipeline_of: Pipeline of each rank.
    """
    stages: dict[int, list[int]] = {}
    for rank in grouping.find_distinct(*(part.rank for part in parts)).tolist():
        stages.setdefault(pipeline_of[rank], []).append(stage_of[rank])
    device_of_stage = {
        number: max(stage_list) + 1 for number, stage_list in stages.items() if min(stage_list) >= 0
    }
    usual_devices = _find_most_frequent(list(device_of_stage.values()))
    return {
        number: max(device_of_stage[number], usual_devices)
        if number in device_of_stage
        else len(stage_list)
        for number, stage_list in stages.items()
    }


def _make_pipeline(
    devices: int, pairs: tuple[tuple[int, int], ...], patterns: Sequence[Ints]
) -> Pipeline:
    """Build a pipeline from the orders of its ranks. Its ``cells`` are empty.

    Ranks that have the same device and order are merged. The merged orders are sorted by device,
    then by order index.

    Args:
        devices: Number of devices.
        pairs: Device and order index of each rank.
        patterns: List of distinct orders.
    """
    counts = Counter(pairs)
    distinct_pairs = sorted(counts)
    replicas = tuple(counts[pair] for pair in distinct_pairs)
    index_of = {pair: index for index, pair in enumerate(distinct_pairs)}
    orders = PipelineOrders(
        devices,
        tuple(place for place, _ in distinct_pairs),
        tuple(patterns[pattern] for _, pattern in distinct_pairs),
        replicas,
    )
    key = devices, replicas, tuple(distinct_pairs)
    return Pipeline(key, orders, [], [index_of[pair] for pair in pairs])


def _find_most_frequent(values: Sequence[int]) -> int:
    """Return the most frequent value, or 0 if there are no values. The largest value wins ties."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value), default=0)
