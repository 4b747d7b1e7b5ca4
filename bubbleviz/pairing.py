"""Pairing: which of one rank's iterations is which of another's.

Equal names pair. Without names, the iterations of two ranks pair by their order, moved against
each other where a capture cut one of them earlier; data dependencies tell by how much, and where
they do not, the pairing is unknown. Ranks of two machines have two clocks, which agree to what
NTP leaves over: there any offset that satisfies the dependencies will do, if it is small enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bubbleviz.columns import NONE, Bools, Ints
from bubbleviz.grouping import groups_of
from bubbleviz.model import Operations
from bubbleviz.offsets import GRAIN_NS
from bubbleviz.phases import COUNTED, Phase
from bubbleviz.stretches import DRIFT

#: By how many iterations more than their counts differ two captures may be moved.
_MOVES = 2
#: How far the UTC clocks of two machines may be apart.
NTP_NS = 100_000_000


@dataclass(frozen=True)
class Pairing:
    """Number of each operation's iteration over all ranks, the names, and whether it is known."""

    iteration: Ints
    names: tuple[str, ...]
    known: bool


@dataclass(frozen=True)
class Places:
    """Where ranks stand: columns by rank, and the order in which they are paired.

    Attributes:
        order: the ranks by pipeline, then in the order of stages.
        pipeline: of each rank; -1 where copies of a stage cannot be told apart.
        stage: of each rank; -1 unknown.
        machine: a number for the clock of each rank.
    """

    order: Ints
    pipeline: Ints
    stage: Ints
    machine: Ints


def pair_iterations(
    operations: Operations, named: Ints, virtual_stage: Ints, places: Places
) -> Pairing:
    """Return the iterations over all ranks.

    Args:
        operations: of all ranks, on one clock, with each rank's own iteration numbers.
        named: the number that a range gives each operation's iteration; -1 none.
        virtual_stage: virtual stage of each operation; -1 unknown.
        places: where the ranks stand.
    """
    counted = np.isin(operations.phase, COUNTED)
    unnamed = np.setdiff1d(operations.rank[counted], operations.rank[counted & (named >= 0)])
    if counted.any() and len(unnamed) == 0:
        return _by_name(operations, named, counted)
    moves, known = _moves(operations, virtual_stage, places, counted)
    iteration = operations.iteration + moves[operations.rank]
    iteration = np.where(operations.iteration < 0, np.iinfo(np.int64).min, iteration)
    present = np.unique(iteration[counted & (operations.iteration >= 0)])
    return Pairing(_renumbered(iteration, present), tuple(map(str, range(len(present)))), known)


def paired(operations: Operations, pairing: Pairing, rank: Ints, own: Ints) -> Ints:
    """Return the iteration over all ranks of each rank's own ones; -1 for none.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        pairing: of these.
        rank: ranks.
        own: an iteration of each.
    """
    row = groups_of(operations.rank, operations.iteration).first
    width = int(max(operations.iteration.max(initial=0), own.max(initial=0))) + 2
    code = operations.rank[row] * width + operations.iteration[row] + 1
    wanted = rank * width + own + 1
    at = np.minimum(np.searchsorted(code, wanted), max(len(code) - 1, 0))
    if len(code) == 0:
        return np.full(len(wanted), NONE, np.int64)
    return np.where(code[at] == wanted, pairing.iteration[row][at], NONE)


def _moves(
    operations: Operations, virtual_stage: Ints, places: Places, counted: Bools
) -> tuple[Ints, bool]:
    """Return what to add to each rank's iteration numbers, and whether all of it is known.

    Each rank is put beside the one before it in its pipeline, a pipeline's first rank beside the
    first rank of all, and so is a copy beside the copy before it.
    """
    moves = np.zeros(len(places.order), np.int64)
    known = True
    working = np.unique(operations.rank[counted])
    order = [rank for rank in places.order.tolist() if rank in set(working.tolist())]
    for above, rank in pairwise(order):
        first = places.pipeline[above] != places.pipeline[rank]
        before = order[0] if first else above
        same = bool(places.machine[before] == places.machine[rank])
        if first or places.stage[before] == places.stage[rank] >= 0:
            found = _shift_beside(operations, before, rank, same)
        else:
            found = _shift(operations, virtual_stage, before, rank, same)
        known = known and found is not None
        moves[rank] = moves[before] + (found or 0)
    return moves, known


def _by_name(operations: Operations, named: Ints, counted: Bools) -> Pairing:
    """Pair by name; a post-validation carries the number of the iteration that it validates."""
    owners = groups_of(operations.rank, operations.iteration)
    group = owners.of_row
    number = np.full(len(owners), NONE, np.int64)
    np.maximum.at(number, group[counted], named[counted])
    idle = np.ones(len(owners), bool)
    idle[group[counted]] = False
    rest = (operations.iteration >= 0) & idle[group]
    np.maximum.at(number, group[rest], named[rest])
    used = np.flatnonzero((~idle | (number >= 0)) & (operations.iteration[owners.first] >= 0))
    anchor, away = _between(operations.rank[owners.first[used]], number[used])
    pairs = groups_of(anchor, away)
    of_owner = np.full(len(owners), NONE, np.int64)
    of_owner[used] = pairs.of_row
    iteration = np.where(operations.iteration >= 0, of_owner[group], NONE)
    present = np.unique(iteration[counted & (iteration >= 0)])
    first = pairs.first[present]
    names = tuple(map(_name, anchor[first].tolist(), away[first].tolist()))
    return Pairing(_renumbered(iteration, present), names, known=True)


def _between(rank: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Return the named iteration that each one lies at, and how many after (or before) it.

    Of each rank in order; what lies before its first named iteration is counted back from that.
    """
    row = np.arange(len(rank))
    start = np.searchsorted(rank, rank)
    last = np.maximum.accumulate(np.where(number >= 0, row, NONE))
    later = np.where(number >= 0, row, len(row))
    later = np.minimum(np.minimum.accumulate(later[::-1])[::-1], len(row) - 1)
    anchor = np.where(last >= start, last, later)
    return number[anchor], row - anchor


def _name(number: int, away: int) -> str:
    if away == 0:
        return str(number)
    where = f"after {number}" if away > 0 else f"before {number}"
    return where if abs(away) == 1 else f"{where} ({abs(away)})"


def _renumbered(iteration: Ints, present: Ints) -> Ints:
    """Return places in ``present``; -1 for what is not in it."""
    at = np.minimum(np.searchsorted(present, iteration), max(len(present) - 1, 0))
    if len(present) == 0:
        return np.full(len(iteration), NONE, np.int64)
    return np.where(present[at] == iteration, at, NONE)


def _shift(
    operations: Operations, virtual_stage: Ints, before: int, rank: int, one_clock: bool
) -> int | None:
    """Return what to add to a rank's iteration numbers to get those of ``before``.

    Every microbatch's F ends upstream before it ends downstream, and its B likewise the other way
    (ends, since a span may begin with kernels that need no input). Equal counts pair by order
    where that breaks little. Else the move that breaks nothing, or the single one that breaks
    least and less than half an iteration.
    """
    a, b = _events(operations, virtual_stage, before), _events(operations, virtual_stage, rank)
    count_a, count_b = _count(operations, before), _count(operations, rank)
    length_ns = _typical_length(operations, before)
    if not one_clock:
        return _shift_between(a, b, (count_a, count_b), length_ns)
    costs: dict[int, int] = {}
    for move in _candidates(count_a, count_b):
        bounds = _offsets(a, b, move)
        if bounds is None:
            continue
        cost = costs[move] = max(bounds[0], -bounds[1], 0)
        if cost == 0 or (move == 0 and count_a == count_b and cost <= length_ns // 4):
            return move
    if not costs:
        return None
    best = min(costs.values())
    cheapest = [move for move, cost in costs.items() if cost == best]
    if len(cheapest) > 1 or best > length_ns // 2:
        return 0 if count_a == count_b and 0 in cheapest else None
    return cheapest[0]


def _shift_between(a: _Events, b: _Events, counts: tuple[int, int], length_ns: int) -> int | None:
    """Return the same for ranks of two machines.

    Of the moves that some offset of the clocks allows, it is the single one that needs no more
    than NTP may leave over; of several the one that keeps equal counts in order. Where clocks are
    farther apart than that, or not known at all, counts must agree or one move alone be possible.
    What contradicts itself whatever the move, but less than a quarter of an iteration, is left in
    order if the counts agree: that is for the clocks to tell.
    """
    count_a, count_b = counts
    away: dict[int, int] = {}
    missed: dict[int, int] = {}
    for move in _candidates(count_a, count_b):
        bounds = _offsets(a, b, move)
        if bounds is None:
            continue
        missed[move] = bounds[0] - bounds[1]
        if missed[move] <= _give(a):
            away[move] = max(bounds[0], -bounds[1], 0)
    if not away and count_a == count_b and missed.get(0, length_ns) <= length_ns // 4:
        return 0
    near = [move for move, distance in away.items() if distance <= NTP_NS]
    for chosen in (near, list(away)):
        if len(chosen) == 1:
            return chosen[0]
        if 0 in chosen and count_a == count_b:
            return 0
        if chosen:
            return None
    return None


def _give(events: _Events) -> int:
    """Return by how much bounds of an offset may miss each other: clocks drift, and have grain."""
    return round(GRAIN_NS + DRIFT * float(np.ptp(events.end_ns))) if len(events.end_ns) else 0


def _shift_beside(operations: Operations, before: int, rank: int, one_clock: bool) -> int | None:
    """Return the same for ranks that do not wait for each other, as replicas of a pipeline.

    They step together, so their iterations begin at about the same time.
    """
    one, other = _starts(operations, before), _starts(operations, rank)
    length_ns = _typical_length(operations, before)
    away = {}
    for move in _candidates(len(one), len(other)):
        low, high = max(0, move), min(len(one), len(other) + move)
        if high > low:
            apart = np.abs(one[low:high] - other[low - move : high - move])
            away[move] = int(np.median(apart))
    if not away:
        return None
    nearest = min(away, key=lambda move: (away[move], abs(move)))
    if away[nearest] <= length_ns // 4 and (one_clock or length_ns > 4 * NTP_NS):
        return nearest
    return 0 if len(one) == len(other) else None


def _starts(operations: Operations, rank: int) -> Ints:
    """Return when each of a rank's iterations starts."""
    rows = (operations.rank == rank) & (operations.has_span == 1) & (operations.iteration >= 0)
    starts = np.full(_count(operations, rank), np.iinfo(np.int64).max)
    np.minimum.at(starts, operations.iteration[rows], operations.start_ns[rows])
    return starts


def _candidates(count_a: int, count_b: int) -> list[int]:
    """Return the moves to try, small ones first, that leave at least half of the iterations."""
    most = abs(count_a - count_b) + _MOVES
    return [
        move
        for move in sorted(range(-most, most + 1), key=abs)
        if 2 * (min(count_a, count_b + move) - max(0, move)) >= min(count_a, count_b)
    ]


def _count(operations: Operations, rank: int) -> int:
    return int(operations.iteration[operations.rank == rank].max(initial=-1)) + 1


def _typical_length(operations: Operations, rank: int) -> int:
    rows = (operations.rank == rank) & (operations.has_span == 1) & (operations.iteration >= 0)
    if not rows.any():
        return 0
    span = int(operations.end_ns[rows].max() - operations.start_ns[rows].min())
    return span // max(_count(operations, rank), 1)


@dataclass(frozen=True)
class _Events:
    """F and B of one rank with spans: key columns (iteration, microbatch, stage, is_b), ends."""

    key: Ints
    end_ns: Ints


def _events(operations: Operations, virtual_stage: Ints, rank: int) -> _Events:
    wanted = np.isin(operations.phase, (Phase.F, Phase.B, Phase.BW))
    rows = np.flatnonzero(
        wanted
        & (operations.rank == rank)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (operations.iteration >= 0)
        & (virtual_stage >= 0)
    )
    backward = (operations.phase[rows] != Phase.F).astype(np.int64)
    key = np.stack(
        (operations.iteration[rows], operations.microbatch[rows], virtual_stage[rows], backward)
    )
    return _Events(key, operations.end_ns[rows])


def _offsets(a: _Events, b: _Events, move: int) -> tuple[int, int] | None:
    """Return the least and the most to add to b's clock; None without any microbatch in common.

    Compared are all pairs of virtual stages of the two ranks: the smaller one is upstream.
    """
    least, most = np.iinfo(np.int64).min // 4, np.iinfo(np.int64).max // 4
    found = False
    for stage_a in np.unique(a.key[2]).tolist():
        for stage_b in np.unique(b.key[2]).tolist():
            rows_a, rows_b = a.key[2] == stage_a, b.key[2] == stage_b
            at_a = _numbers(a.key[:, rows_a], 0)
            at_b = _numbers(b.key[:, rows_b], move)
            _, i, j = np.intersect1d(at_a, at_b, return_indices=True)
            if len(i) == 0:
                continue
            found = True
            i, j = np.flatnonzero(rows_a)[i], np.flatnonzero(rows_b)[j]
            # A leads in the forward direction if it is upstream, and in backward if not.
            leads = (a.key[3, i] == 0) == (stage_a < stage_b)
            apart = a.end_ns[i] - b.end_ns[j]
            least = max(least, int(apart[leads].max(initial=least)))
            most = min(most, int(apart[~leads].min(initial=most)))
    return (least, most) if found else None


def _numbers(key: Ints, move: int) -> Ints:
    """Return one number for (iteration + move, microbatch, is_b)."""
    iteration, microbatch, _, backward = key
    number: Ints = ((iteration + move + (1 << 20)) << 32) | ((microbatch + 1) << 1) | backward
    return number
