"""Predict other sizes and schedules from one run, run them, and hold one against the other.

    python -m scripts.proving.sized
    python -m scripts.proving.sized uneven-4 --microbatches 4,8,16 --kept runs/

A job runs under PyTorch's 1F1B with the fewest microbatches; ``bubbleviz simulate --from`` predicts
all others from that. Prints what each took (median iteration), how far the prediction is off, and
whether it is within its interval, as ``bubbleviz compare`` of the two runs says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

import bubbleviz
from scripts.proving.jobs import JOBS, Job, cut, scaled
from scripts.proving.predicting import bubbleviz as command
from scripts.proving.training import Order, Ranks, RunError

#: PyTorch's name of each schedule that is predicted, and the parts that it cuts stages into.
_SCHEDULES = {
    "1f1b": ("1F1B", 1),
    "gpipe": ("GPipe", 1),
    "interleaved-1f1b": ("Interleaved1F1B", 2),
}
_GRADIENT = 1e-9


@dataclass(frozen=True)
class Sized:
    """What one combination of schedule and microbatches took.

    Attributes:
        job: that ran.
        schedule: as bubbleviz calls it.
        measured_ms: median window of its iterations.
        predicted_ms: by ``simulate --from``.
        error_ms: half width of the prediction's interval.
        said: what ``compare`` says of it; empty for the run that was measured first.
    """

    job: Job
    schedule: str
    measured_ms: float
    predicted_ms: float
    error_ms: float
    said: str

    @property
    def off(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted_ms / self.measured_ms - 1

    @property
    def inside(self) -> bool:
        """Whether what was measured is within the interval."""
        return abs(self.predicted_ms - self.measured_ms) <= self.error_ms


def main() -> int:
    """Run what the command line asks for; fail where a prediction is more than 5 % off."""
    known = {job.name: job for job in JOBS if job.layout == "one"}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(known))
    parser.add_argument("--microbatches", default="4,8,16", help="numbers with commas between")
    parser.add_argument("--iterations", type=int, default=6, help="timed, of each run")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all times: longer ones are disturbed less"
    )
    parser.add_argument("--kept", type=Path, help="folder for recordings and reports")
    given = parser.parse_args()
    sizes = sorted(map(int, given.microbatches.split(",")))
    rows: list[Sized] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.jobs or ("even-4", "uneven-4"):
            folder = (given.kept or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            try:
                for row in _sized(
                    scaled(known[name], given.scale), sizes, folder, given.iterations
                ):
                    rows.append(row)
                    print(f"{name} {row.schedule}: {row.off:+.1%}; {row.said}", file=sys.stderr)
            except RunError as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
    _print(rows)
    return 0 if all(abs(row.off) <= 0.05 for row in rows) else 1


def _sized(job: Job, sizes: list[int], folder: Path, iterations: int) -> Iterator[Sized]:
    """Yield what each combination took, the one that the others are predicted from first.

    Raises:
        RunError: a rank failed, or gradients are not those of the model in one piece.
    """
    first = folder / "first.json"
    predicted: dict[tuple[str, int], dict[str, float]] = {}
    for schedule, (name, parts) in _SCHEDULES.items():
        for m in sizes:
            sized = replace(cut(job, tuple(range(job.ranks)) * parts), microbatches=m)
            recording = folder / f"{schedule}-{m}"
            with Ranks(sized) as ranks:
                result = ranks.run(Order(name, record=recording, iterations=iterations))
            if result.gradient_error > _GRADIENT:
                raise RunError(f"{name}: gradients are off by {result.gradient_error:.0e}")
            report = bubbleviz.analyze(recording)
            said = ""
            if predicted:
                changes = bubbleviz.compare(first, report).changes[-1]
                said = next((own for own in changes if own.startswith("predicted")), "")
            else:
                report.save(first)
                words = ("--schedule", ",".join(_SCHEDULES), "-m", ",".join(map(str, sizes)))
                answer = command("simulate", "--from", first, *words, "--json", "-")
                predicted = {
                    (own["schedule"], own["microbatches"]): own
                    for own in json.loads(answer)["settings"]
                }
            own = predicted[schedule, m]
            windows = [i.ratios["schedule"].window_ns for i in report.iterations if i.averaged]
            yield Sized(
                sized,
                schedule,
                statistics.median(ns for ns in windows if ns) / 1e6,
                own["iteration_ns"] / 1e6,
                own["error_ns"] / 1e6,
                said,
            )


def _print(rows: list[Sized]) -> None:
    """Print one row per combination."""
    table = Table(box=None, header_style="")
    for column in ("job", "schedule"):
        table.add_column(column)
    for column in ("p", "m", "measured ms", "predicted ms", "off %", "inside"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *(row.job.name, row.schedule, str(row.job.ranks), str(row.job.microbatches)),
            *(f"{row.measured_ms:,.1f}", f"{row.predicted_ms:,.1f} ± {row.error_ms:,.1f}"),
            *(f"{100 * row.off:+.1f}", "yes" if row.inside else "no"),
        )
    Console(width=120, highlight=False).print(table)
    others = [row for row in rows if row.said] or rows
    off = [abs(row.off) for row in others]
    print(
        f"{len(others)} predictions: {statistics.mean(off):.1%} off in the mean, {max(off):.1%} at "
        f"most, {sum(row.inside for row in others)} within their interval; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    sys.exit(main())
