"""Answers: queries of ``sql/`` on a columnar export.

Those of large tables are read as columns. The rest run in SQLite, on small tables that are loaded
when a query first reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from bubbleviz.model.columns import Ints
from bubbleviz.sources.nsys.columnar.cells import NO_NUMBER
from bubbleviz.sources.nsys.columnar.plain_queries import PLAIN, plain_columns
from bubbleviz.sources.nsys.columnar.reader import ColumnarReader, with_damage
from bubbleviz.sources.nsys.columnar.row_queries import KINDS, ROW_QUERIES, Rows, texts_by_number
from bubbleviz.sources.nsys.columnar.small_tables import SmallTables, opened_small_tables
from bubbleviz.sources.nsys.columnar.tables import Tables
from bubbleviz.sources.nsys.direct_reader import ABSENT
from bubbleviz.sources.sqlite.database import damage
from bubbleviz.sources.sqlite.queries import Binds, Query


class ColumnarAnswers:
    """Answers the queries of an export; see :class:`SmallAnswers` and :class:`BulkAnswers`."""

    def __init__(
        self,
        tables: Tables,
        views: Mapping[str, Query],
        reader: ColumnarReader,
        small: SmallTables,
    ) -> None:
        """Take the open tables, and those of them that SQLite reads."""
        self.path = tables.path
        self._tables, self._views, self._reader, self._small = tables, views, reader, small

    @property
    def most_rows(self) -> int:
        """More rows than any table has."""
        return 1 + max(map(self._tables.rows, self._tables.schema), default=0)

    def reopened(self) -> AbstractContextManager[ColumnarAnswers]:
        """Return itself: threads may use it at the same time."""
        return nullcontext(self)

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self._tables.rows(table)

    def rows(self, query: Query, binds: Binds | None = None) -> Rows:
        """Return the rows of a query.

        Raises:
            ProfileError: a file is damaged.
        """
        given = binds or {}
        if query.name == "ranges/sample":
            return next(self.rows_of_each(query, [given]))
        if query.name in PLAIN:
            return [*zip(*self.columns(query, binds).tolist(), strict=True)]
        answer = ROW_QUERIES.get(query.name)
        if answer is not None:
            return with_damage(
                self.path, query.name, lambda: answer(self._tables, self._views, given)
            )
        return self._small.rows(query, given)

    def rows_of_each(self, query: Query, binds: Sequence[Binds]) -> Iterator[Rows]:
        """Yield the rows of a query for each of some parameters; see :meth:`rows`."""
        if query.name != "ranges/sample":
            return (self.rows(query, given) for given in binds)
        return iter(with_damage(self.path, query.name, lambda: self._samples(binds)))

    def columns(self, query: Query, binds: Binds | None = None, rows: int = 0) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Raises:
            ProfileError: a file is damaged, or holds something else than integers.
        """
        del rows
        if query.name in PLAIN:
            return with_damage(
                self.path,
                query.name,
                lambda: plain_columns(self._tables, self._views, query.name),
            )
        found = self.rows(query, binds)
        if {type(value) for row in found for value in row} - {int}:
            raise damage(self.path, query, NO_NUMBER)
        return np.array(found, np.int64).reshape(len(found), len(query.columns)).T

    def _samples(self, binds: Sequence[Binds]) -> list[Rows]:
        """Return the rows of ranges/sample.sql for each of some parameters."""
        if not binds:
            return []
        # All are of the kinds of this export.
        kinds = tuple(int(binds[0][kind] or 0) for kind in KINDS)
        pieces = [(int(given["first"] or 0), int(given["last"] or 0)) for given in binds]
        samples = self._reader.samples(kinds, pieces)
        unnamed = {n for rows in samples for text, n in rows if text is None and n != ABSENT}
        # The table of strings is looked through once for all of them.
        names = texts_by_number(self._tables, np.array(sorted(unnamed), np.int64))
        return [[(names.get(n) if text is None else text,) for text, n in s] for s in samples]


@contextmanager
def opened_answers(
    tables: Tables, views: Mapping[str, Query], reader: ColumnarReader
) -> Iterator[ColumnarAnswers]:
    """Open what answers queries; it is gone afterwards."""
    with opened_small_tables(tables, views) as small:
        yield ColumnarAnswers(tables, views, reader, small)
