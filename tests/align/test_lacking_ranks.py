"""Runs of several pipelines with missing ranks, damaged files or wrong host clocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.model.limitations import Limitation, merge_limitations
from bubbleviz.report.report import Report
from tests.planting.ranks.recordings import write_recordings
from tests.planting.ranks.runs import Recipe, plant
from tests.planting.ranks.tables import write_tables
from tests.support.notes import list_restriction_codes

#: A run of 16 four-stage pipelines on eight servers.
RECIPE = Recipe(64, microbatches=6, stages=4, iterations=2)
SECOND = 1_000_000_000


def tables_of(folder: Path) -> list[Path]:
    """Write a run as tables that lack stages and pipelines, and return the files."""
    return write_tables(
        plant(RECIPE),
        folder,
        with_stages=False,
        transfers=False,
        collectives=False,
        clock_errors_ns=None,
    )


def is_placed(report: Report) -> bool:
    """Return whether every rank has its stage and pipeline."""
    replicas = RECIPE.pipelines
    return all(
        rank.global_rank is None
        or (rank.stage, rank.pipeline)
        == (rank.global_rank // replicas, rank.global_rank % replicas)
        for rank in report.ranks
    )


def list_reasons(report: Report, subject: str) -> list[tuple[int, str]]:
    return [(note.count, note.reason) for note in report.limitations if note.what == subject]


def test_a_complete_run_lacks_nothing(tmp_path: Path) -> None:
    tables_of(tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert is_placed(report)
    assert list_reasons(report, "ranks without a profile") == []
    for name, ratio in plant(RECIPE).ratios().items():
        assert report.summary.bubble_ratio[name].mean == pytest.approx(ratio, abs=1e-12)


@pytest.mark.parametrize("server", [0, 7])
def test_pipelines_that_lack_a_stage_are_counted(tmp_path: Path, server: int) -> None:
    files = write_tables(
        plant(Recipe(128, microbatches=6, stages=2, iterations=2)),
        tmp_path,
        with_stages=True,
        transfers=False,
        collectives=False,
        clock_errors_ns=None,
    )
    files[8 * (server // 7) + server].unlink()
    report = bubbleviz.analyze(tmp_path)

    stage, first = (0, 0) if server == 0 else (1, 56)
    places = ", ".join(f"p{first + n} stage {stage}" for n in range(8))
    assert list_reasons(report, "ranks without a profile") == [
        (
            8,
            f"ranks are missing from 8 of 64 pipelines ({places}), so ratios are incomplete",
        )
    ]
    assert list_restriction_codes(report) == ["ranks-missing"]


def test_stages_are_found_although_files_are_missing(tmp_path: Path) -> None:
    tables_of(tmp_path / "a")[3].unlink()
    files = write_recordings(plant(RECIPE), tmp_path / "b", None)
    for rank in range(3, 63, 6):
        files[rank].unlink()
    for folder, count, ranks in (
        ("a", 8, "24, 25, 26, 27, 28, 29, 30, 31"),
        ("b", 10, "3, 9, 15, 21, 27, 33, 39, 45 and 2 more (the run has 64 ranks)"),
    ):
        report = bubbleviz.analyze(tmp_path / folder)

        assert len(report.ranks) == 64 - count
        assert is_placed(report)
        assert len({rank.pipeline for rank in report.ranks}) == RECIPE.pipelines
        assert report.summary.bubble_ratio["stage"].mean is not None
        message = f"no profile contains ranks {ranks}, so ratios are incomplete"
        assert list_reasons(report, "ranks without a profile") == [(count, message)]


def test_damaged_files_are_counted_and_the_first_named(tmp_path: Path) -> None:
    files = write_recordings(plant(RECIPE), tmp_path, None)
    for rank in range(10, 16):
        files[rank].write_bytes(files[rank].read_bytes()[:300])
    ((count, reason),) = list_reasons(
        bubbleviz.analyze(tmp_path), "a profile in the directory that cannot be read"
    )

    assert count == 6
    assert [f"rank-000{rank}.bvrec" in reason for rank in range(10, 16)] == [True] * 3 + [False] * 3
    assert reason.endswith("; and 3 more")


def test_a_host_whose_clock_is_minutes_off_is_part_of_the_run(tmp_path: Path) -> None:
    for number, minutes in enumerate((3, -3)):
        errors = np.zeros(8, np.int64)
        errors[5] = minutes * 60 * SECOND
        folder = tmp_path / str(number)
        write_recordings(plant(RECIPE), folder, errors)
        report = bubbleviz.analyze(folder)

        assert len(report.ranks) == 64
        assert is_placed(report)
        ((count, reason),) = list_reasons(report, "clocks that are minutes off")
        assert (count, reason.split(" recorded")[0]) == (1, "according to UTC, node00005")
        expected = plant(RECIPE).ratios()["stage"]
        assert report.summary.bubble_ratio["stage"].mean == pytest.approx(expected, abs=1e-12)


def test_few_limitations_are_kept_and_many_are_joined_into_one() -> None:
    assert merge_limitations([]) == []
    notes = [Limitation("a", f"{n}") for n in range(4)]
    repeated = [Limitation("b", f"{n}", 2) for n in range(6)]

    assert merge_limitations([notes[0], repeated[0], *notes[1:], repeated[0]]) == [
        notes[0],
        repeated[0],
        *notes[1:],
    ]
    assert merge_limitations([*notes, *repeated, *notes]) == [
        *notes,
        Limitation("b", "0; 1; 2; and 3 more", 12),
    ]
