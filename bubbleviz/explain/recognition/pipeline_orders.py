"""Crowds: the ranks of one pipeline in one iteration, those that ran the same as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.recognition.orders import FORWARD, Orders, chunk_of, kind_of, microbatch_of
from bubbleviz.model.columns import Ints
from bubbleviz.model.operations import Rank


@dataclass(frozen=True)
class Crowd:
    """What ran in one pipeline in one iteration; copies that did the same are one.

    Attributes:
        devices: number of devices, p.
        places: of each order, the device that ran it; -1 where that is not told.
        orders: distinct within a place.
        copies: how many ranks ran each.
    """

    devices: int
    places: tuple[int, ...]
    orders: tuple[Ints, ...]
    copies: tuple[int, ...]

    @property
    def placed(self) -> bool:
        """Whether it is told which device ran what."""
        return min(self.places, default=-1) >= 0

    @property
    def chunks(self) -> int:
        """Number of model chunks a device: what most of them have."""
        return _usual([int(chunk_of(order).max(initial=0)) + 1 for order in self.orders])

    @property
    def microbatches(self) -> int:
        """Number of microbatches of each chunk: what most chunks ran forward."""
        counts = []
        for order in self.orders:
            forward = order[kind_of(order) == FORWARD]
            pairs = np.unique(np.stack((chunk_of(forward), microbatch_of(forward))), axis=1)
            counts += np.bincount(pairs[0]).tolist()
        return _usual(counts)

    @property
    def absent(self) -> Ints:
        """Numbers below the largest of a microbatch that no rank ran, in order."""
        ran = np.unique(np.concatenate([microbatch_of(order) for order in self.orders]))
        return np.setdiff1d(np.arange(int(ran.max(initial=-1)) + 1), ran)


@dataclass(frozen=True)
class Pipeline:
    """One pipeline in one iteration: its crowd, and the ranks behind it.

    Attributes:
        crowd: what ran.
        cells: rows of :class:`bubbleviz.explain.recognition.orders.Orders`.
        member: of each cell, the place of its order in the crowd.
    """

    crowd: Crowd
    cells: tuple[int, ...]
    member: tuple[int, ...]


def key_of(pipeline: Pipeline, orders: Orders) -> tuple[object, ...]:
    """Return what pipelines share that ran the same."""
    cells = list(pipeline.cells)
    patterns = orders.pattern[cells].tolist()
    first: dict[int, int] = {}
    for member, pattern in zip(pipeline.member, patterns, strict=True):
        first.setdefault(member, pattern)
    own = tuple(first[member] for member in range(len(first)))
    crowd = pipeline.crowd
    return crowd.devices, crowd.places, crowd.copies, own


def pipelines_of(ranks: Sequence[Rank], orders: Orders) -> Iterator[tuple[int, list[Pipeline]]]:
    """Yield the pipelines of each iteration, in order."""
    pipeline_of = [-1 if rank.pipeline is None else rank.pipeline for rank in ranks]
    stage_of = [-1 if rank.stage is None else rank.stage for rank in ranks]
    working = np.unique(orders.rank).tolist()
    devices = _devices(pipeline_of, stage_of, working)
    cells: dict[int, dict[int, list[int]]] = {}
    columns = (orders.iteration.tolist(), orders.rank.tolist(), orders.pattern.tolist())
    for cell, (iteration, rank, pattern) in enumerate(zip(*columns, strict=True)):
        if pattern >= 0:
            cells.setdefault(iteration, {}).setdefault(pipeline_of[rank], []).append(cell)
    for iteration, own in cells.items():
        yield (
            iteration,
            [_pipeline(orders, devices[name], stage_of, held) for name, held in own.items()],
        )


def _devices(
    pipeline_of: Sequence[int], stage_of: Sequence[int], ranks: Sequence[int]
) -> dict[int, int]:
    """Return the number of devices of each pipeline."""
    stages: dict[int, list[int]] = {}
    for rank in ranks:
        stages.setdefault(pipeline_of[rank], []).append(stage_of[rank])
    return {name: max(own) + 1 if min(own) >= 0 else len(own) for name, own in stages.items()}


def _pipeline(orders: Orders, devices: int, stage_of: Sequence[int], held: list[int]) -> Pipeline:
    """Return one pipeline in one iteration; copies of a device that ran the same are one."""
    places = [stage_of[int(orders.rank[cell])] for cell in held]
    if min(places) < 0:
        places = [-1] * len(held)
    pairs = [(place, int(orders.pattern[cell])) for place, cell in zip(places, held, strict=True)]
    counted = Counter(pairs)
    distinct = sorted(counted)
    number = {pair: place for place, pair in enumerate(distinct)}
    crowd = Crowd(
        devices,
        tuple(place for place, _ in distinct),
        tuple(orders.patterns[pattern] for _, pattern in distinct),
        tuple(counted[pair] for pair in distinct),
    )
    return Pipeline(crowd, tuple(held), tuple(number[pair] for pair in pairs))


def _usual(values: Sequence[int]) -> int:
    """Return the most frequent value; of several the largest, 0 of none."""
    counted = Counter(values)
    return max(counted, key=lambda value: (counted[value], value), default=0)
