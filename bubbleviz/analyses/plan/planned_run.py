"""A planned run: the best order for what was measured, and what it wins."""

from __future__ import annotations

from dataclasses import replace

from bubbleviz.analyses.plan.carried import carried
from bubbleviz.analyses.plan.measured_run import MeasuredRun
from bubbleviz.analyses.plan.memory import LimitedWorkload, MemoryChoice, limited_workload
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.schedules.communication.reordering import Communication
from bubbleviz.schedules.planning import BestPlan, PlanOptions, best_plan
from bubbleviz.schedules.workload import Outcome, outcome_of


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
