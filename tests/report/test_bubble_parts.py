"""The parts of a bubble add up to the headline ratio, whatever the lengths of iterations."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import UsageError
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.render import json_document
from bubbleviz.render.palette import BUBBLE_PARTS
from bubbleviz.render.text.bubble_tables import make_cause_table
from bubbleviz.report.bubble_parts import (
    NOT_WORK,
    choose_step_window,
    compute_bubble_parts,
    compute_flops_use,
    compute_step_parts,
    divide_whole,
    list_parts,
    round_shares,
)
from bubbleviz.report.compared.spent_time import find_first_cause
from bubbleviz.report.report import Report
from bubbleviz.report.saved import read_saved
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import make_report
from tests.support.nsys_exports import ExportRows
from tests.support.places import FIXTURES
from tests.support.planted_runs import RUNS, ZERO_BUBBLE, analyze_planting


def headline_of(report: Report) -> float | None:
    return report.summary.bubble_ratio[report.bubbles.ratio].mean


def test_the_first_screen_has_the_requested_utilization(cli: CommandLine) -> None:
    run = ("analyze", str(FIXTURES / "1f1b"))

    screen, table = (cli.printed(*run, "--flops", "1e14/1e15", *v) for v in ((), ("-v", "time")))

    (line,) = (line for line in screen.splitlines() if "MFU" in line)
    assert line.startswith("model FLOPs utilization (MFU): ")
    assert line in table
    assert "MFU" not in cli.printed(*run)


def test_all_tables_begin_like_the_first_screen(cli: CommandLine) -> None:
    for name in ("1f1b", "zb-h2", "zb-v"):
        run = ("analyze", str(FIXTURES / name))
        (ratio, of), tables = cli.printed(*run).splitlines()[:2], cli.printed(*run, "-v")
        assert tables.splitlines()[:2] == [ratio, of]


@pytest.mark.parametrize(
    "run",
    [RUNS["stray while idle"], RUNS["late host"], replace(ZERO_BUBBLE, jitter=0.3, seed=5)],
    ids=["compute outside operations", "optimizer in the window", "unequal iterations"],
)
def test_parts_of_a_run_add_up(run: object, tmp_path: Path) -> None:
    truth = plant(run, tmp_path)  # type: ignore[arg-type]  # parametrised over Planting
    report = bubbleviz.analyze([str(tmp_path)], flops="4e12/1e15")
    parts = {part.name: part.share for part in compute_bubble_parts(report)}

    assert sum(parts.values()) == pytest.approx(headline_of(report), abs=1e-12)
    assert run is not RUNS["stray while idle"] or parts["unattributed"] > 0
    assert run is not RUNS["late host"] or parts["optimizer"] > 0
    window, step = choose_step_window(report), compute_step_parts(report)
    spent_ns = {part.name: part.time_ns for part in step}
    averaged = [i for i in report.iterations if i.ratios[window].value is not None]
    averaged_indices = {i.index for i in averaged}
    ran_ns = sum(
        o.active_ns for o in truth.operations if o.phase == "F" and o.iteration in averaged_indices
    )
    assert sum(part.share for part in step) == pytest.approx(1, abs=1e-12)
    assert spent_ns["F"] * len(report.ranks) * len(averaged_indices) == pytest.approx(ran_ns)
    for name in report.summary.bubble_ratio:
        run_parts = list_parts(report, averaged, name, with_work=True)
        assert sum(part.share for part in run_parts) == pytest.approx(1, abs=1e-12)
    mean_ns = sum(i.ratios[window].window_ns or 0 for i in averaged) / len(averaged)
    assert compute_flops_use(report) == pytest.approx(
        4e12 / (1e15 * len(report.ranks) * mean_ns / 1e9)
    )


@pytest.mark.parametrize("text", ["", "4e12", "4e12/0", "nan/1e15", "1/2/3", "4e12/inf"])
def test_invalid_flops_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be the FLOPs per iteration"):
        bubbleviz.analyze([str(FIXTURES / "1f1b")], flops=text)


def test_a_report_read_back_has_the_same_first_cause(tmp_path: Path) -> None:
    """Activity that is not work is a part of the bubble, like idle time."""
    report = analyze_planting(RUNS["late host"])
    (largest_part, *_) = parts = compute_bubble_parts(report)
    saved = tmp_path / "report.json"
    saved.write_text(json_document.render(report, View()))

    percentage = largest_part.share / sum(part.share for part in parts)
    assert find_first_cause(read_saved(str(saved))) == (largest_part.name, percentage)


def test_the_rows_of_the_table_add_up_to_its_last_row() -> None:
    report = bubbleviz.analyze([str(FIXTURES / "1f1b")])
    *rows, total = make_cause_table(report).rows

    for column in ("% of window", "% of bubble"):
        assert sum(Decimal(row[column]) for row in rows) == Decimal(total[column])


def test_every_part_has_a_color() -> None:
    assert {cause.label for cause in Cause} | {*NOT_WORK} == {*BUBBLE_PARTS}


def test_rounded_shares_add_up_to_the_rounded_sum() -> None:
    assert round_shares([]) == []
    assert round_shares([1 / 3, 1 / 3, 1 / 3]) == ["33.34", "33.33", "33.33"]
    assert round_shares([0.00004, 0.00004, 0.00004]) == ["0.01", "0.00", "0.00"]
    assert round_shares([0.1, 0.25], digits=0) == ["10", "25"]


@pytest.mark.parametrize("gap_ns", [0, 50_000])
def test_the_share_of_launch_gaps_is_a_share_of_operation_time(gap_ns: int) -> None:
    """Each operation takes 1 ms, or 2 ms for a full backward, and has two gaps."""
    report = analyze_planting(Planting(stages=2, microbatches=4, kernels=3, kernel_gap_ns=gap_ns))

    expected_ratio = 2 * 2 * gap_ns / 3_000_000
    assert report.launch_gap == pytest.approx(expected_ratio, abs=0.001)
    assert json_document.make_document(report)["summary"]["launch_gap"] == report.launch_gap


def test_a_report_without_operations_has_no_launch_gaps() -> None:
    assert make_report([]).launch_gap is None


@pytest.mark.parametrize(("gap_us", "saving"), [(0, None), (20, 0.2), (40, 0.4)])
def test_communication_inside_operations_is_no_launch_gap(
    tmp_path: Path, gap_us: int, saving: float | None
) -> None:
    """Operations compute for 60 us. For another 40 us, they communicate or run no kernel."""
    rows = ExportRows()
    for number in range(8):
        begin_ns = 1000 * (100 * number + 10)
        spans = [(0, 30, "gemm"), (30, 70 - gap_us, "ncclDevKernel_AllReduce"), (70, 100, "gemm")]
        for index, (start, end, name) in enumerate(spans):
            if end > start:
                called_ns = begin_ns - 9000 + 1000 * index
                rows.launch(
                    called_ns, begin_ns + 1000 * start, begin_ns + 1000 * end, name, took=100
                )
        rows.add_range(begin_ns - 9500, begin_ns - 5500, f"{'FB'[number % 2]}{number // 2}.0.0")
    report = bubbleviz.analyze(rows.write(tmp_path))

    savings = [
        advice.saving_ratio for advice in write_all_advice(report) if advice.kind == "launch-gaps"
    ]
    assert savings == ([] if saving is None else [pytest.approx(saving, rel=0.01)])

    # A table of operations does not contain kernels.
    table = str(tmp_path / "operations.csv")
    assert main(["analyze", str(tmp_path), "--csv", table]) == 0
    (advice,) = [a for a in write_all_advice(bubbleviz.analyze(table)) if a.kind == "launch-gaps"]
    assert "or overlap communication" in advice.action
    assert (
        "A table of operations does not distinguish launch gaps from communication" in advice.text
    )


def test_the_last_part_of_a_whole_is_rounded_on_its_own() -> None:
    # The largest remainder method would round the last part up to 93.97.
    parts = [0.00092, 0.0, 0.059436]

    assert round_shares([*parts, 1 - sum(parts)]) == ["0.09", "0.00", "5.94", "93.97"]
    assert divide_whole(parts, 1 - sum(parts)) == ["0.09", "0.00", "5.95", "93.96"]
    assert divide_whole([], 1.0) == ["100.00"]
