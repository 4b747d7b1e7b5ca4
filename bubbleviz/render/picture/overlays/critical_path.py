"""The critical line: along the lower edges of the operations that bound an iteration.

From one rank to the next it goes straight: where it slopes, an input was on its way.
"""

from __future__ import annotations

import drawsvg
import numpy as np

from bubbleviz.render.palette import CRITICAL
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page, px
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

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
    page.elements.append(drawsvg.Path("M" + "L".join(steps), fill="none", **look))
    return True
