"""Slowdowns of small recorded tables."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.explain.slowdown.replay import Work
from bubbleviz.explain.slowdown.slowdowns import ideal_times, scenarios_of
from bubbleviz.model.grouping import distinct
from tests.support.recorded_work import Row, recorded, recorded_slowdowns, table


def test_nothing_has_no_slowdown() -> None:
    assert recorded_slowdowns(table()) is None
    assert scenarios_of(*recorded(table())) is None


def test_work_without_length_has_no_slowdown() -> None:
    assert recorded_slowdowns(table((0, 0, 0, "optimizer", -1, 5, 5))) is None


def test_one_rank_one_iteration_is_ideal() -> None:
    measured = recorded_slowdowns(table((0, 0, 3, "forward-compute", 0, 0, 4)))

    assert measured is not None
    assert (measured.total, measured.by_rank, measured.by_iteration) == (1, {0: 1}, {3: 1})
    assert measured.worker_share is None
    assert measured.last_stage_share is None


def test_means_of_computes_and_medians_of_transfers() -> None:
    work, _ = recorded(
        table(
            *((0, 0, n, "forward-compute", 0, 0, end) for n, end in enumerate((1, 2, 9))),
            *((0, 0, n, "optimizer", 0, 9, 9 + end) for n, end in enumerate((1, 2, 9))),
            *((0, 0, n, "params-all-gather", 0, 0, end) for n, end in enumerate((1, 2, 9))),
            (0, 0, 0, "layernorm-grads-all-reduce", 0, 0, 2),
            (0, 0, 1, "layernorm-grads-all-reduce", 0, 0, 8),
        )
    )

    assert ideal_times(work, work.own_ns).tolist() == [4] * 6 + [2] * 3 + [5] * 2


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


def test_a_send_and_its_receive_move_data_once_both_are_there() -> None:
    rows: list[Row] = [
        (0, 0, 0, "forward-compute", 0, 0, 10),
        (0, 0, 0, "forward-send", -1, 10, 13),
        (1, 0, 0, "forward-recv", -1, 0, 13),
        (1, 0, 0, "forward-compute", 0, 13, 33),
        (1, 0, 0, "optimizer", -1, 33, 34),
    ]
    work, order = recorded(table(*rows))
    scenarios = scenarios_of(work, order)

    assert work.own_ns.tolist() == [10, 3, 3, 20, 1]
    assert work.meeting[1] == work.meeting[2] >= 0
    assert scenarios is not None
    assert (scenarios.original, scenarios.ideal) == (34, 34)


def test_a_step_that_a_rank_lacks() -> None:
    """Collectives meet among those that are there."""
    rows: list[Row] = []
    for iteration, replica in ((0, 0), (0, 1), (1, 0)):
        rows += [
            (0, replica, iteration, "forward-compute", 0, 0, 10),
            (0, replica, iteration, "grads-reduce-scatter", -1, 10, 12),
            (0, replica, iteration, "optimizer-clip-main-grad", -1, 12, 13),
            (0, replica, iteration, "optimizer", -1, 13, 14),
        ]
    measured = recorded_slowdowns(table(*rows))

    assert measured is not None
    assert measured.by_iteration == {0: 1, 1: 1}
    assert measured.replay_error.maximum_with_delays == 0


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


# Messages: what sends and receives follow, and whom they meet.

#: (stage, kind, model chunk or -1, start, end) of one iteration.
Chunked = tuple[int, str, int, int, int]


def chunked(*rows: Chunked) -> Work:
    """Return work of two stages with several model chunks each."""
    work = table(*((stage, 0, 0, kind, -1, start, end) for stage, kind, _, start, end in rows))
    chunk = np.array([row[2] for row in rows], np.int64)
    return replace(work, chunk=chunk, virtual_stage=np.where(chunk < 0, -1, 2 * chunk + work.stage))


def follows(work: Work) -> set[tuple[int, int]]:
    """Return pairs of rows of which the first follows the second."""
    order = recorded(work)[1]
    return set(zip(order.after.tolist(), order.before.tolist(), strict=True))


def meets(work: Work) -> list[tuple[int, ...]]:
    """Return the rows of each meeting."""
    meeting = recorded(work)[0].meeting
    return sorted(
        tuple(np.flatnonzero(meeting == number).tolist())
        for number in set(meeting.tolist())
        if number >= 0
    )


#: Two chunks a stage: data goes 0 > 1 > 0 > 1; the last row is the first receive, of nothing.
TWO_CHUNKS: tuple[Chunked, ...] = (
    (0, "forward-compute", 0, 1_000_000, 2_000_000),
    (0, "forward-send", -1, 2_000_000, 2_100_000),
    (0, "forward-recv", -1, 2_100_000, 3_200_000),
    (0, "forward-compute", 1, 3_200_000, 4_200_000),
    (0, "forward-send", -1, 4_200_000, 4_300_000),
    (1, "forward-recv", -1, 1_000_000, 2_100_000),
    (1, "forward-compute", 0, 2_100_000, 3_100_000),
    (1, "forward-send", -1, 3_100_000, 3_200_000),
    (1, "forward-recv", -1, 3_200_000, 4_300_000),
    (1, "forward-compute", 1, 4_300_000, 5_300_000),
    (1, "forward-send", -1, 5_300_000, 5_300_001),
    (0, "forward-recv", -1, 900_000, 900_001),
)


@pytest.mark.parametrize("rows", [TWO_CHUNKS, TWO_CHUNKS[:-1]])
def test_sends_meet_receives_of_the_next_chunk(rows: tuple[Chunked, ...]) -> None:
    """The first receive of the model, recorded or not, and its last send meet nobody."""
    assert meets(chunked(*rows)) == [(1, 5), (2, 7), (4, 8)]


def test_a_receive_follows_the_compute_before_its_own() -> None:
    found = follows(chunked(*TWO_CHUNKS))

    assert {(1, 0), (4, 3), (3, 2), (2, 0), (6, 5), (9, 8), (8, 6)} <= found
    assert (5, 6) not in found
    assert (4, 1) in found


def test_the_first_backward_messages_follow_the_forward_before_the_last() -> None:
    rows: list[Row] = [
        (0, 0, 0, "forward-compute", 0, 0, 10),
        (0, 0, 0, "forward-compute", 1, 10, 20),
        (0, 0, 0, "forward-compute", 2, 20, 30),
        (0, 0, 0, "backward-recv", -1, 30, 40),
        (0, 0, 0, "backward-compute", 0, 40, 60),
    ]

    assert (3, 1) in follows(table(*rows))
    assert (3, 0) not in follows(table(*rows))
