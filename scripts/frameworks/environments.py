"""Virtual environments below ``build/frameworks``, one per version of each framework."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scripts.frameworks.cases import DEEPSPEED, MEGATRON, TORCH

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "frameworks"
#: pip options that limit retries, so that an unreachable index is reported quickly.
_PIP = (
    *("-m", "pip", "--disable-pip-version-check", "--retries", "1"),
    *("install", "--quiet", "--no-compile"),
)
#: Version of PyTorch that the other frameworks use.
_TORCH = "2.13.0"


@dataclass(frozen=True)
class Environment:
    """A version of a framework, and the commands that install it.

    Attributes:
        framework: Name of the framework in :mod:`bubbleviz.annotate`.
        version: Version to install.
        installs: Arguments of each ``pip install`` command.
    """

    framework: str
    version: str
    installs: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """Name of the environment on the command line and in the output."""
        return f"{TITLES[self.framework]} {self.version}"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Version as a tuple of numbers, for comparisons."""
        return tuple(map(int, re.findall(r"\d+", self.version)[:3]))


TITLES = {MEGATRON: "Megatron-Core", TORCH: "PyTorch", DEEPSPEED: "DeepSpeed"}


class NotInstalledError(Exception):
    """Raised if pip cannot install a framework. The message gives the reason."""


def _make_megatron(version: str, *extra_installs: tuple[str, ...]) -> Environment:
    # The wheels require a newer Python than their code needs, and packages that pipelines do not
    # need.
    core = ("--no-deps", "--ignore-requires-python", f"megatron-core=={version}")
    packages = ("numpy", "packaging", "setuptools<81", "einops", "triton", "pyyaml")
    return Environment(MEGATRON, version, ((f"torch=={_TORCH}",), packages, core, *extra_installs))


def _make_torch(version: str) -> Environment:
    return Environment(TORCH, version, ((f"torch=={version}", "numpy<2.3"),))


def _make_deepspeed(version: str) -> Environment:
    """Return the environment for a version of DeepSpeed, built without its compiled operators."""
    packages = ("numpy", "packaging", "psutil", "py-cpuinfo", "pydantic", "tqdm", "einops", "hjson")
    build_packages = ("msgpack", "ninja", "setuptools<81")
    build = ("--no-deps", "--no-build-isolation", f"deepspeed=={version}")
    return Environment(
        DEEPSPEED, version, ((f"torch=={_TORCH}",), (*packages, *build_packages), build)
    )


ENVIRONMENTS = (
    # Tests marked ``frameworks`` run plans in this environment. They require bubbleviz to be
    # installed in it.
    _make_megatron("0.19.2", ("--editable", str(ROOT))),
    *map(_make_megatron, ("0.18.2", "0.16.1", "0.13.1", "0.10.0", "0.8.0", "0.5.0")),
    *map(_make_torch, ("2.14.1", "2.13.0", "2.10.0", "2.8.0", "2.6.0", "2.5.1")),
    *map(_make_deepspeed, ("0.19.8", "0.17.6", "0.14.5")),
)


def python_of(environment: Environment) -> Path:
    """Return the path of an environment's Python. Create the environment if it is missing.

    Several processes may call this at the same time.

    Raises:
        NotInstalledError: pip could not install the framework.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _create(environment)


def _create(environment: Environment) -> Path:
    """Create the virtual environment unless it is up to date, and return its Python."""
    folder = FOLDER / environment.name.lower().replace(" ", "-")
    installs = "\n".join(" ".join(install) for install in environment.installs)
    python, marker = folder / "bin" / "python", folder / "installed"
    # The dependencies of an editable install change when the project's dependencies change.
    changed_s = (ROOT / "pyproject.toml").stat().st_mtime
    is_current = marker.is_file() and marker.stat().st_mtime >= changed_s
    if is_current and marker.read_text(encoding="utf-8") == installs:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", folder)
    for install in environment.installs:
        _run(python, *_PIP, *install)
    marker.write_text(installs, encoding="utf-8")
    return python


def _run(*command: str | Path) -> None:
    """Run a command.

    Raises:
        NotInstalledError: The command failed. The message contains its error output.
    """
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        error = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "")
        raise NotInstalledError(error.removeprefix("ERROR: "))
