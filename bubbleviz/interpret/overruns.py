"""Overruns: work whose recorded end is later than the start of the next work on its stream.

A stream runs its work in sequence, so such an end is wrong and hides idle time::

    recorded    ├─ a ─────────────────────┤
                        ├ b ┤    ├ c ┤
    corrected   ├─ a ───┤├ b ┤    ├ c ┤     ends at the start of b, or
                ├ a ┤   ├ b ┤    ├ c ┤      after the longest time of other kernels named a

The earlier of the two ends is used. Some overlaps are real:

- Kernels of one CUDA graph launch may run concurrently.
- A kernel that was launched with programmatic stream serialization may start early, before the
  previous kernel ends.
- A hardware queue may run several streams concurrently.

None of these makes a kernel take several times as long as the other kernels of its name.

The last work on a stream has no next work. Its end is wrong if the process had already waited for
all work of the device, and if it takes several times as long as the other kernels of its name::

    host        launch a    ├ wait for the device ┤
    recorded           ├─ a ───────────────────────────────┤
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.interpret.damaged_work import find_device_waits
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, join_tables, make_mask
from bubbleviz.model.grouping import list_rows_by_value, mask_run_starts, sort_rows
from bubbleviz.model.intervals import group_latest
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import UNCORRELATED, Activities, CallLog, Calls, process_of

#: Maximum overlap that may be timestamp noise, in ns.
_CLOCK_GRAIN_NS = 5_000
#: Minimum overlap of short kernels that shows that kernels start before the previous one ends, in
#: ns.
_EARLY_START_NS = 1_000
#: Minimum number of overlaps that counts as many. Fewer may be damage even in a small profile.
_MIN_MANY = 10
#: Minimum share of overlapping work that shows that kernels start before the previous one ends.
_MANY_EARLY_STARTS = 0.01
#: Minimum share of work that contains the next work of its queue if the queue is not serial.
_MANY_CONTAINED = 0.2
#: Minimum ratio of the duration of work with a wrong end to the longest duration of other work of
#: its name. Such an end is wrong however many of them there are.
_FAR_LONGER = 3
#: Minimum share of a profile's span that the last work on a stream takes for its end to be checked.
_NOTICEABLE = 0.01
#: Maximum time from the return of a wait to the end of the awaited work that may be noise of the
#: clocks of host and device, in ns.
_WAIT_GRAIN_NS = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class _Overruns(Table):
    """Work that ends after the next work on its stream starts.

    Attributes:
        row: Row of the work among the activities.
        next_start_ns: Start of the next work on the stream.
        next_end_ns: End of the next work on the stream.
    """

    row: Ints
    next_start_ns: Ints
    next_end_ns: Ints


@dataclass(frozen=True, eq=False)
class _Evidence:
    """Masks of overruns that show which ends are wrong.

    Attributes:
        contains_next: Overruns that end after the next work ends.
        is_far_longer: Overruns that take several times as long as any other work of their name.
        is_outlier: Overruns that are far longer, of a name with at least as much other work.
    """

    contains_next: Bools
    is_far_longer: Bools
    is_outlier: Bools


@dataclass(frozen=True)
class ClippedWork:
    """Work that ends before the next work on its stream starts.

    Attributes:
        activities: The activities with corrected ends.
        first: Row of the first work on each stream; at equal starts, the first row.
        last: Row of the last work on each stream; at equal starts, the last row.
        limitations: Limitations that count the corrected ends.
    """

    activities: Activities
    first: Ints
    last: Ints
    limitations: tuple[Limitation, ...]


def clip_overruns(
    path: str, activities: Activities, streams: Codes, *, are_queues: bool = False
) -> ClippedWork:
    """Correct the ends of work that are later than the start of the next work on its stream.

    An end is certainly wrong if the work contains the next work, or takes longer than all other
    work of its name. Other work only overlaps the next: it is cut short, which changes no idle
    time. If so much work overlaps the next that damage cannot explain it, overlapping work is left
    alone, and only certainly wrong ends are corrected.

    Args:
        path: Path of the profile.
        activities: Kernels, then copies.
        streams: Stream of each activity within its rank, or -1 if unknown.
        are_queues: Whether the streams may be hardware queues, which several streams share. If
            much of their work runs concurrently, only work that takes several times as long as
            other work of its name is corrected.
    """
    overruns, first, last = _find_overruns(activities, streams)
    if len(overruns) == 0:
        return ClippedWork(activities, first, last, ())
    longest_ns = _measure_longest_of_others(activities, overruns.row)
    evidence = _classify_overruns(activities, streams, overruns, longest_ns)
    is_wrong, notes = _select_wrong(path, evidence, len(activities), are_queues=are_queues)
    if not is_wrong.any():
        return ClippedWork(activities, first, last, notes)
    corrected, limitations = _clip_ends(
        path,
        activities,
        overruns.take(is_wrong),
        longest_ns[is_wrong],
        evidence.contains_next[is_wrong],
    )
    return ClippedWork(corrected, first, last, (*limitations, *notes))


def _classify_overruns(
    activities: Activities, streams: Codes, overruns: _Overruns, longest_ns: Ints
) -> _Evidence:
    """Collect the evidence for wrong ends.

    If so many kernels start before the previous one ends that damage cannot explain it, only
    overruns that contain the next work count as outliers.

    Args:
        activities: Kernels, then copies.
        streams: Stream of each activity within its rank, or -1 if unknown.
        overruns: All overruns, at least one.
        longest_ns: Longest time of other work of the same name, or 0 if there is none.
    """
    start_ns, end_ns = activities.start_ns[overruns.row], activities.end_ns[overruns.row]
    contains_next = end_ns > overruns.next_end_ns + _CLOCK_GRAIN_NS
    is_far_longer = (longest_ns > 0) & (end_ns - start_ns > _FAR_LONGER * longest_ns)
    is_outlier = is_far_longer & _is_rare_of_name(activities, overruns.row, is_far_longer)
    n_work = len(activities)
    if _is_frequent((is_outlier & ~contains_next).sum(), _MANY_EARLY_STARTS, n_work):
        # If many short kernels overlap the next one, long kernels may do so as well.
        short_overruns, _, _ = _find_overruns(activities, streams, _EARLY_START_NS)
        n_short = len(short_overruns) - len(overruns)
        if _is_frequent(n_short, _MANY_EARLY_STARTS, n_work):
            is_outlier &= contains_next
    return _Evidence(contains_next, is_far_longer, is_outlier)


def _select_wrong(
    path: str, evidence: _Evidence, n_work: int, *, are_queues: bool
) -> tuple[Bools, tuple[Limitation, ...]]:
    """Select the overruns whose ends are corrected.

    Outliers are always corrected. Only the other overruns can show that work runs concurrently. If
    many of them contain the next work of a hardware queue, no others are corrected. Otherwise, if
    many overlap it without containing it, only those that contain it are corrected. Otherwise, all
    are corrected.

    Args:
        path: Path of the profile.
        evidence: Evidence for wrong ends.
        n_work: Number of kernels and copies.
        are_queues: Whether the streams may be hardware queues, which several streams share.

    Returns:
        is_wrong: Mask of the overruns to correct.
        notes: A limitation if the streams run several kernels concurrently.
    """
    contains_next, is_outlier = evidence.contains_next, evidence.is_outlier
    is_left = contains_next & ~is_outlier
    if are_queues and _is_frequent(is_left.sum(), _MANY_CONTAINED, n_work):
        return is_outlier, (_describe_concurrency(path, is_left, evidence.is_far_longer),)
    if _is_frequent((~contains_next & ~is_outlier).sum(), _MANY_EARLY_STARTS, n_work):
        return contains_next | is_outlier, ()
    return np.ones(len(is_outlier), bool), ()


def clip_late_ends(
    path: str, work: ClippedWork, call: Codes, launched_ns: Ints, calls: CallLog
) -> ClippedWork:
    """Correct the end of the last work on each stream if a wait for its device returned earlier.

    Only work that takes at least 1 % of the profile's span is checked.

    Args:
        path: Path of the profile.
        work: Work that ends before the next work on its stream starts.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of that call, undefined if the call is unknown.
        calls: All calls of the profile.
    """
    activities = work.activities
    last = work.last[call[work.last] != NONE]
    rows, corrected_ns = _find_late_ends(activities, last, launched_ns, calls)
    if len(rows) == 0:
        return work
    removed_ms = (activities.end_ns[rows] - corrected_ns).sum() / 1e6
    reason = (
        f"{path}: a call that waited for all work of their device returned before, so their "
        "recorded ends are wrong; each ends after the longest time of others of its name instead "
        f"({removed_ms:,.3f} ms less in all), and idle time next to them is uncertain; record again"
    )
    subject = "kernels that end after a wait for their device"
    kind, times_ns = LimitationKind.KERNELS_OVERRUN, activities.start_ns[rows]
    note = Limitation(subject, reason, len(rows), kind, times_ns=times_ns)
    ends_ns = activities.end_ns.copy()
    ends_ns[rows] = corrected_ns
    corrected = replace(activities, end_ns=ends_ns)
    return replace(work, activities=corrected, limitations=(*work.limitations, note))


def _find_late_ends(
    activities: Activities, last: Ints, launched_ns: Ints, calls: CallLog
) -> tuple[Ints, Ints]:
    """Find the last work on streams whose end is wrong.

    A wait for the device must have returned after the start and before the end of the work, and the
    work must take more than ``_FAR_LONGER`` times as long as any other work of its name.

    Args:
        activities: Kernels, then copies.
        last: Row of the last work on each stream with a known launch.
        launched_ns: Launch time of each activity.
        calls: All calls of the profile.

    Returns:
        rows: Rows of the work.
        corrected_ns: Latest possible end of each.
    """
    rows = last[_measure_durations(activities, last) >= _NOTICEABLE * _measure_span(activities)]
    if len(rows) == 0:
        return rows, rows
    process = activities.ranks[activities.rank[rows], 0]
    returned_ns = _find_first_returns(
        process, launched_ns[rows], find_device_waits(activities, calls)
    )
    is_late = activities.end_ns[rows] - _WAIT_GRAIN_NS > returned_ns
    is_late &= activities.start_ns[rows] < returned_ns
    rows, returned_ns = rows[is_late], returned_ns[is_late]
    longest_ns = _measure_longest_of_others(activities, rows)
    is_wrong = (longest_ns > 0) & (_measure_durations(activities, rows) > _FAR_LONGER * longest_ns)
    latest_ns = np.minimum(returned_ns, activities.start_ns[rows] + longest_ns)
    return rows[is_wrong], latest_ns[is_wrong]


def _measure_durations(activities: Activities, rows: Ints) -> Ints:
    """Return the recorded durations of activities, in ns."""
    return activities.end_ns[rows] - activities.start_ns[rows]


def _measure_span(activities: Activities) -> int:
    """Return the time from the first start to the last end of all work in ns, or 0 without work."""
    if len(activities) == 0:
        return 0
    return int(activities.end_ns.max() - activities.start_ns.min())


def _find_first_returns(process: Ints, launched_ns: Ints, waits: Calls) -> Ints:
    """Return the time at which a wait for the device first shows that work had ended.

    This is the earliest return of the waits of its process that started after its launch.

    Args:
        process: Process of each piece of work.
        launched_ns: Launch time of each piece of work.
        waits: Waits for the only device of a process.

    Returns:
        Time for each piece of work, or the largest int64 if no wait started after its launch.
    """
    never_ns = np.iinfo(np.int64).max
    first_ns = np.full(len(process), never_ns, np.int64)
    for number, rows in list_rows_by_value(process_of(waits.thread)):
        order = rows[np.argsort(waits.start_ns[rows], kind="stable")]
        earliest_ns = np.minimum.accumulate(waits.end_ns[order][::-1])[::-1]
        is_of_process = process == number
        n_before = np.searchsorted(waits.start_ns[order], launched_ns[is_of_process])
        first_ns[is_of_process] = np.append(earliest_ns, never_ns)[n_before]
    return first_ns


def _clip_ends(
    path: str, activities: Activities, overruns: _Overruns, longest_ns: Ints, contains_next: Bools
) -> tuple[Activities, tuple[Limitation, ...]]:
    """Correct the ends of overruns.

    Each ends at the start of the next work. If it contains the next work or takes longer than all
    other work of its name, it takes at most the longest time of this other work.

    Args:
        path: Path of the profile.
        activities: Kernels, then copies.
        overruns: Overruns to correct.
        longest_ns: Longest time of other work of the same name, or 0 if there is none.
        contains_next: Mask of overruns that contain the next work on their stream.

    Returns:
        corrected: The activities with corrected ends.
        limitations: Limitations that count the corrections.
    """
    start_ns = activities.start_ns[overruns.row]
    duration_ns = activities.end_ns[overruns.row] - start_ns
    until_next_ns = overruns.next_start_ns - start_ns
    is_damaged = contains_next | (duration_ns > longest_ns)
    has_others = longest_ns > 0
    corrected_ns = np.where(
        is_damaged & has_others, np.minimum(until_next_ns, longest_ns), until_next_ns
    )
    ends_ns = activities.end_ns.copy()
    ends_ns[overruns.row] = start_ns + corrected_ns
    corrected = replace(activities, end_ns=ends_ns)
    removed_ns = duration_ns - corrected_ns
    return corrected, _describe_corrections(path, start_ns, removed_ns, is_damaged)


def _find_overruns(
    activities: Activities, streams: Codes, grain_ns: int = _CLOCK_GRAIN_NS
) -> tuple[_Overruns, Ints, Ints]:
    """Find the work that ends after the next work on its stream starts.

    Work without a duration and work whose stream is unknown are ignored.

    Args:
        activities: Kernels, then copies.
        streams: Stream of each activity within its rank, or -1 if unknown.
        grain_ns: Maximum overlap that is ignored, in ns.

    Returns:
        overruns: The overruns.
        first: Row of the first work on each stream.
        last: Row of the last work on each stream.
    """
    overruns, first, last = [_Overruns.make_empty()], [], []
    for rows in activities.iter_rows_by_stream(streams):
        in_order, start_ns = rows, activities.start_ns[rows]
        if not (start_ns[1:] >= start_ns[:-1]).all():
            order = sort_rows(start_ns)
            in_order, start_ns = rows[order], start_ns[order]
        overruns.append(_find_overruns_on_stream(activities, in_order, start_ns, grain_ns))
        first.append(in_order[0])
        last.append(in_order[-1])
    return join_tables(overruns), np.array(first, np.int64), np.array(last, np.int64)


def _find_overruns_on_stream(
    activities: Activities, rows: Codes, start_ns: Ints, grain_ns: int
) -> _Overruns:
    """Return the work of one stream that ends after the next work on it starts.

    Work without a duration is ignored. Work of the same launch, and work with the same start, does
    not count as the next work.

    Args:
        activities: Kernels, then copies.
        rows: Rows of the work on the stream, in order of their starts.
        start_ns: These starts.
        grain_ns: Maximum overlap that is ignored, in ns.
    """
    end_ns = activities.end_ns[rows]
    has_duration = end_ns > start_ns
    if not has_duration.all():
        rows, start_ns, end_ns = rows[has_duration], start_ns[has_duration], end_ns[has_duration]
    candidate = np.flatnonzero(end_ns[:-1] - start_ns[1:] > grain_ns)
    if len(candidate) == 0:
        return _Overruns.make_empty()

    # Work of the same launch, or with the same start, is not the next work.
    launch = activities.correlation_id[rows]
    is_next = (mask_run_starts(launch) | (launch == UNCORRELATED)) & mask_run_starts(start_ns)
    next_rows = np.flatnonzero(is_next)
    position = np.searchsorted(next_rows, candidate, side="right")
    exists = position < len(next_rows)
    candidate, following = candidate[exists], next_rows[position[exists]]
    is_overrun = end_ns[candidate] - start_ns[following] > grain_ns
    candidate, following = candidate[is_overrun], following[is_overrun]
    return _Overruns(rows[candidate].astype(np.int64), start_ns[following], end_ns[following])


def _is_frequent(number: int, max_share: float, n_work: int) -> bool:
    """Return whether overruns are too many to be damage.

    They must be at least ``_MIN_MANY``, and more than ``max_share`` of all work.

    Args:
        number: Number of overruns.
        max_share: Maximum share of all work that damage explains.
        n_work: Number of kernels and copies.
    """
    return number >= _MIN_MANY and number > max_share * n_work


def _is_rare_of_name(activities: Activities, rows: Ints, is_counted: Bools) -> Bools:
    """Return a mask of the overruns that are rare among the work of the same name.

    They are rare if the name has at most as many overruns in ``is_counted`` as it has work that is
    no overrun. All overruns of a name have the same result.

    Args:
        activities: Kernels, then copies.
        rows: Rows of the overruns.
        is_counted: Mask of the overruns to count.
    """
    n_names = len(activities.names)
    # Index 0 is for work without a name (-1).
    name = activities.name_id[rows] + 1
    n_counted = np.bincount(name[is_counted], minlength=n_names + 1)
    n_overruns = np.bincount(name, minlength=n_names + 1)
    is_name_of_overrun = make_mask(n_names + 1, name)
    of_names = activities.name_id[is_name_of_overrun[activities.name_id + 1]] + 1
    n_others = np.bincount(of_names, minlength=n_names + 1) - n_overruns
    return (n_counted <= n_others)[name]


def _measure_longest_of_others(activities: Activities, rows: Ints) -> Ints:
    """Return the longest duration of other work with the same name in ns, or 0 if there is none.

    Args:
        activities: Kernels, then copies.
        rows: Rows of the work. None of them counts as other work.
    """
    n_names = len(activities.names)
    # The last index is for work without a name (-1).
    is_name_listed = make_mask(n_names + 1, activities.name_id[rows])
    is_name_listed[n_names] = False
    is_other = is_name_listed[activities.name_id]
    is_other[rows] = False
    other_rows = np.flatnonzero(is_other)
    duration_ns = activities.end_ns[other_rows] - activities.start_ns[other_rows]
    longest_ns = group_latest(activities.name_id[other_rows], n_names, duration_ns, 0)
    return np.append(longest_ns, 0)[activities.name_id[rows]]


def _describe_corrections(
    path: str, start_ns: Ints, removed_ns: Ints, is_damaged: Bools
) -> tuple[Limitation, ...]:
    """Return the limitations for work whose end was corrected.

    Damaged work and work that was only cut short at the start of the next work are separate
    limitations.

    Args:
        path: Path of the profile.
        start_ns: Start of the work.
        removed_ns: Time that was cut from each piece of work.
        is_damaged: Mask of work whose recorded end is impossible.
    """
    notes = []
    if n_damaged := int(is_damaged.sum()):
        removed_ms = removed_ns[is_damaged].sum() / 1e6
        reason = (
            f"{path}: a stream runs one kernel after the other, so their recorded ends are wrong; "
            "each ends at the start of the next one instead, or after the longest time of others "
            f"of its name ({removed_ms:,.3f} ms less in all), and idle time next to them is "
            "uncertain; record again"
        )
        subject = "kernels that end after the next one on their stream starts"
        kind, times_ns = LimitationKind.KERNELS_OVERRUN, start_ns[is_damaged]
        notes.append(Limitation(subject, reason, n_damaged, kind, times_ns=times_ns))
    if n_overlapping := len(is_damaged) - int(is_damaged.sum()):
        longest_us = removed_ns[~is_damaged].max() / 1e3
        reason = (
            f"{path}: they end up to {longest_us:,.1f} us after the next one starts, and count up "
            "to that start; idle time does not change"
        )
        subject = "kernels that overlap the next one on their stream"
        notes.append(Limitation(subject, reason, n_overlapping))
    return tuple(notes)


def _describe_concurrency(path: str, is_left: Bools, is_far_longer: Bools) -> Limitation:
    """Return the limitation for streams that run several kernels concurrently.

    Args:
        path: Path of the profile.
        is_left: Mask of overruns that contain other work and are not corrected.
        is_far_longer: Mask of overruns that take several times as long as any other work of their
            name.
    """
    reason = (
        f"{path}: so many that streams of this profile run several kernels at once; their times "
        "count as recorded"
    )
    kind = LimitationKind.OTHER
    if (is_left & is_far_longer).any():
        reason += (
            ", though some take several times as long as others of their name, so their ends may "
            "be wrong; record again"
        )
        kind = LimitationKind.KERNELS_OVERRUN
    subject = "kernels that run during others of their stream"
    return Limitation(subject, reason, int(is_left.sum()), kind)
