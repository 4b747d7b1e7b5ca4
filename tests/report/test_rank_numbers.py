"""Ranks are named by their number in the job, whatever their pipeline order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz.render.json_document import make_document
from bubbleviz.render.rows import make_rows
from bubbleviz.render.text.report import render_text
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.pipeline_jobs import Job, simulate_job

#: Rank in the job for each position in pipeline order.
#: Stages of a replica are not adjacent.
SHUFFLED = (0, 4, 2, 6, 1, 5, 3, 7)


def test_every_output_uses_the_rank_in_the_job(tmp_path: Path, cli: CommandLine) -> None:
    job = simulate_job(Job(rank={3: 1.6}))
    for row in job.rows:
        row["rank"] = SHUFFLED[int(row["rank"])]
    table = str(job.written(tmp_path / "operations.csv"))
    files = {name: tmp_path / f"report.{name}" for name in ("json", "md", "svg", "html", "tex")}
    output_options = [part for file in files.values() for part in ("-o", str(file))]
    screen = cli.printed("analyze", table, "-v", *output_options)
    document = json.loads(files["json"].read_text(encoding="utf-8"))

    assert document["what_to_do_first"].startswith("Find out why rank 6 is slow")
    (index,) = document["advice"][0]["ranks"]
    assert document["advice"][0]["rank_numbers"] == [6]
    assert document["ranks"][index]["global_rank"] == 6
    assert document["ranks"][index]["index"] == 3
    assert "Find out why rank 6 is slow" in " ".join(screen.split())
    assert "Find out why rank 6 is slow" in files["md"].read_text(encoding="utf-8")
    # Positions are never printed as ranks, so rank 3 is not the slow rank.
    assert not re.search(r"rank 3[^\n]{0,40}(slow|points)", screen)
    # Python, pictures and advice also use ranks of the job.
    # Columns use positions.
    report = bubbleviz.analyze(table)
    (slow,) = {row.global_rank for row in report.operations if row.rank == index}
    assert report.advice[0].rank_numbers == (slow,) == (6,)
    assert report.plot(ranks=(6,)).view == bubbleviz.View(ranks=(6,))
    assert {row.rank.number for row in make_rows(report, bubbleviz.View(ranks=(6,)))} == {6}
    assert {row.global_rank for row in report.bubbles if row.rank == index} == {6}
    report.save(tmp_path / "one.svg", bubbleviz.View(ranks=(6,)))
    cli.printed("analyze", table, "--ranks", "6", "--svg", tmp_path / "same.svg")
    pictures = ((tmp_path / name).read_text(encoding="utf-8") for name in ("one.svg", "same.svg"))
    assert (
        len({re.sub(r"<desc>.*?</desc>|<metadata>.*?</metadata>", "", svg) for svg in pictures})
        == 1
    )
    # Written tables keep the rank numbers, and options select by rank number.
    table_path = str(tmp_path / "again.csv")
    cli.printed("analyze", table, "--csv", table_path)
    screen = cli.printed("analyze", table_path, "--ranks", "6", "-v", "ranks,advice")
    assert "Find out why rank 6 is slow" in " ".join(screen.split())
    assert re.search(r"^ *6 +3 ", screen, re.MULTILINE)


@pytest.mark.parametrize("is_always_slow", [True, False])
def test_a_rank_has_a_score_for_its_slowness(is_always_slow: bool, tmp_path: Path) -> None:
    """A rank runs at half speed, either in all iterations or in the last one only."""
    slow: dict[str, Any] = {
        "slow_rank": 5,
        "slow_rank_factor": 2.0,
        "slow_rank_from": 0 if is_always_slow else 3,
    }
    plant(Planting(replicas=2, iterations=4, **slow), tmp_path)
    report = bubbleviz.analyze(tmp_path)
    relative = report.slowness.relative_score
    individual = report.slowness.individual_score
    ranks = make_document(report)["ranks"]
    mean = 0.5 if is_always_slow else 4 / 5

    assert relative.tolist() == [rank["relative_score"] for rank in ranks]
    assert sorted(relative.tolist()) == pytest.approx([mean] + [1.0] * 7)
    assert sorted(individual.tolist()) == pytest.approx(
        [1.0 if is_always_slow else 0.5] + [1.0] * 7
    )
    assert f" {mean:.2f}" in render_text(report, View())


def test_the_slowness_table_has_the_slowdown_of_each_rank(tmp_path: Path) -> None:
    plant(Planting(replicas=2, iterations=2, slow_rank=5, slow_rank_factor=2.0), tmp_path)
    report = bubbleviz.analyze(tmp_path)
    slowdown = report.slowness.slowdown
    by_rank = make_document(report)["slowdown"]["by_rank"]

    assert slowdown.shape == (8,)
    assert slowdown.argmax() == 5
    assert by_rank == {"number": list(range(8)), "slowdown": slowdown.tolist()}


def test_the_slowdown_of_ranks_that_cannot_be_replayed_is_unknown(tmp_path: Path) -> None:
    path = write_profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "B0.0.0")])

    assert np.isnan(bubbleviz.analyze(path).slowness.slowdown).all()
