"""The analysis of communication, from event files and profiles to a report. It never prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.analyses.idle.evidence import IdleOptions
from bubbleviz.analyses.idle.ranks import window_extent
from bubbleviz.analyses.nccl.alignment import align_events
from bubbleviz.analyses.nccl.anchors import Anchor, anchor_of
from bubbleviz.analyses.nccl.clocks import clocks_and_bases, profile_clocks
from bubbleviz.analyses.nccl.communications import Alignment, Communications, RecordingClock, Split
from bubbleviz.analyses.nccl.kernel_pool import KernelPool, pool_of
from bubbleviz.analyses.nccl.kernels import NcclProfile, read_kernels
from bubbleviz.analyses.nccl.members import (
    aligned_by_ends,
    instances_of,
    paired_by_order,
    split,
)
from bubbleviz.analyses.nccl.rows import operations_of, with_shared
from bubbleviz.analyses.nccl.totals import Communication, FileRead
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.conventions.kinds import default_kinds
from bubbleviz.errors import InputError, NothingToAnalyseError, ProfileError, UsageError
from bubbleviz.interpret.record import export_of
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Limitation
from bubbleviz.model.window import Window
from bubbleviz.progress import Progress, Unwatched, unwatched
from bubbleviz.sources.directories import read_each
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.events import UNKNOWN, EventFile
from bubbleviz.sources.nccl.formats import EventFileFormat, format_of, read_events
from bubbleviz.sources.paths import CompanionFormat, InputFile, find_profiles, refuse_twins
from bubbleviz.sources.readers import reader_of


def measure_communication(
    paths: str | Path | Sequence[str | Path],
    *,
    anchors: Sequence[str] = (),
    window: Window | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Communication:
    """Return the communication operations of all ranks, from NCCL's event files and profiles.

    Args:
        paths: event files and profiles of one run, recognised by their content; a directory
            stands for those in it, a pattern for its matches.
        anchors: instants on an event file's and the first profile's clock, as
            ``[FILE:]EVENT=PROFILE_NS``.
        window: the part of the run to analyse, of iterations as the first profile names them, or
            of time on its clock; None for all.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        jobs: threads that read a profile.
        progress: receives how much of each file has been read.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    known_instants = [anchor_of(text) for text in anchors]
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_inputs([str(path) for path in inputs])
    progress = progress or Unwatched()
    progress.files({file.path: Path(file.path).stat().st_size for file in files})
    formats = {file.path: file.format for file in files}

    def read(path: str) -> EventFile | NcclProfile:
        watch, events = partial(progress.read, path), formats[path]
        try:
            if events is not None:
                return read_events(path, watch, events)
            return read_kernels(path, jobs, watch, keep_export=keep_export)
        finally:
            watch(1.0)

    contents, unreadable = read_each([InputFile(file.path, file.named) for file in files], read)
    recorded = [content for content in contents if isinstance(content, EventFile)]
    profiles = [content for content in contents if isinstance(content, NcclProfile)]
    communication = merge_recordings(recorded, profiles, known_instants)
    communication = replace(communication, limitations=(*unreadable, *communication.limitations))
    if window is None:
        return communication
    extent_ns = _extent_of(window, [profile.source.path for profile in profiles])
    return _within(communication, window, extent_ns)


@dataclass(frozen=True)
class Input:
    """A file to read, ``named`` or not, and the format of its NCCL events; None of a profile."""

    path: str
    named: bool
    format: EventFileFormat[Any] | None


def find_inputs(paths: Sequence[str]) -> tuple[Input, ...]:
    """Return the event files and profiles that paths stand for.

    Raises:
        InputError: a path that does not exist, or leads to neither.
        MismatchError: a file is named twice.
        ProfileError: a file cannot be read.
    """
    if not paths:
        raise InputError("no file given; name event files of NCCL, profiles, or both")
    formats: dict[str, EventFileFormat[Any] | None] = {}

    def recognises(path: str) -> bool:
        if path not in formats:
            try:
                formats[path] = format_of(head_of(path))
            except ProfileError:
                # As a profile, it is refused, or left out of a directory, for the same reason.
                formats[path] = None
        return formats[path] is not None

    files = find_profiles(paths, CompanionFormat("an event file of NCCL", recognises))
    refuse_twins([file.path for file in files], "file")
    return tuple(
        Input(file.path, file.named, formats[file.path] if recognises(file.path) else None)
        for file in files
    )


def merge_recordings(
    recorded: Sequence[EventFile],
    profiles: Sequence[NcclProfile],
    anchors: Sequence[Anchor] = (),
) -> Communication:
    """Return the communication operations of event files and profiles, merged.

    Raises:
        NothingToAnalyseError: nothing communicated.
        UsageError: an anchor names no file.
    """
    of_profiles = profile_clocks(profiles)
    pool = pool_of(profiles, of_profiles.offsets_ns)
    times = align_events(recorded, pool, anchors)
    table = operations_of(recorded, profiles, pool, times)
    clocks, bases = clocks_and_bases(times, of_profiles, profiles)
    peer_wait_ns = _proxy_times(recorded, "peer_wait_ns", len(table))
    transfer_ns = _proxy_times(recorded, "transfer_ns", len(table))
    instance = instances_of(table)
    table, clocks = aligned_by_ends(table, instance, clocks, bases)
    compared = [0 if clock.aligned else 1 + number for number, clock in enumerate(clocks)]
    in_order = paired_by_order(table, *_gpus(table, pool))
    table = split(with_shared(table), instance, in_order, compared, peer_wait_ns, transfer_ns)
    ranks = _sizes(table, profiles)
    limitations = (
        *(limitation for file in recorded for limitation in _file_limitations(file)),
        *(limitation for profile in profiles for limitation in _profile_limitations(profile)),
        *_duration_limitations(table),
        *_clock_limitations(times.ambiguous, clocks),
        *_member_limitations(table, instance, ranks),
    )
    files = _files(recorded, profiles, table)
    return Communication(table, ranks, clocks, files, limitations)


def _gpus(table: Communications, pool: KernelPool) -> tuple[Ints, Ints]:
    """Return the GPU of each operation's kernel, and the family of that kernel; -1 none."""
    place_of = np.full(len(pool.start_ns) + 1, NONE, np.int64)
    for number, place in enumerate(pool.places):
        place_of[place.first : place.end] = number
    return place_of[table.kernel], np.append(pool.family, NONE)[table.kernel]


def _proxy_times(recorded: Sequence[EventFile], name: str, rows: int) -> Ints:
    """Return a column of all events, as long as the table; 0 for operations of profiles."""
    columns = [getattr(file.events, name) for file in recorded]
    column = np.concatenate([np.empty(0, np.int64), *columns])
    return np.concatenate((column, np.zeros(rows - len(column), np.int64)))


def _sizes(table: Communications, profiles: Sequence[NcclProfile]) -> tuple[int | None, ...]:
    """Return the ranks of each communicator: as recorded, else as seen; None for a single one."""
    recorded = {key: ranks for profile in profiles for key, ranks in profile.ranks}
    seen = np.zeros(len(table.communicators), np.int64)
    known = table.communicator != NONE
    for column in (table.rank, table.peer):
        np.maximum.at(seen, table.communicator[known], column[known] + 1)
    return tuple(
        recorded.get(communicator) or (ranks if ranks > 1 else None)
        for communicator, ranks in zip(table.communicators, seen.tolist(), strict=True)
    )


def _files(
    recorded: Sequence[EventFile], profiles: Sequence[NcclProfile], table: Communications
) -> tuple[FileRead, ...]:
    rows = np.bincount(table.source, minlength=len(recorded) + len(profiles)).tolist()
    files = [(file.path, file.format, file.seen) for file in recorded]
    files += [(profile.source.path, profile.source.format, ()) for profile in profiles]
    return tuple(
        FileRead(path, kind, count, events)
        for (path, kind, events), count in zip(files, rows, strict=True)
    )


def _extent_of(window: Window, profiles: Sequence[str]) -> tuple[int, int]:
    """Return the start and end (exclusive) of a window on the clock of the first profile, in ns.

    Args:
        window: of the run.
        profiles: paths of profiles, of which the first has the steps.

    Raises:
        UsageError: the window is one of iterations, and there is no profile.
        InputError: the profile holds no such iteration.
    """
    if window.times_ns is not None:
        return window.times_ns
    if not profiles:
        raise UsageError(
            f"--window {window.text}: NCCL's event files hold no iterations; add a profile of the "
            "run, or give a window of time"
        )
    with (
        export_of(profiles[0]) as export,
        reader_of(export).open_file(export, 1, unwatched) as file,
    ):
        options = IdleOptions(0, None, default_activities(), default_kinds())
        return window_extent(file.read((), partial=True), window, options)


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
        first, last = (
            (int(time) / 1e9 for time in (table.start_ns[timed].min(), table.start_ns[timed].max()))
            if timed.any()
            else (0.0, 0.0)
        )
        raise NothingToAnalyseError(
            f"--window {window.text}: no communication operation begins in it; they begin from "
            f"{first:.6f} s to {last:.6f} s of the report's clock"
        )
    lost = int((~timed).sum())
    reason = (
        "their times are unknown, or on a clock that is not aligned; the window leaves them out"
    )
    limitation = Limitation("operations that lie in no window", reason, lost)
    return replace(
        communication,
        operations=table.take(inside),
        limitations=(*communication.limitations, *((limitation,) if lost else ())),
        window=window.text,
    )


def _file_limitations(file: EventFile) -> Iterator[Limitation]:
    for what, count, reason in (
        ("objects that are no event", file.unreadable, "cut, or damaged; they are left out"),
        ("events without an end", file.unfinished, "the job, or the file, ended before"),
        ("ends without a begin", file.unbegun, "their begin is missing; they are left out"),
        ("operations recorded twice", file.repeated, "the profiler wrote them again; once counts"),
        ("events of unknown categories", file.strange, "they are left out"),
    ):
        if count:
            yield Limitation(what, f"{file.path}: {reason}", count)


def _profile_limitations(profile: NcclProfile) -> Iterator[Limitation]:
    yield from profile.limitations
    if profile.without_kernels:
        reason = f"{profile.source.path}: they ran in CUDA graphs, or beyond the capture"
        yield Limitation("calls of NCCL without kernels", reason, profile.without_kernels)


def _duration_limitations(table: Communications) -> Iterator[Limitation]:
    endless = int((table.duration_ns < 0).sum())
    if endless:
        yield Limitation(
            "operations of unknown duration",
            "neither the GPU nor a proxy thread recorded their end; record kernel events "
            "(NCCL_PROFILE_EVENT_MASK=4095), give a profile, and end the job in order",
            endless,
        )


def _clock_limitations(ambiguous: int, clocks: Sequence[RecordingClock]) -> Iterator[Limitation]:
    if ambiguous:
        yield Limitation(
            "operations that kernels match at several offsets",
            "they come too evenly, or are too few; give an instant with --anchor",
            ambiguous,
        )
    alignments = [clock.aligned_by for clock in clocks]
    if Alignment.UNALIGNED in alignments and len(clocks) > 1:
        yield Limitation(
            "clocks that could not be aligned",
            "no kernel and no common operation ties them to another, so their times stand alone; "
            "give an instant with --anchor",
            alignments.count(Alignment.UNALIGNED),
        )
    if Alignment.UTC in alignments:
        yield Limitation(
            "hosts aligned by UTC alone",
            "waiting between them is known to milliseconds at best",
            alignments.count(Alignment.UTC),
        )
    if Alignment.OPERATIONS in alignments:
        yield Limitation(
            "clocks aligned by the ends of operations",
            "the members of an operation are taken to end together",
            alignments.count(Alignment.OPERATIONS),
        )


def _member_limitations(
    table: Communications, instance: Ints, ranks: Sequence[int | None]
) -> Iterator[Limitation]:
    alone = (table.split == Split.UNKNOWN) & (table.duration_ns >= 0)
    if alone.any():
        yield Limitation(
            "operations whose waiting is unknown",
            "there is no other member on an aligned clock, and no proxy thread; give the files of "
            "all ranks",
            int(alone.sum()),
        )
    ordered = int((table.split == Split.ORDER).sum())
    if ordered:
        yield Limitation(
            "operations paired by their order alone",
            "the profiles hold no communicators; all GPUs ran as many kernels, each at one time, "
            "and these are taken for one operation",
            ordered,
        )
    rows = np.flatnonzero((instance != NONE) & (table.split == Split.MEMBERS) & (table.peer < 0))
    if len(rows):
        members = groups_of(instance[rows])
        sizes = np.array([size or 0 for size in ranks], np.int64)
        whole = sizes[table.communicator[rows]]
        few = np.bincount(members.of_row)[members.of_row] < whole
        if few.any():
            yield Limitation(
                "operations of which not all members were recorded",
                "a missing member may have begun later: they waited at least as long",
                int(few.sum()),
            )
