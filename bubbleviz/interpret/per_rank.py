"""What ranks did: their operations' spans, what they leave unexplained, their collectives.

Ranks are worked out one after another, so that memory is that of one rank's kernels; a few that
ran little, side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.interpret.coverage import UnattributedName, rank_coverages, unattributed_names
from bubbleviz.interpret.late_launches import LateWork, late_launched, late_launches, stalls
from bubbleviz.interpret.linking import NEVER, Links
from bubbleviz.interpret.operation_ranges import OperationRanges, operations_of_ranges
from bubbleviz.interpret.recorded_collectives import (
    CollectiveNames,
    RecordedCollectives,
    ReplicaCollectives,
    collective_intervals,
    collectives_of,
    kinds_of,
)
from bubbleviz.interpret.recording import Line, together
from bubbleviz.interpret.spans import (
    ActiveTime,
    DeviceWork,
    RankWork,
    active_time,
    busy_times,
    owned_by,
    spans_of,
)
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.operations import (
    BusyIntervals,
    OperationKeys,
    OperationLaunches,
    RankCoverage,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.phases import COMPUTE, TRANSFERS
from bubbleviz.model.profile import Activities, CallLog
from bubbleviz.model.values import frozen

# Launches: when the host launched what operations began with, and their last receive.


@frozen
class FirstWork:
    """The work that operations of a rank began with, and what they received last; -1 none.

    Attributes:
        rows: the rank's activities.
        first: of each operation, which of these its span starts with.
        receive: of each operation, which of these, launched inside it, ended last.
    """

    rows: Codes
    first: Codes
    receive: Codes

    def activity(self, which: Codes) -> Codes:
        """Return the activities; -1 none."""
        return np.where(which == NONE, NONE, np.append(self.rows, NONE)[which])


def launches_of(work: FirstWork, start_ns: Ints, links: Links) -> tuple[OperationLaunches, Ints]:
    """Return the launches of a rank's operations, and the thread that made each; -1 unknown.

    Args:
        work: what they began with.
        start_ns: when each of the rank's activities began.
        links: of all activities.
    """
    launched_ns, thread = launched_by(work.activity(work.first), links)
    received = work.receive != NONE
    launches = OperationLaunches(
        launched_ns=launched_ns,
        receive_launched_ns=launched_by(work.activity(work.receive), links)[0],
        receive_start_ns=np.where(received, np.append(start_ns, NONE)[work.receive], NONE),
    )
    return launches, thread


def launched_by(activity: Codes, links: Links) -> tuple[Ints, Ints]:
    """Return when each of some activities (-1 none) was launched, and by which thread."""
    launched_ns = np.full(len(activity), NONE, np.int64)
    thread = launched_ns.copy()
    known = np.flatnonzero(activity != NONE)
    known = known[links.call[activity[known]] != NONE]
    launched = activity[known]
    launched_ns[known] = links.launched_ns[launched]
    thread[known] = links.threads[links.thread[launched]]
    return launched_ns, thread


def last_received(received_ns: Ints, around: Ints, end_ns: Ints, rows: Ints) -> Codes:
    """Return for each operation the receive inside it that ended last; -1 none.

    Args:
        received_ns: when that was, of each operation.
        around: operation that each receive was launched inside of; -1 none.
        end_ns: end of each receive.
        rows: the receives.
    """
    last = np.full(len(received_ns), NONE, np.int32)
    inside = np.flatnonzero(around >= 0)
    inside = inside[end_ns[inside] == received_ns[around[inside]]][::-1]
    last[around[inside]] = rows[inside]
    return last


#: Columns of times.
_TIMES, _HOST_TIMES = ("start_ns", "end_ns"), ("host_start_ns", "host_end_ns")


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
    receives: tuple[Ints, Ints]
    collectives: RecordedCollectives


@frozen
class RankRecording:
    """What a rank did, or several; tables count the operations of the whole profile.

    Attributes:
        operations: the ranks' operations.
        busy: when each kept the GPU busy.
        active: how long kernels ran in each iteration.
        running: how long kernels and copies ran in and between iterations.
        unattributed: when compute kernels ran outside operations.
        exposed: when only communication ran that is not between two ranks.
        late: what was launched while the GPU had run dry.
        replica_collectives: the first of each iteration after its last backward.
        collectives: all that are kept.
        coverage: how much of the GPU time of each rank operations explain.
        names: the unattributed kernels of each with the most time, by name.
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
    coverage: tuple[RankCoverage, ...]
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
    """Yield what ranks did, in their order; each recording is of one or several of them.

    Args:
        profile: all that ran.
        keys: of the profile's operations, in order of rank.
        kinds: lists of what kernels are.
    """
    kernels = _KernelKinds.of(profile.activities.names, kinds)
    count = len(profile.activities.ranks)
    activity, around = profile.receives
    rank_of_receive = profile.work.rank[activity]
    bounds = np.searchsorted(keys.rank, np.arange(count + 1)).tolist()
    ran = np.bincount(profile.activities.rank, minlength=count)
    for ranks in together(ran, profile.ranges):
        first, end = bounds[ranks.start], bounds[ranks.stop]
        at = np.flatnonzero(_among(rank_of_receive, ranks))
        # No variable keeps the work of ranks while that of the next ones is taken.
        recording = _record_ranks(
            _work_of(ranks, profile, (activity[at], around[at]), first),
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


def _among(rank: Codes, ranks: range) -> Bools:
    """Tell which of some numbers are those of ranks."""
    if len(ranks) == 1:
        return np.asarray(rank == ranks.start)
    return np.asarray((rank >= ranks.start) & (rank < ranks.stop))


def _work_of(
    ranks: range, profile: ProfileWork, receives: tuple[Ints, Ints], first: int
) -> RankWork:
    """Return the work of ranks, whose operations are numbered from ``first`` in the profile."""
    rows = np.flatnonzero(_among(profile.activities.rank, ranks)).astype(np.int32)
    order = None
    if len(ranks) > 1:
        rows = rows[np.argsort(profile.activities.rank[rows], kind="stable")]
        order = np.argsort(rows)
    work = profile.work.take(rows)
    operation_of = operations_of_ranges(profile.placed, ranks, profile.ranges)
    operation_of[operation_of != NONE] -= first
    received = np.searchsorted(rows, receives[0], sorter=order)
    received = received if order is None else order[received]
    if len(ranks) == 1:
        owner, around = operation_of[0][work.range], operation_of[0][receives[1]]
    else:
        of_rank = work.rank - ranks.start
        owner = operation_of[of_rank, work.range]
        around = operation_of[of_rank[received], receives[1]]
    return RankWork(
        ranks=ranks,
        rows=rows,
        work=work,
        name_id=profile.activities.name_id[rows],
        owner=owner,
        received=received,
        around=around,
    )


def _record_ranks(
    ran: RankWork, profile: ProfileWork, keys: OperationKeys, kernels: _KernelKinds
) -> RankRecording:
    """Return the recording of ranks; tables count their own operations."""
    links, time_ns = profile.links, ran.work.start_ns
    line = _line_of(ran, links, keys)
    ran = replace(ran, work=line.placed(ran.work, ran.work.rank, *_TIMES))
    work, placed = ran.work, line.placed(keys, keys.rank, *_HOST_TIMES)
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
    launches, thread = launches_of(FirstWork(ran.rows, begin, receive), time_ns, links)
    operations = RankOperations.of(
        placed, spans, line.placed(launches, keys.rank, *launches.column_names())
    )

    active, running = active_time(operations, ran, busy, operating, collectives)
    exposed = _exposed(ran, collectives, computed)

    def launched_ns(rows: Ints) -> Ints:
        return line.place(work.rank[rows], links.launch_times_ns(ran.rows[rows]), NEVER)

    def launched_on_line(rows: Ints) -> Ints:
        launch = launched_ns(rows)
        return np.where(launch == NEVER, line.ends(work.rank[rows]), launch)

    kept, first_kernel = collective_intervals(
        placed,
        ran,
        collectives,
        launched_ns(collectives),
        exposed,
        kernels.collectives,
        profile.collectives,
    )
    launched, by_thread = launched_by(ran.rows[first_kernel], links)
    launched = line.place(kept.rank, launched, NONE)
    kept, late_collectives = late_launched(
        kept, launched, by_thread, (computed, exposed), line.begins(kept.rank)
    )
    late = LateWork(
        operations=late_launches(operations, thread, computed, line.begins(keys.rank)),
        collectives=late_collectives,
        stalls=stalls(operations, thread),
    )
    kind = kernels.collective[ran.name_id]
    replicas = collectives_of(placed, ran, launched_on_line, kind)
    running = replace(running, rank=line.owners(running.start_ns))
    spans = line.in_time(spans, keys.rank, *_TIMES, "received_ns")
    return RankRecording(
        operations=RankOperations.of(keys, spans, launches),
        busy=line.in_time(busy, keys.rank[busy.operation], *_TIMES),
        active=active,
        running=line.in_time(running, running.rank, *_TIMES),
        unattributed=line.of_ranks(unattributed),
        exposed=line.of_ranks(exposed),
        late=late.in_time(line),
        replica_collectives=line.in_time(replicas, replicas.rank, *_TIMES),
        collectives=line.in_time(kept, kept.rank, *_TIMES),
        coverage=rank_coverages(ran, loose),
        names=tuple(unattributed_names(ran, loose, profile.activities.names)),
    )


def _line_of(ran: RankWork, links: Links, keys: OperationKeys) -> Line:
    """Return the line of ranks, with room for all that they and their hosts did."""
    work = ran.work
    launched = np.flatnonzero(links.call[ran.rows] != NONE)
    launched_ns = links.launched_ns[ran.rows[launched]]
    return Line.of(
        ran.ranks,
        (work.rank, work.start_ns, work.end_ns),
        (work.rank[launched], launched_ns, launched_ns),
        (keys.rank, keys.host_start_ns, keys.host_end_ns),
    )


def _collectives(ran: RankWork, keys: OperationKeys, point_to_point: Bools) -> Ints:
    """Return the rows of ranks' work that are communication, and not between two ranks."""
    rows = np.flatnonzero(ran.work.communication)
    transfer = point_to_point[ran.name_id[rows]] | owned_by(keys, ran.owner[rows], TRANSFERS)
    return rows[~transfer]


def _exposed(
    ran: RankWork, collectives: Ints, computed: intervals.Intervals
) -> intervals.Intervals:
    """Return when only communication ran that is not between two ranks."""
    times = ran.work.start_ns[collectives], ran.work.end_ns[collectives]
    return intervals.difference(intervals.union(*times), computed)
