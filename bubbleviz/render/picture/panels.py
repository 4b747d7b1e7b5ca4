"""Panels: several reports one above the other, on one scale of time.

Each begins at its own first work, so that what lies below each other took equally long: runs that
are compared, or the schedule in theory, ideal and at the measured times, above the measurement, as
in Figure 6 of the Zero Bubble paper (arXiv 2401.10241).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.picture import page as pages
from bubbleviz.render.picture.axis import draw_axis
from bubbleviz.render.picture.legend import draw_legend
from bubbleviz.render.picture.notes import notes_of, nothing_to_draw
from bubbleviz.render.picture.timeline import TimelinePainter
from bubbleviz.render.picture.title import headings, iteration_ratio
from bubbleviz.render.rows import Selection, select
from bubbleviz.report.ideal_run import report_of
from bubbleviz.report.labels import MARK
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from bubbleviz.schedules.ideal import Ideal

#: Between two panels, px.
_APART = 12.0
#: Makespans that differ by less, as a share, are drawn once.
_ALIKE = 0.002
#: Ratios of an iteration by itself, the one to show first.
_OF_ONE = ("schedule", "stage")

#: The title of a panel, and what to draw of which report.
Panel: TypeAlias = "tuple[str, Report, View]"


def draw_panels(panels: Sequence[Panel], heading: str, note: str = "") -> str:
    """Return the SVG document of panels from top to bottom, with one axis of time below them.

    Args:
        panels: any number of them; one that has nothing to draw says why.
        heading: stands above them all.
        note: a sentence below the heading; empty for none.
    """
    style = pages.style_of(panels[0][2]) if panels else pages.SCREEN
    return pages.page_of_height(
        style, lambda own: _drawn(panels, heading, note, pages.Page(style=own))
    ).svg()


def _drawn(panels: Sequence[Panel], heading: str, note: str, page: pages.Page) -> pages.Page:
    """Return a page with panels on it."""
    page.title = one_line(heading, 200) if panels else "Nothing to draw: no run"
    if page.style.titled or not panels:
        page.heading(page.title)
        if note:
            page.y += 5
            page.paragraph(one_line(note, 400), page.style.letters.legend, lines=3)
        page.y += _APART
    timelines = [
        None
        if (selection := select(report, view)) is None
        else TimelinePainter(page, report, view, selection)
        for _, report, view in panels
    ]
    drawn = [timeline for timeline in timelines if timeline is not None]
    longest = max(drawn, key=lambda timeline: timeline.selection.span_ns, default=None)
    page.description = f"{len(panels)} timelines on one scale of time, each from its own start" + (
        f"; the longest takes {pages.duration(longest.selection.span_ns)}." if longest else "."
    )
    rows = max((len(timeline.selection.rows) for timeline in drawn), default=0)
    left = max((timeline.layout(rows=rows).left for timeline in drawn), default=0.0)
    scale = longest.layout(left=left, rows=rows) if longest else None
    notes: list[str] = []
    for (title, report, view), timeline in zip(panels, timelines, strict=True):
        if timeline is None or longest is None:
            _draw_title(page, title, nothing_to_draw(report, view))
            continue
        selection = timeline.selection
        _draw_title(page, title, _beside_title(page, report, selection))
        share = selection.span_ns / longest.selection.span_ns
        layout = timeline.layout(left=left, share=share, rows=rows)
        timeline.draw(layout)
        page.y = layout.bottom + _APART
        # What is to be done is of one panel; other notes say how all are to be read.
        own = one_line(title, 60)
        told = (
            note.replace(MARK, f"{MARK} {own}:", 1) if note.startswith(MARK) else note
            for note in notes_of(timeline)
        )
        notes += [note for note in told if note not in notes]
    if scale is None:
        return page
    # What they share.
    draw_axis(page, scale, page.y - _APART)
    draw_legend(page, drawn)
    for title, report, _ in panels:
        if count := len(report.limitations):
            limited = counted(count, "limitation")
            notes.append(f"{one_line(title, 60)}: {limited}, listed in its own report.")
    if notes and page.style.notes:
        page.paragraph(" ".join(notes), page.style.letters.note, lines=4)
    return page


def _beside_title(page: pages.Page, report: Report, selection: Selection) -> str:
    """Return what a panel shows; its ratio alone where nothing else is told."""
    if page.style.titled:
        return " · ".join(filter(None, headings(report, selection)))
    ratios = [iteration_ratio(report, iteration) for iteration in selection.iterations]
    return ratios[0] if len(ratios) == 1 else ""


def _draw_title(page: pages.Page, title: str, rest: str) -> None:
    """Write the title of a panel, and beside it what it shows."""
    letters = page.style.letters
    shown = pages.fitted(one_line(title, 120), letters.panel * pages.BOLD, page.right - page.left)
    page.y += letters.panel
    page.text(shown, page.left, page.y, letters.panel, font_weight="bold")
    page.y += 3
    page.paragraph(rest, letters.legend, lines=1)
    page.y += 5


# In theory: one ratio for all panels, of a single iteration, for a plan has no other.


def theory(report: Report, view: View) -> str:
    """Return the SVG document of a report below its schedule in theory.

    Without times of stages it is the measurement alone.
    """
    others = report.theory
    same = None if others is None else others.same
    if others is None or (same is None and others.ideal is None):
        why = others.reason if others is not None and others.reason else "no schedule recognised"
        why = f"Without a schedule in theory above it: {why}."
        return draw_panels([("measured", report, view)], "As measured", why)
    measured, view = _of_one_iteration(report, view)
    above: list[Panel] = []
    for title, result in _theories(others):
        alone = report_of(result)
        # What is slow is told of what was measured: here a slow rank looks like a stage.
        unadvised = replace(alone.explanation, slowdown_source=None)
        simulated = replace(alone, headline=measured.headline, explanation=unadvised)
        own = View(style=view.style, width_mm=view.width_mm, causes=view.causes)
        above.append((title, simulated, own))
    heading, note = "Measured, below an ideal 1f1b of these times", "No schedule recognised."
    if same is not None:
        heading, note = f"{same.plan.name}: in theory and as measured", ""
    return draw_panels([*above, ("measured", measured, view)], heading, note)


def _theories(others: WhatIf) -> Iterator[tuple[str, Ideal]]:
    """Yield what is drawn above the measurement, with its title."""
    same, ideal, best = others.same, others.ideal, others.best
    # Where stages are equal and transfers free, the ideal is no other picture.
    if ideal is not None and (
        same is None or abs(ideal.makespan_ms - same.makespan_ms) > _ALIKE * same.makespan_ms
    ):
        yield f"{ideal.plan.name}, ideal: equal stages, free transfers", ideal
    if same is not None:
        yield f"{same.plan.name} at the measured times", same
    if best is not None:
        limit_bytes = others.limit_bytes
        memory = "as much memory" if limit_bytes is None else memory_text(limit_bytes)
        yield f"{best.plan.name} at the measured times: the best in {memory}", best


def of_typical(report: Report, view: View) -> View:
    """Return a view of the typical iteration if none is chosen: others are held against it."""
    typical = report.typical_iteration()
    own = () if typical is None else (typical.index,)
    return replace(view, iterations=view.iterations or own)


def _of_one_iteration(report: Report, view: View) -> tuple[Report, View]:
    """Return the report with a primary ratio that a plan has, too, and a view of one iteration."""
    shown = report.typical_iteration()
    if shown is None:
        return report, view
    view = of_typical(report, view)
    ratios = {name: shown.ratios[name].value for name in _OF_ONE if name in shown.ratios}
    known = [name for name, value in ratios.items() if value is not None]
    if not known or report.headline in known:
        return report, view
    reason = "A plan has one iteration, and so does this ratio."
    measured = replace(report, headline=known[0], headline_reason=reason)
    return measured, view
