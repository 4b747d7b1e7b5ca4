"""The picture of slowdowns: a map of ranks by stage and replica, and a curve over iterations.

::

    stage       0    1    2    3              S
    replica 0  ███  ░░░  ░░░  ░░░        1.99 ┤    ╭╮
            1  ░░░  ░░░  ░░░  ░░░             │────╯╰────
                                         1.00 ┼───────────
"""

from __future__ import annotations

from itertools import starmap

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.explain.phase_times import ChunkCost, costed
from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.model.columns import Ints
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.palette import heat, luminance
from bubbleviz.render.picture.page import Page, duration, fitted
from bubbleviz.render.picture.plots import (
    LETTERS,
    SHADES,
    Graph,
    draw_cells,
    draw_names,
    steps_around,
)
from bubbleviz.report.report import Report, cost_in_words
from bubbleviz.report.view import View

#: More rows and columns of the map are not drawn.
_MOST_ROWS, _MOST_COLUMNS = 64, 64
#: px: height and greatest width of a cell, left of them, height of the curve.
_CELL, _WIDEST_CELL, _NAMES, _CURVE = 20.0, 64.0, 74.0, 120.0
#: px: a cell that is narrower shows no number.
_NUMBERED = 34.0
#: Slowdowns up to this have the colour of what is fast: all ranks differ a little.
_USUAL = 1.02
#: The colour of at least so much is the darkest.
_LEAST_RANGE = 0.1
#: Lettering on cells darker than this is white.
_DARK = 0.4


def slowdowns(report: Report, _: View) -> str:
    """Return the picture of slowdowns, whatever the view; without any it gives the reason."""
    page = Page("bvs-")
    found = report.slowdowns
    if found is None:
        source = report.explanation.slowdown_source
        page.title = "Slowdowns are unknown"
        page.heading(page.title)
        page.y += 4
        page.paragraph(one_line("" if source is None else source.reason, 200), 10.5)
        return page.svg()
    iterations = counted(len(found.by_iteration), "iteration")
    page.title = f"Slowdown {found.total:.3f} over {iterations}"
    page.description = "One cell per rank, by stage and replica; below, a curve over iterations."
    page.heading(page.title)
    page.y += 4
    page.paragraph(
        f"An iteration takes {duration(found.original_ns)}, an ideal one, with mean times "
        f"everywhere, {duration(found.ideal_ns)}. A rank's slowdown is the smaller of its stage's "
        "and its replica's.",
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
    left, top = page.left + _NAMES, page.y
    width = min(_WIDEST_CELL, (page.right - left) / len(shown))
    slowdown = np.array([[cells.get((row, own), np.nan) for own in shown] for row in shown_rows])
    most = max((*cells.values(), _USUAL + _LEAST_RANGE))
    shade = (slowdown - _USUAL) / (most - _USUAL)
    draw_cells(page, shade, left, width, _CELL)
    for place, row in enumerate(shown_rows):
        line = top + place * _CELL
        name = "replica" if row < 0 else f"replica {row}"
        page.text(fitted(name, 10, _NAMES - 6), page.left, line + 14, 10)
        for at in np.flatnonzero(~np.isnan(shade[place])) if width >= _NUMBERED else ():
            dark = luminance(heat(min(max(shade[place, at], 0), 1))) < _DARK
            ink = "#ffffff" if dark else "#000000"
            look = {"ink": None, "text_anchor": "middle", "fill": ink}
            middle = left + (at + 0.5) * width
            page.text(f"{slowdown[place, at]:.2f}", middle, line + 13.5, LETTERS, **look)
    page.text("stage", page.left, page.y + 4 + 0.9 * LETTERS, LETTERS, ink="quiet")
    draw_names(page, list(map(str, shown)), left, width, LETTERS)
    page.y += LETTERS
    draw_cells(page, np.linspace(0, 1, SHADES)[np.newaxis], left, LETTERS, LETTERS)
    page.text(f"up to {_USUAL:.2f}", left - 6, page.y - 1, LETTERS, text_anchor="end")
    scale = f"{most:.2f} times as slow as an ideal iteration"
    page.text(scale, left + (SHADES + 0.6) * LETTERS, page.y - 1, LETTERS)
    left_out = len(rows) * len(columns) - len(shown_rows) * len(shown)
    if left_out:
        page.paragraph(f"and {counted(left_out, 'cell')} more", 9.5)


def _draw_curve(page: Page, report: Report, found: Slowdowns) -> None:
    """Draw the slowdown of each iteration, between round values around them and 1."""
    values = list(found.by_iteration.values())
    page.text("Slowdown of each iteration, times an ideal one", page.left, page.y, 11)
    low, high = min(1.0, *values), max(1.0, *values)
    high = max(high, low + _LEAST_RANGE)
    edges = page.left + _NAMES, page.right, page.y + 12
    ticks = steps_around(low, high, 4)
    graph = Graph(page, *edges, _CURVE, (0.0, float(len(values))), (ticks[0], ticks[-1]))
    graph.axes([], [(value, f"{value:.3f}") for value in ticks])
    # A single value is a level line.
    places = [0.0, 1.0] if len(values) == 1 else np.arange(len(values)) + 0.5
    graph.line(zip(places, values * 2 if len(values) == 1 else values, strict=True))
    page.y = graph.bottom
    names = [one_line(report.iterations[number].name, 20) for number in found.by_iteration]
    below = page.y + 4 + 0.9 * LETTERS
    page.text("iteration", page.left, below, LETTERS, ink="quiet")
    draw_names(page, names, graph.left, (graph.right - graph.left) / len(names), LETTERS)


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
_COLUMNS, _HEIGHT, _LEFT, _RIGHT, _TOP, _BELOW = 2, 140.0, 58.0, 44.0, 34.0, 30.0
#: px: radius of a dot.
_DOT = 2.4
_STEPS = 33


def chunk_costs(report: Report, _: View) -> str:
    """Return times of forwards against tokens, a panel a stage.

    Raises:
        UsageError: nothing tells how many tokens a forward takes.
    """
    page = Page("bvc-")
    costs = report.explanation.chunk_costs
    if not costs:
        raise UsageError(
            "a picture of chunks needs the tokens of each forward, which no range name and no "
            "table tells; write these (bubbleviz guide inference), or name a file that ends with "
            ".svg for the picture of operations"
        )
    page.title = f"Time of a chunk by its tokens, {counted(len(costs), 'stage')}"
    page.description = "One dot per chunk, one panel per stage; the line is the fitted cost."
    page.heading(page.title)
    page.y += 8
    averaged = np.array([i.averaged for i in report.iterations], bool)
    rows = costed(report.operations, averaged)
    most = (int(report.operations.tokens[rows].max()), float(report.operations.busy_ns[rows].max()))
    top, width = page.y, (page.right - page.left) / _COLUMNS
    for number, cost in enumerate(costs[:_MOST]):
        row, column = divmod(number, _COLUMNS)
        corner = page.left + column * width, top + row * (_HEIGHT + _TOP + _BELOW)
        own = rows[report.operations.virtual_stage[rows] == cost.virtual_stage]
        _draw_panel(page, report, cost, own, corner, width, most)
    drawn = -(-min(len(costs), _MOST) // _COLUMNS)
    page.y = top + drawn * (_HEIGHT + _TOP + _BELOW)
    if any(cost.prompt_tokens for cost in costs):
        page.paragraph(
            "Lines: chunks without a prefix, and with the longest of a whole chunk.", 9.5
        )
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
    (x, y), most_tokens, most_ns = corner, max(most[0], 1), max(most[1], 1.0)
    edges = x + _LEFT, x + width - _RIGHT, y + _TOP
    graph = Graph(page, *edges, _HEIGHT, (0.0, most_tokens), (0.0, most_ns))
    stage = "unknown" if cost.virtual_stage < 0 else cost.virtual_stage
    page.text(f"stage {stage}", x, y + 10, 11)
    page.text(cost_in_words(cost), x, y + 24, LETTERS, ink="quiet")
    graph.axes(
        [(0, "0"), (most_tokens, f"{most_tokens:,} tokens")],
        [(0, "0"), (most_ns, duration(round(most_ns)))],
    )
    tokens, busy_ns = report.operations.tokens[rows], report.operations.busy_ns[rows]
    places = starmap(graph.at, zip(tokens.tolist(), busy_ns.tolist(), strict=True))
    for place in sorted({(round(x), round(y)) for x, y in places}):
        graph.dot(*place, _DOT)
    lengths = np.linspace(cost.least_tokens, cost.most_tokens, _STEPS)
    # What the last whole chunk of the longest prompt read.
    longest = max(cost.prompt_tokens // max(cost.most_tokens, 1) - 1, 0) * cost.most_tokens
    for prefix in sorted({0, longest}):
        graph.line(zip(lengths.tolist(), cost.time_ns(lengths, prefix), strict=True))
