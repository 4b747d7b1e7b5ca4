"""Turn a simulated plan into a report that can be used like the report on a measured run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.clocks.timebase import Timebase
from bubbleviz.align.run import Run
from bubbleviz.count.count import count
from bubbleviz.explain.explanation import explain
from bubbleviz.model import intervals
from bubbleviz.model import operations as tables
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE
from bubbleviz.report.report import SIMULATION, Report, build_report
from bubbleviz.schedules.ideal import Ideal
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.simulation import Simulation


def make_report(ideal: Ideal) -> Report:
    """Return a report on a run that consists of one iteration of an ideal plan."""
    return make_plan_report(ideal.plan, ideal.simulation, ideal.plan.chunks)


def make_plan_report(plan: Plan, simulation: Simulation, ticks: int = 1) -> Report:
    """Return a report on a run that consists of one iteration of a plan.

    Args:
        plan: Order of the operations.
        simulation: Simulated times of the operations.
        ticks: Number of time units of the simulation per nanosecond.
    """
    stages = plan.stages
    ranks = tuple(
        tables.Rank(stage, f"device {stage}", "simulation", 0, stage, 0, stage=stage)
        for stage in range(stages)
    )
    operations, busy = _build_tables(plan, simulation, ticks)
    no_intervals, zero = tables.RankIntervals.make_empty(), np.zeros((1, stages), np.int64)
    busy_ns = intervals.group_sum(operations.rank, stages, operations.busy_ns).reshape(1, stages)
    run = Run(
        ranks=ranks,
        clocks=(),
        timebase=Timebase(
            (), np.zeros(stages, np.int64), np.ones(1, bool), np.zeros(1, np.int64), False, ()
        ),
        operations=operations,
        busy=busy,
        active_ns=busy_ns,
        kernel_ns=busy_ns,
        gap_ns=zero,
        collective_gap_ns=zero,
        running=tables.RunningTimes.make_empty(),
        unattributed=no_intervals,
        exposed=no_intervals,
        collectives=CollectiveIntervals.make_empty(),
        overheads=no_intervals,
        unrecorded=no_intervals,
        hosts=tables.HostActivities.make_empty(),
        iteration_names=("0",),
        paired=True,
        stages_missing=False,
        ranks_missing=False,
        pipeline_unproven=False,
        limitations=(),
        rank_of_local=(),
        recorded_start_ns=np.zeros(stages, np.int64),
    )
    counts = count(run, skip=0)
    return replace(
        build_report(Report, (), run, counts, explain(run, counts), ()),
        convention=plan.name,
        headline="schedule",
        headline_reason="A simulated run consists of a single iteration.",
        profiles=(
            tables.ProfileSummary("simulation", "simulation", SIMULATION, None, None, *[0] * 9),
        ),
        limitations=(),
    )


def _build_tables(
    plan: Plan, simulation: Simulation, ticks: int
) -> tuple[tables.Operations, tables.BusyIntervals]:
    """Return the operations in a simulation, and one busy interval for each operation.

    Start and end times are divided by ``ticks`` and rounded down. The active and busy time of an
    operation is its duration. Columns that a simulation does not determine are -1.
    """
    start_ns, end_ns = simulation.start_ns // ticks, simulation.end_ns // ticks
    count = len(simulation)
    chunk = np.array([plan.chunk_of(stage) for stage in range(plan.virtual_stages)], np.int64)
    zeros, ones = np.zeros(count, np.int64), np.ones(count, np.int64)
    # Columns that a simulation does not determine are -1.
    columns = {name: np.full(count, NONE) for name in tables.Operations.column_names()}
    columns |= dict.fromkeys(("iteration", "occurrence", "cut", "name_id"), zeros)
    columns |= dict.fromkeys(("has_span", "kernels"), ones)
    columns |= dict.fromkeys(("start_ns", "host_start_ns"), start_ns)
    columns |= dict.fromkeys(("end_ns", "host_end_ns"), end_ns)
    columns |= dict.fromkeys(("active_ns", "busy_ns"), end_ns - start_ns)
    columns |= {
        name: getattr(simulation, name) for name in ("phase", "microbatch", "virtual_stage")
    }
    columns |= {"rank": simulation.device, "chunk": chunk[simulation.virtual_stage]}
    operations = tables.Operations(
        **columns, names=("",), stages=tuple(range(plan.stages)), global_ranks=()
    )
    return operations, tables.BusyIntervals(np.arange(count), start_ns, end_ns)
