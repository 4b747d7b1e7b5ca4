"""For the files in ``sql/``, the page reader returns the same columns as SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bubbleviz.conventions.globs import build_query_parameters
from bubbleviz.native import library as native
from bubbleviz.sources.nsys import sqlite_export
from bubbleviz.sources.nsys.export import KINDS, Selection
from bubbleviz.sources.nsys.queries import QUERIES
from bubbleviz.sources.rocm import database_parts
from bubbleviz.sources.rocm.database_parts import ROCPD, Part
from bubbleviz.sources.sqlite import database as sqlite
from bubbleviz.sources.sqlite.pages import PageQuery, Pages, open_pages
from bubbleviz.sources.sqlite.queries import EVERY_ROW, Queries
from tests.planting import plant
from tests.sources.test_rocm import DOORS, FULL
from tests.support.compiled import build_library, read_texts
from tests.support.edited_databases import read_columns

MAKERS = {
    "nsys": (QUERIES, sqlite_export.PAGE_QUERIES),
    "rocpd": (ROCPD, database_parts.PAGE_QUERIES),
}
N_ROWS = 12
#: Value of the column eventType in every planted row.
#: Queries select rows by this value.
KIND = 7
GLOBS = ("name *",)
Rows = list[tuple[object, ...]]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the library compiled from the current source, even if another library is installed."""
    functions = build_library()
    monkeypatch.setattr(native, "_load_once", lambda: functions)
    monkeypatch.delenv(native.SWITCH, raising=False)


def get_table_read(queries: Queries, name: str, query: PageQuery) -> tuple[str, Sequence[str]]:
    """Return the table that a declared query reads, and the columns that the query requires."""
    return next(iter(queries.query(query.view or name).requires.items()))


def list_cases() -> Iterator[tuple[str, str, str]]:
    """Yield each declared query with "", and with each of its columns that may contain NULL."""
    for maker, (queries, declared) in MAKERS.items():
        for name, query in declared.items():
            for column in ("", *get_table_read(queries, name, query)[1]):
                if not column or column != query.key:
                    yield maker, name, column


def plant_table(
    path: Path, table: str, columns: Sequence[str], query: PageQuery, null: str
) -> None:
    """Write a table in which no number occurs twice, except for kinds of ranges.

    Args:
        path: File to write.
        table: Name of the table.
        columns: Names of its columns.
        query: Declaration of the query that reads the table.
        null: Column that is NULL in every third row, or "".
    """
    kinds = {query.text: "TEXT", query.key: "INTEGER PRIMARY KEY"}
    declared = ", ".join(f'"{column}" {kinds.get(column, "INT")}' for column in columns)
    marks = ", ".join("?" * len(columns))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f'CREATE TABLE "{table}" ({declared})')
        for row in range(1, N_ROWS + 1):
            values: dict[str, int | str | None] = {
                column: 1000 * place + row for place, column in enumerate(columns, 1)
            }
            values |= {query.text: f"name {row}"} if query.text else {}
            values |= {"eventType": KIND} if "eventType" in columns else {}
            values |= {null: None} if null and row % 3 == 0 else {}
            db.execute(f'INSERT INTO "{table}" VALUES ({marks})', [*values.values()])


def read_by_sqlite(path: Path, queries: Queries, name: str) -> Rows:
    """Return the rows that SQLite returns for a query file in ``sql/``."""
    schema = {table: frozenset(columns) for table, columns in read_columns(path).items()}
    binds = {
        **dict(zip(("first", "last"), EVERY_ROW, strict=True)),
        **dict.fromkeys(KINDS, KIND),
        **build_query_parameters(GLOBS),
        "rows": json.dumps([*range(N_ROWS + 1)]),
        "text_ids": "[]",
        "some_strings": 0,
    }
    with closing(sqlite3.connect(path)) as db:
        for view, variant in queries.select_views(schema).items():
            db.execute(f"CREATE TEMP VIEW {view} AS {variant.text}")
        query = queries.query(name)
        return db.execute(query.text, {name: binds[name] for name in query.parameters}).fetchall()


def read_pages(path: Path, maker: str, name: str) -> Rows | None:
    """Return the rows that the page reader returns, or None if it leaves the table to SQLite."""
    queries, declared = MAKERS[maker]
    schema = {table: frozenset(columns) for table, columns in read_columns(path).items()}
    with sqlite.open_database(str(path), queries) as database, open_pages(str(path)) as pages:
        assert isinstance(pages, Pages)
        stored = [row for row in sqlite.read_stored_columns(database) if row[4] is not None]
        if declared[name].text:
            direct = sqlite_export.DirectReader(pages, stored, queries.select_views(schema))
            rows = direct.read_named(name, Selection((KIND,) * 4, GLOBS), [EVERY_ROW])
            return rows and [*zip(*rows[0].tolist(), read_texts(rows), strict=True)]
        (table,) = schema
        read = pages.open_table(stored, declared[name])
        columns = None if read is None else read.read_columns()
        assert table == stored[0][0]
        return None if columns is None else [*zip(*columns.tolist(), strict=True)]


@pytest.mark.parametrize(("maker", "name", "null"), [*list_cases()])
def test_pages_of_planted_tables_give_the_rows_of_sqlite(
    maker: str, name: str, null: str, tmp_path: Path
) -> None:
    """Every value is different, so swapped columns would be noticed."""
    queries, declared = MAKERS[maker]
    table, columns = get_table_read(queries, name, declared[name])
    for order in (1, -1):
        path = tmp_path / f"{order}.sqlite"
        plant_table(path, table, columns[::order], declared[name], null)
        expected = read_by_sqlite(path, queries, name)
        assert len(expected) >= N_ROWS // 3 * 2

        rows = read_pages(path, maker, name)

        is_damaged = any(None in row[: len(declared[name].columns)] for row in expected)
        assert rows == (None if is_damaged else expected)


@pytest.mark.parametrize("door", ["one file per process", "schema 4"])
def test_pages_of_rocprofv3_profiles_give_the_rows_of_sqlite(door: str, tmp_path: Path) -> None:
    truth = plant(replace(FULL, stages=2, iterations=2), tmp_path)
    n_read = 0
    for path in DOORS[door](tmp_path / truth.files[0].path, tmp_path):
        with sqlite.open_database(str(path), ROCPD) as database, open_pages(str(path)) as pages:
            assert isinstance(pages, Pages)
            stored = database_parts.read_stored_tables(database)
            (names,) = database_parts.group_tables_by_part(stored, ROCPD)
            for name in database_parts.PAGE_QUERIES:
                by_pages = Part(database, ROCPD, names, stored, pages=pages).query_columns(name)
                by_sqlite = Part(database, ROCPD, names, stored).query_columns(name)
                assert by_pages.tolist() == by_sqlite.tolist()
                n_read += by_sqlite.size
    assert n_read > 1000
