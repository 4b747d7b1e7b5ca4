"""All files of the many-rank benchmark contain the planted operations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from tests.planting.ranks.exports import write_exports
from tests.planting.ranks.runs import Recipe, plant


@pytest.mark.parametrize(("transfers", "collectives"), [(False, False), (True, True)])
def test_exports_contain_the_planted_run(
    tmp_path: Path, transfers: bool, collectives: bool
) -> None:
    run = plant(Recipe(16, iterations=2, microbatches=4, stages=4))
    errors = np.array([0, 700_000])
    files = write_exports(
        run, tmp_path, transfers=transfers, collectives=collectives, clock_errors_ns=errors
    )
    assert [file.name for file in files] == ["node00000.sqlite", "node00001.sqlite"]
    report = bubbleviz.analyze(tmp_path)
    assert len(report.ranks) == 16
    assert len({rank.stage for rank in report.ranks}) == 4
    bubble_ratio = report.summary.bubble_ratio
    for ratio in ("stage", "period"):
        assert bubble_ratio[ratio].mean == pytest.approx(run.ratios()[ratio], abs=1e-9)
