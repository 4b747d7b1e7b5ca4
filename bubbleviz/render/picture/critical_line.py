"""Draws the critical path as a line along the lower edges of the operations on it.

Between two ranks, the line is straight, and its slope shows how long the input took to arrive.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.render.palette import CRITICAL
from bubbleviz.render.picture.drawing import px
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

_THICKNESS = 2.4


def draw_critical_path(page: Page, report: Report, selection: Selection, layout: Layout) -> bool:
    """Draw the critical path if its iteration and all of its ranks are in the picture.

    Returns:
        True if the critical path was drawn, False if it is unknown or not entirely in the picture.
    """
    path = report.explanation.path
    is_drawn = {iteration.index for iteration in selection.iterations}
    if path is None or path.iteration not in is_drawn or len(path.operations) == 0:
        return False
    operations = report.operations
    row = selection.row_of(operations.rank[path.operations])
    if (row < 0).any():
        return False
    scale = layout.width / selection.span_ns
    thickness = px(_THICKNESS * page.style.line)
    starts = layout.left + (operations.start_ns[path.operations] - selection.start_ns) * scale
    x_ends = layout.left + (operations.end_ns[path.operations] - selection.start_ns) * scale
    edges = np.array(layout.tops)[row] + layout.row - thickness / 2
    points = np.column_stack((starts, x_ends, edges)).tolist()
    steps = [f"{px(start)} {px(edge)}H{px(end)}" for start, end, edge in points]
    look = {"stroke": CRITICAL, "stroke_width": thickness, "stroke_linejoin": "round"}
    page.path("M" + "L".join(steps), fill="none", **look)
    return True
