"""Reads CUDA event records and waits from an nsys export."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import process_of
from bubbleviz.model.synchronization import EventRecords, Synchronization, Waits
from bubbleviz.sources.nsys.export import Export
from bubbleviz.sources.nsys.queries import NOTHING, table_of

_WAITS, _RECORDS = "synchronization/waits", "synchronization/event_records"


def read_synchronization(
    export: Export,
) -> tuple[Synchronization | None, tuple[Limitation, ...]]:
    """Read the synchronization events in an export.

    Returns:
        synchronization: Event records and waits, or None if no waits were recorded.
        limitations: One limitation per table that exists but lacks required columns. Event records
            are checked only if there are waits.

    Raises:
        ProfileError: The export is damaged.
    """
    waits = export.query_columns(_WAITS)
    waits = waits[:, waits[6] != NOTHING]
    queries = (_WAITS, _RECORDS) if waits.shape[1] else (_WAITS,)
    losses = tuple(
        Limitation(
            "stream waits",
            f"{export.path} lacks {', '.join(missing)}, so it is unknown what streams waited for",
        )
        for name in queries
        for missing in (export.find_missing(name),)
        if table_of(name) in export.schema and not export.has(name)
    )
    if not waits.shape[1]:
        return None, losses
    records = export.query_columns(_RECORDS)
    for table in (waits, records):
        table[0] = np.where(table[0] == NONE, NONE, process_of(table[0]))
    return Synchronization(EventRecords(*records), Waits(*waits)), losses
