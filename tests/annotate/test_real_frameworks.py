"""Megatron-Core and PyTorch, installed and run: what is said of a run is what its stages did.

`python -m scripts.frameworks` does so for all of their schedules and versions, and holds times to
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
    # Times that were measured are held to no limit: other tests keep ranks from their cores.
    assert run(python, case, tmp_path / "run", wider=math.inf).wrong == ()
