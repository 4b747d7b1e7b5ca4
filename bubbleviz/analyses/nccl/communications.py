"""Tables of communication operations, and the clocks that recorded them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np

from bubbleviz.model import collectives
from bubbleviz.model.columns import NONE, Ints, Table, make_constant
from bubbleviz.sources.nccl.events import STATES

#: NCCL's hash of a communicator, or the PyTorch process group that owns the communicator.
Communicator = int | collectives.Group
#: Size of an element in bytes, keyed by datatype.
#: The names come from ``ncclDataType_t`` in nccl.h and ``ScalarType`` in c10/core/ScalarType.h.
SIZES = {
    **dict.fromkeys(("ncclInt8", "ncclChar", "ncclUint8"), 1),
    **dict.fromkeys(("ncclFloat8e4m3", "ncclFloat8e5m2"), 1),
    **dict.fromkeys(("ncclFloat16", "ncclHalf", "ncclBfloat16"), 2),
    **dict.fromkeys(("ncclInt32", "ncclInt", "ncclUint32", "ncclFloat32", "ncclFloat"), 4),
    **dict.fromkeys(("ncclInt64", "ncclUint64", "ncclFloat64", "ncclDouble"), 8),
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "Bits8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"), 1),
    **dict.fromkeys(("Float8_e8m0fnu", "Float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16", "Bits16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
#: Operations that move n times the number of bytes counted, where n is the number of ranks.
PER_RANK_OPERATIONS = frozenset(
    ("AllGather", "AllGatherV", "ReduceScatter", "AlltoAll", "AllToAll", "Gather", "Scatter")
)


def format_communicator(value: Communicator | None) -> str:
    """Return a communicator's hash as NCCL logs it, a group's label, or "" if unknown."""
    if isinstance(value, collectives.Group):
        return value.label
    return "" if value is None else f"0x{value:016x}"


def get_bus_factor(name: str, ranks: int | None) -> float | None:
    """Return the bus bandwidth divided by the algorithm bandwidth, as nccl-tests defines them.

    With n ranks, the factor is (see ``doc/PERFORMANCE.md`` of nccl-tests):

    - 2(n-1)/n for an AllReduce,
    - (n-1)/n for operations in ``PER_RANK_OPERATIONS``, and for an AlltoAllv, where it is
      approximate because the parts differ in size,
    - 1 for all other operations.

    The factor is None if it depends on n, but n is unknown.
    """
    if name == "AllReduce":
        return None if not ranks else 2 * (ranks - 1) / ranks
    if name in PER_RANK_OPERATIONS or name == "AlltoAllv":
        return None if not ranks else (ranks - 1) / ranks
    return 1.0


class Timing(IntEnum):
    """The source of an operation's times."""

    #: Time at which the host enqueued the operation.
    LAUNCH = 0
    #: Times of the proxy thread, which serves the network.
    PROXY = 1
    #: Times at which the host observed the start and end of the kernel.
    HOST = 2
    #: Times on the GPU's clock.
    GPU = 3
    #: Times of a kernel in a profile.
    KERNEL = 4


class Split(IntEnum):
    """How waiting and moving were distinguished."""

    UNKNOWN = 0
    #: The operation waited until its last member (participating rank) started.
    MEMBERS = 1
    #: The operation was waiting while its proxy thread waited for the peer.
    PROXY = 2
    #: Like ``MEMBERS``, but members were paired based only on their order.
    ORDER = 3
    #: The operation waited for as long as it ran longer than its shortest member.
    DURATION = 4


class Alignment(Enum):
    """How a clock was aligned to the report's clock. The values are written to JSON."""

    #: The report's clock, or a clock that agrees with it.
    REFERENCE = "reference"
    #: Aligned by matching the operations of the clock with the kernels of a profile.
    KERNELS = "kernels"
    #: Aligned by UTC, as recorded by the profile's host.
    UTC = "utc"
    #: Aligned by the ends of operations that were also recorded on an aligned clock.
    OPERATIONS = "operations"
    #: Not aligned. Times on this clock are not comparable with times on other clocks.
    UNALIGNED = "unaligned"


@dataclass(frozen=True)
class RecordingClock:
    """A clock that recorded operations, and how it was aligned to the report's clock.

    Attributes:
        label: Display name.
        aligned_by: How the clock was aligned.
        matched: Number of operations or kernels that were matched to align the clock.
        of: Number of operations or kernels that could be matched.
        median_ns: Median distance between matched pairs after the alignment, or None if there are
            no pairs.
        largest_ns: Largest distance between matched pairs after the alignment, or None if there are
            no pairs.
        drift_ppm: Drift of the clock in parts per million, or None if no drift was fitted.
    """

    label: str
    aligned_by: Alignment
    matched: int = 0
    of: int = 0
    median_ns: int | None = None
    largest_ns: int | None = None
    drift_ppm: float | None = None

    @staticmethod
    def measured(
        label: str, aligned_by: Alignment, of: int, far_ns: Ints, drift: float = 0.0
    ) -> RecordingClock:
        """Describe a clock, including statistics on the matched pairs that were used to align it.

        Args:
            label: Display name.
            aligned_by: How the clock was aligned.
            of: Number of operations or kernels that could be matched.
            far_ns: Distance that remains between the two times of each matched pair.
            drift: Drift of the clock in ns per ns, or 0 if no drift was fitted.
        """
        return RecordingClock(
            label,
            aligned_by,
            matched=len(far_ns),
            of=of,
            median_ns=round(float(np.median(far_ns))) if len(far_ns) else None,
            largest_ns=int(far_ns.max()) if len(far_ns) else None,
            drift_ppm=1e6 * drift if drift else None,
        )

    @property
    def aligned(self) -> bool:
        """Whether times on this clock are also on the report's clock."""
        return self.aligned_by is not Alignment.UNALIGNED


@dataclass(frozen=True, eq=False, repr=False)
class Communications(Table):
    """Communication operations, one row per operation and rank.

    Unknown identifiers are -1, and unknown times are ``UNKNOWN``.

    Attributes:
        source: Index of the file that contains the operation.
        kind: Kind of operation, as a code of :class:`~bubbleviz.sources.nccl.events.OperationKind`.
        pid: Process id.
        gpu: Number of the GPU, or -1 if the files do not distinguish GPUs.
        name: Name of the operation, as an index into ``names``.
        communicator: The operation's communicator, as an index into ``communicators``.
        rank: Rank in the communicator.
        run_rank: Rank in the run, or -1 if unknown.
        peer: For a send, receive or proxy transfer, the other rank in the communicator.
        root: Root rank of a rooted collective, such as Broadcast.
        sequence: Number of the operation among all operations with its communicator and name.
        count: Number of elements.
        datatype: The datatype, as an index into ``names``.
        bytes: Number of bytes that the rank sends or receives.
        progress: Progress of the operation, as an index into
            :data:`~bubbleviz.sources.nccl.events.PROGRESS`.
        algorithm: The algorithm, as an index into ``names``.
        protocol: The protocol, as an index into ``names``.
        channels: Number of channels that the operation uses.
        clock: Index of the clock that timed the operation. Times on aligned clocks are comparable.
        start_ns: Start time.
        end_ns: End time.
        duration_ns: Time from start to end, or -1 if unknown. The duration can be known even if
            start and end are unknown.
        timing: Source of the times, a code of :class:`Timing`.
        kernel: The operation's kernel, as a row of the kernels of all profiles, or -1 if it has
            none. Several operations can share a kernel and its times.
        shared: Number of operations (including this one) with the same kernel and times.
        state_ns: Time in each proxy state, shape (rows, states); see
            :class:`~bubbleviz.sources.nccl.events.NcclEvents`.
        waiting_ns: Part of the duration during which the rank waited for other members, or -1 if
            unknown.
        moving_ns: Duration minus waiting time, or -1 if unknown.
        awaited_ns: Total time that other members waited for this rank, or -1 if unknown.
        split: How waiting and moving were distinguished, a code of :class:`Split`.
        meeting: Number shared by all members of the operation, or -1 if unknown.
        names: Names of operations, datatypes, algorithms and protocols.
        communicators: NCCL's communicator hashes, or PyTorch's process groups.
    """

    source: Ints
    kind: Ints
    pid: Ints
    gpu: Ints
    name: Ints
    communicator: Ints
    rank: Ints
    run_rank: Ints
    peer: Ints
    root: Ints
    sequence: Ints
    count: Ints
    datatype: Ints
    bytes: Ints
    progress: Ints
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
    awaited_ns: Ints
    split: Ints
    meeting: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    communicators: tuple[Communicator, ...] = field(metadata={"shared": True})


def make_communications(
    rows: int,
    columns: Mapping[str, Ints | int],
    names: tuple[str, ...],
    communicators: tuple[Communicator, ...],
) -> Communications:
    """Make a table of operations from the given columns, filling in defaults for all other columns.

    Args:
        rows: Number of rows.
        columns: Columns keyed by name. A single number is used for all rows.
        names: Texts to which the columns refer by index.
        communicators: Communicators to which ``communicator`` refers by index.
    """
    values: dict[str, Ints | int] = dict.fromkeys(Communications.column_names(), NONE)
    values |= {"split": 0, "shared": 1, "state_ns": np.zeros((rows, len(STATES)), np.int64)}
    all_columns = {
        name: make_constant(value, rows) if isinstance(value, int) else value
        for name, value in {**values, **columns}.items()
    }
    return Communications(**all_columns, names=names, communicators=communicators)
