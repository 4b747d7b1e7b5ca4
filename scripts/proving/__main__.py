"""Record PyTorch pipelines, plan them, run the plans on PyTorch, and compare the times.

    python -m scripts.proving
    python -m scripts.proving uneven-4 slow-link-4 --scale 1.5

The script needs PyTorch in addition to bubbleviz, but no GPU. Ranks are processes that communicate
over gloo, and stages sleep, so eight ranks can run on two cores. Each job runs PyTorch's schedules
for its layout. The first run is recorded and planned. The memory limit is that of the layout's most
common schedule. The plan runs on ``_PipelineScheduleRuntime``. The script fails if a plan is slower
than a PyTorch schedule that fits in the same memory, or if gradients are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bubbleviz.report.run_times import measure_workload
from bubbleviz.report.saved import read_pipeline
from bubbleviz.schedules.known import find_schedule
from bubbleviz.schedules.plan_memory import compute_peak_memory
from bubbleviz.schedules.workload import Workload
from scripts.proving.command_line import run_bubbleviz
from scripts.proving.jobs import JOBS, Job, scaled
from scripts.proving.training import MAX_GRADIENT_ERROR, Order, Ranks, Result, RunError

#: Names that bubbleviz uses for PyTorch's schedules.
_NAMES = {
    "InterleavedZeroBubble": "interleaved-zb",
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}
#: Schedule whose memory is the limit for the plan, keyed by layout.
_REFERENCES = {"one": "1F1B", "looped": "Interleaved1F1B", "v": "ZBVZeroBubble"}
#: Factor by which a plan may be slower than a schedule, which allows for noise.
_TOLERANCE = 1.02


@dataclass(frozen=True)
class Run:
    """One run of a job in one order.

    Attributes:
        name: Name of the schedule, or ``plan``.
        result: Times and gradients of the run.
        fits: Whether the order needs no more memory than the plan.
        predicted_s: Predicted time of an iteration, or None if the order is not a plan.
    """

    name: str
    result: Result
    fits: bool
    predicted_s: float | None = None


def main() -> int:
    """Run the jobs given on the command line.

    Return 1 if a plan is slower or a gradient is wrong.
    """
    names = [job.name for job in JOBS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", choices=names, help=", ".join(names))
    parser.add_argument("--iterations", type=int, default=5, help="timed iterations per order")
    parser.add_argument(
        "--scale", type=float, default=2.0, help="factor of all times; long ones vary less"
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="maximum time per order"
    )
    options = parser.parse_args()
    are_good = True
    for job in JOBS:
        if job.name in (options.jobs or names):
            are_good &= _run_job(scaled(job, options.scale), options.iterations, options.timeout)
    return int(not are_good)


def _run_job(job: Job, iterations: int, timeout_s: float) -> bool:
    """Run the orders of a job, print their times, and return whether the plan is confirmed."""
    runs = []
    try:
        for run in _run_orders(job, iterations, timeout_s):
            runs.append(run)
            print(f"{job.name} {_format_run(run)}", flush=True)
    except RunError as error:
        print(f"{job.name}: {error}", file=sys.stderr)
        return False
    *schedules, plan = runs
    fastest_s = min(run.result.seconds for run in schedules if run.fits)
    gradient_error = max(run.result.gradient_error for run in runs)
    return gradient_error <= MAX_GRADIENT_ERROR and plan.result.seconds <= _TOLERANCE * fastest_s


def _run_orders(job: Job, iterations: int, timeout_s: float) -> Iterator[Run]:
    """Yield the runs of PyTorch's schedules, then the run of the plan."""
    with tempfile.TemporaryDirectory() as name, Ranks(job) as ranks:
        folder = Path(name)
        recording, report = folder / "recording", folder / "report.json"
        results: dict[str, Result] = {}
        for schedule in job.shipped:
            record = None if results else recording
            order = Order(schedule, record=record, iterations=iterations)
            results[schedule] = ranks.run(order, timeout_s)
        run_bubbleviz("analyze", recording, "-o", report)
        workload = measure_workload(read_pipeline(str(report)))
        limit = _find_peak_memory(_REFERENCES[job.layout], job, workload)
        for schedule, result in results.items():
            fits = _find_peak_memory(schedule, job, workload) <= limit * (1 + 1e-9)
            yield Run(schedule, result, fits)
        plan, predicted_s = _plan(report, limit, job)
        result = ranks.run(Order(str(plan), "compute_only", iterations=iterations), timeout_s)
        yield Run("plan", result, fits=True, predicted_s=predicted_s)


def _find_peak_memory(name: str, job: Job, workload: Workload) -> float:
    """Return the peak memory of a rank under one of PyTorch's schedules, in microbatches."""
    n_chunks = len(job.placement) // job.ranks
    plan = find_schedule(_NAMES[name]).plan(job.ranks, job.microbatches, n_chunks)
    return max(compute_peak_memory(plan, workload.activation, workload.weight_activation))


def _plan(report: Path, limit: float, job: Job) -> tuple[Path, float]:
    """Plan a recorded run. Return the file that contains the order, and the predicted time in s.

    Args:
        report: Report on the run. The plan is written to the same folder.
        limit: Memory limit of each rank, in microbatches.
        job: The job that ran.
    """
    order, document = report.with_name("plan.csv"), report.with_name("plan.json")
    run_bubbleviz("plan", report, "--memory-limit", limit, "-o", order, "-o", document)
    plan = json.loads(document.read_bytes())
    in_turn_ns = plan["communication"]["own_makespan_ns"]
    return order, (in_turn_ns if job.streams else plan["best"]["makespan_ns"]) / 1e9


def _format_run(run: Run) -> str:
    """Return a line with a run's time, prediction, gradient error and load."""
    seconds = run.result.seconds
    prediction = ""
    if run.predicted_s is not None:
        error = run.predicted_s / seconds - 1
        prediction = f"predicted {run.predicted_s * 1e3:.0f} ms ({error:+.1%}), "
    return (
        f"{run.name}: {seconds * 1e3:.0f} ms, {prediction}gradients within "
        f"{run.result.gradient_error:.0e}, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
