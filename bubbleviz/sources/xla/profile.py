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
from bubbleviz.sources.xla.device_work import XlaWork, work_of
from bubbleviz.sources.xla.planes import HostSpans, Planes
from bubbleviz.sources.xla.range_names import RangeNames
from bubbleviz.sources.xla.ranges import ranges_of
from bubbleviz.sources.xla.threads import PlaneThreads
from bubbleviz.timing import step

NO_LAUNCHES = "launches"
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

    @property
    def names(self) -> tuple[str, ...]:
        """Distinct names of all ranges."""
        return self.of_work.names

    def lasting(self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints) -> Ranges:
        """Return the ranges of some threads that last so long, and touch any of some times."""
        lines = np.flatnonzero(np.isin(self.thread, threads))
        long = self.spans.end_ns - self.spans.start_ns >= shortest_ns
        of_host = self._of_host(long & np.isin(self.spans.line, lines))
        selection = (shortest_ns, threads, since_ns, until_ns)
        return joined([InMemoryRanges(r).lasting(*selection) for r in (self.of_work, of_host)])

    def counts(self) -> Ints:
        """Return how often each name occurs."""
        names = (self.of_work.name_id, self.spans.name)
        of_work, of_host = (np.bincount(n, minlength=len(self.names)) for n in names)
        counts: Ints = of_work + of_host
        return counts

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
        ranges = ranges_of(spans.start_ns, spans.end_ns, thread, name_id)
        return replace(ranges, names=self.names)


@frozen
class XlaProfile:
    """A profile in memory, whose ranges are selected by name.

    Attributes:
        source: where it came from.
        work: of its devices.
        ranges: all ranges.
        threads: named threads.
        devices: that have a plane.
        steps: how many steps are recorded.
        limitations: of the file.
        cut: whether the file's end is missing.
    """

    source: Source
    work: XlaWork
    ranges: XlaRanges
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    steps: int
    limitations: tuple[Limitation, ...]
    cut: bool

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return len(self.work.activities) + len(self.ranges)

    @cached_property
    def _counts(self) -> Ints:
        return self.ranges.counts()

    def _chosen(self, globs: Sequence[str]) -> Bools:
        """Tell which names some patterns match."""
        return np.array(fitting(globs, self.ranges.names), bool)

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often names that some patterns match occur."""
        rows = np.flatnonzero(self._chosen(globs) & (self._counts > 0)).tolist()
        return {self.ranges.names[row]: int(self._counts[row]) for row in rows}

    def profile(self, globs: Sequence[str]) -> Profile:
        """Return the profile with the ranges whose names some patterns match.

        Raises:
            NothingToAnalyseError: nothing ran on a device.
        """
        if self.work.activities.kernels == 0:
            raise NothingToAnalyseError(f"{self.source.path}: {self._without_work()}")
        return Profile(
            source=self.source,
            activities=self.work.activities,
            calls=self.work.calls,
            ranges=self.ranges.named(self._chosen(globs)),
            every_range=self.ranges,
            overheads=Overheads(*(np.empty(0, np.int64) for _ in range(3))),
            threads=self.threads,
            devices=self.devices,
            limitations=self.limitations,
            launches_known=self.work.launched,
        )

    def _without_work(self) -> str:
        if self.cut:
            return "cut short before the first complete kernel or instruction; copy it again"
        return f"no kernel and no instruction of a device was recorded; {_RECORD_AGAIN}"

    def contents(self, globs: Sequence[str]) -> Contents:
        """Return the contents of the file, with the ranges whose names some patterns match."""
        activities, work = self.work.activities, self.work
        counts = (
            ("kernels and instructions", activities.kernels),
            ("copies and memsets", len(activities) - activities.kernels),
            ("launches", len(work.calls.calls) if work.launched else None),
            ("instructions and modules named", work.instructions),
            ("steps", self.steps),
            ("host events", len(self.ranges.spans)),
        )
        readable = activities.kernels > 0
        return Contents(
            source=self.source,
            tables=tuple(TableCount(what, self.source.format, rows) for what, rows in counts),
            processes=tuple(sorted(set(activities.ranks[:, 0].tolist()))),
            devices=self.devices,
            candidates=tuple(NameCount(*pair) for pair in self.sample(globs).items()),
            ranges=len(self.ranges),
            missing=() if readable else (self._without_work(),),
            readable=readable,
        )


class XlaFile:
    """An open file; see :class:`~bubbleviz.sources.readers.OpenFile`. It is decoded once."""

    def __init__(self, load: Callable[[], XlaProfile]) -> None:
        self._load = load

    @cached_property
    def _profile(self) -> XlaProfile:
        with step("read planes") as rows:
            profile = self._load()
            rows.count = profile.rows
        return profile

    def sample(self, globs: Sequence[str], _rows: int = 0, /) -> Mapping[str, int]:
        """Return how often such names occur among the ranges."""
        return self._profile.sample(globs)

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile; only one without any work is refused.

        Raises:
            ProfileError: it cannot be read; NothingToAnalyseError: it holds no device's work.
        """
        del partial
        return self._profile.profile(globs)

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return the contents of the file, with the ranges of these names."""
        return self._profile.contents(globs)


def profile_of(
    source: Source,
    planes: Planes,
    process: int,
    limitations: tuple[Limitation, ...] = (),
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
    threads = PlaneThreads.of(planes, process)
    names = RangeNames(planes.texts)
    work = work_of(planes, threads, names)
    work = replace(work, ranges=replace(work.ranges, names=names.all))
    lines = (line.name for line in planes.lines)
    named = [Thread(*pair) for pair in zip(threads.of_line.tolist(), lines, strict=True)]
    if not work.launched:
        named += [Thread(t, f"{DEVICE_THREAD} {d}") for d, t in threads.of_device.items()]
    return XlaProfile(
        source=replace(source, device=HOST if planes.on_host else planes.accelerator),
        work=work,
        ranges=XlaRanges(work.ranges, planes.spans, threads.of_line),
        threads=tuple(dict.fromkeys(named)),
        devices=tuple(Device(None, number, name, None) for number, name in planes.devices),
        steps=len(planes.steps),
        limitations=(*limitations, *_limitations(source.path, planes, work)),
        cut=cut,
    )


def _limitations(path: str, planes: Planes, work: XlaWork) -> Iterator[Limitation]:
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
            NO_LAUNCHES,
            f"{path}: none were recorded, so no bubble is attributed to the host, and host times "
            "are device times",
        )
