"""Advice: what to do first, and all that would shorten iterations, the largest saving first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from bubbleviz.count.iterations import Iteration, typical
from bubbleviz.model.columns import NONE
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.phase_masks import INFERENCE
from bubbleviz.model.texts import counted, listed, percent
from bubbleviz.report.bubbles import latest_host, thread_state
from bubbleviz.report.labels import (
    in_ms,
    numbered_rank,
    shortened,
    subject,
)
from bubbleviz.report.methods import few_lacking
from bubbleviz.report.promise import TWICE_THE_MICROBATCHES, SavedAdvice, at_most, saved_share
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import MAYBE_INCOMPLETE, RANKS_MISSING, UNPROVEN

if TYPE_CHECKING:
    from bubbleviz.explain.diagnosis.faults import Fault
    from bubbleviz.explain.diagnosis.findings import Diagnosis, Finding
    from bubbleviz.explain.what_if import WhatIf

#: A change that saves less of an iteration than this is not worth a sentence.
_WORTH = 0.005
#: Nor is one that saves less than this share of what twice the microbatches would.
_BESIDE_SCHEDULE = 0.05
#: A run that is idle for this share of its periods is not to be called one without a bubble.
_BETWEEN = 0.01
#: Where fewer kernels than this share lack their launching call, operations are about whole.
_LOST = 0.01
#: What to do where nothing is slow against its like, but transfers, or the profiler, take time.
_FASTER_TRANSFERS = "Make transfers between stages faster, or overlap them with other microbatches"
_RECORD_LESS = "Record less (fewer traces, larger buffers): profiler overhead delays the GPUs"
#: What may take more time than the bubble, and what to do about it.
_GAPS = (
    "Launch gaps inside operations take",
    "launch fewer, larger kernels (fused, or as CUDA graphs); bubbleviz idle shows what the host "
    "did in the gaps",
)
_UNATTRIBUTED = (
    "Compute outside every operation takes",
    "name it in ranges, or with --convention, for a ratio that counts it; the largest kernels are "
    "listed",
)
#: What to do where a rank is missing: without its work, no ratio shows what to change.
_INCOMPLETE = (
    "Ranks of the run are missing, so its bubble is unknown: analyze the profiles of all ranks "
    "together (-v coverage names what was left out)"
)


def first_thing(report: Report) -> str | None:
    """Return what to do first, in sentences; None where it is unknown.

    GPU work of stages, kernels and launches that were not recorded come first, and alone: what
    operations and bubbles are rests on them. Ranks that are missing come next, then clocks that
    contradict each other, then what outweighs the bubble: no change of the pipeline removes that.
    Where few pipelines lack ranks, advice on the others stands. Where no iteration is averaged,
    nothing is advised.
    """
    if report.summary.iterations == 0:
        return None
    alone, missing = _not_recorded(report)
    if alone is not None:
        return alone
    lacking, replays = few_lacking(report), _replays(report)
    sentences = [_heavier_than_bubble(report)]
    clocks, _ = _wrong_clocks(report)
    if missing is not None and lacking is None:
        sentences.insert(0, missing)
    elif clocks:
        sentences = [clocks]
    else:
        found = () if replays is None else advice_of(report, _worth(report, replays["measured"]))
        certain = next((advice for advice in found if advice.certain), None)
        if certain is not None:
            if certain.kind == "launch-gaps" and sentences[0] is not None:
                # What to do about them is said with what that saves.
                sentences[0] = sentences[0].removesuffix(f": {_GAPS[1]}")
            sentences.append(certain.text)
        elif sentences[0] is None:
            sentences += [_unknown(report) if replays is None else _schedule_bound(report, replays)]
    if missing is not None and lacking is not None:
        some, of = lacking
        few = f"Ranks of {some} of {counted(of, 'pipeline')} are missing"
        sentences.insert(0, f"{few}: analyze the profiles of all ranks together")
    sentences.append(_warm_up(report))
    return ". ".join(filter(None, sentences)) or None


def further_advice(report: Report) -> tuple[str, ...]:
    """Return what to do beside the first, two things at most, with what each would save alone."""
    first, replays = first_thing(report), _replays(report)
    if first is None or replays is None:
        return ()
    others = [
        a for a in advice_of(report, _worth(report, replays["measured"])) if a.text not in first
    ]
    return tuple(a.short for a in others[:_FURTHER] if (a.saving_ratio or 0.0) >= _LEAST_FURTHER)


def _must_record_again(report: Report) -> bool:
    """Return whether the run must be recorded, or analyzed with more profiles, before all else.

    GPU work, launches or ranks are missing then, so measured times are not those of the run, and
    no saving follows from them. Where only few pipelines lack ranks, the others are measured.
    """
    alone, missing = _not_recorded(report)
    return alone is not None or (missing is not None and few_lacking(report) is None)


def _not_recorded(report: Report) -> tuple[str | None, str | None]:
    """Return what to do alone, and where ranks are missing; None where nothing calls for it."""
    restrictions = report.restrictions
    advised = next((own for own in restrictions if own.advice), None)
    alone = advised and f"{advised.advice}{_window_without(report, advised.kind)}"
    missing = _check_for_missing(report) if MAYBE_INCOMPLETE in restrictions else None
    if RANKS_MISSING in restrictions and not report.single_stage:
        missing = _incomplete(report)
    return alone or _lost_launches(report), missing


def _window_without(report: Report, kind: LimitationKind | None) -> str:
    """Return a clause with the window that leaves out damage of a kind, or "" if there is none."""
    window = _window_without_damage(report, kind)
    return f"; or leave out the iterations with damage: --window {window}" if window else ""


def _window_without_damage(report: Report, kind: LimitationKind | None) -> str:
    """Return the window that leaves out damage of a kind, or "" if there is none."""
    windows = {note.window for note in report.limitations if note.kind is kind}
    return windows.pop() if len(windows) == 1 else ""


def _check_for_missing(report: Report) -> str:
    """Return the advice to check for missing profiles, with the first sign that some are missing.

    The work of a missing stage would look like transfers between the others.
    """
    kind = LimitationKind.STAGES_MAY_BE_MISSING
    reasons = [note.reason for note in report.limitations if note.kind is kind]
    sign = f": {reasons[0].partition(';')[0]}" if reasons else ""
    return (
        f"Check for missing profiles{sign}. If none is missing, say so with --parallel tp=,pp=,dp="
    )


def _incomplete(report: Report) -> str:
    """Return what to do where ranks are missing: with the first profile that cannot be read."""
    unreadable = LimitationKind.PROFILE_UNREADABLE
    reasons = [note.reason for note in report.limitations if note.kind is unreadable]
    if not reasons:
        return _INCOMPLETE
    held = counted(len(reasons), "profile of the directory", "profiles of the directory")
    more = " (-v coverage names the others)" if reasons[1:] else ""
    return f"{held} cannot be read, so the run's bubble is unknown: {reasons[0]}{more}"


#: What to do where clocks were wrong, or where those that were chosen are.
_REPAIR_CLOCKS = (
    "Repair the clocks and record again, or set the stages with --parallel tp=,pp=,dp= if they are "
    "not as shown: clocks contradict each other, so times between ranks are wrong, and no advice "
    "rests on them (-v coverage says by how much)"
)
_ALIGN_CLOCKS = (
    "Put hosts on one clock with --align causal: by UTC their clocks contradict each other, so "
    "times between them are wrong, and no advice rests on them (-v coverage says by how much)"
)
#: Kinds of faults that times between ranks show, and those that only the clock of a rank shows,
#: which may have been set meanwhile.
_BETWEEN_RANKS, _ON_SET_CLOCKS = {"link", "launch", "collective", "queue", "token"}, {"iteration"}


def _wrong_clocks(report: Report) -> tuple[str, Collection[str]]:
    """Return what to do about clocks that contradict each other, and the kinds of faults they hide.

    Both are empty where clocks do not. The restriction for ranks of one host that contradict each
    other says what to do.
    """
    if any(note.kind is LimitationKind.RANKS_CONTRADICTED for note in report.limitations):
        return "", _BETWEEN_RANKS
    if not any(report.contradicted(name) for name in report.summary.bubble_ratio):
        return "", ()
    kinds = {note.kind for note in report.limitations}
    by_utc = LimitationKind.UTC_CONTRADICTED in kinds
    was_set = any(iteration.clock_set for iteration in report.iterations)
    hidden = _BETWEEN_RANKS | _ON_SET_CLOCKS if was_set else _BETWEEN_RANKS
    return _ALIGN_CLOCKS if by_utc else _REPAIR_CLOCKS, hidden


#: In front of a row that the first advice is about.
MARK = "►"


def culprits(report: Report) -> tuple[int, ...]:
    """Return the ranks that the first advice is about, which pictures mark; none where most are."""
    told = marked_advice(report)
    return () if told is None else told.indices


def shown_iteration(report: Report, chosen: Collection[int] = ()) -> Iteration | None:
    """Return the first iteration that is chosen, else the one to show; None where none has work.

    It is the typical one; where the ranks of the first advice are slow in some iterations only,
    that of these, for their marked rows are like all others elsewhere.

    Args:
        report: any report.
        chosen: indices of iterations.
    """
    if own := [iteration for iteration in report.iterations if iteration.index in chosen]:
        return own[0]
    told = marked_advice(report)
    if told is None or told.example_iteration is None:
        return report.typical_iteration()
    return report.iterations[told.example_iteration]


def marked_advice(report: Report) -> Advice | None:
    """Return the first advice, if it is about some ranks, and not about most."""
    first = first_thing(report) or ""
    told = next((advice for advice in advice_of(report) if advice.text in first), None)
    few = told is not None and 0 < 2 * len(told.indices) <= len(report.ranks)
    return told if few else None


def _warm_up(report: Report) -> str | None:
    """Return the advice to leave out an iteration that warms up; None where none does."""
    diagnosis = report.explanation.diagnosis
    if diagnosis is None or not diagnosis.warm_up:
        return None
    first = next(iteration for iteration in report.iterations if iteration.averaged)
    return (
        f"Iteration {shortened(first.name)} takes {diagnosis.warm_up:.1f} times as long as the "
        "others (warm-up): leave it out of averages with --skip 1; savings do"
    )


def _unknown(report: Report) -> str | None:
    """Return why nothing can be advised, and what would help, or None if no reason is known."""
    source = report.explanation.slowdown_source
    if UNPROVEN in report.restrictions:
        return (
            "Set the sizes of the run with --parallel tp=,pp=,dp=: whether its ranks are stages or "
            "replicas is unknown, and so is what would shorten iterations"
        )
    if source is None or not source.reason:
        return None
    kinds = {note.kind for note in report.limitations}
    if LimitationKind.STAGES_UNKNOWN in kinds:
        return (
            "Set the order of stages with --order, or the sizes of the run with --parallel "
            "tp=,pp=,dp=: the times of microbatches give no order, so what would shorten "
            "iterations is unknown"
        )
    if LimitationKind.ITERATIONS_UNPAIRED in kinds and None in {r.pipeline for r in report.ranks}:
        return (
            "Set the sizes of the run with --parallel tp=,pp=,dp=: which replicas form one "
            f"pipeline is unknown, and {source.reason}"
        )
    return (
        f"What would shorten iterations is unknown, since {source.reason}; -v coverage says what "
        "is missing"
    )


def _lost_launches(report: Report) -> str | None:
    """Return the advice where kernels without a launching call can change the primary ratio."""
    kernels = sum(profile.kernels for profile in report.profiles)
    lost = kernels - sum(profile.linked_kernels for profile in report.profiles)
    low = report.lower_bound(report.headline)
    if low is None or lost <= _LOST * kernels:
        return None
    mean = report.summary.bubble_ratio[report.headline].mean
    return (
        f"Record again, from before the first iteration on: {lost:,} of {kernels:,} kernels "
        f"({percent(lost / kernels)}) lack their launching call, so the ratio lies between "
        f"{percent(low)} and {percent(mean)}"
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
    time = report.kernel_time
    # Which is less than the ratio where an optimizer runs in the window.
    idle = percent(time.bubble_ns / (time.window_ns or 1))
    bubble = f"more than the idle time between operations ({idle})"
    filled = f"and {percent(time.gap_ns / (time.work_ns or 1))} of the time that counts as work"
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
        return None
    time_ns, (subject, remedy), than = max(outweighing, key=lambda found: found[0])
    return f"{subject} {percent(time_ns / time.window_ns)} of the window, {than}: {remedy}"


def _worth(report: Report, measured: WhatIf) -> float:
    """Return the share of an iteration that a change is to save, for a sentence on it.

    Twice the microbatches save half of a pipeline's bubble.
    """
    if report.no_pipeline is not None:
        return _WORTH
    return max(_WORTH, _BESIDE_SCHEDULE * (measured.bubble_ratio or 0.0) / 2)


def _schedule_bound(report: Report, replays: Mapping[str, WhatIf]) -> str:
    """Return the advice where no single change saves enough."""
    measured, no_delay = replays["measured"], replays["no-delay"]
    ratio, ratios = measured.bubble_ratio or 0.0, report.summary.bubble_ratio
    least = max(_worth(report, measured), BOUND)
    between = (ratios["period"].mean if "period" in ratios else None) or 0.0
    # Where iterations overlap the headline may be 0 though each one alone has a bubble.
    headline = ratios[report.headline].mean
    others = "" if report.alternatives is not None else "; --what-if compares other schedules"
    if 1 - no_delay.makespan_ns / measured.makespan_ns >= least:
        measure = "schedule ratio" if report.no_pipeline is None else "idle time in iterations"
        typical_one = report.typical_iteration()
        if report.summary.iterations > 1 and typical_one is not None:
            measure += f" of iteration {shortened(typical_one.name)}"
        told = (
            f"No single delay stands out; without any delay the {measure} would be "
            f"{percent(no_delay.bubble_ratio)} instead of {percent(ratio)}"
        )
    elif report.single_stage and ratio >= _WORTH:
        told = (
            "A single stage is no pipeline, so no schedule causes its idle time; bubbleviz idle "
            "shows what its host did"
        )
    elif ratio < _WORTH and between >= _BETWEEN:
        told = (
            f"Iterations have almost no idle time, but {percent(between)} of the period between "
            "their starts is idle; bubbleviz idle shows what hosts did then"
        )
    elif RANKS_MISSING in report.restrictions and few_lacking(report) is None:
        told = _incomplete(report)
    elif report.single_stage:
        told = "There is almost no idle time in iterations to remove"
    elif ratio < _WORTH or (headline is not None and headline < _WORTH):
        told = "There is almost no bubble to remove"
    elif report.kind == INFERENCE:
        told = (
            f"No change to what ran removes the bubble ({percent(headline)}, {report.headline}); "
            "more requests, or more chunks in flight, would fill it"
        )
    elif report.headline == "period":
        # What iterations idle for alone, the next one fills: more microbatches may save nothing.
        told = (
            f"No single delay stands out; {percent(headline)} of the time from one iteration to "
            f"the next is bubble (period){others}"
        )
    else:
        # Twice the work with the same bubble: of all iterations, unless pipelines that lack ranks,
        # which are not replayed, change their mean.
        mean = ratios["schedule"].mean if few_lacking(report) is None else None
        ratio = ratio if mean is None else mean
        told = (
            f"The schedule itself causes the bubble: {TWICE_THE_MICROBATCHES}, at the same "
            f"time per token, would reduce the schedule ratio from {percent(ratio)} to about "
            f"{percent(ratio / (2 - ratio))}{others}"
        )
    return told


# The list of advice: what would shorten iterations, the largest saving first.


#: What nothing is slow for has to save so much.
BOUND = 0.05
#: Of it, what no change makes take no time; and how many times as much as what is slow it has to
#: save to stand before that.
_NEVER_GONE, _MORE_THAN_SLOW = {"link", "launch-gaps"}, 1.5
#: Another schedule that saves less is not worth the change.
_LEAST_OF_SCHEDULE = 0.02
#: Nor is an order back to the planned one for less.
_LEAST_OF_ORDER = 0.001
#: A saving within this share of another is the same.
_SAME = 0.95
#: So much advice is listed.
_LISTED = 5
#: So much of it stands beside the first, if it saves that much.
_FURTHER, _LEAST_FURTHER = 2, 0.01
#: So many names stand in a sentence.
_NAMED = 3


@dataclass(frozen=True)
class Advice(SavedAdvice):
    """One thing to do, and what it saves.

    Attributes:
        kind: shape of what it removes; several joined by ``+`` where they save more together.
        ranks: numbers of those that it is about (:attr:`.Rank.number`); empty for all, or none.
        indices: their places in the report's ranks, which the columns ``rank`` hold.
        stage: likewise.
        stages: those that hold too much work; empty for other advice.
        saving_ns: mean over the averaged iterations; None if the replay misses them by too much.
        saving_ratio: the same as a share of their mean length; likewise.
        error_ratio: how far that may be off, as the half width of a 95 % confidence interval; None
            where it is unknown.
        iterations: how many of them it shortens.
        example_iteration: index of the typical one of those in which alone its ranks are slow; None
            for all.
        place: what it removes, by a name that stays the same from run to run.
        measure: what shows it, by name: how many times as long as its norm work takes, mostly.
        action: what to do, and what shows it.
        text: the same, and what it saves.
    """

    ranks: tuple[int, ...] = ()
    stage: int | None = None
    saving_ns: int | None = 0
    iterations: int = 0
    example_iteration: int | None = None
    text: str = ""

    @property
    def certain(self) -> bool:
        """Whether it saves something for sure, as far as is known."""
        if self.saving_ratio is None or self.error_ratio is None:
            return True
        return self.error_ratio < self.saving_ratio

    @property
    def share(self) -> str:
        """What it saves, in percent, and how far that may be off."""
        return saved_share(self.kind, self.place, self.saving_ratio, self.error_ratio)

    @property
    def short(self) -> str:
        """What to do, without what shows it, and what it saves."""
        return f"{self.action.partition('. ')[0]} ({self.share})"


def advice_of(report: Report, worth: float = 0.0) -> tuple[Advice, ...]:
    """Return what to do, the largest saving first; nothing if the run must be recorded again first.

    Every output lists this advice, and what it promises is checked on later runs.

    Args:
        report: of the run.
        worth: the share of an iteration that advice is to save.
    """
    if _must_record_again(report):
        return ()
    diagnosis, (_, hidden) = report.explanation.diagnosis, _wrong_clocks(report)
    findings = [] if diagnosis is None else ranked(diagnosis, hidden)[:_LISTED]
    # Savings in ns, the advice, and whether it rests on the replay of iterations.
    advised: list[tuple[int, Advice, bool]] = []
    for finding in findings:
        if diagnosis is not None and finding.saving_ratio >= worth:
            advice = _advice(report, diagnosis, finding)
            advised.append((advice.saving_ns or 0, advice, not finding.is_measured))
    others = (
        (_schedule(report), _LEAST_OF_SCHEDULE, False),
        (_planned_order(report), _LEAST_OF_ORDER, True),
    )
    for other, least, is_replayed in others:
        if other is not None and (other.saving_ratio or 0.0) >= max(worth, least):
            advised.append((other.saving_ns or 0, other, is_replayed))
    advised.sort(key=lambda row: -row[0])
    if diagnosis is None or not diagnosis.misses_measurement:
        return tuple(advice for _, advice, _ in advised[:_LISTED])
    missed_ratio = diagnosis.missed_ratio
    return tuple(
        _without_promise(advice, missed_ratio) if is_replayed else advice
        for _, advice, is_replayed in advised[:_LISTED]
    )


def _without_promise(advice: Advice, missed_ratio: float) -> Advice:
    """Return advice that does not say how much it saves.

    Args:
        advice: Advice whose saving was replayed.
        missed_ratio: How far the replay is from the measured iterations, as a share of them.
    """
    action, separator, reasons = advice.action.partition(". ")
    missed = f"the replay misses the measured iterations by {percent(missed_ratio)}"
    return replace(
        advice,
        saving_ns=None,
        saving_ratio=None,
        error_ratio=None,
        text=f"{action} (saving unknown: {missed}){separator}{reasons}",
    )


def _schedule(report: Report) -> Advice | None:
    """Return the advice to run the fastest schedule that fits in the same memory, if that is known.

    Other schedules are simulated without any delay, so they are held against the same order
    without any. Where microbatches were counted, and no schedule runs as many in this order, they
    may be chunks.
    """
    others, ran = report.alternatives, report.schedule
    if ran is not None and ran.inferred and ran.name is None:
        return None
    rows = {} if others is None else {row.name: row for row in others.rows}
    measured, same = rows.pop("measured", None), rows.pop("no-delay", None)
    if others is None or measured is None or same is None or others.window != "schedule":
        return None
    whole_ms, same_ms = measured.makespan_ms, same.makespan_ms
    known = [r for r in rows.values() if r.fits and r.makespan_ms is not None]
    best = min(known, key=lambda row: row.makespan_ms or 0.0, default=None)
    if best is None or best.makespan_ms is None or not whole_ms or same_ms is None:
        return None
    saving_ms = same_ms - best.makespan_ms
    action = f"Run the schedule {best.name}, which fits in the same memory"
    what = (
        f"at the measured times without delays, {best.makespan_ms:,.3f} ms instead of "
        f"{same_ms:,.3f} ms (-{percent(saving_ms / same_ms)}) from first F to last backward"
    )
    return Advice(
        kind="schedule",
        saving_ns=round(1e6 * saving_ms),
        saving_ratio=saving_ms / whole_ms,
        iterations=report.summary.iterations,
        place=best.name,
        action=action,
        text=f"{action}: {what}",
    )


def _planned_order(report: Report) -> Advice | None:
    """Return the advice to run what deviates in the order of the plan or schedule, if it saves."""
    recognition = report.schedule if report.plan is None else report.plan
    source = report.explanation.slowdown_source
    if recognition is None or source is None or not recognition.deviations:
        return None
    # Of very many not all are known.
    if recognition.name is None or recognition.deviation_count > len(recognition.deviations):
        return None
    from bubbleviz.explain.diagnosis.findings import mean_saving
    from bubbleviz.explain.what_if import reordered

    found = reordered(source, recognition.deviations)
    if found is None:
        return None
    measured_ns, planned_ns = found
    saving_ns, error_ns = mean_saving(measured_ns - planned_ns)
    if saving_ns <= 0:
        return None
    # Orders are replayed without what hosts launched late, which other advice counts.
    diagnosis = report.explanation.diagnosis
    length_ns = float(measured_ns.mean()) if diagnosis is None else diagnosis.length_ns
    error = None if error_ns is None else error_ns / length_ns
    deviations = recognition.deviations
    first, ranks = deviations[0], tuple(sorted({deviation.rank for deviation in deviations}))
    where = f"{first.phase.label} of microbatch {first.microbatch} is {first.what}"
    if first.places:
        where += f" by {counted(first.places, 'operation')}"
    iterations = counted(len({deviation.iteration for deviation in deviations}), "iteration")
    action = f"Run {_ranks(report, ranks)} in the order of {recognition.name}"
    evidence = (
        f"{counted(recognition.deviation_count, 'operation')} in {iterations} are out of order "
        f"({where} in iteration {shortened(report.iterations[first.iteration].name)})"
    )
    place = f"order-{recognition.name}"
    saves = _outcome(report, ("order", place), length_ns, saving_ns, error)
    stages = {report.ranks[rank].stage for rank in ranks}
    return Advice(
        kind="order",
        ranks=_numbers(report, ranks),
        indices=ranks,
        stage=stages.pop() if len(stages) == 1 else None,
        saving_ns=round(saving_ns),
        saving_ratio=saving_ns / length_ns,
        error_ratio=error,
        iterations=int((planned_ns < measured_ns).sum()),
        place=place,
        measure=(("operations out of order", float(recognition.deviation_count)),),
        action=f"{action}. {evidence}",
        text=f"{action} ({saves}). {evidence}",
    )


def ranked(diagnosis: Diagnosis, hidden: Collection[str] = ()) -> list[Finding]:
    """Return the findings that are worth a sentence, one of each family.

    Args:
        diagnosis: whose findings stand by their savings, the largest first.
        hidden: kinds of faults that cannot be told.
    """
    findings = [f for f in diagnosis.findings if not _bound(f) or f.saving_ratio >= BOUND]
    findings = [f for f in findings if not {fault.kind for fault in f.faults} & {*hidden}]
    findings = [f for place, f in enumerate(findings) if not _contained(place, findings)]
    slow_ns = max((f.saving_ns for f in findings if not _bound(f)), default=0.0)
    return [f for f in findings if not _bound(f) or _counts(f, slow_ns)]


def _counts(finding: Finding, slow_ns: float) -> bool:
    """Return whether a finding on what is not slow may stand before one that saves so much."""
    never = {fault.kind for fault in finding.faults} & _NEVER_GONE
    return not never or not slow_ns < finding.saving_ns < _MORE_THAN_SLOW * slow_ns


def _bound(finding: Finding) -> bool:
    """Return whether nothing in a finding is slow against its like."""
    return all(fault.bound for fault in finding.faults)


def _contained(place: int, findings: list[Finding]) -> bool:
    """Return whether another finding tells the same: its whole, or a part that is nearly all.

    Of parts that save about the same the first stays, so that one of them does.
    """
    finding = findings[place]
    families = {fault.family for fault in finding.faults}
    for at, other in enumerate(findings):
        if at == place or families != {fault.family for fault in other.faults}:
            continue
        wider = _reach(other) - _reach(finding)
        if wider > 0 and finding.saving_ns < _SAME * other.saving_ns:
            return True
        earlier = wider < 0 or at < place
        if wider <= 0 and earlier and other.saving_ns >= _SAME * finding.saving_ns:
            return True
    return False


def _reach(finding: Finding) -> int:
    return sum(len(fault.ranks) for fault in finding.faults)


def _advice(report: Report, diagnosis: Diagnosis, finding: Finding) -> Advice:
    faults = finding.faults
    seen = f"{finding.saved_iterations} of {counted(diagnosis.iterations, 'iteration')}"
    if len(faults) > 1 and all(f.kind == "rank" and len(f.ranks) == 1 for f in faults):
        texts = [_several_ranks(report, faults, seen)]
    else:
        texts = [_SENTENCES[fault.kind](report, fault, seen) for fault in faults]
    actions, evidence, next_steps = zip(*texts, strict=True)
    first, *others = actions
    action = ", and ".join((first, *(other[:1].lower() + other[1:] for other in others)))
    reasons = ". ".join(filter(None, (*evidence, *next_steps)))
    named = {number for fault in faults for number in fault.iterations if fault.kind == "iteration"}
    example = typical([own for own in report.iterations if own.index in named], report.headline)
    kind = "+".join(fault.kind for fault in faults)
    place = "+".join(fault.name for fault in faults)
    error = None if finding.error_ns is None else finding.error_ns / max(finding.length_ns, 1.0)
    saves = _outcome(
        report,
        (kind, place),
        finding.length_ns,
        finding.saving_ns,
        error,
        is_period=finding.is_measured,
    )
    ranks = tuple(sorted({rank for fault in faults for rank in fault.ranks}))
    return Advice(
        kind=kind,
        ranks=_numbers(report, ranks),
        indices=ranks,
        stage=faults[0].stage if len(faults) == 1 else None,
        stages=tuple(sorted({stage for fault in faults for stage in fault.stages})),
        saving_ns=round(finding.saving_ns),
        saving_ratio=finding.saving_ratio,
        error_ratio=error,
        iterations=finding.saved_iterations,
        example_iteration=None if example is None else example.index,
        place=place,
        measure=tuple(pair for fault in faults for pair in fault.phases),
        action=f"{action}. {reasons}" if reasons else action,
        text=f"{action} ({saves})" + (f". {reasons}" if reasons else ""),
    )


# Fault sentences: what to do about each shape of slowness, for people.
#
# A new shape gets its sentence in ``_SENTENCES``.


#: What to do, as the beginning of a sentence; what shows the fault, as one without its end, empty
#: where the action tells; and what to look at, likewise.
_Text: TypeAlias = "tuple[str, str, str]"


def _rank(report: Report, fault: Fault, seen: str) -> _Text:
    if len(fault.ranks) > 1:
        return (
            f"Find out why replica {report.ranks[fault.ranks[0]].pipeline} is slow, all of its "
            f"{counted(len(fault.ranks), 'rank')}",
            f"{_phases(fault)} the other replicas, in {seen}",
            "Check what its hosts have in common",
        )
    others = f"the other ranks of stage {fault.stage}" if fault.stage is not None else "its peers"
    return (
        f"Find out why {numbered_rank(report, fault.ranks[0])} is slow",
        f"{_phases(fault)} {others}, in {seen}",
        "Check its clocks, temperature and other jobs",
    )


def _several_ranks(report: Report, faults: Sequence[Fault], seen: str) -> _Text:
    """Return the sentence on ranks that save more together, as those of one tensor group do."""
    stages = {fault.stage for fault in faults}
    one = faults[0].stage if len(stages) == 1 else None
    others = "the other ranks of their stages" if one is None else f"the other ranks of stage {one}"
    times: dict[str, list[float]] = {}
    for phase, ratio in (pair for fault in faults for pair in fault.phases[:_NAMED]):
        times.setdefault(phase, []).append(ratio)
    ends = {phase: (f"{min(own):.2f}x", f"{max(own):.2f}x") for phase, own in times.items()}
    phases = ", ".join(f"{phase} {' to '.join(dict.fromkeys(own))}" for phase, own in ends.items())
    names = " and ".join(numbered_rank(report, fault.ranks[0]) for fault in faults)
    return (
        f"Find out why {names} are slow",
        f"{phases} {others}, in {seen}",
        "Check their clocks, temperatures and other jobs",
    )


def _stage(report: Report, fault: Fault, seen: str) -> _Text:
    numbers = listed([str(stage) for stage in fault.stages], _NAMED)
    moves = f"Move {listed(list(fault.moves), _NAMED)}" if fault.moves else ""
    if len(fault.stages) > 1:
        action, who = f"Move layers off stages {numbers}", "These stages take"
    else:
        alone = sum(rank.stage == fault.stage for rank in report.ranks) == 1
        action = f"Move layers off stage {numbers}"
        who = subject(numbered_rank(report, fault.ranks[0])) if alone else "That stage"
        who += " takes"
    return action, f"{who} {_phases(fault)} the others, in {seen}", moves


def _microbatch(_: Report, fault: Fault, __: str) -> _Text:
    times = f"{fault.phases[0][1]:.2f} times"
    action = "Spread tokens evenly over the microbatches"
    if fault.what:
        evidence = f"On every stage the longest 5 % take {times} as long as the shortest"
        return action, evidence, ""
    numbers = sorted({microbatch for _, microbatch in fault.microbatches})
    are_long = "microbatch {} is too long" if len(numbers) == 1 else "microbatches {} are too long"
    return (
        f"{action}: {are_long.format(listed(list(map(str, numbers)), _NAMED))}",
        f"On every stage, {times} as long as the others ({len(fault.microbatches):,} in all)",
        "",
    )


def _iteration(report: Report, fault: Fault, _: str) -> _Text:
    named = listed([shortened(report.iterations[k].name) for k in fault.iterations], _NAMED)
    times = f"{fault.phases[0][1]:.2f}x the usual time"
    share = f"{counted(len(fault.iterations), 'iteration')} ({named})"
    state = _thread(report, fault)
    during = f"; in the longest{state}" if state else ""
    if not fault.what:
        return (f"Find out what slows all ranks in {share}", f"Operations take {times}{during}", "")
    some = counted(len(fault.ranks), "rank")
    who = numbered_rank(report, fault.ranks[0]) if len(fault.ranks) == 1 else some
    look = "Check garbage collection, checkpoints and data loading then"
    paced, slow = fault.what == "pace", f"single operations of {who} are"
    if paced and len(fault.ranks) == 1:
        slow = f"{who} is"
        look = "Check its clocks, its temperature and what else ran on its host then"
    elif paced:
        slow = f"{who} are"
        look = "Check their clocks, their temperatures and what else ran on their hosts then"
    return (
        f"Find out why {slow} slow in {share}",
        f"{'Operations' if paced else 'They'} take {times}{during}",
        "" if fault.host != (NONE, NONE) else look,
    )


def _link(_: Report, fault: Fault, seen: str) -> _Text:
    if fault.link is None:
        return _FASTER_TRANSFERS, "", ""
    low, high = fault.link
    where = f" of {fault.what}" if fault.what else ""
    return (
        f"Find out why the link between stages {low} and {high}{where} is slow",
        f"Transfers take {fault.phases[0][1]:.2f}x the time of other links, in {seen}",
        "",
    )


def _launch(report: Report, fault: Fault, seen: str) -> _Text:
    if fault.what == "profiler":
        return _RECORD_LESS, "", ""
    if fault.what:
        return (
            f"Begin iterations earlier on {_ranks(report, fault.ranks)}{_thread(report, fault)}",
            f"No rank computes between iterations, in {seen}",
            ""
            if fault.host != (NONE, NONE)
            else "Check data loading, checkpoints and evaluation there",
        )
    where = f" on {_ranks(report, fault.ranks)}{_thread(report, fault)}"
    if fault.collective:
        return (
            f"Launch {fault.collective} earlier{where}",
            f"The other members wait for it, in {seen}",
            "",
        )
    # Optimizers can be late outside the windows that bubbles are counted in.
    return (
        f"Launch earlier{latest_host(report, fault.ranks) or where}",
        f"Operations start late although their input is ready, in {seen}",
        "",
    )


def _launch_gaps(report: Report, fault: Fault, _: str) -> _Text:
    """Return what to do about gaps between kernels, and what shows them."""
    of_few = f" of {_ranks(report, fault.ranks)}" if len(fault.ranks) < len(report.ranks) else ""
    running = f"ernels run for {percent(1 - fault.phases[0][1])} of their time"
    if fault.what:
        return (
            f"Launch fewer, larger kernels inside operations{of_few}, or overlap communication",
            f"Compute k{running}; a table of operations does not tell launch gaps from "
            "communication",
            "",
        )
    action = f"Launch fewer, larger kernels inside operations{of_few} (fused, or as CUDA graphs)"
    return action, f"K{running}", ""


_SENTENCES: Mapping[str, Callable[[Report, Fault, str], _Text]] = {
    "rank": _rank,
    "host": lambda report, fault, seen: (
        f"Find out why host {report.ranks[fault.ranks[0]].host} is slow",
        f"{_phases(fault)} the other hosts on all of its {counted(len(fault.ranks), 'rank')}, "
        f"in {seen}",
        "Check its clocks, cooling and other jobs",
    ),
    "stage": _stage,
    "microbatch": _microbatch,
    "iteration": _iteration,
    "link": _link,
    "collective": lambda _, fault, __: (
        f"Overlap {fault.what.rsplit(' ', 1)[0] or 'collectives'} with compute, or shorten it",
        "Its data moves while ranks are idle",
        "",
    ),
    "drift": lambda report, fault, _: (
        f"Find out why {_who(report, fault)} "
        f"{'becomes' if len(fault.ranks) == 1 and not fault.what else 'become'} slower and slower",
        f"Operations take {fault.phases[0][1]:.2f}x as long in the last iteration as in the first",
        "Check temperature and clocks",
    ),
    "slowed": lambda report, fault, _: (
        f"Find out what changed on {_who(report, fault)} before iteration "
        f"{shortened(report.iterations[fault.iterations[0]].name)}",
        f"From then on operations take {fault.phases[0][1]:.2f}x as long",
        "Check clocks, temperature and other jobs there",
    ),
    "launch": _launch,
    "launch-gaps": _launch_gaps,
    "queue": lambda report, fault, seen: (
        f"Post receives of {_ranks(report, fault.ranks)} in the order in which data comes, or "
        "defer them",
        f"{' and '.join(counted(int(n), what) for what, n in fault.phases if n)} wait behind one "
        f"whose data has not arrived, in {seen}",
        "",
    ),
    "token": lambda _, fault, seen: (
        f"Keep {'one chunk more' if fault.what == 'one' else 'more chunks'} in flight",
        "The first stage waits for the token of an earlier step, with "
        f"{counted(int(fault.phases[0][1]), 'chunk')} in the pipeline, in {seen}",
        "Let the scheduler run ahead, or divide the requests into more batches",
    ),
}


def _thread(report: Report, fault: Fault) -> str:
    """Return what the host did in the longest of a fault; empty where that is unknown."""
    return thread_state(*(None if at < 0 else report.operations.names[at] for at in fault.host))


def _ranks(report: Report, ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return numbered_rank(report, ranks[0])
    known = all(report.ranks[rank].global_rank is not None for rank in ranks)
    told = listed([str(number) for number in _numbers(report, ranks)], _NAMED)
    return f"ranks {told}{'' if known else ' in pipeline order'}"


def _numbers(report: Report, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of ranks in their job, ascending."""
    return tuple(sorted(report.ranks[rank].number for rank in ranks))


def _who(report: Report, fault: Fault) -> str:
    return "all ranks" if fault.what else _ranks(report, fault.ranks)


def _phases(fault: Fault) -> str:
    """Return how much longer each phase takes: ``F 2.50x, BW 2.27x``."""
    return ", ".join(f"{phase} {ratio:.2f}x" for phase, ratio in fault.phases[:_NAMED])


def _outcome(
    report: Report,
    what: tuple[str, str],
    length_ns: float,
    saving_ns: float,
    error: float | None,
    *,
    is_period: bool = False,
) -> str:
    """Describe a saving: its share, the remaining length of iterations, and GPU-hours per day.

    Args:
        report: Report of the run.
        what: Kind and place of the advice.
        length_ns: Length of an iteration in the replay.
        saving_ns: Time saved per iteration in the replay.
        error: Maximum error of the share, or None if unknown.
        is_period: Whether the length is the measured time from one iteration to the next.
    """
    share = saving_ns / length_ns if length_ns else 0.0
    gpu_hours = f"{24 * len(report.ranks) * share:,.1f} GPU-hours per day saved"
    saved = saved_share(*what, share, error)
    if is_period:
        left = in_ms(round(length_ns - saving_ns))
        before = in_ms(round(length_ns))
        return f"{saved}: {left} from one iteration to the next instead of {before}, {gpu_hours}"
    at_least = "at least " if at_most(*what) else ""
    left_ns = _measure_remaining(report, length_ns - saving_ns, share)
    return f"{saved}: iterations of {at_least}{in_ms(round(left_ns))}, {gpu_hours}"


def _measure_remaining(report: Report, replayed_ns: float, share: float) -> float:
    """Return the length of iterations after a saving, which is at most the measured length.

    The replay also contains collectives outside the window of ``step``, so it may take longer than
    the measured iterations. The share is then applied to the measured length.

    Args:
        report: Report of the run.
        replayed_ns: Length of an iteration in the replay, after the saving.
        share: Share of the replayed length that is saved.
    """
    windows = report.summary.window_ns
    means = [windows[name].mean for name in ("step", "period") if name in windows]
    measured_ns = max((mean for mean in means if mean is not None), default=None)
    if measured_ns is None or replayed_ns <= measured_ns:
        return replayed_ns
    return measured_ns * (1 - share)
