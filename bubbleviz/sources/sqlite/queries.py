"""Queries and views of ``sql/``: found beside the package or in it, with what each requires.

A query is one ``SELECT``. Where the tables of a profiler changed over the years it reads a view,
so that it is the same for every version: each folder of ``sql/MAKER/views`` is a view, each file
in it a variant for the files that hold what it requires. Heads say what a file gives, and
``-- requires: NAME(column, column)`` lines which tables and views it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

#: How an SQLite file begins, whatever it holds.
SQLITE = b"SQLite format 3\0"
#: The numbers of all rows that a table can have.
EVERY_ROW = (-(1 << 63), (1 << 63) - 1)
#: Values of a query's parameters.
Binds: TypeAlias = Mapping[str, int | str | None]
#: Tables by name, each with its columns.
Schema: TypeAlias = Mapping[str, frozenset[str]]
#: Tables and views by name, each with the columns that are needed of it.
Requirements: TypeAlias = Mapping[str, tuple[str, ...]]

_REQUIRES = re.compile(r"^-- requires: (\w+)\(([^)]*)\)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_PARAMETER = re.compile(r"\$(\w+)")
#: A column of the result carries a comment that says what it is.
_COLUMN = re.compile(r"\bAS (\w+),?  -- ")

#: Stands for NULL where NULL means something; no value of a file may be equal to it.
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
        maker: of the files that it reads.
        name: ``"gpu_work/kernels"`` for ``sql/nsys/gpu_work/kernels.sql``.
        text: the statement.
        columns: names of what a query returns.
        parameters: names of its parameters, in the order in which SQLite numbers them.
        requires: tables and views it reads, each with the columns it reads.
    """

    maker: Queries
    name: str
    text: str
    columns: tuple[str, ...]
    parameters: tuple[str, ...]
    requires: Requirements

    @property
    def tables(self) -> str:
        """The tables that it reads in today's files, as messages name them."""
        if not self.requires:
            return "the database"
        return " or ".join(self.maker.find_tables_read(self.name))


@cache
def sql_root() -> Path:
    """Return the packaged ``sql`` folder (a wheel has it), else the checkout's."""
    packaged, checkout = (parent / "sql" for parent in Path(__file__).resolve().parents[2:4])
    return packaged if packaged.is_dir() else checkout


class Queries:
    """The queries and views for the SQLite files of one profiler.

    Args:
        program: that writes them.
        folder: of its queries in ``sql/``.
        noun: of such a file, in messages.
        again: what to do with a file that cannot be read.
    """

    def __init__(self, program: str, folder: str, noun: str, again: str) -> None:
        self.program, self.folder, self.noun, self.again = program, folder, noun, again
        self._root, self._queries = sql_root() / folder, dict[str, Query]()

    def query(self, name: str) -> Query:
        """Return the query or variant of a view of that name.

        Raises:
            FileNotFoundError: there is none, which is a defect of the package.
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
        """Tell whether there is a query of that name: not all profilers record the same."""
        return name in self._names

    @cached_property
    def columns_read(self) -> Mapping[str, frozenset[str]]:
        """The tables that any query reads, each with the columns that any of them reads.

        They have today's names, or those of other years.
        """
        read: dict[str, frozenset[str]] = {}
        for name in self._names:
            for table, columns in self.query(name).requires.items():
                read[table] = read.get(table, frozenset()) | frozenset(columns)
        return {table: read[table] for table in read if table not in self.view_variants}

    @cached_property
    def view_variants(self) -> Mapping[str, tuple[Query, ...]]:
        """The variants of each view, those that read most columns first."""
        variants = {}
        for folder in (self._root / "views").iterdir():
            names = sorted(file.stem for file in folder.iterdir())
            queries = [self.query(f"views/{folder.name}/{name}") for name in names]
            queries.sort(key=lambda query: -sum(map(len, query.requires.values())))
            variants[folder.name] = tuple(queries)
        return variants

    def select_views(self, schema: Schema) -> Mapping[str, Query]:
        """Return the variant of each view that a file can answer, if there is one."""
        views = {}
        for view, variants in self.view_variants.items():
            fitting = [
                variant for variant in variants if not find_missing(variant.requires, schema)
            ]
            if fitting:
                views[view] = fitting[0]
        return views

    def find_tables_read(self, name: str) -> Requirements:
        """Return the tables that a query reads in today's files, through views or not."""
        tables: dict[str, tuple[str, ...]] = {}
        for relation, columns in self.query(name).requires.items():
            variants = self.view_variants.get(relation)
            tables.update(variants[0].requires if variants else {relation: columns})
        return tables

    def find_table(self, name: str) -> str:
        """Return the first table that a query reads in today's files."""
        return next(iter(self.find_tables_read(name)))

    def has(self, name: str, schema: Schema, views: Mapping[str, Query]) -> bool:
        """Tell whether a file with this schema, and these views, holds what a query needs."""
        return self.exists(name) and all(
            relation in views
            if relation in self.view_variants
            else not find_missing({relation: columns}, schema)
            for relation, columns in self.query(name).requires.items()
        )


def find_missing(requires: Requirements, schema: Schema) -> tuple[str, ...]:
    """Return the required ``TABLE`` or ``TABLE.column`` names that a file lacks."""
    missing: list[str] = []
    for table, columns in requires.items():
        if table not in schema:
            missing.append(table)
        else:
            missing.extend(f"{table}.{c}" for c in columns if c not in schema[table])
    return tuple(missing)
