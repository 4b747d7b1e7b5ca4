"""Alignment: the clocks of event files are aligned to the clocks of profiles by their kernels.

The operations of each GPU are matched with the kernels of a profile (:mod:`.kernel_matching`) by
the clock of the GPU if it was recorded, otherwise by the clock of the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl.communications import (
    SIZES,
    Alignment,
    Communications,
    RecordingClock,
    Timing,
    communications,
)
from bubbleviz.analyses.nccl.kernel_matching import (
    GPU_TOLERANCE_NS,
    HOST_TOLERANCE_NS,
    Match,
    match,
)
from bubbleviz.analyses.nccl.kernels import Kernels, Starts, family_of
from bubbleviz.model.columns import NONE, Ints, make_mask
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.sources.nccl.events import (
    MAX_DURATION_NS,
    UNKNOWN,
    EventFile,
    NcclEvents,
    OperationKind,
)

#: More elements than any operation has.
_MOST_COUNT = 1 << 59
#: Columns that stand in events as they do in operations.
_OF_EVENTS = (
    *("kind", "pid", "rank", "peer", "root", "sequence", "count", "channels", "state_ns"),
    "progress",
    *("name", "datatype", "algorithm", "protocol", "communicator"),
)
#: The thread that wrote a file ends its name: ``FILE-host-tid.txt``.
_THREAD = re.compile(r"-\d+(?=(\.[A-Za-z]+)?$)")


@dataclass(frozen=True)
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
        timing: code of :class:`.communications.Timing`.
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

    def places(self, pool: Kernels, taken: set[int]) -> list[int]:
        """Return the places that can be this GPU: those of its process, else all that are left.

        Of several hosts' equal processes, that of the host that the file is named after.
        """
        same = [at for at, (pid, *_) in enumerate(pool.places) if pid == self.pid]
        same = [at for at in same if f"-{pool.places[at][2]}-" in self.label] or same
        return [at for at in same or range(len(pool.places)) if at not in taken]

    def starts(self, pool: Kernels, time_ns: Ints) -> tuple[Ints, Starts]:
        """Return the operations that kernels can be, in order of time, and their places."""
        rows = np.flatnonzero(time_ns != UNKNOWN)
        rows = rows[np.argsort(time_ns[rows], kind="stable")]
        number = {name: place for place, name in enumerate(pool.families)}
        names = [number.get(family_of(name), NONE) for name in self.events.names]
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
    pairs = group_rows(events.pid[known], events.communicator[known], events.rank[known]).first
    rows = np.flatnonzero(known)[pairs]
    ranks = group_rows(events.pid[rows], events.communicator[rows])
    several = find_distinct(events.pid[rows][np.bincount(ranks.of_row)[ranks.of_row] > 1])
    apart = np.isin(events.pid, several)
    gpus = group_rows(
        events.pid, np.where(apart, events.communicator, NONE), np.where(apart, events.rank, NONE)
    )
    for group, first in enumerate(gpus.first.tolist()):
        pid = int(events.pid[first])
        rank = f" rank {events.rank[first]}" if apart[first] else ""
        label = f"{Path(file.path).name} {_process_label(pid)}{rank}".strip()
        yield _gpu(file, np.flatnonzero(gpus.of_row == group), pid, label)


def _gpu(file: EventFile, rows: Ints, pid: int, label: str) -> EventGpu:
    events = file.events
    of_gpu = make_mask(len(events), rows)
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
    return np.where((length_ns >= 0) & (length_ns <= MAX_DURATION_NS), length_ns, NONE)


def align_events(
    files: Sequence[EventFile], pool: Kernels
) -> tuple[list[Communications], list[RecordingClock], int]:
    """Return recorded operations, on the profiles' clock where theirs can be aligned.

    Args:
        files: event files.
        pool: kernels of the profiles.

    Returns:
        The operations of each file, whose ``gpu`` is a place of the profiles, else a number behind
        these; the clocks; and the number of operations whose clock several offsets put onto kernels
        equally well.
    """
    tables: list[Communications] = []
    clocks: list[RecordingClock] = []
    process_clocks: dict[tuple[str, int], int] = {}
    ambiguous, gpu_number = 0, len(pool.places)
    taken: set[int] = set()
    for source, file in enumerate(files):
        events, path = file.events, Path(file.path)
        columns: dict[str, Ints] = {name: getattr(events, name) for name in _OF_EVENTS}
        for name in ("start_ns", "end_ns", "duration_ns", "clock", "kernel", "gpu", "timing"):
            columns[name] = np.full(len(events), NONE)
        for gpu in _gpus_of(file):
            at = gpu.rows
            clock, several, start_ns, end_ns, columns["kernel"][at] = _aligned(gpu, pool, taken)
            ambiguous += len(at) if several else 0
            number = len(clocks)
            # The threads of a process share its profiler's clock.
            process = str(path.with_name(_THREAD.sub("", path.name))), gpu.pid
            if not clock.aligned:
                number = process_clocks.setdefault(process, number)
                clock = replace(clock, label=f"{path.name} {_process_label(gpu.pid)}")
            clocks += [clock] if number == len(clocks) else []
            columns["start_ns"][at], columns["end_ns"][at] = start_ns, end_ns
            columns["duration_ns"][at] = _durations(gpu, start_ns, end_ns)
            columns["clock"][at], columns["timing"][at] = number, gpu.timing
            matched = columns["kernel"][at]
            places = pool.place[matched[matched != NONE][:1]]
            columns["gpu"][at] = places[0] if len(places) else gpu_number
            gpu_number += 1
        element = np.array([SIZES.get(text, NONE) for text in (*events.names, "")], np.int64)
        size = element[events.datatype]
        sized = (events.count >= 0) & (size > 0) & (events.count < _MOST_COUNT)
        columns["bytes"] = np.where(sized, np.where(sized, events.count, 0) * size, events.payload)
        columns["source"] = np.full(len(events), source)
        tables.append(communications(len(events), columns, events.names, events.communicators))
    return tables, clocks, ambiguous


def _aligned(
    gpu: EventGpu, pool: Kernels, taken: set[int]
) -> tuple[RecordingClock, bool, Ints, Ints, Ints]:
    """Return the clock of a GPU, aligned by the kernels of a profile where these tell it.

    Also whether several offsets fit; and start, end and kernel of its operations, on the profiles'
    clock where it is aligned.
    """
    kernel = np.full(len(gpu.rows), NONE, np.int64)
    use_gpu = bool((gpu.gpu_ns != UNKNOWN).any())
    rows, starts = gpu.starts(pool, gpu.gpu_ns if use_gpu else gpu.start_ns)
    tolerance_ns = GPU_TOLERANCE_NS if use_gpu else HOST_TOLERANCE_NS
    found = [
        (candidate, at)
        for at in gpu.places(pool, taken)
        if (candidate := match(starts, pool.starts(at), tolerance_ns)) is not None
    ]
    clear = [pair for pair in found if pair[0][3]]
    if not clear:
        clock = RecordingClock(gpu.label, Alignment.UNALIGNED)
        return clock, bool(found), gpu.start_ns, gpu.end_ns, kernel
    (line, nearest, far_ns, _), at = max(clear, key=lambda pair: _quality(pair[0]))
    # The threads of a process with one GPU write files of their own.
    if sum(pid == gpu.pid for pid, *_ in pool.places) != 1:
        taken.add(at)
    first = int(np.searchsorted(pool.place, at))
    kernel[rows] = np.where(nearest == NONE, NONE, nearest + first)
    by = Alignment.KERNELS
    clock = RecordingClock.measured(gpu.label, by, len(rows), far_ns, line.drift)
    back_ns = gpu.bridge_ns if use_gpu else 0
    if back_ns is None:
        # The host's clock never meets the GPU's: what only the host saw has no time.
        return clock, False, line.of(gpu.gpu_ns), np.full(len(gpu.rows), UNKNOWN), kernel
    start_ns, end_ns = (
        line.of(np.where(t == UNKNOWN, UNKNOWN, t - back_ns)) for t in (gpu.start_ns, gpu.end_ns)
    )
    return clock, False, start_ns, end_ns, kernel


def _quality(found: Match) -> tuple[int, int]:
    far_ns = found[2]
    return len(far_ns), -round(float(np.median(far_ns))) if len(far_ns) else 0
