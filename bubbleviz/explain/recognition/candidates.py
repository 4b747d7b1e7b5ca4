"""Candidates: which schedule a pipeline's orders are, of all that they could be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from bubbleviz.explain.recognition.orders import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    PipelineOrders,
    chunk_of,
    coded,
    in_microbatch_order,
    kind_of,
    microbatch_of,
    planned_orders,
    without_eager_weights,
)
from bubbleviz.explain.recognition.plan_distance import (
    NEAR,
    OrderDifference,
    Plans,
    distance_of,
    is_exact,
    is_near,
    may_be_near,
    plans_like,
    split_share,
)
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, without
from bubbleviz.model.values import frozen
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan, Schedule

# Preference: which of several schedules with one order is named first.


#: With one device or one microbatch many schedules have one order. Others come after these.
_PREFERRED = (
    *("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"),
    *("zb-h1", "zb-h2", "zb-1p", "zb-2p", "interleaved-zb"),
    *("zb-v", "v-half", "v-min", "dualpipev", "dualpipe", "chimera"),
)
_PLACE = {name: place for place, name in enumerate(_PREFERRED)}


def in_preference(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of schedules, preferred ones first, others in alphabetical order."""
    return tuple(sorted(names, key=lambda name: (_PLACE.get(name, len(_PLACE)), name)))


# Structure: names of searched orders by how they are built, not operation by operation.
#
# A scheduler that is given times and a memory limit returns another order for other times. Its
# orders keep a structure: W split from the backward and delayed, one chunk a device or two in a V,
# and the most microbatches that a device holds from F to its backward: the peak that each searched
# schedule states. By source:
#
# - ``zb-1p``, ``zb-2p``: one chunk, p and 2p (Qi et al., Zero Bubble Pipeline Parallelism, arXiv
#   2401.10241, section 4; a microbatch whose W remains counts M_W of M_B there, so that only those
#   before their backward are bounded in number).
# - ``zb-v``, ``v-half``, ``v-min``: two chunks in a V, of half a microbatch each; p, (p + 2) / 2
#   and (p + 4) / 3 (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362,
#   section 3; these are the peaks of the orders that its own scheduler builds).


#: Share of backwards that must have a W of their own. Some schedulers fuse the last ones.
_SPLIT = 0.9


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
    # Every W follows its own backward at once, as if they were one.
    fused = [without_eager_weights(order) for order in orders]
    if not eager and not any((kind_of(order) == WEIGHTS).any() for order in fused):
        return ()
    count = chunks.pop()
    if not (_turns(orders[-1]) if count > 1 else _warms_up(orders)):
        return ()
    # A limit can be missed by a chunk at least.
    peak = max(peak_held(order) for order in orders) / count
    searched = {rule.name: rule for rule in schedules() if rule.searched is not None}
    peaks = [
        (min(search.peak(len(orders)), microbatches), name)
        for name in in_preference(tuple(searched))
        if (search := searched[name].searched) is not None and searched[name].chunks == count
    ]
    # Of those with the same peak (in small pipelines) the first is named.
    limit = min((limit for limit, _ in peaks if limit >= peak), default=None)
    return tuple(name for own, name in peaks if own == limit)


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
    sizes = ran.chunks, ran.microbatches
    if not ran.orders or not ran.microbatches:
        return Verdict()
    # A searched schedule has another order at other times: its structure identifies it.
    rules = [r for r in schedules() if r.searched is None or r.searched.limit is None]
    # With one chunk, schedules of several chunks are the last resort.
    by_chunks = [[rule for rule in rules if (rule.chunks > 1) == many] for many in (False, True)]
    for chosen in by_chunks if ran.chunks == 1 else (rules,):
        # Where microbatches go both ways, the inferred stage order is wrong.
        unplaced = replace(ran, places=(-1,) * len(ran.places))
        for readings, least in (((ran, *_as_replicas(ran)), 1), (_fused(ran), 1), ((unplaced,), 2)):
            nearest = _nearest(readings, plans, chosen, sizes, least)
            if nearest.name is None:
                continue
            # Where half of the devices or more, and two at least, differ from the plan, the order
            # was searched, and did not slip.
            differing = sum(diff.count > 0 for diff in nearest.differences)
            if differing >= max(2, len(nearest.differences) / 2):
                searched = _families(ran)
                if searched:
                    return Verdict(searched[0], searched[1:])
            # Searches could have found the same order.
            names = (nearest.name, *nearest.also)
            more = (name for name in _families(ran, eager=True) if name not in names)
            return replace(nearest, also=(*nearest.also, *more))
    searched = _families(ran)
    return Verdict(searched[0], searched[1:]) if searched else Verdict()


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
    if plan.replicas > 1:
        ran = replace(ran, places=(-1,) * len(ran.places))
    return Verdict(plan.name, (), *distance_of(ran, planned_orders(plan)))


def _nearest(
    readings: Iterable[PipelineOrders],
    plans: Plans,
    rules: Sequence[Schedule],
    sizes: tuple[int, int],
    least: int,
) -> Verdict:
    """Return the nearest verdict of several readings of the orders, the first exact if any.

    Args:
        readings: of the orders.
        plans: makes plans.
        rules: of the schedules.
        sizes: chunks of a device, and microbatches of each.
        least: fewest directions of plans.
    """
    best = Verdict()
    for ran in readings:
        near: list[tuple[str, tuple[Ints, ...]]] = []
        exact: list[tuple[str, tuple[Ints, ...]]] = []
        for name, planned in plans_like(ran, plans, rules, sizes, least):
            (exact if is_exact(ran, planned) else near).append((name, planned))
        if exact:
            names = in_preference([name for name, _ in exact])
            return Verdict(names[0], names[1:], 0.0, distance_of(ran, exact[0][1])[1])
        found = [
            (name, *distance_of(ran, planned))
            for name, planned in near
            if may_be_near(ran, planned)
        ]
        share = min((share for _, share, _ in found), default=1.0)
        nearest = [(name, differences) for name, own, differences in found if own == share]
        nearer = best.distance is None or share < best.distance
        if nearest and nearer and is_near(share, nearest[0][1]):
            names = in_preference([name for name, _ in nearest])
            chosen = next(differences for name, differences in nearest if name == names[0])
            best = Verdict(names[0], names[1:], share, chosen)
        if best.distance == 0:
            break
    return best


def _fused(ran: PipelineOrders) -> tuple[PipelineOrders, ...]:
    """Return the orders with each W and its backward as one, where nearly all follow at once."""
    fused = tuple(without_eager_weights(in_microbatch_order(order)) for order in ran.orders)
    if split_share(fused) > NEAR or split_share(ran.orders) <= NEAR:
        return ()
    return (replace(ran, orders=fused),)


def _as_replicas(ran: PipelineOrders) -> Iterator[PipelineOrders]:
    """Yield the orders as several replicas of fewer devices, where places are unknown."""
    if not ran.placed:
        for devices in range(ran.devices // 2, 0, -1):
            if ran.devices % devices == 0:
                yield replace(ran, devices=devices)


def _families(ran: PipelineOrders, *, eager: bool = False) -> tuple[str, ...]:
    """Return the searched schedules with the structure of the orders."""
    if not ran.placed or len(set(ran.places)) < ran.devices:
        return ()
    by_place = dict(zip(ran.places, map(in_microbatch_order, ran.orders), strict=True))
    orders = [by_place[place] for place in sorted(by_place)]
    return families_of(orders, ran.microbatches, eager=eager)


# Missing microbatches: those that no rank ran, though earlier and later ones ran.
#
# The orders are compared with the schedule without these microbatches, whose operations count as
# missing::
#
#     planned    F0 F1 F2 F3 B0 F4 B1 ...
#     measured   F0 F1 F2    B0 F4 B1 ...      F3 is missing, nothing is early


def completed_verdict(ran: PipelineOrders, plans: Plans) -> Verdict:
    """Return which schedule a pipeline's orders are, with microbatches that no rank ran missing."""
    missing = ran.missing_microbatches
    if not len(missing):
        return verdict(ran, plans)
    closed_up = replace(ran, orders=tuple(_closed_up(order, missing) for order in ran.orders))

    def plans_without(
        rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> tuple[tuple[Ints, ...], int] | None:
        """Return a plan of so many microbatches beside the missing ones, renumbered."""
        directions = closed_up.chunks // chunks
        whole = plans(rule, devices, microbatches + directions * len(missing), chunks)
        if whole is None:
            return None
        rest = (order[~np.isin(microbatch_of(order), missing)] for order in whole[0])
        return tuple(_closed_up(order, missing) for order in rest), whole[1]

    with_missing, plain = verdict(closed_up, plans_without), verdict(closed_up, plans)
    numbers = without(np.arange(closed_up.microbatches + len(missing)), missing)
    better = plain.distance is None or (with_missing.distance or 0.0) <= plain.distance
    if with_missing.distance is None or not better:
        return _renumbered(plain, numbers)
    lost = []
    for order in ran.orders:
        in_order = in_microbatch_order(order)
        kinds = distinct(in_order - microbatch_of(in_order))
        lost.append((kinds[:, None] + missing).ravel())
    done = sum(len(order) * n for order, n in zip(ran.orders, ran.replicas, strict=True))
    lost_count = sum(len(codes) * n for codes, n in zip(lost, ran.replicas, strict=True))
    distance = (with_missing.distance * done + lost_count) / (done + lost_count)
    return replace(_renumbered(with_missing, numbers, lost), distance=distance)


def completed_verdict_of_plan(ran: PipelineOrders, plan: Plan) -> Verdict | None:
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
