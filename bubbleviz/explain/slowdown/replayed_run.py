"""The run that is replayed: its tables, and what is known of single operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from bubbleviz.align.arrivals import sends
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.communication_times import Receives
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, TableT, join_tables, scatter
from bubbleviz.model.operations import HostActivities, Operations, Rank

#: Columns of these tables that hold rows of operations.
_OPERATIONS = ("operation", "before", "after", "peer_operation")


@dataclass(frozen=True, eq=False, repr=False)
class ExplainedRows:
    """What is known of single operations, and of the idle time between them.

    Attributes:
        dependencies: between operations.
        receives: of operations.
        idle: idle intervals up to the last optimizers.
        bubbles: those in the windows of one ratio.
        tokens: which operations waited for the token of which.
    """

    dependencies: Dependencies
    receives: Receives
    idle: IdleIntervals
    bubbles: Bubbles
    tokens: Dependencies

    def of_ranks(self, chosen: Bools, rank: Ints) -> ExplainedRows:
        """Return the rows of some ranks, none of which takes anything from any other.

        Args:
            chosen: of each rank.
            rank: of each operation.
        """
        return ExplainedRows(
            self.dependencies.take(chosen[rank[self.dependencies.after]]),
            self.receives.take(chosen[rank[self.receives.operation]]),
            self.idle.take(chosen[self.idle.rank]),
            self.bubbles.take(chosen[self.bubbles.rank]),
            self.tokens.take(chosen[rank[self.tokens.after]]),
        )

    def placed(
        self, row: Callable[[Ints], Ints], operations: Operations, first_rank: int = 0
    ) -> ExplainedRows:
        """Return the same with other numbers.

        Args:
            row: new rows of operations; of -1, -1.
            operations: that they are rows of.
            first_rank: by how much numbers of ranks are larger.
        """
        tables = {n: renumbered(table, row, first_rank) for n, table in vars(self).items()}
        rows = ExplainedRows(**tables)
        return replace(rows, bubbles=replace(rows.bubbles, operations=operations))


def renumbered(table: TableT, row: Callable[[Ints], Ints], first_rank: int = 0) -> TableT:
    """Return a table of explained rows with other rows of operations.

    Args:
        table: one of :class:`ExplainedRows`.
        row: new rows of operations; of -1, -1.
        first_rank: by how much numbers of ranks are larger.
    """
    columns = {n: row(column) for n, column in vars(table).items() if n in _OPERATIONS}
    if "rank" in vars(table):
        columns["rank"] = vars(table)["rank"] + first_rank
    return type(table)(**{**vars(table), **columns})


def joined_rows(parts: Sequence[ExplainedRows], operations: Operations) -> ExplainedRows:
    """Return the rows of stretches as one; these have the numbers of the run."""
    bubbles = join_tables([part.bubbles for part in parts]).compact()
    return ExplainedRows(
        join_tables([part.dependencies for part in parts]),
        join_tables([part.receives for part in parts]),
        join_tables([part.idle for part in parts]).compact(),
        replace(bubbles, operations=operations),
        join_tables([part.tokens for part in parts]),
    )


def moved_rows(first: int, count: int, elsewhere: Ints) -> Callable[[Ints], Ints]:
    """Return what turns rows of a stretch into those of the run.

    Args:
        first: its first operation in the run.
        count: its operations.
        elsewhere: rows of the run that its rows from ``count`` on stand for.
    """

    def moved(row: Ints) -> Ints:
        if not len(elsewhere):
            return np.where(row == NONE, NONE, row + first) if first else row
        outside = row >= count
        placed = np.where(row == NONE, NONE, row + first)
        placed[outside] = elsewhere[row[outside] - count]
        return placed

    return moved


@dataclass(frozen=True, eq=False, repr=False)
class ReplayedRun:
    """What ranks did, from which the work of any of its iterations follows.

    Attributes:
        operations: of all ranks.
        ranks: by number.
        explained: returns the tables that have rows for these.
        collectives: of all ranks.
        averaged: of each iteration, whether it is replayed.
        hosts: what launching threads did before late launches.
        numbers: of each iteration in the report, which a window cuts; -1 where it is left out.
        reason: why nothing is replayed; empty where it is.
        paused: of each iteration, whether nothing was recorded before the next one; None for none.
        launch_gap_ns: Time in operations in which no kernel ran at all, shape (iterations, ranks),
            or None if it is unknown.
    """

    operations: Operations
    ranks: tuple[Rank, ...]
    explained: Callable[[], ExplainedRows]
    collectives: CollectiveIntervals
    averaged: Bools
    hosts: HostActivities
    numbers: Ints
    reason: str = ""
    paused: Bools | None = None
    launch_gap_ns: Ints | None = None

    @cached_property
    def sends(self) -> Ints:
        """Row of the send of the name of each operation; -1 none."""
        return sends(self.operations)

    def of_ranks(self, chosen: Bools, rows: ExplainedRows) -> ReplayedRun:
        """Return the same of some ranks, none of which takes anything from any other.

        Rows of operations are numbered anew, ranks are not.

        Args:
            chosen: of each rank.
            rows: the tables, with those of these ranks at least.
        """
        kept = chosen[self.operations.rank]
        operations = self.operations.take(kept)
        row = scatter(len(kept) + 1, np.flatnonzero(kept), np.arange(len(operations)))
        rows = rows.of_ranks(chosen, self.operations.rank)
        rows = rows.placed(lambda own: row[own], operations)
        collectives = self.collectives.take(chosen[self.collectives.rank])
        hosts = self.hosts.take(chosen[self.hosts.rank])
        return replace(
            self,
            operations=operations,
            explained=partial(_given, rows),
            collectives=collectives.replace_columns(operation=row[collectives.operation]),
            hosts=replace(hosts, operation=row[hosts.operation]),
        )


def _given(rows: ExplainedRows) -> ExplainedRows:
    return rows
