"""Explain: why there are bubbles, what bounds an iteration, and what removing delays would save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration, typical
from bubbleviz.count.rank_iterations import indices_of
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause_times import CauseTimes
from bubbleviz.explain.chunk_costs import ChunkCost, chunk_costs_of
from bubbleviz.explain.critical_path import CriticalPath, critical_path
from bubbleviz.explain.explained_rows import ExplainedRows, RowsOnDemand, ready
from bubbleviz.explain.graph import graph_of
from bubbleviz.explain.phase_times import PhaseTimes, phase_times_of
from bubbleviz.explain.receives import CommunicationTimes, Receives
from bubbleviz.explain.replayed_ranks import ReplayedRanks, replayed_ranks
from bubbleviz.explain.slowdown_source import SlowdownSource
from bubbleviz.explain.stretch import Stretch, stages_contradicted, stretches_of
from bubbleviz.explain.stretch_explanation import (
    StretchExplanation,
    causes_of_run,
    communication_of_run,
    explain_stretch,
    rows_of_run,
)
from bubbleviz.explain.what_if import WhatIf, what_if
from bubbleviz.model.columns import Bools, Ints, joined
from bubbleviz.model.phase_masks import among
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

#: Calls a function with each of some stretches, in their order; ``map``, or what is like it.
Each: TypeAlias = Callable[
    [Callable[[Stretch], StretchExplanation], Iterable[Stretch]], Iterable[StretchExplanation]
]


@frozen
class Explanation:
    """Why there are bubbles, and what bounds an iteration.

    Attributes:
        causes: idle time by cause.
        explained: the tables that have rows for single operations.
        listed_ratio: name of the ratio in whose windows bubbles are.
        received: of each iteration, how many receives it has whose input is known.
        communication: how long receives waited, and how long their transfers took.
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
    explained: RowsOnDemand
    listed_ratio: str
    received: Ints
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
    def bubbles(self) -> Bubbles:
        """The idle intervals in the headline's windows.

        Of a run of many ranks they are worked out when they are first asked for, as receives are.
        """
        return self.explained.rows.bubbles

    @property
    def receives(self) -> Receives:
        """How long single receives waited, and how long their transfers took."""
        return self.explained.rows.receives

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


def explain(run: Run, counts: Counts, each: Each = map) -> Explanation:
    """Return why a run has bubbles, and what bounds its typical iteration.

    Args:
        run: the merged profiles.
        counts: its ratios.
        each: explains stretches, here or on other machines.
    """
    part = replayed_part(run, counts)
    stretches = stretches_of(run, counts, None if part is None else part.chosen)
    return explained(run, counts, list(each(explain_stretch, stretches)), part)


def replayed_part(run: Run, counts: Counts) -> ReplayedRanks | None:
    """Return which ranks of a run are replayed; None for all."""
    return replayed_ranks(run.operations, run.ranks, _averaged(counts))


def explained(
    run: Run, counts: Counts, parts: Sequence[StretchExplanation], part: ReplayedRanks | None
) -> Explanation:
    """Return the explanation of a run whose stretches are explained.

    Args:
        run: the merged profiles.
        counts: its ratios.
        parts: of :func:`~bubbleviz.explain.stretch.stretches_of`, in their order.
        part: the ranks that are kept in these: of :func:`replayed_part`.
    """
    operations, averaged = run.operations, _averaged(counts)
    shown = typical(counts.iterations, counts.headline)
    kept = rows_of_run(parts, operations)
    crossing = np.logical_or.reduce([own.crossing for own in parts])
    whole = part is None or len(parts) == 1
    rows = ready(kept) if whole else RowsOnDemand(partial(_all_rows, run, counts))
    source = SlowdownSource(
        operations,
        run.ranks,
        rows,
        run.collectives,
        averaged,
        run.hosts,
        np.arange(len(averaged)),
        _no_replay_reason(run, crossing, shown),
    )
    replayed = source
    if part is not None:
        replayed = replace(source, explained=ready(kept)).of_ranks(part.chosen)
    reason = "" if shown is None else _no_path_reason(run, replayed, shown)
    path, changes = (None, ()) if reason else _path(replayed, shown, part)
    if path is not None and part is not None:
        path = path.of_whole(np.flatnonzero(part.chosen[operations.rank]), len(operations))
    return Explanation(
        causes=causes_of_run(parts),
        explained=rows,
        listed_ratio=kept.bubbles.ratio,
        received=np.sum([own.received for own in parts], axis=0),
        communication=communication_of_run(parts),
        phase_times=phase_times_of(
            [own.samples for own in parts], [own.first_row for own in parts]
        ),
        path=path,
        what_if=changes,
        no_path_reason=reason,
        slowdown_source=source,
        chunk_costs=chunk_costs_of(joined([own.chunks for own in parts])),
        replayed_ranks=part,
        replayed_source=None if part is None else replayed,
    )


def _all_rows(run: Run, counts: Counts) -> ExplainedRows:
    """Return the rows of all ranks of a run, whose stretches were explained without most."""
    return rows_of_run(list(map(explain_stretch, stretches_of(run, counts))), run.operations)


def _averaged(counts: Counts) -> Bools:
    """Return of each iteration whether it is averaged."""
    return np.array([i.averaged for i in counts.iterations], bool)


def _no_path_reason(run: Run, replayed: SlowdownSource, shown: Iteration) -> str:
    """Return why the critical path of an iteration is unknown; empty where it is not.

    Without known dependencies between ranks, each rank would stand alone.
    """
    operations = replayed.operations
    of_iteration = operations.iteration == shown.index
    count = int((of_iteration & among(operations.phase, WORK)).sum())
    if count > MOST_OPERATIONS:
        return (
            f"iteration {shown.name} holds {counted(count, 'operation')}; at most "
            f"{MOST_OPERATIONS:,} are replayed"
        )
    dependencies = replayed.dependencies
    crossing = (dependencies.remote & of_iteration[dependencies.after]).any()
    return _unordered_reason(run, shown, crossing=bool(crossing))


def _unordered_reason(run: Run, shown: Iteration, *, crossing: bool) -> str:
    """Return why it is unknown what operations of an iteration wait for; empty where it is not.

    Args:
        run: the merged profiles.
        shown: the iteration.
        crossing: whether any operation of it is known to take from another rank.
    """
    if stages_contradicted(run):
        return "the order of stages contradicts the data dependencies that they rest on"
    stages = {run.ranks[rank].stage for rank in indices_of(shown.ranks)}
    if len(shown.ranks) == 1 or stages == {0}:
        return ""
    if None in stages or not crossing:
        unknown = "stages" if None in stages else "microbatches"
        return f"dependencies between ranks are unknown, since {unknown} are unknown"
    return ""


def _no_replay_reason(run: Run, crossing: Bools, shown: Iteration | None) -> str:
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
    return _unordered_reason(run, shown, crossing=bool(crossing[shown.index]))


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
