"""Put the recordings of ranks together into one export, on the clock of its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from tests.planting.host import AUTOGRAD, CALL_NS, MAIN, WATCHDOG
from tests.planting.host_tables import KERNEL_CONSTANTS, process_tables, session_tables
from tests.planting.layout import EXPORT_VERSION, enums
from tests.planting.layout import Columns as TableColumns
from tests.planting.options import Planting
from tests.planting.places import HOST_ID, Clock, Place
from tests.planting.recorder import (
    COMMUNICATION,
    COPIED,
    FILLED,
    KERNEL,
    KERNEL_NAMES,
    USUAL_KERNELS,
    Recorder,
)

#: What the hosts' monotonic clocks show at global time 0, and how far they are apart.
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
    """What the capture holds of one rank, on the global clock.

    Attributes:
        place: where it runs.
        device: device rows.
        kept: which of them the capture holds.
        linked: which of them have a launching call in it.
        calls: API calls.
        ranges: NVTX ranges; an end of -1 is open.
        names: texts of the ranges.
        overheads: stretches of profiler overhead.
    """

    place: Place
    device: Arrays
    kept: Bools
    linked: Bools
    calls: Arrays
    ranges: Arrays
    names: list[str]
    overheads: list[tuple[int, int]]
    correlation: Ints = field(init=False)


def recording_of(
    planting: Planting, recorder: Recorder, place: Place, cut_ns: int | None
) -> Recording:
    """Return a rank's recording, cut at ``cut_ns`` (global) where that is given."""
    times = recorder.host.times()
    device, calls, ranges = (
        columns.arrays() for columns in (recorder.device, recorder.host.calls, recorder.host.ranges)
    )
    for table in (calls, ranges):
        table["start"], table["end"] = times[table["start"]], times[table["end"]]
    limit = np.iinfo(np.int64).max if cut_ns is None else cut_ns
    begun = ranges["start"] <= limit
    ranges = {name: column[begun] for name, column in ranges.items()}
    ranges["end"] = np.where(ranges["end"] > limit, NONE, ranges["end"])
    kept = device["end"] <= limit
    calls = _with_ids(planting, place, calls)
    called = (calls["end"] <= limit) & ~_dropped(planting, device, calls["device_row"])
    linked = np.zeros(len(kept), dtype=np.bool_)
    linked[calls["device_row"][called]] = True
    overheads = [bounds for bounds in recorder.overheads if bounds[1] <= limit]
    recording = Recording(
        place, device, kept, linked & kept, {}, ranges, recorder.host.names, overheads
    )
    correlation = np.zeros(len(kept), dtype=np.int64)
    correlation[calls["device_row"]] = calls["correlation"]
    recording.correlation = correlation
    calls = {name: column[called] for name, column in calls.items()}
    recording.calls = _all_calls(planting, device, calls, limit)
    return recording


def _with_ids(planting: Planting, place: Place, calls: Arrays) -> Arrays:
    """Return the calls in the order of time, with correlation ids that rise with it."""
    order = np.argsort(calls["start"], kind="stable")
    calls = {name: column[order] for name, column in calls.items()}
    base = 1_000 if planting.correlation == "colliding" else 1_000 + 20_000_000 * place.rank
    calls["correlation"] = base + 6 * np.arange(len(order), dtype=np.int64)
    return calls


def _dropped(planting: Planting, device: Arrays, rows: Ints) -> Bools:
    """Return which calls are left out: of every so many kernels, never at the edge of a span."""
    drop_calls_every = planting.drop_calls_every
    operation, compute = device["operation"][rows], device["kind"][rows] == KERNEL
    inner = np.zeros(len(rows), dtype=np.bool_)
    ids = np.where(compute, operation, NONE)
    position = np.argsort(ids, kind="stable")
    grouped = ids[position]
    inner[position[1:-1]] = (grouped[1:-1] == grouped[:-2]) & (grouped[1:-1] == grouped[2:])
    inner &= ids != NONE
    chosen = (
        np.flatnonzero(inner)[drop_calls_every - 1 :: drop_calls_every]
        if drop_calls_every
        else np.zeros(0, dtype=np.int64)
    )
    dropped = np.zeros(len(rows), dtype=np.bool_)
    dropped[chosen] = True
    return dropped


def _all_calls(planting: Planting, device: Arrays, calls: Arrays, limit: int) -> Arrays:
    """Return runtime and driver rows: launches, their doubles, and calls that launch nothing."""
    kind = device["kind"][calls["device_row"]]
    columns = {
        "start": [calls["start"]],
        "end": [calls["end"]],
        "thread": [calls["thread"]],
        "correlation": [calls["correlation"]],
        "name": [kind],  # by kind, the first names of _CALL_NAMES
        "class": [(kind == COMMUNICATION).astype(np.int64)],
    }
    if planting.double_calls:
        rows = kind == KERNEL
        nested = {name: calls[name][rows] for name in ("start", "end", "thread", "correlation")}
        nested["start"] = nested["start"] + CALL_NS // 4
        nested["end"] = nested["end"] - CALL_NS // 4
        _extend(columns, nested, name=_DOUBLE, event_class=1)
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
        _extend(columns, queries, name=_QUERY, event_class=0)
    return {name: np.concatenate(blocks) for name, blocks in columns.items()}


def _extend(columns: dict[str, list[Ints]], calls: Arrays, *, name: int, event_class: int) -> None:
    """Append calls of one name and one event class."""
    rows = len(calls["start"])
    calls = calls | {
        "name": np.full(rows, name, dtype=np.int64),
        "class": np.full(rows, event_class, dtype=np.int64),
    }
    for column, blocks in columns.items():
        blocks.append(calls[column])


class _Strings:
    """StringIds: sparse ids, as real exports have them."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """Return the id of a text."""
        return self.ids.setdefault(text, 71_000 + 4 * len(self.ids))

    def columns(self) -> TableColumns:
        """Return the table."""
        return {"id": list(self.ids.values()), "value": list(self.ids)}


def export_of(
    planting: Planting, recordings: Sequence[Recording], clock: Clock
) -> dict[str, TableColumns]:
    """Return the tables of one export."""
    strings = _Strings()
    tables: dict[str, TableColumns] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": _kernels(recordings, clock, strings),
        "CUPTI_ACTIVITY_KIND_RUNTIME": _runtime(recordings, clock, strings),
        "CUPTI_ACTIVITY_KIND_MEMCPY": _copies(recordings, clock, COPIED),
        "CUPTI_ACTIVITY_KIND_MEMSET": _copies(recordings, clock, FILLED),
        "NVTX_EVENTS": _ranges(planting, recordings, clock, strings),
        "PROFILER_OVERHEAD": _overheads(recordings, clock, strings),
        **_processes(planting, [recording.place for recording in recordings], strings),
        **_metadata(recordings[0].place, clock),
        **enums(),
    }
    return {"StringIds": strings.columns(), **tables}


def _joined(recordings: Sequence[Recording], parts: Sequence[Arrays], clock: Clock) -> Arrays:
    """Return the ranks' columns joined, on the file's clock, with the number of their recording."""
    names = parts[0].keys()
    joined = {name: np.concatenate([part[name] for part in parts]) for name in names}
    counts = [len(part["start"]) for part in parts]
    joined["recording"] = np.repeat(np.arange(len(recordings), dtype=np.int64), counts)
    joined["start"] = clock.of(joined["start"])
    joined["end"] = np.where(joined["end"] == NONE, NONE, clock.of(joined["end"]))
    return joined


def _sorted(columns: Arrays, *keys: str) -> Arrays:
    """Return the columns ordered by the keys, the first one first."""
    order = np.lexsort([columns[key] for key in reversed(keys)])
    return {name: column[order] for name, column in columns.items()}


def _device_rows(recordings: Sequence[Recording], clock: Clock, kinds: Sequence[int]) -> Arrays:
    parts = []
    for recording in recordings:
        rows = recording.kept & np.isin(recording.device["kind"], kinds)
        part = {name: column[rows] for name, column in recording.device.items()}
        place, count = recording.place, len(part["start"])
        part["correlation"] = recording.correlation[rows]
        part["device"] = np.full(count, place.device, dtype=np.int64)
        part["pid"] = np.full(count, HOST_ID + (place.pid << 24), dtype=np.int64)
        parts.append(part)
    return _sorted(_joined(recordings, parts, clock), "start", "recording", "stream")


def _activity(rows: Arrays) -> dict[str, Ints | int]:
    """Return the columns that kernels, copies and fills share."""
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


def _kernels(recordings: Sequence[Recording], clock: Clock, strings: _Strings) -> TableColumns:
    rows = _device_rows(recordings, clock, (KERNEL, COMMUNICATION))
    # The last ones are of few plantings.
    used = max(USUAL_KERNELS, int(rows["name"].max(initial=NONE)) + 1)
    ids = np.array([[strings.id(text) for text in names] for names in KERNEL_NAMES[:used]])
    named = ids[rows["name"]]
    return {
        **_activity(rows),
        "demangledName": named[:, 0],
        "shortName": named[:, 1],
        "mangledName": named[:, 2],
        "gridId": np.arange(len(named), dtype=np.int64) + 1,
        **KERNEL_CONSTANTS,
    }


def _copies(recordings: Sequence[Recording], clock: Clock, kind: int) -> TableColumns:
    rows = _device_rows(recordings, clock, (kind,))
    if kind == FILLED:
        return {**_activity(rows), "value": 0, "bytes": 4_096, "memKind": 2}
    kinds = {"copyKind": 2, "srcKind": 2, "dstKind": 1}
    return {**_activity(rows), "bytes": 65_536, "copyCount": 1, **kinds}


def _threads(recordings: Sequence[Recording], rows: Arrays) -> Ints:
    """Return the globalTid of each row."""
    ids = np.array(
        [[r.place.thread(number) for number in (MAIN, AUTOGRAD, WATCHDOG)] for r in recordings]
    )
    return np.asarray(ids[rows["recording"], rows["thread"]], dtype=np.int64)


def _runtime(recordings: Sequence[Recording], clock: Clock, strings: _Strings) -> TableColumns:
    """Return the calls: one group a (thread, event class), each in the order of time."""
    rows = _joined(recordings, [recording.calls for recording in recordings], clock)
    rows["tid"] = _threads(recordings, rows)
    rows = _sorted(rows, "class", "tid", "start")
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


def _ranges(
    planting: Planting, recordings: Sequence[Recording], clock: Clock, strings: _Strings
) -> TableColumns:
    parts = []
    first = 0
    names: list[str] = []
    for recording in recordings:
        parts.append({**recording.ranges, "name": recording.ranges["name"] + first})
        names += recording.names
        first = len(names)
    rows = _sorted(_joined(recordings, parts, clock), "start", "recording")
    number = np.arange(len(rows["start"]), dtype=np.int64)
    is_named_by_framework = rows["library"] == 0
    registered = is_named_by_framework & _chosen(planting.text, ("text", "registered"), number)
    start_end = is_named_by_framework & _chosen(planting.ranges, ("push_pop", "start_end"), number)
    texts = [names[n] for n in rows["name"].tolist()]
    return {
        "start": rows["start"],
        "end": [None if end == NONE else end for end in rows["end"].tolist()],
        "eventType": np.where(start_end, _START_END, _PUSH_POP),
        "rangeId": [n if given else None for n, given in enumerate(start_end.tolist())],
        "text": [None if by_id else t for t, by_id in zip(texts, registered, strict=True)],
        "globalTid": _threads(recordings, rows),
        "textId": [
            strings.id(t) if by_id else None for t, by_id in zip(texts, registered, strict=True)
        ],
        "domainId": 0,
    }


def _chosen(word: str, words: tuple[str, str], number: Ints) -> Bools:
    """Return which rows are of the second sort: none, all, or every other (mixed)."""
    if word == "mixed":
        return np.asarray(number % 2 == 1)
    return np.full(len(number), word == words[1])


def _overheads(recordings: Sequence[Recording], clock: Clock, strings: _Strings) -> TableColumns:
    rows = sorted(
        (clock.of_one(start), clock.of_one(end), recording.place.thread(MAIN))
        for recording in recordings
        for start, end in recording.overheads
    )
    if not rows:
        return {}
    starts, ends, threads = zip(*rows, strict=True)
    name = strings.id("CUPTI Buffer flush")
    return {"start": starts, "end": ends, "globalTid": threads, "nameId": name, "overheadType": 3}


def _processes(
    planting: Planting, places: Sequence[Place], strings: _Strings
) -> dict[str, TableColumns]:
    """Return what is known of processes, threads and devices."""
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
        **process_tables(
            places[0].hostname,
            pids=[place.pid for place in places],
            gpus=[place.gpu for place in places],
            devices=[place.device for place in places],
        ),
    }


def _metadata(place: Place, clock: Clock) -> dict[str, TableColumns]:
    """Return the tables that say where, when and by what the export was made."""
    boot_ns = _BOOT_NS + place.host * _BOOT_GAP_NS + clock.started_ns
    export = {
        **EXPORT_VERSION,
        "EXPORT_HOST": place.hostname,
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
        **session_tables(place.hostname, clock.utc_epoch_ns, boot_ns),
    }
