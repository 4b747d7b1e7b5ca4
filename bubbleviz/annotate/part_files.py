"""Part files: where a process appends its iterations, one file after another.

No file is written by two processes, renamed, or changed but at its end, so that whoever reads it
meanwhile, on another machine too, sees a beginning of it.
"""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from bubbleviz import recording_layout as layout
from bubbleviz.annotate.distributed import numbers_in_torch
from bubbleviz.recording_layout import NONE

#: A range that is over: its name, whether it only started transfers, its thread, when it was
#: entered and left by the host's monotonic clock, and its timing events, None for none. A plain
#: tuple: one is made for each range, while training waits.
Stamp: TypeAlias = "tuple[str, bool, int, int, int, tuple[Any, Any, Any] | None]"
#: Places in a stamp.
END: Final = 4
EVENTS: Final = 5


@dataclass(eq=False)
class Block:
    """The operations of one iteration of a rank.

    Attributes:
        number: of the iteration; None where no range names it.
        recorded: whether its operations are recorded; else they are left out on purpose.
        after_pause: whether iterations before it were left out on purpose.
        start_ns: when it began.
        end_ns: when its range was left, or its last operation ended.
        over: whether the next forward outside a range of an iteration begins another one.
        stamps: its operations, in the order in which they ended.
        spans: device start and end of each operation, in the same order, once read.
        anchor: the timing event at its beginning; None without a GPU.
        device_ns: the host's clock less the device's.
        lost: operations of earlier iterations that ended too late to be recorded.
        on_device: whether its operations are timed on a GPU.
    """

    number: int | None
    recorded: bool
    after_pause: bool
    start_ns: int
    end_ns: int = NONE
    over: bool = False
    stamps: list[Stamp] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    anchor: Any = None
    device_ns: int = 0
    lost: int = 0
    on_device: bool = False


#: Columns of operations for the two times of a span.
_DEVICE_COLUMNS = ("device_start", "device_end")
#: Encodes JSON without blanks.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def encode_line(fields: dict[str, Any]) -> bytes:
    """Return a line of a recording, with its checksum as the last key.

    Args:
        fields: Keys and values of the line.
    """
    body = _encode(fields)[:-1]
    # The JSON is ASCII: other characters are escaped.
    crc = zlib.crc32(body.encode("ascii"))
    return f"{body}{layout.CRC_KEY}{crc}}}\n".encode("ascii")


def _clean(text: str) -> str:
    """Return a text that UTF-8 can encode, cut to the maximum length."""
    return text.encode("utf-8", "replace")[: layout.LONGEST_TEXT].decode("utf-8", "ignore")


def _clock_fields(clock: Clocks) -> dict[str, int]:
    monotonic_ns, utc_ns, half_width_ns = clock
    return {"monotonic_ns": monotonic_ns, "utc_ns": utc_ns, "half_width_ns": half_width_ns}


def iteration_line(
    block: Block, names: dict[str, int], threads: dict[int, int], clock: Clocks
) -> bytes:
    """Return the line of an iteration.

    Args:
        block: The iteration; its ``spans`` are empty if the host's own times count.
        names: Ids of the names that the file already defines; new names are added.
        threads: Numbers of the threads in the file; new threads are added.
        clock: The host's clocks when the line is written.
    """
    fields: dict[str, Any] = {
        "iteration": block.number,
        "start_ns": block.start_ns,
        "end_ns": block.end_ns,
        "clock": _clock_fields(clock),
    }
    if block.after_pause:
        fields["after_pause"] = True
    if block.lost:
        fields["lost"] = block.lost
    if block.device_ns:
        fields["device_offset_ns"] = block.device_ns
    n_defined = len(names)
    fields["operations"] = _operation_columns(block, names, threads)
    if len(names) > n_defined:
        new_names = list(names)[n_defined:]
        fields["names"] = {names[name]: _clean(name) for name in new_names}
    return encode_line(fields)


def _operation_columns(
    block: Block, names: dict[str, int], threads: dict[int, int]
) -> dict[str, list[Any]]:
    """Return the operations of an iteration as columns; times count from its start.

    Args:
        block: The iteration.
        names: Ids of the names that the file already defines; new names are added at the end.
        threads: Numbers of the threads in the file; new threads are added.
    """
    if not block.stamps:
        return {"name": [], "start": [], "end": []}
    name, launches, thread, start_ns, end_ns, _ = zip(*block.stamps, strict=True)
    origin_ns = block.start_ns
    columns: dict[str, list[Any]] = {
        "name": [names.setdefault(text, len(names)) for text in name],
        "start": [time_ns - origin_ns for time_ns in start_ns],
        "end": [time_ns - origin_ns for time_ns in end_ns],
    }
    for identifier in dict.fromkeys(thread):
        threads.setdefault(identifier, len(threads))
    if any(threads[identifier] for identifier in set(thread)):
        columns["thread"] = [threads[identifier] for identifier in thread]
    if any(launches):
        columns["launches"] = list(launches)
    if block.spans:
        for column, times_ns in zip(_DEVICE_COLUMNS, zip(*block.spans, strict=True), strict=True):
            columns[column] = [
                None if time_ns == NONE else time_ns - origin_ns for time_ns in times_ns
            ]
    return columns


#: Variables of launchers: torchrun and its kin, Slurm, Open MPI, MPICH.
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: The monotonic clock and UTC at one moment, and how far the pair can be off, nanoseconds.
Clocks: TypeAlias = tuple[int, int, int]
#: Times that both clocks are read; the closest pair counts.
_READINGS = 3


def place_of_process() -> tuple[int, int]:
    """Return rank and world size (-1 unknown) as torch.distributed or the launcher knows them."""

    def variable(names: tuple[str, ...]) -> int:
        texts = (os.environ.get(name, "") for name in names)
        return next((int(text) for text in texts if text.isdecimal()), NONE)

    return numbers_in_torch() or (variable(_RANK), variable(_WORLD_SIZE))


def clock_pair(
    monotonic: Callable[[], int] = time.monotonic_ns, utc: Callable[[], int] = time.time_ns
) -> Clocks:
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
    return before + width // 2, now, width - width // 2


#: Parts that a recording keeps; the oldest makes room.
PARTS = 4
#: So many names of one rank are tried for one that is free.
_MOST_FILES = 100_000


class PartFiles:
    """The files of a recording.

    All methods raise OSError where the disk fails; what was written before stays readable.

    Args:
        folder: where they are; made if it is not there.
        limit_bytes: what all of them together hold at most, about.
        write: appends to a file, as ``os.write``.
        place: number of the process in the run, and how many there are (-1 unknown).
        start_ns: when the recording began, by the monotonic clock.
        sampled: of so many iterations some are recorded, 0 for all; and how many of these.
        device: name of the GPU; None for the host itself.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        write: Callable[[int, bytes], int] = os.write,
        *,
        place: tuple[int, int],
        start_ns: int,
        sampled: tuple[int, int],
        device: str | None,
    ) -> None:
        self._folder, self._write_some = folder, write
        self._part_bytes = max(limit_bytes // PARTS, 1)
        self._place, self._start_ns, self._sampled, self._device = place, start_ns, sampled, device
        self._names: dict[str, int] = {}
        self._threads: dict[int, int] = {}
        self._file: int | None = None
        self._size = 0
        self._part = self._number = 0
        self._paths: list[Path] = []

    def append(self, block: Block, clock: Clocks) -> None:
        """Append a block whole, to the next file where this one is full."""
        if self._file is not None and self._size >= self._part_bytes:
            self.close()
        if self._file is None:
            self._begin_part(clock)
        self._write(iteration_line(block, self._names, self._threads, clock))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _begin_part(self, clock: Clocks) -> None:
        """Begin a file with its header, and remove the oldest if there are enough."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path, self._file = self._created()
        self._size, self._names, self._threads = 0, {}, {}
        self._paths.append(path)
        # What the launcher calls the run.
        elastic = os.environ.get("TORCHELASTIC_RUN_ID", "")
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        run = f"{elastic}/{restart}" if elastic else os.environ.get("SLURM_JOB_ID", "")
        rank, world_size = self._place
        every, iterations = self._sampled
        fields: dict[str, Any] = {
            "schema": layout.SCHEMA,
            "rank": rank,
            "pid": os.getpid(),
            "part": self._part,
            "host": _clean(socket.gethostname()),
            "began_ns": self._start_ns,
            "clock": _clock_fields(clock),
        }
        if world_size != NONE:
            fields["world_size"] = world_size
        if self._device is not None:
            fields["device"] = _clean(self._device)
        if run:
            fields["run"] = _clean(run)
        if every:
            fields |= {"every": every, "iterations": iterations}
        self._write(encode_line(fields))
        self._part += 1
        while len(self._paths) > PARTS:
            self._paths.pop(0).unlink(missing_ok=True)

    def _created(self) -> tuple[Path, int]:
        """Return the next file of this rank, and its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        stem = f"rank-{self._place[0]:05}"
        if not self._paths:
            # The file behind all files of the rank.
            taken = (path.name for path in self._folder.glob(f"{stem}*{layout.SUFFIX}"))
            numbers = [name.removeprefix(stem).removesuffix(layout.SUFFIX) for name in taken]
            known = [int(n[1:] or 0) for n in numbers if n[1:].isdecimal() or not n]
            self._number = max(known, default=-1) + 1
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
