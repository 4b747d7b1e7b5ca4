"""Tables as equal-length columns: the only shape in which bulk data travels.

Times are integer nanoseconds, identifiers are integers, and ``-1`` stands for "none" in every
identifier column. Columns are made read-only, so that a table can be shared freely. Where there is
one row per kernel, identifiers take 16 or 32 bits: such tables are what memory goes to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bubbleviz.model.values import frozen

Ints = npt.NDArray[np.int64]
#: Identifiers in as few bits as they need.
Codes = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: "None" in an identifier column, and in a time column of an operation without device time.
NONE = -1

TableT = TypeVar("TableT", bound="Table")


@frozen
class Table:
    """Base of the tables: every array field is a column, and all have one length."""

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

    def __len__(self) -> int:
        return len(getattr(self, self.column_names()[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(self.column_names())})"

    def take(self: TableT, rows: Ints | Codes | Bools | slice) -> TableT:
        """Return the given rows (indices, mask or stretch) as a new table; shared fields stay."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            # Of a mask each column would count and find the rows anew.
            rows = np.flatnonzero(rows)
        columns = {name: getattr(self, name)[rows] for name in self.column_names()}
        return type(self)(**{**vars(self), **columns})


def _names_of(table: type[Table]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(table) if not f.metadata.get("shared"))


_column_names: Callable[[Any], tuple[str, ...]] = cache(_names_of)


def widened(column: Codes, codes: Codes) -> Codes:
    """Return a column that has room for these identifiers: itself, or a copy in wider integers."""
    need = np.min_scalar_type(-1 - int(codes.max(initial=0)))
    return column if np.can_cast(need, column.dtype) else column.astype(need)


def joined(tables: Sequence[TableT]) -> TableT:
    """Return the rows of some tables (at least one) as one; shared fields are the first's."""
    first = tables[0]
    shared = {f.name: getattr(first, f.name) for f in fields(first)}
    values = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in first.column_names()
    }
    return type(first)(**{**shared, **values})
