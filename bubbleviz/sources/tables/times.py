"""Times: starts and ends of rows in whole nanoseconds, whatever unit and type a table has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.sources.tables.cells import Cells, NumberColumn, Numbers, refused
from bubbleviz.sources.tables.schema import span_columns, unit_ns

#: Nanoseconds beyond which no time lies: 2^62, so that differences have room.
_FARTHEST_NS = 1 << 62


def spans(cells: Cells) -> tuple[Ints, Ints, Bools]:
    """Return start and end of each row, and which rows have them.

    A row with neither is an operation that ran nothing on its device. Starts and durations are
    added before they are rounded, so that operations that touch stay so.

    Raises:
        ProfileError: a row has one of both, no number, or an end before its start.
    """
    start_name, end_name = span_columns(cells.names)
    start, end = cells.numbers[start_name], cells.numbers[end_name]
    for name, column in ((start_name, start), (end_name, end)):
        _refuse_nan(cells.path, name, column)
    filled = start.filled & end.filled
    half = np.flatnonzero(start.filled != end.filled)
    if len(half):
        row = int(half[0])
        empty = end_name if start.filled[row] else start_name
        raise refused(cells.path, row, f"{empty} is empty; fill it, or leave the row out")
    start_ns = _nanoseconds(cells.path, start_name, start, start.values)
    if end_name.startswith("duration"):
        end_ns = _sums(cells.path, (start_name, start), (end_name, end))
    else:
        end_ns = _nanoseconds(cells.path, end_name, end, end.values)
    early = np.flatnonzero(filled & (end_ns < start_ns))
    if len(early):
        row = int(early[0])
        told = f"{end_name} is {end.values[row]}"
        if not end_name.startswith("duration"):
            told += f", before {start_name}, which is {start.values[row]}"
        raise refused(cells.path, row, f"{told}; an operation cannot end before it starts")
    return np.where(filled, start_ns, NONE), np.where(filled, end_ns, NONE), filled


def times(cells: Cells, name: str) -> Ints:
    """Return a column of times; -1 where it is empty, or not there.

    Raises:
        ProfileError: a time is beyond 64 bits.
    """
    column = cells.numbers.get(name)
    if column is None:
        return np.full(cells.rows, NONE, np.int64)
    known = column.filled & ~np.isnan(column.values)
    return np.where(
        known, _nanoseconds(cells.path, name, column, np.where(known, column.values, 0)), NONE
    )


def whole_numbers(
    cells: Cells, name: str, otherwise: int = NONE, least: int = 0, below: int = 1 << 31
) -> tuple[Ints, Bools]:
    """Return a column of whole numbers, and which cells hold one.

    Args:
        cells: of the table.
        name: of the column, which may be missing.
        otherwise: what stands in cells that are empty.
        least: the smallest number that has a meaning.
        below: what all numbers that have one are smaller than.

    Raises:
        ProfileError: a cell holds a fraction, or a number without a meaning.
    """
    column = cells.numbers.get(name)
    if column is None:
        return np.full(cells.rows, otherwise, np.int64), np.zeros(cells.rows, bool)
    known = column.filled & ~np.isnan(column.values)
    values = np.where(known, column.values, 0)
    bad = (values < least) | (values >= below)
    if values.dtype.kind == "f":
        bad |= values != np.rint(values)
    if bad.any():
        row = int(bad.argmax())
        reason = f"{name} is {values[row]}, and should be a whole number from {least}"
        raise refused(cells.path, row, f"{reason} to {below - 1:,}")
    return np.where(known, values.astype(np.int64), otherwise), known


def _refuse_nan(path: str, name: str, column: NumberColumn) -> None:
    bad = column.filled & np.isnan(column.values)
    if bad.any():
        raise refused(path, int(bad.argmax()), f"{name} is NaN, which is no time")


def _nanoseconds(path: str, name: str, column: NumberColumn, values: Numbers) -> Ints:
    unit = 1 if column.in_ns else unit_ns(name)
    if values.dtype.kind == "f":
        scaled = np.rint(values * float(unit))
        _refuse_far(path, {name: column}, np.abs(scaled) >= _FARTHEST_NS)
        return scaled.astype(np.int64)
    farthest = _FARTHEST_NS // unit
    _refuse_far(path, {name: column}, (values > farthest) | (values < -farthest))
    return np.asarray(values * unit, np.int64)


def _sums(path: str, start: tuple[str, NumberColumn], duration: tuple[str, NumberColumn]) -> Ints:
    """Return the ends of rows by starts and durations."""
    columns = dict((start, duration))
    if start[1].values.dtype.kind == "i":
        # Epochs in nanoseconds are no floats.
        first, second = (_nanoseconds(path, n, c, c.values) for n, c in columns.items())
        return np.asarray(first + second, np.int64)
    units = [1 if c.in_ns else unit_ns(n) for n, c in columns.items()]
    finest = min(units)
    parts = [c.values * float(u // finest) for c, u in zip(columns.values(), units, strict=True)]
    summed = np.rint((parts[0] + parts[1]) * float(finest))
    _refuse_far(path, columns, np.abs(summed) >= _FARTHEST_NS)
    return summed.astype(np.int64)


def _refuse_far(path: str, columns: Mapping[str, NumberColumn], far: Bools) -> None:
    """Refuse times that 64 bits cannot hold."""
    bad = np.asarray(far, bool)
    for column in columns.values():
        bad = bad & column.filled
    if bad.any():
        row = int(bad.argmax())
        told = " and ".join(f"{name} is {column.values[row]}" for name, column in columns.items())
        raise refused(path, row, f"{told}, centuries away; check the unit in the column's name")
