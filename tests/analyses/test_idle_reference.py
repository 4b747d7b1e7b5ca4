"""Idle time against a slow reference that looks at every microsecond."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle.gaps import LATENCY_NS
from bubbleviz.errors import NothingToAnalyseError
from tests.support.idle_runs import CALLS, NAMES, US, World, add_up, spent, worlds, write_world
from tests.support.nsys_exports import C, K, profile
from tests.support.synchronised_exports import Rec, Wait, synchronised
from tests.support.torch_traces import traces_of


def _expected(world: World, device: int, shortest: int) -> dict[str, int] | None:
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
    world: World, device: int, cell: int, gap: tuple[int, int, Any], lead: int | None, shortest: int
) -> str:
    start, end, call = gap
    if any(a <= cell < b for a, b in world.overheads):
        return "profiler"
    if end - start < shortest:
        return "kernel-to-kernel gaps"
    if call is None:
        return "launch not recorded"
    if cell >= call[0]:
        return "stream or rank dependency" if cell >= max(call[1], call[0] + 20) else "launch"
    for thread in dict.fromkeys((call[2], lead, 1)):
        told = _told(world, device, cell, thread, shortest)
        if told is not None:
            return told
    return "no host trace"


def _told(world: World, device: int, cell: int, thread: int | None, shortest: int) -> str | None:
    """Return what the strongest, then innermost thing around a cell says."""
    ran_on = {n: d for _, _, d, n in world.kernels}
    candidates: list[tuple[tuple[int, int, int, int], str]] = []
    for row, (start, end, own, name) in enumerate(world.ranges):
        if own == thread and start <= cell < end and end - start >= max(1, shortest):
            activity, strength = NAMES[name]
            candidates.append(((strength, start - end, start, row), activity))
    # Of calls and ranges that are equal, calls are innermost, launching ones last.
    for row, (start, end, own, name, number) in enumerate(world.calls):
        if own == thread and start <= cell < end:
            launching = _launching(world, row)
            activity = CALLS.get(name, "API calls" if not launching else "launch")
            if launching and ran_on[number] != device:
                activity = "other device"
            place = (2, start - end, start, (2000 if launching else 1000) + row)
            candidates.append((place, activity))
    return max(candidates, default=(None, None))[1]


def _launching(world: World, row: int) -> bool:
    """Return whether a call launched one of the kernels; of two of one id the first did."""
    number = world.calls[row][4]
    return any(n == number for *_, n in world.kernels)


@settings(max_examples=60)
@given(worlds(), st.sampled_from([0, 3, 10]))
def test_against_a_reference_that_looks_at_every_microsecond(world: World, shortest: int) -> None:
    expected = {d: _expected(world, d, shortest) for d in (0, 1)}
    expected = {d: told for d, told in expected.items() if told is not None}
    with TemporaryDirectory() as folder:
        file = write_world(Path(folder), world)
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


# Waits of streams, against streams that do what a host asks for.


#: A place: process, device, stream.
Place = tuple[int, int, int]
#: What a host asks for: kind, process, device, stream, time before it, and how long a kernel runs;
#: an event's number is whether that is odd.
Step = tuple[str, int, int, int, int, int]
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(("launch", "launch", "launch", "record", "wait", "wait")),
        *(st.integers(0, 1), st.integers(0, 1), st.integers(0, 2)),
        st.integers(1, 30),
        st.integers(1, 120),
    ),
    max_size=25,
)
_LAUNCH_US = 5


@dataclass
class _Stream:
    """When a stream has done all, its last work, and the events that it waited for since."""

    ready_us: int = -1
    done_us: int = -1
    waited_us: int = -1


@dataclass
class Run:
    """What streams do of what a host asks for: rows of an export, and how long each waited."""

    kernels: list[K] = field(default_factory=list)
    calls: list[C] = field(default_factory=list)
    records: list[Rec] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    blocked: dict[Place, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


def simulated(steps: list[Step]) -> Run:
    """Return what the steps of a host come to; each process has events 0 and 1."""
    run, now = Run(), 0
    streams: dict[Place, _Stream] = defaultdict(_Stream)
    events: dict[tuple[int, int], tuple[int, int]] = {}
    for number, (kind, pid, device, stream, host_us, run_us) in enumerate(steps, 1):
        now += host_us
        place = pid + 1, device, stream
        own, event = streams[place], (pid, run_us % 2)
        name = {"launch": "cudaLaunchKernel", "record": "cudaEventRecord"}.get(
            kind, "cudaStreamWait"
        )
        run.calls.append(C(now * US, (now + 1) * US, number, tid=pid + 1, pid=pid + 1, name=name))
        if kind == "record":
            events[event] = own.ready_us, number
            run.records.append(Rec(stream, event[1], number, number, device, pid + 1))
        elif kind == "wait":
            completed_us, pairing = events.get(event, (-1, None))
            own.ready_us = max(own.ready_us, completed_us)
            own.waited_us = max(own.waited_us, completed_us)
            run.waits.append(Wait(now, stream, event[1], number, pairing, device, pid + 1))
        else:
            start = max(now + _LAUNCH_US, own.ready_us)
            due = max(now + LATENCY_NS // US, own.done_us)
            run.blocked[place].append((due, min(own.waited_us, start)))
            own.ready_us = own.done_us = start + run_us
            own.waited_us = -1
            times = start * US, own.ready_us * US
            run.kernels.append(K(*times, number, "gemm", pid + 1, device, stream))
        now += 1
    return run


def expected(run: Run) -> dict[Place, int]:
    """Return how long the streams of each place were blocked within their device's time."""
    spent: dict[Place, int] = {}
    for (pid, device, stream), intervals in run.blocked.items():
        own = [k for k in run.kernels if (k.pid, k.device) == (pid, device)]
        low, high = min(k.start for k in own), max(k.end for k in own)
        parts = (min(b * US, high) - max(a * US, low) for a, b in intervals)
        spent[pid, device, stream] = sum(max(part, 0) for part in parts)
    return {place: ns for place, ns in spent.items() if ns}


def told(file: Path) -> dict[Place, int]:
    """Return the same as the report tells it."""
    spent: dict[Place, int] = defaultdict(int)
    for rank in bubbleviz.idle(file).ranks:
        add_up(rank)
        by_activity = sum(p.idle_ns for p in rank.activities if p.activity.startswith("blocked by"))
        assert by_activity == sum(wait.idle_ns for wait in rank.waits)
        for wait in rank.waits:
            assert 0 <= wait.idle_ns <= wait.without_compute_ns <= wait.blocked_ns
            spent[rank.pid, rank.device_id, int(wait.waiting.split()[1])] += wait.blocked_ns
    return dict(spent)


@settings(max_examples=40, deadline=None)
@given(_STEPS, st.booleans())
@example([("launch", 0, 0, 0, 1, 100), ("record", 0, 0, 0, 1, 2), ("wait", 0, 1, 1, 1, 2),
          ("launch", 0, 1, 0, 1, 10), ("launch", 0, 1, 1, 1, 10)], True)  # fmt: skip
def test_waits_are_those_of_the_streams(steps: list[Step], numbered: bool) -> None:
    run = simulated(steps)
    if not run.kernels:
        return
    with TemporaryDirectory() as folder:
        file = synchronised(profile(Path(folder), run.kernels, run.calls), run.records, run.waits)
        if numbered:
            assert told(file) == expected(run)
            return
        spent: dict[Place, int] = {}
        for trace in traces_of(file, Path(folder)):
            if any(f".{kernel.pid}.pt" in trace.name for kernel in run.kernels):
                spent |= told(trace)
    # Events are looked up on the wait's own device first, as numbers may be the device's.
    own = {(r.pid, r.device, r.event) for r in run.records}
    several = len({(pid, event) for pid, _, event in own}) < len(own)
    assert several or spent == expected(run)
