"""Searched schedules: greedy rules and repeated blocks, improved by small changes.

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
from dataclasses import replace
from random import Random

from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.search import trials as attempts
from bubbleviz.schedules.search.orders import extended, improve
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem, codes_of

#: How W are filled into an order: those of each device run at once while so many forwards are left;
#: the patience of :class:`bubbleviz.schedules.search.trials.Trial`; and the shares of the target
#: that the first and the last device may take, rising evenly between them: what the last ones delay
#: reaches the first, whose slack is better kept for it.
Filling = tuple[tuple[int, ...], float, tuple[float, float]]
#: An order to be filled: F and B of each device, and those W that are not to run later than there.
#: ::
#:
#:     order    F0 F1 B0    F2 B1
#:     filled   F0 F1 B0 W0 F2 B1 W1        W0 in time that was idle, or for its memory
Draft = tuple[Codes, Filling]


class Filled(attempts.Trial):
    """Fills the W into a draft."""

    def __init__(self, problem: Problem, target: int, draft: Draft) -> None:
        self.draft, (self.eager, patience, (first, last)) = draft
        super().__init__(problem, target, patience)
        self.passed = [0] * len(problem.placement)
        rise = (last - first) / max(1, problem.devices - 1)
        self.allowed = [target * (first + device * rise) for device in range(problem.devices)]

    def choose(self, device: int, now: int) -> int:  # noqa: D102
        self.near = NEVER
        order, at = self.draft[device], self.at[device]
        while at < len(order) and order[at] % 3 == 2:
            stage = order[at] // 3
            if self.w_done[stage] <= self.passed[stage]:
                return self._weights_there(device, stage, at)
            self.passed[stage] += 1  # it has run already
            at += 1
        self.at[device] = at
        if at < len(order):
            self.near = self.arrival(device, order[at])
        owed = self.owed[device]
        if owed and not self._goes_on(device, now, owed[0]):
            return 3 * owed[0] + 2
        if self.near <= now:
            self.at[device] = at + 1
            return order[at]
        return attempts.WAIT

    def _weights_there(self, device: int, stage: int, at: int) -> int:
        """Try the W that stands next, unless its B has not run."""
        if self.w_done[stage] == self.b_done[stage]:
            self.at[device] = at
            return attempts.WAIT
        self.passed[stage] += 1
        self.at[device] = at + 1
        return 3 * stage + 2

    def _goes_on(self, device: int, now: int, stage: int) -> bool:
        """Return whether the next F or B comes before a W of that stage."""
        if self.left[device] >= self.eager[device] or self.near == NEVER:
            return False
        if self.near <= now:
            return True
        if self.behind[device] + self.near - now >= self.allowed[device]:
            return False
        return self.waits(device, now, stage)


#: How far changes reach, in the number of operations of a microbatch on every device.
_REACH = 6


def _changed(problem: Problem, random: Random, draft: Draft, result: attempts.Trial) -> Draft:
    """Return a draft with one change, or with two."""
    orders, (eager, patience, shares) = draft
    kind = random.random()
    if kind < 0.05:
        device = random.randrange(problem.devices)
        most = problem.chunks * problem.microbatches + 1
        step = random.choice((-3, -2, -1, 1, 2, 3))
        early = max(1, min(eager[device], most) + step)
        return orders, ((*eager[:device], early, *eager[device + 1 :]), patience, shares)
    if kind < 0.1:
        patience += random.choice((-0.25, 0.25))
        return orders, (eager, max(0.0, patience), shares)
    codes = list(orders)
    for _ in range(random.choice((1, 1, 2))):
        if kind < 0.8 and result.gaps:
            device, at = random.choice(result.gaps)
            codes[device] = _changed_at_a_gap(problem, random, codes[device], device, at)
        else:
            device = random.randrange(problem.devices)
            codes[device] = _changed_anywhere(problem, random, codes[device])
    return codes, draft[1]


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


#: Shares of the target to try; see :data:`Filling`.
_SHARES = ((1.0, 1.0), (0.72, 1.2), (0.8, 1.2), (0.6, 1.0), (0.6, 1.4))


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
        self.policies = shorter.ran_well if shorter else list(attempts.policies(problem))
        self.filled_well: list[Filling] = []
        self.ran_well: list[attempts.Policy] = []
        self.blocks = shorter.repeated_well[:2] if shorter else None
        self.repeated_well: list[attempts.Block] = []
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

    def offer(self, result: attempts.Trial) -> int:
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

    def fill_in(self, codes: Codes) -> None:
        """Try orders of F and B with W filled in, as long as that makes them better.

        With few microbatches, trials start far from the best, which shows what fills well; then
        from the best.
        """
        target = self.excess if self.repeats else NEVER
        for filling in self.fillings:
            draft = (codes, filling)
            while result := Filled(self.problem, target, draft).result():
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
            self.drafts.append((codes, ((NEVER,) * devices, patience, (1.0, 1.0))))


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


#: Blocks that are tried with all microbatches, after a trial of all with few.
_BLOCKS = 6
#: Operations from which on a search begins with fewer microbatches.
_MANY = 12_000
#: Local search: operations timed in all, and bounds of the number of trials.
_BUDGET, _FEWEST, _MOST = 2_000_000, 40, 1500


def search(problem: Problem, known: Callable[[int], Sequence[Plan]], watch: Watch) -> Codes:
    """Return the orders with the shortest cost of all trials, or makespan if that is set.

    Args:
        problem: times and memory; of one chunk a device, or of two in a V.
        known: plans of other schedules with that placement, by the number of microbatches.
        watch: called with the share of the search that is done.
    """
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
    return best.codes


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
        result = attempts.Greedy(problem, best.excess + 1, policy).result()
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
        for manner in attempts.MANNERS:
            while result := attempts.Squeezed(problem, best.excess, block, manner).result():
                before = best.excess
                if best.offer(result) == before:
                    break
                best.repeated_well.insert(0, block)
                best.keep_draft(result.codes)


def _ranked(problem: Problem) -> list[attempts.Block]:
    """Return the blocks that do best with few microbatches."""
    few = replace(problem, microbatches=min(problem.microbatches, problem.devices + 2))
    ranked: list[tuple[int, int, attempts.Block]] = []
    for block in attempts.blocks(problem.devices, min(problem.rooms)):
        excess = NEVER
        for manner in attempts.MANNERS[:2]:
            result = attempts.Squeezed(few, excess, block, manner).result()
            excess = result.excess if result else excess
        ranked.append((excess, len(ranked), block))
    return [block for _, _, block in sorted(ranked, key=lambda row: row[:2])[:_BLOCKS]]


def _by_climbing(best: Best) -> None:
    """Try changes to the last drafts, each from the best so far.

    A change of a draft with as long a longest window, and no longer ones in sum, is kept: many
    steps in a row leave the longest as it is before one shortens it.
    """
    problem = best.problem
    trials = max(_FEWEST, min(_MOST, _BUDGET // problem.operations))
    for seed, start in enumerate(best.drafts[-2:]):
        draft = start
        filled = None if best.perfect else Filled(problem, NEVER, draft).result()
        if filled is None:
            continue
        random = Random(seed)
        for _ in range(trials // 2):
            changed = _changed(problem, random, draft, filled)
            result = Filled(problem, filled.excess + 1, changed).result()
            if result is None or (result.excess, result.total) > (filled.excess, filled.total):
                continue
            shorter = result.excess < filled.excess
            draft, filled = changed, result
            if shorter:
                best.offer(filled)
                if best.perfect:
                    break
