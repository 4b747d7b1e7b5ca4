"""Building blocks of V schedules: one microbatch in slots, and the schedules that repeat it.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, sections 3 and
4: repeated every six slots (F, B and W of two chunks), a block that collides with none of its
repetitions is a schedule; from F to W its activations live, and their lifetime on a device, over
six, is how many of them the device holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from bubbleviz.model.values import frozen
from bubbleviz.schedules.search.problem import NEVER, Problem
from bubbleviz.schedules.search.trial import WAIT, Trial, TrialResult

#: Slots from one microbatch to the next: one for each of F, B, W of two chunks.
PERIOD = 6


@frozen
class Block:
    """The slots of microbatch 0, by virtual stage of a V.

    ::

        device 0   F . . . . . . f b w . B W        with one slot from each to the next device
        device 1   . F . . . . f . . b B w . W
        device 2   . . F . . f . . . . b ...
        device 3   . . . F f ...

    Attributes:
        forward: of F.
        backward: of B.
        weight: of W.
        peak: most slots that activations of one device live.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    peak: int


def blocks(devices: int, room: int) -> list[Block]:
    """Return the uniform blocks that fit into the room, those with the least memory first.

    Args:
        devices: p.
        room: how many chunks' activations a device holds.
    """
    fitting = []
    for total in (2, 3, 4, 6):
        ways = [(there, total - there) for there in range(1, total)]
        for (f_down, b_up), (f_up, b_down) in itertools.product(ways, ways):
            for turns in itertools.product(range(1, PERIOD + 1), repeat=3):
                forward, backward = _slots(devices, (f_down, f_up, b_down, b_up), turns)
                block = _with_weights(devices, forward, backward)
                if block is not None and block.peak // PERIOD <= room:
                    fitting.append(block)
    fitting.sort(key=lambda block: (block.peak, block.forward, block.backward))
    return fitting


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


def _with_weights(
    devices: int, forward: tuple[int, ...], backward: tuple[int, ...]
) -> Block | None:
    """Return the block with W in the slots that are left, or None where it collides."""
    weight = [0] * (2 * devices)
    peak = 0
    for down in range(devices):
        up = 2 * devices - 1 - down
        taken = {slots[s] % PERIOD for slots in (forward, backward) for s in (down, up)}
        if len(taken) < 4:
            return None
        early, late = sorted(set(range(PERIOD)) - taken)
        choices = (
            (_behind(backward[down], a), _behind(backward[up], b))
            for a, b in ((early, late), (late, early))
        )
        weight[down], weight[up] = min(choices, key=lambda pair: (sum(pair), pair[1]))
        peak = max(peak, weight[down] - forward[down] + weight[up] - forward[up])
    return Block(forward, backward, tuple(weight), peak)


def _behind(slot: int, place: int) -> int:
    """Return the first slot behind a slot that has this place in its period."""
    return slot + 1 + (place - slot - 1) % PERIOD


@frozen
class Manner:
    """How a block's schedule is squeezed.

    Attributes:
        block: what is repeated.
        patience: see :class:`bubbleviz.schedules.search.trial.Trial`.
        pause: before its first B a device waits for an input of the chunk behind that is known to
            arrive within so many of its F's lengths, rather than start another microbatch.
    """

    block: Block
    patience: float
    pause: float


class _SqueezedTrial(Trial):
    """Keeps the order of the repeated blocks, but not at its ends.

    ::

        until the first B of chunk 0       the forwards that the block has before it, as they come
        while there are forwards           strictly the block's order, W included
        then                               backwards as they come; W where there is time
    """

    def __init__(self, problem: Problem, target: int, manner: Manner) -> None:
        super().__init__(problem, target, manner.patience)
        block = manner.block
        self.slots = (list(block.forward), list(block.backward), list(block.weight))
        self.first_b = [block.backward[stages[0]] for stages in problem.stages]
        self.pause = [int(manner.pause * length) for length in problem.lengths[0::3]]

    def choose(self, device: int, now: int) -> int:
        self.near = NEVER
        first = self.problem.stages[device][0]
        if self.left[device] and self.b_done[first]:
            code = self._in_order(device, now)
        else:
            code = self._as_they_come(device, now)
        if code != WAIT:
            self.slots[code % 3][code // 3] += PERIOD
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
            return code if self.excess[device] + gap >= self.target else WAIT
        return code

    def _rather_weights(self, device: int, now: int, owed: int) -> int:
        """Return the W that is owed, unless what is awaited comes soon."""
        return WAIT if owed == WAIT or self.waits(device, now, owed) else 3 * owed + 2


def squeeze(problem: Problem, manner: Manner, target: int) -> TrialResult | None:
    """Return a block's schedule at real times, or None where one comes to the target."""
    return _SqueezedTrial(problem, target, manner).result()


def manners(block: Block) -> Iterator[Manner]:
    """Yield the ways to squeeze a block that are worth a trial."""
    for patience, pause in ((0.5, 0), (1, 0), (1.5, 0), (0.5, 0.5), (1, 0.5), (0.5, 1), (1, 1)):
        yield Manner(block, patience, pause)
