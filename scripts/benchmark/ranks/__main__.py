"""Plant runs of many ranks, analyse each whole, and print what every step took.

Every run is F and B of 32 microbatches, and the optimizer, three times, on 16 stages. `cpu` is CPU
time of the process that puts all together; `us/op` divides it by the run's F and B. `+ MB` is the
most memory in a step beyond what the modules take.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from scripts.benchmark.failures import BenchmarkError
from scripts.benchmark.machine import commit_note, machine_note
from scripts.benchmark.processes import ROOT
from scripts.benchmark.ranks.breaking import BREAKAGES, damage
from scripts.benchmark.tables import Grid
from tests.planting.ranks.exports import write_exports
from tests.planting.ranks.recordings import write_recordings
from tests.planting.ranks.runs import SERVER, PlantedRun, Recipe, plant
from tests.planting.ranks.tables import write_tables

#: How runs are written: tables that tell stages and pipelines, tables that do not, files of
#: ``annotate.record``, and nsys exports.
KINDS = ("told", "inferred", "recorded", "nsys")
#: How far a measured ratio may be off: only the last division rounds.
_TOLERANCE = 1e-9
#: Hosts' clocks, where they are wrong, are off by so much at most.
_CLOCK_ERROR_NS = 2_000_000
#: Steps before all profiles are read.
_READING = ("load the analysis", "find profiles", "profiles")
_WIDTH = 150


@dataclass(frozen=True)
class Outcome:
    """What analysing one run found and cost.

    Attributes:
        name: of the run, in tables.
        recipe: of it.
        found: what :mod:`scripts.benchmark.ranks.analysed` prints.
        workers: CPU seconds and peak bytes of each Dask worker.
        truth: the true ratios.
    """

    name: str
    recipe: Recipe
    found: dict[str, Any]
    workers: tuple[tuple[float, int], ...]
    truth: dict[str, float]

    def steps(self) -> dict[str, float]:
        """Return the CPU seconds of each step, those inside another one marked by dots."""
        return {"· " * depth + name: seconds for name, depth, seconds in self.found["steps"]}

    @property
    def after_reading_s(self) -> float:
        """CPU seconds of all that is done once profiles are read."""
        before = sum(seconds for name, seconds in self.steps().items() if name in _READING)
        return float(self.found["cpu_s"]) - before

    def errors(self) -> dict[str, float | None]:
        """Return by how much each ratio is off; None where there is none."""
        found = self.found["ratios"]
        return {
            name: None if found.get(name) is None else found[name] - true
            for name, true in self.truth.items()
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables; return the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(width=_WIDTH, highlight=False)
    try:
        with _workers(options.dask) as cluster:
            for kind in options.kinds:
                outcomes = []
                for ranks in options.ranks:
                    outcomes.append(_measure(Recipe(ranks), kind, options, cluster))
                    _print(console, outcomes[-1], options)
                _growth(outcomes).print_on(console)
                console.print()
    except (BenchmarkError, ValueError) as error:
        print(f"ranks: {error}", file=sys.stderr)
        return 1
    console.print(f"{commit_note()}; {machine_note()}", soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.benchmark.ranks", description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=[1024, 4096], help="of each run")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--transfers", action="store_true", help="files hold sends and receives")
    parser.add_argument("--collectives", action="store_true", help="files hold collectives")
    parser.add_argument("--clocks", action="store_true", help="every host has a clock of its own")
    parser.add_argument("--break", dest="broken", nargs="+", choices=BREAKAGES, default=[])
    parser.add_argument("--jobs", type=int, default=1, help="processes that read (default: 1)")
    parser.add_argument("--dask", type=int, default=0, metavar="N", help="read with N Dask workers")
    parser.add_argument("--profile", metavar="FILE", help="write a profile of cProfile")
    parser.add_argument("--screen", action="store_true", help="print the first screen, too")
    parser.add_argument(
        "--json", metavar="FILE", help="append all that was found, one line per run"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "ranks")
    return parser


def _measure(recipe: Recipe, kind: str, options: argparse.Namespace, cluster: Any) -> Outcome:
    run = plant(recipe)
    words = [kind, *(["transfers"] if options.transfers else []), *options.broken]
    words += ["collectives"] if options.collectives else []
    words += ["clocks"] if options.clocks else []
    folder = options.folder / f"{recipe.ranks}-{'-'.join(words)}"
    if not (folder / "whole").exists():
        _write(run, kind, options, folder)
        (folder / "whole").touch()
    cluster_address = "" if cluster is None else cluster.scheduler_address
    command = [sys.executable]
    if options.profile:
        command += ["-m", "cProfile", "-o", options.profile]
    command += ["-m", "scripts.benchmark.ranks.analysed"]
    command += [str(folder / "run"), str(options.jobs), cluster_address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(done.stderr.strip()[-4000:] or "the analysis says nothing")
    found = json.loads(done.stdout)
    outcome = Outcome(
        f"{recipe.ranks:,} ranks, {', '.join(words)}",
        recipe,
        found,
        () if cluster is None else _worker_costs(cluster_address),
        dict(run.ratios()),
    )
    if options.json:
        with Path(options.json).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": outcome.name, **found}) + "\n")
    return outcome


def _write(run: PlantedRun, kind: str, options: argparse.Namespace, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    errors = None
    random = np.random.default_rng(7)
    if options.clocks or "clock" in options.broken:
        servers = -(-run.recipe.ranks // SERVER)
        errors = random.integers(-_CLOCK_ERROR_NS, _CLOCK_ERROR_NS + 1, servers)
        errors *= options.clocks
    if "clock" in options.broken and errors is not None:
        errors[len(errors) // 2] += 180_000_000_000
    place = folder / "run"
    if kind == "recorded":
        files = write_recordings(run, place, errors)
    elif kind == "nsys":
        files = write_exports(
            run,
            place,
            transfers=options.transfers,
            collectives=options.collectives,
            clock_errors_ns=errors,
        )
    else:
        files = write_tables(
            run,
            place,
            told=kind == "told",
            transfers=options.transfers,
            collectives=options.collectives,
            clock_errors_ns=errors,
        )
    damage(files, options.broken, random)


@contextmanager
def _workers(count: int) -> Iterator[Any]:
    """Yield a local cluster of so many workers; None for none."""
    if count == 0:
        yield None
        return
    with _distributed().LocalCluster(
        n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


def _distributed() -> Any:
    """Return Dask's module, whose classes have no types."""
    try:
        return import_module("distributed")
    except ImportError as error:
        raise BenchmarkError("--dask needs pip install 'bubbleviz[dask]'") from error


def _worker_costs(address: str) -> tuple[tuple[float, int], ...]:
    """Return CPU seconds and peak bytes of every worker so far."""
    with _distributed().Client(address) as client:
        return tuple(client.run(_own_cost).values())


def _own_cost() -> tuple[float, int]:
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss


def _print(console: Console, outcome: Outcome, options: argparse.Namespace) -> None:
    found = outcome.found
    counted = outcome.recipe.counted
    rows = [
        (
            name,
            f"{seconds:.2f}",
            f"{1e6 * seconds / counted:.2f}",
            _beyond(found["peaks"].get(name), found["before_bytes"]),
        )
        for name, seconds in outcome.steps().items()
    ]
    rest = found["cpu_s"] - sum(seconds for _, depth, seconds in found["steps"] if depth == 0)
    rows.append(("outside of steps", f"{rest:.2f}", f"{1e6 * rest / counted:.2f}", ""))
    after = outcome.after_reading_s
    rows.append(("all after reading", f"{after:.2f}", f"{1e6 * after / counted:.2f}", ""))
    most = max(found["peaks"].values())
    everything = f"{found['cpu_s']:.2f}"
    per = f"{1e6 * found['cpu_s'] / counted:.2f}"
    rows.append(("all", everything, per, _beyond(most, found["before_bytes"])))
    Grid((outcome.name, "cpu s", "us/op", "+ MB"), tuple(rows)).print_on(console)
    head = (most - found["before_bytes"]) / counted
    console.print(
        f"{found['counted']:,} of {counted:,} F and B, {found['operations']:,} operations, "
        f"{found['ranks']:,} ranks, {found['stages']} stages, {found['pipelines']:,} pipelines; "
        f"{found['wall_s']:.1f} s; {head:.0f} bytes an F or B at the head, "
        f"{most / 1e6:,.0f} MB in all",
        soft_wrap=True,
    )
    if options.jobs > 1:
        console.print(
            f"readers: {found['children_cpu_s']:.1f} s CPU, the largest "
            f"{found['children_peak_bytes'] / 1e6:,.0f} MB"
        )
    for cpu_s, peak in outcome.workers:
        console.print(f"worker: {cpu_s:.1f} s CPU since it began, peak {peak / 1e6:,.0f} MB")
    errors = ", ".join(
        f"{name} {'missing' if error is None else f'{error:+.1e}'}"
        for name, error in outcome.errors().items()
    )
    exact = all(e is None or abs(e) <= _TOLERANCE for e in outcome.errors().values())
    console.print(f"ratios less the truth: {errors}: {'equal' if exact else 'NOT EQUAL'}")
    for what, number, reason in found["limitations"]:
        console.print(f"limitation: {what} ({number}): {reason[:400]}", soft_wrap=True)
    if options.screen:
        console.print(found["screen"], markup=False, soft_wrap=True)
    console.print()


def _beyond(peak: int | None, before: int) -> str:
    return "" if peak is None else f"{(peak - before) / 1e6:,.0f}"


def _growth(outcomes: Sequence[Outcome]) -> Grid:
    """Return by what the time of each step grows from one run to the next."""
    rows = []
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.steps()))
    for name in names:
        times = [outcome.steps().get(name, 0.0) for outcome in outcomes]
        if max(times) >= 0.05:
            rows.append((name, *(_factor(a, b) for a, b in pairwise(times))))
    peaks = [max(outcome.found["peaks"].values()) for outcome in outcomes]
    rows.append(("memory", *(_factor(a, b) for a, b in pairwise(peaks))))
    header = [f"to {outcome.recipe.ranks:,}" for outcome in outcomes[1:]]
    return Grid(("growth", *header), tuple(rows))


def _factor(before: float, after: float) -> str:
    return f"x {after / before:.1f}" if before > 0 else "-"


if __name__ == "__main__":
    sys.exit(main())
