"""Exports: views make the schemas of all years one, in both libraries that run queries."""

from __future__ import annotations

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
from bubbleviz.sources.sqlite.queries import Query
from tests.support.nsys_exports import C, K, R, profile


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
        binds = dict.fromkeys(chosen.parameters)
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
        assert export.columns("gpu_work/kernels", {"first": 1, "last": 99})[3].tolist() == [-1]


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
