"""What ranks did: their operations' spans, what they leave unexplained, their collectives.

Ranks are worked out one after another, so that memory is that of one rank's kernels; a few that
ran little, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from bubbleviz.conventions.kinds import Kinds, kind_of_collective, matching
from bubbleviz.interpret import spans as spanned
from bubbleviz.interpret.collectives import RecordedCollectives, collective_intervals
from bubbleviz.interpret.coverage import rank_coverages, unattributed_kernels
from bubbleviz.interpret.late_launches import late_launched, late_launches, stalls
from bubbleviz.interpret.linking import NEVER, LinkRule, Links
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.model import intervals
from bubbleviz.model import operations as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, TableT, joined, stretch_of
from bubbleviz.model.phases import COMPUTE, TRANSFERS
from bubbleviz.model.profile import Activities

#: Kernels and copies of ranks that are worked out together, and room for their ranges, rank by
#: rank: as much as stays in the cache.
_TOGETHER, _ROOM = 1 << 15, 1 << 18
#: Before and behind everything that a single rank did.
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


#: Columns of times.
_TIMES, _HOST_TIMES = ("start_ns", "end_ns"), ("host_start_ns", "host_end_ns")
_LAUNCH_TIMES = "launched_ns", "receive_start_ns", "receive_launched_ns"


@dataclass(frozen=True)
class Line:
    """Where the times of some ranks of a profile lie on a line, several worked out like one.

    What a rank takes beyond its kernels is a few hundred calls of numpy, whatever it ran: of ranks
    that ran little, many take them together::

        rank 0   5 ├─ what it did ─┤ 95        line   0 ├─────┤ 90
        rank 1   7 ├─ what it did ───┤ 99                      91 ├──────┤ 183

    Attributes:
        ranks: which, all that follow each other.
        packing: of them.
    """

    ranks: range
    packing: intervals.Packing

    @staticmethod
    def of(ranks: range, *times: tuple[Codes, Ints, Ints]) -> Line:
        """Return the line of ranks that did something at some times.

        Args:
            ranks: of a profile.
            times: their ranks, starts and ends.
        """
        if len(ranks) == 1:
            # The line of a single rank is time itself.
            return Line(ranks, intervals.Packing(np.array([_FIRST]), np.array([_FIRST, _LAST])))
        rank, low_ns, high_ns = (np.concatenate(columns) for columns in zip(*times, strict=True))
        order = np.argsort(rank, kind="stable")
        low_ns, high_ns = intervals.group_extents(
            rank[order] - ranks.start, len(ranks), low_ns[order], high_ns[order]
        )
        # What is behind everything that a rank did is on its stretch, too.
        return Line(ranks, intervals.Packing.of(low_ns, np.maximum(low_ns, high_ns) + 1))

    def place(self, rank: Codes, time_ns: Ints, unknown: int | None = None) -> Ints:
        """Return the places of times of ranks; what stands for an unknown one stays."""
        if len(self.ranks) == 1:
            return time_ns
        place = self.packing.place(rank - self.ranks.start, time_ns)
        return place if unknown is None else np.where(time_ns == unknown, unknown, place)

    def time(self, rank: Codes, place: Ints) -> Ints:
        """Return the times of places; -1 stays."""
        if len(self.ranks) == 1:
            return place
        time_ns = place - self.packing.shift_ns[rank - self.ranks.start]
        return np.where(place == NONE, NONE, time_ns)

    def begins(self, rank: Codes) -> Ints:
        """Return where the stretches of ranks begin: what is before is not theirs."""
        return self.packing.offset_ns[rank - self.ranks.start]

    def owners(self, place: Ints) -> Ints:
        """Return the rank of each place."""
        return self.packing.groups(place) + self.ranks.start

    def of_ranks(self, places: intervals.Intervals) -> model.RankIntervals:
        """Return a set of places as times of ranks."""
        rank = self.owners(places[0])
        return model.RankIntervals(rank, self.time(rank, places[0]), self.time(rank, places[1]))

    def placed(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the places of times; -1 stays."""
        return replace(table, **{n: self.place(rank, getattr(table, n), NONE) for n in columns})

    def in_time(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the times of places; -1 stays."""
        return replace(table, **{n: self.time(rank, getattr(table, n)) for n in columns})


def together(kernels: Ints, ranges: int) -> Iterator[range]:
    """Yield ranks that are worked out together, all of them in order.

    Args:
        kernels: how many kernels and copies each rank ran.
        ranges: how many ranges the profile has, each of which may have run on any rank.
    """
    first, most = 0, max(1, _ROOM // (ranges + 1))
    while first < len(kernels):
        ran = np.cumsum(kernels[first : first + most])
        end = first + max(1, int(np.searchsorted(ran, _TOGETHER, side="right")))
        yield range(first, end)
        first = end


@dataclass(frozen=True)
class ProfileWork:
    """All that ran in a profile, not yet divided into ranks.

    Attributes:
        activities: kernels, then copies.
        work: what each of them is, and its range.
        links: the call and range of each.
        ranges: how many ranges name operations.
        placed: these ranges on ranks.
        receives: receives, and the compute ranges around their launch, one row a pair.
        collectives: what is recorded of kernels of communication.
    """

    activities: Activities
    work: spanned.DeviceWork
    links: Links
    ranges: int
    placed: OperationRanges
    receives: tuple[Ints, Ints]
    collectives: RecordedCollectives


#: What kernels are by their names, whose last place is that of no name (-1): whether it is
#: communication between two ranks; what communication among more does, as row of NCCL's names of
#: collectives, the last one "" for none.
_KernelKinds: TypeAlias = tuple[Bools, tuple[Ints, tuple[str, ...]]]
#: What ranks did: tables by the names that recordings have for them, and ``late`` launches; how
#: much of the GPU time of each rank operations explain; the unattributed kernels of each with the
#: most time, by name, and the longest kernel of each.
RanksWork: TypeAlias = tuple[
    dict[str, Any], list[model.RankCoverage], list[tuple[model.UnattributedKernels, int]]
]


def record_ranks(profile: ProfileWork, keys: model.OperationKeys, kinds: Kinds) -> RanksWork:
    """Return what ranks did, in their order; tables count the operations of the whole profile.

    Args:
        profile: all that ran.
        keys: of the profile's operations, in order of rank.
        kinds: lists of what kernels are.
    """
    kernels = _kernel_kinds(profile.activities.names, kinds)
    count = len(profile.activities.ranks)
    rank_of_receive = profile.work.rank[profile.receives[0]]
    bounds = np.searchsorted(keys.rank, np.arange(count + 1)).tolist()
    ran, rows_of = profile.activities.counts_by_rank(), profile.activities.rows_by_rank()
    parts = []
    for ranks in together(ran, profile.ranges):
        first, end = bounds[ranks.start], bounds[ranks.stop]
        at = np.flatnonzero(_among(rank_of_receive, ranks))
        # No variable keeps the work of ranks while that of the next ones is taken.
        part = _record_ranks(
            _work_of(ranks, profile, rows_of, at, first),
            profile,
            keys.take(slice(first, end)),
            kernels,
        )
        for name in ("busy", "collectives", "late"):
            table = part[0][name]
            moved = np.where(table.operation == NONE, NONE, table.operation + first)
            part[0][name] = table.changed(operation=moved)
        parts.append(part)
    tables, coverage, unattributed = zip(*parts, strict=True)
    return (
        {name: joined([table[name] for table in tables]) for name in tables[0]},
        list(chain.from_iterable(coverage)),
        list(chain.from_iterable(unattributed)),
    )


def _kernel_kinds(names: Sequence[str], kinds: Kinds) -> _KernelKinds:
    collective = np.full(len(names) + 1, len(kinds.collective_kinds))
    for name in np.flatnonzero(matching(names, kinds.communication)).tolist():
        kind = kind_of_collective(names[name], kinds.collective_kinds)
        if kind != NONE:
            collective[name] = kind
    point_to_point = np.append(matching(names, kinds.point_to_point), False)
    texts = (*(text for text, _ in kinds.collective_kinds), "")
    return point_to_point, (collective, texts)


def _among(rank: Codes, ranks: range) -> Bools:
    """Tell which of some numbers are those of ranks."""
    if len(ranks) == 1:
        return np.asarray(rank == ranks.start)
    return np.asarray((rank >= ranks.start) & (rank < ranks.stop))


def _work_of(
    ranks: range,
    profile: ProfileWork,
    rows_of: Callable[[int], Codes],
    receives: Ints,
    first: int,
) -> spanned.RankWork:
    """Return the work of ranks, whose operations are numbered from ``first`` in the profile.

    Args:
        ranks: of the profile.
        profile: all that ran.
        rows_of: gives the rows of a rank's activities.
        receives: rows of its receives that are of these ranks.
        first: number of the ranks' first operation.
    """
    rows = np.concatenate([rows_of(rank) for rank in ranks])
    activity, of_range = (column[receives] for column in profile.receives)
    # Those of a rank ascend, and mostly follow each other.
    taken = stretch_of(rows) if len(ranks) == 1 else rows
    if isinstance(taken, slice):
        received = activity - taken.start
    else:
        order = np.argsort(rows, kind="stable")
        received = order[np.searchsorted(rows, activity, sorter=order)]
    work = profile.work.take(taken)
    # Operation of each range on each rank, of no range (-1) in the last place; -1 for ranges that
    # launched nothing there.
    placed = profile.placed.take(_among(profile.placed.rank, ranks))
    operation_of = np.full((len(ranks), profile.ranges + 1), NONE, np.int32)
    operation_of[placed.rank - ranks.start, placed.range] = placed.operation - first
    if len(ranks) == 1:
        owner, around = operation_of[0].take(work.range), operation_of[0][of_range]
    else:
        of_rank = work.rank - ranks.start
        owner = operation_of[of_rank, work.range]
        around = operation_of[of_rank[received], of_range]
    return spanned.RankWork(
        ranks=ranks,
        rows=rows,
        work=work,
        name_id=profile.activities.name_id[taken],
        owner=owner,
        received=received,
        around=around,
    )


def _record_ranks(
    ran: spanned.RankWork, profile: ProfileWork, keys: model.OperationKeys, kernels: _KernelKinds
) -> RanksWork:
    """Return what ranks did; tables count their own operations."""
    point_to_point, kinds = kernels
    links, time_ns = profile.links, ran.work.start_ns
    line = _line_of(ran, links, keys)
    ran = replace(ran, work=line.placed(ran.work, ran.work.rank, *_TIMES))
    work, placed = ran.work, line.placed(keys, keys.rank, *_HOST_TIMES)
    times = spanned.times_of(placed, ran)
    times, only_communicates = spanned.with_communication_spans(placed, ran, times)
    spans, busy = spanned.spans_of(placed, ran, times, only_communicates)
    operating = spanned.busy_times(keys, busy, COMPUTE)
    both = zip(operating, times.unattributed, strict=True)
    start_ns, end_ns = map(np.concatenate, both)
    computed = intervals.union(start_ns, end_ns)
    rows = np.flatnonzero(work.communication)
    transfer = point_to_point[ran.name_id[rows]]
    collectives = rows[~(transfer | spanned.owned_by(keys, ran.owner[rows], TRANSFERS))]
    receive = _last_received(spans["received_ns"], ran)
    launched, thread = _launched_by(ran.rows, times.first, links)
    receive_start_ns = np.append(time_ns, NONE)[receive]
    operations = model.Operations.from_keys(
        placed,
        **spans,
        launched_ns=launched,
        receive_launched_ns=_launched_by(ran.rows, receive, links)[0],
        receive_start_ns=receive_start_ns,
    )
    operations = line.placed(operations, keys.rank, *_LAUNCH_TIMES)
    collecting = intervals.union(work.start_ns[collectives], work.end_ns[collectives])
    active, running = spanned.active_time(operations, times, busy, operating, collecting)
    exposed = intervals.difference(collecting, computed)
    launched = line.place(
        work.rank[collectives], links.launch_times_ns(ran.rows[collectives]), NEVER
    )
    kept, first_kernel = collective_intervals(
        placed, ran, collectives, launched, exposed, kinds, profile.collectives
    )
    launched, by_thread = _launched_by(ran.rows, first_kernel, links)
    launched = line.place(kept.rank, launched, NONE)
    kept, late_collectives = late_launched(
        kept, launched, by_thread, (computed, exposed), line.begins(kept.rank)
    )
    of_operations = late_launches(operations, thread, computed, line.begins(keys.rank))
    late = joined([of_operations, late_collectives, stalls(operations, thread)])
    running = replace(running, rank=line.owners(running.start_ns))
    tables = {
        "operations": line.in_time(
            operations, keys.rank, *_TIMES, *_HOST_TIMES, *_LAUNCH_TIMES, "received_ns"
        ),
        "busy": line.in_time(busy, keys.rank[busy.operation], *_TIMES),
        "active": active,
        "running": line.in_time(running, running.rank, *_TIMES),
        "unattributed": line.of_ranks(times.unattributed),
        "exposed": line.of_ranks(exposed),
        "collectives": line.in_time(kept, kept.rank, *_TIMES),
        "late": line.in_time(late, late.rank, "since_ns", "until_ns"),
    }
    return (
        tables,
        rank_coverages(ran.ranks, times.spent_ns),
        list(unattributed_kernels(ran, times.loose, profile.activities.names)),
    )


def _line_of(ran: spanned.RankWork, links: Links, keys: model.OperationKeys) -> Line:
    """Return the line of ranks, with room for all that they and their hosts did."""
    if len(ran.ranks) == 1:
        return Line.of(ran.ranks)
    work = ran.work
    launched = np.flatnonzero(links.rule[ran.rows] != LinkRule.UNLINKED)
    launched_ns = links.launched_ns[ran.rows[launched]]
    return Line.of(
        ran.ranks,
        (work.rank, work.start_ns, work.end_ns),
        (work.rank[launched], launched_ns, launched_ns),
        (keys.rank, keys.host_start_ns, keys.host_end_ns),
    )


def _launched_by(rows: Codes, which: Codes, links: Links) -> tuple[Ints, Ints]:
    """Return when some activities were launched, and by which thread; -1 unknown.

    Args:
        rows: activities of a profile.
        which: of these; -1 none.
        links: of all activities.
    """
    launched_ns = np.full(len(which), NONE, np.int64)
    thread = launched_ns.copy()
    known = np.flatnonzero(which != NONE)
    activity = rows[which[known]]
    called = links.rule[activity] != LinkRule.UNLINKED
    known, activity = known[called], activity[called]
    launched_ns[known] = links.launched_ns[activity]
    thread[known] = links.threads[links.thread[activity]]
    return launched_ns, thread


def _last_received(received_ns: Ints, ran: spanned.RankWork) -> Codes:
    """Return for each operation the receive inside it that ended last; -1 none.

    Args:
        received_ns: when that was, of each operation.
        ran: all that ran on their ranks.
    """
    last = np.full(len(received_ns), NONE, np.int32)
    inside = np.flatnonzero(ran.around >= 0)
    ended = ran.work.end_ns[ran.received[inside]] == received_ns[ran.around[inside]]
    # The first of several that end together is the last to be set.
    inside = inside[ended][::-1]
    last[ran.around[inside]] = ran.received[inside]
    return last
