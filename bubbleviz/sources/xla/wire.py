"""Protobuf's encoding, walked over a file and decoded as columns.

A message is fields, one after the other: a tag (number << 3 | kind), and a value of that kind
(https://protobuf.dev/programming-guides/encoding/). Two ways of reading suit files of gigabytes,
of which a library would make millions of objects: large messages are walked, field by field,
without decoding their contents; of many small ones the k-th fields of all are decoded at once::

    messages    08 05 10 AC 02     08 07 18 01     08 05 10 7F
    at once     ^^^^^              ^^^^^           ^^^^^            the first fields
                      ^^^^^^^^           ^^^^^           ^^^^^      the second ones

A file was cut short where its last field reaches beyond the file's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.values import frozen
from bubbleviz.sources.xla.file_content import FileContent

#: Bytes of a number of 64 bits, at most.
_LONGEST = 10
_NUMBER, _LENGTH = 0, 2
#: Bytes behind the tag, by the kinds of fields that have a fixed length.
_FIXED = {1: 8, 5: 4}
#: Bytes of repeated messages that are one stretch.
_STRETCH = 4 << 20

Content: TypeAlias = FileContent | bytes
Bytes: TypeAlias = npt.NDArray[np.uint8]


class MalformedError(ValueError):
    """The bytes are not a message."""


class _ShortError(Exception):
    """The bytes end before a number does."""


@frozen
class Field:
    """A field in a file.

    Attributes:
        tag: number << 3 | kind.
        value: of a number; else 0.
        begin: place where its content begins.
        end: place behind its content.
        whole: whether all of its content is in the file.
    """

    tag: int
    value: int
    begin: int
    end: int
    whole: bool

    @property
    def number(self) -> int:
        """The number of the field in its message."""
        return self.tag >> 3


@dataclass
class Walk:
    """A file that is walked.

    Attributes:
        content: its bytes.
        cut: whether it is known to end within a field.
    """

    content: Content
    cut: bool = False

    def fields(self, at: int, end: int) -> Iterator[Field]:
        """Yield the fields in a stretch of the file.

        Raises:
            MalformedError: a field is malformed, or does not end within its message.
        """
        while at < end:
            try:
                field = self._field(at, end)
            except _ShortError:
                self._ended(end)
                return
            if not field.whole:
                self._ended(end)
            yield field
            at = field.end

    def text(self, field: Field) -> str:
        """Return a field's content; bytes that are not UTF-8 are replaced."""
        return self.content[field.begin : field.end].decode("utf-8", errors="replace")

    def _field(self, at: int, end: int) -> Field:
        tag, begin = number_at(self.content, at, end)
        kind, value = tag & 7, 0
        if kind == _NUMBER:
            value, stop = number_at(self.content, begin, end)
        elif kind == _LENGTH:
            length, begin = number_at(self.content, begin, end)
            stop = begin + length
        elif kind in _FIXED:
            stop = begin + _FIXED[kind]
        else:
            raise MalformedError(f"no field begins at byte {at}")
        if tag >> 3 == 0:
            raise MalformedError(f"the field at byte {at} has no number")
        return Field(tag, signed(value), begin, min(stop, end), stop <= end)

    def _ended(self, end: int) -> None:
        """Note that the file was cut short; raise MalformedError where it goes on."""
        if end < len(self.content):
            raise MalformedError(f"a field reaches beyond byte {end}, where its message ends")
        self.cut = True

    def stretches(self, at: int, end: int, number: int) -> Iterator[Field]:
        """Yield fields, and of each stretch of repeated whole messages one that spans them all.

        Args:
            at: where the fields begin.
            end: where they end.
            number: of the repeated field, below 16.
        """
        tag = number << 3 | _LENGTH
        while at < end:
            stop = self._over(tag, at, end)
            if stop > at:
                yield Field(tag, 0, at, stop, whole=True)
            else:
                field = next(self.fields(at, end), None)
                if field is None or not field.whole:
                    return
                yield field
                stop = field.end
            at = stop

    def _over(self, tag: int, at: int, end: int, begins: list[int] | None = None) -> int:
        """Return the place behind some megabytes of messages under one tag, and note their places.

        Only its length shows where the next message begins, so that each is looked at.
        """
        until = min(at + _STRETCH, end)
        # Where the file goes on behind the last of them, so does its length.
        content = self.content[at : min(until + 1 + _LONGEST, end)]
        first, last = at, end - at
        at, until = 0, until - first
        while at < until and content[at] == tag:
            # Most are short: their length is one byte.
            length = content[at + 1] if at + 1 < last else 0x80
            begin = at + 2
            if length >= 0x80:
                try:
                    length, begin = number_at(content, at + 1, last)
                except _ShortError:
                    break
            if begin + length > last:
                break
            at = begin + length
            if begins is not None:
                begins.extend((first + begin, first + at))
        return first + at

    def messages(self, stretch: Field) -> Messages:
        """Return the messages of a stretch, to be decoded."""
        content = self.content[stretch.begin : stretch.end]
        places: list[int] = []
        Walk(content)._over(stretch.tag, 0, len(content), places)
        begin, end = np.array(places, np.int64).reshape(-1, 2).T
        return Messages(np.frombuffer(content, np.uint8), begin, end)


def number_at(content: Content, at: int, end: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it.

    Raises:
        MalformedError: it has no end.
    """
    number = 0
    for place in range(_LONGEST):
        if at + place >= end:
            raise _ShortError
        byte = content[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 1 << 7:
            return number, at + place + 1
    raise MalformedError(f"the number at byte {at} has no end")


def signed(number: int) -> int:
    """Return a number of 64 bits without a sign as one with a sign."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


@frozen
class Messages:
    """Many small messages.

    Attributes:
        data: bytes, shape (bytes,).
        begin: where each begins, shape (messages,).
        end: where each ends.
    """

    data: Bytes
    begin: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def text(self, row: int) -> str:
        """Return the bytes of one as a text."""
        content = self.data[int(self.begin[row]) : int(self.end[row])].tobytes()
        return content.decode("utf-8", errors="replace")

    def decoded(
        self, numbers: Sequence[int], inner: Sequence[int]
    ) -> tuple[Mapping[int, Ints], Mapping[int, tuple[Ints, Messages]]]:
        """Return the values of some fields of each message.

        Args:
            numbers: fields that are numbers; 0 where a message lacks it, its last where it has
                several.
            inner: fields that are messages or texts.

        Returns:
            By field the numbers, shape (messages,); and by field the row of each inner message,
            and these.

        Raises:
            MalformedError: a field is malformed, or does not end within its message.
        """
        values = {number: np.zeros(len(self), np.int64) for number in numbers}
        places: dict[int, list[tuple[Ints, Ints, Ints]]] = {number: [] for number in inner}
        rows, at, end = np.arange(len(self)), self.begin, self.end
        while True:
            going = at < end
            if not going.all():
                rows, at, end = rows[going], at[going], end[going]
            if len(rows) == 0:
                break
            field, value, begin, at = self._next(at, end)
            for number, column in values.items():
                hit = field == (number << 3 | _NUMBER)
                column[rows[hit]] = value[hit]
            for number, of_number in places.items():
                hit = field == (number << 3 | _LENGTH)
                if hit.any():
                    of_number.append((rows[hit], begin[hit], at[hit]))
        return values, {n: self._inner(of_number) for n, of_number in places.items()}

    def _inner(self, places: Sequence[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Messages]:
        none = np.empty(0, np.int64)
        rows, begin, end = (
            np.concatenate(c) for c in zip((none, none, none), *places, strict=True)
        )
        return rows, Messages(self.data, begin, end)

    def _next(self, at: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return tag, number, begin and end of the fields at some places."""
        tag, begin = self._numbers(at, end)
        kind = tag & 7
        value, stop = np.zeros(len(at), np.int64), begin.copy()
        for fixed, length in _FIXED.items():
            stop[kind == fixed] += length
        plain = (kind == _NUMBER) | (kind == _LENGTH)
        value[plain], stop[plain] = self._numbers(begin[plain], end[plain])
        long = kind == _LENGTH
        begin = np.where(long, stop, begin)
        # An impossible length must not wrap around.
        fits = (value >= 0) & (value <= end - begin)
        stop = np.where(long, begin + np.where(fits, value, 0), stop)
        known: Bools = np.isin(kind, (_NUMBER, _LENGTH, *_FIXED)) & (tag >> 3 != 0)
        if not (known & (fits | ~long) & (stop <= end)).all():
            raise MalformedError("an event or a statistic of one cannot be decoded")
        return tag, value, begin, stop

    def _numbers(self, at: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the numbers at some places, and the places behind them."""
        at, rows = at.copy(), np.arange(len(at))
        value = np.zeros(len(at), np.uint64)
        for place in range(_LONGEST):
            if (at[rows] >= end[rows]).any():
                break
            byte = self.data[at[rows]]
            value[rows] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
            at[rows] += 1
            rows = rows[byte >= 1 << 7]
            if len(rows) == 0:
                return value.view(np.int64), at
        raise MalformedError("a number of an event has no end")


NO_MESSAGES = Messages(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))
