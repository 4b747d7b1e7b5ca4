"""Greedy orders: a device that is free runs a B if it has one, else an F, else a W."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bubbleviz.model.values import frozen
from bubbleviz.schedules.search.problem import NEVER, Problem
from bubbleviz.schedules.search.trial import WAIT, Trial, TrialResult


@frozen
class Policy:
    """How devices choose.

    Attributes:
        caps: by virtual stage: most microbatches between their F and the end of their B.
        patience: see :class:`bubbleviz.schedules.search.trial.Trial`.
        forward_first: F before B.
        lazy: W only where memory is short or no forward is left.
    """

    caps: tuple[int, ...]
    patience: float
    forward_first: bool
    lazy: bool


class _Greedy(Trial):
    def __init__(self, problem: Problem, target: int, policy: Policy) -> None:
        super().__init__(problem, target, policy.patience)
        self.policy = policy
        # Room for the chunks behind is left by those before, so that no microbatch is stuck
        # halfway: the oldest one can always go on to its end, and frees its memory then.
        self.most = [
            problem.limit[device] - sum(problem.held[s] for s in problem.stages[device] if s >= own)
            for own, device in enumerate(problem.placement)
        ]

    def choose(self, device: int, now: int) -> int:
        self.near = NEVER
        backward = self._backward(device, now)
        if backward != WAIT and not self.policy.forward_first:
            return backward
        forward = self._forward(device, now)
        if forward != WAIT or backward != WAIT:
            return forward if forward != WAIT else backward
        return self._weights(device, now)

    def _backward(self, device: int, now: int) -> int:
        for stage in self.problem.stages[device]:
            number, inputs = self.b_done[stage], self.b_in[stage]
            if number < len(inputs):
                if inputs[number] <= now:
                    return 3 * stage + 1
                self.near = min(self.near, inputs[number])
        return WAIT

    def _forward(self, device: int, now: int) -> int:
        for stage in reversed(self.problem.stages[device]):
            number, inputs = self.f_done[stage], self.f_in[stage]
            if (
                number < len(inputs)
                and self.held[device] <= self.most[stage]
                and number - self.b_done[stage] < self.policy.caps[stage]
            ):
                if inputs[number] <= now:
                    return 3 * stage
                self.near = min(self.near, inputs[number])
        return WAIT

    def _weights(self, device: int, now: int) -> int:
        owed = self.owed[device]
        if not owed or self.waits(device, now, owed[0]):
            return WAIT
        if self.policy.lazy and self.near < NEVER and self.left[device]:
            most = max(self.problem.held[stage] for stage in self.problem.stages[device])
            short = self.held[device] > self.problem.limit[device] - most
            if not short and self.excess[device] + self.near - now < self.target:
                return WAIT
        return 3 * owed[0] + 2


def greedy(problem: Problem, policy: Policy, target: int) -> TrialResult | None:
    """Return the result of a policy, or None where a device reaches the target."""
    return _Greedy(problem, target, policy).result()


def policies(problem: Problem) -> Iterator[Policy]:
    """Yield the policies that are worth a trial, those with the fewest forwards ahead first."""
    caps = _line_caps(problem) if problem.chunks == 1 else _v_caps(problem)
    patiences = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5) if problem.chunks == 1 else (0.0, 0.5, 1.0)
    for cap in dict.fromkeys(caps):
        for patience in patiences:
            for lazy in (False, True):
                for forward_first in (False, True):
                    yield Policy(cap, patience, forward_first, lazy)


def _line_caps(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield caps as ZB-H1 and ZB-H2 have them and a little more, those that times ask for, none."""
    p, rooms = problem.devices, problem.rooms
    yield from (
        tuple(max(1, min(rooms[d], slope * (p - d) - slope + 1 + more)) for d in range(p))
        for slope in (1, 2)
        for more in range(4)
    )
    forward, away = problem.lengths[0::3], _away(problem)
    for rounded in (math.floor, math.ceil):
        for more in (-1, 0, 1, 2):
            ahead = [rounded(a / max(1, f)) for a, f in zip(away, forward, strict=True)]
            yield tuple(
                max(1, min(room, cap + more)) for room, cap in zip(rooms, ahead, strict=True)
            )
    yield rooms


def _away(problem: Problem) -> list[int]:
    """Return by stage the time from its first F to its first B if none waits for another's F.

    The first gradient comes when the first microbatch has been everywhere; a stage could run
    forwards from then, which is when the first F of the first stage starts, but for the way there.
    """
    lengths, p = problem.lengths, problem.devices
    away = []
    for d in range(p):
        there = sum(lengths[3 * s] for s in range(d)) + sum(problem.down[:d])
        end = sum(lengths[0::3]) + sum(problem.down)
        back = sum(lengths[3 * s + 1] + problem.up[s] for s in range(d + 1, p))
        away.append(end + back - there)
    return away


def _v_caps(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield caps that fall from the first virtual stage to the last, at several slopes."""
    stages, rooms = len(problem.placement), problem.rooms
    yield rooms
    for slope in (1, 2, 3):
        for more in (-1, 0, 1, 2):
            yield tuple(
                max(1, min(rooms[s], math.ceil((stages - s) / slope) + more)) for s in range(stages)
            )
