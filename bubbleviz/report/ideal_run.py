"""Ideal runs: a simulated plan as a report, drawn and counted like a measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.align.timebase import Timebase
from bubbleviz.count.count import count
from bubbleviz.explain.explanation import explain
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    Operations,
    ProfileSummary,
    Rank,
    RankIntervals,
    RunningTimes,
)
from bubbleviz.report.report import Report, assemble
from bubbleviz.schedules.ideal import Ideal
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.simulation import Simulation


def report_of(ideal: Ideal) -> Report:
    """Return the report of a run of one such iteration."""
    return report_of_plan(ideal.plan, ideal.simulation, ideal.plan.chunks)


def report_of_plan(plan: Plan, simulation: Simulation, ticks: int = 1) -> Report:
    """Return the report of a run of one iteration of a plan.

    Args:
        plan: what runs.
        simulation: when.
        ticks: of the simulation, in a nanosecond.
    """
    stages = plan.stages
    ranks = tuple(
        Rank(stage, f"device {stage}", "simulation", 0, stage, 0, stage=stage)
        for stage in range(stages)
    )
    operations, busy = _tables(plan, simulation, ticks)
    nothing, zero = RankIntervals.none(), np.zeros((1, stages), np.int64)
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
        running=RunningTimes.none(),
        unattributed=nothing,
        exposed=nothing,
        collectives=CollectiveIntervals.none(),
        overheads=nothing,
        hosts=HostActivities.none(),
        iteration_names=("0",),
        paired=True,
        stages_missing=False,
        ranks_missing=False,
        pipeline_unproven=False,
        limitations=(),
        rank_of_local=(),
    )
    counts = count(run, skip=0)
    return replace(
        assemble(Report, (), run, counts, explain(run, counts), ()),
        convention=plan.name,
        headline="schedule",
        headline_reason="A simulated iteration stands alone.",
        profiles=(ProfileSummary("simulation", "simulation", "simulation", None, None, *[0] * 9),),
        limitations=(),
    )


def _tables(plan: Plan, ran: Simulation, ticks: int) -> tuple[Operations, BusyIntervals]:
    """Return the operations of a simulation, and their busy intervals."""
    start_ns, end_ns = ran.start_ns // ticks, ran.end_ns // ticks
    count = len(ran)
    chunk = np.array([plan.chunk_of(stage) for stage in range(plan.virtual_stages)], np.int64)
    none, zero = np.full(count, NONE), np.zeros(count, np.int64)
    operations = Operations(
        rank=ran.device.copy(),
        iteration=zero,
        phase=ran.phase.copy(),
        microbatch=ran.microbatch.copy(),
        chunk=chunk[ran.virtual_stage],
        sequence=none,
        second_microbatch=none.copy(),
        second_chunk=none.copy(),
        occurrence=zero.copy(),
        start_ns=start_ns,
        end_ns=end_ns,
        has_span=np.ones(count, np.int64),
        host_start_ns=start_ns.copy(),
        host_end_ns=end_ns.copy(),
        kernels=np.ones(count, np.int64),
        active_ns=end_ns - start_ns,
        busy_ns=end_ns - start_ns,
        received_ns=none.copy(),
        receive_start_ns=none.copy(),
        receive_launched_ns=none.copy(),
        launched_ns=none.copy(),
        virtual_stage=ran.virtual_stage.copy(),
        cut=zero.copy(),
        tokens=none.copy(),
        name_id=zero.copy(),
        names=("",),
        stages=tuple(range(plan.stages)),
    )
    return operations, BusyIntervals(np.arange(count), start_ns.copy(), end_ns.copy())
