"""Possible shifts: every way to pair the iterations of two ranks, and what speaks for it but fits.

Of many pairs of ranks at once, those that have as many iterations, and of all shifts of each.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bubbleviz.align.common_events import CommonEvents, common_events
from bubbleviz.align.iteration_fits import (
    Chance,
    Fit,
    Histories,
    Overlaps,
    Samples,
    Variation,
    fits_of,
    steps_of,
    usual_steps,
    variation_of,
)
from bubbleviz.align.offsets import DRIFT, GRAIN_NS
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import distinct, groups_of, rows_by_value
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


# Shifts: by how many iterations one rank's capture begins later than another's, on one clock.
#
# Ranks of one machine share a clock, and there a wrong shift breaks data dependencies; so do
# those of
# machines whose clocks were set against each other by :mod:`bubbleviz.align.possible_shifts`.


#: By how many iterations more than their counts differ two captures may be moved.
_MOVES = 2


def shifts(histories: Histories, first: Ints, second: Ints, by_ns: Ints) -> list[int | None]:
    """Return the differences of the iteration numbers, those of a less those of b; None unknown.

    Every microbatch's F ends upstream before it ends downstream, and its B likewise the other way
    (ends, since a span may begin with kernels that need no input).

    Args:
        histories: of all ranks.
        first: a rank of each pair.
        second: one that passes microbatches to it or gets them from it.
        by_ns: what is added to the clock of the second, so that both are on one.
    """
    found: list[int | None] = [None] * len(first)
    for pairs, events in common_events(histories, first, second, by_ns):
        a, b = first[pairs], second[pairs]
        length_ns = histories.length_ns[a]
        counts = histories.counts[a[0]], histories.counts[b[0]]
        in_order = np.zeros(len(pairs), bool)
        if counts[0] == counts[1] > 0:
            # Mostly the first guess is right.
            costs = _costs(events, Overlaps.of(np.zeros(1, np.int64), *counts))[:, 0]
            in_order = costs <= length_ns // 4
        for pair in pairs[in_order].tolist():
            found[pair] = 0
        rest = np.flatnonzero(~in_order)
        if len(rest) == 0:
            continue
        starts = histories.starts(a[rest]), histories.starts(b[rest]) + by_ns[pairs[rest], None]
        candidates = [_candidates(*own) for own in zip(*starts, strict=True)]
        moves = distinct(np.array([m for own in candidates for m in own], np.int64))
        costs = _costs(events.take(rest), Overlaps.of(moves, *counts))
        place = {move: at for at, move in enumerate(moves.tolist())}
        for pair, own, row, length in zip(
            pairs[rest].tolist(), candidates, costs, length_ns[rest].tolist(), strict=True
        ):
            known = {move: float(row[place[move]]) for move in own}
            known = {move: cost for move, cost in known.items() if not np.isnan(cost)}
            found[pair] = _least_broken(known, bool(counts[0] == counts[1]), length)
    return found


def _costs(events: CommonEvents, overlaps: Overlaps) -> Floats:
    """Return how much moves break, shape (pairs, moves); NaN where nothing shows it."""
    least, most = events.loose_bounds(overlaps)
    known = np.isfinite(least) | np.isfinite(most)
    return np.where(known, np.maximum(np.maximum(least, -most), 0.0), np.nan)


def _least_broken(costs: dict[int, float], equal: bool, length_ns: int) -> int | None:
    """Return the shift that breaks least.

    Equal counts pair by order where that breaks little. Else it is the smallest that breaks
    nothing, or the single one that breaks least, and less than half an iteration.
    """
    if equal and 0 in costs and costs[0] <= length_ns // 4:
        return 0
    if not costs:
        return None
    best = min(costs.values())
    cheapest = [move for move, cost in costs.items() if cost == best]
    if best > 0 and (len(cheapest) > 1 or best > length_ns // 2):
        return 0 if equal and 0 in cheapest else None
    return cheapest[0]


def shifts_beside(histories: Histories, first: Ints, second: Ints, by_ns: Ints) -> list[int | None]:
    """Return the same for ranks that do not wait for each other, as replicas of a pipeline.

    They step together, so their iterations start at about the same time.
    """
    found: list[int | None] = [None] * len(first)
    counts = histories.counts
    for _, pairs in rows_by_value(groups_of(counts[first], counts[second]).of_row):
        a, b = first[pairs], second[pairs]
        starts = histories.starts(a), histories.starts(b) + by_ns[pairs, None]
        length_ns = histories.length_ns[a]
        in_order = np.zeros(len(pairs), bool)
        if counts[a[0]] == counts[b[0]] > 0:
            apart_ns = np.median(np.abs(starts[0] - starts[1]), axis=1).astype(np.int64)
            in_order = apart_ns <= length_ns // 4
        for place, (pair, ordered) in enumerate(
            zip(pairs.tolist(), in_order.tolist(), strict=True)
        ):
            own = starts[0][place], starts[1][place]
            found[pair] = 0 if ordered else _beside(*own, int(length_ns[place]))
    return found


def _beside(a_ns: Ints, b_ns: Ints, length_ns: int) -> int | None:
    """Return the shift of two ranks by when their iterations start."""
    away = {}
    for move in _candidates(a_ns, b_ns):
        low, high = max(0, move), min(len(a_ns), len(b_ns) + move)
        if high > low:
            apart = np.abs(a_ns[low:high] - b_ns[low - move : high - move])
            away[move] = int(np.median(apart))
    near = [move for move, distance in away.items() if distance <= length_ns // 4]
    if len(near) == 1:
        return near[0]
    # Nothing else is possible for replicas that are not in step.
    in_order = 0 in near or (not near and bool(away))
    return 0 if len(a_ns) == len(b_ns) and in_order else None


def _candidates(a_ns: Ints, b_ns: Ints) -> list[int]:
    """Return the shifts to try, small ones first, of ranks whose iterations start at these times.

    They leave at least half of the iterations, or lie about where the clock puts the captures.
    """
    count_a, count_b = len(a_ns), len(b_ns)
    most = abs(count_a - count_b) + _MOVES
    moves = {
        move
        for move in range(-most, most + 1)
        if 2 * (min(count_a, count_b + move) - max(0, move)) >= min(count_a, count_b)
    }
    if count_a and count_b:
        for place in (0, count_b - 1):
            at = int(np.searchsorted(a_ns, b_ns[place]))
            moves |= {at - place + step for step in range(-_MOVES, _MOVES + 1)}
    shared = (move for move in moves if min(count_a, count_b + move) > max(0, move))
    return sorted(shared, key=lambda move: (abs(move), move))


# Links: which iterations of two machines are the same, by all that speaks for it.
#
# Two machines have two clocks, which agree to what NTP leaves over, or not at all. So every shift
# of their iterations is weighed against every other one, in nats (factors of e in likelihood):
#
# - how well the lengths of iterations agree, event by event (see ``align.iteration_fits``),
# - whether any offset of the clocks satisfies the data dependencies,
# - whether iterations that it pairs ran as many forwards and backwards,
# - whether a capture had begun long before its first iteration, or went on long after its last one,
#   where the shift says that it should hold others,
# - that captures mostly hold the same iterations,
# - how far the clocks would be apart.


#: A shift is used if it is that much likelier than every other one.
DECIDED = 7.0
#: What speaks against captures that have no iteration in common.
_ELSEWHERE = 5.0
#: So many shifts are weighed against the best one.
_WEIGHED = 64
#: Numbers that are worked on at once, of pairs of replicas.
_AT_ONCE = 1 << 19


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


def links(
    histories: Histories, first: Ints, second: Ints, *, beside: Bools, timed: Bools
) -> list[Link]:
    """Return the shifts between the iterations of pairs of ranks, each of two machines.

    Args:
        histories: of all ranks.
        first: a rank of each pair.
        second: one that passes microbatches to it or gets them from it, or a replica of it.
        beside: whether it is a replica, which steps together with it but waits for no microbatch.
        timed: whether the UTC of both is known.
    """
    found: dict[int, Link] = {}
    pairs = np.flatnonzero(~beside)
    for own, events in common_events(
        histories, first[pairs], second[pairs], np.zeros(len(pairs), np.int64)
    ):
        at = pairs[own]
        table = RankPairs(histories, first[at], second[at], timed[at], events)
        found.update(zip(at.tolist(), _links(table), strict=True))
    pairs = np.flatnonzero(beside)
    counts = histories.counts
    for _, own in rows_by_value(groups_of(counts[first[pairs]], counts[second[pairs]]).of_row):
        each = int(counts[first[pairs[own[0]]]] + counts[second[pairs[own[0]]]]) ** 2
        size = max(1, _AT_ONCE // max(each, 1))
        for low in range(0, len(own), size):
            at = pairs[own[low : low + size]]
            table = RankPairs(histories, first[at], second[at], timed[at], None)
            found.update(zip(at.tolist(), _links(table), strict=True))
    return [found[pair] for pair in range(len(first))]


def _links(pairs: RankPairs) -> list[Link]:
    """Return the link of each pair."""
    moves = possible_moves(*pairs.counts)
    count = len(pairs.timed)
    if len(moves) == 0:
        return [Link(None, None, 0.0, 0.0)] * count
    shifts = possible_shifts(pairs, moves)
    prior = np.where(shifts.possible, shifts.prior, -np.inf)
    looks = _looks(pairs, moves)
    alone = _fit(look.alone() for look in looks)
    likely = alone + prior
    most = likely.max(axis=1)
    best = np.where(likely == most[:, None], np.abs(moves), np.iinfo(np.int64).max).argmin(axis=1)
    rows = np.arange(count)
    lags = np.abs(moves - moves[best][:, None])
    fits = _fit(look.best(best, lags) for look in looks) - _fit(look.others(lags) for look in looks)
    # Those that are worth weighing, the likeliest first.
    order = np.argsort(-likely, axis=1, kind="stable")[:, :_WEIGHED]
    weighed = np.take_along_axis(shifts.possible, order, axis=1) & (order != best[:, None])
    margins = fits + prior[rows, best][:, None] - np.where(shifts.possible, prior, 0.0)
    margins = np.where(weighed, np.take_along_axis(margins, order, axis=1), np.inf)
    rival = order[rows, margins.argmin(axis=1)]
    margin = margins.min(axis=1)
    any_shift = np.asarray(shifts.possible.any(axis=1), bool)
    nearest = np.where(shifts.possible, -shifts.utc, -np.inf).max(axis=1)
    elsewhere = np.where(any_shift, nearest, 0.0) - _ELSEWHERE
    alone_margin = most - elsewhere
    found = []
    for row in rows.tolist():
        if not any_shift[row]:
            found.append(Link(None, None, 0.0, 0.0))
            continue
        own, other = int(best[row]), int(rival[row])
        by_rival = margin[row] < alone_margin[row]
        found.append(
            Link(
                shifts.of(row, own),
                shifts.of(row, other) if by_rival else None,
                float(margin[row] if by_rival else alone_margin[row]),
                float(fits[row, other] if by_rival else alone[row, own]),
            )
        )
    return found


def _fit(found: Iterable[Floats]) -> Floats:
    """Return the evidence of fits by the best look at them."""
    looks = list(found)
    # The best of several looks is a little likelier by chance.
    best = np.maximum.reduce(looks) - float(np.log(len(looks)))
    return np.asarray(np.maximum(best, 0.0), np.float64)


@frozen
class _Look:
    """One way to compare the lengths of iterations of two ranks, of all pairs and moves.

    Attributes:
        variation: how much these vary on each.
        fit: how well they agree, shape (pairs, moves).
        chances: by how far apart steps are.
    """

    variation: Variation
    fit: Fit
    chances: Chance

    def alone(self) -> Floats:
        """Return the evidence for each move, whatever the right one is."""
        return self.variation.evidence(self.fit, self.variation.any_chance())

    def best(self, best: Ints, lags: Ints) -> Floats:
        """Return the evidence for the best move if the right one is so far away."""
        return self.variation.evidence(self.fit.of(best), self.chances.at(lags))

    def others(self, lags: Ints) -> Floats:
        """Return the evidence for each move if the right one is so far away."""
        return self.variation.evidence(self.fit, self.chances.at(lags))


def _looks(pairs: RankPairs, moves: Ints) -> list[_Look]:
    """Return the ways to compare the lengths of iterations.

    Ranks that wait for each other agree event by event, and best in those that waited least for
    anything else. Ranks that step together leave the collective before the Optimizer together, and
    replicas start the next iteration soon after.
    """
    events = pairs.events
    sides = [(pairs.optimizers[0][:, :, None], pairs.optimizers[1][:, :, None])]
    if events is None:
        sides.append((_whole(pairs, 0)[:, :, None], _whole(pairs, 1)[:, :, None]))
    elif events.known:
        sides.append((events.a_ns, events.b_ns))
    lags = int(np.ptp(moves)) + 1
    steps = Overlaps.of(moves, *(max(count - 1, 0) for count in pairs.counts))
    looks = []
    for times in sides:
        usual_ns = usual_steps(*times)
        one, other = (steps_of(side, usual_ns) for side in times)
        variation = variation_of(one, other, usual_ns)
        fit = variation.fit(*fits_of(one, other).rows(steps))
        looks.append(_Look(variation, fit, variation.chances(lags)))
    if events is not None and events.known:
        middle = middles(*events.bounds(Overlaps.of(moves, *pairs.counts)))
        variation, chances = looks[-1].variation, looks[-1].chances
        looks.append(_Look(variation, variation.fit(_differences(middle), None), chances))
    return looks


def _differences(values: Floats) -> Samples:
    """Return how much values differ from those before, along the last axis; NaN are left out."""
    steps = np.diff(values, axis=-1)
    return Samples(steps, ~np.isnan(steps))


def _whole(pairs: RankPairs, side: int) -> Floats:
    """Return when iterations start; NaN for a first one that is not like the second."""
    starts, shapes = pairs.starts[side].astype(np.float64), pairs.shapes[side]
    if starts.shape[1] > 1:
        starts[shapes[:, 0] != shapes[:, 1], 0] = np.nan
    return starts


def middles(least: Floats, most: Floats) -> Floats:
    """Return the middles of bounds; NaN where they are infinite."""
    known = np.isfinite(least) & np.isfinite(most)
    return (np.where(known, least, np.nan) + np.where(known, most, np.nan)) / 2
