"""The rows of a picture: the operations of each rank to scale, and their numbers.

A row is drawn from back to front: merged marks (dotted below), operations, operations that overlap
another one (in half of the row), microbatch numbers, and a hollow mark for operations without
device time. A thin lane of communication is below the row.
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

#: Look of the dotted line below merged marks, and its distance from them, px.
DOTS = {"stroke": LIGHT.quiet, "stroke_width": 0.7, "stroke_dasharray": "1 1", "class_": "bv-rule"}
DOTS_BELOW = 0.8
#: Gaps in the dotted line that are narrower than this are closed, px.
_DOTS_BRIDGE = 3
#: Maximum number of marks in a picture in which each operation has a tooltip.
MOST_TOOLTIPS = 4_000
# (minimum width of a typical mark, width of its frame), px
_FRAMES = ((6.0, 0.7), (3.0, 0.4), (1.4, 0.2))
#: Gap between a row and its lane, px.
LANE_GAP = 1.5
#: Width of the frame of a box in the lane, px.
_LANE_FRAME = 0.3
#: Maximum number of operations without device time that the tooltip of a row names.
_MAX_NAMED = 8


class RowPainter:
    """Draws the operations of one selection of a report, on rows of one height.

    Args:
        page: The page.
        report: Any report.
        selection: The part of the report to draw.
        width: Width of the plot, px.
        height: Height of a row, px.
        lane: Height of the communication lane below it, px; 0 for none.

    Attributes:
        merged: The marks of compute that are too narrow to be drawn one by one.
        spanless: Compute operations without device time, keyed by row of the picture.
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
        # A box that overlaps another one has half the height of the row, and so does its number.
        self._room = height * (2 - (self._half != WHOLE) - is_covered) / 2
        self._numbers = number_boxes(
            self._operations, selection, self._marks, self._room, page.style.letters
        )
        self.spanless = self._find_spanless()

    @cached_property
    def chunks(self) -> list[int]:
        """The model chunks that have work on the rows, ascending."""
        operations = self._operations
        is_drawn = np.isin(operations.rank, [rank.index for rank in self._selection.ranks])
        works = is_drawn & np.isin(operations.phase, WORK)
        chunks = find_distinct(operations.chunk[works], operations.second_chunk[works])
        numbers: list[int] = chunks[chunks != NONE].tolist()
        return numbers

    @cached_property
    def kinds(self) -> set[int]:
        """The phases (and unattributed compute, and other iterations) that are drawn."""
        return {*self._marks.kind.tolist(), *self._lane.kind.tolist(), *self.merged.kinds}

    @property
    def has_communication(self) -> bool:
        """Whether there is any communication in the lane."""
        return bool(len(self._lane) or self._merged_lane.kinds)

    @property
    def has_numbers(self) -> bool:
        """Whether any box has the number of its microbatch."""
        return bool(self._numbers)

    @property
    def max_merged_width(self) -> float:
        """Width in px below which operations are merged."""
        return max(self.merged.max_width, self._merged_lane.max_width)

    @property
    def merged_words(self) -> str:
        """Number of merged marks in words: operations, communication and unattributed compute.

        The text is "" if no mark is merged.
        """
        merged = self.merged.counts + self._merged_lane.counts
        unattributed = merged.pop(UNATTRIBUTED_KIND, 0)
        parts = [format_count(merged.total(), "operation")] if merged.total() else []
        if unattributed:
            parts.append(f"{format_count(unattributed, 'time')} unattributed compute")
        return " and ".join(parts)

    @property
    def merged_colours(self) -> tuple[str, ...]:
        """The colours of merged operations, communication last."""
        kinds = *self.merged.kinds, *self._merged_lane.kinds
        return tuple(dict.fromkeys(self._paint(kind, NONE).main for kind in kinds))

    @cached_property
    def _frame(self) -> float:
        """Width of the frames of boxes, which depends on the 30th percentile of the box widths."""
        widths = self._marks.right - self._marks.left
        typical = float(np.percentile(widths, 30)) if len(widths) else 0.0
        frame = next((frame for min_width, frame in _FRAMES if typical >= min_width), 0.0)
        return px(frame * self._page.style.line)

    def _find_spanless(self) -> dict[int, Ints]:
        """Find the compute operations without device time in the selected iterations.

        Returns:
            Rows of the operations, keyed by row of the picture. Rows of the picture without such
            operations are left out.
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
            kind: Kind of the mark.
            operation: Row of the operation, whose chunk selects a shade of the phase, or -1 for the
                plain colour of the phase.
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
        """Draw one row with its upper left corner at (``left``, ``top``)."""
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
        """Draw the merged marks of a row: one layer per kind, stacked from the bottom up.

        In each column, the height of a layer is the kind's share of the time.

        Args:
            group: Element that receives the layers.
            row: Row of the picture.
        """
        merged, height = self.merged, self._height
        steps = np.cumsum(np.round(merged.shares[row] * height, 1), axis=0)
        for layer in reversed(range(len(merged.kinds))):
            heights = np.where(merged.shares[row, layer] > 0, steps[layer], 0.0)
            if path := _make_silhouette(heights, height, merged.column, self._width):
                colour = self._paint(merged.kinds[layer], NONE).main
                group.append(make_path(path, fill=colour, class_="bv-merged"))
        self._draw_dots(group, merged, row, height)

    def _draw_dots(self, group: Element, merged: MergedMarks, row: int, bottom: float) -> None:
        """Draw a dotted line below the merged marks of a row, with narrow gaps closed.

        Args:
            group: Element that receives the line.
            merged: Merged marks of all rows.
            row: Row of the picture.
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
        """Draw the marks of one row: first the marks of full height, then those of half height.

        Marks of half height cover the full height behind them with the colour of paper.

        Args:
            group: Element that receives the marks.
            members: Indices of the marks of the row.
        """
        marks, height, half = self._marks, self._height, self._half
        whole, upper, lower = (
            [index for index in members if half[index] == part] for part in (WHOLE, UPPER, LOWER)
        )
        # Fill the row with paper behind each box of half height. Otherwise the other half would
        # look like a bubble or like a part of the box that is covered.
        if beside := _make_boxes(marks, sorted((*upper, *lower)), 0.0, height):
            group.append(make_path(beside, fill=LIGHT.paper, class_="bv-paper"))
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

        With at most ``MOST_TOOLTIPS`` marks, there is one path per operation, with a tooltip and
        with lines across the gaps between its parts. With more marks, there is one path per paint.
        Boxes of unattributed compute are lower than other boxes and have no frame.

        Args:
            group: Element that receives the layer.
            marks: All marks.
            members: Indices of the marks to draw.
            top: Upper edge of the boxes.
            bottom: Lower edge of the boxes.
            frame: Width of the frame of a box, or 0 for no frame.
        """
        look: dict[str, Any] = {}
        if frame:
            look = {"class_": "bv-frame", "stroke": LIGHT.frame, "stroke_width": frame}
        layer = make_group(**look)
        has_tooltips = len(marks) <= MOST_TOOLTIPS
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
        """Write the microbatch numbers in the middle of the marks of a row.

        Args:
            group: Element that receives one group per colour and font size.
            members: Indices of the marks of the row. Marks without a number are skipped.
        """
        marks = self._marks
        groups: dict[tuple[str, float], Element] = {}
        for index in members:
            if index not in self._numbers:
                continue
            text, size = self._numbers[index]
            paint = self._paint(int(marks.kind[index]), int(marks.operation[index]))
            colour = paint.number
            if (colour, size) not in groups:
                groups[colour, size] = make_group(
                    font_size=px(size),
                    font_weight="bold" if colour == WHITE else None,
                    text_anchor="middle",
                    pointer_events="none",
                    fill=colour,
                )
            x = (float(marks.left[index]) + float(marks.right[index])) / 2
            top = self._height / 2 if self._half[index] == LOWER else 0
            y = float(self._room[index]) / 2 + top
            into = groups[colour, size]
            self._page.text(text, x, y + 0.36 * size, None, into=into, ink=None)
        group.extend(numbers for _, numbers in sorted(groups.items()))

    def _draw_spanless(self, group: Element, operations: list[int]) -> None:
        """Draw a hollow mark left of a row, whose tooltip names operations without device time.

        Args:
            group: Element that receives the mark.
            operations: Rows of the operations.
        """
        look = {"fill": "none", "stroke": LIGHT.text, "stroke_width": 1, "class_": "bv-mark"}
        mark = make_circle(-6, px(self._height / 2), 2.6, **look)
        names = ", ".join(map(self._label, operations[:_MAX_NAMED]))
        more = f" and {len(operations) - _MAX_NAMED} more" if len(operations) > _MAX_NAMED else ""
        mark.append_title(f"without device time: {names}{more}")
        group.append(mark)

    def _draw_lane(self, group: Element, row: int) -> None:
        """Draw the communication of one row in the lane below it.

        Args:
            group: Element that receives the lane.
            row: Row of the picture.
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
        """Return the tooltip of an operation: label, range name, start and duration in ms."""
        operations = self._operations
        start, end = int(operations.start_ns[operation]), int(operations.end_ns[operation])
        name_id = int(operations.name_id[operation])
        name = to_one_line(operations.names[name_id], 80) if name_id != NONE else ""
        label = self._label(operation) + (f" ({name})" if name else "")
        cut = ", cut" if operations.cut[operation] else ""
        offset_ms, length_ms = (start - self._selection.start_ns) / 1e6, (end - start) / 1e6
        return f"{label}: at {offset_ms:.3f} ms for {length_ms:.3f} ms{cut}"


def _find_row_marks(marks: Marks, row: int) -> range:
    """Return the indices of the marks on a row; marks are sorted by row."""
    first, stop = np.searchsorted(marks.row, (row, row + 1)).tolist()
    return range(first, stop)


def _draw_gap_lines(
    layer: Element, marks: Marks, parts: Sequence[int], middle: float, colour: str
) -> None:
    """Draw a thin line across each gap between parts of an operation; the gaps are bubble."""
    for left, right in pairwise(parts):
        hole = f"M{px(marks.right[left])} {px(middle)}H{px(marks.left[right])}"
        layer.append(make_path(hole, stroke=colour, stroke_width=1.5))


def _make_silhouette(heights: Floats, bottom: float, column: int, width: float) -> str:
    """Return the path of the outline of a row of bars whose lower edge is at ``bottom``.

    Args:
        heights: Height of each bar.
        bottom: Lower edge of the bars.
        column: Width of a bar.
        width: Right edge of the plot, where the last bar ends.
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
    """Return the path of the boxes of the marks with these indices."""
    edges = ((float(marks.left[index]), float(marks.right[index])) for index in indices)
    return "".join(box(left, top, right, bottom) for left, right in edges)


def join_close(edges: Sequence[tuple[Any, Any]], gap: float) -> list[tuple[Any, Any]]:
    """Join intervals that overlap or are less than ``gap`` apart.

    Args:
        edges: Left and right edge of each interval, sorted by left edge.
        gap: Distance below which intervals are joined.
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
