"""The timeline: the rows of a selection from back to front, with what belongs to them."""

from __future__ import annotations

import math
from itertools import pairwise

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.labels import (
    brackets_height,
    draw_brackets,
    draw_error_bars,
    draw_labels,
    labels_of,
)
from bubbleviz.render.picture.merging import NARROWEST
from bubbleviz.render.picture.overlays.causes import draw_causes, draw_critical_path
from bubbleviz.render.picture.page import Page, box
from bubbleviz.render.picture.rows import RowPainter
from bubbleviz.render.picture.spread import Layout, draw_spread
from bubbleviz.render.rows import RankRow, Selection
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

# Bubbles: the counted windows as hatch, behind the operations that cover the rest of it.


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
            page.path("".join(boxes), **look)
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


#: The column of ratios is so wide on a screen at least.
_RATIO_COLUMN = 50
#: Most of the height of a row that its communication lane has, and the lowest lane.
_LANE, _LOWEST_LANE = 0.2, 2.5
#: The height of an area below a row, and the lowest one.
_STRIP, _LOWEST_STRIP = 0.4, 5.0
#: In place of a pipeline, where a row is of many.
_COPIES = -1


@frozen
class TimelineContents:
    """What the rows of a timeline hold, for the legend and the notes.

    Attributes:
        rows: their operations.
        gaps: between the windows of a row.
        causes: those that idle time is coloured by; empty where it is hatched alone.
        critical: whether the critical path is drawn.
        spread: whether areas below rows show how many copies are at work.
    """

    rows: RowPainter
    gaps: WindowGaps
    causes: tuple[Cause, ...]
    critical: bool
    spread: bool = False


class TimelinePainter:
    """Draws the rows of one selection of a report.

    Args:
        page: the page.
        report: any report.
        view: the lanes and overlays to draw.
        selection: the ranks and iterations to draw.
    """

    def __init__(self, page: Page, report: Report, view: View, selection: Selection) -> None:
        self.page = page
        self.report = report
        self.view = view
        self.selection = selection

    def layout(self, *, left: float = 0.0, share: float = 1.0, rows: int = 0) -> Layout:
        """Return the layout from the page's cursor down.

        Args:
            left: the plot begins there, or further right where labels need it.
            share: of the available width, that the plot takes.
            rows: as high as for so many rows, or for its own where these are more.
        """
        ranks, page, letters = self.selection.ranks, self.page, self.page.style.letters
        row, gap = page.style.row_height(max(len(ranks), rows))
        lane = max(_LOWEST_LANE, round(row * _LANE)) if self.view.communication else 0.0
        size = max(letters.least_label, min(letters.label, row * 0.68))
        pitch = row + gap + (lane + 2 if lane else 0)
        labels = labels_of(self.report, self.selection, row + gap, page.style)
        stage_width, name_width = labels.stage_width(size), labels.name_width(size)
        stage_x = page.left + (1.8 * letters.axis if labels.hosts else 0)
        name_x = stage_x + stage_width + (0.8 * size if stage_width and name_width else 0)
        left = max(left, math.ceil(name_x + name_width + 0.6 * size))
        right = page.right - 0.6 * size - labels.ratio_width(size)
        if not page.style.millimetres:
            right = min(right, page.right - _RATIO_COLUMN)
        top = page.y + brackets_height(self.selection, page.style) + 5
        tops = []
        drawn = self.selection.rows
        strip = max(_LOWEST_STRIP, row * _STRIP) if any(own.spread for own in drawn) else 0.0
        for above, own in zip((None, *drawn), drawn, strict=False):
            if above is not None and _group(above) != _group(own):
                top += max(gap, 5.0)
            tops.append(top)
            top += pitch + (strip + 2 if own.spread else 0)
        return Layout(
            stage_x=stage_x,
            name_x=name_x,
            left=left,
            right=left + (right - left) * share,
            brackets=page.y,
            row=row,
            pitch=row + gap,
            lane=lane,
            size=size,
            step=max(1, math.ceil(0.95 * size / pitch)),
            tops=tuple(tops),
            start_ns=self.selection.start_ns,
            span_ns=self.selection.span_ns,
            strip=strip,
        )

    def draw(self, layout: Layout) -> TimelineContents:
        """Draw the rows and what belongs to them; the page's cursor stays."""
        page, report, selection = self.page, self.report, self.selection
        painter = RowPainter(page, report, selection, layout.width, layout.row, layout.lane)
        labels = labels_of(report, selection, layout.pitch, page.style)
        spread = draw_spread(page, report, selection, layout)
        gaps = draw_bubbles(page, selection, layout)
        causes = draw_causes(page, report, selection, layout) if self.view.causes else ()
        draw_labels(page, labels, layout)
        for row, top in enumerate(layout.tops):
            painter.draw(row, layout.left, top)
        critical = self.view.critical and draw_critical_path(page, report, selection, layout)
        if page.style.notes:
            draw_error_bars(page, report, selection, layout)
        draw_brackets(page, report, selection, layout)
        return TimelineContents(painter, gaps, causes, critical, spread)


def _group(row: RankRow) -> int | None:
    """Return what a row belongs to: its pipeline, or nothing that it shares with single ranks."""
    return _COPIES if row.spread else row.rank.pipeline
