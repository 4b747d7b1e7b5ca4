"""Reads event files from the example plugin for NCCL's profiler interface (since NCCL 2.23).

The plugin is in ``plugins/profiler/example``, which was formerly ``ext-profiler/example``. Ids are
numbered per category and restart in each thread, so events are assigned to their parents by file
order. Versions 1 to 7 of the plugin print the parts of the following tree that
``NCCL_PROFILE_EVENT_MASK`` selects (``print_event.cc``)::

    GROUP_API                         a group of calls (GROUP in versions 1 to 4)
      KERNEL_LAUNCH
      COLL_API | P2P_API              a call: count, datatype, root
        COLL | P2P                    an operation of one rank: communicator, peer, algorithm
          GPU    KernelCh             its kernel on one channel: start and end on the GPU's clock
            PROXY  ScheduleSend, ...  a send or receive of a proxy thread for it
              NET    SendGpuWait, ... a state of a step of that; NET_IB, NET_SOCK: on the wire
          GPU    KernelStep
        CE_COLL                       a collective by copy engines, with CE_SYNC and CE_BATCH
    PROXY Idle, Sleep, Append         the proxy threads themselves, at the end
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bubbleviz.model.columns import NONE
from bubbleviz.sources.nccl.event_objects import NO_ARGS, EventArgs, EventObject
from bubbleviz.sources.nccl.events import (
    ROOTED_OPERATIONS,
    STATES,
    UNKNOWN,
    NcclEventBuilder,
    OperationKind,
    parse_gpu_time,
    parse_number,
    parse_time,
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
#: Proxy thread events that do not belong to an operation.
_CONTROL = frozenset(("Idle", "Sleep", "Append"))
_HEAD = re.compile(
    rb'"cat"\s*:\s*"(?:GROUP_API|GROUP|KERNEL_LAUNCH|COLL_API|P2P_API|COLL|P2P|PROXY|CE_COLL)"'
)
_PHASE = re.compile(rb'"ph"\s*:\s*"[be]"')


class _Process:
    """Tracks the open events in one process while its events are added in file order.

    If an operation lacks arguments, the arguments of the preceding call are used. A kernel belongs
    to the operation that is current when the kernel starts. A proxy thread event belongs to the
    operation that is current when the event ends.

    Args:
        pid: Process id.
        builder: Builder that receives the operations.
    """

    def __init__(self, pid: int, builder: NcclEventBuilder) -> None:
        self._pid = pid
        self._builder = builder
        self._operation = NONE
        self._call: EventObject | None = None
        self._open_since: dict[tuple[str, str, int], int] = {}
        self._kernel_rows: list[int] = []

    def add_begin(self, event: EventObject) -> None:
        """Process the start of an event, which opens an operation or a call, or adds a kernel.

        A call closes the current operation. If no operation followed the previous call, the
        previous call itself becomes a row.
        """
        category, start_ns = event.cat, parse_time(event.ts)
        args = event.args or NO_ARGS
        if category in _KINDS:
            self._operation = self._add_operation(event, self._call)
            self._call = None
        elif category in _CALLS:
            self._flush_call()
            self._call, self._operation = event, NONE
        elif category == "GPU":
            self._add_kernel(event, args, start_ns)
            self._kernel_rows.append(self._operation)
            return
        self._open_since[category, event.name, event.id] = start_ns

    def add_end(self, event: EventObject) -> None:
        """Process the end of an event.

        The end of a kernel belongs to the open kernel that started last. If no kernel is open, the
        end is ignored. The end of any other event is matched to its start by category, name and id.
        If the start is missing, the end is only counted.

        - The end of an operation sets the operation's host end and closes the operation.
        - At the end of a call for which no operation was recorded, the call itself becomes a row.
        - Network events and proxy thread events are added to the current operation.
        """
        category, end_ns = event.cat, parse_time(event.ts)
        if category == "GPU":
            row = self._kernel_rows.pop() if self._kernel_rows else NONE
            if row != NONE:
                self._builder.extend_times(row, "kernel", UNKNOWN, end_ns)
            return
        start_ns = self._open_since.pop((category, event.name, event.id), None)
        if start_ns is None:
            self._builder.n_without_begin += 1
        elif category in _KINDS:
            if self._operation != NONE:
                self._builder.columns["host_end_ns"][self._operation] = end_ns
            self._operation = NONE
            self._kernel_rows.clear()
        elif category in _CALLS:
            self._flush_call()
        elif self._operation != NONE and category in {"NET", "PROXY"}:
            self._add_proxy(event, start_ns, end_ns)

    def close(self) -> None:
        """Add the pending call as a row, and count the events that never ended."""
        self._flush_call()
        self._builder.n_without_end += len(self._open_since)

    def _add_proxy(self, event: EventObject, start_ns: int, end_ns: int) -> None:
        """Add a proxy thread event or network event to the current operation.

        Every ``SendWait`` or ``RecvWait`` adds one step of a network transfer. The events ``Idle``,
        ``Sleep`` and ``Append``, which do not belong to an operation, are ignored.
        """
        row = self._operation
        if event.name in _CONTROL:
            return
        self._builder.extend_times(row, "proxy", start_ns, end_ns)
        state = _STATES.get(event.name)
        if state is not None:
            self._builder.add_state(row, state, start_ns, end_ns)
            if event.name in {"SendWait", "RecvWait"}:
                self._builder.steps[row] += 1

    def _add_kernel(self, event: EventObject, args: EventArgs, start_ns: int) -> None:
        """Extend the current operation's GPU times to include a kernel or a part of a kernel.

        A kernel on one channel (``KernelCh``) also extends the kernel times on the host's clock,
        and adds a bridge between the GPU's clock and the host's clock. If there is no current
        operation, the kernel is ignored.

        Args:
            event: Event that starts the kernel.
            args: The event's arguments.
            start_ns: Time at which the host saw the kernel start.
        """
        row = self._operation
        if row == NONE:
            return
        gpu_ns = parse_gpu_time(args.gpu_start)
        self._builder.extend_times(row, "gpu", gpu_ns, parse_gpu_time(args.gpu_end))
        if event.name == "KernelCh":
            self._builder.extend_times(row, "kernel", start_ns, UNKNOWN)
            self._builder.add_bridge(row, gpu_ns, start_ns)

    def _flush_call(self) -> None:
        """Add the last call as a row if no operation was recorded for it."""
        call, self._call = self._call, None
        if call is not None:
            self._add_operation(call, call)

    def _add_operation(self, event: EventObject, call: EventObject | None) -> int:
        """Add an operation to the builder, and return its row.

        If the event is a call instead of an operation, the row has the kind ``CALL``. If the event
        contains the kernel's duration, the kernel starts when the event starts.

        Args:
            event: Event that starts the operation.
            call: The call that precedes the operation, or None. The call provides the root, and the
                count and data type if the operation lacks them.
        """
        builder, args, start_ns = self._builder, event.args or NO_ARGS, parse_time(event.ts)
        call_args = (call.args if call is not None else None) or NO_ARGS
        counts = (args.count, args.call_count, call_args.call_count)
        channels = args.channels if args.channels is not None else args.max_channels
        row = builder.add(
            kind=_KINDS.get(event.cat, OperationKind.CALL),
            pid=self._pid,
            name=builder.number_name(event.name),
            communicator=builder.number_communicator(args.communicator),
            rank=parse_number(args.rank),
            peer=parse_number(args.peer),
            # In collectives without a root, the root that NCCL writes is meaningless.
            root=parse_number(call_args.root) if event.name in ROOTED_OPERATIONS else NONE,
            sequence=parse_number(args.sequence),
            count=parse_number(next((count for count in counts if count is not None), None)),
            datatype=builder.number_name(
                args.datatype or args.call_datatype or call_args.call_datatype
            ),
            algorithm=builder.number_name(args.algorithm or args.strategy),
            protocol=builder.number_name(args.protocol),
            channels=parse_number(channels),
            host_start_ns=start_ns,
        )
        length_ns = parse_time(args.gpu_us)
        if UNKNOWN not in (start_ns, length_ns):
            builder.extend_times(row, "kernel", start_ns, start_ns + length_ns)
        return row


def is_plugin_file(head: bytes) -> bool:
    """Return whether a file was written by the example plugin.

    Args:
        head: First bytes of the file.
    """
    return bool(_HEAD.search(head) and _PHASE.search(head))


def add_plugin_events(events: Iterable[EventObject], builder: NcclEventBuilder) -> None:
    """Add the operations of all events to the builder.

    The start ("b") and the end ("e") of each event are passed to the tracker of its process. Events
    in unknown categories are counted and skipped.

    Args:
        events: Events in the file, in file order.
        builder: Builder that receives the operations.
    """
    processes: dict[int, _Process] = {}
    for event in events:
        category = event.cat
        builder.category_counts[category] += 1
        if category not in _CATEGORIES:
            builder.n_unknown += 1
            continue
        pid = parse_number(event.pid)
        if pid not in processes:
            processes[pid] = _Process(pid, builder)
        if event.ph == "b":
            processes[pid].add_begin(event)
        elif event.ph == "e":
            processes[pid].add_end(event)
    for process in processes.values():
        process.close()
