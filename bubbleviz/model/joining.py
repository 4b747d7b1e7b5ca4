"""Joining: the rows of many tables as one, where none of them is needed any more.

Columns are made at full length and filled table by table, so that each table can be let go once it
is copied; rows are never held twice::

    columns   ████████████░░░░░░░░░░░░░░       memory that nothing has touched takes none
    tables          ...    ▒▒▒▒ ▒▒▒▒ ▒▒▒▒
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import TableT, one_value


class Joining(Generic[TableT]):
    """One table that the rows of some are copied to.

    Args:
        tables: all of them (at least one), which it does not keep; what is no column is that of
            the first.
    """

    def __init__(self, tables: Sequence[TableT]) -> None:
        first = tables[0]
        names = first.column_names()
        self._kind = type(first)
        self._shared = {
            f.name: getattr(first, f.name) for f in fields(first) if f.name not in names
        }
        self._values: dict[str, npt.NDArray[Any]] = {}
        self._filled = [name for name in names if self._begin(name, tables)]
        self._rows = 0

    def _begin(self, name: str, tables: Sequence[TableT]) -> bool:
        """Make a column; return whether it is to be filled."""
        columns = [getattr(table, name) for table in tables]
        # Where a column is two things in every table, it stays one.
        for other in self._values:
            if all(getattr(t, other) is own for t, own in zip(tables, columns, strict=True)):
                self._values[name] = self._values[other]
                return False
        constant = one_value(columns)
        if constant is not None:
            self._values[name] = constant
            return False
        kind = np.result_type(*{column.dtype for column in columns})
        self._values[name] = np.empty(sum(map(len, columns)), kind)
        return True

    def add(self, table: TableT) -> None:
        """Copy the rows of the next table."""
        rows = slice(self._rows, self._rows + len(table))
        for name in self._filled:
            self._values[name][rows] = getattr(table, name)
        self._rows = rows.stop

    def table(self) -> TableT:
        """Return the table, once all rows are copied."""
        return self._kind(**self._shared, **self._values)
