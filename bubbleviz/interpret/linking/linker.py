"""The linker: links activities to calls and ranges as blocks of calls pass by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bubbleviz.interpret.linking.correlations import Launches
from bubbleviz.interpret.linking.links import CallStarts, LinkResult, LinkRule, Links, WorklessCalls
from bubbleviz.interpret.linking.long_calls import LongCalls
from bubbleviz.interpret.linking.lost_kernels import LostKernels, WorklessRows, lost_kernels
from bubbleviz.interpret.linking.row_check import RowCheck, check_rows
from bubbleviz.interpret.linking.time_check import PlaceCheck, TimeCheck, check_places, check_times
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, widened
from bubbleviz.model.grouping import BlockNumbering, distinct, found_in, rows_by_value
from bubbleviz.model.intervals import Innermost
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD, COMPUTE, Phase
from bubbleviz.model.profile import (
    Activities,
    CallLog,
    Calls,
    Device,
    Profile,
    Ranges,
    Thread,
    is_main,
    process_of,
)
from bubbleviz.model.values import frozen

# Open ranges: those around calls, or at an instant, of a thread or of its whole process.


class OpenRanges:
    """Ranges that are open around calls, or at an instant; push/pop before start/end ones."""

    def __init__(self, ranges: Ranges, rows: Ints, shared: Ints) -> None:
        start_end = ranges.start_end[rows]
        free = np.sort(np.concatenate((rows[start_end], shared)))
        self._layers = [
            (layer, Innermost.of(ranges.start_ns[layer], ranges.end_ns[layer]))
            for layer in (rows[~start_end], free)
            if len(layer)
        ]

    def around(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return the row of the innermost range around each [start, end]; -1 none."""
        if not self._layers:
            return np.full(len(start_ns), NONE, np.int64)
        first, *others = self._layers
        best = _row_around(first, start_ns, end_ns)
        for layer in others:
            left = np.flatnonzero(best == NONE)
            if len(left):
                best[left] = _row_around(layer, start_ns[left], end_ns[left])
        return best

    def all_around(self, start_ns: Ints, end_ns: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield (query, row) pairs of every range around each [start, end]."""
        for rows, index in self._layers:
            for query, at in index.all_around(start_ns, end_ns):
                yield query, rows[at]


def _row_around(layer: tuple[Ints, Innermost], start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the row of a layer's innermost range around each [start, end]; -1 none."""
    rows, index = layer
    at = index.around(start_ns, end_ns)
    return np.where(at >= 0, rows[at], NONE)


class ThreadRanges:
    """The ranges of each thread, with start/end ranges that cover its whole process."""

    def __init__(self, ranges: Ranges, rows: Ints) -> None:
        self._ranges, self._rows = ranges, rows
        some = ranges.take(rows)
        wide = some.start_end & (some.end_thread != NONE) & (some.end_thread != some.thread)
        self._on_thread = dict(rows_by_value(np.where(wide, NONE, some.thread)))
        self._on_process = dict(rows_by_value(np.where(wide, process_of(some.thread), NONE)))
        self._on_thread.pop(NONE, None)
        self._on_process.pop(NONE, None)
        self._open: dict[int, OpenRanges] = {}

    def of(self, thread: int) -> OpenRanges:
        """Return the ranges for the calls of a thread."""
        if thread not in self._open:
            none = np.empty(0, np.int64)
            rows = self._rows[self._on_thread.get(thread, none)]
            shared = self._rows[self._on_process.get(thread >> 24, none)]
            self._open[thread] = OpenRanges(self._ranges, rows, shared)
        return self._open[thread]

    def around(self, calls: Calls) -> Ints:
        """Return the row of the innermost range around each call by its own thread; -1 none.

        Where a push/pop range holds the call, no start/end range can take it.
        """
        threads = calls.thread
        # Calls of a thread mostly follow each other.
        if len(calls) and threads.min() == threads.max():
            return self.of(int(threads[0])).around(calls.start_ns, calls.end_ns)
        best = np.full(len(calls), NONE, np.int64)
        for thread, at in rows_by_value(threads):
            best[at] = self.of(thread).around(calls.start_ns[at], calls.end_ns[at])
        return best


@frozen
class EnclosingRanges(Table):
    """The compute ranges around the launch of activities: one row a pair."""

    activity: Ints
    range: Ints


def enclosing_ranges(
    rows: Ints, links: Links, calls: CallLog, ranges: Ranges, phase: Ints
) -> EnclosingRanges:
    """Return all compute ranges around the launch of some activities, whatever lies between.

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
        around = compute.of(thread).all_around(launches.start_ns[at], launches.end_ns[at])
        pairs.extend((rows[at[query]], of_range) for query, of_range in around)
    activity, of_range = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return EnclosingRanges(activity, of_range)


# Backward threads: calls whose backward was opened by another thread than the one that launches.
#
# ::
#
#     main thread      ├─B3────────────────┤  (pushed here)
#     autograd thread      call call call     (launched here)  -> B3


class OpenBackwards:
    """The backward ranges that each thread opens."""

    def __init__(self, ranges: Ranges, phase: Ints) -> None:
        backward = np.flatnonzero(among(phase, BACKWARD))
        none = np.empty(0, np.int64)
        self._open = {
            thread: OpenRanges(ranges, backward[at], none)
            for thread, at in rows_by_value(ranges.thread[backward])
        }

    def _candidates(self, thread: Ints, time_ns: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield (owner, rows, range): the innermost backward that a thread had open around others.

        ``rows`` are those calls of other threads of its process during which it had one open.
        """
        processes = dict(rows_by_value(process_of(thread)))
        for owner, opened in self._open.items():
            rows = processes.get(owner >> 24, np.empty(0, np.int64))
            rows = rows[thread[rows] != owner]
            if len(rows):
                inside = opened.around(time_ns[rows], time_ns[rows])
                yield owner, rows[inside >= 0], inside[inside >= 0]

    def only(
        self, thread: Ints, time_ns: Ints, among: Callable[[int, Ints], Bools] | None = None
    ) -> tuple[Ints, Bools]:
        """Return the backward open on just one other thread, -1 none, and where it is several.

        Args:
            thread: of each call.
            time_ns: when each began.
            among: for which of some calls (rows) a thread is eligible; None for all.
        """
        backward = np.full(len(thread), NONE, np.int64)
        count = np.zeros(len(thread), np.int64)
        for owner, rows, inside in self._candidates(thread, time_ns):
            eligible = slice(None) if among is None else among(owner, rows)
            backward[rows[eligible]] = inside[eligible]
            count[rows[eligible]] += 1
        backward[count > 1] = NONE
        return backward, count > 1


def helper_threads(threads: Sequence[Thread], patterns: Sequence[str]) -> Ints:
    """Return the threads whose names are those of threads that never run backward.

    A name that the process's main thread has too means nothing: threads inherit it.
    """
    helper = re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE)
    inherited = {(t.thread >> 24, t.name) for t in threads if is_main(t.thread)}
    named = {
        t.thread
        for t in threads
        if helper.search(t.name)
        and (is_main(t.thread) or (t.thread >> 24, t.name) not in inherited)
    }
    return np.array(sorted(named), np.int64)


@frozen
class _Checks:
    """What is wrong with the rows of a profile; as of :class:`LinkResult`."""

    times: TimeCheck
    places: PlaceCheck
    lost: LostKernels | None
    rows: RowCheck | None

    def sound(self, activities: Activities) -> Bools | None:
        """Tell which of the work is kept; None for all."""
        sound = _both(self.times.sound, self.places.kept(activities))
        return _both(sound, self.rows.kept if self.rows else None)


class _Linker:
    """Links activities as the blocks of calls come; columns as of :class:`Links`."""

    def __init__(
        self,
        activities: Activities,
        ranges: Ranges,
        phase: Ints,
        helpers: Ints,
        *,
        cross_thread: bool,
    ) -> None:
        count = len(activities)
        self._activities = activities
        self._launches = Launches(activities)
        self._thread_ranges = ThreadRanges(ranges, np.arange(len(ranges)))
        self._backward = OpenBackwards(ranges, phase) if cross_thread else None
        # Threads that open these themselves launch no backward of another thread.
        forward = among(phase, (Phase.F, Phase.FB, Phase.OPTIMIZER))
        self._forward_threads = distinct(ranges.thread[forward])
        self._helpers = helpers
        self._threads = BlockNumbering()
        self._thread: Codes = np.full(count, NONE, np.int16)
        self._range = np.full(count, NONE, np.int32)
        self._rule = np.full(count, LinkRule.UNLINKED, np.int8)
        self._workless: list[CallStarts] = []
        self._workless_rows = WorklessRows()
        self._first_ns, self._last_ns = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        self._impossible = 0
        self._long_calls = LongCalls()

    def add(self, calls: Calls) -> None:
        """Link what these calls launched."""
        self._impossible += calls.impossible
        if len(calls) == 0:
            return
        self._first_ns = min(self._first_ns, int(calls.start_ns.min()))
        self._last_ns = max(self._last_ns, int(calls.end_ns.max()))
        self._long_calls.add(calls)
        thread = self._threads.numbers(calls.thread)
        block = self._launches.of(calls)
        # A call that had launched something, until an earlier one with its id came.
        self._add_workless(block.lost_start_ns, self._thread[block.lost])
        workless = np.flatnonzero(~block.launched)
        self._add_workless(calls.start_ns[workless], thread[workless])
        self._workless_rows.add(calls.row[workless])
        of_range, rule = self._attributed(calls.take(block.launched))
        launch = (np.cumsum(block.launched) - 1)[block.call]
        self._thread = widened(self._thread, thread)
        self._thread[block.activity] = thread[block.call]
        self._range[block.activity] = of_range[launch]
        self._rule[block.activity] = rule[launch]

    def _add_workless(self, start_ns: Ints, thread: Codes) -> None:
        """Keep the starts of calls that launched nothing; ``thread`` numbers their threads."""
        for number, rows in rows_by_value(thread):
            self._workless.append(CallStarts.of(number, start_ns[rows]))

    def _attributed(self, calls: Calls) -> tuple[Ints, npt.NDArray[np.int8]]:
        """Return the range of each call, and by which rule."""
        of_range = self._thread_ranges.around(calls)
        rule = np.where(of_range >= 0, np.int8(LinkRule.OWN_THREAD), np.int8(LinkRule.OUTSIDE))
        if self._backward is None:
            return of_range, rule
        rest = np.flatnonzero(of_range < 0)
        rest = rest[found_in(self._forward_threads, calls.thread[rest]) == NONE]
        backward, several = self._backward.only(calls.thread[rest], calls.start_ns[rest])
        rule[rest[backward >= 0]] = LinkRule.CROSS_THREAD
        rule[rest[several]] = LinkRule.AMBIGUOUS
        helper = np.isin(calls.thread[rest], self._helpers)
        rule[rest[helper & ((backward >= 0) | several)]] = LinkRule.HELPER_THREAD
        of_range[rest[~helper]] = backward[~helper]
        return of_range, rule

    def result(
        self, calls: CallLog, devices: Sequence[Device], *, launches_known: bool
    ) -> LinkResult:
        """Return the links of work whose times and places can be, once all calls have come.

        Args:
            calls: all of them.
            devices: that the profile lists.
            launches_known: whether the calls are a host's own.
        """
        self._decide_by_device()
        launches = self._launches
        # One place more for what no call launched (-1).
        launching = np.zeros(len(self._threads) + 1, bool)
        launching[self._thread] = True
        process = process_of(self._threads.values).tolist()
        # A watchdog asks, again and again, and launches nothing.
        workless = WorklessCalls(
            tuple(
                replace(starts, owner=process[starts.owner])
                for starts in self._workless
                if launching[starts.owner]
            )
        )
        checks = self._checks(calls, devices, launches_known=launches_known)
        links = Links(
            launches.call,
            launches.start_ns,
            self._thread,
            self._range,
            self._rule,
            self._threads.values,
        )
        activities, sound = self._activities, checks.sound(self._activities)
        if sound is not None:
            activities, links = activities.chosen(sound), links.take(sound)
        return LinkResult(
            activities=checks.places.without_ranks(activities),
            links=links,
            sound=sound,
            times=checks.times,
            places=checks.places,
            workless=workless,
            lost=checks.lost,
            rows=checks.rows,
            start_ns=self._first_ns,
            end_ns=self._last_ns,
            long_calls=self._long_calls.collected(),
            impossible=self._impossible,
        )

    def _checks(
        self, calls: CallLog, devices: Sequence[Device], *, launches_known: bool
    ) -> _Checks:
        """Return what is wrong with the rows of the profile; arguments as of ``result``."""
        launches, activities = self._launches, self._activities
        bounded = launches_known and self._first_ns <= self._last_ns
        capture_ns = (self._first_ns, self._last_ns) if bounded else None
        calling = distinct(process_of(self._threads.values)) if launches_known else None
        times = check_times(activities, launches.call, launches.start_ns, capture_ns)
        places = check_places(activities, devices, calling)
        if not launches_known:
            return _Checks(times, places, None, None)
        of_launch = self._thread, self._threads.values
        lost = lost_kernels(self._workless_rows, launches, activities, of_launch, calls)
        return _Checks(times, places, lost, check_rows(activities, launches, calls))

    def _decide_by_device(self) -> None:
        """Settle what several threads' backward could own, where one of them used the device."""
        rows = np.flatnonzero(self._rule == LinkRule.AMBIGUOUS)
        if self._backward is None or len(rows) == 0:
            return
        device_id = self._activities.ranks[:, 1][self._activities.rank[rows]]
        uses = self._uses()

        def used(thread: int, calls: Ints) -> Bools:
            devices = np.array([d for t, d in sorted(uses) if t == thread], np.int64)
            return np.isin(device_id[calls], devices)

        thread = self._threads.values[self._thread[rows]]
        backward, _ = self._backward.only(thread, self._launches.start_ns[rows], used)
        self._range[rows] = backward
        self._rule[rows[backward >= 0]] = LinkRule.CROSS_THREAD

    def _uses(self) -> frozenset[tuple[int, int]]:
        """Return the (thread, device) pairs that threads' own kernels ran on."""
        kernels = slice(0, self._activities.kernels)
        linked = self._thread[kernels] != NONE
        count = len(self._activities.ranks)
        codes = distinct(
            self._thread[kernels][linked].astype(np.int64) * count
            + self._activities.rank[kernels][linked]
        )
        thread = self._threads.values[codes // count].tolist()
        return frozenset(
            zip(thread, self._activities.ranks[codes % count, 1].tolist(), strict=True)
        )


def _both(first: Bools | None, second: Bools | None) -> Bools | None:
    """Return what is in both; None is all."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def link(
    activities: Activities,
    calls: CallLog,
    ranges: Ranges,
    phase: Ints,
    threads: Sequence[Thread],
    helpers: Sequence[str],
    *,
    devices: Sequence[Device] = (),
    cross_thread: bool = True,
    launches_known: bool = True,
) -> LinkResult:
    """Return each activity's call, range and rule, and which calls launched nothing.

    Work whose times contradict its launch or the capture is left out, and so is some of a process
    or device that nothing else mentions.

    Args:
        activities: kernels and copies.
        calls: the profile's CUDA API calls.
        ranges: the ranges that the convention names as operations.
        phase: phase of each range (codes of :class:`~bubbleviz.model.phases.Phase`).
        threads: named threads.
        helpers: regexes of names of threads that never run backward.
        devices: that the profile lists.
        cross_thread: whether to apply rule 3.
        launches_known: whether the calls are a host's own; else they stand for the work itself.
    """
    names = helper_threads(threads, helpers)
    linker = _Linker(activities, ranges, phase, names, cross_thread=cross_thread)
    for block in calls.blocks():
        linker.add(block)
    return linker.result(calls, devices, launches_known=launches_known)


def link_by_thread(profile: Profile, ranges: Ranges) -> LinkResult:
    """Link a profile's work to ranges of the threads that launched it, without a convention.

    Args:
        profile: as read.
        ranges: any of its ranges; they have no phases, so no rule looks at other threads.
    """
    return link(
        profile.activities,
        profile.calls,
        ranges,
        np.full(len(ranges), NONE, np.int64),
        profile.threads,
        (),
        devices=profile.devices,
        cross_thread=False,
        launches_known=profile.launches_known,
    )
