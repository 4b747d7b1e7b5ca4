"""Analyze synthetic runs with many ranks, and print the cost of each step.

    python -m scripts.benchmark.ranks 1024 4096
    python -m scripts.benchmark.ranks 16384 --kinds inferred

Each run uses 1F1B with 16 stages and 32 microbatches, and has three iterations that end with an
optimizer step. "us/op" is the CPU time per forward or backward in the run. Each run is analyzed in
a new process, as with ``bubbleviz analyze``. All four ratios are compared with the true ratios.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from rich.console import Console
from rich.table import Table

from scripts.benchmark.costs import ROOT, BenchmarkError, describe_environment
from tests.planting.ranks.exports import write_exports
from tests.planting.ranks.recordings import write_recordings
from tests.planting.ranks.runs import SERVER, PlantedRun, Recipe, plant
from tests.planting.ranks.tables import write_tables

#: File formats: tables with or without stages and pipelines, recordings, and nsys exports.
KINDS = ("told", "inferred", "recorded", "nsys")
#: Maximum difference between a measured ratio and the true ratio. Only the final division is
#: rounded.
_TOLERANCE = 1e-9
#: Maximum error of a host's clock with ``--clocks``, in ns.
_CLOCK_ERROR_NS = 2_000_000
#: Steps that end before all files have been read.
_READING = ("load the analysis", "find profiles", "profiles")


@dataclass(frozen=True)
class Measured:
    """The result and cost of analyzing one run.

    Attributes:
        wall_s: Wall time from reading to printing.
        cpu_s: CPU time of the process from reading to printing.
        steps: Name, nesting depth and CPU seconds of each step that ``--timings`` reports.
        memory_bytes: Peak memory, excluding the memory used by imported modules.
        counted: Number of forwards and backwards that the report contains.
        ratios: Mean of each ratio, keyed by the name of the ratio.
        limitations: Limitations of the report.
    """

    wall_s: float
    cpu_s: float
    steps: list[tuple[str, int, float]]
    memory_bytes: int
    counted: int
    ratios: Mapping[str, float | None]
    limitations: list[str]

    @property
    def after_reading_s(self) -> float:
        """CPU time spent after all files have been read."""
        reading = [s for name, depth, s in self.steps if not depth and name in _READING]
        return self.cpu_s - sum(reading)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    options = _build_parser().parse_args(arguments)
    if options.analyze:
        print(json.dumps(asdict(_analyze(options.analyze, options.jobs))))
        return 0
    console = Console(width=120, highlight=False)
    console.print(describe_environment(), soft_wrap=True)
    are_equal = True
    try:
        for kind in options.kinds:
            for ranks in options.ranks:
                are_equal &= _measure(Recipe(ranks), kind, options, console)
    except BenchmarkError as error:
        print(f"ranks: {error}", file=sys.stderr)
        return 1
    return int(not are_equal)


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ranks", nargs="*", type=int, default=[1024, 4096])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--transfers", action="store_true", help="also write sends and receives")
    parser.add_argument("--collectives", action="store_true", help="also write collectives")
    parser.add_argument("--clocks", action="store_true", help="give every host a wrong clock")
    parser.add_argument("--jobs", type=int, default=1, help="reading processes (default: 1)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "ranks")
    parser.add_argument("--analyze", help=argparse.SUPPRESS)  # path that a child process analyzes
    return parser


def _measure(recipe: Recipe, kind: str, options: argparse.Namespace, console: Console) -> bool:
    """Measure one run, print the result, and return whether all ratios are correct."""
    run = plant(recipe)
    extras = [name for name in ("transfers", "collectives", "clocks") if vars(options)[name]]
    folder = options.folder / "-".join([str(recipe.ranks), kind, *extras])
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _write(run, kind, options, folder / "run")
        (folder / "complete").touch()
    words = ("--analyze", str(folder / "run"), "--jobs", str(options.jobs))
    done = subprocess.run(
        (sys.executable, "-m", "scripts.benchmark.ranks", *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(done.stderr.strip()[-4000:] or "the analysis ended without a message")
    measured = Measured(**json.loads(done.stdout))
    _print(console, f"{recipe.ranks:,} ranks, {', '.join([kind, *extras])}", recipe, measured)
    wrong = [
        name
        for name, true in run.ratios().items()
        if not _is_equal(measured.ratios.get(name), true)
    ]
    console.print(f"wrong ratios: {', '.join(wrong) or 'none'}\n")
    return not wrong


def _is_equal(measured: float | None, true: float) -> bool:
    return measured is None or abs(measured - true) <= _TOLERANCE


def _write(run: PlantedRun, kind: str, options: argparse.Namespace, folder: Path) -> None:
    """Write the files of a run in the given format."""
    errors = None
    if options.clocks:
        n_servers = -(-run.recipe.ranks // SERVER)
        random = np.random.default_rng(7)
        errors = random.integers(-_CLOCK_ERROR_NS, _CLOCK_ERROR_NS + 1, n_servers)
    if kind == "recorded":
        write_recordings(run, folder, errors)
        return
    extras = {"transfers": options.transfers, "collectives": options.collectives}
    if kind == "nsys":
        write_exports(run, folder, **extras, clock_errors_ns=errors)
    else:
        write_tables(run, folder, with_stages=kind == "told", **extras, clock_errors_ns=errors)


def _analyze(path: str, jobs: int) -> Measured:
    """Analyze a run as the command line does, but with CPU time as the clock of ``--timings``."""
    from bubbleviz import timing
    from bubbleviz.__main__ import OBJECTS_BETWEEN_COLLECTIONS
    from bubbleviz.api.analysis import analyze
    from bubbleviz.cli.terminal import show_lines
    from bubbleviz.model.phases import COUNTED
    from bubbleviz.render.text.first_screen import render_first_screen
    from bubbleviz.render.text.terminal import Display
    from bubbleviz.report.view import View
    from bubbleviz.resources import keep_freed_memory

    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    keep_freed_memory()
    vars(timing)["perf_counter"] = process_time
    modules_bytes = _read_status("VmRSS")
    cpu_s, wall_s = process_time(), perf_counter()
    with timing.record_steps() as steps:
        report = analyze(path, jobs=jobs)
        with timing.time_step("print"), redirect_stdout(io.StringIO()):
            display = Display()
            show_lines(render_first_screen(report, View(), display), display)
    ratios = report.summary.bubble_ratio
    return Measured(
        perf_counter() - wall_s,
        process_time() - cpu_s,
        [(step.name, step.depth, step.seconds) for step in steps],
        _read_status("VmHWM") - modules_bytes,
        int(np.isin(report.operations.phase, COUNTED).sum()),
        {name: spread.mean for name, spread in ratios.items()},
        [f"{limitation.what}: {limitation.reason[:400]}" for limitation in report.limitations],
    )


def _read_status(name: str) -> int:
    """Return the resident memory (``VmRSS``) or its peak (``VmHWM``) in bytes, on Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def _print(console: Console, title: str, recipe: Recipe, measured: Measured) -> None:
    """Print a table with the CPU time of each step, followed by the memory and the limitations.

    Args:
        console: Console to print to.
        title: Title of the table.
        recipe: The generated run.
        measured: Costs of analyzing the run.
    """
    rows = [("· " * depth + name, seconds) for name, depth, seconds in measured.steps]
    rows += [("all after reading", measured.after_reading_s), ("all", measured.cpu_s)]
    table = Table(title, box=None, pad_edge=False)
    for column in ("CPU s", "us/op"):
        table.add_column(column, justify="right")
    for name, seconds in rows:
        table.add_row(name, f"{seconds:.2f}", f"{1e6 * seconds / recipe.counted:.2f}")
    console.print(table)
    console.print(
        f"{measured.counted:,} of {recipe.counted:,} forwards and backwards; "
        f"{measured.wall_s:.1f} s; {measured.memory_bytes / 1e6:,.0f} MB, "
        f"{measured.memory_bytes / recipe.counted:.0f} bytes/op"
    )
    for limitation in measured.limitations:
        console.print(f"limitation: {limitation}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
