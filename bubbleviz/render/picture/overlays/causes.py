"""Cause bands: idle time behind the operations of a picture, coloured by why it is there."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model import intervals
from bubbleviz.render.palette import CRITICAL
from bubbleviz.render.picture.page import Page, box, px
from bubbleviz.render.picture.spread import Layout
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

#: Intervals are laid on a grid of so many lines a px: what is finer cannot be seen.
_GRID = 2


def draw_causes(
    page: Page, report: Report, selection: Selection, layout: Layout
) -> tuple[Cause, ...]:
    """Draw the idle time of the drawn iterations and ranks; return the causes in it."""
    bubbles = report.bubbles.take(selection.drawn(report.bubbles.iteration))
    rows = selection.row_of_rank
    row = np.append(rows, -1)[np.minimum(bubbles.rank, len(rows))]
    scale = _GRID * layout.width / selection.span_ns
    start = np.floor((bubbles.start_ns - selection.start_ns) * scale).astype(np.int64)
    end = np.ceil((bubbles.end_ns - selection.start_ns) * scale).astype(np.int64)
    start, end = (np.clip(column, 0, round(layout.width * _GRID)) for column in (start, end))
    drawn = []
    for cause in Cause:
        boxes: list[str] = []
        for number, top in enumerate(layout.tops):
            members = (row == number) & (bubbles.cause == cause)
            lows, highs = intervals.union(start[members], end[members])
            boxes += [
                box(layout.left + low / _GRID, top, layout.left + high / _GRID, top + layout.row)
                for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
            ]
        if boxes:
            drawn.append(cause)
            page.cause_boxes("".join(boxes), cause.label)
    return tuple(drawn)


# The critical line: along the lower edges of the operations that bound an iteration.
#
# From one rank to the next it goes straight: where it slopes, an input was on its way.


_THICKNESS = 2.4


def draw_critical_path(page: Page, report: Report, selection: Selection, layout: Layout) -> bool:
    """Draw it where its iteration and all of its ranks are drawn; return whether it is."""
    path = report.explanation.path
    drawn = {iteration.index for iteration in selection.iterations}
    if path is None or path.iteration not in drawn or len(path.operations) == 0:
        return False
    operations, rows = report.operations, selection.row_of_rank
    row = np.append(rows, -1)[np.minimum(operations.rank[path.operations], len(rows))]
    if (row < 0).any():
        return False
    scale = layout.width / selection.span_ns
    thickness = px(_THICKNESS * page.style.line)
    starts = layout.left + (operations.start_ns[path.operations] - selection.start_ns) * scale
    ends = layout.left + (operations.end_ns[path.operations] - selection.start_ns) * scale
    edges = np.array(layout.tops)[row] + layout.row - thickness / 2
    steps = [
        f"{px(start)} {px(edge)}H{px(end)}"
        for start, end, edge in zip(starts.tolist(), ends.tolist(), edges.tolist(), strict=True)
    ]
    look = {"stroke": CRITICAL, "stroke_width": thickness, "stroke_linejoin": "round"}
    page.path("M" + "L".join(steps), fill="none", **look)
    return True
