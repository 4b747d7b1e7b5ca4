"""Slowdowns computed from small recorded runs."""

from __future__ import annotations

import numpy as np
import pytest

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.message_order import chain_rows
from bubbleviz.explain.slowdown.slowdowns import Slowdowns, build_scenarios, measure_slowdowns
from bubbleviz.explain.slowdown.work import Kind, Role, Work

Row = tuple[int, int, int, str, int, int]
_KINDS = {
    "F": Kind("forward", Role.FORWARD, "F"),
    "scatter": Kind("scatter", Role.COLLECTIVE, "scatter"),
    "Optimizer": Kind("optimizer", Role.OPTIMIZER, "Optimizer"),
}


def recorded(*rows: Row) -> tuple[Work, Dependencies]:
    """Return the work of (stage, replica, iteration, kind, start, end) rows and its order.

    The operations of a rank follow each other in the order of the rows. The replicas of a stage
    meet in a collective.
    """
    numbers = {name: number for number, name in enumerate(_KINDS)}
    columns = [(s, r, i, numbers[kind], start, end) for s, r, i, kind, start, end in rows]
    stage, replica, iteration, kind, start_ns, end_ns = np.array(columns, np.int64).reshape(-1, 6).T
    met: dict[tuple[int, ...], int] = {}
    meeting = [
        met.setdefault((i, s), len(met)) if name == "scatter" else -1 for s, _, i, name, *_ in rows
    ]
    none = np.full(len(rows), -1, np.int64)
    work = Work(
        rank=stage + 10 * replica,
        stage=stage,
        replica=replica,
        iteration=iteration,
        kind=kind,
        microbatch=none,
        chunk=none,
        virtual_stage=stage,
        start_ns=start_ns,
        end_ns=end_ns,
        meeting=np.array(meeting, np.int64),
        kinds=tuple(_KINDS.values()),
    )
    return work, Dependencies(*chain_rows(work, np.arange(len(rows)), work.rank_iteration))


def measure_rows(*rows: Row) -> Slowdowns | None:
    scenarios = build_scenarios(*recorded(*rows))
    return None if scenarios is None else measure_slowdowns(scenarios)


def test_without_work_there_is_no_slowdown() -> None:
    assert build_scenarios(*recorded()) is None


def test_one_rank_in_one_iteration_is_ideal() -> None:
    measured = measure_rows((0, 0, 3, "F", 0, 4))

    assert measured is not None
    assert (measured.total, measured.by_rank, measured.by_iteration) == (1, {0: 1}, {3: 1})
    assert measured.worker_share is None
    assert measured.last_stage_share is None


def test_a_slow_replica_holds_up_the_other_one() -> None:
    """Two replicas of a stage reduce gradients; one of four forwards takes three times as long."""
    rows: list[Row] = []
    for iteration in range(2):
        for replica, end in enumerate((30, 10) if iteration else (10, 10)):
            last = 30 if iteration else 10
            rows += [
                (0, replica, iteration, "F", 0, end),
                (0, replica, iteration, "scatter", end, last + 2),
                (0, replica, iteration, "Optimizer", last + 2, last + 3),
            ]
    measured = measure_rows(*rows)

    assert measured is not None
    assert measured.ideal_ns == 15 + 2 + 1
    assert measured.total == pytest.approx((13 + 33) / 2 / 18)
    assert measured.by_replica == pytest.approx({0: (18 + 33) / 2 / 18, 1: 1})
    assert measured.by_phase["F"] == pytest.approx(measured.total)
    assert measured.by_iteration == pytest.approx({0: 13 / 18, 1: 33 / 18})
    assert measured.worker_share == pytest.approx((23 - (18 + 18) / 2) / (23 - 18))
    assert measured.replay_error.maximum == 0
