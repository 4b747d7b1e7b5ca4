"""The analysis of communication, from event files and profiles to a report. It never prints."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bubbleviz.align.profile_clocks import build_session_clocks, find_machines
from bubbleviz.analyses.nccl import hangs, members
from bubbleviz.analyses.nccl.alignment import align_events
from bubbleviz.analyses.nccl.communications import (
    Alignment,
    Communications,
    Communicator,
    RecordingClock,
    Split,
)
from bubbleviz.analyses.nccl.inputs import find_inputs
from bubbleviz.analyses.nccl.kernels import Kernels, pooled
from bubbleviz.analyses.nccl.profiles import NcclProfile, read_profile
from bubbleviz.conventions.convention_file import collect_kinds, find_conventions
from bubbleviz.errors import NothingToAnalyseError, UsageError
from bubbleviz.interpret.start_skew import describe_skew, find_common_start, find_unclear_waits
from bubbleviz.model import texts
from bubbleviz.model.columns import NONE, Ints, make_constant
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.numbering import merge_tables
from bubbleviz.model.profile import Source
from bubbleviz.model.restrictions import Restriction
from bubbleviz.model.window import Window
from bubbleviz.progress import Progress, Watch
from bubbleviz.report.restrictions import list_restrictions
from bubbleviz.sources.nccl.events import UNKNOWN, EventFile, OperationKind
from bubbleviz.sources.nccl.formats import read_events
from bubbleviz.sources.paths import read_each


@dataclass(frozen=True)
class Communication:
    """What ranks did in communication operations.

    Attributes:
        operations: one row each.
        ranks: number of ranks of each communicator; None unknown.
        clocks: that ``operations.clock`` refers to; the first is the report's.
        files: that were read: the path as given; ``nsys``, or the name of a format of event files;
            and how many events each category has, empty for profiles.
        limitations: what could not be measured, and why.
        faults: operations at which the run stands, as flight recorders tell.
        window: the analysed part of the run, as the user wrote it; None for all.
        hosts: Names of the profiles' hosts.
    """

    operations: Communications
    ranks: tuple[int | None, ...]
    clocks: tuple[RecordingClock, ...]
    files: tuple[tuple[str, str, tuple[tuple[str, int], ...]], ...]
    limitations: tuple[Limitation, ...]
    faults: tuple[hangs.Fault, ...] = ()
    window: str | None = None
    hosts: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files."""
        return tuple(path for path, _, _ in self.files)

    @property
    def restrictions(self) -> tuple[Restriction, ...]:
        """Why operations are missing from the sums, what weighs most first."""
        is_damage = LimitationKind.FILE_DAMAGED
        damage = [note for note in self.limitations if note.kind is is_damage]
        return list_restrictions(None, damage, ranks_missing=False)

    @property
    def counts(self) -> list[int]:
        """How many operations each file recorded, those of the window alone."""
        source = self.operations.source
        return [int(n) for n in np.bincount(source, minlength=len(self.files))]

    @property
    def communicators(self) -> tuple[tuple[Communicator, int | None], ...]:
        """The communicators of the operations, and how many ranks each has; None unknown."""
        of_all = self.operations.communicators
        used = find_distinct(self.operations.communicator)
        return tuple((of_all[row], self.ranks[row]) for row in used[used != NONE].tolist())


def measure_communication(
    paths: str | Path | Sequence[str | Path],
    *,
    convention: str | Path | Sequence[str | Path] = (),
    window: Window | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Communication:
    """Return the communication operations of all ranks, from NCCL's event files and profiles.

    Args:
        paths: event files and profiles of one run, recognised by their content; a directory
            stands for those in it, a pattern for its matches.
        convention: conventions whose lists of communication kernels add to those of NCCL: names, or
            paths of TOML files.
        window: the part of the run to analyse, of iterations as the first profile names them, or
            of time on its clock; None for all.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        jobs: threads that read a profile.
        progress: receives how much of each file has been read.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    kinds = collect_kinds(find_conventions(convention))
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_inputs([str(path) for path in inputs])
    formats = {file.path: events for file, events in files.items()}
    profiles: list[NcclProfile] = []
    iterations = window if window is not None and window.times_ns is None else None

    def read(path: str, watch: Watch) -> EventFile | NcclProfile:
        events = formats[path]
        if events:
            return read_events(path, watch, events)
        # The first profile names the iterations.
        of_first = None if profiles else iterations
        profiles.append(
            read_profile(path, jobs, watch, kinds=kinds, keep_export=keep_export, window=of_first)
        )
        return profiles[-1]

    contents, unreadable = read_each(list(files), read, progress)
    recorded = [content for content in contents if isinstance(content, EventFile)]
    communication = merge_communication(recorded, profiles)
    communication = replace(
        communication,
        limitations=(*unreadable, *communication.limitations),
        hosts=(
            *(profile.source.host for profile in profiles),
            *(host for note in unreadable for host in note.hosts),
        ),
    )
    if window is None:
        return communication
    extent_ns = window.times_ns or (profiles[0].window_ns if profiles else None)
    if extent_ns is None:
        raise UsageError(
            f"--window {window.text}: NCCL's event files hold no iterations; add a profile of the "
            "run, or give a window of time"
        )
    return _within(communication, window, extent_ns)


def merge_communication(
    recorded: Sequence[EventFile], profiles: Sequence[NcclProfile]
) -> Communication:
    """Return the communication operations of event files and profiles, merged.

    Raises:
        NothingToAnalyseError: nothing communicated.
    """
    sources = [profile.source for profile in profiles]
    clocks, machines = _profile_clocks(sources)
    sessions = build_session_clocks(sources, find_machines(sources))
    pool = pooled([profile.kernels for profile in profiles], sessions)
    events, event_clocks, ambiguous = align_events(recorded, pool)
    table = operations_of(recorded, events, profiles, pool)
    dumped = np.array([*(file.rank != NONE for file in recorded), *(False for _ in profiles)])
    of_dumps = {*find_distinct(table.clock[dumped[table.source]]).tolist()}
    added, bases = _clock_bases(event_clocks, table, machines, profiles, of_dumps)
    # Which of the sends between two ranks are left in one ring buffer, and not in the other?
    rolled = any(file.rolled_over for file in recorded)
    epoch = members.epochs_of(table) if rolled else make_constant(NONE, len(table))
    uncounted = (epoch == NONE) & (table.peer != NONE) & rolled
    instance = np.where(uncounted, NONE, members.instances_of(table, epoch))
    table = hangs.with_run_ranks(table, dumped[table.source])
    table = members.ended_together(table, instance, dumped[table.source])
    table, all_clocks = members.aligned_by_ends(
        table, instance, (*clocks, *added), (*machines, *bases)
    )
    compared = [0 if clock.aligned else 1 + number for number, clock in enumerate(all_clocks)]
    family = np.append(pool.family, NONE)[table.kernel]
    in_order = members.paired_by_order(table, np.append(pool.place, NONE)[table.kernel], family)
    # How long proxy threads waited, and moved data; 0 for operations of profiles.
    proxy_ns = np.zeros((2, len(table)), np.int64)
    for row, name in enumerate(("peer_wait_ns", "transfer_ns")):
        column = [getattr(file.events, name) for file in recorded]
        proxy_ns[row, : sum(map(len, column))] = np.concatenate([np.empty(0, np.int64), *column])
    table = members.split(with_shared(table), instance, in_order, compared, *proxy_ns)
    table = hangs.with_awaited(table, instance)
    ranks = _sizes(table, profiles)
    files = (
        *((file.path, file.format, file.category_counts) for file in recorded),
        *((profile.source.path, profile.source.format, ()) for profile in profiles),
    )
    faults = hangs.faults_of(table, {file.rank for file in recorded})
    communication = Communication(table, ranks, all_clocks, files, (), faults)
    counts = ambiguous, instance, int(uncounted.sum())
    limitations = _limitations(recorded, profiles, communication, *counts)
    return replace(communication, limitations=tuple(limitations))


def operations_of(
    recorded: Sequence[EventFile],
    events: Sequence[Communications],
    profiles: Sequence[NcclProfile],
    pool: Kernels,
) -> Communications:
    """Return the operations of event files, then those of profiles that no event file has.

    Args:
        recorded: event files.
        events: their operations, with clocks of event files from 0.
        profiles: as read.
        pool: their kernels.

    Raises:
        NothingToAnalyseError: there is none.
    """
    tables = [replace(table, clock=table.clock + len(profiles)) for table in events]
    matched = [table.kernel[table.kind != OperationKind.PROXY] for table in tables]
    taken = np.concatenate([np.empty(0, np.int64), *matched])
    first, place = 0, 0
    for clock, profile in enumerate(profiles):
        table, kernel = profile.operations, first + profile.operations.kernel
        table = replace(
            table,
            source=make_constant(len(recorded) + clock, len(table)),
            clock=make_constant(clock, len(table)),
            kernel=kernel,
            gpu=place + table.gpu,
            start_ns=pool.start_ns[kernel],
            end_ns=pool.start_ns[kernel] + table.duration_ns,
        )
        tables.append(table.take(~np.isin(kernel, taken)))
        first, place = first + len(profile.kernels), place + len(profile.kernels.places)
    if sum(map(len, tables)) == 0:
        paths = [file.path for file in recorded] + [profile.source.path for profile in profiles]
        others = next((f"; {profile.others}" for profile in profiles if profile.others), "")
        raise NothingToAnalyseError(
            f"{paths[0]}: no communication operation of NCCL was recorded; record events with "
            "NCCL_PROFILE_EVENT_MASK=4095, or a profile with nsys profile -t cuda,nvtx or "
            "rocprofv3 --runtime-trace; list the kernels of another library under communication "
            f"in a TOML file, and give it with --convention{others}"
        )
    return merge_tables(
        tables,
        names=("name", "datatype", "algorithm", "protocol"),
        communicators=("communicator",),
    )


def with_shared(table: Communications) -> Communications:
    """Return the operations with how many have the same kernel, or the same times."""
    shared = np.ones(len(table), np.int64)
    timed = np.flatnonzero((table.start_ns != UNKNOWN) & (table.end_ns != UNKNOWN))
    if len(timed):
        columns = (table.clock, table.kernel, table.start_ns, table.end_ns)
        groups = group_rows(*(column[timed] for column in columns))
        shared[timed] = np.bincount(groups.of_row)[groups.of_row]
    return replace(table, shared=shared)


def _profile_clocks(
    sources: Sequence[Source],
) -> tuple[list[RecordingClock], list[int]]:
    """Return the clock of each profile, and the index of its machine.

    The clock of the first profile is the clock of the report.
    """
    machines = find_machines(sources)
    clocks = []
    for source, machine in zip(sources, machines, strict=True):
        first = sources[machines.index(machine)]
        timed = None not in (first.session_utc_ns, sources[0].session_utc_ns)
        if machine == machines[0]:
            aligned_by = Alignment.REFERENCE
        else:
            aligned_by = Alignment.UTC if timed else Alignment.UNALIGNED
        clocks.append(RecordingClock(Path(source.path).name, aligned_by))
    distinct = tuple(dict.fromkeys(machines))
    return clocks, [distinct.index(machine) for machine in machines]


def _clock_bases(
    event_clocks: Sequence[RecordingClock],
    table: Communications,
    machines: Sequence[int],
    profiles: Sequence[NcclProfile],
    of_dumps: Collection[int],
) -> tuple[list[RecordingClock], list[int]]:
    """Return the clocks of event files, and the number of the clock that each one ticks with.

    The first profile's host is 0; without a profile the first file's clock is.
    Flight recorders (``of_dumps``) have UTC, and their operations are compared by their lengths.
    """
    ends = np.cumsum([len(profile.kernels) for profile in profiles])
    free = itertools.count(max(machines, default=0) + 1)
    clocks, bases = list(event_clocks), []
    for number, clock in enumerate(event_clocks):
        own = (table.clock == len(profiles) + number) & (table.kernel != NONE)
        kernels = table.kernel[own]
        if len(kernels):
            bases.append(machines[int(np.searchsorted(ends, kernels[0], side="right"))])
        elif not profiles and (not bases or number in of_dumps):
            clocks[number] = replace(clock, aligned_by=Alignment.REFERENCE)
            bases.append(0)
        else:
            bases.append(next(free))
    return clocks, bases


def _sizes(table: Communications, profiles: Sequence[NcclProfile]) -> tuple[int | None, ...]:
    """Return the ranks of each communicator: as recorded, else as seen; None for a single one."""
    recorded = {key: ranks for profile in profiles for key, ranks in profile.sizes.items()}
    seen = np.zeros(len(table.communicators), np.int64)
    known = table.communicator != NONE
    for column in (table.rank, table.peer):
        np.maximum.at(seen, table.communicator[known], column[known] + 1)
    return tuple(
        recorded.get(communicator) or (ranks if ranks > 1 else None)
        for communicator, ranks in zip(table.communicators, seen.tolist(), strict=True)
    )


#: What recordings that begin at different times mean for waiting.
_SKEW = "{} of its waiting are no fault of that device; leave them out with --window"


def _limitations(
    recorded: Sequence[EventFile],
    profiles: Sequence[NcclProfile],
    communication: Communication,
    ambiguous: int,
    instance: Ints,
    uncounted: int,
) -> Iterator[Limitation]:
    """Yield what event files and profiles do not show of communication, and why.

    Args:
        recorded: event files.
        profiles: as read.
        communication: what is known of it.
        ambiguous: operations whose clock several offsets put onto kernels equally well.
        instance: a number that the members of each operation share; -1 unknown.
        uncounted: sends and receives of which nobody knows which is which.

    """
    for file in recorded:
        for what, count, reason in (
            ("damaged events", file.unreadable, "cut or damaged, and left out"),
            ("events without an end", file.n_without_end, "the job, or the file, ended before"),
            ("ends without a begin", file.n_without_begin, "their begin is missing; left out"),
            ("operations recorded twice", file.n_duplicates, "each counts once"),
            ("events of unknown categories", file.n_unknown, "they are left out"),
            (
                "GPU timestamps far from all others",
                file.n_clock_conflicts,
                "the host's times stand for them",
            ),
        ):
            if count:
                is_damage = what == "damaged events" and file.is_damaged
                kind = LimitationKind.FILE_DAMAGED if is_damage else LimitationKind.OTHER
                yield Limitation(what, f"{file.path}: {reason}", count, kind)
    for profile in profiles:
        yield from profile.limitations
    recorded_devices = [device for profile in profiles for device in profile.recorded]
    start_ns = find_common_start(recorded_devices)
    if start_ns is not None:
        yield describe_skew(recorded_devices, start_ns, _SKEW)
    yield from find_unclear_waits(recorded_devices)
    table, clocks = communication.operations, communication.clocks
    alignments = [clock.aligned_by for clock in clocks]
    of_files = clocks[len(profiles) :] if profiles else ()
    loose = [clock.label for clock in of_files if not clock.aligned]
    rows = np.flatnonzero((instance != NONE) & (table.split == Split.MEMBERS) & (table.peer < 0))
    sizes = np.array([size or 0 for size in communication.ranks], np.int64)
    operation = group_rows(instance[rows]).of_row
    few = np.bincount(operation)[operation] < sizes[table.communicator[rows]]
    unsplit = (table.split == Split.UNKNOWN) & (table.duration_ns >= 0)
    for what, count, reason in (
        (
            "operations of unknown duration",
            (table.duration_ns < 0).sum(),
            "their end was not recorded; record kernel events (NCCL_PROFILE_EVENT_MASK=4095; "
            "TORCH_NCCL_ENABLE_TIMING=1 of flight recorders), give a profile, and let the job end",
        ),
        (
            "operations that kernels match at several offsets",
            ambiguous,
            "too few or too regular to match; record more of the run",
        ),
        (
            "clocks that could not be aligned",
            alignments.count(Alignment.UNALIGNED) if len(clocks) > 1 else 0,
            "they share no kernel or operation with another clock; add profiles of their ranks",
        ),
        (
            "hosts aligned by UTC alone",
            alignments.count(Alignment.UTC),
            "waiting between them is known to milliseconds at best",
        ),
        (
            "clocks aligned by the ends of operations",
            alignments.count(Alignment.OPERATIONS),
            "all members of an operation are assumed to end together",
        ),
        (
            "event files that may belong to another run",
            len(loose),
            f"{texts.list_first(loose, 3)}: no operation matches a kernel of the profiles, so "
            "totals count both; measure them separately",
        ),
        (
            "operations whose waiting is unknown",
            (unsplit & (table.communicator != NONE)).sum(),
            "no other member was recorded on an aligned clock, and no proxy thread was recorded; "
            "give the files of all ranks",
        ),
        (
            "operations whose members are unknown",
            (unsplit & (table.communicator == NONE)).sum(),
            "no communicators were recorded, so what they waited for is unknown; give NCCL's event "
            "files, too",
        ),
        (
            "sends and receives that cannot be paired",
            uncounted,
            "flight recorders have dropped what comes before; set a larger TORCH_FR_BUFFER_SIZE",
        ),
        (
            "operations paired by their order alone",
            (table.split == Split.ORDER).sum(),
            "the profiles hold no communicators; all GPUs ran as many kernels one by one, and the "
            "n-th of each are counted as one operation",
        ),
        (
            "operations of which not all members were recorded",
            few.sum(),
            "a missing member may have begun later: they waited at least as long",
        ),
    ):
        if count:
            yield Limitation(what, reason, int(count))


def _within(
    communication: Communication, window: Window, extent_ns: tuple[int, int]
) -> Communication:
    """Return the operations that begin between two instants.

    Args:
        communication: of the whole run, which is needed to split waiting and moving.
        window: as the user gave it.
        extent_ns: start and end (exclusive) on the report's clock.

    Raises:
        NothingToAnalyseError: no operation begins then.
    """
    table = communication.operations
    aligned = np.array([clock.aligned for clock in communication.clocks], bool)[table.clock]
    timed = aligned & (table.start_ns != UNKNOWN)
    inside = timed & (table.start_ns >= extent_ns[0]) & (table.start_ns < extent_ns[1])
    if not inside.any():
        starts_ns = table.start_ns[timed]
        first, last = (
            int(time_ns) / 1e9
            for time_ns in ((starts_ns.min(), starts_ns.max()) if len(starts_ns) else (0, 0))
        )
        raise NothingToAnalyseError(
            f"--window {window.text}: no communication operation begins in it; they begin from "
            f"{first:.6f} s to {last:.6f} s of the report's clock"
        )
    lost = int((~timed).sum())
    reason = "their times are unknown or on an unaligned clock, so the window leaves them out"
    limitation = Limitation("operations outside the window", reason, lost)
    return replace(
        communication,
        operations=table.take(inside),
        limitations=(*communication.limitations, *((limitation,) if lost else ())),
        window=window.text,
    )
