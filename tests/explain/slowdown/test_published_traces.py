"""Published traces: every published number comes out, in full."""

from __future__ import annotations

import json
import os
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.explain.slowdown.slowdowns import Slowdowns
from tests.support.documented_files import GUIDES
from tests.support.recorded_work import recorded_slowdowns
from tests.support.straggler_traces import KINDS, published, read_work

DATA = Path(os.environ.get("BUBBLEVIZ_DATA", "/nowhere")) / "straggler"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs real traces (BUBBLEVIZ_DATA)")
NAMES = ("AR", "ST")
#: The published analyzer holds durations as 32-bit floats.
CLOSE = 1e-5


@cache
def slowdowns(name: str) -> Slowdowns:
    """Return the slowdowns of a trace."""
    measured = recorded_slowdowns(read_work(DATA / f"trace-{name}.parquet"))
    assert measured is not None
    return measured


@pytest.mark.parametrize("name", NAMES)
def test_slowdown_and_lengths(name: str) -> None:
    measured, result = slowdowns(name), published(DATA / f"result-{name}.json")
    times = published(DATA / f"mw-{name}.json")

    assert measured.total == pytest.approx(result["blocking_slowdown"], rel=CLOSE)
    assert measured.original_ns == pytest.approx(times["tori"] * 1e9, rel=CLOSE)
    assert measured.ideal_ns == pytest.approx(times["tideal"] * 1e9, rel=CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_share_of_slowest_workers_and_of_last_stage(name: str) -> None:
    measured = slowdowns(name)
    workers, stage = (published(DATA / f"{what}-{name}.json") for what in ("mw", "ms"))

    assert measured.worker_share == pytest.approx(workers["Mw"], abs=CLOSE)
    assert measured.last_stage_share == pytest.approx(stage["Ms"], abs=CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_slowdown_of_each_group(name: str) -> None:
    measured, result = slowdowns(name), published(DATA / f"result-{name}.json")
    phase = {kind.name: kind.phase for kind in KINDS.values()}
    by_type = {
        phase.get(key, key): value for key, value in result["blocking_decompose_by_optype"].items()
    }
    by_stage, by_replica, by_step = (
        {int(key): value for key, value in result[f"blocking_{key}"].items()}
        for key in ("decompose_by_stage", "decompose_by_dp_rank", "step_slowdown")
    )

    assert measured.by_phase == pytest.approx(by_type, rel=CLOSE)
    assert measured.by_stage == pytest.approx(by_stage, rel=CLOSE)
    assert measured.by_replica == pytest.approx(by_replica, rel=CLOSE)
    assert measured.by_iteration == pytest.approx(by_step, rel=CLOSE)


def test_the_slow_worker_stands_out() -> None:
    worst, *others = sorted(slowdowns("AR").by_rank.items(), key=lambda item: -item[1])

    assert worst[0] == 0
    assert worst[1] == pytest.approx(1.9730, rel=1e-4)
    assert others[0][1] < 1.02


@pytest.mark.parametrize("name", NAMES)
def test_launch_delays_are_all_that_the_replay_misses(name: str) -> None:
    error = slowdowns(name).replay_error
    slowed = published(DATA / f"result-{name}.json")["launch_slowdown"]

    assert error.maximum_with_delays == 0
    assert 1 / (1 - error.mean) == pytest.approx(slowed, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_of_the_trace_has_the_published_slowdowns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is made as the guide does it; what follows what is seen from its times alone."""
    example = re.search(r"```python\n(.*?)```", (GUIDES / "tables.md").read_text(), re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / f"trace-{name}.parquet", "trace.parquet")
    exec(compile(example[1], "tables", "exec"), {})
    assert main(["analyze", "operations.parquet", "--json", "report.json"]) == 0
    found = json.loads(Path("report.json").read_text())["slowdown"]
    result = published(DATA / f"result-{name}.json")
    workers, stage = (published(DATA / f"{what}-{name}.json") for what in ("mw", "ms"))
    close = 1e-3

    assert found["total"] == pytest.approx(result["blocking_slowdown"], rel=close)
    assert found["worker_share"] == pytest.approx(workers["Mw"], abs=close)
    assert found["last_stage_share"] == pytest.approx(stage["Ms"], abs=close)
    for key, of_group in (("by_stage", "stage"), ("by_replica", "dp_rank")):
        assert found[key] == pytest.approx(result[f"blocking_decompose_by_{of_group}"], rel=close)
    phases = {"F": "forward-compute", "BW": "backward-compute", "Optimizer": "optimizer"}
    for phase, kind in phases.items():
        expected = result["blocking_decompose_by_optype"][kind]
        assert found["by_phase"][phase] == pytest.approx(expected, rel=close)
    assert found["replay_error"]["maximum_with_delays"] == 0
