"""SQLite exports: opened read-only, their schema checked, their columns read by SQLite.

Where the compiled part is there and the file is plain, it decodes the pages of the large tables
(:mod:`bubbleviz.sources.nsys.direct_reader`); SQLite, which is slower, is the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import local

import numpy as np

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import Ints
from bubbleviz.native.library import cores
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys import export
from bubbleviz.sources.nsys.direct_reader import DirectReader
from bubbleviz.sources.nsys.queries import QUERIES, query
from bubbleviz.sources.sqlite import database as sqlite
from bubbleviz.sources.sqlite.pages import opened_pages
from bubbleviz.sources.sqlite.queries import EVERY_ROW, Binds

#: What queries call the number of a row; a column of this name would stand for it.
_ROW_NUMBER = "_rowid_"
#: Rows of a part: some 10 ms of reading, and columns that stay in the cache.
ROWS = 1 << 16
#: Rows of a part with names: each looks up the wanted strings anew.
_NAMED_ROWS = 1 << 18


class SqliteExport(export.Export):
    """An SQLite file; each thread opens it for itself.

    Args:
        database: the file as this thread has opened it.
        stored: how it stores the columns of tables that queries read, rows of schema.sql.
        jobs: how many threads read.
        watch: takes the share that has been read.
    """

    any_order = True

    def __init__(
        self, database: sqlite.Database, stored: sqlite.StoredColumns, jobs: int, watch: Watch
    ) -> None:
        columns = sqlite.columns_of_tables(stored)
        super().__init__(database.path, columns, "an SQLite database", jobs, watch)
        database.create_views(
            {name: f"CREATE TEMP VIEW {name} AS\n{v.text}" for name, v in self.views.items()}
        )
        # Reads the largest tables faster; or the reason why nothing does.
        self.direct: DirectReader | str = ""
        self.opened_files = ExitStack()
        self._of_thread = local()
        self._of_thread.database = self._first = database

    @property
    def database(self) -> sqlite.Database:
        """The file as this thread has opened it."""
        if not hasattr(self._of_thread, "database"):
            self._of_thread.database = sqlite.Database(self.path, QUERIES, self._first.views)
            self.opened_files.callback(self._of_thread.database.close)
        database: sqlite.Database = self._of_thread.database
        return database

    def account(self) -> str:
        """Return what reads the large tables, as far as is known, and why where that is SQLite."""
        direct = self.direct
        return f"SQLite ({direct})" if isinstance(direct, str) else direct.account()

    def most_rows(self) -> int:
        """Return a number of rows that no table exceeds."""
        return self._first.most_rows

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self.database.count(table)

    def rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query that gives few, or any text."""
        return self.database.rows(query(name), binds)

    def _columns(self, name: str, binds: Binds) -> Ints:
        return self.database.columns(query(name), binds)

    def _read_rows(self, name: str, rows: Ints) -> Ints:
        direct = self.direct
        columns = direct.chosen(name, rows) if isinstance(direct, DirectReader) else None
        return super()._read_rows(name, rows) if columns is None else columns

    def names_of_calls(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return those of some numbers of names that calls may have."""
        direct = self.direct
        found = direct.names_of_calls(numbers) if isinstance(direct, DirectReader) else None
        return super().names_of_calls(numbers) if found is None else found

    def _parts(
        self, name: str, selection: export.Selection | None
    ) -> Iterator[export.Part[Ints | export.Named]]:
        """Yield what reads each stretch of rows.

        A table with so few rows for its numbers that most would be empty is one.
        """
        first, last = self.bounds(export.BOUNDS[name])
        sparse = last - first >= self.most_rows()
        length = last - first + 1 if sparse else _NAMED_ROWS if selection else ROWS
        for at in range(first, last + 1, max(length, 1)):
            yield partial(self._part, name, selection, range(at, min(at + length, last + 1)))

    def _part(
        self, name: str, selection: export.Selection | None, part: range
    ) -> tuple[range, Ints | export.Named]:
        if selection is not None:
            return part, self.named(name, selection, [(part[0], part[-1])])
        return part, self.numbered(name, part[0], part[-1])

    def numbered(self, name: str, first: int, last: int) -> Ints:
        """Return the columns of a query in the rows of some numbers."""
        columns = None
        if isinstance(self.direct, DirectReader):
            columns = self.direct.columns(name, first, last)
        rows, binds = min(last - first + 1, ROWS), {"first": first, "last": last}
        return self.database.columns(query(name), binds, rows) if columns is None else columns

    def named(
        self,
        name: str,
        selection: export.Selection,
        stretches: Sequence[tuple[int, int]] = (EVERY_ROW,),
    ) -> export.Named:
        """Return the selected rows of a query, in stretches from a row to a row or of all."""
        if isinstance(self.direct, DirectReader):
            rows = self.direct.named(name, selection, stretches)
            if rows is not None:
                return rows
        return export.joined([self._named(name, selection, *rows) for rows in stretches])

    def _named(self, name: str, selection: export.Selection, first: int, last: int) -> export.Named:
        """Return the selected rows as SQLite finds them."""
        binds = export.binds_of_selection(selection, first, last)
        asked = query(name)
        nothing = export.named(np.empty((len(asked.columns) - 1, 0), np.int64), ())
        batch = self.database.batch(asked, {given: binds[given] for given in asked.parameters})
        if batch is None:
            return nothing
        *numbers, text = batch.columns
        texts = sqlite.texts_of(text)
        # What is looked at beside the ranges of some names may lack those that are damaged.
        needed = name == "ranges/named"
        if needed and any(column.null_count for column in numbers):
            raise self._null_among_ranges()
        text_among_ranges = self._edited(f"{export.NVTX} holds text where a number")
        if needed and {type(value) for value in texts} - {str, type(None)}:
            raise text_among_ranges
        try:
            values = sqlite.integers_of(numbers)
        except ValueError as error:
            if not needed:
                return nothing
            raise text_among_ranges from error
        return export.named(values, texts)


@contextmanager
def opened(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[SqliteExport]:
    """Open an export read-only.

    Raises:
        ProfileError: it is being written, damaged, or no SQLite file; a view or a virtual table
            stands for a table: such may give rows without end; or a table hides its row numbers,
            by which it is read.
    """
    with sqlite.opened_database(path, QUERIES) as database:
        stored = sqlite.stored_columns(database, QUERIES.columns_read)
        for relation, root_page, _, _, column, *_ in stored:
            odd = "" if root_page else "is a view or a virtual table"
            if root_page and str(column).lower() == _ROW_NUMBER:
                odd = f"has a column named {_ROW_NUMBER}"
            if odd:
                raise ProfileError(
                    f"{path}: {relation} {odd}, which no export of nsys has; {EXPORT_AGAIN}"
                )
        columns = [row for row in stored if row[4] is not None]
        # Who waits for threads reads, too, and more of all these than cores hinder each other.
        threads = max(1, min(jobs, cores() - 1))
        export = SqliteExport(database, columns, threads, watch)
        with export.opened_files, opened_pages(path) as pages:
            export.direct = (
                pages if isinstance(pages, str) else DirectReader(pages, columns, export.views)
            )
            yield export
