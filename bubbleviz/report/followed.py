"""Followed advice: compares the savings that a report promised with the savings of a later run.

The length of an iteration is the window of ``step``. The window of ``period`` also contains the
time between iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.texts import percent
from bubbleviz.report.promise import MICROBATCHES, TWICE_THE_MICROBATCHES, SavedAdvice, saved_share
from bubbleviz.report.remedies import COMPUTE, describe_named_change, describe_unnamed_change

if TYPE_CHECKING:
    from bubbleviz.report.saved import SavedReport

#: Maximum difference of two savings that count as equal, as a share of an iteration.
SAME_SAVING = 0.01
#: Minimum share of the promised saving for the verdict "kept in part".
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
    """The result of one piece of advice of an earlier report.

    Attributes:
        kind: Kind of the fault that the advice was to remove.
        place: Place of the fault, the same in every report of a job.
        action: Recommended action.
        promised_ratio: Promised saving, as a share of an iteration.
        error_ratio: Error bound of ``promised_ratio``, or None if unknown.
        change: Change between the two reports that concerns the advice, as a clause.
        saved_ratio: Saved share of an iteration, negative if iterations are longer, or None if
            unknown.
        window: Name of the ratio whose windows are compared.
        per_microbatch: Whether times per microbatch are compared, because the runs have different
            numbers of microbatches.
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
        """Clause that says how much shorter or longer iterations are."""
        if self.saved_ratio is None:
            return "how long iterations are is unknown"
        longer = "shorter" if self.saved_ratio >= 0 else "longer"
        longer += " per microbatch" if self.per_microbatch else ""
        return f"iterations are {percent(abs(self.saved_ratio))} {longer} ({self.window})"

    @property
    def line(self) -> str:
        """Sentence with the action, the promise, the change, the outcome and the verdict."""
        promised = saved_share(self.kind, self.place, self.promised_ratio, self.error_ratio)
        return f"{self.action}: promised {promised}; {self.change}; {self.outcome}: {self.verdict}"


def work_ns(run: SavedReport) -> float:
    """Return the compute time of a microbatch, summed over all stages."""
    return sum(ns for (_, phase), ns in run.stage_ns.items() if phase in COMPUTE)


def same_work(before: SavedReport, after: SavedReport) -> float:
    """Return the number of iterations of a later run that do the work of one earlier iteration.

    This is the ratio of the numbers of microbatches. It is 1 if either number is unknown, or if
    operations got shorter in proportion, since the same batch was then divided into more parts.
    """
    if not before.microbatches or not after.microbatches:
        return 1.0
    share = before.microbatches / after.microbatches
    then_ns, now_ns = work_ns(before), work_ns(after)
    times = now_ns / then_ns if then_ns and now_ns else 1.0
    divided = abs(math.log(times)) > abs(math.log(times / share))
    return 1.0 if divided else share


def followed_advice(before: SavedReport, after: SavedReport) -> tuple[FollowedAdvice, ...]:
    """Check each piece of advice of a report against a later run.

    Advice counts as followed only if the fault that it names shrank by more than noise, and the
    rest of the job stayed the same. If several pieces were followed, each is compared with the
    combined saving. Advice that promises less than ``SAME_SAVING``, or nothing, is left out, and of
    each kind only the first piece is checked.

    Args:
        before: The report that gives the advice.
        after: The report of the later run.

    Returns:
        The results, in the order of the advice.
    """
    results, kinds = [], set[str]()
    for advice in before.advice:
        promised_ratio = advice.saving_ratio or 0.0
        if promised_ratio < SAME_SAVING or advice.kind in kinds:
            continue
        kinds.add(advice.kind)
        # If iterations overlap, an earlier end of one does not shorten the run as much, because
        # the next one has already begun.
        overlapping = before.headline == "period" or advice.place == "between-iterations"
        window = "period" if overlapping else "step"
        results.append(_check_advice(advice, promised_ratio, before, after, window))
    if (more := _more_microbatches(before, after)) is not None:
        promised_ratio = more.saving_ratio or 0.0
        results.append(_check_advice(more, promised_ratio, before, after, before.headline))
    return tuple(results)


def _check_advice(
    advice: SavedAdvice,
    promised_ratio: float,
    before: SavedReport,
    after: SavedReport,
    window: str,
) -> FollowedAdvice:
    """Return whether a piece of advice was followed, how, and whether its promise was kept.

    Args:
        advice: Advice of the earlier report.
        promised_ratio: Share of an iteration that it promises to save.
        before: The earlier report.
        after: Report of the later run.
        window: Ratio by whose windows iterations are compared.
    """
    is_done, change = describe_named_change(advice, before, after)
    if is_done and (unnamed := describe_unnamed_change(advice, before, after)):
        # The effect of this advice cannot be separated from the effect of the other change.
        is_done, change = False, f"{change}, but {unnamed}"
    saved, window = _saved(before, after, window)
    tolerance = max(advice.error_ratio or 0.0, SAME_SAVING)
    if not is_done:
        verdict = NOT_FOLLOWED
    elif saved is None:
        verdict = UNKNOWN
    elif saved >= promised_ratio - tolerance:
        verdict = KEPT
    else:
        verdict = IN_PART if saved >= _IN_PART * promised_ratio else NOT_KEPT
    return FollowedAdvice(
        advice.kind,
        advice.place,
        advice.action.partition(". ")[0],
        promised_ratio,
        advice.error_ratio,
        change,
        saved,
        window,
        verdict,
        same_work(before, after) != 1,
    )


def _more_microbatches(before: SavedReport, after: SavedReport) -> SavedAdvice | None:
    """Return the advice to run more microbatches, or None if a report does not give it.

    With n times the work, the same bubble takes an n-th of its former share. If the later run has
    more microbatches, n follows from their numbers; otherwise it is 2. Bubble time that waits for
    transfers grows with the number of microbatches, so none of it is saved.
    """
    ratio = before.bubble_ratio
    parts = dict(before.bubble_parts)
    staying = sum(parts.get(cause.label, 0.0) for cause in (Cause.COMMUNICATION, Cause.QUEUED))
    if TWICE_THE_MICROBATCHES not in (before.what_to_do_first or "") or ratio is None:
        return None
    times = (after.microbatches or 0) / (before.microbatches or 1)
    saving = (ratio - staying) * (1 - 1 / (times if times > 1 else 2.0))
    return SavedAdvice(MICROBATCHES, saving, f"Run {TWICE_THE_MICROBATCHES}", MICROBATCHES)


def _saved(before: SavedReport, after: SavedReport, window: str) -> tuple[float | None, str]:
    """Return the share by which a window with the same work got shorter, and the window's name.

    The share is None if the runs have no window in common.
    """
    for name in (window, before.headline, "step"):
        then, now = before.ratio(name), after.ratio(name)
        if then and now and then.window_ns.mean and now.window_ns.mean is not None:
            return 1 - same_work(before, after) * now.window_ns.mean / then.window_ns.mean, name
    return None, window
