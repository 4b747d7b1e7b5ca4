"""Reads event files from the proxy profiler in NCCL versions before 2.26.

NCCL writes such a file if it was compiled with PROFILE_PROXY and ``NCCL_PROXY_PROFILE`` is set. An
id identifies one step of one transfer of a proxy thread (``src/misc/profiler.cc``). ``pid`` is the
channel, or -1 for thread events that do not belong to a transfer::

    "Send-3-0"      b          to rank 3, step 0; args: opCount, proxyOpIndex
      "BufferWait"  b e        waits for a free buffer, then
      "GPUWait"     b e        for the GPU to fill it, then
      "SendWait"    b e        for the network to send it
    "Send-3-0"      e

All events with the same ``opCount`` (the operation count of the communicator), direction and peer
become one row. Times are microseconds since the first event. A fork of NCCL also writes the number
of bytes and the collective.
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
    parse_number,
    parse_time,
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
    """Tracks open transfer steps, and the rows to which they belong.

    Args:
        builder: Builder to which rows are added.
    """

    def __init__(self, builder: NcclEventBuilder) -> None:
        self._builder = builder
        self._rows: dict[tuple[int, str, int], int] = {}
        self._open: dict[int, tuple[int, str, int]] = {}
        #: Start times of open states and other open events, keyed by id and name.
        self._open_since: dict[tuple[int, str], int] = {}
        self._bytes: dict[tuple[int, int, int | None], int] = {}
        self._payload_of_row: Counter[int] = Counter()

    def add_event(self, event: EventObject) -> None:
        """Process the start or end of a step, or of a state that a step goes through.

        - The end of a step is matched to its start by id, and extends the proxy times of its row.
        - The end of a state is matched to its start by id and name. The interval is added to the
          row of the open step with the same id.
        - An end whose start is missing is only counted.
        """
        step, time_ns = _STEP.fullmatch(event.name), parse_time(event.ts)
        if step is not None and event.ph == "b":
            self._begin_step(event, step[1], parse_number(int(step[2][:18])), time_ns)
        elif event.ph == "b":
            self._open_since[event.id, event.name] = time_ns
        elif step is not None:
            row, _, start_ns = self._open.pop(event.id, (NONE, "", UNKNOWN))
            self._builder.n_without_begin += row == NONE
            if row != NONE:
                self._builder.extend_times(row, "proxy", start_ns, time_ns)
        else:
            state_start_ns = self._open_since.pop((event.id, event.name), None)
            self._builder.n_without_begin += state_start_ns is None
            row, direction, _ = self._open.get(event.id, (NONE, "", UNKNOWN))
            state = _STEP_STATES.get((direction, event.name))
            if state is not None and state_start_ns is not None:
                self._builder.add_state(row, state, state_start_ns, time_ns)

    def close(self) -> None:
        """Count the events that are still open at the end of the file."""
        self._builder.n_without_end += len(self._open) + len(self._open_since)

    def _begin_step(self, event: EventObject, direction: str, peer: int, start_ns: int) -> None:
        """Open a step. The first step with a given operation count, direction and peer adds a row.

        A row's payload is the total size of its transfers. A transfer has several steps, each of
        which states the size of the complete transfer.

        Args:
            event: Event that starts the step.
            direction: "Send" or "Recv".
            peer: Rank of the peer.
            start_ns: Start time of the step.
        """
        builder, args = self._builder, event.args or NO_ARGS
        count = parse_number(args.operation_count)
        key = count, direction, peer
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = builder.add(
                kind=OperationKind.PROXY,
                name=builder.number_name(direction),
                peer=peer,
                sequence=count,
                # The collective of the transfer, such as AllReduce-3, written by a fork of NCCL.
                algorithm=builder.number_name(event.part_of),
                host_start_ns=start_ns,
            )
        builder.extend_times(row, "proxy", start_ns, start_ns)
        builder.steps[row] += 1
        self._open[event.id] = row, direction, start_ns
        if event.bytes is not None:
            # Every step states the size of the complete transfer.
            transfer = row, event.pid, args.proxy_operation
            transfer_bytes = max(parse_number(event.bytes), 0)
            self._payload_of_row[row] += transfer_bytes - self._bytes.get(transfer, 0)
            self._bytes[transfer] = transfer_bytes
            builder.columns["payload"][row] = parse_number(self._payload_of_row[row])


def is_proxy_file(head: bytes) -> bool:
    """Return whether a file was written by the proxy profiler.

    Args:
        head: First bytes of the file.
    """
    return bool(_HEAD.search(head))


def add_proxy_events(events: Iterable[EventObject], builder: NcclEventBuilder) -> None:
    """Add the operations of all events to the builder.

    Only events in the category ``NET`` are used. Events in the category ``COL`` are ignored, and
    events in other categories are counted as unknown.

    Args:
        events: Events in the file, in file order.
        builder: Builder that receives the operations.
    """
    steps = _Steps(builder)
    for event in events:
        builder.category_counts[event.cat] += 1
        if event.cat == "NET":
            steps.add_event(event)
        elif event.cat != "COL":
            builder.n_unknown += 1
    steps.close()
