"""Offset search: the offset between two clocks on which most operations and kernels agree.

The offset is where the most differences kernel start - operation start agree::

    operations  |  |     |  |  |        differences   ..:  .   :|:.  . :
    kernels        |  |     |  |  |                             └─ densest

Blocks of operations are searched on their own: within one the drift of a clock is negligible.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl.kernel_pool import StartPairs
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import EventFile

#: Operations of a block: so many that chance does not put most onto kernels, few enough that a
#: drift does not pull them apart. A block may lie where the profile recorded nothing, so several
#: are tried.
_BLOCK_OPERATIONS, _MOST_BLOCKS = 64, 8
#: Differences that are sorted at a time, about: bounds the memory.
_DIFFERENCES_AT_ONCE = 1 << 20
#: An offset is clear if it matches so many times what the next best one does, in a block of which
#: it matches half. Less is chance, or a run that repeats itself.
_CLEAR_RATIO = 1.5


@frozen
class BlockOffset:
    """The offset that most operations of a block agree on, and the next best.

    Attributes:
        rows: the block.
        matched: how many of its operations agree.
        offset_ns: what they agree on.
        rival: how many agree on the next best one.
        rival_ns: that one.
    """

    rows: Ints
    matched: int
    offset_ns: int
    rival: int
    rival_ns: int

    @property
    def clear(self) -> bool:
        """Whether the next best offset is far behind."""
        return self.matched >= _CLEAR_RATIO * self.rival


def best_offset(pairs: StartPairs) -> BlockOffset | None:
    """Return the offset of the block that agrees best; None where no operation can be a kernel."""
    count = len(pairs.operations.start_ns)
    best: BlockOffset | None = None
    for begin in _begins(count):
        rows = np.arange(begin, min(begin + _BLOCK_OPERATIONS, count))
        offset = densest_offset(pairs, rows)
        if offset is not None and (best is None or offset.matched > best.matched):
            best = offset
            if 2 * best.matched >= len(rows) and best.clear:
                break
    return best


def _begins(count: int) -> list[int]:
    """Return where blocks of operations begin: few, and spread over all."""
    if count <= _BLOCK_OPERATIONS:
        return [0]
    return sorted({int(at) for at in np.linspace(0, count - _BLOCK_OPERATIONS, _MOST_BLOCKS)})


@frozen
class _Cluster:
    """Differences within one tolerance: how many, over how long, and the first one."""

    count: int
    spread_ns: int
    begin_ns: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """The sort key: most differences first, of equal numbers the closest ones."""
        return -self.count, self.spread_ns, self.begin_ns


def densest_offset(pairs: StartPairs, rows: Ints) -> BlockOffset | None:
    """Return the offset on which most operations of a block agree; None where no kernel is one."""
    clusters: list[tuple[_Cluster, int]] = []
    bounds_ns, tolerance_ns = _pieces(pairs, rows), pairs.tolerance_ns

    def best(number: int, without_ns: int | None = None) -> _Cluster | None:
        low_ns, high_ns = bounds_ns[number], bounds_ns[number + 1] + tolerance_ns
        differences_ns = np.sort(np.concatenate(_differences(pairs, rows, low_ns, high_ns)))
        return _largest_cluster(differences_ns, tolerance_ns, without_ns)

    for number in range(len(bounds_ns) - 1):
        cluster = best(number)
        if cluster is not None:
            clusters.append((cluster, number))
    if not clusters:
        return None
    first = min((cluster for cluster, _ in clusters), key=lambda cluster: cluster.rank)
    rivals = [
        cluster
        if abs(cluster.begin_ns - first.begin_ns) > 2 * tolerance_ns
        else best(number, first.begin_ns)
        for cluster, number in clusters
    ]
    rival = min((r for r in rivals if r is not None), key=lambda r: r.rank, default=None)
    agreed = _agreed(pairs, rows, first)
    other = (0, 0) if rival is None else _agreed(pairs, rows, rival)
    return BlockOffset(rows, *agreed, *other)


def _pieces(pairs: StartPairs, rows: Ints) -> list[int]:
    """Return bounds of offsets, ascending, between which about as many differences lie each."""
    start_ns, kernel_ns = pairs.operations.start_ns[rows], pairs.kernels.start_ns
    middle_ns = int(start_ns[len(rows) // 2])
    every = max(_DIFFERENCES_AT_ONCE // len(rows), 1)
    between = (kernel_ns[every::every] - middle_ns).tolist()
    low = int(kernel_ns[0] - start_ns[-1])
    high = int(kernel_ns[-1] - start_ns[0])
    return [low, *(at for at in between if low < at < high), high]


def _differences(pairs: StartPairs, rows: Ints, low_ns: int, high_ns: int) -> list[Ints]:
    """Return the differences between each operation of a block and its possible kernels.

    Args:
        pairs: operations and kernels.
        rows: operations of the block.
        low_ns: the least difference that counts.
        high_ns: the largest one.
    """
    start_ns, kernel_ns = pairs.operations.start_ns[rows], pairs.kernels.start_ns
    first = np.searchsorted(kernel_ns, start_ns + low_ns)
    last = np.searchsorted(kernel_ns, start_ns + high_ns, side="right")
    differences = []
    for at, row in enumerate(rows.tolist()):
        near = slice(int(first[at]), int(last[at]))
        alike = pairs.alike(row, near)
        differences.append(kernel_ns[near][alike] - start_ns[at])
    return differences


def _largest_cluster(
    differences_ns: Ints, tolerance_ns: int, without_ns: int | None
) -> _Cluster | None:
    """Return the cluster of most differences; None where there is none.

    A number of differences fits if some difference and the one so many places further on are
    within the tolerance; if a number fits, all smaller ones do.

    Args:
        differences_ns: ascending.
        tolerance_ns: the longest that a cluster may be.
        without_ns: clusters that begin within two tolerances of this do not count.
    """

    def spread(count: int) -> Ints:
        ends = differences_ns[count - 1 :]
        spread_ns = ends - differences_ns[: len(ends)]
        if without_ns is not None:
            near = without_ns - 2 * tolerance_ns, without_ns + 2 * tolerance_ns
            low = int(np.searchsorted(differences_ns, near[0]))
            high = int(np.searchsorted(differences_ns, near[1], side="right"))
            spread_ns[low:high] = tolerance_ns + 1
        return spread_ns

    def fits(count: int) -> bool:
        return bool(spread(count).min(initial=tolerance_ns + 1) <= tolerance_ns)

    if not fits(1):
        return None
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    spread_ns = spread(low)
    at = int(spread_ns.argmin())
    return _Cluster(low, int(spread_ns[at]), int(differences_ns[at]))


def _agreed(pairs: StartPairs, rows: Ints, cluster: _Cluster) -> tuple[int, int]:
    """Return the number of operations in a cluster, and the offset they agree on."""
    begin_ns = cluster.begin_ns
    by_operation = _differences(pairs, rows, begin_ns, begin_ns + pairs.tolerance_ns)
    # An operation beside many kernels counts once.
    agreeing = sum(len(differences_ns) > 0 for differences_ns in by_operation)
    return agreeing, round(float(np.median(np.concatenate(by_operation))))


# Anchors: instants that a user gives on an event file's clock and on a profile's.


#: A GPU's clock counts since 1970, a host's since its profiler began.
_GPU_CLOCK_NS = 10**15
#: Differences of times do not grow beyond what a column holds.
_MOST_NS = 1 << 62


@frozen
class Anchor:
    """An instant on an event file's clock and on the profile's.

    Attributes:
        file: path of the event file, or the end of it; None for every one.
        event_ns: on the host's or the GPU's clock of the file.
        profile_ns: on the first profile's clock.
        gpu: whether ``event_ns`` is of the GPU's clock.
    """

    file: str | None
    event_ns: int
    profile_ns: int
    gpu: bool


def anchor_of(text: str) -> Anchor:
    """Return an anchor from ``[FILE:]EVENT=PROFILE_NS``.

    ``EVENT`` is a ``ts`` as it stands in the file (microseconds), or a ``StartGpuClk``.

    Raises:
        UsageError: it is not an anchor.
    """
    left, equals, right = text.rpartition("=")
    file, _, event = left.rpartition(":")
    try:
        if not equals:
            raise ValueError
        profile_ns = int(right)
        gpu = event.strip().isdigit() and int(event) >= _GPU_CLOCK_NS
        event_ns = int(event) if gpu else round(float(event) * 1000)
        if max(abs(event_ns), abs(profile_ns)) > _MOST_NS:
            raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(
            f"--anchor {text[:60]!r}: give [FILE:]EVENT=PROFILE_NS, where EVENT is a ts of the "
            "file, in microseconds, or a StartGpuClk"
        ) from None
    return Anchor(file or None, event_ns, profile_ns, gpu)


def by_file(files: Sequence[EventFile], anchors: Sequence[Anchor]) -> list[list[Anchor]]:
    """Return the anchors of each file.

    Raises:
        UsageError: an anchor names no file, though there are several, or an unknown one.
    """
    if len(files) > 1 and any(anchor.file is None for anchor in anchors):
        raise UsageError(
            f"--anchor: there are {len(files)} event files, each with a clock of its own; say "
            "which, as FILE:EVENT=NS"
        )
    anchors_of: list[list[Anchor]] = [[] for _ in files]
    for anchor in anchors:
        numbers = [
            number
            for number, file in enumerate(files)
            if anchor.file is None or Path(file.path).as_posix().endswith(anchor.file)
        ]
        if not numbers:
            raise UsageError(
                f"--anchor: no event file is named {str(anchor.file)[:60]!r}; give one of them"
            )
        for number in numbers:
            anchors_of[number].append(anchor)
    return anchors_of
