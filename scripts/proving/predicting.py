"""Predictions: what PyTorch's schedules and plans should take at the times of a report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bubbleviz.report.saved import read_times
from bubbleviz.schedules.communication.lowered import BUFFERED, STREAMS, Transport
from bubbleviz.schedules.communication.lowering import batched, lowered
from bubbleviz.schedules.communication.precedence import timing_of
from bubbleviz.schedules.known import schedule_named
from bubbleviz.schedules.measured_times import measured_workload
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.simulation import Workload, peak_memory
from scripts.proving.jobs import Job

#: Names of PyTorch's schedules here.
_NAMES = {
    "InterleavedZeroBubble": "interleaved-zb",
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}
#: Those whose sends and receives are batched, and waited for at once.
_BATCHED = ("1F1B", "GPipe")


def bubbleviz(*arguments: object) -> str:
    """Run a command of bubbleviz as a user would, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "bubbleviz", *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def workload_of(report: Path) -> Workload:
    """Return what the virtual stages of a measured run take."""
    saved = read_times(str(report))
    return measured_workload(saved.kinds, saved.transfer_ns, saved.microbatches)


def transport_of(job: Job) -> Transport:
    """Return what transfers of a job wait for."""
    return STREAMS if job.streams else BUFFERED


def shipped_plan(name: str, job: Job) -> Plan:
    """Return the plan of one of PyTorch's schedules."""
    return schedule_named(_NAMES[name]).plan(
        job.ranks, job.microbatches, len(job.placement) // job.ranks
    )


def shipped_s(name: str, job: Job, workload: Workload) -> float:
    """Return the seconds that one of PyTorch's schedules should take."""
    plan = shipped_plan(name, job)
    made = batched(plan) if name in _BATCHED else lowered(plan)
    return timing_of(made, workload, transport_of(job)).makespan_ns / 1e9


def memory_of(name: str, job: Job, workload: Workload) -> float:
    """Return the most memory of a rank under one of PyTorch's schedules, in microbatches."""
    return max(peak_memory(shipped_plan(name, job), workload.activation, workload.kept))
