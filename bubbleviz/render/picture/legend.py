"""The legend: a swatch and a name for everything in the picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import drawsvg

from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.render import marks, palette
from bubbleviz.render.marks import UNATTRIBUTED_KIND
from bubbleviz.render.picture.labels import (
    MOST_BRACKETS,
    Layout,
    clock_notes,
    draw_title,
    shows_lower_bound,
)
from bubbleviz.render.picture.page import (
    Page,
    box,
    fitted,
    page_of_height,
    px,
    style_of,
    text_width,
    ticks,
)
from bubbleviz.render.picture.rows import DOTS, DOTS_BELOW, RowPainter
from bubbleviz.render.picture.timeline import TimelinePainter, draw_heat_maps
from bubbleviz.render.picture.typesetting import as_pdf, as_png
from bubbleviz.render.rows import Selection, select
from bubbleviz.report.advice import advise
from bubbleviz.report.labels import MARK, figure_caption, limitation_lines, shortened
from bubbleviz.report.report import Report, distinct_percents
from bubbleviz.report.sentences import write_advice
from bubbleviz.report.view import View

_FRAME = {"stroke": palette.LIGHT.frame, "class_": "bv-frame"}
#: Width of the frame of a swatch on a screen.
_LINE = 0.7
#: Of so many shades of a phase there are swatches.
_MOST_SHADES = 8
#: So many colours share the width of one swatch.
_MOST_IN_ONE = 4
#: Between a swatch and its name.
_BESIDE = 6.0
_LONG_NAMES = {
    Phase.F: "F forward",
    Phase.B: "B backward, input",
    Phase.W: "W backward, weights",
    Phase.BW: "BW backward",
    Phase.R: "R recompute",
    Phase.FB: "FB forward and backward",
    Phase.OPTIMIZER: "Optimizer",
}


class _Swatch(NamedTuple):
    """A box of the legend: width, presentation attributes, and its number and the colour of it.

    ``dotted`` is whether it is dotted below, as merged operations are; ``cause`` is that of idle
    time, which looks as it does in the rows.
    """

    width: float
    look: dict[str, Any]
    number: str = ""
    ink: str = ""
    dotted: bool = False
    cause: str = ""


def draw_legend(page: Page, timelines: Sequence[TimelinePainter]) -> None:
    """Draw the legend of one or more timelines below what is on the page, line by line."""
    letters = page.style.letters
    if not page.style.legend:
        return
    size, inner = letters.legend, letters.legend - 1
    x, height = page.left, round((0.9 if page.style.millimetres else 1.24) * size, 1)
    page.y += 4
    for swatches, name in _entries(page, timelines):
        swatches_width = sum(swatch.width for swatch in swatches)
        text = fitted(name, size, page.right - page.left - swatches_width - _BESIDE)
        width = swatches_width + _BESIDE + text_width(text, size)
        if x + width > page.right and x > page.left:
            x, page.y = page.left, page.y + max(height, size) + (3 if page.style.millimetres else 7)
        for swatch in swatches:
            path = box(x, page.y, x + swatch.width, page.y + height)
            if swatch.cause:
                page.cause_boxes(path, swatch.cause)
            else:
                framed = "stroke" in swatch.look
                line = {"stroke_width": px(_LINE * page.style.line)} if framed else {}
                page.path(path, **(line | swatch.look))
            if swatch.dotted:
                dots = f"M{px(x)} {px(page.y + height + DOTS_BELOW)}h{px(swatch.width)}"
                page.path(dots, fill="none", **DOTS)
            if swatch.number:
                page.text(
                    swatch.number,
                    x + swatch.width / 2,
                    page.y + height / 2 + 0.36 * inner,
                    inner,
                    ink=None,
                    fill=swatch.ink,
                    text_anchor="middle",
                )
            x += swatch.width
        page.text(text, x + _BESIDE, page.y + height / 2 + 0.36 * size, size)
        x += _BESIDE + text_width(text, size) + 1.3 * size
    page.y += height + 6


def _entries(
    page: Page, timelines: Sequence[TimelinePainter]
) -> Iterator[tuple[list[_Swatch], str]]:
    """Yield swatches and their text for whatever is in the picture."""
    rows = [timeline.rows for timeline in timelines]
    width = 1.5 * page.style.letters.legend if page.style.millimetres else 22
    for phase in COMPUTE:
        if swatches := list(_phase_swatches(page, rows, phase, width)):
            yield swatches, _LONG_NAMES[phase]
    causes = sorted({cause for timeline in timelines for cause in timeline.causes})
    if not causes:
        yield [_Swatch(width, {"fill": page.hatch()})], "bubble"
    for cause in causes:
        yield [_Swatch(width, {}, cause=cause.label)], f"idle: {cause.label}"
    if any(timeline.gaps for timeline in timelines):
        yield (
            [_Swatch(width, {"fill": palette.LIGHT.gap, "class_": "bv-gap"})],
            "between iterations",
        )
    if any(UNATTRIBUTED_KIND in painter.kinds for painter in rows):
        yield [_Swatch(width, {"fill": palette.UNATTRIBUTED})], "unattributed compute"
    if any(painter.communication for painter in rows):
        thin = {"fill": palette.COMMUNICATION, **_FRAME, "stroke_width": 0.3}
        yield [_Swatch(width, thin)], "communication (thin lane)"
    if any(marks.OTHER_ITERATION in painter.kinds for painter in rows):
        yield [_Swatch(width, {"fill": palette.OTHER_ITERATION, **_FRAME})], "other iteration"
    if merging := [painter for painter in rows if painter.merged_words]:
        narrower = max(painter.narrower for painter in merging)
        words = "; ".join(painter.merged_words for painter in merging)
        colours = dict.fromkeys(colour for painter in merging for colour in painter.merged_colours)
        each = max(width / len(colours), width / _MOST_IN_ONE)
        dotted = [_Swatch(each, {"fill": colour}, dotted=True) for colour in colours]
        yield dotted, f"merged: narrower than {page.length(narrower)} ({words})"


def _phase_swatches(
    page: Page, rows: Sequence[RowPainter], phase: Phase, width: float
) -> Iterator[_Swatch]:
    """Yield a swatch a shade of a phase that is drawn."""
    # Timelines with as many chunks have the same shades.
    drawn = {max(len(own.chunks), 1): own.chunks for own in rows if phase in own.kinds}
    if phase is Phase.OPTIMIZER and drawn:
        drawn = {1: []}
    for shades, chunks in sorted(drawn.items()):
        for shade in range(0, shades, -(-shades // _MOST_SHADES)):
            place = shade if shades > 1 else -1
            look = palette.paint(phase, place, place if phase is Phase.FB else -1, shades)
            number = str(chunks[shade]) if shades > 1 else ""
            each = max(0.7 * width, text_width(number, page.style.letters.legend - 1) + 4)
            fill = {"fill": page.fill(look), **_FRAME}
            yield _Swatch(each if shades > 1 else width, fill, number, look.number)


# Notes below a picture: what its marks mean, and the limitations of its report.


#: Limitations printed under the picture.
_MOST_LIMITATIONS = 5


def notes_of(timeline: TimelinePainter) -> list[str]:
    """Return a sentence on each thing in the picture that needs one."""
    page, report, selection = timeline.page, timeline.report, timeline.selection
    rows, drawn, headline = timeline.rows, selection.iterations, report.headline
    brackets = len(drawn) <= MOST_BRACKETS
    shown = {rank.index for rank in selection.ranks}
    windows = (len({w for rank, w in by.items() if rank in shown}) for by in selection.windows)
    spanless = sum(map(len, rows.spanless.values()))
    ratio = drawn[0].ratios.get(headline) if len(drawn) == 1 else None
    low, high = (ratio and ratio.interval) or (0.0, 0.0)
    ends = distinct_percents((low, high), 1, 3) if low < high else ()
    bounds = [f"{end}\u00a0%" for end in ends]
    # The title of the picture has the mean of all iterations, which may lie outside.
    of_one = f" of iteration {shortened(drawn[0].name)}" if report.summary.iterations > 1 else ""
    spread = any(row.spread for row in selection.rows)
    copies = any(len(row.replicas) > 1 for row in selection.rows)
    is_first = all(row.rank.index == row.replicas[0] for row in selection.rows)
    replica = "first replica" if is_first else "replica in the pipeline of the advice"
    advised = advise(report).marked
    drawn_ranks = {rank for row in selection.rows for rank in row.replicas}
    is_marked = not drawn_ranks.isdisjoint(advise(report).marked_ranks)
    to_do = "" if advised is None or not is_marked else write_advice(report, advised).short
    sentences = (
        (len(rows.chunks) > 1, "Chunks run from dark to light (numbers in the legend)."),
        (
            brackets and max(windows) > 1,
            "Windows differ by row: brackets show the first row's and the mean length.",
        ),
        (
            timeline.critical,
            "Line along operations: the critical path, which bounds the iteration.",
        ),
        (brackets and len(drawn) > 1, "Dashed: first work of an iteration."),
        (spanless, f"Hollow mark: {spanless:,} without GPU work and so without device time."),
        (
            rows.merged_words,
            f"Dotted below: {rows.merged_words} narrower than {page.length(rows.narrower)}, merged "
            "by phase; height: share of time, the rest is bubble.",
        ),
        (shows_lower_bound(ratio), "The lower ratio counts unattributed compute as work."),
        (any(clock_notes(report, selection)), "± and bars: clock uncertainty of a host."),
        (to_do, f"{MARK} {to_do}."),
        (report.contradicted(headline), "! depends on clocks that contradict each other."),
        (bounds, f"Clock bounds{of_one}: {' to '.join(bounds)}."),
        (
            spread,
            "Rows: stages, each drawn as its replica with the median ratio, beside the minimum and "
            "maximum ratio of all its replicas and the ratio of the drawn one; the area below "
            "shows the share of replicas at work.",
        ),
        (
            spread and any(row.why for row in selection.rows),
            "Rows below: ranks that stand out, against the median of their stage.",
        ),
        (
            copies and not spread,
            f"Rows: stages, each drawn as its {replica}, with the ratio of that replica.",
        ),
    )
    return [sentence for told, sentence in sentences if told]


def nothing_to_draw(report: Report, view: View) -> str:
    """Return why a view of a report selects nothing."""
    if not report.ranks:
        missing = "no GPU has any operation"
    elif not report.iterations:
        missing = "no iteration was found"
    else:
        missing = f"no such {'iteration or ' if view.iterations else ''}rank"
    return f"Nothing to draw: {missing}"


# The axis of time below the rows: a label at every tick.


#: Most steps between ticks.
_MOST_STEPS = 10
#: Between two labels at least, as a share of their font size.
_APART = 0.7


def axis_labels(layout: Layout, size: float, right: float) -> list[tuple[float, str]]:
    """Return the place and the text of the label of each tick; the last one has the unit.

    Args:
        layout: of the rows.
        size: of the letters.
        right: nothing stands right of this.
    """
    for steps in range(_MOST_STEPS, 0, -1):
        times, unit = ticks(layout.span_ns, steps)
        labels = [(layout.x(layout.start_ns + time_ns), text) for time_ns, text in times]
        labels[-1] = labels[-1][0], f"{labels[-1][1]}\u00a0{unit}"
        width = text_width(labels[-1][1], size)
        pitch = layout.width * times[1][0] / layout.span_ns if len(times) > 1 else width + size
        if pitch >= width + _APART * size and labels[-1][0] + width / 2 <= right:
            return labels
    # A plot too narrow for two labels has the one at its left edge.
    return labels[:1]


def draw_axis(page: Page, layout: Layout, bottom: float) -> None:
    """Draw the axis below ``bottom``, and move the page's cursor below it."""
    size = page.style.letters.axis
    y = bottom + 0.5 * size
    group = drawsvg.Group(
        font_size=size, text_anchor="middle", fill=palette.LIGHT.quiet, class_="bv-quiet"
    )
    path = f"M{px(layout.left)} {px(y)}H{px(layout.right)}"
    for x, text in axis_labels(layout, size, page.right):
        path += f"M{px(x)} {px(y)}v{px(0.4 * size)}"
        page.text(text, x, y + 1.4 * size, None, into=group, ink=None)
    page.rule(path)
    page.elements.append(group)
    page.y = y + 2.1 * size


# The picture: a title, one row per rank with its operations to scale, a time axis and a legend.
#
# Laid out from the top down on a page of fixed width, as high as its rows need.


def picture(report: Report, view: View, ids: str = "bv-") -> str:
    """Return the part of ``report`` that ``view`` names as SVG; its ids begin with ``ids``."""
    selection = select(report, view, with_standouts=True)
    page = page_of_height(
        style_of(view), lambda style: _drawn(report, view, selection, Page(ids, style))
    )
    return page.svg()


def _drawn(report: Report, view: View, selection: Selection | None, page: Page) -> Page:
    """Return a page with the picture of a selection on it."""
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
        page.title, note = figure_caption(
            report,
            selection.iterations,
            len(selection.rows),
            has_numbers=timeline.rows.has_numbers,
        )
        page.description = " ".join((note, *notes))
    for line in limitation_lines(report, _MOST_LIMITATIONS) if page.style.notes else ():
        page.paragraph(line, page.style.letters.note)
    return page


def pdf(report: Report, view: View) -> bytes:
    """Return the same picture as a PDF."""
    return as_pdf(picture(report, view))


def png(report: Report, view: View) -> bytes:
    """Return the same picture as a PNG."""
    return as_png(picture(report, view))
