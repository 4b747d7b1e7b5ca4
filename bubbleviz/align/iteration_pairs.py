"""Pairing: which of one rank's iterations is which of another's.

Equal names pair. Without names, the iterations of two ranks pair by their order, moved against
each other where a capture cut one of them earlier; data dependencies tell by how much, and where
they do not, the pairing is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.arrivals import Arrivals, KnownArrivals, inputs_ready
from bubbleviz.align.iteration_histories import histories_of
from bubbleviz.align.iteration_links import Link, links
from bubbleviz.align.iteration_shifts import shifts, shifts_beside
from bubbleviz.align.machine_links import MachineLink, Neighbours, linked
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Groups, distinct, groups_of, looked_up, without
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.values import frozen

_ENDS = ("first", "second")


@frozen
class Pairing:
    """Which iterations of the ranks are the same.

    Attributes:
        iteration: number of each operation's iteration over all ranks; -1 none.
        names: of the iterations.
        known: whether it is known.
        own: each rank and one of its own iterations, and the number of that over all ranks.
        links: how iterations of two machines were paired that have no names.
    """

    iteration: Ints
    names: tuple[str, ...]
    known: bool
    own: tuple[Ints, Ints, Ints]
    links: tuple[MachineLink, ...] = ()


@frozen
class Places:
    """Where ranks stand: columns by rank, and the order in which they are paired.

    Attributes:
        order: the ranks by pipeline, then in the order of stages.
        pipeline: of each rank; -1 where replicas of a stage cannot be distinguished.
        stage: of each rank; -1 unknown.
        machine: a number for the clock of each rank.
        timed: whether the UTC of each rank's profile is known.
        recorded_ns: when the first kernel or call of each rank's profile began, and the last
            ended.
    """

    order: Ints
    pipeline: Ints
    stage: Ints
    machine: Ints
    timed: Bools
    recorded_ns: tuple[Ints, Ints]


def pair_iterations(
    operations: RankOperations,
    known: KnownArrivals,
    named: Ints,
    virtual_stage: Ints,
    places: Places,
) -> Pairing:
    """Return the iterations over all ranks.

    Args:
        operations: of all ranks, on one clock, with each rank's own iteration numbers.
        known: when inputs of operations were there.
        named: the number that a range gives each operation's iteration; -1 none.
        virtual_stage: virtual stage of each operation; -1 unknown.
        places: where the ranks stand.
    """
    counted = among(operations.phase, COUNTED)
    unnamed = without(operations.rank[counted], operations.rank[counted & (named >= 0)])
    if counted.any() and len(unnamed) == 0:
        return _by_name(operations, named, counted)
    moves = _moves(operations, known.of(operations), virtual_stage, places, counted)
    iteration = operations.iteration + moves.of_rank[operations.rank]
    iteration = np.where(operations.iteration < 0, np.iinfo(np.int64).min, iteration)
    present = distinct(iteration[counted & (operations.iteration >= 0)])
    names = tuple(map(str, range(len(present))))
    number = _renumbered(iteration, present)
    owners = groups_of(operations.rank, operations.iteration)
    own = _own(operations, owners, number[owners.first])
    return Pairing(number, names, moves.known, own, moves.links)


def _own(operations: RankOperations, owners: Groups, number: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the ranks and own iterations of groups of operations, and the number of each."""
    return operations.rank[owners.first], operations.iteration[owners.first], number


def paired(pairing: Pairing, rank: Ints, iteration: Ints) -> Ints:
    """Return the iteration over all ranks of each rank's own ones; -1 for none.

    Args:
        pairing: of all ranks.
        rank: ranks.
        iteration: one of each, as it counts them.
    """
    ranks, own, number = pairing.own
    return looked_up((ranks, own), number, (rank, iteration))


@frozen
class _Moves:
    """How rank's iteration numbers are moved.

    Attributes:
        of_rank: by rank.
        known: whether all are known.
        links: how those of two machines were found.
    """

    of_rank: Ints
    known: bool
    links: tuple[MachineLink, ...]


def _moves(
    operations: RankOperations,
    inputs: Arrivals,
    virtual_stage: Ints,
    places: Places,
    counted: Bools,
) -> _Moves:
    """Return each rank's shift of iteration numbers.

    Each rank is put beside the one before it in its pipeline, a pipeline's first rank beside the
    first rank of all, and a copy beside the copy before it. The first rank of a machine is linked
    by all evidence there is; then the machine's clock is known well enough for all others. A rank
    without GPU work has no times to compare and takes part in no ratio, so it is left where it is.
    """
    moves = np.zeros(len(places.order), np.int64)
    working = np.zeros(len(places.order), bool)
    working[operations.rank[counted & (operations.has_span == 1)]] = True
    order = places.order[working[places.order]]
    first, second, beside = _neighbours(order, places)
    histories = histories_of(
        operations, virtual_stage, inputs_ready(operations, inputs), places.recorded_ns
    )

    def find(pairs: Sequence[Neighbours]) -> Sequence[Link]:
        ends = [np.array([getattr(p, end) for p in pairs], np.int64) for end in _ENDS]
        timed = places.timed[ends[0]] & places.timed[ends[1]]
        return links(
            histories, *ends, beside=np.array([p.beside for p in pairs], bool), timed=timed
        )

    columns = zip(first.tolist(), second.tolist(), beside.tolist(), strict=True)
    joined = linked(find, [Neighbours(*pair) for pair in columns], places.machine.tolist())
    offset_ns = np.zeros(int(places.machine.max(initial=0)) + 1, np.int64)
    offset_ns[list(joined.offset_ns)] = list(joined.offset_ns.values())
    linked_ones = np.zeros(len(offset_ns), bool)
    linked_ones[list(joined.offset_ns)] = True
    ends = places.machine[first], places.machine[second]
    comparable = (ends[0] == ends[1]) | (linked_ones[ends[0]] & linked_ones[ends[1]])
    by_ns = offset_ns[ends[1]] - offset_ns[ends[0]]
    found: list[int | None] = [None] * len(first)
    for own, on_one_clock in ((comparable & ~beside, shifts), (comparable & beside, shifts_beside)):
        rows = np.flatnonzero(own)
        moved = on_one_clock(histories, first[rows], second[rows], by_ns[rows])
        for row, move in zip(rows.tolist(), moved, strict=True):
            found[row] = move
    for one, other, move in zip(first.tolist(), second.tolist(), found, strict=True):
        moves[other] = moves[one] + (move or 0)
    return _Moves(moves, None not in found, joined.links)


def _neighbours(order: Ints, places: Places) -> tuple[Ints, Ints, Bools]:
    """Return the ranks that are put beside each other: each, and the one before it in an order.

    Of the first rank of a pipeline that is the first of all of its stage. Whether they are
    replicas comes third.
    """
    above, rank = order[:-1], order[1:]
    first = places.pipeline[above] != places.pipeline[rank]
    of_stage = groups_of(places.stage[order])
    before = np.where(first, order[of_stage.first[of_stage.of_row[1:]]], above)
    before = np.where(before == rank, order[:1], before)
    alike = (places.stage[before] == places.stage[rank]) & (places.stage[rank] >= 0)
    return before, rank, first | alike


def _by_name(operations: RankOperations, named: Ints, counted: Bools) -> Pairing:
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
    working = np.zeros(len(pairs), bool)
    working[of_owner[~idle & (of_owner >= 0)]] = True
    present = np.flatnonzero(working)
    first = pairs.first[present]
    names = tuple(map(_name, anchor[first].tolist(), away[first].tolist()))
    number = _renumbered(of_owner, present)
    own = _own(operations, owners, number)
    return Pairing(number[group], names, known=True, own=own)


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
