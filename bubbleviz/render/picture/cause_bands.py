"""Draws idle time behind the operations of a picture, in a different color for each cause."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints
from bubbleviz.render.picture.drawing import box
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Number of grid lines per px to which intervals are aligned. A finer grid would not be visible.
_GRID = 2


def draw_causes(
    page: Page, report: Report, selection: Selection, layout: Layout
) -> tuple[Cause, ...]:
    """Draw each row's idle time in the colors of its causes.

    Only idle time in the selected iterations is drawn.

    Returns:
        The causes that were drawn, in the order of ``Cause``.
    """
    bubbles = report.bubbles.take(selection.is_selected(report.bubbles.iteration))
    row = selection.row_of(bubbles.rank)
    scale = _GRID * layout.width / selection.span_ns
    last_line = round(layout.width * _GRID)
    start = np.floor((bubbles.start_ns - selection.start_ns) * scale)
    end = np.ceil((bubbles.end_ns - selection.start_ns) * scale)
    start, end = (np.clip(edge.astype(np.int64), 0, last_line) for edge in (start, end))
    selected = []
    for cause in Cause:
        path = ""
        for number, top in enumerate(layout.tops):
            members = (row == number) & (bubbles.cause == cause)
            path += _make_bands(layout, top, start[members], end[members])
        if path:
            selected.append(cause)
            page.cause_boxes(path, cause.label)
    return tuple(selected)


def _make_bands(layout: Layout, top: float, start: Ints, end: Ints) -> str:
    """Return the SVG path of boxes with the height of a row. Overlapping boxes are merged.

    Args:
        layout: Layout of the rows.
        top: Upper edge of the row.
        start: Left edge of each box, as the index of a grid line (0 is the left edge of the plot).
        end: Right edge of each box, as the index of a grid line.
    """
    lefts, rights = (layout.left + lines / _GRID for lines in intervals.union(start, end))
    bottom = top + layout.row
    edges = zip(lefts.tolist(), rights.tolist(), strict=True)
    return "".join(box(left, top, right, bottom) for left, right in edges)
