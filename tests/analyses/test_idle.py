"""Idle time: planted profiles with known gaps, a slow reference, names, steps, the command."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle import attribution
from bubbleviz.analyses.idle import picture as idle_picture
from bubbleviz.analyses.idle.advice import advice
from bubbleviz.analyses.idle.documents import COLUMNS, csv_of_gaps, json_text
from bubbleviz.analyses.idle.gaps import gaps_of, split
from bubbleviz.analyses.idle.picture import draw_idle
from bubbleviz.analyses.idle.report import IdleReport, RankIdle
from bubbleviz.cli.app import main
from bubbleviz.conventions.host_activities import default_activities
from bubbleviz.errors import (
    InputError,
    MismatchError,
    NothingToAnalyseError,
    OutputError,
    UsageError,
)
from bubbleviz.model.profile import Activities
from bubbleviz.model.window import window_of
from bubbleviz.render.picture.palette import ACTIVITIES
from tests.support.nsys_exports import C, K, M, R, T, global_id, profile
from tests.support.places import FIXTURES, GOLDEN
from tests.support.torch_traces import traces_of
from tests.support.xla_files import E, L, P, space

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def k(start: int, end: int, correlation: int | None, name: str = "gemm", **rest: Any) -> K:
    """Return a kernel; times in microseconds."""
    return K(start * US, end * US, correlation, name, **rest)


def c(start: int, end: int, correlation: int | None, **rest: Any) -> C:
    """Return a call; times in microseconds."""
    return C(start * US, end * US, correlation, **rest)


def r(start: int, end: int, name: str, tid: int = 1, **rest: Any) -> R:
    """Return a range; times in microseconds."""
    return R(start * US, end * US, name, tid, **rest)


def spent(rank: RankIdle) -> dict[str, float]:
    """Return microseconds by activity."""
    return {part.activity: part.idle_ns / US for part in rank.activities}


def only(report: IdleReport) -> RankIdle:
    (rank,) = report.ranks
    return rank


def add_up(rank: RankIdle) -> None:
    """Check that everything adds up to the idle time, exactly."""
    own = rank.breakdown
    assert own.span_ns == own.compute_ns + own.exposed_communication_ns + own.exposed_copy_ns + (
        own.idle_ns
    )
    assert sum(part.idle_ns for part in rank.activities) == own.idle_ns
    assert sum(step.idle_ns for step in rank.steps) == own.idle_ns
    assert sum(step.length_ns for step in rank.steps) == own.span_ns
    for step in rank.steps:
        assert sum(spent_ns for _, spent_ns in step.activities) == step.idle_ns
        assert len(dict(step.activities)) == len(step.activities)
    by_gap: dict[int, int] = defaultdict(int)
    for gap, start, end in zip(
        rank.chunks.gap.tolist(),
        rank.chunks.start_ns.tolist(),
        rank.chunks.end_ns.tolist(),
        strict=True,
    ):
        assert start < end
        by_gap[gap] += end - start
    lengths = (rank.gaps.end_ns - rank.gaps.start_ns).tolist()
    assert dict(by_gap) == dict(enumerate(lengths))


def test_nothing_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingToAnalyseError, match="no CUDA kernels were recorded"):
        bubbleviz.idle(profile(tmp_path))


def test_work_that_took_no_time_is_refused(tmp_path: Path) -> None:
    file = profile(tmp_path, [k(5, 5, 1)], [c(0, 1, 1)])

    with pytest.raises(NothingToAnalyseError, match="no kernel or copy took any time"):
        bubbleviz.idle(file)


def test_one_kernel_leaves_no_gap(tmp_path: Path) -> None:
    report = bubbleviz.idle(profile(tmp_path, [k(10, 30, 1)], [c(0, 5, 1)]))

    rank = only(report)
    assert (rank.breakdown.duty_cycle, rank.activities, len(rank.gaps)) == (1.0, (), 0)
    assert advice(report).startswith("devices are idle for less than 1 %")
    add_up(rank)


def test_no_gaps_between_no_kernels() -> None:
    none = np.empty(0, np.int64)
    ids, codes = np.empty(0, np.uint32), np.empty(0, np.int32)
    nothing = Activities(none, none, codes, ids, codes, 0, (), np.empty((0, 2), np.int64))

    assert len(gaps_of(nothing, none)) == 0
    assert [len(column) for column in split(none, none, none)] == [0, 0, 0]


def test_every_part_of_a_gap_is_put_down_to_what_the_host_did(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(210, 300, 2), k(302, 320, 3)],
        [
            c(-5, 0, 1),
            c(5, 20, None, name="cudaStreamSynchronize_v3020"),
            c(90, 95, 90, name="cudaMalloc_v3020"),
            c(130, 140, 91, name="cudaMemcpy_v3020"),
            c(150, 170, 92, name="cudaEventCreate"),
            c(180, 190, 2),
            c(191, 195, 3),
        ],
        [
            r(30, 80, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
            r(35, 45, "aten::stack, op_id = 3"),
            r(85, 120, "aten::empty"),
            r(125, 175, "mine 7"),
        ],
    )

    rank = only(bubbleviz.idle(file))

    # A call without a correlation id launched nothing, and exports that have such are not known.
    assert spent(rank) == {
        "data loading": 50,
        "untraced": 20 + 5 + 5 + 5,
        "operators": 30,
        "allocation": 5,
        "host: mine #": 20,
        "transfer": 10,
        "CUDA calls": 20,
        "launch": 20,
        "device": 10,
        "kernel-to-kernel gaps": 2,
    }
    add_up(rank)


def test_a_launch_is_under_way_as_long_as_its_call_or_its_latency(tmp_path: Path) -> None:
    kernels = [k(0, 10, 1), k(20, 30, 2), k(130, 140, 3), k(200, 210, 4), k(260, 270, 5)]
    calls = [c(-9, 0, 1), c(1, 2, 2), c(40, 100, 3), c(150, 151, 4), c(160, 161, 5)]

    rank = only(bubbleviz.idle(profile(tmp_path, kernels, calls)))

    # 10-20 is launched at 1, under way until 21; 30-130: host to 40, call to 100, device to 130;
    # 140-200: host to 150, latency to 170, device to 200; 210-260: launched at 160, long before.
    assert spent(rank) == {"launch": 10 + 60 + 20, "device": 30 + 30 + 50, "untraced": 10 + 10}


def test_the_profiler_comes_first(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(100, 110, 2), k(111, 120, 3)],
        [
            c(-9, 0, 1),
            c(80, 85, 2),
            c(86, 87, 3),
        ],
        [r(20, 75, "DataLoader")],
    )
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE PROFILER_OVERHEAD (start INT, end INT, globalTid INT)")
        rows = [(30, 40, 1), (35, 50, 2), (90, 115, 1), (0, 500, 7)]
        database.executemany(
            "INSERT INTO PROFILER_OVERHEAD VALUES (?,?,?)",
            [(a * US, b * US, global_id(1 if n < 7 else 2, n)) for a, b, n in rows],
        )
        database.commit()

    rank = only(bubbleviz.idle(file))

    assert spent(rank) == {
        "profiler": 20 + 10 + 1,
        "data loading": 35,
        "untraced": 10 + 5,
        "launch": 10,
    }
    add_up(rank)


def test_the_main_thread_tells_where_the_launching_one_does_not(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1, pid=8), k(100, 110, 2, pid=8)],
        [c(-9, 0, 1, tid=9, pid=8), c(80, 85, 2, tid=9, pid=8)],
        [
            R(20 * US, 60 * US, "DataLoader", 8, 8),
            R(50 * US, 70 * US, "aten::mm", 9, 8),
            R(10 * US, 80 * US, "DataLoader", 7, 8),
        ],
    )

    # A thread that neither launches nor is the main one tells nothing.
    assert spent(only(bubbleviz.idle(file))) == {
        "data loading": 30,
        "operators": 20,
        "untraced": 20,
        "launch": 20,
    }


def test_the_thread_that_launches_after_most_gaps_is_asked_before_the_main_one(
    tmp_path: Path,
) -> None:
    starts = [
        (0, 1, 1),
        (100, 2, 2),
        (111, 5, 3),
        (121, 5, 4),
        (131, 5, 5),
        (150, 4, 6),
        (170, 4, 7),
    ]
    calls = [(-9, 0), (80, 85), (60, 62), (63, 65), (66, 68), (145, 146), (165, 166)]
    file = profile(
        tmp_path,
        [k(start, start + 10 - (110 < start < 140), number) for start, _, number in starts],
        [c(a, b, n, tid=t) for (a, b), (_, t, n) in zip(calls, starts, strict=True)],
        [r(20, 40, "DataLoader", 4), r(30, 55, "Optimizer.step", 5), r(35, 45, "mine", 1)],
    )

    # Short gaps do not count: thread 5 ends three of these, thread 4 two others.
    assert spent(only(bubbleviz.idle(file))) == {
        "data loading": 20,
        "host: mine": 5,
        "untraced": 10 + 35 + 5 + 5,
        "launch": 20 + 5 + 5,
        "kernel-to-kernel gaps": 3,
    }


def test_of_too_many_calls_in_gaps_the_longer_ones_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [(20 + 10 * n, 22 + 10 * n + n, 10 + n) for n in range(5)]
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(100, 110, 2)],
        [c(-9, 0, 1), *(c(*wait, name="cudaMalloc") for wait in waits), c(80, 81, 2)],
    )
    assert spent(only(bubbleviz.idle(file)))["allocation"] == 2 + 3 + 4 + 5 + 6
    monkeypatch.setattr(attribution, "_MOST", 3)

    report = bubbleviz.idle(file)

    assert spent(only(report)) == {"allocation": 4 + 5 + 6, "untraced": 55, "launch": 20}
    assert "those of less than 4,000 ns" in report.limitations[-2].reason


def test_calls_of_the_operating_system_tell_where_no_range_does(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(200, 210, 2)],
        [c(-9, 0, 1), c(40, 60, 9, name="cudaMalloc"), c(180, 181, 2)],
        [r(100, 150, "DataLoader")],
    )
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE OSRT_API (start INT, end INT, globalTid INT, nameId INT)")
        names = {900: "getc", 901: "ioctl", 902: "poll"}
        database.executemany("INSERT INTO StringIds VALUES (?,?)", names.items())
        rows = [(20, 30, 900), (45, 55, 901), (110, 160, 902), (165, 170, 901), (175, 177, 900)]
        database.executemany(
            "INSERT INTO OSRT_API VALUES (?,?,?,?)",
            [(a * US, b * US, global_id(1, 1), name) for a, b, name in rows],
        )
        database.commit()

    # What takes less than the shortest gap, as the last one, tells nothing.
    assert spent(only(bubbleviz.idle(file))) == {
        "untraced": 10 + 10 + 40 + 5 + 10,
        "file access": 10,
        "allocation": 20,
        "data loading": 50,
        "waiting": 10,
        "system calls": 5,
        "launch": 20,
    }


def test_where_threads_have_made_up_numbers_the_main_one_is_known_by_its_name(
    tmp_path: Path,
) -> None:
    kernels, calls = [k(0, 10, 1, pid=8), k(100, 110, 2, pid=8)], [c(80, 85, 2, tid=9, pid=8)]
    ranges = [R(20 * US, 60 * US, "DataLoader", 77, 8), R(30 * US, 80 * US, "mine", 8, 8)]

    def told(*threads: T) -> dict[str, float]:
        return spent(
            only(bubbleviz.idle(profile(tmp_path, kernels, calls, ranges, threads=threads)))
        )

    assert told(T(77, "python", 8)) == {"untraced": 30, "data loading": 40, "launch": 20}
    # Threads inherit the name of the first one, which is the main one where it is known.
    inherited = told(T(77, "python3.11", 8), T(8, "python3.11", 8))
    assert inherited == {"untraced": 20, "host: mine": 50, "launch": 20}
    assert told(T(77, "pythonic", 8)) == inherited


def test_on_a_tpu_gaps_inside_a_module_are_the_devices_and_others_the_hosts(
    tmp_path: Path,
) -> None:
    ops = [
        E("fusion.1", 0, 40 * US),
        E("fusion.2", 50 * US, 90 * US),
        E("fusion.1", 300 * US, 340 * US),
    ]
    modules = [E("jit_step(1)", 0, 100 * US), E("jit_step(1)", 290 * US, 350 * US)]
    device = P("/device:TPU:0", [L("XLA Modules", modules, 1), L("XLA Ops", ops, 2)])
    host = P("/host:CPU", [L("python", [E("DataLoader", 120 * US, 280 * US)], 5)])
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(space([device, host]))

    rank = only(bubbleviz.idle(file))

    # 40 to 50, 90 to 100 and 290 to 300 lie inside a module; 100 to 120 and 280 to 290 in nothing.
    assert spent(rank) == {"device": 30, "data loading": 160, "untraced": 30}
    assert all(
        "module runs" not in where
        for p in rank.activities
        if p.example
        for where in p.example.where
    )
    add_up(rank)


def test_devices_of_a_process_are_told_apart(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(200, 210, 3), k(60, 100, 2, device=1), k(130, 140, 4, device=1)],
        [c(-9, 0, 1), c(50, 55, 2), c(120, 125, 4), c(180, 190, 3)],
    )

    first, second = bubbleviz.idle(file).ranks

    assert (first.device_id, second.device_id) == (0, 1)
    assert spent(first) == {"untraced": 160, "other device": 10, "launch": 20}
    assert spent(second) == {"untraced": 20, "launch": 10}
    assert first.label != second.label


def test_breakdown_of_overlapping_streams(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(5, 20, 2, NCCL, stream=8), k(18, 30, 3), k(40, 60, 4, NCCL, stream=8)],
        [],
        copies=[M(0, 5 * US, 5), M(55 * US, 70 * US, 6)],
        fills=[M(80 * US, 90 * US, 7)],
    )

    own = only(bubbleviz.idle(file)).breakdown

    assert (own.span_ns, own.busy_ns, own.idle_ns) == (90_000, 70_000, 20_000)
    assert (own.compute_ns, own.communication_ns, own.copy_ns) == (22_000, 35_000, 30_000)
    assert (own.exposed_communication_ns, own.exposed_copy_ns) == (28_000, 20_000)
    assert own.overlap == 7 / 35
    assert own.duty_cycle == 70 / 90


def test_without_calls_nothing_is_put_down_to_the_host(tmp_path: Path) -> None:
    kernels = [k(0, 10, 1), k(100, 110, 2)]
    without = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "ThreadNames")

    report = bubbleviz.idle(profile(tmp_path, kernels, without=without))

    assert spent(only(report)) == {"unlinked": 90}
    assert [own.what for own in report.limitations if "launched" in own.what] == [
        "who launched the work after gaps"
    ]
    assert advice(report).endswith("ProfilerActivity.CPU and CUDA in PyTorch")


def test_short_gaps_are_those_that_are_shorter(tmp_path: Path) -> None:
    file = profile(tmp_path, [k(0, 10, 1), k(13, 20, 2), k(22, 30, 3)], [c(-9, -8, 1)])

    assert spent(only(bubbleviz.idle(file))) == {"unlinked": 3, "kernel-to-kernel gaps": 2}
    assert spent(only(bubbleviz.idle(file, shortest_us=0))) == {"unlinked": 5}
    assert spent(only(bubbleviz.idle(file, shortest_us=3.001))) == {"kernel-to-kernel gaps": 5}
    with pytest.raises(UsageError, match="microseconds, 0 or more"):
        bubbleviz.idle(file, shortest_us=-1)


@pytest.mark.parametrize("folder", ["1f1b", "zb-v"])
def test_both_formats_tell_the_same(tmp_path: Path, folder: str) -> None:
    export = next((FIXTURES / folder).glob("*.sqlite"))

    exported = bubbleviz.idle(export)
    traced = bubbleviz.idle(traces_of(export, tmp_path))

    told = [
        [
            (
                *(rank.breakdown.span_ns, rank.breakdown.compute_ns, rank.breakdown.idle_ns),
                *(rank.breakdown.communication_ns, rank.breakdown.overlap, spent(rank)),
                [(step.name, step.length_ns, step.busy_ns, step.activities) for step in rank.steps],
            )
            for rank in report.ranks
        ]
        for report in (exported, traced)
    ]
    assert told[0] == told[1]


#: Names of every strength; an unknown one is its own activity.
_NAMES = {
    "DataLoader": ("data loading", 3),
    "XlaCompile": ("tracing and compiling", 3),
    "Optimizer.step": ("optimizer", 2),
    "aten::mm": ("operators", 1),
    "mine": ("host: mine", 1),
    "train.py(3): step": ("Python", 0),
}
_CALLS = {"cudaStreamSynchronize": "waiting", "cudaMalloc": "allocation"}


@dataclass(frozen=True)
class _World:
    """A small profile in whole microseconds: kernels, calls and ranges as plain tuples."""

    kernels: list[tuple[int, int, int, int]]  # start, end, device, correlation
    calls: list[tuple[int, int, int, str, int]]  # start, end, thread, name, correlation
    ranges: list[tuple[int, int, int, str]]  # start, end, thread, name
    overheads: list[tuple[int, int]]


@st.composite
def _worlds(draw: st.DrawFn) -> _World:
    time, length, thread = st.integers(0, 150), st.integers(0, 40), st.integers(1, 3)
    kernels, calls = [], []
    for number in range(draw(st.integers(1, 8))):
        start = draw(time)
        kernels.append((start, start + draw(length), draw(st.integers(0, 1)), number))
        if draw(st.booleans()) or draw(st.booleans()):
            entered = start - draw(st.integers(0, 60))
            calls.append(
                (entered, entered + draw(length), draw(thread), "cudaLaunchKernel", number)
            )
    for number in range(draw(st.integers(0, 4))):
        start = draw(time)
        name = draw(st.sampled_from(sorted(_CALLS)))
        calls.append((start, start + draw(length), draw(thread), name, 100 + number))
    ranges = []
    for _ in range(draw(st.integers(0, 8))):
        start, name = draw(time), draw(st.sampled_from(sorted(_NAMES)))
        ranges.append((start, start + draw(st.integers(0, 90)), draw(thread), name))
    held = [(a := draw(time), a + draw(length)) for _ in range(draw(st.integers(0, 2)))]
    return _World(kernels, draw(st.permutations(calls)), ranges, held)


def _write(folder: Path, world: _World) -> Path:
    file = profile(
        folder,
        [k(a, b, n, device=d) for a, b, d, n in world.kernels],
        [c(a, b, n, tid=t, name=name) for a, b, t, name, n in world.calls],
        [r(a, b, name, t) for a, b, t, name in world.ranges],
    )
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE PROFILER_OVERHEAD (start INT, end INT, globalTid INT)")
        database.executemany(
            "INSERT INTO PROFILER_OVERHEAD VALUES (?,?,?)",
            [(a * US, b * US, global_id(1, 1)) for a, b in world.overheads],
        )
        database.commit()
    return file


def _expected(world: _World, device: int, shortest: int) -> dict[str, int] | None:
    """Return microseconds by activity, told cell by cell; None where nothing ran."""
    own = [one for one in world.kernels if one[2] == device and one[1] > one[0]]
    if not own:
        return None
    busy = {cell for start, end, _, _ in own for cell in range(start, end)}
    first, last = min(busy), max(busy) + 1
    idle = [cell for cell in range(first, last) if cell not in busy]
    starts = [cell for cell in idle if cell - 1 in busy]
    found: Counter[str] = Counter()
    gaps = []
    for start in starts:
        end = next(cell for cell in range(start, last) if cell in busy)
        after = next(one for one in own if one[0] == end)
        launch = sorted((one for one in world.calls if one[4] == after[3]), key=lambda one: one[0])
        gaps.append((start, end, launch[0] if launch else None))
    threads = Counter(call[2] for start, end, call in gaps if call and end - start >= shortest)
    lead = min((t for t in threads if threads[t] == max(threads.values())), default=None)
    for start, end, call in gaps:
        for cell in range(start, end):
            found[_cell(world, device, cell, (start, end, call), lead, shortest)] += 1
    return dict(found)


def _cell(
    world: _World,
    device: int,
    cell: int,
    gap: tuple[int, int, Any],
    lead: int | None,
    shortest: int,
) -> str:
    start, end, call = gap
    if any(a <= cell < b for a, b in world.overheads):
        return "profiler"
    if end - start < shortest:
        return "kernel-to-kernel gaps"
    if call is None:
        return "unlinked"
    if cell >= call[0]:
        return "device" if cell >= max(call[1], call[0] + 20) else "launch"
    for thread in dict.fromkeys((call[2], lead, 1)):
        told = _told(world, device, cell, thread, shortest)
        if told is not None:
            return told
    return "untraced"


def _told(world: _World, device: int, cell: int, thread: int | None, shortest: int) -> str | None:
    """Return what the strongest, then innermost thing around a cell says."""
    ran_on = {n: d for _, _, d, n in world.kernels}
    candidates: list[tuple[tuple[int, int, int, int], str]] = []
    for row, (start, end, own, name) in enumerate(world.ranges):
        if own == thread and start <= cell < end and end - start >= max(1, shortest):
            activity, strength = _NAMES[name]
            candidates.append(((strength, start - end, start, row), activity))
    # Of calls and ranges that are equal, calls are innermost, launching ones last.
    for row, (start, end, own, name, number) in enumerate(world.calls):
        if own == thread and start <= cell < end:
            launching = _launching(world, row)
            activity = _CALLS.get(name, "CUDA calls" if not launching else "launch")
            if launching and ran_on[number] != device:
                activity = "other device"
            place = (2, start - end, start, (2000 if launching else 1000) + row)
            candidates.append((place, activity))
    return max(candidates, default=(None, None))[1]


def _launching(world: _World, row: int) -> bool:
    """Return whether a call launched one of the kernels; of two of one id the first did."""
    number = world.calls[row][4]
    return any(n == number for *_, n in world.kernels)


@settings(max_examples=150, deadline=None)
@given(_worlds(), st.sampled_from([0, 3, 10]))
def test_against_a_reference_that_looks_at_every_microsecond(world: _World, shortest: int) -> None:
    expected = {d: _expected(world, d, shortest) for d in (0, 1)}
    expected = {d: told for d, told in expected.items() if told is not None}
    with TemporaryDirectory() as folder:
        file = _write(Path(folder), world)
        if not expected:
            with pytest.raises(NothingToAnalyseError):
                bubbleviz.idle(file, shortest_us=shortest, step="no|mine")
            return
        report = bubbleviz.idle(file, shortest_us=shortest)

    for rank in report.ranks:
        if all(step.name is None for step in rank.steps):
            assert spent(rank) == expected[rank.device_id]
        add_up(rank)
    assert {rank.device_id for rank in report.ranks} == set(expected)
    assert sum(part.idle_ns for part in report.activities) == report.idle_ns


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data loading"),
        ("## data_load ##", "data loading"),
        ("next(train_iterator)", "data loading"),
        ("Iterator::Model::Prefetch", "data loading"),
        ("get_batch", "data loading"),
        ("batch-generator", "data loading"),
        ("TorchDynamo Cache Lookup", "tracing and compiling"),
        ("XlaCompile:#module=jit_step#", "tracing and compiling"),
        ("backend_compile", "tracing and compiling"),
        ("cuModuleLoadData", "tracing and compiling"),
        ("cuLibraryLoadData", "tracing and compiling"),
        ("nvrtcCompileProgram", "tracing and compiling"),
        ("cudaStreamSynchronize", "waiting"),
        ("hipDeviceSynchronize", "waiting"),
        ("cuCtxSynchronize", "waiting"),
        ("ThunkExecutor::Execute (wait for completion)", "waiting"),
        ("Rendezvous", "waiting"),
        ("cudaMemcpyAsync", "transfer"),
        ("cuMemcpyHtoDAsync_v2", "transfer"),
        ("TransferToDevice", "transfer"),
        ("InfeedEnqueue", "transfer"),
        ("DevicePut", "transfer"),
        ("PythonRefManager::CollectGarbage", "garbage collection"),
        ("jit_matmul:XLA GPU module", "operators"),
        ("cudaMalloc", "allocation"),
        ("cuMemAllocAsync", "allocation"),
        ("cudaLaunchKernelExC", "launch"),
        ("cuLaunchKernelEx", "launch"),
        ("cudaGraphLaunch", "launch"),
        ("hipExtModuleLaunchKernel", "launch"),
        ("ncclAllReduce", "collective calls"),
        ("nccl:all_reduce", "collective calls"),
        ("c10d::allreduce_", "collective calls"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("## optimizer ##", "optimizer"),
        ("cuKernelGetAttribute", "CUDA calls"),
        ("cudaEventRecord", "CUDA calls"),
        ("aten::to, op_id = 4", "operators"),
        ("autograd::engine::evaluate_function: MmBackward0", "operators"),
        ("PjitFunction(train_step)", "operators"),
        ("train.py(12): main", "Python"),
        ("<built-in method apply of FunctionMeta object at 0x5581>", "Python"),
        ("$profiler.py:91 start_trace", "Python"),
        ("pthread_cond_timedwait", "waiting"),
        ("poll", "waiting"),
        ("getc", "file access"),
        ("pread64", "file access"),
        ("fopen64", "file access"),
        ("ioctl", "system calls"),
        ("mmap64", "system calls"),
        ("custom_op", "host: custom_op"),
        ("read the config", "host: read the config"),
        ("Currency 3", "host: Currency #"),
        ("forward", "host: forward"),
        ("Loop", "host: Loop"),
        ("IO 12", "host: IO #"),
        ("FSDP::pre_forward (blocks.3)", "host: FSDP::pre_forward (blocks.#)"),
        ("", "host: (no name)"),
    ],
)
def test_names_of_activities(name: str, activity: str) -> None:
    assert default_activities().lookup().of(name)[0] == activity


def test_every_activity_says_what_it_means_and_what_may_help() -> None:
    known = default_activities()
    for name in {own.name for own in known.all_of}:
        told = known.named(name)
        assert told is not None
        assert told.meaning
        assert told.advice


def test_activities_of_ones_own_come_first(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[[activity]]\nname = "tokeniser"\nstrength = 3\nmatch = ["^tok"]\nadvice = "cache it"\n',
        encoding="utf-8",
    )
    file = profile(
        tmp_path, [k(0, 10, 1), k(100, 110, 2)], [c(-9, 0, 1), c(70, 75, 2)], [r(20, 60, "tok")]
    )

    report = bubbleviz.idle(file, activities=mine)

    assert spent(only(report)) == {"tokeniser": 40, "untraced": 20, "launch": 20, "device": 10}
    assert advice(report).endswith('goes to "tokeniser": cache it')


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"needs \[\[activity\]\] tables"),
        ("x", "not TOML"),
        ("[[activity]]\nmatch = []", "needs a name"),
        ('[[activity]]\nname = "a"\nmatch = ["("]', "not a regular expression"),
        ('[[activity]]\nname = "a"\nmatch = [3]', "must be a list"),
        ('[[activity]]\nname = "a"\nmatch = "zz"', "must be a list"),
        ('[[activity]]\nname = "device"\nmatch = ["zz"]', "'device' is reserved"),
        ('[[activity]]\nname = "a"\nstrength = 4', "strength must be 0, 1, 2 or 3"),
        ('[[activity]]\nname = "a"\nstrength = true', "strength must be 0, 1, 2 or 3"),
        ('[[activity]]\nname = "a"\ncolour = "red"', "unknown key 'colour'"),
        ('[[activity]]\nname = "a"\nadvice = 3', "must be texts"),
        ('other = 3\n[[activity]]\nname = "a"', "nothing else"),
    ],
)
def test_a_wrong_list_of_activities_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(text, encoding="utf-8")
    file = profile(tmp_path, [k(0, 10, 1)])

    with pytest.raises(UsageError, match=complaint):
        bubbleviz.idle(file, activities=mine)
    with pytest.raises(InputError, match="cannot be read as activities"):
        bubbleviz.idle(file, activities=tmp_path / "none.toml")


def _train(names: list[str], lengths: list[int]) -> tuple[list[K], list[C], list[R]]:
    """Return a run with a range for each step, in each a kernel that takes half of it."""
    kernels, calls, ranges, now = [], [], [], 0
    for number, (name, length) in enumerate(zip(names, lengths, strict=True)):
        calls.append(c(now, now + 5, number))
        kernels.append(k(now + 5, now + 5 + length // 2, number))
        ranges.append(r(now, now + length, name))
        now += length
    return kernels, calls, ranges


def test_steps_of_unequal_length(tmp_path: Path) -> None:
    kernels, calls, ranges = _train(["step 1", "step 2", "step 3"], [100, 200, 60])

    rank = only(bubbleviz.idle(profile(tmp_path, kernels, calls, ranges)))

    # The span is from 5, when the first kernel begins, to 335, when the last one ends.
    assert [(s.name, s.length_ns // US, s.busy_ns // US) for s in rank.steps] == [
        ("step 1", 95, 50),
        ("step 2", 200, 100),
        ("step 3", 35, 30),
    ]
    assert [s.duty_cycle for s in rank.steps] == [50 / 95, 0.5, 30 / 35]
    add_up(rank)


def test_time_between_steps_is_told_apart(tmp_path: Path) -> None:
    kernels, calls, ranges = _train(["step 1", "between", "step 2"], [100, 40, 100])
    del ranges[1]

    rank = only(bubbleviz.idle(profile(tmp_path, kernels, calls, ranges)))

    assert [(s.name, s.length_ns // US, s.busy_ns // US) for s in rank.steps] == [
        ("step 1", 95, 50),
        ("step 2", 55, 50),
        (None, 40, 20),
    ]
    add_up(rank)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["ProfilerStep#1", "ProfilerStep#2, op_id = 3"], ["ProfilerStep#1", "ProfilerStep#2"]),
        (["train#step_num=4#", "train#step_num=2#"], ["train#step_num=4#", "train#step_num=2#"]),
        (["train#name=a,step_num=4,b=c#", "x"], ["train#name=a,step_num=4,b=c#"]),
        (["train #2#step_num=5#", "x"], ["train #2#step_num=5#"]),
        (["train#step_num=5#, again", "x"], []),
        (["iter_0_7", "iter_0_8"], ["iter_0_7", "iter_0_8"]),
        (["epoch 1 step 9", "epoch 1 step 10"], ["epoch 1 step 9", "epoch 1 step 10"]),
        (["train", "train"], ["train", "train"]),
        (["layer 1", "layer 1"], ["layer 1", "layer 1"]),
        (["layer 2", "layer 1"], []),
        (["step 1", "else"], []),
        (["aten::mm", "aten::mm"], []),
        (["XlaModule:#hlo_module=jit_f#"] * 2, ["XlaModule:#hlo_module=jit_f#"] * 2),
        (["F" + "9" * 40, "F" + "8" * 40], []),
    ],
)
def test_which_ranges_are_steps(tmp_path: Path, names: list[str], told: list[str]) -> None:
    kernels, calls, ranges = _train(names, [100, 100])

    rank = only(bubbleviz.idle(profile(tmp_path, kernels, calls, ranges)))

    assert [step.name for step in rank.steps if step.name is not None] == told


def test_iterations_rather_than_epochs_or_layers(tmp_path: Path) -> None:
    kernels, calls, ranges = _train([f"step {n}" for n in range(4)], [100] * 4)
    ranges += [r(0, 200, "epoch 0"), r(200, 400, "epoch 1")]
    ranges += [r(at, at + 45, f"layer {at // 50 % 2}") for at in range(0, 400, 50)]

    rank = only(bubbleviz.idle(profile(tmp_path, kernels, calls, ranges)))

    assert [step.name for step in rank.steps] == ["step 0", "step 1", "step 2", "step 3"]


def test_steps_that_the_user_names(tmp_path: Path) -> None:
    kernels, calls, ranges = _train(["a(1)", "a(2)", "b"], [100, 100, 100])
    ranges += [r(10, 50, "a(1)"), r(90, 120, "a(3)")]
    file = profile(tmp_path, kernels, calls, ranges)

    def names(step: str) -> list[str]:
        rank = only(bubbleviz.idle(file, step=step))
        add_up(rank)
        return [own.name for own in rank.steps if own.name is not None]

    # Of those that overlap the outermost is taken, and what begins before it ends is left out.
    assert names("a(1)") == ["a(1)"]
    assert names(r"a\(\d\)") == ["a(1)", "a(2)"]
    assert names("a.*|b") == ["a(1)", "a(2)", "b"]
    with pytest.raises(UsageError, match=r"no range of a launching thread .* has this name"):
        bubbleviz.idle(file, step="c")
    with pytest.raises(UsageError, match="not a regular expression"):
        bubbleviz.idle(file, step="a[")


@settings(max_examples=60, deadline=None)
@given(_worlds(), st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(-20, 60))
def test_steps_add_up(world: _World, lengths: list[int], begin: int) -> None:
    ranges, now = list(world.ranges), begin
    for number, length in enumerate(lengths):
        ranges.append((now, now + length, 1, f"ProfilerStep#{number}"))
        now += length + number % 2
    with TemporaryDirectory() as folder:
        file = _write(Path(folder), _World(world.kernels, world.calls, ranges, world.overheads))
        if all(a == b for a, b, *_ in world.kernels):
            return
        report = bubbleviz.idle(file)

    for rank in report.ranks:
        add_up(rank)


def test_a_window_of_steps_tells_of_these_what_the_whole_tells(tmp_path: Path) -> None:
    kernels, calls, ranges = _train([f"step {n}" for n in range(3, 8)], [100, 200, 60, 40, 80])
    file = profile(tmp_path, kernels, calls, ranges)
    whole = only(bubbleviz.idle(file))

    report = bubbleviz.idle(file, window=window_of("iteration:4-5"))

    rank = only(report)
    assert rank.steps == whole.steps[1:3]
    assert (rank.breakdown.start_ns, rank.breakdown.end_ns) == (100 * US, 360 * US)
    assert json.loads(json_text(report, 5))["window"] == "iteration:4-5"
    add_up(rank)


def test_a_window_without_anything_is_refused(tmp_path: Path) -> None:
    kernels, calls, ranges = _train(["step 1", "step 2"], [100, 200])
    file = profile(tmp_path, kernels, calls, ranges)

    with pytest.raises(InputError, match=r"iteration:7: .* the capture holds 1 to 2"):
        bubbleviz.idle(file, window=window_of("iteration:7"))
    with pytest.raises(NothingToAnalyseError, match="no device has any work in --window time:1s-"):
        bubbleviz.idle(file, window=window_of("time:1s-"))


@settings(max_examples=60, deadline=None)
@given(_worlds(), st.integers(1, 200))
def test_two_windows_make_the_whole(world: _World, cut: int) -> None:
    if all(a == b for a, b, *_ in world.kernels):
        return
    ranges = [(start, end, 1, "ProfilerStep#1") for start, end in [(-200, 400)]]
    with TemporaryDirectory() as folder:
        file = _write(Path(folder), replace(world, ranges=world.ranges + ranges))
        whole = bubbleviz.idle(file, shortest_us=0)
        halves = []
        for text in (f"time:-{cut}us", f"time:{cut}us-"):
            with contextlib.suppress(NothingToAnalyseError):
                halves.append(bubbleviz.idle(file, shortest_us=0, window=window_of(text)))

    assert sum(half.idle_ns for half in halves) == whole.idle_ns
    assert sum(half.span_ns for half in halves) == whole.span_ns
    totals: Counter[str] = Counter()
    for half in halves:
        for rank in half.ranks:
            add_up(rank)
        totals.update({part.activity: part.idle_ns for part in half.activities})
    assert totals == {part.activity: part.idle_ns for part in whole.activities}


def test_of_equal_ranges_the_later_tells(tmp_path: Path) -> None:
    file = profile(
        tmp_path,
        [k(0, 10, 1), k(100, 110, 2), k(100, 104, 3)],
        [c(-9, 0, 1), c(90, 95, 2), c(96, 97, 3)],
        [r(20, 60, "one"), r(20, 60, "two")],
    )

    rank = only(bubbleviz.idle(file))

    # Of two kernels that begin together the first row ends the gap: its call was at 90.
    assert spent(rank) == {"host: two": 40, "untraced": 40, "launch": 10}
    example = rank.activities[0].example
    assert example is not None
    assert example.where == ("one", "two")
    assert (example.before, example.after) == ("gemm", "gemm")


def test_several_files_are_several_ranks(tmp_path: Path) -> None:
    one = profile(
        tmp_path, [k(0, 10, 1), k(50, 60, 2)], [c(-9, 0, 1), c(40, 41, 2)], name="a.sqlite"
    )
    two = profile(
        tmp_path, [k(0, 10, 1), k(90, 99, 2)], [c(-9, 0, 1), c(80, 81, 2)], name="b.sqlite"
    )

    report = bubbleviz.idle([one, two])

    assert [rank.label for rank in report.ranks] == ["a.sqlite pid 1 GPU 0", "b.sqlite pid 1 GPU 0"]
    assert {part.activity: part.idle_ns // US for part in report.activities} == {
        "untraced": 30 + 70,
        "launch": 10 + 10,
    }
    assert report.activities[0].rank == 1
    with pytest.raises(MismatchError, match="the same profile twice"):
        bubbleviz.idle([one, one])


def _planted(folder: Path, name: str = "DataLoader") -> Path:
    kernels, calls, ranges = _train(["step 1", "step 2"], [100, 200])
    return profile(folder, kernels, calls, [*ranges, r(60, 95, name)])


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = GOLDEN / "idle.txt"

    assert main(["gaps", str(_planted(tmp_path))]) == 0

    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == golden.read_text(encoding="utf-8")


def test_the_json_is_stable_and_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _planted(tmp_path)

    assert main(["gaps", str(file), "--json", "-", "--top", "1"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "bubbleviz.idle/1"
    assert set(told) == {
        *("schema", "version", "definitions", "shortest_ns", "span_ns", "idle_ns", "advice"),
        *("activities", "meanings", "ranks", "limitations", "window"),
    }
    (rank,) = told["ranks"]
    assert rank["idle_ns"] == sum(own["idle_ns"] for own in rank["activities"])
    assert rank["duty_cycle"] == 0.75
    (gap,) = rank["longest_gaps"]
    assert sum(own["end_ns"] - own["start_ns"] for own in gap["chunks"]) == gap["idle_ns"] == 50_000
    assert all(a["end_ns"] == b["start_ns"] for a, b in pairwise(gap["chunks"]))
    assert gap["activity"] == "data loading"
    assert [step["name"] for step in rank["steps"]] == ["step 1", "step 2"]
    assert main(["gaps", str(file), "--json", "-", "--top", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == told


def test_the_csv_has_a_row_a_gap(tmp_path: Path) -> None:
    out = tmp_path / "gaps.csv"

    assert main(["gaps", str(_planted(tmp_path)), "--csv", str(out)]) == 0

    (row,) = csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
    assert tuple(row) == COLUMNS
    assert (row["step"], row["idle_ns"], row["activity"]) == ("step 1", "50000", "data loading")
    chunks = json.loads(row["chunks"])
    assert chunks == {"untraced": 10_000, "data loading": 35_000, "launch": 5_000}


def test_outputs_are_replaced_with_force_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "gaps.json", str(_planted(tmp_path))
    out.write_text("mine", encoding="utf-8")

    assert main(["gaps", file, "--json", str(out)]) == 1
    assert "replace it with --force" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == "mine"
    assert main(["gaps", file, "--json", str(out), "--force"]) == 0
    assert main(["gaps", file, "--json", file]) == 1
    assert main(["gaps", file, "--step", "none"]) == 2
    assert issubclass(OutputError, bubbleviz.BubblevizError)


HOSTILE = "=1+1\x00\x1b[31m<script>alert(1)</script>\n" + "x" * 10_000


def test_hostile_names_are_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = HOSTILE.replace("\x00", "\x01")
    file = profile(
        tmp_path,
        [k(0, 10, 1, named), k(100, 110, 2, named)],
        [c(-9, 0, 1), c(90, 91, 2, name=named)],
        [r(20, 80, named), r(-10, 50, f"{named}1"), r(50, 120, f"{named}2")],
    )
    out = tmp_path / "gaps.csv"

    assert main(["gaps", str(file), "--csv", str(out)]) == 0

    printed = capsys.readouterr().out
    assert not set(printed) & {"\x01", "\x1b"}
    assert max(map(len, printed.splitlines())) < 400
    text = out.read_text(encoding="utf-8")
    assert "\x01" not in text
    assert "\x1b" not in text
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(text)) for cell in row)
    json.loads(json_text(bubbleviz.idle(file), 5))


DATA = Path(os.environ.get("BUBBLEVIZ_DATA", "/nonexistent"))
real = pytest.mark.skipif(not DATA.is_dir(), reason="BUBBLEVIZ_DATA names no folder")


@real
@pytest.mark.parametrize("file", sorted(DATA.glob("nsys/*.sqlite")), ids=lambda file: file.stem)
def test_every_real_export_with_work_adds_up(file: Path) -> None:
    if file.stem in {
        *("dynamicvit_no_kernels", "jacc_cg_trace_no_kernels", "yoon_poolformer_no_kernels"),
    }:
        with pytest.raises(NothingToAnalyseError, match="no CUDA kernels were recorded"):
            bubbleviz.idle(file)
        return

    report = bubbleviz.idle(file)

    for rank in report.ranks:
        add_up(rank)
    json_text(report, 5)
    csv_of_gaps(report)


@real
def test_a_real_export_whose_host_reads_files() -> None:
    rank = only(bubbleviz.idle(DATA / "nsys" / "nsightful_power_iteration.sqlite"))

    # Ranges "IO 0" to "IO 430" take 644.240 ms, all of them while the GPU is idle; 16.5 ms of
    # that are calls of the operating system inside.
    first, second = rank.activities[:2]
    assert (first.activity, second.activity) == ("host: IO #", "file access")
    assert (first.gaps, second.gaps) == (44, 44)
    assert first.idle_ns + second.idle_ns == pytest.approx(644.240e6, rel=1e-4)
    assert first.example is not None
    assert first.example.where == ("Loop", "IO 190")
    assert sum(step.name is not None for step in rank.steps) == 44


@real
@pytest.mark.parametrize("file", sorted(DATA.glob("jax/*")), ids=lambda file: file.name)
def test_real_traces_of_jax_add_up(file: Path) -> None:
    report = bubbleviz.idle(file)

    for rank in report.ranks:
        add_up(rank)
    if file.name.startswith("jax_cpu4"):
        steps = [step.name for step in report.ranks[0].steps if step.name is not None]
        assert steps == ["train#step_num=0#", "train#step_num=1#", "train#step_num=2#"]
        told = {part.activity for part in report.activities}
        assert {"waiting", "operators", "host: train"} <= told


#: What HolisticTraceAnalysis 0.5.0 tells of PyTorch traces, in microseconds, with
#: include_last_profiler_step=True and HTA_DISABLE_NS_ROUNDING=1: get_temporal_breakdown (idle,
#: compute, kernel time) and get_comm_comp_overlap (percent, two places; None where it says NaN).
HTA = {
    "hta_sampled_rank-0": (675_191.0, 210_320.0, 1_222_847.0, 14.95),
    "hta_sampled_rank-1": (651_136.0, 271_973.0, 1_231_186.0, 19.93),
    "hta_nccl_data": (503_050.991, 115_655.847, 660_551.006, 15.61),
    # Its times lie in UTC, of which its floats hold a quarter of a microsecond.
    "hta_ns_resolution": (7_574.786, 468_153.602, 480_029.227, None),
}


@real
@pytest.mark.parametrize("name", list(HTA))
def test_idle_compute_and_overlap_are_those_of_hta(name: str) -> None:
    idle, compute, span, overlap = HTA[name]

    own = only(bubbleviz.idle(DATA / "kineto" / f"{name}.json.gz")).breakdown

    # What HTA calls non-compute is communication and copies that no compute hides.
    other_ns = own.exposed_communication_ns + own.exposed_copy_ns
    told = (own.idle_ns, own.compute_ns, own.span_ns, other_ns)
    assert [ns / 1000 for ns in told] == pytest.approx(
        [idle, compute, span, span - compute - idle], abs=0.06
    )
    if overlap is None:
        assert own.overlap is None
    else:
        assert 100 * (own.overlap or 0) == pytest.approx(overlap, abs=0.005)


def _union_us(events: list[dict[str, Any]], whole: bool) -> tuple[int, int]:
    """Return (length of the union, span) in ns; HTA rounds starts up and ends down to whole us."""
    grain = 1000 if whole else 1
    pairs = []
    for event in events:
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        pairs.append((-(-start // grain) * grain, end // grain * grain))
    pairs = sorted((start, end) for start, end in pairs if end > start)
    total, latest = 0, pairs[0][0]
    for start, end in pairs:
        total += max(0, end - max(start, latest))
        latest = max(latest, end)
    return total, latest - pairs[0][0]


@real
def test_without_its_option_hta_rounds_idle_time_up() -> None:
    file = DATA / "kineto" / "hta_nccl_data.json.gz"
    with gzip.open(file) as opened:
        events = json.load(opened)["traceEvents"]
    work = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]

    busy, span = _union_us(work, whole=True)
    exact, exact_span = _union_us(work, whole=False)

    # 506,512 us is what HTA 0.5.0 tells as it is installed.
    assert (span - busy) / 1000 == 506_512
    assert only(bubbleviz.idle(file)).breakdown.idle_ns == pytest.approx(
        exact_span - exact, abs=5_000
    )


def test_threads_may_have_names(tmp_path: Path) -> None:
    file = profile(tmp_path, [k(0, 9, 1)], [c(-9, 0, 1)], threads=[T(1, "python")])

    assert only(bubbleviz.idle(file)).breakdown.busy_ns == 9_000


def test_the_picture_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    report = bubbleviz.idle(_planted(tmp_path))

    drawn = draw_idle(report)

    root = ElementTree.fromstring(drawn)
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    texts = [text.replace("\u00a0", " ") for text in texts]
    assert texts[0] == "1 device, idle for 25.0 % of the time"
    assert {"step 1", "step 2", "host GPU 0", "75.0 %", "data loading  17.5 %"} <= set(texts)
    assert drawn == draw_idle(bubbleviz.idle(tmp_path / "profile.sqlite"))


def test_the_order_of_colours_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = bubbleviz.idle(_planted(tmp_path))
    drawn = draw_idle(report)
    other = dict(reversed(ACTIVITIES.items()))

    monkeypatch.setattr(idle_picture, "ACTIVITIES", other)

    assert draw_idle(report) == drawn


def test_slices_of_a_strip_add_up(tmp_path: Path) -> None:
    rank = only(bubbleviz.idle(_planted(tmp_path)))

    spent_ns = rank.strip.spent_ns
    assert spent_ns.sum() == rank.breakdown.span_ns
    assert spent_ns[:3].sum() == rank.breakdown.busy_ns
    assert spent_ns.sum(axis=0).max() - spent_ns.sum(axis=0).min() <= 1


def test_a_picture_of_hostile_names_and_many_devices(tmp_path: Path) -> None:
    kernels = [k(at, at + 5, None, device=d) for d in range(40) for at in (0, 20 + d)]
    calls = [c(30, 35, 7)]
    file = profile(tmp_path, kernels, calls, hostname="<script>\x01" + "x" * 10_000)

    drawn = draw_idle(bubbleviz.idle(file))

    ElementTree.fromstring(drawn)
    assert "<script>" not in drawn
    assert "and 8 more devices" in drawn
    assert len(drawn) < 300_000
