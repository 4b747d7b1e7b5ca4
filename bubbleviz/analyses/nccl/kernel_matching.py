"""Matching: which kernel of a profile is which recorded operation, and the offset between clocks.

Both hold the same kernels in the same order, each on its own clock, and either may lack some. The
offset is the value at which the most differences kernel start - operation start agree::

    operations  |  |     |  |  |        differences   ..:  .   :|:.  . :
    kernels        |  |     |  |  |                             └─ densest

Operations are searched in blocks, because the drift of a clock is negligible within a block. The
block that agrees best gives a line (offset and drift), which is then followed to all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.analyses.nccl.kernels import Starts
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.sources.nccl.events import UNKNOWN

#: A GPU's clock has the start of a channel's work: within this of the start of its kernel.
GPU_TOLERANCE_NS = 20_000
#: A host records it later, by what its thread slept.
HOST_TOLERANCE_NS = 1_000_000
#: Kernels last as long as their work but for this share of their length and this time: the two are
#: recorded at different points.
_LENGTH_SHARE, _LENGTH_SLACK_NS = 0.25, 50_000
#: Operations of a block: so many that chance does not put most onto kernels, few enough that a
#: drift does not pull them apart. A block may lie where the profile recorded nothing, so several
#: are tried.
_BLOCK_OPERATIONS, _MOST_BLOCKS = 64, 8
#: Differences that are sorted at a time, about: bounds the memory.
_DIFFERENCES_AT_ONCE = 1 << 20
#: An offset is clear if it matches so many times what the next best one does, in a block of which
#: it matches half. Less is chance, or a run that repeats itself.
_CLEAR_RATIO = 1.5
#: Fewer pairs, or a shorter time, give a drift of their jitter.
_DRIFT_PAIRS, _DRIFT_SPAN_NS = 16, 1_000_000_000
#: A drift must leave at most this share of the distances that remain without one.
_DRIFT_RESIDUAL = 0.5


@dataclass(frozen=True)
class ClockLine:
    """A clock put onto another: t becomes t + offset_ns + round((t - middle_ns) drift).

    Attributes:
        offset_ns: what is added.
        middle_ns: where that is exact.
        drift: what is added by time.
    """

    offset_ns: int
    middle_ns: int
    drift: float

    def of(self, time_ns: Ints) -> Ints:
        """Return times on the other clock; unknown ones stay so."""
        known = time_ns != UNKNOWN
        since = np.where(known, time_ns - self.middle_ns, 0)
        moved = since + (self.middle_ns + self.offset_ns) + np.rint(since * self.drift).astype(int)
        return np.where(known, moved, UNKNOWN)


#: A line, the kernel of each operation (-1 none), how far apart they are, and whether no other
#: offset does nearly as well, or none is left over on either side.
Match = tuple[ClockLine, Ints, Ints, bool]


@dataclass(frozen=True)
class StartPairs:
    """Recorded operations and the kernels that they may be.

    Attributes:
        operations: as recorded.
        kernels: as profiled.
        tolerance_ns: the largest distance of an operation and its kernel on one clock.
    """

    operations: Starts
    kernels: Starts
    tolerance_ns: int

    def alike(self, row: Ints | int, kernel: Ints | slice) -> Bools:
        """Whether operations can be kernels: of one family, and about as long."""
        family, kernel_family = self.operations.family[row], self.kernels.family[kernel]
        length_ns, kernel_ns = self.operations.length_ns[row], self.kernels.length_ns[kernel]
        slack_ns = _LENGTH_SHARE * kernel_ns + _LENGTH_SLACK_NS
        fits = (length_ns < 0) | (np.abs(kernel_ns - length_ns) <= slack_ns)
        same = (family == kernel_family) | (family < 0) | (kernel_family < 0)
        return np.asarray(fits & same, bool)

    def nearest(self, line: ClockLine, rows: Ints) -> tuple[Ints, Ints]:
        """Return the kernel nearest to each operation, -1 none, and how much later it begins."""
        wanted, kernel_ns = line.of(self.operations.start_ns[rows]), self.kernels.start_ns
        best = np.full(len(rows), NONE, np.int64)
        least = np.full(len(rows), self.tolerance_ns + 1, np.int64)
        after = np.searchsorted(kernel_ns, wanted)
        # Kernels of other families may lie between.
        for step in (0, -1, 1, -2, 2, -3):
            at = after + step
            inside = (at >= 0) & (at < len(kernel_ns))
            place = np.clip(at, 0, len(kernel_ns) - 1)
            far = np.abs(kernel_ns[place] - wanted)
            nearer = inside & (far < least) & self.alike(rows, place)
            best, least = np.where(nearer, place, best), np.where(nearer, far, least)
        return best, np.where(best == NONE, 0, kernel_ns[best] - wanted)

    def differences(self, rows: Ints, low_ns: int, high_ns: int) -> list[Ints]:
        """Return the differences, between two bounds, of each operation and its possible kernels.

        Args:
            rows: operations.
            low_ns: the least difference that counts.
            high_ns: the largest one.
        """
        start_ns, kernel_ns = self.operations.start_ns[rows], self.kernels.start_ns
        first = np.searchsorted(kernel_ns, start_ns + low_ns).tolist()
        last = np.searchsorted(kernel_ns, start_ns + high_ns, side="right").tolist()
        return [
            kernel_ns[low:high][self.alike(row, slice(low, high))] - start_ns[at]
            for at, (row, low, high) in enumerate(zip(rows.tolist(), first, last, strict=True))
        ]


def match(operations: Starts, kernels: Starts, tolerance_ns: int) -> Match | None:
    """Return the line that puts most operations onto kernels; None where none puts any.

    Args:
        operations: as recorded.
        kernels: as profiled.
        tolerance_ns: the largest distance of an operation and its kernel.
    """
    count = len(operations.start_ns)
    if count == 0 or len(kernels.start_ns) == 0:
        return None
    pairs = StartPairs(operations, kernels, tolerance_ns)
    begins = [0]
    if count > _BLOCK_OPERATIONS:
        # Few, and spread over all.
        begins = np.linspace(0, count - _BLOCK_OPERATIONS, _MOST_BLOCKS).astype(int).tolist()
    best: tuple[Ints, int, int, int] | None = None
    for begin in sorted(set(begins)):
        rows = np.arange(begin, min(begin + _BLOCK_OPERATIONS, count))
        found = densest_offset(pairs, rows)
        if found is not None and (best is None or found[0] > best[1]):
            best = rows, *found
            if 2 * found[0] >= len(rows) and found[0] >= _CLEAR_RATIO * found[2]:
                break
    if best is None:
        return None
    rows, agreed, offset_ns, rival = best
    line = _line_through(pairs, rows, offset_ns)
    kernel, distance_ns = pairs.nearest(line, np.arange(count))
    far_ns = np.abs(distance_ns[kernel != NONE])
    # Of a few dozen operations chance may put some onto kernels, but not most of all.
    clear = agreed >= _CLEAR_RATIO * rival and 2 * len(far_ns) >= count
    return line, kernel, far_ns, clear or _is_complete(pairs, kernel)


def _is_complete(pairs: StartPairs, kernel: Ints) -> bool:
    """Whether nothing is left over on either side."""
    families, kernel_families = pairs.operations.family, pairs.kernels.family
    able = kernel_families < 0
    able |= np.isin(kernel_families, families) | bool((families < 0).any())
    return bool((kernel != NONE).all()) and len(find_distinct(kernel)) == int(able.sum())


def densest_offset(pairs: StartPairs, rows: Ints) -> tuple[int, int, int] | None:
    """Return the offset on which most operations of a block agree, and the next best.

    A cluster of differences within one tolerance is (minus its number, its spread, its begin): the
    least has the most differences, of equal numbers it is the closest one.

    Returns:
        How many operations agree on it, the offset, and how many agree on the next best one (0 for
        none); None where no kernel can be an operation.
    """
    start_ns, kernel_ns = pairs.operations.start_ns[rows], pairs.kernels.start_ns
    tolerance_ns = pairs.tolerance_ns
    # Bounds of offsets between which about as many differences lie each.
    every = max(_DIFFERENCES_AT_ONCE // len(rows), 1)
    between = (kernel_ns[every::every] - int(start_ns[len(rows) // 2])).tolist()
    low, high = int(kernel_ns[0] - start_ns[-1]), int(kernel_ns[-1] - start_ns[0])
    bounds_ns = [low, *(at for at in between if low < at < high), high]

    def best(number: int, without_ns: int | None = None) -> tuple[int, int, int] | None:
        low_ns, high_ns = bounds_ns[number], bounds_ns[number + 1] + tolerance_ns
        differences_ns = np.sort(np.concatenate(pairs.differences(rows, low_ns, high_ns)))
        return _largest_cluster(differences_ns, tolerance_ns, without_ns)

    def agreed(begin_ns: int) -> tuple[int, int]:
        by_operation = pairs.differences(rows, begin_ns, begin_ns + tolerance_ns)
        # An operation beside many kernels counts once.
        agreeing = sum(len(differences_ns) > 0 for differences_ns in by_operation)
        return agreeing, round(float(np.median(np.concatenate(by_operation))))

    found = [(best(number), number) for number in range(len(bounds_ns) - 1)]
    clusters = [(cluster, number) for cluster, number in found if cluster is not None]
    if not clusters:
        return None
    begin_ns = min(cluster for cluster, _ in clusters)[2]
    rivals = (
        cluster if abs(cluster[2] - begin_ns) > 2 * tolerance_ns else best(number, begin_ns)
        for cluster, number in clusters
    )
    rival = min((cluster for cluster in rivals if cluster is not None), default=None)
    return (*agreed(begin_ns), 0 if rival is None else agreed(rival[2])[0])


def _largest_cluster(
    differences_ns: Ints, tolerance_ns: int, without_ns: int | None
) -> tuple[int, int, int] | None:
    """Return the cluster of most differences; None where there is none.

    Args:
        differences_ns: ascending.
        tolerance_ns: the longest that a cluster may be.
        without_ns: clusters that begin within two tolerances of this do not count.
    """
    beyond = np.searchsorted(differences_ns, differences_ns + tolerance_ns, side="right")
    count = beyond - np.arange(len(differences_ns))
    if without_ns is not None:
        count[np.abs(differences_ns - without_ns) <= 2 * tolerance_ns] = 0
    most = int(count.max(initial=0))
    if most == 0:
        return None
    begins = np.flatnonzero(count == most)
    spread_ns = differences_ns[begins + most - 1] - differences_ns[begins]
    at = int(spread_ns.argmin())
    return -most, int(spread_ns[at]), int(differences_ns[begins[at]])


def _line_through(pairs: StartPairs, rows: Ints, offset_ns: int) -> ClockLine:
    """Return the line through a block's offset, followed from there to all operations."""
    start_ns = pairs.operations.start_ns
    line = ClockLine(offset_ns, int(start_ns[rows[len(rows) // 2]]), 0.0)
    low, high = int(rows[0]), int(rows[-1]) + 1
    while True:
        nearby = np.arange(low, high)
        kernel, distance_ns = pairs.nearest(line, nearby)
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
