"""The message as protobuf's wire format (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from bubbleviz.pgle_files import Format

#: Tags: field number << 3 | wire type (1 is eight bytes, 2 is a length and so many bytes).
_COSTS, _NAME, _COST_US = 1 << 3 | 2, 1 << 3 | 2, 2 << 3 | 1
_EIGHT_BYTES, _FOUR_BYTES = 1, 5
#: A number of 64 bits takes so many bytes at most.
_LONGEST = 10


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
    costs = []
    for tag, value in _fields(content):
        if tag != _COSTS:
            continue
        own = dict(_fields(value))
        name = own.get(_NAME, b"").decode("utf-8", errors="replace")
        costs.append((name, struct.unpack("<d", own[_COST_US])[0] if _COST_US in own else 0.0))
    return costs


def _varint(number: int) -> bytes:
    """Return a number by seven bits a byte, the lowest first; all bytes but the last have bit 8."""
    found = bytearray()
    while number >= 1 << 7:
        found.append(number & 0x7F | 1 << 7)
        number >>= 7
    return bytes((*found, number))


def _number(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    number = 0
    for place in range(_LONGEST):
        if at + place >= len(content):
            raise ValueError(f"it ends within byte {at}")
        byte = content[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 1 << 7:
            return number, at + place + 1
    raise ValueError(f"the number at byte {at} has no end")


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the bytes of each field."""
    at = 0
    while at < len(content):
        begun = at
        tag, at = _number(content, at)
        kind = tag & 7
        if kind == 0:
            end = _number(content, at)[1]
        elif kind == 2:
            length, at = _number(content, at)
            end = at + length
        elif kind in {_EIGHT_BYTES, _FOUR_BYTES}:
            end = at + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise ValueError(f"byte {begun} begins no field")
        if end > len(content) or tag >> 3 == 0:
            raise ValueError(f"the field at byte {begun} is cut short, or has no number")
        yield tag, content[at:end]
        at = end


FORMAT = Format(".pb", binary=True, write=write, read=read)
