"""Events of PyTorch's profiler (Kineto): categories, arguments that are used, and columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.profile import IMPOSSIBLE_NS, possible
from bubbleviz.model.texts import encodable
from bubbleviz.model.values import frozen
from bubbleviz.sources.trace_events import ThreadName, TraceEvent, columns_of

KERNEL, COPY, CALL, ANNOTATION, OPERATOR, PYTHON, OVERHEAD = range(7)
#: Work and calls of accelerators that are named otherwise.
MTIA_WORK, XPU_CALL, OTHER_CALL = range(7, 10)
#: Waits of streams and hosts, and records of events: neither work nor ranges.
WAIT, RECORD = 10, 11
#: What these are the same as.
SAME_AS = {MTIA_WORK: KERNEL, XPU_CALL: CALL, OTHER_CALL: CALL}
#: What devices are called in traces with such events; the first that occurs decides.
DEVICES = {MTIA_WORK: "MTIA", XPU_CALL: "XPU", OTHER_CALL: "accelerator"}
KINDS = range(10)
#: Their events have a duration.
LASTING = frozenset((KERNEL, COPY, CALL, ANNOTATION, OPERATOR, *SAME_AS))
#: By the category of the event in lower case; some are those of older versions, or of the forks of
#: Kineto for other accelerators (libkineto/include/ActivityType.h).
CATEGORIES = {
    category: kind
    for kind, categories in (
        (KERNEL, "kernel"),
        (COPY, "gpu_memcpy gpu_memset memcpy memset gcu_memcpy gcu_memset"),
        (CALL, "cuda_runtime cuda_driver runtime driver hip_runtime hip_driver mtia_runtime"),
        (MTIA_WORK, "mtia_ccp_events"),
        (XPU_CALL, "xpu_runtime xpu_driver"),
        (OTHER_CALL, "hpu_op glow_runtime privateuse1_runtime privateuse1_driver"),
        (OTHER_CALL, "gcu_runtime gcu_driver musa_runtime musa_driver"),
        (ANNOTATION, "user_annotation"),
        (OPERATOR, "cpu_op operator"),
        (PYTHON, "python_function"),
        (OVERHEAD, "overhead"),
        (WAIT, "cuda_sync"),
        (RECORD, "cuda_event"),
    )
    for category in categories.split()
}
#: Categories that nothing is made of: repetitions of others, arrows between them, marks.
UNUSED = frozenset(
    (
        *("trace", "gpu_user_annotation", "external_correlation", "cpu_instant_event"),
        *("cuda_profiler_range", "collective_comm", "gpu_pm_counter"),
        *("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd"),
        *("mtia_insight", "mtia_workloadd", "mtia_counters"),
    )
)
#: Kinds of events in the format of traces, beside complete ones: begin and end, instants, counters,
#: asynchronous ones, flows, metadata, objects, memory, marks. None has a duration.
PHASES = frozenset("BEiICbneSTpFstfMNODPvVRrc()")
#: Blocks that contain this hold events of collectives.
COLLECTIVE_MARK = b'"Collective name"'
#: Waits, and records of events, which have arguments of their own.
SYNCHRONISATION_CATEGORIES = frozenset(("cuda_sync", "cuda_event"))


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


class KinetoEvent(TraceEvent, gc=False):
    """An event with the arguments that are used."""

    args: KinetoArgs | None = None


class CollectiveEvent(KinetoEvent, gc=False):
    """The same with the arguments of collectives, which take a quarter longer to read."""

    args: CollectiveArgs | None = None


class SynchronisationEvent(KinetoEvent, gc=False):
    """The same with the arguments of waits and records of events."""

    args: SynchronisationArgs | None = None


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
#: Those of a collective's record.
_RECORDED = (_THREAD, _START, _END, _CORRELATION, _EXTERNAL)
_NO_ARGS = KinetoArgs()


@frozen
class CollectiveRecord:
    """An event with the arguments of a collective: its category, thread, times, and arguments."""

    kind: int
    thread: int
    start_ns: int
    end_ns: int
    correlation: int
    external: int
    args: CollectiveArgs


@frozen
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


@dataclass
class EventCollector:
    """The events of a trace by category, as far as it has been read.

    Attributes:
        names: numbers the names of events.
        threads: numbers their threads.
        thread_names: names of threads, by number.
        collectives: events with the arguments of a collective.
        untimed: how many events have no time.
        endless: how many have no duration.
        oversized: how many identifiers of events have more than 64 bits.
        waits: events in which a stream or a host waits.
        records: events that record a CUDA event.
        others: how many events each kind has that is not known: a category, or else a phase.
    """

    names: Numbering[str] = field(default_factory=Numbering)
    threads: Numbering[ThreadName] = field(default_factory=Numbering)
    thread_names: dict[int, str] = field(default_factory=dict)
    collectives: list[CollectiveRecord] = field(default_factory=list)
    waits: list[KinetoEvent] = field(default_factory=list)
    records: list[KinetoEvent] = field(default_factory=list)
    untimed: int = 0
    endless: int = 0
    oversized: int = 0
    others: Counter[str] = field(default_factory=Counter)
    _blocks: dict[int, list[Ints]] = field(default_factory=lambda: defaultdict(list))

    def add(self, events: Sequence[KinetoEvent]) -> None:
        """Add the events of a block."""
        by_kind: dict[int, list[KinetoEvent]] = defaultdict(list)
        # JSON gives an object an event, so that each must be looked at.
        for event in events:
            if event.ph == "X":
                category = (event.cat or "").lower()
                kind = CATEGORIES.get(category)
                if kind is None:
                    if category not in UNUSED:
                        self.others[category] += 1
                    continue
                if event.ts is not None:
                    by_kind[kind].append(event)
                self.untimed += event.ts is None
                self.endless += kind in LASTING and event.dur is None
            elif event.ph == "M" and event.name == "thread_name" and event.args is not None:
                thread = self.threads.number((event.pid, event.tid))
                self.thread_names[thread] = event.args.name or ""
            elif event.dur is not None or (
                # Some writers end a trace with ``{}``.
                event.ph not in PHASES
                and (event.ph or event.name or event.cat or event.ts is not None)
            ):
                self.others[event.ph] += 1
        self.waits.extend(by_kind.pop(WAIT, ()))
        self.records.extend(by_kind.pop(RECORD, ()))
        for kind, events_of_kind in by_kind.items():
            args = [event.args or _NO_ARGS for event in events_of_kind]
            ids = ([a.correlation for a in args], [a.device for a in args])
            numbers = self._numbers(*ids, [a.external for a in args])
            common = columns_of(events_of_kind, self.threads, self.names)
            columns = np.concatenate((common, numbers))
            self._blocks[kind].append(columns)
            own = SAME_AS.get(kind, kind)
            if own in (KERNEL, OPERATOR) and {*map(type, args)} != {KinetoArgs}:
                self.collectives += [
                    CollectiveRecord(own, *columns[_RECORDED, row].tolist(), of_row)  # type: ignore[call-arg]  # five columns
                    for row, of_row in enumerate(args)
                    if isinstance(of_row, CollectiveArgs) and of_row.collective is not None
                ]

    def _numbers(self, *ids: Sequence[int | None]) -> Ints:
        """Return identifiers as columns; those of more than 64 bits are counted, and none."""
        numbers = [[NONE if n is None else n for n in column] for column in ids]
        try:
            return np.array(numbers, np.int64)
        except OverflowError:
            self.oversized += sum(abs(n) >> 63 > 0 for column in numbers for n in column)
            fitting = [[NONE if abs(n) >> 63 else n for n in column] for column in numbers]
            return np.array(fitting, np.int64)

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
        """Return the events of some categories, each in the order of the file, and forget them.

        Those of other accelerators become what they are the same as.
        """
        tables = [np.empty((7, 0), np.int64)]
        tables += [block for kind in kinds for block in self._blocks[kind]]
        become = np.array([SAME_AS.get(kind, kind) for kind in kinds], np.int64)
        kind = np.repeat(become, [self.count(kind) for kind in kinds])
        columns = np.concatenate(tables, axis=1)
        for taken in kinds:
            del self._blocks[taken]
        columns[[_START, _END]] -= base_ns
        keep, impossible = possible(columns[_START], columns[_END]), 0
        if keep is not None:
            columns, kind, impossible = columns[:, keep], kind[keep], int((~keep).sum())
        named = dict(zip(EventRows.column_names(), (*columns, kind), strict=True))
        return EventRows(**named, impossible=impossible)
