"""A Python environment with PyTorch and Megatron-Core, for tests marked ``frameworks``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts.frameworks.environments import ENVIRONMENTS, python_of
from tests.support.places import CHECKOUT


def get_python_with_torch() -> str:
    """Return a Python with the newest Megatron-Core and its PyTorch.

    They are installed on first use.

    Raises:
        NotInstalledError: pip cannot install the environment.
    """
    return str(python_of(ENVIRONMENTS[0]))


def run_python(*arguments: str | Path) -> str:
    """Run the Python that has PyTorch in the checkout, and return its output. It must succeed."""
    done = subprocess.run(
        [get_python_with_torch(), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
