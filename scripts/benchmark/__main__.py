"""Compare ``bubbleviz analyze`` with a bare scan of generated profiles: time, memory, limits.

The scan (scan.c) steps through the columns that any such analysis needs and stores nothing. In each
round, the scan and bubbleviz run one after the other, so that changes in the machine's load affect
both. Times are medians over the rounds. Values above their limit are marked with "!".
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bubbleviz.sources.nsys.files import measure_bytes
from scripts.benchmark.costs import (
    ROOT,
    BenchmarkError,
    Cost,
    describe_environment,
    measure_command,
    read_output,
)
from scripts.benchmark.scan import TABLES, compile_scan, scan_command
from tests.planting.kernels.profiles import is_made_from
from tests.planting.kernels.timetable import KINDS, Recipe, simulate_timetable

_EXAMPLE = ROOT / "fixtures" / "1f1b"
_READERS = ("compiled", "sqlite", "parquet")
_SIZE = re.compile(r"([1-9][0-9]*)([kM]?)")
_UNITS = {"": 1, "k": 1_000, "M": 1_000_000}
#: Titles of the columns after the file name.
_TITLES = (
    *("MB", "M rows", "reader", "threads", "scan s", "bubbleviz s", "CPU s", "ratio", "limit"),
    *("peak MB", "limit MB"),
)
#: Maximum difference between a measured ratio and the true ratio. Only the final division is
#: rounded.
RATIO_TOLERANCE = 1e-9
#: Maximum wall time as a multiple of the scan's wall time, keyed by (size, kind, number of
#: threads).
_MAX_RATIOS = {
    ("2M", "light", 1): 1.3,
    ("2M", "light", 2): 1.2,
    ("2M", "deep", 1): 1.0,
    ("2M", "deep", 2): 0.9,
    ("10M", "light", 1): 0.9,
    ("10M", "light", 2): 0.8,
    ("10M", "deep", 1): 0.9,
    ("10M", "deep", 2): 0.8,
}
#: Maximum memory in MB, keyed by size.
_MAX_MB = {"2M": 300, "10M": 700}
#: Maximum CPU time for the shipped example, in seconds.
_MAX_EXAMPLE_S = 0.4


@dataclass(frozen=True)
class Profile:
    """A generated profile: its size as given on the command line, its recipe, and its file."""

    size: str
    recipe: Recipe
    path: Path

    @property
    def parquet(self) -> Path:
        """Directory that contains the same profile as Parquet tables, with nsys's file names."""
        return self.path.with_name(f"{self.path.stem}_pqtdir")


@dataclass(frozen=True)
class Setup:
    """How bubbleviz runs: the reader and the number of threads."""

    reader: str
    jobs: int

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that select the reader."""
        return {"BUBBLEVIZ_NATIVE": str(int(self.reader != "sqlite"))}

    def path_of(self, profile: Profile) -> Path:
        """Return the file or directory of a profile that the reader reads."""
        return profile.parquet if self.reader == "parquet" else profile.path

    def report_of(self, profile: Profile) -> Path:
        """Return the path of the JSON report that the command writes."""
        return self.path_of(profile).with_suffix(".json")

    def command(self, profile: Profile) -> list[str]:
        """Return the command that analyzes a profile and writes a JSON report."""
        words = ["analyze", self.path_of(profile), "--jobs", self.jobs, "--force"]
        words += ["--json", self.report_of(profile)]
        return [sys.executable, "-m", "bubbleviz", *map(str, words)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    options = _build_parser().parse_args(arguments)
    if options.tiny:
        options.sizes, options.rounds = ["4k"], 1
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    environment = describe_environment()
    table = Table("file", box=None, pad_edge=False)
    for title in _TITLES:
        table.add_column(title, justify="right")
    try:
        scan = compile_scan(folder)
        setups = [Setup(reader, jobs) for reader in options.readers for jobs in options.jobs]
        for size in options.sizes:
            for kind in options.kinds:
                profile = _generate(size, kind, folder, with_parquet="parquet" in options.readers)
                for row in _measure_profile(profile, scan, setups, options.rounds):
                    table.add_row(*row)
        table.add_row(*_measure_example(options.rounds))
    except BenchmarkError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    console = Console(width=150, highlight=False)
    console.print(table)
    console.print(f"\nMedians of {options.rounds} rounds. {environment}", soft_wrap=True)
    return 0


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "sizes", nargs="*", default=["200k", "2M"], type=_parse_size, metavar="SIZE",
        help="number of kernels, such as 200k, 2M or 10M (default: 200k 2M)",
    )  # fmt: skip
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS,
        help="light: a range per operation; deep: two more ranges per launch (default: both)",
    )  # fmt: skip
    parser.add_argument(
        "--readers", nargs="+", choices=_READERS, default=_READERS,
        help="compiled: with the C part; sqlite: without it; parquet: the same profile as Parquet "
        "tables (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", nargs="+", type=_parse_positive, default=[1, 2], help="threads (default: 1 2)"
    )
    parser.add_argument("--rounds", type=_parse_positive, default=3, help="default: 3")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "bench",
        help="folder of the generated profiles, which are reused (default: build/bench)",
    )  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="one round on 4,000 kernels, as a test")
    return parser


def _parse_size(text: str) -> str:
    if not _SIZE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 200k or 2M")
    return text


def _parse_positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not positive")
    return number


def _generate(size: str, kind: str, folder: Path, *, with_parquet: bool) -> Profile:
    """Return a profile. Generate it first unless the folder already contains it."""
    number, unit = _SIZE.fullmatch(size).groups()  # type: ignore[union-attr]  # checked by _size
    recipe = Recipe(int(number) * _UNITS[unit], kind)
    profile = Profile(size, recipe, folder / f"{size}-{kind}.sqlite")
    if not is_made_from(recipe, profile.path):
        shutil.rmtree(profile.parquet, ignore_errors=True)
        values = str(recipe.kernels), kind, str(recipe.seed), str(profile.path)
        _run_module("tests.planting.kernels.profiles", *values)
    if with_parquet and not profile.parquet.is_dir():
        _run_module("tests.support.columnar_exports", str(profile.path), str(folder))
    return profile


def _run_module(name: str, *arguments: str) -> None:
    """Run a module in a separate process, so that this process does not use its memory."""
    print(f"generating: {name} {' '.join(arguments)}", file=sys.stderr)
    if subprocess.run([sys.executable, "-m", name, *arguments], cwd=ROOT, check=False).returncode:
        raise BenchmarkError(f"{name} failed")


def _measure_profile(
    profile: Profile, scan: Path, setups: Sequence[Setup], rounds: int
) -> Iterator[tuple[str, ...]]:
    """Yield one row of the table per setup."""
    for setup in setups:
        # The first run of each command is not timed, because it fills the page cache.
        # The result of the first run is checked.
        measure_command(setup.command(profile), setup.variables)
        _check_result(profile, setup)
    scans: list[Cost] = []
    runs: dict[Setup, list[Cost]] = {setup: [] for setup in setups}
    for _ in range(rounds):
        scans.append(measure_command(scan_command(scan, profile.path)))
        for setup, costs in runs.items():
            costs.append(measure_command(setup.command(profile), setup.variables))
    for setup, costs in runs.items():
        setup.report_of(profile).unlink(missing_ok=True)
        yield _format_row(profile, setup, scans, costs)


def _check_result(profile: Profile, setup: Setup) -> None:
    """Check the reader, and the ratio in the report that was just written.

    Raises:
        BenchmarkError: A different reader read the profile, or the ratio is not the true ratio.
    """
    path = setup.path_of(profile)
    inspect = [sys.executable, "-m", "bubbleviz", "inspect", str(path)]
    reader = re.search(r"^  read by +(.+)$", read_output(inspect, setup.variables), re.MULTILINE)
    if setup.reader == "compiled" and (reader is None or reader[1] != "compiled reader"):
        raise BenchmarkError(f"{path.name} is not read by the C part but by {reader and reader[1]}")
    report = json.loads(setup.report_of(profile).read_bytes())
    ratio = report["summary"]["bubble_ratio"]["schedule"]["mean"]
    expected = simulate_timetable(profile.recipe).bubble_ratio
    if abs(ratio - expected) > RATIO_TOLERANCE:
        raise BenchmarkError(f"{path.name}: the bubble ratio is {expected:.9f}, not {ratio:.9f}")


def _format_row(
    profile: Profile, setup: Setup, scans: Sequence[Cost], runs: Sequence[Cost]
) -> tuple[str, ...]:
    """Return the cells of a table row: the setup, its times and its memory, with their limits.

    Args:
        profile: The measured profile.
        setup: The reader and the number of threads.
        scans: Cost of scanning the file, one per round.
        runs: Cost of analyzing the file, one per round.
    """
    kind = profile.recipe.kind
    ratio = median(run.wall_s / scan.wall_s for scan, run in zip(scans, runs, strict=True))
    is_limited = setup.reader == "compiled"
    max_ratio = _MAX_RATIOS.get((profile.size, kind, setup.jobs)) if is_limited else None
    max_mb = _MAX_MB.get(profile.size)
    return (
        f"{profile.size} {kind}",
        f"{measure_bytes(str(setup.path_of(profile))) / 1e6:.1f}",
        f"{_count_rows(profile.path) / 1e6:.2f}",
        setup.reader,
        str(setup.jobs),
        f"{median(scan.wall_s for scan in scans):.2f}",
        *_format_times(runs),
        _mark(f"{ratio:.2f}", ratio, max_ratio),
        "-" if max_ratio is None else f"{max_ratio:.2f}",
        _format_peak(runs, max_mb),
        "-" if max_mb is None else str(max_mb),
    )


def _measure_example(rounds: int) -> tuple[str, ...]:
    """Return the table row for the shipped example, where startup takes most of the time."""
    command = [sys.executable, "-m", "bubbleviz", "analyze", str(_EXAMPLE)]
    measure_command(command)
    runs = [measure_command(command) for _ in range(rounds)]
    wall_s, cpu_s = _format_times(runs)
    cpu_s = _mark(cpu_s, float(cpu_s), _MAX_EXAMPLE_S)
    return (
        "fixtures/1f1b",
        "",
        "",
        "",
        "",
        "",
        wall_s,
        cpu_s,
        "",
        "",
        _format_peak(runs, None),
        "",
    )


def _format_times(runs: Sequence[Cost]) -> tuple[str, str]:
    """Return the median wall time and the median CPU time as text."""
    return f"{median(run.wall_s for run in runs):.2f}", f"{median(run.cpu_s for run in runs):.2f}"


def _format_peak(runs: Sequence[Cost], max_mb: int | None) -> str:
    peak_mb = max(run.peak_bytes for run in runs) / 1e6
    return _mark(f"{peak_mb:.0f}", peak_mb, max_mb)


def _mark(text: str, value: float, limit: float | None) -> str:
    """Return a text, with "!" appended if the value exceeds the limit."""
    return f"{text}!" if limit is not None and value > limit else text


def _count_rows(path: Path) -> int:
    """Return the total number of rows in the scanned tables."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        counts = [database.execute(f"SELECT max(rowid) FROM {table}") for table in TABLES]
        return sum(count.fetchone()[0] for count in counts)


if __name__ == "__main__":
    sys.exit(main())
