"""Stretches: whole pipelines of a run, as many as fit the caches of a core, explained on their own.

Ranks stand in the order of their pipelines, and operations in that of their ranks, so that a
stretch is a slice of every table. What it takes from others is small, and given to it::

    operations   ├─ pipelines 0 to 3 ─┼─ pipelines 4 to 7 ─┼─ pipelines 8 to 11 ─┤
                       stretch 0            stretch 1             stretch 2
    given        windows, when iterations end and begin, how collectives split

Where the pipeline of some rank is unknown, the whole run is one stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.run import Run
from bubbleviz.count import rank_iterations, rank_slices
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import Extents, Windows, ratio_definitions
from bubbleviz.model import operations as tables
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, marked
from bubbleviz.model.grouping import (
    distinct,
    first_of_each,
    groups_of,
    heads,
    places_in,
    sorted_rows,
)
from bubbleviz.model.intervals import group_extents, last_before
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.phase_masks import INFERENCE, among, run_kind
from bubbleviz.model.phases import COMPUTE, PASSED_ON, WORK, Phase

#: About so many operations are explained at a time.
MOST = 150_000


@dataclass(frozen=True, eq=False, repr=False)
class Stretch:
    """Some whole pipelines of a run; ranks and rows of operations count from its own first ones.

    Attributes:
        first_rank: its first rank in the run.
        first_row: its first operation in the run.
        ranks: with the numbers of the run.
        operations: of the ranks, without their names: those of a run may be millions.
        busy: when these keep the ranks busy.
        running: how long kernels and copies ran.
        unattributed: compute outside every operation.
        exposed: when collectives ran and no operation.
        overheads: when the profiler held a rank up.
        unrecorded: When a rank may have run work that was launched and not recorded.
        hosts: what launching threads did, in order of the operation that was launched late.
        collectives: split into waiting and moving; an operation from ``len(operations)`` on is in
            ``elsewhere``.
        elsewhere: rows of the run, of operations on other stretches that collectives waited for.
        collective_gap_ns: as of :class:`~bubbleviz.align.run.Run`, shape (iterations, ranks).
        extents: first starts and last ends.
        windows: of each ratio, by name.
        kept: of each rank, whether the tables of its operations are handed on.
        averaged: of each iteration of the run, whether it is averaged.
        ended_ns: when each iteration ended on all ranks of the run; the earliest time where that
            is unknown.
        begun_ns: when the next one began on any; the latest time where that is unknown.
        listed: name of the ratio whose bubbles are listed.
        forward: whether the run only goes forward.
        stages_known: whether the virtual stages of operations are those that they ran.
        passing: whether several ranks of the run have operations that take from other ranks.
        ends_early: whether stages may be missing behind the last one that the profiles hold.
    """

    first_rank: int
    first_row: int
    ranks: tuple[tables.Rank, ...]
    operations: tables.Operations
    busy: tables.BusyIntervals
    running: tables.RunningTimes
    unattributed: tables.RankIntervals
    exposed: tables.RankIntervals
    overheads: tables.RankIntervals
    unrecorded: tables.RankIntervals
    hosts: tables.HostActivities
    collectives: CollectiveWaits
    elsewhere: Ints
    collective_gap_ns: Ints
    extents: Extents
    windows: Mapping[str, Windows]
    kept: Bools
    averaged: Bools
    ended_ns: Ints
    begun_ns: Ints
    listed: str
    forward: bool
    stages_known: bool
    passing: bool
    ends_early: bool


def stretches_of(run: Run, counts: Counts, kept: Bools | None = None) -> Iterator[Stretch]:
    """Yield the stretches of a run, in the order of their ranks.

    Args:
        run: the merged profiles.
        counts: its ratios.
        kept: of each rank, whether the tables of its operations are handed on; None for all. Of a
            run that is one stretch all are.
    """
    phase = run.operations.phase
    taking = np.flatnonzero(among(phase, (*PASSED_ON, Phase.FB)))
    several = run.operations.rank[taking[:1]] != run.operations.rank[taking[-1:]]
    ended_ns, begun_ns = _ends_and_starts(counts)
    # Bubbles of the headline are listed, or of another ratio that ranks have.
    names = (counts.headline, *(ratio.name for ratio in ratio_definitions()))
    known = (
        n for n in names if any(rank_iterations.has_account(i.ranks, n) for i in counts.iterations)
    )
    shared: dict[str, Any] = {
        "averaged": np.array([i.averaged for i in counts.iterations], bool),
        "ended_ns": ended_ns,
        "begun_ns": begun_ns,
        "listed": next(known, counts.headline),
        "forward": run_kind(phase) == INFERENCE,
        "stages_known": not stages_contradicted(run),
        "passing": bool(several.any()),
        "ends_early": run.ends_early,
    }
    collectives = collective_waits(run.collectives, run.operations)
    bounds = rank_slices.pipeline_bounds(run, MOST)
    if kept is None or len(bounds) <= 2:
        kept = np.ones(len(run.ranks), bool)
    for first, end in pairwise(bounds):
        ranks, columns = (first, end), slice(first, end)
        operations, busy, rows = rank_slices.operations_of_ranks(run, ranks)
        row = int(rows.start)
        ends = np.searchsorted(run.hosts.operation, (rows.start, rows.stop))
        hosts = run.hosts.take(slice(*ends.tolist()))
        if row or first:
            hosts = replace(hosts, rank=hosts.rank - first, operation=hosts.operation - row)
        waits = rank_slices.of_ranks(collectives, ranks)
        # Rows of other stretches stand behind those of this one.
        last = waits.last_operation
        outside = (last != NONE) & ((last < row) | (last >= row + len(operations)))
        elsewhere = distinct(last[outside])
        own = np.where(last == NONE, NONE, last - row)
        own[outside] = len(operations) + np.searchsorted(elsewhere, last[outside])
        yield Stretch(
            first_rank=first,
            first_row=row,
            ranks=run.ranks[columns],
            operations=replace(operations, names=()),
            busy=busy,
            running=rank_slices.of_ranks(run.running, ranks),
            unattributed=rank_slices.of_ranks(run.unattributed, ranks),
            exposed=rank_slices.of_ranks(run.exposed, ranks),
            overheads=rank_slices.of_ranks(run.overheads, ranks),
            unrecorded=rank_slices.of_ranks(run.unrecorded, ranks),
            hosts=hosts,
            collectives=replace(waits, last_operation=own),
            elsewhere=elsewhere,
            collective_gap_ns=run.collective_gap_ns[:, columns],
            extents=counts.extents.of_ranks(columns),
            windows={name: window.of_ranks(columns) for name, window in counts.windows.items()},
            kept=kept[columns],
            **shared,
        )


def stages_contradicted(run: Run) -> bool:
    """Return whether the given order of stages contradicts what follows from it."""
    return any(note.kind is LimitationKind.STAGES_CONTRADICTED for note in run.limitations)


def _ends_and_starts(counts: Counts) -> tuple[Ints, Ints]:
    """Return when each iteration ended on all ranks, and when the next one began on any.

    Where clocks cannot be compared, it is unknown: the earliest and the latest possible time.
    """
    extents, always = counts.extents, np.iinfo(np.int64).max
    if not extents.present.size:
        return np.zeros(len(extents.first_ns), np.int64), np.zeros(len(extents.first_ns), np.int64)
    ended = np.where(extents.present, extents.step_last_ns, NEVER).max(axis=1)
    begun = np.where(extents.present, extents.first_ns, always).min(axis=1)
    ended = np.where(counts.one_clock, ended, NEVER)
    begun = np.where(counts.one_clock, begun, always)
    return ended, np.append(begun[1:], always)


# Collective waits: until when each rank only waited in a collective, and for whom.
#
# Data moves from the moment the last member has entered. That one waits least, so the shortest of
# the members' kernels bounds the move, and the rest of each other one is waiting, at its start: all
# of it where the shortest takes less than any move does. No common clock is needed::
#
#     rank 0   ├─ waiting ──────┼─ moving ─┤
#     rank 1                    ├─ moving ─┤      the shortest: it entered last


#: Ranks that enter within so long of each other enter together, and no move is so short.
_GRAIN_NS = 5_000


@dataclass(frozen=True, eq=False, repr=False)
class CollectiveWaits(Table):
    """Collectives of ranks, in order of (rank, start), split into waiting and moving.

    Attributes:
        rank: the rank.
        iteration: its iteration; -1 unknown.
        kind: row of ``kinds``.
        start_ns: when the rank entered.
        moving_ns: when the last member had entered: the rank waits until then. Where the members
            are unknown that is the start.
        end_ns: when the rank left.
        last_rank: the rank that entered last; -1 where that is the rank itself, or unknown.
        last_operation: row of the operation that it ran or had run before it entered; -1 none.
        known: whether the members are.
        kinds: NCCL's names of operations; "" for what has none.
    """

    rank: Ints
    iteration: Ints
    kind: Ints
    start_ns: Ints
    moving_ns: Ints
    end_ns: Ints
    last_rank: Ints
    last_operation: Ints
    known: Bools
    kinds: tuple[str, ...] = field(metadata={"shared": True})


def collective_waits(
    collectives: CollectiveIntervals, operations: tables.Operations
) -> CollectiveWaits:
    """Return collectives split into waiting and moving.

    Args:
        collectives: of all ranks, on any clocks.
        operations: of all ranks.
    """
    moving_ns = collectives.start_ns.copy()
    last_rank = np.full(len(collectives), NONE, np.int64)
    last_operation = last_rank.copy()
    rows = np.flatnonzero(collectives.meeting >= 0)
    # A member may have several pieces: it entered with the first and left with the last.
    members = groups_of(collectives.meeting[rows], collectives.rank[rows])
    start_ns, end_ns = group_extents(
        members.of_row, len(members), collectives.start_ns[rows], collectives.end_ns[rows]
    )
    rank, meeting = collectives.rank[rows][members.first], collectives.meeting[rows][members.first]
    length_ns = end_ns - start_ns
    shortest = first_of_each(meeting, length_ns)
    # Of the numbers of meetings some may be missing.
    of_meeting = np.searchsorted(meeting[shortest], meeting)
    shortest_ns = length_ns[shortest][of_meeting]
    before = _running(operations, rank, start_ns)
    # Where several enter together, another collective held them; the one that worked until then
    # was waited for.
    idle_ns = start_ns - np.append(operations.end_ns, np.iinfo(np.int64).min // 2)[before]
    earlier = (length_ns - shortest_ns > _GRAIN_NS).astype(np.int64)
    entered = first_of_each(meeting, earlier, idle_ns, rank)[of_meeting]
    other, operation = rank[entered] != rank, before[entered]
    # So short a time tells no move from the last member's own launch.
    move_ns = np.where(other & (shortest_ns <= _GRAIN_NS), 0, shortest_ns)
    of_row = members.of_row
    moving_ns[rows] = np.clip(
        (end_ns - move_ns)[of_row], collectives.start_ns[rows], collectives.end_ns[rows]
    )
    last_rank[rows] = np.where(other, rank[entered], NONE)[of_row]
    last_operation[rows] = np.where(other, operation, NONE)[of_row]
    return CollectiveWaits(
        rank=collectives.rank,
        iteration=collectives.iteration,
        kind=collectives.kind,
        start_ns=collectives.start_ns,
        moving_ns=moving_ns,
        end_ns=collectives.end_ns,
        last_rank=last_rank,
        last_operation=last_operation,
        known=collectives.meeting >= 0,
        kinds=collectives.kinds,
    )


def _running(operations: tables.Operations, rank: Ints, time_ns: Ints) -> Ints:
    """Return the compute operation that each rank had begun last before a time; -1 none."""
    if not len(rank):
        return rank
    rows = np.flatnonzero((operations.has_span == 1) & among(operations.phase, COMPUTE))
    last: Ints = last_before(operations.rank[rows], operations.start_ns[rows], rank, time_ns)
    return np.append(rows, NONE)[last]


# Replayed ranks: the pipelines of a large run that are replayed, since they bound its iterations.
#
# Pipelines wait for each other at the end of an iteration alone, so that the slowest ones decide
# how long it takes, and what it would take without a fault. Others show what is usual::
#
#     pipelines by when they end    ████████████████▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏
#     replayed                      ████████████████   ▏    ▏    ▏    ▏    ▏    ▏    ▏    ▏
#                                   the slowest        as many, evenly spread over the others


#: Runs with more forwards and backwards than this are replayed in part: about so many.
MOST_REPLAYED_RANKS = 100_000
#: The fewest pipelines that are replayed of a run of which there are more.
_LEAST = 4


@dataclass(frozen=True)
class ReplayedRanks:
    """Which ranks of a run are replayed.

    Attributes:
        chosen: of each rank.
        pipelines: how many that are.
        of: of how many.
    """

    chosen: Bools
    pipelines: int
    of: int


def replayed_ranks(
    operations: tables.Operations, ranks: Sequence[tables.Rank], included: Bools
) -> ReplayedRanks | None:
    """Return which ranks are replayed; None for all.

    Args:
        operations: of all ranks.
        ranks: by number.
        included: of each iteration, whether it counts.
    """
    number = rank_slices.stage_and_pipeline(ranks)[1]
    if number.min(initial=0) < 0:
        return None
    pipelines = groups_of(number)
    pipeline, count = pipelines.of_row, len(pipelines)
    rows = np.flatnonzero(
        np.append(included, False)[operations.iteration] & among(operations.phase, WORK)
    )
    wanted = max(_LEAST, MOST_REPLAYED_RANKS * count // max(len(rows), 1))
    if wanted >= count or len(rows) <= MOST_REPLAYED_RANKS:
        return None
    end_ns = np.full((count, len(included)), np.iinfo(np.int64).min)
    # Operations of a rank and an iteration mostly follow each other.
    cell = pipeline[operations.rank[rows]] * len(included) + operations.iteration[rows]
    first = heads(cell)
    latest_ns = np.maximum.reduceat(operations.end_ns[rows], first)
    np.maximum.at(end_ns.reshape(-1), cell[first], latest_ns)
    # By the best place that a pipeline has in any iteration, by latest end. Turned around bit by
    # bit: the earliest of all times has no negative.
    places = [places_in(sorted_rows(~column)) for column in end_ns[:, included].T]
    order = sorted_rows(np.min(places, axis=0), np.sum(places, axis=0))
    slowest, others = order[: wanted // 2], order[wanted // 2 :]
    spread = others[np.arange(wanted - len(slowest)) * len(others) // (wanted - len(slowest))]
    chosen = marked(count, np.concatenate((slowest, spread)))
    return ReplayedRanks(chosen[pipeline], int(chosen.sum()), count)
