"""What slowdowns are worked out from, once anybody asks for them: a replay takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.align.waits import NEVER
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import Bubbles
from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.causes.idle import IdleIntervals
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.explained_rows import RowsOnDemand, ready
from bubbleviz.explain.receives import Receives
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import HostActivities, Operations, Rank
from bubbleviz.model.phase_masks import INFERENCE, run_kind
from bubbleviz.model.values import frozen

if TYPE_CHECKING:  # most reports hold no slowdowns, which take long to load
    from bubbleviz.explain.diagnosis.fault import Fault
    from bubbleviz.explain.diagnosis.findings import Diagnosis
    from bubbleviz.explain.slowdown.replay import Order, Replay, Work
    from bubbleviz.explain.slowdown.scenarios import Scenarios
    from bubbleviz.explain.slowdown.slowdowns import Slowdowns


@frozen(eq=False, shown=False)
class SlowdownSource:
    """What ranks did, and why it cannot be replayed, if it cannot.

    Attributes:
        operations: of all ranks.
        ranks: by number.
        explained: the tables that have rows for these.
        collectives: of all ranks.
        averaged: of each iteration, whether it is replayed.
        hosts: what launching threads did before late launches.
        numbers: of each iteration in the report, which a window cuts; -1 where it is left out.
        reason: why nothing is; empty where it is.
    """

    operations: Operations
    ranks: tuple[Rank, ...]
    explained: RowsOnDemand
    collectives: CollectiveIntervals
    averaged: Bools
    hosts: HostActivities
    numbers: Ints
    reason: str = ""

    @property
    def dependencies(self) -> Dependencies:
        """Dependencies between operations."""
        return self.explained.rows.dependencies

    @property
    def receives(self) -> Receives:
        """Receives of operations."""
        return self.explained.rows.receives

    @property
    def bubbles(self) -> Bubbles:
        """Idle intervals with their causes: how late hosts launched."""
        return self.explained.rows.bubbles

    @property
    def idle(self) -> IdleIntervals:
        """The same up to the last optimizers, which the bubbles' windows may end before."""
        return self.explained.rows.idle

    @property
    def tokens(self) -> TokenWaits:
        """Which operations waited for the token of which."""
        return self.explained.rows.tokens

    def of_ranks(self, chosen: Bools) -> SlowdownSource:
        """Return the same of some ranks, none of which takes anything from any other.

        Rows of operations are numbered anew, ranks are not.

        Args:
            chosen: of each rank.
        """
        kept = chosen[self.operations.rank]
        row = np.append(np.where(kept, np.cumsum(kept) - 1, NONE), NONE)
        operations = self.operations.take(kept)
        rows = self.explained.rows.of_ranks(chosen, self.operations.rank)
        collectives = self.collectives.take(chosen[self.collectives.rank])
        hosts = self.hosts.take(chosen[self.hosts.rank])
        return replace(
            self,
            operations=operations,
            explained=ready(rows.placed(lambda own: row[own], operations)),
            collectives=collectives.changed(operation=row[collectives.operation]),
            hosts=replace(hosts, operation=row[hosts.operation]),
        )

    @cached_property
    def slowdowns(self) -> Slowdowns | None:
        """How much stragglers cost; None where that is unknown."""
        from bubbleviz.explain.slowdown.slowdowns import slowdowns_of

        if self.scenarios is None:
            return None
        return slowdowns_of(self.scenarios, self._work[1])

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What makes iterations long; None where that is unknown."""
        from bubbleviz.explain.diagnosis.fault import beside_operations
        from bubbleviz.explain.diagnosis.findings import diagnose

        if self.scenarios is None:
            return None
        hosts = sorted({rank.host for rank in self.ranks})
        return diagnose(
            self.scenarios.work,
            self.scenarios.replay,
            self.scenarios.early_ns,
            host_of_rank=np.array([hosts.index(rank.host) for rank in self.ranks], np.int64),
            late_ns=self._delayed_ns(Cause.HOST) + self._work[2],
            profiler_ns=self._delayed_ns(Cause.PROFILER),
            eased=tuple(self._eased()),
            gap_ns=self._gap_ns(),
            hosts=beside_operations(
                self.hosts, distinct(self.operations.name_id), self.operations.phase
            ),
        )

    def _eased(self) -> Iterator[tuple[Fault, Replay]]:
        """Yield the faults that too few chunks are in flight, with the replay of more."""
        from bubbleviz.explain.diagnosis.shapes.token import ENOUGH, ONE_MORE, fault
        from bubbleviz.explain.slowdown.messages import all_token_waits, usual_depth
        from bubbleviz.explain.slowdown.replay import replay_of

        if not len(self.tokens):
            return
        rank = int(self.operations.rank[self.tokens.after[0]])
        depth = usual_depth(self.operations, self.tokens)
        for what, tokens in (
            (ONE_MORE, all_token_waits(self.operations, self.tokens, 1)),
            (ENOUGH, TokenWaits.none()),
        ):
            yield fault(what, rank, depth), replay_of(*self._work_with(tokens)[:2])

    def _gap_ns(self) -> Ints:
        """Return how long no kernel ran inside each row of the work that is an operation."""
        from bubbleviz.explain.slowdown.run_work import computing_rows

        rows = computing_rows(self.operations, self.averaged)
        gap_ns = np.zeros(len(self._work[0]), np.int64)
        of_operation = self.operations.busy_ns - self.operations.active_ns
        gap_ns[: len(rows)] = np.maximum(of_operation[rows], 0)
        return gap_ns

    def _delayed_ns(self, cause: Cause) -> Ints:
        """Return how late each row of the work started for one cause, its input being there."""
        from bubbleviz.explain.slowdown.replay import Role
        from bubbleviz.explain.slowdown.run_work import computing_rows, delays_of

        bubbles = self.bubbles.take((self.bubbles.cause == cause) & (self.bubbles.after >= 0))
        bubbles = bubbles.take(self._own(bubbles))
        # Where windows overlap, an idle interval is in both.
        bubbles = bubbles.take(bubbles.iteration == self.operations.iteration[bubbles.after])
        of_operation = group_sum(
            bubbles.after, len(self.operations), bubbles.end_ns - bubbles.start_ns
        )
        rows = computing_rows(self.operations, self.averaged)
        work, order, _ = self._work
        late_ns = np.zeros(len(work), np.int64)
        late_ns[: len(rows)] = of_operation[rows]
        last = np.flatnonzero(work.role == Role.OPTIMIZER)
        ready_ns = work.start_ns[last] - np.maximum(delays_of(work, order)[last], 0)
        late_ns[last] = self.idle.time_within(
            (cause,), work.rank[last], ready_ns, work.start_ns[last]
        )
        return late_ns

    def _own(self, bubbles: Bubbles) -> Bools:
        """Return which bubbles before operations are the rank's own, and did not travel to it.

        In a run that only goes forward, what a rank waits for its input has the causes of the idle
        time of the ranks before. It is over where the input is ready.
        """
        if run_kind(self.operations.phase) != INFERENCE:
            return np.ones(len(bubbles), bool)
        ready_ns = np.full(len(self.operations), NEVER, np.int64)
        before_ns = self.operations.end_ns[self.dependencies.before]
        np.maximum.at(ready_ns, self.dependencies.after, before_ns)
        return np.asarray(bubbles.start_ns >= ready_ns[bubbles.after])

    @cached_property
    def scenarios(self) -> Scenarios | None:
        """The replay of the averaged iterations, under any change; None where that is unknown."""
        from bubbleviz.explain.slowdown.slowdowns import scenarios_of_run

        return None if self.reason else scenarios_of_run(*self._work[:2])

    @cached_property
    def _work(self) -> tuple[Work, Order, Ints]:
        from bubbleviz.explain.slowdown.messages import all_token_waits

        return self._work_with(all_token_waits(self.operations, self.tokens))

    def _work_with(self, tokens: TokenWaits) -> tuple[Work, Order, Ints]:
        """Return the work of the averaged iterations, in which steps wait for some tokens."""
        from bubbleviz.explain.slowdown.slowdowns import work_of_run

        work, order, late_ns = work_of_run(
            self.operations,
            self.ranks,
            self.dependencies,
            self.receives,
            self.collectives,
            self.averaged,
            tokens,
        )
        return replace(work, iteration=self.numbers[work.iteration]), order, late_ns
