"""Messages of protobuf in columns: the same fields of many messages, written at once.

A part of messages is matrices of bytes, a row a message, of which some are used; fields stand side
by side, and what is used is the encoding (https://protobuf.dev/programming-guides/encoding/)::

    field 1 = 3       08 03 ..         field 1 = 3, field 2 = 5        08 03 .. 10 05
    field 1 = 300     08 AC 02         field 1 = 300                   08 AC 02 .. ..

A library makes an object of each message, which takes ten times as long.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.values import frozen

Bytes: TypeAlias = npt.NDArray[np.uint8]

_NUMBER, _EIGHT_BYTES, _LENGTH = 0, 1, 2
_EIGHT = 8
_SEVEN_BITS, _MORE = 0x7F, 0x80


@frozen(eq=False)
class Part:
    """A part of each message.

    Attributes:
        contents: bytes, matrices of shape (messages, width), side by side.
        used: which of them are written, in order; likewise.
        length: how many are, shape (messages,).
    """

    contents: tuple[Bytes, ...]
    used: tuple[Bools, ...]
    length: Ints

    def where(self, known: Bools) -> Part:
        """Return the part of messages that have it, nothing of the others."""
        used = tuple(block & known[:, None] for block in self.used)
        return Part(self.contents, used, np.where(known, self.length, 0))

    def __bytes__(self) -> bytes:
        """Return the messages, one behind the other."""
        used = np.concatenate(self.used, axis=1)
        return np.concatenate(self.contents, axis=1)[used].tobytes()


def side_by_side(*parts: Part) -> Part:
    """Return the parts (at least one) of the same messages as one."""
    return Part(
        tuple(block for part in parts for block in part.contents),
        tuple(block for part in parts for block in part.used),
        sum((part.length for part in parts[1:]), parts[0].length),
    )


def number(field: int, values: Ints) -> Part:
    """Return a field of whole numbers: int64, uint64 or enumerations, shape (messages,)."""
    return side_by_side(_constant(_tag(field, _NUMBER), len(values)), _varint(values))


def same_number(field: int, value: int, count: int) -> Part:
    """Return a field that holds one number (0 and up) in so many messages."""
    return _constant(_tag(field, _NUMBER) + _encoded(value), count)


def eight_bytes(field: int, values: Ints | npt.NDArray[np.float64]) -> Part:
    """Return a field of fixed64 or double, shape (messages,)."""
    content = values.astype(values.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, _EIGHT)
    used, length = np.ones(content.shape, bool), np.full(len(content), _EIGHT)
    tag = _constant(_tag(field, _EIGHT_BYTES), len(content))
    return side_by_side(tag, Part((content,), (used,), length))


def message(field: int, *parts: Part) -> Part:
    """Return a field that holds a message of the parts (at least one)."""
    content = side_by_side(*parts)
    tag = _constant(_tag(field, _LENGTH), len(content.length))
    return side_by_side(tag, _varint(content.length), content)


def _tag(field: int, kind: int) -> bytes:
    return _encoded(field << 3 | kind)


def _encoded(value: int) -> bytes:
    """Return a number (0 and up) in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > _SEVEN_BITS:
        groups.append(value & _SEVEN_BITS | _MORE)
        value >>= 7
    return bytes((*groups, value))


def _constant(content: bytes, count: int) -> Part:
    """Return the same bytes for so many messages."""
    shape = count, len(content)
    block = np.empty(shape, np.uint8)
    block[:] = np.frombuffer(content, np.uint8)
    return Part((block,), (np.ones(shape, bool),), np.full(count, len(content)))


def _varint(values: Ints) -> Part:
    """Return numbers of 64 bits as :func:`_encoded` does; negative ones take ten bytes."""
    rest = values.astype(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    shifted = rest[:, None] >> np.arange(0, 7 * width, 7, dtype=np.uint64)
    used = shifted > 0
    used[:, 0] = True
    content = (shifted & _SEVEN_BITS).astype(np.uint8)
    content[:, :-1] |= used[:, 1:] * np.uint8(_MORE)
    return Part((content,), (used,), np.count_nonzero(used, axis=1))
