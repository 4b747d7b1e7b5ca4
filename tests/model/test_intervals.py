"""Sets of intervals against sets of points; which interval or row is around or before a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints
from bubbleviz.model.intervals import Innermost, last_before
from bubbleviz.native.library import SWITCH

# Sets of intervals against sets of integers.


SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=8)


def columns(spans: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    start, end = zip(*spans, strict=True) if spans else ((), ())
    return np.array(start, np.int64), np.array(end, np.int64)


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def pairs(found: intervals.Intervals) -> list[tuple[int, int]]:
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


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

    cover = intervals.GroupCover((group, start_ns, end_ns), 8)
    found = cover.within(asked, low, low + length)

    covered = [*map(points, spans), *[set[int]()] * 3]
    assert found.tolist() == [len(covered[g] & set(range(a, a + n))) for g, a, n in windows]


@given(SPANS, SPANS, st.booleans())
def test_difference(a: list[tuple[int, int]], b: list[tuple[int, int]], compiled: bool) -> None:
    one, two = intervals.union(*columns(a)), intervals.union(*columns(b))
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setenv(SWITCH, "0")
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


# The innermost interval against a loop over all of them.


TIMES = st.integers(0, 12)
CONTAINMENT_SPANS = st.lists(st.tuples(TIMES, TIMES).map(sorted), max_size=8)


def of(spans: list[list[int]]) -> Innermost:
    start = np.array([s for s, _ in spans], np.int64)
    end = np.array([e for _, e in spans], np.int64)
    return Innermost.of(start, end)


def plain(spans: list[list[int]], start: int, end: int) -> int:
    """Return the shortest around [start, end]; ties: later start, then later row; -1 none."""
    around = [(s - e, s, row) for row, (s, e) in enumerate(spans) if s <= start and end <= e]
    return max(around, default=(0, 0, -1))[2]


@given(CONTAINMENT_SPANS, st.lists(st.tuples(TIMES, TIMES).map(sorted), max_size=6))
def test_the_innermost_is_the_shortest_around(
    spans: list[list[int]], asked: list[list[int]]
) -> None:
    found = of(spans).around(
        np.array([s for s, _ in asked], np.int64), np.array([e for _, e in asked], np.int64)
    )

    assert found.tolist() == [plain(spans, start, end) for start, end in asked]


@given(CONTAINMENT_SPANS)
def test_layers_hold_every_row_once_and_never_overlap(spans: list[list[int]]) -> None:
    layers = of(spans).layers

    assert sorted(row for layer in layers for row in layer.tolist()) == list(range(len(spans)))
    for layer in layers:
        held = [spans[row] for row in layer.tolist()]
        assert all(a[1] < b[0] for a, b in itertools.pairwise(held))


# Preceding rows against a loop over all of them.


PLACES = st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), max_size=8)


@given(PLACES, PLACES, st.booleans())
def test_the_last_row_of_the_group(
    rows: list[tuple[int, int]], wanted: list[tuple[int, int]], or_at: bool
) -> None:
    def expected(group: int, time_ns: int) -> int:
        earlier = [
            (at, row) for row, (own, at) in enumerate(rows) if own == group and at < time_ns + or_at
        ]
        return max(earlier)[1] if earlier else -1

    group, time_ns = np.array(rows, np.int64).reshape(-1, 2).T
    wanted_group, wanted_ns = np.array(wanted, np.int64).reshape(-1, 2).T
    found = last_before(group, time_ns, wanted_group, wanted_ns, or_at=or_at)

    assert found.tolist() == [expected(*place) for place in wanted]


@pytest.mark.parametrize("or_at", [False, True])
def test_groups_may_have_any_numbers(or_at: bool) -> None:
    group = np.array([7, 1 << 50, 1 << 50])
    time_ns = np.array([5, 5, 6])
    row = last_before(group, time_ns, np.array([1 << 50, 8]), np.array([6, 9]), or_at=or_at)
    assert row.tolist() == [2 if or_at else 1, -1]
