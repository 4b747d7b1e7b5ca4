"""Kernels that were launched and are not in the profile are counted, and ratios say so."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bubbleviz import analyze
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.interpret.linking.linker import link_by_thread
from bubbleviz.interpret.linking.lost_kernels import LostKernels, ProcessLoss, WorklessRows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.render.formats.json import render
from bubbleviz.render.text.headline import headline_lines
from bubbleviz.report.compare.comparison import saved_of
from bubbleviz.report.methods import methods
from bubbleviz.report.saved import read_saved
from bubbleviz.report.view import View
from bubbleviz.sources.in_memory import no_ranges
from bubbleviz.sources.readers import reader_of
from tests.support.nsys_exports import C, K, profile
from tests.support.places import FIXTURES
from tests.support.torch_traces import traces_of

LOST = "kernels that were launched and not recorded"
#: Kernels of which a later one of the same thread is left, so that no capture's end took them.
_BEFORE_THE_LAST = """
    SELECT COUNT(*) FROM lost
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call
      ON call.correlationId = lost.id AND call.globalTid >> 24 = lost.process
    WHERE call.start < (
        SELECT MAX(later.start) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS later
        JOIN CUPTI_ACTIVITY_KIND_KERNEL AS kernel
          ON kernel.correlationId = later.correlationId
         AND kernel.globalPid >> 24 = later.globalTid >> 24
        WHERE later.globalTid = call.globalTid
    )
"""


def _without(example: str, folder: Path, rows: str) -> tuple[Path, int]:
    """Return a copy of an example without some kernels, and how many of these must be told."""
    path = folder / Path(example).name
    shutil.copy(FIXTURES / example, path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as database, database:
        kernels = f"FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE {rows}"
        database.execute(
            f"CREATE TEMP TABLE lost AS SELECT correlationId AS id, globalPid >> 24 AS process "
            f"{kernels}"
        )
        database.execute(f"DELETE {kernels}")
        return path, int(database.execute(_BEFORE_THE_LAST).fetchone()[0])


def _told(limitations: tuple[Limitation, ...]) -> int:
    return sum(note.count for note in limitations if note.what == LOST)


def _lost_of(path: Path) -> tuple[int, bool]:
    """Return how many lost kernels linking counts, and whether of a sample."""
    with reader_of(str(path)).open_file(str(path), 1, lambda *_: None) as file:
        lost = link_by_thread(file.read(("*",), partial=True), no_ranges()).lost
    assert lost is not None
    return lost.count, lost.sampled


@pytest.mark.parametrize("example", ["1f1b/node0.sqlite", "zb-h2/node0.sqlite"])
def test_lost_kernels_come_first_and_mark_the_ratio(example: str, tmp_path: Path) -> None:
    path, lost = _without(example, tmp_path, "rowid * 7 % 10 = 3")
    report = analyze([path])
    assert lost > 50
    assert _told(report.limitations) == lost
    assert next(note.what for note in report.limitations if str(path) in note.reason) == LOST
    marked = "incomplete: kernels that were launched are not in the profile"
    assert marked in headline_lines(report)[1]
    assert report.incomplete or report.restriction == marked
    # What gates and comparisons read is the same.
    file = tmp_path / "report.json"
    file.write_text(render(report, View()), encoding="utf-8")
    assert read_saved(str(file)).restriction == saved_of(report).restriction == report.restriction
    assert "kernels that were launched are not in the profile" in methods(report)
    assert _told(idle([path]).limitations) == lost


def test_a_few_lost_kernels_are_counted_and_mark_nothing(tmp_path: Path) -> None:
    path, lost = _without("1f1b/node0.sqlite", tmp_path, "rowid IN (100, 302)")
    report = analyze([path])
    assert _told(report.limitations) == lost == 2
    assert report.restriction is None


def test_lost_kernels_of_a_trace_are_counted(tmp_path: Path) -> None:
    path, lost = _without("1f1b/node0.sqlite", tmp_path, "rowid % 10 = 3")
    report = analyze(traces_of(path, tmp_path))
    assert _told(report.limitations) == lost > 50


def test_kernels_that_the_end_of_the_capture_cut_are_not_lost(tmp_path: Path) -> None:
    path, lost = _without(
        "1f1b/node0.sqlite", tmp_path, "start > (SELECT AVG(start) FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    )
    report = analyze([path])
    assert _told(report.limitations) == lost == 0


def test_kernels_left_out_as_they_were_read_are_told_once(tmp_path: Path) -> None:
    path, _ = _without("1f1b/node0.sqlite", tmp_path, "0")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 0, "end" = 0 WHERE rowid % 10 = 3'
        )
    notes = {note.what for note in analyze([path]).limitations}
    assert "kernels without timestamps" in notes
    assert LOST not in notes


def _three_launches(folder: Path, *more: C, name: str = "cudaLaunchKernel") -> Path:
    """Write an export of three launches, the second of which has no kernel."""
    calls = [C(10, 12, 1), C(20, 22, 2, name=name), *more, C(30, 32, 3)]
    return profile(folder, [K(13, 15, 1), K(33, 35, 3)], calls)


def test_without_calls_nothing_is_lost(tmp_path: Path) -> None:
    assert _lost_of(profile(tmp_path, [K(13, 15, 1)])) == (0, False)


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("cudaLaunchKernel_v7000", 1),
        ("cudaLaunchKernelExC_v11060_ptsz", 1),
        ("cudaLaunchCooperativeKernel_v9000", 1),
        ("cuLaunchKernelEx", 1),
        ("cudaStreamSynchronize_v3020", 0),
        ("cudaLaunchHostFunc_v10000", 0),
        ("cudaMemsetAsync_v3020", 0),
    ],
)
def test_only_launches_of_kernels_lose_some(name: str, lost: int, tmp_path: Path) -> None:
    assert _lost_of(_three_launches(tmp_path, name=name)) == (lost, False)


def test_a_failed_launch_makes_no_kernel(tmp_path: Path) -> None:
    path = _three_launches(tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 2 WHERE start = 20")
    assert _lost_of(path) == (0, False)


def test_a_launch_into_a_graph_makes_no_kernel(tmp_path: Path) -> None:
    begin, end = "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000"
    around = C(18, 19, 8, name=begin), C(24, 25, 9, name=end)
    assert _lost_of(_three_launches(tmp_path, *around)) == (0, False)
    # One that has ended captures nothing more; one that never ends, all.
    before = C(14, 15, 8, name=begin), C(16, 17, 9, name=end)
    assert _lost_of(_three_launches(tmp_path, *before)) == (1, False)
    assert _lost_of(_three_launches(tmp_path, around[0])) == (0, False)
    other = C(18, 19, 8, name=begin, pid=2), C(24, 25, 9, name=end, pid=2)
    assert _lost_of(_three_launches(tmp_path, *other)) == (1, False)


def test_several_threads_capture_at_once(tmp_path: Path) -> None:
    begin, end = "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000"
    calls = [
        C(14, 15, 8, name=begin),
        C(15, 16, 9, name=begin, tid=5),
        C(17, 18, 10, name=end, tid=5),
        C(24, 25, 11, name=end),
    ]
    assert _lost_of(_three_launches(tmp_path, *calls)) == (0, False)
    # The end of a capture that began before the profile ends no other.
    assert _lost_of(_three_launches(tmp_path, C(13, 14, 7, name=end), *calls)) == (0, False)


def test_a_capture_that_failed_to_begin_has_no_end(tmp_path: Path) -> None:
    begin = C(18, 19, 8, name="cudaStreamBeginCapture_v10000")
    path = _three_launches(tmp_path, begin)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 9 WHERE start = 18")
    assert _lost_of(path) == (1, False)


def test_a_stream_may_wait_when_the_capture_ends(tmp_path: Path) -> None:
    calls = [C(10 * i, 10 * i + 1, i) for i in range(1, 21)]
    # Every second launch is for a stream whose work waits 70, the others for one that waits for 3.
    start = {i: 10 * i + (3 if i % 2 else 70) for i in range(1, 21)}
    kernels = [K(start[i], start[i] + 1, i) for i in start if start[i] < 200]
    assert 0 < len(kernels) < 18
    assert _lost_of(profile(tmp_path, kernels, calls)) == (0, False)
    # One that is missing earlier is lost.
    assert _lost_of(profile(tmp_path, kernels[1:2] + kernels[3:], calls[1:])) == (1, False)


def test_a_launch_in_both_interfaces_has_one_kernel(tmp_path: Path) -> None:
    path = _three_launches(tmp_path, name="cudaGetDevice")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT start + 1, end - 1, eventClass, "
            "globalTid, correlationId, nameId, 0, NULL FROM CUPTI_ACTIVITY_KIND_RUNTIME "
            "WHERE correlationId = 1"
        )
    assert _lost_of(path) == (0, False)


def test_a_thread_without_any_kernel_has_the_end_of_its_process(tmp_path: Path) -> None:
    calls = [
        C(10, 12, 1),
        C(20, 22, 2, tid=5),
        C(30, 32, 3),
        C(40, 42, 4, tid=5),
        C(9, 9, 5, pid=2),
    ]
    kernels = [K(13, 15, 1), K(33, 35, 3)]
    # Of a process without any, every launch is one whose kernel is lost.
    assert _lost_of(profile(tmp_path, kernels, calls)) == (2, False)


def test_of_many_calls_a_sample_without_a_period_is_kept() -> None:
    rows = WorklessRows(most=1 << 10)
    assert [part.tolist() for part in rows.sample(10)[:1]] == [[]]
    for start in range(0, 1 << 16, 700):
        rows.add(np.arange(start, min(start + 700, 1 << 16)))
    kept, step = rows.sample(1 << 10)
    assert step == rows.step
    assert 0.8 < len(kept) * step / (1 << 16) < 1.2
    assert (np.diff(kept) > 0).all()
    for period in (2, 4, 16):
        each = np.bincount(kept % period, minlength=period)
        assert each.min() > 0.2 * len(kept) / period
    few, longer = rows.sample(64)
    assert longer > step
    assert np.isin(few, kept).all()
    assert 16 < len(few) < 128


def _periodic(folder: Path, order: tuple[str, ...], count: int, kept: int) -> Path:
    """Write an export of ``count`` launches, of which each ``kept``-th has a kernel.

    Beside each of the others are some calls of other names. They are rows of one statement, for
    there are many.
    """
    path = profile(folder, [K(3, 5, 1)], [C(1, 2, 1), C(1, 2, 2, name="cudaEventRecord")])
    with closing(sqlite3.connect(path)) as database, database:
        ids = dict(database.execute("SELECT value, id FROM StringIds").fetchall())
        ((thread, process, kernel),) = database.execute(
            "SELECT r.globalTid, k.globalPid, k.demangledName "
            "FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r JOIN CUPTI_ACTIVITY_KIND_KERNEL AS k "
            "ON k.correlationId = r.correlationId"
        ).fetchall()
        places = [
            (i, place)
            for i in range(1, count + 1)
            for place, name in enumerate(order)
            if i % kept or name == "cudaLaunchKernel"
        ]
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
            [
                (100 * i + at, 100 * i + at + 1, thread, 10 * i + at, ids[order[at]])
                for i, at in places
            ],
        )
        launch = order.index("cudaLaunchKernel")
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?, NULL)",
            [
                (100 * i + 50, 100 * i + 60, 10 * i + launch, process, kernel, kernel)
                for i in range(1, count + 1)
                if i % kept == 0
            ],
        )
    return path


@pytest.mark.parametrize(
    "order", [("cudaEventRecord", "cudaLaunchKernel"), ("cudaLaunchKernel", "cudaEventRecord")]
)
@pytest.mark.parametrize("most", [1 << 18, 1 << 12])
def test_lost_kernels_of_periodic_calls_are_told(
    order: tuple[str, ...], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorklessRows.__init__, "__defaults__", (most,))
    lost, sampled = _lost_of(_periodic(tmp_path, order, 12_000, 2))
    assert sampled == (most == 1 << 12)
    assert lost == 6_000 if not sampled else 5_000 < lost < 7_000


def test_nothing_lost_in_a_sample_is_told_as_one() -> None:
    assert tuple(LostKernels((), sampled=True).limitations("a", 0)) == ()


def _loss(*processes: ProcessLoss, sampled: bool = False) -> Limitation:
    (note,) = LostKernels(processes, sampled).limitations("a.sqlite", 0)
    return note


def test_a_few_of_a_sample_mark_nothing() -> None:
    few, more = (ProcessLoss(1, 2048 * seen, seen, 200_000) for seen in (3, 30))
    assert _loss(few, sampled=True).kind is LimitationKind.COSTS
    assert _loss(more, sampled=True).kind is LimitationKind.KERNELS_LOST


def test_the_process_that_lost_most_decides_whatever_shares_its_file() -> None:
    loss = ProcessLoss(1, 20, 20, 980)
    assert _loss(loss).kind is LimitationKind.KERNELS_LOST
    others = (ProcessLoss(number, 0, 0, 10_000) for number in range(2, 9))
    together = _loss(loss, *others)
    assert together.kind is LimitationKind.KERNELS_LOST
    assert together.reason.startswith("a.sqlite: 0.03 % of the kernels")
    helper = ProcessLoss(9, 1, 1, 0)
    assert _loss(helper, ProcessLoss(1, 0, 0, 10_000)).kind is LimitationKind.COSTS


def test_what_is_lost_is_told_in_words() -> None:
    some, none = ProcessLoss(7, 500, 500, 500), ProcessLoss(8, 100, 100, 0)
    assert "50.00 % of the" in _loss(some).reason
    assert "profile, though later ones are: " in _loss(some).reason
    assert "100.00 % of the" in _loss(none).reason
    assert "profile, which holds none of process 8: " in _loss(none).reason
    assert "though later ones are and which holds none of process 8" in _loss(some, none).reason
    assert "less than 0.01 %" in _loss(ProcessLoss(7, 1, 1, 1_000_000)).reason


@pytest.mark.skipif("BUBBLEVIZ_DATA" not in os.environ, reason="BUBBLEVIZ_DATA is not set")
def test_no_real_profile_lost_a_kernel() -> None:
    data = Path(os.environ["BUBBLEVIZ_DATA"])
    paths = [
        path
        for path in (*data.glob("nsys/*.sqlite"), *data.glob("kineto/*.gz"))
        if "no_kernels" not in path.name
    ]
    assert len(paths) > 15
    assert {path.name: count for path in paths if (count := _lost_of(path)[0])} == {}
