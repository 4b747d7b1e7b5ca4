"""The recordings of several profiles, joined into a single set of tables.

Ranks, operations, names and meetings are renumbered over all profiles. Times are integer
nanoseconds. Only a :class:`TimeCorrection` changes the times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.align.profile_clocks import ProfileClock, correct_times
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.interpret.recording import LocalRank, RecordedTables, Recording, Recordings
from bubbleviz.interpret.spans import ActiveTime
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.intervals import find_last_before, group_extents, group_sum
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import BusyIntervals, Operations, RankIntervals, RunningTimes
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.profile import DeclaredClock
from bubbleviz.model.run_kinds import INFERENCE, run_kind

#: Columns of operations that contain times.
_TIMES = (
    *("start_ns", "end_ns", "host_start_ns", "host_end_ns"),
    *("received_ns", "receive_start_ns", "receive_launched_ns", "launched_ns"),
)
#: Tables whose rows have a rank, a start and an end.
_INTERVALS = (
    *("unattributed", "exposed", "overheads", "unrecorded", "pauses", "hosts", "running"),
    "collectives",
)


@dataclass(frozen=True)
class JoinedRank:
    """A rank, the profile that recorded it, and the machine whose clock timed it.

    Attributes:
        profile: Index of the profile.
        host: Host that a table of operations declares for the rank, or else the profile's host.
        machine: Name of the machine whose clock the profile uses.
        local: The rank as described in the profile's recording.
    """

    profile: int
    host: str
    machine: str
    local: LocalRank


def _make_unknown() -> Ints:
    """Return an empty column, the default for attributes that have not been inferred yet."""
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class JoinedRecordings(RecordedTables):
    """The tables from all recordings, along with the alignment results for their ranks.

    Ranks are numbered in the order of the profiles. :func:`join` sets the attributes up to
    ``unmarked``. The other attributes are unknown until
    :func:`bubbleviz.align.stages.staging.find_stages` sets them, together with the virtual stages
    and chunks of the operations.

    Attributes:
        ranks: All ranks.
        machine_of_profile: For each profile, the name of the machine whose clock it uses.
        declared_clocks: The clock that each profile declares, or None if it does not declare one.
        timed: Mask of the ranks whose profile records the UTC time of its session start.
        recorded_start_ns: For each rank, the time of the first kernel or call in its profile.
        recorded_end_ns: For each rank, the time of the last kernel or call in its profile.
        named_stage: Virtual stage in the name of each operation, or -1 if the name contains none.
        named_iteration: Iteration number in the name of a range that encloses each operation, or -1
            if there is none.
        inferred: Whether the microbatches of any recording were numbered by the order of their
            operations because their names contain no numbers.
        unmarked: Whether the range names of any recording do not show where iterations begin.
        rank_of_recorded: For each rank of each profile, the index of its rank in ``ranks``. Several
            captures of a process have the same rank.
        resumed: Rank and iteration number of each iteration that is the first one after a pause
            between captures.
        profile_of_recorded: For each rank of each profile, the index of the profile.
        arrivals: Times at which operation inputs became available, on the clocks of the profiling
            sessions.
        stage_of_rank: Smallest virtual stage of each rank, or -1 if unknown.
        pipeline: Pipeline of each rank, or -1 if the replicas of a stage cannot be distinguished.
        reducing: For each rank, the group of ranks that reduce gradients together with it, or -1 if
            there is none.
        common_iteration: Common iteration of each operation, or -1 if it belongs to none. Equal
            numbers mean the same iteration on all ranks, unlike in ``operations.iteration``, which
            is numbered separately for each rank.
        iteration_names: Name of each common iteration.
        paired: Whether it is known which iterations correspond across ranks.
        iteration_numbers: Three columns that convert iteration numbers: rank, iteration number on
            that rank, common iteration.
        stages_missing: Whether virtual stages are known to be missing.
        ranks_missing: Whether ranks are known to be missing, on recorded or on other stages.
        pipeline_unproven: Whether the ranks may be replicas of a single stage, because there is no
            evidence that they form a pipeline.
        ends_early: Whether stages may be missing after the last recorded stage.
        order_refutes: Whether an exact match of the order of operations with a known schedule would
            show that no stages are missing.
        limitations: Properties of stages and iterations that could not be inferred.
    """

    ranks: tuple[JoinedRank, ...]
    machine_of_profile: tuple[str, ...]
    declared_clocks: tuple[DeclaredClock | None, ...]
    timed: Bools
    recorded_start_ns: Ints
    recorded_end_ns: Ints
    named_stage: Ints
    named_iteration: Ints
    inferred: bool
    unmarked: bool
    rank_of_recorded: Ints
    profile_of_recorded: Ints
    resumed: tuple[Ints, Ints] = field(default_factory=lambda: (_make_unknown(), _make_unknown()))
    arrivals: Arrivals = field(default_factory=Arrivals.make_empty)
    stage_of_rank: Ints = field(default_factory=_make_unknown)
    pipeline: Ints = field(default_factory=_make_unknown)
    reducing: Ints = field(default_factory=_make_unknown)
    common_iteration: Ints = field(default_factory=_make_unknown)
    iteration_names: tuple[str, ...] = ()
    paired: bool = False
    iteration_numbers: tuple[Ints, Ints, Ints] = field(
        default_factory=lambda: (_make_unknown(), _make_unknown(), _make_unknown())
    )
    stages_missing: bool = False
    ranks_missing: bool = False
    pipeline_unproven: bool = False
    ends_early: bool = False
    order_refutes: bool = True
    limitations: tuple[Limitation, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        """Distinct machines of the ranks, in order of first occurrence."""
        return tuple(dict.fromkeys(rank.machine for rank in self.ranks))

    @cached_property
    def works(self) -> Bools:
        """Mask of the operations that are forwards or backwards."""
        return mask_phases(self.operations.phase, COUNTED)

    @cached_property
    def working(self) -> Ints:
        """Ranks that run at least one forward or backward, in ascending order."""
        ranks: Ints = grouping.find_distinct_rows(self.operations.rank, mask=self.works)[0]
        return ranks

    @property
    def machine_of_rank(self) -> Ints:
        """Index of each rank's machine."""
        index_of = {machine: index for index, machine in enumerate(self.machines)}
        return np.array([index_of[rank.machine] for rank in self.ranks], np.int64)

    def find_first_captures(self) -> list[int]:
        """Return, for each profile, the profile with the first capture of its first process."""
        first_captures = list(range(len(self.machine_of_profile)))
        for profile, rank in zip(
            reversed(self.profile_of_recorded.tolist()),
            reversed(self.rank_of_recorded.tolist()),
            strict=True,
        ):
            first_captures[profile] = self.ranks[rank].profile
        return first_captures

    def get_common_iterations(self, rank: Ints, iteration: Ints) -> Ints:
        """Convert iteration numbers of single ranks to common iterations of all ranks.

        The result is -1 for an iteration that is not in ``iteration_numbers``.

        Args:
            rank: Rank of each iteration.
            iteration: Iteration numbers, counted separately for each rank.
        """
        ranks, iterations, common_iterations = self.iteration_numbers
        return grouping.lookup_values((ranks, iterations), common_iterations, (rank, iteration))


def join(
    parts: Recordings, machines: Sequence[str], sessions: Sequence[ProfileClock]
) -> JoinedRecordings:
    """Join recordings into one set of tables, with times on the clocks of the profiling sessions.

    The times of a profile are relative to the start of its session. The corrections in ``sessions``
    put all ranks of one machine on one clock. Stages, iterations and the clocks of other machines
    are inferred later from the corrected times.

    Args:
        parts: The recordings, one per clock of a profile.
        machines: Machine name of each recording.
        sessions: For each recording, the clock correction derived from its session start.
    """
    recordings = parts.recordings
    noted = {note.kind for recording in recordings for note in recording.limitations}
    n_ranks = [len(recording.ranks) for recording in recordings]
    has_utc = [recording.source.session_utc_ns is not None for recording in recordings]
    start_ns = np.array([recording.start_ns for recording in recordings], np.int64)
    end_ns = np.array([recording.end_ns for recording in recordings], np.int64)
    ranks = []
    for profile, (recording, machine) in enumerate(zip(recordings, machines, strict=True)):
        for rank in recording.ranks:
            ranks.append(JoinedRank(profile, _find_host(recording, rank), machine, rank))
    joined_recordings = JoinedRecordings(
        ranks=tuple(ranks),
        machine_of_profile=tuple(machines),
        declared_clocks=tuple(recording.source.clock for recording in recordings),
        timed=np.repeat(np.array(has_utc, np.bool_), n_ranks),
        recorded_start_ns=np.repeat(start_ns, n_ranks),
        recorded_end_ns=np.repeat(end_ns, n_ranks),
        named_stage=parts.hints.stage,
        named_iteration=parts.hints.iteration,
        inferred=LimitationKind.MICROBATCHES_INFERRED in noted,
        unmarked=LimitationKind.ITERATIONS_UNMARKED in noted,
        rank_of_recorded=np.arange(len(ranks)),
        profile_of_recorded=np.repeat(np.arange(len(recordings)), n_ranks),
        **_number_over_all(parts),
    )
    return apply_clocks(joined_recordings, sessions)


def _number_over_all(parts: Recordings) -> dict[str, Any]:
    """Return the recorded tables keyed by name, with numbers that are unique over all recordings.

    Each recording numbers its meetings, ranks, operations and names starting at 0. The columns
    ``meeting``, ``rank``, ``operation`` and ``name_id`` are renumbered so that the numbers of a
    recording follow the numbers of all previous recordings. An entry of -1 stays -1.
    """
    n_ranks = [len(recording.ranks) for recording in parts.recordings]
    first_number = {
        "meeting": _find_first_meetings(parts),
        "rank": _count_rows_before(n_ranks),
        "operation": _count_rows_before(parts.count_rows("operations")),
        "name_id": _count_rows_before(parts.names),
    }
    tables = {}
    for table_name in (part.name for part in fields(RecordedTables)):
        table, lengths = getattr(parts, table_name), parts.count_rows(table_name)
        columns = {}
        for column, first in first_number.items():
            local_number = getattr(table, column, None)
            if local_number is None:
                continue
            number = np.repeat(first, lengths)
            number += local_number
            if local_number.min(initial=0) < 0:
                number[local_number == NONE] = NONE
            columns[column] = number
        tables[table_name] = replace(table, **columns)
    return tables


def _count_rows_before(lengths: Ints | Sequence[int]) -> Ints:
    """Return the total length of all parts before each part."""
    return np.cumsum([0, *lengths[:-1]], dtype=np.int64)


def _find_host(recording: Recording, rank: LocalRank) -> str:
    """Return the host that a table declares for a rank, or else the profile's host."""
    declared = rank.declared
    return recording.source.host if declared is None or declared.host is None else declared.host


def _find_first_meetings(parts: Recordings) -> Ints:
    """Return, for each recording, the number of its first meeting after renumbering.

    Each recording numbers its meetings starting at 0. After renumbering, the meetings of a
    recording follow the meetings of all previous recordings.
    """
    lengths = parts.count_rows("collectives")
    pieces = np.split(parts.collectives.meeting, np.cumsum(lengths)[:-1])
    meetings = np.array([piece.max(initial=NONE) + 1 for piece in pieces], np.int64)
    return np.cumsum(meetings) - meetings


IntervalsT = TypeVar("IntervalsT", RankIntervals, BusyIntervals)


class TimeCorrection(ABC):
    """A correction of the times of all ranks."""

    @abstractmethod
    def correct(self, rank: Ints, times_ns: Ints) -> Ints:
        """Return corrected times. All times must be known.

        Args:
            rank: Rank of each time.
            times_ns: Times in ns.
        """

    def apply(self, recordings: JoinedRecordings) -> JoinedRecordings:
        """Return recordings with corrected times. Unknown times stay -1."""
        tables = {name: getattr(recordings, name) for name in _INTERVALS}
        intervals = {
            name: self.correct_intervals(table, table.rank)
            for name, table in tables.items()
            if len(table)
        }
        all_ranks = np.arange(len(recordings.ranks))
        rank_of_busy = recordings.operations.rank[recordings.busy.operation]
        return replace(
            recordings,
            recorded_start_ns=self.correct(all_ranks, recordings.recorded_start_ns),
            recorded_end_ns=self.correct(all_ranks, recordings.recorded_end_ns),
            operations=self.correct_operations(recordings.operations),
            busy=self.correct_intervals(recordings.busy, rank_of_busy),
            **intervals,
        )

    def correct_known(self, rank: Ints, times_ns: Ints, is_known: Bools) -> Ints:
        """Return corrected times, with -1 in place of unknown times.

        Args:
            rank: Rank of each time.
            times_ns: Times in ns. Returned unchanged if no time is known.
            is_known: Mask of the known times.
        """
        if not is_known.any():
            return times_ns
        corrected_ns = self.correct(rank, times_ns)
        return corrected_ns if is_known.all() else np.where(is_known, corrected_ns, NONE)

    def correct_intervals(self, table: IntervalsT, rank: Ints) -> IntervalsT:
        """Return a table with corrected start and end times.

        Args:
            table: Table of intervals.
            rank: Rank of each interval.
        """
        start_ns, end_ns = self.correct(rank, table.start_ns), self.correct(rank, table.end_ns)
        return replace(table, start_ns=start_ns, end_ns=end_ns)

    def correct_operations(self, operations: Operations) -> Operations:
        """Return the operations with corrected times."""
        columns = {}
        for name in _TIMES:
            times_ns = getattr(operations, name)
            if name.startswith("host"):
                columns[name] = self.correct(operations.rank, times_ns)
                continue
            is_span = name in ("start_ns", "end_ns")
            is_known = operations.has_span == 1 if is_span else times_ns != NONE
            columns[name] = self.correct_known(operations.rank, times_ns, is_known)
        return operations.replace_columns(**columns)


@dataclass(frozen=True, eq=False, repr=False)
class _RankClocks(TimeCorrection):
    """Clock correction of each rank.

    Attributes:
        offset_ns: Offset of each rank's clock in ns.
        drift_ppm: Drift of each rank's clock in parts per million.
        t0_ns: Time at which the offset of a clock with drift is valid.
    """

    offset_ns: Ints
    drift_ppm: Floats
    t0_ns: Ints

    @property
    def is_zero(self) -> bool:
        """Whether no clock has an offset or a drift."""
        return not self.drift_ppm.any() and not self.offset_ns.any()

    def correct(self, rank: Ints, times_ns: Ints) -> Ints:
        """Return times with the offset and the drift of each rank's clock removed."""
        if not self.drift_ppm.any():
            return times_ns + self.offset_ns[rank]
        return correct_times(times_ns, self.offset_ns[rank], self.drift_ppm[rank], self.t0_ns[rank])


def apply_clocks(
    recordings: JoinedRecordings, corrections: Sequence[ProfileClock]
) -> JoinedRecordings:
    """Return recordings with corrected times. Unknown times stay -1.

    :func:`apply_clocks` is called twice. First, :func:`join` converts times to the clocks of the
    profiling sessions. Once the clocks of all machines are known, the remaining correction is
    applied. If all corrections are zero, ``recordings`` itself is returned.

    Args:
        recordings: The recordings.
        corrections: Clock correction of each profile.
    """
    profile = np.array([rank.profile for rank in recordings.ranks], np.int64)
    clocks = _RankClocks(
        offset_ns=np.array([clock.offset_ns for clock in corrections], np.int64)[profile],
        drift_ppm=np.array([clock.drift_ppm for clock in corrections])[profile],
        t0_ns=np.array([clock.t0_ns for clock in corrections], np.int64)[profile],
    )
    return recordings if clocks.is_zero else clocks.apply(recordings)


def merge_stream(recordings: JoinedRecordings) -> JoinedRecordings:
    """Merge the iterations of an inference run into one window if each is a single scheduler step.

    Serving frameworks mark each step of their scheduler as an iteration. A step passes one chunk of
    tokens through the pipeline, and the next chunk enters before this chunk has left. A window from
    the first start to the last end of one chunk would be nearly all bubble, even in a fully used
    pipeline::

        steps    ├── 7 ──┤├── 8 ──┤├── 9 ──┤
        stage 0  ███ F7 ██ ███ F8 ██ ███ F9 ██
        stage 1           ███ F7 ██ ███ F8 ██ ███ F9 ██
        becomes  ├──────────── one window ───────────┤    with microbatches 7, 8, 9

    The steps become microbatches of iteration 0, or of one iteration per capture if processes were
    captured several times. Each microbatch number is the iteration number in the range names if
    every forward has one, or else the rank's iteration number.

    The recordings are returned unchanged in these cases:

    - The run has backwards.
    - The run has fewer than two iterations.
    - A rank runs several forwards of one model chunk and sequence split in one iteration (for
      example, the batches of an evaluation).
    """
    operations = recordings.operations
    if run_kind(operations.phase) != INFERENCE:
        return recordings
    is_forward = operations.phase == Phase.F
    rows = np.flatnonzero(is_forward & (operations.iteration >= 0))
    # There must be several iterations, each with at most one forward per rank and chunk.
    iteration_of_rank = operations.rank[rows], operations.iteration[rows]
    chunk = operations.chunk[rows], operations.sequence[rows]
    n_iterations = len(grouping.find_distinct(operations.iteration[rows]))
    if n_iterations < 2 or number_occurrences((*iteration_of_rank, *chunk)).any():
        return recordings
    iteration_in_name = recordings.named_iteration
    is_named = bool((iteration_in_name[is_forward] >= 0).all())
    number = (iteration_in_name if is_named else operations.iteration)[rows]
    number = grouping.lookup_values(
        iteration_of_rank, number, (operations.rank, operations.iteration)
    )
    is_inside = operations.iteration >= 0
    is_numbered = is_inside & (number >= 0)
    window = _number_captures(recordings)
    collectives, active = recordings.collectives, recordings.active
    steps = operations.rank, operations.iteration
    operations = operations.replace_columns(
        iteration=np.where(is_inside, window, NONE),
        microbatch=np.where(is_numbered, number, operations.microbatch),
    )

    def find_window(rank: Ints, step: Ints) -> Ints:
        """Return the window of each step of a rank, or -1 for a step without operations."""
        return np.where(step >= 0, grouping.lookup_values(steps, window, (rank, step)), NONE)

    return replace(
        recordings,
        operations=operations,
        active=_sum_active_time(recordings, operations, find_window(active.rank, active.iteration)),
        collectives=collectives.replace_columns(
            iteration=find_window(collectives.rank, collectives.iteration)
        ),
        named_iteration=np.full(len(iteration_in_name), NONE, np.int64),
    )


def _number_captures(recordings: JoinedRecordings) -> Ints:
    """Return the number of each operation's capture among the captures of its rank, from 0."""
    operations, pauses = recordings.operations, recordings.pauses
    capture = np.zeros(len(operations), np.int64)
    if len(recordings.ranks) == len(recordings.rank_of_recorded):
        # Recorders pause between the steps of a single recording.
        return capture
    for rank, rows in grouping.list_rows_by_value(operations.rank):
        starts_ns = pauses.start_ns[pauses.rank == rank]
        capture[rows] = np.searchsorted(starts_ns, operations.host_start_ns[rows], side="right")
    return capture


def _sum_active_time(
    recordings: JoinedRecordings, operations: Operations, window: Ints
) -> ActiveTime:
    """Add up each rank's active times over the iterations of each window.

    The result has one row per rank and window, sorted by rank and window. ``kernel_ns`` is the
    running time of kernels between the first start and the last end of the rank's forwards in the
    window, including kernels between iterations. The other times are sums over iterations.

    Args:
        recordings: The recordings, with the active times of their iterations.
        operations: Operations whose iterations are windows.
        window: Window of each row of ``recordings.active``, or -1 if it belongs to none.
    """
    active = recordings.active
    is_inside = window >= 0
    windows = grouping.group_rows(active.rank[is_inside], window[is_inside])
    rank, number = active.rank[is_inside][windows.first], window[is_inside][windows.first]

    def total(name: str) -> Ints:
        times_ns = getattr(active, name)[is_inside]
        return group_sum(windows.of_row, len(windows), times_ns)

    return ActiveTime(
        rank=rank,
        iteration=number,
        active_ns=total("active_ns"),
        kernel_ns=_sum_running_time(recordings.running, operations, rank, number),
        gap_ns=total("gap_ns"),
        collective_gap_ns=total("collective_gap_ns"),
    )


def _sum_running_time(
    running: RunningTimes, operations: Operations, rank: Ints, window: Ints
) -> Ints:
    """Return the time during which kernels ran in each window of a rank, in ns.

    A window lasts from the first start to the last end of its forwards. A section of running time
    counts if it lies inside the window. A window without a forward has the time 0.

    Args:
        running: Running times of kernels and copies.
        operations: Operations whose iterations are windows.
        rank: Rank of each window.
        window: Number of each window, which is the iteration of its operations.
    """
    work = np.flatnonzero((operations.phase == Phase.F) & (operations.has_span == 1))
    cells = grouping.group_rows(operations.rank[work], operations.iteration[work])
    first_ns, last_ns = group_extents(
        cells.of_row, len(cells), operations.start_ns[work], operations.end_ns[work]
    )
    rank_of_cell, window_of_cell = (
        column[work[cells.first]] for column in (operations.rank, operations.iteration)
    )
    cell = find_last_before(rank_of_cell, first_ns, running.rank, running.start_ns, or_at=True)
    is_within = (cell >= 0) & (running.end_ns <= np.append(last_ns, NONE)[cell])
    total_ns = group_sum(cell[is_within], len(cells), running.running_ns[is_within])
    kernel_ns = grouping.lookup_values((rank_of_cell, window_of_cell), total_ns, (rank, window))
    return np.maximum(kernel_ns, 0)
