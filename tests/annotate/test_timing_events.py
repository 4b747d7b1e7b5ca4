"""GPU times measured with events are correct, use the right stream, and never block."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import bubbleviz
from bubbleviz.annotate import recorder as recorder_module
from bubbleviz.annotate.recorder import Recorder
from bubbleviz.annotate.timing_events import TimingEvents
from bubbleviz.sources.operations.jsonl.parts import RecordedOperations
from bubbleviz.sources.operations.jsonl.sessions import RecordedSession, read_session
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.fake_gpu import LATENCY_NS, FakeGpu, Stream
from tests.support.recorded_runs import UPTIME_NS, Clock, get_range_name

Started = tuple[Recorder, FakeGpu, Clock]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Started]:
    """Return a function that starts a recording of a process with a GPU."""

    def start(drift: float = 0.0, rank: int = 0, ranks: int = 1) -> Started:
        clock = Clock()
        gpu = FakeGpu(clock, drift)
        torch = ModuleType("torch")
        torch.cuda = gpu  # type: ignore[attr-defined]  # a fake
        monkeypatch.setitem(sys.modules, "torch", torch)
        recorder = Recorder(
            tmp_path,
            limit_bytes=1 << 24,
            place=(rank, ranks),
            monotonic=clock.monotonic,
            utc=clock.utc,
        )
        return recorder, gpu, clock

    return start


def stopped(recorder: Recorder, clock: Clock, folder: Path) -> RecordedOperations:
    """End a recording after the device has finished, and return its operations."""
    clock.now_ns += 10_000_000
    recorder.stop()
    return session(folder).stretch.operations


def session(folder: Path) -> RecordedSession:
    return read_session(str(folder / "rank-00000.bvrec"), lambda _: None)


def operate(recorder: Recorder, gpu: FakeGpu, name: str, length_ns: int) -> tuple[int, int]:
    """Run one operation whose launch takes one microsecond, and return its true times."""
    opened = recorder.open(f"bubbleviz:{name}")
    gpu.clock.now_ns += 500
    times = gpu.launch(length_ns)
    gpu.clock.now_ns += 500
    recorder.close(opened)
    return times


def iterate(
    recorder: Recorder, gpu: FakeGpu, number: int, host_ns: int = 60_000
) -> list[tuple[int, int]]:
    """Run an iteration of four operations with 100 us of work, and return their true times."""
    around = recorder.open("", iteration=number)
    times = [
        operate(recorder, gpu, f"{phase} mb={microbatch}", length_ns)
        for phase, length_ns in (("F", 20_000), ("BW", 30_000))
        for microbatch in range(2)
    ]
    gpu.clock.now_ns += host_ns
    recorder.close(around)
    return times


@pytest.mark.parametrize("drift", [0.0, 20e-6, -20e-6])
def test_times_are_measured_on_the_device(
    drift: float, started: Callable[..., Started], tmp_path: Path
) -> None:
    recorder, gpu, clock = started(drift)
    true = []
    for number in range(300):
        true += iterate(recorder, gpu, number, host_ns=200_000)
    operations = stopped(recorder, clock, tmp_path)

    assert not operations.times_lost.any()
    start_ns, end_ns = np.array(true).T + UPTIME_NS
    # A range begins with its event, which is recorded before the kernel is launched.
    early_ns = start_ns - operations.start_ns
    assert early_ns.max() <= LATENCY_NS + 1_000
    assert early_ns.min() >= -500
    assert np.abs(operations.end_ns - end_ns).max() <= LATENCY_NS + 500
    assert operations.host_start_ns.min() >= UPTIME_NS
    header = session(tmp_path).header
    assert header.on_gpu
    assert header.device == "Fake H100"


def test_events_of_a_device_that_lags_behind_are_read_iterations_later(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    """The host runs ahead. No event is queried twice in a row, and none is read too early."""
    recorder, gpu, clock = started()
    true = []
    for number in range(20):
        true += iterate(recorder, gpu, number, host_ns=0)
    iterations = session(tmp_path).stretch.iterations if list(tmp_path.iterdir()) else ()
    assert len(iterations) < 10
    operations = stopped(recorder, clock, tmp_path)

    assert len(operations) == 80
    end_ns = np.array(true)[:, 1] + UPTIME_NS
    assert np.abs(operations.end_ns - end_ns).max() <= LATENCY_NS + 500
    lengths = (operations.end_ns - operations.start_ns)[1:]
    assert np.abs(lengths - np.array([b - a for a, b in true])[1:]).max() <= 100


def test_events_are_reused(started: Callable[..., Started]) -> None:
    recorder, gpu, _ = started()
    for number in range(1_000):
        iterate(recorder, gpu, number, host_ns=100_000)
    # An iteration records eight events and an anchor.
    # Events are reused, so at most three times as many exist.
    assert len(gpu.recorded) == 1_000 * 9
    assert len(gpu.made) <= 3 * 9
    assert gpu.queries <= 1_000 * 8
    recorder.stop()
    assert not recorder.active


def test_a_stuck_device_needs_no_more_events_than_the_pool(
    started: Callable[..., Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_STOP_TIMEOUT_S", 0.05)
    recorder, gpu, clock = started()
    recorder._events = TimingEvents(gpu, clock.monotonic, max_events=50)
    gpu.launch(10**15)
    start_s = time.monotonic()
    for number in range(500):
        iterate(recorder, gpu, number)
    recorder.stop()

    assert time.monotonic() - start_s < 5
    assert len(gpu.made) <= 50
    recorded = session(tmp_path)
    assert len(recorded.stretch.iterations) == 500
    assert recorded.stretch.operations.times_lost.all()
    assert (recorded.stretch.operations.host_end_ns > 0).all()


def test_events_are_recorded_on_the_stream_that_runs_the_work(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    recorder, gpu, clock = started()
    streams = [gpu.first, Stream(), Stream()]
    around = recorder.open("", iteration=0)
    own = gpu.recorded[0].stream
    assert own not in streams
    for number, stream in enumerate(streams):
        with gpu.on(stream):
            opened = recorder.open(f"bubbleviz:F mb={number}")
            # Changing the stream inside a range does not move the end of the range.
            with gpu.on(streams[0]):
                gpu.launch(1_000)
            gpu.launch(5_000)
            recorder.close(opened)
    recorder.close(around)
    assert [event.stream for event in gpu.recorded[1:]] == [s for s in streams for _ in range(2)]
    assert len(stopped(recorder, clock, tmp_path)) == 3


def test_a_late_anchor_does_not_shift_times(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    """With one hardware queue, a late anchor on another stream is worse than an earlier anchor."""
    recorder, gpu, clock = started()
    true = []
    for number in range(40):
        gpu.own_latency_ns = 3_000_000 if number % 4 else LATENCY_NS
        true += iterate(recorder, gpu, number, host_ns=200_000)
    operations = stopped(recorder, clock, tmp_path)

    off_ns = np.abs(operations.end_ns - np.array(true)[:, 1] - UPTIME_NS)
    # The error is at most 50 ppm of the time since an anchor that was not late.
    assert off_ns.max() <= LATENCY_NS + 500 + 4 * 300_000 * 50e-6


@pytest.mark.parametrize(("state", "is_used_before"), [("capturing", True), ("initialized", False)])
def test_a_captured_graph_and_an_unused_gpu_get_no_events(
    state: str, is_used_before: bool, started: Callable[..., Started], tmp_path: Path
) -> None:
    recorder, gpu, clock = started()
    for number, value in enumerate((is_used_before, not is_used_before)):
        setattr(gpu, state, value)
        iterate(recorder, gpu, number)
        clock.now_ns += 1_000_000
    operations = stopped(recorder, clock, tmp_path)

    assert (operations.start_ns != -1).tolist() == [False] * 4 + [True] * 4
    # Events inside a CUDA graph are lost.
    is_lost = [state == "capturing"] * 4 + [False] * 4
    assert operations.times_lost.tolist() == is_lost


def test_a_device_that_fails_ends_the_recording_and_nothing_else(
    started: Callable[..., Started], caplog: pytest.LogCaptureFixture
) -> None:
    recorder, gpu, _ = started()
    iterate(recorder, gpu, 0)

    def fails() -> Stream:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    gpu.current_stream = fails  # type: ignore[method-assign]  # a broken device
    iterate(recorder, gpu, 1)
    iterate(recorder, gpu, 2)

    assert not recorder.active
    (message,) = caplog.messages
    assert "illegal memory access" in message


def test_a_run_recorded_on_gpus_gives_the_planted_numbers(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    truth = plant(
        replace(Planting(), jitter=0.1, transfer_ns=20_000, communication=False, iterations=4),
        tmp_path / "planted",
    )
    for rank in range(4):
        recorder, gpu, clock = started(drift=(rank - 2) * 5e-6, rank=rank, ranks=4)
        operations_of_rank = [
            o for o in truth.operations if o.rank == rank and o.start_ns is not None
        ]
        around, current = None, None
        for operation in sorted(operations_of_rank, key=lambda o: o.start_ns or 0):
            assert operation.start_ns is not None
            assert operation.end_ns is not None
            clock.now_ns = operation.start_ns - LATENCY_NS
            if operation.iteration != current:
                recorder.close(around)
                current = operation.iteration
                around = recorder.open("", iteration=current)
            opened = recorder.open(get_range_name(operation))
            gpu.launch(operation.end_ns - operation.start_ns)
            recorder.close(opened)
        recorder.close(around)
        clock.now_ns += 50_000_000
        recorder.stop()

    report = bubbleviz.analyze([str(tmp_path / "*.bvrec")])

    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        for name, ratio in iteration.ratios.items():
            assert ratio.value == pytest.approx(true.bubble_ratio[name], abs=5e-4)
    assert "no idle time is attributed to the host" not in str(report.limitations)
