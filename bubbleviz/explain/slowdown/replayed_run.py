"""The input of a replay: the tables of a run, and the explanation of individual operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from bubbleviz.align.arrivals import find_sends
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.communication_times import Receives
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, TableT, join_tables, scatter
from bubbleviz.model.operations import HostActivities, Operations, Rank

#: Columns in the explained tables that contain row numbers of the operations table.
_ROW_COLUMNS = ("operation", "before", "after", "peer_operation", "successor", "predecessor")


@dataclass(frozen=True, eq=False, repr=False)
class ExplainedRows:
    """Tables about individual operations, and about the idle time between them.

    Attributes:
        dependencies: Dependencies between operations.
        receives: The last receive of each operation whose receive and producer are both known.
        idle: Idle intervals of each rank between its earliest and its latest window.
        bubbles: Idle intervals in the windows of one ratio.
        tokens: Operations that wait for a token, and the operations that produce it.
    """

    dependencies: Dependencies
    receives: Receives
    idle: IdleIntervals
    bubbles: Bubbles
    tokens: Dependencies

    def select_ranks(self, is_selected: Bools, rank: Ints) -> ExplainedRows:
        """Return the tables restricted to the selected ranks.

        Args:
            is_selected: Mask of the ranks to select. They must not receive inputs from ranks that
                are not selected.
            rank: Rank of each operation.
        """
        return ExplainedRows(
            self.dependencies.take(is_selected[rank[self.dependencies.successor]]),
            self.receives.take(is_selected[rank[self.receives.operation]]),
            self.idle.take(is_selected[self.idle.rank]),
            self.bubbles.take(is_selected[self.bubbles.rank]),
            self.tokens.take(is_selected[rank[self.tokens.successor]]),
        )

    def renumber(
        self, get_row: Callable[[Ints], Ints], operations: Operations, first_rank: int = 0
    ) -> ExplainedRows:
        """Return the same tables with renumbered operation rows and rank indices.

        Args:
            get_row: Function that maps old operation rows to new rows, and -1 to -1.
            operations: The table that contains the new rows.
            first_rank: Number to add to rank indices.
        """
        tables = {name: renumber(table, get_row, first_rank) for name, table in vars(self).items()}
        rows = ExplainedRows(**tables)
        return replace(rows, bubbles=replace(rows.bubbles, operations=operations))


def renumber(table: TableT, get_row: Callable[[Ints], Ints], first_rank: int = 0) -> TableT:
    """Return a table with renumbered operation rows and rank indices.

    Args:
        table: One of the tables of :class:`ExplainedRows`.
        get_row: Function that maps old operation rows to new rows, and -1 to -1.
        first_rank: Number to add to rank indices.
    """
    columns = {
        name: get_row(column) for name, column in vars(table).items() if name in _ROW_COLUMNS
    }
    if "rank" in vars(table):
        columns["rank"] = vars(table)["rank"] + first_rank
    return type(table)(**{**vars(table), **columns})


def join_rows(parts: Sequence[ExplainedRows], operations: Operations) -> ExplainedRows:
    """Concatenate the tables of all stretches.

    Args:
        parts: Tables of each stretch, with the row numbers and rank indices of the run (see
            :meth:`ExplainedRows.renumber`).
        operations: Operations of the run, which the returned bubbles refer to.
    """
    bubbles = join_tables([part.bubbles for part in parts]).compact()
    return ExplainedRows(
        join_tables([part.dependencies for part in parts]),
        join_tables([part.receives for part in parts]),
        join_tables([part.idle for part in parts]).compact(),
        replace(bubbles, operations=operations),
        join_tables([part.tokens for part in parts]),
    )


def make_row_converter(first: int, count: int, elsewhere: Ints) -> Callable[[Ints], Ints]:
    """Return a function that converts operation rows of a stretch to operation rows of the run.

    Row ``i`` below ``count`` becomes ``first + i``, and row ``count + j`` becomes ``elsewhere[j]``.
    -1 stays -1.

    Args:
        first: Row in the run of the stretch's first operation.
        count: Number of operations in the stretch.
        elsewhere: Rows in the run of operations of other stretches.
    """

    def convert(row: Ints) -> Ints:
        """Convert rows of the stretch; -1 stays -1."""
        if not len(elsewhere):
            return np.where(row == NONE, NONE, row + first) if first else row
        is_elsewhere = row >= count
        run_row = np.where(row == NONE, NONE, row + first)
        run_row[is_elsewhere] = elsewhere[row[is_elsewhere] - count]
        return run_row

    return convert


@dataclass(frozen=True, eq=False, repr=False)
class ReplayedRun:
    """The input of a replay: what ranks did, and why they waited.

    Attributes:
        operations: Operations of all ranks.
        ranks: The ranks, by index.
        explained: Function that returns the per-operation tables.
        collectives: Collectives of all ranks.
        averaged: Mask of the iterations that are replayed.
        hosts: What launching threads were doing before late launches.
        numbers: Number of each iteration in the report, or -1 if it is outside the report's window.
        reason: Reason why the run is not replayed, or "" if it is replayed.
        paused: Mask of the iterations after which recording paused, or None if there are none.
        launch_gap_ns: Time inside operations during which no kernel ran, in ns, shape (iterations,
            ranks), or None if unknown.
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
        """Row of the send that belongs to each operation by name, or -1 if there is none."""
        return find_sends(self.operations)

    def select_ranks(self, is_selected: Bools, rows: ExplainedRows) -> ReplayedRun:
        """Return the run restricted to the selected ranks.

        Operation rows are renumbered. Rank indices do not change.

        Args:
            is_selected: Mask of the ranks to select. They must not receive inputs from ranks that
                are not selected.
            rows: Per-operation tables of at least the selected ranks.
        """
        is_included = is_selected[self.operations.rank]
        operations = self.operations.take(is_included)
        new_row = scatter(
            len(is_included) + 1, np.flatnonzero(is_included), np.arange(len(operations))
        )
        rows = rows.select_ranks(is_selected, self.operations.rank)
        rows = rows.renumber(lambda row: new_row[row], operations)
        collectives = self.collectives.take(is_selected[self.collectives.rank])
        hosts = self.hosts.take(is_selected[self.hosts.rank])
        return replace(
            self,
            operations=operations,
            explained=partial(_return_rows, rows),
            collectives=collectives.replace_columns(operation=new_row[collectives.operation]),
            hosts=replace(hosts, operation=new_row[hosts.operation]),
        )


def _return_rows(rows: ExplainedRows) -> ExplainedRows:
    """Return the argument. Unlike a lambda, a partial of this function can be pickled."""
    return rows
