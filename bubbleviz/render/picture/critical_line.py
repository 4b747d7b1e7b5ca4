"""The critical line: along the lower edges of the operations that bound an iteration.

From one rank to the next it goes straight: where it slopes, an input was on its way.
"""

from __future__ import annotations

import drawsvg
import numpy as np

from bubbleviz.render.picture.page import Page, px
from bubbleviz.render.picture.palette import CRITICAL
from bubbleviz.render.picture.scene import Selection
from bubbleviz.report.report import Report

_THICKNESS = 2.4


def draw_critical_line(
    page: Page,
    report: Report,
    selection: Selection,
    *,
    left: float,
    width: float,
    tops: tuple[float, ...],
    height: float,
) -> bool:
    """Draw it where its iteration is drawn, and all of its ranks; return whether it is.

    Args:
        page: the page.
        report: whose critical path it is.
        selection: what of it is drawn.
        left: left edge of the plot, px.
        width: of the plot.
        tops: upper edge of each row.
        height: of a row.
    """
    path = report.explanation.path
    drawn = {iteration.index for iteration in selection.iterations}
    if path is None or path.iteration not in drawn or len(path.operations) == 0:
        return False
    operations, rows = report.operations, selection.row_of_rank
    row = np.append(rows, -1)[np.minimum(operations.rank[path.operations], len(rows))]
    if (row < 0).any():
        return False
    scale = width / (selection.end_ns - selection.start_ns)
    starts = left + (operations.start_ns[path.operations] - selection.start_ns) * scale
    ends = left + (operations.end_ns[path.operations] - selection.start_ns) * scale
    edges = np.array(tops)[row] + height - _THICKNESS / 2
    steps = [
        f"{px(start)} {px(edge)}H{px(end)}"
        for start, end, edge in zip(starts.tolist(), ends.tolist(), edges.tolist(), strict=True)
    ]
    look = {"stroke": CRITICAL, "stroke_width": _THICKNESS, "stroke_linejoin": "round"}
    page.elements.append(drawsvg.Path("M" + "L".join(steps), fill="none", **look))
    return True
