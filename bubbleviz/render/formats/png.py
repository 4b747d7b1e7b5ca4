"""PNG: the picture of ``--svg`` as pixels, twice as many as the SVG has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import DRAWN, Renderer
from bubbleviz.render.picture.typesetting import check

if TYPE_CHECKING:
    from bubbleviz.report.report import Report, View


def render(report: Report, view: View) -> bytes:
    """Return the part of the report that ``view`` names as a PNG document.

    Raises:
        OutputError: Typst is not installed.
    """
    from bubbleviz.render.picture.drawing import picture
    from bubbleviz.render.picture.typesetting import as_png

    return as_png(picture(report, view))


RENDERER = Renderer(
    name="png",
    summary="the same picture as PNG: pixels, twice as many as the SVG has",
    render=render,
    order=32,
    check=check,
    binary=True,
    draws=DRAWN,
)
