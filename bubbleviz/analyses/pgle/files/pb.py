"""The message as protobuf's wire format (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from bubbleviz.analyses.pgle.files import Format
from bubbleviz.sources.xla.wire import Field, Walk

#: Tags: field number << 3 | wire type (1 is eight bytes, 2 is a length and so many bytes).
_COSTS, _NAME, _COST_US = 1 << 3 | 2, 1 << 3 | 2, 2 << 3 | 1


def write(costs: Mapping[str, float]) -> bytes:
    """Return the message; zeros and empty names are left out, as proto3 does."""
    content = bytearray()
    for name, cost_us in costs.items():
        own = bytearray()
        if name:
            text = name.encode("utf-8", errors="replace")
            own += _varint(_NAME) + _varint(len(text)) + text
        if cost_us:
            own += _varint(_COST_US) + struct.pack("<d", cost_us)
        content += _varint(_COSTS) + _varint(len(own)) + own
    return bytes(content)


def read(content: bytes) -> list[tuple[str, float]]:
    """Return the costs; fields of other numbers are passed over.

    Raises:
        ValueError: it is no such message.
    """
    walk, costs = Walk(content), []
    for told in walk.fields(0, len(content)):
        if told.tag != _COSTS:
            continue
        own = {field.tag: field for field in walk.fields(told.begin, told.end)}
        name = walk.text(own[_NAME]) if _NAME in own else ""
        costs.append((name, _cost_us(content, own.get(_COST_US))))
    if walk.cut:
        raise ValueError("it ends within a field")
    return costs


def _cost_us(content: bytes, field: Field | None) -> float:
    found: float = 0.0
    if field is not None and field.whole:
        (found,) = struct.unpack_from("<d", content, field.begin)
    return found


def _varint(number: int) -> bytes:
    """Return a number by seven bits a byte, the lowest first; all bytes but the last have bit 8."""
    found = bytearray()
    while number >= 1 << 7:
        found.append(number & 0x7F | 1 << 7)
        number >>= 7
    return bytes((*found, number))


FORMAT = Format(".pb", binary=True, write=write, read=read)
