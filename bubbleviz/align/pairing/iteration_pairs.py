"""Pairing: find which iterations on different ranks are the same iteration of the run.

Iterations with equal names are the same. Without names, the iterations of two ranks are paired by
their order. If one rank's capture began later, its iteration numbers are shifted relative to those
of the other ranks. If data dependencies do not show the size of this shift, the pairing is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import find_ready_times
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.pairing.histories import Histories, build_histories
from bubbleviz.align.pairing.machine_links import (
    Link,
    _Neighbors,
    describe_rival,
    describe_undecided,
    link_machines,
    name_hosts,
)
from bubbleviz.align.pairing.pairs_by_time import pair_by_time
from bubbleviz.align.pairing.possible_shifts import find_shifts
from bubbleviz.model.columns import NONE, Bools, Ints, make_mask, scatter
from bubbleviz.model.grouping import (
    find_distinct,
    find_distinct_rows,
    find_positions,
    find_run_starts,
    group_rows,
    lookup_values,
    mask_run_starts,
    sort_rows,
    subtract_values,
)
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase
from bubbleviz.model.run_kinds import INFERENCE, run_kind

#: Phases that run backward.
_GRADIENTS = (Phase.B, Phase.BW, Phase.FB)


def pair_iterations(recordings: JoinedRecordings) -> JoinedRecordings:
    """Assign equal numbers to the occurrences of the same iteration on different ranks.

    If every working rank has a forward or backward that names its iteration, iterations are paired
    by name. Otherwise, they are paired by order. The pairing is reported as unknown if the range
    names of any recording do not show where iterations begin.

    Args:
        recordings: The recordings, with virtual stages and pipelines.

    Returns:
        The recordings with ``common_iteration``, the attributes that describe it, and the
        limitations on the pairing.
    """
    named_ranks = find_distinct_rows(
        recordings.operations.rank, mask=recordings.works & (recordings.named_iteration >= 0)
    )[0]
    unnamed = subtract_values(recordings.working, named_ranks)
    links: tuple[Link, ...] = ()
    if recordings.works.any() and len(unnamed) == 0:
        paired = _pair_by_name(recordings)
    else:
        paired, links = _pair_by_order(recordings)
    paired = replace(paired, paired=paired.paired and not recordings.unmarked)
    return replace(paired, limitations=tuple(_list_limitations(paired, links)))


def _pair_by_order(recordings: JoinedRecordings) -> tuple[JoinedRecordings, tuple[Link, ...]]:
    """Pair iterations by their order, or by their times if the order is inconclusive.

    Iterations are first paired by order, using the shifts from :func:`_find_shifts`. This pairing
    is doubtful if a shift is unknown, or if ranks have different numbers of iterations:

    - If all ranks are on one clock, a doubtful pairing is replaced by numbering the iterations by
      time, provided that data dependencies confirm these numbers (:func:`_find_fitting_times`).
    - If ranks are on several clocks and all shifts are known, a doubtful pairing is accepted only
      if the times on the linked clocks agree with it (:func:`_agrees_with_times`).

    Returns:
        recordings: The recordings, with paired iterations. ``paired`` is False if the pairing is
            unknown or not accepted.
        links: Links that joined machine clocks, or else the closest candidates.
    """
    operations = recordings.operations
    working = find_distinct(operations.rank[recordings.works & (operations.has_span == 1)])
    ready_ns = find_ready_times(operations, recordings.arrivals)
    histories = _build_histories(recordings, operations, ready_ns)
    moves, offset_ns, is_known, links = _find_shifts(recordings, histories, working)
    iteration = operations.iteration + moves[operations.rank]
    is_one_clock = len(find_distinct(recordings.machine_of_rank[working])) == 1
    has_equal_counts = len(find_distinct(histories.counts[working])) == 1
    if is_one_clock and not (is_known and has_equal_counts):
        by_time = _find_fitting_times(recordings, working, ready_ns)
        if by_time is not None:
            is_known, iteration = True, by_time
    elif is_known and not has_equal_counts:
        is_known = _agrees_with_times(
            operations, recordings.works, iteration, offset_ns[recordings.machine_of_rank]
        )
    return replace(_number_worked_iterations(recordings, iteration), paired=is_known), links


def _build_histories(
    recordings: JoinedRecordings, operations: Operations, ready_ns: Ints
) -> Histories:
    """Build the iteration times of all ranks.

    Args:
        recordings: The recordings, with each one's start and end time.
        operations: Operations of the recordings, possibly with changed iteration numbers.
        ready_ns: Time at which the input of each operation was available, or ``NEVER``.
    """
    recorded_ns = recordings.recorded_start_ns, recordings.recorded_end_ns
    return build_histories(operations, ready_ns, recorded_ns)


def _find_fitting_times(recordings: JoinedRecordings, working: Ints, ready_ns: Ints) -> Ints | None:
    """Number the iterations of all ranks by time, if data dependencies confirm the numbers.

    The result is the first numbering from :func:`_number_by_times` for which all shifts between
    ranks (:func:`_find_shifts`) are known and are 0.

    Args:
        recordings: The recordings, with virtual stages and pipelines, all on one clock.
        working: Ranks that ran forwards or backwards on the GPU.
        ready_ns: Time at which the input of each operation was available, or ``NEVER``.

    Returns:
        Common iteration of each operation, or -1 if it belongs to none. None if no numbering is
        confirmed.
    """
    operations = recordings.operations
    for by_time in _number_by_times(operations, recordings.works):
        operations_by_time = operations.replace_columns(iteration=by_time)
        histories = _build_histories(recordings, operations_by_time, ready_ns)
        moves, _, is_known, _ = _find_shifts(recordings, histories, working)
        if is_known and not moves.any():
            return by_time
    return None


def _number_worked_iterations(recordings: JoinedRecordings, iteration: Ints) -> JoinedRecordings:
    """Set the common iterations: the iterations in which any rank works, numbered starting at 0.

    A rank works in an iteration if it runs a forward or backward. An iteration in which no rank
    works (only an Optimizer) gets the number of the previous common iteration, or -1 if there is
    none. Operations that belong to no iteration get -1.

    Args:
        recordings: The recordings.
        iteration: Iteration of each operation, shifted so that equal numbers mean the same
            iteration on all ranks.

    Returns:
        The recordings with ``common_iteration``, ``iteration_names`` (the numbers as text) and
        ``iteration_numbers``.
    """
    operations = recordings.operations
    has_iteration = operations.iteration >= 0
    iterations_with_work = find_distinct(iteration[recordings.works & has_iteration])
    iteration = np.where(has_iteration, iteration, np.iinfo(np.int64).min)
    number = np.searchsorted(iterations_with_work, iteration, side="right") - 1
    first = group_rows(operations.rank, operations.iteration).first
    return replace(
        recordings,
        common_iteration=number,
        iteration_names=tuple(map(str, range(len(iterations_with_work)))),
        iteration_numbers=(operations.rank[first], operations.iteration[first], number[first]),
    )


def _select_compared(operations: Operations, works: Bools) -> Iterator[Bools]:
    """Yield masks of the operations whose times show which iterations belong together.

    1. All backwards. This mask is only yielded if every iteration of every rank has a backward.
    2. All forwards and backwards. This mask is less reliable because, after iterations without
       work, a rank may run its forwards long before the other ranks.

    Args:
        operations: Operations of all ranks.
        works: Mask of the forwards and backwards.
    """
    has_times = works & (operations.iteration >= 0) & (operations.has_span == 1)
    is_gradient = has_times & mask_phases(operations.phase, _GRADIENTS)
    iterations, iterations_with_gradients = (
        find_distinct_rows(operations.rank, operations.iteration, mask=chosen)[0]
        for chosen in (has_times, is_gradient)
    )
    if len(iterations) == len(iterations_with_gradients):
        yield is_gradient
    yield works


def _number_by_times(operations: Operations, works: Bools) -> Iterator[Ints]:
    """Number the iterations of all ranks by time, yielding the most reliable numbering first.

    Each selection of operations (:func:`_select_compared`) leads to one numbering
    (:func:`pair_by_time`).

    Args:
        operations: Operations of all ranks, on one clock.
        works: Mask of the forwards and backwards.

    Yields:
        Common iteration of each operation, or -1 if it belongs to none. Nothing is yielded if
        iterations do not match in time.
    """
    has_iteration = operations.iteration >= 0
    if not has_iteration.any():
        return
    rows = np.flatnonzero(works & has_iteration)
    shape = int(operations.rank.max()) + 1, int(operations.iteration.max()) + 1
    is_worked = make_mask(shape, (operations.rank[rows], operations.iteration[rows]))
    has_times = has_iteration & (operations.has_span == 1)
    for compared in _select_compared(operations, works):
        work = operations.take(np.flatnonzero(compared & has_times))
        numbers = pair_by_time(work.rank, work.iteration, work.start_ns, work.end_ns, is_worked)
        if numbers is not None:
            number = numbers[operations.rank, np.maximum(operations.iteration, 0)]
            yield np.where(has_iteration, number, NONE)


def _agrees_with_times(
    operations: Operations, works: Bools, iteration: Ints, offset_ns: Ints
) -> bool:
    """Return whether numbering the iterations by time produces the same pairing as ``iteration``.

    Only forwards and backwards are compared. The result is True if the iterations cannot be
    numbered by time.

    Args:
        operations: Operations of all ranks, with iterations numbered separately for each rank.
        works: Mask of the forwards and backwards.
        iteration: Iteration of each operation, with numbers that mean the same on all ranks.
        offset_ns: Correction in ns to add to each rank's clock.
    """
    moved_ns = offset_ns[operations.rank]
    start_ns, end_ns = operations.start_ns + moved_ns, operations.end_ns + moved_ns
    on_one_clock = operations.replace_columns(start_ns=start_ns, end_ns=end_ns)
    by_time = next(_number_by_times(on_one_clock, works), None)
    if by_time is None:
        return True
    rows = np.flatnonzero(works & (operations.iteration >= 0))
    pairs = group_rows(iteration[rows], by_time[rows])
    return len(pairs) == len(find_distinct(iteration[rows])) == len(find_distinct(by_time[rows]))


def _find_shifts(
    recordings: JoinedRecordings, histories: Histories, working: Ints
) -> tuple[Ints, Ints, bool, tuple[Link, ...]]:
    """Find the shifts of iteration numbers and clocks that align the iterations of all ranks.

    1. The rank pairs to compare are chosen (:func:`_pair_neighbors`).
    2. Machines are linked (:func:`link_machines`), which yields a correction for each linked
       machine's clock.
    3. A shift is computed for each rank pair on one machine or on two linked machines.
    4. The shifts are added up along the pairs. An unknown shift is treated as 0.

    Only the ranks in ``working`` are shifted.

    Args:
        recordings: The recordings, with virtual stages and pipelines.
        histories: Iteration times of all ranks.
        working: Ranks that ran forwards or backwards on the GPU.

    Returns:
        moves: Number to add to the iteration numbers of each rank.
        offset_ns: Correction in ns to add to each machine's clock, or 0 if the machine is not
            linked.
        is_known: Whether the shifts of all pairs are known.
        links: Links that joined machine clocks, or else the closest candidates. There is at most
            one link for each machine except the reference machine.
    """
    machine = recordings.machine_of_rank
    neighbors = _list_neighbors(recordings, working)
    linked_ns, links = link_machines(histories, neighbors, machine, recordings.timed)
    linked_machines = list(linked_ns)
    offset_ns = np.zeros(int(machine.max(initial=0)) + 1, np.int64)
    offset_ns[linked_machines] = list(linked_ns.values())
    machines_of_pair = np.stack((machine[neighbors[0]], machine[neighbors[1]]))
    is_same_machine = machines_of_pair[0] == machines_of_pair[1]
    is_comparable = is_same_machine | np.isin(machines_of_pair, linked_machines).all(axis=0)
    by_ns = offset_ns[machines_of_pair[1]] - offset_ns[machines_of_pair[0]]
    shift_of_pair = _find_comparable_shifts(histories, neighbors, by_ns, is_comparable)
    is_known = None not in shift_of_pair
    return _add_shifts(neighbors, shift_of_pair, len(machine)), offset_ns, is_known, links


def _find_comparable_shifts(
    histories: Histories, neighbors: _Neighbors, by_ns: Ints, is_comparable: Bools
) -> list[int | None]:
    """Find the shift for each rank pair whose clocks can be compared.

    Args:
        histories: Iteration times of all ranks.
        neighbors: Rank pairs to compare.
        by_ns: For each pair, the correction in ns that converts the second rank's clock to the
            first rank's clock.
        is_comparable: Mask of the pairs on one machine or on two linked machines.

    Returns:
        For each pair, the iteration number on the first rank minus the number of the same iteration
        on the second rank. None if it is unknown or the clocks cannot be compared.
    """
    rows = np.flatnonzero(is_comparable)
    first, second, is_replica = neighbors
    shifts = find_shifts(histories, first[rows], second[rows], by_ns[rows], is_replica[rows])
    shift_of_pair: list[int | None] = [None] * len(is_comparable)
    for pair, shift in zip(rows.tolist(), shifts, strict=True):
        shift_of_pair[pair] = shift
    return shift_of_pair


def _add_shifts(neighbors: _Neighbors, shift_of_pair: Sequence[int | None], n_ranks: int) -> Ints:
    """Add up the shifts of rank pairs to get one shift per rank.

    The shift of the second rank of a pair is the shift of the first rank plus the shift of the
    pair.

    Args:
        neighbors: Rank pairs. The first rank in each pair is either the reference rank, or the
            second rank of an earlier pair.
        shift_of_pair: Shift of the second rank relative to the first in each pair. None means
            unknown and is treated as 0.
        n_ranks: Number of ranks.

    Returns:
        Shift of each rank. The shift is 0 for the reference rank and for ranks in no pair.
    """
    moves = np.zeros(n_ranks, np.int64)
    first, second, _ = neighbors
    for neighbor, rank, shift in zip(first.tolist(), second.tolist(), shift_of_pair, strict=True):
        moves[rank] = moves[neighbor] + (shift or 0)
    return moves


def _list_neighbors(recordings: JoinedRecordings, working: Ints) -> _Neighbors:
    """Return the rank pairs whose iterations are compared.

    Ranks are sorted and then paired by :func:`_pair_neighbors`. The pipelines with the most ranks
    whose stage is known come first so that other pipelines are compared with them. Within a
    pipeline, ranks are sorted by stage, with unknown stages last.

    Args:
        recordings: The recordings, with virtual stages and pipelines.
        working: Ranks that ran forwards or backwards on the GPU.
    """
    stage, pipeline = recordings.stage_of_rank, recordings.pipeline
    n_pipelines = int(pipeline.max(initial=0)) + 1
    n_stages = np.bincount(pipeline[stage >= 0] + 1, minlength=n_pipelines + 1)
    unknown_last = np.where(stage < 0, np.iinfo(np.int64).max, stage)[working]
    order = sort_rows(-n_stages[pipeline + 1][working], pipeline[working], unknown_last)
    # In a forward-only run, early stages may be several iterations ahead of late stages.
    is_loose = ((stage < 0) | (pipeline < 0)) & (run_kind(recordings.operations.phase) != INFERENCE)
    in_step = np.where(is_loose, recordings.machine_of_rank, NONE)
    return _pair_neighbors(working[order], pipeline, stage, in_step)


def _pair_neighbors(order: Ints, pipeline: Ints, stage: Ints, in_step: Ints) -> _Neighbors:
    """Return the rank pairs to compare: each rank with the previous rank in the same pipeline.

    The first rank of a pipeline has no previous rank. Such a rank is compared with the first rank
    in ``order`` on the same stage, or with the first rank in ``order`` if it is itself the first on
    its stage. A pair is treated as replicas in each of these cases:

    - The second rank is the first rank of its pipeline.
    - Both ranks are on the same known stage.
    - Both ranks have the same clock number in ``in_step``.

    Args:
        order: The ranks, sorted by pipeline.
        pipeline: Pipeline of each rank, or -1 if unknown.
        stage: Stage of each rank, or -1 if unknown.
        in_step: Clock number of each rank, or -1 if it is known which ranks the rank waits for.

    Returns:
        neighbor: For each rank in ``rank``, the rank with which it is compared.
        rank: All ranks of ``order`` except the first.
        is_replica: Mask of the pairs that are treated as replicas.
    """
    above, rank = order[:-1], order[1:]
    first = pipeline[above] != pipeline[rank]
    of_stage = group_rows(stage[order])
    neighbor = np.where(first, order[of_stage.first[of_stage.of_row[1:]]], above)
    neighbor = np.where(neighbor == rank, order[:1], neighbor)
    is_same_stage = (stage[neighbor] == stage[rank]) & (stage[rank] >= 0)
    is_same_clock = (in_step[neighbor] == in_step[rank]) & (in_step[rank] >= 0)
    return neighbor, rank, first | is_same_stage | is_same_clock


def _pair_by_name(recordings: JoinedRecordings) -> JoinedRecordings:
    """Pair the iterations of all ranks by the iteration numbers in range names.

    An iteration without a name is identified by its distance from the nearest named iteration of
    its rank in the same capture. ``paired`` is set to True. The common iteration of an operation is
    -1 in these cases:

    - No rank works in the iteration.
    - The rank runs no forward or backward in the iteration, and no name contains its number.
    """
    operations = recordings.operations
    iteration_in_name = recordings.named_iteration
    works = recordings.works
    # Most operations are in the same iteration as the previous one.
    rows = find_run_starts(operations.rank, operations.iteration, iteration_in_name, works)
    lengths = np.diff(rows, append=len(iteration_in_name))
    rank, iteration = operations.rank[rows], operations.iteration[rows]
    owners = group_rows(rank, iteration)
    number, is_idle = _find_names(iteration_in_name[rows], works[rows], owners.of_row, iteration)
    rank, iteration = rank[owners.first], iteration[owners.first]
    capture = _number_captures(recordings, rank, iteration, number)
    number = _number_idle_iterations(capture, number, is_idle)
    common, names = _match_named_iterations(capture, iteration, number, is_idle)
    return replace(
        recordings,
        common_iteration=np.repeat(common[owners.of_row], lengths),
        iteration_names=names,
        paired=True,
        iteration_numbers=(rank, iteration, common),
    )


def _number_captures(
    recordings: JoinedRecordings, rank: Ints, iteration: Ints, number: Ints
) -> Ints:
    """Number the captures of all ranks in ascending order of rank and time.

    A capture without any named iteration has the number of another capture of its rank.

    Args:
        recordings: The recordings, with the iterations at which captures start.
        rank: Rank of each (rank, iteration), sorted by rank and iteration.
        iteration: Iteration number on the rank.
        number: Iteration number in range names, or -1 if there is none.

    Returns:
        Number of each (rank, iteration)'s capture.
    """
    resumed_rank, _ = recordings.resumed
    is_start = mask_run_starts(rank)
    if not len(resumed_rank):
        return np.cumsum(is_start)
    marks = np.ones(len(resumed_rank), np.int64)
    is_resumed = lookup_values(recordings.resumed, marks, (rank, iteration)) == 1
    capture = np.cumsum(is_start | is_resumed)
    has_name = make_mask(int(capture[-1]) + 1, capture[number >= 0])[capture]
    n_named: Ints = np.cumsum(number >= 0) - (number >= 0)
    has_earlier_name: Bools = n_named > n_named[np.searchsorted(rank, rank)]
    return np.cumsum(is_start | (is_resumed & has_name & has_earlier_name))


def _match_named_iterations(
    capture: Ints, iteration: Ints, number: Ints, is_idle: Bools
) -> tuple[Ints, tuple[str, ...]]:
    """Match iterations on different ranks by name, or by their distance from a named iteration.

    Two iterations match if they have the same distance from the same named iteration. All arguments
    have one entry per (capture, iteration), sorted by capture and iteration.

    Args:
        capture: Number of the entry's capture. The captures of all ranks have different numbers.
        iteration: Iteration number on the rank. The entry -1 stands for operations in no iteration.
        number: Iteration number in range names, or -1 if there is none.
        is_idle: Mask of the entries in which the rank runs no forward or backward.

    Returns:
        common: Common iteration of each entry, equal for matching iterations. The number is -1 if
            no rank works in the iteration, or if the rank is idle and no name contains the number.
        names: Name of each common iteration (:func:`_name_iteration`).
    """
    used = np.flatnonzero((~is_idle | (number >= 0)) & (iteration >= 0))
    anchor, away = _find_nearest_named(capture[used], number[used])
    pairs = group_rows(anchor, away)
    pair_of_iteration = scatter(len(capture), used, pairs.of_row)
    is_worked = make_mask(len(pairs), pair_of_iteration[~is_idle & (pair_of_iteration >= 0)])
    pairs_with_work = np.flatnonzero(is_worked)
    first = pairs.first[pairs_with_work]
    names = tuple(map(_name_iteration, anchor[first].tolist(), away[first].tolist()))
    return find_positions(pairs_with_work, pair_of_iteration), names


def _find_names(
    iteration_in_name: Ints, works: Bools, owner: Ints, iteration: Ints
) -> tuple[Ints, Bools]:
    """Return each (rank, iteration)'s iteration number in names, and which of them are idle.

    Args:
        iteration_in_name: Iteration number in the name of each operation, or -1 if there is none.
        works: Mask of the operations that are forwards or backwards.
        owner: Index of the (rank, iteration) of each operation.
        iteration: Iteration of each operation, or -1 if it belongs to none.

    Returns:
        number: For each (rank, iteration), the largest number in the names of its forwards and
            backwards. If there are no forwards and backwards, the largest number in the name of any
            operation is used. The number is -1 if no name contains one.
        is_idle: Mask of the (rank, iteration) pairs without a forward or backward.
    """
    n_owners = int(owner.max(initial=NONE)) + 1
    _, number = group_extents(
        owner[works], n_owners, iteration_in_name[works], iteration_in_name[works]
    )
    is_idle = ~make_mask(n_owners, owner[works])
    is_idle_row = (iteration >= 0) & is_idle[owner]
    np.maximum.at(number, owner[is_idle_row], iteration_in_name[is_idle_row])
    return number, is_idle


def _number_idle_iterations(capture: Ints, number: Ints, is_idle: Bools) -> Ints:
    """Correct the numbers of idle iterations, in which a rank runs only an Optimizer.

    The Optimizer of an idle iteration may be outside every range that names an iteration. The
    iteration then has the same number as the rank's previous iteration, or -1 at the start of a
    recording. Two corrections are made:

    - Repeated numbers are counted up (:func:`_advance_repeated`).
    - Numbers at the start are counted down from the next iteration (:func:`_number_leading`).

    A new number is used only if at least one rank worked in the iteration with this number.

    Args:
        capture: Number of each iteration's capture, ascending. A capture's iterations are in order.
        number: Iteration number in range names, or -1 if there is none.
        is_idle: Mask of the iterations in which the rank runs no forward or backward.

    Returns:
        Corrected number of each (rank, iteration), or -1 if it has none.
    """
    number = _advance_repeated(capture, number, is_idle)
    return _number_leading(capture, number, is_idle)


def _advance_repeated(capture: Ints, number: Ints, is_idle: Bools) -> Ints:
    """Count up the numbers of idle iterations that repeat the number of an earlier iteration.

    If several consecutive idle iterations of a rank have the same number as the iteration before
    them, the n-th idle iteration gets this number plus n: 5, 5, 5 becomes 5, 6, 7. A new number is
    used only if at least one rank worked in the iteration with this number. All other numbers are
    unchanged.

    Args:
        capture: Number of each iteration's capture, ascending. A capture's iterations are in order.
        number: Iteration number in range names, or -1 if there is none.
        is_idle: Mask of the iterations in which the rank runs no forward or backward.
    """
    follows = np.append(False, capture[1:] == capture[:-1])
    has_previous_number = number == np.append(NONE, number[:-1])
    repeats = follows & is_idle & (number >= 0) & has_previous_number
    row = np.arange(len(number))
    first = np.maximum.accumulate(np.where(repeats, 0, row))
    following = number + row - first
    return np.where(repeats & np.isin(following, number[~is_idle]), following, number)


def _number_leading(capture: Ints, number: Ints, is_idle: Bools) -> Ints:
    """Number the idle iterations before the first working iteration of each rank.

    Idle iterations without a number are counted down from the next iteration of the rank that has
    work or a number: -1, -1, 5 becomes 3, 4, 5. A new number is used only if at least one rank
    worked in the iteration with this number. All other numbers are unchanged.

    Args:
        capture: Number of each iteration's capture, ascending. A capture's iterations are in order.
        number: Iteration number, or -1 if there is none.
        is_idle: Mask of the iterations in which the rank runs no forward or backward.
    """
    row = np.arange(len(number))
    start = np.searchsorted(capture, capture)
    n_busy = np.cumsum(~is_idle)
    n_before: Ints = n_busy - ~is_idle
    leads = is_idle & (number < 0) & (n_before == n_before[start])
    last = len(row) - 1
    next_row = np.minimum.accumulate(np.where(leads, last, row)[::-1])[::-1]
    preceding = np.where(capture[next_row] == capture, number[next_row] - (next_row - row), NONE)
    return np.where(leads & np.isin(preceding, number[~is_idle]), preceding, number)


def _find_nearest_named(capture: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Find the named iteration nearest to each iteration.

    The nearest named iteration is the iteration itself if it has a name. Otherwise, it is the last
    named iteration before it on the same rank, or else the first named iteration of the rank. Every
    rank must have a named iteration.

    Args:
        capture: Number of each iteration's capture, ascending. A capture's iterations are in order.
        number: Iteration number in names, or -1 if there is none.

    Returns:
        anchor: Number of the nearest named iteration.
        away: Distance from the nearest named iteration, in iterations. Negative for iterations
            before it.
    """
    row = np.arange(len(capture))
    start = np.searchsorted(capture, capture)
    last = np.maximum.accumulate(np.where(number >= 0, row, NONE))
    later = np.where(number >= 0, row, len(row))
    later = np.minimum.accumulate(later[::-1])[::-1]
    later = np.minimum(later, len(row) - 1)
    anchor = np.where(last >= start, last, later)
    return number[anchor], row - anchor


def _name_iteration(number: int, away: int) -> str:
    """Return the name of an iteration, such as "5", "after 5", "after 5 (2)" or "before 5".

    Args:
        number: Number of the named iteration from which the distance is counted.
        away: Distance from the named iteration. Negative for iterations before it.
    """
    if away == 0:
        return str(number)
    where = f"after {number}" if away > 0 else f"before {number}"
    return where if abs(away) == 1 else f"{where} ({abs(away)})"


#: Minimum evidence, in nats, from comparing iteration times. Weaker evidence is not reported.
_WORTH = 1.0
_EVIDENCE = "data dependencies, capture times, iteration counts and UTC"
_TO_TELL = (
    "name iterations in ranges, record more iterations, or record all ranks from before the first "
    "to after the last iteration"
)


def _list_limitations(recordings: JoinedRecordings, links: Sequence[Link]) -> Iterator[Limitation]:
    """Yield a limitation if iterations are unpaired, or were paired across hosts by links.

    The limitation names the least certain link, which has the smallest margin. If iterations are
    not paired, only undecided links are considered.

    Args:
        recordings: The recordings after pairing.
        links: Links that joined machine clocks, or else the closest candidates.
    """
    links = sorted(links, key=lambda link: link.margin)
    undecided = [link for link in links if not link.decided]
    if not recordings.paired:
        reason = f" {describe_undecided(undecided[0], recordings.ranks)}." if undecided else ""
        has_several_machines = len({rank.machine for rank in recordings.ranks}) > 1
        clocks = (
            ", and host clocks cannot be aligned by data dependencies"
            if has_several_machines
            else ""
        )
        # The parallel sizes would show which ranks wait for each other.
        places = np.minimum(recordings.pipeline, recordings.stage_of_rank)[recordings.working]
        sizes = "pass --parallel tp=,pp=,dp=, " if (places < 0).any() else ""
        yield Limitation(
            "iterations across ranks",
            "they could not be matched, so ratios over ranks are left out"
            f"{clocks}.{reason} To match them, {sizes}{_TO_TELL}",
            max(len(undecided), 1),
            LimitationKind.ITERATIONS_UNPAIRED,
        )
    elif links:
        weakest = links[0]
        odds = f"10^{weakest.margin / np.log(10):.0f}"
        sure = f"is {odds} times less likely"
        lengths = ", and by event times"
        if weakest.fit < _WORTH:
            sure = "would require clocks that are wrong by more than half an iteration"
            lengths = ""
        yield Limitation(
            "iterations across hosts",
            f"unnamed iterations were matched by {_EVIDENCE}{lengths}. The least certain match is "
            f"between {name_hosts(weakest, recordings.ranks)}: the next best match "
            f"{describe_rival(weakest)} and {sure}. To be sure, name iterations in ranges",
            len(links),
            LimitationKind.ITERATIONS_MATCHED,
        )
