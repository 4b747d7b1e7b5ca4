"""PyTorch is too large to be installed for tests: it is used where there is one."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest


def python_with_torch() -> str:
    """Return a Python that has PyTorch, or skip."""
    if named := os.environ.get("BUBBLEVIZ_TORCH"):
        return named
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch here; BUBBLEVIZ_TORCH=/path/to/python names one that has it")
    return sys.executable
