"""Local search, by swaps, for the best order of microbatches that differ in length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import Floats, Ints
from bubbleviz.schedules.measured_times import StageTimes
from bubbleviz.schedules.operation_graph import build_operation_graph
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.varied_times import compute_makespans

#: Number of orders that are tried in one round.
_N_TRIED_ORDERS = 48
#: The search ends after this many consecutive rounds without any improvement.
_PATIENCE = 6
#: Maximum number of rounds multiplied by the number of operations in the plan.
_MAX_TIMED_OPERATIONS = 60_000


def order_microbatches(plan: Plan, times: StageTimes) -> tuple[tuple[int, ...], float]:
    """Search for the fastest order in which to run microbatches of different lengths.

    The local search starts from the best of four orders (see :func:`_list_starting_orders`). Each
    round makes ``_N_TRIED_ORDERS`` copies of the best order, and swaps one random pair of
    microbatches in each copy. The fastest copy becomes the best order if its makespan is shorter.
    The plan itself does not change. Only the microbatches trade places.

    The random number generator has a fixed seed. The search ends after ``_PATIENCE`` consecutive
    rounds without a shorter makespan. The total number of rounds is at most
    ``_MAX_TIMED_OPERATIONS`` divided by the number of operations in the plan.

    Args:
        plan: Operations of each device, in order, for a single pipeline.
        times: Times of the stages, including the lengths of the microbatches.

    Returns:
        order: Index of the microbatch to run at each position in the new order.
        saved: Fraction of the measured order's makespan that the new order saves.
    """
    lengths, count = np.array(times.lengths), plan.microbatches
    mean_times, random = replace(times, lengths=()), np.random.default_rng(0)
    graph = build_operation_graph(plan)

    def time_orders(orders: Ints) -> Floats:
        """Return the makespan of each order in ns, given orders of shape (orders, positions)."""
        factors = lengths[orders].T
        return compute_makespans(
            plan, graph, mean_times, lambda operation: factors[operation.microbatch]
        )

    orders = _list_starting_orders(lengths)
    times_ns = time_orders(orders)
    measured_ns, shortest = float(times_ns[0]), int(times_ns.argmin())
    best_order, best_ns = orders[shortest], float(times_ns[shortest])
    n_rounds_without_gain = 0
    for _ in range(_MAX_TIMED_OPERATIONS // max(sum(map(len, plan.orders)), 1)):
        if n_rounds_without_gain == _PATIENCE:
            break
        orders = _swap_pairs(best_order, random.integers(0, count, (2, _N_TRIED_ORDERS)))
        times_ns = time_orders(orders)
        shortest = int(times_ns.argmin())
        n_rounds_without_gain += 1
        if times_ns[shortest] < best_ns:
            best_order = orders[shortest]
            best_ns = float(times_ns[shortest])
            n_rounds_without_gain = 0
    return tuple(best_order.tolist()), 1 - best_ns / measured_ns if measured_ns else 0.0


def _list_starting_orders(lengths: Floats) -> Ints:
    """Return four microbatch orders to start from, as an array of shape (4, microbatches).

    The orders are the measured order, ascending length, descending length, and an order with short
    microbatches at both ends. Short microbatches at the ends shorten the warm-up and the cool-down.
    """
    rising = np.argsort(lengths, kind="stable")
    hill = np.concatenate((rising[::2], rising[1::2][::-1]))
    return np.stack((np.arange(len(lengths)), rising, rising[::-1], hill))


def _swap_pairs(order: Ints, pairs: Ints) -> Ints:
    """Return copies of an order in which two microbatches are swapped.

    Args:
        order: The microbatches in order, shape (microbatches,).
        pairs: The two positions to swap in each copy, shape (2, copies).

    Returns:
        The copies, shape (copies, microbatches).
    """
    first, second = pairs
    orders, row = np.repeat(order[None], len(first), axis=0), np.arange(len(first))
    orders[row, first], orders[row, second] = order[second], order[first]
    return orders
