"""Catalogues: an export's schema, its small queries, and the counts of its tables.

The queries of ``sql/`` are whole statements, which the connection runs as they are. What is put
together from the names of tables, their counts, SQLAlchemy composes on the same connection. It
takes a fifth of a second to import, and is where it is used: by ``inspect``, and where there is
nothing to analyse.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.answering import Binds
from bubbleviz.sources.nsys.database import damage, uri_of
from bubbleviz.sources.nsys.queries import Query, query, tables

#: So many steps of SQLite's machine take some milliseconds.
_STEPS = 1_000_000
#: What queries call the number of a row; a column of this name would stand for it.
_ROW_NUMBER = "_rowid_"


class _Signals:
    """Lets a signal, such as that of Ctrl-C, end a query: Python handles none while SQLite runs."""

    def __init__(self) -> None:
        self._caught: BaseException | None = None

    def attend(self, connection: sqlite3.Connection) -> None:
        """Have a new connection give Python a chance now and then."""
        # Of a function, a signal's handler would run before its "try".
        connection.set_progress_handler(partial(next, self._pauses()), _STEPS)

    def _pauses(self) -> Iterator[bool]:
        """Yield whether SQLite is to stop; handlers of signals run between, and may raise."""
        while True:
            try:
                yield self._caught is not None
            except GeneratorExit:
                return
            except BaseException as error:
                self._caught = error

    def raise_caught(self) -> None:
        """Raise what a signal raised while SQLite ran, if it did."""
        caught, self._caught = self._caught, None
        if caught is not None:
            raise caught


@frozen
class Catalogue:
    """An open export.

    Attributes:
        path: as given.
        connection: through which queries run.
        signals: lets Ctrl-C end a query.
    """

    path: str
    connection: sqlite3.Connection
    signals: _Signals

    def schema(self) -> list[tuple[object, ...]]:
        """Return how the file stores the columns of tables that queries read, as schema.sql does.

        Raises:
            ProfileError: the file is damaged; or a view or a virtual table stands for one: such
                may give rows without end; or one hides its row numbers, by which it is read.
        """
        rows = self.rows(query("schema"), {"names": _names_of_tables()})
        for relation, root_page, _, _, column, *_ in rows:
            if not root_page:
                raise ProfileError(
                    f"{self.path}: {relation} is a view or a virtual table, which no export of "
                    f"nsys has; {EXPORT_AGAIN}"
                )
            if str(column).lower() == _ROW_NUMBER:
                raise ProfileError(
                    f"{self.path}: {relation} has a column named {_ROW_NUMBER}, which no export of "
                    f"nsys has; {EXPORT_AGAIN}"
                )
        return [row for row in rows if row[4] is not None]

    def holds(self, names: Sequence[str]) -> bool:
        """Tell whether the file has all of some tables.

        Raises:
            ProfileError: the file is damaged.
        """
        rows = self.rows(query("schema"), {"names": json.dumps(names)})
        return set(names) <= {str(row[0]) for row in rows}

    def create_views(self, statements: Sequence[str]) -> None:
        """Create the temporary views which queries read."""
        for statement in statements:
            self.connection.execute(statement)

    def rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query with a small result; text is read as far as it is UTF-8.

        Raises:
            ProfileError: the file is damaged.
        """
        values = {name: (binds or {})[name] for name in query.parameters}
        try:
            result = self.connection.execute(query.text, values).fetchall()
        except sqlite3.Error as error:
            self.signals.raise_caught()
            raise damage(self.path, query, str(error)) from error
        except UnicodeDecodeError as error:
            # Python cannot decode what SQLite reports of a malformed schema.
            raise damage(self.path, query, "the schema is no text") from error
        return [tuple(map(_decoded, row)) for row in result]

    def rows_of_each(
        self, query: Query, binds: Sequence[Binds]
    ) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows of a query for each of some parameters; see :meth:`rows`."""
        return (self.rows(query, given) for given in binds)

    def count(self, table: str) -> int:
        """Return the number of rows of a table.

        Raises:
            ProfileError: the file is damaged.
        """
        import sqlalchemy
        from sqlalchemy.exc import DBAPIError
        from sqlalchemy.pool import StaticPool

        rows = sqlalchemy.select(sqlalchemy.func.count()).select_from(sqlalchemy.table(table))
        engine = sqlalchemy.create_engine(
            "sqlite://", creator=lambda: self.connection, poolclass=StaticPool
        )
        try:
            with engine.connect() as connection:
                return connection.execute(rows).scalar_one()
        except DBAPIError as error:
            self.signals.raise_caught()
            raise ProfileError(
                f"{self.path}: {table} cannot be counted ({error.orig}); the file is damaged or "
                f"was cut short: {EXPORT_AGAIN}"
            ) from error


@cache
def _names_of_tables() -> str:
    """Return the tables that queries read, as a JSON array."""
    return json.dumps(sorted(tables()))


def _decoded(value: object) -> object:
    """Return a value; a blob as the text that it holds."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@contextmanager
def opened_catalogue(path: str) -> Iterator[Catalogue]:
    """Open a file read-only.

    Raises:
        ProfileError: it cannot be opened.
    """
    try:
        connection = sqlite3.connect(uri_of(path), uri=True)
    except sqlite3.Error as error:
        raise ProfileError(
            f"{path}: cannot be opened ({error}); it may be that too many files are open: "
            "give a smaller --jobs"
        ) from error
    # Text that is not UTF-8 is read as far as it is.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    signals = _Signals()
    signals.attend(connection)
    with closing(connection):
        yield Catalogue(path, connection, signals)
