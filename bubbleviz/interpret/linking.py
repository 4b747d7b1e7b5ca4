"""Linking: kernel to launching call to operation range, by these rules and in this order.

1. A kernel's launching call has its correlation id and its process.
2. The call belongs to the innermost range, of those that a convention names, around it on its
   own thread (a start/end range that another thread ends covers the whole process).
3. A call with no such range on its own thread belongs to the innermost backward range open at
   its start on another thread: PyTorch runs backward on a thread of its own::

       main thread      ├─B3────────────────┤  (pushed here)
       autograd thread      call call call     (launched here)  -> B3

Nothing else is linked, and what is not linked is counted. Calls come in blocks and are not kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import ProfileError
from bubbleviz.interpret.damaged_work import (
    check_places,
    check_rows,
    check_times,
    find_lost_kernels,
    limitations_of_lost,
)
from bubbleviz.interpret.launches import Launches, LongCalls, WorklessRows
from bubbleviz.interpret.overruns import clip_late_ends, clip_overruns
from bubbleviz.interpret.partial_replays import find_partial_replays
from bubbleviz.interpret.unrecorded_work import (
    describe_work_before_capture,
    find_lost_graphs,
    find_times_before_first_work,
    find_unknown_times,
    join_intervals,
    locate_untimed,
)
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, constant, marked, widened
from bubbleviz.model.grouping import BlockNumbering, distinct, found_in, rows_by_value
from bubbleviz.model.limitations import LEFT_OUT, Limitation
from bubbleviz.model.nesting import Innermost
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD, COMPUTE, Phase
from bubbleviz.native import functions as native

#: What stands for the launch of work whose launch is unknown: the end of time.
NEVER = int(np.iinfo(np.int64).max)
#: Times as the earliest of them, and how long after it each is, in as few bits as that needs.
CompactTimes: TypeAlias = tuple[int, npt.NDArray[np.unsignedinteger[Any]]]


class LinkRule(IntEnum):
    """The rule by which an activity got its operation."""

    UNLINKED = 0
    OUTSIDE = 1
    OWN_THREAD = 2
    CROSS_THREAD = 3
    AMBIGUOUS = 4
    HELPER_THREAD = 5


@dataclass(frozen=True, eq=False, repr=False)
class Links(Table):
    """For each activity (kernel or copy): its call and its range; -1 is none.

    Activities with the rule ``UNLINKED`` have no call.

    Attributes:
        call: row of the launching call.
        launched_ns: when that began; means nothing where there is none.
        thread: row of ``threads``; as ``launched_ns``.
        range: row of the range whose operation it belongs to.
        rule: code of :class:`LinkRule`.
        threads: that made calls, or may have.
    """

    call: Codes
    launched_ns: Ints
    thread: Codes
    range: Codes
    rule: npt.NDArray[np.int8]
    threads: Ints = field(metadata={"shared": True})

    def calls_of(self, rows: Codes, calls: model.CallLog) -> model.Calls:
        """Return the call of each of some activities, none of which lacks one."""
        called, of_row = np.unique(self.call[rows], return_inverse=True)
        return calls.at(called.astype(np.int64)).take(of_row)

    def launch_times_ns(self, rows: Codes) -> Ints:
        """Return when the host launched some activities; the end of time where that is unknown."""
        known = self.rule[rows] != LinkRule.UNLINKED
        return np.where(known, self.launched_ns[rows], NEVER)


@dataclass(frozen=True)
class LinkedProfile:
    """A profile whose kernels and copies are linked to calls and ranges.

    Attributes:
        profile: The profile with the activities (kernels, then copies) that were kept.
        named: Ranges that the activities are linked to.
        links: Calls and ranges of these activities.
        sound: Mask of the activities that were kept, or None if all were kept.
        workless: Starts of calls without work, on threads that launched work, keyed by process.
        start_ns: Start of the first call.
        end_ns: End of the last call.
        long_calls: Calls in which a thread spent real time, or None if there are none.
        unrecorded: Times at which ranks may have run work that was launched but not recorded.
        limitations: Limitations on missing data and on work that was left out.
    """

    profile: model.Profile
    named: model.Ranges
    links: Links
    sound: Bools | None
    workless: Mapping[int, Sequence[CompactTimes]]
    start_ns: int
    end_ns: int
    long_calls: model.Calls | None
    unrecorded: RankIntervals
    limitations: tuple[Limitation, ...]


class ThreadRanges:
    """Some of the ranges that are open around calls of each thread; push/pop before start/end."""

    def __init__(self, ranges: model.Ranges, rows: Ints) -> None:
        self._ranges, self._rows = ranges, rows
        some = ranges.take(rows)
        wide = some.start_end & (some.end_thread != NONE) & (some.end_thread != some.thread)
        self._on_thread = dict(rows_by_value(np.where(wide, NONE, some.thread)))
        self._on_process = dict(rows_by_value(np.where(wide, model.process_of(some.thread), NONE)))
        self._on_thread.pop(NONE, None)
        self._on_process.pop(NONE, None)
        self._indices: dict[int, list[Innermost]] = {}

    def of(self, thread: int) -> list[Innermost]:
        """Return the ranges for the calls of a thread, its own and those of its whole process."""
        if thread not in self._indices:
            none = np.empty(0, np.int64)
            rows = self._rows[self._on_thread.get(thread, none)]
            shared = self._rows[self._on_process.get(thread >> 24, none)]
            self._indices[thread] = _indices(self._ranges, rows, shared)
        return self._indices[thread]

    def around(self, calls: model.Calls) -> Ints:
        """Return the row of the innermost range around each call by its own thread; -1 none.

        Where a push/pop range holds the call, no start/end range can take it.
        """
        best = np.full(len(calls), NONE, np.int64)
        for thread, at in rows_by_value(calls.thread):
            best[at] = _innermost(self.of(thread), calls.start_ns[at], calls.end_ns[at])
        return best


def _indices(ranges: model.Ranges, rows: Ints, shared: Ints | None = None) -> list[Innermost]:
    """Return the index of push/pop ranges, and that of others; the first that has one decides."""
    start_end = ranges.start_end[rows]
    free = rows[start_end] if shared is None else np.concatenate((rows[start_end], shared))
    parts = [some for some in (rows[~start_end], np.sort(free)) if len(some)]
    indices = [Innermost.of(ranges.start_ns[some], ranges.end_ns[some]) for some in parts]
    return [replace(index, row=some[index.row]) for index, some in zip(indices, parts, strict=True)]


def _innermost(indices: list[Innermost], start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the row of the innermost range around each [start, end]; -1 none."""
    best = np.full(len(start_ns), NONE, np.int64)
    for index in indices:
        left = np.flatnonzero(best == NONE)
        best[left] = index.around(start_ns[left], end_ns[left])
    return best


def enclosing_ranges(
    rows: Ints, links: Links, calls: model.CallLog, ranges: model.Ranges, phase: Ints
) -> tuple[Ints, Ints]:
    """Return (activity, range): the compute ranges around launches, whatever lies between.

    Args:
        rows: the activities.
        links: of all activities.
        calls: the profile's calls.
        ranges: the ranges of operations.
        phase: phase of each range.
    """
    rows = rows[links.call[rows] >= 0]
    launches = links.calls_of(rows, calls)
    crossed = np.flatnonzero(links.rule[rows] == LinkRule.CROSS_THREAD)
    pairs = [(rows[crossed], links.range[rows[crossed]].astype(np.int64))]
    compute = ThreadRanges(ranges, np.flatnonzero(among(phase, COMPUTE)))
    for thread, at in rows_by_value(launches.thread):
        for index in compute.of(thread):
            around = index.all_around(launches.start_ns[at], launches.end_ns[at])
            pairs.extend((rows[at[query]], row) for query, row in around)
    activity, of_range = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return activity, of_range


def helper_threads(threads: Sequence[model.Thread], patterns: Sequence[str]) -> Ints:
    """Return the threads whose names are those of threads that never run backward.

    A name that the process's main thread has too means nothing: threads inherit it.
    """
    helper = re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE)
    inherited = {(t.thread >> 24, t.name) for t in threads if model.is_main(t.thread)}
    helpers = set()
    for t in threads:
        has_own_name = model.is_main(t.thread) or (t.thread >> 24, t.name) not in inherited
        if has_own_name and helper.search(t.name):
            helpers.add(t.thread)
    return np.array(sorted(helpers), np.int64)


class Linker:
    """Links activities as the blocks of calls come; columns as of :class:`Links`."""

    def __init__(
        self, activities: model.Activities, ranges: model.Ranges, phase: Ints | None, helpers: Ints
    ) -> None:
        count = len(activities)
        self.activities = activities
        self.launches = Launches(activities)
        self.threads = BlockNumbering()
        self.thread: Codes = np.full(count, NONE, np.int16)
        self.range = np.full(count, NONE, np.int32)
        self.rule = np.full(count, LinkRule.UNLINKED, np.int8)
        self.workless_rows = WorklessRows()
        self.long_calls = LongCalls()
        self.start_ns, self.end_ns = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        self.impossible = 0
        self._workless: list[tuple[int, CompactTimes]] = []
        self._last_row = NONE
        # What the compiled part is told of threads so far, and where ids were found last.
        self._tables: tuple[tuple[npt.NDArray[Any], ...], tuple[Ints, ...]] | None = None
        self._near = self.launches.begin[:-1].copy()
        self._ranges = ThreadRanges(ranges, np.arange(len(ranges)))
        self._helpers = helpers
        # The backward ranges that each thread opens; none where another's count for nothing.
        self._backward: dict[int, list[Innermost]] = {}
        self._forward_threads = np.empty(0, np.int64)
        if phase is None:
            return
        backward = np.flatnonzero(among(phase, BACKWARD))
        for thread, at in rows_by_value(ranges.thread[backward]):
            self._backward[thread] = _indices(ranges, backward[at])
        # Threads that open these themselves launch no backward of another thread.
        forward = among(phase, (Phase.F, Phase.FB, Phase.OPTIMIZER))
        self._forward_threads = distinct(ranges.thread[forward])

    def add(self, calls: model.Calls) -> None:
        """Link what these calls launched."""
        self.impossible += calls.impossible
        if len(calls) == 0:
            return
        self.start_ns = min(self.start_ns, int(calls.start_ns.min()))
        self.end_ns = max(self.end_ns, int(calls.end_ns.max()))
        self.long_calls.add(calls)
        thread, row, launches = self.threads.numbers(calls.thread), calls.row, self.launches
        ascending = row[0] > self._last_row and bool((row[1:] > row[:-1]).all())
        self._last_row = max(self._last_row, int(row.max()))
        self.thread = widened(self.thread, len(self.threads) - 1)
        launches.call = widened(launches.call, self._last_row)
        narrow = self.thread.dtype == np.int16 and launches.call.dtype == np.int32
        launched = self._linked_at_once(calls, thread) if ascending and narrow else None
        if launched is None:
            launched = self._linked(calls, thread)
        workless = np.flatnonzero(~launched)
        self._add_workless(calls.start_ns[workless], thread[workless])
        self.workless_rows.add(calls.row[workless])

    def _linked(self, calls: model.Calls, thread: Codes) -> Bools:
        """Link what calls launched, and tell which did; ``thread`` numbers their threads."""
        launches = self.launches
        activity, call, lost = launches.of(calls)
        # A call that had launched something, until an earlier one with its id came.
        self._add_workless(launches.start_ns[lost], self.thread[lost])
        launched = marked(len(calls), call)
        of_range, rule = self._attributed(calls.take(launched))
        launch = (np.cumsum(launched) - 1)[call]
        launches.call[activity], launches.start_ns[activity] = calls.row[call], calls.start_ns[call]
        self.thread[activity] = thread[call]
        self.range[activity], self.rule[activity] = of_range[launch], rule[launch]
        return launched

    def _linked_at_once(self, calls: model.Calls, thread: Codes) -> Bools | None:
        """Do the same with the compiled part, of calls whose rows ascend; None without it."""
        if not native.is_available():
            return None
        launches = self.launches
        if self._tables is None or len(self._tables[0][0]) != len(self.threads):
            self._tables = self._tables_of_threads()
        index = launches.begin, launches.known, self._near, launches.by_id, launches.ids
        columns = calls.row, calls.start_ns, calls.end_ns, thread, calls.correlation_id
        links = launches.call, launches.start_ns, self.thread, self.range, self.rule
        threads, ranges = self._tables
        linked = native.link_calls(
            index=index, calls=columns, threads=threads, ranges=ranges, links=links
        )
        if linked is None:
            return None
        launched, lost_ns, lost_thread = linked
        self._add_workless(lost_ns, lost_thread)
        return launched

    def _tables_of_threads(self) -> tuple[tuple[npt.NDArray[Any], ...], tuple[Ints, ...]]:
        """Return what ``links.c`` is told of threads, and the ranges around their calls."""
        threads, forward = self.threads.values.tolist(), set(self._forward_threads.tolist())
        # Backward of each process: the thread, and the row of its ranges behind those of all.
        backward: dict[int, list[tuple[int, int]]] = {}
        for row, owner in enumerate(self._backward, len(threads)):
            backward.setdefault(owner >> 24, []).append((owner, row))
        listed = [
            [row for owner, row in backward.get(thread >> 24, ()) if owner != thread]
            if thread not in forward
            else []
            for thread in threads
        ]
        begin, bounds = [0], list[int]()
        columns: list[list[Ints]] = [[np.empty(0, np.int64)] for _ in range(4)]
        for indices in (*map(self._ranges.of, threads), *self._backward.values()):
            bounds.append(len(begin) - 1)
            for index in indices:
                begin.extend((index.begin[1:] + begin[-1]).tolist())
                bounds.append(len(begin) - 1)
                parts = index.start_ns, index.end_ns, index.depth, index.row
                for column, part in zip(columns, parts, strict=True):
                    column.append(part)
            bounds.extend(bounds[-1:] * (2 - len(indices)))
        known = (
            found_in(self.launches.processes, model.process_of(self.threads.values)),
            np.isin(self.threads.values, self._helpers),
            np.cumsum([0, *map(len, listed)]),
            np.array([row for rows in listed for row in rows], np.int64),
            np.array(bounds, np.int64),
        )
        near = np.full(len(begin) - 1, NONE, np.int64)
        return known, (np.array(begin, np.int64), near, *map(np.concatenate, columns))

    def _add_workless(self, start_ns: Ints, thread: Codes) -> None:
        """Keep the starts of calls that launched nothing; ``thread`` numbers their threads."""
        for number, rows in rows_by_value(thread):
            base_ns = int(start_ns[rows].min())
            after_ns = start_ns[rows] - base_ns
            shortest = np.min_scalar_type(int(after_ns.max()))
            self._workless.append((number, (base_ns, after_ns.astype(shortest))))

    def workless(self) -> dict[int, list[CompactTimes]]:
        """Return when calls without work began, by process.

        Threads that launch nothing do not count: a watchdog asks, again and again.
        """
        # One place more for what no call launched (-1).
        launching = marked(len(self.threads) + 1, distinct(self.thread))
        process = model.process_of(self.threads.values).tolist()
        starts: dict[int, list[CompactTimes]] = {}
        for number, times in self._workless:
            if launching[number]:
                starts.setdefault(process[number], []).append(times)
        return starts

    def calling(self) -> Ints:
        """Return the processes that made calls, ascending."""
        # All calls launched something or did not; -1 is what none launched.
        workless = np.array([number for number, _ in self._workless], np.int64)
        number = distinct(distinct(self.thread).astype(np.int64), workless)
        return distinct(model.process_of(self.threads.values[number[number >= 0]]))

    def links(self) -> Links:
        """Return the links of all activities."""
        launches, threads = self.launches, self.threads.values
        return Links(launches.call, launches.start_ns, self.thread, self.range, self.rule, threads)

    def _attributed(self, calls: model.Calls) -> tuple[Ints, npt.NDArray[np.int8]]:
        """Return the range of each call, and by which rule."""
        of_range = self._ranges.around(calls)
        rule = np.where(of_range >= 0, np.int8(LinkRule.OWN_THREAD), np.int8(LinkRule.OUTSIDE))
        if not self._backward:
            return of_range, rule
        rest = np.flatnonzero(of_range < 0)
        rest = rest[found_in(self._forward_threads, calls.thread[rest]) == NONE]
        backward, several = self._only_backward(calls.thread[rest], calls.start_ns[rest])
        rule[rest[backward >= 0]] = LinkRule.CROSS_THREAD
        rule[rest[several]] = LinkRule.AMBIGUOUS
        helper = np.isin(calls.thread[rest], self._helpers)
        rule[rest[helper & ((backward >= 0) | several)]] = LinkRule.HELPER_THREAD
        of_range[rest[~helper]] = backward[~helper]
        return of_range, rule

    def _only_backward(
        self, thread: Ints, time_ns: Ints, eligible: Callable[[int, Ints], Bools] | None = None
    ) -> tuple[Ints, Bools]:
        """Return the backward open on just one other thread, -1 none, and where it is several.

        Args:
            thread: of each call.
            time_ns: when each began.
            eligible: for which of some calls (rows) a thread is; None for all.
        """
        backward = np.full(len(thread), NONE, np.int64)
        count = np.zeros(len(thread), np.int64)
        processes = dict(rows_by_value(model.process_of(thread)))
        for owner, indices in self._backward.items():
            rows = processes.get(owner >> 24, np.empty(0, np.int64))
            rows = rows[thread[rows] != owner]
            if len(rows) == 0:
                continue
            inside = _innermost(indices, time_ns[rows], time_ns[rows])
            rows, inside = rows[inside >= 0], inside[inside >= 0]
            if eligible is not None:
                chosen = eligible(owner, rows)
                rows, inside = rows[chosen], inside[chosen]
            backward[rows] = inside
            count[rows] += 1
        backward[count > 1] = NONE
        return backward, count > 1

    def decide_by_device(self) -> None:
        """Settle what several threads' backward could own, where one of them used the device."""
        rows = np.flatnonzero(self.rule == np.int8(LinkRule.AMBIGUOUS))
        if len(rows) == 0:
            return
        ranks, rank = self.activities.ranks, self.activities.rank
        device_id = ranks[:, 1][rank[rows]]
        # The (thread, device) pairs that threads' own kernels ran on.
        kernels = np.flatnonzero(self.thread[: self.activities.kernels] != NONE)
        codes = distinct(self.thread[kernels].astype(np.int64) * len(ranks) + rank[kernels])
        threads, devices = self.threads.values[codes // len(ranks)], ranks[codes % len(ranks), 1]

        def used(thread: int, calls: Ints) -> Bools:
            return np.isin(device_id[calls], devices[threads == thread])

        thread = self.threads.values[self.thread[rows]]
        backward, _ = self._only_backward(thread, self.launches.start_ns[rows], used)
        self.range[rows] = backward
        self.rule[rows[backward >= 0]] = LinkRule.CROSS_THREAD


def link(
    profile: model.Profile,
    named: model.Ranges,
    phase: Ints | None = None,
    helpers: Sequence[str] = (),
) -> LinkedProfile:
    """Link the work of a profile to calls and ranges, and leave out damaged work.

    Work is left out if its times contradict its launch or the capture, or if nothing else mentions
    its process or device. Work that ends after the next work on its stream starts is cut short.

    Args:
        profile: The profile as it was read.
        named: Ranges that work is linked to.
        phase: Phase of each of these ranges (codes of :class:`~bubbleviz.model.phases.Phase`), or
            None if they have no phases; work is then linked to ranges of the launching thread only.
        helpers: Regular expressions for the names of threads that never run backward.
    """
    linker = Linker(profile.activities, named, phase, helper_threads(profile.threads, helpers))
    # Numbering these threads first saves time while the calls are read.
    told = np.array([thread.thread for thread in profile.threads], np.int64)
    linker.threads.numbers(distinct(named.thread, told))
    for block in profile.calls.blocks():
        linker.add(block)
    linker.decide_by_device()
    activities, links = profile.activities, linker.links()
    sound, left_out, unrecorded, located, notes = _check_work(linker, profile)
    if sound is not None:
        activities, links = activities.chosen(sound), links.take(sound)
    if left_out.any():
        number = (np.cumsum(~left_out) - 1).astype(activities.rank.dtype)
        ranks = activities.ranks[~left_out]
        activities = replace(activities, rank=number[activities.rank], ranks=ranks)
        unrecorded = unrecorded.take(~left_out[unrecorded.rank])
        unrecorded = replace(unrecorded, rank=number[unrecorded.rank].astype(np.int64))
    copies = profile.copies
    if copies is not None and sound is not None:
        profile = replace(profile, copies=lambda: copies().restrict_to(sound))
    streams, unread = _read_streams(profile, sound)
    profile = replace(profile, activities=activities, limitations=located)
    if streams is not None:
        profile = replace(profile, streams=lambda: streams)
        profile, early, stream_notes = _check_streams(profile, streams, links, linker.start_ns)
        notes = (*notes, *unread, *stream_notes)
        unrecorded = join_intervals((unrecorded, early), len(activities.ranks))
    return LinkedProfile(
        profile=profile,
        named=named,
        links=links,
        sound=sound,
        workless=linker.workless(),
        start_ns=linker.start_ns,
        end_ns=linker.end_ns,
        long_calls=linker.long_calls.collected(),
        unrecorded=unrecorded,
        limitations=notes,
    )


def _read_streams(
    profile: model.Profile, sound: Bools | None
) -> tuple[Codes | None, tuple[Limitation, ...]]:
    """Read the stream of each activity that is kept.

    Streams are used only to check the times of work, so a profile with damaged streams is analysed
    without them.

    Args:
        profile: The profile as it was read.
        sound: Mask of the activities that are kept, or None if all are kept.

    Returns:
        streams: Stream of each activity that is kept, all -1 if streams are damaged, or None if the
            profile records no streams.
        notes: A limitation if streams are damaged.
    """
    if profile.streams is None:
        return None, ()
    notes: tuple[Limitation, ...] = ()
    try:
        streams = profile.streams()
    except ProfileError:
        path = profile.source.path
        reason = f"{path}: they are damaged, so nothing shows which ends of kernels are wrong"
        notes = (Limitation("streams of kernels and copies", reason),)
        streams = constant(NONE, len(profile.activities))
    return streams if sound is None else streams[sound], notes


def _check_streams(
    profile: model.Profile, streams: Codes, links: Links, start_ns: int
) -> tuple[model.Profile, RankIntervals, tuple[Limitation, ...]]:
    """Correct ends of work that contradict its stream, and find delays by unrecorded work.

    Args:
        profile: The profile with the activities that are kept.
        streams: Stream of each activity, or -1 if unknown.
        links: Calls and ranges of the activities.
        start_ns: Start of the first call.

    Returns:
        profile: The profile with corrected ends.
        early: Times at which ranks may have run work that was launched before the capture.
        notes: Limitations.
    """
    path = profile.source.path
    are_queues = profile.source.api == "HIP"
    clipped = clip_overruns(path, profile.activities, streams, are_queues=are_queues)
    if not profile.launches_known:
        corrected = replace(profile, activities=clipped.activities)
        return corrected, RankIntervals.none(), clipped.limitations
    clipped = clip_late_ends(path, clipped, links.call, links.launched_ns, profile.calls)
    activities = clipped.activities
    early = find_times_before_first_work(
        activities, clipped.first, links.call, links.launched_ns, profile.calls, start_ns
    )
    notes = (*clipped.limitations, *describe_work_before_capture(path, early))
    return replace(profile, activities=activities), early, notes


def _check_work(
    linker: Linker, profile: model.Profile
) -> tuple[Bools | None, Bools, RankIntervals, tuple[Limitation, ...], tuple[Limitation, ...]]:
    """Find the damaged, left-out and unrecorded work of a linked profile.

    Returns:
        sound: Mask of the activities that are kept, or None if all are kept.
        left_out: Mask of the ranks that are left out.
        unrecorded: Times at which ranks may have run work that was launched but not recorded.
        located: Limitations of the profile, with the idle time that untimed kernels affect.
        notes: Limitations of the work.
    """
    path, activities, launches = profile.source.path, profile.activities, linker.launches
    known = profile.launches_known
    bounded = known and linker.start_ns <= linker.end_ns
    capture_ns = (linker.start_ns, linker.end_ns) if bounded else None
    calling = linker.calling() if known else None
    is_possible, timed = check_times(path, activities, launches.call, launches.start_ns, capture_ns)
    sound = is_possible
    left_out, placed = check_places(profile.source, activities, profile.devices, calling)
    if left_out.any():
        kept = ~left_out[activities.rank]
        sound = kept if sound is None else sound & kept
    lost: list[Limitation] = []
    located = profile.limitations
    unrecorded = RankIntervals.none()
    repeating: list[Limitation] = []
    if known:
        of_launch = linker.thread, linker.threads.values
        repeated, lengthless, repeating = check_rows(
            path, activities, launches, profile.calls, is_possible
        )
        is_timed = _mask_timed(activities, is_possible, lengthless)
        kernels = find_lost_kernels(
            linker.workless_rows, launches, activities, of_launch, profile.calls
        )
        told = [n for n in profile.limitations if n.kind in LEFT_OUT]
        n_told = sum(note.count for note in told)
        graphs = find_lost_graphs(profile.calls, launches, activities, of_launch)
        partial = find_partial_replays(graphs.with_work, launches, activities, of_launch)
        graphs = replace(graphs, partial=partial)
        untimed_calls = kernels.calls.take(slice(0))
        if is_timed is not None:
            called = launches.call[~is_timed].astype(np.int64)
            untimed_calls = profile.calls.at(distinct(called[called != NONE]))
        of_graphs, of_kernels, of_untimed = (
            find_unknown_times(lost_calls, launches, activities, of_launch, is_timed)
            for lost_calls in (graphs.lost, kernels.calls, untimed_calls)
        )
        lost.extend(
            limitations_of_lost(
                path, kernels.processes, n_told, sampled=kernels.is_sampled, unknown=of_kernels
            )
        )
        lost.extend(graphs.limitations(profile.source, of_graphs))
        unrecorded = join_intervals((of_kernels, of_graphs, of_untimed), len(activities.ranks))
        if n_told and not kernels.is_sampled and len(kernels.calls) >= n_told:
            # The launches of the kernels that were left out while reading are among these.
            located = tuple(locate_untimed(located, kernels.calls, of_kernels))
        timed, repeating = (
            locate_untimed(noted, untimed_calls, of_untimed) for noted in (timed, repeating)
        )
        if len(repeated):
            sound = np.ones(len(activities), bool) if sound is None else sound
            sound[repeated] = False
    calls = {f"{profile.source.api} API calls": linker.impossible}
    notes = (*lost, *model.impossible_times(path, calls), *timed, *placed, *repeating)
    return sound, left_out, unrecorded, located, notes


def _mask_timed(
    activities: model.Activities, is_possible: Bools | None, lengthless: Ints
) -> Bools | None:
    """Return a mask of the work with valid times, or None if all times are valid.

    Args:
        activities: Kernels, then copies.
        is_possible: Mask of the work with possible times, or None if all times are possible.
        lengthless: Rows of the kernels without a duration.
    """
    if is_possible is None and len(lengthless) == 0:
        return None
    is_timed = np.ones(len(activities), bool) if is_possible is None else is_possible.copy()
    is_timed[lengthless] = False
    return is_timed
