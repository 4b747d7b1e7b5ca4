"""Assign numbers to distinct values, from 0, in the order of their first occurrence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Generic, TypeVar

import numpy as np

from bubbleviz.model.columns import (
    NONE,
    Bools,
    Codes,
    Ints,
    Table,
    TableT,
    join_tables,
    scatter,
)
from bubbleviz.model.grouping import group_rows, subtract_values
from bubbleviz.native import functions as native

Value = TypeVar("Value", bound=Hashable)


class Numbering(Generic[Value]):
    """Assigns consecutive numbers to distinct values, one value at a time."""

    def __init__(self, values: Iterable[Value] = ()) -> None:
        # The default of a missing key is the next number.
        self._numbers: defaultdict[Value, int] = defaultdict(count().__next__)
        self.numbers(values)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def values(self) -> tuple[Value, ...]:
        """The distinct values, indexed by number."""
        return tuple(self._numbers)

    def number(self, value: Value) -> int:
        """Return the number of a value. A new value gets the next number."""
        return self._numbers[value]

    def numbers(self, values: Iterable[Value]) -> Ints:
        """Return the number of each value, shape (values,). New values get the next numbers."""
        return np.fromiter(map(self._numbers.__getitem__, values), np.int64)


def merge_tables(tables: Sequence[TableT], **columns: Sequence[str]) -> TableT:
    """Concatenate tables, and renumber the columns that are indices into a shared field.

    Args:
        tables: At least one table. The shared fields contain the values of each table.
        columns: Names of the columns that contain indices of a shared field (or -1), keyed by the
            name of the field.

    Returns:
        A table with the distinct values of all tables, and with the indices adapted.
    """
    numberings = {shared: Numbering[Any]() for shared in columns}
    renumbered_tables = []
    for table in tables:
        renumbered: dict[str, Ints] = {}
        for shared, names in columns.items():
            # Index -1 selects the appended -1.
            number = np.append(numberings[shared].numbers(getattr(table, shared)), NONE)
            renumbered |= {name: number[getattr(table, name)] for name in names}
        renumbered_tables.append(table.replace_columns(**renumbered))
    values = {shared: numbering.values for shared, numbering in numberings.items()}
    return replace(join_tables(renumbered_tables), **values)


class BlockNumbering:
    """Assigns consecutive numbers to distinct integers, one column at a time.

    Attributes:
        values: The distinct integers, indexed by number.
    """

    def __init__(self) -> None:
        self.values: Ints = np.empty(0, np.int64)
        self._sorted: Ints = self.values
        self._code: Codes = np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self, values: Ints) -> Codes:
        """Return the number of each value of a column, shape (rows,).

        New values get the next numbers, in ascending order of the values.
        """
        values = np.asarray(values, np.int64)
        numbers = native.lookup_numbers(values, self._sorted, self._code)
        if numbers is not None:
            return numbers
        if len(new := subtract_values(values, self._sorted)):
            self.values = np.concatenate((self.values, new))
            self._code = np.argsort(self.values, kind="stable").astype(np.int32)
            self._sorted = self.values[self._code]
            numbers = native.lookup_numbers(values, self._sorted, self._code)
        return self._code[np.searchsorted(self._sorted, values)] if numbers is None else numbers


@dataclass(frozen=True, eq=False, repr=False)
class CodedTexts(Table):
    """A column of texts, stored as codes; some rows may have no text.

    ::

        texts    "F 0"  "B 0"  "F 1"
        code       0      2      1     -1      ->  "F 0", "F 1", "B 0", none

    Attributes:
        code: Index into ``texts`` for each row, shape (rows,), or -1 for no text.
        texts: The distinct texts. Not all of them need to occur.
    """

    code: Ints
    texts: Sequence[str] = field(metadata={"shared": True})

    @property
    def known(self) -> Bools:
        """Mask of the rows that have a text, shape (rows,)."""
        return np.asarray(self.code != NONE)

    def at(self, rows: Ints) -> CodedTexts:
        """Return the texts of the given rows. Row -1 has no text."""
        has_row = rows != NONE
        return CodedTexts(scatter(len(rows), has_row, self.code[rows[has_row]]), self.texts)

    def drop_unused(self) -> CodedTexts:
        """Return the same rows, with unused texts removed."""
        has_text = self.known
        used_codes, code = np.unique(self.code[has_text], return_inverse=True)
        renumbered = scatter(len(self), has_text, code.reshape(-1))
        return CodedTexts(renumbered, [self.texts[place] for place in used_codes.tolist()])

    def listed(self, none: str = "") -> list[str]:
        """Return the text of each row, or ``none`` for rows without one."""
        texts = np.array([*self.texts, none], object)
        text_of_row: list[str] = texts[self.code].tolist()
        return text_of_row


def make_coded_texts(text: Callable[..., str], *columns: Ints) -> CodedTexts:
    """Format each row, calling ``text`` only once for each distinct row.

    Args:
        text: Function that returns the text for the values of a row.
        columns: At least one column.
    """
    groups = group_rows(*columns)
    distinct = zip(*(column[groups.first].tolist() for column in columns), strict=True)
    return CodedTexts(groups.of_row, [text(*row) for row in distinct])
