"""The ideal: cost, makespan, ratios and memory of a schedule at given times, without delays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from bubbleviz.errors import UsageError
from bubbleviz.model import texts
from bubbleviz.model.memory_sizes import MemorySize, format_memory
from bubbleviz.model.restrictions import Restriction
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules import known
from bubbleviz.schedules.communication.deadlocks import makespan_of
from bubbleviz.schedules.communication.lowered import LoweredPlan
from bubbleviz.schedules.communication.transports import Transport
from bubbleviz.schedules.measured_times import StageTimes, ticks_of
from bubbleviz.schedules.plan import Memory, Plan, Schedule
from bubbleviz.schedules.plan_memory import peak_memory, within
from bubbleviz.schedules.simulation import Simulation, simulate
from bubbleviz.schedules.workload import Workload, check_workload, device_workload, phase_times

#: More operations than this take about a minute, at some 10 us each.
_MOST_OPERATIONS = 5_000_000
#: Metrics compare devices with each other, in a time that grows with the square of their number.
_MOST_STAGES = 5_000
#: What a caller gives of :class:`bubbleviz.schedules.plan.Memory`: the limit, M_B and M_W; None for
#: what the schedule is meant for, 1, and M_B or the share of it that the schedule's paper has.
GivenMemory = tuple[MemorySize | None, MemorySize | None, MemorySize | None]
_NOTHING = None, None, None


@dataclass(frozen=True, repr=False)
class Ideal:
    """A named schedule, simulated with equal or given stage times.

    Attributes:
        plan: what each device runs.
        simulation: when, in ticks of 1 ns / v, so that a chunk's share of a stage is exact.
        cost_ms: the longest of the devices' own windows (arXiv 2401.10241, section 5.3).
        makespan_ms: the window of all devices.
        stage_ratio: bubble ratio in the former; None where nothing takes time.
        schedule_ratio: bubble ratio in the latter.
        peak_activations: of each stage, the most microbatches whose F has run and whose W (or BW)
            has not; one of v chunks counts 1/v.
        memory: what a microbatch holds, and the limit if the plan was searched within one.
        peak_memory: of each stage, in the unit of ``memory``.
        restrictions: why measured times may not be those of a whole pipeline.
        carried_ms: makespan with the sends and receives that a file has; None without.
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

    @property
    def bubble_ratio(self) -> float | None:
        """The ratio of the window of all devices, as a report's headline; None as there."""
        return self.schedule_ratio

    def __dir__(self) -> list[str]:
        """Return what is public."""
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
    """The cost of a schedule by a formula, which gives no order: neither makespan nor memory.

    Attributes:
        name: of the formula.
        stages: p.
        microbatches: m.
        chunks: v.
        cost_ms: the longest of the devices' own windows.
        stage_ratio: bubble ratio in it; None where nothing takes time.
        restrictions: as in :class:`Ideal`.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    cost_ms: float
    stage_ratio: float | None
    restrictions: tuple[Restriction, ...] = ()

    @property
    def bubble_ratio(self) -> float | None:
        """The ratio in the longest window of a device, all that a formula gives."""
        return self.stage_ratio


def theory_names() -> list[str]:
    """Return the names of all schedules, and of formulas."""
    return sorted(rule.name for rule in (*known.SCHEDULES, *known.FORMULAS))


def check_name(name: str) -> None:
    """Check that a schedule or a formula has this name.

    Raises:
        UsageError: none has.
    """
    if name not in theory_names():
        raise known.unknown_schedule(name, theory_names())


def theory(
    name: str,
    stages: int,
    microbatches: int,
    times: StageTimes,
    chunks: int | None = None,
    *,
    memory: GivenMemory = _NOTHING,
    watch: Watch = unwatched,
) -> Ideal | Estimate:
    """Return the simulation of a schedule, or the estimate of a formula of that name.

    Raises:
        UsageError: as there, and where a formula is given more than it takes.
    """
    check_name(name)
    formula = known.formula_named(name)
    if formula is None:
        return ideal(name, stages, microbatches, times, chunks, memory=memory, watch=watch)
    if memory != _NOTHING:
        raise UsageError(f"{name} is a formula of times; leave the --memory options out")
    return estimate(formula, stages, microbatches, times, chunks)


def ideal(
    schedule: str,
    stages: int,
    microbatches: int,
    times: StageTimes,
    chunks: int | None = None,
    *,
    memory: GivenMemory = _NOTHING,
    of_makespan: bool = False,
    watch: Watch = unwatched,
) -> Ideal:
    """Return the simulation of a schedule at these times.

    Args:
        schedule: its name; see :func:`bubbleviz.schedules.known.schedules`.
        stages: number of devices, p.
        microbatches: number of microbatches, m.
        times: of the stages.
        chunks: model chunks per device, v; None for the schedule's usual number.
        memory: what activations take; a searched schedule keeps within the limit.
        of_makespan: whether a search is for the shortest makespan, rather than the shortest cost.
        watch: called with the share of a search that is done.

    Raises:
        UsageError: there is no such schedule, it does not allow these sizes, a time cannot be, or
            memory cannot be or is too little.
    """
    rule = known.schedule_named(schedule)
    v = rule.chunks if chunks is None else chunks
    _check_sizes(stages, microbatches, v)
    activations = _memory(rule, stages, memory)
    if rule.searched and activations.limit is not None:
        *ticks, transfer = ticks_of(stages, microbatches * v, times, v)
        placement = known.placement_of(rule, stages, v)
        workload = device_workload(placement, microbatches, ticks, transfer, activations)
        plan = known.searched_plan(rule.name, workload, makespan=of_makespan, watch=watch)
    else:
        plan = rule.plan(stages, microbatches, v)
    return ideal_of(plan, times, activations)


def ideal_of(plan: Plan, times: StageTimes, memory: Memory | None = None) -> Ideal:
    """Return the simulation of a plan at these times.

    Args:
        plan: what each device runs.
        times: of the stages.
        memory: what activations take; None counts them alone.

    Raises:
        MismatchError: an operation waits for ever for another.
        UsageError: a time cannot be.
    """
    v, activations = plan.chunks, memory or Memory()
    _check_sizes(plan.stages, plan.microbatches, v)
    simulation = simulate(plan, ideal_workload(plan, times))

    def peaks(backward: float, weight: float) -> tuple[float, ...]:
        of_stages = ((each,) * plan.virtual_stages for each in (backward, weight))
        return tuple(peak / v for peak in peak_memory(plan, *of_stages))

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


def carried_ideal(lowered: LoweredPlan, times: StageTimes, transport: Transport) -> Ideal:
    """Return the simulation of a plan whose sends and receives are known.

    Raises:
        MismatchError: it deadlocks.
        UsageError: a time cannot be.
    """
    workload = ideal_workload(lowered.plan, times)
    carried = makespan_of(lowered, workload, transport)
    return replace(ideal_of(lowered.plan, times), carried_ms=carried / lowered.plan.chunks / 1e6)


def ideal_workload(plan: Plan, times: StageTimes) -> Workload:
    """Return what the virtual stages of a plan take, in ticks of 1 ns / v.

    Where they stand as those of a measured run, they take what these do; stages of two replicas can
    stand so, and are whole ones.

    Raises:
        UsageError: a time cannot be.
        MismatchError: measured times are too long.
    """
    measured = times.measured
    if measured is not None and plan.replicas == 1 and measured.placement == plan.placement:
        v = plan.chunks
        forward, backward, weight, fused, down, up = (
            tuple(v * time_ns for time_ns in each)
            for each in (*phase_times(measured).values(), measured.down_ns, measured.up_ns)
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
    *ticks, transfer = ticks_of(plan.stages, plan.microbatches * plan.chunks, times, plan.chunks)
    workload = device_workload(
        plan.placement, plan.microbatches, ticks, transfer, replicas=plan.replicas
    )
    down_ns, up_ns = list(workload.down_ns), list(workload.up_ns)
    if measured is not None and measured.devices == plan.stages:
        # A link between two devices is as slow whatever stages stand on them.
        links: dict[tuple[int, int], int] = {}
        for s, (here, there) in enumerate(pairwise(measured.placement)):
            links[here, there], links[there, here] = measured.down_ns[s], measured.up_ns[s + 1]
        for s, (here, there) in enumerate(pairwise(plan.placement)):
            if (here, there) in links:
                down_ns[s] = plan.chunks * links[here, there]
                up_ns[s + 1] = plan.chunks * links[there, here]
    return replace(workload, down_ns=tuple(down_ns), up_ns=tuple(up_ns), lengths=times.lengths)


def estimate(
    formula: known.Formula,
    stages: int,
    microbatches: int,
    times: StageTimes,
    chunks: int | None = None,
) -> Estimate:
    """Return the estimate of a formula.

    Args:
        formula: of the cost.
        stages: number of devices, p.
        microbatches: number of microbatches, m.
        times: of the stages, which are all alike.
        chunks: model chunks per device, v; None for the usual number.

    Raises:
        UsageError: it does not allow these sizes, the stages differ, or a time cannot be.
    """
    v = formula.chunks if chunks is None else chunks
    _check_sizes(stages, microbatches, v)
    forward, backward, weight, transfer = ticks_of(stages, microbatches * v, times, 1)
    if any(len(set(each)) > 1 for each in (forward, backward, weight)):
        raise UsageError(
            f"{formula.name} is a formula of equal stages; give one time for all, or simulate "
            f"{formula.drawn}"
        )
    work = (forward[0] + backward[0] + weight[0]) / 1e6
    cost_ms = formula.cost(stages, microbatches, v, work, transfer / 1e6)
    ratio = 1 - microbatches * work / cost_ms if cost_ms else None
    return Estimate(formula.name, stages, microbatches, v, cost_ms, ratio)


def _memory(rule: Schedule, stages: int, given: GivenMemory) -> Memory:
    """Return the memory of activations, and the limit of a search.

    Raises:
        UsageError: one of the options cannot be, or there is a limit and nothing to search.
    """
    searched, (limit, memory_b, memory_w) = rule.searched, given
    for option, size in (("--memory-limit", limit), ("--memory-b", memory_b)):
        if size is not None and not size.amount:
            raise UsageError(f"{option}: 0 is not an amount of memory; give more")
    in_bytes = memory_b is not None and memory_b.in_bytes
    if any(size is not None and size.amount and size.in_bytes != in_bytes for size in given):
        raise UsageError(
            "--memory-limit, --memory-b and --memory-w are of different units; give all in bytes "
            "(--memory-b 2GB), or all as multiples of one unit"
        )
    backward = 1.0 if memory_b is None else memory_b.amount
    kept = searched.kept if searched else 1.0
    weight = kept * backward if memory_w is None else memory_w.amount
    whole = format_memory(backward, in_bytes=in_bytes)
    if weight > backward:
        part = format_memory(weight, in_bytes=in_bytes)
        raise UsageError(
            f"--memory-w: {part} is held on to W of the {whole} held to B; give 0 to {whole}"
        )
    if limit is not None and searched is None:
        names = ", ".join(each.name for each in known.SCHEDULES if each.searched)
        raise UsageError(
            f"{rule.name} has one order, whatever the memory; --memory-limit is for {names}"
        )
    most = None if limit is None else limit.amount
    if most is not None and not within(backward, most):
        raise UsageError(
            f"--memory-limit {format_memory(most, in_bytes=in_bytes)}: holds no microbatch, which "
            f"takes {whole}; give more"
        )
    if limit is None and searched and searched.limit:
        most = searched.limit(stages) * backward
    return Memory(most, backward, weight, in_bytes)


def _check_sizes(stages: int, microbatches: int, chunks: int) -> None:
    sizes = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{size} {name}: give at least one")
    if stages > _MOST_STAGES:
        raise UsageError(
            f"{stages:,} stages: at most {_MOST_STAGES:,} are simulated; give fewer, or the plan "
            "of one pipeline"
        )
    count = 3 * stages * microbatches * chunks
    if count > _MOST_OPERATIONS:
        raise UsageError(
            f"{texts.format_count(stages, 'stage')} with "
            f"{texts.format_count(microbatches, 'microbatch', 'microbatches')} of "
            f"{texts.format_count(chunks, 'chunk')} are up to {count:,} operations; at most "
            f"{_MOST_OPERATIONS:,} are simulated, give fewer microbatches"
        )
