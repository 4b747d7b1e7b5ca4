"""The communication lane: a thin lane below a row."""

from __future__ import annotations

from typing import Any

import drawsvg
import numpy as np

from bubbleviz.render.palette import COMMUNICATION, LIGHT
from bubbleviz.render.picture.marks import communication_marks
from bubbleviz.render.picture.merging import silhouette, split
from bubbleviz.render.picture.page import box
from bubbleviz.render.picture.rows.boxes import MOST_TOOLTIPS
from bubbleviz.render.picture.rows.merged import mark_merged
from bubbleviz.render.picture.rows.tooltips import Tooltips
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Between a row and its lane, px.
LANE_GAP = 1.5


class CommunicationLane:
    """The communication operations of a selection.

    Args:
        report: any report.
        selection: what of it is drawn.
        tooltips: of its operations.
        width: of the plot, px.
        height: of the lane, px.

    Attributes:
        merged: the operations too narrow to be drawn one by one.
    """

    def __init__(
        self,
        report: Report,
        selection: Selection,
        tooltips: Tooltips,
        width: float,
        height: float,
    ) -> None:
        blocks = communication_marks(report, selection, width)
        self._marks, self.merged = split(blocks, len(selection.ranks), width)
        self._tooltips = tooltips
        self._width = width
        self._height = height

    @property
    def empty(self) -> bool:
        """Whether there is no communication."""
        return not len(self._marks) and not self.merged.kinds

    def draw(self, group: Any, row: int, top: float) -> None:
        """Draw the lane of one row below ``top``, the lower edge of the row."""
        marks, merged = self._marks, self.merged
        top += LANE_GAP
        bottom = top + self._height
        # In so thin a lane a share would be invisible: the merged marks are drawn at full height.
        heights = np.where(merged.share[row].sum(axis=0) > 0, self._height, 0.0)
        if path := silhouette(heights, bottom, merged.column, self._width):
            group.append(drawsvg.Path(path, fill=COMMUNICATION, class_="bv-merged"))
        mark_merged(group, merged, row, width=self._width, top=top, bottom=bottom)
        first, last = np.searchsorted(marks.row, (row, row + 1)).tolist()
        boxes = {
            index: box(float(marks.left[index]), top, float(marks.right[index]), bottom)
            for index in range(first, last)
        }
        lane = drawsvg.Group(
            fill=COMMUNICATION, stroke=LIGHT.frame, stroke_width=0.3, class_="bv-frame"
        )
        if len(marks) <= MOST_TOOLTIPS:
            for index, path in boxes.items():
                element = drawsvg.Path(path)
                element.append_title(self._tooltips.tooltip(int(marks.operation[index])))
                lane.append(element)
        elif boxes:
            lane.append(drawsvg.Path("".join(boxes.values())))
        if lane.children:
            group.append(lane)
