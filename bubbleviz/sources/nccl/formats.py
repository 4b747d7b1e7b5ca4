"""Event files of NCCL's own profilers, and dumps of PyTorch's flight recorder.

Adding a format is adding a row to ``_FORMATS``. NCCL's inspector writes summaries of another kind,
which are not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import msgspec

from bubbleviz.errors import InputError
from bubbleviz.model.columns import NONE
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import UnpackedFile, head_of
from bubbleviz.sources.nccl import flight_recorder
from bubbleviz.sources.nccl.events import (
    STATES,
    UNKNOWN,
    EventFile,
    NcclEventBuilder,
    OperationKind,
    clock_of,
    number_of,
    time_of,
)
from bubbleviz.sources.sqlite.queries import SQLITE

# Events in the lines of NCCL's files, which need not be JSON as a whole.
#
# NCCL prints its events one per line, with ``fprintf``, into an array that it may never close. A
# line is ``{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, ..., "args": {"Count": 4}},``.
#
# Older versions print pointers and datatypes bare (``"Stream": 0x5020``,
# ``"datatype": ncclFloat32``), a job that is killed leaves a line cut, and a file may have been
# indented, or joined into one line, since. So objects are looked for, whatever stands between them;
# those that cannot be read are counted.


#: Bytes that are read at a time, at most; an object may take twice as many.
BLOCK = 1 << 20
# An object holds others, four deep in all, each after a colon: behind a line that was cut, the next
# object's brace follows something else.
_INNER = rb"\{[^{}]*\}"
for _ in range(3):
    _INNER = rb"\{[^{}]*(?:(?:(?<=:)|(?<=: ))" + _INNER + rb"[^{}]*)*\}"
_OBJECT = re.compile(_INNER)
#: Strings, that stay as they are; values without quotes; commas before an end. A string without an
#: end is matched, too: else each quote in it would be tried as the beginning of one.
_REPAIR = re.compile(
    rb'(?P<text>"(?:[^"\\]|\\.)*"?)'
    rb"|(?P<colon>:\s*)(?:(?P<none>[-+]?(?:nan|inf)\w*(?:\(\w*\))?)"
    rb"|(?P<bare>0x[0-9A-Fa-f]+|\(nil\)|[A-Za-z_][\w.]*))(?=\s*[,}\]])"
    rb"|(?P<comma>,)(?=\s*[}\]])"
)
_WORDS = (b"true", b"false", b"null")
#: Bytes that no string of JSON may hold.
_CONTROL_BYTES = bytes.maketrans(bytes(range(32)), b" " * 32)
#: Quotes as word processors and web pages have them.
_QUOTES = re.compile("|".join("\u201c\u201d\u201e").encode())
#: The beginning of a document around a list of events.
_LIST = re.compile(rb'\{\s*"[^"]*"\s*:\s*\[')


class EventArgs(msgspec.Struct, gc=False):
    """Arguments of an event of any format; those that it lacks are None."""

    sequence: int | None = msgspec.field(default=None, name="SeqNum")
    communicator: int | None = msgspec.field(default=None, name="CommHash")
    rank: int | None = msgspec.field(default=None, name="Rank")
    peer: int | None = msgspec.field(default=None, name="Peer")
    count: int | None = msgspec.field(default=None, name="Count")
    datatype: str | None = msgspec.field(default=None, name="Datatype")
    call_count: int | None = msgspec.field(default=None, name="count")
    call_datatype: str | None = msgspec.field(default=None, name="datatype")
    root: int | None = None
    algorithm: str | None = msgspec.field(default=None, name="Algorithm")
    protocol: str | None = msgspec.field(default=None, name="Protocol")
    strategy: str | None = None
    channels: int | None = msgspec.field(default=None, name="nChannels")
    most_channels: int | None = msgspec.field(default=None, name="nMaxChannels")
    gpu_start: int | None = msgspec.field(default=None, name="StartGpuClk")
    gpu_end: int | None = msgspec.field(default=None, name="StopGpuClk")
    gpu_us: float | None = msgspec.field(default=None, name="duration_gpu_us")
    operation_count: int | None = msgspec.field(default=None, name="opCount")
    proxy_operation: int | None = msgspec.field(default=None, name="proxyOpIndex")


#: Arguments of an event that has none.
NO_ARGS = EventArgs()


class EventObject(
    msgspec.Struct, rename={"bytes": "totalbytes", "part_of": "collectiveName"}, gc=False
):
    """One object of a file: the begin (``ph`` "b") or end ("e") of an event.

    Attributes:
        name: of the event.
        cat: its category.
        ph: "b" or "e".
        id: pairs its begin with its end, in a way that depends on the format.
        pid: the process; a channel in files of the proxy profiler.
        ts: microseconds since the profiler began; 0 and None are unknown.
        args: its arguments.
        bytes: of a transfer, in a fork of NCCL.
        part_of: the collective that a transfer is part of, in the same fork.
    """

    name: str = ""
    cat: str = ""
    ph: str = ""
    id: int = 0
    pid: int = 0
    ts: float | None = None
    args: EventArgs | None = None
    bytes: int | None = None
    part_of: str | None = None


_decode = msgspec.json.Decoder(EventObject, strict=False).decode


class EventObjects:
    """The events of a file, in its order.

    Args:
        chunks: the bytes of the file, some at a time.

    Attributes:
        unreadable: objects, or pieces of one, that are not events.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.unreadable = 0

    def __iter__(self) -> Iterator[EventObject]:
        """Yield the events."""
        rest = b""
        for chunk in self._chunks:
            rest, at = rest + chunk, 0
            while (match := _OBJECT.search(rest, at)) is not None:
                begin, end = match.span()
                if (cut := rest.count(b"{", at, begin)) > 0:
                    self.unreadable += cut - len(_LIST.findall(rest, at, begin))
                event, at = _event(rest[begin:end]), end
                if event is not None and event.ph:
                    yield event
                else:
                    # The file's end is an empty object.
                    self.unreadable += rest[begin + 1 : end - 1].strip() != b""
            rest = rest[at:]
            if len(rest) > 2 * BLOCK:
                self.unreadable += 1
                rest = b""
        if b"{" in rest:
            self.unreadable += 1


def _event(text: bytes) -> EventObject | None:
    """Return an object as an event, repaired if need be; None if it is not an event."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        return None
    straight = _QUOTES.sub(b'"', text.decode("utf-8", "replace").encode().translate(_CONTROL_BYTES))
    try:
        return _decode(_REPAIR.sub(_repaired, straight))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _repaired(match: re.Match[bytes]) -> bytes:
    if match["text"] is not None:
        return match["text"]
    if match["comma"] is not None:
        return b""
    if match["none"] is not None:
        return match["colon"] + b"null"
    bare = match["bare"]
    return match["colon"] + (bare if bare in _WORDS else b'"' + bare + b'"')


# The example plugin of NCCL's profiler interface (2.23 on; ``plugins/profiler/example``).
#
# Formerly ``ext-profiler/example``. Lines belong together by their order, since ids
# count up by category and start again in each thread; versions 1 to 7 print this tree
# (``print_event.cc``), of which ``NCCL_PROFILE_EVENT_MASK`` chooses parts::
#
#     GROUP_API                         a group of calls (GROUP in versions 1 to 4)
#       KERNEL_LAUNCH
#       COLL_API | P2P_API              a call: count, datatype, root
#         COLL | P2P                    an operation of one rank: communicator, peer, algorithm
#           GPU    KernelCh             its kernel on one channel: start and end on the GPU's clock
#             PROXY  ScheduleSend, ...  what a proxy thread sends or receives for it
#               NET    SendGpuWait, ... a step of that; NET_IB, NET_SOCK: on the wire
#           GPU    KernelStep
#         CE_COLL                       a collective by copy engines; CE_SYNC, CE_BATCH in it
#     PROXY Idle, Sleep, Append         of the proxy threads, at the end

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
_PLUGIN_HEAD = re.compile(
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


def _build_plugin(events: Iterable[EventObject], builder: NcclEventBuilder) -> None:
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


# The proxy profiler of NCCL before 2.26: ``NCCL_PROXY_PROFILE``, compiled in with PROFILE_PROXY.
#
# One id is one step of one transfer of a proxy thread (``src/misc/profiler.cc``); ``pid`` is its
# channel, -1 for events of the thread that belong to no transfer::
#
#     "Send-3-0"      b          to rank 3, step 0; args: opCount, proxyOpIndex
#       "BufferWait"  b e        waits for room, then
#       "GPUWait"     b e        for the GPU to fill it, then
#       "SendWait"    b e        for the network to have sent
#     "Send-3-0"      e
#
# Events of one ``opCount`` (the communicator's count of operations), direction and peer are one
# row. Times are microseconds since the first event. A fork of NCCL writes bytes and the collective,
# too.

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
_PROXY_HEAD = re.compile(
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


def _build_proxy(events: Iterable[EventObject], builder: NcclEventBuilder) -> None:
    steps = _Steps(builder)
    for event in events:
        builder.seen[event.cat] += 1
        if event.cat == "NET":
            steps.take(event)
        elif event.cat != "COL":
            builder.strange += 1
    steps.close()


#: Whether a file's first 64 KiB are of a format, and what adds the operations of all its events, in
#: their order, by the name of the format. No file is of two.
_Format: TypeAlias = tuple[
    Callable[[bytes], bool], Callable[[Iterable[EventObject], NcclEventBuilder], None]
]
_FORMATS: Mapping[str, _Format] = {
    "profiler plugin": (
        lambda head: bool(_PLUGIN_HEAD.search(head) and _PHASE.search(head)),
        _build_plugin,
    ),
    "proxy profiler": (lambda head: bool(_PROXY_HEAD.search(head)), _build_proxy),
}


def format_of(head: bytes) -> str:
    """Return the name of a file's format by its first bytes; "" where it is none of these."""
    if head.startswith(SQLITE):
        # Names in a database may look like anything.
        return ""
    if flight_recorder.is_dump(head):
        return flight_recorder.FLIGHT_RECORDER
    return next((name for name, (recognises, _) in _FORMATS.items() if recognises(head)), "")


def read_events(path: str, watch: Watch = unwatched, chosen: str = "") -> EventFile:
    """Return the communication operations of an event file.

    A file that was cut is read as far as it goes.

    Args:
        path: of the file.
        watch: takes the share of it that has been read.
        chosen: name of its format; "" to recognise it.

    Raises:
        InputError: it is not an event file of NCCL.
        ProfileError: it cannot be read.
    """
    chosen = chosen or format_of(head_of(path))
    if not chosen:
        raise InputError(
            f"{path}: not an event file of NCCL; write one with NCCL_PROFILER_PLUGIN and "
            "NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE"
        )
    if chosen == flight_recorder.FLIGHT_RECORDER:
        return flight_recorder.read_dump(path, watch)
    builder = NcclEventBuilder()
    chunks = UnpackedFile(path, watch, BLOCK)
    objects = EventObjects(chunks)
    _FORMATS[chosen][1](objects, builder)
    unreadable = objects.unreadable + (chunks.damaged or chunks.cut)
    file = builder.event_file(path, chosen, unreadable)
    return replace(file, is_packed_damaged=chunks.damaged or chunks.cut)
