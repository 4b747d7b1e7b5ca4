"""Blocks: the bytes of a file divided into whole iterations, as columns.

A block ends with a record that says how many records it has, and their CRC-32. So a block that is
damaged is passed over, wherever the damage is, and one that is being written is left for later::

    ├─ block ─┤├─ damaged ─┤├─ block ─┤├─ torn
              END          END        END
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import field

import numpy as np

from bubbleviz import recording_layout as layout
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.values import frozen
from bubbleviz.sources.recordings.columns import RecordedIterations, RecordedOperations, Stretch

_OPERATION = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("thread", "<u2"),
        ("name", "<u4"),
        ("host_start", "<i8"),
        ("host_end", "<i8"),
        ("start", "<i8"),
        ("end", "<i8"),
    ]
)
_CLOCK = np.dtype(
    [
        ("kind", "u1"),
        ("spare", "u1", 3),
        ("half_width", "<u4"),
        ("monotonic", "<i8"),
        ("utc", "<i8"),
        ("device", "<i8"),
        ("spare_time", "<i8"),
    ]
)
_END = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("spare", "u1", 2),
        ("crc", "<u4"),
        ("number", "<i8"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("records", "<u4"),
        ("lost", "<u4"),
    ]
)
_SIZE = layout.RECORD_BYTES


@frozen
class FoundBlocks:
    """The whole blocks of some bytes.

    Attributes:
        first: record at which each begins.
        last: its record END.
        gap: whether there are damaged records in front of it.
        damaged: how many records belong to no block, before the last END.
    """

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    gap: list[bool] = field(default_factory=list)
    damaged: int = 0


def found_blocks(data: bytes) -> FoundBlocks:
    """Return the whole blocks of some bytes, which begin with a record."""
    whole = data[: len(data) // _SIZE * _SIZE]
    ends = np.frombuffer(whole, _END)
    candidates = np.flatnonzero(ends["kind"] == layout.KIND_END)
    records, crcs = ends["records"][candidates].tolist(), ends["crc"][candidates].tolist()
    first: list[int] = []
    last: list[int] = []
    gap: list[bool] = []
    before = damaged = 0
    for at, count, crc in zip(candidates.tolist(), records, crcs, strict=True):
        begin = at + 1 - count
        # A clock and an END at least.
        if count < 2 or begin < before or _crc(whole, begin, at) != crc:
            continue
        first.append(begin)
        last.append(at)
        gap.append(begin > before)
        damaged += begin - before
        before = at + 1
    return FoundBlocks(first, last, gap, damaged)


def _crc(data: bytes, first: int, last: int) -> int:
    """Return the CRC of the records of a block; its own place in the last one counts as zeros."""
    view, end = memoryview(data), last * _SIZE
    crc = zlib.crc32(view[first * _SIZE : end + layout.END_CRC.start])
    return zlib.crc32(view[end + layout.END_CRC.stop : end + _SIZE], zlib.crc32(bytes(4), crc))


def stretch_of(data: bytes, found: FoundBlocks, names: dict[int, int]) -> Stretch:
    """Return whole blocks as columns.

    Args:
        data: whose blocks they are.
        found: at least one.
        names: number of each name of the file, by its number there; see :func:`add_names`.
    """
    first, last = np.array(found.first, np.int64), np.array(found.last, np.int64)
    of_block = np.zeros(len(data) // _SIZE + 1, np.int64)
    of_block[first] += 1
    of_block[last + 1] -= 1
    inside = np.cumsum(of_block[:-1]) == 1
    rows = np.frombuffer(data, _OPERATION, len(inside))
    at = np.flatnonzero(inside & (rows["kind"] == layout.KIND_OPERATION))
    own = rows[at]
    number = np.full(max([*names, NONE]) + 2, NONE, np.int64)
    number[list(names)] = list(names.values())
    name = np.minimum(own["name"].astype(np.int64), len(number) - 1)
    flags = own["flags"]
    operations = RecordedOperations(
        iteration=np.searchsorted(last, at),
        name_id=number[name],
        thread=own["thread"].astype(np.int64),
        launches=(flags & layout.LAUNCHES) != 0,
        host_start_ns=own["host_start"].astype(np.int64),
        host_end_ns=own["host_end"].astype(np.int64),
        start_ns=own["start"].astype(np.int64),
        end_ns=own["end"].astype(np.int64),
        times_lost=(flags & layout.TIMES_LOST) != 0,
    )
    return Stretch(_iterations(data, last, found.gap), operations)


def _iterations(data: bytes, last: Ints, gap: list[bool]) -> RecordedIterations:
    count = len(data) // _SIZE
    end = np.frombuffer(data, _END, count)[last]
    clock = np.frombuffer(data, _CLOCK, count)[last - 1]
    named = (end["flags"] & layout.NAMED) != 0
    return RecordedIterations(
        number=np.where(named, end["number"], NONE),
        start_ns=end["start"].astype(np.int64),
        end_ns=end["end"].astype(np.int64),
        after_gap=np.array(gap, bool) | ((end["flags"] & layout.AFTER_PAUSE) != 0),
        lost=end["lost"].astype(np.int64),
        monotonic_ns=clock["monotonic"].astype(np.int64),
        utc_ns=clock["utc"].astype(np.int64),
        half_width_ns=clock["half_width"].astype(np.int64),
        device_ns=clock["device"].astype(np.int64),
    )


def texts_in(data: bytes, first: int, last: int) -> Iterator[tuple[int, int, str]]:
    """Yield what each text of some records is of, its number, and itself.

    Args:
        data: that begin with a record.
        first: of the records.
        last: behind the last of them.
    """
    pieces: dict[tuple[int, int], bytes] = {}
    for at in range(first, last):
        if data[at * _SIZE] == layout.KIND_TEXT:
            _, of, used, number, text = layout.TEXT.unpack_from(data, at * _SIZE)
            pieces[of, number] = pieces.get((of, number), b"") + text[:used]
    for (of, number), text in pieces.items():
        yield of, number, text.decode("utf-8", "replace")


def add_names(
    data: bytes, found: FoundBlocks, names: dict[int, int], numbering: Numbering[str]
) -> None:
    """Add the names in whole blocks to those of a file.

    Args:
        data: whose blocks they are.
        found: these.
        names: number of each name, by its number in the file.
        numbering: numbers them, over all files.
    """
    kinds = np.frombuffer(data, np.uint8)[: len(data) // _SIZE * _SIZE : _SIZE]
    texts = np.flatnonzero(kinds == layout.KIND_TEXT)
    blocks = np.searchsorted(np.array(found.last, np.int64), texts)
    for block in np.unique(blocks[blocks < len(found.last)]).tolist():
        for of, number, text in texts_in(data, found.first[block], found.last[block]):
            if of == layout.TEXT_NAME:
                names[number] = numbering.number(text)
