"""The run: all profiles merged on one clock, with ranks and operations in the report's order.

Stages, iterations and clocks depend on each other. Stages and iterations are inferred first, from
times on the clocks of the profiling sessions. All ranks of a machine share one session clock::

    recordings ─ join ─ stages and iterations ─ clocks of all machines ─ run

If the clocks then show that several machines share a hostname, the recordings are aligned again
with separate machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from bubbleviz.align.captures import Captures, describe_captures, find_captures, join_captures
from bubbleviz.align.clocks.shared_names import (
    list_contradicting_hosts,
    list_shared_names,
    rename_hosts,
    separate_machines,
)
from bubbleviz.align.clocks.timebase import (
    Timebase,
    build_timebase,
    check_machines,
    find_rank_precedences,
)
from bubbleviz.align.iteration_slots import close_slots
from bubbleviz.align.join import JoinedRecordings, apply_clocks, join, merge_stream
from bubbleviz.align.meetings import find_incomplete_collectives, match_collectives
from bubbleviz.align.profile_clocks import (
    ProfileClock,
    build_session_clocks,
    find_machines,
    list_untimed_profiles,
    subtract_sessions,
)
from bubbleviz.align.ranks import build_ranks, find_excluded_ranks, order_ranks
from bubbleviz.align.receiving_kernels import find_contradicting_kernels, find_receiving_kernels
from bubbleviz.align.refusals import refuse_other_runs, refuse_unrelated_captures
from bubbleviz.align.stage_layers import StageLayers, build_stage_layers
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.align.stages.staging import find_stages
from bubbleviz.align.waiting_kernels import find_waiting_kernels
from bubbleviz.errors import UsageError
from bubbleviz.interpret.recording import Recording, Recordings
from bubbleviz.interpret.start_skew import RecordedDevice
from bubbleviz.model import operations as tables
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import Ints, scatter
from bubbleviz.model.grouping import expand_ranges, find_run_starts, mask_run_starts, sort_rows
from bubbleviz.model.limitations import Limitation, LimitationKind

IntervalsT = TypeVar("IntervalsT", tables.RankIntervals, tables.RunningTimes, CollectiveIntervals)


@dataclass(frozen=True)
class RunHints:
    """Information about a run provided by the user.

    Attributes:
        order: Rank indices in pipeline order, as numbered in a report without this option. Empty to
            infer the order from the data.
        parallel: Parallel sizes of the run, or None to infer which ranks are replicas.
        same_clock: Groups of hostnames. The hosts of a group share one clock.
        method: Alignment method, one of :data:`bubbleviz.model.choices.ALIGNMENTS`. None means
            ``causal``, but captures that are far apart in UTC are refused.
    """

    order: Sequence[int] = ()
    parallel: Parallel | None = None
    same_clock: Sequence[Sequence[str]] = ()
    method: str | None = None


@dataclass(frozen=True)
class Run:
    """All profiles, merged into the run whose idle times are counted.

    Attributes:
        ranks: Ranks in pipeline order. All ``rank`` columns are indices into this tuple.
        clocks: Clock of each profile, in the order of the profiles.
        timebase: The common clock, along with each machine's uncertainty.
        operations: Operations sorted by (rank, start), with times on the report's clock.
        busy: Busy intervals of the operations.
        active_ns: Time for which at least one compute kernel ran, shape (iterations, ranks).
        kernel_ns: Time for which any kernel or copy ran between the start and the end of the rank's
            work in the iteration, shape (iterations, ranks).
        gap_ns: Time for which an operation kept the rank busy but no kernel or copy ran (launch
            gaps), shape (iterations, ranks).
        collective_gap_ns: Time for which an operation kept the rank busy and a collective ran, but
            no compute kernel, shape (iterations, ranks).
        running: Running times of kernels and copies in and between iterations.
        unattributed: Intervals in which a rank ran compute kernels outside all compute operations.
        exposed: Intervals in which a rank ran no operation, only communication between more than
            two ranks.
        collectives: Collectives of all ranks. Rows that form a single collective have the same
            meeting number.
        overheads: Intervals in which the profiler delayed the process of a rank.
        unrecorded: Intervals in which a rank may have run work that was launched but not recorded.
        hosts: Activities of the launching threads before late launches.
        iteration_names: Names of the iterations.
        paired: Whether it is known which iterations correspond across ranks.
        stages_missing: Whether any of the run's virtual stages are known to be absent from all
            profiles.
        ranks_missing: Whether any of the run's ranks are known to be absent from all profiles.
        pipeline_unproven: Whether the ranks may be replicas of a single stage, because there is no
            evidence that they form a pipeline.
        ends_early: Whether stages may be missing after the last recorded stage.
        order_refutes: Whether an exact match of the order of operations with a known schedule would
            show that no stages are missing.
        limitations: Properties of the run that could not be determined.
        rank_of_local: One array per profile that maps the ranks of the profile to ``ranks``.
        pauses: Intervals in which nothing was recorded on a rank.
        layers: Kernel times per layer of each virtual stage. Empty if no profile has layer ranges.
        recorded_start_ns: For each rank, the time of the first kernel or call in its profile.
        recorded: What was recorded on each device: the recording's start and span, and its first
            and longest communication kernels.
        profile_hosts: Host name of each profile. Here, machines that share a hostname have
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
    pauses: tables.RankIntervals = field(default_factory=tables.RankIntervals.make_empty)
    layers: tuple[StageLayers, ...] = ()
    ends_early: bool = False
    order_refutes: bool = True
    recorded: tuple[RecordedDevice, ...] = ()
    profile_hosts: tuple[str, ...] = ()
    has_kernels: bool = True


def merge(parts: Recordings, hints: RunHints) -> Run:
    """Merge recordings into one run on one clock, with ranks numbered as in the report.

    Args:
        parts: The recordings, one per clock of a profile.
        hints: Information about the run provided by the user.

    Raises:
        MismatchError: The profiles are not from a single run.
        UsageError: ``hints.order`` does not contain every rank exactly once.
    """
    alignment = _align_recordings(parts, hints)
    rank_index, time = alignment.rank_index, alignment.time
    joined_recordings = apply_clocks(
        alignment.recordings, subtract_sessions(time.clocks, alignment.sessions)
    )
    ranks = build_ranks(joined_recordings, rank_index)
    collectives = match_collectives(joined_recordings, time, hints.parallel)
    limitations = (
        *alignment.limitations,
        *find_excluded_ranks(joined_recordings),
        *_find_waiting_kernels(parts, alignment, hints),
        *find_incomplete_collectives(collectives, joined_recordings.exposed),
    )
    renumbered = _renumber_operations(joined_recordings, ranks, rank_index)
    collectives = collectives.replace_columns(operation=renumbered.new_row[collectives.operation])
    times = _build_active_times(joined_recordings, rank_index)
    rank_of_local = _split_by_profile(
        rank_index[joined_recordings.rank_of_recorded], parts.recordings
    )
    rank_order = np.argsort(rank_index)
    return Run(
        ranks=ranks,
        clocks=time.clocks,
        timebase=replace(time, machine=time.machine[rank_order]),
        operations=renumbered.operations,
        busy=renumbered.busy,
        active_ns=times["active_ns"],
        kernel_ns=times["kernel_ns"],
        gap_ns=times["gap_ns"],
        collective_gap_ns=times["collective_gap_ns"],
        running=_sort_intervals(joined_recordings.running, rank_index),
        unattributed=_sort_intervals(joined_recordings.unattributed, rank_index),
        exposed=_sort_intervals(joined_recordings.exposed, rank_index),
        collectives=_sort_intervals(collectives, rank_index),
        overheads=_sort_intervals(joined_recordings.overheads, rank_index),
        unrecorded=_sort_intervals(joined_recordings.unrecorded, rank_index),
        hosts=renumbered.hosts,
        iteration_names=joined_recordings.iteration_names,
        paired=joined_recordings.paired,
        stages_missing=joined_recordings.stages_missing,
        ranks_missing=joined_recordings.ranks_missing,
        pipeline_unproven=joined_recordings.pipeline_unproven,
        ends_early=joined_recordings.ends_early,
        order_refutes=joined_recordings.order_refutes,
        limitations=limitations,
        rank_of_local=rank_of_local,
        pauses=_sort_intervals(joined_recordings.pauses, rank_index),
        recorded_start_ns=joined_recordings.recorded_start_ns[rank_order],
        layers=build_stage_layers(parts.recordings, renumbered.operations, rank_of_local),
        recorded=tuple(
            _convert_recorded_devices(
                parts.recordings, time.clocks, is_contradicted=time.contradicted
            )
        ),
        profile_hosts=alignment.hosts,
        has_kernels=all(rank.local.declared is None for rank in joined_recordings.ranks),
    )


@dataclass(frozen=True)
class _Renumbered:
    """Operations in the order of the report, and the tables that contain operation rows.

    Attributes:
        operations: Operations, sorted by (rank, start).
        busy: Busy intervals, sorted by (operation, start).
        hosts: Activities of launching threads, sorted by operation.
        new_row: New row of each operation, indexed by its old row. An additional last entry is -1
            so that row -1 stays -1.
    """

    operations: tables.Operations
    busy: tables.BusyIntervals
    hosts: tables.HostActivities
    new_row: Ints


def _renumber_operations(
    recordings: JoinedRecordings, ranks: Sequence[tables.Rank], rank_index: Ints
) -> _Renumbered:
    """Renumber the ranks and iterations of operations as in the report and sort the operations.

    Args:
        recordings: The recordings, with paired iterations.
        ranks: Ranks of the report.
        rank_index: Index of each rank in the report.
    """
    operations = replace(
        recordings.operations,
        rank=rank_index[recordings.operations.rank],
        iteration=recordings.common_iteration,
        stages=tuple(rank.stage for rank in ranks),
        global_ranks=tuple(rank.global_rank for rank in ranks),
    )
    hosts = recordings.hosts.replace_columns(rank=rank_index[recordings.hosts.rank])
    return _sort_operations(operations, recordings.busy, hosts)


def _split_by_profile(rank_index: Ints, recordings: Sequence[Recording]) -> tuple[Ints, ...]:
    """Split the report indices of all ranks into one array per recording.

    Args:
        rank_index: Report index of each rank, with ranks in the order of the recordings.
        recordings: The recordings, one per clock of a profile.
    """
    n_ranks = [len(recording.ranks) for recording in recordings]
    bounds = np.cumsum([0, *n_ranks]).tolist()
    return tuple(rank_index[first:stop] for first, stop in pairwise(bounds))


@dataclass(frozen=True)
class _Alignment:
    """Stages, paired iterations and clocks, assuming a machine for each profile.

    Attributes:
        machines: Assumed machine name of each profile.
        hosts: Host name of each profile.
        sessions: For each profile, the clock derived from its session start.
        recordings: The recordings, with stages, pipelines and iterations. Times are on the clocks
            in ``sessions``.
        rank_index: Index of each rank in the report.
        time: The common clock of all profiles.
        machine_notes: Limitations for ranks on one machine whose times contradict each other.
        limitations: All limitations of the alignment.
    """

    machines: tuple[str, ...]
    hosts: tuple[str, ...]
    sessions: tuple[ProfileClock, ...]
    recordings: JoinedRecordings
    rank_index: Ints
    time: Timebase
    machine_notes: tuple[Limitation, ...]
    limitations: tuple[Limitation, ...] = ()


def _align_recordings(parts: Recordings, hints: RunHints) -> _Alignment:
    """Find the stages, paired iterations and clocks of recordings.

    Captures that are far apart in UTC are refused unless the user sets the method ``causal``.

    Profiles with the same hostname may come from several machines. If the method is ``causal`` or
    None, and the clocks of such profiles contradict each other, the profiles are assigned to
    several machines and all recordings are aligned again.

    Args:
        parts: The recordings, one per clock of a profile.
        hints: Information about the run provided by the user.

    Raises:
        MismatchError: The profiles are not from a single run.
        UsageError: ``hints.order`` does not contain every rank exactly once.
    """
    sources = [recording.source for recording in parts.recordings]
    is_causal = hints.method == "causal"
    captures = find_captures(
        parts, find_machines(sources, hints.same_clock), allows_long_gaps=is_causal
    )
    notes: tuple[Limitation, ...] = ()
    if not is_causal:
        notes = refuse_unrelated_captures(parts, captures.machines)
    alignment = _align(parts, captures, hints)
    notes = (*notes, *describe_captures(alignment.recordings, captures))
    if hints.method in (None, "causal"):
        alignment, shared = _split_contradicting(alignment, parts, captures, hints)
        notes = (*notes, *shared)
    if hints.method == "utc":
        notes = (*notes, *list_untimed_profiles(sources, alignment.machines))
    limitations = (
        *notes,
        *alignment.time.limitations,
        *alignment.machine_notes,
        *alignment.recordings.limitations,
    )
    return replace(alignment, limitations=limitations)


def _align(parts: Recordings, captures: Captures, hints: RunHints) -> _Alignment:
    """Find the stages and clocks of recordings, given each profile's machine.

    Args:
        parts: The recordings, one per clock of a profile.
        captures: Machine name of each profile, and the captures of each process.
        hints: Information about the run provided by the user.

    Raises:
        MismatchError: The profiles are not from a single run.
        UsageError: ``hints.order`` does not contain every rank exactly once.
    """
    sources = [recording.source for recording in parts.recordings]
    machines = captures.machines
    sessions = build_session_clocks(sources, machines)
    recordings = join_captures(close_slots(join(parts, machines, sessions)), captures)
    refuse_other_runs(parts.recordings, recordings)
    recordings, rank_index = _find_stages(merge_stream(recordings), hints)
    return _Alignment(
        machines=machines,
        hosts=tuple(source.host for source in sources),
        sessions=sessions,
        recordings=recordings,
        rank_index=rank_index,
        time=build_timebase(recordings, sessions, _list_captures(parts), hints.method or "causal"),
        machine_notes=check_machines(recordings),
    )


def _list_captures(parts: Recordings) -> tuple[tuple[int, int], ...]:
    """Return the first and last time in each profile, on its uncorrected clock."""
    return tuple((recording.start_ns, recording.end_ns) for recording in parts.recordings)


def _find_stages(recordings: JoinedRecordings, hints: RunHints) -> tuple[JoinedRecordings, Ints]:
    """Find stages, pipelines and iterations, and the index of each rank in the report.

    If the user specifies an order of ranks, stages are found twice. The first pass ignores the
    order and yields the rank indices that the order uses. The second pass uses the order.

    Raises:
        UsageError: ``hints.order`` does not contain every rank exactly once.
    """
    staged = find_stages(recordings, parallel=hints.parallel)
    rank_index = order_ranks(staged)
    if not hints.order:
        return staged, rank_index
    # The order contains the indices of the ranks in a report without --order.
    if sorted(hints.order) != list(range(len(rank_index))):
        raise UsageError(
            f"--order {','.join(map(str, hints.order))}: must contain each rank from 0 to "
            f"{len(rank_index) - 1} exactly once; use the rank numbers shown without --order"
        )
    order = np.argsort(rank_index)[np.array(hints.order)].tolist()
    staged = find_stages(recordings, order, hints.parallel)
    return staged, order_ranks(staged)


def _split_contradicting(
    alignment: _Alignment, parts: Recordings, captures: Captures, hints: RunHints
) -> tuple[_Alignment, tuple[Limitation, ...]]:
    """Assign profiles of one hostname to several machines if their clocks contradict each other.

    All recordings are then aligned again. If iterations can no longer be paired, or if a
    contradiction remains, the stages or the times of operations are probably wrong. In this case,
    the machines are left unchanged, and a limitation reports the contradiction.

    Nothing is checked in each of the following cases:

    - The user or a table declares which clocks are shared.
    - Every profile is from a separate machine.
    - Iterations are not paired.

    Args:
        alignment: The alignment that assumes one machine per hostname.
        parts: The recordings, one per clock of a profile.
        captures: Machine name of each profile, and the captures of each process.
        hints: Information about the run provided by the user.

    Returns:
        alignment: A new alignment if machines were separated. Otherwise, the given alignment is
            returned, and its ``machine_notes`` may report the contradiction.
        notes: Limitations for hostnames that several machines share or may share.
    """
    recordings = alignment.recordings
    given_hosts = {host for group in hints.same_clock for host in group}
    is_given = any(recording.source.host in given_hosts for recording in parts.recordings)
    is_given |= any(clock is not None and clock.aligned for clock in recordings.declared_clocks)
    shares_machine = len(alignment.machines) > len(set(alignment.machines))
    if is_given or not shares_machine or not recordings.paired:
        return alignment, ()
    machines = separate_machines(recordings, find_rank_precedences(recordings))
    if machines is None:
        return alignment, ()
    renamed = rename_hosts(parts, alignment.machines, machines)
    separated = _align(renamed, replace(captures, machines=machines), hints)
    is_matched = separated.recordings.paired
    if is_matched and not separated.time.contradicted and not separated.machine_notes:
        return separated, list_shared_names(alignment.machines, machines)
    kind = LimitationKind.RANKS_CONTRADICTED
    if alignment.machine_notes:
        machine_notes = tuple(replace(note, kind=kind) for note in alignment.machine_notes)
        return replace(alignment, machine_notes=machine_notes), ()
    return alignment, list_contradicting_hosts(alignment.machines, machines)


def _find_waiting_kernels(
    parts: Recordings, alignment: _Alignment, hints: RunHints
) -> tuple[Limitation, ...]:
    """Return limitations for kernels with unknown names that count as compute but probably wait.

    The following kernels are reported:

    - Kernels that end at the same time as kernels on other ranks.
    - If clocks contradict each other and the method is not ``utc``: kernels whose waiting would
      explain the contradiction.
    - In all other cases: kernels that wait for an input from a rank on the same machine.

    Args:
        parts: The recordings, one per clock of a profile.
        alignment: Stages, iterations and clocks of the recordings.
        hints: Information about the run provided by the user.
    """
    recordings = parts.recordings
    joined_recordings, time, sessions = alignment.recordings, alignment.time, alignment.sessions
    waiting = find_waiting_kernels(recordings, time.clocks, joined_recordings.rank_of_recorded)
    if time.contradicted and hints.method != "utc":
        receiving = find_contradicting_kernels(
            recordings, _list_captures(parts), sessions, joined_recordings
        )
    else:
        receiving = find_receiving_kernels(recordings, sessions, joined_recordings)
    return (*waiting, *receiving)


def _convert_recorded_devices(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock], *, is_contradicted: bool
) -> Iterator[RecordedDevice]:
    """Yield the recorded devices from all profiles, with times on the run's clock.

    A device is marked as having a common clock if the uncertainty of its profile's clock is
    bounded, or if the profile records UTC and operations do not contradict the clocks.

    Args:
        recordings: All recordings of the run.
        clocks: For each recording, the conversion from its clock to the run's clock.
        is_contradicted: Whether operations contradict the clocks.
    """
    for recording, clock in zip(recordings, clocks, strict=True):
        utc_ns = recording.source.session_utc_ns
        is_aligned = clock.uncertainty_ns is not None
        for device in recording.recorded:
            begin_ns = device.begin_ns - (utc_ns or 0)
            aligned_ns = int(clock.convert(np.array([begin_ns], np.int64))[0])
            has_common_clock = is_aligned or (utc_ns is not None and not is_contradicted)
            yield device.shift(aligned_ns - device.begin_ns, has_common_clock=has_common_clock)


def _build_active_times(recordings: JoinedRecordings, rank_index: Ints) -> dict[str, Ints]:
    """Return the active times in ns, keyed by column name, each of shape (iterations, ranks).

    A time is 0 if the rank was not active in the iteration. Iterations without a common number are
    left out.

    Args:
        recordings: The recordings, with paired iterations.
        rank_index: Index of each rank in the report.
    """
    active = recordings.active
    iteration = recordings.get_common_iterations(active.rank, active.iteration)
    is_paired = iteration >= 0
    cells = iteration[is_paired], rank_index[active.rank[is_paired]]
    times = {}
    for name in ("active_ns", "kernel_ns", "gap_ns", "collective_gap_ns"):
        by_iteration = np.zeros((len(recordings.iteration_names), len(rank_index)), np.int64)
        by_iteration[cells] = getattr(active, name)[is_paired]
        times[name] = by_iteration
    return times


def _sort_intervals(table: IntervalsT, rank_index: Ints) -> IntervalsT:
    """Return the intervals with the report's rank indices, sorted by (rank, start)."""
    rank = rank_index[table.rank]
    return replace(table, rank=rank).take(sort_rows(rank, table.start_ns))


def _sort_operations(
    operations: tables.Operations, busy: tables.BusyIntervals, hosts: tables.HostActivities
) -> _Renumbered:
    """Sort operations by (rank, start), and renumber the tables that contain their rows.

    An operation without a device span is sorted by its start on the host. Ties are broken by the
    start on the host.

    Args:
        operations: Operations, with the report's rank indices.
        busy: Busy intervals of the operations.
        hosts: Activities of launching threads before the operations.
    """
    has_span = operations.has_span == 1
    start_ns = operations.start_ns
    if not has_span.all():
        start_ns = np.where(has_span, start_ns, operations.host_start_ns)
    order = _sort_nearly_sorted(operations.rank, start_ns, operations.host_start_ns)
    new_row = scatter(len(order) + 1, order, np.arange(len(order)))
    busy = busy.replace_columns(operation=new_row[busy.operation])
    busy = busy.take(_sort_nearly_sorted(busy.operation, busy.start_ns))
    hosts = hosts.replace_columns(operation=new_row[hosts.operation])
    hosts = hosts.take(sort_rows(hosts.operation))
    return _Renumbered(operations.take(order).compact(), busy, hosts, new_row)


def _sort_nearly_sorted(first: Ints, *then: Ints) -> Ints:
    """Return the order that sorts rows by several columns, like ``sort_rows(first, *then)``.

    This function is faster than ``sort_rows`` if rows with equal values of ``first`` are already
    sorted by the other columns.

    Args:
        first: Primary sort key. Rows with equal values are mostly adjacent.
        then: Further sort keys, mostly ascending among rows with equal ``first``.
    """
    bounds = np.append(find_run_starts(first), len(first))
    start, end = bounds[:-1], bounds[1:]
    runs = sort_rows(first[start])
    # Move each run of equal values as a block.
    order = expand_ranges(start[runs], end[runs])[1] if len(runs) < len(first) else runs
    rows = slice(None) if mask_run_starts(first[start[runs]]).all() else order
    ordered = first[rows]
    is_equal = ordered[1:] == ordered[:-1]
    for column in {id(column): column for column in then}.values():
        values = column[rows]
        if (is_equal & (values[1:] < values[:-1])).any():
            return sort_rows(first, *then)
        is_equal &= values[1:] == values[:-1]
    return order
