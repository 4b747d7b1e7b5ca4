"""Timing: end times of rows with predecessors and meetings, compared with a simple loop."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from bubbleviz.schedules.timing import (
    Timing,
    build_timing,
    compute_ends,
    compute_ends_of_scenarios,
    find_longest_path,
)

#: Index of the meeting of each row, or -1 if the row meets no other row.
_MEETINGS = st.lists(st.sampled_from((-1, -1, 0, 1)), min_size=1, max_size=8)
#: Pairs of (row, predecessor), possibly with cycles.
_FOLLOWING = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=9)


def _timing_of(meeting: list[int], following: list[tuple[int, int]]) -> Timing:
    """Return the timing of rows that are all in one group."""
    later_row, earlier_row = np.array(following, np.int64).reshape(-1, 2).T
    one_group = np.zeros(len(meeting), np.int64)
    return build_timing(later_row, earlier_row, np.array(meeting, np.int64), one_group)


def _ends_one_by_one(
    meeting: list[int], following: list[tuple[int, int]], own_ns: list[int], delay_ns: list[int]
) -> list[int] | None:
    """Return the end time of each row, or None if rows wait for each other in a cycle."""
    count = len(meeting)
    # A row without a meeting gets a meeting of its own.
    met = [-2 - row if meeting[row] == -1 else meeting[row] for row in range(count)]
    starts: dict[int, int] = {}
    end_of: dict[int, int] = {}
    for _ in range(2 * count):
        for row in range(count):
            followed = [before for after, before in following if after == row]
            if all(before in end_of for before in followed):
                latest = max((end_of[before] for before in followed), default=0)
                starts[row] = latest + delay_ns[row]
        for row in range(count):
            members = [other for other in range(count) if met[other] == met[row]]
            if all(member in starts for member in members):
                end_of[row] = max(starts[member] for member in members) + own_ns[row]
    return [end_of[row] for row in range(count)] if len(end_of) == count else None


@given(_MEETINGS, _FOLLOWING, st.data())
@example([-1, -1, 0, 0], [(1, 0), (2, 0), (3, 1), (3, 1)], None)
@example([-1, 0], [(0, 1), (1, 0)], None)
def test_rows_end_at_the_same_times_as_one_by_one(
    meeting: list[int], following: list[tuple[int, int]], data: st.DataObject | None
) -> None:
    count = len(meeting)
    following = [(after % count, before % count) for after, before in following]
    lengths = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    own_ns, other_ns, delay_ns, other_delay_ns = (
        [data.draw(lengths) for _ in range(4)]
        if data is not None
        else [[*range(k, k + count)] for k in range(4)]
    )
    timing = _timing_of(meeting, following)
    expected = _ends_one_by_one(meeting, following, own_ns, delay_ns)
    if expected is None:
        assert len(timing.rows) == 0
        assert len(timing.unordered)
        return
    with_other_delay = _ends_one_by_one(meeting, following, other_ns, other_delay_ns)
    with_same_delay = _ends_one_by_one(meeting, following, other_ns, delay_ns)

    durations_ns = np.array((own_ns, other_ns), np.int64).T[timing.rows]
    delays = np.array((delay_ns, other_delay_ns), np.int64).T[timing.rows]
    single = timing.compute_ends(durations_ns[:, :1], delays[:, 0])
    shared_delay = timing.compute_ends(durations_ns, delays[:, 0])
    own_delays = timing.compute_ends(durations_ns, delays)

    by_row = np.argsort(timing.rows)
    assert sorted(timing.rows.tolist()) == list(range(count))
    assert single[by_row].T.tolist() == [expected]
    assert shared_delay[by_row].T.tolist() == [expected, with_same_delay]
    assert own_delays[by_row].T.tolist() == [expected, with_other_delay]


#: Predecessors of each row as (distance in rows, lag of the edge).
_FOLLOWED = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(-1, 3)), max_size=3), min_size=1, max_size=9
)
_LAGS = (0, 4, 7, 2)


@given(_FOLLOWED, st.lists(st.integers(0, 9), min_size=9, max_size=9))
def test_ends_of_one_and_of_many_scenarios_are_the_longest_paths(
    followed: list[list[tuple[int, int]]], times: list[int]
) -> None:
    edges = [
        [(row - back, lag) for back, lag in edges_of_row if back <= row]
        for row, edges_of_row in enumerate(followed)
    ]
    durations = times[: len(edges)]

    def paths_to(row: int) -> list[int]:
        """Return the length of each path to the end of a row."""
        lengths = [
            length + (0 if lag == -1 else _LAGS[lag])
            for before, lag in edges[row]
            for length in paths_to(before)
        ]
        return [length + durations[row] for length in lengths or [0]]

    computed_ends = compute_ends(edges, durations, _LAGS)
    doubled = compute_ends_of_scenarios(
        edges,
        [np.array((time, 2 * time)) for time in durations],
        [np.array((1, 2)) * lag for lag in _LAGS],
    )
    last = len(edges) - 1
    path = find_longest_path(last, edges, computed_ends, durations, _LAGS)
    length = sum(durations[row] + (0 if lag == -1 else _LAGS[lag]) for row, lag in path)

    assert computed_ends == [max(paths_to(row)) for row in range(len(edges))]
    assert doubled.tolist() == [[end, 2 * end] for end in computed_ends]
    assert path[0][0] == last
    assert length == computed_ends[last]
