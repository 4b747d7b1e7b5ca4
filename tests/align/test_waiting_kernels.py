"""Kernels with unknown names that wait for each other across ranks are reported."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.align.waiting_kernels import _find_nearest, find_waiting_kernels
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.model.limitations import Limitation
from bubbleviz.render import json_document
from bubbleviz.render.picture.picture import picture as svg
from bubbleviz.render.text.first_screen import render_first_screen
from bubbleviz.render.text.terminal import Display, join_plain_lines
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps
from bubbleviz.report.view import View
from tests.planting import Planting, plant
from tests.support.notes import find_limitation, list_limitation_subjects, list_restriction_codes
from tests.support.nsys_exports import ExportRows

WHAT = "kernels that look like waiting count as compute"
NAME = "acme_xchg"
#: Runs in two files on one clock, on several hosts, and with tensor-parallel replicas.
RUNS: dict[str, dict[str, Any]] = {
    "transfers": {"transfer_ns": 300_000},
    "files": {"transfer_ns": 100_000, "jitter": 0.1, "files": "rank"},
    "hosts": {
        "transfer_ns": 100_000,
        "jitter": 0.1,
        "servers": 2,
        "clock_error_ns": (0, 3_000_000),
    },
    "copies": {"transfer_ns": 100_000, "jitter": 0.1, "tensor": 2},
    "inside": {"nested_receive_ns": 200_000, "transfer_ns": 100_000},
    "collectives": {"barrier": True, "norm_ns": 500_000},
}


def _analyze_renamed(folder: Path, options: dict[str, Any], names: str) -> Report:
    """Plant a run, rename the kernels whose names match an SQL pattern, and analyze the run."""
    plant(Planting(**options), folder)
    kernels = "SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL"
    for file in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(
                f"UPDATE StringIds SET value = ? WHERE value LIKE ? AND id IN ({kernels})",
                (NAME, names),
            )
    return bubbleviz.analyze(folder)


def _list_found(report: Report) -> list[Limitation]:
    return [note for note in report.limitations if note.what == WHAT]


@pytest.mark.parametrize("run", RUNS)
def test_communication_with_an_unknown_name_is_pointed_out_in_every_output(
    tmp_path: Path, run: str
) -> None:
    report = _analyze_renamed(tmp_path, RUNS[run], "nccl%")

    (note,) = _list_found(report)
    assert f"communication = ['{NAME}']" in note.reason
    screen = join_plain_lines(render_first_screen(report, View(), Display()))
    assert WHAT in " ".join(screen.split())
    assert WHAT in svg(report, View())
    document = json.loads(json_document.render(report, View()))
    assert WHAT in [entry["what"] for entry in document["limitations"]]
    # The headline is marked, and the advice is to name the kernels that communicate.
    assert list_restriction_codes(report) == ["waiting-counted"]
    assert f"! uncertain: {WHAT}" in screen
    assert (describe_first_steps(report) or "").startswith("List the communication kernels")


@pytest.mark.parametrize("run", RUNS)
def test_compute_with_an_unknown_name_is_not_pointed_out(tmp_path: Path, run: str) -> None:
    report = _analyze_renamed(tmp_path, RUNS[run], "gemm%")

    assert not _list_found(report)


def test_the_line_that_the_message_suggests_removes_it(tmp_path: Path) -> None:
    (note,) = _list_found(_analyze_renamed(tmp_path, RUNS["inside"], "nccl%"))
    ours = tmp_path / "ours.toml"
    ours.write_text(note.reason.partition("--convention: ")[2])

    assert not _list_found(bubbleviz.analyze(tmp_path, convention=ours))


def _analyze_two_ranks(folder: Path, start_us: int, end: int) -> Report:
    """Analyze two ranks that run an unknown kernel five times.

    The arguments are times of rank 1.
    """
    rows = ExportRows()
    for rows.pid, unknown in ((1, (100, 1000)), (2, (start_us, end))):
        for step in range(5):
            step_ns = 10_000_000 * step
            for i, (start, stop, name) in enumerate(
                [(0, 90, "gemm"), (*unknown, NAME), (1100, 1500, "gemm")]
            ):
                start_ns, stop_ns = step_ns + 1000 * start, step_ns + 1000 * stop
                rows.launch(step_ns + 10 * i, start_ns, stop_ns, name, took=5)
            rows.add_range(step_ns, step_ns + 16, f"F{step}.0.0")
            rows.add_range(step_ns + 18, step_ns + 30, f"B{step}.0.0")
    return bubbleviz.analyze(rows.write(folder))


@pytest.mark.parametrize(
    ("start_us", "end", "is_waiting"),
    [
        (900, 1000, True),  # the kernels end together, but this one begins much later
        (900, 1005, True),  # the ends differ by less than the clock resolution
        (900, 1080, False),  # this kernel ends later
        (100, 1000, False),  # both kernels begin at the same time
        (400, 1000, False),  # this kernel takes two thirds of the other kernel's time
        (995, 1000, True),  # this kernel is too short to wait, so the other one waits for it
    ],
)
def test_kernels_wait_if_they_end_together_and_begin_apart(
    tmp_path: Path, start_us: int, end: int, is_waiting: bool
) -> None:
    assert bool(_list_found(_analyze_two_ranks(tmp_path, start_us, end))) == is_waiting


def _list_operations(stages: int, microbatches: int) -> list[tuple[int, str, int, int, int]]:
    """Return (stage, name, start of wait, start, end) of each operation, in us, sorted by stage."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, microbatches)
        order = [("F", number) for number in range(ahead)]
        for number in range(microbatches):
            order += [("F", number + ahead)] if number + ahead < microbatches else []
            order.append(("B", number))
        orders.append(order)
    end: dict[tuple[str, int, int], int] = {}
    free_us, rows = [100] * stages, []
    for _ in range(stages * microbatches * 2):
        for stage, order in enumerate(orders):
            if not order:
                continue
            phase, number = order[0]
            source = stage - 1 if phase == "F" else stage + 1
            producer = (phase, source, number)
            if 0 <= source < stages and producer not in end:
                continue
            start_us = max(free_us[stage], end.get(producer, 0))
            end[phase, stage, number] = start_us + (100 if phase == "F" else 200)
            rows.append(
                (stage, f"{phase}{number}.0.0", free_us[stage], start_us, end[phase, stage, number])
            )
            free_us[stage] = end[phase, stage, number]
            order.pop(0)
    return rows


def _analyze_pipeline(folder: Path, behavior: str, *, hosts: int = 1, set_by_us: int = 0) -> Report:
    """Analyze a pipeline whose operations begin with a kernel whose name is unknown.

    Args:
        folder: Folder of the profile.
        behavior: ``waits`` for a kernel that ends 5 us after its input exists, ``early`` for one
            that needs no input and takes 60 us, ``late`` for one that begins with the input.
        hosts: Number of hosts, either 1 or 3 (one host per stage).
        set_by_us: Time in us by which the clock of stage 1 is set forward in the middle of the run.
    """
    exports = [ExportRows() for _ in range(hosts)]
    for stage, name, free_us, start_us, end_us in _list_operations(3, 6):
        rows = exports[stage % hosts]
        rows.pid = stage + 1
        waits = start_us > free_us + 10
        early_us = free_us + 1 if waits else start_us
        first = {
            "waits": (early_us, start_us + 5 if waits else start_us),
            "early": (early_us, early_us + 60),
            "late": (start_us, start_us + 60),
        }[behavior]
        late_ns = 1000 * set_by_us if stage == 1 and name[1] in "345" else 0
        call_ns = 1000 * (free_us - 20) + late_ns
        spans = [(*first, NAME), (max(first[1], start_us), end_us, "gemm")]
        for number, (kernel_start_us, end, kernel) in enumerate(spans):
            if end > kernel_start_us:
                begin_ns, end_ns = 1000 * kernel_start_us + late_ns, 1000 * end + late_ns
                rows.launch(call_ns + 1000 * number, begin_ns, end_ns, kernel, took=500)
        rows.add_range(call_ns - 500, call_ns + 3000, name)
    for stage in range(3):
        # All operations belong to one named iteration.
        rows = exports[stage % hosts]
        rows.pid = stage + 1
        rows.add_range(0, 20_000_000, f"iter_{stage}_0")
    paths = [
        rows.write(folder, name=f"{host}.sqlite", hostname=f"host{host}")
        for host, rows in enumerate(exports)
    ]
    return bubbleviz.analyze(paths)


@pytest.mark.parametrize(
    ("behavior", "is_waiting"), [("waits", True), ("early", False), ("late", False)]
)
def test_receives_begin_before_their_input_and_end_after_it(
    tmp_path: Path, behavior: str, is_waiting: bool
) -> None:
    report = _analyze_pipeline(tmp_path, behavior)

    assert len(_list_found(report)) == is_waiting
    codes = list_restriction_codes(report)
    assert ("waiting-counted" in codes) == is_waiting
    screen = join_plain_lines(render_first_screen(report, View(), Display()))
    assert (f"! uncertain: {WHAT}" in screen) == is_waiting


@pytest.mark.parametrize(
    ("behavior", "set_by_us", "is_waiting"),
    [
        ("waits", 0, True),
        ("late", 0, False),  # the clocks agree
        ("late", 5_000, False),  # the clock was set
        ("early", 0, False),  # operations begin before their inputs exist
        ("early", 5_000, False),
    ],
)
def test_receives_explain_why_clocks_contradict_each_other(
    tmp_path: Path, behavior: str, set_by_us: int, is_waiting: bool
) -> None:
    report = _analyze_pipeline(tmp_path, behavior, hosts=3, set_by_us=set_by_us)

    assert report.contradicted("schedule") == (behavior != "late" or set_by_us > 0)
    assert len(_list_found(report)) == is_waiting
    first = (describe_first_steps(report) or "").startswith("List the communication kernels")
    assert first == is_waiting


def test_the_name_of_a_receive_makes_its_wait_a_bubble(tmp_path: Path) -> None:
    report = _analyze_pipeline(tmp_path, "waits")
    (note,) = _list_found(report)
    ours = tmp_path / "ours.toml"
    ours.write_text(note.reason.partition("--convention: ")[2])
    report_with_names = bubbleviz.analyze(tmp_path, convention=ours)

    # An ideal 1F1B of 3 stages and 6 microbatches is idle for 2 of 8 slots.
    # Receives add 5 us to each slot.
    assert report_with_names.summary.bubble_ratio["schedule"].mean == pytest.approx(2 / 8, abs=0.03)
    assert not _list_found(report_with_names)


def test_without_recordings_or_kernels_nothing_waits() -> None:
    assert list(find_waiting_kernels([], [], np.empty(0, np.int64))) == []


@given(st.lists(st.integers(-50, 50), min_size=1), st.lists(st.integers(-60, 60)))
def test_the_nearest_value_is_found(elements: list[int], values: list[int]) -> None:
    ascending = np.sort(np.array(elements, np.int64))

    nearest = _find_nearest(ascending, np.array(values, np.int64))

    distances = np.abs(ascending[nearest] - np.array(values, np.int64)).tolist()
    assert distances == [min(abs(element - value) for element in elements) for value in values]


# The command ``idle`` reports the same kernels.


def test_idle_points_out_communication_with_an_unknown_name(tmp_path: Path) -> None:
    _analyze_renamed(tmp_path, RUNS["inside"], "nccl%")
    note = find_limitation(bubbleviz.idle(tmp_path), WHAT)

    assert "so exposed communication is too small" in note.reason
    assert f"communication = ['{NAME}']" in note.reason


def test_idle_compares_files_that_share_a_clock(tmp_path: Path) -> None:
    _analyze_renamed(tmp_path, RUNS["files"], "nccl%")

    assert WHAT in list_limitation_subjects(bubbleviz.idle(tmp_path))


@pytest.mark.parametrize("run", RUNS)
def test_idle_does_not_point_out_compute_with_an_unknown_name(tmp_path: Path, run: str) -> None:
    _analyze_renamed(tmp_path, RUNS[run], "gemm%")

    assert WHAT not in list_limitation_subjects(bubbleviz.idle(tmp_path))


def test_busy_devices_that_may_wait_have_something_to_gain(tmp_path: Path) -> None:
    rows = ExportRows()
    for rows.pid, entered in ((1, 400), (2, 900)):
        for number in range(40):
            start_us = 1000 * number
            rows.launch(start_us, 1000 * start_us, 1000 * (start_us + entered))
            rows.launch(start_us, 1000 * (start_us + entered), 1000 * (start_us + 1000), NAME)
    report = bubbleviz.idle(rows.write(tmp_path))

    assert report.idle_ns == 0
    (sentence,) = advice(report)
    assert "some kernels counted as compute seem to be waiting" in sentence
    assert "little to gain" not in sentence


def test_idle_points_out_no_kernels_if_none_wait_in_its_window(tmp_path: Path) -> None:
    _analyze_two_ranks(tmp_path, 900, 1000)

    assert WHAT in list_limitation_subjects(bubbleviz.idle(tmp_path))
    report = bubbleviz.idle(tmp_path, window="time:1.05ms-1.55ms")
    assert WHAT not in list_limitation_subjects(report)
