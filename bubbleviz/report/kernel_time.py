"""Kernel time: how long kernels ran in averaged iterations, compared with the bubble.

A bubble is time in which no operation keeps a rank busy. More time may be lost inside operations
(launch gaps) or spent on compute outside all operations::

    operation    ├──── F0 ────┤        ├──── F1 ────┤
    kernels      ██  ██  ██  ██   ████ ██  ██  ██  ██
                   gaps            outside
                              ├ bubble ┤
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bubbleviz.model.texts import format_percent

#: Minimum fraction of a window that a time must take up to be reported. A difference between a
#: ratio and its lower bound is also reported only if it is at least this large.
NOTICEABLE = 0.01
#: Launch gaps are always reported if they take up more than this fraction of the operation time.
_MOSTLY = 0.5


@dataclass(frozen=True)
class KernelTime:
    """Times in ns, summed over the ranks of all averaged iterations.

    Attributes:
        window_ns: Total length of the primary ratio's windows.
        kernel_ns: Time in the windows during which any kernel (compute or communication) or copy
            ran.
        bubble_ns: Bubble time in the windows.
        gap_ns: Launch gaps: time in operations during which no kernel ran.
        unattributed_ns: Time in the windows during which compute ran outside all operations.
        work_ns: Total time of F, B, W, BW, R and FB operations, including launch gaps.
    """

    window_ns: int
    kernel_ns: int
    bubble_ns: int
    gap_ns: int
    unattributed_ns: int
    work_ns: int = 0

    @property
    def share(self) -> float | None:
        """Fraction of the windows during which any kernel or copy ran.

        None if there are no windows.
        """
        return self.kernel_ns / self.window_ns if self.window_ns else None

    @property
    def gaps_outweigh(self) -> bool:
        """Whether launch gaps are noticeable and take longer than the bubble."""
        return self._outweighs(self.gap_ns)

    @property
    def gaps_fill_work(self) -> bool:
        """Whether launch gaps are noticeable and take more than half of all operation time."""
        is_noticeable = self.gap_ns >= NOTICEABLE * self.window_ns > 0
        return is_noticeable and self.gap_ns > _MOSTLY * self.work_ns

    @property
    def unattributed_outweighs(self) -> bool:
        """Whether compute outside operations is noticeable and takes longer than the bubble."""
        return self._outweighs(self.unattributed_ns)

    @property
    def sentence(self) -> str | None:
        """A sentence to quote next to the primary ratio, or None if it is not needed.

        The sentence is needed if launch gaps or compute outside operations take longer than the
        bubble. It is also needed if launch gaps take more than half of the operation time.
        """
        if self.share is None or not (
            self.gaps_outweigh or self.gaps_fill_work or self.unattributed_outweighs
        ):
            return None
        return f"kernels ran for {format_percent(self.share)} of the time"

    @property
    def entry(self) -> dict[str, Any]:
        """The fields of :class:`.summary.KernelTimeEntry`, keyed by name."""
        return {
            **asdict(self),
            "share": self.share,
            "beside_headline": self.sentence is not None,
            "sentence": self.sentence,
        }

    def _outweighs(self, time_ns: int) -> bool:
        """Return whether a time is noticeable and exceeds the bubble."""
        return time_ns > self.bubble_ns and time_ns >= NOTICEABLE * self.window_ns > 0
