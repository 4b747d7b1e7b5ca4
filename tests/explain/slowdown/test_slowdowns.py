"""Slowdowns of small recorded work."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.replay import Kind, Role, Work
from bubbleviz.explain.slowdown.run_work import chained
from bubbleviz.explain.slowdown.slowdowns import Slowdowns, scenarios_of, slowdowns_of
from bubbleviz.model.grouping import distinct

Row = tuple[int, int, int, str, int, int]
_KINDS = {
    "F": Kind("forward", Role.FORWARD, "F"),
    "BW": Kind("backward", Role.BACKWARD, "BW"),
    "gather": Kind("gather", Role.COLLECTIVE, "gather"),
    "scatter": Kind("scatter", Role.COLLECTIVE, "scatter"),
    "send": Kind("send", Role.SEND_F, "forward-pp-comm"),
    "receive": Kind("receive", Role.RECV_F, "forward-pp-comm"),
    "Optimizer": Kind("optimizer", Role.OPTIMIZER, "Optimizer"),
}


def recorded(*rows: Row) -> tuple[Work, Dependencies]:
    """Return work of (stage, replica, iteration, kind, start, end), and its order.

    The rows of a rank follow each other. The replicas of a stage meet in each of their
    collectives, and sends and receives of a replica in turn.
    """
    numbers = {name: number for number, name in enumerate(_KINDS)}
    columns = [(s, r, i, numbers[kind], start, end) for s, r, i, kind, start, end in rows]
    stage, replica, iteration, kind, start_ns, end_ns = np.array(columns, np.int64).reshape(-1, 6).T
    met: dict[tuple[object, ...], int] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    meeting = []
    for s, r, i, name, *_ in rows:
        key: tuple[object, ...] = (i, s, name) if name in ("gather", "scatter") else (i, -1 - r)
        seen[s, r, i, name] += 1
        meets = name in ("gather", "scatter", "send", "receive")
        meeting.append(met.setdefault((*key, seen[s, r, i, name]), len(met)) if meets else -1)
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
    return work, Dependencies(*chained(work, np.arange(len(rows)), work.rank_iteration))


def measured_of(*rows: Row) -> Slowdowns | None:
    scenarios = scenarios_of(*recorded(*rows))
    return None if scenarios is None else slowdowns_of(scenarios)


def test_nothing_has_no_slowdown() -> None:
    assert scenarios_of(*recorded()) is None


def test_one_rank_one_iteration_is_ideal() -> None:
    measured = measured_of((0, 0, 3, "F", 0, 4))

    assert measured is not None
    assert (measured.total, measured.by_rank, measured.by_iteration) == (1, {0: 1}, {3: 1})
    assert measured.worker_share is None
    assert measured.last_stage_share is None


def test_a_slow_replica_holds_up_the_other_one() -> None:
    """Two replicas of one stage; gradients meet, and one of four forwards takes three times."""
    rows: list[Row] = []
    for iteration in range(2):
        for replica, end in enumerate((30, 10) if iteration else (10, 10)):
            last = 30 if iteration else 10
            rows += [
                (0, replica, iteration, "F", 0, end),
                (0, replica, iteration, "scatter", end, last + 2),
                (0, replica, iteration, "Optimizer", last + 2, last + 3),
            ]
    measured = measured_of(*rows)

    assert measured is not None
    assert measured.ideal_ns == 15 + 2 + 1
    assert measured.total == pytest.approx((13 + 33) / 2 / 18)
    assert measured.by_replica == pytest.approx({0: (18 + 33) / 2 / 18, 1: 1})
    assert measured.by_phase["F"] == pytest.approx(measured.total)
    assert measured.by_iteration == pytest.approx({0: 13 / 18, 1: 33 / 18})
    assert measured.worker_share == pytest.approx((23 - (18 + 18) / 2) / (23 - 18))
    assert measured.replay_error.maximum == 0


@st.composite
def replicated(draw: st.DrawFn) -> list[Row]:
    """Return rows of replicas whose forwards, messages and collectives take any time."""
    rows: list[Row] = []
    took = st.integers(0, 9)
    meets = draw(st.sampled_from([(), ("scatter",), ("gather",)]))
    for iteration in range(draw(st.integers(1, 2))):
        for replica in range(draw(st.integers(1, 3))):
            at = [0, 0]
            for _ in range(draw(st.integers(1, 2))):
                for stage in range(2):
                    for phase in ("F", "BW"):
                        end = at[stage] + draw(took)
                        key = stage, replica, iteration
                        rows.append((*key, phase, at[stage], end))
                        at[stage] = end + draw(took)
                    if stage == 0:
                        rows.append((*key, "send", at[0], at[0] + 2))
                        rows.append((1, *key[1:], "receive", at[1], at[0] + 2))
                        at[1] = max(at[1], at[0] + 2)
            for stage in range(2):
                for kind in (*meets, *draw(st.sampled_from([(), ("Optimizer",)]))):
                    end = at[stage] + draw(took)
                    rows.append((stage, replica, iteration, kind, at[stage], end))
                    at[stage] = end
    return rows


@given(replicated(), st.randoms(use_true_random=False))
def test_groups_that_are_replayed_apart_take_as_long_as_one_by_one(
    rows: list[Row], random: Random
) -> None:
    work, order = recorded(*rows)
    scenarios = scenarios_of(work, order)
    if scenarios is None:
        return
    for label in (work.replica, np.array([random.randint(-1, 2) for _ in range(len(work))])):
        values = distinct(label[label >= 0])
        expected = scenarios.put_back([(label, value) for value in values.tolist()])
        assert scenarios.put_back_apart(label, values).tolist() == expected.tolist()
