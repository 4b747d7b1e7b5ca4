"""Plans of measured jobs, as files for PyTorch's runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bubbleviz.schedules.communication import torch_csv as lowered_csv
from bubbleviz.schedules.communication.reordering import best_lowering
from bubbleviz.schedules.files import torch_csv
from bubbleviz.schedules.planning import best_plan
from scripts.proving.jobs import Job
from scripts.proving.predicting import transport_of, workload_of


def planned(report: Path, limit: float, plan: Path, job: Job) -> Path:
    """Plan a measured run, and write the order, and beside it that with its communication.

    Args:
        report: of the run, as ``bubbleviz analyze -o`` writes it.
        limit: microbatches that each rank has memory for.
        plan: file for the order.
        job: that ran.

    Returns:
        File of the order with its communication.
    """
    workload = workload_of(report)
    found = best_plan(replace(workload, limit=(limit,) * job.ranks))
    plan.write_text(torch_csv.write(found.best.outcome.plan), encoding="utf-8")
    lowered = plan.with_suffix(".lowered.csv")
    made = best_lowering(found.best.outcome.plan, workload, transport_of(job))
    lowered.write_text(lowered_csv.write(made), encoding="utf-8")
    return lowered
