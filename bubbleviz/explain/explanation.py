"""Explain: why there are bubbles, what bounds an iteration, and what removing delays would save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.align.waits import arrivals
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration, typical
from bubbleviz.count.rank_iterations import indices_of, joined_ranks, stage_and_pipeline
from bubbleviz.explain import phase_times
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import Bubbles, CauseTimes, causes_of, with_host_activity
from bubbleviz.explain.dependencies import dependencies_of, inputs_of
from bubbleviz.explain.diagnosis.findings import Diagnosis
from bubbleviz.explain.explained_rows import ExplainedRows, RowsOnDemand, joined_rows, moved_rows
from bubbleviz.explain.graph import CriticalPath, critical_path, graph_of
from bubbleviz.explain.phase_times import (
    ChunkCost,
    CommunicationTimes,
    PhaseSamples,
    PhaseTimes,
    Receives,
)
from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.explain.slowdown_source import SlowdownSource
from bubbleviz.explain.stretch import (
    ReplayedRanks,
    Stretch,
    replayed_ranks,
    stages_contradicted,
    stretches_of,
)
from bubbleviz.explain.what_if import WhatIf, what_if
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import WORK
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen

# The explanation of one stretch, and what it hands on to that of the run.
#
# :func:`explain_stretch` looks at nothing else, so that it runs wherever the ranks of a stretch
# are; what it returns is small beside them.


@frozen(eq=False, shown=False)
class StretchExplanation:
    """What is explained of one stretch.

    Attributes:
        first_rank: its first rank in the run.
        first_row: its first operation in the run.
        count: its operations.
        elsewhere: as of :class:`~bubbleviz.explain.stretch.Stretch`.
        idle_ns: idle time by cause, as of :class:`.CauseTimes`.
        communication: of its ranks.
        samples: what phase times are worked out from.
        received: of each iteration, how many receives it has.
        crossing: of each iteration, whether any operation takes from another rank.
        kept: rows of the ranks that are kept, with numbers of the stretch.
    """

    first_rank: int
    first_row: int
    count: int
    elsewhere: Ints
    idle_ns: Mapping[str, Ints]
    communication: CommunicationTimes
    samples: PhaseSamples
    received: Ints
    crossing: Bools
    kept: ExplainedRows


def explain_stretch(stretch: Stretch) -> StretchExplanation:
    """Return why the ranks of a stretch were idle, and how long its operations took.

    Args:
        stretch: whole pipelines of a run.
    """
    operations, averaged = stretch.operations, stretch.averaged
    dependencies = dependencies_of(operations, stretch.ranks)
    if not stretch.stages_known:
        dependencies = dependencies.take(slice(0))
    inputs = inputs_of(
        operations, dependencies, stages_known=stretch.stages_known, passing=stretch.passing
    )
    known = arrivals(operations)
    causes, bubbles, idle, tokens = causes_of(stretch, inputs, known)
    bubbles = with_host_activity(bubbles, stretch.hosts)
    receives = phase_times.receives_of(operations, inputs, known, idle)
    stage, _ = stage_and_pipeline(stretch.ranks)
    samples = phase_times.phase_samples_of(
        operations, stage, averaged, receives, inputs, known, stretch.first_row
    )
    iterations = len(averaged)
    received = operations.iteration[receives.operation]
    crossing = np.zeros(iterations + 1, bool)
    crossing[operations.iteration[dependencies.after[dependencies.remote]]] = True
    rows = ExplainedRows(dependencies, receives, idle, bubbles, tokens)
    if not stretch.kept.all():
        rows = rows.of_ranks(stretch.kept, operations.rank)
    return StretchExplanation(
        first_rank=stretch.first_rank,
        first_row=stretch.first_row,
        count=len(operations),
        elsewhere=stretch.elsewhere,
        idle_ns=causes.idle_ns,
        communication=phase_times.communication_of(
            stretch, receives, causes.idle_ns[stretch.listed][:, :, Cause.COLLECTIVE]
        ),
        samples=samples,
        received=np.bincount(received[received >= 0], minlength=iterations),
        crossing=crossing[:iterations],
        kept=rows.placed(lambda row: row, operations.take(slice(0))),
    )


def rows_of_run(parts: Sequence[StretchExplanation], operations: Operations) -> ExplainedRows:
    """Return the kept rows of all stretches, with the numbers of the run.

    Args:
        parts: the stretches of a run, in their order.
        operations: of the run.
    """
    return joined_rows(
        [
            part.kept.placed(
                moved_rows(part.first_row, part.count, part.elsewhere), operations, part.first_rank
            )
            for part in parts
        ]
    )


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
    operations = run.operations
    averaged = np.array([i.averaged for i in counts.iterations], bool)
    part = replayed_ranks(operations, run.ranks, averaged)
    chosen = None if part is None else part.chosen
    parts = list(each(explain_stretch, stretches_of(run, counts, chosen)))
    shown = typical(counts.iterations, counts.headline)
    kept = rows_of_run(parts, operations)
    crossing = np.logical_or.reduce([own.crossing for own in parts])
    whole = part is None or len(parts) == 1
    rows = RowsOnDemand((lambda: kept) if whole else partial(_all_rows, run, counts))
    source = replayed = SlowdownSource(
        operations,
        run.ranks,
        rows,
        run.collectives,
        averaged,
        run.hosts,
        np.arange(len(averaged)),
        _no_replay_reason(run, crossing, shown),
    )
    if part is not None:
        replayed = source.of_ranks(part.chosen, kept)
    reason = "" if shown is None else _no_path_reason(run, replayed, shown)
    path: CriticalPath | None = None
    changes: tuple[WhatIf, ...] = ()
    if not reason and shown is not None and _comparable(shown):
        graph = graph_of(replayed, shown.index)
        ranks = [r for r in indices_of(shown.ranks) if chosen is None or chosen[r]]
        path = critical_path(graph, replayed, shown.index)
        changes = what_if(graph, replayed.operations, len(ranks))
        if part is not None:
            # Rows of the run, of which a part is replayed.
            of_part = np.flatnonzero(part.chosen[operations.rank])
            slack_ns = np.full(len(operations), NONE, np.int64)
            slack_ns[of_part] = path.slack_ns
            path = replace(path, operations=of_part[path.operations], slack_ns=slack_ns)
    causes = joined_ranks([own.idle_ns for own in parts])
    return Explanation(
        causes=CauseTimes(dict(zip(parts[0].idle_ns, causes, strict=True))),
        explained=rows,
        listed_ratio=kept.bubbles.ratio,
        received=np.sum([own.received for own in parts], axis=0),
        communication=CommunicationTimes(*joined_ranks([vars(p.communication) for p in parts])),
        phase_times=phase_times.phase_times_of([own.samples for own in parts]),
        path=path,
        what_if=changes,
        no_path_reason=reason,
        slowdown_source=source,
        chunk_costs=phase_times.chunk_costs_of(
            operations, stage_and_pipeline(run.ranks)[0], averaged
        ),
        replayed_ranks=part,
        replayed_source=None if part is None else replayed,
    )


def _all_rows(run: Run, counts: Counts) -> ExplainedRows:
    """Return the rows of all ranks of a run, whose stretches were explained without most."""
    return rows_of_run(list(map(explain_stretch, stretches_of(run, counts))), run.operations)


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


def _comparable(iteration: Iteration) -> bool:
    ratio = iteration.ratios.get("schedule")
    return ratio is not None and ratio.value is not None
