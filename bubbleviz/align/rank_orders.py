"""Orders: in which order each rank runs the operations of its iterations, by its host."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bubbleviz.model.columns import Bools
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD, COUNTED, Phase
from bubbleviz.model.sorting import sorted_rows

_FORWARD = (Phase.F, Phase.FB)
_BACKWARD = (*BACKWARD, Phase.FB)


def orders_by_rank(
    operations: RankOperations, *, training: bool = False
) -> dict[int, Counter[bytes]]:
    """Return how often each rank ran which order: phase, microbatch and chunk of its operations.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        training: whether to leave out iterations that do not both go forward and come back.
    """
    counted = among(operations.phase, COUNTED) & (operations.iteration >= 0)
    rows = np.flatnonzero(counted & (operations.occurrence == 0))
    rows = rows[
        sorted_rows(
            operations.rank[rows], operations.iteration[rows], operations.host_start_ns[rows]
        )
    ]
    phase = operations.phase[rows]
    what = np.stack((phase, operations.microbatch[rows], operations.chunk[rows]), axis=1)
    groups = groups_of(operations.rank[rows], operations.iteration[rows])
    trains: Bools = np.ones(len(groups), bool)
    if training:
        for phases in (_FORWARD, _BACKWARD):
            own = among(phase, phases)
            trains &= np.bincount(groups.of_row[own], minlength=len(groups)) > 0
    orders: dict[int, Counter[bytes]] = {}
    runs = zip(groups.first, np.split(what, groups.first[1:]), trains, strict=True)
    for first, order, kept in runs:
        if kept:
            rank = int(operations.rank[rows[first]])
            orders.setdefault(rank, Counter())[order.tobytes()] += 1
    return orders
