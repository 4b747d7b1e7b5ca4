"""Deviations: operations that are not where the schedule has them, in the report's numbers."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.recognition.order_codes import (
    BACKWARD,
    WEIGHTS,
    chunk_of,
    kind_of,
    microbatch_of,
)
from bubbleviz.explain.recognition.order_diff import OrderDifference, joined_codes
from bubbleviz.explain.recognition.orders import OrderedOperations, Orders
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen

#: Phases by kind of operation.
_PHASES = (Phase.F, Phase.BW, Phase.W)


@frozen
class Deviation:
    """An operation that is not where the schedule has it.

    Attributes:
        rank: index of the rank.
        iteration: index of the iteration.
        phase: F, B, W or BW.
        microbatch: as the report numbers it.
        chunk: likewise; -1 where the names hold none.
        what: ``late``, ``early``, ``missing``, ``extra`` or ``repeated``.
        places: by how many operations it is late or early, else 0.
    """

    rank: int
    iteration: int
    phase: Phase
    microbatch: int
    chunk: int
    what: str
    places: int


def deviations_of(orders: Orders, cell: int, diff: OrderDifference) -> list[Deviation]:
    """Return the deviations of one rank in one iteration.

    Args:
        orders: of all ranks.
        cell: of the rank and iteration.
        diff: of its order from the planned one.
    """
    ran = orders.of_cell(cell)
    splits = bool((kind_of(ran.code) == WEIGHTS).any())
    return [
        Deviation(
            int(orders.rank[cell]),
            int(orders.iteration[cell]),
            *_in_report(ran, code, splits=splits),
            what,
            places,
        )
        for what, code, places in joined_codes(diff)
    ]


def _in_report(ran: OrderedOperations, code: int, *, splits: bool) -> tuple[Phase, int, int]:
    """Return phase, microbatch and chunk of a code as the report has them.

    A missing operation takes them from another one of its microbatch and chunk.
    """
    wanted = np.array([code])
    row = np.flatnonzero(ran.code == code)
    if len(row):
        first = int(row[0])
        return Phase(int(ran.phase[first])), int(ran.microbatch[first]), int(ran.chunk[first])
    kind = int(kind_of(wanted)[0])
    phase = Phase.B if kind == BACKWARD and splits else _PHASES[kind]
    same_chunk = chunk_of(ran.code) == chunk_of(wanted)
    other = np.flatnonzero(same_chunk & (microbatch_of(ran.code) == microbatch_of(wanted)))
    if len(other):
        return phase, int(ran.microbatch[other[0]]), int(ran.chunk[other[0]])
    number = int(microbatch_of(wanted)[0])
    numbered = np.flatnonzero(same_chunk & (ran.microbatch >= 0))
    if not len(numbered):
        return phase, number, int(chunk_of(wanted)[0])
    # Where all others are equally far ahead of the code's numbers, so is this one.
    ahead = ran.microbatch[numbered] - microbatch_of(ran.code[numbered])
    number += int(ahead[0]) if (ahead == ahead[0]).all() else 0
    return phase, number, int(ran.chunk[numbered[0]])
