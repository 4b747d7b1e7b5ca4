"""CSV: one row per operation, in order of (rank, start), or one row per idle interval and cause.

Behind the columns of operations that people read stand those by which the table can be analysed
again. Idle intervals are those in the windows of the primary ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import csv_text, inert
from bubbleviz.report.bubbles import further_columns, host_activity
from bubbleviz.report.labels import operation_labels
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return all operations as CSV, whatever the view."""
    del view
    return written(columns(report))


def render_bubbles(report: Report, view: View) -> str:
    """Return all idle intervals as CSV, whatever the view."""
    del view
    return written(bubble_columns(report))


def written(table: Mapping[str, Sequence[object]]) -> str:
    """Return columns as CSV."""
    return csv_text(tuple(table), zip(*table.values(), strict=True))


def columns(report: Report) -> dict[str, Sequence[object]]:
    """Return all columns of operations: those that people read, and those that measure again."""
    further = {
        name: _numbers(column, column != -1) if isinstance(column, np.ndarray) else column.listed()
        for name, column in further_columns(report).items()
    }
    return {**operation_columns(report), **further}


def operation_columns(report: Report) -> dict[str, Sequence[object]]:
    """Return the columns of operations that people read."""
    operations = report.operations
    labels = {int(phase): phase.label for phase in Phase}
    stages = _of_ranks(report, "stage")
    names = [inert(name) for name in operations.names]
    spanned = operations.has_span == 1
    return {
        "iteration": _iteration_names(report, operations.iteration),
        "rank": operations.rank.tolist(),
        "stage": [stages[rank] for rank in operations.rank.tolist()],
        "phase": [labels[phase] for phase in operations.phase.tolist()],
        "microbatch": _pairs(operations.microbatch, operations.second_microbatch),
        "chunk": _pairs(operations.chunk, operations.second_chunk),
        "start_ns": _numbers(operations.start_ns, spanned),
        "end_ns": _numbers(operations.end_ns, spanned),
        "host_start_ns": operations.host_start_ns.tolist(),
        "host_end_ns": operations.host_end_ns.tolist(),
        "kernels": operations.kernels.tolist(),
        "active_ns": operations.active_ns.tolist(),
        "name": [names[name] for name in operations.name_id.tolist()],
        "sequence": _numbers(operations.sequence, operations.sequence >= 0),
        "occurrence": operations.occurrence.tolist(),
    }


def bubble_columns(report: Report) -> dict[str, Sequence[object]]:
    """Return the columns of idle intervals."""
    bubbles, operations = report.bubbles, report.operations
    causes = {int(cause): cause.label for cause in Cause}
    stages, in_job = _of_ranks(report, "stage"), _of_ranks(report, "global_rank")
    rank = bubbles.rank.tolist()
    labels = operation_labels(report)
    peer = ["" if row < 0 else int(operations.rank[row]) for row in bubbles.peer_operation.tolist()]
    hosts = [
        host_activity(report, row) if cause == Cause.HOST else (None, None)
        for row, cause in enumerate(bubbles.cause.tolist())
    ]
    collectives = [inert(name) for name in bubbles.collectives]
    return {
        "ratio": [bubbles.ratio] * len(bubbles),
        "iteration": _iteration_names(report, bubbles.iteration),
        "rank": rank,
        "stage": [stages[index] for index in rank],
        "interval": bubbles.interval.tolist(),
        "start_ns": bubbles.start_ns.tolist(),
        "end_ns": bubbles.end_ns.tolist(),
        "idle_ns": (bubbles.end_ns - bubbles.start_ns).tolist(),
        "cause": [causes[cause] for cause in bubbles.cause.tolist()],
        "before": labels.at(bubbles.before).listed(),
        "after": labels.at(bubbles.after).listed(),
        "peer_rank": peer,
        "peer_stage": ["" if index == "" else stages[index] for index in peer],
        "peer_operation": labels.at(bubbles.peer_operation).listed(),
        "collective": CodedTexts(bubbles.collective, collectives).listed(),
        "host_call": [inert(call or "") for call, _ in hosts],
        "host_range": [inert(around or "") for _, around in hosts],
        "global_rank": [in_job[index] for index in rank],
        "peer_global_rank": ["" if index == "" else in_job[index] for index in peer],
    }


def _of_ranks(report: Report, name: str) -> dict[object, object]:
    """Return an attribute of each rank; empty where it is unknown."""
    told = ((rank.index, getattr(rank, name)) for rank in report.ranks)
    return {index: "" if value is None else value for index, value in told}


def _iteration_names(report: Report, iteration: Ints) -> list[object]:
    """Return iterations by name, as tables and ``--iteration`` have them; empty for none."""
    names = {i.index: inert(i.name) for i in report.iterations}
    return [names.get(index, "") for index in iteration.tolist()]


def _numbers(column: Ints, known: Bools) -> list[object]:
    """Return the numbers that are known; empty cells for the others."""
    values = zip(column.tolist(), known.tolist(), strict=True)
    return [value if is_known else "" for value, is_known in values]


def _pairs(first: Ints, second: Ints) -> list[object]:
    """Return ``7`` or, for an operation that names two things, ``7;3``."""
    return [
        "" if a < 0 else a if b < 0 else f"{a};{b}"
        for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]
