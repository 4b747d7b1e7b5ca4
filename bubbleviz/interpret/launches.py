"""Launches: the call that launched each activity, long calls, and calls without work.

The launching call of a kernel has its correlation id and its process. Calls come in blocks and are
not kept, except those in which a thread spent real time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, join_tables, to_slice

#: A call is long from here on, as long as there are not too many; a launch takes some us.
_LONG_NS = 20_000
#: So many long calls are kept at most, give or take a block: 7 MB.
_MOST_LONG = 1 << 18
#: So many calls without work are kept, or, of more, about half as many.
_MOST_WORKLESS = 1 << 16


class Launches:
    """The launching call of each activity.

    Of several calls with one id (runtime API and driver API) the one that began first counts; of
    two that began together the earlier row.

    Attributes:
        call: row of the call of each activity; -1 unknown.
        start_ns: when that began.
        ids: their correlation ids.
        by_id: rows of the activities, process by process, in order of these ids.
        processes: of the activities, ascending.
        begin: where the rows of each begin; one more for the end.
        known: how many rows of each have an id; they come first.
        sharing: rows of the same process that have one id, ascending.
    """

    def __init__(self, activities: model.Activities) -> None:
        self.call: Codes = np.full(len(activities), NONE, np.int32)
        self.start_ns = np.zeros(len(activities), np.int64)
        self.ids = activities.correlation_id
        # One column for all processes, which goes back to the system as a whole.
        self.by_id: Codes = np.empty(len(activities), np.int32)
        self.processes = grouping.find_distinct(activities.ranks[:, 0])
        self.begin = np.zeros(len(self.processes) + 1, np.int64)
        self.known = np.zeros(len(self.processes), np.int64)
        sharing = [np.empty(0, np.int32)]
        at, rows_of = 0, activities.make_rank_lookup()
        for place, process in enumerate(self.processes.tolist()):
            ranks = np.flatnonzero(activities.ranks[:, 0] == process)
            of_ranks = [rows_of(rank) for rank in ranks.tolist()]
            rows = np.sort(np.concatenate(of_ranks)) if len(of_ranks) > 1 else of_ranks[0]
            ids = self.ids[to_slice(rows)]
            if not (ids[1:] >= ids[:-1]).all():
                order = np.argsort(ids, kind="stable")
                rows, ids = rows[order], ids[order]
            self.by_id[at : at + len(rows)] = rows
            at = self.begin[place + 1] = at + len(rows)
            known = int(np.searchsorted(ids, np.uint32(model.UNCORRELATED)))
            self.known[place] = known
            same = np.flatnonzero(ids[1:known] == ids[: max(known, 1) - 1])
            sharing.extend((rows[same], rows[same + 1]))
        self.sharing: Codes = grouping.find_distinct(*sharing)

    def match_calls(self, calls: model.Calls) -> tuple[Codes, Ints, Codes]:
        """Return (activity, call): what some calls (at least one) launch.

        And a row of what each earlier call loses to them, which has no work after all.
        """
        of_process = grouping.list_rows_by_value(model.process_of(calls.thread))
        pairs = [self._pair_with_activities(process, rows, calls) for process, rows in of_process]
        activity, call = (np.concatenate(column) for column in zip(*pairs, strict=True))
        taken = self.call[activity] != NONE
        wins = ~taken | (calls.start_ns[call] < self.start_ns[activity])
        lost = activity[taken & wins]
        lost = lost[np.unique(self.call[lost], return_index=True)[1]]
        return activity[wins], call[wins], lost

    def find_calls_with_work(self, calls: model.Calls) -> Bools:
        """Tell which of some calls share their id with anything that was launched."""
        worked = np.zeros(len(calls), bool)
        for process, rows in grouping.list_rows_by_value(model.process_of(calls.thread)):
            activities = self._select_process(process)
            worked[rows] = np.isin(calls.correlation_id[rows], self.ids[activities])
        return worked

    def _select_process(self, process: int) -> Codes:
        """Return the activities of a process that have an id, in the order of these."""
        place = int(grouping.find_positions(self.processes, np.array([process]))[0])
        first = self.begin[place]
        return self.by_id[first : first + self.known[place]] if place != NONE else self.by_id[:0]

    def _pair_with_activities(
        self, process: int, rows: Ints, calls: model.Calls
    ) -> tuple[Codes, Ints]:
        """Return pairs (activity, row of its call) of the calls of one process."""
        activities = self._select_process(process)
        ids = calls.correlation_id[rows]
        # Where the thread that calls is the only one of its process, ids ascend already.
        if not (ids[1:] > ids[:-1]).all():
            first = grouping.find_first_rows(ids.astype(np.int64), calls.start_ns[rows])
            rows, ids = rows[first], ids[first]
        low = bisect_left(activities, ids[0], key=self.ids.__getitem__)
        within = activities[low : bisect_right(activities, ids[-1], key=self.ids.__getitem__)]
        at = grouping.find_positions(ids, self.ids[within])
        return within[at != NONE], rows[at[at != NONE]]


class LongCalls:
    """Collects the calls in which a thread spent real time; of too many, only the longer ones."""

    def __init__(self) -> None:
        self._shortest_ns = _LONG_NS
        self._blocks: list[model.Calls] = []
        self._count = 0

    def add(self, calls: model.Calls) -> None:
        """Keep those of some calls that are long."""
        some = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
        if len(some) == 0:
            return
        self._blocks.append(some)
        self._count += len(some)
        while self._count > _MOST_LONG:
            self._shortest_ns *= 2
            calls = join_tables(self._blocks)
            calls = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
            self._blocks, self._count = [calls], len(calls)

    def collect(self) -> model.Calls | None:
        """Return the long calls in the order in which they came; None where there are none."""
        return join_tables(self._blocks) if self._blocks else None


class WorklessRows:
    """Rows of calls without work; of many, those with the lowest hashes.

    Training repeats itself, so that each second or fourth call may be of one kind.

    Attributes:
        step: how many calls each of them stands for.
    """

    def __init__(self, max_rows: int = _MOST_WORKLESS) -> None:
        self._most = max_rows
        self.step = 1
        self._blocks: list[Ints] = []
        self._kept = 0

    def add(self, row: Ints) -> None:
        """Note the rows of some calls without work."""
        chosen = _sample_rows(row, self.step)
        self._blocks.append(chosen)
        self._kept += len(chosen)
        while self._kept > self._most:
            self.step *= 2
            self._blocks = [_sample_rows(np.concatenate(self._blocks), self.step)]
            self._kept = len(self._blocks[0])

    def sample(self, max_rows: int = _MOST_WORKLESS) -> tuple[Ints, int]:
        """Return the rows, ascending, or a part of them of about so many; and its step."""
        step = self.step
        while self._kept * self.step > max_rows * step:
            step *= 2
        blocks = [_sample_rows(block, step) for block in self._blocks]
        return grouping.find_distinct(np.empty(0, np.int64), *blocks), step


def _sample_rows(row: Ints, step: int) -> Ints:
    """Return one row of ``step``, whatever the distances between them."""
    if step == 1:
        return row
    # Two rounds of multiplication, with constants of MurmurHash3; the high bits are mixed best.
    mixed = row.astype(np.uint32)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0xC2B2AE35)
    chosen: Ints = row[mixed < np.uint32((1 << 32) // step)]
    return chosen
