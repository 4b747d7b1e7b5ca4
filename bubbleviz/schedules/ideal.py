"""Ideal runs: makespan, bubble ratios and memory of a schedule with given times and no delays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from bubbleviz.errors import UsageError
from bubbleviz.model import texts
from bubbleviz.model.memory_sizes import MemorySize, format_memory
from bubbleviz.model.restrictions import Restriction
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules import known
from bubbleviz.schedules.communication.deadlocks import compute_makespan
from bubbleviz.schedules.communication.lowered import LoweredPlan
from bubbleviz.schedules.communication.transports import Transport
from bubbleviz.schedules.measured_times import StageTimes, convert_to_ticks
from bubbleviz.schedules.plan import Memory, Plan, Schedule
from bubbleviz.schedules.plan_memory import compute_peak_memory, is_within
from bubbleviz.schedules.simulation import Simulation, simulate
from bubbleviz.schedules.workload import (
    Workload,
    build_device_workload,
    check_workload,
    get_phase_times,
)

#: Maximum number of operations. Simulating this many operations takes about a minute.
_MAX_OPERATIONS = 5_000_000
#: Maximum number of stages. Metrics compare all pairs of devices, so their time grows
#: quadratically.
_MAX_STAGES = 5_000
#: Memory options from the user: the limit, M_B and M_W, each None if not given.
#: By default, the limit is the schedule's limit, M_B is 1, and M_W is the schedule's fraction of
#: M_B.
MemoryOptions = tuple[MemorySize | None, MemorySize | None, MemorySize | None]
_NO_OPTIONS = None, None, None


@dataclass(frozen=True, repr=False)
class Ideal:
    """A named schedule, simulated with equal, given or measured stage times.

    Attributes:
        plan: Operations of each device, in order.
        simulation: Times of the operations, in ticks of 1/v ns, so that chunk times are whole
            numbers.
        cost_ms: Longest time from the first start to the last end on any single device (arXiv
            2401.10241, section 5.3).
        makespan_ms: Time from the first start on any device to the last end on any device.
        stage_ratio: Bubble ratio in the window of ``cost_ms``, or None if no operation takes time.
        schedule_ratio: Bubble ratio in the window of ``makespan_ms``, or None if no operation takes
            time.
        peak_activations: For each stage, the maximum number of microbatches that are between F and
            the end of W (or BW) at the same time. If a stage has v chunks, a microbatch in one of
            its chunks adds 1/v.
        memory: Activation memory of a microbatch, and the memory limit for the search if the plan
            was searched for.
        peak_memory: Peak activation memory of each stage, in the unit of ``memory``.
        restrictions: Reasons why the measured times may not cover a complete pipeline.
        carried_ms: Makespan including sends and receives, or None if they were not simulated.
        left_out: Sentence that names the slow iterations that the measured times leave out, or "".
    """

    plan: Plan
    simulation: Simulation
    cost_ms: float
    makespan_ms: float
    stage_ratio: float | None
    schedule_ratio: float | None
    peak_activations: tuple[float, ...]
    memory: Memory
    peak_memory: tuple[float, ...]
    restrictions: tuple[Restriction, ...] = ()
    carried_ms: float | None = None
    left_out: str = ""

    @property
    def bubble_ratio(self) -> float | None:
        """Bubble ratio in the window of all devices, or None if no operation takes time."""
        return self.schedule_ratio

    def __dir__(self) -> list[str]:
        """List only the public names."""
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        ratio = "unknown" if self.schedule_ratio is None else f"{self.schedule_ratio:.4f}"
        return (
            f"Ideal({self.plan.name}, {texts.format_count(self.plan.stages, 'stage')}, "
            f"{texts.format_count(self.plan.microbatches, 'microbatch', 'microbatches')}: "
            f"{self.makespan_ms:.3f} ms, bubble ratio {ratio})"
        )


@dataclass(frozen=True)
class Estimate:
    """The cost of a schedule according to a closed formula, without order, makespan or memory.

    Attributes:
        name: Name of the formula.
        stages: Number of devices, p.
        microbatches: Number of microbatches, m.
        chunks: Number of model chunks per device, v.
        cost_ms: Longest time from the first start to the last end on a single device.
        stage_ratio: Bubble ratio in the window of ``cost_ms``, or None if no operation takes time.
        restrictions: See :class:`Ideal`.
        left_out: See :class:`Ideal`.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    cost_ms: float
    stage_ratio: float | None
    restrictions: tuple[Restriction, ...] = ()
    left_out: str = ""

    @property
    def bubble_ratio(self) -> float | None:
        """Bubble ratio in the longest window on any device, or None if no operation takes time."""
        return self.stage_ratio


def list_names() -> list[str]:
    """Return the names of all schedules and formulas, sorted."""
    return sorted(rule.name for rule in (*known.SCHEDULES, *known.FORMULAS))


def check_name(name: str) -> None:
    """Check that a schedule or a formula has this name.

    Raises:
        UsageError: No schedule and no formula has this name.
    """
    if name not in list_names():
        raise known.make_unknown_schedule_error(name, list_names())


def simulate_or_estimate(
    name: str,
    stages: int,
    microbatches: int,
    times: StageTimes,
    chunks: int | None = None,
    *,
    memory: MemoryOptions = _NO_OPTIONS,
    watch: Watch = unwatched,
) -> Ideal | Estimate:
    """Simulate the schedule, or evaluate the formula, with this name.

    See :func:`ideal` and :func:`estimate` for the arguments.

    Raises:
        UsageError: An argument is invalid, or memory options are given for a formula.
    """
    check_name(name)
    formula = known.find_formula(name)
    if formula is None:
        return ideal(name, stages, microbatches, times, chunks, memory=memory, watch=watch)
    if memory != _NO_OPTIONS:
        raise UsageError(
            f"{name} is a formula for times only, so the --memory options do not apply; remove them"
        )
    return estimate(formula, stages, microbatches, times, chunks)


def ideal(
    schedule: str,
    stages: int,
    microbatches: int,
    times: StageTimes,
    chunks: int | None = None,
    *,
    memory: MemoryOptions = _NO_OPTIONS,
    by_makespan: bool = False,
    watch: Watch = unwatched,
) -> Ideal:
    """Simulate a schedule with given times.

    If the schedule is a searched schedule and has a memory limit (given or default), an order is
    searched for with the given times. Otherwise, the schedule's fixed order is used.

    Args:
        schedule: Name of the schedule; see :func:`bubbleviz.schedules.known.schedules`.
        stages: Number of devices, p.
        microbatches: Number of microbatches, m.
        times: Stage times.
        chunks: Number of model chunks per device, v, or None for the schedule's default.
        memory: Activation memory and memory limit. An order that is searched for stays within the
            limit.
        by_makespan: Whether a search minimizes the makespan. If False, it minimizes the longest
            window of any device.
        watch: Callback that receives the completed fraction of a search.

    Raises:
        UsageError: The schedule is unknown or does not allow these sizes, a time or an amount of
            memory is invalid, or the memory limit is too small.
    """
    rule = known.find_schedule(schedule)
    v = rule.chunks if chunks is None else chunks
    _check_sizes(stages, microbatches, v)
    activations = _resolve_memory(rule, stages, memory)
    if rule.searched and activations.limit is not None:
        *ticks, transfer = convert_to_ticks(stages, microbatches * v, times, v)
        placement = known.get_searched_placement(rule, stages, v)
        workload = build_device_workload(placement, microbatches, ticks, transfer, activations)
        plan = known.search_plan(rule.name, workload, makespan=by_makespan, watch=watch)
    else:
        plan = rule.plan(stages, microbatches, v)
    return simulate_plan(plan, times, activations)


def simulate_plan(plan: Plan, times: StageTimes, memory: Memory | None = None) -> Ideal:
    """Simulate a plan with given times.

    Args:
        plan: Operations of each device, in order.
        times: Stage times.
        memory: Activation memory of a microbatch, or None to measure memory in microbatches.

    Raises:
        MismatchError: The plan deadlocks.
        UsageError: A time is invalid.
    """
    v, activations = plan.chunks, memory or Memory()
    _check_sizes(plan.stages, plan.microbatches, v)
    simulation = simulate(plan, build_plan_workload(plan, times))

    def peaks(backward: float, weight: float) -> tuple[float, ...]:
        """Return the peak memory of each stage, given M_B and M_W."""
        of_stages = ((each,) * plan.virtual_stages for each in (backward, weight))
        return tuple(peak / v for peak in compute_peak_memory(plan, *of_stages))

    return Ideal(
        plan,
        simulation,
        simulation.cost_ns / v / 1e6,
        simulation.makespan_ns / v / 1e6,
        simulation.stage_ratio,
        simulation.schedule_ratio,
        peaks(1.0, 1.0),
        activations,
        peaks(activations.backward, activations.weight),
    )


def simulate_lowered_plan(lowered: LoweredPlan, times: StageTimes, transport: Transport) -> Ideal:
    """Simulate a plan together with its sends and receives.

    Args:
        lowered: The plan with its sends and receives.
        times: Stage times.
        transport: The transport, which determines how transfers are carried out.

    Returns:
        The simulation of the plan alone, with ``carried_ms`` set to the makespan including
        communication.

    Raises:
        MismatchError: The plan deadlocks on the transport, or its messages do not match.
        UsageError: A time is invalid.
    """
    workload = build_plan_workload(lowered.plan, times)
    carried = compute_makespan(lowered, workload, transport)
    return replace(
        simulate_plan(lowered.plan, times), carried_ms=carried / lowered.plan.chunks / 1e6
    )


def build_plan_workload(plan: Plan, times: StageTimes) -> Workload:
    """Build a plan's workload, with times in ticks of 1/v ns.

    A plan with one replica and the same placement as the measured run uses the measured times of
    each virtual stage. Any other plan uses the times of each stage. If this other plan has the same
    number of devices as the measured run, it also uses the measured transfer times between devices.

    Raises:
        UsageError: A time is invalid.
        MismatchError: The measured times are too long to be simulated.
    """
    v, measured = plan.chunks, times.measured
    if measured is not None and plan.replicas == 1 and measured.placement == plan.placement:
        forward, backward, weight, fused, down, up = (
            tuple(v * time_ns for time_ns in stage_ns)
            for stage_ns in (
                *get_phase_times(measured).values(),
                measured.down_ns,
                measured.up_ns,
            )
        )
        scaled = replace(
            measured,
            microbatches=plan.microbatches,
            forward_ns=forward,
            backward_ns=backward,
            weight_ns=weight,
            fused_ns=fused,
            down_ns=down,
            up_ns=up,
            lengths=times.lengths,
        )
        check_workload(scaled)
        return scaled
    *ticks, transfer = convert_to_ticks(plan.stages, plan.microbatches * v, times, v)
    workload = build_device_workload(
        plan.placement, plan.microbatches, ticks, transfer, replicas=plan.replicas
    )
    workload = replace(workload, lengths=times.lengths)
    if measured is not None and measured.devices == plan.stages:
        workload = _set_measured_transfers(workload, measured, v)
    return workload


def _set_measured_transfers(workload: Workload, measured: Workload, factor: int) -> Workload:
    """Replace a workload's transfer times with the times measured between the same two devices.

    If the measured run has no transfer between two devices, the transfer time between them is left
    unchanged. If the run has several transfers between them (for different virtual stages), the
    last one is used.

    Args:
        workload: The workload to change.
        measured: Workload of the measured run, which has the same devices.
        factor: Number of ticks per ns. Measured times are multiplied by it.
    """
    link_ns: dict[tuple[int, int], int] = {}
    for s, (source, target) in enumerate(pairwise(measured.placement)):
        link_ns[source, target] = measured.down_ns[s]
        link_ns[target, source] = measured.up_ns[s + 1]
    down_ns, up_ns = list(workload.down_ns), list(workload.up_ns)
    for s, (source, target) in enumerate(pairwise(workload.placement)):
        if (source, target) in link_ns:
            down_ns[s] = factor * link_ns[source, target]
            up_ns[s + 1] = factor * link_ns[target, source]
    return replace(workload, down_ns=tuple(down_ns), up_ns=tuple(up_ns))


def estimate(
    formula: known.Formula,
    stages: int,
    microbatches: int,
    times: StageTimes,
    chunks: int | None = None,
) -> Estimate:
    """Compute the longest window on any device by a formula, and the bubble ratio in this window.

    The bubble ratio is 1 minus the fraction of the window that a stage spends on work (m times F, B
    and W), or None if the window is empty.

    Args:
        formula: Closed formula of a schedule.
        stages: Number of devices, p.
        microbatches: Number of microbatches, m.
        times: Stage times, which must be equal for all stages.
        chunks: Number of model chunks per device, v, or None for the formula's default.

    Raises:
        UsageError: The formula does not allow these sizes, the stages have different times, or a
            time is invalid.
    """
    v = formula.chunks if chunks is None else chunks
    _check_sizes(stages, microbatches, v)
    forward, backward, weight, transfer = convert_to_ticks(stages, microbatches * v, times, 1)
    if any(len(set(each)) > 1 for each in (forward, backward, weight)):
        raise UsageError(
            f"{formula.name} is a formula for equal stages; pass a single time for all stages, or "
            f"simulate {formula.similar_schedule}"
        )
    work = (forward[0] + backward[0] + weight[0]) / 1e6
    cost_ms = formula.cost(stages, microbatches, v, work, transfer / 1e6)
    ratio = 1 - microbatches * work / cost_ms if cost_ms else None
    return Estimate(formula.name, stages, microbatches, v, cost_ms, ratio)


def _resolve_memory(rule: Schedule, stages: int, options: MemoryOptions) -> Memory:
    """Return the activation memory and the memory limit for a simulation, with defaults filled in.

    Values that are not given have these defaults:

    - M_B is 1.
    - M_W is the schedule's fraction of M_B, or M_B if the schedule is not searched.
    - The limit is the schedule's default times M_B, or None if the schedule has no default.

    Raises:
        UsageError: The limit or M_B is 0, units are mixed, M_W exceeds M_B, the limit is less than
            M_B, or a limit is given for a schedule with a fixed order.
    """
    limit, memory_b, memory_w = options
    for option, size in (("--memory-limit", limit), ("--memory-b", memory_b)):
        if size is not None and not size.amount:
            raise UsageError(f"{option}: must be more than 0")
    in_bytes = memory_b is not None and memory_b.in_bytes
    if any(size is not None and size.amount and size.in_bytes != in_bytes for size in options):
        raise UsageError(
            "--memory-limit, --memory-b and --memory-w have different units; pass all of them in "
            "bytes (--memory-b 2GB), or all of them without a unit"
        )
    backward = 1.0 if memory_b is None else memory_b.amount
    weight_ratio = rule.searched.weight_memory if rule.searched else 1.0
    weight = weight_ratio * backward if memory_w is None else memory_w.amount
    if weight > backward:
        raise UsageError(
            f"--memory-w: M_W ({format_memory(weight, in_bytes=in_bytes)}) cannot exceed M_B "
            f"({format_memory(backward, in_bytes=in_bytes)})"
        )
    if limit is not None:
        _check_limit(rule, limit, backward, in_bytes=in_bytes)
        return Memory(limit.amount, backward, weight, in_bytes)
    default_limit = None
    if rule.searched and rule.searched.limit:
        default_limit = rule.searched.limit(stages) * backward
    return Memory(default_limit, backward, weight, in_bytes)


def _check_limit(rule: Schedule, limit: MemorySize, backward: float, *, in_bytes: bool) -> None:
    """Check that a schedule can be searched within a memory limit.

    Args:
        rule: The schedule.
        limit: The memory limit.
        backward: Memory of a microbatch from F to B, M_B, in the unit of the limit.
        in_bytes: Whether amounts are in bytes, which affects the error message.

    Raises:
        UsageError: The schedule has a fixed order, or the limit is too small for one microbatch.
    """
    if rule.searched is None:
        names = ", ".join(schedule.name for schedule in known.SCHEDULES if schedule.searched)
        raise UsageError(
            f"--memory-limit has no effect on {rule.name}, whose order is fixed; it works with "
            f"{names}"
        )
    if not is_within(backward, limit.amount):
        raise UsageError(
            f"--memory-limit {format_memory(limit.amount, in_bytes=in_bytes)}: too small; a single "
            f"microbatch needs {format_memory(backward, in_bytes=in_bytes)}"
        )


def _check_sizes(stages: int, microbatches: int, chunks: int) -> None:
    """Check that sizes are positive and small enough to simulate.

    Raises:
        UsageError: A size is less than 1, or there are too many stages or operations.
    """
    sizes = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{size} {name}: must be at least 1")
    if stages > _MAX_STAGES:
        raise UsageError(
            f"{stages:,} stages are too many to simulate (the maximum is {_MAX_STAGES:,}); use "
            "fewer stages, or a single pipeline"
        )
    count = 3 * stages * microbatches * chunks
    if count > _MAX_OPERATIONS:
        raise UsageError(
            f"{texts.format_count(stages, 'stage')}, "
            f"{texts.format_count(microbatches, 'microbatch', 'microbatches')} and "
            f"{texts.format_count(chunks, 'chunk')} result in up to {count:,} operations, but only "
            f"{_MAX_OPERATIONS:,} can be simulated; use fewer microbatches"
        )
