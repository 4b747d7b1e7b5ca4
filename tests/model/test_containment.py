"""The innermost interval against intervaltree."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from intervaltree import IntervalTree

from bubbleviz.model.intervals import Innermost, disjoint_layers

TIMES = st.integers(0, 12)
SPANS = st.lists(st.tuples(TIMES, TIMES).map(sorted), max_size=8)


def of(spans: list[list[int]]) -> Innermost:
    start = np.array([s for s, _ in spans], np.int64)
    end = np.array([e for _, e in spans], np.int64)
    return Innermost.of(start, end)


def plain(spans: list[list[int]], start: int, end: int) -> int:
    """Return the shortest around [start, end]; ties: later start, then later row; -1 none."""
    tree = IntervalTree.from_tuples((s, e + 1, row) for row, (s, e) in enumerate(spans))
    around = [found for found in tree[start] if found.end - 1 >= end]
    return max(
        ((found.begin - found.end, found.begin, found.data) for found in around),
        default=(0, 0, -1),
    )[2]


def test_nothing_is_around_anything_when_there_is_nothing() -> None:
    assert of([]).around(np.array([3]), np.array([4])).tolist() == [-1]
    assert disjoint_layers(np.empty(0, np.int64), np.empty(0, np.int64)) == ()


def test_of_equal_intervals_the_later_row_is_innermost() -> None:
    assert of([[0, 5], [0, 5], [1, 6]]).around(np.array([2]), np.array([3])).tolist() == [2]
    assert of([[0, 5], [0, 5]]).around(np.array([2]), np.array([3])).tolist() == [1]


def test_ends_are_inside() -> None:
    index = of([[2, 4], [4, 6]])

    assert index.around(np.array([4, 2, 6]), np.array([4, 4, 6])).tolist() == [1, 0, 1]


@given(SPANS, st.lists(st.tuples(TIMES, TIMES).map(sorted), max_size=6))
def test_innermost_is_what_a_tree_finds(spans: list[list[int]], asked: list[list[int]]) -> None:
    found = of(spans).around(
        np.array([s for s, _ in asked], np.int64), np.array([e for _, e in asked], np.int64)
    )

    assert found.tolist() == [plain(spans, start, end) for start, end in asked]


@given(SPANS)
def test_layers_hold_every_row_once_and_never_overlap(spans: list[list[int]]) -> None:
    layers = of(spans).layers

    assert sorted(row for layer in layers for row in layer.tolist()) == list(range(len(spans)))
    for layer in layers:
        held = [spans[row] for row in layer.tolist()]
        assert all(a[1] < b[0] for a, b in itertools.pairwise(held))
