"""Perfetto: the report as a trace for ui.perfetto.dev, in its own binary format.

A stream of TracePackets (perfetto/trace/trace_packet.proto of https://perfetto.dev): tracks are
described first, then each slice is a packet where it begins and one where it ends. Each string
is written once, where it is first used, and is a number from then on. The builder comes with
Perfetto's own package, an extra: ``pip install 'bubbleviz[perfetto]'``.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from bubbleviz.errors import OutputError
from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
        DebugAnnotation,
        TracePacket,
        TrackDescriptor,
    )

    from bubbleviz.render.trace.trace import Trace
    from bubbleviz.render.trace.tracks import Counter, Process, SliceTrack, Value
    from bubbleviz.report.report import Report, View

#: Every packet is of the one sequence whose strings it uses.
_SEQUENCE = 1
#: Packets that are serialised in one piece: as objects they take twenty times as much memory.
_PIECE = 20_000
#: TracePacket.SequenceFlags.
_CLEARED, _NEEDED = 1, 2
#: TrackEvent.Type.
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
#: Fields of InternedData.
_NAMES, _CATEGORIES = "event_names", "event_categories"
_KEYS, _TEXTS = "debug_annotation_names", "debug_annotation_string_values"


def check() -> None:
    """Check that traces can be written.

    Raises:
        OutputError: Perfetto's package is not installed.
    """
    if importlib.util.find_spec("perfetto") is None:
        raise OutputError(
            "traces for Perfetto need its package; install it with: "
            "pip install 'bubbleviz[perfetto]', or write --chrome"
        )


def render(report: Report, view: View) -> bytes:
    """Return the whole report as a Perfetto trace, whatever the view.

    Raises:
        OutputError: Perfetto's package is not installed.
    """
    del view
    check()
    from bubbleviz.render.trace.trace import trace_of

    writer = _PacketWriter()
    writer.write(trace_of(report))
    return writer.bytes()


class _PacketWriter:
    """Writes packets, and strings where they are first used."""

    def __init__(self) -> None:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        self._builder = TraceProtoBuilder
        self._open = TraceProtoBuilder()
        self._packets = 0
        self._pieces: list[bytes] = []
        self._uuid = 0
        self._numbers: dict[str, dict[str, int]] = {
            kind: {} for kind in (_NAMES, _CATEGORIES, _KEYS, _TEXTS)
        }
        self._keys, self._texts = self._numbers[_KEYS], self._numbers[_TEXTS]

    def bytes(self) -> bytes:
        """Return all packets; serialised pieces, one after the other, are a trace as well."""
        return b"".join((*self._pieces, self._open.serialize()))

    def write(self, trace: Trace) -> None:
        """Write a trace."""
        packet = self._packet()
        packet.first_packet_on_sequence = True
        packet.sequence_flags = _CLEARED
        # The root: processes are in the order of their ranks.
        packet.track_descriptor.uuid = 0
        packet.track_descriptor.process_ordering = packet.track_descriptor.PROCESS_ORDERING_EXPLICIT
        for process in trace.processes():
            self._process(process, trace)

    def _process(self, process: Process, trace: Trace) -> None:
        described = self._described(process.order)
        uuid = described.uuid
        described.process.pid = process.number
        described.process.process_name = process.name
        described.process.process_labels.extend(process.labels)
        described.child_ordering = described.EXPLICIT
        if not process.tracks:
            self._facts(trace, self._child(uuid, 0, "report"))
        self._counter(process.counter, self._described(1, uuid))
        for place, track in enumerate(process.tracks, 2):
            lanes = [self._child(uuid, place, track.name) for _ in range(track.lanes)]
            self._slices(track, lanes)

    def _described(self, order: int, parent: int | None = None) -> TrackDescriptor:
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

    def _packet(self) -> TracePacket:
        if self._packets == _PIECE:
            self._pieces.append(self._open.serialize())
            self._open, self._packets = self._builder(), 0
        self._packets += 1
        packet = self._open.add_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _NEEDED
        return packet

    def _number(self, packet: TracePacket, kind: str, text: str) -> int:
        """Return the number of a string; a new one is added to the packet that needs it."""
        numbers = self._numbers[kind]
        number = numbers.get(text)
        if number is None:
            number = numbers[text] = len(numbers) + 1
            entry = getattr(packet.interned_data, kind).add()
            entry.iid = number
            if kind == _TEXTS:
                entry.str = text.encode()
            else:
                entry.name = text
        return number

    def _facts(self, trace: Trace, uuid: int) -> None:
        packet = self._packet()
        packet.timestamp = trace.first_ns
        event = packet.track_event
        event.type, event.track_uuid = _INSTANT, uuid
        event.name_iid = self._number(packet, _NAMES, "report")
        for name, value in trace.facts().items():
            self._annotate(packet, event.debug_annotations.add(), name, value)

    def _counter(self, counter: Counter, described: TrackDescriptor) -> None:
        described.name = f"bubble ratio ({counter.name})"
        described.counter.unit_name = "fraction"
        for time_ns, value in zip(counter.time_ns, counter.values, strict=True):
            packet = self._packet()
            packet.timestamp = time_ns
            event = packet.track_event
            event.type, event.track_uuid = _COUNTER, described.uuid
            event.double_counter_value = value

    def _slices(self, track: SliceTrack, lanes: list[int]) -> None:
        """Write slices, each as it begins and as it ends.

        Packets of one time stay in their order: that of a lane's slices is that of their packets.
        """
        arguments = [(argument.name, argument.values) for argument in track.arguments]
        columns = (track.start_ns.tolist(), track.end_ns.tolist(), track.lane.tolist(), track.names)
        for place, (start_ns, end_ns, lane, name) in enumerate(zip(*columns, strict=True)):
            packet = self._packet()
            packet.timestamp = start_ns
            event = packet.track_event
            event.type, event.track_uuid = _BEGIN, lanes[lane]
            event.name_iid = self._number(packet, _NAMES, name)
            event.category_iids.append(self._number(packet, _CATEGORIES, track.category))
            event.flow_ids.extend(track.leaving.get(place, ()))
            event.terminating_flow_ids.extend(track.entering.get(place, ()))
            annotations = event.debug_annotations
            for key, values in arguments:
                value = values[place]
                if value is not None:
                    self._annotate(packet, annotations.add(), key, value)
            packet = self._packet()
            packet.timestamp = end_ns
            event = packet.track_event
            event.type, event.track_uuid = _END, lanes[lane]

    def _annotate(
        self, packet: TracePacket, annotation: DebugAnnotation, key: str, value: Value
    ) -> None:
        annotation.name_iid = self._keys.get(key) or self._number(packet, _KEYS, key)
        if isinstance(value, str):
            number = self._texts.get(value) or self._number(packet, _TEXTS, value)
            annotation.string_value_iid = number
        elif isinstance(value, int):
            annotation.int_value = value
        else:
            annotation.double_value = value


RENDERER = Renderer(
    name="perfetto",
    summary="a trace for ui.perfetto.dev, its own format",
    render=render,
    order=9,
    check=check,
    binary=True,
)
