"""NCCL's events as columns: one row a communication operation of a rank, as a file records it."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.values import frozen

#: No time: event files write 0 for it, and relative times begin near 0.
UNKNOWN = int(np.iinfo(np.int64).min)
#: No operation, and no time since a profiler began, is as long (116 days).
LONGEST_NS = 10**16

#: States of a step of a transfer over the network, in their order. A send waits for room in its
#: buffer, for the GPU to fill it, for the peer to be ready, for the network to have sent; a receive
#: for room, for the data, for the flush to the GPU, for the GPU to have taken it (NCCL,
#: ``src/transport/net.cc``; states of ``plugins/profiler/example``).
STATES = (
    "SendBufferWait",
    "SendGpuWait",
    "SendPeerWait",
    "SendWait",
    "RecvBufferWait",
    "RecvWait",
    "RecvFlushWait",
    "RecvGpuWait",
)


class OperationKind(IntEnum):
    """The kind of a row."""

    COLLECTIVE = 0
    POINT_TO_POINT = 1
    #: A call of NCCL's interface of which no operation was recorded.
    CALL = 2
    #: A collective by copy engines.
    COPY_ENGINE = 3
    #: Transfers of a proxy thread to or from one peer, for one operation.
    PROXY = 4
    #: A kernel of a profile.
    KERNEL = 5


@frozen
class NcclEvents(Table):
    """Communication operations as recorded; -1 is "none" in identifiers, ``UNKNOWN`` in times.

    Host times are nanoseconds since the profiler of the process began, GPU times those of the
    GPU's own clock (``globaltimer``), of which each GPU has one.

    Attributes:
        kind: code of :class:`OperationKind`.
        pid: the process.
        name: row of ``names``.
        communicator: row of ``communicators``.
        rank: in the communicator.
        peer: rank that it sends to or receives from.
        root: rank that it starts from or ends at.
        sequence: number among the communicator's operations of this name.
        count: elements.
        datatype: row of ``names``.
        algorithm: row of ``names``.
        protocol: row of ``names``.
        channels: how many it runs over.
        payload: bytes, where these are recorded instead of elements.
        host_start_ns: when NCCL began to handle it.
        host_end_ns: when NCCL had handled it; without network that is when it was launched.
        kernel_start_ns: when the host saw its kernel begin.
        kernel_end_ns: when the host saw its kernel end.
        gpu_start_ns: first start over its channels.
        gpu_end_ns: last end over its channels.
        proxy_start_ns: first event of its proxy thread.
        proxy_end_ns: last event of it.
        steps: of its transfers over the network.
        state_ns: time in each of ``STATES``, summed over all steps; shape (rows, states).
        peer_wait_ns: time in which some step waits for the peer and none moves data.
        transfer_ns: time in which some step moves data.
        names: names of operations, datatypes, algorithms and protocols.
        communicators: NCCL's hashes of them.
    """

    kind: Ints
    pid: Ints
    name: Ints
    communicator: Ints
    rank: Ints
    peer: Ints
    root: Ints
    sequence: Ints
    count: Ints
    datatype: Ints
    algorithm: Ints
    protocol: Ints
    channels: Ints
    payload: Ints
    host_start_ns: Ints
    host_end_ns: Ints
    kernel_start_ns: Ints
    kernel_end_ns: Ints
    gpu_start_ns: Ints
    gpu_end_ns: Ints
    proxy_start_ns: Ints
    proxy_end_ns: Ints
    steps: Ints
    state_ns: npt.NDArray[np.int64]
    peer_wait_ns: Ints
    transfer_ns: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    communicators: tuple[int, ...] = field(metadata={"shared": True})


@frozen
class Bridges(Table):
    """Instants on both a GPU's clock and a host's: one row per kernel on a channel.

    Attributes:
        row: the operation.
        gpu_ns: start on the GPU's clock.
        host_ns: when the host saw it, later by the time that its thread slept.
    """

    row: Ints
    gpu_ns: Ints
    host_ns: Ints


@frozen
class EventFile:
    """The contents of an event file.

    Attributes:
        path: as given.
        format: name of its format.
        events: operations.
        bridges: between clocks.
        seen: how many events each category has.
        unreadable: objects that are not events.
        unfinished: events that began and did not end.
        unbegun: events that ended and did not begin.
        repeated: operations that the file holds a second time.
        strange: events of unknown categories.
        strange_clocks: operations with times of a GPU that its other times contradict.
    """

    path: str
    format: str
    events: NcclEvents
    bridges: Bridges
    seen: tuple[tuple[str, int], ...]
    unreadable: int
    unfinished: int
    unbegun: int
    repeated: int
    strange: int
    strange_clocks: int
