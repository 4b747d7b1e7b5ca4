"""What a picture shows of a report: which iterations and ranks, and the marks on their rows.

Times become pixels here, and what is too narrow to be seen alone is merged, so that the number of
things to draw is bounded by the size of the picture and not by that of the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bubbleviz.columns import NONE, Bools, Ints, Table
from bubbleviz.count import Iteration
from bubbleviz.model import Rank
from bubbleviz.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.report import Report, View
from bubbleviz.rows import Row, rows_of

Floats = npt.NDArray[np.float64]

#: Stands beside the phase codes for compute outside every operation.
UNATTRIBUTED = len(Phase)
#: Narrower than this (px), and a mark is merged with its neighbours.
NARROWEST = 0.75
#: With more than this share of such marks the picture is a dense one: marks are merged below
#: ``NARROWEST_IF_DENSE``, in wider columns, for a mixture of both ways to draw is restless.
DENSE = 0.1
NARROWEST_IF_DENSE = 3.0
COLUMN_IF_DENSE = 3
#: At most so many marks a row are drawn one by one, and so many in the picture.
MARKS_PER_ROW = 2_000
MARKS_IN_ALL = 100_000

#: What is stacked on what where marks are merged, from the bottom up.
STACK = (
    Phase.F.value,
    Phase.R.value,
    Phase.FB.value,
    Phase.B.value,
    Phase.BW.value,
    Phase.W.value,
    Phase.OPTIMIZER.value,
    UNATTRIBUTED,
)
_COMMUNICATION_STACK = tuple(phase.value for phase in COMMUNICATION)


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


@dataclass(frozen=True)
class Merged:
    """The marks that are too narrow to be drawn alone, as shares of time.

    Attributes:
        kinds: (kind, other) of the layers, from the bottom up.
        share: by row, layer and column: the share of its time, summing to at most 1.
        column: width of a column in px.
        count: how many marks it stands for.
    """

    kinds: tuple[tuple[int, int], ...]
    share: Floats
    column: int
    count: int


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


def compute_marks(report: Report, selection: Selection, width: float) -> Marks:
    """Return the compute of the selection, unattributed compute included, unsorted."""
    phases = [phase.value for phase in COMPUTE]
    operations = _busy_marks(report, selection, width)
    rest = report.unattributed
    outside = _clipped(
        selection,
        width,
        rank=rest.rank,
        start=rest.start_ns,
        end=rest.end_ns,
        kind=np.full(len(rest), UNATTRIBUTED, np.int64),
        operation=np.full(len(rest), NONE, np.int64),
        other=np.zeros(len(rest), np.int64),
    )
    return _joined(operations.take(np.isin(operations.kind, phases)), outside)


def communication_marks(report: Report, selection: Selection, width: float) -> Marks:
    """Return the communication operations of the selection, unsorted."""
    operations = report.operations
    phases = [phase.value for phase in COMMUNICATION]
    lacking = np.isin(operations.phase, phases) & (operations.has_span == 1)
    lacking[report.busy.operation] = False
    spans = np.flatnonzero(lacking)
    marks = _joined(
        _busy_marks(report, selection, width),
        _marks(
            report, selection, width, spans, operations.start_ns[spans], operations.end_ns[spans]
        ),
    )
    return marks.take(np.isin(marks.kind, phases))


def _busy_marks(report: Report, selection: Selection, width: float) -> Marks:
    busy = report.busy
    return _marks(report, selection, width, busy.operation, busy.start_ns, busy.end_ns)


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
    return Marks(row, kind, operation, other, left, right).take((row != NONE) & (right > left))


def _joined(first: Marks, second: Marks) -> Marks:
    return Marks(
        *(
            np.concatenate((getattr(first, name), getattr(second, name)))
            for name in Marks.column_names()
        )
    )


def split(
    marks: Marks, rows: int, width: float, *, by_density: bool = True
) -> tuple[Marks, Merged]:
    """Return the marks that are drawn one by one, sorted, and the others merged.

    Args:
        marks: all of them.
        rows: number of rows.
        width: of the plot in px.
        by_density: whether more is merged where many are narrow.
    """
    length = marks.right - marks.left
    wide = length >= NARROWEST
    column = 1
    if by_density and len(marks) and 1 - wide.mean() > DENSE:
        wide, column = length >= NARROWEST_IF_DENSE, COLUMN_IF_DENSE
    most = max(200, min(MARKS_PER_ROW, MARKS_IN_ALL // max(rows, 1)))
    wide &= _widest(marks, wide, most)
    alone = marks.take(np.flatnonzero(wide))
    order = np.lexsort((alone.operation, alone.right, alone.left, alone.row))
    return alone.take(order), _merge(marks.take(np.flatnonzero(~wide)), rows, width, column)


def _widest(marks: Marks, among: Bools, most: int) -> Bools:
    """Return which of ``among`` are the ``most`` widest of their row (all, where there are few)."""
    index = np.flatnonzero(among)
    if not len(index) or np.bincount(marks.row[index]).max() <= most:
        return among
    width = marks.right[index] - marks.left[index]
    order = index[np.lexsort((index, -width, marks.row[index]))]
    row = marks.row[order]
    place = np.arange(len(order)) - np.searchsorted(row, row)
    widest = np.zeros(len(marks), np.bool_)
    widest[order[place < most]] = True
    return widest


def _merge(marks: Marks, rows: int, width: float, pixels: int) -> Merged:
    """Sum the marks up by row, kind and column of so many pixels.

    A mark from x to y covers what is right of x less what is right of y, so both ends can be
    summed by columns on their own: the part of its own column, and 1 in every later one.
    """
    columns = int(np.ceil(width / pixels))
    stack = STACK + _COMMUNICATION_STACK
    present = np.unique(marks.kind * 2 + marks.other).tolist()
    layers = [divmod(int(key), 2) for key in present]
    kinds = sorted(layers, key=lambda layer: (stack.index(layer[0]), layer[1]))
    shape = (rows, len(kinds), columns + 2)
    layer_of = np.full((UNATTRIBUTED + 1, 2), NONE, np.int64)
    for layer, (kind, other) in enumerate(kinds):
        layer_of[kind, other] = layer
    size = rows * len(kinds) * (columns + 2)
    base = (marks.row * len(kinds) + layer_of[marks.kind, marks.other]) * (columns + 2)
    own, later = np.zeros(size), np.zeros(size)
    for sign, edge in ((1.0, marks.left / pixels), (-1.0, marks.right / pixels)):
        place = edge.astype(np.int64)
        own += sign * np.bincount(base + place, place + 1 - edge, size)
        later += sign * np.bincount(base + place + 1, minlength=size)
    share = own.reshape(shape) + np.cumsum(later.reshape(shape), axis=2)
    share = np.clip(share[:, :, :columns], 0.0, None)
    share[:, :, -1] /= width / pixels - (columns - 1)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    return Merged(tuple(kinds), share, pixels, len(marks))


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
