"""A trace as packets of Perfetto's own format.

A stream of TracePackets (perfetto/trace/trace_packet.proto of https://perfetto.dev): tracks are
described first, then each slice is a packet where it begins and one where it ends. Each string is
written once, with the packet that first uses it, and is a number from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from bubbleviz.render.trace import trace as model
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Every packet is of the one sequence whose strings it uses.
_SEQUENCE = 1
#: Fields of InternedData.
_NAMES, _CATEGORIES = "event_names", "event_categories"
_KEYS, _TEXTS = "debug_annotation_names", "debug_annotation_string_values"


def render(report: Report, _: View) -> bytes:
    """Return the whole report as a Perfetto trace, whatever the view."""
    return b"".join(written(model.trace_of(report)))


def written(trace: model.Trace) -> Iterator[bytes]:
    """Yield the pieces of a trace: one behind the other, they are a trace as well."""
    writer = _PacketWriter(trace)
    for process in trace.processes():
        yield writer.of_process(process)


class _PacketWriter:
    """Writes packets, and strings with those that use them first."""

    def __init__(self, trace: model.Trace) -> None:
        self._trace = trace
        self._open = protos.Trace()
        self._uuid = 0
        self._numbers: dict[tuple[str, str], int] = {}
        packet = self._packet()
        packet.first_packet_on_sequence = True
        packet.sequence_flags = packet.SEQ_INCREMENTAL_STATE_CLEARED
        # The root: processes are in the order of their ranks.
        packet.track_descriptor.uuid = 0
        packet.track_descriptor.process_ordering = packet.track_descriptor.PROCESS_ORDERING_EXPLICIT

    def of_process(self, process: model.Process) -> bytes:
        """Return the packets of a process."""
        described = self._described(process.order)
        uuid = described.uuid
        described.process.pid = process.number
        described.process.process_name = process.name
        described.process.process_labels.extend(process.labels)
        described.child_ordering = described.EXPLICIT
        if not process.tracks:
            # The properties of the trace, as an event where it begins.
            child = self._child(uuid, 0, "report")
            packet, event = self._event(self._trace.first_ns, "TYPE_INSTANT", child)
            event.name_iid = self._number(packet, _NAMES, "report")
            for name, value in self._trace.facts().items():
                self._annotate(packet, name, value)
        counter = self._described(1, uuid)
        counter.name = f"bubble ratio ({self._trace.ratio})"
        counter.counter.unit_name = "fraction"
        for time_ns, ratio in process.ratios:
            _, event = self._event(time_ns, "TYPE_COUNTER", counter.uuid)
            event.double_counter_value = ratio
        for place, track in enumerate(process.tracks, 2):
            self._slices(track, [self._child(uuid, place, track.name) for _ in range(track.lanes)])
        pieces: bytes = self._open.SerializeToString()
        self._open = protos.Trace()
        return pieces

    def _packet(self) -> protos.TracePacket:
        packet = self._open.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = packet.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def _event(
        self, time_ns: int, kind: str, track: int
    ) -> tuple[protos.TracePacket, protos.TrackEvent]:
        packet = self._packet()
        packet.timestamp = time_ns
        packet.track_event.type = getattr(protos.TrackEvent, kind)
        packet.track_event.track_uuid = track
        return packet, packet.track_event

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

    def _number(self, packet: protos.TracePacket, kind: str, text: str) -> int:
        """Return the number of a string; a new one is described with the packet that uses it."""
        number = self._numbers.get((kind, text))
        if number is None:
            number = self._numbers[kind, text] = len(self._numbers) + 1
            entry = getattr(packet.interned_data, kind).add()
            entry.iid = number
            if kind == _TEXTS:
                entry.str = text.encode()
            else:
                entry.name = text
        return number

    def _annotate(self, packet: protos.TracePacket, key: str, value: model.Value) -> None:
        annotation = packet.track_event.debug_annotations.add()
        annotation.name_iid = self._number(packet, _KEYS, key)
        if isinstance(value, str):
            annotation.string_value_iid = self._number(packet, _TEXTS, value)
        elif isinstance(value, int):
            annotation.int_value = value
        else:
            annotation.double_value = value

    def _slices(self, track: model.SliceTrack, lanes: Sequence[int]) -> None:
        """Write slices, each as it begins and as it ends."""
        for own in track.slices():
            packet, event = self._event(own.start_ns, "TYPE_SLICE_BEGIN", lanes[own.lane])
            event.category_iids.append(self._number(packet, _CATEGORIES, track.category))
            event.name_iid = self._number(packet, _NAMES, own.name)
            for name, value in own.arguments.items():
                self._annotate(packet, name, value)
            event.flow_ids.extend(own.leaving)
            event.terminating_flow_ids.extend(own.entering)
            self._event(own.end_ns, "TYPE_SLICE_END", lanes[own.lane])
