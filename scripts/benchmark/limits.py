"""How slow and how large bubbleviz may be; a table marks what is beyond with ``!``."""

from __future__ import annotations

#: Below so many kernels a Python program is measured against one that imports as much.
SMALL_KERNELS = 1_000_000
#: Wall time over that of a scan that imports as much, by kind of profile and number of threads.
_SMALL_RATIOS = {"light": {1: 3.5, 2: 2.5}, "deep": {1: 3.0, 2: 2.0}}
#: Wall time over that of the bare scan, with the compiled part: by kernels, then as above.
_RATIOS = {
    2_000_000: {"light": {1: 1.3, 2: 1.2}, "deep": {1: 1.0, 2: 0.9}},
    10_000_000: {"light": {1: 0.9, 2: 0.8}, "deep": {1: 0.9, 2: 0.8}},
}
#: The same without the compiled part.
_SQLITE_RATIOS = {2_000_000: {"light": {1: 3.3, 2: 2.7}, "deep": {1: 2.7, 2: 2.2}}}
#: Peak memory in bytes, by kernels.
_PEAKS = {2_000_000: 300_000_000, 10_000_000: 700_000_000}
#: Processor time of the shipped example, in seconds.
EXAMPLE_CPU_S = 0.5


def ratio_limit(
    kind: str, kernels: int, jobs: int, *, compiled: bool, imports: bool
) -> float | None:
    """Return the limit of a ratio, or None where there is none.

    Args:
        kind: of the profile.
        kernels: that were asked for.
        jobs: threads that read.
        compiled: whether the compiled part reads.
        imports: whether the yardstick imports what bubbleviz imports.
    """
    if imports:
        return _SMALL_RATIOS[kind].get(jobs) if kernels < SMALL_KERNELS else None
    ratios = _RATIOS if compiled else _SQLITE_RATIOS
    return ratios.get(kernels, {}).get(kind, {}).get(jobs)


def peak_limit(kernels: int) -> int | None:
    """Return the limit of the peak in bytes, or None where there is none."""
    return _PEAKS.get(kernels)
