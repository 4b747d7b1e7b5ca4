"""Defines the events of PyTorch's profiler (Kineto), and collects them in columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from bubbleviz.conventions import toml_files
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.profile import IMPOSSIBLE_NS, mask_possible
from bubbleviz.model.texts import replace_surrogates
from bubbleviz.sources.trace_events import MISSING, TraceEvents, TraceFile

KERNEL, COPY, CALL, ANNOTATION, OPERATOR, PYTHON, OVERHEAD = KINDS = range(7)
#: Names of the event kinds in ``trace_categories.toml`` (and of WAIT and RECORD), indexed by kind.
_NAMES = (
    *("kernel", "copy", "call", "annotation", "operator"),
    *("python", "overhead", "wait", "record"),
)
#: Event kinds for waits by a stream or the host, and for CUDA event records. Neither kind is work
#: or a range.
WAIT, RECORD = 7, 8
#: (event kind, implied device name or "") pairs, keyed by lowercase category.
CATEGORIES = {
    category: (_NAMES.index(row["kind"]), row.get("device", ""))
    for row in toml_files.load(toml_files.read_built_in("trace_categories.toml"))["kind"]
    for category in row["categories"]
}
#: Category of kernels and transfers on MTIA devices, and prefix of the names of transfers.
_MTIA_WORK, _MTIA_TRANSFER = "mtia_ccp_events", "dma"
#: Device names that categories can imply, in order of precedence.
DEVICES = ("MTIA", "XPU", "accelerator")


class KinetoArgs(msgspec.Struct, gc=False):
    """The event arguments that this reader uses. Missing arguments are None."""

    correlation: int | None = None
    device: int | None = None
    external: int | None = msgspec.field(default=None, name="External id")
    name: str | None = None
    bytes: int | None = None
    # Arguments of collectives.
    collective: str | None = msgspec.field(default=None, name="Collective name")
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
    # Arguments of waits and of CUDA event records.
    stream: Any = None
    event: Any = msgspec.field(default=None, name="event_id")
    waited_event: Any = msgspec.field(default=None, name="wait_on_cuda_event_id")
    recorded_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    record_id: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


def get_argument(args: KinetoArgs, operator: KinetoArgs, field: str) -> object:
    """Return an argument of a kernel, or its operator's argument if the kernel lacks it."""
    value: object = getattr(args, field)
    fallback: object = getattr(operator, field)
    return fallback if value is None else value


def parse_number(value: object, limit: int) -> int:
    """Convert an integer or text to an integer in ``[0, limit)``. Return -1 for any other value."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    is_valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
    return value if is_valid and isinstance(value, int) else NONE


def to_text(value: object) -> str:
    """Return a text unchanged, a 64-bit integer as text, and "" for any other value.

    Lone surrogates in a text are replaced.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 63 else ""
    return replace_surrogates(value) if isinstance(value, str) else ""


#: Exclusive upper bound on device numbers.
_MAX_DEVICES = 1 << 22
#: Indices of the first columns of events.
_THREAD, _START, _END = range(3)
#: Arguments that are stored for all events, in the columns after thread, start, end and name.
_NUMBERS = ("correlation", "device", "external", "bytes")
_NO_ARGS = KinetoArgs()


@dataclass(frozen=True, eq=False, repr=False)
class EventRows(Table):
    """Events as columns, excluding events with invalid times.

    Attributes:
        thread: Thread number, an index into ``EventCollector.threads``.
        start_ns: Start time in ns, relative to the first event of the trace.
        end_ns: End time in ns, relative to the first event of the trace.
        name: Name number, an index into ``EventCollector.texts``.
        correlation: Correlation id, or -1 if the event has none. A call shares its correlation id
            with the work that it launched.
        device: Device number of a kernel or copy, or -1 if unknown.
        external: External id, or -1 if the event has none. An operator shares its external id with
            the work that it launched.
        size: Number of bytes that a copy moved, or -1 if unknown.
        kind: Kind of the event, such as ``KERNEL``.
        impossible: Number of events that were dropped because of invalid times.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    name: Ints
    correlation: Ints
    device: Ints
    external: Ints
    size: Ints
    kind: Ints
    impossible: int = field(default=0, metadata={"shared": True})


class EventCollector:
    """Collects the events in a trace, grouped by kind, while the trace is being read.

    Attributes:
        texts: Numbers the texts in the trace, such as event names.
        threads: Numbers the threads in the trace.
        thread_names: Maps thread numbers to the numbers of their names in ``texts``.
        kernels: Arguments of the kernels that have collective arguments, keyed by thread,
            correlation id and start.
        operators: External id, thread, end and arguments of each operator that has collective
            arguments.
        waits: Thread, start and arguments of each event in which a stream or the host waits.
        records: Thread, start and arguments of each event that records a CUDA event.
        devices: Device names implied by the categories in the trace.
        n_without_time: Number of events without a start time.
        n_untimed_work: Number of kernels and copies whose start and duration are both 0, keyed by
            event kind.
        n_without_duration: Number of events without a duration.
    """

    def __init__(self, file: TraceFile[KinetoArgs]) -> None:
        self.texts, self.threads, self._categories = file.texts, file.threads, file.categories
        self.thread_names: dict[int, int] = {}
        self.kernels: dict[tuple[int, int, int], KinetoArgs] = {}
        self.operators: list[tuple[int, int, int, KinetoArgs]] = []
        self.waits: list[tuple[int, int, KinetoArgs]] = []
        self.records: list[tuple[int, int, KinetoArgs]] = []
        self.devices: set[str] = set()
        self.n_without_time = self.n_without_duration = 0
        self.n_untimed_work = {KERNEL: 0, COPY: 0}
        self._blocks: dict[int, list[Ints]] = defaultdict(list)

    def find_described(self, events: TraceEvents[KinetoArgs]) -> Ints:
        """Return the rows of the events in a block whose arguments must all be kept.

        The arguments of waits, CUDA event records, and kernels and operators with collective
        arguments are kept.
        """
        kind = self._classify(events)
        rows = np.flatnonzero((events.arguments["collective"] != NONE) | (kind >= WAIT))
        return rows[np.isin(kind[rows], (KERNEL, OPERATOR, WAIT, RECORD))]

    def add(self, events: TraceEvents[KinetoArgs]) -> None:
        """Add a block of events.

        Only complete events ("X") in a known category are kept. Two kinds of events are counted and
        dropped: events without a start time, and kernels and copies whose start and duration are
            both 0. A missing duration is replaced with 0.
        """
        self._add_thread_names(events)
        kind = self._classify(events)
        has_no_duration, has_start = events.duration_ns == MISSING, events.start_ns != MISSING
        self.n_without_duration += int((has_no_duration & (kind >= 0) & (kind <= OPERATOR)).sum())
        self.n_without_time += int((~has_start & (kind != NONE)).sum())
        is_zero = (events.start_ns == 0) & (events.duration_ns == 0)
        for work_kind in self.n_untimed_work:
            is_untimed = is_zero & (kind == work_kind)
            self.n_untimed_work[work_kind] += int(is_untimed.sum())
            has_start &= ~is_untimed
        end_ns = events.start_ns + np.where(has_no_duration, 0, events.duration_ns)
        ids = (events.arguments[field] for field in _NUMBERS)
        id_columns = (np.where(numbers == MISSING, NONE, numbers) for numbers in ids)
        columns = np.stack((events.thread, events.start_ns, end_ns, events.name, *id_columns))
        kind[~has_start] = NONE
        for event_kind in KINDS:
            rows = np.flatnonzero(kind == event_kind)
            if len(rows):
                self._blocks[event_kind].append(columns[:, rows])
        self._add_described(events, kind, columns)

    def _add_thread_names(self, events: TraceEvents[KinetoArgs]) -> None:
        """Collect the thread names in a block, which are stored in metadata events."""
        text = events.arguments["name"]
        is_metadata = events.ph == self.texts.number("M")
        is_name = is_metadata & (events.name == self.texts.number("thread_name"))
        rows = np.flatnonzero(is_name & (text != NONE))
        self.thread_names.update(
            zip(events.thread[rows].tolist(), text[rows].tolist(), strict=True)
        )

    def _add_described(self, events: TraceEvents[KinetoArgs], kind: Ints, columns: Ints) -> None:
        """Store the arguments of waits, event records, and described kernels and operators.

        Args:
            events: A block of events.
            kind: Kind of each event, or -1 for an unused event.
            columns: The events as columns, shape (columns, events).
        """
        for row in np.flatnonzero(kind >= WAIT).tolist():
            target = self.waits if kind[row] == WAIT else self.records
            args = events.args.get(row, _NO_ARGS)
            target.append((int(events.thread[row]), int(events.start_ns[row]), args))
        for row, args in events.args.items():
            thread, start_ns, end_ns, _, correlation, _, external, _ = columns[:, row].tolist()
            if kind[row] == KERNEL:
                self.kernels[thread, correlation, start_ns] = args
            elif kind[row] == OPERATOR:
                self.operators.append((external, thread, end_ns, args))

    def select_recording(
        self, is_host_thread: Bools, is_inside: Callable[[int, int], bool]
    ) -> EventCollector:
        """Return a copy that is limited to the operators, waits and event records of one recording.

        All other attributes are shared with this collector.

        Args:
            is_host_thread: Mask of the threads that belong to the recording, indexed by thread
                number.
            is_inside: Function that takes a thread number and a device number, and returns whether
                they belong to the recording.
        """
        part = copy(self)
        part.operators = [event for event in self.operators if is_host_thread[event[1]]]
        part.waits, part.records = (
            [
                (thread, start_ns, args)
                for thread, start_ns, args in events
                if is_inside(thread, parse_number(args.device, _MAX_DEVICES))
            ]
            for events in (self.waits, self.records)
        )
        return part

    def _classify(self, events: TraceEvents[KinetoArgs]) -> Ints:
        """Return the kind of each event, or -1 for an unused event.

        An event is used if it is complete ("X") and has a known category. The device that its
        category implies is added to ``devices``.
        """
        kinds, devices = zip(
            *(CATEGORIES.get(name.lower(), (NONE, "")) for name in self._categories.values),
            (NONE, ""),
            strict=True,
        )
        complete = events.ph == self.texts.number("X")
        for number in find_distinct(events.category[complete]).tolist():
            self.devices.update((devices[number],) if devices[number] else ())
        kind = np.where(complete, np.array(kinds)[events.category], NONE)
        if "MTIA" in self.devices:
            kind[self._mask_mtia_transfers(events) & (kind == KERNEL)] = COPY
        return kind

    def _mask_mtia_transfers(self, events: TraceEvents[KinetoArgs]) -> Bools:
        """Return a mask of the events that are transfers on MTIA devices."""
        categories = self._categories.values
        is_work = np.array([name.lower() == _MTIA_WORK for name in (*categories, "")])
        is_transfer = np.array(
            [name.startswith(_MTIA_TRANSFER) for name in (*self.texts.values, "")]
        )
        mask: Bools = is_work[events.category] & is_transfer[events.name]
        return mask

    def count(self, kind: int) -> int:
        """Return the number of events of the given kind, including events with invalid times."""
        return sum(block.shape[1] for block in self._blocks[kind])

    def find_base_ns(self) -> int:
        """Return the start time of the first event in ns, or 0 if there are no events.

        Start times that are years away from the median start time are invalid, and are ignored.
        """
        starts = [block[_START] for blocks in self._blocks.values() for block in blocks]
        if not starts:
            return 0
        start_ns = np.concatenate(starts)
        middle = int(np.median(start_ns))
        is_near_median = np.abs(start_ns - middle) < IMPOSSIBLE_NS >> 2
        return int(start_ns[is_near_median].min(initial=middle))

    def get_rows(self, base_ns: int, *kinds: int) -> EventRows:
        """Return the events of the given kinds, grouped by kind.

        Within a kind, events are in file order. Events with invalid times are left out, and are
        counted in ``impossible``.

        Args:
            base_ns: Time to subtract from start and end times, in ns.
            kinds: Event kinds, such as ``KERNEL``, in the order of the result.
        """
        kind = np.repeat(np.array(kinds, np.int64), [self.count(kind) for kind in kinds])
        blocks = [block for selected in kinds for block in self._blocks[selected]]
        columns = np.concatenate([np.empty((4 + len(_NUMBERS), 0), np.int64), *blocks], axis=1)
        columns[[_START, _END]] -= base_ns
        is_possible, impossible = mask_possible(columns[_START], columns[_END]), 0
        if is_possible is not None:
            columns = columns[:, is_possible]
            kind = kind[is_possible]
            impossible = int((~is_possible).sum())
        by_column = dict(zip(EventRows.column_names(), (*columns, kind), strict=True))
        return EventRows(**by_column, impossible=impossible)
