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
from bubbleviz.model.operations import BusyIntervals, RankIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Kinds of marks that are compute outside every operation, or of iterations that are not drawn; the
#: other kinds are phase codes.
UNATTRIBUTED_KIND, OTHER_ITERATION = len(Phase), len(Phase) + 1
#: Part of the row that a mark is drawn in.
WHOLE, UPPER, LOWER = range(3)
#: Number of busy intervals converted at a time. Their columns take some tens of MB.
_BLOCK = 1 << 19
#: Minimum width, in px, of a mark that is not merged with its neighbours. Half a px is one dot on a
#: screen of double density, and 0.07 mm in a picture of the width of a text page.
MIN_MARK_WIDTH = 0.5
#: Maximum number of marks on all rows of a picture (about 27 bytes each). If there are very many
#: rows, wider marks are merged, in wider columns.
MAX_MARKS = 100_000
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


def make_compute_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the marks of a selection's compute in blocks, unattributed compute last, unsorted."""
    yield from _make_operation_marks(report, selection, width, COMPUTE, report.busy)
    rest = report.unattributed
    no_operation = np.full(len(rest), NONE, np.int64)
    kind = np.full_like(no_operation, UNATTRIBUTED_KIND)
    yield _convert_to_marks(selection, width, rest, rest.rank, kind=kind, operation=no_operation)


def make_communication_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the marks of a selection's communication operations in blocks, unsorted.

    An operation without busy intervals has one mark over its span.
    """
    yield from _make_operation_marks(report, selection, width, COMMUNICATION, report.busy)
    operations = report.operations
    # Communication without kernels, in a table of operations, has no busy intervals.
    has_only_span = operations.has_span == 1
    has_only_span[report.busy.operation] = False
    rows = np.flatnonzero(has_only_span)
    spans = BusyIntervals(rows, operations.start_ns[rows], operations.end_ns[rows])
    yield from _make_operation_marks(report, selection, width, COMMUNICATION, spans)


def _make_operation_marks(
    report: Report,
    selection: Selection,
    width: float,
    phases: Sequence[Phase],
    intervals: BusyIntervals,
) -> Iterator[Marks]:
    """Yield the busy intervals of operations in the selected time as marks, in blocks.

    Operations of iterations that are not selected get the kind ``OTHER_ITERATION``; their intervals
    are left out if the edge of the picture cuts them to less than a pixel.

    Args:
        report: The report.
        selection: The rows, iterations and time to draw.
        width: Width of the plot, in px.
        phases: Phases of the operations.
        intervals: Busy intervals of operations.
    """
    operations = report.operations
    for first in range(0, len(intervals), _BLOCK):
        block = intervals.take(slice(first, first + _BLOCK))
        # First the rows, because only few of very many ranks are drawn.
        block = block.take(selection.row_of(operations.rank[block.operation]) != NONE)
        is_visible = mask_phases(operations.phase[block.operation], phases)
        is_visible &= (block.end_ns > selection.start_ns) & (block.start_ns < selection.end_ns)
        block = block.take(is_visible)
        is_selected = selection.is_selected(operations.iteration[block.operation])
        # An interval that the edge cuts to less than a pixel is invisible and needs no legend.
        start_ns = np.maximum(block.start_ns, selection.start_ns)
        end_ns = np.minimum(block.end_ns, selection.end_ns)
        is_cut = (start_ns > block.start_ns) | (end_ns < block.end_ns)
        is_sliver = ~is_selected & is_cut & ((end_ns - start_ns) * width < selection.span_ns)
        block, is_selected = block.take(~is_sliver), is_selected[~is_sliver]
        row = block.operation
        kind = np.where(is_selected, operations.phase[row], OTHER_ITERATION)
        yield _convert_to_marks(
            selection, width, block, operations.rank[row], kind=kind, operation=row
        )


def _convert_to_marks(
    selection: Selection,
    width: float,
    intervals: BusyIntervals | RankIntervals,
    rank: Ints,
    *,
    kind: Ints,
    operation: Ints,
) -> Marks:
    """Convert intervals of ranks, in ns, to marks on rows, in px.

    Marks are clipped to the drawn time. Intervals outside it, and intervals of ranks without a row,
    are left out.

    Args:
        selection: The rows and the time to draw.
        width: Width of the plot, in px.
        intervals: Start and end of each interval.
        rank: Index of the rank of each interval.
        kind: Kind of each mark.
        operation: Row of the operation of each mark, or -1 if it has none.
    """
    row = selection.row_of(rank)
    scale = width / selection.span_ns
    left = np.maximum(intervals.start_ns - selection.start_ns, 0) * scale
    right = (np.minimum(intervals.end_ns, selection.end_ns) - selection.start_ns) * scale
    marks = Marks(row, kind, operation, left, right)
    return marks.take((row != NONE) & (right >= left))


def join_marks(blocks: Iterable[Marks]) -> Marks:
    """Join blocks of marks into one table, in their order."""
    no_ints, no_floats = np.zeros(0, np.int64), np.zeros(0)
    return join_tables((Marks(no_ints, no_ints, no_ints, no_floats, no_floats), *blocks))


def measure_coverage(marks: Marks, rows: int, columns: int, column: float = 1.0) -> Floats:
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
    # Two more columns, for ends at the right edge of the last column and for the column after it.
    shape = (rows, columns + 2)
    n_cells = rows * (columns + 2)
    partial, later = np.zeros(shape), np.zeros(shape)
    for sign, edge in ((1.0, marks.left / column), (-1.0, marks.right / column)):
        column_index = edge.astype(np.int64)
        cell = marks.row * (columns + 2) + column_index
        partial += sign * np.bincount(cell, column_index + 1 - edge, n_cells).reshape(shape)
        later += sign * np.bincount(cell + 1, minlength=n_cells).reshape(shape)
    covered = (partial + np.cumsum(later, axis=1))[:, :columns]
    return np.where(covered < _NOTHING, 0.0, covered)


def choose_halves(marks: Marks) -> tuple[Ints, Bools]:
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
    left, right = _join_rows(marks)
    is_halved = _mask_halved(left, right)
    halved = np.flatnonzero(is_halved)
    max_right_of_whole = np.maximum.accumulate(np.where(is_halved, -1.0, right))
    half[halved], covered[halved] = _assign_halves(
        left[halved], right[halved], max_right_of_whole[halved]
    )
    next_halved = np.searchsorted(halved, np.arange(len(marks)), side="right")
    next_left = np.append(left[halved], np.inf)[next_halved]
    covered |= ~is_halved & (next_left < right - 1.0)
    return half, covered


def _join_rows(marks: Marks) -> tuple[Floats, Floats]:
    """Return the left and right ends of marks on one line, on which the rows follow each other.

    All marks of a row end before the next row begins, so one running maximum over all marks is
    enough: marks of different rows never overlap.

    Args:
        marks: At least one mark.
    """
    row_width = float(marks.right.max()) + 10.0
    return marks.left + marks.row * row_width, marks.right + marks.row * row_width


def _mask_halved(left: Floats, right: Floats) -> Bools:
    """Return a mask of the marks that overlap an earlier mark, so that they get half the height.

    Overlaps up to a pixel, or up to a tenth of the later mark, do not count.

    Args:
        left: Left end of each mark on the line of all rows.
        right: Right end of each mark on this line.
    """
    max_right_before = np.concatenate(([-1.0], np.maximum.accumulate(right)[:-1]))
    overlap = np.minimum(max_right_before, right) - left
    is_halved: Bools = overlap > np.maximum(1.0, 0.1 * (right - left))
    return is_halved


def _assign_halves(left: Floats, right: Floats, max_right_of_whole: Floats) -> tuple[Ints, Bools]:
    """Choose the upper or lower half of the row for each mark of half height.

    A mark gets the upper half if this becomes free earlier than the lower half, and no later than a
    pixel after the mark begins. Otherwise it gets the lower half.

    Args:
        left: Left end of each mark of half height on the line of all rows.
        right: Right end of each of these marks.
        max_right_of_whole: Maximum right end of the marks of full height before each of these
            marks. They occupy the upper half; marks in the lower half are drawn over them.

    Returns:
        half: ``UPPER`` or ``LOWER`` for each mark.
        covered: Mask of the marks that the next mark in the same half covers in part.
    """
    half = np.full(len(left), LOWER, np.int64)
    covered = np.zeros(len(left), np.bool_)
    busy_until = {UPPER: -1.0, LOWER: -1.0}
    last_mark = {UPPER: NONE, LOWER: NONE}
    for mark in range(len(left)):
        upper_until = max(busy_until[UPPER], float(max_right_of_whole[mark]))
        is_upper = upper_until < busy_until[LOWER] and upper_until <= left[mark] + 1.0
        side = UPPER if is_upper else LOWER
        half[mark] = side
        previous = last_mark[side]
        if previous != NONE:
            covered[previous] |= left[mark] < right[previous] - 1.0
        busy_until[side] = max(busy_until[side], float(right[mark]))
        last_mark[side] = mark
    return half, covered


@dataclass(frozen=True)
class MergedMarks:
    """Marks that are too narrow to be drawn separately, as shares of time.

    Attributes:
        kinds: Kind of each layer, from the bottom up.
        shares: Share of the time, shape (rows, layers, columns). The layers of a column sum to at
            most 1.
        column: Width of a column, in px.
        counts: Number of operations, or of intervals of unattributed compute, by kind.
        max_width: Upper bound of the widths of merged marks, in px.
    """

    kinds: tuple[int, ...]
    shares: Floats
    column: int
    counts: Counter[int]
    max_width: float


def split_marks(blocks: Iterable[Marks], rows: int, width: float) -> tuple[Marks, MergedMarks]:
    """Separate the marks that are drawn one by one from narrow marks, which are merged.

    Marks below ``MIN_MARK_WIDTH`` are narrow. If there are very many rows, the limit is higher, so
    that no more than about ``MAX_MARKS`` marks are drawn one by one.

    Args:
        blocks: All marks. The marks of an operation follow each other.
        rows: Number of rows.
        width: Width of the plot, in px.

    Returns:
        The marks that are drawn one by one, in order of (row, left), and the merged marks.
    """
    min_width = max(MIN_MARK_WIDTH, rows * width / MAX_MARKS)
    column = math.ceil(min_width)
    columns = math.ceil(width / column)
    covered: dict[int, Floats] = {}
    counts: Counter[int] = Counter()
    wide_blocks = []
    for marks in blocks:
        is_wide = marks.right - marks.left >= min_width
        wide_blocks.append(marks.take(is_wide))
        narrow = marks.take(~is_wide)
        for kind in find_distinct(narrow.kind).tolist():
            of_kind = narrow.take(narrow.kind == kind)
            column_share = measure_coverage(of_kind, rows, columns, column)
            covered[kind] = covered.get(kind, np.zeros_like(column_share)) + column_share
            counts[kind] += int(np.count_nonzero(_is_first_of_operation(of_kind)))
    kinds = tuple(sorted(covered, key=_STACK.index))
    shares = np.array([covered[kind] for kind in kinds]).reshape(len(kinds), rows, columns)
    # Overlapping operations can add up to more than the column. They then share it.
    shares = shares / np.maximum(shares.sum(axis=0), 1.0)
    max_width = math.ceil(min_width * 100) / 100
    merged = MergedMarks(kinds, shares.swapaxes(0, 1), column, counts, max_width)
    return _sort_by_position(join_marks(wide_blocks)), merged


def _sort_by_position(marks: Marks) -> Marks:
    """Return marks sorted by row, left end, right end and operation."""
    return marks.take(np.lexsort((marks.operation, marks.right, marks.left, marks.row)))


def _is_first_of_operation(marks: Marks) -> Bools:
    """Return a mask of the first mark of each operation; marks without an operation are all first.

    Args:
        marks: Marks. The marks of an operation follow each other.
    """
    is_first: Bools = marks.operation == NONE
    is_first[:1] = True
    is_first[1:] |= np.diff(marks.operation) != 0
    return is_first
