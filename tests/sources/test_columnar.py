"""Directories of Parquet and Arrow tables give the same reports as the SQLite export."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bubbleviz.cli.app import main
from bubbleviz.sources.nsys.queries import QUERIES
from tests.planting import plant
from tests.sources.test_raw_reports import put_nsys
from tests.support.columnar_exports import ARROW, FORMS, Form, write_columnar
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database, read_columns, rebuild_table
from tests.support.needs import get_real_file
from tests.support.places import FIXTURES
from tests.support.planted_runs import FULL

pytestmark = pytest.mark.thorough

EXAMPLE = FIXTURES / "1f1b" / "node0.sqlite"
#: Matches the reader that ``inspect`` names, and labels.
#: Without a host, a label contains the file name.
_READER = re.compile(r'read by .*|"label": ".*"')
COMMANDS = (
    ("analyze", "--json", "-"),
    ("idle", "--json", "-"),
    ("nccl", "--json", "-"),
    ("inspect",),
)
#: Commands that show all data.
MAIN = (COMMANDS[0], COMMANDS[-1])


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print every sentence on one line."""
    monkeypatch.setenv("COLUMNS", "2000")


def run_command(
    path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Return the exit code and output of a command, without the name of the profile."""
    code = main([command[0], str(path), *command[1:]])
    printed = capsys.readouterr()
    texts = (
        _READER.sub("", text.replace(str(path), "PATH")).replace(path.name, "NAME")
        for text in printed
    )
    out, err = texts
    assert "Traceback" not in err
    return code, out, err


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    return folder / plant(FULL, folder).files[0].path


@pytest.mark.parametrize("form", FORMS)
def test_reports_of_a_planted_run_are_equal(
    form: str, full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all(run_command(full, command, capsys)[0] == 0 for command in COMMANDS)
    compare_outputs(full, tmp_path, FORMS[form], capsys)


@pytest.mark.real_files
@pytest.mark.parametrize("form", ["parquet, narrow columns, small row groups", "arrow"])
def test_reports_of_real_exports_are_equal(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each format is tested with half of the exports."""
    for original in sorted(get_real_file("nsys").glob("*.sqlite"))[form == "arrow" :: 2]:
        # Sentences are truncated, so the paths must have the same length.
        compare_outputs(Path(shutil.copy(original, tmp_path)), tmp_path, FORMS[form], capsys)


def compare_outputs(
    path: Path,
    folder: Path,
    form: Form,
    capsys: pytest.CaptureFixture[str],
    commands: Sequence[tuple[str, ...]] = COMMANDS,
) -> None:
    """Compare the output of commands for a folder of tables with the output for its export."""
    directory = write_columnar(path, folder, form)
    for command in commands:
        expected = run_command(path, command, capsys)
        assert run_command(directory, command, capsys) == expected, (path.name, command)


def edit_export(path: Path, folder: Path, *statements: str) -> Path:
    """Return a copy of an export that is changed by SQL statements."""
    folder.mkdir(parents=True, exist_ok=True)
    return edit_database(Path(shutil.copy(path, folder)), *statements)


#: Columns of the example that queries read.
STORED = {
    table: sorted({*columns} & QUERIES.columns_read.get(table, frozenset()))
    for table, columns in read_columns(EXAMPLE).items()
    if QUERIES.columns_read.get(table)
}
CORE = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds")
EDITS: dict[str, tuple[str, ...]] = {
    **{f"{t} is gone": (f'ALTER TABLE "{t}" RENAME TO gone',) for t in STORED},
    **{f"{t} is empty": (f'DELETE FROM "{t}"',) for t in STORED},
    **{
        f"{t}.{column} is gone": (f'ALTER TABLE "{t}" RENAME COLUMN "{column}" TO gone',)
        for t, columns in STORED.items()
        for column in columns
    },
    **{
        f"{t}.{column} is NULL at times": (
            *rebuild_table(t),
            f'UPDATE "{t}" SET "{column}" = NULL WHERE rowid % 3 = 0',
        )
        for t in CORE[:3]
        for column in STORED[t]
    },
}


@pytest.mark.parametrize("edit", EDITS)
def test_reports_of_edited_exports_are_equal(
    edit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edit_export(EXAMPLE, tmp_path, *EDITS[edit])

    compare_outputs(path, tmp_path, FORMS["parquet"], capsys, MAIN)


def list_profile_names(output: str) -> list[str]:
    return [Path(profile["path"]).name for profile in json.loads(output)["profiles"]]


def test_a_report_in_several_forms_counts_once(tmp_path: Path, cli: CommandLine) -> None:
    write_columnar(EXAMPLE, tmp_path)
    write_columnar(EXAMPLE, tmp_path, ARROW)
    (tmp_path / "node0.nsys-rep").write_bytes(b"not exported anew")

    assert list_profile_names(cli.printed("analyze", str(tmp_path), "--json", "-")) == [
        "node0_pqtdir"
    ]
    shutil.copy(EXAMPLE, tmp_path / "node0.sqlite")
    assert list_profile_names(cli.printed("analyze", str(tmp_path), "--json", "-")) == [
        "node0.sqlite"
    ]


@pytest.mark.parametrize("command", ["analyze", "inspect", "idle", "nccl"])
def test_a_directory_without_core_tables_is_refused_in_a_sentence(
    command: str, tmp_path: Path, cli: CommandLine
) -> None:
    directory = write_columnar(EXAMPLE, tmp_path)
    for table in ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"):
        (directory / f"{table}.parquet").unlink()
    (directory / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet").unlink()
    empty = tmp_path / "node1_arwdir"
    empty.mkdir()

    for path in (directory, empty):
        message = cli.refused(command, str(path), code=1)
        assert f"{path}: is a directory of tables but not an nsys export, because" in message
        assert message.count("\n") == 1


def test_a_single_table_of_an_export_is_not_a_profile(tmp_path: Path, cli: CommandLine) -> None:
    directory = write_columnar(EXAMPLE, tmp_path)
    table = directory / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"

    assert cli.refused("analyze", str(table), code=1) == (
        f"bubbleviz: {table}: is a single table of an nsys export; pass the directory that "
        "contains it\n"
    )


@pytest.mark.parametrize(
    ("form", "package", "otherwise"),
    [
        ("parquet", "duckdb", "export the report as SQLite"),
        ("arrow", "duckdb", "export the report as SQLite"),
        ("arrow", "pyarrow", "export the report with --type parquetdir"),
    ],
)
def test_a_missing_package_is_named_with_the_extra(
    form: str,
    package: str,
    otherwise: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    directory = write_columnar(EXAMPLE, tmp_path, FORMS[form])
    monkeypatch.setitem(sys.modules, package, None)

    message = cli.refused("analyze", str(directory), code=1)
    assert f"requires {package}, which is not installed" in message
    assert f"pip install '.[parquet]', or {otherwise}" in message
    assert message.count("\n") == 1


def test_parquet_tables_are_read_without_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    directory = write_columnar(EXAMPLE, tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    assert cli.printed("analyze", str(directory), "--json", "-")


@pytest.mark.parametrize("name", ["a*b", "a[1]", "a?", "it's", "k=v", "a{x,y}", "a\\b"])
def test_folders_may_have_any_name(name: str, tmp_path: Path, cli: CommandLine) -> None:
    """As a DuckDB pattern, this name would match other folders or none."""
    write_columnar(FIXTURES / "zb-v" / "rank0.sqlite", tmp_path / "a1").rename(
        tmp_path / "a1" / "node0_pqtdir"
    )
    directory = write_columnar(EXAMPLE, tmp_path / name)

    report = json.loads(cli.printed("analyze", str(directory), "--json", "-"))
    assert report["profiles"][0]["kernels"] == 708


def report_and_nsys(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Return a report, and install a script as the nsys program that exports it."""
    report = folder / "run" / "node0.nsys-rep"
    report.parent.mkdir()
    report.write_bytes(b"what nsys alone can read")
    put_nsys(folder / "bin", monkeypatch, script)
    return report


@pytest.mark.parametrize("ending", ["", "_pqtdir"])
def test_a_report_is_exported_to_columns(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    columnar_export = write_columnar(EXAMPLE, tmp_path / "made")
    script = f'test "$3" = parquetdir || exit 7; cp -r {columnar_export} "$5{ending}"'
    report = report_and_nsys(tmp_path, monkeypatch, script)

    code, output, timings = cli("analyze", str(report), "--json", "-", "--timings")
    assert code == 0
    assert "DuckDB (Parquet" in timings
    assert output.replace(str(report), str(EXAMPLE)) == cli.printed(
        "analyze", str(EXAMPLE), "--json", "-"
    )
    assert [file.name for file in report.parent.iterdir()] == [report.name]


@pytest.mark.parametrize("refusal", ["exit 1", "exit 0", 'mkdir "$5"', 'touch "$5"'])
def test_a_report_is_exported_to_sqlite_if_nsys_cannot_write_columns(
    refusal: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = f'if test "$3" = sqlite; then cp {EXAMPLE} "$5"; else {refusal}; fi'
    report = report_and_nsys(tmp_path, monkeypatch, script)

    assert main(["analyze", str(report), "--timings"]) == 0
    assert "DuckDB" not in capsys.readouterr().err


@pytest.mark.parametrize("table", CORE)
@pytest.mark.parametrize("form", ["parquet", "arrow", "arrow, a stream of small batches"])
def test_truncated_files_are_refused(
    form: str, table: str, tmp_path: Path, cli: CommandLine
) -> None:
    directory = write_columnar(EXAMPLE, tmp_path, FORMS[form])
    file = directory / f"{table}{FORMS[form].suffix}"
    raw = file.read_bytes()
    for length in (0, 3, 8, len(raw) // 3, len(raw) // 2, len(raw) - 9):
        file.write_bytes(raw[:length])
        message = cli.refused("analyze", str(directory), code=1)
        assert file.name in message


def test_files_of_another_format_are_refused(tmp_path: Path, cli: CommandLine) -> None:
    directory = write_columnar(EXAMPLE, tmp_path)
    (directory / "StringIds.parquet").write_text("id,value\n1,forward\n")

    message = cli.refused("analyze", str(directory), code=1)
    assert "StringIds.parquet cannot be read" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_overwritten_bytes_end_in_a_report_or_a_sentence(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_columnar(EXAMPLE, tmp_path, FORMS[form])
    n_refused = 0
    for seed in range(60):
        chance = random.Random(seed)
        file = directory / f"{chance.choice(CORE)}{FORMS[form].suffix}"
        raw = file.read_bytes()
        torn = bytearray(raw)
        offset = chance.randrange(len(raw))
        torn[offset : offset + chance.choice([1, 8, 400])] = bytes([chance.choice([0, 255, 7])])
        file.write_bytes(torn)
        code = main(["analyze", str(directory)])
        stderr = capsys.readouterr().err
        file.write_bytes(raw)
        assert code in (0, 1)
        n_refused += code
        assert not code or stderr.count("\n") == 1, stderr
    assert n_refused > 5


def change_table(directory: Path, table: str, change: Callable[[Any], Any]) -> None:
    file = directory / f"{table}.parquet"
    parquet.write_table(change(parquet.read_table(file)), file)


def cast_column(name: str, kind: Any) -> Callable[[Any], Any]:
    def change(table: Any) -> Any:
        column_index = table.schema.get_field_index(name)
        return table.set_column(column_index, name, table.column(name).cast(kind))

    return change


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"),
        ("NVTX_EVENTS", "eventType"),
        ("NVTX_EVENTS", "globalTid"),
        ("StringIds", "id"),
    ],
)
@pytest.mark.parametrize("kind", [pa.string(), pa.float64()], ids=str)
def test_columns_of_other_types_are_refused(
    table: str, column: str, kind: Any, tmp_path: Path, cli: CommandLine
) -> None:
    directory = write_columnar(EXAMPLE, tmp_path)
    change_table(directory, table, cast_column(column, kind))

    assert "whole number" in cli.refused("analyze", str(directory), code=1)


def test_a_duplicate_column_is_refused(tmp_path: Path, cli: CommandLine) -> None:
    directory = write_columnar(EXAMPLE, tmp_path)
    change_table(directory, "NVTX_EVENTS", lambda t: t.append_column("start", t.column("end")))

    assert "two columns with the same name" in cli.refused("analyze", str(directory), code=1)


def test_a_name_is_read_as_far_as_it_is_utf_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edit_export(
        EXAMPLE, tmp_path, "UPDATE StringIds SET value = CAST(x'66ff67' AS TEXT) WHERE id % 3 = 0"
    )
    compare_outputs(path, tmp_path / "columns", FORMS["parquet"], capsys, COMMANDS[:2])
