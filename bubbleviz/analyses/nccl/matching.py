"""Matching: which kernel of a profile is which recorded operation, and what lies between clocks.

Both hold the same kernels in the same order, each on its own clock, and either may lack some.
A block of operations gives an offset; from there a line, offset and drift, is followed to all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.analyses.nccl.kernel_pool import StartPairs, Starts
from bubbleviz.analyses.nccl.offset_search import BlockOffset, best_offset
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import UNKNOWN

#: A GPU's clock has the start of a channel's work: within this of the start of its kernel.
GPU_TOLERANCE_NS = 20_000
#: A host records it later, by what its thread slept.
HOST_TOLERANCE_NS = 1_000_000
#: Among all operations an offset is clear if it matches so many times what others do. A run that
#: repeats itself matches nearly as well one period away.
_CLEAR_RATIO_OF_ALL = 1.25
#: Offsets so many tolerances away, on either side and at no even distance, match by chance alone.
_CHANCE_TOLERANCES = (-7, -3, 3, 7)
#: Fewer pairs, or a shorter time, give a drift of their jitter.
_DRIFT_PAIRS, _DRIFT_SPAN_NS = 16, 1_000_000_000
#: A drift must leave at most this share of the distances that remain without one.
_DRIFT_RESIDUAL = 0.5


@frozen
class Match:
    """A clock put onto another: t becomes t + offset_ns + round((t - middle_ns) drift).

    Attributes:
        offset_ns: what is added.
        middle_ns: where that is exact.
        drift: what is added by time.
        kernel: the kernel of each operation; -1 none.
        matched: operations that have one.
        median_ns: median distance between operations and their kernels, after that.
        largest_ns: the largest one.
        clear: whether no other offset does nearly as well, or none is left over on either side.
    """

    offset_ns: int
    middle_ns: int
    drift: float
    kernel: Ints
    matched: int
    median_ns: int
    largest_ns: int
    clear: bool

    def of(self, time_ns: Ints) -> Ints:
        """Return times on the other clock; unknown ones stay so."""
        known = time_ns != UNKNOWN
        since = np.where(known, time_ns - self.middle_ns, 0)
        moved = since + (self.middle_ns + self.offset_ns) + np.rint(since * self.drift).astype(int)
        return np.where(known, moved, UNKNOWN)


def match(operations: Starts, kernels: Starts, tolerance_ns: int) -> Match | None:
    """Return the offset that puts most operations onto kernels; None where none puts any.

    Args:
        operations: as recorded.
        kernels: as profiled.
        tolerance_ns: the largest distance of an operation and its kernel.
    """
    if len(operations.start_ns) == 0 or len(kernels.start_ns) == 0:
        return None
    pairs = StartPairs(operations, kernels, tolerance_ns)
    best = best_offset(pairs)
    if best is None:
        return None
    line = _line_through(pairs, best)
    kernel, distance_ns = line.nearest(pairs, np.arange(len(operations.start_ns)))
    far_ns = np.abs(distance_ns[kernel != NONE])
    return Match(
        offset_ns=line.offset_ns,
        middle_ns=line.middle_ns,
        drift=line.drift,
        kernel=kernel,
        matched=len(far_ns),
        median_ns=round(float(np.median(far_ns))) if len(far_ns) else 0,
        largest_ns=int(far_ns.max(initial=0)),
        clear=_is_clear(pairs, best, line, kernel),
    )


def _is_clear(pairs: StartPairs, best: BlockOffset, line: ClockLine, kernel: Ints) -> bool:
    """Whether no other offset matches nearly as well, or nothing is left on either side."""
    matched = int((kernel != NONE).sum())
    # Of a few dozen operations chance may put some onto kernels, but not most of all.
    if best.clear and 2 * matched >= len(kernel):
        return True
    chance_ns = (line.offset_ns + far * pairs.tolerance_ns for far in _CHANCE_TOLERANCES)
    rival = max(_matched(pairs, line, at_ns) for at_ns in (best.rival_ns, *chance_ns))
    families, kernel_families = pairs.operations.family, pairs.kernels.family
    able = kernel_families < 0
    able |= np.isin(kernel_families, families) | bool((families < 0).any())
    if matched == len(kernel) and len(distinct(kernel)) == int(able.sum()):
        return True
    return matched >= _CLEAR_RATIO_OF_ALL * rival


def _matched(pairs: StartPairs, line: ClockLine, offset_ns: int) -> int:
    """Return the number of operations that another offset puts onto kernels."""
    rows = np.arange(len(pairs.operations.start_ns))
    kernel, _ = replace(line, offset_ns=offset_ns).nearest(pairs, rows)
    return int((kernel != NONE).sum())


def beside(operations: Starts, kernels: Starts, tolerance_ns: int) -> tuple[Ints, Ints]:
    """Return the kernel beside each operation of the same clock, and how much later it begins.

    Args:
        operations: as recorded.
        kernels: as profiled.
        tolerance_ns: how far apart the two may begin; -1 stands for a kernel farther off.
    """
    rows = np.arange(len(operations.start_ns))
    if len(kernels.start_ns) == 0:
        return np.full(len(rows), NONE, np.int64), np.zeros(len(rows), np.int64)
    return ClockLine(0, 0, 0.0).nearest(StartPairs(operations, kernels, tolerance_ns), rows)


@frozen
class ClockLine:
    """A clock against another: as of :class:`Match`."""

    offset_ns: int
    middle_ns: int
    drift: float

    def nearest(self, pairs: StartPairs, rows: Ints) -> tuple[Ints, Ints]:
        """Return the kernel nearest to each operation, -1 none, and how much later it begins."""
        start_ns, kernel_ns = pairs.operations.start_ns[rows], pairs.kernels.start_ns
        since_ns = start_ns - self.middle_ns
        wanted = start_ns + self.offset_ns + np.rint(since_ns * self.drift).astype(np.int64)
        best = np.full(len(rows), NONE, np.int64)
        least = np.full(len(rows), pairs.tolerance_ns + 1, np.int64)
        after = np.searchsorted(kernel_ns, wanted)
        # Kernels of other families may lie between.
        for step in (0, -1, 1, -2, 2, -3):
            at = after + step
            inside = (at >= 0) & (at < len(kernel_ns))
            place = np.clip(at, 0, len(kernel_ns) - 1)
            far = np.abs(kernel_ns[place] - wanted)
            nearer = inside & (far < least) & pairs.alike(rows, place)
            best, least = np.where(nearer, place, best), np.where(nearer, far, least)
        return best, np.where(best == NONE, 0, kernel_ns[best] - wanted)


def _line_through(pairs: StartPairs, offset: BlockOffset) -> ClockLine:
    """Return the line through a block's offset, followed from there to all operations."""
    rows, start_ns = offset.rows, pairs.operations.start_ns
    line = ClockLine(offset.offset_ns, int(start_ns[rows[len(rows) // 2]]), 0.0)
    low, high = int(rows[0]), int(rows[-1]) + 1
    while True:
        nearby = np.arange(low, high)
        kernel, distance_ns = line.nearest(pairs, nearby)
        hit = kernel != NONE
        if hit.any():
            since_ns = start_ns[nearby[hit]] - line.middle_ns
            moved_ns, drift = _correction(since_ns, distance_ns[hit], line.drift)
            line = replace(line, offset_ns=line.offset_ns + moved_ns, drift=drift)
        if low == 0 and high == len(start_ns):
            return line
        more = high - low
        low, high = max(low - more, 0), min(high + more, len(start_ns))


def _correction(since_ns: Ints, distance_ns: Ints, drift: float) -> tuple[int, float]:
    """Return the correction of an offset, and the drift, that make distances vanish."""
    flat = float(np.median(distance_ns))
    span = int(since_ns.max() - since_ns.min())
    if len(since_ns) < _DRIFT_PAIRS or span < _DRIFT_SPAN_NS:
        return round(flat), drift
    slope, begin = np.polyfit(since_ns.astype(float), distance_ns.astype(float), 1)
    left = np.median(np.abs(distance_ns - (begin + slope * since_ns)))
    if left > _DRIFT_RESIDUAL * np.median(np.abs(distance_ns - flat)):
        return round(flat), drift
    return round(float(begin)), drift + float(slope)
