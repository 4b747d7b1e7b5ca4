"""Draws the rows of a picture: each rank's operations, drawn to scale, and their numbers.

A row contains the following, from back to front: merged marks with a dotted line below them,
operations, overlapping operations at half height, and microbatch numbers. If operations have no
device time, the row also has a hollow mark. Below the row is a thin lane with communication.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.texts import format_count, to_one_line
from bubbleviz.render import palette
from bubbleviz.render.marks import (
    LOWER,
    OTHER_ITERATION,
    UNATTRIBUTED_KIND,
    UPPER,
    WHOLE,
    Marks,
    MergedMarks,
    choose_halves,
    make_communication_marks,
    make_compute_marks,
    split_marks,
)
from bubbleviz.render.palette import COMMUNICATION, LIGHT, UNATTRIBUTED, WHITE, Paint
from bubbleviz.render.picture.box_numbers import number_boxes
from bubbleviz.render.picture.drawing import (
    Element,
    box,
    make_circle,
    make_group,
    make_path,
    px,
)
from bubbleviz.render.picture.page import Page
from bubbleviz.render.selection import Selection
from bubbleviz.report.labels import format_operations
from bubbleviz.report.report import Report

#: SVG attributes of the dotted line below merged marks, and its distance from the marks in px.
DOTS = {"stroke": LIGHT.quiet, "stroke_width": 0.7, "stroke_dasharray": "1 1", "class_": "bv-rule"}
DOTS_BELOW = 0.8
#: Width, in px, below which gaps in the dotted line are filled.
_DOTS_BRIDGE = 3
#: Maximum number of marks for which a picture's operations have tooltips.
MAX_TOOLTIPS = 4_000
# (minimum width of a typical box, frame width), in px. Boxes narrower than this have no frame.
_FRAMES = ((6.0, 0.7), (3.0, 0.4), (1.4, 0.2))
#: Gap between a row and its communication lane, in px.
LANE_GAP = 1.5
#: Frame width of a box in the communication lane, in px.
_LANE_FRAME = 0.3
#: Maximum number of operations without device time named in the tooltip of a hollow mark.
_MAX_NAMED = 8


class RowPainter:
    """Draws the operations of a selection. All rows have the same height.

    Args:
        page: The page.
        report: The report.
        selection: The rows, iterations and time to draw.
        width: Width of the plot, in px.
        height: Height of a row, in px.
        lane: Height of the communication lane below each row in px, or 0 for no lane.

    Attributes:
        merged: Compute marks too narrow to be drawn one by one.
        spanless: Indices of the compute operations without device time, keyed by picture row.
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
        self._page, self._report, self._selection = page, report, selection
        self._operations = report.operations
        self._width, self._height, self._lane_height = width, height, lane
        rows = len(selection.rows)
        computed = make_compute_marks(report, selection, width)
        self._marks, self.merged = split_marks(computed, rows, width)
        sent = make_communication_marks(report, selection, width) if lane else ()
        self._lane, self._merged_lane = split_marks(sent, rows, width)
        self._half, is_covered = choose_halves(self._marks)
        # If boxes overlap, only half the row height is available for their numbers.
        self._room = height * (2 - (self._half != WHOLE) - is_covered) / 2
        self._numbers = number_boxes(
            self._operations, selection, self._marks, self._room, page.style.letters
        )
        self.spanless = self._find_spanless()

    @cached_property
    def chunks(self) -> list[int]:
        """Numbers of the model chunks whose operations run on the drawn ranks, ascending.

        All iterations are considered. Optimizer operations and operations on unknown chunks are
        ignored.
        """
        operations = self._operations
        is_drawn = np.isin(operations.rank, [rank.index for rank in self._selection.ranks])
        is_work = is_drawn & np.isin(operations.phase, WORK)
        chunks = find_distinct(operations.chunk[is_work], operations.second_chunk[is_work])
        numbers: list[int] = chunks[chunks != NONE].tolist()
        return numbers

    @cached_property
    def kinds(self) -> set[int]:
        """Kinds of all drawn marks, including communication and merged marks."""
        return {*self._marks.kind.tolist(), *self._lane.kind.tolist(), *self.merged.kinds}

    @property
    def has_communication(self) -> bool:
        """Whether any row's communication lane contains a mark."""
        return bool(len(self._lane) or self._merged_lane.kinds)

    @property
    def has_numbers(self) -> bool:
        """Whether boxes contain microbatch numbers."""
        return bool(self._numbers)

    @property
    def max_merged_width(self) -> float:
        """Width in px below which marks are merged."""
        return max(self.merged.max_width, self._merged_lane.max_width)

    @property
    def merged_words(self) -> str:
        """Text with the number of merged operations and of merged unattributed-compute intervals.

        Communication marks are counted as operations. The text is "" if no marks are merged.
        """
        merged = self.merged.counts + self._merged_lane.counts
        unattributed = merged.pop(UNATTRIBUTED_KIND, 0)
        parts = [format_count(merged.total(), "operation")] if merged.total() else []
        if unattributed:
            parts.append(f"{format_count(unattributed, 'time')} unattributed compute")
        return " and ".join(parts)

    @property
    def merged_colors(self) -> tuple[str, ...]:
        """Distinct colors of the merged marks, communication last."""
        kinds = *self.merged.kinds, *self._merged_lane.kinds
        return tuple(dict.fromkeys(self._paint(kind, NONE).main for kind in kinds))

    @cached_property
    def _frame(self) -> float:
        """Frame width of boxes, based on the 30th percentile of box widths."""
        widths = self._marks.right - self._marks.left
        typical = float(np.percentile(widths, 30)) if len(widths) else 0.0
        frame = next((frame for min_width, frame in _FRAMES if typical >= min_width), 0.0)
        return px(frame * self._page.style.line)

    def _find_spanless(self) -> dict[int, Ints]:
        """Find the compute operations without device time in the selected iterations.

        Returns: Operation indices, keyed by picture row. Picture rows without such operations are
            left out.
        """
        operations = self._operations
        is_spanless = np.isin(operations.phase, COMPUTE) & (operations.has_span == 0)
        is_spanless &= self._selection.is_selected(operations.iteration)
        spanless = np.flatnonzero(is_spanless)
        row = self._selection.row_of(operations.rank[spanless])
        return {
            number: spanless[row == number] for number in find_distinct(row[row != NONE]).tolist()
        }

    def _paint(self, kind: int, operation: int) -> Paint:
        """Return the paint of a mark.

        Args:
            kind: Kind of the mark: a phase code, ``UNATTRIBUTED_KIND`` or ``OTHER_ITERATION``.
            operation: Index of the operation, whose chunk determines the shade, or -1 to use the
                base color of the phase.
        """
        if kind == UNATTRIBUTED_KIND:
            return palette.make_plain_paint("unattributed", UNATTRIBUTED)
        if kind == OTHER_ITERATION:
            return palette.make_plain_paint("other-iteration", palette.OTHER_ITERATION)
        if operation == NONE:
            return palette.make_paint(Phase(kind))
        chunk = int(self._operations.chunk[operation])
        second = int(self._operations.second_chunk[operation])
        return palette.make_chunk_paint(Phase(kind), chunk, second, self.chunks)

    def draw(self, row: int, left: float, top: float) -> None:
        """Draw one row of the picture.

        Args:
            row: Index of the row.
            left: The x coordinate of the left edge of the row.
            top: The y coordinate of the upper edge of the row.
        """
        group = make_group(transform=f"translate({px(left)} {px(top)})")
        self._draw_merged(group, row)
        members = _find_row_marks(self._marks, row)
        self._draw_marks(group, members)
        self._draw_numbers(group, members)
        if row in self.spanless:
            self._draw_spanless(group, self.spanless[row].tolist())
        if self._lane_height:
            self._draw_lane(group, row)
        if group.children:
            self._page.elements.append(group)

    def _draw_merged(self, group: Element, row: int) -> None:
        """Draw a row's merged marks as stacked layers, one layer per kind.

        In each column, the height of a layer is the kind's share of the time.

        Args:
            group: SVG group to which the layers are added.
            row: Index of the picture row.
        """
        merged, height = self.merged, self._height
        steps = np.cumsum(np.round(merged.shares[row] * height, 1), axis=0)
        for layer in reversed(range(len(merged.kinds))):
            heights = np.where(merged.shares[row, layer] > 0, steps[layer], 0.0)
            if path := _make_silhouette(heights, height, merged.column, self._width):
                color = self._paint(merged.kinds[layer], NONE).main
                group.append(make_path(path, fill=color, class_="bv-merged"))
        self._draw_dots(group, merged, row, height)

    def _draw_dots(self, group: Element, merged: MergedMarks, row: int, bottom: float) -> None:
        """Draw a dotted line below a row's merged marks. Narrow gaps in the line are filled.

        Args:
            group: SVG group to which the line is added.
            merged: Merged marks of all rows.
            row: Index of the picture row.
            bottom: Lower edge of the marks.
        """
        starts = np.flatnonzero(merged.shares[row].sum(axis=0)) * merged.column
        edges = [(start, start + merged.column) for start in starts.tolist()]
        y = px(bottom + DOTS_BELOW)
        dots = ""
        for start, end in join_close(edges, _DOTS_BRIDGE):
            dots += f"M{start} {y}H{px(min(end, self._width))}"
        if dots:
            group.append(make_path(dots, fill="none", **DOTS))

    def _draw_marks(self, group: Element, members: range) -> None:
        """Draw the marks of one row. Half-height marks are drawn over full-height marks.

        Args:
            group: SVG group to which the marks are added.
            members: Indices of the row's marks.
        """
        marks, height, half = self._marks, self._height, self._half
        whole, upper, lower = (
            [index for index in members if half[index] == part] for part in (WHOLE, UPPER, LOWER)
        )
        # Fill the background of each half-height box with the paper color, at full height.
        # Otherwise the other half would look like a bubble.
        if background := _make_boxes(marks, sorted((*upper, *lower)), 0.0, height):
            group.append(make_path(background, fill=LIGHT.paper, class_="bv-paper"))
        self._draw_layer(group, marks, whole, 0.0, height, self._frame)
        self._draw_layer(group, marks, upper, 0.0, height / 2, self._frame)
        self._draw_layer(group, marks, lower, height / 2, height, self._frame)

    def _draw_layer(
        self,
        group: Element,
        marks: Marks,
        members: Sequence[int],
        top: float,
        bottom: float,
        frame: float,
    ) -> None:
        """Draw marks as boxes.

        If there are at most ``MAX_TOOLTIPS`` marks, each operation is one SVG path. The path has a
        tooltip, and thin lines across the gaps between its boxes. If there are more marks, all
        boxes with the same paint are one path. Boxes for unattributed compute are not as tall as
        other boxes and have no frame.

        Args:
            group: SVG group to which the boxes are added.
            marks: All marks.
            members: Indices of the marks to draw.
            top: Upper edge of the boxes.
            bottom: Lower edge of the boxes.
            frame: Frame width of the boxes, or 0 for no frame.
        """
        look: dict[str, Any] = {}
        if frame:
            look = {"class_": "bv-frame", "stroke": LIGHT.frame, "stroke_width": frame}
        layer = make_group(**look)
        has_tooltips = len(marks) <= MAX_TOOLTIPS
        boxes: dict[tuple[int, Paint], list[int]] = defaultdict(list)
        for index in members:
            operation = int(marks.operation[index])
            paint = self._paint(int(marks.kind[index]), operation)
            boxes[operation if has_tooltips else NONE, paint].append(index)
        for (operation, paint), parts in boxes.items():
            if paint.main == UNATTRIBUTED:
                path = _make_boxes(marks, parts, 0.2 * bottom, 0.8 * bottom)
                layer.append(make_path(path, fill=UNATTRIBUTED, stroke="none"))
                continue
            path = _make_boxes(marks, parts, top, bottom)
            element = make_path(path, fill=self._page.fill(paint))
            layer.append(element)
            if operation != NONE:
                element.append_title(self._tooltip(operation))
                _draw_gap_lines(layer, marks, parts, (top + bottom) / 2, paint.main)
        if layer.children:
            group.append(layer)

    def _draw_numbers(self, group: Element, members: range) -> None:
        """Write microbatch numbers in the boxes of a row, centered. White numbers are bold.

        Args:
            group: SVG group to which one subgroup per color and font size is added.
            members: Indices of the row's marks. Marks without a number are skipped.
        """
        marks = self._marks
        groups: dict[tuple[str, float], Element] = {}
        for index in members:
            if index not in self._numbers:
                continue
            text, size = self._numbers[index]
            paint = self._paint(int(marks.kind[index]), int(marks.operation[index]))
            color = paint.number
            if (color, size) not in groups:
                groups[color, size] = make_group(
                    font_size=px(size),
                    font_weight="bold" if color == WHITE else None,
                    text_anchor="middle",
                    pointer_events="none",
                    fill=color,
                )
            x = (float(marks.left[index]) + float(marks.right[index])) / 2
            top = self._height / 2 if self._half[index] == LOWER else 0
            y = float(self._room[index]) / 2 + top
            into = groups[color, size]
            self._page.text(text, x, y + 0.36 * size, None, into=into, ink=None)
        group.extend(numbers for _, numbers in sorted(groups.items()))

    def _draw_spanless(self, group: Element, operations: list[int]) -> None:
        """Draw a hollow mark to the left of a row for operations that have no device time.

        The mark's tooltip names the operations.

        Args:
            group: SVG group to which the mark is added.
            operations: Indices of the operations. Only the first ``_MAX_NAMED`` are named.
        """
        look = {"fill": "none", "stroke": LIGHT.text, "stroke_width": 1, "class_": "bv-mark"}
        mark = make_circle(-6, px(self._height / 2), 2.6, **look)
        names = ", ".join(map(self._label, operations[:_MAX_NAMED]))
        more = f" and {len(operations) - _MAX_NAMED} more" if len(operations) > _MAX_NAMED else ""
        mark.append_title(f"without device time: {names}{more}")
        group.append(mark)

    def _draw_lane(self, group: Element, row: int) -> None:
        """Draw one row's communication in the lane below the row.

        Args:
            group: SVG group to which the lane is added.
            row: Index of the picture row.
        """
        merged = self._merged_lane
        top = self._height + LANE_GAP
        bottom = top + self._lane_height
        # The lane is too thin to show shares, so merged marks are drawn at full height.
        heights = np.where(merged.shares[row].sum(axis=0) > 0, self._lane_height, 0.0)
        if path := _make_silhouette(heights, bottom, merged.column, self._width):
            group.append(make_path(path, fill=COMMUNICATION, class_="bv-merged"))
        self._draw_dots(group, merged, row, bottom)
        members = _find_row_marks(self._lane, row)
        self._draw_layer(group, self._lane, members, top, bottom, _LANE_FRAME)

    @cached_property
    def _labels(self) -> CodedTexts:
        return format_operations(self._report)

    def _label(self, operation: int) -> str:
        return str(self._labels.texts[self._labels.code[operation]])

    def _tooltip(self, operation: int) -> str:
        """Return an operation's tooltip: label, range name, start and duration in ms.

        The start is relative to the left edge of the picture.
        """
        operations = self._operations
        start, end = int(operations.start_ns[operation]), int(operations.end_ns[operation])
        name_id = int(operations.name_id[operation])
        name = to_one_line(operations.names[name_id], 80) if name_id != NONE else ""
        label = self._label(operation) + (f" ({name})" if name else "")
        cut = ", cut" if operations.cut[operation] else ""
        offset_ms, length_ms = (start - self._selection.start_ns) / 1e6, (end - start) / 1e6
        return f"{label}: at {offset_ms:.3f} ms for {length_ms:.3f} ms{cut}"


def _find_row_marks(marks: Marks, row: int) -> range:
    """Return the indices of the marks in a picture row. The marks must be sorted by row."""
    first, stop = np.searchsorted(marks.row, (row, row + 1)).tolist()
    return range(first, stop)


def _draw_gap_lines(
    layer: Element, marks: Marks, parts: Sequence[int], middle: float, color: str
) -> None:
    """Draw a thin line across each gap between an operation's boxes.

    The gaps are bubble, and the line shows that the boxes belong together.

    Args:
        layer: SVG group to which the lines are added.
        marks: All marks.
        parts: Indices of the operation's marks, in chronological order.
        middle: The y coordinate of the lines.
        color: Color of the lines.
    """
    for left, right in pairwise(parts):
        hole = f"M{px(marks.right[left])} {px(middle)}H{px(marks.left[right])}"
        layer.append(make_path(hole, stroke=color, stroke_width=1.5))


def _make_silhouette(heights: Floats, bottom: float, column: int, width: float) -> str:
    """Return the SVG path outlining adjacent bars, or "" if all heights are 0.

    Args:
        heights: Height of each bar, from left to right.
        bottom: The y coordinate of the lower edge of the bars.
        column: Width of a bar.
        width: Maximum x coordinate. The last bar is clipped there.
    """
    before = np.concatenate(([0.0], heights))
    after = np.concatenate((heights, [0.0]))
    changes = np.flatnonzero(before != after)
    if not len(changes):
        return ""
    lefts = np.minimum(changes * column, width).tolist()
    tops = (bottom - after[changes]).tolist()
    path = f"M{int(changes[0]) * column} {px(bottom)}"
    for left, top in zip(lefts, tops, strict=True):
        path += f"H{px(left)}V{px(round(top, 1))}"
    return f"{path}z"


def _make_boxes(marks: Marks, indices: Sequence[int], top: float, bottom: float) -> str:
    """Return an SVG path that contains a box for each of the marks with the given indices."""
    edges = ((float(marks.left[index]), float(marks.right[index])) for index in indices)
    return "".join(box(left, top, right, bottom) for left, right in edges)


def join_close(edges: Sequence[tuple[Any, Any]], gap: float) -> list[tuple[Any, Any]]:
    """Merge intervals that overlap, touch, or are less than ``gap`` apart.

    Args:
        edges: (left, right) edges of the intervals, sorted by left edge.
        gap: Distance below which intervals are merged.
    """
    merged: list[tuple[Any, Any]] = []
    for left, right in edges:
        if merged:
            last_left, last_right = merged[-1]
            if left - last_right < gap or left <= last_right:
                merged[-1] = last_left, max(right, last_right)
                continue
        merged.append((left, right))
    return merged
