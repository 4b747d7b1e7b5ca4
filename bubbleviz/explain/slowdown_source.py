"""What slowdowns are worked out from, once anybody asks for them: a replay takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from bubbleviz.align.waits import NEVER
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.forward_waits import TokenWaits, all_token_waits, usual_depth
from bubbleviz.explain.diagnosis.effects import effects_of
from bubbleviz.explain.diagnosis.faults import (
    ENOUGH,
    ONE_MORE,
    Evidence,
    Fault,
    beside_operations,
    token_fault,
)
from bubbleviz.explain.diagnosis.findings import Diagnosis, diagnose, diagnosed_times
from bubbleviz.explain.explained_rows import ExplainedRows, ReplayedRun, RowsOnDemand
from bubbleviz.explain.slowdown.replay import Order, Replay, Role, Work, replay_of
from bubbleviz.explain.slowdown.run_work import computing_rows, delays_of, early_starts, work_of_run
from bubbleviz.explain.slowdown.slowdowns import Scenarios, Slowdowns, scenarios_of, slowdowns_of
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.phase_masks import INFERENCE, run_kind
from bubbleviz.model.values import frozen


@frozen(eq=False, shown=False)
class SlowdownSource(ReplayedRun):
    """What ranks did, and why it cannot be replayed, if it cannot.

    Attributes:
        numbers: of each iteration in the report, which a window cuts; -1 where it is left out.
        reason: why nothing is; empty where it is.
    """

    numbers: Ints
    reason: str = ""

    def of_ranks(self, chosen: Bools, rows: ExplainedRows) -> SlowdownSource:
        """Return the same of some ranks, none of which takes anything from any other.

        Rows of operations are numbered anew, ranks are not.

        Args:
            chosen: of each rank.
            rows: the tables, with those of these ranks at least.
        """
        kept = chosen[self.operations.rank]
        row = np.append(np.where(kept, np.cumsum(kept) - 1, NONE), NONE)
        operations = self.operations.take(kept)
        rows = rows.of_ranks(chosen, self.operations.rank)
        rows = rows.placed(lambda own: row[own], operations)
        collectives = self.collectives.take(chosen[self.collectives.rank])
        hosts = self.hosts.take(chosen[self.hosts.rank])
        return replace(
            self,
            operations=operations,
            explained=RowsOnDemand(lambda: rows),
            collectives=collectives.changed(operation=row[collectives.operation]),
            hosts=replace(hosts, operation=row[hosts.operation]),
        )

    @cached_property
    def scenarios(self) -> Scenarios | None:
        """The replay of the averaged iterations, under any change; None where that is unknown."""
        if self.reason:
            return None
        work, order, _ = self._work
        return scenarios_of(work, order, early_starts(work, order))

    @cached_property
    def slowdowns(self) -> Slowdowns | None:
        """How much stragglers cost; None where that is unknown."""
        return None if self.scenarios is None else slowdowns_of(self.scenarios)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What makes iterations long; None where that is unknown."""
        scenarios = self.scenarios
        if scenarios is None:
            return None
        work, operations = scenarios.work, self.operations
        rows = computing_rows(operations, self.averaged)
        gap_ns = np.zeros(len(work), np.int64)
        gap_ns[: len(rows)] = np.maximum(operations.busy_ns - operations.active_ns, 0)[rows]
        hosts = sorted({rank.host for rank in self.ranks})
        seen = Evidence(
            work,
            diagnosed_times(work),
            effects_of(work),
            np.array([hosts.index(rank.host) for rank in self.ranks], np.int64),
            self._delayed_ns(Cause.HOST) + self._work[2],
            self._delayed_ns(Cause.PROFILER),
            gap_ns,
            beside_operations(self.hosts, distinct(operations.name_id), operations.phase),
        )
        return diagnose(seen, scenarios.replay, scenarios.early_ns, tuple(self._eased()))

    def _eased(self) -> Iterator[tuple[Fault, Replay]]:
        """Yield the faults that too few chunks are in flight, with the replay of more."""
        if not len(self.tokens):
            return
        rank = int(self.operations.rank[self.tokens.after[0]])
        depth = usual_depth(self.operations, self.tokens)
        for what, tokens in (
            (ONE_MORE, all_token_waits(self.operations, self.tokens, 1)),
            (ENOUGH, TokenWaits.none()),
        ):
            yield token_fault(what, rank, depth), replay_of(*self._work_with(tokens)[:2])

    def _delayed_ns(self, cause: Cause) -> Ints:
        """Return how late each row of the work started for one cause, its input being there."""
        operations, bubbles = self.operations, self.explained.rows.bubbles
        bubbles = bubbles.take((bubbles.cause == cause) & (bubbles.after >= 0))
        if run_kind(operations.phase) == INFERENCE:
            # In a run that only goes forward, what a rank waits for its input has the causes of the
            # idle time of the ranks before. It is over where the input is ready.
            ready_ns = np.full(len(operations), NEVER, np.int64)
            before_ns = operations.end_ns[self.dependencies.before]
            np.maximum.at(ready_ns, self.dependencies.after, before_ns)
            bubbles = bubbles.take(bubbles.start_ns >= ready_ns[bubbles.after])
        # Where windows overlap, an idle interval is in both.
        bubbles = bubbles.take(bubbles.iteration == operations.iteration[bubbles.after])
        of_operation = group_sum(bubbles.after, len(operations), bubbles.end_ns - bubbles.start_ns)
        rows = computing_rows(operations, self.averaged)
        work, order, _ = self._work
        late_ns = np.zeros(len(work), np.int64)
        late_ns[: len(rows)] = of_operation[rows]
        last = np.flatnonzero(work.role == Role.OPTIMIZER)
        ready_ns = work.start_ns[last] - np.maximum(delays_of(work, order)[last], 0)
        late_ns[last] = self.idle.time_within(
            (cause,), work.rank[last], ready_ns, work.start_ns[last]
        )
        return late_ns

    @cached_property
    def _work(self) -> tuple[Work, Order, Ints]:
        return self._work_with(all_token_waits(self.operations, self.tokens))

    def _work_with(self, tokens: TokenWaits) -> tuple[Work, Order, Ints]:
        """Return the work of the averaged iterations, in which steps wait for some tokens."""
        work, order, late_ns = work_of_run(self, self.averaged, tokens)
        return replace(work, iteration=self.numbers[work.iteration]), order, late_ns
