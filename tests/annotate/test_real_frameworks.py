"""Runs of the installed Megatron-Core and PyTorch: reports agree with the work of the stages.

``python -m scripts.frameworks`` tests all schedules and versions of both, and checks times against
limits.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from scripts.frameworks.__main__ import run
from scripts.frameworks.cases import QUICK, Case
from tests.support.pytorch import get_python_with_torch

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case.framework}, {case.name}")
def test_a_framework_is_named_as_it_ran(case: Case, tmp_path: Path) -> None:
    python = Path(get_python_with_torch())
    # Measured times have no limit here, because other tests use the same cores.
    assert run(python, case, tmp_path / "run", wider=math.inf).wrong == ()
