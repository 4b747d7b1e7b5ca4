"""The picture of slowdowns: a map of ranks by stage and replica, and a curve over iterations.

::

    stage       0    1    2    3              S
    replica 0  ███  ░░░  ░░░  ░░░        1.99 ┤    ╭╮
            1  ░░░  ░░░  ░░░  ░░░             │────╯╰────
                                         1.00 ┼───────────
"""

from __future__ import annotations

from collections.abc import Iterator

import drawsvg

from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.palette import LIGHT, heat, luminance
from bubbleviz.render.picture.lettering import fitted
from bubbleviz.render.picture.page import Page, box, duration, px
from bubbleviz.report.report import Report

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


def draw_slowdowns(report: Report) -> str:
    """Return the SVG document of the slowdowns of a report."""
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
    page.elements.append(drawsvg.Path(path, fill=colour))
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
    grid = {"stroke": LIGHT.grid, "stroke_width": 1, "fill": "none", "class_": "bv-grid"}
    page.elements.append(drawsvg.Path("".join(lines), **grid))
    step = (right - left) / len(values)
    points = [(left + (n + 0.5) * step, height(s)) for n, s in enumerate(values)]
    mark = {"stroke": LIGHT.text, "stroke_width": 1.5, "fill": "none", "class_": "bv-mark"}
    page.elements.append(drawsvg.Path("".join(_polyline(points, step)), **mark))
    page.y = bottom + 14
    _name_iterations(page, report, numbers, left, step)
    page.y += 6


def _polyline(points: list[tuple[float, float]], step: float) -> Iterator[str]:
    """Yield the path through points; of a single one a level line."""
    if len(points) == 1:
        (x, y), half = points[0], step / 2
        points = [(x - half, y), (x + half, y)]
    for number, (x, y) in enumerate(points):
        yield f"{'L' if number else 'M'}{px(x)} {px(y)}"


def _name_iterations(
    page: Page, report: Report, numbers: list[int], left: float, step: float
) -> None:
    """Write the names of the first and last iteration, and of some between them."""
    every = max(1, -(-len(numbers) // 10))
    for place in range(0, len(numbers), every):
        name = fitted(one_line(report.iterations[numbers[place]].name, 20), 9.5, every * step)
        middle = left + (place + 0.5) * step
        page.text(name, middle, page.y, 9.5, ink="quiet", text_anchor="middle")
