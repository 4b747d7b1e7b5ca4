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

import numpy as np
import numpy.typing as npt

from bubbleviz.align.bounds.clock_segments import DRIFT, Floats
from bubbleviz.model.values import frozen

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
        step_ns: shape (iterations - 1, events); 0 where unknown.
        known: 1.0 where both iterations hold the event, else 0.0; the same shape.
    """

    step_ns: Floats
    known: Floats


def steps_of(times_ns: Floats, usual_ns: float) -> Steps:
    """Return the steps of events; NaN stands for events that are missing.

    Args:
        times_ns: shape (iterations, events).
        usual_ns: what is taken off all steps, so that little is lost to rounding.
    """
    step = np.diff(times_ns, axis=0) - usual_ns
    known = ~np.isnan(step)
    return Steps(np.where(known, step, 0.0), known.astype(np.float64))


@frozen
class Fits:
    """How far apart steps of two ranks are: each of one with each of the other.

    Attributes:
        level_ns: mean difference over the events, shape (steps of one, steps of the other).
        within: mean square of what the events differ beyond that; the same shape.
        valid: whether they have enough events in common.
    """

    level_ns: Floats
    within: Floats
    valid: npt.NDArray[np.bool_]

    def rows(self, shift: int) -> tuple[Floats, Floats]:
        """Return levels and mean squares of the pairs that a shift makes."""
        valid = self.valid.diagonal(-shift)
        return self.level_ns.diagonal(-shift)[valid], self.within.diagonal(-shift)[valid]

    def lags(self) -> tuple[Floats, Floats]:
        """Return the same of all pairs of different steps, where a rank is fitted to itself."""
        chosen = self.valid & np.triu(np.ones(self.valid.shape, bool), 1)
        return self.level_ns[chosen], self.within[chosen]


def fits_of(a: Steps, b: Steps) -> Fits:
    """Return how far the steps of a and of b are apart."""
    count = a.known @ b.known.T
    total = a.step_ns @ b.known.T - a.known @ b.step_ns.T
    squares = (a.step_ns**2) @ b.known.T + a.known @ (b.step_ns**2).T - 2 * a.step_ns @ b.step_ns.T
    level = total / np.maximum(count, 1.0)
    within = np.maximum(squares / np.maximum(count, 1.0) - level**2, 0.0)
    return Fits(level, within, count >= max(1.0, a.known.shape[1] / 4))


@frozen
class Fit:
    """How well pairs of steps agree.

    Attributes:
        levels: mean squares of what whole steps differ, and of how many each: with and without
            the worst, and with and without drift.
        within: the same of what events differ beyond that; empty where they are not compared.
    """

    levels: tuple[tuple[float, int], ...]
    within: tuple[tuple[float, int], ...]


@frozen
class Chance:
    """Mean squares by which steps differ where they are not the same, and of how many rows."""

    level: float
    within: float
    rows: int


@frozen
class Variation:
    """How much the steps of two ranks vary, each by itself.

    Attributes:
        own: fits of each rank's steps against its own.
        freedom: for how many independent numbers the events within a step stand.
        usual_ns: a usual step.
    """

    own: tuple[Fits, Fits]
    freedom: int
    usual_ns: float

    def fit(self, level: Floats, within: Floats) -> Fit:
        """Return how well pairs agree.

        Clocks that drift make all iterations of one rank longer: either the drift is taken off, or
        as much as there may be counts as noise.

        Args:
            level: by how much the steps of each pair differ, in ns.
            within: mean squares of what their events differ beyond that; empty where not compared.
        """
        if len(level) == 0:
            return Fit((), ())
        most_ns = DRIFT * self.usual_ns
        levels = [(mean + most_ns**2, count) for mean, count in _means(level**2)]
        if len(level) >= _FEW:
            drift = float(np.clip(np.median(level), -most_ns, most_ns))
            levels += [(mean, count - 1) for mean, count in _means((level - drift) ** 2)]
        return Fit(tuple(levels), tuple(_means(within)) if len(within) else ())

    def chance(self, lag: int | None) -> Chance:
        """Return how steps of one rank differ that are so far apart; None for any.

        Where a pattern repeats itself they hardly do. Few such pairs tell no pattern.
        """
        per_rank = [own.rows(lag) for own in self.own] if lag is not None else []
        if min((len(level) for level, _ in per_rank), default=0) < _FEW:
            per_rank = [own.lags() for own in self.own]
        per_rank = [part for part in per_rank if len(part[0])]
        if not per_rank:
            return Chance(0.0, 0.0, 0)
        # Ranks that wait for each other vary alike, so they count as one, the one that varies less.
        return Chance(
            min(_means(level**2)[-1][0] for level, _ in per_rank),
            min(_means(within)[-1][0] for _, within in per_rank),
            min(max(len(level) for level, _ in per_rank), len(self.own[0].level_ns)),
        )

    def evidence(self, fit: Fit, chance: Chance) -> float:
        """Return how unlikely it is, in nats, that pairs fit so well if they are the wrong ones.

        Wrong pairs are different iterations, and differ as those of one rank do. Where few
        iterations say how much their lengths vary, what events vary within them says it, too: what
        is early or late there adds up to them.
        """
        if not chance.rows or not fit.levels:
            return 0.0
        chances = [(chance.level, chance.rows)]
        if self.freedom:
            chances.append((min(chance.level, chance.within), self.freedom * chance.rows))
        parts = [
            max(
                _unlikely(square, by_chance, freedom, of_chance)
                for square, freedom in fit.levels
                for by_chance, of_chance in chances
            )
        ]
        if self.freedom and fit.within:
            of_chance = self.freedom * chance.rows
            parts.append(
                max(
                    _unlikely(square, chance.within, self.freedom * rows, of_chance)
                    for square, rows in fit.within
                )
            )
        parts = [max(part - _LOOKS, 0.0) for part in parts]
        total = sum(parts)
        # That both are by chance is likelier than the product of the two.
        return min(total - math.log1p(total) if len(parts) > 1 else total, _MOST)


def usual_step(*times_ns: Floats) -> float:
    """Return the median of all steps of events from iteration to iteration; 0 for none."""
    every = np.concatenate([np.diff(times, axis=0).reshape(-1) for times in times_ns])
    every = every[~np.isnan(every)]
    return float(np.median(every)) if len(every) else 0.0


def variation_of(a: Steps, b: Steps, usual_ns: float) -> Variation:
    """Return how much the steps of two ranks vary."""
    freedom = min(max(a.known.shape[1] - 1, 0), _WITHIN)
    return Variation((fits_of(a, a), fits_of(b, b)), freedom, usual_ns)


def _means(squares: Floats) -> list[tuple[float, int]]:
    """Return the mean of all, and that without the largest, two of many; and of how many each.

    A clock may have been set once.
    """
    count = len(squares)
    kept = count - (0 if count < _FEW else 1 if count < _MANY else 2)
    means = [(float(squares.sum()) / count, count)]
    if kept < count:
        means.append((float(np.sort(squares)[:kept].sum()) / kept, kept))
    return means


def _unlikely(square: float, chance: float, freedom: int, of_chance: int) -> float:
    """Return how unlikely so small a mean square is, in nats, where chance makes the other one.

    That is Fisher's F distribution.
    """
    from scipy.special import betainc

    grain = _GRAIN_NS**2
    ratio = freedom * (square + grain) / (of_chance * (chance + grain))
    likelihood = float(betainc(freedom / 2, of_chance / 2, ratio / (1 + ratio)))
    return min(-math.log(max(likelihood, 1e-300)), _MOST)
