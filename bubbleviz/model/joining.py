"""Joining: the rows of many tables as one, where none of them is needed any more.

Columns are made at full length and filled table by table, so that each table can be let go once it
is copied; rows are never held twice::

    columns   ████████████░░░░░░░░░░░░░░       memory that nothing has touched takes none
    tables          ...    ▒▒▒▒ ▒▒▒▒ ▒▒▒▒
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import TableT, columns_of, one_value


class Joining(Generic[TableT]):
    """One table that the rows of some are copied to.

    Args:
        tables: all of them (at least one), which it does not keep; what is no column is that of
            the first.
    """

    def __init__(self, tables: Sequence[TableT]) -> None:
        self._kind = type(tables[0])
        self._values = dict(vars(tables[0]))
        self._filled: list[tuple[str, npt.NDArray[Any]]] = []
        self._rows = 0
        for names, columns in columns_of(tables):
            whole = one_value(columns)
            if whole is None:
                kind = np.result_type(*{column.dtype for column in columns})
                whole = np.empty(sum(map(len, columns)), kind)
                self._filled.append((names[0], whole))
            self._values.update(dict.fromkeys(names, whole))

    def add(self, table: TableT) -> None:
        """Copy the rows of the next table."""
        rows = slice(self._rows, self._rows + len(table))
        for name, whole in self._filled:
            whole[rows] = getattr(table, name)
        self._rows = rows.stop

    def table(self) -> TableT:
        """Return the table, once all rows are copied."""
        return self._kind(**self._values)
