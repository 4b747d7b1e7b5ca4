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
        order: file of the order alone, to which PyTorch adds sends and receives.
        comms: file of the order with them.
        order_s: seconds that the former should take.
        comms_s: seconds that the latter should take.
    """

    order: Path
    comms: Path
    order_s: float
    comms_s: float


def planned(report: Path, limit: float, job: Job) -> Planned:
    """Plan a measured run, and write the plan beside the report.

    Args:
        report: of the run, as ``bubbleviz analyze -o`` writes it.
        limit: microbatches that each rank has memory for.
        job: that ran.
    """
    order, comms = report.with_name("plan.csv"), report.with_name("plan.comms.csv")
    document = report.with_name("plan.json")
    outputs = [word for file in (order, comms, document) for word in ("-o", file)]
    bubbleviz("plan", report, "--memory-limit", limit, *outputs, "--force")
    plan = json.loads(document.read_text(encoding="utf-8"))
    if job.streams:
        carried = plan["communication"]
        times = carried["own_makespan_ns"], carried["makespan_ns"]
    else:
        times = (plan["best"]["makespan_ns"],) * 2
    return Planned(order, comms, times[0] / 1e9, times[1] / 1e9)
