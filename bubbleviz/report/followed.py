"""Advice that was followed: what a report promised, what was done about it, and what came of it.

An iteration is as long as the window of ``step``; what lies between iterations is in ``period``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.texts import percent
from bubbleviz.report.promise import MICROBATCHES, TWICE_THE_MICROBATCHES, SavedAdvice, saved_share
from bubbleviz.report.remedies import COMPUTE, named_change, unnamed_change

if TYPE_CHECKING:
    from bubbleviz.report.saved import SavedReport

#: Savings within this much of an iteration are the same, whatever their intervals.
WITHIN = 0.01
#: What saves at least this share of its promise is kept in part.
_IN_PART = 0.25
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
    def outcome(self) -> str:
        """How much shorter or longer iterations are, as a clause."""
        if self.saved_ratio is None:
            return "how long iterations are is unknown"
        longer = "shorter" if self.saved_ratio >= 0 else "longer"
        longer += " per microbatch" if self.per_microbatch else ""
        return f"iterations are {percent(abs(self.saved_ratio))} {longer} ({self.window})"

    @property
    def line(self) -> str:
        """All of it, as a sentence."""
        promised = saved_share(self.kind, self.place, self.promised_ratio, self.error_ratio)
        return f"{self.action}: promised {promised}; {self.change}; {self.outcome}: {self.verdict}"


def work_ns(run: SavedReport) -> float:
    """Return how long a microbatch is computed for, on all stages together."""
    return sum(ns for (_, phase), ns in run.stage_ns.items() if phase in COMPUTE)


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

    An advice counts as followed only if what it names became better by more than noise, and the
    rest of the job stayed the same. If several were followed, each is compared with what came of
    all of them.

    Args:
        before: the report that gives advice.
        after: a report of the run with changes.
    """
    results, kinds = [], set[str]()
    for advice in before.advice:
        # What saves little cannot be told apart from all else; of a kind the largest stands for it.
        if advice.saving_ratio < WITHIN or advice.kind in kinds:
            continue
        kinds.add(advice.kind)
        # Where iterations overlap, one that ends earlier is not all won: the next began before.
        overlapping = before.headline == "period" or advice.place == "between-iterations"
        window = "period" if overlapping else "step"
        results.append(_checked(advice, before, after, window))
    if (more := _more_microbatches(before, after)) is not None:
        results.append(_checked(more, before, after, before.headline))
    return tuple(results)


def _checked(
    advice: SavedAdvice, before: SavedReport, after: SavedReport, window: str
) -> FollowedAdvice:
    """Return whether an advice was followed, how, and whether its promise was kept.

    Args:
        advice: Advice of the earlier report.
        before: The earlier report.
        after: Report of the later run.
        window: Ratio by whose windows iterations are compared.
    """
    done, change = named_change(advice, before, after)
    if done and (unnamed := unnamed_change(advice, before, after)):
        # What came of this advice cannot be told apart from what came of the rest.
        done, change = False, f"{change}, but {unnamed}"
    saved, window = _saved(before, after, window)
    within = max(advice.error_ratio or 0.0, WITHIN)
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
        same_work(before, after) != 1,
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
