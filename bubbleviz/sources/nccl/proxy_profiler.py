"""The proxy profiler of NCCL before 2.26: ``NCCL_PROXY_PROFILE``, compiled in with PROFILE_PROXY.

One id is one step of one transfer of a proxy thread (``src/misc/profiler.cc``). ``pid`` is its
channel, or -1 for events of the thread that belong to no transfer::

    "Send-3-0"      b          to rank 3, step 0; args: opCount, proxyOpIndex
      "BufferWait"  b e        waits for room, then
      "GPUWait"     b e        for the GPU to fill it, then
      "SendWait"    b e        for the network to have sent
    "Send-3-0"      e

Events of one ``opCount`` (the communicator's count of operations), direction and peer are one row.
Times are microseconds since the first event. A fork of NCCL also writes bytes and the collective.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from bubbleviz.model.columns import NONE
from bubbleviz.sources.nccl.event_objects import NO_ARGS, EventObject
from bubbleviz.sources.nccl.events import (
    STATES,
    UNKNOWN,
    NcclEventBuilder,
    OperationKind,
    number_of,
    time_of,
)

_STEP = re.compile(r"(Send|Recv)-(\d+)-(\d+)")
_STEP_STATES = {
    ("Send", "BufferWait"): STATES.index("SendBufferWait"),
    ("Send", "GPUWait"): STATES.index("SendGpuWait"),
    ("Send", "SendWait"): STATES.index("SendWait"),
    ("Recv", "BufferWait"): STATES.index("RecvBufferWait"),
    ("Recv", "RecvWait"): STATES.index("RecvWait"),
    ("Recv", "FlushWait"): STATES.index("RecvFlushWait"),
    ("Recv", "GPUWait"): STATES.index("RecvGpuWait"),
}
_HEAD = re.compile(
    rb'"name"\s*:\s*"(?:(?:Send|Recv)-\d+-\d+|BufferWait|GPUWait|FlushWait|Sleep|Idle|Append)"'
    rb'\s*,\s*"cat"\s*:\s*"NET"'
)


class _Steps:
    """Steps that are open, and the rows they belong to."""

    def __init__(self, builder: NcclEventBuilder) -> None:
        self._builder = builder
        self._rows: dict[tuple[int, str, int], int] = {}
        self._open: dict[int, tuple[int, str, int]] = {}
        #: When the states of steps began, and events that belong to no transfer.
        self._begun: dict[tuple[int, str], int] = {}
        self._bytes: dict[tuple[int, int, int | None], int] = {}
        self._whole: Counter[int] = Counter()

    def take(self, event: EventObject) -> None:
        """Handle an event."""
        step, time_ns = _STEP.fullmatch(event.name), time_of(event.ts)
        if step is not None and event.ph == "b":
            self._begin(event, step[1], number_of(int(step[2][:18])), time_ns)
        elif event.ph == "b":
            self._begun[event.id, event.name] = time_ns
        elif step is not None:
            row, _, start_ns = self._open.pop(event.id, (NONE, "", UNKNOWN))
            self._builder.unbegun += row == NONE
            if row != NONE:
                self._builder.widen(row, "proxy", start_ns, time_ns)
        else:
            begun_ns = self._begun.pop((event.id, event.name), None)
            self._builder.unbegun += begun_ns is None
            row, direction, _ = self._open.get(event.id, (NONE, "", UNKNOWN))
            state = _STEP_STATES.get((direction, event.name))
            if state is not None and begun_ns is not None:
                self._builder.add_state(row, state, begun_ns, time_ns)

    def close(self) -> None:
        """Count the events that are open at the end of the file."""
        self._builder.unfinished += len(self._open) + len(self._begun)

    def _begin(self, event: EventObject, direction: str, peer: int, start_ns: int) -> None:
        builder, args = self._builder, event.args or NO_ARGS
        count = number_of(args.operation_count)
        key = count, direction, peer
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = builder.add(
                kind=OperationKind.PROXY,
                name=builder.name(direction),
                peer=peer,
                sequence=count,
                # The collective that it is part of, as AllReduce-3, where a fork writes it.
                algorithm=builder.name(event.part_of),
                host_start_ns=start_ns,
            )
        builder.widen(row, "proxy", start_ns, start_ns)
        builder.steps[row] += 1
        self._open[event.id] = row, direction, start_ns
        if event.bytes is not None:
            # Each step of a transfer holds the bytes of the whole.
            part = row, event.pid, args.proxy_operation
            whole = max(number_of(event.bytes), 0)
            self._whole[row] += whole - self._bytes.get(part, 0)
            self._bytes[part] = whole
            builder.columns["payload"][row] = number_of(self._whole[row])


def is_proxy_file(head: bytes) -> bool:
    """Return whether a file was written by the proxy profiler.

    Args:
        head: First bytes of the file.
    """
    return bool(_HEAD.search(head))


def add_proxy_events(events: Iterable[EventObject], builder: NcclEventBuilder) -> None:
    """Add the operations of all events.

    Args:
        events: Events of the file, in its order.
        builder: Takes the operations.
    """
    steps = _Steps(builder)
    for event in events:
        builder.seen[event.cat] += 1
        if event.cat == "NET":
            steps.take(event)
        elif event.cat != "COL":
            builder.strange += 1
    steps.close()
