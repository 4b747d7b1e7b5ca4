"""Copies of devices: how much they moved, how fast, between which memory; and what may help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.analyses.idle.gaps import Device
from bubbleviz.model.copies import Copies, Direction, Memory
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.profile import Activities
from bubbleviz.model.texts import percent

#: Share of the time of copies from which on one kind of them is what to look at.
_MOST = 0.5
#: Copies of fewer bytes are small: their launch takes longer than their transfer.
_SMALL = 64 * 1024
#: Directions in which the memory of the host may be pinned.
_OF_HOST = (Direction.HOST_TO_DEVICE, Direction.DEVICE_TO_HOST)
#: What may help with copies between host and device, by the host's memory.
_OF_HOST_MEMORY = {
    Memory.PINNED: "this memory is pinned already, so copy less, or on a stream of its own",
    Memory.PAGEABLE: "copy from or to pinned memory, without blocking, on a stream of its own",
}
_UNKNOWN_MEMORY = "copy less, or from pinned memory (its kind is unknown) on a stream of its own"


@dataclass(frozen=True)
class CopyTotal:
    """Copies of one direction between the same kinds of memory.

    Attributes:
        direction: Direction of the copies.
        source: Kind of memory that they read.
        target: Kind of memory that they write.
        count: Number of copies.
        size: Number of bytes, or None if that of any copy is unknown.
        time_ns: Sum of their times, in which streams that copy at a time count apiece.
    """

    direction: Direction
    source: Memory
    target: Memory
    count: int
    size: int | None
    time_ns: int

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the copies besides their time."""
        return self.direction is not Direction.UNKNOWN or self.size is not None

    @property
    def bytes_per_ns(self) -> float | None:
        """Bytes per nanosecond, which is GB/s, or None if bytes are unknown."""
        return None if self.size is None or not self.time_ns else self.size / self.time_ns

    @property
    def host_memory(self) -> Memory:
        """The kind of the host's memory in a copy between host and device, else unknown."""
        if self.direction is Direction.HOST_TO_DEVICE:
            return self.source
        return self.target if self.direction is Direction.DEVICE_TO_HOST else Memory.UNKNOWN

    @property
    def label(self) -> str:
        """Direction and memory in words."""
        of_host = f" ({self.host_memory.label})" if self.host_memory is not Memory.UNKNOWN else ""
        return f"{self.direction.label}{of_host}"


def totals_of(
    copies: Copies | None, activities: Activities, device: Device
) -> tuple[CopyTotal, ...]:
    """Return the copies of a device inside its span by kind, those that took longest first.

    Args:
        copies: Copies of the profile, or None if nothing of them is recorded.
        activities: Work of the profile.
        device: The device.
    """
    if copies is None or not len(copies):
        return ()
    own = copies.take(activities.rank[copies.activity] == device.rank)
    start_ns, end_ns = (
        np.clip(times[own.activity], *device.span_ns)
        for times in (activities.start_ns, activities.end_ns)
    )
    inside = end_ns > start_ns
    own, time_ns = own.take(inside), (end_ns - start_ns)[inside]
    groups = groups_of(own.direction, own.source, own.target)
    count = np.bincount(groups.of_row, minlength=len(groups)).tolist()
    known = np.bincount(groups.of_row, own.size >= 0, minlength=len(groups)).astype(int).tolist()
    sums_ns, sizes = np.zeros(len(groups), np.int64), np.zeros(len(groups), np.int64)
    np.add.at(sums_ns, groups.of_row, time_ns)
    np.add.at(sizes, groups.of_row, np.maximum(own.size, 0))
    totals = [
        CopyTotal(
            Direction(int(own.direction[row])),
            Memory(int(own.source[row])),
            Memory(int(own.target[row])),
            count[group],
            int(sizes[group]) if known[group] == count[group] else None,
            int(sums_ns[group]),
        )
        for group, row in enumerate(groups.first.tolist())
    ]
    return add_up(totals) if any(total.is_known for total in totals) else ()


def add_up(totals: Iterable[CopyTotal]) -> tuple[CopyTotal, ...]:
    """Return the sums of totals of the same kind, those that took longest first."""
    sums: dict[tuple[Direction, Memory, Memory], CopyTotal] = {}
    for total in totals:
        key = total.direction, total.source, total.target
        before = sums.get(key)
        if before is None:
            sums[key] = total
            continue
        unknown = before.size is None or total.size is None
        sums[key] = replace(
            before,
            count=before.count + total.count,
            size=None if unknown else (before.size or 0) + (total.size or 0),
            time_ns=before.time_ns + total.time_ns,
        )
    return tuple(sorted(sums.values(), key=lambda own: (-own.time_ns, own.label)))


def hint(totals: Sequence[CopyTotal]) -> str | None:
    """Return what most copies are, and what may help; None if nothing is known of them.

    Args:
        totals: Copies by kind, those that took longest first.
    """
    whole_ns = sum(total.time_ns for total in totals)
    known = [total for total in totals if total.direction is not Direction.UNKNOWN]
    if not known or known[0].time_ns < _MOST * whole_ns:
        return None
    most = known[0]
    moved = "" if most.size is None else f", {written_size(most.size)}"
    rate = "" if most.bytes_per_ns is None else f" at {most.bytes_per_ns:,.3g} GB/s"
    share = percent(most.time_ns / whole_ns)
    return f"{share} of the time of copies is {most.label}{moved}{rate}; {_remedy(most)}"


def _remedy(total: CopyTotal) -> str:
    """Return what may help with copies of a kind."""
    if total.size is not None and total.size < _SMALL * total.count:
        mean = written_size(total.size / total.count)
        return f"combine these {total.count:,} copies of {mean} on average into few larger ones"
    if Memory.MANAGED in (total.source, total.target):
        return "prefetch managed memory before kernels touch it (cudaMemPrefetchAsync)"
    if total.direction in _OF_HOST:
        return _OF_HOST_MEMORY.get(total.host_memory, _UNKNOWN_MEMORY)
    if total.direction is Direction.DEVICE_TO_DEVICE:
        return "copy less inside the device (fused kernels, no change of layout)"
    return "copy less, or on a stream of its own beside kernels"


def written_size(size: float) -> str:
    """Return a number of bytes with a decimal unit, as rates have."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.2f} {unit}"
    return f"{size:,.0f} B"
