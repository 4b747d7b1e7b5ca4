"""Marks: busy intervals of operations on the rows of a picture or of a terminal.

A report can contain millions of operations, so times are converted to coordinates in blocks. Marks
that are too narrow to be seen are merged into columns. In a column, the height of each phase is its
share of the time, and the rest is bubble::

    operations  FFFFFFFFFFFF FBFBFB BB    F    wide marks are drawn one by one
                |          | |    | |     |
    drawn       ████████████ ▒▄▒▄▒▄ ▄     .    narrow ones are stacks of F and B
                             ······ ·     .    with a dotted line below
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table, join_tables
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.operations import BusyIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Kinds of marks that are compute outside every operation, or of iterations that are not drawn; the
#: other kinds are phase codes.
UNATTRIBUTED_KIND, OTHER_ITERATION = len(Phase), len(Phase) + 1
#: Where a mark is on its row.
WHOLE, UPPER, LOWER = range(3)
#: Number of busy intervals converted at a time. Their columns take some tens of MB.
_BLOCK = 1 << 19
#: Minimum width, in px, of a mark that is not merged with its neighbours. Half a px is one dot on a
#: screen of double density, and 0.07 mm in a picture of the width of a text page.
NARROWEST = 0.5
#: Maximum number of marks on all rows of a picture (about 27 bytes each). If there are very many
#: rows, wider marks are merged, in wider columns.
MARKS_IN_ALL = 100_000
#: Order in which merged marks are stacked, from the bottom up.
_STACK = (
    *(Phase.F, Phase.R, Phase.FB, Phase.B, Phase.BW, Phase.W, Phase.OPTIMIZER, UNATTRIBUTED_KIND),
    *(OTHER_ITERATION, *COMMUNICATION),
)
# Maximum rounding error of sums of widths. A nanosecond is wider in any picture of less than ten
# minutes.
_NOTHING = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Marks(Table):
    """Intervals on the rows of a picture.

    Attributes:
        row: Row of the picture.
        kind: Phase code, or one of ``UNATTRIBUTED_KIND`` and ``OTHER_ITERATION``.
        operation: Row of the operations table, or -1 for unattributed compute.
        left: Left end, in px from the left edge of the plot.
        right: Right end, in px from the left edge of the plot.
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
        # Few of many ranks are drawn.
        own = own.take(selection.row_of(operations.rank[own.operation]) != NONE)
        near = mask_phases(operations.phase[own.operation], phases)
        near &= (own.end_ns > selection.start_ns) & (own.start_ns < selection.end_ns)
        own = own.take(near)
        drawn = selection.drawn(operations.iteration[own.operation])
        # An interval that the edge cuts to less than a pixel is invisible and needs no legend.
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
    """Convert intervals of ranks, in ns, to marks on rows, in px."""
    row = selection.row_of(rank)
    scale = width / selection.span_ns
    left = np.maximum(start - selection.start_ns, 0) * scale
    right = (np.minimum(end, selection.end_ns) - selection.start_ns) * scale
    marks = Marks(row, kind, operation, left, right)
    return marks.take((row != NONE) & (right >= left))


def marks_in(blocks: Iterable[Marks]) -> Marks:
    """Join blocks of marks into one table, in their order."""
    none, nowhere = np.zeros(0, np.int64), np.zeros(0)
    return join_tables((Marks(none, none, none, nowhere, nowhere), *blocks))


def coverage(marks: Marks, rows: int, columns: int, column: float = 1.0) -> Floats:
    """Return the share of each column that marks cover; overlaps count twice.

    A mark from x to y covers everything right of x minus everything right of y. So each end can be
    summed separately: its share of its column, and 1 in every later column::

        columns       0     1     2     3
        mark        |   ├─────────┤     |
        right of x  | 0.3 | 1   | 1   | 1
        right of y  | 0   | 0   | 0.5 | 1
        covered     | 0.3 | 1   | 0.5 | 0

    Args:
        marks: Marks on these rows.
        rows: Number of rows.
        columns: Number of columns.
        column: Width of a column, in px.

    Returns:
        The shares, shape (rows, columns).
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
    """Return the half of the row that each mark is drawn in, and which marks are partly covered.

    A mark that begins well inside an earlier one is drawn in the half that becomes free first::

        marks       AAAAAAAAAA          upper   AAAAAAAAAACCCCCC
                        BBBBBBBBBBBB    drawn   AAAABBBBBBBBBBBB    lower: B is over a part of A
                              CCCCCC

    Overlaps below a pixel, or a tenth of the later mark, do not count.

    Args:
        marks: Marks in order of (row, left).

    Returns:
        half: ``WHOLE``, ``UPPER`` or ``LOWER`` for each mark.
        covered: Mask of the marks that a later mark covers in part.
    """
    half = np.full(len(marks), WHOLE, np.int64)
    covered = np.zeros(len(marks), np.bool_)
    if not len(marks):
        return half, covered
    # Rows are placed end to end, so that one running maximum is enough.
    span = float(marks.right.max()) + 10.0
    left = marks.left + marks.row * span
    right = marks.right + marks.row * span
    before = np.concatenate(([-1.0], np.maximum.accumulate(right)[:-1]))
    overlap = np.minimum(before, right) - left
    inside = overlap > np.maximum(1.0, 0.1 * (right - left))
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
    """Marks that are too narrow to be drawn separately, as shares of time.

    Attributes:
        kinds: Kind of each layer, from the bottom up.
        share: Share of the time, shape (rows, layers, columns). The layers of a column sum to at
            most 1.
        column: Width of a column, in px.
        counts: Number of operations, or of intervals of unattributed compute, by kind.
        narrower: Upper bound of the widths of merged marks, in px.
    """

    kinds: tuple[int, ...]
    share: Floats
    column: int
    counts: Counter[int]
    narrower: float


def split(blocks: Iterable[Marks], rows: int, width: float) -> tuple[Marks, MergedMarks]:
    """Separate the marks that are drawn one by one from those that are merged.

    Args:
        blocks: All marks. The marks of an operation follow each other.
        rows: Number of rows.
        width: Width of the plot, in px.

    Returns:
        The marks that are drawn one by one, in order of (row, left), and the merged marks.
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
        # The parts of an operation count once.
        first = np.ones(len(narrow), np.bool_)
        first[1:] = np.diff(narrow.operation) != 0
        first |= narrow.operation == NONE
        for kind in find_distinct(narrow.kind).tolist():
            own = narrow.kind == kind
            time = coverage(narrow.take(own), rows, columns, column)
            covered[kind] = covered.get(kind, np.zeros_like(time)) + time
            counts[kind] += int(np.count_nonzero(own & first))
    kinds = sorted(covered, key=_STACK.index)
    share = np.array([covered[kind] for kind in kinds]).reshape(len(kinds), rows, columns)
    # Overlapping operations can add up to more than the column. They then share it.
    share = share / np.maximum(share.sum(axis=0), 1.0)
    alone = marks_in(wide)
    alone = alone.take(np.lexsort((alone.operation, alone.right, alone.left, alone.row)))
    narrower = math.ceil(narrowest * 100) / 100
    return alone, MergedMarks(tuple(kinds), share.swapaxes(0, 1), column, counts, narrower)
