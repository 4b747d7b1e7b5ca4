"""Candidates: which plans the orders of a pipeline could be, and how far they are from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.explain.recognition.order_diff import Difference, difference
from bubbleviz.explain.recognition.orders import (
    BACKWARD,
    WEIGHTS,
    alone,
    kind_of,
    planned_orders,
    settled,
)
from bubbleviz.explain.recognition.pipeline_orders import Crowd
from bubbleviz.explain.recognition.structure import families_of, without_eager
from bubbleviz.model.columns import Ints
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan, Schedule

#: With more operations elsewhere than this share, an order is not that of the schedule. Different
#: schedules of this package are at least 0.125 apart, from 2 devices and 4 microbatches on.
NEAR = 0.1
#: A plan whose first operations differ by more than this share is not looked at further.
_NEAR_AT_FIRST = 0.3
#: Where several schedules have one order (one device, or one microbatch), the first is named.
PREFERRED = (
    *("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"),
    *("zb-h1", "zb-h2", "zb-1p", "zb-2p", "interleaved-zb"),
    *("zb-v", "v-half", "v-min", "dualpipev", "dualpipe", "chimera"),
)
#: More operations than this take seconds to plan.
_MOST_PLANNED = 2_000_000
#: An order without a place is held against so many that turn round at about the same place.
_LOOKED_AT = 4


@dataclass(frozen=True)
class Verdict:
    """Which schedule a crowd ran.

    Attributes:
        name: of the schedule; None where it is none that is known.
        also: others with the same order, and searches that could have found it.
        distance: share of the planned operations that are not as planned; None where the order
            was recognised by its structure.
        differences: of each of the crowd's orders from its device's; empty without a plan.
    """

    name: str | None = None
    also: tuple[str, ...] = ()
    distance: float | None = None
    differences: tuple[Difference, ...] = ()


class Plans:
    """Plans by size, each made once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int, int], tuple[tuple[Ints, ...], int] | None] = {}

    def of(
        self, rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> tuple[tuple[Ints, ...], int] | None:
        """Return a schedule's orders and its directions; None where it allows no such size."""
        key = rule.name, devices, microbatches, chunks
        if key not in self._made:
            try:
                plan = rule.plan(devices, microbatches, chunks)
            except UsageError:
                self._made[key] = None
            else:
                self._made[key] = planned_orders(plan), plan.replicas
        return self._made[key]


def verdict(crowd: Crowd, plans: Plans) -> Verdict:
    """Return which schedule a crowd ran: exactly, else nearly, else by its structure."""
    chunks, microbatches = crowd.chunks, crowd.microbatches
    if not crowd.orders or not microbatches:
        return Verdict()
    # What is searched for has another order at other times: its structure tells it.
    rules = [r for r in schedules() if r.searched is None or r.searched.limit is None]
    # A schedule of several chunks has one only where no other will do.
    several = [[rule for rule in rules if (rule.chunks > 1) == many] for many in (False, True)]
    for chosen in several if chunks == 1 else (rules,):
        for owns, ways in (
            ((crowd, *_copied(crowd)), (1, 2)),
            (_fused(crowd), (1, 2)),
            ((_anywhere(crowd),), (2,)),
        ):
            found = _nearest(owns, plans, chosen, _Sizes(chunks, microbatches, ways))
            if found.name is not None:
                searched = _families(crowd, microbatches) if _everywhere(found) else ()
                if searched:
                    return Verdict(searched[0], searched[1:])
                return _or_searched(found, _families(crowd, microbatches, eager=True))
    names = _families(crowd, microbatches)
    return Verdict(names[0], names[1:]) if names else Verdict()


def _or_searched(found: Verdict, families: Sequence[str]) -> Verdict:
    """Return the verdict with the searches that could have found the same order beside it."""
    told = (found.name, *found.also)
    return replace(found, also=(*found.also, *(name for name in families if name not in told)))


def _everywhere(found: Verdict) -> bool:
    """Tell whether half of the devices or more, and two at least, differ from the plan.

    That is no slip, but the order of a schedule that was searched for.
    """
    differing = sum(own.count > 0 for own in found.differences)
    return differing >= max(2, len(found.differences) / 2)


def verdict_of_plan(crowd: Crowd, plan: Plan, microbatches: int) -> Verdict | None:
    """Return how a crowd of so many microbatches differs from a plan; None for other sizes."""
    sizes = plan.stages, plan.microbatches // plan.replicas, plan.chunks * plan.replicas
    held = crowd.devices, microbatches, crowd.chunks
    if sizes not in (held, *((own.devices, *held[1:]) for own in _copied(crowd))):
        return None
    crowd = _anywhere(crowd) if plan.replicas > 1 else crowd
    found = _differences(crowd, planned_orders(plan))
    return Verdict(plan.name, (), _distance(crowd, found), tuple(d for d, _ in found))


@dataclass(frozen=True)
class _Sizes:
    """What to plan: chunks of a device, microbatches of each, and into how many directions."""

    chunks: int
    microbatches: int
    ways: tuple[int, ...]


def _nearest(
    crowds: Sequence[Crowd], plans: Plans, rules: Sequence[Schedule], sizes: _Sizes
) -> Verdict:
    """Return the nearest of what crowds could have run, the first exact one if there is any."""
    best = Verdict()
    for crowd in crowds:
        found = _of_plans(crowd, plans, rules, sizes)
        if found.distance == 0:
            return found
        if found.distance is not None and (best.distance is None or found.distance < best.distance):
            best = found
    return best


def _of_plans(crowd: Crowd, plans: Plans, rules: Sequence[Schedule], sizes: _Sizes) -> Verdict:
    """Return the schedules whose plan is the crowd's order, else those whose is nearest."""
    near: list[tuple[str, tuple[Ints, ...]]] = []
    exact: list[tuple[str, tuple[Ints, ...]]] = []
    for name, planned in _planned(crowd, plans, rules, sizes):
        (exact if _is_exact(crowd, planned) else near).append((name, planned))
    if exact:
        names = _in_preference([name for name, _ in exact])
        return Verdict(
            names[0], names[1:], 0.0, tuple(d for d, _ in _differences(crowd, exact[0][1]))
        )
    found = []
    for name, planned in near:
        if _likely(crowd, planned):
            differences = _differences(crowd, planned)
            found.append((_distance(crowd, differences), name, differences))
    least = min((share for share, _, _ in found), default=1.0)
    nearest = [one for one in found if one[0] == least]
    if not nearest or not _is_near(nearest[0][2], crowd):
        return Verdict()
    names = _in_preference([name for _, name, _ in nearest])
    chosen = next(differences for _, name, differences in nearest if name == names[0])
    return Verdict(names[0], names[1:], least, tuple(d for d, _ in chosen))


def _planned(
    crowd: Crowd, plans: Plans, rules: Sequence[Schedule], sizes: _Sizes
) -> Iterator[tuple[str, tuple[Ints, ...]]]:
    """Yield the plans of this size that begin as the crowd does."""
    chunks, microbatches = sizes.chunks, sizes.microbatches
    if 3 * crowd.devices * chunks * _shorter(microbatches, crowd.devices) > _MOST_PLANNED:
        return
    splits = _split_share(crowd.orders)
    for rule in rules:
        for ways in sizes.ways:
            if chunks % ways:
                continue
            total, own = microbatches * ways, chunks // ways
            short = _shorter(total, crowd.devices)
            begun = plans.of(rule, crowd.devices, short, own)
            if begun is None or begun[1] != ways:
                continue
            share = _split_share(begun[0])
            if (share > 0 == splits) or (splits > NEAR and share == 0):
                continue
            if not _begins(crowd, begun[0], short // ways):
                continue
            if crowd.devices * 3 * chunks * microbatches > _MOST_PLANNED:
                continue
            whole = plans.of(rule, crowd.devices, total, own)
            if whole is not None:
                one = rule.with_one_chunk if own == 1 else None
                yield one or rule.name, whole[0]


def _shorter(microbatches: int, devices: int) -> int:
    """Return so few microbatches that a plan of them costs little, and begins as a longer one.

    It is as many less as make two for each device, so that a number that fills groups still does.
    """
    few = 2 * devices
    return microbatches if microbatches <= 2 * few else few + microbatches % few


def _split_share(orders: Sequence[Ints]) -> float:
    """Return how many weight gradients there are for each backward."""
    counts = [np.bincount(kind_of(order), minlength=3) for order in orders]
    backwards, weights = (sum(int(own[kind]) for own in counts) for kind in (BACKWARD, WEIGHTS))
    return weights / max(backwards, 1)


def _begins(crowd: Crowd, planned: Sequence[Ints], length: int) -> bool:
    """Tell whether the crowd's first operations are about those of a plan.

    A plan of ``length`` microbatches and one of more have as many operations in common at least.
    """
    if not crowd.placed:
        heads = {order[:length].tobytes() for order in planned}
        found = sum(order[:length].tobytes() in heads for order in crowd.orders)
        return 2 * found >= len(crowd.orders)
    sampled = sorted({0, len(crowd.orders) // 2, len(crowd.orders) - 1})
    off = sum(
        difference(crowd.orders[n][:length], planned[crowd.places[n]][:length]).count
        for n in sampled
    )
    return off <= max(_NEAR_AT_FIRST * 2 * length * len(sampled), 2)


def _likely(crowd: Crowd, planned: Sequence[Ints]) -> bool:
    """Tell by few of the devices whether a plan can be near; an order costs as it differs."""
    if not crowd.placed or len(crowd.orders) <= 8:
        return True
    sampled = np.linspace(0, len(crowd.orders) - 1, 4).astype(int).tolist()
    counts = [
        (difference(crowd.orders[n], planned[crowd.places[n]]).count, len(crowd.orders[n]))
        for n in sampled
    ]
    return sum(off for off, _ in counts) <= 2 * NEAR * sum(length for _, length in counts)


def _is_exact(crowd: Crowd, planned: Sequence[Ints]) -> bool:
    if crowd.placed:
        return all(
            np.array_equal(settled(order, planned[place]), planned[place])
            for order, place in zip(crowd.orders, crowd.places, strict=True)
        )
    ran: Counter[bytes] = Counter()
    for order, copies in zip(crowd.orders, crowd.copies, strict=True):
        ran[order.tobytes()] += copies
    wanted = Counter(order.tobytes() for order in planned)
    copies = sum(crowd.copies) // crowd.devices
    return ran == Counter({key: count * copies for key, count in wanted.items()})


def _differences(crowd: Crowd, planned: Sequence[Ints]) -> list[tuple[Difference, int]]:
    """Return the difference of each of the crowd's orders, and how many operations are planned."""
    if crowd.placed:
        pairs = zip(crowd.orders, crowd.places, strict=True)
        return [(difference(order, planned[place]), len(planned[place])) for order, place in pairs]
    return _matched(crowd, planned)


def _matched(crowd: Crowd, planned: Sequence[Ints]) -> list[tuple[Difference, int]]:
    """Return the same where devices are not told: each order takes the device nearest to it."""
    free: Counter[bytes] = Counter()
    for order in planned:
        free[order.tobytes()] += max(sum(crowd.copies) // len(planned), 1)
    by_key: Mapping[bytes, Ints] = {order.tobytes(): order for order in planned}
    turns = {key: _turn(order) for key, order in by_key.items()}
    found: list[tuple[Difference, int] | None] = []
    for order, copies in zip(crowd.orders, crowd.copies, strict=True):
        key = order.tobytes()
        fits = free[key] >= copies
        free[key] -= copies if fits else 0
        found.append((difference(order, order), len(order)) if fits else None)
    for number, (order, copies) in enumerate(zip(crowd.orders, crowd.copies, strict=True)):
        if found[number] is None:
            left = [key for key, count in free.items() if count > 0] or list(by_key)
            # What turns round at about the same place can be near.
            away = {key: abs(turns[key] - _turn(order)) for key in left}
            looked_at = sorted(left, key=away.__getitem__)[:_LOOKED_AT]
            pairs = [(difference(order, by_key[key]), key) for key in looked_at]
            best, key = min(pairs, key=lambda pair: pair[0].count)
            free[key] -= copies
            found[number] = best, len(by_key[key])
    return [one for one in found if one is not None]


def _turn(order: Ints) -> int:
    """Return the place of the first backward of an order."""
    return int((kind_of(order) == BACKWARD).argmax()) if len(order) else 0


def _distance(crowd: Crowd, found: Sequence[tuple[Difference, int]]) -> float:
    """Return the share of planned operations that are not as planned, over all ranks."""
    pairs = list(zip(found, crowd.copies, strict=True))
    planned = sum(count * copies for (_, count), copies in pairs)
    return sum(own.count * copies for (own, _), copies in pairs) / planned if planned else 0.0


def _is_near(found: Sequence[tuple[Difference, int]], crowd: Crowd) -> bool:
    """Tell whether a plan is what was meant; in the smallest runs, with one operation elsewhere."""
    return _distance(crowd, found) <= NEAR or sum(own.count for own, _ in found) <= 1


def _fused(crowd: Crowd) -> tuple[Crowd, ...]:
    """Return the crowd with each W and its backward as one, where nearly all follow at once."""
    fused = tuple(without_eager(alone(order)) for order in crowd.orders)
    if _split_share(fused) > NEAR or _split_share(crowd.orders) <= NEAR:
        return ()
    return (replace(crowd, orders=fused),)


def _anywhere(crowd: Crowd) -> Crowd:
    """Return the crowd without its places.

    How long microbatches are away from stages gives a wrong order where they go both ways.
    """
    return replace(crowd, places=(-1,) * len(crowd.places))


def _copied(crowd: Crowd) -> Iterator[Crowd]:
    """Yield the crowd as several copies of fewer devices, where nothing tells which ran what."""
    if not crowd.placed:
        for devices in range(crowd.devices // 2, 0, -1):
            if crowd.devices % devices == 0:
                yield replace(crowd, devices=devices)


def _families(crowd: Crowd, microbatches: int, *, eager: bool = False) -> tuple[str, ...]:
    if not crowd.placed or len(set(crowd.places)) < crowd.devices:
        return ()
    by_place = dict(zip(crowd.places, map(alone, crowd.orders), strict=True))
    return families_of([by_place[place] for place in sorted(by_place)], microbatches, eager=eager)


def _in_preference(names: Sequence[str]) -> tuple[str, ...]:
    order = {name: place for place, name in enumerate(PREFERRED)}
    return tuple(sorted(names, key=lambda name: (order.get(name, len(order)), name)))
