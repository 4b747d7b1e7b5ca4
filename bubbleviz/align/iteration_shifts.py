"""Shifts: by how many iterations one rank's capture begins later than another's, on one clock.

Ranks of one machine share a clock, and there a wrong shift breaks data dependencies; so do those of
machines whose clocks were set against each other by :mod:`bubbleviz.align.iteration_links`.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.iteration_histories import RankHistory, common_events

#: By how many iterations more than their counts differ two captures may be moved.
_MOVES = 2


def shift(a: RankHistory, b: RankHistory) -> int | None:
    """Return the difference of the iteration numbers, those of a less those of b; None unknown.

    Every microbatch's F ends upstream before it ends downstream, and its B likewise the other way
    (ends, since a span may begin with kernels that need no input).

    Args:
        a: a rank.
        b: one that passes microbatches to it or gets them from it, on the same clock.
    """
    events = common_events(a, b)
    costs = {}
    for move in _candidates(a, b):
        least, most = events.loose_bounds(move)
        if np.isfinite(least) or np.isfinite(most):
            costs[move] = max(least, -most, 0.0)
    return _least_broken(costs, len(a.start_ns) == len(b.start_ns), a.length_ns)


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


def shift_beside(a: RankHistory, b: RankHistory) -> int | None:
    """Return the same for ranks that do not wait for each other, as replicas of a pipeline.

    They step together, so their iterations start at about the same time.
    """
    away = {}
    for move in _candidates(a, b):
        low, high = max(0, move), min(len(a.start_ns), len(b.start_ns) + move)
        if high > low:
            apart = np.abs(a.start_ns[low:high] - b.start_ns[low - move : high - move])
            away[move] = int(np.median(apart))
    near = [move for move, distance in away.items() if distance <= a.length_ns // 4]
    if len(near) == 1:
        return near[0]
    # Nothing else is possible for replicas that are not in step.
    in_order = 0 in near or (not near and bool(away))
    return 0 if len(a.start_ns) == len(b.start_ns) and in_order else None


def _candidates(a: RankHistory, b: RankHistory) -> list[int]:
    """Return the shifts to try, small ones first.

    They leave at least half of the iterations, or lie about where the clock puts the captures.
    """
    count_a, count_b = len(a.start_ns), len(b.start_ns)
    most = abs(count_a - count_b) + _MOVES
    moves = {
        move
        for move in range(-most, most + 1)
        if 2 * (min(count_a, count_b + move) - max(0, move)) >= min(count_a, count_b)
    }
    if count_a and count_b:
        for place in (0, count_b - 1):
            at = int(np.searchsorted(a.start_ns, b.start_ns[place]))
            moves |= {at - place + step for step in range(-_MOVES, _MOVES + 1)}
    shared = (move for move in moves if min(count_a, count_b + move) > max(0, move))
    return sorted(shared, key=lambda move: (abs(move), move))
