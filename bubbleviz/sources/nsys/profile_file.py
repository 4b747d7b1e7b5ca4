"""An open export of Nsight Systems: what an analysis needs of it, and its profile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.conventions.globs import match_any_glob
from bubbleviz.errors import EXPORT_AGAIN, NothingToAnalyseError, SchemaError
from bubbleviz.model import profile
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import format_count
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.in_memory import describe_invalid_times, make_no_calls, make_no_ranges
from bubbleviz.sources.nsys import gpu_work, target
from bubbleviz.sources.nsys import ranges as nvtx
from bubbleviz.sources.nsys.calls import ExportedCalls
from bubbleviz.sources.nsys.copies import read_copies
from bubbleviz.sources.nsys.export import GRAPH, KERNEL, KINDS, NVTX, RUNTIME, Export
from bubbleviz.sources.nsys.memory import read_memory
from bubbleviz.sources.nsys.nccl_payloads import read_payloads
from bubbleviz.sources.nsys.sqlite_export import open_export
from bubbleviz.sources.nsys.synchronisation import read_synchronisation
from bubbleviz.sources.operations.arrow import check_installed
from bubbleviz.timing import record_file, time_step

#: The remedy where a table is absent or empty.
_RECORD_AGAIN = {
    KERNEL: "no CUDA kernels were recorded; profile again with: nsys profile -t cuda,nvtx (with "
    "CUDA graphs, --cuda-graph-trace=node)",
    RUNTIME: "no CUDA API calls were recorded, so kernels cannot be linked to ranges; "
    "profile again with: nsys profile -t cuda,nvtx",
    NVTX: "no NVTX ranges were recorded; profile again with: nsys profile -t cuda,nvtx, with "
    "ranges on in the framework",
}
#: Words of warnings of nsys: plain ones, numbers of versions, CUPTI's error codes.
_PLAIN_WORD = re.compile(r"\(?(?:[A-Za-z'-]{1,16}|[0-9][0-9.]{0,7}|CUPTI_[A-Z_]{1,60})\)?[.,:?]?")
#: Longer texts are no warning of nsys about CUDA.
_MAX_WARNING = 300
#: The queries without which there is no analysis.
_REQUIRED_QUERIES = ("gpu_work/kernels", "calls/all", "ranges/named")
#: What the tables that are counted hold.
_TABLE_OF_KIND = {
    "kernels": KERNEL,
    "CUDA API calls": RUNTIME,
    "NVTX rows": NVTX,
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUDA graphs traced as a whole": GRAPH,
}


def _explain_missing(export: Export, table: str) -> str:
    """Return what is wrong where a table of kernels, calls or ranges is empty, and what to do."""
    reason = "" if table == NVTX else _explain_missing_kernels(export)
    return reason or _RECORD_AGAIN[table]


def _make_missing_error(export: Export, table: str) -> NothingToAnalyseError:
    return NothingToAnalyseError(f"{export.path}: {_explain_missing(export, table)}")


def _explain_missing_kernels(export: Export) -> str:
    """Return why no kernels were recorded although CUDA was traced.

    The reason is empty if kernels were recorded, or if CUDA was not traced.
    """
    if any(export.count_rows(table) for table in (KERNEL, GRAPH) if table in export.schema):
        return ""
    calls = export.count_rows(RUNTIME) if RUNTIME in export.schema else 0
    rows = export.query_rows_if_possible("target/diagnostics")
    warnings = list(dict.fromkeys(str(text) for (text,) in rows if _is_cuda_warning(str(text))))[:3]
    if not calls and not warnings:
        return ""
    called = f", but {format_count(calls, 'CUDA API call')}" if calls else ""
    reported = f" (nsys reported: {' '.join(warnings)})" if warnings else ""
    version = ", of a version that supports the driver" if "driver" in reported else ""
    return (
        f"no CUDA kernels were recorded{called}{reported}; profile a part of the run that launches "
        "some with: nsys profile -t cuda,nvtx (and --cuda-graph-trace=node where CUDA graphs are "
        f"used){version}"
    )


def _is_cuda_warning(text: str) -> bool:
    """Tell whether a text is a warning about CUDA in nsys' own words.

    Others may repeat what the recorded program printed.
    """
    words = text.split() if len(text) <= _MAX_WARNING else []
    named = any(word.startswith(("CUDA", "CUPTI")) for word in words[:4])
    return named and all(_PLAIN_WORD.fullmatch(word) for word in words)


def _list_required_queries(export: Export) -> list[str]:
    """Return the queries that this export must answer.

    Where there are CUDA graphs traced as a whole, there need not be a table of kernels.
    """
    graphs_alone = KERNEL not in export.schema and GRAPH in export.schema
    return [name for name in _REQUIRED_QUERIES if not (graphs_alone and name == "gpu_work/kernels")]


def _check_recorded(export: Export) -> None:
    """Raise an error where a table or a column is absent that an analysis needs."""
    for table in _RECORD_AGAIN:
        if table not in export.schema and not (table == KERNEL and GRAPH in export.schema):
            raise _make_missing_error(export, table)
    for name in _list_required_queries(export):
        export.require(name)


def _check_ranges(export: Export) -> None:
    """Check that there are ranges, and that they can be read by name.

    Raises:
        NothingToAnalyseError: there is no range of any name.
        SchemaError: a table or a column that names ranges is missing.
    """
    export.require("ranges/any")
    if not export.query_rows(
        "ranges/any", dict(zip(KINDS, nvtx.read_event_types(export), strict=True))
    ):
        raise _make_missing_error(export, NVTX)
    lacking = export.find_missing("ranges/named")
    if lacking:
        raise SchemaError(
            f"{export.path}: the export lacks {', '.join(lacking)}, so ranges have no names; "
            f"{EXPORT_AGAIN}"
        )


def _find_name_limitations(
    export: Export, ranges: profile.Ranges, kernel_names: Sequence[str]
) -> tuple[list[Limitation], list[Limitation]]:
    """Return the losses of ranges where a column is absent, and of names not in ``StringIds``."""
    lost = LimitationKind.RANGE_NAMES_LOST
    lacking = export.find_missing("ranges/named")
    names = [lack for lack in lacking if not lack.endswith(".endGlobalTid")]
    notes, unnamed = [], []
    if names:
        reason = f"{export.path} lacks {', '.join(names)}"
        notes.append(Limitation("names of ranges", reason, kind=lost))
    if len(names) < len(lacking) and bool(ranges.start_end.any()):
        reason = f"{export.path} lacks {NVTX}.endGlobalTid, so they count on their starting thread"
        notes.append(Limitation("ranges that ended on another thread", reason))
    if any(name.startswith("<string ") for name in kernel_names):
        reason = f"{export.path} has none for them in StringIds"
        unnamed.append(Limitation("names of kernels, and maybe of ranges", reason, kind=lost))
    return notes, unnamed


def _describe_missing(
    export: Export, counts: Mapping[str, int | None]
) -> tuple[tuple[str, ...], bool]:
    """Return what an export lacks, a sentence each, and whether it can be analysed all the same.

    Args:
        export: the open export.
        counts: rows of its tables; None where it lacks one.
    """
    lacks = [lack for name in _REQUIRED_QUERIES for lack in export.find_missing(name)]
    if GRAPH in export.schema:
        lacks.extend(export.find_missing("gpu_work/graphs"))
    rows = {table: count or 0 for table, count in counts.items()}
    graphs_readable = not any(lack.split(".")[0] == GRAPH for lack in lacks)
    kernels = rows[KERNEL] or (rows[GRAPH] and graphs_readable)
    empty = [] if kernels else [KERNEL]
    empty += [table for table in (RUNTIME, NVTX) if not rows[table]]
    losses = list(dict.fromkeys(_explain_missing(export, table) for table in empty))
    readable = all(map(export.has, _list_required_queries(export))) and not losses
    columns = [lack for lack in dict.fromkeys(lacks) if "." in lack]
    columns = [column for column in columns if column.split(".")[0] in export.schema]
    if columns:
        losses.append(f"the export lacks {', '.join(columns)}, which analysis needs or misses")
    return tuple(losses), readable


@dataclass(frozen=True)
class NsysFile:
    """An open export; see :class:`~bubbleviz.sources.readers.OpenFile`."""

    export: Export
    # Ranges that an inspection has read, for an analysis, with those left out for their times.
    _inspected: list[tuple[nvtx.NameFilter, profile.Ranges, int]] = field(default_factory=list)

    def sample(self, globs: Sequence[str], rows: int = nvtx.SAMPLE_ROWS, /) -> Mapping[str, int]:
        """Return how often names occur in a sample of the ranges, spread over the capture."""
        return nvtx.sample_names(self.export, globs, rows)

    def read(self, globs: Sequence[str], *, partial: bool = False) -> profile.Profile:
        """Return the profile.

        Args:
            globs: prefilters of the names of ranges.
            partial: read it all the same where it holds no calls, no ranges, or copies alone.

        Raises:
            ProfileError: it cannot be read.
            SchemaError: it lacks a column that is needed.
            NothingToAnalyseError: kernels, calls or ranges were not recorded.
        """
        export = self.export
        if not partial:
            _check_recorded(export)
        # They serve where these names are among them, with ends that no other table tells.
        earlier = next(
            (s for s in self._inspected if set(globs) <= {*s[0].globs} and not s[1].cut.any()), None
        )
        with time_step("look up strings"):
            names = earlier[0] if earlier else nvtx.make_name_filter(export, globs)
        # Calls matter where some can have launched something.
        called = export.has("calls/all") and export.query_rows("calls/any")
        calls = ExportedCalls(export, names.call_names) if called else None
        if not partial and calls is not None:
            # Threads that have read the kernels go on with these.
            export.begin("calls/all", calls._convert_block)
        with time_step("read kernels") as rows:
            work = gpu_work.read_gpu_work(export, names.call_names)
            activities, notes = work.activities, work.limitations
            rows.count = len(activities)
        if not (len(activities) if partial else activities.kernels):
            raise _make_no_kernels_error(export, notes)
        if not partial and calls is None:
            raise _make_missing_error(export, RUNTIME)

        def last_ns() -> int:
            latest_ns = 0 if partial or calls is None else calls.find_latest_end_ns()
            return max(int(activities.end_ns.max(initial=0)), latest_ns)

        ranges, impossible = earlier[1:] if earlier else self._read_ranges(names, last_ns)
        if earlier:
            ranges = ranges.take(
                np.array(match_any_glob(globs, ranges.names), bool)[ranges.name_id]
            )
        if not partial:
            if not len(ranges):
                _check_ranges(export)
            of_ranges, of_names = _find_name_limitations(export, ranges, activities.names)
            notes = (*of_ranges, *target.find_limitations(export), *of_names, *notes)
        overheads, left_out = target.read_overheads(export)
        return profile.Profile(
            source=target.read_source(export),
            activities=activities,
            calls=calls or make_no_calls(),
            ranges=ranges,
            all_ranges=nvtx.LongRanges(export),
            overheads=overheads,
            threads=target.read_threads(export),
            devices=target.read_devices(export),
            limitations=(
                *notes,
                *left_out,
                *profile.report_impossible_times(export.path, {"ranges": impossible}),
            ),
            system_calls=nvtx.LongRanges(export, of_system=True)
            if export.has("calls/system")
            else None,
            payloads=lambda: read_payloads(export),
            has_payload_schema=export.has("ranges/payload_entries"),
            synchronisation=lambda: read_synchronisation(export),
            memory=lambda: read_memory(export),
            streams=work.read_streams,
            copies=lambda: read_copies(export, activities, work.group),
        )

    def _read_ranges(
        self, names: nvtx.NameFilter, last_ns: Callable[[], int]
    ) -> tuple[profile.Ranges, int]:
        if not names.globs or not self.export.has("ranges/named"):
            return make_no_ranges(), 0
        with time_step("read ranges") as rows:
            ranges, impossible = nvtx.read_ranges(self.export, names, last_ns)
            rows.count = len(ranges)
        return ranges, impossible

    def inspect(self, globs: Sequence[str]) -> profile.Contents:
        """Return the contents of the export, ranges of these names among them.

        Raises:
            ProfileError: the file is damaged.
        """
        export = self.export
        candidates: dict[str, int] = {}
        if export.has("ranges/named"):
            names = nvtx.make_name_filter(export, globs)
            ranges, impossible = nvtx.read_ranges(export, names, lambda: 0)
            self._inspected.append((names, ranges, impossible))
            counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
            candidates = dict(zip(ranges.names, counts, strict=True))
        rows = {
            table: export.count_rows(table) if table in export.schema else None
            for table in _TABLE_OF_KIND.values()
        }
        missing, readable = _describe_missing(export, rows)
        return profile.Contents(
            source=target.read_source(export),
            tables={what: rows[table] for what, table in _TABLE_OF_KIND.items()},
            processes=gpu_work.find_processes(export),
            devices=target.read_devices(export),
            candidates=candidates,
            ranges=rows[NVTX] or 0,
            missing=missing,
            readable=readable,
            reader=export.describe_readers(),
        )


def _make_no_kernels_error(export: Export, notes: Sequence[Limitation]) -> NothingToAnalyseError:
    """Return the error of an export without kernels, or of which each was left out."""
    left_out = describe_invalid_times(notes)
    if not left_out:
        return _make_missing_error(export, KERNEL)
    return NothingToAnalyseError(
        f"{export.path}: {left_out}; profile again with: nsys profile -t cuda,nvtx"
    )


@contextmanager
def _open_threads(export: Export) -> Iterator[NsysFile]:
    pool = export.open_pool()
    try:
        yield NsysFile(export)
        record_file(export.describe_readers(), export.path)
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open an SQLite export, to be read by so many threads.

    Raises:
        ProfileError: it is being written, damaged, or no export.
    """
    with open_export(path, jobs, watch) as export, _open_threads(export) as file:
        yield file


@contextmanager
def open_directory(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open a columnar export.

    Raises:
        ProfileError: it is damaged, or no export.
    """
    what = "an export of Parquet or Arrow tables"
    check_installed(path, what, "duckdb", otherwise="export it as SQLite")
    # It imports duckdb, which is an optional extra and takes 100 ms to load.
    from bubbleviz.sources.nsys.columnar_export import open_directory

    with open_directory(path, jobs, watch) as export, _open_threads(export) as file:
        yield file
