"""The problem of a search: times, transfers and memory of virtual stages, in integers.

The search shortens the longest window of a device: its work and the idle time in between. As the
work is given, it minimises the *excess*, by which the window is longer than the work of the device
that has most of it; where stages differ, those with less work may idle more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import field
from heapq import heappop, heappush

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, Setting
from bubbleviz.schedules.workload import ROUNDING, Workload

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
