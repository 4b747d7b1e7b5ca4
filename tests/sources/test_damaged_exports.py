"""Damaged, edited and sparse nsys exports never give wrong numbers without a message."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz import analyze
from bubbleviz.analyses.idle.analysis import idle
from bubbleviz.errors import BubblevizError, ProfileError
from bubbleviz.sources.nsys.sqlite_export import open_export
from tests.planting import Planting, plant
from tests.support.edited_databases import edit_database, read_columns, rebuild_table
from tests.support.notes import find_limitation, list_limitation_subjects
from tests.support.nsys_exports import C, K, M, R, write_profile
from tests.support.places import FIXTURES

EXAMPLE = FIXTURES / "1f1b" / "node0.sqlite"
KERNEL, COPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
RUNTIME, OVERHEAD = "CUPTI_ACTIVITY_KIND_RUNTIME", "PROFILER_OVERHEAD"


def edit_database_copy(path: Path, *statements: str) -> Path:
    """Run statements on a copy of a database whose tables have no constraints."""
    anew = [statement for table in read_columns(path) for statement in rebuild_table(table)]
    return edit_database(path, *anew, *statements)


def write_example(folder: Path, *statements: str) -> Path:
    """Write an edited copy of the 1F1B example."""
    path = folder / "node0.sqlite"
    shutil.copyfile(EXAMPLE, path)
    return edit_database_copy(path, *statements)


def write_small_export(folder: Path, *statements: str) -> Path:
    """Write an edited export of two kernels and two copies."""
    calls = [C(10, 20, 1), C(110, 120, 2), C(200, 210, 3), C(300, 310, 4)]
    kernels, copies = [K(30, 80, 1), K(130, 180, 2)], [M(220, 250, 3), M(320, 350, 4)]
    return edit_database_copy(write_profile(folder, kernels, calls, copies=copies), *statements)


@pytest.mark.parametrize("value", ["'text'", "x'00ff'", "1.5", "1e300", "''"])
@pytest.mark.parametrize("table", [KERNEL, COPY])
def test_a_process_id_that_is_not_a_number_is_refused(
    table: str, value: str, tmp_path: Path
) -> None:
    path = write_small_export(tmp_path, f"UPDATE {table} SET globalPid = {value} WHERE rowid = 1")

    with pytest.raises(ProfileError, match="a value that is not a whole number"):
        idle([path])


def test_unrecorded_processes_are_not_damage(tmp_path: Path) -> None:
    path = write_small_export(tmp_path, f"UPDATE {KERNEL} SET globalPid = NULL")

    assert [note.what for note in idle([path]).limitations][:1] == ["the process of kernels"]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (f"DROP TABLE {KERNEL}", f"calls that launch kernels, but no kernels in {KERNEL}"),
        (f"DELETE FROM {KERNEL}", f"calls that launch kernels, but no kernels in {KERNEL}"),
        (f'ALTER TABLE {KERNEL} DROP COLUMN "end"', f"lacks {KERNEL}.end"),
        (f"ALTER TABLE {KERNEL} RENAME COLUMN start TO begun", f"lacks {KERNEL}.start"),
        (f"ALTER TABLE {KERNEL} DROP COLUMN correlationId", f"lacks {KERNEL}.correlationId"),
    ],
)
def test_unreadable_kernels_do_not_count_as_idle_time(
    statement: str, reason: str, tmp_path: Path
) -> None:
    note = find_limitation(idle([write_small_export(tmp_path, statement)]), "kernels")

    assert reason in note.reason


def test_a_profile_of_copies_is_complete_without_launches(tmp_path: Path) -> None:
    calls = "UPDATE StringIds SET value = 'cudaMemcpyAsync' WHERE value LIKE 'cudaLaunch%'"
    path = write_small_export(tmp_path, f"DROP TABLE {KERNEL}", calls)

    assert "kernels" not in list_limitation_subjects(idle([path]))


@pytest.mark.parametrize(("start", "n_lost"), [(0, 1), (-1, 0), (1, 0)])
def test_an_overhead_without_a_start_is_left_out(start: int, n_lost: int, tmp_path: Path) -> None:
    path = write_small_export(
        tmp_path,
        f'CREATE TABLE IF NOT EXISTS {OVERHEAD} (start INTEGER, "end" INTEGER, globalTid INTEGER)',
        f'INSERT INTO {OVERHEAD} (start, "end", globalTid) '
        f"SELECT {start}, 400, globalTid FROM {RUNTIME} LIMIT 1",
    )
    report = idle([path])
    lost_overheads = [n for n in report.limitations if n.what.startswith("profiler overheads")]

    assert len(lost_overheads) == n_lost
    assert ("profiler" in {a.activity for a in report.activities}) == (not n_lost)


@pytest.mark.parametrize("assignment", ["start = 0", 'start = 0, "end" = 0'])
@pytest.mark.parametrize("row", [1, 354, 708])
def test_a_call_without_a_start_is_counted(row: int, assignment: str, tmp_path: Path) -> None:
    report = analyze(
        [write_example(tmp_path, f"UPDATE {RUNTIME} SET {assignment} WHERE rowid = {row}")]
    )

    (note,) = (n for n in report.limitations if n.what.startswith("CUDA API calls with"))
    assert note.count == 1


def test_names_that_are_null_are_reported(tmp_path: Path) -> None:
    report = analyze([write_example(tmp_path, f"UPDATE {KERNEL} SET demangledName = NULL")])
    assert any(note.what.startswith("names of kernels") for note in report.limitations)


def test_gpus_without_a_cuda_number_use_their_own_number(tmp_path: Path) -> None:
    path = write_example(
        tmp_path,
        "UPDATE TARGET_INFO_GPU SET cuDevice = NULL, name = 'GPU ' || id",
        "DROP TABLE IF EXISTS TARGET_INFO_CUDA_DEVICE",
    )
    assert [rank.gpu for rank in idle([path]).ranks] == [f"GPU {number}" for number in range(4)]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    plant(Planting(stages=2, microbatches=8, iterations=4, kernels=6), folder)
    (path,) = folder.glob("*.sqlite")
    return path


def test_no_kernel_of_a_damaged_export_is_lost_silently(export: Path, tmp_path: Path) -> None:
    undamaged = export.read_bytes()
    kernels = analyze(export).profiles[0].kernels
    refused = set()
    path = tmp_path / "damaged.sqlite"
    for page in range(1, len(undamaged) // 4096):
        # Row numbers are at the end of a page, before the content of each row.
        damaged = bytearray(undamaged)
        random = np.random.default_rng(page)
        offset = page * 4096 + 2048
        damaged[offset : offset + 2048] = random.bytes(2048)
        path.write_bytes(damaged)
        try:
            report = analyze(path)
        except ProfileError as error:
            refused.add(
                "of its kernels can be read" in str(error)
                or f"{KERNEL} cannot be read" in str(error)
            )
        except BubblevizError:
            pass
        else:
            assert report.profiles[0].kernels == kernels
    assert True in refused


def test_more_names_than_fit_in_16_bits_stay_distinct(tmp_path: Path) -> None:
    count = 2**15 + 3
    kernels = [K(10 * i + 5, 10 * i + 9, i, name=f"kernel {i}") for i in range(count)]
    calls = [C(10 * i, 10 * i + 1, i) for i in range(count)]
    ranges = [R(0, 30, "F0.0.0"), R(40, 60, "B0.0.0")]
    report = bubbleviz.analyze(write_profile(tmp_path, kernels, calls, ranges))

    names = {kernel.name for kernel in report.unattributed_kernels}
    assert report.profiles[0].kernels == count
    assert len(names) == 5
    assert all(kernel.count == 1 for kernel in report.unattributed_kernels)


@pytest.mark.parametrize("column", ["start", "end", "globalTid", "text"])
def test_ranges_of_another_type_are_refused(column: str, tmp_path: Path) -> None:
    plant(Planting(stages=2), tmp_path)
    file = tmp_path / "node0.sqlite"
    for value in ("x'00ff'", "'late'", "1e30"):
        if column == "text" and value != "x'00ff'":
            continue
        edit_database(file, f"UPDATE NVTX_EVENTS SET \"{column}\" = {value} WHERE text GLOB 'F1.*'")
        if column != "text":
            with pytest.raises(ProfileError, match="damaged"):
                bubbleviz.analyze(file)


def test_an_impossible_range_does_not_affect_open_ranges(tmp_path: Path) -> None:
    kernels = [K(100 * i + 30, 100 * i + 80, i) for i in range(3)]
    calls = [C(100 * i + 10, 100 * i + 20, i) for i in range(3)]
    ranges = [R(0, 90, "F0.0.0"), R(100, 190, "B0.0.0"), R(200, None, "F1.0.0")]
    strange = R(5, 2**61, "B7.0.0")
    report = bubbleviz.analyze(write_profile(tmp_path, kernels, calls, [*ranges, strange]))

    impossible_ranges = [n for n in report.limitations if n.what == "ranges with impossible times"]
    assert [note.count for note in impossible_ranges] == [1]
    assert report.operations.cut.tolist().count(1) == 1


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("table", [KERNEL, "NVTX_EVENTS"])
def test_row_numbers_out_of_order_are_refused(
    table: str, switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUBBLEVIZ_NATIVE", switch)
    calls, kernels = [C(10, 20, 1), C(110, 120, 2)], [K(30, 80, 1), K(130, 180, 2)]
    ranges = [R(0, 25, "F0.0.0"), R(100, 125, "B0.0.0")]
    path = write_profile(tmp_path, kernels, calls, ranges)
    renumber_first_row(path, table, 120)

    with pytest.raises(ProfileError, match="rows are out of order, so the file is damaged"):
        analyze(path)


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("number", [2, 9])
def test_row_numbers_of_calls_out_of_order_are_damage(
    number: int, switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 1 becomes a second row 2, or a row 9 that precedes rows 2 and 3."""
    monkeypatch.setenv("BUBBLEVIZ_NATIVE", switch)
    calls = [C(10, 20, 1), C(110, 120, 2), C(210, 220, 3)]
    ranges = [R(0, 25, "F0.0.0"), R(100, 125, "B0.0.0")]
    path = write_profile(tmp_path, [K(30, 80, 1)], calls, ranges)
    renumber_first_row(path, RUNTIME, number)

    with (
        open_export(str(path)) as export,
        pytest.raises(ProfileError, match="rows are out of order, so the file is damaged"),
    ):
        export.read_rows("calls/at", np.arange(1, 4))


def renumber_first_row(path: Path, table: str, number: int) -> None:
    """Change the number of the first row of a single-page table. Numbers must be below 128."""
    with closing(sqlite3.connect(path)) as database:
        (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (root,) = database.execute(query, (table,)).fetchone()
    content = bytearray(path.read_bytes())
    page = (root - 1) * page_bytes
    assert content[page] == 13, "the page must be a leaf"
    cell = page + int.from_bytes(content[page + 8 : page + 10], "big")
    payload_bytes = 1 if content[cell] < 128 else 2
    content[cell + payload_bytes] = number
    path.write_bytes(content)
