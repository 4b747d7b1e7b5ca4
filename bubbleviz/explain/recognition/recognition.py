"""Recognition: which schedule ran, by the order in which ranks ran their operations.

Every pipeline of every iteration is recognised, then the run: by the name of most of its averaged
iterations. A few operations elsewhere do not change the name, and are listed as deviations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice, pairwise, product

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.explain.recognition import orders as codes
from bubbleviz.explain.recognition import reasons
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct, distinct_rows, without
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import INFERENCE, TRAINING, among
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.texts import counted
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.plan import Plan, Schedule

# Distance: how far the orders of a pipeline are from those of a plan.


#: With more operations elsewhere than this share, an order is not that of the schedule. Different
#: schedules of this package are at least 0.125 apart, from 2 devices and 4 microbatches on.
_NEAR = 0.1
#: A plan whose first operations differ by more than this share is not compared further.
_NEAR_AT_FIRST = 0.3
#: An order without a place is compared with this many that turn back at about the same operation.
_COMPARED = 4
#: More operations than this take seconds to plan.
_MOST_PLANNED = 2_000_000

#: A plan's orders and its directions (replicas).
Planned = tuple[tuple[Ints, ...], int]
#: Returns the plan of a schedule, by its rule and the numbers of devices, microbatches and chunks;
#: None where it allows no such size.
Plans = Callable[[Schedule, int, int, int], Planned | None]


def _distance_of(
    ran: codes.PipelineOrders, planned: Sequence[Ints]
) -> tuple[float, tuple[codes.OrderDifference, ...]]:
    """Return the distance of orders from those of each device of a plan.

    Of the planned operations that is the share that is not as planned, over all ranks; beside it
    stands the difference of each order from that of its device.
    """
    if ran.placed:
        chosen = [planned[place] for place in ran.places]
        differences = [codes.difference(*pair) for pair in zip(ran.orders, chosen, strict=True)]
    else:
        differences, chosen = _matched(ran, planned)
    planned_count = sum(len(order) * n for order, n in zip(chosen, ran.replicas, strict=True))
    off = sum(diff.count * n for diff, n in zip(differences, ran.replicas, strict=True))
    return off / planned_count if planned_count else 0.0, tuple(differences)


def _matched(
    ran: codes.PipelineOrders, planned: Sequence[Ints]
) -> tuple[list[codes.OrderDifference], list[Ints]]:
    """Return differences and planned orders where places are unknown: each takes the nearest."""
    by_key = {order.tobytes(): order for order in planned}
    copies = max(sum(ran.replicas) // len(planned), 1)
    free = Counter({key: n * copies for key, n in Counter(o.tobytes() for o in planned).items()})
    turns = {key: _turn(order) for key, order in by_key.items()}
    chosen: list[Ints | None] = []
    for order, replicas in zip(ran.orders, ran.replicas, strict=True):
        fits = free[order.tobytes()] >= replicas
        free[order.tobytes()] -= replicas if fits else 0
        chosen.append(order if fits else None)
    nearest: list[Ints] = []
    for order, replicas, own in zip(ran.orders, ran.replicas, chosen, strict=True):
        if own is None:
            left = [key for key, count in free.items() if count > 0] or list(by_key)
            # Orders that turn back at about the same operation can be near.
            left.sort(key=lambda key: abs(turns[key] - _turn(order)))
            key = min(left[:_COMPARED], key=lambda key: codes.difference(order, by_key[key]).count)
            free[key] -= replicas
        nearest.append(by_key[key] if own is None else own)
    return [codes.difference(*pair) for pair in zip(ran.orders, nearest, strict=True)], nearest


def _turn(order: Ints) -> int:
    """Return the place of the first backward of an order."""
    return int((codes.kind_of(order) == codes.BACKWARD).argmax()) if len(order) else 0


def _plans_once() -> Plans:
    """Return what makes plans, each once."""

    @cache
    def planned(rule: Schedule, devices: int, microbatches: int, chunks: int) -> Planned | None:
        try:
            plan = rule.plan(devices, microbatches, chunks)
        except UsageError:
            return None
        return codes.planned_orders(plan), plan.replicas

    return planned


def _plans_like(
    ran: codes.PipelineOrders, plans: Plans, rules: Sequence[Schedule], least: int
) -> Iterator[tuple[str, tuple[Ints, ...]]]:
    """Yield name and orders of the plans of some rules that a pipeline's orders may be near.

    Plans have ``least`` directions or more.
    """
    chunks, microbatches, devices = ran.chunks, ran.microbatches, ran.devices
    short = _shortened(microbatches, devices)
    if 3 * devices * chunks * short > _MOST_PLANNED:
        return
    split, few = _split_share(ran.orders), not ran.placed or len(ran.orders) <= 8
    some = np.linspace(0, len(ran.orders) - 1, 4).astype(int).tolist()
    most = 2 * _NEAR * sum(len(ran.orders[n]) for n in some)
    for rule, directions in product(rules, range(least, 3)):
        each, wanted = chunks // directions, microbatches * directions
        short = _shortened(wanted, devices)
        beginning = None if chunks % directions else plans(rule, devices, short, each)
        if beginning is None or beginning[1] != directions:
            continue
        planned_split = _split_share(beginning[0])
        if (planned_split > 0 and split == 0) or (split > _NEAR and planned_split == 0):
            continue
        if not _begins_alike(ran, beginning[0], short // directions):
            continue
        if devices * 3 * chunks * microbatches <= _MOST_PLANNED:
            whole = plans(rule, devices, wanted, each)
            # An order costs as it differs: of many a few tell whether all may be near.
            if whole is not None and (few or _off(ran, whole[0], some) <= most):
                yield (rule.with_one_chunk if each == 1 else None) or rule.name, whole[0]


def _begins_alike(ran: codes.PipelineOrders, planned: Sequence[Ints], length: int) -> bool:
    """Return whether the first operations of orders are about those of a plan.

    A plan of ``length`` microbatches and one of more share at least that many operations.
    """
    if ran.placed:
        sampled = sorted({0, len(ran.orders) // 2, len(ran.orders) - 1})
        most = max(_NEAR_AT_FIRST * 2 * length * len(sampled), 2)
        return _off(ran, planned, sampled, length) <= most
    heads = {order[:length].tobytes() for order in planned}
    return 2 * sum(own[:length].tobytes() in heads for own in ran.orders) >= len(ran.orders)


def _off(
    ran: codes.PipelineOrders,
    planned: Sequence[Ints],
    some: Sequence[int],
    length: int | None = None,
) -> int:
    """Return how many operations of some orders, or of the first in these, are not as planned."""
    pairs = ((ran.orders[n][:length], planned[ran.places[n]][:length]) for n in some)
    return sum(codes.difference(*pair).count for pair in pairs)


def _shortened(microbatches: int, devices: int) -> int:
    """Return so few microbatches that a plan of them is cheap, and begins as a longer one does.

    The difference is a multiple of two for each device, so that groups still divide it.
    """
    few = 2 * devices
    return microbatches if microbatches <= 2 * few else few + microbatches % few


def _split_share(orders: Sequence[Ints]) -> float:
    """Return the number of weight gradients for each backward."""
    kinds = codes.kind_of(np.concatenate((np.empty(0, np.int64), *orders)))
    counts = np.bincount(kinds, minlength=3)
    return float(counts[codes.WEIGHTS] / max(counts[codes.BACKWARD], 1))


# Structure: names of searched orders by how they are built, not operation by operation.
#
# A scheduler that is given times and a memory limit returns another order for other times. Its
# orders keep a structure: W split from the backward and delayed, one chunk per device or two in
# a V, and the most microbatches that a device holds from F to its backward: the peak that each
# searched schedule states. By source:
#
# - ``zb-1p``, ``zb-2p``: one chunk, p and 2p (Qi et al., Zero Bubble Pipeline Parallelism, arXiv
#   2401.10241, section 4; a microbatch whose W remains counts M_W of M_B there, so that only those
#   before their backward are bounded in number).
# - ``zb-v``, ``v-half``, ``v-min``: two chunks in a V, of half a microbatch each; p, (p + 2) / 2
#   and (p + 4) / 3 (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362,
#   section 3; these are the peaks of the orders that its own scheduler builds).


#: With one device or one microbatch many schedules have one order. Others come after these.
_PREFERRED = (
    *("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"),
    *("zb-h1", "zb-h2", "zb-1p", "zb-2p", "interleaved-zb"),
    *("zb-v", "v-half", "v-min", "dualpipev", "dualpipe", "chimera", "combined-1f1b"),
)
_PLACE = {name: place for place, name in enumerate(_PREFERRED)}
#: Share of backwards that must have a W of their own. Some schedulers fuse the last ones.
_SPLIT = 0.9


def _in_preference(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of schedules, preferred ones first, others in alphabetical order."""
    return tuple(sorted(names, key=lambda name: (_PLACE.get(name, len(_PLACE)), name)))


def _families(ran: codes.PipelineOrders, *, eager: bool = False) -> tuple[str, ...]:
    """Return the searched schedules with the structure of a pipeline's orders.

    These are several where m or p does not distinguish them. Every W may follow its own backward at
    once where ``eager``: a search finds such orders where transfers take long, and so runs every
    schedule whose backward is split in place.
    """
    if not ran.placed or len(set(ran.places)) < ran.devices:
        return ()
    by_place = dict(zip(ran.places, map(codes.in_microbatch_order, ran.orders), strict=True))
    orders = [by_place[place] for place in sorted(by_place)]
    chunks = {len(distinct(codes.chunk_of(order))) for order in orders}
    if len(chunks) != 1 or not all(map(_is_split, orders)):
        return ()
    # Every W follows its own backward at once, as if they were one.
    fused = map(codes.without_eager_weights, orders)
    if not eager and not any((codes.kind_of(order) == codes.WEIGHTS).any() for order in fused):
        return ()
    count, last = chunks.pop(), orders[-1]
    if count > 1:
        # In a V the last device runs both F of the first microbatch one after the other.
        least = min(int(codes.microbatch_of(order).min()) for order in orders)
        down, up = (np.flatnonzero(last == (chunk << 32) + least) for chunk in (0, 1))
        if not len(down) or not len(up) or up[-1] - down[-1] != 1:
            return ()
    else:
        # The last device alternates F and B, and none warms up less than the next. GPipe with its
        # backward split warms up with all forwards on every device.
        ahead = list(map(_turn, orders))
        if ahead[-1] != 1 or any(upper < lower for upper, lower in pairwise(ahead)):
            return ()
    # The most microbatches whose F has run and whose backward has not; a limit can be missed by a
    # chunk at least.
    kinds = map(codes.kind_of, orders)
    held = (np.cumsum((k == codes.FORWARD) * 1 - (k == codes.BACKWARD)).max() for k in kinds)
    peak = max(map(int, held)) / count
    searched = {rule.name: rule for rule in schedules() if rule.chunks == count}
    peaks = [
        (min(search.peak(len(orders)), ran.microbatches), name)
        for name in _in_preference(searched)
        if (search := searched[name].searched) is not None
    ]
    # Of those with the same peak (in small pipelines) the first is named.
    limit = min((limit for limit, _ in peaks if limit >= peak), default=None)
    return tuple(name for own, name in peaks if own == limit)


def _is_split(order: Ints) -> bool:
    """Return whether nearly every backward has a W, and each kind runs in order."""
    kind, chunk = codes.kind_of(order), codes.chunk_of(order)
    backwards, weights = int((kind == codes.BACKWARD).sum()), int((kind == codes.WEIGHTS).sum())
    rising = all(
        bool((np.diff(order[(kind == passed) & (chunk == one)]) > 0).all())
        for passed in (codes.FORWARD, codes.BACKWARD)
        for one in distinct(chunk).tolist()
    )
    return rising and backwards > 0 and weights >= _SPLIT * backwards


# Verdicts: which schedule a pipeline's orders are, of all that they could be.


@dataclass(frozen=True)
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
    differences: tuple[codes.OrderDifference, ...] = ()

    @cached_property
    def deviates(self) -> bool:
        """Whether any order differs from its device's in the plan."""
        return any(diff.count for diff in self.differences)


def verdict(ran: codes.PipelineOrders, plans: Plans) -> Verdict:
    """Return which schedule a pipeline's orders are, with microbatches that no rank ran missing.

    These are compared with the schedule without the missing microbatches, whose operations count as
    missing, and with one of so few microbatches::

        planned    F0 F1 F2 F3 B0 F4 B1 ...
        measured   F0 F1 F2    B0 F4 B1 ...      F3 is missing, nothing is early
    """
    missing = ran.missing_microbatches
    if not len(missing):
        return _nearest_or_searched(ran, plans)

    def with_missing(
        rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> Planned | None:
        more = ran.chunks // chunks * len(missing)
        plan = plans(rule, devices, microbatches + more, chunks)
        if plan is None:
            return None
        return tuple(own[~np.isin(codes.microbatch_of(own), missing)] for own in plan[0]), plan[1]

    def of_rest(rule: Schedule, devices: int, microbatches: int, chunks: int) -> Planned | None:
        plan = plans(rule, devices, microbatches, chunks)
        return plan and (_passing_over(plan[0], missing), plan[1])

    found, plain = _nearest_or_searched(ran, with_missing), _nearest_or_searched(ran, of_rest)
    if found.distance is None or (plain.distance is not None and found.distance > plain.distance):
        return plain
    lost = []
    for order in map(codes.in_microbatch_order, ran.orders):
        kinds = distinct(order - codes.microbatch_of(order))
        lost.append((kinds[:, None] + missing).ravel())
    done = sum(len(order) * n for order, n in zip(ran.orders, ran.replicas, strict=True))
    lost_count = sum(len(own) * n for own, n in zip(lost, ran.replicas, strict=True))
    differences = tuple(
        replace(diff, missing=np.concatenate((diff.missing, own)))
        for diff, own in zip(found.differences, lost, strict=True)
    )
    distance = (found.distance * done + lost_count) / (done + lost_count)
    return replace(found, distance=distance, differences=differences)


def _passing_over(orders: Iterable[Ints], missing: Ints) -> tuple[Ints, ...]:
    """Return planned orders whose microbatches are numbered past missing ones."""
    passed = []
    for order in orders:
        microbatch = codes.microbatch_of(order)
        numbers = without(np.arange(int(microbatch.max(initial=0)) + 1 + len(missing)), missing)
        passed.append(order - microbatch + numbers[microbatch])
    return tuple(passed)


def _nearest_or_searched(ran: codes.PipelineOrders, plans: Plans) -> Verdict:
    """Return which schedule orders are: exactly, else nearly, else by structure."""
    if not ran.orders or not ran.microbatches:
        return Verdict()
    # A searched schedule has another order at other times: its structure identifies it.
    rules = [r for r in schedules() if r.searched is None or r.searched.limit is None]
    # With one chunk, schedules of several chunks are the last resort.
    by_chunks = [[rule for rule in rules if (rule.chunks > 1) == many] for many in (False, True)]
    # Where microbatches go both ways, the inferred stage order is wrong.
    readings = (((ran, *_as_replicas(ran)), 1), (_fused(ran), 1), ((ran.unplaced,), 2))
    for chosen in by_chunks if ran.chunks == 1 else (rules,):
        for orders, least in readings:
            nearest = _nearest(orders, plans, chosen, least)
            if nearest.name is None:
                continue
            # Where half of the devices or more, and two at least, differ from the plan, the order
            # was searched, and did not slip.
            differing = sum(diff.count > 0 for diff in nearest.differences)
            searched = _families(ran) if differing >= max(2, len(nearest.differences) / 2) else ()
            if searched:
                return Verdict(searched[0], searched[1:])
            # Searches could have found the same order.
            names = (nearest.name, *nearest.also)
            more = (name for name in _families(ran, eager=True) if name not in names)
            return replace(nearest, also=(*nearest.also, *more))
    searched = _families(ran)
    return Verdict(searched[0], searched[1:]) if searched else Verdict()


def _nearest(
    readings: Iterable[codes.PipelineOrders], plans: Plans, rules: Sequence[Schedule], least: int
) -> Verdict:
    """Return the nearest verdict of several readings of orders, by plans of some directions."""
    best = Verdict()
    for ran in readings:
        every = list(_plans_like(ran, plans, rules, least))
        found = [(*_distance_of(ran, planned), name) for name, planned in every]
        share = min((own for own, *_ in found), default=1.0)
        nearest = {name: differences for own, differences, name in found if own == share}
        # In the smallest runs a plan is meant with one operation elsewhere.
        near = nearest and (
            share <= _NEAR or sum(diff.count for diff in next(iter(nearest.values()))) <= 1
        )
        if near and (best.distance is None or share < best.distance):
            names = _in_preference(nearest)
            best = Verdict(names[0], names[1:], share, nearest[names[0]])
        if best.distance == 0:
            break
    return best


def _fused(ran: codes.PipelineOrders) -> tuple[codes.PipelineOrders, ...]:
    """Return the orders with each W and its backward as one, where nearly all follow at once."""
    in_order = map(codes.in_microbatch_order, ran.orders)
    fused = tuple(map(codes.without_eager_weights, in_order))
    if _split_share(fused) > _NEAR or _split_share(ran.orders) <= _NEAR:
        return ()
    return (replace(ran, orders=fused),)


def _as_replicas(ran: codes.PipelineOrders) -> tuple[codes.PipelineOrders, ...]:
    """Return the orders as several replicas of fewer devices, where places are unknown."""
    fewer = () if ran.placed else range(ran.devices // 2, 0, -1)
    return tuple(replace(ran, devices=n) for n in fewer if ran.devices % n == 0)


def _verdict_of_plan(ran: codes.PipelineOrders, plan: Plan) -> Verdict | None:
    """Return how a pipeline's orders differ from a plan; None for a plan of other sizes."""
    missing, each = ran.missing_microbatches, plan.microbatches // plan.replicas
    devices = {ran.devices, *(split.devices for split in _as_replicas(ran))}
    if plan.stages not in devices or plan.chunks * plan.replicas != ran.chunks:
        return None
    planned = codes.planned_orders(plan)
    if each != ran.microbatches + len(missing):
        if each != ran.microbatches:
            return None
        planned = _passing_over(planned, missing)
    return Verdict(
        plan.name, (), *_distance_of(ran if plan.replicas == 1 else ran.unplaced, planned)
    )


# Deviations: operations that are not where the schedule has them, in the report's numbers.


#: Phases by kind of operation.
_PHASES = (Phase.F, Phase.BW, Phase.W)
#: Deviations that are listed; all are counted.
LISTED = 1000


@dataclass(frozen=True)
class Deviation:
    """An operation that is not where the schedule has it.

    Attributes:
        rank: index of the rank.
        iteration: index of the iteration.
        phase: F, B, W or BW.
        microbatch: as the report numbers it.
        chunk: likewise; -1 where the names hold none.
        what: ``late``, ``early``, ``missing``, ``extra`` or ``repeated``.
        places: by how many operations it is late or early, else 0.
    """

    rank: int
    iteration: int
    phase: Phase
    microbatch: int
    chunk: int
    what: str
    places: int


def _deviations_of(
    operations: Operations, ran: codes.IterationOrders, place: int, diff: codes.OrderDifference
) -> Iterator[Deviation]:
    """Yield the deviations of one rank in one iteration, late and early ones first.

    A missing operation takes its numbers from another one of its microbatch and chunk.
    """
    order, phases, microbatches, chunks = ran.of_rank(place, operations)
    splits = bool((codes.kind_of(order) == codes.WEIGHTS).any())

    def numbers(code: Ints) -> tuple[Phase, int, int]:
        """Return phase, microbatch and chunk of a code as the report has them."""
        kind, number, chunk = (
            int(codes.kind_of(code)),
            int(codes.microbatch_of(code)),
            int(codes.chunk_of(code)),
        )
        phase = Phase.B if kind == codes.BACKWARD and splits else _PHASES[kind]
        same_chunk = codes.chunk_of(order) == chunk
        for like in (order == code, same_chunk & (codes.microbatch_of(order) == number)):
            if like.any():
                row = int(like.argmax())
                phase = Phase(int(phases[row])) if order[row] == code else phase
                return phase, int(microbatches[row]), int(chunks[row])
        numbered = np.flatnonzero(same_chunk & (microbatches >= 0))
        if not len(numbered):
            return phase, number, chunk
        # Where all others are equally far ahead of the code's numbers, so is this one.
        ahead = microbatches[numbered] - codes.microbatch_of(order[numbered])
        number += int(ahead[0]) if (ahead == ahead[0]).all() else 0
        return phase, number, int(chunks[numbered[0]])

    late = [("late" if n > 0 else "early", abs(n)) for n in diff.places.tolist()]
    found = list(zip(diff.moved, late, strict=True))
    for what in ("missing", "extra", "repeated"):
        found += [(code, (what, 0)) for code in getattr(diff, what)]
    for code, moved in found:
        yield Deviation(int(ran.rank[place]), ran.iteration, *numbers(code), *moved)


# The run: what most of its pipelines ran in most of its iterations.


#: Added to the reason where range names hold no microbatches.
_INFERRED = "microbatches are counted by order, which may make one schedule look like another"


@dataclass(frozen=True)
class IterationOrder:
    """Which schedule an iteration ran.

    Attributes:
        iteration: index of the iteration.
        name: that of most of its pipelines; None for an order of its own.
        also: other schedules with the same order.
        exact: whether every operation of every pipeline is where the schedule has it.
        distance: share of the operations that are not; None where the order was recognised by
            its structure, or not at all.
        names: of its pipelines, where these differ.
    """

    iteration: int
    name: str | None
    also: tuple[str, ...]
    exact: bool
    distance: float | None
    names: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Recognition:
    """Which schedule a run ran.

    Attributes:
        name: of the schedule; None for an order of its own, or none at all.
        also: other schedules with the same order, and searches that could have found it.
        exact: whether all averaged iterations ran exactly this.
        distance: mean share of their operations that are elsewhere; None without a plan.
        reason: why there is no name, or how it was recognised; part of a sentence.
        iterations: every training iteration.
        judged: indices of those that decided: the averaged ones, if there are any.
        deviations: the first of them, by iteration and rank.
        deviation_count: how many there are.
        inferred: whether microbatches are counted by order, since names do not hold them.
    """

    name: str | None
    also: tuple[str, ...] = ()
    exact: bool = False
    distance: float | None = None
    reason: str = ""
    iterations: tuple[IterationOrder, ...] = ()
    judged: tuple[int, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    deviation_count: int = 0
    inferred: bool = False

    @property
    def agreeing(self) -> tuple[IterationOrder, ...]:
        """Those of the iterations that decided which have the name."""
        judged = set(self.judged)
        return tuple(i for i in self.iterations if i.iteration in judged and i.name == self.name)


def schedule_of(
    ranks: Sequence[Rank],
    operations: Operations,
    iterations: Sequence[Iteration],
    *,
    noted: frozenset[LimitationKind] = frozenset(),
    stages_missing: bool = False,
    pipeline_unproven: bool = False,
    ends_early: bool = False,
    order_refutes: bool = True,
) -> Recognition:
    """Return which schedule a run ran; none is named where stages are or may be missing.

    A run that kept a schedule exactly, from its first to its last stage, refutes that they may be,
    but not that the last stage of GPipe is missing: all of its stages run one order. Stages that
    are missing before or between those of a run may leave an order that is a schedule as well.

    Args:
        ranks: of the report.
        operations: of these.
        iterations: of the report.
        noted: kinds of the run's limitations.
        stages_missing: whether no profile holds some virtual stages of the run.
        pipeline_unproven: whether nothing shows that the ranks are stages, and not replicas of one.
        ends_early: whether stages may be missing behind the last one that the profiles hold.
        order_refutes: Whether a schedule that the ranks kept exactly refutes that stages may be
            missing.
    """
    inferred = LimitationKind.MICROBATCHES_INFERRED in noted
    may_be_missing = LimitationKind.STAGES_MAY_BE_MISSING in noted
    stages_missing = stages_missing or LimitationKind.STAGES_WITHOUT_GPU_WORK in noted
    trains = any(iteration.kind == TRAINING for iteration in iterations)
    serves = any(iteration.kind == INFERENCE for iteration in iterations)
    if (trains or serves) and _is_single_stage(ranks, operations):
        return Recognition(
            None, reason=reasons.OTHER_STAGES_MISSING if stages_missing else reasons.SINGLE_STAGE
        )
    if (trains or serves) and pipeline_unproven:
        return Recognition(None, reason=reasons.PIPELINE_UNPROVEN)
    if serves or LimitationKind.ITERATIONS_UNMARKED in noted:
        reason = reasons.FORWARD_ONLY if serves else reasons.ITERATIONS_UNMARKED
        return Recognition(None, reason=reason)
    plans = _plans_once()
    result = _recognise(ranks, operations, iterations, lambda ran: verdict(ran, plans))
    if stages_missing and result.iterations:
        return Recognition(None, reason=reasons.STAGES_MISSING, inferred=inferred)
    whole = (
        result.exact
        and order_refutes
        and not (ends_early and "gpipe" in (result.name, *result.also))
    )
    if may_be_missing and result.name is not None and not whole:
        return Recognition(
            None, reason=f"{reasons.STAGES_MAY_BE_MISSING} {result.name}", inferred=inferred
        )
    if result.name is None:
        reason = result.reason or "no known schedule has this order"
    else:
        reason = "by its structure" if result.distance is None else ""
    reason = "; ".join(filter(None, (reason, _INFERRED if inferred else "")))
    return replace(result, reason=reason, inferred=inferred)


def _is_single_stage(ranks: Sequence[Rank], operations: Operations) -> bool:
    """Tell whether the ranks that work are one, or replicas of one stage."""
    work = among(operations.phase, COUNTED)
    working = distinct_rows(operations.rank, chosen=work)[0].tolist()
    stages = {ranks[rank].stage for rank in working}
    return len(working) == 1 or (len(stages) == 1 and None not in stages)


def compared(
    ranks: Sequence[Rank], operations: Operations, iterations: Sequence[Iteration], plan: Plan
) -> Recognition:
    """Return how a run differs from a plan; ``name`` is the plan's where any iteration fits.

    Raises:
        MismatchError: the run has other stages, chunks or microbatches than the plan.
    """
    misfits: list[codes.PipelineOrders] = []

    def judge(ran: codes.PipelineOrders) -> Verdict:
        of_plan = _verdict_of_plan(ran, plan)
        if of_plan is None:
            misfits.append(ran)
        return of_plan or Verdict()

    result = _recognise(ranks, operations, iterations, judge)
    if misfits and all(i.name is None for i in result.iterations):
        ran = misfits[0]
        raise MismatchError(
            f"--plan {plan.name}: the plan has {counted(plan.stages, 'stage')} of "
            f"{counted(plan.chunks, 'chunk')} with "
            f"{counted(plan.microbatches, 'microbatch', 'microbatches')}, the profiles "
            f"{ran.devices} of {ran.chunks} with {ran.microbatches}; "
            "give the plan that the run followed"
        )
    return result


def _recognise(
    ranks: Sequence[Rank],
    operations: Operations,
    iterations: Sequence[Iteration],
    judge: Callable[[codes.PipelineOrders], Verdict],
) -> Recognition:
    """Return the verdicts on every training iteration, and on the run."""
    training = [i.index for i in iterations if i.kind == TRAINING]
    parts, patterns = codes.orders_of(operations, training) if training else ([], [])
    if not parts:
        return Recognition(None, reason="no training iteration is in the capture")
    if not patterns:
        return Recognition(None, reason="range names hold no microbatches")
    verdicts: dict[tuple[object, ...], Verdict] = {}
    recognised: list[IterationOrder] = []
    deviations: list[Deviation] = []
    count = 0
    for part, pipelines in codes.pipelines_of(ranks, parts, patterns):
        for key, ran, places, members in pipelines:
            if key not in verdicts:
                verdicts[key] = judge(ran)
            found = verdicts[key]
            # Most pipelines run as planned.
            for place, member in zip(places, members, strict=True) if found.deviates else ():
                diff = found.differences[member]
                room = LISTED - len(deviations)
                if diff.count and room > 0:
                    deviations += islice(_deviations_of(operations, part, place, diff), room)
                count += diff.count
        of_pipelines = [verdicts[key] for key, *_ in pipelines]
        recognised.append(_of_iteration(part.iteration, of_pipelines))
    return replace(
        _of_run(iterations, tuple(recognised)), deviations=tuple(deviations), deviation_count=count
    )


def _of_run(iterations: Sequence[Iteration], recognised: tuple[IterationOrder, ...]) -> Recognition:
    """Return the recognition of the run, by its averaged iterations if there are any."""
    averaged = {i.index for i in iterations if i.averaged}
    complete = {i.index for i in iterations if i.complete}
    for chosen in (averaged, complete, {i.iteration for i in recognised}):
        judged = [i for i in recognised if i.iteration in chosen]
        if judged:
            break
    name = _most_frequent([i.name for i in judged])
    named = [i for i in judged if i.name == name]
    distances = [i.distance for i in named if i.distance is not None]
    return Recognition(
        name=name,
        also=named[0].also if name is not None else (),
        exact=name is not None and all(i.exact and i.name == name for i in judged),
        distance=sum(distances) / len(distances) if distances and name is not None else None,
        iterations=recognised,
        judged=tuple(i.iteration for i in judged),
    )


def _of_iteration(iteration: int, verdicts: Sequence[Verdict]) -> IterationOrder:
    """Return which schedule most pipelines of an iteration ran."""
    names = [v.name for v in verdicts]
    name = _most_frequent(names)
    same = [v for v in verdicts if v.name == name]
    distances = [v.distance for v in same if v.distance is not None]
    return IterationOrder(
        iteration,
        name,
        same[0].also,
        exact=name is not None and all(v.name == name and v.distance == 0 for v in verdicts),
        distance=sum(distances) / len(distances) if distances else None,
        names=tuple(names) if len(set(names)) > 1 else (),
    )


def _most_frequent(names: Sequence[str | None]) -> str | None:
    """Return the most frequent name; of several the one that comes first."""
    counts = Counter(names)
    return max(counts, key=lambda name: counts[name])
