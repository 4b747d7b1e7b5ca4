"""The outputs of layouts, by the names of their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bubbleviz.analyses.layout.documents import as_csv, as_json
from bubbleviz.analyses.layout.report import LayoutReport
from bubbleviz.render.picture.typesetting import as_pdf, as_png


def _as_svg(report: LayoutReport) -> str:
    # drawsvg is loaded for pictures alone.
    from bubbleviz.analyses.layout.picture import draw_layouts

    return draw_layouts(report)


def _as_memory_plot(report: LayoutReport) -> str:
    from bubbleviz.render.picture.memory_plot import MemoryPlot, MemoryPoint, draw_memory_plot

    known = report.measured.memory
    points = tuple(
        MemoryPoint(row.schedule, max(row.peak_memory), row.bubble_ratio)
        for row in report.rows
        if known and row.peak_memory and row.bubble_ratio is not None
    )
    limit = report.question.limit
    plot = MemoryPlot(
        "Bubble ratio of schedules against memory, each with its best layout",
        points,
        report.measured.in_bytes,
        limit=None if limit is None else max(limit),
        reason="the memory of layers is unknown",
    )
    return draw_memory_plot(plot)


#: Endings of files of this analysis' own.
ENDINGS = {".memory.svg": "memory-plot"}
RENDERINGS: Mapping[str, Callable[[LayoutReport], str | bytes]] = {
    "json": as_json,
    "csv": as_csv,
    "svg": _as_svg,
    "memory-plot": _as_memory_plot,
    "pdf": lambda report: as_pdf(_as_svg(report)),
    "png": lambda report: as_png(_as_svg(report)),
}
