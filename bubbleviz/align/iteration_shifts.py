"""Shifts: by how many iterations one rank's capture begins later than another's.

Ranks of one machine share a clock, and there a wrong shift breaks data dependencies. Ranks of two
machines have two clocks, which agree to what NTP leaves over: there any offset that satisfies the
dependencies will do, if it is small enough.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.bounds.clock_segments import DRIFT
from bubbleviz.align.bounds.clocks import APART_NS
from bubbleviz.align.bounds.offsets import GRAIN_NS
from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import PASSED_ON, Phase
from bubbleviz.model.values import frozen

#: By how many iterations more than their counts differ two captures may be moved.
_MOVES = 2
#: How far the UTC clocks of two machines may be apart.
NTP_NS = 100_000_000


@frozen
class OperationEnds(Table):
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


@frozen
class RankHistory:
    """One rank through its iterations.

    Attributes:
        ends: of its F and B.
        start_ns: when each of its iterations starts.
        length_ns: of a typical iteration.
    """

    ends: OperationEnds
    start_ns: Ints
    length_ns: int


def history_of(operations: RankOperations, virtual_stage: Ints) -> RankHistory:
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
        & np.isin(operations.phase, PASSED_ON)
        & (operations.occurrence == 0)
        & (virtual_stage >= 0)
    )
    ends = OperationEnds(
        iteration=operations.iteration[rows],
        microbatch=operations.microbatch[rows],
        virtual_stage=virtual_stage[rows],
        is_backward=(operations.phase[rows] != Phase.F).astype(np.int64),
        end_ns=operations.end_ns[rows],
    )
    return RankHistory(ends, starts, length_ns)


def shift(a: RankHistory, b: RankHistory, *, one_clock: bool, timed: bool = True) -> int | None:
    """Return the difference of the iteration numbers, those of a less those of b; None unknown.

    Every microbatch's F ends upstream before it ends downstream, and its B likewise the other way
    (ends, since a span may begin with kernels that need no input).

    Args:
        a: a rank.
        b: one that passes microbatches to it or gets them from it.
        one_clock: whether they are on one machine.
        timed: whether the UTC of both is known.
    """
    timed = timed and not _far_apart(a, b)
    bounds = {}
    for move in _candidates(a, b, timed=timed):
        offsets = _offsets(a.ends, b.ends, move)
        if offsets is not None:
            bounds[move] = offsets
    equal = len(a.start_ns) == len(b.start_ns)
    if one_clock:
        return _least_broken(bounds, equal, a.length_ns)
    return _allowed(bounds, equal, a, timed)


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


def _allowed(
    bounds: dict[int, tuple[int, int]], equal: bool, a: RankHistory, timed: bool
) -> int | None:
    """Return the shift of ranks of two machines.

    Of those that some offset of the clocks allows, it is the single one that needs no more than
    NTP may leave over; of several the one that keeps equal counts in order. Without UTC any offset
    will do. If keeping equal counts in order contradicts itself, but by less than a quarter of an
    iteration, and needs less of the clocks than what is allowed, the order stays: a clock
    was set during the capture.
    """
    give_ns = GRAIN_NS + DRIFT * float(np.ptp(a.ends.end_ns)) if len(a.ends) else 0.0
    reach_ns = NTP_NS if timed else np.iinfo(np.int64).max
    missed = {move: low - high for move, (low, high) in bounds.items()}
    away = {move: max(low, -high, 0) for move, (low, high) in bounds.items()}
    near = [move for move in bounds if missed[move] <= give_ns and away[move] <= reach_ns]
    in_order = equal and away.get(0, reach_ns + 1) <= reach_ns
    if in_order and 0 not in near and missed[0] <= a.length_ns // 4:
        return 0 if all(away[0] < away[move] for move in near) else None
    if len(near) == 1:
        return near[0]
    return 0 if equal and 0 in near else None


def shift_beside(
    a: RankHistory, b: RankHistory, *, one_clock: bool, timed: bool = True
) -> int | None:
    """Return the same for ranks that do not wait for each other, as replicas of a pipeline.

    They step together, so their iterations start at about the same time.
    """
    timed = timed and not _far_apart(a, b)
    away = {}
    for move in _candidates(a, b, timed=timed):
        low, high = max(0, move), min(len(a.start_ns), len(b.start_ns) + move)
        if high > low:
            apart = np.abs(a.start_ns[low:high] - b.start_ns[low - move : high - move])
            away[move] = int(np.median(apart))
    reach_ns = a.length_ns // 4 if one_clock else NTP_NS if timed else np.iinfo(np.int64).max
    near = [move for move, distance in away.items() if distance <= reach_ns]
    if len(near) == 1:
        return near[0]
    # On one clock nothing else is possible for replicas that are not in step.
    in_order = 0 in near or (one_clock and not near and bool(away))
    return 0 if len(a.start_ns) == len(b.start_ns) and in_order else None


def _far_apart(a: RankHistory, b: RankHistory) -> bool:
    """Return whether UTC is wrong: captures of one run do not lie so far apart."""
    if len(a.start_ns) == 0 or len(b.start_ns) == 0:
        return False
    gaps = (
        int(later.start_ns[0]) - int(sooner.start_ns[-1]) - sooner.length_ns
        for later, sooner in ((a, b), (b, a))
    )
    return max(gaps) > APART_NS


def _candidates(a: RankHistory, b: RankHistory, *, timed: bool) -> list[int]:
    """Return the shifts to try, small ones first.

    They leave at least half of the iterations, or lie about where UTC puts the captures.
    """
    count_a, count_b = len(a.start_ns), len(b.start_ns)
    most = abs(count_a - count_b) + _MOVES
    moves = {
        move
        for move in range(-most, most + 1)
        if 2 * (min(count_a, count_b + move) - max(0, move)) >= min(count_a, count_b)
    }
    if timed and count_a and count_b:
        for place in (0, count_b - 1):
            at = int(np.searchsorted(a.start_ns, b.start_ns[place]))
            moves |= {at - place + step for step in range(-_MOVES, _MOVES + 1)}
    shared = (move for move in moves if min(count_a, count_b + move) > max(0, move))
    return sorted(shared, key=lambda move: (abs(move), move))


def _offsets(a: OperationEnds, b: OperationEnds, move: int) -> tuple[int, int] | None:
    """Return the least and the most to add to b's clock; None without any microbatch in common.

    Compared are all pairs of virtual stages of the two ranks: the smaller one is upstream.
    """
    least, most = np.iinfo(np.int64).min // 4, np.iinfo(np.int64).max // 4
    common = False
    for stage_a in distinct(a.virtual_stage).tolist():
        for stage_b in distinct(b.virtual_stage).tolist():
            ours, theirs = a.take(a.virtual_stage == stage_a), b.take(b.virtual_stage == stage_b)
            _, i, j = np.intersect1d(ours.numbers(0), theirs.numbers(move), return_indices=True)
            if len(i) == 0:
                continue
            common = True
            # A leads in the forward direction if it is upstream, and in backward if not.
            leads = (ours.is_backward[i] == 0) == (stage_a < stage_b)
            apart = ours.end_ns[i] - theirs.end_ns[j]
            least = max(least, int(apart[leads].max(initial=least)))
            most = min(most, int(apart[~leads].min(initial=most)))
    return (least, most) if common else None
