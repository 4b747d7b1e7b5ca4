"""Queries and views of ``sql/``, with the tables and columns that each requires.

A query is one ``SELECT`` statement. If the tables of a profiler differ between its versions, the
query reads a view instead, so that it is the same for every version. Each folder of
``sql/PROFILER/views`` is a view, and each file in it is a variant for files that have the columns
it requires. A comment at the top of each file describes its result, and lines of the form
``-- requires: NAME(column, column)`` list the tables and views that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

#: First bytes of every SQLite file.
SQLITE = b"SQLite format 3\0"
#: First and last row number that a table can have.
EVERY_ROW = (-(1 << 63), (1 << 63) - 1)
#: Values of a query's parameters.
Binds: TypeAlias = Mapping[str, int | str | None]
#: Names of the columns of each table.
Schema: TypeAlias = Mapping[str, frozenset[str]]
#: Names of the required columns of each table or view.
Requirements: TypeAlias = Mapping[str, tuple[str, ...]]

_REQUIRES = re.compile(r"^-- requires: (\w+)\(([^)]*)\)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_PARAMETER = re.compile(r"\$(\w+)")
#: Matches a column of the result, which is followed by a comment that describes it.
_COLUMN = re.compile(r"\bAS (\w+),?  -- ")

#: Value that replaces NULL in columns in which NULL has a meaning. No value in a file may equal it.
ABSENT = -(1 << 63)


@dataclass(frozen=True)
class PlainColumn:
    """A column of whole numbers that a query returns as the table contains it.

    Attributes:
        name: Name of the column in the profiler's table.
        missing: Value that the query returns for NULL, or None if NULL is damage.
    """

    name: str
    missing: int | None = None


@dataclass(frozen=True)
class Query:
    """One file of ``sql/``.

    Attributes:
        maker: Queries of the profiler whose files it reads.
        name: Path without the folder of the profiler and the suffix: ``"gpu_work/kernels"`` for
            ``sql/nsys/gpu_work/kernels.sql``.
        text: The statement.
        columns: Names of the columns that it returns.
        parameters: Names of its parameters, in the order in which SQLite numbers them.
        requires: Tables and views that it reads, with the columns of each.
    """

    maker: Queries
    name: str
    text: str
    columns: tuple[str, ...]
    parameters: tuple[str, ...]
    requires: Requirements

    @property
    def tables(self) -> str:
        """Names of the tables that it reads in today's files, for messages."""
        if not self.requires:
            return "the database"
        return " or ".join(self.maker.find_tables_read(self.name))


@cache
def sql_root() -> Path:
    """Return the ``sql`` folder in the package (in a wheel) or in the checkout."""
    packaged, checkout = (parent / "sql" for parent in Path(__file__).resolve().parents[2:4])
    return packaged if packaged.is_dir() else checkout


class Queries:
    """The queries and views for the SQLite files of one profiler.

    Args:
        program: Name of the program that writes the files.
        folder: Name of the folder of its queries in ``sql/``.
        noun: Noun for the files, for messages.
        again: Advice for a file that cannot be read, for messages.
    """

    def __init__(self, program: str, folder: str, noun: str, again: str) -> None:
        self.program, self.folder, self.noun, self.again = program, folder, noun, again
        self._root, self._queries = sql_root() / folder, dict[str, Query]()

    def query(self, name: str) -> Query:
        """Return a query, or a variant of a view, by its name.

        Raises:
            FileNotFoundError: It does not exist, which is a defect of the package.
        """
        if name not in self._queries:
            text = (self._root / f"{name}.sql").read_text(encoding="utf-8")
            requires = {
                table: tuple(c.strip() for c in columns.split(",") if c.strip())
                for table, columns in _REQUIRES.findall(text)
            }
            parameters = tuple(dict.fromkeys(_PARAMETER.findall(_COMMENT.sub("", text))))
            columns = tuple(_COLUMN.findall(text))
            self._queries[name] = Query(self, name, text, columns, parameters, requires)
        return self._queries[name]

    @cached_property
    def _names(self) -> frozenset[str]:
        files = self._root.rglob("*.sql")
        return frozenset(file.relative_to(self._root).with_suffix("").as_posix() for file in files)

    def exists(self, name: str) -> bool:
        """Return whether this profiler has a query of that name."""
        return name in self._names

    @cached_property
    def columns_read(self) -> Mapping[str, frozenset[str]]:
        """Columns of each table that are read by any query or by any variant of a view."""
        read: dict[str, frozenset[str]] = {}
        for name in self._names:
            for table, columns in self.query(name).requires.items():
                read[table] = read.get(table, frozenset()) | frozenset(columns)
        return {table: read[table] for table in read if table not in self.view_variants}

    @cached_property
    def view_variants(self) -> Mapping[str, tuple[Query, ...]]:
        """Variants of each view. Variants that read more columns come first."""
        variants = {}
        for folder in (self._root / "views").iterdir():
            names = sorted(file.stem for file in folder.iterdir())
            queries = [self.query(f"views/{folder.name}/{name}") for name in names]
            queries.sort(key=lambda query: -sum(map(len, query.requires.values())))
            variants[folder.name] = tuple(queries)
        return variants

    def select_views(self, schema: Schema) -> Mapping[str, Query]:
        """Return the first variant of each view whose columns a file has.

        Views without a suitable variant are left out.
        """
        views = {}
        for view, variants in self.view_variants.items():
            usable = [variant for variant in variants if not find_missing(variant.requires, schema)]
            if usable:
                views[view] = usable[0]
        return views

    def find_tables_read(self, name: str) -> Requirements:
        """Return the tables and columns that a query reads in today's files.

        Instead of a view, these are the tables of its first variant.
        """
        tables: dict[str, tuple[str, ...]] = {}
        for relation, columns in self.query(name).requires.items():
            variants = self.view_variants.get(relation)
            tables.update(variants[0].requires if variants else {relation: columns})
        return tables

    def find_table(self, name: str) -> str:
        """Return the name of the first table that a query reads in today's files."""
        return next(iter(self.find_tables_read(name)))

    def has(self, name: str, schema: Schema, views: Mapping[str, Query]) -> bool:
        """Return whether a query can run: it exists, and the file has its views and columns.

        Args:
            name: Name of the query.
            schema: Columns of the tables of the file.
            views: Variants of views that the file has.
        """
        return self.exists(name) and all(
            relation in views
            if relation in self.view_variants
            else not find_missing({relation: columns}, schema)
            for relation, columns in self.query(name).requires.items()
        )


def find_missing(requires: Requirements, schema: Schema) -> tuple[str, ...]:
    """Return the names of missing tables (``TABLE``) and of missing columns (``TABLE.column``)."""
    missing: list[str] = []
    for table, columns in requires.items():
        if table not in schema:
            missing.append(table)
        else:
            missing.extend(f"{table}.{c}" for c in columns if c not in schema[table])
    return tuple(missing)
