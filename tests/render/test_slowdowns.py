"""The table of slowdowns in the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import bubbleviz
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.command_line import CommandLine

RUN = Planting(replicas=2, iterations=3, jitter=0.05, barrier=True, slow_stage=1)


def test_the_table_begins_with_the_largest_slowdowns(tmp_path: Path, cli: CommandLine) -> None:
    plant(RUN, tmp_path)
    report = bubbleviz.analyze(tmp_path)
    slowdowns = report.slowdowns
    assert slowdowns is not None
    printed = cli.printed("analyze", str(tmp_path), "-v", "slowdown")

    assert re.search(rf"all together\s+{slowdowns.total:.3f}", printed)
    assert re.search(rf"stage 1\s+{slowdowns.by_stage[1]:.3f}", printed)
    assert "slowest 3 %" in printed
