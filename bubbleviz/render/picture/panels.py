"""Draws the timelines of several reports as panels, one below the other, on the same time scale.

Each panel begins at the start of its iterations, and equal widths mean equal times. The panels are
the runs of a comparison, simulated schedules, or a measured run below simulations of its schedule,
as in Figure 6 of the Zero Bubble paper (arXiv 2401.10241). If there are several panels, their
titles start with the letters (a), (b) and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import TypeAlias

from bubbleviz.explain.what_if import WhatIf
from bubbleviz.model.limitations import list_harmful_subjects
from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.texts import to_one_line
from bubbleviz.render.picture.axis import draw_axis
from bubbleviz.render.picture.legend import draw_legend
from bubbleviz.render.picture.lettering import BOLD, text_width, truncate_text
from bubbleviz.render.picture.notes import explain_empty_picture, explain_marks
from bubbleviz.render.picture.numbers import duration
from bubbleviz.render.picture.page import Page, draw_page
from bubbleviz.render.picture.style import SCREEN, choose_style
from bubbleviz.render.picture.timeline import TimelinePainter
from bubbleviz.render.picture.title import format_iteration_ratio, write_headings
from bubbleviz.render.selection import select
from bubbleviz.report.ideal_run import make_report
from bubbleviz.report.labels import MARK
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from bubbleviz.schedules.ideal import Ideal

#: Gap between two panels, in px.
_GAP = 12.0
#: Makespans are treated as equal if their relative difference is at most this value.
_SAME_MAKESPAN_TOLERANCE = 0.002
#: Names of the ratios that are defined for a single iteration, in order of preference.
_RATIOS_OF_ONE_ITERATION = ("schedule", "stage")

#: (panel title, report, view that selects the part of the report to draw).
Panel: TypeAlias = "tuple[str, Report, View]"


def draw_panels(panels: Sequence[Panel], heading: str, note: str = "") -> str:
    """Draw panels from top to bottom with a shared time axis below, and return the SVG document.

    Args:
        panels: The panels, with titles that have no letters. If a panel has nothing to draw, it
            says why. The first panel determines the style.
        heading: Heading above all panels.
        note: Sentence below the heading, or "" for none.
    """
    return draw_panel_page(panels, heading, note).svg()


def draw_panel_page(panels: Sequence[Panel], heading: str, note: str = "") -> Page:
    """Draw panels on a new page, and return the page; see :func:`draw_panels`.

    The title of the page is a caption that names all panels, and its description explains the
    picture.
    """
    style = choose_style(panels[0][2]) if panels else SCREEN
    lettered = _add_letters(panels)
    return draw_page(style, lambda sized: _draw_on_page(lettered, heading, note, Page(style=sized)))


def _add_letters(panels: Sequence[Panel]) -> list[Panel]:
    """Return panels whose titles start with a letter in parentheses, unless there is only one."""
    if len(panels) == 1:
        return list(panels)
    return [
        (f"({_make_letter(index)}) {title}", report, view)
        for index, (title, report, view) in enumerate(panels)
    ]


def _make_letter(index: int) -> str:
    """Return the letter of a panel: a to z, then aa, ab and so on, as in a spreadsheet."""
    before, last = divmod(index, len(ascii_lowercase))
    return (_make_letter(before - 1) if before else "") + ascii_lowercase[last]


def _draw_on_page(panels: Sequence[Panel], heading: str, note: str, page: Page) -> Page:
    """Draw panels, their time axis, legend and notes on an empty page, and return the page.

    All plots have the same left edge and the same time scale. The panel that spans the most time is
    as wide as the page allows. All rows have the same height, which depends on the largest number
    of rows in a panel.
    """
    _draw_heading(page, heading, note, is_empty=not panels)
    timelines = [_start_timeline(page, report, view) for _, report, view in panels]
    drawn = [timeline for timeline in timelines if timeline is not None]
    longest = max(drawn, key=lambda timeline: timeline.selection.span_ns, default=None)
    if longest is None:
        for title, report, view in panels:
            _draw_title(page, title, explain_empty_picture(report, view))
        return page
    rows = max(len(timeline.selection.rows) for timeline in drawn)
    left = max(timeline.layout(rows=rows).left for timeline in drawn)
    scale = longest.layout(left=left, rows=rows)
    for (title, report, view), timeline in zip(panels, timelines, strict=True):
        if timeline is None:
            _draw_title(page, title, explain_empty_picture(report, view))
            continue
        _draw_title(page, title, _describe_timeline(timeline))
        fraction = timeline.selection.span_ns / longest.selection.span_ns
        layout = timeline.layout(left=left, fraction=fraction, rows=rows)
        timeline.draw(layout)
        page.y = layout.bottom + _GAP
    draw_axis(page, scale, page.y - _GAP)
    draw_legend(page, drawn)
    notes = _list_notes(panels, timelines)
    _draw_notes(page, notes)
    page.title = _write_caption(panels, heading)
    page.description = " ".join((*_describe_panels(drawn, longest), *notes))
    return page


def _write_caption(panels: Sequence[Panel], heading: str) -> str:
    """Return a sentence that consists of the heading and the titles of all panels."""
    caption = to_one_line(heading, 200)
    if len(panels) > 1:
        caption += ": " + "; ".join(to_one_line(title, 120) for title, _, _ in panels)
    return f"{caption}."


def _describe_panels(
    timelines: Sequence[TimelinePainter], longest: TimelinePainter
) -> Iterator[str]:
    """Yield sentences about the time scale and the boxes of all panels.

    Args:
        timelines: The timelines, after they have been drawn.
        longest: The timeline that spans the most time.
    """
    length = duration(longest.selection.span_ns)
    if len(timelines) > 1:
        yield f"Each timeline begins at its own start, on the same scale; the longest is {length}."
    numbers = ""
    if all(timeline.rows.has_numbers for timeline in timelines):
        numbers = "; the number in a box is its microbatch"
    elif any(timeline.rows.has_numbers for timeline in timelines):
        numbers = "; numbers in boxes are microbatches"
    yield f"Boxes are operations, to scale{numbers}."


def _draw_heading(page: Page, heading: str, note: str, *, is_empty: bool) -> None:
    """Draw the heading and the note above all panels, unless the style has no titles.

    If there are no panels, a heading says so, regardless of style.
    """
    page.title = "Nothing to draw: no run" if is_empty else to_one_line(heading, 200)
    if page.style.titled or is_empty:
        page.heading(page.title)
        if note:
            page.y += 5
            page.paragraph(to_one_line(note, 400), page.style.letters.legend, lines=3)
        page.y += _GAP


def _draw_notes(page: Page, notes: Sequence[str]) -> None:
    """Draw the notes as one paragraph below the legend, unless the style has no notes."""
    if notes and page.style.notes:
        page.paragraph(" ".join(notes), page.style.letters.note, lines=4)


def _start_timeline(page: Page, report: Report, view: View) -> TimelinePainter | None:
    """Return the painter for a panel's timeline, or None if there is nothing to draw."""
    selection = select(report, view)
    return None if selection is None else TimelinePainter(page, report, view, selection)


def _list_notes(panels: Sequence[Panel], timelines: Sequence[TimelinePainter | None]) -> list[str]:
    """Return the distinct notes of all panels, and a sentence about the limitations of all reports.

    A note about the ranks that need attention also contains the title of its panel.
    """
    notes: list[str] = []
    for (title, _, _), timeline in zip(panels, timelines, strict=True):
        for note in () if timeline is None else explain_marks(timeline):
            is_advice = note.startswith(MARK)
            mark = f"{MARK} {to_one_line(title, 60)}:"
            titled = note.replace(MARK, mark, 1) if is_advice else note
            if titled not in notes:
                notes.append(titled)
    limited = [
        f"{to_one_line(title, 60)}: {subjects}"
        for title, report, _ in panels
        if (subjects := list_harmful_subjects(report.limitations))
    ]
    if limited:
        notes.append(f"Limitations: {'. '.join(limited)}.")
    return notes


def _describe_timeline(timeline: TimelinePainter) -> str:
    """Return the text below a panel's title, which contains the bubble ratio.

    In a style without titles, the text is only the ratio of the drawn iteration, or "" if several
    iterations are drawn.
    """
    report, selection = timeline.report, timeline.selection
    if timeline.page.style.titled:
        return " · ".join(filter(None, write_headings(report, selection)))
    ratios = [format_iteration_ratio(report, iteration) for iteration in selection.iterations]
    return ratios[0] if len(ratios) == 1 else ""


def _draw_title(page: Page, title: str, description: str) -> None:
    """Write a panel's title and description below the page's cursor, which moves down.

    In a style with titles, the description is a paragraph below the title. In any other style, it
    follows on the same line, so that the figure takes less space in a paper.
    """
    letters = page.style.letters
    max_width = page.right - page.left
    size = letters.panel * BOLD
    line = truncate_text(to_one_line(title, 120), size, max_width)
    page.y += letters.panel
    page.text(line, page.left, page.y, letters.panel, font_weight="bold")
    page.y += 3
    indent = text_width(line, size) + letters.legend
    room = max_width - indent
    if page.style.titled or text_width(description, letters.legend) > room:
        page.paragraph(description, letters.legend, lines=1)
    else:
        page.text(description, page.left + indent, page.y - 3, letters.legend, ink="quiet")
    page.y += 5


def draw_theory(report: Report, view: View) -> str:
    """Draw simulations of a report's schedule above the measured run, and return the SVG document.

    Simulations have only one iteration, so all panels show one iteration and a ratio that is
    defined for it. If nothing could be simulated, only the measured run is drawn, with the reason
    in a note.
    """
    what_if = report.theory
    same_schedule = None if what_if is None else what_if.same_schedule
    if what_if is None or (same_schedule is None and what_if.ideal is None):
        reason = "" if what_if is None else what_if.reason
        reason = reason or "no schedule recognized"
        note = f"No theoretical schedule is drawn above: {reason}."
        return draw_panels([("measured", report, view)], "As measured", note)
    measured, view = _select_one_iteration(report, view)
    theory_view = View(style=view.style, width_mm=view.width_mm, causes=view.causes)
    panels: list[Panel] = []
    for title, ideal in _list_theories(what_if):
        panels.append((title, make_simulated_report(ideal, measured.headline), theory_view))
    panels.append(("measured", measured, view))
    if same_schedule is None:
        heading = "Measured, below an ideal 1f1b with the same times"
        return draw_panels(panels, heading, "No schedule recognized.")
    return draw_panels(panels, f"{same_schedule.plan.name} in theory and as measured")


def make_simulated_report(ideal: Ideal, headline: str) -> Report:
    """Return a simulation's report without advice on slow ranks.

    In a simulation, each rank has the times of its stage, so a slow stage would look like a slow
    rank.

    Args:
        ideal: The simulation.
        headline: Name of the primary ratio of the report.
    """
    report = make_report(ideal)
    explanation = replace(report.explanation, slowdown_source=None)
    return replace(report, headline=headline, explanation=explanation)


def _list_theories(what_if: WhatIf) -> Iterator[tuple[str, Ideal]]:
    """Yield the available (title, simulation) pairs to draw above the measured run.

    1. The ideal: the schedule of the run with equal stages and free transfers. The ideal is left
       out if its makespan equals the makespan of the second simulation.
    2. The run's own schedule with the measured times.
    3. The best other schedule with the measured times.
    """
    same_schedule, ideal, best = what_if.same_schedule, what_if.ideal, what_if.best
    # If the measured stages are equal and transfers are free, both simulations look the same.
    if ideal is not None and not _is_same_makespan(ideal, same_schedule):
        yield f"{ideal.plan.name}, ideal: equal stages, free transfers", ideal
    if same_schedule is not None:
        yield f"{same_schedule.plan.name} at the measured times", same_schedule
    if best is not None:
        limit_bytes = what_if.limit_bytes
        memory = "as much memory" if limit_bytes is None else format_memory(limit_bytes)
        yield f"{best.plan.name} at the measured times: the best in {memory}", best


def _is_same_makespan(ideal: Ideal, same_schedule: Ideal | None) -> bool:
    """Return whether two simulations have the same makespan, within a relative difference of 0.2 %.

    The difference is relative to ``same_schedule``. If ``same_schedule`` is None, the result is
    False.
    """
    if same_schedule is None:
        return False
    return (
        abs(ideal.makespan_ms - same_schedule.makespan_ms)
        <= _SAME_MAKESPAN_TOLERANCE * same_schedule.makespan_ms
    )


def select_typical(report: Report, view: View) -> View:
    """Return a view that selects the typical iteration if the given view selects no iterations."""
    typical = report.typical_iteration()
    selected = () if typical is None else (typical.index,)
    return replace(view, iterations=view.iterations or selected)


def _select_one_iteration(report: Report, view: View) -> tuple[Report, View]:
    """Choose an iteration and a ratio of a measured run that can be compared with simulations.

    A simulation has only one iteration, so only the ratios ``schedule`` and ``stage`` are defined
    for it.

    - The returned view selects the typical iteration, unless the given view selects iterations.
    - The returned report has ``schedule`` or ``stage`` as its primary ratio, whichever is known in
      the typical iteration. If both are known, the report's own primary ratio is preferred, then
      ``schedule``. If neither is known, the report is unchanged.

    Without a typical iteration, neither the report nor the view is changed.
    """
    typical = report.typical_iteration()
    if typical is None:
        return report, view
    view = select_typical(report, view)
    ratios = (name for name in _RATIOS_OF_ONE_ITERATION if name in typical.ratios)
    names = [name for name in ratios if typical.ratios[name].value is not None]
    if not names or report.headline in names:
        return report, view
    reason = "A plan has only one iteration, and this ratio needs only one."
    return replace(report, headline=names[0], headline_reason=reason), view
