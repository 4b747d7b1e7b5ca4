"""Local search: small changes to an order that leave it no worse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from random import Random

from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.plan import Plan, Setting
from bubbleviz.schedules.search.greedy import (
    Block,
    Draft,
    Policy,
    blocks,
    fill,
    greedy,
    manners,
    policies,
    squeeze,
)
from bubbleviz.schedules.search.problem import (
    NEVER,
    Codes,
    Problem,
    Trial,
    codes_of,
    improve,
    plan_of,
    problem_of,
)

#: How far changes reach, in the number of operations of a microbatch on every device.
_REACH = 6


def climb(
    problem: Problem,
    start: Draft,
    trials: int,
    seed: int,
    takes: Callable[[Trial], bool],
) -> None:
    """Try changes to a draft, each from the best so far.

    A change of a draft with as long a longest window, and no longer ones in sum, is kept: many
    steps in a row leave the longest as it is before one shortens it.

    Args:
        problem: times and memory.
        start: where to begin.
        trials: how many changes to try.
        seed: of the changes; the same one gives the same schedule.
        takes: takes a shorter result, and returns whether that is enough.
    """
    first = fill(problem, start, 1 << 62)
    if first is None:
        return
    random = Random(seed)
    draft, best = start, first
    for _ in range(trials):
        changed = _changed(problem, random, draft, best)
        result = fill(problem, changed, best.excess + 1)
        if result is None or (result.excess, result.total) > (best.excess, best.total):
            continue
        shorter = result.excess < best.excess
        draft, best = changed, result
        if shorter and takes(best):
            return


def _changed(problem: Problem, random: Random, draft: Draft, result: Trial) -> Draft:
    """Return a draft with one change, or with two."""
    kind = random.random()
    if kind < 0.05:
        device = random.randrange(problem.devices)
        most = problem.chunks * problem.microbatches + 1
        step = random.choice((-3, -2, -1, 1, 2, 3))
        eager = list(draft.eager)
        eager[device] = max(1, min(eager[device], most) + step)
        return replace(draft, eager=tuple(eager))
    if kind < 0.1:
        patience = draft.patience + random.choice((-0.25, 0.25))
        return replace(draft, patience=max(0.0, patience))
    codes = list(draft.codes)
    for _ in range(random.choice((1, 1, 2))):
        if kind < 0.8 and result.gaps:
            device, at = random.choice(result.gaps)
            codes[device] = _changed_at_a_gap(problem, random, codes[device], device, at)
        else:
            device = random.randrange(problem.devices)
            codes[device] = _changed_anywhere(problem, random, codes[device])
    return replace(draft, codes=codes)


def _changed_at_a_gap(
    problem: Problem, random: Random, codes: list[int], device: int, at: int
) -> list[int]:
    """Have another operation run where a device waits: a W, or the next of another kind."""
    order = list(codes)
    if random.random() < 0.2:
        at += random.choice((-2, -1, 1, 2))
    at = max(0, min(at, len(order) - 1))
    if random.random() < 0.3:
        order.insert(at, 3 * random.choice(problem.stages[device]) + 2)
        return order
    others: dict[int, int] = {}
    for place in range(at + 1, min(len(order), at + _REACH * problem.devices)):
        if order[place] != order[at]:
            others.setdefault(order[place], place)
    if others:
        order.insert(at, order.pop(random.choice(list(others.values()))))
    return order


def _changed_anywhere(problem: Problem, random: Random, codes: list[int]) -> list[int]:
    """Move an operation near the beginning or the end by some places, or drop a W."""
    order = list(codes)
    place = random.randrange(min(len(order), _REACH * problem.devices))
    if random.random() < 0.5:
        place = len(order) - 1 - place
    if order[place] % 3 == 2 and random.random() < 0.5:
        del order[place]
        return order
    target = place + random.choice((-3, -2, -1, 1, 2, 3))
    order.insert(max(0, min(len(order) - 1, target)), order.pop(place))
    return order


# The best orders so far, and what led there.


#: Shares of the target to try; see :class:`.filling.Draft`.
_SHARES = ((1.0, 1.0), (0.72, 1.2), (0.8, 1.2), (0.6, 1.0), (0.6, 1.4))
#: How a known order is filled: eager, patience and shares of a draft.
Filling = tuple[tuple[int, ...], float, tuple[float, float]]


class Best:
    """The best so far, and what led there.

    Args:
        problem: times and memory.
        shorter: the best with fewer microbatches; only what led there is tried again.
    """

    def __init__(self, problem: Problem, shorter: Best | None = None) -> None:
        self.problem = problem
        self.repeats = shorter is not None
        self.fillings = shorter.filled_well if shorter else _grid(problem)
        self.policies = shorter.ran_well if shorter else list(policies(problem))
        self.filled_well: list[Filling] = []
        self.ran_well: list[Policy] = []
        self.blocks = shorter.repeated_well[:2] if shorter else None
        self.repeated_well: list[Block] = []
        self.excess = NEVER
        self.codes: Codes = []
        self.drafts: list[Draft] = []
        self._least = problem.least_excess()
        #: Of the device with most: what orders are longer than by their excess.
        self._work = problem.most_work

    @property
    def perfect(self) -> bool:
        """Whether nothing can be better."""
        return self.excess <= self._least

    def offer(self, result: Trial) -> int:
        """Take a result if it is better; return the excess of the best."""
        if result.excess <= self.excess:
            # A device may have waited on purpose, so what counts is the time of its order.
            self.offer_codes(result.codes)
        return self.excess

    def offer_codes(self, codes: Codes) -> bool:
        """Take complete orders if they are better, and can be run at all; return whether."""
        timed = improve(self.problem, codes, 0)
        if timed is None or timed[0] - self._work >= self.excess:
            return False
        self.excess, self.codes = timed[0] - self._work, codes
        return True

    def takes(self, result: Trial) -> bool:
        """Take a result if it is better; return whether nothing can be better still."""
        self.offer(result)
        return self.perfect

    def fill_in(self, codes: Codes) -> None:
        """Try orders of F and B with W filled in, as long as that makes them better.

        With few microbatches, trials start far from the best, which shows what fills well; then
        from the best.
        """
        target = self.excess if self.repeats else NEVER
        for filling in self.fillings:
            draft = Draft(codes, *filling)
            while result := fill(self.problem, draft, target):
                if target == NEVER or filling not in self.filled_well[:1]:
                    self.filled_well.insert(0, filling)
                target = result.excess
                if self.offer(result) == target:
                    self.drafts.append(draft)
                if self.perfect:
                    return

    def keep_draft(self, orders: Codes) -> None:
        """Keep orders to be improved: their W stay until their forwards end."""
        codes = []
        for order in orders:
            end = max(place for place, code in enumerate(order) if code % 3 == 0)
            codes.append([code for place, code in enumerate(order) if code % 3 < 2 or place < end])
        devices = self.problem.devices
        for patience in (0.5, 1.0):
            self.drafts.append(Draft(codes, (NEVER,) * devices, patience))


def _grid(problem: Problem) -> list[Filling]:
    """Return the fillings to try with a known order."""
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
        (rises, patience, shares)
        for shares in _SHARES
        for rises in dict.fromkeys(eager)
        for patience in (0.5, 0.75, 1.0, 1.5)
    ]


# Search for the shortest schedule at given times, within a memory limit.
#
# Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, sections 3 and 5, and
# Pipeline Parallelism with Controllable Memory, arXiv 2405.15362. The papers search with greedy
# rules over a grid of choices and improve the result by integer programming; this search has rules
# of its own::
#
#     known orders    schedules with one order, as they are,
#                     and their F and B with W filled in        ─┐
#     blocks          repeated, squeezed at their ends           ├─> the best ─> local search
#     greedy          B, else F, else W, over a grid of limits  ─┘
#
# large ones first with 4p microbatches, whose result is repeated in its middle, then with all, but
# only by the rules that did well.
#
# All of them know the best so far, the *target*: a device that would exceed it runs a W instead, or
# the trial is broken off, which most are long before their end. The result is never worse than a
# known order within the memory. The same call gives the same schedule.


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
        shorter = Best(replace(problem, microbatches=few))
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
        if best.offer_codes(codes):
            best.keep_draft(codes)
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
                best.keep_draft(result.codes)
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
                best.keep_draft(result.codes)


def _ranked(problem: Problem) -> list[Block]:
    """Return the blocks that do best with few microbatches."""
    few = replace(problem, microbatches=min(problem.microbatches, problem.devices + 2))
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
