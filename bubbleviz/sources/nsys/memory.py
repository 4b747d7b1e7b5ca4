"""Allocations and frees in an nsys export (nsys profile --cuda-memory-usage=true)."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.memory_events import MemoryEvents
from bubbleviz.sources.nsys.export import Export

#: Kinds of memory that are on the host: pageable and pinned.
_ON_HOST = (0, 1)
_FREED = 1


def read_memory(export: Export) -> MemoryEvents | None:
    """Return the allocations and frees of device memory in an export, or None if there are none.

    The table contains processes but no threads, so each event counts for all threads of its
    process. The change of a free is negative. The number of bytes in use is unknown (-1).

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
