"""Text: the tables of the terminal, without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the tables as plain text."""
    from bubbleviz.render.text.report import sections
    from bubbleviz.render.text.terminal import plain_text

    return plain_text(sections(report, view))


RENDERER = Renderer(
    name="text", summary="the table as plain text", suffixes=(".txt",), render=render, order=4
)
