"""Comparisons of runs with the first run, and notes on uncertain differences."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.count.statistics import measure_spread
from bubbleviz.errors import InputError, UsageError
from bubbleviz.model.restrictions import Restriction
from bubbleviz.render.comparison import (
    COLUMNS,
    draw_svg,
    format_json,
    list_sections,
    make_document,
    write_csv,
)
from bubbleviz.render.text.terminal import render_plain_text
from bubbleviz.report.compared.comparison import (
    ComparedRun,
    Comparison,
    compare,
    find_worse_runs,
    make_titles,
)
from bubbleviz.report.compared.significance import MeanDifference, compare_means
from bubbleviz.report.gate import check_limits, make_baseline_limits, parse_limits
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.restrictions import RESTRICTIONS
from bubbleviz.report.summary import AdviceEntry, Average, RestrictionEntry, RunSummary
from bubbleviz.report.view import View
from tests.planting import Planting
from tests.support.averages import make_average
from tests.support.command_line import CommandLine
from tests.support.drawn_reports import list_texts
from tests.support.hostile import HOSTILE
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting
from tests.support.summaries import make_saved_idle, make_saved_run, make_slowdowns

ONE, OTHER = str(FIXTURES / "1f1b"), str(FIXTURES / "zb-v")
NONE = make_average(None, None, 0)
LINK = AdviceEntry("link", 0.12, "Check the link", "link-0-1", 0.01)
STAGE = AdviceEntry("stage", 0.2, "Balance the stages", "stage-1")
LITTLE = AdviceEntry("rank", 0.009, "Look at rank 3", "rank-3")
MS = 1e6


def make_run(
    title: str,
    mean: float | None = 0.25,
    std: float = 0.01,
    n: int = 4,
    window_ms: float = 33.0,
    *,
    name: str = "schedule",
    interval: tuple[float, float] | None = None,
    **changes: Any,
) -> ComparedRun:
    """Return a run with one ratio, which is unknown if ``mean`` is None."""
    has_ratio = mean is not None
    bubble = make_average(mean, std if n > 1 else None, n) if has_ratio else NONE
    window = make_average(window_ms * MS, 0.1 * MS if n > 1 else None, n) if has_ratio else NONE
    saved: RunSummary | IdleSummary
    if name == "idle":
        saved = make_saved_idle(bubble, window)
    else:
        intervals = {} if interval is None else {name: interval}
        changes.setdefault("headline", name)
        saved = make_saved_run({name: (bubble, window)}, intervals=intervals, **changes)
    return ComparedRun(title, f"/x/{title}.json", saved)


def merge_ratios(first: ComparedRun, *other_runs: ComparedRun) -> ComparedRun:
    """Return the first run with the ratios of all runs, in run order."""
    runs = [value.saved for value in (first, *other_runs)]
    bubble_ratio = {name: value for run in runs for name, value in run.summary.bubble_ratio.items()}
    window_ns = {name: value for run in runs for name, value in run.summary.window_ns.items()}
    numbers = structs.replace(first.saved.summary, bubble_ratio=bubble_ratio, window_ns=window_ns)
    return replace(first, saved=structs.replace(first.saved, summary=numbers))


def printed(comparison: Comparison) -> str:
    return render_plain_text(list_sections(comparison))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the paths of the saved reports of two fixtures."""
    folder = tmp_path_factory.mktemp("saved")
    files = []
    for path in (ONE, OTHER):
        files.append(str(folder / f"{Path(path).name}.json"))
        assert main(["analyze", path, "--json", files[-1]]) == 0
    return files[0], files[1]


# Tests of missing values and ties.


def test_a_run_equals_itself() -> None:
    comparison = compare([make_run("a"), make_run("a (2)")])
    cell = comparison.ratios["schedule"][1]

    assert cell.bubble is not None
    assert (cell.bubble.mean, cell.bubble.t, cell.bubble.p) == (0.0, 0.0, 1.0)
    assert comparison.notes == ()
    assert "25.00 % (a) -> 25.00 % (a (2)): the same" in " ".join(printed(comparison).split())
    assert find_worse_runs(comparison) == []


# Tests of differences.


def test_differences_are_relative_to_the_first_run() -> None:
    comparison = compare(
        [make_run("a", 0.25), make_run("b", 0.15, window_ms=30), make_run("c", 0.35, window_ms=36)]
    )
    cells = comparison.ratios["schedule"]

    assert cells[0].bubble is None
    for cell, mean, window_ms in ((cells[1], -0.1, -3), (cells[2], 0.1, 3)):
        assert cell.bubble is not None
        assert cell.bubble.mean == pytest.approx(mean)
        assert cell.bubble.t == pytest.approx(mean / math.sqrt(2 * 0.01**2 / 4))
        assert cell.bubble.df == pytest.approx(6)
        assert cell.window_ns is not None
        assert cell.window_ns.mean == pytest.approx(window_ms * MS)
    assert comparison.notes == ()
    assert printed(comparison).startswith(
        "schedule bubble ratio 25.00 % (a) -> 15.00 % (b): 10.00 points lower (p < 0.0001); "
        "iterations 9.09 % shorter\n"
    )
    assert find_worse_runs(comparison) == ["c"]


@pytest.mark.parametrize(
    ("periods_ms", "n", "expected", "worse"),
    [
        ((34, 42), 4, "schedule windows equally long; iterations 23.53 % longer (period)", ["b"]),
        ((42, 34), 4, "schedule windows equally long; iterations 19.05 % shorter (period)", []),
        ((34, 34), 4, "the same; iterations equally long", []),
        # A single value allows no test, so the step times are compared.
        (
            (34, 42),
            1,
            "the same; schedule windows equally long; iterations 2.94 % shorter (step)",
            [],
        ),
    ],
)
def test_iterations_are_as_long_as_the_longest_window_that_all_have(
    periods_ms: tuple[float, float], n: int, expected: str, worse: list[str]
) -> None:
    runs = []
    for title, period_ms, step_ms in zip("ab", periods_ms, (34.0, 33.0), strict=True):
        step = make_run(title, window_ms=step_ms, name="step")
        period = make_run(title, window_ms=period_ms, name="period", n=n)
        runs.append(merge_ratios(make_run(title), step, period))
    comparison = compare(runs)

    text = " ".join(printed(comparison).split())
    assert expected in text
    assert "ms per rank and iteration, in the schedule window" in text
    assert find_worse_runs(comparison) == worse
    (limit,) = make_baseline_limits(runs[0].saved, ["2%"], "a.json", runs[1].saved)
    (check,) = check_limits(runs[1].saved, [limit], "b.json")
    assert check.passed == (not worse)


def test_one_iteration_gives_no_test_and_says_so() -> None:
    none = compare([make_run("a", None), make_run("b", None)])
    assert "- (a) -> - (b)" in printed(none)
    with pytest.raises(InputError, match="is unknown, so they cannot be compared"):
        find_worse_runs(none)
    assert none.notes == (
        "a significance test needs two iterations of each run; these have fewer: a, b",
    )
    # Without a statistical test, any difference counts.
    assert find_worse_runs(compare([make_run("a", n=1), make_run("b", window_ms=100.1, n=1)])) == [
        "b"
    ]
    comparison = compare([make_run("a"), make_run("b", 0.2, n=1)])
    entry = make_document(comparison)["ratios"][0]["runs"][1]["difference"]

    assert entry == {"mean": pytest.approx(-0.05), "ci95": None, "t": None, "df": None, "p": None}
    assert "5.00 points lower (no significance test possible)" in printed(comparison)
    assert (
        comparison.notes[-1]
        == "a significance test needs two iterations of each run; these have fewer: b"
    )


def test_ratios_are_compared_with_their_own_name_only() -> None:
    comparison = compare([make_run("a", name="schedule"), make_run("b", name="period")])

    assert list(comparison.ratios) == ["schedule", "period"]
    assert all(cell.bubble is None for cells in comparison.ratios.values() for cell in cells)
    assert comparison.ratios["schedule"][1].ratio is None
    assert comparison.notes == (
        "the primary ratios differ (a schedule, b period); no ratio is known for all runs, so no "
        "run is called worse than another",
    )


def test_a_ratio_of_all_runs_is_compared_even_if_it_is_not_primary() -> None:
    schedule = make_run("")
    runs = [merge_ratios(make_run("a", name="period"), schedule)]
    runs += [merge_ratios(make_run("b", name="step"), schedule)]
    for order in (runs, runs[::-1]):
        comparison = compare(order)

        assert comparison.headline == "schedule"
        assert (
            "the runs are compared by schedule, which is known for all runs" in comparison.notes[-1]
        )
        assert find_worse_runs(comparison) == []


def test_times_of_different_windows_are_never_subtracted() -> None:
    """If primary ratios differ, runs are compared by the longest common window, in any order."""
    parts: dict[str, Any] = {"bubble_parts": (("drain", 0.2), ("warmup", 0.05))}
    schedule = make_run("a", window_ms=40.0, **parts)
    period = make_run("b", window_ms=60.0, name="period", **parts)
    runs = [merge_ratios(schedule, period), merge_ratios(period, schedule)]
    for order in (runs, runs[::-1]):
        comparison = compare(order)
        text = " ".join(printed(comparison).split())

        assert comparison.headline == "period"
        assert text.startswith("period bubble ratio 25.00 %")
        assert "ms per rank and iteration, in the period window" in text
        assert "work 45.000 45.000 +0.000 +0.0 bubble 15.000 15.000 +0.000 +0.0" in text
        assert "drain" not in text


@pytest.mark.parametrize(
    ("microbatches", "forward_ms", "window_ms", "expected", "worse"),
    [
        (16, 1.0, 57.0, "72.73 % longer, 13.64 % shorter per microbatch", []),
        (16, 1.0, 70.0, "112.12 % longer, 6.06 % longer per microbatch", ["b"]),
        (4, 1.0, 21.0, "36.36 % shorter, 27.27 % longer per microbatch", ["b"]),
        # The batch has the same size, but the microbatches are smaller.
        (16, 0.5, 34.0, "iterations 3.03 % longer - ", ["b"]),
        (16, 0.6, 39.0, "8.000 ms in 8 microbatches, 9.600 ms in 16 (1.20x per token)", ["b"]),
        (8, 1.0, 57.0, "iterations 72.73 % longer - ", ["b"]),
    ],
)
def test_iterations_with_other_microbatches_are_compared_per_microbatch(
    microbatches: int, forward_ms: float, window_ms: float, expected: str, worse: list[str]
) -> None:
    first = make_run("a", microbatches=8, stage_ns={(0, "F"): MS, (0, "RECV_F"): MS})
    times = {(0, "F"): forward_ms * MS, (0, "RECV_F"): 9 * MS}
    other = make_run("b", 0.2, window_ms=window_ms, microbatches=microbatches, stage_ns=times)
    comparison = compare([first, other])

    assert expected in " ".join(printed(comparison).split())
    assert ("work of a whole batch" in printed(comparison)) == (forward_ms == 0.6)
    assert find_worse_runs(comparison) == worse
    assert any("saves no time" in note for note in comparison.notes) == bool(worse)
    assert any("whole iterations are compared" in note for note in comparison.notes) == (
        forward_ms < 1
    )
    unit = f"ms per rank and {'microbatch' if 'per microbatch' in expected else 'iteration'}\n"
    assert unit in printed(comparison)


def test_limits_relative_to_a_baseline_of_other_sizes_say_so() -> None:
    baseline, checked = (
        make_run("a", microbatches=8).saved,
        make_run("b", microbatches=16, ranks=8).saved,
    )
    (limit,) = make_baseline_limits(baseline, ["2%"], "x/a.json", checked)

    assert limit.maximum == pytest.approx(33 * 1.02 * 2)
    assert limit.written == (
        "67.320 ms, 2 % above a.json (8 ranks here, 4 in the baseline) per microbatch (16 here, 8 "
        "in the baseline)"
    )


def test_complete_captures_are_not_called_iterations() -> None:
    comparison = compare([make_run("a", name="idle"), make_run("b", name="idle", window_ms=30)])

    assert "whole captures are 9.09 % shorter" in " ".join(printed(comparison).split())
    assert "ms per device and capture" in printed(comparison)
    (check,) = check_limits(comparison.runs[0].saved, parse_limits(["30%"]), "a.json")
    assert check.line == "ok: idle 25.00 % is at most 30 % (mean of 4 devices)"


# Tests of changes.


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({}, ()),
        ({"stage_ns": {(0, "F"): 1.01 * MS, (1, "F"): 2.02 * MS}}, ()),
        (
            {"stage_ns": {(0, "F"): 1.2 * MS, (1, "F"): 2.4 * MS}},
            ("all 2 stages (median): F 2.000 -> 2.400 ms (1.20x)",),
        ),
        (
            {"stage_ns": {(0, "F"): 1 * MS, (1, "F"): 3 * MS}},
            ("stage 1: F 2.000 -> 3.000 ms (1.50x)",),
        ),
        (
            {"stage_ns": {(0, "F"): 1 * MS, (1, "F"): 2 * MS, (0, "B"): 2 * MS, (0, "W"): 3 * MS}},
            ("stage 0: BW -> B + W 4.000 -> 5.000 ms (1.25x)",),
        ),
        (
            {"slowdown": make_slowdowns(last_rank=1.25, link=1.009)},
            ("rank 13 (node3 GPU 1): cost 25.00 % of an iteration, compared with 1.00 % before",),
        ),
        (
            {"schedule": "zb-h1", "microbatches": 16, "advice": (LINK, STAGE, LITTLE)},
            (
                "schedule: 1f1b -> zb-h1",
                "microbatches: 8 -> 16",
                "new advice: Check the link (-12.00 % ± 1.00)",
            ),
        ),
    ],
)
def test_changes_are_listed(now: dict[str, Any], expected: tuple[str, ...]) -> None:
    first_run: dict[str, Any] = {
        "stage_ns": {(0, "F"): 1 * MS, (1, "F"): 2 * MS, (0, "BW"): 4 * MS},
        "slowdown": make_slowdowns(last_rank=1.01, link=1.0),
        "schedule": "1f1b",
        "microbatches": 8,
        "advice": (STAGE,),
    }
    assert compare(
        [make_run("a", **first_run), make_run("b", **{**first_run, **now})]
    ).differences == (
        (),
        expected,
    )


# Tests of uncertain differences.


def test_a_smaller_ratio_in_a_longer_window_is_no_gain() -> None:
    runs = [make_run("a", 0.25), make_run("b", 0.2, window_ms=34.5)]
    (note,) = compare(runs).notes
    assert note == (
        "b: the smaller schedule ratio saves no time, because the window is longer: 20.00 % of "
        "34.500 ms instead of 25.00 % of 33.000 ms"
    )

    # The headline comes first, and names the other stages.
    stages = [
        make_run("a", 0.25, name="stage", headline="schedule"),
        make_run("b", 0.2, window_ms=34.5, name="stage", headline="schedule"),
    ]
    reports = [merge_ratios(stage, own) for stage, own in zip(stages, runs, strict=True)]
    assert compare(reports).notes == (f"{note}. The same applies to stage",)


@pytest.mark.parametrize(
    ("mean", "window_ms"), [(0.25, 40), (0.3, 40), (0.2, 33), (0.2, 30), (None, 40)]
)
def test_no_other_case_is_no_gain(mean: float | None, window_ms: float) -> None:
    notes = compare([make_run("a", 0.25), make_run("b", mean, window_ms=window_ms)]).notes

    assert not any("saves no time" in note for note in notes)


def test_clocks_that_allow_equal_ratios_get_a_note() -> None:
    wide_interval, narrow_interval = (0.2, 0.3), (0.28, 0.3)

    (note,) = compare(
        [make_run("a", 0.25, interval=wide_interval), make_run("b", 0.29, interval=narrow_interval)]
    ).notes

    assert note == (
        "b: schedule may be the same as in a within clock uncertainty, which the test does not "
        "include"
    )
    for first, other in (
        (None, narrow_interval),
        (wide_interval, None),
        ((0.2, 0.27), narrow_interval),
    ):
        runs = [make_run("a", 0.25, interval=first), make_run("b", 0.29, interval=other)]
        assert compare(runs).notes == ()


def test_other_ranks_versions_and_clocks_get_notes() -> None:
    notes = compare([make_run("a"), make_run("b", ranks=8, version="2", contradicted=True)]).notes

    assert notes == (
        "ratios rely on clocks that contradict each other in these runs: b",
        "the runs have different numbers of ranks (a 4, b 8): these are different jobs, not "
        "one job before and after a change, so no advice counts as followed",
        "the reports were written by different versions of bubbleviz (a 1, b 2)",
    )


@pytest.mark.parametrize("kind", RESTRICTIONS, ids=lambda kind: str(kind.code))
@pytest.mark.parametrize("first", [True, False])
def test_runs_without_a_complete_pipeline_are_marked(kind: Restriction, first: bool) -> None:
    restriction = kind.text
    runs = [make_run("a"), make_run("b", restrictions=[RestrictionEntry(kind.code, kind.text)])]
    comparison = compare(runs[::-1] if first else runs)

    assert comparison.notes[0].startswith(f"b: {restriction}; its profiles are incomplete")
    head, mark, *_ = " ".join(printed(comparison).split("\n\n")[0].split()).partition(" ! (")
    assert head.startswith("schedule bubble ratio 25.00 % (")
    assert mark
    assert f"! (b: {restriction})" in printed(comparison).replace("\n", " ")
    texts = [
        [entry["text"] for entry in compared["restrictions"]]
        for compared in make_document(comparison)["runs"]
    ]
    assert sorted(texts) == [[], [restriction]]
    codes = [
        [entry["code"] for entry in compared["restrictions"]]
        for compared in make_document(comparison)["runs"]
    ]
    assert sorted(codes) == [[], [kind.code]]


# Tests of titles.


@pytest.mark.parametrize(
    ("paths", "titles"),
    [
        ((), ()),
        (("a/report.json", "b/report.json"), ("a/report", "b/report")),
        (("x/1f1b.json", "x/zb.sqlite", "y/"), ("1f1b", "zb", "y")),
        (("x/a.json", "x/a.json", "x/b.json"), ("a", "a (2)", "b")),
        (("a", "a (2)", "a"), ("a", "a (2)", "a (3)")),
        (("/", ".json"), ("/", ".json")),
        (("x/a", "a"), ("x/a", "a")),
    ],
)
def test_titles_distinguish_paths(paths: tuple[str, ...], titles: tuple[str, ...]) -> None:
    assert make_titles(paths) == titles


# Tests of outputs.


def test_csv_has_a_row_for_each_ratio_and_run() -> None:
    header, *rows = csv.reader(
        io.StringIO(write_csv(compare([make_run("a"), make_run("b", 0.2), make_run("c", None)])))
    )

    assert tuple(header) == COLUMNS
    assert [row[:2] for row in rows] == [["schedule", title] for title in "abc"]
    assert rows[0][header.index("difference") :] == [""] * 7
    assert float(rows[1][header.index("difference")]) == pytest.approx(-0.05)
    assert rows[2][2:] == ["", "", "0", *[""] * 9]


def test_json_has_the_promised_keys() -> None:
    document = json.loads(format_json(compare([make_run("a"), make_run("b", 0.2)])))

    assert document["schema"] == "bubbleviz.comparison/1"
    assert set(document) == {
        "schema",
        "version",
        "headline",
        "runs",
        "ratios",
        "differences",
        "advice",
        "notes",
        "longest",
        "test",
    }
    assert [entry["title"] for entry in document["runs"]] == ["a", "b"]
    assert document["ratios"][0]["runs"][0]["bubble_ratio"] == {"mean": 0.25, "std": 0.01, "n": 4}
    assert set(document["ratios"][0]["runs"][1]["difference"]) == {"mean", "ci95", "t", "df", "p"}
    assert document["test"].startswith("Welch's t-test")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_titles_and_ratios_are_inert(name: str) -> None:
    comparison = compare(
        [make_run(name, name=name), make_run(f"{name}2", 0.2, name=name, window_ms=40)]
    )

    text = printed(comparison)
    assert text.replace("\n", "").isprintable()
    assert json.loads(format_json(comparison))["runs"][0]["title"] == name
    rows = list(csv.reader(io.StringIO(write_csv(comparison))))
    assert len(rows) == 3
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row[:2])


def test_parts_without_a_row_count_once() -> None:
    parts = tuple((f"cause {number}", 0.01 * number) for number in range(1, 11))
    comparison = compare(
        [make_run("a", 0.55, bubble_parts=parts), make_run("b", 0.55, bubble_parts=parts[::-1])]
    )

    (complete,) = (
        line
        for line in render_plain_text(list_sections(comparison, screen=True)).splitlines()
        if line.startswith("total ")
    )
    assert complete.split()[1:3] == ["33.000", "33.000"]


# Tests of the command line.


def test_profiles_and_saved_reports_give_the_same_comparison(
    cli: CommandLine, saved: tuple[str, str]
) -> None:
    from_json = cli.printed("compare", *saved)
    from_profiles = cli.printed("compare", ONE, OTHER)

    assert from_profiles == from_json == cli.printed("compare", saved[0], OTHER)
    assert from_json.startswith("schedule bubble ratio 27.27 % (1f1b) -> 7.14 % (zb-v): 20.14 ")
    for words in (
        "schedule: 1f1b -> zb-v",
        "work           24.000  24.030  +0.030",
        "total          33.000  25.877  -7.123  -21.6",
    ):
        assert words in from_json
    worse = "compare", saved[1], saved[0], "--fail-if-worse"
    assert cli(*worse)[::2] == (3, "bubbleviz: 1f1b: worse than zb-v\n")
    assert cli(*worse[:1], *saved, worse[3])[0] == 0


def test_every_output_is_written(saved: tuple[str, str], tmp_path: Path) -> None:
    for inputs, kinds in ((saved, ("json", "csv")), ((ONE, OTHER), ("svg", "pdf", "png"))):
        options = [word for kind in kinds for word in (f"--{kind}", str(tmp_path / f"x.{kind}"))]
        assert main(["compare", *inputs, *options]) == 0
    assert len([file for file in tmp_path.iterdir() if file.stat().st_size]) == 5


@pytest.mark.parametrize(
    ("runs", "options", "expected"),
    [
        ((ONE, OTHER), (), ["(a) 1f1b", "(b) zb-v"]),
        (("before", OTHER), (), ["(a) 1f1b (before)", "(b) zb-v"]),
        (("before", OTHER), ("--style", "paper"), ["(a) 1f1b", "(b) zb-v"]),
        (("before", ONE), ("--style", "paper"), ["(a) before (1f1b)", "(b) 1f1b (1f1b)"]),
    ],
)
def test_panels_are_titled_by_schedule_if_every_run_has_another(
    runs: tuple[str, ...],
    options: tuple[str, ...],
    expected: list[str],
    tmp_path: Path,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "before").symlink_to(ONE)
    monkeypatch.chdir(tmp_path)

    cli.printed("compare", *runs, "-o", "x.svg", "-q", *options)
    texts = list_texts((tmp_path / "x.svg").read_text("utf-8"))

    assert [text for text in texts if text.startswith("(")] == expected


def test_saved_reports_are_drawn_like_their_profiles(
    saved: tuple[str, str], tmp_path: Path, cli: CommandLine
) -> None:
    for name, runs in (("saved", saved), ("measured", (ONE, OTHER)), ("both", (ONE, saved[1]))):
        cli.printed("compare", *runs, "-o", tmp_path / f"{name}.svg", "--style", "paper", "-q")
    pictures = {file.read_text("utf-8") for file in tmp_path.glob("*.svg")}

    assert len(pictures) == 1


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_a_saved_report_without_a_timeline_is_refused_before_others_are_measured(
    kind: str, saved: tuple[str, str], tmp_path: Path, cli: CommandLine
) -> None:
    document = json.loads(Path(saved[1]).read_text("utf-8")) | {"timeline": None}
    large = tmp_path / "large.json"
    large.write_text(json.dumps(document), encoding="utf-8")

    message = cli.refused("compare", "missing/", large, f"--{kind}", tmp_path / "x", code=1)
    assert "missing" in message
    message = cli.refused("compare", ONE, large, f"--{kind}", tmp_path / "x", code=2)

    assert "no timeline was saved, because the run has more than 20,000" in message
    assert list(tmp_path.iterdir()) == [large]
    with pytest.raises(UsageError, match="no timeline was saved"):
        draw_svg(compare([make_run("a"), make_run("b")]), View())
    with pytest.raises(UsageError, match="a comparison of idle time has no operations"):
        draw_svg(compare([make_run("a", name="idle"), make_run("b", name="idle")]), View())


def test_what_cannot_be_compared_is_refused(
    saved: tuple[str, str], tmp_path: Path, cli: CommandLine
) -> None:
    no_report = tmp_path / "there.json"
    no_report.write_text("mine")
    table = tmp_path / "table.csv"
    table.write_text("mine")

    assert "needs at least two runs" in cli.refused("compare", saved[0], code=2)
    assert "no such file" in cli.refused("compare", saved[0], "nowhere.json", code=1)
    assert "is not a bubbleviz report" in cli.refused("compare", saved[0], str(no_report), code=1)
    assert "--force" in cli.refused("compare", *saved, "--csv", str(table), code=1)
    assert "inputs are never replaced" in cli.refused(
        "compare", *saved, "--json", saved[1], "--force", code=1
    )
    assert "two outputs" in cli.refused("compare", *saved, "--json", "-", "--csv", "-", code=2)
    assert no_report.read_text() == "mine"


# Tests of Welch's test, which must agree with scipy and is left out if it is undefined.


VALUES = st.lists(st.floats(0, 1).map(lambda x: round(x, 6)), min_size=0, max_size=12)


def average(values: list[float]) -> Average:
    statistics = measure_spread(list(values))
    return make_average(statistics.mean, statistics.std, statistics.n)


@pytest.mark.parametrize(
    ("first", "other", "mean"),
    [
        ([0.25], [0.25], 0.0),
        ([0.25], [0.25, 0.75], 0.25),
        ([0.25], [], None),
        ([], [], None),
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], 0.0),
        ([0.5, 0.5, 0.5], [0.25, 0.25], -0.25),
    ],
)
def test_no_spread_gives_no_test(
    first: list[float], other: list[float], mean: float | None
) -> None:
    difference = compare_means(average(first), average(other))

    assert difference == (None if mean is None else MeanDifference(mean))


@given(st.floats(-1e30, 1e30), st.sampled_from([0.0, 1e-300, 1.0, 1e30]), st.integers(2, 10**9))
def test_no_number_is_ever_nan_or_infinite(mean: float, std: float, n: int) -> None:
    drawn_average, narrow_average = make_average(mean, std, n), make_average(1.0, 1e-300, 2)
    for test in (
        compare_means(drawn_average, narrow_average),
        compare_means(narrow_average, drawn_average),
        compare_means(narrow_average, narrow_average),
    ):
        assert test is not None
        numbers = [test.mean, test.t, test.df, test.p, *(test.ci95 or ())]
        assert all(np.isfinite(number) for number in numbers if number is not None)


@given(VALUES, VALUES)
def test_welch_test_agrees_with_scipy(first: list[float], other: list[float]) -> None:
    from scipy import stats

    assume(len(first) > 1 and len(other) > 1)
    first_average, other_average = average(first), average(other)
    assume((first_average.std or 0) > 1e-9 or (other_average.std or 0) > 1e-9)
    test = compare_means(first_average, other_average)
    expected = stats.ttest_ind_from_stats(
        other_average.mean,
        other_average.std,
        other_average.n,
        first_average.mean,
        first_average.std,
        first_average.n,
        equal_var=False,
    )
    assert test is not None
    assert test.ci95 is not None
    assert test.t == pytest.approx(float(expected.statistic), rel=1e-6, abs=1e-9)
    assert test.p == pytest.approx(float(expected.pvalue), rel=1e-6, abs=1e-12)
    error = math.sqrt(
        (first_average.std or 0) ** 2 / first_average.n
        + (other_average.std or 0) ** 2 / other_average.n
    )
    expected_ends = stats.t.interval(0.95, test.df, loc=test.mean, scale=error)
    assert test.ci95 == pytest.approx([float(end) for end in expected_ends], abs=1e-9)


def list_changes(earlier: Planting, later: Planting) -> tuple[str, ...]:
    """Return the differences between two planted runs."""
    reports = [analyze_planting(planting) for planting in (earlier, later)]
    (_, differences) = bubbleviz.compare(*reports).differences
    return differences


def test_ranks_that_only_wait_for_others_are_not_listed_as_changed() -> None:
    """A slow iteration of all ranks changes the slowdown of replicas of a slow rank, too."""
    slow = Planting(stages=3, microbatches=6, replicas=3, iterations=4, slow_rank=4, jitter=0.02)

    assert list_changes(replace(slow, slow_iteration=2), slow) == ()


def test_a_rank_that_was_slow_is_listed_as_changed() -> None:
    even = Planting(stages=3, microbatches=6, replicas=3, iterations=4, jitter=0.02)

    changes = list_changes(replace(even, slow_rank=4), even)

    (change,) = [text for text in changes if ": cost " in text]
    assert change.startswith("node0 GPU 4")
