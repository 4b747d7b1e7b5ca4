"""A profile of XLA, in memory; its ranges are selected by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from bubbleviz.conventions.globs import fitting
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.capture import beyond, capture_bounds
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.model.grouping import Numbering, groups_of
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
    possible,
)
from bubbleviz.model.values import frozen
from bubbleviz.sources.in_memory import InMemoryRanges
from bubbleviz.sources.xla.device_work import RangeNames, XlaWork, ranges_of, work_of
from bubbleviz.sources.xla.names import MOST_DEVICES, Role, accelerator_of, device_of
from bubbleviz.sources.xla.planes import HostLine, HostSpans, Label, LineEvents, PlaneEvents, Planes
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


# The planes of a profile, collected from the events of its lines while a file is read.


_NUMBER = re.compile(r"[0-9]{1,18}\Z")
#: Events of the host, by what they stand for.
_LAUNCHES, _HOST_OPS, _HOST_STEPS = "launches", "host ops", "host steps"


class PlaneCollector:
    """Takes the events of lines, piece by piece.

    Attributes:
        texts: numbers the texts of all events.
    """

    def __init__(self) -> None:
        self.texts: Numbering[str] = Numbering()
        self._labels: Numbering[tuple[int, ...]] = Numbering()
        self._events: dict[str, list[PlaneEvents]] = {}
        self._spans: list[HostSpans] = []
        self._lines: list[HostLine] = []
        self._devices: dict[int, str] = {}
        self._accelerator = "GPU"
        self._impossible = self._strange_devices = 0

    def add_device(self, plane: str, number: int, name: str) -> None:
        """Add a device that has a plane, and its name; "" unknown."""
        self._accelerator = accelerator_of(plane)
        self._devices[number] = name or self._devices.get(number, "")

    def add_line(self, number: int, name: str) -> int:
        """Add a line of the host; return its row."""
        self._lines.append(HostLine(number, name))
        return len(self._lines) - 1

    def add(self, role: Role, plane: str, line: int, events: LineEvents) -> None:
        """Add a piece of a line.

        Args:
            role: of the line.
            plane: name of its plane.
            line: row of the line, if it is the host's.
            events: the piece.
        """
        keep = possible(events.start_ns, events.end_ns)
        if keep is not None:
            self._impossible += int((~keep).sum())
            events = events.take(keep)
        if len(events) == 0:
            return
        if role is Role.HOST:
            self._add_host(line, events)
        elif role is not Role.NOTHING:
            if role in (Role.OPS, Role.ASYNC):
                events = replace(events, op=np.where(events.op == NONE, events.name, events.op))
            if role is Role.STEPS:
                named = _whole_numbers(events.name, self.texts.values)
                step = np.where(events.step != NONE, events.step, named)
                events = replace(events, step=step).take(step != NONE)
            device = np.full(len(events), device_of(plane), np.int64)
            self._append(role.name, events, line, device)

    def _add_host(self, line: int, events: LineEvents) -> None:
        # Launches are calls, and no ranges.
        lasting = (events.end_ns > events.start_ns) & (events.correlation == NONE)
        spans = events.take(lasting)
        row = _narrow(np.full(len(spans), line, np.int64))
        self._spans.append(HostSpans(spans.start_ns, spans.end_ns, _narrow(spans.name), row))
        for key, chosen in (
            (_LAUNCHES, events.correlation != NONE),
            (_HOST_OPS, (events.op != NONE) & self._known_devices(events.device)),
            (_HOST_STEPS, events.step != NONE),
        ):
            if chosen.any():
                some = events.take(chosen)
                self._append(key, some, line, some.device)

    def _known_devices(self, device: Ints) -> Bools:
        """Tell which of some devices can be; others are counted."""
        known = (device >= 0) & (device < MOST_DEVICES)
        self._strange_devices += int((~known & (device != NONE)).sum())
        return known

    def _append(self, key: str, events: LineEvents, line: int, device: Ints) -> None:
        narrow = PlaneEvents(
            start_ns=events.start_ns.copy(),
            end_ns=events.end_ns.copy(),
            name=_narrow(events.name),
            label=_narrow(self._labelled(events)),
            line=_narrow(np.full(len(events), line, np.int64)),
            device=_narrow(device),
            run=_narrow(events.run),
            correlation=_narrow(events.correlation),
            step=_narrow(events.step),
        )
        self._events.setdefault(key, []).append(narrow)

    def _labelled(self, events: LineEvents) -> Ints:
        """Return the number of each event's label; -1 where it names no instruction."""
        label = np.full(len(events), NONE, np.int64)
        rows = np.flatnonzero((events.op != NONE) | (events.module != NONE))
        columns = [getattr(events, name)[rows] for name in ("op", "path", "module", "program")]
        groups = groups_of(*columns)
        distinct = zip(*(column[groups.first].tolist() for column in columns), strict=True)
        label[rows] = self._labels.numbers(distinct)[groups.of_row]
        return label

    def planes(self) -> Planes:
        """Return the planes, once all lines have been added."""
        on_host = not any(self._events.get(role.name) for role in (Role.STREAM, Role.OPS))
        spans, self._spans = self._spans, []
        outside = self._leave_out_strays()
        return Planes(
            texts=self.texts.values,
            labels=tuple(Label(*row) for row in self._labels.values),
            streams=self._taken(Role.STREAM.name),
            ops=self._taken(_HOST_OPS if on_host else Role.OPS.name),
            transfers=self._taken(Role.ASYNC.name),
            modules=self._taken(Role.MODULES.name),
            steps=self._taken(Role.STEPS.name, _HOST_STEPS),
            launches=self._taken(_LAUNCHES),
            spans=joined([_no_spans(), *spans]),
            lines=tuple(self._lines),
            devices=tuple(sorted(self._devices.items())),
            accelerator=self._accelerator,
            on_host=on_host,
            impossible=self._impossible,
            outside=outside,
            strange_devices=self._strange_devices,
        )

    def _leave_out_strays(self) -> int:
        """Leave out what lies far outside the capture of all devices; return how much that is."""
        pieces = [piece for table in self._events.values() for piece in table]
        if not pieces:
            return 0
        start_ns, end_ns = (
            np.concatenate([getattr(piece, column) for piece in pieces])
            for column in ("start_ns", "end_ns")
        )
        bounds_ns = capture_bounds(start_ns, end_ns)
        if bounds_ns is None:
            return 0
        for key, table in self._events.items():
            strays = [beyond(piece.start_ns, piece.end_ns, bounds_ns) for piece in table]
            self._events[key] = [p.take(~stray) for p, stray in zip(table, strays, strict=True)]
        return int(beyond(start_ns, end_ns, bounds_ns).sum())

    def _taken(self, *keys: str) -> PlaneEvents:
        pieces = [piece for key in keys for piece in self._events.pop(key, [])]
        return joined([_no_events(), *pieces])


def _whole_numbers(codes: Ints, texts: Sequence[str]) -> Ints:
    """Return texts as the numbers that they spell; -1 for those that spell none."""
    distinct, of_row = np.unique(codes, return_inverse=True)
    numbers = [
        int(text) if _NUMBER.match(text) else NONE for text in map(texts.__getitem__, distinct)
    ]
    return np.array(numbers, np.int64)[of_row.reshape(-1)]


def _narrow(codes: Ints) -> Codes:
    """Return identifiers in as few bits as they need: a column of -1 alone takes a byte a row."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return codes.astype(np.min_scalar_type(min(low, -1 - high)))


def _no_events() -> PlaneEvents:
    time_ns, code = np.empty(0, np.int64), np.empty(0, np.int8)
    return PlaneEvents(time_ns, time_ns, *[code] * 7)


def _no_spans() -> HostSpans:
    time_ns, code = np.empty(0, np.int64), np.empty(0, np.int8)
    return HostSpans(time_ns, time_ns, code, code)
