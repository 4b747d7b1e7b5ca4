"""The replay: against one in plain Python, on any work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.replay import Kind, Role, Work, replay_of
from bubbleviz.explain.slowdown.run_work import delays_of, measured_ns
from tests.support.recorded_work import NO_ORDER
from tests.support.slow_replay import slow_ends

KINDS = (
    Kind("F", Role.FORWARD, "F"),
    Kind("recv", Role.RECV_F, "recv"),
    Kind("Optimizer", Role.OPTIMIZER, "Optimizer"),
)


def work_of(rows: list[tuple[int, int, int, int, int, int]]) -> Work:
    """Return work of (rank, iteration, kind, start, end, meeting)."""
    columns = np.array(rows, np.int64).reshape(-1, 6).T.copy()
    rank, iteration, kind, start_ns, end_ns, meeting = columns
    none = np.full(len(rank), -1, np.int64)
    return Work(
        rank, rank, none, iteration, kind, none, none, none, start_ns, end_ns, meeting, KINDS
    )


def order_of(*pairs: tuple[int, int]) -> Dependencies:
    """Return an order of (row, before)."""
    columns = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    return Dependencies(columns[0], columns[1])


@st.composite
def works(
    draw: st.DrawFn,
) -> tuple[Work, Dependencies, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    """Draw work, its order (which may run in circles), and its times in two scenarios."""
    small = st.integers(0, 3)
    rows = draw(
        st.lists(st.tuples(small, small, st.integers(0, 2), small, small, st.just(-1)), max_size=12)
    )
    rows = [(r, i, k, start, start + length, m) for r, i, k, start, length, m in rows]
    place = st.integers(0, max(0, len(rows) - 1))
    pairs = draw(st.lists(st.tuples(place, place), max_size=20)) if rows else []
    iteration = [row[1] for row in rows]
    backwards = draw(st.booleans())
    pairs = [
        (row, before)
        for row, before in pairs
        if iteration[row] == iteration[before] and (row > before or backwards)
    ]
    meetings = [draw(st.integers(-1, 2)) for _ in rows]
    rows = [
        (*row[:5], -1 if m < 0 else 3 * row[1] + m) for row, m in zip(rows, meetings, strict=True)
    ]
    times = draw(
        st.lists(
            st.lists(st.integers(-2, 9), min_size=2, max_size=2),
            min_size=len(rows),
            max_size=len(rows),
        )
    )
    return work_of(rows), order_of(*pairs), np.array(times, np.int64).reshape(-1, 2)


def test_the_last_optimizer_ends_an_iteration() -> None:
    """Of a rank without any, all work counts."""
    rows = [(0, 0, 2, 0, 4, -1), (0, 0, 0, 0, 9, -1), (1, 0, 0, 0, 5, -1), (0, 1, 0, 0, 9, -1)]
    work = work_of(rows)

    assert replay_of(work, NO_ORDER).lengths_ns(
        work.own_ns[:, None], np.zeros(len(work), np.int64)
    ).tolist() == [[5], [9]]


def test_an_iteration_in_a_circle_is_left_out() -> None:
    work = work_of([(0, 0, 0, 0, 1, -1), (0, 0, 0, 1, 2, -1), (0, 1, 0, 0, 5, -1)])
    replay = replay_of(work, order_of((0, 1), (1, 0)))

    assert replay.iterations.tolist() == [1]
    assert replay.unordered.tolist() == [0, 1]


@given(works())
def test_equal_to_one_row_at_a_time(
    drawn: tuple[Work, Dependencies, np.ndarray[tuple[int, int], np.dtype[np.int64]]],
) -> None:
    work, order, times = drawn
    replay = replay_of(work, order)
    for delay_ns in (np.zeros(len(work), np.int64), np.arange(len(work)) % 3):
        ends = replay.ends_ns(times, delay_ns)[: len(replay.rows)].T.tolist()
        expected = [
            slow_ends(work, order, times[:, scenario].tolist(), delay_ns.tolist())
            for scenario in range(2)
        ]

        assert ends == [[of[row] for row in replay.rows.tolist()] for of in expected]
        never = [row for row, end in enumerate(expected[0]) if end is None]
        assert replay.unordered.tolist() == never
        lost = {int(work.iteration[row]) for row in never}
        assert set(replay.iterations.tolist()) == set(work.iteration.tolist()) - lost


@given(works())
def test_with_its_delays_an_iteration_takes_as_long_as_measured(
    drawn: tuple[Work, Dependencies, np.ndarray[tuple[int, int], np.dtype[np.int64]]],
) -> None:
    work, order, _ = drawn
    work = replace(work, kind=np.minimum(work.kind, 1))
    replay = replay_of(work, order)
    lengths = replay.lengths_ns(work.own_ns[:, None], delays_of(work, order))[:, 0]

    assert lengths.tolist() == measured_ns(work, replay.iterations).tolist()
