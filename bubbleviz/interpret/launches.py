"""Launches: the call that launched each activity, long calls, and calls without work.

A kernel has the correlation id and the process of its launching call. Calls are read in blocks,
which are not kept; only long calls and the rows of calls without work are collected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, join_tables, to_slice

#: Minimum duration of a long call, in ns. It doubles while there are too many. A launch takes a few
#: microseconds.
_LONG_NS = 20_000
#: Maximum number of long calls that are kept: 7 MB.
_MAX_LONG = 1 << 18
#: Maximum number of rows of calls without work that are kept. Above it, they are sampled.
_MAX_WORKLESS = 1 << 16


class Launches:
    """Launching call of each activity.

    Several calls may have the same id, for example those of the runtime API and the driver API. The
    call that starts first is the launching call; at equal starts, the one with the smaller row.

    Attributes:
        call: Row of the launching call of each activity, or -1 if unknown.
        start_ns: Start of the launching call, undefined if the call is unknown.
        ids: Correlation id of each activity.
        by_id: Rows of the activities, sorted by (process, id).
        processes: Processes of the activities, ascending.
        begin: Start of each process in ``by_id``, followed by the length of ``by_id``.
        known: Number of activities of each process with an id. They come first.
        sharing: Rows that share their id with another row of the process, ascending.
    """

    def __init__(self, activities: model.Activities) -> None:
        self.call: Codes = np.full(len(activities), NONE, np.int32)
        self.start_ns = np.zeros(len(activities), np.int64)
        self.ids = activities.correlation_id
        # A single column for all processes, so that its memory can be freed as a whole.
        self.by_id: Codes = np.empty(len(activities), np.int32)
        self.processes = grouping.find_distinct(activities.ranks[:, 0])
        self.begin = np.zeros(len(self.processes) + 1, np.int64)
        self.known = np.zeros(len(self.processes), np.int64)
        sharing = [np.empty(0, np.int32)]
        stop, rows_of = 0, activities.make_rank_lookup()
        for index, process in enumerate(self.processes.tolist()):
            ranks = np.flatnonzero(activities.ranks[:, 0] == process)
            of_ranks = [rows_of(rank) for rank in ranks.tolist()]
            rows = np.sort(np.concatenate(of_ranks)) if len(of_ranks) > 1 else of_ranks[0]
            ids = self.ids[to_slice(rows)]
            if not (ids[1:] >= ids[:-1]).all():
                order = np.argsort(ids, kind="stable")
                rows, ids = rows[order], ids[order]
            self.by_id[stop : stop + len(rows)] = rows
            stop = self.begin[index + 1] = stop + len(rows)
            # Activities without an id have the largest one.
            n_with_id = int(np.searchsorted(ids, np.uint32(model.UNCORRELATED)))
            self.known[index] = n_with_id
            same_id = np.flatnonzero(ids[1:n_with_id] == ids[: max(n_with_id, 1) - 1])
            sharing.extend((rows[same_id], rows[same_id + 1]))
        self.sharing: Codes = grouping.find_distinct(*sharing)

    def match_calls(self, calls: model.Calls) -> tuple[Codes, Ints, Codes]:
        """Match calls with the activities that have the same id.

        If an activity already has a call from an earlier block, it is matched only if the new call
        started earlier. The new call then replaces the old one.

        Args:
            calls: The calls, at least one.

        Returns:
            activity: Row of the activity of each pair.
            call: Row in ``calls`` of the call that launched it.
            displaced: Row of one activity of each old call that is replaced. Such an old call has
                no work after all.
        """
        of_process = grouping.list_rows_by_value(model.process_of(calls.thread))
        pairs = [self._pair_with_activities(process, rows, calls) for process, rows in of_process]
        activity, call = (np.concatenate(column) for column in zip(*pairs, strict=True))
        has_call = self.call[activity] != NONE
        is_earlier = ~has_call | (calls.start_ns[call] < self.start_ns[activity])
        displaced = activity[has_call & is_earlier]
        displaced = displaced[np.unique(self.call[displaced], return_index=True)[1]]
        return activity[is_earlier], call[is_earlier], displaced

    def find_calls_with_work(self, calls: model.Calls) -> Bools:
        """Return a mask of the calls that share their id with an activity of their process."""
        has_work = np.zeros(len(calls), bool)
        for process, rows in grouping.list_rows_by_value(model.process_of(calls.thread)):
            activities = self._select_process(process)
            has_work[rows] = np.isin(calls.correlation_id[rows], self.ids[activities])
        return has_work

    def _select_process(self, process: int) -> Codes:
        """Return the activities of a process that have an id, in order of their ids."""
        index = int(grouping.find_positions(self.processes, np.array([process]))[0])
        if index == NONE:
            return self.by_id[:0]
        first = self.begin[index]
        return self.by_id[first : first + self.known[index]]

    def _pair_with_activities(
        self, process: int, rows: Ints, calls: model.Calls
    ) -> tuple[Codes, Ints]:
        """Pair the calls of one process with the activities that have the same id.

        Args:
            process: The process.
            rows: Rows of its calls, at least one.
            calls: All calls of the block.

        Returns:
            activity: Row of the activity of each pair.
            call: Row of its call. If several calls have the same id, the first one to start.
        """
        activities = self._select_process(process)
        ids = calls.correlation_id[rows]
        # The ids of a process ascend already if only one of its threads makes calls.
        if not (ids[1:] > ids[:-1]).all():
            first = grouping.find_first_rows(ids.astype(np.int64), calls.start_ns[rows])
            rows, ids = rows[first], ids[first]
        low = bisect_left(activities, ids[0], key=self.ids.__getitem__)
        high = bisect_right(activities, ids[-1], key=self.ids.__getitem__)
        candidates = activities[low:high]
        position = grouping.find_positions(ids, self.ids[candidates])
        has_call = position != NONE
        return candidates[has_call], rows[position[has_call]]


class LongCalls:
    """Collects the calls in which a thread spent at least 20 us.

    The minimum doubles whenever more than ``_MAX_LONG`` calls have been collected.
    """

    def __init__(self) -> None:
        self._shortest_ns = _LONG_NS
        self._blocks: list[model.Calls] = []
        self._count = 0

    def add(self, calls: model.Calls) -> None:
        """Keep the calls that take at least the current minimum duration, and drop all others.

        If more than ``_MAX_LONG`` calls are then kept, the minimum is doubled until they are few
        enough.
        """
        long_calls = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
        if len(long_calls) == 0:
            return
        self._blocks.append(long_calls)
        self._count += len(long_calls)
        while self._count > _MAX_LONG:
            self._shortest_ns *= 2
            calls = join_tables(self._blocks)
            calls = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
            self._blocks, self._count = [calls], len(calls)

    def collect(self) -> model.Calls | None:
        """Return the long calls in the order of their addition, or None if there are none."""
        return join_tables(self._blocks) if self._blocks else None


class WorklessRows:
    """Rows of calls without work. If there are many, those with the smallest hashes are kept.

    The sample is taken by hash because training repeats itself: every second call, for example, may
    be of the same kind.

    Attributes:
        step: Number of calls that each kept row stands for.
    """

    def __init__(self, max_rows: int = _MAX_WORKLESS) -> None:
        self._max_rows = max_rows
        self.step = 1
        self._blocks: list[Ints] = []
        self._count = 0

    def add(self, row: Ints) -> None:
        """Add the rows of calls without work, or a sample of one in ``step`` of them.

        If more than the maximum number of rows are then kept, ``step`` is doubled until they are
        few enough.
        """
        sampled = _sample_rows(row, self.step)
        self._blocks.append(sampled)
        self._count += len(sampled)
        while self._count > self._max_rows:
            self.step *= 2
            self._blocks = [_sample_rows(np.concatenate(self._blocks), self.step)]
            self._count = len(self._blocks[0])

    def sample(self, max_rows: int = _MAX_WORKLESS) -> tuple[Ints, int]:
        """Return a sample of about ``max_rows`` rows, or all kept rows if there are not as many.

        Returns:
            rows: The rows, ascending.
            step: Number of calls that each row stands for, a power of 2.
        """
        step = self.step
        while self._count * self.step > max_rows * step:
            step *= 2
        blocks = [_sample_rows(block, step) for block in self._blocks]
        return grouping.find_distinct(np.empty(0, np.int64), *blocks), step


def _sample_rows(row: Ints, step: int) -> Ints:
    """Return about one in ``step`` of the rows, chosen by a hash of the row number.

    A row that is chosen for a step is also chosen for every smaller step.
    """
    if step == 1:
        return row
    # Two rounds of multiplication with constants of MurmurHash3. The high bits are mixed best.
    hashed = row.astype(np.uint32)
    hashed *= np.uint32(0x85EBCA6B)
    hashed ^= hashed >> np.uint32(15)
    hashed *= np.uint32(0xC2B2AE35)
    sampled: Ints = row[hashed < np.uint32((1 << 32) // step)]
    return sampled
