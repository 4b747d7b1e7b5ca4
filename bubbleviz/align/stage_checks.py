"""Checks of an order of stages: how far neighbours are apart, and what contradicts them."""

from __future__ import annotations

import numpy as np

from bubbleviz.align.waits import Arrivals, following, usual_waits, waits_of_neighbours
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import groups_of, sorted_rows
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import Phase


def slacks(
    operations: RankOperations, inputs: Arrivals, virtual_stage: Ints
) -> list[tuple[int, int, int]]:
    """Return (virtual stage, distance to the next one in ns, work of one of them in ns).

    The distance is the time that a microbatch is away from the one and neither away from nor
    worked on by the next, of the microbatch for which it is least: two transfers if nobody is late.
    Replicas of a stage are taken together.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
    """
    every = usual_waits(operations.changed(chunk=virtual_stage), inputs)
    neighbours = []
    for upper, above, below in waits_of_neighbours(every):
        i, j = following(above, below)
        # At the turn of a V one rank holds both, and may do other work in between.
        if len(i) and not np.isin(above.rank, below.rank).any():
            slack = above.waited_ns[i] - below.waited_ns[j] - below.worked_ns[j]
            worked = np.minimum(above.worked_ns[i], below.worked_ns[j])
            neighbours.append((upper, int(slack.min()), int(worked.min())))
    return neighbours


def contradicted(
    operations: RankOperations, virtual_stage: Ints, iteration: Ints, machine: Ints, pipeline: Ints
) -> int:
    """Return how many neighbours in the order of stages cannot be neighbours of a pipeline.

    Two ranks of one machine share a clock, and there a forward cannot end before the one
    upstream has, and its own work on that input is done. A span may begin with kernels that need
    no input, so ends are compared: a pair counts if most of its microbatches end downstream less
    than a quarter of their own work after upstream, as replicas of one stage (data or tensor
    parallel) do.

    Args:
        operations: of all ranks on one clock.
        virtual_stage: of each operation; -1 unknown.
        iteration: of each operation over all ranks.
        machine: a number for each rank's clock.
        pipeline: of each rank; -1 where replicas cannot be distinguished.
    """
    rows = np.flatnonzero(
        (operations.phase == Phase.F)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (virtual_stage >= 0)
        & (iteration >= 0)
    )
    rows = rows[pipeline[operations.rank[rows]] >= 0]
    if len(rows) == 0:
        return 0
    of_row = operations.rank[rows]
    machine = machine[of_row]
    microbatch = groups_of(
        pipeline[of_row], iteration[rows], operations.microbatch[rows], operations.sequence[rows]
    ).of_row
    place = sorted_rows(microbatch, virtual_stage[rows])
    above, below = place[:-1], place[1:]
    neighbours = (
        (microbatch[above] == microbatch[below])
        & (virtual_stage[rows][below] == virtual_stage[rows][above] + 1)
        & (machine[above] == machine[below])
        & (operations.rank[rows][above] != operations.rank[rows][below])
    )
    above, below = above[neighbours], below[neighbours]
    end_ns, busy_ns = operations.end_ns[rows], operations.busy_ns[rows]
    early = end_ns[below] < end_ns[above] + busy_ns[below] // 4
    stage = virtual_stage[rows][above]
    pairs = np.bincount(stage, minlength=1)
    return int((2 * np.bincount(stage[early], minlength=len(pairs)) > pairs).sum())
