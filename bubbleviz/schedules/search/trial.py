"""One trial: every device, whenever it is free, chooses what to do next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heappop, heappush

from bubbleviz.model.values import frozen
from bubbleviz.schedules.search.problem import NEVER, Codes, Problem

#: A choice: nothing now; look again when something arrives, or at the trial's ``near``.
WAIT = -1


@frozen
class TrialResult:
    """The orders of a trial, and how good they are.

    Attributes:
        excess: of the device whose window is the longest, in ticks; see
            :mod:`bubbleviz.schedules.search.problem`.
        total: of all devices together.
        codes: what each device ran.
        gaps: where F or B kept a device waiting: (device, place in the order to be kept).
    """

    excess: int
    total: int
    codes: Codes
    gaps: list[tuple[int, int]]


class Trial(ABC):
    """The state of one trial; subclasses choose what to do next.

    ::

        free ──choose──> F, B or W ──put──> free again, and what it gives arrives elsewhere
             └─────────> WAIT until ``near``, or until something arrives

    Args:
        problem: times and memory.
        target: a device whose excess is that long ends the trial, which then has failed; so a
            device that has a W to run runs it rather than wait until then.
        patience: a device waits for an input that is known to arrive within so many of its W's
            lengths, and else fills the time with that W.
    """

    def __init__(self, problem: Problem, target: int, patience: float) -> None:
        stages, devices = len(problem.placement), problem.devices
        self.problem, self.target = problem, target
        self.wait = [int(patience * length) for length in problem.lengths[2::3]]
        #: By virtual stage: when the inputs of its forwards and backwards arrived.
        self.f_in: list[list[int]] = [[] for _ in range(stages)]
        self.b_in: list[list[int]] = [[] for _ in range(stages)]
        self.f_in[0] = [0] * problem.microbatches
        #: By virtual stage: how many of each have run.
        self.f_done, self.b_done, self.w_done = [0] * stages, [0] * stages, [0] * stages
        #: By device: when it is free, what it holds, its excess so far, forwards left.
        self.free, self.held = [0] * devices, [0] * devices
        self.excess = [-slack for slack in problem.slack]
        self.left = [problem.chunks * problem.microbatches] * devices
        #: By device: virtual stages whose W are to be run, the oldest first.
        self.owed: list[list[int]] = [[] for _ in range(devices)]
        self.codes: Codes = [[] for _ in range(devices)]
        self.at = [0] * devices
        self.gaps: list[tuple[int, int]] = []
        self.near = NEVER
        self._events: list[tuple[int, int]] = [(0, device) for device in range(devices)]

    @abstractmethod
    def choose(self, device: int, now: int) -> int:
        """Return the device's next operation, a code, or ``WAIT`` (until ``near``)."""

    def waits(self, device: int, now: int, stage: int) -> bool:
        """Return whether the device waits until ``near`` rather than run a W of that stage."""
        gap = self.near - now
        return gap < self.wait[stage] and self.excess[device] + gap < self.target

    def arrival(self, device: int, code: int) -> int:
        """Return when the next F or B of a device can run, ``NEVER`` if that is not known yet.

        A device without memory for an F waits for ever, unless a W makes room.
        """
        stage, phase = divmod(code, 3)
        if phase == 0:
            if self.held[device] + self.problem.held[stage] > self.problem.limit[device]:
                return NEVER
            number, inputs = self.f_done[stage], self.f_in[stage]
        else:
            number, inputs = self.b_done[stage], self.b_in[stage]
        return inputs[number] if number < len(inputs) else NEVER

    def result(self) -> TrialResult | None:
        """Try all of it; return None where it takes too long or comes to a standstill."""
        free, events, done = self.free, self._events, 0
        while events:
            now, device = heappop(events)
            if now < free[device]:
                continue
            code = self.choose(device, now)
            if code != WAIT:
                if not self._put(device, code, now):
                    return None
                done += 1
            elif self.near < NEVER:
                heappush(events, (self.near, device))
        if done < self.problem.operations:
            return None
        return TrialResult(max(self.excess), sum(self.excess), self.codes, self.gaps)

    def _put(self, device: int, code: int, now: int) -> bool:
        """Try an operation; return whether the device has not idled too long."""
        gap = now - self.free[device]
        begun = bool(self.codes[device])
        if gap and (begun or self.problem.makespan):
            excess = self.excess[device] + gap
            if excess >= self.target:
                return False
            self.excess[device] = excess
            if begun and code % 3 < 2:
                self.gaps.append((device, self.at[device] - 1))
        end = now + self.problem.lengths[code]
        self.codes[device].append(code)
        self.free[device] = end
        heappush(self._events, (end, device))
        self._pass_on(device, code, end)
        return True

    def _pass_on(self, device: int, code: int, end: int) -> None:
        """Count an operation, and send on what it gives."""
        stage, phase = divmod(code, 3)
        problem = self.problem
        if phase == 0:
            self.f_done[stage] += 1
            self.held[device] += problem.held[stage]
            self.left[device] -= 1
            if stage + 1 < len(problem.placement):
                self._send(self.f_in, stage + 1, end + problem.down[stage])
            else:
                self.b_in[stage].append(end)
        elif phase == 1:
            self.b_done[stage] += 1
            self.held[device] -= problem.held[stage] - problem.kept[stage]
            self.owed[device].append(stage)
            if stage:
                self._send(self.b_in, stage - 1, end + problem.up[stage])
        else:
            self.w_done[stage] += 1
            self.held[device] -= problem.kept[stage]
            self.owed[device].remove(stage)

    def _send(self, inputs: list[list[int]], stage: int, arrival: int) -> None:
        inputs[stage].append(arrival)
        device = self.problem.placement[stage]
        heappush(self._events, (max(arrival, self.free[device]), device))
