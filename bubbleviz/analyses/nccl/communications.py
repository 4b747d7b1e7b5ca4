"""Communications: the tables of operations and of the clocks that recorded them."""

from __future__ import annotations

from dataclasses import field
from enum import Enum, IntEnum

from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.process_groups import Group
from bubbleviz.model.values import frozen

#: NCCL's hash of it, or the PyTorch process group that owns it.
Communicator = int | Group
#: How many bytes an element has (``ncclDataType_t`` of nccl.h).
SIZES = {
    **dict.fromkeys(("ncclInt8", "ncclChar", "ncclUint8"), 1),
    **dict.fromkeys(("ncclFloat8e4m3", "ncclFloat8e5m2"), 1),
    **dict.fromkeys(("ncclFloat16", "ncclHalf", "ncclBfloat16"), 2),
    **dict.fromkeys(("ncclInt32", "ncclInt", "ncclUint32", "ncclFloat32", "ncclFloat"), 4),
    **dict.fromkeys(("ncclInt64", "ncclUint64", "ncclFloat64", "ncclDouble"), 8),
}
#: Operations that move n times the counted bytes: each of n ranks hands in, or takes, as many.
_EACH = frozenset(("AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Gather", "Scatter"))


def communicator_text(value: Communicator | None) -> str:
    """Return a communicator's hash as NCCL's log has it, or a group's label; "" unknown."""
    if isinstance(value, Group):
        return value.label
    return "" if value is None else f"0x{value:016x}"


def byte_factor(name: str, ranks: int | None) -> int | None:
    """Return the factor from an operation's counted bytes to all that move; None unknown."""
    return ranks if name in _EACH else 1


def bus_factor(name: str, ranks: int | None) -> float | None:
    """Return the factor that makes bandwidth comparable with that of the hardware.

    From nccl-tests, ``doc/PERFORMANCE.md``: 2(n-1)/n of an all-reduce, (n-1)/n of what each of n
    ranks has a part in (about that where parts differ, in an AlltoAllv), else 1. None where the
    number of ranks is unknown and counts.
    """
    if name == "AllReduce":
        return None if not ranks else 2 * (ranks - 1) / ranks
    if name in _EACH or name == "AlltoAllv":
        return None if not ranks else (ranks - 1) / ranks
    return 1.0


class Timing(IntEnum):
    """The source of an operation's times."""

    #: The host, which enqueued it.
    LAUNCH = 0
    #: The proxy thread, which serves the network.
    PROXY = 1
    #: The host, which saw the kernel begin and end.
    HOST = 2
    #: The GPU's clock.
    GPU = 3
    #: A kernel of a profile.
    KERNEL = 4


class Split(IntEnum):
    """How waiting and moving were separated."""

    UNKNOWN = 0
    #: Until the last member of the operation began, it waited.
    MEMBERS = 1
    #: By the steps of its proxy thread.
    PROXY = 2
    #: As ``MEMBERS``, with members paired by their order alone.
    ORDER = 3


class Alignment(Enum):
    """What aligned a clock to the report's; the values stand in JSON."""

    #: It is the report's own clock, or ticks with it.
    REFERENCE = "reference"
    #: Its operations were matched with a profile's kernels.
    KERNELS = "kernels"
    #: Instants from the user.
    ANCHOR = "anchor"
    #: UTC, as the profile's host recorded it.
    UTC = "utc"
    #: The ends of operations in common with aligned clocks.
    OPERATIONS = "operations"
    #: Nothing: its times stand alone.
    UNALIGNED = "unaligned"


@frozen
class RecordingClock:
    """A clock that recorded operations, and how it was aligned to the report's.

    Attributes:
        label: for people.
        aligned_by: what aligned it.
        matched: operations, or kernels, by which it is aligned.
        of: how many there could be.
        median_ns: median distance between pairs after that; None where there is no pair.
        largest_ns: the largest distance.
        drift_ppm: its drift; None where none was fitted.
    """

    label: str
    aligned_by: Alignment
    matched: int = 0
    of: int = 0
    median_ns: int | None = None
    largest_ns: int | None = None
    drift_ppm: float | None = None

    @property
    def aligned(self) -> bool:
        """Whether its times are on the report's clock."""
        return self.aligned_by is not Alignment.UNALIGNED


@frozen
class KernelOperations(Table):
    """Operations that the kernels of a profile carry out, from ranges or PyTorch; -1 is none.

    Attributes:
        first: row of the kernels: the first that carries it out.
        last: row of the kernels: the last one.
        name: row of ``names``.
        communicator: row of ``communicators``.
        bytes: of the message.
        peer: rank that it goes to or comes from.
        root: rank that it starts from or ends at.
        rank: in the communicator.
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


@frozen
class Communications(Table):
    """One row an operation of a rank; -1 is "none" in identifiers, ``UNKNOWN`` in times.

    Attributes:
        source: row of the files read.
        kind: code of :class:`~bubbleviz.sources.nccl.events.OperationKind`.
        pid: the process.
        gpu: number of the GPU, as far as files tell them apart; -1 unknown.
        name: row of ``names``.
        communicator: row of ``communicators``.
        rank: in the communicator.
        peer: rank that it sends to or receives from.
        root: rank that it starts from or ends at.
        sequence: number among the communicator's operations of this name.
        count: elements.
        datatype: row of ``names``.
        bytes: that the rank hands in, or takes.
        algorithm: row of ``names``.
        protocol: row of ``names``.
        channels: over which it runs.
        clock: row of the clocks; start and end are comparable where it is aligned.
        start_ns: start.
        end_ns: end.
        duration_ns: from start to end, which can be known where these are not; -1 unknown.
        timing: code of :class:`Timing`.
        kernel: row of the profiles' kernels; operations of one kernel share its times.
        shared: how many operations share these times.
        state_ns: shape (rows, states), as of :class:`~bubbleviz.sources.nccl.events.NcclEvents`.
        waiting_ns: the part of the duration that it waited for others; -1 unknown.
        moving_ns: the rest of it; -1 unknown.
        split: code of :class:`Split`.
        names: names of operations, datatypes, algorithms and protocols.
        communicators: NCCL's hashes of them, or PyTorch's groups.
    """

    source: Ints
    kind: Ints
    pid: Ints
    gpu: Ints
    name: Ints
    communicator: Ints
    rank: Ints
    peer: Ints
    root: Ints
    sequence: Ints
    count: Ints
    datatype: Ints
    bytes: Ints
    algorithm: Ints
    protocol: Ints
    channels: Ints
    clock: Ints
    start_ns: Ints
    end_ns: Ints
    duration_ns: Ints
    timing: Ints
    kernel: Ints
    shared: Ints
    state_ns: Ints
    waiting_ns: Ints
    moving_ns: Ints
    split: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    communicators: tuple[Communicator, ...] = field(metadata={"shared": True})
