"""Merging: the recordings of several profiles as one table, on the report's clock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from bubbleviz.align.bounds.clocks import ProfileClock
from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.interpret.recording import LocalRank, Recording
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, joined
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.process_groups import Group
from bubbleviz.model.profile import ToldClock
from bubbleviz.model.values import frozen

ValueT = TypeVar("ValueT", bound=Hashable)

#: The columns of operations that depend on the clock.
_LAUNCHES = ("received_ns", "receive_start_ns", "receive_launched_ns", "launched_ns")
TIMES = ("start_ns", "end_ns", "host_start_ns", "host_end_ns", *_LAUNCHES)


@frozen
class JoinedRank:
    """A rank with the profile it comes from and the machine whose clock it has."""

    profile: int
    host: str
    machine: str
    local: LocalRank


@frozen
class JoinedRecordings:
    """All recordings; ranks are numbered through in the order the profiles hold them.

    Attributes:
        ranks: by number.
        machine_of_profile: the machine whose clock each profile has.
        told_clocks: the clock that each profile names; None where it names none.
        timed: whether the UTC of each rank's profile is known.
        recorded_start_ns: when the first kernel or call of each rank's profile began.
        recorded_end_ns: when the last one ended.
        operations: ``iteration`` still counts each rank's own.
        busy: their busy intervals.
        unattributed: compute outside every compute operation.
        exposed: when only communication ran that is not between two ranks.
        overheads: when the profiler held a rank's process up.
        pauses: when nothing of a rank was recorded.
        hosts: what launching threads did before late launches.
        active: how long compute kernels ran in each rank's own iterations.
        running: how long kernels and copies ran in and between these.
        replica_collectives: those that synchronise replicas, ``iteration`` each rank's own.
        collectives: all that are kept, likewise.
        named_stage: virtual stage that names give each operation; -1 none.
        named_iteration: iteration that a range around it names; -1 none.
        inferred: whether names of any recording leave microbatches to be counted by order.
    """

    ranks: tuple[JoinedRank, ...]
    machine_of_profile: tuple[str, ...]
    told_clocks: tuple[ToldClock | None, ...]
    timed: Bools
    recorded_start_ns: Ints
    recorded_end_ns: Ints
    operations: RankOperations
    busy: BusyIntervals
    unattributed: RankIntervals
    exposed: RankIntervals
    overheads: RankIntervals
    pauses: RankIntervals
    hosts: HostActivities
    active: ActiveTime
    running: RunningTimes
    replica_collectives: ReplicaCollectives
    collectives: CollectiveIntervals
    named_stage: Ints
    named_iteration: Ints
    inferred: bool

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines, in the order in which ranks first name them."""
        return tuple(dict.fromkeys(rank.machine for rank in self.ranks))

    @property
    def machine_of_rank(self) -> Ints:
        """Number of the machine of each rank."""
        number = {machine: index for index, machine in enumerate(self.machines)}
        return np.array([number[rank.machine] for rank in self.ranks], np.int64)


def join(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock], machines: Sequence[str]
) -> JoinedRecordings:
    """Return the recordings as one, times moved by their clocks."""
    base_rank = np.cumsum([0, *(len(r.ranks) for r in recordings)]).tolist()
    base_row = np.cumsum([0, *(len(r.operations) for r in recordings)]).tolist()
    parts = list(zip(recordings, clocks, base_rank, base_row, strict=False))
    return JoinedRecordings(
        ranks=tuple(
            JoinedRank(i, _host(recording, rank), machine, rank)
            for i, (recording, machine) in enumerate(zip(recordings, machines, strict=True))
            for rank in recording.ranks
        ),
        machine_of_profile=tuple(machines),
        told_clocks=tuple(recording.source.clock for recording in recordings),
        timed=np.array([r.source.session_utc_ns is not None for r in recordings for _ in r.ranks]),
        recorded_start_ns=_by_rank(parts, [r.start_ns for r in recordings]),
        recorded_end_ns=_by_rank(parts, [r.end_ns for r in recordings]),
        operations=_operations(recordings, clocks, base_rank),
        busy=BusyIntervals(
            operation=np.concatenate([r.busy.operation + row for r, _, _, row in parts]),
            start_ns=np.concatenate([c.of(r.busy.start_ns) for r, c, _, _ in parts]),
            end_ns=np.concatenate([c.of(r.busy.end_ns) for r, c, _, _ in parts]),
        ),
        unattributed=joined([_aligned(r.unattributed, c, base) for r, c, base, _ in parts]),
        exposed=joined([_aligned(r.exposed, c, base) for r, c, base, _ in parts]),
        overheads=joined([_aligned(r.overheads, c, base) for r, c, base, _ in parts]),
        pauses=joined([_aligned(r.pauses, c, base) for r, c, base, _ in parts]),
        hosts=_hosts(parts),
        active=joined([replace(r.active, rank=r.active.rank + base) for r, _, base, _ in parts]),
        running=joined(
            [
                replace(
                    r.running,
                    rank=r.running.rank + base,
                    start_ns=c.of(r.running.start_ns),
                    end_ns=c.of(r.running.end_ns),
                )
                for r, c, base, _ in parts
            ]
        ),
        replica_collectives=_replica_collectives(parts),
        collectives=_collectives(parts),
        named_stage=np.concatenate([r.hints.stage for r in recordings]),
        named_iteration=np.concatenate([r.hints.iteration for r in recordings]),
        inferred=any(
            note.kind is LimitationKind.MICROBATCHES_INFERRED
            for r in recordings
            for note in r.limitations
        ),
    )


def _host(recording: Recording, rank: LocalRank) -> str:
    """Return a rank's host: its own where a table tells it, else its profile's."""
    told = rank.told
    return recording.source.host if told is None or told.host is None else told.host


def _by_rank(parts: Sequence[tuple[Recording, ProfileClock, int, int]], times: list[int]) -> Ints:
    """Return one time of each profile for each of its ranks, on the report's clock."""
    return np.concatenate(
        [
            np.repeat(c.of(np.array([time], np.int64)), len(r.ranks))
            for (r, c, *_), time in zip(parts, times, strict=True)
        ]
    )


def _hosts(parts: Sequence[tuple[Recording, ProfileClock, int, int]]) -> HostActivities:
    names = np.cumsum([0, *(len(r.operations.names) for r, *_ in parts)]).tolist()
    return joined(
        [
            replace(
                r.hosts,
                rank=r.hosts.rank + base_rank,
                operation=np.where(r.hosts.operation == NONE, NONE, r.hosts.operation + row),
                start_ns=c.of(r.hosts.start_ns),
                end_ns=c.of(r.hosts.end_ns),
                name_id=r.hosts.name_id + base,
            )
            for (r, c, base_rank, row), base in zip(parts, names, strict=False)
        ]
    )


def _aligned(intervals: RankIntervals, clock: ProfileClock, base_rank: int) -> RankIntervals:
    """Return intervals on the report's clock, with ranks numbered through."""
    return RankIntervals(
        intervals.rank + base_rank, clock.of(intervals.start_ns), clock.of(intervals.end_ns)
    )


def _moved(time_ns: Ints, clock: ProfileClock) -> Ints:
    """Return times on the report's clock; none stays none."""
    return np.where(time_ns != NONE, clock.of(time_ns), NONE)


def _replica_collectives(
    parts: Sequence[tuple[Recording, ProfileClock, int, int]],
) -> ReplicaCollectives:
    columns = {
        name: np.concatenate([getattr(r.replica_collectives, name) for r, *_ in parts])
        for name in ("iteration", "kind")
    }
    return ReplicaCollectives(
        rank=np.concatenate([r.replica_collectives.rank + base for r, _, base, _ in parts]),
        start_ns=np.concatenate([c.of(r.replica_collectives.start_ns) for r, c, _, _ in parts]),
        end_ns=np.concatenate([c.of(r.replica_collectives.end_ns) for r, c, _, _ in parts]),
        **columns,
    )


def _collectives(
    parts: Sequence[tuple[Recording, ProfileClock, int, int]],
) -> CollectiveIntervals:
    kinds: Numbering[str] = Numbering()
    groups: Numbering[Group] = Numbering()
    tables = []
    meetings: dict[str, int] = {}
    count = 0
    for recording, clock, base_rank, base_row in parts:
        table = recording.collectives
        # Parts of one table number their meetings together.
        first = meetings.setdefault(recording.source.path, count)
        count = max(count, first + int(table.meeting.max(initial=NONE)) + 1)
        tables.append(
            table.moved(rank=base_rank, operation=base_row).changed(
                kind=_renumbered(table.kind, kinds, table.kinds),
                group=_renumbered(table.group, groups, table.groups),
                start_ns=clock.of(table.start_ns),
                end_ns=clock.of(table.end_ns),
                meeting=np.where(table.meeting == NONE, NONE, table.meeting + first),
            )
        )
    return replace(joined(tables), kinds=kinds.values, groups=groups.values)


def _renumbered(code: Ints, numbers: Numbering[ValueT], values: Sequence[ValueT]) -> Ints:
    """Return codes of some values as codes of all; none stays none."""
    return np.append(numbers.numbers(values), NONE)[code]


def _operations(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock], base_rank: Sequence[int]
) -> RankOperations:
    names: list[str] = []
    tables = []
    for recording, clock, base in zip(recordings, clocks, base_rank, strict=False):
        operations = recording.operations
        spanned = operations.has_span == 1
        tables.append(
            operations.changed(
                rank=operations.rank + base,
                start_ns=np.where(spanned, clock.of(operations.start_ns), NONE),
                end_ns=np.where(spanned, clock.of(operations.end_ns), NONE),
                host_start_ns=clock.of(operations.host_start_ns),
                host_end_ns=clock.of(operations.host_end_ns),
                name_id=operations.name_id + len(names),
                **{name: _moved(getattr(operations, name), clock) for name in _LAUNCHES},
            )
        )
        names.extend(operations.names)
    return replace(joined(tables), names=tuple(names))
