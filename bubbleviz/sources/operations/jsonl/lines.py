"""Lines of a recording: decoding and checking."""

from __future__ import annotations

import zlib
from typing import Annotated, Final, TypeAlias

import msgspec

from bubbleviz import recording_layout as layout
from bubbleviz.errors import ProfileError
from bubbleviz.recording_layout import NONE
from bubbleviz.sources.operations.jsonl import refuse_binary
from bubbleviz.sources.operations.schema import MAX_RANK

#: A number in a range such that the sum of two numbers fits into 64 bits.
_Number: TypeAlias = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
#: Ids of names are array indices, so they must be small.
_NameId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]


class Clock(msgspec.Struct, frozen=True):
    """Both clocks of a host at one moment, in nanoseconds.

    Attributes:
        monotonic_ns: The monotonic clock.
        utc_ns: UTC since 1970.
        half_width_ns: Maximum error of the pair.
    """

    monotonic_ns: _Number
    utc_ns: _Number
    half_width_ns: _Count = 0


class Header(msgspec.Struct, frozen=True):
    """The first line of a file.

    Attributes:
        rank: Number of the process in the run.
        began_ns: When the recording began, on the host's monotonic clock.
        clock: The host's clocks when the file began.
        world_size: Number of processes in the run, or -1 if unknown.
        pid: Process id.
        part: Index of the file in its recording; the writer may have deleted earlier files.
        host: Hostname, or "" if unknown.
        device: Name of the GPU, or None if the host ran the operations.
        run: The launcher's name of the run, or "" if there is none.
        every: Length of the sampling interval in iterations, or 0 if all are recorded.
        iterations: Number of recorded iterations per sampling interval.
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
        """Key that all parts of one recording share: rank, world size, process id and start."""
        return self.rank, self.world_size, self.pid, self.began_ns

    @property
    def began_utc_ns(self) -> int:
        """UTC when the recording began."""
        return self.clock.utc_ns - (self.clock.monotonic_ns - self.began_ns)


class OperationColumns(msgspec.Struct):
    """The operations of one iteration, in the order in which they ended.

    Times count from the start of the iteration, in nanoseconds. Empty optional columns are absent.

    Attributes:
        name: Ids of the names.
        start: When the host entered each range.
        end: When the host left it.
        thread: Numbers of the threads; absent if all are 0.
        launches: Whether the range only started transfers; absent if none did.
        device_start: When the device began, or None if unknown; absent if the host ran them.
        device_end: When the device ended, or None if unknown; absent if ``device_start`` is.
    """

    name: list[_NameId]
    start: list[_Number]
    end: list[_Number]
    thread: list[_Count] = []
    launches: list[bool] = []
    device_start: list[_Number | None] = []
    device_end: list[_Number | None] = []

    def __post_init__(self) -> None:
        """Check that all columns have one value per operation, unless they are absent.

        Raises:
            ValueError: Columns differ in length.
        """
        count = len(self.name)
        if not len(self.start) == len(self.end) == count:
            raise ValueError("columns of operations differ in length")
        if len(self.device_start) != len(self.device_end):
            raise ValueError("device_start and device_end differ in length")
        for column in (self.thread, self.launches, self.device_start):
            if len(column) not in (0, count):
                raise ValueError("columns of operations differ in length")


class Iteration(msgspec.Struct):
    """The line of an iteration.

    Attributes:
        start_ns: When it began, on the host's monotonic clock.
        end_ns: When its range was left.
        clock: The host's clocks when the line was written.
        operations: Its operations.
        iteration: Its number, or None if no range gives one.
        names: Names of ranges by id, which this and all later lines of the file may use.
        after_pause: Whether the iterations before it were left out on purpose.
        lost: Number of operations that ended too late for the line of their iteration.
        device_offset_ns: The host's clock minus the device's; 0 without a device.
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
    """The field of a header that names its format and version."""

    schema: str


_CRC_KEY: Final = layout.CRC_KEY.encode("ascii")
_FAMILY: Final = layout.SCHEMA.partition("/")[0] + "/"
_decode_schema = msgspec.json.Decoder(_Schema).decode
_decode_header = msgspec.json.Decoder(Header).decode
_decode_iteration = msgspec.json.Decoder(Iteration).decode
#: Exceptions of the decoders; ValueError if a text is not UTF-8.
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


def has_checksum(line: bytes) -> bool:
    """Return whether a line has a checksum."""
    return _CRC_KEY in line


def _is_intact(line: bytes) -> bool:
    """Return whether a line matches its checksum."""
    body, _, crc = line.rstrip().rpartition(_CRC_KEY)
    return crc == b"%d}" % zlib.crc32(body)


def is_cut_header(line: bytes) -> bool:
    """Return whether a first line may be a header that is still being written."""
    return not line.endswith(b"\n") and line.lstrip()[:1] in (b"", b"{")


def decode_header(path: str, line: bytes) -> Header:
    """Return the header of a file.

    Args:
        path: The file, for messages.
        line: Its first line.

    Raises:
        ProfileError: The line is cut or damaged, has another version or format, or is not a header.
    """
    if is_cut_header(line):
        raise ProfileError(f"{path}: is a recording that ends inside its header; record again")
    refuse_binary(path, line)
    damaged = f"{path}: has a damaged header; copy it again"
    if has_checksum(line) and not _is_intact(line):
        raise ProfileError(damaged)
    try:
        schema = _decode_schema(line).schema
    except _DECODE_ERRORS:
        schema = ""
    if not schema.startswith(_FAMILY):
        raise ProfileError(
            f"{path}: is not a recording of bubbleviz.annotate; give one, or a profile"
        )
    if schema != layout.SCHEMA:
        raise ProfileError(
            f"{path}: has schema {schema}, but this bubbleviz reads {layout.SCHEMA}; use the "
            "version that wrote it, or a newer one"
        )
    try:
        return _decode_header(line)
    except _DECODE_ERRORS as error:
        raise ProfileError(f"{path}: has an invalid header: {error}") from error


def decode_iteration(line: bytes, *, is_checked: bool) -> Iteration:
    """Return the iteration of a line.

    Args:
        line: A line after the header.
        is_checked: Whether the header, and so every line of the file, has a checksum.

    Raises:
        ValueError: The line is damaged; the message says how.
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
