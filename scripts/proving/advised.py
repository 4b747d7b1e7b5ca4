"""Run pipelines that have one fault each, follow bubbleviz's advice, and run them again.

    python -m scripts.proving.advised
    chrt -r 5 python -m scripts.proving.advised microbatch

Each piece of advice is followed on its own. The script prints the predicted saving, the measured
saving, and the verdict of ``bubbleviz compare``. Real-time priority (``chrt``) keeps other programs
from delaying the ranks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import bubbleviz
from bubbleviz.report.saved import read_summary
from bubbleviz.schedules.known import find_schedule
from scripts.proving.command_line import run_bubbleviz
from scripts.proving.jobs import Job, cut, repaired
from scripts.proving.training import MAX_GRADIENT_ERROR, Order, Ranks, RunError

_PLACEMENT = (0, 1, 2, 3)
_EVEN, _UNEVEN = (100.0,) * 4, (100.0, 100.0, 160.0, 100.0)
_LENGTHS = (1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0)
#: The jobs, each with the schedule under which it runs.
_JOBS = (
    (Job("stages", _PLACEMENT, 8, _UNEVEN, _UNEVEN, _UNEVEN), "1F1B"),
    (Job("microbatch", _PLACEMENT, 8, _EVEN, _EVEN, _EVEN, lengths=_LENGTHS), "1F1B"),
    (Job("order", _PLACEMENT, 8, _EVEN, _EVEN, _EVEN), "GPipe"),
    (Job("rank", (0, 1), 8, *(_EVEN[:2],) * 3, replicas=2, slow=((1, 0, 1.5),)), "1F1B"),
)
#: Maximum error of a predicted saving, as a fraction of the iteration.
_MAX_ERROR = 0.02


def main() -> int:
    """Run the jobs given on the command line, and return 1 if a prediction is wrong."""
    names = [job.name for job, _ in _JOBS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", choices=names, help=", ".join(names))
    parser.add_argument("--iterations", type=int, default=6, help="timed iterations per run")
    options = parser.parse_args()
    are_right = True
    for job, schedule in _JOBS:
        if job.name in (options.jobs or names):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    are_right &= _follow_advice(job, schedule, Path(folder), options.iterations)
                except RunError as error:
                    print(f"{job.name}: {error}", file=sys.stderr)
                    are_right = False
    return int(not are_right)


def _follow_advice(job: Job, schedule: str, folder: Path, iterations: int) -> bool:
    """Follow each piece of advice about a job, and return whether all predictions are right.

    Raises:
        RunError: A rank failed.
    """
    folder_before, report = folder / "before", folder / "before.json"
    first_s = _measure(job, Order(schedule, record=folder_before, iterations=iterations))
    run_bubbleviz("analyze", folder_before, "--what-if", "-o", report)
    are_right = True
    # Keep only the first piece of advice of each kind.
    advice_of_kind = {advice.kind: advice for advice in reversed(read_summary(str(report)).advice)}
    for kind, advice in reversed(advice_of_kind.items()):
        changed_job, order = repaired(job, kind), Order(schedule)
        if kind == "schedule":
            changed_job, order = _change_schedule(job, advice.place, folder / "order.csv")
        elif changed_job == job:
            # Other programs disturbed the run, because the job does not contain this fault.
            print(f"{job.name}: not a fault of the job: {advice.action}", file=sys.stderr)
            continue
        folder_after = folder / f"after-{kind}"
        last_s = _measure(changed_job, replace(order, record=folder_after, iterations=iterations))
        saved = 1 - last_s / first_s
        for result in bubbleviz.compare(report, folder_after).followed[-1]:
            if result.kind == kind:
                error = saved - result.promised_ratio
                are_right &= abs(error) <= _MAX_ERROR
                print(
                    f"{job.name}, {result.action}: predicted {-result.promised_ratio:.1%}, "
                    f"measured {-saved:.1%}; compare: {result.verdict}",
                    flush=True,
                )
    return are_right


def _change_schedule(job: Job, name: str, file: Path) -> tuple[Job, Order]:
    """Return a job whose stages are split as a schedule requires, and the schedule's order."""
    schedule = find_schedule(name)
    placement = schedule.plan(job.ranks, job.microbatches, schedule.chunks).placement
    sizes = ("-p", job.ranks, "-m", job.microbatches, "--tf", 1, "--tb", 1, "--tw", 1)
    run_bubbleviz("simulate", "--schedule", name, *sizes, "--csv", file)
    return cut(job, placement), Order(str(file), "compute_only")


def _measure(job: Job, order: Order) -> float:
    """Run a job and return the median time of an iteration in seconds.

    Raises:
        RunError: A rank failed, or gradients are wrong.
    """
    with Ranks(job) as ranks:
        result = ranks.run(order)
    if result.gradient_error > MAX_GRADIENT_ERROR:
        raise RunError(f"{order.name}: gradients are off by {result.gradient_error:.0e}")
    return result.seconds


if __name__ == "__main__":
    sys.exit(main())
