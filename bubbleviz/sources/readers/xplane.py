"""XPlane: the ``*.xplane.pb`` that JAX, TensorBoard and TensorFlow write (XLA's profiler).

It is protobuf, read a piece at a time; see :mod:`bubbleviz.sources.xla.xspace`. Times are whole
nanoseconds: start and end of an event are cut from picoseconds, each for itself, so that what
follows without a gap still does.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import found_in
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import Contents, Profile, Source
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import GZIP
from bubbleviz.sources.readers import Reader
from bubbleviz.sources.xla.planes import (
    FACTS,
    FOLDER,
    Collector,
    Events,
    Role,
    Texts,
    device_of,
    path_of,
    roles_of,
)
from bubbleviz.sources.xla.profile import Held, held
from bubbleviz.sources.xla.wire import MalformedError, Walk
from bubbleviz.sources.xla.xspace import Kind, Line, Plane, RawEvents, Stat, events_of, planes_of
from bubbleviz.timing import step

#: What a statistic of an event tells, by its name. Names of instructions are ``name`` on GPUs
#: (newer) and ``tf_op`` on TPUs and before.
_STATS = {
    "hlo_op": "op",
    "name": "path",
    "tf_op": "path",
    "hlo_module": "module",
    "program_id": "program",
    "run_id": "run",
    "correlation_id": "correlation",
    "device_ordinal": "device",
    "step_num": "step",
}
_TEXTS = frozenset(("op", "path", "module"))
#: Timestamps from here on (1973) are UTC, others count from the profile's start.
_UTC_NS = 10**17
_AGAIN = "copy it again, or record again with jax.profiler.trace"


@dataclass
class _Trace:
    """A file that is being read.

    Attributes:
        walk: the file.
        base_ns: UTC of the profile's time 0; 0 where timestamps count from there already.
        into: takes the events.
    """

    walk: Walk
    base_ns: int
    into: Collector

    def add(self, plane: Plane) -> None:
        """Take the events of a plane."""
        device = device_of(plane.name)
        if device is not None:
            self.into.device(device, _device_name(plane.stats))
        facts = {number: name for number, name in plane.stat_names.items() if name in _STATS}
        texts = _Numbered.of(plane.stat_names, self.into.texts)
        roles = roles_of(plane.name, [line.name for line in plane.lines])
        used = set(roles) - {Role.NOTHING}
        of_role = {role: _kinds(plane.kinds, role, self.into.texts) for role in used}
        for line, role in zip(plane.lines, roles, strict=True):
            if role is Role.NOTHING:
                continue
            kinds = of_role[role]
            row = self.into.line(line.number, line.name) if role is Role.HOST else NONE
            for raw in events_of(self.walk, line, tuple(facts)):
                events = self._events(line, raw, kinds, facts, texts)
                self.into.add(role, plane.name, row, events)

    def _events(
        self,
        line: Line,
        raw: RawEvents,
        kinds: _Kinds,
        facts: Mapping[int, str],
        texts: _Numbered,
    ) -> Events:
        began_ns = line.timestamp_ns - (self.base_ns if line.timestamp_ns > _UTC_NS else 0)
        at = kinds.rows(raw.kind)
        columns = {name: kinds.facts[name][at] for name in FACTS}
        # What tells a path better comes last.
        for number, name in sorted(facts.items(), key=lambda item: item[1] == "name"):
            rows = np.flatnonzero(raw.stat == number)
            what = _STATS[name]
            if what in _TEXTS:
                said = self._said(raw, rows, name, texts)
                rows, said = rows[said != NONE], said[said != NONE]
                columns[what][raw.row[rows]] = said
            else:
                columns[what][raw.row[rows]] = raw.number[rows]
        return Events(
            start_ns=began_ns + raw.offset_ps // 1000,
            end_ns=began_ns + (raw.offset_ps + raw.duration_ps) // 1000,
            name=kinds.name[at],
            **columns,
        )

    def _said(self, raw: RawEvents, rows: Ints, name: str, texts: _Numbered) -> Ints:
        """Return the texts that some statistics say; -1 none."""
        said = texts.rows(raw.ref[rows], name)
        for at in np.flatnonzero(raw.ref[rows] == NONE).tolist() if raw.texts else ():
            text = raw.texts.get(int(rows[at]), "")
            text = path_of(text) if name == "tf_op" else text
            said[at] = self.into.texts.of(text) if text else NONE
        return said


@dataclass(frozen=True)
class _Numbered:
    """Texts that statistics refer to by number; ``paths`` are those that say a path."""

    numbers: Ints
    texts: Ints
    paths: Ints

    @staticmethod
    def of(names: Mapping[int, str], texts: Texts) -> _Numbered:
        """Return the texts of a plane."""
        numbers = np.array(sorted(names), np.int64)
        plain = [names[number] for number in numbers.tolist()]
        paths = [path_of(text) for text in plain]
        return _Numbered(
            numbers,
            np.array([texts.of(text) for text in plain], np.int64),
            np.array([texts.of(text) if text else NONE for text in paths], np.int64),
        )

    def rows(self, refs: Ints, name: str) -> Ints:
        """Return the text of each number, as a statistic of that name means it; -1 unknown."""
        texts = self.paths if name == "tf_op" else self.texts
        return np.append(texts, NONE)[found_in(self.numbers, refs)]


@dataclass(frozen=True)
class _Kinds:
    """Kinds of events as columns; the last row is of unknown kinds.

    Attributes:
        numbers: number of each kind, ascending.
        name: text.
        facts: what events of the kind say where they say nothing themselves.
    """

    numbers: Ints
    name: Ints
    facts: Mapping[str, Ints]

    def rows(self, kind: Ints) -> Ints:
        """Return the row of each number of a kind."""
        at = found_in(self.numbers, kind)
        return np.where(at == NONE, len(self.numbers), at)


def _kinds(kinds: Mapping[int, Kind], role: Role, texts: Texts) -> _Kinds:
    """Return the kinds of a plane's events, as a line of some role means them."""
    numbers = sorted(kinds)
    name = np.full(len(numbers) + 1, texts.of(""), np.int64)
    facts = {what: np.full(len(numbers) + 1, NONE, np.int64) for what in FACTS}
    for row, number in enumerate(numbers):
        kind = kinds[number]
        for stat in kind.stats:
            if stat.name in _STATS:
                what = _STATS[stat.name]
                text = path_of(stat.text) if stat.name == "tf_op" else stat.text
                if what not in _TEXTS:
                    facts[what][row] = stat.number
                elif text:
                    facts[what][row] = texts.of(text)
        plain = kind.name
        if role in (Role.OPS, Role.ASYNC):
            plain = kind.display_name or _instruction(kind.name)
        name[row] = texts.of(plain)
    return _Kinds(np.array(numbers, np.int64), name, facts)


def _instruction(text: str) -> str:
    """Return the name in an instruction's text, ``%fusion.3 = f32[8] fusion(...)``."""
    return text.partition(" = ")[0].removeprefix("%")


def _device_name(stats: Sequence[Stat]) -> str:
    """Return what a device's plane says it is; nothing else of it is ever told."""
    said = {stat.name: stat.text for stat in stats}
    return said.get("device_type_string", "") or said.get("device_vendor", "")


@dataclass
class XplaneFile:
    """An open file; see :class:`~bubbleviz.sources.readers.OpenFile`. It is decoded once."""

    path: str
    walk: Walk
    watch: Watch
    _held: Held | None = None

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often such names occur among the ranges."""
        return self._all().sample(globs)

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile; whatever it lacks but work is never missed.

        Raises:
            ProfileError: it cannot be read; NothingToAnalyseError: it holds no device's work.
        """
        del partial
        return self._all().profile(globs)

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return what the file holds, ranges of these names among it."""
        return self._all().contents(globs)

    def _all(self) -> Held:
        if self._held is None:
            with step("read planes") as rows:
                self._held = self._read()
                rows.count = self._held.events
        return self._held

    def _read(self) -> Held:
        into = Collector()
        try:
            planes, hosts = planes_of(self.walk)
            base_ns, utc_ns = _clock(planes)
            trace = _Trace(self.walk, base_ns, into)
            for number, plane in enumerate(planes):
                trace.add(plane)
                self.watch((number + 1) / len(planes))
        except MalformedError as error:
            raise ProfileError(
                f"{self.path}: damaged, or no profile of XLA ({error}); {_AGAIN}"
            ) from error
        source = Source(
            path=self.path,
            host=hosts[0] if hosts and hosts[0] else Path(self.path).name,
            host_known=bool(hosts and hosts[0]),
            format="xplane",
            nsys_version=None,
            schema_version=None,
            session_utc_ns=utc_ns,
            session_clock_ns=None,
        )
        return held(source, into.done(), _process(planes), self._limitations(utc_ns))

    def _limitations(self, utc_ns: int | None) -> tuple[Limitation, ...]:
        told = []
        if self.walk.cut:
            reason = f"{self.path}: the file ends within an event or a name; {_AGAIN}"
            told.append(Limitation("events behind the end of a file that was cut short", reason))
        if utc_ns is None:
            reason = f"{self.path} tells no UTC of its time 0"
            told.append(
                Limitation("the start of the session, which puts profiles on one clock", reason)
            )
        return tuple(told)


def _clock(planes: Sequence[Plane]) -> tuple[int, int | None]:
    """Return what timestamps in UTC count from, and UTC of the profile's time 0; None unknown."""
    stats = [stat for plane in planes if plane.name == "Task Environment" for stat in plane.stats]
    told = [s.number for s in stats if s.name == "profile_start_time" and s.number > _UTC_NS]
    stamps = [line.timestamp_ns for plane in planes for line in plane.lines]
    in_utc = [stamp for stamp in stamps if stamp > _UTC_NS]
    if told:
        return told[0], told[0]
    return (min(in_utc), min(in_utc)) if in_utc else (0, None)


def _process(planes: Sequence[Plane]) -> int:
    """Return the process that was profiled; 0 unknown."""
    told = [s.number for plane in planes for s in plane.stats if s.name == "process_id"]
    return told[0] if told else 0


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[XplaneFile]:
    """Open a file; it is read by one thread.

    Raises:
        ProfileError: it cannot be opened.
    """
    del jobs
    try:
        with Path(path).open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
    with content:
        if content[:2] == GZIP:
            raise ProfileError(
                f"{path}: is gzipped, and planes are read in place; unpack it with gunzip"
            )
        yield XplaneFile(path, Walk(content), watch)


def _recognises(head: bytes) -> bool:
    """Tell whether a file begins with a plane that has a number or a name such as planes have."""
    walk = Walk(head, cut=True)
    try:
        first = next(walk.fields(0, len(head)), None)
        if first is None or first.number != 1:
            return False
        for told in walk.fields(first.begin, first.end):
            if told.number == 2:
                return walk.text(told).startswith(("/host:", "/device:", "Task Environment"))
            if told.number != 1:
                return False
    except MalformedError:
        return False
    return False


READER = Reader(
    name="xplane",
    suffixes=(".xplane.pb",),
    recognises=_recognises,
    open_file=open_file,
    folder=FOLDER,
)
