"""Damaged work: kernels and copies that are recorded wrongly, twice, or not at all.

A kernel or copy whose times contradict its launching call or the capture is left out::

    calls          ├──────── capture ────────┤
    launch         │     ▼                   │
    sound          │      ████               │ ██     launched late in the capture, ended after it
    left out       │ ██                      │        started before its own launch
    left out   ██  │                         │    ███ far outside the capture

If a launch has no recorded kernel although the capture went on, its kernel is lost::

    launches     │ a  b  c  d  e  f │
    kernels      │  a  b     d      │     c is lost; e and f had not run when the capture ended

If a process stays active for longer than any of its kernels took from launch to end, recording
stopped before the process did::

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

#: Maximum time in ns by which a kernel may start before its launching call because of clock noise.
_CLOCK_GRAIN_NS = 100_000
#: Maximum time in ns by which a kernel may start before its launching call if many kernels start
#: early.
_CLOCK_DRIFT_NS = 10_000_000
#: Many kernels start early if more than 1 / ``_MANY`` of them do.
_MANY = 20
#: Number of rows that are checked at a time, to save memory.
_PIECE = 1 << 16
#: Kernels and copies on an unknown process or device are damaged if they make up at most 1 /
#: ``_FEW`` of all kernels and copies.
_FEW = 100
#: Maximum number of processes and devices that a limitation lists.
_LISTED = 4
#: A recorded duration of 0 is invalid if kernels with the same name have at least this median
#: duration, in ns. Shorter kernels may be rounded to 0, because some profilers count microseconds.
_LONG_NS = 10_000
#: Number of calls without work that are checked first. The remaining calls are checked only if a
#: kernel launched by one of these calls was lost.
_FIRST = 1 << 13
#: Bubble ratios are marked as uncertain if a process lost at least this share of its kernels.
_NOTICEABLE = 0.01
#: The total number of lost kernels is estimated from a sample only if the sample contains at least
#: this many. The estimate is then accurate to within a third.
_ENOUGH = 10
#: A missing kernel is lost, not late, after this multiple of the longest time from launch to end.
_FAR_LONGER = 2
#: Sentinel times: before every launch, and after the end of every capture.
_NEVER, _FOREVER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)

_Notes: TypeAlias = list[Limitation]


def check_times(
    path: str,
    activities: profile.Activities,
    call: Codes,
    launched_ns: Ints,
    capture_ns: tuple[int, int] | None,
) -> tuple[Bools | None, _Notes]:
    """Find the kernels and copies whose times are invalid.

    The times of a kernel or copy are invalid if it is far outside the capture, or if it starts too
    long before its launching call; see :func:`_find_early_work`.

    The clocks of GPU and host may differ by microseconds, or by milliseconds if the profiler
    corrects the drift badly. In that case, many kernels start early by similar amounts, and all of
    them are kept. A damaged time, however, is an outlier. Each device is checked separately.

    Args:
        path: Path of the profile.
        activities: GPU activities of the profile, kernels before copies.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of each activity's launching call, undefined if unknown.
        capture_ns: Start of the first call and end of the last call, or None if there are no calls.

    Returns:
        is_possible: Mask of the activities whose times are valid, or None if all times are valid.
        notes: Limitations that report early work, work outside the capture, and clock differences.
    """
    notes = list[Limitation]()
    is_early = np.zeros(len(activities), bool)
    n_skewed = skew_ns = 0
    if _starts_before_launch(activities.start_ns, call, launched_ns):
        is_early, n_skewed, skew_ns = _find_early_work(activities, call, launched_ns)
    kind = LimitationKind.KERNELS_LEFT_OUT
    n_early = int(is_early.sum())
    if n_early:
        reason = f"{path}: work that starts before the call that launched it is left out"
        subject = "kernels and copies before their launching call"
        times_ns = launched_ns[is_early].astype(np.int64)
        notes.append(Limitation(subject, reason, n_early, kind, times_ns=times_ns))
    is_outside = mask_outside_capture(activities.start_ns, activities.end_ns, capture_ns)
    if is_outside is not None and (n_outside := int((is_outside & ~is_early).sum())):
        notes.append(profile.report_outside_capture("kernels and copies", path, n_outside, kind))
    if n_skewed:
        reason = (
            f"{path}: many kernels start before their launching call, by up to "
            f"{skew_ns / 1e6:,.3f} ms, so the clocks of GPU and host differ; the kernels are kept, "
            "but host activity is uncertain by this much"
        )
        notes.append(Limitation("the clock of the GPU", reason, n_skewed))
    if is_outside is not None:
        return ~(is_early | is_outside), notes
    return (~is_early if n_early else None), notes


def _starts_before_launch(start_ns: Ints, call: Codes, launched_ns: Ints) -> bool:
    """Return whether any activity starts more than ``_CLOCK_GRAIN_NS`` before its launching call.

    Args:
        start_ns: Start of each activity.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of each activity's launching call, undefined if unknown.
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
    """Find the activities that must be left out because they start too long before their calls.

    The limit is computed separately for each device by :func:`_compute_early_limit`. Activities
    whose call is unknown are kept.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of each activity's launching call, undefined if unknown.

    Returns:
        is_early: Mask of the activities that are left out.
        n_skewed: Number of activities that are kept although they start more than
            ``_CLOCK_GRAIN_NS`` before their calls.
        skew_ns: Longest time in ns by which any of the ``n_skewed`` activities starts before its
            call, or 0 if there are none.
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
    """Return the maximum time in ns by which an activity may start before its launching call.

    An activity is early if it starts more than ``_CLOCK_GRAIN_NS`` before its call. It is slightly
    early if it starts before its call by at most this time. The first rule that applies determines
    the result:

    1. More than half of the activities are early or slightly early: ``IMPOSSIBLE_NS``, which keeps
       all of them.
    2. More than 1 / ``_MANY`` of the activities are early, and at least two of them:
       ``_CLOCK_DRIFT_NS``.
    3. Some activities are early, and at least as many are slightly early: ``_CLOCK_DRIFT_NS``.
    4. Otherwise: ``_CLOCK_GRAIN_NS``.

    Args:
        delay_ns: Time from the start of the launching call to the start of the activity, for all
            activities of a device. Negative if the activity starts first.
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
    """Find ranks that appear only because a process or device identifier is damaged.

    A damaged identifier assigns a kernel to a process or device that nothing else mentions::

        calls of      process 1   process 2
        devices of    process 1   process 2
        kernels of    process 1   process 2   process 7     a few: left out
                       GPU 0       GPU 1       GPU 1

    A rank is suspicious if its device is not listed or its process made no call.

    - A suspicious rank is left out if it has at most ``1 / _FEW`` of all kernels and copies, or
      only a single one.
    - A suspicious rank that has more is kept. If its device is not listed, the device list is
      incomplete. The device is then reported in a limitation.
    - If all ranks would be left out, all are kept.

    Args:
        source: Source of the profile.
        activities: GPU activities of the profile, kernels before copies.
        devices: Devices that the profile lists, or empty if it has no list.
        calling: Processes that made calls, in ascending order, or None if no calls were recorded.

    Returns:
        is_left_out: Mask of the ranks that are left out, shape (ranks,).
        notes: Limitations that report omitted ranks and unlisted devices.
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
            f"{in_words(left_out)}: missing from the calls or from the list of devices, so an "
            "identifier is damaged; they are left out"
        )
        subject = "kernels and copies of unknown processes or devices"
        notes.append(Limitation(subject, reason, count, LimitationKind.COSTS))
    if unlisted.any():
        ran = format_count(int(work[unlisted].sum()), "kernel or copy", "kernels and copies")
        reason = f"{in_words(unlisted)}: {ran} ran there and are kept"
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
    """Find rows that are recorded twice, and kernels whose duration is wrongly 0.

    A call launches a kernel only once, so two rows with the same correlation id, name, rank and
    times are duplicates. Kernels of CUDA graphs are never duplicates, because equal nodes of a
    graph may run at the same time. A duration of 0 is wrong if kernels with the same name are
    usually long; see :func:`_find_zero_length_kernels`.

    Args:
        path: Path of the profile.
        activities: GPU activities of the profile, kernels before copies.
        launches: Launching calls of all activities.
        calls: All API calls of the profile.
        is_possible: Mask of the activities whose times are valid, or None if all times are valid.

    Returns:
        duplicates: Rows that equal an earlier row and must be left out.
        zero_length: Rows of the kernels whose duration is wrongly 0. These kernels are kept.
        notes: Limitations that report both kinds of rows.
    """
    repeated, notes = _find_repeated_rows(activities, launches.sharing), list[Limitation]()
    if len(repeated):
        call = launches.call[repeated].astype(np.int64)
        of_graphs = calls.select_by_prefix(find_distinct(call[call != NONE]), GRAPH_LAUNCHES)
        repeated = repeated[~np.isin(call, of_graphs)]
    if len(repeated):
        reason = f"{path}: rows with the same call, name and times as another row are counted once"
        subject, kind = "kernels and copies recorded twice", LimitationKind.COSTS
        notes.append(Limitation(subject, reason, len(repeated), kind))
    zero_length = _find_zero_length_kernels(activities)
    if is_possible is not None:
        # Another limitation counts the kernels whose times are invalid.
        zero_length = zero_length[is_possible[zero_length]]
    if len(zero_length):
        reason = (
            f"{path}: some kernels have a duration of 0 although others with the same name take "
            "time, so the profile is damaged, and idle time around these kernels is unknown; "
            "export or record it again"
        )
        kind = LimitationKind.KERNELS_LEFT_OUT
        subject, times_ns = "kernels without a duration", activities.start_ns[zero_length]
        notes.append(Limitation(subject, reason, len(zero_length), kind, times_ns=times_ns))
    return repeated, zero_length, notes


def _find_repeated_rows(activities: profile.Activities, rows: Codes) -> Ints:
    """Return the rows that repeat an earlier row.

    A row repeats another row if both have the same rank, correlation id, name, start and end, and
    if both are kernels or both are copies.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        rows: Rows to compare, in ascending order: all rows that share their correlation id with
            another row.
    """
    if len(rows) == 0:
        return np.empty(0, np.int64)
    names = ("rank", "correlation_id", "name_id", "start_ns", "end_ns")
    columns = (getattr(activities, name)[rows].astype(np.int64) for name in names)
    return rows[number_occurrences((*columns, (rows < activities.kernels).astype(np.int64))) > 0]


def _find_zero_length_kernels(activities: profile.Activities) -> Ints:
    """Return the rows of kernels with duration 0 whose name usually belongs to long kernels.

    Kernels with a name are usually long if the median of their positive durations is at least
    ``_LONG_NS``. Of two middle values, the larger is used. The returned rows are grouped by name.
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
    """Number of lost and recorded kernels in one process.

    Attributes:
        process: Process number.
        count: Number of lost kernels. This is an estimate if the calls were sampled.
        n_sampled: Number of lost kernels in the sample, or ``count`` without sampling.
        kernels: Number of recorded kernels, except those launched so late that a missing kernel
            would not count as lost.
        launched_ns: Launch times of the lost kernels in the sample.
        first_launch_ns: Launch time of the first recorded kernel or copy of the process, or the
            smallest int64 if unknown.
        last_launch_ns: Launch time of the last recorded kernel or copy of the process, or the
            largest int64 if unknown.
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
        """Number of sampled lost kernels that were launched before the first recorded work."""
        return int((self.launched_ns < self.first_launch_ns).sum())

    @property
    def after_span(self) -> int:
        """Number of sampled lost kernels that were launched after the last recorded work."""
        return int((self.launched_ns > self.last_launch_ns).sum())


@dataclass(frozen=True)
class LostKernels:
    """Kernels that were launched but not recorded.

    Attributes:
        processes: Losses of each process that launched any kernel, sorted by process number. Empty
            if no kernel is lost.
        is_sampled: Whether only a sample of the calls without work was checked.
        calls: Launching calls of the lost kernels, among the checked calls.
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
    """Find the kernels that were launched but are missing from the profile.

    These are launches without a recorded kernel, with the following exceptions:

    - The launch was so late that its kernel may have run after the capture; see
      :func:`find_recorded_until` and :func:`find_recording_stops`.
    - The launch failed, or it was captured into a CUDA graph. In either case, it produced no
      kernel.
    - Missing kernels of the process have another explanation; see
      :func:`_drop_explained_launches`.

    If very many calls launched no recorded work, only a sample of the calls is checked.

    Args:
        workless: Rows of the calls that launched no recorded work, or a sample of them.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.
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
    """Return the calls, without those of processes that may not have lost any kernels.

    The kernels of a process may be linked to the wrong launches, or to none::

        launches     │ a1 a2   b1 b2          │
        kernels      │   a1 a1     b1 b1      │    as many as launches, so none is lost

    All calls of a process are dropped in two cases:

    - Some launches have more than one kernel. If there are at least as many surplus kernels as
      calls without a kernel, the surplus kernels may belong to those calls.
    - The process has kernels, but none of them is linked to a launch. The profile lacks the links.

    Args:
        lost_calls: Checked calls without a kernel, at least one.
        step: Number of calls that each checked call represents.
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
    """Find the kernels that share their launch with other kernels of the same process.

    Duplicate rows and kernels of graph launches are left out.

    Args:
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        calls: All API calls of the profile.

    Returns:
        rows: Rows of the kernels, ascending.
        call: Row of each kernel's launching call.
    """
    rows = launches.sharing[launches.sharing < activities.kernels]
    rows = np.setdiff1d(rows, _find_repeated_rows(activities, rows))
    call = launches.call[rows].astype(np.int64)
    # A graph launch legitimately has many kernels.
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
    """Yield the losses of each process that launched any kernel, sorted by process number.

    Args:
        lost_calls: Launching calls of the lost kernels, among the checked calls.
        step: Number of calls that each checked call represents.
        until_ns: Time for each thread. Recorded kernels launched later are not counted.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.
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
    """Count the recorded kernels that each thread launched, and find its first and last launch.

    Args:
        until_ns: Time for each thread. Kernels launched later are not counted.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.

    Returns:
        n_kernels: Number of recorded kernels launched at or before ``until_ns``, per thread.
        first_ns: First launch of recorded work, per thread. Undefined if there is none.
        last_ns: Last launch of recorded work, per thread. Undefined if there is none.
    """
    n_threads = len(of_launch[1])
    linked = np.flatnonzero(launches.call != NONE)
    launched_ns, thread = launches.start_ns[linked], of_launch[0][linked]
    # The comparison is inclusive because ``until_ns`` may be the last launch of the thread.
    is_counted = (linked < activities.kernels) & (launched_ns <= until_ns[thread])
    n_kernels = np.bincount(thread[is_counted], minlength=n_threads)
    first_ns, last_ns = group_extents(thread.astype(np.int64), n_threads, launched_ns, launched_ns)
    return n_kernels, first_ns, last_ns


def find_recorded_until(
    launches: Launches, activities: profile.Activities, of_launch: tuple[Codes, Ints]
) -> Ints:
    """Return, for each thread, the time until which all work it launched should be recorded.

    See :func:`_compute_recorded_until` for the definition.

    Args:
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.
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
    """Move the time until which each thread's work should be recorded to a later time, if possible.

    Everything that a thread launched before its time in ``until_ns`` should be recorded. The time
    becomes later in two cases:

    - The process waited for all work of its only device. Everything launched before this wait had
      then ended. The new time is the start of the last such wait.
    - Recording stopped long before the process did, and a launch of the thread is overdue, see
      :func:`_mask_overdue_launches`. The new time is the largest int64.

    If every launch without work is already before the time of its thread, ``until_ns`` is returned
    unchanged.

    Args:
        without_work: Launches without recorded work.
        until_ns: Time for each thread, as returned by :func:`find_recorded_until`.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.
        calls: All API calls of the profile.
        patience: Factor for the longest time from launch to end of recorded work. A launch is
            overdue if its work did not end within this multiple of that time.

    Returns:
        New time for each thread in ns. It is the largest int64 if all work that the thread launched
        should be recorded.
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
    """Return the index in ``threads`` of each call's thread.

    The threads must be distinct, and every call must belong to one of them.
    """
    order = np.argsort(threads)
    index: Ints = order[find_positions(threads[order], calls.thread)]
    return index


def _mask_overdue_launches(
    late_ns: Ints, launched_ns: Ints, ended_ns: Ints, returned_ns: Ints, patience: int
) -> Bools:
    """Return a mask of the launches whose work is missing because recording stopped too early.

    Three values are needed::

        limit          patience * longest time from launch to end of recorded work
        last active    time of the last launch or the last return of a synchronizing call
        last end       last end of recorded work

    Recording stopped too early if ``last active - last end > limit``. The mask then contains the
    launches with ``last active - launch > limit``, because their work must have ended. Otherwise,
    the mask is all False.

    Args:
        late_ns: Start times of a process's launches without recorded work, at least one.
        launched_ns: Launch times of the process's recorded work, at least one.
        ended_ns: End times of the process's recorded work.
        returned_ns: Times at which the process's synchronizing calls returned.
        patience: Factor in the limit.
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
    """Return for each thread when its process last started to wait for its only device.

    Processes with several devices are ignored, because they may have waited for another device.

    Args:
        threads: Thread ids.
        activities: GPU activities of the profile, kernels before copies.
        calls: All API calls of the profile.

    Returns:
        Start of the last wait for each thread, or the smallest int64 if the process never waited
        for its only device.
    """
    waits = find_device_waits(activities, calls)
    process = profile.process_of(threads)
    until_ns = np.full(len(threads), _NEVER, np.int64)
    for number, rows in list_rows_by_value(profile.process_of(waits.thread)):
        until_ns[process == number] = waits.start_ns[rows].max()
    return until_ns


def find_device_waits(activities: profile.Activities, calls: profile.CallLog) -> profile.Calls:
    """Return the successful calls in which a process waited for all work of its only device.

    These are calls such as ``cudaDeviceSynchronize`` and ``cuCtxSynchronize``. Calls of processes
    with several devices are left out, because they may wait for another device.

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
    """Return the calls that start before the time given for their thread.

    Args:
        calls: Calls made by ``threads``.
        until_ns: Time for each of ``threads``, in ns.
        threads: Distinct thread ids.
    """
    return calls.take(calls.start_ns < until_ns[_locate_threads(threads, calls)])


def _find_launches_without_kernel(
    rows: Ints, launches: Launches, calls: profile.CallLog
) -> profile.Calls:
    """Return the kernel launches without a recorded kernel.

    Failed launches, and launches made while the process was capturing a stream into a CUDA graph,
    are left out because they produce no kernel.

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
    """Return, for each thread, the time until which all kernels it launched should be recorded.

    Kernels launched shortly before the end of the capture may not have started in time, so they
    need not be recorded. The result is the earlier of two bounds:

    1. The last launch of recorded work by the thread, or by its process if the thread has no
       recorded work.
    2. ``last start - longest wait + 1``, where a wait is the time from launch to start of recorded
       work in the process. Any kernel may wait as long as the longest wait::

           launches     │ a     b     c     │
           kernels      │   a        b   c  │    a kernel launched with c may wait as long as b did

    If the process has no recorded work, the result is the largest int64.

    Args:
        launched_ns: Launch times of the recorded work whose launch is known.
        start_ns: Start times of the recorded work.
        thread: Index in ``threads`` of the thread that launched the recorded work.
        threads: Ids of the threads that made calls.

    Returns:
        Time for each of ``threads``, in ns.
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
    """Return a mask of the calls made while their process was capturing a stream into a CUDA graph.

    Captures are counted per process, because one thread may begin a capture and another may end it.
    A capture that is never ended lasts until the end of the profile. Calls that failed to begin a
    capture are ignored.
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

    A capture is open at the time when it begins, but not at the time when it ends. An end without
    an open capture is ignored, because its capture began before the profile.

    Args:
        began_ns: Times at which captures began.
        ended_ns: Times at which captures ended.
        time_ns: Times at which to count the open captures.
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
    """Yield a limitation that reports lost kernels, unless all of them are already reported.

    The count is the number of lost kernels minus ``left_out``. If the count is not positive,
    nothing is yielded. The kind is ``KERNELS_LOST`` if the loss is noticeable (see
    :func:`_is_noticeable`), otherwise ``COSTS``. If the calls were sampled, the limitation contains
    no times.

    Args:
        path: Path of the profile.
        processes: Losses of each process.
        left_out: Number of kernels that were left out while reading. Another limitation reports
            them.
        sampled: Whether only a sample of the calls without work was checked.
        unknown: Intervals in which ranks may have run the lost kernels.
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
    # With a sample, it is unknown which iterations lost no kernel, so no times are given.
    if not sampled:
        launched_ns = np.concatenate([loss.launched_ns for loss in processes])
        # If ``unknown`` has no interval for a lost kernel, its launch time still locates it.
        start_ns = np.concatenate((unknown.start_ns, launched_ns))
        end_ns = np.concatenate((unknown.end_ns, launched_ns))
        unknown_ns = start_ns, end_ns
    yield Limitation(
        "launched kernels that were not recorded",
        f"{path}: {in_words} of the launched kernels are missing from the profile, "
        f"{_describe_evidence(processes)}. {_describe_effect(processes)}; profile again with "
        "larger buffers, or export again",
        count,
        LimitationKind.KERNELS_LOST if is_noticeable else LimitationKind.COSTS,
        times_ns=launched_ns,
        unknown_ns=unknown_ns,
        noticeable_kind=LimitationKind.KERNELS_LOST,
    )


def _is_noticeable(processes: Sequence[ProcessLoss], factor: float, min_seen: int) -> bool:
    """Return whether any process, or the whole file, lost at least ``_NOTICEABLE`` of its kernels.

    - The lost share is ``factor * lost / (factor * lost + recorded)``.
    - A process, or the file, is checked only if it lost at least one kernel, and at least
      ``min_seen`` of the sampled kernels.
    - A process without recorded kernels is not a rank, so its losses count only for the whole file.

    Args:
        processes: Losses of each process.
        factor: Share of the lost kernels that no other limitation reports, from 0 to 1.
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
    """Return a clause that explains how the profile shows that kernels are lost.

    The clause first lists the processes that lost kernels and have no recorded kernels. For
    processes with recorded kernels, there are two cases. If all lost kernels were launched after
    the last recorded work of their process, the clause states that the process kept running.
    Otherwise, it states that later kernels were recorded.
    """
    clauses = []
    pids = [str(profile.get_pid(p.process)) for p in processes if p.count and not p.kernels]
    if pids:
        processes_text = f"process{'es' * (len(pids) > 1)} {', '.join(pids)}"
        clauses.append(f"including all kernels of {processes_text}")
    of_ranks = [loss for loss in processes if loss.count and loss.kernels]
    if of_ranks:
        is_stopped = all(loss.after_span == loss.n_sampled for loss in of_ranks)
        evidence = "the process kept running" if is_stopped else "later kernels were recorded"
        clauses.append(f"although {evidence}")
    return ", ".join(clauses)


def _describe_effect(processes: Sequence[ProcessLoss]) -> str:
    """Return a sentence, without its period, about the effect of lost kernels on idle time.

    - If all lost kernels were launched after the last recorded work of their process, the time from
      then on is unknown.
    - Otherwise, the time of lost kernels counts as idle. The exception is kernels that were
      launched before the first recorded work. They do not matter, because they ran before the
      measured time.
    """
    n_before = sum(loss.before_span for loss in processes)
    n_sampled = sum(loss.n_sampled for loss in processes)
    if n_sampled and sum(loss.after_span for loss in processes) == n_sampled:
        return (
            "They were launched after the last recorded work, so the time from then on is unknown"
        )
    if not n_before:
        return "Their time counts as idle"
    reason = "launched before the first recorded work, and thus before the measured time"
    if n_before == n_sampled:
        return f"They were {reason}"
    return (
        f"Their time counts as idle, except for {n_before:,} of {n_sampled:,}, which were {reason}"
    )


def _compute_loss_share(n_lost: float, kernels: int) -> float:
    """Return the lost kernels' share of all lost and recorded kernels, from 0 to 1."""
    return n_lost / (n_lost + kernels)
