"""Rank slices: process a run a few ranks at a time, to save memory.

Operations are sorted by rank, so the operations in a slice of ranks are consecutive rows.
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

#: Approximate number of operations in a slice.
TARGET_OPERATIONS = 150_000


RankTable = TypeVar("RankTable", bound=Table)


@dataclass(frozen=True, eq=False, repr=False)
class RankSlice:
    """Consecutive ranks of a run. Ranks and operations are numbered from zero within the slice.

    Attributes:
        first: Index, in the run, of the slice's first rank.
        end: End of the half-open range of ranks.
        iterations: Number of iterations in the run.
        operations: Operations of the ranks.
        busy: Busy intervals of the operations.
        unattributed: Intervals in which compute kernels ran outside all operations.
        running: Running times of kernels and copies.
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
        """Number of iterations and number of ranks."""
        return self.iterations, self.end - self.first


def split_ranks(run: Run, *, pipelines: bool = False) -> Iterator[RankSlice]:
    """Split the ranks of a run into slices of about ``TARGET_OPERATIONS`` operations.

    Slices consist of consecutive ranks. A slice contains all of its ranks' operations, so it may be
    larger than the target. At least one slice is yielded, even for a run without ranks.

    Args:
        run: The run, merged from all its profiles.
        pipelines: Whether all ranks of a pipeline must be in one slice.
    """
    n_rows, n_ranks = len(run.operations), len(run.ranks)
    n_slices = -(-n_rows // TARGET_OPERATIONS)
    cuts: list[int] = []
    if n_slices > 1:
        cut_rows = np.arange(1, n_slices) * n_rows // n_slices
        cuts = run.operations.rank[cut_rows].tolist()
    bounds = sorted({*cuts, 0, n_ranks}) if n_ranks else [0, 0]
    if pipelines:
        bounds = split_pipelines(run, TARGET_OPERATIONS)
    for ranks in pairwise(bounds):
        operations, busy, _ = take_operations(run, ranks)
        yield RankSlice(
            *ranks,
            len(run.iteration_names),
            operations,
            busy,
            take_ranks(run.unattributed, ranks),
            take_ranks(run.running, ranks),
        )


def list_stages_and_pipelines(ranks: Sequence[tables.Rank]) -> tuple[Ints, Ints]:
    """Return the stage and the pipeline of each rank, or -1 if unknown."""
    stage = [NONE if rank.stage is None else rank.stage for rank in ranks]
    pipeline = [NONE if rank.pipeline is None else rank.pipeline for rank in ranks]
    return np.array(stage, np.int64), np.array(pipeline, np.int64)


def split_pipelines(run: Run, target: int) -> list[int]:
    """Split the ranks of a run into groups of complete pipelines.

    All ranks form a single group if any rank's pipeline is unknown or if the ranks are not sorted
    by pipeline.

    Args:
        run: The run, merged from all its profiles.
        target: Approximate number of operations in a group.

    Returns:
        First rank of each group, followed by the number of ranks.
    """
    n_ranks, pipeline = len(run.ranks), list_stages_and_pipelines(run.ranks)[1]
    n_groups = -(-len(run.operations) // target)
    is_unsorted = (pipeline[1:] < pipeline[:-1]).any()
    if n_groups < 2 or pipeline.min() < 0 or is_unsorted:
        return [0, n_ranks]
    bounds = np.append(find_run_starts(pipeline), n_ranks)
    row_of_bound = np.searchsorted(run.operations.rank, bounds)
    cut_rows = np.arange(1, n_groups) * len(run.operations) // n_groups
    cuts = bounds[np.searchsorted(row_of_bound, cut_rows)].tolist()
    return sorted({0, *cuts, n_ranks})


def take_operations(
    run: Run, ranks: tuple[int, int]
) -> tuple[tables.Operations, tables.BusyIntervals, slice]:
    """Take the operations of consecutive ranks, and renumber ranks and operations from 0.

    Args:
        run: The run, merged from all its profiles.
        ranks: Half-open range (first, stop) of rank indices.

    Returns:
        operations: Operations of the given ranks.
        busy: Busy intervals of the operations.
        rows: The slice of rows that the operations occupy in the run.
    """
    first, stop = ranks
    row_bounds = np.searchsorted(run.operations.rank, ranks)
    rows = slice(*row_bounds.tolist())
    operations = run.operations.take(rows)
    busy = run.busy.take(slice(*np.searchsorted(run.busy.operation, row_bounds).tolist()))
    if first:
        operations = replace(
            operations,
            rank=operations.rank - first,
            stages=operations.stages[first:stop],
            global_ranks=operations.global_ranks[first:stop],
        )
    if rows.start:
        busy = replace(busy, operation=busy.operation - rows.start)
    return operations, busy, rows


def take_ranks(table: RankTable, ranks: tuple[int, int]) -> RankTable:
    """Take the rows of consecutive ranks, and renumber the ranks from zero.

    Args:
        table: Table with a column ``rank``. The table must be sorted by rank.
        ranks: Half-open range (first, stop) of rank indices.
    """
    rank: Ints = vars(table)["rank"]
    part = table.take(slice(*np.searchsorted(rank, ranks).tolist()))
    if ranks[0] == 0:
        return part
    renumbered: dict[str, Any] = {"rank": vars(part)["rank"] - ranks[0]}
    return replace(part, **renumbered)


def join_ranks(parts: Sequence[Mapping[Any, npt.NDArray[Any]]]) -> list[npt.NDArray[Any]]:
    """Join the columns of all slices, of shape (iterations, ranks, ...), along the rank axis.

    Args:
        parts: Columns of each slice, keyed by name. All slices must have their columns in the same
            order.

    Returns:
        The joined columns, in the same order.
    """
    columns = zip(*(part.values() for part in parts), strict=True)
    return [np.concatenate(column, axis=1) for column in columns]
