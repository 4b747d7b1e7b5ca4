"""A trace as packets of Perfetto's own format.

A stream of TracePackets (perfetto/trace/trace_packet.proto of https://perfetto.dev): tracks are
described first, then each slice is a packet where it begins and one where it ends. Each string is
written once, before the track that first uses it, and is a number from then on. Perfetto's package
makes the packets that describe; those of slices, a million a run, are made in columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.render.trace import trace as model
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

# Messages of protobuf in columns: the same fields of many messages, written at once.
#
# A part of messages is a column of bytes, those of one message each; parts one behind the other are
# the encoding (https://protobuf.dev/programming-guides/encoding/). Numbers that occur often are
# encoded once. A library makes an object of each message, which takes several times as long.


#: A part of each message; nothing of those that lack it.
_Part: TypeAlias = npt.NDArray[np.object_]

_NUMBER, _EIGHT_BYTES, _LENGTH = 0, 1, 2


def _number(field: int, values: Ints) -> _Part:
    """Return a field of whole numbers (int64, uint64 or enumerations), shape (messages,)."""
    return np.add(_column(_varint(field << 3 | _NUMBER)), _varints(values))


def _message(field: int, *parts: _Part) -> _Part:
    """Return a field that holds a message of the parts (at least one)."""
    content = sum(parts[1:], parts[0])
    lengths = np.fromiter(map(len, content), np.int64, len(content))
    head = np.add(_column(_varint(field << 3 | _LENGTH)), _varints(lengths))
    return np.add(head, content)


def _column(content: bytes) -> _Part:
    """Return the same bytes for any number of messages."""
    return np.array([content], object)


def _varints(values: Ints) -> _Part:
    """Return numbers as :func:`_varint` does, shape (messages,)."""
    distinct, code = np.unique(values, return_inverse=True)
    return np.array(list(map(_varint, distinct.tolist())), object)[code]


def _varint(value: int) -> bytes:
    """Return a number of 64 bits in groups of seven bits, the lowest first."""
    value &= (1 << 64) - 1
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


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
    return b"".join(written(model.trace_of(report)))


def written(trace: model.Trace) -> Iterator[bytes]:
    """Yield the pieces of a trace: one behind the other, they are a trace as well."""
    writer = _PacketWriter(trace)
    for process in trace.processes():
        yield from writer.of_process(process)
    yield writer.described()


class _PacketWriter:
    """Writes packets, and strings before they are used."""

    def __init__(self, trace: model.Trace) -> None:
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

    def of_process(self, process: model.Process) -> Iterator[bytes]:
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
            yield slices

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

    def _annotate(self, annotation: protos.DebugAnnotation, key: str, value: model.Value) -> None:
        annotation.name_iid = self._number(_KEYS, key)
        if isinstance(value, str):
            annotation.string_value_iid = self._number(_TEXTS, value)
        elif isinstance(value, int):
            annotation.int_value = value
        else:
            annotation.double_value = value

    def _slices(self, track: model.SliceTrack, lanes: Sequence[int]) -> bytes:
        """Return slices, each as it begins and as it ends.

        Packets of one time stay in their order: that of a lane's slices is that of their packets.
        """
        event = protos.TrackEvent
        uuid = _number(event.TRACK_UUID_FIELD_NUMBER, np.array(lanes, np.int64)[track.lane])
        category = np.array([self._number(_CATEGORIES, track.category)])
        begin = (
            _number(event.CATEGORY_IIDS_FIELD_NUMBER, category),
            *(self._argument(*argument) for argument in track.arguments.items()),
            _number(event.TYPE_FIELD_NUMBER, np.array([_BEGIN])),
            _number(event.NAME_IID_FIELD_NUMBER, self._coded(_NAMES, track.names)),
            uuid,
            *_flows(event.FLOW_IDS_FIELD_NUMBER, track.leaving, len(uuid)),
            *_flows(event.TERMINATING_FLOW_IDS_FIELD_NUMBER, track.entering, len(uuid)),
        )
        end = (_number(event.TYPE_FIELD_NUMBER, np.array([_END])), uuid)
        packets = _packets(track.start_ns, begin) + _packets(track.end_ns, end)
        return b"".join(packets.tolist())

    def _argument(self, name: str, values: CodedTexts | model.Numbers) -> _Part:
        """Return an argument of each slice: each of its values is encoded once."""
        given: Sequence[model.Value]
        if isinstance(values, CodedTexts):
            given, code = values.texts, values.code
        else:
            distinct, code = np.unique(values.values, return_inverse=True)
            given = distinct.tolist()
        encoded = []
        for value in given:
            event = protos.TrackEvent()
            self._annotate(event.debug_annotations.add(), name, value)
            encoded.append(event.SerializeToString())
        return np.where(values.known, np.array([*encoded, b""], object)[code], b"")

    def _coded(self, kind: str, texts: CodedTexts) -> Ints:
        """Return the numbers of strings, shape (slices,); 0 where a slice has none."""
        return np.array([*(self._number(kind, text) for text in texts.texts), 0])[texts.code]


def _flows(field: int, ends: model.FlowEnds, count: int) -> Iterator[_Part]:
    """Yield the first flow of each slice, then the second ones, and so on."""
    for some in ends.turns():
        part = np.full(count, b"", object)
        part[some.place] = some.flow.view("V8").astype(object)
        yield np.where(part == b"", b"", _column(_varint(field << 3 | _EIGHT_BYTES)) + part)


def _packets(time_ns: Ints, event: Sequence[_Part]) -> _Part:
    """Return the packets of events."""
    packet = protos.TracePacket
    return _message(
        protos.Trace.PACKET_FIELD_NUMBER,
        _number(packet.TIMESTAMP_FIELD_NUMBER, time_ns),
        _number(packet.TRUSTED_PACKET_SEQUENCE_ID_FIELD_NUMBER, np.array([_SEQUENCE])),
        _message(packet.TRACK_EVENT_FIELD_NUMBER, *event),
        _number(packet.SEQUENCE_FLAGS_FIELD_NUMBER, np.array([_NEEDED])),
    )
