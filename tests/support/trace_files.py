"""Reads traces back, in either format, as a viewer does: packet by packet, in order of time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Slice:
    """A slice, in the process and on the lane where a viewer shows it."""

    process: int
    track: str
    lane: int
    category: str
    name: str
    start_ns: int
    end_ns: int
    arguments: dict[str, Any]
    leaving: list[int] = field(default_factory=list)
    entering: list[int] = field(default_factory=list)

    @property
    def place(self) -> tuple[Any, ...]:
        return (self.process, self.category, self.start_ns, self.end_ns, self.lane, self.name)


@dataclass
class Loaded:
    """What a trace holds."""

    processes: list[tuple[int, str]] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def of(self, category: str, process: int | None = None) -> list[Slice]:
        """Return the slices of a category, in order of their places."""
        some = [s for s in self.slices if s.category == category]
        return sorted((s for s in some if process in (None, s.process)), key=lambda s: s.place)


def whole_ns(time_us: Decimal | int) -> int:
    """Return microseconds as nanoseconds; there is nothing below these."""
    time_ns = time_us * 1000
    assert time_ns == int(time_ns)
    return int(time_ns)


def read_chrome(text: str) -> Loaded:
    """Return what a trace in Chrome's format holds."""
    document = json.loads(text, parse_float=Decimal)
    assert list(document) == ["displayTimeUnit", "otherData", "traceEvents"]
    assert document["displayTimeUnit"] == "ns"
    found = Loaded(facts=document["otherData"])
    told: dict[tuple[str, int, int | None], Any] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            (value,) = event["args"].values()
            told[event["name"], event["pid"], event.get("tid")] = value
    pids = [pid for name, pid, _ in told if name == "process_name"]
    pids.sort(key=lambda pid: told["process_sort_index", pid, None])
    found.processes = [(pid, told["process_name", pid, None]) for pid in pids]
    tids = [tid for name, _, tid in told if name == "thread_name"]
    assert len(tids) == len(set(tids)), "viewers may take threads of one number for one"
    assert not set(tids) & set(pids)
    lanes: dict[tuple[int, str], list[int]] = {}
    for name, pid, tid in told:
        if name == "thread_name" and tid is not None:
            lanes.setdefault((pid, told[name, pid, tid].split(" (")[0]), []).append(tid)
    where = {tid: (track, own.index(tid)) for (_, track), own in lanes.items() for tid in own}
    last: dict[int, Slice] = {}
    # In order of time; those of one time stand in the order of the file.
    for event in sorted((e for e in document["traceEvents"] if "ts" in e), key=lambda e: e["ts"]):
        time_ns = whole_ns(event["ts"])
        if event["ph"] == "C":
            (value,) = event["args"].values()
            found.counters.setdefault(event["pid"], []).append((time_ns, float(value)))
        elif event["ph"] == "X":
            end_ns = time_ns + whole_ns(event["dur"])
            track, lane = where[event["tid"]]
            arguments = {
                key: float(value) if isinstance(value, Decimal) else value
                for key, value in event["args"].items()
            }
            last[event["tid"]] = Slice(
                event["pid"], track, lane, event["cat"], event["name"], time_ns, end_ns, arguments
            )
            found.slices.append(last[event["tid"]])
        else:
            own = last[event["tid"]]
            assert own.start_ns == time_ns, "a flow ends in a slice, at its start"
            (own.leaving if event["ph"] == "s" else own.entering).append(event["id"])
            assert event["ph"] == "s" or event["bp"] == "e"
    return found


def read_perfetto(data: bytes) -> Loaded:
    """Return what a trace in Perfetto's format holds."""
    trace = Trace.FromString(data)
    found = Loaded()
    strings: dict[str, dict[int, Any]] = {}
    tracks: dict[int, Any] = {}
    events = []
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        assert packet.sequence_flags == (1 if packet.first_packet_on_sequence else 2)
        for kind, entries in packet.interned_data.ListFields():
            for entry in entries:
                own = strings.setdefault(kind.name, {})
                assert entry.iid not in own
                own[entry.iid] = getattr(entry, "name", None) or entry.str.decode()
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in tracks
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in tracks, "described before it is used"
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert event.name_iid in strings["event_names"]
            events.append(packet)
        else:
            assert packet.HasField("interned_data"), packet
    assert tracks[0].process_ordering == tracks[0].PROCESS_ORDERING_EXPLICIT
    groups = [t for t in tracks.values() if t.HasField("process")]
    groups.sort(key=lambda t: t.sibling_order_rank)
    found.processes = [(t.process.pid, t.process.process_name) for t in groups]
    lanes: dict[tuple[int, str], list[int]] = {}
    for uuid, track in tracks.items():
        if track.parent_uuid:
            assert tracks[track.parent_uuid].child_ordering == track.EXPLICIT
            lanes.setdefault((track.parent_uuid, track.name), []).append(uuid)
    _replay(events, tracks, strings, lanes, found)
    return found


def _replay(
    events: list[Any],
    tracks: dict[int, Any],
    strings: dict[str, dict[int, Any]],
    lanes: dict[tuple[int, str], list[int]],
    found: Loaded,
) -> None:
    stacks: dict[int, list[Slice]] = {}
    for packet in sorted(events, key=lambda packet: packet.timestamp):
        event, time_ns = packet.track_event, packet.timestamp
        track = tracks[event.track_uuid]
        process = tracks[track.parent_uuid].process.pid
        stack = stacks.setdefault(event.track_uuid, [])
        arguments = {
            strings["debug_annotation_names"][a.name_iid]: strings[
                "debug_annotation_string_values"
            ][a.string_value_iid]
            if a.HasField("string_value_iid")
            else getattr(a, a.WhichOneof("value"))
            for a in event.debug_annotations
        }
        if event.type == TrackEvent.TYPE_COUNTER:
            own = found.counters.setdefault(process, [])
            own.append((time_ns, event.double_counter_value))
        elif event.type == TrackEvent.TYPE_INSTANT:
            found.facts = arguments
        elif event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().end_ns = time_ns
        else:
            assert not stack, "slices of a lane follow each other"
            (category,) = (strings["event_categories"][iid] for iid in event.category_iids)
            name, lane = strings["event_names"][event.name_iid], event.track_uuid
            begun = Slice(
                process,
                track.name,
                lanes[track.parent_uuid, track.name].index(lane),
                category,
                name,
                time_ns,
                -1,
                arguments,
                list(event.flow_ids),
                list(event.terminating_flow_ids),
            )
            stack.append(begun)
            found.slices.append(begun)
    assert not any(stacks.values()), "every slice ends"
