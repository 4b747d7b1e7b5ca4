"""The linker: links activities to calls and ranges as blocks of calls pass by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bubbleviz.interpret.linking.backward_threads import OpenBackwards, helper_threads
from bubbleviz.interpret.linking.launches import Launches
from bubbleviz.interpret.linking.links import (
    CallStarts,
    LinkResult,
    LinkRule,
    Links,
    WorklessCalls,
)
from bubbleviz.interpret.linking.long_calls import LongCalls
from bubbleviz.interpret.linking.lost_kernels import LostKernels, WorklessRows, lost_kernels
from bubbleviz.interpret.linking.open_ranges import ThreadRanges
from bubbleviz.interpret.linking.place_check import PlaceCheck, check_places
from bubbleviz.interpret.linking.row_check import RowCheck, check_rows
from bubbleviz.interpret.linking.time_check import TimeCheck, check_times
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, widened
from bubbleviz.model.grouping import distinct, found_in, rows_by_value
from bubbleviz.model.numbering import BlockNumbering
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.profile import (
    Activities,
    CallLog,
    Calls,
    Device,
    Profile,
    Ranges,
    Thread,
    process_of,
)
from bubbleviz.model.values import frozen


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
