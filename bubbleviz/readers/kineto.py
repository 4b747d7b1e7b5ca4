"""PyTorch: the JSON that its profiler (Kineto) writes, ``export_chrome_trace`` or a handler.

What of an event is used, by its category (libkineto/src/output_json.cpp; older versions write the
categories with capitals and other names):

=================================================== ==============================================
category                                            becomes
=================================================== ==============================================
kernel, gpu_memcpy, gpu_memset                      activities, on ``args.device``
cuda_runtime, cuda_driver                           calls, by ``args.correlation``
user_annotation, cpu_op, python_function            ranges (``record_function``, operators, Python)
overhead                                            when the profiler held the process up
=================================================== ==============================================

``distributedInfo.rank`` is the rank, ``baseTimeNanoseconds`` what times count from. In a trace
without any GPU work the outermost operators of each thread stand for kernels.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from bubbleviz import trace_events
from bubbleviz.columns import NONE, Bools, Ints
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.globs import lets_through
from bubbleviz.held import HeldCalls, HeldRanges
from bubbleviz.model import Limitation
from bubbleviz.profile import (
    IMPOSSIBLE_NS,
    Activities,
    Calls,
    Contents,
    Device,
    NameCount,
    Overheads,
    Profile,
    Ranges,
    Source,
    TableCount,
    Thread,
    correlations,
    impossible_times,
    possible,
    process_of,
)
from bubbleviz.progress import Watch, unwatched
from bubbleviz.readers import Reader
from bubbleviz.timing import step
from bubbleviz.trace_events import TraceFile, opened_trace
from bubbleviz.traced import Owners, Texts, clean, columns_of

_KERNEL, _COPY, _CALL, _ANNOTATION, _OPERATOR, _PYTHON, _OVERHEAD = range(7)
_CATEGORIES = {
    "kernel": _KERNEL,
    "gpu_memcpy": _COPY,
    "gpu_memset": _COPY,
    "memcpy": _COPY,
    "memset": _COPY,
    "cuda_runtime": _CALL,
    "cuda_driver": _CALL,
    "runtime": _CALL,
    "driver": _CALL,
    "user_annotation": _ANNOTATION,
    "cpu_op": _OPERATOR,
    "operator": _OPERATOR,
    "python_function": _PYTHON,
    "overhead": _OVERHEAD,
}
#: Before this (2010), in nanoseconds since 1970, no trace was recorded: a clock of another kind.
_OLDEST_UTC_NS = 1_262_304_000_000_000_000
_THREAD_NAME = re.compile(r"^thread -?\d+ \((?P<name>.*)\)$", re.DOTALL)
_RECORD_AGAIN = (
    "record it again with torch.profiler.profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA])"
)


class _Args(msgspec.Struct, gc=False):
    correlation: int | None = None
    device: int | None = None
    external: int | None = msgspec.field(default=None, name="External id")
    name: str | None = None


class _Event(trace_events.Event, gc=False):
    args: _Args | None = None


class _ExactEvent(trace_events.ExactEvent, gc=False):
    args: _Args | None = None


_NO_ARGS = _Args()
#: Columns of what is gathered.
_OWNER, _START, _END, _NAME, _CORRELATION, _DEVICE, _EXTERNAL = range(7)


@dataclass
class _Gathered:
    """What a trace holds, by kind, as far as it was read."""

    names: Texts = field(default_factory=Texts)
    owners: Owners = field(default_factory=Owners)
    threads: dict[int, str] = field(default_factory=dict)
    blocks: dict[int, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    untimed: int = 0

    def add(self, events: Sequence[_Event | _ExactEvent]) -> None:
        """Add the events of a block."""
        kinds: dict[int, list[_Event | _ExactEvent]] = defaultdict(list)
        # JSON gives an object an event, so that each must be looked at.
        for event in events:
            if event.ph == "X":
                kind = _CATEGORIES.get((event.cat or "").lower())
                if kind is not None and event.ts is not None:
                    kinds[kind].append(event)
                self.untimed += kind is not None and event.ts is None
            elif event.ph == "M" and event.name == "thread_name" and event.args is not None:
                self.threads[self.owners.number(event)] = event.args.name or ""
        for kind, own_events in kinds.items():
            self.blocks[kind].append(self._columns(own_events))

    def _columns(self, events: Sequence[_Event | _ExactEvent]) -> Ints:
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
        starts = [block[_START] for blocks in self.blocks.values() for block in blocks]
        if not starts:
            return 0
        start_ns = np.concatenate(starts)
        middle = int(np.median(start_ns))
        near = np.abs(start_ns - middle) < IMPOSSIBLE_NS >> 2
        return int(start_ns[near].min(initial=middle))

    def taken(self, base_ns: int, *kinds: int) -> _Rows:
        """Return the events of some kinds, those of each in the order of the file."""
        tables = [np.empty((7, 0), np.int64)]
        tables += [block for kind in kinds for block in self.blocks[kind]]
        kind = np.repeat(np.array(kinds, np.int64), [self.rows(kind) for kind in kinds])
        columns = np.concatenate(tables, axis=1)
        for one in kinds:
            del self.blocks[one]
        columns[[_START, _END]] -= base_ns
        keep = possible(columns[_START], columns[_END])
        if keep is None:
            return _Rows(columns, kind, 0)
        return _Rows(columns[:, keep], kind[keep], int((~keep).sum()))


@dataclass(frozen=True)
class _Rows:
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

    def take(self, rows: Ints | Bools) -> _Rows:
        """Return some of the rows."""
        return _Rows(self.columns[:, rows], self.kind[rows], 0)


@dataclass(frozen=True)
class _Trace:
    """A whole trace; times count from its first event.

    Attributes:
        profile: of it, with every range.
        kind: category of each range.
        counts: how many events of each category there are.
    """

    profile: Profile
    kind: Ints
    counts: Mapping[int, int]


def _read_whole(file: TraceFile[_Event, _ExactEvent]) -> _Trace:
    """Read a trace.

    Raises:
        ProfileError: it is none.
    """
    gathered = _Gathered()
    with step("read events") as rows:
        for events in file.blocks():
            gathered.add(events)
            rows.count = (rows.count or 0) + len(events)
    counts = {kind: gathered.rows(kind) for kind in range(7)}
    base_ns = gathered.base_ns()
    thread, texts = gathered.owners.threads(), gathered.names.all()
    work = gathered.taken(base_ns, _KERNEL, _COPY)
    called = gathered.taken(base_ns, _CALL)
    named = gathered.taken(base_ns, _ANNOTATION, _OPERATOR, _PYTHON)
    held = gathered.taken(base_ns, _OVERHEAD)
    facts = file.facts()
    notes = list(file.limitations())
    if gathered.untimed:
        because = f"{file.path}: they say no time; they are left out"
        notes.append(Limitation("events without a time", because, gathered.untimed))
    left_out = {
        "kernels and copies": work.impossible,
        "CUDA API calls": called.impossible,
        "ranges": named.impossible,
    }
    notes.extend(impossible_times(file.path, left_out))
    if len(work):
        called, more = _with_operators(work, called, named, file.path)
        notes.extend(more)
        process = _processes(work, called, thread)
    else:
        work, called = _operators_as_work(named, thread)
        process = process_of(thread[work[_OWNER]])
        because = (
            f"{file.path}: it holds no GPU work, so the outermost operators of each thread stand "
            "for kernels"
        )
        notes.append(Limitation("what ran on a GPU", because))
    profile = Profile(
        source=_source(file.path, facts, base_ns),
        activities=_activities(work, process, texts),
        calls=_calls(called, thread, texts),
        ranges=_ranges(named, thread, texts),
        every_range=HeldRanges(_ranges(named, thread, texts)),
        overheads=Overheads(
            process_of(thread[held[_OWNER]]), held[_START].copy(), held[_END].copy()
        ),
        threads=_threads(gathered.threads, thread),
        devices=_devices(facts),
        limitations=tuple(notes),
        global_rank=_global_rank(facts),
    )
    return _Trace(profile, named.kind, counts)


def _with_operators(
    work: _Rows, called: _Rows, named: _Rows, path: str
) -> tuple[_Rows, tuple[Limitation, ...]]:
    """Return the calls, with operators in place of those calls that the trace lacks.

    A kernel and the operator that launched it share an ``External id``.
    """
    lost = np.flatnonzero(
        ~np.isin(work[_CORRELATION], called[_CORRELATION]) & (work[_EXTERNAL] >= 0)
    )
    if len(lost) == 0:
        return called, ()
    operators = np.flatnonzero(np.isin(named.kind, (_OPERATOR, _ANNOTATION)))
    external, first = np.unique(named[_EXTERNAL][operators], return_index=True)
    at = np.searchsorted(external, work[_EXTERNAL][lost])
    found = at < len(external)
    found[found] = external[at[found]] == work[_EXTERNAL][lost[found]]
    lost, at = lost[found], at[found]
    rows = named.take(operators[first[at]]).columns.copy()
    rows[_END] = rows[_START]
    rows[_CORRELATION] = work[_CORRELATION][lost]
    if len(lost) == 0:
        return called, ()
    because = f"{path}: their operators, which share their External id, stand for the calls"
    note = Limitation("CUDA API calls of some kernels and copies", because, len(lost))
    columns = np.concatenate((called.columns, rows), axis=1)
    kind = np.full(columns.shape[1], _CALL, np.int64)
    return _Rows(columns, kind, 0), (note,)


def _operators_as_work(named: _Rows, thread: Ints) -> tuple[_Rows, _Rows]:
    """Return the outermost operators of each thread as work, and a call for each.

    ::

        operators   ├──── linear ────┤  ├─ relu ─┤
                      ├ addmm ┤
        work        ├────────────────┤  ├────────┤
    """
    rows = np.flatnonzero(named.kind == _OPERATOR)
    own = thread[named[_OWNER][rows]]
    order = np.lexsort((-named[_END][rows], named[_START][rows], own))
    rows, own = rows[order], own[order]
    start_ns, end_ns = named[_START][rows], named[_END][rows]
    first = np.ones(len(rows), bool)
    first[1:] = own[1:] != own[:-1]
    # Threads follow one another in time once each is moved behind the one before.
    span_ns = int(end_ns.max(initial=0)) + 1
    place = np.cumsum(first) * span_ns
    latest_ns = np.maximum.accumulate(end_ns + place) if len(rows) else end_ns
    outermost = first.copy()
    outermost[1:] |= start_ns[1:] + place[1:] >= latest_ns[:-1]
    columns = named.columns[:, rows[outermost]].copy()
    columns[_CORRELATION] = np.arange(columns.shape[1])
    columns[_DEVICE] = 0
    calls = columns.copy()
    calls[_END] = calls[_START]
    kernel, call = (np.full(columns.shape[1], kind, np.int64) for kind in (_KERNEL, _CALL))
    return _Rows(columns, kernel, 0), _Rows(calls, call, 0)


def _processes(work: _Rows, called: _Rows, thread: Ints) -> Ints:
    """Return the process of each kernel, which only its launching call tells.

    A kernel without one belongs to the process that made the most calls.
    """
    process = process_of(thread[called[_OWNER]])
    known, count = np.unique(process, return_counts=True)
    most = int(known[count.argmax()]) if len(known) else 0
    if len(known) < 2:
        return np.full(len(work), most, np.int64)
    correlation, first = np.unique(called[_CORRELATION], return_index=True)
    at = np.minimum(np.searchsorted(correlation, work[_CORRELATION]), len(correlation) - 1)
    found = (correlation[at] == work[_CORRELATION]) & (work[_CORRELATION] >= 0)
    return np.where(found, process[first[at]], most)


def _activities(work: _Rows, process: Ints, texts: Sequence[str]) -> Activities:
    ranks, rank = np.unique(np.stack((process, work[_DEVICE]), axis=1), axis=0, return_inverse=True)
    kernels = int((work.kind == _KERNEL).sum())
    name, name_id = np.unique(work[_NAME][:kernels], return_inverse=True)
    return Activities(
        start_ns=work[_START].copy(),
        end_ns=work[_END].copy(),
        rank=rank.reshape(-1).astype(np.int32),
        correlation_id=correlations(work[_CORRELATION]),
        name_id=np.concatenate((name_id, np.full(len(work) - kernels, NONE))).astype(np.int32),
        kernels=kernels,
        names=tuple(texts[n] for n in name.tolist()),
        ranks=ranks.reshape(-1, 2),
    )


def _calls(called: _Rows, thread: Ints, texts: Sequence[str]) -> HeldCalls:
    own = thread[called[_OWNER]]
    order = np.lexsort((called[_START], own))
    name, name_id = np.unique(called[_NAME][order], return_inverse=True)
    calls = Calls(
        row=np.arange(len(called)),
        start_ns=called[_START][order],
        end_ns=called[_END][order],
        thread=own[order],
        correlation_id=correlations(called[_CORRELATION][order]),
    )
    return HeldCalls(calls, name_id.astype(np.int32), tuple(texts[n] for n in name.tolist()))


def _ranges(named: _Rows, thread: Ints, texts: Sequence[str]) -> Ranges:
    name, name_id = np.unique(named[_NAME], return_inverse=True)
    none = np.zeros(len(named), bool)
    return Ranges(
        start_ns=named[_START].copy(),
        end_ns=named[_END].copy(),
        thread=thread[named[_OWNER]],
        end_thread=np.full(len(named), NONE, np.int64),
        start_end=none,
        cut=none.copy(),
        name_id=name_id.astype(np.int64),
        names=tuple(texts[n] for n in name.tolist()),
    )


def _threads(names: Mapping[int, str], thread: Ints) -> tuple[Thread, ...]:
    told = {int(thread[owner]): _THREAD_NAME.sub(r"\g<name>", n) for owner, n in names.items()}
    return tuple(Thread(own, clean(name)) for own, name in sorted(told.items()) if name)


def _source(path: str, facts: Mapping[str, object], base_ns: int) -> Source:
    host, schema = facts.get("host_name"), facts.get("schemaVersion")
    counted = facts.get("baseTimeNanoseconds")
    utc_ns = base_ns + (counted if isinstance(counted, int) else 0)
    known = isinstance(host, str) and bool(host)
    return Source(
        path=path,
        host=clean(str(host)) if known else Path(path).name,
        host_known=known,
        format="kineto",
        nsys_version=None,
        schema_version=None if schema is None else str(schema),
        session_utc_ns=utc_ns if utc_ns > _OLDEST_UTC_NS else None,
        session_clock_ns=None,
    )


def _devices(facts: Mapping[str, object]) -> tuple[Device, ...]:
    told = facts.get("deviceProperties")
    gpus = [gpu for gpu in told if isinstance(gpu, dict)] if isinstance(told, list) else []
    return tuple(
        Device(None, gpu["id"], clean(str(gpu.get("name", ""))), None)
        for gpu in gpus
        if isinstance(gpu.get("id"), int)
    )


def _global_rank(facts: Mapping[str, object]) -> int | None:
    told = facts.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    return rank if isinstance(rank, int) and rank >= 0 else None


@dataclass
class KinetoFile:
    """An open trace; see :class:`~bubbleviz.readers.OpenFile`."""

    file: TraceFile[_Event, _ExactEvent]

    @cached_property
    def _trace(self) -> _Trace:
        return _read_whole(self.file)

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often names of annotations, or else of operators, occur."""
        ranges, kind = self._trace.profile.ranges, self._trace.kind
        told = kind == (_ANNOTATION if (kind == _ANNOTATION).any() and "*" in globs else kind)
        counts = np.bincount(ranges.name_id[told], minlength=len(ranges.names)).tolist()
        fits = _fitting(ranges.names, globs)
        return {n: c for n, c, fit in zip(ranges.names, counts, fits, strict=True) if fit and c}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile; whatever it lacks but work is never missed.

        Raises:
            ProfileError: it cannot be read.
            NothingToAnalyseError: neither GPU work nor operators were recorded.
        """
        del partial
        whole = self._trace.profile
        if len(whole.activities) == 0:
            raise NothingToAnalyseError(
                f"{self.file.path}: neither kernels nor operators were recorded; {_RECORD_AGAIN}"
            )
        ranges = whole.ranges
        fits = np.array(_fitting(ranges.names, globs), bool)
        named = ranges.take(fits[ranges.name_id] & (self._trace.kind != _PYTHON))
        return replace(whole, ranges=named)

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return what the trace holds, ranges of these names among it."""
        trace = self._trace
        counts, profile = trace.counts, trace.profile
        found = Counter(self.sample(globs))
        return Contents(
            source=profile.source,
            tables=tuple(
                TableCount(what, category, counts[kind] or None) for what, category, kind in _SHOWN
            ),
            processes=tuple(np.unique(profile.activities.ranks[:, 0]).tolist()),
            devices=profile.devices,
            candidates=tuple(NameCount(name, count) for name, count in sorted(found.items())),
            ranges=len(profile.ranges),
            missing=(),
            readable=len(profile.activities) > 0,
        )


#: What an inspection counts.
_SHOWN = (
    ("kernels", "kernel", _KERNEL),
    ("copies and fills", "gpu_memcpy, gpu_memset", _COPY),
    ("CUDA API calls", "cuda_runtime, cuda_driver", _CALL),
    ("annotations", "user_annotation", _ANNOTATION),
    ("operators", "cpu_op", _OPERATOR),
    ("Python functions", "python_function", _PYTHON),
)


def _fitting(names: Sequence[str], globs: Sequence[str]) -> list[bool]:
    return [any(lets_through(glob, name) for glob in globs) for name in names]


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[KinetoFile]:  # noqa: ARG001 - one thread reads JSON
    """Open a trace of PyTorch.

    Raises:
        ProfileError: it cannot be opened.
    """
    with opened_trace(path, _Event, _ExactEvent, watch) as file:
        yield KinetoFile(file)


READER = Reader(
    name="kineto",
    suffixes=(".pt.trace.json", ".pt.trace.json.gz", ".json.gz"),
    recognises=lambda head: head.lstrip()[:1] in (b"{", b"["),
    open_file=open_file,
)
