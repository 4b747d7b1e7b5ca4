"""Ranks, operations and their intervals: the tables and values that all stages share.

Bulk data (operations, busy intervals) is stored in columns; everything else is a small frozen
value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bubbleviz.model.arrow import NO_INSTANT, ArrowTable, Column, convert_column
from bubbleviz.model.columns import NONE, Ints, Table, make_constant
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.phases import Phase


@dataclass(frozen=True)
class Rank:
    """A device as one process of one host sees it: one row of the picture.

    Attributes:
        index: Index in pipeline order, the value in ``rank`` columns.
        label: Display name, unique in the report, such as ``"host1:2 GPU 0"``.
        host: Hostname of the profile, or the name of its file if the export contains no hostname.
        profile: Index of the profile that recorded the rank.
        pid: Process id of the operating system.
        device_id: Device number in the process (``deviceId`` of the CUPTI tables).
        uuid: UUID of the GPU or its MIG instance, or None if the export does not contain it.
        gpu: Product name of the GPU, or None if unknown.
        pci: Bus address of the GPU, or None if unknown.
        stage: Virtual stage of model chunk 0, or None if unknown.
        pipeline: Index of the pipeline, or None if the replicas of a stage cannot be
            distinguished.
        global_rank: Number of the rank in the job, or None if ranges, files and tables do not
            give it.
        bubble_ratio: In a report, the mean of the rank's primary ratio over the averaged
            iterations, or None if unknown.
    """

    index: int
    label: str
    host: str
    profile: int
    pid: int
    device_id: int
    uuid: str | None = None
    gpu: str | None = None
    pci: str | None = None
    stage: int | None = None
    pipeline: int | None = 0
    global_rank: int | None = None
    bubble_ratio: float | None = None

    @property
    def number(self) -> int:
        """The global rank if known, otherwise the index in pipeline order."""
        return self.index if self.global_rank is None else self.global_rank


@dataclass(frozen=True, eq=False, repr=False)
class Operations(Table, ArrowTable):
    """Operations with their times on the device, and their stages once these are known.

    The same table travels through the analysis. A reader or an interpretation creates it with the
    ranks, iterations and times of one file. Alignment joins the tables of all files, fills in the
    stages, and sorts the rows by (rank, start) on the report's clock. -1 means none or unknown.

    ``polars.DataFrame(report.operations)`` and other Arrow libraries read one row per operation:
    the columns of ``--csv`` with null for unknown values, then ``second_microbatch, second_chunk,
    virtual_stage, busy_ns, launched_ns, global_rank``.

    The columns up to ``names`` come from the names and times of ranges, and the others from the
    work that these launched.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        phase: Code of :class:`bubbleviz.model.phases.Phase`.
        microbatch: Microbatch number.
        chunk: Model chunk, the index of a virtual stage among the virtual stages of its rank.
        sequence: Sequence split.
        second_microbatch: Microbatch of the backward, for a range that names two operations
            (``FB``).
        second_chunk: Model chunk of that backward.
        occurrence: 0, or n for the n-th repetition of the same key.
        host_start_ns: Start of the first range of the operation on the host.
        host_end_ns: End of the last range of the operation.
        cut: 1 if a range was still open when the capture ended, 2 if the work that it launched
            was not finished by then, else 0.
        tokens: Number of tokens that the operation processes.
        prefix: Number of earlier tokens of the same prompts that the operation reads.
        name_id: Row of ``names``.
        names: Texts of the ranges.
        start_ns: Start on the device; meaningless if ``has_span`` is 0.
        end_ns: End on the device; meaningless if ``has_span`` is 0.
        has_span: 1 if the operation has GPU work, else 0.
        kernels: Number of compute kernels.
        active_ns: Length of the union of the compute kernels.
        busy_ns: Length of the span without the gaps in which a receive of the operation waits.
        received_ns: End of the last receive that was launched inside the ranges of the operation.
        launched_ns: Time when the host launched the first kernel of the span. Without GPU work,
            the time when it launched work that was lost, or -1 if it launched nothing.
        receive_start_ns: Device start of the last receive launched inside the operation.
        receive_launched_ns: Time when the host launched that receive.
        virtual_stage: Virtual stage of the operation, or -1 if unknown.
        stages: Stage of each rank, or None if unknown; empty before alignment.
        global_ranks: Number of each rank in the job, or None if unknown; empty before alignment.
    """

    rank: Ints
    iteration: Ints
    phase: Ints
    microbatch: Ints
    chunk: Ints
    sequence: Ints
    second_microbatch: Ints
    second_chunk: Ints
    occurrence: Ints
    host_start_ns: Ints
    host_end_ns: Ints
    cut: Ints
    tokens: Ints
    prefix: Ints
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    start_ns: Ints
    end_ns: Ints
    has_span: Ints
    kernels: Ints
    active_ns: Ints
    busy_ns: Ints
    received_ns: Ints
    launched_ns: Ints
    receive_start_ns: Ints
    receive_launched_ns: Ints
    virtual_stage: Ints
    stages: tuple[int | None, ...] = field(default=(), metadata={"shared": True})
    global_ranks: tuple[int | None, ...] = field(default=(), metadata={"shared": True})

    @classmethod
    def make_without_work(cls, **columns: Any) -> Operations:
        """Return operations whose GPU work is not known yet.

        Args:
            **columns: The columns up to ``names``. The others are 0 or -1.
        """
        n_rows = len(columns["rank"])
        none, zero = make_constant(NONE, n_rows), make_constant(0, n_rows)
        return cls(
            start_ns=none,
            end_ns=none,
            has_span=zero,
            kernels=zero,
            active_ns=zero,
            busy_ns=zero,
            received_ns=none,
            launched_ns=none,
            receive_start_ns=none,
            receive_launched_ns=none,
            virtual_stage=none,
            **columns,
        )

    def get_stages(self, rank: Ints) -> Ints:
        """Return the stage of each rank, or -1 for an unknown stage or for no rank (-1)."""
        return look_up_by_rank(self.stages, rank)

    def get_global_ranks(self, rank: Ints) -> Ints:
        """Return the global rank of each rank, or -1 if it is unknown or for no rank (-1)."""
        return look_up_by_rank(self.global_ranks, rank)

    def list_columns(self) -> dict[str, Ints | CodedTexts]:
        """Return the exported columns, keyed by name.

        The stage and global rank are looked up for each operation. ``--csv`` writes the columns in
        this order, with both microbatches and both chunks of an overlapped pair in one cell.
        ``start_ns`` and ``end_ns`` are ``NO_INSTANT`` for operations without a span.
        """
        spanned = self.has_span == 1
        return {
            "iteration": self.iteration,
            "rank": self.rank,
            "stage": self.get_stages(self.rank),
            "phase": CodedTexts(self.phase, [phase.label for phase in Phase]),
            "microbatch": self.microbatch,
            "chunk": self.chunk,
            "start_ns": np.where(spanned, self.start_ns, NO_INSTANT),
            "end_ns": np.where(spanned, self.end_ns, NO_INSTANT),
            "host_start_ns": self.host_start_ns,
            "host_end_ns": self.host_end_ns,
            "kernels": self.kernels,
            "active_ns": self.active_ns,
            "name": CodedTexts(self.name_id, self.names),
            "sequence": self.sequence,
            "occurrence": self.occurrence,
            "second_microbatch": self.second_microbatch,
            "second_chunk": self.second_chunk,
            "virtual_stage": self.virtual_stage,
            "busy_ns": self.busy_ns,
            "launched_ns": self.launched_ns,
            "global_rank": self.get_global_ranks(self.rank),
        }

    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns of :meth:`list_columns` in Arrow format; unknown values are null."""
        return {name: convert_column(name, column) for name, column in self.list_columns().items()}


def look_up_by_rank(numbers: Sequence[int | None], rank: Ints) -> Ints:
    """Return the number of each rank, or -1 for an unknown number or for no rank (-1).

    Args:
        numbers: Number of each rank, or None if unknown. It may be shorter than there are ranks.
        rank: Indices of ranks, or -1 for no rank.
    """
    n_ranks = max(len(numbers), int(rank.max(initial=NONE)) + 1)
    # The last row belongs to index -1, so -1 stays -1.
    number_of_rank = np.full(n_ranks + 1, NONE, np.int64)
    number_of_rank[: len(numbers)] = [NONE if number is None else number for number in numbers]
    return np.asarray(number_of_rank[rank], np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class BusyIntervals(Table):
    """Intervals in which operations keep their GPU busy, disjoint and sorted within an operation.

    A span with a receive that waits inside it::

        kernels      ████  ██        ███
        receive                ▒▒▒▒
        busy         ├────────┤      ├─┤      (the wait is bubble; other gaps stay busy)

    Attributes:
        operation: Row of the operations table.
        start_ns: Start on the report's clock.
        end_ns: End, exclusive.
    """

    operation: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class RankIntervals(Table):
    """Intervals of ranks, such as unattributed compute, disjoint and sorted by (rank, start).

    Attributes:
        rank: Index of the rank.
        start_ns: Start on the report's clock.
        end_ns: End, exclusive.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class RunningTimes(Table):
    """Time for which kernels and copies ran on ranks, in disjoint sections sorted by rank.

    The work of an iteration is one section, unless the work of another iteration begins or ends
    inside it. Between iterations a section ends when the set of running kernels changes. This keeps
    the table small.

    Attributes:
        rank: Index of the rank.
        start_ns: Start of the section.
        end_ns: End of the section.
        running_ns: Time in the section for which any kernel or copy ran.
        communication_ns: Time for which any communication kernel ran.
        overlapped_ns: Time for which a compute kernel of any kind ran during communication.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints
    running_ns: Ints
    communication_ns: Ints
    overlapped_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class HostActivities(Table):
    """Long calls and ranges of launching threads while their GPU had run out of work.

    Attributes:
        rank: Rank of the GPU.
        operation: Row of the operation that was launched late, or -1 for a late collective or a
            gap inside an operation.
        start_ns: Start of the call or range.
        end_ns: End of the call or range.
        call: 1 for a CUDA call, 0 for a range.
        name_id: Row of the operations' ``names``.
    """

    rank: Ints
    operation: Ints
    start_ns: Ints
    end_ns: Ints
    call: Ints
    name_id: Ints


@dataclass(frozen=True)
class UnattributedKernels:
    """Compute kernels of one name on one rank that belong to no compute operation.

    Attributes:
        rank: Index of the rank.
        name: Name of the kernels.
        count: Number of kernels.
        gpu_ns: Sum of their durations.
        where: Description of the thread and range that launched the longest of these kernels.
    """

    rank: int
    name: str
    count: int
    gpu_ns: int
    where: str


@dataclass(frozen=True)
class RankCoverage:
    """Sums of the durations of a rank's kernels and copies, inside and outside operations.

    Attributes:
        rank: Index of the rank.
        gpu_ns: Duration of all compute kernels.
        attributed_gpu_ns: Duration of the compute kernels inside compute operations.
        comm_ns: Duration of all communication kernels.
        attributed_comm_ns: Duration of the communication kernels inside named ranges.
        copy_ns: Duration of all copies.
    """

    rank: int
    gpu_ns: int
    attributed_gpu_ns: int
    comm_ns: int
    attributed_comm_ns: int
    copy_ns: int


@dataclass(frozen=True)
class ProfileSummary:
    """One input file: its format, its kernels and links, and the correction of its clock.

    Attributes:
        path: Path as the user gave it.
        host: Name of the host.
        format: Name of the input format.
        nsys_version: Version of the exporter, or None if it is unknown.
        schema_version: Version of the schema of the file, or None if it has none.
        kernels: Number of kernels.
        linked_kernels: Number of kernels whose launching call is known.
        attributed_kernels: Number of kernels of operations, including communication.
        cross_thread_kernels: Number of kernels that were attributed to a backward of another
            thread.
        ambiguous_kernels: Number of kernels that were launched while several threads ran backward,
            so they are attributed to none.
        gpu_ns: Sum of the durations of compute kernels.
        attributed_gpu_ns: Part of ``gpu_ns`` in compute operations.
        comm_ns: Sum of the durations of communication kernels.
        copy_ns: Sum of the durations of copies.
        clock_offset_ns: Correction of the profile's clock at ``clock_t0_ns``.
        clock_drift_ppm: Drift of the correction, in parts per million.
        clock_t0_ns: Time to which the drift refers.
        clock_uncertainty_ns: Maximum error of the corrected clock, or None if it is unbounded.
        session_utc_ns: UTC time of the host at time 0 of the profile, or None if it is unknown.
    """

    path: str
    host: str
    format: str
    nsys_version: str | None
    schema_version: str | None
    kernels: int
    linked_kernels: int
    attributed_kernels: int
    cross_thread_kernels: int
    ambiguous_kernels: int
    gpu_ns: int
    attributed_gpu_ns: int
    comm_ns: int
    copy_ns: int
    clock_offset_ns: int = 0
    clock_drift_ppm: float = 0.0
    clock_t0_ns: int = 0
    clock_uncertainty_ns: int | None = 0
    session_utc_ns: int | None = None
