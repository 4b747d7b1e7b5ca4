"""Predictions of other runs from one planted run, and their uncertainty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.schedules.choices import compare_sizes
from bubbleviz.schedules.ideal import ideal
from bubbleviz.schedules.known import SCHEDULES
from bubbleviz.schedules.measured_times import StageTimes
from tests.planting import Planting
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import list_texts
from tests.support.planted_runs import analyze_planting

RUN: dict[str, Any] = {"iterations": 6, "transfer_ns": 50_000, "communication": True}
TIMES = ("--tf", "1", "--tb", "1", "--tw", "1")


def _run(**options: Any) -> bubbleviz.Report:
    return analyze_planting(Planting(**RUN | options))


UNEQUAL = (1.0, 0.6, 1.4, 0.8, 1.9, 0.5, 1.1, 0.7)


@pytest.mark.parametrize(
    ("jitter", "lengths", "off"),
    [(0.0, (), 0.002), (0.1, (), 0.015), (0.02, UNEQUAL, 0.01)],
)
def test_runs_of_other_sizes_take_the_predicted_time(
    jitter: float, lengths: tuple[float, ...], off: float, tmp_path: Path, cli: CommandLine
) -> None:
    report = _run(jitter=jitter, lengths=lengths)
    saved = str(tmp_path / "run.json")
    report.save(saved)
    words = ("--schedule", "1f1b,zb-h1", "-m", "8,16", "-o", str(tmp_path / "x.json"))

    assert cli.printed("simulate", "--from", saved, *words)
    rows = cli.json("simulate", "--from", saved, *words[:4], "--json", "-")["settings"]
    assert [row["device_ns"] for row in rows] == sorted(row["device_ns"] for row in rows)
    for row in rows:
        sizes = {"schedule": row["schedule"], "microbatches": row["microbatches"]}
        other = _run(**sizes, jitter=jitter, lengths=lengths, seed=1)
        window_ns = other.summary.window_ns["schedule"].mean or 0.0
        assert row["iteration_ns"] == pytest.approx(window_ns, rel=off)
        assert abs(row["iteration_ns"] - window_ns) <= 2 * row["error_ns"] + 0.002 * window_ns
        ratio = other.summary.bubble_ratio["schedule"].mean
        assert row["bubble_ratio"] == pytest.approx(ratio, abs=off)
        changes = str(bubbleviz.compare(report, other).differences)
        is_run = (row["schedule"], row["microbatches"]) == ("1f1b", 8)
        assert ("predicted from the earlier times" in changes) != is_run


@pytest.mark.parametrize("name", [rule.name for rule in SCHEDULES if not rule.searched])
def test_constant_times_take_as_long_as_a_simulation(name: str) -> None:
    times = StageTimes((1.0, 2.0, 1.0, 1.5), (1.0,), (0.5,), 0.1)
    (choice,) = compare_sizes(times, None, [name], [4], [8], [None])

    assert choice.makespan_ns == pytest.approx(1e6 * ideal(name, 4, 8, times).makespan_ms)


def test_given_times_have_no_interval(cli: CommandLine) -> None:
    words = ("simulate", *TIMES, "--schedule", "1f1b,interleaved-1f1b", "-p", "4", "-m", "6,8")
    rows = cli.json(*words, "--json", "-")["settings"]

    assert {row["error_ns"] for row in rows} == {None}
    assert [row["iteration_ns"] for row in rows if row["schedule"] == "1f1b"] == [33e6, 27e6]
    assert ["6" in row["reason"] for row in rows if row["iteration_ns"] is None] == [True]
    assert "±" not in cli.printed(*words)


def test_each_schedule_is_drawn_as_a_panel_in_the_given_order(
    cli: CommandLine, tmp_path: Path
) -> None:
    picture = tmp_path / "x.svg"
    words = ("simulate", *TIMES, "--schedule", "zb-h1,gpipe,1f1b-i", "-p", "4", "-m", "8")

    cli.printed(*words, "-o", picture, "-o", tmp_path / "x.json")
    texts = list_texts(picture.read_text("utf-8"))

    assert [text for text in texts if text.startswith("(")] == ["(a) zb-h1", "(b) gpipe"]
    assert texts[0] == "2 simulated iterations on 4 stages with 8 microbatches"
    assert texts[1].startswith("1f1b-i is not drawn: 1f1b-i is a formula without an order")
    assert (tmp_path / "x.json").exists()


def test_panel_titles_contain_the_sizes_that_differ(cli: CommandLine, tmp_path: Path) -> None:
    picture = tmp_path / "x.svg"
    words = ("--schedule", "interleaved-1f1b", "-p", "2,4", "-m", "8", "--chunks", "2,3")

    cli.printed("simulate", *TIMES, *words, "-o", picture)
    texts = list_texts(picture.read_text("utf-8"))

    assert texts[0] == "4 simulated iterations of interleaved-1f1b with 8 microbatches"
    assert [text for text in texts if text.startswith("(")] == [
        "(a) interleaved-1f1b, 2 stages, 2 chunks",
        "(b) interleaved-1f1b, 2 stages, 3 chunks",
        "(c) interleaved-1f1b, 4 stages, 2 chunks",
        "(d) interleaved-1f1b, 4 stages, 3 chunks",
    ]


def test_a_different_number_of_stages_shares_the_work(tmp_path: Path, cli: CommandLine) -> None:
    saved = str(tmp_path / "run.json")
    _run(slow_stage=1).save(saved)
    words = ("simulate", "--from", saved)

    printed = cli.printed(*words, "-p", "4,8")
    document = cli.json(*words, "-p", "8", "--json", "-")
    # The sum of 1 ms on three stages and 2 ms on one, divided by 8.
    times = ("--tf", "0.625", "--tb", "0.625", "--tw", "0.625", "--tcomm", "0.05")
    even = cli.json("simulate", "--schedule", "1f1b", "-p", "8", "-m", "8", *times, "--json", "-")

    zero = cli.json(*words, "-p", "4,8", "--tcomm", "0", "--json", "-")["settings"]

    assert {row["error_ns"] for row in zero} == {None}
    assert "For other numbers of stages, the work is divided evenly" in printed
    assert document["makespan_ms"] == pytest.approx(even["makespan_ms"], rel=0.005)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-m", "8,16", "-o", "x.csv"), "a CSV file holds the order of a single schedule"),
        (("-m", "8-40", "-o", "x.svg"), "a figure has at most 26 panels, not 33"),
        (("--schedule", "1f1b-i,nope", "-m", "8", "-o", "x.svg"), "nope"),
        (("--schedule", "1f1b-i", "-m", "8,16", "-o", "x.svg"), "no schedule can be drawn: 1f1b-i"),
        (("-m", "8,x"), "must be numbers or ranges"),
        (("--schedule", "1f1b,nope", "-m", "8"), "nope"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    words: tuple[str, ...], expected: str, cli: CommandLine
) -> None:
    schedule_words = ("--schedule", "1f1b") if "--schedule" not in words else ()
    assert expected in cli.refused("simulate", *TIMES, *schedule_words, "-p", "4", *words, code=2)
