"""Damaged columns of nsys exports: refused or counted, never a number that nobody notices."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bubbleviz import analyze
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.cli.app import main
from bubbleviz.errors import ProfileError
from tests.support.nsys_exports import C, K, M, profile
from tests.support.places import FIXTURES

KERNEL, COPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
RUNTIME, OVERHEAD = "CUPTI_ACTIVITY_KIND_RUNTIME", "PROFILER_OVERHEAD"


def edited(path: Path, *statements: str) -> Path:
    """Run statements on a database whose tables lost their constraints."""
    with closing(sqlite3.connect(path)) as database, database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            database.execute(f'ALTER TABLE "{table}" RENAME TO constrained')
            database.execute(f'CREATE TABLE "{table}" AS SELECT * FROM constrained')
            database.execute("DROP TABLE constrained")
        for statement in statements:
            database.execute(statement)
    return path


def example(folder: Path, *statements: str) -> Path:
    """Write the 1F1B example, edited."""
    path = folder / "node0.sqlite"
    shutil.copyfile(FIXTURES / "1f1b" / "node0.sqlite", path)
    return edited(path, *statements)


def small(folder: Path, *statements: str) -> Path:
    """Write two kernels and two copies, edited."""
    calls = [C(10, 20, 1), C(110, 120, 2), C(200, 210, 3), C(300, 310, 4)]
    kernels, copies = [K(30, 80, 1), K(130, 180, 2)], [M(220, 250, 3), M(320, 350, 4)]
    return edited(profile(folder, kernels, calls, copies=copies), *statements)


@pytest.mark.parametrize("value", ["'text'", "x'00ff'", "1.5", "1e300", "''"])
@pytest.mark.parametrize("table", [KERNEL, COPY])
def test_a_process_that_is_no_number_is_refused(table: str, value: str, tmp_path: Path) -> None:
    path = small(tmp_path, f"UPDATE {table} SET globalPid = {value} WHERE rowid = 1")

    with pytest.raises(ProfileError, match="something else than a whole number"):
        idle([path])


def test_processes_that_are_not_recorded_are_no_damage(tmp_path: Path) -> None:
    path = small(tmp_path, f"UPDATE {KERNEL} SET globalPid = NULL")

    assert [note.what for note in idle([path]).limitations][:1] == ["the process of kernels"]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (f"DROP TABLE {KERNEL}", f"calls that launch some, but none in {KERNEL}"),
        (f"DELETE FROM {KERNEL}", f"calls that launch some, but none in {KERNEL}"),
        (f'ALTER TABLE {KERNEL} DROP COLUMN "end"', f"lacks {KERNEL}.end"),
        (f"ALTER TABLE {KERNEL} RENAME COLUMN start TO begun", f"lacks {KERNEL}.start"),
        (f"ALTER TABLE {KERNEL} DROP COLUMN correlationId", f"lacks {KERNEL}.correlationId"),
    ],
)
def test_kernels_that_cannot_be_read_are_no_idle_time(
    statement: str, reason: str, tmp_path: Path
) -> None:
    (note,) = (n for n in idle([small(tmp_path, statement)]).limitations if n.what == "kernels")

    assert reason in note.reason


def test_copies_alone_are_whole_without_launches(tmp_path: Path) -> None:
    calls = "UPDATE StringIds SET value = 'cudaMemcpyAsync' WHERE value LIKE 'cudaLaunch%'"
    path = small(tmp_path, f"DROP TABLE {KERNEL}", calls)

    assert not [n for n in idle([path]).limitations if n.what == "kernels"]


@pytest.mark.parametrize(("start", "lost"), [(0, 1), (-1, 1), (1, 0)])
def test_an_overhead_from_before_the_session_is_left_out(
    start: int, lost: int, tmp_path: Path
) -> None:
    path = small(
        tmp_path,
        f'CREATE TABLE IF NOT EXISTS {OVERHEAD} (start INTEGER, "end" INTEGER, globalTid INTEGER)',
        f'INSERT INTO {OVERHEAD} (start, "end", globalTid) '
        f"SELECT {start}, 400, globalTid FROM {RUNTIME} LIMIT 1",
    )
    report = idle([path])
    lost_overheads = [n for n in report.limitations if n.what.startswith("overheads")]

    assert len(lost_overheads) == lost
    assert ("profiler" in {a.activity for a in report.activities}) == (not lost)


def test_calls_of_one_thread_alone_give_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = f"(SELECT globalTid FROM {RUNTIME} LIMIT 1)"
    path = example(tmp_path, f"UPDATE {RUNTIME} SET globalTid = {one}")

    assert main(["analyze", str(path), "--json", str(tmp_path / "report.json")]) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("more_ns", [0, 300_000, 1_000_000, 3_000_000])
def test_no_time_of_the_critical_path_is_negative(more_ns: int, tmp_path: Path) -> None:
    late = f'UPDATE {KERNEL} SET "end" = "end" + {more_ns} WHERE rowid % 3 = 0'
    path = analyze([example(tmp_path, late)]).explanation.path

    assert path is not None
    assert all(part.time_ns > 0 for part in path.parts)
    assert sum(part.time_ns for part in path.parts) == path.length_ns


@pytest.mark.parametrize("what", ["start = 0", 'start = 0, "end" = 0'])
@pytest.mark.parametrize("row", [1, 354, 708])
def test_a_call_without_a_start_is_counted(row: int, what: str, tmp_path: Path) -> None:
    report = analyze([example(tmp_path, f"UPDATE {RUNTIME} SET {what} WHERE rowid = {row}")])

    (note,) = (n for n in report.limitations if n.what.startswith("CUDA API calls with"))
    assert note.count == 1
