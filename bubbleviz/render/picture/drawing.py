"""The picture: a title, one row per rank with its operations to scale, a time axis and a legend.

Laid out from the top down on a page of fixed width, as high as its rows need.
"""

from __future__ import annotations

from bubbleviz.render.picture.axis import draw_axis
from bubbleviz.render.picture.legend import draw_legend
from bubbleviz.render.picture.notes import draw_limitations, notes_of, nothing_to_draw
from bubbleviz.render.picture.overlays.heat_map import draw_heat_maps
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.style import style_of
from bubbleviz.render.picture.timeline import TimelinePainter
from bubbleviz.render.picture.title import draw_title
from bubbleviz.render.selection import Selection, select
from bubbleviz.report.caption import figure_caption
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def picture(report: Report, view: View, ids: str = "bv-") -> str:
    """Return the part of ``report`` that ``view`` names as SVG; its ids begin with ``ids``."""
    selection = select(report, view, with_standouts=True)
    page = Page(ids, style_of(view))
    if selection is None:
        _draw_nothing(page, report, view)
    else:
        _draw(page, report, view, selection)
    if page.style.notes:
        draw_limitations(page, report)
    return page.svg()


def _draw_nothing(page: Page, report: Report, view: View) -> None:
    page.title = nothing_to_draw(report, view)
    page.description = "An empty picture."
    page.heading(page.title)
    page.y += 6


def _draw(page: Page, report: Report, view: View, selection: Selection) -> None:
    if page.style.titled:
        draw_title(page, report, selection)
    timeline = TimelinePainter(page, report, view, selection)
    layout = timeline.layout()
    contents = timeline.draw(layout)
    draw_axis(page, layout, layout.bottom)
    draw_legend(page, (contents,))
    if view.heat_map:
        draw_heat_maps(page, report, selection, layout)
    notes = notes_of(page, report, selection, contents)
    if notes and page.style.notes:
        page.paragraph(" ".join(notes), page.style.letters.note, lines=3)
    caption = figure_caption(report, selection.iterations, len(selection.rows))
    page.title, page.description = caption.sentence, " ".join((caption.note, *notes))
