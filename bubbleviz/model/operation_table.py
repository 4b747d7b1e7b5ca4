"""Operation tables: the operations of a run as rows, told by whoever recorded them.

Where a profile holds kernels, calls and ranges, from which operations are worked out, a table holds
the operations themselves, and what else is known of the ranks that ran them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.model.collectives import ToldCollectives
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import CodedTexts
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import BusyIntervals, Operations
from bubbleviz.model.profile import Source, ToldClock


@dataclass(frozen=True)
class ToldPlace:
    """What a table tells of one rank.

    Attributes:
        number: that the table gives the rank.
        global_rank: its number in the run; None unknown.
        host: its hostname; None unknown.
        clock: that its times are of; None for the one that all tables share.
        stage: virtual stage of its model chunk 0; None unknown.
        pipeline: of the rank: -1 where it is told that nobody knows, None where nothing is told.
        world_size: how many ranks the run has; None unknown.
    """

    number: int
    global_rank: int | None = None
    host: str | None = None
    clock: ToldClock | None = None
    stage: int | None = None
    pipeline: int | None = None
    world_size: int | None = None


@dataclass(frozen=True)
class OperationTable:
    """A table of operations, read; its rows are in any order.

    Attributes:
        source: where it came from.
        operations: a row each; ``rank`` is the place in ``places``, ``iteration`` that in
            ``iterations``, and what the table does not tell is -1 (``kernels``: 0).
        places: the ranks, by the numbers that the table gives them.
        iterations: names of iterations.
        virtual_stage: of each operation; -1 unknown.
        kind: what each row does that is a collective, as the table names it; none elsewhere.
        group: among whom it does so; likewise.
        paired: whether iterations of one name are the same on all ranks.
        told: names of the columns that were read.
        waits: when operations did not keep their GPU busy, since receives of their own waited; the
            operation of these and further intervals is the row of the table.
        unattributed: when ranks computed outside operations.
        exposed: when only collectives ran on ranks.
        overheads: when the profiler held ranks up.
        collectives: that its cells hold; none where they are rows.
        pauses: when nothing of ranks was recorded.
        noun: what it is, in messages.
        notes: what its file could not tell.
    """

    source: Source
    operations: Operations
    places: tuple[ToldPlace, ...]
    iterations: tuple[str, ...]
    virtual_stage: Ints
    kind: CodedTexts
    group: CodedTexts
    paired: bool
    told: frozenset[str]
    waits: BusyIntervals
    unattributed: BusyIntervals = field(default_factory=BusyIntervals.none)
    exposed: BusyIntervals = field(default_factory=BusyIntervals.none)
    overheads: BusyIntervals = field(default_factory=BusyIntervals.none)
    collectives: ToldCollectives = field(default_factory=ToldCollectives.none)
    pauses: BusyIntervals = field(default_factory=BusyIntervals.none)
    noun: str = "table of operations"
    notes: tuple[Limitation, ...] = ()
