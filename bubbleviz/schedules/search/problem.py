"""The problem of a search: times, transfers and memory of virtual stages, in integers.

The search shortens the makespan, or the longest window of a device: its work and the idle time in
between. As the work is given, it minimises the *excess*, by which the window is longer than the
work of the device that has most of it; where stages differ, those with less work may idle more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation
from bubbleviz.schedules.plan_memory import ROUNDING
from bubbleviz.schedules.workload import Workload

#: Longer than any schedule: a time that never comes.
NEVER = 1 << 62
#: What the chunk that holds most holds of one microbatch from F to B; memory is counted in shares
#: of it.
_WHOLE = 1 << 40
PHASE_CODES = {Phase.F: 0, Phase.B: 1, Phase.BW: 1, Phase.W: 2}


#: What each device runs, in order: ``3 virtual_stage + phase`` with F 0, B 1, W 2.
Codes = list[list[int]]


@dataclass(frozen=True)
class Problem:
    """A placement with its times; all tuples are by virtual stage.

    Attributes:
        placement: device of each virtual stage.
        microbatches: m.
        lengths: ticks of F, B and W: ``lengths[3 virtual_stage + phase]``.
        down: ticks from the end of F to its arrival at the next virtual stage.
        up: ticks from the end of B to its arrival at the virtual stage before.
        held: what a microbatch holds from F to B, in shares of 2^-40 of the most.
        kept: what stays of it from B to W.
        limit: by device: its memory, in shares of 2^-40 of the most.
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


def problem_of(workload: Workload, *, fused: bool = False, makespan: bool = True) -> Problem:
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
    kept = tuple(0 if fused else round(each * share) for each in workload.weight_activation)
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
    phases = (Phase.F, Phase.BW) if fused else (Phase.F, Phase.B, Phase.W)
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


# Bounds: the least makespan that any order of a problem can have.
#
# For each device, whatever its order::
#
#     head            E                                                last
#     ├── idle ──┤├ F F F ┤├─ idle ─┤├──── the rest of its work ────┤├── way back ──┤
#
# until E, when its first gradient can be there, it has but the forwards that there is memory for;
# its last B is followed by those of the stages before. With memory for few microbatches, what is
# left to do after its last F is too little to fill the way of that F to the end of the model and
# back.


def lower_bound(problem: Problem) -> int:
    """Return a length, in ticks, that no order within the memory is shorter than.

    Of a device's own window that is its work, since it begins and ends with an operation.
    """
    if not problem.microbatches or not problem.makespan:
        return problem.most_work
    count, m = len(problem.placement), problem.microbatches
    forward, backward, weight = (problem.lengths[phase::3] for phase in range(3))
    # Of a microbatch that waits nowhere, by virtual stage: until its F and its B can start, and
    # after the end of its B and its F.
    to_forward = [0]
    for s in range(1, count):
        to_forward.append(to_forward[-1] + forward[s - 1] + problem.down[s - 1])
    to_backward = [to_forward[-1] + forward[-1]]
    for s in range(count - 1, 0, -1):
        to_backward.insert(0, to_backward[0] + backward[s] + problem.up[s])
    from_backward = [weight[0]]
    for s in range(1, count):
        onward = problem.up[s] + backward[s - 1] + from_backward[-1]
        from_backward.append(max(weight[s], onward))
    from_forward = [backward[-1] + from_backward[-1]]
    for s in range(count - 1, 0, -1):
        from_forward.insert(0, problem.down[s - 1] + forward[s] + from_forward[0])
    longest = to_forward[-1] + forward[-1] + from_forward[-1]
    for device, stages in enumerate(problem.stages):
        first, last = stages[0], stages[-1]
        forwards, backwards, weights = (
            m * sum(lengths[s] for s in stages) for lengths in (forward, backward, weight)
        )
        head = to_forward[first]
        ahead = _most(problem, device, [forward[s] for s in stages])
        idle = max(0, to_backward[last] - head - ahead)
        # Its last B is one of its first virtual stage, its last F one of its last.
        ends = head + idle + forwards + backwards
        left = _most(problem, device, [backward[s] + weight[s] for s in stages])
        # A W may be owed by microbatches that hold no more than that.
        left += _most(problem, device, [weight[s] for s in stages], owed=True)
        waits = max(0, from_forward[last] - left)
        before = idle if ahead < forwards else 0
        behind = head + before + forwards + backwards + weights + waits
        longest = max(longest, ends + from_backward[first], ends + weights, behind)
    return longest


def _most(problem: Problem, device: int, worth: Sequence[int], *, owed: bool = False) -> int:
    """Return the most that microbatches that a device holds at once can be worth.

    Parts of microbatches count, but where the device has one chunk.

    Args:
        problem: memory, and how many microbatches there are.
        device: its number.
        worth: of a microbatch, by virtual stage of the device.
        owed: whether they hold only what is kept for W.
    """
    stages, m = problem.stages[device], problem.microbatches
    weight = [(problem.kept if owed else problem.held)[s] for s in stages]
    room, total = problem.limit[device], 0
    if len(stages) == 1:
        return worth[0] * (m if not weight[0] else min(m, room // weight[0]))
    rows = sorted(zip(worth, weight, strict=True), key=lambda row: row[1] / max(1, row[0]))
    for each, size in rows:
        if not size:
            total += m * each
            continue
        part = min(m * size, room)
        total += -(-part * each // size)
        room -= part
    return total
