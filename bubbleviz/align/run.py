"""Align: profiles merged, on one clock, ranks in pipeline order, iterations paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from bubbleviz.align import profile_clocks
from bubbleviz.align.clocks.shared_names import (
    contradiction_limitations,
    separate_machines,
    shared_name_limitations,
)
from bubbleviz.align.clocks.timebase import Timebase, rank_precedences, timebase, within_machines
from bubbleviz.align.join import JoinedRecordings, as_stream, correct_clocks, join
from bubbleviz.align.meetings import met, without_members
from bubbleviz.align.pairing.iteration_pairs import paired
from bubbleviz.align.profile_clocks import ProfileClock, subtract_sessions
from bubbleviz.align.ranks import find_excluded_ranks, places_of, ranks_of
from bubbleviz.align.receiving_kernels import contradicting_kernels, receiving_kernels
from bubbleviz.align.recorded_devices import convert_to_run_clock
from bubbleviz.align.refusals import refuse_other_runs
from bubbleviz.align.stage_layers import StageLayers, layers_of_stages
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.align.stages.staging import Staging, stage
from bubbleviz.align.waiting_kernels import waiting_kernels
from bubbleviz.errors import UsageError
from bubbleviz.interpret.recording import Recordings
from bubbleviz.interpret.start_skew import RecordedDevice
from bubbleviz.model import operations as tables
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import Ints, scattered
from bubbleviz.model.grouping import (
    begins,
    expanded,
    heads,
    sorted_rows,
)
from bubbleviz.model.limitations import Limitation, LimitationKind

IntervalsT = TypeVar("IntervalsT", tables.RankIntervals, tables.RunningTimes, CollectiveIntervals)


def _placed(table: IntervalsT, place: Ints) -> IntervalsT:
    """Return intervals of ranks in the order of their ranks' places, and of their starts."""
    rank = place[table.rank]
    return replace(table, rank=rank).take(sorted_rows(rank, table.start_ns))


def _placed_operations(
    operations: tables.Operations, busy: tables.BusyIntervals, hosts: tables.HostActivities
) -> tuple[tables.Operations, tables.BusyIntervals, tables.HostActivities, Ints]:
    """Return operations by (rank, start), those without a span by their host start.

    With them come their busy intervals, what launching threads did before them, and the new row of
    each operation; in the last place -1, for none.

    Args:
        operations: with ranks in their places.
        busy: when they keep their ranks busy.
        hosts: with ranks in their places.
    """
    spanned = operations.has_span == 1
    start = operations.start_ns
    if not spanned.all():
        start = np.where(spanned, start, operations.host_start_ns)
    order = _nearly_sorted(operations.rank, start, operations.host_start_ns)
    # The last place is that of no row.
    place = scattered(len(order) + 1, order, np.arange(len(order)))
    busy = busy.changed(operation=place[busy.operation])
    busy = busy.take(_nearly_sorted(busy.operation, busy.start_ns))
    hosts = hosts.changed(operation=place[hosts.operation])
    hosts = hosts.take(sorted_rows(hosts.operation))
    return operations.take(order).compacted(), busy, hosts, place


def _nearly_sorted(first: Ints, *then: Ints) -> Ints:
    """Return the rows in the order of columns, mostly sorted already where the first one agrees."""
    bounds = np.append(heads(first), len(first))
    begin, end = bounds[:-1], bounds[1:]
    runs = sorted_rows(first[begin])
    # Rows that follow each other and agree move together.
    order = expanded(begin[runs], end[runs])[1] if len(runs) < len(first) else runs
    at = slice(None) if begins(first[begin[runs]]).all() else order
    ordered = first[at]
    same = ordered[1:] == ordered[:-1]
    for column in {id(column): column for column in then}.values():
        values = column[at]
        if (same & (values[1:] < values[:-1])).any():
            return sorted_rows(first, *then)
        same &= values[1:] == values[:-1]
    return order


@dataclass(frozen=True)
class Run:
    """All profiles as one: what the counting stage works on.

    Attributes:
        ranks: in pipeline order; the ``rank`` columns hold their places.
        clocks: of the profiles, in the order given.
        timebase: how far the clocks of the ranks' machines can be off.
        operations: in order of (rank, start), on the report's clock.
        busy: their busy intervals.
        active_ns: length of the union of an iteration's compute kernels, shape
            (iterations, ranks).
        kernel_ns: how long any kernel or copy ran between the first start and the last end of the
            iteration's work on a rank; the same shape.
        gap_ns: how long none ran while work kept the rank busy: launch gaps; the same shape.
        collective_gap_ns: how long a collective ran, and no compute kernel, while an operation kept
            the rank busy; the same shape.
        running: how long kernels and copies ran in and between iterations.
        unattributed: compute outside every compute operation.
        exposed: when a rank ran no operation, and communication that is not between two ranks.
        collectives: of the ranks, those that met numbered.
        overheads: when the profiler held a rank's process up.
        unrecorded: When a rank may have run work that was launched and not recorded.
        hosts: what launching threads did before late launches.
        iteration_names: by index.
        paired: whether iterations of different ranks are known to be the same.
        stages_missing: whether no profile holds some virtual stages of the run.
        ranks_missing: whether no profile holds some ranks of the run.
        pipeline_unproven: whether nothing shows that the ranks are stages, and not replicas of one.
        ends_early: whether stages may be missing behind the last one that the profiles hold.
        order_refutes: Whether a schedule that the ranks kept exactly refutes that stages may be
            missing.
        limitations: what could not be determined.
        rank_of_local: for each profile, the rank of each of its own ranks.
        pauses: when nothing of a rank was recorded.
        layers: what layers took on each virtual stage; empty where ranges tell none.
        recorded_start_ns: When the recording of each rank's profile began.
        recorded: When the recording of each device began, and what it waited in.
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


@dataclass(frozen=True)
class RunHints:
    """What the user states about a run.

    Attributes:
        order: ranks in pipeline order, by the numbers that they have without it; empty to
            infer it from the data.
        parallel: sizes of the run; None to infer replicas of stages.
        same_clock: groups of hostnames that share one clock.
        method: one of :data:`bubbleviz.model.choices.ALIGNMENTS`; None for causal clocks of
            captures that are not far apart in UTC.
    """

    order: Sequence[int] = ()
    parallel: Parallel | None = None
    same_clock: Sequence[Sequence[str]] = ()
    method: str | None = None


def merge(parts: Recordings, hints: RunHints) -> Run:
    """Return recordings as one run.

    Args:
        parts: one a clock of a profile.
        hints: what the user states about the run.

    Raises:
        MismatchError: the profiles are of no single run.
        UsageError: ``hints.order`` does not name every rank once.
    """
    recordings = parts.recordings
    sources = [recording.source for recording in recordings]
    machines = profile_clocks.machines_of(sources, hints.same_clock)
    sessions = profile_clocks.session_clocks(sources, machines)
    captures = [(r.start_ns, r.end_ns) for r in recordings]
    wrong: tuple[Limitation, ...] = ()
    numbers = [rank.global_rank for recording in recordings for rank in recording.ranks]
    if hints.method != "causal":
        wrong = profile_clocks.refuse_unrelated(
            sources,
            captures,
            sessions,
            profile_clocks.as_much_as_most(
                np.array([len(recording.ranks) for recording in recordings], np.int64),
                parts.lengths("operations"),
            ),
            numbered=None not in numbers and len(set(numbers)) == len(numbers),
        )
    aligned = _align(parts, machines, captures, hints)
    if (hints.method or "causal") == "causal":
        aligned, shared = _separate_contradicting(aligned, parts, captures, hints)
        wrong = (*wrong, *shared)
    staging, place, time = aligned.staging, aligned.place, aligned.time
    early, sessions, machines = aligned.early, aligned.sessions, aligned.machines
    joined = correct_clocks(staging.joined, subtract_sessions(time.clocks, sessions))
    ranks = ranks_of(staging, place)
    collectives = met(joined, staging, time, hints.parallel)
    limitations = (
        *wrong,
        *(profile_clocks.untimed(sources, machines) if hints.method == "utc" else ()),
        *time.limitations,
        *early,
        *staging.limitations,
        *find_excluded_ranks(joined),
        *waiting_kernels(recordings, time.clocks),
        *(
            contradicting_kernels(recordings, captures, sessions, staging)
            if time.contradicted and hints.method != "utc"
            else receiving_kernels(recordings, sessions, staging)
        ),
        *without_members(collectives, joined.exposed),
    )
    pairing = staging.pairing
    unplaced = replace(
        joined.operations,
        rank=place[joined.operations.rank],
        iteration=pairing.iteration,
        stages=tuple(rank.stage for rank in ranks),
        global_ranks=tuple(rank.global_rank for rank in ranks),
    )
    hosts = joined.hosts.changed(rank=place[joined.hosts.rank])
    operations, busy, hosts, row = _placed_operations(unplaced, joined.busy, hosts)
    # Of the run's operations, and of each rank's own iterations.
    collectives = collectives.changed(operation=row[collectives.operation])
    active = joined.active
    iteration = paired(pairing, active.rank, active.iteration)
    known = iteration >= 0

    def by_iteration(time_ns: Ints) -> Ints:
        found = np.zeros((len(pairing.names), len(place)), np.int64)
        found[iteration[known], place[active.rank[known]]] = time_ns[known]
        return found

    ends = np.cumsum([0, *(len(recording.ranks) for recording in recordings)]).tolist()
    run = Run(
        ranks=ranks,
        clocks=time.clocks,
        timebase=replace(time, machine=time.machine[np.argsort(place)]),
        operations=operations,
        busy=busy,
        active_ns=by_iteration(active.active_ns),
        kernel_ns=by_iteration(active.kernel_ns),
        gap_ns=by_iteration(active.gap_ns),
        collective_gap_ns=by_iteration(active.collective_gap_ns),
        running=_placed(joined.running, place),
        unattributed=_placed(joined.unattributed, place),
        exposed=_placed(joined.exposed, place),
        collectives=_placed(collectives, place),
        overheads=_placed(joined.overheads, place),
        unrecorded=_placed(joined.unrecorded, place),
        hosts=hosts,
        iteration_names=pairing.names,
        paired=pairing.known,
        stages_missing=staging.stages_missing,
        ranks_missing=staging.ranks_missing,
        pipeline_unproven=staging.pipeline_unproven,
        ends_early=staging.ends_early,
        order_refutes=staging.order_refutes,
        limitations=limitations,
        rank_of_local=tuple(place[first:end] for first, end in pairwise(ends)),
        pauses=_placed(joined.pauses, place),
        recorded_start_ns=joined.recorded_start_ns[np.argsort(place)],
        recorded=tuple(
            convert_to_run_clock(recordings, time.clocks, is_contradicted=time.contradicted)
        ),
        profile_hosts=aligned.hosts,
        has_kernels=all(rank.local.told is None for rank in joined.ranks),
    )
    layers = layers_of_stages(recordings, run.operations, run.rank_of_local)
    return replace(run, layers=layers)


@dataclass(frozen=True)
class _Aligned:
    """Recordings that were aligned under an assumption about their machines.

    Attributes:
        machines: Assumed machine of each profile.
        hosts: Name of the host of each profile.
        sessions: Clock of each profile according to its session.
        staging: The recordings on these clocks, with stages, pipelines and iterations.
        place: Index of each rank in the report.
        time: Common clock of all profiles.
        early: Limitations for ranks of one machine that contradict each other.
    """

    machines: tuple[str, ...]
    hosts: tuple[str, ...]
    sessions: tuple[ProfileClock, ...]
    staging: Staging
    place: Ints
    time: Timebase
    early: tuple[Limitation, ...]


def _align(
    parts: Recordings,
    machines: tuple[str, ...],
    captures: Sequence[tuple[int, int]],
    hints: RunHints,
) -> _Aligned:
    """Find the stages and clocks of recordings, given the machine of each profile.

    Args:
        parts: One recording per clock of a profile.
        machines: Machine of each profile.
        captures: First and last time of each profile on its own clock.
        hints: Statements of the user about the run.

    Raises:
        MismatchError: The profiles are not from a single run.
        UsageError: ``hints.order`` does not name every rank once.
    """
    sources = [recording.source for recording in parts.recordings]
    sessions = profile_clocks.session_clocks(sources, machines)
    joined = join(parts, machines, sessions)
    refuse_other_runs(parts.recordings, machines, joined)
    joined = as_stream(joined)
    staging, place = _staged(joined, hints)
    time = timebase(staging, sessions, captures, hints.method or "causal")
    early = within_machines(staging)
    hosts = tuple(source.host for source in sources)
    return _Aligned(machines, hosts, sessions, staging, place, time, early)


def _separate_contradicting(
    aligned: _Aligned,
    parts: Recordings,
    captures: Sequence[tuple[int, int]],
    hints: RunHints,
) -> tuple[_Aligned, tuple[Limitation, ...]]:
    """Assign profiles of one hostname to several machines if their clocks contradict each other.

    The machines do not change if iterations cannot be matched on separate clocks, or if the
    contradiction remains there, because then stages or times of operations are wrong. The
    contradiction restricts the ratio in both cases.

    Args:
        aligned: The recordings with one machine per hostname.
        parts: One recording per clock of a profile.
        captures: First and last time of each profile on its own clock.
        hints: Statements of the user about the run.

    Returns:
        aligned: The recordings, aligned again if machines were separated.
        notes: Limitations for hostnames that stand for several machines, or may do so.
    """
    staging = aligned.staging
    given_hosts = {host for group in hints.same_clock for host in group}
    is_given = any(recording.source.host in given_hosts for recording in parts.recordings)
    is_given |= any(clock is not None and clock.aligned for clock in staging.joined.told_clocks)
    shares_machine = len(aligned.machines) > len(set(aligned.machines))
    if is_given or not shares_machine or not staging.pairing.known:
        return aligned, ()
    machines = separate_machines(staging, rank_precedences(staging))
    if machines is None:
        return aligned, ()
    separated = _align(_rename_hosts(parts, aligned.machines, machines), machines, captures, hints)
    is_matched = separated.staging.pairing.known
    if is_matched and not separated.time.contradicted and not separated.early:
        return separated, shared_name_limitations(aligned.machines, machines)
    kind = LimitationKind.RANKS_CONTRADICTED
    if aligned.early:
        return replace(aligned, early=tuple(replace(n, kind=kind) for n in aligned.early)), ()
    return aligned, contradiction_limitations(aligned.machines, machines)


def _rename_hosts(parts: Recordings, before: Sequence[str], machines: Sequence[str]) -> Recordings:
    """Return recordings whose hosts have the names of the machines that share their hostname.

    Args:
        parts: One recording per clock of a profile.
        before: Machine of each profile, one per hostname.
        machines: Machine of each profile, several per hostname.
    """
    recordings = tuple(
        recording
        if machine == hostname
        else replace(recording, source=replace(recording.source, host=machine))
        for recording, hostname, machine in zip(parts.recordings, before, machines, strict=True)
    )
    return replace(parts, recordings=recordings)


def _staged(joined: JoinedRecordings, hints: RunHints) -> tuple[Staging, Ints]:
    """Return stages, pipelines and iterations, and each rank's place in the report.

    Raises:
        UsageError: ``hints.order`` does not name every rank once.
    """
    staging = stage(joined, parallel=hints.parallel)
    place = places_of(staging)
    if not hints.order:
        return staging, place
    # The order names ranks by the places they would have without it.
    if sorted(hints.order) != list(range(len(place))):
        raise UsageError(
            f"--order must name each of the ranks 0 to {len(place) - 1} once, by the numbers "
            "that the table gives them without it"
        )
    order = np.argsort(place)[np.array(hints.order)].tolist()
    staging = stage(joined, order, hints.parallel)
    return staging, places_of(staging)
