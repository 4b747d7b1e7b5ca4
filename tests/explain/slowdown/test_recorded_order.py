"""Recorded order: what rows of small tables follow, and whom they meet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bubbleviz.explain.slowdown.replay import Work
from tests.support.recorded_work import Row, point_to_point_of, recorded, table

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
    return set(zip(order.row.tolist(), order.before.tolist(), strict=True))


def meets(work: Work) -> list[tuple[int, ...]]:
    """Return the rows of each meeting."""
    meeting = recorded(work)[0].meeting
    return sorted(
        tuple(np.flatnonzero(meeting == number).tolist())
        for number in set(meeting.tolist())
        if number >= 0
    )


def test_nothing_follows_nothing() -> None:
    assert follows(table()) == set()
    assert len(point_to_point_of(table())) == 0


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


def test_what_lies_outside_of_the_computes_belongs_to_none() -> None:
    """A receive after the last forward began, and a send before the first ended, are of nothing."""
    rows = (
        *TWO_CHUNKS[:-1],
        (1, "forward-recv", -1, 5_000_000, 5_300_000),
        (0, "forward-send", -1, 100_000, 200_000),
    )
    work = chunked(*rows)
    messages = point_to_point_of(work)
    compute = dict(zip(messages.row.tolist(), messages.compute.tolist(), strict=True))

    assert compute[11] == compute[12] == -1
    assert meets(work) == [(1, 5), (2, 7), (4, 8)]


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


def test_parameters_come_before_the_first_forward_of_their_chunk() -> None:
    work = chunked(
        (0, "params-all-gather", 0, 0, 5),
        (0, "params-all-gather", 1, 5, 9),
        (0, "forward-compute", 0, 5, 20),
        (0, "forward-compute", 0, 20, 30),
        (0, "forward-compute", 1, 30, 40),
    )

    assert {(2, 0), (4, 1), (1, 0)} <= follows(work)
    assert (2, 1) not in follows(work)


ENDING: tuple[Row, ...] = (
    (0, 0, 0, "backward-compute", 0, 0, 10),
    (0, 0, 0, "layernorm-grads-all-reduce", -1, 10, 11),
    (0, 0, 0, "embedding-grads-all-reduce", -1, 11, 12),
    (0, 0, 0, "grads-reduce-scatter", -1, 12, 20),
    (0, 0, 0, "optimizer-clip-main-grad", -1, 20, 21),
    (0, 0, 0, "optimizer", -1, 21, 30),
)


def test_an_iteration_ends_in_its_order() -> None:
    assert follows(table(*ENDING)) == {(n + 1, n) for n in range(5)}


def test_kinds_that_were_not_recorded_are_passed_over() -> None:
    assert follows(table(ENDING[0], ENDING[4], ENDING[5])) == {(1, 0), (2, 1)}


def test_gradients_beside_backwards_end_before_layer_norm() -> None:
    """Each chunk's first scatter follows its last backward; separate ones come at the end."""
    work = chunked(
        (0, "backward-compute", 1, 0, 10),
        (0, "backward-compute", 1, 10, 20),
        (0, "grads-reduce-scatter", 1, 20, 35),
        (0, "backward-compute", 0, 20, 30),
        (0, "grads-reduce-scatter", 0, 35, 50),
        (0, "layernorm-grads-all-reduce", -1, 50, 51),
        (0, "separate-grads-all-reduce", -1, 51, 60),
        (0, "optimizer-clip-main-grad", -1, 60, 61),
        (0, "optimizer", -1, 61, 70),
    )

    assert follows(work) == {
        *((1, 0), (3, 1), (2, 1), (4, 2), (4, 3)),
        *((5, 3), (5, 4), (6, 5), (7, 6), (8, 7)),
    }


def test_ranks_of_one_place_meet_those_of_the_same_in_other_replicas() -> None:
    """Two tensor-parallel ranks a stage: the first meets the first."""
    rows = [
        (0, replica, 0, "grads-reduce-scatter", -1, 0, 5) for replica in range(2) for _ in range(2)
    ]
    work = replace(table(*rows), rank=np.arange(4))

    assert meets(work) == [(0, 2), (1, 3)]


def test_norms_meet_everywhere_and_embeddings_within_a_replica() -> None:
    rows: list[Row] = [
        (stage, replica, 0, kind, -1, 0, 5)
        for kind in ("optimizer-clip-main-grad", "embedding-grads-all-reduce")
        for replica in range(2)
        for stage in (0, 3)
    ]

    assert meets(table(*rows)) == [(0, 1, 2, 3), (4, 5), (6, 7)]
