"""Medians of groups and of the others, against plain Python."""

from __future__ import annotations

import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.explain.diagnosis.fault import group_medians, others_medians

_ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20)


def test_nothing_has_no_median() -> None:
    nothing = np.zeros(0)
    assert group_medians(np.zeros(0, np.int64), 0, nothing).tolist() == []
    assert others_medians(np.zeros(0, np.int64), nothing).tolist() == []


@given(_ROWS)
def test_groups(rows: list[tuple[int, int]]) -> None:
    group = np.array([g for g, _ in rows], np.int64)
    values = np.array([v for _, v in rows], np.float64)
    expected = [
        statistics.median_low(own) if (own := [v for g, v in rows if g == number]) else None
        for number in range(4)
    ]
    found = group_medians(group, 4, values).tolist()
    assert [None if np.isnan(v) else v for v in found] == expected


@given(_ROWS)
def test_others(rows: list[tuple[int, int]]) -> None:
    group = np.array([g for g, _ in rows], np.int64)
    values = np.array([v for _, v in rows], np.float64)
    expected = []
    for row, (own, _) in enumerate(rows):
        others = [v for n, (g, v) in enumerate(rows) if g == own and n != row]
        expected.append(statistics.median(others) if others else None)
    found = others_medians(group, values).tolist()
    assert [None if np.isnan(v) else v for v in found] == expected
