"""What a picture shows of a report: which iterations and ranks, and the marks on their rows.

Times become pixels here, block by block, for a report can hold millions of operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bubbleviz.count.count import Iteration
from bubbleviz.model.columns import NONE, Bools, Ints, Table, joined
from bubbleviz.model.operations import Rank
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.render.rows import Row, rows_of
from bubbleviz.report.report import Report, View

Floats = npt.NDArray[np.float64]

#: Stands beside the phase codes for compute outside every operation.
UNATTRIBUTED = len(Phase)
#: Marks are made of so many busy intervals at a time: as columns they take some tens of MB.
BLOCK = 1 << 19


@dataclass(frozen=True)
class Selection:
    """The part of a report that is drawn: rows, iterations, and the time they span.

    Attributes:
        rows: from top to bottom.
        iterations: the iterations, ascending.
        windows: of each of these, by index of rank, the (start, end) that its ratio counts.
        start_ns: left edge.
        end_ns: right edge, after ``start_ns``.
    """

    rows: tuple[Row, ...]
    iterations: tuple[Iteration, ...]
    windows: tuple[Mapping[int, tuple[int, int]], ...]
    start_ns: int
    end_ns: int

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The ranks that are drawn, by row."""
        return tuple(row.rank for row in self.rows)

    @property
    def row_of_rank(self) -> Ints:
        """Row by index of rank; ``-1`` where the rank is not drawn."""
        rows = np.full(max((rank.index for rank in self.ranks), default=0) + 1, NONE, np.int64)
        for row, rank in enumerate(self.ranks):
            rows[rank.index] = row
        return rows

    def drawn(self, iterations: Ints) -> Bools:
        """Return which of these iteration indices are among the drawn ones."""
        return np.isin(iterations, [iteration.index for iteration in self.iterations])


@dataclass(frozen=True)
class Marks(Table):
    """Intervals on rows, in order of (row, left).

    Attributes:
        row: row of the picture.
        kind: phase code, or ``UNATTRIBUTED``.
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


def select(report: Report, view: View) -> Selection | None:
    """Return what ``view`` asks for of ``report``, or None where there is nothing to draw."""
    rows = rows_of(report, view)
    chosen = set(view.iterations)
    iterations = tuple(it for it in report.iterations if it.index in chosen)
    if not chosen and (typical := report.typical_iteration()) is not None:
        iterations = (typical,)
    if not rows or not iterations:
        return None
    windows = tuple(counted_windows(it, report.headline) for it in iterations)
    counted = [own for by_rank in windows for own in by_rank.values()]
    start = min(it.start_ns for it in iterations)
    end = max(*(it.end_ns for it in iterations), *(own[1] for own in counted), start + 1)
    return Selection(rows, iterations, windows, start, end)


def counted_windows(iteration: Iteration, headline: str) -> Mapping[int, tuple[int, int]]:
    """Return by rank the window in which its idle time counts as bubble.

    It is that of the headline ratio. Where the iteration has none (the last one has no
    ``period``) it is that of ``schedule``, and failing that the rank's own work.
    """
    windows = {}
    for own in iteration.ranks:
        account = own.accounts.get(headline) or own.accounts.get("schedule")
        windows[own.rank] = (
            (account.start_ns, account.end_ns) if account else (own.first_ns, own.last_ns)
        )
    return windows


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
            kind=np.full(len(rank), UNATTRIBUTED, np.int64),
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
        own = spans[block]
        start, end = operations.start_ns[own], operations.end_ns[own]
        yield _marks(report, selection, width, own, start, end)


def _blocks(length: int) -> Iterator[slice]:
    """Yield the slices of a table that are worked on at a time."""
    for start in range(0, length, BLOCK):
        yield slice(start, start + BLOCK)


def _busy_marks(
    report: Report, selection: Selection, width: float, phases: Sequence[Phase]
) -> Iterator[Marks]:
    """Yield the busy intervals of operations of these phases in blocks."""
    busy = report.busy
    for block in _blocks(len(busy)):
        operation = busy.operation[block]
        own = np.isin(report.operations.phase[operation], phases)
        start, end = busy.start_ns[block][own], busy.end_ns[block][own]
        yield _marks(report, selection, width, operation[own], start, end)


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
    """Return blocks of marks as one table, in their order."""
    none, nowhere = np.zeros(0, np.int64), np.zeros(0)
    return joined((Marks(none, none, none, none, nowhere, nowhere), *blocks))


def overlapping(marks: Marks) -> tuple[Bools, Bools]:
    """Return which marks begin well inside an earlier one of their row, and which hold such.

    Both can be true of one mark. Overlaps below a pixel, or a tenth of the later mark, are let
    pass.
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
