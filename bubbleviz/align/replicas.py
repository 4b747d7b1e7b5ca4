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

from bubbleviz.align.bounds.clock_segments import DRIFT
from bubbleviz.align.bounds.offsets import GRAIN_NS
from bubbleviz.align.waits import Waits, following, waits, waits_of_neighbours
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import RankOperations

#: With more replicas than this, the user has to give the sizes of the run.
_MOST_REPLICAS = 64
#: A span may end a little after what the next stage waits for was sent: so much of it.
_GIVE = 0.25


def matched(operations: RankOperations, virtual_stage: Ints, stage: Ints, number: Ints) -> Ints:
    """Return the pipeline of each rank, -1 for all where more than one matching is possible.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        virtual_stage: of each operation; -1 unknown.
        stage: of each rank; -1 for ranks that take no part.
        number: of each rank; pipelines are counted in its order, of their first ranks.
    """
    pipeline = np.full(len(stage), NONE, np.int64)
    positions = [np.flatnonzero(stage == s) for s in distinct(stage[stage >= 0]).tolist()]
    sizes = {len(ranks) for ranks in positions}
    if len(sizes) != 1 or sizes.pop() > _MOST_REPLICAS:
        return pipeline
    every = waits(operations.changed(chunk=virtual_stage))
    every = every.take(every.chunk >= 0)
    by_rank = [every.take(every.rank == rank) for rank in range(len(stage))]
    above = positions[0][np.argsort(number[positions[0]])]
    pipeline[above] = np.arange(len(above))
    for below in positions[1:]:
        fits = np.array([[_fits(by_rank[x], by_rank[y]) for y in below] for x in above])
        partner = _only_matching(fits)
        if partner is None:
            return np.full(len(stage), NONE, np.int64)
        above = below[partner]
        pipeline[above] = np.arange(len(above))
    return pipeline


def nests(operations: RankOperations, virtual_stage: Ints) -> bool:
    """Return whether each virtual stage of a single pipeline can be the one before the next.

    Unequally fast replicas that were taken for stages of one pipeline show here: of
    some microbatch the shorter wait is not inside the longer one.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        virtual_stage: of each operation; -1 unknown.
    """
    every = waits(operations.changed(chunk=virtual_stage))
    return all(_holds(above, below, give=_GIVE) for _, above, below in waits_of_neighbours(every))


def _fits(first: Waits, second: Waits) -> bool:
    """Return whether two ranks can be neighbours of one pipeline.

    Neighbours are all pairs of virtual stages that follow each other, in either direction, as the
    second chunks of a V run back.
    """
    return _holds(first, second) and _holds(second, first)


def _holds(upper: Waits, lower: Waits, give: float = 0.0) -> bool:
    """Return whether every wait of a virtual stage holds those of the next one on the other rank.

    It may miss by ``give`` of what the other works.
    """
    i, j = following(upper, lower)
    slack = upper.waited_ns[i] - lower.waited_ns[j] - lower.worked_ns[j]
    grain = GRAIN_NS + DRIFT * upper.waited_ns[i] + give * lower.worked_ns[j]
    return bool((slack >= -grain).all())


def _only_matching(fits: Bools) -> Ints | None:
    """Return the column of each row where just one perfect matching fits, else None.

    Where there is just one, some row or column always has a single partner left.
    """
    fits = fits.copy()
    partner = np.full(len(fits), NONE, np.int64)
    for _ in range(len(fits)):
        rows, columns = fits.sum(axis=1), fits.sum(axis=0)
        open_rows = np.flatnonzero(partner < 0)
        single = open_rows[rows[open_rows] == 1]
        if len(single):
            row = int(single[0])
            column = int(fits[row].argmax())
        else:
            lone = np.flatnonzero(columns == 1)
            if len(lone) == 0:
                return None
            column = int(lone[0])
            row = int(fits[:, column].argmax())
        partner[row] = column
        fits[row], fits[:, column] = False, False
    return partner
