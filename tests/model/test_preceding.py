"""Preceding rows against a loop over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.intervals import last_before

PLACES = st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), max_size=8)


@pytest.mark.parametrize("or_at", [False, True])
def test_nothing(or_at: bool) -> None:
    none, one = np.empty(0, np.int64), np.ones(1, np.int64)

    assert last_before(none, none, none, none, or_at=or_at).tolist() == []
    assert last_before(none, none, one, one, or_at=or_at).tolist() == [-1]
    assert last_before(one, one, none, none, or_at=or_at).tolist() == []


@given(PLACES, PLACES, st.booleans(), st.booleans())
def test_the_last_row_of_the_group(
    rows: list[tuple[int, int]], wanted: list[tuple[int, int]], or_at: bool, ordered: bool
) -> None:
    if ordered:
        rows = sorted(rows)

    def expected(group: int, time_ns: int) -> int:
        earlier = [
            (at, row) for row, (own, at) in enumerate(rows) if own == group and at < time_ns + or_at
        ]
        return max(earlier)[1] if earlier else -1

    group, time_ns = np.array(rows, np.int64).reshape(-1, 2).T
    wanted_group, wanted_ns = np.array(wanted, np.int64).reshape(-1, 2).T
    found = last_before(group, time_ns, wanted_group, wanted_ns, or_at=or_at)

    assert found.tolist() == [expected(*place) for place in wanted]


@given(st.booleans())
def test_rows_in_order_that_fit_on_no_line(or_at: bool) -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    group, time_ns = np.array([0, 0, 1]), np.array([low, high, 5])
    found = last_before(group, time_ns, np.array([0, 1]), np.array([6, 6]), or_at=or_at)

    assert found.tolist() == [0, 2]


@pytest.mark.parametrize("or_at", [False, True])
def test_groups_may_have_any_numbers(or_at: bool) -> None:
    group = np.array([7, 1 << 50, 1 << 50])
    time_ns = np.array([5, 5, 6])
    row = last_before(group, time_ns, np.array([1 << 50, 8]), np.array([6, 9]), or_at=or_at)
    assert row.tolist() == [2 if or_at else 1, -1]
