"""Remedies: what differs between two runs, by what an advice names and what it does not name.

An advice counts as followed only if what it names became better by more than noise, and the rest
stayed the same. Otherwise a change of the schedule, for example, would be credited to advice on
kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bubbleviz.model.phases import COUNTED
from bubbleviz.model.texts import percent
from bubbleviz.report.promise import MICROBATCHES, SavedAdvice

if TYPE_CHECKING:
    from bubbleviz.report.saved import SavedReport

#: Phases whose times tell how much work microbatches are.
COMPUTE = frozenset(phase.label for phase in COUNTED)
#: Relative change of a time or a measure that is noise, whatever its spread.
_NOISE = 0.02
#: Share of a fault that must be gone before its advice counts as followed.
_LEAST_REMEDY = 0.1
#: Relative change of work that is not named by an advice and still counts as the same: clocks and
#: temperatures differ between runs.
SAME_WORK = 0.05
#: Standard errors of a difference of medians that chance may reach.
_STANDARD_ERRORS = 2.0
#: Standard error of a median over that of a mean, for normal values.
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
#: Orders of searched schedules at equal times are those of others, as which runs are recognised.
_RECOGNISED_AS = {"zb-1p": "zb-h1", "zb-2p": "zb-h2"}
#: Kinds of advice that name the order of operations.
_OF_ORDER = {"schedule", "order"}
#: Kinds of advice that change no work of any stage.
_OF_DELAYS = {"collective", "late-start", "launch", "link", "order", "queue", "token"}
#: Kinds of advice whose measure would be 0 without the fault; others would be 1.
_ALL_FAULT = {"launch-gaps", "order", "queue"}
#: Kinds of advice whose measure is better if it is larger.
_MORE_IS_BETTER = {"token"}


def named_change(advice: SavedAdvice, before: SavedReport, after: SavedReport) -> tuple[bool, str]:
    """Return whether what an advice names became better by more than noise, and how it changed.

    Args:
        advice: Advice of the earlier report.
        before: The earlier report.
        after: Report of the later run.
    """
    if advice.kind == "schedule":
        return _schedule_change(advice, before, after)
    if advice.kind == MICROBATCHES:
        now, then = after.microbatches or 0, before.microbatches or 0
        change = f"iterations have {now or 'unknown'} microbatches"
        change += " as before" if now == then else f", had {then or 'unknown'}"
        return now > then > 0, change
    if advice.stages:
        return _stage_change(advice.stages, before, after)
    if advice.kind == "launch-gaps" and len(advice.indices) in {0, before.ranks}:
        first, last = before.launch_gap, after.launch_gap
        if first is not None and last is not None:
            return _is_better(first, first, last), _gap_words(first, last)
    now_advised = next((own for own in after.advice if own.place == advice.place), None)
    if now_advised is None:
        return True, "it no longer stands out"
    return _measure_change(advice, now_advised)


def unnamed_change(advice: SavedAdvice, before: SavedReport, after: SavedReport) -> str:
    """Return a change between two runs that an advice does not name; empty if there is none.

    Unknown values count as unchanged.

    Args:
        advice: Advice of the earlier report.
        before: The earlier report.
        after: Report of the later run.
    """
    if (job := other_job(before, after)) is not None:
        return job
    schedules = [
        _RECOGNISED_AS.get(run.schedule, run.schedule) for run in (before, after) if run.schedule
    ]
    if not _kinds(advice) & _OF_ORDER and len(set(schedules)) > 1:
        return f"the schedule is {schedules[1]}, was {schedules[0]}"
    microbatches = [run.microbatches for run in (before, after) if run.microbatches]
    if advice.kind != MICROBATCHES and len(set(microbatches)) > 1:
        return f"iterations have {microbatches[1]:,} microbatches, had {microbatches[0]:,}"
    return _unnamed_work(advice, before, after)


def _kinds(advice: SavedAdvice) -> set[str]:
    """Return the kinds of what an advice is to remove."""
    return {*advice.kind.split("+")}


def other_job(before: SavedReport, after: SavedReport) -> str | None:
    """Return why two reports are of different jobs; None if they may be of one.

    The same job has as many ranks and stages, whatever changed in it.
    """
    if before.ranks != after.ranks:
        return f"the runs have {before.ranks:,} and {after.ranks:,} ranks"
    stages = [len({stage for stage, _ in run.stage_ns}) for run in (before, after)]
    if 0 not in stages and stages[0] != stages[1]:
        return f"the runs have {stages[0]:,} and {stages[1]:,} stages"
    return None


# What an advice names.


def _schedule_change(
    advice: SavedAdvice, before: SavedReport, after: SavedReport
) -> tuple[bool, str]:
    """Return whether the advised schedule ran, and which one ran."""
    if before.schedule == after.schedule:
        return False, f"the schedule is still {after.schedule or 'unknown'}"
    wanted, ran = (_RECOGNISED_AS.get(own, own) for own in (advice.place, after.schedule or ""))
    advised = "" if ran == wanted else f", not {advice.place}"
    change = f"the schedule is {after.schedule or 'unknown'}{advised}, was {before.schedule}"
    return not advised, change


def _stage_change(
    stages: tuple[int, ...], before: SavedReport, after: SavedReport
) -> tuple[bool, str]:
    """Return whether stages have less work, relative to the others, and how one of them changed.

    Of several stages and phases, the one whose time fell most is told. Communication is no work,
    so its phases are left out.
    """
    times = [
        (now_ns / then_ns, stage, phase, then_ns, now_ns)
        for (stage, phase), then_ns in before.stage_ns.items()
        if stage in stages
        and phase in COMPUTE
        and then_ns
        and (now_ns := after.stage_ns.get((stage, phase), 0.0))
    ]
    if not times:
        return False, "times of its stages are unknown"
    ratio, stage, phase, then_ns, now_ns = min(times)
    noise = max(_NOISE, _median_noise(before, stage, phase), _median_noise(after, stage, phase))
    now_ms, then_ms = f"{now_ns / 1e6:,.3f} ms", f"{then_ns / 1e6:,.3f} ms"
    past = "as before" if now_ms == then_ms else f"was {then_ms}"
    change = f"{phase} of stage {stage} takes {now_ms}, {past}"
    return ratio < (1 - noise) * min(_work_ratio(before, after, stages), 1.0), change


def _work_ratio(before: SavedReport, after: SavedReport, without: tuple[int, ...]) -> float:
    """Return how many times as long the other stages compute as before; 1 if that is unknown."""
    then_ns, now_ns = (
        sum(ns for stage, ns in _work_of_stages(run.stage_ns).items() if stage not in without)
        for run in (before, after)
    )
    return now_ns / then_ns if then_ns and now_ns else 1.0


def _median_noise(run: SavedReport, stage: int, phase: str) -> float:
    """Return by how much chance may move the median time of a stage and phase, as a share."""
    kinds = [kind for kind in run.kinds if (kind.stage, kind.phase.label) == (stage, phase)]
    variances = [(kind.std_ns or 0.0) ** 2 / max(kind.n, 1) for kind in kinds]
    median_ns = sum(kind.median_ns for kind in kinds)
    error_ns = _MEDIAN_ERROR * math.sqrt(sum(variances))
    return _STANDARD_ERRORS * math.sqrt(2) * error_ns / median_ns if median_ns else 0.0


def _gap_words(before: float, after: float) -> str:
    """Return how the share of operations' time in which no kernel runs changed."""
    idle = f"no kernel runs for {percent(after)} of the time of operations"
    return f"{idle}, {'as' if percent(after) == percent(before) else percent(before)} before"


def _measure_change(advice: SavedAdvice, now: SavedAdvice) -> tuple[bool, str]:
    """Return whether the largest measure of an advice became better, and how it changed."""
    what, first = max(advice.measure, key=lambda pair: pair[1], default=("", 0.0))
    last = dict(now.measure).get(what)
    if last is None or not _is_remedied(advice.kind, first, last):
        return False, f"it still costs {percent(now.saving_ratio)} of an iteration"
    if advice.kind == "queue":
        return True, f"{last:,.0f} {what}s are queued, {first:,.0f} were"
    if advice.kind == "token":
        return True, f"{last:,.0f} chunks are in flight, {first:,.0f} were"
    if advice.kind == "order":
        return True, f"{last:,.0f} {what}, {first:,.0f} were"
    if advice.kind == "launch-gaps":
        return True, _gap_words(first, last)
    return True, f"{what or 'work'} takes {last:.2f}x its usual time, was {first:.2f}x"


def _is_remedied(kind: str, first: float, last: float) -> bool:
    """Return whether a measure became better: a count, a share, or a multiple of usual time."""
    if kind in _MORE_IS_BETTER:
        return last > (1 + _NOISE) * first
    return _is_better(first, first if kind in _ALL_FAULT else first - 1, last)


def _is_better(first: float, fault: float, last: float) -> bool:
    """Return whether a value fell by more than noise.

    Args:
        first: The value before.
        fault: Part of it that the fault causes.
        last: The value after.
    """
    return first - last > max(_NOISE * first, _LEAST_REMEDY * fault)


# What an advice does not name.


def _unnamed_work(advice: SavedAdvice, before: SavedReport, after: SavedReport) -> str:
    """Return how work changed that an advice does not name; empty if it stayed the same."""
    changes = [
        _changes_of_work(_work_of_stages(then), _work_of_stages(now))
        for then, now in (
            (before.stage_ns, after.stage_ns),
            (_mean_ns(before), _mean_ns(after)),
        )
    ]
    of_all = [own.pop(None, 1.0) for own in changes]
    if _kinds(advice) & {"schedule", MICROBATCHES} or advice.stages:
        # Work moves between stages, or microbatches are as many times shorter as there are more.
        times = (after.microbatches or 1) / (before.microbatches or 1)
        moved = [_is_changed(ratio) and _is_changed(ratio * times) for ratio in of_all]
        stages = set(advice.stages)
        apart = [stage for stage in _changed_stages(changes) if stage not in stages]
        if all(moved) and (apart or not stages):
            return f"a microbatch takes {of_all[0]:.2f}x the work on all stages"
        return ""
    if _kinds(advice) <= _OF_DELAYS:
        named: set[int | None] = set()
    else:
        known = range(len(before.stage_of_rank))
        ranks = [rank for rank in advice.indices if rank in known] or known
        named = {before.stage_of_rank[rank] for rank in ranks}
    unnamed = [
        stage
        for stage in _changed_stages(changes)
        if stage not in named or _is_longer(stage, changes)
    ]
    if not unnamed:
        return ""
    stage = unnamed[0]
    return f"a microbatch takes {changes[0][stage]:.2f}x the work on stage {stage}"


def _is_longer(stage: int, changes: Iterable[Mapping[int | None, float]]) -> bool:
    """Return whether the work of a stage became longer, which no advice asks for.

    Args:
        stage: A stage with a change by each of the measures.
        changes: How many times as long stages compute as before, by each of several measures.
    """
    return all(own[stage] > 1 for own in changes)


def _work_of_stages(times_ns: Mapping[tuple[int, str], float]) -> dict[int, float]:
    """Return how long a microbatch is computed for, by stage."""
    work_ns: dict[int, float] = {}
    for (stage, phase), ns in times_ns.items():
        if phase in COMPUTE:
            work_ns[stage] = work_ns.get(stage, 0.0) + ns
    return work_ns


def _mean_ns(run: SavedReport) -> dict[tuple[int, str], float]:
    """Return mean times by stage and phase, of chunks together; medians if there are no means."""
    total: dict[tuple[int, str], float] = {}
    for kind in run.kinds:
        key = kind.stage, kind.phase.label
        total[key] = total.get(key, 0.0) + (kind.mean_ns or kind.median_ns)
    return total


def _changes_of_work(
    before_ns: Mapping[int, float], after_ns: Mapping[int, float]
) -> dict[int | None, float]:
    """Return how many times as long stages compute as before, and all together under None."""
    known = [stage for stage, ns in before_ns.items() if ns and after_ns.get(stage)]
    changes: dict[int | None, float] = {
        stage: after_ns[stage] / before_ns[stage] for stage in known
    }
    if known:
        changes[None] = sum(after_ns.values()) / sum(before_ns.values())
    return changes


def _changed_stages(changes: Iterable[Mapping[int | None, float]]) -> list[int]:
    """Return the stages whose work changed by each of several measures, ascending."""
    changed = [
        {stage for stage, ratio in own.items() if stage is not None and _is_changed(ratio)}
        for own in changes
    ]
    return sorted(set.intersection(*changed))


def _is_changed(ratio: float) -> bool:
    return not 1 / (1 + SAME_WORK) <= ratio <= 1 + SAME_WORK
