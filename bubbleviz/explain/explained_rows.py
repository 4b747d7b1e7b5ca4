"""Explained rows: the tables of an explanation that have rows for single operations.

They take more memory than a run itself. Where a run is several stretches only those of the ranks
that are replayed are kept; those of all are worked out once an output asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from bubbleviz.explain.causes.cause_times import Bubbles
from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.causes.idle import IdleIntervals
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.receives import Receives
from bubbleviz.model.columns import NONE, Bools, Ints, joined
from bubbleviz.model.operations import Operations
from bubbleviz.model.values import frozen


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
        dependencies, tokens = self.dependencies, self.tokens
        idle, bubbles = self.idle, self.bubbles
        return ExplainedRows(
            replace(dependencies, after=row(dependencies.after), before=row(dependencies.before)),
            replace(self.receives, operation=row(self.receives.operation)),
            replace(
                idle,
                rank=idle.rank + first_rank,
                before=row(idle.before),
                after=row(idle.after),
                peer_operation=row(idle.peer_operation),
            ),
            replace(
                bubbles,
                operations=operations,
                rank=bubbles.rank + first_rank,
                before=row(bubbles.before),
                after=row(bubbles.after),
                peer_operation=row(bubbles.peer_operation),
            ),
            replace(tokens, after=row(tokens.after), before=row(tokens.before)),
        )


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


def ready(rows: ExplainedRows) -> RowsOnDemand:
    """Return rows that are there already."""
    return RowsOnDemand(partial(_same, rows))


def _same(rows: ExplainedRows) -> ExplainedRows:
    return rows
