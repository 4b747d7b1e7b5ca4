"""One-off collectives before the first compute of an iteration are not replayed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.explain.slowdown.start_up import remove_start_up
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from tests.planting import Planting
from tests.support.pipeline_jobs import MS, Job, Row, SimulatedJob, simulate_job
from tests.support.planted_runs import analyze_planting

SLOW = Job(rank={6: 1.5}, iterations=3)


def with_broadcasts(job: Job, lengths_ms: Sequence[float]) -> SimulatedJob:
    """Return a job in which replicas broadcast before the first forward of each iteration.

    The second replica enters each broadcast late.

    Args:
        job: The job without broadcasts.
        lengths_ms: Length of the broadcasts in each iteration in ms, or 0 for no broadcasts.
    """
    run = simulate_job(job)
    rows = list(run.rows)
    for iteration, length_ms in enumerate(lengths_ms):
        begin_ns = min(int(row["start_ns"]) for row in run.rows if row["iteration"] == iteration)
        for rank in range(job.stages * job.replicas if length_ms else 0):
            replica, stage = divmod(rank, job.stages)
            identity: Row = {
                "iteration": iteration,
                "rank": rank,
                "stage": stage,
                "pipeline": replica,
            }
            start_ns = round(begin_ns - length_ms * MS * (1 - 0.4 * replica))
            times: Row = {"start_ns": start_ns, "end_ns": begin_ns - 10_000}
            kind: Row = {"phase": "COLLECTIVE", "kind": "broadcast", "group": f"stage {stage}"}
            rows.append({**identity, **kind, **times, "launched_ns": start_ns})
    return replace(run, rows=rows)


def report_of(run: SimulatedJob, folder: Path) -> Report:
    return bubbleviz.analyze(run.written(folder / "operations.csv"))


@pytest.mark.parametrize("lengths_ms", [(1000.0,), (1000.0, 0, 0), (1000.0, 0.5, 0.5), (0, 0, 900)])
def test_start_up_appears_in_no_advice(lengths_ms: tuple[float, ...], tmp_path: Path) -> None:
    job = replace(SLOW, iterations=len(lengths_ms))
    plain = report_of(simulate_job(job), tmp_path)
    report = report_of(with_broadcasts(job, lengths_ms), tmp_path)

    (expected, *_), (first, *_) = write_all_advice(plain), write_all_advice(report)
    assert (first.kind, first.place) == (expected.kind, expected.place) == ("rank", "rank-6")
    assert first.saving_ns == pytest.approx(expected.saving_ns, rel=0.02)
    assert first.saving_ratio == pytest.approx(expected.saving_ratio, rel=0.02)
    assert report.explanation.changes[0].makespan_ns == plain.explanation.changes[0].makespan_ns


def test_collectives_before_the_first_forward_of_every_iteration_are_replayed(
    tmp_path: Path,
) -> None:
    report = report_of(with_broadcasts(SLOW, (40.0, 41.0, 39.0)), tmp_path)

    broadcast = next(entry for entry in write_all_advice(report) if entry.kind == "collective")
    assert broadcast.saving_ns == pytest.approx(0.6 * 40 * MS, rel=0.05)


@pytest.mark.parametrize("lengths_ms", [(0, 0, 0), (1000.0, 0, 0), (40.0, 41.0, 39.0)])
def test_no_saving_exceeds_the_length_of_iterations(
    lengths_ms: tuple[float, ...], tmp_path: Path
) -> None:
    report = report_of(with_broadcasts(SLOW, lengths_ms), tmp_path)
    windows = report.summary.window_ns
    measured_ns = max(windows[name].mean or 0.0 for name in ("step", "period"))

    texts = [advice.text for advice in write_all_advice(report)]
    promised = re.findall(r"iterations would take (?:at least )?([\d,.]+) ms", " ".join(texts))
    assert promised
    assert all(float(promised_ms.replace(",", "")) * MS < measured_ns for promised_ms in promised)
    assert promised[0] in (describe_first_steps(report) or "")


def test_collectives_far_longer_than_iterations_promise_no_saving(tmp_path: Path) -> None:
    report = report_of(with_broadcasts(SLOW, (400.0, 410.0, 390.0)), tmp_path)

    assert [advice.kind for advice in write_all_advice(report)] == ["collective", "rank"]
    assert [advice.saving_ratio for advice in write_all_advice(report)] == [None, None]


# Tests of the function that removes collectives.


def collectives_at(*times_ns: tuple[int, int, int]) -> CollectiveIntervals:
    """Return collectives of one rank, given as (iteration, start, end)."""
    iteration, start_ns, end_ns = np.array(times_ns, np.int64).reshape(-1, 3).T
    none, zero = np.full(len(iteration), -1), np.zeros(len(iteration), np.int64)
    return CollectiveIntervals(
        rank=zero,
        iteration=iteration,
        kind=zero,
        group=none,
        order=zero,
        sequence=none,
        start_ns=start_ns,
        end_ns=end_ns,
        late_ns=zero,
        operation=none,
        meeting=none,
        kinds=("",),
        groups=(),
    )


EVEN = Planting(stages=1, microbatches=2, iterations=3, communication=False)


def first_starts() -> list[int]:
    operations = analyze_planting(EVEN).operations
    return [int(operations.start_ns[operations.iteration == k].min()) for k in range(3)]


def cut(
    *times_ns: tuple[int, int, int], averaged: tuple[bool, ...] = (True,) * 3
) -> list[list[int]]:
    """Return the (iteration, start, end) of the collectives that remain."""
    operations = analyze_planting(EVEN).operations
    left = remove_start_up(collectives_at(*times_ns), operations, np.array(averaged))
    rows: list[list[int]] = np.stack((left.iteration, left.start_ns, left.end_ns), axis=1).tolist()
    return rows


def test_nothing_is_cut_without_collectives_or_averaged_iterations() -> None:
    first = first_starts()[0]
    assert cut() == []
    early = (0, first - 10, first - 5)
    assert cut(early, averaged=(False,) * 3) == [list(early)]


def test_collectives_that_end_by_the_first_compute_are_left_out_and_longer_ones_are_cut() -> None:
    first = first_starts()[0]

    left = cut((0, first - 90, first), (0, first - 90, first + 1), (0, first, first + 5))

    assert left == [[0, first, first + 1], [0, first, first + 5]]


def test_collectives_outside_averaged_iterations_are_kept() -> None:
    first, second, _ = first_starts()
    other_collectives = (-1, first - 90, first - 80), (1, second - 90, second - 80)

    left = cut(*other_collectives, (0, first - 90, first), averaged=(True, False, True))

    assert left == [list(other) for other in other_collectives]


def test_collectives_of_twice_the_usual_time_are_kept() -> None:
    starts, ms = first_starts(), 1_000_000
    regular = [(k, starts[k] - lead * ms, starts[k] - 1) for k, lead in enumerate((2, 1, 1))]

    assert cut(*regular) == [list(iteration) for iteration in regular]
    late_collective = (0, starts[0] - 30 * ms, starts[0] - 20 * ms)
    assert cut(late_collective, *regular) == [list(iteration) for iteration in regular]
