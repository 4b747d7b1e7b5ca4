"""GPUs that profiles list, but on which no profile of the run recorded work."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import bubbleviz
from tests.support.command_line import CommandLine
from tests.support.needs import get_real_file
from tests.support.nsys_exports import C, K, write_profile


def _write(folder: Path, name: str, pid: int, device: int, *, by_process: bool) -> Path:
    """Write a profile of one process, with four GPUs of the host and two kernels on one of them."""
    kernels = [K(start, start + 10, start, pid=pid, device=device) for start in (10, 40)]
    calls = [C(start - 5, start - 4, start, pid=pid) for start in (10, 40)]
    path = write_profile(folder, kernels, calls, name=name)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE IF EXISTS TARGET_INFO_GPU")
        database.execute("DROP TABLE IF EXISTS TARGET_INFO_CUDA_DEVICE")
        database.execute(
            "CREATE TABLE TARGET_INFO_GPU (id INTEGER, cuDevice INTEGER, name TEXT, uuid TEXT, "
            "busLocation TEXT)"
        )
        gpus = [(n, n, "H100", f"0000-{n + 1}", f"0000:0{n}:00.0") for n in range(4)]
        database.executemany("INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?, ?, ?)", gpus)
        if by_process:
            database.execute(
                "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER, "
                "uuid TEXT, numMultiprocessors INTEGER)"
            )
            rows = [(n, n, pid, f"0000-{n + 1}", 132) for n in range(4)]
            database.executemany("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?, ?, ?)", rows)
    return path


def _find_reasons(report: bubbleviz.IdleReport) -> list[str]:
    return [note.reason for note in report.limitations if note.what == "GPUs without work"]


@pytest.mark.parametrize("by_process", [False, True])
def test_gpus_without_work_are_named_once_per_host(tmp_path: Path, *, by_process: bool) -> None:
    files = [_write(tmp_path, f"{n}.sqlite", 100 + n, n, by_process=by_process) for n in range(2)]

    assert _find_reasons(bubbleviz.idle(files[0])) == [
        "host lists 4 GPUs, and no kernel or copy was recorded on GPUs 1, 2, 3"
    ]
    assert _find_reasons(bubbleviz.idle(files)) == [
        "host lists 4 GPUs, and no kernel or copy was recorded on GPUs 2, 3"
    ]


def test_gpus_that_no_process_can_use_are_named(tmp_path: Path) -> None:
    # CUDA_VISIBLE_DEVICES gave GPU n to process n, under the number 0.
    files = [_write(tmp_path, f"{n}.sqlite", 100 + n, 0, by_process=True) for n in range(2)]
    for number, path in enumerate(files):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("DELETE FROM TARGET_INFO_CUDA_DEVICE WHERE gpuId != ?", (number,))
            database.execute("UPDATE TARGET_INFO_CUDA_DEVICE SET cudaId = 0")

    assert _find_reasons(bubbleviz.idle(files[1])) == [
        "host lists 4 GPUs, and no kernel or copy was recorded on GPUs 0, 2, 3"
    ]
    assert _find_reasons(bubbleviz.idle(files)) == [
        "host lists 4 GPUs, and no kernel or copy was recorded on GPUs 2, 3"
    ]


def test_nothing_is_said_if_processes_share_a_number(tmp_path: Path) -> None:
    # CUDA_VISIBLE_DEVICES may have given different GPUs the number 0.
    files = [_write(tmp_path, f"{n}.sqlite", 100 + n, 0, by_process=False) for n in range(2)]
    assert not _find_reasons(bubbleviz.idle(files))

    files = [_write(tmp_path, f"{n}.sqlite", 100 + n, 0, by_process=True) for n in range(2)]
    assert len(_find_reasons(bubbleviz.idle(files))) == 1


@pytest.mark.real_files
@pytest.mark.parametrize(
    ("name", "numbers"),
    [("rodinia_report3", "1, 2, 3, 4, 5, 6"), ("pipit_cloverleaf", "1, 2, 3")],
)
def test_real_profiles_name_their_gpus(name: str, numbers: str, cli: CommandLine) -> None:
    _, _, stderr = cli("idle", get_real_file(f"nsys/{name}.sqlite"))
    assert f"no kernel or copy was recorded on GPUs {numbers}\n" in stderr
