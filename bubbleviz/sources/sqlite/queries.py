"""Loads the queries and views in ``sql/``, and determines which of them a file supports.

A query is one ``SELECT`` statement. If the tables differ between versions of a profiler, the query
reads a view, so that the query itself is the same for all versions. Each folder in
``sql/PROFILER/views`` is a view. The files in this folder are variants of the view for different
versions. Each variant requires certain columns. A comment at the top of an SQL file describes the
result. Lines such as ``-- requires: NAME(column, column)`` list the tables and views that the
statement reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

#: The first bytes of an SQLite file.
SQLITE = b"SQLite format 3\0"
#: The smallest and largest row numbers that a table can have.
EVERY_ROW = (-(1 << 63), (1 << 63) - 1)
#: Query parameter values, keyed by parameter name.
Binds: TypeAlias = Mapping[str, int | str | None]
#: Column names of tables, keyed by table name.
Schema: TypeAlias = Mapping[str, frozenset[str]]
#: Required column names, keyed by table or view name.
Requirements: TypeAlias = Mapping[str, tuple[str, ...]]

_REQUIRES = re.compile(r"^-- requires: (\w+)\(([^)]*)\)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_PARAMETER = re.compile(r"\$(\w+)")
#: Matches a result column that is followed by a comment.
_COLUMN = re.compile(r"\bAS (\w+),?  -- ")

#: Value that queries return for a NULL that has a meaning. Stored values must not equal this value.
ABSENT = -(1 << 63)


@dataclass(frozen=True)
class PlainColumn:
    """An integer column that a query returns unchanged, except for NULL.

    Attributes:
        name: Name of the column in the profiler's table.
        missing: Value that the query returns for NULL, or None if NULL means that the file is
            damaged.
    """

    name: str
    missing: int | None = None


@dataclass(frozen=True)
class Query:
    """A query or a variant of a view, stored as one file in ``sql/``.

    Attributes:
        maker: The collection to which this query belongs.
        name: File path relative to the profiler's folder, without suffix. For example, the name of
            ``sql/nsys/gpu_work/kernels.sql`` is ``"gpu_work/kernels"``.
        text: The SQL statement.
        columns: Names of the columns that the statement returns.
        parameters: Parameter names, in the order in which SQLite numbers them.
        requires: Tables and views that the statement reads, along with the required columns.
    """

    maker: Queries
    name: str
    text: str
    columns: tuple[str, ...]
    parameters: tuple[str, ...]
    requires: Requirements

    @property
    def tables(self) -> str:
        """Names of the tables that the query reads in current files, for messages."""
        if not self.requires:
            return "the database"
        return " or ".join(self.maker.find_tables_read(self.name))


@cache
def sql_root() -> Path:
    """Return the path of the ``sql`` folder, in the installed package or in the checkout."""
    packaged, checkout = (parent / "sql" for parent in Path(__file__).resolve().parents[2:4])
    return packaged if packaged.is_dir() else checkout


class Queries:
    """The queries and views for the SQLite files of one profiler.

    Args:
        program: Name of the program that writes the files, for messages.
        folder: Name of the profiler's folder in ``sql/``.
        noun: Noun for a file in messages, such as "export of nsys".
        again: Advice for a file that cannot be read, for messages.
    """

    def __init__(self, program: str, folder: str, noun: str, again: str) -> None:
        self.program, self.folder, self.noun, self.again = program, folder, noun, again
        self._root, self._queries = sql_root() / folder, dict[str, Query]()

    def query(self, name: str) -> Query:
        """Return the query or view variant that has this name.

        Raises:
            FileNotFoundError: There is no file with this name, which indicates a bug in this
                package.
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
        """Return whether there is a query with this name for this profiler."""
        return name in self._names

    @cached_property
    def columns_read(self) -> Mapping[str, frozenset[str]]:
        """Columns read by any query or view variant, keyed by table name."""
        read: dict[str, frozenset[str]] = {}
        for name in self._names:
            for table, columns in self.query(name).requires.items():
                read[table] = read.get(table, frozenset()) | frozenset(columns)
        return {table: read[table] for table in read if table not in self.view_variants}

    @cached_property
    def view_variants(self) -> Mapping[str, tuple[Query, ...]]:
        """View variants, keyed by view name. Variants that read more columns come first."""
        variants = {}
        for folder in (self._root / "views").iterdir():
            names = sorted(file.stem for file in folder.iterdir())
            queries = [self.query(f"views/{folder.name}/{name}") for name in names]
            queries.sort(key=lambda query: -sum(map(len, query.requires.values())))
            variants[folder.name] = tuple(queries)
        return variants

    def select_views(self, schema: Schema) -> Mapping[str, Query]:
        """Select the variant of each view that fits a file.

        The first variant whose tables and columns are all in the file is selected. Views that have
        no such variant are left out.

        Args:
            schema: Column names of the file's tables.

        Returns:
            The selected variants, keyed by view name.
        """
        views = {}
        for view, variants in self.view_variants.items():
            usable = [variant for variant in variants if not find_missing(variant.requires, schema)]
            if usable:
                views[view] = usable[0]
        return views

    def find_tables_read(self, name: str) -> Requirements:
        """Return the tables and columns that a query reads in current files.

        If the query reads a view, the tables and columns of the view's first variant are returned.
        """
        tables: dict[str, tuple[str, ...]] = {}
        for relation, columns in self.query(name).requires.items():
            variants = self.view_variants.get(relation)
            tables.update(variants[0].requires if variants else {relation: columns})
        return tables

    def find_table(self, name: str) -> str:
        """Return the name of the first table that a query reads in current files."""
        return next(iter(self.find_tables_read(name)))

    def has(self, name: str, schema: Schema, views: Mapping[str, Query]) -> bool:
        """Return whether a query exists and can run on a file.

        Args:
            name: Name of the query.
            schema: Column names of the file's tables.
            views: Variants selected for the file, as returned by :meth:`select_views`.
        """
        return self.exists(name) and all(
            relation in views
            if relation in self.view_variants
            else not find_missing({relation: columns}, schema)
            for relation, columns in self.query(name).requires.items()
        )


def find_missing(requires: Requirements, schema: Schema) -> tuple[str, ...]:
    """Return the missing tables, as ``TABLE``, and the missing columns, as ``TABLE.column``.

    The columns of a missing table are not listed.
    """
    missing: list[str] = []
    for table, columns in requires.items():
        if table not in schema:
            missing.append(table)
        else:
            missing.extend(f"{table}.{c}" for c in columns if c not in schema[table])
    return tuple(missing)
