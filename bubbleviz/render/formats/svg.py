"""A picture: one row per GPU, its operations to scale, and the bubbles between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import DRAWN, Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the part of the report that ``view`` names as an SVG document."""
    from bubbleviz.render.picture.legend import picture

    return picture(report, view)


RENDERER = Renderer(
    name="svg",
    summary="picture: operations and bubbles of each GPU",
    suffixes=(".svg",),
    render=render,
    order=30,
    draws=DRAWN,
)
