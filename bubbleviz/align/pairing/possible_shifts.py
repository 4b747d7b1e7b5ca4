"""Possible shifts: every way to pair the iterations of two ranks, and what speaks for it.

Ranks of a pipeline wait for each other: every F on the upstream one of two ends before the other's
input is there, and every B likewise the other way. Replicas step together. Pairs of ranks that have
as many iterations and events are one table, so that what is asked of them is asked of all together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.pairing.histories import CommonEvents, Histories, batches, moved
from bubbleviz.align.pairing.iteration_fits import nan_median
from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS
from bubbleviz.model.columns import Bools, Floats, Ints

#: UTC clocks are seldom off by more, and may be off by seconds: so much speaks against that.
_UTC_NS, MAX_UTC_EVIDENCE = 1e8, 4.0
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


def find_possible_shifts(
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
        offset_ns = nan_median(starts[0][:, None] - moved(starts[1], moves))
        possible = ~np.isnan(offset_ns)
    else:
        least, most = events.loose_bounds(moves)
        sides = np.isfinite(least), np.isfinite(most)
        possible = sides[0] | sides[1]
        total = np.where(sides[0], least, 0.0) + np.where(sides[1], most, 0.0)
        offset_ns = total / np.maximum(sides[0].astype(np.int64) + sides[1], 1)
        against += _SET * _is_set(starts[0], *events.bounds(moves))
    utc = np.where(timed[:, None], np.log1p((offset_ns / _UTC_NS) ** 2), 0.0)
    utc = np.minimum(utc, MAX_UTC_EVIDENCE)
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
        moves = list_moves(histories)
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


def list_moves(histories: Histories) -> Ints:
    """Return the moves that leave iterations in common, small ones first, not too far ones."""
    most = min(histories.start_ns.shape[1] - 1, _REACH)
    moves = np.arange(-most, most + 1)
    return moves[np.argsort(np.abs(moves), kind="stable")]


def _costs(starts: tuple[Floats, Floats], events: CommonEvents | None, moves: Ints) -> Floats:
    """Return how much moves break, or take replicas apart, shape (pairs, moves); NaN unknown."""
    if events is None:
        return np.floor(nan_median(np.abs(starts[0][:, None] - moved(starts[1], moves))))
    least, most = events.loose_bounds(moves)
    known = np.isfinite(least) | np.isfinite(most)
    return np.where(known, np.maximum(np.maximum(least, -most), 0.0), np.nan)


#: A shift is used if it is that much likelier than every other one.
DECIDED = 7.0
