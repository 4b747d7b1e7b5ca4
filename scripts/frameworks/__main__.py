"""Train pipelines with the frameworks that bubbleviz annotates, and hold what it says of them.

    python -m scripts.frameworks                     # every version and schedule
    python -m scripts.frameworks "PyTorch 2.13.0" --case ZB-V --kept runs/

Needs the package index and nothing else: each version is installed into an environment of its own
below ``build/frameworks``. Ranks are processes that talk through gloo, and stages sleep for known
times, so that four ranks run on two cores; they write down when they worked. Prints a
line per case; fails where something does not hold.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.known import schedule_named
from scripts.frameworks.cases import CASES, PLAIN, Case
from scripts.frameworks.checking import Outcome, check
from scripts.frameworks.environments import (
    ENVIRONMENTS,
    ROOT,
    Environment,
    NotInstalledError,
    python_of,
    removed,
)

_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Row:
    """A row of the table: a case in an environment; None for all cases of one that is not there."""

    environment: Environment
    case: Case | None
    outcome: Outcome


def main() -> int:
    """Run what the command line asks for; fail where something does not hold."""
    known = {environment.name: environment for environment in ENVIRONMENTS}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(known))
    parser.add_argument("--case", action="append", default=[], help="only cases of that name")
    parser.add_argument("--kept", type=Path, help="folder for recordings and traces")
    parser.add_argument(
        "--lean", action="store_true", help="remove each environment once it was used"
    )
    given = parser.parse_args()
    names = given.versions or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no version is called {unknown[0]}; known are {', '.join(known)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            chosen = [case for case in CASES if not given.case or case.name in given.case]
            for row in _tried(known[name], chosen, given.kept or Path(scratch)):
                rows.append(row)
                print(_line(row), flush=True)
            if given.lean:
                removed(known[name])
    return int(any(row.case is not None and row.outcome.wrong for row in rows))


def _tried(environment: Environment, cases: list[Case], kept: Path) -> Iterator[Row]:
    """Yield a row for each case of an environment's framework, or one that says what is amiss."""
    mine = [
        case
        for case in cases
        if case.framework == environment.framework and environment.numbers >= case.since
    ]
    if not mine:
        return
    try:
        python = python_of(environment)
    except NotInstalledError as error:
        yield Row(environment, None, Outcome((str(error),)))
        return
    for case in mine:
        folder = kept / environment.name / case.name
        yield Row(environment, case, run(python, case, folder))


def run(python: Path, case: Case, folder: Path, wider: float = 1.0) -> Outcome:
    """Train a case with a Python that has its framework, and return what came out.

    Args:
        python: of an environment.
        case: of its framework.
        folder: for recordings and traces; it is made.
        wider: factor of the limits of times.
    """
    folder.mkdir(parents=True)
    file = folder / "case.pickle"
    file.write_bytes(pickle.dumps(case))
    if case.planned:
        schedule = schedule_named(case.planned)
        plan = schedule.plan(case.job.ranks, case.job.microbatches, case.chunks)
        (folder / "plan.csv").write_text(torch_csv.write(plan), encoding="utf-8")
    command = [str(python), "-m", "scripts.frameworks.ranks", str(folder), str(file)]
    paths = os.pathsep.join((str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, "DS_ACCELERATOR": "cpu"},
            start_new_session=True,
        )
        try:
            code = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Its ranks are of its session.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            when = "" if (folder / PLAIN).exists() else ", without annotations either"
            return Outcome((f"did not end within {_TIMEOUT_S:g} s{when}",))
    if code:
        lines = (folder / "log").read_text(encoding="utf-8").splitlines()
        errors = [line for line in lines if "Error" in line] or lines or ["it failed"]
        return Outcome((errors[-1].strip(),))
    return check(case, folder, wider)


def _line(row: Row) -> str:
    outcome, what = row.outcome, row.case.name if row.case else "not installed"
    return (
        f"{row.environment.name}, {what}: {'; '.join(outcome.wrong) or 'holds'} (longer "
        f"{outcome.longer:.2%}, schedule off by {outcome.points:.2f} points, profiler by "
        f"{outcome.points_of_profiler:.2f}, {outcome.cost_us:.0f} us per operation, load "
        f"{os.getloadavg()[0]:.1f})"
    )


if __name__ == "__main__":
    sys.exit(main())
