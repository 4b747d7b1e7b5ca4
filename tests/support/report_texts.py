"""Formats reports as text for tests that search it."""

from __future__ import annotations

from bubbleviz.render.text.report import list_sections
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def text_of(report: Report, width: int = 1000) -> str:
    """Return the complete text of a report, wrapped to the given width."""
    return render_plain_text(list_sections(report, View()), width=width)
