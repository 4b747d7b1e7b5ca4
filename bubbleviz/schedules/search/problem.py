"""The input to a schedule search: times, transfers and memory of virtual stages, as integers.

The search minimizes either the makespan or the longest window of any device. The window of a device
is the time from its first start to its last end, so it consists of work and idle time. The amount
of work is fixed, so the search minimizes the *excess* of a window. The excess is the window's
length minus the work of the busiest device. A device that has less work may idle for the difference
at no cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.native.library import Argument
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation
from bubbleviz.schedules.plan_memory import ROUNDING
from bubbleviz.schedules.workload import Workload

#: A time that is later than the end of any schedule.
NEVER = 1 << 62
#: Maximum sum of times, in ticks, that fits in 64 bits in C.
_MAX_TICKS = 1 << 60
#: Largest activation memory of any virtual stage, in integer units of memory.
_MEMORY_UNITS = 1 << 40
#: Numbers of the phases in the codes of operations (see ``Codes``).
FORWARD, BACKWARD, WEIGHT = 0, 1, 2
PHASE_CODES = {Phase.F: FORWARD, Phase.B: BACKWARD, Phase.BW: BACKWARD, Phase.W: WEIGHT}


class Effect(NamedTuple):
    """What an operation does when it runs.

    Attributes:
        length: Duration, in ticks.
        memory: Change of the memory in use on the device.
        receiver: Code of the operation that receives the result, or None if no operation does.
            The W of a virtual stage receives nothing, because it can always run after its B.
        transfer: Time from the end of the operation to the arrival of the result.
    """

    length: int
    memory: int
    receiver: int | None
    transfer: int


#: Operations of each device, in order. The code of an operation is ``3 * virtual_stage + phase``.
Codes = list[list[int]]


@dataclass(frozen=True)
class Problem:
    """A placement of virtual stages on devices, and the times and memory of the virtual stages.

    Times are in ticks. Memory is in units of 2**-40 of the largest ``activation``.

    Attributes:
        placement: Device index of each virtual stage.
        microbatches: Number of microbatches.
        lengths: Duration of each operation, indexed by code.
        down: Time from the end of an F to its arrival at the next virtual stage, per stage.
        up: Time from the end of a B to its arrival at the previous virtual stage, per stage.
        activation: Memory that a microbatch occupies from F to B, for each virtual stage.
        weight_activation: Memory that a microbatch occupies from B to W, for each virtual stage.
        limit: Memory limit of each device.
        makespan: Whether the windows of all devices begin when the first device begins. If False,
            each device's window begins with its first operation.
        stages: Virtual stages of each device, in ascending order.
        effects: Effect of each operation, indexed by code.
        max_work: Total duration of the operations on the device that has the most work.
        slack: For each device, the difference between ``max_work`` and its own work.
    """

    placement: tuple[int, ...]
    microbatches: int
    lengths: tuple[int, ...]
    down: tuple[int, ...]
    up: tuple[int, ...]
    activation: tuple[int, ...]
    weight_activation: tuple[int, ...]
    limit: tuple[int, ...]
    makespan: bool = False
    stages: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    effects: tuple[Effect, ...] = field(init=False, repr=False, compare=False)
    max_work: int = field(init=False, repr=False)
    slack: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """List the virtual stages of each device and the effects, and compute the slack."""
        stages: list[list[int]] = [[] for _ in range(max(self.placement) + 1)]
        for stage, device in enumerate(self.placement):
            stages[device].append(stage)
        # Work of one microbatch on each device.
        work = [
            sum(sum(self.lengths[3 * stage : 3 * stage + 3]) for stage in of_device)
            for of_device in stages
        ]
        object.__setattr__(self, "stages", tuple(map(tuple, stages)))
        object.__setattr__(self, "effects", tuple(self._list_effects()))
        object.__setattr__(self, "max_work", max(work) * self.microbatches)
        slack = tuple((max(work) - ticks) * self.microbatches for ticks in work)
        object.__setattr__(self, "slack", slack)

    def _list_effects(self) -> Iterator[Effect]:
        """Yield the effect of F, B and W of each virtual stage."""
        last_stage = len(self.placement) - 1
        for stage in range(len(self.placement)):
            forward, backward, weight = self.lengths[3 * stage : 3 * stage + 3]
            activation, kept = self.activation[stage], self.weight_activation[stage]
            if stage < last_stage:
                yield Effect(forward, activation, 3 * (stage + 1) + FORWARD, self.down[stage])
            else:  # The last stage starts the backward itself.
                yield Effect(forward, activation, 3 * stage + BACKWARD, 0)
            receiver = 3 * (stage - 1) + BACKWARD if stage > 0 else None
            yield Effect(backward, kept - activation, receiver, self.up[stage])
            yield Effect(weight, -kept, None, 0)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.stages)

    @property
    def chunks(self) -> int:
        """Number of virtual stages per device."""
        return len(self.placement) // self.devices

    @property
    def fits_in_64_bits(self) -> bool:
        """Whether compiled code can represent all sums of times in 64 bits."""
        longest = sum(self.lengths) * self.microbatches + sum(self.down) + sum(self.up)
        return longest * 8 * self.devices <= _MAX_TICKS

    @property
    def operations(self) -> int:
        """Number of operations."""
        return len(self.lengths) * self.microbatches

    @property
    def max_live(self) -> tuple[int, ...]:
        """Maximum number of microbatches whose activations fit in memory, by virtual stage."""
        return tuple(
            self.limit[device] // activation if activation else self.microbatches
            for device, activation in zip(self.placement, self.activation, strict=True)
        )


def list_columns(problem: Problem) -> tuple[Argument, ...]:
    """Return a problem as members of ``struct pipeline`` in ``orders.c``."""
    columns = (
        problem.lengths,
        problem.down,
        problem.up,
        problem.activation,
        problem.weight_activation,
        problem.limit,
    )
    return (
        np.array(problem.placement, np.int32),
        *(np.array(column, np.int64) for column in columns),
        problem.devices,
        len(problem.placement),
        problem.microbatches,
        not problem.makespan,
    )


def build_problem(workload: Workload, *, fused: bool = False, makespan: bool = True) -> Problem:
    """Convert a workload to the integer times and amounts of memory that a search needs.

    The memory limit of a device is increased by the fraction ``ROUNDING``. If there is no limit,
    all microbatches fit in memory.

    Args:
        workload: Times, transfers and memory.
        fused: Whether B and W are a single operation. W then takes no time and is not run.
        makespan: See :class:`Problem`.

    Raises:
        UsageError: A device has too little memory for one microbatch.
    """
    stages = range(workload.virtual_stages)
    backward = workload.fused_ns if fused else workload.backward_ns
    weight = (0,) * len(stages) if fused else workload.weight_ns
    unit = _MEMORY_UNITS / (max(workload.activation) or 1.0)
    activation = tuple(round(size * unit) for size in workload.activation)
    weight_activation = tuple(
        0 if fused else round(size * unit) for size in workload.weight_activation
    )
    limit = []
    for device in range(workload.devices):
        one_microbatch = sum(activation[stage] for stage in workload.stages_of(device))
        max_memory = workload.microbatches * one_microbatch
        if workload.limit is not None:
            given_limit = workload.limit[device]
            max_memory = min(max_memory, int(given_limit * unit * (1 + ROUNDING)))
            if max_memory < one_microbatch:
                raise UsageError(
                    f"a memory limit of {given_limit:g} is too small: on device {device}, a single "
                    f"microbatch needs {one_microbatch / unit:g}; raise the limit"
                )
        limit.append(max_memory)
    times = zip(workload.forward_ns, backward, weight, strict=True)
    return Problem(
        workload.placement,
        workload.microbatches,
        tuple(itertools.chain.from_iterable(times)),
        workload.down_ns,
        workload.up_ns,
        activation,
        weight_activation,
        tuple(limit),
        makespan,
    )


def encode_plan(plan: Plan) -> Codes:
    """Encode the order of each device as a list of integers ``3 * virtual_stage + phase``.

    Microbatches are not encoded, because each phase of a virtual stage runs them in order (see
    :func:`decode_plan`). A fused backward becomes a B followed by a W.
    """
    codes = []
    for order in plan.orders:
        device_codes = []
        for op in order:
            device_codes.append(3 * op.virtual_stage + PHASE_CODES[op.phase])
            if op.phase is Phase.BW:
                device_codes.append(3 * op.virtual_stage + WEIGHT)
        codes.append(device_codes)
    return codes


def decode_plan(name: str, problem: Problem, codes: Codes, *, fused: bool = False) -> Plan:
    """Convert codes to a plan. Each phase of a virtual stage runs the microbatches in order.

    Args:
        name: Name of the plan.
        problem: The problem, with the sizes and placement of the plan.
        codes: Operations of each device, in order.
        fused: Whether a B is the whole backward.
    """
    phases = (Phase.F, Phase.BW) if fused else (Phase.F, Phase.B, Phase.W)
    orders: list[Order] = []
    for order in codes:
        next_microbatch: dict[int, int] = {}
        operations = []
        for code in order:
            microbatch = next_microbatch.get(code, 0)
            next_microbatch[code] = microbatch + 1
            stage, phase = divmod(code, 3)
            operations.append(PlannedOperation(stage, phases[phase], microbatch))
        orders.append(tuple(operations))
    return Plan(
        name,
        problem.devices,
        problem.microbatches,
        problem.chunks,
        problem.placement,
        tuple(orders),
    )
