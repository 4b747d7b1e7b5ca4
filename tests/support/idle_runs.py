"""Small profiles for tests of idle time, either written by hand or random (``World``)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bubbleviz.analyses.idle.report import IdleMeasurement, RankIdle
from tests.support.nsys_exports import C, K, R, pack_global_id, write_profile

US = 1000


def k(start: int, end: int, correlation: int | None, name: str = "gemm", **rest: Any) -> K:
    """Return a kernel. Times are in microseconds."""
    return K(start * US, end * US, correlation, name, **rest)


def c(start: int, end: int, correlation: int | None, **rest: Any) -> C:
    """Return a call. Times are in microseconds."""
    return C(start * US, end * US, correlation, **rest)


def r(start: int, end: int, name: str, tid: int = 1, **rest: Any) -> R:
    """Return a range. Times are in microseconds."""
    return R(start * US, end * US, name, tid, **rest)


def list_times(rank: RankIdle) -> dict[str, float]:
    return {part.activity: part.idle_ns / US for part in rank.activities}


def get_only_rank(measurement: IdleMeasurement) -> RankIdle:
    (rank,) = measurement.ranks
    return rank


def check_sums(rank: RankIdle) -> None:
    """Check that the times of a rank add up exactly.

    Compute, exposed communication and copies, and idle time add up to the span. Activities, steps
    and gaps each add up to the idle time.
    """
    rank_ = rank
    assert (
        rank_.span_ns
        == rank_.compute_ns
        + rank_.exposed_communication_ns
        + rank_.exposed_copy_ns
        + (rank_.idle_ns)
    )
    assert sum(part.idle_ns for part in rank.activities) == rank_.idle_ns
    assert sum(step.idle_ns for step in rank.steps) == rank_.idle_ns
    assert sum(step.length_ns for step in rank.steps) == rank_.span_ns
    for step in rank.steps:
        assert sum(spent_ns for _, spent_ns in step.activities) == step.idle_ns
        assert len(dict(step.activities)) == len(step.activities)
    assert (rank_.idle.start_ns < rank_.idle.end_ns).all()
    gaps, pieces_ns = rank_.gaps, rank_.idle.end_ns - rank_.idle.start_ns
    by_gap = np.zeros(len(gaps), np.int64)
    np.add.at(by_gap, rank_.idle.interval, pieces_ns)
    assert (by_gap == gaps.end_ns - gaps.start_ns).all()
    assert pieces_ns.sum() + sum(step.short_ns for step in rank.steps) == rank_.idle_ns


def make_training(names: list[str], lengths: list[int]) -> tuple[list[K], list[C], list[R]]:
    """Return a run with one range per step. A kernel fills half of each range."""
    kernels, calls, ranges, now = [], [], [], 0
    for number, (name, length) in enumerate(zip(names, lengths, strict=True)):
        calls.append(c(now, now + 5, number))
        kernels.append(k(now + 5, now + 5 + length // 2, number))
        ranges.append(r(now, now + length, name))
        now += length
    return kernels, calls, ranges


def plant_idle(folder: Path, name: str = "DataLoader") -> Path:
    kernels, calls, ranges = make_training(["step 1", "step 2"], [100, 200])
    return write_profile(folder, kernels, calls, [*ranges, r(60, 95, name)])


#: Names of activities of every strength. An unknown name counts as a separate activity.
NAMES = ("DataLoader", "XlaCompile", "Optimizer.step", "aten::mm", "mine", "train.py(3): step")
CALLS = ("cudaMalloc", "cudaStreamSynchronize")


@dataclass(frozen=True)
class World:
    """A small profile in whole microseconds, with kernels, calls and ranges as plain tuples."""

    kernels: list[tuple[int, int, int, int]]  # (start, end, device, correlation)
    calls: list[tuple[int, int, int, str, int]]  # (start, end, thread, name, correlation)
    ranges: list[tuple[int, int, int, str]]  # (start, end, thread, name)
    overheads: list[tuple[int, int]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a world of up to eight kernels on two devices, plus noise.

    Most kernels have a launching call. The noise consists of calls that launch nothing, ranges on
    up to three threads, and profiler overheads.
    """
    # A start of 0 means that the start is unknown, so starts are at least 1.
    time, length, thread = st.integers(1, 150), st.integers(0, 40), st.integers(1, 3)
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
        name = draw(st.sampled_from(CALLS))
        calls.append((start, start + draw(length), draw(thread), name, 100 + number))
    ranges = []
    for _ in range(draw(st.integers(0, 8))):
        start, name = draw(time), draw(st.sampled_from(NAMES))
        ranges.append((start, start + draw(st.integers(0, 90)), draw(thread), name))
    overheads = [(a := draw(time), a + draw(length)) for _ in range(draw(st.integers(0, 2)))]
    return World(kernels, draw(st.permutations(calls)), ranges, overheads)


def write_world(folder: Path, world: World) -> Path:
    """Write a world as an nsys export, and return its path."""
    file = write_profile(
        folder,
        [k(a, b, n, device=d) for a, b, d, n in world.kernels],
        [c(a, b, n, tid=t, name=name) for a, b, t, name, n in world.calls],
        [r(a, b, name, t) for a, b, t, name in world.ranges],
    )
    add_overheads(file, world.overheads)
    return file


def add_overheads(file: Path, times: list[tuple[int, int]]) -> None:
    """Add intervals of profiler overhead, in microseconds."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE PROFILER_OVERHEAD (start INT, end INT, globalTid INT)")
        database.executemany(
            "INSERT INTO PROFILER_OVERHEAD VALUES (?,?,?)",
            [(start * US, end * US, pack_global_id(1, 1)) for start, end in times],
        )
        database.commit()
