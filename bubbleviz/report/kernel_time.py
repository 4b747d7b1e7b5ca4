"""Kernel time: how much of the averaged iterations kernels ran, beside the bubble.

A bubble is time in which no operation keeps a rank busy. What else may be lost lies inside
operations (launch gaps), or is compute that no operation holds::

    operation    ├──── F0 ────┤        ├──── F1 ────┤
    kernels      ██  ██  ██  ██   ████ ██  ██  ██  ██
                   gaps            outside
                              ├ bubble ┤
"""

from __future__ import annotations

from dataclasses import asdict

from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report

#: Of the window: gaps, or compute outside operations, below this share are not worth a sentence.
_NOTICEABLE = 0.01


@frozen
class KernelTime:
    """Sums over the ranks of the averaged iterations, in nanoseconds.

    Attributes:
        extent_ns: from a rank's first operation to the end of its last.
        kernel_ns: of that, time in which any kernel ran, communication included.
        window_ns: windows of the primary ratio.
        bubble_ns: bubble in these.
        gap_ns: launch gaps: an operation kept the GPU busy, and no kernel ran.
        unattributed_ns: compute outside every operation, in the windows of the primary ratio.
    """

    extent_ns: int
    kernel_ns: int
    window_ns: int
    bubble_ns: int
    gap_ns: int
    unattributed_ns: int

    @property
    def share(self) -> float | None:
        """Share of the time in which any kernel ran; None where no rank has any time."""
        return self.kernel_ns / self.extent_ns if self.extent_ns else None

    @property
    def gaps_outweigh(self) -> bool:
        """Whether launch gaps take more time than the bubble does."""
        return self._outweighs(self.gap_ns)

    @property
    def unattributed_outweighs(self) -> bool:
        """Whether compute outside operations takes more time than the bubble does."""
        return self._outweighs(self.unattributed_ns)

    @property
    def beside_headline(self) -> bool:
        """Whether the share of time in which any kernel ran stands beside the headline ratio."""
        return self.share is not None and (self.gaps_outweigh or self.unattributed_outweighs)

    @property
    def entry(self) -> dict[str, int | float | bool | None]:
        """Its entry in JSON."""
        return {**asdict(self), "share": self.share, "beside_headline": self.beside_headline}

    def _outweighs(self, time_ns: int) -> bool:
        return (
            self.window_ns > 0
            and time_ns > self.bubble_ns
            and time_ns >= _NOTICEABLE * self.window_ns
        )


def kernel_time_of(report: Report) -> KernelTime:
    """Return how long kernels ran in the averaged iterations of a report."""
    ranks = [rank for i in report.iterations if i.averaged for rank in i.ranks]
    accounts = [
        rank.accounts[report.headline] for rank in ranks if report.headline in rank.accounts
    ]
    return KernelTime(
        extent_ns=sum(rank.last_ns - rank.first_ns for rank in ranks),
        kernel_ns=sum(rank.kernel_ns for rank in ranks),
        window_ns=sum(account.window_ns for account in accounts),
        bubble_ns=sum(account.bubble_ns for account in accounts),
        gap_ns=sum(rank.gap_ns for rank in ranks),
        unattributed_ns=sum(account.unattributed_ns for account in accounts),
    )
