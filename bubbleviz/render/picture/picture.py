"""Draws the picture of a report: title, one row of operations per rank, time axis and legend.

The parts are drawn from top to bottom on a page of fixed width. The page is as tall as its content
unless the style specifies a height.
"""

from __future__ import annotations

from bubbleviz.model.limitations import HARMLESS, list_harmful_subjects
from bubbleviz.render.picture.axis import draw_axis
from bubbleviz.render.picture.heat_map import draw_heat_maps
from bubbleviz.render.picture.legend import draw_legend
from bubbleviz.render.picture.notes import explain_empty_picture, explain_marks
from bubbleviz.render.picture.page import Page, draw_page
from bubbleviz.render.picture.style import choose_style
from bubbleviz.render.picture.timeline import TimelinePainter
from bubbleviz.render.picture.title import draw_title
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.render.selection import Selection, select
from bubbleviz.report.captions import write_caption
from bubbleviz.report.published_paths import list_limitation_lines
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Maximum number of limitations listed if there is nothing to draw.
_MAX_LIMITATIONS = 5


def picture(report: Report, view: View, ids: str = "bv-") -> str:
    """Draw the part of a report that a view selects, and return it as an SVG document.

    Args:
        report: The report.
        view: The iterations and ranks to draw, and the style.
        ids: Prefix for SVG element ids. Pictures in the same HTML page need different prefixes.
    """
    return draw_picture(report, view, ids).svg()


def draw_picture(report: Report, view: View, ids: str = "bv-") -> Page:
    """Draw the part of a report that a view selects, and return the page.

    The title of the page is a caption of one sentence, and its description explains the picture.
    See :func:`picture` for the arguments.
    """
    selection = select(report, view, with_standouts=True)
    return draw_page(
        choose_style(view), lambda style: _draw_on_page(report, view, selection, Page(ids, style))
    )


def _draw_on_page(report: Report, view: View, selection: Selection | None, page: Page) -> Page:
    """Draw the picture of a selection on an empty page, and return the page.

    Below the picture, limitations that may affect times or ratios are listed without their reasons.
    If the selection is None, the page contains only the report's limitations and the reason why
    there is nothing to draw. Parts excluded by the style, such as the title or the notes, are not
    drawn.
    """
    if selection is None:
        page.title = explain_empty_picture(report, view)
        page.description = "An empty picture."
        page.heading(page.title)
        page.y += 6
        if page.style.notes:
            for line in list_limitation_lines(report, _MAX_LIMITATIONS, without=HARMLESS):
                page.paragraph(line, page.style.letters.note)
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
        notes = explain_marks(timeline)
        if notes and page.style.notes:
            page.paragraph(" ".join(notes), page.style.letters.note, lines=3)
        page.title, note = write_caption(
            report,
            selection.iterations,
            [row.rank for row in selection.rows],
            has_numbers=timeline.rows.has_numbers,
        )
        page.description = " ".join((note, *notes))
        if page.style.notes and (subjects := list_harmful_subjects(report.limitations)):
            page.paragraph(f"Limitations: {subjects}.", page.style.letters.note, lines=3)
    return page


def pdf(report: Report, view: View) -> bytes:
    """Draw the same picture as :func:`picture`, and return it as PDF bytes."""
    return as_pdf(picture(report, view))


def png(report: Report, view: View) -> bytes:
    """Draw the same picture as :func:`picture`, and return it as PNG bytes."""
    return as_png(picture(report, view))
