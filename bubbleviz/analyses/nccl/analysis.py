"""The analysis of communication, from event files and profiles to a report. It never prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl.alignment import align_events
from bubbleviz.analyses.nccl.anchors import Anchor, anchor_of
from bubbleviz.analyses.nccl.clocks import clocks_and_bases, profile_clocks
from bubbleviz.analyses.nccl.communications import Communications
from bubbleviz.analyses.nccl.inputs import find_inputs
from bubbleviz.analyses.nccl.kernel_pool import pool_of
from bubbleviz.analyses.nccl.limitations import (
    clock_limitations,
    duration_limitations,
    file_limitations,
    member_limitations,
    profile_limitations,
    run_limitations,
)
from bubbleviz.analyses.nccl.members import (
    aligned_by_ends,
    instances_of,
    paired_by_order,
    split,
)
from bubbleviz.analyses.nccl.profiles import NcclProfile, read_nccl_profile
from bubbleviz.analyses.nccl.rows import operations_of, with_shared
from bubbleviz.analyses.nccl.totals import Communication, FileRead
from bubbleviz.conventions.convention_file import extended_kinds, find_conventions
from bubbleviz.errors import NothingToAnalyseError, UsageError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.private_names import note_host
from bubbleviz.model.window import Window
from bubbleviz.progress import Progress, Watch
from bubbleviz.sources.directories import read_each
from bubbleviz.sources.nccl.events import UNKNOWN, EventFile
from bubbleviz.sources.nccl.formats import read_events
from bubbleviz.sources.paths import InputFile


def measure_communication(
    paths: str | Path | Sequence[str | Path],
    *,
    anchors: Sequence[str] = (),
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
        anchors: instants on an event file's and the first profile's clock, as
            ``[FILE:]EVENT=PROFILE_NS``.
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
    known_instants = [anchor_of(text) for text in anchors]
    kinds = extended_kinds(find_conventions(convention))
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_inputs([str(path) for path in inputs])
    formats = {file.path: file.format for file in files}
    profiles: list[NcclProfile] = []
    iterations = window if window is not None and window.times_ns is None else None

    def read(path: str, watch: Watch) -> EventFile | NcclProfile:
        events = formats[path]
        if events is not None:
            return read_events(path, watch, events)
        # The first profile names the iterations.
        of_first = None if profiles else iterations
        profiles.append(
            read_nccl_profile(
                path, jobs, watch, kinds=kinds, keep_export=keep_export, window=of_first
            )
        )
        return profiles[-1]

    contents, unreadable = read_each(
        [InputFile(file.path, file.named) for file in files], read, progress
    )
    recorded = [content for content in contents if isinstance(content, EventFile)]
    for profile in profiles:
        note_host(profile.source.host)
    communication = merge_communication(recorded, profiles, known_instants)
    communication = replace(communication, limitations=(*unreadable, *communication.limitations))
    if window is None:
        return communication
    extent_ns = _extent_of(window, profiles)
    return _within(communication, window, extent_ns)


def merge_communication(
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
    family = np.append(pool.family, NONE)[table.kernel]
    in_order = paired_by_order(table, pool.place_of(table.kernel), family)
    table = split(with_shared(table), instance, in_order, compared, peer_wait_ns, transfer_ns)
    ranks = _sizes(table, profiles)
    limitations = (
        *(limitation for file in recorded for limitation in file_limitations(file)),
        *(limitation for profile in profiles for limitation in profile_limitations(profile)),
        *duration_limitations(table),
        *clock_limitations(times.ambiguous, clocks),
        *run_limitations(clocks, len(profiles)),
        *member_limitations(table, instance, ranks),
    )
    files = _files(recorded, profiles, table)
    return Communication(table, ranks, clocks, files, limitations)


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


def _extent_of(window: Window, profiles: Sequence[NcclProfile]) -> tuple[int, int]:
    """Return the start and end (exclusive) of a window on the clock of the first profile, in ns.

    Args:
        window: of the run.
        profiles: as read, of which the first has the window of iterations.

    Raises:
        UsageError: the window is one of iterations, and there is no profile.
    """
    if window.times_ns is not None:
        return window.times_ns
    if not profiles or profiles[0].window_ns is None:
        raise UsageError(
            f"--window {window.text}: NCCL's event files hold no iterations; add a profile of the "
            "run, or give a window of time"
        )
    return profiles[0].window_ns


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
    operations = table.take(inside)
    counts = np.bincount(operations.source, minlength=len(communication.files)).tolist()
    files = zip(communication.files, counts, strict=True)
    return replace(
        communication,
        operations=operations,
        files=tuple(replace(file, operations=count) for file, count in files),
        limitations=(*communication.limitations, *((limitation,) if lost else ())),
        window=window.text,
    )
