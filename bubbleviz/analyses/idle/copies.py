"""Totals of memory copies (size, rate, kinds of memory), and hints on how to shorten the copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.analyses.idle.gaps import Device
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints
from bubbleviz.model.copies import Copies, Direction, Memory
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.profile import Activities
from bubbleviz.model.texts import format_percent

#: Minimum share of the total copy time for a kind of copy to get a hint.
_MIN_SHARE = 0.5
#: Mean size in bytes below which copies are small. Launching a small copy takes longer than
#: transferring its data.
_SMALL = 64 * 1024
#: Directions of copies between a host and a device. The host memory may be pinned.
_OF_HOST = (Direction.HOST_TO_DEVICE, Direction.DEVICE_TO_HOST)
#: Remedies for copies between host and device, keyed by kind of host memory.
_OF_HOST_MEMORY = {
    Memory.PINNED: "this memory is already pinned, so copy less data, or copy on a separate stream",
    Memory.PAGEABLE: "copy from or to pinned memory, without blocking, on a separate stream",
}
_UNKNOWN_MEMORY = (
    "copy less data, or copy on a separate stream from pinned memory (the kind of this memory is "
    "unknown)"
)


@dataclass(frozen=True)
class CopyTotal:
    """Totals of the copies in one direction between two kinds of memory.

    Attributes:
        direction: Direction of the copies.
        source: Kind of memory that the copies read from.
        target: Kind of memory that the copies write to.
        count: Number of copies.
        size: Number of bytes, or None if the size of any copy is unknown.
        time_ns: Sum of the durations. Concurrent copies are counted separately.
        exposed_ns: Part of ``time_ns`` during which no kernel ran on the device. Kernels hide the
            rest.
    """

    direction: Direction
    source: Memory
    target: Memory
    count: int
    size: int | None
    time_ns: int
    exposed_ns: int

    @property
    def is_known(self) -> bool:
        """Whether the direction or the size is known."""
        return self.direction is not Direction.UNKNOWN or self.size is not None

    @property
    def bytes_per_ns(self) -> float | None:
        """Transfer rate in bytes per ns, equal to GB/s, or None if size is unknown or time is 0."""
        return None if self.size is None or not self.time_ns else self.size / self.time_ns

    @property
    def host_memory(self) -> Memory:
        """Kind of host memory, or unknown if the copies are not between host and device."""
        if self.direction is Direction.HOST_TO_DEVICE:
            return self.source
        return self.target if self.direction is Direction.DEVICE_TO_HOST else Memory.UNKNOWN

    @property
    def label(self) -> str:
        """Direction in words, followed by the kind of host memory if known."""
        of_host = f" ({self.host_memory.label})" if self.host_memory is not Memory.UNKNOWN else ""
        return f"{self.direction.label}{of_host}"


def sum_copies(
    copies: Copies | None,
    activities: Activities,
    device: Device,
    kernels: Sequence[intervals.Intervals],
) -> tuple[CopyTotal, ...]:
    """Sum the copies in a device's span by direction and memory kind, longest total first.

    A copy that extends beyond the span contributes all its bytes, but only its time inside the
    span. The result is empty if neither the direction nor the size of any copy is known.

    Args:
        copies: Copies in the profile, or None if it records no details of copies.
        activities: All kernels in the profile, followed by all copies.
        device: The device.
        kernels: Times at which kernels ran on the device, such as compute and communication.
    """
    if copies is None or not len(copies):
        return ()
    of_device = copies.take(activities.rank[copies.activity] == device.rank)
    start_ns, end_ns = (
        np.clip(times[of_device.activity], *device.span_ns)
        for times in (activities.start_ns, activities.end_ns)
    )
    is_inside = end_ns > start_ns
    span_copies, time_ns = of_device.take(is_inside), (end_ns - start_ns)[is_inside]
    groups = group_rows(span_copies.direction, span_copies.source, span_copies.target)
    count = np.bincount(groups.of_row, minlength=len(groups)).tolist()
    n_unknown = np.bincount(groups.of_row[span_copies.size < 0], minlength=len(groups)).tolist()
    sums_ns = intervals.group_sum(groups.of_row, len(groups), time_ns)
    exposed_ns = time_ns - _measure_hidden(kernels, start_ns[is_inside], end_ns[is_inside])
    exposed_sums_ns = intervals.group_sum(groups.of_row, len(groups), exposed_ns)
    sizes = intervals.group_sum(groups.of_row, len(groups), np.maximum(span_copies.size, 0))
    totals = [
        CopyTotal(
            Direction(int(span_copies.direction[row])),
            Memory(int(span_copies.source[row])),
            Memory(int(span_copies.target[row])),
            count[group],
            None if n_unknown[group] else int(sizes[group]),
            int(sums_ns[group]),
            int(exposed_sums_ns[group]),
        )
        for group, row in enumerate(groups.first.tolist())
    ]
    return merge_totals(totals) if any(total.is_known for total in totals) else ()


def _measure_hidden(kernels: Sequence[intervals.Intervals], start_ns: Ints, end_ns: Ints) -> Ints:
    """Return how much of each copy's time a kernel ran on the device, in ns."""
    first_ns, last_ns = (np.concatenate(bounds) for bounds in zip(*kernels, strict=True))
    running = intervals.union(first_ns, last_ns)
    return intervals.measure_within(running, start_ns, end_ns)


def merge_totals(totals: Iterable[CopyTotal]) -> tuple[CopyTotal, ...]:
    """Add up the totals with the same direction and memory kinds, longest total first.

    The size of a sum is None if the size of any of its totals is unknown. On ties, totals are
    sorted by label.
    """
    sums: dict[tuple[Direction, Memory, Memory], CopyTotal] = {}
    for total in totals:
        key = total.direction, total.source, total.target
        earlier = sums.get(key)
        if earlier is None:
            sums[key] = total
            continue
        unknown = earlier.size is None or total.size is None
        sums[key] = replace(
            earlier,
            count=earlier.count + total.count,
            size=None if unknown else (earlier.size or 0) + (total.size or 0),
            time_ns=earlier.time_ns + total.time_ns,
            exposed_ns=earlier.exposed_ns + total.exposed_ns,
        )
    return tuple(sorted(sums.values(), key=lambda total: (-total.time_ns, total.label)))


def describe_longest(totals: Sequence[CopyTotal], *, exposed: bool = False) -> str | None:
    """Return a hint on how to shorten the kind of copy that takes the most time.

    Copies whose direction is unknown are not considered. On ties, the first total wins. The hint is
    None if the longest total is below ``_MIN_SHARE`` of the time of all copies.

    Args:
        totals: Copy totals, one per direction and memory kind.
        exposed: Whether only the time during which no kernel ran counts.
    """

    def get_time(total: CopyTotal) -> int:
        return total.exposed_ns if exposed else total.time_ns

    sum_ns = sum(map(get_time, totals))
    directed = [total for total in totals if total.direction is not Direction.UNKNOWN]
    longest = max(directed, key=get_time, default=None)
    if longest is None or get_time(longest) < max(_MIN_SHARE * sum_ns, 1):
        return None
    size_text = "" if longest.size is None else f", {format_size(longest.size)}"
    rate = "" if longest.bytes_per_ns is None else f" at {longest.bytes_per_ns:,.3g} GB/s"
    share_text = format_percent(get_time(longest) / sum_ns)
    whole = "the exposed copy time" if exposed else "the copy time"
    subject = f"{share_text} of {whole} is {longest.label}{size_text}{rate}"
    return f"{subject}; {_suggest_remedy(longest)}"


def _suggest_remedy(total: CopyTotal) -> str:
    """Return advice on how to speed up one kind of copy.

    The first case that applies decides: copies that are small on average, managed memory, copies
    between host and device, copies inside a device, all other copies.
    """
    if total.size is not None and total.size < _SMALL * total.count:
        mean = format_size(total.size / total.count)
        return (
            f"combine the small copies (count: {total.count:,}, mean size: {mean}) into fewer, "
            "larger ones"
        )
    if Memory.MANAGED in (total.source, total.target):
        return "prefetch managed memory before kernels access it (cudaMemPrefetchAsync)"
    if total.direction in _OF_HOST:
        return _OF_HOST_MEMORY.get(total.host_memory, _UNKNOWN_MEMORY)
    if total.direction is Direction.DEVICE_TO_DEVICE:
        return "copy less data within the device (fuse kernels, avoid layout changes)"
    return "copy less data, or copy on a separate stream while kernels run"


def format_size(size: float) -> str:
    """Format a number of bytes using a decimal unit, as in ``1.50 MB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.2f} {unit}"
    return f"{size:,.0f} B"
