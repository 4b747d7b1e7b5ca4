"""Possible shifts: every way to pair the iterations of two ranks, and what speaks for it but fits.

Of many pairs of ranks at once, those that have as many iterations, and of all shifts of each.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.bounds.clock_segments import DRIFT, Floats
from bubbleviz.align.bounds.offsets import GRAIN_NS
from bubbleviz.align.common_events import CommonEvents
from bubbleviz.align.iteration_histories import Histories, Overlaps
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.values import frozen

#: UTC clocks are seldom off by more, and may be off by seconds: so much speaks against that.
_UTC_NS, _UTC = 1e8, 4.0
#: What speaks for captures that hold as many iterations being of the same ones, and what more
#: does where no other shift brings their clocks closer together.
EQUAL, _EQUAL_IN_TIME = 3.0, 4.5
#: What speaks against a clock that was set once, and any number of times.
_SET, _SET_OFTEN = 6.0, 10.0
_SETTINGS = 2
#: What speaks against an iteration that a running capture does not hold.
_UNRECORDED = 15.0
#: What speaks against a pair of iterations of other operations, and against several.
_OTHER_SHAPE, _OTHER_SHAPES = 5.0, 15.0
#: Captures are moved by so many iterations.
_REACH = 256


@frozen
class Shift:
    """One way to pair the iterations of two ranks, and what speaks against it but fits.

    Attributes:
        move: the number of an iteration of the first rank less that of the second.
        offset_ns: what it adds to the second one's clock.
        utc: what UTC speaks against it.
        equal: what equal counts speak for it.
        settings: how often a clock would have been set during the capture, as no offset satisfies
            the data dependencies; counted up to ``_SETTINGS``.
        unrecorded: iterations that captures lack though they ran on.
        shapes: pairs of iterations of other operations.
    """

    move: int
    offset_ns: float
    utc: float
    equal: float
    settings: int
    unrecorded: int
    shapes: int


class RankPairs:
    """Pairs of ranks with as many iterations each; ``events`` is None for replicas."""

    def __init__(
        self,
        histories: Histories,
        first: Ints,
        second: Ints,
        timed: Bools,
        events: CommonEvents | None,
    ) -> None:
        self.timed, self.events = timed, events
        self.counts = int(histories.counts[first[0]]), int(histories.counts[second[0]])
        self.starts = histories.starts(first), histories.starts(second)
        self.optimizers = histories.optimizers(first), histories.optimizers(second)
        self.shapes = histories.shapes(first), histories.shapes(second)
        self.length_ns = histories.length_ns[first], histories.length_ns[second]
        recorded = histories.recorded_ns
        self.recorded_ns = (
            (recorded[0][first], recorded[1][first]),
            (recorded[0][second], recorded[1][second]),
        )


@frozen
class Shifts:
    """All shifts of pairs, shape (pairs, moves); see :class:`Shift`."""

    move: Ints
    possible: Bools
    offset_ns: Floats
    utc: Floats
    equal: Floats
    settings: Ints
    unrecorded: Ints
    shapes: Ints

    @property
    def prior(self) -> Floats:
        """What speaks for each, in nats."""
        prior = self.equal - self.utc
        prior -= np.minimum(_SET * self.settings, _SET_OFTEN)
        prior -= _UNRECORDED * self.unrecorded
        prior -= np.minimum(_OTHER_SHAPE * self.shapes, _OTHER_SHAPES)
        return prior

    def of(self, pair: int, place: int) -> Shift:
        """Return one of a pair."""
        at = pair, place
        return Shift(
            move=int(self.move[place]),
            offset_ns=float(self.offset_ns[at]),
            utc=float(self.utc[at]),
            equal=float(self.equal[at]),
            settings=int(self.settings[at]),
            unrecorded=int(self.unrecorded[at]),
            shapes=int(self.shapes[at]),
        )


def possible_shifts(pairs: RankPairs, moves: Ints) -> Shifts:
    """Return all shifts that leave an iteration in common."""
    count_a, count_b = pairs.counts
    overlaps = Overlaps.of(moves, count_a, count_b)
    starts = pairs.starts[0][:, overlaps.first], pairs.starts[1][:, overlaps.second]
    shape = len(pairs.timed), len(moves)
    settings = np.zeros(shape, np.int64)
    if pairs.events is None:
        possible = np.ones(shape, bool)
        offset_ns = _medians(starts[0] - starts[1], overlaps.held)
    else:
        least, most = pairs.events.loose_bounds(overlaps)
        sides = np.isfinite(least), np.isfinite(most)
        possible = sides[0] | sides[1]
        total = np.where(sides[0], least, 0.0) + np.where(sides[1], most, 0.0)
        offset_ns = total / np.maximum(sides[0].astype(np.int64) + sides[1], 1)
        settings = _settings(starts[0], overlaps.held, *pairs.events.bounds(overlaps))
    utc = np.where(pairs.timed[:, None], np.log1p((offset_ns / _UTC_NS) ** 2), 0.0)
    own, other = _inner(pairs.shapes[0])[:, overlaps.first], _inner(pairs.shapes[1])
    other = other[:, overlaps.second]
    differ = (own != other) & (own >= 0) & (other >= 0) & overlaps.held
    equal = np.where(possible & (moves == 0) & (count_a == count_b), EQUAL, 0.0)
    away = np.where(possible, np.abs(offset_ns), np.inf)
    nearest = away.min(axis=1)[:, None]
    in_time = pairs.timed[:, None] & (equal > 0) & (away == nearest)
    return Shifts(
        move=moves,
        possible=possible,
        offset_ns=offset_ns,
        utc=np.minimum(utc, _UTC),
        equal=equal + np.where(in_time, _EQUAL_IN_TIME, 0.0),
        settings=settings,
        unrecorded=_unrecorded(pairs, moves, 0) + _unrecorded(pairs, -moves, 1),
        shapes=np.count_nonzero(differ, axis=2),
    )


def _medians(values: Ints, held: Bools) -> Floats:
    """Return the median of those that are held, along the last axis: at least one."""
    ordered = np.sort(np.where(held, values, np.iinfo(np.int64).max), axis=2)
    count = np.count_nonzero(held, axis=1)
    every = np.arange(len(count))
    ends = [ordered[:, every, at].astype(np.float64) for at in ((count - 1) // 2, count // 2)]
    return np.asarray((ends[0] + ends[1]) / 2, np.float64)


def _inner(shapes: Ints) -> Ints:
    """Return shapes of iterations; -1 where a capture may have cut them."""
    inner = shapes.copy()
    inner[:, :1] = inner[:, -1:] = -1
    return inner


def possible_moves(count_a: int, count_b: int) -> Ints:
    """Return the shifts that leave an iteration in common; of very many those nearest to 0."""
    if min(count_a, count_b) == 0:
        return np.empty(0, np.int64)
    return np.arange(max(1 - count_b, -_REACH), min(count_a, _REACH + 1))


def _settings(start_ns: Ints, held: Bools, least: Floats, most: Floats) -> Ints:
    """Return how often a clock would have been set, so that each iteration keeps to its bounds.

    Clocks may drift in between.

    Args:
        start_ns: of iterations, shape (pairs, moves, iterations).
        held: which of them there are, by move.
        least: the least to add to the second clock in each, and the most.
        most: see there.
    """
    shape = start_ns.shape[:2]
    times = np.zeros(shape, np.int64)
    low, high, before = np.full(shape, -np.inf), np.full(shape, np.inf), np.zeros(shape, np.int64)
    for step in range(start_ns.shape[2]):
        now, under, over = start_ns[:, :, step], least[:, :, step], most[:, :, step]
        drift_ns = DRIFT * (now - before)
        low, high, before = (
            np.maximum(low - drift_ns, under),
            np.minimum(high + drift_ns, over),
            now,
        )
        broken = (low > high + GRAIN_NS) & held[:, step] & (times < _SETTINGS)
        if broken.any():
            times += broken
            sound = under <= over
            low = np.where(broken, np.where(sound, under, -np.inf), low)
            high = np.where(broken, np.where(sound, over, np.inf), high)
    return times


def _unrecorded(pairs: RankPairs, moves: Ints, side: int) -> Ints:
    """Return how many sides of b's capture lack an iteration of a that it would have recorded.

    Args:
        pairs: of ranks.
        moves: of b against a.
        side: which of the two ranks a is.
    """
    a_ns, b_ns = pairs.starts[side], pairs.starts[1 - side]
    begun_ns, ended_ns = (times[:, None] for times in pairs.recorded_ns[1 - side])
    margin_ns = pairs.length_ns[side][:, None] // 2
    step_ns = np.diff(a_ns, axis=1)
    if step_ns.shape[1] == 0:
        return np.zeros((len(a_ns), len(moves)), np.int64)
    most = step_ns.shape[1] - 1
    before, last = moves - 1, b_ns.shape[1] - 1 + moves
    begins_ns = b_ns[:, :1] - step_ns[:, np.clip(before, 0, most)]
    lacking = (moves > 0) & (begun_ns < begins_ns - margin_ns)
    begins_ns = b_ns[:, -1:] + step_ns[:, np.clip(last, 0, most)]
    behind = (last + 1 < a_ns.shape[1]) & (ended_ns > begins_ns + margin_ns)
    return np.asarray(lacking.astype(np.int64) + behind, np.int64)
