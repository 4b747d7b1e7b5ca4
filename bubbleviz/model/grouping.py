"""Sorting rows by several columns, and grouping rows that agree in all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import (
    NONE,
    Bools,
    Codes,
    Ints,
    is_constant,
    scatter,
)
from bubbleviz.native import functions as native

#: A column that rows are sorted by.
Key = npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_] | npt.NDArray[np.floating[Any]]
Words = npt.NDArray[np.uint64]
#: Fewer rows are sorted before the compiled part would have been called.
_MIN_NATIVE_ROWS = 512
#: Maximum size in bytes of the values that numpy's stable sort counts instead of comparing.
_MAX_COUNTING_SORT_BYTES = 2
#: Words lie below this, and integers at most here.
_WORD_SIZE, _MAX_INT = 1 << 64, (1 << 63) - 1


def sort_rows(*keys: Key) -> Ints:
    """Return the rows in the order of some columns, the first one first; the others break ties.

    Rows that agree in all of them keep their order, and what is no number comes last. Columns are
    packed into one word, digit by digit, which the compiled part sorts several times as fast as
    numpy sorts columns; where they do not fit, into several, from the last to the first. numpy
    sorts a single column of at most 16 bits faster, by counting its values.

    Args:
        keys: columns, equally long, at least one.
    """
    if len(keys) == 1 and keys[0].itemsize <= _MAX_COUNTING_SORT_BYTES:
        return np.argsort(keys[0], kind="stable")
    if len(keys[0]) <= _MIN_NATIVE_ROWS or not native.is_available():
        return np.lexsort(keys[::-1])
    order: Ints = np.arange(len(keys[0]))
    columns = tuple(map(_to_sortable_ints, keys))
    if native.is_sorted(columns):
        return order
    for word in _pack_words(columns):
        if native.sort_rows(word, order) is None:
            return np.lexsort(keys[::-1])
    return order


def _to_sortable_ints(key: Key) -> Ints:
    """Return integers in the order of a column, of floats their bits."""
    if not np.issubdtype(key.dtype, np.floating):
        return key.astype(np.int64, copy=False)
    # Zeros are equal, whatever their sign, and the bits of negative numbers ascend as they sink.
    bits = (key.astype(np.float64) + 0.0).view(np.int64)
    bits = np.where(bits < 0, bits ^ _MAX_INT, bits)
    bits[np.isnan(key)] = _MAX_INT
    return bits


def _pack_words(columns: Sequence[Ints]) -> Iterator[Words]:
    """Yield the columns as words of digits, the last word first."""
    word, base = np.zeros(len(columns[0]), np.uint64), 1
    for column in reversed(columns):
        minimum, maximum = int(column.min()), int(column.max())
        if minimum == maximum:
            continue
        size = maximum - minimum + 1
        # The difference of any two fits a word without a sign.
        digit = column.view(np.uint64) - np.uint64(minimum % (1 << 64))
        if base == 1:
            word, base = digit, size
        elif size > _WORD_SIZE // base:
            yield word
            word, base = digit, size
        else:
            word += digit * np.uint64(base)
            base *= size
    if base > 1:
        yield word


def sort_columns_by_group(
    group: Codes, columns: Sequence[npt.NDArray[Any]]
) -> Iterator[npt.NDArray[Any]]:
    """Yield each column, sorted by group. Rows of the same group keep their order.

    Args:
        group: Group of each row, from 0.
        columns: The columns, equally long.
    """
    order: Ints | None = None
    next_position = np.full(int(group.max(initial=NONE)) + 1, NONE, np.int64)
    for column in columns:
        ordered = native.order_by_group(group, column, next_position)
        if ordered is None:
            order = np.argsort(group, kind="stable") if order is None else order
            ordered = column[order]
        yield ordered


Number = TypeVar("Number", bound=np.integer[Any])

_MAX_CODES = 1 << 62
#: Values are listed where there are so many times as many as rows, and some more.
_MAX_TABLE_RATIO, _MIN_TABLE_SIZE = 4, 1024


@dataclass(frozen=True)
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

    def order_by_appearance(self) -> Groups:
        """Return the same groups, numbered in the order of their first rows."""
        order = np.argsort(self.first)
        return Groups(invert_permutation(order)[self.of_row], self.first[order])


def group_rows(*columns: Ints) -> Groups:
    """Number the distinct rows of ``columns`` (int64, equally long).

    The columns are packed into one integer, digit by digit, so that one sort of plain integers
    does it; where the digits would not fit, those so far are first numbered themselves.
    With fewer than 2**31 rows both factors then lie below 2**31.
    """
    return _group_codes(*_pack_columns(columns))


def _pack_columns(columns: Sequence[Ints]) -> tuple[Ints, int]:
    """Return a number for each row, in the order of rows, and what all of them lie below."""
    compiled = native.pack(columns) if len(columns[0]) > _MIN_NATIVE_ROWS else None
    if compiled is not None:
        return compiled
    code, base = _to_digits(columns[0])
    for column in columns[1:]:
        digit, size = _to_digits(column)
        if size == 1:
            continue
        if base > _MAX_CODES // size:
            code, base = _to_digits(_group_codes(code, base).of_row)
        if base == 1:
            code = digit
        else:
            code = code * size
            code += digit
        base *= size
    return code, base


def _group_codes(code: Ints, base: int) -> Groups:
    """Number the distinct values of a column, each from 0 to below ``base``.

    Where these are not many more than there are rows, a table of all values takes the place of
    sorting.
    """
    if base > _MAX_TABLE_RATIO * len(code) + _MIN_TABLE_SIZE:
        return _group_by_sorting(code)
    compiled = native.number_codes(code, base) if len(code) > _MIN_NATIVE_ROWS else None
    if compiled is not None:
        return Groups(*compiled)
    # Of rows with one value the last that is written stays: the first.
    first = scatter(base, code[::-1], np.arange(len(code))[::-1])
    present = first != NONE
    return Groups((np.cumsum(present) - 1)[code], first[present])


def _group_by_sorting(column: Ints) -> Groups:
    order = sort_rows(column)
    is_new = mask_run_starts(column[order])
    of_row = np.empty(len(column), np.int64)
    of_row[order] = np.cumsum(is_new) - 1
    return Groups(of_row, order[is_new])


def mask_run_starts(*columns: npt.NDArray[Any]) -> Bools:
    """Tell which rows are not as the one before."""
    is_new = np.ones(len(columns[0]), bool)
    np.not_equal(columns[0][1:], columns[0][:-1], out=is_new[1:])
    for column in columns[1:]:
        is_new[1:] |= column[1:] != column[:-1]
    return is_new


def find_run_starts(*columns: npt.NDArray[Any]) -> Ints:
    """Return the rows that are not as the one before: few where equal ones follow each other."""
    return np.flatnonzero(mask_run_starts(*columns))


def find_distinct(*columns: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct values of one or several columns, ascending.

    ``np.unique`` would ask ``numpy.ma`` whether they are masked, whose import takes some 10 ms.
    """
    values = columns[0] if len(columns) == 1 else np.concatenate(columns)
    if len(values) > _MIN_TABLE_SIZE:
        rows = find_run_starts(values)
        values = values[rows] if 2 * len(rows) < len(values) else values
        low, high = int(values.min()), int(values.max())
        if high - low < _MAX_TABLE_RATIO * len(values):
            present = np.zeros(high - low + 1, bool)
            present[np.subtract(values, low, dtype=np.int64)] = True
            return (np.flatnonzero(present) + low).astype(values.dtype)
    ordered = np.sort(values)
    return ordered[mask_run_starts(ordered)]


def subtract_values(
    values: npt.NDArray[Number], removed: npt.NDArray[Number]
) -> npt.NDArray[Number]:
    """Return the distinct values that are not among some others, ascending."""
    values = find_distinct(values)
    return find_distinct(values[find_positions(find_distinct(removed), values) == NONE])


def find_distinct_rows(*columns: Ints, mask: Bools | None = None) -> Ints:
    """Return the distinct rows in lexicographic order, shape (columns, groups).

    Args:
        columns: equally long.
        mask: which rows count; None for all.
    """
    # A row that is as the one before, chosen or not, is none more.
    rows = (
        find_run_starts(*columns)
        if mask is None
        else np.flatnonzero(mask & mask_run_starts(*columns, mask))
    )
    if mask is not None or 2 * len(rows) < len(columns[0]):
        columns = tuple(column[rows] for column in columns)
    rows = group_rows(*columns).first
    return np.stack([column[rows] for column in columns])


def lookup_values(keys: Sequence[Ints], values: Ints, queries: Sequence[Ints]) -> Ints:
    """Return the value of each wanted row of key columns; -1 for those not among the keys.

    Args:
        keys: columns; where rows agree, so do their values, or the last one counts.
        values: of each of these rows.
        queries: as many columns.
    """
    pairs = list(zip(keys, queries, strict=True))
    # A column of one value, wanted and there, tells no rows apart.
    distinguishing = [(k, w) for k, w in pairs if not (is_constant(w) and (k == w[0]).all())]
    keys, queries = ([pair[side] for pair in distinguishing or pairs[:1]] for side in (0, 1))
    if len(keys) == 1 and len(values):
        low, size = int(keys[0].min()), int(keys[0].max()) - int(keys[0].min()) + 1
        if size <= _MAX_TABLE_RATIO * (len(values) + len(queries[0])) + _MIN_TABLE_SIZE:
            table = scatter(size + 1, keys[0] - low, values)
            position = queries[0] - low
            position[(position < 0) | (position > size)] = size
            return table[position]
    all_rows = [np.concatenate(pair) for pair in zip(keys, queries, strict=True)]
    number, base = _pack_columns(all_rows)
    if base > _MAX_TABLE_RATIO * len(number) + _MIN_TABLE_SIZE:
        number, base = _to_digits(_group_by_sorting(number).of_row)
    table = scatter(base, number[: len(values)], values)
    return table[number[len(values) :]]


def expand_ranges(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return (row, number) for each number from ``low`` to below ``high`` of each row."""
    count = high - low
    row = np.repeat(np.arange(len(low)), count)
    return row, np.arange(len(row)) + (low - np.cumsum(count) + count)[row]


#: About so many rows are looked at together, where nobody needs more.
_MAX_ROWS = 150_000


def split_by_owner(owner: Ints) -> Iterator[slice]:
    """Yield stretches of rows, at least one, each with all rows of its owners.

    What is worked out stretch by stretch takes little memory beside the rows.

    Args:
        owner: of each row, ascending.
    """
    number = max(1, len(owner) // _MAX_ROWS)
    middle = owner[np.arange(1, number) * len(owner) // number]
    bounds = np.searchsorted(owner, find_distinct(middle)).tolist()
    for low, high in pairwise(dict.fromkeys((0, *bounds, len(owner)))):
        yield slice(low, high)
    if not len(owner):
        yield slice(0)


def find_first_rows(group: Ints, *by: Key) -> Ints:
    """Return the row of each group, in their order, that comes first by some columns.

    Of rows that are equal in all of these it is the first.
    """
    order = sort_rows(group, *by)
    return order[mask_run_starts(group[order])]


def number_within_groups(group: Ints, *by: Ints) -> Ints:
    """Return the place of each row in its group, from 0: by some columns, then as they stand.

    Args:
        group: of each row.
        by: columns to order by, the first counting most.
    """
    order = sort_rows(group, *by)
    first = find_run_starts(group[order])
    number = np.empty(len(group), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    return number


def list_rows_by_value(column: Ints | Codes) -> list[tuple[int, Ints]]:
    """Return (value, rows) for each distinct value, values and rows ascending."""
    if len(column) == 0:
        return []
    if column.min() == column.max():
        return [(int(column[0]), np.arange(len(column)))]
    order = sort_rows(column)
    starts = find_run_starts(column[order])
    return list(zip(column[order[starts]].tolist(), np.split(order, starts[1:]), strict=True))


def find_positions(
    ascending: npt.NDArray[np.integer[Any]], values: npt.NDArray[np.integer[Any]]
) -> Ints:
    """Return the place of each value among ascending ones; -1 for those that are not there."""
    if len(ascending) == 0:
        return np.full(len(values), NONE, np.int64)
    has_many_values = (
        len(ascending) < 16 * len(values) and values.dtype == ascending.dtype == np.int64
    )
    is_gapless = has_many_values and int(ascending[-1]) - int(ascending[0]) == len(ascending) - 1
    if is_gapless and (ascending[1:] > ascending[:-1]).all():
        position: Ints = values - ascending[0]
        # Below 0 is above all that can be without a sign.
        position[position.view(np.uint64) >= len(ascending)] = NONE
        return position
    position = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.where(ascending[position] == values, position, NONE)


def invert_permutation(order: Ints) -> Ints:
    """Return the place of each number in an order of them all."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


def _to_digits(column: Ints) -> tuple[Ints, int]:
    """Return the column as numbers from 0, in the same order, and how many numbers that spans."""
    if len(column) == 0:
        return column.astype(np.int64), 1
    low, high = int(column.min()), int(column.max())
    if high - low < 1 << 31:
        digit = column.astype(np.int64, copy=False)
        return digit - low if low else digit, high - low + 1
    groups = _group_by_sorting(column)
    return groups.of_row, len(groups)
