"""Recordings that begin in the middle of a stream of chunks, which are matched across stages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.report.report import Report
from tests.support.forward_runs import UNIT_NS, Chunk, Serving, simulate_serving
from tests.support.operation_tables import write_csv

LENGTHS = tuple(np.random.default_rng(7).uniform(0.5, 2.0, 60).round(3).tolist())
RUN = Serving(LENGTHS, (1.0, 1.2, 1.0, 0.8), transfer_ns=10_000, depth=5, host_ns=30_000)


def report_on_part(
    folder: Path, run: Serving, begin_ns: int, *, has_names: bool, staged: bool = False
) -> tuple[Report, list[Chunk]]:
    """Return the report on part of a run, and its chunks. ``has_names`` writes chunk numbers."""
    end_ns = max(chunk.end_ns for chunk in simulate_serving(run)) - begin_ns
    chunks = [c for c in simulate_serving(run) if begin_ns <= c.start_ns and c.end_ns <= end_ns]
    columns: dict[str, list[object]] = {
        "rank": [(c.stage * 3) % 4 for c in chunks],
        "phase": ["F"] * len(chunks),
        "start_ns": [c.start_ns for c in chunks],
        "end_ns": [c.end_ns for c in chunks],
    }
    if has_names:
        columns["tokens"] = [round(1000 * run.lengths[c.number]) for c in chunks]
    if staged:
        columns["stage"] = [c.stage for c in chunks]
    return bubbleviz.analyze(write_csv(folder / "operations.csv", columns)), chunks


def list_chunk_numbers(report: Report, stage: int) -> list[int]:
    """Return the chunk numbers of a stage."""
    is_of_stage = np.array([rank.stage for rank in report.ranks])[report.operations.rank] == stage
    numbers_of_stage: list[int] = report.operations.microbatch[is_of_stage].tolist()
    return numbers_of_stage


@pytest.mark.parametrize("staged", [False, True])
def test_chunks_with_known_tokens_are_paired(tmp_path: Path, staged: bool) -> None:
    report, chunks = report_on_part(tmp_path, RUN, 17 * UNIT_NS, has_names=True, staged=staged)

    assert sorted(rank.stage for rank in report.ranks if rank.stage is not None) == [0, 1, 2, 3]
    base = min(c.number for c in chunks)
    for stage in range(4):
        true = [c.number - base for c in chunks if c.stage == stage]
        assert list_chunk_numbers(report, stage) == true
    causes = report.explanation.causes.of_iteration("schedule", 0)
    assert causes["unknown"] == 0
    assert causes["token"] > 0


def test_with_given_stages_chunks_are_paired_by_time_alone(tmp_path: Path) -> None:
    report, chunks = report_on_part(tmp_path, RUN, 17 * UNIT_NS, has_names=False, staged=True)

    base = min(c.number for c in chunks)
    assert list_chunk_numbers(report, 3) == [c.number - base for c in chunks if c.stage == 3]


def test_without_tokens_and_stages_nothing_is_guessed(tmp_path: Path) -> None:
    report, _ = report_on_part(tmp_path, RUN, 17 * UNIT_NS, has_names=False)

    assert {rank.stage for rank in report.ranks} == {None}
    assert any(note.what == "stages of ranks" for note in report.limitations)


def test_a_recording_that_begins_with_the_first_chunk_is_not_shifted(tmp_path: Path) -> None:
    report, chunks = report_on_part(tmp_path, RUN, 0, has_names=False)

    for stage in range(4):
        assert list_chunk_numbers(report, stage) == [c.number for c in chunks if c.stage == stage]
