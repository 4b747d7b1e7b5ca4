"""The picture of slowdowns: a map of ranks by stage and replica, and a curve over iterations.

::

    stage       0    1    2    3              S
    replica 0  ███  ░░░  ░░░  ░░░        1.99 ┤    ╭╮
            1  ░░░  ░░░  ░░░  ░░░             │────╯╰────
                                         1.00 ┼───────────
"""

from __future__ import annotations

from itertools import starmap

import drawsvg
import numpy as np

from bubbleviz.explain.phase_times import ChunkCost, costed
from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.model.columns import Ints
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.palette import FORWARD, heat, luminance
from bubbleviz.render.picture.page import Page, box, duration, fitted, polyline, px
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
    colour = heat(max(slowdown - _USUAL, 0) / (most - _USUAL))
    page.path(box(left, top, left + width - 1, top + _CELL - 1), fill=colour)
    if width >= _NUMBERED:
        ink = "#ffffff" if luminance(colour) < _DARK else "#000000"
        look = {"ink": None, "text_anchor": "middle", "fill": ink}
        page.text(f"{slowdown:.2f}", left + (width - 1) / 2, top + 13.5, 9.5, **look)


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
    if len(points) == 1:
        # A level line.
        points = [(left, height(values[0])), (left + step, height(values[0]))]
    page.line(polyline(points), "mark", 1.5)
    page.y = bottom + 14
    # Names of the first and last iteration, and of some between them.
    every = max(1, -(-len(numbers) // 10))
    for place in range(0, len(numbers), every):
        name = fitted(one_line(report.iterations[numbers[place]].name, 20), 9.5, every * step)
        middle = left + (place + 0.5) * step
        page.text(name, middle, page.y, 9.5, ink="quiet", text_anchor="middle")
    page.y += 6


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
