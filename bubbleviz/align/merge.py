"""Merging: the recordings of several profiles as one table, on the report's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bubbleviz.align.clocks import ProfileClock
from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.interpret.recording import LocalRank, Recording, Recordings
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, constant
from bubbleviz.model.files import whole_of
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.profile import ToldClock
from bubbleviz.model.values import frozen

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
    gathered: Recordings, clocks: Sequence[ProfileClock], machines: Sequence[str]
) -> JoinedRecordings:
    """Return recordings as one, times moved by their clocks."""
    parts = _Parts(gathered, clocks)
    operations = _operations(parts)
    recordings = gathered.recordings
    return JoinedRecordings(
        ranks=tuple(
            JoinedRank(i, _host(recording, rank), machine, rank)
            for i, (recording, machine) in enumerate(zip(recordings, machines, strict=True))
            for rank in recording.ranks
        ),
        machine_of_profile=tuple(machines),
        told_clocks=tuple(recording.source.clock for recording in recordings),
        timed=np.array([r.source.session_utc_ns is not None for r in recordings for _ in r.ranks]),
        recorded_start_ns=_by_rank(recordings, clocks, [r.start_ns for r in recordings]),
        recorded_end_ns=_by_rank(recordings, clocks, [r.end_ns for r in recordings]),
        operations=operations,
        busy=_busy(parts, operations),
        unattributed=parts.intervals("unattributed"),
        exposed=parts.intervals("exposed"),
        overheads=parts.intervals("overheads"),
        pauses=parts.intervals("pauses"),
        hosts=_hosts(parts),
        active=_active(parts),
        running=parts.intervals("running"),
        replica_collectives=parts.intervals("replica_collectives"),
        collectives=_collectives(parts),
        named_stage=gathered.hints.stage,
        named_iteration=gathered.hints.iteration,
        inferred=any(
            note.kind is LimitationKind.MICROBATCHES_INFERRED
            for r in recordings
            for note in r.limitations
        ),
    )


class _Parts:
    """The recordings, and by what the rows of their tables are moved in joined ones.

    Args:
        gathered: the recordings.
        clocks: of the profiles.
    """

    def __init__(self, gathered: Recordings, clocks: Sequence[ProfileClock]) -> None:
        self.gathered, self.clocks = gathered, clocks
        self.base_rank = _bases([len(r.ranks) for r in gathered.recordings])
        self.base_row = _bases(gathered.lengths("operations"))
        self.base_name = _bases(gathered.names)
        self._offset_ns = np.array([clock.offset_ns for clock in clocks], np.int64)
        self._drifts = any(clock.drift_ppm != 0.0 for clock in clocks)

    def numbered(self, number: Ints, base: Ints, lengths: Ints) -> Ints:
        """Return numbers of each part's own as numbers of all; none stays none.

        Args:
            number: of all parts, one after the other.
            base: what the first of each part becomes.
            lengths: how many rows each part has.
        """
        if number.min(initial=0) >= 0:
            return number + np.repeat(base, lengths)
        return np.where(number == NONE, NONE, number + np.repeat(base, lengths))

    def moved(self, times_ns: Ints, lengths: Ints) -> Ints:
        """Return times of all parts, one after the other, on the report's clock."""
        if self._drifts:
            pieces = np.split(times_ns, np.cumsum(lengths)[:-1])
            pairs = zip(self.clocks, pieces, strict=True)
            return np.concatenate([clock.of(piece) for clock, piece in pairs])
        if not self._offset_ns.any():
            return times_ns
        return times_ns + np.repeat(self._offset_ns, lengths)

    def known(self, times_ns: Ints, known: Bools, lengths: Ints) -> Ints:
        """Return times on the report's clock where they are known, and else none."""
        if not known.any():
            return constant(NONE, len(times_ns))
        moved = self.moved(times_ns, lengths)
        return moved if known.all() else np.where(known, moved, NONE)

    def intervals(self, name: str) -> Any:
        """Return the intervals of ranks of all parts, a table of some name."""
        table, lengths = getattr(self.gathered, name), self.gathered.lengths(name)
        return replace(
            table,
            rank=self.numbered(table.rank, self.base_rank, lengths),
            start_ns=self.moved(table.start_ns, lengths),
            end_ns=self.moved(table.end_ns, lengths),
        )


def _bases(lengths: Ints | Sequence[int]) -> Ints:
    """Return how many rows lie before each part."""
    return np.cumsum([0, *lengths[:-1]], dtype=np.int64)


def _host(recording: Recording, rank: LocalRank) -> str:
    """Return a rank's host: its own where a table tells it, else its profile's."""
    told = rank.told
    return recording.source.host if told is None or told.host is None else told.host


def _by_rank(
    recordings: Sequence[Recording], clocks: Sequence[ProfileClock], times: list[int]
) -> Ints:
    """Return one time of each profile for each of its ranks, on the report's clock."""
    each = np.array(times, np.int64)
    moved = [clock.of(each[i : i + 1]) for i, clock in enumerate(clocks)]
    return np.repeat(np.concatenate(moved), [len(r.ranks) for r in recordings])


def _busy(parts: _Parts, operations: RankOperations) -> BusyIntervals:
    if parts.gathered.busy_throughout:
        every = np.arange(len(operations))
        return BusyIntervals(every, operations.start_ns, operations.end_ns)
    table, lengths = parts.gathered.busy, parts.gathered.lengths("busy")
    return BusyIntervals(
        operation=parts.numbered(table.operation, parts.base_row, lengths),
        start_ns=parts.moved(table.start_ns, lengths),
        end_ns=parts.moved(table.end_ns, lengths),
    )


def _hosts(parts: _Parts) -> HostActivities:
    table: HostActivities = parts.intervals("hosts")
    lengths = parts.gathered.lengths("hosts")
    return replace(
        table,
        operation=parts.numbered(table.operation, parts.base_row, lengths),
        name_id=parts.numbered(table.name_id, parts.base_name, lengths),
    )


def _active(parts: _Parts) -> ActiveTime:
    table, lengths = parts.gathered.active, parts.gathered.lengths("active")
    return replace(table, rank=parts.numbered(table.rank, parts.base_rank, lengths))


def _collectives(parts: _Parts) -> CollectiveIntervals:
    table: CollectiveIntervals = parts.intervals("collectives")
    if len(table) == 0:
        return table
    lengths = parts.gathered.lengths("collectives")
    return table.changed(
        operation=parts.numbered(table.operation, parts.base_row, lengths),
        meeting=parts.numbered(table.meeting, _first_meetings(parts, table.meeting), lengths),
    )


def _first_meetings(parts: _Parts, meeting: Ints) -> Ints:
    """Return what the first meeting of each recording becomes.

    Parts of one table number their meetings together.
    """
    pieces = np.split(meeting, np.cumsum(parts.gathered.lengths("collectives"))[:-1])
    base: dict[str, int] = {}
    count = 0
    first = []
    for recording, piece in zip(parts.gathered.recordings, pieces, strict=True):
        first.append(base.setdefault(whole_of(recording.source.path), count))
        if len(piece):
            count = max(count, first[-1] + int(piece.max()) + 1)
    return np.array(first, np.int64)


def _operations(parts: _Parts) -> RankOperations:
    table, lengths = parts.gathered.operations, parts.gathered.lengths("operations")
    spanned = table.has_span == 1
    moved: dict[int, Ints] = {}

    def on_clock(column: Ints) -> Ints:
        # Where a column is two things, it stays one.
        if id(column) not in moved:
            moved[id(column)] = parts.moved(column, lengths)
        return moved[id(column)]

    def span(column: Ints) -> Ints:
        return on_clock(column) if every else parts.known(column, spanned, lengths)

    every = bool(spanned.all())
    return table.changed(
        rank=parts.numbered(table.rank, parts.base_rank, lengths),
        start_ns=span(table.start_ns),
        end_ns=span(table.end_ns),
        host_start_ns=on_clock(table.host_start_ns),
        host_end_ns=on_clock(table.host_end_ns),
        name_id=parts.numbered(table.name_id, parts.base_name, lengths),
        **{
            name: parts.known(getattr(table, name), getattr(table, name) != NONE, lengths)
            for name in _LAUNCHES
        },
    )
