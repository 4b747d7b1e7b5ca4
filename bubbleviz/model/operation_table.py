"""Operation tables: files that contain operations themselves, rather than kernels and ranges.

These are tables of any tracer, traces of operations, and recordings.
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
    """Properties of a rank in a table.

    Attributes:
        number: Number of the rank in the table.
        global_rank: Number of the rank in the run, or None if unknown.
        host: Hostname, or None if unknown.
        clock: Clock of its times, or None for the clock that all tables share.
        stage: Virtual stage of its model chunk 0, or None if unknown.
        pipeline: Pipeline of the rank, -1 if the table says that it is unknown, or None if the
            table has no such column.
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
    """A table of operations that was read from a file.

    Attributes:
        source: Origin of the table.
        operations: One row per operation, in any order. ``rank`` is an index of ``places`` and
            ``iteration`` an index of ``iterations``. Unknown values are -1, or 0 for ``kernels``.
        places: The ranks, in ascending order of their numbers.
        iterations: Names of iterations.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
        kind: Kind of each row that is a collective; empty for all others.
        group: Text with the ranks that take part in each collective; empty for all other rows.
        paired: Whether iterations with the same name are the same on all ranks.
        told: Names of the columns that were read.
        waits: Intervals in which an operation waited for its own receives and did not keep its GPU
            busy. In all tables of intervals, ``operation`` is a row of the table of operations.
        unattributed: Intervals in which a rank computed outside operations.
        exposed: Intervals in which a rank ran only collectives.
        overheads: Intervals in which the profiler delayed a rank.
        collectives: Collectives in a column of the table; empty if collectives are rows.
        pauses: Intervals in which a rank was not recorded.
        noun: Kind of file, for messages.
        notes: Limitations of the file.
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
