"""Decodes and checks the lines of a recording."""

from __future__ import annotations

import zlib
from typing import Annotated, Final, TypeAlias

import msgspec

from bubbleviz import recording_layout as layout
from bubbleviz.errors import ProfileError
from bubbleviz.recording_layout import NONE
from bubbleviz.sources.operations.jsonl import refuse_binary
from bubbleviz.sources.operations.schema import MAX_RANK

#: An integer that is small enough for the sum of two such integers to fit in 64 bits.
_Number: TypeAlias = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
#: Name ids are array indices, so they must be small.
_NameId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]


class Clock(msgspec.Struct, frozen=True):
    """A simultaneous reading of a host's monotonic clock and its UTC clock.

    Attributes:
        monotonic_ns: Monotonic clock time in ns.
        utc_ns: UTC time in ns since 1970.
        half_width_ns: Maximum time between the two readings in ns.
    """

    monotonic_ns: _Number
    utc_ns: _Number
    half_width_ns: _Count = 0


class Header(msgspec.Struct, frozen=True):
    """The header, which is the first line of a recording file.

    Attributes:
        rank: The process's rank in the run.
        began_ns: Start time of the recording in ns, on the host's monotonic clock.
        clock: Reading of the host's clocks at the time the file was started.
        world_size: Number of processes in the run, or -1 if unknown.
        pid: Process id of the training process.
        part: Index of the file within its recording. The writer may have deleted earlier files.
        host: Hostname, or "" if unknown.
        device: Name of the GPU, or None if the host ran the operations.
        run: Name given to the run by the launcher, or "" if there is none.
        every: Number of iterations in a sampling cycle, or 0 if all iterations are recorded.
        iterations: Number of recorded iterations per cycle.
    """

    rank: Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]
    began_ns: _Number
    clock: Clock
    world_size: Annotated[int, msgspec.Meta(gt=-(2**62), le=MAX_RANK + 1)] = NONE
    pid: _Number = 0
    part: _Count = 0
    host: str = ""
    device: str | None = None
    run: str = ""
    every: _Count = 0
    iterations: _Count = 0

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU ran the operations."""
        return self.device is not None

    @property
    def session(self) -> tuple[int, int, int, int]:
        """Key shared by all files of a recording: rank, world size, process id and start time."""
        return self.rank, self.world_size, self.pid, self.began_ns

    @property
    def began_utc_ns(self) -> int:
        """Start time of the recording in UTC, in ns since 1970."""
        return self.clock.utc_ns - (self.clock.monotonic_ns - self.began_ns)


class OperationColumns(msgspec.Struct):
    """The operations in one iteration as columns, in the order in which the operations ended.

    Times are in ns, relative to the start of the iteration. An optional column is empty if the line
    does not contain the column.

    Attributes:
        name: Name id of each operation.
        start: Time at which the host entered each operation's range.
        end: Time at which the host left each operation's range.
        thread: Thread number of each operation. Empty if all are 0.
        launches: Whether each range only started transfers. Empty if none of the ranges did.
        device_start: Start of each operation on the device, or None if unknown. Empty if the host
            ran the operations.
        device_end: End of each operation on the device, or None if unknown. Empty if
            ``device_start`` is empty.
    """

    name: list[_NameId]
    start: list[_Number]
    end: list[_Number]
    thread: list[_Count] = []
    launches: list[bool] = []
    device_start: list[_Number | None] = []
    device_end: list[_Number | None] = []

    def __post_init__(self) -> None:
        """Check that each column has one value per operation. Optional columns may also be empty.

        Raises:
            ValueError: Columns differ in length.
        """
        count = len(self.name)
        if not len(self.start) == len(self.end) == count:
            raise ValueError("the operation columns differ in length")
        if len(self.device_start) != len(self.device_end):
            raise ValueError("device_start and device_end differ in length")
        for column in (self.thread, self.launches, self.device_start):
            if len(column) not in (0, count):
                raise ValueError("the operation columns differ in length")


class Iteration(msgspec.Struct):
    """An iteration, which is one line of a recording.

    Attributes:
        start_ns: Start time of the iteration in ns, on the host's monotonic clock.
        end_ns: Time at which the iteration's range ended, on the same clock.
        clock: Reading of the host's clocks at the time the line was written.
        operations: Operations in the iteration.
        iteration: Iteration number, or None if no range contains an iteration number.
        names: New range names, keyed by name id. The ids are valid in this line and in all later
            lines of the file.
        after_pause: Whether sampling skipped the iterations before this one.
        lost: Number of operations that were dropped because they ended too late.
        device_offset_ns: Host clock minus device clock in ns, or 0 if there is no device.
    """

    start_ns: _Number
    end_ns: _Number
    clock: Clock
    operations: OperationColumns
    iteration: _Count | None = None
    names: dict[_NameId, str] = {}
    after_pause: bool = False
    lost: _Count = 0
    device_offset_ns: _Number = 0


class _Schema(msgspec.Struct):
    """The header field for the format and version, which is decoded before all other fields."""

    schema: str


_CRC_KEY: Final = layout.CRC_KEY.encode("ascii")
_FAMILY: Final = layout.SCHEMA.partition("/")[0] + "/"
_decode_schema = msgspec.json.Decoder(_Schema).decode
_decode_header = msgspec.json.Decoder(Header).decode
_decode_iteration = msgspec.json.Decoder(Iteration).decode
#: Exceptions that the decoders raise. ValueError means that a text is not valid UTF-8.
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


def has_checksum(line: bytes) -> bool:
    """Return whether a line in a recording contains a checksum."""
    return _CRC_KEY in line


def _is_intact(line: bytes) -> bool:
    """Return whether a line matches its checksum."""
    body, _, crc = line.rstrip().rpartition(_CRC_KEY)
    return crc == b"%d}" % zlib.crc32(body)


def is_cut_header(line: bytes) -> bool:
    """Return whether a file's first line may be a header that is still being written."""
    return not line.endswith(b"\n") and line.lstrip()[:1] in (b"", b"{")


def decode_header(path: str, line: bytes) -> Header:
    """Decode the header of a recording file.

    Args:
        path: Path to the file, for messages.
        line: First line of the file.

    Raises:
        ProfileError: The line is incomplete or damaged, has a different format or version, or is
            not a header.
    """
    if is_cut_header(line):
        raise ProfileError(f"{path}: the recording ends within its header; record the run again")
    refuse_binary(path, line)
    damaged = f"{path}: the header of the recording is damaged; copy the file again"
    if has_checksum(line) and not _is_intact(line):
        raise ProfileError(damaged)
    try:
        schema = _decode_schema(line).schema
    except _DECODE_ERRORS:
        schema = ""
    if not schema.startswith(_FAMILY):
        raise ProfileError(
            f"{path}: is not a recording from bubbleviz.annotate; pass a recording or a profile"
        )
    if schema != layout.SCHEMA:
        raise ProfileError(
            f"{path}: has schema {schema}, but this version of bubbleviz reads {layout.SCHEMA}; "
            "use the version that wrote the recording, or a newer one"
        )
    try:
        return _decode_header(line)
    except _DECODE_ERRORS as error:
        raise ProfileError(
            f"{path}: the header of the recording is invalid ({error}); record the run again"
        ) from error


def decode_iteration(line: bytes, *, is_checked: bool) -> Iteration:
    """Decode a line that contains an iteration.

    Args:
        line: A line after the header.
        is_checked: Whether the file's header has a checksum. If so, every line must have a
            checksum.

    Raises:
        ValueError: The line is damaged. The message explains the damage.
    """
    if has_checksum(line):
        if not _is_intact(line):
            raise ValueError("the checksum does not match")
    elif is_checked:
        raise ValueError("the checksum is missing")
    try:
        return _decode_iteration(line)
    except _DECODE_ERRORS as error:
        raise ValueError(str(error)) from error
