"""Histories: ranks through their iterations, as far as it shows which of these are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.bounds.clock_segments import Floats
from bubbleviz.model.columns import Bools, Ints, Table
from bubbleviz.model.grouping import distinct, expanded
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

_NONE_YET = np.iinfo(np.int64).max


@frozen
class OperationEnds(Table):
    """F and B with spans: which, when their input was there, and when they ended."""

    rank: Ints
    iteration: Ints
    microbatch: Ints
    virtual_stage: Ints
    is_backward: Ints
    ready_ns: Ints
    end_ns: Ints

    @property
    def events(self) -> Ints:
        """One number for (microbatch, is_backward)."""
        return (self.microbatch + 1) << 1 | self.is_backward


@frozen
class Histories:
    """Ranks through their iterations, those of one rank after those of another.

    Attributes:
        ends: of their F and B, in order of ranks.
        first_end: where in ``ends`` each rank begins, and their number.
        first: where in ``start_ns`` each rank begins, and their number.
        start_ns: when iterations start.
        optimizer_ns: when the Optimizer of each starts; NaN where it is not seen.
        length_ns: of a typical iteration of each rank.
        recorded_ns: when the first and last kernel or call of each rank's profile were.
    """

    ends: OperationEnds
    first_end: Ints
    first: Ints
    start_ns: Ints
    optimizer_ns: Floats
    length_ns: Ints
    recorded_ns: tuple[Ints, Ints]

    @property
    def counts(self) -> Ints:
        """How many iterations each rank has."""
        return np.diff(self.first)

    def rows_of(self, ranks: Ints) -> tuple[Ints, Ints]:
        """Return for each of the ends of some ranks the place among these, and the row."""
        return expanded(self.first_end[ranks], self.first_end[ranks + 1])

    def starts(self, ranks: Ints) -> Ints:
        """Return when iterations of ranks start that have as many, shape (ranks, iterations)."""
        return self.start_ns[self._iterations(ranks)]

    def optimizers(self, ranks: Ints) -> Floats:
        """Return when Optimizers of ranks start that have as many, shape (ranks, iterations)."""
        return self.optimizer_ns[self._iterations(ranks)]

    def shapes(self, ranks: Ints) -> Ints:
        """Return a number for how many F and B each iteration has, of ranks that have as many.

        The shape is (ranks, iterations).
        """
        count = int(self.counts[ranks[0]])
        place, row = self.rows_of(ranks)
        at = place * count + self.ends.iteration[row]
        backward = self.ends.is_backward[row] == 1
        size = len(ranks) * count
        numbers = [np.bincount(at[own], minlength=size) for own in (~backward, backward)]
        return (numbers[0] << 20 | numbers[1]).astype(np.int64).reshape(len(ranks), count)

    def _iterations(self, ranks: Ints) -> Ints:
        """Return the iterations of ranks that have as many, at least one rank."""
        return self.first[ranks][:, None] + np.arange(self.counts[ranks[0]])


def histories_of(
    operations: RankOperations,
    virtual_stage: Ints,
    ready_ns: Ints,
    recorded_ns: tuple[Ints, Ints],
) -> Histories:
    """Return the histories of ranks.

    Args:
        operations: of all of them.
        virtual_stage: of each operation; -1 unknown.
        ready_ns: when the input of each was there; the smallest number where that is not known.
        recorded_ns: when the first and last kernel or call of each rank's profile were.
    """
    ranks = len(recorded_ns[0])
    last = group_extents(operations.rank, ranks, operations.iteration, operations.iteration)[1]
    counts = np.maximum(last + 1, 0)
    first = np.concatenate(([0], np.cumsum(counts)))
    spanned = np.flatnonzero((operations.has_span == 1) & (operations.iteration >= 0))
    rank, start_ns = operations.rank[spanned], operations.start_ns[spanned]
    low, high = group_extents(rank, ranks, start_ns, operations.end_ns[spanned])
    phase = operations.phase[spanned]
    steps = spanned[phase == Phase.OPTIMIZER]
    kept = among(phase, PASSED_ON) & (operations.occurrence[spanned] == 0)
    rows = spanned[kept & (operations.cut[spanned] == 0) & (virtual_stage[spanned] >= 0)]
    rows = rows[sorted_rows(operations.rank[rows])]
    ends = OperationEnds(
        rank=operations.rank[rows],
        iteration=operations.iteration[rows],
        microbatch=operations.microbatch[rows],
        virtual_stage=virtual_stage[rows],
        is_backward=(operations.phase[rows] != Phase.F).astype(np.int64),
        ready_ns=ready_ns[rows],
        end_ns=operations.end_ns[rows],
    )
    begun_ns = _earliest(operations, spanned, first)
    optimizer_ns = _earliest(operations, steps, first)
    return Histories(
        ends,
        np.searchsorted(ends.rank, np.arange(ranks + 1)),
        first,
        _at_the_latest_with_next(begun_ns, counts, first),
        np.where(optimizer_ns == _NONE_YET, np.nan, optimizer_ns),
        np.where(high >= low, (high - low) // np.maximum(counts, 1), 0),
        recorded_ns,
    )


def _earliest(operations: RankOperations, rows: Ints, first: Ints) -> Ints:
    """Return the earliest start of some operations in each iteration of each rank."""
    at = first[operations.rank[rows]] + operations.iteration[rows]
    start_ns = operations.start_ns[rows]
    low, high = group_extents(at, int(first[-1]), start_ns, start_ns)
    return np.where(high >= low, low, _NONE_YET)


def _at_the_latest_with_next(start_ns: Ints, counts: Ints, first: Ints) -> Ints:
    """Return starts; an iteration without any span starts with the next one that has."""
    result = start_ns.copy()
    for count in distinct(counts[counts > 1]).tolist():
        at = first[:-1][counts == count][:, None] + np.arange(count)
        result[at] = np.minimum.accumulate(start_ns[at][:, ::-1], axis=1)[:, ::-1]
    return result


@frozen
class Overlaps:
    """Which iterations of two ranks are one if those of the second are moved; columns by move.

    Attributes:
        move: the number of an iteration of the first rank less that of the second.
        first: iterations of the first rank, shape (moves, iterations).
        second: those of the second, likewise.
        held: whether both have it; else it is filled up.
    """

    move: Ints
    first: Ints
    second: Ints
    held: Bools

    @staticmethod
    def of(move: Ints, count_a: int, count_b: int) -> Overlaps:
        """Return those of some moves of ranks that have so many iterations."""
        low, high = np.maximum(move, 0), np.minimum(count_a, count_b + move)
        first = low[:, None] + np.arange(max(int((high - low).max(initial=0)), 0))
        held = first < high[:, None]
        second = np.where(held, first - move[:, None], 0)
        return Overlaps(move, np.where(held, first, 0), second, held)

    def take(self, moves: slice) -> Overlaps:
        """Return those of some of the moves."""
        return replace(
            self,
            move=self.move[moves],
            first=self.first[moves],
            second=self.second[moves],
            held=self.held[moves],
        )
