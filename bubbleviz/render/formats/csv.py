"""CSV: one row an operation, in order of (rank, start).

Behind the columns that people read stand those by which the table can be analysed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.model.columns import Ints
    from bubbleviz.report.operation_columns import OperationColumn
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

COLUMNS = (
    "iteration",
    "rank",
    "stage",
    "phase",
    "microbatch",
    "chunk",
    "start_ns",
    "end_ns",
    "host_start_ns",
    "host_end_ns",
    "kernels",
    "active_ns",
    "name",
    "sequence",
    "occurrence",
)


def render(report: Report, view: View) -> str:
    """Return all operations as CSV, whatever the view."""
    del view
    from bubbleviz.model.texts import csv_text
    from bubbleviz.report.operation_columns import further_columns

    further = further_columns(report)
    columns = [*_columns(report), *map(_listed, further.values())]
    return csv_text((*COLUMNS, *further), zip(*columns, strict=True))


def _columns(report: Report) -> list[list[object]]:
    from bubbleviz.model.phases import Phase
    from bubbleviz.model.texts import inert

    operations = report.operations
    labels = {int(phase): phase.label for phase in Phase}
    stages = {rank.index: "" if rank.stage is None else rank.stage for rank in report.ranks}
    names = [inert(name) for name in operations.names]
    spanned = operations.has_span == 1
    return [
        iteration_names(report, operations.iteration),
        operations.rank.tolist(),
        [stages[rank] for rank in operations.rank.tolist()],
        [labels[phase] for phase in operations.phase.tolist()],
        _pairs(operations.microbatch, operations.second_microbatch),
        _pairs(operations.chunk, operations.second_chunk),
        _where(operations.start_ns, spanned.tolist()),
        _where(operations.end_ns, spanned.tolist()),
        operations.host_start_ns.tolist(),
        operations.host_end_ns.tolist(),
        operations.kernels.tolist(),
        operations.active_ns.tolist(),
        [names[name] for name in operations.name_id.tolist()],
        _numbers(operations.sequence),
        operations.occurrence.tolist(),
    ]


def iteration_names(report: Report, iteration: Ints) -> list[object]:
    """Return the iterations of a column by name, as tables and ``--iteration`` have them.

    Args:
        report: the report.
        iteration: indices of its iterations; -1 for none.
    """
    from bubbleviz.model.texts import inert

    names = {i.index: inert(i.name) for i in report.iterations}
    return [names.get(index, "") for index in iteration.tolist()]


def _listed(column: OperationColumn) -> list[object]:
    """Return the cells of a further column."""
    import numpy as np

    if isinstance(column, np.ndarray):
        return ["" if value == -1 else value for value in column.tolist()]
    return list(column.listed())


def _numbers(column: Ints) -> list[object]:
    return ["" if value < 0 else value for value in column.tolist()]


def _where(column: Ints, known: list[bool]) -> list[object]:
    return [
        value if is_known else "" for value, is_known in zip(column.tolist(), known, strict=True)
    ]


def _pairs(first: Ints, second: Ints) -> list[object]:
    """Return ``7`` or, for an operation that names two things, ``7;3``."""
    return [
        "" if a < 0 else a if b < 0 else f"{a};{b}"
        for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]


RENDERER = Renderer(
    name="csv", summary="one row an operation", suffixes=(".csv",), render=render, order=3
)
