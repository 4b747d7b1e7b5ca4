"""Costs of chunks as a picture: times of forwards against their tokens, a panel a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the SVG document, whatever the view; without tokens it gives the reason."""
    from bubbleviz.render.picture.chunk_costs import draw_chunk_costs

    del view
    return draw_chunk_costs(report)


RENDERER = Renderer(
    name="chunk-costs",
    summary="times of chunks against their tokens, as SVG",
    suffixes=(".chunks.svg",),
    render=render,
    order=1,
)
