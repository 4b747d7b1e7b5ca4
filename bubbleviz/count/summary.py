"""The summary: mean and spread of the ratios over iterations, and the ratio to quote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.count import rank_iterations
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import list_ratios
from bubbleviz.count.statistics import Spread, measure_spread
from bubbleviz.model.run_kinds import EVALUATION, INFERENCE, TRAINING

#: Overlap of iterations above this share of a rank's window makes ``period`` the headline.
OVERLAP_SHARE = 0.01


@dataclass(frozen=True)
class Summary:
    """Statistics over the averaged iterations, by name of the ratio.

    ``bubble_interval`` gives the bounds of the mean that the clocks' uncertainty allows; None where
    these are not known, or the ratio needs no common clock.
    """

    iterations: int
    bubble_ratio: Mapping[str, Spread]
    bubble_interval: Mapping[str, tuple[float, float] | None]
    bubble_low: Mapping[str, Spread]
    bubble_overhead: Mapping[str, Spread]
    window_ns: Mapping[str, Spread]


def summarize(iterations: Sequence[Iteration]) -> Summary:
    """Return the statistics over the averaged iterations."""
    averaged = [i for i in iterations if i.averaged]
    names = [ratio.name for ratio in list_ratios()]

    def over(field: str) -> dict[str, Spread]:
        return {
            name: measure_spread([getattr(i.ratios[name], field) for i in averaged])
            for name in names
        }

    intervals_of: dict[str, tuple[float, float] | None] = {}
    for name in names:
        known = [i.ratios[name] for i in averaged if i.ratios[name].value is not None]
        bounds = [ratio.interval for ratio in known if ratio.interval is not None]
        intervals_of[name] = None
        if bounds and len(bounds) == len(known):
            # At worst, all clocks are off in the same direction.
            low, high = np.array(bounds, np.float64).mean(axis=0).tolist()
            intervals_of[name] = low, high
    return Summary(
        iterations=len(averaged),
        bubble_ratio=over("value"),
        bubble_interval=intervals_of,
        bubble_low=over("low"),
        bubble_overhead=over("overhead"),
        window_ns=over("window_ns"),
    )


def choose_headline(iterations: Sequence[Iteration]) -> tuple[str, str]:
    """Return the ratio to quote, and the reason."""
    averaged = [i for i in iterations if i.averaged]
    if not averaged:
        skipped = any(i.complete and i.kind != EVALUATION for i in iterations)
        why = "is left to average" if skipped else "is in the capture to average"
        what = "iteration" if any(i.kind == INFERENCE for i in iterations) else "training iteration"
        return "schedule", f"no complete {what} {why}"
    known = [
        name
        for name in ("period", "schedule", "stage")
        if any(i.ratios[name].value is not None for i in averaged)
    ]
    forward = averaged[0].kind == INFERENCE
    worst, where = (0.0, "") if forward else max(_compute_overlaps(iterations), default=(0.0, ""))
    if worst > OVERLAP_SHARE:
        overlap = (
            f"consecutive iterations overlap (up to {worst:.1%} of a rank's window, in iteration "
            f"{where})"
        )
        if "period" in known:
            return "period", f"{overlap}, so the idle time of one is partly another's work"
        name = next(iter(known), "schedule")
        return name, f"{overlap}, but no averaged iteration has a next one to measure a period to"
    if forward and "period" in known:
        # Between its iterations GPUs wait for tokens, requests and the host, which no window of a
        # single one holds.
        return "period", (
            "the run only goes forward, and what its GPUs wait for between two iterations counts"
        )
    name, reason = "schedule", "no averaged iteration has a ratio over its ranks"
    if "schedule" in known:
        reason = (
            "the run only goes forward, in one window over the recording"
            if forward
            else "consecutive iterations do not overlap"
        )
    elif "stage" in known:
        # How iterations of several hosts follow each other is unknown without a common clock.
        overlapping = "" if forward else ", and whether consecutive iterations overlap"
        name, reason = (
            "stage",
            "the ranks have no common clock, so schedule is unknown"
            f"{overlapping}; stage needs none",
        )
    return name, reason


def _compute_overlaps(iterations: Sequence[Iteration]) -> Iterator[tuple[float, str]]:
    """Yield the overlap of averaged iterations, as a share of a rank's window."""
    for iteration in iterations:
        if iteration.averaged:
            yield _compute_overlap(iteration), iteration.name


def compute_training_overlaps(iterations: Sequence[Iteration]) -> bool:
    """Return whether training iterations overlap each other, and not only an evaluation."""
    alone = []
    for iteration in iterations:
        first = max(iteration.index - 1, 0)
        neighbours = iterations[first : iteration.index + 2]
        if all(neighbour.kind == TRAINING for neighbour in neighbours):
            alone.append(iteration)
    return max(_compute_overlaps(alone), default=(0.0, ""))[0] > OVERLAP_SHARE


def _compute_overlap(iteration: Iteration) -> float:
    """Return the time in a rank's window spent on other iterations, as a share; the largest."""
    ranks = iteration.ranks
    # Where clocks leave no window over hosts, the longest rank's window does as well.
    trusted = (
        rank_iterations.has_account(ranks, "schedule")
        and not iteration.ratios["schedule"].contradicted
    )
    ratio = "schedule" if trusted else "stage"
    if not rank_iterations.has_account(ranks, ratio):
        return 0.0
    window_ns = rank_iterations.get_account_column(ranks, ratio, "window_ns")
    overlap_ns = rank_iterations.get_account_column(ranks, ratio, "overlap_ns")
    real = window_ns > 0
    return float((overlap_ns[real] / window_ns[real]).max(initial=0.0))
