"""Combine the recordings of ranks into the tables of one export, on the clock of its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from tests.planting.host import AUTOGRAD, CALL_NS, MAIN, WATCHDOG
from tests.planting.host_tables import KERNEL_CONSTANTS, make_process_tables, make_session_tables
from tests.planting.layout import EXPORT_VERSION, make_enums
from tests.planting.layout import Columns as TableColumns
from tests.planting.options import Planting
from tests.planting.places import HOST_ID, Clock, Location
from tests.planting.recorder import (
    COMMUNICATION,
    COPIED,
    FILLED,
    KERNEL,
    KERNEL_NAMES,
    USUAL_KERNELS,
    Recorder,
)

#: Monotonic clock of the first host at global time 0, and its increase from host to host, in ns.
_BOOT_NS, _BOOT_GAP_NS = 5_000_000_000_000, 777_000_000_000
_CALL_NAMES = (
    "cudaLaunchKernel_v7000",
    "cuLaunchKernelEx",
    "cudaMemcpyAsync_v3020",
    "cudaMemsetAsync_v3020",
    "cuLaunchKernel",
    "cudaEventQuery_v3020",
)
_DOUBLE, _QUERY = 4, 5
_PUSH_POP, _START_END = 59, 60

Arrays = dict[str, Ints]


@dataclass
class Recording:
    """The part of one rank's activity that the capture contains, on the global clock.

    Attributes:
        location: Where the rank runs.
        device: Columns of the device rows (kernels, copies and fills).
        kept: Mask of the device rows that the capture contains.
        linked: Mask of the device rows whose launching call the capture contains.
        calls: Columns of the API calls.
        ranges: Columns of the NVTX ranges. The end of an open range is -1.
        names: Texts of the ranges.
        overheads: Intervals of profiler overhead.
    """

    location: Location
    device: Arrays
    kept: Bools
    linked: Bools
    calls: Arrays
    ranges: Arrays
    names: list[str]
    overheads: list[tuple[int, int]]
    correlation: Ints = field(init=False)


def make_recording(
    planting: Planting, recorder: Recorder, location: Location, cut_ns: int | None
) -> Recording:
    """Return the recording of a rank. The capture stops at global time ``cut_ns``, if given.

    Device rows, calls and overheads that end after the cut are lost. Ranges that begin before the
    cut are kept, but stay open if they end after it.
    """
    times = recorder.host.times()
    device, calls, ranges = (
        columns.arrays() for columns in (recorder.device, recorder.host.calls, recorder.host.ranges)
    )
    for table in (calls, ranges):
        table["start"], table["end"] = times[table["start"]], times[table["end"]]
    limit = np.iinfo(np.int64).max if cut_ns is None else cut_ns
    is_begun = ranges["start"] <= limit
    ranges = {name: column[is_begun] for name, column in ranges.items()}
    ranges["end"] = np.where(ranges["end"] > limit, NONE, ranges["end"])
    is_kept = device["end"] <= limit
    calls = _assign_ids(planting, location, calls)
    is_kept_call = (calls["end"] <= limit) & ~_mask_dropped(planting, device, calls["device_row"])
    is_linked = np.zeros(len(is_kept), dtype=np.bool_)
    is_linked[calls["device_row"][is_kept_call]] = True
    overheads = [bounds for bounds in recorder.overheads if bounds[1] <= limit]
    recording = Recording(
        location, device, is_kept, is_linked & is_kept, {}, ranges, recorder.host.names, overheads
    )
    correlation = np.zeros(len(is_kept), dtype=np.int64)
    correlation[calls["device_row"]] = calls["correlation"]
    recording.correlation = correlation
    calls = {name: column[is_kept_call] for name, column in calls.items()}
    recording.calls = _collect_calls(planting, device, calls, limit)
    return recording


def _assign_ids(planting: Planting, location: Location, calls: Arrays) -> Arrays:
    """Return the calls sorted by time, with increasing correlation ids."""
    order = np.argsort(calls["start"], kind="stable")
    calls = {name: column[order] for name, column in calls.items()}
    base = 1_000 if planting.correlation == "colliding" else 1_000 + 20_000_000 * location.rank
    calls["correlation"] = base + 6 * np.arange(len(order), dtype=np.int64)
    return calls


def _mask_dropped(planting: Planting, device: Arrays, rows: Ints) -> Bools:
    """Return a mask of the calls to omit: the call of every n-th kernel inside an operation.

    The first and last kernels of operations keep their calls.
    """
    drop_calls_every = planting.drop_calls_every
    operation, compute = device["operation"][rows], device["kind"][rows] == KERNEL
    is_inner = np.zeros(len(rows), dtype=np.bool_)
    ids = np.where(compute, operation, NONE)
    position = np.argsort(ids, kind="stable")
    grouped = ids[position]
    is_inner[position[1:-1]] = (grouped[1:-1] == grouped[:-2]) & (grouped[1:-1] == grouped[2:])
    is_inner &= ids != NONE
    dropped_row = (
        np.flatnonzero(is_inner)[drop_calls_every - 1 :: drop_calls_every]
        if drop_calls_every
        else np.zeros(0, dtype=np.int64)
    )
    is_dropped = np.zeros(len(rows), dtype=np.bool_)
    is_dropped[dropped_row] = True
    return is_dropped


def _collect_calls(planting: Planting, device: Arrays, calls: Arrays, limit: int) -> Arrays:
    """Return runtime and driver rows: launches, nested driver calls, and calls without work.

    With ``double_calls``, each kernel launch contains a driver call with the same id. With
    ``watchdog``, a thread queries an event every millisecond until ``limit``.
    """
    kind = device["kind"][calls["device_row"]]
    columns = {
        "start": [calls["start"]],
        "end": [calls["end"]],
        "thread": [calls["thread"]],
        "correlation": [calls["correlation"]],
        "name": [kind],  # kinds are also indices of the first rows of _CALL_NAMES
        "class": [(kind == COMMUNICATION).astype(np.int64)],
    }
    if planting.double_calls:
        rows = kind == KERNEL
        nested = {name: calls[name][rows] for name in ("start", "end", "thread", "correlation")}
        nested["start"] = nested["start"] + CALL_NS // 4
        nested["end"] = nested["end"] - CALL_NS // 4
        _append_calls(columns, nested, name=_DOUBLE, event_class=1)
    if planting.watchdog and len(calls["start"]):
        first, last = int(calls["start"].min()), min(int(calls["end"].max()), limit)
        starts = np.arange(first, last - CALL_NS, 1_000_000, dtype=np.int64)
        ids = 3 + int(calls["correlation"][0]) + 6 * np.arange(len(starts), dtype=np.int64)
        queries: Arrays = {
            "start": starts,
            "end": starts + CALL_NS,
            "thread": np.full(len(starts), WATCHDOG, dtype=np.int64),
            "correlation": ids,
        }
        _append_calls(columns, queries, name=_QUERY, event_class=0)
    return {name: np.concatenate(blocks) for name, blocks in columns.items()}


def _append_calls(
    columns: dict[str, list[Ints]], calls: Arrays, *, name: int, event_class: int
) -> None:
    """Append calls that all have the given name and event class."""
    rows = len(calls["start"])
    calls = calls | {
        "name": np.full(rows, name, dtype=np.int64),
        "class": np.full(rows, event_class, dtype=np.int64),
    }
    for column, blocks in columns.items():
        blocks.append(calls[column])


class _Strings:
    """The table StringIds, with sparse ids as in real exports."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """Return the id of a text."""
        return self.ids.setdefault(text, 71_000 + 4 * len(self.ids))

    def columns(self) -> TableColumns:
        """Return the table."""
        return {"id": list(self.ids.values()), "value": list(self.ids)}


def make_tables(
    planting: Planting, recordings: Sequence[Recording], clock: Clock
) -> dict[str, TableColumns]:
    """Return the tables of one export."""
    strings = _Strings()
    tables: dict[str, TableColumns] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": _make_kernels(recordings, clock, strings),
        "CUPTI_ACTIVITY_KIND_RUNTIME": _make_runtime(recordings, clock, strings),
        "CUPTI_ACTIVITY_KIND_MEMCPY": _make_copies(recordings, clock, COPIED),
        "CUPTI_ACTIVITY_KIND_MEMSET": _make_copies(recordings, clock, FILLED),
        "NVTX_EVENTS": _make_ranges(planting, recordings, clock, strings),
        "PROFILER_OVERHEAD": _make_overheads(recordings, clock, strings),
        **_make_processes(planting, [recording.location for recording in recordings], strings),
        **_make_metadata(recordings[0].location, clock),
        **make_enums(),
    }
    return {"StringIds": strings.columns(), **tables}


def _join(recordings: Sequence[Recording], parts: Sequence[Arrays], clock: Clock) -> Arrays:
    """Concatenate columns of all ranks on the file's clock.

    The result also has a column with the index of the recording.
    """
    names = parts[0].keys()
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    counts = [len(part["start"]) for part in parts]
    columns["recording"] = np.repeat(np.arange(len(recordings), dtype=np.int64), counts)
    columns["start"] = clock.of(columns["start"])
    columns["end"] = np.where(columns["end"] == NONE, NONE, clock.of(columns["end"]))
    return columns


def _sort(columns: Arrays, *keys: str) -> Arrays:
    """Return the columns sorted by the keys. The first key is the most significant."""
    order = np.lexsort([columns[key] for key in reversed(keys)])
    return {name: column[order] for name, column in columns.items()}


def _collect_device_rows(
    recordings: Sequence[Recording], clock: Clock, kinds: Sequence[int]
) -> Arrays:
    """Return the captured device rows of the given kinds, on the file's clock.

    Rows are sorted by start, recording and stream.
    """
    parts = []
    for recording in recordings:
        rows = recording.kept & np.isin(recording.device["kind"], kinds)
        part = {name: column[rows] for name, column in recording.device.items()}
        location, count = recording.location, len(part["start"])
        part["correlation"] = recording.correlation[rows]
        part["device"] = np.full(count, location.device, dtype=np.int64)
        part["pid"] = np.full(count, HOST_ID + (location.pid << 24), dtype=np.int64)
        parts.append(part)
    return _sort(_join(recordings, parts, clock), "start", "recording", "stream")


def _select_activity_columns(rows: Arrays) -> dict[str, Ints | int]:
    """Return the columns that the tables of kernels, copies and fills share."""
    return {
        "start": rows["start"],
        "end": rows["end"],
        "deviceId": rows["device"],
        "contextId": 1,
        "greenContextId": 0,
        "streamId": rows["stream"],
        "correlationId": rows["correlation"],
        "globalPid": rows["pid"],
    }


def _make_kernels(recordings: Sequence[Recording], clock: Clock, strings: _Strings) -> TableColumns:
    """Return the table of kernels (compute and communication), sorted by start."""
    rows = _collect_device_rows(recordings, clock, (KERNEL, COMMUNICATION))
    # The last kernel names are used by some plantings only.
    n_used = max(USUAL_KERNELS, int(rows["name"].max(initial=NONE)) + 1)
    ids = np.array([[strings.id(text) for text in names] for names in KERNEL_NAMES[:n_used]])
    name_ids = ids[rows["name"]]
    return {
        **_select_activity_columns(rows),
        "demangledName": name_ids[:, 0],
        "shortName": name_ids[:, 1],
        "mangledName": name_ids[:, 2],
        "gridId": np.arange(len(name_ids), dtype=np.int64) + 1,
        **KERNEL_CONSTANTS,
    }


def _make_copies(recordings: Sequence[Recording], clock: Clock, kind: int) -> TableColumns:
    rows = _collect_device_rows(recordings, clock, (kind,))
    if kind == FILLED:
        return {**_select_activity_columns(rows), "value": 0, "bytes": 4_096, "memKind": 2}
    kinds = {"copyKind": 2, "srcKind": 2, "dstKind": 1}
    return {**_select_activity_columns(rows), "bytes": 65_536, "copyCount": 1, **kinds}


def _find_threads(recordings: Sequence[Recording], rows: Arrays) -> Ints:
    """Return the globalTid of each row."""
    ids = np.array(
        [[r.location.thread(number) for number in (MAIN, AUTOGRAD, WATCHDOG)] for r in recordings]
    )
    return np.asarray(ids[rows["recording"], rows["thread"]], dtype=np.int64)


def _make_runtime(recordings: Sequence[Recording], clock: Clock, strings: _Strings) -> TableColumns:
    """Return the calls, grouped by (thread, event class) and sorted by time in each group."""
    rows = _join(recordings, [recording.calls for recording in recordings], clock)
    rows["tid"] = _find_threads(recordings, rows)
    rows = _sort(rows, "class", "tid", "start")
    names = np.array([strings.id(name) for name in _CALL_NAMES], dtype=np.int64)
    return {
        "start": rows["start"],
        "end": rows["end"],
        "eventClass": rows["class"],
        "globalTid": rows["tid"],
        "correlationId": rows["correlation"],
        "nameId": names[rows["name"]],
        "returnValue": 0,
    }


def _make_ranges(
    planting: Planting, recordings: Sequence[Recording], clock: Clock, strings: _Strings
) -> TableColumns:
    """Return the table of NVTX ranges, sorted by start.

    Only framework ranges can have registered strings or be start/end ranges. If the planting asks
    for two kinds of ranges, the kinds alternate.
    """
    parts = []
    first = 0
    names: list[str] = []
    for recording in recordings:
        parts.append({**recording.ranges, "name": recording.ranges["name"] + first})
        names += recording.names
        first = len(names)
    rows = _sort(_join(recordings, parts, clock), "start", "recording")
    number = np.arange(len(rows["start"]), dtype=np.int64)
    is_named_by_framework = rows["library"] == 0
    registered = is_named_by_framework & _mask_second(planting.text, ("text", "registered"), number)
    start_end = is_named_by_framework & _mask_second(
        planting.ranges, ("push_pop", "start_end"), number
    )
    texts = [names[n] for n in rows["name"].tolist()]
    return {
        "start": rows["start"],
        "end": [None if end == NONE else end for end in rows["end"].tolist()],
        "eventType": np.where(start_end, _START_END, _PUSH_POP),
        "rangeId": [n if given else None for n, given in enumerate(start_end.tolist())],
        "text": [None if by_id else t for t, by_id in zip(texts, registered, strict=True)],
        "globalTid": _find_threads(recordings, rows),
        "textId": [
            strings.id(t) if by_id else None for t, by_id in zip(texts, registered, strict=True)
        ],
        "domainId": 0,
    }


def _mask_second(word: str, words: tuple[str, str], number: Ints) -> Bools:
    """Return a mask of the rows of the second kind: none, all, or every other row (``mixed``)."""
    if word == "mixed":
        return np.asarray(number % 2 == 1)
    return np.full(len(number), word == words[1])


def _make_overheads(
    recordings: Sequence[Recording], clock: Clock, strings: _Strings
) -> TableColumns:
    """Return the table of profiler overheads, sorted by start, or {} if there are none."""
    rows = sorted(
        (clock.of_one(start), clock.of_one(end), recording.location.thread(MAIN))
        for recording in recordings
        for start, end in recording.overheads
    )
    if not rows:
        return {}
    start_ns, end_ns, threads = zip(*rows, strict=True)
    name = strings.id("CUPTI Buffer flush")
    return {
        "start": start_ns,
        "end": end_ns,
        "globalTid": threads,
        "nameId": name,
        "overheadType": 3,
    }


def _make_processes(
    planting: Planting, places: Sequence[Location], strings: _Strings
) -> dict[str, TableColumns]:
    """Return the tables of processes, threads and devices."""
    threads = [(strings.id("python3"), place.thread(MAIN)) for place in places]
    if planting.autograd == "named":
        threads += [(strings.id("pt_autograd_0"), place.thread(AUTOGRAD)) for place in places]
    if planting.watchdog:
        threads += [(strings.id("pt_nccl_watchdg"), place.thread(WATCHDOG)) for place in places]
    return {
        "ThreadNames": {
            "nameId": [name for name, _ in threads],
            "priority": 20,
            "globalTid": [thread for _, thread in threads],
        },
        **make_process_tables(
            places[0].hostname,
            pids=[place.pid for place in places],
            gpus=[place.gpu for place in places],
            devices=[place.device for place in places],
        ),
    }


def _make_metadata(location: Location, clock: Clock) -> dict[str, TableColumns]:
    """Return the tables of the host, the session and the exporter."""
    boot_ns = _BOOT_NS + location.host * _BOOT_GAP_NS + clock.started_ns
    export = {
        **EXPORT_VERSION,
        "EXPORT_HOST": location.hostname,
        "EXPORT_PARAM_EXPORT_TYPE": "SQLite",
        "DERIVED_BY": "scripts/make_fixture.py",
    }
    capture = [
        ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph"),
    ]
    return {
        "META_DATA_EXPORT": {"name": list(export), "value": list(export.values())},
        "META_DATA_CAPTURE": {"name": [n for n, _ in capture], "value": [v for _, v in capture]},
        **make_session_tables(location.hostname, clock.utc_epoch_ns, boot_ns),
    }
