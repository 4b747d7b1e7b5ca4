"""Advice: what to do first, and all that would shorten iterations, the largest saving first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bubbleviz.count.iterations import Iteration, typical
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.phase_masks import INFERENCE
from bubbleviz.model.texts import counted, percent
from bubbleviz.report.labels import name_ranks, rank_numbers, shortened
from bubbleviz.report.methods import few_lacking
from bubbleviz.report.promise import TWICE_THE_MICROBATCHES, SavedAdvice, saved_share
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import MAYBE_INCOMPLETE, RANKS_MISSING, UNPROVEN
from bubbleviz.report.sentences import describe_faults, describe_saving

if TYPE_CHECKING:
    from bubbleviz.explain.changes import Change
    from bubbleviz.explain.diagnosis.findings import Diagnosis, Finding

#: A change that saves less of an iteration than this is not worth a sentence.
_WORTH = 0.005
#: Nor is one that saves less than this share of what twice the microbatches would.
_BESIDE_SCHEDULE = 0.05
#: A run that is idle for this share of its periods is not to be called one without a bubble.
_BETWEEN = 0.01
#: Where fewer kernels than this share lack their launching call, operations are about whole.
_LOST = 0.01
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


def _replays(report: Report) -> Mapping[str, Change] | None:
    """Return the iteration as measured and with each change, by name; None where it is unknown."""
    replays = {change.name: change for change in report.explanation.changes}
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


def _worth(report: Report, measured: Change) -> float:
    """Return the share of an iteration that a change is to save, for a sentence on it.

    Twice the microbatches save half of a pipeline's bubble.
    """
    if report.no_pipeline is not None:
        return _WORTH
    return max(_WORTH, _BESIDE_SCHEDULE * (measured.bubble_ratio or 0.0) / 2)


def _schedule_bound(report: Report, replays: Mapping[str, Change]) -> str:
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
    from bubbleviz.explain.changes import replay_planned_order
    from bubbleviz.explain.diagnosis.findings import mean_saving

    found = replay_planned_order(source, recognition.deviations)
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
    action = f"Run {name_ranks(report, ranks)} in the order of {recognition.name}"
    evidence = (
        f"{counted(recognition.deviation_count, 'operation')} in {iterations} are out of order "
        f"({where} in iteration {shortened(report.iterations[first.iteration].name)})"
    )
    place = f"order-{recognition.name}"
    saves = describe_saving(report, ("order", place), length_ns, saving_ns, error)
    stages = {report.ranks[rank].stage for rank in ranks}
    return Advice(
        kind="order",
        ranks=rank_numbers(report, ranks),
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
    texts = describe_faults(report, faults, seen)
    actions, evidence, next_steps = zip(*texts, strict=True)
    first, *others = actions
    action = ", and ".join((first, *(other[:1].lower() + other[1:] for other in others)))
    reasons = ". ".join(filter(None, (*evidence, *next_steps)))
    named = {number for fault in faults for number in fault.iterations if fault.kind == "iteration"}
    example = typical([own for own in report.iterations if own.index in named], report.headline)
    kind = "+".join(fault.kind for fault in faults)
    place = "+".join(fault.name for fault in faults)
    error = None if finding.error_ns is None else finding.error_ns / max(finding.length_ns, 1.0)
    saves = describe_saving(
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
        ranks=rank_numbers(report, ranks),
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
