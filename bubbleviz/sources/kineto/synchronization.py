"""Reads stream waits, CUDA event records and stream ids from a trace of PyTorch's profiler.

Waits and event records are recorded only if ``enable_cuda_sync_events`` is set in the profiler's
experimental configuration (libkineto/src/CuptiActivity.cpp):

========== =====================================================================================
category   arguments
========== =====================================================================================
cuda_sync  ``stream`` that waits, or is waited for; ``wait_on_cuda_event_id``; and for the last
           record of the event, if known, ``wait_on_stream`` and
           ``wait_on_cuda_event_record_corr_id``
cuda_event ``event_id`` and ``stream`` of a record; in newer versions only
========== =====================================================================================

A kernel's or copy's thread id is its stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import lookup_values
from bubbleviz.model.profile import UNCORRELATED, process_of
from bubbleviz.model.synchronization import EventRecords, Synchronization, Waits
from bubbleviz.sources.kineto.events import EventCollector, EventRows, KinetoArgs, parse_number

_STREAM = re.compile(r"(?:stream )?([0-9]{1,9})\Z")
_DEVICES = 1 << 22


def read_synchronization(
    collector: EventCollector, base_ns: int, calls: EventRows, threads: Ints
) -> Synchronization | None:
    """Return the synchronization events in a trace, or None if the trace contains no waits.

    Event records come from two sources: ``cuda_event`` events, and waits that describe the record
    for which they wait. A wait or record belongs to the process that made the call with the same
    correlation id, or to process -1 if there is no such call.

    Args:
        collector: Events in the trace.
        base_ns: Time in the trace that becomes time 0 of the profile, in ns.
        calls: CUDA API calls.
        threads: Global thread ids, indexed by thread number.
    """
    if not collector.waits:
        return None
    waits = _make_columns(collector.waits)
    record, record_device, record_stream, recorded = _list_records(
        waits, _make_columns(collector.records)
    )
    process = process_of(threads[calls.thread])

    def find_processes(ids: Ints) -> Ints:
        return lookup_values((calls.correlation,), process, (ids,))

    start_ns, call, device, stream, event, _, _ = waits
    unknown = np.full(len(recorded), NONE, np.int64)
    return Synchronization(
        EventRecords(
            *(
                find_processes(record),
                record_device,
                record_stream,
                recorded,
                unknown,
                record,
                unknown,
            )
        ),
        Waits(
            process=find_processes(call),
            device=device.copy(),
            stream=stream.copy(),
            event=event.copy(),
            pairing=np.full(len(call), NONE, np.int64),
            correlation_id=call.copy(),
            start_ns=start_ns - base_ns,
        ),
    )


def _list_records(waits: Ints, records: Ints) -> Ints:
    """Return the event records in a trace, followed by the records that waits describe.

    Args:
        waits: The waits as columns, as returned by :func:`_make_columns`.
        records: The event records as columns, as returned by :func:`_make_columns`.

    Returns:
        Array of shape (4, records). The first axis contains the correlation id, the device, the
        stream and the CUDA event.
    """
    _, _, device, _, event, record_stream, record = waits
    # A wait also describes the record for which it waits. The record is on the same device as the
    # wait, because a CUDA event belongs to a context.
    has_record = (record_stream != NONE) & (record != NONE)
    records_of_waits = np.stack((record, device, record_stream, event))[:, has_record]
    return np.hstack((records[1:5], records_of_waits))


def find_streams(collector: EventCollector, work: EventRows) -> Ints:
    """Return the stream of each kernel and copy, or -1 if unknown.

    The stream is read from the thread id of the event, such as ``7`` or ``stream 7``.
    """
    matches = (_STREAM.match(str(tid)) for _, tid in collector.threads.values)
    streams = [NONE if match is None else int(match[1]) for match in matches]
    return np.array(streams, np.int64)[work.thread]


def _make_columns(events: Sequence[tuple[int, int, KinetoArgs]]) -> Ints:
    """Convert waits or event records to columns.

    Args:
        events: Thread, start and arguments of each wait or event record.

    Returns:
        Array of shape (7, events). The first axis contains the start, the correlation id, the
        device, the stream and the CUDA event. The last two entries of the first axis describe the
        record that a wait waits for: its stream and its correlation id. Unknown values are -1.
    """
    rows = []
    for _, start_ns, args in events:
        event_id = args.event if args.waited_event is None else args.waited_event
        ids = (args.correlation, args.stream, event_id, args.recorded_stream, args.record_id)
        call, *numbers = (parse_number(value, UNCORRELATED) for value in ids)
        rows.append((start_ns, call, parse_number(args.device, _DEVICES), *numbers))
    return np.array(rows, np.int64).reshape(-1, 7).T
