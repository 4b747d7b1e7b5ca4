"""Window bounds: the shortest and longest possible windows, given the clock uncertainty.

Ranks on one machine share a clock, so a window between two of them is exact. If a window starts on
one machine and ends on another, both times are uncertain by the error of the clocks::

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
    """Shortest and longest possible windows for one ratio, one row per iteration.

    Attributes:
        low_ns: Length of the shortest possible window. May be negative.
        high_ns: Length of the longest possible window.
        across: Whether ranks on several machines take part in the iteration.
        comparable: Whether the clocks of all machines that take part can be compared.
        bounded: Whether the clock uncertainty of all machines that take part is known.
        contradicted: Whether the window compares clocks that data dependencies contradict.
        jump_ns: Amount in ns by which a clock was set during the iteration, or 0.
    """

    low_ns: Ints
    high_ns: Ints
    across: Bools
    comparable: Bools
    bounded: Bools
    contradicted: Bools
    jump_ns: Ints

    def compute_interval(self, k: int, work_ns: int, n_ranks: int) -> tuple[float, float] | None:
        """Return the bounds on a bubble ratio, or None if the uncertainty is unknown or too large.

        The lower bound combines the shortest possible window with the most work, and the upper
        bound combines the longest possible window with the least work. The uncertainty is too large
        if the shortest possible window is empty.

        Work is also uncertain for two reasons. The clocks of several machines may run at different
        speeds, which changes the work by a factor of ``1 +- DRIFT``. If a clock was set, the work
        of every rank is uncertain by ``jump_ns``.

        Args:
            k: Index of the iteration.
            work_ns: Total work of the ranks in ns.
            n_ranks: Number of ranks with this window.

        Returns:
            Lower and upper bounds on the ratio. The lower bound is at least 0, and the upper bound
            is at most 1.
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
    """Return the shortest and longest possible windows for a ratio that needs a common clock.

    If the start and the end of a window are on different machines, the window is uncertain by the
    sum of both clock uncertainties. If a clock was set during the iteration, the window is also
    uncertain by the amount of this step.

    Args:
        ratio: Definition of the ratio. All ranks in an iteration must have the same window.
        extents: First start and last end of each rank's work in each iteration.
        timebase: Each machine's clock and its uncertainty.
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
    """Compute each machine's windows as if only its ranks took part.

    Args:
        ratio: Definition of the ratio.
        extents: First start and last end of each rank's work in each iteration.
        timebase: Timebase, which contains the machine of each rank.

    Returns:
        start_ns: Start of each window, shape (iterations, machines).
        end_ns: End of each window, shape (iterations, machines).
        takes_part: Mask of the machines with ranks in the iteration, shape (iterations, machines).
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
    """Return the minimum and maximum window lengths over several machines.

    The shortest length is the maximum of ``end[i] - start[j] - tolerance`` over all pairs of
    machines. The longest length is the maximum of ``end[i] - start[j] + tolerance``. The tolerance
    is the sum of both uncertainties, or 0 if ``i`` and ``j`` are the same machine.

    Args:
        start_ns: Start of each machine's window.
        end_ns: End of each machine's window.
        uncertainty_ns: Uncertainty of each machine's clock.
    """
    tolerance_ns = uncertainty_ns[:, None] + uncertainty_ns[None, :]
    # Two times from the same machine can be compared exactly.
    np.fill_diagonal(tolerance_ns, 0)
    length_ns = end_ns[:, None] - start_ns[None, :]
    return int((length_ns - tolerance_ns).max()), int((length_ns + tolerance_ns).max())
