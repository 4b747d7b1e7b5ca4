"""Overruns: work whose recorded end is later than the start of the next work on its stream.

A stream runs one thing after the other, so such an end is wrong, and hides idle time::

    recorded    ├─ a ─────────────────────┤
                        ├ b ┤    ├ c ┤
    corrected   ├─ a ───┤├ b ┤    ├ c ┤     at the start of b, if other kernels named a take so long
                ├ a ┤   ├ b ┤    ├ c ┤      at the longest time of the others, if they are shorter

Kernels of one CUDA graph launch may run at the same time, and so may a kernel and the next one that
was launched with programmatic stream serialization: it begins early and ends later. A hardware
queue may run several streams at the same time. Neither makes a kernel take several times as long as
the others of its name.

The last work on a stream overlaps no other. Its end is wrong if the process had waited for all work
of the device before, and if it takes several times as long as the others of its name::

    host        launch a    ├ wait for the device ┤
    recorded           ├─ a ───────────────────────────────┤
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.interpret.damaged_work import device_waits
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, joined, marked
from bubbleviz.model.grouping import begins, rows_by_value, sorted_rows
from bubbleviz.model.intervals import group_latest
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import UNCORRELATED, Activities, CallLog, Calls, process_of

#: Maximum overlap that is noise of timestamps, in ns.
_CLOCK_GRAIN_NS = 5_000
#: Minimum overlap of short kernels that shows that the next ones begin early, in ns.
_EARLY_START_NS = 1_000
#: Minimum number of overlaps, and minimum part of all work, that no damage explains.
_MIN_MANY = 10
#: Part of all work from which kernels that begin early are launched that way.
_MANY_EARLY_STARTS = 0.01
#: Part of all work from which a queue does not run one thing after the other.
_MANY_CONTAINED = 0.2
#: Factor by which work must exceed the longest other work of its name so that its end is damaged,
#: however many ends are.
_FAR_LONGER = 3
#: Minimum part of a profile's time that the last work on a stream takes if its end is looked at.
_NOTICEABLE = 0.01
#: Maximum time after the return of a wait that is noise of the clocks of host and device, in ns.
_WAIT_GRAIN_NS = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class _Overruns(Table):
    """Work that ends after the next work on its stream begins.

    Attributes:
        row: Row of the activities.
        next_start_ns: Start of the next work on the stream.
        next_end_ns: End of the next work on the stream.
    """

    row: Ints
    next_start_ns: Ints
    next_end_ns: Ints


@dataclass(frozen=True)
class ClippedWork:
    """Work that ends before the next work on its stream begins.

    Attributes:
        activities: The activities with corrected ends.
        first: Row of the first work on each stream, of several the first row.
        last: Row of the last work on each stream, of several the last row.
        limitations: What counts the corrected ends.
    """

    activities: Activities
    first: Ints
    last: Ints
    limitations: tuple[Limitation, ...]


def clip_overruns(
    path: str, activities: Activities, streams: Codes, *, are_queues: bool = False
) -> ClippedWork:
    """End work before the next work on its stream begins.

    Work that contains the next work on its stream, or takes longer than all other work of its name,
    is damaged. Other work only overlaps the next; its time is cut, and no idle time changes. Where
    so much work overlaps the next that no damage explains it, only the ends of work are wrong that
    takes several times as long as the others of its name, or contains the next work of a stream.

    Args:
        path: Path of the profile.
        activities: Kernels, then copies.
        streams: Stream of each activity within its rank, or -1 if unknown.
        are_queues: Whether the streams may be hardware queues, which several streams share. If
            much work on them runs at once, its times count as recorded, but for that which takes
            several times as long as others of its name.
    """
    overruns, first, last = _find_overruns(activities, streams)
    if len(overruns) == 0:
        return ClippedWork(activities, first, last, ())
    start_ns, end_ns = activities.start_ns[overruns.row], activities.end_ns[overruns.row]
    longest_ns = _longest_of_others(activities, overruns.row)
    is_contained = end_ns > overruns.next_end_ns + _CLOCK_GRAIN_NS
    is_far_longer = (longest_ns > 0) & (end_ns - start_ns > _FAR_LONGER * longest_ns)
    is_damaged = is_far_longer & _are_few_of_name(activities, overruns.row, is_far_longer)
    n_work = len(activities)
    if _are_many((is_damaged & ~is_contained).sum(), _MANY_EARLY_STARTS, n_work):
        # Where work begins early after short kernels, too, it does so after long ones.
        n_short = len(_find_overruns(activities, streams, _EARLY_START_NS)[0]) - len(overruns)
        if _are_many(n_short, _MANY_EARLY_STARTS, n_work):
            is_damaged &= is_contained
    # However many ends are damaged, they do not show that work may overlap.
    is_left = is_contained & ~is_damaged
    is_shared_queue = are_queues and _are_many(is_left.sum(), _MANY_CONTAINED, n_work)
    notes: tuple[Limitation, ...] = ()
    is_wrong = np.ones(len(overruns), bool)
    if is_shared_queue:
        is_wrong = is_damaged
        notes = (_not_serial(path, is_left, is_far_longer),)
    elif _are_many((~is_contained & ~is_damaged).sum(), _MANY_EARLY_STARTS, n_work):
        is_wrong = is_contained | is_damaged
    if not is_wrong.any():
        return ClippedWork(activities, first, last, notes)
    corrected, limitations = _correct(
        path, activities, overruns.take(is_wrong), longest_ns[is_wrong], is_contained[is_wrong]
    )
    return ClippedWork(corrected, first, last, (*limitations, *notes))


def clip_late_ends(
    path: str, work: ClippedWork, call: Codes, launched_ns: Ints, calls: CallLog
) -> ClippedWork:
    """End the last work on streams before a wait for its device returned.

    Only ends that take a noticeable part of the profile are looked at.

    Args:
        path: Path of the profile.
        work: Work that ends before the next work on its stream begins.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of that call, undefined if the call is unknown.
        calls: All calls of the profile.
    """
    activities = work.activities
    last = work.last[call[work.last] != NONE]
    rows, corrected_ns = _late_ends(activities, last, launched_ns, calls)
    if len(rows) == 0:
        return work
    removed_ms = (activities.end_ns[rows] - corrected_ns).sum() / 1e6
    reason = (
        f"{path}: a call that waited for all work of their device returned before, so their "
        "recorded ends are wrong; each ends after the longest time of others of its name instead "
        f"({removed_ms:,.3f} ms less in all), and idle time next to them is uncertain; record again"
    )
    what = "kernels that end after a wait for their device"
    kind, times_ns = LimitationKind.KERNELS_OVERRUN, activities.start_ns[rows]
    note = Limitation(what, reason, len(rows), kind, times_ns=times_ns)
    ends_ns = activities.end_ns.copy()
    ends_ns[rows] = corrected_ns
    corrected = replace(activities, end_ns=ends_ns)
    return replace(work, activities=corrected, limitations=(*work.limitations, note))


def _late_ends(
    activities: Activities, last: Ints, launched_ns: Ints, calls: CallLog
) -> tuple[Ints, Ints]:
    """Return the last work on streams whose end is wrong, and when each ends at the latest.

    Args:
        activities: Kernels, then copies.
        last: Row of the last work on each stream, if its launch is known.
        launched_ns: When each activity was launched.
        calls: All calls of the profile.
    """
    rows = last[_durations(activities, last) >= _NOTICEABLE * _span_ns(activities)]
    if len(rows) == 0:
        return rows, rows
    process = activities.ranks[activities.rank[rows], 0]
    returned_ns = _first_returns(process, launched_ns[rows], device_waits(activities, calls))
    is_late = activities.end_ns[rows] - _WAIT_GRAIN_NS > returned_ns
    is_late &= activities.start_ns[rows] < returned_ns
    rows, returned_ns = rows[is_late], returned_ns[is_late]
    longest_ns = _longest_of_others(activities, rows)
    is_wrong = (longest_ns > 0) & (_durations(activities, rows) > _FAR_LONGER * longest_ns)
    latest_ns = np.minimum(returned_ns, activities.start_ns[rows] + longest_ns)
    return rows[is_wrong], latest_ns[is_wrong]


def _durations(activities: Activities, rows: Ints) -> Ints:
    """Return how long some work takes as recorded."""
    return activities.end_ns[rows] - activities.start_ns[rows]


def _span_ns(activities: Activities) -> int:
    """Return the time from the first start of any work to the last end, 0 without work."""
    if len(activities) == 0:
        return 0
    return int(activities.end_ns.max() - activities.start_ns.min())


def _first_returns(process: Ints, launched_ns: Ints, waits: Calls) -> Ints:
    """Return when the first wait for a device returned that shows that work had ended.

    Args:
        process: Process of the work.
        launched_ns: When the work was launched.
        waits: Waits for the only device of a process.

    Returns:
        The time for each work, the largest number if there was no such wait.
    """
    never_ns = np.iinfo(np.int64).max
    first_ns = np.full(len(process), never_ns, np.int64)
    for number, rows in rows_by_value(process_of(waits.thread)):
        order = rows[np.argsort(waits.start_ns[rows], kind="stable")]
        earliest_ns = np.minimum.accumulate(waits.end_ns[order][::-1])[::-1]
        is_of_process = process == number
        n_before = np.searchsorted(waits.start_ns[order], launched_ns[is_of_process])
        first_ns[is_of_process] = np.append(earliest_ns, never_ns)[n_before]
    return first_ns


def _correct(
    path: str, activities: Activities, overruns: _Overruns, longest_ns: Ints, is_contained: Bools
) -> tuple[Activities, tuple[Limitation, ...]]:
    """Correct the ends of overruns.

    Args:
        path: Path of the profile.
        activities: Kernels, then copies.
        overruns: Work whose end is corrected.
        longest_ns: Longest time of other work of the same name, or 0 if there is none.
        is_contained: Mask of overruns that contain the next work on their stream.

    Returns:
        The activities with corrected ends, and limitations that count them.
    """
    start_ns = activities.start_ns[overruns.row]
    duration_ns = activities.end_ns[overruns.row] - start_ns
    until_next_ns = overruns.next_start_ns - start_ns
    is_damaged = is_contained | (duration_ns > longest_ns)
    has_others = longest_ns > 0
    corrected_ns = np.where(
        is_damaged & has_others, np.minimum(until_next_ns, longest_ns), until_next_ns
    )
    ends_ns = activities.end_ns.copy()
    ends_ns[overruns.row] = start_ns + corrected_ns
    corrected = replace(activities, end_ns=ends_ns)
    removed_ns = duration_ns - corrected_ns
    return corrected, _limitations(path, start_ns, removed_ns, is_damaged)


def _find_overruns(
    activities: Activities, streams: Codes, grain_ns: int = _CLOCK_GRAIN_NS
) -> tuple[_Overruns, Ints, Ints]:
    """Find the work that ends after the next work on its stream begins.

    Work without a duration, and work whose stream is unknown, does not count.

    Args:
        activities: Kernels, then copies.
        streams: Stream of each activity within its rank, or -1 if unknown.
        grain_ns: Maximum overlap that does not count.

    Returns:
        The work, the row of the first work on each stream, and that of the last.
    """
    overruns, first, last = [_Overruns.none()], [], []
    for rows in activities.rows_by_stream(streams):
        start_ns = activities.start_ns[rows]
        is_in_order = bool((start_ns[1:] >= start_ns[:-1]).all())
        in_order = rows if is_in_order else rows[sorted_rows(start_ns)]
        overruns.append(_find_on_stream(activities, in_order, grain_ns))
        first.append(in_order[0])
        last.append(in_order[-1])
    return joined(overruns), np.array(first, np.int64), np.array(last, np.int64)


def _find_on_stream(activities: Activities, rows: Codes, grain_ns: int) -> _Overruns:
    """Return the work of one stream that ends after the next work on it begins.

    Args:
        activities: Kernels, then copies.
        rows: Rows of the work on the stream, in order of their starts.
        grain_ns: Maximum overlap that does not count.
    """
    start_ns, end_ns = activities.start_ns[rows], activities.end_ns[rows]
    has_duration = end_ns > start_ns
    if not has_duration.all():
        rows, start_ns, end_ns = rows[has_duration], start_ns[has_duration], end_ns[has_duration]
    candidate = np.flatnonzero(end_ns[:-1] - start_ns[1:] > grain_ns)
    if len(candidate) == 0:
        return _Overruns.none()

    # Of work that was launched at once, or that starts at the same time, none is the next.
    launch = activities.correlation_id[rows]
    is_next = (begins(launch) | (launch == UNCORRELATED)) & begins(start_ns)
    next_rows = np.flatnonzero(is_next)
    position = np.searchsorted(next_rows, candidate, side="right")
    exists = position < len(next_rows)
    candidate, following = candidate[exists], next_rows[position[exists]]
    is_overrun = end_ns[candidate] - start_ns[following] > grain_ns
    candidate, following = candidate[is_overrun], following[is_overrun]
    return _Overruns(rows[candidate].astype(np.int64), start_ns[following], end_ns[following])


def _are_many(number: int, part: float, count: int) -> bool:
    """Return whether overruns are too many to be damage.

    Args:
        number: Number of overruns.
        part: Part of all work from which they are too many.
        count: Number of kernels and copies.
    """
    return number >= _MIN_MANY and number > part * count


def _are_few_of_name(activities: Activities, rows: Ints, chosen: Bools) -> Bools:
    """Tell for overruns whether the chosen ones of their name are no more than its other work.

    Args:
        activities: Kernels, then copies.
        rows: Rows of the overruns.
        chosen: Mask of overruns.
    """
    n_names = len(activities.names)
    # The first place is the one of work without a name (-1).
    name = activities.name_id[rows] + 1
    n_chosen = np.bincount(name[chosen], minlength=n_names + 1)
    n_overruns = np.bincount(name, minlength=n_names + 1)
    is_wanted = marked(n_names + 1, name)
    of_names = activities.name_id[is_wanted[activities.name_id + 1]] + 1
    n_others = np.bincount(of_names, minlength=n_names + 1) - n_overruns
    return (n_chosen <= n_others)[name]


def _longest_of_others(activities: Activities, rows: Ints) -> Ints:
    """Return the longest time of other kernels with the same name, or 0 if there are none.

    Args:
        activities: Kernels, then copies.
        rows: Rows whose own times do not count.
    """
    n_names = len(activities.names)
    # The last place is the one of work without a name (-1).
    is_wanted = marked(n_names + 1, activities.name_id[rows])
    is_wanted[n_names] = False
    is_other = is_wanted[activities.name_id]
    is_other[rows] = False
    others = np.flatnonzero(is_other)
    duration_ns = activities.end_ns[others] - activities.start_ns[others]
    longest_ns = group_latest(activities.name_id[others], n_names, duration_ns, 0)
    return np.append(longest_ns, 0)[activities.name_id[rows]]


def _limitations(
    path: str, start_ns: Ints, removed_ns: Ints, is_damaged: Bools
) -> tuple[Limitation, ...]:
    """Return the limitations for work whose end was corrected.

    Args:
        path: Path of the profile.
        start_ns: Start of the work.
        removed_ns: Time by which each end was moved.
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
        what = "kernels that end after the next one on their stream starts"
        kind, times_ns = LimitationKind.KERNELS_OVERRUN, start_ns[is_damaged]
        notes.append(Limitation(what, reason, n_damaged, kind, times_ns=times_ns))
    if n_overlapping := len(is_damaged) - int(is_damaged.sum()):
        longest_us = removed_ns[~is_damaged].max() / 1e3
        reason = (
            f"{path}: they end up to {longest_us:,.1f} us after the next one starts, and count up "
            "to that start; idle time does not change"
        )
        what = "kernels that overlap the next one on their stream"
        notes.append(Limitation(what, reason, n_overlapping))
    return tuple(notes)


def _not_serial(path: str, is_left: Bools, is_far_longer: Bools) -> Limitation:
    """Return the limitation for streams that run several kernels at once.

    Args:
        path: Path of the profile.
        is_left: Mask of overruns that contain other work and count as recorded.
        is_far_longer: Mask of overruns that take several times as long as others of their name.
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
    what = "kernels that run during others of their stream"
    return Limitation(what, reason, int(is_left.sum()), kind)
