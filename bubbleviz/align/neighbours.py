"""Neighbours: which ranks can stand next to each other in a pipeline, by when microbatches pass.

Nothing that one rank does with a microbatch starts before the other has passed it on. Each rank has
a clock of its own, but all through an iteration the two differ by one and the same offset::

    upper rank   F0├──┤ F1├──┤ ................ B0├──┤ B1├──┤
    lower rank         F0├───┤ F1├───┤ B0├───┤ B1├───┤

    the latest of (upper F ends - lower F starts) <= offset,
    the earliest of (upper B starts - lower B ends) >= offset, over all microbatches

On one machine the offset is 0. Ranks of two unequally fast pipelines fall behind each other from
microbatch to microbatch, so no offset suits them, though each wait by itself may hold another.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.offsets import DRIFT, GRAIN_NS
from bubbleviz.align.waits import Passages
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.values import frozen

#: Less than any time, and as far below what a sum of two of them can hold.
_LONG_AGO = -(1 << 61)
#: So many microbatches are looked at first, and so many pairs of ranks at once.
_LOOKS, _PAIRS = 16, 4096


@frozen
class Timetable:
    """Passages as arrays of shape (ranks, chunks, keys); a key is a microbatch of an iteration.

    Attributes:
        chunks: numbers of the chunks, ascending.
        first: key at which each iteration begins.
        held: whether the rank has the microbatch there and back.
        waited_ns: from the end of F to the start of B.
        entered_ns: when F starts, at the earliest.
        left_ns: when F ends.
        returned_ns: when B starts.
        done_ns: when B ends, at the earliest.
        give_ns: how much earlier than entered, or later than done, a neighbour may still be.
        machine: a number for the clock of each rank.
    """

    chunks: Ints
    first: Ints
    held: Bools
    waited_ns: Ints
    entered_ns: Ints
    left_ns: Ints
    returned_ns: Ints
    done_ns: Ints
    give_ns: Ints
    machine: Ints


def timetable(every: Passages, machine: Ints, *, give: float = 0.0) -> Timetable:
    """Return passages as a timetable.

    Args:
        every: at least one; iterations are the same on all ranks.
        machine: a number for the clock of each rank.
        give: spans may begin before their input arrives: with so much of their work.
    """
    keys = groups_of(every.iteration, every.microbatch, every.sequence)
    chunks = distinct(every.chunk)
    shape = len(machine), len(chunks), len(keys)
    at = every.rank, np.searchsorted(chunks, every.chunk), keys.of_row
    iteration = every.iteration[keys.first]

    def filled(column: Ints) -> Ints:
        table = np.zeros(shape, np.int64)
        table[at] = column
        return table

    held = np.zeros(shape, bool)
    held[at] = True
    # Half of the give is for each way.
    give_ns = give * (every.forward_ns + every.backward_ns) / 2
    return Timetable(
        chunks=chunks,
        first=np.flatnonzero(np.append(True, iteration[1:] != iteration[:-1])),
        held=held,
        waited_ns=filled(every.returned_ns - every.left_ns),
        entered_ns=filled(every.left_ns - every.forward_ns),
        left_ns=filled(every.left_ns),
        returned_ns=filled(every.returned_ns),
        done_ns=filled(every.returned_ns + every.backward_ns),
        give_ns=filled(give_ns.astype(np.int64)),
        machine=machine,
    )


def follows(
    table: Timetable, upper: Ints, lower: Ints, chunks: tuple[int, int]
) -> tuple[Bools, Bools]:
    """Return which lower ranks can follow which upper ones, and which surely cannot.

    Neither is true of a pair that has no microbatch in common.

    Args:
        table: the timetable.
        upper: ranks, the rows of the answers.
        lower: ranks, their columns.
        chunks: places of the chunks that they hold of neighbouring virtual stages.
    """
    can = _may_fit(table, upper, lower, chunks)
    # What shows that the others do not fit is a microbatch that they have in common.
    cannot = ~can
    rows, columns = np.nonzero(can)
    for block in range(0, len(rows), _PAIRS):
        row, column = rows[block : block + _PAIRS], columns[block : block + _PAIRS]
        fits, common = _fits(table, upper[row], lower[column], chunks)
        can[row, column] = fits & common
        cannot[row, column] = ~fits & common
    return can, cannot


def _may_fit(table: Timetable, upper: Ints, lower: Ints, chunks: tuple[int, int]) -> Bools:
    """Return the pairs of ranks that some microbatches leave, which are few of those that differ.

    No offset suits a pair of which the lower rank takes longer from its F to the end of its B than
    the upper one waits, for any microbatch.
    """
    above, below = chunks
    fits = np.ones((len(upper), len(lower)), bool)
    give_ns = table.give_ns[lower, below]
    took_ns = table.done_ns[lower, below] - table.entered_ns[lower, below] - 2 * give_ns
    held = table.held[upper, above]
    waited_ns = np.where(held, table.waited_ns[upper, above], 0)
    # At least what counts as grain of any iteration.
    most_ns = waited_ns + (GRAIN_NS + DRIFT * waited_ns.max(axis=1, initial=0))[:, None]
    for key in np.unique(np.linspace(0, held.shape[1] - 1, _LOOKS).astype(np.int64)).tolist():
        both = held[:, key, None] & table.held[lower, below, key]
        fits &= ~both | (took_ns[:, key] <= most_ns[:, key, None])
    return fits


def _fits(
    table: Timetable, upper: Ints, lower: Ints, chunks: tuple[int, int]
) -> tuple[Bools, Bools]:
    """Return which pairs of ranks an offset suits, and which have a microbatch in common."""
    above, below = chunks
    give_ns = table.give_ns[lower, below]
    both = table.held[lower, below] & table.held[upper, above]
    entered_ns = table.entered_ns[lower, below] + give_ns
    done_ns = table.done_ns[lower, below] - give_ns
    least = np.where(both, table.left_ns[upper, above] - entered_ns, _LONG_AGO)
    most = np.where(both, table.returned_ns[upper, above] - done_ns, -_LONG_AGO)
    grain = GRAIN_NS + DRIFT * np.where(both, table.waited_ns[upper, above], 0)
    grain = np.maximum.reduceat(grain, table.first, axis=1)
    least = np.maximum.reduceat(least, table.first, axis=1)
    most = np.minimum.reduceat(most, table.first, axis=1)
    fits = least - most <= grain
    one_clock = (table.machine[lower] == table.machine[upper])[:, None]
    fits &= ~one_clock | ((least <= grain) & (most >= -grain))
    return np.asarray(fits.all(axis=1), bool), np.asarray(both.any(axis=1), bool)


def matching(fits: Bools) -> Ints | None:
    """Return a column for each row, each column once, where it fits; None where there is none.

    Args:
        fits: of as many rows as columns. Each row in turn looks for a column, and moves those
            before it to others where need be (Kuhn 1955).
    """
    owner = np.full(fits.shape[1], NONE, np.int64)
    for row in range(len(fits)):
        reached_from = np.full(fits.shape[1], NONE, np.int64)
        seen = np.zeros(fits.shape[1], bool)
        rows = [row]
        free = NONE
        while rows and free < 0:
            current = rows.pop()
            new = np.flatnonzero(fits[current] & ~seen)
            seen[new] = True
            reached_from[new] = current
            open_columns = new[owner[new] < 0]
            if len(open_columns):
                free = int(open_columns[0])
            rows += owner[new[owner[new] >= 0]].tolist()
        if free < 0:
            return None
        _moved_over(owner, reached_from, free, row)
    partner = np.empty(len(fits), np.int64)
    partner[owner] = np.arange(len(owner))
    return partner


def _moved_over(owner: Ints, reached_from: Ints, free: int, row: int) -> None:
    """Give the free column to the row that reached it, the one it had to the one before, ..."""
    column = free
    while True:
        taker = int(reached_from[column])
        previous = np.flatnonzero(owner == taker)
        owner[column] = taker
        if taker == row:
            return
        column = int(previous[0])


def forced(fits: Bools, *, rows_have_one: bool, columns_have_one: bool) -> Ints:
    """Return the row of each column where no other choice is left; -1 where one is, or no row.

    Args:
        fits: which rows and columns can belong together, each with one at most.
        rows_have_one: whether each row belongs to a column.
        columns_have_one: whether each column belongs to a row. Where neither is known, those
            belong together that fit each other alone.
    """
    fits = fits.copy()
    of_column: Ints = np.full(fits.shape[1], NONE, np.int64)
    in_row, in_column = fits.sum(axis=1), fits.sum(axis=0)
    if not (rows_have_one or columns_have_one):
        rows, columns = np.nonzero(fits & (in_row == 1)[:, None] & (in_column == 1))
        of_column[columns] = rows
        return of_column
    while True:
        lone, single = NONE, _single(in_column) if columns_have_one else NONE
        if single < 0 and rows_have_one:
            lone = _single(in_row)
        if single < 0 and lone < 0:
            return of_column
        row_of, column_of = fits[:, single], fits[lone]
        row = lone if lone >= 0 else int(row_of.argmax())
        column = single if single >= 0 else int(column_of.argmax())
        of_column[column] = row
        in_row -= fits[:, column]
        in_column -= fits[row]
        fits[row], fits[:, column] = False, False
        in_row[row] = in_column[column] = 0


def _single(counts: Ints) -> int:
    """Return the first place of a count of 1; -1 none."""
    at = np.flatnonzero(counts == 1).tolist()
    return at[0] if at else NONE
