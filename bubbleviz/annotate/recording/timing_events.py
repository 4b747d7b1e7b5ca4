"""Timing events: when a GPU began and ended what ranges launched, without waiting for it.

A range is a pair of events on the stream that is current when it opens. They are taken from a pool,
asked whether they are complete once an iteration, and read only then::

    host     F ├─┤  BW ├──┤            next iteration: complete? read, and back to the pool
    stream      ○████○  ○███████○

An event tells nothing of the host's clock. So each iteration begins with one on a stream of its
own, where nothing lies before it, and which the GPU reaches some microseconds after the host
recorded it. It cannot be earlier, and where the GPU is late once, iterations before tell better.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from bubbleviz.annotate.recording.blocks import EVENTS, Block
from bubbleviz.recording_layout import NONE

#: Events that a process has at most; ranges beyond go without times of the device.
MOST_EVENTS = 1 << 14
#: By how much a GPU's clock and the host's may drift apart.
_DRIFT = 50e-6


class TimingEvents:
    """Events of one GPU, and its clock against the host's.

    Args:
        cuda: ``torch.cuda``, initialised.
        monotonic: the host's clock.
        most: how many events there are at most.
    """

    def __init__(
        self, cuda: Any, monotonic: Callable[[], int] = time.monotonic_ns, most: int = MOST_EVENTS
    ) -> None:
        self._cuda, self._monotonic, self._most = cuda, monotonic, most
        self._own_stream = cuda.Stream()
        self._free: list[Any] = []
        self._made = 0
        #: Events that nobody will read; they are used again once they are complete.
        self._abandoned: deque[Any] = deque()
        #: The anchor that was read last, and its time on the device, counted from the first one.
        self._last: Any = None
        self._last_ns = 0
        #: The host's clock less the device's, and the time on the device from which that is.
        self._offset: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Name of the GPU."""
        return str(self._cuda.get_device_name())

    def begin(self, block: Block) -> None:
        """Record the anchor of a block."""
        event = None if self._cuda.is_current_stream_capturing() else self._taken()
        if event is not None:
            block.start_ns = self._monotonic()
            event.record(self._own_stream)
        block.anchor = event

    def open(self) -> tuple[Any, Any, Any] | None:
        """Record the beginning of a range; None where there is no event to do so.

        Returns:
            The stream, and two events, of which the second waits for :meth:`close`.
        """
        if self._cuda.is_current_stream_capturing():
            return None
        first, second = self._taken(), self._taken()
        if second is None:
            if first is not None:
                self._free.append(first)
            return None
        stream = self._cuda.current_stream()
        first.record(stream)
        return stream, first, second

    def close(self, opened: tuple[Any, Any, Any]) -> None:
        """Record the end of a range, on the stream that it began on."""
        opened[2].record(opened[0])

    def read(self, block: Block) -> bool:
        """Fill in the spans of a block, and tell whether its events are all complete.

        Nothing is read before it is, and nothing waits.
        """
        while self._abandoned and self._abandoned[0].query():
            self._free.append(self._abandoned.popleft())
        pairs = [events for stamp in block.stamps if (events := stamp[EVENTS]) is not None]
        if block.anchor is None:
            if not all(pair[2].query() for pair in reversed(pairs)):
                return False
            block.spans = [(NONE, NONE)] * len(block.stamps)
        else:
            # The latest first, since it is the one that is not.
            if not (all(p[2].query() for p in reversed(pairs)) and block.anchor.query()):
                return False
            since_anchor, anchor_ns = block.anchor.elapsed_time, self._anchored(block)
            block.spans = spans = []
            for stamp in block.stamps:
                events = stamp[EVENTS]
                if events is None:
                    spans.append((NONE, NONE))
                    continue
                # Milliseconds; rounding keeps their order.
                start_ns = anchor_ns + round(since_anchor(events[1]) * 1e6)
                end_ns = anchor_ns + round(since_anchor(events[2]) * 1e6)
                spans.append((start_ns, max(start_ns, end_ns)))
        for pair in pairs:
            self._free += pair[1:]
        return True

    def abandon(self, events: Iterable[Any]) -> None:
        """Take events that nobody will read."""
        self._abandoned.extend(event for event in events if event is not None)

    def _taken(self) -> Any:
        """Return an event of the pool, a new one if it is empty; None where there are enough."""
        try:
            return self._free.pop()
        except IndexError:
            if self._made >= self._most:
                return None
            self._made += 1
            return self._cuda.Event(enable_timing=True)

    def _anchored(self, block: Block) -> int:
        """Return when the anchor of a block was reached, on the host's clock.

        The device's clock less the host's is known from one side: the anchor was reached after it
        was recorded. The closest so far holds, less what clocks may drift since::

            device    ─────○───────────○──────────────────○────
            host      ────│┤──────────│┤─────────│────────┤────   recorded, reached
                          close       close      late: as those before say
        """
        if self._last is not None:
            self._last_ns += round(self._last.elapsed_time(block.anchor) * 1e6)
            self._free.append(self._last)
        self._last, at_ns = block.anchor, self._last_ns
        offset_ns = block.start_ns - at_ns
        if self._offset is not None:
            before_ns, since_ns = self._offset
            offset_ns = max(offset_ns, before_ns - int((at_ns - since_ns) * _DRIFT))
        self._offset = offset_ns, at_ns
        block.device_ns = offset_ns
        return at_ns + offset_ns
