"""Cause bands: idle time behind the operations of a picture, coloured by why it is there."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model import intervals
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page, box
from bubbleviz.render.selection import Selection
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
