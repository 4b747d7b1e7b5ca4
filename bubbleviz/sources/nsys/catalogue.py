"""Catalogues: an export's schema, the counts of its tables and its small queries, by SQLAlchemy.

SQLAlchemy takes a fifth of a second to import; this module is imported once an export is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.sources.nsys.database import Binds, damage, uri_of
from bubbleviz.sources.nsys.queries import Query, Schema, query


@dataclass(frozen=True)
class Catalogue:
    """An open export.

    Attributes:
        path: as given.
        connection: through which queries run.
    """

    path: str
    connection: sqlalchemy.Connection

    def schema(self) -> Schema:
        """Return the columns of each table.

        Raises:
            ProfileError: the file is damaged.
        """
        schema: dict[str, set[str]] = {}
        for table, column in self.rows(query("schema")):
            schema.setdefault(str(table), set()).add(str(column))
        return {table: frozenset(columns) for table, columns in schema.items()}

    def create_views(self, statements: Sequence[str]) -> None:
        """Create the temporary views which queries read."""
        for statement in statements:
            self.connection.exec_driver_sql(statement)

    def rows(self, query: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query with a small result; text is read as far as it is UTF-8.

        Raises:
            ProfileError: the file is damaged.
        """
        values = {name: (binds or {})[name] for name in query.parameters}
        try:
            result = self.connection.execute(sqlalchemy.text(query.text), values).all()
        except DBAPIError as error:
            raise damage(self.path, query, str(error.orig)) from error
        return [tuple(map(_decoded, row)) for row in result]

    def count(self, table: str) -> int:
        """Return the number of rows of a table.

        Raises:
            ProfileError: the file is damaged.
        """
        rows = sqlalchemy.select(sqlalchemy.func.count()).select_from(sqlalchemy.table(table))
        try:
            return self.connection.execute(rows).scalar_one()
        except DBAPIError as error:
            raise ProfileError(
                f"{self.path}: {table} cannot be counted ({error.orig}); the file is damaged or "
                f"was cut short: {EXPORT_AGAIN}"
            ) from error


def _decoded(value: object) -> object:
    """Return a value; a blob as the text that it holds."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@contextmanager
def opened_catalogue(path: str) -> Iterator[Catalogue]:
    """Open a file read-only.

    Raises:
        ProfileError: it cannot be opened.
    """
    url = sqlalchemy.URL.create("sqlite", database=uri_of(path), query={"uri": "true"})
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    sqlalchemy.event.listen(engine, "connect", _read_any_text)
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise ProfileError(
            f"{path}: cannot be opened ({error.orig}); it may be that too many files are open: "
            "give a smaller --jobs"
        ) from error
    with closing(connection):
        yield Catalogue(path, connection)


def _read_any_text(connection: Any, _: object) -> None:
    """Have text that is not UTF-8 read as far as it is."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
