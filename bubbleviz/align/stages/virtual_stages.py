"""Virtual stages: the stage of each model chunk of each rank, from names or from a given order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.stages.pipelines import look_up_told
from bubbleviz.align.waits import measure_median_waits
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.operations import Operations


@dataclass(frozen=True, eq=False, repr=False)
class VirtualStages(Table):
    """Which (rank, chunk as named) holds which virtual stage; -1 unknown."""

    rank: Ints
    chunk: Ints
    virtual_stage: Ints


def named_stages(joined: JoinedRecordings) -> VirtualStages | None:
    """Return the virtual stages that names give, if they give them for all work."""
    operations, stage, work = joined.operations, joined.named_stage, joined.works
    if not work.any() or (work & (stage < 0)).any():
        return None
    rows = grouping.find_distinct_rows(operations.rank, operations.chunk, stage, mask=work)
    return VirtualStages(rows[0], rows[1], rows[2])


def told_stages(joined: JoinedRecordings) -> Ints | None:
    """Return the place in the pipeline of each rank by tables of operations, or names of files.

    None where some rank that works has none; of one that does not work it is 0.
    """
    stage = look_up_told(joined, "stage")
    working = joined.working
    if len(working) == 0 or (stage[working] < 0).any():
        return None
    return np.maximum(stage, 0)


def stages_in_order(joined: JoinedRecordings, stage_of_rank: Ints, n_stages: int) -> VirtualStages:
    """Return the virtual stages of ranks whose places in the pipeline are given.

    Further chunks run in the same direction or, in a V, back. They run back if their waiting times
    increase along the pipeline.

    Args:
        joined: The recordings.
        stage_of_rank: Place of each rank in its pipeline, from 0.
        n_stages: Number of places.
    """
    keys = joined.operations.rank, joined.operations.chunk
    pairs = grouping.find_distinct_rows(*keys, mask=joined.works)
    waits = measure_median_waits(joined.operations, joined.arrivals)
    stages = np.empty(pairs.shape[1], np.int64)
    for index, name in enumerate(grouping.find_distinct(pairs[1]).tolist()):
        rows = pairs[1] == name
        of_chunk = waits.chunk == name
        place, wait_ns = stage_of_rank[waits.rank[of_chunk]], waits.waited_ns[of_chunk]
        runs_back = index > 0 and _increases_along(place, wait_ns)
        place_of_pair = stage_of_rank[pairs[0, rows]]
        if runs_back:
            place_of_pair = n_stages - 1 - place_of_pair
        stages[rows] = index * n_stages + place_of_pair
    return VirtualStages(pairs[0], pairs[1], stages)


def _increases_along(place: Ints, wait_ns: Ints) -> bool:
    """Return whether waiting times and places in the pipeline have a positive covariance."""
    if len(place) < 2:
        return False
    covariance = (place - place.mean()) * (wait_ns - wait_ns.mean())
    return float(covariance.sum()) > 0


def first_stages(stages: VirtualStages, count: int) -> Ints:
    """Return the smallest virtual stage of each rank; -1 unknown."""
    big = np.iinfo(np.int64).max
    first = np.full(count, big)
    known = stages.virtual_stage >= 0
    np.minimum.at(first, stages.rank[known], stages.virtual_stage[known])
    return np.where(first == big, NONE, first)


def set_stages(operations: Operations, stages: VirtualStages, *, by_name: bool) -> Operations:
    """Return the operations with virtual stages, and with chunks numbered in the model's order.

    Args:
        operations: Operations of all ranks, with chunks as their names number them.
        stages: Virtual stage of each (rank, chunk).
        by_name: Whether names number chunks by their stage, so that all chunks are renumbered.
    """
    known = np.flatnonzero(stages.virtual_stage >= 0)
    known = known[grouping.sort_rows(stages.rank[known], stages.virtual_stage[known])]
    rank, chunk = stages.rank[known], stages.chunk[known]
    # Names that already number the chunks of a rank in the model's order are kept, with gaps.
    is_same_rank = rank[1:] == rank[:-1]
    is_descending = is_same_rank & (chunk[1:] <= chunk[:-1])
    is_renumbered = np.isin(rank, rank[1:][is_descending]) | by_name
    model_chunk = np.where(is_renumbered, number_occurrences((rank,)), chunk)

    def look_up(values: Ints, chunks: Ints) -> Ints:
        return grouping.lookup_values((rank, chunk), values, (operations.rank, chunks))

    virtual_stage = look_up(stages.virtual_stage[known], operations.chunk)
    if np.array_equal(model_chunk, chunk):
        return operations.replace_columns(virtual_stage=virtual_stage)
    new_chunk = look_up(model_chunk, operations.chunk)
    new_second_chunk = look_up(model_chunk, operations.second_chunk)
    chunk = np.where(new_chunk >= 0, new_chunk, operations.chunk)
    is_renumbered = new_second_chunk >= 0
    second_chunk = np.where(is_renumbered, new_second_chunk, operations.second_chunk)
    return operations.replace_columns(
        virtual_stage=virtual_stage, chunk=chunk, second_chunk=second_chunk
    )
