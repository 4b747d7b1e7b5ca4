"""Memory of operations against a plain reading of the events, one after the other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import bubbleviz
from bubbleviz.interpret.memory import limitations_of_memory, memory_use
from bubbleviz.model.memory_sizes import MemoryEvents
from bubbleviz.model.operations import OperationKeys
from bubbleviz.model.phases import Phase
from tests.support.pytorch import python_with_torch

#: Allocates four layers of 512 x 256 floats twice a forward, as a chain of linear layers and gelu.
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


def keys_of(names: list[tuple[Phase, int]], length: int = 100) -> OperationKeys:
    """Return operations of one rank, one behind the other."""
    count = len(names)
    none = np.full(count, -1)
    start = np.arange(count) * length
    return OperationKeys(
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


allocations = st.lists(
    st.tuples(st.integers(0, 590), st.integers(1, 600), st.integers(1, 50)), max_size=20
)


@given(allocations)
def test_memory_is_that_of_a_plain_reading(given: list[tuple[int, int, int]]) -> None:
    names = [(Phase.F, 0), (Phase.F, 1), (Phase.B, 0), (Phase.W, 0), (Phase.B, 1), (Phase.W, 1)]
    keys = keys_of(names)
    rows = sorted(
        (time, address, change)
        for address, (start, length, size) in enumerate(given, 1)
        for time, change in ((start, size), (start + length, -size))
        if time < 600
    )
    if not rows:
        return
    time, address, change = np.array(rows, np.int64).T.copy()
    thread = np.full(len(rows), 7 << 24)
    events = MemoryEvents(
        time.copy(), thread, np.zeros_like(time), address.copy(), change.copy(),
        np.full(len(rows), -1),
    )  # fmt: skip
    use = memory_use(events, keys, np.array([[7, 0]]), NoLayers())  # type: ignore[arg-type]
    assert use is not None

    def operation_at(instant: int) -> int | None:
        return instant // 100 if instant % 100 <= 90 and instant < 600 else None

    held = dict.fromkeys((0, 1), 0)
    kept = dict.fromkeys((0, 1), 0)
    backward, weight = {0: 2, 1: 4}, {0: 3, 1: 5}
    for start, length, size in given:
        forward = operation_at(start)
        if forward not in held or start + length >= 600:
            continue
        freed, b, w = start + length, backward[forward], weight[forward]
        by_b = freed <= (b + 1) * 100 or b == 5
        by_w = freed <= (w + 1) * 100 or w == 5
        if freed >= b * 100 and (by_b or by_w):
            held[forward] += size
            kept[forward] += 0 if by_b else size
    table = use.operations
    forwards = table.take(table.phase == Phase.F)
    assert forwards.held.tolist() == [np.median(list(held.values()))]
    assert forwards.kept.tolist() == [np.median(list(kept.values()))]
    level, peak = 0, 0
    for _, _, amount in rows:
        level += amount
        peak = max(peak, level)
    assert max(use.ranks.peak.tolist()[0], 0) == peak


def events_of(changes: list[tuple[int, int]], totals: list[int] | None = None) -> MemoryEvents:
    """Return events of a rank: when, and how many bytes, each at an address of its own."""
    time, change = np.array(changes, np.int64).T.copy()
    none = np.full(len(time), -1)
    total = none.copy() if totals is None else np.array(totals, np.int64)
    address = np.arange(len(time))
    return MemoryEvents(
        time, np.full(len(time), 7 << 24), np.zeros_like(time), address, change.copy(), total
    )


def test_memory_of_before_the_capture_is_never_less_than_nothing() -> None:
    keys = keys_of([(Phase.F, 0), (Phase.B, 0)])
    use = memory_use(
        events_of([(5, -300), (10, 100), (50, -200)]),
        keys,
        np.array([[7, 0]]),
        NoLayers(),  # type: ignore[arg-type]
    )
    assert use is not None

    # 400 were there before: after the last event, nothing is left of what is known.
    assert use.ranks.resident.tolist() == [400]
    assert use.ranks.peak.tolist() == [400]
    assert use.ranks.unseen.tolist() == [400]
    (limitation,) = limitations_of_memory("a.sqlite", use)
    assert limitation.what == "memory allocated before the capture"
    assert "a.sqlite: " in limitation.reason


def test_memory_events_of_pytorch_itself(tmp_path: Path) -> None:
    file = tmp_path / "rank0.pt.trace.json"
    subprocess.run(
        [python_with_torch(), "-c", RECORDED, str(file)], check=True, capture_output=True
    )
    report = bubbleviz.analyze(file, memory=True)
    assert report.memory is not None
    (forward,) = [kind for kind in report.memory.operations if kind.phase == Phase.F.label]
    (backward,) = [kind for kind in report.memory.operations if kind.phase == Phase.BW.label]
    one = 512 * 256 * 4

    # The input, and of each layer the results of linear and of gelu.
    assert forward.held_bytes == forward.net_bytes == 9 * one
    assert backward.net_bytes < 0
    events = json.loads(file.read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e["name"] == "[memory]"]
    assert report.memory.ranks[0].peak_bytes == max(totals)
