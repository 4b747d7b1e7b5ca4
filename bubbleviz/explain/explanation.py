"""Explain a run's bubbles, what limits an iteration, and what removing delays would save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration, choose_typical
from bubbleviz.count.rank_iterations import list_indices
from bubbleviz.count.rank_slices import join_ranks, list_stages_and_pipelines
from bubbleviz.count.summary import has_overlap
from bubbleviz.explain import phase_times
from bubbleviz.explain import stretch as stretches
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause_times import CauseTimes
from bubbleviz.explain.changes import Change, replay_changes
from bubbleviz.explain.chunk_costs import ChunkCost, measure_chunk_costs
from bubbleviz.explain.communication_times import CommunicationTimes, Receives
from bubbleviz.explain.diagnosis.findings import Diagnosis, build_diagnosis
from bubbleviz.explain.first_step import FirstStep, measure_first_step
from bubbleviz.explain.path import CriticalPath, build_graph, find_critical_path
from bubbleviz.explain.phase_times import PhaseTimes
from bubbleviz.explain.prompt_splits import (
    PromptChunks,
    PromptSplit,
    find_prompt_chunks,
    split_longest_prompt,
)
from bubbleviz.explain.replayed_ranks import ReplayedRanks, choose_replayed_ranks
from bubbleviz.explain.slowdown.barriers import insert_barriers
from bubbleviz.explain.slowdown.replayed_run import (
    ExplainedRows,
    ReplayedRun,
    join_rows,
)
from bubbleviz.explain.slowdown.slowdowns import (
    Scenarios,
    Slowdowns,
    build_scenarios_of_run,
    measure_slowdowns,
)
from bubbleviz.explain.slowdown.start_up import remove_start_up
from bubbleviz.explain.stage_layers import build_layout_question
from bubbleviz.explain.stretch_explanation import StretchExplanation, explain_stretch
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK
from bubbleviz.model.texts import format_count

if TYPE_CHECKING:
    from bubbleviz.schedules.layout.best_layouts import LayoutQuestion

#: Maximum number of operations in an iteration that is replayed. The replay takes seconds.
MAX_OPERATIONS = 500_000
#: Maximum number of operations in a run that is replayed. The replay takes half a minute and
#: several gigabytes of memory.
MAX_RUN_OPERATIONS = 5_000_000

#: A function like the built-in ``map``, which applies another function to each stretch.
#: The results are yielded in the order of the stretches.
MapStretches: TypeAlias = Callable[
    [Callable[[stretches.Stretch], StretchExplanation], Iterable[stretches.Stretch]],
    Iterable[StretchExplanation],
]


@dataclass(frozen=True)
class Explanation:
    """Explains why there are bubbles, and what determines the length of an iteration.

    Attributes:
        causes: Idle time of each rank by cause, for each measurement window.
        explained: Function that returns the per-operation tables.
        listed_ratio: Name of the ratio whose windows contain the listed bubbles.
        received: Number of receives whose producer is known, per iteration.
        communication: Times that receives and collectives spent waiting, and times during which
            data moved.
        phase_times: Operation durations, by kind of operation.
        path: Critical path of the typical iteration, or None if it is unknown.
        changes: Length of the typical iteration under each change, or empty if unknown.
        no_path_reason: Reason why path and changes are unknown, or "" if both are known or another
            part of the report gives the reason.
        slowdown_source: Replay input used to measure slowdowns over all iterations, or None if the
            report has no slowdowns.
        first_step: Extra time of the first iteration by stage, or None if it has little or if it is
            unknown.
        replayed_ranks: Ranks used to compute path, changes and diagnosis, or None for all.
        replayed_source: ``slowdown_source`` restricted to ``replayed_ranks``, or None if all ranks
            are replayed.
        chunk_costs: Fits of the forward duration as a function of the number of tokens, one per
            virtual stage. Empty if no number of tokens is known.
        prompt_chunks: Prompt chunks of the typical iteration, or None if there are none.
        layout: The layers of the stages, or None if they are unknown.
        ran: Name of the schedule that ran, or None if it is unknown.
        period_ns: Mean time from one iteration to the next if iterations overlap, or None if they
            do not.
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
    prompt_chunks: PromptChunks | None = None
    first_step: FirstStep | None = None
    replayed_ranks: ReplayedRanks | None = None
    replayed_source: ReplayedRun | None = None
    layout: LayoutQuestion | None = None
    ran: str | None = None
    period_ns: float | None = None

    @property
    def bubbles(self) -> Bubbles:
        """The idle intervals in the windows of ``listed_ratio``, split by cause.

        In a run with many ranks, bubbles and receives are computed on first access.
        """
        return self.explained().bubbles

    @property
    def receives(self) -> Receives:
        """The last receive of each operation whose receive and producer are both known."""
        return self.explained().receives

    @cached_property
    def scenarios(self) -> Scenarios | None:
        """Replay of the averaged iterations of all ranks, or None if it is impossible.

        The replay is built on first access, which takes seconds for a million operations.
        """
        return (
            None if self.slowdown_source is None else build_scenarios_of_run(self.slowdown_source)
        )

    @cached_property
    def slowdowns(self) -> Slowdowns | None:
        """Slowdowns over all averaged iterations, or None if they are unknown.

        The slowdowns are computed on first access.
        """
        return None if self.scenarios is None else measure_slowdowns(self.scenarios)

    @cached_property
    def prompt_split(self) -> PromptSplit | None:
        """Division of the longest prompt into chunks of equal time, or None if none saves time.

        The division is computed on first access.
        """
        transfer_ns = self.phase_times.transfer_ns or 0.0
        return split_longest_prompt(self.chunk_costs, self.prompt_chunks, transfer_ns)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Reasons why the averaged iterations are long, or None if they are unknown.

        The reasons are found on first access by a replay of ``replayed_source``, or of all ranks if
        that is None.
        """
        part, source = self.replayed_source, self.replayed_source or self.slowdown_source
        scenarios = self.scenarios if part is None else build_scenarios_of_run(part)
        if source is None or scenarios is None:
            return None
        return build_diagnosis(source, scenarios, self.layout, self.ran, self.period_ns)


def _explain_all_rows(run: Run, counts: Counts) -> ExplainedRows:
    """Explain all stretches of a run, and return the per-operation tables of all ranks.

    :func:`explain` keeps these tables only for the replayed ranks, so they are computed again here.
    """
    parts = map(explain_stretch, stretches.split_into_stretches(run, counts))
    return join_rows([part.kept_rows for part in parts], run.operations)


def read_once(read: Callable[[], ExplainedRows], cache: list[ExplainedRows]) -> ExplainedRows:
    """Return ``cache[0]``. If the cache is empty, first append the result of ``read()``.

    Args:
        read: Function that computes the per-operation tables.
        cache: List that is empty or contains one element.
    """
    if not cache:
        cache.append(read())
    return cache[0]


def explain(run: Run, counts: Counts, map_stretches: MapStretches = map) -> Explanation:
    """Explain why a run has bubbles, and what determines the length of its typical iteration.

    The critical path and the changes are left out unless all of the following hold:

    - The run has a typical iteration, and it is small enough to replay.
    - The ranks of this iteration share a clock.
    - The dependencies between these ranks are known.

    Args:
        run: The merged profiles.
        counts: Counted iterations of the run and their ratios.
        map_stretches: Function like the built-in ``map``. It applies a function to each stretch, in
            this process or on other machines.
    """
    averaged = np.array([iteration.averaged for iteration in counts.iterations], bool)
    selection = choose_replayed_ranks(run.operations, run.ranks, averaged)
    is_replayed = None if selection is None else selection.is_replayed
    parts = list(
        map_stretches(explain_stretch, stretches.split_into_stretches(run, counts, is_replayed))
    )
    rows = join_rows([part.kept_rows for part in parts], run.operations)
    # Reports are pickled, so this must be a partial of module-level functions, not a closure. If
    # the rows of all ranks are known already, the cache is filled at once.
    explained = partial(
        read_once,
        partial(_explain_all_rows, run, counts),
        [rows] if selection is None or len(parts) == 1 else [],
    )

    typical_iteration = choose_typical(counts.iterations, counts.headline)
    unordered = _find_unordered_reason(run, typical_iteration, parts)
    source = _build_replayed_run(
        run,
        counts,
        explained,
        averaged,
        _find_no_replay_reason(run, typical_iteration) or unordered,
    )
    replayed = source if selection is None else source.select_ranks(selection.is_replayed, rows)
    replay = _replay_typical(replayed, typical_iteration, run.operations, is_replayed, unordered)
    times = _measure_times(run, averaged, parts, typical_iteration)
    return Explanation(
        causes=_join_causes(parts),
        explained=explained,
        listed_ratio=rows.bubbles.ratio,
        received=np.sum([part.received for part in parts], axis=0),
        communication=CommunicationTimes(*join_ranks([vars(part.communication) for part in parts])),
        phase_times=times,
        path=replay.path,
        changes=replay.changes,
        no_path_reason=replay.reason,
        slowdown_source=source,
        chunk_costs=measure_chunk_costs(
            run.operations, list_stages_and_pipelines(run.ranks)[0], averaged
        ),
        first_step=measure_first_step(run, counts),
        replayed_ranks=selection,
        replayed_source=None if selection is None else replayed,
        prompt_chunks=None
        if typical_iteration is None
        else find_prompt_chunks(run.operations, averaged, typical_iteration.index),
        layout=_build_layout(run, times, typical_iteration),
        period_ns=_get_period(counts),
    )


def _measure_times(
    run: Run, averaged: Bools, parts: Sequence[StretchExplanation], typical: Iteration | None
) -> PhaseTimes:
    """Measure how long operations take, over all pipelines and for the slowest pipeline only.

    Args:
        run: The merged profiles.
        averaged: Mask of the averaged iterations.
        parts: Explanations of the stretches.
        typical: The typical iteration, in which the slowest pipeline is measured. If None, no
            pipeline is measured separately.
    """
    stage, pipeline = list_stages_and_pipelines(run.ranks)
    samples = [part.samples for part in parts]
    times = phase_times.measure_phase_times(run.operations, stage, averaged, samples)
    if typical is None:
        return times
    kinds = phase_times.add_slowest_pipeline(times.kinds, run.operations, pipeline, typical.index)
    return replace(times, kinds=kinds)


def _build_layout(run: Run, times: PhaseTimes, typical: Iteration | None) -> LayoutQuestion | None:
    """Return the layers of the stages, or None if they or the typical iteration are unknown."""
    if typical is None or not run.layers:
        return None
    return build_layout_question(run.layers, times, typical.microbatches)


def _get_period(counts: Counts) -> float | None:
    """Return the mean time from one iteration to the next, or None if iterations do not overlap."""
    is_overlapping = counts.headline == "period" and has_overlap(counts.iterations)
    return counts.summary.window_ns["period"].mean if is_overlapping else None


def _join_causes(parts: Sequence[StretchExplanation]) -> CauseTimes:
    """Join the stretches' idle times by cause into a single table of all ranks."""
    causes = join_ranks([part.idle_ns for part in parts])
    return CauseTimes(dict(zip(tuple(parts[0].idle_ns), causes, strict=True)))


def _build_replayed_run(
    run: Run,
    counts: Counts,
    explained: Callable[[], ExplainedRows],
    averaged: Bools,
    reason: str,
) -> ReplayedRun:
    """Build the replay input from a run, with the barriers of :func:`.insert_barriers`.

    Args:
        run: The merged profiles.
        counts: Counted iterations of the run and their ratios.
        explained: Function that returns the per-operation tables.
        averaged: Mask of the averaged iterations.
        reason: Reason why the run is not replayed, or "" if it is replayed.
    """
    replayed = ReplayedRun(
        run.operations,
        run.ranks,
        explained,
        remove_start_up(run.collectives, run.operations, averaged),
        averaged,
        run.hosts,
        np.arange(len(averaged)),
        reason,
        counts.extents.paused,
        run.gap_ns if run.has_kernels else None,
    )
    return insert_barriers(replayed)


@dataclass(frozen=True)
class _TypicalReplay:
    """Results of replaying the typical iteration.

    Attributes:
        path: Critical path of the iteration, or None if it is unknown.
        changes: Length of the iteration under each change, or empty if unknown.
        reason: Reason why path and changes are unknown, or "" if both are known or another part of
            the report gives the reason.
    """

    path: CriticalPath | None
    changes: tuple[Change, ...]
    reason: str


def _replay_typical(
    replayed: ReplayedRun,
    iteration: Iteration | None,
    operations: Operations,
    is_replayed: Bools | None,
    unordered: str,
) -> _TypicalReplay:
    """Find the critical path of the typical iteration, and replay the iteration under each change.

    In the following cases, the iteration is not replayed, the path is None, and there are no
    changes:

    - There is no typical iteration. The reason is ``unordered``.
    - The iteration is too large. The reason states this.
    - Dependencies are unknown. The reason is ``unordered``.
    - The ranks do not share a clock. The reason is "".

    Args:
        replayed: Input of the replay, restricted to the replayed ranks.
        iteration: The typical iteration, or None if there is none.
        operations: Operations of all ranks. The rows of the returned path refer to this table.
        is_replayed: Mask of the replayed ranks, or None if all ranks are replayed.
        unordered: Reason why dependencies between ranks are unknown, or "" if they are known.
    """
    if iteration is None:
        return _TypicalReplay(None, (), unordered)
    reason = _check_iteration_size(replayed, iteration) or unordered
    if reason or not _has_common_clock(iteration):
        return _TypicalReplay(None, (), reason)
    graph = build_graph(replayed, iteration.index)
    n_ranks = len(
        [r for r in list_indices(iteration.ranks) if is_replayed is None or is_replayed[r]]
    )
    path = find_critical_path(graph, replayed.explained().idle, iteration.index)
    if is_replayed is not None:
        row_of_run = np.flatnonzero(is_replayed[operations.rank])
        path = replace(
            path, operations=row_of_run[path.operations], replayed=row_of_run[path.replayed]
        )
    return _TypicalReplay(path, replay_changes(graph, replayed.operations, n_ranks), "")


def _find_unordered_reason(
    run: Run, iteration: Iteration | None, parts: Sequence[StretchExplanation]
) -> str:
    """Return the reason why dependencies between ranks are unknown, or "" if they are known.

    A run with unknown dependencies is not replayed, because the replay would treat each rank as
    independent. The result is "" if there is no iteration to check.

    Args:
        run: The merged profiles.
        iteration: The iteration to check, or None.
        parts: Explanations of the stretches.
    """
    if iteration is None:
        return ""
    if stretches.has_contradicted_stages(run):
        return "the order of the stages contradicts the data dependencies between them"
    stages = {run.ranks[rank].stage for rank in list_indices(iteration.ranks)}
    if len(iteration.ranks) == 1 or stages == {0}:
        return ""
    has_crossing = any(part.crossing[iteration.index] for part in parts)
    if None in stages or not has_crossing:
        unknown = "stages" if None in stages else "microbatches"
        return f"the dependencies between ranks are unknown because the {unknown} are unknown"
    return ""


def _check_iteration_size(replayed: ReplayedRun, iteration: Iteration) -> str:
    """Return the reason why an iteration is too large to replay, or "" if it is not."""
    operations = replayed.operations
    is_counted = (operations.iteration == iteration.index) & mask_phases(operations.phase, WORK)
    return _check_size(f"iteration {iteration.name}", int(is_counted.sum()), MAX_OPERATIONS)


def _check_size(subject: str, count: int, max_count: int) -> str:
    """Return the reason why the number of operations is too large, or "" if it is not."""
    if count <= max_count:
        return ""
    return (
        f"{subject} contains {format_count(count, 'operation')}, but at most {max_count:,} can be "
        "replayed"
    )


def _find_no_replay_reason(run: Run, iteration: Iteration | None) -> str:
    """Return the reason why a run cannot be replayed, or "" if it can.

    Whether dependencies are known is not checked here; see :func:`_find_unordered_reason`.
    """
    if iteration is None or not iteration.averaged:
        return "no complete training iteration was recorded"
    if not run.paired:
        return "iterations could not be matched across ranks"
    if not _has_common_clock(iteration):
        return "the ranks have no common clock"
    return _check_size("the run", len(run.operations), MAX_RUN_OPERATIONS)


def _has_common_clock(iteration: Iteration) -> bool:
    """Return whether the clocks of all ranks can be compared in an iteration.

    The clocks are comparable if and only if the ``schedule`` ratio of the iteration has a value.
    """
    ratio = iteration.ratios.get("schedule")
    return ratio is not None and ratio.value is not None
