"""Kernel time in runs that lose more time inside or outside operations than in bubbles."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.render import json_document
from bubbleviz.render.formats import latex
from bubbleviz.render.picture.picture import picture as svg
from bubbleviz.render.text.first_screen import describe_headline, render_first_screen
from bubbleviz.render.text.terminal import Display, join_plain_lines
from bubbleviz.report.compared.comparison import ComparedRun, compare
from bubbleviz.report.gate import check_limits, parse_limits
from bubbleviz.report.kernel_time import KernelTime
from bubbleviz.report.measure import name_measure, name_saved_measure
from bubbleviz.report.methods import write_methods
from bubbleviz.report.ratio_summary import describe_kernel_time
from bubbleviz.report.report import Report
from bubbleviz.report.saved import read_saved
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.view import View
from tests.planting import Planting, Truth, plant
from tests.support.edited_databases import edit_database
from tests.support.nsys_exports import C, K, R, write_profile
from tests.support.places import FIXTURES
from tests.support.planted_runs import analyze_planting

BASE: dict[str, Any] = {"communication": False, "optimizer_ns": 0, "iterations": 2}
#: Gaps between kernels fill 90 % of each operation.
GAPPED: dict[str, Any] = {**BASE, "kernels": 10, "kernel_gap_ns": 100_000}


def _analyze_planted(folder: Path, **options: Any) -> tuple[Truth, Report]:
    truth = plant(Planting(**options), folder)
    return truth, bubbleviz.analyze(folder)


@pytest.mark.parametrize(("stages", "replicas", "microbatches"), [(1, 1, 4), (1, 2, 1), (2, 1, 32)])
def test_launch_gaps_that_outweigh_the_bubble_come_first(
    tmp_path: Path, stages: int, replicas: int, microbatches: int
) -> None:
    run = {"stages": stages, "replicas": replicas, "microbatches": microbatches}
    truth, report = _analyze_planted(tmp_path, **GAPPED, **run)

    time = report.kernel_time
    work = [o for o in truth.operations if o.phase not in {"Optimizer"} and o.busy]
    spans = sum(end - start for o in work for start, end in o.busy)
    active = sum(o.active_ns for o in work)
    assert time.gap_ns == spans - active > 0
    assert time.kernel_ns == active
    assert time.share == pytest.approx(active / time.window_ns)
    sentence = describe_first_steps(report) or ""
    assert sentence.startswith("Launch gaps inside operations take ")
    assert f"take {100 * time.gap_ns / time.window_ns:.2f} % of the window" in sentence
    assert "no bubble to remove" not in sentence
    assert "kernels ran for " in svg(report, View())
    assert (stages == 1) == ("; kernels ran for" not in write_methods(report))
    assert (
        f"kernels ran for {100 * (time.share or 0):.2f} % of the time"
        in describe_headline(report)[1]
    )


def test_without_a_pipeline_the_headline_says_what_its_ratio_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, gapped = _analyze_planted(tmp_path / "a", **GAPPED, stages=1, microbatches=4)
    _, dense = _analyze_planted(tmp_path / "b", **BASE, stages=1, microbatches=4)

    sentence = f"kernels ran for {100 * (gapped.kernel_time.share or 0):.2f} % of the time"
    screen = " ".join(join_plain_lines(render_first_screen(gapped, View(), Display())).split())
    assert screen.startswith(
        "Idle between operations: 0.00 % (0.00 % and 0.00 % in two iterations)"
    )
    assert screen.count(sentence) == 1
    assert screen.index(sentence) < screen.index("1 rank of 1 host")
    assert describe_headline(gapped)[0] == "idle between operations: 0.00 %"
    assert describe_headline(gapped)[1].count(sentence) == 1
    picture = svg(gapped, View())
    assert ">idle between operations 0.0" in picture
    assert f">{sentence} · no pipeline" in picture
    assert "% of its time is idle between operations.</title>" in picture
    assert "Idle time between operations" in latex.render(gapped, View())
    assert name_saved_measure(summarize(gapped)) == name_measure(gapped)
    assert name_measure(dense).name == "idle in iterations"


def test_missing_ranks_come_before_launch_gaps(tmp_path: Path) -> None:
    plant(Planting(**{**GAPPED, "communication": True}, stages=4, files="rank"), tmp_path)

    advice = describe_first_steps(bubbleviz.analyze(tmp_path / "rank3.sqlite")) or ""

    assert advice.startswith("Some ranks of the run are missing")
    assert "Launch gaps inside operations" in advice


def test_compute_outside_operations_that_outweighs_the_bubble_comes_first(tmp_path: Path) -> None:
    kernels = [K(0, 10, 1), K(12, 190, 2, "loss"), K(190, 200, 3)]
    calls = [C(1, 2, 1), C(7, 8, 2), C(11, 12, 3)]
    ranges = [R(0, 5, "F0.0.0"), R(10, 15, "B0.0.0")]

    report = bubbleviz.analyze(write_profile(tmp_path, kernels, calls, ranges))

    time = report.kernel_time
    assert (time.unattributed_ns, time.bubble_ns, time.window_ns) == (178, 2, 200)
    assert (describe_first_steps(report) or "").startswith(
        "Compute outside all operations takes 89.00 % of the window, more than the idle time "
    )
    assert "with compute outside every operation" in describe_headline(report)[1]
    assert "Record again" not in (describe_first_steps(report) or "")
    document = json.loads(json_document.render(report, View()))
    assert document["summary"]["kernel_time"]["unattributed_ns"] == 178
    assert document["iterations"][0]["ranks"]["kernel_ns"] == [198]


def _analyze_shortened(folder: Path, source: str, condition: str = "1") -> Report:
    """Shorten the kernels selected by an SQL condition to a twentieth, and analyze the fixture."""
    shorter = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start + (end - start) / 20"
    for path in sorted((FIXTURES / source).glob("*.sqlite")):
        edit_database(folder / path.name, f"{shorter} WHERE {condition}", source=path)
    return bubbleviz.analyze(folder)


#: SQL condition for kernels that do not communicate.
#: Shortened receives would end before their input arrives, which is visible in zb-v.
COMPUTE = "demangledName NOT IN (SELECT id FROM StringIds WHERE lower(value) LIKE '%nccl%')"


@pytest.mark.parametrize(
    ("source", "condition"), [("1f1b", "1"), ("1f1b", COMPUTE), ("zb-v", COMPUTE)]
)
def test_launch_gaps_that_fill_the_work_come_first(
    tmp_path: Path, source: str, condition: str
) -> None:
    report = _analyze_shortened(tmp_path, source, condition)

    time = report.kernel_time
    assert time.gap_ns > time.work_ns / 2
    assert time.gaps_fill_work
    expected = f"kernels ran for {100 * (time.share or 0):.2f} % of the time"
    assert time.sentence == expected
    assert expected in describe_headline(report)[1]
    assert expected in write_methods(report)
    assert expected in svg(report, View())
    sentence = describe_first_steps(report) or ""
    assert sentence.startswith(
        f"Launch gaps inside operations take {100 * time.gap_ns / time.window_ns:.2f} % of the "
        "window"
    )
    entry = json.loads(json_document.render(report, View()))["summary"]["kernel_time"]
    assert (entry["beside_headline"], entry["sentence"]) == (True, expected)


@pytest.mark.parametrize("condition", ["1", "0"])
def test_comparisons_and_gates_report_how_long_kernels_ran(tmp_path: Path, condition: str) -> None:
    report = _analyze_shortened(tmp_path, "1f1b", condition)
    sentence = report.kernel_time.sentence
    saved = tmp_path / "report.json"
    saved.write_text(json_document.render(report, View()))

    read = read_saved(str(saved))

    assert describe_kernel_time(read) == sentence
    assert (sentence is None) == (condition == "0")
    (check,) = check_limits(read, parse_limits(["schedule=1"]), str(saved))
    assert check.passed
    assert ("kernels ran for" in check.line) == (sentence is not None)
    run = ComparedRun("slow", str(saved), read)
    notes = "\n".join(compare([run, replace(run, title="other")]).notes)
    assert (f"slow: {sentence}. Much time is lost" in notes) == (sentence is not None)


def test_one_rank_that_launches_slowly_is_named(tmp_path: Path) -> None:
    report = _analyze_shortened(tmp_path, "1f1b", "deviceId = 2")

    assert report.kernel_time.sentence is None
    # The launches of the rank did not move with its kernels, so its operations start late, too.
    entries = write_all_advice(report)
    assert {entry.place for entry in entries} == {"launches", "launch-gaps-of-few"}
    gaps = next(entry for entry in entries if entry.place == "launch-gaps-of-few")
    assert gaps.action.startswith(
        f"Launch fewer, larger kernels inside operations of {report.ranks[2].label}"
    )


def _analyze_with_lost_calls(folder: Path, lost_every_n: int) -> Report:
    """Return the report on a run that lost every n-th CUDA call, or no call if n is 0."""
    plant(Planting(iterations=3), folder)
    is_lost = f"{lost_every_n} > 0 AND rowid % max({lost_every_n}, 1) = 0"
    edit_database(
        next(folder.glob("*.sqlite")), f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {is_lost}"
    )
    return bubbleviz.analyze(folder)


@pytest.mark.parametrize("lost_every_n", [2, 3, 5, 10])
def test_lost_launches_are_next_to_the_ratio_and_come_first(
    tmp_path: Path, lost_every_n: int
) -> None:
    report = _analyze_with_lost_calls(tmp_path, lost_every_n)

    low = report.summary.bubble_low[report.headline].mean
    mean = report.summary.bubble_ratio[report.headline].mean
    assert low is not None
    assert mean is not None
    assert mean - low > 0.01
    assert report.lower_bound(report.headline) == low
    lower_bound_note = f"{100 * low:.2f} % with compute outside every operation counted as work"
    assert lower_bound_note in describe_headline(report)[1]
    assert f"it is {100 * low:.2f} %" in write_methods(report)
    document = json.loads(json_document.render(report, View()))
    assert document["summary"]["bubble_low"][report.headline]["mean"] == low
    sentence = describe_first_steps(report) or ""
    assert sentence.startswith("Record again, starting before")
    n_unlinked = sum(profile.kernels - profile.linked_kernels for profile in report.profiles)
    assert f"{n_unlinked:,} of " in sentence
    assert f"between {100 * low:.2f} % and {100 * mean:.2f} %" in sentence
    assert "would take" not in sentence


@pytest.mark.parametrize("lost_every_n", [0, 100_000])
def test_a_complete_recording_need_not_be_repeated(tmp_path: Path, lost_every_n: int) -> None:
    report = _analyze_with_lost_calls(tmp_path, lost_every_n)
    time = report.kernel_time

    assert report.lower_bound(report.headline) is None
    assert report.lower_bound("no such ratio") is None
    assert (time.gaps_outweigh, time.unattributed_outweighs) == (False, False)
    assert not re.search(
        "counted as work|any kernel", describe_headline(report)[1] + write_methods(report)
    )
    assert not re.match(
        "Launch gaps|Compute outside|Record again", describe_first_steps(report) or ""
    )


@pytest.mark.parametrize(
    ("gap", "loose", "expected"),
    [(300, 400, "Compute outside all"), (400, 300, "Launch gaps inside")],
)
def test_the_largest_loss_outside_bubbles_is_reported(gap: int, loose: int, expected: str) -> None:
    report = replace(analyze_planting(Planting()))
    vars(report)["kernel_time"] = KernelTime(1000, 600, 100, gap, loose, 900)

    assert str(describe_first_steps(report)).startswith(expected)
