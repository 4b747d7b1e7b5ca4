"""Bubble ratio against memory over all schedules, as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the SVG document, whatever the view; without other schedules it gives the reason."""
    from bubbleviz.render.picture.memory_plot import MemoryPlot, MemoryPoint, draw_memory_plot

    del view
    others = report.alternatives
    rows = [] if others is None else [row for row in others.rows if row.name != "no-delay"]
    in_bytes = any(row.peak_bytes is not None for row in rows)
    ran = report.schedule.name if report.schedule is not None else None
    points = []
    for row in rows:
        memory = row.peak_bytes if in_bytes else row.peak_activations
        if memory is not None and row.bubble_ratio is not None:
            called = "as measured" if row.name == "measured" else row.name
            name = f"{called} (ran)" if row.name == ran else called
            points.append(MemoryPoint(name, memory, row.bubble_ratio, bool(row.fits)))
    reason = "other schedules were not simulated; give --what-if"
    plot = MemoryPlot(
        "Bubble ratio of schedules against memory",
        tuple(points),
        in_bytes,
        limit=None if others is None else others.limit_bytes,
        reason=reason if others is None else others.reason,
    )
    return draw_memory_plot(plot)


RENDERER = Renderer(
    name="memory-plot",
    summary="schedules: bubble against memory, as SVG",
    suffixes=(".memory.svg",),
    render=render,
    order=1,
)
