"""Sort rows by several columns, and group rows that have equal values in all columns."""

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

#: A column of integers, booleans or floats that rows are sorted by.
Key = npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_] | npt.NDArray[np.floating[Any]]
Words = npt.NDArray[np.uint64]
#: Minimum number of rows for which calling the compiled library is faster than numpy.
_MIN_NATIVE_ROWS = 512
#: Maximum size of a value in bytes for which numpy's stable sort is a radix sort.
_MAX_COUNTING_SORT_BYTES = 2
#: Number of distinct 64-bit words, and largest int64 value.
_WORD_SIZE, _MAX_INT = 1 << 64, (1 << 63) - 1


def sort_rows(*keys: Key) -> Ints:
    """Return the row indices sorted by the first column, with ties broken by later columns.

    The sort is stable, and NaNs come last. The result equals ``np.lexsort(keys[::-1])`` but is
    computed faster. The columns are packed into as few 64-bit words as possible, as digits of a
    mixed-radix number. The compiled library then radix-sorts the words, starting with the least
    significant one. A single column of at most 16 bits is sorted by numpy.

    Args:
        keys: One or more columns of equal length, most significant first.
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
    """Return int64 values that sort in the same order as the column.

    NaN becomes the largest int64 value.
    """
    if not np.issubdtype(key.dtype, np.floating):
        return key.astype(np.int64, copy=False)
    # Adding 0.0 turns -0.0 into 0.0.
    # Bit patterns of negative floats sort in reverse order, so all bits but the sign are flipped.
    bits = (key.astype(np.float64) + 0.0).view(np.int64)
    bits = np.where(bits < 0, bits ^ _MAX_INT, bits)
    bits[np.isnan(key)] = _MAX_INT
    return bits


def _pack_words(columns: Sequence[Ints]) -> Iterator[Words]:
    """Pack columns into mixed-radix words, and yield the least significant word first.

    Each column is one digit, whose radix is the number of values from the minimum to the maximum of
    the column. Columns with a single value are left out.
    """
    word, base = np.zeros(len(columns[0]), np.uint64), 1
    for column in reversed(columns):
        minimum, maximum = int(column.min()), int(column.max())
        if minimum == maximum:
            continue
        size = maximum - minimum + 1
        # The difference of two int64 values fits in an unsigned word.
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
    """Yield each column, with its rows sorted by group. Rows of the same group keep their order.

    Args:
        group: Zero-based group number of each row.
        columns: Columns of equal length.
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
#: Size limits of lookup tables. If the lookup table would be small enough, it is used instead of
#: sorting. The maximum number of entries is ``_MAX_TABLE_RATIO`` per row, plus ``_MIN_TABLE_SIZE``.
_MAX_TABLE_RATIO, _MIN_TABLE_SIZE = 4, 1024


@dataclass(frozen=True)
class Groups:
    """Groups of rows that have equal values in all columns.

    Groups are numbered in lexicographic order of their values::

        columns      (1, 5) (0, 7) (1, 5) (1, 2)
        of_row          2      0      2      1      group of each row
        first           1      3      0             first row of each group

    Attributes:
        of_row: Group of each row, shape (rows,).
        first: First row of each group, shape (groups,).
    """

    of_row: Ints
    first: Ints

    def __len__(self) -> int:
        return len(self.first)

    def order_by_appearance(self) -> Groups:
        """Return the same groups, renumbered in the order of their first rows."""
        order = np.argsort(self.first)
        return Groups(invert_permutation(order)[self.of_row], self.first[order])


def group_rows(*columns: Ints) -> Groups:
    """Group the rows that have equal values in all columns.

    The values of a row are packed into one integer, as digits of a mixed-radix number. A single
    sort of integers is then enough.

    Args:
        columns: int64 columns of equal length.
    """
    return _group_codes(*_pack_columns(columns))


def _pack_columns(columns: Sequence[Ints]) -> tuple[Ints, int]:
    """Pack columns into one code per row. The codes sort in the same order as the rows.

    If another column would make the codes exceed ``_MAX_CODES``, the codes of the columns packed so
    far are first replaced by group numbers, which are less than the number of rows.

    Returns:
        code: Code of each row.
        base: Exclusive upper bound of the codes.
    """
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
    """Group rows by a column of codes in ``[0, base)``.

    A lookup table replaces the sort if ``base`` is at most ``_MAX_TABLE_RATIO`` times the number of
    rows plus ``_MIN_TABLE_SIZE``.
    """
    if base > _MAX_TABLE_RATIO * len(code) + _MIN_TABLE_SIZE:
        return _group_by_sorting(code)
    compiled = native.number_codes(code, base) if len(code) > _MIN_NATIVE_ROWS else None
    if compiled is not None:
        return Groups(*compiled)
    # Rows are written in reverse order, so the first row with each code overwrites all others.
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
    """Return a mask of the rows that differ from the previous row in at least one column.

    The mask is True for the first row.
    """
    is_new = np.ones(len(columns[0]), bool)
    np.not_equal(columns[0][1:], columns[0][:-1], out=is_new[1:])
    for column in columns[1:]:
        is_new[1:] |= column[1:] != column[:-1]
    return is_new


def find_run_starts(*columns: npt.NDArray[Any]) -> Ints:
    """Return the first row index of each run of consecutive equal rows, in ascending order."""
    return np.flatnonzero(mask_run_starts(*columns))


def find_distinct(*columns: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct values of one or more columns, ascending.

    The result equals ``np.unique`` of the concatenated columns. ``np.unique`` is not called because
    it imports ``numpy.ma``, which takes about 10 ms.
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
    """Return the distinct values that do not occur in ``removed``, in ascending order."""
    values = find_distinct(values)
    return find_distinct(values[find_positions(find_distinct(removed), values) == NONE])


def find_distinct_rows(*columns: Ints, mask: Bools | None = None) -> Ints:
    """Return the distinct rows of a table in lexicographic order, shape (columns, distinct rows).

    Args:
        columns: Columns of equal length.
        mask: Mask of the rows to use, or None for all.
    """
    # Rows that repeat the previous row are dropped first, leaving few rows to sort.
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
    """Look up the value of each query row, or -1 if the row does not occur among the keys.

    This is a left join of ``queries`` with a table that maps keys to values.

    Args:
        keys: Key columns of equal length. If a key occurs several times, its last value wins.
        values: One value per row of the key columns.
        queries: Columns of the rows to look up, in the same order as the key columns.
    """
    pairs = list(zip(keys, queries, strict=True))
    # A column that has the same single value in keys and queries does not affect the result.
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
    """List the integers of half-open ranges [low, high), one range after the other.

    Args:
        low: Start of each range.
        high: Exclusive end of each range, at least its start.

    Returns:
        row: For each integer, the index of its range.
        number: The integers, ascending within each range.
    """
    count = high - low
    row = np.repeat(np.arange(len(low)), count)
    return row, np.arange(len(row)) + (low - np.cumsum(count) + count)[row]


#: Approximate maximum number of rows in a slice.
_MAX_ROWS = 150_000


def split_by_owner(owner: Ints) -> Iterator[slice]:
    """Split rows into slices of about ``_MAX_ROWS`` rows, so that temporary arrays stay small.

    Rows with the same owner are never split, so a slice can be larger. If there are no rows, one
    empty slice is yielded.

    Args:
        owner: Owner of each row, ascending.
    """
    number = max(1, len(owner) // _MAX_ROWS)
    middle = owner[np.arange(1, number) * len(owner) // number]
    bounds = np.searchsorted(owner, find_distinct(middle)).tolist()
    for low, high in pairwise(dict.fromkeys((0, *bounds, len(owner)))):
        yield slice(low, high)
    if not len(owner):
        yield slice(0)


def find_first_rows(group: Ints, *by: Key) -> Ints:
    """Return, for each group, its first row when sorted by the given columns.

    The result has one entry per group that occurs, in ascending order of the groups.

    Args:
        group: Group of each row.
        by: Columns to sort by, most significant first. Ties are broken by the smaller row index.
    """
    order = sort_rows(group, *by)
    return order[mask_run_starts(group[order])]


def number_within_groups(group: Ints, *by: Ints) -> Ints:
    """Number each group's rows from 0 in sort order, like pandas' ``GroupBy.cumcount``.

    Args:
        group: Group of each row.
        by: Columns to sort by within a group, most significant first. Ties are broken by the
            smaller row index.
    """
    order = sort_rows(group, *by)
    first = find_run_starts(group[order])
    number = np.empty(len(group), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    return number


def list_rows_by_value(column: Ints | Codes) -> list[tuple[int, Ints]]:
    """Return (value, rows) for each distinct value of a column, both in ascending order."""
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
    """Return the position of each value in a sorted array, or -1 if it does not occur.

    Args:
        ascending: Values in ascending order. For repeated values, the first position is returned.
        values: Values to look up.
    """
    if len(ascending) == 0:
        return np.full(len(values), NONE, np.int64)
    has_many_values = (
        len(ascending) < 16 * len(values) and values.dtype == ascending.dtype == np.int64
    )
    is_gapless = has_many_values and int(ascending[-1]) - int(ascending[0]) == len(ascending) - 1
    if is_gapless and (ascending[1:] > ascending[:-1]).all():
        position: Ints = values - ascending[0]
        # Viewed as unsigned integers, negative positions are also too large.
        position[position.view(np.uint64) >= len(ascending)] = NONE
        return position
    position = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.where(ascending[position] == values, position, NONE)


def invert_permutation(order: Ints) -> Ints:
    """Return the inverse of a permutation: for each number, its position in ``order``."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


def _to_digits(column: Ints) -> tuple[Ints, int]:
    """Map the values of a column to non-negative integers that sort in the same order.

    Returns:
        digit: ``value - minimum`` for each row if ``maximum - minimum`` is less than ``1 << 31``.
            Otherwise, the index of the value in the sorted distinct values.
        radix: Exclusive upper bound of the numbers.
    """
    if len(column) == 0:
        return column.astype(np.int64), 1
    low, high = int(column.min()), int(column.max())
    if high - low < 1 << 31:
        digit = column.astype(np.int64, copy=False)
        return digit - low if low else digit, high - low + 1
    groups = _group_by_sorting(column)
    return groups.of_row, len(groups)
