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
_MAX_SAMPLED_KEYS, _MAX_PAIRS = 16, 4096


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
        tolerance_ns: how much earlier than entered, or later than done, a neighbour may still be.
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
    tolerance_ns: Ints
    machine: Ints


def build_timetable(waits: Waits, machine: Ints, *, early_fraction: float = 0.0) -> Timetable:
    """Return waits as a timetable.

    Args:
        waits: at least one; iterations are the same on all ranks.
        machine: a number for the clock of each rank.
        early_fraction: spans may begin before their input arrives: with so much of their work.
    """
    keys = group_rows(waits.iteration, waits.microbatch, waits.sequence)
    chunks = find_distinct(waits.chunk)
    shape = len(machine), len(chunks), len(keys)
    cell = waits.rank, np.searchsorted(chunks, waits.chunk), keys.of_row
    iteration = waits.iteration[keys.first]

    def fill(column: Ints) -> Ints:
        table = np.zeros(shape, np.int64)
        table[cell] = column
        return table

    has_microbatch = make_mask(shape, cell)
    # Half of the give is for each way.
    tolerance_ns = early_fraction * waits.worked_ns / 2
    return Timetable(
        chunks=chunks,
        first=np.flatnonzero(np.append(True, iteration[1:] != iteration[:-1])),
        held=has_microbatch,
        waited_ns=fill(waits.waited_ns),
        entered_ns=fill(waits.left_ns - waits.forward_ns),
        left_ns=fill(waits.left_ns),
        returned_ns=fill(waits.left_ns + waits.waited_ns),
        done_ns=fill(waits.left_ns + waits.waited_ns + waits.worked_ns - waits.forward_ns),
        tolerance_ns=fill(tolerance_ns.astype(np.int64)),
        machine=machine,
    )


def match_ranks(
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
    can_follow = _filter_by_duration(table, upper, lower, chunks)
    # What shows that the others do not fit is a microbatch that they have in common.
    cannot_follow = ~can_follow
    rows, columns = np.nonzero(can_follow)
    for block in range(0, len(rows), _MAX_PAIRS):
        row, column = rows[block : block + _MAX_PAIRS], columns[block : block + _MAX_PAIRS]
        fits, common = _check_pairs(table, upper[row], lower[column], chunks)
        can_follow[row, column] = fits & common
        cannot_follow[row, column] = ~fits & common
    return can_follow, cannot_follow


def _filter_by_duration(
    table: Timetable, upper: Ints, lower: Ints, chunks: tuple[int, int]
) -> Bools:
    """Return the pairs of ranks that some microbatches leave, which are few of those that differ.

    No offset suits a pair of which the lower rank takes longer from its F to the end of its B than
    the upper one waits, for any microbatch.
    """
    above, below = chunks
    fits = np.ones((len(upper), len(lower)), bool)
    tolerance_ns = table.tolerance_ns[lower, below]
    took_ns = table.done_ns[lower, below] - table.entered_ns[lower, below] - 2 * tolerance_ns
    has_microbatch = table.held[upper, above]
    waited_ns = np.where(has_microbatch, table.waited_ns[upper, above], 0)
    # At least what counts as grain of any iteration.
    max_ns = waited_ns + (GRAIN_NS + DRIFT * waited_ns.max(axis=1, initial=0))[:, None]
    for key in find_distinct(
        np.linspace(0, has_microbatch.shape[1] - 1, _MAX_SAMPLED_KEYS).astype(np.int64)
    ).tolist():
        is_common = has_microbatch[:, key, None] & table.held[lower, below, key]
        fits &= ~is_common | (took_ns[:, key] <= max_ns[:, key, None])
    return fits


def _check_pairs(
    table: Timetable, upper_rank: Ints, lower_rank: Ints, chunks: tuple[int, int]
) -> tuple[Bools, Bools]:
    """Return which pairs of ranks an offset suits, and which have a microbatch in common."""
    above, below = chunks
    tolerance_ns = table.tolerance_ns[lower_rank, below]
    is_common = table.held[lower_rank, below] & table.held[upper_rank, above]
    entered_ns = table.entered_ns[lower_rank, below] + tolerance_ns
    done_ns = table.done_ns[lower_rank, below] - tolerance_ns
    lower = np.where(is_common, table.left_ns[upper_rank, above] - entered_ns, _LONG_AGO)
    upper_bound = np.where(is_common, table.returned_ns[upper_rank, above] - done_ns, -_LONG_AGO)
    grain = GRAIN_NS + DRIFT * np.where(is_common, table.waited_ns[upper_rank, above], 0)
    grain = np.maximum.reduceat(grain, table.first, axis=1)
    lower = np.maximum.reduceat(lower, table.first, axis=1)
    upper_bound = np.minimum.reduceat(upper_bound, table.first, axis=1)
    fits = lower - upper_bound <= grain
    one_clock = (table.machine[lower_rank] == table.machine[upper_rank])[:, None]
    fits &= ~one_clock | ((lower <= grain) & (upper_bound >= -grain))
    return np.asarray(fits.all(axis=1), bool), np.asarray(is_common.any(axis=1), bool)


def match_stages(table: Timetable, ranks: Ints, other_ranks: Ints, virtual_stage: Ints) -> Bools:
    """Return which ranks of one stage can form a pipeline with which ones of another.

    They are next to each other wherever the virtual stages of these follow each other, in either
    direction, as the second chunks of a V run back. Where ranks between them are missing, none do,
    and microbatches pass from each chunk to the same one of the other rank.

    Args:
        table: when microbatches pass.
        ranks: of one stage, the rows of the answer.
        other_ranks: of another one, its columns.
        virtual_stage: the virtual stage of each chunk of each rank; -1 none.
    """
    fits = np.ones((len(ranks), len(other_ranks)), bool)
    pairs = [
        (i, j, stage, other)
        for i, stage in enumerate(virtual_stage[ranks[0]].tolist())
        for j, other in enumerate(virtual_stage[other_ranks[0]].tolist())
        if min(stage, other) >= 0
    ]
    consecutive = [pair for pair in pairs if abs(pair[2] - pair[3]) == 1]
    for i, j, stage, other in consecutive or [pair for pair in pairs if pair[0] == pair[1]]:
        if stage < other:
            fits &= match_ranks(table, ranks, other_ranks, (i, j))[0]
        else:
            fits &= match_ranks(table, other_ranks, ranks, (j, i))[0].T
    return fits
