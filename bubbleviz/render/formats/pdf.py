"""PDF: the picture of ``--svg`` as vectors and text, for a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import DRAWN, Renderer
from bubbleviz.render.picture.typesetting import check

if TYPE_CHECKING:
    from bubbleviz.report.report import Report, View


def render(report: Report, view: View) -> bytes:
    """Return the part of the report that ``view`` names as a PDF document.

    Raises:
        OutputError: Typst is not installed.
    """
    from bubbleviz.render.picture.drawing import picture
    from bubbleviz.render.picture.typesetting import as_pdf

    return as_pdf(picture(report, view))


RENDERER = Renderer(
    name="pdf",
    summary="the same picture as PDF: vectors and text, for a paper",
    render=render,
    order=31,
    check=check,
    binary=True,
    draws=DRAWN,
)
