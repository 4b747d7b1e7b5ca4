"""Iterations in which ranks waited for the recording of another rank are not averaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.render.text.report import render_text
from bubbleviz.report.report import Report
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.edited_databases import edit_database
from tests.support.notes import find_limitation, list_limitation_subjects, list_restriction_codes
from tests.support.torch_traces import write_traces

MS = 1_000_000
PIPELINE = Planting(iterations=4, files="rank", iteration_ranges=True, barrier=True, kernels=2)
AWAITED = "devices recorded before others"
TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
FIRST_COMPUTE = (
    "SELECT MIN(start) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName "
    "WHERE value NOT LIKE 'nccl%'"
)
NEXT_WAIT = (
    "SELECT MIN(end) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName "
    "WHERE value LIKE 'nccl%' AND end > {} + 1"
)


def value(path: Path, query: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((number,),) = connection.execute(query)
    return int(number)


def plant_late(
    folder: Path, late_ranks: set[int], delay_ns: int, planting: Planting = PIPELINE
) -> Path:
    """Plant a run in which the profilers of some ranks start late and the other ranks wait.

    The late ranks pause from the time at which the first late rank could compute. Their recordings
    begin when the pause ends. Each of the other ranks pauses in its next communication.

    Args:
        folder: Folder to write to.
        late_ranks: Numbers of the late ranks.
        delay_ns: Length of the pause, in ns.
        planting: The run, with one file per rank.
    """
    plant(planting, folder)
    files = [folder / f"rank{rank}.sqlite" for rank in range(len(list(folder.glob("*.sqlite"))))]
    utc_ns = [
        value(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") for path in files
    ]
    pause_ns = min(utc_ns[rank] + value(files[rank], FIRST_COMPUTE) for rank in late_ranks) - 1000
    for rank, path in enumerate(files):
        at_ns = pause_ns - utc_ns[rank]
        if rank not in late_ranks:
            at_ns = value(path, NEXT_WAIT.format(at_ns)) - 1
        for table in TABLES:
            if rank in late_ranks:
                edit_database(
                    path,
                    f"UPDATE {table} SET start = {at_ns}, end = MAX(end, {at_ns} + 500) "
                    f"WHERE start < {at_ns}",
                )
            edit_database(
                path,
                f"UPDATE {table} SET end = end + {delay_ns} WHERE end >= {at_ns}",
                f"UPDATE {table} SET start = start + {delay_ns} WHERE start >= {at_ns}",
            )
    return folder


def planted_ratio(folder: Path, planting: Planting = PIPELINE) -> float | None:
    plant(planting, folder)
    return ratio_of(bubbleviz.analyze(folder))


def ratio_of(report: Report) -> float | None:
    return report.summary.bubble_ratio["schedule"].mean


def reason_of(report: Report) -> str:
    note = find_limitation(report, AWAITED)
    return note.reason


def averaged(report: Report) -> list[bool]:
    return [iteration.averaged for iteration in report.iterations]


@pytest.mark.parametrize("late_ranks", [{1}, {3}, {1, 2, 3}])
@pytest.mark.parametrize("delay_ns", [20 * MS, 2000 * MS])
def test_an_iteration_that_waits_for_a_recording_is_not_averaged(
    late_ranks: set[int], delay_ns: int, tmp_path: Path
) -> None:
    report = bubbleviz.analyze(plant_late(tmp_path / "late", late_ranks, delay_ns))

    assert ratio_of(report) == pytest.approx(planted_ratio(tmp_path / "right"), abs=1e-6)
    assert averaged(report) == [False, True, True, True]
    assert not report.iterations[0].complete
    assert "so 1 iteration that began up to" in reason_of(report)
    assert "is listed but not averaged" in reason_of(report)
    assert not report.restrictions


def test_a_short_wait_at_the_start_of_a_long_capture_counts(tmp_path: Path) -> None:
    planting = Planting(iterations=20, files="rank", iteration_ranges=True, jitter=0.05)
    report = bubbleviz.analyze(plant_late(tmp_path, {1, 2, 3}, 30 * MS, planting))

    assert averaged(report) == [False, *[True] * 19]


def test_clocks_aligned_by_dependencies_also_show_the_wait(tmp_path: Path) -> None:
    planting = Planting(iterations=4, files="rank", iteration_ranges=True, servers=4)
    folder = plant_late(tmp_path / "late", {2}, 500 * MS, planting)
    for path in folder.glob("*.sqlite"):
        edit_database(path, "DROP TABLE TARGET_INFO_SESSION_START_TIME")
    report = bubbleviz.analyze(folder)

    assert ratio_of(report) == pytest.approx(planted_ratio(tmp_path / "right", planting), abs=1e-6)
    assert averaged(report) == [False, True, True, True]


def test_replicas_wait_in_a_collective(tmp_path: Path) -> None:
    planting = Planting(
        iterations=3, files="rank", iteration_ranges=True, replicas=2, reduce_ns=MS // 2
    )
    report = bubbleviz.analyze(plant_late(tmp_path, {4, 5, 6, 7}, 900 * MS, planting))

    assert averaged(report) == [False, True, True]
    assert AWAITED in list_limitation_subjects(report)


def test_traces_of_pytorch_have_the_same_numbers(tmp_path: Path) -> None:
    exports = plant_late(tmp_path / "exports", {1}, 500 * MS)
    (tmp_path / "traces").mkdir()
    for number, export in enumerate(sorted(exports.glob("*.sqlite"))):
        (trace,) = write_traces(export, tmp_path)
        trace.rename(tmp_path / "traces" / f"rank{number}.json.gz")
    report = bubbleviz.analyze(tmp_path / "traces")

    assert averaged(report) == [False, True, True, True]
    assert ratio_of(report) == pytest.approx(ratio_of(bubbleviz.analyze(exports)), abs=1e-4)


def test_a_single_iteration_that_waits_has_no_ratio(tmp_path: Path) -> None:
    folder = plant_late(tmp_path, {3}, 500 * MS, Planting(iterations=1, files="rank"))
    report = bubbleviz.analyze(folder)

    assert ratio_of(report) is None
    assert list_restriction_codes(report) == ["recordings-awaited"]
    screen = render_text(report, View())
    assert "incomplete: iterations began before all ranks were recorded" in screen
    assert "start all profilers before the first iteration" in " ".join(screen.split())


def test_a_window_without_such_iterations_has_no_note(tmp_path: Path) -> None:
    report = bubbleviz.analyze(plant_late(tmp_path, {1}, 500 * MS), window="iteration:1-3")

    assert AWAITED not in list_limitation_subjects(report)


@pytest.mark.parametrize("planting", [PIPELINE, Planting(iterations=1, files="rank")])
def test_ranks_that_wait_for_the_first_stage_wait_before_the_iteration(
    planting: Planting, tmp_path: Path
) -> None:
    report = bubbleviz.analyze(plant_late(tmp_path / "late", {0}, 500 * MS, planting))

    assert all(averaged(report))
    assert ratio_of(report) == planted_ratio(tmp_path / "right", planting)
    assert AWAITED not in list_limitation_subjects(report)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-1f1b"])
def test_recordings_that_begin_together_keep_all_iterations(schedule: str, tmp_path: Path) -> None:
    planting = Planting(schedule=schedule, iterations=1, files="rank", microbatches=4)
    plant(planting, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert averaged(report) == [True]
    assert AWAITED not in list_limitation_subjects(report)
