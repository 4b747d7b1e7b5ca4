"""Create the summary that ``bubbleviz analyze -o report.json`` writes as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import (
    PHASES,
    RankIterations,
    compute_rank_intervals,
    compute_rank_ratios,
    get_account_column,
    get_rank_column,
    has_account,
    list_indices,
    list_missing,
)
from bubbleviz.count.ratios import list_ratios
from bubbleviz.count.statistics import Spread
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.changes import Change
from bubbleviz.explain.chunk_costs import ChunkCost
from bubbleviz.explain.extra_work import ExtraWork
from bubbleviz.explain.first_step import FirstStep
from bubbleviz.explain.microbatch_lengths import measure_lengths
from bubbleviz.explain.phase_times import PhaseTime
from bubbleviz.explain.prompt_splits import PromptSplit
from bubbleviz.explain.recognition.deviations import Deviation
from bubbleviz.explain.recognition.recognition import Recognition
from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.explain.slowness import Slowness
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.report import summary
from bubbleviz.report.advice import Advised, Step, advise
from bubbleviz.report.bubble_parts import (
    BubblePart,
    choose_step_window,
    compute_bubble_parts,
    compute_flops_use,
    compute_step_parts,
)
from bubbleviz.report.long_bubbles import find_longest_bubbles
from bubbleviz.report.marked_ranks import choose_marked_ranks
from bubbleviz.report.methods import write_methods
from bubbleviz.report.profiled_run import measure_profiling_cost
from bubbleviz.report.rank_means import RankMeans, compute_rank_means, list_standouts
from bubbleviz.report.report import Report
from bubbleviz.report.run_lateness import describe_late_rank, find_lateness
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from bubbleviz.report.timeline import MAX_SAVED_OPERATIONS, Timeline, build_timeline, save_column
from bubbleviz.schedules.choices import Choice
from bubbleviz.schedules.measured_times import MeasuredTimes

#: Maximum number of operations to list along with their slack.
_MAX_SLACKS = 20_000
_WINDOW_FIELDS = summary.WindowColumns.__struct_fields__
_TIME_FIELDS = ("compute_ns", "active_ns", "kernel_ns", "gap_ns")
_OPERATION_FIELDS = summary.OperationEntry.__struct_fields__

#: Maximum number of deviations from the planned order in a report.
_MAX_DEVIATIONS = 1000
#: Maximum number of outliers in a report.
_MAX_OUTLIERS = 50


def summarize(report: Report, *, by_rank: bool = True, slowdown: bool = True) -> summary.RunSummary:
    """Return the summary of a report.

    Args:
        report: The report.
        by_rank: Whether each iteration lists its ranks. If so, the timeline is included as well,
            provided that the report has at most ``MAX_SAVED_OPERATIONS`` operations.
        slowdown: Whether to compute slowdowns. This takes long for thousands of ranks.
    """
    typical, explanation = report.typical_iteration(), report.explanation
    times, advised = explanation.phase_times, advise(report)
    slowdowns = report.slowdowns if slowdown else None
    means = compute_rank_means(report)
    has_timeline = by_rank and len(report.operations) <= MAX_SAVED_OPERATIONS
    return summary.RunSummary(
        schema=summary.SCHEMA,
        version=report.version,
        kind=report.kind,
        headline=report.headline,
        headline_reason=report.headline_reason,
        convention=report.convention,
        profiles=list(report.profiles),
        ranks=_list_ranks(report, means),
        what_to_do_first=describe_first_steps(report),
        first=[_make_step(advised, step) for step in advised.first],
        then=[advised.candidates.index(advice) for advice in advised.further],
        advice=list(write_all_advice(report)),
        restrictions=summary.RestrictionEntry.list_of(report.restrictions),
        typical_iteration=None if typical is None else typical.index,
        iterations_overlap=explanation.period_ns is not None,
        iterations=[
            _make_iteration(report, iteration, by_rank=by_rank) for iteration in report.iterations
        ],
        summary=_compute_numbers(report),
        schedule=_make_schedule(report.schedule),
        plan=_make_schedule(report.plan),
        phase_times=[_make_phase_time(kind) for kind in times.kinds],
        chunk_costs=[_make_chunk_cost(cost) for cost in explanation.chunk_costs],
        even_chunks=_make_even_chunks(explanation.prompt_split),
        transfer_ns=times.transfer_ns,
        microbatch_lengths=_list_microbatch_lengths(report),
        imbalance=dict(times.imbalance),
        stragglers=_list_stragglers(report),
        critical_path=_make_critical_path(report),
        changes=_make_changes(explanation.changes),
        what_if=_make_what_if(report.other_schedules),
        memory=report.memory,
        longest_bubbles=_list_longest_bubbles(report),
        slowdown=None if slowdowns is None else _make_slowdown(slowdowns, report.slowness),
        coverage=list(report.coverage),
        unattributed_kernels=list(report.unattributed_kernels),
        limitations=summary.LimitationEntry.list_of(report.limitations),
        methods=write_methods(report),
        timeline=_save_timeline(build_timeline(report)) if has_timeline else None,
        outliers=_list_outliers(report, means),
        extra_work=_make_extra_work(report.extra_work),
        first_step=_make_first_step(explanation.first_step),
        profiling_cost=_make_profiling_cost(report),
        lateness=_make_lateness(report),
    )


def _list_ranks(report: Report, means: RankMeans) -> list[summary.RankEntry]:
    """Return one entry per rank, with the rank's identity, stage, slowness scores and work.

    Unknown scores and times are None.
    """
    slowness = report.slowness
    return [
        summary.RankEntry(
            index=rank.index,
            global_rank=rank.global_rank,
            label=rank.label,
            host=rank.host,
            pid=rank.pid,
            device_id=rank.device_id,
            uuid=rank.uuid,
            gpu=rank.gpu,
            pci=rank.pci,
            stage=rank.stage,
            pipeline=rank.pipeline,
            profile=rank.profile,
            relative_score=relative,
            individual_score=individual,
            work_ns=work_ns,
        )
        for rank, relative, individual, work_ns in zip(
            report.ranks,
            _to_optional(slowness.relative_score),
            _to_optional(slowness.individual_score),
            _to_optional(means.work_ns),
            strict=True,
        )
    ]


def _to_optional(values: Floats) -> list[float | None]:
    """Return numbers as a list, with None instead of NaN."""
    return [None if isnan(value) else value for value in values.tolist()]


def _list_outliers(report: Report, means: RankMeans) -> tuple[summary.OutlierEntry, ...]:
    marked = choose_marked_ranks(report).outliers
    outliers = list_standouts(report, means)
    return tuple(
        summary.OutlierEntry(
            kind=outlier.kind,
            name=outlier.name,
            ranks=outlier.ranks,
            bubble_ratio=outlier.ratio,
            above_median=outlier.above,
            phase=outlier.phase,
            times_median=outlier.times,
            why=outlier.why,
            is_marked=outlier in marked,
        )
        for outlier in outliers[:_MAX_OUTLIERS]
    )


def _make_lateness(report: Report) -> summary.LatenessEntry | None:
    lateness = report.derive(find_lateness)
    if lateness is None:
        return None
    return summary.LatenessEntry.of(lateness, describe_late_rank(report))


def _make_profiling_cost(report: Report) -> summary.ProfilingCostEntry | None:
    cost = report.derive(measure_profiling_cost)
    ratio = report.summary.bubble_ratio[report.headline].mean
    window_ns = report.summary.window_ns[report.headline].mean
    if cost is None:
        return None
    return summary.ProfilingCostEntry.of(cost, ratio, window_ns)


def _make_step(advised: Advised, step: Step) -> summary.StepEntry:
    index = None if step.advice is None else advised.candidates.index(step.advice)
    is_marked = step.advice is not None and step.advice is advised.marked
    return summary.StepEntry(step.code.value, index, is_marked)


# Iterations.


def _make_iteration(
    report: Report, iteration: Iteration, *, by_rank: bool
) -> summary.IterationEntry:
    """Return the summary entry for an iteration, with its times, ratios and idle time by cause.

    Args:
        report: The report.
        iteration: The iteration.
        by_rank: Whether the entry contains the columns of :func:`_make_rank_columns`.
    """
    ratios, causes = iteration.ratios, report.explanation.causes
    return summary.IterationEntry(
        index=iteration.index,
        name=iteration.name,
        kind=iteration.kind,
        complete=iteration.complete,
        averaged=iteration.averaged,
        microbatches=iteration.microbatches,
        start_ns=iteration.start_ns if iteration.ranks else None,
        end_ns=iteration.end_ns if iteration.ranks else None,
        window_ns={name: ratio.window_ns for name, ratio in ratios.items()},
        bubble_ratio={name: ratio.value for name, ratio in ratios.items()},
        bubble_low={name: ratio.low for name, ratio in ratios.items()},
        bubble_overhead={name: ratio.overhead for name, ratio in ratios.items()},
        bubble_interval=_list_intervals({name: ratio.interval for name, ratio in ratios.items()}),
        incomplete=any(ratio.incomplete for ratio in ratios.values()),
        clocks_contradict=any(ratio.contradicted for ratio in ratios.values()),
        clock_set=iteration.clock_set,
        cause_ns={
            name: causes.of_iteration(name, iteration.index)
            for name in ratios
            if has_account(iteration.ranks, name)
        },
        ranks=_make_rank_columns(report, iteration) if by_rank else None,
    )


def _make_rank_columns(report: Report, iteration: Iteration) -> summary.RankColumns:
    """Return the per-rank columns of an iteration.

    ``unattributed_ns`` and ``overlap_ns`` are times within the window of the ratio ``schedule``.
    Both are None if no rank has this window.
    """
    ranks, communication = iteration.ranks, report.explanation.communication
    accounts = list(ranks.columns.accounts)
    names = [name for name in accounts if has_account(ranks, name)]
    windows = {name: _make_window_columns(ranks, name) for name in names}
    schedule = windows.get("schedule")
    times = {name: get_rank_column(ranks, name).tolist() for name in _TIME_FIELDS}
    phase_ns = get_rank_column(ranks, "phase_ns").T.tolist()
    return summary.RankColumns(
        rank=list(list_indices(ranks)),
        busy_ns=dict(zip(PHASES, phase_ns, strict=True)),
        **times,
        unattributed_ns=None if schedule is None else schedule.unattributed_ns,
        overlap_ns=None if schedule is None else schedule.overlap_ns,
        bubble_ns={name: window.bubble_ns for name, window in windows.items()},
        bubble_ratio={name: compute_rank_ratios(ranks, name) for name in accounts},
        bubble_interval=_list_rank_intervals(ranks, names),
        missing=list_missing(ranks),
        windows=windows,
        cause_ns={
            name: report.explanation.causes.columns(name, iteration.index, ranks.rank)
            for name in names
        },
        communication=summary.CommunicationColumns(
            *(
                getattr(communication, name)[iteration.index][ranks.rank].tolist()
                for name in summary.CommunicationColumns.__struct_fields__
            )
        ),
    )


def _make_window_columns(ranks: RankIterations, ratio: str) -> summary.WindowColumns:
    """Return the columns that describe a ratio's windows in an iteration, one row per rank."""
    columns = (get_account_column(ranks, ratio, name) for name in _WINDOW_FIELDS)
    return summary.WindowColumns(*(column.tolist() for column in columns))


def _list_rank_intervals(
    ranks: RankIterations, names: Sequence[str]
) -> dict[str, list[tuple[float, float] | None] | None]:
    """Return the clock bounds of each rank's ratio, for ratios that require a common clock.

    The result has one column per ratio, keyed by the ratio's name. A column is None if all of its
    bounds are unknown.

    Args:
        ranks: The iteration's rank entries.
        names: Names of the ratios for which bounds are computed. The columns of all other ratios
            are None.
    """
    columns: dict[str, list[tuple[float, float] | None] | None] = {}
    for ratio in list_ratios():
        if ratio.common_clock:
            bounds = compute_rank_intervals(ranks, ratio.name) if ratio.name in names else []
            columns[ratio.name] = bounds if any(bounds) else None
    return columns


def _list_rows(names: Sequence[str], column: Callable[[str], Ints]) -> Iterable[tuple[int, ...]]:
    """Return the rows of a table, given a function that looks up a column by name."""
    return zip(*(column(name).tolist() for name in names), strict=True)


def _list_intervals(
    intervals: Mapping[str, tuple[float, float] | None],
) -> dict[str, tuple[float, float] | None]:
    """Return the clock bounds of ratios that require a common clock. Unknown bounds are None."""
    return {r.name: intervals.get(r.name) for r in list_ratios() if r.common_clock}


# Statistics over the averaged iterations.


def _compute_numbers(report: Report) -> summary.Numbers:
    """Return the statistics over the averaged iterations.

    The result contains the mean and spread of each ratio and window, the idle time by cause, the
    parts of the bubble and of a step, and the kernel time. For each ratio, the idle time by cause
    includes only the iterations in which the ratio is known.
    """
    measured, causes = report.summary, report.explanation.causes
    averaged = [iteration for iteration in report.iterations if iteration.averaged]
    cause_ns = {}
    for name in causes.idle_ns:
        with_ratio = [i.index for i in averaged if i.ratios[name].value is not None]
        cause_ns[name] = causes.of_iterations(name, np.array(with_ratio, np.int64))
    return summary.Numbers(
        iterations=measured.iterations,
        bubble_ratio=_make_averages(measured.bubble_ratio),
        bubble_interval=_list_intervals(measured.bubble_interval),
        bubble_low=_make_averages(measured.bubble_low),
        bubble_overhead=_make_averages(measured.bubble_overhead),
        window_ns=_make_averages(measured.window_ns),
        cause_ns=cause_ns,
        bubble_parts=_make_parts(compute_bubble_parts(report)),
        kernel_time=summary.KernelTimeEntry(**report.kernel_time.entry),
        launch_gap=report.launch_gap,
        step=summary.StepSummary(
            window=choose_step_window(report),
            parts=_make_parts(compute_step_parts(report)),
            flops_use=compute_flops_use(report),
        ),
    )


def _make_averages(spreads: Mapping[str, Spread]) -> dict[str, summary.Average]:
    return {name: summary.Average(**asdict(spread)) for name, spread in spreads.items()}


def _make_parts(parts: Sequence[BubblePart]) -> list[summary.TimePart]:
    return [summary.TimePart(**asdict(part)) for part in parts]


# Schedules and times of operations.


def _make_schedule(recognition: Recognition | None) -> summary.ScheduleEntry | None:
    """Return the summary entry for the recognized schedule, or None if recognition was not run."""
    if recognition is None:
        return None
    return summary.ScheduleEntry(
        name=recognition.name,
        also=recognition.also,
        exact=recognition.exact,
        distance=recognition.distance,
        reason=recognition.reason or None,
        iterations=list(recognition.iterations),
        deviation_count=recognition.deviation_count,
        deviations=[
            _make_deviation(deviation) for deviation in recognition.deviations[:_MAX_DEVIATIONS]
        ],
    )


def _make_deviation(deviation: Deviation) -> summary.DeviationEntry:
    """Return the summary entry for an operation that deviates from the order of the schedule."""
    return summary.DeviationEntry(
        rank=deviation.rank,
        iteration=deviation.iteration,
        phase=deviation.phase.label,
        microbatch=deviation.microbatch,
        chunk=_get_number(deviation.chunk),
        what=deviation.what,
        places=deviation.places,
    )


def _get_number(number: int) -> int | None:
    """Return a number, or None if it is -1 (unknown)."""
    return None if number < 0 else number


def _make_phase_time(kind: PhaseTime) -> summary.PhaseTimeEntry:
    numbers = {
        name: _get_number(getattr(kind, name)) for name in ("stage", "chunk", "virtual_stage")
    }
    return summary.PhaseTimeEntry(**{**asdict(kind), "phase": kind.phase.label, **numbers})


def _make_extra_work(extra: ExtraWork | None) -> summary.ExtraWorkEntry | None:
    if extra is None:
        return None
    return summary.ExtraWorkEntry(
        work_ns=extra.work_ns,
        piece_ns=extra.piece_ns,
        ratio=extra.ratio,
        iterations=extra.iterations,
        stages=[
            summary.StageSlotsEntry(
                stage=_get_number(slots.stage),
                rank=slots.rank,
                idle_ns=slots.idle_ns,
                warm_up_pieces=slots.warm_up_pieces,
                between_pieces=slots.between_pieces,
                drain_pieces=slots.drain_pieces,
                fitting_ns=slots.fitting_ns,
                rest_ns=extra.work_ns - slots.fitting_ns,
            )
            for slots in extra.stages
        ],
        fitting_ns=extra.fitting_ns,
        rest_ns=extra.work_ns - extra.fitting_ns,
        longest_ns=extra.longest_ns,
    )


def _make_even_chunks(split: PromptSplit | None) -> summary.EvenChunks | None:
    if split is None:
        return None
    return summary.EvenChunks(
        _get_number(split.virtual_stage),
        split.tokens,
        split.equal_ns,
        split.even_ns,
        split.min_even_ns,
    )


def _make_chunk_cost(cost: ChunkCost) -> summary.ChunkCostEntry:
    numbers = {"stage": _get_number(cost.stage), "virtual_stage": _get_number(cost.virtual_stage)}
    names = summary.ChunkCostEntry.__struct_fields__
    copied = {name: value for name, value in asdict(cost).items() if name in names}
    return summary.ChunkCostEntry(**{**copied, **numbers})


def _make_first_step(step: FirstStep | None) -> summary.FirstStepEntry | None:
    if step is None:
        return None
    return summary.FirstStepEntry(
        iteration=step.iteration,
        length_ns=step.length_ns,
        usual_ns=step.usual_ns,
        stages=[
            summary.WarmUpEntry(
                stage.stage, stage.rank, stage.forward_ns, stage.backward_ns, stage.activity or None
            )
            for stage in step.stages
        ],
        total_ns=step.total_ns,
        longest_ns=step.longest_ns,
        elapsed_ns=step.elapsed_ns,
        saving_ns=step.saving_ns,
    )


def _list_microbatch_lengths(report: Report) -> tuple[tuple[float, ...], ...]:
    """Return each microbatch's length, divided by the mean length of all microbatches.

    Each row stands for one pipeline in one averaged training iteration; see
    :func:`.measure_lengths`. The result is empty if the iterations' microbatch counts are unknown
    or differ, or if lengths vary only by chance.
    """
    averaged = [i.index for i in report.iterations if i.averaged and i.kind == "training"]
    counts = {report.iterations[index].microbatches for index in averaged}
    if len(counts) != 1 or None in counts:
        return ()
    (count,) = counts
    pipeline = np.array([NONE if r.pipeline is None else r.pipeline for r in report.ranks])
    lengths = measure_lengths(report.operations, pipeline, averaged, count or 0)
    return tuple(tuple(round(length, 4) for length in row) for row in lengths.tolist())


def _list_stragglers(report: Report) -> list[summary.Straggler]:
    """Return entries for the slowest operations, each with its time as a multiple of the median."""
    stragglers = report.explanation.phase_times.stragglers
    rows = np.array([row for row, _ in stragglers], np.int64)
    return [
        summary.Straggler(**operation, times_median=times_median)
        for operation, (_, times_median) in zip(
            _list_operations(report, rows), stragglers, strict=True
        )
    ]


def _list_operations(report: Report, rows: Ints) -> list[dict[str, Any]]:
    """Return one dictionary per row with the fields of :class:`.summary.OperationEntry`."""
    return [
        {
            "rank": rank,
            "iteration": iteration,
            "phase": Phase(phase).label,
            "microbatch": _get_number(microbatch),
            "chunk": _get_number(chunk),
            "start_ns": start_ns,
            "end_ns": end_ns,
        }
        for rank, iteration, phase, microbatch, chunk, start_ns, end_ns in _list_rows(
            _OPERATION_FIELDS, lambda name: getattr(report.operations, name)[rows]
        )
    ]


# Explanations.


def _make_critical_path(report: Report) -> summary.CriticalPathEntry | None:
    """Return the summary entry for the critical path, or None if the path is unknown.

    If more than ``_MAX_SLACKS`` operations have slack, none of the slacks are listed.
    """
    path = report.explanation.path
    if path is None:
        return None
    slack, has_slack = None, path.slack_ns > 0
    if has_slack.sum() <= _MAX_SLACKS:
        operations = _list_operations(report, path.replayed[has_slack])
        slacks_ns = path.slack_ns[has_slack].tolist()
        slack = [
            summary.SlackEntry(**operation, slack_ns=slack_ns)
            for operation, slack_ns in zip(operations, slacks_ns, strict=True)
        ]
    return summary.CriticalPathEntry(
        iteration=path.iteration,
        length_ns=path.length_ns,
        parts=list(path.parts),
        collectives=list(path.collectives),
        operations=[
            summary.OperationEntry(**operation)
            for operation in _list_operations(report, path.operations)
        ],
        slack=slack,
    )


def _make_changes(changes: Sequence[Change]) -> summary.Changes | None:
    """Return the summary entry for the replayed changes, or None if nothing was replayed.

    Args:
        changes: The unchanged iteration, followed by the iteration with each change.
    """
    if not changes:
        return None
    measured, *other_changes = changes
    return summary.Changes(
        makespan_ns=measured.makespan_ns,
        bubble_ratio=measured.bubble_ratio,
        rows=[summary.Change(**asdict(change)) for change in other_changes],
    )


def _make_what_if(what_if: WhatIf | None) -> summary.WhatIfEntry | None:
    """Return the summary entry for other simulated schedules, or None if none were simulated.

    The entry contains the measured times, one row per schedule, and the best microbatch order.
    """
    if what_if is None:
        return None
    measured = what_if.measured
    return summary.WhatIfEntry(
        reason=what_if.reason,
        window=what_if.window,
        times=None if measured is None else _make_simulated_times(measured),
        rows=[_make_choice(choice) for choice in what_if.rows],
        reordered=what_if.reordered,
        limit_bytes=what_if.limit_bytes,
    )


def _make_choice(choice: Choice) -> summary.ChoiceEntry:
    """Return the summary entry for one schedule: its predicted time, ratio and memory use."""
    return summary.ChoiceEntry(
        name=choice.schedule,
        makespan_ms=choice.makespan_ms,
        cost_ms=choice.cost_ms,
        bubble_ratio=choice.bubble_ratio,
        peak_activations=choice.peak_activations,
        speedup=choice.speedup,
        fits=choice.fits,
        reason=choice.reason,
        peaks=choice.peaks,
        replicas=choice.replicas,
        peak_bytes=choice.peak_bytes,
    )


def _make_simulated_times(measured: MeasuredTimes) -> summary.SimulatedTimes:
    """Return the sizes of a run and the measured times of each stage, without virtual stages."""
    times = measured.times
    return summary.SimulatedTimes(
        stages=measured.stages,
        microbatches=measured.microbatches,
        chunks=measured.chunks,
        times=summary.StageTimesEntry(
            times.forward_ms, times.backward_ms, times.weight_ms, times.transfer_ms, times.lengths
        ),
        split=measured.split,
    )


def _list_longest_bubbles(report: Report) -> list[summary.LongBubble]:
    """Return one entry per bubble from :func:`.find_longest_bubbles`, each with its sentence."""
    idle = report.bubbles
    return [
        summary.LongBubble(
            rank=int(idle.rank[row]),
            iteration=int(idle.iteration[row]),
            start_ns=int(idle.start_ns[row]),
            end_ns=int(idle.end_ns[row]),
            cause=Cause(int(idle.cause[row])).label,
            sentence=sentence,
        )
        for row, sentence in find_longest_bubbles(report)
    ]


def _make_slowdown(slowdowns: Slowdowns, slowness: Slowness) -> summary.SlowdownEntry:
    """Return the summary entry for the slowdown caused by stragglers, in total and by category.

    Args:
        slowdowns: Slowdowns by phase, stage, replica, microbatch, link and iteration.
        slowness: Each rank's slowdown. Ranks whose slowdown is NaN are left out.
    """
    links = list(slowdowns.by_link)
    rank = np.flatnonzero(~np.isnan(slowness.slowdown))
    return summary.SlowdownEntry(
        total=slowdowns.total,
        by_phase=dict(slowdowns.by_phase),
        by_stage=_make_slowdown_columns(slowdowns.by_stage),
        by_replica=_make_slowdown_columns(slowdowns.by_replica),
        by_rank=summary.SlowdownColumns(
            number=rank.tolist(), slowdown=slowness.slowdown[rank].tolist()
        ),
        by_microbatch=_make_slowdown_columns(slowdowns.by_microbatch),
        by_link=summary.LinkSlowdowns(
            source=[source for source, _ in links],
            target=[target for _, target in links],
            slowdown=list(slowdowns.by_link.values()),
        ),
        by_iteration=_make_slowdown_columns(slowdowns.by_iteration),
        worker_share=slowdowns.worker_share,
        last_stage_share=slowdowns.last_stage_share,
        original_ns=slowdowns.original_ns,
        ideal_ns=slowdowns.ideal_ns,
        replay_error=slowdowns.replay_error,
    )


def _make_slowdown_columns(slowdowns: Mapping[int, float]) -> summary.SlowdownColumns:
    return summary.SlowdownColumns(number=list(slowdowns), slowdown=list(slowdowns.values()))


def _save_timeline(timeline: Timeline) -> summary.SavedTimeline:
    """Return a timeline as lists of numbers, with None instead of -1; see :func:`save_column`."""
    return summary.SavedTimeline(
        base_ns=timeline.base_ns,
        names=timeline.names,
        tables={
            table: {name: save_column(table, name, column) for name, column in columns.items()}
            for table, columns in timeline.tables.items()
        },
    )
