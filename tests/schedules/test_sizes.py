"""Sizes that no run has: refused at once, rather than simulated for hours."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bubbleviz.cli.app import main

TIMES = ("--tf", "1", "--tb", "1", "--tw", "1")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    begin_s = time.process_time()
    assert main(["simulate", *arguments, *TIMES]) == 2
    # Reading 100,000 lines takes some seconds, also where others share the core.
    assert time.process_time() - begin_s < 60
    said = capsys.readouterr().err
    assert said.startswith("bubbleviz: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("ranks", [5_001, 20_000, 100_000])
def test_plans_of_too_many_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: int
) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("\n".join(f"{n}F0,{n}B0" for n in range(min(ranks, 99_999))))

    assert "at most 5,000" in refused(capsys, "--plan", str(plan))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-1p"])
def test_schedules_of_too_many_stages(capsys: pytest.CaptureFixture[str], schedule: str) -> None:
    said = refused(capsys, "--schedule", schedule, "-p", "100000", "-m", "2")

    assert "at most 5,000" in said


@pytest.mark.parametrize("option", ["--memory-limit", "--memory-b"])
@pytest.mark.parametrize("value", ["1e308", "inf", "nan", "0", "1e31"])
def test_memory_that_no_device_has(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    said = refused(capsys, "--schedule", "zb-1p", "-p", "4", "-m", "8", option, value)

    assert "is no memory" in said


def test_more_memory_than_everything_is_no_limit(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for limit in ("1e3", "1e29"):
        size = ("--schedule", "zb-1p", "-p", "4", "-m", "8", "--memory-limit", limit)
        assert main(["simulate", *size, *TIMES]) == 0
        words = capsys.readouterr().out.split()
        printed.append([word for word in words if word != f"{float(limit):g}"])

    assert printed[0] == printed[1]
