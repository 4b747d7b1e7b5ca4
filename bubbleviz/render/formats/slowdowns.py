"""Slowdowns as a picture: ranks by stage and replica, and iterations one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the SVG document, whatever the view; without slowdowns it gives the reason."""
    from bubbleviz.render.picture.slowdowns import draw_slowdowns

    del view
    return draw_slowdowns(report)


RENDERER = Renderer(
    name="slowdowns",
    summary="slowdown of ranks and over iterations, as SVG",
    suffixes=(".slowdowns.svg",),
    render=render,
    order=1,
)
