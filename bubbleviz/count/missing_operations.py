"""Missing operations: forwards and backwards that a rank must have run but no range shows.

If a range was not recorded, or has a different name on one rank, its kernels count as bubble
although the iteration looks complete::

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

    Two kinds of missing operations are counted and added up over the iterations:

    - 1 for each combination of microbatch, chunk and sequence that has a backward but no forward.
    - 2 for each microbatch that another rank in the pipeline ran but this rank did not, regardless
      of the number of chunks. Both its forward and its backward are missing.

    An FB counts as one forward and one backward. The following are not counted:

    - Forwards without a backward, because they make the iteration incomplete.
    - Passes without a microbatch number.
    - Ranks without any forward in the iteration.
    - The second kind on ranks whose stage is unknown, because they may be replicas that run other
      microbatches.

    Args:
        run: The run, merged from all its profiles.
        iterations: Iterations of the run. Only complete training iterations are used.

    Returns:
        Number of missing operations on each rank, shape (ranks,). All zeros if no training
        iteration is complete.
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
    """Count each rank's missing forwards and backwards in a slice of complete pipelines.

    The rules are those of :func:`find_missing_operations`.

    Args:
        part: Slice of the run that contains all ranks of its pipelines.
        pipeline: Pipeline of each rank in the slice, or -1 if its stage or pipeline is unknown.
        is_complete: Mask of the complete training iterations, indexed by iteration. The extra last
            entry is False and is used for operations outside all iterations (index -1).
    """
    n_ranks = part.shape[1]
    passes = _list_passes(part, is_complete)
    # If no name marks a forward of the rank in an iteration, nothing is considered missing there.
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
    """Forward and backward passes. An FB has two rows, one for each pass.

    Attributes:
        cell: Code for the iteration and rank, ``iteration * n_ranks + rank``.
        microbatch: Microbatch number, or -1 if unknown.
        chunk: Model chunk of the pass.
        sequence: Sequence number of the pass.
        is_forward: 1 for a forward, 0 for a backward.
    """

    cell: Ints
    microbatch: Ints
    chunk: Ints
    sequence: Ints
    is_forward: Ints


def _list_passes(part: RankSlice, is_complete: Bools) -> _Passes:
    """List the passes (F, B, BW and both passes of FB) of complete iterations.

    All forwards come first, then all B and BW, and finally the backward passes of all FB
    operations. The backward pass of an FB has the FB's second microbatch and second chunk.

    Args:
        part: Consecutive ranks of the run, along with their operations.
        is_complete: Mask of the complete training iterations, indexed by iteration. The extra last
            entry is used for operations outside all iterations (index -1).
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
    """Count, for each rank, the microbatches that only other ranks of its pipeline ran.

    The counts are added up over the iterations in which the rank has at least one pass. The count
    is 0 for ranks whose pipeline is unknown.

    Args:
        pipeline: Pipeline of each rank, or -1 if unknown.
        cell: Code ``iteration * n_ranks + rank`` of each pass, ascending.
        microbatch: Microbatch of each pass, ascending within a cell.

    Returns:
        Number of absent microbatches for each rank, shape (n_ranks,).
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
