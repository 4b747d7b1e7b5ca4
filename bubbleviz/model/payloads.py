"""Payloads: the message and the communicator that a profile records for each of NCCL's ranges."""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True, eq=False, repr=False)
class Payloads(Table):
    """Payloads of NCCL's ranges: one row per range that has one; -1 is none.

    Attributes:
        start_ns: when the range began.
        thread: that opened it.
        communicator: row of ``communicators``.
        bytes: of the message.
        peer: rank that it goes to or comes from.
        root: rank that it starts from or ends at.
        ranks: how many ranks the communicator has.
        rank: of the process in it.
        device: GPU of the process.
        communicators: NCCL's hashes of them.
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
