"""Explain: why there are bubbles, what bounds an iteration, and what removing delays would save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.align.arrivals import arrivals
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration, typical
from bubbleviz.count.rank_iterations import indices_of
from bubbleviz.count.running_time import time_within
from bubbleviz.explain.causes.bubbles import Bubbles, with_host_activity
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import CauseTimes, causes_of
from bubbleviz.explain.causes.collective_waits import collective_times, collective_waits
from bubbleviz.explain.chunk_costs import ChunkCost, chunk_costs_of
from bubbleviz.explain.critical_path import CriticalPath, critical_path
from bubbleviz.explain.dependencies import Dependencies, dependencies_of, inputs_of
from bubbleviz.explain.graph import graph_of
from bubbleviz.explain.phase_times import PhaseTimes, phase_times_of
from bubbleviz.explain.receives import CommunicationTimes, Receives, communication_of, receives_of
from bubbleviz.explain.replayed_ranks import ReplayedRanks, replayed_ranks
from bubbleviz.explain.slowdown_source import SlowdownSource
from bubbleviz.explain.transfers import gaps_of, transfers_of
from bubbleviz.explain.what_if import WhatIf, what_if
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import WORK
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen

if TYPE_CHECKING:  # most reports hold no slowdowns, which take long to load
    from bubbleviz.explain.diagnosis.findings import Diagnosis
    from bubbleviz.explain.slowdown.slowdowns import Slowdowns

#: Iterations with more operations than this are not replayed: it takes seconds.
MOST_OPERATIONS = 500_000
#: Of more operations over all iterations a replay takes half a minute and several gigabytes.
MOST_REPLAYED = 5_000_000


@frozen
class Explanation:
    """Why there are bubbles, and what bounds an iteration.

    Attributes:
        causes: idle time by cause.
        bubbles: the idle intervals in the headline's windows.
        receives: how long receives waited, and how long their transfers took.
        communication: the same by iteration and rank.
        phase_times: how long operations take.
        path: critical path of the typical iteration; None where it is unknown.
        what_if: the typical iteration under some changes; empty where they are unknown.
        no_path_reason: why these are unknown, where nothing else in the report gives the reason;
            else empty.
        slowdown_source: what slowdowns over all iterations are worked out from; None in a report
            that has none.
        replayed_ranks: what path, what-if and diagnosis are worked out of; None for all.
        replayed_source: the part of ``slowdown_source`` that these have; None for all of it.
        chunk_costs: how long forwards of so many tokens take, by virtual stage; empty where no
            name tells their tokens.
    """

    causes: CauseTimes
    bubbles: Bubbles
    receives: Receives
    communication: CommunicationTimes
    phase_times: PhaseTimes
    path: CriticalPath | None
    what_if: tuple[WhatIf, ...]
    no_path_reason: str = ""
    slowdown_source: SlowdownSource | None = None
    chunk_costs: tuple[ChunkCost, ...] = ()
    replayed_ranks: ReplayedRanks | None = None
    replayed_source: SlowdownSource | None = None

    @property
    def slowdowns(self) -> Slowdowns | None:
        """What stragglers cost over all averaged iterations; None where that is unknown.

        It is worked out when it is first asked for, which takes seconds for a million operations.
        """
        return None if self.slowdown_source is None else self.slowdown_source.slowdowns

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What makes the averaged iterations long; None where that is unknown.

        It is worked out when it is first asked for.
        """
        source = self.replayed_source or self.slowdown_source
        return None if source is None else source.diagnosis


def explain(run: Run, counts: Counts) -> Explanation:
    """Return why a run has bubbles, and what bounds its typical iteration.

    Args:
        run: the merged profiles.
        counts: its ratios.
    """
    operations = run.operations
    dependencies = dependencies_of(operations, run.ranks)
    stages_known = not _stages_contradicted(run)
    if not stages_known:
        dependencies = dependencies.take(np.zeros(len(dependencies), bool))
    inputs = inputs_of(operations, dependencies, stages_known=stages_known)
    collectives = collective_waits(run.collectives, operations)
    known = arrivals(operations)
    causes, bubbles, idle, tokens = causes_of(run, counts, inputs, known, collectives)
    bubbles = with_host_activity(bubbles, run.hosts)
    receives = receives_of(operations, inputs, known, idle)
    transfers = transfers_of(operations, inputs, known, receives)
    bounds = _communication_bounds(run, counts, bubbles.ratio, receives)
    averaged = np.array([i.averaged for i in counts.iterations], bool)
    stage = np.array([NONE if r.stage is None else r.stage for r in run.ranks], np.int64)
    shown = typical(counts.iterations, counts.headline)
    source = SlowdownSource(
        operations,
        run.ranks,
        dependencies,
        receives,
        run.collectives,
        averaged,
        bubbles,
        idle,
        run.hosts,
        np.arange(len(averaged)),
        _no_replay_reason(run, dependencies, shown),
        tokens,
    )
    part = replayed_ranks(operations, run.ranks, averaged)
    replayed = source if part is None else source.of_ranks(part.chosen)
    reason = "" if shown is None else _no_path_reason(run, replayed, shown)
    path, changes = (None, ()) if reason else _path(replayed, shown, part)
    if path is not None and part is not None:
        path = path.of_whole(np.flatnonzero(part.chosen[operations.rank]), len(operations))
    return Explanation(
        causes,
        bubbles,
        receives,
        communication_of(
            operations,
            receives,
            collective_times(
                collectives,
                bounds,
                causes.idle_ns[bubbles.ratio][:, :, Cause.COLLECTIVE] + run.collective_gap_ns,
            ),
            *(
                time_within(run.running, column, *bounds)
                for column in (run.running.communication_ns, run.running.overlapped_ns)
            ),
        ),
        phase_times_of(
            operations, stage, averaged, transfers, gaps_of(operations, inputs, transfers)
        ),
        path,
        changes,
        reason,
        source,
        chunk_costs_of(operations, stage, averaged),
        part,
        None if part is None else replayed,
    )


def _communication_bounds(
    run: Run, counts: Counts, ratio: str, receives: Receives
) -> tuple[Ints, Ints]:
    """Return since and until when the communication of iterations counts on ranks.

    That is a rank's window of a ratio, and from the start of the iteration's first receive on
    where that comes before. Where an iteration has no such window, its last work ends it.
    """
    window, extents = counts.windows[ratio], counts.extents
    known = window.known[:, None] & extents.present
    low_ns = np.where(known, window.start_ns, extents.first_ns)
    high_ns = np.maximum(np.where(known, window.end_ns, extents.last_ns), low_ns)
    iteration = run.operations.iteration[receives.operation]
    some = np.flatnonzero(iteration >= 0)
    rank = run.operations.rank[receives.operation[some]]
    np.minimum.at(low_ns, (iteration[some], rank), receives.start_ns[some])
    return low_ns, high_ns


def _stages_contradicted(run: Run) -> bool:
    """Return whether the given order of stages contradicts what follows from it."""
    return any(note.kind is LimitationKind.STAGES_CONTRADICTED for note in run.limitations)


def _no_path_reason(run: Run, replayed: SlowdownSource, shown: Iteration) -> str:
    """Return why the critical path of an iteration is unknown; empty where it is not.

    Without known dependencies between ranks, each rank would stand alone.
    """
    operations = replayed.operations
    of_iteration = operations.iteration == shown.index
    count = int((of_iteration & np.isin(operations.phase, WORK)).sum())
    if count > MOST_OPERATIONS:
        return (
            f"iteration {shown.name} holds {counted(count, 'operation')}; at most "
            f"{MOST_OPERATIONS:,} are replayed"
        )
    return _unordered_reason(run, operations, replayed.dependencies, shown)


def _unordered_reason(
    run: Run, operations: Operations, dependencies: Dependencies, shown: Iteration
) -> str:
    """Return why it is unknown what operations of an iteration wait for; empty where it is not."""
    of_iteration = operations.iteration == shown.index
    if _stages_contradicted(run):
        return "the order of stages contradicts the data dependencies that they rest on"
    stages = {run.ranks[rank].stage for rank in indices_of(shown.ranks)}
    if len(shown.ranks) == 1 or stages == {0}:
        return ""
    if None in stages or not (dependencies.remote & of_iteration[dependencies.after]).any():
        unknown = "stages" if None in stages else "microbatches"
        return f"dependencies between ranks are unknown, since {unknown} are unknown"
    return ""


def _no_replay_reason(run: Run, dependencies: Dependencies, shown: Iteration | None) -> str:
    """Return why iterations cannot be replayed over all ranks; empty where they can."""
    if shown is None or not shown.averaged:
        return "no complete training iteration was recorded"
    if not run.paired:
        return "it is unknown which iterations of the ranks are one"
    if not _comparable(shown):
        return "the ranks share no clock"
    if len(run.operations) > MOST_REPLAYED:
        return (
            f"the run holds {counted(len(run.operations), 'operation')}; at most "
            f"{MOST_REPLAYED:,} are replayed"
        )
    return _unordered_reason(run, run.operations, dependencies, shown)


def _path(
    source: SlowdownSource, shown: Iteration | None, part: ReplayedRanks | None
) -> tuple[CriticalPath | None, tuple[WhatIf, ...]]:
    """Return path and what-if of the typical iteration, where its ranks share a clock."""
    if shown is None or not _comparable(shown):
        return None, ()
    operations = source.operations
    graph = graph_of(
        operations,
        source.ranks,
        source.dependencies,
        source.receives,
        source.collectives,
        source.idle,
        shown.index,
        source.tokens,
    )
    ranks = [rank for rank in indices_of(shown.ranks) if part is None or part.chosen[rank]]
    return (
        critical_path(graph, len(operations), source.idle, shown.index),
        what_if(graph, operations, len(ranks)),
    )


def _comparable(iteration: Iteration) -> bool:
    ratio = iteration.ratios.get("schedule")
    return ratio is not None and ratio.value is not None
