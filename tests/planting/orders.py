"""Operation orders of pipeline schedules, implemented from the papers for planting only.

The implementation is independent of ``bubbleviz.schedules``, and tests compare the two. An order
may also come from a CSV file in PyTorch's format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase

F, B, W, BW = Phase.F, Phase.B, Phase.W, Phase.BW


@dataclass(frozen=True, order=True)
class Operation:
    """One operation of an iteration.

    Attributes:
        virtual_stage: Position of the operation's model chunk in the model.
        phase: F, B (input gradient), W (weight gradient), BW (both) or OPTIMIZER.
        microbatch: Microbatch, counted from 0.
    """

    virtual_stage: int
    phase: Phase
    microbatch: int

    def __str__(self) -> str:
        return f"{self.virtual_stage}{self.phase.label}{self.microbatch}"


Order = tuple[Operation, ...]


@dataclass(frozen=True)
class Plan:
    """The order of the operations on every device in one iteration.

    Attributes:
        stages: Number of devices, p.
        microbatches: Number of microbatches, m.
        chunks: Number of model chunks per device, v.
        placement: Index of the device that runs each virtual stage.
        orders: Operations of each device, in execution order.
        replicas: Number of pipelines; virtual stages are numbered consecutively over all of them.
        together: Forwards that overlap the next operation of their device, a backward.
    """

    stages: int
    microbatches: int
    chunks: int
    placement: tuple[int, ...]
    orders: tuple[Order, ...]
    replicas: int = 1
    together: frozenset[Operation] = frozenset()
    _chunks: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Number the chunks of each device in the order of the virtual stages."""
        seen: Counter[int] = Counter()
        numbers = []
        for device in self.placement:
            numbers.append(seen[device])
            seen[device] += 1
        object.__setattr__(self, "_chunks", tuple(numbers))

    @property
    def virtual_stages(self) -> int:
        """Number of virtual stages, summed over all pipelines."""
        return len(self.placement)

    def device_of(self, virtual_stage: int) -> int:
        """Return the device of a virtual stage."""
        return self.placement[virtual_stage]

    def chunk_of(self, virtual_stage: int) -> int:
        """Return the position of a virtual stage among the virtual stages of its device."""
        return self._chunks[virtual_stage]


def replicate(plan: Plan, replicas: int) -> Plan:
    """Return a plan of several identical pipelines on separate devices.

    Devices and virtual stages are numbered pipeline by pipeline.
    """

    def move(operation: Operation, number: int) -> Operation:
        stage = operation.virtual_stage + number * plan.virtual_stages
        return replace(operation, virtual_stage=stage)

    numbers = range(replicas)
    return replace(
        plan,
        stages=plan.stages * replicas,
        placement=tuple(d + n * plan.stages for n in numbers for d in plan.placement),
        orders=tuple(tuple(move(op, n) for op in order) for n in numbers for order in plan.orders),
        replicas=plan.replicas * replicas,
        together=frozenset(move(op, n) for n in numbers for op in plan.together),
    )


def select_forwards(plan: Plan) -> Plan:
    """Return the plan of an evaluation, which runs the same order without backwards."""
    orders = tuple(tuple(op for op in order if op.phase is F) for order in plan.orders)
    return replace(plan, orders=orders, together=frozenset())


def clear_stage(plan: Plan, stage: int) -> Plan:
    """Return the plan of an iteration in which the devices of a stage run nothing."""
    per_pipeline = plan.stages // plan.replicas
    orders = tuple(
        () if device % per_pipeline == stage else order for device, order in enumerate(plan.orders)
    )
    return replace(plan, orders=orders)


def parse_plan(text: str) -> Plan:
    """Return the plan in PyTorch's CSV format: one row per device, with cells such as ``0F3``."""
    phases = {"F": F, "I": B, "W": W, "B": BW}
    rows = [re.findall(r"(\d+)([FIWB])(\d+)", line) for line in text.splitlines()]
    orders = tuple(
        tuple(Operation(int(stage), phases[letter], int(mb)) for stage, letter, mb in row)
        for row in rows
    )
    device_of = {op.virtual_stage: device for device, row in enumerate(orders) for op in row}
    placement = tuple(device_of[stage] for stage in range(len(device_of)))
    microbatches = 1 + max(op.microbatch for row in orders for op in row)
    return Plan(len(orders), microbatches, len(placement) // len(orders), placement, orders)


# The next schedules have one direction.
# Forwards run ahead of the backwards, and each W follows its B.


def _order_in_steps(
    forwards: Sequence[Operation],
    backwards: Sequence[Operation],
    weights: Sequence[Operation] = (),
    *,
    warmup: int,
    lag: int = 0,
) -> Order:
    """Return the order of a device, which runs B n, W (n - lag) and F (n + warmup) in step n.

    ``warmup`` forwards run before step 0. The remaining W run after the last step.
    """
    n_steps = len(backwards)
    keyed = [((n, 0, n), op) for n, op in enumerate(backwards)]
    keyed += [((min(n + lag, n_steps), 1, n), op) for n, op in enumerate(weights)]
    keyed += [((n - warmup, 2, n), op) for n, op in enumerate(forwards)]
    return tuple(op for _, op in sorted(keyed))


def _make_line(
    warmup_of: Callable[[int, int], int], lag_of: Callable[[int], int] | None, p: int, m: int
) -> Plan:
    """Return a plan that has one chunk per device.

    Args:
        warmup_of: Function that returns the number of forwards before the first backward, given the
            number of devices from this one to the last, and m.
        lag_of: Function that returns the number of steps between B and its W for a device, or None
            if backwards are fused.
        p: Devices.
        m: Microbatches.
    """
    orders = []
    for device in range(p):
        forwards, backwards, weights = (
            [Operation(device, phase, mb) for mb in range(m)]
            for phase in (F, B if lag_of else BW, W)
        )
        warmup = warmup_of(p - device, m)
        if lag_of:
            order = _order_in_steps(forwards, backwards, weights, warmup=warmup, lag=lag_of(device))
        else:
            order = _order_in_steps(forwards, backwards, warmup=warmup)
        orders.append(order)
    return Plan(p, m, 1, tuple(range(p)), tuple(orders))


def _make_gpipe(p: int, m: int, _: int) -> Plan:
    """Return the plan that runs all forwards, then all backwards (arXiv 1811.06965)."""
    return _make_line(lambda _, m: m, None, p, m)


def one_forward_one_backward(p: int, m: int, _: int = 1) -> Plan:
    """Return 1F1B: a device keeps one microbatch in flight per later device (arXiv 2006.09503)."""
    return _make_line(lambda left, _: left, None, p, m)


def _make_zb_h1(p: int, m: int, _: int) -> Plan:
    """Return ZB-H1: 1F1B with W delayed by the device's number (arXiv 2401.10241, section 2.1)."""
    return _make_line(lambda left, _: left, lambda device: device, p, m)


def _make_zb_h2(p: int, m: int, _: int) -> Plan:
    """Return a plan whose warm-up fills the first bubble (arXiv 2401.10241, section 2.2)."""
    return _make_line(lambda left, _: 2 * left - 1, lambda device: 2 * device, p, m)


def _make_interleaved(
    p: int, m: int, v: int, *, split: bool = False, overlaps: bool = False
) -> Plan:
    """Return interleaved 1F1B (arXiv 2104.04473, section 2.2).

    Groups of p microbatches run one chunk after the other.

    Args:
        p: Number of devices.
        m: Number of microbatches, a multiple of p.
        v: Number of chunks per device.
        split: Whether backwards are split into B and W, with W delayed by one step per earlier
            device.
        overlaps: Whether forwards overlap the backward after them, with one more warm-up forward.
    """
    if m % p:
        raise UsageError(f"{m} microbatches are not groups of {p}")
    orders = []
    together: set[Operation] = set()
    for device in range(p):

        def nth(n: int, phase: Phase, device: int = device) -> Operation:
            chunk = n // p % v if phase is F else v - 1 - n // p % v
            return Operation(chunk * p + device, phase, n // (p * v) * p + n % p)

        forwards = [nth(n, F) for n in range(m * v)]
        backwards = [nth(n, B if split else BW) for n in range(m * v)]
        weights = [nth(n, W) for n in range(m * v)] if split else []
        warmup = (v - 1) * p + 1 + (p - device - 1) * (1 if split else 2)
        if overlaps:
            warmup = min(warmup, m * v) + 1
            together |= set(forwards[warmup - 1 :])
        lag = device if split else 0
        orders.append(_order_in_steps(forwards, backwards, weights, warmup=warmup, lag=lag))
    return Plan(p, m, v, tuple(range(p)) * v, tuple(orders), together=frozenset(together))


def _make_looped_bfs(p: int, m: int, v: int) -> Plan:
    """Return a plan that runs all microbatches of a chunk before the next chunk.

    Backwards run in the reverse order (arXiv 2211.05953).
    """
    orders = []
    for device in range(p):
        stage_and_microbatch = [(chunk * p + device, mb) for chunk in range(v) for mb in range(m)]
        forwards = [Operation(stage, F, mb) for stage, mb in stage_and_microbatch]
        backwards = [Operation(stage, BW, mb) for stage, mb in reversed(stage_and_microbatch)]
        orders.append((*forwards, *backwards))
    return Plan(p, m, v, tuple(range(p)) * v, tuple(orders))


class _TwoStages:
    """Builder of the order of a device that has two virtual stages.

    Within a phase of a stage, microbatches run in order.
    """

    def __init__(self, stages: tuple[int, int]) -> None:
        self.stages = stages
        self.order: list[Operation] = []
        self.together: set[Operation] = set()
        self._taken: Counter[tuple[int, str]] = Counter()
        self._delayed: list[Operation] = []

    def run(self, way: int, phase: Phase) -> None:
        """Run the next microbatch of a phase on stage 0 or 1. B and BW share one counter."""
        kind = phase.label if phase in (F, W) else "B"
        microbatch = self._taken[way, kind]
        self._taken[way, kind] += 1
        self.order.append(Operation(self.stages[way], phase, microbatch))

    def split_backward(self, way: int) -> None:
        """Run B, and queue the W that belongs to it."""
        self.run(way, B)
        self._delayed.append(replace(self.order[-1], phase=W))

    def run_delayed_weight(self) -> None:
        """Run the oldest queued W."""
        self.order.append(self._delayed.pop(0))

    def pair(self, forward: int, backward: int) -> None:
        """Run a forward that overlaps a fused backward of the device's other stage."""
        self.run(forward, F)
        self.together.add(self.order[-1])
        self.run(backward, BW)


def _place_in_v(p: int) -> tuple[int, ...]:
    return (*range(p), *reversed(range(p)))


def _make_hanayo(p: int, m: int, v: int) -> Plan:
    """Return v/2 waves of virtual stages down and up (arXiv 2308.15762), for m >= p.

    If all operations take one slot, the k-th operation downwards runs in slot 2k+d of device d, and
    the k-th operation upwards in slot 2k+2p-1-d. These slots have different parity.
    """
    waves = range(v // 2)
    slots: list[list[tuple[int, Operation]]] = [[] for _ in range(p)]
    for device, slots_of_device in enumerate(slots):
        for wave in waves:
            down, up = 2 * wave * p + device, 2 * wave * p + 2 * p - 1 - device
            last_wave = 2 * len(waves) - 1 - wave
            for mb in range(m):
                forward, backward = 2 * (wave * m + mb), 2 * (last_wave * m + mb)
                slots_of_device += [
                    (forward + device, Operation(down, F, mb)),
                    (forward + 2 * p - 1 - device, Operation(up, F, mb)),
                    (backward + device, Operation(up, BW, mb)),
                    (backward + 2 * p - 1 - device, Operation(down, BW, mb)),
                ]
    orders = tuple(tuple(op for _, op in sorted(slot)) for slot in slots)
    return Plan(p, m, v, _place_in_v(p) * len(waves), orders)


def _make_zb_v(p: int, m: int, _: int) -> Plan:
    """Return ZB-V as drawn in arXiv 2401.10241, section 6.

    With fewer than 2p - 1 microbatches, the result is the order for 2p - 1 without the missing
    microbatches.
    """
    n_drawn = max(m, 2 * p - 1)
    orders = []
    for device in range(p):
        two = _TwoStages((device, 2 * p - 1 - device))
        warmup = [(0, F)] * (2 * (p - device) - 1) + [(1, F), (0, F)] * device
        descent = [(1, F), (1, B), (1, W)] * (p - device)
        steady = [(0, F), (0, B), (0, W), (1, F), (1, B), (1, W)] * (n_drawn - p)
        ascent = [(0, B), (1, B)] * device + [(0, B), (0, W)] * (p - device)
        rest = [(1, W)] * n_drawn + [(0, W)] * n_drawn
        for way, phase in warmup + descent + steady + ascent + rest:
            two.run(way, phase)
        orders.append(tuple(op for op in two.order if op.microbatch < m))
    return Plan(p, m, 2, _place_in_v(p), tuple(orders))


def _write_dualpipe(two: _TwoStages, m: int, rank: int, depth: int) -> None:
    """Write DualPipe's eight steps for one device (the table in DeepSeek's DualPipe repository).

    Args:
        two: The device's two virtual stages; microbatches reach stage 0 first.
        m: Microbatches of each virtual stage.
        rank: Number of devices that a microbatch passes before it reaches stage 0.
        depth: Number of devices that a microbatch passes before it arrives at stage 1.
    """
    before_middle = depth - rank - 1
    for _ in range(2 * before_middle):
        two.run(0, F)
    for _ in range(rank + 1):
        two.run(0, F)
        two.run(1, F)
    for _ in range(before_middle):
        two.split_backward(1)
        two.run_delayed_weight()
        two.run(1, F)
    for n in range(m - 2 * depth + rank + 1):
        if n == 0 and rank == depth - 1:
            # On the middle device, the first forward overlaps no backward.
            two.run(0, F)
            two.run(1, BW)
        else:
            two.pair(0, 1)
        two.pair(1, 0)
    for _ in range(before_middle):
        two.run(1, BW)
        two.pair(1, 0)
    _write_drain(two, rank, before_middle)


def _write_drain(two: _TwoStages, rank: int, before_middle: int) -> None:
    """Write the last three steps of DualPipe.

    The second half of the backwards is split into B and W.
    """
    for n in range(2 * (rank + 1)):
        way = 1 - n % 2
        if n <= rank:
            two.run(way, BW)
        else:
            two.split_backward(way)
    for _ in range(before_middle):
        two.run_delayed_weight()
        two.split_backward(0)
    for _ in range(rank + 1):
        two.run_delayed_weight()


def _make_dualpipe(p: int, m: int, _: int) -> Plan:
    """Return two pipelines that are fed from both ends (arXiv 2412.19437).

    Each pipeline gets half of the microbatches.
    """
    if p % 2 or m % 2 or m < 2 * p:
        raise UsageError(f"dualpipe does not run {m} microbatches on {p} devices")
    devices = []
    for device in range(p):
        stages = (device, 2 * p - 1 - device)
        two = _TwoStages(stages if device < p // 2 else stages[::-1])
        _write_dualpipe(two, m // 2, min(device, p - 1 - device), p // 2)
        devices.append(two)
    return _join_devices(p, m, 1, devices, replicas=2)


def _make_dualpipe_v(p: int, m: int, _: int) -> Plan:
    """Return DualPipe cut in half: a single V-shaped pipeline."""
    if m < 2 * p:
        raise UsageError(f"dualpipev does not run {m} microbatches on {p} devices")
    devices = [_TwoStages((device, 2 * p - 1 - device)) for device in range(p)]
    for device, two in enumerate(devices):
        _write_dualpipe(two, m, device, p)
    return _join_devices(p, m, 2, devices, replicas=1)


def _join_devices(p: int, m: int, v: int, devices: Sequence[_TwoStages], replicas: int) -> Plan:
    orders = tuple(tuple(two.order) for two in devices)
    together = frozenset[Operation]().union(*(two.together for two in devices))
    return Plan(p, m, v, _place_in_v(p), orders, replicas, together)


def _make_chimera(p: int, m: int, _: int) -> Plan:
    """Return two pipelines in opposite directions, in slots of 1F1B (arXiv 2107.06925, figure 2).

    Microbatch i of a group enters its pipeline in slot 2i and moves on by one stage per slot, down
    the pipeline and back. The next group of p microbatches starts 2p slots later.
    """
    if p % 2 or m % p:
        raise UsageError(f"chimera does not run {m} microbatches on {p} devices")
    slots: list[list[tuple[int, Operation]]] = [[] for _ in range(p)]
    for pipeline in range(2):
        for stage in range(p):
            device = stage if pipeline == 0 else p - 1 - stage
            for mb in range(m // 2):
                group, i = divmod(mb, p // 2)
                enters = 2 * p * group + 2 * i
                virtual_stage = pipeline * p + stage
                slots[device].append((enters + stage, Operation(virtual_stage, F, mb)))
                returns = enters + 2 * p - 1 - stage
                slots[device].append((returns, Operation(virtual_stage, BW, mb)))
    orders = tuple(tuple(op for _, op in sorted(slot)) for slot in slots)
    return Plan(p, m, 1, _place_in_v(p), orders, replicas=2)


@dataclass(frozen=True)
class Schedule:
    """A schedule that can be planted.

    Attributes:
        chunks: Usual number of chunks per device.
        plan: Function of p, m and v that returns the plan.
    """

    chunks: int
    plan: Callable[[int, int, int], Plan]


#: The schedules that can be planted, by name.
SCHEDULES = {
    "1f1b": Schedule(1, one_forward_one_backward),
    "chimera": Schedule(1, _make_chimera),
    "combined-1f1b": Schedule(2, lambda p, m, v: _make_interleaved(p, m, v, overlaps=True)),
    "dualpipe": Schedule(1, _make_dualpipe),
    "dualpipev": Schedule(2, _make_dualpipe_v),
    "gpipe": Schedule(1, _make_gpipe),
    "hanayo": Schedule(2, _make_hanayo),
    "interleaved-1f1b": Schedule(2, _make_interleaved),
    "interleaved-zb": Schedule(2, lambda p, m, v: _make_interleaved(p, m, v, split=True)),
    "looped-bfs": Schedule(2, _make_looped_bfs),
    "zb-h1": Schedule(1, _make_zb_h1),
    "zb-h2": Schedule(1, _make_zb_h2),
    "zb-v": Schedule(2, _make_zb_v),
}


def make_plan(name: str, p: int, m: int, v: int = 0) -> Plan:
    """Return the plan of a schedule.

    Args:
        name: Name of the schedule, or the plan itself as PyTorch's CSV.
        p: Devices.
        m: Microbatches.
        v: Chunks per device, or 0 for the schedule's usual number.

    Raises:
        UsageError: No schedule has this name, or the schedule does not allow these sizes.
        ValueError: The plan in the CSV has different sizes.
    """
    if "," in name:
        plan = parse_plan(name)
        if (plan.stages, plan.microbatches) != (p, m):
            raise ValueError(
                f"an order of {plan.microbatches} microbatches on {plan.stages} devices"
            )
        return plan
    if name not in SCHEDULES:
        raise UsageError(f"no schedule is called {name!r}; known are {', '.join(SCHEDULES)}")
    schedule = SCHEDULES[name]
    return schedule.plan(p, m, v or schedule.chunks)
