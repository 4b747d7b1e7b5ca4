"""Window bounds: the shortest and longest windows that the uncertainty of clocks allows.

Ranks of one machine have one clock, so a window between two of them is exact. Between two
machines both ends can move by the uncertainty of their clocks::

    machine 0      ├── first start         ┤
    machine 1      ┊          last end ───┤┊
                   ┊              shortest ┊ longest
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.clocks.timebase import Timebase
from bubbleviz.align.profile_clocks import DRIFT
from bubbleviz.count.ratios import Extents, RatioDefinition
from bubbleviz.model.columns import Bools, Ints


@dataclass(frozen=True)
class WindowBounds:
    """Bounds of the windows of one ratio, by iteration.

    Attributes:
        low_ns: the shortest window that clocks allow.
        high_ns: the longest.
        across: whether the window lies on several machines.
        comparable: whether the clocks of all ranks in it can be compared.
        bounded: whether the uncertainty of these clocks is known.
        contradicted: whether it needs clocks that contradict each other.
        jump_ns: by how much a clock was set in it.
    """

    low_ns: Ints
    high_ns: Ints
    across: Bools
    comparable: Bools
    bounded: Bools
    contradicted: Bools
    jump_ns: Ints

    def compute_interval(self, k: int, work_ns: int, ranks: int) -> tuple[float, float] | None:
        """Return the bounds of a bubble ratio; None where no uncertainty is known.

        Clocks that drift apart measure work in units that differ by as much, too.

        Args:
            k: the iteration.
            work_ns: work of the ranks in it.
            ranks: how many ranks have that window.
        """
        if not self.bounded[k] or self.low_ns[k] <= 0:
            return None
        units = DRIFT if self.across[k] else 0.0
        jumps = int(self.jump_ns[k]) * ranks
        least, most = work_ns * (1 - units) - jumps, work_ns * (1 + units) + jumps
        low, high = int(self.low_ns[k]) * ranks, int(self.high_ns[k]) * ranks
        return max(low - most, 0.0) / low, (high - max(least, 0.0)) / high


def bound_windows(ratio: RatioDefinition, extents: Extents, timebase: Timebase) -> WindowBounds:
    """Return the bounds of the windows of a ratio that needs a common clock.

    Args:
        ratio: the ratio; all its ranks have one window.
        extents: first starts and last ends.
        timebase: how far the clocks can be off.
    """
    machines = len(timebase.comparable)
    iterations = len(extents.present)
    start_ns = np.zeros((iterations, machines), np.int64)
    end_ns = np.zeros((iterations, machines), np.int64)
    takes_part = np.zeros((iterations, machines), bool)
    for machine in range(machines):
        present = extents.present & (timebase.machine == machine)
        windows = ratio.windows(replace(extents, present=present))
        takes_part[:, machine] = present.any(axis=1)
        # All ranks share the window, so that any of them shows it.
        start_ns[:, machine] = windows.start_ns[:, 0]
        end_ns[:, machine] = windows.end_ns[:, 0]
    low_ns, high_ns = np.zeros(iterations, np.int64), np.zeros(iterations, np.int64)
    for k in range(iterations):
        at = np.flatnonzero(takes_part[k])
        if len(at):
            uncertainty_ns = np.maximum(timebase.uncertainty_ns[at], 0)
            low_ns[k], high_ns[k] = _measure_lengths(start_ns[k, at], end_ns[k, at], uncertainty_ns)
    across = takes_part.sum(axis=1) > 1
    unknown = timebase.uncertainty_ns < 0
    jump_ns = timebase.jump_ns if len(timebase.jump_ns) else np.zeros(iterations, np.int64)
    return WindowBounds(
        low_ns=low_ns - jump_ns,
        high_ns=high_ns + jump_ns,
        across=across,
        comparable=~across | ~(takes_part & ~timebase.comparable).any(axis=1),
        bounded=~across | ~(takes_part & unknown).any(axis=1),
        contradicted=across & timebase.contradicted,
        jump_ns=jump_ns,
    )


def _measure_lengths(start_ns: Ints, end_ns: Ints, uncertainty_ns: Ints) -> tuple[int, int]:
    """Return the shortest and the longest window over machines, each with its own window."""
    tolerance = uncertainty_ns[:, None] + uncertainty_ns[None, :]
    np.fill_diagonal(tolerance, 0)
    length = end_ns[:, None] - start_ns[None, :]
    return int((length - tolerance).max()), int((length + tolerance).max())
