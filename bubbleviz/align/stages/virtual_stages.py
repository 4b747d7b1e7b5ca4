"""Virtual stages: the stage that each rank runs with each model chunk, from names or rank order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.stages.pipelines import lookup_declared
from bubbleviz.align.waits import measure_median_waits
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.operations import Operations


@dataclass(frozen=True, eq=False, repr=False)
class VirtualStages(Table):
    """Virtual stage of each (rank, chunk), or -1 if unknown.

    Attributes:
        rank: Index of the rank.
        chunk: Model chunk, as numbered in operation names.
        virtual_stage: Virtual stage that the rank runs with this chunk, or -1 if unknown.
    """

    rank: Ints
    chunk: Ints
    virtual_stage: Ints


def get_named_stages(recordings: JoinedRecordings) -> VirtualStages | None:
    """Return the virtual stages contained in operation names.

    The result is None if there are no forwards and backwards, or if any of their names contains no
    stage.
    """
    operations, stage, work = recordings.operations, recordings.named_stage, recordings.works
    if not work.any() or (work & (stage < 0)).any():
        return None
    rows = grouping.find_distinct_rows(operations.rank, operations.chunk, stage, mask=work)
    return VirtualStages(rows[0], rows[1], rows[2])


def get_declared_stages(recordings: JoinedRecordings) -> Ints | None:
    """Return each rank's stage, as declared by tables of operations or file names.

    The result is None if no rank works, or if the stage of any working rank is missing. A rank
    works if it runs forwards or backwards. For ranks that do not work, a missing stage becomes 0.
    """
    stage = lookup_declared(recordings, "stage")
    working = recordings.working
    if len(working) == 0 or (stage[working] < 0).any():
        return None
    return np.maximum(stage, 0)


def assign_in_order(
    recordings: JoinedRecordings, stage_of_rank: Ints, n_stages: int
) -> VirtualStages:
    """Return the virtual stages of ranks whose positions in the pipeline are given.

    Let ``k`` be the index of a chunk number among the sorted chunk numbers of all ranks. The
    virtual stage depends on the direction of the chunk:

    - Along the pipeline: ``k * n_stages + position``.
    - Against the pipeline, as in a V: ``k * n_stages + n_stages - 1 - position``.

    The first chunk runs along the pipeline. A later chunk runs against the pipeline if its waiting
    times increase along the pipeline (:func:`_increases_along`).

    Args:
        recordings: The recordings.
        stage_of_rank: Zero-based position of each rank in its pipeline.
        n_stages: Number of positions in a pipeline.
    """
    keys = recordings.operations.rank, recordings.operations.chunk
    pairs = grouping.find_distinct_rows(*keys, mask=recordings.works)
    waits = measure_median_waits(recordings.operations, recordings.arrivals)
    stages = np.empty(pairs.shape[1], np.int64)
    for index, name in enumerate(grouping.find_distinct(pairs[1]).tolist()):
        rows = pairs[1] == name
        of_chunk = waits.chunk == name
        position, wait_ns = stage_of_rank[waits.rank[of_chunk]], waits.waited_ns[of_chunk]
        runs_back = index > 0 and _increases_along(position, wait_ns)
        position_of_pair = stage_of_rank[pairs[0, rows]]
        if runs_back:
            position_of_pair = n_stages - 1 - position_of_pair
        stages[rows] = index * n_stages + position_of_pair
    return VirtualStages(pairs[0], pairs[1], stages)


def _increases_along(position: Ints, wait_ns: Ints) -> bool:
    """Return whether positions in the pipeline and waiting times have a positive covariance.

    The result is False if there are fewer than two waits.
    """
    if len(position) < 2:
        return False
    covariance = (position - position.mean()) * (wait_ns - wait_ns.mean())
    return float(covariance.sum()) > 0


def find_first_stages(stages: VirtualStages, count: int) -> Ints:
    """Return the smallest known virtual stage of each rank, or -1 if all are unknown.

    Args:
        stages: Virtual stage of each (rank, chunk), or -1 if unknown.
        count: Number of ranks.
    """
    big = np.iinfo(np.int64).max
    first = np.full(count, big)
    is_known = stages.virtual_stage >= 0
    np.minimum.at(first, stages.rank[is_known], stages.virtual_stage[is_known])
    return np.where(first == big, NONE, first)


def set_stages(operations: Operations, stages: VirtualStages, *, by_name: bool) -> Operations:
    """Return the operations with virtual stages, and with chunks numbered in the model's order.

    The chunks of a rank are in the model's order if their virtual stages ascend. Where needed, a
    rank's chunks are renumbered from zero in this order. If the stage of a (rank, chunk) is
    unknown, its operations get virtual stage -1 and their chunk is not changed.

    Args:
        operations: Operations of all ranks, with chunks as numbered in operation names.
        stages: Virtual stage of each (rank, chunk), or -1 if unknown.
        by_name: Whether names number chunks by their stage. If True, the chunks of all ranks are
            renumbered. Otherwise, only ranks whose chunks are not in the model's order are
            renumbered.
    """
    staged = np.flatnonzero(stages.virtual_stage >= 0)
    staged = staged[grouping.sort_rows(stages.rank[staged], stages.virtual_stage[staged])]
    rank, chunk = stages.rank[staged], stages.chunk[staged]
    # A rank's chunk numbers that are already in the model's order are kept, even if there are gaps.
    is_same_rank = rank[1:] == rank[:-1]
    is_descending = is_same_rank & (chunk[1:] <= chunk[:-1])
    is_renumbered = np.isin(rank, rank[1:][is_descending]) | by_name
    model_chunk = np.where(is_renumbered, number_occurrences((rank,)), chunk)

    def look_up(values: Ints, chunks: Ints) -> Ints:
        return grouping.lookup_values((rank, chunk), values, (operations.rank, chunks))

    virtual_stage = look_up(stages.virtual_stage[staged], operations.chunk)
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
