"""Assign consecutive numbers to distinct values, starting with 0."""

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
    """Numbers distinct values consecutively, starting at 0, in order of first occurrence.

    Args:
        values: Values that are numbered first.
    """

    def __init__(self, values: Iterable[Value] = ()) -> None:
        # A missing key gets the next number.
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
    """Concatenate tables, and merge the shared lists that their columns index, such as names.

    Each merged list contains the distinct values of all tables, in the order of first occurrence.
    The columns that contain indices into the list are renumbered. For example, the names
    ``("F", "B")`` and ``("B", "W")`` become ``("F", "B", "W")``, and the indices 0 and 1 of the
    second table become 1 and 2.

    Args:
        tables: At least one table. All tables have the same class.
        columns: Names of the columns that contain indices into a shared field (or -1), keyed by the
            name of the field.
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
    """Numbers distinct integers consecutively, starting at 0, one column at a time.

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

        Values that occur for the first time get the next numbers. The smallest new value gets the
        smallest number.
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
    """A column of strings, stored as indices into a list of the distinct strings.

    Some rows may have no string.

    ::

        texts    "F 0"  "B 0"  "F 1"
        code       0      2      1     -1      ->  "F 0", "F 1", "B 0", none

    Attributes:
        code: Index into ``texts`` for each row, or -1 for no string, shape (rows,).
        texts: Distinct texts. Some strings may not occur in any row.
    """

    code: Ints
    texts: Sequence[str] = field(metadata={"shared": True})

    @property
    def has_text(self) -> Bools:
        """Mask of the rows that contain a string, shape (rows,)."""
        return np.asarray(self.code != NONE)

    def at(self, rows: Ints) -> CodedTexts:
        """Return the column with only the given rows, in the given order.

        Row -1 yields a row without a string.
        """
        has_row = rows != NONE
        return CodedTexts(scatter(len(rows), has_row, self.code[rows[has_row]]), self.texts)

    def drop_unused(self) -> CodedTexts:
        """Return an equal column without the strings that do not occur in any row."""
        has_text = self.has_text
        used_codes, code = np.unique(self.code[has_text], return_inverse=True)
        renumbered = scatter(len(self), has_text, code.reshape(-1))
        return CodedTexts(renumbered, [self.texts[place] for place in used_codes.tolist()])

    def listed(self, none: str = "") -> list[str]:
        """Return the string of each row, or ``none`` for rows without a string."""
        texts = np.array([*self.texts, none], object)
        text_of_row: list[str] = texts[self.code].tolist()
        return text_of_row


def make_coded_texts(text: Callable[..., str], *columns: Ints) -> CodedTexts:
    """Make a column of strings from the rows of a table.

    The function ``text`` is called only once for each distinct row. The distinct strings are in the
    lexicographic order of the rows.

    Args:
        text: Function that returns the string for a row, called with one value per column.
        columns: At least one column.
    """
    groups = group_rows(*columns)
    distinct = zip(*(column[groups.first].tolist() for column in columns), strict=True)
    return CodedTexts(groups.of_row, [text(*row) for row in distinct])
