"""Draws a timeline: the rows of a selection along with their labels, brackets and overlays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.render.marks import MIN_MARK_WIDTH
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.brackets import draw_brackets, measure_brackets
from bubbleviz.render.picture.cause_bands import draw_causes
from bubbleviz.render.picture.clock_marks import draw_error_bars
from bubbleviz.render.picture.critical_line import draw_critical_path
from bubbleviz.render.picture.drawing import box
from bubbleviz.render.picture.extra_pieces import draw_extra_pieces
from bubbleviz.render.picture.labels import RowLabels, draw_labels, label_rows
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.rows import RowPainter, join_close
from bubbleviz.render.picture.spread import draw_spread
from bubbleviz.render.rows import RankRow
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Height of a communication lane relative to its row, and minimum lane height.
_LANE, _MIN_LANE = 0.2, 2.5
#: Height of the spread area below a row, relative to the row, and minimum height of the area.
_STRIP, _MIN_STRIP = 0.4, 5.0
#: Used as the pipeline of a row that shows the spread of replicas, which belong to many pipelines.
_REPLICAS = -1


class TimelinePainter:
    """Draws the rows of a selection, and everything next to the rows.

    All attributes are set by :meth:`draw`.

    Args:
        page: The page.
        report: The report.
        view: Which lanes and overlays to draw.
        selection: The ranks and iterations to draw.

    Attributes:
        rows: The painter of the rows.
        gaps: Whether any gap between a row's windows is drawn.
        causes: Causes of idle time drawn in color, or () if idle time is only hatched.
        pieces: Whether pieces of extra work are drawn.
        critical: Whether the critical path is drawn.
    """

    rows: RowPainter
    gaps: bool
    causes: tuple[Cause, ...]
    pieces: bool
    critical: bool

    def __init__(self, page: Page, report: Report, view: View, selection: Selection) -> None:
        self.page, self.report, self.view, self.selection = page, report, view, selection

    @cached_property
    def labels(self) -> RowLabels:
        """The texts next to the rows."""
        return label_rows(self.report, self.selection, self.page.style)

    def layout(self, *, left: float = 0.0, fraction: float = 1.0, rows: int = 0) -> Layout:
        """Return the layout of a timeline that starts at the page's cursor.

        Args:
            left: Minimum left edge of the plot. Labels may require more space.
            fraction: Fraction of the available width that the plot occupies.
            rows: Minimum number of rows to assume when choosing the row height.
        """
        page = self.page
        row, gap = page.style.row_height(max(len(self.selection.rows), rows))
        lane, strip = self._heights_below(row)
        size = page.style.label_size(row)
        pitch = row + gap + (lane + 2 if lane else 0)
        name_x, min_left, max_right = self.labels.place_columns(page, size)
        left = max(left, min_left)
        top = page.y + measure_brackets(self.selection, page.style) + 5
        return Layout(
            name_x=name_x,
            left=left,
            right=left + (max_right - left) * fraction,
            brackets=page.y,
            row=row,
            lane=lane,
            size=size,
            step=max(1, math.ceil(0.95 * size / pitch)),
            tops=_place_rows(self.selection.rows, top, pitch, gap, strip),
            start_ns=self.selection.start_ns,
            span_ns=self.selection.span_ns,
            strip=strip,
        )

    def _heights_below(self, row: float) -> tuple[float, float]:
        """Return the heights of the communication lane and the spread area below a row.

        A height is 0 if the lane or the area is not drawn.

        Args:
            row: Height of the row.
        """
        lane = max(_MIN_LANE, round(row * _LANE)) if self.view.communication else 0.0
        has_strip = any(drawn.spread for drawn in self.selection.rows)
        strip = max(_MIN_STRIP, row * _STRIP) if has_strip else 0.0
        return lane, strip

    def draw(self, layout: Layout) -> None:
        """Draw the rows, their labels, overlays and brackets, without moving the page's cursor.

        The order from back to front is: spread areas, bubbles, causes of idle time, pieces of extra
        work, labels, operations, the critical path, clock error bars, and brackets. The view and
        the style determine which of the optional parts are drawn.
        """
        page, report, selection = self.page, self.report, self.selection
        self.rows = RowPainter(page, report, selection, layout.width, layout.row, layout.lane)
        if layout.strip:
            draw_spread(page, report, selection, layout)
        self.gaps = _draw_bubbles(page, selection, layout)
        self.causes = draw_causes(page, report, selection, layout) if self.view.causes else ()
        self.pieces = draw_extra_pieces(page, report, selection, layout)
        draw_labels(page, self.labels, layout)
        for row, top in enumerate(layout.tops):
            self.rows.draw(row, layout.left, top)
        self.critical = self.view.critical and draw_critical_path(page, report, selection, layout)
        if page.style.notes:
            draw_error_bars(page, report, selection, layout)
        draw_brackets(page, report, selection, layout)


def _place_rows(
    rows: Sequence[RankRow], top: float, pitch: float, gap: float, strip: float
) -> tuple[float, ...]:
    """Return the upper edge of each row, with more space between rows of different pipelines.

    Args:
        rows: The rows.
        top: Upper edge of the first row.
        pitch: Distance between the upper edges of consecutive rows.
        gap: Gap between consecutive rows, which is included in the pitch.
        strip: Height of the spread area below rows that have such an area.
    """
    pipelines = [_REPLICAS if row.spread else row.rank.pipeline for row in rows]
    tops: list[float] = []
    for index, row in enumerate(rows):
        if index and pipelines[index - 1] != pipelines[index]:
            top += max(gap, 5.0)
        tops.append(top)
        top += pitch + (strip + 2 if row.spread else 0)
    return tuple(tops)


def _draw_bubbles(page: Page, selection: Selection, layout: Layout) -> bool:
    """Draw a hatched box for each window in each row, and a shaded box for gaps between windows.

    Idle time counts as bubble inside the windows. Operations are drawn on top later, so the hatch
    remains visible only where a rank is idle. Windows that are less than ``MIN_MARK_WIDTH`` apart
    are merged.

    Returns:
        Whether any row has a gap between its windows.
    """
    hatches, gaps = "", ""
    for rank, top in zip(selection.ranks, layout.tops, strict=True):
        bottom = top + layout.row
        windows = sorted(
            by_rank[rank.index] for by_rank in selection.windows if rank.index in by_rank
        )
        edges = [(layout.x(start), layout.x(end)) for start, end in windows]
        edges = join_close(edges, MIN_MARK_WIDTH)
        hatches += "".join(box(left, top, right, bottom) for left, right in edges)
        between = ((left, right) for (_, left), (right, _) in pairwise(edges))
        gaps += "".join(box(left, top, right, bottom) for left, right in between)
    page.path(gaps, fill=LIGHT.gap, class_="bv-gap")
    if hatches:
        page.path(hatches, fill=page.hatch())
    return bool(gaps)
