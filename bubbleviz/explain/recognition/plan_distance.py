"""Plan distance: how far the orders of a pipeline are from those of a plan."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.explain.recognition.orders import (
    BACKWARD,
    WEIGHTS,
    Orders,
    PipelineOrders,
    chunk_of,
    in_planned_order,
    kind_of,
    microbatch_of,
    planned_orders,
)
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Schedule

# Order diff: operations of a measured order that are late, early, missing, extra or repeated.
#
# Of the operations in both orders, as many as possible are in place: a longest sequence that both
# share (a longest increasing subsequence). The others are out of place::
#
#     planned   F0 F1 B0 F2 B1 B2
#     measured  F0 F1 F2 B0 B1 B2      F2 is early by 1 (or B0 late by 1)


@frozen
class OrderDifference:
    """How an order differs from a planned one; codes as in :mod:`..recognition.orders`.

    Attributes:
        moved: codes of operations out of place, in measured order.
        places: by how many operations each is late; negative where early.
        missing: codes that are planned, not measured.
        extra: codes that are measured, not planned.
        repeated: codes that are measured again.
    """

    moved: Ints
    places: Ints
    missing: Ints
    extra: Ints
    repeated: Ints

    @property
    def count(self) -> int:
        """Number of operations that are not as planned."""
        columns = (self.moved, self.missing, self.extra, self.repeated)
        return sum(len(column) for column in columns)


def difference(measured: Ints, planned: Ints) -> OrderDifference:
    """Return how a measured order differs from a planned one, which repeats nothing.

    It takes O(n log n) of what lies between the first and the last difference.
    """
    none = np.empty(0, np.int64)
    measured = in_planned_order(measured, planned)
    if np.array_equal(measured, planned):
        return OrderDifference(none, none, none, none, none)
    firsts = np.sort(np.unique(measured, return_index=True)[1])
    again = np.ones(len(measured), bool)
    again[firsts] = False
    distinct = measured[firsts]
    in_plan = np.isin(distinct, planned)
    ran = np.isin(planned, distinct)
    common, expected = distinct[in_plan], planned[ran]
    order = np.argsort(expected)
    at = order[np.searchsorted(expected[order], common)]
    kept = np.ones(len(at), bool)
    off = np.flatnonzero(at != np.arange(len(at)))
    if len(off):
        # Those before the first and after the last difference belong to every longest sequence.
        rising = slice(int(off[0]), int(off[-1]) + 1)
        kept[rising] = _longest_rising(at[rising].tolist())
    moved = np.flatnonzero(~kept)
    # How many in place come before it as measured, and as planned.
    before = np.cumsum(kept)[moved]
    standing = np.sort(at[kept])
    return OrderDifference(
        moved=common[moved],
        places=before - np.searchsorted(standing, at[moved]),
        missing=planned[~ran],
        extra=distinct[~in_plan],
        repeated=measured[again],
    )


def _longest_rising(values: list[int]) -> Bools:
    """Return which of some distinct values belong to a longest rising subsequence."""
    ends: list[int] = []
    rows: list[int] = []
    before = [-1] * len(values)
    for row, value in enumerate(values):
        length = bisect_left(ends, value)
        if length:
            before[row] = rows[length - 1]
        if length == len(ends):
            ends.append(value)
            rows.append(row)
        else:
            ends[length] = value
            rows[length] = row
    chosen = np.zeros(len(values), bool)
    row = rows[-1] if rows else -1
    while row >= 0:
        chosen[row] = True
        row = before[row]
    return chosen


#: With more operations elsewhere than this share, an order is not that of the schedule. Different
#: schedules of this package are at least 0.125 apart, from 2 devices and 4 microbatches on.
NEAR = 0.1
#: A plan whose first operations differ by more than this share is not compared further.
_NEAR_AT_FIRST = 0.3
#: An order without a place is compared with this many that turn back at about the same operation.
_COMPARED = 4


def is_near(share: float, differences: Sequence[OrderDifference]) -> bool:
    """Return whether a plan is meant; in the smallest runs, with one operation elsewhere."""
    return share <= NEAR or sum(diff.count for diff in differences) <= 1


def distance_of(
    ran: PipelineOrders, planned: Sequence[Ints]
) -> tuple[float, tuple[OrderDifference, ...]]:
    """Return the distance of orders from those of a plan.

    Args:
        ran: orders of the pipeline.
        planned: order of each device of the plan.

    Returns:
        Of the planned operations the share that is not as planned, over all ranks, and the
        difference of each order from that of its device.
    """
    if ran.placed:
        chosen = [planned[place] for place in ran.places]
        differences = [difference(*pair) for pair in zip(ran.orders, chosen, strict=True)]
    else:
        differences, chosen = _matched(ran, planned)
    planned_count = sum(len(order) * n for order, n in zip(chosen, ran.replicas, strict=True))
    off = sum(diff.count * n for diff, n in zip(differences, ran.replicas, strict=True))
    return off / planned_count if planned_count else 0.0, tuple(differences)


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


# Plans: orders of known schedules by size, and those that a pipeline's orders could be.


#: More operations than this take seconds to plan.
_MOST_PLANNED = 2_000_000


#: Returns a schedule's orders and its directions (replicas), by its rule and the numbers of
#: devices, microbatches and chunks; None where it allows no such size.
Plans = Callable[[Schedule, int, int, int], tuple[tuple[Ints, ...], int] | None]


def plans_once() -> Plans:
    """Return what makes plans, each once."""

    @cache
    def planned(
        rule: Schedule, devices: int, microbatches: int, chunks: int
    ) -> tuple[tuple[Ints, ...], int] | None:
        try:
            plan = rule.plan(devices, microbatches, chunks)
        except UsageError:
            return None
        return planned_orders(plan), plan.replicas

    return planned


def plans_like(
    ran: PipelineOrders,
    plans: Plans,
    rules: Sequence[Schedule],
    sizes: tuple[int, int],
    least: int,
) -> Iterator[tuple[str, tuple[Ints, ...]]]:
    """Yield name and orders of the plans of some sizes that begin as a pipeline's orders do.

    Args:
        ran: orders of the pipeline.
        plans: makes plans.
        rules: of the schedules.
        sizes: chunks of a device, and microbatches of each.
        least: fewest directions of the plans.
    """
    chunks, microbatches = sizes
    if 3 * ran.devices * chunks * _shortened(microbatches, ran.devices) > _MOST_PLANNED:
        return
    split = split_share(ran.orders)
    for rule in rules:
        for directions in range(least, 3):
            if chunks % directions:
                continue
            all_microbatches, chunks_each = microbatches * directions, chunks // directions
            short = _shortened(all_microbatches, ran.devices)
            beginning = plans(rule, ran.devices, short, chunks_each)
            if beginning is None or beginning[1] != directions:
                continue
            planned_split = split_share(beginning[0])
            if (planned_split > 0 and split == 0) or (split > NEAR and planned_split == 0):
                continue
            if not begins_alike(ran, beginning[0], short // directions):
                continue
            if ran.devices * 3 * chunks * microbatches > _MOST_PLANNED:
                continue
            whole = plans(rule, ran.devices, all_microbatches, chunks_each)
            if whole is not None:
                name = rule.with_one_chunk if chunks_each == 1 else None
                yield name or rule.name, whole[0]


def _shortened(microbatches: int, devices: int) -> int:
    """Return so few microbatches that a plan of them is cheap, and begins as a longer one does.

    The difference is a multiple of two for each device, so that groups still divide it.
    """
    few = 2 * devices
    return microbatches if microbatches <= 2 * few else few + microbatches % few


def split_share(orders: Sequence[Ints]) -> float:
    """Return the number of weight gradients for each backward."""
    counts = [np.bincount(kind_of(order), minlength=3) for order in orders]
    backwards = sum(int(count[BACKWARD]) for count in counts)
    weights = sum(int(count[WEIGHTS]) for count in counts)
    return weights / max(backwards, 1)


# Deviations: operations that are not where the schedule has them, in the report's numbers.


#: Phases by kind of operation.
_PHASES = (Phase.F, Phase.BW, Phase.W)


@frozen
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


def deviations_of(orders: Orders, cell: int, diff: OrderDifference) -> Iterator[Deviation]:
    """Yield the deviations of one rank in one iteration, late and early ones first.

    A missing operation takes its numbers from another one of its microbatch and chunk.

    Args:
        orders: of all ranks.
        cell: of the rank and iteration.
        diff: of its order from the planned one.
    """
    codes, phases, microbatches, chunks = orders.of_cell(cell)
    splits = bool((kind_of(codes) == WEIGHTS).any())

    def numbers(code: int) -> tuple[Phase, int, int]:
        """Return phase, microbatch and chunk of a code as the report has them."""
        wanted = np.array([code])
        row = np.flatnonzero(codes == code)
        if len(row):
            first = int(row[0])
            return Phase(int(phases[first])), int(microbatches[first]), int(chunks[first])
        kind, number = int(kind_of(wanted)[0]), int(microbatch_of(wanted)[0])
        phase = Phase.B if kind == BACKWARD and splits else _PHASES[kind]
        same_chunk = chunk_of(codes) == chunk_of(wanted)
        other = np.flatnonzero(same_chunk & (microbatch_of(codes) == number))
        if len(other):
            return phase, int(microbatches[other[0]]), int(chunks[other[0]])
        numbered = np.flatnonzero(same_chunk & (microbatches >= 0))
        if not len(numbered):
            return phase, number, int(chunk_of(wanted)[0])
        # Where all others are equally far ahead of the code's numbers, so is this one.
        ahead = microbatches[numbered] - microbatch_of(codes[numbered])
        number += int(ahead[0]) if (ahead == ahead[0]).all() else 0
        return phase, number, int(chunks[numbered[0]])

    moved = [("late" if n > 0 else "early", abs(n)) for n in diff.places.tolist()]
    found = list(zip(diff.moved.tolist(), moved, strict=True))
    for what in ("missing", "extra", "repeated"):
        found += [(code, (what, 0)) for code in getattr(diff, what).tolist()]
    rank, iteration = int(orders.rank[cell]), int(orders.iteration[cell])
    for code, (what, places) in found:
        phase, microbatch, chunk = numbers(code)
        yield Deviation(rank, iteration, phase, microbatch, chunk, what, places)
