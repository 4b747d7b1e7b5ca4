"""Trials: simulations in which each device chooses its next operation whenever it is free.

A trial is a discrete-event simulation that produces one order per device (``Trial.run``):

1. Take the earliest event: either a device has become free, or an input has arrived for a free
   device.
2. ``choose`` the next operation of the device, or ``WAIT``. A waiting device chooses again when an
   input arrives.
3. ``_start`` the operation: advance the clock of the device, account for its memory, and schedule
   the arrival of the result on the next stage::

       device free ──choose──> F, B or W ──_start──> device free again at the end
            │                                   └──> input of the next stage, after the transfer
            └─────────> WAIT ──until an input arrives──> choose again

4. The trial fails as soon as the excess of any device (see :mod:`.problem`) reaches the target,
   which is the best excess so far. The trial also fails if the devices deadlock.

The two kinds of trials differ in ``choose``. A :class:`Greedy` device runs a B if it can, else an
F, else a W. A :class:`Squeezed` device repeats a building block of a V schedule, but fills the
start and the end with whatever can run.

The compiled code in ``orders.c`` is more than ten times faster than the Python code. Both versions
run the same operations in the same order.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

import numpy as np

from bubbleviz.native import functions as native
from bubbleviz.native.library import Argument
from bubbleviz.schedules.search.blocks import PERIOD, Block
from bubbleviz.schedules.search.problem import (
    BACKWARD,
    FORWARD,
    NEVER,
    WEIGHT,
    Codes,
    Problem,
    list_columns,
)

#: Choice of a device that starts no operation now.
#: The device chooses again when an input arrives.
WAIT = -1


class Trial(ABC):
    """The state of one simulation; subclasses choose the next operation.

    Attributes:
        excess: Largest excess of any device at the end, in ticks, as set by :meth:`run`.
        codes: Operations that each device has run so far, in order.
        n_done: Number of operations with each code that have run.
        next_input: For each code, the time at which the input of its next operation arrives.
            ``NEVER`` if the operation that computes the input has not started yet.
        free_at: Time at which each device is free.
        memory_used: Memory in use on each device.
        excess_of: Each device's excess so far.
        forwards_left: Number of Fs that each device still has to run.
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
        n_codes, n_devices = len(problem.lengths), problem.devices
        self.problem, self.target = problem, target
        self.max_wait = [int(patience * length) for length in problem.lengths[WEIGHT::3]]
        self.n_done, self.next_input = [0] * n_codes, [NEVER] * n_codes
        self.free_at, self.memory_used = [0] * n_devices, [0] * n_devices
        self.excess_of = [-slack for slack in problem.slack]
        self.forwards_left = [problem.chunks * problem.microbatches] * n_devices
        self.codes: Codes = [[] for _ in range(n_devices)]
        #: Arrival times of the inputs of each code, in order.
        self._arrivals: list[list[int]] = [[] for _ in range(n_codes)]
        self._arrivals[FORWARD] = [0] * problem.microbatches
        self.next_input[FORWARD] = 0 if problem.microbatches else NEVER
        #: Heap of events, each encoded as ``time * n_devices + device``.
        #: Integers are compared faster than tuples.
        self._events = list(range(n_devices))

    @abstractmethod
    def choose(self, device: int, now: int) -> int:
        """Choose the next operation of a free device.

        Args:
            device: The device that is free.
            now: Current time, in ticks.

        Returns:
            Code of an operation that can run now, or ``WAIT``.
        """

    def should_wait(self, device: int, stage: int, wait: int) -> bool:
        """Return whether the device should wait for the next arrival instead of running a W.

        The device should wait if the wait is shorter than the virtual stage's ``max_wait`` and the
        excess stays below ``target``. The excess of a device is its idle time minus its slack.

        Args:
            device: The device that is free.
            stage: Virtual stage of the W.
            wait: Time until the next input is known to arrive for the device.
        """
        return wait < self.max_wait[stage] and self.excess_of[device] + wait < self.target

    def run(self) -> Trial | None:
        """Run all operations, and set ``excess``.

        The compiled code is used if it is available and all times fit in 64 bits, otherwise the
        events are simulated in Python. Both implementations give the same result.

        Returns:
            This trial, or None if it failed because the excess of a device reached the target or
            the devices deadlocked.
        """
        is_complete = self._run_compiled()
        if is_complete is None:
            is_complete = self._run_events()
        if not is_complete:
            return None
        self.excess = max(self.excess_of)
        return self

    @abstractmethod
    def list_choice_columns(self) -> tuple[Argument, ...]:
        """Return what ``choose`` depends on, as members of ``struct trial`` in ``orders.c``.

        The members are ``max_memory``, ``cap``, ``slot``, ``pause``, ``period``, ``forward_first``
        and ``lazy``.
        """

    def _run_compiled(self) -> bool | None:
        """Run all operations in compiled code, and set ``excess_of`` and ``codes``.

        Returns:
            Whether all operations have run, or None if the compiled code cannot run the trial.
        """
        problem = self.problem
        if not problem.fits_in_64_bits or not problem.microbatches:
            return None
        n_stages = [len(stages) for stages in problem.stages]
        stage_offset = np.cumsum([0, *n_stages])
        offset = (stage_offset * 3 * problem.microbatches).astype(np.int32)
        code, excess = np.empty(problem.operations, np.int32), np.array(self.excess_of, np.int64)
        is_complete = native.run_trial(
            pipeline=list_columns(problem),
            trial=(
                np.array(list(itertools.chain.from_iterable(problem.stages)), np.int32),
                stage_offset.astype(np.int32),
                np.array(self.max_wait, np.int64),
                excess,
                self.target,
                *self.list_choice_columns(),
            ),
            code=code,
            offset=offset,
        )
        if is_complete:
            self.excess_of = excess.tolist()
            self.codes = [order.tolist() for order in np.split(code, offset[1:-1])]
        return is_complete

    def _run_events(self) -> bool:
        """Run all operations in Python, event by event, and set ``excess_of`` and ``codes``.

        Returns:
            Whether all operations have run.
        """
        free_at, events, n_devices = self.free_at, self._events, self.problem.devices
        n_started = 0
        while events:
            now, device = divmod(events[0], n_devices)
            if now < free_at[device]:
                heappop(events)
                continue
            code = self.choose(device, now)
            if code == WAIT:
                heappop(events)
                continue
            if not self._start(device, code, now):
                return False
            n_started += 1
        return n_started == self.problem.operations

    def _start(self, device: int, code: int, now: int) -> bool:
        """Run an operation on a device and schedule the arrival of its result.

        The event that the device became free is replaced with the event that the operation ends.

        Args:
            device: The device that is free. Its event is the first one.
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

        length, memory, receiver, transfer = problem.effects[code]
        end = now + length
        self.codes[device].append(code)
        self.free_at[device] = end
        self.memory_used[device] += memory
        heapreplace(self._events, end * problem.devices + device)

        self.n_done[code] = n_done = self.n_done[code] + 1
        arrivals = self._arrivals[code]
        self.next_input[code] = arrivals[n_done] if n_done < len(arrivals) else NEVER
        if code % 3 == FORWARD:
            self.forwards_left[device] -= 1
        if receiver is not None:
            self._send(receiver, end + transfer, now)
        return True

    def _send(self, code: int, arrival: int, now: int) -> None:
        """Record the arrival of an input, and schedule an event for the receiving device.

        Args:
            code: Code of the operation that receives the input.
            arrival: Time at which the input arrives.
            now: Current time.
        """
        self._arrivals[code].append(arrival)
        if self.next_input[code] == NEVER:
            self.next_input[code] = arrival
        device = self.problem.placement[code // 3]
        # A device that is busy when the input arrives needs no event: it chooses again when it is
        # free.
        if arrival > self.free_at[device] or arrival == now:
            heappush(self._events, arrival * self.problem.devices + device)


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
        pending_weights: For each device, the virtual stages whose B has run but whose W has not,
            oldest first.
        last_stage_first: For each device, its virtual stages in descending order.
    """

    def __init__(self, problem: Problem, target: int, policy: Policy) -> None:
        """Prepare a trial; see :class:`Trial` and ``Policy``."""
        self.caps, patience, self.forward_first, self.lazy = policy
        super().__init__(problem, target, patience)
        self.pending_weights: list[deque[int]] = [deque() for _ in range(problem.devices)]
        self.last_stage_first = [stages[::-1] for stages in problem.stages]
        self.max_memory = []
        for first, device in enumerate(problem.placement):
            later = [stage for stage in problem.stages[device] if stage >= first]
            needed = sum(problem.activation[stage] for stage in later)
            self.max_memory.append(problem.limit[device] - needed)

    def list_choice_columns(self) -> tuple[Argument, ...]:  # noqa: D102
        max_memory, caps = np.array(self.max_memory, np.int64), np.array(self.caps, np.int64)
        return max_memory, caps, None, None, 0, self.forward_first, self.lazy

    def choose(self, device: int, now: int) -> int:  # noqa: D102
        backward, backward_arrival = self._choose_backward(device, now)
        if backward != WAIT and not self.forward_first:
            self.pending_weights[device].append(backward // 3)
            return backward
        forward, forward_arrival = self._choose_forward(device, now)
        if forward != WAIT:
            return forward
        if backward != WAIT:
            self.pending_weights[device].append(backward // 3)
            return backward
        if not self.pending_weights[device]:
            return WAIT
        return self._choose_weight_gradient(device, now, min(backward_arrival, forward_arrival))

    def _choose_backward(self, device: int, now: int) -> tuple[int, int]:
        """Return the code of a B whose input has arrived, or ``WAIT``.

        If several virtual stages of the device can run a B, the first one is chosen. The second
        result is the time at which the next input of a B is known to arrive, or ``NEVER``. It is
        only valid if the first result is ``WAIT``.
        """
        next_arrival = NEVER
        for stage in self.problem.stages[device]:
            arrival = self.next_input[3 * stage + BACKWARD]
            if arrival <= now:
                return 3 * stage + BACKWARD, arrival
            next_arrival = min(next_arrival, arrival)
        return WAIT, next_arrival

    def _choose_forward(self, device: int, now: int) -> tuple[int, int]:
        """Return the code of the F on the last virtual stage that can start one, or ``WAIT``.

        A virtual stage can start an F if its input has arrived and its memory and its cap allow
        it. The second result is the earliest time at which an input is known to arrive for a
        virtual stage that lacks only this input, or ``NEVER``. It is only valid if the first
        result is ``WAIT``.
        """
        next_arrival, n_done, memory_used = NEVER, self.n_done, self.memory_used[device]
        for stage in self.last_stage_first[device]:
            code = 3 * stage + FORWARD
            arrival = self.next_input[code]
            has_memory = memory_used <= self.max_memory[stage]
            if (
                arrival < next_arrival
                and has_memory
                and n_done[code] - n_done[3 * stage + BACKWARD] < self.caps[stage]
            ):
                if arrival <= now:
                    return code, arrival
                next_arrival = arrival
        return WAIT, next_arrival

    def _choose_weight_gradient(self, device: int, now: int, next_arrival: int) -> int:
        """Return the code of the oldest pending W, or ``WAIT``.

        The result is ``WAIT`` if the device should wait for the next arrival instead
        (:meth:`should_wait`). A lazy device also waits if all of these conditions hold:

        - It has forwards left, and it is known when the next input arrives.
        - It has memory for another activation.
        - Its excess would stay below the target.

        Args:
            device: The device that is free. A W is pending.
            now: Current time.
            next_arrival: Time at which the next input is known to arrive, or ``NEVER``.
        """
        stage, wait = self.pending_weights[device][0], next_arrival - now
        if self.should_wait(device, stage, wait):
            return WAIT
        if self.lazy and next_arrival < NEVER and self.forwards_left[device]:
            stages = self.problem.stages[device]
            largest = max(self.problem.activation[stage] for stage in stages)
            is_short = self.memory_used[device] > self.problem.limit[device] - largest
            if not is_short and self.excess_of[device] + wait < self.target:
                return WAIT
        self.pending_weights[device].popleft()
        return 3 * stage + WEIGHT


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
        #: Slot of the next operation of each code.
        self.slots = list(itertools.chain.from_iterable(zip(*block, strict=True)))
        self.first_b_slot = [block[BACKWARD][stages[0]] for stages in problem.stages]
        self.pause = [int(pause * length) for length in problem.lengths[FORWARD::3]]
        #: For each virtual stage, the maximum memory in use on the device at which an F may start.
        self.max_memory = [
            problem.limit[device] - activation
            for device, activation in zip(problem.placement, problem.activation, strict=True)
        ]

    def list_choice_columns(self) -> tuple[Argument, ...]:  # noqa: D102
        columns = self.max_memory, self.slots, self.pause
        max_memory, slots, pause = (np.array(column, np.int64) for column in columns)
        return max_memory, None, slots, pause, PERIOD, False, False

    def choose(self, device: int, now: int) -> int:  # noqa: D102
        first = self.problem.stages[device][0]
        if self.forwards_left[device] and self.n_done[3 * first + BACKWARD]:
            code = self._choose_in_order(device, now)
        else:
            code = self._choose_by_arrival(device, now)
        if code != WAIT:
            self.slots[code] += PERIOD
        return code

    def _find_pending_weight(self, device: int) -> int:
        """Return the code of the pending W that is next in the order of the block, or ``WAIT``."""
        slot, code, n_done = NEVER, WAIT, self.n_done
        for stage in self.problem.stages[device]:
            weight = 3 * stage + WEIGHT
            if n_done[weight] < n_done[weight - 1] and self.slots[weight] < slot:
                slot, code = self.slots[weight], weight
        return code

    def _choose_in_order(self, device: int, now: int) -> int:
        """Return the code of the operation with the earliest slot, if its input has arrived.

        Otherwise, the result is a pending W or ``WAIT``, as chosen by
        :meth:`_choose_weight_or_wait`.
        """
        slots, n_done, n_microbatches = self.slots, self.n_done, self.problem.microbatches
        pending = self._find_pending_weight(device)
        slot, code = (NEVER, WAIT) if pending == WAIT else (slots[pending], pending)
        for stage in self.problem.stages[device]:
            forward = 3 * stage + FORWARD
            if slots[forward] < slot and n_done[forward] < n_microbatches:
                slot, code = slots[forward], forward
            backward = forward + BACKWARD
            if slots[backward] < slot and n_done[backward] < n_microbatches:
                slot, code = slots[backward], backward
        if code == pending:
            return code
        arrival = self._find_arrival(device, code)
        if arrival <= now:
            return code
        return self._choose_weight_or_wait(device, arrival - now, pending)

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
        next_arrival, forward, backward = NEVER, WAIT, WAIT
        latest_slot = -1
        for stage in stages:
            code = 3 * stage + BACKWARD
            arrival = self.next_input[code]
            if arrival > now:
                next_arrival = min(next_arrival, arrival)
            elif self.slots[code] > latest_slot:
                latest_slot, backward = self.slots[code], code
            code = 3 * stage + FORWARD
            if self.slots[code] < self.first_b_slot[device]:
                arrival = self._find_arrival(device, code)
                if arrival > now:
                    next_arrival = min(next_arrival, arrival)
                else:
                    forward = code
        wait = next_arrival - now
        if backward != WAIT:
            return backward
        if forward == WAIT:
            return self._choose_weight_or_wait(device, wait, self._find_pending_weight(device))
        starts_microbatch = forward == 3 * stages[0] + FORWARD
        if starts_microbatch and wait < self.pause[stages[0]]:
            return forward if self.excess_of[device] + wait >= self.target else WAIT
        return forward

    def _find_arrival(self, device: int, code: int) -> int:
        """Return the time at which the input of the next F or B of a virtual stage arrives.

        The result is ``NEVER`` if the operation that computes the input has not started yet, or if
        the device currently has too little memory for an F.

        Args:
            device: Device of the virtual stage.
            code: Code of the F or B.
        """
        stage, phase = divmod(code, 3)
        if phase == FORWARD and self.memory_used[device] > self.max_memory[stage]:
            return NEVER
        return self.next_input[code]

    def _choose_weight_or_wait(self, device: int, wait: int, weight: int) -> int:
        """Return the code of the pending W, or ``WAIT`` if the next input comes soon.

        Args:
            device: The device that is free.
            wait: Time until the next input is known to arrive for the device.
            weight: Code of the W, or ``WAIT`` if none is pending.
        """
        if weight == WAIT or self.should_wait(device, weight // 3, wait):
            return WAIT
        return weight
