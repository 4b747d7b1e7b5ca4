"""Cells: the columns of a table as they were read, numbers and texts, before they mean anything."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import ProfileError
from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.collectives import ToldCollectives
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.operation_table import RowIntervals
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.sources.tables.schema import COLLECTIVES, span_columns, unit_ns

#: Whole numbers stay whole; all others are floats.
Numbers: TypeAlias = "Ints | npt.NDArray[np.float64]"

#: Characters of a cell that a message shows.
_SHOWN = 40


@frozen
class NumberColumn:
    """A column of numbers.

    Attributes:
        values: one a row; any number where a cell is empty.
        known: which cells hold one; None for all.
        in_ns: whether the file's own type says that these are nanoseconds, whatever the name says.
    """

    values: Numbers
    known: Bools | None = None
    in_ns: bool = False

    @property
    def filled(self) -> Bools:
        """Which cells hold a number, shape (rows,)."""
        return np.ones(len(self.values), bool) if self.known is None else self.known


@frozen
class Cells:
    """The columns of a table that mean something here.

    Attributes:
        path: of the file.
        rows: how many there are.
        numbers: by name.
        texts: by name; empty cells have none.
    """

    path: str
    rows: int
    numbers: Mapping[str, NumberColumn]
    texts: Mapping[str, CodedTexts]

    @property
    def names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset((*self.numbers, *self.texts))


def refused(path: str, row: int, reason: str) -> ProfileError:
    """Return the refusal of a table for one row, counted from 0; people count from 1."""
    return ProfileError(f"{path}: row {row + 1}: {reason}")


def shown(cell: object) -> str:
    """Return a cell as a message shows it."""
    return repr(one_line(str(cell), _SHOWN))


def stripped(code: Ints, texts: Sequence[str]) -> CodedTexts:
    """Return coded texts without blanks around them; what is blank becomes none."""
    places: dict[str, int] = {}
    place = [places.setdefault(t, len(places)) if (t := text.strip()) else NONE for text in texts]
    # The last place is that of none.
    return CodedTexts(np.array([*place, NONE], np.int64)[code], list(places))


# Interval cells: any number of times in one cell, ``12..15 20..31``; reports write such.
#
# That way a row stays an operation, and what ran beside it is told, too.


_CELL = re.compile(r"-?[0-9]{1,18}\.\.-?[0-9]{1,18}(?: -?[0-9]{1,18}\.\.-?[0-9]{1,18})*")


def row_intervals(cells: Cells, name: str) -> RowIntervals:
    """Return the times of a column, row by row; none where it is not there.

    Raises:
        ProfileError: a cell holds something else.
    """
    column = cells.texts.get(name)
    if column is None:
        return RowIntervals.none()
    column = column.occurring()
    counts, words = [], []
    for place, text in enumerate(column.texts):
        if _CELL.fullmatch(text) is None:
            raise refused(
                cells.path,
                int((column.code == place).argmax()),
                f"{name} is {shown(text)}, and should be times such as 12..15 20..31",
            )
        own = text.split(" ")
        counts.append(len(own))
        words.extend(own)
    ends = np.array([word.split("..") for word in words], np.int64).reshape(-1, 2)
    row = np.flatnonzero(column.code != NONE)
    code = column.code[row]
    first = np.concatenate(([0], np.cumsum(counts)))[:-1].astype(np.int64)
    length = np.array(counts, np.int64)[code] if len(code) else code
    at = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    at += np.repeat(first[code] if len(code) else code, length)
    return RowIntervals(np.repeat(row, length), ends[at, 0].copy(), ends[at, 1].copy())


# Collective cells: what reports write of collectives beside operations.


#: Of each collective: iteration, kind and group as texts, then so many whole numbers.
_TEXTS, _NUMBERS = 3, 7
_LARGEST = 1 << 62


def told_collectives(cells: Cells) -> ToldCollectives:
    """Return the collectives in the cells of a table; none where it has no such column.

    Raises:
        ProfileError: a cell holds something else.
    """
    column = cells.texts.get(COLLECTIVES)
    if column is None:
        return ToldCollectives.none()
    names: tuple[Numbering[str], ...] = (Numbering(), Numbering(), Numbering())
    rows = []
    for row in np.flatnonzero(column.known).tolist():
        text = column.texts[int(column.code[row])]
        for entry in _entries(cells.path, row, text):
            numbers = (
                number.number(str(name)) if name else NONE
                for number, name in zip(names, entry[:_TEXTS], strict=True)
            )
            rows.append((row, *numbers, *entry[_TEXTS:]))
    # The order of columns is that of the value: row, texts, numbers.
    table = np.array(rows, np.int64).reshape(-1, 1 + _TEXTS + _NUMBERS)
    values = dict(zip(ToldCollectives.column_names(), (c.copy() for c in table.T), strict=True))
    iterations, kinds, groups = (number.values for number in names)
    return ToldCollectives(**values, iterations=iterations, kinds=kinds, groups=groups)


def _entries(path: str, row: int, text: str) -> list[list[str | int]]:
    """Return the collectives of a cell.

    Raises:
        ProfileError: it holds something else.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list) or not all(map(_is_collective, entries)):
        raise refused(
            path, row, f"collectives is {shown(text)}, which is no list of them that --csv writes"
        )
    return entries


def _is_collective(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == _TEXTS + _NUMBERS
        and all(isinstance(text, str) for text in entry[:_TEXTS])
        and all(type(number) is int and abs(number) < _LARGEST for number in entry[_TEXTS:])
        and all(number >= NONE for number in entry[_TEXTS:-2])
        and bool(entry[-2] <= entry[-1])
    )


# Times: starts and ends of rows in whole nanoseconds, whatever unit and type a table has.


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
