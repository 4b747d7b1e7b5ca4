"""Operations that a rank lacks: a backward without its forward, a microbatch that other stages ran.

A range that was not recorded, or has another name on one rank, takes its kernels with it: they
count as bubble, and the iteration looks complete::

    stage 0     F0 F1 F2 F3 B0 B1 B2 B3
    stage 1     F0 F1 F2    B0 B1 B2 B3      its F3 is missing: 1
    stage 2     F0 F1    F3 B0 B1    B3      its F2 and B2 are: 2
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_slices import RankSlice, slices_of
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct_rows, groups_of
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.run_kind import TRAINING

_FORWARD = (Phase.F, Phase.FB)
_BACKWARD = (Phase.B, Phase.BW)


def lacking_operations(run: Run, iterations: Iterable[Iteration]) -> Ints:
    """Return how many forwards and backwards each rank lacks in complete training iterations.

    A forward without its backward makes an iteration incomplete, and is not counted here.

    Args:
        run: the merged profiles.
        iterations: of these.
    """
    # One place more for what belongs to no iteration.
    whole = np.zeros(len(run.iteration_names) + 1, bool)
    whole[[i.index for i in iterations if i.complete and i.kind == TRAINING]] = True
    # Replicas of no known pipeline may run other microbatches.
    pipeline = np.array(
        [
            NONE if rank.pipeline is None or rank.stage is None else rank.pipeline
            for rank in run.ranks
        ],
        np.int64,
    )
    return np.concatenate(
        [
            _lacking(part, pipeline[part.first : part.end], whole)
            for part in slices_of(run, pipelines=True)
        ]
    )


def _lacking(part: RankSlice, pipeline: Ints, whole: Bools) -> Ints:
    """Return how many forwards and backwards each rank of whole pipelines lacks.

    Args:
        part: the ranks.
        pipeline: of each; -1 unknown.
        whole: of each iteration, whether it is complete and trains; the last stands for none.
    """
    operations, (iterations, ranks) = part.operations, part.shape
    usable = whole[operations.iteration]
    forward = np.flatnonzero(usable & among(operations.phase, _FORWARD))
    backward = np.flatnonzero(usable & among(operations.phase, _BACKWARD))
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
    known = (microbatch >= 0) & marked[cell]
    passes = groups_of(
        cell[known], microbatch[known], chunk[known], operations.sequence[rows[known]]
    )
    begun = np.zeros(len(passes), bool)
    begun[passes.of_row[np.flatnonzero(known) < len(forward)]] = True
    rank = operations.rank[rows[known]]
    lacking = np.bincount(rank[passes.first[~begun]], minlength=ranks)
    return lacking + 2 * _absent(pipeline, cell[known], microbatch[known])


def _absent(pipeline: Ints, cell: Ints, microbatch: Ints) -> Ints:
    """Return how many microbatches each rank lacks that other stages of its pipeline ran.

    Args:
        pipeline: of each rank; -1 unknown.
        cell: iteration and rank of each pass.
        microbatch: of each pass.
    """
    count = len(pipeline)
    absent = np.zeros(count, np.int64)
    staged = pipeline[cell % count] >= 0
    if not staged.any():
        return absent
    cell, microbatch = cell[staged], microbatch[staged]
    ran = distinct_rows(cell, microbatch)
    cells, own = np.unique(ran[0], return_counts=True)
    place = cells // count, pipeline[cells % count]
    all_ran = distinct_rows(ran[0] // count, pipeline[ran[0] % count], ran[1])
    places = groups_of(*(np.concatenate(pair) for pair in zip(place, all_ran[:2], strict=True)))
    of_place = np.bincount(places.of_row[len(cells) :], minlength=len(places))
    np.add.at(absent, cells % count, of_place[places.of_row[: len(cells)]] - own)
    return absent
