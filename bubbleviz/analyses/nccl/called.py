"""Called: the operations of a profile that kernels of NCCL carry out."""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.analyses.nccl.communications import Communicator
from bubbleviz.model.columns import Ints, Table


@dataclass(frozen=True)
class Called(Table):
    """Operations of kernels, as ranges tell them, or PyTorch; -1 is none.

    Attributes:
        first: the first kernel that carries it out.
        last: the last one.
        name: row of ``names``.
        communicator: row of ``communicators``.
        bytes: of the message.
        peer: rank that it goes to or comes from.
        root: rank that it starts from or ends at.
        rank: own rank.
        sequence: number among the communicator's operations.
        count: elements.
        datatype: row of ``names``.
        names: of operations and datatypes.
        communicators: NCCL's hashes, or PyTorch's groups.
    """

    first: Ints
    last: Ints
    name: Ints
    communicator: Ints
    bytes: Ints
    peer: Ints
    root: Ints
    rank: Ints
    sequence: Ints
    count: Ints
    datatype: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    communicators: tuple[Communicator, ...] = field(metadata={"shared": True})
