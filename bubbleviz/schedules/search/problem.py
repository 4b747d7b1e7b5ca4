"""The problem of a search: times, transfers and memory of virtual stages, in integers.

The search shortens the longest window of a device: its work and the idle time in between. As the
work is given, it minimises the *excess*, by which the window is longer than the work of the device
that has most of it; where stages differ, those with less work may idle more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import field
from heapq import heappop, heappush

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.native.columns import improved_orders
from bubbleviz.native.library import library
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, Setting
from bubbleviz.schedules.simulation import ROUNDING, Workload

#: Longer than any schedule: a time that never comes.
NEVER = 1 << 62
#: What the chunk that holds most holds of one microbatch from F to B; memory is counted in shares
#: of it.
HELD = 1 << 30
#: Likewise, where virtual stages hold different amounts.
_WHOLE = 1 << 40
_PHASES = (Phase.F, Phase.B, Phase.W)
PHASE_CODES = {Phase.F: 0, Phase.B: 1, Phase.BW: 1, Phase.W: 2}

#: What each device runs, in order: ``3 virtual_stage + phase`` with F 0, B 1, W 2.
Codes = list[list[int]]


@frozen
class Problem:
    """A placement with its times; all tuples are by virtual stage.

    Attributes:
        placement: device of each virtual stage.
        microbatches: m.
        lengths: ticks of F, B and W: ``lengths[3 virtual_stage + phase]``.
        down: ticks from the end of F to its arrival at the next virtual stage.
        up: ticks from the end of B to its arrival at the virtual stage before.
        held: what a microbatch holds from F to B, in shares of ``HELD``.
        kept: what stays of it from B to W.
        limit: by device: its memory, in shares of ``HELD``.
        makespan: whether windows begin when the first device begins, rather than each device's
            own.
        stages: by device: its virtual stages.
        most_work: of the device with most, in ticks.
        slack: by device: how much less work it has than that.
    """

    placement: tuple[int, ...]
    microbatches: int
    lengths: tuple[int, ...]
    down: tuple[int, ...]
    up: tuple[int, ...]
    held: tuple[int, ...]
    kept: tuple[int, ...]
    limit: tuple[int, ...]
    makespan: bool = False
    stages: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    most_work: int = field(init=False, repr=False)
    slack: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """List the virtual stages of each device, and its slack."""
        devices = range(max(self.placement) + 1)
        stages = tuple(tuple(s for s, at in enumerate(self.placement) if at == d) for d in devices)
        object.__setattr__(self, "stages", stages)
        work = [
            sum(sum(self.lengths[3 * s : 3 * s + 3]) for s in of_device) for of_device in stages
        ]
        object.__setattr__(self, "most_work", max(work) * self.microbatches)
        slack = tuple((max(work) - ticks) * self.microbatches for ticks in work)
        object.__setattr__(self, "slack", slack)

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return len(self.stages)

    @property
    def chunks(self) -> int:
        """Virtual stages a device, v."""
        return len(self.placement) // self.devices

    @property
    def operations(self) -> int:
        """Number of operations."""
        return len(self.lengths) * self.microbatches

    @property
    def rooms(self) -> tuple[int, ...]:
        """How many microbatches' activations there is memory for at once, by virtual stage."""
        return tuple(
            self.limit[device] // held if held else self.microbatches
            for device, held in zip(self.placement, self.held, strict=True)
        )

    def least_excess(self) -> int:
        """Return the least excess of any order, in ticks.

        With one chunk a device it is known: from the start of its first F to the arrival of its
        first gradient a device has nothing to run but the forwards that it has memory for.
        """
        if self.chunks > 1:
            return 0
        most, begin, rooms = 0, 0, self.rooms
        for first in range(self.devices):
            behind = range(first + 1, self.devices)
            away = sum(self.lengths[3 * s] + self.lengths[3 * s + 1] for s in behind)
            away += sum(self.down[s - 1] + self.up[s] for s in behind)
            ahead = min(rooms[first], self.microbatches) - 1
            idle = max(0, away - ahead * self.lengths[3 * first]) - self.slack[first]
            most = max(most, idle + begin if self.makespan else idle)
            begin += self.lengths[3 * first] + self.down[first]
        return most


def problem_of(setting: Setting, placement: tuple[int, ...]) -> Problem:
    """Return the problem of a setting.

    Raises:
        UsageError: the memory holds not even one microbatch.
    """
    stages = range(len(placement))
    times = (setting.forward, setting.backward, setting.weight)
    lengths = tuple(time[placement[s]] for s in stages for time in times)
    cut = [placement[s] != placement[s + 1] for s in stages[:-1]]
    down = tuple(setting.transfer if far else 0 for far in [*cut, False])
    up = tuple(setting.transfer if far else 0 for far in [False, *cut])
    memory = setting.memory
    # Never more than everything, which also keeps the numbers small.
    most = HELD * setting.chunks * max(1, setting.microbatches)
    units = (memory.limit or 0) / memory.backward * setting.chunks * HELD * (1 + 1e-12)
    limit = math.floor(min(units, most))
    if limit < HELD * setting.chunks:
        raise UsageError(
            f"a memory limit of {memory.limit:g} holds no microbatch, which takes "
            f"{memory.backward:g} of a stage; give more"
        )
    kept = math.ceil(memory.weight / memory.backward * HELD)
    return Problem(
        placement,
        setting.microbatches,
        lengths,
        down,
        up,
        (HELD,) * len(placement),
        (kept,) * len(placement),
        (limit,) * setting.stages,
        setting.makespan,
    )


def problem_of_workload(workload: Workload, *, fused: bool, makespan: bool = True) -> Problem:
    """Return the problem of a workload.

    Args:
        workload: times, transfers and memory.
        fused: whether the backward is one operation: then no W is to be run, and takes no time.
        makespan: as in :class:`Problem`.

    Raises:
        UsageError: the memory of a device holds not even one microbatch.
    """
    stages = range(workload.virtual_stages)
    backward = workload.fused_ns if fused else workload.backward_ns
    weight = (0,) * len(stages) if fused else workload.weight_ns
    share = _WHOLE / (max(workload.activation) or 1.0)
    held = tuple(round(each * share) for each in workload.activation)
    kept = tuple(0 if fused else round(each * share) for each in workload.kept)
    whole = [sum(held[s] for s in workload.stages_of(d)) for d in range(workload.devices)]
    limit = []
    for device, each in enumerate(whole):
        most = workload.microbatches * each
        given = None if workload.limit is None else workload.limit[device]
        limit.append(most if given is None else min(most, int(given * share * (1 + ROUNDING))))
        if limit[-1] < each:
            raise UsageError(
                f"a memory limit of {given:g} holds no microbatch on device {device}, which takes "
                f"{each / share:g}; give more"
            )
    return Problem(
        workload.placement,
        workload.microbatches,
        tuple(time for s in stages for time in (workload.forward_ns[s], backward[s], weight[s])),
        workload.down_ns,
        workload.up_ns,
        held,
        kept,
        tuple(limit),
        makespan,
    )


def codes_of(plan: Plan) -> Codes:
    """Return the orders of a plan, with a whole backward as a B and its W."""
    codes = []
    for order in plan.orders:
        row = []
        for op in order:
            fused = op.phase is Phase.BW
            row.append(3 * op.virtual_stage + PHASE_CODES[op.phase])
            row += [3 * op.virtual_stage + 2] if fused else []
        codes.append(row)
    return codes


def plan_of(name: str, problem: Problem, codes: Codes, *, fused: bool = False) -> Plan:
    """Return the plan of these orders; each phase takes the microbatches in their order.

    Args:
        name: of the plan.
        problem: its sizes and placement.
        codes: what each device runs.
        fused: whether a B stands for the whole backward.
    """
    phases = (Phase.F, Phase.BW) if fused else _PHASES
    orders: list[Order] = []
    for order in codes:
        taken: dict[int, int] = {}
        operations = []
        for code in order:
            number = taken.get(code, 0)
            taken[code] = number + 1
            operations.append(PlannedOperation(code // 3, phases[code % 3], number))
        orders.append(tuple(operations))
    return Plan(
        name,
        problem.devices,
        problem.microbatches,
        problem.chunks,
        problem.placement,
        tuple(orders),
    )


# One trial: every device, whenever it is free, chooses what to do next.


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
        total: of all devices together.
        codes: what each device ran.
        gaps: where F or B kept a device waiting: (device, place in the order to be kept).
    """

    excess: int
    total: int

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
        self.excess, self.total = max(self.behind), sum(self.behind)
        return self

    def _put(self, device: int, code: int, now: int) -> bool:
        """Try an operation; return whether the device has not idled too long."""
        gap = now - self.free[device]
        begun = bool(self.codes[device])
        if gap and (begun or self.problem.makespan):
            excess = self.behind[device] + gap
            if excess >= self.target:
                return False
            self.behind[device] = excess
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


# Improving: a local search over whole orders, by late acceptance.
#
# An operation is moved along its device's order, most often one of the critical path. What comes
# out
# is kept if it takes no longer than what there was before, or than what there was some trials ago
# (Burke and Bykov, The late acceptance hill-climbing heuristic, European Journal of Operational
# Research 258, 2017), which leads out of local optima and needs no temperature::
#
#     F F B F B W B W        the second W earlier        F F B W F B W B
#                  ^──────────
#
# The compiled part searches a hundred times as fast and gives the same: both draw the same numbers.


#: How far an operation is moved; orders.c has the same.
_STEPS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 12, 20)
_UNKNOWN = -1
_MASK = (1 << 64) - 1
#: No sum of times leaves 64 bits in C.
_MOST_TICKS = 1 << 60

#: The length of orders, in ticks, and these.
Orders = tuple[int, Codes]


def improve(
    problem: Problem,
    codes: Codes,
    trials: int,
    *,
    memory: int = 1,
    rise: int = 0,
    seed: int = 1,
    enough: int = 0,
) -> Orders | None:
    """Return the shortest orders found from these, with their length in ticks.

    The length is the makespan, or the longest own window of a device; see ``problem.makespan``.

    Args:
        problem: times and memory.
        codes: complete orders; of a fused backward without W.
        trials: moves to try; 0 only times the orders.
        memory: so many trials before count for acceptance; a long memory searches wider, and needs
            more trials.
        rise: by how many thousandths orders may become longer than the first.
        seed: of the moves; the same one gives the same orders.
        enough: a length, in ticks, at which the search ends.

    Returns:
        None where the orders deadlock, or exceed the memory.
    """
    compiled = library()
    longest = sum(problem.lengths) * problem.microbatches + sum(problem.down) + sum(problem.up)
    if compiled is None or longest * 8 * problem.devices > _MOST_TICKS:
        return _Search(problem, codes).improved(trials, memory, rise, seed, enough)
    offset = np.cumsum([0, *map(len, codes)]).astype(np.int32)
    columns = (problem.lengths, problem.down, problem.up, problem.held, problem.kept, problem.limit)
    found = improved_orders(
        compiled,
        np.array(problem.placement, np.int32),
        [np.array(column, np.int64) for column in columns],
        problem.microbatches,
        np.array([code for row in codes for code in row], np.int32),
        offset,
        (trials, memory, rise, seed, enough),
        of_cost=not problem.makespan,
    )
    if found is None:
        return None
    length, flat = found
    return length, [row.tolist() for row in np.split(flat, offset[1:-1])]


class _Search:
    """The search without the compiled part; ``orders.c`` says the same in C."""

    def __init__(self, problem: Problem, codes: Codes) -> None:
        self.problem = problem
        self.code = [code for row in codes for code in row]
        self.offset = np.cumsum([0, *map(len, codes)]).tolist()
        self.device_of = [device for device, row in enumerate(codes) for _ in row]

    def improved(
        self, trials: int, memory: int, rise: int, seed: int, enough: int
    ) -> Orders | None:
        """Return the shortest orders found, with their length; None where the first are none."""
        code = self.code
        timed = self.timed() if all(map(self.sound, range(self.problem.devices))) else None
        if timed is None:
            return None
        best_length, now, critical = timed
        best_worth, best = now, list(code)
        late = [now + now // 1000 * rise] * memory
        numbers = _random(seed)
        for trial in range(trials):
            if best_length <= enough:
                break
            start, to = self.change(numbers, critical)
            ahead = code[start + 1 : to + 1] if start < to else code[to:start]
            if all(other == code[start] for other in ahead):
                continue
            code.insert(to, code.pop(start))
            slot = trial % memory
            timed = self.timed() if self.sound(self.device_of[start]) else None
            if timed is not None and (timed[1] <= now or timed[1] <= late[slot]):
                length, now, critical = timed
                if now < best_worth:
                    best_worth, best_length, best = now, length, list(code)
            else:
                code.insert(start, code.pop(to))
            late[slot] = min(late[slot], now)
        bounds = zip(self.offset, self.offset[1:], strict=False)
        return best_length, [best[first:stop] for first, stop in bounds]

    def change(self, numbers: Iterator[int], critical: list[int]) -> tuple[int, int]:
        """Return which place is moved, and to where."""
        drawn, place = next(numbers), next(numbers)
        some = drawn & 7 and critical
        start = critical[place % len(critical)] if some else place % len(self.code)
        device, step = self.device_of[start], _STEPS[drawn >> 4 & 15]
        to = start + step if drawn >> 3 & 1 else start - step
        return start, max(self.offset[device], min(self.offset[device + 1] - 1, to))

    def sound(self, device: int) -> bool:
        """Return whether a device's order has F before B before W, and memory for all of it."""
        problem = self.problem
        count = [0] * len(problem.lengths)
        held = 0
        for code in self.code[self.offset[device] : self.offset[device + 1]]:
            stage, phase = divmod(code, 3)
            count[code] += 1
            if phase == 0:
                held += problem.held[stage]
            elif count[code] > count[code - 1]:
                return False
            else:
                kept = problem.kept[stage]
                held -= problem.held[stage] - kept if phase == 1 else kept
            if held > problem.limit[device]:
                return False
        return True

    def timed(self) -> tuple[int, int, list[int]] | None:
        """Return the times of the orders; None where they deadlock.

        These are the length; what is compared: the length, and where that is equal, when devices
        are done; and the places of the critical path, the last first.
        """
        ran = self._ran()
        if ran is None:
            return None
        ends, cause = ran
        length = total = 0
        last = _UNKNOWN
        for first, stop in zip(self.offset, self.offset[1:], strict=False):
            if first < stop:
                end = ends[stop - 1]
                if not self.problem.makespan:
                    end -= ends[first] - self.problem.lengths[self.code[first]]
                total += end
                if end > length or last < 0:
                    length, last = end, stop - 1
        critical = []
        while last >= 0:
            critical.append(last)
            last = cause[last]
        return length, length * 4 * self.problem.devices + total, critical

    def _ran(self) -> tuple[list[int], list[int]] | None:
        """Return when each operation ends, and the place whose end it waited for; -1 none."""
        problem, stages, m = self.problem, len(self.problem.placement), self.problem.microbatches
        # By virtual stage and microbatch: end and place of F, and of B.
        there = [_UNKNOWN] * (stages * m), [_UNKNOWN] * (stages * m)
        places = [_UNKNOWN] * (stages * m), [_UNKNOWN] * (stages * m)
        ends, cause = [0] * len(self.code), [_UNKNOWN] * len(self.code)
        count, reached = [0] * len(problem.lengths), self.offset[:-1]
        todo = list(range(problem.devices))
        while todo:
            device = todo.pop()
            first, stop = self.offset[device], self.offset[device + 1]
            for at in range(reached[device], stop):
                code = self.code[at]
                stage, phase = divmod(code, 3)
                cell, away = stage * m + count[code], 1 if phase else -1
                ready, waited = 0, _UNKNOWN
                if phase < 2 and 0 <= stage + away < stages:
                    other = cell + away * m
                    ready, waited = there[phase][other], places[phase][other]
                    if waited == _UNKNOWN:
                        break
                    ready += (problem.up if phase else problem.down)[stage + away]
                if at > first and ends[at - 1] >= ready:
                    ready, waited = ends[at - 1], at - 1
                ends[at], cause[at] = ready + problem.lengths[code], waited
                count[code] += 1
                reached[device] = at + 1
                if phase < 2:
                    there[phase][cell], places[phase][cell] = ends[at], at
                    if 0 <= stage - away < stages:
                        todo.append(problem.placement[stage - away])
        return (ends, cause) if reached == self.offset[1:] else None


def _random(seed: int) -> Iterator[int]:
    """Yield numbers of 31 bits: xorshift64* (Vigna, arXiv 1402.6246)."""
    state = (seed * 2654435761 + 88172645463325252) & _MASK
    while True:
        state ^= state >> 12
        state = (state ^ state << 25) & _MASK
        state ^= state >> 27
        yield (state * 2685821657736338717 & _MASK) >> 33
