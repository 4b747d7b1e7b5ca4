"""Advice that was followed: what a report promised, what was done about it, and what came of it.

An iteration is as long as the window of ``step``; what lies between iterations is in ``period``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.texts import percent
from bubbleviz.report.promise import MICROBATCHES, TWICE_THE_MICROBATCHES, SavedAdvice, saved_share

if TYPE_CHECKING:
    from bubbleviz.report.saved import SavedReport

#: Phases that tell by their times how much work microbatches are.
_COMPUTE = frozenset(phase.label for phase in COUNTED)
#: A stage's time that changes by less than this share did not move, nor did what shows a fault.
_MOVED = 0.02
#: Savings within this much of an iteration are the same, whatever their intervals.
_WITHIN = 0.01
#: What saves at least this share of its promise is kept in part.
_IN_PART = 0.25
#: Orders of searched schedules at equal times are those of others, as which runs are recognised.
_RECOGNISED_AS = {"zb-1p": "zb-h1", "zb-2p": "zb-h2"}
#: Verdicts, from what was done and what came of it.
KEPT, IN_PART, NOT_KEPT, NOT_FOLLOWED, UNKNOWN = (
    "kept",
    "kept in part",
    "not kept",
    "not followed",
    "unknown",
)


@dataclass(frozen=True)
class FollowedAdvice:
    """What became of one advice of an earlier report.

    Attributes:
        kind: of what it was to remove.
        place: where that was, the same from run to run.
        action: what to do.
        promised_ratio: the saving, as a share of an iteration.
        error_ratio: how far that may be off; None where it is unknown.
        change: what was done about it, as far as reports show it.
        saved_ratio: how much shorter iterations are, as a share; None where it is unknown.
        window: the ratio by whose windows they are.
        per_microbatch: whether it is of the time of a microbatch, as iterations have other numbers
            of them.
        verdict: :data:`KEPT`, :data:`IN_PART`, :data:`NOT_KEPT`, :data:`NOT_FOLLOWED` or
            :data:`UNKNOWN`.
    """

    kind: str
    place: str
    action: str
    promised_ratio: float
    error_ratio: float | None
    change: str
    saved_ratio: float | None
    window: str
    verdict: str
    per_microbatch: bool = False

    @property
    def line(self) -> str:
        """All of it, as a sentence."""
        came = "how long iterations are is unknown"
        if self.saved_ratio is not None:
            longer = "shorter" if self.saved_ratio >= 0 else "longer"
            longer += " per microbatch" if self.per_microbatch else ""
            came = f"iterations are {percent(abs(self.saved_ratio))} {longer} ({self.window})"
        return (
            f"{self.action}: promised "
            f"{saved_share(self.kind, self.place, self.promised_ratio, self.error_ratio)}; "
            f"{self.change}; {came}: {self.verdict}"
        )


def work_ns(run: SavedReport) -> float:
    """Return how long a microbatch is computed for, on all stages together."""
    return sum(ns for (_, phase), ns in run.stage_ns.items() if phase in _COMPUTE)


def same_work(before: SavedReport, after: SavedReport) -> float:
    """Return how many iterations of a run do the work of one of an earlier run.

    That is the ratio of their numbers of microbatches; 1 where either is unknown, and where one
    batch was divided otherwise: operations then take as many times less as there are more.
    """
    if not before.microbatches or not after.microbatches:
        return 1.0
    share = before.microbatches / after.microbatches
    then_ns, now_ns = work_ns(before), work_ns(after)
    times = now_ns / then_ns if then_ns and now_ns else 1.0
    divided = abs(math.log(times)) > abs(math.log(times / share))
    return 1.0 if divided else share


def followed_advice(before: SavedReport, after: SavedReport) -> tuple[FollowedAdvice, ...]:
    """Return what became of each advice of a report, in its order.

    Where several were followed, each is held against what came of all.

    Args:
        before: the report that gives advice.
        after: a report of the run with changes.
    """
    results, kinds = [], set[str]()
    for advice in before.advice:
        # What saves little cannot be told apart from all else; of a kind the largest stands for it.
        if advice.saving_ratio < _WITHIN or advice.kind in kinds:
            continue
        kinds.add(advice.kind)
        done, change = _change(advice, before, after)
        # Where iterations overlap, one that ends earlier is not all won: the next began before.
        overlapping = before.headline == "period" or advice.place == "between-iterations"
        window = "period" if overlapping else "step"
        results.append(_held(advice, (before, after), window, done, change))
    if (more := _more_microbatches(before, after)) is not None:
        now, then = after.microbatches or 0, before.microbatches or 0
        change = f"iterations have {now or 'unknown'} microbatches"
        change += " as before" if now == then else f", had {then or 'unknown'}"
        done = now > then > 0
        results.append(_held(more, (before, after), before.headline, done, change))
    return tuple(results)


def _held(
    advice: SavedAdvice, runs: tuple[SavedReport, SavedReport], window: str, done: bool, change: str
) -> FollowedAdvice:
    """Return an advice, whether it was followed, and how, held against what came of it."""
    saved, window = _saved(*runs, window)
    within = max(advice.error_ratio or 0.0, _WITHIN)
    if not done:
        verdict = NOT_FOLLOWED
    elif saved is None:
        verdict = UNKNOWN
    elif saved >= advice.saving_ratio - within:
        verdict = KEPT
    else:
        verdict = IN_PART if saved >= _IN_PART * advice.saving_ratio else NOT_KEPT
    return FollowedAdvice(
        advice.kind,
        advice.place,
        advice.action.partition(". ")[0],
        advice.saving_ratio,
        advice.error_ratio,
        change,
        saved,
        window,
        verdict,
        same_work(*runs) != 1,
    )


def _more_microbatches(before: SavedReport, after: SavedReport) -> SavedAdvice | None:
    """Return the advice to run more microbatches; None where a report does not give it.

    The same bubble beside n times the work saves all but the n-th part of it: n is 2, or what was
    done. What transfers take of it comes with each microbatch, and stays.
    """
    ratio = before.bubble_ratio
    parts = dict(before.bubble_parts)
    staying = sum(parts.get(own.label, 0.0) for own in (Cause.COMMUNICATION, Cause.QUEUED))
    if TWICE_THE_MICROBATCHES not in (before.what_to_do_first or "") or ratio is None:
        return None
    times = (after.microbatches or 0) / (before.microbatches or 1)
    saving = (ratio - staying) * (1 - 1 / (times if times > 1 else 2.0))
    return SavedAdvice(MICROBATCHES, saving, f"Run {TWICE_THE_MICROBATCHES}", MICROBATCHES)


def _saved(before: SavedReport, after: SavedReport, window: str) -> tuple[float | None, str]:
    """Return the share by which a window of as much work is shorter, and which window that is.

    None where either run has none.
    """
    for name in (window, before.headline, "step"):
        first, now = before.ratio(name), after.ratio(name)
        if first and now and first.window_ns.mean and now.window_ns.mean is not None:
            return 1 - same_work(before, after) * now.window_ns.mean / first.window_ns.mean, name
    return None, window


def _change(advice: SavedAdvice, before: SavedReport, after: SavedReport) -> tuple[bool, str]:
    """Return whether anything was done about an advice, and what."""
    if advice.kind == "schedule":
        if before.schedule == after.schedule:
            return False, f"the schedule is still {after.schedule or 'unknown'}"
        wanted, ran = (_RECOGNISED_AS.get(own, own) for own in (advice.place, after.schedule or ""))
        advised = "" if ran == wanted else f", not {advice.place}"
        change = f"the schedule is {after.schedule or 'unknown'}{advised}, was {before.schedule}"
        return not advised, change
    if advice.stages:
        return _moved(advice.stages, before, after)
    now = next((own for own in after.advice if own.place == advice.place), None)
    what, first = max(advice.measure, key=lambda pair: pair[1], default=("", 0.0))
    last = None if now is None else dict(now.measure).get(what)
    if now is None:
        return True, "it no longer stands out"
    if last is None or abs(last - first) <= _MOVED * first:
        return False, f"it still costs {percent(now.saving_ratio)}"
    change = f"{what or 'work'} takes {last:.2f}x its usual time, was {first:.2f}x"
    if advice.kind == "queue":
        change = f"{last:,.0f} {what}s are queued, {first:,.0f} were"
    return True, change


def _moved(stages: tuple[int, ...], before: SavedReport, after: SavedReport) -> tuple[bool, str]:
    """Return whether work of stages changed, and of the one whose work did most, how."""
    times = [
        (now_ns / then_ns, stage, phase, then_ns, now_ns)
        for (stage, phase), then_ns in before.stage_ns.items()
        if stage in stages and then_ns and (now_ns := after.stage_ns.get((stage, phase), 0.0))
    ]
    if not times:
        return False, "times of its stages are unknown"
    ratio, stage, phase, then_ns, now_ns = min(times)
    if ratio >= 1 - _MOVED:
        return False, f"{phase} of stage {stage} takes {now_ns / 1e6:,.3f} ms as before"
    change = f"{phase} of stage {stage} takes {now_ns / 1e6:,.3f} ms, was {then_ns / 1e6:,.3f} ms"
    return True, change
