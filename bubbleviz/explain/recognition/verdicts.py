"""Decide which schedule the orders of a pipeline follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.explain.recognition import order_codes as codes
from bubbleviz.explain.recognition.order_differences import OrderDifference
from bubbleviz.explain.recognition.orders import encode_plan
from bubbleviz.explain.recognition.pipeline_orders import PipelineOrders
from bubbleviz.explain.recognition.plan_distances import (
    MAX_DISTANCE,
    Planned,
    Plans,
    find_similar_plans,
    measure_distance,
    measure_split,
)
from bubbleviz.explain.recognition.searched_schedules import (
    find_searched_schedules,
    sort_by_preference,
)
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct, subtract_values
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan, Schedule

#: Minimum ratio of the total number of ranks to the number of ranks whose order differs from the
#: plan; see :func:`_differ_on_few`.
_MIN_RANKS_PER_DIFFERENCE = 3


@dataclass(frozen=True)
class Verdict:
    """The schedule that the orders of a pipeline follow.

    Attributes:
        name: Name of the schedule, or None if no known schedule fits.
        also: Other schedules that have the same order, and searched schedules that could have it.
        distance: Fraction of the planned operations that are not as planned, or None if the orders
            were not compared with a plan.
        differences: Difference between each order of the pipeline and the planned order of its
            device, or empty if the orders were not compared with a plan.
    """

    name: str | None = None
    also: tuple[str, ...] = ()
    distance: float | None = None
    differences: tuple[OrderDifference, ...] = ()

    @cached_property
    def deviates(self) -> bool:
        """Whether any order differs from the planned order of its device."""
        return any(difference.count for difference in self.differences)


def classify_orders(ran: PipelineOrders, plans: Plans) -> Verdict:
    """Return the schedule that the orders of a pipeline follow.

    If the same microbatches are missing on all ranks, there are two explanations. Both are tried,
    and the one with the smaller distance wins. On a tie, the first explanation wins:

    1. All microbatches were planned, and some did not run. The plan contains all microbatches.
       Operations of microbatches that did not run are counted as missing.
    2. Fewer microbatches were planned. The plan contains only the number of microbatches that ran.

    In this example, the first explanation fits::

        planned    F0 F1 F2 F3 B0 F4 B1 ...
        measured   F0 F1 F2    B0 F4 B1 ...      F3 is missing, no operation is early

    Args:
        ran: Orders in which the operations of the pipeline actually ran.
        plans: Function that returns the plan of a schedule for given sizes.
    """
    missing = ran.missing_microbatches
    if not len(missing):
        return _find_schedule(ran, plans)

    def plan_all_but_missing(
        rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> Planned | None:
        """Plan all microbatches, then remove the operations of the missing ones from the plan."""
        n_missing = ran.chunks // chunks * len(missing)
        plan = plans(rule, devices, microbatches + n_missing, chunks)
        if plan is None:
            return None
        orders, directions = plan
        ran_orders = (order[~np.isin(codes.get_microbatch(order), missing)] for order in orders)
        return tuple(ran_orders), directions

    def plan_remaining(
        rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> Planned | None:
        """Plan the remaining number of microbatches, numbered like the microbatches that ran."""
        plan = plans(rule, devices, microbatches, chunks)
        return plan and (_skip_missing(plan[0], missing), plan[1])

    with_missing = _find_schedule(ran, plan_all_but_missing)
    without_missing = _find_schedule(ran, plan_remaining)
    if with_missing.distance is None:
        return without_missing
    if without_missing.distance is not None and without_missing.distance < with_missing.distance:
        return without_missing
    return _add_missing(with_missing, ran)


def _add_missing(verdict: Verdict, ran: PipelineOrders) -> Verdict:
    """Add the operations of missing microbatches to the differences and distance of a verdict.

    For each missing microbatch, an order lacks one operation for every (kind, chunk) pair that it
    contains. The new distance is ``(distance * n_ran + n_missing) / (n_ran + n_missing)``, where
    ``n_ran`` and ``n_missing`` count operations on all ranks.

    Args:
        verdict: Verdict from the comparison with a plan without the missing microbatches.
        ran: Orders in which the operations of the pipeline actually ran.
    """
    missing = []
    for order in map(codes.order_by_microbatch, ran.orders):
        kinds = find_distinct(order - codes.get_microbatch(order))
        missing.append((kinds[:, None] + ran.missing_microbatches).ravel())
    n_ran = sum(len(order) * n for order, n in zip(ran.orders, ran.replicas, strict=True))
    n_missing = sum(len(part) * n for part, n in zip(missing, ran.replicas, strict=True))
    differences = tuple(
        replace(difference, missing=np.concatenate((difference.missing, part)))
        for difference, part in zip(verdict.differences, missing, strict=True)
    )
    distance = ((verdict.distance or 0.0) * n_ran + n_missing) / (n_ran + n_missing)
    return replace(verdict, distance=distance, differences=differences)


def classify_by_plan(ran: PipelineOrders, plan: Plan) -> Verdict | None:
    """Compare the orders of a pipeline with a plan, or return None if their sizes differ.

    The sizes are the device, chunk and microbatch counts. Two differences are allowed:

    - If microbatches are missing on all ranks, the plan may contain either all microbatches or only
      the number that ran.
    - If devices are unknown, the ranks may be several replicas of the plan's devices.
    """
    missing, microbatches = ran.missing_microbatches, plan.microbatches // plan.replicas
    devices = {ran.devices, *(reading.devices for reading in _split_into_replicas(ran))}
    if plan.stages not in devices or plan.chunks * plan.replicas != ran.chunks:
        return None
    planned = encode_plan(plan)
    if microbatches != ran.microbatches + len(missing):
        if microbatches != ran.microbatches:
            return None
        planned = _skip_missing(planned, missing)
    compared_orders = ran if plan.replicas == 1 else ran.without_places
    distance, differences = measure_distance(compared_orders, planned)
    return Verdict(plan.name, (), distance, differences)


def _skip_missing(orders: Iterable[Ints], missing: Ints) -> tuple[Ints, ...]:
    """Renumber the microbatches of planned orders so that the missing numbers are skipped.

    For example, if 3 is missing, planned microbatches 3, 4, 5 become 4, 5, 6.
    """
    renumbered = []
    for order in orders:
        microbatch = codes.get_microbatch(order)
        n_numbers = int(microbatch.max(initial=0)) + 1 + len(missing)
        numbers = subtract_values(np.arange(n_numbers), missing)
        renumbered.append(order - microbatch + numbers[microbatch])
    return tuple(renumbered)


def _find_schedule(ran: PipelineOrders, plans: Plans) -> Verdict:
    """Return the schedule with the nearest plan, or else a searched schedule with this structure.

    The orders are compared with plans in three ways, and the first one that finds a schedule wins:

    1. As they are, or with each backward split on ranks that split none.
    2. With each W fused into its backward.
    3. With plans that have two directions.

    If devices have one chunk, all three ways are tried first with single-chunk schedules, and then
    with multi-chunk schedules.

    Args:
        ran: Orders in which the operations of the pipeline actually ran.
        plans: Function that returns the plan of a schedule for given sizes.
    """
    if not ran.orders or not ran.microbatches:
        return Verdict()
    # The order of a searched schedule depends on times, so only its structure identifies it.
    rules = [r for r in schedules() if r.searched is None or r.searched.limit is None]
    families = [rules]
    if ran.chunks == 1:
        # With one chunk, try multi-chunk schedules last.
        one_chunk = [rule for rule in rules if rule.chunks == 1]
        families = [one_chunk, [rule for rule in rules if rule.chunks > 1]]
    # If microbatches enter at both ends of the pipeline, the inferred stages are wrong.
    readings = (
        ((ran, *_split_backwards(ran), *_split_into_replicas(ran)), 1),
        (_merge_backwards(ran), 1),
        ((ran.without_places,), 2),
    )
    for family in families:
        for orders, min_directions in readings:
            nearest = _find_nearest(orders, plans, family, min_directions)
            if nearest.name is not None:
                return _consider_search(nearest, ran)
    searched = find_searched_schedules(ran)
    return Verdict(searched[0], searched[1:]) if searched else Verdict()


def _consider_search(nearest: Verdict, ran: PipelineOrders) -> Verdict:
    """Return the verdict of the nearest plan, or of a searched schedule that fits better.

    If at least half of the orders (and at least two of them) differ from the plan, the differences
    probably come from a search. Then a searched schedule with the structure of the orders wins.
    Otherwise, searched schedules with this structure are only added to ``also``. For ``also``,
    orders in which every W directly follows its backward are accepted as well (``eager``).

    Args:
        nearest: Verdict of the comparison with the nearest plan.
        ran: Orders in which the operations of the pipeline actually ran.
    """
    n_differing = sum(difference.count > 0 for difference in nearest.differences)
    if n_differing >= max(2, len(nearest.differences) / 2):
        searched = find_searched_schedules(ran)
        if searched:
            return Verdict(searched[0], searched[1:])
    names = (nearest.name, *nearest.also)
    other_searches = (
        name for name in find_searched_schedules(ran, eager=True) if name not in names
    )
    return replace(nearest, also=(*nearest.also, *other_searches))


def _find_nearest(
    readings: Iterable[PipelineOrders],
    plans: Plans,
    rules: Sequence[Schedule],
    min_directions: int,
) -> Verdict:
    """Return the verdict with the smallest distance over all interpretations of the orders.

    A plan is accepted if one of the following holds:

    - Its distance is at most :data:`.MAX_DISTANCE`.
    - At most one operation differs.
    - Most ranks ran their operations in the planned order (:func:`_differ_on_few`).

    Only the nearest plan of each interpretation is considered. If no plan is accepted, the verdict
    has no name. If several schedules have the same smallest distance, the first of
    :func:`.sort_by_preference` gives the name. The first interpretation wins ties.

    Args:
        readings: Orders of a pipeline in several interpretations.
        plans: Function that returns the plan of a schedule for given sizes.
        rules: Schedules to try.
        min_directions: Minimum number of directions in the plans.
    """
    best = Verdict()
    for ran in readings:
        measured = []
        for name, planned in find_similar_plans(ran, plans, rules, min_directions):
            distance, differences = measure_distance(ran, planned)
            measured.append((distance, name, differences))
        shortest = min((distance for distance, *_ in measured), default=1.0)
        nearest = {
            name: differences for distance, name, differences in measured if distance == shortest
        }
        if not nearest:
            continue
        # In the smallest runs, a single difference exceeds the maximum distance.
        differences = next(iter(nearest.values()))
        n_off = sum(difference.count for difference in differences)
        is_near = shortest <= MAX_DISTANCE or n_off <= 1 or _differ_on_few(ran, differences)
        if is_near and (best.distance is None or shortest < best.distance):
            names = sort_by_preference(nearest)
            best = Verdict(names[0], names[1:], shortest, nearest[names[0]])
        if best.distance == 0:
            break
    return best


def _differ_on_few(ran: PipelineOrders, differences: Sequence[OrderDifference]) -> bool:
    """Return whether at most a third of the ranks (possibly none) deviate, and only in order.

    For example, one stage may warm up with one microbatch too few or too many. The result is False
    if the devices of the orders are unknown, or if any operation is missing, extra or repeated.

    Args:
        ran: Orders in which the operations of the pipeline actually ran.
        differences: Difference between each order and the planned order of its device.
    """
    if not ran.is_placed:
        return False
    if any(d.count > len(d.displaced) for d in differences):
        return False
    n_differing = sum(n for d, n in zip(differences, ran.replicas, strict=True) if d.count)
    return _MIN_RANKS_PER_DIFFERENCE * n_differing <= sum(ran.replicas)


def _merge_backwards(ran: PipelineOrders) -> tuple[PipelineOrders, ...]:
    """Fuse each W that directly follows its backward into the backward.

    The result contains the fused orders as one pipeline. The result is empty if there is nothing to
    fuse (at most 0.1 W per backward), or if more than 0.1 W per backward remain after fusing.
    """
    in_order = map(codes.order_by_microbatch, ran.orders)
    fused = tuple(map(codes.drop_eager_weights, in_order))
    if measure_split(fused) > MAX_DISTANCE or measure_split(ran.orders) <= MAX_DISTANCE:
        return ()
    return (replace(ran, orders=fused),)


def _split_backwards(ran: PipelineOrders) -> tuple[PipelineOrders, ...]:
    """Split each backward into B and W on ranks without W, if other ranks have W.

    For example, JaxPP never splits the backwards of the first stage, which computes no gradients of
    inputs. The result contains these orders as one pipeline, or is empty if all ranks or no ranks
    have W.
    """
    has_weights = [bool((codes.get_kind(order) == codes.WEIGHTS).any()) for order in ran.orders]
    if all(has_weights) or not any(has_weights):
        return ()
    orders = tuple(
        order if has_weight else codes.add_eager_weights(order)
        for order, has_weight in zip(ran.orders, has_weights, strict=True)
    )
    return (replace(ran, orders=orders),)


def _split_into_replicas(ran: PipelineOrders) -> tuple[PipelineOrders, ...]:
    """Interpret the orders as several replicas of a pipeline with fewer devices.

    There is one interpretation for each proper divisor of the number of devices, largest first. If
    the device of each order is known, the result is empty.
    """
    fewer = () if ran.is_placed else range(ran.devices // 2, 0, -1)
    return tuple(replace(ran, devices=n) for n in fewer if ran.devices % n == 0)
