"""Ranks, operations and their intervals, which all analysis stages share.

Bulk data, such as operations and busy intervals, is stored in tables of columns. Everything else is
stored in small frozen dataclasses.
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
    """A device as seen by one process on one host. A picture has one row per rank.

    Attributes:
        index: Index in pipeline order. The columns named ``rank`` contain this index.
        label: Display name, unique in the report, such as ``"host1:2 GPU 0"``.
        host: Hostname, or the file name of the profile if the profile contains no hostname.
        profile: Index of the profile that recorded the rank.
        pid: Operating-system process id.
        device_id: Device number within the process (``deviceId`` in the CUPTI tables).
        uuid: UUID of the GPU or of its MIG instance, or None if the profile does not contain it.
        gpu: Product name of the GPU, or None if unknown.
        pci: PCI bus address of the GPU, or None if unknown.
        stage: Virtual stage of the rank's model chunk 0, or None if unknown.
        pipeline: Index of the rank's pipeline, or None if a stage's replicas cannot be told apart.
        global_rank: Global rank in the job, or None if neither ranges, files nor tables contain it.
        bubble_ratio: Mean of the rank's primary ratio over a report's averaged iterations, or None
            if unknown.
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
    """Operations with their times on the device and, after alignment, their stages.

    All analysis stages use this table. A file reader or the interpretation of a profile creates a
    table with the ranks, iterations and times of one file. Alignment joins the tables of all files,
    fills in the stages, and sorts the rows by (rank, start) on the report's clock. The value -1
    means none or unknown.

    ``polars.DataFrame(report.operations)`` and other Arrow libraries read one row per operation.
    The table has the columns of ``--csv``, with null for unknown values, then ``second_microbatch,
    second_chunk, virtual_stage, busy_ns, launched_ns, global_rank``.

    The columns up to ``names`` are derived from the names and times of ranges. The other columns
    are derived from the GPU work launched inside those ranges.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        phase: Phase of the operation, as a value of :class:`bubbleviz.model.phases.Phase`.
        microbatch: Number of the microbatch.
        chunk: Model chunk: the index of a virtual stage among its rank's virtual stages.
        sequence: Index of the sequence split.
        second_microbatch: Microbatch of the backward in a range that names a forward and a backward
            (``FB``).
        second_chunk: Model chunk of the backward in a range that names a forward and a backward.
        occurrence: 0 for the first operation with a given rank, iteration, phase and numbers, and n
            for its n-th repetition.
        host_start_ns: Start of the operation's first range on the host.
        host_end_ns: End of the operation's last range on the host.
        cut: 1 if a range was still open when the capture ended, 2 if work launched by the range had
            not finished by then, else 0.
        tokens: Number of tokens that the operation processes.
        prefix: Number of earlier tokens of the same prompts that the operation reads.
        name_id: Index into ``names``.
        names: Range names.
        start_ns: Start on the device. Meaningless if ``has_span`` is 0.
        end_ns: End on the device. Meaningless if ``has_span`` is 0.
        has_span: 1 if the operation has GPU work, else 0. The span of an operation is the time from
            ``start_ns`` to ``end_ns``.
        kernels: Number of compute kernels.
        active_ns: Time during which at least one of the operation's compute kernels was running.
        busy_ns: Length of the span, excluding the gaps in which a receive of the operation waits.
        received_ns: End of the last receive launched inside the operation's ranges.
        launched_ns: Time at which the host launched the first kernel of the span. For an operation
            without recorded GPU work, the time at which the host launched work that was lost, or -1
            if the host launched no work.
        receive_start_ns: Time at which the last receive launched inside the operation started on
            the device.
        receive_launched_ns: Time at which the host launched the operation's last receive.
        virtual_stage: Virtual stage of the operation, or -1 if unknown.
        stages: Stage of each rank, or None for an unknown stage. Empty before alignment.
        global_ranks: Global rank of each rank in the job, or None if unknown. Empty before
            alignment.
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
        """Return operations whose GPU work is not yet known.

        Args:
            **columns: The columns up to ``names``. All other columns are set to 0 or -1.
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
        """Return the stage of each given rank, or -1 if the stage is unknown or the rank is -1."""
        return look_up_by_rank(self.stages, rank)

    def get_global_ranks(self, rank: Ints) -> Ints:
        """Return the global rank of each given rank, or -1 if it is unknown or the rank is -1."""
        return look_up_by_rank(self.global_ranks, rank)

    def list_columns(self) -> dict[str, Ints | CodedTexts]:
        """Return the columns to export, keyed by name.

        ``--csv`` writes the columns in this order. In that file, the two microbatches of a forward
        that overlaps a backward share one cell, as do the two chunks. ``start_ns`` and ``end_ns``
        are ``NO_INSTANT`` for operations without GPU work.
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
        """Return the columns of :meth:`list_columns` in Arrow format. Unknown values are null."""
        return {name: convert_column(name, column) for name, column in self.list_columns().items()}


def look_up_by_rank(numbers: Sequence[int | None], rank: Ints) -> Ints:
    """Look up a number for each given rank, or -1 if the number is unknown or the rank is -1.

    Args:
        numbers: Number of each rank, or None if unknown. Ranks beyond the end have no number.
        rank: Rank indices, or -1 for no rank.
    """
    n_ranks = max(len(numbers), int(rank.max(initial=NONE)) + 1)
    # Index -1 selects the last entry, which is -1.
    number_of_rank = np.full(n_ranks + 1, NONE, np.int64)
    number_of_rank[: len(numbers)] = [NONE if number is None else number for number in numbers]
    return np.asarray(number_of_rank[rank], np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class BusyIntervals(Table):
    """Intervals during which operations keep their GPU busy.

    The intervals of an operation are disjoint and sorted by start. For example, a receive waits
    inside this operation::

        kernels      ████  ██        ███
        receive                ▒▒▒▒
        busy         ├────────┤      ├─┤      (the wait is bubble; other gaps stay busy)

    Attributes:
        operation: Row of the operation in the operations table.
        start_ns: Start on the report's clock.
        end_ns: Exclusive end on the report's clock.
    """

    operation: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class RankIntervals(Table):
    """Time intervals on ranks, such as the times of unattributed compute kernels.

    The intervals of a rank are disjoint. The rows are sorted by (rank, start).

    Attributes:
        rank: Index of the rank.
        start_ns: Start on the report's clock.
        end_ns: Exclusive end on the report's clock.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class RunningTimes(Table):
    """How long kernels and copies ran on each rank, in disjoint time sections sorted by rank.

    The GPU work of an iteration forms one section, unless work from another iteration begins or
    ends inside it. Between iterations, a new section begins whenever the set of running kernels
    changes. This keeps the table small.

    Attributes:
        rank: Index of the rank.
        start_ns: Start of the section.
        end_ns: End of the section.
        running_ns: Time in the section during which at least one kernel or copy was running.
        communication_ns: Time in the section during which at least one communication kernel was
            running.
        overlapped_ns: Time in the section during which both a communication kernel and a compute
            kernel were running.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints
    running_ns: Ints
    communication_ns: Ints
    overlapped_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class HostActivities(Table):
    """Long host calls and ranges on launching threads while the GPU had run out of work.

    Attributes:
        rank: Index of the rank whose GPU had no work.
        operation: Row of the operation that was launched late, or -1 if a collective was launched
            late or the GPU ran out of work in the middle of an operation.
        start_ns: Start of the call or range.
        end_ns: End of the call or range.
        call: 1 for a CUDA call, 0 for a range.
        name_id: Index into ``Operations.names``.
    """

    rank: Ints
    operation: Ints
    start_ns: Ints
    end_ns: Ints
    call: Ints
    name_id: Ints


@dataclass(frozen=True)
class UnattributedKernels:
    """Compute kernels with the same name on one rank that are not part of any compute operation.

    Attributes:
        rank: Index of the rank.
        name: Name of the kernels.
        count: Number of kernels.
        gpu_ns: Total duration of the kernels.
        where: Description of the thread and range that launched the longest kernel.
    """

    rank: int
    name: str
    count: int
    gpu_ns: int
    where: str


@dataclass(frozen=True)
class RankCoverage:
    """Total durations of a rank's kernels and copies, and how much of them belongs to operations.

    Attributes:
        rank: Index of the rank.
        gpu_ns: Total duration of all compute kernels.
        attributed_gpu_ns: Total duration of the compute kernels inside compute operations.
        comm_ns: Total duration of all communication kernels.
        attributed_comm_ns: Total duration of the communication kernels launched inside named
            ranges.
        copy_ns: Total duration of all copies.
    """

    rank: int
    gpu_ns: int
    attributed_gpu_ns: int
    comm_ns: int
    attributed_comm_ns: int
    copy_ns: int


@dataclass(frozen=True)
class ProfileSummary:
    """Summary of one input file: its format, its kernels, and its clock correction.

    Attributes:
        path: Path as given by the user.
        host: Name of the host.
        format: Name of the input format.
        nsys_version: Version of the exporter, or None if unknown.
        schema_version: Version of the file's schema, or None if the file has none.
        kernels: Number of kernels.
        linked_kernels: Number of kernels whose launching call is known.
        attributed_kernels: Number of kernels that belong to an operation, including communication.
        cross_thread_kernels: Number of kernels launched on one thread but attributed to a backward
            on another thread.
        ambiguous_kernels: Number of kernels not attributed to any operation because several threads
            were running backwards when the kernels were launched.
        gpu_ns: Total duration of compute kernels.
        attributed_gpu_ns: Total duration of compute kernels inside compute operations.
        comm_ns: Total duration of communication kernels.
        copy_ns: Total duration of copies.
        clock_offset_ns: Correction that is added to the profile's clock at ``clock_t0_ns``.
        clock_drift_ppm: Rate at which the correction changes, in parts per million.
        clock_t0_ns: Time at which the correction equals ``clock_offset_ns``.
        clock_uncertainty_ns: Maximum error of the corrected clock, or None if it has no bound.
        session_utc_ns: UTC time of the host at time 0 of the profile, or None if unknown.
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
