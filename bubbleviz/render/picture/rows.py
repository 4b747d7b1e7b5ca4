"""The rows of a picture: the operations of each rank to scale, and their numbers.

A row from back to front: merged marks (dotted below), operations, and in one half of it what runs
while another operation does; then the numbers, a hollow mark for what has no device time, and below
the row a thin lane of communication.

Microbatch numbers stand in the boxes of all operations or of none, in one size. Recomputation is
often too short for a number: it has them where they fit, and does not take them from the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import drawsvg
import numpy as np

from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.grouping import CodedTexts, distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render import marks as pixels
from bubbleviz.render import palette
from bubbleviz.render.marks import (
    LOWER,
    OTHER_ITERATION,
    UNATTRIBUTED_KIND,
    UPPER,
    WHOLE,
    Marks,
    MergedMarks,
)
from bubbleviz.render.palette import COMMUNICATION, LIGHT, UNATTRIBUTED, WHITE, Paint
from bubbleviz.render.picture.page import Lettering, Page, box, px, text_width
from bubbleviz.render.rows import Selection
from bubbleviz.report.labels import operation_labels
from bubbleviz.report.report import Report

#: The dotted line below merged marks: its distance, width and pattern, px.
DOTS = {"stroke": LIGHT.quiet, "stroke_width": 0.7, "stroke_dasharray": "1 1", "class_": "bv-rule"}
DOTS_BELOW = 0.8
#: Gaps of so many px in it are bridged.
_DOTS_BRIDGE = 3
#: Up to so many marks, each has a tooltip of its own.
MOST_TOOLTIPS = 4_000
# (typical width of a mark at least, width of its frame), px
_FRAMES = ((6.0, 0.7), (3.0, 0.4), (1.4, 0.2))
#: Between a row and its lane, px.
LANE_GAP = 1.5
#: Width of the frame of a box in it, px.
_LANE_FRAME = 0.3
#: So many operations without device time are named on each row.
_NAMED = 8
#: A mark narrower than this has no number, units of the page.
_NARROWEST = 4
#: Height of a digit, and most of the height of a box that it takes, as shares of the font size.
_DIGIT, _MOST_OF_HEIGHT = 0.73, 0.84
#: Between a number and the frame of its box, on both sides together.
_MARGIN = 1.0


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
        chunks: the model chunks that have work on the rows, ascending.
        merged: the marks of compute that are too narrow to be drawn one by one.
        kinds: the phases (and unattributed compute, and other iterations) that are drawn.
        spanless: operations without device time, by row.
        communication: whether any is in the lane.
        merged_words: the number of merged operations, communication included; empty for none.
        merged_colours: what they are drawn in, communication last.
        narrower: merged operations are narrower than this, px.
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
        self._operations = operations = report.operations
        self._width, self._height, self._lane_height = width, height, lane
        ranks = [rank.index for rank in selection.ranks]
        shown = np.isin(operations.rank, ranks)
        worked = shown & np.isin(operations.phase, WORK)
        chunks = distinct(operations.chunk[worked], operations.second_chunk[worked])
        self.chunks: list[int] = chunks[chunks != NONE].tolist()
        rows = len(ranks)
        found = pixels.compute_marks(report, selection, width)
        marks, self.merged = pixels.split(found, rows, width)
        self._marks = marks
        sent = pixels.communication_marks(report, selection, width) if lane else ()
        self._lane = lane_marks, merged_lane = pixels.split(sent, rows, width)
        self.kinds = {*marks.kind.tolist(), *lane_marks.kind.tolist(), *self.merged.kinds}
        self.communication = bool(len(lane_marks) or merged_lane.kinds)
        self.narrower = max(self.merged.narrower, merged_lane.narrower)
        merged = self.merged.counts + merged_lane.counts
        outside = merged.pop(UNATTRIBUTED_KIND, 0)
        self.merged_words = _counted_work(merged.total(), outside)
        colours = [
            self._paint(kind, NONE).main for kind in (*self.merged.kinds, *merged_lane.kinds)
        ]
        self.merged_colours = tuple(dict.fromkeys(colours))
        self._half, self._covered = pixels.halves(marks)
        lengths = marks.right - marks.left
        typical = float(np.percentile(lengths, 30)) if len(lengths) else 0.0
        frame = next((frame for least, frame in _FRAMES if typical >= least), 0.0)
        self._frame = px(frame * page.style.line)
        self._texts = _microbatches(operations, marks)
        boxes: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
        for index, text in self._texts.items():
            own = text, float(lengths[index]), self._room(index)
            boxes[int(marks.kind[index])].append(own)
        # No operation that should have a number is too narrow for any mark.
        numbered = shown & selection.drawn(operations.iteration) & (operations.busy_ns > 0)
        numbered &= (operations.microbatch != NONE) & (operations.phase != Phase.R)
        numbered &= np.isin(operations.phase, WORK)
        counts = np.bincount(operations.phase[numbered], minlength=len(Phase))
        self._numbers: dict[int, float] = {}
        if all(len(boxes.get(kind, ())) >= count for kind, count in enumerate(counts.tolist())):
            self._numbers = _number_sizes(boxes, page.style.letters)
        places = selection.row_of_rank
        lacking = np.isin(operations.phase, COMPUTE) & (operations.has_span == 0)
        lacking &= selection.drawn(operations.iteration) & (operations.rank < len(places))
        spanless = np.flatnonzero(lacking)
        row = places[operations.rank[spanless]]
        self.spanless = {n: spanless[row == n] for n in distinct(row[row != NONE]).tolist()}

    @property
    def has_numbers(self) -> bool:
        """Whether any box has the number of its microbatch."""
        return any(int(self._marks.kind[index]) in self._numbers for index in self._texts)

    def _paint(self, kind: int, operation: int) -> Paint:
        """Return the paint of a mark; that of its phase alone where it has no operation."""
        if kind == UNATTRIBUTED_KIND:
            return palette.plain_paint("unattributed", UNATTRIBUTED)
        if kind == OTHER_ITERATION:
            return palette.plain_paint("other-iteration", palette.OTHER_ITERATION)
        if operation == NONE:
            return palette.paint(Phase(kind))
        chunk, second = (
            int(column[operation])
            for column in (self._operations.chunk, self._operations.second_chunk)
        )
        return palette.chunk_paint(Phase(kind), chunk, second, self.chunks)

    def draw(self, row: int, left: float, top: float) -> None:
        """Draw one row with its upper left corner there."""
        group = drawsvg.Group(transform=f"translate({px(left)} {px(top)})")
        self._draw_merged(group, row)
        first, last = np.searchsorted(self._marks.row, (row, row + 1)).tolist()
        self._draw_marks(group, range(first, last))
        self._draw_numbers(group, range(first, last))
        if row in self.spanless:
            self._draw_spanless(group, self.spanless[row].tolist())
        if self._lane_height:
            self._draw_lane(group, row)
        if group.children:
            self._page.elements.append(group)

    # Merged marks: layers as high as their shares of time, with a dotted line below.

    def _draw_merged(self, group: Any, row: int) -> None:
        """Draw the merged marks of a row as layers, each on top of the one before."""
        merged, height = self.merged, self._height
        steps = np.cumsum(np.round(merged.share[row] * height, 1), axis=0)
        for layer in reversed(range(len(merged.kinds))):
            heights = np.where(merged.share[row, layer] > 0, steps[layer], 0.0)
            if path := _silhouette(heights, height, merged.column, self._width):
                colour = self._paint(merged.kinds[layer], NONE).main
                group.append(drawsvg.Path(path, fill=colour, class_="bv-merged"))
        self._dot(group, merged, row, height)

    def _dot(self, group: Any, merged: MergedMarks, row: int, bottom: float) -> None:
        """Dot the lower edge of merged marks."""
        places = np.flatnonzero(merged.share[row].sum(axis=0)) * merged.column
        edges = [(place, place + merged.column) for place in places.tolist()]
        y = px(bottom + DOTS_BELOW)
        dots = "".join(
            f"M{first} {y}H{px(min(end, self._width))}"
            for first, end in bridged(edges, _DOTS_BRIDGE)
        )
        if dots:
            group.append(drawsvg.Path(dots, fill="none", **DOTS))

    # Boxes: one an operation.

    def _draw_marks(self, group: Any, indices: range) -> None:
        """Draw the marks of one row: those that run beside others last, in its halves."""
        marks, height = self._marks, self._height
        whole, upper, lower = (
            [index for index in indices if self._half[index] == half]
            for half in (WHOLE, UPPER, LOWER)
        )
        # A box of half the height leaves no bubble beside it, and what runs beside it stays seen.
        if beside := _boxes(marks, sorted((*upper, *lower)), 0.0, height):
            group.append(drawsvg.Path(beside, fill=LIGHT.paper, class_="bv-paper"))
        self._draw_layer(group, marks, whole, 0.0, height, self._frame)
        self._draw_layer(group, marks, upper, 0.0, height / 2, self._frame)
        self._draw_layer(group, marks, lower, height / 2, height, self._frame)

    def _draw_layer(
        self,
        group: Any,
        marks: Marks,
        members: Sequence[int],
        top: float,
        bottom: float,
        frame: float,
    ) -> None:
        """Draw marks as boxes: one path an operation, or one a paint where there are many."""
        look: dict[str, Any] = {}
        if frame:
            look = {"class_": "bv-frame", "stroke": LIGHT.frame, "stroke_width": frame}
        layer = drawsvg.Group(**look)
        boxes: dict[tuple[int, Paint], list[int]] = defaultdict(list)
        for index in members:
            operation, kind = int(marks.operation[index]), int(marks.kind[index])
            paint = self._paint(kind, operation)
            boxes[operation if len(marks) <= MOST_TOOLTIPS else NONE, paint].append(index)
        for (operation, paint), parts in boxes.items():
            if paint.main == UNATTRIBUTED:
                path = _boxes(marks, parts, 0.2 * bottom, 0.8 * bottom)
                layer.append(drawsvg.Path(path, fill=UNATTRIBUTED, stroke="none"))
                continue
            path = _boxes(marks, parts, top, bottom)
            element = drawsvg.Path(path, fill=self._page.fill(paint))
            layer.append(element)
            if operation == NONE:
                continue
            element.append_title(self._tooltip(operation))
            for before, after in pairwise(parts):
                # A receive spins in this hole: bubble, but of one operation.
                hole = f"M{px(marks.right[before])} {px((top + bottom) / 2)}"
                hole += f"H{px(marks.left[after])}"
                layer.append(drawsvg.Path(hole, stroke=paint.main, stroke_width=1.5))
        if layer.children:
            group.append(layer)

    # Numbers: the microbatch of each operation of the drawn iterations, in its widest mark.

    def _room(self, index: int) -> float:
        """Return the height for a number: of a box that runs beside another, half the row."""
        return self._height * (2 - int(self._half[index] != WHOLE) - int(self._covered[index])) / 2

    def _draw_numbers(self, group: Any, indices: range) -> None:
        """Write the numbers of some marks, those of one colour and size as one group."""
        marks = self._marks
        groups: dict[tuple[str, float], Any] = {}
        for index in indices:
            text, size = self._texts.get(index), self._numbers.get(int(marks.kind[index]))
            if text is None or size is None:
                continue
            room = self._room(index)
            left, right = float(marks.left[index]), float(marks.right[index])
            colour = self._paint(int(marks.kind[index]), int(marks.operation[index])).number
            if (colour, size) not in groups:
                groups[colour, size] = drawsvg.Group(
                    font_size=px(size),
                    font_weight="bold" if colour == WHITE else None,
                    text_anchor="middle",
                    pointer_events="none",
                    fill=colour,
                )
            x, y = (
                (left + right) / 2,
                room / 2 + (self._height / 2 if self._half[index] == LOWER else 0),
            )
            into = groups[colour, size]
            self._page.text(text, x, y + 0.36 * size, None, into=into, ink=None)
        group.extend(members for _, members in sorted(groups.items()))

    # What has no device time, and communication.

    def _draw_spanless(self, group: Any, operations: list[int]) -> None:
        """Draw one hollow mark before a row for all operations that have no device time."""
        look = {"fill": "none", "stroke": LIGHT.text, "stroke_width": 1, "class_": "bv-mark"}
        mark = drawsvg.Circle(-6, px(self._height / 2), 2.6, **look)
        names = ", ".join(map(self._label, operations[:_NAMED]))
        more = f" and {len(operations) - _NAMED} more" if len(operations) > _NAMED else ""
        mark.append_title(f"without device time: {names}{more}")
        group.append(mark)

    def _draw_lane(self, group: Any, row: int) -> None:
        """Draw the communication of one row below it."""
        marks, merged = self._lane
        top = self._height + LANE_GAP
        bottom = top + self._lane_height
        # In so thin a lane a share would be invisible: the merged marks are drawn at full height.
        heights = np.where(merged.share[row].sum(axis=0) > 0, self._lane_height, 0.0)
        if path := _silhouette(heights, bottom, merged.column, self._width):
            group.append(drawsvg.Path(path, fill=COMMUNICATION, class_="bv-merged"))
        self._dot(group, merged, row, bottom)
        members = range(*np.searchsorted(marks.row, (row, row + 1)).tolist())
        self._draw_layer(group, marks, members, top, bottom, _LANE_FRAME)

    # Tooltips: what an operation is called under the pointer.

    @cached_property
    def _labels(self) -> CodedTexts:
        return operation_labels(self._report)

    def _label(self, operation: int) -> str:
        return str(self._labels.texts[self._labels.code[operation]])

    def _tooltip(self, operation: int) -> str:
        """Return label, range name, start and duration."""
        operations = self._operations
        start, end = int(operations.start_ns[operation]), int(operations.end_ns[operation])
        name_id = int(operations.name_id[operation])
        name = one_line(operations.names[name_id], 80) if name_id != NONE else ""
        named = f" ({name})" if name else ""
        cut = ", cut" if operations.cut[operation] else ""
        since, length = (start - self._selection.start_ns) / 1e6, (end - start) / 1e6
        return f"{self._label(operation)}{named}: at {since:.3f} ms for {length:.3f} ms{cut}"


def _silhouette(heights: Floats, bottom: float, column: int, width: float) -> str:
    """Return the path of steps so high, ``column`` px wide each, that stand on ``bottom``.

    The last step ends with the plot, at ``width``.
    """
    before = np.concatenate(([0.0], heights))
    after = np.concatenate((heights, [0.0]))
    changes = np.flatnonzero(before != after).tolist()
    if not changes:
        return ""
    steps = "".join(
        f"H{px(min(place * column, width))}V{px(round(bottom - float(after[place]), 1))}"
        for place in changes
    )
    return f"M{changes[0] * column} {px(bottom)}{steps}z"


def _boxes(marks: Marks, indices: Sequence[int], top: float, bottom: float) -> str:
    """Return the path of the boxes of some marks."""
    edges = ((float(marks.left[index]), float(marks.right[index])) for index in indices)
    return "".join(box(left, top, right, bottom) for left, right in edges)


def bridged(edges: Sequence[tuple[Any, Any]], gap: float) -> list[tuple[Any, Any]]:
    """Join (left, right) pairs, in their order, that overlap or have less than a gap between."""
    joined: list[tuple[Any, Any]] = []
    for left, right in edges:
        if joined and (left - joined[-1][1] < gap or left <= joined[-1][1]):
            joined[-1] = (joined[-1][0], max(right, joined[-1][1]))
        else:
            joined.append((left, right))
    return joined


def _pair(first: Ints, second: Ints, row: int) -> str:
    """Return ``3``, or ``3;7`` for an operation on two microbatches or chunks."""
    return f"{first[row]};{second[row]}" if second[row] != NONE else str(first[row])


def _counted_work(operations: int, outside: int) -> str:
    """Return the number of operations, and of intervals of unattributed compute, in words."""
    parts = [counted(operations, "operation")] * bool(operations)
    if outside:
        parts.append(f"{counted(outside, 'time')} unattributed compute")
    return " and ".join(parts)


# The numbers of a picture: one size for all.


def _fits(size: float, text: str, width: float, height: float) -> bool:
    """Return whether a text of a size fits into a box."""
    tall = _DIGIT * size + _MARGIN <= _MOST_OF_HEIGHT * height
    return tall and text_width(text, size) + _MARGIN <= width


def _number_sizes(
    boxes: Mapping[int, Sequence[tuple[str, float, float]]], letters: Lettering
) -> dict[int, float]:
    """Return the font size of each kind of boxes.

    It is empty where those of any kind do not all fit.

    Args:
        boxes: by kind, a text and the width and height that there are for it.
        letters: of the picture.
    """
    # The longest text has to fit into the narrowest box and the lowest one.
    hardest = {
        kind: (max(texts, key=len), min(widths), min(heights))
        for kind, (texts, widths, heights) in (
            (k, zip(*own, strict=True)) for k, own in boxes.items()
        )
    }
    sizes = np.arange(letters.number, letters.least_number - 0.1, -0.5).round(1).tolist()
    for size in (*sizes, letters.least_number):
        fitting = {kind: float(size) for kind, own in hardest.items() if _fits(size, *own)}
        if fitting and all(kind in fitting for kind in hardest if kind != Phase.R):
            return fitting
    return {}


def _microbatches(operations: Operations, marks: Marks) -> dict[int, str]:
    """Return by mark the number of its operation, for the widest mark of each."""
    length = marks.right - marks.left
    wide = (length >= _NARROWEST) & np.isin(marks.kind, WORK)
    places = np.flatnonzero(wide)
    places = places[np.argsort(length[places], kind="stable")]
    widest = dict(zip(marks.operation[places].tolist(), places.tolist(), strict=True))
    return {
        index: _pair(operations.microbatch, operations.second_microbatch, operation)
        for operation, index in widest.items()
        if operations.microbatch[operation] != NONE
    }
