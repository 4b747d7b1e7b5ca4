"""Missing files of a directory, inferred from the numbers of the other files."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.sources.paths import InputFile, find_missing_files
from tests.planting import Planting, plant


def test_a_lost_pipeline_is_reported(tmp_path: Path) -> None:
    plant(Planting(stages=1, replicas=17, files="rank", iterations=1, microbatches=2), tmp_path)
    (tmp_path / "rank7.sqlite").unlink()

    notes = [n for n in bubbleviz.analyze(tmp_path).limitations if n.what == "missing files"]

    assert [n.reason for n in notes] == [
        f"{tmp_path}: file numbers run from 0 to 16 without 7, so the results are incomplete"
    ]


def make_numbered_names(
    *without: int, form: str = "node{:05}.sqlite", count: int = 64
) -> list[str]:
    return [form.format(n) for n in range(count) if n not in without]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (make_numbered_names(25, 7), 2),
        (make_numbered_names(25, form="rank{}_trace2.json.gz"), 1),
        ([], 0),
        (make_numbered_names(), 0),
        (make_numbered_names(0, 63), 0),  # the first and last numbers are unknown
        (make_numbered_names(3, count=8), 0),  # there are too few files
        (make_numbered_names(*range(1, 64, 8)), 0),  # too many files are missing
        ([f"{10**15 * n}.json.gz" for n in range(64)], 0),  # the numbers look like timestamps
        ([*make_numbered_names(3), "other.sqlite"], 0),
        ([f"a{n}-{n}.sqlite" for n in range(64) if n != 3], 0),  # several numbers vary
    ],
)
def test_gaps_in_numbers_are_counted(names: list[str], expected: int) -> None:
    notes = find_missing_files([InputFile(f"/runs/{name}", named=False) for name in names])

    assert sum(note.count for note in notes) == expected
    assert find_missing_files([InputFile(f"/runs/{name}", named=True) for name in names]) == ()
