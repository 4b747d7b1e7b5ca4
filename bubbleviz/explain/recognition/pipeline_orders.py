"""Pipeline orders: the orders of one pipeline in one iteration, equal ones of a device once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.explain.recognition.orders import FORWARD, Orders, chunk_of, kind_of, microbatch_of
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, distinct_rows, without
from bubbleviz.model.operations import Rank
from bubbleviz.model.values import frozen


@frozen
class PipelineOrders:
    """The orders of one pipeline in one iteration; replicas with equal orders are one row.

    Attributes:
        devices: number of devices, p.
        places: of each order, the device that ran it; -1 where it is unknown.
        orders: distinct within a place, as codes.
        replicas: how many ranks ran each.
    """

    devices: int
    places: tuple[int, ...]
    orders: tuple[Ints, ...]
    replicas: tuple[int, ...]

    @property
    def placed(self) -> bool:
        """Whether the device of each order is known."""
        return min(self.places, default=-1) >= 0

    @property
    def chunks(self) -> int:
        """Number of model chunks per device: that of most devices."""
        return _usual([int(chunk_of(order).max(initial=0)) + 1 for order in self.orders])

    @property
    def microbatches(self) -> int:
        """Number of microbatches of each chunk: the forwards of most chunks."""
        counts = []
        for order in self.orders:
            forward = order[kind_of(order) == FORWARD]
            chunks, _ = distinct_rows(chunk_of(forward), microbatch_of(forward))
            counts += np.bincount(chunks).tolist()
        return _usual(counts)

    @property
    def missing_microbatches(self) -> Ints:
        """Microbatches that no rank ran, though a later one ran; ascending."""
        ran = distinct(*map(microbatch_of, self.orders))
        return without(np.arange(int(ran.max(initial=-1)) + 1), ran)


#: A pipeline in an iteration: what pipelines with the same orders share, its orders, the rows of
#: its ranks in :class:`~bubbleviz.explain.recognition.orders.Orders`, and which order each ran.
Pipeline = tuple[tuple[object, ...], PipelineOrders, list[int], list[int]]


def pipelines_of(ranks: Sequence[Rank], orders: Orders) -> Iterator[tuple[int, list[Pipeline]]]:
    """Yield the pipelines of each iteration, in order."""
    pipeline_of = [-1 if rank.pipeline is None else rank.pipeline for rank in ranks]
    stage_of = [-1 if rank.stage is None else rank.stage for rank in ranks]
    stages: dict[int, list[int]] = {}
    for rank in distinct(orders.rank).tolist():
        stages.setdefault(pipeline_of[rank], []).append(stage_of[rank])
    # One whose last stages are in no profile has as many devices as most others.
    placed = {p: max(known) + 1 for p, known in stages.items() if min(known) >= 0}
    usual = _usual(list(placed.values()))
    devices = {p: max(placed[p], usual) if p in placed else len(of) for p, of in stages.items()}
    cells: dict[int, dict[int, list[int]]] = {}
    columns = (orders.iteration.tolist(), orders.rank.tolist(), orders.pattern.tolist())
    for cell, (iteration, rank, pattern) in enumerate(zip(*columns, strict=True)):
        if pattern >= 0:
            cells.setdefault(iteration, {}).setdefault(pipeline_of[rank], []).append(cell)
    for iteration, by_pipeline in cells.items():
        yield (
            iteration,
            [_pipeline(orders, devices[p], stage_of, c) for p, c in by_pipeline.items()],
        )


def _pipeline(orders: Orders, devices: int, stage_of: Sequence[int], cells: list[int]) -> Pipeline:
    """Return one pipeline in one iteration; replicas of a device with equal orders are one row."""
    places = [stage_of[rank] for rank in orders.rank[cells].tolist()]
    if min(places) < 0:
        places = [-1] * len(cells)
    pairs = list(zip(places, orders.pattern[cells].tolist(), strict=True))
    counted = Counter(pairs)
    members = sorted(counted)
    number = {pair: place for place, pair in enumerate(members)}
    ran = PipelineOrders(
        devices,
        tuple(place for place, _ in members),
        tuple(orders.patterns[pattern] for _, pattern in members),
        tuple(counted[pair] for pair in members),
    )
    key = devices, ran.replicas, tuple(members)
    return key, ran, cells, [number[pair] for pair in pairs]


def _usual(values: Sequence[int]) -> int:
    """Return the most frequent value; of several the largest, 0 of none."""
    counted = Counter(values)
    return max(counted, key=lambda value: (counted[value], value), default=0)
