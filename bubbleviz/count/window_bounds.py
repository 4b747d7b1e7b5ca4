"""Window bounds: the shortest and longest window given the uncertainty of the clock alignment.

Ranks of one machine share a clock, so a window between two of them is exact. Between two machines,
both ends can move by the uncertainty of their clocks::

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
    """Bounds of the windows of one ratio, one row per iteration.

    Attributes:
        low_ns: Length of the shortest possible window.
        high_ns: Length of the longest possible window.
        across: Whether the window is on several machines.
        comparable: Whether the clocks of all its ranks can be compared.
        bounded: Whether the uncertainty of these clocks is known.
        contradicted: Whether the window compares clocks that data dependencies contradict.
        jump_ns: Amount by which a clock was set during the iteration.
    """

    low_ns: Ints
    high_ns: Ints
    across: Bools
    comparable: Bools
    bounded: Bools
    contradicted: Bools
    jump_ns: Ints

    def compute_interval(self, k: int, work_ns: int, n_ranks: int) -> tuple[float, float] | None:
        """Return the bounds of a bubble ratio, or None if the uncertainty is unknown or too large.

        It is too large if the shortest possible window is empty.

        Clocks of several machines may also run at different speeds (``DRIFT``), so they measure
        work in different units.

        Args:
            k: Index of the iteration.
            work_ns: Total work of the ranks.
            n_ranks: Number of ranks with this window.
        """
        if not self.bounded[k] or self.low_ns[k] <= 0:
            return None
        drift = DRIFT if self.across[k] else 0.0
        jumps_ns = int(self.jump_ns[k]) * n_ranks
        min_work_ns = work_ns * (1 - drift) - jumps_ns
        max_work_ns = work_ns * (1 + drift) + jumps_ns
        low_ns, high_ns = int(self.low_ns[k]) * n_ranks, int(self.high_ns[k]) * n_ranks
        lower = max(low_ns - max_work_ns, 0.0) / low_ns
        upper = (high_ns - max(min_work_ns, 0.0)) / high_ns
        return lower, upper


def bound_windows(ratio: RatioDefinition, extents: Extents, timebase: Timebase) -> WindowBounds:
    """Return the bounds of the windows of a ratio that needs a common clock.

    A window over several machines is uncertain by the clocks of its two ends. A clock that was set
    during the iteration makes the window uncertain by the amount of this step, too.

    Args:
        ratio: The ratio. All ranks of an iteration must have the same window.
        extents: First starts and last ends.
        timebase: Uncertainty of the clocks.
    """
    start_ns, end_ns, takes_part = _find_machine_windows(ratio, extents, timebase)
    n_iterations = len(takes_part)
    low_ns, high_ns = np.zeros(n_iterations, np.int64), np.zeros(n_iterations, np.int64)
    for k in range(n_iterations):
        machines = np.flatnonzero(takes_part[k])
        if len(machines):
            uncertainty_ns = np.maximum(timebase.uncertainty_ns[machines], 0)
            low_ns[k], high_ns[k] = _measure_lengths(
                start_ns[k, machines], end_ns[k, machines], uncertainty_ns
            )
    is_across = takes_part.sum(axis=1) > 1
    is_unbounded = takes_part & (timebase.uncertainty_ns < 0)
    jump_ns = timebase.jump_ns if len(timebase.jump_ns) else np.zeros(n_iterations, np.int64)
    return WindowBounds(
        low_ns=low_ns - jump_ns,
        high_ns=high_ns + jump_ns,
        across=is_across,
        comparable=~is_across | ~(takes_part & ~timebase.comparable).any(axis=1),
        bounded=~is_across | ~is_unbounded.any(axis=1),
        contradicted=is_across & timebase.contradicted,
        jump_ns=jump_ns,
    )


def _find_machine_windows(
    ratio: RatioDefinition, extents: Extents, timebase: Timebase
) -> tuple[Ints, Ints, Bools]:
    """Find the window of each machine alone, shape (iterations, machines).

    Args:
        ratio: The ratio.
        extents: First starts and last ends.
        timebase: Machine of each rank.

    Returns:
        start_ns: Start of each window.
        end_ns: End of each window.
        takes_part: Mask of the machines with ranks in the iteration.
    """
    shape = len(extents.present), len(timebase.comparable)
    start_ns, end_ns = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    takes_part = np.zeros(shape, bool)
    for machine in range(shape[1]):
        present = extents.present & (timebase.machine == machine)
        windows = ratio.windows(replace(extents, present=present))
        takes_part[:, machine] = present.any(axis=1)
        # All ranks have the same window, so the first rank is sufficient.
        start_ns[:, machine] = windows.start_ns[:, 0]
        end_ns[:, machine] = windows.end_ns[:, 0]
    return start_ns, end_ns, takes_part


def _measure_lengths(start_ns: Ints, end_ns: Ints, uncertainty_ns: Ints) -> tuple[int, int]:
    """Return the length of the shortest and of the longest window over several machines.

    Args:
        start_ns: Start of each machine's window.
        end_ns: End of each machine's window.
        uncertainty_ns: Uncertainty of each machine's clock.
    """
    tolerance_ns = uncertainty_ns[:, None] + uncertainty_ns[None, :]
    # Two times of the same machine can be compared exactly.
    np.fill_diagonal(tolerance_ns, 0)
    length_ns = end_ns[:, None] - start_ns[None, :]
    return int((length_ns - tolerance_ns).max()), int((length_ns + tolerance_ns).max())
