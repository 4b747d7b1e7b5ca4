"""Slices of ranks: a run is counted slice by slice, so that counting takes little memory.

Ranks are numbered in the order of the rows of operations, so a slice of ranks is a slice of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bubbleviz.align.run import Run
from bubbleviz.model import operations as tables
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import find_run_starts

#: Approximate number of operations of a slice.
TARGET_OPERATIONS = 150_000


RankTable = TypeVar("RankTable", bound=Table)


@dataclass(frozen=True, eq=False, repr=False)
class RankSlice:
    """Some ranks of a run; these, and rows of operations, count from its own first ones.

    Attributes:
        first: first of the ranks in the run.
        end: end of the ranks.
        iterations: how many the run has.
        operations: of the ranks.
        busy: when these keep the ranks busy.
        unattributed: compute outside every operation.
        running: how long kernels and copies ran.
    """

    first: int
    end: int
    iterations: int
    operations: tables.Operations
    busy: tables.BusyIntervals
    unattributed: tables.RankIntervals
    running: tables.RunningTimes

    @property
    def shape(self) -> tuple[int, int]:
        """Number of iterations, and of ranks."""
        return self.iterations, self.end - self.first


def split_ranks(run: Run, *, pipelines: bool = False) -> Iterator[RankSlice]:
    """Yield the slices of a run, at least one.

    Args:
        run: the merged profiles.
        pipelines: whether pipelines stay whole.
    """
    rows, ranks = len(run.operations), len(run.ranks)
    number = -(-rows // TARGET_OPERATIONS)
    cuts: list[int] = []
    if number > 1:
        cuts = run.operations.rank[np.arange(1, number) * rows // number].tolist()
    bounds = sorted({*cuts, 0, ranks}) if ranks else [0, 0]
    if pipelines:
        bounds = split_pipelines(run, TARGET_OPERATIONS)
    for ends in pairwise(bounds):
        operations, busy, _ = take_operations(run, ends)
        yield RankSlice(
            *ends,
            len(run.iteration_names),
            operations,
            busy,
            take_ranks(run.unattributed, ends),
            take_ranks(run.running, ends),
        )


def list_stages_and_pipelines(ranks: Sequence[tables.Rank]) -> tuple[Ints, Ints]:
    """Return the stage and the pipeline of each rank; -1 unknown."""
    stage = [NONE if rank.stage is None else rank.stage for rank in ranks]
    pipeline = [NONE if rank.pipeline is None else rank.pipeline for rank in ranks]
    return np.array(stage, np.int64), np.array(pipeline, np.int64)


def split_pipelines(run: Run, most: int) -> list[int]:
    """Return the first rank of each group of whole pipelines, and the end of the last one.

    Where the pipeline of some rank is unknown, all are one group.

    Args:
        run: the merged profiles.
        most: about so many operations a group.
    """
    ranks, of_rank = len(run.ranks), list_stages_and_pipelines(run.ranks)[1]
    number = -(-len(run.operations) // most)
    is_unsorted = (of_rank[1:] < of_rank[:-1]).any()
    if number < 2 or of_rank.min() < 0 or is_unsorted:
        return [0, ranks]
    begins = np.append(find_run_starts(of_rank), ranks)
    row = np.searchsorted(run.operations.rank, begins)
    wanted = np.arange(1, number) * len(run.operations) // number
    cuts = begins[np.searchsorted(row, wanted)].tolist()
    return sorted({0, *cuts, ranks})


def take_operations(
    run: Run, ranks: tuple[int, int]
) -> tuple[tables.Operations, tables.BusyIntervals, slice]:
    """Return operations of some ranks, numbered from 0, when they were busy, and their rows.

    Args:
        run: the merged profiles.
        ranks: first and end.
    """
    first, end = ranks
    rows = np.searchsorted(run.operations.rank, ranks)
    row = int(rows[0])
    operations = run.operations.take(slice(*rows.tolist()))
    busy = run.busy.take(slice(*np.searchsorted(run.busy.operation, rows).tolist()))
    if first:
        operations = replace(
            operations,
            rank=operations.rank - first,
            stages=operations.stages[first:end],
            global_ranks=operations.global_ranks[first:end],
        )
    if row:
        busy = replace(busy, operation=busy.operation - row)
    return operations, busy, slice(*rows.tolist())


def take_ranks(table: RankTable, ranks: tuple[int, int]) -> RankTable:
    """Return the rows of some ranks (first, end), which are numbered from the first.

    Args:
        table: with a column ``rank``, by which it is sorted.
        ranks: first and end.
    """
    rank: Ints = vars(table)["rank"]
    part = table.take(slice(*np.searchsorted(rank, ranks).tolist()))
    moved: dict[str, Any] = {"rank": vars(part)["rank"] - ranks[0]}
    return replace(part, **moved) if ranks[0] else part


def join_ranks(parts: Sequence[Mapping[Any, npt.NDArray[Any]]]) -> list[npt.NDArray[Any]]:
    """Return columns of shape (iterations, ranks, ...) of all slices as those of all ranks.

    Args:
        parts: the columns of each slice, by name, in one order.
    """
    columns = zip(*(part.values() for part in parts), strict=True)
    return [np.concatenate(column, axis=1) for column in columns]
