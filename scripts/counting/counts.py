"""Count the instructions of each stage, on a generated profile, under valgrind.

Valgrind's massif counts instructions exactly, at a fifth of the usual speed. Counts of the same
program agree to within 1 %, regardless of the machine's load.
"""

from __future__ import annotations

import compileall
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import requires, version
from pathlib import Path

from bubbleviz.native.library import FILE
from scripts.build_native import compile_library, compiler
from tests.planting.kernels.profiles import write_profile
from tests.planting.kernels.timetable import Recipe

ROOT = Path(__file__).resolve().parents[2]
_COUNTER = Path(__file__).with_name("counter.c")
_RECIPE = Recipe(20_000, "deep")
_VALGRIND = (
    "valgrind", "--quiet", "--vgdb=no", "--tool=massif", "--heap=no", "--time-unit=i",
    "--massif-out-file=massif",
)  # fmt: skip
#: Environment variables that make runs reproducible.
_VARIABLES = {
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": str(ROOT),
    "OPENBLAS_NUM_THREADS": "1",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
_NAME = re.compile(r"[\w.-]+")
_UNSET = ("BUBBLEVIZ_NATIVE", "COLUMNS", "PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE")


class CountingError(Exception):
    """Instructions cannot be counted."""


def obstacle() -> str:
    """Return the reason why instructions cannot be counted on this machine, or "" if they can."""
    if shutil.which(_VALGRIND[0]) is None:
        return "valgrind is not installed: scripts/programs installs it as root on Debian"
    return "" if compiler() else "no C compiler was found"


def environment() -> tuple[str, ...]:
    """Return what affects counts: the machine, and the versions of Python and of packages."""
    needed = [line for line in requires("bubbleviz") or () if ";" not in line]
    names = sorted(_NAME.match(line)[0] for line in needed)  # type: ignore[index]
    packages = [f"{name} {version(name)}" for name in names]
    build = f"Python {platform.python_version()}, built by {platform.python_compiler()}"
    return (build, platform.machine(), " ".join(platform.libc_ver()), *packages)


def count() -> Mapping[str, int]:
    """Return the instructions of each stage.

    Raises:
        CountingError: Instructions cannot be counted, or the counted program failed.
    """
    # Otherwise, modules that are compiled at their first import would cost extra instructions.
    compileall.compile_dir(ROOT / "bubbleviz", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counter, library = folder / "counter.so", folder / FILE
        for reason in (_compile_counter(counter), compile_library(library)):
            if reason:
                raise CountingError(reason)
        write_profile(_RECIPE, folder / "profile.sqlite")
        return _run_counted(folder, counter, library)


def _compile_counter(target: Path) -> str:
    """Compile the counter. Return "" on success, or the reason for a failure."""
    command = [*(compiler() or ["cc"]), "-shared", "-fPIC", "-O2", str(_COUNTER), "-o", str(target)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stderr if run.returncode else ""


def _run_counted(folder: Path, counter: Path, library: Path) -> Mapping[str, int]:
    """Run the counted steps under valgrind, and return the number of instructions of each step.

    Args:
        folder: Folder that contains the profile, in which the command runs.
        counter: Compiled library that reads valgrind's instruction counter.
        library: Compiled C part of bubbleviz.

    Raises:
        CountingError: The counted steps failed.
    """
    arguments = [folder / "profile.sqlite", ROOT / "fixtures" / "1f1b", counter, library]
    command = [*_VALGRIND, sys.executable, "-m", "scripts.counting.counted"]
    variables = {name: value for name, value in os.environ.items() if name not in _UNSET}
    run = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=folder,
        env={**variables, **_VARIABLES},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise CountingError(
            f"the counted program failed: {run.stderr.strip() or run.stdout.strip()}"
        )
    counts: Mapping[str, int] = json.loads(run.stdout)
    return counts
