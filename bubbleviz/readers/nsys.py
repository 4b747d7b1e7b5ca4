"""Nsight Systems: the SQLite file of ``nsys export --type sqlite``.

The file is opened read-only and immutable, so that nothing is ever written to it or beside it.
What a version of nsys lacks is probed, table by table and column by column, and either has
another query, or is a limitation, or is an error that names it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import sqlalchemy

from bubbleviz.columns import NONE, Bools, Ints
from bubbleviz.errors import EXPORT_AGAIN, NothingToAnalyseError, ProfileError, SchemaError
from bubbleviz.exports import GRAPH, KERNEL, NVTX, RUNTIME, Export, number, opened
from bubbleviz.model import Limitation
from bubbleviz.profile import (
    Calls,
    Contents,
    Copies,
    Device,
    Kernels,
    NameCount,
    Profile,
    Ranges,
    Source,
    TableCount,
    Thread,
    process_of,
)
from bubbleviz.queries import query
from bubbleviz.readers import Reader

#: Codes of NVTX_EVENTS.eventType where the export holds no ENUM_NSYS_EVENT_TYPE.
_EVENT_TYPES = {
    "NvtxPushPopRange": 59,
    "NvtxStartEndRange": 60,
    "NvtxtPushPopRange": 70,
    "NvtxtStartEndRange": 71,
}
#: What is missing when a table is absent, and what records it.
_RECORD_AGAIN = {
    KERNEL: "no CUDA kernels were recorded; profile again with: nsys profile -t cuda,nvtx "
    "(and --cuda-graph-trace=node where CUDA graphs are used)",
    RUNTIME: "no CUDA API calls were recorded, so kernels cannot be linked to ranges; "
    "profile again with: nsys profile -t cuda,nvtx",
    NVTX: "no NVTX ranges were recorded; profile again with: nsys profile -t cuda,nvtx, "
    "with ranges switched on in the training framework",
}

#: The queries that analysis cannot do without, each with what stands in for it.
_NEEDED = {
    "kernels": ("kernels", "kernels_without_process"),
    "calls": ("calls",),
    "ranges": ("ranges", "ranges_same_thread", "ranges_registered_only", "ranges_text_only"),
}
_ONE_ROW = frozenset(("host", "session"))
_GPUS = ("gpus", "gpus_without_pci", "gpus_by_id", "gpus_2020", "gpus_2020_without_pci")
_CUDA_DEVICES = ("cuda_devices", "cuda_devices_without_uuid")
#: What graphs.sql gives as the name of a CUDA graph, which has none.
_WHOLE_GRAPH = -2
#: More than any correlation id.
_CORRELATIONS = 1 << 32
_SAMPLE_NAMES = ("sample_names", "sample_names_registered_only", "sample_names_text_only")
#: A sample is at most so many pieces of so many rows.
_SAMPLES = 64
_SAMPLE_ROWS = 1000
#: Times beyond this (36 years) are no times; CUPTI is known to write such rows.
_IMPOSSIBLE_NS = 1 << 60


_T = TypeVar("_T", Kernels, Calls, Copies, Ranges)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _possible(start_ns: Ints, end_ns: Ints) -> Bools:
    """Tell which rows have times that can be: in order, and of this age."""
    inside = (np.abs(start_ns) < _IMPOSSIBLE_NS) & (np.abs(end_ns) < _IMPOSSIBLE_NS)
    return np.asarray(inside & (end_ns >= start_ns), bool)


def _only_possible(export: Export, what: str, table: _T) -> tuple[_T, tuple[Limitation, ...]]:
    """Return the table without rows whose times cannot be, and how many these were."""
    keep = _possible(table.start_ns, table.end_ns)
    if keep.all():
        return table, ()
    because = f"{export.path}: they end before they start, or lie years away; they are left out"
    strange = Limitation(f"{what} with impossible times", because, int((~keep).sum()))
    return table.take(keep), (strange,)


def _first(export: Export, name: str) -> object:
    """Return the single value of a query; None where the export cannot say."""
    rows = export.rows(query(f"nsys/{name}")) if export.has(name) else []
    return rows[0][0] if rows else None


def _source(export: Export) -> Source:
    versions: dict[object, object] = {}
    for name in ("meta_export", "meta_export_2022"):
        if export.has(name):
            versions.update({row[0]: row[1] for row in export.rows(query(f"nsys/{name}"))})
    hostname = _first(export, "host")
    nsys, schema = versions.get("EXPORT_PRODUCT_VERSION"), versions.get("EXPORT_SCHEMA_VERSION")
    return Source(
        path=export.path,
        host=str(hostname) if hostname else Path(export.path).name,
        host_known=bool(hostname),
        format="nsys",
        nsys_version=None if nsys is None else str(nsys),
        schema_version=None if schema is None else str(schema),
        session_utc_ns=_whole(_first(export, "session")),
        session_clock_ns=_whole(_first(export, "session_clock")),
    )


def _event_types(export: Export) -> Mapping[str, int]:
    """Return the codes of the four kinds of ranges, as bind values."""
    codes = dict(_EVENT_TYPES)
    if export.has("event_types"):
        for name, code in export.rows(query("nsys/event_types")):
            codes[str(name)] = number(export, code)
    return {
        "push_pop": codes["NvtxPushPopRange"],
        "start_end": codes["NvtxStartEndRange"],
        "nvtxt_push_pop": codes["NvtxtPushPopRange"],
        "nvtxt_start_end": codes["NvtxtStartEndRange"],
    }


def _kernels(export: Export) -> tuple[Kernels, tuple[Limitation, ...]]:
    """Return the kernels, and CUDA graphs that were traced as a whole, which stand for theirs."""
    tables, notes = [], []
    if KERNEL in export.schema:
        tables.append(export.columns(export.choose(*_NEEDED["kernels"])))
    if GRAPH in export.schema and export.has("graphs"):
        tables.append(export.columns(query("nsys/graphs")))
    elif GRAPH in export.schema:
        lacking = ", ".join(_lacking(export, "graphs"))
        notes.append(Limitation("CUDA graphs traced as a whole", f"{export.path} lacks {lacking}"))
    columns = np.concatenate(tables, axis=1) if tables else np.empty((6, 0), np.int64)
    ids, name_id = np.unique(columns[5], return_inverse=True)
    start_ns, end_ns, device_id, process, correlation_id, _ = columns
    kernels = Kernels(
        start_ns,
        end_ns,
        device_id,
        process,
        correlation_id,
        name_id.astype(np.int64),
        _strings(export, ids),
    )
    return kernels, tuple(notes)


def _of_one_process(
    export: Export, kernels: Kernels, calls: Calls
) -> tuple[Kernels, tuple[Limitation, ...]]:
    """Give kernels of an export without ``globalPid`` the only process that made calls.

    Correlation ids are unique within a process only, so with several nothing can be linked.
    """
    if (kernels.process != NONE).all():
        return kernels, ()
    processes = np.unique(process_of(calls.thread))
    one = len(processes) == 1
    what = "they are taken for the only one that made calls" if one else "they stay unlinked"
    note = Limitation(
        "the process of kernels",
        f"{export.path} lacks {', '.join(_lacking(export, 'kernels')) or 'it for some'}; {what}",
        int((kernels.process == NONE).sum()),
    )
    if not one:
        return kernels, (note,)
    process = np.where(kernels.process == NONE, processes[0], kernels.process)
    return replace(kernels, process=process), (note,)


def _unrecorded_graphs(export: Export, kernels: Kernels, copies: Copies) -> tuple[Limitation, ...]:
    """Return a limitation where CUDA graphs were launched whose work was not recorded."""
    if not export.has("graph_launches"):
        return ()
    process, correlation = export.columns(query("nsys/graph_launches"))
    launched = process * _CORRELATIONS + correlation
    ran = np.concatenate(
        [table.process * _CORRELATIONS + table.correlation_id for table in (kernels, copies)]
    )
    lost = int((~np.isin(launched, ran)).sum())
    note = Limitation(
        "CUDA graph launches without recorded work",
        f"{export.path}: record what graphs run with nsys profile --cuda-graph-trace=node",
        lost,
    )
    return (note,) if lost else ()


def _strings(export: Export, ids: Ints) -> tuple[str, ...]:
    """Return the text of each string id; a made-up one where the export has none."""
    known: dict[int, str] = {_WHOLE_GRAPH: "CUDA graph, traced as a whole"}
    if export.has("strings"):
        binds = {"ids": json.dumps(ids.tolist())}
        rows = export.rows(query("nsys/strings"), binds)
        known |= {number(export, row[0]): str(row[1]) for row in rows}
    return tuple(known.get(i, f"<string {i}>") for i in ids.tolist())


def _copies(export: Export) -> tuple[Copies, tuple[Limitation, ...]]:
    found, limitations = [], []
    for name in ("copies", "fills"):
        table = next(iter(query(f"nsys/{name}").requires))
        if export.has(name):
            found.append(export.columns(query(f"nsys/{name}")))
        elif table in export.schema:
            lacking = ", ".join(query(f"nsys/{name}").lacks(export.schema))
            limitations.append(Limitation(f"memory {name}", f"{export.path} lacks {lacking}"))
        recorded = bool(found) and found[-1].shape[1] > 0 and export.has(name)
        call = f"{name}_call"
        if not recorded and export.has(call) and export.rows(query(f"nsys/{call}")):
            because = f"{export.path} holds calls that make some, but none in {table}"
            limitations.append(Limitation(f"memory {name}", because))
    columns = np.concatenate(found, axis=1) if found else np.empty((5, 0), np.int64)
    return Copies(*np.ascontiguousarray(columns)), tuple(limitations)


def _ranges(export: Export, globs: Sequence[str], last_ns: int) -> Ranges:
    """Return the ranges whose names pass one of the prefilters.

    Args:
        export: the open export.
        globs: the prefilters.
        last_ns: latest time seen elsewhere in the capture.
    """
    types = _event_types(export)
    binds: dict[str, int | str | None] = {**types, "globs": json.dumps(list(globs))}
    rows = export.rows(export.choose(*_NEEDED["ranges"]), binds)
    if any(type(value) is not int for row in rows for value in row[:1] + row[2:5]):
        raise ProfileError(
            f"{export.path}: NVTX_EVENTS holds text where a number belongs, so it is damaged or "
            f"was edited; {EXPORT_AGAIN}"
        )
    start, end, kind, thread, end_thread, text = zip(*rows, strict=True) if rows else ((),) * 6
    cut = np.array([e is None for e in end], bool)
    ends = np.array([NONE if e is None else e for e in end], np.int64)
    starts = np.array(start, np.int64)
    ends[cut] = max(int(times.max(initial=last_ns)) for times in (ends, starts))
    names: dict[str, int] = {}
    name_id = [names.setdefault(str(t), len(names)) for t in text]
    kinds = np.array(kind, np.int64)
    return Ranges(
        start_ns=starts,
        end_ns=ends,
        thread=np.array(thread, np.int64),
        end_thread=np.array(end_thread, np.int64),
        start_end=np.isin(kinds, [types["start_end"], types["nvtxt_start_end"]]),
        cut=cut,
        name_id=np.array(name_id, np.int64),
        names=tuple(names),
    )


def _threads(export: Export) -> tuple[Thread, ...]:
    if not export.has("threads"):
        return ()
    rows = export.rows(query("nsys/threads"))
    named = {(number(export, row[0]), str(row[1])) for row in rows}
    return tuple(Thread(thread, name) for thread, name in sorted(named))


def _devices(export: Export) -> tuple[Device, ...]:
    """Return the GPUs by the numbers that processes give them.

    ``TARGET_INFO_CUDA_DEVICE`` tells what each process means by a number; without it, the CUDA
    driver's own number (``cuDevice``) does, which may differ from ``id``.
    """
    rows = [] if export.lacks(*_GPUS) else export.rows(export.choose(*_GPUS))
    gpus = {
        number(export, row[0]): Device(
            None, number(export, row[1]), str(row[2]), _uuid(str(row[3])), str(row[4]) or None
        )
        for row in rows
    }
    by_number = tuple(sorted(gpus.values(), key=lambda d: d.device_id))
    if export.lacks(*_CUDA_DEVICES):
        return by_number
    none = Device(None, NONE, "", None)
    seen = tuple(
        replace(
            gpus.get(number(export, gpu), none),
            pid=number(export, pid),
            device_id=number(export, own),
            uuid=_uuid(str(uuid)) or gpus.get(number(export, gpu), none).uuid,
        )
        for pid, own, gpu, uuid in export.rows(export.choose(*_CUDA_DEVICES))
    )
    return seen or by_number


def _uuid(text: str) -> str | None:
    """Return a UUID; None where nsys did not know it."""
    return text if text.strip("0-") else None


def read(path: str, globs: Sequence[str]) -> Profile:
    """Return the profile in an nsys export.

    Args:
        path: the ``.sqlite`` file.
        globs: prefilters of the range names wanted (SQLite GLOB).

    Raises:
        ProfileError: it cannot be read; SchemaError: it lacks a column that is needed;
        NothingToAnalyseError: kernels, calls or ranges were not recorded.
    """
    with opened(path) as export:
        _refuse_unrecorded(export)
        kernels, graph_notes = _kernels(export)
        kernels, strange_kernels = _only_possible(export, "kernels", kernels)
        if len(kernels) == 0:
            raise NothingToAnalyseError(f"{path}: {_RECORD_AGAIN[KERNEL]}")
        calls, strange_calls = _only_possible(
            export, "CUDA API calls", Calls(*export.columns(export.choose("calls")))
        )
        if len(calls) == 0:
            raise NothingToAnalyseError(f"{path}: {_RECORD_AGAIN[RUNTIME]}")
        kernels, process_notes = _of_one_process(export, kernels, calls)
        copies, lacking = _copies(export)
        copies, strange_copies = _only_possible(export, "copies", copies)
        last_ns = max(int(t.end_ns.max(initial=0)) for t in (kernels, calls, copies))
        ranges, strange_ranges = _only_possible(export, "ranges", _ranges(export, globs, last_ns))
        if len(ranges) == 0:
            _refuse_without_ranges(export)
        return Profile(
            source=_source(export),
            kernels=kernels,
            copies=copies,
            calls=calls,
            ranges=ranges,
            threads=_threads(export),
            devices=_devices(export),
            limitations=(
                *_names_lost(export, ranges),
                *_facts_lost(export, kernels),
                *graph_notes,
                *process_notes,
                *_unrecorded_graphs(export, kernels, copies),
                *lacking,
                *strange_kernels,
                *strange_calls,
                *strange_copies,
                *strange_ranges,
            ),
        )


def _refuse_unrecorded(export: Export) -> None:
    """Raise where a table is absent that analysis cannot do without, or lacks what it needs."""
    for table, remedy in _RECORD_AGAIN.items():
        if table not in export.schema and not (table == KERNEL and GRAPH in export.schema):
            raise NothingToAnalyseError(f"{export.path}: {remedy}")
    for queries in _needed(export):
        export.choose(*queries)


def _needed(export: Export) -> Iterator[tuple[str, ...]]:
    """Yield the queries that this export must answer, each with what stands in for it.

    Where there are CUDA graphs traced as a whole, there need not be a table of kernels.
    """
    for what, queries in _NEEDED.items():
        if what != "kernels" or KERNEL in export.schema or GRAPH not in export.schema:
            yield queries


def _refuse_without_ranges(export: Export) -> None:
    """Raise NothingToAnalyseError where there is no range of any name."""
    if not export.rows(export.choose("any_range"), _event_types(export)):
        raise NothingToAnalyseError(f"{export.path}: {_RECORD_AGAIN[NVTX]}")
    lacking = query("nsys/ranges").lacks(export.schema)
    if lacking:
        raise SchemaError(
            f"{export.path}: the export lacks {', '.join(lacking)}, and no range is named "
            f"without; {EXPORT_AGAIN}"
        )


def _lacking(export: Export, name: str) -> tuple[str, ...]:
    return query(f"nsys/{name}").lacks(export.schema)


def _names_lost(export: Export, ranges: Ranges) -> tuple[Limitation, ...]:
    """Return what is lost of ranges where a column is absent."""
    lacking = _lacking(export, "ranges")
    names = [lack for lack in lacking if not lack.endswith(".endGlobalTid")]
    notes = []
    if names:
        notes.append(Limitation("names of ranges", f"{export.path} lacks {', '.join(names)}"))
    if len(names) < len(lacking) and bool(ranges.start_end.any()):
        because = f"{export.path} lacks {NVTX}.endGlobalTid, so their starting thread is taken"
        notes.append(Limitation("start/end ranges that another thread ended", because))
    return tuple(notes)


#: What is lost where an optional query cannot run.
_OPTIONAL = {
    "threads": "names of threads, which tell loaders and watchdogs from backward threads",
    "host": "the hostname; the file stands for a host of its own, --same-clock joins files",
    "session": "the start of the session, which puts profiles on one clock",
}


def _facts_lost(export: Export, kernels: Kernels) -> tuple[Limitation, ...]:
    """Return what the absence of optional tables, columns and rows loses."""
    lost = []
    for name, what in _OPTIONAL.items():
        table = next(iter(query(f"nsys/{name}").requires))
        if not export.has(name):
            lost.append((what, f"lacks {', '.join(_lacking(export, name))}"))
        elif name in _ONE_ROW and _first(export, name) is None:
            lost.append((what, f"has none in {table}"))
    for names, what in ((_GPUS, "what the GPUs are"), (_CUDA_DEVICES, "which GPU is which")):
        lacking = _lacking(export, names[0]) if names is _GPUS else export.lacks(*names)
        if lacking:
            lost.append((what, f"lacks {', '.join(lacking)}"))
        elif not (rows := export.rows(export.choose(*names))):
            table = next(iter(query(f"nsys/{names[0]}").requires))
            lost.append((what, f"has none in {table}"))
        elif names is _CUDA_DEVICES and all(row[2] == NONE for row in rows):
            lost.append((what, "has none in TARGET_INFO_CUDA_DEVICE.gpuId"))
    nameless = sum(name.startswith("<string ") for name in kernels.names)
    if nameless:
        lost.append(("names of kernels, and maybe of ranges", "has none for them in StringIds"))
    return tuple(Limitation(what, f"{export.path} {because}") for what, because in lost)


def _tables(export: Export) -> tuple[TableCount, ...]:
    counted = (
        ("kernels", KERNEL),
        ("CUDA API calls", RUNTIME),
        ("NVTX rows", NVTX),
        ("copies", "CUPTI_ACTIVITY_KIND_MEMCPY"),
        ("fills", "CUPTI_ACTIVITY_KIND_MEMSET"),
        ("CUDA graphs traced as a whole", GRAPH),
    )
    found = []
    for what, table in counted:
        rows = None
        if table in export.schema:
            count = sqlalchemy.select(sqlalchemy.func.count()).select_from(sqlalchemy.table(table))
            rows = export.connection.execute(count).scalar_one()
        found.append(TableCount(what, table, rows))
    return tuple(found)


def inspect(path: str, globs: Sequence[str]) -> Contents:
    """Return what an export holds.

    Args:
        path: the ``.sqlite`` file.
        globs: prefilters of the range names that conventions may know.

    Raises:
        ProfileError: it cannot be read.
    """
    with opened(path) as export:
        candidates: list[NameCount] = []
        if not export.lacks(*_NEEDED["ranges"]):
            ranges = _ranges(export, globs, 0)
            counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
            candidates = [NameCount(*pair) for pair in zip(ranges.names, counts, strict=True)]
        processes: set[int] = set()
        for work in ("kernels", "graphs"):
            if export.has(work):
                processes.update(np.unique(export.columns(query(f"nsys/{work}"))[3]).tolist())
        lacks = [lack for first, *_ in _NEEDED.values() for lack in _lacking(export, first)]
        if GRAPH in export.schema:
            lacks.extend(_lacking(export, "graphs"))
        return Contents(
            source=_source(export),
            tables=_tables(export),
            processes=tuple(sorted(processes - {NONE})),
            devices=_devices(export),
            candidates=tuple(candidates),
            lacks=tuple(dict.fromkeys(lacks)),
            readable=not any(export.lacks(*names) for names in _needed(export)),
        )


def sample(path: str) -> Mapping[str, int]:
    """Return how often each name occurs in a sample of the ranges, spread over the capture.

    Args:
        path: the ``.sqlite`` file.

    Raises:
        ProfileError: it cannot be read.
    """
    counts: Counter[str] = Counter()
    with opened(path) as export:
        if export.lacks(*_SAMPLE_NAMES) or not export.has("range_rows"):
            return counts
        chosen, types = export.choose(*_SAMPLE_NAMES), _event_types(export)
        last = export.rows(query("nsys/range_rows"))
        last_row = number(export, last[0][0]) if last else 0
        step = max(last_row // _SAMPLES, _SAMPLE_ROWS)
        for first in range(0, last_row + 1, step):
            binds = {**types, "first": first, "last": first + _SAMPLE_ROWS - 1}
            counts.update(str(row[0]) for row in export.rows(chosen, binds) if row[0] is not None)
    return counts


READER = Reader(
    name="nsys",
    suffixes=(".sqlite",),
    recognises=lambda head: head.startswith(b"SQLite format 3\0"),
    read=read,
    sample=sample,
    inspect=inspect,
)
