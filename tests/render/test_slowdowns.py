"""The picture of slowdowns, and their table."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.render.picture.slowdowns import slowdowns
from bubbleviz.report.view import View
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import written
from tests.support.nsys_exports import C, K, R, profile
from tests.support.planted_runs import analysed

RUN = Planting(replicas=2, iterations=3, jitter=0.05, barrier=True, slow_stage=1)


def test_a_map_of_ranks_and_a_curve_over_iterations() -> None:
    report = analysed(RUN)
    found = report.slowdowns
    assert found is not None
    shown = written(slowdowns(report, View()))

    assert shown[0] == f"Slowdown {found.total:.3f} over 3 iterations"
    assert {"replica 0", "replica 1", "stage"} <= set(shown)
    for slowdown in found.by_rank.values():
        assert f"{slowdown:.2f}" in shown
    ticks = [text for text in shown if re.fullmatch(r"\d\.\d{3}", text)]
    assert ticks[0] == "1.000"
    assert float(ticks[-1]) >= max(found.by_iteration.values())
    assert len(set(ticks)) == len(ticks) > 2


@pytest.mark.parametrize(("low", "high"), [(0.998, 1.098), (1.0, 1.1), (1.0, 1.031), (0.93, 7.77)])
def test_a_curve_has_even_ticks_around_all_values(
    low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = analysed(RUN)
    assert report.slowdowns is not None
    by_iteration = {0: low, 1: high, 2: 1.0}
    changed = replace(report.slowdowns, by_iteration=by_iteration)
    monkeypatch.setattr(type(report), "slowdowns", changed)

    shown = written(slowdowns(report, View()))
    ticks = [float(text) for text in shown if re.fullmatch(r"\d\.\d{3}", text)]

    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 3 <= len(ticks) <= 8
    assert {round(b - a, 3) for a, b in pairwise(ticks)} == {round(ticks[1] - ticks[0], 3)}


def test_a_single_iteration_is_a_level_line() -> None:
    report = analysed(replace(RUN, iterations=1, stages=1, replicas=1, slow_stage=-1))

    assert re.search(r'd="M\S+ \S+,?L', slowdowns(report, View()))


def test_without_slowdowns_the_reason_is_given(tmp_path: Path) -> None:
    path = profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "B0.0.0")])
    known = slowdowns(analysed(RUN), View())
    drawn = slowdowns(bubbleviz.analyze(path), View())

    assert written(drawn) == [
        "Slowdowns are unknown",
        "no complete training iteration was recorded",
    ]
    # As far below the heading as what stands there otherwise.
    lines = [re.findall(r'<text x="16" y="([^"]+)"', own)[:2] for own in (drawn, known)]
    assert lines[0] == lines[1]


def test_many_stages_and_replicas_say_what_is_left_out() -> None:
    report = analysed(replace(RUN, stages=2, microbatches=2, replicas=66, iterations=1))
    ranks = tuple(
        replace(rank, pipeline=rank.index // 2, stage=rank.index % 2) for rank in report.ranks
    )
    shown = written(slowdowns(replace(report, ranks=ranks), View()))

    assert "and 4 cells more" in shown


def test_a_table_with_what_costs_most(tmp_path: Path, cli: CommandLine) -> None:
    plant(RUN, tmp_path)
    report = bubbleviz.analyze(tmp_path)
    found = report.slowdowns
    assert found is not None
    printed = cli.printed("analyze", str(tmp_path), "-v", "slowdown")

    assert re.search(rf"all together\s+{found.total:.3f}", printed)
    assert re.search(rf"stage 1\s+{found.by_stage[1]:.3f}", printed)
    assert "slowest 3 %" in printed
