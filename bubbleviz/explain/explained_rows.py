"""Explained rows: the tables of an explanation that have rows for single operations.

They take more memory than a run itself. Where a run is several stretches only those of the ranks
that are replayed are kept; those of all are worked out once an output asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from bubbleviz.explain.causes.cause_times import Bubbles
from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.causes.idle import IdleIntervals
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.phase_times import Receives
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, TableT, joined
from bubbleviz.model.operations import HostActivities, Operations, Rank
from bubbleviz.model.values import frozen

#: Columns of these tables that hold rows of operations.
_OPERATIONS = ("operation", "before", "after", "peer_operation")


@frozen(eq=False, shown=False)
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
    tokens: TokenWaits

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


def joined_rows(parts: Sequence[ExplainedRows]) -> ExplainedRows:
    """Return the rows of stretches as one; these have the numbers of the run."""
    return ExplainedRows(
        joined([part.dependencies for part in parts]),
        joined([part.receives for part in parts]),
        joined([part.idle for part in parts]).compacted(),
        joined([part.bubbles for part in parts]).compacted(),
        joined([part.tokens for part in parts]),
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


@frozen(eq=False, shown=False)
class RowsOnDemand:
    """Rows that are worked out when they are first asked for.

    Attributes:
        make: what does so.
    """

    make: Callable[[], ExplainedRows]

    @cached_property
    def rows(self) -> ExplainedRows:
        """The tables."""
        return self.make()


@frozen(eq=False, shown=False)
class ReplayedRun:
    """What ranks did, from which the graph of any of its iterations follows.

    Attributes:
        operations: of all ranks.
        ranks: by number.
        explained: the tables that have rows for these.
        collectives: of all ranks.
        averaged: of each iteration, whether it is replayed.
        hosts: what launching threads did before late launches.
    """

    operations: Operations
    ranks: tuple[Rank, ...]
    explained: RowsOnDemand
    collectives: CollectiveIntervals
    averaged: Bools
    hosts: HostActivities

    @property
    def dependencies(self) -> Dependencies:
        """Dependencies between operations."""
        return self.explained.rows.dependencies

    @property
    def receives(self) -> Receives:
        """Receives of operations."""
        return self.explained.rows.receives

    @property
    def idle(self) -> IdleIntervals:
        """Idle intervals up to the last optimizers, which the windows of bubbles may end before."""
        return self.explained.rows.idle

    @property
    def tokens(self) -> TokenWaits:
        """Which operations waited for the token of which."""
        return self.explained.rows.tokens
