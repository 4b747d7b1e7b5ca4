"""The values that the stages hand on: ranks, operations, profiles.

Bulk data (operations, busy intervals) is columns; everything else is a small frozen value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bubbleviz.model.arrow import NO_INSTANT, ArrowTable, Column, column_of
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.model.phases import Phase


@dataclass(frozen=True)
class Rank:
    """One row of the picture: a device as one process of one host sees it.

    Attributes:
        index: place in pipeline order; the ``rank`` columns hold it.
        label: short name for people, unique in the report, for example ``"host1:2 GPU 0"``.
        host: hostname of the profile, or the name of its file where the export holds none.
        profile: index of the profile it was recorded in.
        pid: operating-system process id.
        device_id: device number as the process sees it (``deviceId`` of the CUPTI tables).
        uuid: the GPU's UUID, where the export tells it (a MIG instance has its own).
        gpu: the GPU's product name.
        pci: the GPU's place on the bus.
        stage: virtual stage of its model chunk 0; None where unknown.
        pipeline: index of the pipeline it belongs to; None where copies of a stage cannot be
            told apart.
        global_rank: number of the rank in the job, where ranges, files or tables tell it.
        bubble_ratio: mean of its own primary ratio over the averaged iterations, in a report; None
            where it is unknown.
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
        """The rank in the job where that is known, else the place in pipeline order."""
        return self.index if self.global_rank is None else self.global_rank


@dataclass(frozen=True, eq=False, repr=False)
class OperationKeys(Table):
    """What operations are, as the names and times of their ranges give it; ``-1`` is "none".

    Attributes:
        rank: index of the rank.
        iteration: index of the iteration.
        phase: code of :class:`bubbleviz.model.phases.Phase`.
        microbatch: microbatch number.
        chunk: model chunk, the index of a virtual stage among its rank's.
        sequence: sequence split.
        second_microbatch: for a range that names two things (``FB``), the backward's.
        second_chunk: likewise the chunk.
        occurrence: 0, or n for the n-th repetition of the same key.
        host_start_ns: start of its first range on the host.
        host_end_ns: end of its last range.
        cut: 1 where a range was still open when the capture ended, 2 where the work that it
            had launched was not done by then, else 0.
        tokens: how many tokens it takes.
        prefix: how many tokens of the same prompts earlier operations left for it to read.
        name_id: row of ``names``.
        names: texts of the ranges.
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


RankOperationsT = TypeVar("RankOperationsT", bound="RankOperations")


@dataclass(frozen=True, eq=False, repr=False)
class RankOperations(OperationKeys):
    """Operations of ranks whose stages are not known yet, with what they did; ``-1`` is "none".

    Attributes:
        start_ns: device start; meaningless where ``has_span`` is 0.
        end_ns: device end.
        has_span: 1 where the operation has GPU work, else 0.
        kernels: number of compute kernels.
        active_ns: length of the union of its compute kernels.
        busy_ns: span less the holes in which a receive of its own spins.
        received_ns: end of the last receive that was launched from inside its ranges.
        launched_ns: when the host launched the first of the kernels that make the span; without
            GPU work, when it launched work that was lost, or -1 if it launched nothing.
        receive_start_ns: device start of the last receive launched inside the operation.
        receive_launched_ns: when the host launched that receive.
    """

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

    @classmethod
    def of(cls: type[RankOperationsT], known: OperationKeys, **columns: Any) -> RankOperationsT:
        """Return what is known of operations with further columns."""
        return cls(**vars(known), **columns)


@dataclass(frozen=True, eq=False, repr=False)
class Operations(RankOperations, ArrowTable):
    """Operations in order of (rank, start_ns), on the report's clock; ``-1`` is "none".

    For Arrow's libraries (``polars.DataFrame(report.operations)``) a row is an operation, too: the
    columns of ``--csv`` with null for what is unknown, then ``second_microbatch, second_chunk,
    virtual_stage, busy_ns, launched_ns, global_rank``.

    The columns are those of :class:`OperationKeys` and :class:`RankOperations`, and these:

    Attributes:
        virtual_stage: place of its model chunk in the model's order; -1 unknown.
        stages: stage of each rank; None unknown.
        global_ranks: number of each rank in the job; None unknown.
    """

    virtual_stage: Ints
    stages: tuple[int | None, ...] = field(metadata={"shared": True})
    global_ranks: tuple[int | None, ...] = field(metadata={"shared": True})

    def stage_of(self, rank: Ints) -> Ints:
        """Return the stage of each of these ranks (-1: no rank); -1 where it is not known."""
        return of_ranks(self.stages, rank)

    def global_rank_of(self, rank: Ints) -> Ints:
        """Return the number in the job of each of these ranks; -1 as in :meth:`stage_of`."""
        return of_ranks(self.global_ranks, rank)

    def shown_columns(self) -> dict[str, Ints | CodedTexts]:
        """Return the columns of ``--csv`` by name, and some more; see :func:`known_in`."""
        spanned = self.has_span == 1
        return {
            "iteration": self.iteration,
            "rank": self.rank,
            "stage": self.stage_of(self.rank),
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
            "global_rank": self.global_rank_of(self.rank),
        }

    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns of ``--csv`` by name, and some more."""
        return {name: column_of(name, column) for name, column in self.shown_columns().items()}


def of_ranks(by_rank: Sequence[int | None], rank: Ints) -> Ints:
    """Return the number that each of these ranks has (-1: no rank); -1 where it is not known."""
    known = np.full(max(len(by_rank), int(rank.max(initial=NONE)) + 1) + 1, NONE, np.int64)
    known[: len(by_rank)] = [NONE if number is None else number for number in by_rank]
    return np.asarray(known[rank], np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class BusyIntervals(Table):
    """When operations keep their GPU busy: disjoint and sorted within one operation.

    A span with a receive that spins inside it::

        kernels      ████  ██        ███
        own receive            ▒▒▒▒
        busy         ├────────┤      ├─┤      (the hole is bubble; other holes stay busy)

    Attributes:
        operation: row of the operations table.
        start_ns: start on the report's clock.
        end_ns: end, exclusive.
    """

    operation: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class RankIntervals(Table):
    """Disjoint, sorted intervals of ranks (unattributed compute, for example)."""

    rank: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class RunningTimes(Table):
    """How long kernels and copies ran on ranks, stretch by stretch; disjoint, sorted by rank.

    Between two iterations' work a stretch is one in which the same things run; an iteration's work
    is one stretch (cut where another's begins or ends), so that the table stays small.

    Attributes:
        rank: the rank.
        start_ns: of the stretch.
        end_ns: of the stretch.
        running_ns: how long any kernel or copy ran in it.
        communication_ns: how long any communication kernel did.
        overlapped_ns: how long compute kernels of any kind ran beside these.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints
    running_ns: Ints
    communication_ns: Ints
    overlapped_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class HostActivities(Table):
    """What launching threads did while their GPU had run dry: long calls, and ranges.

    Attributes:
        rank: whose GPU that is.
        operation: row of the operation that was launched late; -1 where that was a collective, or
            the GPU ran dry inside an operation.
        start_ns: start of the call or range.
        end_ns: end of it.
        call: 1 for a CUDA call, 0 for a range.
        name_id: row of the operations' ``names``.
    """

    rank: Ints
    operation: Ints
    start_ns: Ints
    end_ns: Ints
    call: Ints
    name_id: Ints


@dataclass(frozen=True)
class UnattributedKernels:
    """Compute kernels of one name that no compute operation holds, on one rank."""

    rank: int
    name: str
    count: int
    gpu_ns: int
    where: str


@dataclass(frozen=True)
class RankCoverage:
    """How much of a rank's GPU time was explained, by sums of durations."""

    rank: int
    gpu_ns: int
    attributed_gpu_ns: int
    comm_ns: int
    attributed_comm_ns: int
    copy_ns: int


@dataclass(frozen=True)
class ProfileSummary:
    """One input file: what it is, what was linked, and how its clock was moved.

    ``clock_uncertainty_ns`` None means that nothing bounds it; ``session_utc_ns`` is its host's UTC
    when recording began, None where the file does not say. The counts and sums are those of
    the JSON report: ``attributed_kernels`` counts kernels of any operation, communication
    included, ``gpu_ns`` sums durations of compute kernels.
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
