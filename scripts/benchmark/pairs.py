"""Run the yardstick and bubbleviz in turn on one profile."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from scripts.benchmark.failures import BenchmarkError
from scripts.benchmark.processes import ROOT, Cost, sampled, timed
from scripts.benchmark.scan import NEEDED, Yardstick
from scripts.benchmark.timetable import Recipe

#: How far the measured bubble ratio may be off the planted one. Operations are planted to the
#: nanosecond and both sides work with whole numbers of them: only the last division rounds.
RATIO_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Profile:
    """A generated file.

    Attributes:
        size: as it was asked for, for example ``2M``.
        recipe: what it was made from.
        path: where it lies.
        bubble_ratio: what was planted.
    """

    size: str
    recipe: Recipe
    path: Path
    bubble_ratio: float

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.size} {self.recipe.kind}"

    @cached_property
    def rows(self) -> int:
        """How many rows the scanned tables hold."""
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as database:
            counts = [
                database.execute(f"SELECT max(rowid) FROM {columns.table}").fetchone()[0]
                for columns in NEEDED
            ]
        return sum(counts)


@dataclass(frozen=True)
class Outcome:
    """How bubbleviz did on one profile.

    Attributes:
        profile: the file.
        jobs: processes it was told to use; None where it has no such option.
        scans: by yardstick, the cost of each of its runs.
        runs: the cost of each run of bubbleviz.
        peak_bytes: memory of all its processes.
    """

    profile: Profile
    jobs: int | None
    scans: dict[Yardstick, list[Cost]]
    runs: list[Cost]
    peak_bytes: int

    def ratio(self, yardstick: Yardstick) -> float:
        """Return the median over pairs of wall time over that of the yardstick."""
        pairs = zip(self.scans[yardstick], self.runs, strict=True)
        return median(run.wall_s / scan.wall_s for scan, run in pairs)

    def scan_s(self, yardstick: Yardstick) -> float:
        """Return the median wall time of a yardstick."""
        return median(cost.wall_s for cost in self.scans[yardstick])

    @property
    def wall_s(self) -> float:
        """Median wall time."""
        return median(cost.wall_s for cost in self.runs)

    @property
    def cpu_s(self) -> float:
        """Median processor time."""
        return median(cost.cpu_s for cost in self.runs)


def knows_jobs() -> bool:
    """Return whether ``bubbleviz analyze`` has the option ``--jobs``."""
    command = [sys.executable, "-m", "bubbleviz", "analyze", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return "--jobs" in run.stdout


def analyze(profile: Path, jobs: int | None) -> list[str]:
    """Return the command that is measured."""
    command = [sys.executable, "-m", "bubbleviz", "analyze", str(profile)]
    command += ["--json", str(_report(profile)), "--force"]
    return command if jobs is None else [*command, "--jobs", str(jobs)]


def _report(profile: Path) -> Path:
    return profile.with_suffix(".json")


def measure(
    profile: Profile, jobs: int | None, yardsticks: Sequence[Yardstick], pairs: int
) -> Outcome:
    """Measure memory once, which also warms the page cache, then time the pairs.

    Raises:
        BenchmarkError: a command fails, or bubbleviz finds other bubbles than were planted.
    """
    command = analyze(profile.path, jobs)
    peak = sampled(command).peak_bytes
    _check(profile)
    scans: dict[Yardstick, list[Cost]] = {yardstick: [] for yardstick in yardsticks}
    runs = []
    for _ in range(pairs):
        for yardstick, costs in scans.items():
            costs.append(_whole(yardstick.command(profile.path)))
        runs.append(_whole(command))
    _report(profile.path).unlink()
    return Outcome(profile, jobs, scans, runs, peak)


def _whole(command: Sequence[str]) -> Cost:
    cost = timed(command)
    if cost is None:
        raise BenchmarkError(f"{command[0]} was ended")
    return cost


def _check(profile: Profile) -> None:
    report = json.loads(_report(profile.path).read_text(encoding="utf-8"))
    found = report["summary"]["bubble_ratio"]["schedule"]["mean"]
    if abs(found - profile.bubble_ratio) > RATIO_TOLERANCE:
        raise BenchmarkError(
            f"bubbleviz finds a bubble ratio of {found:.9f} in {profile.path.name}, where "
            f"{profile.bubble_ratio:.9f} was planted"
        )
