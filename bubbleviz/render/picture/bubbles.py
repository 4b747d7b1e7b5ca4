"""Bubbles: the counted windows as hatch, behind the operations that cover the rest of it."""

from __future__ import annotations

from itertools import pairwise

import drawsvg

from bubbleviz.model.values import frozen
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.merging import NARROWEST
from bubbleviz.render.picture.page import Page, box
from bubbleviz.render.selection import Selection

#: Up to so many windows are hatched one by one.
_MOST_WINDOWS = 20_000


@frozen
class WindowGaps:
    """The gaps between the windows of a row: whether any is drawn, and any too narrow to draw."""

    drawn: bool
    hidden: bool


def draw_bubbles(page: Page, selection: Selection, layout: Layout) -> WindowGaps:
    """Hatch the counted windows of every row, and shade the gaps between them."""
    by_row = [
        [(layout.x(start), layout.x(end)) for start, end in _windows_of(selection, row)]
        for row in range(len(layout.tops))
    ]
    windows = _joined(by_row, layout.width)
    hatches, gaps = [], []
    for top, edges in zip(layout.tops, windows, strict=True):
        bottom = top + layout.row
        hatches += [box(left, top, right, bottom) for left, right in edges]
        gaps += [box(left, top, right, bottom) for (_, left), (right, _) in pairwise(edges)]
    for boxes, look in (
        (gaps, {"fill": LIGHT.gap, "class_": "bv-gap"}),
        (hatches, {"fill": page.hatch()}),
    ):
        if boxes:
            page.elements.append(drawsvg.Path("".join(boxes), **look))
    return WindowGaps(bool(gaps), hidden=sum(map(len, windows)) < sum(map(len, by_row)))


def _windows_of(selection: Selection, row: int) -> list[tuple[int, int]]:
    """Return the windows of a row from left to right, ns; adjacent ones are joined."""
    rank = selection.ranks[row].index
    merged: list[tuple[int, int]] = []
    for start, end in sorted(by_rank[rank] for by_rank in selection.windows if rank in by_rank):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _joined(
    windows: list[list[tuple[float, float]]], width: float
) -> list[list[tuple[float, float]]]:
    """Join the windows of each row, px, that have less than a gap between them.

    A gap is as wide as the narrowest operation, and wider where there are too many windows.
    """
    gap = NARROWEST
    while True:
        windows = [_bridged(row, gap) for row in windows]
        if sum(map(len, windows)) <= _MOST_WINDOWS or gap > width:
            return windows
        gap *= 2


def _bridged(edges: list[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Join (left, right) pairs, in their order, that have less than ``gap`` between them."""
    joined: list[tuple[float, float]] = []
    for left, right in edges:
        if joined and left - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], max(right, joined[-1][1]))
        else:
            joined.append((left, right))
    return joined
