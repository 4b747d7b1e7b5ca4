"""Stores an operation table's columns as arrays, and validates and converts their cells.

Times are converted to whole nanoseconds, regardless of their unit and type in the table.
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
    list_span_columns,
)

#: An array of 64-bit integers, or of floats if any number is fractional.
Numbers: TypeAlias = "Ints | npt.NDArray[np.float64]"

#: Maximum number of characters of a cell to show in a message.
_MAX_CELL_LENGTH = 40
_INTERVALS = re.compile(r"-?[0-9]{1,18}\.\.-?[0-9]{1,18}(?: -?[0-9]{1,18}\.\.-?[0-9]{1,18})*")
#: Number of texts in a JSON collective (iteration, kind, group), and number of integers that follow
#: them.
_N_TEXTS, _N_NUMBERS = 3, 7
#: Maximum time in ns by which an operation may start before its launch because of clock errors.
_MAX_CLOCK_ERROR_NS = 100_000
#: Exclusive upper bound on the absolute value of an integer in a JSON collective.
_NUMBER_BOUND = 1 << 62


def make_row_error(path: str, row: int, reason: str, noun: str = "row") -> ProfileError:
    """Return the error to raise for an invalid row in a table.

    Args:
        path: Path to the table.
        row: Zero-based index of the row. The message counts from 1.
        reason: Explanation of what is wrong with the row.
        noun: Noun for a row in the message, such as "operation".
    """
    return ProfileError(f"{path}: {noun} {row + 1}: {reason}")


def format_cell(cell: object) -> str:
    """Format a cell's value for a message: on one line, quoted and shortened."""
    return repr(to_one_line(str(cell), _MAX_CELL_LENGTH))


def trim_texts(code: Ints, texts: Sequence[str]) -> CodedTexts:
    """Strip whitespace from the texts in a column and renumber them. Blank texts become missing.

    Texts that are equal after stripping get the same code.

    Args:
        code: For each cell, the index of its text, or -1 if the cell is empty.
        texts: The texts, before stripping.
    """
    numbering: Numbering[str] = Numbering()
    code_of_text = [numbering.number(text) if (text := raw.strip()) else NONE for raw in texts]
    # The last entry is for empty cells.
    code_of_text.append(NONE)
    return CodedTexts(np.array(code_of_text, np.int64)[code], numbering.values)


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Attributes:
        values: One number per row. Empty cells have an arbitrary value.
        filled: Mask of the cells that contain a number or NaN.
        in_ns: Whether the column's type, such as a timestamp type, implies that the values are in
            ns. If so, the unit in the column's name is ignored.
    """

    values: Numbers
    filled: Bools
    in_ns: bool = False


@dataclass(frozen=True)
class Cells:
    """The columns of an operation table that belong to the schema.

    Attributes:
        path: Path to the file.
        rows: Number of rows.
        numbers: Number columns, keyed by name. A pair column, such as ``microbatch``, is also
            stored here if a separate column contains the second number of each pair.
        texts: Text columns, keyed by name. Empty cells have code -1.
        interval_columns: Interval columns that the reader has already parsed, keyed by name.
        row_noun: Noun for a row in messages, such as "operation".
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
        """Names of all columns in the table that belong to the schema."""
        return frozenset((*self.numbers, *self.texts, *self.interval_columns))

    def refuse(self, is_invalid: Bools, reason: str | Callable[[int], str]) -> None:
        """Raise an error for the first invalid row, if there is one.

        Args:
            is_invalid: Mask of the invalid rows.
            reason: Explanation of what is wrong with the row, or a function that returns the
                explanation, given the row's index.

        Raises:
            ProfileError: A row is invalid.
        """
        if is_invalid.any():
            row = int(is_invalid.argmax())
            raise self.refusal(row, reason if isinstance(reason, str) else reason(row))

    def refusal(self, row: int, reason: str) -> ProfileError:
        """Return the error for a row, given its zero-based index (messages count from 1)."""
        return make_row_error(self.path, row, reason, self.row_noun)

    def text(self, name: str) -> CodedTexts:
        """Return a text column. If the table lacks the column, all of its cells are empty."""
        column = self.texts.get(name)
        return CodedTexts(np.full(self.rows, NONE, np.int64), ()) if column is None else column

    def whole(self, name: str) -> tuple[Ints, Bools]:
        """Check a column of whole numbers, and return it as integers.

        Args:
            name: Name of the column. If the table lacks the column, all of its cells are empty.

        Returns:
            values: The integers, one per row. Empty and NaN cells get ``Column.empty`` of the
                schema.
            filled: Mask of the cells that contain a number.

        Raises:
            ProfileError: A cell contains a number that is not whole, or that is outside the range
                allowed by the schema.
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
                f"{name} is {values[row]:.12g}, but must be a whole number from "
                f"{schema.minimum} to {schema.maximum:,}"
            ),
        )
        return np.where(filled, values.astype(np.int64), schema.empty), filled

    def times(self, name: str) -> Ints:
        """Return a time column in ns. Empty and NaN cells become -1.

        If the table lacks the column, all times are -1.

        Raises:
            ProfileError: The absolute value of a time exceeds ``MAX_TIME_NS``.
        """
        column = self.numbers.get(name)
        if column is None:
            return np.full(self.rows, NONE, np.int64)
        filled = column.filled & ~np.isnan(column.values)
        return np.where(filled, self._sum_times(name), NONE)

    def spans(self) -> tuple[Ints, Ints, Bools]:
        """Return the start and end of each operation on its device.

        If the table has durations instead of ends, the end is the start plus the duration. Floats
        are added before the sum is rounded, so that adjacent operations stay adjacent. A row that
        has neither a start nor an end is an operation that did not run anything on its device.

        Returns:
            start_ns: Start of each operation in ns, or -1 if it has none.
            end_ns: End of each operation in ns, or -1 if it has none.
            has_span: Mask of the operations that have both a start and an end.

        Raises:
            ProfileError: A row has only a start or only an end, a time is NaN or too large, an
                operation ends before it starts, or two columns contradict each other.
        """
        # Tables that lack a start or end column are rejected when they are read.
        start_name = find_start_column(self.numbers) or ""
        end_name = find_end_column(self.numbers) or ""
        start, end = self.numbers[start_name], self.numbers[end_name]
        for name, column in ((start_name, start), (end_name, end)):
            nan = column.filled & np.isnan(column.values)
            self.refuse(nan, f"{name} is NaN, which is not a time")
        self.refuse(
            start.filled != end.filled,
            lambda row: (
                f"{end_name if start.filled[row] else start_name} is empty; fill it in, or remove "
                "the row"
            ),
        )
        is_duration = end_name.startswith("duration")
        start_ns = self._sum_times(start_name)
        end_ns = self._sum_times(*((start_name, end_name) if is_duration else (end_name,)))
        filled = start.filled & end.filled

        def describe_row(row: int) -> str:
            times = f"{end_name} is {end.values[row]}"
            if not is_duration:
                times += f", which is before {start_name} ({start.values[row]})"
            return f"{times}; an operation cannot end before it starts"

        self.refuse(filled & (end_ns < start_ns), describe_row)
        self._refuse_contradicting_times(filled, start_ns, end_ns)
        return np.where(filled, start_ns, NONE), np.where(filled, end_ns, NONE), filled

    def _refuse_contradicting_times(self, has_span: Bools, start_ns: Ints, end_ns: Ints) -> None:
        """Raise an error if two columns give different starts, ends or durations for a row.

        For example, a table may contain both ``end_ns`` and ``duration_us``. Empty and NaN cells of
        the columns that are not used are ignored. Times may differ by the rounding of each column.

        Args:
            has_span: Mask of the operations that have both a start and an end.
            start_ns: Start of each operation in ns.
            end_ns: End of each operation in ns.

        Raises:
            ProfileError: Two columns contradict each other.
        """
        start_name = find_start_column(self.numbers) or ""
        end_name = find_end_column(self.numbers) or ""
        expected = {"start": start_ns, "end": end_ns, "duration": end_ns - start_ns}
        for name in list_span_columns(self.numbers):
            if name in (start_name, end_name):
                continue
            quantity = name.rpartition("_")[0]
            column = self.numbers[name]
            is_known = has_span & column.filled & ~np.isnan(column.values)
            error_ns = np.abs(self._sum_times(name) - expected[quantity])
            rounding_ns = sum(map(self._get_rounding_ns, (name, start_name, end_name)))
            is_wrong = is_known & (error_ns > rounding_ns)
            if is_wrong.any():
                row = int(is_wrong.argmax())
                raise self.refusal(
                    row,
                    f"{name} is {column.values[row]}, but the {quantity} is "
                    f"{expected[quantity][row]:,} ns according to {start_name} and {end_name}; "
                    "correct one of these columns, or remove it",
                )

    def refuse_late_launches(self, is_launched: Bools, launched_ns: Ints, start_ns: Ints) -> None:
        """Raise an error if an operation was launched after it started on its device.

        The clocks of host and device may differ by ``_MAX_CLOCK_ERROR_NS``. Tables written by a
        report are not checked, because a report may contain profiles with larger clock errors.

        Args:
            is_launched: Mask of the operations to check. Their launch and start must be known.
            launched_ns: Launch of each operation in ns.
            start_ns: Start of each operation in ns.

        Raises:
            ProfileError: An operation was launched after it started.
        """
        if "launched_ns" not in self.numbers or "clock_uncertainty_ns" in self.names:
            return
        name = find_start_column(self.numbers) or ""
        launched, start = self.numbers["launched_ns"], self.numbers[name]
        margin_ns = _MAX_CLOCK_ERROR_NS + self._get_rounding_ns(name)
        self.refuse(
            is_launched & (launched_ns - start_ns > margin_ns),
            lambda row: (
                f"launched_ns is {launched.values[row]}, which is after {name} "
                f"({start.values[row]}); an operation cannot start before it is launched, so "
                "correct the times or leave launched_ns empty"
            ),
        )

    def _get_rounding_ns(self, name: str) -> int:
        """Return by how much rounding may change the times in a column, in ns.

        Whole numbers may be rounded to their unit, and floats to a thousandth of it. Floats with
        times since 1970 have errors of up to a microsecond.
        """
        column = self.numbers[name]
        unit_ns = 1 if column.in_ns else UNITS_NS[name.rpartition("_")[2]]
        return unit_ns if column.values.dtype.kind == "i" else max(unit_ns // 1_000, 1_000)

    def _sum_times(self, *names: str) -> Ints:
        """Convert one or two time columns to whole nanoseconds, and add them row by row.

        The suffix of a column name, such as ``_us``, gives the unit of its times, unless the column
        is already in ns (``in_ns``). The type of the first column decides when sums are rounded:

        - Integers: each column is converted to ns first. The columns are then added.
        - Floats: the columns are added first. The sums are then rounded once.

        Rows with an empty or NaN cell get an arbitrary value.

        Args:
            names: One or two column names.

        Raises:
            ProfileError: A time or sum is too large, see ``MAX_TIME_NS``.
        """
        columns = [self.numbers[name] for name in names]
        is_whole = columns[0].values.dtype.kind == "i"
        if is_whole and len(columns) > 1:
            # Floats do not have enough digits for times in ns since 1970.
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
            return f"{times}, which is centuries away; check the unit in the column name"

        self.refuse(np.asarray(is_far, bool), describe_row)
        return np.asarray(total_ns, np.int64)

    def intervals(self, name: str) -> BusyIntervals:
        """Parse an interval column, whose cells are texts such as ``12..15 20..31`` in ns.

        The result has one row per interval. Its column ``operation`` contains the table row of the
        interval's cell. If the table lacks the column ``name``, the result is empty. Columns in
        ``interval_columns`` are returned unchanged.

        Raises:
            ProfileError: A cell is not a list of intervals.
        """
        if name in self.interval_columns:
            return self.interval_columns[name]
        column = self.text(name).drop_unused()
        bounds_ns, first = self._parse_intervals(name, column)
        rows = np.flatnonzero(column.has_text)
        code = column.code[rows]
        row, interval = expand_ranges(first[code], first[code + 1])
        start_ns, end_ns = bounds_ns[interval].T.copy()
        return BusyIntervals(rows[row], start_ns, end_ns)

    def _parse_intervals(self, name: str, column: CodedTexts) -> tuple[Ints, Ints]:
        """Parse each distinct text in an interval column once.

        Args:
            name: Name of the column, for messages.
            column: The column, without unused texts.

        Returns:
            bounds_ns: Start and end of each interval, text by text, shape (intervals, 2).
            first: Row of each text's first interval in ``bounds_ns``, followed by the number of
                intervals, shape (texts + 1,).

        Raises:
            ProfileError: A text is not a list of intervals.
        """
        words: list[list[str]] = []
        first = [0]
        for text_code, text in enumerate(column.texts):
            if _INTERVALS.fullmatch(text) is None:
                reason = (
                    f"{name} is {format_cell(text)}, but must be intervals such as 12..15 20..31"
                )
                self.refuse(column.code == text_code, reason)
            words += [word.split("..") for word in text.split(" ")]
            first.append(len(words))
        return np.array(words, np.int64).reshape(-1, 2), np.array(first, np.int64)

    def collectives(self) -> DeclaredCollectives:
        """Parse the column ``collectives``, whose cells are JSON lists of collectives.

        The result has one row per collective. Each row includes the table row of the collective's
        cell. If the table lacks the column, the result is empty.

        Raises:
            ProfileError: A cell is not a list of collectives.
        """
        column = self.texts.get("collectives")
        if column is None:
            return DeclaredCollectives.make_empty()
        names: tuple[Numbering[str], ...] = (Numbering(), Numbering(), Numbering())
        rows = []
        for row in np.flatnonzero(column.has_text).tolist():
            for entry in self._parse_collectives(row, column.texts[int(column.code[row])]):
                numbers = (
                    number.number(name) if name else NONE
                    for number, name in zip(names, entry[:_N_TEXTS], strict=True)
                )
                rows.append((row, *numbers, *entry[_N_TEXTS:]))
        # This array has the columns of DeclaredCollectives, in the same order.
        table = np.array(rows, np.int64).reshape(-1, 1 + _N_TEXTS + _N_NUMBERS)
        columns = (of_value.copy() for of_value in table.T)
        values = dict(zip(DeclaredCollectives.column_names(), columns, strict=True))
        iterations, kinds, groups = (number.values for number in names)
        return DeclaredCollectives(**values, iterations=iterations, kinds=kinds, groups=groups)

    def _parse_collectives(self, row: int, text: str) -> list[Any]:
        """Parse a cell's JSON text. Each collective is a list of texts and integers.

        Args:
            row: Row of the cell, for messages.
            text: The cell's text.

        Raises:
            ProfileError: The text is not a list of collectives.
        """
        try:
            entries = json.loads(text)
        except (ValueError, RecursionError):
            entries = None
        if not isinstance(entries, list) or not all(map(_is_collective, entries)):
            cell = format_cell(text)
            reason = f"collectives is {cell}, which is not in the format that bubbleviz writes"
            raise self.refusal(row, reason)
        return entries


def _is_collective(entry: object) -> bool:
    """Return whether a JSON value is a valid collective, which is a list of texts and integers.

    The list has three strings and seven integers. The last two integers are the start and the end.
    The end must not be before the start. All other integers must be at least -1.
    """
    return (
        isinstance(entry, list)
        and len(entry) == _N_TEXTS + _N_NUMBERS
        and all(isinstance(text, str) for text in entry[:_N_TEXTS])
        and all(type(number) is int and abs(number) < _NUMBER_BOUND for number in entry[_N_TEXTS:])
        and all(number >= NONE for number in entry[_N_TEXTS:-2])
        and bool(entry[-2] <= entry[-1])
    )
