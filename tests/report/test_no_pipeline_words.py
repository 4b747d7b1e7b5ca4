"""Words for runs that are no pipeline: idle time in iterations, no bubble ratio."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.render import json_document as json_report
from bubbleviz.render.formats import latex
from bubbleviz.render.picture import legend
from bubbleviz.render.text import report as text
from bubbleviz.render.text.report import first_screen, headline_lines
from bubbleviz.render.text.terminal import Display, plain_lines
from bubbleviz.report.advice import first_thing
from bubbleviz.report.rank_means import idle_of, measure_of, saved_measure
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.nsys_exports import C, K, R, profile


@pytest.fixture(name="report")
def one_stage(tmp_path: Path) -> Report:
    """Return the report on one rank without transfers that is idle between forward and backward."""
    kernels = [K(0, 40, 1), K(80, 140, 2), K(200, 240, 3), K(280, 340, 4)]
    calls = [C(1, 2, 1), C(71, 72, 2), C(201, 202, 3), C(271, 272, 4)]
    ranges = [
        *(R(200 * i, 200 * i + 150, f"iter_{i}") for i in range(2)),
        *(R(200 * i, 200 * i + 5, "F0.0.0") for i in range(2)),
        *(R(200 * i + 70, 200 * i + 75, "B0.0.0") for i in range(2)),
    ]
    return bubbleviz.analyze(profile(tmp_path, kernels, calls, ranges))


def test_the_headline_and_the_title_speak_of_iterations(report: Report) -> None:
    assert report.single_stage
    value, bounds, *_ = headline_lines(report)
    assert value == "idle in iterations: 28.57 %"
    assert "one stage is no pipeline" in bounds
    drawn = legend.picture(report, View())
    assert ">idle in iterations 28.6" in drawn
    assert "28.6 % of its time is idle.</title>" in drawn
    assert ">Idle in iterations: 1 " in drawn


def test_no_title_of_text_or_markdown_speaks_of_a_bubble(report: Report) -> None:
    screen = plain_lines(first_screen(report, View(), Display()))
    written = screen + text.as_markdown(report, View())
    saved = json.loads(json_report.render(report, View()))

    assert screen.startswith("Idle in iterations: 28.57 %")
    assert "What the idle time is made of" in screen
    assert "What the bubble is made of" not in written
    assert saved_measure(saved) == {"name": measure_of(report), "idle": idle_of(report)}


def test_no_table_and_no_advice_has_the_ratio_of_a_schedule(report: Report) -> None:
    table = latex.render(report, View())
    assert "Idle time in iterations" in table
    assert "Bubble ratios" not in table
    advice = first_thing(report) or ""
    assert "an iteration would take" in advice
    assert "schedule" not in advice


def test_a_pipeline_keeps_its_words(tmp_path: Path) -> None:
    plant(Planting(stages=2), tmp_path)
    report = bubbleviz.analyze(tmp_path)
    assert headline_lines(report)[0].startswith("bubble ratio (")
    assert "Bubble ratios" in latex.render(report, View())
    assert "bubble ratio" in legend.picture(report, View())
