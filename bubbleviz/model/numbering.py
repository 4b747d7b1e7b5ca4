"""Numbering: distinct values numbered from 0 in the order of their first occurrence."""

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
    """Numbers values one by one."""

    def __init__(self, values: Iterable[Value] = ()) -> None:
        # What is looked up for the first time gets the next number.
        self._numbers: defaultdict[Value, int] = defaultdict(count().__next__)
        self.numbers(values)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def values(self) -> tuple[Value, ...]:
        """The distinct values, by number."""
        return tuple(self._numbers)

    def number(self, value: Value) -> int:
        """Return the number of a value, the next one if it is new."""
        return self._numbers[value]

    def numbers(self, values: Iterable[Value]) -> Ints:
        """Return the numbers of some values, shape (values,)."""
        return np.fromiter(map(self._numbers.__getitem__, values), np.int64)


def merge_tables(tables: Sequence[TableT], **columns: Sequence[str]) -> TableT:
    """Return the rows of some tables (at least one) as one, with the distinct values of all.

    Args:
        tables: each with values of its own.
        columns: of each shared field of values, the columns that hold places in it; -1 is none.
    """
    numberings = {shared: Numbering[Any]() for shared in columns}
    renumbered_tables = []
    for table in tables:
        renumbered: dict[str, Ints] = {}
        for shared, names in columns.items():
            # At the end, where -1 leads, is none.
            number = np.append(numberings[shared].numbers(getattr(table, shared)), NONE)
            renumbered |= {name: number[getattr(table, name)] for name in names}
        renumbered_tables.append(table.replace_columns(**renumbered))
    values = {shared: numbering.values for shared, numbering in numberings.items()}
    return replace(join_tables(renumbered_tables), **values)


class BlockNumbering:
    """Numbers integers that come in blocks, as columns."""

    def __init__(self) -> None:
        self.values: Ints = np.empty(0, np.int64)
        self._sorted: Ints = self.values
        self._code: Codes = np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self, values: Ints) -> Codes:
        """Return the numbers of a block of values, shape (rows,)."""
        values = np.asarray(values, np.int64)
        numbers = native.look_up(values, self._sorted, self._code)
        if numbers is not None:
            return numbers
        if len(new := subtract_values(values, self._sorted)):
            self.values = np.concatenate((self.values, new))
            self._code = np.argsort(self.values, kind="stable").astype(np.int32)
            self._sorted = self.values[self._code]
            numbers = native.look_up(values, self._sorted, self._code)
        return self._code[np.searchsorted(self._sorted, values)] if numbers is None else numbers


@dataclass(frozen=True, eq=False, repr=False)
class CodedTexts(Table):
    """A text in each row, or none; each distinct one is held once.

    ::

        texts    "F 0"  "B 0"  "F 1"
        code       0      2      1     -1      ->  "F 0", "F 1", "B 0", none

    Attributes:
        code: place of each row's text, shape (rows,); -1 for none.
        texts: by place; not all need occur.
    """

    code: Ints
    texts: Sequence[str] = field(metadata={"shared": True})

    @property
    def known(self) -> Bools:
        """Which rows have a text, shape (rows,)."""
        return np.asarray(self.code != NONE)

    def at(self, rows: Ints) -> CodedTexts:
        """Return the texts of some rows; a row of -1 has none."""
        known = rows != NONE
        return CodedTexts(scatter(len(rows), known, self.code[rows[known]]), self.texts)

    def drop_unused(self) -> CodedTexts:
        """Return the same rows without the texts that do not occur."""
        known = self.known
        used_codes, code = np.unique(self.code[known], return_inverse=True)
        renumbered = scatter(len(self), known, code.reshape(-1))
        return CodedTexts(renumbered, [self.texts[place] for place in used_codes.tolist()])

    def listed(self, none: str = "") -> list[str]:
        """Return the text of each row; ``none`` where there is none."""
        texts = np.array([*self.texts, none], object)
        listed: list[str] = texts[self.code].tolist()
        return listed


def make_coded_texts(text: Callable[..., str], *columns: Ints) -> CodedTexts:
    """Return a text for each row, made once for each distinct row of the columns (at least one)."""
    groups = group_rows(*columns)
    distinct = zip(*(column[groups.first].tolist() for column in columns), strict=True)
    return CodedTexts(groups.of_row, [text(*row) for row in distinct])
