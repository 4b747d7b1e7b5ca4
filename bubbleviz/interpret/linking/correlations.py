"""Correlations: the activities that calls launched, by process and correlation id."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Bools, Codes, Ints, widened
from bubbleviz.model.grouping import distinct, found_in, rows_by_value
from bubbleviz.model.profile import UNCORRELATED, Activities, Calls, process_of
from bubbleviz.native.columns import FoundPairs, LaunchFinder
from bubbleviz.native.library import library

#: A look-up table may have so many places for each row that is looked up.
_TABLE = 16


class CorrelationIndex:
    """The activities of each process in order of their correlation ids."""

    def __init__(self, activities: Activities) -> None:
        self.ids = activities.correlation_id
        # One column for all processes, which goes back to the system as a whole.
        self.rows = np.empty(len(activities), np.int32)
        self.of_process: dict[int, slice] = {}
        at = 0
        for process in distinct(activities.ranks[:, 0]).tolist():
            rows = _rows_of(activities, process)
            ids = activities.correlation_id[rows]
            if not (ids[1:] >= ids[:-1]).all():
                rows = rows[np.argsort(ids, kind="stable")]
            self.rows[at : at + len(rows)] = rows
            known = int((ids != UNCORRELATED).sum())
            self.of_process[process] = slice(at, at + known)
            at += len(rows)

    def launched_by(self, calls: Calls) -> tuple[Codes, Ints]:
        """Return pairs (activity, call): rows of what was launched, and of its call.

        Of several rows of one call (runtime API and driver API) the one that started first counts;
        of two that start together the earlier row.
        """
        pairs = [
            self._of_one(process, rows, calls)
            for process, rows in rows_by_value(process_of(calls.thread))
        ]
        activity, call = zip(*pairs, strict=True)
        return np.concatenate(activity), np.concatenate(call)

    def _of_one(self, process: int, rows: Ints, calls: Calls) -> tuple[Codes, Ints]:
        activities = self.rows[self.of_process.get(process, slice(0, 0))]
        ids = calls.correlation_id[rows]
        # Where the thread that calls is the only one of its process, ids ascend already.
        if not (ids[1:] > ids[:-1]).all():
            rows = rows[np.lexsort((calls.start_ns[rows], ids))]
            ids = calls.correlation_id[rows]
            first = np.append(True, ids[1:] != ids[:-1])
            rows, ids = rows[first], ids[first]
        low = bisect_left(activities, int(ids[0]), key=self._id_of)
        high = bisect_right(activities, int(ids[-1]), key=self._id_of)
        within = activities[low:high]
        at = places_of(ids, self.ids[within])
        hit = at != NONE
        return within[hit], rows[at[hit]]

    def holds(self, process: int, ids: npt.NDArray[np.uint32]) -> Bools:
        """Tell which correlation ids of a process anything has."""
        activities = self.rows[self.of_process.get(process, slice(0, 0))]
        return np.isin(ids, self.ids[activities])

    def _id_of(self, activity: int) -> int:
        return int(self.ids[activity])


def _rows_of(activities: Activities, process: int) -> Codes:
    """Return the activities of a process, ascending."""
    ranks = np.flatnonzero(activities.ranks[:, 0] == process)
    if len(ranks) == 1:
        return np.flatnonzero(activities.rank == ranks[0]).astype(np.int32)
    return np.flatnonzero(np.isin(activities.rank, ranks)).astype(np.int32)


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


# Launches: the call that launched each activity, as blocks of calls pass by.


class Launches:
    """The launching call of each activity.

    Of several calls with one id (runtime API and driver API) the one that began first counts; of
    two that began together the earlier row.

    Attributes:
        call: row of the call of each activity; -1 unknown.
        start_ns: when that began.
    """

    def __init__(self, activities: Activities) -> None:
        self.call: Codes = np.full(len(activities), NONE, np.int32)
        self.start_ns = np.zeros(len(activities), np.int64)
        self._last_row = NONE
        self._index = CorrelationIndex(activities)
        self._finder = _finder(self._index)

    def of(self, calls: Calls) -> FoundPairs:
        """Return what some calls (at least one) launched."""
        row = calls.row
        self.call = widened(self.call, row)
        ascending = row[0] > self._last_row and bool((row[1:] > row[:-1]).all())
        self._last_row = max(self._last_row, int(row.max()))
        if self._finder and ascending and self.call.dtype == np.int32:
            columns = row, calls.start_ns, calls.thread, calls.correlation_id
            return self._finder.find(*columns, (self.call, self.start_ns))
        return self._matched(calls)

    def by_id(self) -> Codes:
        """Return the rows of the activities, those of one process by their correlation ids."""
        return self._index.rows

    def have_work(self, calls: Calls) -> Bools:
        """Tell which of some calls share their id with anything that was launched."""
        worked = np.zeros(len(calls), bool)
        for process, rows in rows_by_value(process_of(calls.thread)):
            worked[rows] = self._index.holds(process, calls.correlation_id[rows])
        return worked

    def _matched(self, calls: Calls) -> FoundPairs:
        """Return what some calls launched, by numpy."""
        activity, call = self._index.launched_by(calls)
        taken = self.call[activity] != NONE
        wins = ~taken | (calls.start_ns[call] < self.start_ns[activity])
        lost = activity[taken & wins]
        lost = lost[np.unique(self.call[lost], return_index=True)[1]]
        lost_start_ns = self.start_ns[lost]
        activity, call = activity[wins], call[wins]
        self.call[activity] = calls.row[call]
        self.start_ns[activity] = calls.start_ns[call]
        launched = np.zeros(len(calls), bool)
        launched[call] = True
        return FoundPairs(activity, call, launched, lost, lost_start_ns)


def _finder(index: CorrelationIndex) -> LaunchFinder | None:
    """Return what finds launches faster; None where the compiled part is missing."""
    functions = library()
    if functions is None:
        return None
    stretches = list(index.of_process.values())
    bounds = np.array([*(s.start for s in stretches), len(index.rows)], np.int64)
    known = np.array([s.stop - s.start for s in stretches], np.int64)
    process = np.array(list(index.of_process), np.int64)
    return LaunchFinder(functions, process, bounds, known, index.rows, index.ids)
