"""Pairing: which of one rank's iterations is which of another's.

Equal names pair. Without names, the iterations of two ranks pair by their order, moved against
each other where a capture cut one of them earlier; data dependencies tell by how much, and where
they do not, the pairing is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.columns import NONE, Bools, Ints
from bubbleviz.grouping import groups_of
from bubbleviz.model import Operations
from bubbleviz.phases import COUNTED, Phase

#: By how many iterations more than their counts differ two captures may be moved.
_MOVES = 2


@dataclass(frozen=True)
class Pairing:
    """Number of each operation's iteration over all ranks, the names, and whether it is known."""

    iteration: Ints
    names: tuple[str, ...]
    known: bool


def pair_iterations(
    operations: Operations, named: Ints, virtual_stage: Ints, order: Ints
) -> Pairing:
    """Return the iterations over all ranks.

    Args:
        operations: of all ranks, on one clock, with each rank's own iteration numbers.
        named: the number that a range gives each operation's iteration; -1 none.
        virtual_stage: virtual stage of each operation; -1 unknown.
        order: the ranks in pipeline order.
    """
    counted = np.isin(operations.phase, COUNTED)
    unnamed = np.setdiff1d(operations.rank[counted], operations.rank[counted & (named >= 0)])
    if counted.any() and len(unnamed) == 0:
        return _by_name(operations, named, counted)
    shift = {}
    known = True
    previous: int | None = None
    for rank in order.tolist():
        if not (counted & (operations.rank == rank)).any():
            shift[rank] = 0
            continue
        if previous is None:
            shift[rank] = 0
        else:
            found = _shift(operations, virtual_stage, previous, rank)
            known = known and found is not None
            shift[rank] = shift[previous] + (found or 0)
        previous = rank
    moves = np.array([shift[r] for r in range(len(shift))], np.int64)
    iteration = operations.iteration + moves[operations.rank]
    iteration = np.where(operations.iteration < 0, np.iinfo(np.int64).min, iteration)
    present = np.unique(iteration[counted & (operations.iteration >= 0)])
    return Pairing(_renumbered(iteration, present), tuple(map(str, range(len(present)))), known)


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


def _shift(operations: Operations, virtual_stage: Ints, before: int, rank: int) -> int | None:
    """Return what to add to a rank's iteration numbers to get those of ``before``.

    Every microbatch's F ends upstream before it ends downstream, and its B likewise the other way
    (ends, since a span may begin with kernels that need no input). Equal counts pair by order
    where that breaks little. Else the move that breaks nothing, or the single one that breaks
    least and less than half an iteration (clocks of two hosts may be off).
    """
    a, b = _events(operations, virtual_stage, before), _events(operations, virtual_stage, rank)
    count_a, count_b = _count(operations, before), _count(operations, rank)
    length_ns = _typical_length(operations, before)
    most = abs(count_a - count_b) + _MOVES
    costs: dict[int, int] = {}
    for move in sorted(range(-most, most + 1), key=abs):
        shared = min(count_a, count_b + move) - max(0, move)
        cost = _violation(a, b, move) if 2 * shared >= min(count_a, count_b) else None
        if cost is not None:
            costs[move] = cost
        if cost == 0 or (move == 0 and count_a == count_b and (cost or 0) <= length_ns // 4):
            return move
    if not costs:
        return None
    best = min(costs.values())
    cheapest = [move for move, cost in costs.items() if cost == best]
    if len(cheapest) > 1 or best > length_ns // 2:
        return 0 if count_a == count_b and 0 in cheapest else None
    return cheapest[0]


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


def _violation(a: _Events, b: _Events, move: int) -> int | None:
    """Return by how much the worst dependency is broken; None without any microbatch in common.

    Compared are all pairs of virtual stages of the two ranks: the smaller one is upstream.
    """
    worst: int | None = None
    for stage_a in np.unique(a.key[2]).tolist():
        for stage_b in np.unique(b.key[2]).tolist():
            rows_a, rows_b = a.key[2] == stage_a, b.key[2] == stage_b
            at_a = _numbers(a.key[:, rows_a], 0)
            at_b = _numbers(b.key[:, rows_b], move)
            _, i, j = np.intersect1d(at_a, at_b, return_indices=True)
            if len(i) == 0:
                continue
            i, j = np.flatnonzero(rows_a)[i], np.flatnonzero(rows_b)[j]
            # A leads in the forward direction if it is upstream, and in backward if not.
            leads = (a.key[3, i] == 0) == (stage_a < stage_b)
            late = np.where(leads, a.end_ns[i] - b.end_ns[j], b.end_ns[j] - a.end_ns[i])
            worst = max(worst or 0, int(late.max()))
    return worst


def _numbers(key: Ints, move: int) -> Ints:
    """Return one number for (iteration + move, microbatch, is_b)."""
    iteration, microbatch, _, backward = key
    number: Ints = ((iteration + move + (1 << 20)) << 32) | ((microbatch + 1) << 1) | backward
    return number
