"""Exports: views make the schemas of all years one, in both libraries that run queries."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from bubbleviz.errors import SchemaError
from bubbleviz.sources.nsys import queries
from bubbleviz.sources.nsys.export import KERNEL, NVTX
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.sqlite_export import opened
from bubbleviz.sources.sqlite.database import texts_of
from bubbleviz.sources.sqlite.queries import Binds, Query
from tests.support.nsys_exports import C, K, R, profile
from tests.support.places import CHECKOUT

ROOT = CHECKOUT / "sql/nsys"
NAMES = sorted(p.relative_to(ROOT).with_suffix("").as_posix() for p in ROOT.rglob("*.sql"))
QUERIES = [name for name in NAMES if not name.startswith("views/")]
#: Values for the parameters of all queries.
BINDS: Binds = {
    "first": 1,
    "last": 200_000,
    "thread": 1,
    "shortest": 0,
    "since": 0,
    "most": -1,
    "push_pop": 59,
    "start_end": 60,
    "nvtxt_push_pop": 70,
    "nvtxt_start_end": 71,
    "until": 1 << 61,
    "first_letters": "[a-zA-Z]*",
    "anchored": '["*"]',
    "floating": "[]",
    "floating_first": None,
    "floating_second": None,
    "floating_guard": None,
    "some_strings": True,
    **dict.fromkeys(("rows", "ids", "name_ids", "text_ids"), "[1, 2, 3, 50, 77]"),
    "threads": "[281474976710656]",
    "names": '["NVTX_EVENTS", "StringIds"]',
}


def real_exports() -> list[Path]:
    data = os.environ.get("BUBBLEVIZ_DATA")
    return sorted((Path(data) / "nsys").glob("*.sqlite")) if data else []


@pytest.mark.parametrize("path", real_exports(), ids=lambda path: str(path.stem))
def test_both_libraries_give_the_same_rows_through_views(path: Path) -> None:
    before = path.read_bytes()
    with opened(str(path)) as export:
        names = [name for name in QUERIES if export.has(name)]
        for name in names:
            rows = export.rows(name, BINDS)
            batch = export.database.batch(query(name), BINDS)
            columns = [texts_of(column) for column in batch.columns] if batch else []
            assert list(zip(*columns, strict=True)) == rows, name

    assert {"schema", "strings/by_id"} < set(names)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir() if p.stem == path.stem] == [path.name]


def plan(name: str, variants: tuple[Query, ...]) -> list[str]:
    """Return the steps of SQLite for a query on empty tables."""
    with closing(sqlite3.connect(":memory:")) as database:
        for variant in variants:
            for table, columns in variant.requires.items():
                key = " INTEGER PRIMARY KEY" if table == "StringIds" else ""
                quoted = ", ".join(f'"{c}"{key if c == "id" else ""}' for c in columns)
                database.execute(f"CREATE TABLE {table} ({quoted})")
            database.execute(f"CREATE TEMP VIEW {variant.name.split('/')[1]} AS {variant.text}")
        chosen = query(name)
        binds = {parameter: BINDS[parameter] for parameter in chosen.parameters}
        steps = database.execute(f"EXPLAIN QUERY PLAN {chosen.text}", binds).fetchall()
    return [step[3] for step in steps]


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        (name, variants)
        for name in ("gpu_work/kernels", "ranges/named", "ranges/sample", "ranges/lasting")
        for variants in product(*(queries.view_variants()[view] for view in query(name).requires))
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


def columns_given(variant: Query) -> tuple[str, ...]:
    with closing(sqlite3.connect(":memory:")) as database:
        for table, columns in variant.requires.items():
            quoted = ", ".join(f'"{column}"' for column in columns)
            database.execute(f"CREATE TABLE {table} ({quoted})")
        return tuple(column[0] for column in database.execute(variant.text).description)


@pytest.mark.parametrize("view", queries.view_variants())
def test_every_variant_of_a_view_documents_the_same_columns(view: str) -> None:
    variants = queries.view_variants()[view]

    assert {columns_given(variant) for variant in variants} == {columns_given(variants[0])}
    for variant in variants:
        # Each part of a union documents its columns.
        parts = variant.text.count("SELECT")
        assert variant.columns == columns_given(variant) * parts, variant.name


def test_registered_strings_are_searched_by_id() -> None:
    steps = plan("strings/by_id", queries.view_variants()["strings"][:1])

    assert "SEARCH string USING INTEGER PRIMARY KEY (rowid=?)" in steps


def changed(folder: Path, *statements: str) -> str:
    path = profile(folder, [K(100, 200, 1)], [C(0, 5, 1)], [R(0, 10, "F0.0.0")])
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return str(path)


def test_another_variant_stands_for_what_an_export_lacks(tmp_path: Path) -> None:
    path = changed(tmp_path, f"ALTER TABLE {KERNEL} RENAME COLUMN globalPid TO other")
    with opened(path) as export:
        assert export.has("gpu_work/kernels")
        assert export.lacks("gpu_work/kernels") == (f"{KERNEL}.globalPid",)
        assert export.columns("gpu_work/kernels", BINDS)[3].tolist() == [-1]


def test_what_no_variant_stands_for_is_named(tmp_path: Path) -> None:
    path = changed(tmp_path, f"ALTER TABLE {NVTX} RENAME COLUMN start TO other")
    with opened(path) as export:
        assert not export.has("ranges/named")
        with pytest.raises(SchemaError, match=r"NVTX_EVENTS\.start, which sql/nsys/ranges/named"):
            export.require("ranges/named")


def test_a_table_of_the_user_is_no_view(tmp_path: Path) -> None:
    columns = ", ".join(query("target/overheads").requires["overheads"])
    path = changed(tmp_path, f"CREATE TABLE overheads ({columns})")
    with opened(path) as export:
        assert not export.has("target/overheads")


def test_small_queries_read_any_text(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "INSERT INTO StringIds VALUES (77, CAST(x'46ff31' AS TEXT)), (78, x'6100ff')",
    )
    with opened(path) as export:
        rows = export.rows("strings/by_id", {"ids": "[77, 78]"})
        assert rows == [(77, "F\ufffd1"), (78, "a\x00\ufffd")]
