"""Distinct rows and value lookups agree with Python's sets and dictionaries."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.columns import NONE, make_constant
from bubbleviz.model.grouping import find_distinct_rows, lookup_values
from bubbleviz.model.intervals import group_latest

NUMBERS = st.integers(-2, 3)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans()), max_size=12)


@given(ROWS)
def test_distinct_rows_are_taken_from_the_chosen_rows(rows: list[tuple[int, int, bool]]) -> None:
    first, second, mask = np.array(rows, np.int64).reshape(-1, 3).T
    distinct = find_distinct_rows(first, second, mask=mask == 1)
    expected = sorted(
        {(first_value, second_value) for first_value, second_value, is_chosen in rows if is_chosen}
    )
    assert [tuple(row) for row in distinct.T.tolist()] == expected


@given(st.dictionaries(st.tuples(NUMBERS, NUMBERS), NUMBERS, max_size=8), NUMBERS, ROWS)
def test_rows_are_looked_up_by_columns_of_one_value(
    value_of_key: dict[tuple[int, int], int], value: int, rows: list[tuple[int, int, bool]]
) -> None:
    first, second = np.array([*value_of_key], np.int64).reshape(-1, 2).T
    values, first_keys = (
        np.array([*value_of_key.values()], np.int64),
        np.array([row[0] for row in rows], np.int64),
    )
    values_found = lookup_values(
        (first, second), values, (first_keys, make_constant(value, len(rows)))
    )
    assert values_found.tolist() == [value_of_key.get((row[0], value), NONE) for row in rows]
    constant_keys = first[second == value], second[second == value]
    values_found = lookup_values(
        constant_keys, values[second == value], (first_keys, make_constant(value, len(rows)))
    )
    assert values_found.tolist() == [value_of_key.get((row[0], value), NONE) for row in rows]


def test_a_group_without_rows_has_no_latest_time() -> None:
    times_ns = np.array([5, -7, 3], np.int32)
    assert group_latest(np.array([2, 0, 2], np.int16), 3, times_ns, -9).tolist() == [-7, -9, 5]
