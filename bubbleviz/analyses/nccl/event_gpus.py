"""Event GPUs: the operations of each GPU in an event file, and their times on its host's clock.

A file holds host times since its process's profiler began, and GPU times of each GPU's own clock
(``globaltimer``); the clocks of two GPUs of one host can be seconds apart. Where the host saw a
kernel begin, the two meet: it saw that later, never earlier, so the smallest difference counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bubbleviz.analyses.nccl.communications import Timing
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import LONGEST_NS, UNKNOWN, EventFile, NcclEvents


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
        timing: code of :class:`~bubbleviz.analyses.nccl.communications.Timing`.
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
