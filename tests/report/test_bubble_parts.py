"""Bubble parts: they add up to the headline, whatever the lengths of iterations."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.render import json_document as json_report
from bubbleviz.render.palette import BUBBLE_PARTS
from bubbleviz.render.text.report import causes
from bubbleviz.report.bubbles import _NO_WORK, bubble_parts, rounded_shares
from bubbleviz.report.comparison import saved_of
from bubbleviz.report.report import Report
from bubbleviz.report.saved import read_saved
from bubbleviz.report.view import View
from tests.planting import plant
from tests.support.places import FIXTURES
from tests.support.planted_runs import RUNS, ZERO_BUBBLE


def headline_of(report: Report) -> float | None:
    return report.summary.bubble_ratio[report.bubbles.ratio].mean


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "zb-h2"])
def test_parts_of_an_example_add_up(name: str) -> None:
    report = bubbleviz.analyze([str(FIXTURES / name)])

    total = sum(part.share for part in bubble_parts(report))

    assert total == pytest.approx(headline_of(report), abs=1e-12)


@pytest.mark.parametrize(
    "run",
    [RUNS["stray while idle"], RUNS["late host"], replace(ZERO_BUBBLE, jitter=0.3, seed=5)],
    ids=["compute outside operations", "optimizer in the window", "unequal iterations"],
)
def test_parts_of_a_run_add_up(run: object, tmp_path: Path) -> None:
    plant(run, tmp_path)  # type: ignore[arg-type]  # parametrised over Planting
    report = bubbleviz.analyze([str(tmp_path)])
    parts = {part.name: part.share for part in bubble_parts(report)}

    assert sum(parts.values()) == pytest.approx(headline_of(report), abs=1e-12)
    assert run is not RUNS["stray while idle"] or parts["unattributed"] > 0
    assert run is not RUNS["late host"] or parts["optimizer"] > 0


def test_a_report_read_back_has_the_same_first_cause(tmp_path: Path) -> None:
    """What ran and does not count as work is a part of the bubble as idle time is."""
    plant(RUNS["late host"], tmp_path)
    report = bubbleviz.analyze([str(tmp_path)])
    (most, *_) = parts = bubble_parts(report)
    saved = tmp_path / "report.json"
    saved.write_text(json_report.render(report, View()))

    assert read_saved(str(saved)).first_cause == saved_of(report).first_cause
    assert saved_of(report).first_cause == (most.name, most.share / sum(p.share for p in parts))


def test_the_rows_of_the_table_add_up_to_its_last() -> None:
    report = bubbleviz.analyze([str(FIXTURES / "1f1b")])
    *rows, total = causes(report).rows

    for column in ("% of window", "% of bubble"):
        assert sum(Decimal(row[column]) for row in rows) == Decimal(total[column])


def test_every_part_has_a_colour() -> None:
    assert {cause.label for cause in Cause} | {*_NO_WORK} == {*BUBBLE_PARTS}


def test_rounded_shares_add_up_to_the_rounded_sum() -> None:
    assert rounded_shares([]) == []
    assert rounded_shares([1 / 3, 1 / 3, 1 / 3]) == ["33.34", "33.33", "33.33"]
    assert rounded_shares([0.00004, 0.00004, 0.00004]) == ["0.01", "0.00", "0.00"]
    assert rounded_shares([0.1, 0.25], digits=0) == ["10", "25"]
