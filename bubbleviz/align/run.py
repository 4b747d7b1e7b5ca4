"""The run: all profiles merged, on one clock, with ranks and operations in the report's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from bubbleviz.align.alignment import Alignment, RunHints, align_recordings
from bubbleviz.align.clocks.timebase import Timebase
from bubbleviz.align.join import JoinedRecordings, correct_clocks
from bubbleviz.align.meetings import met, without_members
from bubbleviz.align.profile_clocks import ProfileClock, subtract_sessions
from bubbleviz.align.ranks import find_excluded_ranks, ranks_of
from bubbleviz.align.receiving_kernels import contradicting_kernels, receiving_kernels
from bubbleviz.align.recorded_devices import convert_to_run_clock
from bubbleviz.align.stage_layers import StageLayers, layers_of_stages
from bubbleviz.align.waiting_kernels import waiting_kernels
from bubbleviz.interpret.recording import Recording, Recordings
from bubbleviz.interpret.start_skew import RecordedDevice
from bubbleviz.model import operations as tables
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import Ints, scattered
from bubbleviz.model.grouping import begins, expanded, heads, sorted_rows
from bubbleviz.model.limitations import Limitation

IntervalsT = TypeVar("IntervalsT", tables.RankIntervals, tables.RunningTimes, CollectiveIntervals)


@dataclass(frozen=True)
class Run:
    """All profiles merged into one run: the input of counting.

    Attributes:
        ranks: Ranks in pipeline order. The ``rank`` columns contain their indices.
        clocks: Clock of each profile, in the given order.
        timebase: Uncertainty of the clocks of all machines.
        operations: Operations by (rank, start), on the report's clock.
        busy: Busy intervals of the operations.
        active_ns: Length of the union of the compute kernels, shape (iterations, ranks).
        kernel_ns: Time for which any kernel or copy ran between the first start and the last end of
            the work of an iteration on a rank, same shape.
        gap_ns: Time for which none ran while work kept the rank busy (launch gaps), same shape.
        collective_gap_ns: Time for which a collective ran without a compute kernel while an
            operation kept the rank busy, same shape.
        running: Running times of kernels and copies in and between iterations.
        unattributed: Compute outside all compute operations.
        exposed: Intervals in which a rank ran no operation, only communication between more than
            two ranks.
        collectives: Collectives of all ranks, with numbers for their meetings.
        overheads: Intervals in which the profiler delayed the process of a rank.
        unrecorded: When a rank may have run work that was launched and not recorded.
        hosts: Activities of launching threads before late launches.
        iteration_names: Names of the iterations.
        paired: Whether the matching of iterations between ranks is known.
        stages_missing: Whether some virtual stages of the run are in no profile.
        ranks_missing: Whether some ranks of the run are in no profile.
        pipeline_unproven: Whether nothing shows that the ranks are stages instead of replicas of
            one stage.
        ends_early: Whether stages may be missing after the last recorded stage.
        order_refutes: Whether a schedule that the ranks kept exactly refutes that stages may be
            missing.
        limitations: Properties that could not be determined.
        rank_of_local: For each profile, the index in the run of each of its ranks.
        pauses: Intervals in which nothing was recorded on a rank.
        layers: Work of layers on each virtual stage; empty without layer ranges.
        recorded_start_ns: Time at which the recording of each rank's profile began.
        recorded: For each device, when its recording began and what it waited in.
        profile_hosts: Name of the host of each profile. Machines that share a hostname have
            different names.
        has_kernels: Whether all profiles contain kernels, which tables of operations do not.
    """

    ranks: tuple[tables.Rank, ...]
    clocks: tuple[ProfileClock, ...]
    timebase: Timebase
    operations: tables.Operations
    busy: tables.BusyIntervals
    active_ns: Ints
    kernel_ns: Ints
    gap_ns: Ints
    collective_gap_ns: Ints
    running: tables.RunningTimes
    unattributed: tables.RankIntervals
    exposed: tables.RankIntervals
    collectives: CollectiveIntervals
    overheads: tables.RankIntervals
    unrecorded: tables.RankIntervals
    hosts: tables.HostActivities
    iteration_names: tuple[str, ...]
    paired: bool
    stages_missing: bool
    ranks_missing: bool
    pipeline_unproven: bool
    limitations: tuple[Limitation, ...]
    rank_of_local: tuple[Ints, ...]
    recorded_start_ns: Ints
    pauses: tables.RankIntervals = field(default_factory=tables.RankIntervals.none)
    layers: tuple[StageLayers, ...] = ()
    ends_early: bool = False
    order_refutes: bool = True
    recorded: tuple[RecordedDevice, ...] = ()
    profile_hosts: tuple[str, ...] = ()
    has_kernels: bool = True


def merge(parts: Recordings, hints: RunHints) -> Run:
    """Merge recordings into one run.

    Args:
        parts: One recording per clock of a profile.
        hints: Statements of the user about the run.

    Raises:
        MismatchError: The profiles are not from a single run.
        UsageError: ``hints.order`` does not name every rank once.
    """
    recordings = parts.recordings
    alignment = align_recordings(parts, hints)
    place, time = alignment.place, alignment.time
    corrections = subtract_sessions(time.clocks, alignment.sessions)
    joined = correct_clocks(alignment.joined, corrections)
    ranks = ranks_of(joined, place)
    collectives = met(joined, time, hints.parallel)
    limitations = (
        *alignment.limitations,
        *find_excluded_ranks(joined),
        *_find_waiting_kernels(recordings, alignment, hints),
        *without_members(collectives, joined.exposed),
    )
    renumbered = replace(
        joined.operations,
        rank=place[joined.operations.rank],
        iteration=joined.common_iteration,
        stages=tuple(rank.stage for rank in ranks),
        global_ranks=tuple(rank.global_rank for rank in ranks),
    )
    hosts = joined.hosts.changed(rank=place[joined.hosts.rank])
    operations, busy, hosts, new_row = _sort_operations(renumbered, joined.busy, hosts)
    collectives = collectives.changed(operation=new_row[collectives.operation])
    times = _tabulate_active_times(joined, place)
    n_ranks = [len(recording.ranks) for recording in recordings]
    bounds = np.cumsum([0, *n_ranks]).tolist()
    rank_of_local = tuple(place[first:stop] for first, stop in pairwise(bounds))
    recorded = convert_to_run_clock(recordings, time.clocks, is_contradicted=time.contradicted)
    by_place = np.argsort(place)
    return Run(
        ranks=ranks,
        clocks=time.clocks,
        timebase=replace(time, machine=time.machine[by_place]),
        operations=operations,
        busy=busy,
        active_ns=times["active_ns"],
        kernel_ns=times["kernel_ns"],
        gap_ns=times["gap_ns"],
        collective_gap_ns=times["collective_gap_ns"],
        running=_sort_intervals(joined.running, place),
        unattributed=_sort_intervals(joined.unattributed, place),
        exposed=_sort_intervals(joined.exposed, place),
        collectives=_sort_intervals(collectives, place),
        overheads=_sort_intervals(joined.overheads, place),
        unrecorded=_sort_intervals(joined.unrecorded, place),
        hosts=hosts,
        iteration_names=joined.iteration_names,
        paired=joined.paired,
        stages_missing=joined.stages_missing,
        ranks_missing=joined.ranks_missing,
        pipeline_unproven=joined.pipeline_unproven,
        ends_early=joined.ends_early,
        order_refutes=joined.order_refutes,
        limitations=limitations,
        rank_of_local=rank_of_local,
        pauses=_sort_intervals(joined.pauses, place),
        recorded_start_ns=joined.recorded_start_ns[by_place],
        layers=layers_of_stages(recordings, operations, rank_of_local),
        recorded=tuple(recorded),
        profile_hosts=alignment.hosts,
        has_kernels=all(rank.local.told is None for rank in joined.ranks),
    )


def _find_waiting_kernels(
    recordings: Sequence[Recording], alignment: Alignment, hints: RunHints
) -> tuple[Limitation, ...]:
    """Return limitations for kernels of unknown names that count as compute but wait.

    Args:
        recordings: All recordings of the run.
        alignment: Their stages, iterations and clocks.
        hints: Statements of the user about the run.
    """
    joined, time, sessions = alignment.joined, alignment.time, alignment.sessions
    waiting = waiting_kernels(recordings, time.clocks)
    if time.contradicted and hints.method != "utc":
        receiving = contradicting_kernels(recordings, alignment.captures, sessions, joined)
    else:
        receiving = receiving_kernels(recordings, sessions, joined)
    return (*waiting, *receiving)


def _tabulate_active_times(joined: JoinedRecordings, place: Ints) -> dict[str, Ints]:
    """Return the times for which ranks were active by name, each of shape (iterations, ranks).

    Args:
        joined: The recordings with paired iterations.
        place: Index of each rank in the report.
    """
    active = joined.active
    iteration = joined.common_iterations_of(active.rank, active.iteration)
    is_paired = iteration >= 0
    cells = iteration[is_paired], place[active.rank[is_paired]]
    times = {}
    for name in ("active_ns", "kernel_ns", "gap_ns", "collective_gap_ns"):
        by_iteration = np.zeros((len(joined.iteration_names), len(place)), np.int64)
        by_iteration[cells] = getattr(active, name)[is_paired]
        times[name] = by_iteration
    return times


def _sort_intervals(table: IntervalsT, place: Ints) -> IntervalsT:
    """Return intervals by (index of the rank in the report, start)."""
    rank = place[table.rank]
    return replace(table, rank=rank).take(sorted_rows(rank, table.start_ns))


def _sort_operations(
    operations: tables.Operations, busy: tables.BusyIntervals, hosts: tables.HostActivities
) -> tuple[tables.Operations, tables.BusyIntervals, tables.HostActivities, Ints]:
    """Return operations by (rank, start), and the tables that refer to their rows.

    An operation without a span is sorted by its start on the host.

    Args:
        operations: Operations, with the indices of ranks in the report.
        busy: Busy intervals of these operations.
        hosts: Activities of launching threads before these operations.

    Returns:
        operations: The sorted operations.
        busy: Their busy intervals, in the same order.
        hosts: Activities of launching threads, in the same order.
        new_row: New row of each operation. An additional last entry is -1, so that -1 stays -1.
    """
    has_span = operations.has_span == 1
    start_ns = operations.start_ns
    if not has_span.all():
        start_ns = np.where(has_span, start_ns, operations.host_start_ns)
    order = _sort_nearly_sorted(operations.rank, start_ns, operations.host_start_ns)
    new_row = scattered(len(order) + 1, order, np.arange(len(order)))
    busy = busy.changed(operation=new_row[busy.operation])
    busy = busy.take(_sort_nearly_sorted(busy.operation, busy.start_ns))
    hosts = hosts.changed(operation=new_row[hosts.operation])
    hosts = hosts.take(sorted_rows(hosts.operation))
    return operations.take(order).compacted(), busy, hosts, new_row


def _sort_nearly_sorted(first: Ints, *then: Ints) -> Ints:
    """Return the order of rows by several columns; fast if each value of the first is sorted.

    Args:
        first: The first column. Equal values mostly form runs of rows.
        *then: Further columns, mostly in ascending order within these runs.
    """
    bounds = np.append(heads(first), len(first))
    begin, end = bounds[:-1], bounds[1:]
    runs = sorted_rows(first[begin])
    # Each run of equal values moves as a whole.
    order = expanded(begin[runs], end[runs])[1] if len(runs) < len(first) else runs
    rows = slice(None) if begins(first[begin[runs]]).all() else order
    ordered = first[rows]
    is_equal = ordered[1:] == ordered[:-1]
    for column in {id(column): column for column in then}.values():
        values = column[rows]
        if (is_equal & (values[1:] < values[:-1])).any():
            return sorted_rows(first, *then)
        is_equal &= values[1:] == values[:-1]
    return order
