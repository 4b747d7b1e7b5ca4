"""Why iterations are incomplete: the capture cut them, or names do not match."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from shutil import copy

import pytest

import bubbleviz
from bubbleviz.render.json_document import document
from bubbleviz.report.methods import methods
from bubbleviz.report.report import Report
from bubbleviz.schedules.known import schedules
from tests.planting import Planting, plant
from tests.support.places import FIXTURES
from tests.support.report_texts import text_of

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


# Operations that some ranks lack: counted, the ratio marked and bounded; none where all ran.


LACKING = "operations that some ranks lack"
MARK = "! (some ranks lack operations)"


def _without(folder: Path, *names: str, rank: int | None = None) -> Report:
    """Return the report on the 1F1B example without the ranges of these names, on one rank."""
    path = folder / "node0.sqlite"
    copy(FIXTURES / "1f1b" / "node0.sqlite", path)
    with closing(sqlite3.connect(path)) as database, database:
        opened = "SELECT DISTINCT globalTid FROM NVTX_EVENTS WHERE text = 'F0.0.0' ORDER BY 1"
        threads = [thread for (thread,) in database.execute(opened)]
        for name in names:
            for thread in threads if rank is None else [threads[rank]]:
                database.execute(
                    "DELETE FROM NVTX_EVENTS WHERE text = ? AND globalTid = ?", (name, thread)
                )
    return bubbleviz.analyze(path)


@pytest.mark.parametrize(
    ("names", "rank", "count"),
    [
        (("F3.0.0",), 1, 3),
        (("F7.0.0",), 3, 3),
        (("F3.0.0", "B3.0.0"), 1, 6),
        (("F3.0.0", "F5.0.0", "B5.0.0"), 2, 9),
        (("F3.0.0",), None, 12),
    ],
)
def test_lacking_operations_are_counted_and_bound_the_ratio(
    names: tuple[str, ...], rank: int | None, count: int, tmp_path: Path
) -> None:
    report = _without(tmp_path, *names, rank=rank)

    (note,) = (note for note in report.limitations if note.what == LACKING)
    assert note.count == count
    if rank is not None:
        assert note.reason.endswith(f"on node0 GPU {rank} ({count})")
    mean, low = report.summary.bubble_ratio["schedule"].mean, report.lower_bound("schedule")
    assert mean is not None
    assert low is not None
    assert low <= 3 / 11 + 0.001 < mean
    head = " ".join(text_of(report).split("\n\n")[0].split())
    assert MARK in head
    assert "with compute outside every operation counted as work" in head
    assert "; some ranks lack operations that others ran" in methods(report)
    assert LACKING in [entry["what"] for entry in document(report)["limitations"]]


def test_all_that_no_rank_ran_is_not_lacking(tmp_path: Path) -> None:
    report = _without(tmp_path, "F3.0.0", "B3.0.0")

    assert not report.operations_lacking


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_nothing_is_lacking_in_a_whole_run(name: str) -> None:
    report = bubbleviz.analyze(FIXTURES / name)

    assert not report.operations_lacking
    assert MARK not in text_of(report)


@pytest.mark.parametrize("schedule", [s.name for s in schedules()])
def test_nothing_is_lacking_in_any_schedule(schedule: str, tmp_path: Path) -> None:
    plant(Planting(schedule=schedule), tmp_path)

    assert not bubbleviz.analyze(tmp_path).operations_lacking


def test_cut_iterations_lack_nothing(tmp_path: Path) -> None:
    plant(Planting(iterations=3, cut_ns=45_000_000), tmp_path)

    assert not bubbleviz.analyze(tmp_path).operations_lacking
