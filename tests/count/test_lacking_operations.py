"""Operations that are missing on some ranks are counted; the ratio is marked and bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.render.json_document import make_document
from bubbleviz.report.methods import write_methods
from bubbleviz.report.report import Report
from bubbleviz.schedules.communication import torch_csv
from bubbleviz.schedules.known import find_schedule, schedules
from tests.planting import Planting
from tests.support.edited_databases import edit_database
from tests.support.notes import find_limitation
from tests.support.places import EXAMPLE
from tests.support.planted_runs import analyze_planting
from tests.support.report_texts import text_of

pytestmark = pytest.mark.thorough


LACKING = "operations that some ranks lack"
MARK = "! (some ranks lack operations)"


def _without(folder: Path, *names: str, rank: int | None = None) -> Report:
    """Return the report on the 1F1B example without ranges of these names, on one rank or all."""
    opened = "SELECT DISTINCT globalTid FROM NVTX_EVENTS WHERE text = 'F0.0.0' ORDER BY 1"
    threads = f"({opened}{'' if rank is None else f' LIMIT 1 OFFSET {rank}'})"
    statements = [f"CREATE TEMP TABLE threads AS SELECT * FROM {threads}"]
    for name in names:
        condition = f"text = '{name}' AND globalTid IN (SELECT globalTid FROM threads)"
        statements.append(f"DELETE FROM NVTX_EVENTS WHERE {condition}")
    return bubbleviz.analyze(edit_database(folder / "node0.sqlite", *statements, source=EXAMPLE))


@pytest.mark.parametrize(
    ("names", "rank", "count"),
    [
        (("F3.0.0",), 1, 3),
        (("F7.0.0",), 3, 3),
        (("F3.0.0", "B3.0.0"), 1, 6),
        (("F3.0.0", "F5.0.0", "B5.0.0"), 2, 9),
        (("F3.0.0",), None, 12),
    ],
)
def test_lacking_operations_are_counted_and_bound_the_ratio(
    names: tuple[str, ...], rank: int | None, count: int, tmp_path: Path
) -> None:
    report = _without(tmp_path, *names, rank=rank)

    note = find_limitation(report, LACKING)
    assert note.count == count
    if rank is not None:
        assert note.reason.endswith(f"on node0 GPU {rank} ({count})")
    mean, low = report.summary.bubble_ratio["schedule"].mean, report.lower_bound("schedule")
    assert mean is not None
    assert low is not None
    assert low <= 3 / 11 + 0.001 < mean
    head = " ".join(text_of(report).split("\n\n")[0].split())
    assert MARK in head
    assert "with compute outside every operation counted as work" in head
    assert "; some ranks lack operations that others ran" in write_methods(report)
    assert LACKING in [entry["what"] for entry in make_document(report)["limitations"]]


def test_operations_that_no_rank_ran_are_not_lacking(tmp_path: Path) -> None:
    report = _without(tmp_path, "F3.0.0", "B3.0.0")

    assert not report.operations_lacking


@pytest.mark.parametrize("name", [rule.name for rule in schedules()])
def test_nothing_is_lacking_in_any_schedule(name: str) -> None:
    rule = find_schedule(name)
    schedule = name if rule.has_one_order else torch_csv.write(rule.plan(4, 8, rule.chunks))

    assert not analyze_planting(Planting(schedule=schedule)).operations_lacking
