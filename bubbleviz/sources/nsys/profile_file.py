"""Builds a profile from an nsys export, after checking that the export can be analyzed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from bubbleviz.conventions.globs import match_any_glob
from bubbleviz.errors import EXPORT_AGAIN, NothingToAnalyzeError, SchemaError
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
from bubbleviz.sources.nsys.synchronization import read_synchronization
from bubbleviz.sources.operations.arrow import check_installed
from bubbleviz.timing import record_file, time_step

#: Messages for missing or empty tables, keyed by table name.
_RECORD_AGAIN = {
    KERNEL: "no CUDA kernels were recorded; profile again with: nsys profile -t cuda,nvtx (add "
    "--cuda-graph-trace=node if the program uses CUDA graphs)",
    RUNTIME: "no CUDA API calls were recorded, so kernels cannot be linked to ranges; "
    "profile again with: nsys profile -t cuda,nvtx",
    NVTX: "no NVTX ranges were recorded; enable NVTX ranges in the framework, and profile again "
    "with: nsys profile -t cuda,nvtx",
}
#: Queries that every analysis needs.
_REQUIRED_QUERIES = ("gpu_work/kernels", "calls/all", "ranges/named")
#: Tables whose rows are counted by an inspection, keyed by the noun for a row.
_TABLE_OF_KIND = {
    "kernels": KERNEL,
    "CUDA API calls": RUNTIME,
    "NVTX rows": NVTX,
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUDA graphs traced as a whole": GRAPH,
}


def _explain_missing(export: Export, table: str) -> str:
    """Return the message for when the table of kernels, calls or ranges is missing or empty."""
    reason = "" if table == NVTX else _explain_missing_kernels(export)
    return reason or _RECORD_AGAIN[table]


def _make_missing_error(export: Export, table: str) -> NothingToAnalyzeError:
    """Return the error to raise when the table of kernels, calls or ranges is missing or empty."""
    return NothingToAnalyzeError(f"{export.path}: {_explain_missing(export, table)}")


def _explain_missing_kernels(export: Export) -> str:
    """Return the reason why no kernels were recorded although CUDA was traced, with advice.

    The result is "" if kernels were recorded, or if CUDA does not seem to have been traced. CUDA is
    considered traced if the export contains CUDA API calls or nsys warnings about CUDA, or if the
    hardware traced CUDA.
    """
    if any(export.count_rows(table) for table in (KERNEL, GRAPH) if table in export.schema):
        return ""
    calls = export.count_rows(RUNTIME) if RUNTIME in export.schema else 0
    warnings = target.read_warnings(export, ("CUDA", "CUPTI"))[:3]
    is_hardware = target.is_traced_by_hardware(export)
    if not calls and not warnings and not is_hardware:
        return ""
    made = format_count(calls, "CUDA API call was", "CUDA API calls were")
    recorded_calls = f", although {made}" if calls else ""
    reported = f" (nsys reported: {' '.join(warnings)})" if warnings else ""
    if is_hardware:
        return (
            f"hardware tracing of CUDA recorded no kernels{recorded_calls}{reported}; "
            f"{target.TRACE_BY_SOFTWARE}"
        )
    version = ", using an nsys version that supports the driver" if "driver" in reported else ""
    return (
        f"no CUDA kernels were recorded{recorded_calls}{reported}; profile a part of the run that "
        "launches kernels with: nsys profile -t cuda,nvtx (add --cuda-graph-trace=node if the "
        f"program uses CUDA graphs){version}"
    )


def _list_required_queries(export: Export) -> list[str]:
    """Return the names of the queries that must be able to run on this export.

    The kernel query is not required if the export has no kernel table but has a table of CUDA
    graphs that were traced as a whole.
    """
    has_only_graphs = KERNEL not in export.schema and GRAPH in export.schema
    return [
        name for name in _REQUIRED_QUERIES if not (has_only_graphs and name == "gpu_work/kernels")
    ]


def _check_recorded(export: Export) -> None:
    """Check that the export has the tables and columns that an analysis needs.

    Raises:
        NothingToAnalyzeError: The table of kernels, calls or ranges is missing.
        SchemaError: A required column is missing.
    """
    for table in _RECORD_AGAIN:
        if table not in export.schema and not (table == KERNEL and GRAPH in export.schema):
            raise _make_missing_error(export, table)
    for name in _list_required_queries(export):
        export.require(name)


def _check_ranges(export: Export) -> None:
    """Check that the export contains ranges and that their names can be read.

    The check passes even if no range name follows a convention.

    Raises:
        NothingToAnalyzeError: The export contains no ranges.
        SchemaError: A table or column that contains range names is missing.
    """
    export.require("ranges/any")
    if not export.query_rows(
        "ranges/any", dict(zip(KINDS, nvtx.read_event_types(export), strict=True))
    ):
        raise _make_missing_error(export, NVTX)
    missing = export.find_missing("ranges/named")
    if missing:
        raise SchemaError(
            f"{export.path}: the export lacks {', '.join(missing)}, so ranges have no names; "
            f"{EXPORT_AGAIN}"
        )


def _iter_limitations(
    export: Export, ranges: profile.Ranges, kernel_names: Sequence[str]
) -> Iterator[Limitation]:
    """Yield limitations for missing data about ranges, the host, GPUs, threads and kernel names.

    Args:
        export: The open export.
        ranges: Ranges in the profile.
        kernel_names: Kernel names. A name that is missing from the export starts with ``<string``.
    """
    lost_names = LimitationKind.RANGE_NAMES_LOST
    missing = export.find_missing("ranges/named")
    names = [name for name in missing if not name.endswith(".endGlobalTid")]
    if names:
        reason = f"{export.path} lacks {', '.join(names)}, so some range names are unknown"
        yield Limitation("names of ranges", reason, kind=lost_names)
    if len(names) < len(missing) and bool(ranges.start_end.any()):
        reason = (
            f"{export.path} lacks {NVTX}.endGlobalTid, so these ranges are assigned to the thread "
            "on which they started"
        )
        yield Limitation("ranges that ended on another thread", reason)
    yield from target.find_limitations(export)
    if any(name.startswith("<string ") for name in kernel_names):
        reason = f"{export.path} lacks some of these names in StringIds"
        yield Limitation("names of kernels and possibly of ranges", reason, kind=lost_names)


def _describe_missing(
    export: Export, counts: Mapping[str, int | None]
) -> tuple[tuple[str, ...], bool]:
    """List the data missing from an export that an analysis needs or can use.

    Args:
        export: The open export.
        counts: Row counts, keyed by table name, or None for missing tables.

    Returns:
        missing: Messages about missing tables, rows and columns.
        is_readable: Whether the export can still be analyzed.
    """
    missing = [name for query in _REQUIRED_QUERIES for name in export.find_missing(query)]
    if GRAPH in export.schema:
        missing.extend(export.find_missing("gpu_work/graphs"))
    rows = {table: count or 0 for table, count in counts.items()}
    graphs_readable = not any(name.split(".")[0] == GRAPH for name in missing)
    kernels = rows[KERNEL] or (rows[GRAPH] and graphs_readable)
    empty = [] if kernels else [KERNEL]
    empty += [table for table in (RUNTIME, NVTX) if not rows[table]]
    losses = list(dict.fromkeys(_explain_missing(export, table) for table in empty))
    readable = all(map(export.has, _list_required_queries(export))) and not losses
    columns = [name for name in dict.fromkeys(missing) if "." in name]
    columns = [column for column in columns if column.split(".")[0] in export.schema]
    if columns:
        losses.append(f"the export lacks {', '.join(columns)}, which analyses need or can use")
    return tuple(losses), readable


#: Ranges read by an inspection: the name filter, the matching ranges, and the number of ranges with
#: invalid times.
_Inspected: TypeAlias = tuple[nvtx.NameFilter, profile.Ranges, int]


def _select_matching(inspected: _Inspected, globs: Sequence[str]) -> tuple[profile.Ranges, int]:
    """Select the ranges read by an inspection whose names match at least one of the GLOBs.

    Args:
        inspected: Ranges read by the inspection.
        globs: SQLite GLOBs.

    Returns:
        ranges: The matching ranges.
        n_impossible: Number of ranges that the inspection left out because of invalid times,
            regardless of their names.
    """
    _, ranges, n_impossible = inspected
    matches = np.array(match_any_glob(globs, ranges.names), bool)
    return ranges.take(matches[ranges.name_id]), n_impossible


def _open_calls(export: Export, names: nvtx.NameFilter) -> ExportedCalls | None:
    """Return the calls in an export, or None if none of them can have launched GPU work."""
    has_calls = export.has("calls/all") and export.query_rows("calls/any")
    return ExportedCalls(export, names.call_names) if has_calls else None


@dataclass(frozen=True)
class NsysFile:
    """An open nsys export from which profiles are read.

    See :class:`~bubbleviz.sources.readers.OpenFile`.
    """

    export: Export
    # Results of earlier inspections, for reuse by an analysis.
    _inspected: list[_Inspected] = field(default_factory=list)

    def sample(self, globs: Sequence[str], rows: int = nvtx.SAMPLE_ROWS, /) -> Mapping[str, int]:
        """Count the matching names in a sample of the ranges.

        See :func:`~bubbleviz.sources.nsys.ranges.sample_names`.
        """
        return nvtx.sample_names(self.export, globs, rows)

    def read(self, globs: Sequence[str], *, partial: bool = False) -> profile.Profile:
        """Read the export as a profile.

        Ranges that were already read by an inspection are reused. The profile reads calls, memory
        events and other large tables on demand, so the export must stay open.

        Args:
            globs: SQLite GLOBs. Ranges whose names do not match any GLOB are left out.
            partial: Whether to accept an incomplete export, that is, an export that lacks calls or
                ranges, or contains copies but no kernels.

        Raises:
            ProfileError: The export cannot be read.
            SchemaError: A required column is missing.
            NothingToAnalyzeError: Kernels, calls or ranges were not recorded.
        """
        export = self.export
        if not partial:
            _check_recorded(export)
        inspected = self._find_inspected(globs)
        with time_step("look up strings"):
            names = inspected[0] if inspected else nvtx.make_name_filter(export, globs)
        calls = _open_calls(export, names)
        if not partial and calls is not None:
            # Once there are no more kernels to read, the threads start to read calls.
            export.begin("calls/all", calls.convert_block)
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

        if inspected:
            ranges, n_impossible = _select_matching(inspected, globs)
        else:
            ranges, n_impossible = self._read_ranges(names, last_ns)
        if not partial:
            if not len(ranges):
                _check_ranges(export)
            notes = (*_iter_limitations(export, ranges, activities.names), *notes)
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
                *target.find_warnings(export),
                *left_out,
                *profile.report_impossible_times(export.path, {"ranges": n_impossible}),
            ),
            system_calls=nvtx.LongRanges(export, of_system=True)
            if export.has("calls/system")
            else None,
            payloads=lambda: read_payloads(export),
            has_payload_schema=export.has("ranges/payload_entries"),
            synchronization=lambda: read_synchronization(export),
            memory=lambda: read_memory(export),
            streams=work.read_streams,
            copies=lambda: read_copies(export, activities, work.group),
            hidden_gpus=target.read_hidden_gpus(export),
        )

    def _find_inspected(self, globs: Sequence[str]) -> _Inspected | None:
        """Return the ranges from an earlier inspection that used all of the given GLOBs, or None.

        The first such inspection is chosen. An inspection is not reused if a range was open at the
        end of the capture, because the range's end time depends on other tables.
        """
        for inspected in self._inspected:
            names, ranges, _ = inspected
            if set(globs) <= {*names.globs} and not ranges.cut.any():
                return inspected
        return None

    def _read_ranges(
        self, names: nvtx.NameFilter, last_ns: Callable[[], int]
    ) -> tuple[profile.Ranges, int]:
        """Read the ranges that match a name filter, or no ranges if the export has none.

        See :func:`bubbleviz.sources.nsys.ranges.read_ranges`.
        """
        if not names.globs or not self.export.has("ranges/named"):
            return make_no_ranges(), 0
        with time_step("read ranges") as rows:
            ranges, impossible = nvtx.read_ranges(self.export, names, last_ns)
            rows.count = len(ranges)
        return ranges, impossible

    def inspect(self, globs: Sequence[str]) -> profile.Contents:
        """Return a summary of the export's contents.

        In the summary, ``candidates`` contains the number of ranges for each name that matches a
        GLOB. ``ranges`` is the number of rows in the table ``NVTX_EVENTS``. The matching ranges are
        kept for a later :meth:`read`.

        Raises:
            ProfileError: The file is damaged.
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
            warnings=target.list_warnings(export),
        )


def _make_no_kernels_error(export: Export, notes: Sequence[Limitation]) -> NothingToAnalyzeError:
    """Return the error to raise if an export contains no kernels, or none with valid times.

    Args:
        export: The open export.
        notes: Limitations, some of which may report that kernels were left out.
    """
    left_out = describe_invalid_times(notes)
    if not left_out:
        return _make_missing_error(export, KERNEL)
    return NothingToAnalyzeError(
        f"{export.path}: {left_out}; profile again with: nsys profile -t cuda,nvtx"
    )


@contextmanager
def _open_threads(export: Export) -> Iterator[NsysFile]:
    """Start the threads that read an export, and stop them on exit."""
    pool = export.open_pool()
    try:
        yield NsysFile(export)
        record_file(export.describe_readers(), export.path)
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open an SQLite export, which is closed on exit.

    Args:
        path: Path to the file.
        jobs: Maximum number of reader threads.
        watch: Progress callback, called with the fraction of the file that has been read.

    Raises:
        ProfileError: The file is damaged, is not an nsys export, or is still being written.
    """
    with open_export(path, jobs, watch) as export, _open_threads(export) as file:
        yield file


@contextmanager
def open_directory(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open a columnar export (a directory of Parquet or Arrow tables), which is closed on exit.

    Args:
        path: Path to the directory.
        jobs: Maximum number of reader threads.
        watch: Progress callback, called with the fraction of the data that has been read.

    Raises:
        ProfileError: The directory is damaged or is not an nsys export, or DuckDB or pyarrow is
            missing.
    """
    noun = "an export of Parquet or Arrow tables"
    check_installed(path, noun, "duckdb", otherwise="export the report as SQLite")
    # Importing this module loads duckdb, an optional dependency, which takes 100 ms.
    from bubbleviz.sources.nsys.columnar_export import open_directory

    with open_directory(path, jobs, watch) as export, _open_threads(export) as file:
        yield file
