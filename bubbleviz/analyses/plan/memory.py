"""Memory: what activations take and devices have, as measured or given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bubbleviz.analyses.plan.ran_order import order_that_ran
from bubbleviz.analyses.plan.zero_bubble import carried
from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.columns import Ints
from bubbleviz.model.limitations import Restriction
from bubbleviz.model.memory_sizes import MemorySize, parse_memory
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.report.memory import UNKNOWN, measured_memory
from bubbleviz.report.saved import read_document, read_times
from bubbleviz.schedules.communication.reordering import Communication
from bubbleviz.schedules.known import known_plans
from bubbleviz.schedules.memory_use import MeasuredMemory, with_memory
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.planning import BestPlan, PlanOptions, best_plan
from bubbleviz.schedules.workload import (
    Outcome,
    PlacedTimes,
    Workload,
    measured_workload,
    outcome_of,
    peak_memory,
)

if TYPE_CHECKING:
    from bubbleviz.report.report import Report


# A measured run, as a report has it: its workload, the order that ran, and how long that took.


#: The ratio that is quoted where iterations overlap.
OVERLAPPING = "period"
_COLUMNS = ("rank", "iteration", "phase", "microbatch", "virtual_stage", "start_ns")


@frozen
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
        InputError: it cannot be read, is no report, or of no whole pipeline.
        MismatchError: it lacks the times of a virtual stage.
    """
    times = read_times(path)
    saved = read_document(path)
    workload = measured_workload(times.kinds, times.transfer_ns, times.microbatches)
    document = saved.document
    columns: Mapping[str, Ints] | None = None
    if saved.timeline is not None:
        operations = saved.timeline.tables["operations"]
        columns = {name: np.array(operations[name], np.int64) for name in _COLUMNS}
    typical = document["typical_iteration"]
    return MeasuredRun(
        path,
        workload,
        times.schedule,
        _ran(columns, typical, workload, times.schedule),
        _measured_ns(document["what_if"]),
        times.restrictions,
        times.memory,
        on_gpus=any(profile.get("kernels") for profile in document["profiles"]),
        overlaps=document.get("headline") == OVERLAPPING,
    )


def of_report(report: Report, source: str) -> MeasuredRun:
    """Return the run of a report.

    Raises:
        MismatchError: it is of no whole pipeline, or lacks the times of a virtual stage.
    """
    restrictions = report.restrictions
    apart = next((one.no_pipeline for one in restrictions if one.no_pipeline is not None), None)
    if apart is not None:
        raise MismatchError(
            f"{apart}, so there is no pipeline to plan; give the profiles of all stages"
        )
    typical, times = report.typical_iteration(), report.explanation.phase_times
    kinds: Sequence[PlacedTimes] = times.kinds
    microbatches = None if typical is None else typical.microbatches
    workload = measured_workload(kinds, times.transfer_ns, microbatches)
    columns = {name: getattr(report.operations, name) for name in _COLUMNS}
    name = None if report.schedule is None else report.schedule.name
    index = None if typical is None else typical.index
    what_if = [
        {"name": change.name, "makespan_ns": change.makespan_ns}
        for change in report.explanation.what_if
    ]
    return MeasuredRun(
        source,
        workload,
        name,
        _ran(columns, index, workload, name),
        _measured_ns(what_if),
        restrictions,
        _memory(report),
        on_gpus=any(profile.kernels for profile in report.profiles),
        overlaps=report.headline == OVERLAPPING,
    )


def _memory(report: Report) -> MeasuredMemory | None:
    """Return what the virtual stages of a report hold."""
    if report.memory is None:
        return None
    ranks = {r.index: UNKNOWN if r.stage is None else r.stage for r in report.ranks}
    kinds = report.explanation.phase_times.kinds
    return measured_memory(report.memory, ranks, {k.virtual_stage: k.stage for k in kinds})


def _ran(
    columns: Mapping[str, Ints] | None, typical: int | None, workload: Workload, name: str | None
) -> Plan | None:
    """Return the order of the typical iteration; None where it is not known."""
    if columns is None or typical is None:
        return _known_order(workload, name)
    plan = order_that_ran(columns, typical, workload.placement, name or "the order that ran")
    return plan if plan is not None and plan.microbatches == workload.microbatches else None


def _known_order(workload: Workload, name: str | None) -> Plan | None:
    """Return the order of a schedule that has one; None for any other."""
    plans = known_plans(workload.placement, workload.microbatches)
    return next((plan for plan in plans if plan.name == name), None)


def _measured_ns(what_if: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how long the typical iteration took."""
    rows = [row["makespan_ns"] for row in what_if if row.get("name") == "measured"]
    return int(rows[0]) if rows else None


#: Value of ``--memory-limit`` that sets none.
UNLIMITED = "none"


@frozen
class MemoryChoice:
    """The memory options, as they were written; see :func:`.memory_sizes.parse_memory`.

    Attributes:
        limit: of a device, or ``none``; None for what the run took at most.
        backward: M_B, what one microbatch holds on a whole stage from F to B; None as measured.
        weight: M_W, the part of it held until W; None for all of it.
    """

    limit: str | None = None
    backward: str | None = None
    weight: str | None = None


@frozen
class LimitedWorkload:
    """A workload with its memory.

    Attributes:
        workload: with activations, and the limits of devices.
        in_bytes: whether these are bytes; else microbatches of a whole stage, or a unit given.
        of_run: whether the limit is what the order that ran took at most.
        resident: by device: what it was measured to hold beside activations, in bytes; the limits
            are of the rest. Empty where that is not known, or plays no part.
    """

    workload: Workload
    in_bytes: bool
    of_run: bool
    resident: tuple[float, ...] = ()


def limited_workload(run: MeasuredRun, choice: MemoryChoice) -> LimitedWorkload:
    """Return the workload of a run with its memory.

    Without a limit, devices have what the one with most took in the order that ran, if that is
    known: as much is there for sure.

    Raises:
        UsageError: an option is no amount, they are of different units, or what was measured would
            be mixed with what is given.
    """
    measured = _measured(run, choice)
    if measured is None:
        workload, in_bytes = _given(run.workload, choice)
    else:
        workload, in_bytes = with_memory(run.workload, measured, None), True
    resident = () if measured is None else measured.resident
    if choice.limit == UNLIMITED:
        return LimitedWorkload(workload, in_bytes, of_run=False, resident=resident)
    if choice.limit is not None:
        size = parse_memory(choice.limit, "--memory-limit")
        if size.in_bytes != in_bytes:
            raise UsageError(
                f"--memory-limit {choice.limit}: activations are in {_unit(in_bytes, choice)}"
            )
        if measured is not None:
            workload = with_memory(workload, measured, size.amount)
        else:
            workload = replace(workload, limit=(size.amount,) * workload.devices)
        return LimitedWorkload(workload, in_bytes, of_run=False, resident=resident)
    if run.ran is None:
        return LimitedWorkload(workload, in_bytes, of_run=False, resident=resident)
    most = max(peak_memory(run.ran, workload))
    return LimitedWorkload(
        replace(workload, limit=(most,) * workload.devices), in_bytes, of_run=True
    )


def _measured(run: MeasuredRun, choice: MemoryChoice) -> MeasuredMemory | None:
    """Return what was measured; None where nothing was, or activations are given.

    Raises:
        UsageError: M_W is given and M_B measured.
    """
    if run.memory is None or choice.backward is not None:
        return None
    if choice.weight is not None:
        raise UsageError(
            f"--memory-w {choice.weight}: activations were measured; give --memory-b, too, or "
            "leave it out"
        )
    return run.memory


def _unit(in_bytes: bool, choice: MemoryChoice) -> str:
    """Return the unit of activations, and what to give for a limit of another."""
    if in_bytes:
        return "bytes; give one such as 80GB"
    if choice.backward is not None:
        return f"the unit of --memory-b {choice.backward}; give that in bytes, too"
    return "units of M_B, as the report holds no bytes of them; give --memory-b in bytes, too"


def _given(workload: Workload, choice: MemoryChoice) -> tuple[Workload, bool]:
    """Return the workload with the activations that are given, and whether they are bytes."""
    if choice.backward is None and choice.weight is None:
        return workload, False
    whole = MemorySize(1.0, in_bytes=False)
    if choice.backward is not None:
        whole = parse_memory(choice.backward, "--memory-b")
    rest = whole if choice.weight is None else parse_memory(choice.weight, "--memory-w")
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


# A planned run: the best order for what was measured, and what it wins.


@frozen
class PlannedRun:
    """A plan for a run.

    Attributes:
        run: what was measured.
        memory: the workload that was planned, with its memory.
        best: the best order, and all that were considered.
        own: the order that ran, simulated at the same times; None where it is not known, or has
            another number of microbatches.
        communication: of the best order, where transfers of two ranks run one after the other.
    """

    run: MeasuredRun
    memory: LimitedWorkload
    best: BestPlan
    own: Outcome | None
    communication: Communication

    @property
    def saving(self) -> float | None:
        """The share of the simulated run that the best order saves."""
        if self.own is None or not self.own.makespan_ns:
            return None
        return 1 - self.best.best.outcome.makespan_ns / self.own.makespan_ns

    @property
    def off(self) -> float | None:
        """How much longer the run was than its simulation, as a share of that."""
        if self.own is None or not self.own.makespan_ns or self.run.ran_ns is None:
            return None
        return self.run.ran_ns / self.own.makespan_ns - 1

    @property
    def expected_ns(self) -> int:
        """How long the best order takes if it is as far off its simulation as the run was."""
        return round(self.best.best.outcome.makespan_ns * (1 + (self.off or 0.0)))


def plan_run(
    run: MeasuredRun,
    *,
    microbatches: int | None = None,
    memory: MemoryChoice | None = None,
    options: PlanOptions | None = None,
    watch: Watch = unwatched,
) -> PlannedRun:
    """Return the best order for a run.

    Args:
        run: what was measured.
        microbatches: of an iteration; None for as many as ran.
        memory: of activations, and of devices.
        options: how to plan.
        watch: called with the share of the search that is done.

    Raises:
        UsageError: the memory holds no microbatch, or there are too many operations.
    """
    limited = limited_workload(run, memory or MemoryChoice())
    if microbatches is not None:
        workload = replace(limited.workload, microbatches=microbatches)
        limited = replace(limited, workload=workload)
    workload = limited.workload
    own = None
    if run.ran is not None and run.ran.microbatches == workload.microbatches:
        own = outcome_of(run.ran, workload)
    given = () if own is None else (own,)
    best = best_plan(workload, options, given, watch)
    candidate, communication = carried(best, queued=run.on_gpus)
    return PlannedRun(run, limited, replace(best, best=candidate), own, communication)
