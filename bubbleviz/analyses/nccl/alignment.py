"""Alignment: the clocks of event files, put onto the profiles' by kernels.

Of each GPU's operations the GPU's own clock is matched with the kernels of a profile where it was
recorded, else the host's (:mod:`~bubbleviz.analyses.nccl.alignment`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl import members
from bubbleviz.analyses.nccl.profiles import Kernels, Starts, family_of
from bubbleviz.model.columns import NONE, Bools, Ints, marked
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.sources.nccl.events import LONGEST_NS, UNKNOWN, EventFile, NcclEvents, OperationKind

# Matching: which kernel of a profile is which recorded operation, and what lies between clocks.
#
# Both hold the same kernels in the same order, each on its own clock, and either may lack some. The
# offset is where the most differences kernel start - operation start agree::
#
#     operations  |  |     |  |  |        differences   ..:  .   :|:.  . :
#     kernels        |  |     |  |  |                             └─ densest
#
# Blocks of operations are searched on their own: within one the drift of a clock is negligible.
# From the block that agrees best a line, offset and drift, is followed to all.


#: A GPU's clock has the start of a channel's work: within this of the start of its kernel.
GPU_TOLERANCE_NS = 20_000
#: A host records it later, by what its thread slept.
HOST_TOLERANCE_NS = 1_000_000
#: Kernels last as long as their work but for this share of their length and this time: the two are
#: recorded at different points.
_LENGTH_SHARE, _LENGTH_SLACK_NS = 0.25, 50_000
#: Operations of a block: so many that chance does not put most onto kernels, few enough that a
#: drift does not pull them apart. A block may lie where the profile recorded nothing, so several
#: are tried.
_BLOCK_OPERATIONS, _MOST_BLOCKS = 64, 8
#: Differences that are sorted at a time, about: bounds the memory.
_DIFFERENCES_AT_ONCE = 1 << 20
#: An offset is clear if it matches so many times what the next best one does, in a block of which
#: it matches half. Less is chance, or a run that repeats itself.
_CLEAR_RATIO = 1.5
#: Fewer pairs, or a shorter time, give a drift of their jitter.
_DRIFT_PAIRS, _DRIFT_SPAN_NS = 16, 1_000_000_000
#: A drift must leave at most this share of the distances that remain without one.
_DRIFT_RESIDUAL = 0.5


@dataclass(frozen=True)
class ClockLine:
    """A clock put onto another: t becomes t + offset_ns + round((t - middle_ns) drift).

    Attributes:
        offset_ns: what is added.
        middle_ns: where that is exact.
        drift: what is added by time.
    """

    offset_ns: int
    middle_ns: int
    drift: float

    def of(self, time_ns: Ints) -> Ints:
        """Return times on the other clock; unknown ones stay so."""
        known = time_ns != UNKNOWN
        since = np.where(known, time_ns - self.middle_ns, 0)
        moved = since + (self.middle_ns + self.offset_ns) + np.rint(since * self.drift).astype(int)
        return np.where(known, moved, UNKNOWN)


#: A line, the kernel of each operation (-1 none), how far apart they are, and whether no other
#: offset does nearly as well, or none is left over on either side.
Match = tuple[ClockLine, Ints, Ints, bool]


@dataclass(frozen=True)
class StartPairs:
    """Recorded operations and the kernels that they may be.

    Attributes:
        operations: as recorded.
        kernels: as profiled.
        tolerance_ns: the largest distance of an operation and its kernel on one clock.
    """

    operations: Starts
    kernels: Starts
    tolerance_ns: int

    def alike(self, row: Ints | int, kernel: Ints | slice) -> Bools:
        """Whether operations can be kernels: of one family, and about as long."""
        family, kernel_family = self.operations.family[row], self.kernels.family[kernel]
        length_ns, kernel_ns = self.operations.length_ns[row], self.kernels.length_ns[kernel]
        slack_ns = _LENGTH_SHARE * kernel_ns + _LENGTH_SLACK_NS
        fits = (length_ns < 0) | (np.abs(kernel_ns - length_ns) <= slack_ns)
        same = (family == kernel_family) | (family < 0) | (kernel_family < 0)
        return np.asarray(fits & same, bool)

    def nearest(self, line: ClockLine, rows: Ints) -> tuple[Ints, Ints]:
        """Return the kernel nearest to each operation, -1 none, and how much later it begins."""
        wanted, kernel_ns = line.of(self.operations.start_ns[rows]), self.kernels.start_ns
        best = np.full(len(rows), NONE, np.int64)
        least = np.full(len(rows), self.tolerance_ns + 1, np.int64)
        after = np.searchsorted(kernel_ns, wanted)
        # Kernels of other families may lie between.
        for step in (0, -1, 1, -2, 2, -3):
            at = after + step
            inside = (at >= 0) & (at < len(kernel_ns))
            place = np.clip(at, 0, len(kernel_ns) - 1)
            far = np.abs(kernel_ns[place] - wanted)
            nearer = inside & (far < least) & self.alike(rows, place)
            best, least = np.where(nearer, place, best), np.where(nearer, far, least)
        return best, np.where(best == NONE, 0, kernel_ns[best] - wanted)

    def differences(self, rows: Ints, low_ns: int, high_ns: int) -> list[Ints]:
        """Return the differences, between two bounds, of each operation and its possible kernels.

        Args:
            rows: operations.
            low_ns: the least difference that counts.
            high_ns: the largest one.
        """
        start_ns, kernel_ns = self.operations.start_ns[rows], self.kernels.start_ns
        first = np.searchsorted(kernel_ns, start_ns + low_ns).tolist()
        last = np.searchsorted(kernel_ns, start_ns + high_ns, side="right").tolist()
        return [
            kernel_ns[low:high][self.alike(row, slice(low, high))] - start_ns[at]
            for at, (row, low, high) in enumerate(zip(rows.tolist(), first, last, strict=True))
        ]


def match(operations: Starts, kernels: Starts, tolerance_ns: int) -> Match | None:
    """Return the line that puts most operations onto kernels; None where none puts any.

    Args:
        operations: as recorded.
        kernels: as profiled.
        tolerance_ns: the largest distance of an operation and its kernel.
    """
    count = len(operations.start_ns)
    if count == 0 or len(kernels.start_ns) == 0:
        return None
    pairs = StartPairs(operations, kernels, tolerance_ns)
    begins = [0]
    if count > _BLOCK_OPERATIONS:
        # Few, and spread over all.
        begins = np.linspace(0, count - _BLOCK_OPERATIONS, _MOST_BLOCKS).astype(int).tolist()
    best: tuple[Ints, int, int, int] | None = None
    for begin in sorted(set(begins)):
        rows = np.arange(begin, min(begin + _BLOCK_OPERATIONS, count))
        found = densest_offset(pairs, rows)
        if found is not None and (best is None or found[0] > best[1]):
            best = rows, *found
            if 2 * found[0] >= len(rows) and found[0] >= _CLEAR_RATIO * found[2]:
                break
    if best is None:
        return None
    rows, agreed, offset_ns, rival = best
    line = _line_through(pairs, rows, offset_ns)
    kernel, distance_ns = pairs.nearest(line, np.arange(count))
    far_ns = np.abs(distance_ns[kernel != NONE])
    # Of a few dozen operations chance may put some onto kernels, but not most of all.
    clear = agreed >= _CLEAR_RATIO * rival and 2 * len(far_ns) >= count
    return line, kernel, far_ns, clear or _is_complete(pairs, kernel)


def _is_complete(pairs: StartPairs, kernel: Ints) -> bool:
    """Whether nothing is left over on either side."""
    families, kernel_families = pairs.operations.family, pairs.kernels.family
    able = kernel_families < 0
    able |= np.isin(kernel_families, families) | bool((families < 0).any())
    return bool((kernel != NONE).all()) and len(distinct(kernel)) == int(able.sum())


def densest_offset(pairs: StartPairs, rows: Ints) -> tuple[int, int, int] | None:
    """Return the offset on which most operations of a block agree, and the next best.

    A cluster of differences within one tolerance is (minus its number, its spread, its begin): the
    least has the most differences, of equal numbers it is the closest one.

    Returns:
        How many operations agree on it, the offset, and how many agree on the next best one (0 for
        none); None where no kernel can be an operation.
    """
    start_ns, kernel_ns = pairs.operations.start_ns[rows], pairs.kernels.start_ns
    tolerance_ns = pairs.tolerance_ns
    # Bounds of offsets between which about as many differences lie each.
    every = max(_DIFFERENCES_AT_ONCE // len(rows), 1)
    between = (kernel_ns[every::every] - int(start_ns[len(rows) // 2])).tolist()
    low, high = int(kernel_ns[0] - start_ns[-1]), int(kernel_ns[-1] - start_ns[0])
    bounds_ns = [low, *(at for at in between if low < at < high), high]

    def best(number: int, without_ns: int | None = None) -> tuple[int, int, int] | None:
        low_ns, high_ns = bounds_ns[number], bounds_ns[number + 1] + tolerance_ns
        differences_ns = np.sort(np.concatenate(pairs.differences(rows, low_ns, high_ns)))
        return _largest_cluster(differences_ns, tolerance_ns, without_ns)

    def agreed(begin_ns: int) -> tuple[int, int]:
        by_operation = pairs.differences(rows, begin_ns, begin_ns + tolerance_ns)
        # An operation beside many kernels counts once.
        agreeing = sum(len(differences_ns) > 0 for differences_ns in by_operation)
        return agreeing, round(float(np.median(np.concatenate(by_operation))))

    found = [(best(number), number) for number in range(len(bounds_ns) - 1)]
    clusters = [(cluster, number) for cluster, number in found if cluster is not None]
    if not clusters:
        return None
    begin_ns = min(cluster for cluster, _ in clusters)[2]
    rivals = (
        cluster if abs(cluster[2] - begin_ns) > 2 * tolerance_ns else best(number, begin_ns)
        for cluster, number in clusters
    )
    rival = min((cluster for cluster in rivals if cluster is not None), default=None)
    return (*agreed(begin_ns), 0 if rival is None else agreed(rival[2])[0])


def _largest_cluster(
    differences_ns: Ints, tolerance_ns: int, without_ns: int | None
) -> tuple[int, int, int] | None:
    """Return the cluster of most differences; None where there is none.

    Args:
        differences_ns: ascending.
        tolerance_ns: the longest that a cluster may be.
        without_ns: clusters that begin within two tolerances of this do not count.
    """
    beyond = np.searchsorted(differences_ns, differences_ns + tolerance_ns, side="right")
    count = beyond - np.arange(len(differences_ns))
    if without_ns is not None:
        count[np.abs(differences_ns - without_ns) <= 2 * tolerance_ns] = 0
    most = int(count.max(initial=0))
    if most == 0:
        return None
    begins = np.flatnonzero(count == most)
    spread_ns = differences_ns[begins + most - 1] - differences_ns[begins]
    at = int(spread_ns.argmin())
    return -most, int(spread_ns[at]), int(differences_ns[begins[at]])


def _line_through(pairs: StartPairs, rows: Ints, offset_ns: int) -> ClockLine:
    """Return the line through a block's offset, followed from there to all operations."""
    start_ns = pairs.operations.start_ns
    line = ClockLine(offset_ns, int(start_ns[rows[len(rows) // 2]]), 0.0)
    low, high = int(rows[0]), int(rows[-1]) + 1
    while True:
        nearby = np.arange(low, high)
        kernel, distance_ns = pairs.nearest(line, nearby)
        hit = kernel != NONE
        if hit.any():
            since_ns = start_ns[nearby[hit]] - line.middle_ns
            moved_ns, drift = _correction(since_ns, distance_ns[hit], line.drift)
            line = replace(line, offset_ns=line.offset_ns + moved_ns, drift=drift)
        if low == 0 and high == len(start_ns):
            return line
        more = high - low
        low, high = max(low - more, 0), min(high + more, len(start_ns))


def _correction(since_ns: Ints, distance_ns: Ints, drift: float) -> tuple[int, float]:
    """Return the correction of an offset, and the drift, that make distances vanish."""
    flat = float(np.median(distance_ns))
    span = int(since_ns.max() - since_ns.min())
    if len(since_ns) < _DRIFT_PAIRS or span < _DRIFT_SPAN_NS:
        return round(flat), drift
    slope, begin = np.polyfit(since_ns.astype(float), distance_ns.astype(float), 1)
    left = np.median(np.abs(distance_ns - (begin + slope * since_ns)))
    if left > _DRIFT_RESIDUAL * np.median(np.abs(distance_ns - flat)):
        return round(flat), drift
    return round(float(begin)), drift + float(slope)


# Clocks of event files, by kernels.


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
        exact = (self.end_ns[rows] != UNKNOWN) & (self.timing[rows] == members.Timing.GPU)
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
        events.pid, np.where(apart, events.communicator, NONE), np.where(apart, events.rank, NONE)
    )
    for group, first in enumerate(gpus.first.tolist()):
        pid = int(events.pid[first])
        rank = f" rank {events.rank[first]}" if apart[first] else ""
        label = f"{Path(file.path).name} {_process_label(pid)}{rank}".strip()
        yield _gpu(file, np.flatnonzero(gpus.of_row == group), pid, label)


def _gpu(file: EventFile, rows: Ints, pid: int, label: str) -> EventGpu:
    events = file.events
    of_gpu = marked(len(events), rows)
    bridges = file.bridges.take(of_gpu[file.bridges.row])
    late_ns = bridges.host_ns - bridges.gpu_ns
    bridge_ns = int(late_ns.min()) if len(late_ns) else None
    start_ns, end_ns = events.host_start_ns[rows], np.full(len(rows), UNKNOWN)
    timing = np.full(len(rows), members.Timing.LAUNCH, np.int64)
    for kind, start, end in (
        (members.Timing.PROXY, events.proxy_start_ns[rows], events.proxy_end_ns[rows]),
        (members.Timing.HOST, events.kernel_start_ns[rows], events.kernel_end_ns[rows]),
    ):
        # A source with the end is better than one with the start alone.
        better = (start != UNKNOWN) & ((end != UNKNOWN) | (end_ns == UNKNOWN))
        better |= (start != UNKNOWN) & (timing == members.Timing.LAUNCH)
        start_ns, end_ns = np.where(better, start, start_ns), np.where(better, end, end_ns)
        timing = np.where(better, kind, timing)
    gpu_ns, stop_ns = events.gpu_start_ns[rows], events.gpu_end_ns[rows]
    if bridge_ns is not None:
        known = gpu_ns != UNKNOWN
        ended = known & (stop_ns != UNKNOWN)
        start_ns = np.where(known, gpu_ns + np.where(known, bridge_ns, 0), start_ns)
        end_ns = np.where(ended, stop_ns + np.where(ended, bridge_ns, 0), end_ns)
        timing = np.where(ended, members.Timing.GPU, timing)
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


def align_events(
    files: Sequence[EventFile], pool: Kernels
) -> tuple[list[members.Communications], list[members.RecordingClock], int]:
    """Return recorded operations, on the profiles' clock where theirs can be aligned.

    Args:
        files: event files.
        pool: kernels of the profiles.

    Returns:
        The operations of each file, whose ``gpu`` is a place of the profiles, else a number behind
        these; the clocks; and the number of operations whose clock several offsets put onto kernels
        equally well.
    """
    tables: list[members.Communications] = []
    clocks: list[members.RecordingClock] = []
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
        element = np.array(
            [members.SIZES.get(text, NONE) for text in (*events.names, "")], np.int64
        )
        size = element[events.datatype]
        sized = (events.count >= 0) & (size > 0) & (events.count < _MOST_COUNT)
        columns["bytes"] = np.where(sized, np.where(sized, events.count, 0) * size, events.payload)
        columns["source"] = np.full(len(events), source)
        tables.append(
            members.communications(len(events), columns, events.names, events.communicators)
        )
    return tables, clocks, ambiguous


def _aligned(
    gpu: EventGpu, pool: Kernels, taken: set[int]
) -> tuple[members.RecordingClock, bool, Ints, Ints, Ints]:
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
        clock = members.RecordingClock(gpu.label, members.Alignment.UNALIGNED)
        return clock, bool(found), gpu.start_ns, gpu.end_ns, kernel
    (line, nearest, far_ns, _), at = max(clear, key=lambda pair: _quality(pair[0]))
    # The threads of a process with one GPU write files of their own.
    if sum(pid == gpu.pid for pid, *_ in pool.places) != 1:
        taken.add(at)
    first = int(np.searchsorted(pool.place, at))
    kernel[rows] = np.where(nearest == NONE, NONE, nearest + first)
    by = members.Alignment.KERNELS
    clock = members.RecordingClock.measured(gpu.label, by, len(rows), far_ns, line.drift)
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
