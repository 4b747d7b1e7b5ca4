"""What slowdowns are worked out from, once anybody asks for them: a replay takes seconds."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.receives import Receives
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import Bools
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.values import frozen

if TYPE_CHECKING:  # most reports hold no slowdowns, which take long to load
    from bubbleviz.explain.slowdown.replay import Order
    from bubbleviz.explain.slowdown.scenarios import Scenarios
    from bubbleviz.explain.slowdown.slowdowns import Slowdowns
    from bubbleviz.explain.slowdown.work import Work


@frozen(eq=False, shown=False)
class SlowdownSource:
    """What ranks did, and why it cannot be replayed, if it cannot.

    Attributes:
        operations: of all ranks.
        ranks: by number.
        dependencies: between operations.
        receives: of these.
        collectives: of all ranks.
        averaged: of each iteration, whether it is replayed.
        reason: why nothing is; empty where it is.
    """

    operations: Operations
    ranks: tuple[Rank, ...]
    dependencies: Dependencies
    receives: Receives
    collectives: CollectiveIntervals
    averaged: Bools
    reason: str = ""

    @cached_property
    def slowdowns(self) -> Slowdowns | None:
        """How much stragglers cost; None where that is unknown."""
        from bubbleviz.explain.slowdown.slowdowns import slowdowns_of

        if self.scenarios is None:
            return None
        return slowdowns_of(self.scenarios, self._work[1])

    @cached_property
    def scenarios(self) -> Scenarios | None:
        """The replay of the averaged iterations, under any change; None where that is unknown."""
        from bubbleviz.explain.slowdown.run_slowdowns import scenarios_of_run

        return None if self.reason else scenarios_of_run(*self._work)

    @cached_property
    def _work(self) -> tuple[Work, Order]:
        from bubbleviz.explain.slowdown.run_slowdowns import work_of_run

        return work_of_run(
            self.operations,
            self.ranks,
            self.dependencies,
            self.receives,
            self.collectives,
            self.averaged,
        )
