"""Candidates: which schedule a pipeline's orders are, of all that they could be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from bubbleviz.explain.recognition.order_codes import in_microbatch_order, without_eager_weights
from bubbleviz.explain.recognition.order_diff import OrderDifference
from bubbleviz.explain.recognition.orders import planned_orders
from bubbleviz.explain.recognition.pipeline_orders import PipelineOrders
from bubbleviz.explain.recognition.plan_distance import (
    NEAR,
    PlanDistance,
    distance_of,
    is_exact,
    may_be_near,
)
from bubbleviz.explain.recognition.plans import Plans, PlanSizes, plans_like, split_share
from bubbleviz.explain.recognition.preference import in_preference
from bubbleviz.explain.recognition.structure import families_of
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan, Schedule


@frozen
class Verdict:
    """Which schedule a pipeline's orders are.

    Attributes:
        name: of the schedule; None for no known one.
        also: others with the same order, and searches that could have found it.
        distance: share of the planned operations that are not as planned; None where the order
            was recognised by its structure.
        differences: of each of the pipeline's orders from its device's; empty without a plan.
    """

    name: str | None = None
    also: tuple[str, ...] = ()
    distance: float | None = None
    differences: tuple[OrderDifference, ...] = ()

    @cached_property
    def deviates(self) -> bool:
        """Whether any order differs from its device's in the plan."""
        return any(diff.count for diff in self.differences)


def verdict(ran: PipelineOrders, plans: Plans) -> Verdict:
    """Return which schedule a pipeline's orders are: exactly, else nearly, else by structure."""
    chunks, microbatches = ran.chunks, ran.microbatches
    if not ran.orders or not microbatches:
        return Verdict()
    # A searched schedule has another order at other times: its structure identifies it.
    rules = [r for r in schedules() if r.searched is None or r.searched.limit is None]
    # With one chunk, schedules of several chunks are the last resort.
    by_chunks = [[rule for rule in rules if (rule.chunks > 1) == many] for many in (False, True)]
    for chosen in by_chunks if chunks == 1 else (rules,):
        for readings, directions in (
            ((ran, *_as_replicas(ran)), (1, 2)),
            (_fused(ran), (1, 2)),
            ((_without_places(ran),), (2,)),
        ):
            sizes = PlanSizes(chunks, microbatches, directions)
            nearest = _nearest(readings, plans, chosen, sizes)
            if nearest.name is None:
                continue
            searched = _families(ran, microbatches) if _differs_everywhere(nearest) else ()
            if searched:
                return Verdict(searched[0], searched[1:])
            return _with_searches(nearest, _families(ran, microbatches, eager=True))
    names = _families(ran, microbatches)
    return Verdict(names[0], names[1:]) if names else Verdict()


def verdict_of_plan(ran: PipelineOrders, plan: Plan, microbatches: int) -> Verdict | None:
    """Return how a pipeline's orders differ from a plan; None for a plan of other sizes.

    Args:
        ran: orders of the pipeline.
        plan: to compare with.
        microbatches: number of microbatches of each chunk.
    """
    sizes = plan.stages, plan.microbatches // plan.replicas, plan.chunks * plan.replicas
    devices = {ran.devices, *(split.devices for split in _as_replicas(ran))}
    if sizes[0] not in devices or sizes[1:] != (microbatches, ran.chunks):
        return None
    ran = _without_places(ran) if plan.replicas > 1 else ran
    distance = distance_of(ran, planned_orders(plan))
    return Verdict(plan.name, (), distance.share, distance.differences)


def _nearest(
    readings: Sequence[PipelineOrders],
    plans: Plans,
    rules: Sequence[Schedule],
    sizes: PlanSizes,
) -> Verdict:
    """Return the nearest verdict of several readings of the orders, the first exact if any."""
    best = Verdict()
    for ran in readings:
        result = _of_plans(ran, plans, rules, sizes)
        if result.distance == 0:
            return result
        if result.distance is not None and (
            best.distance is None or result.distance < best.distance
        ):
            best = result
    return best


def _of_plans(
    ran: PipelineOrders, plans: Plans, rules: Sequence[Schedule], sizes: PlanSizes
) -> Verdict:
    """Return the schedules whose plan is the orders, else those whose plan is nearest."""
    near: list[tuple[str, tuple[Ints, ...]]] = []
    exact: list[tuple[str, tuple[Ints, ...]]] = []
    for name, planned in plans_like(ran, plans, rules, sizes):
        (exact if is_exact(ran, planned) else near).append((name, planned))
    if exact:
        names = in_preference([name for name, _ in exact])
        return Verdict(names[0], names[1:], 0.0, distance_of(ran, exact[0][1]).differences)
    distances: list[tuple[str, PlanDistance]] = [
        (name, distance_of(ran, planned)) for name, planned in near if may_be_near(ran, planned)
    ]
    least = min((distance.share for _, distance in distances), default=1.0)
    nearest = [(name, distance) for name, distance in distances if distance.share == least]
    if not nearest or not nearest[0][1].is_near:
        return Verdict()
    names = in_preference([name for name, _ in nearest])
    chosen = next(distance for name, distance in nearest if name == names[0])
    return Verdict(names[0], names[1:], least, chosen.differences)


def _with_searches(result: Verdict, families: Sequence[str]) -> Verdict:
    """Return the verdict, with the searches that could have found the same order added."""
    names = (result.name, *result.also)
    return replace(result, also=(*result.also, *(name for name in families if name not in names)))


def _differs_everywhere(result: Verdict) -> bool:
    """Return whether half of the devices or more, and two at least, differ from the plan.

    Then the order was searched, and did not slip.
    """
    differing = sum(diff.count > 0 for diff in result.differences)
    return differing >= max(2, len(result.differences) / 2)


def _fused(ran: PipelineOrders) -> tuple[PipelineOrders, ...]:
    """Return the orders with each W and its backward as one, where nearly all follow at once."""
    fused = tuple(without_eager_weights(in_microbatch_order(order)) for order in ran.orders)
    if split_share(fused) > NEAR or split_share(ran.orders) <= NEAR:
        return ()
    return (replace(ran, orders=fused),)


def _without_places(ran: PipelineOrders) -> PipelineOrders:
    """Return the orders without their places.

    Where microbatches go both ways, the inferred stage order is wrong.
    """
    return replace(ran, places=(-1,) * len(ran.places))


def _as_replicas(ran: PipelineOrders) -> Iterator[PipelineOrders]:
    """Yield the orders as several replicas of fewer devices, where places are unknown."""
    if not ran.placed:
        for devices in range(ran.devices // 2, 0, -1):
            if ran.devices % devices == 0:
                yield replace(ran, devices=devices)


def _families(ran: PipelineOrders, microbatches: int, *, eager: bool = False) -> tuple[str, ...]:
    """Return the searched schedules with the structure of the orders."""
    if not ran.placed or len(set(ran.places)) < ran.devices:
        return ()
    by_place = dict(zip(ran.places, map(in_microbatch_order, ran.orders), strict=True))
    return families_of([by_place[place] for place in sorted(by_place)], microbatches, eager=eager)
