"""Synchronisation in an nsys export: recorded events, waits, and the streams of work.

Tables: CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_CUDA_EVENT.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import possible, process_of
from bubbleviz.model.synchronisation import EventRecords, Synchronisation, Waits
from bubbleviz.sources.nsys.export import Export
from bubbleviz.sources.nsys.gpu_work import kernel_stretches
from bubbleviz.sources.nsys.queries import tables_read
from bubbleviz.sources.nsys.scan import Scan, Stretch

_WAITS, _RECORDS = "synchronisation/waits", "synchronisation/event_records"
#: Work beside kernels in the order of the activities: the query for it, and for its streams.
_BESIDE = (
    ("gpu_work/graphs", "gpu_work/graph_streams"),
    ("gpu_work/copies", "gpu_work/copy_streams"),
    ("gpu_work/memsets", "gpu_work/memset_streams"),
)


def read_synchronisation(
    export: Export, scan: Scan
) -> tuple[Synchronisation | None, tuple[Limitation, ...]]:
    """Return what an export holds of waiting, None where that is nothing, and what is lost.

    Raises:
        ProfileError: the export is damaged.
    """
    waits = _columns(export, _WAITS)
    if waits is None or waits.shape[1] == 0:
        return None, tuple(_losses(export, (_WAITS,)))
    records = _columns(export, _RECORDS)
    if records is None:
        records = np.empty((7, 0), np.int64)
    for table in (waits, records):
        table[0] = np.where(table[0] == NONE, NONE, process_of(table[0]))
    return (
        Synchronisation(EventRecords(*records), Waits(*waits), _streams(export, scan)),
        tuple(_losses(export, (_WAITS, _RECORDS))),
    )


def _columns(export: Export, name: str) -> Ints | None:
    return export.columns(name) if export.has(name) else None


def _losses(export: Export, names: tuple[str, ...]) -> Iterator[Limitation]:
    """Yield a limitation for each table that is there and cannot be read."""
    for name in names:
        (table,) = tables_read(name)
        if table in export.schema and not export.has(name):
            lacking = ", ".join(export.lacks(name))
            yield Limitation("what streams waited for", f"{export.path} lacks {lacking}")


def _streams(export: Export, scan: Scan) -> Ints:
    """Return the stream of each activity of the export, in their order; -1 unknown."""
    kernels = kernel_stretches(export, scan)
    parts = []
    if export.has("gpu_work/kernel_streams"):
        stretches = [Stretch("gpu_work/kernel_streams", s.first, s.last) for s in kernels]
        parts = [_of_timed(block) for block in scan.columns(stretches)]
    elif kernels:
        parts = [np.full(_timed(block).sum(), NONE) for block in scan.columns(kernels)]
    for work, streams in _BESIDE:
        if export.has(work):
            known = export.has(streams)
            block = export.columns(streams if known else work)
            parts.append(_of_timed(block) if known else np.full(_timed(block).sum(), NONE))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _of_timed(block: Ints) -> Ints:
    """Return the third column of the rows that become activities."""
    streams: Ints = block[2][_timed(block)]
    return streams


def _timed(block: Ints) -> Bools:
    """Tell which rows become activities: those whose start and end are recorded, and can be."""
    timed: Bools = (block[0] != 0) | (block[1] != 0)
    inside = possible(block[0][timed], block[1][timed])
    if inside is not None:
        timed[timed] = inside
    return timed
