"""Histories: ranks through their iterations, as far as it shows which of these are the same.

Every table is as wide as the rank with most iterations has of them, and NaN stands for those that a
rank lacks, so that what is asked of pairs of ranks is asked of many together. An iteration of one
rank stands beside each of another's, one *move* after the other::

    first rank     0    1    2    3
    move 0         0    1    2    3      second rank
    move 1              0    1    2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table
from bubbleviz.model.intervals import group_extents, group_sum
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import PASSED_ON, Phase

#: So many events of an iteration are compared, spread evenly over all.
_EVENTS = 64
#: Numbers that are worked on at once.
AT_ONCE = 1 << 19


@dataclass(frozen=True, eq=False, repr=False)
class PassedOn(Table):
    """What passes a microbatch on in each iteration of a rank, ranks in order."""

    rank: Ints
    chunk: Ints
    microbatch: Ints
    is_backward: Ints
    virtual_stage: Ints


@dataclass(frozen=True)
class Histories:
    """Ranks through their iterations.

    Attributes:
        start_ns: when iterations start, shape (ranks, iterations).
        optimizer_ns: when the Optimizer of each starts.
        shapes: a number for how many F and B each has; NaN for none, and where a capture may have
            cut some.
        length_ns: of a typical iteration of each rank.
        recorded_ns: when the first and last kernel or call of each rank's profile were.
        passed_on: F and B.
        ready_ns: when the input of each of these was there, shape (F and B, iterations). One row
            more is of none.
        end_ns: when each ended.
    """

    start_ns: Floats
    optimizer_ns: Floats
    shapes: Floats
    length_ns: Floats
    recorded_ns: tuple[Ints, Ints]
    passed_on: PassedOn
    ready_ns: Floats
    end_ns: Floats

    @property
    def counts(self) -> Ints:
        """How many iterations each rank has."""
        return np.asarray(np.count_nonzero(~np.isnan(self.start_ns), axis=1), np.int64)


def histories_of(
    operations: Operations, ready_ns: Ints, recorded_ns: tuple[Ints, Ints]
) -> Histories:
    """Return the histories of ranks.

    Args:
        operations: Operations of all ranks, with their virtual stages.
        ready_ns: Time at which the input of each operation was available, or ``NEVER``.
        recorded_ns: Times of the first and of the last kernel or call in the profile of each rank.
    """
    spanned = np.flatnonzero((operations.has_span == 1) & (operations.iteration >= 0))
    phase = operations.phase[spanned]
    shape = len(recorded_ns[0]), int(operations.iteration[spanned].max(initial=NONE)) + 1
    cell_of = operations.rank * shape[1] + operations.iteration

    def earliest(rows: Ints) -> Floats:
        """Return the earliest start of some operations in each iteration of each rank."""
        cell, starts_ns = cell_of[rows], operations.start_ns[rows]
        low, high = group_extents(cell, shape[0] * shape[1], starts_ns, starts_ns)
        return np.where(low > high, np.inf, low).reshape(shape)

    # An iteration without any span starts with the next one that has.
    start_ns = np.minimum.accumulate(earliest(spanned)[:, ::-1], axis=1)[:, ::-1]
    optimizer_ns = earliest(spanned[phase == Phase.OPTIMIZER])
    low, high = group_extents(
        operations.rank[spanned], shape[0], operations.start_ns[spanned], operations.end_ns[spanned]
    )
    counts = np.count_nonzero(np.isfinite(start_ns), axis=1)
    kept = mask_phases(phase, PASSED_ON) & (operations.occurrence[spanned] == 0)
    rows = spanned[kept & (operations.cut[spanned] == 0) & (operations.virtual_stage[spanned] >= 0)]
    rank, iteration = operations.rank[rows], operations.iteration[rows]
    backward = (operations.phase[rows] != Phase.F).astype(np.int64)
    numbers = group_sum(cell_of[rows], shape[0] * shape[1], 1 + (backward << 20)).reshape(shape)
    place = np.arange(shape[1])
    edge = (place == 0) | (place >= counts[:, None] - 1)
    events = grouping.group_rows(
        rank, operations.chunk[rows], operations.microbatch[rows], backward
    )
    ready, end = np.full((2, len(events) + 1, shape[1]), np.nan)
    known = ready_ns[rows] != NEVER
    ready[events.of_row[known], iteration[known]] = ready_ns[rows[known]]
    end[events.of_row, iteration] = operations.end_ns[rows]
    first = rows[events.first]
    return Histories(
        start_ns=np.where(np.isinf(start_ns), np.nan, start_ns),
        optimizer_ns=np.where(np.isinf(optimizer_ns), np.nan, optimizer_ns),
        shapes=np.where(edge, np.nan, numbers),
        length_ns=(high - low) / np.maximum(counts, 1),
        recorded_ns=recorded_ns,
        passed_on=PassedOn(
            rank=operations.rank[first],
            chunk=operations.chunk[first],
            microbatch=operations.microbatch[first],
            is_backward=backward[events.first],
            virtual_stage=operations.virtual_stage[first],
        ),
        ready_ns=ready,
        end_ns=end,
    )


@dataclass(frozen=True)
class CommonEvents:
    """Events of pairs of ranks of which one waits for the other, shape (pairs, iterations, events).

    Attributes:
        a_ns: times on the first rank's clock; NaN unknown.
        b_ns: times on the second's.
        a_end_ns: ends of the same operations.
        b_end_ns: likewise.
        a_leads: by pair and event, whether the second rank waits for the first.
    """

    a_ns: Floats
    b_ns: Floats
    a_end_ns: Floats
    b_end_ns: Floats
    a_leads: Bools

    def take(self, pairs: Ints) -> CommonEvents:
        """Return those of some of the pairs."""
        return CommonEvents(*(column[pairs] for column in vars(self).values()))

    def bounds(self, moves: Ints) -> tuple[Floats, Floats]:
        """Return for each pair of iterations the least and the most to add to b's clock.

        Infinite where nothing bounds it; the shape is (pairs, moves, iterations).
        """
        return self._extremes(self.a_ns, self.b_ns, moves)

    def loose_bounds(self, moves: Ints) -> tuple[Floats, Floats]:
        """Return the same over all iterations, by ends alone, shape (pairs, moves).

        A span may begin with kernels that need no input.
        """
        least, most = self._extremes(self.a_end_ns, self.b_end_ns, moves)
        return least.max(axis=2, initial=-np.inf), most.min(axis=2, initial=np.inf)

    def _extremes(self, a_ns: Floats, b_ns: Floats, moves: Ints) -> tuple[Floats, Floats]:
        shape = len(a_ns), len(moves), a_ns.shape[1]
        least, most = np.full(shape, -np.inf), np.full(shape, np.inf)
        leads = self.a_leads[:, None, None]
        size = max(1, AT_ONCE // max(a_ns.size, 1))
        for low in range(0, len(moves), size):
            at = slice(low, low + size)
            apart = a_ns[:, None] - moved(b_ns, moves[at])
            seen = ~np.isnan(apart)
            lower_ns = np.where(seen & leads, apart, -np.inf)
            upper_ns = np.where(seen & ~leads, apart, np.inf)
            least[:, at] = lower_ns.max(axis=3, initial=-np.inf)
            most[:, at] = upper_ns.min(axis=3, initial=np.inf)
        return least, most


def moved(values: Floats, moves: Ints) -> Floats:
    """Return values of iterations, shape (pairs, iterations, ...), beside which others stand.

    The shape is (pairs, moves, iterations, ...); NaN where none stands there.
    """
    count = values.shape[1]
    place = np.arange(count) - moves[:, None]
    inside = (place >= 0) & (place < count)
    inside = inside.reshape(*inside.shape, *[1] * (values.ndim - 2))
    return np.where(inside, values[:, np.clip(place, 0, count - 1)], np.nan)


def batches(
    histories: Histories, first: Ints, second: Ints, by_ns: Ints, beside: Bools
) -> Iterator[tuple[Ints, CommonEvents | None]]:
    """Yield (numbers of pairs, their events), some at a time; replicas have no events.

    Args:
        histories: of all ranks.
        first: a rank of each pair.
        second: another one.
        by_ns: what is added to the clock of that.
        beside: whether the two are replicas.
    """
    iterations = histories.start_ns.shape[1]
    begin = np.searchsorted(histories.passed_on.rank, np.arange(len(histories.start_ns) + 1))
    events = int(np.diff(begin).max(initial=0))
    for replicas in (False, True):
        pairs = np.flatnonzero(beside == replicas)
        cells = iterations * (4 * iterations if replicas else 4 * iterations + events)
        size = max(1, AT_ONCE // max(cells, 1))
        for low in range(0, len(pairs), size):
            at = pairs[low : low + size]
            if replicas:
                yield at, None
            else:
                yield at, _events(histories, begin, first[at], second[at], by_ns[at])


def _events(
    histories: Histories, begin: Ints, first: Ints, second: Ints, by_ns: Ints
) -> CommonEvents:
    """Return the events that pairs of ranks have in common: of chunks of one number."""
    table = histories.passed_on
    pair, ours = grouping.expand_ranges(begin[first], begin[first + 1])
    keys = table.rank, table.chunk, table.microbatch, table.is_backward
    wanted_keys = second[pair], *(column[ours] for column in keys[1:])
    theirs = grouping.lookup_values(keys, np.arange(len(table)), wanted_keys)
    common = np.flatnonzero(theirs >= 0)
    number = np.bincount(pair[common], minlength=len(first))
    kept = np.minimum(number, _EVENTS)
    owner, nth = grouping.expand_ranges(np.zeros_like(kept), kept)
    first_event = (np.cumsum(number) - number)[owner]
    spread = first_event + nth * number[owner] // np.maximum(kept, 1)[owner]
    # The last row is of no event.
    rows = np.full((2, len(first), int(kept.max(initial=0))), len(table), np.int64)
    rows[:, owner, nth] = ours[common][spread], theirs[common][spread]
    upstream = np.append(table.virtual_stage, NONE)[rows]
    leads = (np.append(table.is_backward, 0)[rows[0]] == 0) == (upstream[0] < upstream[1])
    (a_ready, b_ready), (a_end, b_end) = (
        times_ns[rows].swapaxes(2, 3) for times_ns in (histories.ready_ns, histories.end_ns)
    )
    b_ready, b_end = (times_ns + by_ns[:, None, None] for times_ns in (b_ready, b_end))
    a_ns = np.where(leads[:, None], a_end, a_ready)
    return CommonEvents(a_ns, np.where(leads[:, None], b_ready, b_end), a_end, b_end, leads)
