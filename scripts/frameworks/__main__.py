"""Train pipelines with the frameworks that bubbleviz annotates, and check the recordings.

    python -m scripts.frameworks                     # every version and schedule, for hours
    python -m scripts.frameworks "PyTorch 2.13.0" --case ZB-V --kept runs/

The script needs the package index, but no GPU. Each version is installed into a separate
environment below ``build/frameworks``, which takes up to 5 GB. Ranks are processes that communicate
over gloo. Stages sleep for known times and log when they work, so four ranks can run on two cores.
The script prints one line per case, and fails if any check fails.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.known import find_schedule
from scripts.frameworks.cases import CASES, PLAIN, Case
from scripts.frameworks.checking import Outcome, check
from scripts.frameworks.environments import (
    ENVIRONMENTS,
    ROOT,
    Environment,
    NotInstalledError,
    python_of,
)

_TIMEOUT_S = 180.0


def main() -> int:
    """Run the cases given on the command line, and return 1 if any check fails."""
    environments = {environment.name: environment for environment in ENVIRONMENTS}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ", ".join(environments)
    parser.add_argument("versions", nargs="*", metavar="VERSION", choices=environments, help=names)
    parser.add_argument("--case", action="append", default=[], help="run only this case")
    parser.add_argument("--kept", type=Path, help="folder to keep recordings and traces in")
    options = parser.parse_args()
    are_right = True
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.versions or environments:
            environment = environments[name]
            for case in CASES:
                is_chosen = not options.case or case.name in options.case
                is_of_framework = case.framework == environment.framework
                if is_chosen and is_of_framework and environment.numbers >= case.since:
                    folder = (options.kept or Path(scratch)) / name / case.name
                    are_right &= _check(environment, case, folder)
    return int(not are_right)


def _check(environment: Environment, case: Case, folder: Path) -> bool:
    """Run a case, print the outcome, and return whether all checks succeeded."""
    try:
        outcome = run(python_of(environment), case, folder)
    except NotInstalledError as error:
        print(f"{environment.name}, {case.name}: not installed: {error}", flush=True)
        return True
    print(
        f"{environment.name}, {case.name}: {'; '.join(outcome.wrong) or 'right'} (operations "
        f"{outcome.longer:.2%} longer, schedule off by {outcome.points:.2f} points, profiler by "
        f"{outcome.points_of_profiler:.2f}, load {os.getloadavg()[0]:.1f})",
        flush=True,
    )
    return not outcome.wrong


def run(python: Path, case: Case, folder: Path, wider: float = 1.0) -> Outcome:
    """Train a case and check the recording.

    Args:
        python: Python of an environment with the case's framework.
        case: The case.
        folder: New folder for recordings and traces.
        wider: Factor by which limits on times are multiplied.
    """
    folder.mkdir(parents=True)
    file = folder / "case.pickle"
    file.write_bytes(pickle.dumps(case))
    if case.planned:
        schedule = find_schedule(case.planned)
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
            # The ranks belong to the session of the process.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            where = "" if (folder / PLAIN).exists() else ", even without annotations"
            return Outcome((f"did not end within {_TIMEOUT_S:g} s{where}",))
    if code:
        lines = (folder / "log").read_text(encoding="utf-8").splitlines()
        errors = [line for line in lines if "Error" in line] or lines or ["it failed"]
        return Outcome((errors[-1].strip(),))
    return check(case, folder, wider)


if __name__ == "__main__":
    sys.exit(main())
