"""The message as protobuf's wire format (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from bubbleviz.analyses.pgle.files import CostFormat
from bubbleviz.sources.xla.wire import Field, Walk

#: Tags: field number << 3 | wire type (1 is eight bytes, 2 is a length and so many bytes).
_COSTS, _NAME, _COST_US = 1 << 3 | 2, 1 << 3 | 2, 2 << 3 | 1


def write(costs: Mapping[str, float]) -> bytes:
    """Return the message; zeros and empty names are left out, as proto3 does."""
    content = bytearray()
    for name, cost_us in costs.items():
        cost = bytearray()
        if name:
            text = name.encode("utf-8", errors="replace")
            cost += _varint(_NAME) + _varint(len(text)) + text
        if cost_us:
            cost += _varint(_COST_US) + struct.pack("<d", cost_us)
        content += _varint(_COSTS) + _varint(len(cost)) + cost
    return bytes(content)


def read(content: bytes) -> list[tuple[str, float]]:
    """Return the costs; other fields are ignored.

    Raises:
        ValueError: it is not such a message.
    """
    walk, costs = Walk(content), []
    for message in walk.fields(0, len(content)):
        if message.tag != _COSTS:
            continue
        fields = {field.tag: field for field in walk.fields(message.begin, message.end)}
        name = walk.text(fields[_NAME]) if _NAME in fields else ""
        costs.append((name, _cost_us(content, fields.get(_COST_US))))
    if walk.cut:
        raise ValueError("it ends within a field")
    return costs


def _cost_us(content: bytes, field: Field | None) -> float:
    cost_us: float = 0.0
    if field is not None and field.whole:
        (cost_us,) = struct.unpack_from("<d", content, field.begin)
    return cost_us


def _varint(number: int) -> bytes:
    """Return a number by seven bits a byte, the lowest first; all bytes but the last have bit 8."""
    encoded = bytearray()
    while number >= 1 << 7:
        encoded.append(number & 0x7F | 1 << 7)
        number >>= 7
    return bytes((*encoded, number))


FORMAT = CostFormat(".pb", binary=True, write=write, read=read)
