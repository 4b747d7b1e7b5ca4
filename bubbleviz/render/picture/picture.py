"""The picture: a title, one row per rank with its operations to scale, a time axis and a legend.

It is laid out from the top down on a page of fixed width, as high as its rows need.
"""

from __future__ import annotations

from bubbleviz.render.picture.axis import draw_axis
from bubbleviz.render.picture.heat_map import draw_heat_maps
from bubbleviz.render.picture.legend import draw_legend
from bubbleviz.render.picture.notes import notes_of, nothing_to_draw
from bubbleviz.render.picture.page import Page, draw_page
from bubbleviz.render.picture.style import style_of
from bubbleviz.render.picture.timeline import TimelinePainter
from bubbleviz.render.picture.title import draw_title
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.render.selection import Selection, select
from bubbleviz.report.captions import write_caption
from bubbleviz.report.published_paths import list_limitation_lines
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Maximum number of limitations below the picture.
_MAX_LIMITATIONS = 5


def picture(report: Report, view: View, ids: str = "bv-") -> str:
    """Draw the part of a report that a view selects as SVG. Element ids begin with ``ids``."""
    selection = select(report, view, with_standouts=True)
    page = draw_page(
        style_of(view), lambda style: _draw_on_page(report, view, selection, Page(ids, style))
    )
    return page.svg()


def _draw_on_page(report: Report, view: View, selection: Selection | None, page: Page) -> Page:
    """Draw the picture of a selection on an empty page, and return the page.

    If the selection is None, the page contains only the reason why there is nothing to draw. Parts
    that the style leaves out, such as the title or notes, are not drawn.
    """
    if selection is None:
        page.title = nothing_to_draw(report, view)
        page.description = "An empty picture."
        page.heading(page.title)
        page.y += 6
    else:
        if page.style.titled:
            draw_title(page, report, selection)
        timeline = TimelinePainter(page, report, view, selection)
        layout = timeline.layout()
        timeline.draw(layout)
        draw_axis(page, layout, layout.bottom)
        draw_legend(page, (timeline,))
        if view.heat_map:
            draw_heat_maps(page, report, selection, layout)
        notes = notes_of(timeline)
        if notes and page.style.notes:
            page.paragraph(" ".join(notes), page.style.letters.note, lines=3)
        page.title, note = write_caption(
            report,
            selection.iterations,
            len(selection.rows),
            has_numbers=timeline.rows.has_numbers,
        )
        page.description = " ".join((note, *notes))
    for line in list_limitation_lines(report, _MAX_LIMITATIONS) if page.style.notes else ():
        page.paragraph(line, page.style.letters.note)
    return page


def pdf(report: Report, view: View) -> bytes:
    """Return the picture of :func:`picture` as a PDF."""
    return as_pdf(picture(report, view))


def png(report: Report, view: View) -> bytes:
    """Return the picture of :func:`picture` as a PNG."""
    return as_png(picture(report, view))
