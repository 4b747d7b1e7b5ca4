"""Tables of equal-length columns, which analysis stages use to exchange bulk data.

Times are integer nanoseconds. Identifiers are integers, and -1 means "none" in every identifier
column. Columns are read-only, so several tables can share them. Tables with one row per kernel use
most of the memory, so their identifiers take only 16 or 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: Identifiers, stored in the smallest integer type that can hold them.
Codes = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: Value for "none" in identifier columns, and for an unknown device time of an operation.
NONE = -1

TableT = TypeVar("TableT", bound="Table")
ScalarT = TypeVar("ScalarT", bound=np.generic)

#: Minimum length of a column that is stored as a single value if all of its values are equal. It is
#: also the maximum number of set flags for which :func:`get_flags` compares codes.
_MIN_COMPACT = 16


# A dataclass without fields would compare all tables as equal.
@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Base class of all tables. All columns of a table have the same length.

    Every dataclass field is a column, except fields whose metadata marks them as shared. A shared
    field holds one value for the whole table, such as the names that an index column refers to.
    Tables are compared by identity.
    """

    def __post_init__(self) -> None:
        """Make the columns read-only, and check that their lengths are equal."""
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
        """Return a table with no rows, int64 columns, and empty tuples as shared fields."""
        columns = {name: np.empty(0, np.int64) for name in cls.column_names()}
        return cls(**{name: columns.get(name, ()) for name in _field_names(cls)})

    def replace_columns(self: TableT, **columns: npt.NDArray[Any]) -> TableT:
        """Return a copy of the table in which the given columns or shared fields are replaced."""
        return type(self)(**{**_get_fields(self), **columns})

    def __len__(self) -> int:
        return len(getattr(self, self.column_names()[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(self.column_names())})"

    def take(self: TableT, rows: Ints | Codes | Bools | slice) -> TableT:
        """Return a table that contains only the given rows.

        The shared fields are unchanged. If all rows are taken by a slice or a mask, the table
        itself is returned.

        Args:
            rows: Row indices, a mask, or a slice.
        """
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            # Convert the mask to indices once instead of once per column.
            rows = slice(0, len(self)) if rows.all() else np.flatnonzero(rows)
        if isinstance(rows, slice) and rows == slice(0, len(self)):
            return self
        return self.replace_columns(
            **{name: _take_rows(getattr(self, name), rows) for name in self.column_names()}
        )

    def compact(self: TableT) -> TableT:
        """Return an equal table whose constant columns take no memory per row."""
        return self.replace_columns(
            **{name: compact(getattr(self, name)) for name in self.column_names()}
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle. A constant column is replaced by its value and length."""
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
    """Return the declared fields of a table, keyed by name. Cached properties are not included."""
    values = vars(table)
    return {name: values[name] for name in _field_names(type(table))}


def make_constant(value: int, count: int) -> Ints:
    """Return a read-only column of equal values that takes no memory per row."""
    return np.broadcast_to(np.int64(value), count)


def scatter(count: int | tuple[int, ...], rows: Any, values: npt.ArrayLike) -> Ints:
    """Return a new int64 column with the given values at the given rows, and -1 elsewhere.

    If a row is given more than once, its last value wins.
    """
    column = np.full(count, NONE, np.int64)
    column[rows] = values
    return column


def to_slice(rows: Codes) -> Codes | slice:
    """Convert ascending row indices to a slice if they are consecutive.

    Slicing a column does not copy the column. Other row indices are returned unchanged.
    """
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def make_mask(count: int | tuple[int, ...], rows: Any) -> Bools:
    """Return a mask of the given length that is True in the given rows."""
    column = np.zeros(count, bool)
    column[rows] = True
    return column


def get_flags(codes: Codes, flags: Bools) -> Bools:
    """Look up the flag of each code, or False for code -1 (none).

    If at most ``_MIN_COMPACT`` flags are set, the codes are compared with each set flag. Indexing
    would be slower, because numpy would first convert narrow codes to int64.

    Args:
        codes: Indices into ``flags``, or -1.
        flags: Flag of each code.
    """
    set_codes = np.flatnonzero(flags).tolist()
    if len(set_codes) > _MIN_COMPACT:
        return np.append(flags, False).take(codes)
    column = np.zeros(len(codes), bool)
    for code in set_codes:
        column |= codes == code
    return column


def compact(column: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """Return the column, stored as a single value if all of its values are equal.

    Columns with fewer than ``_MIN_COMPACT`` rows are returned unchanged.
    """
    if len(column) < _MIN_COMPACT or is_constant(column) or column[-1] != column[0]:
        return column
    return column if (column != column[0]).any() else np.broadcast_to(column[0], len(column))


def is_constant(column: npt.NDArray[Any]) -> bool:
    """Return whether a column is stored as a single value. Always False for an empty column."""
    return column.strides == (0,) and len(column) > 0


def _take_rows(
    column: npt.NDArray[ScalarT], rows: Ints | Codes | Bools | slice
) -> npt.NDArray[ScalarT]:
    """Return the given rows of a column. A column stored as a single value remains compact."""
    if isinstance(rows, slice):
        return column[rows]
    if is_constant(column) and len(rows):
        return np.broadcast_to(column[0], len(rows))
    # take() is faster than indexing, especially for narrow integer types.
    return column.take(rows, axis=0)


def _list_columns(table: type[Table]) -> tuple[str, ...]:
    return tuple(part.name for part in fields(table) if not part.metadata.get("shared"))


def _list_fields(table: type[Table]) -> tuple[str, ...]:
    return tuple(part.name for part in fields(table))


# Both functions are cached, because they are called thousands of times when there are many ranks.
_column_names: Callable[[Any], tuple[str, ...]] = cache(_list_columns)
_field_names: Callable[[Any], tuple[str, ...]] = cache(_list_fields)


def widen(column: Codes, max_id: int) -> Codes:
    """Return the column, or a copy with a wider type if its type cannot represent ``max_id``."""
    needed_type = np.min_scalar_type(-1 - max_id)
    return column if np.can_cast(needed_type, column.dtype) else column.astype(needed_type)


def narrow(column: Codes, max_id: int) -> Codes:
    """Convert a column to the smallest signed integer type that can represent ``max_id``."""
    return column.astype(np.min_scalar_type(-1 - max_id), copy=False)


def join_tables(tables: Sequence[TableT]) -> TableT:
    """Concatenate the rows of several tables of the same class.

    Args:
        tables: At least one table. The result has the shared fields of the first table.
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
    """Concatenate columns. Columns that all repeat one value are joined without copying."""
    filled = [column for column in columns if len(column)]
    if filled and all(is_constant(column) and column[0] == filled[0][0] for column in filled):
        return np.broadcast_to(filled[0][0], sum(map(len, filled)))
    return np.concatenate(columns)
