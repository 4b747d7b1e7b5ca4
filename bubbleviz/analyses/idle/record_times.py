"""Record times: when hosts made the records of events."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, found_in
from bubbleviz.model.profile import UNCORRELATED, Calls, process_of
from bubbleviz.model.synchronisation import EventRecords


class RecordTimes:
    """When the host made records of events, as blocks of calls pass by."""

    def __init__(self, records: EventRecords) -> None:
        """Take the records."""
        self._processes = distinct(records.process)
        key = self._keys(records.process, records.correlation_id)
        self._wanted, self._of_record = np.unique(key, return_inverse=True)
        self._called_ns = np.full(len(self._wanted), np.iinfo(np.int64).max)

    def _keys(self, process: Ints, ids: Ints) -> Ints:
        """Return a number for each process and correlation id; -1 for those without."""
        at = found_in(self._processes, process)
        known = (at != NONE) & (process != NONE) & (ids >= 0) & (ids < UNCORRELATED)
        return np.where(known, at << 32 | ids, NONE)

    def add(self, calls: Calls) -> None:
        """Take a block of calls; of several with one id the first counts."""
        if len(self._wanted) == 0:
            return
        ids = calls.correlation_id.astype(np.int64)
        at = found_in(self._wanted, self._keys(process_of(calls.thread), ids))
        rows = np.flatnonzero(at != NONE)
        rows = rows[self._wanted[at[rows]] != NONE]
        np.minimum.at(self._called_ns, at[rows], calls.start_ns[rows])

    def called_ns(self) -> tuple[Ints, Ints]:
        """Return the rows of the records whose call was found, and when it began."""
        called_ns = self._called_ns[self._of_record]
        rows = np.flatnonzero(called_ns != np.iinfo(np.int64).max)
        return rows, called_ns[rows]
