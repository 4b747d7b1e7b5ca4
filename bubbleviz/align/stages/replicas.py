"""Replicas: match ranks on consecutive stages into pipelines, using microbatch times.

A rank starts working on a microbatch only after the other rank has passed the microbatch on. The
clocks of the two ranks may differ, but the offset between them is the same throughout an
iteration::

    upper rank   F0├──┤ F1├──┤ ................ B0├──┤ B1├──┤
    lower rank         F0├───┤ F1├───┤ B0├───┤ B1├───┤

    the latest of (upper F ends - lower F starts) <= offset,
    the earliest of (upper B starts - lower B ends) >= offset, over all microbatches

If both ranks are on one machine, the offset is 0. If two ranks belong to pipelines with different
speeds, the time between them changes from one microbatch to the next. No single offset then
satisfies all bounds, even if the waits of each microbatch nest.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.align.stages.chains import find_pipelines
from bubbleviz.align.stages.stage_order import has_uneven_sizes
from bubbleviz.align.stages.timetables import build_timetable, match_stages
from bubbleviz.align.waits import Waits, measure_waits
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED

#: Maximum number of replicas to match, because all rank pairs are compared. For larger runs, the
#: user has to specify the parallel sizes.
MAX_REPLICAS = 4096


def match_replicas(
    operations: Operations, inputs: Arrivals, stage: Ints, number: Ints, machine: Ints
) -> Ints:
    """Match the replicas on consecutive stages into pipelines.

    Two ranks can be in the same pipeline if, in every iteration, a single clock offset explains the
    times of all microbatches (:func:`match_stages`). Pipelines are built from these pairs
    (:func:`find_pipelines`).

    Args:
        operations: Operations of all ranks, with their virtual stages, and with iteration numbers
            that mean the same on all ranks.
        inputs: Arrival times of all operations' inputs.
        stage: Stage of each rank, or -1 for a rank that runs no forwards or backwards.
        number: Rank numbers. Pipelines are numbered in order of rank numbers.
        machine: Machine of each rank. Ranks on the same machine share its clock.

    Returns:
        Pipeline of each rank, or -1 for a rank that is on no stage. All pipelines are -1 in these
        cases:

        - The matching is ambiguous or incomplete (:func:`find_pipelines`).
        - The stage sizes are too uneven (:func:`has_uneven_sizes`).
        - There are no waits.
        - A stage has more than ``MAX_REPLICAS`` ranks.
    """
    unknown = np.full(len(stage), NONE, np.int64)
    by_number = np.argsort(number)
    stages = [by_number[stage[by_number] == s] for s in find_distinct(stage[stage >= 0]).tolist()]
    waits = select_usable(measure_waits(operations, inputs))
    max_replicas = max(map(len, stages), default=0)
    if (
        max_replicas > MAX_REPLICAS
        or len(waits) == 0
        or has_uneven_sizes([len(of_stage) for of_stage in stages])
    ):
        return unknown
    table = build_timetable(waits, machine)
    virtual_stage = np.full((len(stage), len(table.chunks)), NONE, np.int64)
    rows = np.flatnonzero(
        mask_phases(operations.phase, COUNTED) & np.isin(operations.chunk, table.chunks)
    )
    chunk = np.searchsorted(table.chunks, operations.chunk[rows])
    virtual_stage[operations.rank[rows], chunk] = operations.virtual_stage[rows]

    def fits(ranks: Ints, other_ranks: Ints) -> Bools:
        return match_stages(table, ranks, other_ranks, virtual_stage)

    pipeline = find_pipelines(stages, fits, len(stage))
    return unknown if pipeline is None else pipeline


def select_usable(waits: Waits) -> Waits:
    """Return the waits whose iteration and chunk are both known (not -1)."""
    return waits.take((waits.iteration >= 0) & (waits.chunk >= 0))
