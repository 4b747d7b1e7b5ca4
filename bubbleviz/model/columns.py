"""Tables of equal-length columns, the only form in which stages exchange bulk data.

Times are integer nanoseconds, identifiers are integers, and ``-1`` means "none" in every identifier
column. Columns are read-only, so tables can share them. Tables with one row per kernel need most of
the memory, so their identifiers take 16 or 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: Identifiers in the smallest sufficient integer type.
Codes = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: "None" in identifier columns, and in time columns of operations without device time.
NONE = -1

TableT = TypeVar("TableT", bound="Table")
ScalarT = TypeVar("ScalarT", bound=np.generic)

#: Minimum length of a column that is worth storing as a single value, and maximum number of flags
#: that are compared one by one.
_MIN_COMPACT = 16


# Dataclasses compare fields, and this base has none, so it would make all tables equal.
@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Base of all tables: every array field is a column, and all columns have one length.

    Tables are compared by identity.
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
    def make_empty(cls: type[TableT]) -> TableT:
        """Return an empty table with int64 columns and empty shared fields."""
        columns = {name: np.empty(0, np.int64) for name in cls.column_names()}
        return cls(**{name: columns.get(name, ()) for name in _field_names(cls)})

    def replace_columns(self: TableT, **columns: npt.NDArray[Any]) -> TableT:
        """Return the table with the given columns replaced."""
        return type(self)(**{**_get_fields(self), **columns})

    def __len__(self) -> int:
        return len(getattr(self, self.column_names()[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(self.column_names())})"

    def take(self: TableT, rows: Ints | Codes | Bools | slice) -> TableT:
        """Return the given rows (indices, mask or slice) as a table with the same shared fields."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            # Indices are found once instead of once per column.
            rows = slice(0, len(self)) if rows.all() else np.flatnonzero(rows)
        if isinstance(rows, slice) and rows == slice(0, len(self)):
            return self
        return self.replace_columns(
            **{name: _take_rows(getattr(self, name), rows) for name in self.column_names()}
        )

    def compact(self: TableT) -> TableT:
        """Return the same rows, with constant columns stored without memory per row."""
        return self.replace_columns(
            **{name: compact(getattr(self, name)) for name in self.column_names()}
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state. A constant column is replaced by its value and length."""
        state = _get_fields(self)
        for name in self.column_names():
            if is_constant(state[name]):
                state[name] = state[name][0], len(state[name])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the pickled state."""
        vars(self).update(state)
        for name in self.column_names():
            # A constant column was pickled as its value and length.
            if isinstance(state[name], tuple):
                vars(self)[name] = np.broadcast_to(*state[name])


def _get_fields(table: Table) -> dict[str, Any]:
    """Return the declared fields of a table by name, without its cached properties."""
    values = vars(table)
    return {name: values[name] for name in _field_names(type(table))}


def make_constant(value: int, count: int) -> Ints:
    """Return a read-only column of equal values that takes no memory per row."""
    return np.broadcast_to(np.int64(value), count)


def scatter(count: int | tuple[int, ...], rows: Any, values: npt.ArrayLike) -> Ints:
    """Return a column with the given values in the given rows, and -1 in all other rows."""
    column = np.full(count, NONE, np.int64)
    column[rows] = values
    return column


def to_slice(rows: Codes) -> Codes | slice:
    """Convert ascending rows to a slice if they are consecutive, because slicing copies nothing."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def make_mask(count: int | tuple[int, ...], rows: Any) -> Bools:
    """Return a mask of the given length that is True in the given rows."""
    column = np.zeros(count, bool)
    column[rows] = True
    return column


def get_flags(codes: Codes, flags: Bools) -> Bools:
    """Return the flag of each code, or False for code -1 (none).

    If few flags are set, the codes are compared with each of them. Indexing with narrow codes would
    first convert them.
    """
    set_codes = np.flatnonzero(flags).tolist()
    if len(set_codes) > _MIN_COMPACT:
        return np.append(flags, False).take(codes)
    column = np.zeros(len(codes), bool)
    for code in set_codes:
        column |= codes == code
    return column


def compact(column: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """Return the column, stored without memory per row if all of its values are equal.

    Short columns are returned unchanged.
    """
    if len(column) < _MIN_COMPACT or is_constant(column) or column[-1] != column[0]:
        return column
    return column if (column != column[0]).any() else np.broadcast_to(column[0], len(column))


def is_constant(column: npt.NDArray[Any]) -> bool:
    """Return whether a column is stored as a single value."""
    return column.strides == (0,) and len(column) > 0


def _take_rows(
    column: npt.NDArray[ScalarT], rows: Ints | Codes | Bools | slice
) -> npt.NDArray[ScalarT]:
    """Return rows of a column; a constant column stays constant."""
    if isinstance(rows, slice):
        return column[rows]
    if is_constant(column) and len(rows):
        return np.broadcast_to(column[0], len(rows))
    # Faster than indexing, especially for narrow integers.
    return column.take(rows, axis=0)


def _list_columns(table: type[Table]) -> tuple[str, ...]:
    return tuple(part.name for part in fields(table) if not part.metadata.get("shared"))


def _list_fields(table: type[Table]) -> tuple[str, ...]:
    return tuple(part.name for part in fields(table))


# Cached, because both are called thousands of times if there are many ranks.
_column_names: Callable[[Any], tuple[str, ...]] = cache(_list_columns)
_field_names: Callable[[Any], tuple[str, ...]] = cache(_list_fields)


def widen(column: Codes, max_id: int) -> Codes:
    """Return the column, or a wider copy if its type cannot represent ``max_id``."""
    needed_type = np.min_scalar_type(-1 - max_id)
    return column if np.can_cast(needed_type, column.dtype) else column.astype(needed_type)


def narrow(column: Codes, max_id: int) -> Codes:
    """Return identifiers in the smallest integer type that can represent -1 and ``max_id``."""
    return column.astype(np.min_scalar_type(-1 - max_id), copy=False)


def join_tables(tables: Sequence[TableT]) -> TableT:
    """Return the rows of several tables as one table.

    Args:
        tables: At least one table. The shared fields of the result are those of the first.
    """
    first = tables[0]
    if len(tables) == 1:
        return first
    return first.replace_columns(
        **{
            name: _join_columns([getattr(table, name) for table in tables])
            for name in first.column_names()
        }
    )


def _join_columns(columns: Sequence[npt.NDArray[ScalarT]]) -> npt.NDArray[ScalarT]:
    """Concatenate columns; columns that all repeat the same value stay constant."""
    filled = [column for column in columns if len(column)]
    if filled and all(is_constant(column) and column[0] == filled[0][0] for column in filled):
        return np.broadcast_to(filled[0][0], sum(map(len, filled)))
    return np.concatenate(columns)
