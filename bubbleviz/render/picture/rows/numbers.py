"""Microbatch numbers in the boxes of operations: in all of them, or in none.

One size serves the picture, and each phase is written upright or sideways. Recomputation, which is
often too short for a number, has them where they fit, and does not take them from the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import drawsvg
import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.texts import counted, one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import LIGHT, WHITE
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.marks import UNATTRIBUTED_KIND, Marks
from bubbleviz.render.picture.merging import MergedMarks
from bubbleviz.render.picture.page import Page, px
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.picture.style import Lettering
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

# Tooltips: what an operation, or a stretch of merged ones, is called under the pointer.


class Tooltips:
    """Names and times of operations.

    Args:
        report: any report.
        start_ns: the left edge of the picture, from which times are counted.
        chunked: whether chunks are named.
    """

    def __init__(self, report: Report, start_ns: int, *, chunked: bool) -> None:
        self._operations = report.operations
        self._start_ns = start_ns
        self._chunked = chunked

    def label(self, operation: int) -> str:
        """Return phase, microbatch and, of several, chunk."""
        operations = self._operations
        words = [Phase(int(operations.phase[operation])).label]
        microbatch = int(operations.microbatch[operation])
        chunk = int(operations.chunk[operation])
        if microbatch != NONE:
            words.append(pair(microbatch, int(operations.second_microbatch[operation])))
        if chunk != NONE and self._chunked:
            words.append(f"chunk {pair(chunk, int(operations.second_chunk[operation]))}")
        return " ".join(words)

    def tooltip(self, operation: int) -> str:
        """Return label, range name, start and duration."""
        operations = self._operations
        start, end = int(operations.start_ns[operation]), int(operations.end_ns[operation])
        name_id = int(operations.name_id[operation])
        name = one_line(operations.names[name_id], 80) if name_id != NONE else ""
        named = f" ({name})" if name else ""
        cut = ", cut" if operations.cut[operation] else ""
        since, length = (start - self._start_ns) / 1e6, (end - start) / 1e6
        return f"{self.label(operation)}{named}: at {since:.3f} ms for {length:.3f} ms{cut}"


def pair(first: int, second: int) -> str:
    """Return ``3``, or ``3;7`` for an operation on two microbatches or chunks."""
    return f"{first};{second}" if second != NONE else str(first)


def merged_tooltip(merged: MergedMarks, counts: Ints) -> str:
    """Return merged marks by their counts: ``137 operations (F 90, B 47), merged``."""
    by_kind: dict[int, int] = defaultdict(int)
    for (kind, _), count in zip(merged.kinds, counts.tolist(), strict=True):
        by_kind[kind] += count
    outside = by_kind.pop(UNATTRIBUTED_KIND, 0)
    phases = ", ".join(f"{Phase(kind).label} {n:,}" for kind, n in by_kind.items() if n)
    return f"{counted_work(sum(by_kind.values()), outside, f' ({phases})')}, merged"


def counted_work(operations: int, outside: int, phases: str = "") -> str:
    """Return the number of operations, and of intervals of unattributed compute, in words."""
    parts = [f"{counted(operations, 'operation')}{phases}"] * bool(operations)
    if outside:
        parts.append(f"{counted(outside, 'time')} unattributed compute")
    return " and ".join(parts)


#: A mark narrower than this has no number, units of the page.
_NARROWEST = 4
#: Height of a digit, and most of the height of a box that it takes, as shares of the font size.
_DIGIT, _MOST_OF_HEIGHT = 0.73, 0.84
#: Between a number and the frame of its box, on both sides together.
_MARGIN = 1.0


@frozen
class NumberBox:
    """A text, and the width and height that there are for it."""

    text: str
    width: float
    height: float


@frozen
class NumberStyle:
    """How the numbers of a phase are written: font size, and upright or sideways."""

    size: float
    upright: bool

    def fits(self, box: NumberBox) -> bool:
        """Return whether the text of a box fits into it."""
        along = text_width(box.text, self.size) + _MARGIN
        across = _DIGIT * self.size + _MARGIN
        if self.upright:
            return along <= box.width and across <= _MOST_OF_HEIGHT * box.height
        return across <= box.width and along <= box.height


def number_styles(boxes: dict[int, list[NumberBox]], letters: Lettering) -> dict[int, NumberStyle]:
    """Return the style of each kind of boxes; empty where those of any kind do not all fit.

    Args:
        boxes: by kind.
        letters: of the picture.
    """
    narrowest = {kind: list(_narrowest(some)) for kind, some in boxes.items() if some}
    sizes = np.arange(letters.number, letters.least_number - 0.1, -0.5).round(1).tolist()
    for size in (*sizes, letters.least_number):
        styles: dict[int, NumberStyle] = {}
        for kind, some in narrowest.items():
            for style in (NumberStyle(size, upright=True), NumberStyle(size, upright=False)):
                if all(style.fits(box) for box in some):
                    styles[kind] = style
                    break
        if styles and all(kind in styles for kind in narrowest if kind != Phase.R):
            return styles
    return {}


def _narrowest(boxes: Iterable[NumberBox]) -> Iterable[NumberBox]:
    """Return of boxes with texts of one length and of one height the narrowest."""
    found: dict[tuple[int, float], NumberBox] = {}
    for box in boxes:
        key = len(box.text), box.height
        if key not in found or box.width < found[key].width:
            found[key] = box
    return found.values()


class NumberPainter:
    """Writes the microbatch of each operation of the drawn iterations in its widest mark.

    Args:
        page: the page.
        operations: of the report.
        selection: what of them is drawn.
        marks: the marks drawn one by one.
        overlaps: which marks begin inside another, and which hold such.
        paints: of the operations.
        height: of a row.
    """

    def __init__(
        self,
        page: Page,
        operations: Operations,
        selection: Selection,
        marks: Marks,
        overlaps: tuple[Bools, Bools],
        paints: OperationPaints,
        height: float,
    ) -> None:
        self._page = page
        self._marks = marks
        self._inside, self._holds = overlaps
        self._paints = paints
        self._height = height
        self._texts = _microbatches(operations, marks)
        boxes: dict[int, list[NumberBox]] = defaultdict(list)
        lengths = marks.right - marks.left
        for index, text in self._texts.items():
            box = NumberBox(text, float(lengths[index]), self._room(index))
            boxes[int(marks.kind[index])].append(box)
        self._styles: dict[int, NumberStyle] = {}
        if _all_have_marks(operations, selection, boxes):
            self._styles = number_styles(boxes, page.style.letters)

    def _room(self, index: int) -> float:
        """Return the height for a number: half the row where marks overlap."""
        inside, holds = self._inside[index], self._holds[index]
        if inside and holds:
            return 0.0
        return self._height / 2 if inside or holds else self._height

    def draw(self, group: Any, indices: range) -> None:
        """Write the numbers of some marks, of one colour and size as one group."""
        groups: dict[tuple[str, float], Any] = {}
        for index in indices:
            self._write(groups, index)
        group.extend(members for _, members in sorted(groups.items()))

    def _write(self, groups: dict[tuple[str, float], Any], index: int) -> None:
        marks = self._marks
        text, inside = self._texts.get(index), self._inside[index]
        style = self._styles.get(int(marks.kind[index]))
        if text is None or style is None:
            return
        room, size = self._room(index), style.size
        left, right = float(marks.left[index]), float(marks.right[index])
        colour = self._paints.of(int(marks.kind[index]), int(marks.operation[index])).number
        if (colour, size) not in groups:
            groups[colour, size] = drawsvg.Group(
                font_size=px(size),
                font_weight="bold" if colour == WHITE else None,
                text_anchor="middle",
                pointer_events="none",
                fill=colour,
            )
        x, y = (left + right) / 2, room / 2 + (self._height / 2 if inside else 0)
        turn = None
        if style.upright:
            y += 0.36 * size
        else:
            x += 0.36 * size
            turn = f"rotate(-90 {px(x)} {px(y)})"
        into = groups[colour, size]
        self._page.text(text, x, y, None, into=into, ink=None, transform=turn)


def _all_have_marks(
    operations: Operations, selection: Selection, boxes: Mapping[int, Sequence[NumberBox]]
) -> bool:
    """Return whether no operation that should have a number is too narrow for any mark."""
    ranks = [rank.index for rank in selection.ranks]
    numbered = np.isin(operations.rank, ranks) & selection.drawn(operations.iteration)
    numbered &= (operations.microbatch != NONE) & (operations.busy_ns > 0)
    numbered &= np.isin(operations.phase, [phase for phase in WORK if phase is not Phase.R])
    counts = np.bincount(operations.phase[numbered], minlength=len(Phase))
    return all(len(boxes.get(kind, ())) >= count for kind, count in enumerate(counts.tolist()))


def _microbatches(operations: Operations, marks: Marks) -> dict[int, str]:
    """Return by mark the number of its operation, for the widest mark of each."""
    length = marks.right - marks.left
    wide = (length >= _NARROWEST) & np.isin(marks.kind, WORK) & (marks.other == 0)
    places = np.flatnonzero(wide)
    places = places[np.argsort(length[places], kind="stable")]
    widest = dict(zip(marks.operation[places].tolist(), places.tolist(), strict=True))
    return {
        index: pair(
            int(operations.microbatch[operation]), int(operations.second_microbatch[operation])
        )
        for operation, index in widest.items()
        if int(operations.microbatch[operation]) != NONE
    }


# Hollow marks: one before each row that has operations without device time.


#: So many operations without device time are named on each row.
_NAMED = 8


class SpanlessOperations:
    """The operations of the drawn iterations and ranks that have no device time."""

    def __init__(self, operations: Operations, selection: Selection, tooltips: Tooltips) -> None:
        rows = selection.row_of_rank
        lacking = np.isin(operations.phase, COMPUTE) & (operations.has_span == 0)
        lacking &= selection.drawn(operations.iteration) & (operations.rank < len(rows))
        spanless = np.flatnonzero(lacking)
        row = rows[operations.rank[spanless]]
        spanless, row = spanless[row != NONE], row[row != NONE]
        self._tooltips = tooltips
        self._by_row = {place: spanless[row == place] for place in distinct(row).tolist()}

    def __len__(self) -> int:
        return sum(map(len, self._by_row.values()))

    def draw(self, group: Any, row: int, height: float) -> None:
        """Draw one hollow mark before a row of that height for all of its operations."""
        operations = self._by_row.get(row)
        if operations is None:
            return
        mark = drawsvg.Circle(
            -6,
            px(height / 2),
            2.6,
            fill="none",
            stroke=LIGHT.text,
            stroke_width=1,
            class_="bv-mark",
        )
        names = ", ".join(
            self._tooltips.label(operation) for operation in operations[:_NAMED].tolist()
        )
        more = f" and {len(operations) - _NAMED} more" if len(operations) > _NAMED else ""
        mark.append_title(f"without device time: {names}{more}")
        group.append(mark)
