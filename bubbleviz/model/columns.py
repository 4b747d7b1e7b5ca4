"""Tables as equal-length columns: the only shape in which bulk data travels.

Times are integer nanoseconds, identifiers are integers, and ``-1`` stands for "none" in every
identifier column. Columns are made read-only, so that a table can be shared freely. Where there is
one row per kernel, identifiers take 16 or 32 bits: such tables are what memory goes to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: Identifiers in as few bits as they need.
Codes = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: "None" in an identifier column, and in a time column of an operation without device time.
NONE = -1

TableT = TypeVar("TableT", bound="Table")
ScalarT = TypeVar("ScalarT", bound=np.generic)

#: Columns shorter than this are as small as what stands for a value.
_FEW = 16


# Compared field by field, any two tables would be equal: their base has none.
@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Base of the tables: every array field is a column, and all have one length.

    A table is equal to itself alone.
    """

    def __post_init__(self) -> None:
        """Freeze the columns and check that they have one length."""
        lengths = {}
        for name in self.column_names():
            column = getattr(self, name)
            column.flags.writeable = False
            lengths[name] = len(column)
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{type(self).__name__}: columns of unequal length: {lengths}")

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Return the names of the columns, in declaration order."""
        return _column_names(cls)

    @classmethod
    def none(cls: type[TableT]) -> TableT:
        """Return the table without any rows, all of its columns int64; shared fields are empty."""
        columns = {name: np.empty(0, np.int64) for name in cls.column_names()}
        return cls(**{part.name: columns.get(part.name, ()) for part in fields(cls)})

    def changed(self: TableT, **columns: npt.NDArray[Any]) -> TableT:
        """Return the table with some columns exchanged."""
        return type(self)(**{**_values_of(self), **columns})

    def __len__(self) -> int:
        return len(getattr(self, self.column_names()[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(self.column_names())})"

    def take(self: TableT, rows: Ints | Codes | Bools | slice) -> TableT:
        """Return the given rows (indices, mask or stretch) as a new table; shared fields stay."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            # Of a mask each column would count and find the rows anew.
            rows = slice(0, len(self)) if rows.all() else np.flatnonzero(rows)
        if isinstance(rows, slice) and rows == slice(0, len(self)):
            return self
        return self.changed(
            **{name: _taken(getattr(self, name), rows) for name in self.column_names()}
        )

    def compacted(self: TableT) -> TableT:
        """Return the same rows; columns of one value take no memory any more."""
        return self.changed(
            **{name: compacted(getattr(self, name)) for name in self.column_names()}
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: of a column of one value that value, once."""
        state = _values_of(self)
        for name in self.column_names():
            if is_constant(state[name]):
                state[name] = state[name][0], len(state[name])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Put back what was pickled."""
        vars(self).update(state)
        for name in self.column_names():
            # A column of one value is that, and their number.
            if isinstance(state[name], tuple):
                vars(self)[name] = np.broadcast_to(*state[name])


def _values_of(table: Table) -> dict[str, Any]:
    """Return the fields of a table by name, without what it has worked out and keeps."""
    return {part.name: vars(table)[part.name] for part in fields(table)}


def constant(value: int, count: int) -> Ints:
    """Return a column of one value, which takes no memory; it cannot be written to."""
    return np.broadcast_to(np.int64(value), count)


def scattered(count: int | tuple[int, ...], rows: Any, values: npt.ArrayLike) -> Ints:
    """Return a column of so many rows that has values in some of them, and -1 in the others."""
    column = np.full(count, NONE, np.int64)
    column[rows] = values
    return column


def stretch_of(rows: Codes) -> Codes | slice:
    """Return ascending rows; those that follow each other as a slice, which copies nothing."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def marked(count: int | tuple[int, ...], rows: Any) -> Bools:
    """Return which of so many rows are among some."""
    column = np.zeros(count, bool)
    column[rows] = True
    return column


def flags_of(codes: Codes, flags: Bools) -> Bools:
    """Return the flag of each code; that of -1 (none) is not set.

    Few codes whose flag is set are compared one by one, as an index of narrow codes is made first.
    """
    chosen = np.flatnonzero(flags).tolist()
    if len(chosen) > _FEW:
        return np.append(flags, False).take(codes)
    column = np.zeros(len(codes), bool)
    for code in chosen:
        column |= codes == code
    return column


def compacted(column: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """Return the column, without the memory of its rows if all of them are one value."""
    if len(column) < _FEW or is_constant(column) or column[-1] != column[0]:
        return column
    return column if (column != column[0]).any() else np.broadcast_to(column[0], len(column))


def is_constant(column: npt.NDArray[Any]) -> bool:
    """Return whether all rows of a column lie in one place."""
    return column.strides == (0,) and len(column) > 0


def _taken(
    column: npt.NDArray[ScalarT], rows: Ints | Codes | Bools | slice
) -> npt.NDArray[ScalarT]:
    """Return some rows of a column; those of one value stay in one place."""
    if isinstance(rows, slice):
        return column[rows]
    if is_constant(column) and len(rows):
        return np.broadcast_to(column[0], len(rows))
    # Faster than brackets, above all where numbers are short.
    return column.take(rows, axis=0)


def _names_of(table: type[Table]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(table) if not f.metadata.get("shared"))


_column_names: Callable[[Any], tuple[str, ...]] = cache(_names_of)


def widened(column: Codes, most: int) -> Codes:
    """Return a column with room for identifiers up to one: itself, or a copy in wider integers."""
    need = np.min_scalar_type(-1 - most)
    return column if np.can_cast(need, column.dtype) else column.astype(need)


def narrowed(column: Codes, most: int) -> Codes:
    """Return identifiers in the smallest integer type that has room for -1 and ``most``."""
    return column.astype(np.min_scalar_type(-1 - most), copy=False)


def joined(tables: Sequence[TableT]) -> TableT:
    """Return the rows of several tables as one table.

    Args:
        tables: At least one table. The shared fields of the result are those of the first.
    """
    first = tables[0]
    if len(tables) == 1:
        return first
    return first.changed(
        **{
            name: _joined_column([getattr(table, name) for table in tables])
            for name in first.column_names()
        }
    )


def _joined_column(columns: Sequence[npt.NDArray[ScalarT]]) -> npt.NDArray[ScalarT]:
    """Concatenate columns; columns that all repeat the same value stay constant."""
    filled = [column for column in columns if len(column)]
    if filled and all(is_constant(column) and column[0] == filled[0][0] for column in filled):
        return np.broadcast_to(filled[0][0], sum(map(len, filled)))
    return np.concatenate(columns)
