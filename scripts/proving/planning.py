"""Plans of measured jobs, made by ``bubbleviz plan`` as files for PyTorch's runtime."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from scripts.proving.jobs import Job
from scripts.proving.predicting import bubbleviz


@dataclass(frozen=True)
class Planned:
    """A plan.

    Attributes:
        order: file of the order, to which PyTorch adds sends and receives.
        seconds: What an iteration should take.
    """

    order: Path
    seconds: float


def planned(report: Path, limit: float, job: Job) -> Planned:
    """Plan a measured run, and write the plan beside the report.

    Args:
        report: of the run, as ``bubbleviz analyze -o`` writes it.
        limit: microbatches that each rank has memory for.
        job: that ran.
    """
    order, document = report.with_name("plan.csv"), report.with_name("plan.json")
    outputs = ("-o", order, "-o", document)
    bubbleviz("plan", report, "--memory-limit", limit, *outputs, "--force")
    plan = json.loads(document.read_text(encoding="utf-8"))
    queued_ns = plan["communication"]["own_makespan_ns"]
    return Planned(order, (queued_ns if job.streams else plan["best"]["makespan_ns"]) / 1e9)
