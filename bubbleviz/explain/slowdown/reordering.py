"""Reordering: how long iterations take where ranks run their operations as the schedule has them.

What is out of place goes back among what is in place; each operation of a rank takes the turn of
the one that ran there::

    measured   F0 F1 B0 F2 B1 B2      B0 is late by 1
    planned    F0 B0 F1 F2 B1 B2
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.recognition.deviations import Deviation
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import looked_up
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.sorting import sorted_rows

#: What orders hold; a rank that runs anything else between them keeps its order.
_ORDERED = (Phase.F, Phase.B, Phase.BW, Phase.W)
#: Deviations that say where an operation belongs.
_MOVED = ("late", "early")


def turns_of(
    operations: Operations, rows: Ints, deviations: Sequence[Deviation], iterations: Ints
) -> Ints:
    """Return the row whose turn each operation takes in the planned order: most keep their own.

    Ranks of whose operations some are missing, repeated or more than planned keep their order in
    that iteration.

    Args:
        operations: of all ranks.
        rows: of those that compute.
        deviations: of the run, all of them.
        iterations: of each iteration in the deviations, its index in the operations.
    """
    turns = np.arange(len(rows))
    moved = [d for d in deviations if d.what in _MOVED]
    table = np.array(
        [(iterations[d.iteration], d.rank, d.phase, d.microbatch, d.chunk) for d in moved],
        np.int64,
    ).reshape(-1, 5)
    keys = (
        operations.iteration,
        operations.rank,
        operations.phase,
        operations.microbatch,
        operations.chunk,
    )
    at = looked_up([key[rows] for key in keys], np.arange(len(rows)), list(table.T))
    places = np.array([d.places if d.what == "late" else -d.places for d in moved], np.int64)
    other = {(d.iteration, d.rank) for d in deviations if d.what not in _MOVED}
    cells = [(d.iteration, d.rank) for d in moved]
    for cell in sorted(set(cells) - other):
        own = np.array([c == cell for c in cells], bool)
        low, high = np.searchsorted(operations.rank[rows], (cell[1], cell[1] + 1)).tolist()
        of_rank = operations.take(rows[low:high])
        in_cell = of_rank.iteration == iterations[cell[0]]
        of_cell = low + np.flatnonzero(in_cell & (of_rank.phase != Phase.OPTIMIZER))
        if (at[own] == NONE).any() or not among(operations.phase[rows[of_cell]], _ORDERED).all():
            continue
        ran = of_cell[sorted_rows(operations.host_start_ns[rows[of_cell]])]
        by_turn = of_cell[sorted_rows(operations.start_ns[rows[of_cell]])]
        planned = _planned(ran, at[own], places[own], operations.microbatch[rows])
        turns[planned] = by_turn
    return turns


def _planned(ran: Ints, moved: Ints, places: Ints, microbatch: Ints) -> Ints:
    """Return the operations of a rank in the planned order.

    Args:
        ran: in measured order.
        moved: those of them that are out of place.
        places: by how many in place each of these is late.
        microbatch: of all operations.
    """
    kept = ~np.isin(ran, moved)
    by_row = np.argsort(ran)
    kept_before = np.cumsum(kept)[by_row[np.searchsorted(ran, moved, sorter=by_row)]]
    # Those in place have even turns; what goes behind the n-th of them has the odd turn after it.
    turn = np.concatenate((2 * np.arange(1, int(kept.sum()) + 1), 2 * (kept_before - places) + 1))
    rows = np.concatenate((ran[kept], moved))
    return np.asarray(rows[sorted_rows(turn, microbatch[rows])], np.int64)
