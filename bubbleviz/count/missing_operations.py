"""Operations that a rank lacks: a backward without its forward, or a microbatch that others ran.

If a range was not recorded, or has another name on one rank, its kernels count as bubble, although
the iteration looks complete::

    stage 0     F0 F1 F2 F3 B0 B1 B2 B3
    stage 1     F0 F1 F2    B0 B1 B2 B3      F3 is missing: 1
    stage 2     F0 F1    F3 B0 B1    B3      F2 and B2 are missing: 2
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.completeness import BACKWARDS, FORWARDS
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_slices import RankSlice, list_stages_and_pipelines, split_ranks
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_run_starts, group_rows
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase
from bubbleviz.model.run_kinds import TRAINING


def find_missing_operations(run: Run, iterations: Iterable[Iteration]) -> Ints:
    """Return how many forwards and backwards each rank lacks in complete training iterations.

    A forward without its backward makes an iteration incomplete, and is not counted here.

    Args:
        run: the merged profiles.
        iterations: of these.
    """
    # One place more for what belongs to no iteration.
    whole = np.zeros(len(run.iteration_names) + 1, bool)
    whole[[i.index for i in iterations if i.complete and i.kind == TRAINING]] = True
    if not whole.any():
        return np.zeros(len(run.ranks), np.int64)
    # Replicas of no known pipeline may run other microbatches.
    stage, pipeline = list_stages_and_pipelines(run.ranks)
    pipeline = np.where(stage == NONE, NONE, pipeline)
    return np.concatenate(
        [
            _find_missing(part, pipeline[part.first : part.end], whole)
            for part in split_ranks(run, pipelines=True)
        ]
    )


def _find_missing(part: RankSlice, pipeline: Ints, whole: Bools) -> Ints:
    """Return how many forwards and backwards each rank of whole pipelines lacks.

    Args:
        part: the ranks.
        pipeline: of each; -1 unknown.
        whole: of each iteration, whether it is complete and trains; the last stands for none.
    """
    operations, (iterations, ranks) = part.operations, part.shape
    usable = whole[operations.iteration]
    forward = np.flatnonzero(usable & mask_phases(operations.phase, FORWARDS))
    backward = np.flatnonzero(usable & mask_phases(operations.phase, BACKWARDS))
    second = np.flatnonzero(usable & (operations.phase == Phase.FB))
    rows = np.concatenate((forward, backward, second))
    first = len(rows) - len(second)
    microbatch, chunk = operations.microbatch[rows], operations.chunk[rows]
    microbatch[first:] = operations.second_microbatch[second]
    chunk[first:] = operations.second_chunk[second]
    cell = operations.iteration[rows] * ranks + operations.rank[rows]
    # A rank whose forwards names never mark lacks none.
    marked = np.zeros(iterations * ranks, bool)
    marked[cell[: len(forward)]] = True
    known = np.flatnonzero((microbatch >= 0) & marked[cell])
    forwards = np.searchsorted(known, len(forward))
    if len(known) < len(rows):
        rows, cell, microbatch, chunk = rows[known], cell[known], microbatch[known], chunk[known]
    passes = group_rows(cell, microbatch, chunk, operations.sequence[rows])
    has_forward = np.zeros(len(passes), bool)
    has_forward[passes.of_row[:forwards]] = True
    rank = operations.rank[rows[passes.first[~has_forward]]]
    return np.bincount(rank, minlength=ranks) + 2 * _find_absent(
        pipeline, cell[passes.first], microbatch[passes.first]
    )


def _find_absent(pipeline: Ints, cell: Ints, microbatch: Ints) -> Ints:
    """Return how many microbatches each rank lacks that other stages of its pipeline ran.

    Args:
        pipeline: of each rank; -1 unknown.
        cell: iteration and rank of each pass, ascending.
        microbatch: of each pass, ascending in its cell.
    """
    rows = find_run_starts(cell, microbatch)
    rows = rows[pipeline[cell[rows] % len(pipeline)] >= 0]
    cell, microbatch = cell[rows], microbatch[rows]
    iteration = cell // len(pipeline)
    rank = cell - iteration * len(pipeline)
    place = group_rows(iteration, pipeline[rank]).of_row
    of_place = np.bincount(place[group_rows(place, microbatch).first])
    first = find_run_starts(cell)
    absent = np.zeros(len(pipeline), np.int64)
    np.add.at(absent, rank[first], of_place[place[first]] - np.diff(first, append=len(cell)))
    return absent
