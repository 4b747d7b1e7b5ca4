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

from collections.abc import Iterable

import numpy as np

from bubbleviz.align.bounds.clock_segments import Floats
from bubbleviz.align.common_events import common_events
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
from bubbleviz.align.possible_shifts import RankPairs, Shift, possible_moves, possible_shifts
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import groups_of, rows_by_value
from bubbleviz.model.values import frozen

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
