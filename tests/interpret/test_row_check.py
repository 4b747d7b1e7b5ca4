"""Work that is recorded twice counts once, and kernels without a length are told."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bubbleviz import analyze
from bubbleviz.interpret.linking.correlations import Launches
from bubbleviz.interpret.linking.linker import link_by_thread
from bubbleviz.interpret.linking.row_check import RowCheck, check_rows
from bubbleviz.model.profile import UNCORRELATED, Activities
from bubbleviz.report.report import Report
from bubbleviz.sources.in_memory import no_calls, no_ranges
from bubbleviz.sources.readers import reader_of
from tests.support.nsys_exports import C, K, profile
from tests.support.places import FIXTURES
from tests.support.torch_traces import traces_of

TWICE, LENGTHLESS = "kernels and copies recorded twice", "kernels without a duration"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def _changed(folder: Path, statement: str) -> Path:
    path = folder / "node0.sqlite"
    shutil.copy(FIXTURES / "1f1b" / "node0.sqlite", path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    return path


def _count(report: Report, what: str) -> int:
    return sum(note.count for note in report.limitations if note.what == what)


def _work(*rows: tuple[int, int, int, int], kernels: int | None = None) -> Activities:
    """Return work of one rank: start, end, correlation id, name."""
    start, end, correlation, name = np.array(rows, np.int64).reshape(-1, 4).T
    return Activities(
        start_ns=start.copy(),
        end_ns=end.copy(),
        rank=np.zeros(len(start), np.int16),
        correlation_id=correlation.astype(np.uint32),
        name_id=name.astype(np.int16),
        kernels=len(start) if kernels is None else kernels,
        names=("a", "b"),
        ranks=np.array([[1, 0]]),
    )


def _check(work: Activities) -> RowCheck:
    calls = no_calls()
    return check_rows(work, Launches(work), calls)


def test_many_names_without_a_length_take_no_longer() -> None:
    names, each = 60_000, 5
    number = np.arange(names * each)
    # Of each name one kernel has no length; of every second name the others are long.
    duration = np.where(number < names, 0, np.where(number % 2, 50_000, 2_000))
    work = Activities(
        start_ns=number * 100_000,
        end_ns=number * 100_000 + duration,
        rank=np.zeros(len(number), np.int16),
        correlation_id=number.astype(np.uint32),
        name_id=(number % names).astype(np.int32),
        kernels=len(number),
        names=tuple(map(str, range(names))),
        ranks=np.array([[1, 0]]),
    )
    assert _check(work).lengthless == names // 2


def test_nothing_is_nothing_twice() -> None:
    assert _check(_work()) == RowCheck(None, 0, 0)


def test_equal_rows_of_one_call_are_one() -> None:
    first, other = (10, 20, 5, 0), (30, 40, 6, 0)
    check = _check(_work(first, other, first, first))
    assert (check.repeated, check.lengthless) == (2, 0)
    assert check.kept is not None
    assert check.kept.tolist() == [True, True, False, False]


def test_kernels_of_one_graph_are_not_the_same() -> None:
    rows = (10, 20, 5, 0), (10, 20, 5, 1), (10, 21, 5, 0), (11, 20, 5, 0)
    assert _check(_work(*rows)).kept is None
    unknown = (10, 20, UNCORRELATED, 0)
    assert _check(_work(unknown, unknown)).kept is None
    # A kernel and a copy of the same numbers are two things.
    assert _check(_work((10, 20, 5, 0), (10, 20, 5, 0), kernels=1)).kept is None


@pytest.mark.parametrize(("others", "count"), [(50_000, 1), (2_000, 0), (0, 0)])
def test_no_length_is_told_where_others_are_long(others: int, count: int) -> None:
    work = _work((10, 10, 1, 0), (20, 20 + others, 2, 0), (100, 100_000, 3, 1))
    assert _check(work).lengthless == (count if others else 0)


def test_nodes_of_one_graph_are_not_one(tmp_path: Path) -> None:
    kernels = [K(20, 30, 1, stream=7, graph_node=5), K(20, 30, 1, stream=8, graph_node=6)]
    for name, repeated in (("cudaGraphLaunch_v10000", 0), ("cudaLaunchKernel_v7000", 1)):
        path = profile(tmp_path, kernels, [C(10, 12, 1, name=name)])
        with reader_of(str(path)).open_file(str(path), 1, lambda *_: None) as file:
            rows = link_by_thread(file.read(("*",), partial=True), no_ranges()).rows
        assert rows is not None
        assert rows.repeated == repeated


def test_a_kernel_recorded_twice_changes_no_number(tmp_path: Path) -> None:
    path = _changed(tmp_path, f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL} WHERE rowid % 5 = 0")
    report, true = analyze([path]), analyze([FIXTURES / "1f1b"])
    assert _count(report, TWICE) == 141
    assert report.summary == true.summary
    assert [p.kernels for p in report.profiles] == [p.kernels for p in true.profiles]
    assert sum(_count(analyze([trace]), TWICE) for trace in traces_of(path, tmp_path)) == 141


def test_kernels_without_a_length_are_told(tmp_path: Path) -> None:
    path = _changed(
        tmp_path,
        f'UPDATE {KERNEL} SET "end" = start WHERE rowid IN '
        f"(SELECT rowid FROM {KERNEL} WHERE demangledName IN "
        "(SELECT id FROM StringIds WHERE value LIKE 'ampere%') LIMIT 3)",
    )
    assert _count(analyze([path]), LENGTHLESS) == 3


@pytest.mark.skipif("BUBBLEVIZ_DATA" not in os.environ, reason="BUBBLEVIZ_DATA is not set")
def test_no_real_profile_holds_such_rows() -> None:
    data = Path(os.environ["BUBBLEVIZ_DATA"])
    found = {}
    for path in (*data.glob("nsys/*.sqlite"), *data.glob("kineto/*.gz")):
        if "no_kernels" in path.name:
            continue
        with reader_of(str(path)).open_file(str(path), 1, lambda *_: None) as file:
            found[path.name] = link_by_thread(file.read(("*",), partial=True), no_ranges()).rows
    assert len(found) > 15
    assert all(rows == RowCheck(None, 0, 0) for rows in found.values() if rows)
