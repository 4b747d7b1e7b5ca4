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
from dataclasses import replace

import numpy as np

from bubbleviz.align.offsets import DRIFT
from bubbleviz.model.columns import Bools, Floats, Ints, Table
from bubbleviz.model.grouping import distinct, expanded, sorted_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, Phase
from bubbleviz.model.values import frozen

# Histories: ranks through their iterations, as far as it shows which of these are the same.


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


@frozen
class Steps:
    """Times from each iteration to the next one, by event, less what is usual.

    Attributes:
        step_ns: shape (pairs of ranks, iterations - 1, events); 0 where unknown.
        known: 1.0 where both iterations hold the event, else 0.0; the same shape.
    """

    step_ns: Floats
    known: Floats


def steps_of(times_ns: Floats, usual_ns: Floats) -> Steps:
    """Return the steps of events; NaN stands for events that are missing.

    Args:
        times_ns: shape (pairs, iterations, events).
        usual_ns: what is taken off all steps of a pair, so that little is lost to rounding.
    """
    step = np.diff(times_ns, axis=1) - usual_ns[:, None, None]
    known = ~np.isnan(step)
    return Steps(np.where(known, step, 0.0), known.astype(np.float64))


@frozen
class Samples:
    """Some of many values, along the last axis.

    Attributes:
        values: all of them.
        chosen: which of them there are; the same shape.
    """

    values: Floats
    chosen: Bools

    @property
    def count(self) -> Ints:
        """How many there are."""
        return np.asarray(np.count_nonzero(self.chosen, axis=-1), np.int64)

    def squares(self) -> Samples:
        """Return the square of each."""
        return Samples(self.values**2, self.chosen)

    def median(self) -> Floats:
        """Return the median; anything where there are none."""
        if self.values.shape[-1] == 0:
            return np.zeros(self.values.shape[:-1])
        ordered = np.sort(np.where(self.chosen, self.values, np.inf), axis=-1)
        count = self.count
        ends = np.stack(((count - 1) // 2, count // 2), axis=-1)
        middle = np.take_along_axis(ordered, np.maximum(ends, 0), axis=-1)
        return np.asarray(middle.sum(axis=-1) / 2, np.float64)

    def means(self) -> tuple[Means, Means]:
        """Return the mean of all, and that without the largest, two of many.

        A clock may have been set once.
        """
        count = self.count
        kept = count - np.where(count < _FEW, 0, np.where(count < _MANY, 1, 2))
        total = np.where(self.chosen, self.values, 0.0).sum(axis=-1)
        ordered = np.sort(np.where(self.chosen, self.values, np.inf), axis=-1)
        least = np.where(np.arange(ordered.shape[-1]) < kept[..., None], ordered, 0.0).sum(axis=-1)
        return (
            Means(total / np.maximum(count, 1), count),
            Means(least / np.maximum(kept, 1), np.where(kept < count, kept, 0)),
        )

    def kept_mean(self) -> Floats:
        """Return the mean without the largest, of many enough, else of all."""
        every, most = self.means()
        return np.where(most.count > 0, most.mean, every.mean)


@frozen
class Means:
    """Means of values, and of how many each; 0 where there is no such mean."""

    mean: Floats
    count: Ints


@frozen
class Fits:
    """How far apart steps of two ranks are: each of one with each of the other, by pair of ranks.

    Attributes:
        level_ns: mean difference over the events, shape (pairs, steps of one, steps of the other).
        within: mean square of what the events differ beyond that; the same shape.
        valid: whether they have enough events in common.
    """

    level_ns: Floats
    within: Floats
    valid: Bools

    def rows(self, overlaps: Overlaps) -> tuple[Samples, Samples]:
        """Return levels and mean squares of the steps that are one, shape (pairs, moves, steps)."""
        at = slice(None), overlaps.first, overlaps.second
        chosen = self.valid[at] & overlaps.held
        return Samples(self.level_ns[at], chosen), Samples(self.within[at], chosen)

    def lags(self) -> tuple[Samples, Samples]:
        """Return those of all pairs of different steps, where a rank is fitted to itself."""
        chosen = self.valid & np.triu(np.ones(self.valid.shape[1:], bool), 1)
        flat = len(chosen), -1
        chosen = chosen.reshape(flat)
        return Samples(self.level_ns.reshape(flat), chosen), Samples(
            self.within.reshape(flat), chosen
        )


def fits_of(a: Steps, b: Steps) -> Fits:
    """Return how far the steps of a and of b are apart."""
    other, other_known = b.step_ns.swapaxes(1, 2), b.known.swapaxes(1, 2)
    count = a.known @ other_known
    total = a.step_ns @ other_known - a.known @ other
    squares = (a.step_ns**2) @ other_known + a.known @ (other**2) - 2 * a.step_ns @ other
    level = total / np.maximum(count, 1.0)
    within = np.maximum(squares / np.maximum(count, 1.0) - level**2, 0.0)
    return Fits(level, within, count >= max(1.0, a.known.shape[2] / 4))


@frozen
class Fit:
    """How well pairs of steps agree.

    Attributes:
        levels: mean squares of what whole steps differ: with and without the worst, and with and
            without drift; the shape of each is that of what was compared.
        within: the same of what events differ beyond that; empty where they are not compared.
    """

    levels: tuple[Means, ...]
    within: tuple[Means, ...]

    def of(self, moves: Ints) -> Fit:
        """Return the fit of one move of each pair, shape (pairs, 1)."""
        return Fit(*(tuple(_of(one, moves) for one in part) for part in (self.levels, self.within)))


def _of(means: Means, moves: Ints) -> Means:
    at = moves[:, None]
    return Means(
        np.take_along_axis(means.mean, at, axis=1), np.take_along_axis(means.count, at, axis=1)
    )


@frozen
class Chance:
    """Mean squares by which steps differ where they are not the same, and of how many rows."""

    level: Floats
    within: Floats
    rows: Ints

    def at(self, lags: Ints) -> Chance:
        """Return those of some lags of each pair, shape (pairs, lags)."""
        return Chance(
            np.take_along_axis(self.level, lags, axis=1),
            np.take_along_axis(self.within, lags, axis=1),
            np.take_along_axis(self.rows, lags, axis=1),
        )


@frozen
class Variation:
    """How much the steps of two ranks vary, each by itself, by pair of ranks.

    Attributes:
        own: fits of each rank's steps against its own.
        freedom: for how many independent numbers the events within a step stand.
        usual_ns: a usual step.
    """

    own: tuple[Fits, Fits]
    freedom: int
    usual_ns: Floats

    def fit(self, level: Samples, within: Samples | None) -> Fit:
        """Return how well pairs agree.

        Clocks that drift make all iterations of one rank longer: either the drift is taken off, or
        as much as there may be counts as noise.

        Args:
            level: by how much the steps of each pair differ, in ns, shape (pairs, moves, steps).
            within: mean squares of what their events differ beyond that; None where not compared.
        """
        most_ns = (DRIFT * self.usual_ns)[:, None]
        levels = [Means(own.mean + most_ns**2, own.count) for own in level.squares().means()]
        drift = np.clip(np.where(level.count > 0, level.median(), 0.0), -most_ns, most_ns)
        steady = Samples(level.values - drift[..., None], level.chosen)
        enough = level.count >= _FEW
        levels += [
            Means(own.mean, np.where(enough & (own.count > 0), own.count - 1, 0))
            for own in steady.squares().means()
        ]
        return Fit(tuple(levels), () if within is None else within.means())

    def any_chance(self) -> Chance:
        """Return how steps of one rank differ from each other, shape (pairs, 1)."""
        levels, withins, counts = [], [], []
        for own in self.own:
            level, within = own.lags()
            none = level.count == 0
            counts.append(level.count)
            levels.append(np.where(none, np.inf, level.squares().kept_mean()))
            withins.append(np.where(none, np.inf, within.kept_mean()))
        return self._chance(levels, withins, counts)

    def chances(self, lags: int) -> Chance:
        """Return how steps differ that are so far apart, from 0 on, shape (pairs, lags).

        Where a pattern repeats itself they hardly do. Few such pairs tell no pattern.
        """
        levels, withins, counts = [], [], []
        for own in self.own:
            steps = own.valid.shape[1]
            level, within = own.rows(Overlaps.of(np.arange(lags), steps, steps))
            counts.append(level.count)
            levels.append(level.squares().kept_mean())
            withins.append(within.kept_mean())
        few = np.minimum(*counts) < _FEW
        told, other = self._chance(levels, withins, counts), self.any_chance()
        return Chance(
            np.where(few, other.level, told.level),
            np.where(few, other.within, told.within),
            np.where(few, other.rows, told.rows),
        )

    def _chance(self, levels: list[Floats], withins: list[Floats], counts: list[Ints]) -> Chance:
        # Ranks that wait for each other vary alike, so they count as one, the one that varies less.
        rows = np.minimum(np.maximum(*counts), self.own[0].valid.shape[1])
        rows = rows if rows.ndim > 1 else rows[:, None]
        return Chance(
            np.minimum(*levels).reshape(rows.shape), np.minimum(*withins).reshape(rows.shape), rows
        )

    def evidence(self, fit: Fit, chance: Chance) -> Floats:
        """Return how unlikely it is, in nats, that pairs fit so well if they are the wrong ones.

        Wrong pairs are different iterations, and differ as those of one rank do. Where few
        iterations say how much their lengths vary, what events vary within them says it, too: what
        is early or late there adds up to them.
        """
        chances = [(chance.level, chance.rows)]
        freedom = self.freedom
        if freedom:
            chances.append((np.minimum(chance.level, chance.within), freedom * chance.rows))
        total = _most(
            _unlikely(own.mean, by_chance, own.count, of_chance)
            for own in fit.levels
            for by_chance, of_chance in chances
        )
        if freedom and fit.within:
            more = _most(
                _unlikely(own.mean, chance.within, freedom * own.count, freedom * chance.rows)
                for own in fit.within
            )
            total = total + more
            # That both are by chance is likelier than the product of the two.
            total = total - np.log1p(total)
        known = (chance.rows > 0) & (fit.levels[0].count > 0)
        return np.where(known, np.minimum(total, _MOST), 0.0)


def _most(parts: Iterable[Floats]) -> Floats:
    """Return the most of some evidence, less what the choice takes off."""
    return np.asarray(np.maximum(np.maximum.reduce(list(parts)) - _LOOKS, 0.0), np.float64)


def usual_steps(*times_ns: Floats) -> Floats:
    """Return the median of all steps of events from iteration to iteration, by pair; 0 for none.

    Args:
        times_ns: of each side, shape (pairs, iterations, events).
    """
    steps = [np.diff(times, axis=1).reshape(len(times), -1) for times in times_ns]
    every = np.concatenate(steps, axis=1)
    known = Samples(every, ~np.isnan(every))
    return (
        np.where(known.count > 0, known.median(), 0.0) if every.shape[1] else np.zeros(len(every))
    )


def variation_of(a: Steps, b: Steps, usual_ns: Floats) -> Variation:
    """Return how much the steps of two ranks vary."""
    freedom = min(max(a.known.shape[2] - 1, 0), _WITHIN)
    return Variation((fits_of(a, a), fits_of(b, b)), freedom, usual_ns)


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
