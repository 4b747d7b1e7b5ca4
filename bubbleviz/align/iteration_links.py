"""Links: which iterations of two machines are the same, by all that speaks for it.

Two machines have two clocks, which agree to what NTP leaves over, or not at all. So every shift of
their iterations is weighed against every other one, in nats (a factor of e in likelihood each):

- how well the lengths of iterations agree, event by event (:mod:`bubbleviz.align.iteration_fits`),
- whether any offset of the clocks satisfies the data dependencies,
- whether iterations that it pairs ran as many forwards and backwards,
- whether a capture had begun long before its first iteration, or went on long after its last one,
  where the shift says that it should hold others,
- that captures mostly hold the same iterations,
- how far the clocks would be apart.
"""

from __future__ import annotations

from dataclasses import field, replace

import numpy as np

from bubbleviz.align.bounds.clock_segments import DRIFT, Floats
from bubbleviz.align.bounds.offsets import GRAIN_NS
from bubbleviz.align.iteration_fits import (
    Chance,
    Fit,
    Fits,
    Variation,
    fits_of,
    steps_of,
    usual_step,
    variation_of,
)
from bubbleviz.align.iteration_histories import CommonEvents, RankHistory, common_events
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen

#: A shift is used if it is that much likelier than every other one.
DECIDED = 7.0
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
#: What speaks against captures that have no iteration in common.
_ELSEWHERE = 5.0
#: So many shifts are weighed against the best one, and captures are moved by so many iterations.
_WEIGHED, _REACH = 64, 256


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

    @property
    def prior(self) -> float:
        """What speaks for it, in nats."""
        return (
            self.equal
            - self.utc
            - min(_SET * self.settings, _SET_OFTEN)
            - _UNRECORDED * self.unrecorded
            - min(_OTHER_SHAPE * self.shapes, _OTHER_SHAPES)
        )


@frozen
class Link:
    """The shift between the iterations of two ranks.

    Attributes:
        best: the likeliest shift; None if there is none.
        rival: the next best; None for captures without a common iteration.
        margin: how much likelier the best is, in nats.
        fit: how much of that the lengths of iterations are.
    """

    best: Shift | None
    rival: Shift | None
    margin: float
    fit: float

    @property
    def decided(self) -> bool:
        """Whether no other shift is possible."""
        return self.best is not None and self.margin >= DECIDED


def link(a: RankHistory, b: RankHistory, *, beside: bool, timed: bool) -> Link:
    """Return the shift between the iterations of two ranks of two machines.

    Args:
        a: a rank.
        b: one that passes microbatches to it or gets them from it, or a replica of it.
        beside: whether it is a replica, which steps together with it but waits for no microbatch.
        timed: whether the UTC of both is known.
    """
    events = None if beside else common_events(a, b)
    looks = _looks(a, b, events)
    shifts = _shifts(a, b, events, timed=timed)
    if not shifts:
        return Link(None, None, 0.0, 0.0)

    def fit(shift: Shift, against: Shift | None) -> float:
        lag = None if against is None else abs(shift.move - against.move)
        found = [look.evidence(shift.move, lag) for look in looks]
        # The best of several looks is a little likelier by chance.
        return max(max(found, default=0.0) - float(np.log(max(len(found), 1))), 0.0)

    alone = {shift.move: fit(shift, None) for shift in shifts}
    best = max(shifts, key=lambda shift: (alone[shift.move] + shift.prior, -abs(shift.move)))
    elsewhere = max(-shift.utc for shift in shifts) - _ELSEWHERE
    margin, rival, by_fit = alone[best.move] + best.prior - elsewhere, None, alone[best.move]
    for shift in _likeliest(shifts, alone):
        if shift is not best:
            fits = fit(best, shift) - fit(shift, best)
            if fits + best.prior - shift.prior < margin:
                margin, rival, by_fit = fits + best.prior - shift.prior, shift, fits
    return Link(best, rival, margin, by_fit)


def _likeliest(shifts: list[Shift], alone: dict[int, float]) -> list[Shift]:
    """Return those shifts that are worth weighing."""
    return sorted(shifts, key=lambda shift: -alone[shift.move] - shift.prior)[:_WEIGHED]


@frozen
class _Look:
    """One way to compare the lengths of two ranks' iterations.

    Attributes:
        variation: how much these vary on each.
        across: steps of one against steps of the other; None where ``events`` are compared.
        events: gives how far apart the clocks seem to be in each pair of iterations.
        fits: of shifts that were looked at.
        chances: of lags.
    """

    variation: Variation
    across: Fits | None
    events: CommonEvents | None
    fits: dict[int, Fit] = field(default_factory=dict)
    chances: dict[int | None, Chance] = field(default_factory=dict)

    def evidence(self, move: int, lag: int | None) -> float:
        """Return the evidence for a shift if the right one is so far away."""
        if move not in self.fits:
            self.fits[move] = self.variation.fit(*self._pairs(move))
        if lag not in self.chances:
            self.chances[lag] = self.variation.chance(lag)
        return self.variation.evidence(self.fits[move], self.chances[lag])

    def _pairs(self, move: int) -> tuple[Floats, Floats]:
        """Return by how much steps differ, and their events beyond that."""
        if self.across is not None:
            return self.across.rows(move)
        level = np.diff(middles(*self.events.bounds(move))) if self.events else np.empty(0)
        return level[~np.isnan(level)], np.empty(0)


def _looks(a: RankHistory, b: RankHistory, events: CommonEvents | None) -> list[_Look]:
    """Return the ways to compare the lengths of two ranks' iterations.

    Ranks that wait for each other agree event by event, and best in those that waited least for
    anything else. Ranks that step together leave the collective before the Optimizer together, and
    replicas start the next iteration soon after.
    """
    pairs = [(a.optimizer_ns[:, None], b.optimizer_ns[:, None])]
    if events is None:
        pairs.append((a.whole_start_ns[:, None], b.whole_start_ns[:, None]))
    elif len(events.a_leads):
        pairs.append((events.a_ns, events.b_ns))
    looks = []
    for times in pairs:
        usual_ns = usual_step(*times)
        one, other = (steps_of(side, usual_ns) for side in times)
        variation = variation_of(one, other, usual_ns)
        looks.append(_Look(variation, fits_of(one, other), None))
    if events is not None and len(events.a_leads):
        looks.append(_Look(looks[-1].variation, None, events))
    return looks


def middles(least: Floats, most: Floats) -> Floats:
    """Return the middles of bounds; NaN where they are infinite."""
    known = np.isfinite(least) & np.isfinite(most)
    return (np.where(known, least, np.nan) + np.where(known, most, np.nan)) / 2


def _shifts(
    a: RankHistory, b: RankHistory, events: CommonEvents | None, *, timed: bool
) -> list[Shift]:
    """Return all shifts that leave an iteration in common."""
    count_a, count_b = len(a.start_ns), len(b.start_ns)
    shapes_a, shapes_b = a.inner_shapes, b.inner_shapes
    found = []
    for move in _moves(count_a, count_b):
        low, high = max(0, move), min(count_a, count_b + move)
        starts = a.start_ns[low:high], b.start_ns[low - move : high - move]
        settings = 0
        if events is None:
            offset_ns = float(np.median(starts[0] - starts[1]))
        else:
            sides = [side for side in events.loose_bounds(move) if np.isfinite(side)]
            if not sides:
                continue
            offset_ns = sum(sides) / len(sides)
            settings = _settings(starts[0], *events.bounds(move))
        one, other = shapes_a[low:high], shapes_b[low - move : high - move]
        found.append(
            Shift(
                move=move,
                offset_ns=offset_ns,
                utc=min(float(np.log1p((offset_ns / _UTC_NS) ** 2)), _UTC) if timed else 0.0,
                equal=EQUAL if count_a == count_b and move == 0 else 0.0,
                settings=settings,
                unrecorded=_unrecorded(a, b, move) + _unrecorded(b, a, -move),
                shapes=int(((one != other) & (one >= 0) & (other >= 0)).sum()),
            )
        )
    nearest = min((abs(shift.offset_ns) for shift in found), default=0.0)
    return [
        replace(shift, equal=shift.equal + _EQUAL_IN_TIME)
        if timed and shift.equal and abs(shift.offset_ns) == nearest
        else shift
        for shift in found
    ]


def _moves(count_a: int, count_b: int) -> range:
    """Return the shifts that leave an iteration in common; of very many those nearest to 0."""
    if min(count_a, count_b) == 0:
        return range(0)
    return range(max(1 - count_b, -_REACH), min(count_a, _REACH + 1))


def _settings(start_ns: Ints, least: Floats, most: Floats) -> int:
    """Return how often a clock would have been set, so that each iteration keeps to its bounds.

    Clocks may drift in between.
    """
    times = 0
    low, high, before = -np.inf, np.inf, 0
    for now, under, over in zip(start_ns.tolist(), least.tolist(), most.tolist(), strict=True):
        drift_ns = DRIFT * (now - before)
        low, high, before = max(low - drift_ns, under), min(high + drift_ns, over), now
        if low > high + GRAIN_NS:
            times += 1
            low, high = (under, over) if under <= over else (-np.inf, np.inf)
        if times >= _SETTINGS:
            break
    return times


def _unrecorded(a: RankHistory, b: RankHistory, move: int) -> int:
    """Return how many sides of b's capture lack an iteration of a that it would have recorded."""
    margin_ns = a.length_ns // 2
    lacking = 0
    if move > 0:
        begins_ns = b.start_ns[0] - (a.start_ns[move] - a.start_ns[move - 1])
        lacking += int(b.recorded_ns[0] < begins_ns - margin_ns)
    last = len(b.start_ns) - 1 + move
    if last + 1 < len(a.start_ns):
        begins_ns = b.start_ns[-1] + (a.start_ns[last + 1] - a.start_ns[last])
        lacking += int(b.recorded_ns[1] > begins_ns + margin_ns)
    return lacking
