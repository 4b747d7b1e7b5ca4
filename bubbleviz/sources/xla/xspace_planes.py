"""Planes of an XSpace (``*.xplane.pb``), collected.

Times are whole nanoseconds: start and end of an event are each rounded down from picoseconds, so
that an event that follows another without a gap still does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import Numbering, found_in
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Source
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import GZIP
from bubbleviz.sources.xla.file_content import FileContent, ShortenedError
from bubbleviz.sources.xla.names import Role, device_of, instruction_of, path_of, roles_of
from bubbleviz.sources.xla.planes import STAT_COLUMNS, LineEvents
from bubbleviz.sources.xla.profile import PlaneCollector, XlaFile, XlaProfile, profile_of
from bubbleviz.sources.xla.wire import MalformedError, Walk
from bubbleviz.sources.xla.xspace import (
    EventMetadata,
    Line,
    Plane,
    RawEvents,
    Stat,
    events_of,
    planes_of,
)

#: The column that a statistic of an event fills, by its name. Paths of instructions are ``name`` on
#: GPUs (newer) and ``tf_op`` on TPUs and before.
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


@frozen
class SessionClock:
    """The clock of a profile.

    Attributes:
        base_ns: zero of the times, on the clock of timestamps that are UTC.
        utc_ns: UTC of the profile's time 0; None unknown.
    """

    base_ns: int
    utc_ns: int | None


def session_clock(planes: Sequence[Plane]) -> SessionClock:
    """Return the clock of a profile's planes."""
    stats = [stat for plane in planes if plane.name == "Task Environment" for stat in plane.stats]
    starts = [s.number for s in stats if s.name == "profile_start_time" and s.number > _UTC_NS]
    if starts:
        return SessionClock(starts[0], starts[0])
    stamps = [line.timestamp_ns for plane in planes for line in plane.lines]
    first = min((stamp for stamp in stamps if stamp > _UTC_NS), default=None)
    return SessionClock(first or 0, first)


def profiled_process(planes: Sequence[Plane]) -> int:
    """Return the process that was profiled; 0 unknown."""
    stats = (stat for plane in planes for stat in plane.stats)
    return next((stat.number for stat in stats if stat.name == "process_id"), 0)


def collect(walk: Walk, plane: Plane, base_ns: int, collector: PlaneCollector) -> None:
    """Add the events of a plane to a collector.

    Raises:
        MalformedError: an event cannot be decoded.
    """
    device = device_of(plane.name)
    if device is not None:
        collector.add_device(plane.name, device, _device_name(plane.stats))
    stats = {n: name for n, name in plane.stat_names.items() if name in _STATS}
    # Of a path's two statistics the better one comes last.
    ordered = dict(sorted(stats.items(), key=lambda stat: stat[1] == "name"))
    texts = _StatTexts.of(plane.stat_names, collector.texts)
    roles = roles_of(plane.name, [line.name for line in plane.lines])
    metadata = {
        role: _MetadataColumns.of(plane.event_metadata, role, collector.texts)
        for role in dict.fromkeys(roles)
        if role is not Role.NOTHING
    }
    for line, role in zip(plane.lines, roles, strict=True):
        if role is Role.NOTHING:
            continue
        row = collector.add_line(line.number, line.name) if role is Role.HOST else NONE
        for raw in events_of(walk, line, tuple(stats)):
            events = _line_events(line, raw, metadata[role], ordered, texts, base_ns)
            collector.add(role, plane.name, row, events)


def _device_name(stats: Sequence[Stat]) -> str:
    """Return the type of a device, or its vendor: no other statistic describes it."""
    texts = {stat.name: stat.text for stat in stats}
    return texts.get("device_type_string", "") or texts.get("device_vendor", "")


def _line_events(
    line: Line,
    raw: RawEvents,
    metadata: _MetadataColumns,
    stats: Mapping[int, str],
    texts: _StatTexts,
    base_ns: int,
) -> LineEvents:
    """Return events of a line; what they lack is that of their metadata."""
    begin_ns = line.timestamp_ns - (base_ns if line.timestamp_ns > _UTC_NS else 0)
    at = metadata.rows(raw.metadata)
    columns = {column: metadata.stats[column][at] for column in STAT_COLUMNS}
    for number, name in stats.items():
        rows = np.flatnonzero(raw.stat == number)
        column = columns[_STATS[name]]
        if _STATS[name] in _TEXTS:
            text = texts.texts_of(raw, rows, name)
            known = text != NONE
            column[raw.row[rows[known]]] = text[known]
        else:
            column[raw.row[rows]] = raw.number[rows]
    return LineEvents(
        start_ns=begin_ns + raw.offset_ps // 1000,
        end_ns=begin_ns + (raw.offset_ps + raw.duration_ps) // 1000,
        name=metadata.name[at],
        **columns,
    )


@frozen
class _StatTexts:
    """Texts that statistics of a plane refer to by number.

    Attributes:
        numbers: of the statistics whose names are the texts, ascending.
        texts: number of each text; -1 for none.
        paths: number of the path in each, as ``tf_op``; -1 for none.
        numbering: of the profile's texts.
    """

    numbers: Ints
    texts: Ints
    paths: Ints
    numbering: Numbering[str]

    @staticmethod
    def of(names: Mapping[int, str], numbering: Numbering[str]) -> _StatTexts:
        """Return the texts of a plane; their numbering is extended."""
        numbers = np.array(sorted(names), np.int64)
        texts = [names[number] for number in numbers.tolist()]
        paths = [path_of(text) for text in texts]
        return _StatTexts(
            numbers,
            np.append(numbering.numbers(texts), NONE),
            np.array([*(numbering.number(p) if p else NONE for p in paths), NONE], np.int64),
            numbering,
        )

    def texts_of(self, raw: RawEvents, rows: Ints, name: str) -> Ints:
        """Return the texts of some statistics of a name, by number; -1 none."""
        is_path = name == "tf_op"
        texts = (self.paths if is_path else self.texts)[found_in(self.numbers, raw.ref[rows])]
        for at in np.flatnonzero(raw.ref[rows] == NONE).tolist() if raw.texts else ():
            text = raw.texts.get(int(rows[at]), "")
            text = path_of(text) if is_path else text
            texts[at] = self.numbering.number(text) if text else NONE
        return texts


@frozen
class _MetadataColumns:
    """Metadata of events as columns; the last row is that of unknown metadata.

    Attributes:
        numbers: number of each, ascending.
        name: text.
        stats: columns that the statistics of events fill where they have their own.
    """

    numbers: Ints
    name: Ints
    stats: Mapping[str, Ints]

    @staticmethod
    def of(
        metadata: Mapping[int, EventMetadata], role: Role, texts: Numbering[str]
    ) -> _MetadataColumns:
        """Return the metadata of a plane's events, for the lines of some role."""
        numbers = sorted(metadata)
        name = np.full(len(numbers) + 1, texts.number(""), np.int64)
        stats = {column: np.full(len(numbers) + 1, NONE, np.int64) for column in STAT_COLUMNS}
        for row, number in enumerate(numbers):
            entry = metadata[number]
            for stat in entry.stats:
                column = _STATS.get(stat.name)
                text = path_of(stat.text) if stat.name == "tf_op" else stat.text
                if column in _TEXTS and text:
                    stats[column][row] = texts.number(text)
                elif column is not None and column not in _TEXTS:
                    stats[column][row] = stat.number
            instruction = role in (Role.OPS, Role.ASYNC)
            plain = entry.display_name or instruction_of(entry.name) if instruction else entry.name
            name[row] = texts.number(plain)
        return _MetadataColumns(np.array(numbers, np.int64), name, stats)

    def rows(self, numbers: Ints) -> Ints:
        """Return the row of each number."""
        at = found_in(self.numbers, numbers)
        return np.where(at == NONE, len(self.numbers), at)


# An open xplane file of XLA's profiler.


_AGAIN = "copy it again, or record again with jax.profiler.trace"


def _load(path: str, walk: Walk, watch: Watch) -> XlaProfile:
    """Read a file.

    Raises:
        ProfileError: it cannot be decoded.
    """
    collector = PlaneCollector()
    try:
        planes, hosts = planes_of(walk)
        clock = session_clock(planes)
        for number, plane in enumerate(planes):
            collect(walk, plane, clock.base_ns, collector)
            watch((number + 1) / len(planes))
    except ShortenedError as error:
        raise ProfileError(f"{path}: {error}; wait until it is written, and run again") from error
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from error
    except MalformedError as error:
        raise ProfileError(
            f"{path}: damaged, or not a profile of XLA ({error}); {_AGAIN}"
        ) from error
    host = hosts[0] if hosts else ""
    source = Source(
        path=path,
        host=host or Path(path).name,
        host_known=bool(host),
        format="xplane",
        nsys_version=None,
        schema_version=None,
        session_utc_ns=clock.utc_ns,
        session_clock_ns=None,
    )
    limitations = tuple(_limitations(path, cut=walk.cut, timed=clock.utc_ns is not None))
    process = profiled_process(planes)
    return profile_of(source, collector.planes(), process, limitations, cut=walk.cut)


def _limitations(path: str, *, cut: bool, timed: bool) -> Iterator[Limitation]:
    if cut:
        reason = f"{path}: the file ends within an event or a name; {_AGAIN}"
        yield Limitation("the end of the profile", reason)
    if not timed:
        reason = f"{path}: the UTC of its time 0 was not recorded"
        yield Limitation("the start of the session, which aligns profiles", reason)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[XlaFile]:
    """Open a file; it is read by one thread.

    Raises:
        ProfileError: it cannot be opened.
    """
    del jobs
    try:
        file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed below, as its errors differ
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
    with file:
        content = FileContent(file)
        if content[:2] == GZIP:
            raise ProfileError(f"{path}: gzipped xplane files cannot be read; unpack it (gunzip)")
        yield XlaFile(partial(_load, path, Walk(content), watch))
