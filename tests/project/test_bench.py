"""The benchmark runs to its end on tiny profiles, and its generator plants what it says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.native.library import library
from scripts.benchmark import __main__ as main_module
from scripts.benchmark.__main__ import main
from scripts.benchmark.failures import BenchmarkError
from scripts.benchmark.machine import commit_note
from scripts.benchmark.pairs import RATIO_TOLERANCE
from scripts.benchmark.peers import Peer, run_peer
from scripts.benchmark.processes import timed
from scripts.benchmark.scan import NEEDED, yardstick_in
from tests.planting.kernels.profiles import is_made_from, write_profile
from tests.planting.kernels.timetable import DEVICES, KINDS, MICROBATCHES, Recipe

KERNELS = 2_000
#: Sends and receives of an iteration: both ways between neighbours.
TRANSFERS = 2 * 2 * (DEVICES - 1) * MICROBATCHES


@pytest.mark.parametrize("kind", KINDS)
def test_a_generated_profile_holds_what_was_planted(kind: str, tmp_path: Path) -> None:
    recipe = Recipe(KERNELS, kind)
    planted = write_profile(recipe, tmp_path / "tiny.sqlite")

    report = bubbleviz.analyze([tmp_path / "tiny.sqlite"])

    assert report.headline == "schedule"
    ratio = report.summary.bubble_ratio["schedule"]
    # Operations begin and end with their kernels, to the nanosecond; only a division rounds.
    assert ratio.mean == pytest.approx(planted.bubble_ratio, abs=RATIO_TOLERANCE)
    assert ratio.n == recipe.iterations
    assert len(report.ranks) == DEVICES
    (profile,) = report.profiles
    transfers = recipe.iterations * TRANSFERS
    assert profile.kernels == planted.operations * recipe.kernels_per_operation + transfers
    assert profile.attributed_kernels == profile.kernels


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_makes_the_same_bytes(kind: str, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second", "other")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        write_profile(Recipe(KERNELS, kind, seed), path)

    first, second, other = (path.read_bytes() for path in paths)

    assert first == second
    assert first != other
    assert is_made_from(Recipe(KERNELS, kind, 2), paths[2])
    assert not is_made_from(Recipe(KERNELS, kind, 1), paths[2])


def test_rows_lie_as_in_real_exports(tmp_path: Path) -> None:
    write_profile(Recipe(KERNELS, "deep"), tmp_path / "tiny.sqlite")
    with closing(sqlite3.connect(tmp_path / "tiny.sqlite")) as database:

        def rows(sql: str) -> list[tuple[int, ...]]:
            return database.execute(sql).fetchall()

        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
            starts = rows(f"SELECT start FROM {table} ORDER BY rowid")
            assert starts == sorted(starts)
        calls = rows(
            "SELECT globalTid, eventClass, start FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY rowid"
        )
        assert calls == sorted(calls)
        kernels = rows("SELECT globalPid, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL")
        assert len(set(kernels)) == len(kernels)
        assert len({number for _, number in kernels}) < len(kernels) / 2
        transfers = 2 * TRANSFERS
        compute = len(kernels) - transfers
        assert (len(calls) - transfers) / compute == pytest.approx(5 / 3, abs=0.01)
        assert not rows("SELECT 1 FROM sqlite_master WHERE type = 'index'")
        assert not rows(
            "SELECT 1 FROM NVTX_EVENTS WHERE (text IS NULL) = (textId IS NULL) OR end <= start"
        )
        assert not rows("SELECT 1 FROM NVTX_EVENTS WHERE textId NOT IN (SELECT id FROM StringIds)")


@pytest.mark.thorough
def test_all_of_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tiny", "--kinds", "deep", "--markdown", "--jobs", "1", "--peer-limit", "5"]

    assert main([*arguments, "--folder", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in printed.splitlines()
        if line.startswith(("| 4k ", "| fixtures/1f1b "))
    ]
    example = cells.pop()
    readers = [*(["compiled"] if library() else []), "SQLite", "Parquet"]
    assert [(row[0], row[3], row[5]) for row in cells] == [
        ("4k deep", reader, yardstick)
        for reader in readers
        for yardstick in ("C scan", "imports and scan")
    ]
    for row in cells:
        scan, wall, processor, peak = (float(row[n].rstrip("!")) for n in (6, 7, 8, 11))
        assert 0 <= scan < wall
        assert processor > 0
        assert peak > 10
    numpy, wall, processor = (float(example[n].rstrip("!")) for n in (1, 2, 3))
    assert 0 < numpy < processor
    assert wall > 0
    assert f"- {commit_note()}\n" in printed
    for name in ("nsys stats", "nsys-ai", "nsys2json"):
        assert f"| {name}" in printed
    assert list(tmp_path.glob("*.sqlite"))
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("wanted", ["any", "python"])
def test_every_yardstick_scans(wanted: str, tmp_path: Path) -> None:
    write_profile(Recipe(KERNELS, "light"), tmp_path / "tiny.sqlite")

    yardstick = yardstick_in(tmp_path, wanted)

    assert timed(yardstick.command(tmp_path / "tiny.sqlite"))
    assert len(yardstick.queries) == len(NEEDED)


def test_a_peer_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_bytes(b"")

    slow = run_peer(Peer("slow", ("no such program", "sleep"), ("60",)), profile, 0.2)
    wrong = run_peer(Peer("wrong", ("cat",), ("{folder}/missing",)), profile, 60)
    right = run_peer(Peer("right", ("cat",), ("{profile}",)), profile, 60)

    assert (slow.wall_s, slow.remark) == (None, "ended after 0.2 s")
    assert wrong.wall_s is None
    assert wrong.remark.startswith("cat failed with status 1: ")
    assert right.wall_s is not None


def test_a_command_that_cannot_start_is_told() -> None:
    with pytest.raises(BenchmarkError, match=r"^cannot start /nowhere: No such file"):
        timed(["/nowhere"])


def test_what_is_not_compiled_is_not_measured_as_if_it_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "reader_of", lambda *_: "SQLite (not built)")

    assert main(["--tiny", "--readers", "compiled", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "bench: not measured: the compiled reader, for profiles are read by SQLite (not built)\n"
    )


@pytest.mark.parametrize("argument", ["0k", "2G", "--kinds=odd", "--jobs=0", "--readers=x"])
def test_a_wrong_argument_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([argument])

    assert capsys.readouterr().err
