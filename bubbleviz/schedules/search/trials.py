"""Trials: orders that come about as devices, whenever they are free, choose what to do next.

A greedy device runs a B if it has one, else an F, else a W. A squeezed one repeats a building
block of V schedules, but for its ends.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from heapq import heappop, heappush

from bubbleviz.schedules.search.problem import NEVER, Codes, Problem

#: A choice: nothing now; look again when something arrives, or at the trial's ``near``.
WAIT = -1


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

    Attributes:
        excess: when all is done, that of the device whose window is the longest, in ticks.
        codes: what each device ran.
    """

    excess: int

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
        self.behind = [-slack for slack in problem.slack]
        self.left = [problem.chunks * problem.microbatches] * devices
        #: By device: virtual stages whose W are to be run, the oldest first.
        self.owed: list[list[int]] = [[] for _ in range(devices)]
        self.codes: Codes = [[] for _ in range(devices)]
        self.near = NEVER
        self._events: list[tuple[int, int]] = [(0, device) for device in range(devices)]

    @abstractmethod
    def choose(self, device: int, now: int) -> int:
        """Return the device's next operation, a code, or ``WAIT`` (until ``near``)."""

    def waits(self, device: int, now: int, stage: int) -> bool:
        """Return whether the device waits until ``near`` rather than run a W of that stage."""
        gap = self.near - now
        return gap < self.wait[stage] and self.behind[device] + gap < self.target

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

    def result(self) -> Trial | None:
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
        self.excess = max(self.behind)
        return self

    def _put(self, device: int, code: int, now: int) -> bool:
        """Try an operation; return whether the device has not idled too long."""
        gap = now - self.free[device]
        if gap and (self.codes[device] or self.problem.makespan):
            excess = self.behind[device] + gap
            if excess >= self.target:
                return False
            self.behind[device] = excess
        end = now + self.problem.lengths[code]
        self.codes[device].append(code)
        self.free[device] = end
        heappush(self._events, (end, device))
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
        return True

    def _send(self, inputs: list[list[int]], stage: int, arrival: int) -> None:
        inputs[stage].append(arrival)
        device = self.problem.placement[stage]
        heappush(self._events, (max(arrival, self.free[device]), device))


#: How devices choose: by virtual stage, most microbatches between their F and the end of their B;
#: patience, see :class:`Trial`; whether F comes before B; and whether W comes only where
#: memory is short or no forward is left.
Policy = tuple[tuple[int, ...], float, bool, bool]


class Greedy(Trial):
    """Runs a B if there is one, else an F, else a W, by a policy."""

    def __init__(self, problem: Problem, target: int, policy: Policy) -> None:
        self.caps, patience, self.forward_first, self.lazy = policy
        super().__init__(problem, target, patience)
        # Room for the chunks behind is left by those before, so that no microbatch is stuck
        # halfway: the oldest one can always go on to its end, and frees its memory then.
        self.most = [
            problem.limit[device] - sum(problem.held[s] for s in problem.stages[device] if s >= own)
            for own, device in enumerate(problem.placement)
        ]

    def choose(self, device: int, now: int) -> int:  # noqa: D102
        self.near = NEVER
        backward = self._backward(device, now)
        if backward != WAIT and not self.forward_first:
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
                and number - self.b_done[stage] < self.caps[stage]
            ):
                if inputs[number] <= now:
                    return 3 * stage
                self.near = min(self.near, inputs[number])
        return WAIT

    def _weights(self, device: int, now: int) -> int:
        owed = self.owed[device]
        if not owed or self.waits(device, now, owed[0]):
            return WAIT
        if self.lazy and self.near < NEVER and self.left[device]:
            most = max(self.problem.held[stage] for stage in self.problem.stages[device])
            short = self.held[device] > self.problem.limit[device] - most
            if not short and self.behind[device] + self.near - now < self.target:
                return WAIT
        return 3 * owed[0] + 2


def policies(problem: Problem) -> Iterator[Policy]:
    """Yield the policies that are worth a trial, those with the fewest forwards ahead first."""
    caps = _line_caps(problem) if problem.chunks == 1 else _v_caps(problem)
    patiences = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5) if problem.chunks == 1 else (0.0, 0.5, 1.0)
    for cap in dict.fromkeys(caps):
        for patience in patiences:
            for lazy, forward_first in itertools.product((False, True), repeat=2):
                yield cap, patience, forward_first, lazy


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


# Building blocks of V schedules: one microbatch in slots, and the schedules that repeat it.
#
# Source: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, sections 3 and
# 4: repeated every six slots (F, B and W of two chunks), a block that collides with none of its
# repetitions is a schedule; from F to W its activations live, and their lifetime on a device, over
# six, is how many of them the device holds.


#: Slots from one microbatch to the next: one for each of F, B, W of two chunks.
_PERIOD = 6


#: The slots of F, B and W of microbatch 0, by virtual stage of a V::
#:
#:     device 0   F . . . . . . f b w . B W        with one slot from each to the next device
#:     device 1   . F . . . . f . . b B w . W
#:     device 2   . . F . . f . . . . b ...
#:     device 3   . . . F f ...
Block = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@cache
def blocks(devices: int, room: int) -> list[Block]:
    """Return the uniform blocks that fit into the room, those with the least memory first.

    Args:
        devices: p.
        room: how many chunks' activations a device holds.
    """
    fitting: list[tuple[int, Block]] = []
    for total in (2, 3, 4, 6):
        ways = [(there, total - there) for there in range(1, total)]
        for (f_down, b_up), (f_up, b_down) in itertools.product(ways, ways):
            for turns in itertools.product(range(1, _PERIOD + 1), repeat=3):
                forward, backward = _slots(devices, (f_down, f_up, b_down, b_up), turns)
                found = _weights(devices, forward, backward)
                if found is not None and found[0] // _PERIOD <= room:
                    fitting.append((found[0], (forward, backward, found[1])))
    return [block for _, block in sorted(fitting, key=lambda each: (each[0], each[1][:2]))]


def _slots(
    devices: int, steps: tuple[int, int, int, int], turns: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the slots of F and B by virtual stage.

    Args:
        devices: p.
        steps: slots from one device to the next: F down and up, B down and up again.
        turns: slots from F to F on the last device, from F to B on the first, from B to B on the
            last.
    """
    f_down, f_up, b_down, b_up = steps
    forward = [d * f_down for d in range(devices)]
    forward += [forward[-1] + turns[0] + n * f_up for n in range(devices)]
    backward = [forward[-1] + turns[1] + n * b_down for n in range(devices)]
    backward += [backward[-1] + turns[2] + n * b_up for n in range(devices)]
    return tuple(forward), tuple(reversed(backward))


def _weights(
    devices: int, forward: tuple[int, ...], backward: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """Return W in the slots that are left, or None where F and B collide.

    Before it, most slots that activations of one device live.
    """
    weight = [0] * (2 * devices)
    peak = 0
    for down in range(devices):
        up = 2 * devices - 1 - down
        taken = {slots[s] % _PERIOD for slots in (forward, backward) for s in (down, up)}
        if len(taken) < 4:
            return None
        early, late = sorted(set(range(_PERIOD)) - taken)
        choices = (
            (_behind(backward[down], a), _behind(backward[up], b))
            for a, b in ((early, late), (late, early))
        )
        weight[down], weight[up] = min(choices, key=lambda pair: (sum(pair), pair[1]))
        peak = max(peak, weight[down] - forward[down] + weight[up] - forward[up])
    return peak, tuple(weight)


def _behind(slot: int, place: int) -> int:
    """Return the first slot behind a slot that has this place in its period."""
    return slot + 1 + (place - slot - 1) % _PERIOD


#: How a block is squeezed: patience, see :class:`Trial`; and the pause: before its first B a device
#: waits for an input of the chunk behind that is known to arrive within so many of its F's lengths,
#: rather than start another microbatch.
MANNERS = ((0.5, 0.0), (1, 0), (1.5, 0), (0.5, 0.5), (1, 0.5), (0.5, 1), (1, 1))


class Squeezed(Trial):
    """Keeps the order of the repeated blocks, but not at its ends.

    ::

        until the first B of chunk 0       the forwards that the block has before it, as they come
        while there are forwards           strictly the block's order, W included
        then                               backwards as they come; W where there is time
    """

    def __init__(
        self, problem: Problem, target: int, block: Block, manner: tuple[float, float]
    ) -> None:
        patience, pause = manner
        super().__init__(problem, target, patience)
        self.slots = tuple(map(list, block))
        self.first_b = [block[1][stages[0]] for stages in problem.stages]
        self.pause = [int(pause * length) for length in problem.lengths[0::3]]

    def choose(self, device: int, now: int) -> int:  # noqa: D102
        self.near = NEVER
        first = self.problem.stages[device][0]
        if self.left[device] and self.b_done[first]:
            code = self._in_order(device, now)
        else:
            code = self._as_they_come(device, now)
        if code != WAIT:
            self.slots[code % 3][code // 3] += _PERIOD
        return code

    def _owed(self, device: int) -> int:
        """Return the stage whose W is next in the block's order, or ``WAIT``."""
        slots = self.slots[2]
        pending = [s for s in self.problem.stages[device] if self.w_done[s] < self.b_done[s]]
        return min(pending, key=slots.__getitem__, default=WAIT)

    def _in_order(self, device: int, now: int) -> int:
        owed = self._owed(device)
        slot, code = (self.slots[2][owed], 3 * owed + 2) if owed != WAIT else (NEVER, WAIT)
        for stage in self.problem.stages[device]:
            for phase, done in ((0, self.f_done), (1, self.b_done)):
                planned = self.slots[phase][stage]
                if done[stage] < self.problem.microbatches and planned < slot:
                    slot, code = planned, 3 * stage + phase
        if code % 3 == 2:
            return code
        self.near = self.arrival(device, code)
        if self.near <= now:
            return code
        return self._rather_weights(device, now, owed)

    def _as_they_come(self, device: int, now: int) -> int:
        stages = self.problem.stages[device]
        ready = []
        for stage in stages:
            if self.b_done[stage] < len(self.b_in[stage]):
                arrival = self.b_in[stage][self.b_done[stage]]
                if arrival <= now:
                    ready.append((-1, -self.slots[1][stage], 3 * stage + 1))
                else:
                    self.near = min(self.near, arrival)
            if self.slots[0][stage] < self.first_b[device]:
                arrival = self.arrival(device, 3 * stage)
                if arrival <= now:
                    ready.append((0, -stage, 3 * stage))
                else:
                    self.near = min(self.near, arrival)
        if not ready:
            return self._rather_weights(device, now, self._owed(device))
        code = min(ready)[2]
        gap = self.near - now
        if code == 3 * stages[0] and gap < self.pause[stages[0]]:
            return code if self.behind[device] + gap >= self.target else WAIT
        return code

    def _rather_weights(self, device: int, now: int, owed: int) -> int:
        """Return the W that is owed, unless what is awaited comes soon."""
        return WAIT if owed == WAIT or self.waits(device, now, owed) else 3 * owed + 2
