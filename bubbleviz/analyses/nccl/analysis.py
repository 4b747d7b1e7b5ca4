"""NCCL: what each rank did in each communication operation. It never prints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.align.bounds.clocks import machines_of, session_clocks
from bubbleviz.analyses.nccl.anchors import Anchor, anchor_of
from bubbleviz.analyses.nccl.clocks import Clock, KernelPool, Placed, place, pool_of
from bubbleviz.analyses.nccl.communications import Communications, Communicator
from bubbleviz.analyses.nccl.kernels import Carried, read_kernels
from bubbleviz.analyses.nccl.limitations import limitations_of
from bubbleviz.analyses.nccl.members import instances_of, paired_by_order, placed_by_ends, split
from bubbleviz.analyses.nccl.rows import Numbers, of_events, of_kernels
from bubbleviz.analyses.nccl.totals import Communication, FileRead
from bubbleviz.analyses.nccl.window import extent_of, within
from bubbleviz.errors import InputError, NothingToAnalyseError
from bubbleviz.model.columns import NONE, Ints, joined
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.window import Window
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.events import UNKNOWN, EventFile, OperationKind
from bubbleviz.sources.nccl.formats import EventFileFormat, format_of, read_events
from bubbleviz.sources.paths import CompanionFormat, find_profiles, refuse_twins


def measure_communication(
    paths: str | Path | Sequence[str | Path],
    *,
    anchors: Sequence[str] = (),
    window: Window | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Communication:
    """Return what ranks did in communication operations, by event files of NCCL and by profiles.

    Args:
        paths: event files and profiles of one run, told apart by what they hold; a directory
            stands for those in it, a pattern for its matches.
        anchors: instants on an event file's and the first profile's clock, as
            ``[FILE:]EVENT=PROFILE_NS``.
        window: the part of the run to tell of, of iterations as the first profile names them, or
            of time on its clock; None for all.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        jobs: how many threads read a profile.
        progress: is told how far it is.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    stated = [anchor_of(text) for text in anchors]
    given = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_inputs([str(path) for path in given])
    told = progress or Unwatched()
    told.files({file.path: Path(file.path).stat().st_size for file in files})
    recorded: list[EventFile] = []
    profiles: list[Carried] = []
    for file in files:
        watch = partial(told.read, file.path)
        if file.format is not None:
            recorded.append(read_events(file.path, watch, file.format))
        else:
            profiles.append(read_kernels(file.path, jobs, watch, keep_export=keep_export))
        watch(1.0)
    found = merge_recordings(recorded, profiles, stated)
    if window is None:
        return found
    return within(found, window, extent_of(window, [own.source.path for own in profiles]))


@dataclass(frozen=True)
class Input:
    """A file to read, and the format of its events of NCCL; None of a profile."""

    path: str
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
            formats[path] = format_of(head_of(path))
        return formats[path] is not None

    found = [
        file.path
        for file in find_profiles(paths, CompanionFormat("an event file of NCCL", recognises))
    ]
    refuse_twins(found, "file")
    return tuple(Input(path, formats[path] if recognises(path) else None) for path in found)


def merge_recordings(
    recorded: Sequence[EventFile], profiles: Sequence[Carried], anchors: Sequence[Anchor] = ()
) -> Communication:
    """Return what ranks did, from what files tell of it.

    Raises:
        NothingToAnalyseError: nothing communicated.
        UsageError: an anchor names no file.
    """
    own, offsets_ns, hosts = _profile_clocks(profiles)
    pool = pool_of(profiles, offsets_ns)
    placed = place(recorded, pool, anchors)
    table = _rows(recorded, profiles, pool, placed)
    clocks, base = _bases(placed, own, hosts, profiles)
    waits = _proxy_times(recorded, len(table))
    instance = instances_of(table)
    table, clocks = placed_by_ends(table, instance, clocks, base)
    compared = [0 if clock.placed else 1 + number for number, clock in enumerate(clocks)]
    in_order = paired_by_order(table, *_gpus(table, pool))
    table = split(_with_shared(table), instance, in_order, compared, *waits)
    ranks = _sizes(table, profiles)
    return Communication(
        operations=table,
        ranks=ranks,
        clocks=clocks,
        files=_files(recorded, profiles, table),
        limitations=tuple(
            limitations_of(recorded, profiles, table, placed, clocks, instance, ranks)
        ),
    )


def _rows(
    recorded: Sequence[EventFile], profiles: Sequence[Carried], pool: KernelPool, placed: Placed
) -> Communications:
    """Return the operations of event files, then those of profiles that no event tells of.

    Raises:
        NothingToAnalyseError: there is none.
    """
    names, communicators = Numbers[str](), Numbers[Communicator]()
    tables = []
    begin = 0
    for source, file in enumerate(recorded):
        part = placed.take(slice(begin, begin + len(file.events)))
        tables.append(of_events(source, file.events, part, len(profiles), names, communicators))
        begin += len(file.events)
    carried_out = [table.kernel[table.kind != OperationKind.PROXY] for table in tables]
    taken = np.concatenate([np.empty(0, np.int64), *carried_out])
    at = 0
    for number, profile in enumerate(profiles):
        table = of_kernels(len(recorded) + number, profile, pool, at, number, names, communicators)
        tables.append(table.take(~np.isin(table.kernel, taken)))
        at += len(profile.kernels)
    if sum(map(len, tables)) == 0:
        where = [file.path for file in recorded] + [own.source.path for own in profiles]
        raise NothingToAnalyseError(
            f"{where[0]}: no communication operation of NCCL was recorded; record events with "
            "NCCL_PROFILE_EVENT_MASK=4095, or a profile with nsys profile -t cuda,nvtx"
        )
    return replace(
        joined([replace(t, names=(), communicators=()) for t in tables]),
        names=names.values,
        communicators=communicators.values,
    )


def _profile_clocks(
    profiles: Sequence[Carried],
) -> tuple[list[Clock], list[int], list[int]]:
    """Return the clock of each profile, what to add to its times, and a number of its machine."""
    sources = [profile.source for profile in profiles]
    machines = machines_of(sources)
    offsets_ns = [session.offset_ns for session in session_clocks(sources, machines)]
    clocks: list[Clock] = []
    for source, machine in zip(sources, machines, strict=True):
        anchor = sources[machines.index(machine)]
        timed = None not in (anchor.session_utc_ns, sources[0].session_utc_ns)
        by = "reference" if machine == machines[0] else "utc" if timed else "own"
        clocks.append(Clock(Path(source.path).name, by))
    numbers = {machine: number for number, machine in enumerate(dict.fromkeys(machines))}
    return clocks, offsets_ns, [numbers[machine] for machine in machines]


def _bases(
    placed: Placed,
    own: Sequence[Clock],
    hosts: Sequence[int],
    profiles: Sequence[Carried],
) -> tuple[tuple[Clock, ...], list[int]]:
    """Return the clocks of profiles, then of event files, and what each one ticks with.

    The first profile's host is 0; without a profile what is anchored is, or the first file.
    """
    ends = np.cumsum([len(profile.kernels) for profile in profiles])
    base = list(hosts)
    free = itertools.count(max(hosts, default=0) + 1)
    clocks = list(own)
    stated = any(clock.by == "anchor" for clock in placed.clocks)
    for number, clock in enumerate(placed.clocks):
        held = placed.kernel[(placed.clock == number) & (placed.kernel != NONE)]
        if clock.by == "anchor":
            base.append(0)
        elif len(held):
            base.append(hosts[int(np.searchsorted(ends, held[0], side="right"))])
        elif not clocks and not stated:
            clock = replace(clock, by="reference")  # noqa: PLW2901 - as it is kept
            base.append(0)
        else:
            base.append(next(free))
        clocks.append(clock)
    return tuple(clocks), base


def _with_shared(table: Communications) -> Communications:
    """Return the operations with how many have the same kernel, or the same times."""
    shared = np.ones(len(table), np.int64)
    timed = np.flatnonzero((table.start_ns != UNKNOWN) & (table.end_ns != UNKNOWN))
    if len(timed):
        columns = (table.clock, table.kernel, table.start_ns, table.end_ns)
        groups = groups_of(*(column[timed] for column in columns))
        shared[timed] = np.bincount(groups.of_row)[groups.of_row]
    return replace(table, shared=shared)


def _gpus(table: Communications, pool: KernelPool) -> tuple[Ints, Ints]:
    """Return the GPU of each operation's kernel, and the number of what that does; -1 none."""
    place_of = np.full(len(pool.start_ns) + 1, NONE, np.int64)
    for number, (_, first, last, _) in enumerate(pool.places):
        place_of[first:last] = number
    return place_of[table.kernel], np.append(pool.family, NONE)[table.kernel]


def _proxy_times(recorded: Sequence[EventFile], count: int) -> tuple[Ints, Ints]:
    """Return of each operation how long its proxy waits for the peer, and how long data moves."""
    found = []
    for name in ("peer_wait_ns", "transfer_ns"):
        told = [getattr(file.events, name) for file in recorded]
        column = np.concatenate([np.empty(0, np.int64), *told])
        found.append(np.concatenate((column, np.zeros(count - len(column), np.int64))))
    return found[0], found[1]


def _sizes(table: Communications, profiles: Sequence[Carried]) -> tuple[int | None, ...]:
    """Return how many ranks each communicator has: as told, else as seen; None for one alone."""
    told = {own: ranks for profile in profiles for own, ranks in profile.ranks}
    seen = np.zeros(len(table.communicators), np.int64)
    held = table.communicator != NONE
    for column in (table.rank, table.peer):
        np.maximum.at(seen, table.communicator[held], column[held] + 1)
    return tuple(
        told.get(own) or (ranks if ranks > 1 else None)
        for own, ranks in zip(table.communicators, seen.tolist(), strict=True)
    )


def _files(
    recorded: Sequence[EventFile], profiles: Sequence[Carried], table: Communications
) -> tuple[FileRead, ...]:
    rows = np.bincount(table.source, minlength=len(recorded) + len(profiles)).tolist()
    seen = [(file.path, file.format, file.seen) for file in recorded]
    seen += [(own.source.path, own.source.format, ()) for own in profiles]
    return tuple(
        FileRead(path, kind, count, events)
        for (path, kind, events), count in zip(seen, rows, strict=True)
    )
