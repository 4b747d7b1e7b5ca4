"""Explain: why there are bubbles, what bounds an iteration, and what removing delays would save."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration, choose_typical
from bubbleviz.count.rank_iterations import list_indices
from bubbleviz.count.rank_slices import join_ranks, list_stages_and_pipelines
from bubbleviz.count.summary import compute_training_overlaps
from bubbleviz.explain import phase_times
from bubbleviz.explain import stretch as stretches
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause_times import CauseTimes
from bubbleviz.explain.changes import Change, replay_changes
from bubbleviz.explain.chunk_costs import ChunkCost, chunk_costs_of
from bubbleviz.explain.communication_times import CommunicationTimes, Receives
from bubbleviz.explain.diagnosis.findings import Diagnosis, build_diagnosis
from bubbleviz.explain.path import CriticalPath, build_graph, find_critical_path
from bubbleviz.explain.phase_times import PhaseTimes
from bubbleviz.explain.replayed_ranks import ReplayedRanks, choose_replayed_ranks
from bubbleviz.explain.slowdown.replayed_run import (
    ExplainedRows,
    ReplayedRun,
    joined_rows,
)
from bubbleviz.explain.slowdown.slowdowns import (
    Scenarios,
    Slowdowns,
    scenarios_of_run,
    slowdowns_of,
)
from bubbleviz.explain.slowdown.start_up import without_start_up
from bubbleviz.explain.stage_layers import layout_question
from bubbleviz.explain.stretch_explanation import StretchExplanation, explain_stretch
from bubbleviz.model.columns import Ints
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK
from bubbleviz.model.texts import format_count

if TYPE_CHECKING:
    from bubbleviz.schedules.layout.best_layouts import LayoutQuestion

#: Iterations with more operations than this are not replayed: it takes seconds.
MOST_OPERATIONS = 500_000
#: Of more operations over all iterations a replay takes half a minute and several gigabytes.
MOST_REPLAYED = 5_000_000

#: Calls a function with each of some stretches, in their order; ``map``, or what is like it.
Each: TypeAlias = Callable[
    [Callable[[stretches.Stretch], StretchExplanation], Iterable[stretches.Stretch]],
    Iterable[StretchExplanation],
]


@dataclass(frozen=True)
class Explanation:
    """Why there are bubbles, and what bounds an iteration.

    Attributes:
        causes: idle time by cause.
        explained: returns the tables that have rows for single operations.
        listed_ratio: name of the ratio in whose windows bubbles are.
        received: of each iteration, how many receives it has whose input is known.
        communication: how long receives waited, and how long their transfers took.
        phase_times: how long operations take.
        path: Critical path of the typical iteration, or None if it is unknown.
        changes: The typical iteration under each change, or empty if they are unknown.
        no_path_reason: Reason why path and changes are unknown, or "" if they are known or another
            part of the report gives the reason.
        slowdown_source: Input of the slowdowns over all iterations, or None if the report has no
            slowdowns.
        replayed_ranks: Ranks from which path, changes and diagnosis are computed, or None for all.
        replayed_source: The part of ``slowdown_source`` that covers these ranks, or None for all.
        chunk_costs: Duration of forwards by number of tokens, per virtual stage. Empty if names
            do not contain numbers of tokens.
        layout: The layers of the stages, or None if they are unknown.
        ran: name of the schedule that ran; None where it is not known.
        period_ns: mean time from one iteration to the next, where training iterations overlap; None
            where not.
    """

    causes: CauseTimes
    explained: Callable[[], ExplainedRows]
    listed_ratio: str
    received: Ints
    communication: CommunicationTimes
    phase_times: PhaseTimes
    path: CriticalPath | None
    changes: tuple[Change, ...]
    no_path_reason: str = ""
    slowdown_source: ReplayedRun | None = None
    chunk_costs: tuple[ChunkCost, ...] = ()
    replayed_ranks: ReplayedRanks | None = None
    replayed_source: ReplayedRun | None = None
    layout: LayoutQuestion | None = None
    ran: str | None = None
    period_ns: float | None = None

    @property
    def bubbles(self) -> Bubbles:
        """The idle intervals in the headline's windows.

        Of a run of many ranks they are worked out when they are first asked for, as receives are.
        """
        return self.explained().bubbles

    @property
    def receives(self) -> Receives:
        """How long single receives waited, and how long their transfers took."""
        return self.explained().receives

    @cached_property
    def scenarios(self) -> Scenarios | None:
        """The averaged iterations of all ranks, to be replayed; None where that is unknown.

        They are worked out when they are first asked for, which takes seconds for a million
        operations.
        """
        return None if self.slowdown_source is None else scenarios_of_run(self.slowdown_source)

    @cached_property
    def slowdowns(self) -> Slowdowns | None:
        """What stragglers cost over all averaged iterations; None where that is unknown."""
        return None if self.scenarios is None else slowdowns_of(self.scenarios)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What makes the averaged iterations long; None where that is unknown."""
        part, source = self.replayed_source, self.replayed_source or self.slowdown_source
        scenarios = self.scenarios if part is None else scenarios_of_run(part)
        if source is None or scenarios is None:
            return None
        return build_diagnosis(source, scenarios, self.layout, self.ran, self.period_ns)


def _every_row(run: Run, counts: Counts) -> ExplainedRows:
    """Return the rows of all ranks of a run whose stretches were explained without most of them."""
    whole = map(explain_stretch, stretches.stretches_of(run, counts))
    return joined_rows([part.kept for part in whole], run.operations)


def read_once(read: Callable[[], ExplainedRows], cache: list[ExplainedRows]) -> ExplainedRows:
    """Return explained rows from a cache, which is filled at the first call.

    Args:
        read: Function that makes the rows.
        cache: List that is empty, or has the rows as its only entry.
    """
    if not cache:
        cache.append(read())
    return cache[0]


def explain(run: Run, counts: Counts, each: Each = map) -> Explanation:
    """Return why a run has bubbles, and what bounds its typical iteration.

    Args:
        run: the merged profiles.
        counts: its ratios.
        each: explains stretches, here or on other machines.
    """
    operations, (stage, pipeline) = run.operations, list_stages_and_pipelines(run.ranks)
    averaged = np.array([i.averaged for i in counts.iterations], bool)
    part = choose_replayed_ranks(operations, run.ranks, averaged)
    chosen = None if part is None else part.chosen
    parts = list(each(explain_stretch, stretches.stretches_of(run, counts, chosen)))
    shown = choose_typical(counts.iterations, counts.headline)
    kept = joined_rows([part.kept for part in parts], operations)
    crossing = np.logical_or.reduce([own.crossing for own in parts])
    unordered = ""
    if shown is not None:
        unordered = _unordered_reason(run, shown, crossing=bool(crossing[shown.index]))
    causes = join_ranks([own.idle_ns for own in parts])
    communication = join_ranks([vars(own.communication) for own in parts])
    received = np.sum([own.received for own in parts], axis=0)
    ratios = tuple(parts[0].idle_ns)
    times = phase_times.phase_times_of(operations, stage, averaged, [own.samples for own in parts])
    # Partials of functions of a module: reports are pickled.
    lacking = part is not None and len(parts) > 1
    rows = partial(read_once, partial(_every_row, run, counts), [] if lacking else [kept])
    source = replayed = ReplayedRun(
        operations,
        run.ranks,
        rows,
        without_start_up(run.collectives, operations, averaged),
        averaged,
        run.hosts,
        np.arange(len(averaged)),
        _no_replay_reason(run, shown) or unordered,
        counts.extents.paused,
        run.gap_ns if run.has_kernels else None,
    )
    if part is not None:
        replayed = source.of_ranks(part.chosen, kept)
    reason = unordered
    if shown is not None:
        own = replayed.operations
        count = int(((own.iteration == shown.index) & mask_phases(own.phase, WORK)).sum())
        reason = _too_many(f"iteration {shown.name}", count, MOST_OPERATIONS) or unordered
    path: CriticalPath | None = None
    changes: tuple[Change, ...] = ()
    if not reason and shown is not None and _comparable(shown):
        graph = build_graph(replayed, shown.index)
        ranks = [r for r in list_indices(shown.ranks) if chosen is None or chosen[r]]
        path = find_critical_path(graph, replayed.explained().idle, shown.index)
        changes = replay_changes(graph, replayed.operations, len(ranks))
        if part is not None:
            # Rows of the run, of which a part is replayed.
            of_part = np.flatnonzero(part.chosen[operations.rank])
            path = replace(
                path, operations=of_part[path.operations], replayed=of_part[path.replayed]
            )
    if shown is not None:
        kinds = phase_times.of_slowest_pipeline(times.kinds, operations, pipeline, shown.index)
        times = replace(times, kinds=kinds)
    layout: LayoutQuestion | None = None
    if run.layers and shown is not None:
        layout = layout_question(run.layers, times, shown.microbatches)
    overlapping = counts.headline == "period" and compute_training_overlaps(counts.iterations)
    return Explanation(
        causes=CauseTimes(dict(zip(ratios, causes, strict=True))),
        explained=rows,
        listed_ratio=kept.bubbles.ratio,
        received=received,
        communication=CommunicationTimes(*communication),
        phase_times=times,
        path=path,
        changes=changes,
        no_path_reason=reason,
        slowdown_source=source,
        chunk_costs=chunk_costs_of(operations, stage, averaged),
        replayed_ranks=part,
        replayed_source=None if part is None else replayed,
        layout=layout,
        period_ns=counts.summary.window_ns["period"].mean if overlapping else None,
    )


def _unordered_reason(run: Run, shown: Iteration, *, crossing: bool) -> str:
    """Return why it is unknown what operations of an iteration wait for; empty where it is not.

    Without known dependencies between ranks, each rank would stand alone.

    Args:
        run: the merged profiles.
        shown: the iteration.
        crossing: whether any operation of it is known to take from another rank.
    """
    if stretches.stages_contradicted(run):
        return "the order of stages contradicts the data dependencies that they rest on"
    stages = {run.ranks[rank].stage for rank in list_indices(shown.ranks)}
    if len(shown.ranks) == 1 or stages == {0}:
        return ""
    if None in stages or not crossing:
        unknown = "stages" if None in stages else "microbatches"
        return f"dependencies between ranks are unknown, since {unknown} are unknown"
    return ""


def _too_many(what: str, count: int, most: int) -> str:
    """Return why what holds so many operations is not replayed; empty where it is."""
    held = f"{what} holds {format_count(count, 'operation')}; at most {most:,} are replayed"
    return held if count > most else ""


def _no_replay_reason(run: Run, shown: Iteration | None) -> str:
    """Return why iterations cannot be replayed over all ranks; empty where they can.

    It may be unknown beside that what operations wait for.
    """
    if shown is None or not shown.averaged:
        return "no complete training iteration was recorded"
    if not run.paired:
        return "iterations could not be matched across ranks"
    if not _comparable(shown):
        return "the ranks share no clock"
    return _too_many("the run", len(run.operations), MOST_REPLAYED)


def _comparable(iteration: Iteration) -> bool:
    ratio = iteration.ratios.get("schedule")
    return ratio is not None and ratio.value is not None
