"""Kernels of a process or device that nothing else mentions are left out and counted."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bubbleviz import analyze
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.report.report import Report
from tests.support.nsys_exports import C, K, R, profile
from tests.support.places import FIXTURES

LEFT_OUT = "kernels and copies of unknown processes or devices"
UNLISTED = "devices that the profile does not list"
PROCESS = f"globalPid = globalPid + {5 << 24}"
#: SQL that gives kernels another place, and where they seem to have run.
DAMAGES = {
    "another process": (PROCESS, "pid 2070 GPU 1"),
    "another host": (f"globalPid = globalPid + {1 << 48}", "pid 2065 GPU 1"),
    "another device": ("deviceId = 77", "pid 2065 GPU 77"),
    "a device of another process": ("deviceId = 0", "pid 2065 GPU 0"),
}


def _damaged(folder: Path, *statements: str) -> Path:
    path = folder / "node0.sqlite"
    shutil.copy(FIXTURES / "1f1b" / "node0.sqlite", path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount
    return path


def _counts(report: Report) -> dict[str, int]:
    return {note.what: note.count for note in report.limitations}


def _kernels(change: str, rows: str) -> str:
    return (
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {change} "
        f"WHERE globalPid >> 24 & 16777215 = 2065 AND rowid IN ({rows})"
    )


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_kernel_of_nowhere_makes_no_rank(damage: str, tmp_path: Path) -> None:
    change, place = DAMAGES[damage]
    path = _damaged(tmp_path, _kernels(change, "100"))

    report = analyze(path)

    (note,) = (note for note in report.limitations if note.what == LEFT_OUT)
    assert note.count == 1
    assert place in note.reason
    assert len(report.ranks) == 4
    assert report.schedule is not None
    assert report.schedule.name == "1f1b"


def test_the_rest_is_as_if_it_had_not_been_recorded(tmp_path: Path) -> None:
    report = analyze(_damaged(tmp_path, _kernels("deviceId = 77", "100")))
    without = analyze(
        _damaged(tmp_path, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = 100")
    )

    assert [i.ratios["schedule"] for i in report.iterations] == [
        i.ratios["schedule"] for i in without.iterations
    ]
    assert LEFT_OUT not in _counts(without)


@pytest.mark.parametrize("damage", DAMAGES)
def test_idle_time_is_of_no_such_device(damage: str, tmp_path: Path) -> None:
    report = idle([_damaged(tmp_path, _kernels(DAMAGES[damage][0], "100"))])

    assert len(report.ranks) == 4
    assert {note.what: note.count for note in report.limitations}[LEFT_OUT] == 1


def test_kernels_of_many_wrong_places_are_left_out_together(tmp_path: Path) -> None:
    scattered = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 100 + rowid WHERE rowid % 50 = 0"

    report = analyze(_damaged(tmp_path, scattered))

    assert len(report.ranks) == 4
    assert _counts(report)[LEFT_OUT] == 708 // 50


def test_a_device_that_the_tables_lack_is_kept_and_told(tmp_path: Path) -> None:
    path = _damaged(tmp_path, "DELETE FROM TARGET_INFO_CUDA_DEVICE WHERE cudaId = 3")

    report = analyze(path)

    assert len(report.ranks) == 4
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)
    (note,) = (note for note in report.limitations if note.what == UNLISTED)
    assert "GPU 3" in note.reason


def test_without_a_list_of_devices_only_silent_processes_are_unknown(tmp_path: Path) -> None:
    kernels = [K(100 * n, 100 * n + 90, n) for n in range(300)]
    calls = [C(100 * n - 9, 100 * n - 8, n) for n in range(300)]
    ranges = [R(0, 30_000, "F0.0.0")]
    strays = [K(5, 7, 7, pid=9), K(9, 11, 8, device=5)]

    report = analyze(profile(tmp_path, [*kernels, *strays], calls, ranges))

    assert _counts(report)[LEFT_OUT] == 1
    assert [(rank.pid, rank.device_id) for rank in report.ranks] == [(1, 0), (1, 5)]


def test_the_only_kernel_is_kept(tmp_path: Path) -> None:
    report = analyze(profile(tmp_path, [K(10, 20, 1)], [C(1, 2, 1)], [R(0, 5, "F0.0.0")]))

    assert not {LEFT_OUT, UNLISTED} & set(_counts(report))


def test_the_healthy_example_loses_nothing() -> None:
    assert not {LEFT_OUT, UNLISTED} & set(_counts(analyze(FIXTURES / "1f1b")))
