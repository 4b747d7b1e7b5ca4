"""What to do first: the schedule, or one of the changes that a replay tells the worth of."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.advice import first_thing
from tests.planting import Planting, plant


@pytest.mark.parametrize(
    ("slow_factor", "beginning"), [(1.0, "The schedule itself"), (1.4, "Balance the stages")]
)
def test_a_change_is_weighed_against_more_microbatches(
    slow_factor: float, beginning: str, tmp_path: Path
) -> None:
    jittery = Planting(stages=8, microbatches=8, jitter=0.05, slow_stage=5, slow_factor=slow_factor)
    plant(jittery, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    saved = {change.name: change.makespan_ns for change in report.explanation.what_if}
    assert min(saved.values()) < 0.995 * saved["measured"]
    assert str(first_thing(report)).startswith(beginning)
