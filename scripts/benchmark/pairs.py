"""Run the yardsticks and bubbleviz in turn on one profile."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from scripts.benchmark.failures import BenchmarkError
from scripts.benchmark.processes import Cost, output_of, sampled, whole
from scripts.benchmark.scan import NEEDED, Yardstick
from tests.planting.kernels.timetable import Recipe

#: How far the measured bubble ratio may be off the planted one. Operations are planted to the
#: nanosecond and both sides work with whole numbers of them: only the last division rounds.
RATIO_TOLERANCE = 1e-9
_READER = re.compile(r"^  read by +(.+)$", re.MULTILINE)


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
class Way:
    """One way to run bubbleviz.

    Attributes:
        jobs: how many threads read.
        compiled: with the compiled part, or without.
        columnar: whether it reads the Parquet tables of the same profile.
    """

    jobs: int
    compiled: bool
    columnar: bool = False

    @property
    def reader(self) -> str:
        """What reads, in tables."""
        if self.columnar:
            return "Parquet"
        return "compiled" if self.compiled else "SQLite"

    def path_of(self, profile: Profile) -> Path:
        """Return what is read of a profile."""
        return columnar_of(profile.path) if self.columnar else profile.path

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of the environment by which bubbleviz runs so."""
        return {"BUBBLEVIZ_NATIVE": str(int(self.compiled))}


@dataclass(frozen=True)
class Outcome:
    """How bubbleviz did on one profile in one way.

    Attributes:
        profile: the file.
        way: how it ran.
        scans: by yardstick, the cost of each of its runs.
        runs: the cost of each run of bubbleviz, in the same rounds.
        peak_bytes: memory of all its processes.
    """

    profile: Profile
    way: Way
    scans: Mapping[Yardstick, Sequence[Cost]]
    runs: Sequence[Cost]
    peak_bytes: int

    def ratio(self, yardstick: Yardstick) -> float:
        """Return the median over rounds of wall time over that of the yardstick."""
        rounds = zip(self.scans[yardstick], self.runs, strict=True)
        return median(run.wall_s / scan.wall_s for scan, run in rounds)

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


def columnar_of(path: Path) -> Path:
    """Return the directory of a profile's Parquet tables, named as nsys names it."""
    return path.with_name(f"{path.stem}_pqtdir")


def analyze(profile: Path, jobs: int) -> list[str]:
    """Return the command that is measured."""
    command = [sys.executable, "-m", "bubbleviz", "analyze", str(profile)]
    return [*command, "--json", str(_report(profile)), "--force", "--jobs", str(jobs)]


def _report(profile: Path) -> Path:
    return profile.with_suffix(".json")


def reader_of(profile: Path, way: Way) -> str:
    """Return what reads a profile, in the words of ``bubbleviz inspect``.

    Raises:
        BenchmarkError: it cannot be inspected.
    """
    command = [sys.executable, "-m", "bubbleviz", "inspect", str(profile)]
    found = _READER.search(output_of(command, way.variables))
    return found[1] if found else "unknown"


def measure(
    profile: Profile, ways: Sequence[Way], yardsticks: Sequence[Yardstick], rounds: int
) -> list[Outcome]:
    """Measure memory once in each way, which also warms the page cache, then time the rounds.

    In a round each yardstick and each way runs once, in turn, so that all meet the same machine.

    Raises:
        BenchmarkError: a command fails, or bubbleviz finds other bubbles than were planted.
    """
    peaks = {}
    for way in ways:
        peaks[way] = sampled(analyze(way.path_of(profile), way.jobs), way.variables).peak_bytes
        _check(profile, way)
    scans: dict[Yardstick, list[Cost]] = {yardstick: [] for yardstick in yardsticks}
    runs: dict[Way, list[Cost]] = {way: [] for way in ways}
    for _ in range(rounds):
        for yardstick, costs in scans.items():
            costs.append(whole(yardstick.command(profile.path)))
        for way, costs in runs.items():
            costs.append(whole(analyze(way.path_of(profile), way.jobs), way.variables))
    for path in {way.path_of(profile) for way in ways}:
        _report(path).unlink()
    return [Outcome(profile, way, scans, runs[way], peaks[way]) for way in ways]


def _check(profile: Profile, way: Way) -> None:
    report = json.loads(_report(way.path_of(profile)).read_text(encoding="utf-8"))
    found = report["summary"]["bubble_ratio"]["schedule"]["mean"]
    if abs(found - profile.bubble_ratio) > RATIO_TOLERANCE:
        raise BenchmarkError(
            f"bubbleviz finds a bubble ratio of {found:.9f} in {way.path_of(profile).name}, where "
            f"{profile.bubble_ratio:.9f} was planted"
        )
