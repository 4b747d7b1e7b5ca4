"""Query results as rows and as columns, and the errors of queries that fail."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from bubbleviz.errors import ProfileError
from bubbleviz.sources.nsys.queries import QUERIES, query
from bubbleviz.sources.sqlite import database as module
from bubbleviz.sources.sqlite.database import Database, decode_texts, open_database
from bubbleviz.sources.sqlite.queries import Query


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some % file?#.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE n (a, b)")
        connection.executemany("INSERT INTO n VALUES (?, ?)", [(i, -i) for i in range(10)])
        connection.commit()
    return path


@pytest.fixture
def database(file: Path) -> Iterator[Database]:
    with open_database(str(file), QUERIES) as opened:
        yield opened


def make_query(text: str, columns: int = 1, *parameters: str) -> Query:
    return Query(QUERIES, "test/asked", text, tuple("abcdef"[:columns]), parameters, {})


@pytest.mark.parametrize("batch", [1, 2, 9, 10, 11])
def test_rows_have_their_own_types_whatever_rows_came_before(
    database: Database, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch sets the type of a column, unless the column contains only NULLs there."""
    monkeypatch.setattr(module, "_BATCH", batch)
    numbers_and_texts = make_query("SELECT a, CASE WHEN a = 9 THEN 'nine' END FROM n ORDER BY a", 2)

    batch_of_all = database.read_batch(numbers_and_texts, {})
    assert batch_of_all is not None
    assert decode_texts(batch_of_all.columns[1]) == [*[None] * 9, "nine"]


def test_a_blob_does_not_change_texts_in_the_same_column(database: Database) -> None:
    blob = "CASE WHEN a = 3 THEN x'6100' || x'ff' WHEN a = 4 THEN NULL ELSE 'n' || a END"
    texts_query = make_query(f"SELECT {blob} FROM n WHERE a > 1 ORDER BY a LIMIT 4")
    texts = ["n2", "a\x00\ufffd", None, "n5"]

    assert database.query_rows(texts_query) == [(text,) for text in texts]
    batch = database.read_batch(texts_query, {})
    assert batch is not None
    assert decode_texts(batch.columns[0]) == texts


def test_text_is_read_as_far_as_it_is_utf8(database: Database) -> None:
    texts_query = make_query("SELECT CAST(x'46ff31' AS TEXT), 'é', NULL, ''", 4)

    assert database.query_rows(texts_query) == [("F\ufffd1", "é", None, "")]


@pytest.mark.parametrize("value", ["'text'", "NULL", "1.5", "x'00'"])
@pytest.mark.parametrize("row", [0, 5, 9])
@pytest.mark.parametrize("rows", [2, 100])
def test_a_value_that_is_not_a_number_is_damage_anywhere(
    database: Database, value: str, row: int, rows: int
) -> None:
    numbers_query = make_query(
        f"SELECT CASE WHEN a = {row} THEN {value} ELSE a END FROM n ORDER BY a"
    )

    with pytest.raises(ProfileError, match=r"cannot be read \(.*\), so the file is damaged"):
        database.query_columns(numbers_query, rows=rows)


def test_an_error_is_one_line_that_names_the_file(database: Database, file: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        database.query_columns(make_query("SELECT a FROM nowhere"))

    message = str(caught.value)
    assert message.startswith(f"{file}: the database cannot be read (")
    assert "no such table: nowhere" in message
    assert "\n" not in message


def test_nothing_can_be_written(database: Database, file: Path) -> None:
    content = file.read_bytes()
    with pytest.raises(ProfileError, match="readonly"):
        database.query_rows(make_query("DELETE FROM n"))

    assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(ProfileError, match=r"no\.sqlite: cannot be opened"),
        closing(Database(str(tmp_path / "no.sqlite"), QUERIES)) as database,
    ):
        database.query_columns(make_query("SELECT 1"))


def plan(name: str, variants: tuple[Query, ...]) -> list[str]:
    """Return the steps of SQLite's query plan on empty tables."""
    with closing(sqlite3.connect(":memory:")) as database:
        for variant in variants:
            for table, columns in variant.requires.items():
                key = " INTEGER PRIMARY KEY" if table == "StringIds" else ""
                quoted = ", ".join(f'"{c}"{key if c == "id" else ""}' for c in columns)
                database.execute(f"CREATE TABLE {table} ({quoted})")
            database.execute(f"CREATE TEMP VIEW {variant.name.split('/')[1]} AS {variant.text}")
        selected_query = query(name)
        binds = dict.fromkeys(selected_query.parameters)
        steps = database.execute(f"EXPLAIN QUERY PLAN {selected_query.text}", binds).fetchall()
    return [step[3] for step in steps]


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        (name, variants)
        for name in ("gpu_work/kernels", "ranges/named", "ranges/sample", "ranges/lasting")
        for variants in product(*(QUERIES.view_variants[view] for view in query(name).requires))
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(v.name for v in value),
)
def test_rows_of_large_tables_are_searched_by_number(
    name: str, variants: tuple[Query, ...]
) -> None:
    steps = plan(name, variants)

    searches = [step for step in steps if "PRIMARY KEY (rowid>? AND rowid<?)" in step]

    assert len(searches) == 1
    assert not any("FOR ORDER BY" in step for step in steps)
    assert not {"SCAN named", "SCAN kernel"} & set(steps)


def test_registered_strings_are_searched_by_id() -> None:
    steps = plan("strings/by_id", QUERIES.view_variants["strings"][:1])

    assert "SEARCH string USING INTEGER PRIMARY KEY (rowid=?)" in steps
