"""Marks: busy intervals of operations as pixels of a row.

Times become pixels block by block, for a report can hold millions of operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table, joined
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.render.picture.page import px
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

#: Kind of a mark that is compute outside every operation; the other kinds are phase codes.
UNATTRIBUTED_KIND = len(Phase)
#: Marks are made of so many busy intervals at a time: as columns they take some tens of MB.
_BLOCK = 1 << 19


@dataclass(frozen=True)
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
    busy, rest = report.busy, report.unattributed
    for block in _blocks(len(busy)):
        own = busy.operation[block], busy.start_ns[block], busy.end_ns[block]
        yield _marks(report, selection, width, COMPUTE, *own)
    for block in _blocks(len(rest)):
        rank = rest.rank[block]
        none = np.full(len(rank), NONE, np.int64)
        kind, other = np.full(len(rank), UNATTRIBUTED_KIND, np.int64), np.zeros_like(rank)
        times = rest.start_ns[block], rest.end_ns[block]
        yield _placed(selection, width, rank, *times, kind=kind, operation=none, other=other)


def communication_marks(report: Report, selection: Selection, width: float) -> Iterator[Marks]:
    """Yield the communication operations of the selection in blocks, unsorted."""
    busy, operations = report.busy, report.operations
    for block in _blocks(len(busy)):
        own = busy.operation[block], busy.start_ns[block], busy.end_ns[block]
        yield _marks(report, selection, width, COMMUNICATION, *own)
    lacking = operations.has_span == 1
    lacking[busy.operation] = False
    spans = np.flatnonzero(lacking)
    for block in _blocks(len(spans)):
        row = spans[block]
        own = row, operations.start_ns[row], operations.end_ns[row]
        yield _marks(report, selection, width, COMMUNICATION, *own)


def _blocks(length: int) -> Iterator[slice]:
    """Yield the slices of a table that are worked on at a time."""
    return (slice(start, start + _BLOCK) for start in range(0, length, _BLOCK))


def _marks(
    report: Report,
    selection: Selection,
    width: float,
    phases: Sequence[Phase],
    operation: Ints,
    start: Ints,
    end: Ints,
) -> Marks:
    """Return the intervals of operations of some phases as marks."""
    operations = report.operations
    near = np.isin(operations.phase[operation], phases)
    near &= (end > selection.start_ns) & (start < selection.end_ns)
    operation = operation[near]
    other = (~selection.drawn(operations.iteration[operation])).astype(np.int64)
    times, kind = (start[near], end[near]), operations.phase[operation]
    rank = operations.rank[operation]
    return _placed(selection, width, rank, *times, kind=kind, operation=operation, other=other)


def _placed(
    selection: Selection, width: float, rank: Ints, start: Ints, end: Ints, **others: Ints
) -> Marks:
    """Return intervals of ranks, ns, as marks on rows, px."""
    rows = selection.row_of_rank
    row = np.where(rank < len(rows), rows[np.minimum(rank, len(rows) - 1)], NONE)
    scale = width / selection.span_ns
    left = np.maximum(start - selection.start_ns, 0) * scale
    right = (np.minimum(end, selection.end_ns) - selection.start_ns) * scale
    marks = Marks(row=row, left=left, right=right, **others)
    return marks.take((row != NONE) & (right >= left))


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


# Merging: operations too narrow to be seen alone, as shares of time in columns of pixels.
#
# A picture of millions of operations is bounded by its own size and not by theirs: what is drawn
# one by one is at least half a px wide, and of the rest each row has columns of a px, in which the
# colours are as high as their phases' shares of time. What no colour covers stays bubble::
#
#     operations  FFFFFFFFFFFF FBFBFB BB    F    F = drawn one by one where it is wide enough
#                 |          | |    | |     |
#     drawn       ████████████ ▒▄▒▄▒▄ ▄     .    stacks of F and B elsewhere
#                              ······ ·     .    dotted below: merged


#: Narrower than this (px), and a mark is merged with its neighbours: half a px is a dot of a
#: screen of double density, and 0.07 mm where the picture is as wide as a page of text.
NARROWEST = 0.5
#: At most so many marks a row are drawn one by one, and so many in the picture (some 27 bytes
#: each): the widest.
MARKS_PER_ROW = 2_000
MARKS_IN_ALL = 100_000
#: The steps of the stacks (some 9 bytes each) and the boxes share a budget; where the boxes have
#: used it up, so many steps are left.
STEPS_AND_BOXES = 240_000
LEAST_STEPS = 60_000
#: So wide can columns be (px): the narrowest that keeps to it, or else the widest.
COLUMNS = (1, 2, 3, 4, 6, 8)
#: Merged operations are described by stretches of so many px, in pictures of up to so many rows; a
#: multiple of every width of a column.
STRETCH = 24
ROWS_OF_STRETCHES = 64

#: What is stacked on what where marks are merged, from the bottom up.
STACK = (
    Phase.F.value,
    Phase.R.value,
    Phase.FB.value,
    Phase.B.value,
    Phase.BW.value,
    Phase.W.value,
    Phase.OPTIMIZER.value,
    UNATTRIBUTED_KIND,
    *(phase.value for phase in COMMUNICATION),
)

# Less than this (px) is left over from sums of floating-point numbers: a nanosecond is more in
# any picture of less than ten minutes.
_NOTHING = 1e-9
# Less than this (px) between boxes is gone when coordinates are rounded.
_NO_ROOM = 0.01


@dataclass(frozen=True)
class MergedMarks:
    """The marks that are too narrow to be drawn alone, as shares of time.

    Attributes:
        kinds: (kind, other) of the layers, from the bottom up.
        share: by row, layer and column: the share of the time that is free of marks drawn
            alone, summing to at most 1.
        column: width of a column in px.
        there: by row and px, whether anything was merged there.
        counts: by row, layer and stretch: operations (or intervals of unattributed compute)
            whose middle lies there.
        stretch: width of a stretch in px.
        narrower: all merged marks are narrower than this, px.
    """

    kinds: tuple[tuple[int, int], ...]
    share: Floats
    column: int
    there: Bools
    counts: Ints
    stretch: int
    narrower: float

    def by_kind(self, rows: slice = slice(None), stretches: slice = slice(None)) -> dict[int, int]:
        """Return how many operations (or intervals) of each kind are merged, some only in part."""
        found: dict[int, int] = {}
        sums = self.counts[rows, :, stretches].sum(axis=(0, 2)).tolist()
        for (kind, _), count in zip(self.kinds, sums, strict=True):
            found[kind] = found.get(kind, 0) + count
        return found


def split(blocks: Iterable[Marks], rows: int, width: float) -> tuple[Marks, MergedMarks]:
    """Return the marks that are drawn one by one, sorted, and the others merged.

    Args:
        blocks: all marks, those of an operation one after the other.
        rows: number of rows.
        width: of the plot in px.
    """
    sums, wide = _Sums(rows, width), []
    for marks in blocks:
        enough = marks.right - marks.left >= NARROWEST
        wide.append(marks.take(enough))
        sums.add(marks.take(~enough))
    alone = marks_in(wide)
    most = max(200, min(MARKS_PER_ROW, MARKS_IN_ALL // max(rows, 1)))
    widest = _widest(alone, most)
    if not widest.all():
        sums.add(alone.take(~widest))
        alone = alone.take(widest)
    alone = alone.take(np.lexsort((alone.operation, alone.right, alone.left, alone.row)))
    return alone, sums.merged(alone)


def _widest(marks: Marks, most: int) -> Bools:
    """Return which marks are the ``most`` widest of their row (all, where there are few)."""
    if not len(marks) or np.bincount(marks.row).max() <= most:
        return np.ones(len(marks), np.bool_)
    order = np.lexsort((marks.left - marks.right, marks.row))
    row = marks.row[order]
    place = np.arange(len(order)) - np.searchsorted(row, row)
    widest = np.zeros(len(marks), np.bool_)
    widest[order[place < most]] = True
    return widest


class _Sums:
    """Sums up marks by row, kind and px of the plot, one block after the other."""

    def __init__(self, rows: int, width: float) -> None:
        self._rows, self._width = rows, width
        self._stretch = STRETCH * max(1, math.ceil(rows / ROWS_OF_STRETCHES))
        self._stretches = math.ceil(width / self._stretch)
        self._sums: dict[tuple[int, int], tuple[Floats, Ints]] = {}
        self._there = np.zeros((rows, math.ceil(width)), np.bool_)
        self._narrower = NARROWEST
        self._last = NONE

    def add(self, marks: Marks) -> None:
        """Add marks; those of an operation come one after the other."""
        if not len(marks):
            return
        widest = float((marks.right - marks.left).max())
        if widest >= self._narrower:
            self._narrower = math.floor(widest * 100 + 1) / 100
        before = np.concatenate(([self._last], marks.operation[:-1]))
        self._last = int(marks.operation[-1])
        fresh = (marks.operation == NONE) | (marks.operation != before)
        keys = marks.kind * 2 + marks.other
        for key in np.flatnonzero(np.bincount(keys)).tolist():
            layer, members = divmod(key, 2), keys == key
            time = coverage(marks.take(members), self._rows, self._width)
            counts = self._count(marks.take(members & fresh))
            before_time, before_counts = self._sums.get(layer, (0.0, 0))
            self._sums[layer] = before_time + time, before_counts + counts
        place = np.minimum(marks.left.astype(np.int64), self._there.shape[1] - 1)
        self._there[marks.row, place] = True

    def _count(self, marks: Marks) -> Ints:
        """Return the number of marks by row and stretch of their middle."""
        place = ((marks.left + marks.right) / (2 * self._stretch)).astype(np.int64)
        place = marks.row * self._stretches + np.minimum(place, self._stretches - 1)
        counts = np.bincount(place, minlength=self._rows * self._stretches)
        return counts.reshape(self._rows, self._stretches)

    def merged(self, alone: Marks) -> MergedMarks:
        """Return the added marks as shares of the time that marks drawn alone leave in each column.

        Where more steps would be needed than such a picture may have, columns are wider.
        """
        kinds = sorted(self._sums, key=lambda layer: (STACK.index(layer[0]), layer[1]))
        columns = self._there.shape[1]
        time = np.zeros((self._rows, len(kinds), columns))
        counts = np.zeros((self._rows, len(kinds), self._stretches), np.int64)
        for layer, kind in enumerate(kinds):
            time[:, layer], counts[:, layer] = self._sums[kind]
        time[time < _NOTHING] = 0.0
        free = np.ones((self._rows, columns))
        free[:, -1] = self._width - (columns - 1)
        free -= coverage(_union(alone), self._rows, self._width)
        # Paper lies under what belongs to other iterations: it is written twice.
        written = np.array([1 + other for _, other in kinds], np.int64)
        most = max(LEAST_STEPS, STEPS_AND_BOXES - 2 * int((1 + alone.other).sum()))
        for pixels in COLUMNS:
            share = shares(time, free, pixels)
            if np.count_nonzero(share, axis=(0, 2)) @ written <= most:
                break
        there = self._there | (time.sum(axis=1) > 0)
        narrower = self._narrower
        return MergedMarks(tuple(kinds), share, pixels, there, counts, self._stretch, narrower)


def coverage(marks: Marks, rows: int, width: float) -> Floats:
    """Return by row and column of a px how many px of it the marks cover, overlaps twice.

    A mark from x to y covers what is right of x less what is right of y, so both ends can be
    summed by columns on their own: the part of its own column, and 1 in every later one::

        columns       0     1     2     3
        mark        |   ├─────────┤     |
        right of x  | 0.3 | 1   | 1   | 1
        right of y  | 0   | 0   | 0.5 | 1
        covered     | 0.3 | 1   | 0.5 | 0
    """
    columns = math.ceil(width)
    size = rows * (columns + 2)
    base = marks.row * (columns + 2)
    partial, later = np.zeros(size), np.zeros(size)
    for sign, edge in ((1.0, marks.left), (-1.0, marks.right)):
        place = edge.astype(np.int64)
        at = base + place
        partial += sign * np.bincount(at, place + 1 - edge, size)
        later += sign * np.bincount(at + 1, minlength=size)
    covered = (partial.reshape(rows, -1) + np.cumsum(later.reshape(rows, -1), axis=1))[:, :columns]
    return np.clip(covered, 0.0, None)


def _union(marks: Marks) -> Marks:
    """Return the intervals that sorted marks cover, without overlap in a row.

    Each mark keeps what lies right of all that began before it in its row::

        marks  ├──────┤            ├───┤
                 ├──┤  ├──┤          ├────┤
        kept   ├──────┤├──┤        ├───┤├─┤
    """
    if not len(marks):
        return marks
    # Rows are laid end to end, so that one running maximum serves all of them.
    offset = marks.row * (float(marks.right.max()) + 1.0)
    latest = np.maximum.accumulate(marks.right + offset)
    before = np.concatenate(([-1.0], latest[:-1])) - offset
    left = np.minimum(np.maximum(marks.left, before), marks.right)
    return Marks(marks.row, marks.kind, marks.operation, marks.other, left, marks.right)


def shares(time: Floats, free: Floats, pixels: int) -> Floats:
    """Return times by row, layer and px as shares of what is free in columns of so many px.

    Overlapping operations can add up to more than there is: then they share all of it.
    """
    starts = np.arange(0, time.shape[2], pixels)
    time = np.add.reduceat(time, starts, axis=2)
    room = np.add.reduceat(free, starts, axis=1)[:, np.newaxis]
    share = np.where(room >= _NO_ROOM, time / np.maximum(room, _NO_ROOM), 0.0)
    return np.asarray(share / np.maximum(share.sum(axis=1, keepdims=True), 1.0))


def silhouette(heights: Floats, bottom: float, column: int, width: float) -> str:
    """Return the path of steps so high, ``column`` px wide each, that stand on ``bottom``.

    The last step ends with the plot, at ``width``.
    """
    before = np.concatenate(([0.0], heights))
    after = np.concatenate((heights, [0.0]))
    changes = np.flatnonzero(before != after).tolist()
    if not changes:
        return ""
    steps = "".join(
        f"H{px(min(place * column, width))}V{px(round(bottom - float(after[place]), 1))}"
        for place in changes
    )
    return f"M{changes[0] * column} {px(bottom)}{steps}z"


def runs(there: Bools, bridge: int) -> list[tuple[int, int]]:
    """Return (first, end) of the runs of what is true.

    Gaps of up to ``bridge`` are bridged::

    there   █████··██·······███      (bridge 2)
    runs    ├───────┤       ├─┤
    """
    places = np.flatnonzero(there)
    if not len(places):
        return []
    breaks = np.flatnonzero(np.diff(places) > bridge + 1)
    first = places[np.concatenate(([0], breaks + 1))]
    last = places[np.concatenate((breaks, [len(places) - 1]))]
    return list(zip(first.tolist(), (last + 1).tolist(), strict=True))
