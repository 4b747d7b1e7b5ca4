"""Memory of operations, computed from events whose allocations and frees are known."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.interpret.memory import list_memory_limitations, measure_memory
from bubbleviz.model.memory_events import MemoryEvents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from tests.support.pytorch import get_python_with_torch

#: A script that records a chain of linear layers and gelu.
#: Each forward allocates four layers of 512 x 256 floats twice.
RECORDED = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, record_function
layers, outputs = [torch.nn.Linear(256, 256) for _ in range(4)], {}
def forward(mb):
    with record_function(f"F{mb}.0.0"):
        x = torch.randn(512, 256, requires_grad=True)
        for layer in layers:
            x = torch.nn.functional.gelu(layer(x))
        outputs[mb] = x
def backward(mb):
    with record_function(f"B{mb}.0.0"):
        outputs.pop(mb).sum().backward()
def step():
    for mb in range(3):
        forward(mb)
    for mb in range(3):
        backward(mb)
    for parameter in (p for layer in layers for p in layer.parameters()):
        parameter.grad = None
step()
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
    step()
recorded.export_chrome_trace(sys.argv[1])
"""


class NoLayers:
    layers = ()

    @staticmethod
    def around(thread: np.ndarray, _: np.ndarray) -> np.ndarray:
        return np.full(len(thread), -1)


def keys_of(names: list[tuple[Phase, int]], length: int = 100) -> Operations:
    """Return consecutive operations of one rank."""
    count = len(names)
    none = np.full(count, -1)
    start = np.arange(count) * length
    return Operations.make_without_work(
        rank=np.zeros(count, np.int64),
        iteration=np.zeros(count, np.int64),
        phase=np.array([int(phase) for phase, _ in names], np.int64),
        microbatch=np.array([mb for _, mb in names], np.int64),
        chunk=np.zeros(count, np.int64),
        sequence=none.copy(),
        second_microbatch=none.copy(),
        second_chunk=none.copy(),
        occurrence=np.zeros(count, np.int64),
        host_start_ns=start,
        host_end_ns=start + length - 10,
        cut=np.zeros(count, np.int64),
        tokens=none.copy(),
        prefix=none.copy(),
        name_id=np.zeros(count, np.int64),
        names=("",),
    )


#: Allocations as (start, end or None, bytes).
#: Operations start every 100 time units and last 90.
HELD = [
    # These are allocated by F0, and freed by its B or its W.
    (50, 250, 1),
    (60, 350, 16),
    # These are allocated between operations, never freed, or freed before the backward.
    # No forward keeps them.
    (95, 250, 200),
    (110, None, 400),
    (120, 150, 1000),
    # These are allocated by F1, whose B and W come last.
    (130, 450, 32),
    (140, 550, 8),
]


def test_memory_that_backwards_free_is_held_by_their_forwards() -> None:
    names = [(Phase.F, 0), (Phase.F, 1), (Phase.B, 0), (Phase.W, 0), (Phase.B, 1), (Phase.W, 1)]
    rows = [(start, address, size) for address, (start, _, size) in enumerate(HELD)]
    rows += [(end, address, -size) for address, (_, end, size) in enumerate(HELD) if end]
    time, address, change = np.array(sorted(rows), np.int64).T.copy()
    events = replace(events_of(list(zip(time, change, strict=True))), address=address)
    use = measure_memory(events, keys_of(names), np.array([[7, 0]]), NoLayers())  # type: ignore[arg-type]
    assert use is not None

    forwards = use.operations.take(use.operations.phase == Phase.F)
    assert forwards.activation.tolist() == [((1 + 16) + (32 + 8)) / 2]
    assert forwards.weight_activation.tolist() == [(16 + 8) / 2]
    assert use.ranks.peak.tolist() == [1 + 16 + 200 + 400 + 1000 + 32 + 8]


def events_of(changes: list[tuple[int, int]], totals: list[int] | None = None) -> MemoryEvents:
    """Return the events of a rank, given as (time, bytes) pairs. Each pair has its own address."""
    time, change = np.array(changes, np.int64).T.copy()
    none = np.full(len(time), -1)
    total = none.copy() if totals is None else np.array(totals, np.int64)
    address = np.arange(len(time))
    return MemoryEvents(
        time, np.full(len(time), 7 << 24), np.zeros_like(time), address, change.copy(), total
    )


def test_operation_without_memory_events_needs_no_memory() -> None:
    keys = keys_of([(Phase.F, 0), (Phase.B, 0)])
    use = measure_memory(
        events_of([(10, 100)]),
        keys,
        np.array([[7, 0]]),
        NoLayers(),  # type: ignore[arg-type]
    )
    assert use is not None

    assert use.operations.phase.tolist() == [Phase.F, Phase.B]
    assert use.operations.above_start.tolist() == [100, 0]
    assert use.operations.net.tolist() == [100, 0]


def test_memory_from_before_the_capture_is_never_negative() -> None:
    keys = keys_of([(Phase.F, 0), (Phase.B, 0)])
    use = measure_memory(
        events_of([(5, -300), (10, 100), (50, -200)]),
        keys,
        np.array([[7, 0]]),
        NoLayers(),  # type: ignore[arg-type]
    )
    assert use is not None

    # 400 bytes were allocated before the recording.
    # At the last event, all recorded allocations are freed.
    assert use.ranks.resident.tolist() == [400]
    assert use.ranks.peak.tolist() == [400]
    assert use.ranks.unseen.tolist() == [400]
    (limitation,) = list_memory_limitations("a.sqlite", use)
    assert limitation.what == "memory allocated before the capture"
    assert "a.sqlite: " in limitation.reason


@pytest.mark.frameworks
def test_memory_events_written_by_pytorch_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rank0.pt.trace.json"
    subprocess.run(
        [get_python_with_torch(), "-c", RECORDED, str(file)], check=True, capture_output=True
    )
    report = bubbleviz.analyze(file, memory=True)
    assert report.memory is not None
    (forward,) = [kind for kind in report.memory.operations if kind.phase == Phase.F.label]
    (backward,) = [kind for kind in report.memory.operations if kind.phase == Phase.BW.label]
    one = 512 * 256 * 4

    # The input, and the results of linear and gelu in each layer.
    assert forward.held_bytes == forward.net_bytes == 9 * one
    assert backward.net_bytes < 0
    events = json.loads(file.read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e["name"] == "[memory]"]
    assert report.memory.ranks[0].peak_bytes == max(totals)
