"""Profiles of ROCm's tools: a run gives the same report in every format.

Damage is reported.
"""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import bubbleviz
from bubbleviz.cli.app import main
from bubbleviz.errors import ProfileError
from bubbleviz.native import library as native
from bubbleviz.progress import unwatched
from bubbleviz.sources.readers import find_reader
from bubbleviz.sources.rocm.rocpd import read_recording
from bubbleviz.sources.sqlite import database
from tests.planting import plant
from tests.planting.options import Planting
from tests.support import planted_runs
from tests.support.command_line import CommandLine
from tests.support.edited_databases import edit_database, read_columns
from tests.support.processes import Process, read_processes
from tests.support.rocm_profiles import SECRET, write_rocpd, write_rpd

FULL = replace(
    planted_runs.FULL, stages=4, microbatches=4, text="text", double_calls=False, overhead=False
)


def write_merged(export: Path, folder: Path, **how: Any) -> list[Path]:
    return [write_rocpd(folder / "merged.db", read_processes(export), **how)]


def write_apart(export: Path, folder: Path) -> list[Path]:
    return [write_rocpd(folder / f"{p.pid}_results.db", [p]) for p in read_processes(export)]


#: Functions that convert the export of one node to a profile of each kind.
DOORS: dict[str, Callable[[Path, Path], list[Path]]] = {
    "a merge of processes": write_merged,
    "SQLite": write_merged,
    "one file per process": write_apart,
    "ROCm 6.4": partial(write_merged, release="6.4"),
    "correlation ids": partial(write_merged, link="correlation_id"),
    "tables without GUIDs": partial(write_merged, suffixed=False),
    "schema 4": lambda export, folder: [
        convert_to_tracks(path) for path in write_apart(export, folder)
    ],
    "rpd": lambda export, folder: [write_rpd(folder / "trace.rpd", read_processes(export))],
}


DAY_NS = 24 * 3600 * 10**9


def find_table(path: Path, base: str) -> str:
    """Return the table whose name starts with ``base``, in a file of one process."""
    (table_name,) = (name for name in read_columns(path) if name.startswith(f"{base}_"))
    return table_name


def convert_to_tracks(path: Path) -> Path:
    """Rewrite a single-process file in schema 4, with tracks instead of threads, and categories."""
    views = "SELECT name FROM sqlite_master WHERE type = 'view'"
    with closing(sqlite3.connect(path)) as db:
        edit_database(path, *(f'DROP VIEW "{name}"' for (name,) in db.execute(views)))
    region, dispatch, copy = (
        find_table(path, f"rocpd_{name}") for name in ("region", "kernel_dispatch", "memory_copy")
    )
    strings, event = find_table(path, "rocpd_string"), find_table(path, "rocpd_event")
    end = region.removeprefix("rocpd_region")
    tracks = f"rocpd_track{end}"
    return edit_database(
        path,
        f'CREATE TABLE "{tracks}" (id INTEGER PRIMARY KEY, guid TEXT, pid, tid, agent_id)',
        f'INSERT INTO "{tracks}" (pid, tid) SELECT DISTINCT pid, tid FROM "{region}"',
        f'INSERT INTO "{tracks}" (pid, agent_id) SELECT DISTINCT pid, agent_id FROM "{dispatch}"',
        f'INSERT INTO "{tracks}" (pid) SELECT DISTINCT pid FROM "{copy}"',
        f'CREATE TABLE "rocpd_info_category{end}" (id INTEGER PRIMARY KEY, name TEXT)',
        f'INSERT INTO "rocpd_info_category{end}" SELECT id + 500, string FROM "{strings}" '
        f'WHERE id IN (SELECT category_id FROM "{event}")',
        f'UPDATE "{event}" SET category_id = category_id + 500',
        *(
            statement
            for own, same in (
                (region, "pid = t.pid AND track.tid = t.tid"),
                (dispatch, "pid = t.pid AND track.agent_id = t.agent_id"),
                (copy, "pid = t.pid AND track.tid IS NULL AND track.agent_id IS NULL"),
            )
            for statement in (
                f'ALTER TABLE "{own}" ADD COLUMN track_id INTEGER',
                f'UPDATE "{own}" AS t SET track_id = '
                f'(SELECT track.id FROM "{tracks}" AS track WHERE track.{same})',
                f'ALTER TABLE "{own}" DROP COLUMN pid',
                *([f'ALTER TABLE "{own}" DROP COLUMN agent_id'] if own == dispatch else []),
                *([f'ALTER TABLE "{own}" DROP COLUMN tid'] if own != copy else []),
            )
        ),
    )


def render_document(folder: Path, *paths: Path | str) -> dict[str, Any]:
    target = folder / "report.json"
    assert main(["analyze", *map(str, paths), "--json", str(target), "--force"]) == 0
    report: dict[str, Any] = json.loads(target.read_text())
    return report


#: Columns of the timeline that contain ids of names.
NAMES = {"name", "call", "around"}
#: Keys that describe the profile, not the run.
LABELS = {"path", "host", "format", "nsys_version", "schema_version", "session_utc_ns"}
#: GPU fields that nsys records and ROCm does not.
OF_NSYS = {"uuid", "gpu", "pci"}


def make_comparable(report: dict[str, Any], exports: int) -> dict[str, Any]:
    """Return a report without profile labels, and with times relative to the first iteration."""
    start_ns = report["iterations"][0]["start_ns"]

    def without(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            left_out = LABELS | OF_NSYS | {"label", "profile", "profiles"}
            return {k: without(v, k) for k, v in value.items() if k not in left_out}
        if isinstance(value, list):
            return [without(each, key) for each in value]
        is_time = key in {"start_ns", "end_ns"} and isinstance(value, int)
        return value - start_ns if is_time else value

    comparable_report: dict[str, Any] = without(
        {k: v for k, v in report.items() if k not in {"timeline", "methods"}}
    )
    timeline = report["timeline"]
    names = timeline["names"]
    for name, table in timeline["tables"].items():
        columns = {
            key: [names[n] if n is not None else "" for n in column] if key in NAMES else column
            for key, column in table.items()
        }
        comparable_report[f"timeline of {name}"] = columns
    comparable_report["sums"] = {
        name: sum(profile[name] for profile in report["profiles"])
        for name in report["profiles"][0]
        if name.endswith(("kernels", "_ns")) and not name.startswith(("clock", "session"))
    }
    comparable_report["profiles"] = len(report["profiles"]) >= exports
    return comparable_report


@cache
def planted(servers: int = 1) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        truth = plant(FULL if servers == 1 else make_two_nodes(), Path(folder))
        return {file.path: (Path(folder) / file.path).read_bytes() for file in truth.files}


def make_two_nodes() -> Planting:
    return Planting(
        stages=4,
        microbatches=8,
        iterations=3,
        transfer_ns=20_000,
        jitter=0.05,
        servers=2,
        clock_error_ns=(0, 3_000_000),
        iteration_ranges=True,
    )


def copy_exports(folder: Path, servers: int = 1) -> list[Path]:
    paths = []
    for name, content in planted(servers).items():
        paths.append(folder / name)
        paths[-1].write_bytes(content)
    return paths


@pytest.mark.parametrize("door", DOORS)
def test_every_rocm_format_gives_the_report_of_nsys(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.SWITCH, "0" if door == "SQLite" else "1")
    (export,) = copy_exports(tmp_path)
    files = DOORS[door](export, tmp_path / "rocm" if door != "rpd" else tmp_path)

    then = make_comparable(render_document(tmp_path, export), 1)
    now = make_comparable(render_document(tmp_path, *files), 1)
    for report in (then, now):
        for rank in report["ranks"]:
            rank.pop("host", None)
        for outlier in report["outliers"]:
            del outlier["name"]  # It contains the host, which rpd does not record.

    assert now == then
    assert then["restrictions"] == []
    assert bubbleviz.analyze(files).limitations == ()


def test_a_folder_of_hosts_is_read_as_rocprofv3_writes_it(tmp_path: Path) -> None:
    for export in copy_exports(tmp_path, servers=2):
        for process in read_processes(export):
            path = tmp_path / "out" / process.host / f"{process.pid}_results.db"
            write_rocpd(path, [process])

    report = bubbleviz.analyze([tmp_path / "out"])

    assert [profile.host for profile in report.profiles] == ["node0"] * 2 + ["node1"] * 2


def test_nodes_that_started_at_other_times_are_aligned(tmp_path: Path) -> None:
    nodes = copy_exports(tmp_path, servers=2)
    files = [write_rocpd(tmp_path / f"{n}.db", read_processes(e)) for n, e in enumerate(nodes)]

    then, now = bubbleviz.analyze(nodes), bubbleviz.analyze(files)

    mean = now.summary.bubble_ratio["schedule"].mean
    nsys = then.summary.bubble_ratio["schedule"].mean
    assert mean is not None
    assert nsys is not None
    assert abs(mean - nsys) < 1e-3
    assert now.profiles[1].clock_uncertainty_ns is not None
    assert now.summary.bubble_ratio["stage"] == then.summary.bubble_ratio["stage"]


def test_two_machines_with_one_name_have_two_clocks(tmp_path: Path) -> None:
    (export,) = copy_exports(tmp_path)
    files = [
        write_rocpd(tmp_path / f"{process.pid}_results.db", [process], machine=str(process.pid))
        for process in read_processes(export)
    ]

    uncertain = [profile.clock_uncertainty_ns for profile in bubbleviz.analyze(files).profiles]

    assert uncertain[0] == 0
    assert all(value != 0 for value in uncertain[1:])


def test_a_merge_of_two_hosts_is_refused(tmp_path: Path) -> None:
    processes = [p for export in copy_exports(tmp_path, servers=2) for p in read_processes(export)]
    path = write_rocpd(tmp_path / "merged.db", processes)

    with pytest.raises(ProfileError, match=r"contains processes from 2 hosts \(node0, node1\)"):
        bubbleviz.analyze([path])


@pytest.mark.parametrize("suffixed", [True, False])
def test_a_merge_is_opened_once_however_many_processes_it_holds(
    suffixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite reads the schema when it opens a file.
    # The schema grows with the number of processes.
    (path,) = write_merged(copy_exports(tmp_path)[0], tmp_path, suffixed=suffixed)
    (single_process, *_) = write_apart(copy_exports(tmp_path)[0], tmp_path)
    connect = Mock(wraps=sqlite3.connect)
    monkeypatch.setattr(sqlite3, "connect", connect)
    counts = []
    for file in (single_process, path):
        connect.reset_mock()
        read_recording(str(file), "rocpd", unwatched)
        counts.append(connect.call_count)

    assert counts == [1, 1]


def test_twice_the_processes_in_one_table_take_twice_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_counts: list[int] = []

    def counted(_: list[BaseException]) -> Iterator[bool]:
        while True:
            step_counts[-1] += 1
            yield False

    monkeypatch.setattr(database, "_iter_interrupts", counted)
    monkeypatch.setattr(database, "_STEPS", 100)
    for number in (40, 80):
        step_counts.append(0)
        processes = [
            Process("node0", pid, [(pid, pid + 9, 5, 1, "hipLaunchKernel")], threads=[(5, "main")])
            for pid in range(1, number + 1)
        ]
        path = write_rocpd(tmp_path / f"{number}.db", processes, suffixed=False)
        recording = read_recording(str(path), "rocpd", unwatched)
        assert sorted(thread.thread >> 24 for thread in recording.threads) == [
            p.pid for p in processes
        ]

    assert step_counts[1] < 2.3 * step_counts[0]


def test_processes_with_one_id_in_two_containers_stay_separate(tmp_path: Path) -> None:
    (export,) = copy_exports(tmp_path)
    processes = read_processes(export)
    for process in processes:
        process.pid, offset = 1, process.pid - 1
        process.calls = [(s, e, t - offset, c, n) for s, e, t, c, n in process.calls]
        process.ranges = [(s, e, t - offset, n, p) for s, e, t, n, p in process.ranges]
        process.threads = [(t - offset, n) for t, n in process.threads]

    report = bubbleviz.analyze([write_rocpd(tmp_path / "merged.db", processes)])
    then = bubbleviz.analyze([export])

    assert [rank.pid for rank in report.ranks] == [1] * 4
    assert report.summary.bubble_ratio == then.summary.bubble_ratio


def test_every_command_reads_rocm_profiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (export,) = copy_exports(tmp_path)
    path = str(DOORS["a merge of processes"](export, tmp_path)[0])
    output_of_command = {}
    for command in ("analyze", "inspect", "idle", "nccl", "compare", ""):
        files = [path, path] if command == "compare" else [path]
        code = main([command, *files] if command else files)
        out, err = capsys.readouterr()
        output_of_command[command] = out
        assert code == 0, err
        assert "Traceback" not in err

    assert "rocpd, schema 3" in output_of_command["inspect"]
    assert "HIP API calls" in output_of_command["inspect"]
    assert "ROCTx ranges" in output_of_command["inspect"]
    assert "MI300X" in output_of_command["inspect"]
    assert "SendRecv" in output_of_command["nccl"]
    for text in output_of_command.values():
        assert "nsys" not in text
        assert "Nsight" not in text
        assert "CUDA" not in text
        assert "NVTX" not in text


@pytest.mark.parametrize("command", ["analyze", "inspect", "idle", "nccl"])
@pytest.mark.parametrize("door", ["a merge of processes", "rpd"])
def test_secrets_are_never_shown(
    command: str, door: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (export,) = copy_exports(tmp_path)
    path = DOORS[door](export, tmp_path)[0]
    damaged = tmp_path / f"damaged{path.suffix}"
    damaged.write_bytes(path.read_bytes())
    for name in read_columns(damaged):
        if name.startswith(("rocpd_kernel_dispatch", "rocpd_op")) and "ops" not in name:
            edit_database(damaged, f"UPDATE \"{name}\" SET start = 'x'")
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    for file in (path, damaged):
        output_options = ["-o", str(outputs / f"{file.stem}.json")] if command != "inspect" else []
        main([command, str(file), *output_options])
    output_bytes = b"".join(file.read_bytes() for file in outputs.iterdir())

    output = capsys.readouterr()
    assert SECRET not in output.out + output.err
    assert SECRET.encode() not in output_bytes
    assert SECRET.encode() in path.read_bytes() or door == "rpd"


def write_first_process(folder: Path) -> Path:
    """Write a profile that contains only the first process of the run."""
    (export,) = copy_exports(folder)
    return write_rocpd(folder / "1_results.db", read_processes(export)[:1])


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("rocpd_kernel_dispatch", "no kernels were recorded"),
        ("rocpd_region", "no HIP API calls were recorded"),
    ],
)
@pytest.mark.parametrize("statement", ['DELETE FROM "{}"', 'DROP TABLE "{}"'])
def test_what_was_not_recorded_has_a_remedy(
    base: str, expected: str, statement: str, tmp_path: Path, cli: CommandLine
) -> None:
    path = write_first_process(tmp_path)
    edit_database(path, statement.format(find_table(path, base)))

    refusal = cli.refused("analyze", path, code=1)
    assert expected in refusal
    assert "rocprofv3 --hip-trace --kernel-trace" in refusal
    assert "nsys" not in refusal
    assert expected in " ".join(cli.printed("inspect", path).split())


@pytest.mark.parametrize(
    "extra", ["'{}'", "''", "'{broken'", "'[1]'", "x'00'", "'{\"message\": 3}'"]
)
def test_texts_that_are_not_json_are_not_names(extra: str, tmp_path: Path) -> None:
    path = write_first_process(tmp_path)
    edit_database(
        path, f'UPDATE "{find_table(path, "rocpd_event")}" SET extdata = {extra} WHERE id % 5 = 0'
    )

    report = bubbleviz.analyze([path])

    if "message" not in extra:
        assert [n.what for n in report.limitations if "names of ranges" in n.what]
    assert report.ranks


@pytest.mark.parametrize(
    "extra",
    [
        "REPLACE(extdata, ': \"', ':\"')",
        "SUBSTR(extdata, 1, 13) || '\\u' || PRINTF('%04x', UNICODE(SUBSTR(extdata, 14))) "
        "|| SUBSTR(extdata, 15)",
        "REPLACE(extdata, '{', '{\"before\": 1, ')",
        "CAST(extdata AS BLOB)",
    ],
)
def test_texts_are_read_however_their_json_is_written(extra: str, tmp_path: Path) -> None:
    path = write_first_process(tmp_path)
    then = render_document(tmp_path, path)
    changed = f'UPDATE "{find_table(path, "rocpd_event")}" SET extdata = {extra}'
    edit_database(path, f"{changed} WHERE id % 3 = 0 AND extdata GLOB '*message*'")

    assert render_document(tmp_path, path) == then


def test_odd_texts_are_the_same_without_the_compiled_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_first_process(tmp_path)
    message = "JSON_EXTRACT(extdata, '$.message')"
    for number, extra in enumerate(
        (
            f"JSON_OBJECT('message', {message} || ' é')",
            f"JSON_OBJECT('message', {message} || CHAR(10, 9, 1, 127, 34, 92))",
            f"CAST('{{\"message\": \"' || {message} || x'e9' || '\"}}' AS TEXT)",
            f"'{{\"message\": \"' || {message} || '\\u0000\"}}'",
            f'\'{{"message": "\' || {message} || \'", "message": "F"}}\'',
            f"extdata || CHAR(0) || {message}",
            '\'{"message": ""}\'',
            "3",
        )
    ):
        changed = f'UPDATE "{find_table(path, "rocpd_event")}" SET extdata = {extra}'
        edit_database(path, f"{changed} WHERE id % 23 = {number} AND extdata GLOB '*message*'")
    outputs = []
    for switch in "01":
        monkeypatch.setenv(native.SWITCH, switch)
        render_document(tmp_path, path)
        outputs.append((tmp_path / "report.json").read_bytes())

    assert outputs[0] == outputs[1]


def test_rccl_calls_name_what_their_kernels_do(tmp_path: Path) -> None:
    (export,) = copy_exports(tmp_path)
    processes = read_processes(export)
    for process in processes:
        # RCCL uses a single kernel for all operations.
        process.kernels = [
            (*row[:5], "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)")
            if "nccl" in row[5]
            else row
            for row in process.kernels
        ]
        correlations = {row[3] for row in process.kernels if "nccl" in row[5]}
        process.calls += [
            (start - 5, end + 5, tid, -correlation, "ncclSend")
            for start, end, tid, correlation, _ in process.calls
            if correlation in correlations
        ]
    path = write_rocpd(tmp_path / "rccl.db", processes)

    target = tmp_path / "nccl.csv"
    assert main(["nccl", str(path), "-o", str(target)]) == 0

    rows = list(csv.DictReader(target.read_text().splitlines()))
    assert {row["name"] for row in rows} == {"Send"}


def test_newer_traces_have_a_separate_table_of_range_texts(tmp_path: Path) -> None:
    (export,) = copy_exports(tmp_path)
    path = write_rpd(tmp_path / "trace.rpd", read_processes(export))
    then = make_comparable(render_document(tmp_path, path), 1)
    edit_database(
        path,
        "CREATE TABLE rocpd_ustring (id INTEGER PRIMARY KEY, string TEXT)",
        "INSERT INTO rocpd_ustring SELECT id + 7, string FROM rocpd_string",
        "UPDATE rocpd_api SET args_id = args_id + 7",
    )

    assert make_comparable(render_document(tmp_path, path), 1) == then


def test_functions_that_rocprof_sys_records_are_ranges(tmp_path: Path) -> None:
    path = write_first_process(tmp_path)
    strings, event = find_table(path, "rocpd_string"), find_table(path, "rocpd_event")
    region = find_table(path, "rocpd_region")
    edit_database(
        path,
        f"INSERT INTO \"{strings}\" (id, string) VALUES (900, 'host'), (901, 'train_step')",
        f'INSERT INTO "{event}" (id, category_id, stack_id) VALUES (99999, 900, 77777)',
        f'INSERT INTO "{region}" (id, nid, pid, tid, start, end, name_id, event_id) '
        f'SELECT 77777, nid, pid, tid, start, end, 901, 99999 FROM "{region}" LIMIT 1',
    )

    with find_reader(str(path)).open_file(str(path), 1, unwatched) as file:
        profile = file.read(("train_*",))

    assert profile.ranges.names[int(profile.ranges.name_id[0])] == "train_step"
    assert "train_step" not in profile.calls.names(np.arange(5))


def test_traces_with_one_name_come_from_separate_nodes(tmp_path: Path) -> None:
    run = Planting(schedule="zb-v", replicas=2, jitter=0.2, servers=2, iteration_ranges=True)
    plant(run, tmp_path)
    distinct_names, equal_names = [], []
    for number in range(2):
        processes = read_processes(tmp_path / f"node{number}.sqlite")
        for process in processes if number else ():
            for rows in (process.calls, process.ranges, process.kernels):
                rows[:] = [(row[0] + DAY_NS, row[1] + DAY_NS, *row[2:]) for row in rows]
        folder = tmp_path / f"{number}"
        folder.mkdir()
        distinct_names.append(write_rpd(tmp_path / f"node{number}.rpd", processes))
        # runTracer.sh uses this file name by default.
        equal_names.append(write_rpd(folder / "trace.rpd", processes))

    actual, expected = bubbleviz.analyze(equal_names), bubbleviz.analyze(distinct_names)

    ratios = [
        [iteration.ratios for iteration in report.iterations] for report in (actual, expected)
    ]
    assert ratios[0] == ratios[1]
