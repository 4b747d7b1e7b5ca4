"""Summary: the mean and spread of the ratios over iterations, and the headline ratio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.count import rank_iterations
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import list_ratios
from bubbleviz.count.statistics import Spread, measure_spread
from bubbleviz.model.attribute_values import SummaryValue
from bubbleviz.model.run_kinds import EVALUATION, INFERENCE, TRAINING

#: Maximum overlap between consecutive iterations, as a share of a rank's window. If iterations
#: overlap by more than this, ``period`` is the headline.
OVERLAP_SHARE = 0.01


@dataclass(frozen=True)
class Summary(SummaryValue):
    """Statistics over the averaged iterations, keyed by ratio name.

    Attributes:
        iterations: Number of averaged iterations.
        bubble_ratio: Spread of the bubble ratio.
        bubble_interval: Lower and upper bound of the mean given the uncertainty of the clock
            alignment, or None if the bounds are unknown or the ratio does not compare clocks.
        bubble_low: Spread of the bubble ratio with unattributed compute counted as work.
        bubble_overhead: Spread of bubble time divided by work.
        window_ns: Spread of the window length, in ns.
    """

    iterations: int
    bubble_ratio: Mapping[str, Spread]
    bubble_interval: Mapping[str, tuple[float, float] | None]
    bubble_low: Mapping[str, Spread]
    bubble_overhead: Mapping[str, Spread]
    window_ns: Mapping[str, Spread]


def summarize(iterations: Sequence[Iteration]) -> Summary:
    """Return the statistics over the averaged iterations.

    ``bubble_interval`` contains the mean lower bound and the mean upper bound of each ratio, over
    the averaged iterations in which the ratio is known. The value is None if there are no such
    iterations, or if the interval is unknown in any of them.
    """
    averaged = [i for i in iterations if i.averaged]
    names = [ratio.name for ratio in list_ratios()]

    def measure(field: str) -> dict[str, Spread]:
        """Measure the spread of one field of :class:`Ratio`, for each ratio."""
        return {n: measure_spread([getattr(i.ratios[n], field) for i in averaged]) for n in names}

    intervals: dict[str, tuple[float, float] | None] = {}
    for name in names:
        ratios = [i.ratios[name] for i in averaged if i.ratios[name].value is not None]
        bounds = [ratio.interval for ratio in ratios if ratio.interval is not None]
        intervals[name] = None
        if bounds and len(bounds) == len(ratios):
            # The means of the bounds represent the worst case: all clocks are off in the same
            # direction.
            low, high = np.array(bounds, np.float64).mean(axis=0).tolist()
            intervals[name] = low, high
    return Summary(
        iterations=len(averaged),
        bubble_ratio=measure("value"),
        bubble_interval=intervals,
        bubble_low=measure("low"),
        bubble_overhead=measure("overhead"),
        window_ns=measure("window_ns"),
    )


def choose_headline(iterations: Sequence[Iteration]) -> tuple[str, str]:
    """Choose the bubble ratio to quote as the headline.

    Ratios that are unknown in all averaged iterations are skipped. The first applicable rule
    determines the ratio:

    1. ``period``, if consecutive iterations overlap by more than ``OVERLAP_SHARE`` of a rank's
       window, or if the run is inference.
    2. ``schedule``.
    3. ``stage``.

    If iterations overlap but ``period`` is unknown, rules 2 and 3 apply. If there are no averaged
    iterations, or if all ratios are unknown, the ratio is ``schedule``.

    Args:
        iterations: All iterations of a run.

    Returns:
        name: Name of the ratio.
        reason: Reason for the choice, as a clause.
    """
    averaged = [i for i in iterations if i.averaged]
    if not averaged:
        is_skipped = any(i.complete and i.kind != EVALUATION for i in iterations)
        verb = "is left to average" if is_skipped else "was captured"
        is_inference = any(i.kind == INFERENCE for i in iterations)
        noun = "iteration" if is_inference else "training iteration"
        return "schedule", f"no complete {noun} {verb}"
    available = [
        name
        for name in ("period", "schedule", "stage")
        if any(i.ratios[name].value is not None for i in averaged)
    ]
    is_forward_only = averaged[0].kind == INFERENCE
    overlaps = [] if is_forward_only else _compute_overlaps(iterations)
    overlap, name_of_iteration = max(overlaps, default=(0.0, ""))
    if overlap > OVERLAP_SHARE:
        reason = (
            f"consecutive iterations overlap (up to {100 * overlap:.1f} % of a rank's window, in "
            f"iteration {name_of_iteration})"
        )
        if "period" in available:
            return "period", f"{reason}, so idle time in one iteration may be work on another"
        name = next(iter(available), "schedule")
        return name, f"{reason}, but no averaged iteration is followed by another, as period needs"
    if is_forward_only and "period" in available:
        # Between iterations, the GPUs wait for tokens, requests and the host. The window of a
        # single iteration does not contain these waits.
        return "period", (
            "the run only goes forward, and period includes the time between iterations, in which "
            "GPUs wait"
        )
    return _choose_single_iteration_ratio(available, is_forward_only=is_forward_only)


def _choose_single_iteration_ratio(
    available: Sequence[str], *, is_forward_only: bool
) -> tuple[str, str]:
    """Choose between ``schedule`` and ``stage``.

    ``schedule`` is preferred, and is also returned if no ratio is known.

    Args:
        available: Names of the ratios that are known in any averaged iteration.
        is_forward_only: Whether the run is inference.

    Returns:
        name: Name of the ratio.
        reason: Reason for the choice, as a clause.
    """
    if "schedule" in available:
        if is_forward_only:
            return "schedule", "the run only goes forward, and one window covers the recording"
        return "schedule", "iterations do not overlap, so each is measured on its own"
    if "stage" in available:
        # Without a common clock, the relative timing of iterations on several hosts is unknown.
        unknown = "" if is_forward_only else ", and so is the overlap of consecutive iterations"
        reason = f"the ranks have no common clock, so schedule is unknown{unknown}"
        return "stage", f"{reason}; stage needs no common clock"
    return "schedule", "no ratio over all ranks is known for any averaged iteration"


def _compute_overlaps(iterations: Sequence[Iteration]) -> Iterator[tuple[float, str]]:
    """Yield the overlap (:func:`_compute_overlap`) and the name of each averaged iteration."""
    for iteration in iterations:
        if iteration.averaged:
            yield _compute_overlap(iteration), iteration.name


def has_overlap(iterations: Sequence[Iteration]) -> bool:
    """Return whether iterations overlap other iterations of the same kind.

    Overlaps of training with evaluations do not count, so only averaged iterations whose neighbors
    are of the same kind are checked. Evaluations themselves are not checked. The overlap must
    exceed ``OVERLAP_SHARE`` of a rank's window.
    """
    between_same_kind = []
    for iteration in iterations:
        first = max(iteration.index - 1, 0)
        neighbors = iterations[first : iteration.index + 2]
        is_checked = iteration.kind in (TRAINING, INFERENCE)
        if is_checked and all(neighbor.kind == iteration.kind for neighbor in neighbors):
            between_same_kind.append(iteration)
    return max(_compute_overlaps(between_same_kind), default=(0.0, ""))[0] > OVERLAP_SHARE


def _compute_overlap(iteration: Iteration) -> float:
    """Return the largest share of any rank's window that is spent on other iterations.

    The window of ``schedule`` is used, or the window of ``stage`` if ``schedule`` is unknown or
    compares contradicting clocks. The share is 0 if both windows are unknown.
    """
    ranks = iteration.ranks
    # Contradicting clocks make the common window of all hosts useless. The windows of ``stage`` are
    # then used instead.
    is_trusted = (
        rank_iterations.has_account(ranks, "schedule")
        and not iteration.ratios["schedule"].contradicted
    )
    ratio = "schedule" if is_trusted else "stage"
    if not rank_iterations.has_account(ranks, ratio):
        return 0.0
    window_ns = rank_iterations.get_account_column(ranks, ratio, "window_ns")
    overlap_ns = rank_iterations.get_account_column(ranks, ratio, "overlap_ns")
    is_positive = window_ns > 0
    return float((overlap_ns[is_positive] / window_ns[is_positive]).max(initial=0.0))
