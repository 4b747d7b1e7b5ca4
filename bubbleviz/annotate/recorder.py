"""Recorder: divides the ranges of a process into iterations, and writes these when they are over.

Nothing here may cost a training run more than microseconds a range, and nothing may end it: what
fails is said once, and recording stops.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import get_ident
from typing import Any
from weakref import WeakSet

from bubbleviz import recording_layout as layout
from bubbleviz.annotate import part_files
from bubbleviz.annotate.part_files import Block, PartFiles
from bubbleviz.recording_layout import NONE

# Timing events: when a GPU began and ended what ranges launched, without waiting for it.
#
# A range is a pair of events on the stream that is current when it opens. They are taken from a
# pool, asked whether they are complete once an iteration, and read only then::
#
#     host     F ├─┤  BW ├──┤            next iteration: complete? read, and back to the pool
#     stream      ○████○  ○███████○
#
# An event tells nothing of the host's clock. So each iteration begins with one on a stream of its
# own, where nothing lies before it, and which the GPU reaches some microseconds after the host
# recorded it. It cannot be earlier, and where the GPU is late once, iterations before tell better.

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


#: Iterations that wait for a GPU at most, and seconds that the end of the recording does.
_MOST_PENDING, _LAST_WAIT_S = 64, 1.0
#: Operations that begin an iteration where no range does.
_FORWARDS = ("bubbleviz:F", "bubbleviz:FB")
#: An iteration holds so many operations at most, so that memory stays small.
_MOST_OPERATIONS = 1 << 17
#: What only hands data over needs no time of the device.
_SENDS = "bubbleviz:SEND_F", "bubbleviz:SEND_B"
#: What ends an iteration where no range does.
_OPTIMIZER = "bubbleviz:Optimizer"
_log = logging.getLogger("bubbleviz.annotate")


class Recorder:
    """A recording of this process; ``stop()`` ends it, and so does leaving ``with``.

    Nothing it does raises. It may be used from any thread.

    Args:
        folder: where the files are, one a rank.
        every: record some of so many iterations; 0 for all.
        iterations: how many of these, from the first on.
        limit_bytes: what the files of this rank hold at most; the oldest iterations make room.
        place: rank and world size; None for those of torch.distributed or the launcher.
        monotonic: the clock, in nanoseconds.
        utc: UTC, in nanoseconds since 1970.
        write: appends to a file, as ``os.write``.

    Attributes:
        folder: where the files are.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: int = 0,
        iterations: int = 1,
        limit_bytes: int,
        place: tuple[int, int] | None = None,
        monotonic: Callable[[], int] = time.monotonic_ns,
        utc: Callable[[], int] = time.time_ns,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self.folder = folder
        self._every, self._iterations, self._limit_bytes = every, iterations, limit_bytes
        self._place, self._monotonic, self._utc, self._write = place, monotonic, utc, write
        self._lock = threading.Lock()
        self._stopped = False
        self._block: Block | None = None
        #: Ranges of iterations that are open, and iterations so far.
        self._inside = self._count = 0
        self._pending: deque[Block] = deque()
        self._events: TimingEvents | None = None
        self._files: PartFiles | None = None
        _recorders.add(self)
        atexit.register(self.stop)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def active(self) -> bool:
        """Whether it still records."""
        return not self._stopped

    def open(
        self, name: str, *, launches: bool = False, iteration: int | None = None
    ) -> tuple[Any, ...] | Block | None:
        """Take the beginning of an operation or an iteration; return what :meth:`close` takes."""
        if self._stopped:
            return None
        try:
            if iteration is not None:
                with self._lock:
                    self._inside += 1
                    return self._next(iteration)
            block = self._block
            if block is None or (
                block.over and not self._inside and name.partition(" ")[0] in _FORWARDS
            ):
                with self._lock:
                    # Another thread may have come first.
                    later = self._block
                    block = self._next(None) if later is None or later is block else later
            if not block.recorded:
                return None
            events = None
            if block.on_device and self._events is not None:
                launches = launches or name.startswith(_SENDS)
                events = None if launches else self._events.open()
            return block, name, launches, events, self._monotonic()
        except Exception as error:  # no recording is worth a training run
            self._give_up(error)
            return None

    def close(self, opened: tuple[Any, ...] | Block | None) -> None:
        """Take the end of an operation or an iteration."""
        if opened is None or self._stopped:
            return
        end_ns = self._monotonic()
        try:
            if isinstance(opened, Block):
                with self._lock:
                    self._inside -= 1
                    opened.end_ns, opened.over = end_ns, True
                return
            block, name, launches, events, start_ns = opened
            if events is not None and self._events is not None:
                self._events.close(events)
            stamp = name, launches, get_ident(), start_ns, end_ns, events
            with self._lock:
                stamps = block.stamps
                if block is not self._block or len(stamps) >= _MOST_OPERATIONS:
                    # What is written cannot count it, the next iteration can.
                    if self._block is not None:
                        self._block.lost += 1
                    if events is not None and self._events is not None:
                        self._events.abandon(events[1:])
                else:
                    stamps.append(stamp)
                if block.number is None and name.startswith(_OPTIMIZER):
                    block.over = True
        except Exception as error:  # likewise
            self._give_up(error)

    def stop(self) -> None:
        """Write what is left, and record no more; work that the GPU has left has no times."""
        if self._stopped:
            return
        try:
            with self._lock:
                self._seal()
                until = time.monotonic() + _LAST_WAIT_S
                while self._write_ready() and time.monotonic() < until:
                    time.sleep(0.005)
                while self._pending:
                    self._append(self._pending.popleft())
        except Exception as error:  # likewise
            self._give_up(error)
        self._end()

    def _next(self, number: int | None) -> Block:
        """Begin an iteration; the one before is over."""
        before = self._block
        # A child of multiprocessing ends without atexit, and forgets what its parent registered.
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._count:
            util.Finalize(None, self.stop, exitpriority=0)
        self._seal()
        self._write_ready()
        ordinal = self._count if number is None else number
        self._count += 1
        recorded = self._every == 0 or ordinal % self._every < self._iterations
        paused = before is not None and not before.recorded
        block = Block(number, recorded, recorded and paused, self._monotonic())
        if recorded:
            cuda = getattr(sys.modules.get("torch"), "cuda", None)
            if self._events is None and cuda is not None and cuda.is_initialized():
                self._events = TimingEvents(cuda, self._monotonic)
            if self._events is not None:
                block.on_device = True
                self._events.begin(block)
        self._block = block
        return block

    def _seal(self) -> None:
        """End the iteration that runs."""
        block, self._block = self._block, None
        if block is None:
            return
        if block.end_ns == layout.NONE:
            block.end_ns = max(
                (stamp[part_files.END] for stamp in block.stamps), default=block.start_ns
            )
        if block.recorded and (block.stamps or block.number is not None):
            self._pending.append(block)

    def _write_ready(self) -> bool:
        """Write the iterations that are over, on the GPU too; tell whether others wait."""
        while self._pending:
            block = self._pending[0]
            if block.on_device and self._events and not self._events.read(block):
                if len(self._pending) <= _MOST_PENDING:
                    return True
                pairs = (
                    events[1:] for stamp in block.stamps if (events := stamp[part_files.EVENTS])
                )
                self._events.abandon([block.anchor, *(event for pair in pairs for event in pair)])
            self._append(self._pending.popleft())
        return False

    def _append(self, block: Block) -> None:
        if block.on_device and not block.spans:
            block.spans = [(layout.NONE, layout.NONE)] * len(block.stamps)
        if self._files is None:
            rank, world_size = self._place or part_files.place_of_process()
            self._files = PartFiles(
                self.folder,
                self._limit_bytes,
                self._write,
                place=(max(rank, 0), world_size),
                start_ns=self._monotonic(),
                sampled=(self._every, self._iterations if self._every else 0),
                device=None if self._events is None else self._events.name,
            )
        self._files.append(block, part_files.clock_pair(self._monotonic, self._utc))

    def _give_up(self, error: Exception) -> None:
        """Record no more, and say why, once."""
        if not self._stopped:
            self._end()
            _log.warning(
                "the recording to %s stops (%s: %s); training goes on, and what was written stays",
                *(self.folder, type(error).__name__, error),
            )

    def _end(self) -> None:
        self._stopped = True
        self._block, self._events = None, None
        self._pending.clear()
        atexit.unregister(self.stop)
        if self._files is not None:
            try:
                self._files.close()
            except OSError as error:
                _log.warning("the recording to %s may lack its end (%s)", self.folder, error)

    def _after_fork(self) -> None:
        """Leave the files to the parent, if it has begun; a child that trains has its own."""
        self._lock = threading.Lock()
        if self._block is not None or self._files is not None:
            self._stopped, self._files = True, None

    @classmethod
    def after_fork(cls) -> None:
        """Have all recorders leave their files to the parent."""
        for recorder in list(_recorders):
            recorder._after_fork()


_recorders: WeakSet[Recorder] = WeakSet()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Recorder.after_fork)
