"""Write advice as sentences, such as the first step and the saving from each change.

:mod:`bubbleviz.report.advice` decides what to advise. This module writes the sentences. Add the
sentence for a new kind of fault to ``_FAULTS``, and the sentence for a new step to ``_STEPS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from bubbleviz.explain.diagnosis.fault_names import (
    FIRST_MICROBATCH,
    MORE_KERNELS,
    ONE_MORE,
    ONLY_REPAIR,
    OUTPUT_LAYER,
    PACE,
    PROFILER,
    SAME_KERNELS,
)
from bubbleviz.explain.diagnosis.faults import Fault
from bubbleviz.explain.prompt_splits import PromptSplit
from bubbleviz.explain.recognition.recognition import Recognition
from bubbleviz.model.columns import NONE
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.memory_sizes import describe_fit
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import TRANSFERS
from bubbleviz.model.run_kinds import INFERENCE
from bubbleviz.model.texts import (
    capitalize,
    format_count,
    format_percent,
    list_and_count,
    list_first,
)
from bubbleviz.report.advice import (
    Advice,
    Step,
    StepCode,
    advise,
    count_unlinked_kernels,
    find_replay,
)
from bubbleviz.report.labels import (
    format_ms,
    list_rank_numbers,
    name_rank_with_number,
    name_ranks,
    truncate_name,
)
from bubbleviz.report.long_bubbles import describe_thread, name_latest_host
from bubbleviz.report.promise import (
    TWICE_THE_MICROBATCHES,
    format_alternatives,
    format_saving,
    is_upper_bound,
)
from bubbleviz.report.prompt_chunks import (
    describe_split,
    describe_unmeasured_lengths,
    explain_omitted_lengths,
    explain_split_time,
    explain_uneven_chunks,
)
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import count_incomplete_pipelines
from bubbleviz.report.summary import AdviceEntry, join_sentences
from bubbleviz.schedules.choices import MEASURED, NO_DELAY, Choice

if TYPE_CHECKING:
    from bubbleviz.explain.diagnosis.faults import Fault
    from bubbleviz.explain.diagnosis.findings import Finding

#: Maximum number of names that a sentence lists.
_MAX_NAMED = 3
#: Advice about slow transfers in general.
_FASTER_TRANSFERS = "Make transfers between stages faster, or overlap them with other microbatches"
#: Advice about slow transfers if neither transfers nor launches were recorded.
_FIND_LATE_STARTS = "Find out why operations start long after their input was produced"
_UNKNOWN_WHY_LATE = (
    "Neither transfers nor launches were recorded, so slow transfers or late launches may be the "
    "reason"
)
_RECORD_BOTH = "Record both to tell them apart"
#: Next check if a rank or GPU is slow.
_CHECK_GPU = "check clocks, temperature, cooling and other jobs there"
_CHECK_SLOW_RANKS = capitalize(_CHECK_GPU)
#: Next check for collectives that are exposed.
_CHECK_QUEUE = (
    "To see whether it was ready earlier but queued behind a kernel of another stream, run "
    "bubbleviz idle"
)
#: Advice if the profiler itself delays launches.
_RECORD_LESS = "Record less (fewer traces, larger buffers): profiler overhead delays the GPUs"


def describe_first_steps(report: Report) -> str | None:
    """Return the first advice as sentences, or None if nothing is advised."""
    texts = (_describe_step(report, step) for step in advise(report).first)
    return join_sentences(*texts) or None


def describe_further_steps(report: Report) -> tuple[str, ...]:
    """Return the further advice, with one clause per change.

    Each gives the saving from that change alone.
    """
    return tuple(write_advice(report, advice).short for advice in advise(report).further)


def write_all_advice(report: Report) -> tuple[AdviceEntry, ...]:
    """Return descriptions of all changes that would shorten iterations, largest saving first."""
    return tuple(write_advice(report, advice) for advice in advise(report).candidates)


def write_advice(report: Report, advice: Advice) -> AdviceEntry:
    """Return a piece of advice in words, along with its numbers.

    If the replay does not match the measured iterations, no saving is promised. In that case, the
    saving and its error are None, and the sentence says why.
    """
    action, saving, evidence = _describe_advice(report, advice)
    if advice.missed_ratio is not None:
        missed = format_percent(advice.missed_ratio)
        saving = f" (saving unknown: the replay differs from the measured iterations by {missed})"
    sentence = f"{action}{saving}"
    is_promised = advice.is_promised
    repaired = advice.repaired if is_promised else None
    return AdviceEntry(
        kind=advice.kind,
        saving_ratio=advice.saving_ratio if is_promised else None,
        action=action,
        place=advice.place,
        error_ratio=advice.error_ratio if is_promised else None,
        stages=advice.stages,
        measure=advice.measure,
        ranks=advice.ranks,
        rank_numbers=list_rank_numbers(report, advice.ranks),
        stage=advice.stage,
        saving_ns=round(advice.saving_ns) if is_promised else None,
        iterations=advice.iterations,
        example_iteration=advice.example_iteration,
        since_iteration=advice.since_iteration,
        repaired_saving_ratio=None if repaired is None else repaired.saving_ratio,
        repaired_error_ratio=None if repaired is None else repaired.error_ratio,
        repaired_saving_ns=None if repaired is None else round(repaired.saving_ns),
        evidence=evidence,
        sentence=sentence,
        text=join_sentences(sentence, evidence),
    )


def write_marked_advice(report: Report) -> AdviceEntry | None:
    """Return the advice whose ranks pictures mark, in words, or None if there is none."""
    return report.derive(make_marked_entry)


def make_marked_entry(report: Report) -> AdviceEntry | None:
    """Put the advice whose ranks pictures mark into words; see :func:`write_marked_advice`."""
    marked = advise(report).marked
    return None if marked is None else write_advice(report, marked)


def _describe_step(report: Report, step: Step) -> str:
    if step.advice is not None:
        return write_advice(report, step.advice).text
    return _STEPS[step.code](report)


def _record_again(report: Report) -> str:
    """Return the advice of the first restriction that has advice.

    If all limitations of this kind name the same undamaged window, the text also suggests measuring
    only that window.
    """
    restriction = next(restriction for restriction in report.restrictions if restriction.advice)
    windows = {note.window for note in report.limitations if note.kind is restriction.kind}
    window = windows.pop() if len(windows) == 1 else ""
    if not window:
        return restriction.advice_of_analyze
    advice = restriction.advice_of_analyze
    return f"{advice}. To leave out the damaged iterations instead, pass --window {window}"


def _record_launches(report: Report) -> str:
    """Return the advice to record the run again because kernels lack their launching calls.

    The text gives the number of affected kernels, and a lower and an upper bound of the primary
    ratio.
    """
    n_kernels, n_unlinked = count_unlinked_kernels(report)
    low = report.lower_bound(report.headline)
    mean = report.summary.bubble_ratio[report.headline].mean
    return (
        f"Record again, starting before the first iteration: {n_unlinked:,} of {n_kernels:,} "
        f"kernels ({format_percent(n_unlinked / n_kernels)}) have no recorded launch call, so the "
        f"ratio is between {format_percent(low)} and {format_percent(mean)}"
    )


def _check_for_missing(report: Report) -> str:
    """Return the advice to check for missing profiles, along with the first sign of one.

    The work of a missing stage would appear as a transfer between its neighbors. So would a second
    model chunk, if the number of chunks is only assumed.
    """
    kind = LimitationKind.STAGES_MAY_BE_MISSING
    reasons = [note.reason for note in report.limitations if note.kind is kind]
    sign = f": {reasons[0].partition(';')[0]}" if reasons else ""
    confirm = "confirm this by passing --parallel tp=,pp=,dp="
    if any(note.kind is LimitationKind.CHUNKS_ASSUMED for note in report.limitations):
        confirm = "ranks have several model chunks: copy config.json of the run to the same folder"
    return f"Check for missing profiles{sign}. If none is missing, {confirm}"


def _add_ranks(report: Report) -> str:
    """Return the advice to add the profiles of missing ranks.

    If profiles could not be read, the text gives their number and the reason for the first one.
    Otherwise, it asks for the profiles of all ranks. If a table of operations lacks a stage, it
    also asks to correct the column ``stage``.
    """
    unreadable = LimitationKind.PROFILE_UNREADABLE
    reasons = [note.reason for note in report.limitations if note.kind is unreadable]
    if not reasons:
        in_column = LimitationKind.STAGE_COLUMN_INCOMPLETE
        has_column = any(note.kind is in_column for note in report.limitations)
        check = ". If none is missing, correct the column stage" if has_column else ""
        return (
            "Some ranks of the run are missing, so its bubble is unknown: analyze the profiles of "
            f"all ranks together (-v coverage lists what was left out){check}"
        )
    profiles = format_count(len(reasons), "profile in the directory", "profiles in the directory")
    more_clause = " (-v coverage lists the others)" if reasons[1:] else ""
    return f"{profiles} cannot be read, so the run's bubble is unknown: {reasons[0]}{more_clause}"


def _add_ranks_of_few(report: Report) -> str:
    n_incomplete, n_pipelines = count_incomplete_pipelines(report.ranks) or (0, 0)
    return (
        f"Ranks are missing from {n_incomplete} of {format_count(n_pipelines, 'pipeline')}: "
        "analyze the profiles of all ranks together"
    )


def _describe_launch_gaps(report: Report) -> str:
    """Return a sentence about the time that is lost in launch gaps.

    The sentence also says what to do, unless another first step is about launch gaps.
    """
    time = report.kernel_time
    if time.gaps_outweigh:
        comparison = _compare_with_idle(report)
    else:
        filled = format_percent(time.gap_ns / (time.work_ns or 1))
        comparison = f"and {filled} of the time that counts as work"
    percentage = format_percent(time.gap_ns / time.window_ns)
    sentence = f"Launch gaps inside operations take {percentage} of the window, {comparison}"
    advised = [step.advice for step in advise(report).first if step.advice is not None]
    if any(advice.kind == "launch-gaps" for advice in advised):
        return sentence
    return (
        f"{sentence}: launch fewer, larger kernels (fuse them, or use CUDA graphs). To see what "
        "the host did in the gaps, run bubbleviz idle"
    )


def _name_compute(report: Report) -> str:
    """Return the advice to add names for compute outside operations.

    The text compares the time of this compute with the idle time between operations, both as
    percentages of the window.
    """
    time = report.kernel_time
    percentage = format_percent(time.unattributed_ns / time.window_ns)
    return (
        f"Compute outside all operations takes {percentage} of the window, "
        f"{_compare_with_idle(report)}. To count it as work, put named ranges around it, or name "
        "it with --convention (-v coverage lists the largest of these kernels)"
    )


def _compare_with_idle(report: Report) -> str:
    """Return a clause saying that a time is longer than the idle time between operations."""
    time = report.kernel_time
    idle = format_percent(time.bubble_ns / (time.window_ns or 1))
    return f"more than the idle time between operations ({idle})"


def _skip_warm_up(report: Report) -> str:
    """Return the advice to exclude the first averaged iteration, because it is a warm-up."""
    diagnosis = report.explanation.diagnosis
    times = 0.0 if diagnosis is None else diagnosis.warm_up
    first = next(iteration for iteration in report.iterations if iteration.averaged)
    return (
        f"Iteration {truncate_name(first.name)} takes {times:.1f} times as long as the "
        "others (warm-up): exclude it from averages with --skip 1. Savings already exclude it"
    )


def _set_pipelines(report: Report) -> str:
    return (
        "Set the sizes of the run with --parallel tp=,pp=,dp=: it is unknown which replicas form "
        f"one pipeline, and {_get_unreplayed_reason(report)}"
    )


def _describe_not_replayed(report: Report) -> str:
    reason = _get_unreplayed_reason(report)
    because = f", because {reason}" if reason else ""
    return (
        f"It is unknown what would shorten iterations{because} (-v coverage lists what is missing)"
    )


def _get_unreplayed_reason(report: Report) -> str:
    source = report.explanation.slowdown_source
    return "" if source is None else source.reason


def _describe_missed_measurement(report: Report) -> str:
    """Return a sentence that explains why the replay is not used for predictions.

    The sentence gives the relative difference between the replayed and the measured length.
    """
    diagnosis = report.explanation.diagnosis
    missed = format_percent(None if diagnosis is None else diagnosis.missed_ratio)
    return (
        "It is unknown what would shorten iterations: their replayed length differs from their "
        f"measured length by {missed}, so something that was not recorded delays them. Record "
        "launches and communication as well"
    )


def _describe_no_single_delay(report: Report) -> str:
    """Return a sentence about the bubble that would remain without any delays.

    The sentence compares the ratio in a replay without delays with the ratio in the unchanged
    replay.
    """
    measure = "schedule ratio" if report.no_pipeline is None else "idle time in iterations"
    typical_one = report.typical_iteration()
    if report.summary.iterations > 1 and typical_one is not None:
        measure += f" of iteration {truncate_name(typical_one.name)}"
    without_delay = find_replay(report, NO_DELAY)
    remaining = None if without_delay is None else without_delay.bubble_ratio
    return (
        f"No single delay stands out. Without any delays, the {measure} would be "
        f"{format_percent(remaining)} instead of {format_percent(_get_replayed_ratio(report))}"
    )


def _describe_idle_between_iterations(report: Report) -> str:
    percentage = format_percent(_get_mean_ratio(report, "period"))
    return (
        f"Iterations contain almost no idle time, but {percentage} of the period between their "
        "starts is idle. To see what the hosts did then, run bubbleviz idle"
    )


def _recommend_requests(report: Report) -> str:
    ratio = format_percent(_get_mean_ratio(report, report.headline))
    return (
        f"No change to the recorded work would remove the bubble ({ratio}, {report.headline}). "
        "More requests, or more chunks in flight, would fill it"
    )


def _describe_period_bubble(report: Report) -> str:
    ratio = format_percent(_get_mean_ratio(report, report.headline))
    return (
        f"No single delay stands out, but {ratio} of the time from one iteration to the next is "
        f"bubble (period){_recommend_what_if(report)}"
    )


def _recommend_microbatches(report: Report) -> str:
    """Return the advice to run twice as many microbatches.

    The bubble is assumed to keep its length, so the schedule ratio falls from r to r / (2 - r). The
    ratio r is the mean over all averaged iterations. If this mean is unknown or some pipelines lack
    ranks, r is the ratio of the replay.
    """
    mean = None
    if count_incomplete_pipelines(report.ranks) is None:
        mean = _get_mean_ratio(report, "schedule")
    ratio = _get_replayed_ratio(report) if mean is None else mean
    return (
        f"The schedule itself causes the bubble: {TWICE_THE_MICROBATCHES}, with the same "
        f"time per token, would reduce the schedule ratio from {format_percent(ratio)} to about "
        f"{format_percent(ratio / (2 - ratio))}{_recommend_what_if(report)}"
    )


def _recommend_what_if(report: Report) -> str:
    """Return a sentence that mentions ``--what-if``, or "" if this option was given."""
    return (
        "" if report.other_schedules is not None else ". To compare other schedules, pass --what-if"
    )


def _get_replayed_ratio(report: Report) -> float:
    """Return the bubble ratio in the replay of the typical iteration."""
    measured = find_replay(report, MEASURED)
    return 0.0 if measured is None else measured.bubble_ratio or 0.0


def _get_mean_ratio(report: Report, name: str) -> float | None:
    return report.summary.bubble_ratio[name].mean


_STEPS: Mapping[StepCode, Callable[[Report], str]] = {
    StepCode.RECORD_AGAIN: _record_again,
    StepCode.RECORD_LAUNCHES: _record_launches,
    StepCode.CHECK_FOR_MISSING: _check_for_missing,
    StepCode.ADD_RANKS: _add_ranks,
    StepCode.ADD_RANKS_OF_FEW: _add_ranks_of_few,
    StepCode.REPAIR_CLOCKS: lambda _: (
        "Synchronize the clocks and record again, or correct the stages with --parallel "
        "tp=,pp=,dp= if those shown are wrong. Clocks contradict each other, so times between "
        "ranks are wrong, and no advice is based on them (-v coverage shows by how much)"
    ),
    StepCode.ALIGN_CLOCKS: lambda _: (
        "Align the clocks of the hosts with --align causal: their UTC times contradict each other, "
        "so times between hosts are wrong, and no advice is based on them (-v coverage shows by "
        "how much)"
    ),
    StepCode.LAUNCH_GAPS: _describe_launch_gaps,
    StepCode.NAME_COMPUTE: _name_compute,
    StepCode.SET_SIZES: lambda _: (
        "Set the sizes of the run with --parallel tp=,pp=,dp=: it is unknown whether its ranks are "
        "stages or replicas, so it is also unknown what would shorten iterations"
    ),
    StepCode.SET_STAGE_ORDER: lambda _: (
        "Set the order of the stages with --order, or the sizes of the run with --parallel "
        "tp=,pp=,dp=: the times of the microbatches do not show the order of the stages, so it is "
        "unknown what would shorten iterations"
    ),
    StepCode.SET_PIPELINES: _set_pipelines,
    StepCode.NOT_REPLAYED: _describe_not_replayed,
    StepCode.REPLAY_MISSES: _describe_missed_measurement,
    StepCode.NO_SINGLE_DELAY: _describe_no_single_delay,
    StepCode.HOST_IDLE: lambda _: (
        "A single stage is not a pipeline, so no schedule causes its idle time. To see what its "
        "host did, run bubbleviz idle"
    ),
    StepCode.IDLE_BETWEEN_ITERATIONS: _describe_idle_between_iterations,
    StepCode.NO_IDLE_TIME: lambda _: "There is almost no idle time in iterations to remove",
    StepCode.NO_BUBBLE: lambda _: "There is almost no bubble to remove",
    StepCode.MORE_REQUESTS: _recommend_requests,
    StepCode.BUBBLE_OF_PERIOD: _describe_period_bubble,
    StepCode.MORE_MICROBATCHES: _recommend_microbatches,
    StepCode.SKIP_WARM_UP: _skip_warm_up,
}


def _describe_advice(report: Report, advice: Advice) -> tuple[str, str, str]:
    """Return the advised action, a clause about the saving, and the evidence ("" if none).

    The texts depend on what ``advice.evidence`` is: another schedule, an order, a division of
    prompts, or a finding.
    """
    evidence = advice.evidence
    if isinstance(evidence, Choice):
        return _describe_schedule(report, evidence)
    if isinstance(evidence, Recognition):
        action, explanation = _describe_order(report, advice, evidence)
        saving = _describe_saving(report, advice, is_of_period=False)
    elif isinstance(evidence, PromptSplit):
        action, explanation = _describe_even_chunks(report, evidence)
        saving = _describe_saving(report, advice, is_of_period=False)
    else:
        action, explanation = _describe_finding(report, evidence, advice.iterations)
        saving = _describe_saving(report, advice, is_of_period=evidence.is_of_period)
    return action, f" ({saving})", explanation


def _describe_schedule(report: Report, choice: Choice) -> tuple[str, str, str]:
    """Return the advice to run a faster schedule, a clause about its saving, and "" as evidence.

    The clause compares simulations of the schedule and of the order that ran, both with the
    measured times and without delays.
    """
    what_if = report.other_schedules
    base_ms = 0.0 if what_if is None else what_if.base_ms or 0.0
    limit_bytes = None if what_if is None else what_if.limit_bytes
    makespan_ms = choice.makespan_ms or 0.0
    return (
        f"Run the schedule {choice.schedule}, which {describe_fit(limit_bytes)}",
        f": with the measured times and no delays, it takes {makespan_ms:,.3f} ms instead of "
        f"{base_ms:,.3f} ms (-{format_percent((base_ms - makespan_ms) / base_ms)}) from the first "
        "F to the last backward",
        "",
    )


def _describe_order(report: Report, advice: Advice, order: Recognition) -> tuple[str, str]:
    """Return the advice to run operations in a given order, and a clause about deviations from it.

    The clause gives the number of out-of-order operations, and describes the first one.
    """
    first = order.deviations[0]
    where = f"{first.phase.label} of microbatch {first.microbatch} is {first.what}"
    if first.places:
        where += f" by {format_count(first.places, 'operation')}"
    iteration = truncate_name(report.iterations[first.iteration].name)
    n_iterations = len({deviation.iteration for deviation in order.deviations})
    return (
        f"Run {name_ranks(report, advice.ranks)} in the order of {order.name}",
        f"{format_count(order.deviation_count, 'operation')} in "
        f"{format_count(n_iterations, 'iteration')} ran out of order (in iteration {iteration}, "
        f"{where})",
    )


def _describe_even_chunks(report: Report, split: PromptSplit) -> tuple[str, str]:
    """Return the advice to divide prompts into chunks of equal time, and the evidence for it.

    The time of a single prompt is included if the iteration contains several prompts, or if the
    time is only known within bounds.
    """
    is_time_known = split.n_prompts == 1 and split.max_fixed_ns is None
    costs = report.explanation.chunk_costs
    return (
        f"Divide {describe_split(split)}",
        join_sentences(
            "" if is_time_known else explain_split_time(split),
            explain_uneven_chunks(costs),
            describe_unmeasured_lengths(split, costs),
            explain_omitted_lengths(split),
        ),
    )


def _describe_finding(report: Report, finding: Finding, n_saved: int) -> tuple[str, str]:
    """Return the advice to remove a finding's faults, and the evidence followed by the next checks.

    If there are several faults, their actions are joined into one sentence. The evidence for all
    faults comes before the next checks, and identical checks are listed once.

    Args:
        report: The run's report.
        finding: The finding.
        n_saved: Number of iterations that removing the faults shortens.
    """
    diagnosis = report.explanation.diagnosis
    n_iterations = 0 if diagnosis is None else diagnosis.iterations
    iteration_count = f"{n_saved} of {format_count(n_iterations, 'iteration')}"
    texts = _describe_faults(report, finding.faults, iteration_count)
    actions, evidence, next_steps = zip(*texts, strict=True)
    first, *other_actions = actions
    action = ", and ".join((first, *(other[:1].lower() + other[1:] for other in other_actions)))
    # Several faults may have the same next check.
    return action, join_sentences(*evidence, *dict.fromkeys(next_steps))


def _describe_saving(report: Report, advice: Advice, *, is_of_period: bool) -> str:
    """Describe a saving in percent, as the remaining iteration length, and in GPU-hours per day.

    If repairing a slow GPU is an alternative and saves more, the length and the GPU-hours are those
    after the repair.

    Args:
        report: The run's report.
        advice: The advice that promises the saving.
        is_of_period: Whether the saving is relative to the measured time from one iteration to the
            next.
    """
    best = advice.best
    length_ns, remaining_ns = best.length_ns, best.length_ns - best.saving_ns
    saved_fraction = best.saving_ns / length_ns if length_ns else 0.0
    gpu_hours = f"{24 * len(report.ranks) * saved_fraction:,.1f} GPU-hours per day"
    saved = format_saving(advice.kind, advice.place, advice.saving_ratio, advice.error_ratio)
    if is_of_period:
        remaining, length = format_ms(round(remaining_ns)), format_ms(round(length_ns))
        return (
            f"{saved}: {remaining} instead of {length} from one iteration to the next, saving "
            f"{gpu_hours}"
        )
    if advice.repaired is not None:
        repaired = advice.repaired
        saved = format_alternatives(
            saved, advice.saving_ratio, repaired.saving_ratio, repaired.error_ratio
        )
    at_least = "at least " if is_upper_bound(best.kind, best.place) else ""
    if isinstance(advice.evidence, PromptSplit) and advice.evidence.max_fixed_ns is not None:
        saved, at_least = f"at least {saved}", "at most "
    left_ns = _measure_remaining(report, remaining_ns, saved_fraction)
    return (
        f"{saved}: iterations would take {at_least}{format_ms(round(left_ns))}, saving {gpu_hours}"
    )


def _measure_remaining(report: Report, replayed_ns: float, saved_fraction: float) -> float:
    """Return the length of iterations after a saving, in ns.

    The result is normally the length in the replay. The replay also contains collectives outside
    the window of ``step``, so it may still be longer than the measured iterations. In that case,
    the saved fraction is applied to the measured length, which is the longer of the mean windows of
    ``step`` and ``period``.

    Args:
        report: The run's report.
        replayed_ns: Length of an iteration in the replay, after the saving.
        saved_fraction: Fraction of the replayed length that is saved.
    """
    windows = report.summary.window_ns
    means = [windows[name].mean for name in ("step", "period") if name in windows]
    measured_ns = max((mean for mean in means if mean is not None), default=None)
    if measured_ns is None or replayed_ns <= measured_ns:
        return replayed_ns
    return measured_ns * (1 - saved_fraction)


#: Three texts about a fault: an action, the evidence, and the next thing to check. The action is
#: the beginning of a sentence. The evidence and the check are sentences without a final period, or
#: "".
_Text: TypeAlias = "tuple[str, str, str]"


def _describe_faults(report: Report, faults: Sequence[Fault], iteration_count: str) -> list[_Text]:
    """Return an action, the evidence and the next check for each fault.

    Several slow hosts share one entry, and so do several single slow ranks.

    Args:
        report: The run's report.
        faults: The faults that are removed together.
        iteration_count: A clause that gives the number of iterations in which the faults cost time.
    """
    ranks = [fault for fault in faults if fault.kind == "rank" and len(fault.ranks) == 1]
    hosts = [fault for fault in faults if fault.kind == "host"]
    shared = [group for group in (hosts, ranks) if len(group) > 1]
    texts = []
    for fault in faults:
        group = next((group for group in shared if fault in group), None)
        if group is None:
            action, evidence, next_step = _FAULTS[fault.kind](report, fault, iteration_count)
            if len(faults) > 1:
                evidence = _name_subject(report, fault, evidence)
            texts.append((action, evidence, next_step))
        elif fault is group[0]:
            describe = _describe_slow_hosts if fault.kind == "host" else _describe_slow_ranks
            texts.append(describe(report, group, iteration_count))
    return texts


def _name_subject(report: Report, fault: Fault, evidence: str) -> str:
    """Name the ranks or stages of a fault in its evidence, if the evidence does not name them yet.

    Next to the evidence for other faults, it would be unclear which ranks "Operations" are on.

    Args:
        report: The run's report.
        fault: One of several faults that are removed together.
        evidence: Evidence for the fault, which may start with a general subject.
    """
    if fault.kind == "link" and fault.link is not None:
        general, named = "Transfers ", "Transfers between stages {} and {} ".format(*fault.link)
    elif fault.kind == "launch":
        general, named = "Operations ", f"Operations on {name_ranks(report, fault.ranks)} "
    elif fault.kind == "late-start":
        general = "It " if len(fault.ranks) == 1 else "They "
        named = f"{capitalize(name_ranks(report, fault.ranks))} "
    else:
        return evidence
    return named + evidence.removeprefix(general) if evidence.startswith(general) else evidence


def _describe_slow_rank(report: Report, fault: Fault, iteration_count: str) -> _Text:
    """Return the action, evidence and next check for a slow rank, or for a slow replica.

    A fault with several ranks is a replica whose ranks are all slow.
    """
    first = fault.ranks[0]
    if len(fault.ranks) > 1:
        n_ranks = format_count(len(fault.ranks), "rank")
        replica = f"pipeline p{report.ranks[first].pipeline}"
        phases = _compare_phases(fault, "in the other replicas")
        return (
            f"Find out why all {n_ranks} of {replica} are slow",
            f"In {replica}, {phases}, in {iteration_count}",
            f"Check what the hosts of {replica} have in common",
        )
    name = name_rank_with_number(report, first)
    others = "its peers" if fault.stage is None else f"the other ranks of stage {fault.stage}"
    return (
        f"Find out why {name} is slow",
        f"On {name}, {_compare_phases(fault, f'on {others}')}, in {iteration_count}",
        _CHECK_SLOW_RANKS,
    )


def _describe_slow_ranks(report: Report, faults: Sequence[Fault], iteration_count: str) -> _Text:
    """Return a single action, evidence and next check for several slow ranks.

    Args:
        report: The run's report.
        faults: Faults of single ranks that are removed together, for example the ranks of a
            tensor-parallel group.
        iteration_count: A clause that gives the number of iterations in which the faults cost time.
    """
    stages = {fault.stage for fault in faults}
    stage = faults[0].stage if len(stages) == 1 else None
    others = "ranks of their stages" if stage is None else f"ranks of stage {stage}"
    ranks = sorted(fault.ranks[0] for fault in faults)
    names = [name_rank_with_number(report, rank) for rank in ranks]
    return (
        f"Find out why {_join_names(names)} are slow",
        f"On these ranks, {_compare_ranges(faults, f'on the other {others}')}, in "
        f"{iteration_count}",
        _CHECK_SLOW_RANKS,
    )


def _describe_slow_hosts(report: Report, faults: Sequence[Fault], iteration_count: str) -> _Text:
    """Return one action, evidence and next check for several slow hosts.

    Args:
        report: The run's report.
        faults: Faults of hosts that are removed together.
        iteration_count: A clause that gives the number of iterations in which the faults cost time.
    """
    names = [report.ranks[fault.ranks[0]].host for fault in faults]
    return (
        f"Find out why hosts {_join_names(names)} are slow",
        f"On all ranks of these hosts, {_compare_ranges(faults, 'on other hosts')}, in "
        f"{iteration_count}",
        _CHECK_SLOW_RANKS,
    )


def _join_names(names: Sequence[str]) -> str:
    """Join names, as in ``a, b and c``, or return the first three and the number of others."""
    if not 1 < len(names) <= _MAX_NAMED:
        return list_and_count(names, _MAX_NAMED)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _compare_ranges(faults: Sequence[Fault], others: str) -> str:
    """Return a clause that compares the times of several faults with usual times, by phase.

    Args:
        faults: Faults with slow operations.
        others: Text that names what the times are compared with, such as ``on other hosts``.
    """
    multiples: dict[str, list[float]] = {}
    for fault in faults:
        for phase, multiple in fault.phases[:_MAX_NAMED]:
            multiples.setdefault(phase, []).append(multiple)
    times = {phase: _format_range(values) for phase, values in multiples.items()}
    return _format_comparison(times, others)


def _format_range(multiples: Sequence[float]) -> str:
    """Format a range of multiples such as ``1.20x to 1.50x``, or ``1.20x`` if all look equal."""
    low, high = f"{min(multiples):.2f}x", f"{max(multiples):.2f}x"
    return low if low == high else f"{low} to {high}"


def _describe_slow_host(report: Report, fault: Fault, iteration_count: str) -> _Text:
    """Return the action, evidence and next check for a host on which all ranks are slow."""
    host, n_ranks = report.ranks[fault.ranks[0]].host, format_count(len(fault.ranks), "rank")
    return (
        f"Find out why host {host} is slow",
        f"On all {n_ranks} of {host}, {_compare_phases(fault, 'on other hosts')}, in "
        f"{iteration_count}",
        _CHECK_SLOW_RANKS,
    )


def _describe_heavy_stage(report: Report, fault: Fault, iteration_count: str) -> _Text:
    """Return the action, evidence and next step for stages that have too much work.

    The next step lists the layers to move, or is "" if the layers of the model are unknown. In that
    case, the next step for a stage with a single rank helps to find out whether the stage has more
    layers or its GPU is slow.
    """
    stages = list_first([str(stage) for stage in fault.stages], _MAX_NAMED)
    moves = f"Move {list_first(list(fault.moves), _MAX_NAMED)}" if fault.moves else ""
    if len(fault.stages) > 1:
        phases = _compare_phases(fault, "on the other stages")
        evidence = f"On these stages, {phases}, in {iteration_count}"
        action = f"Move layers off stages {stages}"
        if len(fault.ranks) == len(fault.stages) and not moves:
            # Stages with too many layers and slow GPUs take equally long.
            action = f"{action}, or find out why {name_ranks(report, fault.ranks)} are slow"
        return action, evidence, moves
    phases = _compare_phases(fault, "on the other stages")
    action = f"Move layers off stage {stages}"
    if sum(rank.stage == fault.stage for rank in report.ranks) > 1:
        hint = "It also runs the output layer and the loss" if fault.detail == OUTPUT_LAYER else ""
        return action, f"On stage {stages}, {phases}, in {iteration_count}", moves or hint
    rank = name_rank_with_number(report, fault.ranks[0])
    evidence = f"On {rank}, {phases}, in {iteration_count}"
    if moves or fault.detail == MORE_KERNELS:
        return action, evidence, moves or "It also runs more kernels, so it has more layers"
    # A stage with too many layers and a stage on a slow GPU take equally long.
    repair = f"find out why {rank} is slow"
    action = capitalize(repair) if fault.detail == ONLY_REPAIR else f"{action}, or {repair}"
    return action, evidence, _distinguish_stage_from_gpu(fault)


def _distinguish_stage_from_gpu(fault: Fault) -> str:
    """Return a sentence that helps to distinguish a stage with too many layers from a slow GPU."""
    if fault.detail == OUTPUT_LAYER:
        return (
            f"Stage {fault.stage} also runs the output layer and the loss. If it already has fewer "
            f"layers for this reason, {_CHECK_GPU}"
        )
    if fault.detail == SAME_KERNELS:
        return (
            "It runs as many kernels as the other stages, so its GPU is probably slow: "
            f"{_CHECK_GPU}"
        )
    check = (
        f"If stage {fault.stage} has no more layers than the others, its GPU is slow: {_CHECK_GPU}"
    )
    if fault.detail == ONLY_REPAIR:
        return f"{check}. Otherwise, moving layers to other stages would save nothing"
    return check


def _describe_long_microbatches(report: Report, fault: Fault, _: str) -> _Text:
    """Return the action, evidence and next check for microbatches that take longer on all stages.

    ``fault.detail`` distinguishes three cases:

    - :data:`.FIRST_MICROBATCH`: only the first microbatch of the run takes long, for example
      because of compilation.
    - "": the action names the microbatches that take too long.
    - :data:`.VARYING_LENGTHS`: the lengths of all microbatches vary.

    In inference, if prompt chunks already have equal lengths or if a chunk's time depends on its
    prefix, the action is to shorten the chunks that take longest.
    """
    times = f"{_format_multiple(fault)} times"
    if fault.detail == FIRST_MICROBATCH:
        iteration, microbatch = fault.microbatches[0]
        name = truncate_name(report.iterations[iteration].name)
        return (
            f"Warm up all stages at once, before iteration {name}",
            f"Its microbatch {microbatch} takes {times} as long as the others, first on one stage "
            "and then on the next, which is typical of compilation",
            "To exclude this iteration from averages, pass --skip 1"
            if len(report.iterations) > 1
            else "",
        )
    reason = explain_uneven_chunks(report.explanation.chunk_costs)
    is_prompt = report.kind == INFERENCE and bool(reason)
    action = "Spread tokens evenly over the microbatches"
    if is_prompt:
        action = "Make the chunks that take longest shorter"
    if fault.detail:
        evidence = f"On every stage, the longest 5 % take {times} as long as the shortest 5 %"
    else:
        numbers = sorted({microbatch for _, microbatch in fault.microbatches})
        action = f"{action}: {_name_long_microbatches(numbers, is_prompt=is_prompt)} too long"
        they_take = "it takes" if len(numbers) == 1 else "they take"
        n_long = f"{format_count(len(fault.microbatches), 'time')} over all iterations"
        evidence = f"On every stage, {they_take} {times} as long as the others ({n_long})"
    if not is_prompt:
        return action, evidence, ""
    has_split = report.explanation.prompt_split is not None
    next_step = "For chunk lengths that take equal time, see -v operations"
    return action, join_sentences(reason, evidence), next_step if has_split else ""


def _name_long_microbatches(numbers: Sequence[int], *, is_prompt: bool) -> str:
    """Return, for example, ``microbatch 3 is`` or ``chunks 3, 4, 5, … are``.

    Args:
        numbers: Numbers of the microbatches, ascending. Must not be empty.
        is_prompt: Whether to call the microbatches chunks.
    """
    names = list_first([str(number) for number in numbers], _MAX_NAMED)
    if len(numbers) == 1:
        return f"{'chunk' if is_prompt else 'microbatch'} {names} is"
    return f"{'chunks' if is_prompt else 'microbatches'} {names} are"


def _describe_slow_iterations(report: Report, fault: Fault, _: str) -> _Text:
    """Return the action, evidence and next check for slow iterations.

    ``fault.detail`` says what is slow:

    - "": the operations of all ranks.
    - :data:`.PACE`: all operations of some ranks.
    - :data:`.PAUSE`: individual operations of some ranks.

    The next check is "" if all ranks are slow, or if the activity of the host is known.
    """
    names = list_first(
        [truncate_name(report.iterations[k].name) for k in fault.iterations], _MAX_NAMED
    )
    are_slow, is_slow = "are slow in", "is slow in"
    where = f"{format_count(len(fault.iterations), 'iteration')} ({names})"
    if fault.since_iteration is not None:
        are_slow, is_slow = "have been slow", "has been slow"
        where = _name_onset(report, fault.since_iteration)
    state = _describe_thread(report, fault)
    times = f"{_format_multiple(fault)}x the usual time" + (
        f"; in the longest, {state}" if state else ""
    )
    if not fault.detail:
        return f"Find out what slows down all ranks in {where}", f"Operations take {times}", ""
    is_one = len(fault.ranks) == 1
    who = name_ranks(report, fault.ranks)
    if fault.detail != PACE:
        action = f"Find out why individual operations of {who} {are_slow} {where}"
        operations = "They"
        next_step = "Check garbage collection, checkpoints and data loading at that time"
    elif is_one:
        action, operations = f"Find out why {who} {is_slow} {where}", "Operations"
        next_step = "Check its clocks, its temperature and what else ran on its host at that time"
    else:
        action, operations = f"Find out why {who} {are_slow} {where}", "Operations"
        next_step = (
            "Check their clocks, their temperatures and what else ran on their hosts at that time"
        )
    return action, f"{operations} take {times}", "" if _has_host(fault) else next_step


def _describe_slow_link(report: Report, fault: Fault, iteration_count: str) -> _Text:
    """Return the action, evidence and next check for a slow link.

    If the fault does not name a link, the action is to make all transfers faster, and the other two
    texts are "". If neither transfers nor launches were recorded, the texts say that operations may
    also start late for another reason.
    """
    is_only_inferred = _has_neither_transfers_nor_launches(report)
    if fault.link is None:
        if is_only_inferred:
            return _FIND_LATE_STARTS, _UNKNOWN_WHY_LATE, _RECORD_BOTH
        return _FASTER_TRANSFERS, "", ""
    low, high = fault.link
    where = f" of {fault.detail}" if fault.detail else ""
    change, since = fault.change, fault.since_iteration
    if change is not None and since is not None:
        return (
            f"Find out why the link between stages {low} and {high}{where} has been slow "
            f"{_name_onset(report, since)}",
            f"Transfers have taken at least {format_ms(change.after_ns)} since then, compared with "
            f"{format_ms(change.before_ns)} before",
            _check_link(report, fault),
        )
    return (
        f"Find out why the link between stages {low} and {high}{where} is slow",
        f"Transfers take {_format_multiple(fault)}x as long as on other links, in "
        f"{iteration_count}",
        f"{_UNKNOWN_WHY_LATE}. {_RECORD_BOTH}" if is_only_inferred else "",
    )


def _has_neither_transfers_nor_launches(report: Report) -> bool:
    """Return whether slow transfers look the same as late launches, because neither is recorded."""
    operations = report.operations
    return bool(
        (operations.launched_ns == NONE).all()
        and (operations.received_ns == NONE).all()
        and not mask_phases(operations.phase, TRANSFERS).any()
    )


def _check_link(report: Report, fault: Fault) -> str:
    """Return the next check for a slow link: the network, or the connection on a single host."""
    if len({rank.host for rank in report.ranks}) > 1:
        return "Check the network between the hosts of these stages"
    return f"Check what connects {name_ranks(report, fault.ranks)} (NVLink, PCIe, network)"


def _name_onset(report: Report, since: int) -> str:
    """Return ``since iteration 5`` for the index of the first iteration with a fault."""
    return f"since iteration {truncate_name(report.iterations[since].name)}"


def _describe_times_of(report: Report, fault: Fault, iteration_count: str) -> str:
    """Return a clause that says when a fault occurs: since its onset, or in how many iterations."""
    since = fault.since_iteration
    return f"in {iteration_count}" if since is None else _name_onset(report, since)


def _describe_collective(report: Report, fault: Fault, _: str) -> _Text:
    """Return the action, evidence and next check for collectives that are slow or exposed."""
    kind = fault.detail.rsplit(" ", 1)[0]
    if kind == "collective":
        kind = "the collective"
    if fault.since_iteration is not None:
        (_, before_ms), (_, after_ms) = fault.phases
        where = "" if fault.stage is None else f" of stage {fault.stage}"
        onset = _name_onset(report, fault.since_iteration)
        return (
            f"Find out why {kind}{where} has been slow {onset}",
            f"It has taken {after_ms:,.3f} ms since then, compared with {before_ms:,.3f} ms before",
            "Check the network, and what else uses it",
        )
    # Only profiles with kernels show whether a collective was queued behind a kernel.
    has_kernels = any(profile.kernels for profile in report.profiles)
    check = _CHECK_QUEUE if has_kernels else ""
    action = f"Overlap {kind} with compute, or shorten it"
    return action, "Its data moves while ranks are idle", check


def _describe_drift(report: Report, fault: Fault, _: str) -> _Text:
    """Return the action, evidence and next check for ranks that become slower gradually."""
    becomes = "becomes" if len(fault.ranks) == 1 and not fault.detail else "become"
    where, multiple = _name_faulty_ranks(report, fault), _format_multiple(fault)
    return (
        f"Find out why {where} {becomes} slower and slower",
        f"Operations on {where} take {multiple}x as long in the last iteration as in the first",
        _CHECK_SLOW_RANKS,
    )


def _describe_slowed(report: Report, fault: Fault, _: str) -> _Text:
    """Return the action, evidence and next check for ranks that became slower in a single jump."""
    iteration = truncate_name(report.iterations[fault.iterations[0]].name)
    where, multiple = _name_faulty_ranks(report, fault), _format_multiple(fault)
    return (
        f"Find out what changed on {where} before iteration {iteration}",
        f"From iteration {iteration} on, operations on {where} take {multiple}x as long",
        _CHECK_SLOW_RANKS,
    )


def _describe_late_launch(report: Report, fault: Fault, iteration_count: str) -> _Text:
    """Return the action, evidence and next check for late launches.

    There are four cases: the profiler delays launches, iterations begin late, a collective is
    launched late, or operations are launched late.
    """
    if fault.detail == PROFILER:
        return _RECORD_LESS, "", ""
    n_ranks = len(fault.ranks)
    are_all = 1 < n_ranks == len(report.ranks)
    all_ranks = "both ranks" if n_ranks == 2 else f"all {n_ranks} ranks"
    where = f" on {all_ranks if are_all else name_ranks(report, fault.ranks)}"
    if state := _describe_thread(report, fault):
        where += f", where {state}"
    if fault.detail:
        next_step = "Check data loading, checkpoints and evaluation there"
        what, evidence = "iterations", f"No rank computes between iterations, in {iteration_count}"
        if len(fault.iterations) == 1:
            what = f"iteration {truncate_name(report.iterations[fault.iterations[0]].name)}"
            evidence = f"No rank computes during a single pause, before {what}"
        if fault.may_miss_ranks:
            evidence += ". Some launches are unknown, so other ranks may be late, too"
        return f"Begin {what} earlier{where}", evidence, "" if _has_host(fault) else next_step
    when = _describe_times_of(report, fault, iteration_count)
    if fault.collective:
        action = f"Launch {fault.collective} earlier{where}"
        return action, f"The other ranks in the collective wait for it, {when}", ""
    # An optimizer can be late even outside the windows in which bubbles are measured.
    action = f"Launch operations earlier{name_latest_host(report, fault.ranks) or where}"
    return action, f"Operations start late although their input is ready, {when}", ""


def _describe_late_start(report: Report, fault: Fault, iteration_count: str) -> _Text:
    """Return the action, evidence and next check for ranks that begin iterations late."""
    subject = "It starts" if len(fault.ranks) == 1 else "They start"
    return (
        f"Begin iterations earlier on {name_ranks(report, fault.ranks)}",
        f"{subject} {fault.phases[0][1]:,.3f} ms after the first rank, "
        f"{_describe_times_of(report, fault, iteration_count)}",
        "Check data loading there",
    )


def _describe_kernel_gaps(report: Report, fault: Fault, _: str) -> _Text:
    """Return the action, evidence and next check for gaps between the kernels of operations.

    If ``fault.detail`` is set, the gaps may also be communication. The next check is always "".
    """
    are_few = len(fault.ranks) < len(report.ranks)
    where = f" of {name_ranks(report, fault.ranks)}" if are_few else ""
    action = f"Launch fewer, larger kernels inside operations{where}"
    running = f"run for only {format_percent(1 - fault.phases[0][1])} of the operation time"
    if not fault.detail:
        return f"{action} (fused, or as CUDA graphs)", f"Kernels {running}", ""
    indistinguishable = "A table of operations does not distinguish launch gaps from communication"
    return (
        f"{action}, or overlap communication",
        f"Compute kernels {running}. {indistinguishable}",
        "",
    )


def _describe_queue(report: Report, fault: Fault, iteration_count: str) -> _Text:
    """Return the action, evidence and next check for transfers that are blocked in a queue.

    The transfers wait behind a receive whose data has not arrived.
    """
    ranks = name_ranks(report, fault.ranks)
    waiting = " and ".join(format_count(int(count), what) for what, count in fault.phases if count)
    return (
        f"Post the receives of {ranks} in the order in which their data arrives, or defer them",
        f"{waiting} waited behind a receive whose data had not arrived, in {iteration_count}",
        "",
    )


def _describe_token_wait(_: Report, fault: Fault, iteration_count: str) -> _Text:
    """Return the action, evidence and next check for a first stage that waits for tokens.

    During decoding, the first stage needs the token that the last stage produced in an earlier
    step.
    """
    chunks = "one more chunk" if fault.detail == ONE_MORE else "more chunks"
    in_flight = format_count(int(fault.phases[0][1]), "chunk")
    return (
        f"Keep {chunks} in flight",
        "The first stage waits for a token from an earlier step, with "
        f"{in_flight} in the pipeline, in {iteration_count}",
        "Let the scheduler run ahead, or divide the requests into more batches",
    )


_FAULTS: Mapping[str, Callable[[Report, Fault, str], _Text]] = {
    "rank": _describe_slow_rank,
    "host": _describe_slow_host,
    "stage": _describe_heavy_stage,
    "microbatch": _describe_long_microbatches,
    "iteration": _describe_slow_iterations,
    "link": _describe_slow_link,
    "collective": _describe_collective,
    "drift": _describe_drift,
    "slowed": _describe_slowed,
    "launch": _describe_late_launch,
    "late-start": _describe_late_start,
    "launch-gaps": _describe_kernel_gaps,
    "queue": _describe_queue,
    "token": _describe_token_wait,
}


def _describe_thread(report: Report, fault: Fault) -> str:
    """Return a clause about what the host did during the longest delay, or "" if unknown."""
    names = report.operations.names
    call, surrounding_range = (None if name < 0 else names[name] for name in fault.host)
    return describe_thread(call, surrounding_range)


def _has_host(fault: Fault) -> bool:
    """Return whether it is known what the host did during the longest delay."""
    return fault.host != (NONE, NONE)


def _name_faulty_ranks(report: Report, fault: Fault) -> str:
    """Return ``all ranks``, ``host node1`` if that host has exactly these ranks, or their names."""
    if fault.detail:
        return "all ranks"
    hosts = {report.ranks[rank].host for rank in fault.ranks}
    n_on_hosts = sum(rank.host in hosts for rank in report.ranks)
    if len(hosts) == 1 and 1 < len(fault.ranks) == n_on_hosts:
        return f"host {hosts.pop()}"
    return name_ranks(report, fault.ranks)


def _format_multiple(fault: Fault) -> str:
    """Format the time of the first phase as a multiple of its usual time, without the ``x``."""
    return f"{fault.phases[0][1]:.2f}"


def _compare_phases(fault: Fault, others: str) -> str:
    """Return a clause that compares each phase's time with its usual time.

    Args:
        fault: A fault that makes operations slow.
        others: Text that names what the times are compared with, such as ``on other hosts``.
    """
    times = {phase: f"{multiple:.2f}x" for phase, multiple in fault.phases[:_MAX_NAMED]}
    return _format_comparison(times, others)


def _format_comparison(times: Mapping[str, str], others: str) -> str:
    """Format a comparison such as ``F takes 1.50x and BW 1.27x as long as on other hosts``.

    Args:
        times: Multiples of the usual time as texts, keyed by phase. Must not be empty.
        others: Text that names what the times are compared with, such as ``on other hosts``.
    """
    clauses = [f"{phase} {multiple}" for phase, multiple in times.items()]
    clauses[0] = clauses[0].replace(" ", " takes ", 1)
    *earlier, last = clauses
    phases = f"{', '.join(earlier)} and {last}" if earlier else last
    return f"{phases} as long as {others}"
