"""Measures one device: attributes its idle time, and sums its idle time, work, copies and waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bubbleviz.analyses.idle import host
from bubbleviz.analyses.idle.attribution import attribute_idle
from bubbleviz.analyses.idle.copies import sum_copies
from bubbleviz.analyses.idle.evidence import Evidence, IdleOptions
from bubbleviz.analyses.idle.gaps import Device, Launches, list_lanes, measure_times, select_kinds
from bubbleviz.analyses.idle.held_back import sum_held_back
from bubbleviz.analyses.idle.proved_waits import COPY_NAME, find_proved_waits, get_work_name
from bubbleviz.analyses.idle.report import COPIES, RankIdle, StepIdle, add_up_work
from bubbleviz.analyses.idle.step_parts import divide_steps
from bubbleviz.analyses.idle.totals import sum_by_activity, sum_by_step
from bubbleviz.conventions import host_activities as known
from bubbleviz.conventions import kinds
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.interpret.process_steps import find_main_thread
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, make_constant
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import PAGE_MIGRATION, Activities, Profile, get_pid
from bubbleviz.model.texts import truncate_for_document
from bubbleviz.report.idle_summary import GapExample, LaunchQueue, WorkTotal

#: The launch queue is measured only if the launch of at least this fraction of the device's work is
#: known.
_MIN_LAUNCHED = 0.1
#: Maximum fraction of a device's span, at its start or end, for which launches are unrecorded.
#: Above this fraction, the launch queue is not measured.
_MAX_UNRECORDED_TIME = 0.25
#: Number of slices per strip in the picture, about one per pixel.
SLICES = 960
#: Maximum number of ranges listed for an example gap. The innermost ranges are kept.
_MAX_RANGES = 6


def measure_device(
    device: Device, profile: Profile, evidence: Evidence, options: IdleOptions
) -> RankIdle:
    """Measure everything that the report contains about one device.

    The idle time is attributed to activities and summed. Work, copies and waits are also summed.
    The launch queue is measured only for devices that ran more than one kernel or copy.

    Args:
        device: The device.
        profile: The profile of the device.
        evidence: The evidence for idle time that was gathered from the profile.
        options: Options of the analysis.
    """
    activities, source, numbers = profile.activities, profile.source, evidence.numbers
    steps, launches = evidence.steps[device.process], evidence.find_launches(device)
    main_thread = find_main_thread(device.process, profile.threads)
    fallback_threads = list(dict.fromkeys((evidence.lead[device.rank], main_thread)))
    threads = find_distinct(np.append(launches.thread, fallback_threads))
    events = evidence.host.select_for_rank(activities, device.rank, threads, numbers)
    idle = attribute_idle(
        device,
        launches,
        activities,
        evidence.waiting.delayed_work,
        events,
        fallback_threads,
        numbers,
    )

    def describe_gap(gap: int, number: int) -> GapExample | None:
        if numbers.values[number] == known.SHORT:
            return None
        return _find_example(
            gap, number, idle, device, launches, fallback_threads, activities, evidence
        )

    work = select_kinds(device, evidence.activities, options.kinds)
    times = measure_times(device, work)
    totals = sum_by_activity(idle, device, times["busy"], numbers.values, describe_gap)
    waits, awaited_communication_ns, awaited_copy_ns = find_proved_waits(
        device, times, profile, evidence.waiting, events, idle, numbers, options.kinds
    )
    held_back, held_back_ns = sum_held_back(evidence.held_back, evidence.activities, device)
    works = (*map(truncate_for_document, activities.names), COPY_NAME)
    start_ns, end_ns = device.span_ns
    lengths: dict[str, Any] = {
        f"{name}_ns": intervals.measure(time) for name, time in times.items()
    }
    return RankIdle(
        **_describe_device(device, profile),
        start_ns=start_ns,
        end_ns=end_ns,
        **lengths,
        activities=totals,
        steps=_add_parts(
            sum_by_step(idle, device, times["busy"], steps, numbers.values),
            device,
            profile,
            evidence,
            times,
        ),
        steps_by=steps.by,
        idle=replace(
            idle,
            before=_number_works(activities, idle.before, works),
            after=_number_works(activities, idle.after, works),
        ).compact(),
        works=works,
        activity_names=numbers.values,
        lanes=tuple(
            replace(lane, work=_number_works(activities, lane.work, works)).compact()
            for lane in list_lanes(device, work, times)
        ),
        lane_slice_ns=_slice_lanes(device, times),
        slice_ns=_slice_device(
            device, times, idle, [numbers.number(total.activity) for total in totals], numbers
        ),
        format=source.format,
        waits=waits,
        awaited_communication_ns=awaited_communication_ns,
        awaited_copy_ns=awaited_copy_ns,
        work=_sum_work(activities, device, works, options.kinds),
        copies=sum_copies(
            evidence.copies, activities, device, (times["compute"], times["communication"])
        ),
        held_back=held_back,
        held_back_ns=held_back_ns,
        are_events_recorded=evidence.are_events_recorded,
        launch_queue=_measure_recorded_queue(profile, device, evidence),
        overhead_ns=intervals.measure(intervals.clip_intervals(device.overhead, start_ns, end_ns)),
    )


def _add_parts(
    totals: Sequence[StepIdle],
    device: Device,
    profile: Profile,
    evidence: Evidence,
    times: Mapping[str, intervals.Intervals],
) -> tuple[StepIdle, ...]:
    """Add the parts of the time until the last work of each step, if launches are known.

    Args:
        totals: The steps, followed by the time outside of all steps, if any.
        device: The device.
        profile: The profile of the device.
        evidence: The evidence for idle time that was gathered from the profile.
        times: Times at which the device ran each kind of work; see :func:`.gaps.measure_times`.
    """
    if not profile.launches_known or profile.source.on_host:
        return tuple(totals)
    activities = profile.activities
    is_on_device = activities.rank == device.rank
    is_before = is_on_device & (activities.start_ns < device.span_ns[0])
    launched = np.flatnonzero(is_on_device & (evidence.call != NONE))
    parts = divide_steps(
        evidence.steps[device.process],
        device,
        times,
        evidence.launched_ns[launched],
        activities.end_ns[launched],
        int(activities.end_ns[is_before].max(initial=np.iinfo(np.int64).min)),
    )
    divided = (replace(step, parts=part) for step, part in zip(totals, parts, strict=False))
    return (*divided, *totals[len(parts) :])


def _describe_device(device: Device, profile: Profile) -> dict[str, Any]:
    """Return the attributes of :class:`.RankIdle` that say which device it is, keyed by name.

    Args:
        device: The device.
        profile: The profile of the device.
    """
    source = profile.source
    process, device_id = profile.activities.ranks[device.rank].tolist()
    pid, device_label = get_pid(process), profile.place(process, device_id)
    # A device description applies either to one process or to all processes.
    models = [d.name for d in profile.devices if d.device_id == device_id and d.pid in (pid, None)]
    return {
        "label": f"{source.host} pid {pid} {device_label}",
        "path": source.path,
        "host": source.host,
        "pid": pid,
        "device_id": device_id,
        "device_label": device_label,
        "is_host": source.on_host,
        "is_single": device.is_single and not source.on_host,
        "gpu": models[0] if models and models[0] else None,
    }


def _measure_recorded_queue(
    profile: Profile, device: Device, evidence: Evidence
) -> LaunchQueue | None:
    """Measure the launch queue of a device, or return None for a host or a single kernel or copy.

    Args:
        profile: The profile of the device.
        device: The device.
        evidence: The evidence for idle time that was gathered from the profile.
    """
    if profile.source.on_host or device.is_single:
        return None
    activities = profile.activities
    # If launches are not recorded, calls represent the work itself, so launching calls are unknown.
    call = evidence.call if profile.launches_known else make_constant(NONE, len(activities))
    return _measure_queue(activities, device, call, evidence.launched_ns)


def _find_example(
    gap: int,
    activity: int,
    idle: IdleIntervals,
    device: Device,
    launches: Launches,
    fallback_threads: Sequence[int],
    activities: Activities,
    evidence: Evidence,
) -> GapExample:
    """Describe a gap as an example of an activity, listing the host ranges that were open.

    The host is examined in the middle of the activity's longest piece in the gap, or at the launch
    of the next work if that is earlier. The ranges come from the launching thread, or from the
    first fallback thread that has any. No ranges are listed if the launching thread is unknown.

    Args:
        gap: Row in the device's gaps.
        activity: Id of an activity that has a piece in the gap.
        idle: Attributed idle time of the device.
        device: The device.
        launches: For each gap, the call that launched the work after it.
        fallback_threads: Threads to use, in order, if the launching thread recorded no range.
        activities: All kernels in the profile, followed by all copies.
        evidence: The evidence for idle time that was gathered from the profile.
    """
    # If the piece is after the launch of the next work, the ranges around the launch are listed.
    time_ns = min(_find_middle_of_longest(idle, gap, activity), int(launches.start_ns[gap]))
    thread = int(launches.thread[gap])
    threads = () if thread == NONE else (thread, *fallback_threads)
    gaps, steps = device.gaps, evidence.steps[device.process]
    start_ns = gaps.start_ns[gap : gap + 1]
    step = int(intervals.find_covering(steps.start_ns, steps.end_ns, start_ns)[0])
    return GapExample(
        start_ns=int(start_ns[0]),
        end_ns=int(gaps.end_ns[gap]),
        before=get_work_name(activities, int(gaps.before[gap])),
        after=get_work_name(activities, int(gaps.after[gap])),
        step=None if step == NONE else steps.names[int(steps.name_id[step])],
        where=_list_host_ranges(evidence, threads, time_ns),
    )


def _find_middle_of_longest(idle: IdleIntervals, gap: int, activity: int) -> int:
    """Return the midpoint, in ns, of a gap's longest piece with the given activity.

    Args:
        idle: Attributed idle time of a device, sorted by gap.
        gap: Row in the device's gaps.
        activity: Id of the activity, which has a piece in the gap.
    """
    first, end = np.searchsorted(idle.interval, (gap, gap + 1)).tolist()
    pieces = idle.take(slice(first, end))
    length_ns = np.where(pieces.activity == activity, pieces.end_ns - pieces.start_ns, NONE)
    longest = int(length_ns.argmax())
    return int(pieces.start_ns[longest] + pieces.end_ns[longest]) // 2


def _list_host_ranges(evidence: Evidence, threads: Sequence[int], time_ns: int) -> tuple[str, ...]:
    """Return the names of the thread ranges that contain a time, outermost first.

    The first thread that has ranges at that time is used. Only the ``_MAX_RANGES`` innermost ranges
    are listed. The result is empty if none of the threads has a range at that time.
    """
    for thread in threads:
        around = host.list_names_around(evidence.ranges, thread, time_ns)
        names = tuple(name for name in around if name != host.ON_DEVICE)
        if names:
            return names[-_MAX_RANGES:]
    return ()


def _number_works(activities: Activities, rows: Ints, works: Sequence[str]) -> Ints:
    """Return, for each row of the activities, the index of its name in ``works``.

    Args:
        activities: All kernels in the profile, followed by all copies.
        rows: Rows of the activities.
        works: Kernel names, followed by the name used for copies.
    """
    name = activities.name_id[rows].astype(np.int64)
    return np.where(name == NONE, len(works) - 1, name)


def _slice_device(
    device: Device,
    times: Mapping[str, intervals.Intervals],
    idle: IdleIntervals,
    activity_numbers: Sequence[int],
    numbers: Numbering[str],
) -> Ints:
    """Divide a device's span into equal slices, and sum work and idle time by kind in each slice.

    Args:
        device: The device.
        times: Times at which the device ran each kind of work; see :func:`.gaps.measure_times`.
        idle: Attributed idle time of the device. All other idle time is in short gaps.
        activity_numbers: Ids of the activities to include.
        numbers: Maps activity names to integer ids. A new name gets the next free id.

    Returns:
        Times in ns, shape (names, slices). The rows are compute, exposed communication and exposed
        copies, followed by the activities.
    """
    low_ns, high_ns = _list_slice_bounds(device)

    def measure(rows: Bools | slice) -> Ints:
        pieces = idle.start_ns[rows], idle.end_ns[rows]
        return intervals.measure_within(pieces, low_ns, high_ns)

    kinds_of_work = "compute", "exposed_communication", "exposed_copy"
    columns = [intervals.measure_within(times[name], low_ns, high_ns) for name in kinds_of_work]
    idle_ns = high_ns - low_ns - intervals.measure_within(times["busy"], low_ns, high_ns)
    short_ns, short = idle_ns - measure(slice(None)), numbers.number(known.SHORT)
    for number in activity_numbers:
        column = measure(idle.activity == number)
        columns.append(column + short_ns if number == short else column)
    return np.stack(columns)


def _list_slice_bounds(device: Device) -> tuple[Ints, Ints]:
    """Return the start and end of each slice of a device's span, in ns."""
    start_ns, end_ns = device.span_ns
    edges_ns = start_ns + (end_ns - start_ns) * np.arange(SLICES + 1) // SLICES
    return edges_ns[:-1], edges_ns[1:]


def _slice_lanes(device: Device, times: Mapping[str, intervals.Intervals]) -> Ints:
    """Return the time of compute, communication and copies in each slice of a device's span.

    Work of different kinds may run at the same time, so the times may add up to more than a slice.

    Args:
        device: The device.
        times: Times at which the device ran each kind of work; see :func:`.gaps.measure_times`.

    Returns:
        Times in ns, shape (3, slices).
    """
    low_ns, high_ns = _list_slice_bounds(device)
    kinds_of_work = "compute", "communication", "copy"
    return np.stack([intervals.measure_within(times[n], low_ns, high_ns) for n in kinds_of_work])


def _sum_work(
    activities: Activities, device: Device, works: Sequence[str], kind_names: Kinds
) -> tuple[WorkTotal, ...]:
    """Return the count and total duration of each kernel name, and of copies, on a device.

    Durations are clipped to the device's span. The durations of concurrent work are added up. Names
    that have no work in the span are left out.

    Args:
        activities: All kernels in the profile, followed by all copies.
        device: The device.
        works: Kernel names, followed by the name used for copies.
        kind_names: Names of the communication kernels.
    """
    rows = np.flatnonzero(activities.rank == device.rank)
    start_ns, end_ns = (
        np.clip(time[rows], *device.span_ns) for time in (activities.start_ns, activities.end_ns)
    )
    name = activities.name_id[rows].astype(np.int64)
    name = np.where(name == NONE, len(works) - 1, name)[end_ns > start_ns]
    work_ns = np.zeros(len(works), np.int64)
    np.add.at(work_ns, name, (end_ns - start_ns)[end_ns > start_ns])
    count = np.bincount(name, minlength=len(works))
    # Page migrations are counted as copies, even though they have names like kernels.
    classes = [
        COPIES if name == PAGE_MIGRATION else of
        for name, of in zip(
            activities.names, kinds.classify_kernels(activities.names, kind_names), strict=True
        )
    ] + [COPIES]
    columns = works, classes, count.tolist(), work_ns.tolist()
    totals = (WorkTotal(*row) for row in zip(*columns, strict=True))
    # A file may contain the same name several times.
    return tuple(total for total in add_up_work(totals) if total.count)


def _measure_queue(
    activities: Activities, device: Device, call: Codes, launched_ns: Ints
) -> LaunchQueue | None:
    """Measure a device's launch queue: the work that has been launched but has not started.

    Page migrations are ignored, because no call launches them.

    Args:
        activities: Kernels and copies in the profile.
        device: The device.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start time of the launching call, which is undefined if the call is unknown.

    Returns:
        The queue, or None if it cannot be measured. This is the case if launches are unknown for
        more than 90 % of the work, or for more than a quarter of the span at its start or end.
    """
    is_migration = np.array([*(name == PAGE_MIGRATION for name in activities.names), False], bool)
    is_launched = (activities.rank == device.rank) & ~is_migration[activities.name_id]
    rows = np.flatnonzero(is_launched)
    is_known = (call[rows] != NONE) & (launched_ns[rows] <= activities.start_ns[rows])
    n_known = int(is_known.sum())
    if n_known == 0 or n_known < _MIN_LAUNCHED * len(rows):
        return None
    unlaunched_ns = activities.start_ns[rows[~is_known]]
    known_launched_ns, start_ns = launched_ns[rows[is_known]], activities.start_ns[rows[is_known]]
    recorded_ns = int(known_launched_ns.min()), int(start_ns.max())
    if _has_unrecorded_launches(unlaunched_ns, recorded_ns, device.span_ns):
        return None
    return _compute_queue(known_launched_ns, start_ns, device.span_ns)


def _has_unrecorded_launches(
    unlaunched_ns: Ints, recorded_ns: tuple[int, int], span_ns: tuple[int, int]
) -> bool:
    """Return whether launches are unknown for too long at the start or end of a device's span.

    The length of the launch queue is then unknown, too. *Orphaned work* is work whose launch is
    unknown. The result is True if one of these periods exceeds the fraction
    ``_MAX_UNRECORDED_TIME`` of the span:

    - At the start: from the first orphaned work to the first known launch.
    - At the end: from the first orphaned work that starts after all other work, to the end of the
      span.

    Args:
        unlaunched_ns: Start times of the orphaned work.
        recorded_ns: Time of the first known launch, and start of the last work whose launch is
            known.
        span_ns: Start and end of the span.
    """
    (first_ns, last_ns), (low_ns, high_ns) = recorded_ns, span_ns
    before_ns = unlaunched_ns[unlaunched_ns < first_ns]
    after_ns = unlaunched_ns[unlaunched_ns > last_ns]
    limit_ns = _MAX_UNRECORDED_TIME * (high_ns - low_ns)
    if len(before_ns) and first_ns - max(before_ns.min(), low_ns) > limit_ns:
        return True
    return bool(len(after_ns) and high_ns - max(after_ns.min(), low_ns) > limit_ns)


def _compute_queue(launched_ns: Ints, start_ns: Ints, span_ns: tuple[int, int]) -> LaunchQueue:
    """Compute the depth of a launch queue from launch times and start times.

    A kernel or copy is in the queue from its launch until its start.

    Args:
        launched_ns: Launch time of each kernel or copy.
        start_ns: Start time of each kernel or copy, not before its launch.
        span_ns: Start and end of the period in which the depth is measured. Work that was launched
            earlier is in the queue from the start of the span.

    Returns:
        The mean depth over the span, the maximum depth, and the time during which the queue was
        empty.
    """
    low_ns, high_ns = span_ns
    times = np.concatenate((launched_ns, start_ns))
    change = np.repeat((1, -1), len(launched_ns))
    # The sort is stable, so launches come before starts at the same time.
    order = np.argsort(times, kind="stable")
    depth = np.cumsum(change[order])
    times = np.clip(times[order], low_ns, high_ns)
    length_ns = np.diff(np.append(times, high_ns))
    return LaunchQueue(
        mean=float((depth * length_ns).sum() / (high_ns - low_ns)),
        most=int(depth[length_ns > 0].max(initial=0)),
        empty_ns=high_ns - low_ns - int(length_ns[depth > 0].sum()),
    )
