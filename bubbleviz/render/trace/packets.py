"""A trace as packets of Perfetto's own format.

A stream of TracePackets (perfetto/trace/trace_packet.proto of https://perfetto.dev): tracks are
described first, then each slice is a packet where it begins and one where it ends. Each string is
written once, before the track that first uses it, and is a number from then on. Perfetto's package
makes the packets that describe; those of slices, a million a run, are made in columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.render.trace.trace import (
    FlowEnds,
    Numbers,
    Process,
    SliceTrack,
    Trace,
    Value,
    trace_of,
)
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

# Messages of protobuf in columns: the same fields of many messages, written at once.
#
# A part of messages is matrices of bytes, a row a message, of which some are used; fields stand
# side by side, and what is used is the encoding (https://protobuf.dev/programming-guides/encoding/)::
#
#     field 1 = 3       08 03 ..         field 1 = 3, field 2 = 5        08 03 .. 10 05
#     field 1 = 300     08 AC 02         field 1 = 300                   08 AC 02 .. ..
#
# A library makes an object of each message, which takes ten times as long.


Bytes: TypeAlias = npt.NDArray[np.uint8]

_NUMBER, _EIGHT_BYTES, _LENGTH = 0, 1, 2
_EIGHT = 8
_SEVEN_BITS, _MORE = 0x7F, 0x80


@dataclass(frozen=True, eq=False)
class Part:
    """A part of each message.

    Attributes:
        contents: bytes, matrices of shape (messages, width), side by side.
        used: which of them are written, in order; likewise.
        length: how many are, shape (messages,).
    """

    contents: tuple[Bytes, ...]
    used: tuple[Bools, ...]
    length: Ints

    def where(self, known: Bools) -> Part:
        """Return the part of messages that have it, nothing of the others."""
        used = tuple(block & known[:, None] for block in self.used)
        return Part(self.contents, used, np.where(known, self.length, 0))

    def __bytes__(self) -> bytes:
        """Return the messages, one behind the other."""
        used = np.concatenate(self.used, axis=1)
        return np.concatenate(self.contents, axis=1)[used].tobytes()


def side_by_side(*parts: Part) -> Part:
    """Return the parts (at least one) of the same messages as one."""
    return Part(
        tuple(block for part in parts for block in part.contents),
        tuple(block for part in parts for block in part.used),
        sum((part.length for part in parts[1:]), parts[0].length),
    )


def number(field: int, values: Ints | int, count: int) -> Part:
    """Return a field of whole numbers (int64, uint64 or enumerations) in so many messages.

    They are of shape (messages,), or one (0 and up) that all of them hold.
    """
    tag = _encoded(field << 3 | _NUMBER)
    if isinstance(values, int):
        return _constant(tag + _encoded(values), count)
    return side_by_side(_constant(tag, count), _varint(values))


def eight_bytes(field: int, values: Ints | npt.NDArray[np.float64]) -> Part:
    """Return a field of fixed64 or double, shape (messages,)."""
    content = values.astype(values.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, _EIGHT)
    used, length = np.ones(content.shape, bool), np.full(len(content), _EIGHT)
    tag = _constant(_encoded(field << 3 | _EIGHT_BYTES), len(content))
    return side_by_side(tag, Part((content,), (used,), length))


def message(field: int, *parts: Part) -> Part:
    """Return a field that holds a message of the parts (at least one)."""
    content = side_by_side(*parts)
    tag = _constant(_encoded(field << 3 | _LENGTH), len(content.length))
    return side_by_side(tag, _varint(content.length), content)


def _encoded(value: int) -> bytes:
    """Return a number (0 and up) in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > _SEVEN_BITS:
        groups.append(value & _SEVEN_BITS | _MORE)
        value >>= 7
    return bytes((*groups, value))


def _constant(content: bytes, count: int) -> Part:
    """Return the same bytes for so many messages."""
    shape = count, len(content)
    block = np.empty(shape, np.uint8)
    block[:] = np.frombuffer(content, np.uint8)
    return Part((block,), (np.ones(shape, bool),), np.full(count, len(content)))


def _varint(values: Ints) -> Part:
    """Return numbers of 64 bits as :func:`_encoded` does; negative ones take ten bytes."""
    rest = values.astype(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    shifted = rest[:, None] >> np.arange(0, 7 * width, 7, dtype=np.uint64)
    used = shifted > 0
    used[:, 0] = True
    content = (shifted & _SEVEN_BITS).astype(np.uint8)
    content[:, :-1] |= used[:, 1:] * np.uint8(_MORE)
    return Part((content,), (used,), np.count_nonzero(used, axis=1))


#: Every packet is of the one sequence whose strings it uses.
_SEQUENCE = 1
#: TracePacket.SequenceFlags.
_CLEARED, _NEEDED = 1, 2
#: TrackEvent.Type.
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
#: Fields of InternedData.
_NAMES, _CATEGORIES = "event_names", "event_categories"
_KEYS, _TEXTS = "debug_annotation_names", "debug_annotation_string_values"


def render(report: Report, view: View) -> bytes:
    """Return the whole report as a Perfetto trace, whatever the view."""
    del view
    return b"".join(written(trace_of(report)))


def written(trace: Trace) -> Iterator[bytes]:
    """Yield the pieces of a trace: one behind the other, they are a trace as well."""
    writer = _PacketWriter(trace)
    for process in trace.processes():
        yield from writer.of_process(process)
    yield writer.described()


class _PacketWriter:
    """Writes packets, and strings before they are used."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._open = protos.Trace()
        self._uuid = 0
        self._numbers: dict[str, dict[str, int]] = {
            kind: {} for kind in (_NAMES, _CATEGORIES, _KEYS, _TEXTS)
        }
        self._new: list[tuple[str, int, str]] = []
        packet = self._packet()
        packet.first_packet_on_sequence = True
        packet.sequence_flags = _CLEARED
        # The root: processes are in the order of their ranks.
        packet.track_descriptor.uuid = 0
        packet.track_descriptor.process_ordering = packet.track_descriptor.PROCESS_ORDERING_EXPLICIT

    def described(self) -> bytes:
        """Return the packets that were made since the last time."""
        pieces: bytes = self._open.SerializeToString()
        self._open = protos.Trace()
        return pieces

    def of_process(self, process: Process) -> Iterator[bytes]:
        """Yield the packets of a process."""
        described = self._described(process.order)
        uuid = described.uuid
        described.process.pid = process.number
        described.process.process_name = process.name
        described.process.process_labels.extend(process.labels)
        described.child_ordering = described.EXPLICIT
        if not process.tracks:
            self._facts(self._child(uuid, 0, "report"))
        counter = self._described(1, uuid)
        counter.name = f"bubble ratio ({self._trace.ratio})"
        counter.counter.unit_name = "fraction"
        for time_ns, value in process.ratios:
            packet = self._packet()
            packet.timestamp = time_ns
            event = packet.track_event
            event.type, event.track_uuid = _COUNTER, counter.uuid
            event.double_counter_value = value
        for place, track in enumerate(process.tracks, 2):
            lanes = [self._child(uuid, place, track.name) for _ in range(track.lanes)]
            slices = self._slices(track, lanes)
            self._describe_strings()
            yield self.described()
            yield bytes(slices)

    def _packet(self) -> protos.TracePacket:
        packet = self._open.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _NEEDED
        return packet

    def _described(self, order: int, parent: int | None = None) -> protos.TrackDescriptor:
        """Describe a new track."""
        self._uuid += 1
        described = self._packet().track_descriptor
        described.uuid = self._uuid
        if parent is not None:
            described.parent_uuid = parent
        described.sibling_order_rank = order
        return described

    def _child(self, parent: int, order: int, name: str) -> int:
        self._described(order, parent).name = name
        return self._uuid

    def _number(self, kind: str, text: str) -> int:
        """Return the number of a string; a new one is to be described."""
        numbers = self._numbers[kind]
        known = numbers.get(text)
        if known is not None:
            return known
        numbers[text] = len(numbers) + 1
        self._new.append((kind, numbers[text], text))
        return numbers[text]

    def _describe_strings(self) -> None:
        """Describe the new strings, if there are any."""
        if not self._new:
            return
        described = self._packet().interned_data
        for kind, number_of_text, text in self._new:
            entry = getattr(described, kind).add()
            entry.iid = number_of_text
            if kind == _TEXTS:
                entry.str = text.encode()
            else:
                entry.name = text
        self._new = []

    def _facts(self, uuid: int) -> None:
        """Write the properties of the trace, as an event where it begins."""
        facts = protos.TracePacket()
        facts.timestamp = self._trace.first_ns
        event = facts.track_event
        event.type, event.track_uuid = _INSTANT, uuid
        event.name_iid = self._number(_NAMES, "report")
        for name, value in self._trace.facts().items():
            self._annotate(event.debug_annotations.add(), name, value)
        self._describe_strings()
        self._packet().MergeFrom(facts)

    def _annotate(self, annotation: protos.DebugAnnotation, key: str, value: Value) -> None:
        annotation.name_iid = self._number(_KEYS, key)
        if isinstance(value, str):
            annotation.string_value_iid = self._number(_TEXTS, value)
        elif isinstance(value, int):
            annotation.int_value = value
        else:
            annotation.double_value = value

    def _slices(self, track: SliceTrack, lanes: Sequence[int]) -> Part:
        """Return slices, each as it begins and as it ends.

        Packets of one time stay in their order: that of a lane's slices is that of their packets.
        """
        event, count = protos.TrackEvent, len(track.names)
        uuid = number(event.TRACK_UUID_FIELD_NUMBER, np.array(lanes, np.int64)[track.lane], count)
        category = self._number(_CATEGORIES, track.category)
        begin = (
            number(event.CATEGORY_IIDS_FIELD_NUMBER, category, count),
            *(self._argument(*argument) for argument in track.arguments.items()),
            number(event.TYPE_FIELD_NUMBER, _BEGIN, count),
            number(event.NAME_IID_FIELD_NUMBER, self._coded(_NAMES, track.names), count),
            uuid,
            *_flows(event.FLOW_IDS_FIELD_NUMBER, track.leaving, count),
            *_flows(event.TERMINATING_FLOW_IDS_FIELD_NUMBER, track.entering, count),
        )
        end = (number(event.TYPE_FIELD_NUMBER, _END, count), uuid)
        return side_by_side(_packets(track.start_ns, begin), _packets(track.end_ns, end))

    def _argument(self, name: str, values: CodedTexts | Numbers) -> Part:
        """Return an argument of each slice."""
        kind, known, count = protos.DebugAnnotation, values.known, len(values)
        if isinstance(values, CodedTexts):
            texts = self._coded(_TEXTS, values)
            value = number(kind.STRING_VALUE_IID_FIELD_NUMBER, texts, count)
        elif values.values.dtype == np.int64:
            whole = np.where(known, values.values, 0)
            value = number(kind.INT_VALUE_FIELD_NUMBER, whole, count)
        else:
            value = eight_bytes(kind.DOUBLE_VALUE_FIELD_NUMBER, values.values)
        named = number(kind.NAME_IID_FIELD_NUMBER, self._number(_KEYS, name), count)
        return message(protos.TrackEvent.DEBUG_ANNOTATIONS_FIELD_NUMBER, named, value).where(known)

    def _coded(self, kind: str, texts: CodedTexts) -> Ints:
        """Return the numbers of strings, shape (slices,); 0 where a slice has none."""
        return np.array([*(self._number(kind, text) for text in texts.texts), 0])[texts.code]


def _flows(field: int, ends: FlowEnds, count: int) -> Iterator[Part]:
    """Yield the first flow of each slice, then the second ones, and so on."""
    for some in ends.turns():
        flow = np.zeros(count, np.int64)
        flow[some.place] = some.flow
        yield eight_bytes(field, flow).where(flow > 0)


def _packets(time_ns: Ints, event: Sequence[Part]) -> Part:
    """Return the packets of events."""
    packet, count = protos.TracePacket, len(time_ns)
    return message(
        protos.Trace.PACKET_FIELD_NUMBER,
        number(packet.TIMESTAMP_FIELD_NUMBER, time_ns, count),
        number(packet.TRUSTED_PACKET_SEQUENCE_ID_FIELD_NUMBER, _SEQUENCE, count),
        message(packet.TRACK_EVENT_FIELD_NUMBER, *event),
        number(packet.SEQUENCE_FLAGS_FIELD_NUMBER, _NEEDED, count),
    )
