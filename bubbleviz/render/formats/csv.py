"""Renders operations or idle intervals as CSV tables.

The table of operations has one row per operation, sorted by (rank, start). The table of idle
intervals has one row per interval and cause, and contains only idle time inside the primary ratio's
windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.arrow import mask_known
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.texts import format_csv, quote_formula
from bubbleviz.report.labels import format_operations
from bubbleviz.report.operation_columns import list_further_columns
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def render(report: Report, _: View) -> str:
    """Return all operations as CSV text. The view is ignored."""
    return write_csv(list_columns(report))


def render_bubbles(report: Report, _: View) -> str:
    """Return all idle intervals as CSV text. The view is ignored."""
    return write_csv(list_bubble_columns(report))


def write_csv(table: Mapping[str, Sequence[object]]) -> str:
    """Format equal-length columns, keyed by header, as CSV text."""
    return format_csv(tuple(table), zip(*table.values(), strict=True))


def list_columns(report: Report) -> dict[str, Sequence[object]]:
    """Return all columns of the operations table, keyed by header.

    The first columns are meant for human readers. The remaining columns allow ``analyze`` to read
    the table back. If an operation has two microbatches or two chunks, both are in one cell,
    separated by a semicolon.
    """
    operations, further = report.operations, list_further_columns(report)
    readable = operations.list_columns()
    cells = {name: _list_cells(name, column) for name, column in {**readable, **further}.items()}
    cells["iteration"] = _list_iteration_names(report, operations.iteration)
    cells["microbatch"] = _format_pairs(operations.microbatch, cells.pop("second_microbatch"))
    cells["chunk"] = _format_pairs(operations.chunk, cells.pop("second_chunk"))
    cells["name"] = _list_inert_names(operations.name_id, operations.names)
    first_columns = [name for name in readable if name in cells and name not in further]
    return {name: cells[name] for name in (*first_columns, *further)}


def list_bubble_columns(report: Report) -> dict[str, Sequence[object]]:
    """Return the columns of the idle-interval table, keyed by header.

    Columns for peer operations, collectives, host activities and global ranks come last. Host
    activities are listed only if the cause is ``HOST``.
    """
    bubbles, labels, names = report.bubbles, format_operations(report), report.operations.names
    cells = {name: _list_cells(name, column) for name, column in bubbles.list_columns().items()}
    cells["iteration"] = _list_iteration_names(report, bubbles.iteration)
    cells["before"] = labels.at(bubbles.before).listed()
    cells["after"] = labels.at(bubbles.after).listed()
    is_host = bubbles.cause == Cause.HOST
    # Move the ``peer_operation`` column to the end of the table.
    del cells["peer_operation"]
    last_columns = {
        "peer_operation": labels.at(bubbles.peer_operation).listed(),
        "collective": _list_inert_names(bubbles.collective, bubbles.collectives),
        "host_call": _list_inert_names(np.where(is_host, bubbles.host_call, NONE), names),
        "host_range": _list_inert_names(np.where(is_host, bubbles.host_range, NONE), names),
        "global_rank": cells.pop("global_rank"),
        "peer_global_rank": cells.pop("peer_global_rank"),
    }
    first_columns = {name: column for name, column in cells.items() if name not in last_columns}
    return first_columns | last_columns


def _list_cells(name: str, column: Ints | CodedTexts) -> Sequence[object]:
    """Return the cells of a column. Missing values become "".

    Args:
        name: Column name, which determines the values that mean "missing".
        column: The column.
    """
    if isinstance(column, CodedTexts):
        return column.listed()
    values = zip(column.tolist(), mask_known(name, column).tolist(), strict=True)
    return [value if is_known else "" for value, is_known in values]


def _list_inert_names(code: Ints, names: Sequence[str]) -> Sequence[object]:
    """Return the name of each code, or "" for code -1.

    Names are escaped so that spreadsheet programs do not evaluate them as formulas.
    """
    return CodedTexts(code, [quote_formula(name) for name in names]).listed()


def _list_iteration_names(report: Report, iteration: Ints) -> list[object]:
    """Return the name of each iteration in the form that the option ``--iteration`` accepts.

    The name is "" if no iteration has the index.

    Args:
        report: The report.
        iteration: Indices of iterations.
    """
    names = {i.index: quote_formula(i.name) for i in report.iterations}
    return [names.get(index, "") for index in iteration.tolist()]


def _format_pairs(first: Ints, second: Sequence[object]) -> list[object]:
    """Return one cell per operation: "7", or "7;3" if the operation has two numbers.

    Args:
        first: First number of each operation. A negative number yields the cell "".
        second: Second number of each operation, or "" if it has none.
    """
    return [
        "" if a < 0 else a if b == "" else f"{a};{b}"
        for a, b in zip(first.tolist(), second, strict=True)
    ]
