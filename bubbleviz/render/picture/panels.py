"""Panels: several reports one above the other, on one scale of time.

Each begins at its own first work, so that what lies below each other took equally long: runs that
are compared, or a plan above its measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.model.texts import counted, one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.picture.axis import draw_axis
from bubbleviz.render.picture.legend import draw_legend
from bubbleviz.render.picture.lettering import BOLD, fitted, text_width
from bubbleviz.render.picture.notes import notes_of, nothing_to_draw
from bubbleviz.render.picture.page import Page, duration
from bubbleviz.render.picture.ratios import iteration_ratio
from bubbleviz.render.picture.style import SCREEN, style_of
from bubbleviz.render.picture.timeline import TimelineContents, TimelinePainter
from bubbleviz.render.picture.title import headings
from bubbleviz.render.selection import Selection, select
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Between two panels, px.
_APART = 12.0


@frozen
class Panel:
    """One panel: its title, and what to draw of which report."""

    title: str
    report: Report
    view: View


def draw_panels(panels: Sequence[Panel], heading: str, note: str = "") -> str:
    """Return the SVG document of panels from top to bottom, with one axis of time below them.

    Args:
        panels: any number of them; one that has nothing to draw says why.
        heading: stands above them all.
        note: a sentence below the heading; empty for none.
    """
    page = Page(style=style_of(panels[0].view) if panels else SCREEN)
    page.title = one_line(heading, 200) if panels else "Nothing to draw: no run"
    if page.style.titled or not panels:
        page.heading(page.title)
        if note:
            page.y += 5
            page.paragraph(one_line(note, 400), page.style.letters.legend, lines=3)
        page.y += _APART
    timelines = [_timeline(page, panel) for panel in panels]
    drawn = [timeline for timeline in timelines if timeline is not None]
    longest = max(drawn, key=lambda timeline: timeline.selection.span_ns, default=None)
    page.description = f"{len(panels)} timelines on one scale of time, each from its own start" + (
        f"; the longest takes {duration(longest.selection.span_ns)}." if longest else "."
    )
    if longest is None:
        for panel in panels:
            _draw_title(page, panel.title, nothing_to_draw(panel.report, panel.view))
        return page.svg()
    _draw(page, panels, timelines, longest)
    return page.svg()


def _timeline(page: Page, panel: Panel) -> TimelinePainter | None:
    selection = select(panel.report, panel.view)
    if selection is None:
        return None
    return TimelinePainter(page, panel.report, panel.view, selection)


def _draw(
    page: Page,
    panels: Sequence[Panel],
    timelines: Sequence[TimelinePainter | None],
    longest: TimelinePainter,
) -> None:
    """Draw the panels, and below them the axis, the legend and the notes that they share."""
    drawn = [timeline for timeline in timelines if timeline is not None]
    rows = max(len(timeline.selection.ranks) for timeline in drawn)
    left = max(timeline.layout(rows=rows).left for timeline in drawn)
    contents: list[TimelineContents] = []
    notes: list[str] = []
    scale = longest.layout(left=left, rows=rows)
    for panel, timeline in zip(panels, timelines, strict=True):
        if timeline is None:
            _draw_title(page, panel.title, nothing_to_draw(panel.report, panel.view))
            continue
        _draw_title(page, panel.title, _beside_title(page, panel, timeline.selection))
        share = timeline.selection.span_ns / longest.selection.span_ns
        layout = timeline.layout(left=left, share=share, rows=rows)
        contents.append(timeline.draw(layout))
        page.y = layout.bottom + _APART
        some = notes_of(page, panel.report, timeline.selection, contents[-1])
        notes += [note for note in some if note not in notes]
    draw_axis(page, scale, page.y - _APART)
    draw_legend(page, contents)
    sentences = [*notes, *_limited(panels)]
    if sentences and page.style.notes:
        page.paragraph(" ".join(sentences), page.style.letters.note, lines=4)


def _beside_title(page: Page, panel: Panel, selection: Selection) -> str:
    """Return what a panel shows; its ratio alone where nothing else is told."""
    if page.style.titled:
        return " · ".join(filter(None, headings(panel.report, selection)))
    ratios = [iteration_ratio(panel.report, iteration) for iteration in selection.iterations]
    return ratios[0] if len(ratios) == 1 else ""


def _draw_title(page: Page, title: str, rest: str) -> None:
    """Write the title of a panel, and beside it what it shows."""
    letters = page.style.letters
    size, room = letters.panel, (page.right - page.left) * (0.6 if page.style.titled else 1.0)
    shown = fitted(one_line(title, 120), size * BOLD, room)
    page.y += size
    page.text(shown, page.left, page.y, size, font_weight="bold")
    x = page.left + text_width(shown, size, bold=True) + 12
    page.text(fitted(rest, letters.legend, page.right - x), x, page.y, letters.legend, ink="quiet")
    page.y += 5


def _limited(panels: Sequence[Panel]) -> list[str]:
    """Return a sentence on each panel whose report has limitations."""
    return [
        f"{one_line(panel.title, 60)}: {counted(count, 'limitation')}, listed in its own report."
        for panel in panels
        if (count := len(panel.report.limitations))
    ]
