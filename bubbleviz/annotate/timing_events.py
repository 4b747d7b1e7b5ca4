"""Timing events: when a GPU began and ended the work that ranges launched, without waiting for it.

A range is a pair of events on the stream that is current when it opens. The events come from a
pool. Once per iteration they are checked for completion, and only then read::

    host     F ├─┤  BW ├──┤            next iteration: complete? read, and back to the pool
    stream      ○████○  ○███████○

Events have no relation to the host's clock. Each iteration therefore begins with an anchor: an
event on an otherwise empty stream, which the GPU reaches a few microseconds after the host recorded
it, never before. If the GPU is late once, the anchors of earlier iterations are more accurate.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from bubbleviz.annotate import part_files
from bubbleviz.annotate.part_files import Block
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
        every, anchor = [stamp[part_files.EVENTS] for stamp in block.stamps], block.anchor
        pairs = [events for events in every if events is not None]
        # The latest first, since it is the one that is not.
        complete = all(pair[2].query() for pair in reversed(pairs))
        if not complete or (anchor is not None and not anchor.query()):
            return False
        block.spans = [(NONE, NONE)] * len(every)
        if anchor is not None:
            anchor_ns = self._anchored(block)
            for at, events in enumerate(every):
                if events is not None:
                    # Milliseconds; rounding keeps their order.
                    start_ns = anchor_ns + round(anchor.elapsed_time(events[1]) * 1e6)
                    end_ns = anchor_ns + round(anchor.elapsed_time(events[2]) * 1e6)
                    block.spans[at] = start_ns, max(start_ns, end_ns)
        for pair in pairs:
            self._free += pair[1:]
        return True

    def abandon(self, events: Iterable[Any]) -> None:
        """Take events that nobody will read."""
        self._abandoned.extend(event for event in events if event is not None)

    def _taken(self) -> Any:
        """Return an event of the pool, a new one if it is empty; None where there are enough."""
        if self._free:
            return self._free.pop()
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
