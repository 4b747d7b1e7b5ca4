"""Chooses the microbatch numbers drawn in operation boxes, and their font size.

Either all operations have a number or none do, and all numbers have the same font size.
Recomputations are an exception, because they are often too short for a number. If numbers do not
fit into recomputations, other phases are not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.render.marks import Marks
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.style import Lettering
from bubbleviz.render.selection import Selection

#: Minimum width of a box that can hold a number, in page units.
_MIN_WIDTH = 4
#: Height of a digit relative to the font size, and maximum height of a digit relative to its box.
_DIGIT, _MAX_SHARE_OF_HEIGHT = 0.73, 0.84
#: Total horizontal margin between a number and its box (sum of both sides).
_MARGIN = 1.0


class _TightestBox(NamedTuple):
    """The longest microbatch number in a phase, and the minimum width and height of its boxes."""

    text: str
    width: float
    height: float

    def fits(self, size: float) -> bool:
        """Return whether the text fits into the box at the given font size."""
        is_low_enough = _DIGIT * size + _MARGIN <= _MAX_SHARE_OF_HEIGHT * self.height
        return is_low_enough and text_width(self.text, size) + _MARGIN <= self.width


def number_boxes(
    operations: Operations, selection: Selection, marks: Marks, heights: Floats, letters: Lettering
) -> dict[int, tuple[str, float]]:
    """Choose the boxes that will contain a microbatch number, and the font size of the numbers.

    An operation's number goes in its widest box. All numbers have the same size, which is the
    largest size at which all of them fit.

    Args:
        operations: The report's operations.
        selection: Rows and iterations to draw.
        marks: Boxes of the operations.
        heights: Height available for a number in each box.
        letters: Font sizes of the picture.

    Returns:
        (text, font size) of each number, keyed by the index of its box in ``marks``. Empty if any
        operation is too narrow for its number, unless it is a recomputation.
    """
    texts = _list_mark_texts(operations, marks)
    index = np.array(list(texts), np.int64)
    n_boxes = np.bincount(marks.kind[index], minlength=len(Phase))
    if (n_boxes < _count_numbered(operations, selection)).any():
        return {}
    sizes = _choose_sizes(_find_tightest(texts, marks, heights), letters)
    numbers = {}
    for box, text in texts.items():
        kind = int(marks.kind[box])
        if kind in sizes:
            numbers[box] = text, sizes[kind]
    return numbers


def _list_mark_texts(operations: Operations, marks: Marks) -> dict[int, str]:
    """Return the microbatch number of each operation as text, keyed by the index of its widest box.

    Optimizer operations, operations whose microbatch is unknown, and operations whose boxes are all
    narrower than ``_MIN_WIDTH`` are omitted. If several boxes are equally wide, the last one wins.
    """
    length = marks.right - marks.left
    wide = np.flatnonzero((length >= _MIN_WIDTH) & np.isin(marks.kind, WORK))
    wide = wide[np.argsort(length[wide], kind="stable")]
    widest = dict(zip(marks.operation[wide].tolist(), wide.tolist(), strict=True))
    return {
        index: _format_pair(operations.microbatch, operations.second_microbatch, operation)
        for operation, index in widest.items()
        if operations.microbatch[operation] != NONE
    }


def _format_pair(first: Ints, second: Ints, row: int) -> str:
    """Return an operation's microbatch number as text, such as "3", or "3;7" for two numbers.

    Args:
        first: First microbatch of each operation.
        second: Second microbatch of each operation, or -1 if there is none.
        row: Index of the operation.
    """
    return f"{first[row]};{second[row]}" if second[row] != NONE else str(first[row])


def _count_numbered(operations: Operations, selection: Selection) -> Ints:
    """Count the operations that need a number, whether or not it fits. Indexed by phase code.

    All drawn operations that have busy time and a known microbatch need a number, except
    recomputations.
    """
    is_drawn: Bools = np.isin(operations.rank, [rank.index for rank in selection.ranks])
    is_drawn &= selection.is_selected(operations.iteration)
    has_number = (operations.busy_ns > 0) & (operations.microbatch != NONE)
    has_number &= np.isin(operations.phase, WORK) & (operations.phase != Phase.R)
    return np.bincount(operations.phase[is_drawn & has_number], minlength=len(Phase))


def _find_tightest(
    texts: Mapping[int, str], marks: Marks, heights: Floats
) -> dict[int, _TightestBox]:
    """Return the longest number and the smallest box of each phase, keyed by phase code.

    The smallest box combines the minimum width and the minimum height over the phase's boxes. There
    may be no actual box of this size.

    Args:
        texts: Text of the number in each box, keyed by the box's index in ``marks``.
        marks: All boxes.
        heights: Height available for a number in each box.
    """
    index = np.array(list(texts), np.int64)
    kinds, widths = marks.kind[index], (marks.right - marks.left)[index]
    tightest = {}
    for kind in find_distinct(kinds).tolist():
        is_kind = kinds == kind
        longest = max((texts[box] for box in index[is_kind].tolist()), key=len)
        width, height = widths[is_kind].min(), heights[index[is_kind]].min()
        tightest[kind] = _TightestBox(longest, float(width), float(height))
    return tightest


def _choose_sizes(boxes: Mapping[int, _TightestBox], letters: Lettering) -> dict[int, float]:
    """Choose the font size of the numbers, which is the same for all phases.

    Sizes from ``letters.number`` down to ``letters.min_number`` are tried in steps of 0.5. The
    first size at which the numbers of all phases except recomputation fit is chosen.

    Args:
        boxes: Longest number and smallest box of each phase, keyed by phase code.
        letters: Font sizes of the picture.

    Returns:
        The chosen size for each phase, keyed by phase code. Recomputation is left out if its
        numbers do not fit at this size. Empty if the numbers do not fit at any size.
    """
    sizes = np.arange(letters.number, letters.min_number - 0.1, -0.5).round(1).tolist()
    for size in (*sizes, letters.min_number):
        max_sizes = {kind: float(size) for kind, box in boxes.items() if box.fits(size)}
        if max_sizes and all(kind in max_sizes for kind in boxes if kind != Phase.R):
            return max_sizes
    return {}
