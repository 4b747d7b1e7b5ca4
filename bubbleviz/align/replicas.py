"""Replicas: which of those of neighbouring stages pass microbatches to each other.

While a microbatch is away from one stage, the next one waits for it and works on it. So of a pair
that belongs together the longer time holds the shorter one, of every microbatch, each on its own
clock; replicas that are not in step reveal those that do not belong together::

    stage 0, first replica     F├──────────────┤B
    stage 1, first replica         F██├────┤██B       belongs there
    stage 1, second replica      F██├─────────┤██B    does not fit
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.align.bounds.clock_segments import DRIFT
from bubbleviz.align.bounds.offsets import GRAIN_NS
from bubbleviz.align.neighbours import Timetable, follows, timetable
from bubbleviz.align.rank_chains import lack_many, pipelines_of
from bubbleviz.align.waits import Waits, following, passages, waits, waits_of_neighbours
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED

#: With more replicas than this, the user has to give the sizes of the run: each is compared with
#: each.
MOST_REPLICAS = 4096
#: A span may end a little after what the next stage waits for was sent: so much of it.
GIVE = 0.25


def matched(
    operations: RankOperations,
    inputs: Arrivals,
    virtual_stage: Ints,
    stage: Ints,
    number: Ints,
    machine: Ints,
) -> Ints:
    """Return the pipeline of each rank, -1 for all where more than one matching is possible.

    Args:
        operations: of all ranks, with iterations that are the same on all of them.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
        stage: of each rank; -1 for ranks that take no part.
        number: of each rank; pipelines are counted in its order.
        machine: a number for the clock of each rank.
    """
    unknown = np.full(len(stage), NONE, np.int64)
    by_number = np.argsort(number)
    stages = [by_number[stage[by_number] == s] for s in distinct(stage[stage >= 0]).tolist()]
    every = passages(operations, inputs)
    every = every.take((every.iteration >= 0) & (every.chunk >= 0))
    most = max(map(len, stages), default=0)
    if most > MOST_REPLICAS or len(every) == 0 or lack_many([len(own) for own in stages]):
        return unknown
    table = timetable(every, machine)
    held = stages_held(operations, virtual_stage, len(stage), table.chunks)

    def fits(ranks: Ints, others: Ints) -> Bools:
        return neighbours(table, ranks, others, held)

    found = pipelines_of(stages, fits, len(stage))
    return unknown if found is None else found


def stages_held(operations: RankOperations, virtual_stage: Ints, ranks: int, chunks: Ints) -> Ints:
    """Return the virtual stage of each chunk of each rank, shape (ranks, chunks); -1 none."""
    held = np.full((ranks, len(chunks)), NONE, np.int64)
    rows = np.flatnonzero(among(operations.phase, COUNTED) & np.isin(operations.chunk, chunks))
    held[operations.rank[rows], np.searchsorted(chunks, operations.chunk[rows])] = virtual_stage[
        rows
    ]
    return held


def neighbours(table: Timetable, ranks: Ints, others: Ints, held: Ints) -> Bools:
    """Return which ranks of one stage can form a pipeline with which ones of another.

    They are next to each other wherever the virtual stages of these follow each other, in either
    direction, as the second chunks of a V run back. Where ranks between them are missing, none do,
    and microbatches pass from each chunk to the same one of the other rank.

    Args:
        table: when microbatches pass.
        ranks: of one stage, the rows of the answer.
        others: of another one, its columns.
        held: the virtual stage of each chunk of each rank; -1 none.
    """
    fits = np.ones((len(ranks), len(others)), bool)
    pairs = [
        (i, j, stage, other)
        for i, stage in enumerate(held[ranks[0]].tolist())
        for j, other in enumerate(held[others[0]].tolist())
        if min(stage, other) >= 0
    ]
    near = [pair for pair in pairs if abs(pair[2] - pair[3]) == 1]
    for i, j, stage, other in near or [pair for pair in pairs if pair[0] == pair[1]]:
        if stage < other:
            fits &= follows(table, ranks, others, (i, j))[0]
        else:
            fits &= follows(table, others, ranks, (j, i))[0].T
    return fits


def nests(operations: RankOperations, inputs: Arrivals, virtual_stage: Ints) -> bool:
    """Return whether each virtual stage of a single pipeline can be the one before the next.

    Unequally fast replicas that were taken for stages of one pipeline show here: of
    some microbatch the shorter wait is not inside the longer one.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
    """
    every = waits(operations.changed(chunk=virtual_stage), inputs)
    return all(_holds(above, below, give=GIVE) for _, above, below in waits_of_neighbours(every))


def _holds(upper: Waits, lower: Waits, give: float = 0.0) -> bool:
    """Return whether every wait of a virtual stage holds those of the next one on the other rank.

    It may miss by ``give`` of what the other works.
    """
    i, j = following(upper, lower)
    slack = upper.waited_ns[i] - lower.waited_ns[j] - lower.worked_ns[j]
    grain = GRAIN_NS + DRIFT * upper.waited_ns[i] + give * lower.worked_ns[j]
    return bool((slack >= -grain).all())
