"""Possible shifts: every way to pair the iterations of two ranks, and what speaks for it.

Ranks of a pipeline wait for each other: every F on the upstream one of two ends before the other's
input is there, and every B likewise the other way. Replicas step together. Pairs of ranks that have
as many iterations and events are one table, so that what is asked of them is asked of all together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.histories import CommonEvents, Histories, batches, moved
from bubbleviz.align.iteration_fits import Look, looks, median
from bubbleviz.align.offsets import DRIFT, GRAIN_NS
from bubbleviz.model.columns import Bools, Floats, Ints

#: UTC clocks are seldom off by more, and may be off by seconds: so much speaks against that.
_UTC_NS, _UTC = 1e8, 4.0
#: What speaks for captures that hold as many iterations being of the same ones, and what more
#: does where no other shift brings their clocks closer together.
_EQUAL, _EQUAL_IN_TIME = 3.0, 4.5
#: What speaks against a clock that was set.
_SET = 6.0
#: What speaks against an iteration that a running capture does not hold.
_UNRECORDED = 15.0
#: What speaks against a pair of iterations of other operations, and against several.
_OTHER_SHAPE, _OTHER_SHAPES = 5.0, 15.0
#: Captures are moved by so many iterations.
_REACH = 256


@dataclass(frozen=True)
class Shift:
    """One way to pair the iterations of two ranks.

    Attributes:
        move: the number of an iteration of the first rank less that of the second.
        offset_ns: what it adds to the second one's clock.
    """

    move: int
    offset_ns: float


def _possible_shifts(
    histories: Histories,
    pair: tuple[Ints, Ints],
    timed: Bools,
    events: CommonEvents | None,
    moves: Ints,
) -> tuple[Floats, Floats, Floats]:
    """Return by how much moves of pairs of ranks move clocks, and what speaks for each, in nats.

    All but how well they fit, -infinite of impossible ones. What UTC speaks against it comes third.

    Args:
        histories: of all ranks.
        pair: the ranks of each pair.
        timed: whether the UTC of both is known.
        events: of the pairs; None for replicas.
        moves: of the second ones' iterations.
    """
    starts = histories.start_ns[pair[0]], histories.start_ns[pair[1]]
    against = np.zeros((len(timed), len(moves)))
    if events is None:
        offset_ns = median(starts[0][:, None] - moved(starts[1], moves))
        possible = ~np.isnan(offset_ns)
    else:
        least, most = events.loose_bounds(moves)
        sides = np.isfinite(least), np.isfinite(most)
        possible = sides[0] | sides[1]
        total = np.where(sides[0], least, 0.0) + np.where(sides[1], most, 0.0)
        offset_ns = total / np.maximum(sides[0].astype(np.int64) + sides[1], 1)
        against += _SET * _is_set(starts[0], *events.bounds(moves))
    utc = np.where(timed[:, None], np.log1p((offset_ns / _UTC_NS) ** 2), 0.0)
    utc = np.minimum(utc, _UTC)
    own = histories.shapes[pair[0]][:, None]
    other = moved(histories.shapes[pair[1]], moves)
    differ = (own != other) & ~np.isnan(own) & ~np.isnan(other)
    against += np.minimum(_OTHER_SHAPE * np.count_nonzero(differ, axis=2), _OTHER_SHAPES)
    # Rare ones, as evaluations are, seldom pair by chance.
    often = np.count_nonzero(own.swapaxes(1, 2) == own, axis=2)
    known = np.count_nonzero(~np.isnan(own), axis=2)
    rarity = np.log(np.maximum(known, 1) / np.maximum(often, 1))
    for_it = np.where(own == other, rarity[:, None], 0.0).sum(axis=2)
    unrecorded = _unrecorded(histories, *pair, moves) + _unrecorded(histories, *pair[::-1], -moves)
    against += _UNRECORDED * unrecorded
    counts = histories.counts
    alike = counts[pair[0]] == counts[pair[1]]
    equal = possible & (moves == 0) & alike[:, None]
    away = np.where(possible, np.abs(offset_ns), np.inf)
    in_time = timed[:, None] & equal & (away == away.min(axis=1)[:, None])
    prior = _EQUAL * equal + _EQUAL_IN_TIME * in_time + for_it - utc - against
    return offset_ns, np.where(possible, prior, -np.inf), utc


def _is_set(start_ns: Floats, least: Floats, most: Floats) -> Bools:
    """Return where no offset satisfies the bounds of all iterations, though clocks may drift.

    Args:
        start_ns: of iterations, shape (pairs, iterations).
        least: the least to add to the second clock in each, shape (pairs, moves, iterations).
        most: the most.
    """
    drift_ns = DRIFT * (np.fmax.accumulate(start_ns, axis=1) - start_ns[:, :1])[:, None]
    least = np.maximum.accumulate(least + drift_ns, axis=2) - drift_ns
    most = np.minimum.accumulate(most - drift_ns, axis=2) + drift_ns
    return np.asarray((least > most + GRAIN_NS).any(axis=2), bool)


def _unrecorded(histories: Histories, a: Ints, b: Ints, moves: Ints) -> Ints:
    """Return how many sides of b's capture lack an iteration of a that it would have recorded.

    Args:
        histories: of all ranks.
        a: a rank of each pair.
        b: the other.
        moves: of b against a.
    """
    starts, last = histories.start_ns[b], histories.counts[b] - 1
    # From each iteration to the next, and none before the first and behind the last.
    step_ns = np.pad(
        np.diff(histories.start_ns[a], axis=1), ((0, 0), (1, 1)), constant_values=np.nan
    )
    rows, most = np.arange(len(a))[:, None], step_ns.shape[1] - 1
    margin_ns = histories.length_ns[a][:, None] / 2
    ends = ((moves, starts[:, :1], -1), (last[:, None] + 1 + moves, starts[rows, last[:, None]], 1))
    begun_ns, ended_ns = (times[b][:, None] for times in histories.recorded_ns)
    before, behind = (
        at_ns + side * step_ns[rows, np.clip(place, 0, most)] for place, at_ns, side in ends
    )
    lacking = (begun_ns < before - margin_ns).astype(np.int64)
    return np.asarray(lacking + (ended_ns > behind + margin_ns), np.int64)


# Shifts: by how many iterations one rank's capture begins later than another's, on one clock.
#
# Ranks of one machine share a clock, and there a wrong shift breaks data dependencies; so do those
# of machines whose clocks were set against each other by links.


def shifts(
    histories: Histories, first: Ints, second: Ints, by_ns: Ints, beside: Bools
) -> list[int | None]:
    """Return the differences of the iteration numbers, those of a less those of b; None unknown.

    Every microbatch's F ends upstream before it ends downstream, and its B likewise the other way
    (ends, since a span may begin with kernels that need no input). Replicas step together, so
    their iterations start at about the same time.

    Args:
        histories: of all ranks.
        first: a rank of each pair.
        second: one that passes microbatches to it or gets them from it, or a replica of it.
        by_ns: what is added to the clock of the second, so that both are on one.
        beside: whether it is a replica.
    """
    found: list[int | None] = [None] * len(first)
    for pairs, events in batches(histories, first, second, by_ns, beside):
        one, other = first[pairs], second[pairs]
        starts = histories.start_ns[one], histories.start_ns[other] + by_ns[pairs, None]
        most_ns = histories.length_ns[one] // 4
        counts = histories.counts
        equal = counts[one] == counts[other]
        # Mostly the first guess is right.
        still = np.zeros(1, np.int64)
        in_order = equal & (_costs(starts, events, still)[:, 0] <= most_ns)
        for pair in pairs[in_order].tolist():
            found[pair] = 0
        rest = np.flatnonzero(~in_order)
        if len(rest) == 0:
            continue
        moves = _moves(histories)
        starts = starts[0][rest], starts[1][rest]
        costs = _costs(starts, events and events.take(rest), moves)
        for at, row in zip(rest.tolist(), costs, strict=True):
            least = np.nanmin(row, initial=np.inf)
            cheapest = moves[row == least]
            if least == 0 or (len(cheapest) == 1 and least <= most_ns[at]):
                found[int(pairs[at])] = int(cheapest[0])
            elif equal[at] and counts[one[at]] and (events is None or 0 in cheapest):
                # Nothing else is possible for replicas that are not in step.
                found[int(pairs[at])] = 0
    return found


def _moves(histories: Histories) -> Ints:
    """Return the moves that leave iterations in common, small ones first, not too far ones."""
    most = min(histories.start_ns.shape[1] - 1, _REACH)
    moves = np.arange(-most, most + 1)
    return moves[np.argsort(np.abs(moves), kind="stable")]


def _costs(starts: tuple[Floats, Floats], events: CommonEvents | None, moves: Ints) -> Floats:
    """Return how much moves break, or take replicas apart, shape (pairs, moves); NaN unknown."""
    if events is None:
        return np.floor(median(np.abs(starts[0][:, None] - moved(starts[1], moves))))
    least, most = events.loose_bounds(moves)
    known = np.isfinite(least) | np.isfinite(most)
    return np.where(known, np.maximum(np.maximum(least, -most), 0.0), np.nan)


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


@dataclass(frozen=True)
class Link:
    """The shift between the iterations of two ranks.

    Attributes:
        first: one of the ranks.
        second: the other.
        best: the likeliest shift; None if there is none.
        rival: the next best; None for captures without a common iteration.
        margin: how much likelier the best is, in nats.
        fit: how much of that the lengths of iterations are.
    """

    first: int
    second: int
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
    still = np.zeros(len(first), np.int64)
    for at, events in batches(histories, first, second, still, beside):
        own = _links(histories, (first[at], second[at]), timed[at], events)
        found.update(zip(at.tolist(), own, strict=True))
    return [found[pair] for pair in range(len(first))]


def _links(
    histories: Histories, pair: tuple[Ints, Ints], timed: Bools, events: CommonEvents | None
) -> list[Link]:
    """Return the link of each pair; the arguments are those of :func:`_possible_shifts`."""
    moves = _moves(histories)
    offset_ns, prior, utc = _possible_shifts(histories, pair, timed, events, moves)
    possible = np.isfinite(prior)
    ways = _looks(histories, pair, events, moves)
    every = np.arange(len(timed))
    alone = _by_best(look.evidence() for look in ways)
    likely = alone + prior
    best = likely.argmax(axis=1)
    lags = np.abs(moves - moves[best][:, None])
    lags = np.where(lags < histories.start_ns.shape[1] - 1, lags, 0)
    fit = _by_best(look.evidence(lags, best) for look in ways)
    fit = fit - _by_best(look.evidence(lags) for look in ways)
    most = np.where(possible.any(axis=1), prior[every, best], 0.0)
    margin = fit + most[:, None] - prior
    margin[every, best] = np.inf
    rival = margin.argmin(axis=1)
    # Or captures have no iteration in common.
    nearest = np.where(possible, utc, _UTC).min(axis=1)
    against_none = likely[every, best] + nearest + _ELSEWHERE
    by_rival = margin[every, rival] < against_none

    def shift(row: int, place: int) -> Shift:
        return Shift(int(moves[place]), float(offset_ns[row, place]))

    found = []
    for row, (a, b) in enumerate(zip(pair[0].tolist(), pair[1].tolist(), strict=True)):
        if not possible[row].any():
            found.append(Link(a, b, None, None, 0.0, 0.0))
            continue
        one, other = int(best[row]), int(rival[row])
        found.append(
            Link(
                *(a, b, shift(row, one), shift(row, other) if by_rival[row] else None),
                float(min(margin[row, other], against_none[row])),
                float(fit[row, other] if by_rival[row] else alone[row, one]),
            )
        )
    return found


def _by_best(found: Iterable[Floats]) -> Floats:
    """Return the evidence of the best of several looks, which is a little likelier by chance."""
    looks = list(found)
    best = np.maximum.reduce(looks) - float(np.log(len(looks)))
    return np.asarray(np.maximum(best, 0.0), np.float64)


def _looks(
    histories: Histories, pair: tuple[Ints, Ints], events: CommonEvents | None, moves: Ints
) -> list[Look]:
    """Return the ways to compare the lengths of iterations.

    Ranks that wait for each other agree event by event, and best in those that waited least for
    anything else. Ranks that step together leave the collective before the Optimizer together, and
    replicas start the next iteration soon after.
    """

    def of_iterations(times_ns: Floats) -> list[Look]:
        one, other = (times_ns[ranks][:, :, None] for ranks in pair)
        return looks(one, other, moves)

    found = of_iterations(histories.optimizer_ns)
    if events is None:
        return found + of_iterations(histories.start_ns)
    if events.a_leads.shape[1]:
        found += looks(events.a_ns, events.b_ns, moves, events.bounds(moves))
    return found
