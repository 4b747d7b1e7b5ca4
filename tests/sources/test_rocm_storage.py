"""ROCm databases that store the same numbers in different ways give equal profiles."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import ProfileError
from bubbleviz.progress import unwatched
from bubbleviz.report.report import Report
from bubbleviz.sources.rocm.rocpd import read_recording
from tests.planting import Planting, plant
from tests.support.edited_databases import edit_database, read_columns, rebuild_table
from tests.support.processes import Process, read_processes
from tests.support.rocm_profiles import write_rocpd, write_rpd

WRITERS = {"rocpd": write_rocpd, "rpd": write_rpd}


@pytest.fixture(scope="module", params=WRITERS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a planted ROCm profile."""
    folder = tmp_path_factory.mktemp("rocm")
    plant(Planting(stages=2, microbatches=4), folder)
    (export,) = folder.glob("*.sqlite")
    return WRITERS[request.param](folder / f"trace.{request.param}", read_processes(export))


def _quote_columns(columns: tuple[str, ...]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def _make_without_rowid(declared_type: str) -> Callable[[str, tuple[str, ...]], tuple[str, ...]]:
    def statements(table: str, columns: tuple[str, ...]) -> tuple[str, ...]:
        key = "id" if "id" in columns else columns[0]
        rest = _quote_columns(tuple(column for column in columns if column != key))
        return (
            f'CREATE TABLE kept ("{key}" {declared_type} PRIMARY KEY, {rest}) WITHOUT ROWID',
            f'INSERT INTO kept ("{key}", {rest}) SELECT "{key}", {rest} FROM "{table}"',
            f'DROP TABLE "{table}"',
            f'ALTER TABLE kept RENAME TO "{table}"',
        )

    return statements


def _cast_numbers(kind: str) -> Callable[[str, tuple[str, ...]], tuple[str, ...]]:
    def statements(table: str, columns: tuple[str, ...]) -> tuple[str, ...]:
        values = ", ".join(
            f'CASE WHEN TYPEOF("{column}") = \'integer\' THEN CAST("{column}" AS {kind}) '
            f'ELSE "{column}" END'
            for column in columns
        )
        return (
            f"CREATE TABLE kept ({_quote_columns(columns)})",
            f'INSERT INTO kept SELECT {values} FROM "{table}"',
            f'DROP TABLE "{table}"',
            f'ALTER TABLE kept RENAME TO "{table}"',
        )

    return statements


STORAGES = {
    "without row ids": _make_without_rowid(""),
    "without row ids, integer keys": _make_without_rowid("INTEGER"),
    "numbers as texts": _cast_numbers("TEXT"),
    "numbers as floats": _cast_numbers("REAL"),
}


def _find_table(database: Path, *beginnings: str) -> str:
    """Return the first table whose name starts like this, with or without a process id."""
    return min(
        (name for name in read_columns(database) if name in beginnings),
        default=min(name for name in read_columns(database) if name.startswith(beginnings)),
    )


def _collect_content(report: Report) -> tuple[object, ...]:
    columns = ("rank", "iteration", "phase", "microbatch", "start_ns", "end_ns", "kernels")
    operations = [getattr(report.operations, column).tolist() for column in columns]
    return report.summary, operations, [note.what for note in report.limitations]


@pytest.mark.parametrize("storage", STORAGES)
def test_other_storage_gives_the_same_profile(database: Path, storage: str, tmp_path: Path) -> None:
    path = edit_database(tmp_path / database.name, source=database)
    for table, columns in read_columns(database).items():
        edit_database(path, *STORAGES[storage](table, columns))

    assert _collect_content(bubbleviz.analyze(path)) == _collect_content(
        bubbleviz.analyze(database)
    )


def test_many_processes_in_tables_without_row_ids_are_told_apart(tmp_path: Path) -> None:
    processes = [
        Process("node0", pid, [(pid, pid + 9, 5, 1, "hipLaunchKernel")], threads=[(5, "main")])
        for pid in range(1, 13)
    ]
    path = write_rocpd(tmp_path / "merged.db", processes, suffixed=False)
    for table, columns in read_columns(path).items():
        if "guid" in columns and "id" in columns:
            names = _quote_columns(columns)
            edit_database(
                path,
                f"CREATE TABLE kept ({names}, PRIMARY KEY (guid, id)) WITHOUT ROWID",
                f'INSERT INTO kept SELECT {names} FROM "{table}"',
                f'DROP TABLE "{table}"',
                f'ALTER TABLE kept RENAME TO "{table}"',
            )

    recording = read_recording(str(path), "rocpd", unwatched)

    assert sorted(thread.thread >> 24 for thread in recording.threads) == list(range(1, 13))


@pytest.mark.parametrize("value", ["'12 ns'", "'x'", "1.5", "x'31'"])
def test_values_that_are_not_numbers_are_refused(
    database: Path, value: str, tmp_path: Path
) -> None:
    table = _find_table(database, "rocpd_kernel_dispatch", "rocpd_op")
    path = edit_database(
        tmp_path / database.name,
        *rebuild_table(table),
        f'UPDATE "{table}" SET start = {value} WHERE rowid = 2',
        source=database,
    )

    with pytest.raises(ProfileError) as caught:
        bubbleviz.analyze(path)
    assert "\n" not in str(caught.value)
    assert ".sql " not in str(caught.value)


def test_a_table_without_any_column_that_is_read_ends_in_no_traceback(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table, columns in read_columns(database).items():
        other_names = ", ".join(f'"{name}" AS c{number}' for number, name in enumerate(columns))
        path = edit_database(
            tmp_path / f"{table}{database.suffix}",
            *rebuild_table(table, other_names),
            source=database,
        )
        main(["idle", str(path)])
        stderr = capsys.readouterr().err
        assert "Traceback" not in stderr
        assert ".sql" not in stderr


def _swap_two_rows(path: Path, table: str) -> None:
    """Swap the first two rows of a leaf of a table, so that row numbers do not ascend."""
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        )
        ((page_bytes,),) = connection.execute("PRAGMA page_size")
    content = bytearray(path.read_bytes())
    page = (root - 1) * page_bytes
    while content[page] == 5:  # this is an inner page, which points to its last child
        page = (int.from_bytes(content[page + 8 : page + 12], "big") - 1) * page_bytes
    cells = page + 8
    first, second = content[cells : cells + 2], content[cells + 2 : cells + 4]
    content[cells : cells + 4] = second + first
    path.write_bytes(content)


def test_rows_out_of_order_are_refused(database: Path, tmp_path: Path) -> None:
    table = _find_table(database, "rocpd_event", "rocpd_api")
    path = edit_database(tmp_path / database.name, source=database)
    _swap_two_rows(path, table)

    for command in (bubbleviz.analyze, bubbleviz.idle, bubbleviz.inspect):
        with pytest.raises(ProfileError, match="the events are not sorted by id"):
            command(path)


def test_tables_without_rows_lose_nothing(tmp_path: Path) -> None:
    path = write_rpd(tmp_path / "empty.rpd", [])

    assert np.size(read_recording(str(path), "rpd", unwatched).kernels) == 0
