"""The best plan: the shortest order for a workload within its memory, and all others beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.known import known_plans
from bubbleviz.schedules.known.interleaved_1f1b import nth
from bubbleviz.schedules.known.zb_h1 import delayed_weights
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, looped_placement, v_placement
from bubbleviz.schedules.planning.optimum import optimum
from bubbleviz.schedules.search.climbing import repeated_blocks
from bubbleviz.schedules.search.improving import shortest_orders
from bubbleviz.schedules.search.problem import (
    Codes,
    Problem,
    codes_of,
    plan_of,
    problem_of_workload,
)
from bubbleviz.schedules.workload import Outcome, Workload, outcome_of

# Bounds: the least makespan that any order of a problem can have.
#
# For each device, whatever its order::
#
#     head            E                                                last
#     ├── idle ──┤├ F F F ┤├─ idle ─┤├──── the rest of its work ────┤├── way back ──┤
#
# until E, when its first gradient can be there, it has but the forwards that there is memory for;
# its
# last B is followed by those of the stages before. With memory for few microbatches, what is left
# to
# do after its last F is too little to fill the way of that F to the end of the model and back.


@frozen
class _Ways:
    """Ticks before and behind an operation of a microbatch that waits nowhere, by virtual stage.

    Attributes:
        to_forward: until its F can start.
        to_backward: until its B can start.
        from_forward: after the end of its F.
        from_backward: after the end of its B.
    """

    to_forward: list[int]
    to_backward: list[int]
    from_forward: list[int]
    from_backward: list[int]


def lower_bound(problem: Problem) -> int:
    """Return a makespan, in ticks, that no order within the memory is shorter than."""
    if not problem.microbatches:
        return 0
    ways = _ways(problem)
    return max(_of_device(problem, ways, device) for device in range(problem.devices))


def _ways(problem: Problem) -> _Ways:
    count = len(problem.placement)
    forward, backward, weight = (problem.lengths[phase::3] for phase in range(3))
    to_forward = [0]
    for s in range(1, count):
        to_forward.append(to_forward[-1] + forward[s - 1] + problem.down[s - 1])
    to_backward = [to_forward[-1] + forward[-1]]
    for s in range(count - 1, 0, -1):
        to_backward.insert(0, to_backward[0] + backward[s] + problem.up[s])
    from_backward = [weight[0]]
    for s in range(1, count):
        onward = problem.up[s] + backward[s - 1] + from_backward[-1]
        from_backward.append(max(weight[s], onward))
    from_forward = [backward[-1] + from_backward[-1]]
    for s in range(count - 1, 0, -1):
        from_forward.insert(0, problem.down[s - 1] + forward[s] + from_forward[0])
    return _Ways(to_forward, to_backward, from_forward, from_backward)


def _of_device(problem: Problem, ways: _Ways, device: int) -> int:
    stages, m = problem.stages[device], problem.microbatches
    first, last = stages[0], stages[-1]
    lengths = problem.lengths
    forwards = m * sum(lengths[3 * s] for s in stages)
    backwards = m * sum(lengths[3 * s + 1] for s in stages)
    weights = m * sum(lengths[3 * s + 2] for s in stages)
    head = ways.to_forward[first]
    ahead = _most(problem, device, [lengths[3 * s] for s in stages])
    idle = max(0, ways.to_backward[last] - head - ahead)
    # Its last B is one of its first virtual stage, its last F one of its last.
    ends = head + idle + forwards + backwards
    bound = max(ends + ways.from_backward[first], ends + weights)
    left = _most(problem, device, [lengths[3 * s + 1] + lengths[3 * s + 2] for s in stages])
    # A W may be owed by microbatches that hold no more than that.
    left += _most(problem, device, [lengths[3 * s + 2] for s in stages], owed=True)
    waits = max(0, ways.from_forward[last] - left)
    before = idle if ahead < forwards else 0
    alone = ways.to_forward[-1] + lengths[-3] + ways.from_forward[-1]
    return max(bound, head + before + forwards + backwards + weights + waits, alone)


def _most(problem: Problem, device: int, worth: Sequence[int], *, owed: bool = False) -> int:
    """Return the most that microbatches that a device holds at once can be worth.

    Parts of microbatches count, but where the device has one chunk.

    Args:
        problem: memory, and how many microbatches there are.
        device: its number.
        worth: of a microbatch, by virtual stage of the device.
        owed: whether they hold only what is kept for W.
    """
    stages, m = problem.stages[device], problem.microbatches
    weight = [(problem.kept if owed else problem.held)[s] for s in stages]
    room, total = problem.limit[device], 0
    if len(stages) == 1:
        return worth[0] * (m if not weight[0] else min(m, room // weight[0]))
    rows = sorted(zip(worth, weight, strict=True), key=lambda row: row[1] / max(1, row[0]))
    for each, size in rows:
        if not size:
            total += m * each
            continue
        part = min(m * size, room)
        total += -(-part * each // size)
        room -= part
    return total


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


def splits(plan: Plan) -> bool:
    """Return whether a plan runs the backward in two halves somewhere."""
    return any(op.phase is Phase.W for order in plan.orders for op in order)


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
    orders: dict[str, list[Order]] = {"interleaved-1f1b": [], "interleaved-zb": []}
    for device in range(stages):
        forwards, whole, backwards, weights = (
            [
                nth(stages, chunks, device, n, phase, group=group)
                for n in range(microbatches * chunks)
            ]
            for phase in (Phase.F, Phase.BW, Phase.B, Phase.W)
        )
        first = (chunks - 1) * group + 1
        ahead = first + 2 * (stages - device - 1)
        fused = delayed_weights(forwards, whole, (), ahead=ahead, lag=0)
        orders["interleaved-1f1b"].append(fused)
        ahead = first + stages - device - 1
        split = delayed_weights(forwards, backwards, weights, ahead=ahead, lag=device)
        orders["interleaved-zb"].append(split)
    return [
        Plan(name, stages, microbatches, chunks, placement, tuple(each))
        for name, each in orders.items()
    ]


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
