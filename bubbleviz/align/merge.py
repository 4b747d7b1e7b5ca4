"""Merging: the recordings of several profiles as one table, on one clock or another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from bubbleviz.align.offsets import ProfileClock
from bubbleviz.interpret.recording import LocalRank, RecordedTables, Recording, Recordings
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct_rows
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import BusyIntervals, RankIntervals
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED
from bubbleviz.model.profile import ToldClock

#: Columns of operations that contain times.
_TIMES = (
    *("start_ns", "end_ns", "host_start_ns", "host_end_ns"),
    *("received_ns", "receive_start_ns", "receive_launched_ns", "launched_ns"),
)
#: The tables whose rows have a rank, a start and an end.
_INTERVALS = (
    *("unattributed", "exposed", "overheads", "unrecorded", "pauses", "hosts", "running"),
    "collectives",
)


@dataclass(frozen=True)
class JoinedRank:
    """A rank with the profile it comes from and the machine whose clock it has."""

    profile: int
    host: str
    machine: str
    local: LocalRank


@dataclass(frozen=True)
class JoinedRecordings(RecordedTables):
    """All recordings; ranks are numbered through in the order the profiles hold them.

    Attributes:
        ranks: by number.
        machine_of_profile: the machine whose clock each profile has.
        told_clocks: the clock that each profile names; None where it names none.
        timed: whether the UTC of each rank's profile is known.
        recorded_start_ns: when the first kernel or call of each rank's profile began.
        recorded_end_ns: when the last one ended.
        named_stage: virtual stage that names give each operation; -1 none.
        named_iteration: iteration that a range around it names; -1 none.
        inferred: whether names of any recording leave microbatches to be counted by order.
        unmarked: whether those of any leave it unknown where iterations begin.
    """

    ranks: tuple[JoinedRank, ...]
    machine_of_profile: tuple[str, ...]
    told_clocks: tuple[ToldClock | None, ...]
    timed: Bools
    recorded_start_ns: Ints
    recorded_end_ns: Ints
    named_stage: Ints
    named_iteration: Ints
    inferred: bool
    unmarked: bool

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines, in the order in which ranks first name them."""
        return tuple(dict.fromkeys(rank.machine for rank in self.ranks))

    @cached_property
    def works(self) -> Bools:
        """Which operations are a forward or a backward."""
        return among(self.operations.phase, COUNTED)

    @cached_property
    def working(self) -> Ints:
        """The ranks that run these, ascending."""
        ranks: Ints = distinct_rows(self.operations.rank, chosen=self.works)[0]
        return ranks

    @property
    def machine_of_rank(self) -> Ints:
        """Number of the machine of each rank."""
        number = {machine: index for index, machine in enumerate(self.machines)}
        return np.array([number[rank.machine] for rank in self.ranks], np.int64)


def join(gathered: Recordings, machines: Sequence[str]) -> JoinedRecordings:
    """Return recordings as one, times as their profiles have them."""
    recordings = gathered.recordings
    noted = {note.kind for recording in recordings for note in recording.limitations}
    bases = {
        "meeting": _first_meetings(gathered),
        "rank": _bases([len(recording.ranks) for recording in recordings]),
        "operation": _bases(gathered.lengths("operations")),
        "name_id": _bases(gathered.names),
    }

    def numbered(name: str) -> Any:
        """Return a table whose numbers of ranks, operations and names are those of all."""
        table, lengths = getattr(gathered, name), gathered.lengths(name)
        columns = {}
        for column, base in bases.items():
            if (number := getattr(table, column, None)) is not None:
                own = np.repeat(base, lengths)
                own += number
                if number.min(initial=0) < 0:
                    own[number == NONE] = NONE
                columns[column] = own
        return replace(table, **columns)

    tables = {part.name: numbered(part.name) for part in fields(RecordedTables)}
    ranks = [len(recording.ranks) for recording in recordings]
    return JoinedRecordings(
        ranks=tuple(
            JoinedRank(i, _host(recording, rank), machine, rank)
            for i, (recording, machine) in enumerate(zip(recordings, machines, strict=True))
            for rank in recording.ranks
        ),
        machine_of_profile=tuple(machines),
        told_clocks=tuple(recording.source.clock for recording in recordings),
        timed=np.array([r.source.session_utc_ns is not None for r in recordings for _ in r.ranks]),
        recorded_start_ns=np.repeat(np.array([r.start_ns for r in recordings], np.int64), ranks),
        recorded_end_ns=np.repeat(np.array([r.end_ns for r in recordings], np.int64), ranks),
        named_stage=gathered.hints.stage,
        named_iteration=gathered.hints.iteration,
        inferred=LimitationKind.MICROBATCHES_INFERRED in noted,
        unmarked=LimitationKind.ITERATIONS_UNMARKED in noted,
        **tables,
    )


def _bases(lengths: Ints | Sequence[int]) -> Ints:
    """Return how many rows lie before each part."""
    return np.cumsum([0, *lengths[:-1]], dtype=np.int64)


def _host(recording: Recording, rank: LocalRank) -> str:
    """Return a rank's host: its own where a table tells it, else its profile's."""
    told = rank.told
    return recording.source.host if told is None or told.host is None else told.host


def _first_meetings(gathered: Recordings) -> Ints:
    """Return the number that the first meeting of each recording gets in the run.

    Each recording numbers its own meetings from 0. In the run they follow each other.
    """
    lengths = gathered.lengths("collectives")
    pieces = np.split(gathered.collectives.meeting, np.cumsum(lengths)[:-1])
    meetings = np.array([piece.max(initial=NONE) + 1 for piece in pieces], np.int64)
    return np.cumsum(meetings) - meetings


IntervalsT = TypeVar("IntervalsT", RankIntervals, BusyIntervals)


def on_clocks(
    joined: JoinedRecordings, before: Sequence[ProfileClock], after: Sequence[ProfileClock]
) -> JoinedRecordings:
    """Return recordings that are joined on some clocks as they are on others.

    Args:
        joined: the recordings.
        before: the clocks of the profiles, none of which drifts.
        after: what they are to be.
    """
    profile = np.array([rank.profile for rank in joined.ranks], np.int64)
    before_ns = np.array([clock.offset_ns for clock in before], np.int64)[profile]
    by_ns = np.array([clock.offset_ns for clock in after], np.int64)[profile] - before_ns
    drift_ppm = np.array([clock.drift_ppm for clock in after])[profile]
    t0_ns = np.array([clock.t0_ns for clock in after], np.int64)[profile]
    drifts = bool(drift_ppm.any())
    if not drifts and not by_ns.any():
        return joined

    def moved(rank: Ints, times_ns: Ints, known: Bools | None = None) -> Ints:
        if known is not None and not known.any():
            return times_ns
        moved_ns = times_ns + by_ns[rank]
        if drifts:
            elapsed_ns = times_ns - before_ns[rank] - t0_ns[rank]
            moved_ns += np.rint(elapsed_ns * drift_ppm[rank] * 1e-6).astype(np.int64)
        if known is not None and not known.all():
            moved_ns = np.where(known, moved_ns, NONE)
        return moved_ns

    def intervals(table: IntervalsT, rank: Ints) -> IntervalsT:
        return replace(
            table, start_ns=moved(rank, table.start_ns), end_ns=moved(rank, table.end_ns)
        )

    operations, columns = joined.operations, {}
    for name in _TIMES:
        column = getattr(operations, name)
        known = operations.has_span == 1 if name in ("start_ns", "end_ns") else column != NONE
        columns[name] = moved(operations.rank, column, None if name.startswith("host") else known)
    every = np.arange(len(joined.ranks))
    tables = {name: getattr(joined, name) for name in _INTERVALS}
    return replace(
        joined,
        recorded_start_ns=moved(every, joined.recorded_start_ns),
        recorded_end_ns=moved(every, joined.recorded_end_ns),
        operations=operations.changed(**columns),
        busy=intervals(joined.busy, operations.rank[joined.busy.operation]),
        **{name: intervals(table, table.rank) for name, table in tables.items() if len(table)},
    )
