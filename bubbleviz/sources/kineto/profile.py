"""The profile of a whole trace of PyTorch's profiler.

Events become tables by their category (libkineto/src/output_json.cpp; older versions write the
categories with capitals and other names):

=================================================== ==============================================
category                                            becomes
=================================================== ==============================================
kernel, gpu_memcpy, gpu_memset, mtia_ccp_events     activities, on ``args.device``
cuda_runtime, cuda_driver, mtia_runtime, xpu_...    calls, by ``args.correlation``
user_annotation, cpu_op, python_function            ranges (``record_function``, operators, Python)
overhead                                            times when the profiler held the process up
cuda_sync, cuda_event                               waits, and records of CUDA events
=================================================== ==============================================

``distributedInfo.rank`` is the rank, and times count from ``baseTimeNanoseconds``. In a trace
without any work of devices the outermost operators of each thread stand for kernels, and the host
for the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bubbleviz.conventions.copy_names import read_copies
from bubbleviz.conventions.kinds import WORK_CALLS
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Ints, join_tables
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import find_distinct, find_positions, group_rows, mask_run_starts
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import HOST, Profile, process_of
from bubbleviz.model.texts import replace_surrogates
from bubbleviz.progress import Watch
from bubbleviz.sources import in_memory
from bubbleviz.sources.kineto import events as kineto
from bubbleviz.sources.kineto.collectives import (
    collectives_of,
    world_of,
)
from bubbleviz.sources.kineto.events import EventCollector, EventRows
from bubbleviz.sources.kineto.memory import read_memory
from bubbleviz.sources.kineto.recordings import MAX_DEVICES, Recordings, find_recordings
from bubbleviz.sources.kineto.synchronisation import find_streams, read_synchronisation
from bubbleviz.sources.recording_sets import join_recordings
from bubbleviz.sources.trace_events import TraceFile, to_global_threads

# Tables of a profile, made of the events of PyTorch's profiler.
#
# ``threads`` and ``names`` are those of the profile, by the numbers that the events' columns hold.


def with_devices(
    work: EventRows, threads: Ints, path: str
) -> tuple[EventRows, tuple[Limitation, ...]]:
    """Return work that names no device on the one that stands for its process, else on device 0."""
    lacking = np.flatnonzero(work.device < 0)
    if len(lacking) == 0:
        return work, ()
    device = work.device.copy()
    process = process_of(threads[work.thread[lacking]])
    device[lacking] = np.where(process < MAX_DEVICES, process, 0)
    reason = f"{path}: counted on the device that their process (pid) names, else on device 0"
    note = Limitation(
        "devices of some kernels and copies", reason, len(lacking), LimitationKind.COSTS
    )
    return replace(work, device=device), (note,)


def with_operators(
    work: EventRows, calls: EventRows, ranges: EventRows, path: str
) -> tuple[EventRows, tuple[Limitation, ...]]:
    """Return the calls, with operators in place of those calls that the trace lacks.

    A kernel and the operator that launched it share an ``External id``.
    """
    called = find_positions(find_distinct(calls.correlation), work.correlation) != NONE
    lost = np.flatnonzero(~called & (work.external >= 0))
    if len(lost) == 0:
        return calls, ()
    operators = np.flatnonzero(np.isin(ranges.kind, (kineto.OPERATOR, kineto.ANNOTATION)))
    first = group_rows(ranges.external[operators]).first
    at = find_positions(ranges.external[operators[first]], work.external[lost])
    lost, at = lost[at != NONE], at[at != NONE]
    if len(lost) == 0:
        return calls, ()
    rows = ranges.take(operators[first[at]])
    kind = np.full(len(rows), kineto.CALL, np.int64)
    rows = replace(rows, end_ns=rows.start_ns, correlation=work.correlation[lost], kind=kind)
    reason = f"{path}: operators with the same External id are used as the calls"
    note = Limitation(
        "CUDA API calls of some kernels and copies", reason, len(lost), LimitationKind.COSTS
    )
    return join_tables([calls, rows]), (note,)


def operators_as_work(ranges: EventRows, threads: Ints) -> tuple[EventRows, EventRows]:
    """Return the outermost operators of each thread as work, and a call for each.

    ::

        operators   ├──── linear ────┤  ├─ relu ─┤
                      ├ addmm ┤
        work        ├────────────────┤  ├────────┤
    """
    rows = np.flatnonzero(ranges.kind == kineto.OPERATOR)
    thread = threads[ranges.thread[rows]]
    order = np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows], thread))
    rows, thread = rows[order], thread[order]
    start_ns, end_ns = ranges.start_ns[rows], ranges.end_ns[rows]
    first = mask_run_starts(thread)
    # Threads follow one another in time once each is moved behind the one before.
    span_ns = int(end_ns.max(initial=0)) + 1
    place = np.cumsum(first) * span_ns
    latest_ns = np.maximum.accumulate(end_ns + place) if len(rows) else end_ns
    outermost = first.copy()
    outermost[1:] |= start_ns[1:] + place[1:] >= latest_ns[:-1]
    work = ranges.take(rows[outermost])
    count = len(work)
    work = replace(
        work,
        correlation=np.arange(count),
        device=np.zeros(count, np.int64),
        kind=np.full(count, kineto.KERNEL, np.int64),
    )
    return work, replace(work, end_ns=work.start_ns, kind=np.full(count, kineto.CALL, np.int64))


def processes_of(work: EventRows, calls: EventRows, threads: Ints) -> Ints:
    """Return the process of each kernel: the process that made its launching call.

    A kernel without a launching call belongs to the process that made the most calls, or to process
    0 if no calls were recorded.
    """
    process = process_of(threads[calls.thread])
    groups = group_rows(process)
    known = process[groups.first]
    most = int(known[np.bincount(groups.of_row).argmax()]) if len(known) else 0
    if len(known) < 2:
        return np.full(len(work), most, np.int64)
    first = group_rows(calls.correlation).first
    at = find_positions(calls.correlation[first], work.correlation)
    launched = (at != NONE) & (work.correlation >= 0)
    return np.where(launched, process[first[at]], most)


def _named(name: Ints, names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Return the number of each row's name among those that occur, and these, as they come."""
    groups = group_rows(name).order_by_appearance()
    return groups.of_row, tuple(names[number] for number in name[groups.first].tolist())


def _activities(work: EventRows, process: Ints, names: Sequence[str]) -> model.Activities:
    """Return work as activities; ``process`` is that of each row."""
    groups = group_rows(process, work.device)
    kernels = int((work.kind == kineto.KERNEL).sum())
    name_id, used = _named(work.name[:kernels], names)
    return model.Activities(
        start_ns=work.start_ns.copy(),
        end_ns=work.end_ns.copy(),
        rank=groups.of_row.astype(np.int32),
        correlation_id=model.to_correlation_ids(work.correlation),
        name_id=np.concatenate((name_id, np.full(len(work) - kernels, NONE))).astype(np.int32),
        kernels=kernels,
        names=used,
        ranks=np.stack((process, work.device), axis=1)[groups.first],
    )


def _read_copies(work: EventRows, names: Sequence[str]) -> Copies:
    """Read the direction, memory and size of copies from their names and arguments."""
    rows = np.flatnonzero(work.kind == kineto.COPY)
    return read_copies(rows, work.name[rows], names, work.size[rows])


#: Before this (2010), in nanoseconds since 1970, no trace was recorded: a clock of another kind.
_OLDEST_UTC_NS = 1_262_304_000_000_000_000
#: Sums of two such times (2116) have 64 bits.
_LATEST_UTC_NS = 1 << 62
_THREAD_NAME = re.compile(r"^thread -?\d+ \((?P<name>.*)\)$", re.DOTALL)


@dataclass(frozen=True)
class _Trace:
    """Data shared by all recordings in a trace.

    Attributes:
        path: Path of the trace.
        metadata: Fields of the document other than its events.
        base_ns: Start of the first event.
        threads: Global thread of each thread number.
        names: Names of events, indexed by name number.
        device: Word for the devices, such as GPU.
        api: Name of the API of the calls, CUDA or HIP.
        is_cut: Whether the end of the file is missing.
        is_merged: Whether the trace contains several recordings.
    """

    path: str
    metadata: Mapping[str, object]
    base_ns: int
    threads: Ints
    names: tuple[str, ...]
    device: str
    api: str
    is_cut: bool
    is_merged: bool = False


@dataclass(frozen=True)
class _Events:
    """Events of one recording.

    Attributes:
        work: Kernels, then copies.
        calls: Calls of the CUDA or HIP API.
        ranges: Annotations, operators and Python functions.
        overheads: Times in which the profiler delayed the process.
        collector: Collector with the arguments of collectives and waits.
    """

    work: EventRows
    calls: EventRows
    ranges: EventRows
    overheads: EventRows
    collector: EventCollector


def read_profile(path: str, watch: Watch) -> in_memory.Decoded:
    """Read a trace.

    Raises:
        ProfileError: The file is not a trace, or contains several recordings that cannot be
            separated.
    """
    file = TraceFile(path, kineto.KinetoArgs, watch)
    collector = EventCollector(file)
    for events in file.blocks(collector.described):
        collector.add(events)
    device = next((name for name in kineto.DEVICES if name in collector.devices), "GPU")
    base_ns = collector.base_ns()
    names = tuple(map(replace_surrogates, file.texts.values))
    every_event = _Events(
        collector.take(base_ns, kineto.KERNEL, kineto.COPY),
        collector.take(base_ns, kineto.CALL),
        collector.take(base_ns, kineto.ANNOTATION, kineto.OPERATOR, kineto.PYTHON),
        collector.take(base_ns, kineto.OVERHEAD),
        collector,
    )
    # ROCm's builds of PyTorch record calls of HIP as CUDA's.
    called = (names[number] for number in find_distinct(every_event.calls.name).tolist())
    api = "HIP" if any(name.startswith("hip") for name in called) else "CUDA"
    threads = to_global_threads(file.threads)
    trace = _Trace(path, file.metadata(), base_ns, threads, names, device, api, file.cut)
    recordings = find_recordings(path, file.threads.values, every_event.work, every_event.calls)
    if recordings is None:
        decoded = _decode(trace, every_event)
    else:
        trace = replace(trace, is_merged=True)
        parts = [_decode(trace, part) for part in _split(every_event, recordings)]
        decoded = join_recordings(parts, recordings.labels)
    notes = (*file.limitations(), *_losses(path, collector), *decoded.profile.limitations)
    counts = {kind: collector.count(kind) for kind in kineto.KINDS}
    return replace(
        decoded,
        profile=replace(
            decoded.profile,
            limitations=notes,
            launches_known=counts[kineto.KERNEL] + counts[kineto.COPY] > 0,
        ),
        tables={what.replace("CUDA", api): counts[kind] or None for what, kind in _COUNTED},
    )


def _split(events: _Events, recordings: Recordings) -> Iterator[_Events]:
    """Yield the events of each recording."""
    by_work = recordings.number_work(events.work.thread, events.work.device)

    def is_inside(thread: int, device: int) -> bool:
        return recordings.find(thread, device) == number

    def take(rows: EventRows, recording: Ints) -> EventRows:
        # Events that were left out belong to no recording. They count once, in the first one.
        impossible = rows.impossible if number == 0 else 0
        return replace(rows.take(recording == number), impossible=impossible)

    for number in range(len(recordings.labels)):
        calls, ranges, overheads = (
            take(rows, recordings.by_thread[rows.thread])
            for rows in (events.calls, events.ranges, events.overheads)
        )
        collector = events.collector.of_recording(recordings.by_thread == number, is_inside)
        yield _Events(take(events.work, by_work), calls, ranges, overheads, collector)


def _decode(trace: _Trace, events: _Events) -> in_memory.Decoded:
    """Decode one recording of a trace."""
    path, threads, names = trace.path, trace.threads, trace.names
    base_ns, collector = trace.base_ns, events.collector
    work, calls, ranges = events.work, events.calls, events.ranges
    rank, world_size, _ = world = world_of(trace.metadata)
    if trace.is_merged:
        rank, world = NONE, (NONE, *world[1:])
    n_lost = _count_lost(work, calls, names)
    loss = ""
    if len(work) == 0:
        loss = in_memory.describe_invalid_times(_untimed_work(path, collector))
        loss = loss or _loss(n_lost, trace.metadata, cut=trace.is_cut)
    kinds = (model.KERNELS_AND_COPIES, f"{trace.api} API calls", "ranges")
    impossible = [rows.impossible for rows in (work, calls, ranges)]
    limitations = [
        *_losses_of_cut(trace, n_lost if len(work) else None),
        *model.report_impossible_times(path, dict(zip(kinds, impossible, strict=True))),
    ]
    collectives = collectives_of(work, calls, collector, base_ns, world)
    synchronisation = read_synchronisation(collector, base_ns, calls, threads)
    streams = find_streams(collector, work)
    device = trace.device
    if len(work):
        work, missing_devices = with_devices(work, threads, path)
        calls, replaced = with_operators(work, calls, ranges, path)
        limitations += (*missing_devices, *replaced)
    elif not (loss or trace.is_merged):
        device = HOST
        work, calls = operators_as_work(ranges, threads)
        limitations.append(_operators_limitation(trace))
    times_ns = ranges.start_ns.copy(), ranges.end_ns.copy()
    name_id, used = _named(ranges.name, names)
    every_range = in_memory.make_ranges(*times_ns, threads[ranges.thread], name_id, used)
    name_id, used = _named(calls.name, names)
    thread = threads[calls.thread]
    process = processes_of(work, calls, threads)
    if trace.is_merged and not len(calls):
        process = process_of(threads[work.thread])
    profile = Profile(
        source=_source(path, trace.metadata, base_ns, device, trace.api),
        activities=_activities(work, process, names),
        calls=in_memory.make_calls(
            calls.start_ns, calls.end_ns, thread, calls.correlation, name_id, used
        ),
        ranges=every_range,
        all_ranges=in_memory.InMemoryRanges(every_range),
        overheads=model.Overheads(
            process_of(threads[events.overheads.thread]),
            events.overheads.start_ns.copy(),
            events.overheads.end_ns.copy(),
        ),
        threads=_named_threads(trace, collector),
        devices=_devices(trace.metadata),
        limitations=tuple(limitations),
        global_rank=None if rank == NONE else rank,
        world_size=world_size if world_size > 0 else None,
        collectives=collectives,
        synchronisation=None if synchronisation is None else lambda: (synchronisation, ()),
        memory=lambda: read_memory(path, base_ns, on_host=device == HOST),
        copies=lambda: _read_copies(work, names),
        streams=None if device == HOST else lambda: streams,
    )
    again = f"copy the file again, or {_RECORD_AGAIN}"
    if trace.is_cut:
        again = "copy the file again, or let the profiler write it to its end"
    if not (loss or len(profile.activities)):
        loss = (
            "neither kernels nor operators were recorded; another tracer's operations become a "
            "table (bubbleviz guide tables)"
        )
        loss = "cut short before the first kernel or operator" if trace.is_cut else loss
    annotated = np.asarray(ranges.kind == kineto.ANNOTATION, bool)
    return in_memory.Decoded(
        profile,
        {},
        f"{loss}; {again}" if loss else "",
        "" if len(calls) else _UNLINKED,
        # Of Python's functions, modules alone are asked for by name.
        is_named=np.asarray(ranges.kind != kineto.PYTHON, bool),
        other_prefix=_MODULE,
        is_sampled=annotated if annotated.any() else None,
    )


def _count_lost(work: EventRows, calls: EventRows, names: Sequence[str]) -> int:
    """Return the number of calls that launched work which the trace does not hold."""
    if len(calls) == 0:
        return 0
    launches = np.array([name.startswith(WORK_CALLS) for name in names], bool)
    has_work = find_positions(find_distinct(work.correlation), calls.correlation) != NONE
    return int((launches[calls.name] & ~has_work).sum())


def _operators_limitation(trace: _Trace) -> Limitation:
    """Return the limitation of a trace in which operators stand for the work of devices."""
    lost = (
        "the file is cut short, and GPU work, which is written last, may be missing; copy the "
        "file again"
    )
    reason = (
        f"{trace.path}: {lost if trace.is_cut else 'no device recorded any'}; the outermost "
        "operators of each thread are used as kernels, and the host as the device"
    )
    return Limitation("GPU work", reason)


def _named_threads(trace: _Trace, collector: EventCollector) -> tuple[model.Thread, ...]:
    """Return the threads of a trace that have names."""
    names = {
        int(trace.threads[number]): _THREAD_NAME.sub(r"\g<name>", trace.names[name])
        for number, name in collector.thread_names.items()
    }
    return tuple(model.Thread(thread, name) for thread, name in sorted(names.items()) if name)


def _loss(workless: int, metadata: Mapping[str, object], *, cut: bool) -> str:
    """Return a reason if a trace without GPU work must have lost it, or "" if it need not."""
    if cut and (workless or metadata.get("deviceProperties")):
        called = f", although calls launched some ({workless:,})" if workless else ""
        return f"cut short: the file's end is missing, and with it the work of the GPUs{called}"
    if workless:
        return f"no GPU work was recorded, although calls launched some ({workless:,})"
    return ""


def _losses_of_cut(trace: _Trace, n_lost: int | None) -> Iterator[Limitation]:
    """Yield a limitation if the file was cut short after some of its kernels.

    Args:
        trace: The trace.
        n_lost: Number of launches without recorded work, or None if no work was recorded.
    """
    if trace.is_cut and n_lost is not None:
        # PyTorch writes kernels last.
        reason = (
            f"{trace.path}: the end of the file is missing, and with it maybe any kernel; device "
            "activity is a lower bound"
        )
        yield Limitation(
            "kernels and copies of some launches", reason, n_lost, LimitationKind.COSTS
        )


def _losses(path: str, collector: EventCollector) -> Iterator[Limitation]:
    """Yield limitations for events without a time or without a duration."""
    yield from _untimed_work(path, collector)
    if collector.untimed:
        yield Limitation("events without a time", f"{path}: they are left out", collector.untimed)
    if collector.endless:
        reason = f"{path}: they count as 0 ns"
        yield Limitation("events without a duration", reason, collector.endless)


def _untimed_work(path: str, collector: EventCollector) -> tuple[Limitation, ...]:
    """Return limitations for work whose times could not be collected."""
    counts = collector.untimed_work
    by_name = {model.KERNELS: counts[kineto.KERNEL], "copies": counts[kineto.COPY]}
    return model.report_untimed_work(path, by_name)


def _source(
    path: str, metadata: Mapping[str, object], base_ns: int, device: str, api: str
) -> model.Source:
    host, schema = metadata.get("host_name"), metadata.get("schemaVersion")
    zero_ns = kineto.whole_number(metadata.get("baseTimeNanoseconds"), _LATEST_UTC_NS)
    utc_ns = base_ns + max(zero_ns, 0)
    known = isinstance(host, str) and bool(host)
    return model.Source(
        path=path,
        host=replace_surrogates(str(host)) if known else Path(path).name,
        host_known=known,
        format="kineto",
        schema_version=None if schema is None else str(schema),
        session_utc_ns=utc_ns if utc_ns > _OLDEST_UTC_NS else None,
        device=device,
        api=api,
    )


def _devices(metadata: Mapping[str, object]) -> tuple[model.Device, ...]:
    properties = metadata.get("deviceProperties")
    return tuple(
        model.Device(None, number, replace_surrogates(str(gpu.get("name", ""))), None)
        for gpu in (properties if isinstance(properties, list) else [])
        if isinstance(gpu, dict) and (number := kineto.whole_number(gpu.get("id"), 1 << 31)) != NONE
    )


#: What an inspection counts, with its code.
_COUNTED = (
    ("kernels", kineto.KERNEL),
    ("copies and memsets", kineto.COPY),
    ("CUDA API calls", kineto.CALL),
    ("annotations", kineto.ANNOTATION),
    ("operators", kineto.OPERATOR),
    ("Python functions", kineto.PYTHON),
)
#: How the events of modules are named among those of Python's functions.
_MODULE = "nn.Module: "
_RECORD_AGAIN = (
    "record it again with torch.profiler.profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA])"
)
_UNLINKED = (
    "no CUDA API calls were recorded, so kernels cannot be linked to ranges; " + _RECORD_AGAIN
)
