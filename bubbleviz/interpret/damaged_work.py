"""Damaged work: kernels and copies whose times, places or rows cannot be, and those that are lost.

Work whose times contradict its launching call, or the capture, is left out::

    calls          ├──────── capture ────────┤
    launch         │     ▼                   │
    sound          │      ████               │ ██     launched late in the capture, ended after it
    left out       │ ██                      │        began before its own launch
    left out   ██  │                         │    ███ lies outside the capture, and far from it

Launches whose kernel the profile does not hold, though the capture went on, are counted::

    launches     │ a  b  c  d  e  f │
    kernels      │  a  b     d      │     c is lost; e and f had not run when the capture ended

If the process goes on for longer than any work took to end, recording had stopped::

    launches     │ a  b  c  d  e  f        synchronize │
    kernels      │  a  b  c                            │     d, e and f are lost
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from bubbleviz.conventions.kinds import GRAPH_LAUNCHES, KERNEL_LAUNCHES
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.interpret.late_launches import Launches, WorklessRows
from bubbleviz.model import profile
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, marked
from bubbleviz.model.grouping import distinct, found_in, groups_of, rows_by_value
from bubbleviz.model.intervals import group_extents, group_latest
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.texts import counted, listed, percent

#: Work may begin so much before its launching call, as clocks differ; ns.
_CLOCK_GRAIN_NS = 100_000
#: So much where many kernels do; ns.
_CLOCK_DRIFT_NS = 10_000_000
#: Such a part of all kernels are many.
_MANY = 20
#: Rows that are looked at together, as memory is short.
_PIECE = 1 << 16
#: Work of an unknown place is damaged if it is no more than such a part of all work.
_FEW = 100
#: Places that a limitation lists.
_LISTED = 4
#: Some profilers count in microseconds, so that a kernel of no length may have taken one or two.
_LONG_NS = 10_000
#: So many calls without work are looked at first, and the others only where one of these is lost.
_FIRST = 1 << 13
#: Where such a part of the kernels of a process is lost, ratios are those of another run.
_NOTICEABLE = 0.01
#: So many lost kernels of a sample tell how many there are (to a third).
_ENOUGH = 10
#: A kernel that takes so many times the longest time of others may run when the capture ends.
_FAR_LONGER = 2
#: Stands for the launch of a thread that made none, and for a time that never comes.
_NEVER, _FOREVER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)

_Notes: TypeAlias = list[Limitation]


def check_times(
    path: str,
    activities: profile.Activities,
    call: Codes,
    launched_ns: Ints,
    capture_ns: tuple[int, int] | None,
) -> tuple[Bools | None, _Notes]:
    """Hold the times of work against its launching call and the capture.

    The clocks of a GPU and its host differ by microseconds, and by milliseconds where the profiler
    corrects their drift badly. Such a difference shows in many kernels alike, and then nothing is
    left out; a damaged time is alone. The clock of each device is judged for itself.

    Args:
        path: of the profile.
        activities: kernels, then copies.
        call: the launching call of each; -1 unknown.
        launched_ns: when that began.
        capture_ns: start of the first call and end of the last; None where no host made them.

    Returns:
        Which work has times that can be, None for all, and limitations.
    """
    start_ns, notes = activities.start_ns, list[Limitation]()
    early = np.zeros(len(activities), bool)
    skewed = skew_ns = 0
    pieces = (slice(at, at + _PIECE) for at in range(0, len(call), _PIECE))
    any_early = any(
        bool(
            (call[p][np.flatnonzero(start_ns[p] < launched_ns[p] - _CLOCK_GRAIN_NS)] != NONE).any()
        )
        for p in pieces
    )
    for rank in range(len(activities.ranks)) if any_early else ():
        rows = np.flatnonzero((activities.rank == rank) & (call != NONE))
        delay_ns = start_ns[rows] - launched_ns[rows]
        left_out = delay_ns < -_most_early_ns(delay_ns)
        kept = (delay_ns < -_CLOCK_GRAIN_NS) & ~left_out
        if kept.any():
            skewed += int(kept.sum())
            skew_ns = max(skew_ns, int(-delay_ns[kept].min()))
        early[rows[left_out]] = True
    kind = LimitationKind.KERNELS_LEFT_OUT
    count = int(early.sum()) if any_early else 0
    if count:
        reason = f"{path}: they start before the call that launched them; left out"
        what = "kernels and copies before their launching call"
        times_ns = launched_ns[early].astype(np.int64)
        notes.append(Limitation(what, reason, count, kind, times_ns=times_ns))
    outside = profile.outside_capture(start_ns, activities.end_ns, capture_ns)
    if outside is not None and (beyond := int((outside & ~early).sum())):
        notes.append(profile.outside_limitation("kernels and copies", path, beyond, kind))
    if skewed:
        reason = (
            f"{path}: many start before their launching call, by up to {skew_ns / 1e6:,.3f} ms, so "
            "the clocks of GPU and host differ; they are kept, and host activity is uncertain by "
            "as much"
        )
        notes.append(Limitation("the clock of the GPU", reason, skewed))
    if outside is not None:
        early |= outside
    return (None if outside is None and not count else ~early), notes


def _most_early_ns(delay_ns: Ints) -> int:
    """Return how long before its call work may begin (ns); for ever where most of it does."""
    negative = int((delay_ns < 0).sum())
    before = int((delay_ns < -_CLOCK_GRAIN_NS).sum())
    if 2 * negative > len(delay_ns):
        return profile.IMPOSSIBLE_NS
    many = before > max(1, len(delay_ns) // _MANY) or negative >= 2 * before > 0
    return _CLOCK_DRIFT_NS if many else _CLOCK_GRAIN_NS


def check_places(
    source: profile.Source,
    activities: profile.Activities,
    devices: Sequence[profile.Device],
    calling: Ints | None,
) -> tuple[Bools, _Notes]:
    """Hold the processes and devices of work against the lists of devices, and the calls.

    A damaged identifier gives a kernel a process, or a device, of its own::

        calls of      process 1   process 2
        devices of    process 1   process 2
        kernels of    process 1   process 2   process 7     a few: left out
                       GPU 0       GPU 1       GPU 1

    Where many kernels ran there, it is the lists that lack something: they are kept, and that is
    told.

    Args:
        source: of the profile.
        activities: kernels, then copies.
        devices: that the profile lists; empty where it lists none.
        calling: processes that made calls, ascending; None where no host's calls are known.

    Returns:
        Which ranks are left out, and limitations.
    """
    places = activities.ranks.tolist()
    work = activities.counts_by_rank()
    known = {(device.pid, device.device_id) for device in devices}
    unlisted = np.array([not known & {(None, d), (profile.pid_of(p), d)} for p, d in places], bool)
    if not known or unlisted.all():
        unlisted[:] = False
    silent = np.zeros(len(places), bool)
    if calling is not None and len(calling):
        silent = found_in(calling, activities.ranks[:, 0]) == NONE
    left_out = (unlisted | silent) & (work <= max(1, len(activities) // _FEW))
    if left_out.all():
        left_out[:] = False
    unlisted &= ~left_out

    def in_words(ranks: Bools) -> str:
        chosen = [places[rank] for rank in np.flatnonzero(ranks).tolist()]
        words = [
            f"pid {profile.pid_of(process)} {source.place(device)}" for process, device in chosen
        ]
        return f"{source.path}: {listed(words, _LISTED)}"

    notes = []
    if count := int(work[left_out].sum()):
        reason = (
            f"{in_words(left_out)}: in no call and no list of devices, so an identifier is "
            "damaged; they are left out"
        )
        what = "kernels and copies of unknown processes or devices"
        notes.append(Limitation(what, reason, count, LimitationKind.COSTS))
    if unlisted.any():
        ran = counted(int(work[unlisted].sum()), "kernel or copy", "kernels and copies")
        reason = f"{in_words(unlisted)}: {ran} ran there, and are kept"
        what = "devices that the profile does not list"
        notes.append(Limitation(what, reason, int(unlisted.sum())))
    return left_out, notes


def check_rows(
    path: str, activities: profile.Activities, launches: Launches, calls: profile.CallLog
) -> tuple[Ints, _Notes]:
    """Look for work that is recorded twice, and kernels without a length.

    A call launches a kernel once, so that two rows of one call, name and device with the same times
    are the same, but for those of a CUDA graph, whose nodes may run side by side. A kernel cannot
    end as it begins where others of its name take long.

    Args:
        path: of the profile.
        activities: kernels, then copies.
        launches: of all of these.
        calls: all calls, by row.

    Returns:
        The rows that are left out, for an earlier one is the same, and limitations.
    """
    repeated, notes = _repeated(activities, launches.sharing), list[Limitation]()
    if len(repeated):
        call = launches.call[repeated].astype(np.int64)
        of_graphs = calls.beginning(distinct(call[call != NONE]), GRAPH_LAUNCHES)
        repeated = repeated[~np.isin(call, of_graphs)]
    if len(repeated):
        reason = f"{path}: same call, name and times as another row; each counts once"
        what, kind = "kernels and copies recorded twice", LimitationKind.COSTS
        notes.append(Limitation(what, reason, len(repeated), kind))
    if len(lengthless := _lengthless(activities)):
        reason = (
            f"{path}: they take no time though others of the same name do, so the profile is "
            "damaged: their time counts as idle; export or record it again"
        )
        kind = LimitationKind.KERNELS_LEFT_OUT
        what, times_ns = "kernels without a duration", activities.start_ns[lengthless]
        notes.append(Limitation(what, reason, len(lengthless), kind, times_ns=times_ns))
    return repeated, notes


def _repeated(activities: profile.Activities, rows: Codes) -> Ints:
    """Return those of some rows that share their ids which an earlier one equals."""
    if len(rows) == 0:
        return np.empty(0, np.int64)
    names = ("rank", "correlation_id", "name_id", "start_ns", "end_ns")
    columns = (getattr(activities, name)[rows].astype(np.int64) for name in names)
    return rows[occurrences((*columns, (rows < activities.kernels).astype(np.int64))) > 0]


def _lengthless(activities: profile.Activities) -> Ints:
    """Return the kernels that end as they begin, while most of their name are long."""
    count = activities.kernels
    start_ns, end_ns = activities.start_ns[:count], activities.end_ns[:count]
    pieces = (slice(at, at + _PIECE) for at in range(0, count, _PIECE))
    found = [p.start + np.flatnonzero(start_ns[p] == end_ns[p]) for p in pieces]
    rows = np.concatenate([np.empty(0, np.int64), *found])
    if len(rows) == 0:
        return rows
    name = activities.name_id[:count]
    wanted = marked(len(activities.names), name[rows])
    rows = np.flatnonzero(wanted[name])
    lengthless = [rows[:0]]
    for _, own in rows_by_value(name[rows]):
        duration_ns = end_ns[rows[own]] - start_ns[rows[own]]
        real_ns = np.sort(duration_ns[duration_ns > 0])
        # Half of them at least are as long.
        if len(real_ns) and real_ns[len(real_ns) // 2] >= _LONG_NS:
            lengthless.append(rows[own[duration_ns <= 0]])
    return np.concatenate(lengthless)


@dataclass(frozen=True)
class ProcessLoss:
    """What a process launched that the profile could hold.

    Attributes:
        process: the process.
        count: of kernels that are lost; an estimate where calls were sampled.
        seen: of these, in the sample.
        kernels: that the profile holds, of the time in which kernels count as lost.
        launched_ns: When the lost kernels that were seen were launched.
        first_launch_ns: When the first recorded work of the process was launched, or the smallest
            number if that is unknown.
        last_launch_ns: When the last recorded work of the process was launched, or the largest
            number if that is unknown.
    """

    process: int
    count: int
    seen: int
    kernels: int
    launched_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64), compare=False)
    first_launch_ns: int = _NEVER
    last_launch_ns: int = _FOREVER

    @property
    def before_span(self) -> int:
        """How many of the lost kernels that were seen were launched before all recorded work."""
        return int((self.launched_ns < self.first_launch_ns).sum())

    @property
    def after_span(self) -> int:
        """Number of the lost kernels that were seen and were launched after all recorded work."""
        return int((self.launched_ns > self.last_launch_ns).sum())


def lost_kernels(
    workless: WorklessRows,
    launches: Launches,
    activities: profile.Activities,
    of_launch: tuple[Codes, Ints],
    calls: profile.CallLog,
) -> tuple[tuple[ProcessLoss, ...], bool, profile.Calls]:
    """Return how many kernels each process launched before others that the profile does not hold.

    A launch that failed makes no kernel, and neither does one while a stream is captured into a
    CUDA graph. Where very many calls have no work, a sample of them stands for all.

    Args:
        workless: calls without work.
        launches: of all activities.
        activities: kernels, then copies.
        of_launch: of each activity the row of its launch's thread, which means nothing where it
            has none; and the threads that made calls.
        calls: all calls, by row.

    Returns:
        The processes that launched any kernel, by number, none where nothing is lost; whether
        only some of the calls without work were looked at; and those of them that lost a kernel.
    """
    rows, step = workless.sample(_FIRST)
    some = _launches_without_kernel(rows, launches, calls)
    if len(some) == 0:
        return (), step > 1, some
    until_ns = recorded_until(launches, activities, of_launch)
    threads = of_launch[1]
    until_ns = until_recording_stopped(
        some, until_ns, launches, activities, of_launch, calls, patience=_FAR_LONGER
    )
    some = launched_before(some, until_ns, threads)
    if len(some) and step > workless.step:
        rows, step = workless.sample()
        some = _launches_without_kernel(rows, launches, calls)
        some = launched_before(some, until_ns, threads)
    if len(some) == 0:
        return (), step > 1, some
    known = np.flatnonzero(launches.call != NONE)
    launched_ns, thread = launches.start_ns[known], of_launch[0][known]
    # The launch that a bound was taken from is before it, too.
    counts = (known < activities.kernels) & (launched_ns <= until_ns[thread])
    kernels = np.bincount(thread[counts], minlength=len(threads))
    process = profile.process_of(threads)
    seen = dict(rows_by_value(profile.process_of(some.thread)))
    none = np.empty(0, np.int64)
    first_ns, last_ns = group_extents(
        thread.astype(np.int64), len(threads), launched_ns, launched_ns
    )
    losses = tuple(
        ProcessLoss(
            process=number,
            count=step * len(rows),
            seen=len(rows),
            kernels=total,
            launched_ns=np.asarray(some.start_ns[rows], np.int64),
            first_launch_ns=int(first_ns[process == number].min()) if total else _NEVER,
            last_launch_ns=int(last_ns[process == number].max()) if total else _FOREVER,
        )
        for number in distinct(process).tolist()
        if (total := int(kernels[process == number].sum())) + len(rows := seen.get(number, none))
    )
    return losses, step > 1, some


def recorded_until(
    launches: Launches, activities: profile.Activities, of_launch: tuple[Codes, Ints]
) -> Ints:
    """Return until when the work that each thread launched had to be recorded.

    Args:
        launches: Launches of all activities.
        activities: Kernels, then copies.
        of_launch: For each activity the row of its launch's thread, undefined if its launch is
            unknown, and the threads that made calls.
    """
    known = np.flatnonzero(launches.call != NONE)
    launched_ns, thread = launches.start_ns[known], of_launch[0][known]
    return _until(launched_ns, activities.start_ns[known], thread, of_launch[1])


def until_recording_stopped(
    without_work: profile.Calls,
    until_ns: Ints,
    launches: Launches,
    activities: profile.Activities,
    of_launch: tuple[Codes, Ints],
    calls: profile.CallLog,
    *,
    patience: int = 1,
) -> Ints:
    """Return until when the work of each thread had to be recorded, for ever if recording stopped.

    Recording stopped if a process went on, after its last recorded work, for longer than any of its
    work took from the launch to the end, or for several times as long. The same time must have
    passed since a launch without work; then no launch after the last recorded work is in the
    profile. A process goes on until its last launch, or until it last returns from waiting for the
    device.

    Args:
        without_work: Launches that share their id with no work.
        until_ns: Time of each thread, without launches after the last recorded work.
        launches: Launches of all activities.
        activities: Kernels, then copies.
        of_launch: For each activity the row of its launch's thread, undefined if its launch is
            unknown, and the threads that made calls.
        calls: All calls of the profile.
        patience: How many times as long.
    """
    threads = of_launch[1]
    order = np.argsort(threads)
    thread = order[found_in(threads[order], without_work.thread)]
    is_after = without_work.start_ns >= until_ns[thread]
    if not is_after.any():
        return until_ns
    after, thread = without_work.take(is_after), thread[is_after]
    synchronizing = calls.at(calls.containing("Synchronize"))
    known = np.flatnonzero(launches.call != NONE)
    process = profile.process_of(threads)
    process_of_work = process[of_launch[0][known]]
    until_ns = until_ns.copy()
    for number, rows in rows_by_value(process[thread]):
        of_process = known[process_of_work == number]
        if len(of_process) == 0:
            continue
        returned_ns = synchronizing.end_ns[profile.process_of(synchronizing.thread) == number]
        went_on_ns = max(
            int(after.start_ns[rows].max()),
            int(launches.start_ns[of_process].max()),
            int(returned_ns.max(initial=_NEVER)),
        )
        ends_ns = activities.end_ns[of_process]
        longest_ns = patience * int((ends_ns - launches.start_ns[of_process]).max())
        if went_on_ns - int(ends_ns.max()) <= longest_ns:
            continue
        is_due = after.start_ns[rows] + longest_ns < went_on_ns
        until_ns[thread[rows[is_due]]] = _FOREVER
    return until_ns


def launched_before(calls: profile.Calls, until_ns: Ints, threads: Ints) -> profile.Calls:
    """Return the calls that began before a time of their thread.

    Args:
        calls: Calls of these threads.
        until_ns: Time of each thread.
        threads: Distinct threads.
    """
    order = np.argsort(threads)
    thread = order[found_in(threads[order], calls.thread)]
    return calls.take(calls.start_ns < until_ns[thread])


def _launches_without_kernel(
    rows: Ints, launches: Launches, calls: profile.CallLog
) -> profile.Calls:
    """Return those of some calls that should have made a kernel, and share their id with none."""
    some = calls.at(calls.beginning(rows, KERNEL_LAUNCHES))
    some = some.take(~launches.have_work(some))
    if len(some):
        some = some.take(~calls.failed(some.row))
    if len(some):
        some = some.take(~_captured(some, calls))
    return some


def _until(launched_ns: Ints, start_ns: Ints, thread: Codes, threads: Ints) -> Ints:
    """Return until when kernels that each thread launched had to be recorded.

    That is until the thread launched what is recorded last. A thread that launched nothing of it
    counts until another one of its process last did; if none did either, until the end of time.

    A stream may still wait when the capture ends, while others go on. Which stream a lost kernel
    was for is not recorded, so that the longest wait of any work of the process is granted::

        launches     │ a     b     c     │
        kernels      │   a        b   c  │    one at the time of c may have waited as long as b

    Args:
        launched_ns: of the work whose launch is known.
        start_ns: when it began.
        thread: that launched it, as row of ``threads``.
        threads: that made calls.
    """
    processes = groups_of(profile.process_of(threads))
    process = processes.of_row[thread]
    latest_ns = group_latest(thread, len(threads), launched_ns, _NEVER)
    of_process = group_latest(processes.of_row, len(processes), latest_ns, _NEVER)
    latest_ns = np.where(latest_ns == _NEVER, of_process[processes.of_row], latest_ns)
    wait_ns = np.maximum(group_latest(process, len(processes), start_ns - launched_ns, 0), 0)
    last_ns = group_latest(process, len(processes), start_ns, _NEVER)
    until_ns = np.where(last_ns == _NEVER, _FOREVER, last_ns - wait_ns + 1)
    bound_ns = np.minimum(latest_ns, until_ns[processes.of_row])
    return np.where(latest_ns == _NEVER, _FOREVER, bound_ns)


def _captured(some: profile.Calls, calls: profile.CallLog) -> Bools:
    """Tell which calls were made while their process captured a stream into a CUDA graph.

    Several threads may capture at once, and one may end what another began; a capture that never
    ends lasts, and one that failed to begin has no end.
    """
    began, ended = (calls.containing(f"Stream{what}Capture") for what in ("Begin", "End"))
    begin, end = calls.at(began[~calls.failed(began)]), calls.at(ended)
    captured = np.zeros(len(some), bool)
    for process, rows in rows_by_value(profile.process_of(some.thread)):
        began_ns = begin.start_ns[profile.process_of(begin.thread) == process]
        ended_ns = end.end_ns[profile.process_of(end.thread) == process]
        times_ns = np.concatenate((began_ns, ended_ns))
        change = np.repeat([1, -1], [len(began_ns), len(ended_ns)])
        order = np.lexsort((change, times_ns))
        open_now = np.append(0, np.cumsum(change[order]))
        # An end without a beginning, which was before the profile, ends nothing else.
        open_now -= np.minimum.accumulate(open_now)
        at = np.searchsorted(times_ns[order], some.start_ns[rows], side="right")
        captured[rows] = open_now[at] > 0
    return captured


def limitations_of_lost(
    path: str,
    processes: Sequence[ProcessLoss],
    left_out: int,
    *,
    sampled: bool,
    unknown: RankIntervals,
) -> Iterator[Limitation]:
    """Yield what to tell of lost kernels, if anything.

    Args:
        path: of the profile.
        processes: what they lost.
        left_out: how many kernels were left out as they were read, which is told already.
        sampled: whether only some of the calls without work were looked at.
        unknown: When ranks may have run the lost kernels.
    """
    total, kernels = (sum(getattr(p, name) for p in processes) for name in ("count", "kernels"))
    count = total - left_out
    if count <= 0:
        return
    # What is told already may be any process's.
    part = count / total
    about = "about " if sampled else ""
    # Two decimals show no less.
    share = _share(total * part, kernels)
    in_words = "less than 0.01 %" if share < 1e-4 else f"{about}{percent(share)}"
    # A process without any kernel is no rank, and counts in the file's sum only.
    enough = _ENOUGH if sampled else 1
    whole = ProcessLoss(NONE, total, sum(p.seen for p in processes), kernels)
    noticeable = any(
        loss.count
        and loss.seen >= enough
        and _share(part * loss.count, loss.kernels) >= _NOTICEABLE
        for loss in (whole, *(loss for loss in processes if loss.kernels))
    )
    of_ranks = [loss for loss in processes if loss.count and loss.kernels]
    stopped = all(loss.after_span == loss.seen for loss in of_ranks)
    later = "though the process went on" if stopped else "though later ones are"
    where = [later] * bool(of_ranks)
    pids = [str(profile.pid_of(p.process)) for p in processes if p.count and not p.kernels]
    if pids:
        where.append(f"which holds none of process{'es' * (len(pids) > 1)} {', '.join(pids)}")
    # A sample does not show where nothing is lost.
    launched_ns = None if sampled else np.concatenate([p.launched_ns for p in processes])
    unknown_ns = None
    if launched_ns is not None:
        # Launches belong to it as well: work next to other work makes no idle time unknown.
        start_ns = np.concatenate((unknown.start_ns, launched_ns))
        end_ns = np.concatenate((unknown.end_ns, launched_ns))
        unknown_ns = start_ns, end_ns
    yield Limitation(
        "kernels that were launched and not recorded",
        f"{path}: {in_words} of the launched kernels are not in the profile, "
        f"{' and '.join(where)}: {_effect_on_idle(processes)}; profile with larger buffers, or "
        "export again",
        count,
        LimitationKind.KERNELS_LOST if noticeable else LimitationKind.COSTS,
        times_ns=launched_ns,
        unknown_ns=unknown_ns,
        noticeable_kind=LimitationKind.KERNELS_LOST,
    )


def _effect_on_idle(processes: Sequence[ProcessLoss]) -> str:
    """Return what lost kernels do to idle time.

    A kernel that was launched before all recorded work of its process ran before the time that is
    measured.
    """
    before, seen = (sum(getattr(p, name) for p in processes) for name in ("before_span", "seen"))
    if seen and sum(loss.after_span for loss in processes) == seen:
        return (
            "they were launched after the last recorded work, so the time from then on is unknown"
        )
    if not before:
        return "their time counts as idle"
    outside = "launched before the first recorded work, so they lie before the measured time"
    if before == seen:
        return f"they were {outside}"
    return f"their time counts as idle, but for {before:,} of {seen:,} that were {outside}"


def _share(lost: float, kernels: int) -> float:
    """Return the part of all kernels that is lost."""
    return lost / (lost + kernels)
