"""Missing operations: a backward without its forward, or a microbatch that only other ranks ran.

If a range was not recorded, or has another name on one rank, its kernels count as bubble although
the iteration looks complete::

    stage 0     F0 F1 F2 F3 B0 B1 B2 B3
    stage 1     F0 F1 F2    B0 B1 B2 B3      F3 is missing: 1
    stage 2     F0 F1    F3 B0 B1    B3      F2 and B2 are missing: 2
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.completeness import BACKWARDS, FORWARDS
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_slices import RankSlice, list_stages_and_pipelines, split_ranks
from bubbleviz.model.columns import NONE, Bools, Ints, Table, make_mask
from bubbleviz.model.grouping import find_run_starts, group_rows
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase
from bubbleviz.model.run_kinds import TRAINING


def find_missing_operations(run: Run, iterations: Iterable[Iteration]) -> Ints:
    """Count the missing forwards and backwards of each rank in complete training iterations.

    A forward without its backward makes an iteration incomplete, and is not counted here.

    Args:
        run: The merged profiles.
        iterations: Iterations of the run.

    Returns:
        Number of missing operations of each rank.
    """
    # The last entry is for operations outside all iterations (-1).
    is_complete = np.zeros(len(run.iteration_names) + 1, bool)
    is_complete[[i.index for i in iterations if i.complete and i.kind == TRAINING]] = True
    if not is_complete.any():
        return np.zeros(len(run.ranks), np.int64)
    # Ranks without a stage may be replicas that run other microbatches.
    stage, pipeline = list_stages_and_pipelines(run.ranks)
    pipeline = np.where(stage == NONE, NONE, pipeline)
    return np.concatenate(
        [
            _count_missing_operations(part, pipeline[part.first : part.end], is_complete)
            for part in split_ranks(run, pipelines=True)
        ]
    )


def _count_missing_operations(part: RankSlice, pipeline: Ints, is_complete: Bools) -> Ints:
    """Count the missing forwards and backwards of each rank of whole pipelines.

    A backward without its forward counts once, and a microbatch that only other stages ran counts
    twice. Nothing is missing on a rank whose names mark no forward in the iteration.

    Args:
        part: Slice with all ranks of its pipelines.
        pipeline: Pipeline of each rank, or -1 if unknown.
        is_complete: Mask of the complete training iterations, with an extra last entry, which
            stands for no iteration.
    """
    n_ranks = part.shape[1]
    passes = _list_passes(part, is_complete)
    # If names never mark the forwards of a rank in an iteration, none is missing.
    has_forwards = make_mask(part.shape[0] * n_ranks, passes.cell[passes.is_forward == 1])
    passes = passes.take((passes.microbatch >= 0) & has_forwards[passes.cell])
    groups = group_rows(passes.cell, passes.microbatch, passes.chunk, passes.sequence)
    has_forward = make_mask(len(groups), groups.of_row[passes.is_forward == 1])
    rank = passes.cell[groups.first[~has_forward]] % n_ranks
    n_without_forward = np.bincount(rank, minlength=n_ranks)
    n_absent = _count_absent_microbatches(
        pipeline, passes.cell[groups.first], passes.microbatch[groups.first]
    )
    # Both the forward and the backward of an absent microbatch are missing.
    return n_without_forward + 2 * n_absent


@dataclass(frozen=True, eq=False, repr=False)
class _Passes(Table):
    """Forwards and backwards. An FB is a forward and, as a second row, a backward.

    Attributes:
        cell: Number of the iteration and rank, ``iteration * ranks + rank``.
        microbatch: Microbatch, or -1 if unknown.
        chunk: Chunk.
        sequence: Sequence.
        is_forward: 1 for a forward, 0 for a backward.
    """

    cell: Ints
    microbatch: Ints
    chunk: Ints
    sequence: Ints
    is_forward: Ints


def _list_passes(part: RankSlice, is_complete: Bools) -> _Passes:
    """List the forwards and backwards of complete iterations.

    The backward half of an FB is listed separately, with the second microbatch of the FB.

    Args:
        part: Slice of the ranks of a run.
        is_complete: Mask of the complete training iterations, with an extra last entry, which
            stands for no iteration.
    """
    operations, n_ranks = part.operations, part.shape[1]
    is_counted = is_complete[operations.iteration]
    forward = np.flatnonzero(is_counted & mask_phases(operations.phase, FORWARDS))
    backward = np.flatnonzero(is_counted & mask_phases(operations.phase, BACKWARDS))
    fused = np.flatnonzero(is_counted & (operations.phase == Phase.FB))
    first = np.concatenate((forward, backward))
    rows = np.concatenate((first, fused))
    return _Passes(
        cell=operations.iteration[rows] * n_ranks + operations.rank[rows],
        microbatch=np.append(operations.microbatch[first], operations.second_microbatch[fused]),
        chunk=np.append(operations.chunk[first], operations.second_chunk[fused]),
        sequence=operations.sequence[rows],
        is_forward=(np.arange(len(rows)) < len(forward)).astype(np.int64),
    )


def _count_absent_microbatches(pipeline: Ints, cell: Ints, microbatch: Ints) -> Ints:
    """Count the microbatches of each rank that only other stages of its pipeline ran.

    Args:
        pipeline: Pipeline of each rank, or -1 if unknown.
        cell: Number of the iteration and rank of each pass, ascending.
        microbatch: Microbatch of each pass, ascending within its cell.
    """
    rows = find_run_starts(cell, microbatch)
    rows = rows[pipeline[cell[rows] % len(pipeline)] >= 0]
    cell, microbatch = cell[rows], microbatch[rows]
    iteration, rank = np.divmod(cell, len(pipeline))
    group = group_rows(iteration, pipeline[rank]).of_row
    n_of_group = np.bincount(group[group_rows(group, microbatch).first])
    first_of_cell = find_run_starts(cell)
    n_of_cell = np.diff(first_of_cell, append=len(cell))
    n_absent = np.zeros(len(pipeline), np.int64)
    np.add.at(n_absent, rank[first_of_cell], n_of_group[group[first_of_cell]] - n_of_cell)
    return n_absent
