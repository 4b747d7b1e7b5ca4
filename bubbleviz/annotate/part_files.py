"""Part files, to which a process appends its iterations.

When a part file is full, the process starts the next one. Only one process writes to a part file.
The file is never renamed, and data is only appended to it. Therefore, a concurrent reader always
sees a prefix of the file, even on another machine.
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
from bubbleviz.annotate.distributed import get_torch_rank_and_size
from bubbleviz.recording_layout import NONE

#: A finished range: name, whether it only started transfers, thread id, start, end and timing
#: events. Start and end are in ns on the host's monotonic clock. The timing events are a result of
#: ``TimingEvents.open``, or None. A plain tuple is used for speed.
Stamp: TypeAlias = "tuple[str, bool, int, int, int, tuple[Any, Any, Any] | None]"
#: Indices of the end time and of the timing events in a ``Stamp``.
END_INDEX: Final = 4
EVENTS_INDEX: Final = 5


@dataclass(eq=False)
class Block:
    """The operations that a rank ran in one iteration.

    Attributes:
        number: Number of the iteration, or None if no range marks the iteration.
        is_recorded: Whether the operations are recorded. False if sampling skips this iteration.
        after_pause: Whether sampling skipped the preceding iterations.
        start_ns: Start time on the host's monotonic clock.
        end_ns: End time of the iteration's range, or of its last operation if the iteration has no
            range.
        is_complete: Whether the next forward outside an iteration range starts a new iteration.
        stamps: Finished operations, in the order in which the operations ended.
        spans: Device start and end of each operation in ``stamps``. Empty until the device times
            are read.
        anchor: Timing event at the start of the iteration, or None if there is none.
        device_offset_ns: Host clock minus device clock, or 0 if it was not measured.
        n_lost: Number of operations dropped while this iteration was current (see
            :meth:`bubbleviz.annotate.recorder.Recorder.close`).
        on_device: Whether the operations are timed on a GPU.
    """

    number: int | None
    is_recorded: bool
    after_pause: bool
    start_ns: int
    end_ns: int = NONE
    is_complete: bool = False
    stamps: list[Stamp] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    anchor: Any = None
    device_offset_ns: int = 0
    n_lost: int = 0
    on_device: bool = False


#: Names of the columns that contain device start times and device end times.
_DEVICE_COLUMNS = ("device_start", "device_end")
#: JSON encoder that writes no spaces.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def encode_line(fields: dict[str, Any]) -> bytes:
    """Encode one line of a recording as JSON, with the line's CRC-32 checksum as the last key.

    Args:
        fields: Keys and values of the line.
    """
    body = _encode(fields)[:-1]
    # The JSON is ASCII, because all other characters are escaped.
    crc = zlib.crc32(body.encode("ascii"))
    return f"{body}{layout.CRC_KEY}{crc}}}\n".encode("ascii")


def truncate_text(text: str) -> str:
    """Truncate a text to ``LONGEST_TEXT`` UTF-8 bytes, and replace lone surrogates."""
    return text.encode("utf-8", "replace")[: layout.LONGEST_TEXT].decode("utf-8", "ignore")


def _make_clock_fields(clock: Clocks) -> dict[str, int]:
    monotonic_ns, utc_ns, half_width_ns = clock
    return {"monotonic_ns": monotonic_ns, "utc_ns": utc_ns, "half_width_ns": half_width_ns}


def encode_iteration(
    block: Block, names: dict[str, int], threads: dict[int, int], clock: Clocks
) -> bytes:
    """Encode an iteration as one line of a recording.

    The line contains the number, the start and end, the operations, and a clock reading. Names that
    are new to the file are defined in the same line. Optional fields are left out if they are False
    or 0.

    Args:
        block: The iteration. If ``spans`` is empty, only host times are written.
        names: Name ids that the file already defines, keyed by name. New names are added.
        threads: Thread numbers in the file, keyed by thread id. New threads are added.
        clock: Reading of the host's clocks, taken when the line is written.
    """
    fields: dict[str, Any] = {
        "iteration": block.number,
        "start_ns": block.start_ns,
        "end_ns": block.end_ns,
        "clock": _make_clock_fields(clock),
    }
    if block.after_pause:
        fields["after_pause"] = True
    if block.n_lost:
        fields["lost"] = block.n_lost
    if block.device_offset_ns:
        fields["device_offset_ns"] = block.device_offset_ns
    n_defined = len(names)
    fields["operations"] = _make_operation_columns(block, names, threads)
    if len(names) > n_defined:
        new_names = list(names)[n_defined:]
        fields["names"] = {names[name]: truncate_text(name) for name in new_names}
    return encode_line(fields)


def _make_operation_columns(
    block: Block, names: dict[str, int], threads: dict[int, int]
) -> dict[str, list[Any]]:
    """Return the operations of an iteration as columns, keyed by column name.

    Times are relative to the start of the iteration. The columns of threads, launches and device
    times are left out if they contain no information.

    Args:
        block: The iteration.
        names: Name ids that the file already defines, keyed by name. New names are added.
        threads: Thread numbers in the file, keyed by thread id. New threads are added.
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


#: Environment variables set by torchrun and similar launchers, Slurm, Open MPI, and MPICH.
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: Monotonic time and UTC at the same moment, and the maximum error of the pair, all in ns.
Clocks: TypeAlias = tuple[int, int, int]
#: Number of times that both clocks are read. The reading with the smallest error is used.
_N_READINGS = 3


def get_rank_and_size() -> tuple[int, int]:
    """Return (rank, world size), with -1 for unknown values.

    Rank and world size come from torch.distributed if it is initialized, otherwise from environment
    variables of the launcher.
    """

    def read_variable(names: tuple[str, ...]) -> int:
        texts = (os.environ.get(name, "") for name in names)
        return next((int(text) for text in texts if text.isdecimal()), NONE)

    return get_torch_rank_and_size() or (read_variable(_RANK), read_variable(_WORLD_SIZE))


def read_clocks(
    monotonic: Callable[[], int] = time.monotonic_ns, utc: Callable[[], int] = time.time_ns
) -> Clocks:
    """Read UTC and the monotonic clock at the same moment.

    The clocks are read ``_N_READINGS`` times, and the most precise reading is returned. UTC is read
    between two readings of the monotonic clock, and is assigned to the midpoint of the two::

        monotonic  start ├────────┤ end
        UTC                  │
    """
    readings = []
    for _ in range(_N_READINGS):
        start_ns, utc_ns, end_ns = monotonic(), utc(), monotonic()
        readings.append((end_ns - start_ns, start_ns, utc_ns))
    width, start_ns, utc_ns = min(readings)
    return start_ns + width // 2, utc_ns, width - width // 2


#: Maximum number of part files per process. If there are more, the oldest one is deleted.
MAX_PARTS = 4
#: Maximum number of file names to try for one rank.
_MAX_FILES = 100_000


class PartFiles:
    """The part files of one rank's recording.

    All methods raise OSError if the disk fails. Lines written before the failure stay readable.

    Args:
        folder: Folder for the files, which is created if needed.
        limit_bytes: Approximate limit on the total size of the files, in bytes.
        write: Function that appends to a file, with the interface of ``os.write``.
        rank_and_size: Rank of the process, and the world size or -1 if unknown.
        start_ns: Start time of the recording on the monotonic clock.
        sampled: Number of iterations per sampling cycle (0 if all iterations are recorded), and
            number of recorded iterations per cycle.
        device: Name of the GPU, or None if operations are timed on the host only.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        write: Callable[[int, bytes], int] = os.write,
        *,
        rank_and_size: tuple[int, int],
        start_ns: int,
        sampled: tuple[int, int],
        device: str | None,
    ) -> None:
        self._folder, self._write_some = folder, write
        self._part_bytes = max(limit_bytes // MAX_PARTS, 1)
        self._place = rank_and_size
        self._start_ns = start_ns
        self._sampled = sampled
        self._device = device
        self._names: dict[str, int] = {}
        self._threads: dict[int, int] = {}
        self._file: int | None = None
        self._size = 0
        self._part = self._number = 0
        self._paths: list[Path] = []

    def append(self, block: Block, clock: Clocks) -> None:
        """Append an iteration. If the current file is full, a new file is started first."""
        if self._file is not None and self._size >= self._part_bytes:
            self.close()
        if self._file is None:
            self._start_part(clock)
        self._write(encode_iteration(block, self._names, self._threads, clock))

    def close(self) -> None:
        """Close the current file."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _start_part(self, clock: Clocks) -> None:
        """Create the next file, write its header, and delete the oldest file if there are too many.

        The header describes the process: rank, host, process id, file number, start of the
        recording, and a clock reading. The world size, GPU, run id and cycle are included if they
        are known. Name and thread ids start again at 0, so that every file can be read on its own.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path, self._file = self._create_file()
        self._size, self._names, self._threads = 0, {}, {}
        self._paths.append(path)
        # The run id, if the launcher provides one.
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
            "host": truncate_text(socket.gethostname()),
            "began_ns": self._start_ns,
            "clock": _make_clock_fields(clock),
        }
        if world_size != NONE:
            fields["world_size"] = world_size
        if self._device is not None:
            fields["device"] = truncate_text(self._device)
        if run:
            fields["run"] = truncate_text(run)
        if every:
            fields |= {"every": every, "iterations": iterations}
        self._write(encode_line(fields))
        self._part += 1
        while len(self._paths) > MAX_PARTS:
            self._paths.pop(0).unlink(missing_ok=True)

    def _create_file(self) -> tuple[Path, int]:
        """Create the next file of this rank, ``rank-00003.bvrec`` or ``rank-00003.NUMBER.bvrec``.

        The number of the first file of a process is one above the highest number in the folder, or
        0 if there is no file. Number 0 is not part of the name. Existing files are never opened.

        Returns:
            Path and descriptor of the file.

        Raises:
            OSError: The file cannot be created, or too many files of this rank exist.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        stem = f"rank-{self._place[0]:05}"
        if not self._paths:
            # Continue after the highest file number that exists for this rank.
            used_names = (path.name for path in self._folder.glob(f"{stem}*{layout.SUFFIX}"))
            numbers = [name.removeprefix(stem).removesuffix(layout.SUFFIX) for name in used_names]
            used_numbers = [int(n[1:] or 0) for n in numbers if n[1:].isdecimal() or not n]
            self._number = max(used_numbers, default=-1) + 1
        while True:
            number, self._number = self._number, self._number + 1
            path = self._folder / f"{stem}{f'.{number}' if number else ''}{layout.SUFFIX}"
            try:
                return path, os.open(path, flags, 0o644)
            except FileExistsError:
                # Another process with the same rank created the file.
                if number - self._part > _MAX_FILES:
                    raise

    def _write(self, data: bytes) -> None:
        """Append bytes to the current file, with several writes if necessary.

        Raises:
            OSError: The disk fails. The file is then truncated to its previous size and closed.
        """
        file = self._file
        assert file is not None, "a part has begun"
        initial_size = self._size
        try:
            while self._size - initial_size < len(data):
                self._size += self._write_some(file, data[self._size - initial_size :])
        except OSError:
            self._size = initial_size
            try:
                os.ftruncate(file, initial_size)
            finally:
                self.close()
            raise
