"""CSV: one row per operation, in order of (rank, start), or one row per idle interval and cause.

Behind the columns of operations that people read stand those by which the table can be analysed
again. Idle intervals are those in the windows of the primary ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.arrow import mask_known
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.texts import format_csv, quote_formula
from bubbleviz.report.labels import operation_labels
from bubbleviz.report.operation_columns import further_columns
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def render(report: Report, _: View) -> str:
    """Return all operations as CSV, whatever the view."""
    return written(columns(report))


def render_bubbles(report: Report, _: View) -> str:
    """Return all idle intervals as CSV, whatever the view."""
    return written(bubble_columns(report))


def written(table: Mapping[str, Sequence[object]]) -> str:
    """Return columns as CSV."""
    return format_csv(tuple(table), zip(*table.values(), strict=True))


def columns(report: Report) -> dict[str, Sequence[object]]:
    """Return all columns of operations: those that people read, and those that measure again."""
    operations, further = report.operations, further_columns(report)
    own = operations.list_columns()
    cells = {name: _cells(name, column) for name, column in {**own, **further}.items()}
    cells["iteration"] = _iteration_names(report, operations.iteration)
    cells["microbatch"] = _pairs(operations.microbatch, cells.pop("second_microbatch"))
    cells["chunk"] = _pairs(operations.chunk, cells.pop("second_chunk"))
    cells["name"] = _inert(operations.name_id, operations.names)
    read = [name for name in own if name in cells and name not in further]
    return {name: cells[name] for name in (*read, *further)}


def bubble_columns(report: Report) -> dict[str, Sequence[object]]:
    """Return the columns of idle intervals."""
    bubbles, labels, names = report.bubbles, operation_labels(report), report.operations.names
    cells = {name: _cells(name, column) for name, column in bubbles.list_columns().items()}
    cells["iteration"] = _iteration_names(report, bubbles.iteration)
    cells["before"] = labels.at(bubbles.before).listed()
    cells["after"] = labels.at(bubbles.after).listed()
    of_host = bubbles.cause == Cause.HOST
    # What the peer did stands behind who it is.
    del cells["peer_operation"]
    behind = {
        "peer_operation": labels.at(bubbles.peer_operation).listed(),
        "collective": _inert(bubbles.collective, bubbles.collectives),
        "host_call": _inert(np.where(of_host, bubbles.host_call, NONE), names),
        "host_range": _inert(np.where(of_host, bubbles.host_range, NONE), names),
        "global_rank": cells.pop("global_rank"),
        "peer_global_rank": cells.pop("peer_global_rank"),
    }
    return {name: own for name, own in cells.items() if name not in behind} | behind


def _cells(name: str, column: Ints | CodedTexts) -> Sequence[object]:
    """Return the cells of a column; empty ones for none."""
    if isinstance(column, CodedTexts):
        return column.listed()
    values = zip(column.tolist(), mask_known(name, column).tolist(), strict=True)
    return [value if is_known else "" for value, is_known in values]


def _inert(code: Ints, names: Sequence[str]) -> Sequence[object]:
    return CodedTexts(code, [quote_formula(name) for name in names]).listed()


def _iteration_names(report: Report, iteration: Ints) -> list[object]:
    """Return iterations by name, as tables and ``--iteration`` have them; empty for none."""
    names = {i.index: quote_formula(i.name) for i in report.iterations}
    return [names.get(index, "") for index in iteration.tolist()]


def _pairs(first: Ints, second: Sequence[object]) -> list[object]:
    """Return ``7`` or, for an operation that names two things, ``7;3``."""
    return [
        "" if a < 0 else a if b == "" else f"{a};{b}"
        for a, b in zip(first.tolist(), second, strict=True)
    ]
