"""Events of PyTorch's profiler (Kineto), gathered by category as columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.profile import IMPOSSIBLE_NS, possible
from bubbleviz.sources import trace_events
from bubbleviz.sources.event_columns import Owners, Texts, columns_of

KERNEL, COPY, CALL, ANNOTATION, OPERATOR, PYTHON, OVERHEAD = range(7)
#: What takes time.
_LASTING = frozenset((KERNEL, COPY, CALL, ANNOTATION, OPERATOR))
_CATEGORIES = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "memcpy": COPY,
    "memset": COPY,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "driver": CALL,
    "user_annotation": ANNOTATION,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "python_function": PYTHON,
    "overhead": OVERHEAD,
}


class Args(msgspec.Struct, gc=False):
    """Arguments of events, as far as they are used."""

    correlation: int | None = None
    device: int | None = None
    external: int | None = msgspec.field(default=None, name="External id")
    name: str | None = None


class CollectiveArgs(Args, gc=False):
    """The same with those of collectives, whatever they hold."""

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


class Event(trace_events.Event, gc=False):
    """An event with the arguments that are used."""

    args: Args | None = None


class CollectiveEvent(Event, gc=False):
    """The same with the arguments of collectives, which take a quarter longer to read."""

    args: CollectiveArgs | None = None


class ExactEvent(trace_events.ExactEvent, gc=False):
    """The same, with its times as they are written."""

    args: CollectiveArgs | None = None


#: Blocks with this hold events of collectives.
COLLECTIVE_MARK = b'"Collective name"'


_NO_ARGS = Args()
#: Columns of what is gathered.
OWNER, START, END, NAME, CORRELATION, DEVICE, EXTERNAL = range(7)
#: Those kept of a collective, in its order.
_OF_COLLECTIVE = (OWNER, START, END, CORRELATION, EXTERNAL)


@dataclass(frozen=True)
class Collective:
    """An event that says what a collective does: its kind, owner, times, and arguments."""

    kind: int
    owner: int
    start_ns: int
    end_ns: int
    correlation: int
    external: int
    args: CollectiveArgs


@dataclass
class Gathered:
    """What a trace holds, by kind, as far as it was read."""

    names: Texts = field(default_factory=Texts)
    owners: Owners = field(default_factory=Owners)
    threads: dict[int, str] = field(default_factory=dict)
    blocks: dict[int, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    collectives: list[Collective] = field(default_factory=list)
    untimed: int = 0
    endless: int = 0

    def add(self, events: Sequence[Event | ExactEvent]) -> None:
        """Add the events of a block."""
        kinds: dict[int, list[Event | ExactEvent]] = defaultdict(list)
        # JSON gives an object an event, so that each must be looked at.
        for event in events:
            if event.ph == "X":
                kind = _CATEGORIES.get((event.cat or "").lower())
                if kind is not None and event.ts is not None:
                    kinds[kind].append(event)
                self.untimed += kind is not None and event.ts is None
                self.endless += kind in _LASTING and event.dur is None
            elif event.ph == "M" and event.name == "thread_name" and event.args is not None:
                self.threads[self.owners.number(event)] = event.args.name or ""
        for kind, own_events in kinds.items():
            columns = self._columns(own_events)
            self.blocks[kind].append(columns)
            if kind in (KERNEL, OPERATOR):
                self._add_collectives(kind, own_events, columns)

    def _add_collectives(
        self, kind: int, events: Sequence[Event | ExactEvent], columns: Ints
    ) -> None:
        if isinstance(events[0], CollectiveEvent | ExactEvent):
            for row, event in enumerate(events):
                args = event.args
                if isinstance(args, CollectiveArgs) and args.collective is not None:
                    owner, start_ns, end_ns, *ids = columns[_OF_COLLECTIVE, row].tolist()
                    own = Collective(kind, owner, start_ns, end_ns, ids[0], ids[1], args)
                    self.collectives.append(own)

    def _columns(self, events: Sequence[Event | ExactEvent]) -> Ints:
        args = [event.args or _NO_ARGS for event in events]
        told = ([a.correlation for a in args], [a.device for a in args], [a.external for a in args])
        numbers = [[NONE if n is None else n for n in column] for column in told]
        common = columns_of(events, self.owners, self.names)
        return np.concatenate((common, np.array(numbers, np.int64)))

    def rows(self, kind: int) -> int:
        """Return how many events of a kind there are."""
        return sum(block.shape[1] for block in self.blocks[kind])

    def base_ns(self) -> int:
        """Return when the trace's first event began, stray times left aside."""
        starts = [block[START] for blocks in self.blocks.values() for block in blocks]
        if not starts:
            return 0
        start_ns = np.concatenate(starts)
        middle = int(np.median(start_ns))
        near = np.abs(start_ns - middle) < IMPOSSIBLE_NS >> 2
        return int(start_ns[near].min(initial=middle))

    def taken(self, base_ns: int, *kinds: int) -> Rows:
        """Return the events of some kinds, those of each in the order of the file."""
        tables = [np.empty((7, 0), np.int64)]
        tables += [block for kind in kinds for block in self.blocks[kind]]
        kind = np.repeat(np.array(kinds, np.int64), [self.rows(kind) for kind in kinds])
        columns = np.concatenate(tables, axis=1)
        for one in kinds:
            del self.blocks[one]
        columns[[START, END]] -= base_ns
        keep = possible(columns[START], columns[END])
        if keep is None:
            return Rows(columns, kind, 0)
        return Rows(columns[:, keep], kind[keep], int((~keep).sum()))


@dataclass(frozen=True)
class Rows:
    """Events as columns; times count from the trace's first event.

    Attributes:
        columns: as gathered, without rows whose times cannot be.
        kind: category of each.
        impossible: how many rows were left out.
    """

    columns: Ints
    kind: Ints
    impossible: int

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, column: int) -> Ints:
        rows: Ints = self.columns[column]
        return rows

    def take(self, rows: Ints | Bools) -> Rows:
        """Return some of the rows."""
        return Rows(self.columns[:, rows], self.kind[rows], 0)
