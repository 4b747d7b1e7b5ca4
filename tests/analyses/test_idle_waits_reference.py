"""Waits of drawn programs, run by a simulated host and streams, are those that the report tells."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.analyses.idle.gaps import LATENCY_NS
from tests.support.idle_runs import US, add_up
from tests.support.nsys_exports import C, K, profile
from tests.support.synchronised_exports import Rec, Wait, synchronised
from tests.support.torch_traces import traces_of

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
@given(_STEPS)
@example([("launch", 0, 0, 0, 1, 100), ("record", 0, 0, 0, 1, 2), ("wait", 0, 1, 1, 1, 2),
          ("launch", 0, 1, 0, 1, 10), ("launch", 0, 1, 1, 1, 10)])  # fmt: skip
def test_waits_are_those_of_the_streams(steps: list[Step]) -> None:
    run = simulated(steps)
    if not run.kernels:
        return
    with TemporaryDirectory() as folder:
        file = profile(Path(folder), run.kernels, run.calls)
        numbered = synchronised(file, run.records, run.waits)

        assert told(numbered) == expected(run)


@settings(max_examples=15, deadline=None)
@given(_STEPS)
def test_waits_without_numbers_are_the_same(steps: list[Step]) -> None:
    run = simulated(steps)
    if not run.kernels:
        return
    with TemporaryDirectory() as folder:
        file = profile(Path(folder), run.kernels, run.calls)
        synchronised(file, run.records, run.waits)
        spent: dict[Place, int] = {}
        for trace in traces_of(file, Path(folder)):
            if any(f".{kernel.pid}.pt" in trace.name for kernel in run.kernels):
                spent |= told(trace)
        # Events are looked up on the wait's own device first, as numbers may be the device's.
        own = {(r.pid, r.device, r.event) for r in run.records}
        several = len({(pid, event) for pid, _, event in own}) < len(own)

        assert several or spent == expected(run)
