"""Count: the bubble ratios of every iteration, rank and window, and their summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Account:
    """Where the time of one rank in one window went; the parts add up to the window exactly.

    ``window = compute + optimizer + overlap + unattributed + bubble``
    """

    start_ns: int
    end_ns: int
    compute_ns: int
    optimizer_ns: int
    overlap_ns: int
    unattributed_ns: int
    bubble_ns: int

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class RankIteration:
    """One rank in one iteration.

    Attributes:
        rank: index of the rank.
        busy_ns: union of the busy time by printed phase name (F, B, W, BW, R, FB, Optimizer).
        compute_ns: union of the busy time of F, B, W, BW, R and FB.
        active_ns: union of the compute kernels of those.
        first_ns: first start of those.
        last_ns: last end of those.
        accounts: by name of the ratio, where the time of its window went.
        bubble_ratio: the rank's own ratio in the same window; None where it cannot be told.
        missing: what the rank lacks to have a ratio, or None.
    """

    rank: int
    busy_ns: Mapping[str, int]
    compute_ns: int
    active_ns: int
    first_ns: int
    last_ns: int
    accounts: Mapping[str, Account]
    bubble_ratio: Mapping[str, float | None]
    missing: str | None = None


@dataclass(frozen=True)
class Ratio:
    """One bubble ratio of one iteration over all its ranks.

    Attributes:
        value: 1 - work / (ranks x window); None where it cannot be told.
        low: the same with unattributed compute counted as work.
        overhead: bubble / work.
        window_ns: length of the window (mean over the ranks for ``period``).
        interval: bounds that the clocks' uncertainty allows; None where none is known or needed.
    """

    value: float | None
    low: float | None
    overhead: float | None
    window_ns: int | None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Iteration:
    """One training or evaluation iteration.

    Attributes:
        index: place in the report.
        name: the name its ranges give, else its number in order.
        kind: ``"training"`` or ``"evaluation"``.
        complete: whether the capture holds all of it.
        averaged: whether it enters the summary.
        microbatches: number of microbatches; None where the names do not tell.
        start_ns: first start of its work on any rank.
        end_ns: last end, Optimizer included.
        ratios: by name of the ratio.
        ranks: the ranks with work in it.
    """

    index: int
    name: str
    kind: str
    complete: bool
    averaged: bool
    microbatches: int | None
    start_ns: int
    end_ns: int
    ratios: Mapping[str, Ratio]
    ranks: tuple[RankIteration, ...]


@dataclass(frozen=True)
class Spread:
    """Mean and spread over iterations; ``ci95`` is the half width (Student t)."""

    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    ci95: float | None
    n: int


@dataclass(frozen=True)
class Summary:
    """Statistics over the averaged iterations, by name of the ratio."""

    iterations: int
    bubble_ratio: Mapping[str, Spread]
    bubble_low: Mapping[str, Spread]
    bubble_overhead: Mapping[str, Spread]
    window_ns: Mapping[str, Spread]
