"""Shifts: by how many iterations one rank's capture begins later than another's.

Ranks of one machine share a clock, and there a wrong shift breaks data dependencies. Ranks of two
machines have two clocks, which agree to what NTP leaves over: there any offset that satisfies the
dependencies will do, if it is small enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.columns import Ints, Table
from bubbleviz.model import Operations
from bubbleviz.offsets import GRAIN_NS
from bubbleviz.phases import Phase
from bubbleviz.stretches import DRIFT

#: By how many iterations more than their counts differ two captures may be moved.
_MOVES = 2
#: How far the UTC clocks of two machines may be apart.
NTP_NS = 100_000_000


@dataclass(frozen=True)
class Events(Table):
    """F and B of one rank with spans: which, and when they ended."""

    iteration: Ints
    microbatch: Ints
    virtual_stage: Ints
    is_backward: Ints
    end_ns: Ints

    def numbers(self, move: int) -> Ints:
        """Return one number for (iteration + move, microbatch, is_backward)."""
        number: Ints = (self.iteration + move + (1 << 20)) << 32
        return number | (self.microbatch + 1) << 1 | self.is_backward


@dataclass(frozen=True)
class Track:
    """One rank through its iterations.

    Attributes:
        events: its F and B.
        start_ns: when each of its iterations starts.
        length_ns: of a typical iteration.
    """

    events: Events
    start_ns: Ints
    length_ns: int


def track_of(operations: Operations, virtual_stage: Ints) -> Track:
    """Return the track of the one rank whose operations these are."""
    spanned = (operations.has_span == 1) & (operations.iteration >= 0)
    count = int(operations.iteration.max(initial=-1)) + 1
    starts: Ints = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(starts, operations.iteration[spanned], operations.start_ns[spanned])
    # An iteration without any span starts with the next one that has.
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    length_ns = 0
    if spanned.any():
        span = int(operations.end_ns[spanned].max()) - int(operations.start_ns[spanned].min())
        length_ns = span // count
    rows = np.flatnonzero(
        spanned
        & np.isin(operations.phase, (Phase.F, Phase.B, Phase.BW))
        & (operations.occurrence == 0)
        & (virtual_stage >= 0)
    )
    events = Events(
        iteration=operations.iteration[rows],
        microbatch=operations.microbatch[rows],
        virtual_stage=virtual_stage[rows],
        is_backward=(operations.phase[rows] != Phase.F).astype(np.int64),
        end_ns=operations.end_ns[rows],
    )
    return Track(events, starts, length_ns)


def shift(a: Track, b: Track, *, one_clock: bool) -> int | None:
    """Return what to add to the iteration numbers of b to get those of a; None unknown.

    Every microbatch's F ends upstream before it ends downstream, and its B likewise the other way
    (ends, since a span may begin with kernels that need no input).

    Args:
        a: a rank.
        b: one that passes microbatches to it or gets them from it.
        one_clock: whether they are on one machine.
    """
    bounds = {}
    for move in _candidates(len(a.start_ns), len(b.start_ns)):
        found = _offsets(a.events, b.events, move)
        if found is not None:
            bounds[move] = found
    equal = len(a.start_ns) == len(b.start_ns)
    if one_clock:
        return _least_broken(bounds, equal, a.length_ns)
    return _allowed(bounds, equal, a)


def _least_broken(bounds: dict[int, tuple[int, int]], equal: bool, length_ns: int) -> int | None:
    """Return the shift of ranks of one machine.

    Equal counts pair by order where that breaks little. Else it is the smallest that breaks
    nothing, or the single one that breaks least, and less than half an iteration.
    """
    costs = {move: max(low, -high, 0) for move, (low, high) in bounds.items()}
    if equal and 0 in costs and costs[0] <= length_ns // 4:
        return 0
    if not costs:
        return None
    best = min(costs.values())
    cheapest = [move for move, cost in costs.items() if cost == best]
    if best > 0 and (len(cheapest) > 1 or best > length_ns // 2):
        return 0 if equal and 0 in cheapest else None
    return cheapest[0]


def _allowed(bounds: dict[int, tuple[int, int]], equal: bool, a: Track) -> int | None:
    """Return the shift of ranks of two machines.

    Of those that some offset of the clocks allows, it is the single one that needs no more than
    NTP may leave over; of several the one that keeps equal counts in order. Where clocks are
    farther apart than that, or not known at all, counts must agree or one shift alone be allowed.
    What contradicts itself in order, but by less than a quarter of an iteration, stays in order
    if the counts agree: that is for the clocks to tell.
    """
    give_ns = GRAIN_NS + DRIFT * float(np.ptp(a.events.end_ns)) if len(a.events) else 0.0
    away = {
        move: max(low, -high, 0) for move, (low, high) in bounds.items() if low - high <= give_ns
    }
    if not away and equal and 0 in bounds and bounds[0][0] - bounds[0][1] <= a.length_ns // 4:
        return 0
    near = [move for move, distance in away.items() if distance <= NTP_NS]
    chosen = near or list(away)
    if len(chosen) == 1:
        return chosen[0]
    return 0 if equal and 0 in chosen else None


def shift_beside(a: Track, b: Track, *, one_clock: bool) -> int | None:
    """Return the same for ranks that do not wait for each other, as replicas of a pipeline.

    They step together, so their iterations start at about the same time.
    """
    away = {}
    for move in _candidates(len(a.start_ns), len(b.start_ns)):
        low, high = max(0, move), min(len(a.start_ns), len(b.start_ns) + move)
        if high > low:
            apart = np.abs(a.start_ns[low:high] - b.start_ns[low - move : high - move])
            away[move] = int(np.median(apart))
    if not away:
        return None
    nearest = min(away, key=lambda move: (away[move], abs(move)))
    if away[nearest] <= a.length_ns // 4 and (one_clock or a.length_ns > 4 * NTP_NS):
        return nearest
    return 0 if len(a.start_ns) == len(b.start_ns) else None


def _candidates(count_a: int, count_b: int) -> list[int]:
    """Return the shifts to try, small ones first, that leave at least half of the iterations."""
    most = abs(count_a - count_b) + _MOVES
    return [
        move
        for move in sorted(range(-most, most + 1), key=abs)
        if 2 * (min(count_a, count_b + move) - max(0, move)) >= min(count_a, count_b)
    ]


def _offsets(a: Events, b: Events, move: int) -> tuple[int, int] | None:
    """Return the least and the most to add to b's clock; None without any microbatch in common.

    Compared are all pairs of virtual stages of the two ranks: the smaller one is upstream.
    """
    least, most = np.iinfo(np.int64).min // 4, np.iinfo(np.int64).max // 4
    found = False
    for stage_a in np.unique(a.virtual_stage).tolist():
        for stage_b in np.unique(b.virtual_stage).tolist():
            own, other = a.take(a.virtual_stage == stage_a), b.take(b.virtual_stage == stage_b)
            _, i, j = np.intersect1d(own.numbers(0), other.numbers(move), return_indices=True)
            if len(i) == 0:
                continue
            found = True
            # A leads in the forward direction if it is upstream, and in backward if not.
            leads = (own.is_backward[i] == 0) == (stage_a < stage_b)
            apart = own.end_ns[i] - other.end_ns[j]
            least = max(least, int(apart[leads].max(initial=least)))
            most = min(most, int(apart[~leads].min(initial=most)))
    return (least, most) if found else None
