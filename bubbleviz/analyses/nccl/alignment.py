"""Alignment: the clocks of event files, put onto the profiles' by kernels or by anchors.

Of each GPU's operations the GPU's own clock is matched with the kernels of a profile where it was
recorded, else the host's (:mod:`~bubbleviz.analyses.nccl.matching`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl.kernels import KernelPool, Starts, family_of
from bubbleviz.analyses.nccl.matching import (
    GPU_TOLERANCE_NS,
    HOST_TOLERANCE_NS,
    ClockLine,
    Match,
    beside,
    match,
)
from bubbleviz.analyses.nccl.members import Alignment, RecordingClock, Timing
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import LONGEST_NS, UNKNOWN, EventFile, NcclEvents, OperationKind

#: A GPU's clock counts since 1970, a host's since its profiler began.
_GPU_CLOCK_NS = 10**15
#: Differences of times do not grow beyond what a column holds.
_MOST_NS = 1 << 62
#: The thread that wrote a file ends its name: ``FILE-host-tid.txt``.
_THREAD = re.compile(r"-\d+(?=(\.[A-Za-z]+)?$)")


@frozen
class Anchor:
    """An instant that a user gives on an event file's clock and on the profile's.

    Attributes:
        file: path of the event file, or the end of it; None for every one.
        event_ns: on the host's or the GPU's clock of the file.
        profile_ns: on the first profile's clock.
        gpu: whether ``event_ns`` is of the GPU's clock.
    """

    file: str | None
    event_ns: int
    profile_ns: int
    gpu: bool


def anchor_of(text: str) -> Anchor:
    """Return an anchor from ``[FILE:]EVENT=PROFILE_NS``.

    ``EVENT`` is a ``ts`` as it stands in the file (microseconds), or a ``StartGpuClk``.

    Raises:
        UsageError: it is not an anchor.
    """
    left, equals, right = text.rpartition("=")
    file, _, event = left.rpartition(":")
    try:
        if not equals:
            raise ValueError
        profile_ns = int(right)
        gpu = event.strip().isdigit() and int(event) >= _GPU_CLOCK_NS
        event_ns = int(event) if gpu else round(float(event) * 1000)
        if max(abs(event_ns), abs(profile_ns)) > _MOST_NS:
            raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(
            f"--anchor {text[:60]!r}: give [FILE:]EVENT=PROFILE_NS, where EVENT is a ts of the "
            "file, in microseconds, or a StartGpuClk"
        ) from None
    return Anchor(file or None, event_ns, profile_ns, gpu)


def _by_file(files: Sequence[EventFile], anchors: Sequence[Anchor]) -> list[list[Anchor]]:
    """Return the anchors of each file.

    Raises:
        UsageError: an anchor names no file, though there are several, or an unknown one.
    """
    if len(files) > 1 and any(anchor.file is None for anchor in anchors):
        raise UsageError(
            f"--anchor: there are {len(files)} event files, each with a clock of its own; say "
            "which, as FILE:EVENT=NS"
        )
    paths = [Path(file.path).as_posix() for file in files]
    for anchor in anchors:
        if not any(anchor.file is None or path.endswith(anchor.file) for path in paths):
            raise UsageError(
                f"--anchor: no event file is named {str(anchor.file)[:60]!r}; give one of them"
            )
    return [[a for a in anchors if a.file is None or path.endswith(a.file)] for path in paths]


@frozen
class EventGpu:
    """The operations of one GPU in a file, with their times on its host's clock and on its own.

    A file holds host times since its process's profiler began, and GPU times of each GPU's own
    clock (``globaltimer``); the clocks of two GPUs of one host can be seconds apart. Where the host
    saw a kernel begin, the two meet: it saw that later, never earlier, so the smallest difference
    counts.

    Attributes:
        events: of the file.
        rows: of these events.
        pid: the process.
        label: for people.
        start_ns: start on the host's clock.
        end_ns: end on it.
        timing: code of :class:`~bubbleviz.analyses.nccl.members.Timing`.
        gpu_ns: start on the GPU's clock.
        bridge_ns: host's clock minus GPU's; None where they never meet.
    """

    events: NcclEvents
    rows: Ints
    pid: int
    label: str
    start_ns: Ints
    end_ns: Ints
    timing: Ints
    gpu_ns: Ints
    bridge_ns: int | None

    def places(self, pool: KernelPool, taken: set[int]) -> list[int]:
        """Return the places that can be this GPU: those of its process, else all that are left.

        Of several hosts' equal processes, that of the host that the file is named after.
        """
        same = [at for at, place in enumerate(pool.places) if place.pid == self.pid]
        same = [at for at in same if f"-{pool.places[at].host}-" in self.label] or same
        return [at for at in same or range(len(pool.places)) if at not in taken]

    def starts(self, pool: KernelPool, time_ns: Ints) -> tuple[Ints, Starts]:
        """Return the operations that kernels can be, in order of time, and their places."""
        rows = np.flatnonzero(time_ns != UNKNOWN)
        rows = rows[np.argsort(time_ns[rows], kind="stable")]
        names = [pool.families.get(family_of(name), NONE) for name in self.events.names]
        family = np.array([*names, NONE], np.int64)[self.events.name[self.rows[rows]]]
        # A proxy's sends and receives may be of any operation.
        known = (family >= 0) | (self.events.kind[self.rows[rows]] == OperationKind.PROXY)
        rows, family = rows[known], family[known]
        exact = (self.end_ns[rows] != UNKNOWN) & (self.timing[rows] == Timing.GPU)
        length_ns = np.where(exact, self.end_ns[rows] - self.start_ns[rows], NONE)
        return rows, Starts(time_ns[rows], family, length_ns)


def _gpus_of(file: EventFile) -> Iterator[EventGpu]:
    """Yield the GPUs of a file: each process has one, or one for each of its ranks.

    A process that is two ranks of one communicator has several.
    """
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
        label = f"{Path(file.path).name} {_process_label(pid)}{rank}".strip()
        yield _gpu(file, np.flatnonzero(gpus.of_row == group), pid, label)


def _gpu(file: EventFile, rows: Ints, pid: int, label: str) -> EventGpu:
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
    timing = timing.astype(np.int64)
    return EventGpu(events, rows, pid, label, start_ns, end_ns, timing, gpu_ns, bridge_ns)


def _process_label(pid: int) -> str:
    """Return a process's label; "" where it is unknown."""
    return "" if pid == NONE else f"process {pid}"


def _durations(gpu: EventGpu, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the durations of operations, on the GPU's clock where it saw both ends; -1 unknown."""
    length_ns = np.full(len(start_ns), NONE)
    stop_ns = gpu.events.gpu_end_ns[gpu.rows]
    for begin, end in ((start_ns, end_ns), (gpu.gpu_ns, stop_ns)):
        seen = (begin != UNKNOWN) & (end != UNKNOWN)
        length_ns = np.where(seen, end - np.where(seen, begin, 0), length_ns)
    return np.where((length_ns >= 0) & (length_ns <= LONGEST_NS), length_ns, NONE)


#: A GPU's clock, and start, end and kernel of its operations on the profiles' clock.
_Aligned = tuple[RecordingClock, Ints, Ints, Ints]


def align_events(
    files: Sequence[EventFile], pool: KernelPool, anchors: Sequence[Anchor]
) -> tuple[Mapping[str, Ints], tuple[RecordingClock, ...], int]:
    """Return the times of recorded operations, on the profiles' clock where theirs can be aligned.

    Args:
        files: event files.
        pool: kernels of the profiles.
        anchors: from the user.

    Returns:
        Columns of :class:`~bubbleviz.analyses.nccl.members.Communications`, one row an operation
        in the order of the files: ``start_ns``, ``end_ns``, ``duration_ns``, ``timing``, ``clock``,
        ``kernel``, ``gpu`` (a place of the profiles, else a number behind these); the clocks;
        and the number of operations whose clock several offsets put onto kernels equally well.

    Raises:
        UsageError: an anchor names no file.
    """
    count = sum(len(file.events) for file in files)
    columns = {name: np.full(count, UNKNOWN) for name in ("start_ns", "end_ns")}
    columns |= {name: np.full(count, NONE) for name in ("duration_ns", "clock", "kernel", "gpu")}
    columns["timing"] = np.zeros(count, np.int64)
    clocks: list[RecordingClock] = []
    process_clocks: dict[tuple[str, int], int] = {}
    ambiguous, begin, gpu_number = 0, 0, len(pool.places)
    taken: set[int] = set()
    for file, anchors_of_file in zip(files, _by_file(files, anchors), strict=True):
        for gpu in _gpus_of(file):
            at = begin + gpu.rows
            aligned: _Aligned | None
            if anchors_of_file:
                aligned = _by_anchors(gpu, pool, taken, anchors_of_file)
            else:
                aligned, several = _by_kernels(gpu, pool, taken)
                ambiguous += len(gpu.rows) if several else 0
            number = len(clocks)
            if aligned is not None:
                clock, start_ns, end_ns, columns["kernel"][at] = aligned
                clocks.append(clock)
            else:
                # The threads of a process share its profiler's clock.
                start_ns, end_ns, path = gpu.start_ns, gpu.end_ns, Path(file.path)
                process = str(path.with_name(_THREAD.sub("", path.name))), gpu.pid
                if process not in process_clocks:
                    label = f"{path.name} {_process_label(gpu.pid)}"
                    process_clocks[process] = number
                    clocks.append(RecordingClock(label, Alignment.UNALIGNED))
                number = process_clocks[process]
            columns["start_ns"][at], columns["end_ns"][at] = start_ns, end_ns
            columns["duration_ns"][at] = _durations(gpu, start_ns, end_ns)
            columns["clock"][at], columns["timing"][at] = number, gpu.timing
            matched = columns["kernel"][at]
            places = pool.place_of(matched[matched != NONE][:1])
            columns["gpu"][at] = places[0] if len(places) else gpu_number
            gpu_number += 1
        begin += len(file.events)
    return columns, tuple(clocks), ambiguous


def _by_kernels(gpu: EventGpu, pool: KernelPool, taken: set[int]) -> tuple[_Aligned | None, bool]:
    """Return a GPU aligned by the kernels of a profile, and whether several offsets fit."""
    use_gpu = bool((gpu.gpu_ns != UNKNOWN).any())
    rows, starts = gpu.starts(pool, gpu.gpu_ns if use_gpu else gpu.start_ns)
    tolerance_ns = GPU_TOLERANCE_NS if use_gpu else HOST_TOLERANCE_NS
    best: tuple[Match, int] | None = None
    several = False
    for at in gpu.places(pool, taken):
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
    back_ns = gpu.bridge_ns if use_gpu else 0
    if back_ns is None:
        # The host's clock never meets the GPU's: what only the host saw has no time.
        start_ns, end_ns = matched.of(gpu.gpu_ns), np.full(len(gpu.rows), UNKNOWN)
    else:
        start_ns, end_ns = (
            matched.of(np.where(t == UNKNOWN, UNKNOWN, t - back_ns))
            for t in (gpu.start_ns, gpu.end_ns)
        )
    kernel = np.full(len(start_ns), NONE, np.int64)
    kernel[rows] = np.where(matched.kernel == NONE, NONE, matched.kernel + pool.places[at].first)
    clock = RecordingClock(
        label=gpu.label,
        aligned_by=Alignment.KERNELS,
        matched=matched.matched,
        of=len(rows),
        median_ns=matched.median_ns,
        largest_ns=matched.largest_ns,
        drift_ppm=1e6 * matched.drift if matched.drift else None,
    )
    return (clock, start_ns, end_ns, kernel), False


def _by_anchors(
    gpu: EventGpu, pool: KernelPool, taken: set[int], anchors: Sequence[Anchor]
) -> _Aligned:
    """Return a GPU aligned by anchors.

    Its distances are those between operations and kernels where there are any, else those between
    the anchors.
    """
    kernel = np.full(len(gpu.rows), NONE, np.int64)
    usable = [anchor for anchor in anchors if not anchor.gpu or gpu.bridge_ns is not None]
    if not usable:
        none = np.full(len(gpu.rows), UNKNOWN)
        return RecordingClock(gpu.label, Alignment.UNALIGNED), none, none.copy(), kernel
    from_ns = [a.event_ns + (gpu.bridge_ns or 0 if a.gpu else 0) for a in usable]
    to_ns = np.array([anchor.profile_ns for anchor in usable])
    apart = to_ns - np.array(from_ns)
    drift = 0.0
    if len(set(from_ns)) > 1:
        since = np.array(from_ns, float) - from_ns[0]
        drift = float(np.polyfit(since, (apart - apart[0]).astype(float), 1)[0])
    offset_ns = int(apart[0]) if drift else round(float(np.median(apart)))
    line = ClockLine(offset_ns, from_ns[0], drift)
    far_ns = np.abs(line.of(np.array(from_ns)) - to_ns)
    clock = RecordingClock(
        label=gpu.label,
        aligned_by=Alignment.ANCHOR,
        matched=len(apart),
        of=len(apart),
        median_ns=round(float(np.median(far_ns))),
        largest_ns=int(far_ns.max()),
        drift_ppm=1e6 * drift if drift else None,
    )
    start_ns, end_ns = line.of(gpu.start_ns), line.of(gpu.end_ns)
    rows, starts = gpu.starts(pool, start_ns)
    best = 0
    for at in gpu.places(pool, taken):
        place = pool.places[at]
        nearest, distance_ns = beside(starts, pool.starts_of(place), HOST_TOLERANCE_NS)
        hit = nearest != NONE
        if int(hit.sum()) > best:
            best = int(hit.sum())
            kernel[rows] = np.where(hit, nearest + place.first, NONE)
            far_ns = np.abs(distance_ns[hit])
            clock = replace(
                clock,
                matched=best,
                of=len(rows),
                median_ns=round(float(np.median(far_ns))),
                largest_ns=int(far_ns.max()),
            )
    return clock, start_ns, end_ns, kernel
