"""Kernel time: how much of the averaged iterations kernels ran, beside the bubble.

A bubble is time in which no operation keeps a rank busy. What else may be lost lies inside
operations (launch gaps), or is compute that no operation holds::

    operation    ├──── F0 ────┤        ├──── F1 ────┤
    kernels      ██  ██  ██  ██   ████ ██  ██  ██  ██
                   gaps            outside
                              ├ bubble ┤
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bubbleviz.count.rank_iterations import account_column, indices_of, rank_column
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.texts import one_line, percent
from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report

#: Of the window: gaps, or compute outside operations, below this share are not worth a sentence.
_NOTICEABLE = 0.01
#: Of the time that operations keep a GPU busy: gaps above this share make it no time of work.
_MOSTLY = 0.5


@frozen
class KernelTime:
    """Sums over the ranks of the averaged iterations, in nanoseconds.

    Attributes:
        window_ns: windows of the primary ratio.
        kernel_ns: of these, time in which any kernel (communication included) or copy ran.
        bubble_ns: bubble in these.
        gap_ns: launch gaps: an operation kept the GPU busy, and no kernel ran.
        unattributed_ns: compute outside every operation, in the windows of the primary ratio.
        work_ns: how long F, B, W, BW, R and FB kept the ranks busy, launch gaps included.
        rank: where gaps fill most of the work of single ranks alone, the label of the one of these
            with the most; None elsewhere.
        rank_time: the same times of that rank.
    """

    window_ns: int
    kernel_ns: int
    bubble_ns: int
    gap_ns: int
    unattributed_ns: int
    work_ns: int = 0
    rank: str | None = None
    rank_time: KernelTime | None = None

    @property
    def share(self) -> float | None:
        """Share of the windows in which any kernel ran; None where no rank has any time."""
        return self.kernel_ns / self.window_ns if self.window_ns else None

    @property
    def gaps_outweigh(self) -> bool:
        """Whether launch gaps take more time than the bubble does."""
        return self._outweighs(self.gap_ns)

    @property
    def gaps_fill_work(self) -> bool:
        """Whether launch gaps take most of the time that operations kept the ranks busy."""
        return (
            self.gap_ns > _MOSTLY * self.work_ns and self.gap_ns >= _NOTICEABLE * self.window_ns > 0
        )

    @property
    def unattributed_outweighs(self) -> bool:
        """Whether compute outside operations takes more time than the bubble does."""
        return self._outweighs(self.unattributed_ns)

    @property
    def beside_headline(self) -> bool:
        """Whether the share of time in which any kernel ran stands beside the headline ratio."""
        of_run = self.gaps_outweigh or self.gaps_fill_work or self.unattributed_outweighs
        return self.share is not None and (of_run or self.rank_time is not None)

    @property
    def sentence(self) -> str | None:
        """What stands beside the headline ratio; None where nothing does."""
        if not self.beside_headline or self.share is None:
            return None
        told = f"any kernel ran for {percent(self.share)} of the time"
        if self.rank_time is None or self.rank_time.share is None:
            return told
        return f"{told} ({percent(self.rank_time.share)} on {self.rank})"

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in JSON."""
        return {
            **asdict(self),
            "share": self.share,
            "beside_headline": self.beside_headline,
            "sentence": self.sentence,
            "rank_time": self.rank_time and self.rank_time.entry,
        }

    def _outweighs(self, time_ns: int) -> bool:
        return (
            self.window_ns > 0
            and time_ns > self.bubble_ns
            and time_ns >= _NOTICEABLE * self.window_ns
        )


def kernel_time_of(report: Report) -> KernelTime:
    """Return how long kernels ran in the averaged iterations of a report."""
    of_rank = _of_ranks(report)
    time = KernelTime(*of_rank.sum(axis=1).tolist())
    if time.gaps_fill_work:
        return time
    window_ns, gap_ns, work_ns = of_rank[0], of_rank[3], of_rank[5]
    # As ``gaps_fill_work``, of each rank alone.
    filled = (gap_ns > _MOSTLY * work_ns) & (gap_ns >= _NOTICEABLE * window_ns) & (window_ns > 0)
    if not filled.any():
        return time
    slowest = int(np.where(filled, gap_ns, NONE).argmax())
    label = one_line(report.ranks[slowest].label, 60)
    return replace(time, rank=label, rank_time=KernelTime(*of_rank[:, slowest].tolist()))


def _of_ranks(report: Report) -> Ints:
    """Return the times of each rank, summed over the averaged iterations; shape (times, ranks).

    They are the times of :class:`KernelTime`, in their order.
    """
    ratio = report.headline
    times = np.zeros((6, len(report.ranks)), np.int64)
    for iteration in report.iterations:
        if iteration.averaged:
            ranks = iteration.ranks
            times[:, indices_of(ranks)] += np.stack(
                (
                    account_column(ranks, ratio, "window_ns"),
                    account_column(ranks, ratio, "running_ns"),
                    account_column(ranks, ratio, "bubble_ns"),
                    rank_column(ranks, "gap_ns"),
                    account_column(ranks, ratio, "unattributed_ns"),
                    rank_column(ranks, "compute_ns"),
                )
            )
    return times
