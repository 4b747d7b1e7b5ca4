"""Part files: where a process appends its iterations, one file after another.

No file is written by two processes, renamed, or changed but at its end, so that whoever reads it
meanwhile, on another machine too, sees a beginning of it.
"""

from __future__ import annotations

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
    end_ns: int = layout.NONE
    over: bool = False
    stamps: list[Stamp] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    anchor: Any = None
    device_ns: int = 0
    lost: int = 0
    on_device: bool = False


def text_records(of: int, number: int, text: str) -> bytes:
    """Return a text as records, of 32 bytes of UTF-8 each."""
    encoded = text.encode("utf-8", "replace")[: layout.LONGEST_TEXT]
    step = layout.TEXT_BYTES
    return b"".join(
        layout.TEXT.pack(
            layout.KIND_TEXT, of, len(encoded[at : at + step]), number, encoded[at : at + step]
        )
        for at in range(0, max(len(encoded), 1), step)
    )


def packed(block: Block, names: dict[str, int], threads: dict[int, int], clock: Clocks) -> bytes:
    """Return the bytes of a block.

    Args:
        block: whose ``spans`` are read, or empty for a host's own times.
        names: numbers of names in the file that it goes to; extended, a new one gets a record.
        threads: numbers of threads there, of 16 bits; extended.
        clock: when it is written.
    """
    texts, operations = bytearray(), bytearray()
    spans = block.spans or [(layout.NONE, layout.NONE)] * len(block.stamps)
    for stamp, (start_ns, end_ns) in zip(block.stamps, spans, strict=True):
        name, launches, thread, host_start_ns, host_end_ns, _ = stamp
        lost = bool(block.spans) and start_ns == layout.NONE and not launches
        number = names.get(name)
        if number is None:
            number = names[name] = len(names)
            texts += text_records(layout.TEXT_NAME, number, name)
        operations += layout.OPERATION.pack(
            layout.KIND_OPERATION,
            layout.LAUNCHES * launches | layout.TIMES_LOST * lost,
            threads.setdefault(thread, len(threads)) & 0xFFFF,
            number,
            host_start_ns,
            host_end_ns,
            start_ns,
            end_ns,
        )
    monotonic_ns, utc_ns, half_width_ns = clock
    body = texts + operations
    body += layout.CLOCK.pack(
        layout.KIND_CLOCK, min(half_width_ns, 0xFFFFFFFF), monotonic_ns, utc_ns, block.device_ns, 0
    )
    end = bytearray(
        layout.END.pack(
            layout.KIND_END,
            layout.NAMED * (block.number is not None) | layout.AFTER_PAUSE * block.after_pause,
            0,
            layout.NONE if block.number is None else block.number,
            block.start_ns,
            block.end_ns,
            len(body) // layout.RECORD_BYTES + 1,
            block.lost,
        )
    )
    # The CRC is that of all of the block.
    end[layout.END_CRC] = zlib.crc32(body + end).to_bytes(4, "little")
    return bytes(body + end)


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
        self._write(packed(block, self._names, self._threads, clock))

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
        texts = (socket.gethostname(), self._device or "", run)
        monotonic_ns, utc_ns, half_width_ns = clock
        device = layout.DEVICE_HOST if self._device is None else layout.DEVICE_GPU
        header = layout.HEADER.pack(
            *(layout.MAGIC, layout.VERSION, layout.RECORD_BYTES, *self._place, os.getpid()),
            *(self._part, device, *self._sampled),
            *(self._start_ns, utc_ns, monotonic_ns, half_width_ns, 0, 0),
        )
        checked = header[: layout.HEADER_CHECKED]
        header = checked + zlib.crc32(checked).to_bytes(4, "little") + header[-4:]
        self._write(header + b"".join(text_records(of, 0, text) for of, text in enumerate(texts)))
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
