"""XSpace: the protobuf file of XLA's profiler (``*.xplane.pb``), read a plane at a time.

protobuf's own parser divides planes and lines, in which events stay bytes: it would make millions
of objects of them. The k-th fields of many events are decoded at once instead::

    events      08 05 10 AC 02     08 07 18 01     08 05 10 7F
    at once     ^^^^^              ^^^^^           ^^^^^            the first fields
                      ^^^^^^^^           ^^^^^           ^^^^^      the second ones

Messages and numbers of fields are those of ``tsl/profiler/protobuf/xplane.proto`` (openxla/xla),
encoded as https://protobuf.dev/programming-guides/encoding/ says: a field is a tag (number << 3 |
kind) and a value of that kind. Times are whole nanoseconds: start and end of
an event are each rounded down from picoseconds, so that an event that follows another without a gap
still does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_positions
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import PID_MASK, Source, validate_utc
from bubbleviz.progress import Watch
from bubbleviz.sources.gzip_files import GZIP
from bubbleviz.sources.in_memory import Decoded
from bubbleviz.sources.xla import planes as xla
from bubbleviz.sources.xla.planes import Planes
from bubbleviz.sources.xla.profile import join_processes, process_number, profile_of

#: Messages: number, name and kind of each field; ``*`` is repeated. Texts may be no UTF-8.
_MESSAGES = {
    "Space": "1 planes bytes*, 4 hostnames bytes*",
    "Plane": "2 name bytes, 3 lines Line*, 4 event_metadata bytes*, 5 stat_metadata bytes*, "
    "6 stats Stat*",
    "Line": "1 id int64, 2 name bytes, 3 timestamp_ns int64, 4 events bytes*, "
    "11 display_name bytes",
    "EventEntry": "1 key int64, 2 value EventMetadata",
    "EventMetadata": "2 name bytes, 4 display_name bytes, 5 stats Stat*",
    "StatEntry": "1 key int64, 2 value StatMetadata",
    "StatMetadata": "2 name bytes",
    "Stat": "1 name int64, 3 unsigned int64, 4 signed int64, 5 text bytes, 7 ref int64",
}
#: Fields of events and of their statistics.
_EVENT_METADATA, _EVENT_OFFSET_PS, _EVENT_DURATION_PS, _EVENT_STATS = 1, 2, 3, 4
_STAT_NAME, _STAT_UNSIGNED, _STAT_SIGNED, _STAT_TEXT, _STAT_REF = 1, 3, 4, 5, 7
#: Kinds of fields: a number, a length and so many bytes, and those of fixed length.
_NUMBER, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
#: Tag of the field of a space that contains a plane.
_PLANES_TAG = 1 << 3 | _LENGTH
#: Bytes of a number of 64 bits, at most.
_LONGEST = 10
#: Events that are decoded at a time.
_PIECE = 1 << 16

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
    "memcpy_details": "copy",
}
_TEXTS = frozenset(("op", "path", "module", "copy"))
#: Timestamps from here on (1973) are UTC, others count from the profile's start.
_UTC_NS = 10**17
_AGAIN = "copy it again, or record again with jax.profiler.trace"

#: Row of each of some fields, and where their contents begin and end.
Places = tuple[Ints, Ints, Ints]


class MalformedError(ValueError):
    """The bytes are not a message."""


def message_types(package: str, **messages: str) -> Mapping[str, Any]:
    """Return protobuf's classes of some messages, by their names.

    Args:
        package: a name of their own.
        messages: number, name and kind of each field; see ``_MESSAGES``.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    proto = descriptor_pb2.FieldDescriptorProto
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for number, name, kind in (field.split() for field in fields.split(", ")):
            own = described.field.add(name=name, number=int(number))
            own.label = proto.LABEL_REPEATED if kind.endswith("*") else proto.LABEL_OPTIONAL
            if (kind := kind.rstrip("*")) in messages:
                own.type, own.type_name = proto.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                own.type = getattr(proto, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def parsed(kind: Any, content: bytes) -> Any:
    """Return bytes as a message of a class.

    Raises:
        MalformedError: they are none.
    """
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise MalformedError(f"a {kind.DESCRIPTOR.name} cannot be decoded") from error


@cache
def _types() -> Mapping[str, Any]:
    """Return the classes of the file's messages."""
    return message_types("xspace", **_MESSAGES)


def text_of(content: bytes) -> str:
    """Return bytes as a text; those that are not UTF-8 are replaced."""
    return content.decode("utf-8", errors="replace")


def decoded(
    data: npt.NDArray[np.uint8],
    begin: Ints,
    end: Ints,
    numbers: Sequence[int],
    inner: Sequence[int],
) -> tuple[Mapping[int, Ints], Mapping[int, Places]]:
    """Return the values of some fields of each of many small messages.

    Args:
        data: bytes, shape (bytes,).
        begin: where each message begins, shape (messages,).
        end: where each ends.
        numbers: fields that are numbers; 0 where a message lacks it, its last where it has several.
        inner: fields that are messages or texts.

    Returns:
        By field the numbers, shape (messages,); and by field the message that each inner one is in,
        and where that begins and ends.

    Raises:
        MalformedError: a field is malformed, or does not end within its message.
    """
    values = {number: np.zeros(len(begin), np.int64) for number in numbers}
    none = np.empty(0, np.int64)
    places: dict[int, list[Places]] = {number: [(none, none, none)] for number in inner}
    rows, at = np.arange(len(begin)), begin
    while True:
        going = at < end
        if not going.all():
            rows, at, end = rows[going], at[going], end[going]
        if len(rows) == 0:
            break
        tag, first = _numbers_at(data, at, end)
        kind = tag & 7
        value, at = np.zeros(len(rows), np.int64), first.copy()
        for fixed, length in _FIXED.items():
            at[kind == fixed] += length
        plain = (kind == _NUMBER) | (kind == _LENGTH)
        value[plain], at[plain] = _numbers_at(data, first[plain], end[plain])
        long = kind == _LENGTH
        first = np.where(long, at, first)
        # An impossible length must not wrap around.
        fits = (value >= 0) & (value <= end - first)
        at = np.where(long, first + np.where(fits, value, 0), at)
        known: Bools = np.isin(kind, (_NUMBER, _LENGTH, *_FIXED)) & (tag >> 3 != 0)
        if not (known & (fits | ~long) & (at <= end)).all():
            raise MalformedError("an event or a statistic of one cannot be decoded")
        for number, column in values.items():
            hit = tag == (number << 3 | _NUMBER)
            column[rows[hit]] = value[hit]
        for number, of_number in places.items():
            hit = tag == (number << 3 | _LENGTH)
            if hit.any():
                of_number.append((rows[hit], first[hit], at[hit]))
    joined = {n: [np.concatenate(c) for c in zip(*p, strict=True)] for n, p in places.items()}
    return values, {number: (c[0], c[1], c[2]) for number, c in joined.items()}


def _numbers_at(data: npt.NDArray[np.uint8], at: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the numbers at some places, and the places behind them."""
    at, rows = at.copy(), np.arange(len(at))
    value = np.zeros(len(at), np.uint64)
    for place in range(_LONGEST):
        if (at[rows] >= end[rows]).any():
            break
        byte = data[at[rows]]
        value[rows] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
        at[rows] += 1
        rows = rows[byte >= 1 << 7]
        if len(rows) == 0:
            return value.view(np.int64), at
    raise MalformedError("a number of an event has no end")


def stat_names(plane: Any) -> Mapping[int, str]:
    """Return the names of statistics, and texts that statistics refer to, by number."""
    entries = (parsed(_types()["StatEntry"], entry) for entry in plane.stat_metadata)
    return {e.key: text_of(e.value.name) for e in entries if e.HasField("value")}


class PlaneReader:
    """Adds the events of one plane to others; what they lack is that of their metadata.

    Args:
        plane: as it was read.
        base_ns: zero of the times, on the clock of timestamps that are UTC.
        start_ns: Time 0 of the timestamps that are not UTC.
        planes: takes them.

    Raises:
        MalformedError: an entry cannot be decoded.
    """

    def __init__(self, plane: Any, base_ns: int, start_ns: int, planes: Planes) -> None:
        self._base_ns, self._start_ns = base_ns, start_ns
        self._planes, self.name = planes, text_of(plane.name)
        #: Names of statistics, and texts that statistics refer to, by number.
        self._stat_names = names = stat_names(plane)
        entries = (parsed(_types()["EventEntry"], entry) for entry in plane.event_metadata)
        events = {entry.key: entry.value for entry in entries if entry.HasField("value")}
        self._metadata = [events[number] for number in sorted(events)]
        self._numbers = np.array(sorted(events), np.int64)
        self._lines = plane.lines
        self._columns: dict[bool, tuple[Ints, Mapping[str, Ints]]] = {}
        device = xla.device_of(self.name)
        if device is not None:
            told = {names.get(stat.name, ""): self._text(stat) for stat in plane.stats}
            # No other statistic describes a device.
            model = told.get("device_type_string", "") or told.get("device_vendor", "")
            planes.add_device(self.name, device, model)
        texts = [names[number] for number in sorted(names)]
        numbering = planes.texts
        self._refs = np.array(sorted(names), np.int64)
        self._texts = np.append(numbering.numbers(texts), NONE)
        paths = [numbering.number(path) if (path := xla.path_of(t)) else NONE for t in texts]
        self._paths = np.array([*paths, NONE], np.int64)

    def _text(self, stat: Any) -> str:
        """Return the text of a statistic, its own or that which it refers to."""
        return self._stat_names.get(stat.ref, "") if stat.HasField("ref") else text_of(stat.text)

    def add(self) -> None:
        """Add the events of the plane's lines.

        Raises:
            MalformedError: an event cannot be decoded.
        """
        lines = self._lines
        names = [text_of(line.name) or text_of(line.display_name) for line in lines]
        roles = xla.roles_of(self.name, names)
        for role in roles:
            if role != xla.NOTHING:
                self._metadata_columns(of_instructions=role in (xla.OPS, xla.ASYNC))
        for line, name, role in zip(lines, names, roles, strict=True):
            if role != xla.NOTHING:
                row = self._planes.add_line(line.id, name) if role == xla.HOST else NONE
                row = line.id if role == xla.STREAM else row
                for at in range(0, len(line.events), _PIECE):
                    self._add_piece(line, slice(at, at + _PIECE), role, row)

    def _metadata_columns(self, *, of_instructions: bool) -> tuple[Ints, Mapping[str, Ints]]:
        """Return name and statistics of each metadata; the last row is that of unknown ones."""
        if of_instructions in self._columns:
            return self._columns[of_instructions]
        texts, count = self._planes.texts, len(self._metadata) + 1
        names = np.full(count, texts.number(""), np.int64)
        columns = {column: np.full(count, NONE, np.int64) for column in xla.STAT_COLUMNS}
        for row, entry in enumerate(self._metadata):
            for stat in entry.stats:
                name = self._stat_names.get(stat.name, "")
                column, text = _STATS.get(name), self._text(stat)
                text = xla.path_of(text) if name == "tf_op" else text
                if column in _TEXTS and text:
                    columns[column][row] = texts.number(text)
                elif column is not None and column not in _TEXTS:
                    columns[column][row] = stat.signed or stat.unsigned
            name = text_of(entry.name)
            if of_instructions:
                # ``%fusion.3 = f32[8] fusion(...)`` is the text of an instruction.
                plain = name.partition(" = ")[0].removeprefix("%")
                name = text_of(entry.display_name) or plain
            names[row] = texts.number(name)
        self._columns[of_instructions] = names, columns
        return names, columns

    def _add_piece(self, line: Any, rows: slice, role: str, row: int) -> None:
        """Add some events of a line."""
        events = line.events[rows]
        data = np.frombuffer(b"".join(events), np.uint8)
        length = np.fromiter(map(len, events), np.int64, len(events))
        end = np.cumsum(length)
        wanted = {number: name for number, name in self._stat_names.items() if name in _STATS}
        fields = (_EVENT_METADATA, _EVENT_OFFSET_PS, _EVENT_DURATION_PS)
        inner = (_EVENT_STATS,) if wanted else ()
        event, messages = decoded(data, end - length, end, fields, inner)
        names, columns = self._metadata_columns(of_instructions=role in (xla.OPS, xla.ASYNC))
        # Metadata that is not there is the last row (-1).
        at = find_positions(self._numbers, event[_EVENT_METADATA])
        columns = {column: values[at] for column, values in columns.items()}
        if wanted:
            self._fill(columns, data, messages[_EVENT_STATS], wanted)
        is_utc = line.timestamp_ns > _UTC_NS
        begin_ns = line.timestamp_ns + (-self._base_ns if is_utc else self._start_ns)
        offset_ps = event[_EVENT_OFFSET_PS]
        end_ps = offset_ps + event[_EVENT_DURATION_PS]
        times_ns = begin_ns + offset_ps // 1000, begin_ns + end_ps // 1000
        self._planes.add(role, self.name, row, times_ns, names[at], columns)

    def _fill(
        self,
        columns: Mapping[str, Ints],
        data: npt.NDArray[np.uint8],
        places: Places,
        wanted: Mapping[int, str],
    ) -> None:
        """Fill columns with the statistics that events have themselves.

        Args:
            columns: of the events.
            data: bytes of the events.
            places: of their statistics.
            wanted: names of statistics, by number.
        """
        event, begin, end = places
        fields = (_STAT_NAME, _STAT_UNSIGNED, _STAT_SIGNED, _STAT_REF)
        stat, texts = decoded(data, begin, end, fields, (_STAT_TEXT,))
        kind, ref = stat[_STAT_NAME], np.where(stat[_STAT_REF] == 0, NONE, stat[_STAT_REF])
        number = stat[_STAT_SIGNED] | stat[_STAT_UNSIGNED]
        chosen = np.isin(kind[texts[_STAT_TEXT][0]], [*wanted])
        own = {
            row: text_of(data[first:last].tobytes())
            for row, first, last in zip(
                *(column[chosen].tolist() for column in texts[_STAT_TEXT]), strict=True
            )
        }
        # Of a path's two statistics the better one comes last.
        for of_kind, name in sorted(wanted.items(), key=lambda item: item[1] == "name"):
            rows = np.flatnonzero(kind == of_kind)
            column, is_path = columns[_STATS[name]], name == "tf_op"
            if _STATS[name] not in _TEXTS:
                column[event[rows]] = number[rows]
                continue
            codes = (self._paths if is_path else self._texts)[find_positions(self._refs, ref[rows])]
            for at in np.flatnonzero(ref[rows] == NONE).tolist() if own else ():
                text = own.get(int(rows[at]), "")
                text = xla.path_of(text) if is_path else text
                codes[at] = self._planes.texts.number(text) if text else NONE
            known = codes != NONE
            column[event[rows[known]]] = codes[known]


def _find_ends(content: bytes) -> list[int]:
    """Return the indices of planes that begin another space.

    Concatenated files are a single message to a protobuf parser. Since every space was written in
    the order of its fields, a plane that follows another kind of field is the first of its space.

    Args:
        content: A space that can be parsed.
    """
    ends: list[int] = []
    n_planes = offset = 0
    follows_other_field = False
    while offset < len(content):
        tag, offset = _read_varint(content, offset)
        kind = tag & 7
        if kind == _LENGTH:
            length, offset = _read_varint(content, offset)
            offset += length
        elif kind == _NUMBER:
            _, offset = _read_varint(content, offset)
        elif kind in _FIXED:
            offset += _FIXED[kind]
        else:
            break
        if tag == _PLANES_TAG:
            if follows_other_field:
                ends.append(n_planes)
            n_planes += 1
        follows_other_field = tag != _PLANES_TAG
    return ends


def _read_varint(content: bytes, offset: int) -> tuple[int, int]:
    """Return the number that is encoded at an offset, and the offset after it."""
    value = shift = 0
    while offset < len(content):
        byte = content[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            break
    return value, offset


@dataclass(frozen=True)
class _Space:
    """The planes of one recording in a file.

    Attributes:
        planes: Encoded planes.
        start_ns: UTC at time 0, or None if unknown.
        process: Id of the process, or 0 if unknown.
    """

    planes: list[bytes]
    start_ns: int | None
    process: int


def _read_spaces(path: str) -> tuple[list[_Space], str]:
    """Return the recordings in a file, and the name of their host, or "" if unknown.

    Raises:
        MalformedError: The file cannot be decoded.
        ProfileError: The file is gzipped, or joins recordings of several hosts.
    """
    content = Path(path).read_bytes()
    if content.startswith(GZIP):
        raise ProfileError(f"{path}: gzipped xplane files cannot be read; unpack it (gunzip)")
    space = parsed(_types()["Space"], content)
    hosts = list(dict.fromkeys(text_of(host) for host in space.hostnames))
    planes = [(plane, parsed(_types()["Plane"], plane)) for plane in space.planes]
    ends = _find_ends(content) if len(planes) > 1 else ()
    numbers = xla.number_recordings([text_of(plane.name) for _, plane in planes], ends)
    members: list[list[tuple[bytes, Any]]] = [[] for _ in range(max(numbers, default=0) + 1)]
    for number, plane in zip(numbers, planes, strict=True):
        members[number].append(plane)
    spaces = [_describe_space(space_planes) for space_planes in members]
    if len(hosts) > 1 and len(spaces) > 1:
        raise ProfileError(
            f"{path}: recordings of {len(hosts)} hosts were joined, each with a clock of its own; "
            "give the original files"
        )
    return spaces, hosts[0] if hosts else ""


def _describe_space(planes: Sequence[tuple[bytes, Any]]) -> _Space:
    """Return a recording, given the bytes and the parsed message of each of its planes."""
    starts, processes, stamps = [], [], []
    for _, plane in planes:
        names = stat_names(plane)
        stats = [(names.get(s.name, ""), s.signed or s.unsigned) for s in plane.stats]
        if plane.name == b"Task Environment":
            starts += [n for name, n in stats if name == "profile_start_time" and n > _UTC_NS]
        processes += [number for name, number in stats if name == "process_id"]
        stamps += [line.timestamp_ns for line in plane.lines if line.timestamp_ns > _UTC_NS]
    return _Space(
        planes=[content for content, _ in planes],
        start_ns=starts[0] if starts else min(stamps, default=None),
        process=(processes[0] if processes else 0) & PID_MASK,
    )


def read_profile(path: str, watch: Watch) -> Decoded:
    """Read a file: first the clocks and processes of all planes, then their events.

    Raises:
        ProfileError: The file cannot be read or decoded, or joins recordings of several hosts.
    """
    try:
        spaces, host = _read_spaces(path)
        parts = list(_decode_spaces(path, host, spaces, watch))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from error
    except MalformedError as error:
        raise ProfileError(
            f"{path}: cut short, damaged, or not a profile of XLA ({error}); {_AGAIN}"
        ) from error
    return join_processes(parts)


def _decode_spaces(
    path: str, host: str, spaces: Sequence[_Space], watch: Watch
) -> Iterator[tuple[int, Decoded]]:
    """Yield the process number and the profile of each recording. All count time from one zero.

    Raises:
        MalformedError: A plane cannot be decoded.
    """
    utc_ns = spaces[0].start_ns
    n_planes = sum(len(space.planes) for space in spaces)
    n_read = 0
    for number, space in enumerate(spaces):
        planes = Planes()
        start_ns = space.start_ns or 0
        base_ns = start_ns if utc_ns is None else utc_ns
        for content in space.planes:
            plane = parsed(_types()["Plane"], content)
            if text_of(plane.name) != xla.PROGRAMS:
                PlaneReader(plane, base_ns, start_ns - base_ns, planes).add()
            n_read += 1
            watch(n_read / n_planes)
        source = Source(
            path=path,
            host=host or Path(path).name,
            host_known=bool(host),
            format="xplane",
            session_utc_ns=validate_utc(utc_ns),
        )
        limitations = []
        if space.start_ns is None:
            reason = f"{path}: the UTC of its time 0 was not recorded"
            limitations.append(
                Limitation("the start of the session, which aligns profiles", reason)
            )
        process = process_number(number, space.process)
        yield process, profile_of(source, planes, process, limitations)
