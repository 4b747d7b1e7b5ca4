"""Limitations of files written by NCCL Inspector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import format_count
from bubbleviz.sources.nccl.events import EventFile, NcclEvents
from bubbleviz.sources.nccl.inspector import INSPECTOR


def list_inspector_limitations(recorded: Sequence[EventFile]) -> Iterator[Limitation]:
    """Yield what files of NCCL Inspector do not contain, with one limitation for all files.

    Since version v4.1 of the format, dropped operations are counted. Missing sequence numbers of
    collectives are then those of small operations, which are left out on purpose. In earlier
    versions, missing sequence numbers are the only sign of dropped operations.

    Args:
        recorded: Event files of all formats.
    """
    files = [file for file in recorded if file.format == INSPECTOR]
    n_gaps = [count_gaps(file.events) for file in files]
    dropped = LimitationKind.OPERATIONS_DROPPED
    ring = "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE and NCCL_INSPECTOR_DUMP_P2P_RING_SIZE"
    interval = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
    small = "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0"
    notes = (
        (
            "operations that NCCL Inspector dropped",
            [file.n_dropped for file in files],
            f"its ring buffers overflowed, or the job was killed; set larger {ring}, or a smaller "
            f"{interval}",
            dropped,
        ),
        (
            "collectives that NCCL Inspector did not write",
            [0 if file.counts_drops else n for file, n in zip(files, n_gaps, strict=True)],
            "their sequence numbers are missing, because NCCL 2.28 writes only the latest "
            "operation of each communicator at each interval, and later versions leave out small "
            f"operations; set {interval}=0 and {small}",
            dropped,
        ),
        (
            "collectives too small for NCCL Inspector",
            [
                max(n - file.n_dropped, 0) if file.counts_drops else 0
                for file, n in zip(files, n_gaps, strict=True)
            ],
            f"their sequence numbers are missing; to include them, set {small}",
            LimitationKind.OTHER,
        ),
        (
            "durations measured on the host",
            [file.n_host_timed for file in files],
            "the GPU's times were not recorded, so these durations include delays of the host",
            LimitationKind.OTHER,
        ),
    )
    for subject, counts, reason, kind in notes:
        if n_affected := sum(count > 0 for count in counts):
            where = f"{format_count(n_affected, 'file')} of {len(files):,}"
            yield Limitation(subject, f"{where}: {reason}", sum(counts), kind)


def count_gaps(events: NcclEvents) -> int:
    """Count the sequence numbers that are missing between the first and last collective.

    The collectives of a communicator with the same name are numbered without gaps.
    """
    rows = np.flatnonzero((events.peer == NONE) & (events.sequence >= 0))
    if len(rows) == 0:
        return 0
    groups = group_rows(events.communicator[rows], events.rank[rows], events.name[rows])
    sequence = events.sequence[rows]
    first, last = group_extents(groups.of_row, len(groups), sequence, sequence)
    numbers = group_rows(groups.of_row, sequence)
    n_distinct = np.bincount(groups.of_row[numbers.first], minlength=len(groups))
    return int((last - first + 1 - n_distinct).sum(dtype=object))
