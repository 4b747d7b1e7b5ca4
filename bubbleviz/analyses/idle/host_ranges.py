"""Host ranges: the ranges of a profile that show what hosts did while devices were idle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.idle.gap_calls import GRAIN_NS
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, joined
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import (
    DEVICE_THREAD,
    Profile,
    Ranges,
    Thread,
    pid_of,
    process_of,
)

#: The name that ranges of a device's own thread get.
ON_DEVICE = "a module runs on the device"
#: What XLA names the ranges of what it runs on a device.
_XLA = re.compile(r"(?:XlaModule|Thunk):#")
#: What XLA's profiler names the thread that runs the program, whose number it does not record.
_PYTHON = re.compile(r"(?:python[0-9.]*|main(?:[ _]?thread)?)\Z", re.IGNORECASE)


def host_ranges_of(
    profile: Profile,
    idle: Mapping[int, intervals.Intervals],
    threads: Ints,
    steps: Mapping[int, Steps],
    shortest_ns: int,
) -> Ranges:
    """Return the ranges of some threads that touch idle time, without steps.

    Args:
        profile: as read.
        idle: when a device of each process was idle.
        threads: that launch, and main ones.
        steps: of each process.
        shortest_ns: shorter gaps are not attributed, so shorter ranges do not count.
    """
    since, until = (np.concatenate(c) for c in zip(*idle.values(), strict=True))
    lasting_ns = max(GRAIN_NS, shortest_ns)
    logs = [log for log in (profile.every_range, profile.system_calls) if log is not None]
    ranges = _merged([log.lasting(lasting_ns, threads, since, until) for log in logs])
    process = process_of(ranges.thread)
    keep = np.zeros(len(ranges), bool)
    for number, (since, until) in idle.items():
        rows = np.flatnonzero(process == number)
        before = np.searchsorted(until, ranges.start_ns[rows], side="right")
        keep[rows] = before < np.searchsorted(since, ranges.end_ns[rows])
    step_names = {name for table in steps.values() for name in table.names}
    return _on_device(_renamed(ranges.take(keep), step_names), profile.threads)


def _merged(logs: Sequence[Ranges]) -> Ranges:
    """Return the ranges of several logs in one table."""
    names = tuple(name for log in logs for name in log.names)
    first = np.cumsum([0, *(len(log.names) for log in logs)]).tolist()
    renumbered = (
        replace(log, name_id=log.name_id + at) for log, at in zip(logs, first, strict=False)
    )
    return replace(joined(tuple(renumbered)), names=names)


def _renamed(ranges: Ranges, left_out: Set[str]) -> Ranges:
    """Return ranges without those of some names, and with names as conventions take them."""
    used, row = np.unique(ranges.name_id, return_inverse=True)
    distinct = Numbering[str]()
    texts = (bare_name(ranges.names[name]) for name in used.tolist())
    of_name = np.array(
        [NONE if text in left_out else distinct.number(text) for text in texts],
        np.int64,
    )
    name_id = of_name[row]
    return replace(ranges, name_id=name_id, names=distinct.values).take(name_id != NONE)


def _on_device(ranges: Ranges, threads: Iterable[Thread]) -> Ranges:
    """Return ranges in which those of XLA on a device's own thread are named ``ON_DEVICE``.

    A trace records modules and instructions there in the device's time: the host does not do them.
    Other ranges of such threads are left out.
    """
    device_threads = [thread.thread for thread in threads if thread.name.startswith(DEVICE_THREAD)]
    if not device_threads:
        return ranges
    there = np.isin(ranges.thread, device_threads)
    of_xla = np.array([_XLA.match(name) is not None for name in ranges.names], bool)
    name_id = np.where(there, len(ranges.names), ranges.name_id)
    keep = ~there | of_xla[ranges.name_id]
    return replace(ranges, name_id=name_id, names=(*ranges.names, ON_DEVICE)).take(keep)


def main_thread(process: int, threads: Iterable[Thread]) -> int:
    """Return the main thread of a process: its first one, or else one named as Python's is."""
    first = (process << 24) + pid_of(process)
    names = {thread.thread: thread.name for thread in threads if thread.thread >> 24 == process}
    python = sorted(thread for thread, name in names.items() if _PYTHON.match(name))
    return python[0] if python and first not in names else first


def names_around(ranges: Ranges, thread: int, time_ns: int) -> tuple[str, ...]:
    """Return the names of a thread's ranges around an instant, outermost first."""
    rows = np.flatnonzero(
        (ranges.thread == thread) & (ranges.start_ns <= time_ns) & (time_ns <= ranges.end_ns)
    )
    length_ns = ranges.end_ns[rows] - ranges.start_ns[rows]
    order = np.lexsort((rows, ranges.start_ns[rows], -length_ns))
    return tuple(ranges.names[name] for name in ranges.name_id[rows[order]].tolist())
