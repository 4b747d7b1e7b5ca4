"""Makes the summary of a report, which is what ``bubbleviz analyze -o report.json`` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from math import isnan
from typing import Any

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import (
    PHASES,
    RankIterations,
    account_column,
    has_account,
    indices_of,
    lacking,
    own_intervals,
    own_ratios,
    rank_column,
)
from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.count.statistics import Spread
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.microbatch_lengths import lengths_of_iterations
from bubbleviz.explain.phase_times import PhaseTime
from bubbleviz.explain.recognition.recognition import Deviation, Recognition
from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.report import summary
from bubbleviz.report.advice import Advised, Step, advise
from bubbleviz.report.bubble_parts import (
    BubblePart,
    bubble_parts,
    flops_use,
    step_parts,
    step_window,
)
from bubbleviz.report.long_bubbles import longest_bubbles
from bubbleviz.report.methods import methods
from bubbleviz.report.report import Report, even_chunks
from bubbleviz.report.sentences import WrittenAdvice, describe_first_steps, write_all_advice
from bubbleviz.report.timeline import MAX_SAVED_OPERATIONS, Timeline, timeline_of
from bubbleviz.schedules.choices import Choice
from bubbleviz.schedules.measured_times import MeasuredTimes

#: Maximum number of operations that are listed with their slack.
_MAX_SLACKS = 20_000
_WINDOW_FIELDS = summary.RankWindow.__struct_fields__
_TIME_FIELDS = ("compute_ns", "active_ns", "kernel_ns", "gap_ns")
_COMMUNICATION_FIELDS = summary.RankCommunication.__struct_fields__
_OPERATION_FIELDS = summary.OperationEntry.__struct_fields__


def summary_of(
    report: Report, *, by_rank: bool = True, slowdown: bool = True
) -> summary.RunSummary:
    """Return the summary of a report.

    Args:
        report: The report.
        by_rank: Whether iterations list their ranks, and whether the timeline is part of it.
        slowdown: Whether slowdowns are calculated, which takes long for thousands of ranks.
    """
    typical, explanation = report.typical_iteration(), report.explanation
    times, advised = explanation.phase_times, advise(report)
    slowdowns = report.slowdowns if slowdown else None
    even = even_chunks(explanation.chunk_costs)
    restrictions = [
        summary.RestrictionEntry(restriction.code, restriction.text)
        for restriction in report.restrictions
    ]
    has_timeline = by_rank and len(report.operations) <= MAX_SAVED_OPERATIONS
    return summary.RunSummary(
        schema=summary.SCHEMA,
        version=report.version,
        kind=report.kind,
        headline=report.headline,
        headline_reason=report.headline_reason,
        convention=report.convention,
        profiles=list(report.profiles),
        ranks=_ranks(report),
        what_to_do_first=describe_first_steps(report),
        first=[_step(advised, step) for step in advised.first],
        then=[advised.listed.index(advice) for advice in advised.further],
        advice=[_advice(advice) for advice in write_all_advice(report)],
        restriction=restrictions[0].text if restrictions else None,
        restrictions=restrictions,
        typical_iteration=None if typical is None else typical.index,
        iterations=[
            _iteration(report, iteration, by_rank=by_rank) for iteration in report.iterations
        ],
        summary=_numbers(report),
        schedule=_schedule(report.schedule),
        plan=_schedule(report.plan),
        phase_times=[_phase_time(kind) for kind in times.kinds],
        chunk_costs=list(explanation.chunk_costs),
        even_chunks=None if even is None else summary.EvenChunks(*even),
        transfer_ns=times.transfer_ns,
        microbatch_lengths=_microbatch_lengths(report),
        imbalance=dict(times.imbalance),
        stragglers=_stragglers(report),
        critical_path=_critical_path(report),
        what_if=[summary.Change(**asdict(change)) for change in explanation.changes],
        alternatives=_what_if(report.what_if),
        memory=report.memory,
        longest_bubbles=_longest_bubbles(report),
        slowdown=None if slowdowns is None else _slowdown(slowdowns),
        coverage=list(report.coverage),
        unattributed_kernels=list(report.unattributed_kernels),
        limitations=[
            summary.LimitationEntry(limitation.what, limitation.reason, limitation.count)
            for limitation in report.limitations
        ],
        methods=methods(report),
        timeline=_saved_timeline(timeline_of(report)) if has_timeline else None,
    )


def _ranks(report: Report) -> list[summary.RankEntry]:
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
        )
        for rank, relative, individual in zip(
            report.ranks,
            _known(slowness.relative_score),
            _known(slowness.individual_score),
            strict=True,
        )
    ]


def _known(values: Floats) -> list[float | None]:
    """Return numbers, with None for NaN."""
    return [None if isnan(value) else value for value in values.tolist()]


def _step(advised: Advised, step: Step) -> summary.StepEntry:
    index = None if step.advice is None else advised.listed.index(step.advice)
    is_marked = step.advice is not None and step.advice is advised.marked
    return summary.StepEntry(step.code.value, index, is_marked)


def _advice(advice: WrittenAdvice) -> summary.AdviceEntry:
    """Return the entry of an advice, whose ``ranks`` are indices like everywhere in a summary."""
    values = asdict(advice)
    values["ranks"] = values.pop("indices")
    return summary.AdviceEntry(**values)


# Iterations.


def _iteration(report: Report, iteration: Iteration, *, by_rank: bool) -> summary.IterationEntry:
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
        bubble_interval=_intervals({name: ratio.interval for name, ratio in ratios.items()}),
        incomplete=any(ratio.incomplete for ratio in ratios.values()),
        clocks_contradict=any(ratio.contradicted for ratio in ratios.values()),
        clock_set=iteration.clock_set,
        cause_ns={
            name: causes.of_iteration(name, iteration.index)
            for name in ratios
            if has_account(iteration.ranks, name)
        },
        ranks=rank_entries(report, iteration.index, iteration.ranks) if by_rank else [],
    )


def rank_entries(
    report: Report, iteration: int, ranks: RankIterations
) -> list[summary.RankIterationEntry]:
    """Return the entries of the ranks of an iteration.

    ``unattributed_ns`` and ``overlap_ns`` are those of the window of ``schedule``.

    Args:
        report: The report.
        iteration: Index of the iteration.
        ranks: The ranks in it.
    """
    causes, communication = report.explanation.causes, report.explanation.communication
    names = [name for name in ranks.columns.accounts if has_account(ranks, name)]
    windows = {name: _window_rows(ranks, name) for name in names}
    idle_ns = {name: causes.of_ranks(name, iteration, ranks.rank) for name in names}
    ratios = {name: own_ratios(ranks, name) for name in ranks.columns.accounts}
    bounds = {name: own_intervals(ranks, name) for name in names}
    columns = zip(
        indices_of(ranks),
        rank_column(ranks, "phase_ns").tolist(),
        _rows(_TIME_FIELDS, partial(rank_column, ranks)),
        _rows(
            _COMMUNICATION_FIELDS, lambda name: getattr(communication, name)[iteration][ranks.rank]
        ),
        lacking(ranks),
        strict=True,
    )
    entries = []
    for row, (rank, phase_ns, times, communicated, missing) in enumerate(columns):
        window_of = {name: of_ranks[row] for name, of_ranks in windows.items()}
        schedule = window_of.get("schedule")
        entries.append(
            summary.RankIterationEntry(
                rank=rank,
                busy_ns=dict(zip(PHASES, phase_ns, strict=True)),
                **dict(zip(_TIME_FIELDS, times, strict=True)),
                unattributed_ns=None if schedule is None else schedule.unattributed_ns,
                overlap_ns=None if schedule is None else schedule.overlap_ns,
                bubble_ns={name: window.bubble_ns for name, window in window_of.items()},
                bubble_ratio={name: of_ranks[row] for name, of_ranks in ratios.items()},
                bubble_interval=_intervals({n: of_ranks[row] for n, of_ranks in bounds.items()}),
                missing=missing,
                windows=window_of,
                cause_ns={name: of_ranks[row] for name, of_ranks in idle_ns.items()},
                communication=summary.RankCommunication(*communicated),
            )
        )
    return entries


def _window_rows(ranks: RankIterations, ratio: str) -> list[summary.RankWindow]:
    """Return the window of a ratio on each rank of an iteration."""
    rows = _rows(_WINDOW_FIELDS, partial(account_column, ranks, ratio))
    return [summary.RankWindow(*row) for row in rows]


def _rows(names: Sequence[str], column: Callable[[str], Ints]) -> Iterable[tuple[int, ...]]:
    """Return the rows of a table that is given by a function of the column's name."""
    return zip(*(column(name).tolist() for name in names), strict=True)


def _intervals(
    intervals: Mapping[str, tuple[float, float] | None],
) -> dict[str, tuple[float, float] | None]:
    """Return the clock bounds of the ratios that need a common clock, with None if unknown."""
    return {r.name: intervals.get(r.name) for r in ratio_definitions() if r.common_clock}


# Statistics over the averaged iterations.


def _numbers(report: Report) -> summary.Numbers:
    measured, causes = report.summary, report.explanation.causes
    averaged = [iteration for iteration in report.iterations if iteration.averaged]
    cause_ns = {}
    for name in causes.idle_ns:
        known = [i.index for i in averaged if i.ratios[name].value is not None]
        cause_ns[name] = causes.of_iterations(name, np.array(known, np.int64))
    return summary.Numbers(
        iterations=measured.iterations,
        bubble_ratio=_averages(measured.bubble_ratio),
        bubble_interval=_intervals(measured.bubble_interval),
        bubble_low=_averages(measured.bubble_low),
        bubble_overhead=_averages(measured.bubble_overhead),
        window_ns=_averages(measured.window_ns),
        cause_ns=cause_ns,
        bubble_parts=_parts(bubble_parts(report)),
        kernel_time=summary.KernelTimeEntry(**report.kernel_time.entry),
        launch_gap=report.launch_gap,
        step=summary.StepSummary(
            window=step_window(report),
            parts=_parts(step_parts(report)),
            flops_use=flops_use(report),
        ),
    )


def _averages(spreads: Mapping[str, Spread]) -> dict[str, summary.Average]:
    return {name: summary.Average(**asdict(spread)) for name, spread in spreads.items()}


def _parts(parts: Sequence[BubblePart]) -> list[summary.TimePart]:
    return [summary.TimePart(**asdict(part)) for part in parts]


# Schedules and times of operations.


def _schedule(recognition: Recognition | None) -> summary.ScheduleEntry | None:
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
        deviations=[_deviation(deviation) for deviation in recognition.deviations],
    )


def _deviation(deviation: Deviation) -> summary.DeviationEntry:
    return summary.DeviationEntry(
        rank=deviation.rank,
        iteration=deviation.iteration,
        phase=deviation.phase.label,
        microbatch=deviation.microbatch,
        chunk=_number(deviation.chunk),
        what=deviation.what,
        places=deviation.places,
    )


def _number(number: int) -> int | None:
    """Return a number, or None for -1."""
    return None if number < 0 else number


def _phase_time(kind: PhaseTime) -> summary.PhaseTimeEntry:
    numbers = {name: _number(getattr(kind, name)) for name in ("stage", "chunk", "virtual_stage")}
    return summary.PhaseTimeEntry(**{**asdict(kind), "phase": kind.phase.label, **numbers})


def _microbatch_lengths(report: Report) -> tuple[tuple[float, ...], ...]:
    """Return the lengths of the microbatches of averaged iterations, relative to their mean."""
    averaged = [i.index for i in report.iterations if i.averaged and i.kind == "training"]
    counts = {report.iterations[index].microbatches for index in averaged}
    if len(counts) != 1 or None in counts:
        return ()
    (count,) = counts
    pipeline = np.array([NONE if r.pipeline is None else r.pipeline for r in report.ranks])
    lengths = lengths_of_iterations(report.operations, pipeline, averaged, count or 0)
    return tuple(tuple(round(length, 4) for length in row) for row in lengths.tolist())


def _stragglers(report: Report) -> list[summary.Straggler]:
    stragglers = report.explanation.phase_times.stragglers
    rows = np.array([row for row, _ in stragglers], np.int64)
    return [
        summary.Straggler(**operation, times_median=times_median)
        for operation, (_, times_median) in zip(_operations(report, rows), stragglers, strict=True)
    ]


def _operations(report: Report, rows: Ints) -> list[dict[str, Any]]:
    """Return the values of operations by field."""
    return [
        {
            "rank": rank,
            "iteration": iteration,
            "phase": Phase(phase).label,
            "microbatch": _number(microbatch),
            "chunk": _number(chunk),
            "start_ns": start_ns,
            "end_ns": end_ns,
        }
        for rank, iteration, phase, microbatch, chunk, start_ns, end_ns in _rows(
            _OPERATION_FIELDS, lambda name: getattr(report.operations, name)[rows]
        )
    ]


# Explanations.


def _critical_path(report: Report) -> summary.CriticalPathEntry | None:
    path = report.explanation.path
    if path is None:
        return None
    slack, has_slack = None, path.slack_ns > 0
    if has_slack.sum() <= _MAX_SLACKS:
        operations = _operations(report, path.replayed[has_slack])
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
        operations=[summary.OperationEntry(**own) for own in _operations(report, path.operations)],
        slack=slack,
    )


def _what_if(what_if: WhatIf | None) -> summary.AlternativesEntry | None:
    if what_if is None:
        return None
    measured = what_if.measured
    return summary.AlternativesEntry(
        reason=what_if.reason,
        window=what_if.window,
        times=None if measured is None else _simulated_times(measured),
        rows=[_choice(choice) for choice in what_if.rows],
        reordered=what_if.reordered,
    )


def _choice(choice: Choice) -> summary.AlternativeEntry:
    return summary.AlternativeEntry(
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


def _simulated_times(measured: MeasuredTimes) -> summary.SimulatedTimes:
    """Return times by stage, without those of virtual stages."""
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


def _longest_bubbles(report: Report) -> list[summary.LongBubble]:
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
        for row, sentence in longest_bubbles(report)
    ]


def _slowdown(slowdowns: Slowdowns) -> summary.SlowdownEntry:
    values = {field.name: getattr(slowdowns, field.name) for field in fields(slowdowns)}
    values["by_link"] = {
        f"{source}-{target}": times for (source, target), times in slowdowns.by_link.items()
    }
    return summary.SlowdownEntry(**values)


def _saved_timeline(timeline: Timeline) -> summary.SavedTimeline:
    return summary.SavedTimeline(
        base_ns=timeline.base_ns,
        names=timeline.names,
        tables={
            table: {name: column.tolist() for name, column in columns.items()}
            for table, columns in timeline.tables.items()
        },
    )
