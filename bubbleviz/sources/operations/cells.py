"""Cells: the columns of a table of operations as arrays, and the checks of single cells.

Whatever unit and type a table has, times become whole nanoseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.declared_collectives import DeclaredCollectives
from bubbleviz.model.grouping import expand_ranges
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.numbering import CodedTexts, Numbering
from bubbleviz.model.operations import BusyIntervals
from bubbleviz.model.texts import to_one_line
from bubbleviz.sources.operations.schema import (
    COLUMNS,
    MAX_TIME_NS,
    UNITS_NS,
    find_end_column,
    find_start_column,
)

#: Whole numbers stay whole; all others are floats.
Numbers: TypeAlias = "Ints | npt.NDArray[np.float64]"

#: Maximum length of a cell in a message, in characters.
_MAX_CELL_LENGTH = 40
_INTERVALS = re.compile(r"-?[0-9]{1,18}\.\.-?[0-9]{1,18}(?: -?[0-9]{1,18}\.\.-?[0-9]{1,18})*")
#: A collective has texts (iteration, kind and group) followed by whole numbers.
_N_TEXTS, _N_NUMBERS = 3, 7
#: Upper bound of these numbers.
_NUMBER_BOUND = 1 << 62


def make_row_error(path: str, row: int, reason: str, noun: str = "row") -> ProfileError:
    """Return the error for a row of a table.

    Args:
        path: Path of the table.
        row: Index of the row; the message counts from 1.
        reason: What is wrong.
        noun: Name of a row.
    """
    return ProfileError(f"{path}: {noun} {row + 1}: {reason}")


def format_cell(cell: object) -> str:
    """Return a cell for a message, quoted and shortened."""
    return repr(to_one_line(str(cell), _MAX_CELL_LENGTH))


def trim_texts(code: Ints, texts: Sequence[str]) -> CodedTexts:
    """Return coded texts without surrounding whitespace; blank texts become missing.

    Args:
        code: Index of the text of each cell, or -1 if the cell is empty.
        texts: The texts.
    """
    numbering: Numbering[str] = Numbering()
    code_of_text = [numbering.number(text) if (text := raw.strip()) else NONE for raw in texts]
    # The last entry stands for empty cells.
    code_of_text.append(NONE)
    return CodedTexts(np.array(code_of_text, np.int64)[code], numbering.values)


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Attributes:
        values: One number per row, with any value in empty cells.
        filled: Whether each cell contains a number.
        in_ns: Whether the type of the column says that times are nanoseconds; the unit in the
            column's name is then ignored.
    """

    values: Numbers
    filled: Bools
    in_ns: bool = False


@dataclass(frozen=True)
class Cells:
    """The columns of a table that belong to the schema.

    Attributes:
        path: Path of the file.
        rows: Number of rows.
        numbers: Columns of numbers, keyed by name. Pairs are numbers if the second columns are
            separate.
        texts: Columns of texts, keyed by name; empty cells have code -1.
        interval_columns: Columns of intervals that are not texts, keyed by name.
        row_noun: Name of a row in messages.
        notes: Limitations found while reading the file.
    """

    path: str
    rows: int
    numbers: Mapping[str, NumberColumn]
    texts: Mapping[str, CodedTexts]
    interval_columns: Mapping[str, BusyIntervals] = field(default_factory=dict)
    row_noun: str = "row"
    notes: tuple[Limitation, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset((*self.numbers, *self.texts, *self.interval_columns))

    def refuse(self, is_invalid: Bools, reason: str | Callable[[int], str]) -> None:
        """Raise an error for the first invalid row, if there is one.

        Args:
            is_invalid: Mask of the invalid rows.
            reason: What is wrong, or a function that returns it for the index of the row.

        Raises:
            ProfileError: A row is invalid.
        """
        if is_invalid.any():
            row = int(is_invalid.argmax())
            raise self.refusal(row, reason if isinstance(reason, str) else reason(row))

    def refusal(self, row: int, reason: str) -> ProfileError:
        """Return the error for a row, which the message counts from 1."""
        return make_row_error(self.path, row, reason, self.row_noun)

    def text(self, name: str) -> CodedTexts:
        """Return a column of texts; if the table lacks it, all cells are empty."""
        column = self.texts.get(name)
        return CodedTexts(np.full(self.rows, NONE, np.int64), ()) if column is None else column

    def whole(self, name: str) -> tuple[Ints, Bools]:
        """Return a column of whole numbers.

        Args:
            name: Name of the column. If the table lacks it, all cells are empty.

        Returns:
            values: The numbers. Empty cells get the number ``Column.empty`` of the schema.
            filled: Whether each cell contains a number.

        Raises:
            ProfileError: A cell contains a fraction, or a number outside the range of the schema.
        """
        schema = COLUMNS[name]
        column = self.numbers.get(name)
        if column is None:
            return np.full(self.rows, schema.empty, np.int64), np.zeros(self.rows, bool)
        filled = column.filled & ~np.isnan(column.values)
        values = np.where(filled, column.values, 0)
        bad = (values < schema.minimum) | (values > schema.maximum)
        if values.dtype.kind == "f":
            bad |= values != np.rint(values)
        self.refuse(
            bad,
            lambda row: (
                f"{name} is {values[row]}, and should be a whole number from {schema.minimum} to "
                f"{schema.maximum:,}"
            ),
        )
        return np.where(filled, values.astype(np.int64), schema.empty), filled

    def times(self, name: str) -> Ints:
        """Return a column of times in ns.

        The time is -1 in empty cells and in cells that are NaN, and in all rows if the table lacks
        the column.

        Raises:
            ProfileError: A time does not fit into 64 bits.
        """
        column = self.numbers.get(name)
        if column is None:
            return np.full(self.rows, NONE, np.int64)
        filled = column.filled & ~np.isnan(column.values)
        return np.where(filled, self._sum_times(name), NONE)

    def spans(self) -> tuple[Ints, Ints, Bools]:
        """Return the start and end of each operation on its device, in ns.

        A row without start and end is an operation that ran nothing on its device. Starts and
        durations are added before they are rounded, so that adjacent operations stay adjacent.

        Returns:
            start_ns: Start, or -1 if the operation has none.
            end_ns: End, or -1 if the operation has none.
            has_span: Whether the operation has both.

        Raises:
            ProfileError: A row has only one of them, NaN, or an end before its start.
        """
        # Tables without these columns are refused when they are read.
        start_name = find_start_column(self.numbers) or ""
        end_name = find_end_column(self.numbers) or ""
        start, end = self.numbers[start_name], self.numbers[end_name]
        for name, column in ((start_name, start), (end_name, end)):
            nan = column.filled & np.isnan(column.values)
            self.refuse(nan, f"{name} is NaN, which is not a time")
        self.refuse(
            start.filled != end.filled,
            lambda row: (
                f"{end_name if start.filled[row] else start_name} is empty; fill it, or leave the "
                "row out"
            ),
        )
        is_duration = end_name.startswith("duration")
        start_ns = self._sum_times(start_name)
        end_ns = self._sum_times(*((start_name, end_name) if is_duration else (end_name,)))
        filled = start.filled & end.filled

        def describe_row(row: int) -> str:
            times = f"{end_name} is {end.values[row]}"
            if not is_duration:
                times += f", before {start_name}, which is {start.values[row]}"
            return f"{times}; an operation cannot end before it starts"

        self.refuse(filled & (end_ns < start_ns), describe_row)
        return np.where(filled, start_ns, NONE), np.where(filled, end_ns, NONE), filled

    def _sum_times(self, *names: str) -> Ints:
        """Return the row-wise sum of columns of times, in ns, rounded to whole nanoseconds.

        Floats are added before they are rounded. Rows with an empty cell get an arbitrary value.

        Raises:
            ProfileError: A sum does not fit into 64 bits.
        """
        columns = [self.numbers[name] for name in names]
        is_whole = columns[0].values.dtype.kind == "i"
        if is_whole and len(columns) > 1:
            # Times since 1970 in nanoseconds have more digits than floats.
            first, second = map(self._sum_times, names)
            return np.asarray(first + second, np.int64)
        units_ns = [
            1 if column.in_ns else UNITS_NS.get(name.rpartition("_")[2], 1)
            for name, column in zip(names, columns, strict=True)
        ]
        finest = min(units_ns)
        if is_whole:
            (values,) = (column.values for column in columns)
            is_far = (values > MAX_TIME_NS // finest) | (values < -(MAX_TIME_NS // finest))
            total_ns: Numbers = values * finest
        else:
            pairs = zip(columns, units_ns, strict=True)
            parts = [column.values * float(unit_ns // finest) for column, unit_ns in pairs]
            total_ns = np.rint(np.nan_to_num(sum(parts[1:], parts[0])) * float(finest))
            is_far = np.abs(total_ns) >= MAX_TIME_NS
        for column in columns:
            is_far = is_far & column.filled

        def describe_row(row: int) -> str:
            pairs = zip(names, columns, strict=True)
            times = " and ".join(f"{name} is {column.values[row]}" for name, column in pairs)
            return f"{times}, centuries away; check the unit in the column's name"

        self.refuse(np.asarray(is_far, bool), describe_row)
        return np.asarray(total_ns, np.int64)

    def intervals(self, name: str) -> BusyIntervals:
        """Parse a column of intervals, whose cells are texts such as ``12..15 20..31``.

        Each interval belongs to the row of its cell. The result is empty if the table lacks the
        column.

        Raises:
            ProfileError: A cell is not a list of intervals.
        """
        if name in self.interval_columns:
            return self.interval_columns[name]
        column = self.text(name).drop_unused()
        bounds_ns, first = self._parse_intervals(name, column)
        rows = np.flatnonzero(column.known)
        code = column.code[rows]
        row, interval = expand_ranges(first[code], first[code + 1])
        start_ns, end_ns = bounds_ns[interval].T.copy()
        return BusyIntervals(rows[row], start_ns, end_ns)

    def _parse_intervals(self, name: str, column: CodedTexts) -> tuple[Ints, Ints]:
        """Parse each distinct text of a column of intervals once.

        Args:
            name: Name of the column, for the error.
            column: The column, without unused texts.

        Returns:
            bounds_ns: Start and end of the intervals of all texts, shape (intervals, 2).
            first: Row in ``bounds_ns`` of the first interval of each text, followed by the number
                of intervals.

        Raises:
            ProfileError: A text is not a list of intervals.
        """
        words: list[list[str]] = []
        first = [0]
        for text_code, text in enumerate(column.texts):
            if _INTERVALS.fullmatch(text) is None:
                reason = f"{name} is {format_cell(text)}, and should be times such as 12..15 20..31"
                self.refuse(column.code == text_code, reason)
            words += [word.split("..") for word in text.split(" ")]
            first.append(len(words))
        return np.array(words, np.int64).reshape(-1, 2), np.array(first, np.int64)

    def collectives(self) -> DeclaredCollectives:
        """Parse the column ``collectives``, whose cells are JSON lists of collectives.

        The result has one row per collective, with the index of its table row. It is empty if the
        table lacks the column.

        Raises:
            ProfileError: A cell is not a list of collectives.
        """
        column = self.texts.get("collectives")
        if column is None:
            return DeclaredCollectives.make_empty()
        names: tuple[Numbering[str], ...] = (Numbering(), Numbering(), Numbering())
        rows = []
        for row in np.flatnonzero(column.known).tolist():
            for entry in self._parse_collectives(row, column.texts[int(column.code[row])]):
                numbers = (
                    number.number(name) if name else NONE
                    for number, name in zip(names, entry[:_N_TEXTS], strict=True)
                )
                rows.append((row, *numbers, *entry[_N_TEXTS:]))
        # These are the columns of DeclaredCollectives, in the same order.
        table = np.array(rows, np.int64).reshape(-1, 1 + _N_TEXTS + _N_NUMBERS)
        columns = (of_value.copy() for of_value in table.T)
        values = dict(zip(DeclaredCollectives.column_names(), columns, strict=True))
        iterations, kinds, groups = (number.values for number in names)
        return DeclaredCollectives(**values, iterations=iterations, kinds=kinds, groups=groups)

    def _parse_collectives(self, row: int, text: str) -> list[Any]:
        """Return the collectives in a cell, each a list of its texts and numbers.

        Args:
            row: Row of the cell, for the error.
            text: Text of the cell.

        Raises:
            ProfileError: The text is not a list of collectives.
        """
        try:
            entries = json.loads(text)
        except (ValueError, RecursionError):
            entries = None
        if not isinstance(entries, list) or not all(map(_is_collective, entries)):
            cell = format_cell(text)
            reason = f"collectives is {cell}, which is not a list as bubbleviz writes it"
            raise self.refusal(row, reason)
        return entries


def _is_collective(entry: object) -> bool:
    """Return whether a JSON value lists the texts and numbers of one collective.

    Numbers are at least -1, except the start and end, of which the end is not before the start.
    """
    return (
        isinstance(entry, list)
        and len(entry) == _N_TEXTS + _N_NUMBERS
        and all(isinstance(text, str) for text in entry[:_N_TEXTS])
        and all(type(number) is int and abs(number) < _NUMBER_BOUND for number in entry[_N_TEXTS:])
        and all(number >= NONE for number in entry[_N_TEXTS:-2])
        and bool(entry[-2] <= entry[-1])
    )
