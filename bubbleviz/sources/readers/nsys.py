"""Nsight Systems: the SQLite file of ``nsys export --type sqlite``.

The file is opened read-only and immutable, so that nothing is ever written to it or beside it.
What a version of nsys lacks is probed, table by table and column by column, and either has
another query, or is a limitation, or is an error that names it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bubbleviz.conventions.globs import binds_of, fitting
from bubbleviz.errors import EXPORT_AGAIN, NothingToAnalyseError, ProfileError, SchemaError
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import (
    IMPOSSIBLE_NS,
    Contents,
    Device,
    NameCount,
    Overheads,
    Profile,
    Ranges,
    Source,
    TableCount,
    Thread,
    impossible_times,
    possible,
)
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.in_memory import no_calls, no_ranges
from bubbleviz.sources.nsys.call_log import ExportedCalls
from bubbleviz.sources.nsys.database import Binds
from bubbleviz.sources.nsys.export import (
    GRAPH,
    KERNEL,
    NVTX,
    RUNTIME,
    Export,
    connect,
    number,
    opened,
)
from bubbleviz.sources.nsys.gpu_work import (
    KERNEL_QUERIES,
    TELLING_CALLS,
    activities_of,
    kernel_stretches,
)
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.scan import Scan, scan_of
from bubbleviz.sources.readers import Reader
from bubbleviz.timing import step

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
    "kernels": KERNEL_QUERIES,
    "calls": ("calls",),
    "ranges": ("ranges", "ranges_same_thread", "ranges_registered_only", "ranges_text_only"),
}
#: What the tables that are counted hold.
_KERNELS, _CALLS, _RANGES = "kernels", "CUDA API calls", "NVTX rows"
_GRAPHS = "CUDA graphs traced as a whole"
#: The large tables.
_LARGE = ("kernel_rows", "range_rows", "call_rows")
#: Rows of the NVTX table that are looked through at a time.
_RANGE_ROWS = 1 << 18
_ONE_ROW = frozenset(("host", "session"))
_GPUS = ("gpus", "gpus_without_pci", "gpus_by_id", "gpus_2020", "gpus_2020_without_pci")
_CUDA_DEVICES = ("cuda_devices", "cuda_devices_without_uuid")
_SAMPLE_NAMES = ("sample_names", "sample_names_registered_only", "sample_names_text_only")
#: A sample is about so many pieces of so many rows.
_SAMPLES = 64
_SAMPLE_ROWS = 256


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


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


@dataclass(frozen=True)
class _Wanted:
    """Names that are looked for: by patterns, and as registered strings, by id."""

    globs: tuple[str, ...]
    strings: Mapping[int, str]
    call_names: Mapping[int, str]


def _wanted(export: Export, globs: Sequence[str]) -> _Wanted:
    """Return what to look for; ``StringIds`` can be as long as the NVTX table, and is read once."""
    found: dict[int, str] = {}
    if export.has("strings_like"):
        binds = binds_of([*globs, *(f"{start}*" for start in TELLING_CALLS)])
        rows = export.rows(query("nsys/strings_like"), binds)
        found = {number(export, row[0]): str(row[1]) for row in rows}
    calls = {i: text for i, text in found.items() if text.startswith(TELLING_CALLS)}
    fits = fitting(globs, calls.values())
    strange = {i for i, fit in zip(calls, fits, strict=True) if not fit}
    strings = {i: text for i, text in found.items() if i not in strange}
    return _Wanted(tuple(globs), strings, calls)


def _ranges(
    export: Export, scan: Scan, wanted: _Wanted, last_ns: Callable[[], int]
) -> tuple[Ranges, int]:
    """Return the ranges whose names are wanted, and how many had times that cannot be.

    Args:
        export: the open export.
        scan: reads its large tables.
        wanted: names that are.
        last_ns: tells the latest time seen elsewhere in the capture; asked if a range needs it.
    """
    types = _event_types(export)
    chosen = export.choose(*_NEEDED["ranges"]).name
    text_ids = json.dumps(sorted(wanted.strings))
    strings: Binds = {"text_ids": text_ids, "some_strings": bool(wanted.strings)}
    binds: Binds = {**types, **binds_of(wanted.globs), **strings}
    first, last = export.bounds("range_rows")
    # Each stretch looks up the wanted strings anew.
    names: dict[str, int] = {}
    found = [
        _block(export, rows, wanted.strings, names)
        for rows in scan.rows(scan.stretches(chosen, first, last, _RANGE_ROWS, binds))
    ]
    start_ns, end_ns, kind, thread, end_thread, open_ended, name_id = np.concatenate(
        found or [np.empty((7, 0), np.int64)], axis=1
    )
    cut = open_ended.astype(bool)
    keep = possible(start_ns, np.where(cut, start_ns, end_ns))
    if cut.any():
        sane = slice(None) if keep is None else keep
        times = np.concatenate((start_ns[sane], end_ns[sane]))
        end_ns[cut] = int(times.max(initial=last_ns()))
    ranges = Ranges(
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        end_thread=end_thread,
        start_end=np.isin(kind, [types["start_end"], types["nvtxt_start_end"]]),
        cut=cut,
        name_id=name_id,
        names=tuple(names),
    )
    return (ranges, 0) if keep is None else (ranges.take(keep), int((~keep).sum()))


def _block(
    export: Export,
    rows: Sequence[tuple[object, ...]],
    strings: Mapping[int, str],
    names: dict[str, int],
) -> Ints:
    """Return rows of ranges.sql as columns, after end_thread whether the end is open, and the name.

    Args:
        export: the open export.
        rows: as the query gives them.
        strings: registered strings, by id.
        names: numbers of the names so far; new ones are added.

    Raises:
        ProfileError: there is text where a number belongs.
    """
    if not rows:
        return np.empty((7, 0), np.int64)
    # Only what passed the patterns comes here, in which texts and open ends are no numbers.
    start, end, kind, thread, end_thread, text, text_id = zip(*rows, strict=True)
    whole = {type(value) for column in (start, kind, thread, end_thread) for value in column}
    whole |= {type(value) for value in end if value is not None}
    if whole - {int} or {type(value) for value in text} - {str, type(None)}:
        raise ProfileError(
            f"{export.path}: NVTX_EVENTS holds text where a number belongs, so it is damaged or "
            f"was edited; {EXPORT_AGAIN}"
        )
    texts = (
        str(strings[number(export, i)] if t is None else t)
        for t, i in zip(text, text_id, strict=True)
    )
    name_id = [names.setdefault(t, len(names)) for t in texts]
    open_ended = [e is None for e in end]
    ends = [NONE if e is None else e for e in end]
    return np.array((start, ends, kind, thread, end_thread, open_ended, name_id), np.int64)


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


def _overheads(export: Export) -> Overheads:
    """Return when the profiler held processes up, as far as the export tells."""
    names = [name for name in ("overheads", "overheads_cupti") if export.has(name)]
    found = [export.columns(query(f"nsys/{name}")) for name in names]
    start_ns, end_ns, process = np.concatenate([np.empty((3, 0), np.int64), *found], axis=1)
    held = Overheads(process, start_ns, end_ns)
    sane = possible(start_ns, end_ns)
    return held if sane is None else held.take(sane)


@dataclass(frozen=True)
class _RangeLog:
    """A :class:`~bubbleviz.model.profile.RangeLog`; it can be read while the export is open."""

    export: Export
    scan: Scan

    def lasting(self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints) -> Ranges:
        """Return the ranges of some threads that last so long, and touch any of some times."""
        names: dict[str, int] = {}
        times = intervals.union(since_ns, until_ns)
        found = [np.empty((4, 0), np.int64)]
        if self.export.has("lasting_ranges") and self.export.has("range_rows") and len(times[0]):
            binds: Binds = {
                **_event_types(self.export),
                "shortest": shortest_ns,
                "threads": json.dumps(threads.tolist()),
                "since": int(times[0][0]),
                "until": int(times[1][-1]),
            }
            first, last = self.export.bounds("range_rows")
            asked = self.scan.stretches("nsys/lasting_ranges", first, last, _RANGE_ROWS, binds)
            found += [_lasting(rows, times, names) for rows in self.scan.rows(asked)]
        return _plain_ranges(np.concatenate(found, axis=1), names)


@dataclass(frozen=True)
class _SystemCalls:
    """A :class:`~bubbleviz.model.profile.RangeLog` of calls of the operating system."""

    export: Export

    def lasting(self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints) -> Ranges:
        """Return the calls of some threads that last so long, and touch any of some times."""
        names: dict[str, int] = {}
        times = intervals.union(since_ns, until_ns)
        found = np.empty((4, 0), np.int64)
        if len(times[0]):
            binds: Binds = {
                "shortest": shortest_ns,
                "threads": json.dumps(threads.tolist()),
                "since": int(times[0][0]),
                "until": int(times[1][-1]),
            }
            found = _lasting(self.export.rows(query("nsys/system_calls"), binds), times, names)
        return _plain_ranges(found, names)


def _plain_ranges(columns: Ints, names: Mapping[str, int]) -> Ranges:
    """Return ranges of which no more is known than start, end, thread, and number of the name."""
    start_ns, end_ns, thread, name_id = (column.copy() for column in columns)
    none = np.zeros(len(thread), bool)
    end_thread = np.full(len(thread), NONE, np.int64)
    return Ranges(start_ns, end_ns, thread, end_thread, none, none.copy(), name_id, tuple(names))


def _lasting(
    rows: Sequence[tuple[object, ...]], times: intervals.Intervals, names: dict[str, int]
) -> Ints:
    """Return rows of lasting_ranges.sql that touch some times, as columns.

    Args:
        rows: as the query gives them; those with text in place of a number are left out.
        times: a set of times.
        names: numbers of the names so far; new ones are added.
    """
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    if {type(value) for column in columns[:3] for value in column} - {int}:
        rows = [row for row in rows if all(isinstance(value, int) for value in row[:3])]
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    numbers = np.array(columns[:3], np.int64)
    before = np.searchsorted(times[1], numbers[0], side="right")
    inside = np.flatnonzero(before < np.searchsorted(times[0], numbers[1]))
    texts = columns[3]
    name_id = [names.setdefault(str(texts[at] or ""), len(names)) for at in inside.tolist()]
    return np.stack((*numbers[:, inside], np.array(name_id, np.int64)))


@dataclass(frozen=True)
class NsysFile:
    """An open export; see :class:`~bubbleviz.sources.readers.OpenFile`."""

    export: Export
    scan: Scan

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often names occur in a sample of the ranges, spread over the capture."""
        counts: Counter[str] = Counter()
        export = self.export
        if export.lacks(*_SAMPLE_NAMES) or not export.has("range_rows"):
            return counts
        chosen = export.choose(*_SAMPLE_NAMES)
        binds: Binds = {**_event_types(export), **binds_of(globs)}
        first, last = export.bounds("range_rows")
        step = max((last - first) // _SAMPLES, _SAMPLE_ROWS)
        for at in range(first, last + 1, step):
            piece = {**binds, "first": at, "last": min(at + _SAMPLE_ROWS - 1, last)}
            counts.update(str(row[0]) for row in export.rows(chosen, piece) if row[0] is not None)
        return counts

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile.

        Args:
            globs: prefilters of the ranges that are wanted by name.
            partial: read it all the same where it holds no calls, no ranges, or copies alone.

        Raises:
            ProfileError: it cannot be read; SchemaError: it lacks a column that is needed;
            NothingToAnalyseError: kernels, calls or ranges were not recorded.
        """
        export = self.export
        if partial:
            return self._what_there_is(globs)
        _refuse_unrecorded(export)
        with step("look up strings"):
            wanted = _wanted(export, globs)
        with step("read kernels") as rows:
            activities, notes = activities_of(export, self.scan, wanted.call_names)
            rows.count = len(activities)
        if activities.kernels == 0:
            raise NothingToAnalyseError(f"{export.path}: {_RECORD_AGAIN[KERNEL]}")
        if not export.rows(query("nsys/any_call")):
            raise NothingToAnalyseError(f"{export.path}: {_RECORD_AGAIN[RUNTIME]}")

        def last_ns() -> int:
            latest = export.rows(query("nsys/call_end"), {"latest": IMPOSSIBLE_NS - 1})
            ended = number(export, latest[0][0]) if latest else 0
            return max(int(activities.end_ns.max(initial=0)), ended)

        calls = ExportedCalls(export, self.scan)
        self.scan.begin(calls.stretches())
        with step("read ranges") as rows:
            ranges, strange = _ranges(export, self.scan, wanted, last_ns)
            rows.count = len(ranges)
        if len(ranges) == 0:
            _refuse_without_ranges(export)
        return Profile(
            source=_source(export),
            activities=activities,
            calls=calls,
            ranges=ranges,
            every_range=_RangeLog(export, self.scan),
            overheads=_overheads(export),
            threads=_threads(export),
            devices=_devices(export),
            limitations=(
                *_names_lost(export, ranges),
                *_facts_lost(export, activities.names),
                *notes,
                *impossible_times(export.path, {"ranges": strange}),
            ),
        )

    def _what_there_is(self, globs: Sequence[str]) -> Profile:
        """Return the profile of an export that may lack calls and ranges.

        Raises:
            ProfileError: it cannot be read; NothingToAnalyseError: nothing ran on a device.
        """
        export = self.export
        wanted = _wanted(export, globs)
        with step("read kernels") as rows:
            activities, notes = activities_of(export, self.scan, wanted.call_names)
            rows.count = len(activities)
        if len(activities) == 0:
            raise NothingToAnalyseError(f"{export.path}: {_RECORD_AGAIN[KERNEL]}")
        ranges, strange = no_ranges(), 0
        if globs and not export.lacks(*_NEEDED["ranges"]):
            latest_ns = int(activities.end_ns.max())
            ranges, strange = _ranges(export, self.scan, wanted, lambda: latest_ns)
        calls = export.has("calls") and export.rows(query("nsys/any_call"))
        return Profile(
            source=_source(export),
            activities=activities,
            calls=ExportedCalls(export, self.scan) if calls else no_calls(),
            ranges=ranges,
            every_range=_RangeLog(export, self.scan),
            overheads=_overheads(export),
            threads=_threads(export),
            devices=_devices(export),
            limitations=(*notes, *impossible_times(export.path, {"ranges": strange})),
            system_calls=_SystemCalls(export) if export.has("system_calls") else None,
        )

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return what the export holds, ranges of these names among it."""
        export = self.export
        candidates: list[NameCount] = []
        if not export.lacks(*_NEEDED["ranges"]):
            ranges, _ = _ranges(export, self.scan, _wanted(export, globs), lambda: 0)
            counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
            candidates = [NameCount(*pair) for pair in zip(ranges.names, counts, strict=True)]
        lacks = [lack for first, *_ in _NEEDED.values() for lack in export.lacks(first)]
        if GRAPH in export.schema:
            lacks.extend(export.lacks("graphs"))
        tables = _tables(export)
        rows = {table.what: table.rows or 0 for table in tables}
        lost = _not_recorded(rows, any(lack.split(".")[0] == GRAPH for lack in lacks))
        needs = not any(export.lacks(*names) for names in _needed(export))
        return Contents(
            source=_source(export),
            tables=tables,
            processes=_processes(export, self.scan),
            devices=_devices(export),
            candidates=tuple(candidates),
            ranges=rows[_RANGES],
            missing=(*lost, *_columns_lost(export, lacks)),
            readable=needs and not lost,
        )


def _not_recorded(rows: Mapping[str, int], graphs_lack: bool) -> tuple[str, ...]:
    """Return what was not recorded that an analysis needs.

    Args:
        rows: how many there are of each kind.
        graphs_lack: whether the table of CUDA graphs cannot be read, so that they are no work.
    """
    lost = []
    if not rows[_KERNELS] and (graphs_lack or not rows[_GRAPHS]):
        lost.append("no CUDA kernels: profile with nsys profile -t cuda,nvtx")
        if rows[_GRAPHS]:
            lost.append("CUDA graphs were traced as a whole: add --cuda-graph-trace=node")
    if not rows[_CALLS]:
        lost.append("no CUDA API calls: profile with nsys profile -t cuda,nvtx")
    if not rows[_RANGES]:
        lost.append(
            "no NVTX ranges: profile with nsys profile -t cuda,nvtx and switch the "
            "framework's ranges on"
        )
    return tuple(lost)


def _columns_lost(export: Export, lacks: Sequence[str]) -> tuple[str, ...]:
    """Return which columns of tables that are there are missing."""
    columns = [one for one in dict.fromkeys(lacks) if "." in one]
    columns = [one for one in columns if one.split(".")[0] in export.schema]
    if not columns:
        return ()
    return (f"the export lacks {', '.join(columns)}, which analysis needs or misses",)


def _processes(export: Export, scan: Scan) -> tuple[int, ...]:
    """Return the processes that ran kernels or graphs."""
    found: set[int] = set()
    if export.has("kernels"):
        for block in scan.columns(kernel_stretches(export, scan)):
            found.update(np.unique(block[3]).tolist())
    if export.has("graphs"):
        found.update(np.unique(export.columns(query("nsys/graphs"))[3]).tolist())
    return tuple(sorted(found - {NONE}))


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
    lacking = export.lacks("ranges")
    if lacking:
        raise SchemaError(
            f"{export.path}: the export lacks {', '.join(lacking)}, and no range is named "
            f"without; {EXPORT_AGAIN}"
        )


def _names_lost(export: Export, ranges: Ranges) -> tuple[Limitation, ...]:
    """Return what is lost of ranges where a column is absent."""
    lacking = export.lacks("ranges")
    names = [lack for lack in lacking if not lack.endswith(".endGlobalTid")]
    notes = []
    if names:
        notes.append(Limitation("names of ranges", f"{export.path} lacks {', '.join(names)}"))
    if len(names) < len(lacking) and bool(ranges.start_end.any()):
        reason = f"{export.path} lacks {NVTX}.endGlobalTid, so their starting thread is taken"
        notes.append(Limitation("start/end ranges that another thread ended", reason))
    return tuple(notes)


#: What is lost where an optional query cannot run.
_OPTIONAL = {
    "threads": "names of threads, which tell loaders and watchdogs from backward threads",
    "host": "the hostname; the file stands for a host of its own, --same-clock joins files",
    "session": "the start of the session, which puts profiles on one clock",
}


def _facts_lost(export: Export, kernel_names: Sequence[str]) -> tuple[Limitation, ...]:
    """Return what the absence of optional tables, columns and rows loses."""
    lost = []
    for name, what in _OPTIONAL.items():
        table = next(iter(query(f"nsys/{name}").requires))
        if not export.has(name):
            lost.append((what, f"lacks {', '.join(export.lacks(name))}"))
        elif name in _ONE_ROW and _first(export, name) is None:
            lost.append((what, f"has none in {table}"))
    for names, what in ((_GPUS, "what the GPUs are"), (_CUDA_DEVICES, "which GPU is which")):
        lacking = export.lacks(names[0]) if names is _GPUS else export.lacks(*names)
        if lacking:
            lost.append((what, f"lacks {', '.join(lacking)}"))
        elif not (rows := export.rows(export.choose(*names))):
            table = next(iter(query(f"nsys/{names[0]}").requires))
            lost.append((what, f"has none in {table}"))
        elif names is _CUDA_DEVICES and all(row[2] == NONE for row in rows):
            lost.append((what, "has none in TARGET_INFO_CUDA_DEVICE.gpuId"))
    nameless = sum(name.startswith("<string ") for name in kernel_names)
    if nameless:
        lost.append(("names of kernels, and maybe of ranges", "has none for them in StringIds"))
    return tuple(Limitation(what, f"{export.path} {reason}") for what, reason in lost)


def _tables(export: Export) -> tuple[TableCount, ...]:
    counted = (
        (_KERNELS, KERNEL),
        (_CALLS, RUNTIME),
        (_RANGES, NVTX),
        ("copies", "CUPTI_ACTIVITY_KIND_MEMCPY"),
        ("fills", "CUPTI_ACTIVITY_KIND_MEMSET"),
        (_GRAPHS, GRAPH),
    )
    # What a table is called is known only here, and no SQL is put together from text.
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    engine = sqlalchemy.create_engine(
        "sqlite://", creator=lambda: connect(export.path), poolclass=NullPool
    )
    found = []
    with engine.connect() as connection:
        for what, table in counted:
            count = sqlalchemy.select(sqlalchemy.func.count()).select_from(sqlalchemy.table(table))
            there = table in export.schema
            try:
                rows = connection.execute(count).scalar_one() if there else None
            except sqlalchemy.exc.DatabaseError as error:
                raise ProfileError(
                    f"{export.path}: {table} cannot be counted ({error.orig}); the file is damaged "
                    f"or was cut short: {EXPORT_AGAIN}"
                ) from error
            found.append(TableCount(what, table, rows))
    return tuple(found)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open an export, to be read by so many threads.

    Raises:
        ProfileError: it is being written, damaged, or no export.
    """
    with opened(path) as export, scan_of(export, jobs, _rows(export), watch) as scan:
        # It takes a while until it is known which ranges are to be read.
        scan.begin(kernel_stretches(export, scan))
        yield NsysFile(export, scan)


def _rows(export: Export) -> int:
    """Return how many rows an analysis reads."""
    bounds = (export.bounds(name) for name in _LARGE if export.has(name))
    return sum(last - first + 1 for first, last in bounds)


READER = Reader(
    name="nsys",
    suffixes=(".sqlite",),
    recognises=lambda head: head.startswith(b"SQLite format 3\0"),
    open_file=open_file,
)
