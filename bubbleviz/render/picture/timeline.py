"""The timeline: the rows of a selection from back to front, with what belongs to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.labels import (
    Layout,
    brackets_height,
    draw_brackets,
    draw_error_bars,
    draw_labels,
    labels_of,
)
from bubbleviz.render.picture.marks import NARROWEST
from bubbleviz.render.picture.overlays import draw_causes, draw_critical_path
from bubbleviz.render.picture.page import Page, box, px
from bubbleviz.render.picture.rows import RowPainter
from bubbleviz.render.rows import RankRow, Selection
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Up to so many windows are hatched one by one.
_MOST_WINDOWS = 20_000
#: The column of ratios is so wide on a screen at least.
_RATIO_COLUMN = 50
#: Most of the height of a row that its communication lane has, and the lowest lane.
_LANE, _LOWEST_LANE = 0.2, 2.5
#: The height of an area below a row, the lowest one, and the width of a part of the time in it.
_STRIP, _LOWEST_STRIP, _PART = 0.4, 5.0, 1.5
#: In place of a pipeline, where a row is of many.
_COPIES = -1

_Edges = Sequence[tuple[Any, Any]]


@frozen
class TimelineContents:
    """What the rows of a timeline hold, for the legend and the notes.

    Attributes:
        rows: their operations.
        gaps: whether any gap between the windows of a row is drawn.
        hidden_gaps: whether any is too narrow to be drawn.
        causes: those that idle time is coloured by; empty where it is hatched alone.
        critical: whether the critical path is drawn.
    """

    rows: RowPainter
    gaps: bool
    hidden_gaps: bool
    causes: tuple[Cause, ...]
    critical: bool


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
        if layout.strip:
            _draw_spread(page, report, selection, layout)
        gaps, hidden_gaps = _draw_bubbles(page, selection, layout)
        causes = draw_causes(page, report, selection, layout) if self.view.causes else ()
        draw_labels(page, labels, layout)
        for row, top in enumerate(layout.tops):
            painter.draw(row, layout.left, top)
        critical = self.view.critical and draw_critical_path(page, report, selection, layout)
        if page.style.notes:
            draw_error_bars(page, report, selection, layout)
        draw_brackets(page, report, selection, layout)
        return TimelineContents(painter, gaps, hidden_gaps, causes, critical)


def _group(row: RankRow) -> int | None:
    """Return what a row belongs to: its pipeline, or nothing that it shares with single ranks."""
    return _COPIES if row.spread else row.rank.pipeline


# Bubbles: the counted windows as hatch, behind the operations that cover the rest of it.


def _draw_bubbles(page: Page, selection: Selection, layout: Layout) -> tuple[bool, bool]:
    """Hatch the counted windows of every row, and shade the gaps between them.

    Windows are joined that have less than a gap between them: as wide as the narrowest operation,
    and wider where there are too many windows. Return whether any gap is drawn, and any is not.
    """
    windows: list[_Edges] = []
    for rank in selection.ranks:
        index = rank.index
        own = sorted(by_rank[index] for by_rank in selection.windows if index in by_rank)
        windows.append([(layout.x(a), layout.x(b)) for a, b in _bridged(own, 0)])
    count, gap = sum(map(len, windows)), NARROWEST
    while True:
        windows = [_bridged(row, gap) for row in windows]
        if sum(map(len, windows)) <= _MOST_WINDOWS or gap > layout.width:
            break
        gap *= 2
    hatches, gaps = "", ""
    for top, edges in zip(layout.tops, windows, strict=True):
        bottom = top + layout.row
        hatches += "".join(box(left, top, right, bottom) for left, right in edges)
        between = ((left, right) for (_, left), (right, _) in pairwise(edges))
        gaps += "".join(box(left, top, right, bottom) for left, right in between)
    page.path(gaps, fill=LIGHT.gap, class_="bv-gap")
    if hatches:
        page.path(hatches, fill=page.hatch())
    return bool(gaps), sum(map(len, windows)) < count


def _bridged(edges: _Edges, gap: float) -> _Edges:
    """Join (left, right) pairs, in their order, that overlap or have less than a gap between."""
    joined: list[tuple[Any, Any]] = []
    for left, right in edges:
        if joined and (left - joined[-1][1] < gap or left <= joined[-1][1]):
            joined[-1] = (joined[-1][0], max(right, joined[-1][1]))
        else:
            joined.append((left, right))
    return joined


# Spread: below a row that is the median of its copies, how many of all copies are at work.


def _draw_spread(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw areas whose height is the share of copies that compute, in each part of the time.

    ::

        F0 ██████   F1 ██████      the median copy
           ▟████▙      ▟████▙      all copies: steep where they are together, flat where not
    """
    operations, busy = report.operations, report.busy
    shown = np.isin(operations.phase, COMPUTE)[busy.operation]
    shown &= (busy.end_ns > selection.start_ns) & (busy.start_ns < selection.end_ns)
    rank: Ints = operations.rank[busy.operation[shown]]
    parts = max(1, int(layout.width / _PART))
    width = layout.width / parts
    edges_ns = np.linspace(selection.start_ns, selection.end_ns, parts + 1)
    for row, top in zip(selection.rows, layout.tops, strict=True):
        if not row.spread:
            continue
        among = np.zeros(len(report.ranks), bool)
        among[list(row.replicas)] = True
        own = among[rank]
        worked_ns = _until(edges_ns, busy.start_ns[shown][own])
        worked_ns -= _until(edges_ns, busy.end_ns[shown][own])
        shares = np.diff(worked_ns) / np.diff(edges_ns) / len(row.replicas)
        # To a tenth of a unit.
        heights = np.round(np.clip(shares, 0, 1) * layout.strip, 1).tolist()
        bottom, path, last = top + layout.row + 1 + layout.strip, "", 0.0
        for part, height in enumerate(heights):
            if height != last:
                path += f"H{px(layout.left + part * width)}V{px(bottom - height)}"
            last = height
        start, end = f"M{px(layout.left)} {px(bottom)}", f"H{px(layout.right)}V{px(bottom)}z"
        page.path(f"{start}{path}{end}", fill=LIGHT.quiet, class_="bv-quiet")


def _until(edges_ns: Floats, times_ns: Ints) -> Floats:
    """Return, for each edge, the sum of how long before it each of some times lies."""
    times = np.sort(times_ns)
    sums = np.concatenate((np.zeros(1), np.cumsum(times, dtype=np.float64)))
    before = np.searchsorted(times, edges_ns)
    return np.asarray(before * edges_ns - sums[before], np.float64)
