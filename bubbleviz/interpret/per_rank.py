"""What one rank did: its operations' spans, what they leave unexplained, its collectives.

Ranks are worked out one after another, so that memory is that of one rank's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.interpret.collectives import Collectives, collectives_of, kinds_of
from bubbleviz.interpret.coverage import Loose, largest, rank_coverage
from bubbleviz.interpret.launches import (
    Begun,
    Late,
    last_received,
    late_launches,
    launches_of,
    occupied_by,
)
from bubbleviz.interpret.linking.links import Links
from bubbleviz.interpret.linking.open_ranges import EnclosingRanges
from bubbleviz.interpret.operation_ranges import Parts, operations_of_ranges
from bubbleviz.interpret.spans import ActiveTime, active_time, owned_by, spans_of
from bubbleviz.interpret.work import Work
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.operations import (
    BusyIntervals,
    OperationKeys,
    RankCoverage,
    RankIntervals,
    RankOperations,
)
from bubbleviz.model.phases import COMPUTE, TRANSFERS
from bubbleviz.model.profile import Activities, CallLog


@dataclass(frozen=True)
class Linkage:
    """What is known of all that ran, before it is laid on operations."""

    activities: Activities
    work: Work
    links: Links
    parts: Parts
    inside: EnclosingRanges
    calls: CallLog
    ranges: int


@dataclass(frozen=True)
class OnRank:
    """What one rank did; ``busy`` counts operations of the whole profile."""

    operations: RankOperations
    busy: BusyIntervals
    active: ActiveTime
    unattributed: RankIntervals
    exposed: RankIntervals
    late: Late
    collectives: Collectives
    coverage: RankCoverage
    loose: tuple[Loose, ...]


def on_ranks(linkage: Linkage, operations: OperationKeys, kinds: Kinds) -> Iterator[OnRank]:
    """Yield what each rank did.

    Args:
        linkage: all that ran.
        operations: in order of rank.
        kinds: lists of what kernels are.
    """
    collective = kinds_of(linkage.activities.names, kinds.collectives)
    # The last place is that of no name (-1).
    passing = np.append(matching(linkage.activities.names, kinds.point_to_point), False)
    count = len(linkage.activities.ranks)
    inside_rank = linkage.work.rank[linkage.inside.activity]
    bounds = np.searchsorted(operations.rank, np.arange(count + 1)).tolist()
    for index in range(count):
        own = operations.take(slice(bounds[index], bounds[index + 1]))
        inside = linkage.inside.take(inside_rank == index)
        yield _on_rank(index, linkage, own, bounds[index], inside, collective, passing)


def _on_rank(
    index: int,
    linkage: Linkage,
    keys: OperationKeys,
    first: int,
    inside: EnclosingRanges,
    kinds: Codes,
    passing: Bools,
) -> OnRank:
    """Return what one rank did.

    Args:
        index: the rank.
        linkage: all that ran.
        keys: of the operations of the rank.
        first: number of the first of them in the profile.
        inside: the rank's receives, with the ranges around their launch.
        kinds: kind of collective of each kernel name, and of none.
        passing: whether each kernel name is of communication between two ranks, and of none.
    """
    rows = np.flatnonzero(linkage.activities.rank == index).astype(np.int32)
    work = linkage.work.take(rows)

    operation_of = operations_of_ranges(linkage.parts, index, linkage.ranges)
    operation_of[operation_of != NONE] -= first
    owner = operation_of[work.range]
    received = np.searchsorted(rows, inside.activity)
    around = operation_of[inside.range]
    spans, busy, begin = spans_of(keys, work, owner, received, around)
    loose = work.compute & ~owned_by(keys, owner, COMPUTE)
    outside = intervals.union(work.start_ns[loose], work.end_ns[loose])
    name_id = linkage.activities.name_id[rows]
    together = np.flatnonzero(work.communication)
    passed = passing[name_id[together]] | owned_by(keys, owner[together], TRANSFERS)
    together = together[~passed]
    occupied = occupied_by(keys, busy, outside)
    exposed = intervals.difference(
        intervals.union(work.start_ns[together], work.end_ns[together]), occupied
    )
    receive = last_received(spans.received_ns, around, work.end_ns[received], received)
    launches, thread = launches_of(
        Begun(rows, begin, receive), work.start_ns, linkage.links, linkage.calls
    )
    operations = RankOperations.of(keys, spans, launches)
    late = late_launches(operations, thread, occupied)
    names = linkage.activities.names

    def launched_ns(some: Ints) -> Ints:
        return linkage.links.launched_ns(rows[some], linkage.calls)

    return OnRank(
        operations,
        replace(busy, operation=busy.operation + first),
        active_time(operations, work, owner),
        _on(index, outside),
        _on(index, exposed),
        replace(late, operation=late.operation + first),
        collectives_of(operations, work, owner, launched_ns, kinds[name_id]),
        rank_coverage(index, work, loose),
        tuple(largest(index, work, loose, name_id, names, rows)),
    )


def _on(rank: int, times: intervals.Intervals) -> RankIntervals:
    """Return a set of times as intervals of a rank."""
    return RankIntervals(np.full(len(times[0]), rank), *times)
