"""Bubbles: one row for each idle interval and cause, in the windows of the primary ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.model.texts import inert
from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

COLUMNS = (
    "ratio",
    "iteration",
    "rank",
    "stage",
    "interval",
    "start_ns",
    "end_ns",
    "idle_ns",
    "cause",
    "before",
    "after",
    "peer_rank",
    "peer_stage",
    "peer_operation",
    "collective",
    "host_call",
    "host_range",
)


def render(report: Report, view: View) -> str:
    """Return all idle intervals as CSV, whatever the view."""
    del view
    from bubbleviz.model.texts import csv_text

    return csv_text(COLUMNS, zip(*_columns(report), strict=True))


def _columns(report: Report) -> list[Sequence[object]]:
    from bubbleviz.explain.causes.cause import Cause
    from bubbleviz.model.coded_texts import CodedTexts
    from bubbleviz.render.formats.csv import iteration_names
    from bubbleviz.report.labels import operation_labels

    bubbles, operations = report.bubbles, report.operations
    label = {int(cause): cause.label for cause in Cause}
    stage = ["" if rank.stage is None else rank.stage for rank in report.ranks]
    rank = bubbles.rank.tolist()
    collectives = CodedTexts(bubbles.collective, [inert(name) for name in bubbles.collectives])
    labels = operation_labels(report)
    peer = ["" if row < 0 else int(operations.rank[row]) for row in bubbles.peer_operation.tolist()]
    hosts = [
        _host(report, row) if cause == Cause.HOST else ("", "")
        for row, cause in enumerate(bubbles.cause.tolist())
    ]
    return [
        [bubbles.ratio] * len(bubbles),
        iteration_names(report, bubbles.iteration),
        rank,
        [stage[index] for index in rank],
        bubbles.interval.tolist(),
        bubbles.start_ns.tolist(),
        bubbles.end_ns.tolist(),
        (bubbles.end_ns - bubbles.start_ns).tolist(),
        [label[cause] for cause in bubbles.cause.tolist()],
        labels.at(bubbles.before).listed(),
        labels.at(bubbles.after).listed(),
        peer,
        ["" if isinstance(index, str) else stage[index] for index in peer],
        labels.at(bubbles.peer_operation).listed(),
        collectives.listed(),
        [call for call, _ in hosts],
        [around for _, around in hosts],
    ]


def _host(report: Report, row: int) -> tuple[str, str]:
    from bubbleviz.report.standouts import host_activity

    call, around = host_activity(report, row)
    return inert(call or ""), inert(around or "")


RENDERER = Renderer(
    name="bubbles",
    summary="one row an idle interval, with its cause, as CSV",
    suffixes=(".bubbles.csv",),
    render=render,
    order=3,
)
