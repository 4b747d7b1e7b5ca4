"""Damaged work: kernels and copies with impossible times, places or rows, and lost kernels.

Work whose times contradict its launching call or the capture is left out::

    calls          ├──────── capture ────────┤
    launch         │     ▼                   │
    sound          │      ████               │ ██     launched late in the capture, ended after it
    left out       │ ██                      │        began before its own launch
    left out   ██  │                         │    ███ lies outside the capture, and far from it

Launches without a recorded kernel are counted as lost if the capture went on::

    launches     │ a  b  c  d  e  f │
    kernels      │  a  b     d      │     c is lost; e and f had not run when the capture ended

Recording had stopped if the process goes on for longer than any work took from launch to end::

    launches     │ a  b  c  d  e  f        synchronize │
    kernels      │  a  b  c                            │     d, e and f are lost
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from bubbleviz.conventions.kinds import GRAPH_LAUNCHES, KERNEL_LAUNCHES
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.interpret.launches import Launches, WorklessRows
from bubbleviz.model import profile
from bubbleviz.model.capture import mask_outside_capture
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, make_mask
from bubbleviz.model.grouping import find_distinct, find_positions, group_rows, list_rows_by_value
from bubbleviz.model.intervals import group_extents, group_latest
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.texts import format_count, format_percent, list_first

#: Maximum time from the start of work to its launching call that a clock difference explains, in
#: ns.
_CLOCK_GRAIN_NS = 100_000
#: The same maximum if many kernels begin early, in ns.
_CLOCK_DRIFT_NS = 10_000_000
#: Early kernels count as many if there is at least one in ``_MANY`` kernels.
_MANY = 20
#: Number of rows that are checked at a time, to save memory.
_PIECE = 1 << 16
#: Work in an unknown place is damaged if it is at most one in ``_FEW`` kernels and copies.
_FEW = 100
#: Maximum number of places that a limitation lists.
_LISTED = 4
#: Minimum usual duration of kernels that cannot have a duration of 0, in ns. Some profilers count
#: in microseconds, so a short kernel may have no duration.
_LONG_NS = 10_000
#: Number of calls without work that are checked first. The others are checked only if one of these
#: is lost.
_FIRST = 1 << 13
#: Minimum share of lost kernels of a process that marks the ratios.
_NOTICEABLE = 0.01
#: Minimum number of lost kernels in a sample from which the total is estimated, to within a third.
_ENOUGH = 10
#: Maximum duration of a kernel at the end of the capture, as a multiple of the longest other one.
_FAR_LONGER = 2
#: Launch time of a thread without launches, and a time after the end of every capture.
_NEVER, _FOREVER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)

_Notes: TypeAlias = list[Limitation]


def check_times(
    path: str,
    activities: profile.Activities,
    call: Codes,
    launched_ns: Ints,
    capture_ns: tuple[int, int] | None,
) -> tuple[Bools | None, _Notes]:
    """Check the times of work against its launching call and the capture.

    The times are impossible if the work lies far outside the capture, or starts too early before
    its call; see :func:`_find_early_work`.

    The clocks of a GPU and its host differ by microseconds, or by milliseconds if the profiler
    corrects their drift badly. Many kernels then begin too early by similar times, and nothing is
    left out. A damaged time stands out from the others. Each device is checked separately.

    Args:
        path: Path of the profile.
        activities: GPU activities of the profile, kernels before copies.
        call: Launching call of each activity, or -1 if unknown.
        launched_ns: Start time of these calls.
        capture_ns: Start of the first call and end of the last, or None if no host made calls.

    Returns:
        is_possible: Mask of the activities whose times are possible, or None if all are.
        notes: Limitations.
    """
    notes = list[Limitation]()
    is_early = np.zeros(len(activities), bool)
    n_skewed = skew_ns = 0
    if _starts_before_launch(activities.start_ns, call, launched_ns):
        is_early, n_skewed, skew_ns = _find_early_work(activities, call, launched_ns)
    kind = LimitationKind.KERNELS_LEFT_OUT
    n_early = int(is_early.sum())
    if n_early:
        reason = f"{path}: they start before the call that launched them; left out"
        subject = "kernels and copies before their launching call"
        times_ns = launched_ns[is_early].astype(np.int64)
        notes.append(Limitation(subject, reason, n_early, kind, times_ns=times_ns))
    is_outside = mask_outside_capture(activities.start_ns, activities.end_ns, capture_ns)
    if is_outside is not None and (n_outside := int((is_outside & ~is_early).sum())):
        notes.append(profile.report_outside_capture("kernels and copies", path, n_outside, kind))
    if n_skewed:
        reason = (
            f"{path}: many start before their launching call, by up to {skew_ns / 1e6:,.3f} ms, so "
            "the clocks of GPU and host differ; they are kept, and host activity is uncertain by "
            "as much"
        )
        notes.append(Limitation("the clock of the GPU", reason, n_skewed))
    if is_outside is not None:
        return ~(is_early | is_outside), notes
    return (~is_early if n_early else None), notes


def _starts_before_launch(start_ns: Ints, call: Codes, launched_ns: Ints) -> bool:
    """Return whether any work starts more than clock noise before its launching call.

    Args:
        start_ns: Start of each activity.
        call: Launching call of each activity, or -1 if unknown.
        launched_ns: Start time of these calls.
    """
    for first in range(0, len(call), _PIECE):
        piece = slice(first, first + _PIECE)
        is_early = start_ns[piece] < launched_ns[piece] - _CLOCK_GRAIN_NS
        if (call[piece][np.flatnonzero(is_early)] != NONE).any():
            return True
    return False


def _find_early_work(
    activities: profile.Activities, call: Codes, launched_ns: Ints
) -> tuple[Bools, int, int]:
    """Find the work that starts so early before its launching call that it is left out.

    The limit is computed for each device; see :func:`_compute_early_limit`. Work without a known
    call is kept.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        call: Launching call of each activity, or -1 if unknown.
        launched_ns: Start time of these calls.

    Returns:
        is_early: Mask of the work that is left out.
        n_skewed: Number of activities that start before their call and are kept.
        skew_ns: Longest time by which one of these starts before its call.
    """
    is_early = np.zeros(len(activities), bool)
    n_skewed = skew_ns = 0
    for rank in range(len(activities.ranks)):
        rows = np.flatnonzero((activities.rank == rank) & (call != NONE))
        delay_ns = activities.start_ns[rows] - launched_ns[rows]
        is_left_out = delay_ns < -_compute_early_limit(delay_ns)
        is_skewed = (delay_ns < -_CLOCK_GRAIN_NS) & ~is_left_out
        if is_skewed.any():
            n_skewed += int(is_skewed.sum())
            skew_ns = max(skew_ns, int(-delay_ns[is_skewed].min()))
        is_early[rows[is_left_out]] = True
    return is_early, n_skewed, skew_ns


def _compute_early_limit(delay_ns: Ints) -> int:
    """Return how long before its launching call work may begin, in ns.

    If most work begins before its call, the limit is large enough to keep all work. It is
    ``_CLOCK_DRIFT_NS`` if many activities begin more than ``_CLOCK_GRAIN_NS`` before their calls,
    or if some do and at least as many begin before their calls by less. Otherwise it is
    ``_CLOCK_GRAIN_NS``.

    Args:
        delay_ns: Time from the start of the call to the start of the work, for all work of a
            device.
    """
    n_negative = int((delay_ns < 0).sum())
    n_early = int((delay_ns < -_CLOCK_GRAIN_NS).sum())
    if 2 * n_negative > len(delay_ns):
        return profile.IMPOSSIBLE_NS
    is_drift = n_early > max(1, len(delay_ns) // _MANY) or n_negative >= 2 * n_early > 0
    return _CLOCK_DRIFT_NS if is_drift else _CLOCK_GRAIN_NS


def check_places(
    source: profile.Source,
    activities: profile.Activities,
    devices: Sequence[profile.Device],
    calling: Ints | None,
) -> tuple[Bools, _Notes]:
    """Check the processes and devices of work against the list of devices and the calls.

    A damaged identifier puts a kernel on a process or device that nothing else mentions::

        calls of      process 1   process 2
        devices of    process 1   process 2
        kernels of    process 1   process 2   process 7     a few: left out
                       GPU 0       GPU 1       GPU 1

    A rank is left out if it has at most one in ``_FEW`` kernels and copies, and its device is not
    listed or its process made no call. If more work ran there, the lists are incomplete. The work
    is then kept, and a limitation counts the devices that are not listed.

    Args:
        source: Source of the profile.
        activities: GPU activities of the profile, kernels before copies.
        devices: Devices that the profile lists, or empty if it has no list.
        calling: Processes that made calls, ascending, or None if no calls were recorded.

    Returns:
        is_left_out: Mask of the ranks whose work is left out.
        notes: Limitations.
    """
    places = activities.ranks.tolist()
    work = activities.count_by_rank()
    listed_devices = {(device.pid, device.device_id) for device in devices}
    unlisted = np.array(
        [not listed_devices & {(None, d), (profile.get_pid(p), d)} for p, d in places], bool
    )
    if not listed_devices or unlisted.all():
        unlisted[:] = False
    silent = np.zeros(len(places), bool)
    if calling is not None and len(calling):
        silent = find_positions(calling, activities.ranks[:, 0]) == NONE
    left_out = (unlisted | silent) & (work <= max(1, len(activities) // _FEW))
    if left_out.all():
        left_out[:] = False
    unlisted &= ~left_out

    def in_words(ranks: Bools) -> str:
        selected = [places[rank] for rank in np.flatnonzero(ranks).tolist()]
        words = [
            f"pid {profile.get_pid(process)} {source.place(device)}" for process, device in selected
        ]
        return f"{source.path}: {list_first(words, _LISTED)}"

    notes = []
    if count := int(work[left_out].sum()):
        reason = (
            f"{in_words(left_out)}: in no call and no list of devices, so an identifier is "
            "damaged; they are left out"
        )
        subject = "kernels and copies of unknown processes or devices"
        notes.append(Limitation(subject, reason, count, LimitationKind.COSTS))
    if unlisted.any():
        ran = format_count(int(work[unlisted].sum()), "kernel or copy", "kernels and copies")
        reason = f"{in_words(unlisted)}: {ran} ran there, and are kept"
        subject = "devices that the profile does not list"
        notes.append(Limitation(subject, reason, int(unlisted.sum())))
    return left_out, notes


def check_rows(
    path: str,
    activities: profile.Activities,
    launches: Launches,
    calls: profile.CallLog,
    is_possible: Bools | None,
) -> tuple[Ints, Ints, _Notes]:
    """Find work that is recorded twice, and kernels without a duration.

    A call launches a kernel once, so two rows with the same call, name, device and times are
    duplicates, except for nodes of a CUDA graph, which may run at the same time. A kernel cannot
    have a duration of 0 if most kernels of its name are long.

    Args:
        path: Path of the profile.
        activities: GPU activities of the profile, kernels before copies.
        launches: Launches of the activities.
        calls: All API calls of the profile.
        is_possible: Mask of the activities whose times are possible, or None if all are.

    Returns:
        duplicates: Rows that are left out because an earlier row is equal.
        zero_length: Rows of the kernels without a duration. They are kept.
        notes: Limitations.
    """
    repeated, notes = _find_repeated_rows(activities, launches.sharing), list[Limitation]()
    if len(repeated):
        call = launches.call[repeated].astype(np.int64)
        of_graphs = calls.select_by_prefix(find_distinct(call[call != NONE]), GRAPH_LAUNCHES)
        repeated = repeated[~np.isin(call, of_graphs)]
    if len(repeated):
        reason = f"{path}: same call, name and times as another row; each counts once"
        subject, kind = "kernels and copies recorded twice", LimitationKind.COSTS
        notes.append(Limitation(subject, reason, len(repeated), kind))
    zero_length = _find_zero_length_kernels(activities)
    if is_possible is not None:
        # Another limitation counts the kernels with impossible times.
        zero_length = zero_length[is_possible[zero_length]]
    if len(zero_length):
        reason = (
            f"{path}: they take no time though others of the same name do, so the profile is "
            "damaged, and idle time around them is unknown; export or record it again"
        )
        kind = LimitationKind.KERNELS_LEFT_OUT
        subject, times_ns = "kernels without a duration", activities.start_ns[zero_length]
        notes.append(Limitation(subject, reason, len(zero_length), kind, times_ns=times_ns))
    return repeated, zero_length, notes


def _find_repeated_rows(activities: profile.Activities, rows: Codes) -> Ints:
    """Return the rows that equal an earlier row.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        rows: Rows that share their correlation id with another row.
    """
    if len(rows) == 0:
        return np.empty(0, np.int64)
    names = ("rank", "correlation_id", "name_id", "start_ns", "end_ns")
    columns = (getattr(activities, name)[rows].astype(np.int64) for name in names)
    return rows[number_occurrences((*columns, (rows < activities.kernels).astype(np.int64))) > 0]


def _find_zero_length_kernels(activities: profile.Activities) -> Ints:
    """Return the rows of kernels without a duration whose name has a long median duration.

    The median is taken over the kernels of the name that have a duration; it must be at least
    ``_LONG_NS``.
    """
    count = activities.kernels
    start_ns, end_ns = activities.start_ns[:count], activities.end_ns[:count]
    pieces = (slice(at, at + _PIECE) for at in range(0, count, _PIECE))
    candidates = [p.start + np.flatnonzero(start_ns[p] == end_ns[p]) for p in pieces]
    rows = np.concatenate([np.empty(0, np.int64), *candidates])
    if len(rows) == 0:
        return rows
    name = activities.name_id[:count]
    has_zero_length = make_mask(len(activities.names), name[rows])
    rows = np.flatnonzero(has_zero_length[name])
    zero_length = [rows[:0]]
    for _, members in list_rows_by_value(name[rows]):
        duration_ns = end_ns[rows[members]] - start_ns[rows[members]]
        positive_ns = np.sort(duration_ns[duration_ns > 0])
        if len(positive_ns) and positive_ns[len(positive_ns) // 2] >= _LONG_NS:
            zero_length.append(rows[members[duration_ns <= 0]])
    return np.concatenate(zero_length)


@dataclass(frozen=True)
class ProcessLoss:
    """Lost and recorded kernels of a process.

    Attributes:
        process: Number of the process.
        count: Number of lost kernels, an estimate if calls were sampled.
        n_sampled: Number of lost kernels in the sample.
        kernels: Number of recorded kernels that were launched while kernels can count as lost.
        launched_ns: Launch times of the lost kernels in the sample.
        first_launch_ns: Launch time of the first recorded work of the process, or the smallest
            number if unknown.
        last_launch_ns: Launch time of the last recorded work of the process, or the largest number
            if unknown.
    """

    process: int
    count: int
    n_sampled: int
    kernels: int
    launched_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64), compare=False)
    first_launch_ns: int = _NEVER
    last_launch_ns: int = _FOREVER

    @property
    def before_span(self) -> int:
        """Number of lost kernels in the sample that were launched before all recorded work."""
        return int((self.launched_ns < self.first_launch_ns).sum())

    @property
    def after_span(self) -> int:
        """Number of lost kernels in the sample that were launched after all recorded work."""
        return int((self.launched_ns > self.last_launch_ns).sum())


@dataclass(frozen=True)
class LostKernels:
    """Kernels that were launched and not recorded.

    Attributes:
        processes: Losses of each process that launched any kernel, by process number. Empty if no
            kernel is lost.
        is_sampled: Whether only a sample of the calls without work was checked.
        calls: Checked calls that lost their kernel.
    """

    processes: tuple[ProcessLoss, ...]
    is_sampled: bool
    calls: profile.Calls


def find_lost_kernels(
    workless: WorklessRows,
    launches: Launches,
    activities: profile.Activities,
    of_launch: tuple[Codes, Ints],
    calls: profile.CallLog,
) -> LostKernels:
    """Find the kernels that were launched before recorded ones and are not in the profile.

    A launch counts only if its kernel should have been recorded; see :func:`find_recorded_until`
    and :func:`find_recording_stops`. Processes that need not have lost kernels are left out. A
    failed launch makes no kernel, and neither does a launch while a stream is captured into a CUDA
    graph. If very many calls have no work, only a sample of them is checked.

    Args:
        workless: Calls without work.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Index of the thread that launched each activity (undefined if the launch is
            unknown), and the thread ids, indexed by it.
        calls: All API calls of the profile.
    """
    rows, step = workless.sample(_FIRST)
    lost_calls = _find_launches_without_kernel(rows, launches, calls)
    if len(lost_calls) == 0:
        return LostKernels((), step > 1, lost_calls)
    until_ns = find_recorded_until(launches, activities, of_launch)
    threads = of_launch[1]
    until_ns = find_recording_stops(
        lost_calls, until_ns, launches, activities, of_launch, calls, patience=_FAR_LONGER
    )
    lost_calls = select_launched_before(lost_calls, until_ns, threads)
    if len(lost_calls) and step > workless.step:
        rows, step = workless.sample()
        lost_calls = _find_launches_without_kernel(rows, launches, calls)
        lost_calls = select_launched_before(lost_calls, until_ns, threads)
    if len(lost_calls):
        lost_calls = _drop_explained_launches(lost_calls, step, launches, activities, calls)
    if len(lost_calls) == 0:
        return LostKernels((), step > 1, lost_calls)
    losses = _count_by_process(lost_calls, step, until_ns, launches, activities, of_launch)
    return LostKernels(tuple(losses), step > 1, lost_calls)


def _drop_explained_launches(
    lost_calls: profile.Calls,
    step: int,
    launches: Launches,
    activities: profile.Activities,
    calls: profile.CallLog,
) -> profile.Calls:
    """Return the calls without a kernel, except those of processes that need not have lost any.

    The kernels of a process may be linked to the wrong launches, or to none::

        launches     │ a1 a2   b1 b2          │
        kernels      │   a1 a1     b1 b1      │    as many as launches, so none is lost

    - If launches have several kernels each, the others may belong to launches without one.
    - If no kernel of a process is linked, the profile lacks the links.

    Args:
        lost_calls: Checked calls without a kernel, at least one.
        step: Number of calls that each checked call stands for.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        calls: All API calls of the profile.
    """
    sharing, call = _find_sharing_kernels(launches, activities, calls)
    process_of_sharing = activities.ranks[:, 0][activities.rank[sharing]]
    process_of_kernel = activities.ranks[:, 0][activities.rank[: activities.kernels]]
    is_linked = launches.call[: activities.kernels] != NONE
    is_explained = np.zeros(len(lost_calls), bool)
    for number, rows in list_rows_by_value(profile.process_of(lost_calls.thread)):
        called = call[process_of_sharing == number]
        n_others = len(called) - len(find_distinct(called))
        is_own = process_of_kernel == number
        is_unlinked = is_own.any() and not is_linked[is_own].any()
        is_explained[rows] = is_unlinked or n_others >= step * len(rows)
    return lost_calls.take(~is_explained)


def _find_sharing_kernels(
    launches: Launches, activities: profile.Activities, calls: profile.CallLog
) -> tuple[Ints, Ints]:
    """Find the kernels that share their launch with other kernels.

    Repeated rows and kernels of graph launches are left out.

    Args:
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        calls: All API calls of the profile.

    Returns:
        rows: Rows of the kernels.
        call: Row of the launching call of each.
    """
    rows = launches.sharing[launches.sharing < activities.kernels]
    rows = np.setdiff1d(rows, _find_repeated_rows(activities, rows))
    call = launches.call[rows].astype(np.int64)
    # A graph launch has many kernels.
    is_launched = np.isin(
        call, calls.select_by_prefix(find_distinct(call[call != NONE]), KERNEL_LAUNCHES)
    )
    return rows[is_launched], call[is_launched]


def _count_by_process(
    lost_calls: profile.Calls,
    step: int,
    until_ns: Ints,
    launches: Launches,
    activities: profile.Activities,
    of_launch: tuple[Codes, Ints],
) -> Iterator[ProcessLoss]:
    """Yield the losses of each process that launched any kernel, by process number.

    Args:
        lost_calls: Checked calls that lost their kernel.
        step: Number of calls that each checked call stands for.
        until_ns: Time of each thread until which kernels can count as lost.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Index of the thread that launched each activity (undefined if the launch is
            unknown), and the thread ids, indexed by it.
    """
    n_kernels, first_ns, last_ns = _summarize_launches(until_ns, launches, activities, of_launch)
    process = profile.process_of(of_launch[1])
    lost_rows = dict(list_rows_by_value(profile.process_of(lost_calls.thread)))
    no_rows = np.empty(0, np.int64)
    for number in find_distinct(process).tolist():
        is_own = process == number
        total = int(n_kernels[is_own].sum())
        rows = lost_rows.get(number, no_rows)
        if total or len(rows):
            yield ProcessLoss(
                process=number,
                count=step * len(rows),
                n_sampled=len(rows),
                kernels=total,
                launched_ns=np.asarray(lost_calls.start_ns[rows], np.int64),
                first_launch_ns=int(first_ns[is_own].min()) if total else _NEVER,
                last_launch_ns=int(last_ns[is_own].max()) if total else _FOREVER,
            )


def _summarize_launches(
    until_ns: Ints,
    launches: Launches,
    activities: profile.Activities,
    of_launch: tuple[Codes, Ints],
) -> tuple[Ints, Ints, Ints]:
    """Summarize the launches of each thread whose work was recorded.

    Args:
        until_ns: Time of each thread until which kernels can count as lost.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Index of the thread that launched each activity (undefined if the launch is
            unknown), and the thread ids, indexed by it.

    Returns:
        n_kernels: Number of recorded kernels that each thread launched until ``until_ns``.
        first_ns: First launch of recorded work, undefined without any.
        last_ns: Last launch of recorded work, undefined without any.
    """
    n_threads = len(of_launch[1])
    linked = np.flatnonzero(launches.call != NONE)
    launched_ns, thread = launches.start_ns[linked], of_launch[0][linked]
    # A thread's bound may be the time of its own last launch, which counts as well.
    is_counted = (linked < activities.kernels) & (launched_ns <= until_ns[thread])
    n_kernels = np.bincount(thread[is_counted], minlength=n_threads)
    first_ns, last_ns = group_extents(thread.astype(np.int64), n_threads, launched_ns, launched_ns)
    return n_kernels, first_ns, last_ns


def find_recorded_until(
    launches: Launches, activities: profile.Activities, of_launch: tuple[Codes, Ints]
) -> Ints:
    """Return the time of each thread until which all work that it launched should be recorded.

    Args:
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Index of the thread that launched each activity (undefined if the launch is
            unknown), and the thread ids, indexed by it.
    """
    linked = np.flatnonzero(launches.call != NONE)
    launched_ns, thread = launches.start_ns[linked], of_launch[0][linked]
    return _compute_recorded_until(launched_ns, activities.start_ns[linked], thread, of_launch[1])


def find_recording_stops(
    without_work: profile.Calls,
    until_ns: Ints,
    launches: Launches,
    activities: profile.Activities,
    of_launch: tuple[Codes, Ints],
    calls: profile.CallLog,
    *,
    patience: int = 1,
) -> Ints:
    """Return the time of each thread until which its work should be recorded.

    This is ``until_ns``, or a later time if one of two observations justifies it:

    - Its process waited for all work of its only device. Work that was launched before the last
      such wait began has ended.
    - Recording stopped before its process did. The process is active until its last launch, or
      until it last returns from waiting for the device. If this is after the end of its last
      recorded work by more than a limit, recording stopped. The limit is ``patience`` times the
      longest time from launch to end of any work of the process. All launches of a thread should
      then have recorded work if one of its launches without work is older than the limit when the
      process is last active.

    Args:
        without_work: Launches without recorded work.
        until_ns: Time of each thread, as returned by :func:`find_recorded_until`.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Index of the thread that launched each activity (undefined if the launch is
            unknown), and the thread ids, indexed by it.
        calls: All API calls of the profile.
        patience: Multiple of the longest time from launch to end.

    Returns:
        Time of each thread, or the largest number if all its launches should have recorded work.
    """
    thread = _locate_threads(of_launch[1], without_work)
    is_late = without_work.start_ns >= until_ns[thread]
    if not is_late.any():
        return until_ns
    late_calls, thread = without_work.take(is_late), thread[is_late]
    until_ns = np.maximum(until_ns, _find_last_synchronization(of_launch[1], activities, calls))
    synchronizing = calls.at(calls.find_containing("Synchronize"))
    linked = np.flatnonzero(launches.call != NONE)
    process = profile.process_of(of_launch[1])
    process_of_work = process[of_launch[0][linked]]
    for number, rows in list_rows_by_value(process[thread]):
        of_process = linked[process_of_work == number]
        if len(of_process):
            is_overdue = _mask_overdue_launches(
                late_calls.start_ns[rows],
                launches.start_ns[of_process],
                activities.end_ns[of_process],
                synchronizing.end_ns[profile.process_of(synchronizing.thread) == number],
                patience,
            )
            until_ns[thread[rows[is_overdue]]] = _FOREVER
    return until_ns


def _locate_threads(threads: Ints, calls: profile.Calls) -> Ints:
    """Return the index in ``threads`` of the thread of each call, for distinct threads."""
    order = np.argsort(threads)
    index: Ints = order[find_positions(threads[order], calls.thread)]
    return index


def _mask_overdue_launches(
    late_ns: Ints, launched_ns: Ints, ended_ns: Ints, returned_ns: Ints, patience: int
) -> Bools:
    """Return a mask of the launches whose work is missing because the recording stopped before it.

    The mask is all False if the recording did not stop before the process; see the second
    observation of :func:`find_recording_stops`.

    Args:
        late_ns: Times of the launches of a process without recorded work, at least one.
        launched_ns: Launch times of its recorded work, at least one.
        ended_ns: Ends of this work.
        returned_ns: Times at which its threads returned from waiting for the device.
        patience: Multiple of the longest time from launch to end.
    """
    last_active_ns = max(
        int(late_ns.max()), int(launched_ns.max()), int(returned_ns.max(initial=_NEVER))
    )
    longest_ns = patience * int((ended_ns - launched_ns).max())
    if last_active_ns - int(ended_ns.max()) <= longest_ns:
        return np.zeros(len(late_ns), bool)
    return np.asarray(late_ns + longest_ns < last_active_ns, bool)


def _find_last_synchronization(
    threads: Ints, activities: profile.Activities, calls: profile.CallLog
) -> Ints:
    """Return when the process of each thread last began to wait for all work of its only device.

    Processes with several devices are ignored, because they may have waited for another device.

    Args:
        threads: The threads.
        activities: GPU activities of the profile, kernels before copies.
        calls: All API calls of the profile.

    Returns:
        The time of each thread, or the smallest number if its process has no such wait.
    """
    waits = find_device_waits(activities, calls)
    process = profile.process_of(threads)
    until_ns = np.full(len(threads), _NEVER, np.int64)
    for number, rows in list_rows_by_value(profile.process_of(waits.thread)):
        until_ns[process == number] = waits.start_ns[rows].max()
    return until_ns


def find_device_waits(activities: profile.Activities, calls: profile.CallLog) -> profile.Calls:
    """Return the successful calls in which a process waited for all work of its only device.

    Calls of processes with several devices are left out, because they may wait for another device.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        calls: All API calls of the profile.
    """
    rows = find_distinct(
        *(calls.find_containing(f"{part}Synchronize") for part in ("Device", "Ctx"))
    )
    waits = calls.at(rows[~calls.mask_failed(rows)])
    processes, n_devices = np.unique(activities.ranks[:, 0], return_counts=True)
    # np.isin would import numpy.ma, which takes some 15 ms.
    position = find_positions(processes[n_devices == 1], profile.process_of(waits.thread))
    return waits.take(position != NONE)


def select_launched_before(calls: profile.Calls, until_ns: Ints, threads: Ints) -> profile.Calls:
    """Return the calls that began before a time of their thread.

    Args:
        calls: Calls of these threads.
        until_ns: Time of each thread.
        threads: Distinct threads.
    """
    return calls.take(calls.start_ns < until_ns[_locate_threads(threads, calls)])


def _find_launches_without_kernel(
    rows: Ints, launches: Launches, calls: profile.CallLog
) -> profile.Calls:
    """Return the kernel launches without a recorded kernel.

    Launches that failed, and launches while their process captured a stream into a CUDA graph, make
    no kernel and are left out.

    Args:
        rows: Rows of the calls to check.
        launches: Launching calls of all activities.
        calls: All API calls of the profile.
    """
    launched = calls.at(calls.select_by_prefix(rows, KERNEL_LAUNCHES))
    launched = launched.take(~launches.find_calls_with_work(launched))
    if len(launched):
        launched = launched.take(~calls.mask_failed(launched.row))
    if len(launched):
        launched = launched.take(~_mask_captured_launches(launched, calls))
    return launched


def _compute_recorded_until(
    launched_ns: Ints, start_ns: Ints, thread: Codes, threads: Ints
) -> Ints:
    """Return the time of each thread until which all kernels that it launched should be recorded.

    This is the launch time of the thread's last recorded work. For a thread without recorded work
    it is the last such time of its process, or the largest number if the process has no recorded
    work.

    A stream may still wait when the capture ends, while other streams go on. The stream of a lost
    kernel is not recorded, so it may have waited as long as any work of its process::

        launches     │ a     b     c     │
        kernels      │   a        b   c  │    one at the time of c may have waited as long as b

    Args:
        launched_ns: Launch times of the work whose launch is known.
        start_ns: Start times of this work.
        thread: Thread that launched it, as an index into ``threads``.
        threads: Threads that made calls.
    """
    processes = group_rows(profile.process_of(threads))
    process = processes.of_row[thread]
    latest_ns = group_latest(thread, len(threads), launched_ns, _NEVER)
    of_process = group_latest(processes.of_row, len(processes), latest_ns, _NEVER)
    latest_ns = np.where(latest_ns == _NEVER, of_process[processes.of_row], latest_ns)
    wait_ns = np.maximum(group_latest(process, len(processes), start_ns - launched_ns, 0), 0)
    last_ns = group_latest(process, len(processes), start_ns, _NEVER)
    until_ns = np.where(last_ns == _NEVER, _FOREVER, last_ns - wait_ns + 1)
    bound_ns = np.minimum(latest_ns, until_ns[processes.of_row])
    return np.where(latest_ns == _NEVER, _FOREVER, bound_ns)


def _mask_captured_launches(launched: profile.Calls, calls: profile.CallLog) -> Bools:
    """Return a mask of the calls made while their process captured a stream into a CUDA graph.

    Several threads may capture at once, and one thread may end a capture that another one began. A
    capture without an end lasts until the profile ends. A capture that failed to begin has no end.
    """
    begin_rows, end_rows = (
        calls.find_containing(f"Stream{edge}Capture") for edge in ("Begin", "End")
    )
    begin_calls = calls.at(begin_rows[~calls.mask_failed(begin_rows)])
    end_calls = calls.at(end_rows)
    captured = np.zeros(len(launched), bool)
    for process, rows in list_rows_by_value(profile.process_of(launched.thread)):
        began_ns = begin_calls.start_ns[profile.process_of(begin_calls.thread) == process]
        ended_ns = end_calls.end_ns[profile.process_of(end_calls.thread) == process]
        captured[rows] = _count_open_captures(began_ns, ended_ns, launched.start_ns[rows]) > 0
    return captured


def _count_open_captures(began_ns: Ints, ended_ns: Ints, time_ns: Ints) -> Ints:
    """Return the number of captures that are open at each time.

    Args:
        began_ns: Times at which captures began.
        ended_ns: Times at which captures ended. The end of a capture that began before the profile
            does not end another capture.
        time_ns: Times to count for. A capture that ends at such a time is no longer open.
    """
    edges_ns = np.concatenate((began_ns, ended_ns))
    change = np.repeat([1, -1], [len(began_ns), len(ended_ns)])
    order = np.lexsort((change, edges_ns))
    n_open = np.append(0, np.cumsum(change[order]))
    n_open -= np.minimum.accumulate(n_open)
    open_at: Ints = n_open[np.searchsorted(edges_ns[order], time_ns, side="right")]
    return open_at


def describe_lost_kernels(
    path: str,
    processes: Sequence[ProcessLoss],
    left_out: int,
    *,
    sampled: bool,
    unknown: RankIntervals,
) -> Iterator[Limitation]:
    """Yield a limitation for the lost kernels that no other limitation reports, if any.

    It restricts the ratios only if a process or the file lost a noticeable share of its kernels
    (see :func:`_is_noticeable`).

    Args:
        path: Path of the profile.
        processes: Losses of each process.
        left_out: Number of kernels that were left out while reading, which another limitation
            reports.
        sampled: Whether only a sample of the calls without work was checked.
        unknown: Times at which ranks may have run the lost kernels.
    """
    total = sum(loss.count for loss in processes)
    kernels = sum(loss.kernels for loss in processes)
    count = total - left_out
    if count <= 0:
        return
    # The kernels that were left out may belong to any process.
    factor = count / total
    lost_share = _compute_loss_share(count, kernels)
    about = "about " if sampled else ""
    # Percentages have two decimals.
    in_words = "less than 0.01 %" if lost_share < 1e-4 else f"{about}{format_percent(lost_share)}"
    is_noticeable = _is_noticeable(processes, factor, _ENOUGH if sampled else 1)
    launched_ns = unknown_ns = None
    # A sample does not show which iterations lost nothing.
    if not sampled:
        launched_ns = np.concatenate([loss.launched_ns for loss in processes])
        # A lost kernel next to recorded work makes no idle time unknown, so its launch is added.
        start_ns = np.concatenate((unknown.start_ns, launched_ns))
        end_ns = np.concatenate((unknown.end_ns, launched_ns))
        unknown_ns = start_ns, end_ns
    yield Limitation(
        "launched kernels that were not recorded",
        f"{path}: {in_words} of the launched kernels are not in the profile, "
        f"{_describe_evidence(processes)}: {_describe_effect(processes)}; profile with larger "
        "buffers, or export again",
        count,
        LimitationKind.KERNELS_LOST if is_noticeable else LimitationKind.COSTS,
        times_ns=launched_ns,
        unknown_ns=unknown_ns,
        noticeable_kind=LimitationKind.KERNELS_LOST,
    )


def _is_noticeable(processes: Sequence[ProcessLoss], factor: float, min_seen: int) -> bool:
    """Return whether any process, or the whole file, lost at least ``_NOTICEABLE`` of its kernels.

    A process without recorded kernels is not a rank, so it counts only as part of the file.

    Args:
        processes: Losses of each process.
        factor: Share of the lost kernels that no other limitation reports.
        min_seen: Minimum number of lost kernels in the sample.
    """
    whole_file = ProcessLoss(
        process=NONE,
        count=sum(loss.count for loss in processes),
        n_sampled=sum(loss.n_sampled for loss in processes),
        kernels=sum(loss.kernels for loss in processes),
    )
    of_ranks = (loss for loss in processes if loss.kernels)
    return any(
        loss.count
        and loss.n_sampled >= min_seen
        and _compute_loss_share(factor * loss.count, loss.kernels) >= _NOTICEABLE
        for loss in (whole_file, *of_ranks)
    )


def _describe_evidence(processes: Sequence[ProcessLoss]) -> str:
    """Return a clause that says how the profile shows that kernels are lost.

    The evidence is that later kernels are recorded, that the process went on after its last
    recorded work, or that no kernel of a process with launches is recorded.
    """
    clauses = []
    of_ranks = [loss for loss in processes if loss.count and loss.kernels]
    if of_ranks:
        is_stopped = all(loss.after_span == loss.n_sampled for loss in of_ranks)
        clauses.append("though the process went on" if is_stopped else "though later ones are")
    pids = [str(profile.get_pid(p.process)) for p in processes if p.count and not p.kernels]
    if pids:
        processes_text = f"process{'es' * (len(pids) > 1)} {', '.join(pids)}"
        clauses.append(f"which contains none of {processes_text}")
    return " and ".join(clauses)


def _describe_effect(processes: Sequence[ProcessLoss]) -> str:
    """Return a clause on the effect of lost kernels on idle time.

    If all were launched after the last recorded work of their process, the time from then on is
    unknown. Kernels that were launched before the first recorded work are before the measured time.
    The time of all other lost kernels counts as idle.
    """
    n_before = sum(loss.before_span for loss in processes)
    n_sampled = sum(loss.n_sampled for loss in processes)
    if n_sampled and sum(loss.after_span for loss in processes) == n_sampled:
        return (
            "they were launched after the last recorded work, so the time from then on is unknown"
        )
    if not n_before:
        return "their time counts as idle"
    reason = "launched before the first recorded work, so they are before the measured time"
    if n_before == n_sampled:
        return f"they were {reason}"
    return f"their time counts as idle, but for {n_before:,} of {n_sampled:,} that were {reason}"


def _compute_loss_share(n_lost: float, kernels: int) -> float:
    """Return the share of lost kernels among all kernels."""
    return n_lost / (n_lost + kernels)
