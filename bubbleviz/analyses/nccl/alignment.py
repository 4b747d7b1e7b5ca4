"""Alignment: the clocks of event files, put onto the profiles' by kernels or by anchors.

Of each GPU's operations the GPU's own clock is matched with the kernels of a profile where it was
recorded, else the host's (:mod:`~bubbleviz.analyses.nccl.matching`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl.kernel_pool import KernelPool, Starts
from bubbleviz.analyses.nccl.kernels import family_of
from bubbleviz.analyses.nccl.matching import (
    GPU_TOLERANCE_NS,
    HOST_TOLERANCE_NS,
    Match,
    beside,
    match,
)
from bubbleviz.analyses.nccl.members import Alignment, RecordingClock, Timing
from bubbleviz.analyses.nccl.offset_search import Anchor, by_file
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import LONGEST_NS, UNKNOWN, EventFile, NcclEvents, OperationKind

# Event GPUs: the operations of each GPU in an event file, and their times on its host's clock.
#
# A file holds host times since its process's profiler began, and GPU times of each GPU's own clock
# (``globaltimer``); the clocks of two GPUs of one host can be seconds apart. Where the host saw a
# kernel begin, the two meet: it saw that later, never earlier, so the smallest difference counts.


@frozen
class EventGpu:
    """The operations of one GPU in a file.

    Attributes:
        file: row of the files.
        rows: of the file's events.
        pid: the process.
        label: for people.
    """

    file: int
    rows: Ints
    pid: int
    label: str


@frozen
class LocalTimes:
    """Times of one GPU's operations on its host's clock, and on its own.

    Attributes:
        start_ns: start on the host's clock.
        end_ns: end on it.
        timing: code of :class:`~bubbleviz.analyses.nccl.members.Timing`.
        gpu_ns: start on the GPU's clock.
        bridge_ns: host's clock minus GPU's; None where they never meet.
    """

    start_ns: Ints
    end_ns: Ints
    timing: Ints
    gpu_ns: Ints
    bridge_ns: int | None


def gpus_of(files: Sequence[EventFile]) -> Iterator[EventGpu]:
    """Yield the GPUs of the files: each process has one, or one for each of its ranks.

    A process that is two ranks of one communicator has several.
    """
    for number, file in enumerate(files):
        events = file.events
        known = (events.communicator != NONE) & (events.rank != NONE)
        pairs = groups_of(events.pid[known], events.communicator[known], events.rank[known]).first
        rows = np.flatnonzero(known)[pairs]
        ranks = groups_of(events.pid[rows], events.communicator[rows])
        several = distinct(events.pid[rows][np.bincount(ranks.of_row)[ranks.of_row] > 1])
        apart = np.isin(events.pid, several)
        gpus = groups_of(
            events.pid,
            np.where(apart, events.communicator, NONE),
            np.where(apart, events.rank, NONE),
        )
        for group, first in enumerate(gpus.first.tolist()):
            pid = int(events.pid[first])
            rank = f" rank {events.rank[first]}" if apart[first] else ""
            label = f"{Path(file.path).name} {process_label(pid)}{rank}".strip()
            yield EventGpu(number, np.flatnonzero(gpus.of_row == group), pid, label)


def process_label(pid: int) -> str:
    """Return a process's label; "" where it is unknown."""
    return "" if pid == NONE else f"process {pid}"


def local_times(file: EventFile, rows: Ints) -> LocalTimes:
    """Return the times of one GPU's operations, rows of a file's events, on its host's clock."""
    events = file.events
    of_gpu = np.zeros(len(events), bool)
    of_gpu[rows] = True
    bridges = file.bridges.take(of_gpu[file.bridges.row])
    late_ns = bridges.host_ns - bridges.gpu_ns
    bridge_ns = int(late_ns.min()) if len(late_ns) else None
    start_ns, end_ns = events.host_start_ns[rows], np.full(len(rows), UNKNOWN)
    timing = np.full(len(rows), Timing.LAUNCH, np.int64)
    for kind, start, end in (
        (Timing.PROXY, events.proxy_start_ns[rows], events.proxy_end_ns[rows]),
        (Timing.HOST, events.kernel_start_ns[rows], events.kernel_end_ns[rows]),
    ):
        # A source with the end is better than one with the start alone.
        better = (start != UNKNOWN) & ((end != UNKNOWN) | (end_ns == UNKNOWN))
        better |= (start != UNKNOWN) & (timing == Timing.LAUNCH)
        start_ns, end_ns = np.where(better, start, start_ns), np.where(better, end, end_ns)
        timing = np.where(better, kind, timing)
    gpu_ns, stop_ns = events.gpu_start_ns[rows], events.gpu_end_ns[rows]
    if bridge_ns is not None:
        known = gpu_ns != UNKNOWN
        ended = known & (stop_ns != UNKNOWN)
        start_ns = np.where(known, gpu_ns + np.where(known, bridge_ns, 0), start_ns)
        end_ns = np.where(ended, stop_ns + np.where(ended, bridge_ns, 0), end_ns)
        timing = np.where(ended, Timing.GPU, timing)
    # An end before the start is no end.
    end_ns = np.where((end_ns != UNKNOWN) & (end_ns < start_ns), UNKNOWN, end_ns)
    return LocalTimes(start_ns, end_ns, timing.astype(np.int64), gpu_ns, bridge_ns)


def durations(events: NcclEvents, rows: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the durations of operations, on the GPU's clock where it saw both ends; -1 unknown."""

    def between(start: Ints, end: Ints) -> tuple[Bools, Ints]:
        known = (start != UNKNOWN) & (end != UNKNOWN)
        return known, np.where(known, end - np.where(known, start, 0), NONE)

    _, length_ns = between(start_ns, end_ns)
    seen, exact_ns = between(events.gpu_start_ns[rows], events.gpu_end_ns[rows])
    length_ns = np.where(seen, exact_ns, length_ns)
    possible = (length_ns >= 0) & (length_ns <= LONGEST_NS)
    return np.where(possible, length_ns, NONE)


#: The thread that wrote a file ends its name: ``FILE-host-tid.txt``.
_THREAD = re.compile(r"-\d+(?=(\.[A-Za-z]+)?$)")


@frozen
class EventTimes(Table):
    """When the operations of event files ran: one row each, in the order of the files.

    Attributes:
        start_ns: start on ``clock``.
        end_ns: end on it.
        duration_ns: from start to end; -1 unknown.
        timing: code of :class:`~bubbleviz.analyses.nccl.members.Timing`.
        clock: row of ``clocks``.
        kernel: row of all kernels of the profiles; -1 none.
        gpu: number of the GPU: of a place of the profiles, else a number behind these.
        clocks: of the event files.
        ambiguous: operations whose clock several offsets put onto kernels equally well.
    """

    start_ns: Ints
    end_ns: Ints
    duration_ns: Ints
    timing: Ints
    clock: Ints
    kernel: Ints
    gpu: Ints
    clocks: tuple[RecordingClock, ...] = field(metadata={"shared": True})
    ambiguous: int = field(metadata={"shared": True})


@frozen
class _AlignedGpu:
    """A GPU's clock on the profile's, and its operations' times and kernels."""

    clock: RecordingClock
    start_ns: Ints
    end_ns: Ints
    kernel: Ints


def align_events(
    files: Sequence[EventFile], pool: KernelPool, anchors: Sequence[Anchor]
) -> EventTimes:
    """Return the times of recorded operations, on the profiles' clock where theirs can be aligned.

    Args:
        files: event files.
        pool: kernels of the profiles.
        anchors: from the user.

    Raises:
        UsageError: an anchor names no file.
    """
    count = sum(len(file.events) for file in files)
    columns = {name: np.full(count, UNKNOWN) for name in ("start_ns", "end_ns")}
    columns |= {name: np.full(count, NONE) for name in ("duration_ns", "clock", "kernel", "gpu")}
    columns["timing"] = np.zeros(count, np.int64)
    begin = np.cumsum([0, *(len(file.events) for file in files)]).tolist()
    anchors_of = by_file(files, anchors)
    clocks: list[RecordingClock] = []
    process_clocks: dict[tuple[str, int], int] = {}
    ambiguous = 0
    taken: set[int] = set()
    for gpu_number, gpu in enumerate(gpus_of(files), len(pool.places)):
        file = files[gpu.file]
        local = local_times(file, gpu.rows)
        at = begin[gpu.file] + gpu.rows
        start_ns, end_ns = local.start_ns, local.end_ns
        aligned: _AlignedGpu | None
        if anchors_of[gpu.file]:
            aligned = _by_anchors(file.events, gpu, local, pool, taken, anchors_of[gpu.file])
        else:
            aligned, several = _by_kernels(file.events, gpu, local, pool, taken)
            ambiguous += len(gpu.rows) if several else 0
        if aligned is not None:
            start_ns, end_ns, columns["kernel"][at] = (
                aligned.start_ns,
                aligned.end_ns,
                aligned.kernel,
            )
            number = len(clocks)
            clocks.append(aligned.clock)
        else:
            # The threads of a process share its profiler's clock.
            path = Path(file.path)
            process = str(path.with_name(_THREAD.sub("", path.name))), gpu.pid
            if process not in process_clocks:
                process_clocks[process] = len(clocks)
                clocks.append(
                    RecordingClock(f"{path.name} {process_label(gpu.pid)}", Alignment.UNALIGNED)
                )
            number = process_clocks[process]
        columns["start_ns"][at], columns["end_ns"][at] = start_ns, end_ns
        columns["duration_ns"][at] = durations(file.events, gpu.rows, start_ns, end_ns)
        columns["clock"][at], columns["timing"][at] = number, local.timing
        matched = columns["kernel"][at]
        places = pool.place_of(matched[matched != NONE][:1])
        columns["gpu"][at] = places[0] if len(places) else gpu_number
    return EventTimes(**columns, clocks=tuple(clocks), ambiguous=ambiguous)


def _places(gpu: EventGpu, pool: KernelPool, taken: set[int]) -> list[int]:
    """Return the places that can be a GPU: those of its process, else all that are left.

    Of several hosts' equal processes, that of the host that the file is named after.
    """
    same = [at for at, place in enumerate(pool.places) if place.pid == gpu.pid]
    same = [at for at in same if f"-{pool.places[at].host}-" in gpu.label] or same
    return [at for at in same or range(len(pool.places)) if at not in taken]


def _starts(
    events: NcclEvents, gpu: EventGpu, local: LocalTimes, pool: KernelPool, time_ns: Ints
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


def _by_kernels(
    events: NcclEvents, gpu: EventGpu, local: LocalTimes, pool: KernelPool, taken: set[int]
) -> tuple[_AlignedGpu | None, bool]:
    """Return a GPU aligned by the kernels of a profile, and whether several offsets fit."""
    use_gpu = bool((local.gpu_ns != UNKNOWN).any())
    rows, starts = _starts(events, gpu, local, pool, local.gpu_ns if use_gpu else local.start_ns)
    tolerance_ns = GPU_TOLERANCE_NS if use_gpu else HOST_TOLERANCE_NS
    best: tuple[Match, int] | None = None
    several = False
    for at in _places(gpu, pool, taken):
        candidate = match(starts, pool.starts_of(pool.places[at]), tolerance_ns)
        if candidate is not None and not candidate.clear:
            several = True
        elif candidate is not None and (
            best is None
            or (candidate.matched, -candidate.median_ns) > (best[0].matched, -best[0].median_ns)
        ):
            best = candidate, at
    if best is None:
        return None, several
    matched, at = best
    # The threads of a process with one GPU write files of their own.
    if sum(place.pid == gpu.pid for place in pool.places) != 1:
        taken.add(at)
    return _moved(gpu, local, matched, rows, pool.places[at].first, use_gpu=use_gpu), False


def _moved(
    gpu: EventGpu, local: LocalTimes, matched: Match, rows: Ints, first: int, *, use_gpu: bool
) -> _AlignedGpu:
    """Return a GPU whose clock is moved by a match with the kernels from ``first`` on."""
    back_ns = local.bridge_ns if use_gpu else 0
    start_ns, end_ns = local.start_ns, local.end_ns
    if back_ns is None:
        # The host's clock never meets the GPU's: what only the host saw has no time.
        start_ns = matched.of(local.gpu_ns)
        end_ns = np.full(len(start_ns), UNKNOWN)
    else:
        start_ns, end_ns = (
            matched.of(np.where(t == UNKNOWN, UNKNOWN, t - back_ns)) for t in (start_ns, end_ns)
        )
    kernel = np.full(len(start_ns), NONE, np.int64)
    kernel[rows] = np.where(matched.kernel == NONE, NONE, matched.kernel + first)
    clock = RecordingClock(
        label=gpu.label,
        aligned_by=Alignment.KERNELS,
        matched=matched.matched,
        of=len(rows),
        median_ns=matched.median_ns,
        largest_ns=matched.largest_ns,
        drift_ppm=1e6 * matched.drift if matched.drift else None,
    )
    return _AlignedGpu(clock, start_ns, end_ns, kernel)


def _by_anchors(
    events: NcclEvents,
    gpu: EventGpu,
    local: LocalTimes,
    pool: KernelPool,
    taken: set[int],
    anchors: Sequence[Anchor],
) -> _AlignedGpu:
    """Return a GPU aligned by anchors.

    Its distances are those between operations and kernels where there are any, else those between
    the anchors.
    """
    kernel = np.full(len(gpu.rows), NONE, np.int64)
    clock, moved = _anchored_clock(gpu, local, anchors)
    if moved is None:
        none = np.full(len(gpu.rows), UNKNOWN)
        return _AlignedGpu(clock, none, none.copy(), kernel)
    start_ns, end_ns = moved.of(local.start_ns), moved.of(local.end_ns)
    rows, starts = _starts(events, gpu, local, pool, start_ns)
    best = 0
    for at in _places(gpu, pool, taken):
        nearest, distance_ns = beside(starts, pool.starts_of(pool.places[at]), HOST_TOLERANCE_NS)
        hit = nearest != NONE
        if int(hit.sum()) > best:
            best = int(hit.sum())
            kernel[rows] = np.where(hit, nearest + pool.places[at].first, NONE)
            far_ns = np.abs(distance_ns[hit])
            median_ns, largest_ns = round(float(np.median(far_ns))), int(far_ns.max())
            clock = replace(
                clock, matched=best, of=len(rows), median_ns=median_ns, largest_ns=largest_ns
            )
    return _AlignedGpu(clock, start_ns, end_ns, kernel)


def _anchored_clock(
    gpu: EventGpu, local: LocalTimes, anchors: Sequence[Anchor]
) -> tuple[RecordingClock, Match | None]:
    """Return a GPU's clock, and how anchors move it; None if they cannot."""
    from_ns, to_ns = [], []
    for anchor in anchors:
        if anchor.gpu and local.bridge_ns is None:
            continue
        from_ns.append(anchor.event_ns + (local.bridge_ns or 0 if anchor.gpu else 0))
        to_ns.append(anchor.profile_ns)
    if not from_ns:
        return RecordingClock(gpu.label, Alignment.UNALIGNED), None
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
        largest_ns=0,
        clear=True,
    )
    far_ns = np.abs(moved.of(np.array(from_ns)) - np.array(to_ns))
    clock = RecordingClock(
        label=gpu.label,
        aligned_by=Alignment.ANCHOR,
        matched=len(apart),
        of=len(apart),
        median_ns=round(float(np.median(far_ns))),
        largest_ns=int(far_ns.max()),
        drift_ppm=1e6 * drift if drift else None,
    )
    return clock, moved
