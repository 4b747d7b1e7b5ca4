"""Marks: busy intervals of operations on the rows of a picture or of a terminal.

Times become places block by block, for a report can hold millions of operations. What is too narrow
to be seen alone is merged: of it, each row has columns, in which a colour is as high as its phase's
share of the time. What no colour covers stays bubble::

    operations  FFFFFFFFFFFF FBFBFB BB    F    F = drawn one by one where it is wide enough
                |          | |    | |     |
    drawn       ████████████ ▒▄▒▄▒▄ ▄     .    stacks of F and B elsewhere
                             ······ ·     .    dotted below: merged
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table, joined
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import BusyIntervals
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

#: Kinds of marks that are compute outside every operation, or of iterations that are not drawn; the
#: other kinds are phase codes.
UNATTRIBUTED_KIND, OTHER_ITERATION = len(Phase), len(Phase) + 1
#: Where a mark is on its row.
WHOLE, UPPER, LOWER = range(3)
#: Marks are made of so many busy intervals at a time: as columns they take some tens of MB.
_BLOCK = 1 << 19
#: Narrower than this (px), and a mark is merged with its neighbours: half a px is a dot of a
#: screen of double density, and 0.07 mm where the picture is as wide as a page of text.
NARROWEST = 0.5
#: So many marks fit on all rows of a picture (some 27 bytes each): where rows are very many, wider
#: ones are merged, in wider columns.
MARKS_IN_ALL = 100_000
#: What is stacked on what where marks are merged, from the bottom up.
_STACK = (
    *(Phase.F, Phase.R, Phase.FB, Phase.B, Phase.BW, Phase.W, Phase.OPTIMIZER, UNATTRIBUTED_KIND),
    *(OTHER_ITERATION, *COMMUNICATION),
)
# Less than this is left over from sums of floating-point numbers: a nanosecond is more in any
# picture of less than ten minutes.
_NOTHING = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Marks(Table):
    """Intervals on rows.

    Attributes:
        row: row of the picture.
        kind: phase code, or one of those above.
        operation: row of the operations table, ``-1`` for none.
        left: px from the left edge of the plot.
        right: likewise.
    """

    row: Ints
    kind: Ints
    operation: Ints
    left: Floats
    right: Floats


def compute_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the compute of a selection in blocks, unattributed compute last, unsorted."""
    yield from _of_operations(report, selection, width, COMPUTE, report.busy)
    rest = report.unattributed
    none = np.full(len(rest), NONE, np.int64)
    kind, times = np.full_like(none, UNATTRIBUTED_KIND), (rest.start_ns, rest.end_ns)
    yield _placed(selection, width, rest.rank, *times, kind=kind, operation=none)


def communication_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the communication operations of a selection in blocks, unsorted."""
    yield from _of_operations(report, selection, width, COMMUNICATION, report.busy)
    operations = report.operations
    lacking = operations.has_span == 1
    lacking[report.busy.operation] = False
    rows = np.flatnonzero(lacking)
    spans = BusyIntervals(rows, operations.start_ns[rows], operations.end_ns[rows])
    yield from _of_operations(report, selection, width, COMMUNICATION, spans)


def _of_operations(
    report: Report,
    selection: Selection,
    width: float,
    phases: Sequence[Phase],
    intervals: BusyIntervals,
) -> Iterator[Marks]:
    """Yield the intervals of operations of some phases as marks."""
    operations = report.operations
    for first in range(0, len(intervals), _BLOCK):
        own = intervals.take(slice(first, first + _BLOCK))
        # Of many ranks few are drawn.
        own = own.take(selection.row_of(operations.rank[own.operation]) != NONE)
        near = among(operations.phase[own.operation], phases)
        near &= (own.end_ns > selection.start_ns) & (own.start_ns < selection.end_ns)
        own = own.take(near)
        drawn = selection.drawn(operations.iteration[own.operation])
        # What the edge cuts to less than a pixel cannot be seen, and would stand in the legend.
        start_ns = np.maximum(own.start_ns, selection.start_ns)
        end_ns = np.minimum(own.end_ns, selection.end_ns)
        cut = (start_ns > own.start_ns) | (end_ns < own.end_ns)
        sliver = ~drawn & cut & ((end_ns - start_ns) * width < selection.span_ns)
        own, drawn = own.take(~sliver), drawn[~sliver]
        row = own.operation
        kind = np.where(drawn, operations.phase[row], OTHER_ITERATION)
        rank, times = operations.rank[row], (own.start_ns, own.end_ns)
        yield _placed(selection, width, rank, *times, kind=kind, operation=row)


def _placed(
    selection: Selection,
    width: float,
    rank: Ints,
    start: Ints,
    end: Ints,
    *,
    kind: Ints,
    operation: Ints,
) -> Marks:
    """Return intervals of ranks, ns, as marks on rows, px."""
    row = selection.row_of(rank)
    scale = width / selection.span_ns
    left = np.maximum(start - selection.start_ns, 0) * scale
    right = (np.minimum(end, selection.end_ns) - selection.start_ns) * scale
    marks = Marks(row, kind, operation, left, right)
    return marks.take((row != NONE) & (right >= left))


def marks_in(blocks: Iterable[Marks]) -> Marks:
    """Join blocks of marks into one table, in their order."""
    none, nowhere = np.zeros(0, np.int64), np.zeros(0)
    return joined((Marks(none, none, none, nowhere, nowhere), *blocks))


def coverage(marks: Marks, rows: int, columns: int, column: float = 1.0) -> Floats:
    """Return by row and column the share of it that the marks cover, overlaps twice.

    A mark from x to y covers what is right of x less what is right of y, so both ends can be
    summed by columns on their own: the part of its own column, and 1 in every later one::

        columns       0     1     2     3
        mark        |   ├─────────┤     |
        right of x  | 0.3 | 1   | 1   | 1
        right of y  | 0   | 0   | 0.5 | 1
        covered     | 0.3 | 1   | 0.5 | 0

    Args:
        marks: on these rows.
        rows: number of rows.
        columns: number of columns.
        column: width of a column, px.
    """
    size = rows * (columns + 2)
    base = marks.row * (columns + 2)
    partial, later = np.zeros(size), np.zeros(size)
    for sign, edge in ((1.0, marks.left / column), (-1.0, marks.right / column)):
        place = edge.astype(np.int64)
        at = base + place
        partial += sign * np.bincount(at, place + 1 - edge, size)
        later += sign * np.bincount(at + 1, minlength=size)
    covered = (partial.reshape(rows, -1) + np.cumsum(later.reshape(rows, -1), axis=1))[:, :columns]
    return np.where(covered < _NOTHING, 0.0, covered)


def halves(marks: Marks) -> tuple[Ints, Bools]:
    """Return where on its row each mark is, and which of them later ones cover in part.

    A mark that begins well inside an earlier one has the half of the row that is free first::

        marks       AAAAAAAAAA          upper   AAAAAAAAAACCCCCC
                        BBBBBBBBBBBB    drawn   AAAABBBBBBBBBBBB    lower: B is over a part of A
                              CCCCCC

    Overlaps below a pixel, or a tenth of the later mark, do not count.

    Args:
        marks: in order of (row, left).

    Returns:
        WHOLE, UPPER or LOWER by mark, and whether another mark is over a part of it.
    """
    half = np.full(len(marks), WHOLE, np.int64)
    covered = np.zeros(len(marks), np.bool_)
    if not len(marks):
        return half, covered
    # Rows are laid end to end, so that one running maximum serves all of them.
    span = float(marks.right.max()) + 10.0
    left = marks.left + marks.row * span
    right = marks.right + marks.row * span
    before = np.concatenate(([-1.0], np.maximum.accumulate(right)[:-1]))
    inside = np.minimum(before, right) - left > np.maximum(1.0, 0.1 * (right - left))
    whole = np.maximum.accumulate(np.where(inside, -1.0, right))
    places = np.flatnonzero(inside)
    ends = {UPPER: -1.0, LOWER: -1.0}
    last = {UPPER: NONE, LOWER: NONE}
    for index in places.tolist():
        upper = max(ends[UPPER], float(whole[index]))
        own = UPPER if upper < ends[LOWER] and upper <= left[index] + 1.0 else LOWER
        half[index] = own
        if last[own] != NONE:
            covered[last[own]] |= left[index] < right[last[own]] - 1.0
        ends[own], last[own] = max(ends[own], float(right[index])), index
    following = np.searchsorted(places, np.arange(len(marks)), side="right")
    starts = np.append(left[places], np.inf)
    covered |= ~inside & (starts[following] < right - 1.0)
    return half, covered


@dataclass(frozen=True)
class MergedMarks:
    """The marks that are too narrow to be drawn alone, as shares of time.

    Attributes:
        kinds: of the layers, from the bottom up.
        share: by row, layer and column: the share of the time, summing to at most 1.
        column: width of a column in px.
        counts: operations, or intervals of unattributed compute, by kind.
        narrower: all merged marks are narrower than this, px.
    """

    kinds: tuple[int, ...]
    share: Floats
    column: int
    counts: Counter[int]
    narrower: float


def split(blocks: Iterable[Marks], rows: int, width: float) -> tuple[Marks, MergedMarks]:
    """Return the marks that are drawn one by one, in order of (row, left), and the others merged.

    Args:
        blocks: all marks, those of an operation one after the other.
        rows: number of rows.
        width: of the plot in px.
    """
    narrowest = max(NARROWEST, rows * width / MARKS_IN_ALL)
    column = math.ceil(narrowest)
    columns = math.ceil(width / column)
    covered: dict[int, Floats] = {}
    counts: Counter[int] = Counter()
    wide = []
    for marks in blocks:
        enough = marks.right - marks.left >= narrowest
        wide.append(marks.take(enough))
        narrow = marks.take(~enough)
        # The parts of an operation are one.
        first = np.ones(len(narrow), np.bool_)
        first[1:] = np.diff(narrow.operation) != 0
        first |= narrow.operation == NONE
        for kind in distinct(narrow.kind).tolist():
            own = narrow.kind == kind
            time = coverage(narrow.take(own), rows, columns, column)
            covered[kind] = covered.get(kind, np.zeros_like(time)) + time
            counts[kind] += int(np.count_nonzero(own & first))
    kinds = sorted(covered, key=_STACK.index)
    share = np.array([covered[kind] for kind in kinds]).reshape(len(kinds), rows, columns)
    # Overlapping operations can add up to more than there is: then they share all of it.
    share = share / np.maximum(share.sum(axis=0), 1.0)
    alone = marks_in(wide)
    alone = alone.take(np.lexsort((alone.operation, alone.right, alone.left, alone.row)))
    narrower = math.ceil(narrowest * 100) / 100
    return alone, MergedMarks(tuple(kinds), share.swapaxes(0, 1), column, counts, narrower)
