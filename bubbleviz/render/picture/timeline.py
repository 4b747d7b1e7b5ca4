"""The timeline: the rows of a selection from back to front, with what belongs to them."""

from __future__ import annotations

import math

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.values import frozen
from bubbleviz.render.picture.brackets import brackets_height, draw_brackets
from bubbleviz.render.picture.bubbles import WindowGaps, draw_bubbles
from bubbleviz.render.picture.clocks import draw_error_bars
from bubbleviz.render.picture.labels import draw_labels, labels_of
from bubbleviz.render.picture.layout import Layout, row_height
from bubbleviz.render.picture.overlays.causes import draw_causes
from bubbleviz.render.picture.overlays.critical_path import draw_critical_path
from bubbleviz.render.picture.page import MARGIN, WIDTH, Page
from bubbleviz.render.picture.rows.rows import RowPainter
from bubbleviz.render.picture.selection import Selection
from bubbleviz.report.report import Report, View

_RATIO_COLUMN = 50


@frozen
class TimelineContents:
    """What the rows of a timeline hold, for the legend and the notes.

    Attributes:
        rows: their operations.
        gaps: between the windows of a row.
        causes: those that idle time is coloured by; empty where it is hatched alone.
        critical: whether the critical path is drawn.
    """

    rows: RowPainter
    gaps: WindowGaps
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
        ranks = self.selection.ranks
        row, gap = row_height(max(len(ranks), rows))
        lane = max(2.5, round(row * 0.2)) if self.view.communication else 0.0
        size = max(5.5, min(11.0, row * 0.68))
        labels = labels_of(self.report, self.selection, row + gap)
        stage_width = labels.stage_width(size)
        stage_x = MARGIN + (18 if labels.hosts else 0)
        name_x = stage_x + stage_width + (9 if stage_width else 0)
        left = max(left, math.ceil(name_x + labels.name_width(size) + 14))
        top = self.page.y + brackets_height(self.selection) + 5
        tops = []
        for above, rank in zip((None, *ranks), ranks, strict=False):
            if above is not None and above.pipeline != rank.pipeline:
                top += max(gap, 5.0)
            tops.append(top)
            top += row + gap + (lane + 2 if lane else 0)
        return Layout(
            stage_x=stage_x,
            name_x=name_x,
            left=left,
            right=left + (WIDTH - MARGIN - _RATIO_COLUMN - left) * share,
            brackets=self.page.y,
            row=row,
            pitch=row + gap,
            lane=lane,
            size=size,
            tops=tuple(tops),
            start_ns=self.selection.start_ns,
            span_ns=self.selection.span_ns,
        )

    def draw(self, layout: Layout) -> TimelineContents:
        """Draw the rows and what belongs to them; the page's cursor stays."""
        page, report, selection = self.page, self.report, self.selection
        painter = RowPainter(page, report, selection, layout.width, layout.row, layout.lane)
        labels = labels_of(report, selection, layout.pitch)
        gaps = draw_bubbles(page, selection, layout)
        causes = draw_causes(page, report, selection, layout) if self.view.causes else ()
        draw_labels(page, report, selection, labels, layout)
        for row, top in enumerate(layout.tops):
            painter.draw(row, layout.left, top)
        critical = self.view.critical and draw_critical_path(page, report, selection, layout)
        draw_error_bars(page, report, selection, layout)
        draw_brackets(page, report, selection, layout)
        return TimelineContents(painter, gaps, causes, critical)
