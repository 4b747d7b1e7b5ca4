"""Slowdowns of small recorded tables."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.explain.slowdown.slowdowns import scenarios_of
from bubbleviz.model.grouping import distinct
from tests.support.recorded_work import Row, recorded, recorded_slowdowns, table


def test_nothing_has_no_slowdown() -> None:
    assert recorded_slowdowns(table()) is None
    assert scenarios_of(*recorded(table())) is None


def test_one_rank_one_iteration_is_ideal() -> None:
    measured = recorded_slowdowns(table((0, 0, 3, "forward-compute", 0, 0, 4)))

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
                (0, replica, iteration, "forward-compute", 0, 0, end),
                (0, replica, iteration, "grads-reduce-scatter", -1, end, last + 2),
                (0, replica, iteration, "optimizer", -1, last + 2, last + 3),
            ]
    measured = recorded_slowdowns(table(*rows))

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
    meets = draw(st.sampled_from([(), ("grads-reduce-scatter",), ("params-all-gather",)]))
    for iteration in range(draw(st.integers(1, 2))):
        for replica in range(draw(st.integers(1, 3))):
            at = [0, 0]
            for microbatch in range(draw(st.integers(1, 2))):
                for stage in range(2):
                    for phase in ("forward", "backward"):
                        end = at[stage] + draw(took)
                        key = stage, replica, iteration
                        rows.append((*key, f"{phase}-compute", microbatch, at[stage], end))
                        at[stage] = end + draw(took)
                    if stage == 0:
                        rows.append((*key, "forward-send", microbatch, at[0], at[0] + 2))
                        rows.append((1, *key[1:], "forward-recv", microbatch, at[1], at[0] + 2))
                        at[1] = max(at[1], at[0] + 2)
            for stage in range(2):
                for kind in (*meets, *draw(st.sampled_from([(), ("optimizer",)]))):
                    end = at[stage] + draw(took)
                    rows.append((stage, replica, iteration, kind, -1, at[stage], end))
                    at[stage] = end
    return rows


@given(replicated(), st.randoms(use_true_random=False))
def test_groups_that_are_replayed_apart_take_as_long_as_one_by_one(
    rows: list[Row], random: Random
) -> None:
    work, order = recorded(table(*rows))
    scenarios = scenarios_of(work, order)
    if scenarios is None:
        return
    for label in (work.replica, np.array([random.randint(-1, 2) for _ in range(len(work))])):
        values = distinct(label[label >= 0])
        expected = scenarios.put_back([(label, value) for value in values.tolist()])
        assert scenarios.put_back_apart(label, values).tolist() == expected.tolist()
