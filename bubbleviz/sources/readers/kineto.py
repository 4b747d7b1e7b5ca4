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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bubbleviz.conventions.globs import fitting
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.columns import Ints
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import (
    Contents,
    Device,
    NameCount,
    Overheads,
    Profile,
    Source,
    TableCount,
    Thread,
    impossible_times,
    process_of,
)
from bubbleviz.model.texts import encodable
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.in_memory import InMemoryRanges
from bubbleviz.sources.kineto.collectives import collectives_of
from bubbleviz.sources.kineto.events import (
    ANNOTATION,
    CALL,
    COLLECTIVE_MARK,
    COPY,
    CORRELATION,
    END,
    KERNEL,
    NAME,
    OPERATOR,
    OVERHEAD,
    OWNER,
    PYTHON,
    START,
    CollectiveEvent,
    Event,
    ExactEvent,
    Gathered,
    Rows,
)
from bubbleviz.sources.kineto.tables import (
    activities_of,
    calls_of,
    operators_as_work,
    processes,
    ranges_of,
    with_operators,
)
from bubbleviz.sources.readers import Reader
from bubbleviz.sources.trace_events import Rare, TraceFile, is_json, opened_trace
from bubbleviz.timing import step

#: Before this (2010), in nanoseconds since 1970, no trace was recorded: a clock of another kind.
_OLDEST_UTC_NS = 1_262_304_000_000_000_000
#: What the profiler says of the document, and the categories that it alone gives events.
_MARKS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver|'
    rb'gpu_mem(?:cpy|set)|kernel|ac2g|Operator|Runtime|Kernel)"'
)
_THREAD_NAME = re.compile(r"^thread -?\d+ \((?P<name>.*)\)$", re.DOTALL)
#: Calls that make a device do something.
_LAUNCHES = re.compile(r"(?:cuda|cu|hip)\w*(?:Launch|Memcpy|Memset)")
_RECORD_AGAIN = (
    "record it again with torch.profiler.profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA])"
)


@dataclass(frozen=True)
class _Trace:
    """A whole trace; times count from its first event.

    Attributes:
        profile: of it, with every range.
        kind: category of each range.
        counts: how many events of each category there are.
        lacking: what of a GPU's work must have been lost, in half a sentence; "" for nothing.
    """

    profile: Profile
    kind: Ints
    counts: Mapping[int, int]
    lacking: str


def _read_whole(file: TraceFile[Event, ExactEvent]) -> _Trace:
    """Read a trace.

    Raises:
        ProfileError: it is none.
    """
    gathered = Gathered()
    with step("read events") as rows:
        for events in file.blocks():
            gathered.add(events)
            rows.count = (rows.count or 0) + len(events)
    counts = {kind: gathered.rows(kind) for kind in range(7)}
    base_ns, facts = gathered.base_ns(), file.facts()
    thread, texts = gathered.owners.threads(), gathered.names.all()
    work = gathered.taken(base_ns, KERNEL, COPY)
    called = gathered.taken(base_ns, CALL)
    named = gathered.taken(base_ns, ANNOTATION, OPERATOR, PYTHON)
    held = gathered.taken(base_ns, OVERHEAD)
    lost = _without_work(called, work, texts)
    lacking = "" if len(work) else _lacking(lost, facts, whole=not file.cut)
    notes = [
        *file.limitations(),
        *_cut(file, lost, len(work)),
        *_untimed(file.path, gathered.untimed, gathered.endless),
        *impossible_times(
            file.path,
            {
                "kernels and copies": work.impossible,
                "CUDA API calls": called.impossible,
                "ranges": named.impossible,
            },
        ),
    ]
    collectives = collectives_of(work, called, gathered, base_ns, facts)
    if len(work):
        called, more = with_operators(work, called, named, file.path)
        notes.extend(more)
        process = processes(work, called, thread)
    elif lacking:
        process = np.empty(0, np.int64)
    else:
        work, called = operators_as_work(named, thread)
        process = process_of(thread[work[OWNER]])
        notes.extend(_without_gpu(file.path))
    ranges = ranges_of(named, thread, texts)
    profile = Profile(
        source=_source(file.path, facts, base_ns),
        activities=activities_of(work, process, texts),
        calls=calls_of(called, thread, texts),
        ranges=ranges,
        every_range=InMemoryRanges(ranges),
        overheads=Overheads(process_of(thread[held[OWNER]]), held[START].copy(), held[END].copy()),
        threads=_threads(gathered.threads, thread),
        devices=_devices(facts),
        limitations=tuple(notes),
        global_rank=_global_rank(facts),
        launches_known=counts[KERNEL] + counts[COPY] > 0,
        collectives=collectives,
    )
    return _Trace(profile, named.kind, counts, lacking)


def _without_work(called: Rows, work: Rows, texts: Sequence[str]) -> int:
    """Return how many calls launched something that the trace does not hold."""
    launches = np.array([_LAUNCHES.match(text) is not None for text in texts], bool)
    told = np.isin(called[CORRELATION], work[CORRELATION])
    return int((launches[called[NAME]] & ~told).sum()) if len(called) else 0


def _lacking(launched: int, facts: Mapping[str, object], *, whole: bool) -> str:
    """Return what must have been lost of a trace that holds no GPU work; "" for nothing."""
    if launched:
        return f"{launched:,} calls launched work on a GPU, and it holds none of that"
    if not whole and facts.get("deviceProperties"):
        return "its end is missing, and with it what ran on the GPUs that it describes"
    return ""


def _cut(file: TraceFile[Event, ExactEvent], launched: int, work: int) -> tuple[Limitation, ...]:
    """Return what a cut takes: PyTorch writes operators first, and kernels in no order of time."""
    if not (file.cut and work):
        return ()
    reason = (
        f"{file.path}: its end is missing, and kernels stand there in no order of time; any may be "
        "lost, and what devices did is told too low"
    )
    return (Limitation("work of calls that launched some", reason, launched),)


def _untimed(path: str, count: int, endless: int) -> tuple[Limitation, ...]:
    found = {
        ("events without a time", "they say no time; they are left out"): count,
        ("events without a duration", "they say none; they count as no time at all"): endless,
    }
    return tuple(
        Limitation(what, f"{path}: {reason}", n) for (what, reason), n in found.items() if n
    )


def _without_gpu(path: str) -> tuple[Limitation, ...]:
    reason = (
        f"{path}: it holds no GPU work, so the outermost operators of each thread stand for kernels"
    )
    return (Limitation("what ran on a GPU", reason),)


def _threads(names: Mapping[int, str], thread: Ints) -> tuple[Thread, ...]:
    told = {int(thread[owner]): _THREAD_NAME.sub(r"\g<name>", n) for owner, n in names.items()}
    return tuple(Thread(own, encodable(name)) for own, name in sorted(told.items()) if name)


def _source(path: str, facts: Mapping[str, object], base_ns: int) -> Source:
    host, schema = facts.get("host_name"), facts.get("schemaVersion")
    counted = facts.get("baseTimeNanoseconds")
    utc_ns = base_ns + (counted if isinstance(counted, int) else 0)
    known = isinstance(host, str) and bool(host)
    return Source(
        path=path,
        host=encodable(str(host)) if known else Path(path).name,
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
        Device(None, gpu["id"], encodable(str(gpu.get("name", ""))), None)
        for gpu in gpus
        if isinstance(gpu.get("id"), int)
    )


def _global_rank(facts: Mapping[str, object]) -> int | None:
    told = facts.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    return rank if isinstance(rank, int) and rank >= 0 else None


@dataclass
class KinetoFile:
    """An open trace; see :class:`~bubbleviz.sources.readers.OpenFile`."""

    file: TraceFile[Event, ExactEvent]

    @cached_property
    def _trace(self) -> _Trace:
        return _read_whole(self.file)

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often names of annotations, or else of operators, occur."""
        ranges, kind = self._trace.profile.ranges, self._trace.kind
        told = kind == (ANNOTATION if (kind == ANNOTATION).any() and "*" in globs else kind)
        counts = np.bincount(ranges.name_id[told], minlength=len(ranges.names)).tolist()
        fits = fitting(globs, ranges.names)
        return {n: c for n, c, fit in zip(ranges.names, counts, fits, strict=True) if fit and c}

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile.

        Args:
            globs: prefilters of the ranges that are wanted by name.
            partial: read it all the same where it holds no calls.

        Raises:
            ProfileError: it cannot be read.
            NothingToAnalyseError: neither GPU work nor operators were recorded, or no calls.
        """
        whole = self._trace.profile
        if self._trace.lacking:
            raise NothingToAnalyseError(
                f"{self.file.path}: {self._trace.lacking}; copy the file again, or {_RECORD_AGAIN}"
            )
        if len(whole.activities) == 0:
            raise NothingToAnalyseError(
                f"{self.file.path}: neither kernels nor operators were recorded; {_RECORD_AGAIN}"
            )
        if not partial and not any(map(len, whole.calls.blocks())):
            raise NothingToAnalyseError(
                f"{self.file.path}: no CUDA API calls were recorded, so kernels cannot be linked "
                f"to ranges; {_RECORD_AGAIN}"
            )
        ranges = whole.ranges
        fits = np.array(fitting(globs, ranges.names), bool)
        named = ranges.take(fits[ranges.name_id] & (self._trace.kind != PYTHON))
        return replace(whole, ranges=named)

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return what the trace holds, ranges of these names among it."""
        trace = self._trace
        counts, profile = trace.counts, trace.profile
        found = self.sample(globs)
        return Contents(
            source=profile.source,
            tables=tuple(
                TableCount(what, category, counts[kind] or None) for what, category, kind in _SHOWN
            ),
            processes=tuple(np.unique(profile.activities.ranks[:, 0]).tolist()),
            devices=profile.devices,
            candidates=tuple(NameCount(name, count) for name, count in sorted(found.items())),
            ranges=len(profile.ranges),
            missing=(trace.lacking,) if trace.lacking else (),
            readable=len(profile.activities) > 0,
        )


#: What an inspection counts.
_SHOWN = (
    ("kernels", "kernel", KERNEL),
    ("copies and fills", "gpu_memcpy, gpu_memset", COPY),
    ("CUDA API calls", "cuda_runtime, cuda_driver", CALL),
    ("annotations", "user_annotation", ANNOTATION),
    ("operators", "cpu_op", OPERATOR),
    ("Python functions", "python_function", PYTHON),
)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[KinetoFile]:  # noqa: ARG001 - one thread reads JSON
    """Open a trace of PyTorch.

    Raises:
        ProfileError: it cannot be opened.
    """
    rare = Rare[Event](COLLECTIVE_MARK, CollectiveEvent)
    with opened_trace(path, Event, ExactEvent, watch, rare) as file:
        yield KinetoFile(file)


READER = Reader(
    name="kineto",
    suffixes=(".pt.trace.json", ".pt.trace.json.gz", ".json.gz"),
    recognises=lambda head: is_json(head) and _MARKS.search(head) is not None,
    open_file=open_file,
    maybe=(".json",),
    # What was filtered or put together by hand may hold none of them.
    may_be=is_json,
)
