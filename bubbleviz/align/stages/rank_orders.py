"""Orders: the sequence of operations in each iteration of a rank, as launched by its host."""

from __future__ import annotations

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model.columns import Bools, Codes, Ints
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import BACKWARD, COUNTED, Phase

#: Each rank and an order that it ran, numbered over all ranks, in how many iterations, and whether
#: it goes forward and comes back.
Orders = tuple[Ints, Ints, Ints, Bools]


def orders_of(operations: Operations) -> Orders:
    """Return how often each rank ran which order.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
    """
    kinds = grouping.group_rows(operations.phase, operations.microbatch, operations.chunk)
    # In as few bytes as they need, since whole orders are compared.
    codes = kinds.of_row.astype(np.min_scalar_type(len(kinds)))
    numbers: Numbering[bytes] = Numbering()
    parts = [
        _orders_in(operations.take(rows), codes[rows], numbers)
        for rows in grouping.split_by_owner(operations.rank)
    ]
    rank, order, often = (np.concatenate(column) for column in zip(*parts, strict=True))
    held = [operations.phase[kinds.first[np.frombuffer(o, codes.dtype)]] for o in numbers.values]
    ways = (Phase.F, Phase.FB), (*BACKWARD, Phase.FB)
    trains = np.array([all(mask_phases(phase, way).any() for way in ways) for phase in held], bool)
    # Of several numbers that of a longer order is larger.
    longer = np.argsort(np.array([*map(len, held)], np.int64), kind="stable")
    trains, order = trains[order], grouping.invert_permutation(longer)[order]
    rows = grouping.sort_rows(rank, order)
    return rank[rows], order[rows], often[rows], trains[rows]


def _orders_in(
    operations: Operations, codes: Codes, numbers: Numbering[bytes]
) -> tuple[Ints, Ints, Ints]:
    """Return how often each rank of a stretch ran which order.

    Args:
        operations: of the ranks.
        codes: a number for the phase, microbatch and chunk of each.
        numbers: of the orders of all ranks so far.
    """
    counted = mask_phases(operations.phase, COUNTED) & (operations.iteration >= 0)
    rows = np.flatnonzero(counted & (operations.occurrence == 0))
    keys = operations.rank[rows], operations.iteration[rows]
    rows = rows[grouping.sort_rows(*keys, operations.host_start_ns[rows])]
    rank = operations.rank[rows]
    first = grouping.find_run_starts(rank, operations.iteration[rows])
    lengths = np.diff(first, append=len(rows))
    order = np.empty(len(lengths), np.int64)
    for length in grouping.find_distinct(lengths).tolist():
        own = np.flatnonzero(lengths == length)
        data = codes[rows[first[own][:, None] + np.arange(length)]].tobytes()
        size = length * codes.itemsize
        order[own] = numbers.numbers([data[at : at + size] for at in range(0, len(data), size)])
    ran = grouping.group_rows(rank[first], order)
    often = np.bincount(ran.of_row, minlength=len(ran))
    return rank[first][ran.first], order[ran.first], often


def usual_orders(orders: Orders, *, training: bool = False) -> tuple[Ints, Ints]:
    """Return ranks, ascending, and the most frequent order of each; of several the longest.

    Args:
        orders: of ranks.
        training: whether to leave out those that do not both go forward and come back.
    """
    rank, order, often = (column[orders[3] | (not training)] for column in orders[:3])
    rows = grouping.find_first_rows(rank, -often, -order)
    return rank[rows], order[rows]
