r"""The proxy profiler of NCCL before 2.26: ``NCCL_PROXY_PROFILE``, compiled in with PROFILE_PROXY.

One id is one step of one transfer of a proxy thread (``src/misc/profiler.cc``); ``pid`` is its
channel, -1 for events of the thread that belong to no transfer::

    "Send-3-0"      b          to rank 3, step 0; args: opCount, proxyOpIndex
      "BufferWait"  b e        waits for room, then
      "GPUWait"     b e        for the GPU to fill it, then
      "SendWait"    b e        for the network to have sent
    "Send-3-0"      e

Events of one ``opCount`` (the communicator's count of operations), direction and peer are one row.
Times are microseconds since the first event. A fork of NCCL writes bytes and the collective, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from bubbleviz.sources.nccl.events import (
    STATES,
    NcclEventBuilder,
    OperationKind,
    number_of,
    time_of,
)
from bubbleviz.sources.nccl.formats import EventFileFormat
from bubbleviz.sources.nccl.lines import EventObject

_STEP = re.compile(r"(Send|Recv)-(\d+)-(\d+)")
_STATES = {
    ("Send", "BufferWait"): STATES.index("SendBufferWait"),
    ("Send", "GPUWait"): STATES.index("SendGpuWait"),
    ("Send", "SendWait"): STATES.index("SendWait"),
    ("Recv", "BufferWait"): STATES.index("RecvBufferWait"),
    ("Recv", "RecvWait"): STATES.index("RecvWait"),
    ("Recv", "FlushWait"): STATES.index("RecvFlushWait"),
    ("Recv", "GPUWait"): STATES.index("RecvGpuWait"),
}
_CONTROL = frozenset(("Sleep", "Idle", "Append"))
_HEAD = re.compile(
    rb'"name"\s*:\s*"(?:(?:Send|Recv)-\d+-\d+|BufferWait|GPUWait|FlushWait|Sleep|Idle|Append)"'
    rb'\s*,\s*"cat"\s*:\s*"NET"'
)


class ProxyArgs(
    msgspec.Struct,
    rename={"operation_count": "opCount", "proxy_operation": "proxyOpIndex"},
    gc=False,
):
    """Arguments of a step; those that it lacks are None."""

    operation_count: int | None = None
    proxy_operation: int | None = None


class ProxyEvent(EventObject, rename={"bytes": "totalbytes", "part_of": "collectiveName"}):
    """A begin or end; ``pid`` is its channel.

    Attributes:
        args: of a step.
        bytes: of a transfer, in a fork of NCCL.
        part_of: the collective that a transfer is part of, in the same fork.
    """

    args: ProxyArgs | None = None
    bytes: int | None = None
    part_of: str | None = None


_NO_ARGS = ProxyArgs()


class _Steps:
    """Steps that are open, and the rows they belong to."""

    def __init__(self, builder: NcclEventBuilder) -> None:
        self._builder = builder
        self._rows: dict[tuple[int, str, int], int] = {}
        self._open: dict[int, tuple[int, str, int, int]] = {}
        self._states: dict[tuple[int, str], int] = {}
        self._loose: dict[tuple[int, str], int] = {}
        self._bytes: dict[tuple[int, int, int | None], int] = {}
        self._whole: dict[int, int] = {}

    def take(self, event: ProxyEvent) -> None:
        """Handle an event."""
        step = _STEP.fullmatch(event.name)
        begins = event.ph == "b"
        if step is not None:
            direction, peer = step[1], number_of(int(step[2][:18]))
            self._begin(event, direction, peer) if begins else self._end(event)
        elif event.name in _CONTROL:
            self._pair(self._loose, event, begins=begins)
        elif begins:
            self._states[event.id, event.name] = time_of(event.ts)
        else:
            self._state(event)

    def close(self) -> None:
        """Count the events that are open at the end of the file."""
        self._builder.unfinished += len(self._open) + len(self._states) + len(self._loose)

    def _begin(self, event: ProxyEvent, direction: str, peer: int) -> None:
        builder, args = self._builder, event.args or _NO_ARGS
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
                host_start_ns=time_of(event.ts),
            )
        start_ns = time_of(event.ts)
        builder.widen(row, "proxy", start_ns, start_ns)
        builder.add_step(row)
        self._open[event.id] = row, direction, event.pid, start_ns
        if event.bytes is not None:
            # Each step of a transfer holds the bytes of the whole.
            part = row, event.pid, args.proxy_operation
            before = self._bytes.get(part, 0)
            self._bytes[part] = max(number_of(event.bytes), 0)
            self._whole[row] = self._whole.get(row, 0) + self._bytes[part] - before
            builder.set(row, "payload", number_of(self._whole[row]))

    def _end(self, event: ProxyEvent) -> None:
        step = self._open.pop(event.id, None)
        if step is None:
            self._builder.unbegun += 1
            return
        row, _, _, start_ns = step
        self._builder.widen(row, "proxy", start_ns, time_of(event.ts))

    def _state(self, event: ProxyEvent) -> None:
        start_ns = self._states.pop((event.id, event.name), None)
        step = self._open.get(event.id)
        if start_ns is None or step is None:
            self._builder.unbegun += start_ns is None
            return
        row, direction, _, _ = step
        state = _STATES.get((direction, event.name))
        if state is not None:
            self._builder.add_state(row, state, start_ns, time_of(event.ts))

    def _pair(self, begun: dict[tuple[int, str], int], event: ProxyEvent, *, begins: bool) -> None:
        if begins:
            begun[event.id, event.name] = 0
        elif begun.pop((event.id, event.name), None) is None:
            self._builder.unbegun += 1


def _build(events: Iterable[ProxyEvent], builder: NcclEventBuilder) -> None:
    steps = _Steps(builder)
    for event in events:
        builder.seen[event.cat] += 1
        if event.cat in {"NET", "COL"}:
            if event.cat == "NET":
                steps.take(event)
        else:
            builder.strange += 1
    steps.close()


FORMAT = EventFileFormat(
    name="proxy profiler",
    event=ProxyEvent,
    recognises=lambda head: bool(_HEAD.search(head)),
    build=_build,
)
