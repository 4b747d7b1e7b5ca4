"""Model of the JSON that ``bubbleviz nccl -o report.json`` writes.

The order of the fields is the order of the keys. Times are in nanoseconds. An unknown number is
null, and a sum is null if none of its numbers is known.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from bubbleviz.analyses.nccl.communications import RecordingClock
from bubbleviz.report.memory import Count, Finite
from bubbleviz.report.summary import LatenessEntry, LimitationEntry, RestrictionEntry

#: Name and version of this model.
NCCL_SCHEMA = "bubbleviz.nccl/1"


class FileEntry(Struct, frozen=True):
    """A file that was read.

    Attributes:
        path: Path as given.
        format: Format of the profile or event file.
        operations: Number of the report's operations that come from this file.
        events: Number of events by category. Empty for profiles.
    """

    path: str
    format: str
    operations: Count
    events: dict[str, Count]


class GroupEntry(Struct, frozen=True):
    """A PyTorch process group.

    Attributes:
        name: Name of the group.
        description: Description of the group, or None if unknown.
        members: Ranks of the run in the group, or None if not all are known.
    """

    name: str
    description: str | None
    members: list[int] | None


class CommunicatorEntry(Struct, frozen=True):
    """An NCCL communicator or a PyTorch process group.

    Attributes:
        id: NCCL's communicator hash, or the label of the process group.
        ranks: Number of ranks, or None if unknown.
        group: The process group. Left out for NCCL communicators.
    """

    id: str
    ranks: Count | None
    group: GroupEntry | UnsetType = UNSET


class FaultEntry(Struct, frozen=True):
    """An operation that not all members entered, finished, or called the same way.

    Attributes:
        communicator: NCCL's communicator hash, or the label of the process group.
        name: Name of the operation.
        sequence: Number of the operation in the communicator, or null if unknown.
        entered: Ranks of the run that entered the operation.
        missing: Ranks of the run that have a dump and did not enter the operation.
        undumped: Ranks without a dump, which may have entered the operation.
        calls: Each distinct call with the ranks that made it. Empty if all calls agree.
    """

    communicator: str
    name: str
    sequence: Count | None
    entered: tuple[int, ...]
    missing: tuple[int, ...]
    undumped: tuple[int, ...]
    calls: tuple[tuple[str, tuple[int, ...]], ...]


class LateRank(Struct, frozen=True):
    """A rank that entered operations last.

    Attributes:
        rank: Number of the rank in the run, or null if only its file is known.
        operations: Number of operations in which other ranks waited for this rank.
        awaited_ns: Total time for which other ranks waited for this rank.
        file: Path of the rank's file, or null if the number of the rank is known.
    """

    rank: int | None
    operations: Count
    awaited_ns: int
    file: str | None = None


class TotalEntry(Struct, frozen=True):
    """Sums over the operations of one communicator, name, algorithm and protocol.

    Attributes:
        communicator: NCCL's communicator hash, the label of the process group, or None if unknown.
        ranks: Number of ranks in the communicator, or None if unknown.
        name: Name of the operations, or None if unknown.
        peers: Distinct peers of sends and receives, or roots of collectives.
        algorithm: NCCL algorithm, or None if unknown.
        protocol: NCCL protocol, or None if unknown.
        operations: Number of operations.
        bytes: Bytes that the ranks send or receive.
        sized_operations: Number of operations whose size in bytes is known.
        duration_ns: Sum of the durations.
        timed_operations: Number of operations whose duration is known.
        busy_ns: Time during which any of the operations runs; each instant of a GPU counts once.
        waiting_ns: Sum of the waiting times; an operation usually waits until its last member
            starts.
        waiting_operations: Number of operations whose waiting time is known.
        moving_ns: Sum of the moving times; a moving time is the duration minus the waiting time.
        moving_operations: Number of operations whose moving time is known.
        algorithm_gbps: Algorithm bandwidth in GB/s: bytes divided by duration.
        bus_gbps: Bus bandwidth in GB/s: algorithm bandwidth times the factor of nccl-tests.
        moving_gbps: Bus bandwidth in GB/s, computed from the moving time.
    """

    communicator: str | None
    ranks: Count | None
    name: str | None
    peers: tuple[int, ...]
    algorithm: str | None
    protocol: str | None
    operations: Count
    bytes: Count | None
    sized_operations: Count
    duration_ns: int | None
    timed_operations: Count
    busy_ns: int | None
    waiting_ns: int | None
    waiting_operations: Count
    moving_ns: int | None
    moving_operations: Count
    algorithm_gbps: Finite | None
    bus_gbps: Finite | None
    moving_gbps: Finite | None


class NcclSummary(Struct, frozen=True):
    """A report on communication as JSON.

    Attributes:
        schema: Name and version of this model.
        version: Version of bubbleviz that wrote the report.
        files: The files that were read.
        clocks: Clocks of the files; the first is the clock of the report.
        communicators: Communicators of the operations.
        window: The analyzed part of the run, as the user wrote it, or None for the complete run.
        operations: Number of operations.
        bytes: Bytes that the ranks send or receive.
        sized_operations: Number of operations whose size in bytes is known.
        duration_ns: Sum of the durations.
        timed_operations: Number of operations whose duration is known.
        busy_ns: Time during which any operation runs; each instant of a GPU counts once.
        waiting_ns: Sum of the waiting times; an operation usually waits until its last member
            starts.
        waiting_operations: Number of operations whose waiting time is known.
        moving_ns: Sum of the moving times; a moving time is the duration minus the waiting time.
        moving_operations: Number of operations whose moving time is known.
        missing_ranks: Ranks that block the run: each is missing in an operation and waits in none.
        faults: Operations at which the run hangs, or that members called differently.
        waited_for: Ranks that entered operations last, longest awaited rank first.
        totals: Sums by communicator, name, algorithm and protocol, longest first.
        definitions: Meaning of the terms.
        restrictions: Why operations are missing from the sums, most severe first.
        limitations: What could not be measured, and why.
        gpu_names: Display name of each GPU in the profiles.
        lateness: Which GPUs arrive last at collectives, or None if unknown. Ranks are indices of
            ``gpu_names``, and iterations are indices of steps.
    """

    schema: str
    version: str
    files: list[FileEntry]
    clocks: tuple[RecordingClock, ...]
    communicators: list[CommunicatorEntry]
    window: str | None
    operations: Count
    bytes: Count | None
    sized_operations: Count
    duration_ns: int | None
    timed_operations: Count
    busy_ns: int | None
    waiting_ns: int | None
    waiting_operations: Count
    moving_ns: int | None
    moving_operations: Count
    missing_ranks: list[int]
    faults: list[FaultEntry]
    waited_for: list[LateRank]
    totals: list[TotalEntry]
    definitions: tuple[str, ...]
    restrictions: list[RestrictionEntry]
    limitations: list[LimitationEntry]
    gpu_names: tuple[str, ...] = ()
    lateness: LatenessEntry | None = None
