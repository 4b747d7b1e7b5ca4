"""Divide the time of devices into parts of training steps: forward, backward, optimizer, loading.

The part of a kernel is that of the innermost range around its launch. A gap before a kernel belongs
to the part of the kernel, because the kernel was launched late, except while the host was loading
data::

    host     ├─ DataLoader ─┤├─ forward ───┤├─ backward ──────┤
    device                         ├ k ┤        ├─ k ─┤├ k ┤
    parts    data loading ───┤ forward ┤ backward ────────────┤
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions import host_activities
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.explain.late_arrivals import PartTimes
from bubbleviz.interpret import linking
from bubbleviz.interpret.process_steps import find_main_thread, find_process_steps
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, join_tables, make_mask
from bubbleviz.model.grouping import find_distinct, sort_rows
from bubbleviz.model.profile import Activities, Ranges, process_of

#: Names of the parts of a step.
LOADING, FORWARD, BACKWARD, OPTIMIZER = "data loading", "forward", "backward", "optimizer"
PARTS = (LOADING, FORWARD, BACKWARD, OPTIMIZER)
LOADING_PART, FORWARD_PART, BACKWARD_PART, OPTIMIZER_PART = range(len(PARTS))
#: Name globs of the ranges that show the part of a step.
PART_GLOBS = (
    "autograd::engine::evaluate_function*",
    "Optimizer.step#*",
    "*DataLoader*",
    "*[Ff]orward*",
    "*[Bb]ackward*",
    "*[Oo]ptimizer*",
)
#: Patterns of range names, and the index of the part they belong to.
_PATTERNS = (
    (
        re.compile(r"autograd::engine::|\W*backward\b", re.IGNORECASE),
        BACKWARD_PART,
    ),
    (re.compile(r"\W*optimizer\b|optimizer[._]step", re.IGNORECASE), OPTIMIZER_PART),
    (re.compile(r"\W*forward\b|\w+\.forward\b", re.IGNORECASE), FORWARD_PART),
)


@dataclass(frozen=True)
class DeviceSteps:
    """How the devices of a profile spent their steps, on the profile's clock.

    Attributes:
        parts: Times that devices spent in parts of steps. ``rank`` is the index of the device in
            the profile's ``activities.ranks``.
        steps: Steps of each process.
        process: Process of each device.
    """

    parts: PartTimes
    steps: dict[int, Steps]
    process: Ints


def find_device_steps(linked: linking.LinkedProfile, is_communication: Ints) -> DeviceSteps:
    """Find the steps of a profile, and divide the time of its devices into parts.

    Args:
        linked: The profile, with its work linked to calls.
        is_communication: Rows of the communication kernels in the profile's activities.
    """
    profile = linked.profile
    activities = profile.activities
    threads = _list_threads(linked)
    lookup = host_activities.default_activities()
    spans_ns = [
        (process, int(start_ns), int(end_ns))
        for (process, _), start_ns, end_ns in zip(
            activities.ranks.tolist(), *_find_spans(activities), strict=True
        )
        if end_ns > start_ns
    ]
    steps = find_process_steps(profile, spans_ns, threads, lookup, None) if spans_ns else {}
    part_of_name = np.array([_classify(bare_name(name)) for name in profile.ranges.names], np.int64)
    is_part = part_of_name[profile.ranges.name_id] >= 0
    ranges = profile.ranges.take(is_part)
    part_of_work = _find_work_parts(linked, ranges, part_of_name)
    processes = find_distinct(activities.ranks[:, 0].astype(np.int64)).tolist()
    loading = {process: _find_loading_times(profile.ranges, process) for process in processes}
    is_moving = make_mask(len(activities), is_communication)
    part_of_time = np.where(is_moving, NONE, part_of_work)
    devices = [
        _divide_device(activities, device, part_of_work, part_of_time, loading[process])
        for device, (process, _) in enumerate(activities.ranks.tolist())
    ]
    parts = join_tables(devices)
    return DeviceSteps(parts, steps, activities.ranks[:, 0].astype(np.int64))


def _list_threads(linked: linking.LinkedProfile) -> Ints:
    """Return the threads that launched work, and the main thread of each process."""
    work, profile = linked.work, linked.profile
    is_known = work.rule != linking.LinkRule.UNLINKED
    launching = work.threads[find_distinct(work.thread[is_known].astype(np.int64))]
    processes = find_distinct(profile.activities.ranks[:, 0].astype(np.int64)).tolist()
    main = [find_main_thread(process, profile.threads) for process in processes]
    return find_distinct(np.array(main, np.int64), launching.astype(np.int64))


def _find_spans(activities: Activities) -> tuple[list[int], list[int]]:
    """Return the start of the first work and the end of the last work of each device."""
    start_ns, end_ns = intervals.group_extents(
        activities.rank, len(activities.ranks), activities.start_ns, activities.end_ns
    )
    return start_ns.tolist(), end_ns.tolist()


def is_part_name(name: str) -> bool:
    """Return whether a range name shows the part of a step."""
    return _classify(bare_name(name)) != NONE or "DataLoader" in name


def _classify(name: str) -> int:
    """Return the index of the part that a range's name belongs to, or -1."""
    return next((part for pattern, part in _PATTERNS if pattern.match(name)), NONE)


def _find_work_parts(linked: linking.LinkedProfile, ranges: Ranges, part_of_name: Ints) -> Ints:
    """Return the part of each kernel and copy, or -1 if unknown.

    If backwards are known and no forward is, work that is launched outside of the known parts
    belongs to the forward, which includes the loss.

    Args:
        linked: The profile, with its work linked to calls.
        ranges: Ranges that belong to a part.
        part_of_name: Part of each range name.
    """
    work = linking.link(linked.profile, ranges).work
    part_of_range = np.append(part_of_name[ranges.name_id], NONE)
    part = part_of_range[work.range.astype(np.int64)]
    known = find_distinct(part)
    if BACKWARD_PART in known and FORWARD_PART not in known:
        part = np.where(part == NONE, FORWARD_PART, part)
    return np.asarray(part, np.int64)


def _find_loading_times(ranges: Ranges, process: int) -> intervals.Intervals:
    """Return the times in which a process was loading data.

    Args:
        ranges: Ranges of all processes.
        process: The process.
    """
    lookup = host_activities.default_activities()
    is_loading = np.array(
        [lookup.classify_range(bare_name(name))[0] == LOADING for name in ranges.names], bool
    )
    mask = is_loading[ranges.name_id] & (process_of(ranges.thread) == process)
    return intervals.union(ranges.start_ns, ranges.end_ns, mask)


def _divide_device(
    activities: Activities,
    device: int,
    part_of_gap: Ints,
    part_of_work: Ints,
    loading: intervals.Intervals,
) -> PartTimes:
    """Divide the time of a device into parts.

    Args:
        activities: Kernels and copies.
        device: Index of the device.
        part_of_gap: Part of the idle time before each kernel or copy, or -1.
        part_of_work: Part of the time of each kernel or copy, or -1.
        loading: Times in which the host was loading data.
    """
    rows = np.flatnonzero(activities.rank == device)
    rows = rows[sort_rows(activities.start_ns[rows])]
    start_ns, end_ns = activities.start_ns[rows], activities.end_ns[rows]
    latest_ns = np.maximum.accumulate(end_ns) if len(rows) else end_ns
    before_ns = np.append(start_ns[:1], latest_ns[:-1])
    is_gap = start_ns > before_ns
    gap, piece_start_ns, piece_end_ns = intervals.split_at(
        before_ns[is_gap], start_ns[is_gap], np.concatenate(loading)
    )
    is_loading = intervals.find_covering(*loading, piece_start_ns) != NONE
    piece_part = np.where(is_loading, LOADING_PART, part_of_gap[rows][is_gap][gap])
    part = np.concatenate((piece_part, part_of_work[rows]))
    parts = PartTimes(
        rank=np.full(len(part), device, np.int64),
        part=part,
        start_ns=np.concatenate((piece_start_ns, np.maximum(start_ns, before_ns))),
        end_ns=np.concatenate((piece_end_ns, latest_ns)),
        names=PARTS,
    )
    return parts.take(part != NONE)
