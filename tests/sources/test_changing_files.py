"""Arrow files that change during reading lead to a single error message."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.planting import Planting, plant
from tests.support.columnar_exports import ARROW, write_columnar
from tests.support.operation_tables import write_columns
from tests.support.places import CHECKOUT

#: Program that runs a command, and damages every Arrow file while the command reads the file.
_PROGRAM = """
import sys
from pathlib import Path
from bubbleviz.sources.nsys import columnar_export
from bubbleviz.sources.operations import arrow
from bubbleviz.cli.app import main

moment, damage, folder, command, path = sys.argv[1:]

def damage_files():
    for file in Path(folder).rglob("*.arrow"):
        size = file.stat().st_size
        with file.open("r+b") as opened:
            if damage == "cut":
                opened.truncate(size // 3)
            else:
                opened.write(bytes(size))

class Reader:
    def __init__(self, reader):
        self._reader = reader
        self.schema = reader.schema
    def read_all(self):
        if moment == "opened":
            damage_files()
        table = self._reader.read_all()
        if moment == "read":
            damage_files()
        return table

open_ipc = arrow.open_ipc
for module in (arrow, columnar_export):
    module.open_ipc = lambda *given: Reader(open_ipc(*given))
sys.exit(main([command, path]))
"""
ROWS: dict[str, Sequence[Any]] = {
    "rank": [0, 0, 0, 0],
    "phase": ["F", "F", "B", "B"],
    "microbatch": [0, 1, 0, 1],
    "start_ns": [0, 10, 20, 40],
    "end_ns": [10, 20, 40, 60],
}


@pytest.fixture(scope="module", params=["table", "directory"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of operations, or the folder of tables of an export."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "table":
        columns: dict[str, Sequence[Any]] = {
            name: [*values] * 2000 for name, values in ROWS.items()
        }
        columns["iteration"] = [row // 4 for row in range(8000)]
        return write_columns(folder, columns)["arrow"]
    plant(Planting(stages=2, microbatches=4), folder)
    (export,) = folder.glob("*.sqlite")
    return write_columnar(export, folder, ARROW)


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
@pytest.mark.parametrize("moment", ["opened", "read"])
def test_arrow_files_may_change_while_they_are_read(
    source: Path, moment: str, damage: str, tmp_path: Path
) -> None:
    path = tmp_path / source.name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)

    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, moment, damage, str(tmp_path), "analyze", str(path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode in (0, 1), ran.stderr
    assert "Traceback" not in ran.stderr
    if ran.returncode == 1:
        (sentence,) = ran.stderr.splitlines()
        assert sentence.startswith(f"bubbleviz: {path}: ")
    if moment == "read" and source.is_file():
        assert ran.returncode == 0
