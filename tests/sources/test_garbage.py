"""Files that no profiler wrote quickly lead to a report or an error message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bubbleviz.cli.app import main
from bubbleviz.sources.nsys.queries import QUERIES
from bubbleviz.sources.sqlite.database import open_database
from bubbleviz.sources.sqlite.queries import Query
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database, read_columns
from tests.support.operation_tables import write_tables
from tests.support.places import CHECKOUT

ONE = CHECKOUT / "fixtures" / "1f1b" / "node0.sqlite"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
#: Limit in seconds of CPU time.
#: The cases once took minutes, and now take a tenth of this limit.
SOON_S = 10


def run_until_end(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command, check that it ends soon and without a traceback, and return its messages."""
    begin_s = time.process_time()
    code = main([str(argument) for argument in arguments])

    assert time.process_time() - begin_s < SOON_S
    assert code in (0, 1)
    stderr = capsys.readouterr().err
    assert all(line.startswith("bubbleviz: ") for line in stderr.splitlines())
    assert (code == 0) or stderr.count("\n") == 1
    return stderr


# Tests of values that are out of range of every field.


OVER, UNDER = 18_446_744_073_709_551_615, -9_223_372_036_854_775_809


def write_odd_trace(path: Path, **odd: Any) -> Path:
    """Write a trace of three kernels whose last one has an odd value."""
    events = []
    for number in range(3):
        args = {"correlation": number, "device": 0, "External id": number}
        call = {"pid": 9, "tid": 9, "ts": 10 * number, "dur": 1, "args": args}
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **call})
        work = {"pid": 0, "tid": 7, "ts": 10 * number + 2, "dur": 5, "args": dict(args)}
        events.append({"ph": "X", "cat": "kernel", "name": "gemm", **work})
    for name, value in odd.items():
        target = events[-1] if name in events[-1] else events[-1]["args"]
        target[name.replace("_", " ")] = value  # type: ignore[index]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_identifiers_beyond_64_bits_are_ignored(tmp_path: Path, cli: CommandLine) -> None:
    path = write_odd_trace(tmp_path / "a.pt.trace.json", correlation=OVER, External_id=UNDER)

    assert "1 device, idle for 40.00 % of the time" in cli.printed("idle", str(path))


@pytest.mark.parametrize("value", ["NaN", "sNaN", "-Infinity", "1e999999999", "9" * 400])
@pytest.mark.parametrize("name", ["ts", "dur"])
def test_invalid_times_are_left_out_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    message = run_until_end(
        capsys, "idle", write_odd_trace(tmp_path / "a.pt.trace.json", **{name: value})
    )

    assert "kernels and copies with impossible times" in message or "events that cannot" in message


# Tests of nesting.


def make_nested_json(depth: int, opening: str) -> str:
    closing = {"[": "]", '{"a":': "}"}[opening]
    return opening * depth + "1" + closing * depth


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("position", ["head", "tail", "event", "many events"])
def test_deeply_nested_traces_end_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], position: str, depth: int, opening: str
) -> None:
    path = write_odd_trace(tmp_path / "a.pt.trace.json")
    text, deep = path.read_text(), make_nested_json(depth, opening)
    if position == "head":
        text = text.replace('"schemaVersion"', f'"x": {deep}, "schemaVersion"')
    elif position == "tail":
        text = f'{text.rstrip()[:-1]}, "x": {deep}}}'
    else:
        # A list that is larger than a block uses another decoder.
        filler = '{"ph": "i"}, ' * (200_000 if position == "many events" else 1)
        event = f'{{"ph": "X", "cat": "kernel", "args": {{"x": {deep}}}}}, '
        text = text.replace('"traceEvents": [', f'"traceEvents": [{filler}{event}')
    path.write_text(text)

    run_until_end(capsys, "idle", path)


# Tests of SQLite files.


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


# A query that is not refused runs forever.
@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", ["analyze", "idle", "inspect", "pgle", "nccl"])
@pytest.mark.parametrize("kind", ["view", "virtual table"])
@pytest.mark.parametrize("table", [KERNEL, "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU"])
def test_views_and_virtual_tables_are_refused(
    tmp_path: Path, table: str, kind: str, command: str, cli: CommandLine
) -> None:
    values = ", ".join(f'i AS "{name}"' for name in read_columns(ONE)[table])
    create = {
        "view": f"CREATE VIEW {table} AS {ENDLESS} {values} FROM n",
        "virtual table": f"CREATE VIRTUAL TABLE {table} USING rtree(a, b, c)",
    }
    statements = f"ALTER TABLE {table} RENAME TO other", create[kind]
    path = edit_database(tmp_path / "a.sqlite", *statements, source=ONE)

    assert f"{table} is a view or a virtual table" in cli.refused(command, path, code=1)


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("name", ["_rowid_", "_ROWID_"])
@pytest.mark.parametrize("table", [KERNEL, RUNTIME, "NVTX_EVENTS", "StringIds"])
def test_a_column_that_hides_row_numbers_is_refused(
    tmp_path: Path,
    table: str,
    name: str,
    switch: str,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    monkeypatch.setenv("BUBBLEVIZ_NATIVE", switch)
    added = f'ALTER TABLE {table} ADD COLUMN "{name}" INT'
    path = edit_database(tmp_path / "a.sqlite", added, source=ONE)

    assert f"{table} has a column named _rowid_" in cli.refused("analyze", str(path), code=1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_query(number: signal.Signals) -> None:
    script = (
        "import os, signal, threading\n"
        "from tests.sources import test_garbage\n"
        "signal.signal(signal.SIGTERM, lambda *_: exit(3))\n"
        f"threading.Timer(0.5, os.kill, (os.getpid(), {int(number)})).start()\n"
        "test_garbage.run_endless_query()\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    last = (process.stderr.splitlines() or [""])[-1]
    assert (process.returncode, last) == {
        signal.SIGINT: (-signal.SIGINT, "KeyboardInterrupt"),
        signal.SIGTERM: (3, ""),
    }[number]


def run_endless_query() -> None:
    endless_query = Query(QUERIES, "test/endless", f"{ENDLESS} count(*) FROM n", ("a",), (), {})
    with open_database(str(ONE), QUERIES) as database:
        database.query_rows(endless_query)


# Tests of times that are far apart.


@pytest.mark.parametrize("far_ns", [2**61, 2 * 365 * 86_400 * 10**9])
def test_times_that_are_years_apart_are_refused(
    far_ns: int, tmp_path: Path, cli: CommandLine
) -> None:
    rows = [
        (rank, phase, 1_000 * number, 1_000 * number + 900)
        for rank in range(4)
        for number, phase in enumerate(("F", "F", "BW", "BW", "Optimizer"))
    ]
    rows[0] = (0, "F", -far_ns, 900 - far_ns)
    path = write_tables(tmp_path, rows)["csv"]

    for command in ("analyze", "plan"):
        sentence = cli.refused(command, path, code=1)
        assert "years, so some are damaged; copy" in sentence
