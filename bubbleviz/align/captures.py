"""Captures: several files of one process, recorded one after another.

``nsys profile --capture-range-end=repeat`` and ``torch.profiler.schedule(repeat=2)`` write one file
per capture and process. The captures of a process become a single rank, whose recording pauses
between them::

    rank0.1.sqlite   F0 B0  F0 B0
    rank0.2.sqlite                  (pause)  F0 B0  F0 B0
    iteration        0      1                2      3

Iterations never extend across a pause, and the pause is in no window.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from os.path import commonprefix
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.profile_clocks import MAX_GAP_NS, build_session_clocks, has_known_offset
from bubbleviz.errors import MismatchError
from bubbleviz.interpret.recording import LocalRank, RecordedTables, Recording, Recordings
from bubbleviz.model.columns import NONE, Ints, join_tables, scatter
from bubbleviz.model.grouping import find_run_starts, invert_permutation, sort_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.profile import Source, get_pid
from bubbleviz.model.texts import format_count, list_and_count, make_natural_key, quote_for_shell

#: Matches the names that ``torch.profiler.tensorboard_trace_handler`` gives to traces, such as
#: ``node1_2001.1716300000000000000.pt.trace.json.gz``. The group is the name of the process.
_WORKER = re.compile(r"(.+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?$")
#: Identity of a process or rank. The last element is its number.
Key: TypeAlias = tuple[Hashable, ...]
#: Maximum number of commands that a message lists.
_MAX_COMMANDS = 4


@dataclass(frozen=True)
class Captures:
    """Which recorded ranks are captures of one rank.

    Attributes:
        machines: Machine name of each profile. All captures of a process have the same machine.
        rank_of_recorded: For each rank of each recording, in their order, the index of the joined
            rank. Joined ranks are numbered by first occurrence.
        profiles: Profiles of each process that was captured several times, by start time.
        group_of_profile: Group of each profile, ascending in time. The profiles of a group were
            recorded at the same time. Empty if no process was captured several times.
    """

    machines: tuple[str, ...]
    rank_of_recorded: Ints
    profiles: tuple[tuple[int, ...], ...] = ()
    group_of_profile: tuple[int, ...] = ()


def find_captures(
    parts: Recordings, machines: Sequence[str], *, allows_long_gaps: bool = False
) -> Captures:
    """Find the processes that were captured several times.

    Recordings contain the same process if machine, host and pid are equal. If a profile does not
    record its host or its start time, the global rank takes the place of the host, or else the name
    of the process in the file name. Ranks of tables are never joined.

    Args:
        parts: The recordings, one per clock of a profile.
        machines: Machine name of each profile.
        allows_long_gaps: Whether captures of a process may be more than a minute apart.

    Raises:
        MismatchError: Two captures of a process overlap in time, are more than a minute apart, or
            contain the same iterations, or two processes with the same rank were recorded one after
            the other. They are then from two runs, or from two containers.
    """
    recordings = parts.recordings
    profiles_of_process = _list_profiles(recordings, machines)
    repeated = {key: found for key, found in profiles_of_process.items() if len(found) > 1}
    machines = list(machines)
    for first, *later in repeated.values():
        for profile in later:
            if has_known_offset(recordings[profile].source, recordings[first].source):
                machines[profile] = machines[first]
    group_of_profile: dict[int, int] = {}
    if repeated:
        processes = _Repeats.of(recordings, machines, repeated)
        repeated = processes.profiles
        _check_captures(parts, processes, allows_long_gaps=allows_long_gaps)
        for number, group in enumerate(processes.group()):
            group_of_profile |= dict.fromkeys(group, number)
    _refuse_two_runs(recordings, machines)
    joined = {profile for found in repeated.values() for profile in found}
    index_of_rank: dict[Hashable, int] = {}
    ranks: list[int] = []
    for profile, rank in _iter_ranks(recordings):
        key: Hashable = profile, len(ranks)
        process = _identify(recordings[profile], machines[profile], rank)
        if profile in joined and process is not None:
            key = process, rank.device_id
        ranks.append(index_of_rank.setdefault(key, len(index_of_rank)))
    return Captures(
        tuple(machines),
        np.array(ranks, np.int64),
        tuple(repeated.values()),
        tuple(group_of_profile[profile] for profile in sorted(group_of_profile)),
    )


def _iter_ranks(recordings: Sequence[Recording]) -> Iterator[tuple[int, LocalRank]]:
    """Yield each rank of each recording with the index of its profile."""
    for profile, recording in enumerate(recordings):
        for rank in recording.ranks:
            yield profile, rank


def _list_profiles(
    recordings: Sequence[Recording], machines: Sequence[str]
) -> dict[Key, tuple[int, ...]]:
    """Return the profiles that contain each process, keyed by the identity of the process."""
    profiles: dict[Key, dict[int, None]] = defaultdict(dict)
    for profile, rank in _iter_ranks(recordings):
        key = _identify(recordings[profile], machines[profile], rank)
        if key is not None:
            profiles[key][profile] = None
    return {key: tuple(found) for key, found in profiles.items()}


def _identify(recording: Recording, machine: str, rank: LocalRank) -> Key | None:
    """Return the identity of a rank's process, or None if it is unknown.

    Each container numbers its processes separately, so the pid alone identifies no process. A
    profile that does not record when it started has a separate machine, so it is identified like a
    profile that does not record its host.
    """
    source = recording.source
    if rank.declared is not None:
        return None
    if source.host_known and _has_start(source):
        return machine, source.host, get_pid(rank.process)
    worker = _WORKER.match(Path(source.path).name)
    number = worker[1] if rank.global_rank is None and worker else rank.global_rank
    return None if number is None else (source.format, number, get_pid(rank.process))


def _has_start(source: Source) -> bool:
    """Return whether a profile records when its session started."""
    return source.session_utc_ns is not None or source.session_clock_ns is not None


@dataclass(frozen=True)
class _CaptureTimes:
    """Start and end of each profile's capture.

    Attributes:
        start_ns: Start of each capture on the clock of its machine, or 0 if unknown.
        end_ns: End of each capture on the clock of its machine, or 0 if unknown.
        is_common: Mask of the profiles whose times can be compared with other machines.
        names: Keys that sort the profiles by name.
    """

    start_ns: list[int]
    end_ns: list[int]
    is_common: list[bool]
    names: list[Any]

    @staticmethod
    def measure(recordings: Sequence[Recording], machines: Sequence[str]) -> _CaptureTimes:
        """Return the times of the captures of recordings.

        Args:
            recordings: All recordings.
            machines: Machine name of each recording.
        """
        sources = [recording.source for recording in recordings]
        offsets = [clock.offset_ns for clock in build_session_clocks(sources, machines)]
        times = [
            (recording.start_ns + offset, recording.end_ns + offset)
            if _has_start(recording.source)
            else (0, 0)
            for recording, offset in zip(recordings, offsets, strict=True)
        ]
        return _CaptureTimes(
            start_ns=[start_ns for start_ns, _ in times],
            end_ns=[end_ns for _, end_ns in times],
            is_common=[source.session_utc_ns is not None for source in sources],
            names=[make_natural_key(source.path) for source in sources],
        )

    def sort(self, profiles: Iterable[int]) -> tuple[int, ...]:
        """Return profiles by the start of their captures, and by name if the starts are equal."""
        return tuple(sorted(profiles, key=lambda p: (self.start_ns[p], self.names[p])))


@dataclass(frozen=True)
class _Repeats:
    """Processes, or ranks, that several profiles contain.

    Attributes:
        recordings: All recordings.
        machines: Machine name of each recording.
        times: Start and end of each capture.
        profiles: Profiles that contain each process, by start time, keyed by a tuple. The last
            element of a key is the number of the process or rank.
    """

    recordings: Sequence[Recording]
    machines: Sequence[str]
    times: _CaptureTimes
    profiles: dict[Key, tuple[int, ...]]

    @staticmethod
    def of(
        recordings: Sequence[Recording],
        machines: Sequence[str],
        profiles: Mapping[Key, Iterable[int]],
    ) -> _Repeats:
        """Sort the profiles of each process by time."""
        times = _CaptureTimes.measure(recordings, machines)
        by_time = {key: times.sort(found) for key, found in profiles.items()}
        return _Repeats(recordings, machines, times, by_time)

    def iter_pairs(self) -> Iterator[_Pair]:
        """Yield each two consecutive captures of a process."""
        for key, profiles in self.profiles.items():
            for earlier, later in pairwise(profiles):
                paths = [self.recordings[profile].source.path for profile in (earlier, later)]
                gap_ns = self.times.start_ns[later] - self.times.end_ns[earlier]
                is_timed = self.machines[earlier] == self.machines[later]
                is_timed |= self.times.is_common[earlier] and self.times.is_common[later]
                yield _Pair(key, earlier, later, " and ".join(paths), gap_ns, is_timed)

    def group(self) -> list[list[int]]:
        """Group the profiles that were recorded at the same time."""
        return _group_captures(len(self.recordings), self.profiles, self.times)

    def refuse(self, reason: str, alternative: str = "") -> MismatchError:
        """Return an error that names one command for each capture of all processes.

        Args:
            reason: Clause that says why the captures are not analyzed together.
            alternative: Clause that says how to analyze them together, or "".
        """
        paths = [recording.source.path for recording in self.recordings]
        arguments = _format_groups(self.group(), paths)
        commands = [f"({n}) bubbleviz analyze {files}" for n, files in enumerate(arguments, 1)]
        listed = list_and_count(commands, _MAX_COMMANDS)
        return MismatchError(
            f"{reason}; analyze each capture of all processes separately: {listed}{alternative}",
            paths=arguments,
        )


@dataclass(frozen=True)
class _Pair:
    """Two consecutive captures of a process, or of a rank.

    Attributes:
        key: Key of the process or rank.
        earlier: Index of the first profile.
        later: Index of the second profile.
        paths: Paths of both profiles, as text.
        gap_ns: Time between the captures, negative if they overlap.
        is_timed: Whether the times of the two profiles can be compared.
    """

    key: Key
    earlier: int
    later: int
    paths: str
    gap_ns: int
    is_timed: bool


def _check_captures(parts: Recordings, processes: _Repeats, *, allows_long_gaps: bool) -> None:
    """Raise MismatchError if the captures of a process cannot be joined.

    Args:
        parts: All recordings.
        processes: Processes that were captured several times.
        allows_long_gaps: Whether captures may be more than a minute apart.
    """
    numbers = _find_iteration_numbers(parts)
    for pair in processes.iter_pairs():
        number, first_iteration = pair.key[-1], numbers[pair.later][0]
        if not pair.is_timed:
            raise processes.refuse(
                f"{pair.paths}: they are two captures of process {number}, but do not record when "
                "they started"
            )
        if pair.gap_ns < 0:
            raise MismatchError(
                f"{pair.paths}: both contain process {number} of the same host at the same time, "
                "so they are two files of one recording, or two containers share this host name; "
                "pass only one of them, or record containers again with different host names"
            )
        if first_iteration <= numbers[pair.earlier][1]:
            raise processes.refuse(
                f"{pair.paths}: both contain process {number} and iteration {first_iteration}, so "
                "they are from two runs"
            )
        if pair.gap_ns > MAX_GAP_NS and not allows_long_gaps:
            raise processes.refuse(
                f"{pair.paths}: they are two captures of process {number}, "
                f"{pair.gap_ns / 1e9:,.0f} s apart",
                "; to analyze all captures as one run that pauses between them, pass all files "
                "with --align causal",
            )


def _refuse_two_runs(recordings: Sequence[Recording], machines: Sequence[str]) -> None:
    """Raise MismatchError if profiles contain the same global ranks, one after another.

    Captures of one process are not compared, and neither are tables. Several worlds of ranks that
    run at the same time may have the same numbers.

    Args:
        recordings: All recordings.
        machines: Machine name of each recording.
    """
    profile_of: dict[int, dict[Hashable, int]] = defaultdict(dict)
    for profile, rank in _iter_ranks(recordings):
        process = _identify(recordings[profile], machines[profile], rank) or profile
        if rank.declared is None and rank.global_rank is not None:
            profile_of[rank.global_rank].setdefault(process, profile)
    repeated: dict[Key, tuple[int, ...]] = {
        ("rank", number): tuple(dict.fromkeys(found.values()))
        for number, found in profile_of.items()
        if len(set(found.values())) > 1
    }
    if not repeated:
        return
    ranks = _Repeats.of(recordings, machines, repeated)
    pairs = list(ranks.iter_pairs())
    if all(pair.is_timed and pair.gap_ns >= 0 for pair in pairs):
        raise ranks.refuse(
            f"{pairs[0].paths}: both contain rank {pairs[0].key[-1]}, in two processes that were "
            "recorded one after the other, so they are from two runs"
        )


def _find_iteration_numbers(parts: Recordings) -> list[tuple[float, float]]:
    """Return the smallest and largest iteration number in the names of each recording.

    A recording whose names contain no iteration number gets (inf, -inf).
    """
    bounds = np.cumsum(parts.count_rows("operations"))[:-1]
    numbers = []
    for numbers_in_names in np.split(parts.hints.iteration, bounds):
        known = numbers_in_names[numbers_in_names >= 0].tolist()
        numbers.append((min(known, default=np.inf), max(known, default=-np.inf)))
    return numbers


def _group_captures(
    count: int, repeated: Mapping[Key, Sequence[int]], times: _CaptureTimes
) -> list[list[int]]:
    """Group the captures of all processes that were recorded at the same time.

    Captures that overlap in time form a group. If such a group contains a process twice, or lacks a
    process, the clocks of the hosts differ too much. If all processes then have equally many
    captures, the n-th captures of all processes form a group.

    Args:
        count: Number of profiles.
        repeated: Profiles of each process that was captured several times, by start time.
        times: Start and end of each capture.

    Returns:
        Profiles of each group, in the order of the profiles. The groups are sorted by time.
    """
    by_time: list[list[int]] = []
    latest_ns = 0
    for profile in times.sort(range(count)):
        if not by_time or times.start_ns[profile] > latest_ns:
            by_time.append([])
            latest_ns = times.end_ns[profile]
        by_time[-1].append(profile)
        latest_ns = max(latest_ns, times.end_ns[profile])
    lengths = {len(profiles) for profiles in repeated.values()}
    is_even = all(
        len(set(group) & set(profiles)) == 1 for group in by_time for profiles in repeated.values()
    )
    if (is_even and all(times.is_common)) or len(lengths) > 1:
        return [sorted(group) for group in by_time]
    numbered = {
        profile: number for profiles in repeated.values() for number, profile in enumerate(profiles)
    }
    return [
        [profile for profile in range(count) if numbered.get(profile, 0) == number]
        for number in range(max(lengths))
    ]


def _format_groups(groups: Sequence[Sequence[int]], paths: Sequence[str]) -> list[str]:
    """Return the paths of each group of profiles as arguments of a shell command."""
    return [_format_paths([paths[profile] for profile in group], paths) for group in groups]


def _format_paths(paths: Sequence[str], all_paths: Sequence[str]) -> str:
    """Return paths as arguments of a shell command.

    More than two paths are replaced by a pattern such as ``run/*.1.sqlite``, if one matches exactly
    these paths. Long messages are shortened, so that a list of many paths would be incomplete.

    Args:
        paths: The paths.
        all_paths: All paths of the run. The pattern matches no other path among them.
    """
    listed = " ".join(quote_for_shell(path) for path in paths)
    if len(paths) <= 2:
        return listed
    head = commonprefix(paths)  # noqa: RUF071  # a prefix of characters is wanted
    tail = commonprefix([path[::-1] for path in paths])[::-1]  # noqa: RUF071
    matched = [path for path in all_paths if path.startswith(head) and path.endswith(tail)]
    is_exact = len(matched) == len(paths) and "/" not in "".join(p[len(head) :] for p in paths)
    if is_exact and head and quote_for_shell(head + tail) == head + tail:
        return f"{head}*{tail}"
    return listed


def join_captures(recordings: JoinedRecordings, captures: Captures) -> JoinedRecordings:
    """Join the captures of each process into one rank whose recording pauses between them.

    Iterations are numbered over all captures, and so never extend across a pause. If a rank lacks a
    capture, or an iteration of it, its later iterations still get the same numbers as on the other
    ranks.

    Args:
        recordings: The recordings of all profiles. Times are on the clocks of the profiling
            sessions.
        captures: The captures of all processes.
    """
    rank_of_recorded = captures.rank_of_recorded
    if not captures.profiles:
        return replace(recordings, rank_of_recorded=rank_of_recorded)
    start_ns, end_ns = recordings.recorded_start_ns, recordings.recorded_end_ns
    order = sort_rows(rank_of_recorded, start_ns)
    position = invert_permutation(order)
    n_ranks = int(rank_of_recorded.max()) + 1
    joined_start_ns, joined_end_ns = group_extents(rank_of_recorded, n_ranks, start_ns, end_ns)
    first = order[find_run_starts(rank_of_recorded[order])]
    group = np.array(captures.group_of_profile, np.int64)[recordings.profile_of_recorded]
    n_iterations = np.zeros(len(position), np.int64)
    operations = recordings.operations
    np.maximum.at(n_iterations, operations.rank, operations.iteration + 1)
    first_iteration = _number_first_iterations(n_iterations, group, rank_of_recorded, order)
    tables = _sort_tables(recordings, rank_of_recorded, position, first_iteration)
    is_later = np.ones(len(order), bool)
    is_later[first] = False
    pauses = _find_pauses(rank_of_recorded[order], start_ns[order], end_ns[order])
    pauses = join_tables([tables.pop("pauses"), pauses])
    return replace(
        recordings,
        ranks=tuple(recordings.ranks[recorded] for recorded in first.tolist()),
        timed=recordings.timed[first],
        recorded_start_ns=joined_start_ns,
        recorded_end_ns=joined_end_ns,
        rank_of_recorded=rank_of_recorded,
        resumed=(rank_of_recorded[is_later], first_iteration[is_later]),
        pauses=pauses.take(sort_rows(pauses.rank, pauses.start_ns)),
        **tables,
    )


def _find_pauses(rank: Ints, start_ns: Ints, end_ns: Ints) -> RankIntervals:
    """Return the times between consecutive captures of each rank.

    Args:
        rank: Rank of each capture, ascending.
        start_ns: Start of each capture, ascending within a rank.
        end_ns: End of each capture.
    """
    is_followed = rank[1:] == rank[:-1]
    pause_start_ns = end_ns[:-1][is_followed]
    pause_end_ns = np.maximum(start_ns[1:][is_followed], pause_start_ns)
    return RankIntervals(rank[:-1][is_followed], pause_start_ns, pause_end_ns)


def _sort_tables(
    recordings: JoinedRecordings, rank_of_recorded: Ints, position: Ints, first_iteration: Ints
) -> dict[str, Any]:
    """Return the recorded tables with joined ranks and iterations, keyed by name.

    The rows are sorted by rank and capture. Rows of one capture keep their order.

    Args:
        recordings: The recordings of all profiles.
        rank_of_recorded: Joined rank of each recorded rank.
        position: Position of each recorded rank if they are sorted by joined rank and time.
        first_iteration: Number that each recorded rank's iteration 0 gets.
    """
    operations = recordings.operations
    operation_order = sort_rows(position[operations.rank])
    new_row = np.append(invert_permutation(operation_order), NONE)
    tables: dict[str, Any] = {
        "named_stage": recordings.named_stage[operation_order],
        "named_iteration": recordings.named_iteration[operation_order],
    }
    for name in (part.name for part in fields(RecordedTables)):
        table = getattr(recordings, name)
        columns = {}
        if hasattr(table, "operation"):
            columns["operation"] = new_row[table.operation]
        if hasattr(table, "iteration"):
            moved = table.iteration + first_iteration[table.rank]
            columns["iteration"] = np.where(table.iteration >= 0, moved, table.iteration)
        if hasattr(table, "rank"):
            columns["rank"] = rank_of_recorded[table.rank]
            order = sort_rows(position[table.rank])
        else:
            order = sort_rows(columns["operation"])
        tables[name] = replace(table, **columns).take(order)
    return tables


def _number_first_iterations(
    n_iterations: Ints, group: Ints, rank_of_recorded: Ints, order: Ints
) -> Ints:
    """Return the number that each recorded rank's iteration 0 gets in its joined rank.

    The iterations of a group come after all iterations of earlier groups. If a group contains
    several captures of a rank, its iterations are numbered without regard to other ranks.

    Args:
        n_iterations: Number of iterations of each recorded rank.
        group: Group of captures of each recorded rank, ascending in time.
        rank_of_recorded: Joined rank of each recorded rank.
        order: Recorded ranks, sorted by joined rank and time.
    """
    is_same_rank = np.diff(rank_of_recorded[order]) == 0
    if (np.diff(group[order])[is_same_rank] > 0).all():
        n_of_group = np.zeros(int(group.max()) + 1, np.int64)
        np.maximum.at(n_of_group, group, n_iterations)
        return np.asarray((np.cumsum(n_of_group) - n_of_group)[group], np.int64)
    total: Ints = np.cumsum(n_iterations[order]) - n_iterations[order]
    starts = find_run_starts(rank_of_recorded[order])
    n_captures = np.diff(np.append(starts, len(order)))
    return scatter(len(order), order, total - np.repeat(total[starts], n_captures))


def describe_captures(recordings: JoinedRecordings, captures: Captures) -> tuple[Limitation, ...]:
    """Return the limitation that several captures of a process are analyzed as one run.

    Args:
        recordings: The recordings, with joined captures.
        captures: The captures of all processes.
    """
    if not captures.profiles:
        return ()
    counts = {len(profiles) for profiles in captures.profiles}
    times = f"{min(counts)} times each" if len(counts) == 1 else f"up to {max(counts)} times"
    pauses = recordings.pauses
    longest_ns = int((pauses.end_ns - pauses.start_ns).max())
    return (
        Limitation(
            "time between captures",
            f"{format_count(len(captures.profiles), 'process', 'processes')} captured {times}, up "
            f"to {longest_ns / 1e6:,.1f} ms apart. The captures are analyzed as one run. The time "
            "between them is in no window, and no iteration extends across it",
            len(pauses),
        ),
    )
