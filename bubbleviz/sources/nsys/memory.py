"""Reads allocations and frees, which nsys records with ``--cuda-memory-usage=true``."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.memory_events import MemoryEvents
from bubbleviz.sources.nsys.export import Export

#: Codes for the two kinds of host memory, pageable and pinned.
_ON_HOST = (0, 1)
#: Operation code for freeing memory.
_FREED = 1


def read_memory(export: Export) -> MemoryEvents | None:
    """Return the device memory allocations and frees in an export, or None if there are none.

    A free has a negative size. Threads are not recorded, so an event applies to all threads of its
    process. The total number of bytes in use is not recorded (-1).

    Raises:
        ProfileError: The export is damaged.
    """
    table = export.query_columns("memory/usage")
    table = table[:, ~np.isin(table[5], _ON_HOST)]
    if table.shape[1] == 0:
        return None
    time_ns, process, device, address, amount, _, operation = (row.copy() for row in table)
    change = np.where(operation == _FREED, -amount, amount)
    total = np.full(len(time_ns), NONE, np.int64)
    return MemoryEvents(time_ns, process, device, address, change, total)
