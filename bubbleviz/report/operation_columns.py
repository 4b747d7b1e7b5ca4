"""Columns of the exported operation table, which contains all data needed for further analysis.

Each row is an operation. Other intervals on a rank are written to the row of the last operation
that began before them, in cells such as ``12..15 20..31``::

    rank          ├─ F0 ─┤  ▒▒   ▓▓    ├─ F1 ─┤
                            │    └ only a collective ran ┐
                            └ compute outside operations ┴ cells of the row of F0
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.arrow import Columns, build_table, convert_column
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.grouping import sort_rows
from bubbleviz.model.intervals import find_last_before
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.operations import Operations, RankIntervals, look_up_by_rank
from bubbleviz.model.texts import quote_formula
from bubbleviz.report.report import Report

#: A column of strings, or a column of integers in which -1 is a missing value.
OperationColumn: TypeAlias = "Ints | CodedTexts"
#: Maximum number of decimal digits of a number that always fits in 64 bits.
_DIGITS = 18


def list_further_columns(report: Report) -> Mapping[str, OperationColumn]:
    """Return the columns of ``--csv`` that follow the basic columns, in order.

    The columns ``tokens`` and ``prefix`` exist only if any operation has a known number of tokens.
    """
    operations = report.operations
    tokens = {}
    if (operations.tokens >= 0).any():
        tokens = {"tokens": operations.tokens, "prefix": operations.prefix}
    unpaired = LimitationKind.ITERATIONS_UNPAIRED in {note.kind for note in report.limitations}
    return tokens | {
        "virtual_stage": operations.virtual_stage,
        "busy_ns": operations.busy_ns,
        "launched_ns": operations.launched_ns,
        "pipeline": look_up_by_rank([rank.pipeline for rank in report.ranks], operations.rank),
        "host": CodedTexts(operations.rank.copy(), [quote_formula(r.host) for r in report.ranks]),
        "global_rank": look_up_by_rank(
            [rank.global_rank for rank in report.ranks], operations.rank
        ),
        "received_ns": operations.received_ns,
        "receive_start_ns": operations.receive_start_ns,
        "receive_launched_ns": operations.receive_launched_ns,
        "paired": np.full(len(operations), 0 if unpaired else NONE, np.int64),
        "clock": _list_clocks(report),
        "clock_uncertainty_ns": look_up_by_rank(
            [report.clock_uncertainty_ns(rank) for rank in report.ranks], operations.rank
        ),
        "cut": np.where(operations.cut > 0, operations.cut, NONE),
        "waits": _format_times(len(operations), *_find_waits(report)),
        "unattributed": _make_time_cells(operations, report.unattributed),
        "exposed": _make_time_cells(operations, report.exposed),
        "profiler": _make_time_cells(operations, report.overheads),
        "pauses": _make_time_cells(operations, report.pauses),
        "collectives": make_collective_cells(
            report,
            _find_last_started(operations, report.collectives.rank, report.collectives.start_ns),
        ),
    }


def _list_clocks(report: Report) -> CodedTexts:
    """Return a column that names, for each operation, the host whose clock recorded its times.

    All cells are empty if all ranks share one clock. If a host has several clocks, its name is
    followed by the clock number.
    """
    clocks = [report.clock(rank.profile) for rank in report.ranks]
    if len(set(clocks)) == 1:
        return CodedTexts(np.full(len(report.operations), NONE, np.int64), ())
    number = {clock: place for place, clock in enumerate(dict.fromkeys(clocks))}
    places = np.array([number[clock] for clock in clocks], np.int64)
    return CodedTexts(
        places[report.operations.rank], _make_unique_names([host for host, _, _ in number])
    )


def _find_waits(report: Report) -> tuple[Ints, Ints, Ints]:
    """Return the intervals within operation spans during which the GPU was not busy.

    Returns:
        row: Row of the operation that each interval belongs to, in ascending order.
        start_ns: Start of each interval.
        end_ns: End of each interval.
    """
    operations = report.operations
    is_waiting = operations.busy_ns != operations.end_ns - operations.start_ns
    rows = np.flatnonzero((operations.has_span == 1) & is_waiting)
    index_of_row = np.full(len(operations), NONE, np.int64)
    index_of_row[rows] = indices = np.arange(len(rows))
    busy = report.busy.take(index_of_row[report.busy.operation] != NONE)
    busy_index = index_of_row[busy.operation]
    packing = intervals.Packing.of(operations.start_ns[rows], operations.end_ns[rows])
    spans = intervals.union(
        packing.place(indices, operations.start_ns[rows]),
        packing.place(indices, operations.end_ns[rows]),
    )
    busy_times = intervals.union(
        packing.place(busy_index, busy.start_ns),
        packing.place(busy_index, busy.end_ns),
    )
    index, start_ns, end_ns = packing.unpack(intervals.difference(spans, busy_times))
    return rows[index], start_ns, end_ns


def _make_time_cells(operations: Operations, times: RankIntervals) -> CodedTexts:
    """Return a column that contains, for each operation, the intervals that follow its start.

    An interval belongs to the last operation that began before it on the same rank. If no operation
    began before it, the interval belongs to the rank's first operation. Intervals on ranks without
    operations are left out.

    Returns:
        A column with one cell per operation.
    """
    row = _find_last_started(operations, times.rank, times.start_ns)
    has_operation = row != NONE
    return _format_times(
        len(operations),
        row[has_operation],
        times.start_ns[has_operation],
        times.end_ns[has_operation],
    )


def _find_last_started(operations: Operations, rank: Ints, time_ns: Ints) -> Ints:
    """For each time, return the row of the last operation that had begun on its rank by then.

    An operation that begins exactly at the time is included. If none had begun, the result is the
    rank's first operation, or -1 if the rank has no operations. An operation without a span begins
    when its range on the host begins.
    """
    began_ns = np.where(operations.has_span == 1, operations.start_ns, operations.host_start_ns)
    row = find_last_before(operations.rank, began_ns, rank, time_ns, or_at=True)
    first = np.searchsorted(operations.rank, rank)
    has_operations = first < np.searchsorted(operations.rank, rank, side="right")
    return np.where(has_operations, np.maximum(row, first), NONE)


def _format_times(rows: int, row: Ints, start_ns: Ints, end_ns: Ints) -> CodedTexts:
    """Return a column of cells with intervals, such as ``12..15 20..31``.

    Args:
        rows: Number of rows of the column.
        row: Row that each interval belongs to, in ascending order.
        start_ns: Start of each interval.
        end_ns: End of each interval.
    """
    words = [f"{low}..{high}" for low, high in zip(start_ns.tolist(), end_ns.tolist(), strict=True)]
    return _join_in_cells(rows, row, words, "{}", " ")


def _join_in_cells(
    rows: int, row: Ints, entries: Sequence[str], form: str, between: str
) -> CodedTexts:
    """Return a column in which each cell contains the joined entries of its row.

    Args:
        rows: Number of rows of the column.
        row: Row that each entry belongs to, in ascending order.
        entries: Text of each entry.
        form: Format string of a cell.
        between: Separator between the entries in a cell.
    """
    first = np.flatnonzero(np.diff(row, prepend=NONE))
    bounds = [*first.tolist(), len(row)]
    code = scatter(rows, row[first], np.arange(len(first)))
    texts = [form.format(between.join(entries[low:high])) for low, high in pairwise(bounds)]
    return CodedTexts(code, texts)


def build_operation_table(report: Report) -> Columns:
    """Return all operations as an Arrow table with the same columns as ``--csv``.

    A fused operation has two microbatches and two chunks, each in a separate column.
    """
    columns = report.operations.list_columns()
    del columns["global_rank"]  # list_further_columns adds this column where it belongs in --csv
    # The column contains the names of iterations, or numbers if all names are numbers.
    names = [iteration.name for iteration in report.iterations]
    columns["iteration"] = CodedTexts(report.operations.iteration, names)
    if all(name.isdecimal() and len(name) <= _DIGITS for name in names):
        numbers = np.array([*map(int, names), NONE], np.int64)
        columns["iteration"] = numbers[report.operations.iteration]
    columns |= list_further_columns(report)
    return build_table({name: convert_column(name, column) for name, column in columns.items()})


def make_collective_cells(report: Report, last_started: Ints) -> CodedTexts:
    """Return a column that contains each operation's collectives as a JSON list.

    The entries are described in :mod:`bubbleviz.model.collectives`.

    Args:
        report: The run's report.
        last_started: Row of the operation that began last before each collective, or -1 if there is
            none.
    """
    table = report.collectives
    is_owned = table.operation != NONE
    row = np.where(is_owned, table.operation, last_started)
    order = np.flatnonzero(row != NONE)
    order = order[sort_rows(row[order])]
    table, row, is_owned = table.take(order), row[order], is_owned[order]
    iterations = [*(iteration.name for iteration in report.iterations), ""]
    kinds = [*table.kinds, ""]
    groups = [*_make_unique_names([group.label for group in table.groups]), ""]
    sizes = np.array([*(group.size for group in table.groups), 0], np.int64)
    columns = (
        [iterations[number] for number in table.iteration.tolist()],
        [kinds[number] for number in table.kind.tolist()],
        [groups[number] for number in table.group.tolist()],
        *(
            column.tolist()
            for column in (
                *(sizes[table.group], table.order, table.sequence, table.meeting),
                *(is_owned.astype(np.int64), table.start_ns, table.end_ns),
            )
        ),
    )
    entries = [json.dumps(entry, separators=(",", ":")) for entry in zip(*columns, strict=True)]
    return _join_in_cells(len(report.operations), row, entries, "[{}]", ",")


def _make_unique_names(labels: Sequence[str]) -> list[str]:
    """Make labels distinct: empty or repeated labels get their index, for example ``tp (3)``."""
    flat = [quote_formula(label) for label in labels]
    return [
        name if name and flat.count(name) == 1 else f"{name} ({number})".strip()
        for number, name in enumerate(flat)
    ]
