"""Why iterations are incomplete: the capture cut them, or names do not match."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import bubbleviz
from tests.planting import Planting, plant

UNMATCHED = "iterations in which a forward has no backward of its number"
CUT = "iterations cut by the capture"


def renamed(folder: Path, names: dict[str, str], planting: Planting) -> Path:
    """Return a planted run in which some ranges have other names."""
    plant(planting, folder)
    run = next(folder.glob("*.sqlite"))
    with closing(sqlite3.connect(run)) as database, database:
        for name, other in names.items():
            database.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = ?", (other, name))
    return run


@pytest.mark.parametrize("number", ["2000000000", "123456789012345"])
def test_large_numbers_of_microbatches_are_numbers(number: str, tmp_path: Path) -> None:
    names = {"F7.0.0": f"F{number}.0.0", "B7.0.0": f"B{number}.0.0"}
    report = bubbleviz.analyze(renamed(tmp_path, names, Planting()))
    assert report.summary.bubble_ratio["schedule"].mean == pytest.approx(3 / 11)
    assert int(report.operations.microbatch.max()) == int(number)


@pytest.mark.parametrize("name", ["F0.0.0", "F3.0.0", "F7.0.0"])
@pytest.mark.parametrize("other", ["F2000000000.0.0", f"F{'9' * 20}.0.0"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_a_forward_without_a_backward_of_its_number_is_not_cut(
    name: str, other: str, iterations: int, tmp_path: Path
) -> None:
    planting = Planting(iterations=iterations)
    report = bubbleviz.analyze(renamed(tmp_path, {name: other}, planting))
    notes = {note.what: note.count for note in report.limitations}
    if len(other) < 20:
        assert notes.get(UNMATCHED) == iterations
        assert CUT not in notes


def test_a_cut_iteration_is_called_cut(tmp_path: Path) -> None:
    plant(Planting(iterations=3, cut_ns=45_000_000), tmp_path)
    notes = {note.what for note in bubbleviz.analyze(tmp_path).limitations}
    assert CUT in notes
    assert UNMATCHED not in notes
