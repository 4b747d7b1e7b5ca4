"""A profile made of XLA's planes, in memory; its ranges are asked by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.conventions.globs import fitting
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.columns import Bools, Ints, joined
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import (
    DEVICE_THREAD,
    PID_MASK,
    WITHOUT_DEVICE,
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
)
from bubbleviz.sources.in_memory import InMemoryRanges, thread_numbers
from bubbleviz.sources.xla.device_work import Names, Placed, Work, devices_of, ranges_of, work_of
from bubbleviz.sources.xla.planes import Planes, Spans

#: Lines of devices are threads of their own, by numbers that no thread has.
_DEVICE_THREAD = 1 << 40
#: What the line of a thread is called in which Python runs.
_PYTHON = "python"
NO_LAUNCHES = "launches"
_RECORD_AGAIN = "record again with jax.profiler.trace around whole steps"


@dataclass(frozen=True)
class EveryRange:
    """A :class:`~bubbleviz.model.profile.RangeLog` of a profile of XLA.

    Attributes:
        named: ranges of instructions, modules and steps.
        did: what threads of the host did.
        thread: of each line of these.
    """

    named: Ranges
    did: Spans
    thread: Ints

    def lasting(self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints) -> Ranges:
        """Return the ranges of some threads that last so long, and touch any of some times."""
        lines = np.flatnonzero(np.isin(self.thread, threads))
        long = self.did.end_ns - self.did.start_ns >= shortest_ns
        did = self.of(long & np.isin(self.did.line, lines))
        asked = (shortest_ns, threads, since_ns, until_ns)
        return joined([InMemoryRanges(some).lasting(*asked) for some in (self.named, did)])

    def of(self, rows: Bools) -> Ranges:
        """Return some of what threads of the host did as ranges."""
        some = self.did.take(rows)
        thread, name_id = self.thread[some.line], some.name.astype(np.int64)
        found = ranges_of(some.start_ns, some.end_ns, thread, name_id)
        return replace(found, names=self.named.names)


@dataclass(frozen=True)
class Held:
    """A profile in memory, of which ranges are asked by name.

    Attributes:
        source: where it came from.
        work: what ran.
        ranges: all ranges.
        threads: named threads.
        devices: that have a plane.
        steps: how many steps are told.
        limitations: what is not known.
    """

    source: Source
    work: Work
    ranges: EveryRange
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    steps: int
    limitations: tuple[Limitation, ...]

    @property
    def events(self) -> int:
        """How many rows it holds."""
        return len(self.work.activities) + len(self.ranges.named) + len(self.ranges.did)

    @cached_property
    def _counts(self) -> Ints:
        ranges, count = self.ranges, len(self.ranges.named.names)
        named: Ints = np.bincount(ranges.named.name_id, minlength=count)
        return named + np.bincount(ranges.did.name, minlength=count)

    def _through(self, globs: Sequence[str]) -> Bools:
        """Tell which names some patterns let through."""
        names = self.ranges.named.names
        return np.array(fitting(globs, names), bool)

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often such names occur."""
        rows = np.flatnonzero(self._through(globs) & (self._counts > 0)).tolist()
        return {self.ranges.named.names[row]: int(self._counts[row]) for row in rows}

    def profile(self, globs: Sequence[str]) -> Profile:
        """Return the profile with the ranges of such names.

        Raises:
            NothingToAnalyseError: nothing ran on a device.
        """
        if self.work.activities.kernels == 0:
            if any("cut short" in note.what for note in self.limitations):
                raise NothingToAnalyseError(
                    f"{self.source.path}: was cut short, and holds nothing whole that a device "
                    "did; copy it again"
                )
            raise NothingToAnalyseError(
                f"{self.source.path}: no kernel and no instruction of a device was recorded; "
                f"{_RECORD_AGAIN}"
            )
        return Profile(
            source=self.source,
            activities=self.work.activities,
            calls=self.work.calls,
            ranges=self._ranges(globs),
            every_range=self.ranges,
            overheads=Overheads(*(np.empty(0, np.int64) for _ in range(3))),
            threads=self.threads,
            devices=self.devices,
            limitations=self.limitations,
            launches_known=self.work.launched,
        )

    def _ranges(self, globs: Sequence[str]) -> Ranges:
        """Return the ranges of names that some patterns let through."""
        through, named = self._through(globs), self.ranges.named
        kept, did = through[named.name_id], through[self.ranges.did.name]
        # Most often it is all of these, and none of those.
        some = named if kept.all() else named.take(kept)
        return joined([some, self.ranges.of(did)]) if did.any() else some

    def contents(self, globs: Sequence[str]) -> Contents:
        """Return what it holds, ranges of these names among it."""
        activities = self.work.activities
        kept = self.sample(globs)
        copied = len(activities) - activities.kernels
        counted = (
            ("kernels and instructions", activities.kernels),
            ("copies and fills", copied),
            ("launches", len(self.work.calls.calls) if self.work.launched else None),
            ("instructions and modules named", self.work.instructions),
            ("steps", self.steps),
            ("what the host did", len(self.ranges.did)),
        )
        works = activities.kernels > 0
        return Contents(
            source=self.source,
            tables=tuple(TableCount(what, self.source.format, rows) for what, rows in counted),
            processes=tuple(sorted(set(activities.ranks[:, 0].tolist()))),
            devices=self.devices,
            candidates=tuple(NameCount(*pair) for pair in kept.items()),
            ranges=len(self.ranges.named) + len(self.ranges.did),
            missing=() if works else (f"nothing ran on a device: {_RECORD_AGAIN}",),
            readable=works,
        )


def held(
    source: Source, planes: Planes, process: int, limitations: tuple[Limitation, ...] = ()
) -> Held:
    """Return the profile that planes make.

    Args:
        source: where they came from.
        planes: all that was recorded.
        process: that was profiled; 0 unknown.
        limitations: of the file.
    """
    process &= PID_MASK
    numbers = _line_numbers(planes, process)
    present = devices_of(planes)
    tids = np.concatenate((numbers, _DEVICE_THREAD + present))
    thread = thread_numbers(np.full(len(tids), process, np.int64), tids)
    host, device = thread[: len(numbers)], thread[len(numbers) :]
    texts = Names(planes.texts)
    placed = Placed(
        planes, process, host, dict(zip(present.tolist(), device.tolist(), strict=True))
    )
    work = work_of(placed, texts)
    named = replace(work.named, names=texts.all())
    work = replace(work, named=named)
    lines = (line.name for line in planes.lines)
    threads = [Thread(*pair) for pair in zip(host.tolist(), lines, strict=True)]
    own = [Thread(t, f"{DEVICE_THREAD} {d}") for d, t in placed.device_thread.items()]
    notes = [*limitations, *_notes(source.path, planes, work)]
    return Held(
        source=source,
        work=work,
        ranges=EveryRange(named, planes.spans, host),
        threads=tuple(dict.fromkeys((*threads, *(() if work.launched else own)))),
        devices=tuple(Device(None, number, name, None) for number, name in planes.devices),
        steps=len(planes.steps),
        limitations=tuple(notes),
    )


def _line_numbers(planes: Planes, process: int) -> Ints:
    """Return the numbers of threads of lines; the first Python thread is the process's main one.

    XLA numbers threads by the address of something, where the system gives the main one the number
    of its process.
    """
    numbers = np.array([line.number for line in planes.lines], np.int64)
    python = [at for at, line in enumerate(planes.lines) if line.name == _PYTHON]
    if python and process not in numbers:
        numbers[python[0]] = process
    return numbers


def _notes(path: str, planes: Planes, work: Work) -> list[Limitation]:
    notes = list(impossible_times(path, {"events": planes.impossible}))
    if planes.on_host and work.activities.kernels:
        notes.append(
            Limitation(
                WITHOUT_DEVICE,
                f"{path} has no plane of one: it ran on CPUs, and instructions on the host's "
                "threads stand for kernels; there they do not say whether they are forward or "
                "backward, so that gaps and pgle tell more of them than analyze",
            )
        )
    if not work.launched and work.activities.kernels:
        notes.append(
            Limitation(
                NO_LAUNCHES,
                f"{path} tells none: no bubble is put down to the host, and host times are "
                "those of the device",
            )
        )
    return notes
