"""Signals leave no temporary file behind, and the next run removes what kill -9 left."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from bubbleviz.cli.outputs import write_outputs
from bubbleviz.model import files
from tests.support.command_line import started
from tests.support.places import FIXTURES

#: The command line, which a signal hits when a complete file is about to take its name.
PROGRAM = """
import os, sys
from bubbleviz.cli import outputs
from bubbleviz.cli.app import main

def place(*_, **__):
    os.kill(os.getpid(), {number})

outputs._place_file = place
sys.exit(main(sys.argv[1:]))
"""


def hit(number: signal.Signals, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by a signal while it writes into the folder."""
    program, report = PROGRAM.format(number=int(number)), str(folder / "report.json")
    return started(["-c", program, "analyze", str(FIXTURES / "1f1b"), "--json", report])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    done = hit(number, tmp_path)

    assert list(tmp_path.iterdir()) == []
    assert done.stderr == "bubbleviz: interrupted; results are incomplete, run again\n"
    assert done.returncode == 128 + number


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    done = hit(signal.SIGKILL, tmp_path)
    assert done.returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".bubbleviz-")

    write_outputs({str(tmp_path / "other.txt"): "text"}, force=False)

    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_files_of_running_processes_and_of_others_stay(tmp_path: Path) -> None:
    _, mine = files.create(tmp_path)
    foreign = [".bubbleviz-00000000-999999999-x", ".bubbleviz-", ".bubbleviz-x-y-z", "bubbleviz"]
    for name in foreign:
        (tmp_path / name).touch()

    _, second = files.create(tmp_path)

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {Path(mine).name, Path(second).name, *foreign}


def test_the_next_run_removes_the_folder_that_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os, pathlib\n"
        "from bubbleviz.model.files import temporary_folder\n"
        "with temporary_folder() as folder:\n"
        "    pathlib.Path(folder, 'export.sqlite').write_text('large')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    started(["-c", program], TMPDIR=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    kept = ["bubbleviz-abcdefgh", "bubbleviz-00000000-999999999-x", "other"]
    for name in kept:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with files.temporary_folder() as first, files.temporary_folder() as second:
        names = {path.name for path in tmp_path.iterdir()}

    assert names == {Path(first).name, Path(second).name, *kept}
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
