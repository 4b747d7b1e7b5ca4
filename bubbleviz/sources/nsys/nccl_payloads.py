"""Decodes the payloads of NCCL's NVTX ranges.

A payload gives the communicator, message size, peer, root and rank of an operation. For each
function, NCCL registers a payload layout that names the fields
(``src/include/nvtx_payload_schemas.h``). nsys exports the layouts and the payloads. Each payload is
preceded by a 32-byte header, which contains four little-endian 64-bit integers. The first three
integers are the domain, the layout id and the size. The last integer is the offset of the payload,
or the size of header and payload together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Bools, Ints, scatter
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.payloads import Payloads
from bubbleviz.sources.nsys.export import Export

#: Columns of :class:`Payloads`, keyed by field name in the layouts.
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
#: NumPy types of the payload fields, in the order of the type codes in nvToolsExtPayload.h (on
#: Linux). The codes are named ``NVTX_PAYLOAD_ENTRY_TYPE_*``.
_CODES = " i1 u1 <i2 <u2 <i4 <u4 <i8 <u8 <i8 <u8 i1 u1 <i2 <u2 <i4 <u4 <i8 <u8 <f4 <f8"
_TYPES = {code: kind for code, kind in enumerate(_CODES.split(" ")) if kind}
_SIZE, _ADDRESS = 22, 23
_TYPES |= {_SIZE: "<u8", _ADDRESS: "<u8"}
_HEAD = 32
_ROWS = 1 << 18
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})+")

#: Indices of the first rows in a payload array. The rows for ``_COLUMNS`` follow.
_READ, _START, _THREAD, _HASH = range(4)

Bytes = npt.NDArray[np.uint8]
_Key = tuple[int, int]


class _Field(NamedTuple):
    """A layout field: its name, its NumPy type, and its half-open byte range (at, end).

    The type is "" if its code is unknown.
    """

    name: str
    type: str
    at: int
    end: int


def read_payloads(export: Export) -> tuple[Payloads, tuple[Limitation, ...]]:
    """Read the payloads of NCCL's ranges in an nsys export.

    Returns:
        payloads: The payloads that contain a communicator.
        limitations: A limitation if there are no payloads at all, or a limitation that counts the
            payloads whose layout is unknown.

    Raises:
        ProfileError: The export cannot be read.
    """
    path = export.path
    layouts = _read_layouts(export)
    blocks = [_decode_payloads(block, layouts) for block in _iter_blocks(export) if block]
    table = np.concatenate([np.empty((4 + len(_COLUMNS), 0), np.int64), *blocks], axis=1)
    unread = int((table[_READ] == 0).sum())
    payloads = _build_payloads(table[:, table[_READ] != 0])
    if not blocks:
        reason = f"{path}: no range has a payload, so bytes, peers and communicators are unknown"
        return payloads, (Limitation("payloads of NCCL ranges", reason),)
    if not unread:
        return payloads, ()
    reason = f"{path}: these payloads cannot be read because their layout is unknown"
    if not len(payloads):
        # Advanced tracing of NCCL (nsys 2025.6.1) registers other layouts than NCCL itself.
        reason += (
            ", so bytes, peers and communicators are unknown; if NCCL was traced with -t nccl, "
            "profile again with: nsys profile -t cuda,nvtx"
        )
    return payloads, (Limitation("payloads of ranges", reason, unread),)


def _iter_blocks(export: Export) -> Iterator[list[tuple[object, ...]]]:
    """Yield blocks of (start, thread, payload) rows, one row per range that has a payload.

    A block covers at least 262,144 row numbers, and there are at most about 1,024 blocks. If the
    export lacks tables or columns, nothing is yielded.
    """
    if not (export.has("ranges/payloads") and export.has("ranges/bounds")):
        return
    first, last = export.find_bounds("ranges/bounds")
    for start in range(first, last + 1, max(_ROWS, (last - first) // 1024)):
        end = min(start + max(_ROWS, (last - first) // 1024) - 1, last)
        yield export.query_rows("ranges/payloads", {"first": start, "last": end})


def _read_layouts(export: Export) -> Mapping[_Key, Sequence[_Field]]:
    """Return the payload layouts of NCCL's functions, keyed by (domain, layout id).

    A layout belongs to NCCL if it contains a communicator. A layout is left out if the export
    defines it twice with different fields. Fields whose type is unknown are left out.
    """
    fields: dict[_Key, dict[int, _Field]] = {}
    ambiguous: set[_Key] = set()
    if export.has("ranges/payload_entries"):
        for domain, schema, index, kind, name, offset in export.query_rows(
            "ranges/payload_entries"
        ):
            if not (isinstance(domain, int) and isinstance(schema, int)):
                continue
            key = domain, schema
            layout = fields.setdefault(key, {})
            number = index if isinstance(index, int) else len(layout)
            entry = _make_field(layout, number, kind, str(name), offset)
            if layout.get(number, entry) != entry:
                ambiguous.add(key)
            layout[number] = entry
    return {
        key: [f for f in layout.values() if f.type]
        for key, layout in fields.items()
        if key not in ambiguous and any(f.name == _COMMUNICATOR for f in layout.values())
    }


def _make_field(
    layout: Mapping[int, _Field], index: int, kind: object, name: str, offset: object
) -> _Field:
    """Make a layout field.

    If the offset is unknown, the field starts where the previous field ends, rounded up to a
    multiple of the field size. If the previous field is missing or its type is unknown, the field
    starts at 0. A field with an unknown type is assumed to be 1 byte long.

    Args:
        layout: Fields of the layout so far, keyed by index.
        index: Index of the field.
        kind: Type code of the field.
        name: Name of the field.
        offset: Offset of the field in bytes. Anything other than a non-negative integer means
            unknown.
    """
    numpy_type = _TYPES.get(kind, "") if isinstance(kind, int) else ""
    size = np.dtype(numpy_type).itemsize if numpy_type else 1
    if not (isinstance(offset, int) and offset >= 0):
        previous = layout.get(index - 1)
        end = previous.end if previous is not None and previous.type else 0
        offset = -(-end // size) * size
    return _Field(name, numpy_type, offset, offset + size)


def _decode_payloads(
    rows: Sequence[tuple[object, ...]], layouts: Mapping[_Key, Sequence[_Field]]
) -> Ints:
    """Decode hexadecimal payloads.

    For speed, all payloads with the same length and header are decoded together.

    Args:
        rows: (start, thread, hexadecimal payload) of each range.
        layouts: Layouts, keyed by (domain, layout id).

    Returns:
        Array of shape (4 + fields, rows), one column per range. The first four rows are:

        - 1 if the payload contains a communicator, otherwise 0;
        - the start of the range;
        - the thread of the range;
        - the hash of the communicator, or 0 if there is none.

        The fields follow in the order of ``_COLUMNS``. Unknown values are -1.
    """
    table = scatter((4 + len(_COLUMNS), len(rows)), [_READ, _HASH], 0)
    start_ns, thread, texts = (np.array(column, object) for column in zip(*rows, strict=True))
    has_types = _is_type(start_ns, int) & _is_type(thread, int) & _is_type(texts, str)
    table[_START, has_types], table[_THREAD, has_types] = start_ns[has_types], thread[has_types]
    length = np.fromiter(map(len, np.where(has_types, texts, "")), np.int64, len(rows))
    has_header = (length >= 2 * _HEAD) & (length % 2 == 0)
    for digits in find_distinct(length[has_header]).tolist():
        decoded_rows, raw = _decode_hex(texts, np.flatnonzero(length == digits), digits // 2)
        _fill_payloads(table, decoded_rows, raw, layouts)
    return table


def _fill_payloads(
    table: Ints, rows: Ints, raw: Bytes, layouts: Mapping[_Key, Sequence[_Field]]
) -> None:
    """Decode payloads of equal length and write them to the payload array.

    The fields start at the offset given in the header. If this offset is invalid, the fields
    immediately follow the header. An offset is invalid if it is inside the header, or if too few
    bytes follow it for the payload.

    Args:
        table: Payload array as returned by :func:`_decode_payloads`, changed in place.
        rows: Columns of ``table`` to fill, one per payload.
        raw: The headers and payloads as bytes, shape (payloads, bytes).
        layouts: Layouts, keyed by (domain, layout id).
    """
    head = raw[:, :_HEAD].copy().view("<i8").astype(np.int64)
    # The upper 32 bits of the domain and the layout id are reserved.
    head[:, :2] &= 0xFFFFFFFF
    groups = group_rows(*head.T)
    for number, first in enumerate(groups.first.tolist()):
        domain, schema, size, offset = head[first].tolist()
        if offset < _HEAD or offset + size > raw.shape[1]:
            offset = _HEAD
        members = groups.of_row == number
        layout = layouts.get((domain, schema), ())
        _fill_fields(table, rows[members], raw[members, offset:], layout)


def _is_type(values: npt.NDArray[np.object_], kind: type) -> Bools:
    return np.asarray(np.array([*map(type, values)], object) == kind, bool)


def _decode_hex(texts: npt.NDArray[np.object_], rows: Ints, size: int) -> tuple[Ints, Bytes]:
    """Decode hexadecimal texts of equal length.

    Args:
        texts: All texts.
        rows: Indices of the texts to decode.
        size: Number of bytes that each text encodes.

    Returns:
        rows: Indices of the texts that are valid hexadecimal.
        content: The decoded bytes of these texts, shape (rows, size).
    """
    try:
        content = bytes.fromhex("".join(texts[rows]))
    except ValueError:
        content = b""
    # fromhex skips whitespace between digits, so a text that contains whitespace yields too few
    # bytes.
    if len(content) != len(rows) * size:
        rows = rows[[_HEX.fullmatch(text) is not None for text in texts[rows]]]
        content = bytes.fromhex("".join(texts[rows]))
    return rows, np.frombuffer(content, np.uint8).reshape(len(rows), size)


def _fill_fields(table: Ints, rows: Ints, raw: Bytes, layout: Sequence[_Field]) -> None:
    """Decode payloads with the same layout and length, and write them to the payload array.

    Fields that are not in ``FIELDS``, and fields beyond the end of the payload, are skipped.
    Negative values and values of 2^62 or more become -1.

    Args:
        table: Payload array as returned by :func:`_decode_payloads`, changed in place.
        rows: Columns of ``table`` to fill, one per payload.
        raw: The payloads as bytes, without headers, shape (payloads, bytes).
        layout: Fields of the layout.
    """
    for entry in layout:
        if entry.name not in FIELDS or entry.end > raw.shape[1]:
            continue
        column = raw[:, entry.at : entry.end].copy().view(entry.type)[:, 0]
        if entry.name != _COMMUNICATOR:
            # Values that are out of range are treated as missing.
            wide = column
            if column.dtype.kind != "f" and column.itemsize < 8:
                wide = column.astype(int)
            is_valid = (wide >= 0) & (wide < 1 << 62)
            table_row = 4 + _COLUMNS.index(FIELDS[entry.name])
            table[table_row, rows] = np.where(
                is_valid, np.where(is_valid, wide, 0).astype(int), NONE
            )
        elif column.dtype.kind != "f":
            table[_HASH, rows], table[_READ, rows] = column.astype(np.uint64).view(np.int64), 1


def _build_payloads(table: Ints) -> Payloads:
    """Convert a payload array to :class:`Payloads`, with one row per column of the array.

    Communicators are numbered in order of first appearance.
    """
    groups = group_rows(table[_HASH]).order_by_appearance()
    return Payloads(
        start_ns=table[_START],
        thread=table[_THREAD],
        communicator=groups.of_row,
        **{name: table[4 + place].copy() for place, name in enumerate(_COLUMNS)},
        communicators=tuple(table[_HASH, groups.first].view(np.uint64).tolist()),
    )
