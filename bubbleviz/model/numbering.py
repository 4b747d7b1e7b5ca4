"""Numbering: distinct values numbered from 0, in the order in which they come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import numpy as np

from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.grouping import without
from bubbleviz.native.columns import places
from bubbleviz.native.library import library

Value = TypeVar("Value", bound=Hashable)


class Numbering(Generic[Value]):
    """Numbers values one by one."""

    def __init__(self, values: Iterable[Value] = ()) -> None:
        self._numbers: dict[Value, int] = {}
        for value in values:
            self.number(value)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def values(self) -> tuple[Value, ...]:
        """The distinct values, by number."""
        return tuple(self._numbers)

    def number(self, value: Value) -> int:
        """Return the number of a value, the next one if it is new."""
        return self._numbers.setdefault(value, len(self._numbers))

    def numbers(self, values: Iterable[Value]) -> Ints:
        """Return the numbers of some values, shape (values,)."""
        return np.fromiter(map(self.number, values), np.int64)


class BlockNumbering:
    """Numbers integers that come in blocks, as columns."""

    #: Values from 0 up to this are looked up in a table, 4 bytes each.
    _TABLE = 1 << 24

    def __init__(self) -> None:
        self.values: Ints = np.empty(0, np.int64)
        self._sorted: Ints = self.values
        self._code: Codes = np.empty(0, np.int32)
        self._table: Codes = np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self, values: Ints) -> Codes:
        """Return the numbers of a block of values, shape (rows,)."""
        if len(values) == 0:
            return np.empty(0, np.int32)
        low, high = values.min(), values.max()
        if low == high:
            return np.full(len(values), self._searched(values[:1])[0], np.int32)
        if low < 0 or high >= self._TABLE:
            return self._searched(values)
        if high >= len(self._table):
            room = np.full(int(high) + 1 + len(self._table) // 2, NONE, np.int32)
            room[: len(self._table)] = self._table
            self._table = room
        code = self._table[values]
        unknown = np.flatnonzero(code == NONE)
        if len(unknown):
            self._table[values[unknown]] = self._searched(values[unknown])
            code = self._table[values]
        return code

    def _searched(self, values: Ints) -> Codes:
        known = self._sorted
        native = library()
        place = places(native, known, values) if native else None
        if place is not None:
            found: Codes = self._code[place]
            return found
        at = np.minimum(np.searchsorted(known, values), max(len(known) - 1, 0))
        if len(known) == 0 or not np.array_equal(known[at], values):
            self.values = np.concatenate((self.values, without(values, known)))
            self._code = np.argsort(self.values, kind="stable").astype(np.int32)
            self._sorted = self.values[self._code]
            at = np.searchsorted(self._sorted, values)
        code: Codes = self._code[at]
        return code
