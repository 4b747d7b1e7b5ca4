"""Queries and views of ``sql/nsys``: found beside the package or in it, with what each requires.

A query is one ``SELECT``. Where the tables of nsys changed over the years it reads a view, so that
it is the same for every version: each folder of ``sql/nsys/views`` is a view, each file in it a
variant for the exports that hold what it requires. Heads say what a file gives, and
``-- requires: NAME(column, column)`` lines which tables and views it reads.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

#: Tables by name, each with its columns.
Schema: TypeAlias = Mapping[str, frozenset[str]]
#: Tables and views by name, each with the columns that are needed of it.
Requirements: TypeAlias = Mapping[str, tuple[str, ...]]

_REQUIRES = re.compile(r"^-- requires: (\w+)\(([^)]*)\)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_PARAMETER = re.compile(r":(\w+)")
#: A column of the result carries a comment that says what it is.
_COLUMN = re.compile(r"\bAS (\w+),?  -- ")


@frozen
class Query:
    """One file of ``sql/nsys``.

    Attributes:
        name: ``"gpu_work/kernels"`` for ``sql/nsys/gpu_work/kernels.sql``.
        text: the statement.
        columns: names of what a query returns.
        parameters: names of its parameters, in the order in which SQLite numbers them.
        requires: tables and views it reads, each with the columns it reads.
    """

    name: str
    text: str
    columns: tuple[str, ...]
    parameters: tuple[str, ...]
    requires: Requirements


@cache
def sql_root() -> Traversable:
    """Return the packaged ``sql`` folder (a wheel has it), else the checkout's."""
    packaged = files("bubbleviz") / "sql"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "sql"


@cache
def query(name: str) -> Query:
    """Return the query or variant of a view of that name.

    Raises:
        FileNotFoundError: there is none, which is a defect of the package.
    """
    path = sql_root().joinpath("nsys", *f"{name}.sql".split("/"))
    text = path.read_text(encoding="utf-8")
    requires = {
        table: tuple(c.strip() for c in columns.split(",") if c.strip())
        for table, columns in _REQUIRES.findall(text)
    }
    parameters = dict.fromkeys(_PARAMETER.findall(_COMMENT.sub("", text)))
    return Query(name, text, tuple(_COLUMN.findall(text)), tuple(parameters), requires)


@cache
def tables() -> frozenset[str]:
    """Return the tables that any query reads, by today's names or those of other years."""
    return frozenset(columns_read())


@cache
def columns_read() -> Schema:
    """Return the columns that any query reads, by table."""
    columns: dict[str, set[str]] = {}
    for name in _files_below(sql_root().joinpath("nsys"), ""):
        for relation, read in query(name).requires.items():
            if relation not in view_variants():
                columns.setdefault(relation, set()).update(read)
    return {table: frozenset(read) for table, read in columns.items()}


def _files_below(folder: Traversable, prefix: str) -> list[str]:
    """Return the names of the queries in a folder and those in it."""
    names: list[str] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            names.extend(_files_below(entry, f"{prefix}{entry.name}/"))
        elif entry.name.endswith(".sql"):
            names.append(f"{prefix}{entry.name.removesuffix('.sql')}")
    return names


@cache
def view_variants() -> Mapping[str, tuple[Query, ...]]:
    """Return the variants of each view, those that read most columns first."""
    variants = {}
    for folder in sql_root().joinpath("nsys", "views").iterdir():
        names = sorted(file.name.removesuffix(".sql") for file in folder.iterdir())
        queries = [query(f"views/{folder.name}/{name}") for name in names]
        variants[folder.name] = tuple(sorted(queries, key=_columns_read, reverse=True))
    return variants


def _columns_read(variant: Query) -> int:
    return sum(map(len, variant.requires.values()))


def views_of(schema: Schema) -> Mapping[str, Query]:
    """Return the variant of each view that an export can answer, if there is one."""
    views = {}
    for view, variants in view_variants().items():
        fitting = [variant for variant in variants if not lacking(variant.requires, schema)]
        if fitting:
            views[view] = fitting[0]
    return views


def tables_read(name: str) -> Requirements:
    """Return the tables that a query reads in today's exports, through views or not."""
    tables: dict[str, tuple[str, ...]] = {}
    for relation, columns in query(name).requires.items():
        variants = view_variants().get(relation)
        tables.update(variants[0].requires if variants else {relation: columns})
    return tables


def lacking(requires: Requirements, schema: Schema) -> tuple[str, ...]:
    """Return the required ``TABLE`` or ``TABLE.column`` names that an export lacks."""
    missing: list[str] = []
    for table, columns in requires.items():
        if table not in schema:
            missing.append(table)
        else:
            missing.extend(f"{table}.{c}" for c in columns if c not in schema[table])
    return tuple(missing)
