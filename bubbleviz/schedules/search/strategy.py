"""Search for the shortest schedule at given times, within a memory limit.

Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, sections 3 and 5, and
Pipeline Parallelism with Controllable Memory, arXiv 2405.15362. The papers search with greedy
rules over a grid of choices and improve the result by integer programming; this search has rules
of its own::

    known orders    schedules with one order, as they are,
                    and their F and B with W filled in        ─┐
    blocks          repeated, squeezed at their ends           ├─> the best ─> local search
    greedy          B, else F, else W, over a grid of limits  ─┘

large ones first with 4p microbatches, whose result is repeated in its middle, then with all, but
only by the rules that did well.

All of them know the best so far, the *target*: a device that would exceed it runs a W instead, or
the trial is broken off, which most are long before their end. The result is never worse than a
known order within the memory. The same call gives the same schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.plan import Plan, Setting
from bubbleviz.schedules.search.best import Best
from bubbleviz.schedules.search.blocks import Block, blocks, manners, squeeze
from bubbleviz.schedules.search.climbing import climb
from bubbleviz.schedules.search.filling import timed
from bubbleviz.schedules.search.greedy import greedy
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem, codes_of, plan_of, problem_of

#: Blocks that are tried with all microbatches, after a trial of all with few.
_BLOCKS = 6
#: Operations from which on a search begins with fewer microbatches.
_MANY = 12_000
#: Local search: operations timed in all, and bounds of the number of trials.
_BUDGET, _FEWEST, _MOST = 2_000_000, 40, 1500


def search(
    name: str,
    setting: Setting,
    placement: tuple[int, ...],
    known: Callable[[int], Sequence[Plan]],
    watch: Watch = unwatched,
) -> Plan:
    """Return the plan with the shortest cost of all trials, or makespan if that is set.

    Args:
        name: of the plan.
        setting: sizes, times and memory limit.
        placement: device of each virtual stage; of one chunk a device, or of two in a V.
        known: plans of other schedules with that placement, by the number of microbatches.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: the memory holds not even one microbatch.
    """
    problem = problem_of(setting, placement)
    if not problem.microbatches:
        return plan_of(name, problem, [[] for _ in range(problem.devices)])
    shorter: Best | None = None
    few = 4 * problem.devices
    if problem.operations > _MANY and problem.microbatches > few:
        shorter = Best(problem.with_microbatches(few))
        _improve(shorter, known(few), lambda share: watch(share / 4))
        watch(0.25)
    best = Best(problem, shorter)
    if shorter:
        best.offer_codes(extended(shorter.codes, problem.microbatches - few))
    _improve(best, known(problem.microbatches), lambda share: watch(0.25 + 0.75 * share))
    return plan_of(name, problem, best.codes)


def repeated_blocks(problem: Problem) -> Codes | None:
    """Return the shortest orders of repeated blocks; None where none can be run.

    Args:
        problem: with two chunks a device in a V.
    """
    best = Best(problem)
    _from_blocks(best)
    return best.codes if best.excess < NEVER else None


def _improve(best: Best, known: Sequence[Plan], watch: Watch) -> None:
    """Look everywhere for something better, until nothing can be."""
    steps: list[Callable[[Best], None]] = [lambda best: _from_known(best, known)]
    if best.problem.chunks > 1:
        steps.append(_from_blocks)
    steps += [_from_greed, _by_climbing]
    for number, step in enumerate(steps):
        watch(number / len(steps))
        if not best.perfect:
            step(best)
    watch(1.0)


def extended(codes: Codes, more: int) -> Codes:
    """Return complete orders with more microbatches: what stands in the middle is repeated.

    ::

        F F B F W | B F W | B B W W    ->    F F B F W | B F W | B F W | B F W | B B W W
    """
    longer = []
    for order in codes:
        period = len(set(order))
        starts = range(len(order) - period + 1)
        whole = [at for at in starts if len(set(order[at : at + period])) == period]
        at = min(whole, key=lambda at: abs(2 * at + period - len(order)), default=len(order))
        longer.append(order[:at] + order[at : at + period] * (more + 1) + order[at + period :])
    return longer


def _from_known(best: Best, known: Sequence[Plan]) -> None:
    """Try the orders themselves, then other places for the W of those that have them apart."""
    drafts: list[Codes] = []
    for plan in known:
        codes = codes_of(plan)
        result = timed(best.problem, codes)
        if result and result.excess < best.excess:
            best.offer(result)
            best.keep_draft(result)
        order = [[code for code in row if code % 3 < 2] for row in codes]
        whole = any(op.phase is Phase.BW for row in plan.orders for op in row)
        if not whole and order not in drafts:
            drafts.append(order)
    for order in drafts:
        if not best.perfect:
            best.fill_in(order)


def _from_greed(best: Best) -> None:
    problem = best.problem
    for policy in best.policies:
        # As good as the best is worth another trial with more microbatches.
        result = greedy(problem, policy, best.excess + 1)
        if result:
            best.ran_well.insert(0, policy)
            before = best.excess
            if best.offer(result) < before:
                best.keep_draft(result)
            if best.perfect:
                return


def _from_blocks(best: Best) -> None:
    problem = best.problem
    for block in _ranked(problem) if best.blocks is None else best.blocks:
        for manner in manners(block):
            while result := squeeze(problem, manner, best.excess):
                before = best.excess
                if best.offer(result) == before:
                    break
                best.repeated_well.insert(0, block)
                best.keep_draft(result)


def _ranked(problem: Problem) -> list[Block]:
    """Return the blocks that do best with few microbatches."""
    few = problem.with_microbatches(min(problem.microbatches, problem.devices + 2))
    ranked: list[tuple[int, int, Block]] = []
    for block in blocks(problem.devices, min(problem.rooms)):
        excess = NEVER
        for manner in islice(manners(block), 2):
            result = squeeze(few, manner, excess)
            excess = result.excess if result else excess
        ranked.append((excess, len(ranked), block))
    return [block for _, _, block in sorted(ranked, key=lambda row: row[:2])[:_BLOCKS]]


def _by_climbing(best: Best) -> None:
    problem = best.problem
    trials = max(_FEWEST, min(_MOST, _BUDGET // problem.operations))
    for seed, draft in enumerate(best.drafts[-2:]):
        if not best.perfect:
            climb(problem, draft, trials // 2, seed, best.takes)
