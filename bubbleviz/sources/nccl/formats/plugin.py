r"""The example plugin of NCCL's profiler interface (2.23 on; ``plugins/profiler/example``).

Formerly ``ext-profiler/example``. Which line belongs to which is told by their order, for ids
count up by category and begin anew in each thread; versions 1 to 7 print this tree
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
from bubbleviz.sources.nccl.events import (
    STATES,
    UNKNOWN,
    Columns,
    OperationKind,
    clock_of,
    number_of,
    time_of,
)
from bubbleviz.sources.nccl.formats import EventFileFormat
from bubbleviz.sources.nccl.lines import Arguments, Event

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
_STATES = {name: number for number, name in enumerate(STATES)}
#: Of other collectives the root says nothing.
_ROOTED = frozenset(("Broadcast", "Bcast", "Reduce", "Gather", "Scatter"))
#: Proxy threads do these for no operation.
_CONTROL = frozenset(("Idle", "Sleep", "Append"))
_HEAD = re.compile(
    rb'"cat"\s*:\s*"(?:GROUP_API|GROUP|KERNEL_LAUNCH|COLL_API|P2P_API|COLL|P2P|PROXY|CE_COLL)"'
)
_PHASE = re.compile(rb'"ph"\s*:\s*"[be]"')
#: What NCCL calls the fields of an event's ``args``.
_NAMES = {
    "sequence": "SeqNum",
    "communicator": "CommHash",
    "rank": "Rank",
    "peer": "Peer",
    "count": "Count",
    "datatype": "Datatype",
    "call_count": "count",
    "call_datatype": "datatype",
    "algorithm": "Algorithm",
    "protocol": "Protocol",
    "channels": "nChannels",
    "most_channels": "nMaxChannels",
    "gpu_start": "StartGpuClk",
    "gpu_end": "StopGpuClk",
    "gpu_us": "duration_gpu_us",
}


class Told(Arguments, rename=_NAMES):
    """What an event says of itself; what it does not say is None."""

    sequence: int | None = None
    communicator: int | None = None
    rank: int | None = None
    peer: int | None = None
    count: int | None = None
    datatype: str | None = None
    call_count: int | None = None
    call_datatype: str | None = None
    root: int | None = None
    algorithm: str | None = None
    protocol: str | None = None
    strategy: str | None = None
    channels: int | None = None
    most_channels: int | None = None
    gpu_start: int | None = None
    gpu_end: int | None = None
    gpu_us: float | None = None


class PluginEvent(Event):
    """A begin or end; ``args`` are what it says of itself."""

    args: Told | None = None


_NOTHING = Told()


class _Process:
    """What is open in one process, as the lines have told so far."""

    def __init__(self, pid: int, columns: Columns) -> None:
        self._pid = pid
        self._columns = columns
        self._operation = NONE
        self._call: PluginEvent | None = None
        self._begun: dict[tuple[str, str, int], int] = {}
        self._kernel: list[int] = []

    def begin(self, event: PluginEvent) -> None:
        """Take a begin."""
        category, start_ns = event.cat, time_of(event.ts)
        told = event.args or _NOTHING
        if category in _KINDS:
            self._operation = self._operation_of(event, told, start_ns)
            self._call = None
        elif category in {"COLL_API", "P2P_API"}:
            self._flush_call()
            self._call, self._operation = event, NONE
        elif category == "GPU":
            self._gpu(event, told, start_ns)
            self._kernel.append(self._operation)
            return
        self._begun[category, event.name, event.id] = start_ns

    def end(self, event: PluginEvent) -> None:
        """Take an end."""
        category, end_ns = event.cat, time_of(event.ts)
        if category == "GPU":
            row = self._kernel.pop() if self._kernel else NONE
            if row != NONE:
                self._columns.widen(row, "kernel", UNKNOWN, end_ns)
            return
        start_ns = self._begun.pop((category, event.name, event.id), None)
        if start_ns is None:
            self._columns.unbegun += 1
        elif category in _KINDS:
            if self._operation != NONE:
                self._columns.put(self._operation, "host_end_ns", end_ns)
            self._operation = NONE
            self._kernel.clear()
        elif category in {"COLL_API", "P2P_API"}:
            self._flush_call()
        elif self._operation != NONE and category in {"NET", "PROXY"}:
            self._proxy(event, start_ns, end_ns)

    def close(self) -> None:
        """Count what is open at the end of the file."""
        self._flush_call()
        self._columns.unfinished += len(self._begun)

    def _proxy(self, event: PluginEvent, start_ns: int, end_ns: int) -> None:
        """Take what a proxy thread did for the operation."""
        row = self._operation
        if event.name in _CONTROL:
            return
        self._columns.widen(row, "proxy", start_ns, end_ns)
        state = _STATES.get(event.name)
        if state is not None:
            self._columns.state(row, state, start_ns, end_ns)
            if event.name in {"SendWait", "RecvWait"}:
                self._columns.step(row)

    def _gpu(self, event: PluginEvent, told: Told, start_ns: int) -> None:
        """Take a kernel on one channel; ``KernelStep`` are stretches of one."""
        row = self._operation
        if row == NONE:
            return
        gpu_ns = clock_of(told.gpu_start)
        self._columns.widen(row, "gpu", gpu_ns, clock_of(told.gpu_end))
        if event.name == "KernelCh":
            self._columns.widen(row, "kernel", start_ns, UNKNOWN)
            self._columns.bridge(row, gpu_ns, start_ns)

    def _operation_of(self, event: PluginEvent, told: Told, start_ns: int) -> int:
        """Return the row of a new operation, which its call may tell more of."""
        columns, call = self._columns, self._call
        of_call = call.args or _NOTHING if call is not None else _NOTHING
        count = told.call_count if told.count is None else told.count
        channels = told.channels if told.channels is not None else told.most_channels
        row = columns.add(
            kind=_KINDS[event.cat],
            pid=self._pid,
            name=columns.name(event.name),
            communicator=columns.communicator(told.communicator),
            rank=number_of(told.rank),
            peer=number_of(told.peer),
            root=number_of(of_call.root) if event.name in _ROOTED else NONE,
            sequence=number_of(told.sequence),
            count=number_of(of_call.call_count if count is None else count),
            datatype=columns.name(told.datatype or told.call_datatype or of_call.call_datatype),
            algorithm=columns.name(told.algorithm or told.strategy),
            protocol=columns.name(told.protocol),
            channels=number_of(channels),
            host_start_ns=start_ns,
        )
        if told.gpu_us is not None and start_ns != UNKNOWN:
            length_ns = time_of(told.gpu_us)
            if length_ns != UNKNOWN:
                columns.widen(row, "kernel", start_ns, start_ns + length_ns)
        return row

    def _flush_call(self) -> None:
        """Add a call of which no operation was recorded."""
        call, self._call = self._call, None
        if call is not None:
            told, columns = call.args or _NOTHING, self._columns
            columns.add(
                kind=OperationKind.CALL,
                pid=self._pid,
                name=columns.name(call.name),
                root=number_of(told.root) if call.name in _ROOTED else NONE,
                count=number_of(told.call_count),
                datatype=columns.name(told.call_datatype),
                host_start_ns=time_of(call.ts),
            )


def _gather(events: Iterable[PluginEvent], columns: Columns) -> None:
    processes: dict[int, _Process] = {}
    for event in events:
        category = event.cat
        columns.seen[category] += 1
        if category not in _CATEGORIES:
            columns.strange += 1
            continue
        pid = number_of(event.pid)
        process = processes.get(pid)
        if process is None:
            process = processes[pid] = _Process(pid, columns)
        if event.ph == "b":
            process.begin(event)
        elif event.ph == "e":
            process.end(event)
    for process in processes.values():
        process.close()


FORMAT = EventFileFormat(
    name="profiler plugin",
    event=PluginEvent,
    recognises=lambda head: bool(_HEAD.search(head) and _PHASE.search(head)),
    gather=_gather,
)
