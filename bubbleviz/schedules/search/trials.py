"""Trials: simulations in which each device chooses its next operation whenever it is free.

A trial is a discrete-event simulation that produces one order per device (``Trial.run``):

1. Take the earliest event: either a device has become free, or an input has arrived for a free
   device.
2. ``choose`` the next operation of the device, or ``WAIT``. A waiting device chooses again when an
   input arrives, or at ``next_arrival``.
3. ``_start`` the operation: advance the clock of the device, account for its memory, and schedule
   the arrival of the result on the next stage::

       device free ──choose──> F, B or W ──_start──> device free again at the end
            │                                   └──> input of the next stage, after the transfer
            └─────────> WAIT ──until an input arrives or next_arrival──> choose again

4. The trial fails as soon as the excess of any device (see :mod:`.problem`) reaches the target,
   which is the best excess so far. The trial also fails if the devices deadlock.

The two kinds of trials differ in ``choose``. A :class:`Greedy` device runs a B if it can, else an
F, else a W. A :class:`Squeezed` device repeats a building block of a V schedule, but fills the
start and the end with whatever can run.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from heapq import heappop, heappush

from bubbleviz.schedules.search.blocks import PERIOD, Block
from bubbleviz.schedules.search.problem import (
    BACKWARD,
    FORWARD,
    NEVER,
    WEIGHT,
    Codes,
    Problem,
)

#: Choice of a device that starts no operation now.
#: The device chooses again when an input arrives, or at the trial's ``next_arrival``.
WAIT = -1


class Trial(ABC):
    """The state of one simulation; subclasses choose the next operation.

    Attributes:
        excess: Largest excess of any device at the end, in ticks, as set by :meth:`run`.
        codes: Operations that each device has run so far, in order.
        f_in: Arrival times of the inputs of F, for each virtual stage.
        b_in: Arrival times of the inputs of B, for each virtual stage.
        f_done: Number of Fs that have run on each virtual stage.
        b_done: Number of Bs that have run on each virtual stage.
        w_done: Number of Ws that have run on each virtual stage.
        free_at: Time at which each device is free.
        memory_used: Memory in use on each device.
        excess_of: Each device's excess so far.
        forwards_left: Number of Fs that each device still has to run.
        pending_weights: For each device, the virtual stages whose B has run but whose W has not,
            oldest first.
        next_arrival: Time at which the next input is known to arrive for the device that chose
            last, or ``NEVER``.
    """

    excess: int

    def __init__(self, problem: Problem, target: int, patience: float) -> None:
        """Prepare a trial.

        Args:
            problem: The search problem, with times and memory.
            target: Excess, in ticks, at which the trial fails.
            patience: Maximum time that a device waits for a known arrival instead of running a W,
                as a multiple of the W's duration.
        """
        n_stages, n_devices = len(problem.placement), problem.devices
        self.problem, self.target = problem, target
        self.max_wait = [int(patience * length) for length in problem.lengths[WEIGHT::3]]
        self.f_in: list[list[int]] = [[] for _ in range(n_stages)]
        self.b_in: list[list[int]] = [[] for _ in range(n_stages)]
        self.f_in[0] = [0] * problem.microbatches
        self.f_done, self.b_done, self.w_done = [0] * n_stages, [0] * n_stages, [0] * n_stages
        self.free_at, self.memory_used = [0] * n_devices, [0] * n_devices
        self.excess_of = [-slack for slack in problem.slack]
        self.forwards_left = [problem.chunks * problem.microbatches] * n_devices
        self.pending_weights: list[list[int]] = [[] for _ in range(n_devices)]
        self.codes: Codes = [[] for _ in range(n_devices)]
        self.next_arrival = NEVER
        self._events: list[tuple[int, int]] = [(0, device) for device in range(n_devices)]

    @abstractmethod
    def choose(self, device: int, now: int) -> int:
        """Choose the next operation of a free device.

        Args:
            device: The device that is free.
            now: Current time, in ticks.

        Returns:
            Code of an operation that can run now, or ``WAIT``. The method also sets
            ``next_arrival``.
        """

    def should_wait(self, device: int, now: int, stage: int) -> bool:
        """Return whether the device should wait for the next arrival instead of running a W.

        The device should wait if the wait is shorter than the virtual stage's ``max_wait`` and the
        excess stays below ``target``. The excess of a device is its idle time minus its slack.

        Args:
            device: The device that is free.
            now: Current time.
            stage: Virtual stage of the W.
        """
        wait = self.next_arrival - now
        return wait < self.max_wait[stage] and self.excess_of[device] + wait < self.target

    def get_arrival(self, device: int, code: int) -> int:
        """Return the time at which the input of the next F or B of a virtual stage arrives.

        The result is ``NEVER`` if the operation that computes the input has not started yet, or if
        the device currently has too little memory for an F.

        Args:
            device: Device of the virtual stage.
            code: Code of the F or B.
        """
        stage, phase = divmod(code, 3)
        if phase == FORWARD:
            needed = self.memory_used[device] + self.problem.activation[stage]
            if needed > self.problem.limit[device]:
                return NEVER
            index, inputs = self.f_done[stage], self.f_in[stage]
        else:
            index, inputs = self.b_done[stage], self.b_in[stage]
        return inputs[index] if index < len(inputs) else NEVER

    def run(self) -> Trial | None:
        """Run all operations, and set ``excess``.

        Returns:
            This trial, or None if it failed because the excess of a device reached the target or
            the devices deadlocked.
        """
        free_at, events, n_done = self.free_at, self._events, 0
        while events:
            now, device = heappop(events)
            if now < free_at[device]:
                continue
            code = self.choose(device, now)
            if code != WAIT:
                if not self._start(device, code, now):
                    return None
                n_done += 1
            elif self.next_arrival < NEVER:
                heappush(events, (self.next_arrival, device))
        if n_done < self.problem.operations:
            return None
        self.excess = max(self.excess_of)
        return self

    def _start(self, device: int, code: int, now: int) -> bool:
        """Run an operation on a device and schedule the arrival of its result.

        Args:
            device: The device that is free.
            code: Code of the operation.
            now: Start time, in ticks.

        Returns:
            Whether the trial can go on. The trial has failed if the idle time before the operation
            raises the device's excess to ``target`` or above.
        """
        problem = self.problem
        idle = now - self.free_at[device]
        if idle and (self.codes[device] or problem.makespan):
            self.excess_of[device] += idle
            if self.excess_of[device] >= self.target:
                return False

        end = now + problem.lengths[code]
        self.codes[device].append(code)
        self.free_at[device] = end
        heappush(self._events, (end, device))

        stage, phase = divmod(code, 3)
        if phase == FORWARD:
            self.f_done[stage] += 1
            self.forwards_left[device] -= 1
            self.memory_used[device] += problem.activation[stage]
            if stage + 1 < len(problem.placement):
                self._send(self.f_in, stage + 1, end + problem.down[stage])
            else:  # The last stage starts the backward itself.
                self.b_in[stage].append(end)
        elif phase == BACKWARD:
            self.b_done[stage] += 1
            self.memory_used[device] -= problem.activation[stage] - problem.weight_activation[stage]
            self.pending_weights[device].append(stage)
            if stage > 0:
                self._send(self.b_in, stage - 1, end + problem.up[stage])
        else:
            self.w_done[stage] += 1
            self.memory_used[device] -= problem.weight_activation[stage]
            self.pending_weights[device].remove(stage)
        return True

    def _send(self, inputs: list[list[int]], stage: int, arrival: int) -> None:
        """Record the arrival of an input, and schedule an event for the receiving device."""
        inputs[stage].append(arrival)
        device = self.problem.placement[stage]
        heappush(self._events, (max(arrival, self.free_at[device]), device))


#: How a greedy device chooses its operations: (caps, patience, forward_first, lazy). Caps limit the
#: number of microbatches between F and the end of B on each virtual stage. For patience, see
#: :class:`Trial`. ``forward_first`` is whether F comes before B. ``lazy`` is whether W waits until
#: memory is short or no forward is left.
Policy = tuple[tuple[int, ...], float, bool, bool]


class Greedy(Trial):
    """Runs a B if possible, else an F, else a W, with modifications that a policy defines.

    A forward starts only if enough memory is left for the later chunks of its device. The oldest
    microbatch can therefore always finish and release its memory, so there is no deadlock.

    Attributes:
        max_memory: For each virtual stage, the maximum memory in use on the device at which an F
            may start.
    """

    def __init__(self, problem: Problem, target: int, policy: Policy) -> None:
        """Prepare a trial; see :class:`Trial` and ``Policy``."""
        self.caps, patience, self.forward_first, self.lazy = policy
        super().__init__(problem, target, patience)
        self.max_memory = []
        for first, device in enumerate(problem.placement):
            later = [stage for stage in problem.stages[device] if stage >= first]
            needed = sum(problem.activation[stage] for stage in later)
            self.max_memory.append(problem.limit[device] - needed)

    def choose(self, device: int, now: int) -> int:  # noqa: D102
        self.next_arrival = NEVER
        backward = self._choose_backward(device, now)
        if backward != WAIT and not self.forward_first:
            return backward
        forward = self._choose_forward(device, now)
        if forward != WAIT or backward != WAIT:
            return forward if forward != WAIT else backward
        return self._choose_weight_gradient(device, now)

    def _choose_backward(self, device: int, now: int) -> int:
        """Return the code of a B whose input has arrived, or ``WAIT``.

        If several virtual stages of the device can run a B, the first one is chosen.
        ``next_arrival`` is lowered to the time of the next arrival if it is known.
        """
        for stage in self.problem.stages[device]:
            index, inputs = self.b_done[stage], self.b_in[stage]
            if index < len(inputs):
                if inputs[index] <= now:
                    return 3 * stage + BACKWARD
                self.next_arrival = min(self.next_arrival, inputs[index])
        return WAIT

    def _choose_forward(self, device: int, now: int) -> int:
        """Return the code of the F on the last virtual stage that can start one, or ``WAIT``.

        A virtual stage can start an F if its input has arrived and its memory and its cap allow
        it. If only the input is missing and is known to arrive later, ``next_arrival`` is lowered
        to the time of its arrival.
        """
        for stage in reversed(self.problem.stages[device]):
            index, inputs = self.f_done[stage], self.f_in[stage]
            has_memory = self.memory_used[device] <= self.max_memory[stage]
            is_below_cap = index - self.b_done[stage] < self.caps[stage]
            if index < len(inputs) and has_memory and is_below_cap:
                if inputs[index] <= now:
                    return 3 * stage + FORWARD
                self.next_arrival = min(self.next_arrival, inputs[index])
        return WAIT

    def _choose_weight_gradient(self, device: int, now: int) -> int:
        """Return the code of the oldest pending W, or ``WAIT``.

        The result is ``WAIT`` if no W is pending, or if the device should wait for the next arrival
        instead (:meth:`should_wait`). A lazy device also waits if all of these conditions hold:

        - It has forwards left, and it is known when the next input arrives.
        - It has memory for another activation.
        - Its excess would stay below the target.
        """
        pending = self.pending_weights[device]
        if not pending or self.should_wait(device, now, pending[0]):
            return WAIT
        if self.lazy and self.next_arrival < NEVER and self.forwards_left[device]:
            stages = self.problem.stages[device]
            largest = max(self.problem.activation[stage] for stage in stages)
            is_short = self.memory_used[device] > self.problem.limit[device] - largest
            wait = self.next_arrival - now
            if not is_short and self.excess_of[device] + wait < self.target:
                return WAIT
        return 3 * pending[0] + WEIGHT


def list_policies(problem: Problem) -> Iterator[Policy]:
    """Yield the policies that are worth a trial.

    Each distinct set of caps is combined with several values of patience, and with both values of
    ``lazy`` and ``forward_first``.
    """
    caps = _list_line_caps(problem) if problem.chunks == 1 else _list_v_caps(problem)
    patiences = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5) if problem.chunks == 1 else (0.0, 0.5, 1.0)
    for cap in dict.fromkeys(caps):
        for patience in patiences:
            for lazy, forward_first in itertools.product((False, True), repeat=2):
                yield cap, patience, forward_first, lazy


def _list_line_caps(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield limits on the number of microbatches between F and B, for one chunk per device.

    The limits (caps) are yielded in this order:

    1. The caps of ZB-H1 and then of ZB-H2, with 0 to 3 more microbatches.
    2. Caps that keep a stage busy until its first gradient arrives. They are the time until then
       divided by the time of F, rounded down and then up, plus -1 to 2.
    3. The number of microbatches that fit in memory. No other cap exceeds this number.
    """
    p, max_live = problem.devices, problem.max_live
    for slope in (1, 2):
        for additional in range(4):
            caps = [slope * (p - d) - slope + 1 + additional for d in range(p)]
            yield _limit_caps(caps, max_live)
    forward, away = problem.lengths[FORWARD::3], _measure_absence(problem)
    for rounding in (math.floor, math.ceil):
        needed = [rounding(a / max(1, f)) for a, f in zip(away, forward, strict=True)]
        for additional in (-1, 0, 1, 2):
            yield _limit_caps([cap + additional for cap in needed], max_live)
    yield max_live


def _limit_caps(caps: list[int], max_live: tuple[int, ...]) -> tuple[int, ...]:
    """Limit caps to the number of microbatches that fit in memory, but never to less than 1."""
    return tuple(max(1, min(live, cap)) for live, cap in zip(max_live, caps, strict=True))


def _measure_absence(problem: Problem) -> list[int]:
    """Return the time from the first F to the arrival of the first gradient, for each stage.

    The time is measured from the start of the F, assuming that the first microbatch never waits.
    """
    lengths, p = problem.lengths, problem.devices
    forward_end = sum(lengths[FORWARD::3]) + sum(problem.down)
    absence = []
    for d in range(p):
        start = sum(lengths[3 * s] for s in range(d)) + sum(problem.down[:d])
        way_back = sum(lengths[3 * s + BACKWARD] + problem.up[s] for s in range(d + 1, p))
        absence.append(forward_end + way_back - start)
    return absence


def _list_v_caps(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield limits on the number of microbatches between F and B, for several chunks per device.

    The first limit (cap) is the number of microbatches that fit in memory. All other caps decrease
    along the pipeline: the cap of virtual stage s of S is ``ceil((S - s) / slope) + n``, where
    slope is 1 to 3 and n is -1 to 2.
    """
    n_stages, max_live = len(problem.placement), problem.max_live
    yield max_live
    for slope in (1, 2, 3):
        for additional in (-1, 0, 1, 2):
            caps = [math.ceil((n_stages - s) / slope) + additional for s in range(n_stages)]
            yield _limit_caps(caps, max_live)


#: How a block is squeezed: (patience, pause). For patience, see :class:`Trial`. Before its first B,
#: a device prefers an input of its second chunk to a new microbatch. The device waits for this
#: input if it arrives within the pause, which is a multiple of the time of F.
MANNERS = ((0.5, 0.0), (1, 0), (1.5, 0), (0.5, 0.5), (1, 0.5), (0.5, 1), (1, 1))


class Squeezed(Trial):
    """Runs repeated blocks in order, except at the start and at the end.

    - Until the first B of chunk 0, a device runs the forwards that come before this B in the block,
      as soon as their inputs arrive.
    - While forwards are left, a device runs strictly in the order of the block, including W.
    - When no forwards are left, a device runs backwards as soon as their inputs arrive, and Ws in
      between.
    """

    def __init__(
        self, problem: Problem, target: int, block: Block, manner: tuple[float, float]
    ) -> None:
        """Prepare a trial of a block; see :class:`Trial` and ``MANNERS``."""
        patience, pause = manner
        super().__init__(problem, target, patience)
        #: Slot of the next F, B and W of each virtual stage.
        self.slots = tuple(map(list, block))
        self.first_b_slot = [block[BACKWARD][stages[0]] for stages in problem.stages]
        self.pause = [int(pause * length) for length in problem.lengths[FORWARD::3]]

    def choose(self, device: int, now: int) -> int:  # noqa: D102
        self.next_arrival = NEVER
        first = self.problem.stages[device][0]
        if self.forwards_left[device] and self.b_done[first]:
            code = self._choose_in_order(device, now)
        else:
            code = self._choose_by_arrival(device, now)
        if code != WAIT:
            stage, phase = divmod(code, 3)
            self.slots[phase][stage] += PERIOD
        return code

    def _find_pending_weight(self, device: int) -> int:
        """Return the virtual stage whose W is next in the order of the block, or ``WAIT``."""
        slots = self.slots[WEIGHT]
        pending = [s for s in self.problem.stages[device] if self.w_done[s] < self.b_done[s]]
        return min(pending, key=slots.__getitem__, default=WAIT)

    def _choose_in_order(self, device: int, now: int) -> int:
        """Return the code of the operation with the earliest slot, if its input has arrived.

        Otherwise, the result is a pending W or ``WAIT``, and ``next_arrival`` is the time at which
        the input arrives, or ``NEVER`` if it is unknown.
        """
        pending = self._find_pending_weight(device)
        slot, code = NEVER, WAIT
        if pending != WAIT:
            slot, code = self.slots[WEIGHT][pending], 3 * pending + WEIGHT
        for stage in self.problem.stages[device]:
            for phase, n_done in ((FORWARD, self.f_done), (BACKWARD, self.b_done)):
                planned_slot = self.slots[phase][stage]
                if n_done[stage] < self.problem.microbatches and planned_slot < slot:
                    slot, code = planned_slot, 3 * stage + phase
        if code % 3 == WEIGHT:
            return code
        self.next_arrival = self.get_arrival(device, code)
        if self.next_arrival <= now:
            return code
        return self._choose_weight_or_wait(device, now, pending)

    def _choose_by_arrival(self, device: int, now: int) -> int:
        """Return an operation whose input has arrived, or a W or ``WAIT`` if there is none.

        - A B is preferred to an F. Among several Bs, the one with the latest slot is chosen. Among
          several Fs, the one of the last chunk is chosen.
        - An F can run only if its slot is before the first B of chunk 0 in the block.
        - If neither F nor B can run, the result is a pending W or ``WAIT``.
        - Instead of starting a microbatch, a device waits if another input arrives within the
          pause, unless the wait would make the trial fail.
        """
        stages = self.problem.stages[device]
        ready = []
        for stage in stages:
            if self.b_done[stage] < len(self.b_in[stage]):
                arrival = self.b_in[stage][self.b_done[stage]]
                if arrival <= now:
                    ready.append((-1, -self.slots[BACKWARD][stage], 3 * stage + BACKWARD))
                else:
                    self.next_arrival = min(self.next_arrival, arrival)
            if self.slots[FORWARD][stage] < self.first_b_slot[device]:
                arrival = self.get_arrival(device, 3 * stage + FORWARD)
                if arrival <= now:
                    ready.append((0, -stage, 3 * stage + FORWARD))
                else:
                    self.next_arrival = min(self.next_arrival, arrival)
        if not ready:
            pending = self._find_pending_weight(device)
            return self._choose_weight_or_wait(device, now, pending)
        code = min(ready)[2]
        wait = self.next_arrival - now
        starts_microbatch = code == 3 * stages[0] + FORWARD
        if starts_microbatch and wait < self.pause[stages[0]]:
            return code if self.excess_of[device] + wait >= self.target else WAIT
        return code

    def _choose_weight_or_wait(self, device: int, now: int, stage: int) -> int:
        """Return the code of the W of a virtual stage, or ``WAIT`` if the next input comes soon.

        Args:
            device: The device that is free.
            now: Current time.
            stage: Virtual stage whose W is pending, or ``WAIT`` if there is none.
        """
        if stage == WAIT or self.should_wait(device, now, stage):
            return WAIT
        return 3 * stage + WEIGHT
