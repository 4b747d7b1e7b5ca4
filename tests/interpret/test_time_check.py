"""Kernels with times that cannot be are left out and counted, and no window is ever negative."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bubbleviz import analyze
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.count.ratios import Extents
from bubbleviz.count.ratios.period import RATIO as PERIOD
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.interpret.linking.time_check import TimeCheck, check_times
from bubbleviz.model.profile import Activities
from bubbleviz.report.report import Report
from tests.support.torch_traces import traces_of

EXAMPLE = Path(__file__).parents[2] / "fixtures" / "1f1b" / "node0.sqlite"
DAY_NS = 86_400_000_000_000
UNTIMED = "kernels without timestamps"
EARLY = "kernels and copies before their launching call"
OUTSIDE = "kernels and copies outside the capture"
CLOCK = "the clock of the GPU"
#: SQL that damages the kernels of some rows, and the limitation that counts them.
DAMAGES = {
    "no timestamps": ('start = 0, "end" = 0', UNTIMED),
    "a second before its launch": ('start = start - 1000000000, "end" = "end" - 1e9', EARLY),
    "starts 5 ms early": ("start = start - 5000000", EARLY),
    "starts at 0": ("start = 0", EARLY),
    "starts a day early": (f"start = start - {DAY_NS}", EARLY),
    "ends a day late": (f'"end" = "end" + {DAY_NS}', OUTSIDE),
    "ends a minute late": ('"end" = "end" + 60000000000', OUTSIDE),
    "a day late": (f'start = start + {DAY_NS}, "end" = "end" + {DAY_NS}', OUTSIDE),
    "a day early, without its call": (
        f'start = start - {DAY_NS}, "end" = "end" - {DAY_NS}, correlationId = NULL',
        OUTSIDE,
    ),
}


def _damaged(folder: Path, change: str, rows: str) -> Path:
    path = folder / "node0.sqlite"
    shutil.copy(EXAMPLE, path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {change} WHERE rowid IN ({rows})")
    return path


def _counts(report: Report) -> dict[str, int]:
    return {note.what: note.count for note in report.limitations}


def _windows(report: Report) -> list[int]:
    return [
        ratio.window_ns
        for iteration in report.iterations
        for ratio in iteration.ratios.values()
        if ratio.window_ns is not None
    ]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("rows", ["100", "1", "707", "3, 250, 600"])
def test_damaged_kernels_are_left_out_and_counted(damage: str, rows: str, tmp_path: Path) -> None:
    change, what = DAMAGES[damage]
    report = analyze([_damaged(tmp_path, change, rows)])
    # What the kernels did is gone, as if they had never been recorded.
    without = tmp_path / "without"
    without.mkdir()
    path = _damaged(without, "start = start", "0")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid IN ({rows})")
    true = analyze([path])
    assert _counts(report)[what] == len(rows.split(","))
    assert min(_windows(report)) > 0
    assert [i.ratios["schedule"].value for i in report.iterations] == [
        i.ratios["schedule"].value for i in true.iterations
    ]


def test_the_healthy_example_loses_nothing() -> None:
    counts = _counts(analyze([EXAMPLE]))
    assert not {UNTIMED, EARLY, OUTSIDE, CLOCK} & set(counts)


def test_idle_time_leaves_them_out_too(tmp_path: Path) -> None:
    report = idle([_damaged(tmp_path, f'"end" = "end" + {DAY_NS}', "7, 8")])
    assert {n.what: n.count for n in report.limitations}[OUTSIDE] == 2
    assert all(rank.breakdown.end_ns - rank.breakdown.start_ns < 10**9 for rank in report.ranks)


def test_a_profile_of_which_no_kernel_has_a_time_is_refused(tmp_path: Path) -> None:
    path = _damaged(
        tmp_path, 'start = 0, "end" = 0', "SELECT rowid FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )
    with pytest.raises(NothingToAnalyseError, match="708 kernels without timestamps"):
        analyze([path])


def test_a_rank_of_which_no_kernel_has_a_time_is_no_rank(tmp_path: Path) -> None:
    rows = "SELECT rowid FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = 3"
    report = analyze([_damaged(tmp_path, 'start = 0, "end" = 0', rows)])
    assert _counts(report)[UNTIMED] > 100
    assert all(window > 0 for window in _windows(report))


@pytest.mark.parametrize("shift_ns", [-90_000, -2_000_000, -3_600_000_000_000, 3_000_000_000])
def test_a_clock_of_the_gpu_that_differs_loses_nothing(shift_ns: int, tmp_path: Path) -> None:
    rows = "SELECT rowid FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = 1"
    change = f'start = start + {shift_ns}, "end" = "end" + {shift_ns}'
    counts = _counts(analyze([_damaged(tmp_path, change, rows)]))
    assert EARLY not in counts
    assert OUTSIDE not in counts
    assert (CLOCK in counts) == (shift_ns < -100_000)


def _check(
    start_ns: list[int], launched_ns: list[int], capture_ns: tuple[int, int] | None = None
) -> TimeCheck:
    start = np.array(start_ns, np.int64)
    rank, name_id = np.zeros(len(start), np.int16), np.zeros(len(start), np.int16)
    activities = Activities(
        start,
        start + 1000,
        rank,
        np.arange(len(start), dtype=np.uint32),
        name_id,
        len(start),
        ("gemm",),
        np.array([[1, 0]]),
    )
    call = np.where(np.array(launched_ns) < 0, -1, np.arange(len(start)))
    return check_times(activities, call, np.array(launched_ns, np.int64), capture_ns)


def test_no_work_has_no_wrong_times() -> None:
    assert _check([], []).sound is None


def test_work_at_the_instant_of_its_launch_is_kept() -> None:
    assert _check([5, 5, 5], [5, 5, 5], (0, 10)).sound is None


def test_launches_that_are_unknown_say_nothing() -> None:
    assert _check([10, 20, 30], [-1, -1, -1], (0, 40)).sound is None


def test_a_drift_that_many_kernels_show_is_no_damage() -> None:
    launched_ns = np.arange(0, 100_000_000, 100_000)
    start_ns = launched_ns + 200_000 - launched_ns // 250
    check = _check(start_ns.tolist(), launched_ns.tolist(), (0, 100_000_000))
    assert check.sound is None
    assert check.skewed == 249
    assert check.skew_ns == 199_600


@pytest.mark.parametrize(
    "damage",
    [
        {"ts": 0, "dur": 0},
        {"ts": -1_000_000},
        {"dur": 86_400e6},
        {"ts": 86_400e6},
    ],
    ids=["no timestamps", "before its launch", "ends a day late", "a day late"],
)
@pytest.mark.parametrize("row", [7, 300, 700])
def test_traces_of_pytorch_leave_them_out_too(
    damage: dict[str, float], row: int, tmp_path: Path
) -> None:
    traces = traces_of(EXAMPLE, tmp_path)
    path = traces[0]
    trace = json.loads(gzip.decompress(path.read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    kernel = kernels[row % len(kernels)]
    for key, value in damage.items():
        kernel[key] = value if damage == {"ts": 0, "dur": 0} else kernel[key] + value
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    report = analyze(traces)
    trace["traceEvents"].remove(kernel)
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    true = analyze(traces)
    counts = _counts(report)
    impossible = "kernels and copies with impossible times"
    assert counts.get(EARLY, 0) + counts.get(OUTSIDE, 0) + counts.get(impossible, 0) == 1
    assert [i.ratios["schedule"].value for i in report.iterations] == [
        i.ratios["schedule"].value for i in true.iterations
    ]


def test_an_iteration_that_starts_before_the_last_has_no_period() -> None:
    first_ns = np.array([[100, 100], [50, 200], [300, 300]])
    present = np.ones((3, 2), bool)
    windows = PERIOD.windows(Extents(first_ns, first_ns + 10, first_ns + 10, present))
    assert windows.known.tolist() == [False, True, False]
