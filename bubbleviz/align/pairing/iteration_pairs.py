"""Pairing: which of one rank's iterations is which of another's.

Equal names pair. Without names, the iterations of two ranks pair by their order, moved against
each other where a capture cut one of them earlier; data dependencies tell by how much, and where
they do not, the pairing is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import Arrivals, inputs_ready
from bubbleviz.align.join import JoinedRank, JoinedRecordings
from bubbleviz.align.pairing.histories import Histories, histories_of
from bubbleviz.align.pairing.machine_links import (
    Link,
    _Neighbours,
    describe_rival,
    describe_undecided,
    link_machines,
    name_hosts,
)
from bubbleviz.align.pairing.pairs_by_time import pair_by_time
from bubbleviz.align.pairing.possible_shifts import shifts
from bubbleviz.model.columns import NONE, Bools, Ints, marked, scattered
from bubbleviz.model.grouping import (
    distinct,
    distinct_rows,
    found_in,
    groups_of,
    heads,
    looked_up,
    sorted_rows,
    without,
)
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import INFERENCE, among, run_kind
from bubbleviz.model.phases import Phase

#: Phases that run backward.
_GRADIENTS = (Phase.B, Phase.BW, Phase.FB)


@dataclass(frozen=True)
class Pairing:
    """The common numbers of the iterations of all ranks.

    Attributes:
        iteration: Iteration of each operation over all ranks, or -1 if it belongs to none.
        names: Names of the iterations.
        known: Whether the pairing is known.
        own: Columns (rank, iteration of that rank, iteration over all ranks).
        links: Links that joined the machines if iterations have no names, or else the closest
            candidates. There is one for each machine but the first.
    """

    iteration: Ints
    names: tuple[str, ...]
    known: bool
    own: tuple[Ints, Ints, Ints]
    links: tuple[Link, ...] = ()


def pair_iterations(
    joined: JoinedRecordings, inputs: Arrivals, pipeline: Ints, stage: Ints
) -> Pairing:
    """Number the iterations of all ranks together.

    Args:
        joined: The recordings with virtual stages, and with iterations numbered per rank.
        inputs: Times at which the inputs of operations were available.
        pipeline: Pipeline of each rank, or -1 if the replicas of a stage cannot be distinguished.
        stage: Stage of each rank, or -1 if unknown.
    """
    operations, named = joined.operations, joined.named_iteration
    counted = joined.works
    named_ranks = distinct_rows(operations.rank, chosen=counted & (named >= 0))[0]
    unnamed = without(joined.working, named_ranks)
    if counted.any() and len(unnamed) == 0:
        return _by_name(operations, named, counted)
    working = distinct(operations.rank[counted & (operations.has_span == 1)])
    recorded_ns = joined.recorded_start_ns, joined.recorded_end_ns
    ready_ns = inputs_ready(operations, inputs)
    histories = histories_of(operations, ready_ns, recorded_ns)
    moves, offset_ns, told, found_links = _moves(joined, histories, working, pipeline, stage)
    iteration = operations.iteration + moves[operations.rank]
    is_one_clock = len(distinct(joined.machine_of_rank[working])) == 1
    has_equal_counts = len(distinct(histories.counts[working])) == 1
    if is_one_clock and not (told and has_equal_counts):
        for compared in _select_compared(operations, joined.works):
            by_time = _number_by_time(operations, joined.works, compared)
            if by_time is None:
                continue
            numbered = operations.changed(iteration=by_time)
            histories = histories_of(numbered, ready_ns, recorded_ns)
            moves, _, is_possible, _ = _moves(joined, histories, working, pipeline, stage)
            if is_possible and not moves.any():
                told, iteration = True, by_time
                break
    elif told and not has_equal_counts:
        moved_ns = offset_ns[joined.machine_of_rank][operations.rank]
        told = _agrees_with_times(operations, joined.works, iteration, moved_ns)
    iteration = np.where(operations.iteration < 0, np.iinfo(np.int64).min, iteration)
    present = distinct(iteration[counted & (operations.iteration >= 0)])
    # An iteration in which no rank works (an Optimizer alone) belongs to the previous iteration.
    number = np.searchsorted(present, iteration, side="right") - 1
    first = groups_of(operations.rank, operations.iteration).first
    own = operations.rank[first], operations.iteration[first], number[first]
    return Pairing(number, tuple(map(str, range(len(present)))), told, own, found_links)


def _select_compared(operations: Operations, works: Bools) -> Iterator[Bools]:
    """Yield masks of operations whose times show which iterations of ranks belong together.

    The best mask comes first. Backwards are best, because after iterations without work a rank may
    run its forwards long before the other ranks. They are used only if every iteration of every
    rank has a backward.

    Args:
        operations: Operations of all ranks.
        works: Mask of the forwards and backwards.
    """
    has_times = works & (operations.iteration >= 0) & (operations.has_span == 1)
    is_gradient = has_times & among(operations.phase, _GRADIENTS)
    iterations, iterations_with_gradients = (
        distinct_rows(operations.rank, operations.iteration, chosen=chosen)[0]
        for chosen in (has_times, is_gradient)
    )
    if len(iterations) == len(iterations_with_gradients):
        yield is_gradient
    yield works


def _number_by_time(operations: Operations, works: Bools, compared: Bools) -> Ints | None:
    """Number the iterations of all ranks by time, or return None if they do not match in time.

    Args:
        operations: Operations of all ranks, on one clock.
        works: Mask of the forwards and backwards.
        compared: Mask of the operations whose times are compared.

    Returns:
        Iteration of each operation over all ranks, or -1 if it belongs to none.
    """
    has_iteration = operations.iteration >= 0
    if not has_iteration.any():
        return None
    worked = np.flatnonzero(works & has_iteration)
    shape = int(operations.rank.max()) + 1, int(operations.iteration.max()) + 1
    is_worked = np.zeros(shape, np.bool_)
    is_worked[operations.rank[worked], operations.iteration[worked]] = True
    work = operations.take(np.flatnonzero(compared & has_iteration & (operations.has_span == 1)))
    numbers = pair_by_time(work.rank, work.iteration, work.start_ns, work.end_ns, is_worked)
    if numbers is None:
        return None
    number = numbers[operations.rank, np.maximum(operations.iteration, 0)]
    return np.where(has_iteration, number, NONE)


def _agrees_with_times(
    operations: Operations, works: Bools, iteration: Ints, moved_ns: Ints
) -> bool:
    """Return whether the iterations over all ranks are the same if they are numbered by time.

    They count as the same if times give no numbers.

    Args:
        operations: Operations of all ranks, with iterations numbered per rank.
        works: Mask of the forwards and backwards.
        iteration: Iteration of each operation over all ranks.
        moved_ns: Clock correction to add to the times of each operation.
    """
    start_ns, end_ns = operations.start_ns + moved_ns, operations.end_ns + moved_ns
    on_one_clock = operations.changed(start_ns=start_ns, end_ns=end_ns)
    for compared in _select_compared(on_one_clock, works):
        by_time = _number_by_time(on_one_clock, works, compared)
        if by_time is not None:
            rows = np.flatnonzero(works & (operations.iteration >= 0))
            pairs = groups_of(iteration[rows], by_time[rows])
            return len(pairs) == len(distinct(iteration[rows])) == len(distinct(by_time[rows]))
    return True


def paired(pairing: Pairing, rank: Ints, iteration: Ints) -> Ints:
    """Return the iteration over all ranks of iterations of single ranks, or -1 if there is none.

    Args:
        pairing: of all ranks.
        rank: ranks.
        iteration: one of each, as it counts them.
    """
    ranks, own, number = pairing.own
    return looked_up((ranks, own), number, (rank, iteration))


def _moves(
    joined: JoinedRecordings, histories: Histories, working: Ints, pipeline: Ints, stage: Ints
) -> tuple[Ints, Ints, bool, tuple[Link, ...]]:
    """Find the shifts of iteration numbers and clocks that match the ranks' iterations.

    Each rank is compared with the previous rank of its pipeline, the first rank of a pipeline with
    the first rank of all, and a replica with the previous replica. The first rank of a machine is
    linked by all evidence, which gives the clock of the machine for its other ranks. A rank without
    GPU work has no times to compare and takes part in no ratio, so it is not shifted.

    Returns:
        moves: Shift of the iteration numbers of each rank.
        offset_ns: Correction to add to the clock of each machine.
        is_known: Whether all shifts are known.
        links: Links between ranks that were used.
    """
    machine = joined.machine_of_rank
    moves = np.zeros(len(machine), np.int64)
    # Whole pipelines come first, and the others are compared with them.
    n_pipelines = int(pipeline.max(initial=0)) + 1
    lacking = -np.bincount(pipeline[stage >= 0] + 1, minlength=n_pipelines + 1)
    known = np.where(stage < 0, np.iinfo(np.int64).max, stage)[working]
    order = working[sorted_rows(lacking[pipeline + 1][working], pipeline[working], known)]
    # What only goes forward reaches late stages when first ones are iterations ahead.
    loose = ((stage < 0) | (pipeline < 0)) & (run_kind(joined.operations.phase) != INFERENCE)
    in_step = np.where(loose, machine, NONE)
    neighbours = first, second, beside = _neighbours(order, pipeline, stage, in_step)
    linked_ns, found_links = link_machines(histories, neighbours, machine, joined.timed)
    joined_ones = list(linked_ns)
    offset_ns = np.zeros(int(machine.max(initial=0)) + 1, np.int64)
    offset_ns[joined_ones] = list(linked_ns.values())
    ends = np.stack((machine[first], machine[second]))
    rows = np.flatnonzero((ends[0] == ends[1]) | np.isin(ends, joined_ones).all(axis=0))
    by_ns = (offset_ns[ends[1]] - offset_ns[ends[0]])[rows]
    moved = shifts(histories, first[rows], second[rows], by_ns, beside[rows])
    found = dict(zip(rows.tolist(), moved, strict=True))
    for row, (one, other) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        moves[other] = moves[one] + (found.get(row) or 0)
    return moves, offset_ns, len(rows) == len(first) and None not in moved, found_links


def _neighbours(order: Ints, pipeline: Ints, stage: Ints, in_step: Ints) -> _Neighbours:
    """Return the ranks that are put beside each other: each, and the one before it in an order.

    Of the first rank of a pipeline that is the first of all of its stage. Whether they are
    replicas comes third; ranks of one clock step together as these do where it is unknown which
    waits for which.

    Args:
        order: of the ranks.
        pipeline: of each rank; -1 unknown.
        stage: likewise.
        in_step: clock of each rank of which it is unknown for whom it waits; -1 of others.
    """
    above, rank = order[:-1], order[1:]
    first = pipeline[above] != pipeline[rank]
    of_stage = groups_of(stage[order])
    before = np.where(first, order[of_stage.first[of_stage.of_row[1:]]], above)
    before = np.where(before == rank, order[:1], before)
    alike = (stage[before] == stage[rank]) & (stage[rank] >= 0)
    together = (in_step[before] == in_step[rank]) & (in_step[rank] >= 0)
    return before, rank, first | alike | together


def _by_name(operations: Operations, named: Ints, counted: Bools) -> Pairing:
    """Pair by name; a post-validation carries the number of the iteration that it validates."""
    # Most operations are as the one before.
    rows = heads(operations.rank, operations.iteration, named, counted)
    lengths = np.diff(rows, append=len(named))
    rank, iteration = operations.rank[rows], operations.iteration[rows]
    named, counted = named[rows], counted[rows]
    owners = groups_of(rank, iteration)
    group = owners.of_row
    of_counted = named[counted]
    _, number = group_extents(group[counted], len(owners), of_counted, of_counted)
    idle = np.ones(len(owners), bool)
    idle[group[counted]] = False
    rest = (iteration >= 0) & idle[group]
    np.maximum.at(number, group[rest], named[rest])
    number = _number_idle_iterations(rank[owners.first], number, idle)
    used = np.flatnonzero((~idle | (number >= 0)) & (iteration[owners.first] >= 0))
    anchor, away = _between(rank[owners.first[used]], number[used])
    pairs = groups_of(anchor, away)
    of_owner = scattered(len(owners), used, pairs.of_row)
    working = marked(len(pairs), of_owner[~idle & (of_owner >= 0)])
    present = np.flatnonzero(working)
    first = pairs.first[present]
    names = tuple(map(_name, anchor[first].tolist(), away[first].tolist()))
    number = found_in(present, of_owner)
    own = rank[owners.first], iteration[owners.first], number
    return Pairing(np.repeat(number[group], lengths), names, known=True, own=own)


def _number_idle_iterations(rank: Ints, number: Ints, is_idle: Bools) -> Ints:
    """Assign numbers to iterations without work, which no range may name.

    The Optimizer of such an iteration may be outside every range that names an iteration. It then
    has the number of the previous iteration of its rank, or no number at the start of a recording.
    It gets the next number, or at the start the number before the next one, if another rank worked
    in the iteration with that number.

    Args:
        rank: Rank of each iteration of a rank, sorted by (rank, iteration).
        number: Number of the iteration in range names, or -1 if there is none.
        is_idle: Mask of the iterations in which the rank runs no forward or backward.

    Returns:
        Number of each iteration, or -1 if it has none.
    """
    of_work = number[~is_idle]
    follows = np.append(False, rank[1:] == rank[:-1])
    has_previous_number = number == np.append(NONE, number[:-1])
    repeats = follows & is_idle & (number >= 0) & has_previous_number
    row = np.arange(len(number))
    first = np.maximum.accumulate(np.where(repeats, 0, row))
    following = number + row - first
    number = np.where(repeats & np.isin(following, of_work), following, number)
    start = np.searchsorted(rank, rank)
    n_busy = np.cumsum(~is_idle)
    n_before: Ints = n_busy - ~is_idle
    leads = is_idle & (number < 0) & (n_before == n_before[start])
    last = len(row) - 1
    after = np.minimum.accumulate(np.where(leads, last, row)[::-1])[::-1]
    preceding = np.where(rank[after] == rank, number[after] - (after - row), NONE)
    return np.where(leads & np.isin(preceding, of_work), preceding, number)


def _between(rank: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Return the named iteration that each one lies at, and how many after (or before) it.

    Of each rank in order; what lies before its first named iteration is counted back from that.
    """
    row = np.arange(len(rank))
    start = np.searchsorted(rank, rank)
    last = np.maximum.accumulate(np.where(number >= 0, row, NONE))
    later = np.where(number >= 0, row, len(row))
    later = np.minimum.accumulate(later[::-1])[::-1]
    later = np.minimum(later, len(row) - 1)
    anchor = np.where(last >= start, last, later)
    return number[anchor], row - anchor


def _name(number: int, away: int) -> str:
    if away == 0:
        return str(number)
    where = f"after {number}" if away > 0 else f"before {number}"
    return where if abs(away) == 1 else f"{where} ({abs(away)})"


#: What speaks by less, in nats, is no evidence worth a word.
_WORTH = 1.0
_EVIDENCE = "data dependencies, when captures ran, counts and UTC"
_TO_TELL = (
    "name iterations in ranges, record all ranks from before the first iteration to after the "
    "last, or record more iterations"
)


def pairing_limitations(
    pairing: Pairing, ranks: Sequence[JoinedRank], *, sizes_tell: bool
) -> Iterator[Limitation]:
    """Yield a limitation on how iterations that have no names are paired across hosts.

    Args:
        pairing: of all ranks.
        ranks: in their order.
        sizes_tell: whether the sizes of the run tell which ranks wait for each other.
    """
    links = sorted(pairing.links, key=lambda one: one.margin)
    undecided = [one for one in links if not one.decided]
    if not pairing.known:
        why = f"{describe_undecided(undecided[0], ranks)}; " if undecided else ""
        several = len({rank.machine for rank in ranks}) > 1
        sizes = "set --parallel tp=,pp=,dp=, " if sizes_tell else ""
        clocks = " and clocks of several hosts are unbounded" if several else ""
        yield Limitation(
            "iterations across ranks",
            "they could not be matched, so ratios over ranks are left out"
            f"{clocks}: {why}{sizes}{_TO_TELL}",
            max(len(undecided), 1),
            LimitationKind.ITERATIONS_UNPAIRED,
        )
    elif links:
        weakest = links[0]
        odds = f"10^{weakest.margin / np.log(10):.0f}"
        sure = f"is {odds} times less likely"
        lengths = ", and how long their iterations take, event by event"
        if weakest.fit < _WORTH:
            sure, lengths = "would need clocks that are off by more than half an iteration", ""
        yield Limitation(
            "iterations across hosts",
            f"they have no names and are matched by {_EVIDENCE}{lengths}; least sure are "
            f"{name_hosts(weakest, ranks)}, where the next best match {describe_rival(weakest)}, "
            f"and {sure}; name iterations in ranges to be sure",
            len(links),
        )
