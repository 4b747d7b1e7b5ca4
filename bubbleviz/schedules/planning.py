"""Planning: the shortest order for a workload within its memory, all others, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.native.library import library
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.known import known_plans
from bubbleviz.schedules.known.interleaved_1f1b import in_rounds
from bubbleviz.schedules.optimum import optimum
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, looped_placement, v_placement
from bubbleviz.schedules.search.climbing import extended, repeated_blocks
from bubbleviz.schedules.search.greedy import greedy, policies
from bubbleviz.schedules.search.problem import (
    NEVER,
    Codes,
    Orders,
    Problem,
    codes_of,
    improve,
    plan_of,
    problem_of_workload,
)
from bubbleviz.schedules.simulation import Outcome, Workload, outcome_of

# Bounds: the least makespan that any order of a problem can have.
#
# For each device, whatever its order::
#
#     head            E                                                last
#     ├── idle ──┤├ F F F ┤├─ idle ─┤├──── the rest of its work ────┤├── way back ──┤
#
# until E, when its first gradient can be there, it has but the forwards that there is memory for;
# its last B is followed by those of the stages before. With memory for few microbatches, what is
# left to do after its last F is too little to fill the way of that F to the end of the model and
# back.


def lower_bound(problem: Problem) -> int:
    """Return a makespan, in ticks, that no order within the memory is shorter than."""
    if not problem.microbatches:
        return 0
    count, m = len(problem.placement), problem.microbatches
    forward, backward, weight = (problem.lengths[phase::3] for phase in range(3))
    # Of a microbatch that waits nowhere, by virtual stage: until its F and its B can start, and
    # after the end of its B and its F.
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
    longest = to_forward[-1] + forward[-1] + from_forward[-1]
    for device, stages in enumerate(problem.stages):
        first, last = stages[0], stages[-1]
        forwards, backwards, weights = (
            m * sum(lengths[s] for s in stages) for lengths in (forward, backward, weight)
        )
        head = to_forward[first]
        ahead = _most(problem, device, [forward[s] for s in stages])
        idle = max(0, to_backward[last] - head - ahead)
        # Its last B is one of its first virtual stage, its last F one of its last.
        ends = head + idle + forwards + backwards
        left = _most(problem, device, [backward[s] + weight[s] for s in stages])
        # A W may be owed by microbatches that hold no more than that.
        left += _most(problem, device, [weight[s] for s in stages], owed=True)
        waits = max(0, from_forward[last] - left)
        before = idle if ahead < forwards else 0
        behind = head + before + forwards + backwards + weights + waits
        longest = max(longest, ends + from_backward[first], ends + weights, behind)
    return longest


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
    named = {"interleaved-1f1b": Phase.BW, "interleaved-zb": Phase.B}
    return [
        in_rounds(name, stages, microbatches, chunks, group, backward)
        for name, backward in named.items()
    ]


#: Names of searched orders: with the backward in one operation, and in its two halves.
SEARCHED, SEARCHED_SPLIT = "searched", "searched-split"
#: More operations than this take too long.
_MOST_OPERATIONS = 200_000
#: More than this are not begun from repeated blocks; larger searches begin with fewer microbatches.
_MOST_IN_BLOCKS = 4_000


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
    given: Sequence[Outcome] = (),
    *,
    split: bool | None = None,
    prove: bool = True,
    watch: Watch = unwatched,
) -> BestPlan:
    """Return the best order for a workload: of all fixed ones that fit, and of a search.

    Args:
        workload: what virtual stages take, and the memory of devices.
        given: further orders to begin with.
        split: whether orders may split the backward in its two halves; None for what the run does.
        prove: whether small problems are solved by CP-SAT, where OR-tools is installed.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: there are too many operations, or the memory holds no microbatch.
    """
    count = 3 * workload.virtual_stages * workload.microbatches
    if count > _MOST_OPERATIONS:
        raise UsageError(
            f"{count:,} operations are too many to plan, at most {_MOST_OPERATIONS:,}; give fewer "
            "microbatches"
        )
    offers, split = split is not False, workload.split if split is None else split
    offers = split or offers
    orders = [(plan.name, outcome_of(plan, workload)) for plan in fixed_plans(workload)]
    halves = zip(workload.fused_ns, workload.backward_ns, workload.weight_ns, strict=True)
    whole_pays = any(whole < inner + weight for whole, inner, weight in halves)
    tried = {False: not split or whole_pays, True: offers}
    modes = [mode for mode, wanted in tried.items() if wanted]
    bound_ns = 0
    for number, mode in enumerate(modes):
        starts = [*given, *(outcome for _, outcome in orders)]
        outcome, bound = _searched(
            workload, starts, not mode, prove, partial(_watch_part, watch, number, len(modes))
        )
        orders.append((SEARCHED_SPLIT if mode else SEARCHED, outcome))
        if mode is split:
            bound_ns = bound
    candidates = []
    for name, outcome in orders:
        needs = splits(outcome.plan)
        candidates.append(Candidate(name, needs, outcome, outcome.fits and (split or not needs)))
    candidates.sort(key=_rank)
    split_ones = [each for each in candidates if each.split and each.outcome.fits]
    return BestPlan(
        workload,
        split,
        candidates[0],
        tuple(candidates),
        bound_ns,
        other=min(split_ones, key=_length) if offers and not split and split_ones else None,
    )


def _watch_part(watch: Watch, number: int, parts: int, share: float) -> None:
    watch((number + share) / parts)


def _length(candidate: Candidate) -> tuple[int, bool, float]:
    """Return what orders are compared by: equal ones by splits, then by memory."""
    outcome = candidate.outcome
    return outcome.makespan_ns, candidate.split, max(outcome.peak_memory, default=0.0)


def _rank(candidate: Candidate) -> tuple[bool, tuple[int, bool, float], bool, str]:
    searched = candidate.name in {SEARCHED, SEARCHED_SPLIT}
    return not candidate.allowed, _length(candidate), searched, candidate.name


def _searched(
    workload: Workload, given: Sequence[Outcome], fused: bool, prove: bool, watch: Watch
) -> tuple[Outcome, int]:
    """Return the best order of one kind that a search finds, and a bound of all of them, in ns.

    Args:
        workload: what virtual stages take, and the memory of devices.
        given: other orders, to begin with.
        fused: whether backwards are one operation.
        prove: whether small problems are solved.
        watch: called with the share of the search that is done.
    """
    problem = problem_of_workload(workload, fused=fused)
    relaxed = workload if fused else _relaxed(workload)
    bound_ns = lower_bound(problem_of_workload(relaxed, fused=fused))
    exact = fused or relaxed == workload

    def starts(microbatches: int) -> list[Codes]:
        if microbatches == workload.microbatches:
            plans = [each.plan for each in given if each.fits]
        else:
            plans = fixed_plans(replace(workload, microbatches=microbatches))
        orders = [codes_of(plan) for plan in plans]
        if fused:
            return [[[code for code in row if code % 3 < 2] for row in codes] for codes in orders]
        # Repeated blocks keep within little memory in a V.
        of_size = replace(problem, microbatches=microbatches)
        in_v = problem.placement == v_placement(problem.devices)
        if in_v and of_size.operations <= _MOST_IN_BLOCKS:
            blocks = repeated_blocks(of_size)
            orders += [] if blocks is None else [blocks]
        return orders

    length, codes = shortest_orders(
        problem, starts, enough=bound_ns, weights=not fused, watch=watch
    )
    if prove and length > bound_ns and exact:
        solved = optimum(problem, codes, weights=not fused)
        if solved is not None:
            bound_ns, codes = max(bound_ns, solved[0]), solved[1]
    plan = plan_of(SEARCHED if fused else SEARCHED_SPLIT, problem, codes, fused=fused)
    outcome = outcome_of(plan, workload)
    if not exact:
        joined = replace(plan, orders=tuple(map(_joined_order, plan.orders)))
        outcome = min(outcome, outcome_of(joined, workload), key=lambda one: one.makespan_ns)
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


# Search for the shortest orders of a workload: good starts, each improved by a local search.
#
# ::
#
#     fixed orders   as they are, where they fit                 ─┐
#     greedy         B, else F, else W, over a grid of limits    ─┼─> the best few ─> improved, the
#     fewer          the same search with 2p microbatches,       ─┘   best of these at length
#                    its middle repeated (of large ones)
#
# None is worse than a fixed order that fits the memory. The same call gives the same orders.


#: Operations timed in all, by the compiled part and without it.
_BUDGET, _SLOW_BUDGET = 400_000_000, 4_000_000
#: Operations that greedy trials put down, but for those that are broken off.
_GREEDY = 400_000
#: Starts that are improved, and the rounds: how many are left, their share of the budget, what late
#: acceptance remembers, and by how many thousandths orders may become longer.
_ROUNDS = ((4, 0.2, 300, 0), (2, 0.4, 1000, 10), (1, 0.4, 3000, 30))
#: Bounds of the trials from one start: however large the problem, and for each operation of a small
#: one.
_FEWEST, _MOST, _MOST_EACH = 200, 400_000, 2_000
#: Operations from which on a search begins with fewer microbatches.
_MANY = 10_000


def shortest_orders(
    problem: Problem,
    known: Callable[[int], Sequence[Codes]],
    *,
    enough: int = 0,
    weights: bool = True,
    watch: Watch = unwatched,
) -> Orders:
    """Return the shortest orders of all that were tried.

    Args:
        problem: times and memory.
        known: orders to begin with, by the number of microbatches.
        enough: a length, in ticks, at which the search ends.
        weights: whether orders have W; else B is the whole backward.
        watch: called with the share of the search that is done.
    """
    starts = [improve(problem, codes, 0) for codes in known(problem.microbatches)]
    starts += _greedy(problem, weights=weights)
    few, begun = 2 * problem.devices, 0.0
    if problem.operations > _MANY and problem.microbatches > few:
        begun = 0.4
        less = shortest_orders(
            replace(problem, microbatches=few),
            known,
            weights=weights,
            watch=lambda share: watch(0.4 * share),
        )
        codes = extended(less[1], problem.microbatches - few)
        starts.append(improve(problem, codes, 0))
    starts.append(improve(problem, one_by_one(problem, weights=weights), 0))
    best = _distinct(starts)
    watch(begun + 0.1 * (1 - begun))
    budget = (_BUDGET if library() is not None else _SLOW_BUDGET) * (1 - begun) / problem.operations
    done = 0.0
    for kept, share, memory, rise in _ROUNDS:
        best = best[:kept]
        trials = int(budget * share / max(1, len(best)))
        trials = max(_FEWEST, min(trials, _MOST, _MOST_EACH * problem.operations))
        for seed, start in enumerate(best):
            if best[0][0] > enough:
                late = min(memory, trials // 20)
                options = {"memory": late, "rise": rise, "seed": seed + 1, "enough": enough}
                best[seed] = improve(problem, start[1], trials, **options) or start
            watch(begun + (1 - begun) * (0.1 + 0.9 * (done + share * (seed + 1) / len(best))))
        best = _distinct(best)
        done += share
    return best[0]


def one_by_one(problem: Problem, *, weights: bool) -> Codes:
    """Return the orders with the least memory: one microbatch goes all the way, then the next."""
    phases = (1, 2) if weights else (1,)
    return [
        [
            *(3 * stage for stage in stages),
            *(3 * stage + phase for stage in reversed(stages) for phase in phases),
        ]
        * problem.microbatches
        for stages in problem.stages
    ]


def _distinct(orders: Sequence[Orders | None]) -> list[Orders]:
    """Return the orders that differ, the shortest first."""
    unique: list[Orders] = []
    for each in sorted((each for each in orders if each is not None), key=lambda one: one[0]):
        if all(each[1] != other[1] for other in unique):
            unique.append(each)
    return unique


def _greedy(problem: Problem, *, weights: bool) -> list[Orders | None]:
    """Return the orders of greedy policies, each better than those before."""
    grid = list(policies(problem))
    stride = max(1, len(grid) * problem.operations // (_GREEDY * 8))
    found: list[Orders | None] = []
    target = NEVER
    for policy in grid[::stride]:
        result = greedy(problem, policy, target)
        if result is not None:
            target = result.excess
            codes = result.codes
            if not weights:
                codes = [[code for code in row if code % 3 < 2] for row in codes]
            found.append(improve(problem, codes, 0))
    return found
