"""Timetables: all ranks' microbatch times, used to check which ranks can form a pipeline.

Two ranks can pass microbatches to each other if, in every iteration, a single offset between their
clocks satisfies the bounds of all microbatches (see :mod:`bubbleviz.align.stages.replicas`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS
from bubbleviz.align.waits import Waits
from bubbleviz.model.columns import Bools, Ints, make_mask
from bubbleviz.model.grouping import find_distinct, group_rows

#: A time in ns that precedes all other times. Adding or subtracting two of them does not overflow.
_LONG_AGO = -(1 << 61)


#: Number of microbatches to compare first, and maximum number of pairs to compare at once.
_MAX_SAMPLED_KEYS, _MAX_PAIRS = 16, 4096


@dataclass(frozen=True)
class Timetable:
    """The times at which microbatches leave and return to each rank, shape (ranks, chunks, keys).

    A key is a combination of iteration, microbatch and sequence split. Keys are sorted. Cells
    without a wait contain 0.

    Attributes:
        chunks: Chunk numbers in ascending order.
        first: Index of the first key of each iteration.
        has_microbatch: Mask of the cells in which the rank runs both F and B of the microbatch.
        waited_ns: ``returned_ns`` minus ``left_ns``.
        entered_ns: Time at which F begins: ``left_ns`` minus F's busy time.
        left_ns: End of F.
        returned_ns: Arrival of the gradient, or the start of B if the arrival is unknown.
        done_ns: Time at which B is done: ``returned_ns`` plus B's busy time.
        tolerance_ns: Maximum time for which F or B may overlap with work on a neighboring stage.
        machine: Machine of each rank. Ranks on the same machine share its clock.
    """

    chunks: Ints
    first: Ints
    has_microbatch: Bools
    waited_ns: Ints
    entered_ns: Ints
    left_ns: Ints
    returned_ns: Ints
    done_ns: Ints
    tolerance_ns: Ints
    machine: Ints


def build_timetable(waits: Waits, machine: Ints, *, early_fraction: float = 0.0) -> Timetable:
    """Arrange waits as a timetable. Cells without a wait contain 0.

    The tolerance for early work is ``early_fraction * worked_ns / 2`` in each cell.

    Args:
        waits: Waits, with iteration numbers that mean the same on all ranks. Must not be empty.
        machine: Machine of each rank.
        early_fraction: Maximum fraction of an operation's work that may run before its input
            arrives.
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
    # Half of the tolerance is for the F, and half for the B.
    tolerance_ns = early_fraction * waits.worked_ns / 2
    return Timetable(
        chunks=chunks,
        first=np.flatnonzero(np.append(True, iteration[1:] != iteration[:-1])),
        has_microbatch=has_microbatch,
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
    """Find the rank pairs in which the lower rank can follow the upper rank in a pipeline.

    Pairs that a sample of microbatches does not rule out (:func:`_filter_by_duration`) are checked
    with all microbatches (:func:`_check_pairs`).

    Args:
        table: Timetable of all ranks.
        upper: Ranks on a virtual stage, corresponding to the rows of the results.
        lower: Ranks on the next virtual stage, corresponding to the columns of the results.
        chunks: Index of the chunk that the upper ranks run as their virtual stage, and index of the
            chunk of the lower ranks.

    Returns:
        can_follow: Mask of the pairs whose times fit, shape (upper, lower).
        cannot_follow: Mask of the pairs whose times contradict each other, shape (upper, lower).
            Both masks are False for pairs without a common microbatch.
    """
    can_follow = _filter_by_duration(table, upper, lower, chunks)
    # Pairs that the filter rejects have a common microbatch.
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
    """Rule out rank pairs using a sample of microbatches, and return a mask of the remaining pairs.

    A pair is ruled out if, for any microbatch, the time from the start of its F to the end of its B
    on the lower rank is longer than the upper rank's wait for it. No offset between the clocks can
    explain such a difference. At most ``_MAX_SAMPLED_KEYS`` evenly spaced keys are compared, with a
    tolerance for clock resolution, drift and early work.

    Args:
        table: Timetable of all ranks.
        upper: Ranks on a virtual stage.
        lower: Ranks on the next virtual stage.
        chunks: Indices of the chunks that the upper and lower ranks run as their virtual stages.

    Returns:
        Mask of the pairs that remain, shape (upper, lower).
    """
    above, below = chunks
    fits = np.ones((len(upper), len(lower)), bool)
    tolerance_ns = table.tolerance_ns[lower, below]
    took_ns = table.done_ns[lower, below] - table.entered_ns[lower, below] - 2 * tolerance_ns
    has_microbatch = table.has_microbatch[upper, above]
    waited_ns = np.where(has_microbatch, table.waited_ns[upper, above], 0)
    # Use the largest tolerance of any iteration.
    max_ns = waited_ns + (GRAIN_NS + DRIFT * waited_ns.max(axis=1, initial=0))[:, None]
    for key in find_distinct(
        np.linspace(0, has_microbatch.shape[1] - 1, _MAX_SAMPLED_KEYS).astype(np.int64)
    ).tolist():
        is_common = has_microbatch[:, key, None] & table.has_microbatch[lower, below, key]
        fits &= ~is_common | (took_ns[:, key] <= max_ns[:, key, None])
    return fits


def _check_pairs(
    table: Timetable, upper_rank: Ints, lower_rank: Ints, chunks: tuple[int, int]
) -> tuple[Bools, Bools]:
    """Check which rank pairs could pass all of their microbatches to each other.

    In each iteration, one offset between the clocks of the two ranks must fit all microbatches,
    within a tolerance. With this offset, each microbatch enters the lower rank after it left the
    upper rank, and returns to the upper rank after the lower rank is done with it. If both ranks
    are on one machine, the offset must be 0. The bounds are described in
    :mod:`bubbleviz.align.stages.replicas`.

    Args:
        table: Timetable of all ranks.
        upper_rank: The rank in each pair that is on the earlier stage.
        lower_rank: The rank in each pair that is on the later stage.
        chunks: Indices of the chunks that the upper and lower ranks run as their virtual stages.

    Returns:
        fits: Mask of the pairs for which an offset exists in every iteration.
        has_common: Mask of the pairs with a common microbatch.
    """
    above, below = chunks
    tolerance_ns = table.tolerance_ns[lower_rank, below]
    is_common = table.has_microbatch[lower_rank, below] & table.has_microbatch[upper_rank, above]
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
    """Find the rank pairs on two stages that can belong to the same pipeline.

    Two ranks are compared in each pair of chunks whose virtual stages are consecutive. Either rank
    may run the earlier virtual stage, because the second chunks of a V run backward through the
    ranks. If no virtual stages are consecutive, ranks between the two stages are missing, and
    chunks with equal indices are compared instead.

    Args:
        table: Timetable of all ranks.
        ranks: Ranks on one stage, corresponding to the rows of the result.
        other_ranks: Ranks on the other stage, corresponding to the columns of the result.
        virtual_stage: Virtual stage of each chunk on each rank, shape (all ranks, chunks), or -1 if
            unknown. Ranks on the same stage must have equal rows.

    Returns:
        Mask of the pairs that fit in all compared chunks, shape (ranks, other_ranks).
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
