"""The boxes of compute operations, back to front, and their numbers.

A row from back to front: merged marks (dotted below), operations of other iterations (faded),
operations, and in its lower half what runs while another operation does; then the numbers.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import drawsvg
import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.render.palette import LIGHT, UNATTRIBUTED, Paint
from bubbleviz.render.picture.marks import compute_marks, overlapping
from bubbleviz.render.picture.merging import split
from bubbleviz.render.picture.page import Page, box, px
from bubbleviz.render.picture.rows.merged import draw_merged
from bubbleviz.render.picture.rows.numbers import NumberPainter
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.picture.rows.tooltips import Tooltips
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Up to so many marks, each has a tooltip of its own.
MOST_TOOLTIPS = 4_000

# (typical width of a mark at least, width of its frame), px
_FRAMES = ((6.0, 0.7), (3.0, 0.4), (1.4, 0.2))


class Boxes:
    """The compute of one selection of a report, on rows of one height.

    Attributes:
        merged: the marks too narrow to be drawn one by one.
        kinds: the phases (and unattributed compute) that are drawn.
        others: whether operations of other iterations are drawn.
        cut: whether the end of the capture cut an operation.
    """

    def __init__(
        self,
        page: Page,
        report: Report,
        selection: Selection,
        paints: OperationPaints,
        tooltips: Tooltips,
        width: float,
        height: float,
    ) -> None:
        self._page = page
        self._paints = paints
        self._tooltips = tooltips
        self._width = width
        self._height = height
        marks, merged = split(compute_marks(report, selection, width), len(selection.ranks), width)
        self._marks, self.merged = marks, merged
        self.kinds = set(marks.kind.tolist()) | {kind for kind, _ in merged.kinds}
        self.others = bool(marks.other.any()) or any(other for _, other in merged.kinds)
        self._cut = np.isin(marks.operation, np.flatnonzero(report.operations.cut == 1))
        self.cut = bool(self._cut.any())
        self._inside, holds = overlapping(marks)
        overlaps = self._inside, holds
        self._numbers = NumberPainter(
            page, report.operations, selection, marks, overlaps, paints, height
        )
        lengths = marks.right - marks.left
        typical = float(np.percentile(lengths, 30)) if len(lengths) else 0.0
        frame = next((frame for least, frame in _FRAMES if typical >= least), 0.0)
        self._frame = px(frame * page.style.line)

    def draw(self, group: Any, row: int) -> None:
        """Draw one row into a group whose origin is the row's upper left corner."""
        draw_merged(group, self.merged, row, self._paints, width=self._width, height=self._height)
        first, last = np.searchsorted(self._marks.row, (row, row + 1)).tolist()
        self._draw_marks(group, range(first, last))
        self._numbers.draw(group, range(first, last))

    def _draw_marks(self, group: Any, indices: range) -> None:
        """Draw the marks of one row in layers: inside others last, other iterations first."""
        layers: dict[tuple[bool, bool], list[int]] = defaultdict(list)
        # A box of half the height leaves no bubble above it.
        if inner := self._underlay([i for i in indices if self._inside[i]], 0.0):
            group.append(drawsvg.Path(inner, fill=LIGHT.paper, class_="bv-paper"))
        for index in indices:
            layers[bool(self._inside[index]), not self._marks.other[index]].append(index)
        for (inside, selected), members in sorted(layers.items()):
            top = self._height / 2 if inside else 0.0
            if not selected:
                under = self._underlay(members, top)
                group.append(drawsvg.Path(under, fill=LIGHT.paper, class_="bv-paper"))
            self._draw_layer(group, members, top, faded=not selected)
            self._draw_cuts(group, members, top)

    def _box(self, index: int, top: float, bottom: float) -> str:
        return box(float(self._marks.left[index]), top, float(self._marks.right[index]), bottom)

    def _underlay(self, indices: list[int], top: float) -> str:
        """Return the path below marks; of many, adjacent ones are joined."""
        if len(self._marks) <= MOST_TOOLTIPS:
            return "".join(self._box(index, top, self._height) for index in indices)
        joined: list[list[float]] = []
        for index in indices:
            left, right = float(self._marks.left[index]), float(self._marks.right[index])
            if joined and left - joined[-1][1] < 0.05:
                joined[-1][1] = max(joined[-1][1], right)
            else:
                joined.append([left, right])
        return "".join(box(left, top, right, self._height) for left, right in joined)

    def _draw_layer(self, group: Any, members: list[int], top: float, *, faded: bool) -> None:
        """Draw marks as boxes: one path an operation, or one a paint where there are many."""
        marks = self._marks
        look: dict[str, Any] = {}
        if self._frame:
            look = {"class_": "bv-frame", "stroke": LIGHT.frame, "stroke_width": self._frame}
        if faded:
            look |= {"fill_opacity": 0.3, "stroke_opacity": 0.45}
        layer = drawsvg.Group(**look)
        tooltips = len(marks) <= MOST_TOOLTIPS
        boxes: dict[tuple[int, Paint], list[int]] = defaultdict(list)
        for index in members:
            operation, kind = int(marks.operation[index]), int(marks.kind[index])
            paint = self._paints.of(kind, operation)
            boxes[operation if tooltips else NONE, paint].append(index)
        for (operation, paint), parts in boxes.items():
            self._draw_boxes(layer, operation, paint, parts, top)
        group.append(layer)

    def _draw_boxes(
        self, layer: Any, operation: int, paint: Paint, parts: list[int], top: float
    ) -> None:
        """Draw marks of one paint, and of one operation unless that is ``NONE``, as one path."""
        marks, height = self._marks, self._height
        if paint.main == UNATTRIBUTED:
            path = "".join(self._box(i, 0.2 * height, 0.8 * height) for i in parts)
            layer.append(drawsvg.Path(path, fill=UNATTRIBUTED, stroke="none"))
            return
        path = "".join(self._box(index, top, height) for index in parts)
        element = drawsvg.Path(path, fill=self._page.fill(paint))
        layer.append(element)
        if operation == NONE:
            return
        element.append_title(self._tooltips.tooltip(operation))
        for before, after in pairwise(parts):
            # A receive spins in this hole: bubble, but of one operation.
            hole = f"M{px(marks.right[before])} {px((top + height) / 2)}"
            hole += f"H{px(marks.left[after])}"
            layer.append(drawsvg.Path(hole, stroke=paint.main, stroke_width=1.5))

    def _draw_cuts(self, group: Any, members: list[int], top: float) -> None:
        """Tear the right edge of operations that the end of the capture cut."""
        marks = self._marks
        last = {int(marks.operation[index]): index for index in members if self._cut[index]}
        for index in last.values():
            left, right = float(marks.left[index]), float(marks.right[index])
            depth, height = min(4.0, (right - left) / 2), self._height - top
            teeth = "L".join(
                f"{px(right - depth * (tooth % 2))} {px(top + height * tooth / 6)}"
                for tooth in range(7)
            )
            group.append(
                drawsvg.Path(
                    f"M{teeth}V{px(top)}z",
                    fill=LIGHT.paper,
                    stroke=LIGHT.text,
                    stroke_width=0.9,
                    class_="bv-paper bv-mark",
                )
            )
