"""The best orders so far, and what led there."""

from __future__ import annotations

from bubbleviz.schedules.search.blocks import Block
from bubbleviz.schedules.search.filling import Draft, fill, timed
from bubbleviz.schedules.search.greedy import Policy, policies
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem
from bubbleviz.schedules.search.trial import TrialResult

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

    @property
    def perfect(self) -> bool:
        """Whether nothing can be better."""
        return self.excess <= self._least

    def offer(self, result: TrialResult | None) -> int:
        """Take a result if it is better; return the excess of the best."""
        if result is None or result.excess > self.excess:
            return self.excess
        # A device may have waited on purpose, so what counts is the time of its order.
        again = timed(self.problem, result.codes)
        if again and again.excess < self.excess:
            self.excess, self.codes = again.excess, again.codes
        return self.excess

    def takes(self, result: TrialResult) -> bool:
        """Take a result if it is better; return whether nothing can be better still."""
        self.offer(result)
        return self.perfect

    def offer_codes(self, codes: Codes) -> int:
        """Take complete orders if they are better, and can be run at all."""
        return self.offer(timed(self.problem, codes))

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

    def keep_draft(self, result: TrialResult) -> None:
        """Keep a result as an order to be improved: its W stay until its forwards end."""
        codes = []
        for order in result.codes:
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
