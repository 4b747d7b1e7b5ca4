"""Timetables: which ranks can pass microbatches to each other, by the times of all microbatches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS
from bubbleviz.align.waits import Waits
from bubbleviz.model.columns import Bools, Ints, make_mask
from bubbleviz.model.grouping import find_distinct, group_rows

#: Less than any time, and as far below what a sum of two of them can hold.
_LONG_AGO = -(1 << 61)


#: So many microbatches are looked at first, and so many pairs of ranks at once.
_LOOKS, _PAIRS = 16, 4096


@dataclass(frozen=True)
class Timetable:
    """Waits as arrays of shape (ranks, chunks, keys); a key is a microbatch of an iteration.

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


def timetable(every: Waits, machine: Ints, *, give: float = 0.0) -> Timetable:
    """Return waits as a timetable.

    Args:
        every: at least one; iterations are the same on all ranks.
        machine: a number for the clock of each rank.
        give: spans may begin before their input arrives: with so much of their work.
    """
    keys = group_rows(every.iteration, every.microbatch, every.sequence)
    chunks = find_distinct(every.chunk)
    shape = len(machine), len(chunks), len(keys)
    at = every.rank, np.searchsorted(chunks, every.chunk), keys.of_row
    iteration = every.iteration[keys.first]

    def filled(column: Ints) -> Ints:
        table = np.zeros(shape, np.int64)
        table[at] = column
        return table

    held = make_mask(shape, at)
    # Half of the give is for each way.
    give_ns = give * every.worked_ns / 2
    return Timetable(
        chunks=chunks,
        first=np.flatnonzero(np.append(True, iteration[1:] != iteration[:-1])),
        held=held,
        waited_ns=filled(every.waited_ns),
        entered_ns=filled(every.left_ns - every.forward_ns),
        left_ns=filled(every.left_ns),
        returned_ns=filled(every.left_ns + every.waited_ns),
        done_ns=filled(every.left_ns + every.waited_ns + every.worked_ns - every.forward_ns),
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
    for key in find_distinct(np.linspace(0, held.shape[1] - 1, _LOOKS).astype(np.int64)).tolist():
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


def neighbours(table: Timetable, ranks: Ints, others: Ints, held: Ints) -> Bools:
    """Return which ranks of one stage can form a pipeline with which ones of another.

    They are next to each other wherever the virtual stages of these follow each other, in either
    direction, as the second chunks of a V run back. Where ranks between them are missing, none do,
    and microbatches pass from each chunk to the same one of the other rank.

    Args:
        table: when microbatches pass.
        ranks: of one stage, the rows of the answer.
        others: of another one, its columns.
        held: the virtual stage of each chunk of each rank; -1 none.
    """
    fits = np.ones((len(ranks), len(others)), bool)
    pairs = [
        (i, j, stage, other)
        for i, stage in enumerate(held[ranks[0]].tolist())
        for j, other in enumerate(held[others[0]].tolist())
        if min(stage, other) >= 0
    ]
    near = [pair for pair in pairs if abs(pair[2] - pair[3]) == 1]
    for i, j, stage, other in near or [pair for pair in pairs if pair[0] == pair[1]]:
        if stage < other:
            fits &= follows(table, ranks, others, (i, j))[0]
        else:
            fits &= follows(table, others, ranks, (j, i))[0].T
    return fits
