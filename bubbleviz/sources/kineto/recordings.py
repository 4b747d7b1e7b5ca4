"""Tells apart the recordings of several processes that were merged into one trace.

A trace of PyTorch's profiler holds one process, and its devices are processes 0, 1, ... of the
trace. Tools that merge traces keep device numbers and correlation ids, so both collide, and change
the process ids instead::

    as recorded             labelled                      offset
    pid   device            pid              device       pid       device
    83    -                 [TP00-PP01] 83   -            1000083   -        host
    0     0                 [TP00-PP01] 0    0            1000000   0        GPU

A recording is therefore a label, or else the offset of a device's process id from the device's
number. The host process of a recording has its label, or follows its offset. If offsets do not
decide it, launches do: no kernel starts before the call that launched it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Numbering, begins, distinct, found_in, groups_of, sorted_rows
from bubbleviz.sources.kineto.events import EventRows
from bubbleviz.sources.trace_events import ThreadName

#: Process ids below this can be the numbers of devices.
MAX_DEVICES = 4096
#: Share of correlation ids with two launches above which a trace holds two recordings.
_MIN_COLLISIONS = 0.02
#: Maximum number of kernels of a recording that are compared with the launches of each process.
_MAX_SAMPLE = 20_000
#: Share of a recording's kernels that may contradict the launches of its process.
_MAX_MISFITS = 0.002
#: The same where process ids already show which process it is.
_MAX_MISFITS_OF_HINT = 0.1
#: Difference of the clocks of hosts and devices that is not a contradiction.
_CLOCK_NS = 10_000
_LABELLED = re.compile(r"(?P<label>.*?)(?P<number>[0-9]{0,18})\s*\Z", re.DOTALL)

#: Process id of an event as a label and a number, each of which may be missing ("" or None).
_Process: TypeAlias = "tuple[str, int | None]"
#: What tells recordings apart: a label, and the offset of a device's process id.
_Key: TypeAlias = "tuple[str, int]"


@dataclass(frozen=True)
class Recordings:
    """Recordings in a trace, numbered from 0.

    Attributes:
        labels: Label of each recording, or "" if it has none.
        of_thread: Recording of each thread of a host, indexed by thread number.
        of_place: Recording of each device, keyed by thread number and device number.
    """

    labels: tuple[str, ...]
    of_thread: Ints
    of_place: Mapping[tuple[int, int], int]

    def of_work(self, thread: Ints, device: Ints) -> Ints:
        """Return the recording of each kernel or copy, by its thread and device."""
        groups = groups_of(thread, device)
        places = zip(thread[groups.first].tolist(), device[groups.first].tolist(), strict=True)
        of_group = [self.of_place.get(p, int(self.of_thread[p[0]])) for p in places]
        return np.array(of_group, np.int64)[groups.of_row]


def find_recordings(
    path: str, threads: Sequence[ThreadName], work: EventRows, calls: EventRows
) -> Recordings | None:
    """Return the recordings that were merged into a trace, or None if it holds one.

    Args:
        path: Path of the trace, for messages.
        threads: Process and thread id of each thread number.
        work: Kernels and copies.
        calls: Calls of the CUDA or HIP API.

    Raises:
        ProfileError: The trace holds several recordings that cannot be told apart.
    """
    finder = _Finder(threads, work, calls)
    keys = finder.keys()
    if len(keys) < 2 and len(finder.hosts) < 2:
        _refuse_collisions(path, finder)
        return None
    by_device = len(keys) < 2
    if by_device:
        keys = finder.keys_of_devices()
    key_of_host = finder.assign_hosts(keys, has_hints=not by_device)
    if key_of_host is None and by_device and not finder.hosts_collide():
        # Ids alone show which process launched what, even if processes share devices.
        _refuse_collisions(path, finder)
        return None
    if key_of_host is None:
        raise ProfileError(
            f"{path}: recordings of {max(len(keys), len(finder.hosts))} processes were merged, and "
            "nothing shows which GPU belongs to which; give the original files"
        )
    _refuse_collisions(path, finder)
    return finder.recordings(keys, key_of_host, by_device=by_device)


def _refuse_collisions(path: str, finder: _Finder) -> None:
    """Refuse a trace in which one process launched twice with the same correlation ids.

    Raises:
        ProfileError: It is such a trace.
    """
    n_twice, n_ids = finder.count_relaunched_ids()
    if n_twice > _MIN_COLLISIONS * n_ids:
        raise ProfileError(
            f"{path}: {n_twice:,} of {n_ids:,} correlation ids name two launches of one process, "
            "so recordings of two runs were merged; give the original files, one run at a time"
        )


class _Finder:
    """Finds the recordings in a trace.

    Attributes:
        hosts: Process numbers of those that launched work, ascending.
    """

    def __init__(self, threads: Sequence[ThreadName], work: EventRows, calls: EventRows) -> None:
        names = Numbering[int | str | None]()
        self._process_of_thread = names.numbers(pid for pid, _ in threads)
        self._processes = [_parse_process(name) for name in names.values]
        self._work, self._calls = work, calls
        is_launch = found_in(distinct(work.correlation), calls.correlation) != NONE
        self._launches = np.flatnonzero(is_launch & (calls.correlation >= 0))
        self._host_of_launch = self._process_of_thread[calls.thread[self._launches]]
        self.hosts = distinct(self._host_of_launch).tolist()
        process = self._process_of_thread[work.thread]
        places = groups_of(process, work.device)
        self._place_of_work = places.of_row
        #: Process and device number of each place where work ran.
        self._places = list(
            zip(
                process[places.first].tolist(),
                work.device[places.first].tolist(),
                strict=True,
            )
        )
        self._key_of_place = [self._key(process, device) for process, device in self._places]

    def _key(self, process: int, device: int) -> _Key:
        label, number = self._processes[process]
        if number is None:
            return label, 0
        if process in self.hosts and len(self.hosts) > 1:
            # The merging tool gave a rank's host and devices one process id.
            return label, number
        if device < 0:
            return label, number if number >= MAX_DEVICES else 0
        return label, number - device

    def keys(self) -> list[_Key]:
        """Return the keys of the recordings, in order; fewer than two for a trace of one.

        Offsets count if several processes launched work, or if they cannot be device numbers.
        Labels do not if the only process that launched work has another one: they name devices.
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

    def keys_of_devices(self) -> list[_Key]:
        """Take each device for a recording, and return the keys."""
        self._key_of_place = [("", device) for _, device in self._places]
        return sorted(set(self._key_of_place))

    def hosts_collide(self) -> bool:
        """Return whether processes share correlation ids, which are unique within one only."""
        ids = self._calls.correlation[self._launches]
        pairs = groups_of(self._host_of_launch, ids)
        n_ids = len(distinct(ids))
        return len(pairs) - n_ids > _MIN_COLLISIONS * n_ids

    def count_relaunched_ids(self) -> tuple[int, int]:
        """Return how many correlation ids of a process name two launches, and how many there are.

        One launch may be recorded as a call of the runtime and one of the driver: these overlap on
        one thread.
        """
        rows = self._launches
        ids, thread = self._calls.correlation[rows], self._calls.thread[rows]
        start_ns, end_ns = self._calls.start_ns[rows], self._calls.end_ns[rows]
        order = sorted_rows(self._host_of_launch, ids, start_ns)
        is_first = begins(self._host_of_launch[order], ids[order])
        apart = np.zeros(len(order), bool)
        before, after = order[:-1], order[1:]
        apart[1:] = (thread[before] != thread[after]) | (start_ns[after] > end_ns[before])
        is_second = apart & ~is_first
        id_number: Ints = np.cumsum(is_first)
        return len(distinct(id_number[np.flatnonzero(is_second)])), int(is_first.sum())

    def assign_hosts(self, keys: Sequence[_Key], *, has_hints: bool) -> Mapping[int, _Key] | None:
        """Return the recording of each process that launched work, or None if it is unknown.

        Args:
            keys: Recordings.
            has_hints: Whether process ids may show which recording they belong to.
        """
        n_kernels, misfits = self._count_misfits(keys)
        hinted = self._hinted(keys) if has_hints else None
        if hinted is not None:
            key_number = {key: number for number, key in enumerate(keys)}
            fitting = [
                misfits[at, key_number[hinted[host]]]
                <= _MAX_MISFITS_OF_HINT * n_kernels[key_number[hinted[host]]]
                for at, host in enumerate(self.hosts)
            ]
            if all(fitting):
                return hinted
        return self._assign_by_elimination(keys, misfits <= _MAX_MISFITS * n_kernels)

    def _hinted(self, keys: Sequence[_Key]) -> Mapping[int, _Key] | None:
        """Return the recording that each process id points to, or None if not all point to one."""
        hinted: dict[int, _Key] = {}
        for host in self.hosts:
            label, number = self._processes[host]
            offsets = [offset for name, offset in keys if name == label]
            if len(offsets) > 1:
                offsets = [offset for offset in offsets if offset <= (number or 0)]
            if not offsets:
                return None
            hinted[host] = label, max(offsets)
        # Each recording has a process of its own, unless no launch of it was recorded.
        if len(set(hinted.values())) < min(len(keys), len(self.hosts)):
            return None
        return hinted

    def _count_misfits(self, keys: Sequence[_Key]) -> tuple[Ints, Ints]:
        """Count the kernels of recordings that processes cannot have launched.

        Returns:
            n_kernels: Number of kernels of each recording that were compared, shape (keys,).
            misfits: Number of these that a process did not launch, or launched after they started,
                shape (hosts, keys).
        """
        number = {key: at for at, key in enumerate(keys)}
        key_of_place = np.array([number[key] for key in self._key_of_place], np.int64)
        key_of_work = key_of_place[self._place_of_work]
        launched_ids = distinct(self._calls.correlation[self._launches])
        has_launch = found_in(launched_ids, self._work.correlation) != NONE
        n_kernels = np.zeros(len(keys), np.int64)
        misfits = np.zeros((len(self.hosts), len(keys)), np.int64)
        launches = [self._launches_of(host) for host in self.hosts]
        for key in range(len(keys)):
            rows = np.flatnonzero(has_launch & (key_of_work == key))
            rows = rows[:: max(1, len(rows) // _MAX_SAMPLE)]
            n_kernels[key] = len(rows)
            start_ns = self._work.start_ns[rows]
            for host, (ids, launched_ns) in enumerate(launches):
                at = found_in(ids, self._work.correlation[rows])
                fits = (at != NONE) & (launched_ns[at] <= start_ns + _CLOCK_NS)
                misfits[host, key] = len(rows) - int(fits.sum())
        return n_kernels, misfits

    def _launches_of(self, host: int) -> tuple[Ints, Ints]:
        """Return the correlation ids that a process launched with, ascending, and the times."""
        rows = self._launches[self._host_of_launch == host]
        ids, start_ns = self._calls.correlation[rows], self._calls.start_ns[rows]
        order = sorted_rows(ids, start_ns)
        order = order[begins(ids[order])]
        return ids[order], start_ns[order]

    def _assign_by_elimination(
        self, keys: Sequence[_Key], can_belong: Bools
    ) -> Mapping[int, _Key] | None:
        """Return the only way to give each recording one process, or None if there is not just one.

        If there is only one way, some recording has only one process left at every step.

        Args:
            keys: Recordings.
            can_belong: Whether each process fits each recording, shape (hosts, keys).
        """
        if len(keys) != len(self.hosts):
            return None
        can_belong = can_belong.copy()
        assigned: dict[int, _Key] = {}
        while len(assigned) < len(keys):
            sure = np.flatnonzero(can_belong.sum(axis=0) == 1)
            if len(sure) == 0:
                return None
            key = int(sure[0])
            host = int(can_belong[:, key].argmax())
            assigned[self.hosts[host]] = keys[key]
            can_belong[host] = False
        return assigned

    def recordings(
        self, keys: Sequence[_Key], key_of_host: Mapping[int, _Key], *, by_device: bool
    ) -> Recordings:
        """Return the recordings, with every thread and device in one of them."""
        number = {key: at for at, key in enumerate(keys)}
        of_process = dict(self._guess_idle_processes(keys))
        of_process |= {host: number[key] for host, key in key_of_host.items()}
        for (process, _), key in zip(self._places, self._key_of_place, strict=True):
            if process not in self.hosts and not by_device:
                of_process[process] = number[key]
        of_thread = np.array([of_process[process] for process in self._process_of_thread.tolist()])
        threads = groups_of(self._work.thread, self._work.device)
        of_place = {
            (int(self._work.thread[row]), int(self._work.device[row])): number[
                self._key_of_place[self._place_of_work[row]]
            ]
            for row in threads.first.tolist()
        }
        labels = tuple(label.strip(" []():-_") for label, _ in keys)
        return Recordings(labels, of_thread, of_place)

    def _guess_idle_processes(self, keys: Sequence[_Key]) -> Iterator[tuple[int, int]]:
        """Yield the recording of each process by its label, then by its id; else the first one."""
        for process, (label, number) in enumerate(self._processes):
            fitting = [at for at, (name, _) in enumerate(keys) if name == label]
            below = [at for at in fitting if keys[at][1] <= (number or 0)]
            yield process, max(below, default=min(fitting, default=0))


def _parse_process(name: int | str | None) -> _Process:
    """Return the label and the number of a process id."""
    if isinstance(name, int):
        return "", name
    if name is None:
        return "", None
    match = _LABELLED.match(name)
    if match is None:
        return name, None
    return match["label"], int(match["number"]) if match["number"] else None
