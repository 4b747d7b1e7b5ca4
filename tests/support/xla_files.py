"""Writes planes to small XLA profiler files, either ``*.xplane.pb`` or trace JSON.

The complete messages are defined here, independently of the reader. Therefore, fields that the
reader ignores are written as well, and tests can read files back without the reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: Fields of each message: name, number and type.
#: An asterisk marks repeated fields.
_MESSAGES = """
XStat: metadata_id 1 int64, double_value 2 double, uint64_value 3 uint64, int64_value 4 int64,
  str_value 5 bytes, bytes_value 6 bytes, ref_value 7 uint64
XEvent: metadata_id 1 int64, offset_ps 2 int64, duration_ps 3 int64, stats 4 XStat*,
  num_occurrences 5 int64
XLine: id 1 int64, name 2 bytes, timestamp_ns 3 int64, events 4 XEvent*, duration_ps 9 int64,
  display_id 10 int64, display_name 11 bytes
XEventMetadata: id 1 int64, name 2 bytes, metadata 3 bytes, display_name 4 bytes, stats 5 XStat*,
  child_id 6 int64*
XStatMetadata: id 1 int64, name 2 bytes, description 3 bytes
EventEntry: key 1 int64, value 2 XEventMetadata
StatEntry: key 1 int64, value 2 XStatMetadata
XPlane: id 1 int64, name 2 bytes, lines 3 XLine*, event_metadata 4 EventEntry*,
  stat_metadata 5 StatEntry*, stats 6 XStat*
XSpace: planes 1 XPlane*, errors 2 bytes*, warnings 3 bytes*, hostnames 4 bytes*
"""
_FIELDS = {
    message: [field.split() for field in fields.split(",")]
    for message, fields in re.findall(r"^(\w+): ((?:.|\n )*)$", _MESSAGES, re.MULTILINE)
}


@cache
def build_space_type() -> Any:
    """Return the complete message type XSpace."""
    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="planes.proto", package="planes")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            plain = kind.rstrip("*")
            field = described.field.add(name=name, number=int(number))
            field.label = proto.LABEL_REPEATED if kind != plain else proto.LABEL_OPTIONAL
            if plain in _FIELDS:
                field.type, field.type_name = proto.TYPE_MESSAGE, f".planes.{plain}"
            else:
                field.type = getattr(proto, f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("planes.XSpace"))


@dataclass(frozen=True)
class E:
    """An event: the name of its kind, and its start and end in ns from the start of the line."""

    name: str
    start: float
    end: float
    stats: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class L:
    """A line of a plane.

    Attributes:
        name: Name of the line.
        events: Events of the line.
        number: Id of the line, such as a thread id.
        timestamp: Start of the line in ns. Event times are relative to it.
    """

    name: str
    events: Sequence[E]
    number: int = 1
    timestamp: int = 0


@dataclass(frozen=True)
class P:
    """A plane. ``kinds`` contains statistics and display names of event kinds, keyed by name."""

    name: str
    lines: Sequence[L] = ()
    stats: Mapping[str, int | str] = field(default_factory=dict)
    kinds: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    display: Mapping[str, str] = field(default_factory=dict)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class _Numbers(dict[str, int]):
    """Assigns numbers to names, from 1 in the order of first use."""

    def __missing__(self, key: str) -> int:
        self[key] = len(self) + 1
        return self[key]


def _add_stats(into: Any, stats: Mapping[str, int | str], names: _Numbers, *, refs: bool) -> None:
    """Add statistics to a message.

    Args:
        into: Message to add the statistics to.
        stats: Values of the statistics, by name.
        names: Numbers assigned to statistic names, and to texts that statistics refer to.
        refs: Whether texts are stored as references instead of strings.
    """
    for name, value in stats.items():
        stat = into.stats.add(metadata_id=names[name])
        if isinstance(value, int):
            stat.int64_value = value
        elif refs:
            stat.ref_value = names[value]
        else:
            stat.str_value = _encode(value)


def make_space(planes: Sequence[P], hosts: Sequence[str] = (), *, refs: bool = True) -> bytes:
    """Return a serialized XSpace. With ``refs``, statistics refer to shared strings."""
    space = build_space_type()(hostnames=[_encode(host) for host in hosts])
    for plane in planes:
        added_plane = space.planes.add(name=_encode(plane.name))
        kinds, names = _Numbers(), _Numbers()
        for line in plane.lines:
            added = added_plane.lines.add(
                id=line.number, name=_encode(line.name), timestamp_ns=line.timestamp
            )
            for event in line.events:
                start, end = round(event.start * 1000), round(event.end * 1000)
                one = added.events.add(
                    metadata_id=kinds[event.name], offset_ps=start, duration_ps=end - start
                )
                _add_stats(one, event.stats, names, refs=refs)
        for name, number in kinds.items():
            entry = added_plane.event_metadata.add(key=number)
            entry.value.id, entry.value.name = number, _encode(name)
            entry.value.display_name = _encode(plane.display.get(name, ""))
            _add_stats(entry.value, plane.kinds.get(name, {}), names, refs=refs)
        _add_stats(added_plane, plane.stats, names, refs=refs)
        for name, number in names.items():
            entry = added_plane.stat_metadata.add(key=number)
            entry.value.id, entry.value.name = number, _encode(name)
    return bytes(space.SerializeToString())


def make_trace_json(planes: Sequence[P]) -> bytes:
    """Return planes as trace events, in the style of XLA's converter. All arguments are strings."""
    events: list[object] = []
    for pid, plane in enumerate(planes, 1):
        events.append(_convert_value("process_name", plane.name, {"pid": pid}))
        for tid, line in enumerate(plane.lines, 1):
            events.append(_convert_value("thread_name", line.name, {"pid": pid, "tid": tid}))
    for pid, plane in enumerate(planes, 1):
        for tid, line in enumerate(plane.lines, 1):
            for event in line.events:
                facts = {**plane.kinds.get(event.name, {}), **event.stats}
                one = {
                    "ph": "X",
                    "pid": pid,
                    "tid": tid,
                    "ts": (line.timestamp + event.start) / 1000,
                    "dur": (event.end - event.start) / 1000,
                    "name": plane.display.get(event.name, event.name),
                    "args": {name: str(value) for name, value in facts.items()},
                }
                events.append(one)
    document = {
        "displayTimeUnit": "ns",
        "metadata": {"highres-ticks": True},
        "traceEvents": [*events, {}],
    }
    return json.dumps(document).encode()


def _convert_value(argument: str, name: str, of: Mapping[str, int]) -> object:
    return {"ph": "M", **of, "name": argument, "args": {"name": name}}
