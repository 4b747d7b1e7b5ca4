"""Catalogues: a file's schema, its small queries, and the counts of its tables.

The queries of ``sql/`` are whole statements, which the connection runs as they are. What is put
together from the names of tables, their counts, SQLAlchemy composes on the same connection. It
takes a fifth of a second to import, and is where it is used: by ``inspect``, and where there is
nothing to analyse.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from bubbleviz.errors import ProfileError
from bubbleviz.model.values import frozen
from bubbleviz.sources.sqlite.database import damage, uri_of
from bubbleviz.sources.sqlite.queries import Binds, Maker, Query

#: So many steps of SQLite's machine take some milliseconds.
_STEPS = 1_000_000


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
    """An open file.

    Attributes:
        path: as given.
        maker: of such files.
        connection: through which queries run.
        signals: lets Ctrl-C end a query.
    """

    path: str
    maker: Maker
    connection: sqlite3.Connection
    signals: _Signals

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
                f"was cut short: {self.maker.again}"
            ) from error


def _decoded(value: object) -> object:
    """Return a value; a blob as the text that it holds."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@contextmanager
def opened_catalogue(path: str, maker: Maker) -> Iterator[Catalogue]:
    """Open a file read-only.

    Args:
        path: of the file.
        maker: of such files.

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
        yield Catalogue(path, maker, connection, signals)
