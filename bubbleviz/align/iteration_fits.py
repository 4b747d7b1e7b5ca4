"""Fits: how well the iterations of two ranks agree, shifted against each other.

Ranks that wait for each other share what makes an iteration long or short, and every operation in
it early or late. Where two ranks' iterations are paired as they ran, the time from one iteration to
the next is the same on both, event by event; paired otherwise it differs by as much as the
iterations of one rank differ among themselves::

    rank a   ├───────┤├─────────┤├──────┤├────────┤
    rank b       ├───────┤├─────────┤├──────┤├────────┤      shift 0: differs by microseconds
    rank b              ├───────┤├─────────┤├──────┤         shift 1: as iterations differ

Only lengths of time are compared, each taken on one clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bubbleviz.align.offsets import DRIFT
from bubbleviz.model.columns import Bools, Floats, Ints, Table
from bubbleviz.model.grouping import distinct, expanded, sorted_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, Phase

# Histories: ranks through their iterations, as far as it shows which of these are the same.


_NONE_YET = np.iinfo(np.int64).max


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    operations: RankOperations, virtual_stage: Ints, ready_ns: Ints, recorded_ns: tuple[Ints, Ints]
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

    def earliest(rows: Ints) -> Ints:
        """Return the earliest start of some operations in each iteration of each rank."""
        at = first[operations.rank[rows]] + operations.iteration[rows]
        found = np.full(int(first[-1]), _NONE_YET)
        np.minimum.at(found, at, operations.start_ns[rows])
        return found

    optimizer_ns, begun_ns = earliest(steps), earliest(spanned)
    # An iteration without any span starts with the next one that has.
    for count in distinct(counts[counts > 1]).tolist():
        at = first[:-1][counts == count][:, None] + np.arange(count)
        begun_ns[at] = np.minimum.accumulate(begun_ns[at][:, ::-1], axis=1)[:, ::-1]
    return Histories(
        ends,
        np.searchsorted(ends.rank, np.arange(ranks + 1)),
        first,
        begun_ns,
        np.where(optimizer_ns == _NONE_YET, np.nan, optimizer_ns),
        np.where(high >= low, (high - low) // np.maximum(counts, 1), 0),
        recorded_ns,
    )


@dataclass(frozen=True)
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
        return Overlaps(self.move[moves], self.first[moves], self.second[moves], self.held[moves])


#: Differences below this are the grain of timestamps, and tell nothing.
_GRAIN_NS = 200.0
#: Of so many values the largest is left out, and of so many the two largest.
_FEW, _MANY = 3, 6
#: For how many independent numbers the events within an iteration stand, at most.
_WITHIN = 4
#: What the choice of the best of some ways to look at the same numbers takes off.
_LOOKS = math.log(2)
#: Evidence of a fit, and of all that it consists of, in nats, at most.
_MOST = 60.0
#: Means of values, and of how many each; 0 where there is no such mean.
_Means = tuple[Floats, Ints]
#: Mean squares by which steps that are not the same differ, as a whole and within, of how many.
_Chance = tuple[Floats, Floats, Ints]


@dataclass(frozen=True)
class Look:
    """One way to compare lengths of iterations of two ranks, for many pairs and all moves.

    Attributes:
        own: how far either rank's steps are from one another; see :func:`_apart`.
        freedom: for how many independent numbers the events within a step stand.
        usual_ns: a usual step of each pair.
        levels: mean squares of what whole steps differ, shape (pairs, moves): with and without the
            worst, and with and without drift.
        within: the same of what events differ beyond that; empty where they are not compared.
    """

    own: tuple[tuple[Floats, Floats], ...]
    freedom: int
    usual_ns: Floats
    levels: tuple[_Means, ...] = ()
    within: tuple[_Means, ...] = ()

    @staticmethod
    def at(times_ns: tuple[Floats, Floats], overlaps: Overlaps) -> Look:
        """Return the look at events of two ranks.

        Args:
            times_ns: of each side, shape (pairs, iterations, events); NaN for those missing.
            overlaps: which steps from one iteration to the next are one.
        """
        steps = [np.diff(times, axis=1) for times in times_ns]
        every = np.concatenate([side.reshape(len(side), -1) for side in steps], axis=1)
        usual_ns = np.nan_to_num(_median(every))
        # Little is lost to rounding where what is usual is taken off.
        one, other = (side - usual_ns[:, None, None] for side in steps)
        freedom = min(max(one.shape[2] - 1, 0), _WITHIN)
        look = Look((_apart(one, one), _apart(other, other)), freedom, usual_ns)
        return look.fitted(*(_of_moves(part, overlaps) for part in _apart(one, other)))

    def fitted(self, level_ns: Floats, within: Floats | None) -> Look:
        """Return the look at how well pairs agree.

        Clocks that drift make all iterations of one rank longer: either the drift is taken off, or
        as much as there may be counts as noise.

        Args:
            level_ns: by how much the steps of each pair differ, shape (pairs, moves, steps).
            within: mean squares of what their events differ beyond that; None where not compared.
        """
        most_ns = (DRIFT * self.usual_ns)[:, None]
        drift = np.clip(np.nan_to_num(_median(level_ns)), -most_ns, most_ns)
        enough = _count(level_ns) >= _FEW
        noisy = ((mean + most_ns**2, count) for mean, count in _means(level_ns**2))
        steady = (
            (mean, np.where(enough & (count > 0), count - 1, 0))
            for mean, count in _means((level_ns - drift[..., None]) ** 2)
        )
        means = () if within is None else _means(within)
        return replace(self, levels=(*noisy, *steady), within=means)

    def alone(self) -> Floats:
        """Return the evidence for each move, whatever the right one is."""
        return self._evidence(self.levels, self.within, self._any_chance())

    def against(self, best: Ints, lags: Ints) -> tuple[Floats, Floats]:
        """Return the evidence for the best move, and for each, if the right one were the other.

        Args:
            best: the best move of each pair.
            lags: how far each move is from that, shape (pairs, moves).
        """
        level, inner, rows = self._chances(int(lags.max(initial=0)) + 1)
        chance = (
            np.take_along_axis(level, lags, axis=1),
            np.take_along_axis(inner, lags, axis=1),
            np.take_along_axis(rows, lags, axis=1),
        )
        own = [
            tuple(
                (
                    np.take_along_axis(mean, best[:, None], axis=1),
                    np.take_along_axis(count, best[:, None], axis=1),
                )
                for mean, count in part
            )
            for part in (self.levels, self.within)
        ]
        for_best = self._evidence(own[0], own[1], chance)
        return for_best, self._evidence(self.levels, self.within, chance)

    def _any_chance(self) -> _Chance:
        """Return how steps of one rank differ from each other, shape (pairs, 1)."""
        found = []
        for level_ns, within in self.own:
            upper = np.triu(np.ones(level_ns.shape[1:], bool), 1)
            pairs = [part[:, upper] for part in (level_ns, within)]
            count = _count(pairs[0])
            squares = (_kept_mean(pairs[0] ** 2), _kept_mean(pairs[1]))
            found.append((*(np.where(count > 0, part, np.inf) for part in squares), count))
        return self._least([[part[:, None] for part in side] for side in found])

    def _chances(self, lags: int) -> _Chance:
        """Return how steps differ that are so far apart, from 0 on, shape (pairs, lags).

        Where a pattern repeats itself they hardly do. Few such pairs tell no pattern.
        """
        found = []
        for level_ns, within in self.own:
            steps = level_ns.shape[1]
            overlaps = Overlaps.of(np.arange(lags), steps, steps)
            level, inner = (_of_moves(part, overlaps) for part in (level_ns, within))
            found.append([_kept_mean(level**2), _kept_mean(inner), _count(level)])
        few = np.minimum(found[0][2], found[1][2]) < _FEW
        told, other = self._least(found), self._any_chance()
        level, inner, rows = (np.where(few, b, a) for a, b in zip(told, other, strict=True))
        return level, inner, rows

    def _least(self, sides: list[list[Any]]) -> _Chance:
        # Ranks that wait for each other vary alike, so they count as one, the one that varies less.
        (level, within, count), (others, inner, number) = sides
        rows = np.minimum(np.maximum(count, number), self.own[0][0].shape[1])
        return np.minimum(level, others), np.minimum(within, inner), rows

    def _evidence(
        self, levels: tuple[_Means, ...], within: tuple[_Means, ...], chance: _Chance
    ) -> Floats:
        """Return how unlikely it is, in nats, that pairs fit so well if they are the wrong ones.

        Wrong pairs are different iterations, and differ as those of one rank do. Where few
        iterations say how much their lengths vary, what events vary within them says it, too: what
        is early or late there adds up to them.
        """
        level, inner, rows = chance
        chances = [(level, rows)]
        freedom = self.freedom
        if freedom:
            chances.append((np.minimum(level, inner), freedom * rows))
        total = _most(
            _unlikely(mean, by_chance, count, of_chance)
            for mean, count in levels
            for by_chance, of_chance in chances
        )
        if freedom and within:
            total = total + _most(
                _unlikely(mean, inner, freedom * count, freedom * rows) for mean, count in within
            )
            # That both are by chance is likelier than the product of the two.
            total = total - np.log1p(total)
        known = (rows > 0) & (levels[0][1] > 0)
        return np.where(known, np.minimum(total, _MOST), 0.0)


def _apart(a_ns: Floats, b_ns: Floats) -> tuple[Floats, Floats]:
    """Return how far apart steps of two ranks are, each of one with each of the other.

    That is the mean difference over the events, shape (pairs, steps of a, steps of b), and the mean
    square of what the events differ beyond that; NaN where too few events are common.

    Args:
        a_ns: steps of events of one rank, shape (pairs, steps, events); NaN for those missing.
        b_ns: of the other.
    """
    other = b_ns.swapaxes(1, 2)
    known, other_known = ((~np.isnan(side)).astype(np.float64) for side in (a_ns, other))
    own, other = (np.where(np.isnan(side), 0.0, side) for side in (a_ns, other))
    count = known @ other_known
    total = own @ other_known - known @ other
    squares = (own**2) @ other_known + known @ (other**2) - 2 * own @ other
    level = total / np.maximum(count, 1.0)
    within = np.maximum(squares / np.maximum(count, 1.0) - level**2, 0.0)
    valid = count >= max(1.0, a_ns.shape[2] / 4)
    return np.where(valid, level, np.nan), np.where(valid, within, np.nan)


def _of_moves(apart: Floats, overlaps: Overlaps) -> Floats:
    """Return those of the steps that are one, shape (pairs, moves, steps)."""
    return np.where(overlaps.held, apart[:, overlaps.first, overlaps.second], np.nan)


def _count(values: Floats) -> Ints:
    """Return how many values there are along the last axis; NaN stands for none."""
    return np.asarray(np.count_nonzero(~np.isnan(values), axis=-1), np.int64)


def _median(values: Floats) -> Floats:
    """Return the median along the last axis; NaN where there are no values."""
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    count = _count(values)
    ends = np.stack(((count - 1) // 2, count // 2), axis=-1)
    middle = np.take_along_axis(np.sort(values, axis=-1), np.maximum(ends, 0), axis=-1)
    return np.asarray(middle.sum(axis=-1) / 2, np.float64)


def _means(values: Floats) -> tuple[_Means, _Means]:
    """Return the mean of all, and that without the largest, two of many.

    A clock may have been set once.
    """
    count = _count(values)
    kept = count - np.where(count < _FEW, 0, np.where(count < _MANY, 1, 2))
    total = np.where(np.isnan(values), 0.0, values).sum(axis=-1)
    least = np.arange(values.shape[-1]) < kept[..., None]
    most = np.where(least, np.sort(values, axis=-1), 0.0).sum(axis=-1)
    return (
        (total / np.maximum(count, 1), count),
        (most / np.maximum(kept, 1), np.where(kept < count, kept, 0)),
    )


def _kept_mean(values: Floats) -> Floats:
    """Return the mean without the largest, of many enough, else of all."""
    (every, _), (most, count) = _means(values)
    return np.where(count > 0, most, every)


def _most(parts: Iterable[Floats]) -> Floats:
    """Return the most of some evidence, less what the choice takes off."""
    return np.asarray(np.maximum(np.maximum.reduce(list(parts)) - _LOOKS, 0.0), np.float64)


def _unlikely(square: Floats, chance: Floats, freedom: Ints, of_chance: Ints) -> Floats:
    """Return how unlikely so small a mean square is, in nats, where chance makes the other one.

    That is Fisher's F distribution; of no numbers there is no evidence.
    """
    from scipy.special import betainc

    grain = _GRAIN_NS**2
    known = (freedom > 0) & (of_chance > 0)
    freedom, of_chance = np.where(known, freedom, 1), np.where(known, of_chance, 1)
    ratio = freedom * (np.where(known, square, 0.0) + grain)
    ratio = ratio / (of_chance * (np.where(known, chance, 0.0) + grain))
    likelihood = betainc(freedom / 2, of_chance / 2, ratio / (1 + ratio))
    unlikely = np.minimum(-np.log(np.maximum(likelihood, 1e-300)), _MOST)
    return np.where(known, unlikely, -np.inf)
