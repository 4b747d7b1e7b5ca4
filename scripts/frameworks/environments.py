"""Environments of frameworks, each with a version of it, made by venv and pip below `build`."""

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
#: An index that is not reached is told soon.
_PIP = (
    *("-m", "pip", "--disable-pip-version-check", "--retries", "1"),
    *("install", "--quiet", "--no-compile"),
)
#: PyTorch that other frameworks run on.
_TORCH = "2.13.0"


@dataclass(frozen=True)
class Environment:
    """A version of a framework, and what it takes to install it.

    Attributes:
        framework: as :mod:`bubbleviz.annotate` calls it.
        version: that is installed.
        installs: arguments of ``pip install``, one run after the other.
    """

    framework: str
    version: str
    installs: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """Of its folder, and in the table."""
        return f"{TITLES[self.framework]} {self.version}"

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version, to compare."""
        return tuple(map(int, re.findall(r"\d+", self.version)[:3]))


TITLES = {MEGATRON: "Megatron-Core", TORCH: "PyTorch", DEEPSPEED: "DeepSpeed"}


class NotInstalledError(Exception):
    """pip could not install it, or it cannot be imported; the text says why."""


def _megatron(version: str, *extra_installs: tuple[str, ...]) -> Environment:
    # Its wheels ask for a newer Python than their code needs, and for much that pipelines do not.
    core = ("--no-deps", "--ignore-requires-python", f"megatron-core=={version}")
    needs = ("numpy", "packaging", "setuptools<81", "einops", "triton", "pyyaml")
    return Environment(MEGATRON, version, ((f"torch=={_TORCH}",), needs, core, *extra_installs))


def _torch(version: str) -> Environment:
    return Environment(TORCH, version, ((f"torch=={version}", "numpy<2.3"),))


def _deepspeed(version: str) -> Environment:
    needs = ("numpy", "packaging", "psutil", "py-cpuinfo", "pydantic", "tqdm", "einops", "hjson")
    more = ("msgpack", "ninja", "setuptools<81")
    build = ("--no-deps", "--no-build-isolation", f"deepspeed=={version}")
    return Environment(DEEPSPEED, version, ((f"torch=={_TORCH}",), (*needs, *more), build))


ENVIRONMENTS = (
    # The tests marked frameworks run plans in this environment, so bubbleviz is installed too.
    _megatron("0.19.2", ("--editable", str(ROOT))),
    *map(_megatron, ("0.18.2", "0.16.1", "0.13.1", "0.10.0", "0.8.0", "0.5.0")),
    *map(_torch, ("2.14.1", "2.13.0", "2.10.0", "2.8.0", "2.6.0", "2.5.1")),
    *map(_deepspeed, ("0.19.8", "0.17.6", "0.14.5")),
)


def python_of(environment: Environment) -> Path:
    """Return the Python of an environment, which is made where it is not there yet.

    Several processes may ask for it at once.

    Raises:
        NotInstalledError: pip could not install it.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(environment)


def _made(environment: Environment) -> Path:
    folder = FOLDER / environment.name.lower().replace(" ", "-")
    wanted = "\n".join(" ".join(install) for install in environment.installs)
    python, made = folder / "bin" / "python", folder / "installed"
    # The dependencies of an editable install change with the project.
    changed_s = (ROOT / "pyproject.toml").stat().st_mtime
    is_current = made.is_file() and made.stat().st_mtime >= changed_s
    if is_current and made.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", folder)
    for install in environment.installs:
        _run(python, *_PIP, *install)
    made.write_text(wanted, encoding="utf-8")
    return python


def removed(environment: Environment) -> None:
    """Remove an environment, which may hold gigabytes."""
    shutil.rmtree(FOLDER / environment.name.lower().replace(" ", "-"), ignore_errors=True)


def _run(*command: str | Path) -> None:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "")
        raise NotInstalledError(said.removeprefix("ERROR: "))
