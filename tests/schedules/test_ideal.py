"""Simulated schedules: published costs on the command line, and the drawn report."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.cli.app import main
from bubbleviz.errors import UsageError
from bubbleviz.report.ideal_run import make_report
from bubbleviz.schedules.ideal import ideal
from bubbleviz.schedules.known import schedules
from bubbleviz.schedules.measured_times import StageTimes
from tests.support.command_line import CommandLine
from tests.support.published_orders import WITH_ORDER
from tests.support.published_rates import PUBLISHED_RUNS, STAGES

EQUAL = StageTimes((1.0,), (1.0,), (1.0,))
#: Options that every call needs in addition to a schedule.
SIZES = ("-p", "4", "-m", "8", "--tf", "1", "--tb", "1", "--tw", "1")


@pytest.mark.parametrize(
    ("theirs", "name"),
    [("1F1B", "1f1b"), ("ZB-H1", "zb-h1"), ("ZB-H2", "zb-h2"), ("1F1B-I", "1f1b-i")],
)
def test_the_command_gives_the_rates_of_the_paper(theirs: str, name: str, cli: CommandLine) -> None:
    for run in PUBLISHED_RUNS:
        tf, tb, tw, tcomm = (str(us / 1000) for us in run.times_us)
        times = ("--tf", tf, "--tb", tb, "--tw", tw, "--tcomm", tcomm)
        chunks = ("--chunks", str(run.chunks)) if name == "1f1b-i" else ()
        sizes = ("-p", str(STAGES), "-m", str(run.microbatches))
        options = ("--schedule", name, *sizes, *times, *chunks)
        document = cli.json("simulate", *options, "--json", "-")

        assert document["bubble_ratio"]["stage"] == pytest.approx(run.rates[theirs], abs=5e-5)
        if name == "1f1b-i":
            assert document["bubble_ratio"]["schedule"] is document["makespan_ms"] is None
            assert document["peak_activations"] is document["memory"] is None
            assert "a formula without an order of operations" in cli.printed("simulate", *options)


def test_the_document_has_the_promised_keys(cli: CommandLine) -> None:
    document = cli.json("simulate", "--schedule", "zb-v", *SIZES, "--json", "-")

    assert document["schema"] == "bubbleviz.simulation/1"
    assert (document["schedule"], document["stages"], document["microbatches"]) == ("zb-v", 4, 8)
    assert document["chunks"] == 2
    assert document["cost_ms"] == 24.0
    assert document["makespan_ms"] == 25.5
    assert document["bubble_ratio"] == {"stage": 0.0, "schedule": pytest.approx(1.5 / 25.5)}
    assert document["peak_activations"] == [4.0] * 4


def test_a_slow_stage_sets_the_pace() -> None:
    slow = StageTimes((1.0, 3.0, 1.0, 1.0), (1.0,), (1.0,))

    assert ideal("1f1b", 4, 8, EQUAL).cost_ms == 33.0
    # Stage 1 begins after one F of stage 0, and works for 8 x 5.
    # Its last microbatch goes to the end and back, which takes 1 + 1 + 2 + 2.
    # Meanwhile, stage 1 runs two backwards of 2 and is idle for 2.
    # Stage 0 ends the iteration in 2.
    assert ideal("1f1b", 4, 8, slow).cost_ms == 1 + 8 * 5 + 2 + 2
    assert ideal("gpipe", 4, 8, EQUAL).peak_activations == (8.0,) * 4
    assert ideal("1f1b", 4, 8, EQUAL).peak_activations == (4.0, 3.0, 2.0, 1.0)


def test_times_of_zero_give_no_ratio() -> None:
    result = ideal("1f1b", 2, 2, StageTimes((0.0,), (0.0,), (0.0,)))

    assert (result.cost_ms, result.stage_ratio, result.schedule_ratio) == (0.0, None, None)


@settings(max_examples=60)
@given(
    schedule=st.sampled_from(WITH_ORDER),
    stages=st.integers(1, 5),
    groups=st.integers(1, 4),
    times=st.lists(st.integers(1, 9), min_size=4, max_size=4),
)
def test_a_measurement_of_the_ideal_has_its_ratios(
    schedule: Any, stages: int, groups: int, times: list[int]
) -> None:
    """The drawn report is analyzed like a measurement, and agrees with the simulation."""
    forward, backward, weight, transfer = (float(time) for time in times)
    times_ = StageTimes((forward,), (backward,), (weight,), transfer)
    try:
        result = ideal(schedule.name, stages, stages * groups, times_)
    except UsageError:
        result = ideal(schedule.name, 2 * stages, 4 * stages * groups, times_)
    ratios = make_report(result).summary.bubble_ratio

    # The times of a report are whole nanoseconds.
    assert ratios["stage"].mean == pytest.approx(result.stage_ratio, abs=1e-5)
    assert ratios["schedule"].mean == pytest.approx(result.schedule_ratio, abs=1e-5)


def test_the_picture_is_drawn_and_reproducible(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        options = ["--schedule", "zb-h1", *SIZES, "--svg", str(tmp_path / name)]
        assert main(["simulate", *options]) == 0
    picture = (tmp_path / "a.svg").read_bytes()

    assert picture == (tmp_path / "b.svg").read_bytes()
    text = "".join(ET.fromstring(picture).itertext())
    assert "stage 3" in text
    assert "schedule bubble ratio" in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("--schedule", "1f2b", *SIZES),
            "unknown schedule '1f2b'; the known schedules are 1f1b, 1f1b-i, ch",
        ),
        (("--schedule", "1f1b", *SIZES, "-p", "0"), "0 stages: must be at least 1"),
        (("--schedule", "1f1b", *SIZES, "-m", "0"), "0 microbatches: must be at least 1"),
        (("--schedule", "1f1b", *SIZES, "--chunks", "0"), "0 chunks: must be at least 1"),
        (("--schedule", "1f1b", *SIZES, "--chunks", "2"), "one chunk"),
        (("--schedule", "1f1b", *SIZES, "--tf", "1,2"), "--tf: 2 times for 4 stages"),
        (("--schedule", "1f1b", *SIZES, "--tw", "fast"), "--tw fast: not a time in milliseconds"),
        (("--schedule", "1f1b", *SIZES, "--tb", "-1"), "--tb: -1.0 is not a valid time"),
        (("--schedule", "1f1b", *SIZES, "--tb", "nan"), "--tb: nan is not a valid time"),
        (
            ("--schedule", "1f1b", *SIZES, "--tcomm", "1e99"),
            "--tcomm: 1e+99 is not a valid time in milliseconds",
        ),
        (
            ("--schedule", "1f1b", *SIZES, "--tf", "1e-7"),
            "--tf: 1e-07 ms is less than a nanosecond",
        ),
        (("--schedule", "1f1b", *SIZES, "-m", "900000"), "but only 5,000,000"),
        (("--schedule", "1f1b", *SIZES, "-p", "100000", "-m", "2"), "the maximum is 5,000"),
        (("--schedule", "zb-1p", *SIZES, "-p", "100000", "-m", "2"), "the maximum is 5,000"),
        (("--schedule", "zb-1p", *SIZES, "--memory-limit", "1e308"), "not an amount of memory"),
        (("--schedule", "zb-1p", *SIZES, "--memory-b", "0"), "--memory-b: must be more than 0"),
        (("--schedule", "1f1b", *SIZES, "-m", "2000", "--tf", "1e10"), "too long to simulate"),
        (("--schedule", "zb-v", *SIZES, "-m", "2000", "--tcomm", "1e10"), "too long to simulate"),
        (("--schedule", "interleaved-zb", *SIZES, "-m", "6"), "a multiple of the 4 stages"),
        (
            ("--schedule", "1f1b", *SIZES, "--memory-limit", "4"),
            "no effect on 1f1b, whose order is fixed",
        ),
        (
            ("--schedule", "zb-1p", *SIZES, "--memory-limit", "0.5"),
            "too small; a single microbatch",
        ),
        (("--schedule", "zb-1p", *SIZES, "--memory-limit", "nan"), "--memory-limit nan: not an"),
        (("--schedule", "zb-1p", *SIZES, "--memory-b", "inf"), "--memory-b inf: not an amount"),
        (
            ("--schedule", "zb-1p", *SIZES, "--memory-w", "2"),
            "--memory-w: M_W (2) cannot exceed M_B (1)",
        ),
        (
            ("--schedule", "zb-1p", *SIZES, "--memory-b", "10GB", "--memory-w", "20GB"),
            "--memory-w: M_W (20.00 GB) cannot exceed M_B (10.00 GB)",
        ),
        (
            ("--schedule", "zb-1p", *SIZES, "--memory-b", "10GB", "--memory-limit", "1GB"),
            "--memory-limit 1.00 GB: too small; a single microbatch needs 10.00 GB",
        ),
        (
            ("--schedule", "zb-1p,1f1b", *SIZES, "--memory-limit=junk"),
            "--memory-limit junk: not an amount of memory",
        ),
        (
            ("--schedule", "zb-1p,1f1b", *SIZES, "--memory-limit", "4"),
            "the --memory options need exactly one schedule and size",
        ),
        (("--schedule", "zb-2p", *SIZES, "--chunks", "2"), "zb-2p needs exactly one chunk"),
        (("--schedule", "v-min", *SIZES, "--chunks", "1"), "v-min needs exactly two chunks"),
        (("--schedule", "chimera", *SIZES, "--chunks", "2"), "chimera needs exactly one chunk"),
        (("--schedule", "chimera", *SIZES, "-m", "6"), "a multiple of the number of stages"),
        (("--schedule", "chimera", *SIZES, "-p", "3", "-m", "6"), "even number of stages"),
        (("--schedule", "1f1b-i", *SIZES, "--svg", "-"), "cannot be drawn"),
        (("--schedule", "1f1b-i", *SIZES, "--memory-b", "2"), "the --memory options do not apply"),
        (("--schedule", "1f1b-i", *SIZES, "--tf", "1,2,1,1"), "a formula for equal stages"),
        (
            ("--schedule", "1f1b-i", *SIZES, "-m", "6"),
            "a multiple of the 4 stages, not 6",
        ),
    ],
)
def test_what_cannot_be_simulated_is_explained_in_a_sentence(
    options: tuple[str, ...], expected: str, cli: CommandLine
) -> None:
    err = cli.refused("simulate", *options, code=2)

    assert expected in err


def test_schedules_are_listed_with_their_sources(cli: CommandLine) -> None:
    out = cli.printed("schedules")

    for rule in schedules():
        assert rule.name in out
    assert "arXiv 2401.10241" in out


def test_zero_memory_goes_with_any_unit(cli: CommandLine) -> None:
    options = ("--schedule", "zb-1p", *SIZES, "--memory-b", "10GB", "--memory-w", "0")
    memory = cli.json("simulate", *options, "--json", "-")["memory"]

    assert (memory["in_bytes"], memory["backward"], memory["weight"]) == (True, 1e10, 0)


def test_more_memory_than_all_activations_need_is_no_limit(cli: CommandLine) -> None:
    printed = []
    for limit in ("1e3", "1e29"):
        options = ("--schedule", "zb-1p", *SIZES, "--memory-limit", limit)
        document = cli.json("simulate", *options, "--json", "-")
        assert document["memory"].pop("limit") == float(limit)
        printed.append(document)

    assert printed[0] == printed[1]
