"""Bubble parts: what the primary ratio is made of, so that the parts add up to it.

The ratio is the mean over iterations of their ratios, so each part is a mean of shares, too; the
ratio of all idle time to all windows would differ where iterations are not equally long.
"""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import account_column, accounted
from bubbleviz.count.ratios import CountedWork, ratio_definitions
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report

#: Time that counts as bubble though something ran in it, by the name of its part.
_NO_WORK = {
    "unattributed": "compute outside every operation",
    "next iterations": "compute of other iterations",
    "optimizer": "the Optimizer, which this ratio does not count as work",
}


@frozen
class BubblePart:
    """One part of the bubble.

    Attributes:
        name: label of a cause of idle time, or what ran that does not count as work.
        meaning: the same, in words.
        share: of the window, a fraction of 1; mean over the averaged iterations.
        time_ns: mean over these and their ranks.
    """

    name: str
    meaning: str
    share: float
    time_ns: float


def bubble_parts(report: Report) -> tuple[BubblePart, ...]:
    """Return the parts of the bubble, the largest first; none without an averaged iteration.

    Their shares add up to the mean of the ratio ``report.explanation.listed_ratio``.
    """
    return parts_of(report, [iteration for iteration in report.iterations if iteration.averaged])


def parts_of(report: Report, iterations: Sequence[Iteration]) -> tuple[BubblePart, ...]:
    """Return the parts of the bubble of some iterations, as of :func:`bubble_parts`."""
    name = report.explanation.listed_ratio
    known = [
        (iteration, window_ns)
        for iteration in iterations
        if iteration.ratios[name].value is not None
        and (window_ns := _summed(iteration, name, "window_ns"))
    ]
    ranks = sum(int(accounted(iteration.ranks, name).sum()) for iteration, _ in known)
    meanings = {cause.label: cause.meaning for cause in Cause} | _NO_WORK
    time_ns = dict.fromkeys(meanings, 0)
    share = dict.fromkeys(meanings, 0.0)
    for iteration, window_ns in known:
        idle_ns = report.explanation.causes.of_iteration(name, iteration.index)
        for part, part_ns in (idle_ns | _without_work(iteration, name)).items():
            time_ns[part] += part_ns
            share[part] += part_ns / window_ns / len(known)
    parts = (
        BubblePart(part, meaning, share[part], time_ns[part] / ranks)
        for part, meaning in meanings.items()
        if time_ns[part]
    )
    return tuple(sorted(parts, key=lambda part: -part.share))


def rounded_shares(shares: Sequence[float], digits: int = 2) -> list[str]:
    """Return shares in percent, rounded so that what is printed adds up to the rounded sum."""
    scale = 100 * 10**digits
    whole = [int(share * scale) for share in shares]
    left = round(sum(shares) * scale) - sum(whole)
    rest = [share * scale - down for share, down in zip(shares, whole, strict=True)]
    for at in sorted(range(len(rest)), key=lambda at: (-rest[at], at))[: max(left, 0)]:
        whole[at] += 1
    return [f"{number / 10**digits:.{digits}f}" for number in whole]


def _summed(iteration: Iteration, name: str, time: str) -> int:
    """Return a time of the accounts of a ratio, summed over an iteration's ranks."""
    return int(account_column(iteration.ranks, name, time).sum())


def _without_work(iteration: Iteration, name: str) -> dict[str, int]:
    """Return the time in which something ran that the ratio does not count as work, by part."""
    work = next((r.work for r in ratio_definitions() if r.name == name), CountedWork.EVERYTHING)
    overlaps = work is not CountedWork.EVERYTHING
    optimizes = work is CountedWork.ITERATION
    return {
        "unattributed": _summed(iteration, name, "unattributed_ns"),
        "next iterations": _summed(iteration, name, "overlap_ns") if overlaps else 0,
        "optimizer": _summed(iteration, name, "optimizer_ns") if optimizes else 0,
    }
