"""Search for a schedule that idles least at given times, within a memory limit.

Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, sections 3 and 5, and
Pipeline Parallelism with Controllable Memory, arXiv 2405.15362. The papers search with greedy
rules over a grid of choices and improve the result by integer programming; this search has rules
of its own::

    known orders    the F and B of handcrafted schedules      ─┐
    blocks          repeated, squeezed at their ends           ├─> the best ─> local search
    greedy          B, else F, else W, over a grid of limits  ─┘

All of them know the best so far, the *target*: a device that would idle that long runs a W
instead, or the trial is broken off, which most are long before their end. The same call gives the
same schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from bubbleviz.plan import Plan, Setting
from bubbleviz.progress import Watch, unwatched
from bubbleviz.search.blocks import Block, blocks, manners, squeeze
from bubbleviz.search.climbing import climb
from bubbleviz.search.filling import Draft, fill, timed
from bubbleviz.search.greedy import greedy, policies
from bubbleviz.search.problem import NEVER, Codes, Problem, codes_of, plan_of, problem_of
from bubbleviz.search.run import Found

#: Blocks that are tried with all microbatches, after a trial of all with few.
_BLOCKS = 6
#: Local search: operations timed in all, and bounds of the number of trials.
_BUDGET, _FEWEST, _MOST = 2_000_000, 40, 1500


def search(
    name: str,
    setting: Setting,
    placement: tuple[int, ...],
    known: Sequence[Plan] = (),
    watch: Watch = unwatched,
) -> Plan:
    """Return the plan with the shortest cost that was found.

    Args:
        name: of the plan.
        setting: sizes, times and memory limit.
        placement: device of each virtual stage; of one chunk a device, or of two in a V.
        known: plans of handcrafted schedules of that placement, which split their backwards.
        watch: is told how much of the search is done.

    Raises:
        UsageError: the memory holds not even one microbatch.
    """
    problem = problem_of(setting, placement)
    if not problem.microbatches:
        return plan_of(name, problem, [[] for _ in range(problem.devices)])
    best = _Best(problem)
    steps: list[Callable[[_Best], None]] = [lambda best: _from_known(best, known)]
    if problem.chunks > 1:
        steps.append(_from_blocks)
    steps += [_from_greed, _by_climbing]
    for number, step in enumerate(steps):
        watch(number / len(steps))
        if best.idle > problem.least_idle():
            step(best)
    watch(1.0)
    return plan_of(name, problem, best.codes)


class _Best:
    """The best so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.idle = NEVER
        self.codes: Codes = []
        self.drafts: list[Draft] = []

    def offer(self, found: Found | None) -> int:
        """Take what was found if it is better; return how long the best idles."""
        # A device may have waited on purpose, so what counts is the time of its order.
        again = timed(self.problem, found.codes) if found and found.idle <= self.idle else None
        if again and again.idle < self.idle:
            self.idle, self.codes = again.idle, again.codes
        return self.idle

    def fills(self, codes: Codes, grid: Iterable[tuple[tuple[int, ...], float, bool]]) -> None:
        """Try orders of F and B with W filled in, as long as that makes them better."""
        target = NEVER
        for eager, patience, level in grid:
            draft = Draft(codes, eager, patience, level)
            while found := fill(self.problem, draft, target):
                target = found.idle
                if self.offer(found) == target:
                    self.drafts.append(draft)
                if not target:
                    return


def _grid(problem: Problem) -> list[tuple[tuple[int, ...], float, bool]]:
    """Return what to try with a known order: eager, patience and level of a draft."""
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
        (one, patience, level)
        for level in (False, True)
        for one in dict.fromkeys(eager)
        for patience in (0.5, 0.75, 1.0, 1.5)
    ]


def _from_known(best: _Best, known: Sequence[Plan]) -> None:
    for plan in known:
        best.fills(codes_of(plan), _grid(best.problem))


def _from_greed(best: _Best) -> None:
    problem = best.problem
    for policy in policies(problem):
        found = greedy(problem, policy, best.idle)
        if found:
            best.offer(found)
            _draft(best, found)


def _from_blocks(best: _Best) -> None:
    """Try all blocks with few microbatches, then the best of them with all."""
    problem = best.problem
    few = problem.with_microbatches(min(problem.microbatches, problem.devices + 2))
    ranked: list[tuple[int, int, Block]] = []
    for block in blocks(problem.devices, problem.room):
        idle = NEVER
        for manner in islice(manners(block), 2):
            found = squeeze(few, manner, idle)
            idle = found.idle if found else idle
        ranked.append((idle, len(ranked), block))
    for _, _, block in sorted(ranked, key=lambda one: one[:2])[:_BLOCKS]:
        for manner in manners(block):
            while found := squeeze(problem, manner, best.idle):
                before = best.idle
                if best.offer(found) == before:
                    break
                _draft(best, found)


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
    for draft in best.drafts[-2:]:
        climb(problem, draft, trials // 2, best.offer)
