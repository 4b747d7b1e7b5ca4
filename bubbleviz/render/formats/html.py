"""HTML: the interactive report, one file that needs no network and no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer

if TYPE_CHECKING:
    from bubbleviz.report.report import Report
    from bubbleviz.report.saved import SavedDocument
    from bubbleviz.report.view import View


def render(report: Report, view: View) -> str:
    """Return the report as an HTML document that opens at the iteration of the view.

    Raises:
        OutputError: the charting library is not installed.
    """
    from bubbleviz.render.json_document import document
    from bubbleviz.render.web.data import packed
    from bubbleviz.render.web.page import page
    from bubbleviz.report.labels import with_relative_paths
    from bubbleviz.report.rank_means import many_ranks, rank_means
    from bubbleviz.report.standouts import standouts
    from bubbleviz.report.timeline import timeline_of

    report = with_relative_paths(report)
    many = many_ranks(len(report.ranks))
    numbers = document(report, by_rank=not many, slowdown=not many)
    shown = view.iterations[0] if view.iterations else numbers["typical_iteration"]
    means = rank_means(report) if many else None
    found = () if means is None else standouts(report, means)
    packed_document, columns, blocks = packed(
        numbers, timeline_of(report), shown, report.command, means, found, view.ranks
    )
    return page(packed_document, columns, "bubbleviz report", blocks)


def page_of_saved(path: str, saved: SavedDocument) -> str:
    """Return a report that was saved as JSON as an HTML document.

    Raises:
        InputError: its timeline contradicts itself.
        OutputError: the charting library is not installed.
    """
    from bubbleviz.render.web.data import packed
    from bubbleviz.render.web.page import page
    from bubbleviz.report.timeline import restored

    shown = saved.document["typical_iteration"]
    packed_document, columns, _ = packed(saved.document, restored(path, saved), shown, "")
    return page(packed_document, columns, "bubbleviz report")


def _check() -> None:
    from bubbleviz.render.web.page import check

    check()


RENDERER = Renderer(
    name="html",
    summary="interactive report: one file for any browser",
    suffixes=(".html", ".htm"),
    render=render,
    order=20,
    check=_check,
)
