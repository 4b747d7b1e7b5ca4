"""One stage is not a pipeline: no schedule is named, and ranks without a profile are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.model.limitations import Limitation
from bubbleviz.report.methods import write_methods
from bubbleviz.report.sentences import describe_first_steps
from tests.planting import Planting, plant
from tests.support.nsys_exports import ExportRows
from tests.support.planted_runs import analyze_planting
from tests.support.report_texts import text_of
from tests.support.torch_traces import set_world_size, write_traces


@pytest.mark.parametrize(
    "options",
    [
        {"stages": 1},
        {"stages": 1, "schedule": "zb-h1"},
        {"stages": 1, "schedule": "zb-h2", "microbatches": 4},
        {"stages": 1, "schedule": "interleaved-1f1b", "chunks": 2},
        {"stages": 1, "replicas": 2},
        {"stages": 1, "replicas": 2, "names": "constant"},
    ],
)
def test_one_stage_ran_no_schedule(options: dict[str, Any]) -> None:
    report = analyze_planting(Planting(**options))

    assert report.schedule is not None
    assert (report.schedule.name, report.schedule.also) == (None, ())
    assert report.single_stage
    text = text_of(report, 160)
    assert "no schedule: a single stage is not a pipeline" in text
    assert "Methods" not in text
    assert "The schedule itself" not in text
    assert write_methods(report).startswith("No pipeline was measured with bubbleviz ")


@pytest.mark.parametrize(
    ("stages", "world", "missing"),
    [(1, 64, 63), (1, 2, 1), (1, 1, 0), (2, 64, 62), (4, 4, 0), (4, 3, 0), (1, None, 0)],
)
def test_ranks_of_the_run_without_a_profile_are_counted(
    tmp_path: Path, stages: int, world: int | None, missing: int
) -> None:
    plant(Planting(stages=stages, files="rank"), tmp_path / "exports")
    exports = sorted((tmp_path / "exports").glob("*.sqlite"))
    traces = [trace for export in exports for trace in write_traces(export, tmp_path)]

    report = bubbleviz.analyze(set_world_size(traces, world))

    notes = [note for note in report.limitations if note.what == "ranks without a profile"]
    assert [note.count for note in notes] == ([missing] if missing else [])
    assert {r.incomplete for i in report.iterations for r in i.ratios.values()} == {missing > 0}
    if (stages, world) == (1, 64):
        assert notes == [
            Limitation(
                "ranks without a profile",
                "the profiles contain 1 of the run's 64 ranks (only rank 0), so ratios are "
                "incomplete",
                63,
            )
        ]


def test_idle_time_between_iterations_is_not_reported_as_no_bubble(tmp_path: Path) -> None:
    rows = ExportRows()
    for iteration in range(3):
        for number, name in enumerate(("F0.0.0", "B0.0.0", "Optimizer")):
            start = 1000 * iteration + 100 * number
            rows.launch(start + 2, start + 10, start + 110)
            rows.add_range(start, start + 5, name)

    report = bubbleviz.analyze(rows.write(tmp_path))

    assert report.summary.bubble_ratio["schedule"].mean == 0
    advice = str(describe_first_steps(report))
    assert advice.startswith("Begin iterations earlier on host GPU 0 (pipeline order 0) (up to -")
    assert "(up to -70.00 %: " in advice


def test_independent_replicas_need_no_common_clock_for_advice() -> None:
    report = analyze_planting(Planting(stages=1, replicas=2, servers=2, jitter=0.1, iterations=4))

    assert any("clocks" in note.what or "offset" in note.what for note in report.limitations)
    assert describe_first_steps(report) == "There is almost no idle time in iterations to remove"
