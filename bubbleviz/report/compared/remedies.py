"""Remedies: check whether a later run followed a piece of advice.

Advice counts as followed only if the fault that it names shrank by more than noise can explain, and
everything else stayed the same. Without the second condition, the effect of a change in the
schedule, for example, could be credited to advice about kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bubbleviz.explain.diagnosis.fault_names import EVEN_CHUNKS
from bubbleviz.model.texts import format_percent
from bubbleviz.report.compared.pair import (
    COMPUTE,
    SAME_WORK,
    RunPair,
    get_stage_phase,
    list_mean_stage_times,
    list_median_stage_times,
)
from bubbleviz.report.promise import MICROBATCHES

if TYPE_CHECKING:
    from bubbleviz.report.summary import AdviceEntry, RunSummary

#: Minimum relative change of a time or a measure. Smaller changes are always noise.
_NOISE = 0.02
#: Advice counts as followed only if at least this fraction of the fault is gone.
_MIN_REMEDY = 0.1
#: Maximum difference between two medians that chance can explain, in standard errors.
_STANDARD_ERRORS = 2.0
#: Ratio of the standard error of a median to the standard error of a mean, for normal values.
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
#: Names that searched schedules are recognized as. If all operations take the same time, both
#: schedules have the same order.
_RECOGNIZED_AS = {"zb-1p": "zb-h1", "zb-2p": "zb-h2"}
#: Kinds of advice that recommend a different order of operations.
_ORDER_KINDS = {"schedule", "order"}
#: Kinds of advice about delays, which do not change the work of any stage.
_DELAY_KINDS = {"collective", "late-start", "launch", "link", "order", "queue", "token"}
#: Kinds of advice whose measure would be 0 without the fault. All other kinds would have a measure
#: of 1.
_ZERO_BASED = {"late-start", "launch-gaps", "order", "queue"}
#: Clauses for kinds of advice whose measure is a count.
_COUNT_CLAUSES = {
    "queue": "{last:,.0f} {name}s are queued instead of {first:,.0f}",
    "token": "{last:,.0f} chunks are in flight instead of {first:,.0f}",
    "order": "{last:,.0f} {name} instead of {first:,.0f}",
}
#: Kinds of advice whose measure improves by getting larger.
_MORE_IS_BETTER = {"token"}


def describe_named_change(advice: AdviceEntry, pair: RunPair) -> tuple[bool, str]:
    """Describe how the fault named by a piece of advice changed between two runs.

    Schedules, numbers of microbatches, the work of stages, and launch gaps on all ranks are
    compared directly. Any other fault is remedied if the later report no longer contains this
    advice, or if its measure improved. Two pieces of advice with the same place count as the same
    advice.

    Args:
        advice: Advice from the earlier report.
        pair: The two reports.

    Returns:
        is_remedied: Whether the fault shrank by more than noise can explain.
        change: A clause that describes the change.
    """
    earlier, later = pair.earlier, pair.later
    if advice.kind == "schedule":
        return _describe_schedule(advice, earlier, later)
    if advice.kind == MICROBATCHES:
        return _describe_microbatches(earlier, later)
    if advice.stages:
        return _describe_stages(advice.stages, earlier, later)
    if advice.kind == "launch-gaps" and len(advice.ranks) in {0, len(earlier.ranks)}:
        first, last = earlier.summary.launch_gap, later.summary.launch_gap
        if first is not None and last is not None:
            return _is_better(first, first, last), _describe_gaps(first, last)
    repeated = next((entry for entry in later.advice if entry.place == advice.place), None)
    if repeated is None:
        return True, "the problem no longer stands out"
    return _describe_measure(advice, repeated)


def describe_unnamed_change(advice: AdviceEntry, pair: RunPair) -> str:
    """Describe a change between two runs that a piece of advice did not ask for.

    The job, the schedule, the number of microbatches and the work of the stages are compared, in
    this order. Unknown values are considered unchanged.

    Args:
        advice: Advice from the earlier report.
        pair: The two reports.

    Returns:
        A clause that describes the first change found, or "" if there is none.
    """
    if pair.job_difference is not None:
        return pair.job_difference
    earlier, later = pair.earlier, pair.later
    names = [run.schedule_name for run in (earlier, later) if run.schedule_name is not None]
    schedules = [_RECOGNIZED_AS.get(name, name) for name in names]
    if not _split_kinds(advice) & _ORDER_KINDS and len(set(schedules)) > 1:
        return f"the schedule changed from {schedules[0]} to {schedules[1]}"
    microbatches = [run.microbatches for run in (earlier, later) if run.microbatches]
    if not _changes_microbatches(advice) and len(set(microbatches)) > 1:
        return f"iterations have {microbatches[1]:,} microbatches instead of {microbatches[0]:,}"
    return _describe_unnamed_work(advice, earlier, later)


def _changes_microbatches(advice: AdviceEntry) -> bool:
    """Return whether a piece of advice asks for another number of microbatches or chunks."""
    return advice.kind == MICROBATCHES or advice.place == EVEN_CHUNKS


def _split_kinds(advice: AdviceEntry) -> set[str]:
    """Return the kinds of faults that a piece of advice should remove."""
    return {*advice.kind.split("+")}


def _describe_schedule(
    advice: AdviceEntry, earlier: RunSummary, later: RunSummary
) -> tuple[bool, str]:
    """Return whether the later run has the advised schedule, and a clause about both schedules.

    The first result is False if the schedule is the same as before. Some searched schedules are
    recognized under a different name. That name is accepted as well; see ``_RECOGNIZED_AS``.
    """
    then, now = earlier.schedule_name, later.schedule_name
    if then == now:
        return False, f"the schedule is still {now or 'unknown'}"
    advised_schedule, ran = (_RECOGNIZED_AS.get(name, name) for name in (advice.place, now or ""))
    is_advised = ran == advised_schedule
    advised = "" if is_advised else f", not {advice.place}"
    return (
        is_advised,
        f"the schedule is {now or 'unknown'}{advised}; it was {then or 'unknown'} before",
    )


def _describe_microbatches(earlier: RunSummary, later: RunSummary) -> tuple[bool, str]:
    """Return whether the later run has more microbatches, and a clause that gives both numbers.

    The first result is False if either number is unknown.
    """
    now, then = later.microbatches or 0, earlier.microbatches or 0
    change = f"iterations have {now or 'unknown'} microbatches"
    change += " as before" if now == then else f" instead of {then or 'unknown'}"
    return now > then > 0, change


def _describe_stages(
    stages: tuple[int, ...], earlier: RunSummary, later: RunSummary
) -> tuple[bool, str]:
    """Return whether any given stage lost work, and a clause about its time in both runs.

    For each given stage and compute phase, the later median time is divided by the earlier one.
    Only the stage and phase with the smallest ratio are considered. The work fell if this ratio is
    less than ``(1 - noise) * min(other, 1)``:

    - ``other`` is the same ratio for the work of all other stages.
    - ``noise`` is ``_NOISE``, or the noise of a median in either run, if that is larger
      (:func:`_estimate_median_noise`).

    Args:
        stages: The stages to examine.
        earlier: The earlier run's report.
        later: The later run's report.

    Returns:
        is_less: Whether the work decreased. False if no times are known for the stages.
        clause: A clause that gives the later and the earlier time.
    """
    before_ns, after_ns = list_median_stage_times(earlier), list_median_stage_times(later)
    times = [
        (now_ns / then_ns, stage, phase, then_ns, now_ns)
        for (stage, phase), then_ns in before_ns.items()
        if stage in stages
        and phase in COMPUTE
        and then_ns
        and (now_ns := after_ns.get((stage, phase), 0.0))
    ]
    if not times:
        return False, "the times of its stages are unknown"
    ratio, stage, phase, then_ns, now_ns = min(times)
    noise = max(
        _NOISE,
        _estimate_median_noise(earlier, stage, phase),
        _estimate_median_noise(later, stage, phase),
    )
    is_less = ratio < (1 - noise) * min(_compare_other_work(earlier, later, stages), 1.0)
    return is_less, f"{phase} of stage {stage} takes {_describe_time_change(then_ns, now_ns)}"


def _describe_time_change(then_ns: float, now_ns: float) -> str:
    """Format the later time in ms, followed by the earlier time unless the two look the same."""
    now_ms, then_ms = f"{now_ns / 1e6:,.3f} ms", f"{then_ns / 1e6:,.3f} ms"
    return f"{now_ms}, as before" if now_ms == then_ms else f"{now_ms} instead of {then_ms}"


def _compare_other_work(earlier: RunSummary, later: RunSummary, stages: tuple[int, ...]) -> float:
    """Return the ratio of later to earlier work over all stages that are not in ``stages``.

    The ratio is 1 if the work of the other stages is unknown in either run.
    """
    then_ns, now_ns = (
        sum(
            ns
            for stage, ns in _sum_by_stage(list_median_stage_times(run)).items()
            if stage not in stages
        )
        for run in (earlier, later)
    )
    return now_ns / then_ns if then_ns and now_ns else 1.0


def _estimate_median_noise(run: RunSummary, stage: int, phase: str) -> float:
    """Return how much two medians for the same stage and phase can differ by chance, as a fraction.

    The times are assumed to be normally distributed. The result is ``_STANDARD_ERRORS`` times the
    standard error of the difference between two medians, divided by the median. It is 0 if the time
    is unknown.
    """
    kinds = [kind for kind in run.phase_times if get_stage_phase(kind) == (stage, phase)]
    variances = [(kind.std_ns or 0.0) ** 2 / max(kind.n, 1) for kind in kinds]
    median_ns = sum(kind.median_ns for kind in kinds)
    error_ns = _MEDIAN_ERROR * math.sqrt(sum(variances))
    return _STANDARD_ERRORS * math.sqrt(2) * error_ns / median_ns if median_ns else 0.0


def _describe_gaps(earlier: float, later: float) -> str:
    """Return a clause about the fraction of operation time without a running kernel."""
    idle = f"no kernel runs for {format_percent(later)} of the operation time"
    percent_before = format_percent(earlier)
    if format_percent(later) == percent_before:
        return f"{idle}, as before"
    return f"{idle}, compared with {percent_before} before"


def _describe_measure(advice: AdviceEntry, repeated: AdviceEntry) -> tuple[bool, str]:
    """Return whether the measure in a piece of advice improved, and a clause about the change.

    If the earlier advice has several measures, only the largest is compared. If this measure did
    not improve or is unknown in the later report, the clause gives the remaining cost, if known.

    Args:
        advice: Advice from the earlier report.
        repeated: Advice from the later report that has the same place.
    """
    name, first = max(advice.measure, key=lambda pair: pair[1], default=("", 0.0))
    last = dict(repeated.measure).get(name)
    # Times before and after an onset are both in ms. The fault is their difference.
    before = dict(advice.measure).get("before ms")
    if before is None:
        before = 0.0 if advice.kind in _ZERO_BASED else 1.0
    if last is None or not _is_remedied(advice.kind, first, before, last):
        if repeated.saving_ratio is None:
            cost = "the change is still advised"
        else:
            cost = (
                f"the problem still costs {format_percent(repeated.saving_ratio)} of an iteration"
            )
        return False, cost
    if advice.kind in _COUNT_CLAUSES:
        return True, _COUNT_CLAUSES[advice.kind].format(last=last, name=name, first=first)
    if advice.kind == "launch-gaps":
        return True, _describe_gaps(first, last)
    if name.endswith(" ms"):
        quantity = "late by " if advice.kind == "late-start" else ""
        return True, f"{quantity}{last:,.3f} ms instead of {first:,.3f} ms"
    return True, f"{name or 'work'} takes {last:.2f}x its usual time instead of {first:.2f}x"


def _is_remedied(kind: str, first: float, usual: float, last: float) -> bool:
    """Return whether a measure improved by more than noise can explain.

    Args:
        kind: Kind of the advice.
        first: The measure in the earlier run: a count, a fraction, a time, or a multiple of the
            usual time.
        usual: The measure without the fault.
        last: The measure in the later run.
    """
    if kind in _MORE_IS_BETTER:
        return last > (1 + _NOISE) * first
    return _is_better(first, first - usual, last)


def _is_better(first: float, fault: float, last: float) -> bool:
    """Return whether a value fell by more than noise can explain and the fault shrank noticeably.

    The condition is ``first - last > max(_NOISE * first, _MIN_REMEDY * fault)``.

    Args:
        first: Value in the earlier run.
        fault: Part of ``first`` that is caused by the fault.
        last: Value in the later run.
    """
    return first - last > max(_NOISE * first, _MIN_REMEDY * fault)


@dataclass(frozen=True)
class _WorkChange:
    """Ratios of later to earlier compute time per microbatch.

    Attributes:
        by_stage: Ratio for each stage whose time is known in both runs.
        total: Ratio of the sums over these stages, or 1 if there are none.
    """

    by_stage: Mapping[int, float]
    total: float


def _describe_unnamed_work(advice: AdviceEntry, earlier: RunSummary, later: RunSummary) -> str:
    """Return a clause about a change in work that the advice did not ask for. "" if there is none.

    - Advice about the schedule, microbatches or stages may move work between stages. The total work
      must stay the same, and any work that the advised stages lose must appear on other stages.
    - Any other advice may reduce the work of the stages that it names. The work of all other stages
      must stay the same, and no stage may get more work.

    A change is reported only if both the median and the mean times show it.
    """
    changes = (
        _compare_work(list_median_stage_times(earlier), list_median_stage_times(later)),
        _compare_work(list_mean_stage_times(earlier), list_mean_stage_times(later)),
    )
    changed_stages = _find_changed_stages(changes)
    if _split_kinds(advice) & {"schedule", MICROBATCHES} or advice.stages:
        # Work moves between stages, or each microbatch gets shorter as their number grows.
        times = (later.microbatches or 1) / (earlier.microbatches or 1)
        is_total_changed = all(
            _is_changed(change.total) and _is_changed(change.total * times) for change in changes
        )
        has_changed_others = bool(set(changed_stages) - set(advice.stages))
        if is_total_changed and (has_changed_others or not advice.stages):
            return (
                f"a microbatch takes {changes[0].total:.2f}x as much compute time over all stages"
            )
        # The GPU of a single rank may have been slow, in which case there was no need to move any
        # layers.
        may_be_slow_gpu = len(advice.ranks) == 1
        has_moved = may_be_slow_gpu or _has_moved_work(earlier, later, advice.stages)
        if advice.stages and not has_moved:
            return "no other stage has more work"
        return ""
    named_keys = _find_named_stages(advice, earlier)
    for stage in changed_stages:
        # No advice asks for more work on any stage.
        is_longer = all(change.by_stage[stage] > 1 for change in changes)
        if stage not in named_keys or is_longer:
            ratio = changes[0].by_stage[stage]
            return f"a microbatch takes {ratio:.2f}x as much compute time on stage {stage}"
    return ""


def _has_moved_work(earlier: RunSummary, later: RunSummary, stages: tuple[int, ...]) -> bool:
    """Return whether the other stages gained at least half of the work that ``stages`` lost.

    If they gained less, no layers were moved, and ``stages`` simply became faster. The result is
    also True if the loss is too small to tell: less than ``2 * _NOISE`` times the work of the other
    stages.
    """
    then_ns, now_ns = (_sum_by_stage(list_median_stage_times(run)) for run in (earlier, later))
    lost_ns = sum(then_ns.get(stage, 0.0) - now_ns.get(stage, 0.0) for stage in stages)
    others_ns = sum(ns for stage, ns in then_ns.items() if stage not in stages)
    expected = lost_ns / others_ns if others_ns else 0.0
    gained = _compare_other_work(earlier, later, stages) - 1
    return expected < 2 * _NOISE or gained >= expected / 2


def _find_named_stages(advice: AdviceEntry, earlier: RunSummary) -> set[int | None]:
    """Return the stages whose work should fall if the advice is followed.

    If the advice names ranks, their stages are returned, otherwise all stages. The result is empty
    for advice about delays.
    """
    if _split_kinds(advice) <= _DELAY_KINDS:
        return set()
    all_ranks = range(len(earlier.ranks))
    ranks = [rank for rank in advice.ranks if rank in all_ranks] or all_ranks
    return {earlier.ranks[rank].stage for rank in ranks}


def _sum_by_stage(times_ns: Mapping[tuple[int, str], float]) -> dict[int, float]:
    """Return the compute time of a microbatch on each stage, in ns."""
    work_ns: dict[int, float] = {}
    for (stage, phase), ns in times_ns.items():
        if phase in COMPUTE:
            work_ns[stage] = work_ns.get(stage, 0.0) + ns
    return work_ns


def _compare_work(
    before_ns: Mapping[tuple[int, str], float], after_ns: Mapping[tuple[int, str], float]
) -> _WorkChange:
    """Return the ratios of later to earlier compute time, per stage and for all stages together.

    Stages whose time is unknown in either run are left out. If all stages are left out, the ratio
    of all stages together is 1.

    Args:
        before_ns: Times of the earlier run, keyed by stage and phase.
        after_ns: Times of the later run, with the same keys.
    """
    then_ns, now_ns = _sum_by_stage(before_ns), _sum_by_stage(after_ns)
    by_stage = {
        stage: now_ns[stage] / ns for stage, ns in then_ns.items() if ns and now_ns.get(stage)
    }
    total = sum(now_ns.values()) / sum(then_ns.values()) if by_stage else 1.0
    return _WorkChange(by_stage, total)


def _find_changed_stages(changes: Iterable[_WorkChange]) -> list[int]:
    """Return the stages whose work changed in all of ``changes``, in ascending order."""
    changed = [
        {stage for stage, ratio in change.by_stage.items() if _is_changed(ratio)}
        for change in changes
    ]
    return sorted(set.intersection(*changed))


def _is_changed(ratio: float) -> bool:
    return not 1 / (1 + SAME_WORK) <= ratio <= 1 + SAME_WORK
