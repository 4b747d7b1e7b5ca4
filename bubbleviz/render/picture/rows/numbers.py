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

from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import WHITE
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.marks import Marks
from bubbleviz.render.picture.page import Page, px
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.picture.rows.tooltips import pair
from bubbleviz.render.picture.style import Lettering
from bubbleviz.render.selection import Selection

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
