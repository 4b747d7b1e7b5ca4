"""Links each kernel to the call that launched it, and to the operation range of the call.

The rules apply in this order; :class:`LinkRule` names the results::

    main thread        ├─F3──────────────┤  ├─B3────────────────┤
    calls                  a                                        d
    autograd thread                              b    c
    device                   ██ a             ██ b ██ c   ██ d    ██ e

    a   1 launching call, 2 range on its own thread   F3    OWN_THREAD
    b,c 1 launching call, 3 backward on main thread   B3    CROSS_THREAD
    d   1 launching call, no range open               -     OUTSIDE
    e   launching call not recorded                   -     UNLINKED

1. A kernel and its launching call have the same correlation id and process
   (:meth:`~bubbleviz.interpret.launches.Launches.match_calls`).
2. The call belongs to the innermost named range around it on its own thread (``_find_innermost``).
   A start/end range that is ended by a different thread covers all threads of its process.
3. PyTorch runs the backward pass on a separate thread. Therefore, a call outside all ranges of its
   thread belongs to the innermost backward range that is open on another thread of the process
   when the call starts (``_find_only_backward``). If several threads have an open backward range,
   only threads that launched work on the same device are considered
   (:meth:`Linker.decide_by_device`). Unless this leaves exactly one thread, the result is
   AMBIGUOUS. Helper threads such as data loaders never run backward passes; their calls get
   HELPER_THREAD.

Calls are read in blocks and are not kept in memory. The native library applies the same rules to a
whole block (``_link_native``).
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
    LostKernels,
    check_places,
    check_rows,
    check_times,
    describe_lost_kernels,
    find_lost_kernels,
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
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, make_constant, make_mask, widen
from bubbleviz.model.grouping import find_distinct, find_positions, list_rows_by_value
from bubbleviz.model.limitations import LEFT_OUT, Limitation
from bubbleviz.model.nesting import Innermost
from bubbleviz.model.numbering import BlockNumbering
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import BACKWARD, COMPUTE, Phase
from bubbleviz.native import functions as native

#: Launch time of work whose launch is unknown, later than any other time.
NEVER = int(np.iinfo(np.int64).max)
#: Compact form of times: the earliest time in ns, and the offsets of all times from it, in the
#: smallest unsigned type that can represent them.
CompactTimes: TypeAlias = tuple[int, npt.NDArray[np.unsignedinteger[Any]]]


class LinkRule(IntEnum):
    """The rule that linked an activity to a range, or the reason why the activity has no range."""

    UNLINKED = 0
    OUTSIDE = 1
    OWN_THREAD = 2
    CROSS_THREAD = 3
    AMBIGUOUS = 4
    HELPER_THREAD = 5


@dataclass(frozen=True, eq=False, repr=False)
class LinkedWork(Table):
    """Kernels and copies with their times, launching calls and operations; kernels come first.

    :func:`link` sets the columns up to ``range``. :mod:`bubbleviz.interpret.spans` sets
    ``compute`` and ``communication``. :mod:`bubbleviz.interpret.per_rank` splits the table by rank
    and sets ``operation``. In all index columns, -1 means none or unknown.

    Attributes:
        activity: Row of the kernel or copy in the profile's activities.
        start_ns: Start time on the device.
        end_ns: End time on the device.
        rank: Rank that the kernel or copy ran on.
        name_id: Index into ``names``, or -1 for a copy without a name.
        call: Row of the launching call, or -1 if the rule is ``UNLINKED``.
        launched_ns: Start of the launching call, undefined if ``call`` is -1.
        thread: Index in ``threads`` of the launching thread, undefined if ``call`` is -1.
        rule: Code of the :class:`LinkRule` that applied.
        range: Row of the range that the kernel or copy is linked to.
        operation: Row of the operation that owns the kernel or copy.
        compute: Mask of the compute kernels.
        communication: Mask of the communication kernels.
        names: Distinct kernel names.
        threads: Ids of the threads that made calls, and of other threads in the profile.
    """

    activity: Codes
    start_ns: Ints
    end_ns: Ints
    rank: Codes
    name_id: Codes
    call: Codes
    launched_ns: Ints
    thread: Codes
    rule: npt.NDArray[np.int8]
    range: Codes
    operation: Codes
    compute: Bools
    communication: Bools
    names: tuple[str, ...] = field(metadata={"shared": True})
    threads: Ints = field(metadata={"shared": True})

    @classmethod
    def make_without_launches(
        cls,
        *,
        start_ns: Ints,
        end_ns: Ints,
        rank: Codes,
        operation: Codes,
        compute: Bools,
        communication: Bools,
    ) -> LinkedWork:
        """Create a table of kernels and copies whose launches and names are not recorded."""
        none = make_constant(NONE, len(rank))
        return cls(
            activity=np.arange(len(rank)),
            start_ns=start_ns,
            end_ns=end_ns,
            rank=rank,
            name_id=none,
            call=none,
            launched_ns=none,
            thread=none,
            rule=np.broadcast_to(np.int8(LinkRule.UNLINKED), len(rank)),
            range=operation,
            operation=operation,
            compute=compute,
            communication=communication,
            names=(),
            threads=none[:0],
        )

    def get_calls(self, rows: Codes, calls: model.CallLog) -> model.Calls:
        """Return the launching calls of the given rows, one per row.

        Args:
            rows: Rows of this table whose launching calls are known.
            calls: All API calls of the profile.
        """
        called, of_row = np.unique(self.call[rows], return_inverse=True)
        return calls.at(called.astype(np.int64)).take(of_row)

    def get_launch_times(self, rows: Codes) -> Ints:
        """Return the launch time of each row in ns, or ``NEVER`` if unknown."""
        is_known = self.rule[rows] != LinkRule.UNLINKED
        return np.where(is_known, self.launched_ns[rows], NEVER)

    def find_launches(self, rows: Codes) -> tuple[Ints, Ints]:
        """Return the launch times and launching threads of the given rows.

        Args:
            rows: Rows of this table. The results for -1 are -1.

        Returns:
            launched_ns: Start of each row's launching call, or -1 if unknown.
            thread: Id of the thread that made the call, or -1 if unknown.
        """
        launched_ns = np.full(len(rows), NONE, np.int64)
        thread = launched_ns.copy()
        linked = np.flatnonzero(rows != NONE)
        linked = linked[self.rule[rows[linked]] != LinkRule.UNLINKED]
        launched_ns[linked] = self.launched_ns[rows[linked]]
        thread[linked] = self.threads[self.thread[rows[linked]]]
        return launched_ns, thread


@dataclass(frozen=True)
class LinkedProfile:
    """A profile whose kernels and copies are linked to calls and ranges.

    Attributes:
        profile: The profile without the kernels and copies that were left out.
        named_ranges: Ranges that the kernels and copies are linked to.
        work: The kernels and copies of ``profile`` with their launching calls and ranges.
        sound: Mask of the original kernels and copies that were kept, or None if all were kept.
        workless: Start times of calls that launched no recorded work, keyed by process. Calls of
            threads that launched nothing at all are left out.
        start_ns: Start of the first call.
        end_ns: End of the last call.
        long_calls: Calls that took at least 20 us, or None if there are none.
        unrecorded: Intervals in which ranks may have run work that was launched but not recorded.
        limitations: Limitations on missing data and on work that was left out.
    """

    profile: model.Profile
    named_ranges: model.Ranges
    work: LinkedWork
    sound: Bools | None
    workless: Mapping[int, Sequence[CompactTimes]]
    start_ns: int
    end_ns: int
    long_calls: model.Calls | None
    unrecorded: RankIntervals
    limitations: tuple[Limitation, ...]


class ThreadRanges:
    """Search structure for the innermost range around each call.

    Start/end ranges are used only if no push/pop range contains the call. A start/end range that a
    different thread ended covers the calls of all threads in its process.

    Args:
        ranges: All ranges.
        rows: Rows of the ranges to search.
    """

    def __init__(self, ranges: model.Ranges, rows: Ints) -> None:
        self._ranges, self._rows = ranges, rows
        searched = ranges.take(rows)
        has_end_thread = searched.end_thread != NONE
        is_shared = searched.start_end & has_end_thread & (searched.end_thread != searched.thread)
        process = model.process_of(searched.thread)
        self._on_thread = dict(list_rows_by_value(np.where(is_shared, NONE, searched.thread)))
        self._on_process = dict(list_rows_by_value(np.where(is_shared, process, NONE)))
        self._on_thread.pop(NONE, None)
        self._on_process.pop(NONE, None)
        self._indices: dict[int, list[Innermost]] = {}

    def get_indices(self, thread: int) -> list[Innermost]:
        """Return the search indices for the ranges to which calls of a thread may belong.

        There are up to two: one of the push/pop ranges, then one of the start/end ranges. Empty
        indices are left out. The result is cached.
        """
        if thread not in self._indices:
            no_rows = np.empty(0, np.int64)
            rows = self._rows[self._on_thread.get(thread, no_rows)]
            shared = self._rows[self._on_process.get(thread >> 24, no_rows)]
            self._indices[thread] = _build_indices(self._ranges, rows, shared)
        return self._indices[thread]

    def around(self, calls: model.Calls) -> Ints:
        """Return the row of the innermost range around each call, or -1 if there is none.

        A start/end range is used only if no push/pop range contains the call.
        """
        innermost = np.full(len(calls), NONE, np.int64)
        for thread, of_thread in list_rows_by_value(calls.thread):
            start_ns, end_ns = calls.start_ns[of_thread], calls.end_ns[of_thread]
            innermost[of_thread] = _find_innermost(self.get_indices(thread), start_ns, end_ns)
        return innermost


def _build_indices(ranges: model.Ranges, rows: Ints, shared: Ints | None = None) -> list[Innermost]:
    """Build a search index of a thread's push/pop ranges, and then one of its start/end ranges.

    Empty indices are left out.

    Args:
        ranges: All ranges.
        rows: Rows of the thread's ranges.
        shared: Rows of start/end ranges that cover all threads of the process, or None if there are
            none.
    """
    is_start_end = ranges.start_end[rows]
    start_end = rows[is_start_end]
    if shared is not None:
        start_end = np.concatenate((start_end, shared))
    indices = []
    for part in (rows[~is_start_end], np.sort(start_end)):
        if len(part):
            index = Innermost.of(ranges.start_ns[part], ranges.end_ns[part])
            indices.append(replace(index, row=part[index.row]))
    return indices


def _pack_indices(indices_by_owner: Sequence[list[Innermost]]) -> tuple[tuple[Ints, ...], Ints]:
    """Pack search indices into the columns of ``struct ranges`` in ``links.c``.

    Args:
        indices_by_owner: Up to two indices per owner (a thread): first the index of push/pop
            ranges, then the index of start/end ranges.

    Returns:
        columns: The columns of all indices, concatenated. An index consists of layers (ranges of
            equal nesting depth), which are numbered over all owners.
        bounds: Three layer numbers per owner, at ``bounds[3 * i : 3 * i + 3]`` for owner ``i``: the
            first layer of its first index, the stop of its first index, and the stop of its second
            index.
    """
    starts, bounds = [0], list[int]()
    columns: list[list[Ints]] = [[np.empty(0, np.int64)] for _ in range(4)]
    for indices in indices_by_owner:
        bounds.append(len(starts) - 1)
        for index in indices:
            starts.extend((index.begin[1:] + starts[-1]).tolist())
            bounds.append(len(starts) - 1)
            parts = index.start_ns, index.end_ns, index.depth, index.row
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
        # Each owner has three bounds, so a missing index is represented by an empty one.
        bounds.extend(bounds[-1:] * (2 - len(indices)))
    search_hint = np.full(len(starts) - 1, NONE, np.int64)
    packed = np.array(starts, np.int64), search_hint, *map(np.concatenate, columns)
    return packed, np.array(bounds, np.int64)


def _find_innermost(indices: list[Innermost], start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the row of the innermost range around each interval, or -1 if there is none.

    A later index is searched only for intervals that no range of an earlier index contains.

    Args:
        indices: Search indices of ranges, highest precedence first.
        start_ns: Start of each interval.
        end_ns: End of each interval.
    """
    innermost = np.full(len(start_ns), NONE, np.int64)
    for index in indices:
        is_outside = np.flatnonzero(innermost == NONE)
        innermost[is_outside] = index.around(start_ns[is_outside], end_ns[is_outside])
    return innermost


def find_enclosing_ranges(
    rows: Ints, work: LinkedWork, calls: model.CallLog, ranges: model.Ranges, phase: Ints
) -> tuple[Ints, Ints]:
    """Find all compute ranges around the launches of kernels and copies, not only the innermost.

    Each kernel or copy is paired with each range around its launching call. If it was linked to a
    range on another thread, it is also paired with that range. A kernel or copy whose launching
    call is unknown has no pairs. The pairs are not sorted.

    Args:
        rows: Rows of ``work`` whose launches are looked up.
        work: All kernels and copies of the profile.
        calls: All API calls of the profile.
        ranges: Ranges whose names denote operations.
        phase: Phase of each range. Only ranges whose phase is in ``COMPUTE`` are paired.

    Returns:
        activity: For each pair, the row of ``work``.
        of_range: For each pair, the row of ``ranges``.
    """
    rows = rows[work.call[rows] >= 0]
    launches = work.get_calls(rows, calls)
    crossed = rows[work.rule[rows] == LinkRule.CROSS_THREAD]
    pairs = [(crossed, work.range[crossed].astype(np.int64))]
    compute = ThreadRanges(ranges, np.flatnonzero(mask_phases(phase, COMPUTE)))
    for thread, of_thread in list_rows_by_value(launches.thread):
        start_ns, end_ns = launches.start_ns[of_thread], launches.end_ns[of_thread]
        for index in compute.get_indices(thread):
            pairs.extend(
                (rows[of_thread[query]], row) for query, row in index.iter_around(start_ns, end_ns)
            )
    activity, of_range = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return activity, of_range


def _find_helper_threads(threads: Sequence[model.Thread], patterns: Sequence[str]) -> Ints:
    """Return the sorted ids of the threads whose names show that they never run a backward pass.

    Patterns ignore case and may match anywhere in the name. A thread with the same name as the main
    thread of its process is left out, because it probably inherited the name.

    Args:
        threads: Named threads of the profile.
        patterns: Regular expressions for thread names. Without patterns, no thread matches.
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
    """Links activities to calls and ranges while blocks of calls are read.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        ranges: Ranges that activities are linked to.
        phase: Phase of each range. If None, activities are linked only to ranges of the launching
            thread.
        helpers: Ids of the threads that never run a backward pass.

    Attributes:
        thread: Column ``thread`` of :class:`LinkedWork`, one entry per activity.
        range: Column ``range`` of :class:`LinkedWork`.
        rule: Column ``rule`` of :class:`LinkedWork`.
        workless_rows: Rows of the calls that launched no recorded work, or a sample of them.
        long_calls: Calls that took at least 20 us.
        start_ns: Start of the first call.
        end_ns: End of the last call.
        impossible: Number of calls that were left out because their times are invalid.
    """

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
        # Arguments for the native library: the threads that have made calls, and their ranges.
        self._tables: tuple[tuple[npt.NDArray[Any], ...], tuple[Ints, ...]] | None = None
        # Position in ``by_id`` of each process's last match. The native library continues its
        # search there.
        self._search_hint = self.launches.begin[:-1].copy()
        self._ranges = ThreadRanges(ranges, np.arange(len(ranges)))
        self._helpers = helpers
        # Backward ranges of each thread. Empty if calls are linked only to ranges of their thread.
        self._backward: dict[int, list[Innermost]] = {}
        self._forward_threads = np.empty(0, np.int64)
        if phase is None:
            return
        backward = np.flatnonzero(mask_phases(phase, BACKWARD))
        for thread, rows in list_rows_by_value(ranges.thread[backward]):
            self._backward[thread] = _build_indices(ranges, backward[rows])
        # A thread with forward or optimizer ranges does not launch the backward of another thread.
        forward = mask_phases(phase, (Phase.F, Phase.FB, Phase.OPTIMIZER))
        self._forward_threads = find_distinct(ranges.thread[forward])

    def add(self, calls: model.Calls) -> None:
        """Link the activities that a block of calls launched.

        Args:
            calls: The calls. If their row numbers ascend, the native library is used if available.
        """
        self.impossible += calls.impossible
        if len(calls) == 0:
            return
        self.start_ns = min(self.start_ns, int(calls.start_ns.min()))
        self.end_ns = max(self.end_ns, int(calls.end_ns.max()))
        self.long_calls.add(calls)
        thread, row, launches = self.threads.numbers(calls.thread), calls.row, self.launches
        is_ascending = row[0] > self._last_row and bool((row[1:] > row[:-1]).all())
        self._last_row = max(self._last_row, int(row.max()))
        self.thread = widen(self.thread, len(self.threads) - 1)
        launches.call = widen(launches.call, self._last_row)
        is_narrow = self.thread.dtype == np.int16 and launches.call.dtype == np.int32
        launched = self._link_native(calls, thread) if is_ascending and is_narrow else None
        if launched is None:
            launched = self._link(calls, thread)
        workless = np.flatnonzero(~launched)
        self._add_workless(calls.start_ns[workless], thread[workless])
        self.workless_rows.add(calls.row[workless])

    def _link(self, calls: model.Calls, thread: Codes) -> Bools:
        """Link calls to the activities they launched, without the native library.

        If an activity is already linked to a call of an earlier block, the call that starts earlier
        wins. A replaced call is added to the calls without work.

        Args:
            calls: The calls.
            thread: Index in ``self.threads`` of each call's thread.

        Returns:
            Mask of the calls that launched an activity.
        """
        launches = self.launches
        activity, call, displaced = launches.match_calls(calls)
        # The activity of each such call now belongs to a call with the same id that started
        # earlier.
        self._add_workless(launches.start_ns[displaced], self.thread[displaced])
        launched = make_mask(len(calls), call)
        of_range, rule = self._find_ranges(calls.take(launched))
        launch = (np.cumsum(launched) - 1)[call]
        launches.call[activity], launches.start_ns[activity] = calls.row[call], calls.start_ns[call]
        self.thread[activity] = thread[call]
        self.range[activity], self.rule[activity] = of_range[launch], rule[launch]
        return launched

    def _link_native(self, calls: model.Calls, thread: Codes) -> Bools | None:
        """Do the same as :meth:`_link`, but with the native library.

        Args:
            calls: Calls in ascending order of row number.
            thread: Index in ``self.threads`` of each call's thread.

        Returns:
            Mask of the calls that launched an activity, or None if the native library is
            unavailable or could not link the calls.
        """
        if not native.is_available():
            return None
        launches = self.launches
        if self._tables is None or len(self._tables[0][0]) != len(self.threads):
            self._tables = self._build_thread_tables()
        index = launches.begin, launches.n_with_id, self._search_hint, launches.by_id, launches.ids
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

    def _build_thread_tables(self) -> tuple[tuple[npt.NDArray[Any], ...], tuple[Ints, ...]]:
        """Build the columns of ``struct threads`` and ``struct ranges`` in ``links.c``.

        The table of ranges contains one entry per thread, followed by one entry per thread that has
        backward ranges.

        Returns:
            threads: Columns of ``struct threads``.
            ranges: Columns of ``struct ranges``.
        """
        threads = self.threads.values
        backward_rows = self._list_backward_rows()
        indices_by_owner = [
            *map(self._ranges.get_indices, threads.tolist()),
            *self._backward.values(),
        ]
        range_columns, bounds = _pack_indices(indices_by_owner)
        thread_columns = (
            find_positions(self.launches.processes, model.process_of(threads)),
            np.isin(threads, self._helpers),
            np.cumsum([0, *map(len, backward_rows)]),
            np.array([row for rows in backward_rows for row in rows], np.int64),
            bounds,
        )
        return thread_columns, range_columns

    def _list_backward_rows(self) -> list[list[int]]:
        """List, for each thread, the other threads whose backward ranges its calls may belong to.

        These are the other threads of the same process that have backward ranges. Each thread is
        identified by its row in the native table of ranges; see :meth:`_build_thread_tables`. The
        list of a thread with forward or optimizer ranges is empty.
        """
        threads = self.threads.values.tolist()
        forward_threads = set(self._forward_threads.tolist())
        backward: dict[int, list[tuple[int, int]]] = {}
        for row, owner in enumerate(self._backward, len(threads)):
            backward.setdefault(owner >> 24, []).append((owner, row))
        return [
            [row for owner, row in backward.get(thread >> 24, ()) if owner != thread]
            if thread not in forward_threads
            else []
            for thread in threads
        ]

    def _add_workless(self, start_ns: Ints, thread: Codes) -> None:
        """Store the start times of calls without work, in one compact array per thread.

        Args:
            start_ns: Start of each call.
            thread: Index in ``self.threads`` of each call's thread.
        """
        for number, rows in list_rows_by_value(thread):
            base_ns = int(start_ns[rows].min())
            after_ns = start_ns[rows] - base_ns
            shortest = np.min_scalar_type(int(after_ns.max()))
            self._workless.append((number, (base_ns, after_ns.astype(shortest))))

    def collect_workless(self) -> dict[int, list[CompactTimes]]:
        """Return the start times of calls that launched no recorded work, keyed by process.

        Calls of threads that launched nothing are left out. A watchdog thread, for example, only
        queries events.
        """
        # The last entry is for activities without a call (-1).
        launching = make_mask(len(self.threads) + 1, find_distinct(self.thread))
        process = model.process_of(self.threads.values).tolist()
        starts: dict[int, list[CompactTimes]] = {}
        for number, times in self._workless:
            if launching[number]:
                starts.setdefault(process[number], []).append(times)
        return starts

    def find_calling_processes(self) -> Ints:
        """Return the process numbers of all threads that made calls, ascending."""
        # Number -1 is the thread of activities without a call.
        workless = np.array([number for number, _ in self._workless], np.int64)
        number = find_distinct(find_distinct(self.thread).astype(np.int64), workless)
        return find_distinct(model.process_of(self.threads.values[number[number >= 0]]))

    def link_work(self) -> LinkedWork:
        """Return the linked work, one row per activity.

        The columns ``activity``, ``operation``, ``compute`` and ``communication`` are filled later.
        """
        activities, count = self.activities, len(self.activities)
        none, is_unknown = make_constant(NONE, count), np.broadcast_to(np.False_, count)
        return LinkedWork(
            # Rows are numbered after the damaged work has been removed.
            activity=none,
            start_ns=activities.start_ns,
            end_ns=activities.end_ns,
            rank=activities.rank,
            name_id=activities.name_id,
            call=self.launches.call,
            launched_ns=self.launches.start_ns,
            thread=self.thread,
            rule=self.rule,
            range=self.range,
            operation=none,
            compute=is_unknown,
            communication=is_unknown,
            names=activities.names,
            threads=self.threads.values,
        )

    def _find_ranges(self, calls: model.Calls) -> tuple[Ints, npt.NDArray[np.int8]]:
        """Return the range of each call, or -1 if it has none, and the rule that applied.

        A call outside all ranges of its thread may belong to a backward range of another thread.
        There are two kinds of threads for which this is ruled out:

        - Threads with forward or optimizer ranges. The rule of their calls is OUTSIDE.
        - Helper threads. The rule is HELPER_THREAD if the call would otherwise belong to a backward
          range or be ambiguous, and OUTSIDE if not.
        """
        of_range = self._ranges.around(calls)
        rule = np.where(of_range >= 0, np.int8(LinkRule.OWN_THREAD), np.int8(LinkRule.OUTSIDE))
        if not self._backward:
            return of_range, rule
        rest = np.flatnonzero(of_range < 0)
        rest = rest[find_positions(self._forward_threads, calls.thread[rest]) == NONE]
        backward, is_ambiguous = self._find_only_backward(calls.thread[rest], calls.start_ns[rest])
        rule[rest[backward >= 0]] = LinkRule.CROSS_THREAD
        rule[rest[is_ambiguous]] = LinkRule.AMBIGUOUS
        is_helper = np.isin(calls.thread[rest], self._helpers)
        rule[rest[is_helper & ((backward >= 0) | is_ambiguous)]] = LinkRule.HELPER_THREAD
        of_range[rest[~is_helper]] = backward[~is_helper]
        return of_range, rule

    def _find_only_backward(
        self, thread: Ints, time_ns: Ints, eligible: Callable[[int, Ints], Bools] | None = None
    ) -> tuple[Ints, Bools]:
        """Find the backward range that is open on another thread when each call starts.

        Args:
            thread: Id of the thread that made each call.
            time_ns: Start of each call.
            eligible: Function ``(thread id, rows of calls) -> mask``. The mask selects the calls
                that may belong to a backward range of the thread. None allows all calls.

        Returns:
            backward: Innermost open backward range for each call. It is -1 unless exactly one
                eligible thread of the process has an open backward range.
            is_ambiguous: Mask of the calls for which several eligible threads have an open backward
                range.
        """
        backward = np.full(len(thread), NONE, np.int64)
        count = np.zeros(len(thread), np.int64)
        processes = dict(list_rows_by_value(model.process_of(thread)))
        for owner, indices in self._backward.items():
            rows = processes.get(owner >> 24, np.empty(0, np.int64))
            rows = rows[thread[rows] != owner]
            if len(rows) == 0:
                continue
            innermost = _find_innermost(indices, time_ns[rows], time_ns[rows])
            rows, innermost = rows[innermost >= 0], innermost[innermost >= 0]
            if eligible is not None:
                is_eligible = eligible(owner, rows)
                rows, innermost = rows[is_eligible], innermost[is_eligible]
            backward[rows] = innermost
            count[rows] += 1
        backward[count > 1] = NONE
        return backward, count > 1

    def decide_by_device(self) -> None:
        """Link ambiguous activities by the devices on which threads launched kernels.

        Among the threads with an open backward range, only those that launched kernels on the
        device of the activity are considered. If this leaves exactly one thread, the activity is
        linked to the innermost open backward range of this thread. Otherwise, it stays ambiguous.
        """
        rows = np.flatnonzero(self.rule == np.int8(LinkRule.AMBIGUOUS))
        if len(rows) == 0:
            return
        ranks, rank = self.activities.ranks, self.activities.rank
        device_id = ranks[:, 1][rank[rows]]
        # Distinct (thread, device) pairs for which the thread launched kernels on the device.
        kernels = np.flatnonzero(self.thread[: self.activities.kernels] != NONE)
        codes = find_distinct(self.thread[kernels].astype(np.int64) * len(ranks) + rank[kernels])
        threads, devices = self.threads.values[codes // len(ranks)], ranks[codes % len(ranks), 1]

        def has_used_device(thread: int, calls: Ints) -> Bools:
            return np.isin(device_id[calls], devices[threads == thread])

        thread = self.threads.values[self.thread[rows]]
        start_ns = self.launches.start_ns[rows]
        backward, _ = self._find_only_backward(thread, start_ns, has_used_device)
        self.range[rows] = backward
        self.rule[rows[backward >= 0]] = LinkRule.CROSS_THREAD


def link(
    profile: model.Profile,
    named_ranges: model.Ranges,
    phase: Ints | None = None,
    helpers: Sequence[str] = (),
) -> LinkedProfile:
    """Link the kernels and copies of a profile to calls and ranges, and leave out damaged ones.

    A kernel or copy is left out in three cases: its times contradict its launch or the capture, it
    repeats another row, or nothing else in the profile mentions its process or device. Wrong end
    times are corrected; see :func:`_correct_stream_ends`.

    Args:
        profile: The profile as it was read.
        named_ranges: Ranges that kernels and copies are linked to.
        phase: Phase of each range, as a code of :class:`~bubbleviz.model.phases.Phase`. If None,
            kernels and copies are linked only to ranges of the launching thread.
        helpers: Regular expressions that match the names of threads that never run a backward pass.
    """
    linker = _link_calls(profile, named_ranges, phase, helpers)
    activities, work = profile.activities, linker.link_work()
    checked = _check_work(linker, profile)
    sound, unrecorded, notes = checked.sound, checked.unrecorded, checked.notes
    if sound is not None:
        activities, work = activities.chosen(sound), work.take(sound)
    if checked.is_left_out.any():
        activities, unrecorded = _remove_ranks(activities, unrecorded, checked.is_left_out)
    copies = profile.copies
    if copies is not None and sound is not None:
        profile = replace(profile, copies=lambda: copies().restrict_to(sound))
    streams, unread = _read_streams(profile, sound)
    profile = replace(profile, activities=activities, limitations=checked.located)
    if streams is not None:
        profile = replace(profile, streams=lambda: streams)
        profile, early, stream_notes = _correct_stream_ends(profile, streams, work, linker.start_ns)
        notes = (*notes, *unread, *stream_notes)
        unrecorded = join_intervals((unrecorded, early), len(activities.ranks))
    activities = profile.activities
    work = work.replace_columns(
        activity=np.arange(len(activities), dtype=np.int32),
        end_ns=activities.end_ns,
        rank=activities.rank,
    )
    return LinkedProfile(
        profile=profile,
        named_ranges=named_ranges,
        work=work,
        sound=sound,
        workless=linker.collect_workless(),
        start_ns=linker.start_ns,
        end_ns=linker.end_ns,
        long_calls=linker.long_calls.collect(),
        unrecorded=unrecorded,
        limitations=notes,
    )


def _link_calls(
    profile: model.Profile,
    named_ranges: model.Ranges,
    phase: Ints | None,
    helpers: Sequence[str],
) -> Linker:
    """Link the work of a profile to all its calls; see :func:`link` for the arguments."""
    linker = Linker(
        profile.activities, named_ranges, phase, _find_helper_threads(profile.threads, helpers)
    )
    # Numbering these threads first saves time while the calls are read.
    threads = np.array([thread.thread for thread in profile.threads], np.int64)
    linker.threads.numbers(find_distinct(named_ranges.thread, threads))
    for block in profile.calls.blocks():
        linker.add(block)
    linker.decide_by_device()
    return linker


def _remove_ranks(
    activities: model.Activities, unrecorded: RankIntervals, is_left_out: Bools
) -> tuple[model.Activities, RankIntervals]:
    """Remove the ranks that are left out, and renumber the remaining ranks.

    Args:
        activities: Activities of the remaining ranks, with the old rank numbers.
        unrecorded: Intervals of all ranks, with the old rank numbers. The intervals of removed
            ranks are dropped.
        is_left_out: Mask of the ranks to remove.
    """
    new_rank = (np.cumsum(~is_left_out) - 1).astype(activities.rank.dtype)
    activities = replace(
        activities, rank=new_rank[activities.rank], ranks=activities.ranks[~is_left_out]
    )
    unrecorded = unrecorded.take(~is_left_out[unrecorded.rank])
    rank = new_rank[unrecorded.rank].astype(np.int64)
    return activities, replace(unrecorded, rank=rank)


def _read_streams(
    profile: model.Profile, sound: Bools | None
) -> tuple[Codes | None, tuple[Limitation, ...]]:
    """Read the stream of each activity that is kept.

    Damaged streams are not an error, because streams are only used to check activity times.

    Args:
        profile: The profile as it was read.
        sound: Mask of the activities that are kept, or None if all are kept.

    Returns:
        streams: Stream of each activity that is kept, or None if the profile records no streams.
            All values are -1 if the streams are damaged.
        notes: One limitation if the streams are damaged, otherwise empty.
    """
    if profile.streams is None:
        return None, ()
    notes: tuple[Limitation, ...] = ()
    try:
        streams = profile.streams()
    except ProfileError:
        path = profile.source.path
        reason = (
            f"{path}: the streams are damaged, so wrong end times of kernels cannot be detected"
        )
        notes = (Limitation("streams of kernels and copies", reason),)
        streams = make_constant(NONE, len(profile.activities))
    return streams if sound is None else streams[sound], notes


def _correct_stream_ends(
    profile: model.Profile, streams: Codes, work: LinkedWork, start_ns: int
) -> tuple[model.Profile, RankIntervals, tuple[Limitation, ...]]:
    """Correct end times that contradict streams, and find when unrecorded early work ran.

    There are three steps. If the profile records no launches, the last two are skipped, and
    ``early`` is empty.

    1. :func:`~bubbleviz.interpret.overruns.clip_overruns` corrects ends that are later than the
       start of the next activity on the stream. In HIP profiles, streams may be hardware queues.
    2. :func:`~bubbleviz.interpret.overruns.clip_late_ends` corrects the end of the last activity on
       a stream if a wait for the device returned earlier.
    3. :func:`~bubbleviz.interpret.unrecorded_work.find_times_before_first_work` finds the intervals
       in which work launched before the capture may have run.

    Args:
        profile: The profile with the activities that are kept.
        streams: Stream of each activity, or -1 if unknown.
        work: The activities with their launching calls, one row per activity.
        start_ns: Start of the first call, used as the start of the capture.

    Returns:
        profile: The profile with corrected end times. Starts do not change.
        early: Intervals in which ranks may have run unrecorded work launched before the capture.
        notes: Limitations that describe the corrections, then limitations that describe ``early``.
    """
    path = profile.source.path
    are_queues = profile.source.api == "HIP"
    clipped = clip_overruns(path, profile.activities, streams, are_queues=are_queues)
    if not profile.launches_known:
        corrected = replace(profile, activities=clipped.activities)
        return corrected, RankIntervals.make_empty(), clipped.limitations
    clipped = clip_late_ends(path, clipped, work.call, work.launched_ns, profile.calls)
    activities = clipped.activities
    early = find_times_before_first_work(
        activities, clipped.first, work.call, work.launched_ns, profile.calls, start_ns
    )
    notes = (*clipped.limitations, *describe_work_before_capture(path, early))
    return replace(profile, activities=activities), early, notes


@dataclass(frozen=True)
class _CheckedWork:
    """Result of checking the work of a profile for damage and gaps.

    Attributes:
        sound: Mask of the activities that are kept, or None if all are kept.
        is_left_out: Mask of the ranks that are left out, shape (ranks,).
        unrecorded: Intervals in which ranks may have run work that was launched but not recorded.
        located: Limitations of the profile. If all kernels that were left out while reading were
            found, their limitations also give the times at which these kernels may have run.
        notes: Limitations on kernels, copies and calls.
    """

    sound: Bools | None
    is_left_out: Bools
    unrecorded: RankIntervals
    located: tuple[Limitation, ...]
    notes: tuple[Limitation, ...]


def _check_work(linker: Linker, profile: model.Profile) -> _CheckedWork:
    """Determine which work in a linked profile is damaged, repeated or not recorded.

    An activity is kept if its times are valid, its rank is not left out, and it does not repeat
    another row. Repeated and unrecorded work is searched for only if the profile records launches.
    """
    path, activities = profile.source.path, profile.activities
    capture_ns = calling = None
    if profile.launches_known:
        calling = linker.find_calling_processes()
        if linker.start_ns <= linker.end_ns:
            capture_ns = (linker.start_ns, linker.end_ns)
    is_possible, timed = check_times(
        path, activities, linker.launches.call, linker.launches.start_ns, capture_ns
    )
    sound = is_possible
    is_left_out, place_notes = check_places(profile.source, activities, profile.devices, calling)
    if is_left_out.any():
        is_in_place = ~is_left_out[activities.rank]
        sound = is_in_place if sound is None else sound & is_in_place
    lost = _LostWork(timed=tuple(timed), located=profile.limitations)
    if profile.launches_known:
        lost = _find_lost_work(linker, profile, is_possible, timed)
        if len(lost.duplicates):
            sound = np.ones(len(activities), bool) if sound is None else sound
            sound[lost.duplicates] = False
    impossible = model.report_impossible_times(
        path, {f"{profile.source.api} API calls": linker.impossible}
    )
    return _CheckedWork(
        sound=sound,
        is_left_out=is_left_out,
        unrecorded=lost.unrecorded,
        located=lost.located,
        notes=(*lost.lost, *impossible, *lost.timed, *place_notes, *lost.repeated),
    )


@dataclass(frozen=True)
class _LostWork:
    """Work that was launched but not recorded, and work that was recorded twice.

    Attributes:
        timed: Limitations on work whose recorded times are invalid, with the times at which the
            work may have run.
        located: Limitations of the profile. If all kernels that were left out while reading were
            found, their limitations also give the times at which these kernels may have run.
        lost: Limitations on lost kernels and graph launches.
        repeated: Limitations on duplicate rows and on kernels without a duration.
        duplicates: Rows of the activities that repeat another row.
        unrecorded: Intervals in which ranks may have run work that was launched but not recorded.
    """

    timed: tuple[Limitation, ...]
    located: tuple[Limitation, ...]
    lost: tuple[Limitation, ...] = ()
    repeated: tuple[Limitation, ...] = ()
    duplicates: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    unrecorded: RankIntervals = field(default_factory=RankIntervals.make_empty)


def _find_lost_work(
    linker: Linker, profile: model.Profile, is_possible: Bools | None, timed: Sequence[Limitation]
) -> _LostWork:
    """Find lost kernels and graph launches, duplicates, and kernels without a duration.

    Args:
        linker: The linker, after all calls were added.
        profile: The profile. Its launches must be recorded.
        is_possible: Mask of the activities whose times are valid, or None if all times are valid.
        timed: Limitations on invalid times.
    """
    activities, launches = profile.activities, linker.launches
    of_launch = linker.thread, linker.threads.values
    duplicates, zero_length, repeated = check_rows(
        profile.source.path, activities, launches, profile.calls, is_possible
    )
    is_timed = _mask_timed(activities, is_possible, zero_length)
    kernels = find_lost_kernels(
        linker.workless_rows, launches, activities, of_launch, profile.calls
    )
    graphs = find_lost_graphs(profile.calls, launches, activities, of_launch)
    graphs = replace(
        graphs, partial=find_partial_replays(graphs.with_work, launches, activities, of_launch)
    )
    untimed_calls = kernels.calls.take(slice(0))
    if is_timed is not None:
        untimed_calls = _find_untimed_calls(profile, launches, is_timed)
    of_graphs, of_kernels, of_untimed = (
        find_unknown_times(lost_calls, launches, activities, of_launch, is_timed)
        for lost_calls in (graphs.lost, kernels.calls, untimed_calls)
    )
    return _LostWork(
        timed=tuple(locate_untimed(timed, untimed_calls, of_untimed)),
        located=_locate_left_out_kernels(profile, kernels, of_kernels),
        lost=(
            *describe_lost_kernels(
                profile.source.path,
                kernels.processes,
                _count_left_out_kernels(profile),
                sampled=kernels.is_sampled,
                unknown=of_kernels,
            ),
            *graphs.limitations(profile.source, of_graphs),
        ),
        repeated=tuple(locate_untimed(repeated, untimed_calls, of_untimed)),
        duplicates=duplicates,
        unrecorded=join_intervals((of_kernels, of_graphs, of_untimed), len(activities.ranks)),
    )


def _count_left_out_kernels(profile: model.Profile) -> int:
    """Return the number of kernels that were left out while the profile was read."""
    return sum(note.count for note in profile.limitations if note.kind in LEFT_OUT)


def _locate_left_out_kernels(
    profile: model.Profile, kernels: LostKernels, unknown: RankIntervals
) -> tuple[Limitation, ...]:
    """Add the times of kernels left out while reading to the limitations that report these kernels.

    The times are added only if every call was checked for lost kernels (no sampling) and the number
    of calls whose kernels were lost is at least the number of kernels left out while reading.

    Args:
        profile: The profile.
        kernels: Lost kernels of the profile.
        unknown: Intervals in which ranks may have run the lost kernels.
    """
    n_left_out = _count_left_out_kernels(profile)
    if n_left_out and not kernels.is_sampled and len(kernels.calls) >= n_left_out:
        # The lost kernels include all kernels that were left out while reading.
        return tuple(locate_untimed(profile.limitations, kernels.calls, unknown))
    return profile.limitations


def _find_untimed_calls(profile: model.Profile, launches: Launches, is_timed: Bools) -> model.Calls:
    """Return the distinct calls that launched work with invalid times, sorted by row.

    Args:
        profile: The profile.
        launches: Launching calls of all activities.
        is_timed: Mask of the activities whose times are valid.
    """
    call = launches.call[~is_timed]
    return profile.calls.at(find_distinct(call[call != NONE].astype(np.int64)))


def _mask_timed(
    activities: model.Activities, is_possible: Bools | None, zero_length: Ints
) -> Bools | None:
    """Return a mask of the activities whose times are valid, or None if all times are valid.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        is_possible: Mask of the activities whose times are valid, or None if all times are valid.
        zero_length: Rows of the kernels whose duration is 0.
    """
    if is_possible is None and len(zero_length) == 0:
        return None
    is_timed = np.ones(len(activities), bool) if is_possible is None else is_possible.copy()
    is_timed[zero_length] = False
    return is_timed
