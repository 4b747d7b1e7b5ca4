"""For every query of ``sql/nsys``, DuckDB returns the same rows as SQLite."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bubbleviz.errors import BubblevizError
from bubbleviz.sources.nsys import columnar_export
from bubbleviz.sources.nsys.columnar_export import open_directory
from bubbleviz.sources.nsys.export import KINDS, Export, Selection
from bubbleviz.sources.nsys.queries import QUERIES
from bubbleviz.sources.nsys.ranges import read_event_types
from bubbleviz.sources.nsys.sqlite_export import open_export
from bubbleviz.sources.sqlite.queries import EVERY_ROW, Binds
from tests.planting import plant
from tests.planting.options import Planting
from tests.sources.test_contract import list_old_exports
from tests.support.columnar_exports import FORMS, Form, write_columnar
from tests.support.edited_databases import edit_database
from tests.support.needs import get_real_file
from tests.support.places import CHECKOUT, FIXTURES
from tests.support.planted_runs import FULL

EXAMPLE = FIXTURES / "1f1b" / "node0.sqlite"
FOLDER = CHECKOUT / "sql" / "nsys"
NAMES = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in FOLDER.rglob("*.sql")
    if path.parent.parent.name != "views"
)
#: Queries whose name patterns have another syntax in DuckDB.
BY_PATTERNS = ("ranges/named", "strings/matching")
GLOBS = ("*",), ("F*", "[BW]*"), ("*ward*", "*step_num=[0-9]*", "aten::*", "?[^a]*"), ("nothing",)


def make_binds(export: Export, threads: list[int]) -> Binds:
    return {
        "first": 3,
        "last": 1 << 40,
        "most": 50,
        "rows": json.dumps([1, 2, 40, 7_000_000]),
        "ids": json.dumps([*range(400), 71_000, 71_004]),
        "name_ids": json.dumps([*range(400)]),
        "threads": json.dumps(threads),
        "shortest": 100,
        "since": -1,
        "until": 1 << 60,
        **dict(zip(KINDS, read_event_types(export), strict=True)),
    }


def run_queries(export: Export, threads: list[int]) -> dict[str, Any]:
    """Return the rows of every query, or "error" if the query fails, keyed by query name."""
    rows_of_queries: dict[str, Any] = {}
    for name in NAMES:
        if not export.has(name):
            continue
        try:
            if name not in BY_PATTERNS:
                rows_of_queries[name] = export.query_rows(name, make_binds(export, threads))
                continue
            for globs in GLOBS:
                selection = Selection(read_event_types(export), globs, (*range(50),))
                values, number, texts = export.read_named(name, selection, [EVERY_ROW])
                names_of_rows = [texts[text] if text >= 0 else None for text in number.tolist()]
                rows_of_queries[f"{name} {globs}"] = (values.tolist(), names_of_rows)
        except BubblevizError:
            rows_of_queries[name] = "error"
    return rows_of_queries


def compare(path: Path, folder: Path, form: Form) -> int:
    """Compare the rows of all queries, and return the number of rows."""
    query = "SELECT DISTINCT globalTid FROM NVTX_EVENTS WHERE globalTid IS NOT NULL LIMIT 9"
    try:
        with closing(sqlite3.connect(path)) as db:
            threads = [thread for (thread,) in db.execute(query)]
    except sqlite3.OperationalError:
        threads = []
    with open_export(str(path)) as export:
        export.direct = ""
        expected = run_queries(export, threads)
    with open_directory(str(write_columnar(path, folder, form))) as directory:
        rows_of_queries = run_queries(directory, threads)
    assert rows_of_queries.keys() == expected.keys()
    for name, rows in expected.items():
        assert rows_of_queries[name] == rows, name
    return sum(len(rows) for rows in expected.values())


def test_both_pattern_tests_of_a_query_are_replaced() -> None:
    """If one test remained, DuckDB would join all names with all patterns."""
    for name in BY_PATTERNS:
        text, n_replaced = columnar_export.PATTERN_TEST.subn("", QUERIES.query(name).text)
        assert n_replaced == 2
        assert "EXISTS" not in text


@pytest.mark.parametrize("form", [name for name in FORMS if "names" not in name])
def test_queries_agree_on_a_planted_run(form: str, tmp_path: Path) -> None:
    path = tmp_path / plant(FULL, tmp_path).files[0].path

    assert compare(path, tmp_path, FORMS[form]) > 1000


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/*.sqlite")), ids=str)
def test_queries_agree_on_examples(path: Path, tmp_path: Path) -> None:
    assert compare(path, tmp_path, FORMS["parquet, narrow columns, small row groups"]) > 1000


@pytest.mark.real_files
def test_queries_agree_on_real_exports(tmp_path: Path) -> None:
    paths = sorted(get_real_file("nsys").glob("*.sqlite"))
    assert sum(compare(path, tmp_path, FORMS["parquet"]) for path in paths) > 10_000


@pytest.mark.parametrize(("year", "statements"), [*list_old_exports()])
def test_queries_agree_on_exports_of_other_years(
    year: str, statements: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / plant(Planting(stages=2, microbatches=3), tmp_path).files[0].path

    assert compare(edit_database(path, *statements), tmp_path, FORMS["parquet"]) > 300, year


#: Statements that damage the example.
DAMAGED = {
    "times too far apart": "UPDATE NVTX_EVENTS SET start = -(1 << 62) - rowid, end = 1 << 62",
    "no texts": "UPDATE NVTX_EVENTS SET text = NULL",
    "no ids": "UPDATE NVTX_EVENTS SET textId = NULL",
    "no kernels": "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL",
    "a kernel without a start": (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = NULL WHERE rowid = 5"
    ),
    "threads of all bits": "UPDATE NVTX_EVENTS SET globalTid = -1 - rowid % 3",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_queries_agree_on_damaged_exports(damage: str, tmp_path: Path) -> None:
    table = DAMAGED[damage].split()[1 if DAMAGED[damage].startswith("UPDATE") else 2]
    path = edit_database(
        tmp_path / EXAMPLE.name,
        f"CREATE TABLE kept AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE kept RENAME TO {table}",
        DAMAGED[damage],
        source=EXAMPLE,
    )

    assert compare(path, tmp_path, FORMS["parquet"]) > 100
