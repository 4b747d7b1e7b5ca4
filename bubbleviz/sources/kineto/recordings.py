"""Separates the recordings of several processes in a merged trace.

A trace written by PyTorch's profiler contains one process, and its devices appear as processes 0,
1, ... Tools that merge traces change the process ids but keep device numbers and correlation ids,
so these numbers collide in the merged trace::

    as recorded             labeled                       offset
    pid   device            pid              device       pid       device
    83    -                 [TP00-PP01] 83   -            1000083   -        host
    0     0                 [TP00-PP01] 0    0            1000000   0        GPU

A recording is therefore identified by its label, or by its offset, which is the process id of a
device minus the device number. The host process of a recording has the same label, or a process id
at or above the offset. If neither identifies the host process, launch times are used, because no
kernel starts before the call that launched it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import (
    find_distinct,
    find_positions,
    group_rows,
    mask_run_starts,
    sort_rows,
)
from bubbleviz.model.numbering import Numbering
from bubbleviz.sources.kineto.events import EventRows
from bubbleviz.sources.trace_events import ThreadName

#: Exclusive upper bound on process ids that may be device numbers.
MAX_DEVICES = 4096
#: A trace is merged if more than this fraction of its correlation ids belong to two launches.
_MIN_COLLISIONS = 0.02
#: Approximate number of kernels per recording that are compared with each process's launches.
_MAX_SAMPLE = 20_000
#: Maximum fraction of a recording's kernels that its assigned host process cannot have launched.
_MAX_MISFITS = 0.002
#: Like ``_MAX_MISFITS``, but for an assignment that is based on process ids.
_MAX_MISFITS_OF_HINT = 0.1
#: Maximum time in ns by which a kernel may precede its launch because of differing clocks.
_CLOCK_NS = 10_000
#: Matches the digits at the end of a process id.
_NUMBER = re.compile(r"[0-9]{0,18}\Z")

#: A process id, split into a label, which may be "", and a number, which may be None.
_Process: TypeAlias = "tuple[str, int | None]"
#: The key of a recording: its label, and the offset of its devices' process ids.
_Key: TypeAlias = "tuple[str, int]"


@dataclass(frozen=True)
class Recordings:
    """The recordings in a merged trace, with zero-based numbers.

    Attributes:
        labels: Labels of the recordings, in order. A label is "" if the recording has none.
        by_thread: The recording number of each thread, indexed by thread number.
        by_device: The recording number of each device that did work, keyed by (thread number,
            device number).
    """

    labels: tuple[str, ...]
    by_thread: Ints
    by_device: Mapping[tuple[int, int], int]

    def find(self, thread: int, device: int) -> int:
        """Return a device's recording number, or its thread's number if the device was idle."""
        return self.by_device.get((thread, device), int(self.by_thread[thread]))

    def number_work(self, thread: Ints, device: Ints) -> Ints:
        """Return the recording number of each kernel or copy, given its thread and device."""
        groups = group_rows(thread, device)
        places = zip(thread[groups.first].tolist(), device[groups.first].tolist(), strict=True)
        numbers = [self.find(*place) for place in places]
        return np.array(numbers, np.int64)[groups.of_row]


def find_recordings(
    path: str, threads: Sequence[ThreadName], work: EventRows, calls: EventRows
) -> Recordings | None:
    """Find the recordings in a merged trace.

    Args:
        path: Path to the trace, for messages.
        threads: Process id and thread id, indexed by thread number.
        work: Kernels and copies.
        calls: CUDA or HIP API calls.

    Returns:
        The recordings, or None if the trace need not be separated. A trace need not be separated if
        it contains one recording, or if correlation ids are sufficient to link kernels to
        processes.

    Raises:
        ProfileError: The trace contains several recordings that cannot be separated.
    """
    finder = _Finder(threads, work, calls)
    keys = finder.find_keys()
    if len(keys) < 2 and len(finder.hosts) < 2:
        _refuse_collisions(path, finder)
        return None
    by_device = len(keys) < 2
    if by_device:
        keys = finder.use_devices_as_keys()
    key_of_host = finder.assign_hosts(keys, has_hints=not by_device)
    if key_of_host is None and by_device and not finder.has_collisions():
        # Correlation ids identify the process that launched a kernel, even if processes share a
        # device.
        _refuse_collisions(path, finder)
        return None
    if key_of_host is None:
        raise ProfileError(
            f"{path}: the file contains recordings of {max(len(keys), len(finder.hosts))} "
            "processes, but the GPUs cannot be assigned to them; pass the original files instead"
        )
    _refuse_collisions(path, finder)
    return finder.build_recordings(keys, key_of_host, by_device=by_device)


def _refuse_collisions(path: str, finder: _Finder) -> None:
    """Raise an error if the trace contains two runs of the same process.

    Repeated runs are detected by correlation ids that belong to two launches by one process.

    Raises:
        ProfileError: More than ``_MIN_COLLISIONS`` of the correlation ids belong to two launches.
    """
    n_relaunched, n_ids = finder.count_relaunched_ids()
    if n_relaunched > _MIN_COLLISIONS * n_ids:
        raise ProfileError(
            f"{path}: the file contains two runs, because {n_relaunched:,} of {n_ids:,} "
            "correlation ids belong to two launches of one process; pass the original files, one "
            "run at a time"
        )


class _Finder:
    """Finds the recordings in a trace.

    Attributes:
        hosts: The numbers of the processes that launched work, in ascending order.
    """

    def __init__(self, threads: Sequence[ThreadName], work: EventRows, calls: EventRows) -> None:
        names = Numbering[int | str | None]()
        self._process_of_thread = names.numbers(pid for pid, _ in threads)
        self._processes = [_parse_process(name) for name in names.values]
        self._work, self._calls = work, calls
        is_launch = find_positions(find_distinct(work.correlation), calls.correlation) != NONE
        self._launches = np.flatnonzero(is_launch & (calls.correlation >= 0))
        self._host_of_launch = self._process_of_thread[calls.thread[self._launches]]
        self.hosts = find_distinct(self._host_of_launch).tolist()
        process = self._process_of_thread[work.thread]
        places = group_rows(process, work.device)
        self._place_of_work = places.of_row
        #: (process number, device number) pairs under which kernels or copies are recorded.
        self._places = list(
            zip(
                process[places.first].tolist(),
                work.device[places.first].tolist(),
                strict=True,
            )
        )
        self._key_of_place = [self._find_key(*place) for place in self._places]

    def _find_key(self, process: int, device: int) -> _Key:
        """Return the key (label and offset) of the recording that a device belongs to.

        The label is taken from the device's process id. The first rule that applies determines the
        offset:

        1. If the process id contains no number, the offset is 0.
        2. If several processes, including this one, launched work, the offset is the number in the
           process id.
        3. If the device number is unknown, the offset is the number in the process id if it is at
           least ``MAX_DEVICES``, and 0 otherwise.
        4. Otherwise, the offset is the number in the process id minus the device number.

        Args:
            process: Process number of the device.
            device: Device number, or -1 if unknown.
        """
        label, number = self._processes[process]
        if number is None:
            return label, 0
        if process in self.hosts and len(self.hosts) > 1:
            # The merging tool gave the host and the devices of a rank the same process id.
            return label, number
        if device < 0:
            return label, number if number >= MAX_DEVICES else 0
        return label, number - device

    def find_keys(self) -> list[_Key]:
        """Return the sorted keys of the recordings, each a (label, offset) pair.

        The process ids of devices do not always identify recordings, so there are two exceptions:

        - If a single process launched work and no device has its label, the labels denote devices
          instead of recordings. In that case, the result is empty.
        - If fewer than two processes launched work and the absolute values of all offsets are below
          ``MAX_DEVICES``, the process ids are device numbers. All offsets then become 0.

        A trace with fewer than two keys cannot be separated by keys.
        """
        host_labels = {self._processes[host][0] for host in self.hosts}
        work_labels = {label for label, _ in self._key_of_place}
        if len(self.hosts) == 1 and not host_labels & work_labels:
            return []
        keys = sorted(set(self._key_of_place))
        if len(self.hosts) < 2 and not any(abs(offset) >= MAX_DEVICES for _, offset in keys):
            self._key_of_place = [(label, 0) for label, _ in self._key_of_place]
            keys = sorted(set(self._key_of_place))
        return keys

    def use_devices_as_keys(self) -> list[_Key]:
        """Treat each device as a separate recording, and return the sorted keys."""
        self._key_of_place = [("", device) for _, device in self._places]
        return sorted(set(self._key_of_place))

    def has_collisions(self) -> bool:
        """Return whether different processes launched work with the same correlation ids.

        An id that ``n`` processes used counts as ``n - 1`` collisions. The result is true if the
        average number of collisions per distinct id exceeds ``_MIN_COLLISIONS``.
        """
        ids = self._calls.correlation[self._launches]
        pairs = group_rows(self._host_of_launch, ids)
        n_ids = len(find_distinct(ids))
        return len(pairs) - n_ids > _MIN_COLLISIONS * n_ids

    def count_relaunched_ids(self) -> tuple[int, int]:
        """Count the correlation ids that the same process used for more than one launch.

        An id that two processes use counts as two ids. Calls with the same id that overlap on one
        thread, such as a runtime call and its driver call, count as one launch.

        Returns:
            n_relaunched: Number of ids with two or more launches by one process.
            n_ids: Total number of ids.
        """
        rows = self._launches
        ids, thread = self._calls.correlation[rows], self._calls.thread[rows]
        start_ns, end_ns = self._calls.start_ns[rows], self._calls.end_ns[rows]
        order = sort_rows(self._host_of_launch, ids, start_ns)
        is_first = mask_run_starts(self._host_of_launch[order], ids[order])
        is_separate = np.zeros(len(order), bool)
        previous, following = order[:-1], order[1:]
        is_separate[1:] = (thread[previous] != thread[following]) | (
            start_ns[following] > end_ns[previous]
        )
        is_relaunch = is_separate & ~is_first
        id_number: Ints = np.cumsum(is_first)
        return len(find_distinct(id_number[is_relaunch])), int(is_first.sum())

    def assign_hosts(self, keys: Sequence[_Key], *, has_hints: bool) -> Mapping[int, _Key] | None:
        """Assign each process that launched work to a recording.

        The assignment relies on misfits: kernels in a recording that the process cannot have
        launched. See :meth:`_count_misfits`. Two methods are tried in this order:

        1. If ``has_hints`` is true, the process ids determine the assignment, see
           :meth:`_find_hinted_keys`. The assignment is rejected if more than
           ``_MAX_MISFITS_OF_HINT`` of the kernels in any recording are misfits.
        2. Elimination, see :meth:`_assign_by_elimination`. A process is a candidate for a recording
           if at most ``_MAX_MISFITS`` of the recording's kernels are misfits.

        Args:
            keys: The recordings' keys.
            has_hints: Whether process ids may be used.

        Returns:
            Keys of the recordings, keyed by process number. None unless exactly one assignment
            agrees with the launches.
        """
        n_kernels, misfits = self._count_misfits(keys)
        hinted = self._find_hinted_keys(keys) if has_hints else None
        if hinted is not None:
            key_number = {key: number for number, key in enumerate(keys)}
            hinted_number = [key_number[hinted[host]] for host in self.hosts]
            hinted_misfits = misfits[np.arange(len(self.hosts)), hinted_number]
            if (hinted_misfits <= _MAX_MISFITS_OF_HINT * n_kernels[hinted_number]).all():
                return hinted
        return self._assign_by_elimination(keys, misfits <= _MAX_MISFITS * n_kernels)

    def _find_hinted_keys(self, keys: Sequence[_Key]) -> Mapping[int, _Key] | None:
        """Return the key of each process's recording, as indicated by its process id.

        A process gets the key with the same label and the largest offset that does not exceed the
        number in its process id. If only one key has that label, the key's offset is ignored.

        Returns:
            Keys of the recordings, keyed by process number. None if a process does not match any
            key, or if two processes get the same key although another key is unused.
        """
        hinted: dict[int, _Key] = {}
        for host in self.hosts:
            label, number = self._processes[host]
            offsets = [offset for name, offset in keys if name == label]
            if len(offsets) > 1:
                offsets = [offset for offset in offsets if offset <= (number or 0)]
            if not offsets:
                return None
            hinted[host] = label, max(offsets)
        # Two processes must not share a recording if another recording has no process.
        if len(set(hinted.values())) < min(len(keys), len(self.hosts)):
            return None
        return hinted

    def _count_misfits(self, keys: Sequence[_Key]) -> tuple[Ints, Ints]:
        """Count the kernels in each recording that each process cannot have launched.

        A process can have launched a kernel only if it made a launch with the kernel's correlation
        id. In addition, the earliest launch with this id must start at most ``_CLOCK_NS`` after the
        kernel starts. About ``_MAX_SAMPLE`` kernels and copies per recording are examined. Kernels
        whose launch was not recorded are ignored.

        Args:
            keys: The recordings' keys.

        Returns:
            n_kernels: Number of examined kernels per recording, shape (keys,).
            misfits: Number of examined kernels that each process cannot have launched, shape
                (hosts, keys).
        """
        n_kernels = np.zeros(len(keys), np.int64)
        misfits = np.zeros((len(self.hosts), len(keys)), np.int64)
        launches = [self._find_launches(host) for host in self.hosts]
        for key, rows in enumerate(self._sample_kernels(keys)):
            n_kernels[key] = len(rows)
            start_ns = self._work.start_ns[rows]
            for host, (ids, launched_ns) in enumerate(launches):
                launch = find_positions(ids, self._work.correlation[rows])
                fits = (launch != NONE) & (launched_ns[launch] <= start_ns + _CLOCK_NS)
                misfits[host, key] = len(rows) - int(fits.sum())
        return n_kernels, misfits

    def _sample_kernels(self, keys: Sequence[_Key]) -> Iterator[Ints]:
        """Yield the rows of a sample of kernels and copies for each recording, in key order.

        Only kernels and copies whose launch was recorded are sampled. If a recording has more than
        about ``_MAX_SAMPLE`` such kernels and copies, every n-th one is taken.
        """
        key_number = {key: number for number, key in enumerate(keys)}
        key_of_place = np.array([key_number[key] for key in self._key_of_place], np.int64)
        key_of_work = key_of_place[self._place_of_work]
        launched_ids = find_distinct(self._calls.correlation[self._launches])
        has_launch = find_positions(launched_ids, self._work.correlation) != NONE
        for key in range(len(keys)):
            rows = np.flatnonzero(has_launch & (key_of_work == key))
            yield rows[:: max(1, len(rows) // _MAX_SAMPLE)]

    def _find_launches(self, host: int) -> tuple[Ints, Ints]:
        """Return the distinct correlation ids of a process's launches, and their start times.

        The ids are in ascending order. If several launches have the same id, the start time is the
        earliest of them.
        """
        rows = self._launches[self._host_of_launch == host]
        ids, start_ns = self._calls.correlation[rows], self._calls.start_ns[rows]
        order = sort_rows(ids, start_ns)
        order = order[mask_run_starts(ids[order])]
        return ids[order], start_ns[order]

    def _assign_by_elimination(
        self, keys: Sequence[_Key], can_belong: Bools
    ) -> Mapping[int, _Key] | None:
        """Return the one-to-one assignment of processes to recordings that satisfies a mask.

        The assignment must be unique. In each step, the first recording that has a single candidate
        process is assigned this process. If the assignment is unique, there is always such a
        recording.

        Args:
            keys: The recordings' keys.
            can_belong: Mask of the (process, recording) pairs that are allowed, shape (hosts,
                keys).

        Returns:
            Keys of the recordings, keyed by process number. None unless there is exactly one such
            assignment.
        """
        if len(keys) != len(self.hosts):
            return None
        can_belong = can_belong.copy()
        assigned: dict[int, _Key] = {}
        while len(assigned) < len(keys):
            decided = np.flatnonzero(can_belong.sum(axis=0) == 1)
            if len(decided) == 0:
                return None
            key = int(decided[0])
            host = int(can_belong[:, key].argmax())
            assigned[self.hosts[host]] = keys[key]
            can_belong[host] = False
        return assigned

    def build_recordings(
        self, keys: Sequence[_Key], key_of_host: Mapping[int, _Key], *, by_device: bool
    ) -> Recordings:
        """Build the recordings by assigning every thread and device to a recording.

        A thread belongs to the recording of its process. The first rule that applies determines the
        recording of a process:

        1. A process that launched work belongs to the recording given by ``key_of_host``.
        2. A process under which device work is recorded belongs to the recording of the device,
           unless ``by_device`` is true.
        3. Any other process is assigned according to its label, see :meth:`_guess_recordings`.

        Args:
            keys: The recordings' keys.
            key_of_host: Maps each process that launched work to the key of its recording.
            by_device: Whether each device is a separate recording, regardless of its process id.
        """
        key_number = {key: number for number, key in enumerate(keys)}
        by_process = dict(self._guess_recordings(keys))
        by_process |= {host: key_number[key] for host, key in key_of_host.items()}
        for (process, _), key in zip(self._places, self._key_of_place, strict=True):
            if process not in self.hosts and not by_device:
                by_process[process] = key_number[key]
        by_thread = np.array([by_process[process] for process in self._process_of_thread.tolist()])
        places = group_rows(self._work.thread, self._work.device)
        devices = {}
        for row in places.first.tolist():
            thread_and_device = int(self._work.thread[row]), int(self._work.device[row])
            devices[thread_and_device] = key_number[self._key_of_place[self._place_of_work[row]]]
        labels = tuple(label.strip(" []():-_") for label, _ in keys)
        return Recordings(labels, by_thread, devices)

    def _guess_recordings(self, keys: Sequence[_Key]) -> Iterator[tuple[int, int]]:
        """Yield a (process number, recording number) pair for each process, based on its label.

        The last recording with the same label whose offset does not exceed the number in the
        process id is chosen. If all offsets exceed it, the first recording with the label is
        chosen. If no recording has the label, recording 0 is chosen.
        """
        for process, (label, process_number) in enumerate(self._processes):
            same_label = [number for number, (name, _) in enumerate(keys) if name == label]
            below = [number for number in same_label if keys[number][1] <= (process_number or 0)]
            yield process, max(below, default=min(same_label, default=0))


def _parse_process(name: int | str | None) -> _Process:
    """Split a process id into a label and the number at its end.

    The number has at most 18 digits, and is None if the process id does not end in a digit. The
    label of an integer process id is "".
    """
    if isinstance(name, int):
        return "", name
    text = (name or "").rstrip()
    label = _NUMBER.sub("", text, count=1)
    digits = text[len(label) :]
    return label, int(digits) if digits else None
