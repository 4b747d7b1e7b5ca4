"""Aligns the clocks of event files to the clocks of profiles by matching kernels.

The operations of each GPU are matched with the kernels in a profile (:mod:`.kernel_matching`). The
GPU's clock is used if it was recorded, otherwise the host's clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bubbleviz.analyses.nccl.communications import (
    SIZES,
    Alignment,
    Communications,
    RecordingClock,
    Timing,
    make_communications,
)
from bubbleviz.analyses.nccl.kernel_matching import (
    GPU_TOLERANCE_NS,
    HOST_TOLERANCE_NS,
    ClockLine,
    Match,
    match_starts,
)
from bubbleviz.analyses.nccl.kernels import Kernels, Starts, get_family
from bubbleviz.model.columns import NONE, Bools, Ints, make_mask
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.sources.nccl.events import (
    MAX_DURATION_NS,
    UNKNOWN,
    EventFile,
    NcclEvents,
    OperationKind,
)

#: Upper bound for the number of elements in an operation. Larger numbers come from damaged files.
_MAX_COUNT = 1 << 59
#: Event columns that are copied to operations unchanged.
_EVENT_COLUMNS = (
    *("kind", "pid", "rank", "peer", "root", "sequence", "count", "channels", "state_ns"),
    "progress",
    *("name", "datatype", "algorithm", "protocol", "communicator"),
)
#: Matches the thread id at the end of an event file's name, as in ``FILE-host-tid.txt``.
_THREAD = re.compile(r"-\d+(?=(\.[A-Za-z]+)?$)")


@dataclass(frozen=True)
class EventGpu:
    """The operations of one GPU in an event file, timed on both the host's and the GPU's clock.

    Host times are relative to the start of the process's profiler. GPU times are from the GPU's
    clock (``globaltimer``). Even within one host, the clocks of two GPUs can differ by seconds.

    The difference between the host clock and the GPU clock is measured at kernels whose start the
    host observed. The host may observe a start late, but never early, so the smallest difference is
    used.

    Attributes:
        events: Events read from the file.
        rows: Rows of the events that belong to this GPU.
        pid: Process id.
        label: Display name.
        start_ns: Start times on the host's clock.
        end_ns: End times on the host's clock.
        timing: Source of the times, a code of :class:`.communications.Timing`.
        gpu_ns: Start times on the GPU's clock.
        bridge_ns: Host clock minus GPU clock in ns, or None if the difference is unknown.
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

    def list_places(self, pool: Kernels, used: set[int]) -> list[int]:
        """List the unused places in the profiles that may correspond to this GPU.

        Places with the GPU's process id are listed. If the file name contains the hostname of any
        of these places, only the places on that host are listed. If no place has the process id,
        all unused places are listed.
        """
        of_process = [place for place, (pid, *_) in enumerate(pool.places) if pid == self.pid]
        of_host = [place for place in of_process if f"-{pool.places[place][2]}-" in self.label]
        candidates = of_host or of_process or range(len(pool.places))
        return [place for place in candidates if place not in used]

    def select_starts(self, pool: Kernels, time_ns: Ints) -> tuple[Ints, Starts]:
        """Select the operations that can be matched with kernels, sorted by time.

        Operations are left out if the profiles contain no kernel of their family. Operations of
        proxy threads are kept, because they may belong to any family.

        Args:
            pool: Kernels in the profiles.
            time_ns: Start time of each operation on the clock to be aligned.

        Returns:
            rows: Indices into ``self.rows``.
            starts: Start, family and length of each selected operation. Only lengths measured on
                the GPU's clock are known.
        """
        rows = np.flatnonzero(time_ns != UNKNOWN)
        rows = rows[np.argsort(time_ns[rows], kind="stable")]
        family_index = {name: index for index, name in enumerate(pool.families)}
        families = [family_index.get(get_family(name), NONE) for name in self.events.names]
        family = np.array([*families, NONE], np.int64)[self.events.name[self.rows[rows]]]
        is_proxy = self.events.kind[self.rows[rows]] == OperationKind.PROXY
        can_match = (family >= 0) | is_proxy
        rows, family = rows[can_match], family[can_match]
        has_length = (self.end_ns[rows] != UNKNOWN) & (self.timing[rows] == Timing.GPU)
        length_ns = np.where(has_length, self.end_ns[rows] - self.start_ns[rows], NONE)
        return rows, Starts(time_ns[rows], family, length_ns)


def _split_by_gpu(file: EventFile) -> Iterator[EventGpu]:
    """Split the events in a file by GPU.

    If several ranks of a process belong to the same communicator, each rank has a separate GPU.
    Otherwise, the process has one GPU.
    """
    events = file.events
    by_rank = _mask_multi_gpu_processes(events)
    gpus = group_rows(
        events.pid,
        np.where(by_rank, events.communicator, NONE),
        np.where(by_rank, events.rank, NONE),
    )
    for group, first in enumerate(gpus.first.tolist()):
        pid = int(events.pid[first])
        rank = f" rank {events.rank[first]}" if by_rank[first] else ""
        label = f"{Path(file.path).name} {_format_process(pid)}{rank}".strip()
        yield _make_gpu(file, np.flatnonzero(gpus.of_row == group), pid, label)


def _mask_multi_gpu_processes(events: NcclEvents) -> Bools:
    """Return a mask of the events whose process has several ranks in one communicator."""
    member_rows = np.flatnonzero((events.communicator != NONE) & (events.rank != NONE))
    members = group_rows(
        events.pid[member_rows], events.communicator[member_rows], events.rank[member_rows]
    )
    rows = member_rows[members.first]
    pairs = group_rows(events.pid[rows], events.communicator[rows])
    has_several_ranks = np.bincount(pairs.of_row)[pairs.of_row] > 1
    several_ranks_pids = find_distinct(events.pid[rows][has_several_ranks])
    return np.asarray(np.isin(events.pid, several_ranks_pids), bool)


def _make_gpu(file: EventFile, rows: Ints, pid: int, label: str) -> EventGpu:
    """Collect the times of a GPU's operations, each from the best source that recorded it.

    The sources are, from best to worst:

    - the GPU's clock,
    - the kernel, as the host observed it,
    - the proxy thread, as the host observed it,
    - the launch on the host.

    A source with both start and end is preferred over a source without an end.

    Args:
        file: The event file.
        rows: Rows of the GPU's events.
        pid: Process id.
        label: Display name.
    """
    events = file.events
    bridge_ns = _measure_bridge(file, rows)
    start_ns, end_ns, timing = _choose_host_times(events, rows)
    gpu_start_ns, gpu_end_ns = events.gpu_start_ns[rows], events.gpu_end_ns[rows]
    if bridge_ns is not None:
        has_start = gpu_start_ns != UNKNOWN
        has_both = has_start & (gpu_end_ns != UNKNOWN)
        start_ns = np.where(has_start, gpu_start_ns + np.where(has_start, bridge_ns, 0), start_ns)
        end_ns = np.where(has_both, gpu_end_ns + np.where(has_both, bridge_ns, 0), end_ns)
        timing = np.where(has_both, Timing.GPU, timing)
    has_duration = events.duration_ns[rows] >= 0
    duration_timing = np.where(events.is_host_duration[rows] > 0, Timing.HOST, Timing.GPU)
    timing = np.where(has_duration, duration_timing, timing)
    # An end time before the start time is invalid.
    end_ns = np.where((end_ns != UNKNOWN) & (end_ns < start_ns), UNKNOWN, end_ns)
    return EventGpu(
        events, rows, pid, label, start_ns, end_ns, timing.astype(np.int64), gpu_start_ns, bridge_ns
    )


def _choose_host_times(events: NcclEvents, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Choose the best recorded times of each operation on the host's clock.

    Kernel times are preferred over proxy thread times, which are preferred over launch times. A
    source with both start and end is preferred over a source without an end.

    Args:
        events: Events read from one file.
        rows: Rows of the operations.

    Returns:
        start_ns: Start time of each operation.
        end_ns: End time, or ``UNKNOWN``.
        timing: Source of the times, a code of :class:`.communications.Timing`.
    """
    start_ns, end_ns = events.host_start_ns[rows], np.full(len(rows), UNKNOWN)
    timing = np.full(len(rows), Timing.LAUNCH, np.int64)
    for kind, source_start_ns, source_end_ns in (
        (Timing.PROXY, events.proxy_start_ns[rows], events.proxy_end_ns[rows]),
        (Timing.HOST, events.kernel_start_ns[rows], events.kernel_end_ns[rows]),
    ):
        is_better = (source_end_ns != UNKNOWN) | (end_ns == UNKNOWN) | (timing == Timing.LAUNCH)
        is_better &= source_start_ns != UNKNOWN
        start_ns = np.where(is_better, source_start_ns, start_ns)
        end_ns = np.where(is_better, source_end_ns, end_ns)
        timing = np.where(is_better, kind, timing)
    return start_ns, end_ns, timing


def _measure_bridge(file: EventFile, rows: Ints) -> int | None:
    """Return the smallest recorded difference "host clock minus GPU clock" in ns, or None."""
    of_gpu = make_mask(len(file.events), rows)
    bridges = file.bridges.take(of_gpu[file.bridges.row])
    difference_ns = bridges.host_ns - bridges.gpu_ns
    return int(difference_ns.min()) if len(difference_ns) else None


def _format_process(pid: int) -> str:
    """Return the display label of a process, or "" if unknown."""
    return "" if pid == NONE else f"process {pid}"


def _measure_durations(gpu: EventGpu, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the duration of each operation in ns, or -1 if unknown.

    A recorded duration is used first, then the GPU's clock if it recorded start and end, then the
    given times. Durations that are negative or longer than ``MAX_DURATION_NS`` are treated as
    unknown.
    """
    duration_ns = np.full(len(start_ns), NONE)
    gpu_end_ns = gpu.events.gpu_end_ns[gpu.rows]
    for low_ns, high_ns in ((start_ns, end_ns), (gpu.gpu_ns, gpu_end_ns)):
        has_both = (low_ns != UNKNOWN) & (high_ns != UNKNOWN)
        duration_ns = np.where(has_both, high_ns - np.where(has_both, low_ns, 0), duration_ns)
    recorded_ns = gpu.events.duration_ns[gpu.rows]
    duration_ns = np.where(recorded_ns >= 0, recorded_ns, duration_ns)
    return np.where((duration_ns >= 0) & (duration_ns <= MAX_DURATION_NS), duration_ns, NONE)


def align_events(
    files: Sequence[EventFile], pool: Kernels
) -> tuple[list[Communications], list[RecordingClock], int]:
    """Convert the operations in event files to the clock of the profiles.

    The clock of each GPU is aligned by matching the GPU's operations with kernels in the profiles.
    If no kernels match, the operations keep the clock of their process, because all threads of a
    process share the profiler's clock.

    Args:
        files: The event files.
        pool: Kernels in the profiles.

    Returns:
        tables: Operations from each file. The column ``gpu`` is an index into ``pool.places``, or a
            larger number if the GPU is in no profile.
        clocks: Clocks to which the column ``clock`` refers.
        n_ambiguous: Number of operations whose clock matches the kernels at several offsets.
    """
    tables: list[Communications] = []
    clocks: list[RecordingClock] = []
    process_clocks: dict[tuple[str, int], int] = {}
    n_ambiguous, next_gpu = 0, len(pool.places)
    used_places: set[int] = set()
    for source, file in enumerate(files):
        events, path = file.events, Path(file.path)
        columns: dict[str, Ints] = {name: getattr(events, name) for name in _EVENT_COLUMNS}
        for name in ("start_ns", "end_ns", "duration_ns", "clock", "kernel", "gpu", "timing"):
            columns[name] = np.full(len(events), NONE)
        for gpu in _split_by_gpu(file):
            rows, aligned = gpu.rows, _align_gpu(gpu, pool, used_places)
            n_ambiguous += len(rows) if aligned.is_ambiguous else 0
            clock, clock_index = aligned.clock, len(clocks)
            if not clock.aligned:
                process = str(path.with_name(_THREAD.sub("", path.name))), gpu.pid
                clock_index = process_clocks.setdefault(process, clock_index)
                clock = replace(clock, label=f"{path.name} {_format_process(gpu.pid)}")
            if clock_index == len(clocks):
                clocks.append(clock)
            columns["kernel"][rows] = aligned.kernel
            columns["start_ns"][rows], columns["end_ns"][rows] = aligned.start_ns, aligned.end_ns
            columns["duration_ns"][rows] = _measure_durations(gpu, aligned.start_ns, aligned.end_ns)
            columns["clock"][rows], columns["timing"][rows] = clock_index, gpu.timing
            matched_kernels = aligned.kernel[aligned.kernel != NONE]
            columns["gpu"][rows] = (
                pool.gpu_index[matched_kernels[0]] if len(matched_kernels) else next_gpu
            )
            next_gpu += 1
        columns["bytes"] = _count_bytes(events)
        columns["source"] = np.full(len(events), source)
        tables.append(make_communications(len(events), columns, events.names, events.communicators))
    return tables, clocks, n_ambiguous


def _count_bytes(events: NcclEvents) -> Ints:
    """Return each event's bytes: elements times element size, or else the recorded payload."""
    sizes = np.array([SIZES.get(text, NONE) for text in (*events.names, "")], np.int64)
    element_size = sizes[events.datatype]
    is_known = (events.count >= 0) & (element_size > 0) & (events.count < _MAX_COUNT)
    return np.where(is_known, np.where(is_known, events.count, 0) * element_size, events.payload)


class _AlignedGpu(NamedTuple):
    """The operations of a GPU after aligning its clock.

    Attributes:
        clock: The clock, which is unaligned if no profile has matching kernels.
        is_ambiguous: Whether the clock could not be aligned because more than one offset matches.
        start_ns: Start times, on the profiles' clock if the clock is aligned.
        end_ns: End times on the same clock.
        kernel: Row of the kernel that each operation matches, or -1 if there is none.
    """

    clock: RecordingClock
    is_ambiguous: bool
    start_ns: Ints
    end_ns: Ints
    kernel: Ints


def _align_gpu(gpu: EventGpu, pool: Kernels, used_places: set[int]) -> _AlignedGpu:
    """Align the clock of a GPU with the profile whose kernels match its operations best.

    Only clear matches are considered. The match with the most pairs wins. On ties, the match with
    the smallest median distance wins. If there is no clear match, the clock stays unaligned. If the
    GPU's clock was matched but its offset to the host's clock is unknown, only start times from the
    GPU's clock are kept.

    Args:
        gpu: The GPU and its operations.
        pool: Kernels in the profiles.
        used_places: Indices in ``pool.places`` that other GPUs have already matched, changed in
            place. The place of this GPU is added, unless its process has only one place.
    """
    kernel = np.full(len(gpu.rows), NONE, np.int64)
    use_gpu_clock = bool((gpu.gpu_ns != UNKNOWN).any())
    rows, starts = gpu.select_starts(pool, gpu.gpu_ns if use_gpu_clock else gpu.start_ns)
    tolerance_ns = GPU_TOLERANCE_NS if use_gpu_clock else HOST_TOLERANCE_NS
    matches = [
        (match, gpu_index)
        for gpu_index in gpu.list_places(pool, used_places)
        if (match := match_starts(starts, pool.select_starts(gpu_index), tolerance_ns)) is not None
    ]
    clear_matches = [pair for pair in matches if pair[0].is_clear]
    if not clear_matches:
        clock = RecordingClock(gpu.label, Alignment.UNALIGNED)
        return _AlignedGpu(clock, bool(matches), gpu.start_ns, gpu.end_ns, kernel)
    match, gpu_index = max(clear_matches, key=lambda pair: _score_match(pair[0]))
    # The threads of a process with one GPU write separate files, which share a place.
    if sum(pid == gpu.pid for pid, *_ in pool.places) != 1:
        used_places.add(gpu_index)
    first_kernel = int(np.searchsorted(pool.gpu_index, gpu_index))
    kernel[rows] = np.where(match.kernel == NONE, NONE, match.kernel + first_kernel)
    clock = RecordingClock.measured(
        gpu.label, Alignment.KERNELS, len(rows), match.distance_ns, match.line.drift
    )
    times_ns = _convert_times(gpu, match.line, use_gpu_clock=use_gpu_clock)
    return _AlignedGpu(clock, False, *times_ns, kernel)


def _convert_times(gpu: EventGpu, line: ClockLine, *, use_gpu_clock: bool) -> tuple[Ints, Ints]:
    """Convert the start and end times of operations to the profiles' clock.

    Args:
        gpu: The GPU and its operations.
        line: Map from the matched clock to the profiles' clock.
        use_gpu_clock: Whether the GPU's clock was matched instead of the host's clock.
    """
    bridge_ns = gpu.bridge_ns if use_gpu_clock else 0
    if bridge_ns is None:
        # The host's clock cannot be related to the GPU's, so only GPU times are known.
        return line.convert(gpu.gpu_ns), np.full(len(gpu.rows), UNKNOWN)
    start_ns, end_ns = (
        line.convert(np.where(time_ns == UNKNOWN, UNKNOWN, time_ns - bridge_ns))
        for time_ns in (gpu.start_ns, gpu.end_ns)
    )
    return start_ns, end_ns


def _score_match(match: Match) -> tuple[int, int]:
    """Return a key that is larger for better matches: more pairs, then smaller median distance."""
    n_pairs = len(match.distance_ns)
    return n_pairs, -round(float(np.median(match.distance_ns))) if n_pairs else 0
