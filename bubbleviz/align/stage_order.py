"""The order of stages, inferred from each rank's own clock alone.

A microbatch goes down the pipeline and comes back, so on every rank the time from the end of
its F to the start of its B holds all that happens further down, and these times nest strictly::

    virtual stage 0   F├──────────────────────────┤B
    virtual stage 1      F├────────────────────┤B
    virtual stage 2         F├──────────────┤B

One sort of (rank, chunk) by that time gives stages, chunks and the direction of a V. What lies
between two neighbours of one pipeline is at least the F and B of the lower one; replicas of a stage
(tensor or data parallel) wait equally long, and share their virtual stage.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.rank_orders import orders_by_rank
from bubbleviz.align.virtual_stages import VirtualStages
from bubbleviz.align.waits import Waits, usual_waits
from bubbleviz.model.columns import NONE, Ints, joined
from bubbleviz.model.grouping import distinct, groups_of, places_in
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.sorting import sorted_rows

_BACKWARD = (Phase.B, Phase.BW)


def order_virtual_stages(operations: RankOperations) -> VirtualStages:
    """Return the virtual stage of every (rank, chunk) that ran forward and backward.

    Compared are the microbatches that all of them have. The order is unknown where there are
    none, and where some wait about equally long without being as many replicas as all others.
    """
    sure = _order(operations, usual_waits(operations))
    if (sure.virtual_stage >= 0).all() and len(sure.virtual_stage):
        return sure
    # Receives that do not name what they receive may leave no wait that is sure. The others give
    # an order if it distinguishes all stages.
    guessed = _order(operations, usual_waits(operations, doubtful=True))
    return guessed if len(distinct(guessed.virtual_stage)) == len(guessed.rank) else sure


def _order(operations: RankOperations, waits: Waits) -> VirtualStages:
    """Return the virtual stages that these waits give; unknown where they give no order."""
    groups = groups_of(waits.rank, waits.chunk)
    pair = groups.of_row
    rank, chunk = waits.rank[groups.first], waits.chunk[groups.first]
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    numbers, counts = np.unique(waits.microbatch, return_counts=True)
    shared = np.isin(waits.microbatch, numbers[counts == len(rank)])
    # One that never has a microbatch back could stand anywhere among the others.
    work = np.isin(operations.phase, (Phase.F, *_BACKWARD, Phase.FB)) & (operations.has_span == 1)
    everyone = groups_of(operations.rank[work], operations.chunk[work])
    if not shared.any() or len(everyone) > len(rank):
        return unknown
    waited, worked = np.zeros(len(rank), np.int64), np.zeros(len(rank), np.int64)
    np.add.at(waited, pair[shared], waits.waited_ns[shared])
    np.add.at(worked, pair[shared], waits.worked_ns[shared])
    order = sorted_rows(-waited, rank, chunk)
    level = _levels(waited[order], worked[order])
    # Replicas of a single stage wait for nobody.
    if level[-1] == 0 < len(level) - 1 and waited.max() > worked.max():
        return unknown
    replicas = np.bincount(level)
    distinct = len(groups_of(level, rank[order])) == len(rank)
    if not distinct or (replicas != replicas[0]).any():
        return unknown
    stage = np.empty(len(order), np.int64)
    stage[order] = level
    if replicas[0] > 1 and not _run_alike(operations, rank, stage):
        return unknown
    return VirtualStages(rank, chunk, stage)


def _run_alike(operations: RankOperations, rank: Ints, stage: Ints) -> bool:
    """Return whether ranks that share a stage run the same operations in the same order.

    Replicas do; neighbours of a pipeline begin with fewer forwards the further down they are.

    Args:
        operations: of all ranks.
        rank: ranks.
        stage: what those of them share that should run alike.
    """
    orders = orders_by_rank(operations)
    usual = {r: counts.most_common(1)[0][0] for r, counts in orders.items()}
    alike = {(s, usual[r]) for r, s in zip(rank.tolist(), stage.tolist(), strict=True)}
    return len(alike) == len(distinct(stage))


def order_by_number(operations: RankOperations, number: Ints) -> VirtualStages | None:
    """Return the virtual stages by the ranks' numbers; None where they show no pipelines.

    With some number of replicas each pipeline (of ranks so far apart) must nest in the order of the
    numbers, all of them alike. That holds where replicas are not equally fast, too.

    Args:
        operations: of all ranks.
        number: of each rank, in Megatron's order: those of one stage follow each other.
    """
    place = places_in(np.argsort(number))
    if len(distinct(operations.microbatch[np.isin(operations.phase, COUNTED)])) < 2:
        return None  # with one microbatch all ranks run alike
    for replicas in range(2, len(number) // 2 + 1):
        if len(number) % replicas:
            continue
        pipelines = []
        for pipeline in range(replicas):
            ranks = np.flatnonzero(place % replicas == pipeline)
            rows = operations.take(np.isin(operations.rank, ranks))
            pipelines.append(_order(rows, usual_waits(rows)))
        shapes = {_shape(stages, place // replicas) for stages in pipelines}
        if len(shapes) != 1 or not _is_pipeline(pipelines[0], place // replicas):
            continue
        every = joined(pipelines)
        if _run_alike(operations, every.rank, place[every.rank] // replicas):
            return every
    return None


def _shape(stages: VirtualStages, place: Ints) -> tuple[tuple[int, int, int], ...]:
    """Return which (place in the pipeline, chunk) has which virtual stage, in order."""
    columns = place[stages.rank].tolist(), stages.chunk.tolist(), stages.virtual_stage.tolist()
    return tuple(sorted(zip(*columns, strict=True)))


def _is_pipeline(stages: VirtualStages, place: Ints) -> bool:
    """Return whether virtual stages are known and distinct, first ones in order of places."""
    known = distinct(stages.virtual_stage)
    order = sorted_rows(stages.virtual_stage)
    places = place[stages.rank[order]]
    first = places[np.sort(np.unique(places, return_index=True)[1])]
    return bool(
        len(known) == len(stages.virtual_stage)
        and (known >= 0).all()
        and (np.diff(first) > 0).all()
    )


def _levels(waited: Ints, worked: Ints) -> Ints:
    """Return numbers of those that wait about equally long: less apart than half of what they do.

    Args:
        waited: how long, from the longest to the shortest.
        worked: how long they work meanwhile.
    """
    level = np.zeros(len(waited), np.int64)
    longest = waited[0]
    for place in range(1, len(waited)):
        level[place] = level[place - 1]
        if longest - waited[place] >= worked[place] // 2:
            level[place] += 1
            longest = waited[place]
    return level
