"""Search for the shortest orders of a workload: good starts, each improved by a local search.

::

    fixed orders   as they are, where they fit                 ─┐
    greedy         B, else F, else W, over a grid of limits    ─┼─> the best few ─> improved, the
    fewer          the same search with 2p microbatches,       ─┘   best of these at length
                   its middle repeated (of large ones)

None is worse than a fixed order that fits the memory. The same call gives the same orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.search.greedy import greedy, policies
from bubbleviz.schedules.search.improving import Effort, improve, is_compiled
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem
from bubbleviz.schedules.search.strategy import extended

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


@frozen
class Orders:
    """Complete orders, and their length in ticks."""

    length: int
    codes: Codes


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
    starts = [_timed(problem, codes) for codes in known(problem.microbatches)]
    starts += _greedy(problem, weights=weights)
    few, begun = 2 * problem.devices, 0.0
    if problem.operations > _MANY and problem.microbatches > few:
        begun = 0.4
        less = shortest_orders(
            problem.with_microbatches(few),
            known,
            weights=weights,
            watch=lambda share: watch(0.4 * share),
        )
        codes = extended(less.codes, problem.microbatches - few)
        starts.append(_timed(problem, codes))
    starts.append(_timed(problem, _one_by_one(problem, weights=weights)))
    best = _distinct(starts)
    watch(begun + 0.1 * (1 - begun))
    budget = (_BUDGET if is_compiled() else _SLOW_BUDGET) * (1 - begun) / problem.operations
    done = 0.0
    for kept, share, memory, rise in _ROUNDS:
        best = best[:kept]
        trials = int(budget * share / max(1, len(best)))
        trials = max(_FEWEST, min(trials, _MOST, _MOST_EACH * problem.operations))
        for seed, start in enumerate(best):
            if best[0].length > enough:
                effort = Effort(trials, min(memory, trials // 20), rise, seed + 1, enough)
                improved = improve(problem, start.codes, effort)
                best[seed] = start if improved is None else Orders(*improved)
            watch(begun + (1 - begun) * (0.1 + 0.9 * (done + share * (seed + 1) / len(best))))
        best = _distinct(best)
        done += share
    return best[0]


def _one_by_one(problem: Problem, *, weights: bool) -> Codes:
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


def _timed(problem: Problem, codes: Codes) -> Orders | None:
    """Return orders with their length; None where they deadlock, or exceed the memory."""
    found = improve(problem, codes, Effort(0, 1))
    return None if found is None else Orders(*found)


def _distinct(orders: Sequence[Orders | None]) -> list[Orders]:
    """Return the orders that differ, the shortest first."""
    unique: list[Orders] = []
    for each in sorted((each for each in orders if each is not None), key=lambda one: one.length):
        if all(each.codes != other.codes for other in unique):
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
            found.append(_timed(problem, codes))
    return found
