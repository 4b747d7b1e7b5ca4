"""JSON: the machine-readable report, schema ``bubbleviz.report/1``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubbleviz.render.formats import File
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the whole report as JSON, whatever the view."""
    from bubbleviz.render.json_document import document, written

    del view
    return written(document(report))


def parts(report: Report) -> Iterator[File]:
    """Yield the files of a folder."""
    from bubbleviz.render.json_document import files_of

    return files_of(report)


RENDERER = Renderer(
    "json", "report for programs (bubbleviz.report/1)", render, (".json",), order=2, parts=parts
)
