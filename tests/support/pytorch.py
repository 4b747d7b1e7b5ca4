"""PyTorch is too large to be installed for tests: it is used where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import CHECKOUT


def python_with_torch() -> str:
    """Return a Python that has PyTorch, or skip."""
    if named := os.environ.get("BUBBLEVIZ_TORCH"):
        return named
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch here; BUBBLEVIZ_TORCH=/path/to/python names one that has it")
    return sys.executable


def ran(*arguments: str | Path) -> str:
    """Run a Python that has PyTorch, in the checkout; return what it printed."""
    done = subprocess.run(
        [python_with_torch(), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
