"""Launch steps: the time that the launching thread of a rank takes from one launch to the next.

A host can be the bottleneck of a rank. It then launches no sooner if the GPU becomes faster, so a
replay with fixed launch delays promises too much. Instead, the time that the host takes is replayed
as separate work: a *launch step*, which has to end before the operation starts::

    host    ├── step of F1 ──┤├── step of F2 ──┤
    GPU     ├─ F0 ─┤         ├─ F1 ─┤          ├─ F2 ─┤

What a host does before it launches an operation is not recorded, but the launch times reveal it.
They are measured relative to four reference times. The host is assumed to follow the one relative
to which the rank's launches are most regular:

- ``INPUT``: the end of the operation's last predecessor, for example the transfer of its input. The
  host is not the bottleneck: it waits until everything is ready. The replay needs no launch step.
- ``START``: the start of the previous operation. The host is one operation ahead of the GPU.
- ``END``: the end of the previous operation. The host waits for the GPU.
- ``LAUNCH``: the previous launch. The host does not wait at all. This is ruled out if launches are
  more regular relative to an operation several positions earlier. Then the launch queue is full,
  and the GPU is the bottleneck.

A slow host can also run ahead of a GPU that is even slower. Some launches then wait for a full
queue, and only the others show how long the host takes (:func:`_find_queued_launches`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.diagnosis.late_starts import MIN_LATE_NS
from bubbleviz.explain.slowdown.message_order import chain_rows
from bubbleviz.explain.slowdown.slowdowns import Scenarios
from bubbleviz.explain.slowdown.work import COMPUTING, Kind, Role, Work, group_medians, has_role
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table, join_tables, scatter
from bubbleviz.model.grouping import (
    Groups,
    find_distinct,
    find_positions,
    find_run_starts,
    group_rows,
    sort_rows,
)
from bubbleviz.model.intervals import group_extents

_LAUNCH_STEP = Kind("launch step", Role.LAUNCH, "launch step")
#: Maximum deviation of a rank's launch steps from the medians of their groups, as a fraction of the
#: mean of these medians.
_MAX_DEVIATION = 0.2
#: A time is preferred to an earlier one in :class:`Follows` if its deviation is smaller than this
#: fraction of the other deviation.
_MORE_REGULAR = 0.5
#: Minimum number of operations in the queue of a host that does not wait for inputs. Maximum number
#: of operations in a full launch queue.
_MIN_QUEUE, _MAX_QUEUE = 2, 8
#: Minimum number of launches in which a regularity can be found.
_MIN_LAUNCHES = 6
#: Minimum launch step of a host that runs ahead of its GPU, as a fraction of the mean time of the
#: rank's operations. A faster host would not be the bottleneck even if the GPU became faster.
_MIN_HOST_STEP = 0.5
#: Maximum launch step of such a host without waiting time, as a multiple of its usual step.
_MAX_HOST_STEP = 1.5
#: Maximum fraction of the launches of such a host that come more than 20 us after ``INPUT``.
_MAX_LATE_LAUNCHES = 0.1


class Follows(IntEnum):
    """The time that the launches of a rank follow, in order of preference."""

    INPUT = 0
    START = 1
    END = 2
    LAUNCH = 3


@dataclass(frozen=True, eq=False, repr=False)
class LaunchSteps(Table):
    """Launch steps, one row per step.

    Attributes:
        row: Row of the step in the work table (:func:`append_launch_steps`).
        operation: Row of the work table that starts only after the step.
        previous: Row of the previous compute operation of the same rank, or -1 if ``operation`` is
            the first one of the iteration.
        follows: Time at which the step starts (:class:`Follows`), never ``INPUT``.
        start_ns: Start of the step, never before the iteration.
        end_ns: End of the step. This is the launch of ``operation``, unless the step was moved into
            the iteration (:func:`_list_later_steps`).
    """

    row: Ints
    operation: Ints
    previous: Ints
    follows: Ints
    start_ns: Ints
    end_ns: Ints

    def take_starting_together(self) -> LaunchSteps:
        """Return the steps that start at the same time as the previous operation."""
        return self.take(self.follows == Follows.START)


@dataclass(frozen=True, eq=False, repr=False)
class _Launches:
    """Launches of operations that follow another operation on the same rank and iteration.

    Rows are sorted by iteration, then by rank, then by the start of the operation.

    Attributes:
        row: Row of the operation in the work table.
        previous: Row of the rank's previous operation.
        part: Number of the operation's (iteration, rank) pair.
        is_complete: Whether the launches of all operations of this pair are known.
        launched_ns: Time at which the operation was launched.
        references_ns: Times that the launch may follow, shape (len(Follows), launches).
        ranks: Groups of launches with the same rank.
        kinds: Groups of launches with the same rank and the same kind of previous operation. A host
            needs the same time for all launches of a group.
    """

    row: Ints
    previous: Ints
    part: Ints
    is_complete: Bools
    launched_ns: Ints
    references_ns: Ints
    ranks: Groups
    kinds: Groups


@dataclass(frozen=True, eq=False, repr=False)
class _Queues:
    """Which launches waited for a full launch queue, one row per launch.

    Attributes:
        size: Size of the queue whose next place the launch waited for, or 0 if it did not wait. It
            is the largest size if several sizes explain the launch. It is 0 on ranks without such a
            queue, and in iterations with unknown launches.
        is_free: Whether the launch came more than 20 us after its place in the queue became free.
            False on ranks without such a queue, in iterations with unknown launches, and for the
            first operations of an iteration, whose places are unknown.
    """

    size: Ints
    is_free: Bools

    @property
    def has_waited(self) -> Bools:
        """Whether each launch waited for a place in the queue."""
        return np.asarray(self.size > 0, bool)


def find_launch_steps(scenarios: Scenarios, launched_ns: Ints, late_ns: Ints) -> LaunchSteps:
    """Return the launch steps of all ranks whose launches do not wait for inputs.

    - The first launch of an iteration has a step if it does not wait for an input
      (:func:`_find_independent_operations`).
    - Any other launch has a step if the launches of the rank follow a time other than ``INPUT``,
      or if the host runs ahead of its GPU (:func:`_measure_host_steps`).
    - A launch that comes before the time that it follows has no step.

    Args:
        scenarios: The work of the run, which starts with the compute operations.
        launched_ns: Launch time of each of these operations, or -1 if unknown.
        late_ns: Delay of each row of the work in ns that is due to a late launch, or 0.
    """
    work = scenarios.work
    launches = _list_launches(scenarios, launched_ns)
    follows = _choose_references(launches)
    begin_ns = _find_iteration_starts(work, late_ns)
    queues = _find_queued_launches(launches)
    first = _find_independent_operations(scenarios, launched_ns, launches, follows, queues)
    first_steps = _build_steps(
        first,
        np.full(len(first), NONE),
        np.full(len(first), Follows.LAUNCH),
        start_ns=np.maximum(begin_ns, _find_previous_ends(work))[first],
        end_ns=launched_ns[first],
    )
    steps = join_tables((first_steps, _list_later_steps(work, launches, follows, queues, begin_ns)))
    # Steps of length 0 are kept, because later steps follow them.
    steps = steps.take(steps.end_ns >= steps.start_ns)
    return steps.replace_columns(row=len(work) + np.arange(len(steps)))


def _build_steps(
    operation: Ints, previous: Ints, follows: Ints, start_ns: Ints, end_ns: Ints
) -> LaunchSteps:
    """Build launch steps that have no rows in the work table yet, so ``row`` is -1."""
    row = np.full(len(operation), NONE)
    return LaunchSteps(row, operation, previous, follows, start_ns, end_ns)


def _list_later_steps(
    work: Work, launches: _Launches, follows: Ints, queues: _Queues, begin_ns: Ints
) -> LaunchSteps:
    """List the launch steps of operations that follow another operation on their rank.

    A step begins at the time that the launches of the rank follow, but not before the iteration.
    The time that the host waits for a full launch queue is left out
    (:func:`_measure_working_steps`).

    Some hosts that run ahead of their GPU launch part of an iteration before it begins. If they
    could launch all of it after it began (:func:`_mask_hosts_with_spare_time`), the steps are moved
    into the iteration, because the host takes this time in any case.

    Args:
        work: Work table of all ranks.
        launches: Launches of all ranks.
        follows: Time that the launches of each rank follow (:class:`Follows`).
        queues: Launches that waited for a full launch queue.
        begin_ns: Start of the iteration of each row of the work.
    """
    follows = follows[launches.ranks.of_row]
    follows, step_ns, is_ahead = _measure_working_steps(launches, follows, queues)
    begin_ns = begin_ns[launches.row]
    start_ns = np.maximum(launches.launched_ns - step_ns, begin_ns)
    is_moved = is_ahead & _mask_hosts_with_spare_time(work, launches, begin_ns, step_ns)
    end_ns = np.where(is_moved, start_ns + step_ns, launches.launched_ns)
    later = np.flatnonzero(follows != Follows.INPUT)
    return _build_steps(
        launches.row[later],
        launches.previous[later],
        follows[later],
        start_ns[later],
        end_ns[later],
    )


def _measure_working_steps(
    launches: _Launches, follows: Ints, queues: _Queues
) -> tuple[Ints, Ints, Bools]:
    """Measure the launch steps without the time that hosts wait for a full launch queue.

    Hosts that run ahead of their GPU have a usual step (:func:`_measure_host_steps`). Their
    launches may follow ``INPUT`` or ``LAUNCH``. In both cases, the usual step replaces the steps of
    launches that waited for a place in the queue. If launches follow ``INPUT``, they are treated as
    if they followed ``LAUNCH``. The usual step then also replaces steps that are more than 1.5
    times as long.

    Args:
        launches: Launches of all ranks.
        follows: Time that each launch follows (:class:`Follows`).
        queues: Launches that waited for a full launch queue.

    Returns:
        follows: ``follows``, with ``INPUT`` replaced by ``LAUNCH`` if the host runs ahead.
        step_ns: Launch step of each launch in ns.
        is_ahead: Whether ``INPUT`` was replaced.
    """
    host_step_ns = _measure_host_steps(launches, queues)
    has_usual_step = ~np.isnan(host_step_ns)
    is_ahead = (follows == Follows.INPUT) & has_usual_step
    follows = np.where(is_ahead, Follows.LAUNCH, follows)
    reference_ns = launches.references_ns[follows, np.arange(len(follows))]
    step_ns = launches.launched_ns - reference_ns
    has_waited = (follows == Follows.LAUNCH) & has_usual_step & queues.has_waited
    has_waited |= is_ahead & (step_ns > _MAX_HOST_STEP * host_step_ns)
    step_ns[has_waited] = host_step_ns[has_waited].astype(np.int64)
    return follows, step_ns, is_ahead


def _mask_hosts_with_spare_time(
    work: Work, launches: _Launches, begin_ns: Ints, step_ns: Ints
) -> Bools:
    """Return a mask of the launches on ranks whose host has time to spare in every iteration.

    The host could begin to launch only when the iteration begins, and still launch each operation
    at most 20 us after its measured start.

    Args:
        work: Work table of all ranks.
        launches: Launches of all ranks.
        begin_ns: Start of the iteration of each launch.
        step_ns: Launch step of each launch.
    """
    is_first = np.diff(launches.part, prepend=NONE) != 0
    total_ns = np.cumsum(step_ns)
    preceding_ns = (total_ns - step_ns)[is_first][np.cumsum(is_first) - 1]
    launch_ns = begin_ns + total_ns - preceding_ns
    is_late = launch_ns > work.start_ns[launches.row] + MIN_LATE_NS
    n_late = np.bincount(launches.ranks.of_row, is_late, len(launches.ranks))
    return np.asarray(n_late == 0, bool)[launches.ranks.of_row]


def _find_independent_operations(
    scenarios: Scenarios,
    launched_ns: Ints,
    launches: _Launches,
    follows: Ints,
    queues: _Queues,
) -> Ints:
    """Return the first operation of each rank in each iteration if no input delays its launch.

    This applies to all iterations of a rank. At least one of the following must be true:

    - The launches of the rank follow a time other than ``INPUT``.
    - Launches of the rank wait for a queue of at least two operations, so they do not wait for an
      input.
    - The launches of the rank do not wait for their inputs (:func:`_mask_early_ranks`).
    - The first launch of an iteration usually comes earlier or later relative to its input than
      the other launches of the rank (:func:`_mask_unusual_leads`).

    Operations whose launch is unknown are left out.

    Args:
        scenarios: The work of the run, which starts with the compute operations.
        launched_ns: Launch time of each of these operations, or -1 if unknown.
        launches: Launches that follow another launch on their rank.
        follows: Time that the launches of each rank follow (:class:`Follows`).
        queues: Launches that waited for a full launch queue.
    """
    work = scenarios.work
    computes = np.flatnonzero(has_role(work.role[: len(launched_ns)], COMPUTING))
    order = computes[sort_rows(work.rank_iteration[computes], work.start_ns[computes])]
    first = order[find_run_starts(work.rank_iteration[order])]
    first = first[launched_ns[first] != NONE]
    input_ns = work.start_ns[first] - scenarios.delays_ns[first]
    is_independent = (follows != Follows.INPUT) | _mask_early_ranks(launches)
    has_queue = queues.size >= _MIN_QUEUE
    is_independent |= np.bincount(launches.ranks.of_row, has_queue, len(launches.ranks)) > 0
    ranks = work.rank[launches.row[launches.ranks.first]]
    rank_row = find_positions(ranks, work.rank[first])
    is_independent |= _mask_unusual_leads(launches, rank_row, input_ns - launched_ns[first])
    return np.asarray(first[np.isin(work.rank[first], ranks[is_independent])], np.int64)


def _mask_unusual_leads(launches: _Launches, rank_row: Ints, lead_ns: Ints) -> Bools:
    """Return a mask of the ranks whose first launches have a different lead from the others.

    The lead is the time from a launch to the input of the operation. If a host waits for inputs,
    all of its leads are about equal. Medians are compared. They differ if the difference is more
    than 20 % of the larger one, and more than 20 us.

    Args:
        launches: Launches that follow another launch on their rank.
        rank_row: Group of each first launch in ``launches.ranks``, or -1 if there is none.
        lead_ns: Lead of each first launch.

    Returns:
        One value per group of ``launches.ranks``.
    """
    ranks, n_ranks = launches.ranks, len(launches.ranks)
    later_ns = (launches.references_ns[Follows.INPUT] - launches.launched_ns).astype(np.float64)
    usual_ns = group_medians(ranks.of_row, n_ranks, later_ns)
    has_group = rank_row != NONE
    first_lead_ns = lead_ns[has_group].astype(np.float64)
    first_ns = group_medians(rank_row[has_group], n_ranks, first_lead_ns)
    limit_ns = np.maximum(
        _MAX_DEVIATION * np.maximum(np.abs(usual_ns), np.abs(first_ns)), MIN_LATE_NS
    )
    return np.asarray(np.nan_to_num(np.abs(first_ns - usual_ns)) > limit_ns, bool)


def _find_iteration_starts(work: Work, late_ns: Ints) -> Ints:
    """Return when the replica of each row began the iteration of the row.

    This is the start of its first work that is not communication, because receives can be posted
    before the iteration begins. Delays due to late launches are subtracted, because the iteration
    has begun when a host is late. The result is 0 for communication.

    Args:
        work: Work table of all ranks.
        late_ns: Delay of each row in ns that is due to a late launch, or 0.
    """
    rows = np.flatnonzero(~work.communicates)
    parts = group_rows(work.iteration[rows], work.replica[rows])
    ready_ns = (work.start_ns - late_ns)[rows]
    first_ns, _ = group_extents(parts.of_row, len(parts), ready_ns, ready_ns)
    begin_ns = np.zeros(len(work), np.int64)
    begin_ns[rows] = first_ns[parts.of_row]
    return begin_ns


def _find_previous_ends(work: Work) -> Ints:
    """Return when the rank of each row finished the previous iteration, or 0 if there is none.

    A rank that finishes an iteration late begins the next one late, but its host is not slow.
    """
    cells = group_rows(work.rank, work.iteration)
    _, end_ns = group_extents(cells.of_row, len(cells), work.start_ns, work.end_ns)
    rank = work.rank[cells.first]
    has_previous = rank[1:] == rank[:-1]
    previous_ns = np.append(0, np.where(has_previous, end_ns[:-1], 0))
    return np.asarray(previous_ns[cells.of_row], np.int64)


def append_launch_steps(
    work: Work, order: Dependencies, steps: LaunchSteps
) -> tuple[Work, Dependencies]:
    """Append launch steps to the end of the work table, and add their dependencies.

    - An operation follows its launch step.
    - A step that follows ``END`` follows the previous operation.
    - A step that follows ``START`` follows all predecessors of the previous operation. Its delay
      must be equal to the delay of that operation, so that both start at the same time.
    - A step that follows ``LAUNCH`` follows the previous step of the rank, if there is one. If not,
      it starts when the iteration begins.

    Args:
        work: Work table of all ranks.
        order: Dependencies of the work, as pairs of a row and one of its predecessors.
        steps: Launch steps of this work.
    """
    rows = steps.row
    step_of = scatter(len(work), steps.operation, rows)
    follows_end = steps.follows == Follows.END
    follows_start = steps.follows == Follows.START
    has_step = ~follows_end & (np.append(step_of, NONE)[steps.previous] != NONE)
    starts_with = scatter(len(work), steps.previous[follows_start], rows[follows_start])
    shared = order.take(starts_with[order.successor] != NONE)
    pairs = (
        order,
        Dependencies(steps.operation, rows),
        Dependencies(rows[follows_end], steps.previous[follows_end]),
        Dependencies(rows[has_step], step_of[steps.previous[has_step]]),
        Dependencies(starts_with[shared.successor], shared.predecessor),
    )
    step_work = _build_step_work(work, steps)
    return join_tables((replace(work, kinds=step_work.kinds), step_work)), join_tables(pairs)


def _build_step_work(work: Work, steps: LaunchSteps) -> Work:
    """Return one row of work per launch step. Its kinds also include the launch step."""
    return replace(
        work.take(steps.operation),
        kind=np.full(len(steps), len(work.kinds), np.int64),
        start_ns=steps.start_ns,
        end_ns=steps.end_ns,
        meeting=np.full(len(steps), NONE, np.int64),
        kinds=(*work.kinds, _LAUNCH_STEP),
    )


def _list_launches(scenarios: Scenarios, launched_ns: Ints) -> _Launches:
    """List the launches of compute operations that follow another launch on their rank.

    Operations without a launch time are skipped, so the previous operation is the last one whose
    launch is known.

    Args:
        scenarios: The work of the run, which starts with the compute operations.
        launched_ns: Launch time of each of these operations, or -1 if unknown.
    """
    work = scenarios.work
    computes = np.flatnonzero(has_role(work.role[: len(launched_ns)], COMPUTING))
    is_launched = launched_ns[computes] != NONE
    launched = computes[is_launched]
    row, previous = chain_rows(work, launched, work.rank_iteration[launched])
    incomplete_parts = find_distinct(work.rank_iteration[computes[~is_launched]])
    return _Launches(
        row=row,
        previous=previous,
        part=work.rank_iteration[row],
        is_complete=~np.isin(work.rank_iteration[row], incomplete_parts),
        launched_ns=launched_ns[row],
        references_ns=np.stack(
            (
                work.start_ns[row] - scenarios.delays_ns[row],
                work.start_ns[previous],
                work.end_ns[previous],
                launched_ns[previous],
            )
        ),
        ranks=group_rows(work.rank[row]),
        kinds=group_rows(work.rank[row], work.kind[previous]),
    )


def _choose_references(launches: _Launches) -> Ints:
    """Choose the time that the launches of each rank follow (:class:`Follows`).

    The deviation of a rank is the mean absolute deviation of its launch steps from the median of
    their group. A time replaces an earlier one in :class:`Follows` if its deviation is less than
    half as large. The result is ``INPUT`` if there are fewer than 6 launches. It is also ``INPUT``
    if the deviation exceeds 20 % of the mean of the medians, if this mean is at most 20 us, or if a
    full queue explains the launches (:func:`_mask_queued_ranks`).

    Returns:
        One value per group of ``launches.ranks``.
    """
    n_launches = np.bincount(launches.ranks.of_row)
    chosen = np.full(len(launches.ranks), Follows.INPUT, np.int64)
    least_ns = np.full(len(launches.ranks), np.inf)
    for follows in Follows:
        step_ns, median_ns = _compute_steps(launches, launches.references_ns[follows])
        mean_ns = _average_by_rank(launches, median_ns)
        deviation_ns = _average_by_rank(launches, np.abs(step_ns - median_ns))
        is_better = deviation_ns < _MORE_REGULAR * least_ns
        least_ns = np.where(is_better, deviation_ns, least_ns)
        is_regular = (deviation_ns <= _MAX_DEVIATION * mean_ns) & (mean_ns > MIN_LATE_NS)
        is_regular &= n_launches >= _MIN_LAUNCHES
        choice = np.where(is_regular, follows, Follows.INPUT)
        chosen = np.where(is_better, choice, chosen)
    if (chosen == Follows.LAUNCH).any():
        chosen[(chosen == Follows.LAUNCH) & _mask_queued_ranks(launches)] = Follows.INPUT
    return chosen


def _mask_queued_ranks(launches: _Launches) -> Bools:
    """Return a mask of the ranks whose launches wait for a free place in the launch queue.

    If the queue holds k operations, the host launches an operation when the operation k positions
    earlier starts or ends. A rank waits for its queue if its launches are more regular relative to
    one of these times than relative to the previous launch, for any k from 2 to 8::

        launches   F3      F4      F5            a queue of two: F4 is launched when F2 ends
        GPU      ├─ F1 ─┤├─ F2 ─┤├─ F3 ─┤

    Returns:
        One value per group of ``launches.ranks``.
    """
    is_queued = np.zeros(len(launches.ranks), bool)
    for depth in range(2, _MAX_QUEUE + 1):
        later, earlier = _pair_launches(launches, depth)
        launch_ns = _measure_deviations(launches, Follows.LAUNCH, later, later)
        # The previous operation of an earlier launch is ``depth`` positions before the later one.
        for follows in (Follows.START, Follows.END):
            is_queued |= _measure_deviations(launches, follows, later, earlier) < launch_ns
    return is_queued


def _find_queued_launches(launches: _Launches) -> _Queues:
    """Find the launches that waited for a free place in a full launch queue.

    A place in a queue of k operations becomes free when the operation k positions earlier starts,
    or when it ends. The queue of a rank holds k operations if no launch comes more than 20 us
    before this time, and if at least 6 launches come at most 20 us before or after it. These
    launches waited. All k from 1 to 8 are tried. Iterations of a rank with unknown launches are
    left out, because the known launches do not show which operation is k positions earlier.
    """
    size = np.zeros(len(launches.row), np.int64)
    is_free = np.zeros(len(launches.row), bool)
    for depth in range(1, _MAX_QUEUE + 1):
        later, earlier = _pair_launches(launches, depth)
        is_complete = launches.is_complete[later]
        later, earlier = later[is_complete], earlier[is_complete]
        rank = launches.ranks.of_row[later]
        for follows in (Follows.START, Follows.END):
            delay_ns = launches.launched_ns[later] - launches.references_ns[follows, earlier]
            is_prompt = np.abs(delay_ns) <= MIN_LATE_NS
            n_ranks = len(launches.ranks)
            has_queue = np.bincount(rank, delay_ns < -MIN_LATE_NS, n_ranks) == 0
            has_queue &= np.bincount(rank, is_prompt, n_ranks) >= _MIN_LAUNCHES
            size[later[is_prompt & has_queue[rank]]] = depth
            is_free[later[~is_prompt & has_queue[rank]]] = True
    return _Queues(size, is_free & (size == 0))


def _measure_host_steps(launches: _Launches, queues: _Queues) -> Floats:
    """Measure how long the hosts that run ahead of their GPUs take for each launch, in ns.

    This is the median launch step of the launches with the same rank and the same kind of previous
    operation that did not wait for the queue. If all of them waited, it is the mean step of the
    rank.

    Args:
        launches: Launches of all ranks.
        queues: Launches that waited for a full launch queue.

    Returns:
        One value per launch. NaN on ranks whose host does not run ahead
        (:func:`_mask_leading_hosts`), or whose steps deviate by more than 20 % of their mean
        from their medians.
    """
    free = np.flatnonzero(queues.is_free)
    rank = launches.ranks.of_row
    step_ns, median_ns = _compute_steps(
        launches, launches.references_ns[Follows.LAUNCH, free], free
    )
    mean_ns = _average_by_rank(launches, median_ns, free)
    deviation_ns = _average_by_rank(launches, np.abs(step_ns - median_ns), free)
    is_measured = _mask_leading_hosts(launches, queues, mean_ns)
    is_measured &= deviation_ns <= _MAX_DEVIATION * mean_ns
    of_kind_ns = group_medians(launches.kinds.of_row[free], len(launches.kinds), step_ns)
    host_step_ns = of_kind_ns[launches.kinds.of_row]
    host_step_ns = np.where(np.isnan(host_step_ns), mean_ns[rank], host_step_ns)
    return np.where(is_measured[rank], host_step_ns, np.nan)


def _mask_leading_hosts(launches: _Launches, queues: _Queues, mean_step_ns: Floats) -> Bools:
    """Return a mask of the ranks whose host is slow, but still runs ahead of the GPU.

    These conditions must be met:

    - At least one launch waited for a place in the queue, and at least 6 launches did not wait.
    - The mean step is at least half the mean time of the rank's operations.
    - At most 10 % of the launches come more than 20 us after ``INPUT``.

    Args:
        launches: Launches of all ranks.
        queues: Launches that waited for a full launch queue.
        mean_step_ns: Mean launch step on each rank of the launches that did not wait, in ns.

    Returns:
        One value per group of ``launches.ranks``.
    """
    rank, n_ranks = launches.ranks.of_row, len(launches.ranks)
    operation_ns = launches.references_ns[Follows.END] - launches.references_ns[Follows.START]
    mean_operation_ns = _average_by_rank(launches, operation_ns.astype(np.float64))
    late_ns = launches.launched_ns - launches.references_ns[Follows.INPUT]
    n_late = np.bincount(rank, late_ns > MIN_LATE_NS, n_ranks)
    is_leading = mean_step_ns >= _MIN_HOST_STEP * mean_operation_ns
    is_leading &= np.bincount(rank, queues.is_free, n_ranks) >= _MIN_LAUNCHES
    is_leading &= np.bincount(rank, queues.has_waited, n_ranks) > 0
    is_leading &= n_late <= _MAX_LATE_LAUNCHES * np.bincount(rank)
    return np.asarray(is_leading, bool)


def _pair_launches(launches: _Launches, depth: int) -> tuple[Ints, Ints]:
    """Pair launches with the launch whose previous operation is ``depth`` positions earlier.

    Launches that are too close to the start of their iteration are left out.
    """
    later = np.arange(depth - 1, len(launches.row))
    earlier = later - (depth - 1)
    is_same_part = launches.part[later] == launches.part[earlier]
    return later[is_same_part], earlier[is_same_part]


def _measure_deviations(
    launches: _Launches, follows: Follows, selected: Ints, followed: Ints
) -> Floats:
    """Return the mean absolute deviation of each rank's launch steps from their median, in ns.

    Args:
        launches: Launches of all ranks.
        follows: Time from which the steps are measured.
        selected: Indices of the launches to use.
        followed: For each of them, the index of the launch whose reference time it follows.

    Returns:
        One value per group of ``launches.ranks``, or 0 if none of its launches is selected.
    """
    reference_ns = launches.references_ns[follows, followed]
    step_ns, median_ns = _compute_steps(launches, reference_ns, selected)
    return _average_by_rank(launches, np.abs(step_ns - median_ns), selected)


def _mask_early_ranks(launches: _Launches) -> Bools:
    """Return a mask of the ranks whose launches do not wait for their inputs.

    Most of their launches come more than 20 us before ``INPUT``. In addition, the time from launch
    to ``INPUT`` must be irregular: the median of its deviations is more than 20 % of its mean, and
    more than 20 us.

    Returns:
        One value per group of ``launches.ranks``.
    """
    ranks = launches.ranks
    step_ns, median_ns = _compute_steps(launches, launches.references_ns[Follows.INPUT])
    n_early = np.bincount(ranks.of_row[step_ns < -MIN_LATE_NS], minlength=len(ranks))
    is_mostly_early = 2 * n_early > np.bincount(ranks.of_row)
    deviation_ns = group_medians(ranks.of_row, len(ranks), np.abs(step_ns - median_ns))
    lead_ns = np.abs(_average_by_rank(launches, median_ns))
    is_regular = deviation_ns <= np.maximum(_MAX_DEVIATION * lead_ns, MIN_LATE_NS)
    return np.asarray(is_mostly_early & ~is_regular, bool)


def _compute_steps(
    launches: _Launches, reference_ns: Ints, selected: Ints | slice = slice(None)
) -> tuple[Floats, Floats]:
    """Compute the launch steps, and the median of each step's group in ``launches.kinds``, in ns.

    Args:
        launches: Launches of all ranks.
        reference_ns: Time from which the step of each selected launch is measured. A step is
            negative if the launch came before this time.
        selected: Indices of the launches to use, all by default.
    """
    step_ns = (launches.launched_ns[selected] - reference_ns).astype(np.float64)
    kind = launches.kinds.of_row[selected]
    return step_ns, group_medians(kind, len(launches.kinds), step_ns)[kind]


def _average_by_rank(
    launches: _Launches, values: Floats, selected: Ints | slice = slice(None)
) -> Floats:
    """Return the mean value of each group of ``launches.ranks``, or 0 if it has no value.

    Args:
        launches: Launches of all ranks.
        values: One value per selected launch.
        selected: Indices of these launches, all by default.
    """
    rank, n_ranks = launches.ranks.of_row[selected], len(launches.ranks)
    count = np.maximum(np.bincount(rank, minlength=n_ranks), 1)
    return np.asarray(np.bincount(rank, values, n_ranks) / count, np.float64)
