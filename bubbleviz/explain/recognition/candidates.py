"""Candidates: which schedule a pipeline's orders are, of all that they could be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import pairwise

import numpy as np

from bubbleviz.explain.recognition.orders import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    chunk_of,
    coded,
    in_microbatch_order,
    kind_of,
    microbatch_of,
    planned_orders,
    without_eager_weights,
)
from bubbleviz.explain.recognition.pipeline_orders import PipelineOrders
from bubbleviz.explain.recognition.plan_distance import (
    NEAR,
    OrderDifference,
    PlanDistance,
    Plans,
    PlanSizes,
    distance_of,
    is_exact,
    may_be_near,
    plans_like,
    split_share,
)
from bubbleviz.explain.recognition.preference import in_preference
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, without
from bubbleviz.model.values import frozen
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan, Schedule

# Structure: names of searched orders by how they are built, not operation by operation.
#
# A scheduler that is given times and a memory limit returns another order for other times. Its
# orders
# keep a structure: W split from the backward and delayed, one chunk a device or two in a V, and the
# most microbatches that a device holds from F to its backward: the peak that each searched schedule
# states. By source:
#
# - ``zb-1p``, ``zb-2p``: one chunk, p and 2p (Qi et al., Zero Bubble Pipeline Parallelism, arXiv
#   2401.10241, section 4; a microbatch whose W remains counts M_W of M_B there, so that only those
#   before their backward are bounded in number).
# - ``zb-v``, ``v-half``, ``v-min``: two chunks in a V, of half a microbatch each; p, (p + 2) / 2
# and
#   (p + 4) / 3 (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362,
#   section 3; these are the peaks of the orders that its own scheduler builds).


#: Share of backwards that must have a W of their own. Some schedulers fuse the last ones.
_SPLIT = 0.9


@frozen
class Family:
    """Orders of one kind.

    Attributes:
        name: of the schedule.
        chunks: model chunks per device; two are placed in a V.
        peak: microbatches that a device holds at most, by p.
    """

    name: str
    chunks: int
    peak: Callable[[int], float]


@cache
def families() -> tuple[Family, ...]:
    """Return a family for each searched schedule.

    Of those with the same peak (in small pipelines) the first is named.
    """
    searched = {
        schedule.name: Family(schedule.name, schedule.chunks, schedule.searched.peak)
        for schedule in schedules()
        if schedule.searched is not None
    }
    return tuple(searched[name] for name in in_preference(tuple(searched)))


def families_of(
    orders: Sequence[Ints], microbatches: int, *, eager: bool = False
) -> tuple[str, ...]:
    """Return the schedules with this structure; several where m or p does not distinguish them.

    Args:
        orders: of the devices from the first to the last stage, coded as in
            :mod:`bubbleviz.explain.recognition.orders`.
        microbatches: of the iteration.
        eager: whether every W may follow its own backward at once. A search finds such orders
            where transfers take long, and so runs every schedule whose backward is split in place.
    """
    chunks = {len(distinct(chunk_of(order))) for order in orders}
    if len(chunks) != 1 or not all(_is_split(order) for order in orders):
        return ()
    if _is_eager(orders) and not eager:
        return ()
    count = chunks.pop()
    if not (_turns(orders[-1]) if count > 1 else _warms_up(orders)):
        return ()
    # A limit can be missed by a chunk at least.
    peak = max(peak_held(order) for order in orders) / count
    allowed = [
        (min(family.peak(len(orders)), microbatches), family.name)
        for family in families()
        if family.chunks == count
    ]
    limit = min((limit for limit, _ in allowed if limit >= peak), default=None)
    return tuple(name for family_limit, name in allowed if family_limit == limit)


def peak_held(order: Ints) -> int:
    """Return the most chunks of microbatches whose F has run and whose backward has not."""
    kind = kind_of(order)
    steps = (kind == FORWARD).astype(np.int64) - (kind == BACKWARD)
    return int(np.cumsum(steps).max(initial=0))


def _is_split(order: Ints) -> bool:
    """Return whether nearly every backward has a W, and each kind runs in order."""
    kind = kind_of(order)
    backward, weights = order[kind == BACKWARD], order[kind == WEIGHTS]
    rising = all(
        bool((np.diff(order[(kind == passed) & (chunk_of(order) == chunk)]) > 0).all())
        for passed in (FORWARD, BACKWARD)
        for chunk in distinct(chunk_of(order)).tolist()
    )
    return rising and len(backward) > 0 and len(weights) >= _SPLIT * len(backward)


def _is_eager(orders: Sequence[Ints]) -> bool:
    """Return whether every W follows its own backward at once, as if they were one."""
    return all(len(without_eager_weights(order)) < len(order) for order in orders) and all(
        not (kind_of(without_eager_weights(order)) == WEIGHTS).any() for order in orders
    )


def _warms_up(orders: Sequence[Ints]) -> bool:
    """Return whether the last device alternates F and B, and no device warms up less than the next.

    GPipe with its backward split warms up with all forwards on every device.
    """
    ahead = [int((kind_of(order) == BACKWARD).argmax()) for order in orders]
    return ahead[-1] == 1 and all(upper >= lower for upper, lower in pairwise(ahead))


def _turns(last: Ints) -> bool:
    """Return whether two chunks are placed in a V: the last device runs both F of microbatch 0."""
    kinds, nothing = np.array([FORWARD, FORWARD]), np.array([0, 0])
    down, up = coded(kinds, np.array([0, 1]), nothing).tolist()
    at = {code: place for place, code in enumerate(last.tolist()) if code in (down, up)}
    return len(at) == 2 and at[up] - at[down] == 1


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


# Missing microbatches: those that no rank ran, though earlier and later ones ran.
#
# The orders are compared with the schedule without these microbatches, whose operations count as
# missing::
#
#     planned    F0 F1 F2 F3 B0 F4 B1 ...
#     measured   F0 F1 F2    B0 F4 B1 ...      F3 is missing, nothing is early


class _PlansWithout(Plans):
    """Plans without some microbatches, the others renumbered."""

    def __init__(self, plans: Plans, missing: Ints, chunks: int) -> None:
        super().__init__()
        self._plans, self._missing, self._chunks = plans, missing, chunks

    def of(
        self, rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> tuple[tuple[Ints, ...], int] | None:
        """Return the orders of a plan of so many microbatches beside the missing ones."""
        directions = self._chunks // chunks
        all_microbatches = microbatches + directions * len(self._missing)
        whole = self._plans.of(rule, devices, all_microbatches, chunks)
        if whole is None:
            return None
        rest = (order[~np.isin(microbatch_of(order), self._missing)] for order in whole[0])
        return tuple(_closed_up(order, self._missing) for order in rest), whole[1]


def missing_microbatches_verdict(ran: PipelineOrders, plans: Plans) -> Verdict:
    """Return which schedule a pipeline's orders are, with microbatches that no rank ran missing."""
    missing = ran.missing_microbatches
    if not len(missing):
        return verdict(ran, plans)
    closed_up = replace(ran, orders=tuple(_closed_up(order, missing) for order in ran.orders))
    with_missing = verdict(closed_up, _PlansWithout(plans, missing, closed_up.chunks))
    plain = verdict(closed_up, plans)
    numbers = without(np.arange(closed_up.microbatches + len(missing)), missing)
    better = plain.distance is None or (with_missing.distance or 0.0) <= plain.distance
    if with_missing.distance is not None and better:
        return _with_missing(with_missing, ran, missing, numbers)
    return _renumbered(plain, numbers)


def missing_microbatches_verdict_of_plan(ran: PipelineOrders, plan: Plan) -> Verdict | None:
    """Return how a pipeline's orders differ from a plan; None for a plan of other sizes."""
    missing = ran.missing_microbatches
    result = verdict_of_plan(ran, plan, ran.microbatches + len(missing))
    if result is not None or not len(missing):
        return result
    closed_up = replace(ran, orders=tuple(_closed_up(order, missing) for order in ran.orders))
    numbers = without(np.arange(closed_up.microbatches + len(missing)), missing)
    result = verdict_of_plan(closed_up, plan, closed_up.microbatches)
    return None if result is None else _renumbered(result, numbers)


def _closed_up(order: Ints, missing: Ints) -> Ints:
    """Return an order whose microbatches are renumbered without the missing ones."""
    return order - np.searchsorted(missing, microbatch_of(order))


def _renumbered(result: Verdict, numbers: Ints, missing: Sequence[Ints] = ()) -> Verdict:
    """Return a verdict in the pipeline's own numbers, with more operations missing.

    Args:
        result: in numbers without the missing microbatches.
        numbers: of each of these, the pipeline's own.
        missing: of each order, codes of missing operations; empty for none at all.
    """

    def renumber(codes: Ints) -> Ints:
        microbatch = microbatch_of(codes)
        known = microbatch < len(numbers)
        ahead = np.zeros(len(codes), np.int64)
        ahead[known] = numbers[microbatch[known]] - microbatch[known]
        return codes + ahead

    return replace(
        result,
        differences=tuple(
            OrderDifference(
                moved=renumber(diff.moved),
                places=diff.places,
                missing=np.append(renumber(diff.missing), missing[n] if missing else ()).astype(
                    np.int64
                ),
                extra=renumber(diff.extra),
                repeated=renumber(diff.repeated),
            )
            for n, diff in enumerate(result.differences)
        ),
    )


def _with_missing(result: Verdict, ran: PipelineOrders, absent: Ints, numbers: Ints) -> Verdict:
    """Return a verdict in the pipeline's own numbers, with absent microbatches as missing."""
    missing = []
    for order in ran.orders:
        plain = in_microbatch_order(order)
        kinds = distinct(plain - microbatch_of(plain))
        missing.append((kinds[:, None] + absent).ravel())
    done = sum(len(order) * n for order, n in zip(ran.orders, ran.replicas, strict=True))
    lost = sum(len(codes) * n for codes, n in zip(missing, ran.replicas, strict=True))
    distance = ((result.distance or 0.0) * done + lost) / (done + lost)
    return replace(_renumbered(result, numbers, missing), distance=distance)
