"""The best plan: the shortest order for a workload within its memory, and all others beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, v_placement
from bubbleviz.schedules.planning.bounds import lower_bound
from bubbleviz.schedules.planning.fixed import fixed_plans, splits
from bubbleviz.schedules.planning.optimum import optimum
from bubbleviz.schedules.search.orders import shortest_orders
from bubbleviz.schedules.search.problem import (
    Codes,
    codes_of,
    plan_of,
    problem_of_workload,
)
from bubbleviz.schedules.search.strategy import repeated_blocks
from bubbleviz.schedules.workload import Outcome, Workload, outcome_of

#: Names of searched orders: with the backward in one operation, and in its two halves.
SEARCHED, SEARCHED_SPLIT = "searched", "searched-split"
#: More operations than this take too long.
_MOST_OPERATIONS = 200_000
#: More than this are not begun from repeated blocks; larger searches begin with fewer microbatches.
_MOST_IN_BLOCKS = 4_000


@frozen
class PlanOptions:
    """How to plan.

    Attributes:
        split: whether orders may split the backward in its two halves; None for what the run does.
        prove: whether small problems are solved by CP-SAT, where OR-tools is installed.
    """

    split: bool | None = None
    prove: bool = True


@frozen
class Candidate:
    """An order that was considered.

    Attributes:
        name: of its schedule, or ``searched``, ``searched-split``.
        split: whether it needs the backward in two halves.
        outcome: what it takes.
        allowed: whether it fits the memory, and needs no split backward where there is none.
    """

    name: str
    split: bool
    outcome: Outcome
    allowed: bool


@frozen
class BestPlan:
    """The best order for a workload.

    Attributes:
        workload: what virtual stages take.
        split: whether orders may split the backward.
        best: the shortest order within the memory; a caller may choose another.
        candidates: all that were considered, allowed ones first, the shortest first.
        bound_ns: a makespan that no order within the memory is shorter than.
        other: where the run's backward is fused, the best of the orders that split it, at halves
            that are assumed; None elsewhere.
    """

    workload: Workload
    split: bool
    best: Candidate
    candidates: tuple[Candidate, ...]
    bound_ns: int
    other: Candidate | None = None

    @property
    def proven(self) -> bool:
        """Whether no order within the memory is shorter than the best."""
        return self.best.outcome.makespan_ns <= self.bound_ns

    @property
    def left(self) -> float:
        """The share of the best makespan that a shorter order could save at most."""
        length = self.best.outcome.makespan_ns
        return (length - self.bound_ns) / length if length else 0.0


def best_plan(
    workload: Workload,
    options: PlanOptions | None = None,
    given: Sequence[Outcome] = (),
    watch: Watch = unwatched,
) -> BestPlan:
    """Return the best order for a workload: of all fixed ones that fit, and of a search.

    Args:
        workload: what virtual stages take, and the memory of devices.
        options: how to plan.
        given: further orders to begin with.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: there are too many operations, or the memory holds no microbatch.
    """
    options = options or PlanOptions()
    count = 3 * workload.virtual_stages * workload.microbatches
    if count > _MOST_OPERATIONS:
        raise UsageError(
            f"{count:,} operations are too many to plan, at most {_MOST_OPERATIONS:,}; give fewer "
            "microbatches"
        )
    split = workload.split if options.split is None else options.split
    offers = split or options.split is None
    fixed = [(plan.name, outcome_of(plan, workload)) for plan in fixed_plans(workload)]
    found: list[tuple[str, Outcome]] = []
    bound_ns = 0
    tried = {False: not split or _pays_fused(workload), True: offers}
    modes = [mode for mode, wanted in tried.items() if wanted]
    for number, mode in enumerate(modes):
        search = _Search(workload, fused=not mode)
        outcome = search.best(
            [*given, *(each for _, each in [*fixed, *found])],
            options,
            partial(_watch_part, watch, number, len(modes)),
        )
        found.append((SEARCHED_SPLIT if mode else SEARCHED, outcome))
        if mode is split:
            bound_ns = search.bound_ns
    candidates = tuple(
        sorted((_candidate(*each, split=split) for each in [*fixed, *found]), key=_rank)
    )
    split_ones = [each for each in candidates if each.split and each.outcome.fits]
    return BestPlan(
        workload,
        split,
        candidates[0],
        candidates,
        bound_ns,
        other=min(split_ones, key=_length) if offers and not split and split_ones else None,
    )


def _watch_part(watch: Watch, number: int, parts: int, share: float) -> None:
    watch((number + share) / parts)


def _pays_fused(workload: Workload) -> bool:
    """Return whether the backward in one operation takes less than its halves anywhere."""
    return any(
        whole < inner + weight
        for whole, inner, weight in zip(
            workload.fused_ns, workload.backward_ns, workload.weight_ns, strict=True
        )
    )


def _candidate(name: str, outcome: Outcome, *, split: bool) -> Candidate:
    needs = splits(outcome.plan)
    return Candidate(name, needs, outcome, outcome.fits and (split or not needs))


def _length(candidate: Candidate) -> tuple[int, bool, float]:
    """Return what orders are compared by: equal ones by splits, then by memory."""
    return (
        candidate.outcome.makespan_ns,
        candidate.split,
        max(candidate.outcome.peak_memory, default=0.0),
    )


def _rank(candidate: Candidate) -> tuple[bool, tuple[int, bool, float], bool, str]:
    searched = candidate.name in {SEARCHED, SEARCHED_SPLIT}
    return not candidate.allowed, _length(candidate), searched, candidate.name


class _Search:
    """The search of one kind of orders, and its bound."""

    def __init__(self, workload: Workload, *, fused: bool) -> None:
        self.workload, self.fused = workload, fused
        self.problem = problem_of_workload(workload, fused=fused)
        relaxed = workload if fused else _relaxed(workload)
        self.bound_ns = lower_bound(problem_of_workload(relaxed, fused=fused))
        self.exact = fused or relaxed == workload

    def best(self, given: Sequence[Outcome], options: PlanOptions, watch: Watch) -> Outcome:
        """Return the best order found.

        Args:
            given: other orders, to begin with.
            options: how to plan.
            watch: called with the share of the search that is done.
        """
        found = shortest_orders(
            self.problem,
            lambda microbatches: self.starts(given, microbatches),
            enough=self.bound_ns,
            weights=not self.fused,
            watch=watch,
        )
        codes = found.codes
        if options.prove and found.length > self.bound_ns and self.exact:
            solved = optimum(self.problem, codes, weights=not self.fused)
            if solved is not None:
                codes = solved.codes
                self.bound_ns = max(self.bound_ns, solved.bound)
        name = SEARCHED if self.fused else SEARCHED_SPLIT
        plan = plan_of(name, self.problem, codes, fused=self.fused)
        outcome = outcome_of(plan, self.workload)
        if not self.fused and not self.exact:
            again = outcome_of(_joined(plan), self.workload)
            outcome = min(outcome, again, key=lambda one: one.makespan_ns)
        return outcome

    def starts(self, given: Sequence[Outcome], microbatches: int) -> list[Codes]:
        """Return orders of so many microbatches to begin with."""
        if microbatches == self.workload.microbatches:
            plans = [each.plan for each in given if each.fits]
        else:
            plans = fixed_plans(replace(self.workload, microbatches=microbatches))
        orders = [codes_of(plan) for plan in plans]
        if self.fused:
            orders = [[[c for c in row if c % 3 < 2] for row in codes] for codes in orders]
        return orders + self._blocks(microbatches)

    def _blocks(self, microbatches: int) -> list[Codes]:
        """Return orders of repeated blocks, which keep within little memory in a V."""
        problem = self.problem.with_microbatches(microbatches)
        in_v = problem.placement == v_placement(problem.devices)
        if self.fused or not in_v or problem.operations > _MOST_IN_BLOCKS:
            return []
        codes = repeated_blocks(problem)
        return [] if codes is None else [codes]


def _relaxed(workload: Workload) -> Workload:
    """Return a workload that takes no longer, whether its backward is split or not."""
    pairs = zip(workload.backward_ns, workload.fused_ns, strict=True)
    backward = tuple(min(inner, whole) for inner, whole in pairs)
    rows = zip(workload.weight_ns, workload.fused_ns, backward, strict=True)
    weight = tuple(min(each, whole - inner) for each, whole, inner in rows)
    return replace(workload, backward_ns=backward, weight_ns=weight)


def _joined(plan: Plan) -> Plan:
    """Return a plan with one operation for each B whose W follows at once."""
    return replace(plan, orders=tuple(map(_joined_order, plan.orders)))


def _joined_order(order: Order) -> Order:
    joined: list[PlannedOperation] = []
    for operation in order:
        last = joined[-1] if joined else None
        same = last is not None and (last.virtual_stage, last.microbatch) == (
            operation.virtual_stage,
            operation.microbatch,
        )
        if last is not None and same and operation.phase is Phase.W and last.phase is Phase.B:
            joined[-1] = replace(last, phase=Phase.BW)
        else:
            joined.append(operation)
    return tuple(joined)
