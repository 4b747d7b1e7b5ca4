"""Matching: which kernel of a profile is which recorded operation, and what lies between clocks.

Both hold the same kernels in the same order, each on its own clock, and either may lack some.
The offset is where the most differences kernel start - operation start agree::

    operations  |  |     |  |  |        differences   ..:  .   :|:.  . :
    kernels        |  |     |  |  |                             └─ densest
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.sources.nccl.events import UNKNOWN

#: Operations that are looked at together, and how many such blocks are at most.
_BLOCK, _BLOCKS = 64, 8
#: Differences that are sorted at a time, about.
_PIECE = 1 << 20
#: A GPU's clock has the start of a channel's work: within this of the start of its kernel.
GPU_TOLERANCE_NS = 20_000
#: A host records it later, by what its thread slept.
HOST_TOLERANCE_NS = 1_000_000
#: Kernels last as long as their work, but for this share and time.
_LONGER, _LONGER_NS = 0.25, 50_000
#: An offset counts if it matches so many times what the next best one does, among the operations
#: looked at (and half of all), or among all. Less is chance, or a run that repeats itself.
_CLEARLY, _CLEARLY_OF_ALL = 1.5, 1.25
#: What chance puts onto kernels, offsets so many tolerances away show.
_BESIDE = (-7, -3, 3, 7)
#: A drift is fitted from so many pairs, over so long; it must be worth as much.
_PAIRS, _SPAN_NS, _WORTH = 16, 1_000_000_000, 0.5


@dataclass(frozen=True)
class Starts:
    """Where things begin on some clock: columns of one length.

    Attributes:
        start_ns: start of each, ascending.
        family: number of what it does; -1 for anything.
        length_ns: how long it lasts; -1 unknown.
    """

    start_ns: Ints
    family: Ints
    length_ns: Ints


@dataclass(frozen=True)
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
    count = len(operations.start_ns)
    if count == 0 or len(kernels.start_ns) == 0:
        return None
    best: _Offset | None = None
    for begin in _begins(count):
        rows = np.arange(begin, min(begin + _BLOCK, count))
        offset = _densest(operations, rows, kernels, tolerance_ns)
        if offset is not None and (best is None or offset.matched > best.matched):
            best = offset
            if 2 * best.matched >= len(rows) and best.matched >= _CLEARLY * best.rival:
                break
    if best is None:
        return None
    line = _followed(operations, kernels, best, tolerance_ns)
    kernel, distance_ns = line.nearest(operations, np.arange(count), kernels, tolerance_ns)
    far_ns = np.abs(distance_ns[kernel != NONE])
    return Match(
        offset_ns=line.offset_ns,
        middle_ns=line.middle_ns,
        drift=line.drift,
        kernel=kernel,
        matched=len(far_ns),
        median_ns=round(float(np.median(far_ns))) if len(far_ns) else 0,
        largest_ns=int(far_ns.max(initial=0)),
        clear=_is_clear(operations, kernels, best, line, kernel, tolerance_ns),
    )


def _is_clear(
    operations: Starts,
    kernels: Starts,
    best: _Offset,
    line: _Line,
    kernel: Ints,
    tolerance_ns: int,
) -> bool:
    """Tell whether no other offset matches nearly as well, or nothing is left on either side."""
    matched = int((kernel != NONE).sum())
    # Of a few dozen operations chance may put some onto kernels, but not most of all.
    if best.matched >= _CLEARLY * best.rival and 2 * matched >= len(kernel):
        return True
    others_ns = (best.rival_ns, *(line.offset_ns + far * tolerance_ns for far in _BESIDE))
    rival = max(_matched(operations, kernels, line, at, tolerance_ns) for at in others_ns)
    able = kernels.family < 0
    able |= np.isin(kernels.family, operations.family) | bool((operations.family < 0).any())
    if matched == len(kernel) and len(np.unique(kernel)) == int(able.sum()):
        return True
    return matched >= _CLEARLY_OF_ALL * rival


def _matched(
    operations: Starts, kernels: Starts, line: _Line, offset_ns: int, tolerance_ns: int
) -> int:
    """Return the number of operations that another offset puts onto kernels."""
    rows = np.arange(len(operations.start_ns))
    other = replace(line, offset_ns=offset_ns)
    return int((other.nearest(operations, rows, kernels, tolerance_ns)[0] != NONE).sum())


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
    return _Line(0, 0, 0.0).nearest(operations, rows, kernels, tolerance_ns)


@dataclass(frozen=True)
class _Offset:
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


@dataclass(frozen=True)
class _Line:
    """A clock against another: as of :class:`Match`."""

    offset_ns: int
    middle_ns: int
    drift: float

    def nearest(
        self, operations: Starts, rows: Ints, kernels: Starts, tolerance_ns: int
    ) -> tuple[Ints, Ints]:
        """Return the kernel nearest to each operation, -1 none, and how much later it begins."""
        start_ns = operations.start_ns[rows]
        since_ns = start_ns - self.middle_ns
        wanted = start_ns + self.offset_ns + np.rint(since_ns * self.drift).astype(np.int64)
        best = np.full(len(rows), NONE, np.int64)
        least = np.full(len(rows), tolerance_ns + 1, np.int64)
        after = np.searchsorted(kernels.start_ns, wanted)
        # Kernels of other families may lie between.
        for step in (0, -1, 1, -2, 2, -3):
            at = after + step
            inside = (at >= 0) & (at < len(kernels.start_ns))
            place = np.clip(at, 0, len(kernels.start_ns) - 1)
            far = np.abs(kernels.start_ns[place] - wanted)
            nearer = inside & (far < least) & _alike(operations, rows, kernels, place)
            best, least = np.where(nearer, place, best), np.where(nearer, far, least)
        return best, np.where(best == NONE, 0, kernels.start_ns[best] - wanted)


def _followed(operations: Starts, kernels: Starts, offset: _Offset, tolerance_ns: int) -> _Line:
    """Return the line through a block's offset, followed from there to all operations."""
    rows, count = offset.rows, len(operations.start_ns)
    line = _Line(offset.offset_ns, int(operations.start_ns[rows[len(rows) // 2]]), 0.0)
    low, high = int(rows[0]), int(rows[-1]) + 1
    while True:
        nearby = np.arange(low, high)
        kernel, distance_ns = line.nearest(operations, nearby, kernels, tolerance_ns)
        hit = kernel != NONE
        if hit.any():
            since_ns = operations.start_ns[nearby[hit]] - line.middle_ns
            moved_ns, drift = _line(since_ns, distance_ns[hit], line.drift)
            line = replace(line, offset_ns=line.offset_ns + moved_ns, drift=drift)
        if low == 0 and high == count:
            return line
        more = high - low
        low, high = max(low - more, 0), min(high + more, count)


def _begins(count: int) -> list[int]:
    """Return where blocks of operations begin: few, and spread over all."""
    if count <= _BLOCK:
        return [0]
    return sorted({int(at) for at in np.linspace(0, count - _BLOCK, _BLOCKS)})


def _alike(operations: Starts, row: Ints | int, kernels: Starts, kernel: Ints | slice) -> Bools:
    """Tell which operations kernels can be: of one family, and about as long."""
    family, kernel_family = operations.family[row], kernels.family[kernel]
    length_ns, kernel_ns = operations.length_ns[row], kernels.length_ns[kernel]
    room_ns = _LONGER * kernel_ns + _LONGER_NS
    fits = (length_ns < 0) | (np.abs(kernel_ns - length_ns) <= room_ns)
    alike = (family == kernel_family) | (family < 0) | (kernel_family < 0)
    return np.asarray(fits & alike, bool)


@dataclass(frozen=True)
class _Window:
    """Differences that lie within the tolerance: how many, over how long, and the first one."""

    count: int
    spread_ns: int
    begin_ns: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """The sort key: most differences first, of equal numbers the closest ones."""
        return -self.count, self.spread_ns, self.begin_ns


def _densest(operations: Starts, rows: Ints, kernels: Starts, tolerance_ns: int) -> _Offset | None:
    """Return the offset on which most operations of a block agree; None where no kernel is one."""
    windows: list[tuple[_Window, int]] = []
    pieces = _pieces(operations, rows, kernels)

    def best(number: int, without_ns: int | None = None) -> _Window | None:
        bounds_ns = pieces[number], pieces[number + 1] + tolerance_ns
        apart = np.sort(np.concatenate(_apart(operations, rows, kernels, *bounds_ns)))
        return _window(apart, tolerance_ns, without_ns)

    for number in range(len(pieces) - 1):
        window = best(number)
        if window is not None:
            windows.append((window, number))
    if not windows:
        return None
    first = min((window for window, _ in windows), key=lambda window: window.rank)
    rivals = [
        window
        if abs(window.begin_ns - first.begin_ns) > 2 * tolerance_ns
        else best(number, first.begin_ns)
        for window, number in windows
    ]
    rival = min((r for r in rivals if r is not None), key=lambda r: r.rank, default=None)
    agreed = _agreed(operations, rows, kernels, first, tolerance_ns)
    other = (0, 0) if rival is None else _agreed(operations, rows, kernels, rival, tolerance_ns)
    return _Offset(rows, *agreed, *other)


def _pieces(operations: Starts, rows: Ints, kernels: Starts) -> list[int]:
    """Return bounds of offsets, ascending, between which about as many differences lie each."""
    start_ns, middle_ns = operations.start_ns[rows], int(operations.start_ns[rows[len(rows) // 2]])
    every = max(_PIECE // len(rows), 1)
    between = (kernels.start_ns[every::every] - middle_ns).tolist()
    low = int(kernels.start_ns[0] - start_ns[-1])
    high = int(kernels.start_ns[-1] - start_ns[0])
    return [low, *(at for at in between if low < at < high), high]


def _apart(
    operations: Starts, rows: Ints, kernels: Starts, low_ns: int, high_ns: int
) -> list[Ints]:
    """Return the differences between each operation of a block and its possible kernels.

    Args:
        operations: as recorded.
        rows: those of the block.
        kernels: as profiled.
        low_ns: the least difference that counts.
        high_ns: the largest one.
    """
    start_ns = operations.start_ns[rows]
    first = np.searchsorted(kernels.start_ns, start_ns + low_ns)
    last = np.searchsorted(kernels.start_ns, start_ns + high_ns, side="right")
    differences = []
    for row, begin, end in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True):
        near = slice(begin, end)
        alike = _alike(operations, row, kernels, near)
        differences.append(kernels.start_ns[near][alike] - operations.start_ns[row])
    return differences


def _window(apart: Ints, tolerance_ns: int, without_ns: int | None) -> _Window | None:
    """Return the window that holds most differences; None where there is none.

    A number of differences fits if some difference and the one so many places further on are
    within the tolerance; if a number fits, all smaller ones do.

    Args:
        apart: differences, ascending.
        tolerance_ns: the length of a window.
        without_ns: windows that begin within two tolerances of this do not count.
    """

    def spread(count: int) -> Ints:
        ends = apart[count - 1 :]
        spread_ns = ends - apart[: len(ends)]
        if without_ns is not None:
            near = without_ns - 2 * tolerance_ns, without_ns + 2 * tolerance_ns
            low = int(np.searchsorted(apart, near[0]))
            high = int(np.searchsorted(apart, near[1], side="right"))
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
    return _Window(low, int(spread_ns[at]), int(apart[at]))


def _agreed(
    operations: Starts, rows: Ints, kernels: Starts, window: _Window, tolerance_ns: int
) -> tuple[int, int]:
    """Return the number of operations in a window, and the offset they agree on."""
    begin_ns = window.begin_ns
    apart = _apart(operations, rows, kernels, begin_ns, begin_ns + tolerance_ns)
    # An operation beside many kernels counts once.
    return sum(len(a) > 0 for a in apart), round(float(np.median(np.concatenate(apart))))


def _line(since_ns: Ints, distance_ns: Ints, drift: float) -> tuple[int, float]:
    """Return the correction of an offset, and the drift, that make distances vanish."""
    flat = float(np.median(distance_ns))
    span = int(since_ns.max() - since_ns.min())
    if len(since_ns) < _PAIRS or span < _SPAN_NS:
        return round(flat), drift
    slope, begin = np.polyfit(since_ns.astype(float), distance_ns.astype(float), 1)
    left = np.median(np.abs(distance_ns - (begin + slope * since_ns)))
    if left > _WORTH * np.median(np.abs(distance_ns - flat)):
        return round(flat), drift
    return round(float(begin)), drift + float(slope)
