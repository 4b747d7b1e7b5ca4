"""Clocks of NCCL's event files, and how they come to lie on a profile's.

A file tells host times since its process's profiler began, and GPU times of each GPU's own clock
(``globaltimer``); the clocks of two GPUs of one host can be seconds apart. Where the host saw a
kernel begin, the two meet: it saw that later, never earlier, so the smallest difference counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl.anchors import Anchor, by_file
from bubbleviz.analyses.nccl.communications import Timing
from bubbleviz.analyses.nccl.kernels import Carried, family_of, said_by
from bubbleviz.analyses.nccl.matching import (
    GPU_TOLERANCE_NS,
    HOST_TOLERANCE_NS,
    Match,
    Starts,
    beside,
    match,
)
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.sources.nccl.events import LONGEST_NS, UNKNOWN, EventFile, NcclEvents, OperationKind

#: The thread that wrote a file ends its name: ``FILE-host-tid.txt``.
_THREAD = re.compile(r"-\d+(?=(\.[A-Za-z]+)?$)")


@dataclass(frozen=True)
class Clock:
    """A clock that recorded operations, and how it came to lie on the report's.

    Attributes:
        label: for people.
        by: ``reference``, ``kernels`` (matched with a profile's), ``anchor``, ``utc`` (of the
            profile's host), ``operations`` (ends of common ones), or ``own``: it is on no other.
        matched: operations, or kernels, by which it is placed.
        of: how many there could be.
        median_ns: what is left between pairs after that, median; None where there is no pair.
        worst_ns: the largest of it.
        drift_ppm: by how much it runs apart; None where none was fitted.
    """

    label: str
    by: str
    matched: int = 0
    of: int = 0
    median_ns: int | None = None
    worst_ns: int | None = None
    drift_ppm: float | None = None

    @property
    def placed(self) -> bool:
        """Whether its times are on the report's clock."""
        return self.by != "own"


@dataclass(frozen=True)
class Placed(Table):
    """When the operations of event files ran: one row each, in the order of the files.

    Attributes:
        start_ns: start on ``clock``.
        end_ns: end on it.
        duration_ns: from start to end; -1 unknown.
        timing: code of :class:`~bubbleviz.analyses.nccl.communications.Timing`.
        clock: row of ``clocks``.
        kernel: row of all kernels of the profiles; -1 none.
        clocks: of the event files.
        ambiguous: operations whose clock several offsets put onto kernels as well.
    """

    start_ns: Ints
    end_ns: Ints
    duration_ns: Ints
    timing: Ints
    clock: Ints
    kernel: Ints
    clocks: tuple[Clock, ...] = field(metadata={"shared": True})
    ambiguous: int = field(metadata={"shared": True})


@dataclass(frozen=True)
class _Local:
    """Times of one GPU's operations on its host's clock, and on its own.

    Attributes:
        start_ns: start on the host's clock.
        end_ns: end on it.
        timing: code of :class:`~bubbleviz.analyses.nccl.communications.Timing`.
        gpu_ns: start on the GPU's clock.
        bridge_ns: what the host's clock is ahead of the GPU's; None where they never meet.
    """

    start_ns: Ints
    end_ns: Ints
    timing: Ints
    gpu_ns: Ints
    bridge_ns: int | None


@dataclass(frozen=True)
class _Gpu:
    """The operations of one GPU in a file: rows of it, their process, and whose they are."""

    file: int
    rows: Ints
    pid: int
    label: str


@dataclass(frozen=True)
class _Found:
    """A GPU's clock, and its operations' times and kernels once it lies on the profile's."""

    clock: Clock
    start_ns: Ints
    end_ns: Ints
    kernel: Ints


@dataclass(frozen=True)
class KernelPool:
    """Kernels of all profiles, on the report's clock.

    Attributes:
        start_ns: start, in the order of the profiles.
        end_ns: end.
        places: by profile and place: process id, first kernel, the one after the last, host.
        family: number of what each does; -1 anything.
        families: these by name.
    """

    start_ns: Ints
    end_ns: Ints
    places: tuple[tuple[int, int, int, str], ...]
    family: Ints
    families: Mapping[str, int]

    def starts_of(self, place: int) -> Starts:
        """Return the kernels of a place."""
        held = slice(*self.places[place][1:3])
        length_ns = self.end_ns[held] - self.start_ns[held]
        return Starts(self.start_ns[held], self.family[held], length_ns)


def pool_of(profiles: Sequence[Carried], offsets_ns: Sequence[int]) -> KernelPool:
    """Return the kernels of profiles, each of whose clocks is so far behind the report's."""
    families: dict[str, int] = {}
    start, end, family = ([np.empty(0, np.int64)] for _ in range(3))
    places = []
    at = 0
    for profile, offset_ns in zip(profiles, offsets_ns, strict=True):
        kernels = profile.kernels
        start.append(kernels.start_ns + offset_ns)
        end.append(kernels.end_ns + offset_ns)
        names = [family_of(said_by(name)[0]) for name in kernels.names]
        numbers = [families.setdefault(n, len(families)) if n else NONE for n in names]
        family.append(np.array(numbers, np.int64)[kernels.name])
        for place, (pid, _) in enumerate(kernels.places):
            first, last = np.searchsorted(kernels.place, [place, place + 1]).tolist()
            places.append((pid, at + first, at + last, profile.source.host))
        at += len(kernels)
    return KernelPool(
        start_ns=np.concatenate(start),
        end_ns=np.concatenate(end),
        places=tuple(places),
        family=np.concatenate(family),
        families=families,
    )


def place(files: Sequence[EventFile], pool: KernelPool, anchors: Sequence[Anchor]) -> Placed:
    """Return when recorded operations ran, on the profiles' clock where that can be told.

    Args:
        files: event files.
        pool: kernels of the profiles.
        anchors: that were stated.

    Raises:
        UsageError: an anchor names no file.
    """
    count = sum(len(file.events) for file in files)
    columns = {name: np.full(count, UNKNOWN) for name in ("start_ns", "end_ns")}
    columns |= {name: np.full(count, NONE) for name in ("duration_ns", "clock", "kernel")}
    columns["timing"] = np.zeros(count, np.int64)
    begin = np.cumsum([0, *(len(file.events) for file in files)]).tolist()
    stated = by_file(files, anchors)
    clocks: list[Clock] = []
    shared: dict[tuple[str, int], int] = {}
    ambiguous = 0
    taken: set[int] = set()
    for gpu in _gpus(files):
        events = files[gpu.file].events
        local = _local(events, files[gpu.file], gpu.rows)
        at = begin[gpu.file] + gpu.rows
        start_ns, end_ns = local.start_ns, local.end_ns
        if stated[gpu.file]:
            found: _Found | None = _anchored(events, gpu, local, pool, taken, stated[gpu.file])
        else:
            found, several = _matched(events, gpu, local, pool, taken)
            ambiguous += len(gpu.rows) if several else 0
        if found is not None:
            start_ns, end_ns, columns["kernel"][at] = found.start_ns, found.end_ns, found.kernel
            number = len(clocks)
            clocks.append(found.clock)
        else:
            # The threads of a process share its profiler's clock.
            path = Path(files[gpu.file].path)
            key = str(path.with_name(_THREAD.sub("", path.name))), gpu.pid
            if key not in shared:
                shared[key] = len(clocks)
                clocks.append(Clock(f"{path.name} {_process(gpu.pid)}", "own"))
            number = shared[key]
        columns["start_ns"][at], columns["end_ns"][at] = start_ns, end_ns
        columns["duration_ns"][at] = _durations(events, gpu.rows, start_ns, end_ns)
        columns["clock"][at], columns["timing"][at] = number, local.timing
    return Placed(**columns, clocks=tuple(clocks), ambiguous=ambiguous)


def _durations(events: NcclEvents, rows: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return how long operations took: by the GPU's clock where it saw both ends; -1 unknown."""

    def between(start: Ints, end: Ints) -> tuple[Bools, Ints]:
        known = (start != UNKNOWN) & (end != UNKNOWN)
        return known, np.where(known, end - np.where(known, start, 0), NONE)

    _, length_ns = between(start_ns, end_ns)
    seen, exact_ns = between(events.gpu_start_ns[rows], events.gpu_end_ns[rows])
    length_ns = np.where(seen, exact_ns, length_ns)
    possible = (length_ns >= 0) & (length_ns <= LONGEST_NS)
    return np.where(possible, length_ns, NONE)


def _process(pid: int) -> str:
    return "" if pid == NONE else f"process {pid}"


def _gpus(files: Sequence[EventFile]) -> list[_Gpu]:
    """Return the GPUs of the files: each process has one, or one for each of its ranks.

    A process that is two ranks of one communicator has several.
    """
    found = []
    for number, file in enumerate(files):
        events = file.events
        told = (events.communicator != NONE) & (events.rank != NONE)
        pairs = groups_of(events.pid[told], events.communicator[told], events.rank[told]).first
        held = np.flatnonzero(told)[pairs]
        ranks = groups_of(events.pid[held], events.communicator[held])
        several = np.unique(events.pid[held][np.bincount(ranks.of_row)[ranks.of_row] > 1])
        apart = np.isin(events.pid, several)
        by = groups_of(
            events.pid,
            np.where(apart, events.communicator, NONE),
            np.where(apart, events.rank, NONE),
        )
        for group, first in enumerate(by.first.tolist()):
            pid = int(events.pid[first])
            rank = f" rank {events.rank[first]}" if apart[first] else ""
            label = f"{Path(file.path).name} {_process(pid)}{rank}".strip()
            found.append(_Gpu(number, np.flatnonzero(by.of_row == group), pid, label))
    return found


def _local(events: NcclEvents, file: EventFile, rows: Ints) -> _Local:
    """Return the times of one GPU's operations on its host's clock."""
    mine = np.zeros(len(events), bool)
    mine[rows] = True
    bridges = file.bridges.take(mine[file.bridges.row])
    late_ns = bridges.host_ns - bridges.gpu_ns
    bridge_ns = int(late_ns.min()) if len(late_ns) else None
    start_ns, end_ns = events.host_start_ns[rows], np.full(len(rows), UNKNOWN)
    timing = np.full(len(rows), Timing.LAUNCH, np.int64)
    for kind, start, end in (
        (Timing.PROXY, events.proxy_start_ns[rows], events.proxy_end_ns[rows]),
        (Timing.HOST, events.kernel_start_ns[rows], events.kernel_end_ns[rows]),
    ):
        # What saw the end tells more than what saw the start alone.
        better = (start != UNKNOWN) & ((end != UNKNOWN) | (end_ns == UNKNOWN))
        better |= (start != UNKNOWN) & (timing == Timing.LAUNCH)
        start_ns, end_ns = np.where(better, start, start_ns), np.where(better, end, end_ns)
        timing = np.where(better, kind, timing)
    gpu_ns, stop_ns = events.gpu_start_ns[rows], events.gpu_end_ns[rows]
    if bridge_ns is not None:
        told = gpu_ns != UNKNOWN
        ended = told & (stop_ns != UNKNOWN)
        start_ns = np.where(told, gpu_ns + np.where(told, bridge_ns, 0), start_ns)
        end_ns = np.where(ended, stop_ns + np.where(ended, bridge_ns, 0), end_ns)
        timing = np.where(ended, Timing.GPU, timing)
    # A kernel that was seen to end before it began tells no end.
    end_ns = np.where((end_ns != UNKNOWN) & (end_ns < start_ns), UNKNOWN, end_ns)
    return _Local(start_ns, end_ns, timing.astype(np.int64), gpu_ns, bridge_ns)


def _places(gpu: _Gpu, pool: KernelPool, taken: set[int]) -> list[int]:
    """Return the places that can be a GPU: those of its process, else all that are left.

    Of several hosts' equal processes, that of the host that the file is named after.
    """
    same = [at for at, own in enumerate(pool.places) if own[0] == gpu.pid]
    same = [at for at in same if f"-{pool.places[at][3]}-" in gpu.label] or same
    return [at for at in same or range(len(pool.places)) if at not in taken]


def _wanted(
    events: NcclEvents, gpu: _Gpu, local: _Local, pool: KernelPool, time_ns: Ints
) -> tuple[Ints, Starts]:
    """Return a GPU's operations that kernels can be, in order of time, and their rows."""
    rows = np.flatnonzero(time_ns != UNKNOWN)
    rows = rows[np.argsort(time_ns[rows], kind="stable")]
    names = [pool.families.get(family_of(name), NONE) for name in events.names]
    family = np.array([*names, NONE], np.int64)[events.name[gpu.rows[rows]]]
    # A proxy's sends and receives may be of any operation.
    known = (family >= 0) | (events.kind[gpu.rows[rows]] == OperationKind.PROXY)
    rows, family = rows[known], family[known]
    exact = (local.end_ns[rows] != UNKNOWN) & (local.timing[rows] == Timing.GPU)
    length_ns = np.where(exact, local.end_ns[rows] - local.start_ns[rows], NONE)
    return rows, Starts(time_ns[rows], family, length_ns)


def _matched(
    events: NcclEvents, gpu: _Gpu, local: _Local, pool: KernelPool, taken: set[int]
) -> tuple[_Found | None, bool]:
    """Return clock, times and kernels of a GPU's operations, and whether several offsets do."""
    use_gpu = bool((local.gpu_ns != UNKNOWN).any())
    rows, wanted = _wanted(events, gpu, local, pool, local.gpu_ns if use_gpu else local.start_ns)
    best: tuple[Match, int] | None = None
    several = False
    for at in _places(gpu, pool, taken):
        found = match(
            wanted, pool.starts_of(at), GPU_TOLERANCE_NS if use_gpu else HOST_TOLERANCE_NS
        )
        if found is not None and not found.clear:
            several = True
        elif found is not None and (
            best is None
            or (found.matched, -found.median_ns) > (best[0].matched, -best[0].median_ns)
        ):
            best = found, at
    if best is None:
        return None, several
    found, at = best
    # The threads of a process with one GPU write files of their own.
    if sum(own[0] == gpu.pid for own in pool.places) != 1:
        taken.add(at)
    return _moved(gpu, local, found, rows, pool.places[at][1], use_gpu=use_gpu), False


def _moved(
    gpu: _Gpu, local: _Local, found: Match, rows: Ints, first: int, *, use_gpu: bool
) -> _Found:
    """Return a GPU's clock, times and kernels, once it lies on the profile's."""
    back_ns = local.bridge_ns if use_gpu else 0
    start_ns, end_ns = local.start_ns, local.end_ns
    if back_ns is None:
        # The host's clock never meets the GPU's: what only the host saw has no time.
        start_ns = found.of(local.gpu_ns)
        end_ns = np.full(len(start_ns), UNKNOWN)
    else:
        start_ns, end_ns = (
            found.of(np.where(t == UNKNOWN, UNKNOWN, t - back_ns)) for t in (start_ns, end_ns)
        )
    kernel = np.full(len(start_ns), NONE, np.int64)
    kernel[rows] = np.where(found.kernel == NONE, NONE, found.kernel + first)
    clock = Clock(
        gpu.label,
        "kernels",
        found.matched,
        len(rows),
        found.median_ns,
        found.worst_ns,
        1e6 * found.drift if found.drift else None,
    )
    return _Found(clock, start_ns, end_ns, kernel)


def _anchored(
    events: NcclEvents,
    gpu: _Gpu,
    local: _Local,
    pool: KernelPool,
    taken: set[int],
    anchors: Sequence[Anchor],
) -> _Found:
    """Return a GPU's clock, times and kernels, by instants that were stated.

    What is left is that between operations and kernels where there are any, else that between
    the instants.
    """
    kernel = np.full(len(gpu.rows), NONE, np.int64)
    clock, moved = _stated(gpu, local, anchors)
    if moved is None:
        none = np.full(len(gpu.rows), UNKNOWN)
        return _Found(clock, none, none.copy(), kernel)
    start_ns, end_ns = moved.of(local.start_ns), moved.of(local.end_ns)
    rows, wanted = _wanted(events, gpu, local, pool, start_ns)
    best = 0
    for at in _places(gpu, pool, taken):
        found, distance_ns = beside(wanted, pool.starts_of(at), HOST_TOLERANCE_NS)
        hit = found != NONE
        if int(hit.sum()) > best:
            best = int(hit.sum())
            kernel[rows] = np.where(hit, found + pool.places[at][1], NONE)
            left = np.abs(distance_ns[hit])
            median_ns, worst_ns = round(float(np.median(left))), int(left.max())
            clock = replace(
                clock, matched=best, of=len(rows), median_ns=median_ns, worst_ns=worst_ns
            )
    return _Found(clock, start_ns, end_ns, kernel)


def _stated(gpu: _Gpu, local: _Local, anchors: Sequence[Anchor]) -> tuple[Clock, Match | None]:
    """Return the clock that anchors make, and how it lies on the profile's; None if it cannot."""
    from_ns, to_ns = [], []
    for anchor in anchors:
        if anchor.gpu and local.bridge_ns is None:
            continue
        from_ns.append(anchor.event_ns + (local.bridge_ns or 0 if anchor.gpu else 0))
        to_ns.append(anchor.profile_ns)
    if not from_ns:
        return Clock(gpu.label, "own"), None
    apart = np.array(to_ns) - np.array(from_ns)
    drift = 0.0
    if len(apart) > 1 and len(set(from_ns)) > 1:
        since = np.array(from_ns, float) - from_ns[0]
        drift = float(np.polyfit(since, (apart - apart[0]).astype(float), 1)[0])
    moved = Match(
        offset_ns=int(apart[0]) if drift else round(float(np.median(apart))),
        middle_ns=from_ns[0],
        drift=drift,
        kernel=np.empty(0, np.int64),
        matched=0,
        median_ns=0,
        worst_ns=0,
        clear=True,
    )
    left = np.abs(moved.of(np.array(from_ns)) - np.array(to_ns))
    clock = Clock(gpu.label, "anchor", len(apart), len(apart))
    clock = replace(
        clock,
        median_ns=round(float(np.median(left))),
        worst_ns=int(left.max()),
        drift_ppm=1e6 * drift if drift else None,
    )
    return clock, moved
