"""The picture of chunk costs: times of forwards against their tokens, and the fitted curves.

::

    stage 0             stage 1
    2 ms ┤       __o    2 ms ┤     o__
         │  o__o             │  __o
       0 ┼────────         0 ┼────────
         0    4096           0    4096 tokens
"""

from __future__ import annotations

from itertools import starmap

import drawsvg
import numpy as np

from bubbleviz.explain.chunk_costs import ChunkCost, costed
from bubbleviz.model.columns import Ints
from bubbleviz.model.texts import counted
from bubbleviz.render.palette import FORWARD
from bubbleviz.render.picture.page import Page, duration, polyline, px
from bubbleviz.report.report import Report, cost_in_words

#: More stages are not drawn.
_MOST = 32
#: Panels side by side; px: their height, and what lies around them.
_COLUMNS, _HEIGHT, _LEFT, _TOP, _BELOW = 2, 140.0, 58.0, 34.0, 30.0
#: px: radius of a dot; chunks whose dots lie this close share one.
_DOT, _GRAIN = 2.4, 1.0
_STEPS = 33


def draw_chunk_costs(report: Report) -> str:
    """Return the SVG document of the costs of chunks."""
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
