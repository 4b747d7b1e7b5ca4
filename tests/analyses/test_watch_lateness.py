"""The rank that is late at the barriers of a running job, live."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bubbleviz.analyses.watch.measurement import Watcher
from bubbleviz.analyses.watch.outputs import open_outputs
from bubbleviz.analyses.watch.text import format_line, format_page
from tests.support.data_parallel_runs import plant_steps, record_steps


@pytest.mark.parametrize("hosts", [1, 4])
@pytest.mark.parametrize(
    ("planted", "part", "words"),
    [
        ("loading", "before forward", "its first forward began 20.000 ms later"),
        ("forward", "forward", "forward took 20.000 ms longer"),
        ("backward", "backward", "backward took 20.000 ms longer"),
        ("optimizer", "optimizer", "optimizer took 20.000 ms longer"),
    ],
)
def test_each_iteration_names_the_late_rank(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    planted: str,
    part: str,
    words: str,
    hosts: int,
) -> None:
    run = record_steps(tmp_path / "run", plant_steps(planted), monkeypatch, hosts=hosts)
    sight = Watcher(str(run)).look(0.0)
    *_, newest = sight.iterations
    assert newest.late_rank is not None
    assert (newest.late_rank.rank, newest.late_rank.late_ns) == (1, 20_000_000)
    assert (newest.late_rank.part, newest.late_rank.part_ns) == (part, 20_000_000)
    host = "node1" if hosts > 1 else "node0"
    text = f"late: rank 1 ({host}) by 20.000 ms: {words}"
    assert text in format_line(newest)
    page = ["".join(span.text for span in line) for line in format_page("run", sight, (), 100)]
    assert any(line == f"L{text[1:]}" for line in page)


def test_json_lines_contain_the_late_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record_steps(tmp_path / "run", plant_steps("forward"), monkeypatch)
    sight = Watcher(str(run)).look(0.0)
    with open_outputs("run", str(tmp_path / "out.jsonl"), None, None) as outputs:
        for write in outputs:
            write(sight)
    *_, last = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(last)["late"] == [
        {
            "rank": 1,
            "host": "node0",
            "late_ns": 20_000_000,
            "barriers": 1,
            "part": "forward",
            "part_ns": 20_000_000,
        }
    ]


def test_small_differences_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record_steps(tmp_path / "run", plant_steps(jitter=0.002), monkeypatch)
    *_, newest = Watcher(str(run)).look(0.0).iterations
    assert newest.late
    assert newest.late_rank is None
    assert "late:" not in format_line(newest)
