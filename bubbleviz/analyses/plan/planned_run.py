"""Plans a measured run: finds the best order for its times and memory, and the time saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bubbleviz.analyses.plan.carried_order import choose_with_communication
from bubbleviz.errors import UsageError
from bubbleviz.model import memory_sizes
from bubbleviz.model.columns import Ints
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.restrictions import Restriction
from bubbleviz.progress import Watch, unwatched
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.run_times import measure_run_memory, measure_workload
from bubbleviz.report.saved import check_pipeline, read_summary
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import RunSummary
from bubbleviz.report.timeline import read_timeline
from bubbleviz.schedules import known, planning
from bubbleviz.schedules.communication.reordering import Communication
from bubbleviz.schedules.plan import MeasuredMemory, Order, Plan, PlannedOperation
from bubbleviz.schedules.plan_memory import compute_peak_memory, set_memory
from bubbleviz.schedules.simulation import Outcome, simulate_outcome
from bubbleviz.schedules.workload import Workload

if TYPE_CHECKING:
    from bubbleviz.report.report import Report

_COLUMNS = ("rank", "iteration", "phase", "microbatch", "virtual_stage", "start_ns")


@dataclass(frozen=True)
class MeasuredRun:
    """A measured run, the input of the planning.

    Attributes:
        source: Path to the report or to the profiles.
        workload: Times and memory of the virtual stages.
        schedule: Name of the run's schedule, or None if the schedule was not recognized.
        executed_plan: Order of the operations in the typical iteration, or None if this iteration
            is incomplete. If the report lists no operations, this is the order of the recognized
            schedule, or None if the schedule is unknown.
        makespan_ns: Time from the first start to the last end of the typical iteration, or None if
            unknown.
        restrictions: Reasons why the measured times may not cover a complete pipeline.
        memory: Memory of the virtual stages in bytes, or None if not measured.
        on_gpus: Whether kernels were recorded. Transfers are then assumed to go through NCCL.
        overlaps: Whether consecutive iterations overlap. If they do, the makespan of a single
            iteration says little about the speed of the run.
        cost_ns: Longest time from the first start to the last end on a single rank in the typical
            iteration, or None if unknown.
    """

    source: str
    workload: Workload
    schedule: str | None
    executed_plan: Plan | None
    makespan_ns: int | None
    restrictions: tuple[Restriction, ...] = ()
    memory: MeasuredMemory | None = None
    on_gpus: bool = False
    overlaps: bool = False
    cost_ns: int | None = None


def load_run(path: str) -> MeasuredRun:
    """Load a run from a saved JSON report.

    Raises:
        InputError: The file cannot be read, is not a report, or does not contain a complete
            pipeline.
        MismatchError: The time of a virtual stage is unknown.
    """
    run = read_summary(path)
    operations = read_timeline(path, run).tables["operations"]
    return _make_run(path, check_pipeline(path, run), operations)


def extract_run(report: Report, source: str) -> MeasuredRun:
    """Extract the run from a report that is in memory.

    Args:
        report: The report.
        source: Path to name in messages.

    Raises:
        InputError: The report does not contain a complete pipeline.
        MismatchError: The time of a virtual stage is unknown.
    """
    run = summarize(report, by_rank=False, slowdown=False)
    operations = {name: getattr(report.operations, name) for name in _COLUMNS}
    return _make_run(source, check_pipeline("the run", run), operations)


def _make_run(source: str, run: RunSummary, operations: Mapping[str, Ints]) -> MeasuredRun:
    """Build a measured run from a summary, and determine the plan that the run executed.

    The first rule that applies decides:

    - If no operations were saved, or if there is no typical iteration, the run is assumed to have
      executed the plan of the recognized schedule.
    - If the operations ran in the order of the recognized schedule, the run also executed the
      schedule's plan, which states which operations run concurrently.
    - Otherwise, the run executed the order in which the operations of the typical iteration ran.

    The plan is None if the typical iteration is incomplete, or if the plan's number of microbatches
    differs from the workload's.

    Args:
        source: Path to the report or to the profiles.
        run: Summary of the run.
        operations: Columns of the run's operations, keyed by name. The columns are empty if the
            operations were not saved.
    """
    workload, name = measure_workload(run), run.schedule_name
    plans: list[Plan] = []
    if planning.is_plannable(workload):
        plans = known.list_plans(workload.placement, workload.microbatches)
    schedule_plan = next((plan for plan in plans if plan.name == name), None)
    executed_plan = schedule_plan
    typical = run.typical_iteration
    if len(operations["rank"]) and typical is not None:
        plan_name = name or "the order that ran"
        executed_plan = find_executed_plan(operations, typical, workload.placement, plan_name)
    if executed_plan is not None and executed_plan.microbatches != workload.microbatches:
        executed_plan = None
    if (
        executed_plan is not None
        and schedule_plan is not None
        and executed_plan.orders == schedule_plan.orders
    ):
        # Only the schedule's plan says which operations run concurrently.
        executed_plan = schedule_plan
    return MeasuredRun(
        source,
        workload,
        name,
        executed_plan,
        run.makespan_ns,
        read_restrictions(run.restrictions),
        measure_run_memory(run),
        any(profile.kernels for profile in run.profiles),
        overlaps=run.iterations_overlap,
        cost_ns=None if run.typical is None else run.typical.window_ns.get("stage"),
    )


def find_executed_plan(
    columns: Mapping[str, Ints], iteration: int, placement: tuple[int, ...], name: str
) -> Plan | None:
    """Find the order in which each device ran the operations in one iteration.

    If several ranks run the same stages (data-parallel replicas), the rank with the lowest number
    is used. Microbatches are renumbered from 0, and a B without a W becomes a BW.

    Args:
        columns: Columns of all operations: ``rank``, ``iteration``, ``phase``, ``microbatch``,
            ``virtual_stage`` and ``start_ns``.
        iteration: Number of the iteration.
        placement: Device of each virtual stage.
        name: Name of the plan.

    Returns:
        The plan, or None if the iteration is incomplete. An iteration is complete if every virtual
        stage runs each microbatch exactly once, forward and backward.
    """
    rows = _select_work(columns, iteration)
    stage, phase = columns["virtual_stage"][rows], columns["phase"][rows]
    if not len(rows) or stage.max() >= len(placement):
        return None
    numbers, microbatch = np.unique(columns["microbatch"][rows], return_inverse=True)
    if numbers[0] < 0 or not np.isin(phase, (Phase.F, Phase.B, Phase.W, Phase.BW)).all():
        return None

    device, rank = np.array(placement)[stage], columns["rank"][rows]
    orders = []
    for number in range(max(placement) + 1):
        device_rows = np.flatnonzero(device == number)
        if not len(device_rows):
            return None
        device_rows = device_rows[rank[device_rows] == rank[device_rows[0]]]
        orders.append(_make_order(stage[device_rows], phase[device_rows], microbatch[device_rows]))
    chunks = len(placement) // len(orders)
    plan = Plan(name, len(orders), len(numbers), chunks, placement, tuple(orders))
    return plan if _is_complete(plan) else None


def _select_work(columns: Mapping[str, Ints], iteration: int) -> Ints:
    """Return the rows of an iteration's work on known virtual stages, sorted by (rank, start).

    Args:
        columns: Columns of all operations, as for :func:`find_executed_plan`.
        iteration: Number of the iteration.
    """
    is_work = np.isin(columns["phase"], WORK) & (columns["iteration"] == iteration)
    rows = np.flatnonzero(is_work & (columns["virtual_stage"] >= 0))
    order: Ints = np.lexsort((columns["start_ns"][rows], columns["rank"][rows]))
    return rows[order]


def _make_order(stage: Ints, phase: Ints, microbatch: Ints) -> Order:
    """Convert a device's operations to planned operations. A B without its W becomes a BW."""
    operations = list(zip(stage.tolist(), phase.tolist(), microbatch.tolist(), strict=True))
    split = {(s, mb) for s, kind, mb in operations if kind == Phase.W}
    return tuple(
        PlannedOperation(
            s, Phase.BW if kind == Phase.B and (s, mb) not in split else Phase(kind), mb
        )
        for s, kind, mb in operations
    )


def _is_complete(plan: Plan) -> bool:
    """Return whether each virtual stage runs each microbatch exactly once, forward and backward.

    The operations of a microbatch on a virtual stage must be F and BW, or F, B and W, in this
    order.
    """
    phases: dict[tuple[int, int], list[Phase]] = {}
    for order in plan.orders:
        for op in order:
            phases.setdefault((op.virtual_stage, op.microbatch), []).append(op.phase)
    allowed = ([Phase.F, Phase.BW], [Phase.F, Phase.B, Phase.W])
    is_full = len(phases) == plan.virtual_stages * plan.microbatches
    return is_full and all(sequence in allowed for sequence in phases.values())


#: Value of ``--memory-limit`` that means no limit.
UNLIMITED = "none"


class LimitedWorkload(NamedTuple):
    """A workload with its activation memory and the memory limit of its devices.

    Attributes:
        workload: The workload, including its activation memory and memory limits.
        in_bytes: Whether the workload's memory is in bytes. If not, the unit is M_B (the
            activations of one microbatch on a complete stage) or a unit that the user chose.
        limit_is_from_run: Whether the limit is the peak memory of the order that the run used.
        resident: Bytes that each device uses in addition to activations, which are already
            subtracted from the memory limits. Empty if unknown or not needed.
    """

    workload: Workload
    in_bytes: bool
    limit_is_from_run: bool
    resident: tuple[float, ...]


def resolve_memory(
    run: MeasuredRun,
    limit: str | None = None,
    backward: str | None = None,
    weight: str | None = None,
) -> LimitedWorkload:
    """Determine the activation memory and the memory limit from a run and the user's options.

    If the user gives no limit, the limit is the highest peak memory of any device in the order that
    the run used. Every device is certain to have that much memory. If that order is unknown, there
    is no limit.

    If the user gives a limit and memory was measured, the resident memory of each device is
    subtracted from the limit.

    Args:
        run: The measured run.
        limit: Memory limit per device as the user wrote it, or ``none``; see
            :func:`.memory_sizes.parse_memory`.
        backward: M_B, the memory of one microbatch on a complete stage from F to the end of B, or
            None to use the measured memory.
        weight: M_W, the part of M_B that is kept until the end of W, or None if all of M_B is kept.

    Raises:
        UsageError: An option is not a valid memory size, the units differ, or ``weight`` is given
            without ``backward`` although memory was measured.
    """
    measured = run.memory if backward is None else None
    if measured is None:
        workload, in_bytes = _set_activation_memory(run.workload, backward, weight)
    elif weight is not None:
        raise UsageError(
            f"--memory-w {weight}: the report contains measured activations; pass --memory-b as "
            "well, or remove --memory-w"
        )
    else:
        workload, in_bytes = set_memory(run.workload, measured, None), True
    if limit is None and run.executed_plan is not None:
        peaks = compute_peak_memory(
            run.executed_plan, workload.activation, workload.weight_activation
        )
        workload = replace(workload, limit=(max(peaks),) * workload.devices)
        return LimitedWorkload(workload, in_bytes, True, ())
    if limit not in {None, UNLIMITED}:
        size = memory_sizes.parse_memory(limit, "--memory-limit")
        if size.in_bytes != in_bytes:
            raise UsageError(f"--memory-limit {limit}: {_explain_unit(in_bytes, backward)}")
        if measured is not None:
            workload = set_memory(workload, measured, size.amount)
        else:
            workload = replace(workload, limit=(size.amount,) * workload.devices)
    return LimitedWorkload(workload, in_bytes, False, measured.resident if measured else ())


def _explain_unit(in_bytes: bool, backward: str | None) -> str:
    """Return a clause that states the unit of activations and how to give a limit in that unit.

    Args:
        in_bytes: Whether the activations are in bytes.
        backward: Value of ``--memory-b``, or None if it was not given.
    """
    if in_bytes:
        return "activations are in bytes; pass a size such as 80GB"
    if backward is not None:
        return (
            f"activations are in the unit of --memory-b {backward}; pass --memory-b in bytes as "
            "well"
        )
    return (
        "activations are in units of M_B, because the report contains no memory in bytes; pass "
        "--memory-b in bytes as well"
    )


def _set_activation_memory(
    workload: Workload, backward: str | None, weight: str | None
) -> tuple[Workload, bool]:
    """Set the activation memory of a workload from ``--memory-b`` and ``--memory-w``.

    Returns:
        workload: The workload, unchanged if neither option is given. The memory of a complete stage
            is divided equally among the chunks of a device.
        in_bytes: Whether the workload's memory is in bytes.

    Raises:
        UsageError: An option is not a valid memory size, the units differ, or M_W exceeds M_B.
    """
    if backward is None and weight is None:
        return workload, False
    activation = memory_sizes.MemorySize(1.0, in_bytes=False)
    if backward is not None:
        activation = memory_sizes.parse_memory(backward, "--memory-b")
    kept_until_w = activation
    if weight is not None:
        kept_until_w = memory_sizes.parse_memory(weight, "--memory-w")
    if kept_until_w.in_bytes != activation.in_bytes:
        raise UsageError("--memory-b and --memory-w have different units; pass both in bytes")
    if not activation.amount:
        raise UsageError("--memory-b: must be more than 0")
    if not 0 <= kept_until_w.amount <= activation.amount:
        raise UsageError(
            f"--memory-w: M_W ({kept_until_w.amount:g}) cannot exceed M_B ({activation.amount:g})"
        )
    chunks = [workload.placement.count(device) for device in workload.placement]
    return (
        replace(
            workload,
            activation=tuple(activation.amount / n_chunks for n_chunks in chunks),
            weight_activation=tuple(kept_until_w.amount / n_chunks for n_chunks in chunks),
        ),
        activation.in_bytes,
    )


@dataclass(frozen=True)
class PlannedRun:
    """The result of planning a run.

    Attributes:
        run: The measured run.
        workload: The planned workload, including its memory.
        in_bytes: Whether the workload's memory is in bytes; see :class:`LimitedWorkload`.
        limit_is_from_run: Whether the memory limit is the peak memory of the order that the run
            used.
        resident: Memory that each device uses in addition to activations, in bytes, or empty.
        best: The best order, along with all orders that were considered.
        executed: The order that the run used, simulated with the same times, or None if the order
            is unknown or has a different number of microbatches.
        communication: Messages of the best order, and its makespan if transfers between two ranks
            run one after the other.
    """

    run: MeasuredRun
    workload: Workload
    in_bytes: bool
    limit_is_from_run: bool
    resident: tuple[float, ...]
    best: planning.BestPlan
    executed: Outcome | None
    communication: Communication

    @property
    def saving(self) -> float | None:
        """Fraction of the executed order's simulated time that the best order saves.

        None if the executed order is unknown.
        """
        if self.executed is None or not self.executed.makespan_ns:
            return None
        return 1 - self.best.length_ns(self.best.best) / self.best.length_ns(self.executed)

    @property
    def simulation_error(self) -> float | None:
        """Relative error of the simulation, (measured - simulated) / simulated.

        Both times are in the window used to compare orders. The result is None if the executed
        order or the measured time is unknown.
        """
        if self.executed is None or self.measured_ns is None:
            return None
        simulated_ns = self.best.length_ns(self.executed)
        return self.measured_ns / simulated_ns - 1 if simulated_ns else None

    @property
    def measured_ns(self) -> int | None:
        """Time of the typical iteration in the window used to compare orders, or None if unknown.

        See ``by_makespan`` of :class:`.BestPlan`.
        """
        return self.run.makespan_ns if self.best.by_makespan else self.run.cost_ns

    @property
    def expected_ns(self) -> int:
        """Simulated time of the best order in ns, corrected by the simulation error.

        The time is not corrected if the simulation error is unknown, or if the run overlapped
        operations: plans run one operation at a time, so their simulation has another error.
        """
        error = 0.0 if self.has_overlapped_operations else self.simulation_error or 0.0
        return round(self.best.length_ns(self.best.best) * (1 + error))

    @property
    def has_overlapped_operations(self) -> bool:
        """Whether the executed order runs forwards together with backwards."""
        return self.executed is not None and bool(self.executed.plan.together)


#: Share of the search for orders in the progress of planning. The rest is the search for messages.
_SEARCH_SHARE = 0.6


def plan_run(
    run: MeasuredRun,
    *,
    microbatches: int | None = None,
    memory_limit: str | None = None,
    memory_b: str | None = None,
    memory_w: str | None = None,
    split: bool | None = None,
    watch: Watch = unwatched,
) -> PlannedRun:
    """Find the best order for a run.

    Args:
        run: The measured run.
        microbatches: Number of microbatches per iteration, or None to use the run's number.
        memory_limit: Memory limit per device; see ``limit`` of :func:`resolve_memory`.
        memory_b: M_B, the activations of a microbatch on a complete stage, or None to use the
            measured memory.
        memory_w: M_W, the part of M_B that is kept until the end of W, or None if all of M_B is
            kept.
        split: Whether orders may split the backward into B and W. None allows splitting if the run
            itself splits its backward.
        watch: Callback that receives the completed fraction of the work.

    Raises:
        UsageError: The memory is too small for one microbatch, or the plan has too many operations.
    """
    workload, in_bytes, limit_is_from_run, resident = resolve_memory(
        run, memory_limit, memory_b, memory_w
    )
    workload = replace(workload, microbatches=microbatches or workload.microbatches)
    executed = None
    if run.executed_plan is not None and run.executed_plan.microbatches == workload.microbatches:
        executed = simulate_outcome(run.executed_plan, workload)
    initial_orders = () if executed is None else (executed,)
    best = planning.find_best_plan(
        workload,
        initial_orders,
        split=split,
        by_makespan=not run.overlaps,
        watch=lambda fraction: watch(_SEARCH_SHARE * fraction),
    )
    best_outcome, communication = choose_with_communication(
        best,
        queued=run.on_gpus,
        watch=lambda fraction: watch(_SEARCH_SHARE + (1 - _SEARCH_SHARE) * fraction),
    )
    best = replace(best, best=best_outcome)
    return PlannedRun(
        run, workload, in_bytes, limit_is_from_run, resident, best, executed, communication
    )
