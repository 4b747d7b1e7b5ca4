"""What one rank did: its operations' spans, what they leave unexplained, its collectives.

Ranks are worked out one after another, so that memory is that of one rank's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz import intervals
from bubbleviz.collectives import Collectives, collectives_of, kinds_of
from bubbleviz.columns import NONE, Codes, Ints
from bubbleviz.coverage import Loose, largest, rank_coverage
from bubbleviz.kinds import Kinds
from bubbleviz.link import Inside, Links
from bubbleviz.model import BusyIntervals, Operations, RankCoverage, RankIntervals
from bubbleviz.parts import Parts, operations_of_ranges
from bubbleviz.phases import COMPUTE
from bubbleviz.profile import Activities, CallLog
from bubbleviz.spans import ActiveTime, active_time, owned_by, spans_of
from bubbleviz.work import Work


@dataclass(frozen=True)
class Linkage:
    """What is known of all that ran, before it is laid on operations."""

    activities: Activities
    work: Work
    links: Links
    parts: Parts
    inside: Inside
    calls: CallLog
    ranges: int


@dataclass(frozen=True)
class OnRank:
    """What one rank did; ``busy`` counts operations of the whole profile."""

    operations: Operations
    busy: BusyIntervals
    active: ActiveTime
    unattributed: RankIntervals
    collectives: Collectives
    coverage: RankCoverage
    loose: tuple[Loose, ...]


def on_ranks(linkage: Linkage, operations: Operations, kinds: Kinds) -> Iterator[OnRank]:
    """Yield what each rank did.

    Args:
        linkage: all that ran.
        operations: without spans, in order of rank.
        kinds: lists of what kernels are.
    """
    collective = kinds_of(linkage.activities.names, kinds.collectives)
    count = len(linkage.activities.ranks)
    inside_rank = linkage.work.rank[linkage.inside.activity]
    bounds = np.searchsorted(operations.rank, np.arange(count + 1)).tolist()
    for index in range(count):
        own = operations.take(slice(bounds[index], bounds[index + 1]))
        inside = linkage.inside.take(inside_rank == index)
        yield _on_rank(index, linkage, own, bounds[index], inside, collective)


def _on_rank(
    index: int, linkage: Linkage, operations: Operations, first: int, inside: Inside, kinds: Codes
) -> OnRank:
    """Return what one rank did.

    Args:
        index: the rank.
        linkage: all that ran.
        operations: of the rank.
        first: number of the first of them in the profile.
        inside: the rank's receives, with the ranges around their launch.
        kinds: kind of collective of each kernel name, and of none.
    """
    rows = np.flatnonzero(linkage.activities.rank == index).astype(np.int32)
    work = linkage.work.take(rows)

    operation_of = operations_of_ranges(linkage.parts, index, linkage.ranges)
    operation_of[operation_of != NONE] -= first
    owner = operation_of[work.range]
    received = np.searchsorted(rows, inside.activity)
    operations, busy = spans_of(operations, work, owner, received, operation_of[inside.range])
    loose = work.compute & ~owned_by(operations, owner, COMPUTE)
    start_ns, end_ns = intervals.union(work.start_ns[loose], work.end_ns[loose])
    name_id = linkage.activities.name_id[rows]
    names = linkage.activities.names

    def launched_ns(some: Ints) -> Ints:
        return linkage.links.launched_ns(rows[some], linkage.calls)

    return OnRank(
        operations,
        replace(busy, operation=busy.operation + first),
        active_time(operations, work, owner),
        RankIntervals(np.full(len(start_ns), index), start_ns, end_ns),
        collectives_of(operations, work, owner, launched_ns, kinds[name_id]),
        rank_coverage(index, work, loose),
        tuple(largest(index, work, loose, name_id, names, rows)),
    )
