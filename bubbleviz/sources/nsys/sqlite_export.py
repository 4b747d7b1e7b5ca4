"""SQLite exports: opened read-only, their schema checked, their columns read by SQLite.

Where the compiled part is there and the file is plain, it decodes the pages of the large tables
(:mod:`bubbleviz.sources.nsys.direct_reader`); SQLite, which is slower, is the reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import local

import numpy as np

from bubbleviz.conventions.globs import binds_of
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import Ints
from bubbleviz.native.library import NamedRows
from bubbleviz.sources.nsys.direct_reader import DirectReader, opened_directly
from bubbleviz.sources.nsys.export import (
    KINDS,
    NVTX,
    Export,
    Selection,
    check_schema,
    null_among_ranges,
)
from bubbleviz.sources.nsys.queries import NSYS, query, tables, views_of
from bubbleviz.sources.sqlite.database import Database, integers_of, opened_database, texts_of
from bubbleviz.sources.sqlite.queries import Binds, Query

#: What queries call the number of a row; a column of this name would stand for it.
_ROW_NUMBER = "_rowid_"


@contextmanager
def opened(path: str) -> Iterator[Export]:
    """Open an export read-only.

    Raises:
        ProfileError: it is being written, damaged, or no SQLite file.
    """
    with opened_database(path, NSYS) as database:
        stored = _stored_columns(database, path)
        schema: dict[str, set[str]] = {}
        for table, _, _, _, column, _, _, hidden in stored:
            schema.setdefault(str(table), set()).update(() if hidden else (str(column),))
        columns = {table: frozenset(names) for table, names in schema.items()}
        check_schema(path, columns, "an SQLite database")
        views = views_of(columns)
        database.create_views(
            [f"CREATE TEMP VIEW {name} AS\n{view.text}" for name, view in views.items()]
        )
        with ExitStack() as opened_files, opened_directly(path, stored, views) as direct:
            yield Export(columns, views, SqliteOrigin(path, database, direct, opened_files))


def _stored_columns(database: Database, path: str) -> list[tuple[object, ...]]:
    """Return how the file stores the columns of tables that queries read, as schema.sql does.

    Raises:
        ProfileError: the file is damaged; or a view or a virtual table stands for one: such may
            give rows without end; or one hides its row numbers, by which it is read.
    """
    rows = database.rows(query("schema"), {"names": json.dumps(sorted(tables()))})
    for relation, root_page, _, _, column, *_ in rows:
        if not root_page:
            raise ProfileError(
                f"{path}: {relation} is a view or a virtual table, which no export of "
                f"nsys has; {EXPORT_AGAIN}"
            )
        if str(column).lower() == _ROW_NUMBER:
            raise ProfileError(
                f"{path}: {relation} has a column named {_ROW_NUMBER}, which no export "
                f"of nsys has; {EXPORT_AGAIN}"
            )
    return [row for row in rows if row[4] is not None]


class SqliteOrigin:
    """An :class:`~bubbleviz.sources.nsys.export.Origin`: each thread opens the file for itself.

    Args:
        path: of the file.
        database: the file as this thread has opened it.
        direct: reads the largest tables faster; the reason why it cannot, where it cannot.
        opened_files: closes the file for other threads.
    """

    def __init__(
        self,
        path: str,
        database: Database,
        direct: DirectReader | str,
        opened_files: ExitStack,
    ) -> None:
        self.path = path
        self.most_rows = database.most_rows
        self.direct = direct if isinstance(direct, DirectReader) else None
        self._reason = "" if self.direct else str(direct)
        self._views, self._opened_files, self._of_thread = database.views, opened_files, local()
        self._of_thread.database = database

    @property
    def database(self) -> Database:
        """The file as this thread has opened it."""
        if not hasattr(self._of_thread, "database"):
            self._of_thread.database = Database(self.path, NSYS, self._views)
            self._opened_files.callback(self._of_thread.database.close)
        database: Database = self._of_thread.database
        return database

    def account(self) -> str:
        """Return what reads the large tables, as far as is known, and why where that is SQLite."""
        return self.direct.account() if self.direct else f"SQLite ({self._reason})"

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self.database.count(table)

    def rows(self, query: Query, binds: Binds) -> list[tuple[object, ...]]:
        """Return the rows of a query."""
        return self.database.rows(query, binds)

    def columns(self, query: Query, binds: Binds, rows: int) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows)."""
        first, last = int(binds.get("first") or 0), int(binds.get("last") or 0)
        columns = self.direct.columns(query.name, first, last) if self.direct else None
        if columns is None and query.name == "calls/all" and last - first < rows:
            columns = self._calls_of_thread(binds, last - first + 1)
        if columns is None:
            columns = self.database.columns(query, binds, *((rows,) if rows else ()))
        return columns

    def _calls_of_thread(self, binds: Binds, rows: int) -> Ints | None:
        """Return the columns of calls/all.sql if all are of one thread, which is read faster."""
        threads = self.database.columns(query("calls/threads"), binds)[0].tolist()
        if len(threads) != 2 or threads[0] != threads[1]:
            return None
        of_thread = {**binds, "thread": threads[0]}
        columns = self.database.columns(query("calls/of_thread"), of_thread, rows)
        return np.insert(columns, 2, threads[0], axis=0) if columns.shape[1] == rows else None

    def named(self, query: Query, selection: Selection, first: int, last: int) -> NamedRows:
        """Return the selected rows among those of some numbers: integers, and a text each.

        Raises:
            ProfileError: a range to be named lacks a number, or has text in its place.
        """
        rows = self.direct.named(query.name, selection, first, last) if self.direct else None
        if rows is not None:
            return rows
        binds = {**_parameters(selection), "first": first, "last": last}
        batch = self.database.batch(query, {name: binds[name] for name in query.parameters})
        nothing = NamedRows(np.empty((len(query.columns) - 1, 0), np.int64), ())
        if batch is None:
            return nothing
        *numbers, text = batch.columns
        texts = texts_of(text)
        needed = query.name == "ranges/named"
        if needed and any(column.null_count for column in numbers):
            raise null_among_ranges(self.path)
        if needed and {type(value) for value in texts} - {str, type(None)}:
            raise self._text_among_ranges()
        try:
            values = integers_of(numbers)
        except ValueError as error:
            # What is looked at beside the ranges of some names may lack those that are damaged.
            if not needed:
                return nothing
            raise self._text_among_ranges() from error
        return NamedRows(values, tuple(None if t is None else str(t) for t in texts))

    def _text_among_ranges(self) -> ProfileError:
        return ProfileError(
            f"{self.path}: {NVTX} holds text where a number belongs, so it is damaged or "
            f"was edited; {EXPORT_AGAIN}"
        )


@cache
def _patterns(globs: Sequence[str]) -> Binds:
    return binds_of(globs) if globs else {}


def _parameters(selection: Selection) -> Mapping[str, int | str | None]:
    """Return a selection as parameters of queries."""
    return {
        **dict(zip(KINDS, selection.kinds, strict=True)),
        **_patterns(selection.globs),
        "text_ids": json.dumps(selection.text_ids),
        "some_strings": bool(selection.text_ids),
        "threads": json.dumps(selection.threads),
        "shortest": selection.shortest_ns,
        "since": selection.since_ns,
        "until": selection.until_ns,
    }
