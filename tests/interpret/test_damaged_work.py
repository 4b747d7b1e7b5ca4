"""Impossible work is ignored and counted, and lost kernels are counted."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bubbleviz import analyze
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.errors import NothingToAnalyzeError
from bubbleviz.interpret.damaged_work import ProcessLoss, describe_lost_kernels
from bubbleviz.interpret.launches import WorklessRows
from bubbleviz.interpret.linking import LinkedProfile, link
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankIntervals
from bubbleviz.render.json_document import render
from bubbleviz.render.text.first_screen import describe_headline
from bubbleviz.report.methods import write_methods
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import drop_few_left_out, read_restrictions
from bubbleviz.report.saved import read_saved
from bubbleviz.report.view import View
from bubbleviz.sources.in_memory import make_no_ranges
from bubbleviz.sources.readers import find_reader
from tests.planting import Planting, plant
from tests.support import xla_profiles
from tests.support.edited_databases import edit_database
from tests.support.export_forms import WRITERS
from tests.support.needs import get_real_file
from tests.support.notes import (
    count_limitations,
    find_limitation,
    list_limitation_subjects,
    list_restriction_codes,
)
from tests.support.nsys_exports import C, ExportRows, K, R, write_profile
from tests.support.places import FIXTURES
from tests.support.processes import read_processes
from tests.support.rocm_profiles import write_rpd
from tests.support.torch_traces import write_traces
from tests.support.xla_files import make_space, make_trace_json

TWICE, LENGTHLESS = "kernels and copies recorded twice", "kernels without a duration"
UNTIMED, CLOCK = "kernels without timestamps", "the clock of the GPU"
EARLY = "kernels and copies before their launching call"
OUTSIDE = "kernels and copies outside the capture"
NOWHERE = "kernels and copies of unknown processes or devices"
UNLISTED = "devices that the profile does not list"
LOST = "launched kernels that were not recorded"
KERNEL, CALL = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
DAY_NS = 86_400_000_000_000


def _changed(folder: Path, *statements: str, example: str = "1f1b/node0.sqlite") -> Path:
    """Return a copy of an example that is edited with SQL."""
    path = folder / Path(example).name
    shutil.copy(FIXTURES / example, path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount
    return path


def _damaged(folder: Path, change: str, rows: str) -> Path:
    return _changed(folder, f"UPDATE {KERNEL} SET {change} WHERE rowid IN ({rows})")


def _link(path: Path) -> LinkedProfile:
    """Link the work of a profile to its launches, without reading ranges."""
    with find_reader(str(path)).open_file(str(path), 1, lambda *_: None) as file:
        return link(file.read(("*",), partial=True), make_no_ranges())


@pytest.mark.real_files
def test_no_real_profile_repeats_or_lost_a_kernel() -> None:
    data = get_real_file("")
    paths = [
        path
        for path in (*data.glob("nsys/*.sqlite"), *data.glob("kineto/*.gz"))
        if "no_kernels" not in path.name
    ]
    assert len(paths) > 15
    subjects_of_files = {path.name: list_limitation_subjects(_link(path)) for path in paths}
    assert {
        name: subjects
        for name, subjects in subjects_of_files.items()
        if subjects & {TWICE, LENGTHLESS, LOST}
    } == {}


# Tests of duplicate rows and of kernels without a length.


def test_nodes_of_one_graph_are_separate_kernels(tmp_path: Path) -> None:
    kernels = [K(20, 30, 1, stream=7, graph_node=5), K(20, 30, 1, stream=8, graph_node=6)]
    for name, repeated in (("cudaGraphLaunch_v10000", 0), ("cudaLaunchKernel_v7000", 1)):
        path = write_profile(tmp_path, kernels, [C(10, 12, 1, name=name)])
        assert count_limitations(_link(path))[TWICE] == repeated


def test_a_kernel_recorded_twice_changes_no_number(tmp_path: Path) -> None:
    path = _changed(tmp_path, f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL} WHERE rowid % 5 = 0")
    report, true = analyze([path]), analyze([FIXTURES / "1f1b"])
    assert count_limitations(report)[TWICE] == 141
    assert report.summary == true.summary
    assert [p.kernels for p in report.profiles] == [p.kernels for p in true.profiles]
    assert sum(count_limitations(analyze([t]))[TWICE] for t in write_traces(path, tmp_path)) == 141


def test_kernels_without_a_length_are_reported(tmp_path: Path) -> None:
    rows = (
        f"SELECT rowid FROM {KERNEL} WHERE demangledName IN "
        "(SELECT id FROM StringIds WHERE value LIKE 'ampere%') LIMIT 3"
    )
    assert count_limitations(analyze([_damaged(tmp_path, '"end" = start', rows)]))[LENGTHLESS] == 3


# Tests of impossible times.

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


def _ratios(report: Report) -> list[float | None]:
    return [iteration.ratios["schedule"].value for iteration in report.iterations]


def _windows(report: Report) -> list[int]:
    return [
        ratio.window_ns
        for iteration in report.iterations
        for ratio in iteration.ratios.values()
        if ratio.window_ns is not None
    ]


@pytest.fixture(scope="module", params=["100", "707", "3, 250, 600"])
def without_rows(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Report]:
    """Return row numbers of kernels, and the report on a run without these kernels."""
    delete = f"DELETE FROM {KERNEL} WHERE rowid IN ({request.param})"
    return request.param, analyze([_changed(tmp_path_factory.mktemp("without"), delete)])


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_kernels_are_left_out_and_counted(
    damage: str, without_rows: tuple[str, Report], tmp_path: Path
) -> None:
    change, subject = DAMAGES[damage]
    rows, true = without_rows
    report = analyze([_damaged(tmp_path, change, rows)])
    assert count_limitations(report)[subject] == len(rows.split(","))
    assert min(_windows(report)) > 0
    assert _ratios(report) == _ratios(true)


def test_a_profile_in_which_no_kernel_has_a_time_is_refused(tmp_path: Path) -> None:
    path = _damaged(tmp_path, 'start = 0, "end" = 0', f"SELECT rowid FROM {KERNEL}")
    with pytest.raises(NothingToAnalyzeError, match="kernels without timestamps: 708"):
        analyze([path])


@pytest.mark.parametrize("shift_ns", [-90_000, -2_000_000, -3_600_000_000_000, 3_000_000_000])
def test_a_different_gpu_clock_loses_no_kernel(shift_ns: int, tmp_path: Path) -> None:
    change = f'start = start + {shift_ns}, "end" = "end" + {shift_ns}'
    rows = f"SELECT rowid FROM {KERNEL} WHERE deviceId = 1"
    path = _damaged(tmp_path, change, rows)
    reasons = {note.what: note.reason for note in analyze([path]).limitations}
    assert not {EARLY, OUTSIDE} & set(reasons)
    assert (CLOCK in reasons) == (shift_ns < -100_000)
    with closing(sqlite3.connect(path)) as database:
        joined_tables = (
            f"{KERNEL} AS k JOIN {CALL} AS r USING (correlationId) WHERE k.globalPid >> 24"
        )
        max_query = f"SELECT MAX(r.start - k.start) FROM {joined_tables} = r.globalTid >> 24"
        ((early_ns,),) = database.execute(max_query)
    if CLOCK in reasons:
        assert f"by up to {early_ns / 1e6:,.3f} ms" in reasons[CLOCK]


@pytest.mark.parametrize(
    "damage",
    [{"ts": 0, "dur": 0}, {"ts": -1_000_000}, {"dur": 86_400e6}, {"ts": 86_400e6}],
    ids=["no timestamps", "before its launch", "ends a day late", "a day late"],
)
def test_damaged_kernels_of_pytorch_traces_are_also_left_out(
    damage: dict[str, float], tmp_path: Path
) -> None:
    traces = write_traces(FIXTURES / "1f1b" / "node0.sqlite", tmp_path)
    trace = json.loads(gzip.decompress(traces[0].read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    kernel = kernels[700 % len(kernels)]
    for key, value in damage.items():
        kernel[key] = value if damage == {"ts": 0, "dur": 0} else kernel[key] + value
    traces[0].write_bytes(gzip.compress(json.dumps(trace).encode()))
    report = analyze(traces)
    trace["traceEvents"].remove(kernel)
    traces[0].write_bytes(gzip.compress(json.dumps(trace).encode()))
    counts = count_limitations(report)
    impossible = "kernels and copies with impossible times"
    assert sum(counts.get(what, 0) for what in (EARLY, OUTSIDE, impossible, UNTIMED)) == 1
    assert _ratios(report) == _ratios(analyze(traces))


# Tests of processes and devices that occur only in kernels.

#: SQL that moves kernels to another process or device, and where the kernels seem to run.
ELSEWHERE = {
    "another process": (f"globalPid = globalPid + {5 << 24}", "pid 2070 GPU 1"),
    "another host": (f"globalPid = globalPid + {1 << 48}", "pid 2065 GPU 1"),
    "another device": ("deviceId = 77", "pid 2065 GPU 77"),
    "a device of another process": ("deviceId = 0", "pid 2065 GPU 0"),
}


def _moved(folder: Path, change: str) -> Path:
    of_process = "globalPid >> 24 & 16777215 = 2065"
    return _changed(folder, f"UPDATE {KERNEL} SET {change} WHERE {of_process} AND rowid IN (100)")


@pytest.mark.parametrize("damage", ELSEWHERE)
def test_a_kernel_of_an_unknown_process_creates_no_rank(damage: str, tmp_path: Path) -> None:
    change, expected_place = ELSEWHERE[damage]
    path = _moved(tmp_path, change)
    report, idle_time = analyze(path), idle([path])
    note = find_limitation(report, NOWHERE)
    assert note.count == 1
    assert expected_place in note.reason
    assert len(report.ranks) == len(idle_time.ranks) == 4
    assert report.schedule is not None
    assert report.schedule.name == "1f1b"
    assert count_limitations(idle_time)[NOWHERE] == 1
    # All other results equal the results without these kernels.
    without = analyze(_changed(tmp_path, f"DELETE FROM {KERNEL} WHERE rowid = 100"))
    assert [i.ratios["schedule"] for i in report.iterations] == [
        i.ratios["schedule"] for i in without.iterations
    ]
    assert NOWHERE not in count_limitations(without)


def test_a_device_missing_from_the_tables_is_kept_and_reported(tmp_path: Path) -> None:
    report = analyze(_changed(tmp_path, "DELETE FROM TARGET_INFO_CUDA_DEVICE WHERE cudaId = 3"))
    assert len(report.ranks) == 4
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)
    note = find_limitation(report, UNLISTED)
    assert "GPU 3" in note.reason


def test_without_a_list_of_devices_only_silent_processes_are_unknown(tmp_path: Path) -> None:
    kernels = [K(100 * n, 100 * n + 90, n) for n in range(300)]
    calls = [C(100 * n - 9, 100 * n - 8, n) for n in range(300)]
    ranges = [R(0, 30_000, "F0.0.0")]
    strays = [K(5, 7, 7, pid=9), K(9, 11, 8, device=5)]
    report = analyze(write_profile(tmp_path, [*kernels, *strays], calls, ranges))
    assert count_limitations(report)[NOWHERE] == 1
    assert [(rank.pid, rank.device_id) for rank in report.ranks] == [(1, 0), (1, 5)]


# Tests of lost kernels.

#: SQL that counts lost kernels followed by a kernel of the same thread.
#: The end of the capture is not the reason for such losses.
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
    """Return a copy of an example without some kernels, and the number that must be reported."""
    path = _changed(folder, example=example)
    with closing(sqlite3.connect(path)) as database, database:
        kernels = f"FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE {rows}"
        database.execute(
            f"CREATE TEMP TABLE lost AS SELECT correlationId AS id, globalPid >> 24 AS process "
            f"{kernels}"
        )
        database.execute(f"DELETE {kernels}")
        return path, int(database.execute(_BEFORE_THE_LAST).fetchone()[0])


def _lost_of(path: Path) -> tuple[int, bool]:
    """Return the number of lost kernels found by linking, and whether the number is sampled."""
    for note in _link(path).limitations:
        if note.what == LOST:
            return note.count, "about" in note.reason
    return 0, False


@pytest.mark.parametrize("example", ["1f1b/node0.sqlite", "zb-h2/node0.sqlite"])
def test_lost_kernels_come_first_and_mark_the_ratio(example: str, tmp_path: Path) -> None:
    path, n_lost = _without(example, tmp_path, "rowid * 7 % 10 = 3")
    report = analyze([path])
    assert n_lost > 50
    assert count_limitations(report)[LOST] == n_lost
    assert next(note.what for note in report.limitations if str(path) in note.reason) == LOST
    marked = "incomplete: kernels that were launched are not in the profile"
    assert marked in describe_headline(report)[1]
    assert report.incomplete or (marked,) == tuple(
        restriction.text for restriction in report.restrictions[:1]
    )
    # Gates and comparisons use the same restrictions.
    file = tmp_path / "report.json"
    file.write_text(render(report, View()), encoding="utf-8")
    assert read_restrictions(read_saved(str(file)).restrictions) == report.restrictions
    assert "kernels that were launched are not in the profile" in write_methods(report)
    assert count_limitations(idle([path]))[LOST] == n_lost


def test_a_few_lost_kernels_are_counted_and_mark_nothing(tmp_path: Path) -> None:
    path, n_lost = _without("1f1b/node0.sqlite", tmp_path, "rowid IN (100, 302)")
    report = analyze([path])
    assert count_limitations(report)[LOST] == n_lost == 2
    assert not report.restrictions


def test_lost_kernels_of_a_trace_are_counted(tmp_path: Path) -> None:
    path, n_lost = _without("1f1b/node0.sqlite", tmp_path, "rowid % 10 = 3")
    report = analyze(write_traces(path, tmp_path))
    assert count_limitations(report)[LOST] == n_lost > 50


#: SQL for the middle of an example.
_MIDDLE = "(SELECT AVG(start) FROM CUPTI_ACTIVITY_KIND_KERNEL)"


def test_kernels_that_the_end_of_the_capture_cut_are_not_lost(tmp_path: Path) -> None:
    path = _changed(
        tmp_path,
        f"CREATE TEMP TABLE middle AS SELECT {_MIDDLE} AS time",
        f'DELETE FROM {KERNEL} WHERE "end" > (SELECT time FROM middle)',
        f"DELETE FROM {CALL} WHERE start > (SELECT time FROM middle)",
    )
    assert LOST not in count_limitations(analyze([path]))


def test_kernels_that_are_missing_while_the_capture_went_on_are_lost(tmp_path: Path) -> None:
    path, n_lost = _without("1f1b/node0.sqlite", tmp_path, f"start > {_MIDDLE}")
    report = analyze([path])
    assert n_lost == 0
    assert count_limitations(report)[LOST] > 100


def test_kernels_left_out_while_reading_are_reported_once(tmp_path: Path) -> None:
    rows = f"SELECT rowid FROM {KERNEL} WHERE rowid % 10 = 3"
    notes = count_limitations(analyze([_damaged(tmp_path, 'start = 0, "end" = 0', rows)]))
    assert "kernels without timestamps" in notes
    assert LOST not in notes


def _three_launches(folder: Path, *more: C, name: str = "cudaLaunchKernel", sql: str = "") -> int:
    """Return the number of lost kernels of three launches. The second launch has no kernel.

    Args:
        folder: Folder for the export.
        more: Calls before and after the second launch.
        name: Name of the second launch.
        sql: Statement that is run on the export.
    """
    calls = [C(10, 12, 1), C(20, 22, 2, name=name), *more, C(30, 32, 3)]
    path = write_profile(folder, [K(13, 15, 1), K(33, 35, 3)], calls)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(sql)
    return _lost_of(path)[0]


@pytest.mark.parametrize(
    ("name", "n_lost"),
    [
        ("cudaLaunchKernel_v7000", 1),
        ("cuLaunchKernelEx", 1),
        ("cudaStreamSynchronize_v3020", 0),
        ("cudaMemsetAsync_v3020", 0),
    ],
)
def test_only_kernel_launches_can_lose_kernels(name: str, n_lost: int, tmp_path: Path) -> None:
    assert _three_launches(tmp_path, name=name) == n_lost


def _begin(start: int, **more: int) -> C:
    return C(start, start + 1, 80 + start, name="cudaStreamBeginCapture_v10000", **more)


def _end(start: int, **more: int) -> C:
    return C(start, start + 1, 80 + start, name="cudaStreamEndCapture_v10000", **more)


#: Two threads capture CUDA graphs at the same time.
_TWICE = (_begin(14), _begin(15, tid=5), _end(17, tid=5), _end(24))


@pytest.mark.parametrize(
    ("around", "n_lost"),
    [
        ((_begin(18), _end(24)), 0),
        # A capture that has ended has no effect.
        # A capture that never ends captures all launches.
        ((_begin(14), _end(16)), 1),
        ((_begin(18),), 0),
        ((_begin(18, pid=2), _end(24, pid=2)), 1),
        (_TWICE, 0),
        # The end of a capture that began before the profile does not end another capture.
        ((_end(13), *_TWICE), 0),
    ],
)
def test_a_launch_into_a_graph_creates_no_kernel(
    around: tuple[C, ...], n_lost: int, tmp_path: Path
) -> None:
    assert _three_launches(tmp_path, *around) == n_lost


def test_failed_calls_launch_and_capture_nothing(tmp_path: Path) -> None:
    failing = f"UPDATE {CALL} SET returnValue = 2 WHERE start = "
    assert _three_launches(tmp_path, sql=f"{failing}20") == 0
    assert _three_launches(tmp_path, _begin(18), sql=f"{failing}18") == 1


def test_a_stream_may_wait_when_the_capture_ends(tmp_path: Path) -> None:
    calls = [C(10 * i, 10 * i + 1, i) for i in range(1, 21)]
    # Every second launch is on a stream whose work waits for 70 ns.
    # The other launches are on a stream whose work waits for 3 ns.
    start = {i: 10 * i + (3 if i % 2 else 70) for i in range(1, 21)}
    kernels = [K(start[i], start[i] + 1, i) for i in start if start[i] < 200]
    assert 0 < len(kernels) < 18
    assert _lost_of(write_profile(tmp_path, kernels, calls)) == (0, False)
    # If an earlier kernel is missing, it is lost.
    assert _lost_of(write_profile(tmp_path, kernels[1:2] + kernels[3:], calls[1:])) == (1, False)


def test_a_thread_without_kernels_ends_with_its_process(tmp_path: Path) -> None:
    calls = [
        C(10, 12, 1),
        C(20, 22, 2, tid=5),
        C(30, 32, 3),
        C(40, 42, 4, tid=5),
        C(9, 9, 5, pid=2),
    ]
    kernels = [K(13, 15, 1), K(33, 35, 3)]
    # If a process has no kernels, each of its launches has lost a kernel.
    assert _lost_of(write_profile(tmp_path, kernels, calls)) == (2, False)


def _periodic(folder: Path, order: tuple[str, ...], count: int, kernel_period: int) -> Path:
    """Write an export in which every ``kernel_period``-th of ``count`` launches has a kernel.

    Calls with other names surround the other launches. One statement inserts all rows.
    """
    path = write_profile(folder, [K(3, 5, 1)], [C(1, 2, 1), C(1, 2, 2, name="cudaEventRecord")])
    with closing(sqlite3.connect(path)) as database, database:
        ids = dict(database.execute("SELECT value, id FROM StringIds").fetchall())
        ((thread, process, kernel),) = database.execute(
            "SELECT r.globalTid, k.globalPid, k.demangledName FROM CUPTI_ACTIVITY_KIND_RUNTIME AS "
            "r JOIN CUPTI_ACTIVITY_KIND_KERNEL AS k ON k.correlationId = r.correlationId"
        ).fetchall()
        places = [
            (i, place)
            for i in range(1, count + 1)
            for place, name in enumerate(order)
            if i % kernel_period or name == "cudaLaunchKernel"
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
                if i % kernel_period == 0
            ],
        )
    return path


@pytest.mark.parametrize(
    "order", [("cudaEventRecord", "cudaLaunchKernel"), ("cudaLaunchKernel", "cudaEventRecord")]
)
@pytest.mark.parametrize("limit", [1 << 18, 1 << 12])
def test_lost_kernels_of_periodic_calls_are_reported(
    order: tuple[str, ...], limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorklessRows.__init__, "__defaults__", (limit,))
    n_lost, sampled = _lost_of(_periodic(tmp_path, order, 12_000, 2))
    assert sampled == (limit == 1 << 12)
    assert n_lost == 6_000 if not sampled else 5_000 < n_lost < 7_000


def _loss(*processes: ProcessLoss) -> Limitation:
    (note,) = describe_lost_kernels(
        "a.sqlite", processes, 0, sampled=False, unknown=RankIntervals.make_empty()
    )
    return note


def test_the_process_that_lost_most_decides_whatever_shares_its_file() -> None:
    loss = ProcessLoss(1, 20, 20, 980)
    assert _loss(loss).kind is LimitationKind.KERNELS_LOST
    other_losses = (ProcessLoss(number, 0, 0, 10_000) for number in range(2, 9))
    together = _loss(loss, *other_losses)
    assert together.kind is LimitationKind.KERNELS_LOST
    assert together.reason.startswith("a.sqlite: 0.03 % of the launched kernels")
    helper = ProcessLoss(9, 1, 1, 0)
    assert _loss(helper, ProcessLoss(1, 0, 0, 10_000)).kind is LimitationKind.COSTS


@pytest.mark.parametrize(
    ("launched_ns", "effect"),
    [
        ([], ". Their time counts as idle;"),
        ([100, 120], ". Their time counts as idle;"),
        (
            [10, 20],
            ". They were launched before the first recorded work, and thus before the measured "
            "time;",
        ),
        ([10, 120], ". Their time counts as idle, except for 1 of 2, which were launched before"),
    ],
)
def test_kernels_lost_before_the_span_count_as_no_idle_time(
    launched_ns: list[int], effect: str
) -> None:
    count = max(len(launched_ns), 1)
    times_ns = np.array(launched_ns, np.int64)
    loss = ProcessLoss(1, count, count, 10, launched_ns=times_ns, first_launch_ns=50)

    assert effect in _loss(loss).reason


def test_kernels_that_are_lost_first_are_said_to_be_before_the_span(tmp_path: Path) -> None:
    plant(Planting(iterations=2), tmp_path)
    first = "SELECT rowid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start LIMIT 1"
    path = tmp_path / "node0.sqlite"
    report = analyze(
        edit_database(path, f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid IN ({first})")
    )
    (note,) = [n for n in report.limitations if n.what.startswith("launched kernels that")]

    assert "They were launched before the first recorded work" in note.reason


@pytest.mark.parametrize(
    ("first", "codes", "unknown_us"), [(1, [], 0), (11, ["kernels-lost"], 2_010)]
)
def test_kernels_lost_before_the_span_do_not_mark_idle_time(
    first: int, codes: list[str], unknown_us: int, tmp_path: Path
) -> None:
    path = _launches(tmp_path, (0, 0, 0), 0)
    edit_database(path, f"DELETE FROM {KERNEL} WHERE rowid BETWEEN {first} AND {first + 19}")
    report = idle(path)
    assert list_restriction_codes(report) == codes
    assert report.unknown_ns == unknown_us * US
    assert count_limitations(report)[LOST] == 20


def test_idle_time_before_the_first_recorded_operation_is_unknown(tmp_path: Path) -> None:
    plant(Planting(iterations=2), tmp_path)
    path = tmp_path / "node0.sqlite"
    first_kernels = f"SELECT rowid FROM {KERNEL} WHERE deviceId = 2 ORDER BY start LIMIT 8"
    edit_database(path, f"DELETE FROM {KERNEL} WHERE rowid IN ({first_kernels})")
    report = analyze(path)
    unknown = [row for row in report.bubbles if row.cause == "unknown"]
    first_ns = min(op.start_ns for op in report.operations if op.rank == 2 and op.kernels)
    assert {row.rank for row in unknown} == {2}
    assert max(row.end_ns for row in unknown) <= first_ns


# Tests of kernels that are linked to the wrong launch, or to no launch.


def _pairs(folder: Path, n_lost: int = 0) -> Path:
    """Return an export of pairs of launches.

    Both kernels of a pair have the id of the first launch.
    """
    kernels, calls = [], []
    for i in range(20):
        for j in range(2):
            start = (1_000 + 200 * i + 100 * j) * US
            calls.append(
                C(start - 90 * US, start - 88 * US, 2 * i + j + 1, name="cudaLaunchKernel")
            )
            kernels.append(K(start, start + 80 * US, 2 * i + 1, name=f"kernel{j}"))
    return write_profile(folder, kernels[: 20 - n_lost] + kernels[20:], calls)


@pytest.mark.parametrize("form", WRITERS)
def test_kernels_that_share_the_id_of_a_launch_are_not_lost(form: str, tmp_path: Path) -> None:
    report = idle(WRITERS[form](_pairs(tmp_path), tmp_path))
    assert list_restriction_codes(report) == []
    assert report.unknown_ns == 0


def test_missing_kernels_are_lost_even_if_some_share_an_id(tmp_path: Path) -> None:
    assert list_restriction_codes(idle(_pairs(tmp_path, n_lost=4))) == ["kernels-lost"]


def test_kernels_recorded_twice_do_not_replace_lost_ones(tmp_path: Path) -> None:
    path = _pairs(tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"DELETE FROM {KERNEL} WHERE rowid % 2 = 0")
        database.execute(f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}")
    assert list_restriction_codes(idle(path)) == ["kernels-lost"]


def test_kernels_are_not_lost_if_the_table_of_links_is_empty(tmp_path: Path) -> None:
    path = write_rpd(tmp_path / "a.rpd", read_processes(_launches(tmp_path, (0, 0, 0), 0)))
    edit_database(path, "DELETE FROM rocpd_api_ops")
    report = idle(path)
    assert list_restriction_codes(report) == []
    assert LOST not in count_limitations(report)


# Tests of kernels with impossible times.

IMPOSSIBLE_MARK = "kernels-left-out"


def test_a_kernel_that_ends_before_it_starts_is_marked(tmp_path: Path) -> None:
    intact = FIXTURES / "1f1b" / "node0.sqlite"
    assert IMPOSSIBLE_MARK not in (
        *list_restriction_codes(analyze(intact)),
        *list_restriction_codes(idle(intact)),
    )
    path = _changed(tmp_path, f"UPDATE {KERNEL} SET end = start - 100 WHERE rowid = 700")
    for report in (analyze(path), idle(path)):
        assert IMPOSSIBLE_MARK in list_restriction_codes(report)


def test_kernels_of_a_trace_that_end_before_they_start_are_marked(tmp_path: Path) -> None:
    traces = write_traces(FIXTURES / "1f1b" / "node0.sqlite", tmp_path)
    trace = json.loads(gzip.decompress(traces[0].read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    kernels[len(kernels) // 2]["dur"] = -3
    traces[0].write_bytes(gzip.compress(json.dumps(trace).encode()))
    assert IMPOSSIBLE_MARK in list_restriction_codes(analyze(traces))
    assert IMPOSSIBLE_MARK in list_restriction_codes(idle(traces))


@pytest.mark.parametrize(("kernels", "is_marked"), [(9_999, True), (10_000, False), (0, True)])
def test_few_impossible_kernels_of_many_have_no_mark(kernels: int, is_marked: bool) -> None:
    note = Limitation("kernels", "why", 1, LimitationKind.KERNELS_IMPOSSIBLE)
    assert bool(drop_few_left_out([note], kernels)) is is_marked


US = 1_000
#: Every n-th kernel has invalid times.
DAMAGED_EVERY = 10
#: Damage to the times of a kernel:
#: (factor of its start, offset of its start, duration).
INVALID_TIMES = {
    "no times": (0, 0, 0),
    "no duration": (1, 0, 0),
    "a second early": (1, -1_000_000 * US, 90 * US),
    "ends first": (1, 0, -US),
}


def _launches(
    folder: Path, invalid: tuple[int, int, int], n_invalid: int, n_kernels: int = 50
) -> Path:
    """Return an export of kernels of 90 us that start every 100 us. Some have invalid times."""
    rows = ExportRows()
    for i in range(n_kernels):
        start, duration = (5_000_000 + 100 * i) * US, 90 * US
        called = start - 20 * US
        is_invalid = i % DAMAGED_EVERY == 3 and i < n_invalid * DAMAGED_EVERY
        if is_invalid:
            factor, shift, duration = invalid
            start = factor * start + shift
        rows.launch(called, start, start + duration, took=2 * US)
    return rows.write(folder)


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("damage", INVALID_TIMES)
def test_idle_time_around_kernels_with_invalid_times_is_unknown(
    damage: str, form: str, tmp_path: Path
) -> None:
    path = WRITERS[form](_launches(tmp_path, INVALID_TIMES[damage], 5), tmp_path)
    report = idle(path)
    assert list_restriction_codes(report) == [IMPOSSIBLE_MARK]
    # The unknown time lasts from the end of the previous kernel to the start of the next one.
    assert report.unknown_ns == 5 * 110 * US


@pytest.mark.parametrize("damage", ["no timestamps", "starts 5 ms early"])
def test_few_kernels_with_invalid_times_mark_the_iteration_that_they_affect(
    damage: str, tmp_path: Path
) -> None:
    path = _damaged(tmp_path, DAMAGES[damage][0], "3, 250, 600")
    report = analyze([path])
    assert IMPOSSIBLE_MARK in list_restriction_codes(report)
    assert any(row.cause == "unknown" for row in report.bubbles)


@pytest.mark.parametrize("name", ["a.trace.json", "a.xplane.pb"])
def test_kernels_of_xla_that_end_before_they_start_are_marked(name: str, tmp_path: Path) -> None:
    planes = xla_profiles.make_gpu()
    events = list(planes[0].lines[0].events)
    planes[0] = replace(planes[0], lines=[replace(planes[0].lines[0], events=events)])
    path = tmp_path / name

    def write() -> Path:
        path.write_bytes(
            make_trace_json(planes) if name.endswith("json") else make_space(planes, ["host0"])
        )
        return path

    assert list_restriction_codes(idle(write())) == []
    events[3] = replace(events[3], end=events[3].start - 100)
    assert IMPOSSIBLE_MARK in list_restriction_codes(idle(write()))


def test_one_untimed_kernel_is_marked_if_much_time_is_unknown(tmp_path: Path) -> None:
    # In one case, 110 of 59,990 us are unknown.
    # In the other case, 110 of 9,990 us are unknown.
    path = _launches(tmp_path, INVALID_TIMES["no times"], 1, n_kernels=600)
    assert list_restriction_codes(idle(path)) == []
    assert list_restriction_codes(idle(path, window="time:5s-5.00999s")) == [IMPOSSIBLE_MARK]


def test_work_is_left_out_if_streams_cannot_be_read(tmp_path: Path) -> None:
    path = _changed(
        tmp_path,
        f"UPDATE {KERNEL} SET start = start - 200000000, end = end - 200000000 WHERE rowid = 50",
        f"UPDATE {KERNEL} SET streamId = 'seven' WHERE rowid = 5",
    )
    counts = count_limitations(analyze(path))

    assert counts[EARLY] == 1
    assert counts["streams of kernels and copies"] == 1
