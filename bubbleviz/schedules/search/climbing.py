"""Local search: small changes to an order that leave it no worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from bubbleviz.schedules.search.filling import Draft, fill
from bubbleviz.schedules.search.problem import Codes, Problem
from bubbleviz.schedules.search.trial import TrialResult

#: How far changes reach, in the number of operations of a microbatch on every device.
_REACH = 6


def climb(
    problem: Problem,
    start: Draft,
    trials: int,
    seed: int,
    takes: Callable[[TrialResult], bool],
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
    change = _Changes(problem, Random(seed))
    draft, best = start, first
    for _ in range(trials):
        changed = change.of(draft, best)
        result = fill(problem, changed, best.excess + 1)
        if result is None or (result.excess, result.total) > (best.excess, best.total):
            continue
        shorter = result.excess < best.excess
        draft, best = changed, result
        if shorter and takes(best):
            return


class _Changes:
    """Makes changes at random."""

    def __init__(self, problem: Problem, random: Random) -> None:
        self.problem, self.random = problem, random

    def of(self, draft: Draft, result: TrialResult) -> Draft:
        """Return a draft with one change, or with two."""
        kind = self.random.random()
        if kind < 0.05:
            return self._eager(draft)
        if kind < 0.1:
            step = self.random.choice((-0.25, 0.25))
            return replace(draft, patience=max(0.0, draft.patience + step))
        codes = list(draft.codes)
        for _ in range(self.random.choice((1, 1, 2))):
            if kind < 0.8 and result.gaps:
                self._at_a_gap(codes, *self.random.choice(result.gaps))
            else:
                self._anywhere(codes)
        return replace(draft, codes=codes)

    def _eager(self, draft: Draft) -> Draft:
        device = self.random.randrange(self.problem.devices)
        most = self.problem.chunks * self.problem.microbatches + 1
        step = self.random.choice((-3, -2, -1, 1, 2, 3))
        eager = list(draft.eager)
        eager[device] = max(1, min(eager[device], most) + step)
        return replace(draft, eager=tuple(eager))

    def _at_a_gap(self, codes: Codes, device: int, at: int) -> None:
        """Have another operation run where a device waits: a W, or the next of another kind."""
        order = codes[device] = list(codes[device])
        if self.random.random() < 0.2:
            at += self.random.choice((-2, -1, 1, 2))
        at = max(0, min(at, len(order) - 1))
        if self.random.random() < 0.3:
            order.insert(at, 3 * self.random.choice(self.problem.stages[device]) + 2)
            return
        seen = {order[at]}
        others = []
        for place in range(at + 1, min(len(order), at + _REACH * self.problem.devices)):
            if order[place] not in seen:
                seen.add(order[place])
                others.append(place)
        if others:
            order.insert(at, order.pop(self.random.choice(others)))

    def _anywhere(self, codes: Codes) -> None:
        """Move an operation near the beginning or the end by some places, or drop a W."""
        device = self.random.randrange(self.problem.devices)
        order = codes[device] = list(codes[device])
        place = self.random.randrange(min(len(order), _REACH * self.problem.devices))
        if self.random.random() < 0.5:
            place = len(order) - 1 - place
        if order[place] % 3 == 2 and self.random.random() < 0.5:
            del order[place]
            return
        target = place + self.random.choice((-3, -2, -1, 1, 2, 3))
        order.insert(max(0, min(len(order) - 1, target)), order.pop(place))
