"""Pairing: which of one rank's iterations is which of another's.

Equal names pair. Without names, the iterations of two ranks pair by their order, moved against
each other where a capture cut one of them earlier; data dependencies tell by how much, and where
they do not, the pairing is unknown.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bubbleviz.align.arrivals import Arrivals, KnownArrivals, inputs_ready
from bubbleviz.align.iteration_histories import RankHistory, history_of
from bubbleviz.align.iteration_shifts import shift, shift_beside
from bubbleviz.align.machine_links import MachineLink, Neighbours, linked
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of, looked_up, without
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


@frozen
class Pairing:
    """Which iterations of the ranks are the same.

    Attributes:
        iteration: number of each operation's iteration over all ranks; -1 none.
        names: of the iterations.
        known: whether it is known.
        links: how iterations of two machines were paired that have no names.
    """

    iteration: Ints
    names: tuple[str, ...]
    known: bool
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
    return Pairing(_renumbered(iteration, present), names, moves.known, moves.links)


def paired(operations: RankOperations, pairing: Pairing, rank: Ints, iteration: Ints) -> Ints:
    """Return the iteration over all ranks of each rank's own ones; -1 for none.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        pairing: of these.
        rank: ranks.
        iteration: one of each, as it counts them.
    """
    keys = operations.rank, operations.iteration
    return looked_up(keys, pairing.iteration, (rank, iteration))


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
    spanned = counted & (operations.has_span == 1)
    order = places.order[np.isin(places.order, operations.rank[spanned])].tolist()
    histories = _histories(operations, inputs, virtual_stage, places, order)
    neighbours = []
    for above, rank in pairwise(order):
        first = places.pipeline[above] != places.pipeline[rank]
        before = order[0] if first else above
        beside = bool(first or places.stage[before] == places.stage[rank] >= 0)
        neighbours.append(Neighbours(before, rank, beside))
    machine = places.machine.tolist()
    joined = linked(
        histories, neighbours, machine, lambda a, b: bool(places.timed[a] and places.timed[b])
    )
    known = True
    for pair in neighbours:
        move = None
        ends = machine[pair.first], machine[pair.second]
        if ends[0] == ends[1] or all(end in joined.offset_ns for end in ends):
            by_ns = joined.offset_ns.get(ends[1], 0) - joined.offset_ns.get(ends[0], 0)
            on_one_clock = shift_beside if pair.beside else shift
            move = on_one_clock(histories[pair.first], histories[pair.second].moved(by_ns))
        known = known and move is not None
        moves[pair.second] = moves[pair.first] + (move or 0)
    return _Moves(moves, known, joined.links)


def _histories(
    operations: RankOperations,
    inputs: Arrivals,
    virtual_stage: Ints,
    places: Places,
    order: list[int],
) -> dict[int, RankHistory]:
    """Return the histories of ranks."""
    by_rank = sorted_rows(operations.rank)
    bounds = np.searchsorted(operations.rank[by_rank], np.arange(len(places.order) + 1))
    ready_ns = inputs_ready(operations, inputs)
    histories = {}
    for rank in order:
        rows = by_rank[bounds[rank] : bounds[rank + 1]]
        recorded = int(places.recorded_ns[0][rank]), int(places.recorded_ns[1][rank])
        histories[rank] = history_of(
            operations.take(rows), virtual_stage[rows], ready_ns[rows], recorded
        )
    return histories


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
    iteration = np.where(operations.iteration >= 0, of_owner[group], NONE)
    present = distinct(iteration[counted & (iteration >= 0)])
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
