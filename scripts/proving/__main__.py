"""Measure jobs of torch.distributed.pipelining, plan them, run the plans, and measure again.

    python -m scripts.proving
    python -m scripts.proving uneven-4 slow-link-4 --scale 1.5

Needs PyTorch beside bubbleviz. Ranks are processes that talk through gloo, and stages sleep, so
eight ranks run on two cores. Each job runs PyTorch's schedules for its layout; the first of them is
analysed and planned within the memory of the schedule that PyTorch's users take most, and the plan
runs on ``_PipelineScheduleRuntime``. Prints a line per run; fails if a plan is slower than one of
PyTorch's schedules within its memory, or gradients are wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.proving.jobs import JOBS, Job, scaled
from scripts.proving.predicting import bubbleviz, memory_of, shipped_s, workload_of, write_plan
from scripts.proving.training import Order, Ranks, Result, RunError

#: The memory that plans keep within is that of this schedule, of each layout.
_USUAL = {"one": "1F1B", "looped": "Interleaved1F1B", "v": "ZBVZeroBubble"}


@dataclass(frozen=True)
class Run:
    """One order of a job, predicted and run.

    Attributes:
        job: that it is of.
        name: of the schedule, or what of the plan was loaded.
        predicted_s: iteration, from the times that were measured on the job's first schedule.
        result: what it took.
        fits: whether it keeps within the memory of the plan.
        planned: whether it is a plan.
    """

    job: Job
    name: str
    predicted_s: float
    result: Result
    fits: bool
    planned: bool = False

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted_s / self.result.seconds - 1


def main() -> int:
    """Run what the command line asks for; fail where a plan is slower or gradients differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(job.name for job in JOBS))
    parser.add_argument("--iterations", type=int, default=5, help="timed, of each order")
    parser.add_argument(
        "--scale", type=float, default=2.0, help="of all times: longer ones are disturbed less"
    )
    given = parser.parse_args()
    known = {job.name: job for job in JOBS}
    unknown = [name for name in given.jobs if name not in known]
    if unknown:
        parser.error(f"no job is called {unknown[0]}; known are {', '.join(known)}")
    jobs = [
        scaled(job, given.scale)
        for name, job in known.items()
        if name in given.jobs or not given.jobs
    ]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as scratch:
        for job in jobs:
            folder = Path(scratch) / job.name
            folder.mkdir()
            try:
                for run in _prove(job, folder, given.iterations):
                    runs.append(run)
                    print(_line(run), flush=True)
            except RunError as error:
                print(f"{job.name}: {error}", file=sys.stderr)
                return 1
    worst = max(abs(run.error) for run in runs)
    print(f"{len(runs)} orders; largest error of a prediction: {worst:.1%} of the median iteration")
    return 0 if _holds(runs) else 1


def _prove(job: Job, folder: Path, iterations: int) -> Iterator[Run]:
    """Yield the runs of a job: PyTorch's schedules, then the plan."""
    with Ranks(job) as ranks:
        measured, *others = job.shipped
        recording = folder / measured
        results = {measured: ranks.run(Order(measured, record=recording, iterations=iterations))}
        report = folder / "report.json"
        bubbleviz("analyze", recording, "-o", report, "--force")
        workload = workload_of(report)
        limit = memory_of(_USUAL[job.layout], job, workload)
        order, planned_s = write_plan(report, limit, job)
        for name in others:
            results[name] = ranks.run(Order(name, iterations=iterations))
        for name, result in results.items():
            fits = memory_of(name, job, workload) <= limit * (1 + 1e-9)
            yield Run(job, name, shipped_s(name, job, workload), result, fits)
        result = ranks.run(Order(str(order), "compute_only", iterations=iterations))
        yield Run(job, "plan", planned_s, result, fits=True, planned=True)


def _line(run: Run) -> str:
    return (
        f"{run.job.name} {run.name}: {run.result.seconds * 1e3:.0f} ms, predicted "
        f"{run.predicted_s * 1e3:.0f} ({run.error:+.1%}), gradients within "
        f"{run.result.gradient_error:.0e}, load {os.getloadavg()[0]:.1f}"
    )


def _of(runs: list[Run], job: Job, *, planned: bool) -> list[Run]:
    return [run for run in runs if run.job == job and run.planned is planned]


def _holds(runs: list[Run]) -> bool:
    """Return whether gradients are those of the whole model, and no fitting schedule is faster."""
    if any(run.result.gradient_error > 1e-9 for run in runs):
        return False
    return all(
        _of(runs, run.job, planned=True)[-1].result.seconds <= run.result.seconds * 1.02
        for run in runs
        if run.fits and not run.planned
    )


if __name__ == "__main__":
    sys.exit(main())
