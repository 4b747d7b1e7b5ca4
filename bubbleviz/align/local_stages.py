"""Local stages: which virtual stage a chunk of one of a profile's own ranks became."""

from __future__ import annotations

from collections.abc import Mapping

from bubbleviz.align.run import Run
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, distinct_rows


def stages_of_chunks(
    rank: Ints, chunk: Ints, run: Run, rank_of_local: Ints
) -> Mapping[tuple[int, int], int]:
    """Return the virtual stage of each (rank, chunk); those of a rank count in the model's order.

    A rank that has more chunks by name than by its operations is left out.

    Args:
        rank: the profile's own, of some rows that name chunks.
        chunk: as names of operations give it.
        run: that the profile is part of.
        rank_of_local: the run's rank of each of the profile's own.
    """
    known = run.operations.virtual_stage != NONE
    held = distinct_rows(run.operations.rank[known], run.operations.virtual_stage[known])
    result: dict[tuple[int, int], int] = {}
    for own in distinct(rank).tolist():
        chunks = distinct(chunk[rank == own]).tolist()
        stages = held[1, held[0] == rank_of_local[own]].tolist()
        if len(chunks) == len(stages):
            result |= {(own, c): s for c, s in zip(chunks, sorted(stages), strict=True)}
    return result
