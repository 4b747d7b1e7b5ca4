"""Reads a trace of PyTorch's profiler (Kineto) as a profile.

A trace is a list of JSON events. The reader works in five steps::

    trace ── 1 collect ──> columns per category ── 2 split ──> recordings of single processes
                                                                      │
             ┌────────────────────── for each recording ──────────────┘
             │
             ├─ 3 complete the work    missing devices and calls; or operators as work
             ├─ 4 build the tables     activities, calls, ranges, overheads, collectives, waits
             │
             └─ 5 join ──> profile

1. Collect (:func:`_collect_events`): one pass over the file sorts the events into columns by
   category (libkineto/src/output_json.cpp; older versions capitalize the categories or use other
   names).
2. Split (:func:`_split_events`): a trace merged from several processes is split into one recording
   per process, see :mod:`~bubbleviz.sources.kineto.recordings`. Most traces contain only one
   recording.
3. Complete (:func:`_complete_work`): kernels and copies without a device are assigned to one, and
   missing launching calls are replaced with operators. If no device work was recorded or lost, the
   outermost operators on each thread become kernels, and the host becomes the device.
4. Build (:func:`_build_profile`)::

       =================================================== ======================================
       category                                            table
       =================================================== ======================================
       kernel, gpu_memcpy, gpu_memset, mtia_ccp_events     activities, by ``args.device``
       cuda_runtime, cuda_driver, mtia_runtime, xpu_...    calls, by ``args.correlation``
       user_annotation, cpu_op, python_function            ranges
       overhead                                            times when the profiler delayed the
                                                           process
       cuda_sync, cuda_event                               waits for, and records of, CUDA events
       =================================================== ======================================

   ``distributedInfo.rank`` is the rank. Times are relative to ``baseTimeNanoseconds``.
5. Join: the profiles of the recordings become one profile.
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
    find_collectives,
    parse_world,
)
from bubbleviz.sources.kineto.events import EventCollector, EventRows
from bubbleviz.sources.kineto.memory import read_memory
from bubbleviz.sources.kineto.recordings import MAX_DEVICES, Recordings, find_recordings
from bubbleviz.sources.kineto.synchronization import find_streams, read_synchronization
from bubbleviz.sources.recording_sets import join_recordings
from bubbleviz.sources.trace_events import TraceFile, to_global_threads


def fill_devices(
    work: EventRows, threads: Ints, path: str
) -> tuple[EventRows, tuple[Limitation, ...]]:
    """Assign a device to each kernel and copy whose device is unknown.

    In a trace, the process id of a kernel or copy is the number of its device. If the process id is
    ``MAX_DEVICES`` or more, it cannot be a device number, and device 0 is used.

    Args:
        work: Kernels and copies.
        threads: Global thread ids, indexed by thread number.
        path: Path to the trace, for the limitation.

    Returns:
        The kernels and copies with their devices filled in, and a limitation if any device was
        missing.
    """
    missing = np.flatnonzero(work.device < 0)
    if len(missing) == 0:
        return work, ()
    device = work.device.copy()
    process = process_of(threads[work.thread[missing]])
    device[missing] = np.where(process < MAX_DEVICES, process, 0)
    reason = (
        f"{path}: the trace records no device for them, so they are assigned to the device whose "
        "number equals their process id, or else to device 0"
    )
    note = Limitation(
        "kernels and copies without a device", reason, len(missing), LimitationKind.COSTS
    )
    return replace(work, device=device), (note,)


def replace_missing_calls(
    work: EventRows, calls: EventRows, ranges: EventRows, path: str
) -> tuple[EventRows, tuple[Limitation, ...]]:
    """Add a call for each kernel or copy whose launching call is missing.

    A kernel and the operator that launched it share an ``External id``. The added call has a
    duration of 0, and starts with the earliest operator or annotation that has this id. If no
    operator or annotation has this id, no call is added.

    Args:
        work: Kernels and copies.
        calls: CUDA or HIP API calls.
        ranges: Annotations, operators and Python functions.
        path: Path to the trace, for the limitation.

    Returns:
        The given calls followed by the added calls, and a limitation if any call was added.
    """
    has_call = find_positions(find_distinct(calls.correlation), work.correlation) != NONE
    work_rows = np.flatnonzero(~has_call & (work.external >= 0))
    if len(work_rows) == 0:
        return calls, ()
    operators = np.flatnonzero(np.isin(ranges.kind, (kineto.OPERATOR, kineto.ANNOTATION)))
    first = group_rows(ranges.external[operators]).first
    operator_index = find_positions(ranges.external[operators[first]], work.external[work_rows])
    work_rows = work_rows[operator_index != NONE]
    operator_index = operator_index[operator_index != NONE]
    if len(work_rows) == 0:
        return calls, ()
    rows = ranges.take(operators[first[operator_index]])
    kind = np.full(len(rows), kineto.CALL, np.int64)
    rows = replace(rows, end_ns=rows.start_ns, correlation=work.correlation[work_rows], kind=kind)
    reason = f"{path}: operators with the same External id are used in place of the missing calls"
    note = Limitation(
        "kernels and copies without a CUDA API call", reason, len(work_rows), LimitationKind.COSTS
    )
    return join_tables([calls, rows]), (note,)


def use_operators_as_work(ranges: EventRows, threads: Ints) -> tuple[EventRows, EventRows]:
    """Convert the outermost operators of each thread to kernels on device 0.

    An operator is outermost if all earlier operators on its thread have ended when it starts::

        operators   ├──── linear ────┤  ├─ relu ─┤
                      ├ addmm ┤
        kernels     ├────────────────┤  ├────────┤

    Args:
        ranges: Annotations, operators and Python functions.
        threads: Global thread ids, indexed by thread number.

    Returns:
        work: The kernels, sorted by thread and start.
        calls: One launching call per kernel, which starts with the kernel and has a duration of 0.
    """
    rows = np.flatnonzero(ranges.kind == kineto.OPERATOR)
    thread = threads[ranges.thread[rows]]
    order = np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows], thread))
    rows, thread = rows[order], thread[order]
    start_ns, end_ns = ranges.start_ns[rows], ranges.end_ns[rows]
    is_first_of_thread = mask_run_starts(thread)
    # Shift the times of each thread so that the threads follow one another in time.
    # A single running maximum of the end times then works for all threads.
    span_ns = int(end_ns.max(initial=0)) + 1
    offset_ns = np.cumsum(is_first_of_thread) * span_ns
    latest_ns = np.maximum.accumulate(end_ns + offset_ns) if len(rows) else end_ns
    is_outermost = is_first_of_thread.copy()
    is_outermost[1:] |= start_ns[1:] + offset_ns[1:] >= latest_ns[:-1]
    work = ranges.take(rows[is_outermost])
    count = len(work)
    work = replace(
        work,
        correlation=np.arange(count),
        device=np.zeros(count, np.int64),
        kind=np.full(count, kineto.KERNEL, np.int64),
    )
    return work, replace(work, end_ns=work.start_ns, kind=np.full(count, kineto.CALL, np.int64))


def find_processes(work: EventRows, calls: EventRows, threads: Ints) -> Ints:
    """Return the process that launched each kernel or copy.

    A kernel or copy without a launching call is assigned to the process that made the most calls,
    or to process 0 if no calls were recorded.

    Args:
        work: Kernels and copies.
        calls: CUDA or HIP API calls.
        threads: Global thread ids, indexed by thread number.
    """
    process = process_of(threads[calls.thread])
    groups = group_rows(process)
    processes = process[groups.first]
    main_process = int(processes[np.bincount(groups.of_row).argmax()]) if len(processes) else 0
    if len(processes) < 2:
        return np.full(len(work), main_process, np.int64)
    first = group_rows(calls.correlation).first
    call_index = find_positions(calls.correlation[first], work.correlation)
    has_call = (call_index != NONE) & (work.correlation >= 0)
    return np.where(has_call, process[first[call_index]], main_process)


def _number_names(name: Ints, names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Renumber names so that unused names are dropped.

    Args:
        name: For each row, the index of its name in ``names``.
        names: All names.

    Returns:
        name_id: For each row, the index of its name in ``used``.
        used: The names that occur, in order of first appearance.
    """
    groups = group_rows(name).order_by_appearance()
    return groups.of_row, tuple(names[number] for number in name[groups.first].tolist())


def _make_activities(work: EventRows, process: Ints, names: Sequence[str]) -> model.Activities:
    """Convert kernels and copies to activities.

    Args:
        work: Kernels followed by copies.
        process: Process id of each kernel and copy.
        names: Event names, indexed by name number.
    """
    groups = group_rows(process, work.device)
    kernels = int((work.kind == kineto.KERNEL).sum())
    name_id, used = _number_names(work.name[:kernels], names)
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
    """Build the table of copies, parsing each copy's direction and memory kinds from its name."""
    rows = np.flatnonzero(work.kind == kineto.COPY)
    return read_copies(rows, work.name[rows], names, work.size[rows])


#: Smallest plausible UTC time in a trace, in ns since 1970 (the year 2010).
_MIN_UTC_NS = 1_262_304_000_000_000_000
#: Exclusive upper bound on UTC times in a trace (in 2116). The sum of two times fits in 64 bits.
_MAX_UTC_NS = 1 << 62
_THREAD_NAME = re.compile(r"^thread -?\d+ \((?P<name>.*)\)$", re.DOTALL)


@dataclass(frozen=True)
class _Trace:
    """Data shared by all recordings in a trace.

    Attributes:
        path: Path to the trace.
        metadata: Fields of the JSON document, excluding its events.
        base_ns: Start time of the first event in ns, which becomes time 0 of the profile.
        threads: Global thread ids, indexed by thread number.
        names: Event names, indexed by name number.
        device: Noun for the devices in reports, such as "GPU".
        api: Name of the API whose calls were recorded, "CUDA" or "HIP".
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
    """The events in a single recording.

    Attributes:
        work: Kernels followed by copies.
        calls: CUDA or HIP API calls.
        ranges: Annotations, operators and Python functions.
        overheads: Intervals in which the profiler delayed the process.
        collector: Collector with the arguments of collectives and waits.
    """

    work: EventRows
    calls: EventRows
    ranges: EventRows
    overheads: EventRows
    collector: EventCollector


def read_profile(path: str, watch: Watch) -> in_memory.Decoded:
    """Read a trace of PyTorch's profiler as a profile.

    Args:
        path: Path to the trace.
        watch: Progress callback.

    Raises:
        ProfileError: The file is not a trace, or contains several recordings that cannot be
            separated.
    """
    file = TraceFile(path, kineto.KinetoArgs, watch)
    trace, events = _collect_events(path, file)
    recordings = find_recordings(path, file.threads.values, events.work, events.calls)
    if recordings is None:
        decoded = _decode(trace, events)
    else:
        trace = replace(trace, is_merged=True)
        parts = [_decode(trace, part) for part in _split_events(events, recordings)]
        decoded = join_recordings(parts, recordings.labels)
    collector, profile = events.collector, decoded.profile
    counts = {kind: collector.count(kind) for kind in kineto.KINDS}
    limitations = (
        *file.limitations(),
        *_report_incomplete_events(path, collector),
        *profile.limitations,
    )
    has_work = counts[kineto.KERNEL] + counts[kineto.COPY] > 0
    return replace(
        decoded,
        profile=replace(profile, limitations=limitations, launches_known=has_work),
        tables={label.replace("CUDA", trace.api): counts[kind] or None for label, kind in _COUNTED},
    )


def _collect_events(path: str, file: TraceFile[kineto.KinetoArgs]) -> tuple[_Trace, _Events]:
    """Read all events in a trace into columns, and collect the data shared by its recordings.

    The API is HIP if any call name starts with "hip", and CUDA otherwise.
    """
    collector = EventCollector(file)
    for block in file.blocks(collector.find_described):
        collector.add(block)
    base_ns = collector.find_base_ns()
    events = _Events(
        collector.get_rows(base_ns, kineto.KERNEL, kineto.COPY),
        collector.get_rows(base_ns, kineto.CALL),
        collector.get_rows(base_ns, kineto.ANNOTATION, kineto.OPERATOR, kineto.PYTHON),
        collector.get_rows(base_ns, kineto.OVERHEAD),
        collector,
    )
    names = tuple(map(replace_surrogates, file.texts.values))
    # PyTorch for ROCm records HIP calls in the categories for CUDA calls.
    call_names = (names[number] for number in find_distinct(events.calls.name).tolist())
    is_hip = any(name.startswith("hip") for name in call_names)
    trace = _Trace(
        path=path,
        metadata=file.metadata(),
        base_ns=base_ns,
        threads=to_global_threads(file.threads),
        names=names,
        device=next((name for name in kineto.DEVICES if name in collector.devices), "GPU"),
        api="HIP" if is_hip else "CUDA",
        is_cut=file.cut,
    )
    return trace, events


def _split_events(events: _Events, recordings: Recordings) -> Iterator[_Events]:
    """Yield each recording's events in a merged trace, in the order of ``recordings``.

    All events with invalid times are counted in the first recording.
    """
    recording_of_work = recordings.number_work(events.work.thread, events.work.device)

    def is_inside(thread: int, device: int) -> bool:
        return recordings.find(thread, device) == number

    def take(rows: EventRows, recording: Ints) -> EventRows:
        # Dropped events cannot be assigned to a recording, so they are counted in the first
        # recording.
        impossible = rows.impossible if number == 0 else 0
        return replace(rows.take(recording == number), impossible=impossible)

    for number in range(len(recordings.labels)):
        calls, ranges, overheads = (
            take(rows, recordings.by_thread[rows.thread])
            for rows in (events.calls, events.ranges, events.overheads)
        )
        collector = events.collector.select_recording(recordings.by_thread == number, is_inside)
        yield _Events(take(events.work, recording_of_work), calls, ranges, overheads, collector)


@dataclass(frozen=True)
class _DeviceWork:
    """The kernels and copies in one recording, with missing devices and calls filled in.

    Attributes:
        work: Kernels followed by copies.
        calls: API calls, including the calls that launched the kernels and copies.
        device: Noun for the devices in reports, or ``HOST`` if operators are used as kernels.
        limitations: Limitations that describe what was filled in.
    """

    work: EventRows
    calls: EventRows
    device: str
    limitations: tuple[Limitation, ...]


def _decode(trace: _Trace, events: _Events) -> in_memory.Decoded:
    """Decode one recording of a trace (steps 3 and 4 of the module docstring).

    If no kernels or copies were recorded or lost, operators are used as kernels, unless the trace
    is merged. Python functions cannot be selected by name, except for module calls.
    """
    work, ranges = events.work, events.ranges
    n_lost = _count_launches_without_work(work, events.calls, trace.names)
    loss = ""
    if len(work) == 0:
        untimed = _report_untimed_work(trace.path, events.collector)
        loss = in_memory.describe_invalid_times(untimed)
        loss = loss or _describe_lost_work(n_lost, trace.metadata, cut=trace.is_cut)
    device_work = _complete_work(trace, events, has_loss=bool(loss))
    kinds = (model.KERNELS_AND_COPIES, f"{trace.api} API calls", "ranges")
    impossible = [rows.impossible for rows in (work, events.calls, ranges)]
    limitations = (
        *_report_truncation(trace, n_lost if len(work) else None),
        *model.report_impossible_times(trace.path, dict(zip(kinds, impossible, strict=True))),
        *device_work.limitations,
    )
    profile = _build_profile(trace, events, device_work, limitations)
    is_annotation = np.asarray(ranges.kind == kineto.ANNOTATION, bool)
    return in_memory.Decoded(
        profile,
        {},
        _explain_empty_profile(trace, loss, len(profile.activities)),
        "" if len(device_work.calls) else _explain_missing_calls(trace),
        # Queries by name ignore Python functions, except for module calls.
        is_named=np.asarray(ranges.kind != kineto.PYTHON, bool),
        other_prefix=_MODULE_PREFIX,
        is_sampled=is_annotation if is_annotation.any() else None,
    )


def _complete_work(trace: _Trace, events: _Events, *, has_loss: bool) -> _DeviceWork:
    """Fill in missing devices and launching calls of kernels and copies.

    If the recording contains no kernels or copies, its operators become kernels, unless
    ``has_loss`` is true or the trace is merged.

    Args:
        trace: The trace that contains the recording.
        events: Events in the recording.
        has_loss: Whether kernels and copies were executed but are missing from the trace.
    """
    work, calls = events.work, events.calls
    if len(work):
        work, missing_devices = fill_devices(work, trace.threads, trace.path)
        calls, missing_calls = replace_missing_calls(work, calls, events.ranges, trace.path)
        return _DeviceWork(work, calls, trace.device, (*missing_devices, *missing_calls))
    if has_loss or trace.is_merged:
        return _DeviceWork(work, calls, trace.device, ())
    work, calls = use_operators_as_work(events.ranges, trace.threads)
    return _DeviceWork(work, calls, HOST, (_report_operators_as_work(trace),))


def _build_profile(
    trace: _Trace, events: _Events, device_work: _DeviceWork, limitations: tuple[Limitation, ...]
) -> Profile:
    """Build the profile of one recording.

    Args:
        trace: The trace that contains the recording.
        events: Events in the recording.
        device_work: Kernels, copies and calls, as returned by :func:`_complete_work`.
        limitations: Limitations of the profile.
    """
    path, base_ns, threads, names = trace.path, trace.base_ns, trace.threads, trace.names
    work, device = device_work.work, device_work.device
    rank, world_size, groups = parse_world(trace.metadata)
    if trace.is_merged:
        rank = NONE
    synchronization = read_synchronization(events.collector, base_ns, events.calls, threads)
    streams = find_streams(events.collector, events.work)
    ranges = _make_ranges(events.ranges, trace)
    return Profile(
        source=_make_source(path, trace.metadata, base_ns, device, trace.api),
        activities=_make_activities(work, _find_work_processes(trace, device_work), names),
        calls=_make_calls(device_work.calls, trace),
        ranges=ranges,
        all_ranges=in_memory.InMemoryRanges(ranges),
        overheads=model.Overheads(
            process_of(threads[events.overheads.thread]),
            events.overheads.start_ns.copy(),
            events.overheads.end_ns.copy(),
        ),
        threads=_list_named_threads(trace, events.collector),
        devices=_list_devices(trace.metadata),
        limitations=limitations,
        global_rank=None if rank == NONE else rank,
        world_size=world_size if world_size > 0 else None,
        collectives=find_collectives(
            events.work, events.calls, events.collector, base_ns, (rank, world_size, groups)
        ),
        synchronization=None if synchronization is None else lambda: (synchronization, ()),
        memory=lambda: read_memory(path, base_ns, on_host=device == HOST),
        copies=lambda: _read_copies(work, names),
        streams=None if device == HOST else lambda: streams,
    )


def _find_work_processes(trace: _Trace, device_work: _DeviceWork) -> Ints:
    """Return the process of each kernel and copy, as determined by :func:`find_processes`.

    In a merged trace without calls, the process is taken from the thread of the kernel or copy
    instead.
    """
    work, calls = device_work.work, device_work.calls
    if trace.is_merged and not len(calls):
        return process_of(trace.threads[work.thread])
    return find_processes(work, calls, trace.threads)


def _make_calls(rows: EventRows, trace: _Trace) -> in_memory.InMemoryCalls:
    """Convert CUDA or HIP API calls to the call log of a profile."""
    name_id, names = _number_names(rows.name, trace.names)
    thread = trace.threads[rows.thread]
    return in_memory.make_calls(
        rows.start_ns, rows.end_ns, thread, rows.correlation, name_id, names
    )


def _make_ranges(rows: EventRows, trace: _Trace) -> model.Ranges:
    """Convert annotations, operators and Python functions to ranges."""
    name_id, names = _number_names(rows.name, trace.names)
    start_ns, end_ns = rows.start_ns.copy(), rows.end_ns.copy()
    return in_memory.make_ranges(start_ns, end_ns, trace.threads[rows.thread], name_id, names)


def _advise_recording(device: str) -> str:
    """Return the advice to record a run again, including the activity of its devices."""
    activity = device if device in _NAMED_ACTIVITIES else "CUDA"
    return (
        "record it again with torch.profiler.profile(activities=[ProfilerActivity.CPU, "
        f"ProfilerActivity.{activity}])"
    )


def _explain_missing_calls(trace: _Trace) -> str:
    """Explain why kernels without API calls cannot be analyzed, and name the next step."""
    api = trace.device if trace.device in _NAMED_ACTIVITIES else trace.api
    return (
        f"no {api} API calls were recorded, so kernels cannot be linked to ranges; "
        f"{_advise_recording(trace.device)}"
    )


def _explain_empty_profile(trace: _Trace, loss: str, n_activities: int) -> str:
    """Explain why a recording has no activities and what to do. Return "" if it has activities.

    Args:
        trace: The trace that contains the recording.
        loss: Reason why the kernels and copies are missing, or "" if none are missing.
        n_activities: Number of activities in the recording.
    """
    if not (loss or n_activities):
        loss = (
            "no kernels or operators were recorded (for files from another tracer, see bubbleviz "
            "guide tables)"
        )
        loss = "the file is cut short before the first kernel or operator" if trace.is_cut else loss
    remedy = f"copy the file again, or {_advise_recording(trace.device)}"
    if trace.is_cut:
        remedy = "copy the file again, or let the profiler finish writing it"
    return f"{loss}; {remedy}" if loss else ""


def _count_launches_without_work(work: EventRows, calls: EventRows, names: Sequence[str]) -> int:
    """Count the launching calls whose kernel or copy was not recorded.

    A launching call has a name that starts with one of the prefixes ``WORK_CALLS``. A launching
    call is counted if no kernel or copy has its correlation id.

    Args:
        work: Kernels and copies.
        calls: CUDA or HIP API calls.
        names: Event names, indexed by name number.
    """
    if len(calls) == 0:
        return 0
    launches = np.array([name.startswith(WORK_CALLS) for name in names], bool)
    has_work = find_positions(find_distinct(work.correlation), calls.correlation) != NONE
    return int((launches[calls.name] & ~has_work).sum())


def _report_operators_as_work(trace: _Trace) -> Limitation:
    """Return a limitation that states that operators are used as kernels."""
    cut_reason = (
        "the file is cut short, so GPU work, which is written last, may be missing (copy the file "
        "again)"
    )
    reason = (
        f"{trace.path}: {cut_reason if trace.is_cut else 'no GPU work was recorded'}; the "
        "outermost operators of each thread are used as kernels instead, and the host as the device"
    )
    return Limitation("GPU work", reason)


def _list_named_threads(trace: _Trace, collector: EventCollector) -> tuple[model.Thread, ...]:
    """Return the threads that have names, sorted by global thread id."""
    names = {
        int(trace.threads[number]): _THREAD_NAME.sub(r"\g<name>", trace.names[name])
        for number, name in collector.thread_names.items()
    }
    return tuple(model.Thread(thread, name) for thread, name in sorted(names.items()) if name)


def _describe_lost_work(
    launches_without_work: int, metadata: Mapping[str, object], *, cut: bool
) -> str:
    """Explain why a trace contains no GPU work. Return "" if no GPU work seems to be missing.

    GPU work seems to be missing if ``launches_without_work`` is not 0. GPU work also seems to be
    missing if the file lists device properties and its end is missing.

    Args:
        launches_without_work: Number of launching calls whose kernel or copy was not recorded.
        metadata: Fields of the JSON document, excluding its events.
        cut: Whether the end of the file is missing.
    """
    if cut and (launches_without_work or metadata.get("deviceProperties")):
        launched_clause = (
            f", although calls launched it ({launches_without_work:,})"
            if launches_without_work
            else ""
        )
        return f"the file is cut short, and the GPU work at its end is missing{launched_clause}"
    if launches_without_work:
        return f"no GPU work was recorded, although calls launched it ({launches_without_work:,})"
    return ""


def _report_truncation(trace: _Trace, n_lost: int | None) -> Iterator[Limitation]:
    """Yield a limitation if the end of the file is missing but kernels or copies were recorded.

    Args:
        trace: The trace that contains the recording.
        n_lost: Number of launching calls whose kernel or copy was not recorded, or None if no
            kernels and copies were recorded at all.
    """
    if trace.is_cut and n_lost is not None:
        # PyTorch writes kernels at the end of the file.
        reason = (
            f"{trace.path}: the end of the file is missing and may contain more kernels, so device "
            "activity is a lower bound"
        )
        yield Limitation(
            "launches without a recorded kernel or copy", reason, n_lost, LimitationKind.COSTS
        )


def _report_incomplete_events(path: str, collector: EventCollector) -> Iterator[Limitation]:
    """Yield limitations for events without a start time or duration, and for untimed GPU work."""
    yield from _report_untimed_work(path, collector)
    if collector.n_without_time:
        yield Limitation(
            "events without a time", f"{path}: these events are left out", collector.n_without_time
        )
    if collector.n_without_duration:
        reason = f"{path}: a missing duration counts as 0 ns"
        yield Limitation("events without a duration", reason, collector.n_without_duration)


def _report_untimed_work(path: str, collector: EventCollector) -> tuple[Limitation, ...]:
    """Return limitations for kernels and copies whose times were not recorded."""
    counts = collector.n_untimed_work
    by_name = {model.KERNELS: counts[kineto.KERNEL], "copies": counts[kineto.COPY]}
    return model.report_untimed_work(path, by_name)


def _make_source(
    path: str, metadata: Mapping[str, object], base_ns: int, device: str, api: str
) -> model.Source:
    """Describe the source of a profile: the file, its host, and the UTC time of time 0.

    If the trace gives no hostname, the file name identifies the host. A time before 2010 comes from
    a different clock, so the UTC time is unknown.
    """
    host, schema = metadata.get("host_name"), metadata.get("schemaVersion")
    zero_ns = kineto.parse_number(metadata.get("baseTimeNanoseconds"), _MAX_UTC_NS)
    utc_ns = base_ns + max(zero_ns, 0)
    has_host = isinstance(host, str) and bool(host)
    return model.Source(
        path=path,
        host=replace_surrogates(str(host)) if has_host else Path(path).name,
        host_known=has_host,
        format="kineto",
        schema_version=None if schema is None else str(schema),
        session_utc_ns=utc_ns if utc_ns > _MIN_UTC_NS else None,
        device=device,
        api=api,
    )


def _list_devices(metadata: Mapping[str, object]) -> tuple[model.Device, ...]:
    """Return the devices listed in the metadata field ``deviceProperties``.

    Entries without a valid device number are left out. A missing device name is "".
    """
    properties = metadata.get("deviceProperties")
    return tuple(
        model.Device(None, number, replace_surrogates(str(gpu.get("name", ""))), None)
        for gpu in (properties if isinstance(properties, list) else [])
        if isinstance(gpu, dict) and (number := kineto.parse_number(gpu.get("id"), 1 << 31)) != NONE
    )


#: (label, event kind) pairs that an inspection counts.
_COUNTED = (
    ("kernels", kineto.KERNEL),
    ("copies and memsets", kineto.COPY),
    ("CUDA API calls", kineto.CALL),
    ("annotations", kineto.ANNOTATION),
    ("operators", kineto.OPERATOR),
    ("Python functions", kineto.PYTHON),
)
#: Name prefix of Python function events that are module calls.
_MODULE_PREFIX = "nn.Module: "
#: Devices whose activities have their own name in ``torch.profiler.ProfilerActivity``.
_NAMED_ACTIVITIES = ("MTIA", "XPU")
