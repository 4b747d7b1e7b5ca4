"""Search for the schedule that takes least at given times, within a memory limit.

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
the trial is broken off, which most are long before their end. What is found is never worse than a
known order within the memory. The same call gives the same schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.plan import Plan, Setting
from bubbleviz.schedules.search.blocks import Block, blocks, manners, squeeze
from bubbleviz.schedules.search.climbing import climb
from bubbleviz.schedules.search.filling import Draft, fill, timed
from bubbleviz.schedules.search.greedy import Policy, greedy, policies
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem, codes_of, plan_of, problem_of
from bubbleviz.schedules.search.run import Found

#: Blocks that are tried with all microbatches, after a trial of all with few.
_BLOCKS = 6
#: Shares that are tried.
_SHARES = ((1.0, 1.0), (0.72, 1.2), (0.8, 1.2), (0.6, 1.0), (0.6, 1.4))
#: How a known order is filled: eager, patience and shares of a draft.
_Filling = tuple[tuple[int, ...], float, tuple[float, float]]
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
    """Return the plan with the shortest cost that was found, or makespan if that is set.

    Args:
        name: of the plan.
        setting: sizes, times and memory limit.
        placement: device of each virtual stage; of one chunk a device, or of two in a V.
        known: plans of other schedules with that placement, by the number of microbatches.
        watch: is told how much of the search is done.

    Raises:
        UsageError: the memory holds not even one microbatch.
    """
    problem = problem_of(setting, placement)
    if not problem.microbatches:
        return plan_of(name, problem, [[] for _ in range(problem.devices)])
    shorter: _Best | None = None
    few = 4 * problem.devices
    if problem.operations > _MANY and problem.microbatches > few:
        shorter = _Best(problem.with_microbatches(few))
        _improve(shorter, known(few), lambda share: watch(share / 4))
        watch(0.25)
    best = _Best(problem, shorter)
    if shorter:
        best.offer_codes(extended(shorter.codes, problem.microbatches - few))
    _improve(best, known(problem.microbatches), lambda share: watch(0.25 + 0.75 * share))
    return plan_of(name, problem, best.codes)


def _improve(best: _Best, known: Sequence[Plan], watch: Watch) -> None:
    """Look everywhere for something better, until nothing can be."""
    steps: list[Callable[[_Best], None]] = [lambda best: _from_known(best, known)]
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


class _Best:
    """The best so far, and what led there.

    Args:
        problem: times and memory.
        shorter: the best with fewer microbatches; only what led there is tried again.
    """

    def __init__(self, problem: Problem, shorter: _Best | None = None) -> None:
        self.problem = problem
        self.repeats = shorter is not None
        self.fillings = shorter.filled_well if shorter else _grid(problem)
        self.policies = shorter.ran_well if shorter else list(policies(problem))
        self.filled_well: list[_Filling] = []
        self.ran_well: list[Policy] = []
        self.blocks = shorter.repeated_well[:2] if shorter else None
        self.repeated_well: list[Block] = []
        self.excess = NEVER
        self.codes: Codes = []
        self.drafts: list[Draft] = []
        self._least = problem.least_excess()

    @property
    def perfect(self) -> bool:
        """Whether nothing can be better."""
        return self.excess <= self._least

    def offer(self, found: Found | None) -> int:
        """Take what was found if it is better; return the excess of the best."""
        # A device may have waited on purpose, so what counts is the time of its order.
        again = timed(self.problem, found.codes) if found and found.excess <= self.excess else None
        if again and again.excess < self.excess:
            self.excess, self.codes = again.excess, again.codes
        return self.excess

    def takes(self, found: Found) -> bool:
        """Take what was found if it is better; return whether nothing can be better still."""
        self.offer(found)
        return self.perfect

    def offer_codes(self, codes: Codes) -> int:
        """Take complete orders if they are better, and can be run at all."""
        return self.offer(timed(self.problem, codes))

    def fills(self, codes: Codes) -> None:
        """Try orders of F and B with W filled in, as long as that makes them better.

        With few microbatches from far away, which tells what fills well; then from the best.
        """
        target = self.excess if self.repeats else NEVER
        for one in self.fillings:
            draft = Draft(codes, *one)
            while found := fill(self.problem, draft, target):
                if target == NEVER or one not in self.filled_well[:1]:
                    self.filled_well.insert(0, one)
                target = found.excess
                if self.offer(found) == target:
                    self.drafts.append(draft)
                if self.perfect:
                    return


def _grid(problem: Problem) -> list[_Filling]:
    """Return what to try with a known order: eager, patience and shares of a draft."""
    p = problem.devices
    rises = [
        [0] * p,
        list(range(p)),
        [p - 1 - d for d in range(p)],
        [2 * (p - 1 - d) for d in range(p)],
    ]
    eager = [
        tuple(max(1, base + rise) for rise in each) for base in (0, p // 2, p) for each in rises
    ]
    eager.append((NEVER,) * p)
    return [
        (one, patience, shares)
        for shares in _SHARES
        for one in dict.fromkeys(eager)
        for patience in (0.5, 0.75, 1.0, 1.5)
    ]


def _from_known(best: _Best, known: Sequence[Plan]) -> None:
    """Try the orders themselves, then other places for the W of those that have them apart."""
    drafts: list[Codes] = []
    for plan in known:
        codes = codes_of(plan)
        found = timed(best.problem, codes)
        if found and found.excess < best.excess:
            best.offer(found)
            _draft(best, found)
        order = [[code for code in own if code % 3 < 2] for own in codes]
        whole = any(op.phase is Phase.BW for own in plan.orders for op in own)
        if not whole and order not in drafts:
            drafts.append(order)
    for order in drafts:
        if not best.perfect:
            best.fills(order)


def _from_greed(best: _Best) -> None:
    problem = best.problem
    for policy in best.policies:
        # As good as the best is worth another trial with more microbatches.
        found = greedy(problem, policy, best.excess + 1)
        if found:
            best.ran_well.insert(0, policy)
            before = best.excess
            if best.offer(found) < before:
                _draft(best, found)
            if best.perfect:
                return


def _from_blocks(best: _Best) -> None:
    problem = best.problem
    for block in _ranked(problem) if best.blocks is None else best.blocks:
        for manner in manners(block):
            while found := squeeze(problem, manner, best.excess):
                before = best.excess
                if best.offer(found) == before:
                    break
                best.repeated_well.insert(0, block)
                _draft(best, found)


def _ranked(problem: Problem) -> list[Block]:
    """Return the blocks that do best with few microbatches."""
    few = problem.with_microbatches(min(problem.microbatches, problem.devices + 2))
    ranked: list[tuple[int, int, Block]] = []
    for block in blocks(problem.devices, problem.room):
        excess = NEVER
        for manner in islice(manners(block), 2):
            found = squeeze(few, manner, excess)
            excess = found.excess if found else excess
        ranked.append((excess, len(ranked), block))
    return [block for _, _, block in sorted(ranked, key=lambda one: one[:2])[:_BLOCKS]]


def _draft(best: _Best, found: Found) -> None:
    """Keep what was found as an order to be improved: its W stay until its forwards end."""
    codes = []
    for order in found.codes:
        end = max(place for place, code in enumerate(order) if code % 3 == 0)
        codes.append([code for place, code in enumerate(order) if code % 3 < 2 or place < end])
    p = best.problem.devices
    for patience in (0.5, 1.0):
        best.drafts.append(Draft(codes, (NEVER,) * p, patience))


def _by_climbing(best: _Best) -> None:
    problem = best.problem
    trials = max(_FEWEST, min(_MOST, _BUDGET // problem.operations))
    for seed, draft in enumerate(best.drafts[-2:]):
        if not best.perfect:
            climb(problem, draft, trials // 2, seed, best.takes)
