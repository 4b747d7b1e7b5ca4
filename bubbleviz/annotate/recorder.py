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
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any
from weakref import WeakSet

from bubbleviz import recording_layout as layout
from bubbleviz.annotate import part_files
from bubbleviz.annotate.part_files import Block, PartFiles
from bubbleviz.annotate.timing_events import TimingEvents

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
