"""Ends of work that overlap the next work on the stream are corrected, counted and marked."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz import analyze
from bubbleviz.analyses.idle.advice import make_title
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.interpret.overruns import clip_overruns
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.profile import UNCORRELATED, Activities
from bubbleviz.native import library
from bubbleviz.render.json_document import render
from bubbleviz.render.text.first_screen import describe_headline
from bubbleviz.report.view import View
from tests.support.columnar_exports import FORMS, write_columnar
from tests.support.edited_databases import edit_database
from tests.support.export_forms import WRITERS
from tests.support.idle_runs import list_times
from tests.support.needs import get_real_file
from tests.support.notes import (
    count_limitations,
    list_limitation_subjects,
    list_restriction_codes,
    list_restriction_texts,
)
from tests.support.nsys_exports import C, ExportRows, K, M, write_profile
from tests.support.places import FIXTURES
from tests.support.processes import read_processes
from tests.support.rocm_profiles import write_rocpd, write_rpd
from tests.support.xla_files import E, L, P, make_trace_json
from tests.support.xla_profiles import make_op, write_planes

WHAT = "kernels that end after the next one on their stream starts"
OVERLAP = "kernels that overlap the next one on their stream"
NOT_SERIAL = "kernels that run during other kernels on their stream"
MARK = "uncertain: recorded kernel end times are wrong"
US = 1_000


def work(
    rows: Sequence[tuple[int, int]],
    *,
    streams: Sequence[int] | None = None,
    names: Sequence[int] | None = None,
    launches: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
) -> tuple[Activities, np.ndarray]:
    """Return kernels with the given (start, end) times in us, and their streams."""
    count = len(rows)
    times = np.array(rows, np.int64).reshape(-1, 2).T * US
    name = np.array(names or [0] * count, np.int32)
    activities = Activities(
        times[0].copy(),
        times[1].copy(),
        np.array(ranks or [0] * count, np.int16),
        np.array(launches or range(count), np.uint32),
        name,
        count,
        tuple(f"kernel {i}" for i in range(int(name.max(initial=0)) + 1)),
        np.array([[1, device] for device in range(max(ranks or [0]) + 1)], np.int64),
    )
    return activities, np.array(streams or [7] * count, np.int64)


def corrected(
    activities: Activities, streams: np.ndarray, *, are_queues: bool = False
) -> tuple[list[int], dict[str, int]]:
    """Return the corrected ends in us, and the counts of the limitations, keyed by subject."""
    clipped = clip_overruns("file", activities, streams, are_queues=are_queues)
    end_us = (clipped.activities.end_ns // US).tolist()
    return end_us, count_limitations(clipped)


def test_the_first_work_on_each_stream_is_known() -> None:
    times = [(500, 600), (100, 200), (100, 150), (50, 50), (300, 400)]
    activities, streams = work(times, streams=[7, 7, 7, 8, 8], ranks=[0, 0, 0, 0, 1])
    streams[4] = 7
    assert clip_overruns("file", activities, streams).first.tolist() == [1, 3, 4]
    unknown = np.full(5, -1)
    assert clip_overruns("file", activities, unknown).first.tolist() == []


def test_no_work_has_no_overruns() -> None:
    activities, streams = work([])
    assert corrected(activities, streams) == ([], {})
    activities, streams = work([(0, 100)])
    assert corrected(activities, streams) == ([100], {})


@pytest.mark.parametrize(
    ("rows", "expected_us", "notes"),
    [
        # The first kernel contains the next two, which take 10 us.
        ([(10, 1020), (500, 510), (1010, 1020)], [20, 510, 1020], {WHAT: 1}),
        # The first kernel is cut at the start of the next one.
        # Other kernels of its name are as long.
        ([(0, 300), (100, 110), (200, 310)], [100, 110, 310], {WHAT: 1}),
        # The first kernel overlaps the next one, and is longer than all other kernels of its name.
        ([(0, 150), (120, 220), (300, 400)], [100, 220, 400], {WHAT: 1}),
        # The first kernel overlaps the next one, and is no longer than other kernels of its name.
        ([(0, 130), (120, 220), (300, 450)], [120, 220, 450], {OVERLAP: 1}),
        # Kernels may touch the next one, or overlap it by at most the clock resolution.
        ([(0, 100), (100, 200), (195, 300)], [100, 200, 300], {}),
        # Kernels that start at the same time have no order.
        ([(0, 100), (0, 200), (200, 300)], [100, 200, 300], {}),
        # A kernel without a duration is ignored.
        ([(0, 100), (50, 50), (100, 200)], [100, 50, 200], {}),
    ],
)
def test_ends_are_corrected(
    rows: list[tuple[int, int]], expected_us: list[int], notes: dict[str, int]
) -> None:
    assert corrected(*work(rows)) == (expected_us, notes)


def test_work_without_others_of_its_name_ends_at_the_next_start() -> None:
    activities, streams = work([(10, 1020), (500, 510), (1010, 1020)], names=[0, 1, 1])
    assert corrected(activities, streams) == ([500, 510, 1020], {WHAT: 1})
    activities, streams = work([(10, 150), (120, 200)], names=[0, 1])
    assert corrected(activities, streams) == ([120, 200], {WHAT: 1})


def test_other_streams_and_devices_run_at_the_same_time() -> None:
    rows = [(0, 1000), (100, 200)]
    for how in ({"streams": [7, 8]}, {"ranks": [0, 1]}, {"streams": [-1, -1]}):
        assert corrected(*work(rows, **how)) == ([1000, 200], {})


def test_kernels_of_one_graph_launch_run_at_the_same_time() -> None:
    rows = [(0, 300), (100, 200), (150, 350), (400, 500)]
    assert corrected(*work(rows, launches=[5, 5, 5, 6])) == ([300, 200, 350, 500], {})
    # Work of another launch still bounds the kernels.
    rows = [(0, 900), (100, 200), (400, 500)]
    assert corrected(*work(rows, launches=[5, 5, 6]))[0] == [100, 200, 500]
    # An invalid id does not identify a launch.
    unknown = [UNCORRELATED] * 3
    assert corrected(*work(rows, launches=unknown))[1] == {WHAT: 1}


def test_kernels_that_all_start_early_are_sound() -> None:
    rows = [(100 * i, 100 * i + 120) for i in range(50)]
    end_us = [end for _, end in rows]
    assert corrected(*work(rows)) == (end_us, {})


def test_kernels_far_longer_than_others_of_their_name_do_not_start_the_next_early() -> None:
    # Kernels of 20 us start every 500 us.
    # Some of them end during the next kernel.
    times = [(500 * i, 500 * i + (512 if i % 12 == 5 else 20)) for i in range(200)]
    end_us = [start + 20 for start, _ in times]
    assert corrected(*work(times)) == (end_us, {WHAT: 17})
    # If all kernels of a name start before the previous one ends, they are correct.
    early = [(100_000 + 100 * i, 100_000 + 100 * i + 120) for i in range(50)]
    names = [0] * len(times) + [1] * len(early)
    end_us += [end for _, end in early]
    assert corrected(*work(times + early, names=names)) == (end_us, {WHAT: 17})


@pytest.mark.parametrize("length", [50, 120])
def test_a_few_short_kernels_do_not_make_all_long_ones_of_their_name_damaged(length: int) -> None:
    times = [(100 * i, 100 * i + 120) for i in range(50)]
    times += [(6000 + 100 * i, 6000 + 100 * i + length // 4) for i in range(10)]
    assert corrected(*work(times)) == ([end for _, end in times], {})


def test_long_kernels_start_the_next_early_where_short_ones_of_their_name_do() -> None:
    # All 51 kernels of a step end after the next one starts. The last kernel is long.
    times = []
    for step in range(20):
        start_us = 2000 * step
        times += [(start_us + 20 * i, start_us + 20 * i + 22) for i in range(50)]
        times.append((start_us + 1000, start_us + 2008))
    # The capture ends before the last step does.
    times.pop()
    assert corrected(*work(times)) == ([end for _, end in times], {})
    # Overlaps of short kernels prove nothing, because they may be timestamp noise.
    noisy = [(s, e if e - s > 22 else s + 20 + (i % 2)) for i, (s, e) in enumerate(times)]
    assert corrected(*work(noisy))[1] == {WHAT: 19}


def test_queues_that_are_not_serial_are_not_corrected() -> None:
    rows = [
        row for i in range(20) for row in ((100 * i, 100 * i + 90), (100 * i + 10, 100 * i + 20))
    ]
    end_us = [end for _, end in rows]
    names = [0, 1] * 20
    queues = work(rows, names=names)
    assert corrected(*queues, are_queues=True) == (end_us, {NOT_SERIAL: 20})
    # A CUDA stream is serial, even if many ends are wrong.
    assert corrected(*queues)[1] == {WHAT: 20}


@pytest.mark.parametrize("n_damaged", [15, 25])
def test_a_queue_with_many_ends_far_later_than_others_of_their_name_is_serial(
    n_damaged: int,
) -> None:
    # Kernels of 20 us start every 100 us. Some recorded durations are much longer.
    is_damaged = [i < 2 * n_damaged and i % 2 == 0 for i in range(51)]
    times = [(100 * i, 100 * i + (450 if is_damaged[i] else 20)) for i in range(51)]
    end_us = [start + 20 for start, _ in times]
    assert corrected(*work(times), are_queues=True)[0] == end_us
    assert corrected(*work(times), are_queues=True)[1] == {WHAT: n_damaged}


def test_damaged_ends_on_a_queue_that_is_not_serial_are_corrected() -> None:
    rows = [
        row for i in range(40) for row in ((100 * i, 100 * i + 90), (100 * i + 10, 100 * i + 20))
    ]
    names = [0, 1] * 40
    end_us = [end for _, end in rows]
    for i in (11, 31, 51):
        rows[i] = rows[i][0], rows[i][0] + 800
    queues = work(rows, names=names)
    # Kernels that start before a damaged kernel do not contain it.
    assert corrected(*queues, are_queues=True) == (end_us, {WHAT: 3, NOT_SERIAL: 37})


def test_a_queue_that_may_be_serial_is_marked() -> None:
    # Most kernels contain the next one, so the queue may run two streams concurrently.
    times = [(100 * i, 100 * i + (20 if i % 4 == 0 else 450)) for i in range(61)]
    activities, streams = work(times)
    clipped = clip_overruns("file", activities, streams, are_queues=True)
    notes = clipped.limitations
    assert clipped.activities.end_ns.tolist() == activities.end_ns.tolist()
    assert [note.what for note in notes] == [NOT_SERIAL]
    assert [note.kind for note in notes] == [LimitationKind.KERNELS_OVERRUN]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 60),
            st.integers(0, 40),
            st.integers(0, 2),
            st.integers(0, 2),
            st.integers(0, 1),
        ),
        max_size=9,
    )
)
def test_ends_agree_with_a_slow_reference(rows: list[tuple[int, int, int, int, int]]) -> None:
    times = [(10 * start, 10 * (start + length)) for start, length, *_ in rows]
    names, streams, ranks = ([row[2 + i] for row in rows] for i in range(3))
    activities, stream = work(times, names=names, streams=streams, ranks=ranks)
    overruns = {}
    for i, (start, end) in enumerate(times):
        later = [
            row
            for j, row in enumerate(times)
            if (streams[j], ranks[j]) == (streams[i], ranks[i]) and row[0] > start
            if row[1] > row[0]
        ]
        if later and end > start and end > min(later)[0]:
            first = min(row[0] for row in later)
            end_ns = {row[1] for row in later if row[0] == first}
            overruns[i] = first, end_ns
    # Kernels that start at the same time have an ambiguous order.
    if any(len(end_ns) > 1 for _, end_ns in overruns.values()):
        return
    expected = [end for _, end in times]
    for i, (first, (next_end,)) in overruns.items():
        start, end = times[i]
        other_rows = [
            e - s for j, (s, e) in enumerate(times) if names[j] == names[i] and j not in overruns
        ]
        longest = max(other_rows, default=0)
        damaged = end > next_end or end - start > longest
        expected[i] = start + min(first - start, longest if damaged and longest else first)
    assert corrected(activities, stream)[0] == expected


# Tests of all formats that record streams, with both commands.


def run(folder: Path, *, damaged: bool) -> Path:
    """Write an export with a kernel of 10 us every 100 us. If damaged, one kernel ends too late."""
    rows = ExportRows()
    for i in range(12):
        start = 1_000_000 + 100 * US * i
        end = start + (250 if damaged and i == 2 else 10) * US
        rows.launch(start - 20 * US, start, end, took=5 * US)
    return rows.write(folder)


def xla(*, damaged: bool) -> list[P]:
    """Return the kernels of :func:`run` as XLA planes."""
    kernels, calls = [], []
    for i in range(12):
        start = 1_000_000 + 100 * US * i
        end = start + (250 if damaged and i == 2 else 10) * US
        stats: dict[str, int | str] = {
            "correlation_id": i + 1,
            "hlo_op": "fusion.1",
            "hlo_module": "jit_step",
        }
        kernels.append(E("fusion_1", start, end, stats))
        calls.append(
            make_op("cuLaunchKernel", start - 20 * US, start - 15 * US, correlation_id=i + 1)
        )
    device = P("/device:GPU:0", [L("Stream #7(Kernel)", kernels, 7)])
    return [device, P("/host:CPU", [L("launcher", calls, 100)], {"process_id": 4321})]


def write_form(form: str, folder: Path, *, damaged: bool) -> Path:
    """Write the kernels of :func:`run` in the given format."""
    folder.mkdir()
    if form == "xplane":
        return write_planes(folder, xla(damaged=damaged))
    if form == "xla json":
        path = folder / "host.trace.json"
        path.write_bytes(make_trace_json(xla(damaged=damaged)))
        return path
    export = run(folder, damaged=damaged)
    if form == "arrow":
        return write_columnar(export, folder, FORMS["arrow"])
    return WRITERS[form](export, folder)


@pytest.mark.parametrize("form", [*WRITERS, "arrow", "xplane", "xla json"])
def test_every_format_with_streams_is_corrected(tmp_path: Path, form: str) -> None:
    sound = idle(write_form(form, tmp_path / "sound", damaged=False))
    damaged = idle(write_form(form, tmp_path / "damaged", damaged=True))
    assert not sound.restrictions
    assert list_restriction_texts(damaged) == [MARK]
    assert damaged.ranks[0].busy_ns == sound.ranks[0].busy_ns == 120 * US
    # Causes of idle time are computed from the corrected kernels.
    assert list_times(damaged.ranks[0]) == list_times(sound.ranks[0])
    (note,) = [n for n in damaged.limitations if n.kind is LimitationKind.KERNELS_OVERRUN]
    assert (note.what, note.count) == (WHAT, 1)


def waited_for(
    folder: Path, *, late_us: int, wait_us: int = 2_150, name: str = "cudaDeviceSynchronize"
) -> Path:
    """Write an export of kernels of 10 us every 100 us, followed by a wait for the device.

    Args:
        folder: Output folder.
        late_us: Time in us from the true to the recorded end of the last kernel.
        wait_us: Start of the wait in us. The last kernel is launched at 2,080 us.
        name: Name of the waiting call.
    """
    rows = ExportRows()
    for i in range(12):
        start = 1_000_000 + 100 * US * i
        end = start + (10 + late_us * (i == 11)) * US
        rows.launch(start - 20 * US, start, end, took=5 * US)
    rows.calls.append(C(wait_us * US, (wait_us + 20) * US, 99, name=name))
    return rows.write(folder)


@pytest.mark.parametrize("form", WRITERS)
def test_the_end_of_the_last_kernel_is_before_a_wait_returns(tmp_path: Path, form: str) -> None:
    report = idle(WRITERS[form](waited_for(tmp_path, late_us=5_000), tmp_path))
    assert list_restriction_texts(report) == [MARK]
    assert (report.ranks[0].busy_ns, report.ranks[0].span_ns) == (120 * US, 1_110 * US)
    (note,) = [n for n in report.limitations if n.kind is LimitationKind.KERNELS_OVERRUN]
    assert (note.what, note.count) == ("kernels that end after a call that waited for them", 1)
    assert "5.000 ms less" in note.reason


@pytest.mark.parametrize(
    "how",
    [
        # The wait is for a single stream, starts before the launch, or returns after the end.
        {"late_us": 5_000, "name": "cudaStreamSynchronize"},
        {"late_us": 5_000, "wait_us": 2_050},
        {"late_us": 5_000, "wait_us": 8_000},
        # The difference may be clock noise, or the kernel takes no longer than other kernels.
        {"late_us": 90},
        {"late_us": 0},
    ],
)
def test_ends_that_no_wait_contradicts_are_kept(tmp_path: Path, how: dict[str, Any]) -> None:
    path = waited_for(tmp_path, **how)
    assert not idle(path).restrictions


def test_a_wait_for_one_of_several_devices_shows_no_wrong_end(tmp_path: Path) -> None:
    path = waited_for(tmp_path, late_us=5_000)
    edit_database(
        path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1 WHERE correlationId = 3"
    )
    assert not idle(path).restrictions


def test_sqlite_gives_the_same_streams_as_the_page_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run(tmp_path, damaged=True)
    by_pages = idle(file).ranks[0].busy_ns
    monkeypatch.setenv(library.SWITCH, "0")
    assert idle(file).ranks[0].busy_ns == by_pages == 120 * US


def with_wrong_end(folder: Path) -> list[str]:
    """Return the profiles of a pipeline in which the end of a kernel before a bubble is wrong."""
    files = [
        Path(shutil.copy(file, folder)) for file in sorted((FIXTURES / "1f1b").glob("*.sqlite"))
    ]
    files[0].chmod(0o644)
    kernel, window = "CUPTI_ACTIVITY_KIND_KERNEL", "PARTITION BY deviceId, streamId ORDER BY start"
    gaps = (
        f"SELECT rowid AS row, LEAD(start) OVER ({window}) - end AS gap, "
        f"LEAD(end) OVER ({window}) AS end_of_next FROM {kernel}"
    )
    longest = f"SELECT row, end_of_next FROM ({gaps}) ORDER BY gap DESC LIMIT 1"
    with closing(sqlite3.connect(files[0])) as database, database:
        row, end = database.execute(longest).fetchone()
        database.execute(f'UPDATE {kernel} SET "end" = {end + 20_000} WHERE rowid = {row}')
    return [str(file) for file in files]


def test_the_ratio_of_a_pipeline_is_kept_and_marked(tmp_path: Path) -> None:
    sound = analyze([str(file) for file in sorted((FIXTURES / "1f1b").glob("*.sqlite"))])
    report = analyze(with_wrong_end(tmp_path))
    assert not sound.restrictions
    assert list_restriction_codes(report) == ["kernels-overrun"]
    assert any(MARK in line for line in describe_headline(report))
    assert "kernels-overrun" in render(report, View())
    ratios = [of.summary.bubble_ratio["schedule"].mean for of in (sound, report)]
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-4)


def test_a_profile_with_damaged_streams_is_analyzed_without_them(tmp_path: Path) -> None:
    file = run(tmp_path, damaged=True)
    edit_database(file, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 'seven' WHERE rowid = 5")
    report = idle(file)
    assert "streams of kernels and copies" in list_limitation_subjects(report)
    assert not report.restrictions


def with_copy(folder: Path) -> Path:
    """Write an export of a kernel of 900 us, and a copy on its stream that starts during it."""
    kernels = [K(0, 900 * US, 1), K(1000 * US, 1010 * US, 3)]
    copies = [M(100 * US, 110 * US, 2)]
    calls = [C(0, 1, i) for i in (1, 2, 3)]
    return write_profile(folder, kernels, calls, copies=copies)


def test_copies_bound_kernels_of_their_stream(tmp_path: Path) -> None:
    path = with_copy(tmp_path)
    rocpd = write_rocpd(tmp_path / "a.db", read_processes(path))
    for file in (path, rocpd, write_rpd(tmp_path / "a.rpd", read_processes(path))):
        report = idle(file)
        assert report.ranks[0].busy_ns == 30 * US, file
        assert list_restriction_texts(report) == [MARK]


@pytest.mark.parametrize(
    ("stream", "queue", "is_clipped"),
    [
        # The copy uses the queue of the stream's kernels, or no queue.
        (7, 1, True),
        (7, None, True),
        (7, 0, True),
        # The copy uses another stream or queue.
        (8, 1, False),
        (8, None, False),
        (7, 2, False),
        # The stream of the copy is not recorded.
        (0, None, False),
        (0, 0, False),
        (None, None, False),
    ],
)
def test_copies_of_rocprof_bound_kernels_of_their_stream_alone(
    tmp_path: Path, stream: int | None, queue: int | None, *, is_clipped: bool
) -> None:
    file = write_rocpd(tmp_path / "a.db", read_processes(with_copy(tmp_path)), suffixed=False)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(
            "UPDATE rocpd_memory_copy SET stream_id = ?, queue_id = ?", (stream, queue)
        )
    assert bool(idle(file).restrictions) == is_clipped


def test_a_copy_without_a_queue_is_on_no_stream_whose_kernels_have_several(tmp_path: Path) -> None:
    file = write_rocpd(tmp_path / "a.db", read_processes(with_copy(tmp_path)), suffixed=False)
    assert idle(file).restrictions
    edit_database(file, "UPDATE rocpd_kernel_dispatch SET queue_id = 2 WHERE id = 2")
    assert not idle(file).restrictions


@pytest.mark.parametrize(("queue", "is_clipped"), [(7, True), (8, False), (0, False)])
def test_copies_of_rpd_bound_kernels_of_their_queue_alone(
    tmp_path: Path, queue: int, *, is_clipped: bool
) -> None:
    file = write_rpd(tmp_path / "a.rpd", read_processes(with_copy(tmp_path)))
    edit_database(file, f"UPDATE rocpd_op SET queueId = {queue} WHERE id = 3")
    assert bool(idle(file).restrictions) == is_clipped


def test_kernels_that_copy_for_rocm_bound_others_of_their_queue(tmp_path: Path) -> None:
    kernels = [K(0, 900 * US, 1), K(100 * US, 110 * US, 2), K(1000 * US, 1010 * US, 3)]
    path = write_profile(tmp_path, kernels, [C(0, 1, i) for i in (1, 2, 3)])
    (process,) = read_processes(path)
    process.kernels[1] = (*process.kernels[1][:5], "__amd_rocclr_copyBuffer")
    report = idle(write_rocpd(tmp_path / "a.db", [process]))
    assert report.ranks[0].busy_ns == 30 * US
    assert list_restriction_texts(report) == [MARK]


@pytest.mark.real_files
def test_the_busy_time_of_a_trace_with_a_wrong_end_is_known() -> None:
    report = idle(get_real_file("cases/overrun.json"))
    (rank,) = report.ranks
    assert (rank.busy_ns, rank.span_ns) == (30 * US, 1010 * US)
    assert MARK in make_title(report)
