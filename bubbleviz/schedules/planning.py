"""Planning: the shortest order for a workload within its memory, all others, and what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.known import in_rounds, known_plans
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, looped_placement
from bubbleviz.schedules.search.orders import shortest_orders
from bubbleviz.schedules.search.problem import Codes, codes_of, lower_bound, plan_of, problem_of
from bubbleviz.schedules.simulation import Outcome, outcome_of
from bubbleviz.schedules.workload import Workload

# Fixed orders: every schedule with one order that a run's placement allows.


def fixed_plans(workload: Workload) -> list[Plan]:
    """Return the plans of all schedules with one order at the placement of a workload.

    Orders that two schedules share stand there once, under the name of the one that is made for so
    many chunks. Two operations that run together do so one after the other.
    """
    placement, m = workload.placement, workload.microbatches
    plans = [*known_plans(placement, m), *_in_other_groups(placement, m)]
    # Interleaved schedules have the orders of others where a device has one chunk.
    plans.sort(key=lambda plan: workload.chunks == 1 and plan.name.startswith("interleaved"))
    unique: dict[tuple[tuple[tuple[int, Phase], ...], ...], Plan] = {}
    for plan in plans:
        # Microbatches are alike: which of them comes first changes no time.
        key = tuple(tuple((op.virtual_stage, op.phase) for op in order) for order in plan.orders)
        unique.setdefault(key, replace(plan, together=frozenset()))
    return sorted(unique.values(), key=lambda plan: plan.name)


def _in_other_groups(placement: tuple[int, ...], microbatches: int) -> list[Plan]:
    """Return interleaved plans where microbatches do not fill groups of p, as PyTorch has them.

    It divides them into m // p equal rounds (torch.distributed.pipelining.schedules,
    ``ScheduleInterleaved1F1B`` and ``ScheduleInterleavedZeroBubble``).
    """
    stages = max(placement) + 1
    chunks = len(placement) // stages
    group, rest = divmod(microbatches, max(1, microbatches // stages))
    if rest or group == stages or chunks == 1 or placement != looped_placement(stages, chunks):
        return []
    named = {"interleaved-1f1b": Phase.BW, "interleaved-zb": Phase.B}
    return [
        in_rounds(name, stages, microbatches, chunks, group, backward)
        for name, backward in named.items()
    ]


#: Names of searched orders: with the backward in one operation, and in its two halves.
SEARCHED, SEARCHED_SPLIT = "searched", "searched-split"
#: More operations than this take too long; so many are timed in all by a search.
_MOST_OPERATIONS, _MOST_TIMED = 200_000, 400_000_000


@dataclass(frozen=True)
class BestPlan:
    """The best order for a workload.

    Attributes:
        workload: what virtual stages take.
        split: whether orders may split the backward.
        best: the shortest order within the memory; a caller may choose another.
        candidates: all orders that were considered, named by their schedules, ``searched`` or
            ``searched-split``: allowed ones first, the shortest first.
        bound_ns: a length that no order within the memory is shorter than.
        other: where the run's backward is fused, the best of the orders that split it, at halves
            that are assumed; None elsewhere.
        makespan: whether orders are compared by their makespan, rather than by the longest window
            of a device.
    """

    workload: Workload
    split: bool
    best: Outcome
    candidates: tuple[Outcome, ...]
    bound_ns: int
    other: Outcome | None = None
    makespan: bool = True

    def length_ns(self, order: Outcome) -> int:
        """Return what orders are compared by."""
        return _length_ns(order, self.makespan)

    def bubble_ratio(self, order: Outcome) -> float | None:
        """Return the bubble ratio of an order in the window that is compared."""
        ran = order.simulation
        return ran.schedule_ratio if self.makespan else ran.stage_ratio

    @property
    def proven(self) -> bool:
        """Whether no order within the memory is shorter than the best."""
        return self.length_ns(self.best) <= self.bound_ns

    @property
    def left(self) -> float:
        """The share of the best length that a shorter order could save at most."""
        length = self.length_ns(self.best)
        return (length - self.bound_ns) / length if length else 0.0


def is_plannable(workload: Workload) -> bool:
    """Return whether a workload has operations, and not more than can be planned."""
    return 0 < 3 * workload.virtual_stages * workload.microbatches <= _MOST_OPERATIONS


def best_plan(
    workload: Workload,
    given: Sequence[Outcome] = (),
    *,
    split: bool | None = None,
    makespan: bool = True,
    watch: Watch = unwatched,
) -> BestPlan:
    """Return the best order for a workload: of all fixed ones that fit, and of a search.

    Args:
        workload: what virtual stages take, and the memory of devices.
        given: further orders to begin with.
        split: whether orders may split the backward in its two halves; None for what the run does.
        makespan: whether the makespan is to be short, rather than the longest window of a device,
            which a run waits for whose iterations overlap.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: there are no or too many operations, or the memory holds no microbatch.
    """
    count = 3 * workload.virtual_stages * workload.microbatches
    if count < 1:
        raise UsageError(f"{workload.microbatches} microbatches: give at least one")
    if not is_plannable(workload):
        raise UsageError(
            f"{count:,} operations are too many to plan, at most {_MOST_OPERATIONS:,}; give fewer "
            "microbatches"
        )
    offers, split = split is not False, workload.split if split is None else split
    offers = split or offers
    orders = [outcome_of(plan, workload) for plan in fixed_plans(workload)]
    halves = zip(workload.fused_ns, workload.backward_ns, workload.weight_ns, strict=True)
    whole_pays = any(whole < inner + weight for whole, inner, weight in halves)
    tried = {False: not split or whole_pays, True: offers}
    modes = [mode for mode, wanted in tried.items() if wanted]
    bound_ns = 0
    for number, mode in enumerate(modes):
        part = partial(lambda number, share: watch((number + share) / len(modes)), number)
        outcome, bound = _searched(
            workload,
            [*given, *orders],
            fused=not mode,
            makespan=makespan,
            watch=part,
        )
        orders.append(outcome)
        if mode is split:
            bound_ns = bound
    candidates = [
        replace(each, allowed=each.fits and (split or not each.plan.splits)) for each in orders
    ]
    candidates.sort(key=partial(_rank, makespan=makespan))
    split_ones = [each for each in candidates if each.plan.splits and each.fits]
    return BestPlan(
        workload,
        split,
        candidates[0],
        tuple(candidates),
        bound_ns,
        other=next(iter(split_ones), None) if offers and not split else None,
        makespan=makespan,
    )


def _length_ns(order: Outcome, makespan: bool) -> int:
    return order.makespan_ns if makespan else order.simulation.cost_ns


def _rank(order: Outcome, makespan: bool) -> tuple[bool, int, bool, float, bool, str]:
    """Return what orders are compared by: equal ones by splits, then by memory."""
    name, plan, most = order.plan.name, order.plan, max(order.peak_memory, default=0.0)
    searched = name in {SEARCHED, SEARCHED_SPLIT}
    return not order.allowed, _length_ns(order, makespan), plan.splits, most, searched, name


def _searched(
    workload: Workload,
    given: Sequence[Outcome],
    *,
    fused: bool,
    makespan: bool,
    watch: Watch,
) -> tuple[Outcome, int]:
    """Return the best order of one kind that a search finds, and a bound of all of them, in ns.

    Args:
        workload: what virtual stages take, and the memory of devices.
        given: other orders, to begin with.
        fused: whether backwards are one operation.
        makespan: whether the makespan is to be short.
        watch: called with the share of the search that is done.
    """
    problem = problem_of(workload, fused=fused, makespan=makespan)
    relaxed = workload if fused else _relaxed(workload)
    bound_ns = lower_bound(problem_of(relaxed, fused=fused, makespan=makespan))
    exact = fused or relaxed == workload

    def starts(microbatches: int) -> Iterable[Codes]:
        if microbatches == workload.microbatches:
            plans = [each.plan for each in given if each.fits]
        else:
            plans = fixed_plans(replace(workload, microbatches=microbatches))
        return map(codes_of, plans)

    _, codes = shortest_orders(
        problem, starts, enough=bound_ns, weights=not fused, most=_MOST_TIMED, watch=watch
    )
    plan = plan_of(SEARCHED if fused else SEARCHED_SPLIT, problem, codes, fused=fused)
    outcome = outcome_of(plan, workload)
    if not exact:
        joined = replace(plan, orders=tuple(map(_joined_order, plan.orders)))
        pair = outcome, outcome_of(joined, workload)
        outcome = min(pair, key=lambda one: _length_ns(one, makespan))
    return outcome, bound_ns


def _relaxed(workload: Workload) -> Workload:
    """Return a workload that takes no longer, whether its backward is split or not."""
    pairs = zip(workload.backward_ns, workload.fused_ns, strict=True)
    backward = tuple(min(inner, whole) for inner, whole in pairs)
    rows = zip(workload.weight_ns, workload.fused_ns, backward, strict=True)
    weight = tuple(min(each, whole - inner) for each, whole, inner in rows)
    return replace(workload, backward_ns=backward, weight_ns=weight)


def _joined_order(order: Order) -> Order:
    """Return an order with one operation for each B whose W follows at once."""
    joined: list[PlannedOperation] = []
    for op in order:
        if op.phase is Phase.W and joined and joined[-1] == replace(op, phase=Phase.B):
            joined[-1] = replace(op, phase=Phase.BW)
        else:
            joined.append(op)
    return tuple(joined)
