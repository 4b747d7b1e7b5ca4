"""A planned run: what was measured of it, the memory it has, its best order, and what that wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.analyses.plan.carried_order import carried
from bubbleviz.errors import UsageError
from bubbleviz.model import memory_sizes
from bubbleviz.model.columns import Ints
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.restrictions import Restriction
from bubbleviz.progress import Watch, unwatched
from bubbleviz.report.restrictions import read_restrictions
from bubbleviz.report.run_times import memory_of_run, workload_of_run
from bubbleviz.report.saved import check_pipeline, read_summary
from bubbleviz.report.summarizing import summary_of
from bubbleviz.report.summary import RunSummary
from bubbleviz.report.timeline import restored
from bubbleviz.schedules import known, planning
from bubbleviz.schedules.communication.reordering import Communication
from bubbleviz.schedules.plan import MeasuredMemory, Plan, PlannedOperation
from bubbleviz.schedules.plan_memory import peak_memory, with_memory
from bubbleviz.schedules.simulation import Outcome, outcome_of
from bubbleviz.schedules.workload import Workload

if TYPE_CHECKING:
    from bubbleviz.report.report import Report

_COLUMNS = ("rank", "iteration", "phase", "microbatch", "virtual_stage", "start_ns")


@dataclass(frozen=True)
class MeasuredRun:
    """What is planned for.

    Attributes:
        source: the report's file, or the profiles'.
        workload: what virtual stages take.
        schedule: name of the one that ran; None where it was not recognised.
        ran: its order in the typical iteration: as recorded, or where a report lists no operations
            that of its schedule; None where that is not known.
        ran_ns: how long that took; None likewise.
        restrictions: why times may not be those of a whole pipeline.
        memory: of its virtual stages, in bytes; None where that was not measured.
        on_gpus: whether kernels were recorded, so that transfers are NCCL's.
        overlaps: whether its iterations overlap, so that one alone says little.
    """

    source: str
    workload: Workload
    schedule: str | None
    ran: Plan | None
    ran_ns: int | None
    restrictions: tuple[Restriction, ...] = ()
    memory: MeasuredMemory | None = None
    on_gpus: bool = False
    overlaps: bool = False


def of_saved(path: str) -> MeasuredRun:
    """Return the run of a JSON report.

    Raises:
        InputError: The file cannot be read, is no report, or is of no whole pipeline.
        MismatchError: The time of a virtual stage is unknown.
    """
    run = read_summary(path)
    operations = restored(path, run).tables["operations"]
    return _measured(path, check_pipeline(path, run), operations)


def of_report(report: Report, source: str) -> MeasuredRun:
    """Return the run of a report.

    Raises:
        InputError: The report is of no whole pipeline.
        MismatchError: The time of a virtual stage is unknown.
    """
    run = summary_of(report, by_rank=False, slowdown=False)
    operations = {name: getattr(report.operations, name) for name in _COLUMNS}
    return _measured(source, check_pipeline("the run", run), operations)


def _measured(source: str, run: RunSummary, operations: Mapping[str, Ints]) -> MeasuredRun:
    """Return a run with the plan that its typical iteration followed.

    Args:
        source: Path of the report, or of the profiles.
        run: Summary of the run.
        operations: Columns of its operations, by name; empty columns if they were not saved.
    """
    workload, name = workload_of_run(run), run.schedule_name
    plans: list[Plan] = []
    if planning.is_plannable(workload):
        plans = known.known_plans(workload.placement, workload.microbatches)
    ran = usual = next((plan for plan in plans if plan.name == name), None)
    typical = run.typical_iteration
    if len(operations["rank"]) and typical is not None:
        ran = order_that_ran(operations, typical, workload.placement, name or "the order that ran")
        if ran is not None and ran.microbatches != workload.microbatches:
            ran = None
        if ran is not None and usual is not None and ran.orders == usual.orders:
            # Times alone do not show which operations wait for each other to pass on results.
            ran = usual
    return MeasuredRun(
        source,
        workload,
        name,
        ran,
        run.makespan_ns,
        read_restrictions(run.restrictions),
        memory_of_run(run),
        any(profile.kernels for profile in run.profiles),
        overlaps=run.iterations_overlap,
    )


def order_that_ran(
    columns: Mapping[str, Ints], iteration: int, placement: tuple[int, ...], name: str
) -> Plan | None:
    """Return the plan that an iteration ran; None where it is no whole one.

    Of replicas, the first rank of each device is taken.

    Args:
        columns: of operations: rank, iteration, phase, microbatch, virtual_stage, start_ns.
        iteration: its number.
        placement: device of each virtual stage.
        name: of the plan.
    """
    worked = np.isin(columns["phase"], WORK) & (columns["iteration"] == iteration)
    worked &= columns["virtual_stage"] >= 0
    rows = np.flatnonzero(worked)
    rows = rows[np.lexsort((columns["start_ns"][rows], columns["rank"][rows]))]
    rank, stage = columns["rank"][rows], columns["virtual_stage"][rows]
    if not len(rows) or stage.max() >= len(placement):
        return None
    device = np.array(placement)[stage]
    phase, microbatch = columns["phase"][rows], columns["microbatch"][rows]
    numbers = np.unique(microbatch)
    if numbers[0] < 0 or not np.isin(phase, (Phase.F, Phase.B, Phase.W, Phase.BW)).all():
        return None
    orders = []
    for own in range(max(placement) + 1):
        mine = np.flatnonzero(device == own)
        if not len(mine):
            return None
        mine = mine[rank[mine] == rank[mine[0]]]
        cells = stage[mine], phase[mine], np.searchsorted(numbers, microbatch[mine])
        rows_of = list(zip(*(column.tolist() for column in cells), strict=True))
        apart = {(s, mb) for s, kind, mb in rows_of if kind == Phase.W}
        orders.append(
            tuple(
                # A B without its W is the whole backward.
                PlannedOperation(
                    s, Phase.BW if kind == Phase.B and (s, mb) not in apart else Phase(kind), mb
                )
                for s, kind, mb in rows_of
            )
        )
    plan = Plan(
        name, len(orders), len(numbers), len(placement) // len(orders), placement, tuple(orders)
    )
    # Each virtual stage runs F and a backward of each microbatch, once.
    phases: dict[tuple[int, int], list[Phase]] = {}
    for op in (op for order in plan.orders for op in order):
        phases.setdefault((op.virtual_stage, op.microbatch), []).append(op.phase)
    whole = len(phases) == plan.virtual_stages * plan.microbatches
    good = ([Phase.F, Phase.BW], [Phase.F, Phase.B, Phase.W])
    return plan if whole and all(each in good for each in phases.values()) else None


#: Value of ``--memory-limit`` that sets none.
UNLIMITED = "none"
#: A workload with activations and the limits of devices; whether these are bytes, else microbatches
#: of a whole stage or a unit given; whether the limit is what the order that ran took at most; and
#: what each device was measured to hold beside activations, in bytes, which limits leave out (empty
#: where that is not known, or plays no part).
LimitedWorkload = tuple[Workload, bool, bool, tuple[float, ...]]


def limited_workload(
    run: MeasuredRun,
    limit: str | None = None,
    backward: str | None = None,
    weight: str | None = None,
) -> LimitedWorkload:
    """Return the workload of a run with its memory.

    Without a limit, devices have what the one with most took in the order that ran, if that is
    known: as much is there for sure.

    Args:
        run: what was measured.
        limit: of a device, or ``none``, as written; see :func:`.memory_sizes.parse_memory`.
        backward: M_B, what one microbatch holds on a whole stage from F to B; None as measured.
        weight: M_W, the part of it held until W; None for all of it.

    Raises:
        UsageError: an option is no amount, they are of different units, or what was measured would
            be mixed with what is given.
    """
    measured = run.memory if backward is None else None
    if measured is None:
        workload, in_bytes = _with_given_memory(run.workload, backward, weight)
    elif weight is not None:
        raise UsageError(
            f"--memory-w {weight}: activations were measured; give --memory-b, too, or leave it out"
        )
    else:
        workload, in_bytes = with_memory(run.workload, measured, None), True
    if limit is None and run.ran is not None:
        most = max(peak_memory(run.ran, workload.activation, workload.kept))
        workload = replace(workload, limit=(most,) * workload.devices)
        return workload, in_bytes, True, ()
    if limit not in {None, UNLIMITED}:
        size = memory_sizes.parse_memory(limit, "--memory-limit")
        if size.in_bytes != in_bytes:
            unit = (
                "units of M_B, as the report holds no bytes of them; give --memory-b in bytes, too"
            )
            if in_bytes:
                unit = "bytes; give one such as 80GB"
            elif backward is not None:
                unit = f"the unit of --memory-b {backward}; give that in bytes, too"
            raise UsageError(f"--memory-limit {limit}: activations are in {unit}")
        if measured is not None:
            workload = with_memory(workload, measured, size.amount)
        else:
            workload = replace(workload, limit=(size.amount,) * workload.devices)
    return workload, in_bytes, False, measured.resident if measured else ()


def _with_given_memory(
    workload: Workload, backward: str | None, weight: str | None
) -> tuple[Workload, bool]:
    """Return the workload with the activations that are given, and whether they are bytes."""
    if backward is None and weight is None:
        return workload, False
    whole = memory_sizes.MemorySize(1.0, in_bytes=False)
    if backward is not None:
        whole = memory_sizes.parse_memory(backward, "--memory-b")
    rest = whole if weight is None else memory_sizes.parse_memory(weight, "--memory-w")
    if rest.in_bytes != whole.in_bytes:
        raise UsageError("--memory-b and --memory-w are of different units; give both in bytes")
    if not 0 <= rest.amount <= whole.amount or not whole.amount:
        raise UsageError(
            f"--memory-w: {rest.amount:g} is held on to W of the {whole.amount:g} held to B; give "
            f"0 to {whole.amount:g}"
        )
    chunks = [workload.placement.count(device) for device in workload.placement]
    return (
        replace(
            workload,
            activation=tuple(whole.amount / each for each in chunks),
            kept=tuple(rest.amount / each for each in chunks),
        ),
        whole.in_bytes,
    )


@dataclass(frozen=True)
class PlannedRun:
    """A plan for a run.

    Attributes:
        run: what was measured.
        workload: what was planned, with its memory; the next three are of
            :func:`limited_workload`, too.
        in_bytes: whether its memory is in bytes.
        of_run: whether its limit is of the order that ran.
        resident: what devices hold beside activations.
        best: the best order, and all that were considered.
        own: the order that ran, simulated at the same times; None where it is not known, or has
            another number of microbatches.
        communication: of the best order, where transfers of two ranks run one after the other.
    """

    run: MeasuredRun
    workload: Workload
    in_bytes: bool
    of_run: bool
    resident: tuple[float, ...]
    best: planning.BestPlan
    own: Outcome | None
    communication: Communication

    @property
    def saving(self) -> float | None:
        """The share of the simulated run that the best order saves."""
        if self.own is None or not self.own.makespan_ns:
            return None
        return 1 - self.best.length_ns(self.best.best) / self.best.length_ns(self.own)

    @property
    def off(self) -> float | None:
        """How much longer the run was than its simulation, as a share of that."""
        if self.own is None or not self.own.makespan_ns or self.run.ran_ns is None:
            return None
        return self.run.ran_ns / self.own.makespan_ns - 1

    @property
    def expected_ns(self) -> int:
        """How long the best order takes if it is as far off its simulation as the run was."""
        return round(self.best.length_ns(self.best.best) * (1 + (self.off or 0.0)))


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
    """Return the best order for a run.

    Args:
        run: what was measured.
        microbatches: of an iteration; None for as many as ran.
        memory_limit: of a device, ``memory_b`` and ``memory_w`` of activations; see
            :func:`limited_workload`.
        memory_b: M_B.
        memory_w: M_W.
        split: whether orders may split the backward in its two halves; None for what the run does.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: the memory holds no microbatch, or there are too many operations.
    """
    limited = limited_workload(run, memory_limit, memory_b, memory_w)
    workload, in_bytes, of_run, resident = limited
    workload = replace(workload, microbatches=microbatches or workload.microbatches)
    own = None
    if run.ran is not None and run.ran.microbatches == workload.microbatches:
        own = outcome_of(run.ran, workload)
    given = () if own is None else (own,)
    best = planning.best_plan(workload, given, split=split, makespan=not run.overlaps, watch=watch)
    chosen, communication = carried(best, queued=run.on_gpus)
    best = replace(best, best=chosen)
    return PlannedRun(run, workload, in_bytes, of_run, resident, best, own, communication)
