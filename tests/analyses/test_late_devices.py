"""The GPU that is late at collectives, in profiles without a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.analyses.idle.page import format_output
from bubbleviz.cli.app import main
from tests.support.data_parallel_traces import write_rank_traces


@pytest.mark.parametrize(
    ("planted", "part"),
    [
        ("loading", "data loading"),
        ("forward", "forward"),
        ("backward", "backward"),
        ("optimizer", "optimizer"),
    ],
)
def test_idle_and_nccl_name_the_late_gpu_and_the_part_of_its_step(
    tmp_path: Path, planted: str, part: str
) -> None:
    folder = write_rank_traces(tmp_path / "run", planted)
    for report in (bubbleviz.nccl(folder), bubbleviz.idle(folder)):
        lateness = report.lateness
        assert lateness is not None
        # The first step has no previous barrier.
        assert lateness.n_steps == 4
        assert lateness.main is not None
        assert report.gpu_names[lateness.main.rank] == "rank 1 (node0)"
        assert lateness.main.late_ns == 4 * 20_000_000
        assert lateness.main.parts[0] == (part, 4 * 20_000_000)
        assert report.late_sentence.startswith(
            "rank 1 (node0) arrives last at barriers in 4 of 4 steps; the others wait 20.000 ms per"
        )
        assert report.late_sentence.endswith(f"Its {part} takes 20.000 ms per step longer")
        entry = report.to_dict()["lateness"]
        assert entry["sentence"] == report.late_sentence
        assert entry["barriers"]["part"] == (part,) * 4


def test_the_late_gpu_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_rank_traces(tmp_path / "run", "backward")
    for command in ("idle", "nccl"):
        assert main([command, str(folder)]) == 0
        assert capsys.readouterr().out.startswith("Late: rank 1 (node0) arrives last")
    report = bubbleviz.idle(folder)
    for name in ("text", "markdown"):
        written = format_output(report, name, 5)
        assert isinstance(written, str)
        assert written.index("Late:") < written.index("4 devices")


def test_nobody_is_named_if_all_ranks_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_rank_traces(tmp_path / "run", "")
    assert main(["idle", str(folder)]) == 0
    assert "Late:" not in capsys.readouterr().out


def test_a_window_selects_the_steps_to_compare(tmp_path: Path) -> None:
    folder = write_rank_traces(tmp_path / "run", "forward")
    report = bubbleviz.idle(folder, window="iteration:2-3")
    assert report.lateness is not None
    assert report.lateness.n_steps == 1


def test_a_single_profile_shows_no_late_gpu(tmp_path: Path) -> None:
    folder = write_rank_traces(tmp_path / "run", "forward")
    report = bubbleviz.idle(folder / "rank0.pt.trace.json")
    assert report.lateness is None
    assert report.late_sentence == ""
