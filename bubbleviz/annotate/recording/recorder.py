"""Recorder: divides the ranges of a process into iterations, and writes these when they are over.

Nothing here may cost a training run more than microseconds a range, and nothing may end it: what
fails is said once, and recording stops.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any, NamedTuple
from weakref import WeakSet

from bubbleviz import recording_layout as layout
from bubbleviz.annotate.distributed import numbers_in_torch
from bubbleviz.annotate.recording.blocks import (
    END,
    Block,
    ClockPair,
    Names,
    events_of,
    packed,
    text_records,
)
from bubbleviz.annotate.recording.timing_events import TimingEvents
from bubbleviz.recording_layout import NONE

# Place: which process of which run this is, as far as its environment says.


#: Variables of launchers: torchrun and its kin, Slurm, Open MPI, MPICH.
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: Times that both clocks are read; the closest pair counts.
_READINGS = 3


class ProcessPlace(NamedTuple):
    """A process of a run.

    Attributes:
        rank: its number.
        world_size: how many there are; -1 unknown.
        host: hostname.
        run: what the launcher calls the run; "" for nothing.
    """

    rank: int
    world_size: int
    host: str
    run: str


def place_of_process(given: tuple[int, int] | None = None) -> ProcessPlace:
    """Return the place of this process: as torch.distributed knows it, else its launcher.

    Args:
        given: rank and world size, where the script says them.
    """
    launched = _variable(_RANK), _variable(_WORLD_SIZE)
    rank, world_size = given or numbers_in_torch() or launched
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    run = f"{elastic}/{restart}" if elastic else os.environ.get("SLURM_JOB_ID", "")
    return ProcessPlace(max(rank, 0), world_size, socket.gethostname(), run)


def clock_pair(
    monotonic: Callable[[], int] = time.monotonic_ns, utc: Callable[[], int] = time.time_ns
) -> ClockPair:
    """Return UTC and the monotonic clock at one moment: the closest of a few readings.

    ::

        monotonic  before ├────────┤ after
        UTC                   │
    """
    readings = []
    for _ in range(_READINGS):
        before, now, after = monotonic(), utc(), monotonic()
        readings.append((after - before, before, now))
    width, before, now = min(readings)
    return ClockPair(before + width // 2, now, width - width // 2)


def _variable(names: tuple[str, ...]) -> int:
    """Return the first of some variables that holds a number; -1 for none."""
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), NONE)


# Part files: where a process appends its blocks, one file after another.
#
# No file is written by two processes, renamed, or changed but at its end, so that whoever reads it
# meanwhile, on another machine too, sees a beginning of it.


#: Parts that a recording keeps; the oldest makes room.
PARTS = 4
#: So many names of one rank are tried for one that is free.
_MOST_FILES = 100_000


class Session(NamedTuple):
    """One recording of one process.

    Attributes:
        place: of the process.
        start_ns: when it began, by the monotonic clock.
        every: of so many iterations some are recorded; 0 for all.
        iterations: how many of these.
        device: kind of device.
        device_name: in words; "" unknown.
    """

    place: ProcessPlace
    start_ns: int
    every: int
    iterations: int
    device: int
    device_name: str


class PartFiles:
    """The files of a recording.

    All methods raise OSError where the disk fails; what was written before stays readable.

    Args:
        folder: where they are; made if it is not there.
        session: whose blocks they hold.
        limit_bytes: what all of them together hold at most, about.
        write: appends to a file, as ``os.write``.
    """

    def __init__(
        self,
        folder: Path,
        session: Session,
        limit_bytes: int,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._folder, self._session, self._write_some = folder, session, write
        self._part_bytes = max(limit_bytes // PARTS, 1)
        self._names = Names()
        self._file: int | None = None
        self._size = 0
        self._part = self._number = 0
        self._paths: list[Path] = []

    def append(self, block: Block, clock: ClockPair) -> None:
        """Append a block whole, to the next file where this one is full."""
        if self._file is not None and self._size >= self._part_bytes:
            self.close()
        if self._file is None:
            self._begin_part(clock)
        self._write(packed(block, self._names, clock))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _begin_part(self, clock: ClockPair) -> None:
        """Begin a file with its header, and remove the oldest if there are enough."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path, self._file = self._created()
        self._size, self._names = 0, Names()
        self._paths.append(path)
        session = self._session
        texts = (session.place.host, session.device_name, session.place.run)
        self._write(
            header(session, self._part, clock)
            + b"".join(text_records(of, 0, text) for of, text in enumerate(texts))
        )
        self._part += 1
        while len(self._paths) > PARTS:
            self._paths.pop(0).unlink(missing_ok=True)

    def _created(self) -> tuple[Path, int]:
        """Return the next file of this rank, and its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        stem = f"rank-{self._session.place.rank:05}"
        if not self._paths:
            self._number = _first_free(self._folder, stem)
        while True:
            number, self._number = self._number, self._number + 1
            path = self._folder / f"{stem}{f'.{number}' if number else ''}{layout.SUFFIX}"
            try:
                return path, os.open(path, flags, 0o644)
            except FileExistsError:
                # Another process says that it is this rank, too.
                if number - self._part > _MOST_FILES:
                    raise

    def _write(self, data: bytes) -> None:
        """Write bytes whole, or none of them as far as the disk allows."""
        file = self._file
        assert file is not None, "a part has begun"
        begun = self._size
        try:
            while self._size - begun < len(data):
                self._size += self._write_some(file, data[self._size - begun :])
        except OSError:
            self._size = begun
            try:
                os.ftruncate(file, begun)
            finally:
                self.close()
            raise


def header(session: Session, part: int, clock: ClockPair) -> bytes:
    """Return the header of a part that begins at some time."""
    place = session.place
    whole = layout.HEADER.pack(
        layout.MAGIC,
        layout.VERSION,
        layout.RECORD_BYTES,
        place.rank,
        place.world_size,
        os.getpid(),
        part,
        session.device,
        session.every,
        session.iterations,
        session.start_ns,
        clock.utc_ns,
        clock.monotonic_ns,
        clock.half_width_ns,
        0,
        0,
    )
    checked = whole[: layout.HEADER_CHECKED]
    return checked + zlib.crc32(checked).to_bytes(4, "little") + whole[-4:]


def _first_free(folder: Path, stem: str) -> int:
    """Return the number of the file behind all files of a rank."""
    taken = (path.name for path in folder.glob(f"{stem}*{layout.SUFFIX}"))
    numbers = (name.removeprefix(stem).removesuffix(layout.SUFFIX) for name in taken)
    known = [int(number[1:] or 0) for number in numbers if number[1:].isdecimal() or not number]
    return max(known, default=-1) + 1


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
        # A child of multiprocessing ends without atexit.
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.stop, exitpriority=0)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def active(self) -> bool:
        """Whether it still records."""
        return not self._stopped

    def open(self, name: str, *, launches: bool = False) -> tuple[Any, ...] | None:
        """Take the beginning of an operation, and return what :meth:`close` takes."""
        if self._stopped:
            return None
        try:
            block = self._block
            if block is None or (block.over and not self._inside and _begins_iteration(name)):
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

    def begin_iteration(self, number: int) -> Block | None:
        """Take the beginning of an iteration, and return what :meth:`close` takes."""
        if self._stopped:
            return None
        try:
            with self._lock:
                self._inside += 1
                return self._next(number)
        except Exception as error:  # likewise
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
                if block.sealed or len(stamps) >= _MOST_OPERATIONS:
                    self._lose(events)
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

    def _lose(self, events: tuple[Any, Any, Any] | None) -> None:
        """Count an operation that came too late: what is written cannot, the next iteration can."""
        if self._block is not None:
            self._block.lost += 1
        if events is not None and self._events is not None:
            self._events.abandon(events[1:])

    def _next(self, number: int | None) -> Block:
        """Begin an iteration; the one before is over."""
        before = self._block
        self._seal()
        self._write_ready()
        ordinal = self._count if number is None else number
        self._count += 1
        recorded = self._every == 0 or ordinal % self._every < self._iterations
        paused = before is not None and not before.recorded
        block = Block(number, recorded, recorded and paused, self._monotonic())
        if recorded:
            self._events = self._events or self._events_of_gpu()
            if self._events is not None:
                block.on_device = True
                self._events.begin(block)
        self._block = block
        return block

    def _events_of_gpu(self) -> TimingEvents | None:
        """Return events of the process's GPU; None as long as it uses none."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return None
        return TimingEvents(cuda, self._monotonic)

    def _seal(self) -> None:
        """End the iteration that runs."""
        block, self._block = self._block, None
        if block is None:
            return
        block.sealed = True
        if block.end_ns == layout.NONE:
            block.end_ns = max((stamp[END] for stamp in block.stamps), default=block.start_ns)
        if block.recorded and (block.stamps or block.number is not None):
            self._pending.append(block)

    def _write_ready(self) -> bool:
        """Write the iterations that are over, on the GPU too; tell whether others wait."""
        while self._pending:
            block = self._pending[0]
            if block.on_device and self._events and not self._events.read(block):
                if len(self._pending) <= _MOST_PENDING:
                    return True
                self._events.abandon(events_of(block))
            self._append(self._pending.popleft())
        return False

    def _append(self, block: Block) -> None:
        if block.on_device and not block.spans:
            block.spans = [(layout.NONE, layout.NONE)] * len(block.stamps)
        if self._files is None:
            self._files = PartFiles(self.folder, self._session(), self._limit_bytes, self._write)
        self._files.append(block, clock_pair(self._monotonic, self._utc))

    def _session(self) -> Session:
        return Session(
            place_of_process(self._place),
            self._monotonic(),
            self._every,
            self._iterations if self._every else 0,
            layout.DEVICE_HOST if self._events is None else layout.DEVICE_GPU,
            "" if self._events is None else self._events.name,
        )

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

    def after_fork(self) -> None:
        """Leave the files to the parent, if it has begun; a child that trains has its own."""
        self._lock = threading.Lock()
        if self._block is not None or self._files is not None:
            self._stopped, self._files = True, None


def _begins_iteration(name: str) -> bool:
    """Tell whether the range of that name is a forward, by which iterations begin."""
    return name.partition(" ")[0] in _FORWARDS


_recorders: WeakSet[Recorder] = WeakSet()


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
