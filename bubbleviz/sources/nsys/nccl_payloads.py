"""Payloads of NCCL's ranges: communicator, bytes, peer, root and rank of each operation.

NCCL registers a layout for each function (``src/include/nvtx_payload_schemas.h``), by names of
fields; nsys exports the layouts, and each range's bytes behind a head of 32: domain, layout, size,
and where they begin (or what head and bytes take together), each in 8 bytes, little endian.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bubbleviz.model.collectives import Payloads
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of, places_in
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.export import Export

#: Names of fields, and their columns here.
FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "bytes",
    "Peer rank": "peer",
    "Root": "root",
    "No. of ranks": "ranks",
    "Rank": "rank",
    "CUDA device": "device",
}
_COMMUNICATOR = "NCCL communicator ID"
_COLUMNS = tuple(column for column in FIELDS.values() if column != "communicator")
#: Types of fields (``NVTX_PAYLOAD_ENTRY_TYPE_*`` of nvToolsExtPayload.h, on Linux).
_CODES = " i1 u1 <i2 <u2 <i4 <u4 <i8 <u8 <i8 <u8 i1 u1 <i2 <u2 <i4 <u4 <i8 <u8 <f4 <f8"
_TYPES = {code: kind for code, kind in enumerate(_CODES.split(" ")) if kind}
_SIZE, _ADDRESS = 22, 23
_TYPES |= {_SIZE: "<u8", _ADDRESS: "<u8"}
_HEAD = 32
_ROWS = 1 << 18
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})+")

Bytes = npt.NDArray[np.uint8]
_Key = tuple[int, int]


@frozen
class _Field:
    """A field of a layout: its name, its numpy type, and where it begins."""

    name: str
    type: str
    at: int

    @property
    def size(self) -> int:
        return np.dtype(self.type).itemsize

    @property
    def end(self) -> int:
        return self.at + self.size


@frozen
class _Block:
    """Payloads of some rows, that are filled in; unknown fields are -1.

    Attributes:
        read: whether a payload holds a communicator.
        start_ns: when its range began.
        thread: that opened it.
        hash: of its communicator.
        values: the rest, shape (fields, rows), in the order of ``_COLUMNS``.
    """

    read: Bools
    start_ns: Ints
    thread: Ints
    hash: npt.NDArray[np.uint64]
    values: Ints

    @classmethod
    def of(cls, rows: int) -> _Block:
        """Return a block in which nothing is known yet."""
        start_ns, thread = np.full((2, rows), NONE, np.int64)
        values = np.full((len(_COLUMNS), rows), NONE, np.int64)
        return cls(np.zeros(rows, bool), start_ns, thread, np.zeros(rows, np.uint64), values)

    def __len__(self) -> int:
        return len(self.read)


def read_payloads(export: Export) -> tuple[Payloads, tuple[Limitation, ...]]:
    """Return the payloads of NCCL's ranges in an export of nsys, and what could not be read.

    Raises:
        ProfileError: the export cannot be read.
    """
    path = export.path
    layouts, twice = _layouts(export)
    blocks = [_decoded(block, layouts) for block in _blocks(export) if block]
    if not blocks:
        reason = f"{path}: its ranges carry none; bytes, peers and communicators are unknown"
        return _payloads([_Block.of(0)]), (Limitation("payloads of NCCL's ranges", reason),)
    payloads = _payloads(blocks)
    unread = sum(map(len, blocks)) - len(payloads)
    if not unread:
        return payloads, ()
    why = "two processes use one layout's number" if twice else "their layout is not known"
    reason = f"{path}: cannot be read ({why})"
    return payloads, (Limitation("payloads of ranges", reason, unread),)


def _blocks(export: Export) -> Iterator[list[tuple[object, ...]]]:
    if not (export.has("ranges/payloads") and export.has("ranges/bounds")):
        return
    first, last = export.bounds("ranges/bounds")
    for at in range(first, last + 1, max(_ROWS, (last - first) // 1024)):
        end = min(at + max(_ROWS, (last - first) // 1024) - 1, last)
        yield export.rows("ranges/payloads", {"first": at, "last": end})


def _layouts(export: Export) -> tuple[Mapping[_Key, Sequence[_Field]], bool]:
    """Return the layouts of NCCL's functions, and whether a number stands for two."""
    fields: dict[_Key, dict[int, _Field]] = {}
    ambiguous: set[_Key] = set()
    if export.has("ranges/payload_entries"):
        for domain, schema, place, kind, name, at in export.rows("ranges/payload_entries"):
            if not (isinstance(domain, int) and isinstance(schema, int)):
                continue
            key = domain, schema
            layout = fields.setdefault(key, {})
            number = place if isinstance(place, int) else len(layout)
            entry = _field(layout, number, kind, str(name), at)
            if layout.get(number, entry) != entry:
                ambiguous.add(key)
            layout[number] = entry
    sizes: dict[_Key, int] = {}
    if export.has("ranges/payload_schemas"):
        for domain, schema, size in export.rows("ranges/payload_schemas"):
            if isinstance(domain, int) and isinstance(schema, int) and isinstance(size, int):
                sizes[domain, schema] = max(size, sizes.get((domain, schema), 0))
    layouts = {
        key: [f for f in layout.values() if f.type and f.end <= sizes.get(key, f.end)]
        for key, layout in fields.items()
        if key not in ambiguous and any(f.name == _COMMUNICATOR for f in layout.values())
    }
    return layouts, bool(ambiguous)


def _field(layout: Mapping[int, _Field], place: int, kind: object, name: str, at: object) -> _Field:
    """Return a field; one without an offset follows the one before, aligned."""
    numpy_type = _TYPES.get(kind, "") if isinstance(kind, int) else ""
    if isinstance(at, int) and at >= 0:
        return _Field(name, numpy_type, at)
    before = layout.get(place - 1)
    end = before.end if before is not None and before.type else 0
    size = np.dtype(numpy_type).itemsize if numpy_type else 1
    return _Field(name, numpy_type, -(-end // size) * size)


def _decoded(
    rows: Sequence[tuple[object, ...]], layouts: Mapping[_Key, Sequence[_Field]]
) -> _Block:
    """Return the fields of some payloads, decoded at once for each layout and length."""
    block = _Block.of(len(rows))
    start_ns, thread, texts = (np.array(column, object) for column in zip(*rows, strict=True))
    known = _are(start_ns, int) & _are(thread, int) & _are(texts, str)
    block.start_ns[known], block.thread[known] = start_ns[known], thread[known]
    length = np.fromiter(map(len, np.where(known, texts, "")), np.int64, len(rows))
    whole = (length >= 2 * _HEAD) & (length % 2 == 0)
    for digits in distinct(length[whole]).tolist():
        at, raw = _bytes_of(texts, np.flatnonzero(length == digits), digits // 2)
        head = raw[:, :_HEAD].copy().view("<i8").astype(np.int64)
        # The upper half of the first two is reserved.
        head[:, :2] &= 0xFFFFFFFF
        groups = groups_of(*head.T)
        for number, first in enumerate(groups.first.tolist()):
            domain, schema, size, begin = head[first].tolist()
            members = groups.of_row == number
            offset = begin if begin >= _HEAD and begin + size <= raw.shape[1] else _HEAD
            _fill(block, at[members], raw[members, offset:], layouts.get((domain, schema), ()))
    return block


def _are(values: npt.NDArray[np.object_], kind: type) -> Bools:
    return np.asarray(np.array([*map(type, values)], object) == kind, bool)


def _bytes_of(texts: npt.NDArray[np.object_], rows: Ints, size: int) -> tuple[Ints, Bytes]:
    """Return which texts of so many bytes are hexadecimal, and their bytes, one row a text."""
    try:
        content = bytes.fromhex("".join(texts[rows]))
    except ValueError:
        content = b""
    # fromhex skips white space between digits, which makes the bytes fewer.
    if len(content) != len(rows) * size:
        rows = rows[[_HEX.fullmatch(text) is not None for text in texts[rows]]]
        content = bytes.fromhex("".join(texts[rows]))
    return rows, np.frombuffer(content, np.uint8).reshape(len(rows), size)


def _fill(block: _Block, at: Ints, raw: Bytes, layout: Sequence[_Field]) -> None:
    """Fill in the fields of payloads of one layout and length, without their heads."""
    for entry in layout:
        if entry.name not in FIELDS or entry.end > raw.shape[1]:
            continue
        column = raw[:, entry.at : entry.end].copy().view(entry.type)[:, 0]
        if entry.name != _COMMUNICATOR:
            # A number out of all bounds is none.
            wide = column if column.dtype.kind == "f" or entry.size == 8 else column.astype(int)
            known = (wide >= 0) & (wide < 1 << 62)
            place = _COLUMNS.index(FIELDS[entry.name])
            block.values[place, at] = np.where(known, np.where(known, wide, 0).astype(int), NONE)
        elif column.dtype.kind != "f":
            block.hash[at], block.read[at] = column.astype(np.uint64), True


def _payloads(blocks: Sequence[_Block]) -> Payloads:
    """Return the payloads that were read, in the export's order."""
    read = np.concatenate([block.read for block in blocks])
    hashes, first, of_row = np.unique(
        np.concatenate([block.hash for block in blocks])[read],
        return_index=True,
        return_inverse=True,
    )
    order = np.argsort(first)
    values = np.concatenate([block.values for block in blocks], axis=1)[:, read]
    return Payloads(
        start_ns=np.concatenate([block.start_ns for block in blocks])[read],
        thread=np.concatenate([block.thread for block in blocks])[read],
        communicator=places_in(order)[of_row.reshape(-1)],
        **{name: values[place].copy() for place, name in enumerate(_COLUMNS)},
        communicators=tuple(hashes[order].tolist()),
    )
