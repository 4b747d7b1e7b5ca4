"""Microbatch numbers in the boxes of operations, in one style a phase."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import drawsvg
import numpy as np

from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import WORK
from bubbleviz.model.values import frozen
from bubbleviz.render.picture.marks import Marks
from bubbleviz.render.picture.page import Page, px
from bubbleviz.render.picture.palette import LIGHT, WHITE
from bubbleviz.render.picture.rows.paints import OperationPaints
from bubbleviz.render.picture.rows.tooltips import pair

#: A mark narrower than this has no number, px.
_NARROWEST = 5


@frozen
class NumberStyle:
    """How the numbers of a phase are written: font size, and upright or sideways."""

    size: float
    upright: bool

    def fits(self, text: str, width: float, height: float) -> bool:
        """Return whether ``text`` fits into a box."""
        along, across = 0.6 * self.size * len(text), 0.8 * self.size
        if self.upright:
            return along + 1.5 <= width and across <= 0.84 * height
        return across + 1.5 <= width and along <= 0.84 * height


def number_style(boxes: list[tuple[str, float]], height: float) -> NumberStyle | None:
    """Return the largest style that fits most boxes, upright before sideways.

    Args:
        boxes: text and width of each.
        height: of all of them.
    """
    if not boxes or height < 9:
        return None
    largest = min(11.0, 0.56 * height)
    best, best_share = None, 0.2
    for upright, least in ((True, 7.5), (False, 7.5), (True, 6.0), (False, 5.5)):
        for size in np.arange(largest, least - 0.1, -0.5).round(1).tolist():
            style = NumberStyle(size, upright)
            share = sum(style.fits(text, width, height) for text, width in boxes) / len(boxes)
            if share >= 0.9:
                return style
            if share > best_share:
                best, best_share = style, share
    return best


class NumberPainter:
    """Writes the microbatch of each operation in its widest mark.

    Args:
        page: the page.
        operations: of the report.
        marks: the marks drawn one by one.
        overlaps: which marks begin inside another, and which hold such.
        paints: of the operations.
        height: of a row, px.
    """

    def __init__(
        self,
        page: Page,
        operations: Operations,
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
        boxes: dict[int, list[tuple[str, float]]] = defaultdict(list)
        lengths = marks.right - marks.left
        for index, text in self._texts.items():
            boxes[int(marks.kind[index])].append((text, float(lengths[index])))
        self._styles = {kind: number_style(some, height) for kind, some in boxes.items()}

    def draw(self, group: Any, indices: range) -> None:
        """Write the numbers of some marks, of one colour and size as one group."""
        groups: dict[tuple[str, float], Any] = {}
        for index in indices:
            self._write(groups, index)
        group.extend(members for _, members in sorted(groups.items()))

    def _write(self, groups: dict[tuple[str, float], Any], index: int) -> None:
        marks = self._marks
        text, inside, holds = self._texts.get(index), self._inside[index], self._holds[index]
        style = self._styles.get(int(marks.kind[index]))
        if text is None or style is None or (inside and holds):
            return
        # Overlapping marks share the height.
        room = self._height / 2 if inside or holds else self._height
        size = min(style.size, 0.75 * room)
        left, right = float(marks.left[index]), float(marks.right[index])
        if not NumberStyle(size, style.upright).fits(text, right - left, room):
            return
        colour = self._paints.of(int(marks.kind[index]), int(marks.operation[index])).number
        colour = LIGHT.text if marks.other[index] else colour
        if (colour, size) not in groups:
            groups[colour, size] = drawsvg.Group(
                font_size=px(size),
                font_weight="bold" if colour == WHITE else None,
                text_anchor="middle",
                pointer_events="none",
                fill=colour,
                class_="bv-text" if colour == LIGHT.text else None,
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


def _microbatches(operations: Operations, marks: Marks) -> dict[int, str]:
    """Return by mark the number of its operation, for the widest mark of each."""
    length = marks.right - marks.left
    wide = np.flatnonzero((length >= _NARROWEST) & np.isin(marks.kind, WORK))
    wide = wide[np.argsort(length[wide], kind="stable")]
    widest = dict(zip(marks.operation[wide].tolist(), wide.tolist(), strict=True))
    return {
        index: pair(
            int(operations.microbatch[operation]), int(operations.second_microbatch[operation])
        )
        for operation, index in widest.items()
        if int(operations.microbatch[operation]) != NONE
    }
