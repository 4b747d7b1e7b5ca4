"""Link: kernel to launching call to operation range, by the rules and in this order.

1. A kernel's launching call has its correlation id and its process.
2. The call belongs to the innermost range, of those that a convention names, around it on its
   own thread (a start/end range that another thread ends covers the whole process).
3. A call with no such range on its own thread belongs to the innermost backward range open at
   its start on another thread: PyTorch runs backward on a thread of its own.

Nothing else is linked, and what is not linked is counted. Calls come in blocks and are not kept.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.interpret.lengthy import Lengthy
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, widened
from bubbleviz.model.containment import Innermost
from bubbleviz.model.numbering import BlockNumbering
from bubbleviz.model.phases import BACKWARD, COMPUTE, Phase
from bubbleviz.model.profile import (
    UNCORRELATED,
    Activities,
    CallLog,
    Calls,
    Ranges,
    Thread,
    is_main,
    process_of,
)

#: A look-up table may have so many places for each row that is looked up.
_TABLE = 16


class Rule(IntEnum):
    """By which rule an activity found its operation."""

    UNLINKED = 0
    OUTSIDE = 1
    OWN_THREAD = 2
    CROSS_THREAD = 3
    AMBIGUOUS = 4
    HELPER_THREAD = 5


@dataclass(frozen=True)
class Links(Table):
    """For each activity (kernel or copy): its call and its range; -1 is none.

    Attributes:
        call: row of the launching call.
        range: row of the range whose operation it belongs to.
        rule: code of :class:`Rule`.
    """

    call: Codes
    range: Codes
    rule: npt.NDArray[np.int8]

    def without_calls(self) -> Links:
        """Return the links without what tells of launches."""
        return replace(self, call=np.full(len(self), NONE, np.int32))

    def calls_of(self, rows: Codes, calls: CallLog) -> Calls:
        """Return the call of each of some activities, none of which lacks one."""
        called, of_row = np.unique(self.call[rows], return_inverse=True)
        return calls.at(called.astype(np.int64)).take(of_row)

    def launched_ns(self, rows: Codes, calls: CallLog) -> Ints:
        """Return when the host launched some activities; the end of time where that is unknown."""
        known = self.call[rows] != NONE
        time_ns = np.full(len(rows), np.iinfo(np.int64).max)
        time_ns[known] = self.calls_of(rows[known], calls).start_ns
        return time_ns


@dataclass(frozen=True)
class VainCalls:
    """Calls without work in the profile, of threads that launched some.

    Attributes:
        pieces: process, a time, and how long after it the host entered some of its calls.
    """

    pieces: tuple[tuple[int, int, npt.NDArray[np.unsignedinteger[Any]]], ...]

    def starts_ns(self, process: int) -> Ints:
        """Return when the host entered the calls of a process, ascending."""
        own = [after.astype(np.int64) + base for one, base, after in self.pieces if one == process]
        return np.sort(np.concatenate(own)) if own else np.empty(0, np.int64)


@dataclass(frozen=True)
class Linked:
    """What the calls of a profile have told.

    Attributes:
        links: of each activity.
        vain: calls without work.
        start_ns: when the first call began.
        end_ns: when the last one ended.
        lengthy: calls that took their time; None where there are none.
        impossible: how many calls were left out for their times.
    """

    links: Links
    vain: VainCalls
    start_ns: int
    end_ns: int
    lengthy: Calls | None
    impossible: int


def _by_group(group: Ints) -> list[tuple[int, Ints]]:
    """Return (value, rows) for each distinct value, rows ascending."""
    if len(group) == 0:
        return []
    if group.min() == group.max():
        return [(int(group[0]), np.arange(len(group)))]
    order = np.argsort(group, kind="stable")
    values, starts = np.unique(group[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, starts[1:]), strict=True))


class _Launches:
    """Finds what calls launched, by process and correlation id."""

    def __init__(self, activities: Activities) -> None:
        self._ids = activities.correlation_id
        # One column for all processes, which goes back to the system as a whole.
        self._rows = np.empty(len(activities), np.int32)
        self._of_process: dict[int, slice] = {}
        at = 0
        for process in np.unique(activities.ranks[:, 0]).tolist():
            of_process = activities.ranks[:, 0] == process
            rows = np.flatnonzero(of_process[activities.rank]).astype(np.int32)
            ids = activities.correlation_id[rows]
            order = np.argsort(ids, kind="stable")
            self._rows[at : at + len(rows)] = rows[order]
            known = int((ids != UNCORRELATED).sum())
            self._of_process[process] = slice(at, at + known)
            at += len(rows)

    def of(self, calls: Calls) -> tuple[Codes, Ints]:
        """Return pairs (activity, call): rows of what was launched, and of its call.

        Of several rows of one call (runtime API and driver API) the one that started first counts;
        of two that start together the earlier row.
        """
        found = [
            self._of_one(process, rows, calls)
            for process, rows in _by_group(process_of(calls.thread))
        ]
        activity, call = zip(*found, strict=True)
        return np.concatenate(activity), np.concatenate(call)

    def _of_one(self, process: int, rows: Ints, calls: Calls) -> tuple[Codes, Ints]:
        activities = self._rows[self._of_process.get(process, slice(0, 0))]
        asked = calls.correlation_id[rows]
        # Where the thread that calls is the only one of its process, ids ascend already.
        if not (asked[1:] > asked[:-1]).all():
            rows = rows[np.lexsort((calls.start_ns[rows], asked))]
            asked = calls.correlation_id[rows]
            first = np.append(True, asked[1:] != asked[:-1])
            rows, asked = rows[first], asked[first]
        low = bisect_left(activities, int(asked[0]), key=self._id_of)
        high = bisect_right(activities, int(asked[-1]), key=self._id_of)
        within = activities[low:high]
        at = _places(asked, self._ids[within])
        hit = at != NONE
        return within[hit], rows[at[hit]]

    def _id_of(self, activity: int) -> int:
        return int(self._ids[activity])


def _places(ids: npt.NDArray[np.uint32], wanted: npt.NDArray[np.uint32]) -> Codes:
    """Return the place among ``ids`` of each wanted one, -1 none; both ascend, ``ids`` strictly.

    Ids are handed out one by one, so that a table of all between the first and the last is short.
    """
    low, span = int(ids[0]), int(ids[-1]) - int(ids[0]) + 1
    if span <= _TABLE * (len(ids) + len(wanted)):
        table = np.full(span, NONE, np.int32)
        table[ids - ids[0]] = np.arange(len(ids), dtype=np.int32)
        found: Codes = table[wanted - np.uint32(low)]
        return found
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, at, NONE)


class _Open:
    """The ranges that are open around calls, or at an instant; push/pop before start/end ones."""

    def __init__(self, ranges: Ranges, rows: Ints, shared: Ints) -> None:
        started = ranges.start_end[rows]
        free = np.sort(np.concatenate((rows[started], shared)))
        self._layers = [
            (own, Innermost.of(ranges.start_ns[own], ranges.end_ns[own]))
            for own in (rows[~started], free)
            if len(own)
        ]

    def around(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return the row of the innermost range around each [start, end]; -1 none."""
        best = np.full(len(start_ns), NONE, np.int64)
        for rows, index in self._layers:
            asked = np.flatnonzero(best == NONE)
            if len(asked):
                found = index.around(start_ns[asked], end_ns[asked])
                best[asked] = np.where(found >= 0, rows[found], NONE)
        return best

    def all_around(self, start_ns: Ints, end_ns: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield (query, row) pairs of every range around each [start, end]."""
        for rows, index in self._layers:
            for query, held in index.all_around(start_ns, end_ns):
                yield query, rows[held]


class _OpenByThread:
    """The ranges of each thread, with start/end ranges that cover its whole process."""

    def __init__(self, ranges: Ranges, rows: Ints) -> None:
        self._ranges, self._rows = ranges, rows
        own = ranges.take(rows)
        wide = own.start_end & (own.end_thread != NONE) & (own.end_thread != own.thread)
        self._on_thread = dict(_by_group(np.where(wide, NONE, own.thread)))
        self._on_process = dict(_by_group(np.where(wide, process_of(own.thread), NONE)))
        self._on_thread.pop(NONE, None)
        self._on_process.pop(NONE, None)
        self._open: dict[int, _Open] = {}

    def of(self, thread: int) -> _Open:
        """Return the ranges for the calls of a thread."""
        if thread not in self._open:
            none = np.empty(0, np.int64)
            own = self._rows[self._on_thread.get(thread, none)]
            shared = self._rows[self._on_process.get(thread >> 24, none)]
            self._open[thread] = _Open(self._ranges, own, shared)
        return self._open[thread]

    def around(self, calls: Calls) -> Ints:
        """Return the row of the innermost range around each call by its own thread; -1 none.

        Where a push/pop range holds the call, no start/end range can take it.
        """
        best = np.full(len(calls), NONE, np.int64)
        for thread, at in _by_group(calls.thread):
            best[at] = self.of(thread).around(calls.start_ns[at], calls.end_ns[at])
        return best


class _Backward:
    """The cross-thread rule.

    ::

        main thread      ├─B3────────────────┤  (pushed here)
        autograd thread      call call call     (launched here)  -> B3
    """

    def __init__(self, ranges: Ranges, phase: Ints) -> None:
        backward = np.flatnonzero(np.isin(phase, BACKWARD))
        none = np.empty(0, np.int64)
        self._open = {
            thread: _Open(ranges, backward[at], none)
            for thread, at in _by_group(ranges.thread[backward])
        }

    def _candidates(self, thread: Ints, time_ns: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield (thread, asked, range): the innermost backward that it had open around others."""
        processes = dict(_by_group(process_of(thread)))
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
            thread: of each call asked about.
            time_ns: when each began.
            among: tells for which of some calls (rows) a thread may be the one; None for all.
        """
        found = np.full(len(thread), NONE, np.int64)
        count = np.zeros(len(thread), np.int64)
        for owner, rows, inside in self._candidates(thread, time_ns):
            may = slice(None) if among is None else among(owner, rows)
            found[rows[may]] = inside[may]
            count[rows[may]] += 1
        found[count > 1] = NONE
        return found, count > 1


def _helper_threads(threads: Sequence[Thread], helpers: Sequence[str]) -> Ints:
    """Return the threads that have a name of threads that never run backward.

    A name that the process's main thread has too says nothing: threads inherit it.
    """
    helper = re.compile("|".join(helpers) or r"(?!)", re.IGNORECASE)
    inherited = {(t.thread >> 24, t.name) for t in threads if is_main(t.thread)}
    named = {
        t.thread
        for t in threads
        if helper.search(t.name)
        and (is_main(t.thread) or (t.thread >> 24, t.name) not in inherited)
    }
    return np.array(sorted(named), np.int64)


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
        self._launches = _Launches(activities)
        self._own = _OpenByThread(ranges, np.arange(len(ranges)))
        self._backward = _Backward(ranges, phase) if cross_thread else None
        # Threads that open these themselves launch no backward of another thread.
        forward = np.isin(phase, (Phase.F, Phase.FB, Phase.OPTIMIZER))
        self._forward_threads = np.unique(ranges.thread[forward])
        self._helpers = helpers
        self._threads = BlockNumbering()
        self._call: Codes = np.full(count, NONE, np.int32)
        self._launched_ns = np.zeros(count, np.int64)
        self._thread: Codes = np.full(count, NONE, np.int16)
        self._range = np.full(count, NONE, np.int32)
        self._rule = np.full(count, Rule.UNLINKED, np.int8)
        self._idle: list[tuple[int, int, npt.NDArray[np.unsignedinteger[Any]]]] = []
        self._first_ns, self._last_ns = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        self._impossible = 0
        self._lengthy = Lengthy()

    def add(self, calls: Calls) -> None:
        """Link what these calls launched."""
        self._impossible += calls.impossible
        if len(calls) == 0:
            return
        self._first_ns = min(self._first_ns, int(calls.start_ns.min()))
        self._last_ns = max(self._last_ns, int(calls.end_ns.max()))
        self._lengthy.add(calls)
        thread = self._threads.numbers(calls.thread)
        activity, call = self._launches.of(calls)
        wins = self._wins(activity, calls.start_ns[call])
        activity, call = activity[wins], call[wins]
        launched = np.zeros(len(calls), bool)
        launched[call] = True
        self._waste(calls.start_ns[~launched], thread[~launched])
        held, rule = self._told(calls.take(launched))
        told = (np.cumsum(launched) - 1)[call]
        row = calls.row[call]
        self._call, self._thread = widened(self._call, row), widened(self._thread, thread)
        self._call[activity] = row
        self._launched_ns[activity] = calls.start_ns[call]
        self._thread[activity] = thread[call]
        self._range[activity] = held[told]
        self._rule[activity] = rule[told]

    def _wins(self, activity: Codes, start_ns: Ints) -> Bools:
        """Tell which activities get this call; one that they had before is idle after all."""
        taken = self._call[activity] != NONE
        wins: Bools = ~taken | (start_ns < self._launched_ns[activity])
        lost = activity[taken & wins]
        lost = lost[np.unique(self._call[lost], return_index=True)[1]]
        if len(lost):
            self._waste(self._launched_ns[lost], self._thread[lost])
        return wins

    def _waste(self, start_ns: Ints, thread: Codes) -> None:
        """Keep the calls of some threads (rows of all threads) that launched nothing."""
        for own, rows in _by_group(thread):
            base = int(start_ns[rows].min())
            after = start_ns[rows] - base
            self._idle.append((own, base, after.astype(np.min_scalar_type(int(after.max())))))

    def _told(self, calls: Calls) -> tuple[Ints, Ints]:
        """Return the range of each call, and by which rule."""
        held = self._own.around(calls)
        rule = np.where(held >= 0, Rule.OWN_THREAD, Rule.OUTSIDE).astype(np.int64)
        if self._backward is None:
            return held, rule
        asked = np.flatnonzero((held < 0) & ~np.isin(calls.thread, self._forward_threads))
        found, several = self._backward.only(calls.thread[asked], calls.start_ns[asked])
        rule[asked[found >= 0]] = Rule.CROSS_THREAD
        rule[asked[several]] = Rule.AMBIGUOUS
        helper = np.isin(calls.thread[asked], self._helpers)
        rule[asked[helper & ((found >= 0) | several)]] = Rule.HELPER_THREAD
        held[asked[~helper]] = found[~helper]
        return held, rule

    def done(self) -> Linked:
        """Return the links, once all calls have come."""
        self._decide_by_device()
        # One place more for what no call launched (-1).
        launching = np.zeros(len(self._threads) + 1, bool)
        launching[self._thread] = True
        process = process_of(self._threads.values).tolist()
        # A watchdog asks, again and again, and launches nothing.
        vain = VainCalls(
            tuple(
                (process[thread], base, after)
                for thread, base, after in self._idle
                if launching[thread]
            )
        )
        links = Links(self._call, self._range, self._rule)
        lengthy = self._lengthy.done()
        return Linked(links, vain, self._first_ns, self._last_ns, lengthy, self._impossible)

    def _decide_by_device(self) -> None:
        """Settle what several threads' backward could own, where one of them used the device."""
        rows = np.flatnonzero(self._rule == Rule.AMBIGUOUS)
        if self._backward is None or len(rows) == 0:
            return
        device_id = self._activities.ranks[:, 1][self._activities.rank[rows]]
        uses = self._uses()

        def used(thread: int, asked: Ints) -> Bools:
            devices = np.array([d for t, d in sorted(uses) if t == thread], np.int64)
            return np.isin(device_id[asked], devices)

        thread = self._threads.values[self._thread[rows]]
        found, _ = self._backward.only(thread, self._launched_ns[rows], used)
        self._range[rows] = found
        self._rule[rows[found >= 0]] = Rule.CROSS_THREAD

    def _uses(self) -> frozenset[tuple[int, int]]:
        """Return the (thread, device) pairs that threads' own kernels ran on."""
        kernels = slice(0, self._activities.kernels)
        linked = self._thread[kernels] != NONE
        count = len(self._activities.ranks)
        codes = np.unique(
            self._thread[kernels][linked].astype(np.int64) * count
            + self._activities.rank[kernels][linked]
        )
        thread = self._threads.values[codes // count].tolist()
        return frozenset(
            zip(thread, self._activities.ranks[codes % count, 1].tolist(), strict=True)
        )


def link(
    activities: Activities,
    calls: CallLog,
    ranges: Ranges,
    phase: Ints,
    threads: Sequence[Thread],
    helpers: Sequence[str],
    *,
    cross_thread: bool = True,
) -> Linked:
    """Return each activity's call, range and rule, and what calls launched nothing.

    Args:
        activities: kernels and copies.
        calls: the profile's CUDA API calls.
        ranges: the ranges that the convention names as operations.
        phase: phase of each range (codes of :class:`~bubbleviz.model.phases.Phase`).
        threads: named threads.
        helpers: regexes of names of threads that never run backward.
        cross_thread: whether to apply rule 3.
    """
    names = _helper_threads(threads, helpers)
    linker = _Linker(activities, ranges, phase, names, cross_thread=cross_thread)
    for block in calls.blocks():
        linker.add(block)
    return linker.done()


@dataclass(frozen=True)
class Inside(Table):
    """Which compute ranges an activity was launched inside of: one row a pair."""

    activity: Ints
    range: Ints


def launched_inside(
    rows: Ints, links: Links, calls: CallLog, ranges: Ranges, phase: Ints
) -> Inside:
    """Return all compute ranges around the launch of some activities, whatever lies between.

    Args:
        rows: the activities asked about.
        links: of all activities.
        calls: the profile's calls.
        ranges: the ranges of operations.
        phase: phase of each range.
    """
    rows = rows[links.call[rows] >= 0]
    used = links.calls_of(rows, calls)
    crossed = np.flatnonzero(links.rule[rows] == Rule.CROSS_THREAD)
    found = [(rows[crossed], links.range[rows[crossed]].astype(np.int64))]
    compute = _OpenByThread(ranges, np.flatnonzero(np.isin(phase, COMPUTE)))
    for thread, at in _by_group(used.thread):
        around = compute.of(thread).all_around(used.start_ns[at], used.end_ns[at])
        found.extend((rows[at[query]], held) for query, held in around)
    activity, of_range = (np.concatenate(column) for column in zip(*found, strict=True))
    return Inside(activity, of_range)
