"""Marks: busy intervals of operations as pixels of a row.

Times become pixels block by block, for a report can hold millions of operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table, joined
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.model.values import frozen
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

#: Kind of a mark that is compute outside every operation; the other kinds are phase codes.
UNATTRIBUTED_KIND = len(Phase)
#: Marks are made of so many busy intervals at a time: as columns they take some tens of MB.
_BLOCK = 1 << 19


@frozen
class Marks(Table):
    """Intervals on rows, in order of (row, left).

    Attributes:
        row: row of the picture.
        kind: phase code, or ``UNATTRIBUTED_KIND``.
        operation: row of the operations table, ``-1`` for none.
        other: 1 where it belongs to an iteration that is not drawn.
        left: px from the left edge of the plot.
        right: likewise.
    """

    row: Ints
    kind: Ints
    operation: Ints
    other: Ints
    left: Floats
    right: Floats


def compute_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the compute of the selection in blocks, unattributed compute last, unsorted."""
    yield from _busy_marks(report, selection, width, COMPUTE)
    rest = report.unattributed
    for block in _blocks(len(rest)):
        rank = rest.rank[block]
        yield _clipped(
            selection,
            width,
            rank=rank,
            start=rest.start_ns[block],
            end=rest.end_ns[block],
            kind=np.full(len(rank), UNATTRIBUTED_KIND, np.int64),
            operation=np.full(len(rank), NONE, np.int64),
            other=np.zeros(len(rank), np.int64),
        )


def communication_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the communication operations of the selection in blocks, unsorted."""
    yield from _busy_marks(report, selection, width, COMMUNICATION)
    operations = report.operations
    lacking = np.isin(operations.phase, COMMUNICATION) & (operations.has_span == 1)
    lacking[report.busy.operation] = False
    spans = np.flatnonzero(lacking)
    for block in _blocks(len(spans)):
        spanned = spans[block]
        start, end = operations.start_ns[spanned], operations.end_ns[spanned]
        yield _marks(report, selection, width, spanned, start, end)


def _blocks(length: int) -> Iterator[slice]:
    """Yield the slices of a table that are worked on at a time."""
    for start in range(0, length, _BLOCK):
        yield slice(start, start + _BLOCK)


def _busy_marks(
    report: Report, selection: Selection, width: float, phases: Sequence[Phase]
) -> Iterator[Marks]:
    """Yield the busy intervals of operations of these phases in blocks."""
    busy = report.busy
    for block in _blocks(len(busy)):
        operation = busy.operation[block]
        selected = np.isin(report.operations.phase[operation], phases)
        start, end = busy.start_ns[block][selected], busy.end_ns[block][selected]
        yield _marks(report, selection, width, operation[selected], start, end)


def _marks(
    report: Report, selection: Selection, width: float, operation: Ints, start: Ints, end: Ints
) -> Marks:
    near = np.flatnonzero((end > selection.start_ns) & (start < selection.end_ns))
    operation = operation[near]
    operations = report.operations
    return _clipped(
        selection,
        width,
        rank=operations.rank[operation],
        start=start[near],
        end=end[near],
        kind=operations.phase[operation],
        operation=operation,
        other=(~selection.drawn(operations.iteration[operation])).astype(np.int64),
    )


def _clipped(
    selection: Selection,
    width: float,
    *,
    rank: Ints,
    start: Ints,
    end: Ints,
    kind: Ints,
    operation: Ints,
    other: Ints,
) -> Marks:
    rows = selection.row_of_rank
    row = np.where(rank < len(rows), rows[np.minimum(rank, len(rows) - 1)], NONE)
    scale = width / (selection.end_ns - selection.start_ns)
    left = np.maximum(start - selection.start_ns, 0) * scale
    right = (np.minimum(end, selection.end_ns) - selection.start_ns) * scale
    return Marks(row, kind, operation, other, left, right).take((row != NONE) & (right >= left))


def marks_in(blocks: Sequence[Marks]) -> Marks:
    """Join blocks of marks into one table, in their order."""
    none, nowhere = np.zeros(0, np.int64), np.zeros(0)
    return joined((Marks(none, none, none, none, nowhere, nowhere), *blocks))


def overlapping(marks: Marks) -> tuple[Bools, Bools]:
    """Return the marks that begin well inside an earlier one of their row, and those that hold one.

    Both can be true of one mark. Overlaps below a pixel, or a tenth of the later mark, do not
    count.
    """
    if not len(marks):
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    # Rows are laid end to end, so that one running maximum serves all of them.
    span = float(marks.right.max()) + 10.0
    left = marks.left + marks.row * span
    right = marks.right + marks.row * span
    before = np.concatenate(([-1.0], np.maximum.accumulate(right)[:-1]))
    inside = np.minimum(before, right) - left > np.maximum(1.0, 0.1 * (right - left))
    starts = left[inside]
    return inside, np.searchsorted(starts, left, side="right") < np.searchsorted(
        starts, right - 1.0
    )
