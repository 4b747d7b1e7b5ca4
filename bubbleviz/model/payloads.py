"""Payloads in NCCL's NVTX ranges: message sizes, peers and communicators."""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class Payloads(Table):
    """Payloads in NCCL's NVTX ranges, one row per range with a payload.

    Unknown values are -1.

    Attributes:
        start_ns: Start of the range.
        thread: Thread that opened the range.
        communicator: Index into ``communicators``.
        bytes: Message size in bytes.
        peer: Rank that the message is sent to or received from.
        root: Root rank of the operation.
        ranks: Number of ranks in the communicator.
        rank: Rank of the process in the communicator.
        device: Device number of the GPU that the process uses.
        communicators: Hashes that NCCL uses to identify communicators.
    """

    start_ns: Ints
    thread: Ints
    communicator: Ints
    bytes: Ints
    peer: Ints
    root: Ints
    ranks: Ints
    rank: Ints
    device: Ints
    communicators: tuple[int, ...] = field(metadata={"shared": True})
