"""Matches recorded operations with the kernels in a profile, and finds the clock offset.

Both tables list the same kernels in the same order, each on its own clock. Either table may lack
some kernels. All differences ``kernel start - operation start`` are considered. The differences are
densest at the offset between the clocks::

    operations  |  |     |  |  |        differences   ..:  .   :|:.  . :
    kernels        |  |     |  |  |                             └─ densest

Operations are searched in blocks, because clock drift is negligible within a block. Offset and
drift are fitted to the best block first, and then to all operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bubbleviz.analyses.nccl.kernels import Starts
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.sources.nccl.events import UNKNOWN

#: Maximum distance between the start of a kernel and of a channel's work, on the GPU's clock.
GPU_TOLERANCE_NS = 20_000
#: Maximum distance if a host thread, which may have been asleep, recorded the start.
HOST_TOLERANCE_NS = 1_000_000
#: Maximum difference in length between a kernel and its operation.
#: The maximum is a fraction of the kernel's length plus a constant in ns.
#: The two lengths differ because they are measured at different points.
_LENGTH_TOLERANCE, _LENGTH_TOLERANCE_NS = 0.25, 50_000
#: Number of operations in a block.
#: A smaller block could match kernels by chance, and drift would separate a larger block.
_BLOCK_OPERATIONS = 64
#: Maximum number of blocks to try. The profile may lack the kernels of some blocks.
_MAX_BLOCKS = 8
#: Approximate number of differences sorted at a time, to limit memory use.
_DIFFERENCES_AT_ONCE = 1 << 20
#: Minimum number of operations that a clear offset matches, relative to the next best offset. An
#: unclear offset may be due to chance, or to a run that repeats itself.
_CLEAR_RATIO = 1.5
#: Minimum number of pairs, and minimum time span of the pairs, for fitting a drift.
_MIN_DRIFT_PAIRS, _MIN_DRIFT_SPAN_NS = 16, 1_000_000_000
#: Maximum median distance with a fitted drift, as a fraction of the median distance without drift.
_MAX_DRIFT_RESIDUAL = 0.5


@dataclass(frozen=True)
class ClockLine:
    """A linear map from one clock to another: t + offset_ns + round((t - middle_ns) drift).

    Attributes:
        offset_ns: Offset of the other clock at ``middle_ns``.
        middle_ns: Time at which the drift contributes nothing.
        drift: Additional offset per unit of time.
    """

    offset_ns: int
    middle_ns: int
    drift: float

    def convert(self, time_ns: Ints) -> Ints:
        """Convert times to the other clock. ``UNKNOWN`` times stay unknown."""
        is_known = time_ns != UNKNOWN
        since_ns = np.where(is_known, time_ns - self.middle_ns, 0)
        drift_ns = np.rint(since_ns * self.drift).astype(int)
        converted = since_ns + (self.middle_ns + self.offset_ns) + drift_ns
        return np.where(is_known, converted, UNKNOWN)


class Match(NamedTuple):
    """The result of matching operations with kernels.

    Attributes:
        line: Map from the clock of the operations to the clock of the kernels.
        kernel: Row of the kernel that each operation matches, or -1 if there is none.
        distance_ns: Absolute distance between the starts of each matched pair, on the kernels'
            clock.
        is_clear: Whether no other offset matches nearly as many operations, or the match is
            complete on both sides.
    """

    line: ClockLine
    kernel: Ints
    distance_ns: Ints
    is_clear: bool


class Offset(NamedTuple):
    """The offset on which most operations in a block agree.

    Attributes:
        n_agreeing: Number of operations that agree on the offset.
        offset_ns: Median difference over the agreeing operations.
        n_rival: Number of operations that agree on the next best offset, or 0 if there is none.
    """

    n_agreeing: int
    offset_ns: int
    n_rival: int


class _Cluster(NamedTuple):
    """A set of differences within one tolerance. The smallest tuple is the best cluster.

    Attributes:
        negative_size: Negated number of differences.
        spread_ns: Largest minus smallest difference.
        start_ns: Smallest difference.
    """

    negative_size: int
    spread_ns: int
    start_ns: int


@dataclass(frozen=True)
class StartPairs:
    """Recorded operations, and the kernels that they may match.

    Attributes:
        operations: Starts of the operations.
        kernels: Starts of the kernels.
        tolerance_ns: Maximum distance between the starts of an operation and its kernel on a common
            clock.
    """

    operations: Starts
    kernels: Starts
    tolerance_ns: int

    def mask_compatible(self, row: Ints | int, kernel: Ints | slice) -> Bools:
        """Return a mask of the pairs that have the same family and about the same length.

        An unknown family or length is compatible with every kernel. Two lengths may differ by
        ``_LENGTH_TOLERANCE`` times the kernel's length plus ``_LENGTH_TOLERANCE_NS``.

        Args:
            row: Operation row of each pair, or one row for all pairs.
            kernel: Kernel row of each pair.
        """
        family, kernel_family = self.operations.family[row], self.kernels.family[kernel]
        length_ns, kernel_ns = self.operations.length_ns[row], self.kernels.length_ns[kernel]
        tolerance_ns = _LENGTH_TOLERANCE * kernel_ns + _LENGTH_TOLERANCE_NS
        same_length = (length_ns < 0) | (np.abs(kernel_ns - length_ns) <= tolerance_ns)
        same_family = (family == kernel_family) | (family < 0) | (kernel_family < 0)
        return np.asarray(same_length & same_family, bool)

    def find_nearest(self, line: ClockLine, rows: Ints) -> tuple[Ints, Ints]:
        """Find the nearest compatible kernel for each operation, within the tolerance.

        Only the three kernels before and the three after the converted start are considered, which
        allows for kernels of other families in between.

        Args:
            line: Map from the clock of the operations to the clock of the kernels.
            rows: Rows of the operations.

        Returns:
            kernel: Row of the nearest kernel, or -1 if there is none.
            distance_ns: Start of this kernel minus the converted start of the operation, or 0 if
                there is no kernel.
        """
        start_ns, kernel_ns = line.convert(self.operations.start_ns[rows]), self.kernels.start_ns
        nearest = np.full(len(rows), NONE, np.int64)
        min_distance_ns = np.full(len(rows), self.tolerance_ns + 1, np.int64)
        insertion = np.searchsorted(kernel_ns, start_ns)
        for step in (0, -1, 1, -2, 2, -3):
            candidate = insertion + step
            exists = (candidate >= 0) & (candidate < len(kernel_ns))
            candidate = np.clip(candidate, 0, len(kernel_ns) - 1)
            distance_ns = np.abs(kernel_ns[candidate] - start_ns)
            is_nearer = exists & (distance_ns < min_distance_ns)
            is_nearer &= self.mask_compatible(rows, candidate)
            nearest = np.where(is_nearer, candidate, nearest)
            min_distance_ns = np.where(is_nearer, distance_ns, min_distance_ns)
        return nearest, np.where(nearest == NONE, 0, kernel_ns[nearest] - start_ns)

    def list_differences(self, rows: Ints, low_ns: int, high_ns: int) -> list[Ints]:
        """Return, for each operation, the starts of compatible kernels minus the operation's start.

        Args:
            rows: Rows of the operations.
            low_ns: Smallest difference to include.
            high_ns: Largest difference to include.
        """
        start_ns, kernel_ns = self.operations.start_ns[rows], self.kernels.start_ns
        first = np.searchsorted(kernel_ns, start_ns + low_ns).tolist()
        stop = np.searchsorted(kernel_ns, start_ns + high_ns, side="right").tolist()
        return [
            kernel_ns[low:high][self.mask_compatible(row, slice(low, high))] - start_ns[index]
            for index, (row, low, high) in enumerate(zip(rows.tolist(), first, stop, strict=True))
        ]


def match_starts(operations: Starts, kernels: Starts, tolerance_ns: int) -> Match | None:
    """Find the clock offset and drift that match the largest number of operations with kernels.

    The search has two steps:

    1. Find an offset that matches many operations in a block of consecutive operations. Blocks are
       tried until a clear offset matches at least half of a block. If there is no such block, the
       block with the most matches is used.
    2. Starting from this block, fit offset and drift to all operations.

    Args:
        operations: Start times of the recorded operations.
        kernels: Start times of the kernels in a profile.
        tolerance_ns: Maximum distance between the starts of an operation and its kernel.

    Returns:
        The match, or None if no offset matches any operation with a kernel.
    """
    n_operations = len(operations.start_ns)
    if n_operations == 0 or len(kernels.start_ns) == 0:
        return None
    pairs = StartPairs(operations, kernels, tolerance_ns)
    best_rows, best = None, Offset(0, 0, 0)
    for first in _choose_blocks(n_operations):
        rows = np.arange(first, min(first + _BLOCK_OPERATIONS, n_operations))
        offset = find_densest_offset(pairs, rows)
        if offset is not None and (best_rows is None or offset.n_agreeing > best.n_agreeing):
            best_rows, best = rows, offset
            if 2 * best.n_agreeing >= len(rows) and _is_clear(best):
                break
    if best_rows is None:
        return None
    line = _fit_line(pairs, best_rows, best.offset_ns)
    kernel, distance_ns = pairs.find_nearest(line, np.arange(n_operations))
    distance_ns = np.abs(distance_ns[kernel != NONE])
    # With a few dozen operations, some may match by chance, but not the majority.
    is_clear = _is_clear(best) and 2 * len(distance_ns) >= n_operations
    return Match(line, kernel, distance_ns, is_clear or _is_complete(pairs, kernel))


def _choose_blocks(n_operations: int) -> list[int]:
    """Return the first operation of each block to try, with blocks spread over all operations."""
    if n_operations <= _BLOCK_OPERATIONS:
        return [0]
    first = np.linspace(0, n_operations - _BLOCK_OPERATIONS, _MAX_BLOCKS).astype(int)
    return sorted(set(first.tolist()))


def _is_clear(offset: Offset) -> bool:
    """Return whether an offset matches significantly more operations than the next best offset."""
    return offset.n_agreeing >= _CLEAR_RATIO * offset.n_rival


def _is_complete(pairs: StartPairs, kernel: Ints) -> bool:
    """Return whether every operation has a kernel, and every kernel that could match is used."""
    families, kernel_families = pairs.operations.family, pairs.kernels.family
    can_match = kernel_families < 0
    can_match |= np.isin(kernel_families, families) | bool((families < 0).any())
    return bool((kernel != NONE).all()) and len(find_distinct(kernel)) == int(can_match.sum())


def find_densest_offset(pairs: StartPairs, rows: Ints) -> Offset | None:
    """Find the clock offset that matches the most operations in a block with kernels.

    An offset matches an operation if, after adding the offset, the operation starts at the same
    time as a compatible kernel, within the tolerance. The result also contains the number of
    operations that the next best offset matches, as a measure of how clear the result is. Offsets
    within two tolerances of the best one are not considered for the next best.

    Args:
        pairs: Operations and kernels.
        rows: Operations of the block, in order.

    Returns:
        The offset, or None if no kernel is compatible with any operation.
    """
    tolerance_ns = pairs.tolerance_ns
    bounds_ns = _divide_offsets(pairs, rows)

    def find_best(part: int, excluded_ns: int | None = None) -> _Cluster | None:
        low_ns, high_ns = bounds_ns[part], bounds_ns[part + 1] + tolerance_ns
        differences_ns = np.sort(np.concatenate(pairs.list_differences(rows, low_ns, high_ns)))
        return _find_largest_cluster(differences_ns, tolerance_ns, excluded_ns)

    def count_agreeing(start_ns: int) -> tuple[int, int]:
        """Return the number of agreeing operations, and the median of their differences.

        Each operation is counted once, even if several kernels are near it.
        """
        by_operation = pairs.list_differences(rows, start_ns, start_ns + tolerance_ns)
        n_agreeing = sum(len(differences_ns) > 0 for differences_ns in by_operation)
        return n_agreeing, round(float(np.median(np.concatenate(by_operation))))

    cluster_of_part = {
        part: cluster
        for part in range(len(bounds_ns) - 1)
        if (cluster := find_best(part)) is not None
    }
    if not cluster_of_part:
        return None
    best_start_ns = min(cluster_of_part.values()).start_ns
    rivals = [
        cluster
        if abs(cluster.start_ns - best_start_ns) > 2 * tolerance_ns
        else find_best(part, best_start_ns)
        for part, cluster in cluster_of_part.items()
    ]
    rival = min((cluster for cluster in rivals if cluster is not None), default=None)
    n_rival = 0 if rival is None else count_agreeing(rival.start_ns)[0]
    return Offset(*count_agreeing(best_start_ns), n_rival)


def _divide_offsets(pairs: StartPairs, rows: Ints) -> list[int]:
    """Return ascending bounds that divide the possible offsets into parts, to limit memory use.

    Each part contains about ``_DIFFERENCES_AT_ONCE`` differences.
    """
    start_ns, kernel_ns = pairs.operations.start_ns[rows], pairs.kernels.start_ns
    step = max(_DIFFERENCES_AT_ONCE // len(rows), 1)
    cuts_ns = (kernel_ns[step::step] - int(start_ns[len(rows) // 2])).tolist()
    low_ns, high_ns = int(kernel_ns[0] - start_ns[-1]), int(kernel_ns[-1] - start_ns[0])
    return [low_ns, *(cut_ns for cut_ns in cuts_ns if low_ns < cut_ns < high_ns), high_ns]


def _find_largest_cluster(
    differences_ns: Ints, tolerance_ns: int, excluded_ns: int | None
) -> _Cluster | None:
    """Find the largest group of differences that lie within one tolerance of each other.

    On ties, the group (cluster) with the smallest spread wins.

    Args:
        differences_ns: Differences in ascending order.
        tolerance_ns: Maximum spread of a cluster.
        excluded_ns: Clusters that start within two tolerances of this difference are ignored. None
            ignores no cluster.

    Returns:
        The cluster, or None if there are no differences.
    """
    stop = np.searchsorted(differences_ns, differences_ns + tolerance_ns, side="right")
    sizes = stop - np.arange(len(differences_ns))
    if excluded_ns is not None:
        sizes[np.abs(differences_ns - excluded_ns) <= 2 * tolerance_ns] = 0
    max_size = int(sizes.max(initial=0))
    if max_size == 0:
        return None
    first = np.flatnonzero(sizes == max_size)
    spread_ns = differences_ns[first + max_size - 1] - differences_ns[first]
    closest = int(spread_ns.argmin())
    return _Cluster(-max_size, int(spread_ns[closest]), int(differences_ns[first[closest]]))


def _fit_line(pairs: StartPairs, rows: Ints, offset_ns: int) -> ClockLine:
    """Fit a clock line (offset and drift) to all operations, starting with the offset from a block.

    The line is first fitted to the operations in the block. The range of operations is then
    repeatedly tripled in length until it covers all operations. The line is fitted again each time.

    Args:
        pairs: Operations and kernels.
        rows: Operations of the block, in order.
        offset_ns: Offset of the block.
    """
    start_ns = pairs.operations.start_ns
    line = ClockLine(offset_ns, int(start_ns[rows[len(rows) // 2]]), 0.0)
    low, high = int(rows[0]), int(rows[-1]) + 1
    while True:
        in_range = np.arange(low, high)
        kernel, distance_ns = pairs.find_nearest(line, in_range)
        is_matched = kernel != NONE
        if is_matched.any():
            since_ns = start_ns[in_range[is_matched]] - line.middle_ns
            shift_ns, drift = _fit_correction(since_ns, distance_ns[is_matched], line.drift)
            line = replace(line, offset_ns=line.offset_ns + shift_ns, drift=drift)
        if low == 0 and high == len(start_ns):
            return line
        length = high - low
        low, high = max(low - length, 0), min(high + length, len(start_ns))


def _fit_correction(since_ns: Ints, distance_ns: Ints, drift: float) -> tuple[int, float]:
    """Fit an offset correction and a drift to the distances between matched pairs.

    The drift is only changed if all conditions are met:

    - There are at least ``_MIN_DRIFT_PAIRS`` pairs.
    - The pairs span at least ``_MIN_DRIFT_SPAN_NS``.
    - The linear fit reduces the median distance to at most ``_MAX_DRIFT_RESIDUAL`` of the median
      distance without drift.

    Args:
        since_ns: Time of each pair, relative to the middle of the line.
        distance_ns: Kernel start minus converted operation start, for each pair.
        drift: Current drift of the line.

    Returns:
        shift_ns: Offset correction, which is the median distance if the drift is not changed.
        drift: New drift of the line.
    """
    median_ns = float(np.median(distance_ns))
    span_ns = int(since_ns.max() - since_ns.min())
    if len(since_ns) < _MIN_DRIFT_PAIRS or span_ns < _MIN_DRIFT_SPAN_NS:
        return round(median_ns), drift
    slope, intercept = np.polyfit(since_ns.astype(float), distance_ns.astype(float), 1)
    residual_ns = np.median(np.abs(distance_ns - (intercept + slope * since_ns)))
    if residual_ns > _MAX_DRIFT_RESIDUAL * np.median(np.abs(distance_ns - median_ns)):
        return round(median_ns), drift
    return round(float(intercept)), drift + float(slope)
