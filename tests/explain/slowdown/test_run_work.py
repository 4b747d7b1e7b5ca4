"""Work of planted runs: a replay with the recorded delays takes as long as measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bubbleviz
from bubbleviz.explain import explanation
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.delays import measure_delays, measure_iterations
from bubbleviz.explain.slowdown.replay import build_replay
from bubbleviz.explain.slowdown.run_work import select_outer_collectives
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.grouping import find_distinct
from tests.planting import plant
from tests.planting.options import Planting
from tests.support.planted_runs import RUNS, analyze_planting

EVEN = Planting(iterations=3, barrier=True)


@pytest.mark.parametrize("name", RUNS)
def test_with_launch_delays_all_iterations_take_as_long_as_measured(name: str) -> None:
    explanation = analyze_planting(RUNS[name]).explanation
    source, scenarios = explanation.slowdown_source, explanation.scenarios
    assert source is not None
    if scenarios is None:
        assert source.reason or not source.averaged.any()
        return
    work, replay = scenarios.work, scenarios.replay
    assert len(replay.unordered) == 0
    delays_ns = measure_delays(work, scenarios.order)
    delayed = replay.lengths_ns(work.own_ns[:, None], delays_ns)[:, 0]
    assert delayed.tolist() == measure_iterations(work, replay.iterations).tolist()


def test_an_iteration_with_a_cycle_is_left_out() -> None:
    scenarios = analyze_planting(RUNS["plain"]).explanation.scenarios
    assert scenarios is not None
    work, order = scenarios.work, scenarios.order
    circle = Dependencies(
        np.append(order.successor, order.predecessor[0]),
        np.append(order.predecessor, order.successor[0]),
    )
    replay = build_replay(work, circle)

    iteration, left = work.iteration[order.successor[0]], scenarios.replay.iterations
    assert set(work.iteration[replay.unordered].tolist()) == {int(iteration)}
    assert replay.iterations.tolist() == left[left != iteration].tolist()


@pytest.mark.parametrize("replicas", [1, 3])
def test_groups_replayed_together_take_as_long_as_replayed_one_by_one(replicas: int) -> None:
    scenarios = analyze_planting(replace(EVEN, jitter=0.2, replicas=replicas)).explanation.scenarios
    assert scenarios is not None
    work = scenarios.work
    for label in (work.replica, work.stage, np.arange(len(work)) % 4 - 1):
        values = find_distinct(label[label >= 0])
        expected = scenarios.measure_groups(label, values)
        assert scenarios.measure_independent_groups(label, values).tolist() == expected.tolist()


def test_an_even_run_is_ideal() -> None:
    slowdowns = analyze_planting(EVEN).slowdowns

    assert slowdowns is not None
    assert slowdowns.total == pytest.approx(1, abs=1e-6)
    assert slowdowns.replay_error.mean < 1e-3
    for by in (slowdowns.by_phase, slowdowns.by_stage, slowdowns.by_rank, slowdowns.by_link):
        assert list(by.values()) == pytest.approx([1] * len(by), abs=1e-6)


def test_a_slow_stage_slows_1f1b_down_as_the_formula_says() -> None:
    """One of 4 stages takes twice as long. The ideal uses mean times: (m + p - 1) (F + B)."""
    slowdowns = analyze_planting(replace(EVEN, slow_stage=2, communication=False)).slowdowns
    mean_ns = 1.25 * 3_000_000
    optimizer_ns = 1.25 * 500_000

    assert slowdowns is not None
    ideal_ns = (8 + 3) * mean_ns + optimizer_ns
    assert slowdowns.ideal_ns == pytest.approx(ideal_ns, rel=1e-2)
    assert slowdowns.by_stage[2] == max(slowdowns.by_stage.values())
    assert slowdowns.by_rank[2] == min(slowdowns.by_stage[2], slowdowns.by_replica[0])
    assert slowdowns.total == pytest.approx(slowdowns.original_ns / slowdowns.ideal_ns)


def collectives(*rows: tuple[int, int, int, int]) -> CollectiveIntervals:
    """Return collectives given as (rank, start, end, meeting), which overlap operations."""
    rank, start_ns, end_ns, meeting = np.array(rows, np.int64).T.copy()
    zero, none = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
    columns = dict.fromkeys(CollectiveIntervals.column_names(), zero) | {
        "rank": rank,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "meeting": meeting,
        **dict.fromkeys(("group", "sequence", "operation"), none),
    }
    table = CollectiveIntervals(**columns, kinds=("AllReduce",), groups=())
    return select_outer_collectives(table, analyze_planting(EVEN).operations, np.ones(1, bool))


def test_members_that_left_before_others_entered_did_not_meet_them() -> None:
    """The second of two meetings is invalid, because rank 1 left long before rank 2 entered."""
    valid = collectives(
        (0, 0, 90, 7), (1, 50, 92, 7), (1, 100, 110, 8), (2, 5_000_000, 5_000_010, 8)
    )

    assert valid.meeting.tolist() == [7, 7, -1, -1]
    assert valid.start_ns.tolist() == [0, 50, 100, 5_000_000]


def test_very_many_operations_are_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "MAX_RUN_OPERATIONS", 100)
    plant(EVEN, tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert report.slowdowns is None
    assert report.explanation.slowdown_source is not None
    assert re.fullmatch(
        r"the run contains [0-9,]+ operations, but at most 100 can be replayed",
        report.explanation.slowdown_source.reason,
    )
