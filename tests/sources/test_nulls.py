"""NULL where a value of an nsys export is optional is never damage, and changes no number."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bubbleviz import analyze, inspect
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.report.report import Report

EXAMPLE = Path(__file__).parents[2] / "fixtures" / "1f1b" / "node0.sqlite"
#: Columns of which any value may be NULL, and more tables that the example lacks.
OPTIONAL = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("graphNodeId", "mangledName"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId", "returnValue", "callchainId"),
    "NVTX_EVENTS": ("endGlobalTid", "textId", "domainId", "category", "color", "rangeId"),
    "ENUM_NSYS_EVENT_TYPE": ("id", "name"),
    "ThreadNames": ("nameId", "globalTid"),
    "TARGET_INFO_GPU": ("id", "cuDevice", "name", "uuid", "busLocation"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid", "uuid"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", "systemClockNs"),
    "TARGET_INFO_SYSTEM_ENV": ("name", "value"),
    "META_DATA_EXPORT": ("name", "value"),
    "PROFILER_OVERHEAD": ("start", "end", "globalTid"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": ("start", "end", "globalTid"),
}


def _edited(folder: Path, *statements: str) -> Path:
    path = folder / "node0.sqlite"
    shutil.copy(EXAMPLE, path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


def _without(table: str, column: str, rows: str) -> tuple[str, ...]:
    """Return statements that set a column to NULL, whatever the table's constraints are."""
    return (
        f"ALTER TABLE {table} RENAME TO constrained",
        f"CREATE TABLE {table} AS SELECT * FROM constrained",
        f'UPDATE {table} SET "{column}" = NULL WHERE rowid IN ({rows})',
        "DROP TABLE constrained",
    )


def _ratios(report: Report) -> list[dict[str, float | None]]:
    return [{n: r.value for n, r in i.ratios.items()} for i in report.iterations]


def _columns() -> list[tuple[str, str]]:
    with closing(sqlite3.connect(f"file:{EXAMPLE}?mode=ro&immutable=1", uri=True)) as database:
        tables = {
            table: {row[1] for row in database.execute(f"PRAGMA TABLE_INFO({table})")}
            for table in OPTIONAL
        }
    return [(t, c) for t, columns in OPTIONAL.items() for c in columns if c in tables[t]]


@pytest.mark.parametrize("rows", ["1", "SELECT rowid FROM constrained"], ids=["one", "all"])
@pytest.mark.parametrize(("table", "column"), _columns())
def test_null_is_no_damage(table: str, column: str, rows: str, tmp_path: Path) -> None:
    path = _edited(tmp_path, *_without(table, column, rows))
    assert _ratios(analyze([path])) == _ratios(analyze([EXAMPLE]))


@pytest.mark.parametrize("table", ["PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"])
def test_an_overhead_without_times_is_none(table: str, tmp_path: Path) -> None:
    path = _edited(
        tmp_path,
        f'CREATE TABLE IF NOT EXISTS {table} (start INTEGER, "end" INTEGER, globalTid INTEGER)',
        f"INSERT INTO {table} VALUES (NULL, NULL, NULL), (9000000000, NULL, 1), (NULL, 2, 2)",
    )
    assert _ratios(analyze([path])) == _ratios(analyze([EXAMPLE]))


def test_names_that_are_null_are_named_so(tmp_path: Path) -> None:
    rows = "SELECT rowid FROM constrained"
    path = _edited(tmp_path, *_without("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", rows))
    report = analyze([path])
    assert any(note.what.startswith("names of kernels") for note in report.limitations)


def test_gpus_without_a_number_of_cuda_go_by_their_own(tmp_path: Path) -> None:
    rows = "SELECT rowid FROM constrained"
    path = _edited(
        tmp_path,
        *_without("TARGET_INFO_GPU", "cuDevice", rows),
        "UPDATE TARGET_INFO_GPU SET name = 'GPU ' || id",
        "DROP TABLE IF EXISTS TARGET_INFO_CUDA_DEVICE",
    )
    assert [rank.gpu for rank in idle([path]).ranks] == [f"GPU {number}" for number in range(4)]


def test_a_gpu_without_a_number_beside_others_is_none_of_cuda(tmp_path: Path) -> None:
    path = _edited(
        tmp_path,
        *_without("TARGET_INFO_GPU", "cuDevice", "1"),
        "DROP TABLE IF EXISTS TARGET_INFO_CUDA_DEVICE",
    )
    contents = inspect(path).contents
    assert len(contents.devices) == 3
