"""Shifts: by how many iterations one rank's capture begins later than another's, on one clock.

Ranks of one machine share a clock, and there a wrong shift breaks data dependencies; so do those of
machines whose clocks were set against each other by :mod:`bubbleviz.align.iteration_links`.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.bounds.clock_segments import Floats
from bubbleviz.align.common_events import CommonEvents, common_events
from bubbleviz.align.iteration_histories import Histories, Overlaps
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, groups_of, rows_by_value

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
