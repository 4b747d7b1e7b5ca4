"""Recorded synchronization: events on streams, and waits of streams or hosts.

The profiler assigned the stream and event ids. A stream id is unique within a device of a process.
An event id is unique within a process.
"""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class EventRecords(Table):
    """Calls that recorded an event (``cudaEventRecord``).

    An event completes when all earlier work on its stream has completed.

    Attributes:
        process: Process of the call, or -1 if unknown.
        device: Device of the stream.
        stream: Stream on which the event was recorded.
        event: Id of the event.
        pairing: Number that this record shares with the waits for the event, or -1 if unknown.
        correlation_id: Correlation id of the call.
        completed_ns: Time at which the event completed on the device, or -1 if the profile does not
            contain this time.
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
    """Waits of a stream or the host for an event, a stream or a device.

    The columns ``stream`` and ``event`` tell what waits for what::

        stream   event
          7        42     the stream waits for the event (cudaStreamWaitEvent)
         -1        42     the host waits for the event (cudaEventSynchronize, cudaEventQuery)
          7        -1     the host waits for the stream (cudaStreamSynchronize)
         -1        -1     the host waits for the device (cudaDeviceSynchronize)

    Attributes:
        process: Waiting process, or -1 if unknown.
        device: Device of the stream, or device that the host waits for, or -1 if unknown.
        stream: Stream that waits or is waited for, or -1 if no stream is involved.
        event: Event that is waited for, or -1 if no event is involved.
        pairing: Number that the wait shares with the record of the event, or -1 if unknown.
        correlation_id: Correlation id of the call, or -1 if unknown.
        start_ns: Time at which the host entered the call.
    """

    process: Ints
    device: Ints
    stream: Ints
    event: Ints
    pairing: Ints
    correlation_id: Ints
    start_ns: Ints


@dataclass(frozen=True)
class Synchronization:
    """The synchronization recorded in a profile.

    Attributes:
        records: Calls that recorded events.
        waits: Stream and host waits.
    """

    records: EventRecords
    waits: Waits
