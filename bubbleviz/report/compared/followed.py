"""Followed advice: compare the savings that a report promised with the savings in a later run.

The length of an iteration is the window of the ratio ``step``. If iterations overlap, the window of
``period`` is used instead, which also contains the time between iterations.
"""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.diagnosis.fault_names import BETWEEN_ITERATIONS
from bubbleviz.model.texts import format_percent
from bubbleviz.report.advice import StepCode
from bubbleviz.report.compared.pair import ReportPair, RunPair
from bubbleviz.report.compared.remedies import describe_named_change, describe_unnamed_change
from bubbleviz.report.promise import MICROBATCHES, TWICE_THE_MICROBATCHES, format_saving
from bubbleviz.report.summary import AdviceEntry

#: Savings are considered equal if they differ by at most this fraction of an iteration. Promised
#: savings smaller than this are not checked.
SAME_SAVING = 0.01
#: Minimum fraction of the promised saving for the verdict "kept in part".
_IN_PART = 0.25
#: Verdicts on advice.
KEPT, IN_PART, NOT_KEPT, NOT_FOLLOWED, UNKNOWN = (
    "kept",
    "kept in part",
    "not kept",
    "not followed",
    "unknown",
)


@dataclass(frozen=True)
class AdviceResult:
    """The outcome of one piece of advice from an earlier report.

    Attributes:
        kind: The kind of fault that the advice is meant to remove.
        place: Place of the fault. It is the same in every report on the same job.
        action: The recommended action.
        promised_ratio: The promised saving, as a fraction of an iteration.
        error_ratio: Error bound of ``promised_ratio``, or None if unknown.
        change: A clause that says how the fault changed between the two reports.
        saved_ratio: Fraction of an iteration that was saved (negative if iterations got longer), or
            None if unknown.
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
            return "the length of iterations is unknown"
        longer = "shorter" if self.saved_ratio >= 0 else "longer"
        longer += " per microbatch" if self.per_microbatch else ""
        return f"iterations are {format_percent(abs(self.saved_ratio))} {longer} ({self.window})"

    @property
    def line(self) -> str:
        """A sentence with the action, the promise, the change, the outcome and the verdict."""
        promised = format_saving(self.kind, self.place, self.promised_ratio, self.error_ratio)
        return f"{self.action}: promised {promised}; {self.change}; {self.outcome}: {self.verdict}"


def check_advice(pair: ReportPair) -> tuple[AdviceResult, ...]:
    """Check each piece of advice from the earlier report against the later run.

    Advice counts as followed only if the fault that it names shrank by more than noise can explain,
    and the rest of the job stayed the same. If several pieces of advice were followed, each promise
    is compared with the combined saving. Only the first advice of each kind is checked, and only if
    it promises a saving of at least ``SAME_SAVING``.

    Returns:
        The results, in the order of the advice. Advice to run more microbatches comes last. For
        reports on idle time, the result is empty.
    """
    if not isinstance(pair, RunPair):
        return ()
    earlier = pair.earlier
    results, kinds = [], set[str]()
    for advice in earlier.advice:
        promised_ratio = advice.saving_ratio or 0.0
        if promised_ratio < SAME_SAVING or advice.kind in kinds:
            continue
        kinds.add(advice.kind)
        # If iterations overlap, the next iteration has already begun when an iteration ends. Ending
        # an iteration earlier therefore does not shorten the run by the same amount.
        is_overlapping = earlier.headline == "period" or advice.place == BETWEEN_ITERATIONS
        window = "period" if is_overlapping else "step"
        results.append(_compare_with_promise(advice, promised_ratio, pair, window))
    if (microbatch_result := _make_microbatch_advice(pair)) is not None:
        promised_ratio = microbatch_result.saving_ratio or 0.0
        results.append(
            _compare_with_promise(microbatch_result, promised_ratio, pair, earlier.headline)
        )
    return tuple(results)


def _compare_with_promise(
    advice: AdviceEntry, promised_ratio: float, pair: RunPair, window: str
) -> AdviceResult:
    """Compare what one piece of advice promised with what was saved between two runs.

    The advice was not followed if its fault did not shrink, or if something else changed as well.
    Otherwise, the verdict depends on the saving. The first case that applies is used:

    - The promise was kept if the saving is at least the promise minus a tolerance. The tolerance is
      the promise's error bound or ``SAME_SAVING``, whichever is larger.
    - The promise was kept in part if the saving is at least ``_IN_PART`` times the promise.
    - Otherwise, the promise was not kept. If the saving is unknown, so is the verdict.

    Args:
        advice: Advice from the earlier report.
        promised_ratio: Fraction of an iteration that the advice promises to save.
        pair: The two reports.
        window: Name of the ratio whose windows are compared, provided that both runs have this
            ratio; see :func:`_measure_saving`.
    """
    is_done, change = describe_named_change(advice, pair)
    if is_done and (unnamed := describe_unnamed_change(advice, pair)):
        # The effect of this advice cannot be separated from the effect of the other change.
        is_done, change = False, f"{change}, but {unnamed}"
    saved, window = _measure_saving(pair, window)
    tolerance = max(advice.error_ratio or 0.0, SAME_SAVING)
    if not is_done:
        verdict = NOT_FOLLOWED
    elif saved is None:
        verdict = UNKNOWN
    elif saved >= promised_ratio - tolerance:
        verdict = KEPT
    else:
        verdict = IN_PART if saved >= _IN_PART * promised_ratio else NOT_KEPT
    return AdviceResult(
        advice.kind,
        advice.place,
        advice.action,
        promised_ratio,
        advice.error_ratio,
        change,
        saved,
        window,
        verdict,
        pair.is_per_microbatch,
    )


def _make_microbatch_advice(pair: RunPair) -> AdviceEntry | None:
    """Return the advice to run more microbatches, or None if the earlier report does not give it.

    If the number of microbatches grows n-fold, the length of the bubble stays the same, so its
    share of the time falls to 1/n. The factor n is the later number of microbatches divided by the
    earlier number, or 2 if the number did not grow. Idle time caused by transfers grows with the
    number of microbatches, so none of it is saved.
    """
    earlier, later = pair.earlier, pair.later
    ratio = earlier.bubble_ratio
    is_advised = any(step.code == StepCode.MORE_MICROBATCHES for step in earlier.first)
    if not is_advised or ratio is None:
        return None
    parts = {part.name: part.share for part in earlier.summary.bubble_parts}
    staying = sum(parts.get(cause.label, 0.0) for cause in (Cause.COMMUNICATION, Cause.QUEUED))
    times = (later.microbatches or 0) / (earlier.microbatches or 1)
    saving = (ratio - staying) * (1 - 1 / (times if times > 1 else 2.0))
    return AdviceEntry(MICROBATCHES, saving, f"Run {TWICE_THE_MICROBATCHES}", MICROBATCHES)


def _measure_saving(pair: RunPair, window: str) -> tuple[float | None, str]:
    """Return the fraction of the earlier window that was saved, and the ratio's name.

    The fraction is ``1 - equal_work * later / earlier``, where ``later`` and ``earlier`` are mean
    windows. The first ratio that is known in both runs is used, in this order: ``window``, the
    earlier primary ratio, ``step``. If no such ratio exists, the result is (None, ``window``).
    """
    for name in (window, pair.earlier.headline, "step"):
        earlier, later = (run.summary.window_ns.get(name) for run in (pair.earlier, pair.later))
        if earlier is None or later is None:
            continue
        then_ns, now_ns = earlier.mean, later.mean
        if then_ns and now_ns is not None:
            return 1 - pair.equal_work * now_ns / then_ns, name
    return None, window
