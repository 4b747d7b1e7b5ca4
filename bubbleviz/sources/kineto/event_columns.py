"""Events of PyTorch's profiler, collected by category as columns while a trace is read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.profile import IMPOSSIBLE_NS, possible
from bubbleviz.model.values import frozen
from bubbleviz.sources.kineto.events import (
    CATEGORIES,
    KERNEL,
    LASTING,
    OPERATOR,
    PHASES,
    RECORD,
    SAME_AS,
    UNUSED,
    WAIT,
    CollectiveArgs,
    CollectiveEvent,
    ExactKinetoEvent,
    KinetoArgs,
    KinetoEvent,
    SynchronisationEvent,
)
from bubbleviz.sources.trace_events.columns import ThreadName, columns_of

#: Columns of events.
THREAD, START, END, NAME, CORRELATION, DEVICE, EXTERNAL = range(7)
#: Those of a collective's record.
_RECORDED = (THREAD, START, END, CORRELATION, EXTERNAL)
_NO_ARGS = KinetoArgs()
#: Events that are decoded with the arguments of collectives.
_WITH_COLLECTIVES = (CollectiveEvent, SynchronisationEvent, ExactKinetoEvent)


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
class EventRows:
    """Events as columns; times count from the trace's first event.

    Attributes:
        columns: shape (7, events), without events whose times are impossible.
        kind: category of each.
        impossible: how many events were left out.
    """

    columns: Ints
    kind: Ints
    impossible: int

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, column: int) -> Ints:
        rows: Ints = self.columns[column]
        return rows

    def take(self, rows: Ints | Bools) -> EventRows:
        """Return some of the rows."""
        return EventRows(self.columns[:, rows], self.kind[rows], 0)


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
    waits: list[KinetoEvent | ExactKinetoEvent] = field(default_factory=list)
    records: list[KinetoEvent | ExactKinetoEvent] = field(default_factory=list)
    untimed: int = 0
    endless: int = 0
    oversized: int = 0
    others: Counter[str] = field(default_factory=Counter)
    _blocks: dict[int, list[Ints]] = field(default_factory=lambda: defaultdict(list))

    def add(self, events: Sequence[KinetoEvent | ExactKinetoEvent]) -> None:
        """Add the events of a block."""
        by_kind: dict[int, list[KinetoEvent | ExactKinetoEvent]] = defaultdict(list)
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
            elif (event.ph not in PHASES and _is_more_than_empty(event)) or event.dur is not None:
                self.others[event.ph] += 1
        self.waits.extend(by_kind.pop(WAIT, ()))
        self.records.extend(by_kind.pop(RECORD, ()))
        for kind, events_of_kind in by_kind.items():
            columns = self._columns(events_of_kind)
            self._blocks[kind].append(columns)
            if SAME_AS.get(kind, kind) in (KERNEL, OPERATOR):
                self._add_collectives(SAME_AS.get(kind, kind), events_of_kind, columns)

    def _add_collectives(
        self, kind: int, events: Sequence[KinetoEvent | ExactKinetoEvent], columns: Ints
    ) -> None:
        if not isinstance(events[0], _WITH_COLLECTIVES):
            return
        for row, event in enumerate(events):
            args = event.args
            if isinstance(args, CollectiveArgs) and args.collective is not None:
                thread, start_ns, end_ns, correlation, external = columns[_RECORDED, row].tolist()
                self.collectives.append(
                    CollectiveRecord(kind, thread, start_ns, end_ns, correlation, external, args)
                )

    def _columns(self, events: Sequence[KinetoEvent | ExactKinetoEvent]) -> Ints:
        args = [event.args or _NO_ARGS for event in events]
        ids = ([a.correlation for a in args], [a.device for a in args], [a.external for a in args])
        numbers = [[NONE if n is None else n for n in column] for column in ids]
        common = columns_of(events, self.threads, self.names)
        try:
            return np.concatenate((common, np.array(numbers, np.int64)))
        except OverflowError:
            fitting = [[NONE if abs(n) >> 63 else n for n in column] for column in numbers]
        self.oversized += sum(
            number != other
            for column, others in zip(numbers, fitting, strict=True)
            for number, other in zip(column, others, strict=True)
        )
        return np.concatenate((common, np.array(fitting, np.int64)))

    def count(self, kind: int) -> int:
        """Return how many events a category has."""
        return sum(block.shape[1] for block in self._blocks[kind])

    def base_ns(self) -> int:
        """Return when the trace's first event began, stray times left aside."""
        starts = [block[START] for blocks in self._blocks.values() for block in blocks]
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
        columns[[START, END]] -= base_ns
        keep = possible(columns[START], columns[END])
        if keep is None:
            return EventRows(columns, kind, 0)
        return EventRows(columns[:, keep], kind[keep], int((~keep).sum()))


def _is_more_than_empty(event: KinetoEvent | ExactKinetoEvent) -> bool:
    """Tell whether an event is more than the ``{}`` that some writers end a trace with."""
    return bool(event.ph or event.name or event.cat) or event.ts is not None
