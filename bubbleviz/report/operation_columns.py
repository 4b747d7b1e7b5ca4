"""Columns of tables of operations, with which a table can be analysed again.

A row is an operation. Times in which something else ran are written in the row of the operation
that began last on the same rank, in cells such as ``12..15 20..31``::

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

#: Whole numbers, with -1 for no value, or texts.
OperationColumn: TypeAlias = "Ints | CodedTexts"
#: Maximum number of digits that always fit into 64 bits.
_DIGITS = 18


def further_columns(report: Report) -> Mapping[str, OperationColumn]:
    """Return the columns that follow those of every table of operations, in their order.

    Columns of tokens exist only if the tokens of any operation are known.
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
        "clock": _clocks(report),
        "clock_uncertainty_ns": look_up_by_rank(
            [report.clock_uncertainty_ns(rank) for rank in report.ranks], operations.rank
        ),
        "cut": np.where(operations.cut > 0, operations.cut, NONE),
        "waits": _cells(len(operations), *_waits(report)),
        "unattributed": _beside(operations, report.unattributed),
        "exposed": _beside(operations, report.exposed),
        "profiler": _beside(operations, report.overheads),
        "pauses": _beside(operations, report.pauses),
        "collectives": collective_cells(
            report, _began_last(operations, report.collectives.rank, report.collectives.start_ns)
        ),
    }


def _clocks(report: Report) -> CodedTexts:
    """Return the host whose clock times each operation; empty cells if all share one clock."""
    clocks = [report.clock(rank.profile) for rank in report.ranks]
    if len(set(clocks)) == 1:
        return CodedTexts(np.full(len(report.operations), NONE, np.int64), ())
    number = {clock: place for place, clock in enumerate(dict.fromkeys(clocks))}
    places = np.array([number[clock] for clock in clocks], np.int64)
    return CodedTexts(places[report.operations.rank], _names([host for host, _, _ in number]))


def _waits(report: Report) -> tuple[Ints, Ints, Ints]:
    """Return the times in which operations wait: the row of the operation, start and end."""
    operations, busy = report.operations, report.busy
    length_ns = operations.end_ns - operations.start_ns
    rows = np.flatnonzero((operations.has_span == 1) & (operations.busy_ns != length_ns))
    number = np.full(len(operations), NONE, np.int64)
    number[rows] = every = np.arange(len(rows))
    own = busy.take(number[busy.operation] != NONE)
    owner = number[own.operation]
    packing = intervals.Packing.of(operations.start_ns[rows], operations.end_ns[rows])
    spans = intervals.union(
        packing.place(every, operations.start_ns[rows]),
        packing.place(every, operations.end_ns[rows]),
    )
    at_work = intervals.union(packing.place(owner, own.start_ns), packing.place(owner, own.end_ns))
    at, start_ns, end_ns = packing.unpack(intervals.difference(spans, at_work))
    return rows[at], start_ns, end_ns


def _beside(operations: Operations, times: RankIntervals) -> CodedTexts:
    """Return cells with times of ranks, in the rows of the operations that began last."""
    row = _began_last(operations, times.rank, times.start_ns)
    held = row != NONE
    return _cells(len(operations), row[held], times.start_ns[held], times.end_ns[held])


def _began_last(operations: Operations, of_rank: Ints, at_ns: Ints) -> Ints:
    """Return the operation of a rank that began last before each time.

    This is the first operation of the rank if none began before, or -1 if the rank has none.
    """
    began_ns = np.where(operations.has_span == 1, operations.start_ns, operations.host_start_ns)
    row = find_last_before(operations.rank, began_ns, of_rank, at_ns, or_at=True)
    first = np.searchsorted(operations.rank, of_rank)
    held = first < np.searchsorted(operations.rank, of_rank, side="right")
    return np.where(held, np.maximum(row, first), NONE)


def _cells(rows: int, row: Ints, start_ns: Ints, end_ns: Ints) -> CodedTexts:
    """Return a column of cells with times, which are sorted by row."""
    words = [f"{low}..{high}" for low, high in zip(start_ns.tolist(), end_ns.tolist(), strict=True)]
    return _in_cells(rows, row, words, "{}", " ")


def _in_cells(rows: int, row: Ints, entries: Sequence[str], form: str, between: str) -> CodedTexts:
    """Return a column of cells with entries, which are sorted by row.

    Args:
        rows: Number of rows of the column.
        row: Row of each entry, in ascending order.
        entries: Text of each entry.
        form: Format string of a cell.
        between: Separator of the entries of a cell.
    """
    first = np.flatnonzero(np.diff(row, prepend=NONE))
    bounds = [*first.tolist(), len(row)]
    code = scatter(rows, row[first], np.arange(len(first)))
    texts = [form.format(between.join(entries[low:high])) for low, high in pairwise(bounds)]
    return CodedTexts(code, texts)


def written_operations(report: Report) -> Columns:
    """Return all operations as an Arrow table with the columns of ``--csv``.

    The two microbatches or chunks of a fused operation are in two columns.
    """
    columns = report.operations.list_columns()
    del columns["global_rank"]  # further_columns has it, at the place where --csv has it
    # Names of iterations, as numbers if all names are numbers.
    names = [iteration.name for iteration in report.iterations]
    columns["iteration"] = CodedTexts(report.operations.iteration, names)
    if all(name.isdecimal() and len(name) <= _DIGITS for name in names):
        numbers = np.array([*map(int, names), NONE], np.int64)
        columns["iteration"] = numbers[report.operations.iteration]
    columns |= further_columns(report)
    return build_table({name: convert_column(name, column) for name, column in columns.items()})


def collective_cells(report: Report, beside: Ints) -> CodedTexts:
    """Return a cell with collectives for each operation; see :mod:`bubbleviz.model.collectives`.

    Args:
        report: Report of the run.
        beside: Row of the operation that began last before each collective, or -1 if there is
            none.
    """
    table = report.collectives
    owned = table.operation != NONE
    row = np.where(owned, table.operation, beside)
    order = np.flatnonzero(row != NONE)
    order = order[sort_rows(row[order])]
    table, row, owned = table.take(order), row[order], owned[order]
    iterations = [*(iteration.name for iteration in report.iterations), ""]
    kinds = [*table.kinds, ""]
    groups = [*_names([group.label for group in table.groups]), ""]
    sizes = np.array([*(group.size for group in table.groups), 0], np.int64)
    columns = (
        [iterations[number] for number in table.iteration.tolist()],
        [kinds[number] for number in table.kind.tolist()],
        [groups[number] for number in table.group.tolist()],
        *(
            column.tolist()
            for column in (
                *(sizes[table.group], table.order, table.sequence, table.meeting),
                *(owned.astype(np.int64), table.start_ns, table.end_ns),
            )
        ),
    )
    entries = [json.dumps(entry, separators=(",", ":")) for entry in zip(*columns, strict=True)]
    return _in_cells(len(report.operations), row, entries, "[{}]", ",")


def _names(labels: Sequence[str]) -> list[str]:
    """Return distinct labels: labels that occur twice, or are empty, get a number."""
    flat = [quote_formula(label) for label in labels]
    return [
        name if name and flat.count(name) == 1 else f"{name} ({number})".strip()
        for number, name in enumerate(flat)
    ]
