"""Use timing events to measure when a GPU runs a range's work, without waiting for the GPU.

Each range records two events on the stream that is current when the range opens. The events come
from a pool. All events in an iteration are polled together, and are read once all of them are
complete::

    host     F ├─┤  BW ├──┤            next iteration: complete? read, and back to the pool
    stream      ○████○  ○███████○

Event times are not on the host's clock. Each iteration therefore starts with an anchor, which is an
event on an otherwise empty stream. The GPU reaches an anchor a few microseconds after the host has
recorded the anchor, but never before. If the GPU reaches an anchor late, earlier iterations'
anchors are used, because they are more accurate.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from bubbleviz.annotate import part_files
from bubbleviz.annotate.part_files import Block
from bubbleviz.recording_layout import NONE

#: Maximum number of timing events per process. When all events are in use, ranges do not get device
#: times.
MAX_EVENTS = 1 << 14
#: Maximum relative drift between the clocks of the GPU and the host.
_MAX_DRIFT = 50e-6


class TimingEvents:
    """A pool of timing events on one GPU, which also measures the GPU's clock offset.

    Args:
        cuda: The module ``torch.cuda``, which must be initialized.
        monotonic: Function that returns the time of the host's monotonic clock in ns.
        max_events: Maximum number of timing events.
    """

    def __init__(
        self,
        cuda: Any,
        monotonic: Callable[[], int] = time.monotonic_ns,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self._cuda, self._monotonic, self._max_events = cuda, monotonic, max_events
        self._anchor_stream = cuda.Stream()
        self._free: list[Any] = []
        self._n_events = 0
        #: Events that will not be read, but will return to the pool once they are complete.
        self._abandoned: deque[Any] = deque()
        #: The most recently read anchor, and its device time in ns since the first anchor.
        self._last: Any = None
        self._last_ns = 0
        #: Host clock minus device clock in ns, and the device time at which this offset was
        #: determined.
        self._offset: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Name of the GPU."""
        return str(self._cuda.get_device_name())

    def begin(self, block: Block) -> None:
        """Record the anchor of a block.

        The block does not get an anchor if a CUDA graph is being captured or no event is available.
        """
        event = None if self._cuda.is_current_stream_capturing() else self._take_event()
        if event is not None:
            block.start_ns = self._monotonic()
            event.record(self._anchor_stream)
        block.anchor = event

    def open(self) -> tuple[Any, Any, Any] | None:
        """Take two events from the pool, and record the start of a range on the current stream.

        Returns:
            The stream, the recorded event, and an unrecorded event for :meth:`close`. None if fewer
            than two events are available or a CUDA graph is being captured.
        """
        if self._cuda.is_current_stream_capturing():
            return None
        first, second = self._take_event(), self._take_event()
        if second is None:
            if first is not None:
                self._free.append(first)
            return None
        stream = self._cuda.current_stream()
        first.record(stream)
        return stream, first, second

    def close(self, opened: tuple[Any, Any, Any]) -> None:
        """Record the end of a range, on the stream on which the range started.

        Args:
            opened: Result of :meth:`open`.
        """
        opened[2].record(opened[0])

    def read(self, block: Block) -> bool:
        """Set the device times of a block's operations if all events of the block are complete.

        The call never waits for the GPU. Times are -1 (unknown) for operations without events, and
        for all operations if the block has no anchor. After a successful read, the events of the
        operations return to the pool.

        Args:
            block: Block whose ``spans`` are set.

        Returns:
            Whether all events were complete. If the result is False, the block was not changed.
        """
        while self._abandoned and self._abandoned[0].query():
            self._free.append(self._abandoned.popleft())
        all_events = [stamp[part_files.EVENTS_INDEX] for stamp in block.stamps]
        anchor = block.anchor
        pairs = [events for events in all_events if events is not None]
        # The events are checked in reverse order, because the last one completes last.
        complete = all(pair[2].query() for pair in reversed(pairs))
        if not complete or (anchor is not None and not anchor.query()):
            return False
        block.spans = [(NONE, NONE)] * len(all_events)
        if anchor is not None:
            anchor_ns = self._locate_anchor(block)
            for index, events in enumerate(all_events):
                if events is not None:
                    # Convert ms to ns. Rounding is monotonic, so the order of events is preserved.
                    start_ns = anchor_ns + round(anchor.elapsed_time(events[1]) * 1e6)
                    end_ns = anchor_ns + round(anchor.elapsed_time(events[2]) * 1e6)
                    block.spans[index] = start_ns, max(start_ns, end_ns)
        for pair in pairs:
            self._free += pair[1:]
        return True

    def abandon(self, events: Iterable[Any]) -> None:
        """Give up events that will not be read. Complete events return to the pool later.

        Args:
            events: Recorded events. None entries are ignored.
        """
        self._abandoned.extend(event for event in events if event is not None)

    def _take_event(self) -> Any:
        """Return an event from the pool, or a new one. None if ``max_events`` are in use."""
        if self._free:
            return self._free.pop()
        if self._n_events >= self._max_events:
            return None
        self._n_events += 1
        return self._cuda.Event(enable_timing=True)

    def _locate_anchor(self, block: Block) -> int:
        """Estimate the host time at which the GPU reached the anchor of a block.

        The result is the device time of the anchor plus the offset (host clock minus device clock).
        The GPU reaches an anchor after the host has recorded it, so the host's recording time minus
        the anchor's device time is a lower bound on the offset. To allow for clock drift, the
        previous estimate is reduced by ``_MAX_DRIFT`` times the elapsed time. The new estimate is
        the larger of the reduced estimate and the bound::

            device    ─────○───────────○──────────────────○────
            host      ────│┤──────────│┤─────────│────────┤────   recorded, reached
                              close       close      late: the earlier bound is used
        """
        if self._last is not None:
            self._last_ns += round(self._last.elapsed_time(block.anchor) * 1e6)
            self._free.append(self._last)
        self._last, anchor_ns = block.anchor, self._last_ns
        offset_ns = block.start_ns - anchor_ns
        if self._offset is not None:
            last_offset_ns, measured_at_ns = self._offset
            offset_ns = max(
                offset_ns, last_offset_ns - int((anchor_ns - measured_at_ns) * _MAX_DRIFT)
            )
        self._offset = offset_ns, anchor_ns
        block.device_offset_ns = offset_ns
        return anchor_ns + offset_ns
