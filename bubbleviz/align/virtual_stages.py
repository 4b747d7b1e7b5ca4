"""Virtual stages: which chunk of which rank holds each, by names or by the user's order."""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.waits import usual_waits
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import distinct, distinct_rows, looked_up
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


@frozen
class VirtualStages(Table):
    """Which (rank, chunk as named) holds which virtual stage; -1 unknown."""

    rank: Ints
    chunk: Ints
    virtual_stage: Ints


def named_stages(joined: JoinedRecordings) -> VirtualStages | None:
    """Return the virtual stages that names give, if they give them for all work."""
    operations, stage = joined.operations, joined.named_stage
    work = among(operations.phase, COUNTED)
    if not work.any() or (stage[work] < 0).any():
        return None
    rows = distinct_rows(operations.rank[work], operations.chunk[work], stage[work])
    return VirtualStages(rows[0], rows[1], rows[2])


def told_stages(joined: JoinedRecordings) -> Ints | None:
    """Return the place in the pipeline of each rank by tables of operations.

    None where some rank that works has none; of one that does not work it is 0.
    """
    told = [None if rank.local.told is None else rank.local.told.stage for rank in joined.ranks]
    stage = np.array([NONE if place is None else place for place in told], np.int64)
    working = distinct(joined.operations.rank[among(joined.operations.phase, COUNTED)])
    if len(working) == 0 or (stage[working] < 0).any():
        return None
    return np.maximum(stage, 0)


def stages_in_order(
    joined: JoinedRecordings, inputs: Arrivals, place: Ints, devices: int
) -> VirtualStages:
    """Return the virtual stages of ranks whose places in the pipeline are given.

    Further chunks run the same way or, in a V, back: there their waiting times shrink the other
    way than the order.

    Args:
        joined: the recordings.
        inputs: when the inputs of operations were there.
        place: of each rank in its pipeline.
        devices: how many places there are.
    """
    work = among(joined.operations.phase, COUNTED)
    pairs = distinct_rows(joined.operations.rank[work], joined.operations.chunk[work])
    waits = usual_waits(joined.operations, inputs)
    stages = np.empty(pairs.shape[1], np.int64)
    for index, name in enumerate(distinct(pairs[1]).tolist()):
        rows = pairs[1] == name
        of_chunk = waits.chunk == name
        at, wait = place[waits.rank[of_chunk]], waits.waited_ns[of_chunk]
        rising = len(at) > 1 and float(((at - at.mean()) * (wait - wait.mean())).sum()) > 0
        back = index > 0 and rising
        along = place[pairs[0, rows]]
        stages[rows] = index * devices + (devices - 1 - along if back else along)
    return VirtualStages(pairs[0], pairs[1], stages)


def first_stages(stages: VirtualStages, count: int) -> Ints:
    """Return the smallest virtual stage of each rank; -1 unknown."""
    big = np.iinfo(np.int64).max
    first = np.full(count, big)
    known = stages.virtual_stage >= 0
    np.minimum.at(first, stages.rank[known], stages.virtual_stage[known])
    return np.where(first == big, NONE, first)


def with_model_chunks(
    operations: RankOperations, stages: VirtualStages, by_name: bool
) -> tuple[RankOperations, Ints]:
    """Return the operations with chunks counted in the model's order, and virtual stages.

    Where names give stages (``by_name``), the chunk columns may hold these.
    """
    known = np.flatnonzero(stages.virtual_stage >= 0)
    known = known[sorted_rows(stages.rank[known], stages.virtual_stage[known])]
    rank, name = stages.rank[known], stages.chunk[known]
    index = occurrences((rank,))
    # Names that count a rank's chunks in the model's order are kept, gaps and all.
    falling = (rank[1:] == rank[:-1]) & (name[1:] <= name[:-1])
    counted = np.isin(rank, rank[1:][falling]) | by_name
    renamed = np.where(counted, index, name)
    pairs = rank, name
    virtual_stage = looked_up(
        pairs, stages.virtual_stage[known], (operations.rank, operations.chunk)
    )
    if np.array_equal(renamed, name):
        return operations, virtual_stage
    chunk = looked_up(pairs, renamed, (operations.rank, operations.chunk))
    second_chunk = looked_up(pairs, renamed, (operations.rank, operations.second_chunk))
    return (
        operations.changed(
            chunk=np.where(chunk >= 0, chunk, operations.chunk),
            second_chunk=np.where(second_chunk >= 0, second_chunk, operations.second_chunk),
        ),
        virtual_stage,
    )
