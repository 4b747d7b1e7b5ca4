"""Synchronisation in a trace of PyTorch's profiler: recorded events, waits, streams of work.

They are recorded where ``enable_cuda_sync_events`` is set in the profiler's experimental
configuration (libkineto/src/CuptiActivity.cpp):

========== ===================================================================================
category   arguments
========== ===================================================================================
cuda_sync  ``stream`` that waits, or is waited for; ``wait_on_cuda_event_id``, and of its last
           record known then ``wait_on_stream`` and ``wait_on_cuda_event_record_corr_id``
cuda_event ``event_id``, ``stream``: a record, of newer versions only
========== ===================================================================================

Work has its stream as its thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import looked_up
from bubbleviz.model.profile import UNCORRELATED, process_of
from bubbleviz.model.synchronisation import EventRecords, Synchronisation, Waits
from bubbleviz.sources.kineto.event_columns import CORRELATION, THREAD, EventCollector, EventRows
from bubbleviz.sources.kineto.events import (
    ExactKinetoEvent,
    KinetoEvent,
    SynchronisationArgs,
    whole_number,
)
from bubbleviz.sources.trace_events.columns import times_ns

_STREAM = re.compile(r"(?:stream )?([0-9]{1,9})\Z")
_DEVICES = 1 << 22
#: Columns: start, correlation id, device, stream, event, stream and correlation id of its record.
_START, _CORRELATION, _DEVICE, _STREAM_ID, _EVENT, _RECORD_STREAM, _RECORD = range(7)


def synchronisation_of(
    collector: EventCollector, base_ns: int, work: EventRows, calls: EventRows, threads: Ints
) -> Synchronisation | None:
    """Return what a trace holds of waiting; None where that is nothing.

    Args:
        collector: of its events.
        base_ns: when its first event began.
        work: kernels and copies.
        calls: of the CUDA API.
        threads: by the numbers that columns hold.
    """
    if not collector.waits:
        return None
    waits, told = _columns(collector.waits), _columns(collector.records)
    process = process_of(threads[calls[THREAD]])

    def processes(ids: Ints) -> Ints:
        return looked_up((calls[CORRELATION],), process, (ids,))

    # A wait tells its record, too, on its own device: events are looked up by context.
    own = waits[:, (waits[_RECORD_STREAM] != NONE) & (waits[_RECORD] != NONE)]
    device, event, stream, call = (
        np.concatenate(columns)
        for columns in (
            (told[_DEVICE], own[_DEVICE]),
            (told[_EVENT], own[_EVENT]),
            (told[_STREAM_ID], own[_RECORD_STREAM]),
            (told[_CORRELATION], own[_RECORD]),
        )
    )
    unknown = np.full(len(event), NONE, np.int64)
    streams = [_stream(tid) for _, tid in collector.threads.values]
    return Synchronisation(
        EventRecords(processes(call), device, stream, event, unknown, call, unknown.copy()),
        Waits(
            processes(waits[_CORRELATION]),
            waits[_DEVICE].copy(),
            waits[_STREAM_ID].copy(),
            waits[_EVENT].copy(),
            np.full(waits.shape[1], NONE, np.int64),
            waits[_CORRELATION].copy(),
            waits[_START] - base_ns,
        ),
        np.array(streams, np.int64)[work[THREAD]],
    )


def _columns(events: Sequence[KinetoEvent | ExactKinetoEvent]) -> Ints:
    """Return the columns of waits or records, shape (7, events)."""
    start_ns = times_ns([event.ts for event in events])
    ids = np.array([_ids(event) for event in events], np.int64).reshape(-1, 6)
    return np.concatenate((start_ns[None], ids.T))


def _ids(event: KinetoEvent | ExactKinetoEvent) -> tuple[int, ...]:
    args = event.args
    if not isinstance(args, SynchronisationArgs):
        return (NONE,) * 6
    return (
        whole_number(args.correlation, UNCORRELATED),
        whole_number(args.device, _DEVICES),
        whole_number(args.stream, UNCORRELATED),
        whole_number(args.event if args.waited is None else args.waited, UNCORRELATED),
        whole_number(args.recorded_stream, UNCORRELATED),
        whole_number(args.recorded, UNCORRELATED),
    )


def _stream(name: int | str | None) -> int:
    """Return the number of the stream that a thread of a device stands for; -1 unknown."""
    found = _STREAM.match(str(name))
    return NONE if found is None else int(found[1])
