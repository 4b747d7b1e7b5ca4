"""Advice: the explanation of a run in sentences: the longest bubbles, and what to do first."""

from __future__ import annotations

from collections.abc import Mapping

from bubbleviz.explain.phase_times import Straggler
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.texts import counted, percent
from bubbleviz.report.advice_list import BOUND, FASTER_TRANSFERS, RECORD_LESS, advice_of
from bubbleviz.report.labels import in_ms, operation_label, rank_label, shortened
from bubbleviz.report.methods import few_lacking
from bubbleviz.report.rank_means import KernelTime, kernel_time_of
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import (
    KERNELS_LEFT_OUT,
    KERNELS_LOST,
    MAYBE_INCOMPLETE,
    RANKS_MISSING,
    RANKS_UNNAMED,
    WITHOUT_GPU_WORK,
    WORK_UNKNOWN,
)
from bubbleviz.report.standouts import latest_host

#: A change that saves less of an iteration than this is not worth a sentence.
_WORTH = 0.005
#: Nor is one that saves less than this share of what twice the microbatches would.
_BESIDE_SCHEDULE = 0.05
#: A run that is idle for this share of its periods is not to be called one without a bubble.
_BETWEEN = 0.01
#: Where fewer kernels than this share lack their launching call, operations are about whole.
_LOST = 0.01
#: Changes that are for comparison only.
_NOT_ADVICE = frozenset({"measured", "no-delay"})
#: What to do to get a change, where that is the same for every run.
_ADVICE = {
    "no-transfer": FASTER_TRANSFERS,
    "no-collective": "Overlap collectives with compute, or shorten them",
    "no-profiler": RECORD_LESS,
    "no-latency": "Launch fewer, larger kernels: kernels start late after their launch",
}
#: What may take more time than the bubble, and what to do about it.
_GAPS = (
    "Launch gaps inside operations, in which no kernel runs, take",
    "launch fewer, larger kernels (fused, or as graphs); bubbleviz idle attributes the gaps "
    "to what the host did",
)
_UNATTRIBUTED = (
    "Compute outside every operation takes",
    "name it in ranges, or with --convention, for a ratio that counts it; the largest kernels are "
    "listed",
)
#: What to do where a rank is missing: without its work, no ratio shows what to change.
_INCOMPLETE = (
    "Ranks of the run are missing, so its bubble is not known: analyze the profiles of all ranks "
    "together"
)
#: What to do where few pipelines lack one.
_LACKING = "Ranks of {} of {} are missing: analyze the profiles of all ranks together"
#: What to do where one may be: its work would look like transfers between the others.
_MAYBE_INCOMPLETE = (
    "Make sure that no profile is missing: between some stages every microbatch is away long "
    "enough for one more; where all are here, --parallel says so, and transfers take that time"
)
#: What to do where only the ranges of a stage were recorded.
_WITHOUT_GPU_WORK = (
    "Record the GPU work of all stages: of some the profiles hold the ranges and no kernel, so the "
    "bubble of the pipeline is not known; trace GPU work in every process (limitations name them)"
)
#: What to do where kernels are: where they ran looks idle.
_KERNELS_LOST = (
    "Profile again: kernels that were launched are not in the profile, so idle time may be work; "
    "the limitations count them"
)
#: What to do where kernels have no times, or operations no kernels; likewise.
_KERNELS_LEFT_OUT = (
    "Export or profile again: kernels were left out since their times cannot be, so idle time may "
    "be work; the limitations count them"
)
_WORK_UNKNOWN = (
    "Profile again: of some forwards and backwards no kernel is in the profile, so idle time may "
    "be work; the limitations count them"
)
#: What to do where GPUs that computed have no operations.
_RANKS_UNNAMED = (
    "Name the forwards and backwards of all GPUs: some computed as long as the others outside "
    "every operation, so the bubble of the pipeline is not known; the limitations name them"
)
#: What to do where a restriction leaves no other advice.
_OF_RESTRICTION = {
    WITHOUT_GPU_WORK: _WITHOUT_GPU_WORK,
    KERNELS_LOST: _KERNELS_LOST,
    KERNELS_LEFT_OUT: _KERNELS_LEFT_OUT,
    RANKS_UNNAMED: _RANKS_UNNAMED,
    WORK_UNKNOWN: _WORK_UNKNOWN,
}


def first_thing(report: Report) -> str | None:
    """Return what to do first, in sentences; None where it is unknown.

    GPU work of stages, kernels and launches that were not recorded come first, and alone: what
    operations and bubbles are rests on them. Ranks that are missing come next, then what outweighs
    the bubble: no change of the pipeline removes that. Where few pipelines lack ranks, advice on
    the others stands. Where no iteration is averaged, nothing is advised.
    """
    if report.summary.iterations == 0:
        return None
    restrictions = report.restrictions
    alone = next((_OF_RESTRICTION[own] for own in restrictions if own in _OF_RESTRICTION), None)
    alone = alone or _lost_launches(report)
    if alone is not None:
        return alone
    heavier, replays = _heavier_than_bubble(report), _replays(report)
    missing, lacking = _missing_ranks(report), few_lacking(report)
    if missing is not None and lacking is None:
        return f"{missing}. {heavier}" if heavier else missing
    change = None if replays is None else _first_advice(report, replays)
    if heavier is not None:
        other: str | None = f"{heavier}. {change}" if change else heavier
    else:
        other = _unknown(report) if replays is None else change or _schedule_bound(report, replays)
    if missing is None or lacking is None:
        return other
    missing = _LACKING.format(lacking.lacking, counted(lacking.pipelines, "pipeline"))
    return f"{missing}. {other}" if other else missing


def _unknown(report: Report) -> str | None:
    """Return why nothing can be advised on a pipeline; None where there is none."""
    source = report.explanation.slowdown_source
    if report.no_pipeline is not None or source is None or not source.reason:
        return None
    return (
        f"What would shorten iterations is unknown, since {source.reason}; the limitations say "
        "what would tell (-v coverage)"
    )


def _missing_ranks(report: Report) -> str | None:
    """Return the advice where ranks of a pipeline are missing, or may be."""
    if RANKS_MISSING in report.restrictions and not report.single_stage:
        return _INCOMPLETE
    return _MAYBE_INCOMPLETE if MAYBE_INCOMPLETE in report.restrictions else None


def _lost_launches(report: Report) -> str | None:
    """Return the advice where kernels without a launching call can change the primary ratio."""
    kernels = sum(profile.kernels for profile in report.profiles)
    lost = kernels - sum(profile.linked_kernels for profile in report.profiles)
    low = report.lower_bound(report.headline)
    if low is None or lost <= _LOST * kernels:
        return None
    mean = report.summary.bubble_ratio[report.headline].mean
    return (
        "Record again without losses, from before the first iteration on: the launching calls of "
        f"{lost:,} of {kernels:,} kernels ({_percent(lost / kernels)}) are not in the profiles, so "
        "it is unknown which operations these belong to, and the ratio lies between "
        f"{_percent(low)} and {_percent(mean)}"
    )


def _replays(report: Report) -> Mapping[str, WhatIf] | None:
    """Return the iteration as measured and with each change, by name; None where it is unknown."""
    replays = {change.name: change for change in report.explanation.what_if}
    measured = replays.get("measured")
    if measured is None or measured.bubble_ratio is None or measured.makespan_ns <= 0:
        return None
    return replays


def _heavier_than_bubble(report: Report) -> str | None:
    """Return the sentence on what is lost beside bubbles, where that is much; None where not.

    These are launch gaps, or compute outside operations, that take more time than bubbles, and
    launch gaps that take most of the operations' time.
    """
    time = kernel_time_of(report)
    idle = "the bubble" if report.no_pipeline is None else "the idle time between operations"
    bubble = f"more than {idle} ({_percent(time.bubble_ns / (time.window_ns or 1))})"
    filled = f"and {_percent(time.gap_ns / (time.work_ns or 1))} of the time that counts as work"
    outweighing = [
        (time_ns, sentence, than)
        for time_ns, outweighs, sentence, than in (
            (time.gap_ns, time.gaps_outweigh, _GAPS, bubble),
            (time.gap_ns, time.gaps_fill_work, _GAPS, filled),
            (time.unattributed_ns, time.unattributed_outweighs, _UNATTRIBUTED, bubble),
        )
        if outweighs
    ]
    if not outweighing:
        return _slow_rank(time)
    time_ns, (subject, remedy), than = max(outweighing, key=lambda found: found[0])
    return f"{subject} {_percent(time_ns / time.window_ns)} of the window, {than}: {remedy}"


def _slow_rank(time: KernelTime) -> str | None:
    """Return the sentence on the rank whose operations are mostly launch gaps; None without."""
    own = time.rank_time
    if own is None:
        return None
    return (
        f"On {time.rank}, launch gaps inside operations, in which no kernel runs, take "
        f"{_percent(own.gap_ns / own.window_ns)} of the window, and "
        f"{_percent(own.gap_ns / own.work_ns)} of the time that counts as work: {_GAPS[1]}"
    )


def _best_change(report: Report, replays: Mapping[str, WhatIf]) -> str | None:
    """Return the change of the pipeline that saves most; None where none saves enough."""
    measured = replays["measured"]
    candidates = [replay for name, replay in replays.items() if name not in _NOT_ADVICE]
    best = min(candidates, key=lambda c: c.makespan_ns, default=measured)
    saved = 1 - best.makespan_ns / measured.makespan_ns
    if saved < _worth(report, measured):
        return None
    outcome = "with a schedule ratio of" if report.no_pipeline is None else "idle for"
    return (
        f"{_action(report, best)}: iteration {_typical_name(report)} would take "
        f"{in_ms(best.makespan_ns)} instead of {in_ms(measured.makespan_ns)} "
        f"({-100 * saved:.1f} %) from its first F to its last backward, {outcome} "
        f"{_percent(best.bubble_ratio)} instead of {_percent(measured.bubble_ratio)}"
    )


def _first_advice(report: Report, replays: Mapping[str, WhatIf]) -> str | None:
    """Return what saves most over the averaged iterations; None where nothing saves enough."""
    listed = advice_of(report, _worth(report, replays["measured"]))
    unproven = report.no_pipeline is not None and not report.single_stage
    if unproven or (report.explanation.diagnosis is None and not listed):
        return _best_change(report, replays)
    return listed[0].text if listed else None


def _worth(report: Report, measured: WhatIf) -> float:
    """Return the share of an iteration that a change is to save, for a sentence on it.

    Twice the microbatches save half of a pipeline's bubble.
    """
    if report.no_pipeline is not None or report.single_stage:
        return _WORTH
    return max(_WORTH, _BESIDE_SCHEDULE * (measured.bubble_ratio or 0.0) / 2)


def _schedule_bound(report: Report, replays: Mapping[str, WhatIf]) -> str:
    """Return the advice where no single change saves enough."""
    incomplete = RANKS_MISSING in report.restrictions and few_lacking(report) is None
    measured, no_delay = replays["measured"], replays["no-delay"]
    least = _worth(report, measured)
    if report.explanation.diagnosis is not None:
        least = max(least, BOUND)
    if 1 - no_delay.makespan_ns / measured.makespan_ns >= least:
        measure = "schedule ratio" if report.no_pipeline is None else "idle time in iterations"
        return (
            f"No single delay stands out; without any delay the {measure} would be "
            f"{_percent(no_delay.bubble_ratio)} instead of {_percent(measured.bubble_ratio)}"
        )
    ratios = report.summary.bubble_ratio
    if report.single_stage and (measured.bubble_ratio or 0.0) >= _WORTH:
        return (
            "One stage is no pipeline, and no schedule makes it idle; bubbleviz idle attributes "
            "its idle time to what its host did"
        )
    between = ratios["period"].mean if "period" in ratios else None
    if (measured.bubble_ratio or 0.0) < _WORTH and (between or 0.0) >= _BETWEEN:
        return (
            f"Almost no idle time lies inside iterations, but {_percent(between)} of the time from "
            "one to the next does (period); bubbleviz idle attributes it to what hosts did"
        )
    if incomplete:
        return _INCOMPLETE
    if report.single_stage:
        return "There is almost no idle time in iterations to remove"
    return _only_schedule(measured, ratios[report.headline].mean)


def _typical_name(report: Report) -> str:
    path = report.explanation.path
    return "?" if path is None else shortened(report.iterations[path.iteration].name)


def _only_schedule(measured: WhatIf, headline: float | None) -> str:
    """Return the advice where the schedule itself causes the bubble.

    Args:
        measured: the typical iteration in its own window.
        headline: mean of the headline ratio; where iterations overlap it may be 0 though each one
            alone has a bubble.
    """
    ratio = measured.bubble_ratio or 0.0
    if ratio < _WORTH or (headline is not None and headline < _WORTH):
        return "There is almost no bubble to remove"
    # Twice the work with the same bubble.
    twice = ratio / (2 - ratio)
    return (
        "The schedule itself causes the bubble: twice the microbatches would reduce the schedule "
        f"ratio from {_percent(ratio)} to about {_percent(twice)}; --what-if compares other "
        "schedules"
    )


def _action(report: Report, change: WhatIf) -> str:
    """Return the action that brings a change."""
    if change.name in _ADVICE:
        return _ADVICE[change.name]
    if change.name == "no-host":
        return f"Launch earlier{latest_host(report)}"
    if change.name == "balanced":
        return f"Balance the stages{_slowest(report)}"
    worst = report.explanation.phase_times.stragglers[:1]
    return "Find out why single operations are slow" + "".join(_straggler(report, s) for s in worst)


def _slowest(report: Report) -> str:
    times = report.explanation.phase_times
    if not times.imbalance:
        return ""
    phase, more = max(times.imbalance, key=lambda pair: pair[1])
    total: dict[int, float] = {}
    for kind in times.kinds:
        if kind.phase.label == phase and kind.stage >= 0:
            total[kind.stage] = total.get(kind.stage, 0.0) + kind.median_ns
    stage = max(total, key=lambda s: (total[s], -s))
    return f" ({phase} of stage {stage} takes {100 * more:.0f} % longer than the mean)"


def _straggler(report: Report, straggler: Straggler) -> str:
    rank = rank_label(report, int(report.operations.rank[straggler.operation]))
    label = operation_label(report, straggler.operation)
    return f" ({label} of {rank} took {straggler.times:.1f} times its median)"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else percent(ratio)
