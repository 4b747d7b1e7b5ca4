"""Events of PyTorch's profiler (Kineto): categories, arguments that are used, and columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from bubbleviz.conventions import toml_files
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.memory_sizes import MemoryEvents
from bubbleviz.model.profile import IMPOSSIBLE_NS, possible
from bubbleviz.model.texts import encodable
from bubbleviz.sources import trace_events
from bubbleviz.sources.trace_events import ThreadName, TraceEvent

KERNEL, COPY, CALL, ANNOTATION, OPERATOR, PYTHON, OVERHEAD = KINDS = range(7)
#: These, and two more, in the words of the file of categories.
_NAMES = (
    *("kernel", "copy", "call", "annotation", "operator"),
    *("python", "overhead", "wait", "record"),
)
#: Waits of streams and hosts, and records of events: neither work nor ranges.
WAIT, RECORD = 7, 8
#: Their events have a duration.
LASTING = frozenset((KERNEL, COPY, CALL, ANNOTATION, OPERATOR))
#: Kinds of events, and the device that they name, by category in lower case; see the file.
CATEGORIES = {
    category: (_NAMES.index(row["kind"]), row.get("device", ""))
    for row in toml_files.load(toml_files.built_in("trace_categories.toml"))["kind"]
    for category in row["categories"]
}
#: Devices that categories name; the first of these that occurs does.
DEVICES = ("MTIA", "XPU", "accelerator")


class KinetoArgs(msgspec.Struct, gc=False):
    """Arguments of events, as far as they are used."""

    correlation: int | None = None
    device: int | None = None
    external: int | None = msgspec.field(default=None, name="External id")
    name: str | None = None


class CollectiveArgs(KinetoArgs, gc=False):
    """The same with the arguments of collectives, of any type."""

    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    split: Any = msgspec.field(default=None, name="In split size")
    datatype: Any = msgspec.field(default=None, name="dtype")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    size: Any = msgspec.field(default=None, name="Group size")
    start: Any = msgspec.field(default=None, name="Global rank start")
    stride: Any = msgspec.field(default=None, name="Global rank stride")
    rank: Any = msgspec.field(default=None, name="Rank")
    origin: Any = msgspec.field(default=None, name="Src Rank")
    target: Any = msgspec.field(default=None, name="Dst Rank")
    sequence: Any = msgspec.field(default=None, name="Seq")


class SynchronisationArgs(CollectiveArgs, gc=False):
    """The same with the arguments of waits and records of events."""

    stream: Any = None
    event: Any = msgspec.field(default=None, name="event_id")
    waited: Any = msgspec.field(default=None, name="wait_on_cuda_event_id")
    recorded_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    recorded: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


#: What blocks contain that hold waits or records of events, or collectives, and their arguments.
MARKS: Sequence[tuple[bytes, type[KinetoArgs]]] = (
    (b'"cuda_sync"', SynchronisationArgs),
    (b'"cuda_event"', SynchronisationArgs),
    (b'"Collective name"', CollectiveArgs),
)
KinetoEvent: TypeAlias = TraceEvent[KinetoArgs]


def either(args: CollectiveArgs, operator: CollectiveArgs, field: str) -> object:
    """Return an argument of a kernel, or else of the operator that launched it."""
    value: object = getattr(args, field)
    other: object = getattr(operator, field)
    return other if value is None else value


def whole_number(value: object, below: int) -> int:
    """Return a number from 0 up to ``below``; -1 for anything else."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    return value if known and isinstance(value, int) else NONE


def text_of(value: object) -> str:
    """Return a text, or a number as text; "" for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 63 else ""
    return encodable(value) if isinstance(value, str) else ""


#: Columns of events, of which blocks have seven.
_THREAD, _START, _END, _, _CORRELATION, _, _EXTERNAL = range(7)
_NO_ARGS = KinetoArgs()


@dataclass(frozen=True)
class EventRows(Table):
    """Events as columns, without those whose times are impossible.

    Attributes:
        thread: number of the thread.
        start_ns: start, counted from the trace's first event.
        end_ns: end.
        name: number of the name.
        correlation: of a call and what it launched; -1 none.
        device: of a kernel or copy; -1 none.
        external: of an operator and what it launched; -1 none.
        kind: category of each.
        impossible: how many events were left out.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    name: Ints
    correlation: Ints
    device: Ints
    external: Ints
    kind: Ints
    impossible: int = field(default=0, metadata={"shared": True})


class EventCollector:
    """The events of a trace by category, as far as it has been read.

    Attributes:
        names: numbers the names of events.
        threads: numbers their threads.
        thread_names: names of threads, by number.
        kernels: arguments of kernels of collectives, by correlation id and start.
        operators: external id, thread, end and arguments of operators of collectives.
        waits: events in which a stream or a host waits.
        records: events that record a CUDA event.
        devices: names of accelerators whose categories occur.
        untimed: how many events have no time.
        endless: how many have no duration.
    """

    def __init__(self) -> None:
        self.names, self.threads = Numbering[str](), Numbering[ThreadName]()
        self.thread_names: dict[int, str] = {}
        self.kernels: dict[tuple[int, int], CollectiveArgs] = {}
        self.operators: list[tuple[int, int, int, CollectiveArgs]] = []
        self.waits: list[KinetoEvent] = []
        self.records: list[KinetoEvent] = []
        self.devices: set[str] = set()
        self.untimed = self.endless = 0
        self._kinds: dict[str | None, int] = {}
        self._blocks: dict[int, list[Ints]] = defaultdict(list)

    def add(self, events: Sequence[KinetoEvent]) -> None:
        """Add the events of a block."""
        by_kind: dict[int, list[KinetoEvent]] = defaultdict(list)
        # JSON gives an object an event, so that each must be looked at.
        for event in events:
            if event.ph == "X":
                kind = self._kinds.get(event.cat)
                by_kind[self._kind(event.cat) if kind is None else kind].append(event)
            elif event.ph == "M" and event.name == "thread_name" and event.args is not None:
                thread = self.threads.number((event.pid, event.tid))
                self.thread_names[thread] = event.args.name or ""
        by_kind.pop(NONE, None)
        for kind, of_kind in by_kind.items():
            self.endless += kind in LASTING and [event.dur for event in of_kind].count(None)
            if untimed := [event.ts for event in of_kind].count(None):
                self.untimed += untimed
                by_kind[kind] = [event for event in of_kind if event.ts is not None]
        self.waits.extend(by_kind.pop(WAIT, ()))
        self.records.extend(by_kind.pop(RECORD, ()))
        for kind, of_kind in by_kind.items():
            args = [event.args or _NO_ARGS for event in of_kind]
            ids = ([a.correlation for a in args], [a.device for a in args])
            numbers = self._numbers(*ids, [a.external for a in args])
            common = trace_events.columns_of(of_kind, self.threads, self.names)
            columns = np.concatenate((common, numbers))
            self._blocks[kind].append(columns)
            if kind in (KERNEL, OPERATOR) and {*map(type, args)} != {KinetoArgs}:
                self._add_collectives(kind, columns, args)

    def _kind(self, category: str | None) -> int:
        """Return the kind of a category that is new."""
        kind, device = CATEGORIES.get((category or "").lower(), (NONE, ""))
        self.devices.update((device,) if device else ())
        self._kinds[category] = kind
        return kind

    def _add_collectives(self, kind: int, columns: Ints, args: Sequence[KinetoArgs]) -> None:
        for row, own in enumerate(args):
            if isinstance(own, CollectiveArgs) and own.collective is not None:
                thread, start_ns, end_ns, _, correlation, _, external = columns[:, row].tolist()
                if kind == KERNEL:
                    self.kernels[correlation, start_ns] = own
                else:
                    self.operators.append((external, thread, end_ns, own))

    def _numbers(self, *ids: Sequence[int | None]) -> Ints:
        """Return identifiers as columns; those of more than 64 bits are none."""
        known = [[NONE if n is None else n for n in column] for column in ids]
        try:
            return np.array(known, np.int64)
        except OverflowError:
            return np.array([[NONE if abs(n) >> 63 else n for n in c] for c in known], np.int64)

    def count(self, kind: int) -> int:
        """Return how many events a category has."""
        return sum(block.shape[1] for block in self._blocks[kind])

    def base_ns(self) -> int:
        """Return when the trace's first event began, stray times left aside."""
        starts = [block[_START] for blocks in self._blocks.values() for block in blocks]
        if not starts:
            return 0
        start_ns = np.concatenate(starts)
        middle = int(np.median(start_ns))
        near = np.abs(start_ns - middle) < IMPOSSIBLE_NS >> 2
        return int(start_ns[near].min(initial=middle))

    def take(self, base_ns: int, *kinds: int) -> EventRows:
        """Return the events of some categories, each in the order of the file, and forget them."""
        kind = np.repeat(np.array(kinds, np.int64), [self.count(kind) for kind in kinds])
        blocks = [block for taken in kinds for block in self._blocks.pop(taken)]
        columns = np.concatenate([np.empty((7, 0), np.int64), *blocks], axis=1)
        columns[[_START, _END]] -= base_ns
        keep, impossible = possible(columns[_START], columns[_END]), 0
        if keep is not None:
            columns, kind, impossible = columns[:, keep], kind[keep], int((~keep).sum())
        named = dict(zip(EventRows.column_names(), (*columns, kind), strict=True))
        return EventRows(**named, impossible=impossible)


# Memory: instants named ``[memory]``, of ``profile_memory=True``.
#
# Their arguments are ``Bytes`` (less than 0: freed), ``Addr``, ``Device Type`` (0 the host, others
# accelerators; c10/core/DeviceType.h), ``Device Id`` and ``Total Allocated``, the bytes in use on
# the device after it. They are read in a pass of their own, so that others pay nothing for them.

#: No machine has more bytes, 70 TB, nor as many devices; sums of many still fit 64 bits.
_Bytes = Annotated[int, msgspec.Meta(ge=-(1 << 46), le=1 << 46)]
_Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)]


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of events, as far as they are used."""

    change: _Bytes | None = msgspec.field(default=None, name="Bytes")
    address: int | None = msgspec.field(default=None, name="Addr")
    device_type: _Number | None = msgspec.field(default=None, name="Device Type")
    device: _Number | None = msgspec.field(default=None, name="Device Id")
    total: _Bytes | None = msgspec.field(default=None, name="Total Allocated")


def read_memory(path: str, base_ns: int, *, on_host: bool) -> MemoryEvents | None:
    """Return the memory events of a trace; None where it holds none.

    Args:
        path: of the trace.
        base_ns: when the profile's clock begins.
        on_host: whether the host stands for the device, so that its memory counts.

    Raises:
        ProfileError: the trace cannot be read.
    """
    threads, names = Numbering[ThreadName](), Numbering[str]()
    blocks = [np.empty((6, 0), np.int64)]
    with trace_events.opened_trace(path, MemoryArgs) as file:
        for block in file.blocks():
            # JSON gives an object an event, so that each must be looked at.
            pairs = [
                (event, event.args)
                for event in block
                if event.name == "[memory]"
                and event.ts is not None
                and event.args is not None
                and event.args.change
                and (event.args.device_type == 0) == on_host
            ]
            columns = trace_events.columns_of([event for event, _ in pairs], threads, names)
            numbers = [
                (
                    max(args.device or 0, 0),
                    0 if args.address is None else args.address & ((1 << 63) - 1),
                    args.change,
                    NONE if args.total is None else args.total,
                )
                for _, args in pairs
            ]
            table = np.array(numbers, np.int64).reshape(-1, 4).T
            blocks.append(np.concatenate((columns[1:2] - base_ns, columns[:1], table)))
    time_ns, thread, *rest = (row.copy() for row in np.concatenate(blocks, axis=1))
    if len(time_ns) == 0:
        return None
    return MemoryEvents(time_ns, trace_events.global_threads(threads)[thread], *rest)
