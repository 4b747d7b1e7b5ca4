"""The direct reader decodes the same rows as SQLite, or none at all."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubbleviz.errors import BubblevizError, ProfileError
from bubbleviz.model.intervals import union
from bubbleviz.native import library as native
from bubbleviz.sources.nsys.export import KERNEL, NVTX, RUNTIME, STRINGS, Selection
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.ranges import read_event_types
from bubbleviz.sources.nsys.sqlite_export import DirectReader, SqliteExport, open_export
from bubbleviz.sources.sqlite.queries import EVERY_ROW
from tests.planting import Planting, plant
from tests.sources.test_contract import list_old_exports
from tests.support.command_line import CommandLine
from tests.support.compiled import build_library, read_texts
from tests.support.edited_databases import edit_database
from tests.support.needs import get_real_file
from tests.support.places import FIXTURES

EXAMPLE = FIXTURES / "1f1b" / "node0.sqlite"
GLOBS = ("*",), ("F*", "[BW]*"), ("*ward*", "*step_num=[0-9]*", "aten::*"), ("F[0-9].*.?",)
TABLES = ("gpu_work/kernels", "gpu_work/kernels_and_streams", "calls/all")
LASTING_NS = 0, 100, 20_000
#: Number of queries that are decoded directly for a plain file.
ALL = 4 + 2 * len(GLOBS) + len(LASTING_NS)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the library compiled from the current source, even if another library is installed."""
    functions = build_library()
    monkeypatch.setattr(native, "_load_once", lambda: functions)
    monkeypatch.delenv(native.SWITCH, raising=False)


def _get_direct_reader(export: SqliteExport) -> DirectReader:
    assert isinstance(export.direct, DirectReader)
    return export.direct


def _read_by_sqlite(export: SqliteExport, name: str) -> Any:
    """Return the columns of a query as SQLite reads them, or the error of the query."""
    binds = {"first": EVERY_ROW[0], "last": EVERY_ROW[1]}
    try:
        return export.database.query_columns(query(name), binds)
    except ProfileError as error:
        return error


def _read_calls(export: SqliteExport) -> Iterator[tuple[Any, Any]]:
    """Yield selected calls as (decoded, read by SQLite). Some requested rows do not exist."""
    for rows in ([], [-(1 << 62), 0, 1, 2, 3, 90, 91, 1 << 62], range(5, 3000, 7)):
        requested_rows = np.array(rows, np.int64)
        columns = None
        if isinstance(export.direct, DirectReader):
            columns = export.direct.read_selected("calls/at", requested_rows)
        if columns is not None:
            binds = {"rows": json.dumps(requested_rows.tolist())}
            try:
                read_by_sqlite = export.database.query_columns(query("calls/at"), binds)
                yield columns.tolist(), read_by_sqlite.tolist()
            except ProfileError as error:
                yield columns, error


def _find_call_names(export: SqliteExport) -> tuple[Any, Any]:
    """Return the name ids of calls, once decoded directly and once found by SQLite."""
    numbers = [0, *sorted(export.find_strings(("cu*", "hip*")))]
    direct = export.direct
    decoded = direct.filter_called_names(numbers) if isinstance(direct, DirectReader) else None
    by_sqlite = []
    for number in numbers:
        try:
            matching_calls = export.query_columns(
                "calls/named", {"name_ids": json.dumps([number]), "most": 1}
            )
        except ProfileError as error:
            return decoded, error
        by_sqlite += [number] * bool(matching_calls.size)
    return decoded, by_sqlite


def _select_by_name(export: SqliteExport, globs: tuple[str, ...]) -> Selection:
    """Return a selection of some registered strings, as if their texts matched."""
    rows = export.query_rows("strings/by_id", {"ids": json.dumps([1, 2, 3, 5, 8, 13, 21])})
    ids = sorted(export.to_integer(row[0]) for row in rows)
    return Selection(read_event_types(export), globs, tuple(ids))


def _select_by_time(export: SqliteExport, shortest_ns: int) -> Selection:
    starts = _read_by_sqlite(export, "calls/all")
    threads = set() if isinstance(starts, Exception) else set(starts[2].tolist())
    threads = {-1, 3, *threads}
    return Selection(
        read_event_types(export),
        threads=tuple(sorted(threads)),
        shortest_ns=shortest_ns,
        since_ns=(-1000,),
        until_ns=(1 << 61,),
        bounds=(0, 1) * len(threads),
    )


def _read_named(export: SqliteExport, name: str, selection: Selection) -> tuple[Any, Any]:
    """Return named rows as (decoded or None, read by SQLite or the error)."""
    direct, decoded = export.direct, None
    if isinstance(direct, DirectReader):
        rows = direct.read_named(name, selection, [EVERY_ROW])
        decoded = None if rows is None else (rows[0].tolist(), read_texts(rows))
    export.direct = ""
    try:
        rows = export.read_named(name, selection)
        return decoded, (rows[0].tolist(), read_texts(rows))
    except ProfileError as error:
        return decoded, error
    finally:
        export.direct = direct


def _read_strings(export: SqliteExport, *globs: str) -> list[tuple[int, str | None]]:
    rows = _get_direct_reader(export).read_named(
        "strings/matching", Selection(globs=globs), [EVERY_ROW]
    )
    assert rows is not None
    return list(zip(rows[0][0].tolist(), read_texts(rows), strict=True))


def _compare(path: Path) -> int:
    """Compare decoded rows with SQLite's rows, and return the number of decoded queries."""
    decoded = 0
    with open_export(str(path)) as export:
        direct = export.direct
        for name in TABLES:
            columns = None if isinstance(direct, str) else direct.read_columns(name, 0, 1 << 60)
            if columns is not None:
                decoded += 1
                np.testing.assert_array_equal(columns, _read_by_sqlite(export, name))
        for decoded_calls, calls in _read_calls(export):
            assert decoded_calls == calls
        names, expected = _find_call_names(export)
        assert names is None or names == expected
        selections = [
            *(("ranges/named", _select_by_name(export, globs)) for globs in GLOBS),
            *(("strings/matching", Selection(globs=globs)) for globs in GLOBS),
            ("ranges/sample", _select_by_name(export, ())),
            *(("ranges/lasting", _select_by_time(export, shortest)) for shortest in LASTING_NS),
        ]
        for name, selection in selections:
            decoded_rows, expected = _read_named(export, name, selection)
            if decoded_rows is not None:
                decoded += 1
                assert decoded_rows == expected
    return decoded


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/*.sqlite")), ids=str)
def test_rows_of_examples_equal_those_of_sqlite(path: Path) -> None:
    assert _compare(path) == ALL


@pytest.mark.real_files
def test_rows_of_real_exports_equal_those_of_sqlite() -> None:
    decoded = [_compare(path) for path in sorted(get_real_file("nsys").glob("*.sqlite"))]
    assert len(decoded) >= 17
    # Some files are too old or lack a required table, but most are plain.
    assert sum(bool(count) for count in decoded) >= 14


@pytest.mark.parametrize(("year", "statements"), [*list_old_exports()])
def test_rows_of_exports_of_other_years_equal_those_of_sqlite(
    year: str, statements: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / plant(Planting(stages=2, microbatches=3), tmp_path).files[0].path

    assert _compare(edit_database(path, *statements)) == ALL, year


#: Columns that some versions of nsys do not record.
UNRECORDED = {
    KERNEL: ("globalPid", "streamId"),
    RUNTIME: ("globalTid", "correlationId", "nameId", "returnValue"),
    NVTX: ("endGlobalTid", "text", "textId"),
    STRINGS: ("id",),
}


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table in UNRECORDED for column in UNRECORDED[table]]
)
def test_rows_of_exports_of_other_schemas_equal_those_of_sqlite(
    table: str, column: str, tmp_path: Path
) -> None:
    rename_column = f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"'
    path = edit_database(tmp_path / EXAMPLE.name, rename_column, source=EXAMPLE)

    # At least the kernels or the calls are decoded.
    assert 1 <= _compare(path) <= ALL


def test_rows_that_touch_one_of_several_times_are_read() -> None:
    with open_export(str(EXAMPLE)) as export:
        (all_rows, texts), _ = _read_named(export, "ranges/lasting", _select_by_time(export, 0))
        start_ns, end_ns = np.array(all_rows[0]), np.array(all_rows[1])
        # Some times begin at the end of one row and end at the start of another row.
        # They touch neither of the two rows.
        since_ns, until_ns = union(np.sort(end_ns)[::9], np.sort(end_ns)[::9] + 40_000)
        until_ns[1::2] = [start_ns[start_ns > at].min(initial=at + 1) for at in since_ns[1::2]]
        times = since_ns.tolist(), until_ns.tolist()
        assert all(since < until for since, until in zip(*times, strict=True))
        touched = (start_ns[:, None] < until_ns) & (end_ns[:, None] > since_ns)
        rows = np.flatnonzero(touched.any(axis=1)).tolist()
        assert 0 < len(rows) < len(texts)
        selection = replace(
            _select_by_time(export, 0), since_ns=(*times[0],), until_ns=(*times[1],)
        )
        threads, thread = selection.threads, np.array(all_rows[3])
        # All threads share the same times, or each thread has separate times, and some have none.
        bounds_of_threads = len(since_ns) * np.arange(len(threads) + 1) // len(threads) // 2 * 2
        for bounds in (
            (0, len(since_ns)) * len(threads),
            np.repeat(bounds_of_threads, 2)[1:-1].tolist(),
        ):
            first, stop = np.reshape(bounds, (-1, 2))[np.searchsorted(threads, thread)].T[
                :, :, None
            ]
            of_thread = (np.arange(len(since_ns)) >= first) & (np.arange(len(since_ns)) < stop)
            rows = np.flatnonzero((touched & of_thread).any(axis=1)).tolist()
            selection = replace(selection, bounds=(*bounds,))
            decoded = _get_direct_reader(export).read_named(
                "ranges/lasting", selection, [EVERY_ROW]
            )
            assert decoded is not None
            assert read_texts(decoded) == [texts[row] for row in rows]
            assert decoded[0][:2].tolist() == [start_ns[rows].tolist(), end_ns[rows].tolist()]


def test_pages_that_an_earlier_scan_timed_are_skipped() -> None:
    with open_export(str(EXAMPLE)) as export:
        all_rows, _ = _read_named(export, "ranges/lasting", _select_by_time(export, 0))
        starts_ns = np.sort(all_rows[0][0])
        direct = _get_direct_reader(export)
        extents = direct._tables["ranges/named"].extents
        for n_before in (0, 1, len(starts_ns) // 100, len(starts_ns) // 2):
            for shortest_ns in (0, 100_000):
                by_time = _select_by_time(export, shortest_ns)
                early = replace(by_time, until_ns=(int(starts_ns[n_before]),))
                extents[:] = -1
                expected = direct.read_named("ranges/lasting", early, [EVERY_ROW])
                direct.read_named("ranges/named", _select_by_name(export, ("*",)), [EVERY_ROW])
                assert (extents[:, 0] >= 0).all()
                rows = direct.read_named("ranges/lasting", early, [EVERY_ROW])
                assert rows is not None
                assert expected is not None
                assert rows[0].tolist() == expected[0].tolist()
                assert read_texts(rows) == read_texts(expected)
        # Nearly all pages contain only later ranges.
        assert np.mean(extents[:, 1] >= starts_ns[len(starts_ns) // 100]) > 0.5


KERNEL_COLUMNS = (
    "start",
    "end",
    "deviceId",
    "streamId",
    "globalPid",
    "correlationId",
    "demangledName",
)
NVTX_COLUMNS = ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId")

numbers = st.one_of(
    st.integers(-2, 300),
    st.sampled_from(
        [2**k + d for k in (7, 8, 15, 16, 23, 24, 31, 32, 47, 48, 62) for d in (-1, 0)]
    ),
    st.integers(-(2**63) + 1, 2**63 - 1),
)
texts = st.one_of(
    st.sampled_from(["F0.0.0", "backward", "step_num=3", "aten::mm", "", "[", "F1.22.x", "ß*?]-^"]),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20),
    st.integers(0, 600).map(lambda n: "forward " * n),
)


@st.composite
def _draw_file(draw: st.DrawFn, folder: Path, odd: bool) -> Path:
    """Draw a file of two tables whose columns are in any order. Some rows are deleted again."""
    path = folder / "drawn.sqlite"
    path.unlink(missing_ok=True)
    value = st.one_of(numbers, st.none(), st.floats(), texts, st.binary(max_size=9))
    number = st.one_of(numbers, value) if odd else numbers
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA page_size = {draw(st.sampled_from([512, 1024, 4096, 65536]))}")
        for table, required in (
            (KERNEL, KERNEL_COLUMNS),
            ("NVTX_EVENTS", (*NVTX_COLUMNS, "text")),
        ):
            extra_columns = [f"other{n}" for n in range(draw(st.integers(0, 9)))]
            names = draw(st.permutations([*required, *extra_columns]))
            types = dict.fromkeys(required, "INT") | {"text": "TEXT"}
            columns = ", ".join(f'"{name}" {types.get(name, "")}' for name in names)
            db.execute(f"CREATE TABLE {table} ({columns})")
            marks = ", ".join("?" for _ in names)
            for _ in range(draw(st.integers(0, 20))):
                row = {name: draw(value) for name in extra_columns} | {
                    name: draw(number) for name in required
                }
                if "text" in required:
                    row["text"] = draw(st.one_of(texts, st.none()))
                    row["eventType"] = draw(st.sampled_from([59, 60, 70, 71, 1]))
                    row["end"] = draw(st.one_of(numbers, st.none()))
                db.execute(f"INSERT INTO {table} VALUES ({marks})", [row[name] for name in names])
            db.execute(f"DELETE FROM {table} WHERE rowid % {draw(st.integers(2, 9))} = 0")
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        strings = draw(st.dictionaries(st.integers(-5, 40), texts, max_size=30))
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.items())
    return path


@settings(max_examples=50)
@given(st.data(), st.booleans())
def test_rows_of_random_files_equal_those_of_sqlite(data: st.DataObject, odd: bool) -> None:
    """Odd files have values of any type. These values are left to SQLite."""
    with TemporaryDirectory() as folder:
        decoded = _compare(data.draw(_draw_file(Path(folder), odd=odd)))
        assert odd or decoded == ALL - 1


def _write_byte(offset: int, value: int) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([value]))

    return edit


def _reserve_most(path: Path) -> None:
    edit_database(path, "PRAGMA page_size = 512", "VACUUM")
    _write_byte(20, 33)(path)


#: Changes of a file after which the direct reader leaves the file to SQLite.
UNUSUAL: dict[str, tuple[str, ...] | Callable[[Path], None]] = {
    "a log": ("PRAGMA journal_mode = WAL",),
    "moving pages": ("PRAGMA auto_vacuum = FULL", "VACUUM"),
    "a log next to the file": lambda path: path.with_name(f"{path.name}-wal").touch(),
    "bytes after the last page": lambda path: os.truncate(path, path.stat().st_size + 1),
    "a size of another change": _write_byte(95, 77),
    "reserved bytes that leave too little": _reserve_most,
    "fractions of another format": _write_byte(21, 63),
    "a format of the future": _write_byte(47, 5),
    "another encoding": _write_byte(59, 2),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_files_that_are_not_plain_are_left_to_sqlite(tmp_path: Path, name: str) -> None:
    edit = UNUSUAL[name]
    statements = edit if isinstance(edit, tuple) else ()
    path = edit_database(tmp_path / EXAMPLE.name, *statements, source=EXAMPLE)
    if callable(edit):
        edit(path)
    try:
        with open_export(str(path)) as export:
            assert export.describe_readers().startswith("SQLite (")
    except ProfileError:
        pass  # SQLite does not read this file either


_RANGES = ", ".join(f'"{name}" INT' for name in NVTX_COLUMNS)


def _rebuild_table(columns: str, suffix: str = "", table: str = KERNEL) -> tuple[str, ...]:
    required_columns = KERNEL_COLUMNS if table == KERNEL else (*NVTX_COLUMNS, "text")
    names = ", ".join(f'"{name}"' for name in required_columns)
    return (
        f"ALTER TABLE {table} RENAME TO other",
        f"CREATE TABLE {table} ({columns}){suffix}",
        f"INSERT OR IGNORE INTO {table} ({names}) SELECT {names} FROM other",
        "DROP TABLE other",
    )


_REST = "deviceId INT, streamId INT, globalPid INT, correlationId INT, demangledName INT"
ODD_TABLES = {
    "floats": _rebuild_table(f'"start" REAL, "end" INT, {_REST}'),
    "values without a type": _rebuild_table(f'"start", "end" INT, {_REST}'),
    "no row numbers": _rebuild_table(
        f'"start" INT, "end" INT, {_REST}, PRIMARY KEY (start, correlationId, globalPid)',
        " WITHOUT ROWID",
    ),
    "a computed column": _rebuild_table(f'"start" INT, "end" INT, {_REST}, twice AS ("start" * 2)'),
    "a stored computed column": _rebuild_table(
        f'"start" INT, twice INT AS ("end" * 2) STORED, "end" INT, {_REST}'
    ),
    "a column added later": (
        f"ALTER TABLE {KERNEL} RENAME COLUMN correlationId TO before",
        f"ALTER TABLE {KERNEL} ADD COLUMN correlationId INT DEFAULT 7",
    ),
    "text where a number belongs": (f"UPDATE {KERNEL} SET deviceId = 'one' WHERE rowid = 9",),
    "no number where one belongs": (
        *_rebuild_table(f'"start" INT, "end" INT, {_REST}'),
        f'UPDATE {KERNEL} SET "end" = NULL WHERE rowid = 9',
    ),
    "a fraction where a number belongs": (f"UPDATE {KERNEL} SET deviceId = 0.5 WHERE rowid = 9",),
}


@pytest.mark.parametrize("name", ODD_TABLES)
def test_tables_that_are_not_plain_are_left_to_sqlite(tmp_path: Path, name: str) -> None:
    path = edit_database(tmp_path / EXAMPLE.name, *ODD_TABLES[name], source=EXAMPLE)
    with open_export(str(path)) as export:
        assert _get_direct_reader(export).read_columns("gpu_work/kernels", 1, 1 << 40) is None
        assert _get_direct_reader(export).read_columns("gpu_work/kernels", 1, 1) is None
        description = export.describe_readers()
        assert description.startswith("compiled reader, ")
        assert KERNEL in description
    if "where a number belongs" in name and not name.startswith("no"):
        assert description == (
            f"compiled reader, then SQLite (a page of {KERNEL} cannot be read directly, or memory "
            "ran out)"
        )


def _make_columns(count: int) -> str:
    return ", ".join(f"other{n} INT" for n in range(count))


_KEYED = {
    key: _rebuild_table(
        _RANGES.replace(f'"{key}" INT', f'"{key}" INTEGER PRIMARY KEY') + ", text TEXT",
        table="NVTX_EVENTS",
    )
    for key in NVTX_COLUMNS
}
#: Changes of a file's tables, and the number of queries that are still decoded.
ODD_ROWS: dict[str, tuple[tuple[str, ...], int]] = {
    "empty tables": ((f"DELETE FROM {KERNEL}", "DELETE FROM NVTX_EVENTS"), ALL),
    "a key that is the row number": (
        _rebuild_table(f'"start" INTEGER PRIMARY KEY, "end" INT, {_REST}'),
        ALL,
    ),
    **{
        f"{count} more columns": (
            _rebuild_table(f'{_make_columns(count)}, "start" INT, "end" INT, {_REST}'),
            of,
        )
        for count, of in ((50, ALL), (57, ALL), (58, 0), (1900, 0))
    },
    "a text after many columns": (
        _rebuild_table(f"{_RANGES}, {_make_columns(70)}, text TEXT", table="NVTX_EVENTS"),
        3,
    ),
    "a text with NUL": (
        ("UPDATE NVTX_EVENTS SET text = 'F' || CHAR(0) || 'x' WHERE rowid = 3",),
        3,
    ),
    # A key is stored as NULL, which is not a valid kind, text, time or thread.
    **{f"a key, {key}": (statements, len(GLOBS) + 3) for key, statements in _KEYED.items()},
    "a registered name of number -1": (
        (
            "INSERT INTO StringIds VALUES (-1, 'F0.0.0')",
            "UPDATE NVTX_EVENTS SET text = NULL, textId = -1 WHERE rowid % 5 = 0",
            "UPDATE NVTX_EVENTS SET text = NULL, textId = NULL WHERE rowid % 5 = 1",
        ),
        ALL,
    ),
    "a number of two registered names": (
        (
            "ALTER TABLE StringIds RENAME TO other",
            "CREATE TABLE StringIds (id INT, value TEXT)",
            "INSERT INTO StringIds SELECT id, value FROM other UNION ALL SELECT id, 'x' FROM other",
            "UPDATE NVTX_EVENTS SET text = NULL, textId = (SELECT MAX(id) FROM other)",
        ),
        ALL - len(GLOBS),
    ),
    # A dotless i is not an i, so a column of this type contains floating-point numbers.
    "letters that are not SQLite's": (
        _rebuild_table(f'"start" "REAL \u0131NT", "end" INT, {_REST}'),
        ALL - 2,
    ),
}


@pytest.mark.parametrize("name", ODD_ROWS)
def test_decoded_rows_of_odd_tables_equal_those_of_sqlite(tmp_path: Path, name: str) -> None:
    statements, decoded = ODD_ROWS[name]
    path = edit_database(tmp_path / EXAMPLE.name, *statements, source=EXAMPLE)

    assert _compare(path) == decoded


def test_a_disabled_and_a_missing_reader_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def describe_readers() -> str:
        with open_export(str(EXAMPLE)) as export:
            return export.describe_readers()

    monkeypatch.setenv(native.SWITCH, "0")
    assert describe_readers() == "SQLite (BUBBLEVIZ_NATIVE=0 disables the compiled reader)"
    monkeypatch.delenv(native.SWITCH)
    monkeypatch.setattr(native, "_load_once", lambda: None)
    monkeypatch.setattr(native, "FILE", "no such file")
    assert describe_readers() == "SQLite (the compiled reader was not built)"
    monkeypatch.setattr(native, "FILE", Path(native.__file__).name)
    assert describe_readers().startswith(
        "SQLite (library.py cannot be loaded or has a different version; "
    )
    assert "scripts/build_native.py" in describe_readers()


def test_timings_and_inspect_name_the_reader_but_the_report_does_not(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    for switch, reader in (
        ("1", "compiled reader"),
        ("0", "SQLite (BUBBLEVIZ_NATIVE=0 disables the compiled reader)"),
    ):
        monkeypatch.setenv(native.SWITCH, switch)
        code, out, err = cli("analyze", str(EXAMPLE), "--json", "-", "--timings")
        assert code == 0
        assert f"  {reader}: {EXAMPLE}\n" in err
        outputs.append(out)
        assert f"\n  read by      {reader}\n" in cli.printed("inspect", str(EXAMPLE))

    assert outputs[0] == outputs[1]


def test_reserved_bytes_are_skipped(tmp_path: Path) -> None:
    path = edit_database(tmp_path / "node0.sqlite", "PRAGMA page_size = 512", "VACUUM")
    raw = bytearray(path.read_bytes())
    raw[20], raw[105:107] = 32, (480).to_bytes(2, "big")
    path.write_bytes(raw)
    values = [(n, f"{n} " + "forward " * (n % 200)) for n in range(400)]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", values)
    assert path.read_bytes()[20] == 32
    with open_export(str(path)) as export:
        assert _read_strings(export, "*") == values


def _write_damaged(folder: Path, seed: int) -> Path:
    """Return a copy of the example in which one page contains random bytes."""
    chance = random.Random(seed)
    raw = bytearray(EXAMPLE.read_bytes())
    page = 4096 * chance.randrange(1, len(raw) // 4096)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        # Page headers and cell pointers are critical, so half of the changes are there.
        offset = page + chance.choice([chance.randrange(4096), chance.randrange(64)])
        raw[offset] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    path = folder / "damaged.sqlite"
    path.write_bytes(raw)
    return path


def _read_both_ways(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the results of both readers for a file as (decoded, read by SQLite)."""
    try:
        with open_export(str(path)) as export:
            for name in TABLES:
                columns = _get_direct_reader(export).read_columns(name, 1, 1 << 40)
                if columns is not None:
                    expected = _read_by_sqlite(export, name)
                    is_read = isinstance(expected, np.ndarray)
                    yield columns.tolist(), expected.tolist() if is_read else expected
            yield from _read_calls(export)
            rows, expected_rows = _read_named(
                export, "ranges/named", _select_by_name(export, ("*",))
            )
            if rows is not None:
                yield rows, expected_rows
    except BubblevizError:
        return


def test_damaged_pages_are_read_as_sqlite_reads_them(tmp_path: Path) -> None:
    compared = 0
    for seed in range(150):
        for decoded, reference in _read_both_ways(_write_damaged(tmp_path, seed)):
            if not isinstance(reference, ProfileError):
                compared += 1
                assert decoded == reference, seed
    # Most damage affects a single table, or bytes that are not read.
    assert compared > 100


def test_a_schema_that_is_not_text_is_damage(tmp_path: Path) -> None:
    raw = EXAMPLE.read_bytes()
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(raw.replace(b"CREATE TABLE StringIds", b"CREATE \x80\x80BLE StringIds"))
    with pytest.raises(ProfileError, match="the file is damaged"), open_export(str(path)):
        pass


def test_a_waiting_thread_reads_what_no_other_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bubbleviz.sources.nsys.export._MIN_POOL_ROWS", 0)
    monkeypatch.setattr("bubbleviz.sources.nsys.sqlite_export.ROWS", 100)
    busy = threading.Event()
    with open_export(str(EXAMPLE)) as export, export.open_pool() as pool:
        waiting = pool.submit(busy.wait, 20)
        parts = [columns for _, columns in export.stream("calls/all")]
        assert not waiting.done()
        busy.set()
        assert len(parts) > 5
        np.testing.assert_array_equal(np.hstack(parts), _read_by_sqlite(export, "calls/all"))
