"""The summary: mean and spread of the ratios over iterations, and the ratio to quote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import RankIterations, has_account
from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.count.student_t import quantile
from bubbleviz.model.run_kind import EVALUATION, INFERENCE
from bubbleviz.model.values import frozen

#: Overlap of iterations above this share of a rank's window makes ``period`` the headline.
OVERLAP_SHARE = 0.01


@frozen
class Spread:
    """Mean and spread over iterations; ``ci95`` is the half width (Student t)."""

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    ci95: float | None
    n: int

    @property
    def pair(self) -> tuple[float, float] | None:
        """The two values, the lower first, where there are no more.

        Their confidence interval is 12.7 standard errors to either side: it says less than they do.
        """
        if self.n != 2 or self.min is None or self.max is None:
            return None
        return self.min, self.max


@frozen
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
    names = [ratio.name for ratio in ratio_definitions()]

    def over(field: str) -> dict[str, Spread]:
        return {name: spread([getattr(i.ratios[name], field) for i in averaged]) for name in names}

    return Summary(
        iterations=len(averaged),
        bubble_ratio=over("value"),
        bubble_interval={name: _mean_interval(averaged, name) for name in names},
        bubble_low=over("low"),
        bubble_overhead=over("overhead"),
        window_ns=over("window_ns"),
    )


def _mean_interval(averaged: Sequence[Iteration], name: str) -> tuple[float, float] | None:
    """Return the bounds of the mean: at worst, all clocks are off in the same direction."""
    known = [i.ratios[name] for i in averaged if i.ratios[name].value is not None]
    bounds = [ratio.interval for ratio in known if ratio.interval is not None]
    if not bounds or len(bounds) < len(known):
        return None
    low, high = np.array(bounds, np.float64).mean(axis=0).tolist()
    return low, high


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and spread of the known values; ``std`` with n - 1, ``ci95`` a half width."""
    known = np.array([v for v in values if v is not None], np.float64)
    n = len(known)
    if n == 0:
        return Spread(None, None, None, None, None, 0)
    mean, low, high = float(known.mean()), float(known.min()), float(known.max())
    if n == 1:
        return Spread(mean, None, low, high, None, 1)
    std = float(known.std(ddof=1))
    return Spread(mean, std, low, high, quantile(n - 1) * std / n**0.5, n)


def choose_headline(iterations: Sequence[Iteration]) -> tuple[str, str]:
    """Return the ratio to quote, and the reason."""
    averaged = [i for i in iterations if i.averaged]
    if not averaged:
        skipped = any(i.complete and i.kind != EVALUATION for i in iterations)
        why = "is left to average" if skipped else "is in the capture to average"
        what = "iteration" if any(i.kind == INFERENCE for i in iterations) else "training iteration"
        return "schedule", f"no complete {what} {why}"
    if averaged[0].kind == INFERENCE:
        return _of_inference(averaged)
    worst, where = max(_overlaps(iterations), default=(0.0, ""))
    if worst <= OVERLAP_SHARE:
        return _without_overlap(averaged)
    overlap = (
        f"consecutive iterations overlap (up to {worst:.1%} of a rank's window, in iteration "
        f"{where})"
    )
    if _any_has(averaged, "period"):
        return "period", f"{overlap}, so the idle time of one is partly another's work"
    known = [name for name in ("schedule", "stage") if _any_has(averaged, name)]
    name = known[0] if known else "schedule"
    return name, f"{overlap}, but no averaged iteration has a next one to measure a period to"


def _of_inference(averaged: Sequence[Iteration]) -> tuple[str, str]:
    """Return the ratio to quote of a run that only goes forward, and the reason.

    Between its iterations GPUs wait for tokens, requests and the host, which no window of a single
    one holds.
    """
    if _any_has(averaged, "period"):
        return "period", (
            "the run only goes forward, and what its GPUs wait for between two iterations counts"
        )
    if _any_has(averaged, "schedule"):
        return "schedule", "the run only goes forward, in one window over the recording"
    if _any_has(averaged, "stage"):
        return "stage", "the ranks have no common clock, so schedule is unknown; stage needs none"
    return "schedule", "no averaged iteration has a ratio over its ranks"


def _without_overlap(averaged: Sequence[Iteration]) -> tuple[str, str]:
    """Return the ratio to quote, and the reason, where no rank's own clock shows an overlap.

    How iterations of several hosts follow each other is unknown where no clock is common to them.
    """
    if _any_has(averaged, "schedule"):
        return "schedule", "consecutive iterations do not overlap"
    if _any_has(averaged, "stage"):
        return "stage", (
            "the ranks have no common clock, so schedule is unknown, and whether consecutive "
            "iterations overlap; stage needs none"
        )
    return "schedule", "no averaged iteration has a ratio over its ranks"


def _any_has(iterations: Sequence[Iteration], name: str) -> bool:
    return any(i.ratios[name].value is not None for i in iterations)


def _overlaps(iterations: Sequence[Iteration]) -> Iterator[tuple[float, str]]:
    """Yield the overlap of each rank of averaged iterations, as a share of its window.

    An evaluation next to an iteration does not show how training iterations follow each other.
    """
    for iteration in iterations:
        beside = iterations[max(iteration.index - 1, 0) : iteration.index + 2]
        if not iteration.averaged or any(i.kind != "training" for i in beside):
            continue
        ranks = iteration.ranks
        if not isinstance(ranks, RankIterations):
            continue
        # Where clocks leave no window over hosts, the longest rank's window does as well.
        trusted = has_account(ranks, "schedule") and not iteration.ratios["schedule"].contradicted
        ratio = "schedule" if trusted else "stage"
        if not has_account(ranks, ratio):
            continue
        window_ns = ranks.window_ns(ratio)
        real = window_ns > 0
        shares = ranks.account(ratio, "overlap_ns")[real] / window_ns[real]
        if len(shares):
            yield float(shares.max()), iteration.name
