"""Synchronisation: the streams that recorded events, and the streams and hosts that waited.

Ids are those of the profiler: a stream id is unique within a device of a process, and an event id
within a process.
"""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class EventRecords(Table):
    """Calls that recorded an event: it completes when all work before it on its stream has.

    Attributes:
        process: of the call; -1 unknown.
        device: of the stream.
        stream: that the event was recorded on.
        event: that was recorded.
        pairing: number that the waits for just this record share; -1 unknown.
        correlation_id: of the call.
        completed_ns: when the event completed on the device; -1 not recorded.
    """

    process: Ints
    device: Ints
    stream: Ints
    event: Ints
    pairing: Ints
    correlation_id: Ints
    completed_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class Waits(Table):
    """Waits of streams and hosts, told apart by what they name.

    ::

        stream   event
          7        42     the stream waits for the event (cudaStreamWaitEvent)
         -1        42     the host waits for the event (cudaEventSynchronize, cudaEventQuery)
          7        -1     the host waits for the stream (cudaStreamSynchronize)
         -1        -1     the host waits for the device (cudaDeviceSynchronize)

    Attributes:
        process: that waits; -1 unknown.
        device: of the stream, or that a host waits for; -1 unknown.
        stream: -1 none.
        event: -1 none.
        pairing: number that the wait shares with its event's record; -1 unknown.
        correlation_id: of the call; -1 unknown.
        start_ns: when the host began it.
    """

    process: Ints
    device: Ints
    stream: Ints
    event: Ints
    pairing: Ints
    correlation_id: Ints
    start_ns: Ints


@dataclass(frozen=True)
class Synchronisation:
    """What a profile holds of waiting.

    Attributes:
        records: of events.
        waits: of streams and hosts.
    """

    records: EventRecords
    waits: Waits
