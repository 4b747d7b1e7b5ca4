"""The benchmark finishes on tiny profiles, and its generator plants the documented events."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import bubbleviz
from scripts.benchmark import __main__ as main_module
from scripts.benchmark.__main__ import RATIO_TOLERANCE, main
from scripts.benchmark.costs import BenchmarkError, measure_command
from tests.planting.kernels.profiles import is_made_from, write_profile
from tests.planting.kernels.timetable import DEVICES, KINDS, MICROBATCHES, Recipe

KERNELS = 2_000
#: Sends and receives of an iteration, in both directions between neighbors.
TRANSFERS = 2 * 2 * (DEVICES - 1) * MICROBATCHES


@pytest.mark.parametrize("kind", KINDS)
def test_a_generated_profile_contains_the_planted_events(kind: str, tmp_path: Path) -> None:
    recipe = Recipe(KERNELS, kind)
    planted = write_profile(recipe, tmp_path / "tiny.sqlite")

    report = bubbleviz.analyze([tmp_path / "tiny.sqlite"])

    assert report.headline == "schedule"
    ratio = report.summary.bubble_ratio["schedule"]
    # Operations begin and end with their kernels, to the nanosecond.
    # Only one division rounds.
    assert ratio.mean == pytest.approx(planted.bubble_ratio, abs=RATIO_TOLERANCE)
    assert ratio.n == recipe.iterations
    assert len(report.ranks) == DEVICES
    (profile,) = report.profiles
    transfers = recipe.iterations * TRANSFERS
    assert profile.kernels == planted.operations * recipe.kernels_per_operation + transfers
    assert profile.attributed_kernels == profile.kernels


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_always_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second", "other")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        write_profile(Recipe(KERNELS, kind, seed), path)

    first, second, other = (path.read_bytes() for path in paths)

    assert first == second
    assert first != other
    assert is_made_from(Recipe(KERNELS, kind, 2), paths[2])
    assert not is_made_from(Recipe(KERNELS, kind, 1), paths[2])


def test_rows_are_ordered_as_in_real_exports(tmp_path: Path) -> None:
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
def test_the_whole_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tiny", "--kinds", "deep", "--jobs", "1", "--folder", str(tmp_path)]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [words for words in lines if words[:1] == ["4k"]]
    assert [words[4] for words in rows] == ["compiled", "sqlite", "parquet"]
    for words in rows:
        scan_s, wall_s, cpu_s, ratio = map(float, words[6:10])
        assert 0 <= scan_s < wall_s
        assert cpu_s > 0
        assert ratio > 1
        assert float(words[11]) > 10
    assert any(words[:1] == ["fixtures/1f1b"] for words in lines)
    assert list(tmp_path.glob("*.sqlite"))
    assert not list(tmp_path.glob("*.json"))


def test_a_command_that_fails_is_reported_in_one_sentence() -> None:
    with pytest.raises(BenchmarkError, match=r"^cannot start /nowhere: No such file"):
        measure_command(["/nowhere"])
    with pytest.raises(BenchmarkError, match=r"^sh failed with exit code 3: second$"):
        measure_command(["sh", "-c", "echo first >&2; echo second >&2; exit 3"])


@pytest.mark.thorough
def test_a_profile_that_the_c_part_does_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "read_output", lambda *_: "  read by  SQLite (not built)")

    assert main(["--tiny", "--readers", "compiled", "--folder", str(tmp_path)]) == 1
    expected = "bench: 4k-light.sqlite is not read by the C part but by SQLite (not built)\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("argument", ["0k", "2G", "--kinds=odd", "--jobs=0", "--readers=x"])
def test_a_wrong_argument_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([argument])

    assert capsys.readouterr().err
