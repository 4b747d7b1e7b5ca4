"""A fake GPU with streams and timing events. An event completes when the clock reaches its time.

It replaces ``torch.cuda`` for recorders. Operations that recorders must not use fail. Calls must
not block, and reading an incomplete event raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np

from tests.support.recorded_runs import Clock

#: Time from a launch to the start of its work on an idle stream, in ns.
LATENCY_NS = 2_000


class Stream:
    """A CUDA stream. ``free_ns`` is the true time at which all of the stream's work is done."""

    def __init__(self) -> None:
        self.free_ns = 0


class Event:
    """A timing event. ``at_ns`` is the true time at which its stream reaches the event."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.at_ns: int | None = None
        self.stream: Stream | None = None
        self.pending = False

    def record(self, stream: Stream) -> None:
        """Record the event on a stream. The event completes once all earlier work on it is done."""
        is_complete = self.at_ns is None or self.at_ns <= self._gpu.clock.now_ns
        assert is_complete or not self.pending, "an event is recorded again before it is complete"
        assert not self._gpu.capturing, "an event would become part of a CUDA graph"
        gpu = self._gpu
        self.at_ns = stream.free_ns = max(stream.free_ns, gpu.clock.now_ns + gpu.latency_ns(stream))
        self.stream, self.pending = stream, True
        gpu.recorded.append(self)

    def query(self) -> bool:
        assert self.at_ns is not None, "an event that was never recorded"
        self._gpu.queries += 1
        return self.at_ns <= self._gpu.clock.now_ns

    def elapsed_time(self, other: Event) -> float:
        """Return the time until another event, in ms on the device's clock, in single precision.

        Both events must be complete.
        """
        for event in (self, other):
            assert event.at_ns is not None
            assert event.at_ns <= self._gpu.clock.now_ns, "an event is read before it is complete"
            event.pending = False
        assert self.at_ns is not None
        assert other.at_ns is not None
        length_ns = (other.at_ns - self.at_ns) * (1 + self._gpu.drift)
        return float(np.float32(length_ns / 1e6))


class FakeGpu(ModuleType):
    """The part of ``torch.cuda`` that recorders use.

    Attributes:
        clock: Clock of the host, which is the true clock.
        drift: Drift of the device's clock relative to the true clock.
        made: All events in order of creation.
        recorded: The event of each ``record`` call, in order of the calls.
        queries: Number of times that events were queried.
        capturing: Whether launches are captured in a CUDA graph.
        own_latency_ns: Latency in ns of work on a stream that is not the current one.
    """

    def __init__(self, clock: Clock, drift: float = 0.0) -> None:
        super().__init__("torch.cuda")
        self.clock, self.drift = clock, drift
        self.made: list[Event] = []
        self.recorded: list[Event] = []
        self.queries = 0
        self.capturing = False
        self.own_latency_ns = LATENCY_NS
        self.stream = self.first = Stream()
        self.initialized = True

    def latency_ns(self, stream: Stream) -> int:
        return LATENCY_NS if stream is self.stream else self.own_latency_ns

    def launch(self, length_ns: int) -> tuple[int, int]:
        """Launch work on the current stream, and return its start and end in ns."""
        stream = self.stream
        start_ns = max(stream.free_ns, self.clock.now_ns + LATENCY_NS)
        stream.free_ns = start_ns + length_ns
        return start_ns, stream.free_ns

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        previous_stream, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = previous_stream

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self) -> Stream:
        return self.stream

    def get_device_name(self) -> str:
        return "Fake H100"

    def Stream(self) -> Stream:  # noqa: N802 - torch.cuda has it
        return Stream()

    def Event(self, *, enable_timing: bool) -> Event:  # noqa: N802 - likewise
        assert enable_timing
        self.made.append(Event(self))
        return self.made[-1]
