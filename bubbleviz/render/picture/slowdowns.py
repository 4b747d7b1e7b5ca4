"""The picture of slowdowns: a map of ranks by stage and replica, and a curve over iterations.

::

    stage       0    1    2    3              S
    replica 0  ███  ░░░  ░░░  ░░░        1.99 ┤    ╭╮
            1  ░░░  ░░░  ░░░  ░░░             │────╯╰────
                                         1.00 ┼───────────
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

import drawsvg
import numpy as np

from bubbleviz.explain.phase_times import ChunkCost, costed
from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.model.columns import Ints
from bubbleviz.model.texts import counted, one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import FORWARD, heat, luminance
from bubbleviz.render.picture.labels import headings, iteration_ratio
from bubbleviz.render.picture.legend import draw_axis, draw_legend, notes_of, nothing_to_draw
from bubbleviz.render.picture.page import (
    BOLD,
    SCREEN,
    Page,
    box,
    duration,
    fitted,
    polyline,
    px,
    style_of,
    text_width,
)
from bubbleviz.render.picture.timeline import TimelineContents, TimelinePainter
from bubbleviz.render.rows import Selection, select
from bubbleviz.report.report import Report, cost_in_words
from bubbleviz.report.view import View

#: More rows and columns of the map are not drawn.
_MOST_ROWS, _MOST_COLUMNS = 64, 64
#: px: height and greatest width of a cell, left of them, below their names, height of the curve.
_CELL, _WIDEST_CELL, _NAMES, _HEADER, _CURVE = 20.0, 64.0, 74.0, 16.0, 120.0
#: px: a cell that is narrower shows no number.
_NUMBERED = 34.0
#: Slowdowns up to this have the colour of what is fast: all ranks differ a little.
_USUAL = 1.02
#: The colour of at least so much is the darkest.
_LEAST_RANGE = 0.1
#: Lettering on cells darker than this is white.
_DARK = 0.4


def slowdowns(report: Report, view: View) -> str:
    """Return the picture of slowdowns, whatever the view; without any it gives the reason."""
    del view
    page = Page("bvs-")
    found = report.slowdowns
    if found is None:
        source = report.explanation.slowdown_source
        page.title = "Slowdowns are unknown"
        page.heading(page.title)
        page.paragraph(one_line("" if source is None else source.reason, 200), 10.5)
        return page.svg()
    iterations = counted(len(found.by_iteration), "iteration")
    page.title = f"Slowdown {found.total:.3f} over {iterations}"
    page.description = "A cell a rank, by stage and replica; below, a curve over iterations."
    page.heading(page.title)
    page.y += 4
    page.paragraph(
        f"An iteration takes {duration(found.original_ns)}, and an ideal one, in which every kind "
        f"of operation takes its mean, {duration(found.ideal_ns)}. A rank's slowdown is the "
        "smaller of its stage's and its replica's.",
        10.5,
    )
    page.y += 14
    _draw_map(page, report, found)
    page.y += 26
    _draw_curve(page, report, found)
    return page.svg()


def _draw_map(page: Page, report: Report, found: Slowdowns) -> None:
    """Draw a cell for each stage and replica: the slowest of its ranks."""
    cells: dict[tuple[int, int], float] = {}
    for rank in report.ranks:
        if rank.index in found.by_rank and rank.stage is not None:
            cell = -1 if rank.pipeline is None else rank.pipeline, rank.stage
            cells[cell] = max(cells.get(cell, 0.0), found.by_rank[rank.index])
    if not cells:
        return
    rows = sorted({row for row, _ in cells})
    columns = sorted({column for _, column in cells})
    shown_rows, shown = rows[:_MOST_ROWS], columns[:_MOST_COLUMNS]
    left, top = page.left + _NAMES, page.y + _HEADER
    width = min(_WIDEST_CELL, (page.right - left) / len(shown))
    every = 1 + int(22 // width)
    for place, column in enumerate(shown):
        if place % every == 0:
            middle = left + (place + 0.5) * width
            page.text(str(column), middle, top - 5, 9.5, ink="quiet", text_anchor="middle")
    page.text("stage", page.left, top - 5, 9.5, ink="quiet")
    most = max((*cells.values(), _USUAL + _LEAST_RANGE))
    for place, row in enumerate(shown_rows):
        line = top + place * _CELL
        name = "replica" if row < 0 else f"replica {row}"
        page.text(fitted(name, 10, _NAMES - 6), page.left, line + 14, 10)
        for at, column in enumerate(shown):
            if (row, column) in cells:
                edge = left + at * width
                _draw_cell(page, edge, line, width, cells[row, column], most)
    page.y = top + len(shown_rows) * _CELL
    left_out = len(rows) * len(columns) - len(shown_rows) * len(shown)
    if left_out:
        page.paragraph(f"and {counted(left_out, 'cell')} more", 9.5)


def _draw_cell(
    page: Page, left: float, top: float, width: float, slowdown: float, most: float
) -> None:
    colour = heat(min(max(slowdown - _USUAL, 0) / (most - _USUAL), 1))
    path = box(left, top, left + width - 1, top + _CELL - 1)
    page.path(path, fill=colour)
    if width >= _NUMBERED:
        ink = "#ffffff" if luminance(colour) < _DARK else "#000000"
        middle = left + (width - 1) / 2
        text = f"{slowdown:.2f}"
        page.text(text, middle, top + 13.5, 9.5, ink=None, text_anchor="middle", fill=ink)


def _draw_curve(page: Page, report: Report, found: Slowdowns) -> None:
    """Draw the slowdown of each iteration, from the lower of 1 and the least to the greatest."""
    numbers, values = list(found.by_iteration), list(found.by_iteration.values())
    page.text("Slowdown of each iteration", page.left, page.y, 11)
    left, right, top = page.left + _NAMES, page.right, page.y + 12
    low, high = min(1.0, *values), max(1.0, *values)
    high = max(high, low + _LEAST_RANGE)
    bottom = top + _CURVE

    def height(slowdown: float) -> float:
        return bottom - (slowdown - low) / (high - low) * _CURVE

    lines = []
    for value in dict.fromkeys((low, 1.0, high)):
        lines.append(f"M{px(left)} {px(height(value))}H{px(right)}")
        page.text(f"{value:.2f}", left - 8, height(value) + 3.5, 9.5, text_anchor="end")
    page.line("".join(lines), "grid")
    step = (right - left) / len(values)
    points = [(left + (n + 0.5) * step, height(s)) for n, s in enumerate(values)]
    page.line(_polyline(points, step), "mark", 1.5)
    page.y = bottom + 14
    _name_iterations(page, report, numbers, left, step)
    page.y += 6


def _polyline(points: list[tuple[float, float]], step: float) -> str:
    """Return the path through points; of a single one a level line."""
    if len(points) == 1:
        (x, y), half = points[0], step / 2
        points = [(x - half, y), (x + half, y)]
    return polyline(points)


def _name_iterations(
    page: Page, report: Report, numbers: list[int], left: float, step: float
) -> None:
    """Write the names of the first and last iteration, and of some between them."""
    every = max(1, -(-len(numbers) // 10))
    for place in range(0, len(numbers), every):
        name = fitted(one_line(report.iterations[numbers[place]].name, 20), 9.5, every * step)
        middle = left + (place + 0.5) * step
        page.text(name, middle, page.y, 9.5, ink="quiet", text_anchor="middle")


# Panels: several reports one above the other, on one scale of time.
#
# Each begins at its own first work, so that what lies below each other took equally long: runs that
# are compared, or a plan above its measurement.


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


# The picture of chunk costs: times of forwards against their tokens, and the fitted curves.
#
# ::
#
#     stage 0             stage 1
#     2 ms ┤       __o    2 ms ┤     o__
#          │  o__o             │  __o
#        0 ┼────────         0 ┼────────
#          0    4096           0    4096 tokens


#: More stages are not drawn.
_MOST = 32
#: Panels side by side; px: their height, and what lies around them.
_COLUMNS, _HEIGHT, _LEFT, _TOP, _BELOW = 2, 140.0, 58.0, 34.0, 30.0
#: px: radius of a dot; chunks whose dots lie this close share one.
_DOT, _GRAIN = 2.4, 1.0
_STEPS = 33


def chunk_costs(report: Report, view: View) -> str:
    """Return times of forwards against tokens, a panel a stage; without tokens the reason."""
    del view
    page = Page("bvc-")
    costs = report.explanation.chunk_costs
    if not costs:
        page.title = "Costs of chunks are unknown"
        page.heading(page.title)
        page.paragraph("no range name and no table tells how many tokens a forward takes", 10.5)
        return page.svg()
    page.title = f"Time of a chunk by its tokens, {counted(len(costs), 'stage')}"
    page.description = "A dot a chunk, a panel a stage; the line is the fitted cost."
    page.heading(page.title)
    page.y += 8
    averaged = np.array([i.averaged for i in report.iterations], bool)
    rows = costed(report.operations, averaged)
    most = (
        int(report.operations.tokens[rows].max()),
        float(report.operations.busy_ns[rows].max()),
    )
    top, width = page.y, (page.right - page.left) / _COLUMNS
    for number, cost in enumerate(costs[:_MOST]):
        row, column = divmod(number, _COLUMNS)
        corner = page.left + column * width, top + row * (_HEIGHT + _TOP + _BELOW)
        own = rows[report.operations.virtual_stage[rows] == cost.virtual_stage]
        _draw_panel(page, report, cost, own, corner, width, most)
    drawn = -(-min(len(costs), _MOST) // _COLUMNS)
    page.y = top + drawn * (_HEIGHT + _TOP + _BELOW)
    if len(costs) > _MOST:
        page.paragraph(f"and {counted(len(costs) - _MOST, 'stage')} more", 9.5)
    return page.svg()


def _draw_panel(
    page: Page,
    report: Report,
    cost: ChunkCost,
    rows: Ints,
    corner: tuple[float, float],
    width: float,
    most: tuple[int, float],
) -> None:
    """Draw the chunks of one stage, and their curve.

    Args:
        page: to draw on.
        report: whose operations these are.
        cost: of the stage.
        rows: its operations.
        corner: left and upper edge.
        width: of the panel.
        most: tokens and time at the ends of the axes.
    """
    left, right = corner[0] + _LEFT, corner[0] + width - 14
    bottom = corner[1] + _TOP + _HEIGHT
    tokens, time_ns = max(most[0], 1), max(most[1], 1.0)

    def at(length: float, own_ns: float) -> tuple[float, float]:
        x = left + length / tokens * (right - left)
        return x, bottom - own_ns / time_ns * _HEIGHT

    stage = "unknown" if cost.virtual_stage < 0 else cost.virtual_stage
    page.text(f"stage {stage}", corner[0], corner[1] + 10, 11)
    page.text(cost_in_words(cost), corner[0], corner[1] + 24, 9.5, ink="quiet")
    axes = f"M{px(left)} {px(bottom - _HEIGHT)}V{px(bottom)}H{px(right)}"
    page.line(axes, "grid")
    page.text(duration(round(time_ns)), left - 6, bottom - _HEIGHT + 6, 9.5, text_anchor="end")
    page.text("0", left - 6, bottom, 9.5, text_anchor="end")
    page.text("0", left, bottom + 13, 9.5, text_anchor="middle")
    page.text(f"{tokens:,} tokens", right, bottom + 13, 9.5, text_anchor="end")
    lengths = report.operations.tokens[rows].tolist()
    spots = starmap(at, zip(lengths, report.operations.busy_ns[rows].tolist(), strict=True))
    for x, y in sorted({(round(x / _GRAIN), round(y / _GRAIN)) for x, y in spots}):
        dot = {"fill": FORWARD, "fill_opacity": 0.55}
        page.elements.append(drawsvg.Circle(px(x * _GRAIN), px(y * _GRAIN), _DOT, **dot))
    steps = np.linspace(cost.least_tokens, cost.most_tokens, _STEPS)
    fitted = cost.time_ns(steps)
    curve = [at(length, own_ns) for length, own_ns in zip(steps.tolist(), fitted, strict=True)]
    page.line(polyline(curve), "mark")
