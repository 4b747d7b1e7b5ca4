"""A given order of forwards and backwards, with the weight gradients filled in."""

from __future__ import annotations

from bubbleviz.model.values import frozen
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem
from bubbleviz.schedules.search.trial import WAIT, Trial, TrialResult


@frozen
class Draft:
    """An order to be filled.

    ::

        order    F0 F1 B0    F2 B1
        filled   F0 F1 B0 W0 F2 B1 W1        W0 in time that was idle, or for its memory

    Attributes:
        codes: F and B of each device in order, and those W that are not to run later than there.
        eager: of each device: W run at once while so many forwards are left.
        patience: see :class:`bubbleviz.schedules.search.trial.Trial`.
        shares: of the target that the first and the last device may take, rising evenly between
            them: what the last ones delay reaches the first, whose slack is better kept for it.
    """

    codes: Codes
    eager: tuple[int, ...]
    patience: float
    shares: tuple[float, float] = (1.0, 1.0)


class _Filling(Trial):
    def __init__(self, problem: Problem, target: int, draft: Draft) -> None:
        super().__init__(problem, target, draft.patience)
        self.draft = draft
        self.passed = [0] * len(problem.placement)
        first, last = draft.shares
        rise = (last - first) / max(1, problem.devices - 1)
        self.allowed = [target * (first + device * rise) for device in range(problem.devices)]

    def choose(self, device: int, now: int) -> int:
        self.near = NEVER
        order, at = self.draft.codes[device], self.at[device]
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
        return WAIT

    def _weights_there(self, device: int, stage: int, at: int) -> int:
        """Try the W that stands next, unless its B has not run."""
        if self.w_done[stage] == self.b_done[stage]:
            self.at[device] = at
            return WAIT
        self.passed[stage] += 1
        self.at[device] = at + 1
        return 3 * stage + 2

    def _goes_on(self, device: int, now: int, stage: int) -> bool:
        """Return whether the next F or B comes before a W of that stage."""
        if self.left[device] >= self.draft.eager[device] or self.near == NEVER:
            return False
        if self.near <= now:
            return True
        if self.excess[device] + self.near - now >= self.allowed[device]:
            return False
        return self.waits(device, now, stage)


def fill(problem: Problem, draft: Draft, target: int) -> TrialResult | None:
    """Return the draft with its W, or None where it exceeds the target or equals it."""
    return _Filling(problem, target, draft).result()


class _InOrder(Trial):
    """Keeps complete orders."""

    def __init__(self, problem: Problem, codes: Codes) -> None:
        super().__init__(problem, NEVER, 0.0)
        self.order = codes

    def choose(self, device: int, now: int) -> int:
        self.near = NEVER
        if self.at[device] == len(self.order[device]):
            return WAIT
        code = self.order[device][self.at[device]]
        if code % 3 < 2:
            self.near = self.arrival(device, code)
            if self.near > now:
                return WAIT
        self.at[device] += 1
        return code


def timed(problem: Problem, codes: Codes) -> TrialResult | None:
    """Return complete orders, timed: every operation starts as early as it can."""
    return _InOrder(problem, codes).result()
