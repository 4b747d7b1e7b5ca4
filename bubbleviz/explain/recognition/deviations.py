"""List deviations: operations that did not run as planned, numbered as in the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.recognition import order_codes as codes
from bubbleviz.explain.recognition.order_differences import OrderDifference
from bubbleviz.explain.recognition.orders import IterationOrders, RankOrder
from bubbleviz.model.columns import Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase

#: Phase of each kind of operation, indexed by kind.
_PHASES = (Phase.F, Phase.BW, Phase.W)


@dataclass(frozen=True)
class Deviation:
    """An operation that did not run as the schedule planned.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        phase: Phase of the operation: F, B, W or BW.
        microbatch: Microbatch number in the report.
        chunk: Chunk number in the report, or -1 if names contain no chunk.
        what: Kind of the deviation: ``late``, ``early``, ``missing``, ``extra`` or ``repeated``.
        places: Number of operations by which the operation is late or early, counting only
            operations that ran in place. 0 if the operation is neither late nor early.
    """

    rank: int
    iteration: int
    phase: Phase
    microbatch: int
    chunk: int
    what: str
    places: int


def find_deviations(
    operations: Operations, ran: IterationOrders, cell: int, difference: OrderDifference
) -> Iterator[Deviation]:
    """Yield the deviations of one rank in one iteration.

    Late and early operations come first, then missing, extra and repeated operations.

    Args:
        operations: Operations in the report.
        ran: Orders of the iteration.
        cell: Index of the rank in ``ran``.
        difference: Difference between the order of the rank and the planned order.
    """
    order = ran.of_rank(cell, operations)
    rank = int(ran.rank[cell])
    for code, places in zip(difference.displaced, difference.places.tolist(), strict=True):
        kind = "late" if places > 0 else "early"
        yield Deviation(rank, ran.iteration, *_number_as_reported(code, order), kind, abs(places))
    for kind in ("missing", "extra", "repeated"):
        for code in getattr(difference, kind):
            yield Deviation(rank, ran.iteration, *_number_as_reported(code, order), kind, 0)


def _number_as_reported(code: Ints, order: RankOrder) -> tuple[Phase, int, int]:
    """Translate the code of an operation to its phase, microbatch and chunk in the report.

    The numbers are taken from the first of the following that exists:

    1. The operation itself.
    2. An operation with the same microbatch and chunk.
    3. An operation with the same chunk, which gives only the chunk number. The microbatch number is
       taken from the code. If all microbatch numbers of the chunk differ from their codes by the
       same offset, this offset is added.
    4. The code.

    Args:
        code: Code of the operation.
        order: Order of the rank.
    """
    kind, number = int(codes.get_kind(code)), int(codes.get_microbatch(code))
    chunk = int(codes.get_chunk(code))
    is_split = bool((codes.get_kind(order.code) == codes.WEIGHTS).any())
    phase = Phase.B if kind == codes.BACKWARD and is_split else _PHASES[kind]
    has_chunk = codes.get_chunk(order.code) == chunk
    is_same = order.code == code
    has_microbatch = has_chunk & (codes.get_microbatch(order.code) == number)
    for is_match in (is_same, has_microbatch):
        if is_match.any():
            row = int(is_match.argmax())
            if is_same[row]:
                phase = Phase(int(order.phase[row]))
            return phase, int(order.microbatch[row]), int(order.chunk[row])
    reported_numbers = np.flatnonzero(has_chunk & (order.microbatch >= 0))
    if not len(reported_numbers):
        return phase, number, chunk
    # If all reported numbers of the chunk differ from their codes by the same offset, apply it.
    ahead = order.microbatch[reported_numbers] - codes.get_microbatch(order.code[reported_numbers])
    number += int(ahead[0]) if (ahead == ahead[0]).all() else 0
    return phase, number, int(order.chunk[reported_numbers[0]])
