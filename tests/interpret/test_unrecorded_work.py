"""Work that was launched but not recorded is counted, and idle time around it is unknown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle import outputs, page, picture
from bubbleviz.analyses.idle.advice import advice, make_title
from bubbleviz.interpret.unrecorded_work import _find_open_times
from bubbleviz.model.profile import Activities
from bubbleviz.render.json_document import render
from bubbleviz.render.text.first_screen import describe_headline
from bubbleviz.report.view import View
from tests.interpret.test_graphs import CALLS, LAUNCH, NODES, RANGES
from tests.interpret.test_graphs import graphs as traced_graphs
from tests.support.edited_databases import edit_database
from tests.support.export_forms import WRITERS
from tests.support.idle_runs import list_times
from tests.support.needs import get_real_file
from tests.support.notes import list_restriction_codes, list_restriction_texts
from tests.support.nsys_exports import C, K, R, write_profile

US = 1_000
#: Number of graph launches in a planted run.
#: Each launch runs two kernels, which take 400 of every 1,000 us.
COUNT = 10
MARK = "incomplete: 3 of 10 graph launches have no recorded kernels"
UNRECORDED = "work not recorded"


def graphs(folder: Path, lost_launches: Sequence[int] = (), *, launch: str = LAUNCH) -> Path:
    """Return an export of graph launches. The kernels of ``lost_launches`` are missing."""
    kernels, calls = [], []
    for i in range(COUNT):
        start = 1_000 * US * (i + 1)
        calls.append(C(start, start + 5 * US, 10 + i, name=launch))
        for node in () if i in lost_launches else (1, 2):
            time_ns = start + (100 + 200 * (node - 1)) * US
            kernels.append(K(time_ns, time_ns + 200 * US, 10 + i, graph_node=node))
    return write_profile(folder, kernels, calls)


@pytest.mark.parametrize("form", WRITERS)
def test_lost_graphs_are_counted_in_every_format(tmp_path: Path, form: str) -> None:
    report = bubbleviz.idle(WRITERS[form](graphs(tmp_path, (3, 4, 7)), tmp_path))
    assert list_restriction_texts(report) == [MARK]
    # The unknown time lasts from the lost launch to the next recorded kernel.
    # The device is also idle before the launch.
    assert list_times(report.ranks[0])[UNRECORDED] == 2_100 + 1_100
    assert "larger buffers" in advice(report)[0]
    assert not any("--cuda-graph-trace" in note.reason for note in report.limitations)


@pytest.mark.parametrize("form", WRITERS)
def test_graphs_that_are_all_recorded_have_no_mark(tmp_path: Path, form: str) -> None:
    report = bubbleviz.idle(WRITERS[form](graphs(tmp_path), tmp_path))
    assert not list_restriction_texts(report)
    assert UNRECORDED not in list_times(report.ranks[0])


def test_calls_inside_a_launch_are_not_launches(tmp_path: Path) -> None:
    # The driver's call has another id than the runtime's call.
    # The kernels have the id of the runtime's call.
    kernels = [K(1_000 * US * i, 1_000 * US * i + 500 * US, i) for i in range(1, 9)]
    calls = [C(k.start - 90 * US, k.start - 80 * US, k.correlation, name=LAUNCH) for k in kernels]
    inner_calls = [C(c.start + US, c.end - US, (c.correlation or 0) + 50) for c in calls]
    nested = [replace(call, name="cuGraphLaunch") for call in inner_calls]
    assert not list_restriction_texts(
        bubbleviz.idle(write_profile(tmp_path, kernels, [*calls, *nested]))
    )

    report = bubbleviz.idle(
        write_profile(tmp_path, [*kernels[:3], *kernels[5:]], [*calls, *nested])
    )
    assert list_restriction_texts(report) == [
        "incomplete: 2 of 8 graph launches have no recorded kernels"
    ]


def queued(folder: Path, n_recorded: int, capture_end: int) -> Path:
    """Return an export of ten consecutive graph launches; only the first ones are recorded."""
    kernels = [K((1 + i) * 1_000 * US, (2 + i) * 1_000 * US, 10 + i) for i in range(n_recorded)]
    calls = [C(100 * US * i, 100 * US * i + 5, 10 + i, name=LAUNCH) for i in range(COUNT)]
    calls.append(C(capture_end - 5, capture_end, 99, name="cudaStreamSynchronize"))
    return write_profile(folder, kernels, calls)


def test_launches_that_may_not_have_run_are_not_lost(tmp_path: Path) -> None:
    # The last launch had no time to run, and neither had three queued launches.
    assert not list_restriction_texts(bubbleviz.idle(graphs(tmp_path, (9,))))
    assert not list_restriction_texts(bubbleviz.idle(queued(tmp_path, 7, 8_000 * US)))


def test_launches_after_recording_stopped_are_lost(tmp_path: Path) -> None:
    report = bubbleviz.idle(queued(tmp_path, 7, 30_000 * US))
    assert list_restriction_texts(report) == [MARK]


def test_no_launch_after_recording_stopped_is_recorded(tmp_path: Path) -> None:
    report = bubbleviz.idle(graphs(tmp_path, (8, 9)))
    assert list_restriction_texts(report) == [
        "incomplete: 2 of 10 graph launches have no recorded kernels"
    ]


def without_graphs(
    folder: Path, *, tid: int = 1, n_unlinked: int = 0, traced: Sequence[int] = ()
) -> Path:
    """Return an export of graph launches that have no kernels, with a separate kernel after each.

    Args:
        folder: Folder to write to.
        tid: Thread that launches the graphs. Thread 1 launches the kernels.
        n_unlinked: Number of kernels whose launch is unknown.
        traced: Indices of the launches whose graph was traced as a whole.
    """
    kernels, calls = [], []
    for i in range(COUNT):
        start = 1_000 * US * (i + 1)
        calls.append(C(start, start + 5 * US, 10 + i, tid=tid, name=LAUNCH))
        calls.append(C(start + 6 * US, start + 9 * US, 50 + i))
        kernels.append(K(start + 900 * US, start + 950 * US, 50 + i))
    kernels += [K(1_200 * US + i * US, 1_201 * US + i * US, 900 + i) for i in range(n_unlinked)]
    path = write_profile(folder, kernels, calls)
    graph_traces = [
        (k.start - 890 * US, k.start - 90 * US, 10 + i) for i, k in enumerate(kernels[:COUNT])
    ]
    return traced_graphs(path, [graph_traces[i] for i in traced]) if traced else path


NONE_RECORDED = "incomplete: 10 of 10 graph launches have no recorded kernels"


@pytest.mark.parametrize("tid", [1, 2])
@pytest.mark.parametrize("form", WRITERS)
def test_graphs_without_any_recorded_kernel_are_lost(tmp_path: Path, form: str, tid: int) -> None:
    report = bubbleviz.idle(WRITERS[form](without_graphs(tmp_path, tid=tid), tmp_path))
    assert list_restriction_texts(report) == [NONE_RECORDED]
    # All idle time between kernels is around a launch.
    # The exception is the time between a kernel and the next launch.
    assert list_times(report.ranks[0])[UNRECORDED] == 9 * 900
    (note,) = [note for note in report.limitations if "graph launches" in note.what]
    assert ("--cuda-graph-trace=node" in note.reason) == (form in ("nsys", "parquet"))


@pytest.mark.parametrize("form", ["nsys", "parquet"])
def test_graphs_traced_as_a_whole_are_not_lost(tmp_path: Path, form: str) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "some").mkdir()
    every_graph = without_graphs(tmp_path / "all", traced=range(COUNT))
    assert not list_restriction_texts(bubbleviz.idle(WRITERS[form](every_graph, tmp_path / "all")))
    some_graphs = without_graphs(tmp_path / "some", traced=(0, 1, 2, 6, 7, 8, 9))
    assert list_restriction_texts(
        bubbleviz.idle(WRITERS[form](some_graphs, tmp_path / "some"))
    ) == [MARK]


@pytest.mark.parametrize(("n_unlinked", "is_marked"), [(9, True), (10, False)])
def test_kernels_with_unknown_launches_may_belong_to_graphs(
    tmp_path: Path, n_unlinked: int, *, is_marked: bool
) -> None:
    report = bubbleviz.idle(without_graphs(tmp_path, n_unlinked=n_unlinked))
    assert bool(list_restriction_texts(report)) == is_marked


def test_processes_that_launch_no_graph_lose_none(tmp_path: Path) -> None:
    kernels = [K(1_000 * US, 1_500 * US, 1), K(2_000 * US, 2_500 * US, 2)]
    assert not list_restriction_texts(
        bubbleviz.idle(write_profile(tmp_path, kernels, [C(0, 5, 1), C(10, 15, 2)]))
    )


def test_the_mark_is_in_every_output_of_idle(tmp_path: Path) -> None:
    report = bubbleviz.idle(graphs(tmp_path, (3, 4, 7)))
    assert make_title(report).endswith(f", {MARK}")
    assert MARK in picture.draw_idle(report)
    assert MARK in page.render(report)
    document = json.loads(outputs.as_json(report, 1))
    assert document["restrictions"] == [{"code": "graphs-lost", "text": MARK}]


def test_a_bubble_around_a_lost_graph_is_unknown(tmp_path: Path) -> None:
    recorded = [node for node in NODES if node.correlation != 12]
    kernels = [replace(k, start=k.start * US, end=k.end * US) for k in recorded]
    calls = [replace(c, start=c.start * US, end=c.end * US) for c in CALLS]
    ranges = [replace(r, start=r.start * US, end=(r.end or 0) * US) for r in RANGES]
    report = bubbleviz.analyze([write_profile(tmp_path, kernels, calls, ranges)])
    assert "graphs-lost" in list_restriction_codes(report)
    mark = "incomplete: 1 of 4 graph launches has no recorded kernels"
    assert any(mark in line for line in describe_headline(report))
    assert mark in render(report, View())
    unknown = [(row.start_ns, row.end_ns) for row in report.bubbles if row.cause == "unknown"]
    assert unknown == [(2_100 * US, 3_300 * US)]


def test_idle_time_around_a_lost_kernel_is_unknown(tmp_path: Path) -> None:
    kernels = [K(1_000 * US * i + 10, 1_000 * US * i + 500 * US, i) for i in range(8) if i != 4]
    calls = [C(1_000 * US * i, 1_000 * US * i + 5, i) for i in range(8)]
    report = bubbleviz.idle(write_profile(tmp_path, kernels, calls))
    assert list_restriction_codes(report) == ["kernels-lost"]
    assert list_times(report.ranks[0])[UNRECORDED] == pytest.approx(1_000, abs=1)


def test_lost_graphs_mark_the_windows_with_unknown_time(tmp_path: Path) -> None:
    path = graphs(tmp_path, (3, 4, 7))

    def marks(begin_us: int, end_us: int) -> list[str]:
        window = f"time:{begin_us / 1e6}s-{end_us / 1e6}s"
        return list_restriction_texts(bubbleviz.idle(path, window=window))

    # The lost launches begin at 4,000, 5,000 and 8,000 us.
    # Kernels follow at 6,100 and 9,100 us.
    assert marks(1_000, 3_900) == []
    assert marks(6_100, 7_900) == []
    assert marks(9_100, 11_000) == []
    assert marks(5_900, 6_300) == [MARK]
    assert marks(7_200, 8_200) == [MARK]


def test_a_window_after_work_from_before_the_capture_has_no_mark(tmp_path: Path) -> None:
    path = captured_late(tmp_path)
    assert list_restriction_texts(bubbleviz.idle(path, window="time:0.463s-0.473s")) == []
    assert list_restriction_texts(bubbleviz.idle(path, window="time:0.1s-0.47s")) == [BEFORE]


def test_advice_on_a_short_incomplete_profile_is_to_record_all(tmp_path: Path) -> None:
    report = bubbleviz.idle(stopped(tmp_path, 20, every_us=90))
    assert report.idle_ns < 0.01 * report.span_ns
    assert "larger buffers" in advice(report)[0]
    assert not any("little to gain" in sentence for sentence in advice(report))


def stopped(
    folder: Path, n_recorded: int, *calls: C, n_launches: int = 100, every_us: int = 100
) -> Path:
    """Return an export of launches and other calls.

    Only the first ``n_recorded`` launches have kernels.
    """
    launched = [every_us * US * i for i in range(1, n_launches + 1)]
    launches = [C(at, at + 5 * US, i) for i, at in enumerate(launched, 1)]
    kernels = [K(at + 8 * US, at + 98 * US, i) for i, at in enumerate(launched, 1)]
    return write_profile(folder, kernels[:n_recorded], [*launches, *calls])


@pytest.mark.parametrize("form", WRITERS)
def test_kernels_launched_after_recording_stopped_are_lost(tmp_path: Path, form: str) -> None:
    report = bubbleviz.idle(WRITERS[form](stopped(tmp_path, 20), tmp_path))
    assert list_restriction_codes(report) == ["kernels-lost"]
    (note,) = [note for note in report.limitations if "not recorded" in note.what]
    assert note.count == 80
    assert "They were launched after the last recorded work" in note.reason


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_waiting_for_the_device_shows_lost_kernels(tmp_path: Path, is_waited_for: bool) -> None:
    wait = C(10_005 * US, 20_000 * US, 999, name="cudaDeviceSynchronize")
    report = bubbleviz.idle(stopped(tmp_path, 98, *[wait] * is_waited_for))
    assert bool(report.restrictions) == is_waited_for


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize(
    ("name", "began_us", "is_lost"),
    [
        ("cudaDeviceSynchronize", 10_005, True),
        ("cuCtxSynchronize", 10_005, True),
        # Part of the work may run on another stream.
        ("cudaStreamSynchronize", 10_005, False),
        # The kernels were launched during or after the waiting call.
        ("cudaDeviceSynchronize", 9_800, False),
    ],
)
def test_kernels_from_before_a_wait_for_the_device_are_lost(
    tmp_path: Path, form: str, name: str, began_us: int, *, is_lost: bool
) -> None:
    wait = C(began_us * US, (began_us + 90) * US, 999, name=name)
    report = bubbleviz.idle(WRITERS[form](stopped(tmp_path, 98, wait), tmp_path))
    assert bool(list_restriction_texts(report)) == is_lost


@pytest.mark.parametrize(
    "edit",
    [
        # The call may wait for another device.
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1 WHERE correlationId = 20",
        # The waiting call failed.
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 700 WHERE end = 10095000",
    ],
)
def test_some_waits_for_a_device_show_no_lost_kernels(tmp_path: Path, edit: str) -> None:
    wait = C(10_005 * US, 10_095 * US, 999, name="cudaDeviceSynchronize")
    path = stopped(tmp_path, 98, wait)
    assert list_restriction_texts(bubbleviz.idle(path))
    edit_database(path, edit)
    assert not list_restriction_texts(bubbleviz.idle(path))


def test_kernels_that_wait_as_long_as_others_are_not_lost(tmp_path: Path) -> None:
    # Kernels take longer than launches, so the last kernels have not run yet.
    calls = [C(100 * US * i, 100 * US * i + 5, i) for i in range(1, 101)]
    kernels = [K(200 * US * i, 200 * US * i + 190 * US, i) for i in range(1, 51)]
    assert not list_restriction_texts(bubbleviz.idle(write_profile(tmp_path, kernels, calls)))


# Tests of work from before the capture.

BEFORE = "incomplete: work launched before the capture is not recorded"
MS = 1_000 * US


def captured_late(
    folder: Path,
    *kernels: K,
    first: tuple[int, int] = (463 * MS, 464 * MS),
    call: C | None = None,
) -> Path:
    """Return a capture that begins while the device is busy, so that its first kernel waits.

    Args:
        folder: Folder of the capture.
        *kernels: Additional kernels.
        first: (start, end) of the kernel that waits, in ns.
        call: An additional call, or None.
    """
    # A kernel on another stream begins at once.
    rows = [K(150 * US, 160 * US, 1, stream=20), K(*first, 2), *kernels]
    rows.append(K(464 * MS, 473 * MS, 3))
    calls = [C(100 * US, 105 * US, 1), C(120 * US, 125 * US, 2), C(130 * US, 135 * US, 3)]
    return write_profile(folder, rows, calls if call is None else [*calls, call])


@pytest.mark.parametrize("form", WRITERS)
def test_work_from_before_the_capture_makes_idle_time_unknown(tmp_path: Path, form: str) -> None:
    export = captured_late(tmp_path)
    report = bubbleviz.idle(WRITERS[form](export, tmp_path))
    assert list_restriction_texts(report) == [BEFORE]
    assert list_times(report.ranks[0])[UNRECORDED] == 463_000 - 160
    assert "stream or rank dependency" not in list_times(report.ranks[0])
    assert f"unknown), {BEFORE}" in make_title(report)
    assert "start while the devices are idle" in advice(report)[0]


@pytest.mark.parametrize(
    "case",
    {
        # Recorded work on the same stream or on another stream explains the wait.
        "its stream worked": (K(200 * US, 300 * US, 9),),
        "another stream worked until then": (K(200 * US, 463 * MS, 9, stream=21),),
        "another device worked until then": (K(200 * US, 462_990 * US, 9, device=1),),
    }.items(),
    ids=lambda case: case[0],
)
def test_waits_that_recorded_work_explains_are_not_unknown(
    tmp_path: Path, case: tuple[str, tuple[K, ...]]
) -> None:
    report = bubbleviz.idle(captured_late(tmp_path, *case[1]))
    assert not list_restriction_texts(report)


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize(
    ("start_us", "tid", "expected"), [(110, 1, []), (140, 1, [BEFORE]), (110, 2, [BEFORE])]
)
def test_a_host_function_before_the_launch_explains_its_wait(
    tmp_path: Path, form: str, start_us: int, tid: int, expected: list[str]
) -> None:
    start_ns = start_us * US
    call = C(start_ns, start_ns + US, 77, name="cudaLaunchHostFunc", tid=tid)
    report = bubbleviz.idle(WRITERS[form](captured_late(tmp_path, call=call), tmp_path))
    assert list_restriction_texts(report) == expected


def test_little_work_on_other_streams_explains_no_wait(tmp_path: Path) -> None:
    copies = [K(at * MS, at * MS + 20 * US, 50 + at, stream=21) for at in range(20, 460, 40)]
    report = bubbleviz.idle(captured_late(tmp_path, *copies))
    assert list_restriction_texts(report) == [BEFORE]
    unknown = 463_000 - 160 - 20 * len(copies)
    assert list_times(report.ranks[0])[UNRECORDED] == unknown


def test_short_waits_of_first_work_are_not_unknown(tmp_path: Path) -> None:
    report = bubbleviz.idle(captured_late(tmp_path, first=(180 * US, 200 * US)))
    assert BEFORE not in list_restriction_texts(report)
    assert UNRECORDED not in list_times(report.ranks[0])


@pytest.mark.parametrize("launched_ms", [1, 9, 15, 50, 120])
def test_a_long_wait_shows_earlier_work_whenever_it_began(tmp_path: Path, launched_ms: int) -> None:
    rows = [K(0, 10 * US, 1, stream=20), K(463 * MS, 464 * MS, 2), K(464 * MS, 473 * MS, 3)]
    launched = [0, launched_ms * MS, launched_ms * MS + 10 * US]
    calls = [C(at - 10 * US, at - 5 * US, i) for i, at in enumerate(launched, 1)]
    report = bubbleviz.idle(write_profile(tmp_path, rows, calls))
    assert list_restriction_texts(report) == [BEFORE]
    unknown_us = 463_000 - 1_000 * launched_ms
    assert list_times(report.ranks[0])[UNRECORDED] == pytest.approx(unknown_us, abs=20)


@pytest.mark.parametrize(("gap_ms", "expected"), [(20, []), (11, []), (1, [BEFORE])])
def test_first_work_may_wait_as_long_as_later_work(
    tmp_path: Path, gap_ms: int, expected: list[str]
) -> None:
    """Unrecorded work pauses the queue again and again, not only at the start."""
    end_ns = [i * 30 * MS + i * gap_ms * MS + 30 * MS for i in range(10)]
    rows = [K(end - 30 * MS, end, i) for i, end in enumerate(end_ns, 1)]
    rows += [K(end_ns[-1] + 20 * MS, end_ns[-1] + 21 * MS, 11, stream=9)]
    calls = [C(-20 + i, -19 + i, i) for i in range(1, 12)]
    assert list_restriction_texts(bubbleviz.idle(write_profile(tmp_path, rows, calls))) == expected


def test_first_work_that_is_launched_late_may_wait(tmp_path: Path) -> None:
    rows = [K(0, 10 * US, 1, stream=20), K(600 * MS, 601 * MS, 2), K(601 * MS, 602 * MS, 3)]
    calls = [C(-10, -5, 1), C(300 * MS, 300 * MS + 5, 2), C(301 * MS, 301 * MS + 5, 3)]
    assert not list_restriction_texts(bubbleviz.idle(write_profile(tmp_path, rows, calls)))


def test_the_launching_call_may_take_long(tmp_path: Path) -> None:
    rows = [K(0, 10 * US, 1, stream=20), K(400 * MS, 401 * MS, 2)]
    calls = [C(-10, -5, 1), C(20 * US, 400 * MS - 10, 2)]
    assert not list_restriction_texts(bubbleviz.idle(write_profile(tmp_path, rows, calls)))


@pytest.mark.parametrize("is_delayed", [True, False])
def test_a_pipeline_is_marked_if_operations_were_delayed(tmp_path: Path, is_delayed: bool) -> None:
    kernels, calls, ranges = [], [], []
    for device, tid in ((0, 11), (1, 12)):
        first_ns = 150 * US if is_delayed and device == 0 else 463 * MS
        kernels.append(K(140 * US, 145 * US, 100 * tid, device=device, stream=20))
        calls.append(C(110 * US, 111 * US, 100 * tid, tid=tid))
        for i, name in enumerate(("F0.0.0", "B0.0.0", "F1.0.0", "B1.0.0")):
            opened = (120 + 5 * i) * US if device == 1 or not is_delayed else (140 + 5 * i) * US
            start, number = first_ns + i * MS, 100 * tid + 1 + i
            kernels.append(K(start, start + MS - 10 * US, number, device=device))
            calls.append(C(opened + US, opened + 2 * US, number, tid=tid))
            ranges.append(R(opened, opened + 3 * US, name, tid=tid))
    report = bubbleviz.analyze(
        [write_profile(tmp_path, sorted(kernels, key=lambda k: k.start), calls, ranges)]
    )
    assert any("before the capture" in note.what for note in report.limitations)
    codes = list_restriction_codes(report)
    assert ("work-before-capture" in codes) == is_delayed


TIMES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=6
)


@given(TIMES, st.lists(st.integers(-2, 25), max_size=4))
def test_unknown_times_agree_with_a_slow_reference(
    rows: list[tuple[int, int, int]], lost_calls: list[int]
) -> None:
    launched = [launch for launch, _, _ in rows]
    start = [launch + wait for launch, wait, _ in rows]
    end = [s + length for s, (_, _, length) in zip(start, rows, strict=True)]
    none = np.zeros(len(rows), np.int64)
    activities = Activities(
        np.array(start),
        np.array(end),
        none,
        none.astype(np.uint32),
        none,
        len(rows),
        ("kernel",),
        np.zeros((1, 2), np.int64),
    )
    expected = []
    for launch in lost_calls:
        end_ns = [e for e, at in zip(end, launched, strict=True) if at < launch]
        starts = [s for s, at in zip(start, launched, strict=True) if at > launch]
        until_ns = min(starts, default=max(lost_calls))
        if until_ns > max([launch, *end_ns]):
            expected.append((max([launch, *end_ns]), until_ns))
    open_times = _find_open_times(
        np.array(lost_calls, np.int64), np.array(launched), activities, np.arange(len(rows))
    )
    assert list(zip(*(column.tolist() for column in open_times), strict=True)) == expected


@pytest.mark.real_files
def test_the_second_replay_of_a_graph_is_unknown() -> None:
    report = bubbleviz.idle(get_real_file("cases/graph.json"))
    assert list_restriction_texts(report) == [
        "incomplete: 1 of 3 graph launches has no recorded kernels"
    ]
    assert list_times(report.ranks[0])[UNRECORDED] == 1_010
