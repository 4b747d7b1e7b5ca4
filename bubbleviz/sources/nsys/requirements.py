"""Requirements: what an analysis needs of an nsys export, and what its absence means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from bubbleviz.errors import EXPORT_AGAIN, NothingToAnalyseError, SchemaError
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Ranges, TableCount
from bubbleviz.model.texts import counted
from bubbleviz.sources.nsys.export import GRAPH, KERNEL, NVTX, RUNTIME, Export
from bubbleviz.sources.nsys.ranges import event_types

#: The remedy where a table is absent or empty.
_RECORD_AGAIN = {
    KERNEL: "no CUDA kernels were recorded; profile again with: nsys profile -t cuda,nvtx "
    "(and --cuda-graph-trace=node where CUDA graphs are used)",
    RUNTIME: "no CUDA API calls were recorded, so kernels cannot be linked to ranges; "
    "profile again with: nsys profile -t cuda,nvtx",
    NVTX: "no NVTX ranges were recorded; profile again with: nsys profile -t cuda,nvtx, "
    "with ranges switched on in the training framework",
}
#: Words of warnings of nsys: plain ones, numbers of versions, CUPTI's error codes.
_PLAIN_WORD = re.compile(r"\(?(?:[A-Za-z'-]{1,16}|[0-9][0-9.]{0,7}|CUPTI_[A-Z_]{1,60})\)?[.,:?]?")
#: Longer texts are no warning of nsys about CUDA.
_LONGEST_WARNING = 300
#: The queries without which there is no analysis.
_NEEDED = ("gpu_work/kernels", "calls/all", "ranges/named")
#: What the tables that are counted hold.
_COUNTED = {
    "kernels": KERNEL,
    "CUDA API calls": RUNTIME,
    "NVTX rows": NVTX,
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUDA graphs traced as a whole": GRAPH,
}


def unrecorded(export: Export, table: str) -> NothingToAnalyseError:
    """Return the error of an export in which a table of kernels, calls or ranges is empty."""
    if table != NVTX and (reason := _traced_without_kernels(export)):
        return NothingToAnalyseError(f"{export.path}: {reason}")
    return NothingToAnalyseError(f"{export.path}: {_RECORD_AGAIN[table]}")


def _traced_without_kernels(export: Export) -> str:
    """Return why CUDA was traced and no kernel recorded; "" where it was not, or there are some."""
    if any(export.catalogue.count(table) for table in (KERNEL, GRAPH) if table in export.schema):
        return ""
    calls = export.catalogue.count(RUNTIME) if RUNTIME in export.schema else 0
    rows = export.rows("target/diagnostics") if export.has("target/diagnostics") else []
    warnings = list(dict.fromkeys(str(text) for (text,) in rows if _is_of_cuda(str(text))))[:3]
    if not calls and not warnings:
        return ""
    called = f", but {counted(calls, 'CUDA API call')}" if calls else ""
    reported = f" (nsys reported: {' '.join(warnings)})" if warnings else ""
    version = ", of a version that supports the driver" if "driver" in reported else ""
    return (
        f"no CUDA kernels were recorded{called}{reported}; profile a part of the run that launches "
        "some with: nsys profile -t cuda,nvtx (and --cuda-graph-trace=node where CUDA graphs are "
        f"used){version}"
    )


def _is_of_cuda(text: str) -> bool:
    """Tell whether a text is a warning about CUDA in nsys' own words.

    Others may repeat what the recorded program printed.
    """
    words = text.split() if len(text) <= _LONGEST_WARNING else []
    named = any(word.startswith(("CUDA", "CUPTI")) for word in words[:4])
    return named and all(_PLAIN_WORD.fullmatch(word) for word in words)


def check_recorded(export: Export) -> None:
    """Check that every table is there which an analysis needs, with its columns.

    Raises:
        NothingToAnalyseError: a table is absent.
        SchemaError: a table lacks a column.
    """
    for table in _RECORD_AGAIN:
        if table not in export.schema and not (table == KERNEL and GRAPH in export.schema):
            raise unrecorded(export, table)
    for name in _needed(export):
        export.require(name)


def _needed(export: Export) -> Iterator[str]:
    """Yield the queries that this export must answer.

    Where there are CUDA graphs traced as a whole, there need not be a table of kernels.
    """
    for name in _NEEDED:
        if name != "gpu_work/kernels" or KERNEL in export.schema or GRAPH not in export.schema:
            yield name


def check_ranges(export: Export) -> None:
    """Check that there are ranges, and that they can be read by name.

    Raises:
        NothingToAnalyseError: there is no range of any name.
        SchemaError: a table or a column that names ranges is missing.
    """
    export.require("ranges/any")
    if not export.rows("ranges/any", event_types(export)):
        raise unrecorded(export, NVTX)
    lacking = export.lacks("ranges/named")
    if lacking:
        raise SchemaError(
            f"{export.path}: the export lacks {', '.join(lacking)}, and no range is named "
            f"without; {EXPORT_AGAIN}"
        )


def range_limitations(export: Export, ranges: Ranges) -> tuple[Limitation, ...]:
    """Return the losses of ranges where a column is absent."""
    lacking = export.lacks("ranges/named")
    names = [lack for lack in lacking if not lack.endswith(".endGlobalTid")]
    notes = []
    if names:
        notes.append(
            Limitation(
                "names of ranges",
                f"{export.path} lacks {', '.join(names)}",
                kind=LimitationKind.RANGE_NAMES_LOST,
            )
        )
    if len(names) < len(lacking) and bool(ranges.start_end.any()):
        reason = f"{export.path} lacks {NVTX}.endGlobalTid, so their starting thread is taken"
        notes.append(Limitation("start/end ranges that another thread ended", reason))
    return tuple(notes)


def name_limitations(export: Export, kernel_names: Sequence[str]) -> tuple[Limitation, ...]:
    """Return the loss of names that are not in ``StringIds``."""
    if not any(name.startswith("<string ") for name in kernel_names):
        return ()
    reason = f"{export.path} has none for them in StringIds"
    return (
        Limitation(
            "names of kernels, and maybe of ranges", reason, kind=LimitationKind.RANGE_NAMES_LOST
        ),
    )


def table_counts(export: Export) -> tuple[TableCount, ...]:
    """Return the number of rows of the tables that an analysis reads."""
    return tuple(
        TableCount(what, table, export.catalogue.count(table) if table in export.schema else None)
        for what, table in _COUNTED.items()
    )


def missing_data(export: Export, tables: Sequence[TableCount]) -> tuple[tuple[str, ...], bool]:
    """Return what an export lacks, a sentence each, and whether it can be analysed all the same.

    Args:
        export: the open export.
        tables: their numbers of rows.
    """
    lacks = [lack for name in _NEEDED for lack in export.lacks(name)]
    if GRAPH in export.schema:
        lacks.extend(export.lacks("gpu_work/graphs"))
    rows = {table.table: table.rows or 0 for table in tables}
    graphs_readable = not any(lack.split(".")[0] == GRAPH for lack in lacks)
    traced = "" if rows[KERNEL] or rows[GRAPH] else _traced_without_kernels(export)
    losses = _unrecorded_tables(rows, traced, graphs_readable=graphs_readable)
    readable = all(map(export.has, _needed(export))) and not losses
    return (*losses, *_missing_columns(export, lacks)), readable


def _unrecorded_tables(
    rows: Mapping[str, int], traced: str, *, graphs_readable: bool
) -> tuple[str, ...]:
    """Return which recordings are missing.

    Args:
        rows: how many there are in each table.
        traced: why CUDA was traced and no kernel recorded; "" where it was not traced.
        graphs_readable: whether CUDA graphs count as work in place of kernels.
    """
    losses = []
    if not rows[KERNEL] and not (rows[GRAPH] and graphs_readable):
        losses.append(traced or "no CUDA kernels: profile with nsys profile -t cuda,nvtx")
        if rows[GRAPH]:
            losses.append("CUDA graphs were traced as a whole: add --cuda-graph-trace=node")
    if not rows[RUNTIME]:
        losses.append("no CUDA API calls: profile with nsys profile -t cuda,nvtx")
    if not rows[NVTX]:
        losses.append(
            "no NVTX ranges: profile with nsys profile -t cuda,nvtx and switch the "
            "framework's ranges on"
        )
    return tuple(losses)


def _missing_columns(export: Export, lacks: Sequence[str]) -> tuple[str, ...]:
    """Return which columns are missing of tables that the export has."""
    columns = [lack for lack in dict.fromkeys(lacks) if "." in lack]
    columns = [column for column in columns if column.split(".")[0] in export.schema]
    if not columns:
        return ()
    return (f"the export lacks {', '.join(columns)}, which analysis needs or misses",)
