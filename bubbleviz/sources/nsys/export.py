"""Exports: tables of nsys, in an SQLite file or a directory, of which it is known what is there.

Tables and columns are probed before a query runs, and views make the schemas of all years one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.answering import BulkAnswers, BulkReader, SmallAnswers
from bubbleviz.sources.nsys.direct_reader import opened_directly, stored_tables
from bubbleviz.sources.nsys.queries import NSYS, QUERIES, query, tables, tables_read, views_of
from bubbleviz.sources.sqlite.catalogue import Catalogue, opened_catalogue
from bubbleviz.sources.sqlite.database import opened_database
from bubbleviz.sources.sqlite.pages import check_finished, check_pages
from bubbleviz.sources.sqlite.queries import Binds, Query, Schema, lacking

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
#: What queries call the number of a row; a column of this name would stand for it.
_ROW_NUMBER = "_rowid_"
#: What SQLite keeps in any column, as Python reads it.
_KINDS = {type(None): "no value", str: "text", float: "a fraction"}


@frozen
class Export:
    """An open export of nsys.

    Attributes:
        schema: the columns of each table.
        views: the variant of each view that queries read here.
        catalogue: answers small queries.
        database: reads large tables.
        direct: reads them faster; None where it cannot.
        indirect: why it cannot.
    """

    schema: Schema
    views: Mapping[str, Query]
    catalogue: SmallAnswers
    database: BulkAnswers
    direct: BulkReader | None = None
    indirect: str = ""

    def reader(self) -> str:
        """Return what reads the large tables, as far as is known, and why where that is SQLite."""
        return self.direct.account() if self.direct else f"SQLite ({self.indirect})"

    @property
    def path(self) -> str:
        """Path as given."""
        return self.database.path

    def has(self, name: str) -> bool:
        """Tell whether the export holds what a query needs."""
        return QUERIES.has(name, self.schema, self.views)

    def lacks(self, name: str) -> tuple[str, ...]:
        """Return which tables and columns of today's exports, that a query reads, are missing.

        The query may run all the same, through another variant of a view.
        """
        return lacking(tables_read(name), self.schema)

    def require(self, name: str) -> None:
        """Check that a query can run.

        Raises:
            SchemaError: it cannot; the message names what the export lacks.
        """
        if not self.has(name):
            raise SchemaError(
                f"{self.path}: the export lacks {', '.join(self.lacks(name))}, which "
                f"sql/nsys/{name}.sql needs; {EXPORT_AGAIN}"
            )

    def rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a small query.

        Raises:
            ProfileError: the file is damaged.
        """
        return self.catalogue.rows(query(name), binds)

    def value(self, name: str) -> object:
        """Return the single value of a small query; None where the export does not hold it."""
        rows = self.rows(name) if self.has(name) else []
        return rows[0][0] if rows else None

    def columns(self, name: str, binds: Binds | None = None) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Raises:
            ProfileError: the file is damaged, or holds something else than integers.
        """
        return self.database.columns(query(name), binds)

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the first and the last row number that a query gives; (0, -1) of no rows."""
        rows = self.rows(name)
        return (self.number(rows[0][0]), self.number(rows[0][1])) if rows else (0, -1)

    def number(self, value: object) -> int:
        """Return a value that must be a number; SQLite keeps text in any column.

        Raises:
            ProfileError: it is none.
        """
        if not isinstance(value, int):
            raise ProfileError(
                f"{self.path}: holds {_KINDS.get(type(value), 'a value')} where a whole number "
                f"belongs, so it is damaged or was edited; {EXPORT_AGAIN}"
            )
        return value


@contextmanager
def opened(path: str) -> Iterator[Export]:
    """Open an export read-only.

    Raises:
        ProfileError: it is being written, damaged, or no SQLite file.
    """
    check_finished(path, NSYS)
    check_pages(path, NSYS)
    with opened_catalogue(path, NSYS) as catalogue:
        stored = _schema(catalogue)
        schema = _columns_of_tables(stored)
        check_schema(path, schema, "an SQLite database")
        views = views_of(schema)
        statements = [f"CREATE TEMP VIEW {name} AS\n{views[name].text}" for name in views]
        catalogue.create_views(statements)
        with (
            opened_database(path, statements) as database,
            opened_directly(path, stored_tables(stored), views) as (direct, indirect),
        ):
            yield Export(schema, views, catalogue, database, direct, indirect)


def _schema(catalogue: Catalogue) -> list[tuple[object, ...]]:
    """Return how the file stores the columns of tables that queries read, as schema.sql does.

    Raises:
        ProfileError: the file is damaged; or a view or a virtual table stands for one: such may
            give rows without end; or one hides its row numbers, by which it is read.
    """
    rows = catalogue.rows(query("schema"), {"names": json.dumps(sorted(tables()))})
    for relation, root_page, _, _, column, *_ in rows:
        if not root_page:
            raise ProfileError(
                f"{catalogue.path}: {relation} is a view or a virtual table, which no export of "
                f"nsys has; {EXPORT_AGAIN}"
            )
        if str(column).lower() == _ROW_NUMBER:
            raise ProfileError(
                f"{catalogue.path}: {relation} has a column named {_ROW_NUMBER}, which no export "
                f"of nsys has; {EXPORT_AGAIN}"
            )
    return [row for row in rows if row[4] is not None]


def _columns_of_tables(stored: Sequence[tuple[object, ...]]) -> Schema:
    """Return the columns of each table, of the rows of schema.sql."""
    schema: dict[str, set[str]] = {}
    for table, _, _, _, column, _, _, hidden in stored:
        columns = schema.setdefault(str(table), set())
        if not hidden:
            columns.add(str(column))
    return {table: frozenset(columns) for table, columns in schema.items()}


def check_schema(path: str, schema: Schema, what: str) -> None:
    """Raise ProfileError where the tables are not those of nsys.

    Args:
        path: of the export.
        schema: the columns of each table.
        what: kind of file that it is, in words.
    """
    if not {"StringIds", KERNEL, RUNTIME, NVTX} & set(schema):
        raise ProfileError(
            f"{path}: {what}, but no nsys export: it has none of the tables "
            f"StringIds, {KERNEL}, {RUNTIME}, {NVTX}; {EXPORT_AGAIN}"
        )
