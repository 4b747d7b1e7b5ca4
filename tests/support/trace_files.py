"""Reads traces in the same way as a viewer: event by event, sorted by time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any


@dataclass
class Slice:
    """A slice, with the process and lane in which a viewer shows the slice."""

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
    """Contents of a trace."""

    processes: list[tuple[int, str]] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def of(self, category: str, process: int | None = None) -> list[Slice]:
        """Return the slices of a category, sorted by process, lane and time."""
        slices = [s for s in self.slices if s.category == category]
        return sorted((s for s in slices if process in (None, s.process)), key=lambda s: s.place)


def convert_to_ns(time_us: Decimal | int) -> int:
    """Convert microseconds to nanoseconds, and check that the result is an integer."""
    time_ns = time_us * 1000
    assert time_ns == int(time_ns)
    return int(time_ns)


def read_chrome(text: str) -> Loaded:
    """Read a trace in Chrome's format, and check that viewers show it as intended.

    Thread ids must be unique in the document, and each flow must begin and end at the start of a
    slice.
    """
    document = json.loads(text, parse_float=Decimal)
    assert list(document) == ["displayTimeUnit", "otherData", "traceEvents"]
    assert document["displayTimeUnit"] == "ns"
    trace = Loaded(facts=document["otherData"])
    names: dict[tuple[str, int, int | None], Any] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            (value,) = event["args"].values()
            names[event["name"], event["pid"], event.get("tid")] = value
    pids = [pid for name, pid, _ in names if name == "process_name"]
    pids.sort(key=lambda pid: names["process_sort_index", pid, None])
    trace.processes = [(pid, names["process_name", pid, None]) for pid in pids]
    tids = [tid for name, _, tid in names if name == "thread_name"]
    assert len(tids) == len(set(tids)), "viewers may take threads of one number for one"
    assert not set(tids) & set(pids)
    lanes: dict[tuple[int, str], list[int]] = {}
    for name, pid, tid in names:
        if name == "thread_name" and tid is not None:
            lanes.setdefault((pid, names[name, pid, tid].split(" (")[0]), []).append(tid)
    where = {
        tid: (track, slice_.index(tid)) for (_, track), slice_ in lanes.items() for tid in slice_
    }
    last: dict[int, Slice] = {}
    # Events are sorted by time. Events with equal times keep their order in the file.
    for event in sorted((e for e in document["traceEvents"] if "ts" in e), key=lambda e: e["ts"]):
        time_ns = convert_to_ns(event["ts"])
        if event["ph"] == "C":
            (value,) = event["args"].values()
            trace.counters.setdefault(event["pid"], []).append((time_ns, float(value)))
        elif event["ph"] == "X":
            end_ns = time_ns + convert_to_ns(event["dur"])
            track, lane = where[event["tid"]]
            arguments = {
                key: float(value) if isinstance(value, Decimal) else value
                for key, value in event["args"].items()
            }
            last[event["tid"]] = Slice(
                event["pid"], track, lane, event["cat"], event["name"], time_ns, end_ns, arguments
            )
            trace.slices.append(last[event["tid"]])
        else:
            slice_ = last[event["tid"]]
            assert slice_.start_ns == time_ns, "a flow ends in a slice, at its start"
            (slice_.leaving if event["ph"] == "s" else slice_.entering).append(event["id"])
            assert event["ph"] == "s" or event["bp"] == "e"
    return trace
