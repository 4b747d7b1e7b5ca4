"""Converts operations' busy intervals to marks on the rows of a picture or terminal.

A report can contain millions of operations, so times are converted to coordinates in blocks. Marks
too narrow to be seen are merged into columns. The height of a phase in a column is the phase's
share of the time, and the rest of the column is bubble::

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

#: Mark kinds for unattributed compute and for operations in iterations that are not selected. All
#: other mark kinds are phase codes.
UNATTRIBUTED_KIND, OTHER_ITERATION = len(Phase), len(Phase) + 1
#: Part of a row occupied by a mark: the entire height, the upper half or the lower half.
WHOLE, UPPER, LOWER = range(3)
#: Number of busy intervals converted per block. A block takes some tens of MB.
_BLOCK = 1 << 19
#: Minimum width, in px, for a mark to be drawn separately. Marks narrower than this are merged.
#: Half a px is one dot on a high-density screen, or 0.07 mm in a picture as wide as a text page.
MIN_MARK_WIDTH = 0.5
#: Approximate maximum number of separately drawn marks in a picture. A mark takes 27 bytes. In
#: pictures with very many rows, wider marks are also merged, into wider columns.
MAX_MARKS = 100_000
#: Order in which merged marks are stacked, from the bottom up.
_STACK = (
    *(Phase.F, Phase.R, Phase.FB, Phase.B, Phase.BW, Phase.W, Phase.OPTIMIZER, UNATTRIBUTED_KIND),
    *(OTHER_ITERATION, *COMMUNICATION),
)
# Maximum rounding error in a column's share. Smaller shares are set to 0. In any picture of less
# than ten minutes, a nanosecond has a larger share of the width.
_NOTHING = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Marks(Table):
    """A table of intervals drawn as boxes on the rows of a picture.

    Attributes:
        row: Index of the picture row that contains the mark.
        kind: Phase code, or one of ``UNATTRIBUTED_KIND`` and ``OTHER_ITERATION``.
        operation: Index of the operation in the operations table, or -1 for unattributed compute.
        left: Left end of the mark, in px from the left edge of the plot.
        right: Right end of the mark, in px from the left edge of the plot.
    """

    row: Ints
    kind: Ints
    operation: Ints
    left: Floats
    right: Floats


def make_compute_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the compute marks in a selection, in blocks that are not sorted.

    The last block contains the compute that does not belong to any operation.

    Args:
        report: The report.
        selection: The rows, iterations and time to draw.
        width: Width of the plot, in px.
    """
    yield from _make_operation_marks(report, selection, width, COMPUTE, report.busy)
    rest = report.unattributed
    no_operation = np.full(len(rest), NONE, np.int64)
    kind = np.full_like(no_operation, UNATTRIBUTED_KIND)
    yield _convert_to_marks(selection, width, rest, rest.rank, kind=kind, operation=no_operation)


def make_communication_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the communication marks in a selection, in blocks that are not sorted.

    A communication operation without busy intervals gets one mark that covers its span.

    Args:
        report: The report.
        selection: The rows, iterations and time to draw.
        width: Width of the plot, in px.
    """
    yield from _make_operation_marks(report, selection, width, COMMUNICATION, report.busy)
    operations = report.operations
    # A run that was read from a table of operations has no kernels and thus no busy intervals.
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
    """Convert busy intervals in the selected time span to marks, and yield the marks in blocks.

    Operations of iterations that are not selected get the kind ``OTHER_ITERATION``. An interval in
    such an iteration is left out if the edge of the picture clips it to less than a pixel.

    Args:
        report: The report.
        selection: The rows, iterations and time to draw.
        width: Width of the plot, in px.
        phases: Phases to draw. Operations in all other phases are skipped.
        intervals: Busy intervals of operations in any phase.
    """
    operations = report.operations
    for first in range(0, len(intervals), _BLOCK):
        block = intervals.take(slice(first, first + _BLOCK))
        # Filter by row first, because a picture of many ranks shows only a few of them.
        block = block.take(selection.row_of(operations.rank[block.operation]) != NONE)
        is_visible = mask_phases(operations.phase[block.operation], phases)
        is_visible &= (block.end_ns > selection.start_ns) & (block.start_ns < selection.end_ns)
        block = block.take(is_visible)
        is_selected = selection.is_selected(operations.iteration[block.operation])
        # An interval that the edge clips to less than a pixel is invisible, so the legend does not
        # need an entry for it.
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
    """Convert rank time intervals (in ns) to marks on the rows of a picture (in px).

    Marks are clipped to the drawn time. Intervals outside the drawn time, and intervals of ranks
    that are not drawn, are left out.

    Args:
        selection: The rows and the time to draw.
        width: Width of the plot, in px.
        intervals: The intervals, shape (n,).
        rank: Rank index of each interval.
        kind: Kind of each interval: a phase code, ``UNATTRIBUTED_KIND`` or ``OTHER_ITERATION``.
        operation: Index of the operation that each interval belongs to, or -1 if there is none.
    """
    row = selection.row_of(rank)
    scale = width / selection.span_ns
    left = np.maximum(intervals.start_ns - selection.start_ns, 0) * scale
    right = (np.minimum(intervals.end_ns, selection.end_ns) - selection.start_ns) * scale
    marks = Marks(row, kind, operation, left, right)
    return marks.take((row != NONE) & (right >= left))


def join_marks(blocks: Iterable[Marks]) -> Marks:
    """Concatenate blocks of marks into one table. If there are no blocks, the table is empty."""
    no_ints, no_floats = np.zeros(0, np.int64), np.zeros(0)
    return join_tables((Marks(no_ints, no_ints, no_ints, no_floats, no_floats), *blocks))


def measure_coverage(marks: Marks, rows: int, columns: int, column: float = 1.0) -> Floats:
    """Return the share of each pixel column that is covered by marks.

    Overlapping marks are added up.

    A mark from x to y covers everything right of x minus everything right of y. Each end can
    therefore be summed separately: its share of its column, and 1 in every later column::

        columns       0     1     2     3
        mark        |   ├─────────┤     |
        right of x  | 0.3 | 1   | 1   | 1
        right of y  | 0   | 0   | 0.5 | 1
        covered     | 0.3 | 1   | 0.5 | 0

    Args:
        marks: The marks. Their ``row`` must be less than ``rows``.
        rows: Number of rows.
        columns: Number of columns per row.
        column: Width of a column, in px.

    Returns:
        Shares of the column width, shape (rows, columns). Values up to 1e-9 are set to 0.
    """
    # Two extra columns receive the ends at the right edge and the sum that follows them.
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
    """Choose whether each mark is drawn at the full height of its row or in one half of it.

    A mark that starts well inside an earlier mark is drawn in the half that becomes free first::

        marks       AAAAAAAAAA          upper   AAAAAAAAAACCCCCC
                        BBBBBBBBBBBB    drawn   AAAABBBBBBBBBBBB    lower: B is over a part of A
                              CCCCCC

    Overlaps of at most a pixel, or at most a tenth of the later mark, are ignored.

    Args:
        marks: Marks, sorted by (row, left).

    Returns:
        half: ``WHOLE``, ``UPPER`` or ``LOWER`` for each mark.
        covered: Mask of the marks partly covered by a later mark.
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
    """Place all rows one after another on a single line, and return the ends of the marks.

    The rows are shifted so that each row starts after all marks of the previous row have ended.
    Marks in different rows therefore never overlap, and one running maximum is enough.

    Args:
        marks: The marks. Must not be empty.

    Returns:
        The left ends and the right ends, in px.
    """
    row_width = float(marks.right.max()) + 10.0
    return marks.left + marks.row * row_width, marks.right + marks.row * row_width


def _mask_halved(left: Floats, right: Floats) -> Bools:
    """Return a mask of the marks that overlap an earlier mark and are drawn at half height.

    Overlaps of up to a pixel, or up to a tenth of the later mark, are ignored.

    Args:
        left: Left end of each mark, as returned by :func:`_join_rows`.
        right: Right end of each mark, as returned by :func:`_join_rows`.
    """
    max_right_before = np.concatenate(([-1.0], np.maximum.accumulate(right)[:-1]))
    overlap = np.minimum(max_right_before, right) - left
    is_halved: Bools = overlap > np.maximum(1.0, 0.1 * (right - left))
    return is_halved


def _assign_halves(left: Floats, right: Floats, max_right_of_whole: Floats) -> tuple[Ints, Bools]:
    """Choose the upper or lower half of the row for each mark drawn at half height.

    A mark is drawn in the lower half, unless both of these conditions hold:

    - The upper half becomes free before the lower half.
    - The upper half becomes free no later than one pixel after the mark's start.

    A half becomes free when all earlier marks drawn in it have ended. Full-height marks occupy only
    the upper half, because marks in the lower half are drawn over them.

    Args:
        left: Left end of each half-height mark, as returned by :func:`_join_rows`, ascending.
        right: Right end of each half-height mark.
        max_right_of_whole: For each half-height mark, the maximum right end of the full-height
            marks before it, or -1 if there are none.

    Returns:
        half: ``UPPER`` or ``LOWER`` for each mark.
        covered: Mask of the marks partly covered by the next mark in the same half.
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
    """Marks too narrow to be drawn separately, merged into columns of stacked layers.

    Attributes:
        kinds: Kind of mark in each layer, from bottom to top.
        shares: Fraction of a column's time that each layer covers, shape (rows, layers, columns).
            The layers in a column add up to at most 1.
        column: Width of a column, in px.
        counts: Number of merged operations (or of intervals of unattributed compute), keyed by
            kind.
        max_width: Width in px below which marks were merged, rounded up to two decimals.
    """

    kinds: tuple[int, ...]
    shares: Floats
    column: int
    counts: Counter[int]
    max_width: float


def split_marks(blocks: Iterable[Marks], rows: int, width: float) -> tuple[Marks, MergedMarks]:
    """Separate wide marks, which are drawn one by one, from narrow marks, which are merged.

    A mark is narrow if its width is below ``max(MIN_MARK_WIDTH, rows * width / MAX_MARKS)``. The
    limit grows with the number of rows, so that no more than about ``MAX_MARKS`` wide marks remain.

    Args:
        blocks: All marks, split into blocks. Marks of the same operation must be adjacent.
        rows: Number of rows.
        width: Width of the plot, in px.

    Returns:
        The wide marks, sorted by (row, left, right, operation), and the merged marks.
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
    # The shares of overlapping operations can add up to more than 1, so scale them down.
    shares = shares / np.maximum(shares.sum(axis=0), 1.0)
    max_width = math.ceil(min_width * 100) / 100
    merged = MergedMarks(kinds, shares.swapaxes(0, 1), column, counts, max_width)
    return _sort_by_position(join_marks(wide_blocks)), merged


def _sort_by_position(marks: Marks) -> Marks:
    """Return the marks sorted by row, left end, right end and operation."""
    return marks.take(np.lexsort((marks.operation, marks.right, marks.left, marks.row)))


def _is_first_of_operation(marks: Marks) -> Bools:
    """Return a mask that selects the first mark of each operation.

    A mark without an operation always counts as a first mark.

    Args:
        marks: Marks. Marks of the same operation must be adjacent.
    """
    is_first: Bools = marks.operation == NONE
    is_first[:1] = True
    is_first[1:] |= np.diff(marks.operation) != 0
    return is_first
