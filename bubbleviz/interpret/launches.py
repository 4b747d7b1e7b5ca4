"""Launches: the call that launched each activity, and what calls alone tell, block by block.

A kernel's launching call has its correlation id and its process. Calls come in blocks and are not
kept, but for those in which a thread spent real time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined, widened
from bubbleviz.model.grouping import distinct, found_in, rows_by_value
from bubbleviz.model.profile import UNCORRELATED, Activities, Calls, process_of
from bubbleviz.native.columns import FoundPairs, LaunchFinder
from bubbleviz.native.library import library

#: A look-up table may have so many places for each row that is looked up.
_TABLE = 16
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
        by_id: rows of the activities, process by process, in order of their correlation ids.
    """

    def __init__(self, activities: Activities) -> None:
        self.call: Codes = np.full(len(activities), NONE, np.int32)
        self.start_ns = np.zeros(len(activities), np.int64)
        self._last_row = NONE
        self._ids = activities.correlation_id
        # One column for all processes, which goes back to the system as a whole.
        self.by_id: Codes = np.empty(len(activities), np.int32)
        # The rows of each process that have an id.
        self._known: dict[int, slice] = {}
        at = 0
        for process in distinct(activities.ranks[:, 0]).tolist():
            ranks = np.flatnonzero(activities.ranks[:, 0] == process)
            one = len(ranks) == 1
            of_process = activities.rank == ranks[0] if one else np.isin(activities.rank, ranks)
            rows = np.flatnonzero(of_process).astype(np.int32)
            ids = self._ids[rows]
            if not (ids[1:] >= ids[:-1]).all():
                rows = rows[np.argsort(ids, kind="stable")]
            self.by_id[at : at + len(rows)] = rows
            self._known[process] = slice(at, at + int((ids != UNCORRELATED).sum()))
            at += len(rows)
        self._finder = None
        if functions := library():
            stretches = list(self._known.values())
            bounds = np.array([*(s.start for s in stretches), at], np.int64)
            known = np.array([s.stop - s.start for s in stretches], np.int64)
            processes = np.array(list(self._known), np.int64)
            columns = processes, bounds, known, self.by_id, self._ids
            self._finder = LaunchFinder(functions, *columns)

    def of(self, calls: Calls) -> FoundPairs:
        """Return what some calls (at least one) launched."""
        row = calls.row
        self.call = widened(self.call, row)
        ascending = row[0] > self._last_row and bool((row[1:] > row[:-1]).all())
        self._last_row = max(self._last_row, int(row.max()))
        if self._finder and ascending and self.call.dtype == np.int32:
            columns = row, calls.start_ns, calls.thread, calls.correlation_id
            return self._finder.find(*columns, (self.call, self.start_ns))
        of_process = rows_by_value(process_of(calls.thread))
        pairs = [self._pairs(process, rows, calls) for process, rows in of_process]
        activity, call = (np.concatenate(column) for column in zip(*pairs, strict=True))
        taken = self.call[activity] != NONE
        wins = ~taken | (calls.start_ns[call] < self.start_ns[activity])
        lost = activity[taken & wins]
        lost = lost[np.unique(self.call[lost], return_index=True)[1]]
        lost_start_ns = self.start_ns[lost]
        activity, call = activity[wins], call[wins]
        self.call[activity] = row[call]
        self.start_ns[activity] = calls.start_ns[call]
        launched = np.zeros(len(calls), bool)
        launched[call] = True
        return FoundPairs(activity, call, launched, lost, lost_start_ns)

    def have_work(self, calls: Calls) -> Bools:
        """Tell which of some calls share their id with anything that was launched."""
        worked = np.zeros(len(calls), bool)
        for process, rows in rows_by_value(process_of(calls.thread)):
            activities = self._of_process(process)
            worked[rows] = np.isin(calls.correlation_id[rows], self._ids[activities])
        return worked

    def _of_process(self, process: int) -> Codes:
        """Return the activities of a process that have an id, in the order of these."""
        return self.by_id[self._known.get(process, slice(0, 0))]

    def _pairs(self, process: int, rows: Ints, calls: Calls) -> tuple[Codes, Ints]:
        """Return pairs (activity, row of its call) of the calls of one process."""
        activities = self._of_process(process)
        ids = calls.correlation_id[rows]
        # Where the thread that calls is the only one of its process, ids ascend already.
        if not (ids[1:] > ids[:-1]).all():
            rows = rows[np.lexsort((calls.start_ns[rows], ids))]
            ids = calls.correlation_id[rows]
            first = np.append(True, ids[1:] != ids[:-1])
            rows, ids = rows[first], ids[first]

        def id_of(activity: int) -> int:
            return int(self._ids[activity])

        low = bisect_left(activities, int(ids[0]), key=id_of)
        high = bisect_right(activities, int(ids[-1]), key=id_of)
        within = activities[low:high]
        at = places_of(ids, self._ids[within])
        hit = at != NONE
        return within[hit], rows[at[hit]]


def places_of(ids: npt.NDArray[np.uint32], wanted: npt.NDArray[np.uint32]) -> Codes:
    """Return the place among ``ids`` of each wanted one, -1 none; both ascend, ``ids`` strictly.

    Ids are handed out one by one, so that a table of all between the first and the last is short.
    """
    low, span = int(ids[0]), int(ids[-1]) - int(ids[0]) + 1
    if span <= _TABLE * (len(ids) + len(wanted)):
        table = np.full(span, NONE, np.int32)
        table[ids - ids[0]] = np.arange(len(ids), dtype=np.int32)
        places: Codes = table[wanted - np.uint32(low)]
        return places
    return found_in(ids, wanted)


class LongCalls:
    """Collects the calls in which a thread spent real time; of too many, only the longer ones."""

    def __init__(self, most: int = _MOST_LONG) -> None:
        self._most = most
        self._shortest_ns = _LONG_NS
        self._blocks: list[Calls] = []
        self._count = 0

    def add(self, calls: Calls) -> None:
        """Keep those of some calls that are long."""
        some = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
        if len(some) == 0:
            return
        self._blocks.append(some)
        self._count += len(some)
        while self._count > self._most:
            self._shortest_ns *= 2
            calls = joined(self._blocks)
            calls = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
            self._blocks, self._count = [calls], len(calls)

    def collected(self) -> Calls | None:
        """Return the long calls in the order in which they came; None where there are none."""
        return joined(self._blocks) if self._blocks else None


class WorklessRows:
    """Rows of calls without work; of many, those with the lowest hashes.

    Training repeats itself, so that each second or fourth call may be of one kind.

    Attributes:
        step: how many calls each of them stands for.
    """

    def __init__(self, most: int = _MOST_WORKLESS) -> None:
        self._most = most
        self.step = 1
        self._blocks: list[Ints] = []
        self._kept = 0

    def add(self, row: Ints) -> None:
        """Note the rows of some calls without work."""
        chosen = _sampled(row, self.step)
        self._blocks.append(chosen)
        self._kept += len(chosen)
        while self._kept > self._most:
            self.step *= 2
            self._blocks = [_sampled(np.concatenate(self._blocks), self.step)]
            self._kept = len(self._blocks[0])

    def sample(self, most: int = _MOST_WORKLESS) -> tuple[Ints, int]:
        """Return the rows, ascending, or a part of them of about so many; and its step."""
        step = self.step
        while self._kept * self.step > most * step:
            step *= 2
        blocks = [_sampled(block, step) for block in self._blocks]
        return distinct(np.empty(0, np.int64), *blocks), step


def _sampled(row: Ints, step: int) -> Ints:
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
