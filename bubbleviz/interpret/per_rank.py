"""What one rank did: its operations' spans, what they leave unexplained, its collectives.

Ranks are worked out one after another, so that memory is that of one rank's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.interpret.collective_intervals import CollectiveNames, collective_intervals
from bubbleviz.interpret.collectives import ReplicaCollectives, collectives_of, kinds_of
from bubbleviz.interpret.coverage import UnattributedName, rank_coverage, unattributed_names
from bubbleviz.interpret.device_work import DeviceWork, RankWork
from bubbleviz.interpret.late_launches import LateWork, late_launched, late_launches, stalls
from bubbleviz.interpret.launches import FirstWork, last_received, launched_by, launches_of
from bubbleviz.interpret.linking.links import Links
from bubbleviz.interpret.linking.open_ranges import EnclosingRanges
from bubbleviz.interpret.operation_ranges import OperationRanges, operations_of_ranges
from bubbleviz.interpret.recorded_collectives import RecordedCollectives
from bubbleviz.interpret.spans import ActiveTime, active_time, busy_times, owned_by, spans_of
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.operations import (
    BusyIntervals,
    OperationKeys,
    RankCoverage,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.phases import COMPUTE, TRANSFERS
from bubbleviz.model.profile import Activities, CallLog
from bubbleviz.model.values import frozen


@frozen
class ProfileWork:
    """All that ran in a profile, not yet divided into ranks.

    Attributes:
        activities: kernels, then copies.
        work: what each of them is, and its range.
        links: the call and range of each.
        calls: the profile's calls.
        ranges: how many ranges name operations.
        placed: these ranges on ranks.
        receives: receives, with the compute ranges around their launch.
        collectives: what is recorded of kernels of communication.
    """

    activities: Activities
    work: DeviceWork
    links: Links
    calls: CallLog
    ranges: int
    placed: OperationRanges
    receives: EnclosingRanges
    collectives: RecordedCollectives


@frozen
class RankRecording:
    """What one rank did; tables count the operations of the whole profile.

    Attributes:
        operations: the rank's operations.
        busy: when each kept the GPU busy.
        active: how long kernels ran in each iteration.
        running: how long kernels and copies ran in and between iterations.
        unattributed: when compute kernels ran outside operations.
        exposed: when only communication ran that is not between two ranks.
        late: what was launched while the GPU had run dry.
        replica_collectives: the first of each iteration after its last backward.
        collectives: all that are kept.
        coverage: how much of the GPU time operations explain.
        names: the unattributed kernels with the most time, by name.
    """

    operations: RankOperations
    busy: BusyIntervals
    active: ActiveTime
    running: RunningTimes
    unattributed: RankIntervals
    exposed: RankIntervals
    late: LateWork
    replica_collectives: ReplicaCollectives
    collectives: CollectiveIntervals
    coverage: RankCoverage
    names: tuple[UnattributedName, ...]


@frozen
class _KernelKinds:
    """What kernels are by their names; the last place of each column is that of no name (-1).

    Attributes:
        collective: kind of collective; -1 none.
        point_to_point: whether it is communication between two ranks.
        collectives: the names, and what communication among more ranks does.
    """

    collective: Codes
    point_to_point: Bools
    collectives: CollectiveNames

    @classmethod
    def of(cls, names: Sequence[str], kinds: Kinds) -> _KernelKinds:
        point_to_point = np.append(matching(names, kinds.point_to_point), False)
        return cls(
            kinds_of(names, kinds.collectives),
            point_to_point,
            CollectiveNames(names, kinds.collective_kinds),
        )


def record_ranks(
    profile: ProfileWork, keys: OperationKeys, kinds: Kinds
) -> Iterator[RankRecording]:
    """Yield what each rank did.

    Args:
        profile: all that ran.
        keys: of the profile's operations, in order of rank.
        kinds: lists of what kernels are.
    """
    kernels = _KernelKinds.of(profile.activities.names, kinds)
    count = len(profile.activities.ranks)
    rank_of_receive = profile.work.rank[profile.receives.activity]
    bounds = np.searchsorted(keys.rank, np.arange(count + 1)).tolist()
    for rank in range(count):
        first, end = bounds[rank], bounds[rank + 1]
        receives = profile.receives.take(rank_of_receive == rank)
        # No variable keeps a rank's work while that of the next is taken.
        recording = _record_rank(
            _rank_work(rank, profile, receives, first),
            profile,
            keys.take(slice(first, end)),
            kernels,
        )
        yield replace(
            recording,
            busy=replace(recording.busy, operation=recording.busy.operation + first),
            late=recording.late.moved(first),
            collectives=recording.collectives.moved(operation=first),
        )


def _rank_work(rank: int, profile: ProfileWork, receives: EnclosingRanges, first: int) -> RankWork:
    """Return the work of a rank, whose operations are numbered from ``first`` in the profile."""
    rows = np.flatnonzero(profile.activities.rank == rank).astype(np.int32)
    work = profile.work.take(rows)
    operation_of = operations_of_ranges(profile.placed, rank, profile.ranges)
    operation_of[operation_of != NONE] -= first
    return RankWork(
        rank=rank,
        rows=rows,
        work=work,
        name_id=profile.activities.name_id[rows],
        owner=operation_of[work.range],
        received=np.searchsorted(rows, receives.activity),
        around=operation_of[receives.range],
    )


def _record_rank(
    ran: RankWork, profile: ProfileWork, keys: OperationKeys, kernels: _KernelKinds
) -> RankRecording:
    """Return the recording of one rank; tables count its own operations."""
    work = ran.work
    spans, busy, begin = spans_of(keys, ran)
    loose = work.compute & ~owned_by(keys, ran.owner, COMPUTE)
    unattributed = intervals.union(work.start_ns, work.end_ns, loose)
    operating = busy_times(keys, busy, COMPUTE)
    computed = intervals.union(
        np.concatenate((operating[0], unattributed[0])),
        np.concatenate((operating[1], unattributed[1])),
    )
    collectives = _collectives(ran, keys, kernels.point_to_point)
    receive = last_received(spans.received_ns, ran.around, work.end_ns[ran.received], ran.received)
    first = FirstWork(ran.rows, begin, receive)
    launches, thread = launches_of(first, work.start_ns, profile.links)
    operations = RankOperations.of(keys, spans, launches)

    active, running = active_time(operations, ran, busy, operating, collectives)
    exposed = _exposed(ran, collectives, computed)

    def launched_ns(rows: Ints) -> Ints:
        return profile.links.launch_times_ns(ran.rows[rows])

    kept, first_kernel = collective_intervals(
        keys,
        ran,
        collectives,
        launched_ns(collectives),
        exposed,
        kernels.collectives,
        profile.collectives,
    )
    launched = launched_by(ran.rows[first_kernel], profile.links)
    kept, late_collectives = late_launched(kept, *launched, (computed, exposed))
    late = LateWork(
        operations=late_launches(operations, thread, computed),
        collectives=late_collectives,
        stalls=stalls(operations, thread),
    )
    return RankRecording(
        operations=operations,
        busy=busy,
        active=active,
        running=running,
        unattributed=_of_rank(ran.rank, unattributed),
        exposed=_of_rank(ran.rank, exposed),
        late=late,
        replica_collectives=collectives_of(keys, ran, launched_ns, kernels.collective[ran.name_id]),
        collectives=kept,
        coverage=rank_coverage(ran, loose),
        names=tuple(unattributed_names(ran, loose, profile.activities.names)),
    )


def _collectives(ran: RankWork, keys: OperationKeys, point_to_point: Bools) -> Ints:
    """Return the rows of a rank's work that are communication, and not between two ranks."""
    rows = np.flatnonzero(ran.work.communication)
    transfer = point_to_point[ran.name_id[rows]] | owned_by(keys, ran.owner[rows], TRANSFERS)
    return rows[~transfer]


def _exposed(
    ran: RankWork, collectives: Ints, computed: intervals.Intervals
) -> intervals.Intervals:
    """Return when only communication ran that is not between two ranks."""
    times = ran.work.start_ns[collectives], ran.work.end_ns[collectives]
    return intervals.difference(intervals.union(*times), computed)


def _of_rank(rank: int, times: intervals.Intervals) -> RankIntervals:
    """Return a set of times as intervals of a rank."""
    return RankIntervals(np.full(len(times[0]), rank), *times)
