"""Header: what the beginning of a recording says of its process."""

from __future__ import annotations

import zlib
from pathlib import Path

from bubbleviz import recording_layout as layout
from bubbleviz.errors import ProfileError
from bubbleviz.model.values import frozen


@frozen
class Header:
    """The header of a file.

    Attributes:
        rank: number of the process in the run.
        world_size: how many there are; -1 unknown.
        pid: process id.
        part: number of the file in its recording; earlier ones may have made room.
        on_gpu: whether a GPU ran the operations.
        every: of so many iterations some were recorded; 0 for all.
        iterations: how many of these.
        session_ns: when the recording began, on the host's monotonic clock.
        utc_ns: UTC when the file began.
        monotonic_ns: the monotonic clock at that moment.
        half_width_ns: how far this pair can be off.
    """

    rank: int
    world_size: int
    pid: int
    part: int
    on_gpu: bool
    every: int
    iterations: int
    session_ns: int
    utc_ns: int
    monotonic_ns: int
    half_width_ns: int

    @property
    def session(self) -> tuple[int, int, int, int]:
        """What the parts of one recording share."""
        return self.rank, self.world_size, self.pid, self.session_ns

    @property
    def began_utc_ns(self) -> int:
        """UTC when the recording began."""
        return self.utc_ns - (self.monotonic_ns - self.session_ns)


def header_in(path: str, head: bytes) -> Header:
    """Return the header in the first bytes of a file.

    Raises:
        ProfileError: it is cut, damaged, or of another version.
    """
    if not head.startswith(layout.MAGIC):
        raise ProfileError(f"{path}: no recording of bubbleviz.annotate; give one, or a profile")
    version = int.from_bytes(head[8:10], "little")
    if len(head) >= 10 and version != layout.VERSION:
        raise ProfileError(
            f"{path}: a recording of format version {version}, and this bubbleviz reads version "
            f"{layout.VERSION}; use the bubbleviz that wrote it, or a newer one"
        )
    if len(head) < layout.HEADER.size:
        raise ProfileError(f"{path}: a recording that ends within its header; record again")
    values = layout.HEADER.unpack(head[: layout.HEADER.size])
    if zlib.crc32(head[: layout.HEADER_CHECKED]) != values[-2]:
        raise ProfileError(f"{path}: a recording with a damaged header; copy it again, as binary")
    _, _, record_bytes, rank, world_size, pid, part, device, *rest = values
    if record_bytes != layout.RECORD_BYTES or rank < 0:
        raise ProfileError(f"{path}: a recording with an impossible header; record again")
    return Header(rank, world_size, pid, part, device == layout.DEVICE_GPU, *rest[:-2])


def header_of(path: str) -> Header:
    """Return the header of a file.

    Raises:
        ProfileError: it cannot be read, or has none.
    """
    try:
        with Path(path).open("rb") as file:
            return header_in(path, file.read(layout.HEADER.size))
    except OSError as error:
        raise ProfileError(
            f"{path}: cannot be read ({error.strerror}); check it and its permissions"
        ) from error
