"""What a report prints, for tests that look for words in it."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from bubbleviz.render.text.report import sections
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def text_of(report: Report, width: int = 1000) -> str:
    """Return all that is printed of a report, in lines of so many characters."""
    text = StringIO()
    console = Console(file=text, width=width)
    for section in sections(report, View()):
        console.print(section)
    return text.getvalue()
