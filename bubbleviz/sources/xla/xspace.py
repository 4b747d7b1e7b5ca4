"""Reads XSpace files (``*.xplane.pb``), protobuf files written by XLA's profiler, plane by plane.

The protobuf parser only splits the file into planes and lines. Events remain encoded, because the
parser would create millions of Python objects. Instead, numpy decodes the events in bulk. Step k
decodes the k-th field of all events at once::

    events      08 05 10 AC 02     08 07 18 01     08 05 10 7F
    step 1      ^^^^^              ^^^^^           ^^^^^
    step 2            ^^^^^^^^           ^^^^^           ^^^^^

The messages are defined in ``tsl/profiler/protobuf/xplane.proto`` (openxla/xla), and the encoding
in https://protobuf.dev/programming-guides/encoding/. A field is a tag (number << 3 | wire type)
followed by its value. Times are converted from picoseconds to nanoseconds. The start and the end
are each rounded down, so that adjacent events stay adjacent.
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
from bubbleviz.sources.xla.profile import join_processes, make_process_number, make_profile

#: Number, name and type of each field, keyed by message name. ``*`` marks repeated fields.
#: Texts have the type ``bytes``, because they may be invalid UTF-8.
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
#: Field numbers in events and in event statistics.
_EVENT_METADATA, _EVENT_OFFSET_PS, _EVENT_DURATION_PS, _EVENT_STATS = 1, 2, 3, 4
_STAT_NAME, _STAT_UNSIGNED, _STAT_SIGNED, _STAT_TEXT, _STAT_REF = 1, 3, 4, 5, 7
#: Wire types: varint, length-delimited, and fixed-length types with their sizes in bytes.
_NUMBER, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
#: Tag of the field ``planes`` in a space.
_PLANES_TAG = 1 << 3 | _LENGTH
#: Maximum number of bytes in a 64-bit varint.
_MAX_VARINT_BYTES = 10
#: Number of events to decode at once.
_EVENTS_PER_PIECE = 1 << 16

#: Name of the column that an event statistic fills, keyed by the name of the statistic.
#: The path of an instruction is ``name`` on GPUs in newer versions, and ``tf_op`` otherwise.
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
#: Timestamps above this value (in 1973) are UTC times. All other timestamps are relative to the
#: profile's start.
_UTC_NS = 10**17
_RECORD_AGAIN = "copy it again, or record again with jax.profiler.trace"

#: Occurrences of a length-delimited field, as three columns: message, start offset and end offset.
Slices = tuple[Ints, Ints, Ints]


class MalformedError(ValueError):
    """An error for bytes that are not a valid protobuf message."""


def build_message_types(package: str, **messages: str) -> Mapping[str, Any]:
    """Build protobuf message classes, keyed by name.

    Args:
        package: Name of the protobuf package, which must be unique.
        messages: Fields of each message, written as in ``_MESSAGES``.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    proto = descriptor_pb2.FieldDescriptorProto
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for number, name, kind in (field.split() for field in fields.split(", ")):
            field_proto = described.field.add(name=name, number=int(number))
            field_proto.label = proto.LABEL_REPEATED if kind.endswith("*") else proto.LABEL_OPTIONAL
            if (kind := kind.rstrip("*")) in messages:
                field_proto.type, field_proto.type_name = proto.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field_proto.type = getattr(proto, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def parse_message(kind: Any, content: bytes) -> Any:
    """Parse bytes as a message of the given class.

    Raises:
        MalformedError: The bytes are not a valid message.
    """
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise MalformedError(f"a {kind.DESCRIPTOR.name} cannot be decoded") from error


@cache
def _get_message_types() -> Mapping[str, Any]:
    """Return the message classes for XSpace files, keyed by name."""
    return build_message_types("xspace", **_MESSAGES)


def decode_text(content: bytes) -> str:
    """Decode bytes as UTF-8. Invalid bytes become U+FFFD."""
    return content.decode("utf-8", errors="replace")


def decode_messages(
    data: npt.NDArray[np.uint8],
    start: Ints,
    end: Ints,
    number_fields: Sequence[int],
    length_fields: Sequence[int],
) -> tuple[Mapping[int, Ints], Mapping[int, Slices]]:
    """Decode selected fields of many small messages at once.

    Args:
        data: Bytes of all messages, shape (bytes,).
        start: Start offset of each message, shape (messages,).
        end: End offset of each message, shape (messages,).
        number_fields: Field numbers of the varints to decode.
        length_fields: Field numbers of the messages and texts (length-delimited) to locate.

    Returns:
        values: Values of each varint field, keyed by field number, shape (messages,). A missing
            field is 0. If a field is repeated, the last value wins.
        slices: Occurrences of each length-delimited field, keyed by field number.

    Raises:
        MalformedError: A field is malformed, or extends beyond its message.
    """
    values = {number: np.zeros(len(start), np.int64) for number in number_fields}
    no_rows = np.empty(0, np.int64)
    slices_of_field: dict[int, list[Slices]] = {
        number: [(no_rows, no_rows, no_rows)] for number in length_fields
    }
    rows, position = np.arange(len(start)), start
    while True:
        has_more = position < end
        if not has_more.all():
            rows, position, end = rows[has_more], position[has_more], end[has_more]
        if len(rows) == 0:
            break
        tag, first = _decode_varints(data, position, end)
        kind = tag & 7
        value, position = np.zeros(len(rows), np.int64), first.copy()
        for fixed, length in _FIXED.items():
            position[kind == fixed] += length
        has_number = (kind == _NUMBER) | (kind == _LENGTH)
        value[has_number], position[has_number] = _decode_varints(
            data, first[has_number], end[has_number]
        )
        has_length = kind == _LENGTH
        first = np.where(has_length, position, first)
        # Compare the length with the remaining bytes, so that a huge length does not overflow.
        fits = (value >= 0) & (value <= end - first)
        position = np.where(has_length, first + np.where(fits, value, 0), position)
        is_valid: Bools = np.isin(kind, (_NUMBER, _LENGTH, *_FIXED)) & (tag >> 3 != 0)
        if not (is_valid & (fits | ~has_length) & (position <= end)).all():
            raise MalformedError("an event, or a statistic of an event, cannot be decoded")
        for number, column in values.items():
            is_field = tag == (number << 3 | _NUMBER)
            column[rows[is_field]] = value[is_field]
        for number, slices in slices_of_field.items():
            is_field = tag == (number << 3 | _LENGTH)
            if is_field.any():
                slices.append((rows[is_field], first[is_field], position[is_field]))
    columns_of_field = {
        n: [np.concatenate(c) for c in zip(*p, strict=True)] for n, p in slices_of_field.items()
    }
    return values, {number: (c[0], c[1], c[2]) for number, c in columns_of_field.items()}


def _decode_varints(data: npt.NDArray[np.uint8], start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Decode the varint at each offset. Return the values, and the offset after each varint.

    Args:
        data: Bytes of all messages.
        start: Offset of each varint.
        end: End offset of the message that contains each varint.

    Raises:
        MalformedError: A varint extends beyond its message or is too long.
    """
    start, rows = start.copy(), np.arange(len(start))
    value = np.zeros(len(start), np.uint64)
    for byte_index in range(_MAX_VARINT_BYTES):
        if (start[rows] >= end[rows]).any():
            break
        byte = data[start[rows]]
        value[rows] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * byte_index)
        start[rows] += 1
        rows = rows[byte >= 1 << 7]
        if len(rows) == 0:
            return value.view(np.int64), start
    raise MalformedError("a number in an event is incomplete")


def read_stat_names(plane: Any) -> Mapping[int, str]:
    """Return the names of statistics, and the texts to which statistics refer, keyed by id."""
    entries = (
        parse_message(_get_message_types()["StatEntry"], entry) for entry in plane.stat_metadata
    )
    return {e.key: decode_text(e.value.name) for e in entries if e.HasField("value")}


class PlaneReader:
    """Reads the events of one plane.

    An event's metadata provides statistics that the event itself does not contain.

    Args:
        plane: Parsed message of the plane.
        base_ns: UTC time at time 0 of the profile.
        start_ns: Profile time of timestamp 0, for timestamps that are not UTC.
        planes: Planes that receive the events.

    Raises:
        MalformedError: An entry cannot be decoded.
    """

    def __init__(self, plane: Any, base_ns: int, start_ns: int, planes: Planes) -> None:
        self._base_ns, self._start_ns = base_ns, start_ns
        self._planes, self.name = planes, decode_text(plane.name)
        #: Names of statistics, and texts to which statistics refer, keyed by id.
        self._stat_names = names = read_stat_names(plane)
        entries = (
            parse_message(_get_message_types()["EventEntry"], entry)
            for entry in plane.event_metadata
        )
        events = {entry.key: entry.value for entry in entries if entry.HasField("value")}
        self._metadata = [events[number] for number in sorted(events)]
        self._numbers = np.array(sorted(events), np.int64)
        self._lines = plane.lines
        self._columns: dict[bool, tuple[Ints, Mapping[str, Ints]]] = {}
        device = xla.get_device_number(self.name)
        if device is not None:
            device_stats = {names.get(stat.name, ""): self._get_text(stat) for stat in plane.stats}
            # Only these two statistics describe a device's model.
            model = device_stats.get("device_type_string", "") or device_stats.get(
                "device_vendor", ""
            )
            planes.add_device(self.name, device, model)
        texts = [names[number] for number in sorted(names)]
        numbering = planes.texts
        self._refs = np.array(sorted(names), np.int64)
        self._texts = np.append(numbering.numbers(texts), NONE)
        paths = [
            numbering.number(path) if (path := xla.get_instruction_path(t)) else NONE for t in texts
        ]
        self._paths = np.array([*paths, NONE], np.int64)

    def _get_text(self, stat: Any) -> str:
        """Return the text of a statistic, or the text to which it refers."""
        return (
            self._stat_names.get(stat.ref, "") if stat.HasField("ref") else decode_text(stat.text)
        )

    def add(self) -> None:
        """Read the events of all lines, except lines with the role ``NOTHING``.

        Raises:
            MalformedError: An event cannot be decoded.
        """
        lines = self._lines
        names = [decode_text(line.name) or decode_text(line.display_name) for line in lines]
        roles = xla.classify_lines(self.name, names)
        for role in roles:
            if role != xla.NOTHING:
                self._read_metadata(of_instructions=role in (xla.OPS, xla.ASYNC))
        for line, name, role in zip(lines, names, roles, strict=True):
            if role != xla.NOTHING:
                row = self._planes.add_line(line.id, name) if role == xla.HOST else NONE
                row = line.id if role == xla.STREAM else row
                for first in range(0, len(line.events), _EVENTS_PER_PIECE):
                    self._add_piece(line, slice(first, first + _EVENTS_PER_PIECE), role, row)

    def _read_metadata(self, *, of_instructions: bool) -> tuple[Ints, Mapping[str, Ints]]:
        """Return each metadata entry's name and statistics. Texts are replaced with numbers.

        A final row, with the name "" and statistics of -1, is added for events whose metadata is
        unknown.

        Args:
            of_instructions: Whether the entries describe instructions. An instruction's name is
                shortened to its display name, or to the text before " = ".

        Returns:
            names: For each entry, the number of its name.
            columns: Statistics of each entry, keyed by the names in ``STAT_COLUMNS``, or -1 if
                missing.
        """
        if of_instructions in self._columns:
            return self._columns[of_instructions]
        texts, count = self._planes.texts, len(self._metadata) + 1
        names = np.full(count, texts.number(""), np.int64)
        columns = {column: np.full(count, NONE, np.int64) for column in xla.STAT_COLUMNS}
        for row, entry in enumerate(self._metadata):
            for stat in entry.stats:
                name = self._stat_names.get(stat.name, "")
                column, text = _STATS.get(name), self._get_text(stat)
                text = xla.get_instruction_path(text) if name == "tf_op" else text
                if column in _TEXTS and text:
                    columns[column][row] = texts.number(text)
                elif column is not None and column not in _TEXTS:
                    columns[column][row] = stat.signed or stat.unsigned
            name = decode_text(entry.name)
            if of_instructions:
                # The name is the complete instruction: ``%fusion.3 = f32[8] fusion(...)``.
                short_name = name.partition(" = ")[0].removeprefix("%")
                name = decode_text(entry.display_name) or short_name
            names[row] = texts.number(name)
        self._columns[of_instructions] = names, columns
        return names, columns

    def _add_piece(self, line: Any, rows: slice, role: str, row: int) -> None:
        """Decode a slice of the events on a line, and add them to the planes.

        Statistics that the event itself does not contain come from its metadata.

        Args:
            line: Parsed message of the line.
            rows: Slice that selects the events to decode.
            role: Role of the line, such as ``xla.OPS``.
            row: Row of a host line, number of a GPU stream, or -1 for any other line. The value is
                stored with each event.
        """
        events = line.events[rows]
        data = np.frombuffer(b"".join(events), np.uint8)
        length = np.fromiter(map(len, events), np.int64, len(events))
        end = np.cumsum(length)
        used_stats = {number: name for number, name in self._stat_names.items() if name in _STATS}
        fields = (_EVENT_METADATA, _EVENT_OFFSET_PS, _EVENT_DURATION_PS)
        event, messages = decode_messages(
            data, end - length, end, fields, (_EVENT_STATS,) if used_stats else ()
        )
        names, columns = self._read_metadata(of_instructions=role in (xla.OPS, xla.ASYNC))
        # Unknown metadata has position -1, which is the final row.
        metadata_row = find_positions(self._numbers, event[_EVENT_METADATA])
        columns = {column: values[metadata_row] for column, values in columns.items()}
        if used_stats:
            self._fill_columns(columns, data, messages[_EVENT_STATS], used_stats)
        times_ns = self._convert_times(line.timestamp_ns, event)
        self._planes.add(role, self.name, row, times_ns, names[metadata_row], columns)

    def _convert_times(self, timestamp_ns: int, event: Mapping[int, Ints]) -> tuple[Ints, Ints]:
        """Return the start and end of each event in ns since time 0, rounded down.

        Args:
            timestamp_ns: Timestamp of the line, to which the offsets of the events are added.
            event: Values of the events' varint fields, keyed by field number.
        """
        is_utc = timestamp_ns > _UTC_NS
        begin_ns = timestamp_ns + (-self._base_ns if is_utc else self._start_ns)
        offset_ps = event[_EVENT_OFFSET_PS]
        end_ps = offset_ps + event[_EVENT_DURATION_PS]
        return begin_ns + offset_ps // 1000, begin_ns + end_ps // 1000

    def _fill_columns(
        self,
        columns: Mapping[str, Ints],
        data: npt.NDArray[np.uint8],
        stat_slices: Slices,
        used_stats: Mapping[int, str],
    ) -> None:
        """Fill columns with the statistics that are stored in the events themselves.

        ``columns`` already contains values from the metadata of the events. The event's own
        statistics replace these values, unless they are empty texts.

        Args:
            columns: Statistics columns, keyed by name. Changed in place.
            data: Bytes of the events.
            stat_slices: Where statistics occur in the events.
            used_stats: Names of statistics to read, keyed by id.
        """
        event, start, end = stat_slices
        fields = (_STAT_NAME, _STAT_UNSIGNED, _STAT_SIGNED, _STAT_REF)
        stat, texts = decode_messages(data, start, end, fields, (_STAT_TEXT,))
        kind, ref = stat[_STAT_NAME], np.where(stat[_STAT_REF] == 0, NONE, stat[_STAT_REF])
        number = stat[_STAT_SIGNED] | stat[_STAT_UNSIGNED]
        is_used = np.isin(kind[texts[_STAT_TEXT][0]], [*used_stats])
        text_of_stat = {
            row: decode_text(data[first:last].tobytes())
            for row, first, last in zip(
                *(column[is_used].tolist() for column in texts[_STAT_TEXT]), strict=True
            )
        }
        # If an event has both statistics for its path, ``name`` wins, because it is read last.
        for of_kind, name in sorted(used_stats.items(), key=lambda item: item[1] == "name"):
            rows = np.flatnonzero(kind == of_kind)
            column, is_path = columns[_STATS[name]], name == "tf_op"
            if _STATS[name] not in _TEXTS:
                column[event[rows]] = number[rows]
                continue
            codes = (self._paths if is_path else self._texts)[find_positions(self._refs, ref[rows])]
            for index in np.flatnonzero(ref[rows] == NONE).tolist() if text_of_stat else ():
                text = text_of_stat.get(int(rows[index]), "")
                text = xla.get_instruction_path(text) if is_path else text
                codes[index] = self._planes.texts.number(text) if text else NONE
            has_text = codes != NONE
            column[event[rows[has_text]]] = codes[has_text]


def _find_space_starts(content: bytes) -> list[int]:
    """Return the indices of the planes that start another space (recording) in a joined file.

    A protobuf parser reads concatenated spaces as a single message. Within a space, the planes come
    first. Therefore, a plane that follows a different field is the first plane in another space.

    Args:
        content: Bytes of a file that can be parsed as a space.
    """
    starts: list[int] = []
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
                starts.append(n_planes)
            n_planes += 1
        follows_other_field = tag != _PLANES_TAG
    return starts


def _read_varint(content: bytes, offset: int) -> tuple[int, int]:
    """Decode the varint at an offset, and return its value and the offset after the varint."""
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
        planes: Encoded messages of the planes.
        start_ns: UTC time at time 0 of the recording, or None if unknown.
        process: Lowest 24 bits of the process id, or 0 if the process id is unknown.
    """

    planes: list[bytes]
    start_ns: int | None
    process: int


def _read_spaces(path: str) -> tuple[list[_Space], str]:
    """Return the recordings in a file and the name of their host, or "" if the host is unknown.

    Events are not decoded. If a single recording has several hostnames, the first one is returned.

    Raises:
        MalformedError: The file cannot be decoded.
        ProfileError: The file is gzipped, or joins recordings from several hosts.
    """
    content = Path(path).read_bytes()
    if content.startswith(GZIP):
        raise ProfileError(f"{path}: the xplane file is gzipped; unpack it with gunzip")
    space = parse_message(_get_message_types()["Space"], content)
    hosts = list(dict.fromkeys(decode_text(host) for host in space.hostnames))
    planes = [
        (plane, parse_message(_get_message_types()["Plane"], plane)) for plane in space.planes
    ]
    starts = _find_space_starts(content) if len(planes) > 1 else ()
    numbers = xla.number_recordings([decode_text(plane.name) for _, plane in planes], starts)
    members: list[list[tuple[bytes, Any]]] = [[] for _ in range(max(numbers, default=0) + 1)]
    for number, plane in zip(numbers, planes, strict=True):
        members[number].append(plane)
    spaces = [_describe_space(space_planes) for space_planes in members]
    if len(hosts) > 1 and len(spaces) > 1:
        raise ProfileError(
            f"{path}: the file contains recordings from {len(hosts)} hosts, each with its own "
            "clock; pass the original files instead"
        )
    return spaces, hosts[0] if hosts else ""


def _describe_space(planes: Sequence[tuple[bytes, Any]]) -> _Space:
    """Combine planes into a recording, and find the recording's start and process id.

    Time 0 of the recording is its recorded start: the statistic ``profile_start_time`` in the plane
    "Task Environment". If the start was not recorded, time 0 is the earliest UTC timestamp of any
    line. The process id is the first statistic ``process_id`` in any plane.

    Args:
        planes: Bytes and parsed message of each plane in the recording.
    """
    starts, processes, stamps = [], [], []
    for _, plane in planes:
        names = read_stat_names(plane)
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
    """Read an xplane file. All recordings in the file are joined.

    The start times and process ids of all recordings are read before any events are decoded.

    Raises:
        ProfileError: The file cannot be read or decoded, or joins recordings from several hosts.
    """
    try:
        spaces, host = _read_spaces(path)
        parts = list(_decode_spaces(path, host, spaces, watch))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}); {_RECORD_AGAIN}") from error
    except MalformedError as error:
        raise ProfileError(
            f"{path}: the file is cut short, damaged, or not an XLA profile ({error}); "
            f"{_RECORD_AGAIN}"
        ) from error
    return join_processes(parts)


def _decode_spaces(
    path: str, host: str, spaces: Sequence[_Space], watch: Watch
) -> Iterator[tuple[int, Decoded]]:
    """Yield the process number and the profile of each recording.

    All times are relative to the start of the first recording. If the first start is unknown, the
    times in each recording are relative to its own start.

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
            plane = parse_message(_get_message_types()["Plane"], content)
            if decode_text(plane.name) != xla.PROGRAMS:
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
        process = make_process_number(number, space.process)
        yield process, make_profile(source, planes, process, _report_unknown_start(path, space))


def _report_unknown_start(path: str, space: _Space) -> list[Limitation]:
    """Return a limitation in a list if a recording's start is unknown, and [] otherwise.

    Args:
        path: Path to the file.
        space: The recording.
    """
    if space.start_ns is not None:
        return []
    reason = f"{path}: the file does not record the UTC time at which the session started"
    return [Limitation("the session start time, which is used to align profiles", reason)]
