"""Predictions from a run leave out single slow iterations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from bubbleviz import simulate
from bubbleviz.render.formats.latex import render as render_latex
from bubbleviz.render.picture.picture import draw_picture
from bubbleviz.report.run_times import describe_slow_iterations, list_slow_iterations
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import RunSummary
from bubbleviz.report.view import View
from tests.planting import Planting
from tests.support.command_line import CommandLine
from tests.support.planted_runs import analyze_planting

EVEN = Planting(stages=4, microbatches=8, iterations=4, jitter=0.02)


def summarize_planting(planting: Planting) -> RunSummary:
    return summarize(analyze_planting(planting))


def change_windows(run: RunSummary, *windows_ns: int) -> RunSummary:
    """Return the run with new ``schedule`` windows of its iterations."""
    iterations = [
        structs.replace(entry, window_ns={"schedule": window_ns})
        for entry, window_ns in zip(run.iterations, windows_ns, strict=False)
    ]
    return structs.replace(run, iterations=iterations)


@pytest.mark.parametrize(
    ("windows_ns", "expected"),
    [
        ((100, 101, 150, 99), [2]),
        ((100, 101, 150, 151), []),
        ((100, 101, 102, 105), []),
        ((100, 105, 95, 112), []),
        ((100, 150), []),
        ((100, 100, 100, 60), []),
    ],
)
def test_slow_iterations_are_much_longer_than_usual(
    windows_ns: tuple[int, ...], expected: list[int]
) -> None:
    run = change_windows(summarize_planting(EVEN), *windows_ns)

    assert [entry.index for entry in list_slow_iterations(run)] == expected


def test_a_sentence_names_the_slow_iterations() -> None:
    run = summarize_planting(EVEN)

    slow = change_windows(run, 100, 100, 150, 100)

    assert describe_slow_iterations(run) == ""
    assert describe_slow_iterations(slow) == "Iteration 2 is left out: 1.50 times the usual length"


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_slow_iteration_does_not_change_predictions(
    replicas: int, tmp_path: Path, cli: CommandLine
) -> None:
    even = replace(EVEN, replicas=replicas)
    settings = []
    for planting in (even, replace(even, slow_iteration=2)):
        file = tmp_path / f"{planting.slow_iteration}.json"
        file.write_text(json.dumps(summarize_planting(planting).to_dict()), encoding="utf-8")
        arguments = ("simulate", "--from", file, "--schedule", "1f1b,zb-h1")
        printed = cli.printed(*arguments)
        out = tmp_path / f"out{planting.slow_iteration}.json"
        cli.printed(*arguments, "-o", out)
        document = json.loads(out.read_text("utf-8"))
        settings.append({entry["schedule"]: entry for entry in document["settings"]})
        is_slow = planting.slow_iteration == 2
        assert ("Iteration 2 is left out: 1.50 times" in printed) == is_slow
        assert bool(document["left_out"]) == is_slow

    usual, with_slow = settings
    for schedule, entry in usual.items():
        assert with_slow[schedule]["iteration_ns"] == pytest.approx(entry["iteration_ns"], rel=0.01)
        assert with_slow[schedule]["error_ns"] < 0.03 * entry["iteration_ns"]


def test_a_single_schedule_names_the_slow_iteration(tmp_path: Path, cli: CommandLine) -> None:
    run = summarize_planting(replace(EVEN, slow_iteration=2))
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run.to_dict()), encoding="utf-8")
    sentence = "Iteration 2 is left out: 1.50 times the usual length"
    arguments = ("simulate", "--from", file, "--schedule", "zb-h1")

    assert sentence in cli.printed(*arguments)
    cli.printed(*arguments, "-o", tmp_path / "out.json", "-o", tmp_path / "out.tex")
    assert json.loads((tmp_path / "out.json").read_text("utf-8"))["left_out"] == sentence
    assert sentence in " ".join((tmp_path / "out.tex").read_text("utf-8").split())
    assert simulate("zb-h1", report=file).left_out == sentence
    all_times = ("--tf", 1, "--tb", 1, "--tw", 1, "--tcomm", 0)
    assert "left out" not in cli.printed(*arguments, *all_times)


def test_pictures_and_captions_say_how_slow_the_drawn_iteration_is() -> None:
    report = analyze_planting(replace(EVEN, slow_iteration=2))
    sentence = "Iteration 2 takes 1.50 times as long as usual."

    assert sentence in draw_picture(report, View()).svg()
    for style in (None, "paper"):
        assert render_latex(report, View(style=style)).count(sentence) == 1
    usual = View(iterations=(0,))
    assert "as long as usual" not in draw_picture(report, usual).svg()
    assert "as long as usual" not in render_latex(report, usual)
