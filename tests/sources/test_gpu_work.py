"""Columns that come in blocks: in as few bits as they need, and never in fewer."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.errors import ProfileError
from bubbleviz.model.columns import Ints, widened
from bubbleviz.model.profile import UNCORRELATED, correlations
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.nsys_exports import C, K, R, profile


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("code", "width"),
    [(0, 16), (2**15 - 1, 16), (2**15, 32), (2**31 - 1, 32), (2**31, 64)],
)
def test_a_column_is_as_wide_as_its_largest_identifier(code: int, width: int) -> None:
    column = widened(np.array([-1, 3], np.int16), ints(code))
    column[0] = code

    assert column.dtype.itemsize * 8 == width
    assert column.tolist() == [code, 3]


def test_more_names_than_16_bits_hold_keep_apart(tmp_path: Path) -> None:
    count = 2**15 + 3
    kernels = [K(10 * i + 5, 10 * i + 9, i, name=f"kernel {i}") for i in range(count)]
    calls = [C(10 * i, 10 * i + 1, i) for i in range(count)]
    ranges = [R(0, 30, "F0.0.0"), R(40, 60, "B0.0.0")]
    report = bubbleviz.analyze(profile(tmp_path, kernels, calls, ranges))

    names = {kernel.name for kernel in report.unattributed_kernels}
    assert report.profiles[0].kernels == count
    assert len(names) == 5
    assert all(kernel.count == 1 for kernel in report.unattributed_kernels)


def test_correlation_ids_have_32_bits() -> None:
    ids = ints(-1, 0, 2**31, UNCORRELATED - 1, UNCORRELATED, 2**40)
    assert correlations(ids).tolist() == [
        *(UNCORRELATED, 0, 2**31, UNCORRELATED - 1, UNCORRELATED, UNCORRELATED),
    ]


@pytest.mark.parametrize("column", ["start", "end", "globalTid", "text"])
def test_ranges_of_another_type_are_refused(column: str, tmp_path: Path) -> None:
    plant(Planting(stages=2), tmp_path)
    file = tmp_path / "node0.sqlite"
    for value in ("x'00ff'", "'late'", "1e30"):
        if column == "text" and value != "x'00ff'":
            continue
        with closing(sqlite3.connect(file)) as db:
            db.execute(f"UPDATE NVTX_EVENTS SET \"{column}\" = {value} WHERE text GLOB 'F1.*'")
            db.commit()
        if column != "text":
            with pytest.raises(ProfileError, match="damaged"):
                bubbleviz.analyze(file)


def test_a_range_that_cannot_be_leaves_open_ones_alone(tmp_path: Path) -> None:
    kernels = [K(100 * i + 30, 100 * i + 80, i) for i in range(3)]
    calls = [C(100 * i + 10, 100 * i + 20, i) for i in range(3)]
    ranges = [R(0, 90, "F0.0.0"), R(100, 190, "B0.0.0"), R(200, None, "F1.0.0")]
    strange = R(5, 2**61, "B7.0.0")
    report = bubbleviz.analyze(profile(tmp_path, kernels, calls, [*ranges, strange]))

    lost = [n for n in report.limitations if n.what == "ranges with impossible times"]
    assert [note.count for note in lost] == [1]
    assert report.operations.cut.tolist().count(1) == 1
