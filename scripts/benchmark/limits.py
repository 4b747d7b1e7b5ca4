"""How slow and how large bubbleviz may be; a table marks what is beyond with ``!``."""

from __future__ import annotations

#: Wall time over that of the yardstick, by kind of profile and number of processes.
_RATIOS = {"light": {1: 3.5, 2: 2.5}, "deep": {1: 3.0, 2: 2.0}}
#: Below so many kernels a Python program is measured against one that imports as much.
SMALL_KERNELS = 1_000_000
#: Peak memory in bytes, by kernels.
_PEAKS = {2_000_000: 300_000_000, 10_000_000: 750_000_000}


def ratio_limit(kind: str, kernels: int, jobs: int | None, *, imports: bool) -> float | None:
    """Return the limit of a ratio, or None where there is none.

    Args:
        kind: of the profile.
        kernels: that were asked for.
        jobs: processes; None where bubbleviz has no such option, and runs in one.
        imports: whether the yardstick imports what bubbleviz imports.
    """
    if imports != (kernels < SMALL_KERNELS):
        return None
    return _RATIOS[kind].get(jobs or 1)


def peak_limit(kernels: int) -> int | None:
    """Return the limit of the peak in bytes, or None where there is none."""
    return _PEAKS.get(kernels)
