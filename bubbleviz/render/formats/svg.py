"""Pictures: operations and bubbles of each GPU to scale, and what else is drawn of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bubbleviz.render.formats import DRAWN, Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the part of the report that ``view`` names as an SVG document."""
    from bubbleviz.render.picture.legend import picture

    return picture(report, view)


def _panels(report: Report, view: View) -> str:
    from bubbleviz.render.picture.theory import draw_theory

    return draw_theory(report, view)


def _slowdowns(report: Report, view: View) -> str:
    """Return the picture of slowdowns, whatever the view; without any it gives the reason."""
    from bubbleviz.render.picture.slowdowns import draw_slowdowns

    del view
    return draw_slowdowns(report)


def _memory_plot(report: Report, view: View) -> str:
    """Return bubble ratios of schedules against memory; without schedules it gives the reason."""
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


def _chunk_costs(report: Report, view: View) -> str:
    """Return times of forwards against tokens, a panel a stage; without tokens the reason."""
    from bubbleviz.render.picture.slowdowns import draw_chunk_costs

    del view
    return draw_chunk_costs(report)


def _typeset(name: Literal["pdf", "png"], summary: str, order: int) -> Renderer[bytes]:
    """Return the renderer of the picture in a format that Typst writes."""

    def check() -> None:
        from bubbleviz.render.picture.typesetting import check as check_typst

        check_typst()

    def converted(report: Report, view: View) -> bytes:
        from bubbleviz.render.picture.typesetting import CONVERSIONS

        return CONVERSIONS[name](render(report, view))

    suffixes = (f".{name}",)
    return Renderer(name, summary, converted, suffixes, order, check, binary=True, draws=DRAWN)


RENDERER = (
    Renderer(
        "svg", "picture: operations and bubbles of each GPU", render, (".svg",), 30, draws=DRAWN
    ),
    _typeset("pdf", "the same picture as PDF, for a paper", 31),
    _typeset("png", "the same picture as PNG, in pixels", 32),
    Renderer(
        "panels",
        "schedule in theory above the measurement, as SVG",
        _panels,
        (".panels.svg",),
        order=1,
        compares=True,
        draws=DRAWN - {"heat-map"},
    ),
    Renderer(
        "slowdowns",
        "slowdown of ranks and over iterations, as SVG",
        _slowdowns,
        (".slowdowns.svg",),
        order=1,
    ),
    Renderer(
        "memory-plot",
        "schedules: bubble against memory, as SVG",
        _memory_plot,
        (".memory.svg",),
        order=1,
    ),
    Renderer(
        "chunk-costs",
        "times of chunks against their tokens, as SVG",
        _chunk_costs,
        (".chunks.svg",),
        order=1,
    ),
)
