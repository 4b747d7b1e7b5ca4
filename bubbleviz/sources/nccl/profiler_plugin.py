"""The example plugin of NCCL's profiler interface (2.23 on; ``plugins/profiler/example``).

It was called ``ext-profiler/example`` before. Lines belong together by their order, since ids count
up by category and start again in each thread. Versions 1 to 7 print this tree
(``print_event.cc``), of which ``NCCL_PROFILE_EVENT_MASK`` chooses parts::

    GROUP_API                         a group of calls (GROUP in versions 1 to 4)
      KERNEL_LAUNCH
      COLL_API | P2P_API              a call: count, datatype, root
        COLL | P2P                    an operation of one rank: communicator, peer, algorithm
          GPU    KernelCh             its kernel on one channel: start and end on the GPU's clock
            PROXY  ScheduleSend, ...  what a proxy thread sends or receives for it
              NET    SendGpuWait, ... a step of that; NET_IB, NET_SOCK: on the wire
          GPU    KernelStep
        CE_COLL                       a collective by copy engines; CE_SYNC, CE_BATCH in it
    PROXY Idle, Sleep, Append         of the proxy threads, at the end
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bubbleviz.model.columns import NONE
from bubbleviz.sources.nccl.event_objects import NO_ARGS, EventArgs, EventObject
from bubbleviz.sources.nccl.events import (
    STATES,
    UNKNOWN,
    NcclEventBuilder,
    OperationKind,
    clock_of,
    number_of,
    time_of,
)

_CATEGORIES = frozenset(
    (
        *("GROUP_API", "GROUP", "KERNEL_LAUNCH", "COLL_API", "P2P_API", "COLL", "P2P", "GPU"),
        *("PROXY", "NET", "NET_IB", "NET_SOCK", "CE_COLL", "CE_SYNC", "CE_BATCH"),
    )
)
_KINDS = {
    "COLL": OperationKind.COLLECTIVE,
    "P2P": OperationKind.POINT_TO_POINT,
    "CE_COLL": OperationKind.COPY_ENGINE,
}
_CALLS = frozenset(("COLL_API", "P2P_API"))
_STATES = {name: number for number, name in enumerate(STATES)}
#: Other collectives have no root, although one is written.
_ROOTED = frozenset(("Broadcast", "Bcast", "Reduce", "Gather", "Scatter"))
#: Events of proxy threads that belong to no operation.
_CONTROL = frozenset(("Idle", "Sleep", "Append"))
_HEAD = re.compile(
    rb'"cat"\s*:\s*"(?:GROUP_API|GROUP|KERNEL_LAUNCH|COLL_API|P2P_API|COLL|P2P|PROXY|CE_COLL)"'
)
_PHASE = re.compile(rb'"ph"\s*:\s*"[be]"')


class _Process:
    """The open events of one process, as far as its lines have been read."""

    def __init__(self, pid: int, builder: NcclEventBuilder) -> None:
        self._pid = pid
        self._builder = builder
        self._operation = NONE
        self._call: EventObject | None = None
        self._begun: dict[tuple[str, str, int], int] = {}
        self._kernel: list[int] = []

    def begin(self, event: EventObject) -> None:
        """Handle a begin."""
        category, start_ns = event.cat, time_of(event.ts)
        args = event.args or NO_ARGS
        if category in _KINDS:
            self._operation = self._row(event, self._call)
            self._call = None
        elif category in _CALLS:
            self._flush_call()
            self._call, self._operation = event, NONE
        elif category == "GPU":
            self._gpu(event, args, start_ns)
            self._kernel.append(self._operation)
            return
        self._begun[category, event.name, event.id] = start_ns

    def end(self, event: EventObject) -> None:
        """Handle an end."""
        category, end_ns = event.cat, time_of(event.ts)
        if category == "GPU":
            row = self._kernel.pop() if self._kernel else NONE
            if row != NONE:
                self._builder.widen(row, "kernel", UNKNOWN, end_ns)
            return
        start_ns = self._begun.pop((category, event.name, event.id), None)
        if start_ns is None:
            self._builder.unbegun += 1
        elif category in _KINDS:
            if self._operation != NONE:
                self._builder.columns["host_end_ns"][self._operation] = end_ns
            self._operation = NONE
            self._kernel.clear()
        elif category in _CALLS:
            self._flush_call()
        elif self._operation != NONE and category in {"NET", "PROXY"}:
            self._proxy(event, start_ns, end_ns)

    def close(self) -> None:
        """Count the events that are open at the end of the file."""
        self._flush_call()
        self._builder.unfinished += len(self._begun)

    def _proxy(self, event: EventObject, start_ns: int, end_ns: int) -> None:
        """Handle an event of a proxy thread for the operation."""
        row = self._operation
        if event.name in _CONTROL:
            return
        self._builder.widen(row, "proxy", start_ns, end_ns)
        state = _STATES.get(event.name)
        if state is not None:
            self._builder.add_state(row, state, start_ns, end_ns)
            if event.name in {"SendWait", "RecvWait"}:
                self._builder.steps[row] += 1

    def _gpu(self, event: EventObject, args: EventArgs, start_ns: int) -> None:
        """Handle a kernel on one channel; ``KernelStep`` are parts of one."""
        row = self._operation
        if row == NONE:
            return
        gpu_ns = clock_of(args.gpu_start)
        self._builder.widen(row, "gpu", gpu_ns, clock_of(args.gpu_end))
        if event.name == "KernelCh":
            self._builder.widen(row, "kernel", start_ns, UNKNOWN)
            self._builder.add_bridge(row, gpu_ns, start_ns)

    def _flush_call(self) -> None:
        """Add a call of which no operation was recorded."""
        call, self._call = self._call, None
        if call is not None:
            self._row(call, call)

    def _row(self, event: EventObject, call: EventObject | None) -> int:
        """Return the row of a new operation, whose call may have arguments that it lacks."""
        builder, args, start_ns = self._builder, event.args or NO_ARGS, time_of(event.ts)
        of_call = (call.args if call is not None else None) or NO_ARGS
        counts = (args.count, args.call_count, of_call.call_count)
        channels = args.channels if args.channels is not None else args.most_channels
        row = builder.add(
            kind=_KINDS.get(event.cat, OperationKind.CALL),
            pid=self._pid,
            name=builder.name(event.name),
            communicator=builder.communicator(args.communicator),
            rank=number_of(args.rank),
            peer=number_of(args.peer),
            root=number_of(of_call.root) if event.name in _ROOTED else NONE,
            sequence=number_of(args.sequence),
            count=number_of(next((count for count in counts if count is not None), None)),
            datatype=builder.name(args.datatype or args.call_datatype or of_call.call_datatype),
            algorithm=builder.name(args.algorithm or args.strategy),
            protocol=builder.name(args.protocol),
            channels=number_of(channels),
            host_start_ns=start_ns,
        )
        length_ns = time_of(args.gpu_us)
        if UNKNOWN not in (start_ns, length_ns):
            builder.widen(row, "kernel", start_ns, start_ns + length_ns)
        return row


def is_plugin_file(head: bytes) -> bool:
    """Return whether a file was written by the plugin.

    Args:
        head: First bytes of the file.
    """
    return bool(_HEAD.search(head) and _PHASE.search(head))


def add_plugin_events(events: Iterable[EventObject], builder: NcclEventBuilder) -> None:
    """Add the operations of all events.

    Args:
        events: Events of the file, in its order.
        builder: Takes the operations.
    """
    processes: dict[int, _Process] = {}
    for event in events:
        category = event.cat
        builder.seen[category] += 1
        if category not in _CATEGORIES:
            builder.strange += 1
            continue
        pid = number_of(event.pid)
        if pid not in processes:
            processes[pid] = _Process(pid, builder)
        if event.ph == "b":
            processes[pid].begin(event)
        elif event.ph == "e":
            processes[pid].end(event)
    for process in processes.values():
        process.close()
