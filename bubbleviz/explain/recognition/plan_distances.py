"""Measure the distance between the orders of a pipeline and the orders of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.explain.recognition import order_codes as codes
from bubbleviz.explain.recognition.order_differences import OrderDifference, compare_orders
from bubbleviz.explain.recognition.orders import encode_plan
from bubbleviz.explain.recognition.pipeline_orders import PipelineOrders
from bubbleviz.model.columns import Ints
from bubbleviz.schedules.plan import Schedule

#: Maximum distance between a run and its schedule, as a fraction of the planned operations. With 2
#: or more devices and 4 or more microbatches, the distance between schedules is at least 0.125.
MAX_DISTANCE = 0.1
#: Maximum distance between the first operations of two orders for a complete comparison.
_MAX_FIRST_DISTANCE = 0.3
#: Maximum number of planned orders to compare with an order whose device is unknown.
_MAX_COMPARED = 4
#: Maximum number of operations in a plan; larger plans take seconds to build.
_MAX_PLANNED = 2_000_000
#: Orders of a plan, one per device, and the number of directions of the plan.
#: A plan with two directions has two replicas that share the devices.
Planned = tuple[tuple[Ints, ...], int]
#: Function that builds the plan of a schedule for given numbers of devices, microbatches and
#: chunks. The result is None if the schedule does not exist for these numbers.
Plans = Callable[[Schedule, int, int, int], Planned | None]


def measure_distance(
    ran: PipelineOrders, planned: Sequence[Ints]
) -> tuple[float, tuple[OrderDifference, ...]]:
    """Measure what fraction of the planned operations did not run as planned.

    Args:
        ran: Orders in which the operations of a pipeline actually ran.
        planned: Planned order of each device.

    Returns:
        distance: Number of operations that are not as planned divided by the number of planned
            operations, over all ranks. 0 if no operation is planned.
        differences: Difference between each order and the planned order of its device. If devices
            are unknown, each order is compared with a similar planned order
            (:func:`_match_nearest`).
    """
    if ran.is_placed:
        matched = [planned[place] for place in ran.places]
    else:
        matched = _match_nearest(ran, planned)
    differences = [compare_orders(*pair) for pair in zip(ran.orders, matched, strict=True)]
    n_planned = sum(len(order) * n for order, n in zip(matched, ran.replicas, strict=True))
    n_off = sum(diff.count * n for diff, n in zip(differences, ran.replicas, strict=True))
    return n_off / n_planned if n_planned else 0.0, tuple(differences)


def _match_nearest(ran: PipelineOrders, planned: Sequence[Ints]) -> list[Ints]:
    """Choose a planned order for each order of a pipeline whose devices are unknown.

    Each planned order can be used once per replica of the pipeline. First, orders that are equal to
    a planned order are matched with it. Then each remaining order gets the nearest unused planned
    order, or the nearest one overall if all are used (:func:`_find_nearest_key`).
    """
    by_key = {order.tobytes(): order for order in planned}
    n_copies = max(sum(ran.replicas) // len(planned), 1)
    n_planned = Counter(order.tobytes() for order in planned)
    n_free = Counter({key: n * n_copies for key, n in n_planned.items()})
    first_backward = {key: codes.find_first_backward(order) for key, order in by_key.items()}
    is_equal = []
    for order, replicas in zip(ran.orders, ran.replicas, strict=True):
        is_equal.append(n_free[order.tobytes()] >= replicas)
        n_free[order.tobytes()] -= replicas if is_equal[-1] else 0
    matched: list[Ints] = []
    for order, replicas, equal in zip(ran.orders, ran.replicas, is_equal, strict=True):
        if equal:
            matched.append(order)
            continue
        free_keys = [key for key, count in n_free.items() if count > 0] or list(by_key)
        nearest = _find_nearest_key(order, free_keys, by_key, first_backward)
        n_free[nearest] -= replicas
        matched.append(by_key[nearest])
    return matched


def _find_nearest_key(
    order: Ints,
    keys: Sequence[bytes],
    planned: Mapping[bytes, Ints],
    first_backward: Mapping[bytes, int],
) -> bytes:
    """Return the key of the planned order that has the fewest differences from a measured order.

    Only four planned orders are compared: those whose first backward is at the nearest position,
    because similar orders have their first backward at about the same position. If several have
    equally few differences, the planned order whose first backward is nearest wins. Remaining ties
    go to the first key.

    Args:
        order: The measured order.
        keys: Keys of the planned orders to choose from. Must not be empty.
        planned: Planned orders by key.
        first_backward: Position of the first backward of each planned order, by key.
    """
    position = codes.find_first_backward(order)
    by_position = sorted(keys, key=lambda key: abs(first_backward[key] - position))
    distances = {
        key: compare_orders(order, planned[key]).count for key in by_position[:_MAX_COMPARED]
    }
    return min(distances, key=lambda key: distances[key])


def cache_plans() -> Plans:
    """Return a function that builds the plan of a schedule for given sizes and caches it."""

    @cache
    def plan_orders(rule: Schedule, devices: int, microbatches: int, chunks: int) -> Planned | None:
        try:
            plan = rule.plan(devices, microbatches, chunks)
        except UsageError:
            return None
        return encode_plan(plan), plan.replicas

    return plan_orders


def find_similar_plans(
    ran: PipelineOrders, plans: Plans, rules: Sequence[Schedule], min_directions: int
) -> Iterator[tuple[str, tuple[Ints, ...]]]:
    """Yield the name and orders of each plan that is similar enough for a full comparison.

    A plan must meet three conditions:

    - It splits backwards into B and W as the run does (:func:`_is_split_alike`).
    - It starts with similar operations (:func:`_has_similar_start`).
    - It is close to a sample of the orders (:func:`_can_be_near`).

    Plans with more than 2 million operations are left out.

    Args:
        ran: Orders in which the operations of a pipeline actually ran.
        plans: Function that returns the plan of a schedule for given sizes.
        rules: Schedules to try.
        min_directions: Minimum number of directions in the plans, 1 or 2.
    """
    chunks, microbatches, devices = ran.chunks, ran.microbatches, ran.devices
    if 3 * devices * chunks * _truncate_plan(microbatches, devices) > _MAX_PLANNED:
        return
    split = measure_split(ran.orders)
    for rule, directions in product(rules, range(min_directions, 3)):
        if chunks % directions:
            continue
        chunks_each, n_planned = chunks // directions, microbatches * directions
        n_short = _truncate_plan(n_planned, devices)
        short = plans(rule, devices, n_short, chunks_each)
        if short is None or short[1] != directions or not _is_split_alike(split, short[0]):
            continue
        if not _has_similar_start(ran, short[0], n_short // directions):
            continue
        if devices * 3 * chunks * microbatches > _MAX_PLANNED:
            continue
        full = plans(rule, devices, n_planned, chunks_each)
        if full is not None and _can_be_near(ran, full[0]):
            name = rule.with_one_chunk if chunks_each == 1 else None
            yield name or rule.name, full[0]


def _is_split_alike(split: float, planned: Sequence[Ints]) -> bool:
    """Return whether a plan splits the backward into B and W as the measured orders do.

    If the plan has any W, the measured orders must have at least one W. If the plan has no W, the
    measured orders may have up to 0.1 W per backward.

    Args:
        split: Number of W per backward in the measured orders.
        planned: Planned order of each device.
    """
    return split > 0 if measure_split(planned) > 0 else split <= MAX_DISTANCE


def _can_be_near(ran: PipelineOrders, planned: Sequence[Ints]) -> bool:
    """Return whether a sample of the orders is close enough to a plan to compare all orders.

    This check avoids comparing very different orders, which is slow. In a sample of four orders,
    the differences may be at most 20 % of the operations. If there are at most eight orders, or if
    their devices are unknown, the result is True without a check.

    Args:
        ran: Orders in which the operations of a pipeline actually ran.
        planned: Planned order of each device.
    """
    if not ran.is_placed or len(ran.orders) <= 8:
        return True
    sample = np.linspace(0, len(ran.orders) - 1, 4).astype(int).tolist()
    n_operations = sum(len(ran.orders[index]) for index in sample)
    return _count_differences(ran, planned, sample) <= 2 * MAX_DISTANCE * n_operations


def _has_similar_start(ran: PipelineOrders, planned: Sequence[Ints], length: int) -> bool:
    """Return whether the orders of a pipeline start like the orders of a plan.

    - If devices are known, the first, the middle and the last order are compared with the plan. The
      differences may be at most 30 % of the compared operations, counting both measured and planned
      operations. Two differences are always allowed.
    - If devices are unknown, at least half of the orders must start exactly like a planned order.

    Args:
        ran: Orders in which the operations of a pipeline actually ran.
        planned: Orders of a plan with ``length`` microbatches per direction. Plans with more
            microbatches start with the same ``length`` operations.
        length: Number of operations to compare at the start of each order.
    """
    if ran.is_placed:
        sample = sorted({0, len(ran.orders) // 2, len(ran.orders) - 1})
        n_allowed = max(_MAX_FIRST_DISTANCE * 2 * length * len(sample), 2)
        return _count_differences(ran, planned, sample, length) <= n_allowed
    starts = {order[:length].tobytes() for order in planned}
    n_equal = sum(order[:length].tobytes() in starts for order in ran.orders)
    return 2 * n_equal >= len(ran.orders)


def _count_differences(
    ran: PipelineOrders,
    planned: Sequence[Ints],
    sample: Sequence[int],
    length: int | None = None,
) -> int:
    """Return how many operations in a sample of orders are not as planned.

    Args:
        ran: Orders of a pipeline, whose devices are known.
        planned: Planned order of each device.
        sample: Indices of the orders to compare.
        length: Number of operations to compare at the start of each order, or None for all.
    """
    pairs = ((ran.orders[n][:length], planned[ran.places[n]][:length]) for n in sample)
    return sum(compare_orders(*pair).count for pair in pairs)


def _truncate_plan(microbatches: int, devices: int) -> int:
    """Return a smaller number of microbatches whose plan starts with the same operations.

    With p devices, numbers up to 4p are returned unchanged. Larger numbers are reduced by a
    multiple of 2p to a number from 2p to below 4p. So the result is divisible by the same group
    sizes.
    """
    max_microbatches = 2 * devices
    return (
        microbatches
        if microbatches <= 2 * max_microbatches
        else max_microbatches + microbatches % max_microbatches
    )


def measure_split(orders: Sequence[Ints]) -> float:
    """Return the number of W in all orders divided by the number of backwards in all orders."""
    kinds = codes.get_kind(np.concatenate((np.empty(0, np.int64), *orders)))
    counts = np.bincount(kinds, minlength=3)
    return float(counts[codes.WEIGHTS] / max(counts[codes.BACKWARD], 1))
