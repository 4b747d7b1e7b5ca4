"""Plan distance: how far the orders of a pipeline are from those of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.explain.recognition.order_codes import BACKWARD, in_planned_order, kind_of
from bubbleviz.explain.recognition.order_diff import OrderDifference, difference
from bubbleviz.explain.recognition.pipeline_orders import PipelineOrders
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen

#: With more operations elsewhere than this share, an order is not that of the schedule. Different
#: schedules of this package are at least 0.125 apart, from 2 devices and 4 microbatches on.
NEAR = 0.1
#: A plan whose first operations differ by more than this share is not compared further.
_NEAR_AT_FIRST = 0.3
#: An order without a place is compared with this many that turn back at about the same operation.
_COMPARED = 4


@frozen
class PlanDistance:
    """The distance of a pipeline's orders from a plan.

    Attributes:
        share: of the planned operations, those that are not as planned, over all ranks.
        differences: of each order from that of its device.
    """

    share: float
    differences: tuple[OrderDifference, ...]

    @property
    def is_near(self) -> bool:
        """Whether the plan is meant; in the smallest runs, with one operation elsewhere."""
        return self.share <= NEAR or sum(diff.count for diff in self.differences) <= 1


def distance_of(ran: PipelineOrders, planned: Sequence[Ints]) -> PlanDistance:
    """Return the distance of orders from those of a plan.

    Args:
        ran: orders of the pipeline.
        planned: order of each device of the plan.
    """
    if ran.placed:
        chosen = [planned[place] for place in ran.places]
        differences = [difference(*pair) for pair in zip(ran.orders, chosen, strict=True)]
    else:
        differences, chosen = _matched(ran, planned)
    lengths = [len(order) * n for order, n in zip(chosen, ran.replicas, strict=True)]
    off = sum(diff.count * n for diff, n in zip(differences, ran.replicas, strict=True))
    return PlanDistance(off / sum(lengths) if sum(lengths) else 0.0, tuple(differences))


def _matched(
    ran: PipelineOrders, planned: Sequence[Ints]
) -> tuple[list[OrderDifference], list[Ints]]:
    """Return differences and planned orders where places are unknown: each takes the nearest."""
    free: Counter[bytes] = Counter()
    for order in planned:
        free[order.tobytes()] += max(sum(ran.replicas) // len(planned), 1)
    by_key: Mapping[bytes, Ints] = {order.tobytes(): order for order in planned}
    turns = {key: _turn(order) for key, order in by_key.items()}
    matches: list[tuple[OrderDifference, Ints] | None] = []
    for order, replicas in zip(ran.orders, ran.replicas, strict=True):
        key = order.tobytes()
        fits = free[key] >= replicas
        free[key] -= replicas if fits else 0
        matches.append((difference(order, order), order) if fits else None)
    for number, (order, replicas) in enumerate(zip(ran.orders, ran.replicas, strict=True)):
        if matches[number] is None:
            left = [key for key, count in free.items() if count > 0] or list(by_key)
            # Orders that turn back at about the same operation can be near.
            away = {key: abs(turns[key] - _turn(order)) for key in left}
            compared = sorted(left, key=away.__getitem__)[:_COMPARED]
            pairs = [(difference(order, by_key[key]), key) for key in compared]
            nearest, key = min(pairs, key=lambda pair: pair[0].count)
            free[key] -= replicas
            matches[number] = nearest, by_key[key]
    known = [match for match in matches if match is not None]
    return [diff for diff, _ in known], [order for _, order in known]


def _turn(order: Ints) -> int:
    """Return the place of the first backward of an order."""
    return int((kind_of(order) == BACKWARD).argmax()) if len(order) else 0


def is_exact(ran: PipelineOrders, planned: Sequence[Ints]) -> bool:
    """Return whether all orders are those of a plan."""
    if ran.placed:
        return all(
            np.array_equal(in_planned_order(order, planned[place]), planned[place])
            for order, place in zip(ran.orders, ran.places, strict=True)
        )
    counts: Counter[bytes] = Counter()
    for order, replicas in zip(ran.orders, ran.replicas, strict=True):
        counts[order.tobytes()] += replicas
    wanted = Counter(order.tobytes() for order in planned)
    replicas = sum(ran.replicas) // ran.devices
    return counts == Counter({key: count * replicas for key, count in wanted.items()})


def begins_alike(ran: PipelineOrders, planned: Sequence[Ints], length: int) -> bool:
    """Return whether the first operations of orders are about those of a plan.

    A plan of ``length`` microbatches and one of more share at least that many operations.
    """
    if not ran.placed:
        heads = {order[:length].tobytes() for order in planned}
        shared = sum(order[:length].tobytes() in heads for order in ran.orders)
        return 2 * shared >= len(ran.orders)
    sampled = sorted({0, len(ran.orders) // 2, len(ran.orders) - 1})
    off = sum(
        difference(ran.orders[n][:length], planned[ran.places[n]][:length]).count for n in sampled
    )
    return off <= max(_NEAR_AT_FIRST * 2 * length * len(sampled), 2)


def may_be_near(ran: PipelineOrders, planned: Sequence[Ints]) -> bool:
    """Return whether a plan can be near, by a few devices; an order costs as it differs."""
    if not ran.placed or len(ran.orders) <= 8:
        return True
    sampled = np.linspace(0, len(ran.orders) - 1, 4).astype(int).tolist()
    off = sum(difference(ran.orders[n], planned[ran.places[n]]).count for n in sampled)
    return off <= 2 * NEAR * sum(len(ran.orders[n]) for n in sampled)
