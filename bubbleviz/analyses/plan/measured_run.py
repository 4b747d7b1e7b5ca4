"""A measured run, as a report has it: its workload, the order that ran, and how long that took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bubbleviz.analyses.plan.ran_order import order_that_ran
from bubbleviz.errors import MismatchError
from bubbleviz.model.columns import Ints
from bubbleviz.model.restrictions import Restriction
from bubbleviz.model.values import frozen
from bubbleviz.report.memory import UNKNOWN, measured_memory
from bubbleviz.report.saved import read_document, read_times
from bubbleviz.schedules.known import known_plans
from bubbleviz.schedules.measured_workload import PlacedTimes, measured_workload
from bubbleviz.schedules.memory_use import MeasuredMemory
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.workload import Workload

if TYPE_CHECKING:
    from bubbleviz.report.report import Report

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
