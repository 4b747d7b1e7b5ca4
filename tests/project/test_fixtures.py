"""Planted profiles and shipped fixtures look like real exports and match their truth."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.errors import UsageError
from scripts.make_fixture import RECIPES, main, write_all
from tests.planting import Planting, Truth, plant, read_truth
from tests.support.places import FIXTURES

#: Small runs that together contain every kind of range, call and GPU work.
PLANTINGS = {
    "transfers": Planting(transfer_ns=70_000, jitter=0.2, seed=3, slow_stage=2, barrier=True),
    "nested receives": Planting(nested_receive_ns=100_000, kernels=6, transfer_ns=400_000),
    "stray, busy": Planting(stray="busy"),
    "stray, idle": Planting(stray="idle", transfer_ns=60_000),
    "cut": Planting(cut_ns=40_300_000, iterations=3, autograd="named"),
    "evaluation": Planting(iterations=4, evaluation_at=2, ranges="mixed", overhead=True),
    "hosts": Planting(servers=2, files="rank", devices="zero", drift_ppb=(0, 9_000)),
    "disjoint": Planting(correlation="disjoint", drop_calls_every=3, kernels=8, servers=3),
    "copies": Planting(two_streams=True, kernels=7, copies=True, text="mixed", library_depth=4),
    "late host": Planting(late_stage=1, late_ns=90_000, watchdog=True, double_calls=True),
}


def query_rows(path: Path, query: str) -> list[tuple[int, ...]]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        rows = database.execute(query).fetchall()
    database.close()
    return rows


@pytest.mark.parametrize("planting", PLANTINGS.values(), ids=PLANTINGS.keys())
def test_the_layout_equals_that_of_real_exports(planting: Planting, tmp_path: Path) -> None:
    truth = plant(planting, tmp_path)

    for file in truth.files:
        path = tmp_path / file.path
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
            starts = query_rows(path, f"SELECT start FROM {table} ORDER BY rowid")
            assert starts == sorted(starts)
        groups = query_rows(
            path, "SELECT globalTid, eventClass, start FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        )
        changes = [now[:2] for previous, now in pairwise(groups) if previous[:2] != now[:2]]
        assert len(changes) + 1 == len({group[:2] for group in groups})
        assert all(b[2] <= n[2] for b, n in pairwise(groups) if b[:2] == n[:2])
        overlap_counts = query_rows(
            path,
            """SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
            JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call ON call.correlationId = kernel.correlationId
            AND call.globalTid >> 24 = kernel.globalPid >> 24 WHERE call."end" > kernel.start""",
        )
        assert overlap_counts == [(0,)]
        assert not find_crossing_ranges(path)


def find_crossing_ranges(path: Path) -> list[tuple[int, int]]:
    """Return the push/pop ranges that start in a range of their thread and end after it."""
    query = """SELECT globalTid, start, COALESCE("end", 1 << 62) FROM NVTX_EVENTS
        WHERE eventType = 59 ORDER BY start, "end" DESC"""
    crossing = []
    stacks: dict[int, list[int]] = defaultdict(list)
    for thread, start, end in query_rows(path, query):
        stack = stacks[thread]
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            crossing.append((start, end))
        stack.append(end)
    return crossing


def ratios(truth: Truth, name: str) -> list[float | None]:
    return [iteration.bubble_ratio[name] for iteration in truth.iterations]


def test_ideal_ratios(tmp_path: Path) -> None:
    """The ratio of 1F1B is (p - 1) / (m + p - 1), and the ratio of ZB-H2 is 0 without gaps."""
    truth = plant(Planting(), tmp_path)
    assert ratios(truth, "schedule") == ratios(truth, "stage") == [3 / 11, 3 / 11]

    planting = Planting(schedule="zb-h2", stages=8, microbatches=16, iterations=3)
    for optimizer_ns in (-1, 0, 300_000):
        truth = plant(replace(planting, optimizer_ns=optimizer_ns), tmp_path)
        assert ratios(truth, "stage") == [0.0, 0.0, 0.0]
        assert ratios(truth, "period") == [0.0, 0.0, None]
        assert ratios(truth, "schedule") == pytest.approx([7 / 55] * 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"text": "telepathy"}, "text is one of"),
        # The truth would contain the kernel, but not the export.
        (
            {"nested_receive_ns": 50_000, "communication": False},
            "nested_receive_ns needs communication",
        ),
        ({"schedule": "2f2b"}, "no schedule is called '2f2b'"),
    ],
)
def test_what_cannot_be_planted_is_refused(
    options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, UsageError), match=expected):
        plant(Planting(**options), tmp_path)


def test_the_same_planting_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        plant(PLANTINGS["transfers"], tmp_path / folder)

    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_the_fixtures_can_be_written_again(tmp_path: Path) -> None:
    write_all(tmp_path)

    for name in RECIPES:
        files = sorted(path.name for path in (tmp_path / name).iterdir())
        assert files == sorted(path.name for path in (FIXTURES / name).iterdir())
        for file in files:
            assert read_content(tmp_path / name / file) == read_content(FIXTURES / name / file)


def read_content(path: Path) -> str:
    """Return the rows of a database, or the content of any other file."""
    if path.suffix != ".sqlite":
        return path.read_text(encoding="utf-8")
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    text = "\n".join(database.iterdump())
    database.close()
    return text


@pytest.mark.parametrize("name", RECIPES)
def test_the_ratios_of_the_shipped_fixtures_equal_their_truth(name: str) -> None:
    report = bubbleviz.analyze([FIXTURES / name])
    truth = read_truth(FIXTURES / name / "truth.json")

    assert len(report.iterations) == len(truth.iterations) > 1
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        measured = {ratio: iteration.ratios[ratio].value for ratio in true.bubble_ratio}
        assert measured == pytest.approx(true.bubble_ratio, abs=1e-9)


def test_the_command_line_takes_every_option(tmp_path: Path) -> None:
    arguments = ["--recipe", "zb-v", "--iterations", "1", "--no-barrier", "--text", "mixed"]

    assert main([str(tmp_path), *arguments]) == 0
    truth = read_truth(tmp_path / "truth.json")
    assert (truth.planting.text, truth.planting.barrier) == ("mixed", False)
    assert truth == plant(truth.planting, tmp_path)


def test_a_wrong_option_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main([str(tmp_path), "--servers", "9"])

    assert refused.value.code == 2
    assert "9 servers are too many for 4 ranks" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
