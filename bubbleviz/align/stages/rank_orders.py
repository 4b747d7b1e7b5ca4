"""Rank orders: the sequence in which each rank's host launches the operations of an iteration."""

from __future__ import annotations

import numpy as np

from bubbleviz.model import grouping
from bubbleviz.model.columns import Bools, Codes, Ints
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import BACKWARD, COUNTED, Phase

#: The orders of all ranks, as columns with one row per distinct pair of rank and order. The columns
#: are the rank, the order number, the number of iterations in which the rank ran the order, and
#: whether the order is for training. An order for training contains both forwards and backwards.
#: Equal orders on different ranks have the same number.
Orders = tuple[Ints, Ints, Ints, Bools]


def find_orders(operations: Operations) -> Orders:
    """Find each rank's orders of operations, and count the iterations that ran in each order.

    An order lists the (phase, microbatch, chunk) of each forward and backward in an iteration,
    sorted by launch time (:func:`_count_orders`).

    Args:
        operations: Operations of all ranks, with iterations numbered separately for each rank.

    Returns:
        The orders of all ranks, sorted by (rank, order). Longer orders have larger numbers.
    """
    kinds = grouping.group_rows(operations.phase, operations.microbatch, operations.chunk)
    # Use the smallest type, because whole orders are compared as bytes.
    codes = kinds.of_row.astype(np.min_scalar_type(len(kinds)))
    numbers: Numbering[bytes] = Numbering()
    parts = [
        _count_orders(operations.take(rows), codes[rows], numbers)
        for rows in grouping.split_by_owner(operations.rank)
    ]
    rank, order, frequency = (np.concatenate(column) for column in zip(*parts, strict=True))
    phases_of_order = [
        operations.phase[kinds.first[np.frombuffer(o, codes.dtype)]] for o in numbers.values
    ]
    ways = (Phase.F, Phase.FB), (*BACKWARD, Phase.FB)
    is_training = np.array(
        [all(mask_phases(phase, way).any() for way in ways) for phase in phases_of_order], bool
    )
    # Renumber the orders so that longer orders have larger numbers.
    by_length = np.argsort(np.array([*map(len, phases_of_order)], np.int64), kind="stable")
    is_training, order = is_training[order], grouping.invert_permutation(by_length)[order]
    rows = grouping.sort_rows(rank, order)
    return rank[rows], order[rows], frequency[rows], is_training[rows]


def _count_orders(
    operations: Operations, codes: Codes, numbers: Numbering[bytes]
) -> tuple[Ints, Ints, Ints]:
    """Count the iterations in which each rank ran each order.

    An order consists of the forwards and backwards of an iteration, sorted by launch time. Repeated
    operations are left out.

    Args:
        operations: Operations of a subset of the ranks.
        codes: Code of the phase, microbatch and chunk of each operation.
        numbers: Numbering of all orders found so far. Modified in place.

    Returns:
        Rank, order and number of iterations, as three columns with one row per rank and order.
    """
    is_counted = mask_phases(operations.phase, COUNTED) & (operations.iteration >= 0)
    rows = np.flatnonzero(is_counted & (operations.occurrence == 0))
    keys = operations.rank[rows], operations.iteration[rows]
    rows = rows[grouping.sort_rows(*keys, operations.host_start_ns[rows])]
    rank = operations.rank[rows]
    first = grouping.find_run_starts(rank, operations.iteration[rows])
    lengths = np.diff(first, append=len(rows))
    order = np.empty(len(lengths), np.int64)
    for length in grouping.find_distinct(lengths).tolist():
        same_length = np.flatnonzero(lengths == length)
        codes_of_orders = codes[rows[first[same_length][:, None] + np.arange(length)]]
        order[same_length] = _number_orders(codes_of_orders, numbers)
    distinct_orders = grouping.group_rows(rank[first], order)
    frequency = np.bincount(distinct_orders.of_row, minlength=len(distinct_orders))
    return rank[first][distinct_orders.first], order[distinct_orders.first], frequency


def _number_orders(codes: Codes, numbers: Numbering[bytes]) -> Ints:
    """Return each order's number, and add new orders to the numbering.

    Args:
        codes: Codes of the operations in each order, shape (orders, operations).
        numbers: Numbering of all orders found so far. Modified in place.
    """
    data = codes.tobytes()
    size = codes.shape[1] * codes.itemsize
    return numbers.numbers([data[at : at + size] for at in range(0, len(data), size)])


def find_usual_orders(orders: Orders, *, training: bool = False) -> tuple[Ints, Ints]:
    """Return the ranks in ascending order, along with the most frequent order of each rank.

    If several of a rank's orders are equally frequent, the one that was numbered last wins, which
    is usually the longest. Ranks without an order are left out.

    Args:
        orders: Orders of all ranks, as returned by :func:`find_orders`.
        training: Whether to ignore orders without both forwards and backwards.
    """
    rank, order, frequency = (column[orders[3] | (not training)] for column in orders[:3])
    rows = grouping.find_first_rows(rank, -frequency, -order)
    return rank[rows], order[rows]
