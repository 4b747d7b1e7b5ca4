"""The call that launched each activity, long calls, and calls that launched no work.

A kernel and its launching call have the same correlation id and process. Calls are read in blocks
and are not kept in memory. Only long calls and the rows of calls without work are collected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, join_tables, to_slice

#: Initial minimum duration of a long call, in ns. Whenever there are too many long calls, the
#: minimum is doubled. For comparison, a launch takes a few microseconds.
_LONG_NS = 20_000
#: Maximum number of long calls that are kept. They take 7 MB.
_MAX_LONG = 1 << 18
#: Maximum number of calls without work whose rows are kept. If there are more, they are sampled.
_MAX_WORKLESS = 1 << 16


class Launches:
    """Launching call of each activity.

    Several calls may have the same correlation id, for example a runtime API call and the driver
    API call inside it. The call that starts first is the launching call. If two calls start at the
    same time, the call with the smaller row wins.

    Attributes:
        call: Row of each activity's launching call, or -1 if unknown.
        start_ns: Start of each activity's launching call, undefined if the call is unknown.
        ids: Correlation id of each activity.
        by_id: Rows of the activities, sorted by (process, correlation id).
        processes: Distinct processes of the activities, ascending.
        begin: For each process, the position of its first activity in ``by_id``. The extra last
            entry is the length of ``by_id``.
        n_with_id: For each process, the number of activities that have a correlation id. In
            ``by_id``, they precede the activities without an id.
        sharing: Rows of the activities that share their id with another activity of the process,
            ascending.
    """

    def __init__(self, activities: model.Activities) -> None:
        self.call: Codes = np.full(len(activities), NONE, np.int32)
        self.start_ns = np.zeros(len(activities), np.int64)
        self.ids = activities.correlation_id
        # All processes share a single column, so that its memory can be freed at once.
        self.by_id: Codes = np.empty(len(activities), np.int32)
        self.processes = grouping.find_distinct(activities.ranks[:, 0])
        self.begin = np.zeros(len(self.processes) + 1, np.int64)
        self.n_with_id = np.zeros(len(self.processes), np.int64)
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
            # Activities without an id have ``UNCORRELATED``, which is larger than every id.
            id_count = int(np.searchsorted(ids, np.uint32(model.UNCORRELATED)))
            self.n_with_id[index] = id_count
            same_id = np.flatnonzero(ids[1:id_count] == ids[: max(id_count, 1) - 1])
            sharing.extend((rows[same_id], rows[same_id + 1]))
        self.sharing: Codes = grouping.find_distinct(*sharing)

    def match_calls(self, calls: model.Calls) -> tuple[Codes, Ints, Codes]:
        """Match calls with the activities that have the same process and correlation id.

        If an activity already has a call from an earlier block, it is matched with the new call
        only if the new call started earlier. This method does not modify the stored launches.

        Args:
            calls: A block of calls, at least one.

        Returns:
            activity: Row of each matched activity.
            call: Row in ``calls`` of the call that launched each matched activity.
            displaced: Earlier calls that are replaced by new calls, so that they launched no work
                after all. Each replaced call is identified by the row of one of its activities.
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
        """Return a mask of the calls with the same correlation id and process as an activity."""
        has_work = np.zeros(len(calls), bool)
        for process, rows in grouping.list_rows_by_value(model.process_of(calls.thread)):
            activities = self._select_process(process)
            has_work[rows] = np.isin(calls.correlation_id[rows], self.ids[activities])
        return has_work

    def _select_process(self, process: int) -> Codes:
        """Return the rows of a process's activities that have an id, sorted by id."""
        index = int(grouping.find_positions(self.processes, np.array([process]))[0])
        if index == NONE:
            return self.by_id[:0]
        first = self.begin[index]
        return self.by_id[first : first + self.n_with_id[index]]

    def _pair_with_activities(
        self, process: int, rows: Ints, calls: model.Calls
    ) -> tuple[Codes, Ints]:
        """Pair the calls of one process with the activities that have the same id.

        Args:
            process: Process number.
            rows: Rows of the process's calls, at least one.
            calls: All calls of the block.

        Returns:
            activity: Row of each activity that has a call.
            call: Row of the call that launched each activity in ``activity``. If several calls have
                the same id, the call that starts first wins.
        """
        activities = self._select_process(process)
        ids = calls.correlation_id[rows]
        # If only one thread of the process makes calls, the ids are already in ascending order.
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
    """Collects the calls that took at least 20 us.

    The minimum duration is doubled whenever more than ``_MAX_LONG`` calls have been collected.
    """

    def __init__(self) -> None:
        self._shortest_ns = _LONG_NS
        self._blocks: list[model.Calls] = []
        self._count = 0

    def add(self, calls: model.Calls) -> None:
        """Add the calls that take at least the current minimum duration.

        If more than ``_MAX_LONG`` calls are then stored, the minimum is doubled and shorter calls
        are dropped, until at most ``_MAX_LONG`` calls are left.
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
        """Return the long calls in the order they were added, or None if there are none."""
        return join_tables(self._blocks) if self._blocks else None


class WorklessRows:
    """Rows of calls that launched no work, or a sample of them if there are many.

    The sample consists of the rows with the smallest hashes. A regularly spaced sample would be
    biased, because training is repetitive. For example, every second call may be of the same kind.

    Attributes:
        step: Number of calls that each kept row represents, a power of 2.
    """

    def __init__(self, max_rows: int = _MAX_WORKLESS) -> None:
        self._max_rows = max_rows
        self.step = 1
        self._blocks: list[Ints] = []
        self._count = 0

    def add(self, row: Ints) -> None:
        """Add rows of calls without work. About one in ``step`` of the rows is kept.

        If more than the maximum number of rows are then stored, ``step`` is doubled and the stored
        rows are sampled again, until there are few enough.
        """
        sampled = _sample_rows(row, self.step)
        self._blocks.append(sampled)
        self._count += len(sampled)
        while self._count > self._max_rows:
            self.step *= 2
            self._blocks = [_sample_rows(np.concatenate(self._blocks), self.step)]
            self._count = len(self._blocks[0])

    def sample(self, max_rows: int = _MAX_WORKLESS) -> tuple[Ints, int]:
        """Return a sample of up to about ``max_rows`` rows, or all stored rows if there are fewer.

        Returns:
            rows: The sampled rows, ascending.
            step: Number of calls that each sampled row represents, a power of 2.
        """
        step = self.step
        while self._count * self.step > max_rows * step:
            step *= 2
        blocks = [_sample_rows(block, step) for block in self._blocks]
        return grouping.find_distinct(np.empty(0, np.int64), *blocks), step


def _sample_rows(row: Ints, step: int) -> Ints:
    """Return about one in ``step`` of the rows, chosen by a hash of the row number.

    A row that is chosen for one ``step`` is also chosen for every smaller ``step``. The order of
    the rows does not change.
    """
    if step == 1:
        return row
    # Two rounds of multiplication with constants from MurmurHash3. The high bits are mixed best.
    hashed = row.astype(np.uint32)
    hashed *= np.uint32(0x85EBCA6B)
    hashed ^= hashed >> np.uint32(15)
    hashed *= np.uint32(0xC2B2AE35)
    sampled: Ints = row[hashed < np.uint32((1 << 32) // step)]
    return sampled
