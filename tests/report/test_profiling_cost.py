"""Comparison of profiled steps with an unprofiled step."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.errors import UsageError
from bubbleviz.report.profiled_run import list_profiling_sentences, measure_profiling_cost
from bubbleviz.report.profiling_cost import (
    ProfilingCost,
    describe_cost_and_bounds,
    describe_profiling_cost,
    parse_unprofiled_step,
)

SECOND = 1_000_000_000


def write_run(path: Path, step_ns: int, overhead_ns: int) -> Path:
    """Write a run of two stages, whose first rank the profiler stops in each of four steps."""
    lines = ["rank,phase,iteration,stage,microbatch,start_ns,end_ns,profiler"]
    half_ns = step_ns // 4
    for iteration in range(4):
        start_ns = SECOND + iteration * step_ns
        for rank, shift in ((0, 0), (1, half_ns)):
            begin_ns = start_ns + shift
            end_ns = begin_ns + half_ns // 2
            backward_ns = start_ns + (3 - rank) * half_ns
            cell = f"{end_ns}..{end_ns + overhead_ns}" if rank == 0 and overhead_ns else ""
            lines += [
                f"{rank},F,{iteration},{rank},0,{begin_ns},{end_ns},{cell}",
                f"{rank},BW,{iteration},{rank},0,{backward_ns},{backward_ns + half_ns},",
            ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_published_example_is_mostly_unexplained(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.csv", 34_600_000_000, 230_000_000)
    report = bubbleviz.analyze(path, unprofiled_step="29.39s")
    cost = report.derive(measure_profiling_cost)
    assert cost is not None
    assert (cost.profiled_ns, cost.steps) == (34_600_000_000, 3)
    assert cost.overhead_ns == 230_000_000
    assert cost.unexplained_ns == 4_980_000_000
    (text,) = list_profiling_sentences(report)
    assert "Profiled steps take 34.600 s, 1.18x the unprofiled 29.390 s" in text
    assert "overhead explains 230.000 ms of the additional 5.210 s" in text
    assert "4.980 s (14.39 % of a profiled step) are unexplained" in text
    assert report.to_dict()["profiling_cost"]["unexplained_ns"] == 4_980_000_000


def test_the_ratio_has_bounds_and_every_output_is_marked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.csv", 1_000_000, 0)
    report = bubbleviz.analyze(path, unprofiled_step="900us")
    cost = report.derive(measure_profiling_cost)
    assert cost is not None
    ratio = report.summary.bubble_ratio[report.headline].mean or 0.0
    window_ns = report.summary.window_ns[report.headline].mean or 0.0
    low, high = cost.bound_ratio(ratio, window_ns) or (0.0, 0.0)
    assert low == pytest.approx((ratio * window_ns - 100_000) / (window_ns - 100_000))
    assert high == pytest.approx(ratio * window_ns / (window_ns - 100_000))
    words = "Without the profiler, the ratio may be anything from"
    for suffix in ("txt", "md", "tex"):
        report.save(tmp_path / f"report.{suffix}")
        written = (tmp_path / f"report.{suffix}").read_text(encoding="utf-8")
        assert words in re.sub(r"\s+", " ", written)


def make_cost(profiled: float, *, error: float = 0.0, overhead: float = 0.0) -> ProfilingCost:
    return ProfilingCost(100_000, profiled, error, 3, overhead)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (make_cost(100_900), "equal within the uncertainty of 1.000 us"),
        (make_cost(103_000, error=4_000), "equal within the uncertainty of 4.000 us"),
        (make_cost(110_000, error=20_000), "10.000 us (9.09 % of a profiled step)"),
        (make_cost(90_000), "so they are shorter"),
        (make_cost(2_100_000), "check the unit"),
        (make_cost(49_000), "check the unit"),
        (make_cost(120_000), "no profiler overhead was recorded, so 20.000 us (16.67 %"),
        (make_cost(120_000, overhead=5_000), "explains 5.000 us of the additional 20.000 us"),
        (make_cost(120_000, overhead=50_000), "and 0.000 us (0.00 %"),
    ],
)
def test_sentences_describe_each_case(cost: ProfilingCost, words: str) -> None:
    assert words in describe_profiling_cost(cost)


def test_large_ratios_are_shown_without_an_exponent() -> None:
    cost = ProfilingCost(10_000, 117_000_000.0, 0.0, 3, 0.0)
    assert "11,700x the unprofiled 10.000 us: check the unit" in describe_profiling_cost(cost)


def test_bounds_need_a_longer_step_and_a_long_window() -> None:
    assert make_cost(90_000).bound_ratio(0.5, 90_000) is None
    assert make_cost(120_000).bound_ratio(0.5, 20_000) is None
    assert make_cost(120_000).bound_ratio(0.1, 100_000) == (0.0, 0.125)
    assert "Without" not in describe_cost_and_bounds(make_cost(100_500), 0.5, 100_500)
    assert "Without" not in describe_cost_and_bounds(make_cost(120_000), None, None)


@pytest.mark.parametrize(
    ("text", "length_ns"),
    [("29.39s", 29_390_000_000), ("850 ms", 850_000_000), ("120us", 120_000), ("0.5µs", 500)],
)
def test_times_have_units(text: str, length_ns: int) -> None:
    assert parse_unprofiled_step(text) == length_ns


@pytest.mark.parametrize("text", ["", "29.39", "-5ms", "0s", "nan", "1e3s", "inf s", "5 minutes"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--unprofiled-step"):
        parse_unprofiled_step(text)


def test_saved_reports_keep_the_comparison(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run.csv", 1_000_000, 10_000)
    report = bubbleviz.analyze(path, unprofiled_step="900us")
    report.save(tmp_path / "run.json")
    entry = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["profiling_cost"]
    assert (entry["overhead_ns"], entry["unprofiled_ns"]) == (10_000, 900_000)
    loaded = bubbleviz.load(tmp_path / "run.json")
    assert loaded.profiling_cost is not None
    assert loaded.profiling_cost.unexplained_ns == 90_000
