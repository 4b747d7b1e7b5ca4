"""Numbers of distinct rows, held against Python's own sorting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.grouping import (
    distinct,
    first_of_each,
    found_in,
    groups_of,
    least_of_each,
    without,
)

_VALUES = st.one_of(st.integers(-2, 3), st.sampled_from([-(2**63), 2**63 - 1, 2**40, 2**31]))


def test_no_rows() -> None:
    groups = groups_of(np.empty(0, np.int64), np.empty(0, np.int64))
    assert len(groups) == 0
    assert groups.of_row.tolist() == []


def test_one_row() -> None:
    groups = groups_of(np.array([-1], np.int64))
    assert (groups.of_row.tolist(), groups.first.tolist()) == ([0], [0])


@given(st.lists(st.tuples(*[_VALUES] * 5), min_size=1, max_size=30))
def test_numbers_are_places_in_sorted_order(rows: list[tuple[int, ...]]) -> None:
    columns = np.array(rows, dtype=np.int64).T
    groups = groups_of(*columns)
    distinct = sorted(set(rows))
    assert groups.of_row.tolist() == [distinct.index(row) for row in rows]
    assert groups.first.tolist() == [rows.index(row) for row in distinct]


@given(st.sets(_VALUES), st.lists(_VALUES))
def test_values_are_found_where_they_stand(known: set[int], values: list[int]) -> None:
    ascending = sorted(known)
    at = found_in(np.array(ascending, np.int64), np.array(values, np.int64))
    assert at.tolist() == [ascending.index(v) if v in known else -1 for v in values]


def test_the_first_of_each_group_is_the_first_of_equal_rows() -> None:
    group, by = np.array([2, 1, 2, 1, 2]), np.array([5, 3, 4, 3, 4])

    assert first_of_each(group, by).tolist() == [1, 2]
    assert first_of_each(group[:0], by[:0]).tolist() == []


@given(st.lists(st.integers(-3, 3)), st.lists(st.integers(-3, 3)))
def test_distinct_values_are_those_of_sets(some: list[int], more: list[int]) -> None:
    first, second = np.array(some, np.int64), np.array(more, np.int64)

    assert distinct(first, second).tolist() == sorted({*some, *more})
    assert without(first, second).tolist() == sorted({*some} - {*more})


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3))), st.integers(6, 8))
def test_the_least_of_each_group_is_its_first(rows: list[tuple[int, int]], groups: int) -> None:
    group, values = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))

    expected = [
        min((value, at) for at, (own, value) in enumerate(rows) if own == number)[1]
        if number in group
        else -1
        for number in range(groups)
    ]
    assert least_of_each(group, groups, values).tolist() == expected


@given(st.lists(st.integers(-70, 70)), st.integers(0, 2000), st.sampled_from(("int16", "int64")))
def test_distinct_values_of_many_rows_are_those_of_few(
    values: list[int], times: int, kind: str
) -> None:
    column = np.array(values * (1 + times // 100), kind)

    found = distinct(column)

    assert (found.dtype, found.tolist()) == (np.dtype(kind), sorted(set(values)))
