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

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.render.palette import COMMUNICATION, LIGHT, UNATTRIBUTED, Paint
from bubbleviz.render.picture.marks import (
    UNATTRIBUTED_KIND,
    communication_marks,
    compute_marks,
    overlapping,
)
from bubbleviz.render.picture.merging import MergedMarks, runs, silhouette, split
from bubbleviz.render.picture.page import Page, box, px
from bubbleviz.render.picture.rows.numbers import (
    NumberPainter,
    SpanlessOperations,
    Tooltips,
    counted_work,
    merged_tooltip,
)
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

# Merged marks: layers as high as their shares of time, with a dotted line below.


#: The dotted line below merged marks: its distance, width and pattern, px.
DOTS = {"stroke": LIGHT.quiet, "stroke_width": 0.7, "stroke_dasharray": "1 1", "class_": "bv-rule"}
DOTS_BELOW = 0.8
#: Gaps of so many px in it are bridged.
_DOTS_BRIDGE = 3


def draw_merged(
    group: Any,
    merged: MergedMarks,
    row: int,
    paints: OperationPaints,
    *,
    width: float,
    height: float,
) -> None:
    """Draw the merged marks of a row as layers, each on top of the one before.

    Args:
        group: the row, with its upper left corner as origin.
        merged: the merged marks of all rows.
        row: its number.
        paints: of the operations.
        width: of the plot, px.
        height: of the row, px.
    """
    share = merged.share[row]
    steps = np.cumsum(np.round(share * height, 1), axis=0)
    for layer in reversed(range(len(merged.kinds))):
        kind, other = merged.kinds[layer]
        heights = np.where(share[layer] > 0, steps[layer], 0.0)
        if not (path := silhouette(heights, height, merged.column, width)):
            continue
        if other:
            group.append(drawsvg.Path(path, fill=LIGHT.paper, class_="bv-paper"))
        colour, opacity = paints.of(kind, NONE).main, 0.3 if other else None
        group.append(drawsvg.Path(path, fill=colour, fill_opacity=opacity, class_="bv-merged"))
    mark_merged(group, merged, row, width=width, top=0.0, bottom=height)


def mark_merged(
    group: Any, merged: MergedMarks, row: int, *, width: float, top: float, bottom: float
) -> None:
    """Dot the lower edge of merged marks, and describe them stretch by stretch in tooltips."""
    y = px(bottom + DOTS_BELOW)
    dots = "".join(
        f"M{first} {y}H{px(min(end, width))}"
        for first, end in runs(merged.there[row], _DOTS_BRIDGE)
    )
    if not dots:
        return
    group.append(drawsvg.Path(dots, fill="none", **DOTS))
    stretches = drawsvg.Group(fill="none", pointer_events="all", class_="bv-merged")
    for stretch in np.flatnonzero(merged.counts[row].sum(axis=0)).tolist():
        left, counts = stretch * merged.stretch, merged.counts[row, :, stretch]
        places = np.flatnonzero(merged.there[row, left : left + merged.stretch])
        if not len(places):  # half a pixel before the stretch that holds its middle
            continue
        right = min(left + int(places[-1]) + 1, width)
        path = box(left + int(places[0]), top, right, bottom)
        element = drawsvg.Path(path, data_operations=_operations(merged, counts))
        element.append_title(merged_tooltip(merged, counts))
        stretches.append(element)
    group.append(stretches)


def _operations(merged: MergedMarks, counts: Ints) -> int:
    attributed = [kind != UNATTRIBUTED_KIND for kind, _ in merged.kinds]
    return int(counts[attributed].sum())


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


# The communication lane: a thin lane below a row.


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


# The content of the rows: merged marks, boxes, numbers, hollow marks and communication lanes.


class RowPainter:
    """Draws the operations of one selection of a report, on rows of one height.

    Args:
        page: the page.
        report: any report.
        selection: what of it is drawn.
        width: of the plot, px.
        height: of a row, px.
        lane: height of the communication lane below it, px; 0 for none.

    Attributes:
        paints: of the operations.
        boxes: the compute operations.
        spanless: those without device time.
        lane: the communication operations; None where they are not drawn.
    """

    def __init__(
        self,
        page: Page,
        report: Report,
        selection: Selection,
        width: float,
        height: float,
        lane: float,
    ) -> None:
        self._page = page
        self._height = height
        self.paints = OperationPaints(report.operations, selection)
        chunked = self.paints.shades > 1
        tooltips = Tooltips(report, selection.start_ns, chunked=chunked)
        self.boxes = Boxes(page, report, selection, self.paints, tooltips, width, height)
        self.spanless = SpanlessOperations(report.operations, selection, tooltips)
        self.lane = CommunicationLane(report, selection, tooltips, width, lane) if lane else None

    @property
    def merged_words(self) -> str:
        """The number of merged operations, communication included; empty for none."""
        lane = 0 if self.lane is None else self.lane.merged.operations
        return counted_work(self.boxes.merged.operations + lane, self.boxes.merged.unattributed)

    @property
    def merged_colours(self) -> list[str]:
        """Two colours that stand for the merged operations."""
        kinds = list(dict.fromkeys(kind for kind, _ in self.boxes.merged.kinds))
        kinds = kinds or [Phase.COLLECTIVE]
        return [self.paints.of(kind, NONE).main for kind in (kinds[0], kinds[1 % len(kinds)])]

    @property
    def narrower(self) -> float:
        """Merged operations are narrower than this, px."""
        lane = 0.0 if self.lane is None else self.lane.merged.narrower
        return max(self.boxes.merged.narrower, lane)

    def draw(self, row: int, left: float, top: float) -> None:
        """Draw one row with its upper left corner there."""
        group = drawsvg.Group(transform=f"translate({px(left)} {px(top)})")
        self.boxes.draw(group, row)
        self.spanless.draw(group, row, self._height)
        if self.lane is not None:
            self.lane.draw(group, row, self._height)
        if group.children:
            self._page.elements.append(group)
