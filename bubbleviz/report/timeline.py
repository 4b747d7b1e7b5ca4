"""The timeline: columns from which interactive pictures are drawn, with all times on one clock.

HTML reports and the JSON of small reports contain the timeline. ``bubbleviz view`` draws its
pictures from the timeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.count.rank_iterations import compute_rank_ratios, get_account_column, list_indices
from bubbleviz.count.ratios import list_ratios
from bubbleviz.errors import InputError
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.phase_times import compute_multiples_of_median
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.grouping import find_distinct, sort_rows
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.report.report import Report

if TYPE_CHECKING:
    from bubbleviz.report.summary import RunSummary

#: The columns of each table, in order.
_COLUMNS = {
    "operations": "rank iteration phase microbatch second_microbatch chunk second_chunk "
    "virtual_stage kernels start_ns length_ns active_ns thousandths name",
    "compute": "operation start_ns length_ns",
    "communication": "operation start_ns length_ns",
    "unattributed": "rank start_ns length_ns",
    "bubbles": "rank iteration start_ns length_ns cause after peer_operation call around",
    "windows": "ratio iteration rank start_ns length_ns",
    "critical": "operation",
}

#: Maximum value in the column ``thousandths``. Browsers store all columns except times in 32 bits.
_MAX_THOUSANDTHS = 2**31 - 1
#: Maximum number of characters of a name.
_MAX_NAME = 300
#: Maximum number of operations in a report whose JSON contains a timeline.
MAX_SAVED_OPERATIONS = 20_000


@dataclass(frozen=True)
class Timeline:
    """Tables of a timeline. Times are in ns since ``base_ns``, and -1 means a missing value.

    Attributes:
        base_ns: Earliest time in the tables, on the clock of the report.
        names: Names of ranges and calls. The columns ``name``, ``call`` and ``around`` contain
            indices into ``names``.
        tables: Columns, keyed by table and column. The tables are ``operations``, their busy
            intervals in ``compute`` and ``communication``, and ``unattributed``, ``bubbles``,
            ``windows`` (of all ratios) and ``critical``. The column ``thousandths`` contains the
            time of each operation in thousandths of the median for its kind, or 0 if unknown.
    """

    base_ns: int
    names: tuple[str, ...]
    tables: Mapping[str, Mapping[str, Ints]]


def build_timeline(report: Report) -> Timeline:
    """Return the timeline of a report, with one row per operation.

    The start and length of an operation without a span are -1. Only names that are used in the
    tables are included. The table ``critical`` is empty if the critical path is unknown.
    """
    operations, bubbles, unattributed = report.operations, report.bubbles, report.unattributed
    spans, base_ns = operations.has_span == 1, _find_base_ns(report)
    name_columns = (operations.name_id, bubbles.host_call, bubbles.host_range)
    used_names = find_distinct(*name_columns)
    used_names = used_names[used_names >= 0]
    name, call, range_around = (
        np.where(column >= 0, np.searchsorted(used_names, column), NONE).astype(np.int64)
        for column in name_columns
    )
    thousandths = np.minimum(np.round(1000 * measure_times_median(report)), _MAX_THOUSANDTHS)
    tables = {
        "operations": {
            **vars(operations),
            "start_ns": np.where(spans, operations.start_ns - base_ns, NONE),
            "length_ns": np.where(spans, operations.end_ns - operations.start_ns, NONE),
            "thousandths": thousandths.astype(np.int64),
            "name": name,
        },
        "compute": _list_busy_pieces(report, base_ns, COMPUTE),
        "communication": _list_busy_pieces(report, base_ns, COMMUNICATION),
        "unattributed": {
            "rank": unattributed.rank,
            "start_ns": unattributed.start_ns - base_ns,
            "length_ns": unattributed.end_ns - unattributed.start_ns,
        },
        "bubbles": {
            **vars(bubbles),
            "start_ns": bubbles.start_ns - base_ns,
            "length_ns": bubbles.end_ns - bubbles.start_ns,
            "call": call,
            "around": range_around,
        },
        "windows": _list_windows(report, base_ns),
        "critical": {"operation": _list_critical_rows(report)},
    }
    return Timeline(
        base_ns,
        tuple(operations.names[row][:_MAX_NAME] for row in used_names.tolist()),
        {t: {c: tables[t][c] for c in columns.split()} for t, columns in _COLUMNS.items()},
    )


def _find_base_ns(report: Report) -> int:
    """Return the earliest start of any span, unattributed compute or bubble, or 0 if none."""
    operations = report.operations
    span_starts_ns = operations.start_ns[operations.has_span == 1]
    columns_ns = (span_starts_ns, report.unattributed.start_ns, report.bubbles.start_ns)
    return min((int(start_ns.min()) for start_ns in columns_ns if len(start_ns)), default=0)


def _list_critical_rows(report: Report) -> Ints:
    """Return the rows of the operations on the critical path, or nothing if the path is unknown."""
    path = report.explanation.path
    return np.zeros(0, np.int64) if path is None else path.operations


def measure_times_median(report: Report) -> Floats:
    """Return each operation's time divided by the median for its kind, shape (operations,).

    The result is 0 if the median is unknown or 0. For example, the median is unknown for operations
    in iterations that are not averaged.
    """
    return compute_multiples_of_median(
        report.operations,
        np.array([NONE if rank.stage is None else rank.stage for rank in report.ranks], np.int64),
        np.array([iteration.averaged for iteration in report.iterations], bool),
        report.explanation.phase_times.kinds,
    )


def _list_busy_pieces(
    report: Report, base_ns: int, phases: tuple[Phase, ...]
) -> Mapping[str, Ints]:
    """Return the busy intervals of operations of the given phases, sorted by (rank, start).

    An operation without busy intervals contributes its span. The columns are ``operation``,
    ``start_ns`` (relative to ``base_ns``) and ``length_ns``.
    """
    operations, busy = report.operations, report.busy
    has_phase = mask_phases(operations.phase, phases)
    is_selected = has_phase[busy.operation]
    has_no_interval = has_phase & (operations.has_span == 1)
    has_no_interval[busy.operation] = False
    rows = np.flatnonzero(has_no_interval)
    operation = np.concatenate((busy.operation[is_selected], rows))
    start_ns = np.concatenate((busy.start_ns[is_selected], operations.start_ns[rows]))
    end_ns = np.concatenate((busy.end_ns[is_selected], operations.end_ns[rows]))
    order = sort_rows(operations.rank[operation], start_ns, operation)
    operation, start_ns, end_ns = operation[order], start_ns[order], end_ns[order]
    return {"operation": operation, "start_ns": start_ns - base_ns, "length_ns": end_ns - start_ns}


def _list_windows(report: Report, base_ns: int) -> Mapping[str, Ints]:
    """Return the windows of all ratios for each iteration and rank.

    A window is left out if the ratio is unknown for the iteration or for the rank.
    """
    tables = [np.zeros((5, 0), np.int64)]
    for ratio_index, ratio in enumerate(list_ratios()):
        for iteration in report.iterations:
            if ratio.name in iteration.ratios and iteration.ratios[ratio.name].value is not None:
                ranks = iteration.ranks
                rank = np.array(list_indices(ranks), np.int64)
                start_ns = get_account_column(ranks, ratio.name, "start_ns") - base_ns
                window_ns = get_account_column(ranks, ratio.name, "window_ns")
                is_counted = np.array(
                    [value is not None for value in compute_rank_ratios(ranks, ratio.name)]
                )
                constants = (np.full(len(rank), ratio_index), np.full(len(rank), iteration.index))
                tables.append(np.stack((*constants, rank, start_ns, window_ns))[:, is_counted])
    return dict(zip(_COLUMNS["windows"].split(), np.concatenate(tables, axis=1), strict=True))


#: Table whose rows a column refers to, keyed by column.
#: ``ranks`` and ``iterations`` are tables of the report.
_TABLE_OF_COLUMN = {
    "rank": "ranks",
    "iteration": "iterations",
    "operation": "operations",
    "after": "operations",
    "peer_operation": "operations",
    "name": "names",
    "call": "names",
    "around": "names",
    "ratio": "ratios",
}
#: Other columns in which -1 stands for a missing value.
_OPTIONAL_COLUMNS = frozenset(
    ("microbatch", "second_microbatch", "chunk", "second_chunk", "virtual_stage", "cause")
)
#: Number of distinct codes in each column that contains codes.
_N_CODES = {"phase": len(Phase), "cause": len(Cause)}


def save_column(table: str, name: str, column: Ints) -> list[int | None]:
    """Return a timeline column for a saved report, with None instead of -1.

    Columns of times are returned unchanged, because -1 is a valid time. The only exceptions are
    operation times, where -1 means that the operation has no span.

    Args:
        table: Name of the table.
        name: Name of the column.
        column: The column.
    """
    is_time_of_operation = table == "operations" and name in ("start_ns", "length_ns")
    if not (name in _TABLE_OF_COLUMN or name in _OPTIONAL_COLUMNS or is_time_of_operation):
        times: list[int | None] = column.tolist()
        return times
    values = column.astype(object)
    values[column == NONE] = None
    numbers: list[int | None] = values.tolist()
    return numbers


def _read_column(saved: Sequence[int | None]) -> Ints:
    """Return a saved timeline column as an array, with -1 instead of None."""
    values = np.array(saved, object)
    is_none = values == np.array(None, object)
    return np.where(is_none, NONE, values).astype(np.int64)


def read_timeline(path: str, summary: RunSummary) -> Timeline:
    """Return the timeline of a saved report. If the report has no timeline, all tables are empty.

    Args:
        path: Path of the report.
        summary: The report.

    Raises:
        InputError: A column is missing, the columns of a table differ in length, or an index or
            code is out of range.
    """
    if summary.timeline is None:
        empty = np.zeros(0, np.int64)
        empty_tables = {t: dict.fromkeys(columns.split(), empty) for t, columns in _COLUMNS.items()}
        return Timeline(0, (), empty_tables)
    saved = summary.timeline
    rows = {
        "ranks": len(summary.ranks),
        "iterations": len(summary.iterations),
        "names": len(saved.names),
        "ratios": len(list_ratios()),
        "operations": len(saved.tables.get("operations", {}).get("rank", ())),
    }
    tables: dict[str, dict[str, Ints]] = {}
    for table, columns in _COLUMNS.items():
        names, saved_columns = columns.split(), saved.tables.get(table, {})
        lengths = {len(saved_columns[name]) for name in names if name in saved_columns}
        if set(names) - set(saved_columns) or len(lengths) > 1:
            raise _make_timeline_error(path, f"lacks columns of {table}")
        tables[table] = {name: _read_column(saved_columns[name]) for name in names}
        invalid_column = _find_invalid_column(tables[table], rows)
        if invalid_column is not None:
            raise _make_timeline_error(
                path, f"refers from {invalid_column} of {table} to a row that does not exist"
            )
    return Timeline(saved.base_ns, saved.names, tables)


def _find_invalid_column(
    columns: Mapping[str, Ints], n_rows_of_table: Mapping[str, int]
) -> str | None:
    """Return the name of the first column that has an index or code out of range, or None.

    Args:
        columns: Columns of a table of the timeline, keyed by name.
        n_rows_of_table: Number of rows in each table that a column can refer to, keyed by table.
    """
    for name, column in columns.items():
        table = _TABLE_OF_COLUMN.get(name)
        limit = _N_CODES.get(name) if table is None else n_rows_of_table[table]
        minimum = 0 if name == "phase" else NONE
        if limit is not None and not ((column >= minimum) & (column < limit)).all():
            return name
    return None


def _make_timeline_error(path: str, problem: str) -> InputError:
    """Return the error for a timeline with missing columns or invalid references."""
    return InputError(
        f"{path}: its timeline {problem}; write the report again with bubbleviz analyze "
        "-o report.json"
    )
