"""A profile of XLA, in memory; its ranges are selected by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from bubbleviz.conventions.globs import fitting
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.columns import Bools, Ints, joined
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import (
    DEVICE_THREAD,
    HOST,
    Contents,
    Device,
    NameCount,
    Overheads,
    Profile,
    Ranges,
    Source,
    TableCount,
    Thread,
    impossible_times,
    outside_limitation,
)
from bubbleviz.model.values import frozen
from bubbleviz.sources.in_memory import InMemoryRanges
from bubbleviz.sources.xla.device_work import DeviceWork, ranges_of
from bubbleviz.sources.xla.planes import HostSpans, Planes
from bubbleviz.timing import step

_RECORD_AGAIN = "record again with jax.profiler.trace around whole steps"


@frozen
class XlaRanges:
    """A :class:`~bubbleviz.model.profile.RangeLog` of a profile of XLA.

    Attributes:
        of_work: ranges of instructions, modules and steps.
        spans: events of the host's threads.
        thread: of each line of these.
    """

    of_work: Ranges
    spans: HostSpans
    thread: Ints

    def __len__(self) -> int:
        return len(self.of_work) + len(self.spans)

    def lasting(self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints) -> Ranges:
        """Return the ranges of some threads that last so long, and touch any of some times."""
        lines = np.flatnonzero(np.isin(self.thread, threads))
        long = self.spans.end_ns - self.spans.start_ns >= shortest_ns
        of_host = self._of_host(long & np.isin(self.spans.line, lines))
        selection = (shortest_ns, threads, since_ns, until_ns)
        return joined([InMemoryRanges(r).lasting(*selection) for r in (self.of_work, of_host)])

    def named(self, chosen: Bools) -> Ranges:
        """Return the ranges of some names."""
        of_work, of_host = chosen[self.of_work.name_id], chosen[self.spans.name]
        # Most often it is all of these, and none of those.
        ranges = self.of_work if of_work.all() else self.of_work.take(of_work)
        return joined([ranges, self._of_host(of_host)]) if of_host.any() else ranges

    def _of_host(self, rows: Bools) -> Ranges:
        """Return some events of the host's threads as ranges."""
        spans = self.spans.take(rows)
        thread, name_id = self.thread[spans.line], spans.name.astype(np.int64)
        return ranges_of(spans.start_ns, spans.end_ns, thread, name_id, self.of_work.names)


@frozen
class XlaProfile:
    """What a file holds.

    Attributes:
        profile: with all ranges of work.
        ranges: all ranges.
        counts: how many rows of each kind it holds.
        cut: whether the file's end is missing.
    """

    profile: Profile
    ranges: XlaRanges
    counts: Mapping[str, int | None]
    cut: bool


class XlaFile:
    """An open file; see :class:`~bubbleviz.sources.readers.OpenFile`. It is decoded once."""

    def __init__(self, load: Callable[[], XlaProfile]) -> None:
        self._load = load

    @cached_property
    def _whole(self) -> XlaProfile:
        with step("read planes") as rows:
            whole = self._load()
            rows.count = len(whole.profile.activities) + len(whole.ranges)
        return whole

    def _chosen(self, globs: Sequence[str]) -> Bools:
        """Tell which names of ranges some patterns match."""
        return np.array(fitting(globs, self._whole.ranges.of_work.names), bool)

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return how often such names occur among the ranges."""
        ranges = self._whole.ranges
        names = ranges.of_work.names
        ids = (ranges.of_work.name_id, ranges.spans.name)
        of_work, of_host = (np.bincount(of_rows, minlength=len(names)) for of_rows in ids)
        counts = of_work + of_host
        rows = np.flatnonzero(self._chosen(globs) & (counts > 0)).tolist()
        return {names[row]: int(counts[row]) for row in rows}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile; only one without any work is refused.

        Raises:
            ProfileError: it cannot be read.
            NothingToAnalyseError: nothing ran on a device.
        """
        del partial
        profile = self._whole.profile
        if profile.activities.kernels == 0:
            raise NothingToAnalyseError(f"{profile.source.path}: {self._without_work()}")
        return replace(profile, ranges=self._whole.ranges.named(self._chosen(globs)))

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return the contents of the file, with the ranges of these names."""
        profile = self._whole.profile
        readable = profile.activities.kernels > 0
        counts = self._whole.counts.items()
        return Contents(
            source=profile.source,
            tables=tuple(TableCount(what, profile.source.format, rows) for what, rows in counts),
            processes=tuple(sorted(set(profile.activities.ranks[:, 0].tolist()))),
            devices=profile.devices,
            candidates=tuple(NameCount(*pair) for pair in self.sample(globs).items()),
            ranges=len(self._whole.ranges),
            missing=() if readable else (self._without_work(),),
            readable=readable,
        )

    def _without_work(self) -> str:
        if self._whole.cut:
            return "cut short before the first complete kernel or instruction; copy it again"
        return f"no kernel and no instruction of a device was recorded; {_RECORD_AGAIN}"


def profile_of(
    source: Source,
    planes: Planes,
    process: int,
    limitations: Sequence[Limitation] = (),
    *,
    cut: bool = False,
) -> XlaProfile:
    """Return the profile that planes make.

    Args:
        source: where they came from.
        planes: all that was recorded.
        process: that was profiled; 0 unknown.
        limitations: of the file.
        cut: whether the file's end is missing.
    """
    work = DeviceWork(planes, process)
    names = (name for _, name in planes.lines)
    threads = [Thread(*pair) for pair in zip(work.thread_of_line.tolist(), names, strict=True)]
    if not work.launched:
        of_device = work.thread_of_device.items()
        threads += [Thread(thread, f"{DEVICE_THREAD} {device}") for device, thread in of_device]
    ranges = XlaRanges(work.ranges, planes.spans, work.thread_of_line)
    activities = work.activities
    profile = Profile(
        source=replace(source, device=HOST if planes.on_host else planes.accelerator),
        activities=activities,
        calls=work.calls,
        ranges=work.ranges,
        every_range=ranges,
        overheads=Overheads(*(np.empty(0, np.int64) for _ in range(3))),
        threads=tuple(dict.fromkeys(threads)),
        devices=tuple(Device(None, number, name, None) for number, name in planes.devices),
        limitations=(*limitations, *_limitations(source.path, planes, work)),
        launches_known=work.launched,
    )
    counts = {
        "kernels and instructions": activities.kernels,
        "copies and memsets": len(activities) - activities.kernels,
        "launches": len(work.calls.calls) if work.launched else None,
        "instructions and modules named": work.instructions,
        "steps": len(planes.steps),
        "host events": len(planes.spans),
    }
    return XlaProfile(profile, ranges, counts, cut)


def _limitations(path: str, planes: Planes, work: DeviceWork) -> Iterator[Limitation]:
    yield from impossible_times(path, {"events": planes.impossible})
    if planes.outside:
        yield outside_limitation("events", path, planes.outside)
    if planes.strange_devices:
        reason = f"{path}: no device has their device_ordinal; they are left out"
        yield Limitation(
            "instructions of unknown devices", reason, planes.strange_devices, LimitationKind.COSTS
        )
    if planes.on_host and work.activities.kernels:
        yield Limitation(
            "devices",
            f"{path}: no device plane: a CPU run, in which instructions on host threads stand for "
            "kernels; they do not name forward and backward, so use idle instead of analyze",
            kind=LimitationKind.WITHOUT_DEVICE,
        )
    if not work.launched and work.activities.kernels:
        yield Limitation(
            "launches",
            f"{path}: none were recorded, so no bubble is attributed to the host, and host times "
            "are device times",
        )
