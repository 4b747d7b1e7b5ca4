"""Payloads: what NCCL's ranges carry as bytes: communicator, bytes, peer, root, rank.

NCCL registers a layout for each function (``src/include/nvtx_payload_schemas.h``), by names of
fields; nsys exports the layouts, and each range's bytes behind a head of 32: domain, layout, size,
and where they begin (or what head and bytes take together), each in 8 bytes, little endian.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bubbleviz.columns import NONE, Ints, Table
from bubbleviz.exports import Export, opened
from bubbleviz.model import Limitation
from bubbleviz.queries import query

#: What fields are called, and their columns here.
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


@dataclass(frozen=True)
class Payloads(Table):
    """What ranges of NCCL carry: one row a range that carries something; -1 is none.

    Attributes:
        start_ns: when the range began.
        thread: that opened it.
        communicator: row of ``communicators``.
        bytes: of the message.
        peer: rank that it goes to or comes from.
        root: rank that it starts from or ends at.
        ranks: how many ranks the communicator has.
        rank: own rank in it.
        device: own GPU.
        communicators: NCCL's hashes of them.
    """

    start_ns: Ints
    thread: Ints
    communicator: Ints
    bytes: Ints
    peer: Ints
    root: Ints
    ranks: Ints
    rank: Ints
    device: Ints
    communicators: tuple[int, ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class _Field:
    """A field of a layout: its name, its numpy type, and where it begins."""

    name: str
    type: str
    at: int

    @property
    def end(self) -> int:
        return self.at + np.dtype(self.type).itemsize


def read_payloads(path: str) -> tuple[Payloads, tuple[Limitation, ...]]:
    """Return what ranges of NCCL carry in an export of nsys, and what could not be told.

    Raises:
        ProfileError: the export cannot be read.
    """
    with opened(path) as export:
        rows = [row for block in _blocks(export) for row in block]
        layouts, twice = _layouts(export)
    if not rows:
        because = f"{path}: its ranges carry none; bytes, peers and communicators are unknown"
        return _payloads([], []), (Limitation("payloads of NCCL's ranges", because),)
    start_ns, thread, found, unread = _decoded(rows, layouts)
    payloads = _payloads(list(zip(start_ns, thread, strict=True)), found)
    if not unread:
        return payloads, ()
    why = "two processes use one layout's number" if twice else "their layout is not known"
    because = f"{path}: cannot be read ({why})"
    return payloads, (Limitation("payloads of ranges", because, unread),)


def _blocks(export: Export) -> Iterator[list[tuple[object, ...]]]:
    if not (export.has("payloads") and export.has("range_rows")):
        return
    first, last = export.bounds("range_rows")
    for at in range(first, last + 1, max(_ROWS, (last - first) // 1024)):
        end = min(at + max(_ROWS, (last - first) // 1024) - 1, last)
        yield export.rows(query("nsys/payloads"), {"first": at, "last": end})


def _layouts(export: Export) -> tuple[Mapping[_Key, Sequence[_Field]], bool]:
    """Return the layouts of NCCL's functions, and whether a number stands for two."""
    fields: dict[_Key, dict[int, _Field]] = {}
    strange: set[_Key] = set()
    if export.has("payload_entries"):
        for domain, schema, place, kind, name, at in export.rows(query("nsys/payload_entries")):
            if not (isinstance(domain, int) and isinstance(schema, int)):
                continue
            key = domain, schema
            held = fields.setdefault(key, {})
            number = place if isinstance(place, int) else len(held)
            own = _field(held, number, kind, str(name), at)
            if number in held and held[number] != own:
                strange.add(key)
            held[number] = own
    sizes: dict[_Key, int] = {}
    if export.has("payload_schemas"):
        for domain, schema, size in export.rows(query("nsys/payload_schemas")):
            if isinstance(domain, int) and isinstance(schema, int) and isinstance(size, int):
                sizes[domain, schema] = max(size, sizes.get((domain, schema), 0))
    layouts = {
        key: [f for f in held.values() if f.type and f.end <= sizes.get(key, f.end)]
        for key, held in fields.items()
        if key not in strange and any(f.name == _COMMUNICATOR for f in held.values())
    }
    return layouts, bool(strange)


def _field(held: Mapping[int, _Field], place: int, kind: object, name: str, at: object) -> _Field:
    """Return a field; one whose place is not told follows the one before, aligned."""
    numpy_type = _TYPES.get(kind, "") if isinstance(kind, int) else ""
    if isinstance(at, int) and at >= 0:
        return _Field(name, numpy_type, at)
    before = held.get(place - 1)
    end = before.end if before is not None and before.type else 0
    size = np.dtype(numpy_type).itemsize if numpy_type else 1
    return _Field(name, numpy_type, -(-end // size) * size)


def _decoded(
    rows: Sequence[tuple[object, ...]], layouts: Mapping[_Key, Sequence[_Field]]
) -> tuple[list[int], list[int], list[Mapping[str, int]], int]:
    """Return start, thread and fields of each payload of NCCL, and how many cannot be read."""
    by_length: dict[int, list[tuple[int, int, str]]] = {}
    unread = 0
    for start, thread, text in rows:
        known = isinstance(text, str) and _HEX.fullmatch(text) and len(text) >= 2 * _HEAD
        if not (known and isinstance(start, int) and isinstance(thread, int)):
            unread += 1
            continue
        by_length.setdefault(len(str(text)), []).append((start, thread, str(text)))
    start_ns: list[int] = []
    threads: list[int] = []
    found: list[Mapping[str, int]] = []
    for length, own in by_length.items():
        raw = np.frombuffer(bytes.fromhex("".join(text for *_, text in own)), np.uint8)
        raw = raw.reshape(len(own), length // 2)
        head = raw[:, :_HEAD].copy().view("<u8")
        # The upper half of the first two is reserved.
        keys, of_row = np.unique(head[:, :2] & 0xFFFFFFFF, axis=0, return_inverse=True)
        for number, key in enumerate(map(tuple, keys.tolist())):
            at = np.flatnonzero(of_row.reshape(-1) == number)
            layout = layouts.get(key)
            if layout is None:
                unread += len(at)
                continue
            values = _values(raw[at], head[at], layout)
            if "communicator" not in values:
                unread += len(at)
                continue
            start_ns += [own[i][0] for i in at.tolist()]
            threads += [own[i][1] for i in at.tolist()]
            names = list(values)
            columns = [values[name] for name in names]
            found += [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)]
    return start_ns, threads, found, unread


def _values(
    raw: Bytes, head: npt.NDArray[np.uint64], layout: Sequence[_Field]
) -> dict[str, list[int]]:
    """Return the fields of payloads of one layout and length."""
    size, begin = int(head[0, 2]), int(head[0, 3])
    offset = begin if begin >= _HEAD and begin + size <= raw.shape[1] else _HEAD
    values: dict[str, list[int]] = {}
    for own in layout:
        if own.name in FIELDS and offset + own.end <= raw.shape[1]:
            column = raw[:, offset + own.at : offset + own.end].copy().view(own.type)[:, 0]
            values[FIELDS[own.name]] = column.tolist()
    return values


def _payloads(places: Sequence[tuple[int, int]], found: Sequence[Mapping[str, int]]) -> Payloads:
    communicators: dict[int, int] = {}
    own = [
        NONE
        if "communicator" not in each
        else communicators.setdefault(each["communicator"], len(communicators))
        for each in found
    ]

    def column(name: str) -> Ints:
        values = (each.get(name, NONE) for each in found)
        return np.array([v if 0 <= v < 1 << 62 else NONE for v in values], np.int64)

    where = np.array(places, np.int64).reshape(-1, 2)
    return Payloads(
        start_ns=where[:, 0].copy(),
        thread=where[:, 1].copy(),
        communicator=np.array(own, np.int64),
        **{name: column(name) for name in FIELDS.values() if name != "communicator"},
        communicators=tuple(communicators),
    )
