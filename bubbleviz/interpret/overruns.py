"""Overruns: kernels and copies that end after the next one on their stream starts.

A stream runs its work in sequence. An end after the start of the next work is therefore wrong, and
hides idle time::

    recorded    ├─ a ─────────────────────┤
                        ├ b ┤    ├ c ┤
    corrected   ├─ a ───┤├ b ┤    ├ c ┤     a ends at the start of b, or
                ├ a ┤   ├ b ┤    ├ c ┤      after the longest time of other kernels named a

The earlier of the two possible ends is used. Some overlaps are real:

- Kernels of one CUDA graph launch may run concurrently.
- A kernel that was launched with programmatic stream serialization may start early, before the
  previous kernel ends.
- A hardware queue may run several streams concurrently.

However, none of the three effects makes a kernel take several times as long as other kernels with
the same name.

The last kernel on a stream has no next work. Its end is wrong if the process had already waited for
all work of the device, and if the kernel takes several times as long as others with its name::

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
#: Overlaps longer than this, in ns, are counted to determine whether kernels really start early.
_EARLY_START_NS = 1_000
#: Overlaps are frequent only if there are at least this many. A smaller number may be damage, even
#: in a small profile.
_MIN_MANY = 10
#: If more than this share of kernels overlap the next kernel, kernels really start early.
_MANY_EARLY_STARTS = 0.01
#: A hardware queue is not serial if more than this share of its kernels contain the next kernel.
_MANY_CONTAINED = 0.2
#: A kernel is far longer if it takes more than this many times as long as any other kernel with the
#: same name. The end of a far longer kernel is wrong, unless such kernels are common.
_FAR_LONGER = 3
#: The end of the last work on a stream is checked only if the work takes at least this share of the
#: profile's span.
_NOTICEABLE = 0.01
#: Awaited work may end up to this time (in ns) after the wait returns, because the host and device
#: clocks differ slightly.
_WAIT_GRAIN_NS = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class _Overruns(Table):
    """Work that ends after the next work on its stream starts.

    Attributes:
        row: Row of the kernel or copy in the activities.
        next_start_ns: Start of the next kernel or copy on the stream.
        next_end_ns: End of the next kernel or copy on the stream.
    """

    row: Ints
    next_start_ns: Ints
    next_end_ns: Ints


@dataclass(frozen=True, eq=False)
class _Evidence:
    """Masks of overruns that show which ends are wrong. All masks have shape (overruns,).

    Attributes:
        contains_next: Mask of the overruns that end more than ``_CLOCK_GRAIN_NS`` after the end of
            the next work.
        is_far_longer: Mask of the overruns that take more than ``_FAR_LONGER`` times as long as any
            other work with the same name.
        is_outlier: Mask of the far longer overruns that are rare among the work with the same name;
            see :func:`_is_rare_of_name`.
    """

    contains_next: Bools
    is_far_longer: Bools
    is_outlier: Bools


@dataclass(frozen=True)
class ClippedWork:
    """Activities whose wrong end times are corrected.

    Attributes:
        activities: The activities with corrected ends.
        first: Row of the activity that starts first on each stream. If several start at the same
            time, the smallest row wins.
        last: Row of the activity that starts last on each stream. If several start at the same
            time, the largest row wins.
        limitations: Limitations that report the number of corrected ends.
    """

    activities: Activities
    first: Ints
    last: Ints
    limitations: tuple[Limitation, ...]


def clip_overruns(
    path: str, activities: Activities, streams: Codes, *, are_queues: bool = False
) -> ClippedWork:
    """Correct end times that are later than the start of the next work on the same stream.

    A kernel or copy with such an end is an overrun. Overlaps of at most ``_CLOCK_GRAIN_NS`` are
    noise and are ignored. :func:`_select_wrong` selects the overruns to correct, and
    :func:`_clip_ends` computes their new ends.

    Args:
        path: Path of the profile.
        activities: GPU activities of the profile, kernels before copies.
        streams: Stream of each activity within its rank, or -1 if unknown.
        are_queues: Whether a stream number may be a hardware queue that several streams share. If
            much of the work on such queues runs concurrently, only outliers are corrected.
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
    """Determine which overruns contain the next work, are far longer than others, or are outliers.

    See :class:`_Evidence` for the definitions. There is one exception for outliers: if many of them
    do not contain the next work, and there are also many short overlaps, kernels probably do start
    before the previous kernel ends. Only overruns that contain the next work then remain outliers.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        streams: Stream of each activity within its rank, or -1 if unknown.
        overruns: All overruns, at least one.
        longest_ns: For each overrun, the longest duration of other work with the same name, or 0 if
            there is none.
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

    Outliers (see :class:`_Evidence`) are always corrected. The first rule that applies decides
    about all other overruns:

    1. If ``are_queues`` and more than ``_MANY_CONTAINED`` of all work contains the next work, the
       queues run work concurrently. No other overrun is corrected.
    2. If more than ``_MANY_EARLY_STARTS`` of all work overlaps the next work without containing it,
       early starts are real. Only overruns that contain the next work are corrected.
    3. Otherwise, all overruns are corrected.

    In both comparisons, outliers are not counted, and at least ``_MIN_MANY`` overruns are needed.

    Args:
        path: Path of the profile.
        evidence: Evidence for wrong ends.
        n_work: Number of kernels and copies.
        are_queues: Whether a stream number may be a hardware queue that several streams share.

    Returns:
        is_wrong: Mask of the overruns to correct.
        notes: One limitation if rule 1 applies, otherwise empty.
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

    Only work whose launch is known is checked. See :func:`_find_late_ends` for the conditions.

    Args:
        path: Path of the profile.
        work: Activities whose overruns are already corrected.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of each activity's launching call, undefined if the call is unknown.
        calls: All API calls of the profile.

    Returns:
        The activities with corrected ends and one more limitation, or ``work`` itself if no end is
        wrong.
    """
    activities = work.activities
    last = work.last[call[work.last] != NONE]
    rows, corrected_ns = _find_late_ends(activities, last, launched_ns, calls)
    if len(rows) == 0:
        return work
    removed_ms = (activities.end_ns[rows] - corrected_ns).sum() / 1e6
    reason = (
        f"{path}: a call that waited for all work on the device returned before these kernels "
        "ended, so their recorded ends are wrong. Each is shortened to the longest duration of "
        f"other kernels with its name ({removed_ms:,.3f} ms less in total), and idle time next to "
        "these kernels is uncertain; record again"
    )
    subject = "kernels that end after a call that waited for them"
    kind, times_ns = LimitationKind.KERNELS_OVERRUN, activities.start_ns[rows]
    note = Limitation(subject, reason, len(rows), kind, times_ns=times_ns)
    ends_ns = activities.end_ns.copy()
    ends_ns[rows] = corrected_ns
    corrected = replace(activities, end_ns=ends_ns)
    return replace(work, activities=corrected, limitations=(*work.limitations, note))


def _find_late_ends(
    activities: Activities, last: Ints, launched_ns: Ints, calls: CallLog
) -> tuple[Ints, Ints]:
    """Determine which of the last activities on streams have wrong ends.

    The end of an activity is wrong if all of the following conditions hold:

    - The activity takes at least ``_NOTICEABLE`` of the profile's span.
    - A wait for the device returned after the start of the activity, and more than
      ``_WAIT_GRAIN_NS`` before its end.
    - The activity takes more than ``_FAR_LONGER`` times as long as any other activity with the same
      name. At least one other activity must have that name.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        last: Row of the last activity on each stream. The launches of the activities in ``last``
            must be known.
        launched_ns: Launch time of each activity.
        calls: All API calls of the profile.

    Returns:
        rows: Rows of the activities whose ends are wrong.
        corrected_ns: Corrected end of each activity. The corrected end is either the return of the
            wait, or the start plus the longest duration of other activities with the same name,
            whichever is earlier.
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
    """Return, for each activity, the earliest time at which a wait proves that it had ended.

    This is the earliest return of any wait that the process started at or after the activity's
    launch.

    Args:
        process: Process of each activity.
        launched_ns: Launch time of each activity.
        waits: Calls that wait for all work of the only device of a process.

    Returns:
        Time of each activity in ns, or the largest int64 if no wait started after its launch.
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
    """Move the end of each overrun to the start of the next work on the stream, or earlier.

    If an overrun contains the next work, or takes longer than ``longest_ns``, its new duration is
    also limited to ``longest_ns``. There is no limit if ``longest_ns`` is 0.

    Args:
        path: Path of the profile.
        activities: GPU activities of the profile, kernels before copies.
        overruns: Overruns to correct.
        longest_ns: For each overrun, the longest duration of other work with the same name, or 0 if
            there is none.
        contains_next: Mask of the overruns that contain the next work on their stream.

    Returns:
        corrected: A copy of the activities with corrected ends.
        limitations: Limitations that report the number of corrections.
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
    """Find the kernels and copies that end after the next one on their stream starts.

    Kernels and copies whose duration is 0 or whose stream is unknown are ignored.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        streams: Stream of each activity within its rank, or -1 if unknown.
        grain_ns: Maximum overlap that is ignored, in ns.

    Returns:
        overruns: The overruns, grouped by stream.
        first: Row of the activity that starts first on each stream.
        last: Row of the activity that starts last on each stream.
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
    """Return the kernels and copies of one stream that end after the next one starts.

    Kernels and copies whose duration is 0 are ignored. A kernel with the same launch or the same
    start as the kernel before it never counts as the next one.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        rows: Rows of the kernels and copies on the stream, sorted by start.
        start_ns: Start of each row.
        grain_ns: Maximum overlap that is ignored, in ns.
    """
    end_ns = activities.end_ns[rows]
    has_duration = end_ns > start_ns
    if not has_duration.all():
        rows, start_ns, end_ns = rows[has_duration], start_ns[has_duration], end_ns[has_duration]
    candidate = np.flatnonzero(end_ns[:-1] - start_ns[1:] > grain_ns)
    if len(candidate) == 0:
        return _Overruns.make_empty()

    # A kernel of the same launch, or with the same start, is not the next one.
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
    """Return whether there are too many overruns to be explained by damage.

    There must be at least ``_MIN_MANY`` overruns, and their share of all kernels and copies must
    exceed ``max_share``.

    Args:
        number: Number of overruns.
        max_share: Maximum share of kernels and copies that damage can explain, from 0 to 1.
        n_work: Number of kernels and copies.
    """
    return number >= _MIN_MANY and number > max_share * n_work


def _is_rare_of_name(activities: Activities, rows: Ints, is_counted: Bools) -> Bools:
    """Return a mask of the overruns that are rare among the activities with the same name.

    All overruns with the same name get the same result. They are rare if the number of counted
    overruns does not exceed the number of activities with this name that are not overruns.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        rows: Rows of the overruns.
        is_counted: Mask of the overruns to count, shape (overruns,).
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
    """Return, for each row, the longest duration of other activities with the same name in ns.

    The result is 0 if there are no others, or if the activity has no name. Other activities are
    those that are not in ``rows``.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        rows: Rows of the activities to compare with others.
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
    """Return the limitations that report kernels and copies whose ends were corrected.

    The first limitation reports kernels and copies whose recorded end is invalid. The second
    reports the remaining ones, which merely overlap the next kernel or copy. Empty limitations are
    left out.

    Args:
        path: Path of the profile.
        start_ns: Start of each kernel or copy whose end was corrected.
        removed_ns: Time that was cut from each corrected kernel or copy.
        is_damaged: Mask of the kernels and copies whose recorded end is invalid.
    """
    notes = []
    if n_damaged := int(is_damaged.sum()):
        removed_ms = removed_ns[is_damaged].sum() / 1e6
        reason = (
            f"{path}: a stream runs only one kernel at a time, so some recorded ends are wrong. "
            "These kernels are cut at the start of the next kernel, or to the longest duration of "
            f"others with the same name ({removed_ms:,.3f} ms less in total), and idle time next "
            "to them is uncertain; record again"
        )
        subject = "kernels that end after the next one on their stream starts"
        kind, times_ns = LimitationKind.KERNELS_OVERRUN, start_ns[is_damaged]
        notes.append(Limitation(subject, reason, n_damaged, kind, times_ns=times_ns))
    if n_overlapping := len(is_damaged) - int(is_damaged.sum()):
        longest_us = removed_ns[~is_damaged].max() / 1e3
        reason = (
            f"{path}: some kernels end up to {longest_us:,.1f} us after the next one starts, and "
            "are counted only up to that start; idle time does not change"
        )
        subject = "kernels that overlap the next one on their stream"
        notes.append(Limitation(subject, reason, n_overlapping))
    return tuple(notes)


def _describe_concurrency(path: str, is_left: Bools, is_far_longer: Bools) -> Limitation:
    """Return the limitation that reports streams that run several kernels concurrently.

    Args:
        path: Path of the profile.
        is_left: Mask of the overruns that contain other work and are not corrected.
        is_far_longer: Mask of the overruns that take more than ``_FAR_LONGER`` times as long as any
            other work with the same name.
    """
    reason = (
        f"{path}: so many kernels overlap on a stream that streams in this profile must run "
        "several kernels at once; all times are used as recorded"
    )
    kind = LimitationKind.OTHER
    if (is_left & is_far_longer).any():
        reason += (
            ". Some of these kernels take several times as long as others with the same name, so "
            "their ends may be wrong; record again"
        )
        kind = LimitationKind.KERNELS_OVERRUN
    subject = "kernels that run during other kernels on their stream"
    return Limitation(subject, reason, int(is_left.sum()), kind)
