"""Launches: the call that launched each activity, as blocks of calls pass by."""

from __future__ import annotations

import numpy as np

from bubbleviz.interpret.linking.correlations import CorrelationIndex
from bubbleviz.model.columns import NONE, Bools, Codes, widened
from bubbleviz.model.grouping import rows_by_value
from bubbleviz.model.profile import Activities, Calls, process_of
from bubbleviz.native.launching import FoundPairs, LaunchFinder
from bubbleviz.native.library import library


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
