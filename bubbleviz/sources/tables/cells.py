"""Cells: the columns of a table of operations, and what numbers, times and texts their cells hold.

Whatever unit and type a table has, times become whole nanoseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import ProfileError, SchemaError
from bubbleviz.model.collectives import ToldCollectives
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import CodedTexts, Numbering, expanded
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import BusyIntervals
from bubbleviz.model.texts import listed, one_line

#: Whole numbers stay whole; all others are floats.
Numbers: TypeAlias = "Ints | npt.NDArray[np.float64]"

#: Units of times in names of columns, in nanoseconds; of several columns the finest counts.
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_BEGINNING, _ENDING = ("start",), ("end", "duration")
#: Whether the cells of each column that is read are numbers, by the column's name. Texts of
#: microbatches and chunks may hold two numbers, ``7;3``; the last five of the texts any number of
#: times, ``12..15 20..31``, and the last collectives.
IS_NUMBER: Mapping[str, bool] = {
    **dict.fromkeys(
        (
            *("rank", "stage", "sequence", "occurrence", "second_microbatch", "second_chunk"),
            *("virtual_stage", "pipeline", "global_rank", "kernels", "active_ns"),
            *("host_start_ns", "host_end_ns", "launched_ns", "received_ns", "receive_start_ns"),
            *("receive_launched_ns", "cut", "tokens", "prefix", "clock_uncertainty_ns", "paired"),
            *(f"{what}_{unit}" for what in (*_BEGINNING, *_ENDING) for unit in _UNITS_NS),
        ),
        True,
    ),
    **dict.fromkeys(
        (
            *("phase", "iteration", "microbatch", "chunk", "name", "host", "clock", "kind"),
            *("group", "waits", "unattributed", "exposed", "profiler", "pauses", "collectives"),
        ),
        False,
    ),
}
#: Columns that a message names; it counts all.
_NAMED = 20
_LONGEST_NAME = 40
#: Characters of a cell that a message shows.
_SHOWN = 40
#: Nanoseconds beyond which no time lies: 2^62, so that differences have room.
_FARTHEST_NS = 1 << 62
_INTERVALS = re.compile(r"-?[0-9]{1,18}\.\.-?[0-9]{1,18}(?: -?[0-9]{1,18}\.\.-?[0-9]{1,18})*")
#: Of each collective: iteration, kind and group as texts, then so many whole numbers.
_TEXTS, _NUMBERS = 3, 7
_LARGEST = 1 << 62


def _time_column(names: Collection[str], what: Sequence[str]) -> str | None:
    """Return the column of a time: the finest one of the first word that has one; None for none."""
    candidates = (f"{word}_{unit}" for word in what for unit in _UNITS_NS)
    return next((name for name in candidates if name in names), None)


def lacking(names: Collection[str]) -> list[str]:
    """Return what a table with these columns lacks to be one of operations, in words."""
    lacks = [name for name in ("rank", "phase") if name not in names]
    if _time_column(names, _BEGINNING) is None:
        lacks.append("start_ns (or start_us, start_ms, start_s)")
    if _time_column(names, _ENDING) is None:
        lacks.append("end_ns (or another unit, or duration_ns)")
    return lacks


def columns_read(path: str, names: Iterable[str]) -> list[str]:
    """Return the columns of a table that mean something, in their order.

    Raises:
        SchemaError: it lacks what operations need, and the message names its columns; or two
            columns have one name, and nobody knows which is meant.
    """
    names = list(names)
    if lacks := lacking(names):
        found = listed((repr(one_line(name, _LONGEST_NAME)) for name in names), _NAMED) or "none"
        raise SchemaError(
            f"{path}: no table of operations, since it lacks {', '.join(lacks)}; its columns are "
            f"{found}; rename those that hold them (bubbleviz guide tables)"
        )
    read = [name for name in dict.fromkeys(names) if name in IS_NUMBER]
    twice = next((name for name in read if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"{path}: two columns are named {twice}; leave one out")
    return read


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


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Attributes:
        values: one a row; any number where a cell is empty.
        filled: which cells hold one.
        in_ns: whether the file's own type says that times are nanoseconds, whatever the name says.
    """

    values: Numbers
    filled: Bools
    in_ns: bool = False


@dataclass(frozen=True)
class Cells:
    """The columns of a table that mean something here.

    Attributes:
        path: of the file.
        rows: how many there are.
        numbers: by name.
        texts: by name; empty cells have none.
        notes: Limitations found while reading the file.
    """

    path: str
    rows: int
    numbers: Mapping[str, NumberColumn]
    texts: Mapping[str, CodedTexts]
    notes: tuple[Limitation, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset((*self.numbers, *self.texts))

    def refuse(self, bad: Bools, reason: str | Callable[[int], str]) -> None:
        """Refuse the first bad row, if any, for a reason, which may depend on its number.

        Raises:
            ProfileError: there is one.
        """
        if bad.any():
            row = int(bad.argmax())
            raise refused(self.path, row, reason if isinstance(reason, str) else reason(row))

    def text(self, name: str) -> CodedTexts:
        """Return a column of texts; none in any row where it is not there."""
        column = self.texts.get(name)
        return CodedTexts(np.full(self.rows, NONE, np.int64), ()) if column is None else column

    def whole(
        self, name: str, otherwise: int = NONE, least: int = 0, below: int = 1 << 31
    ) -> tuple[Ints, Bools]:
        """Return a column of whole numbers, and which cells hold one.

        Args:
            name: of the column, which may be missing.
            otherwise: what stands in cells that are empty.
            least: the smallest number that has a meaning.
            below: what all numbers that have one are smaller than.

        Raises:
            ProfileError: a cell holds a fraction, or a number without a meaning.
        """
        column = self.numbers.get(name)
        if column is None:
            return np.full(self.rows, otherwise, np.int64), np.zeros(self.rows, bool)
        known = column.filled & ~np.isnan(column.values)
        values = np.where(known, column.values, 0)
        bad = (values < least) | (values >= below)
        if values.dtype.kind == "f":
            bad |= values != np.rint(values)
        self.refuse(
            bad,
            lambda row: (
                f"{name} is {values[row]}, and should be a whole number from {least} to "
                f"{below - 1:,}"
            ),
        )
        return np.where(known, values.astype(np.int64), otherwise), known

    def times(self, name: str) -> Ints:
        """Return a column of times; -1 where it is empty, or not there.

        Raises:
            ProfileError: a time is beyond 64 bits.
        """
        column = self.numbers.get(name)
        if column is None:
            return np.full(self.rows, NONE, np.int64)
        known = column.filled & ~np.isnan(column.values)
        return np.where(known, self._nanoseconds(name), NONE)

    def spans(self) -> tuple[Ints, Ints, Bools]:
        """Return start and end of each row, and which rows have them.

        A row with neither is an operation that ran nothing on its device. Starts and durations are
        added before they are rounded, so that operations that touch stay so.

        Raises:
            ProfileError: a row has one of both, no number, or an end before its start.
        """
        # Without them no table is read.
        start_name = _time_column(self.numbers, _BEGINNING) or ""
        end_name = _time_column(self.numbers, _ENDING) or ""
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
        start_ns = self._nanoseconds(start_name)
        end_ns = self._nanoseconds(*((start_name, end_name) if is_duration else (end_name,)))
        filled = start.filled & end.filled

        def reason(row: int) -> str:
            told = f"{end_name} is {end.values[row]}"
            if not is_duration:
                told += f", before {start_name}, which is {start.values[row]}"
            return f"{told}; an operation cannot end before it starts"

        self.refuse(filled & (end_ns < start_ns), reason)
        return np.where(filled, start_ns, NONE), np.where(filled, end_ns, NONE), filled

    def _nanoseconds(self, *names: str) -> Ints:
        """Return the sum of some columns of times.

        Raises:
            ProfileError: 64 bits cannot hold one.
        """
        columns = [self.numbers[name] for name in names]
        whole = columns[0].values.dtype.kind == "i"
        if whole and len(columns) > 1:
            # Epochs in nanoseconds are no floats.
            first, second = map(self._nanoseconds, names)
            return np.asarray(first + second, np.int64)
        units_ns = [
            1 if column.in_ns else _UNITS_NS.get(name.rpartition("_")[2], 1)
            for name, column in zip(names, columns, strict=True)
        ]
        finest = min(units_ns)
        if whole:
            (values,) = (column.values for column in columns)
            far = (values > _FARTHEST_NS // finest) | (values < -(_FARTHEST_NS // finest))
            total_ns: Numbers = values * finest
        else:
            pairs = zip(columns, units_ns, strict=True)
            parts = [column.values * float(unit_ns // finest) for column, unit_ns in pairs]
            total_ns = np.rint(np.nan_to_num(sum(parts[1:], parts[0])) * float(finest))
            far = np.abs(total_ns) >= _FARTHEST_NS
        for column in columns:
            far = far & column.filled

        def reason(row: int) -> str:
            pairs = zip(names, columns, strict=True)
            told = " and ".join(f"{name} is {column.values[row]}" for name, column in pairs)
            return f"{told}, centuries away; check the unit in the column's name"

        self.refuse(np.asarray(far, bool), reason)
        return np.asarray(total_ns, np.int64)

    def intervals(self, name: str) -> BusyIntervals:
        """Return the times in a column, ``12..15 20..31``; none where it is not there.

        That way a row stays an operation, and what ran beside it is told, too.

        Raises:
            ProfileError: a cell holds something else.
        """
        column = self.text(name).occurring()
        ends: list[list[str]] = []
        first = [0]
        for place, text in enumerate(column.texts):
            if _INTERVALS.fullmatch(text) is None:
                reason = f"{name} is {shown(text)}, and should be times such as 12..15 20..31"
                self.refuse(column.code == place, reason)
            ends += [word.split("..") for word in text.split(" ")]
            first.append(len(ends))
        rows = np.flatnonzero(column.known)
        code, bounds = column.code[rows], np.array(first, np.int64)
        row, at = expanded(bounds[code], bounds[code + 1])
        start_ns, end_ns = np.array(ends, np.int64).reshape(-1, 2)[at].T.copy()
        return BusyIntervals(rows[row], start_ns, end_ns)

    def collectives(self) -> ToldCollectives:
        """Return the collectives that reports write beside operations; none without the column.

        Raises:
            ProfileError: a cell holds something else.
        """
        column = self.texts.get("collectives")
        if column is None:
            return ToldCollectives.none()
        names: tuple[Numbering[str], ...] = (Numbering(), Numbering(), Numbering())
        rows = []
        for row in np.flatnonzero(column.known).tolist():
            text = column.texts[int(column.code[row])]
            try:
                entries = json.loads(text)
            except (ValueError, RecursionError):
                entries = None
            if not isinstance(entries, list) or not all(map(_is_collective, entries)):
                reason = f"collectives is {shown(text)}, which is not a list as bubbleviz writes it"
                raise refused(self.path, row, reason)
            for entry in entries:
                numbers = (
                    number.number(name) if name else NONE
                    for number, name in zip(names, entry[:_TEXTS], strict=True)
                )
                rows.append((row, *numbers, *entry[_TEXTS:]))
        # The order of columns is that of the value: row, texts, numbers.
        table = np.array(rows, np.int64).reshape(-1, 1 + _TEXTS + _NUMBERS)
        columns = (of_value.copy() for of_value in table.T)
        values = dict(zip(ToldCollectives.column_names(), columns, strict=True))
        iterations, kinds, groups = (number.values for number in names)
        return ToldCollectives(**values, iterations=iterations, kinds=kinds, groups=groups)


def _is_collective(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == _TEXTS + _NUMBERS
        and all(isinstance(text, str) for text in entry[:_TEXTS])
        and all(type(number) is int and abs(number) < _LARGEST for number in entry[_TEXTS:])
        and all(number >= NONE for number in entry[_TEXTS:-2])
        and bool(entry[-2] <= entry[-1])
    )
