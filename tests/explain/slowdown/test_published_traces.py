"""Published traces: bubbleviz reproduces every published number."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import chdir
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import bubbleviz
from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from bubbleviz.report.report import Report
from tests.support.documented_files import GUIDES
from tests.support.needs import get_real_file

pytestmark = pytest.mark.real_files
NAMES = ("AR", "ST")
#: Relative tolerance.
#: The published analyzer knows more than the times in the table.
CLOSE = 2e-4


@cache
def report_of(name: str) -> Report:
    """Return the report on a published trace that was converted with the code in the guide."""
    examples = re.findall(r"```python\n(.*?)```", (GUIDES / "tables.md").read_text(), re.DOTALL)
    (example,) = (candidate for candidate in examples if "trace.parquet" in candidate)
    with TemporaryDirectory() as folder, chdir(folder):
        shutil.copy(get_real_file(f"straggler/trace-{name}.parquet"), "trace.parquet")
        exec(compile(example, "tables", "exec"), {})
        return bubbleviz.analyze("operations.parquet")


def slowdowns(name: str) -> Slowdowns:
    measured = report_of(name).slowdowns
    assert measured is not None
    return measured


def published(kind: str, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(get_real_file(f"straggler/{kind}-{name}.json").read_text())
    return result


@pytest.mark.parametrize(
    ("name", "ranks", "steps", "ratio"), [("ST", 8, 32, 0.5158), ("AR", 16, 44, 0.5385)]
)
def test_the_report_of_a_published_table_is_reproduced(
    name: str, ranks: int, steps: int, ratio: float
) -> None:
    report = report_of(name)

    assert len(report.ranks) == ranks
    assert sum(iteration.averaged for iteration in report.iterations) == steps
    assert report.headline == "schedule"
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(ratio, abs=1e-4)
    assert report.schedule is not None
    assert report.schedule.name == "1f1b"


@pytest.mark.parametrize("name", NAMES)
def test_slowdowns_have_the_published_lengths_and_shares(name: str) -> None:
    measured, times = slowdowns(name), published("mw", name)

    assert measured.total == pytest.approx(
        published("result", name)["blocking_slowdown"], rel=CLOSE
    )
    assert measured.original_ns == pytest.approx(times["tori"] * 1e9, rel=CLOSE)
    assert measured.ideal_ns == pytest.approx(times["tideal"] * 1e9, rel=CLOSE)
    assert measured.worker_share == pytest.approx(times["Mw"], abs=CLOSE)
    assert measured.last_stage_share == pytest.approx(published("ms", name)["Ms"], abs=CLOSE)
    assert measured.replay_error.maximum_with_delays == 0


@pytest.mark.parametrize("name", NAMES)
def test_each_group_has_its_published_slowdown(name: str) -> None:
    measured, result = slowdowns(name), published("result", name)
    by_stage, by_replica, by_step = (
        [value for _, value in sorted((int(k), v) for k, v in result[f"blocking_{key}"].items())]
        if isinstance(result[f"blocking_{key}"], dict)
        else result[f"blocking_{key}"]
        for key in ("decompose_by_stage", "decompose_by_dp_rank", "step_slowdown")
    )

    assert list(measured.by_stage.values()) == pytest.approx(by_stage, rel=CLOSE)
    assert list(measured.by_replica.values()) == pytest.approx(by_replica, rel=CLOSE)
    assert list(measured.by_iteration.values()) == pytest.approx(by_step, rel=CLOSE)
    phases = {"F": "forward-compute", "BW": "backward-compute", "Optimizer": "optimizer"}
    for phase, kind in phases.items():
        expected = result["blocking_decompose_by_optype"][kind]
        assert measured.by_phase[phase] == pytest.approx(expected, rel=CLOSE)


def test_the_slow_worker_stands_out() -> None:
    worst, *other_ranks = sorted(slowdowns("AR").by_rank.items(), key=lambda item: -item[1])

    assert worst[0] == 0
    assert worst[1] == pytest.approx(1.9730, rel=CLOSE)
    assert other_ranks[0][1] < 1.02
