"""Decide what to do first, and list the changes that would shorten iterations.

This module makes the following decisions, once per report (:func:`advise`)::

    findings of the diagnosis ──┐
    simulated schedules ────────┼─► listed ─┬─► first ──┬─► bubbleviz.report.sentences ─► outputs
    deviations from the order ──┘           └─► further ┘
    restrictions, clocks, launch gaps ────────► first

:mod:`bubbleviz.report.sentences` puts the decisions into words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from bubbleviz.count.iterations import Iteration, choose_typical
from bubbleviz.explain.changes import replay_planned_order
from bubbleviz.explain.diagnosis.fault_names import EVEN_CHUNKS, FIRST_MICROBATCH
from bubbleviz.explain.diagnosis.findings import MAX_MISSED, estimate_mean_saving
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.run_kinds import INFERENCE
from bubbleviz.report.restrictions import (
    MAYBE_INCOMPLETE,
    RANKS_MISSING,
    UNPROVEN,
    count_incomplete_pipelines,
)
from bubbleviz.schedules.choices import MEASURED, NO_DELAY

if TYPE_CHECKING:
    from bubbleviz.explain.changes import Change
    from bubbleviz.explain.diagnosis.findings import Diagnosis, Finding
    from bubbleviz.explain.prompt_splits import PromptSplit
    from bubbleviz.explain.recognition.recognition import Recognition
    from bubbleviz.report.kernel_time import KernelTime
    from bubbleviz.report.report import Report
    from bubbleviz.schedules.choices import Choice

#: Minimum saving for advice to be given first or next, as a fraction of an iteration.
_MIN_SAVING = 0.005
#: Minimum saving of this advice, relative to the saving from doubling the number of microbatches.
_MIN_SHARE_OF_SCHEDULE = 0.05
#: If at least this fraction of the period is idle, idle time between iterations is reported instead
#: of the absence of a bubble.
_MIN_IDLE_PERIOD = 0.01
#: Maximum fraction of kernels without a launching call. Above it, the run must be recorded again.
_MAX_UNLINKED = 0.01
#: Minimum saving of a finding that contains nothing unusually slow, as a fraction of an iteration.
_MIN_BOUND_SAVING = 0.05
#: Fault kinds that cannot be removed completely, and a factor. A finding of such a kind may save
#: more than every finding about something slow. In that case, it must save at least this many times
#: as much to be listed.
_NEVER_GONE, _MIN_TIMES_SLOW = {"link", "launch-gaps"}, 2.0
#: Minimum saving of another schedule, as a fraction of an iteration.
_MIN_SCHEDULE_SAVING = 0.02
#: Minimum saving of a return to the planned order, as a fraction of an iteration.
_MIN_ORDER_SAVING = 0.001
#: Two savings are nearly equal if the smaller one is at least this fraction of the larger one.
_SAME = 0.95
#: Maximum number of entries in the list of advice.
_MAX_LISTED = 5
#: Maximum number of entries in the further advice, and their minimum saving as a fraction of an
#: iteration.
_MAX_FURTHER, _MIN_FURTHER = 2, 0.01
#: Fault kinds that are found by comparing the times of different ranks.
_BETWEEN_RANKS = {"link", "launch", "late-start", "collective", "queue", "token"}
#: Fault kinds that may be detected by mistake if a clock was set during the run.
_ON_SET_CLOCKS = {"iteration"}


class StepCode(StrEnum):
    """The subject of a step in the first advice. JSON reports contain these values."""

    #: A change from the list of advice.
    ADVICE = "advice"
    # The run must be recorded again or analyzed again.
    RECORD_AGAIN = "record-again"
    RECORD_LAUNCHES = "record-launches"
    CHECK_FOR_MISSING = "check-for-missing-profiles"
    ADD_RANKS = "add-ranks"
    ADD_RANKS_OF_FEW = "add-ranks-of-few-pipelines"
    REPAIR_CLOCKS = "repair-clocks"
    ALIGN_CLOCKS = "align-clocks"
    # Launch gaps or compute outside operations take more time than the bubble.
    LAUNCH_GAPS = "launch-gaps"
    NAME_COMPUTE = "name-compute"
    # Why no saving is known.
    SET_SIZES = "set-sizes"
    SET_STAGE_ORDER = "set-stage-order"
    SET_PIPELINES = "set-pipelines"
    NOT_REPLAYED = "not-replayed"
    REPLAY_MISSES = "replay-misses"
    # Why no single change saves enough.
    NO_SINGLE_DELAY = "no-single-delay"
    HOST_IDLE = "host-idle"
    IDLE_BETWEEN_ITERATIONS = "idle-between-iterations"
    NO_IDLE_TIME = "no-idle-time"
    NO_BUBBLE = "no-bubble"
    MORE_REQUESTS = "more-requests"
    BUBBLE_OF_PERIOD = "bubble-of-period"
    MORE_MICROBATCHES = "more-microbatches"
    #: A warm-up iteration should be excluded.
    SKIP_WARM_UP = "skip-warm-up"


#: Evidence for advice. It is a finding (faults and a replay without them), a faster simulated
#: schedule, a planned order that some operations did not follow, or a division of prompts.
Evidence: TypeAlias = "Finding | Choice | Recognition | PromptSplit"


@dataclass(frozen=True, eq=False)
class Advice:
    """A change that would shorten iterations.

    Attributes:
        kind: The kind of fault to remove, or ``schedule`` or ``order``. If several faults are
            removed together, their kinds are joined by ``+``.
        place: Name of the fault or schedule. It is the same in every run of a job.
        evidence: Finding, simulated schedule, recognized order or division of prompts that the
            advice is based on.
        saving_ns: Mean saving per averaged iteration, in ns.
        length_ns: Mean iteration length in ns (the denominator of ``saving_ratio``).
        saving_ratio: The saving as a fraction of the iteration length.
        error_ratio: Half-width of the 95 % confidence interval of ``saving_ratio``, or None if
            unknown.
        iterations: Number of iterations that the change shortens.
        ranks: Indices of the ranks to change, in ascending order. Empty if the advice applies to
            all ranks or to no rank in particular.
        stages: Stages that have too much work. Empty for all other kinds of advice.
        stage: Common stage of ``ranks``, or None if there are no ranks or several stages.
        example_iteration: Index of the typical iteration among the iterations with the fault, or
            None if the advice is neither about slow iterations nor about a fault that began during
            the run.
        since_iteration: Index of the first iteration with the fault if it began during the run,
            otherwise None.
        measure: (name, size) pairs that quantify the fault, for example ``("F", 1.2)`` if F takes
            1.2 times its usual time.
        missed_ratio: Relative difference between the replayed and the measured iterations, if that
            difference is too large for the saving to be promised. None if the saving is promised.
        is_single_pause: Whether the advice is about the only pause between iterations, which may
            not recur.
        repaired: The same advice with the saving if slow stages have slow GPUs that are repaired.
            None if that explanation is ruled out, and for all other kinds of advice.
    """

    kind: str
    place: str
    evidence: Evidence
    saving_ns: float
    length_ns: float
    saving_ratio: float
    iterations: int
    error_ratio: float | None = None
    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    stage: int | None = None
    example_iteration: int | None = None
    since_iteration: int | None = None
    measure: tuple[tuple[str, float], ...] = ()
    missed_ratio: float | None = None
    is_single_pause: bool = False
    repaired: Advice | None = None

    @property
    def best(self) -> Advice:
        """This advice or :attr:`repaired`, whichever saves more."""
        repaired = self.repaired
        return self if repaired is None or repaired.saving_ns < self.saving_ns else repaired

    @property
    def is_promised(self) -> bool:
        """Whether the saving is reliable enough to be shown in outputs."""
        return self.missed_ratio is None

    @property
    def is_certain(self) -> bool:
        """Whether the confidence interval of the saving, or of the repair's saving, excludes 0.

        The value is also True if the interval is unknown or the saving is not promised.
        """
        if self.repaired is not None and self.repaired.is_certain:
            return True
        if not self.is_promised or self.error_ratio is None:
            return True
        return self.error_ratio < self.saving_ratio


@dataclass(frozen=True, eq=False)
class Step:
    """A step in the first advice.

    Attributes:
        code: The subject of the step.
        advice: The change to make. None unless the code is :attr:`StepCode.ADVICE`.
    """

    code: StepCode
    advice: Advice | None = None


@dataclass(frozen=True, eq=False)
class Advised:
    """All advice in a report.

    Attributes:
        first: What to do first, one step per sentence, in order. Empty if nothing is advised.
        further: Advice from ``candidates`` to follow next, largest saving first.
        candidates: Changes that would shorten iterations, largest saving first.
        marked: The first advice in ``first`` that names at most half of the ranks, or None if there
            is none. Pictures mark the ranks that this advice names.
    """

    first: tuple[Step, ...]
    further: tuple[Advice, ...]
    candidates: tuple[Advice, ...]
    marked: Advice | None

    @property
    def marked_ranks(self) -> tuple[int, ...]:
        """Indices of the ranks that pictures mark. Empty if there is no marked advice."""
        return () if self.marked is None else self.marked.ranks

    @property
    def example_iteration(self) -> int | None:
        """Example iteration of the first advice that has one, or None; see :class:`Advice`."""
        examples = [step.advice.example_iteration for step in self.first if step.advice is not None]
        return next((example for example in examples if example is not None), None)


def advise(report: Report) -> Advised:
    """Return the first advice, the further advice, and all changes that would shorten iterations.

    The result is computed once and cached in the report.
    """
    return report.derive(make_advice)


def make_advice(report: Report) -> Advised:
    """Decide what to do first and next, and list the changes that would shorten iterations.

    - If the run must be recorded again, or more than a few pipelines lack ranks, the list is empty,
      because the times are unreliable.
    - If no iterations are averaged, only the list is returned, without first and further advice.
    - Further advice must promise a saving of at least ``_MIN_FURTHER``.
    """
    unrecorded, missing = _find_unrecorded_step(report), _find_missing_step(report)
    clock_step, hidden_kinds = _check_clocks(report)
    candidates: tuple[Advice, ...] = ()
    if unrecorded is None and (missing is None or _is_missing_in_few(report)):
        candidates = tuple(_list_advice(report, hidden_kinds))
    if not report.summary.iterations:
        return Advised((), (), candidates, None)
    worthwhile = _select_worthwhile(report, candidates)
    if unrecorded is not None:
        first: tuple[Step, ...] = (Step(unrecorded),)
    else:
        certain = next((advice for advice in worthwhile if advice.is_certain), None)
        first = tuple(_find_first_steps(report, missing, clock_step, certain))
    done = [step.advice for step in first if step.advice is not None]
    further = _select_further(worthwhile, done)
    marked = next((a for a in done if 0 < 2 * len(a.ranks) <= len(report.ranks)), None)
    return Advised(first, further, candidates, marked)


def _select_further(worthwhile: Collection[Advice], done: Collection[Advice]) -> tuple[Advice, ...]:
    """Return the advice to give after the first advice, in its original order.

    Advice for only some of the places of the first advice is left out.

    Args:
        worthwhile: Advice that saves enough to be given first.
        done: The first advice.
    """
    others = [advice for advice in worthwhile if advice not in done]
    next_best = [advice for advice in others if not _is_part(advice, done)][:_MAX_FURTHER]
    return tuple(a for a in next_best if a.is_promised and a.best.saving_ratio >= _MIN_FURTHER)


def _is_part(advice: Advice, done: Collection[Advice]) -> bool:
    """Return whether a piece of advice names only some of the places that another one names."""
    places = set(advice.place.split("+"))
    return any(places < set(other.place.split("+")) for other in done)


def _select_worthwhile(report: Report, candidates: Collection[Advice]) -> list[Advice]:
    """Return the advice that saves enough to be given first, in its original order.

    The minimum saving comes from :func:`_find_min_saving`. The list is empty if the typical
    iteration was not replayed.
    """
    measured = _find_replayed_iteration(report)
    if measured is None:
        return []
    min_saving = _find_min_saving(report, measured)
    return [advice for advice in candidates if advice.best.saving_ratio >= min_saving]


def choose_shown_iteration(report: Report, selected: Collection[int] = ()) -> Iteration | None:
    """Return the iteration to show: the first selected iteration, otherwise the typical iteration.

    There is one exception. If the first advice is about slow iterations, or about a fault that
    began during the run, the typical iteration may look normal. If no iteration is selected, the
    example iteration of the advice is then shown instead.

    Args:
        report: The run's report.
        selected: Indices of the iterations that the user selected.

    Returns:
        The iteration, or None if no iteration has work.
    """
    first_chosen = next((it for it in report.iterations if it.index in selected), None)
    if first_chosen is not None:
        return first_chosen
    example = advise(report).example_iteration
    return report.typical_iteration() if example is None else report.iterations[example]


def _find_first_steps(
    report: Report,
    missing: StepCode | None,
    clock_step: StepCode | None,
    certain: Advice | None,
) -> Iterator[Step]:
    """Yield what to do first for a run whose GPU work and launches were recorded.

    The first case that applies is used:

    1. More than a few pipelines lack ranks: the step to add the missing ranks, then the step from
       :func:`_find_outweighing_step`.
    2. Clocks contradict each other: the step to repair them.
    3. There is a step from :func:`_find_outweighing_step`, or certain advice: the step, then the
       advice.
    4. Otherwise: the step that explains why there is no advice.

    If only a few pipelines lack ranks, the step to add the missing ranks comes first, followed by
    the steps from cases 2 to 4. The step to skip a warm-up iteration always comes last.

    Args:
        report: The run's report.
        missing: Step for missing ranks, or None if no ranks are missing.
        clock_step: Step for repairing contradictory clocks, or None if the clocks agree.
        certain: First worthwhile advice that is certain to save time, or None if there is none.
    """
    outweighing = _find_outweighing_step(report.kernel_time)
    is_missing_in_few = missing is not None and _is_missing_in_few(report)
    if is_missing_in_few:
        yield Step(StepCode.ADD_RANKS_OF_FEW)
    if missing is not None and not is_missing_in_few:
        yield Step(missing)
        if outweighing is not None:
            yield Step(outweighing)
    elif clock_step is not None:
        yield Step(clock_step)
    elif outweighing is not None or certain is not None:
        if outweighing is not None:
            yield Step(outweighing)
        if certain is not None:
            yield Step(StepCode.ADVICE, certain)
    else:
        yield Step(_find_step_without_advice(report))
    diagnosis = report.explanation.diagnosis
    if diagnosis is not None and diagnosis.warm_up:
        yield Step(StepCode.SKIP_WARM_UP)


def _find_unrecorded_step(report: Report) -> StepCode | None:
    """Return the step to record the run again, or None if the recording is sufficient.

    - ``RECORD_AGAIN``: a restriction of the report has advice.
    - ``RECORD_LAUNCHES``: more than a fraction ``_MAX_UNLINKED`` of the kernels lack their
      launching call. This noticeably lowers the lower bound of the primary ratio.
    """
    if any(restriction.advice for restriction in report.restrictions):
        return StepCode.RECORD_AGAIN
    n_kernels, n_unlinked = count_unlinked_kernels(report)
    can_change_ratio = report.lower_bound(report.headline) is not None
    if can_change_ratio and n_unlinked > _MAX_UNLINKED * n_kernels:
        return StepCode.RECORD_LAUNCHES
    return None


def count_unlinked_kernels(report: Report) -> tuple[int, int]:
    """Return the number of kernels in all profiles, and how many of them lack a launching call."""
    n_kernels = sum(profile.kernels for profile in report.profiles)
    n_linked = sum(profile.linked_kernels for profile in report.profiles)
    return n_kernels, n_kernels - n_linked


def _find_missing_step(report: Report) -> StepCode | None:
    """Return the step for missing profiles, or None if no profiles are missing.

    The step is ``ADD_RANKS`` if a pipeline is known to lack ranks. Otherwise, it is
    ``CHECK_FOR_MISSING`` if stages may be missing.
    """
    restrictions = report.restrictions
    if RANKS_MISSING in restrictions and not report.single_stage:
        return StepCode.ADD_RANKS
    return StepCode.CHECK_FOR_MISSING if MAYBE_INCOMPLETE in restrictions else None


def _is_missing_in_few(report: Report) -> bool:
    """Return whether only a few pipelines lack ranks.

    Advice on the other pipelines then remains valid.
    """
    return count_incomplete_pipelines(report.ranks) is not None


def _check_clocks(report: Report) -> tuple[StepCode | None, Collection[str]]:
    """Return the step for contradictory clocks, and the kinds of faults to ignore.

    There is a step only if a ratio depends on contradictory clocks:

    - ``ALIGN_CLOCKS`` if the clocks are aligned by UTC.
    - ``REPAIR_CLOCKS`` otherwise.
    - No step if the clocks of ranks on the same host contradict each other. In that case, a
      restriction contains the advice.

    In all three cases, faults that are found by comparing ranks are ignored. The kinds in
    ``_ON_SET_CLOCKS`` are ignored as well if there is a step and a clock was set during the run.

    Returns:
        step: The step, or None if there is none.
        hidden_kinds: Fault kinds to leave out, because wrong clocks may have caused them.
    """
    kinds = {note.kind for note in report.limitations}
    if LimitationKind.RANKS_CONTRADICTED in kinds:
        return None, _BETWEEN_RANKS
    if not any(report.contradicted(name) for name in report.summary.bubble_ratio):
        return None, ()
    is_by_utc = LimitationKind.UTC_CONTRADICTED in kinds
    was_set = any(iteration.clock_set for iteration in report.iterations)
    hidden = _BETWEEN_RANKS | _ON_SET_CLOCKS if was_set else _BETWEEN_RANKS
    return StepCode.ALIGN_CLOCKS if is_by_utc else StepCode.REPAIR_CLOCKS, hidden


def _find_outweighing_step(time: KernelTime) -> StepCode | None:
    """Return the step for launch gaps or for compute outside operations. None if neither matters.

    Launch gaps matter in two cases: they take more time than the bubble, or they take more than
    half of the operation time. Compute outside operations matters if it takes more time than the
    bubble. If both matter, the one that takes longer is reported. Launch gaps win a tie.
    """
    gap_ns = time.gap_ns if time.gaps_outweigh or time.gaps_fill_work else 0
    unattributed_ns = time.unattributed_ns if time.unattributed_outweighs else 0
    if not gap_ns and not unattributed_ns:
        return None
    return StepCode.LAUNCH_GAPS if gap_ns >= unattributed_ns else StepCode.NAME_COMPUTE


def find_replay(report: Report, name: str) -> Change | None:
    """Return the typical iteration's replay with the named change, or None if unknown."""
    return next((change for change in report.explanation.changes if change.name == name), None)


def _find_replayed_iteration(report: Report) -> Change | None:
    """Return the replay of the typical iteration without a change.

    The result is None if the iteration was not replayed, or if the replay has no bubble ratio or
    length.
    """
    measured = find_replay(report, MEASURED)
    if measured is None or measured.bubble_ratio is None or measured.makespan_ns <= 0:
        return None
    return measured


def _find_min_saving(report: Report, measured: Change) -> float:
    """Return the minimum saving for advice to be given first, as a fraction of an iteration.

    The minimum is ``_MIN_SAVING``. If the ranks form a pipeline, it is at least
    ``_MIN_SHARE_OF_SCHEDULE`` times the saving from doubling the number of microbatches, which is
    half of the bubble ratio.
    """
    if report.no_pipeline is not None:
        return _MIN_SAVING
    return max(_MIN_SAVING, _MIN_SHARE_OF_SCHEDULE * (measured.bubble_ratio or 0.0) / 2)


def _find_step_without_advice(report: Report) -> StepCode:
    """Return the step that explains why no change is advised.

    If the run was not replayed, :func:`_find_unknown_step` decides. If the replay does not match
    the measured iterations, the step is ``REPLAY_MISSES``. If all delays together cost enough, the
    step is ``NO_SINGLE_DELAY``. Otherwise, :func:`_choose_step_by_idle_time` decides.
    """
    measured, without_delay = _find_replayed_iteration(report), find_replay(report, NO_DELAY)
    if measured is None or without_delay is None:
        return _find_unknown_step(report)
    diagnosis = report.explanation.diagnosis
    if diagnosis is not None and diagnosis.misses_measurement:
        return StepCode.REPLAY_MISSES
    saving_ratio = 1 - without_delay.makespan_ns / measured.makespan_ns
    if saving_ratio >= max(_find_min_saving(report, measured), _MIN_BOUND_SAVING):
        return StepCode.NO_SINGLE_DELAY
    return _choose_step_by_idle_time(report, measured)


def _choose_step_by_idle_time(report: Report, measured: Change) -> StepCode:
    """Return the step for a run in which no single delay costs enough to be worth removing.

    The choice depends on how much idle time there is, whether it is within or between iterations,
    and the kind of run.

    Args:
        report: The run's report.
        measured: Replay of the typical iteration without a change.
    """
    ratio, ratios = measured.bubble_ratio or 0.0, report.summary.bubble_ratio
    period_ratio = (ratios["period"].mean if "period" in ratios else None) or 0.0
    # If iterations overlap, the primary ratio may be 0 even though each iteration has a bubble.
    headline_ratio = ratios[report.headline].mean
    is_small = headline_ratio is not None and headline_ratio < _MIN_SAVING
    if report.single_stage and ratio >= _MIN_SAVING:
        code = StepCode.HOST_IDLE
    elif ratio < _MIN_SAVING and period_ratio >= _MIN_IDLE_PERIOD:
        code = StepCode.IDLE_BETWEEN_ITERATIONS
    elif RANKS_MISSING in report.restrictions and not _is_missing_in_few(report):
        code = StepCode.ADD_RANKS
    elif report.single_stage:
        code = StepCode.NO_IDLE_TIME
    elif ratio < _MIN_SAVING or is_small:
        code = StepCode.NO_BUBBLE
    elif report.kind == INFERENCE:
        code = StepCode.MORE_REQUESTS
    elif report.headline == "period":
        # If the next iteration fills the idle time, more microbatches may save nothing.
        code = StepCode.BUBBLE_OF_PERIOD
    else:
        code = StepCode.MORE_MICROBATCHES
    return code


def _find_unknown_step(report: Report) -> StepCode:
    """Return the step for a run that was not replayed.

    The ranks of a single stage do not depend on each other, so only their hosts can explain their
    idle time. For other runs, the step would make it possible to replay the run. If the reason why
    it was not replayed is unknown, the step is ``NOT_REPLAYED``.
    """
    if UNPROVEN in report.restrictions:
        return StepCode.SET_SIZES
    if report.single_stage:
        mean = report.summary.bubble_ratio[report.headline].mean
        return (
            StepCode.NO_IDLE_TIME if mean is not None and mean < _MIN_SAVING else StepCode.HOST_IDLE
        )
    kinds = {note.kind for note in report.limitations}
    if LimitationKind.STAGES_UNKNOWN in kinds:
        return StepCode.SET_STAGE_ORDER
    is_unpaired = LimitationKind.ITERATIONS_UNPAIRED in kinds
    if is_unpaired and any(rank.pipeline is None for rank in report.ranks):
        return StepCode.SET_PIPELINES
    return StepCode.NOT_REPLAYED


def _list_advice(report: Report, hidden_kinds: Collection[str]) -> list[Advice]:
    """Return the changes that would shorten iterations, largest saving first, single pauses last.

    The changes are the removal of faults, one faster schedule, a return to the planned order, and
    a division of prompts into chunks of equal time. Each must reach a minimum saving. At most
    ``_MAX_LISTED`` changes are returned. Changes without a promised saving come last.

    Args:
        report: The run's report.
        hidden_kinds: Fault kinds to leave out, because wrong clocks may have caused them.
    """
    diagnosis = report.explanation.diagnosis
    advised: list[Advice] = []
    chunks = _make_chunks_advice(report)
    if chunks is not None:
        advised.append(chunks)
    if diagnosis is not None:
        findings = select_findings(diagnosis, hidden_kinds)
        if chunks is not None:
            findings = [finding for finding in findings if not _is_about_chunks(finding)]
        advised += [
            _make_finding_advice(report, diagnosis, finding) for finding in findings[:_MAX_LISTED]
        ]
    schedule, order = _make_schedule_advice(report), _make_order_advice(report)
    if schedule is not None and schedule.saving_ratio >= _MIN_SCHEDULE_SAVING:
        advised.append(schedule)
    if order is not None and order.saving_ratio >= _MIN_ORDER_SAVING:
        advised.append(order)
    return sorted(advised, key=_get_sort_key)[:_MAX_LISTED]


def _get_sort_key(advice: Advice) -> tuple[bool, bool, int]:
    """Return a key that sorts promised savings before others, and larger savings first.

    A single pause comes after other promised savings, because it may not recur.
    """
    return not advice.is_promised, advice.is_single_pause, -round(advice.best.saving_ns)


def _make_finding_advice(report: Report, diagnosis: Diagnosis, finding: Finding) -> Advice:
    """Return the advice to remove a finding's faults.

    The saving is promised unless it was computed by a replay that does not match the measured
    iterations.
    """
    faults = finding.faults
    slow_indices = {
        index for fault in faults if fault.kind == "iteration" for index in fault.iterations
    }
    since = faults[0].since_iteration if len(faults) == 1 else None
    slow_iterations = [
        iteration
        for iteration in report.iterations
        if iteration.index in slow_indices or (since is not None and iteration.index >= since)
    ]
    example = choose_typical(slow_iterations, report.headline)
    error_ns, length_ns = finding.error_ns, finding.length_ns
    advice = Advice(
        kind="+".join(fault.kind for fault in faults),
        place="+".join(fault.name for fault in faults),
        evidence=finding,
        saving_ns=finding.saving_ns,
        length_ns=length_ns,
        saving_ratio=finding.saving_ratio,
        iterations=finding.saved_iterations,
        error_ratio=None if error_ns is None else error_ns / max(length_ns, 1.0),
        ranks=tuple(sorted({rank for fault in faults for rank in fault.ranks})),
        stages=tuple(sorted({stage for fault in faults for stage in fault.stages})),
        stage=faults[0].stage if len(faults) == 1 else None,
        example_iteration=None if example is None else example.index,
        since_iteration=since,
        measure=tuple(pair for fault in faults for pair in fault.phases),
        is_single_pause=finding.is_single_pause,
    )
    if finding.repaired is not None:
        repaired = _make_finding_advice(report, diagnosis, finding.repaired)
        # Both alternatives shorten the same iterations.
        n_iterations = max(advice.iterations, repaired.iterations)
        advice = replace(advice, repaired=repaired, iterations=n_iterations)
    return advice if finding.is_measured else _remove_promise(advice, diagnosis)


def _remove_promise(advice: Advice, diagnosis: Diagnosis | None) -> Advice:
    """Return the advice, without its promise if the replay differs from the measured iterations."""
    if diagnosis is None or not diagnosis.misses_measurement:
        return advice
    return replace(advice, missed_ratio=diagnosis.missed_ratio)


def _make_schedule_advice(report: Report) -> Advice | None:
    """Return the advice to run the fastest other schedule that fits in memory.

    All schedules are simulated with mean times and without delays. This includes the order that
    ran.

    Returns:
        The advice, whose saving may be negative, or None in any of these cases:

        - Other schedules were not simulated, or were not compared by the ``schedule`` ratio's
          window.
        - No other schedule fits in memory.
        - bubbleviz numbered the microbatches in the order in which they ran, and this order does
          not match any known schedule. In that case, the microbatches may actually be chunks.
    """
    what_if, recognition = report.other_schedules, report.schedule
    is_unrecognized = recognition is not None and recognition.inferred and recognition.name is None
    if what_if is None or what_if.window != "schedule" or is_unrecognized:
        return None
    measured, base_ms = what_if.as_measured, what_if.base_ms
    if measured is None or not measured.makespan_ms or base_ms is None:
        return None
    best = what_if.fastest_other
    if best is None or best.makespan_ms is None:
        return None
    length_ms = measured.makespan_ms
    saving_ms = base_ms - best.makespan_ms
    return Advice(
        kind="schedule",
        place=best.schedule,
        evidence=best,
        saving_ns=1e6 * saving_ms,
        length_ns=1e6 * length_ms,
        saving_ratio=saving_ms / length_ms,
        iterations=report.summary.iterations,
    )


def _make_order_advice(report: Report) -> Advice | None:
    """Return the advice to run operations in the order of the plan or of the recognized schedule.

    Both orders are replayed without late launches, because there is separate advice about late
    launches.

    Returns:
        The advice. None if all operations ran in the planned order, if some deviations are unknown,
        or if the planned order saves nothing.
    """
    order = report.schedule if report.plan is None else report.plan
    source = report.explanation.slowdown_source
    if order is None or order.name is None or source is None:
        return None
    if not order.deviations or order.deviation_count > len(order.deviations):
        return None
    lengths_ns = replay_planned_order(source, order.deviations)
    if lengths_ns is None:
        return None
    measured_ns, planned_ns = lengths_ns
    saving_ns, error_ns = estimate_mean_saving(measured_ns - planned_ns, planned_ns)
    if saving_ns <= 0:
        return None
    diagnosis = report.explanation.diagnosis
    length_ns = float(measured_ns.mean()) if diagnosis is None else diagnosis.length_ns
    ranks = tuple(sorted({deviation.rank for deviation in order.deviations}))
    stages = {report.ranks[rank].stage for rank in ranks}
    advice = Advice(
        kind="order",
        place=f"order-{order.name}",
        evidence=order,
        saving_ns=saving_ns,
        length_ns=length_ns,
        saving_ratio=saving_ns / length_ns,
        iterations=int((planned_ns < measured_ns).sum()),
        error_ratio=None if error_ns is None else error_ns / length_ns,
        ranks=ranks,
        stage=stages.pop() if len(stages) == 1 else None,
        measure=(("operations out of order", float(order.deviation_count)),),
    )
    return _remove_promise(advice, diagnosis)


def _make_chunks_advice(report: Report) -> Advice | None:
    """Return the advice to divide prompts into chunks of equal time.

    The saving is the difference of two simulations of an iteration's prompts with the fitted times:
    in the chunks that ran, and in the new chunks. It is promised only if the first simulation
    matches the measured time of these prompts.

    Returns:
        The advice. None if the run is no inference, if the iteration was not replayed, if no
        division saves time, or if chunks of several prompts alternate.
    """
    split, measured = report.explanation.prompt_split, _find_replayed_iteration(report)
    if report.kind != INFERENCE or split is None or measured is None or split.n_prompts == 0:
        return None
    saving_ns, length_ns = split.recorded_ns - split.divided_ns, float(measured.makespan_ns)
    if saving_ns < _MIN_SAVING * length_ns:
        return None
    missed_ratio = abs(split.recorded_ns / max(split.measured_ns, 1) - 1)
    return Advice(
        kind="microbatch",
        place=EVEN_CHUNKS,
        evidence=split,
        saving_ns=saving_ns,
        length_ns=length_ns,
        saving_ratio=saving_ns / length_ns,
        error_ratio=split.error_ns / length_ns if split.error_ns else None,
        iterations=report.summary.iterations,
        missed_ratio=missed_ratio if missed_ratio > MAX_MISSED else None,
    )


def _is_about_chunks(finding: Finding) -> bool:
    """Return whether a finding says that some prompt chunks take longer than others.

    The finding may contain other faults, which also have findings of their own.
    """
    return any(
        fault.kind == "microbatch" and fault.detail != FIRST_MICROBATCH for fault in finding.faults
    )


def select_findings(diagnosis: Diagnosis, hidden_kinds: Collection[str] = ()) -> list[Finding]:
    """Return the findings that are worth advising on, in the order of the diagnosis.

    A finding is left out in any of these cases:

    - One of its faults has a hidden kind.
    - Another finding represents it (see :func:`_is_represented`).
    - Nothing in it is unusually slow, and it saves less than ``_MIN_BOUND_SAVING``.
    - Nothing in it is unusually slow, and it is not worth listing (see :func:`_is_worth_listing`).
    - It proposes to make all transfers faster, although a finding about a single slow link saves at
      least ``_MIN_FURTHER``.

    Args:
        diagnosis: The run's diagnosis.
        hidden_kinds: Fault kinds to leave out, because wrong clocks may have caused them.
    """
    visible = [
        finding
        for finding in diagnosis.findings
        if not {fault.kind for fault in finding.faults} & {*hidden_kinds}
        and (not _is_bound(finding) or finding.saving_ratio >= _MIN_BOUND_SAVING)
    ]
    unrepresented = [f for place, f in enumerate(visible) if not _is_represented(place, visible)]
    if any(_has_slow_link(f) and f.saving_ratio >= _MIN_FURTHER for f in unrepresented):
        # Faster transfers would save time mainly on the slow link, which has a separate finding.
        unrepresented = [f for f in unrepresented if not _is_of_all_transfers(f)]
    slow_ns = max((f.saving_ns for f in unrepresented if not _is_bound(f)), default=0.0)
    return [f for f in unrepresented if not _is_bound(f) or _is_worth_listing(f, slow_ns)]


def _has_slow_link(finding: Finding) -> bool:
    """Return whether a finding contains a fault about one specific link."""
    return any(fault.link is not None for fault in finding.faults)


def _is_of_all_transfers(finding: Finding) -> bool:
    """Return whether a finding proposes to make all transfers faster."""
    return any(fault.kind == "link" and fault.link is None for fault in finding.faults)


def _is_worth_listing(finding: Finding, slow_ns: float) -> bool:
    """Return whether a finding that contains nothing unusually slow is worth listing.

    Faults of the kinds in ``_NEVER_GONE`` cannot be removed completely. A finding with such a fault
    must not outrank a finding about something slow unless it saves much more. It is therefore left
    out if its saving is between ``slow_ns`` and ``_MIN_TIMES_SLOW`` times ``slow_ns``. All other
    findings are worth listing.

    Args:
        finding: The finding.
        slow_ns: The largest saving of any finding in which something is unusually slow, or 0 if
            there is no such finding.
    """
    is_never_gone = bool({fault.kind for fault in finding.faults} & _NEVER_GONE)
    return not is_never_gone or not slow_ns < finding.saving_ns < _MIN_TIMES_SLOW * slow_ns


def _is_bound(finding: Finding) -> bool:
    """Return whether a finding contains nothing that is unusually slow."""
    return all(fault.bound for fault in finding.faults)


def _is_represented(index: int, findings: list[Finding]) -> bool:
    """Return whether a finding can be left out because another one says nearly the same thing.

    Both findings must have faults of the same families. The other finding represents this one in
    either of two cases:

    - It is about more ranks, and this finding saves less than ``_SAME`` times as much.
    - It saves at least ``_SAME`` times as much as this finding, and is about fewer ranks. If it is
      about the same number of ranks, it must come earlier in the list.

    Args:
        index: Index of this finding in ``findings``.
        findings: All findings.
    """
    finding = findings[index]
    families = {fault.family for fault in finding.faults}
    n_ranks = _count_ranks(finding)
    for other_index, candidate in enumerate(findings):
        if other_index == index or families != {fault.family for fault in candidate.faults}:
            continue
        n_more_ranks = _count_ranks(candidate) - n_ranks
        if n_more_ranks > 0 and finding.saving_ns < _SAME * candidate.saving_ns:
            return True
        goes_first = n_more_ranks < 0 or other_index < index
        saves_nearly_all = candidate.saving_ns >= _SAME * finding.saving_ns
        if n_more_ranks <= 0 and goes_first and saves_nearly_all:
            return True
    return False


def _count_ranks(finding: Finding) -> int:
    return sum(len(fault.ranks) for fault in finding.faults)
