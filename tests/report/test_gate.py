"""Verdicts and exit codes of the gate, and damaged saved reports."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.restrictions import Restriction
from bubbleviz.report.gate import check_limits, parse_limits
from bubbleviz.report.restrictions import RESTRICTIONS
from bubbleviz.report.saved import is_saved_report, read_saved
from bubbleviz.report.summary import RunSummary
from tests.planting import Planting, plant
from tests.support.averages import make_average
from tests.support.command_line import CommandLine
from tests.support.places import FIXTURES
from tests.support.summaries import make_saved_run

NONE = {"mean": None, "std": None, "min": None, "max": None, "ci95": None, "n": 0}


def write_altered_report(saved: Path, folder: Path, *path: str | int, value: Any) -> str:
    """Write a copy of the report with one value replaced, and return its path."""
    document = json.loads(saved.read_text())
    parent: Any = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    file = folder / "altered.json"
    file.write_text(json.dumps(document))
    return str(file)


#: Memory of operations, in bytes.
OPERATION = dict.fromkeys(
    ("virtual_stage", "n", "net_bytes", "above_bytes", "held_bytes", "kept_bytes"), 0
)


# Tests of missing values and ties.


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"0",
        b'""',
        b"{",
        b"\xff",
        b"\0",
        b"[" * 100_000,
        b'{"schema": 1e999}',
    ],
)
def test_files_that_are_not_reports_are_refused_in_a_sentence(
    content: bytes, tmp_path: Path, cli: CommandLine
) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    code, out, err = cli("gate", str(file), "--max-bubble", "schedule=0.1")

    assert (code, out) == (1, "")
    assert "is not a bubbleviz report" in err
    assert "; write one with bubbleviz analyze -o report.json" in err
    assert err.count("\n") == 1


def make_report_with_mean(mean: float | None, n: int = 3) -> RunSummary:
    """Return a report with the given mean of the ratio ``schedule``."""
    none = make_average(None, None, 0)
    std = 0.0 if n > 1 else None
    bubble = none if mean is None else make_average(mean, std, n)
    return make_saved_run({"schedule": (bubble, none)})


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 9))
@example(0.12, 0.12, 3)
@example(0.12000000000000011, 0.12, 3)
def test_a_line_never_contradicts_itself(mean: float, maximum: float, n: int) -> None:
    (check,) = check_limits(
        make_report_with_mean(mean, n), parse_limits([f"schedule={maximum!r}"]), "x"
    )
    verdict, _, value = check.line.split()[:3]

    assert check.passed == (mean <= maximum)
    assert verdict == ("ok:" if check.passed else "FAILED:")
    assert (float(value) <= maximum) == check.passed
    assert float(value) == pytest.approx(mean, abs=1e-4)
    assert ("1 iteration)" in check.line) == (n == 1)


@pytest.mark.parametrize(
    ("limits", "code", "expected"),
    [
        ([], 2, "nothing to check; pass a limit with --max-bubble"),
        (["<script>\n=0.5"], 1, "has no ratio '<script>', only schedule, stage, step"),
        (["shedule=12%"], 1, "did you mean schedule?"),
        (["step=0.1", "schedule=0.1", "step=3ms", " step = 20%"], 2, "'step' has two limits"),
    ],
)
def test_limits_that_do_not_fit_are_refused(
    limits: list[str], code: int, expected: str, saved: Path, cli: CommandLine
) -> None:
    options = [word for limit in limits for word in ("--max-bubble", limit)]

    assert expected in cli.refused("gate", str(saved), *options, code=code)


@pytest.mark.parametrize("before", [True, False])
def test_a_file_after_the_switch_for_json_is_not_an_input(
    before: bool, saved: Path, tmp_path: Path, cli: CommandLine
) -> None:
    output = ("--json", tmp_path / "out.json")
    arguments = (*output, saved) if before else (saved, *output)

    refusal = cli.refused("gate", *arguments, "--max-bubble", "30%", code=2)

    assert f"out.json: no such file; to write JSON to this file, pass -o {output[1]}, or" in refusal
    assert not output[1].exists()


# Tests of verdicts.


def test_a_report_without_an_averaged_iteration_is_read(tmp_path: Path, cli: CommandLine) -> None:
    plant(Planting(schedule="dualpipe", microbatches=16, servers=2), tmp_path)
    report = tmp_path / "report.json"
    assert main(["analyze", str(tmp_path), "--json", str(report)]) == 0

    assert read_saved(str(report)).summary.bubble_ratio["schedule"].n == 0
    refused = cli("gate", str(report), "--max-bubble", "schedule=1")[2]
    assert "the ratio schedule is unknown in all iterations" in refused


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "schedule",
        "schedule=",
        "=0.1",
        "schedule=x",
        "schedule=nan",
        "schedule=inf",
        "schedule=12",
        "schedule=-0.1",
        "schedule=12%%",
        "schedule=%",
        "schedule=-1%",
        "schedule=1e2%",
        "schedule=nan%",
        "schedule=0.1%x",
        "x" * 10_000,
    ],
)
def test_limits_in_another_form_are_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match="must have the form 30% or 9ms for the primary ratio"
    ) as refusal:
        parse_limits([text])

    assert len(str(refusal.value)) < 200


def test_limits_in_percent_are_printed_in_percent(saved: Path, cli: CommandLine) -> None:
    """A limit without a name applies to the primary ratio."""
    lines = [
        cli("gate", str(saved), "--max-bubble", limit)[:2]
        for limit in ("27%", "schedule=27.2727%", " 30 %", "schedule=0.3")
    ]

    assert lines == [
        (3, "FAILED: schedule 27.27 % is above 27 % (mean of 3 iterations)\n"),
        (3, "FAILED: schedule 27.273 % is above 27.2727 % (mean of 3 iterations)\n"),
        (0, "ok: schedule 27.27 % is at most 30 % (mean of 3 iterations)\n"),
        (0, "ok: schedule 0.2727 is at most 0.3 (mean of 3 iterations)\n"),
    ]


@pytest.mark.parametrize(
    ("options", "code", "lines"),
    [
        (
            ("--max-bubble", "9ms", "--max-bubble", "step=50%", "--max-time", "step=33 ms"),
            3,
            (
                "ok: schedule bubble 9.000 ms is at most 9 ms",
                "ok: step 26.87 % is at most 50 %",
                "FAILED: window of step 33.500 ms is above 33 ms",
            ),
        ),
        (
            ("--baseline", str(FIXTURES / "1f1b")),
            0,
            (
                "ok: schedule 27.27 % is at most 28.27 %, 1 pt above 1f1b",
                "ok: window of period 33.500 ms is at most 34.170 ms, 2 % above 1f1b",
            ),
        ),
        (
            ("--baseline", "{better}", "--max-increase", "2.5pt", "--max-increase", "1%"),
            3,
            (
                "ok: schedule 27.27 % is at most 27.50 %, 2.5 pt above better.json",
                "FAILED: window of period 33.500 ms is above 30.300 ms, 1 % above better.json",
            ),
        ),
    ],
)
def test_times_and_baselines_can_be_limits(
    options: tuple[str, ...],
    code: int,
    lines: tuple[str, ...],
    saved: Path,
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    document = json.loads(saved.read_text())
    for quantity, mean in (("bubble_ratio", 0.25), ("window_ns", 30e6)):
        for name in ("schedule", "period"):
            document["summary"][quantity][name]["mean"] = mean
    names = {"saved": str(saved), "better": str(tmp_path / "better.json")}
    Path(names["better"]).write_text(json.dumps(document))
    arguments = [word.format(**names) for word in options]

    # The last iteration has no period.
    expected_lines = [f"{line} (mean of {3 - ('period' in line)} iterations)" for line in lines]
    assert cli("gate", str(saved), *arguments)[:2] == (code, "\n".join(expected_lines) + "\n")
    # Profiles give the same results as the report on them, also in JSON.
    document_of_gate = json.loads(cli("gate", str(FIXTURES / "1f1b"), *arguments, "--json")[1])
    assert [check["text"] for check in document_of_gate["checks"]] == expected_lines
    assert document_of_gate["passed"] == (code == 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--max-increase", "1pt"), "--max-increase needs a report to compare with"),
        (("--max-bubble", "30"), "did you mean 30%?"),
        (
            ("--max-bubble", "200%"),
            "--max-bubble '200%': a ratio cannot exceed 100 %: pass a lower limit\n",
        ),
        (("--max-bubble", "schedule=101%"), "a ratio cannot exceed 100 %: pass a lower limit\n"),
        (("--baseline", "{idle}"), "is about idle time, but the report to check is about pipeline"),
        (
            ("--promised-by", "{idle}"),
            "is about idle time, but the report to check is about pipeline",
        ),
        (
            ("--baseline", "{saved}", "--max-increase", "1"),
            "must be percentage points of the ratio, such as 1pt",
        ),
        (("--max-time", "step=30%"), "must have the form 120ms for the window of the primary"),
        (("--max-time", "10"), "did you mean 10ms?"),
        (("--max-time", "step=10.5"), "did you mean step=10.5ms?"),
        (("--max-time", "10 s"), "or step=120ms for another window\n"),
        (("--max-time", ""), "or step=120ms for another window\n"),
        (("--max-bubble", "1pt"), "must have the form 30% or 9ms"),
    ],
)
def test_limits_on_times_and_baselines_in_another_form_are_refused(
    options: tuple[str, ...], expected: str, saved: Path, tmp_path: Path, cli: CommandLine
) -> None:
    idle = tmp_path / "idle.json"
    bubbleviz.idle(FIXTURES / "1f1b").save(idle)
    arguments = [word.format(saved=saved, idle=idle) for word in options]
    assert expected in cli.refused("gate", str(saved), *arguments, code=2)


def test_damaged_idle_reports_are_refused_with_the_idle_command(
    tmp_path: Path, cli: CommandLine
) -> None:
    idle = tmp_path / "idle.json"
    bubbleviz.idle(FIXTURES / "1f1b").save(idle)
    document = json.loads(idle.read_text())
    document["ranks"][0] = 3
    idle.write_text(json.dumps(document))

    error = cli.refused("gate", str(idle), "--max-bubble", "3%", code=1)

    assert "; write one with bubbleviz idle -o report.json" in error


# Tests of uncertain ratios.


def write_doubtful_report(
    saved: Path, folder: Path, bounds: list[float] | None, **flags: bool
) -> str:
    """Write a copy with other bounds of ``schedule`` and other flags of an iteration."""
    document = json.loads(saved.read_text())
    document["summary"]["bubble_interval"]["schedule"] = bounds
    document["iterations"][1].update(flags)
    file = folder / "doubted.json"
    file.write_text(json.dumps(document))
    return str(file)


@pytest.mark.parametrize(
    ("bounds", "contradicted", "code", "line"),
    [
        (None, False, 0, "ok: schedule 0.2727 is at most 0.3 (mean of 3 iterations)"),
        ([0.25, 0.3], False, 0, "ok: schedule 0.2727 is at most 0.3 (mean of 3 iterations)"),
        (
            [0.25, 0.30001],
            False,
            3,
            "FAILED: schedule 0.2727 is at most 0.3 (mean of 3 iterations); clock uncertainty "
            "allows up to 0.30001, above 0.3",
        ),
        (
            [0.25, 0.29],
            True,
            0,
            "ok: schedule 0.2727 is at most 0.3 (mean of 3 iterations); it relies on clocks that "
            "contradict each other",
        ),
        ([0.1, 0.5], False, 3, "FAILED: schedule 0.2727 is above 0.2 (mean of 3 iterations)"),
        (
            [-0.1, 0.7],
            True,
            3,
            "FAILED: schedule 0.2727 is at most 0.3 (mean of 3 iterations); clock uncertainty "
            "allows up to 0.7000, above 0.3; it relies on clocks that contradict each other",
        ),
    ],
)
def test_clock_bounds_count(
    bounds: list[float] | None,
    contradicted: bool,
    code: int,
    line: str,
    saved: Path,
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    report = write_doubtful_report(saved, tmp_path, bounds, clocks_contradict=contradicted)

    limit = "0.2" if "above 0.2 " in line else "0.3"
    assert cli("gate", report, "--max-bubble", f"schedule={limit}") == (code, f"{line}\n", "")


@pytest.mark.parametrize(
    ("present", "restriction"),
    [
        (
            (1, 2),
            "incomplete: ranks of the run are missing; "
            "stages are counted from the first stage that has a profile",
        ),
        (
            (0, 1, 3),
            "incomplete: ranks of the run are missing; stages are counted among the given ranks",
        ),
    ],
)
def test_the_ratio_of_a_part_fails_unless_parts_are_allowed(
    present: tuple[int, ...], restriction: str, tmp_path: Path, cli: CommandLine
) -> None:
    report = str(tmp_path / "report.json")
    ranks = [str(FIXTURES / "zb-v" / f"rank{rank}.sqlite") for rank in present]
    assert main(["analyze", *ranks, "--json", report]) == 0

    code, out, err = cli("gate", report, "--max-bubble", "schedule=0.3")
    assert (code, err) == (3, "")
    assert out.startswith("FAILED: schedule ")
    verdict, _, hint = out.partition(f", but {restriction}")
    assert hint == "; to check only the recorded ranks, pass --allow-incomplete\n"
    code, allowed, _ = cli("gate", report, "--max-bubble", "schedule=0.3", "--allow-incomplete")
    assert (code, allowed) == (0, f"{verdict.replace('FAILED', 'ok')}, but {restriction}\n")
    assert cli("gate", report, "--max-bubble", "schedule=0", "--allow-incomplete")[0] == 3
    refusal = cli.refused("gate", report, "--baseline", report)
    heaviest = restriction.partition(";")[0]
    assert f"{heaviest}, so nothing can be compared with it" in refusal
    assert cli("gate", report, "--baseline", report, "--allow-incomplete")[0] == 0


@pytest.mark.parametrize(
    "kind", [restriction for restriction in RESTRICTIONS if restriction.no_pipeline_reason]
)
@pytest.mark.parametrize("ratio", ["schedule", "stage", "step", "period"])
def test_a_single_stage_is_no_pipeline_to_check(
    ratio: str, kind: Restriction, saved: Path, tmp_path: Path, cli: CommandLine
) -> None:
    report = write_altered_report(saved, tmp_path, "restrictions", value=[{"code": kind.code}])
    message = cli.refused("gate", report, "--max-bubble", f"{ratio}=0.9", code=1)

    assert (
        f"{kind.no_pipeline_reason}, so {ratio} is not the bubble of a pipeline and cannot be"
        in message
    )


# Tests of saved reports.


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("schema",), "bubbleviz.report/1", "analyze the profiles again with this version"),
        (("schema",), "bubbleviz.report/9", "its schema is 'bubbleviz.report/9', not"),
        (("schema",), "x" * 10_000, "its schema is 'xxxx"),
        (("schema",), None, "Expected `str`"),
        (("headline",), "nothing", "lacks its primary ratio"),
        (("then",), [99], "refers to advice that it does not contain"),
        (("summary",), [], "instead of object"),
        (("summary", "window_ns"), {}, "lacks the window of 'period'"),
        (("summary", "iterations"), -1, ">= 0"),
        (("summary", "bubble_ratio", "stage", "mean"), "0.1", "instead of float | null"),
        (("summary", "bubble_ratio", "stage", "mean"), True, "instead of float | null"),
        (("summary", "bubble_ratio", "stage", "mean"), 1e300, "<= 1e+30"),
        (("summary", "bubble_ratio", "stage", "mean"), None, "n = 3 contradict each other"),
        (("summary", "bubble_ratio", "stage", "std"), -1.0, ">= 0"),
        (("summary", "bubble_ratio", "stage", "n"), 1, "n = 1 contradict each other"),
        (("summary", "bubble_ratio", "stage", "n"), 2.5, "instead of int"),
        (("summary", "bubble_interval", "step"), [0.1], "length 2"),
        (("ranks",), 4, "instead of array"),
        (("ranks",), [None], "instead of object"),
        (("ranks",), [{"label": "GPU 0"}], "ranks[0] has no field index"),
        (("critical_path",), True, "instead of object | null"),
        (("limitations",), 0, "instead of array"),
    ],
)
def test_a_tampered_report_is_refused_with_the_place(
    path: tuple[str | int, ...], value: Any, expected: str, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refusal:
        read_saved(write_altered_report(saved, tmp_path, *path, value=value))

    assert expected in str(refusal.value)
    assert len(str(refusal.value)) < 700


@pytest.mark.parametrize("path", ["nowhere.json", "", "x" * 5000, "a\0b", "/"])
def test_a_path_without_a_file_is_refused(path: str) -> None:
    with pytest.raises(InputError, match=r"cannot be read|no such file"):
        read_saved(path)


def test_json_that_resembles_a_saved_report_is_recognized(saved: Path, tmp_path: Path) -> None:
    without_suffix = tmp_path / "report"
    without_suffix.write_text(' \n{"schema": 1}')

    assert is_saved_report(str(saved))
    assert is_saved_report(str(without_suffix))
    for other in (
        FIXTURES / "1f1b",
        FIXTURES / "1f1b" / "node0.sqlite",
        "nowhere.json",
        "x" * 5000,
    ):
        assert not is_saved_report(str(other))


def test_a_report_can_be_read_from_a_pipe(saved: Path, tmp_path: Path, cli: CommandLine) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(saved.read_bytes()), daemon=True)
    writer.start()

    assert is_saved_report(str(pipe))
    assert cli("gate", str(pipe), "--max-bubble", "schedule=1")[0] == 0
    writer.join(10)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("timeline", "tables", "operations", "virtual_stage"), [], "lacks columns of operations"),
        (
            ("timeline", "tables", "operations", "rank"),
            [[]],
            "[0] has type array instead of int | null",
        ),
        (("timeline", "tables"), {"operations": {}}, "lacks columns of operations"),
        (("timeline",), [1], "is not a bubbleviz report"),
        (("changes", "makespan_ns"), "1", "is not a bubbleviz report"),
        (("phase_times", 0, "phase"), "Q", "'Q' is not a phase"),
        (("phase_times",), [{"phase": "F"}], "phase_times[0] has no field "),
        (("ranks",), [], "the report contains no ranks"),
        (("iterations",), [], "averages 3 iterations, but contains 0"),
        (("memory",), {"ranks": [], "operations": [{**OPERATION, "phase": "Q"}]}, "is not a phase"),
        (("memory",), {"ranks": [], "operations": [{"phase": "F"}]}, "is not a bubbleviz report"),
        (("typical_iteration",), "0", "is not a bubbleviz report"),
    ],
)
def test_planning_from_a_tampered_report_is_refused(
    path: tuple[str | int, ...],
    value: Any,
    expected: str,
    saved: Path,
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    report = write_altered_report(saved, tmp_path, *path, value=value)

    assert expected in cli.refused("plan", report, code=1)
