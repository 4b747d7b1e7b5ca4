"""Align: profiles merged, on one clock, ranks in pipeline order, iterations paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from bubbleviz.align.bounds.clocks import (
    ProfileClock,
    as_much_as_most,
    machines_of,
    refuse_unrelated,
    session_clocks,
    untimed,
)
from bubbleviz.align.meetings import met
from bubbleviz.align.merge import TIMES, JoinedRecordings, join
from bubbleviz.align.moved_times import on_clocks
from bubbleviz.align.pipelines import Parallel
from bubbleviz.align.placed_tables import (
    placed_active,
    placed_collectives,
    placed_intervals,
    placed_operations,
    placed_times,
)
from bubbleviz.align.refusals import refuse_other_runs
from bubbleviz.align.run_ranks import idle_ranks, places_of, ranks_of, unspanned_ranks
from bubbleviz.align.staging import Staging, stage
from bubbleviz.align.streams import as_stream
from bubbleviz.align.timebase import Timebase, timebase
from bubbleviz.align.unknown_members import without_members
from bubbleviz.errors import UsageError
from bubbleviz.interpret.gathered import GatheredRecordings, gathered
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    Operations,
    Rank,
    RankIntervals,
    RunningTimes,
)
from bubbleviz.model.values import frozen


@frozen
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
        hosts: what launching threads did before late launches.
        iteration_names: by index.
        paired: whether iterations of different ranks are known to be the same.
        stages_missing: whether no profile holds some virtual stages of the run.
        ranks_missing: whether no profile holds some ranks of the run.
        pipeline_unproven: whether nothing shows that the ranks are stages, and not replicas of one.
        limitations: what could not be determined.
        rank_of_local: for each profile, the rank of each of its own ranks.
        pauses: when nothing of a rank was recorded.
    """

    ranks: tuple[Rank, ...]
    clocks: tuple[ProfileClock, ...]
    timebase: Timebase
    operations: Operations
    busy: BusyIntervals
    active_ns: Ints
    kernel_ns: Ints
    gap_ns: Ints
    collective_gap_ns: Ints
    running: RunningTimes
    unattributed: RankIntervals
    exposed: RankIntervals
    collectives: CollectiveIntervals
    overheads: RankIntervals
    hosts: HostActivities
    iteration_names: tuple[str, ...]
    paired: bool
    stages_missing: bool
    ranks_missing: bool
    pipeline_unproven: bool
    limitations: tuple[Limitation, ...]
    rank_of_local: tuple[Ints, ...]
    pauses: RankIntervals = field(default_factory=RankIntervals.none)


@frozen
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


def merge_recordings(recordings: Sequence[Recording], hints: RunHints) -> Run:
    """Return the recordings, one a profile, in the order given, as one run; see :func:`merge`."""
    return merge(gathered(recordings), hints)


def merge(parts: GatheredRecordings, hints: RunHints) -> Run:
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
    machines = machines_of(sources, hints.same_clock)
    sessions = session_clocks(sources, machines)
    captures = [(r.start_ns, r.end_ns) for r in recordings]
    wrong: tuple[Limitation, ...] = ()
    if hints.method != "causal":
        wrong = refuse_unrelated(
            sources, captures, sessions, _fitting(parts), numbered=_numbered(recordings)
        )
    joined = join(parts, sessions, machines)
    # Whoever hands them over needs them no more, and their rows are those of the joined ones.
    del parts
    refuse_other_runs(recordings, machines, joined)
    joined = as_stream(joined)
    staging, place = _staged(joined, hints)
    time = timebase(joined, staging, sessions, captures, hints.method or "causal")
    if time.clocks != sessions:
        joined = on_clocks(joined, sessions, time.clocks)
    ranks = ranks_of(joined, place, staging)
    collectives = met(joined, staging, time, hints.parallel)
    operations, busy, hosts, row = placed_operations(
        Operations.of(
            staging.operations.changed(
                rank=place[joined.operations.rank],
                iteration=staging.pairing.iteration,
                **{name: getattr(joined.operations, name) for name in TIMES},
            ),
            virtual_stage=staging.virtual_stage,
            stages=tuple(rank.stage for rank in ranks),
        ),
        joined.busy,
        replace(joined.hosts, rank=place[joined.hosts.rank]),
    )
    profiles = np.array([rank.profile for rank in joined.ranks], np.int64)
    return Run(
        ranks=ranks,
        clocks=time.clocks,
        timebase=_placed(time, place),
        operations=operations,
        busy=busy,
        active_ns=placed_active(joined, place, staging, joined.active.active_ns),
        kernel_ns=placed_active(joined, place, staging, joined.active.kernel_ns),
        gap_ns=placed_active(joined, place, staging, joined.active.gap_ns),
        collective_gap_ns=placed_active(joined, place, staging, joined.active.collective_gap_ns),
        running=placed_times(joined.running, place),
        unattributed=placed_intervals(joined.unattributed, place),
        exposed=placed_intervals(joined.exposed, place),
        collectives=placed_collectives(collectives, place, row),
        overheads=placed_intervals(joined.overheads, place),
        hosts=hosts,
        iteration_names=staging.pairing.names,
        paired=staging.pairing.known,
        stages_missing=staging.stages_missing,
        ranks_missing=staging.ranks_missing,
        pipeline_unproven=staging.pipeline_unproven,
        limitations=(
            *wrong,
            *(untimed(sources, machines) if hints.method == "utc" else ()),
            *time.limitations,
            *staging.limitations,
            *idle_ranks(joined),
            *unspanned_ranks(joined),
            *without_members(collectives, joined.exposed),
        ),
        rank_of_local=tuple(place[profiles == i] for i in range(len(recordings))),
        pauses=placed_intervals(joined.pauses, place),
    )


def _numbered(recordings: Sequence[Recording]) -> bool:
    """Return whether every rank has a number of its own in the run."""
    numbers = [rank.global_rank for recording in recordings for rank in recording.ranks]
    return None not in numbers and len(set(numbers)) == len(numbers)


def _fitting(parts: GatheredRecordings) -> Bools:
    """Return which recordings hold as much as most do."""
    ranks = np.array([len(recording.ranks) for recording in parts.recordings], np.int64)
    return as_much_as_most(ranks, parts.lengths("operations"))


def _staged(joined: JoinedRecordings, hints: RunHints) -> tuple[Staging, Ints]:
    """Return stages, pipelines and iterations, and each rank's place in the report.

    Raises:
        UsageError: ``hints.order`` does not name every rank once.
    """
    staging = stage(joined, parallel=hints.parallel)
    place = places_of(joined, staging)
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
    return staging, places_of(joined, staging)


def _placed(time: Timebase, place: Ints) -> Timebase:
    """Return the timebase with ranks in their places."""
    machine = np.empty(len(place), np.int64)
    machine[place] = time.machine
    return replace(time, machine=machine)
