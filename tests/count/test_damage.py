"""Damage matters only inside the iterations that are averaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.count.damage import _sum_lengths_before
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.window import parse_window
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from tests.planting import Planting, plant
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database
from tests.support.notes import find_limitation, list_restriction_codes

SIX = Planting(iterations=6, iteration_ranges=True, kernels=4, barrier=True)
LOST = "launched kernels that were not recorded"
OVERRUN = "kernels that end after the next one on their stream starts"
#: SQL for the first process, and for the bounds of an iteration of its rank.
PROCESS = "(SELECT MIN(globalPid) FROM CUPTI_ACTIVITY_KIND_KERNEL)"
BOUND = "(SELECT {} FROM NVTX_EVENTS WHERE text = 'iter_0_{}')"


def damaged(folder: Path, *iterations: int) -> Path:
    """Plant a run whose first rank lost every third kernel of the given iterations."""
    plant(SIX, folder)
    path = folder / "node0.sqlite"
    for number in iterations:
        within = f"BETWEEN {BOUND.format('start', number)} AND {BOUND.format('end', number)}"
        edit_database(
            path,
            f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = {PROCESS} "
            f"AND start {within} AND rowid % 3 = 0",
        )
    return path


def reason_of(report: Report, subject: str) -> str:
    return find_limitation(report, subject).reason


def test_lost_kernels_of_averaged_iterations_mark_the_ratio(tmp_path: Path) -> None:
    report = bubbleviz.analyze(damaged(tmp_path, 1))

    assert "kernels-lost" in list_restriction_codes(report)
    assert "--window iteration:2-5" in reason_of(report, LOST)
    assert (describe_first_steps(report) or "").endswith("--window iteration:2-5")


@pytest.mark.parametrize("deleted", [False, True])
def test_damaged_runs_promise_no_saving(tmp_path: Path, cli: CommandLine, *, deleted: bool) -> None:
    plant(replace(SIX, slow_stage=2, slow_factor=1.5), tmp_path)
    path = tmp_path / "node0.sqlite"
    if deleted:
        edit_database(
            path,
            f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = {PROCESS} AND rowid % 9 = 0",
        )
    saved, page = tmp_path / "saved.json", tmp_path / "page.html"
    _, text, _ = cli("analyze", str(path), "-v", "-o", str(saved), "-o", str(page))
    document = json.loads(saved.read_text())

    assert document["what_to_do_first"].startswith("Profile again" if deleted else "Move layers")
    assert (document["advice"] == []) is deleted
    assert ("Move layers off stage 2" not in text + page.read_text()) is deleted
    assert ("kernels-lost" in list_restriction_codes(bubbleviz.analyze(path))) is deleted


def test_gate_checks_no_promise_from_a_damaged_run(tmp_path: Path, cli: CommandLine) -> None:
    good, lost_path = tmp_path / "good.json", tmp_path / "lost.json"
    plant(SIX, tmp_path / "good")
    bubbleviz.analyze(tmp_path / "good").save(good)
    bubbleviz.analyze(damaged(tmp_path / "lost", 1)).save(lost_path)

    assert cli("gate", str(good), "--promised-by", str(good))[0] == 0
    for option in ("--promised-by", "--baseline"):
        assert "incomplete: kernels that were launched" in cli.refused(
            "gate", str(good), option, str(lost_path), code=1
        )
    code, text, _ = cli("gate", str(lost_path), "--promised-by", str(good))
    assert code == 3
    assert "but the report to check is incomplete: kernels" in " ".join(text.split())


@pytest.mark.parametrize("text", ["iteration:2-5", "iteration:0", "iteration:0-0"])
def test_a_window_without_the_damage_has_no_mark(text: str, tmp_path: Path) -> None:
    full_report = bubbleviz.analyze(damaged(tmp_path, 1))
    report = bubbleviz.analyze(tmp_path / "node0.sqlite", window=parse_window(text))

    assert "kernels-lost" in list_restriction_codes(full_report)
    assert list_restriction_codes(report) == []
    assert "the averaged iterations are not affected" in reason_of(report, LOST)
    note = find_limitation(report, LOST)
    assert note.kind is LimitationKind.COSTS
    ratios = {i.name: i.ratios["schedule"].value for i in full_report.iterations}
    assert [i.ratios["schedule"].value for i in report.iterations] == [
        ratios[i.name] for i in report.iterations
    ]


def test_skipped_iterations_with_damage_leave_no_mark(tmp_path: Path) -> None:
    path = damaged(tmp_path, 0)

    assert list_restriction_codes(bubbleviz.analyze(path, skip=1)) == []
    assert list_restriction_codes(bubbleviz.analyze(path)) == ["kernels-lost"]


def test_a_window_without_lost_graphs_has_no_mark(tmp_path: Path) -> None:
    path = damaged(tmp_path, 1)
    edit_database(
        path, "UPDATE StringIds SET value = 'cudaGraphLaunch' WHERE value LIKE '%LaunchKernel%'"
    )
    report = bubbleviz.analyze(path)

    assert "graphs-lost" in list_restriction_codes(report)
    assert (describe_first_steps(report) or "").endswith("--window iteration:2-5")
    assert (
        list_restriction_codes(bubbleviz.analyze(path, window=parse_window("iteration:2-5"))) == []
    )
    assert list_restriction_codes(bubbleviz.analyze(path, window=parse_window("iteration:0"))) == []
    assert list_restriction_codes(bubbleviz.analyze(path, skip=2)) == []


@pytest.mark.parametrize("lost_work", ["graphs", "kernels"])
def test_few_losses_of_one_iteration_mark_the_ratio(lost_work: str, tmp_path: Path) -> None:
    planting = replace(SIX, iterations=30, kernels=1)
    plant(planting, tmp_path)
    path = tmp_path / "node0.sqlite"
    if lost_work == "graphs":
        to_graph = "UPDATE StringIds SET value = 'cudaGraphLaunch'"
        edit_database(path, f"{to_graph} WHERE value LIKE '%LaunchKernel%'")
    full_report = bubbleviz.analyze(path)
    assert list_restriction_codes(full_report) == []
    within = f"BETWEEN {BOUND.format('start', 1)} AND {BOUND.format('end', 1)}"
    row = (
        f"SELECT rowid FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = {PROCESS} "
        f'AND start {within} ORDER BY "end" - start DESC LIMIT 1'
    )
    edit_database(path, f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = ({row})")
    report = bubbleviz.analyze(path)

    (note,) = [note for note in report.limitations if "recorded" in note.what]
    assert note.count == 1
    assert f"{lost_work}-lost" in list_restriction_codes(report)
    assert note.window == "iteration:2-29"
    assert f"{lost_work}-lost" not in list_restriction_codes(
        bubbleviz.analyze(path, window=parse_window("iteration:2-29"))
    )


TIMES = st.integers(0, 20)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.lists(TIMES, max_size=5))
def test_times_until_agree_with_a_slow_reference(
    pairs: list[tuple[int, int]], times: list[int]
) -> None:
    intervals = [(min(pair), max(pair)) for pair in pairs]
    columns = (np.array(column, np.int64) for column in zip(*intervals, strict=True))
    sums_ns = _sum_lengths_before(np.array(times, np.int64), *columns)
    assert sums_ns.tolist() == [
        sum(max(min(time, end) - start, 0) for start, end in intervals) for time in times
    ]


def test_a_window_with_the_damage_keeps_the_mark(tmp_path: Path) -> None:
    window = parse_window("iteration:1-3")
    assert "kernels-lost" in list_restriction_codes(
        bubbleviz.analyze(damaged(tmp_path, 2), window=window)
    )


def test_damage_everywhere_suggests_no_window(tmp_path: Path) -> None:
    report = bubbleviz.analyze(damaged(tmp_path, 0, 2, 4))

    assert "kernels-lost" in list_restriction_codes(report)
    assert "--window" not in reason_of(report, LOST)


def test_without_averaged_iterations_all_damage_counts(tmp_path: Path) -> None:
    report = bubbleviz.analyze(damaged(tmp_path, 1), skip=6)

    assert report.summary.iterations == 0
    assert list_restriction_codes(report) == ["kernels-lost"]


def test_wrong_ends_count_in_their_iteration(tmp_path: Path) -> None:
    plant(replace(SIX, kernels=6), tmp_path)
    path = tmp_path / "node0.sqlite"
    row = (
        "SELECT rowid FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = "
        f"{PROCESS} AND start > {BOUND.format('start', 4)} ORDER BY start LIMIT 1 OFFSET 4"
    )
    edit_database(
        path,
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 3000000 WHERE rowid = ({row})",
    )
    report = bubbleviz.analyze(path)

    assert "kernels-overrun" in list_restriction_codes(report)
    assert "--window iteration:0-3" in reason_of(report, OVERRUN)
    assert (describe_first_steps(report) or "").startswith(
        "Profile again: recorded kernel end times"
    )
    assert (describe_first_steps(report) or "").endswith("--window iteration:0-3")
    assert write_all_advice(report) == ()
    assert (
        list_restriction_codes(bubbleviz.analyze(path, window=parse_window("iteration:0-3"))) == []
    )


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ("start - 1000", "Export or profile again: some kernels have invalid timestamps"),
        ("end + 3000000", "Profile again: recorded kernel end times are wrong"),
    ],
)
def test_the_first_advice_of_idle_is_to_record_again(
    end: str, sentence: str, tmp_path: Path
) -> None:
    plant(replace(SIX, kernels=6), tmp_path)
    path = tmp_path / "node0.sqlite"
    edit_database(
        path,
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = {end} WHERE globalPid = {PROCESS} "
        "AND rowid % 11 = 3",
    )
    (first, *other_advice) = advice(bubbleviz.idle(path))

    assert first.startswith(sentence)
    assert "-v coverage" not in first
    assert other_advice == []
    assert (describe_first_steps(bubbleviz.analyze(path)) or "").startswith(sentence)


def test_damage_outside_a_window_of_idle_marks_nothing(tmp_path: Path) -> None:
    path = damaged(tmp_path, 1)
    full_report = bubbleviz.idle(path)
    in_window = bubbleviz.idle(path, window="iteration:1-2")
    out_of_window = bubbleviz.idle(path, window="iteration:3-5")

    assert list_restriction_codes(full_report) == ["kernels-lost"]
    assert list_restriction_codes(in_window) == ["kernels-lost"]
    assert out_of_window.restrictions == ()
    reason = find_limitation(out_of_window, LOST).reason
    assert "; the window is not affected" in reason
