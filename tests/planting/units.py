"""The operations of a simulated run as a profiler records them, including names and transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import WORK, Phase
from tests.planting.options import Planting
from tests.planting.orders import (
    Operation,
    Plan,
    clear_stage,
    make_plan,
    replicate,
    select_forwards,
)
from tests.planting.places import TRAINING_STARTS_NS
from tests.planting.programs import POSTPONED, Duration, Simulation, Task, simulate
from tests.planting.reductions import compute_opening_ns, compute_reduced_ns, is_idle
from tests.support.stage_times import make_durations

#: Factor by which a slow microbatch or iteration takes longer.
SLOW = 1.5


def make_plan_of_run(planting: Planting) -> Plan:
    """Return the plan of one training iteration for all replicas.

    The plan equals the plan of the schedule, except that ``swapped_device`` swaps two adjacent
    operations.
    """
    plan = make_plan(planting.schedule, planting.stages, planting.microbatches, planting.chunks)
    plan = replicate(plan, planting.replicas)
    if planting.swapped_device < 0:
        return plan
    orders = [list(order) for order in plan.orders]
    swapped, index = orders[planting.swapped_device], planting.swapped_at
    swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
    return replace(plan, orders=tuple(tuple(order) for order in orders))


def simulate_run(planting: Planting) -> Simulation:
    """Simulate the run, starting at time 0.

    Iterations run only forwards if the planting asks for inference or an evaluation. In
    ``idle_iterations``, the devices of ``idle_stage`` run no forward or backward.
    """
    plan = make_plan_of_run(planting)
    plans = [select_forwards(plan) if planting.inference else plan] * planting.iterations
    for iteration in planting.idle_iterations:
        plans[iteration] = clear_stage(plan, planting.idle_stage)
    if planting.evaluation_at >= 0:
        plans[planting.evaluation_at] = select_forwards(plan)

    def prelude(task: Task) -> int:
        return planting.nested_receive_ns if task.operation.phase is Phase.F else 0

    def delay(task: Task) -> int:
        if task.operation.phase is Phase.OPTIMIZER:
            is_late = plan.device_of(task.operation.virtual_stage) == planting.late_optimizer
            return planting.late_optimizer_ns if is_late else 0
        is_late = _find_stage(planting, plan, task.operation.virtual_stage) == planting.late_stage
        return planting.late_ns if is_late and task.operation.phase is Phase.F else 0

    return simulate(
        plans,
        _make_durations(planting, plan),
        optimizer=planting.optimizer_ns >= 0,
        postponed=planting.postponed_ns > 0,
        transfer_ns=_make_transfers(planting, plan),
        prelude=prelude,
        delay=delay,
        gate=partial(compute_opening_ns, planting)
        if planting.barrier or planting.reduce_ns
        else None,
    )


def _make_durations(planting: Planting, plan: Plan) -> Duration:
    """Return a function from a task to its duration, with jitter and all planted slowdowns."""
    chunks = plan.chunks
    base = make_durations(
        planting.forward_ns // chunks,
        planting.backward_ns // chunks,
        planting.weight_ns // chunks,
        planting.optimizer_ns,
    )
    shape = (planting.iterations, len(Phase), plan.virtual_stages, planting.microbatches + 2)
    noise = np.random.default_rng(planting.seed).uniform(-1, 1, shape) if planting.jitter else None

    def duration(task: Task) -> int:
        """Return the duration of a task. Postponed optimizer work always takes its full length."""
        op = task.operation
        if op.phase is Phase.OPTIMIZER and op.microbatch == POSTPONED:
            return planting.postponed_ns
        length = base(task)
        scale = 1.0
        if planting.layers:
            layers = planting.layers_of(op.virtual_stage % (plan.virtual_stages // plan.replicas))
            scale *= chunks * sum(planting.layers[layer] for layer in layers) / 100
        if noise is not None:
            scale += (
                planting.jitter * noise[task.iteration, op.phase, op.virtual_stage, op.microbatch]
            )
        device = plan.device_of(op.virtual_stage)
        slow = device % planting.stages == planting.slow_stage
        if slow or device // planting.stages == planting.slow_pipeline:
            scale *= planting.slow_factor
        scale *= _compute_slowness(planting, plan, task)
        return (length if scale == 1.0 else round(length * scale)) + _get_pause_ns(
            planting, plan, op, task.iteration
        )

    return duration


def _compute_slowness(planting: Planting, plan: Plan, task: Task) -> float:
    """Return the slowdown factor of a task due to its rank, microbatch and iteration.

    All planted factors are multiplied. The factors of microbatches do not apply to optimizers.
    """
    op = task.operation
    scale = 1.0 + planting.drift * task.iteration / max(planting.iterations - 1, 1)
    if planting.lengths and op.phase is not Phase.OPTIMIZER:
        scale *= planting.lengths[op.microbatch % len(planting.lengths)]
    slow = task.iteration >= planting.slow_rank_from
    if slow and plan.device_of(op.virtual_stage) == planting.slow_rank:
        scale *= planting.slow_rank_factor
    if op.microbatch == planting.slow_microbatch and op.phase is not Phase.OPTIMIZER:
        scale *= SLOW
    if task.iteration == planting.slow_iteration:
        scale *= SLOW
    return scale


def _get_pause_ns(planting: Planting, plan: Plan, op: Operation, iteration: int) -> int:
    """Return the planted pause in an operation. Only the forward of microbatch 1 has a pause."""
    pauses = plan.device_of(op.virtual_stage) == planting.pause_device
    pauses = pauses and op.phase is Phase.F and op.microbatch == 1
    return planting.pause_ns if pauses and iteration % planting.pause_every == 0 else 0


def _find_stage(planting: Planting, plan: Plan, virtual_stage: int) -> int:
    """Return the position of a virtual stage's device in its pipeline."""
    return plan.device_of(virtual_stage) % planting.stages


def _make_transfers(planting: Planting, plan: Plan) -> Duration:
    """Return a function from a task to the transfer time of its input."""
    back = planting.transfer_ns if planting.transfer_back_ns < 0 else planting.transfer_back_ns
    shape = (planting.iterations, len(Phase), plan.virtual_stages, planting.microbatches)
    noise = np.random.default_rng([planting.seed, 1]).uniform(0, planting.transfer_jitter, shape)

    def transfer(task: Task) -> int:
        """Return the transfer time of a task's input: activations for F, gradients otherwise."""
        op = task.operation
        length = planting.transfer_ns if op.phase is Phase.F else back
        source = op.virtual_stage + (-1 if op.phase is Phase.F else 1)
        if planting.slow_link >= 0 and 0 <= source < plan.virtual_stages:
            # In a V-shaped pipeline, the return path uses the same links.
            stages = {_find_stage(planting, plan, at) for at in (source, op.virtual_stage)}
            slow = stages == {planting.slow_link, planting.slow_link + 1}
            length = round(length * (planting.slow_link_factor if slow else 1))
        jitter = noise[task.iteration, op.phase, op.virtual_stage, op.microbatch]
        return length + round(length * float(jitter))

    return transfer


@dataclass(frozen=True)
class Unit:
    """One recorded operation of one rank: one task, or several tasks under one name.

    Times are on the global clock. ``previous_ns`` is the end of the rank's previous unit. For an
    optimizer, ``reduced_ns`` is the end of the reduce-scatter before it.
    """

    phase: Phase
    name: str
    iteration: int
    microbatch: int | None
    virtual_stage: int | None
    chunk: int | None
    previous_ns: int
    start_ns: int
    pause_ns: int
    resume_ns: int
    end_ns: int
    arrival_ns: int
    receives: str | None
    sends: str | None
    late: bool
    reduced_ns: int = 0
    paused_ns: int = 0


def list_units(planting: Planting, plan: Plan, sim: Simulation, device: int) -> list[Unit]:
    """Return the operations of a rank, in order."""
    rows = np.flatnonzero(sim.device == device)
    units: list[Unit] = []
    previous = TRAINING_STARTS_NS
    for row in rows.tolist():
        unit = _make_unit(planting, plan, sim, row, previous)
        units.append(unit)
        previous = unit.end_ns
    units = _add_reductions(planting, sim, device, units)
    return _join_cleared_weights(units) if planting.w_clear else units


def _add_reductions(
    planting: Planting, sim: Simulation, device: int, units: list[Unit]
) -> list[Unit]:
    """Return the units of a device, after adding the end of the reduce-scatter to optimizers."""
    if not planting.gated:
        return units
    work = np.isin(sim.phase, WORK)
    done: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(work).tolist():
        key = int(sim.iteration[row]), int(sim.device[row])
        done[key] = max(done.get(key, 0), int(sim.end_ns[row]) + TRAINING_STARTS_NS)
    return [
        replace(unit, reduced_ns=compute_reduced_ns(planting, unit.iteration, device, done) or 0)
        if unit.name == "Optimizer"
        else unit
        for unit in units
    ]


def _make_unit(planting: Planting, plan: Plan, sim: Simulation, row: int, previous: int) -> Unit:
    """Return the task in one row of the simulation as a unit, on the global clock.

    The unit receives if the task had a remote input, and sends if the next virtual stage is on a
    different device that is not idle. Without communication, it does neither.
    """
    phase = Phase(int(sim.phase[row]))
    stage, microbatch = int(sim.virtual_stage[row]), int(sim.microbatch[row])
    times = {
        name: int(getattr(sim, name)[row]) + TRAINING_STARTS_NS
        for name in ("start_ns", "pause_ns", "resume_ns", "end_ns", "arrival_ns")
    }
    work = phase is not Phase.OPTIMIZER
    chunk = plan.chunk_of(stage)
    key = f"{microbatch}.{chunk}.0" if planting.names == "numbered" else "0.0.0"
    if work:
        name = f"{'F' if phase is Phase.F else 'W' if phase is Phase.W else 'B'}{key}"
    else:
        name = "POST_VALIDATION" if microbatch == POSTPONED else "Optimizer"
    receives = sends = None
    if work and phase is not Phase.W and planting.communication:
        way, step = ("FORWARD", 1) if phase is Phase.F else ("BACKWARD", -1)
        suffix = f".{key}" if planting.names == "numbered" else ""
        if sim.arrival_ns[row] != NONE:
            receives = f"RECV_{way}{suffix}"
        iteration = int(sim.iteration[row])
        if _is_on_other_device(plan, stage, stage + step) and not is_idle(
            planting, iteration, plan.device_of(stage + step)
        ):
            sends = f"SEND_{way}{suffix}"
    return Unit(
        phase=phase,
        name=name,
        iteration=int(sim.iteration[row]),
        microbatch=microbatch if work else None,
        virtual_stage=stage % (plan.virtual_stages // plan.replicas) if work else None,
        chunk=chunk if work else None,
        previous_ns=previous,
        receives=receives,
        sends=sends,
        paused_ns=_get_pause_ns(
            planting, plan, Operation(stage, phase, microbatch), int(sim.iteration[row])
        )
        if planting.pause_dry and work
        else 0,
        late=plan.device_of(stage) == planting.late_optimizer
        if phase is Phase.OPTIMIZER
        else _find_stage(planting, plan, stage) == planting.late_stage and phase is Phase.F,
        **times,
    )


def _is_on_other_device(plan: Plan, stage: int, other: int) -> bool:
    """Return whether the other virtual stage exists and is on another device."""
    length = plan.virtual_stages // plan.replicas
    return other // length == stage // length and plan.device_of(other) != plan.device_of(stage)


def _join_cleared_weights(units: Sequence[Unit]) -> list[Unit]:
    """Join the last W operations of each iteration into one unit per chunk, and return all units.

    The last W operations of an iteration are the ones after its last F or B.
    """
    last_other = {unit.iteration: n for n, unit in enumerate(units) if _is_not_weight(unit)}
    joined_units: list[Unit] = []
    for n, unit in enumerate(units):
        if unit.phase is not Phase.W or n < last_other[unit.iteration]:
            joined_units.append(unit)
            continue
        previous = joined_units[-1]
        name = f"W_clear.{unit.chunk}.0"
        if previous.name == name and previous.iteration == unit.iteration:
            joined_units[-1] = replace(previous, end_ns=unit.end_ns)
        else:
            joined_units.append(replace(unit, name=name, microbatch=None))
    return joined_units


def _is_not_weight(unit: Unit) -> bool:
    return unit.phase not in (Phase.W, Phase.OPTIMIZER)
