"""Rows that agree in several columns: one number for each distinct row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

Number = TypeVar("Number", bound=np.integer[Any])

_ROOM = 1 << 62
#: Values are listed where there are so many times as many as rows, and some more.
_LISTED, _FEW = 4, 1024


@frozen
class Groups:
    """The distinct rows of some columns, in lexicographic order (first column first).

        columns      (1, 5) (0, 7) (1, 5) (1, 2)
        of_row          2      0      2      1      number of each row
        first           1      3      0             the first row of each number

    Attributes:
        of_row: int64[rows], the number of each row's group.
        first: int64[groups], the first row of each group.
    """

    of_row: Ints
    first: Ints

    def __len__(self) -> int:
        return len(self.first)


def groups_of(*columns: Ints) -> Groups:
    """Number the distinct rows of ``columns`` (int64, equally long).

    The columns are packed into one integer, digit by digit, so that one sort of plain integers
    does it; where the digits would not fit, those so far are first numbered themselves.
    With fewer than 2**31 rows both factors then lie below 2**31.
    """
    return _numbered(*_packed(columns))


def _packed(columns: Sequence[Ints]) -> tuple[Ints, int]:
    """Return a number for each row, in the order of rows, and what all of them lie below."""
    code, base = _digit(columns[0])
    for column in columns[1:]:
        digit, size = _digit(column)
        if size == 1:
            continue
        if base > _ROOM // size:
            code, base = _digit(_numbered(code, base).of_row)
        if base == 1:
            code = digit
        else:
            code = code * size
            code += digit
        base *= size
    return code, base


def _numbered(code: Ints, base: int) -> Groups:
    """Number the distinct values of a column, each from 0 to below ``base``.

    Where these are not many more than there are rows, a table of all values takes the place of
    sorting.
    """
    if base > _LISTED * len(code) + _FEW:
        return _by_sorting(code)
    first = np.full(base, NONE, np.int64)
    # Of rows with one value the last that is written stays: the first.
    first[code[::-1]] = np.arange(len(code))[::-1]
    present = first != NONE
    return Groups((np.cumsum(present) - 1)[code], first[present])


def _by_sorting(column: Ints) -> Groups:
    order = sorted_rows(column)
    begins = _begins(column[order])
    of_row = np.empty(len(column), np.int64)
    of_row[order] = np.cumsum(begins) - 1
    return Groups(of_row, order[begins])


def _begins(ordered: npt.NDArray[Number]) -> Bools:
    """Tell which of ascending values are not the one before."""
    is_new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return is_new


def distinct(*columns: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct values of one or several columns, ascending.

    ``np.unique`` would ask ``numpy.ma`` whether they are masked, whose import takes some 10 ms.
    """
    every = columns[0] if len(columns) == 1 else np.concatenate(columns)
    if len(every) > _FEW:
        low, high = int(every.min()), int(every.max())
        if high - low < _LISTED * len(every):
            present = np.zeros(high - low + 1, bool)
            present[np.subtract(every, low, dtype=np.int64)] = True
            return (np.flatnonzero(present) + low).astype(every.dtype)
    ordered = np.sort(every)
    return ordered[_begins(ordered)]


def without(values: npt.NDArray[Number], others: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct values that are not among some others, ascending."""
    return distinct(values[found_in(distinct(others), values) == NONE])


def distinct_rows(*columns: Ints) -> Ints:
    """Return the distinct rows in lexicographic order, shape (columns, groups)."""
    return np.stack(columns)[:, groups_of(*columns).first]


def looked_up(keys: Sequence[Ints], values: Ints, wanted: Sequence[Ints]) -> Ints:
    """Return the value of each wanted row of key columns; -1 for those not among the keys.

    Args:
        keys: columns; where rows agree, so do their values.
        values: of each of these rows.
        wanted: as many columns.
    """
    both = [np.concatenate(pair) for pair in zip(keys, wanted, strict=True)]
    number, base = _packed(both)
    if base > _LISTED * len(number) + _FEW:
        number, base = _digit(_by_sorting(number).of_row)
    table = np.full(base, NONE, np.int64)
    table[number[: len(values)]] = values
    return table[number[len(values) :]]


def expanded(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return (row, number) for each number from ``low`` to below ``high`` of each row."""
    count = high - low
    row = np.repeat(np.arange(len(low)), count)
    return row, np.arange(len(row)) + (low - np.cumsum(count) + count)[row]


def first_of_each(group: Ints, *by: Ints) -> Ints:
    """Return the row of each group, in their order, that comes first by some columns.

    Of rows that are equal in all of these it is the first.
    """
    order = sorted_rows(group, *by)
    return order[_begins(group[order])]


def least_of_each(group: Ints, groups: int, values: Ints) -> Ints:
    """Return the row of each of some groups that has the least value, the first of several.

    Without sorting; -1 where a group has no rows.
    """
    least = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(least, group, values)
    rows = np.flatnonzero(values == least[group])
    found = np.full(groups, NONE, np.int64)
    # Of rows that share a group the last that is written stays: the first.
    found[group[rows[::-1]]] = rows[::-1]
    return found


def rows_by_value(column: Ints | Codes) -> list[tuple[int, Ints]]:
    """Return (value, rows) for each distinct value, values and rows ascending."""
    if len(column) == 0:
        return []
    if column.min() == column.max():
        return [(int(column[0]), np.arange(len(column)))]
    order = sorted_rows(column)
    starts = np.flatnonzero(_begins(column[order]))
    return list(zip(column[order[starts]].tolist(), np.split(order, starts[1:]), strict=True))


def found_in(ascending: npt.NDArray[np.integer[Any]], values: npt.NDArray[np.integer[Any]]) -> Ints:
    """Return the place of each value among ascending ones; -1 for those that are not there."""
    if len(ascending) == 0:
        return np.full(len(values), NONE, np.int64)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.where(ascending[at] == values, at, NONE)


def places_in(order: Ints) -> Ints:
    """Return the place of each number in an order of them all."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def _digit(column: Ints) -> tuple[Ints, int]:
    """Return the column as numbers from 0, in the same order, and how many numbers that spans."""
    if len(column) == 0:
        return column.astype(np.int64), 1
    low, high = int(column.min()), int(column.max())
    if high - low < 1 << 31:
        digit = column.astype(np.int64, copy=False)
        return digit - low if low else digit, high - low + 1
    groups = _by_sorting(column)
    return groups.of_row, len(groups)
