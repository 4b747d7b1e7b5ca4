"""Sets of intervals against sets of integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints
from bubbleviz.native.library import SWITCH

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=8)


def columns(spans: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    start, end = zip(*spans, strict=True) if spans else ((), ())
    return np.array(start, np.int64), np.array(end, np.int64)


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def pairs(found: intervals.Intervals) -> list[tuple[int, int]]:
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


def test_nothing_is_the_empty_set() -> None:
    nothing = intervals.empty()

    assert pairs(intervals.union(*nothing)) == []
    assert pairs(intervals.difference(nothing, nothing)) == []
    assert intervals.measure(nothing) == 0
    assert intervals.measure_within(nothing, np.array([3]), np.array([9])).tolist() == [0]
    sets = np.empty(0, np.int64), *nothing
    asked = np.array([3, 0]), np.array([3, -5]), np.array([9, 2])
    assert intervals.measure_in_groups(sets, *asked).tolist() == [0, 0]
    assert intervals.GroupCover(sets, 4).within(*asked).tolist() == [0, 0]


def test_touching_intervals_merge_and_empty_ones_vanish() -> None:
    assert pairs(intervals.union(*columns([(5, 9), (0, 5), (3, 3), (12, 11)]))) == [(0, 9)]


@given(SPANS)
def test_union(spans: list[tuple[int, int]]) -> None:
    found = pairs(intervals.union(*columns(spans)))

    assert points(found) == points(spans)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@given(
    st.lists(SPANS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 25), st.integers(0, 12)), max_size=6),
)
def test_windows_of_groups(
    spans: list[list[tuple[int, int]]], windows: list[tuple[int, int, int]]
) -> None:
    sets = [intervals.union(*columns(of_group)) for of_group in spans]
    group = np.repeat(np.arange(len(sets)), [len(start) for start, _ in sets])
    start_ns, end_ns = (np.concatenate(column) for column in zip(*sets, strict=True))
    asked, low, length = np.array(windows, np.int64).reshape(-1, 3).T

    found = intervals.measure_in_groups((group, start_ns, end_ns), asked, low, low + length)
    cover = intervals.GroupCover((group, start_ns, end_ns), 8)
    assert cover.within(asked, low, low + length).tolist() == found.tolist()

    covered = [*map(points, spans), *[set[int]()] * 3]
    assert found.tolist() == [len(covered[g] & set(range(a, a + n))) for g, a, n in windows]


@given(SPANS, SPANS)
def test_difference(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, two = intervals.union(*columns(a)), intervals.union(*columns(b))

    assert points(pairs(intervals.difference(one, two))) == points(a) - points(b)


@given(SPANS, SPANS, st.integers(1, 4))
def test_difference_in_pieces(
    a: list[tuple[int, int]], b: list[tuple[int, int]], piece: int
) -> None:
    one, two = intervals.union(*columns(a)), intervals.union(*columns(b))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "0")
        patch.setattr(intervals, "_PIECE", piece)
        found = pairs(intervals.difference(one, two))

    assert points(found) == points(a) - points(b)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@given(SPANS, st.integers(-2, 22), st.integers(-2, 22))
def test_measure_within(spans: list[tuple[int, int]], low: int, high: int) -> None:
    low, high = sorted((low, high))
    covered = intervals.measure_within(
        intervals.union(*columns(spans)), np.array([low]), np.array([high])
    )

    assert covered.tolist() == [len(points(spans) & set(range(low, high)))]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 9)), max_size=9))
def test_groups_do_not_touch_each_other(rows: list[tuple[int, int, int]]) -> None:
    group = np.array([g for g, _, _ in rows], np.int64)
    start = np.array([s for _, s, _ in rows], np.int64)
    end = start + np.array([n for _, _, n in rows], np.int64)

    expected = [len(points([(s, s + n) for g, s, n in rows if g == own])) for own in range(4)]
    assert intervals.group_measure(group, 4, start, end).tolist() == expected


@pytest.mark.parametrize("shift", [0, 1_700_000_000_000_000_000])
def test_large_times_stay_exact(shift: int) -> None:
    start = np.array([shift, shift + 1], np.int64)
    end = np.array([shift + 3, shift + 5], np.int64)

    assert intervals.group_measure(np.array([0, 1]), 2, start, end).tolist() == [3, 4]
