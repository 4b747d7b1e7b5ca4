"""Tables of operations, read from files that contain operations instead of kernels and ranges.

Three kinds of files contain operations: tables exported by any tracer, traces of operations, and
recordings of :mod:`bubbleviz.annotate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.model.columns import Ints
from bubbleviz.model.declared_collectives import DeclaredCollectives
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.operations import BusyIntervals, Operations
from bubbleviz.model.profile import DeclaredClock, Source


@dataclass(frozen=True)
class DeclaredRank:
    """Properties of a rank, as listed in a table of operations.

    Attributes:
        number: Rank number in the table.
        global_rank: Global rank in the run, or None if unknown.
        host: Hostname, or None if unknown.
        clock: Clock on which the rank's times were measured, or None for the clock that all tables
            share.
        stage: Virtual stage of the rank's model chunk 0, or None if unknown.
        pipeline: Number of the rank's pipeline, -1 if the table marks the pipeline as unknown, or
            None if the table has no pipeline column.
        world_size: Number of ranks in the run, or None if unknown.
    """

    number: int
    global_rank: int | None = None
    host: str | None = None
    clock: DeclaredClock | None = None
    stage: int | None = None
    pipeline: int | None = None
    world_size: int | None = None


@dataclass(frozen=True)
class OperationTable:
    """A table of operations read from a file.

    Attributes:
        source: The file that the table was read from.
        operations: One row per operation, in any order. ``rank`` is an index into ``places``, and
            ``iteration`` is an index into ``iterations``. Unknown values are -1, or 0 for
            ``kernels``.
        places: The ranks, sorted by their numbers in the table.
        iterations: Names of the iterations.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
        kind: Type of collective, such as ``AllReduce``, for rows that are collectives. Other rows
            have no string.
        group: Text that lists the ranks in the collective, for rows that are collectives. Other
            rows have no string.
        paired: Whether same-named iterations on different ranks are the same iteration.
        told: Names of the columns that were read from the file.
        waits: Intervals in which an operation waited for data, so that it did not keep its GPU
            busy. In this and the following interval tables, the column ``operation`` contains rows
            of ``operations``.
        unattributed: Intervals in which a rank computed outside of any operation.
        exposed: Intervals in which a rank ran only collectives.
        overheads: Intervals in which the profiler delayed a rank.
        collectives: Collectives listed in one of the table's columns. Empty if each collective is a
            row.
        pauses: Intervals in which a rank was not recorded.
        noun: File type for messages, such as "table of operations".
        notes: Limitations found while reading the file.
    """

    source: Source
    operations: Operations
    places: tuple[DeclaredRank, ...]
    iterations: tuple[str, ...]
    virtual_stage: Ints
    kind: CodedTexts
    group: CodedTexts
    paired: bool
    told: frozenset[str]
    waits: BusyIntervals
    unattributed: BusyIntervals = field(default_factory=BusyIntervals.make_empty)
    exposed: BusyIntervals = field(default_factory=BusyIntervals.make_empty)
    overheads: BusyIntervals = field(default_factory=BusyIntervals.make_empty)
    collectives: DeclaredCollectives = field(default_factory=DeclaredCollectives.make_empty)
    pauses: BusyIntervals = field(default_factory=BusyIntervals.make_empty)
    noun: str = "table of operations"
    notes: tuple[Limitation, ...] = ()
