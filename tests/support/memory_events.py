"""Adds memory events with known allocations to PyTorch traces."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Allocations:
    """Bytes allocated by the operations of one virtual stage.

    Attributes:
        held: Bytes that an F allocates and that are freed at the end of its B.
        kept: Additional bytes that an F allocates and that are freed at the end of its W or BW.
        output: Bytes that an F allocates and that are freed at the end of the next operation.
        temporary: Bytes that every operation allocates and frees before it ends.
        resident: Bytes allocated before the first event.
    """

    held: int = 0
    kept: int = 0
    output: int = 0
    temporary: int = 0
    resident: int = 0


def plant_memory(trace: Path, by_rank: Allocations, layers: tuple[int, ...] = ()) -> None:
    """Add memory events to the trace of one rank.

    Args:
        trace: Gzipped trace.
        by_rank: Bytes that the operations of the rank allocate.
        layers: Bytes allocated in each layer range inside an F, in layer order. They are freed at
            the end of its B.
    """
    document = json.loads(gzip.decompress(trace.read_bytes()))
    ranges = [e for e in document["traceEvents"] if e.get("cat") == "user_annotation"]
    work = sorted((e for e in ranges if e["name"][0] in "FBW" and e["name"][1].isdigit()),
                  key=lambda e: e["ts"])  # fmt: skip
    kernel = next(e for e in document["traceEvents"] if e.get("cat") == "kernel")
    writer = _Writer(work[0]["pid"], work[0]["tid"], kernel["args"]["device"])
    splits = any(e["name"][0] == "W" for e in work)
    pending: list[int] = []
    live: dict[str, tuple[list[int], list[int]]] = {}
    for event in work:
        name, begin_us, end = event["name"], event["ts"], event["ts"] + event["dur"]
        temporary = writer.allocate(begin_us + event["dur"] * 0.1, by_rank.temporary)
        if name[0] == "F":
            to_b = [writer.allocate(begin_us + event["dur"] * 0.2, by_rank.held)]
            inner_ranges = sorted((e for e in ranges if "layer" in e["name"].lower()
                             and begin_us <= e["ts"] <= end and e["tid"] == event["tid"]),
                            key=lambda e: e["ts"])  # fmt: skip
            for layer, amount in zip(inner_ranges, layers, strict=False):
                to_b.append(writer.allocate(layer["ts"] + layer["dur"] / 2, amount))
            to_w = [writer.allocate(begin_us + event["dur"] * 0.3, by_rank.kept)]
            live[name[1:]] = to_b, to_w
            events = [writer.allocate(begin_us + event["dur"] * 0.4, by_rank.output)]
        else:
            events = []
            to_b, to_w = live[name[1:]]
            freed = to_w if name[0] == "W" else to_b if splits else [*to_b, *to_w]
            for address in freed:
                writer.free(end - event["dur"] * 0.1, address)
        writer.free(end - event["dur"] * 0.05, temporary)
        for address in pending:
            writer.free(end - event["dur"] * 0.02, address)
        pending = events
    document["traceEvents"] += writer.events(by_rank.resident)
    trace.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


class _Writer:
    """Collects allocations and frees, and returns them sorted by time with running totals."""

    def __init__(self, pid: int, tid: int, device: int) -> None:
        self._place = {"pid": pid, "tid": tid}
        self._device = device
        self._changes: list[tuple[float, int, int]] = []
        self._sizes: dict[int, int] = {}

    def allocate(self, time: float, amount: int) -> int:
        """Allocate bytes and return their address, or 0 if the amount is 0."""
        if not amount:
            return 0
        address = 4096 * (len(self._sizes) + 1)
        self._sizes[address] = amount
        self._changes.append((time, address, amount))
        return address

    def free(self, time: float, address: int) -> None:
        """Free the bytes at an address."""
        if address:
            self._changes.append((time, address, -self._sizes[address]))

    def events(self, total: int) -> list[dict[str, Any]]:
        """Return the events. ``total`` is the number of bytes allocated before the first event."""
        events = []
        for time, address, change in sorted(self._changes):
            total += change
            args = {"Total Allocated": total, "Bytes": change, "Addr": address,
                    "Device Type": 1, "Device Id": self._device}  # fmt: skip
            events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
                           "ts": time, **self._place, "args": args})  # fmt: skip
            # Host memory is not device memory, so this event must have no effect.
            host = {**args, "Device Type": 0, "Device Id": -1, "Bytes": 1 << 40}
            events.append({**events[-1], "args": host})
        return events
