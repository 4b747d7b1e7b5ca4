"""Draws the pieces of extra work that fit into the bubbles of a picture."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.extra_work import find_slots
from bubbleviz.model.grouping import expand_ranges
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.drawing import box
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Attributes of the boxes.
PIECE_LOOK = {"fill": LIGHT.paper, "stroke": LIGHT.text, "class_": "bv-paper bv-mark"}
#: Width of the lines around boxes, relative to the lines of the style.
PIECE_LINE = 0.5
#: Minimum width of a piece in page units. If pieces are narrower, one box shows all pieces of a
#: bubble.
_MIN_WIDTH = 3.0
#: Distance between a box and the edges of its row, as a fraction of the row's height.
_INSET = 0.25


def draw_extra_pieces(page: Page, report: Report, selection: Selection, layout: Layout) -> bool:
    """Draw a box for each piece of extra work that fits into the bubbles of the selection.

    All pieces that fit are drawn, even if the job has fewer pieces.

    Returns:
        Whether any piece was drawn.
    """
    extra = report.extra_work
    if extra is None:
        return False
    slots = find_slots(report.bubbles, len(report.ranks), len(report.iterations))
    row = selection.row_of(slots.rank)
    n_pieces = (slots.end_ns - slots.start_ns) // extra.piece_ns
    is_drawn = (row >= 0) & (n_pieces > 0) & selection.is_selected(slots.iteration)
    row, n_pieces, start_ns = row[is_drawn], n_pieces[is_drawn], slots.start_ns[is_drawn]
    scale = layout.width / selection.span_ns
    width = extra.piece_ns * scale
    if width < _MIN_WIDTH:
        widths = n_pieces * width
        lefts = layout.left + (start_ns - selection.start_ns) * scale
    else:
        slot, number = expand_ranges(np.zeros(len(n_pieces), np.int64), n_pieces)
        lefts = layout.left + (start_ns[slot] - selection.start_ns) * scale + number * width
        row, widths = row[slot], np.full(len(slot), width)
    tops = np.array(layout.tops)[row] + _INSET * layout.row
    height = (1 - 2 * _INSET) * layout.row
    corners = np.column_stack((lefts, tops, lefts + widths, tops + height)).tolist()
    path = "".join(box(*edges) for edges in corners)
    page.path(path, stroke_width=PIECE_LINE * page.style.line, **PIECE_LOOK)
    return bool(path)
