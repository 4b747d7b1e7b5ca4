"""The recorder, which groups the ranges of a process into iterations and writes them to files.

The recorder must not slow down training by more than a few microseconds per range, and must never
make training fail. After an error, the recorder logs one warning and stops recording.
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

#: Maximum number of queued iterations whose GPU work is not complete. ``_STOP_TIMEOUT_S`` is the
#: maximum time in seconds that ``Recorder.stop`` waits for the GPU.
_MAX_PENDING, _STOP_TIMEOUT_S = 64, 1.0
#: Names of operations that start an iteration when no range marks iterations.
_FORWARDS = ("bubbleviz:F", "bubbleviz:FB")
#: Maximum number of operations recorded per iteration, to limit memory use.
_MAX_OPERATIONS = 1 << 17
#: Names of operations that only start a data transfer. They are not timed on the GPU.
_SENDS = "bubbleviz:SEND_F", "bubbleviz:SEND_B"
#: Name of the operation that ends an iteration when no range marks iterations.
_OPTIMIZER = "bubbleviz:Optimizer"
_log = logging.getLogger("bubbleviz.annotate")


class Recorder:
    """The recording of this process. It ends with ``stop()`` or at the end of a ``with`` block.

    No method raises an error. All methods may be called from any thread.

    Args:
        folder: Folder for the files. Ranks may share a folder.
        every: Length of a cycle in iterations. Only the first ``iterations`` iterations of each
            cycle are recorded. If ``every`` is 0, all iterations are recorded.
        iterations: Number of iterations to record per cycle.
        limit_bytes: Maximum total size of this rank's files. When the limit is reached, the oldest
            iterations are deleted.
        place: Rank and world size, or None to get them from torch.distributed or the launcher.
        monotonic: Function that returns the time of the monotonic clock in ns.
        utc: Function that returns UTC in ns since 1970.
        write: Function that appends to a file, with the interface of ``os.write``.

    Attributes:
        folder: Folder for the files.
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
        self._rank_and_size = place
        self._monotonic, self._utc, self._write = monotonic, utc, write
        self._lock = threading.Lock()
        self._stopped = False
        self._block: Block | None = None
        #: Number of open iteration ranges, and number of iterations started so far.
        self._n_open_iterations = self._count = 0
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
        """Whether the recording has not been stopped."""
        return not self._stopped

    def open(
        self, name: str, *, launches: bool = False, iteration: int | None = None
    ) -> tuple[Any, ...] | Block | None:
        """Record the start of an operation or iteration, and return a handle for :meth:`close`.

        An iteration range always starts a new iteration, and so does the first operation. After
        that, a forward starts a new iteration if the current iteration is complete and no iteration
        range is open.

        Args:
            name: Name of the operation.
            launches: Whether the operation only starts transfers.
            iteration: Number of the iteration, or None if the range is an operation.

        Returns:
            For an iteration, its block. For an operation, the tuple (block, name, whether it only
            starts transfers, timing events, start time). None if the range is not recorded.
        """
        if self._stopped:
            return None
        try:
            if iteration is not None:
                with self._lock:
                    self._n_open_iterations += 1
                    return self._start_iteration(iteration)
            block = self._block
            if block is None or (
                block.is_complete
                and not self._n_open_iterations
                and name.partition(" ")[0] in _FORWARDS
            ):
                with self._lock:
                    # Another thread may already have started the next iteration.
                    newest = self._block
                    block = (
                        self._start_iteration(None) if newest is None or newest is block else newest
                    )
            if not block.is_recorded:
                return None
            events = None
            if block.on_device and self._events is not None:
                launches = launches or name.startswith(_SENDS)
                events = None if launches else self._events.open()
            return block, name, launches, events, self._monotonic()
        except Exception as error:  # a recording must never end the training run
            self._stop_after_error(error)
            return None

    def close(self, opened: tuple[Any, ...] | Block | None) -> None:
        """Record the end of an operation or an iteration.

        An operation is dropped if the next iteration started before the operation ended, or if its
        iteration already has ``_MAX_OPERATIONS`` operations. The dropped operation is counted in
        whichever iteration is current at the time.

        The end of an iteration range completes the iteration. An iteration without a range is
        completed by the end of its optimizer step.

        Args:
            opened: Handle returned by :meth:`open`.
        """
        if opened is None or self._stopped:
            return
        end_ns = self._monotonic()
        try:
            if isinstance(opened, Block):
                with self._lock:
                    self._n_open_iterations -= 1
                    opened.end_ns, opened.is_complete = end_ns, True
                return
            block, name, launches, events, start_ns = opened
            if events is not None and self._events is not None:
                self._events.close(events)
            stamp = name, launches, get_ident(), start_ns, end_ns, events
            with self._lock:
                stamps = block.stamps
                if block is not self._block or len(stamps) >= _MAX_OPERATIONS:
                    # The operation's iteration may already have been written, so the loss is
                    # counted in the current one.
                    if self._block is not None:
                        self._block.n_lost += 1
                    if events is not None and self._events is not None:
                        self._events.abandon(events[1:])
                else:
                    stamps.append(stamp)
                if block.number is None and name.startswith(_OPTIMIZER):
                    block.is_complete = True
        except Exception as error:  # see open()
            self._stop_after_error(error)

    def stop(self) -> None:
        """Write the remaining iterations, then stop recording. Further calls have no effect.

        The method waits up to ``_STOP_TIMEOUT_S`` seconds for the GPU. Iterations whose GPU work is
        still not complete are written without device times.
        """
        if self._stopped:
            return
        try:
            with self._lock:
                self._close_iteration()
                deadline = time.monotonic() + _STOP_TIMEOUT_S
                while self._write_ready() and time.monotonic() < deadline:
                    time.sleep(0.005)
                while self._pending:
                    self._append_to_files(self._pending.popleft())
        except Exception as error:  # see open()
            self._stop_after_error(error)
        self._end()

    def _start_iteration(self, number: int | None) -> Block:
        """Close the current iteration, and start the next one.

        The next iteration is recorded if ``every`` is 0 or ``number % every < iterations``. If
        ``number`` is None, the number of iterations started so far is used instead. The operations
        of a recorded iteration are timed on the GPU if PyTorch has initialized CUDA.

        Args:
            number: Number of the iteration, or None if no range marks the iteration.
        """
        previous = self._block
        # Child processes started by multiprocessing run neither atexit functions nor finalizers
        # that the parent registered.
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._count:
            util.Finalize(None, self.stop, exitpriority=0)
        self._close_iteration()
        self._write_ready()
        ordinal = self._count if number is None else number
        self._count += 1
        is_recorded = self._every == 0 or ordinal % self._every < self._iterations
        was_paused = previous is not None and not previous.is_recorded
        block = Block(number, is_recorded, is_recorded and was_paused, self._monotonic())
        if is_recorded:
            cuda = getattr(sys.modules.get("torch"), "cuda", None)
            if self._events is None and cuda is not None and cuda.is_initialized():
                self._events = TimingEvents(cuda, self._monotonic)
            if self._events is not None:
                block.on_device = True
                self._events.begin(block)
        self._block = block
        return block

    def _close_iteration(self) -> None:
        """Close the current iteration, and queue it for writing.

        An iteration without a range ends with its last operation. An iteration is dropped instead
        of queued if it is not recorded, or if it has neither operations nor a number.
        """
        block, self._block = self._block, None
        if block is None:
            return
        if block.end_ns == layout.NONE:
            block.end_ns = max(
                (stamp[part_files.END_INDEX] for stamp in block.stamps), default=block.start_ns
            )
        if block.is_recorded and (block.stamps or block.number is not None):
            self._pending.append(block)

    def _write_ready(self) -> bool:
        """Write the queued iterations whose GPU work is complete, oldest first.

        Writing stops at the first iteration whose GPU work is not complete, unless more than
        ``_MAX_PENDING`` iterations are queued. In that case the iteration is written without device
        times, and writing continues.

        Returns:
            Whether iterations are still queued.
        """
        while self._pending:
            block = self._pending[0]
            if block.on_device and self._events and not self._events.read(block):
                if len(self._pending) <= _MAX_PENDING:
                    return True
                pairs = (
                    events[1:]
                    for stamp in block.stamps
                    if (events := stamp[part_files.EVENTS_INDEX])
                )
                self._events.abandon([block.anchor, *(event for pair in pairs for event in pair)])
            self._append_to_files(self._pending.popleft())
        return False

    def _append_to_files(self, block: Block) -> None:
        """Write one iteration to the files, which are created by the first call.

        An unknown rank is replaced by 0. Device times that were not read are written as unknown.
        """
        if block.on_device and not block.spans:
            block.spans = [(layout.NONE, layout.NONE)] * len(block.stamps)
        if self._files is None:
            rank, world_size = self._rank_and_size or part_files.get_rank_and_size()
            self._files = PartFiles(
                self.folder,
                self._limit_bytes,
                self._write,
                rank_and_size=(max(rank, 0), world_size),
                start_ns=self._monotonic(),
                sampled=(self._every, self._iterations if self._every else 0),
                device=None if self._events is None else self._events.name,
            )
        self._files.append(block, part_files.read_clocks(self._monotonic, self._utc))

    def _stop_after_error(self, error: Exception) -> None:
        """Stop recording after an error, and log a warning. Later errors are not logged."""
        if not self._stopped:
            self._end()
            _log.warning(
                "the recording to %s has stopped (%s: %s); training continues, and the data "
                "already written is kept",
                *(self.folder, type(error).__name__, error),
            )

    def _end(self) -> None:
        """Mark the recording as stopped, drop queued iterations, and close the files."""
        self._stopped = True
        self._block, self._events = None, None
        self._pending.clear()
        atexit.unregister(self.stop)
        if self._files is not None:
            try:
                self._files.close()
            except OSError as error:
                _log.warning("the end of the recording to %s may be lost (%s)", self.folder, error)

    def _after_fork(self) -> None:
        """Stop this recorder in the child process of a fork if it was recording in the parent.

        The files are neither changed nor closed, because the parent continues to write to them.
        """
        self._lock = threading.Lock()
        if self._block is not None or self._files is not None:
            self._stopped, self._files = True, None

    @classmethod
    def handle_fork(cls) -> None:
        """In the child process of a fork, stop the recorders that were recording in the parent."""
        for recorder in list(_recorders):
            recorder._after_fork()


_recorders: WeakSet[Recorder] = WeakSet()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Recorder.handle_fork)
