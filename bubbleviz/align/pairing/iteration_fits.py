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
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.profile_clocks import DRIFT
from bubbleviz.model.columns import Bools, Floats, Ints

#: Differences below this are the grain of timestamps, and tell nothing.
_GRAIN_NS = 200.0
#: Of so many values the largest is left out, and of so many the two largest.
_FEW, _MANY = 3, 6
#: For how many independent numbers the events within an iteration stand, at most.
_WITHIN = 4
#: What the choice of the best of some ways to look at the same numbers takes off.
_LOOKS = math.log(2)
#: What one step that is unlike all others of its rank is evidence by how close it comes, at most.
_ODD_STEP = 3.0
#: Evidence of a fit, and of all that it consists of, in nats, at most.
_MOST = 60.0
#: Means of values, and of how many each; 0 where there is no such mean.
_Means = tuple[Floats, Ints]


@dataclass(frozen=True)
class Look:
    """One way to compare lengths of iterations of two ranks, for many pairs and all moves.

    Attributes:
        levels: mean squares of what whole steps differ, shape (pairs, moves): with and without the
            worst, and with and without drift.
        within: the same of what events differ beyond that; empty where they are not compared.
        chances: mean squares by which steps of one rank differ, as a whole and within, and of how
            many: of any two steps, then of those one apart, two apart, ...; shape (pairs, steps).
        freedom: for how many independent numbers the events within a step stand.
        most: the most that each move is evidence, shape (pairs, moves), since steps of one rank are
            as much alike.
    """

    levels: tuple[_Means, ...]
    within: tuple[_Means, ...]
    chances: tuple[Floats, Floats, Ints]
    freedom: int
    most: Floats

    def evidence(self, lags: Ints | None = None, best: Ints | None = None) -> Floats:
        """Return how unlikely it is, in nats, that pairs fit so well if they are the wrong ones.

        Wrong pairs are different iterations, and differ as those of one rank do: any two, or where
        the right ones are known, those that are as far apart. Where a pattern repeats itself these
        hardly differ. Where few iterations say how much their lengths vary, what events vary
        within them says it, too: what is early or late there adds up to them.

        Args:
            lags: how far each move is from the right one, shape (pairs, moves); None unknown.
            best: the move of each pair that evidence is for; None for each move itself.
        """
        if lags is None:
            lags = np.zeros((len(self.chances[0]), 1), np.int64)
        level, inner = (np.take_along_axis(part, lags, axis=1) for part in self.chances[:2])
        rows = np.take_along_axis(self.chances[2], lags, axis=1)
        levels, within, most = self.levels, self.within, self.most
        if best is not None:
            levels, within = _at(levels, best), _at(within, best)
            most = np.take_along_axis(most, best[:, None], axis=1)
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
        total = np.minimum(total, np.minimum(most, _MOST))
        return np.where((rows > 0) & (levels[0][1] > 0), total, 0.0)


def _at(means: tuple[_Means, ...], best: Ints) -> tuple[_Means, ...]:
    """Return the means of one move of each pair."""
    at = best[:, None]
    return tuple(
        (np.take_along_axis(mean, at, axis=1), np.take_along_axis(count, at, axis=1))
        for mean, count in means
    )


def looks(
    a_ns: Floats, b_ns: Floats, moves: Ints, bounds: tuple[Floats, Floats] | None = None
) -> list[Look]:
    """Return the looks at the times of events, and at the middle of what these leave open.

    Args:
        a_ns: times of events, shape (pairs, iterations, events); NaN for those missing.
        b_ns: likewise of the second ranks.
        moves: of the second ranks' iterations.
        bounds: the least and the most to add to the second clock, shape (pairs, moves, iterations);
            None where nothing bounds it.
    """
    one, other = (np.diff(times, axis=1) for times in (a_ns, b_ns))
    every = np.concatenate([side.reshape(len(side), -1) for side in (one, other)], axis=1)
    usual_ns = np.nan_to_num(median(every))
    # Little is lost to rounding where what is usual is taken off.
    one, other = (side - usual_ns[:, None, None] for side in (one, other))
    freedom = min(max(one.shape[2] - 1, 0), _WITHIN)
    sides, across = (_apart(one, one), _apart(other, other)), _apart(one, other)
    chances = _chances(*sides)

    def highest_of(squares: Floats, own: list[Floats], freedom: int) -> Floats:
        of_b = _rare(squares.swapaxes(1, 2), own[1], freedom).swapaxes(1, 2)
        rare = np.minimum(_rare(squares, own[0], freedom), of_b)
        return np.asarray(np.nansum(_of_moves(rare, moves), axis=2), np.float64)

    level_ns, within = (_of_moves(part, moves) for part in across)
    beyond = _beyond_drift(across[0], usual_ns) + across[1]
    highest = highest_of(beyond, [level**2 + inner for level, inner in sides], 1 + freedom)
    found = [Look(_levels(level_ns, usual_ns), _means(within), chances, freedom, highest)]
    if bounds is not None:
        known = np.isfinite(bounds[0]) & np.isfinite(bounds[1])
        middle = sum(np.where(known, side, np.nan) for side in bounds) / 2
        level_ns = np.diff(middle, axis=2)
        apart_ns = np.full(across[0].shape, np.nan)
        a_at, b_at, inside = _beside(apart_ns, moves)
        apart_ns[:, a_at[inside], b_at[inside]] = level_ns[:, inside]
        beyond = _beyond_drift(apart_ns, usual_ns)
        highest = highest_of(beyond, [level**2 for level, _ in sides], 1)
        found.append(Look(_levels(level_ns, usual_ns), (), chances, freedom, highest))
    return found


def _beyond_drift(level_ns: Floats, usual_ns: Floats) -> Floats:
    """Return squares of what steps differ by more than clocks may drift; arguments of _levels."""
    drift_ns = (DRIFT * usual_ns)[:, None, None]
    return np.asarray(np.maximum(np.abs(level_ns) - drift_ns, 0.0) ** 2, np.float64)


def _rare(squares: Floats, own: Floats, freedom: int) -> Floats:
    """Return how rarely steps of a rank are as much alike as one of them and one of another rank.

    Steps are no one distribution: those of training iterations may be equal to the nanosecond, and
    far from what an evaluation takes. So it is asked of each step how many others of its rank are
    as close to it as that of the other rank. What is closer than all of them is the rarer the
    smaller the volume is in which it lies.

    Args:
        squares: mean squares by which steps of two ranks differ, each of one with each of the
            other, shape (pairs, steps of the rank, steps of the other).
        own: by which those of the rank differ, each with each, shape (pairs, steps, steps).
        freedom: for how many independent numbers a square stands.

    Returns:
        Nats, of the shape of squares; NaN where they are.
    """
    own = np.where(np.eye(own.shape[1], dtype=bool), np.nan, own)
    count = _count(own)[..., None]
    # Of equal ones, those of the rank stand first.
    order = np.argsort(np.concatenate((own, squares), axis=2), axis=2, kind="stable")
    closer = np.empty(order.shape, np.int64)
    np.put_along_axis(closer, order, np.cumsum(order < own.shape[2], axis=2), axis=2)
    closer = closer[..., own.shape[2] :]
    least = np.nanmin(own, axis=2, initial=np.inf)[..., None] + _GRAIN_NS**2
    by_volume = np.log(least / (squares + _GRAIN_NS**2)) * freedom / 2
    # A step unlike all others says little about how others like it vary: any two steps do.
    any_two = least.min(axis=1, keepdims=True, initial=np.inf)
    usual = np.log(any_two / (squares + _GRAIN_NS**2)) * freedom / 2
    by_volume = np.maximum(usual, np.minimum(by_volume, _ODD_STEP))
    by_count = np.log((count + 1) / np.maximum(closer, 1))
    rare = by_count + np.where(closer > 0, 0.0, by_volume)
    return np.where(np.isnan(squares), np.nan, np.where(count > 0, rare, np.inf))


def _levels(level_ns: Floats, usual_ns: Floats) -> tuple[_Means, ...]:
    """Return mean squares of what whole steps differ.

    Clocks that drift make all iterations of one rank longer: either the drift is taken off, or as
    much as there may be counts as noise.

    Args:
        level_ns: by how much the steps of each pair differ, shape (pairs, moves, steps).
        usual_ns: a usual step of each pair.
    """
    most_ns = (DRIFT * usual_ns)[:, None]
    drift = np.clip(np.nan_to_num(median(level_ns)), -most_ns, most_ns)
    enough = _count(level_ns) >= _FEW
    noisy = ((mean + most_ns**2, count) for mean, count in _means(level_ns**2))
    steady = (
        (mean, np.where(enough & (count > 0), count - 1, 0))
        for mean, count in _means((level_ns - drift[..., None]) ** 2)
    )
    return *noisy, *steady


def _chances(*sides: tuple[Floats, Floats]) -> tuple[Floats, Floats, Ints]:
    """Return how steps of one rank differ from each other; see :class:`Look`.

    Ranks that wait for each other vary alike, so they count as one, the one that varies less.

    Args:
        sides: how far steps of each rank are from one another; see :func:`_apart`.
    """
    found = []
    for own in sides:
        steps = own[0].shape[1]
        upper = np.triu(np.ones((steps, steps), bool), 1)
        lags = [_of_moves(part, np.arange(1, steps)) for part in own]
        any_two = [part[:, None, upper] for part in own]
        count = np.concatenate([_count(part[0]) for part in (any_two, lags)], axis=1)
        means = [
            np.concatenate([_kept_mean(part[at] ** (2 - at)) for part in (any_two, lags)], axis=1)
            for at in (0, 1)
        ]
        # Few steps that far apart tell no pattern.
        few = count < _FEW
        few[:, :1] = False
        found.append((*(np.where(few, mean[:, :1], mean) for mean in means), count, few))
    (level, inner, count, few), (others, within, number, lacking) = found
    steps = _count(sides[0][0].diagonal(axis1=1, axis2=2))[:, None]
    rows = np.minimum(np.maximum(count, number), steps)
    rows = np.where(few | lacking, rows[:, :1], rows)
    none = rows == 0
    return (
        np.where(none, np.inf, np.minimum(level, others)),
        np.where(none, np.inf, np.minimum(inner, within)),
        rows,
    )


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
    valid = count >= np.maximum(count.max(axis=(1, 2), keepdims=True, initial=0.0) / 4, 1.0)
    return np.where(valid, level, np.nan), np.where(valid, within, np.nan)


def _of_moves(apart: Floats, moves: Ints) -> Floats:
    """Return those of the steps that stand beside each other, shape (pairs, moves, steps)."""
    own, other, inside = _beside(apart, moves)
    return np.where(inside, apart[:, own, other], np.nan)


def _beside(apart: Floats, moves: Ints) -> tuple[Ints, Ints, Bools]:
    """Return which steps stand beside each other, shape (moves, steps), and whether both exist."""
    own = np.broadcast_to(np.arange(apart.shape[1]), (len(moves), apart.shape[1]))
    other = own - moves[:, None]
    inside = (other >= 0) & (other < apart.shape[2])
    return own, np.where(inside, other, 0), inside


def _count(values: Floats) -> Ints:
    """Return how many values there are along the last axis; NaN stands for none."""
    return np.asarray(np.count_nonzero(~np.isnan(values), axis=-1), np.int64)


def median(values: Floats) -> Floats:
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
