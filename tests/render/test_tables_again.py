"""The analysis of a written table gives the same ratios and causes as the original report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bubbleviz
from bubbleviz.render.formats import csv as csv_renderer
from bubbleviz.render.formats import get_renderer
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.support.planted_runs import BASE, RUNS, ZERO_BUBBLE, analyze_planting

pytestmark = pytest.mark.thorough

RENDERERS = {kind: get_renderer(kind) for kind in ("csv", "parquet")}
MORE = {
    "replicas": replace(BASE, replicas=2, servers=2),
    "tensor": replace(BASE, tensor=2, replicas=2, jitter=0.2),
    "overhead": replace(BASE, overhead=True),
    "dualpipe": replace(ZERO_BUBBLE, schedule="dualpipe", microbatches=8),
    "iterations that cannot be paired": replace(BASE, schedule="chimera", servers=2),
    "clocks without a bound": replace(BASE, stages=1, replicas=2, servers=2),
    "missing ranks": replace(BASE, files="rank", absent=(1,)),
    "drift": replace(BASE, servers=2, drift_ppb=(0, 20_000)),
}


def analyze_written_table(report: Report, folder: Path, kind: str) -> Report:
    """Write the operations of a report to a table, and return the analysis of the table."""
    content = RENDERERS[kind].render(report, View())
    path = folder / f"operations.{kind}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return bubbleviz.analyze(path)


def collect_values(report: Report) -> dict[str, Any]:
    """Return all values that must be preserved, such as ratios, windows and causes."""
    return {
        "headline": report.headline,
        "ranks": [(rank.stage, rank.pipeline, rank.host) for rank in report.ranks],
        "iterations": [
            (i.name, i.kind, i.complete, i.averaged, i.microbatches, dict(i.ratios))
            for i in report.iterations
        ],
        "accounts": [
            (r.rank, name, *(getattr(account, field) for field in ACCOUNT))
            for i in report.iterations
            for r in i.ranks
            for name, account in r.accounts.items()
        ],
        "collectives": [
            getattr(report.collectives, name).tolist()
            for name in ("rank", "iteration", "start_ns", "end_ns", "operation", "order")
        ],
        "meetings": group_meetings(report.collectives.meeting.tolist()),
        "slowdowns": report.slowdowns and report.slowdowns.total,
        "causes": {n: t.tolist() for n, t in report.explanation.causes.idle_ns.items()},
    }


def group_meetings(meetings: list[int]) -> list[list[int]]:
    """Return the rows of each meeting, sorted by the first row."""
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(meetings):
        if number >= 0:
            rows.setdefault(number, []).append(row)
    return sorted(rows.values())


ACCOUNT = (
    "start_ns",
    "end_ns",
    "compute_ns",
    "optimizer_ns",
    "overlap_ns",
    "unattributed_ns",
    "bubble_ns",
)


def check_table(report: Report, folder: Path, kind: str) -> None:
    first, second = (
        collect_values(report),
        collect_values(analyze_written_table(report, folder, kind)),
    )
    for quantity, expected in first.items():
        assert second[quantity] == expected, quantity


@pytest.mark.parametrize("kind", RENDERERS)
@pytest.mark.parametrize("name", [*RUNS, *MORE])
def test_tables_of_planted_runs_give_the_same_ratios_and_causes(
    name: str, kind: str, tmp_path: Path
) -> None:
    check_table(analyze_planting((RUNS | MORE)[name]), tmp_path, kind)


def test_a_table_of_a_table_is_the_same_table(report: Report, tmp_path: Path) -> None:
    first = analyze_written_table(report, tmp_path, "csv")
    second = analyze_written_table(first, tmp_path, "csv")

    assert csv_renderer.render(second, View()) == csv_renderer.render(first, View())


@pytest.mark.parametrize("kind", RENDERERS)
def test_a_time_of_minus_one_is_known(kind: str, tmp_path: Path) -> None:
    rows = ("0,0,F,0,-10,-1", "0,0,B,0,20,30", "1,0,F,0,-1,9", "1,0,B,0,9,20")
    path = tmp_path / "given.csv"
    path.write_text("\n".join(("rank,iteration,phase,microbatch,start_ns,end_ns", *rows)))
    check_table(bubbleviz.analyze(path), tmp_path, kind)


def test_documented_columns_come_first(report: Report, tmp_path: Path) -> None:
    header = csv_renderer.render(report, View()).partition("\n")[0].split(",")
    (tmp_path / "t.parquet").write_bytes(RENDERERS["parquet"].render(report, View()))
    frame = pl.read_parquet(tmp_path / "t.parquet")

    columns = [*report.operations.list_columns()][:15]
    assert header[: len(columns)] == columns
    assert header == [name for name in frame.columns if not name.startswith("second_")]
    assert frame.height == len(report.operations)
    assert frame["start_ns"].to_list() == report.operations.start_ns.tolist()
