"""HTML: the interactive report, one file that needs no network and no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.renderers import Renderer
from bubbleviz.web_page import check

if TYPE_CHECKING:
    from bubbleviz.report import Report, View
    from bubbleviz.saved import SavedDocument


def render(report: Report, view: View) -> str:
    """Return the report as an HTML document; everything is in it, the view opens its part.

    Raises:
        OutputError: the charting library is not installed.
    """
    from bubbleviz.renderers.json import document
    from bubbleviz.timeline import timeline_of
    from bubbleviz.web_data import packed
    from bubbleviz.web_page import page

    data = packed(document(report), timeline_of(report), _shown(report, view), report.command)
    return page(data.document, data.columns, "bubbleviz report")


def page_of_saved(path: str, saved: SavedDocument) -> str:
    """Return a report that was saved as JSON as an HTML document.

    Raises:
        InputError: its timeline contradicts itself.
        OutputError: the charting library is not installed.
    """
    from bubbleviz.timeline import restored
    from bubbleviz.web_data import packed
    from bubbleviz.web_page import page

    data = packed(saved.document, restored(path, saved), None, "")
    return page(data.document, data.columns, "bubbleviz report")


def _shown(report: Report, view: View) -> int | None:
    """Return the iteration to begin with; None for the whole run."""
    if view.iterations:
        return view.iterations[0]
    typical = report.typical_iteration()
    return None if typical is None else typical.index


RENDERER = Renderer(
    name="html",
    summary="interactive report: one file for any browser, nothing else needed",
    render=render,
    order=20,
    check=check,
)
