"""Shortest paths between clocks, and which of them bound each other, held against SciPy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, johnson

from bubbleviz.align.clock_segments import DRIFT, ClockSegments, bands, feasible, segmented
from bubbleviz.align.offsets import middles

CLOCKS, LAST_NS = 5, 10_000_000
#: A pair of events on two clocks: the first is earlier by so much.
PAIRS = st.lists(
    st.tuples(
        st.integers(0, CLOCKS - 1),
        st.integers(1, CLOCKS - 1),
        st.integers(0, LAST_NS),
        st.integers(0, 10_000),
    ),
    max_size=40,
)


def segments_of(pairs: list[tuple[int, int, int, int]]) -> ClockSegments:
    """Return the bounds of pairs of (clock, places to the other one, time, how much earlier)."""
    before, step, after_ns, early_ns = np.array(pairs, np.int64).reshape(-1, 4).T
    after = (before + step) % CLOCKS
    times = (after_ns - early_ns).astype(np.float64), after_ns.astype(np.float64)
    extents = np.zeros(CLOCKS), np.full(CLOCKS, float(LAST_NS))
    return segmented(before, after, *times, *extents)


def searched(segments: ClockSegments, *, reverse: bool) -> list[list[float]]:
    """Return shortest paths from the first clock, or to it, in each segment, by Johnson's."""
    count = len(segments.middle_ns)
    node = np.arange(CLOCKS * count).reshape(CLOCKS, count)
    graph = np.full((CLOCKS * count, CLOCKS * count), np.inf)
    drift = np.full(CLOCKS * (count - 1), DRIFT / 2 * segments.length_ns)
    for tail, head, length in (
        (node[segments.after, segments.segment], node[segments.before, segments.segment], None),
        (node[:, :-1].ravel(), node[:, 1:].ravel(), drift),
        (node[:, 1:].ravel(), node[:, :-1].ravel(), drift),
    ):
        graph[tail, head] = segments.limit_ns if length is None else length
    rows, columns = np.nonzero(np.isfinite(graph))
    arcs = csr_array((graph[rows, columns], (rows, columns)), shape=graph.shape)
    paths = johnson(arcs.T.tocsr() if reverse else arcs, indices=node[0])
    at = np.arange(count)
    found: list[list[float]] = paths.reshape(count, CLOCKS, count)[at, :, at].T.tolist()
    return found


@given(PAIRS)
def test_bands_are_shortest_paths(pairs: list[tuple[int, int, int, int]]) -> None:
    segments = segments_of(pairs)

    least, most = bands(segments, np.zeros(segments.captured.shape), 0.0, 0)

    np.testing.assert_allclose(most, searched(segments, reverse=False), rtol=1e-12, atol=1e-6)
    np.testing.assert_allclose(-least, searched(segments, reverse=True), rtol=1e-12, atol=1e-6)


def test_a_shortest_path_comes_to_a_clock_again_and_again() -> None:
    # Clock 2 rises against clock 1 from 0 to 2 steps of drift and falls back, ten times; only
    # where it rises is it the shorter way through time.
    count, step_ns = 31, DRIFT / 2 * 1e6
    rises = [(1, 2, 3 * k, 0.0) for k in range(10)]
    falls = [(2, 1, 3 * k + 2, -2 * step_ns) for k in range(10)]
    arcs = [(0, 1, 0, 0.0), *rises, *falls, (1, 3, count - 1, 0.0)]
    after, before, segment = np.array([arc[:3] for arc in arcs], np.int64).T
    limit_ns = np.array([arc[3] for arc in arcs], np.float64)
    middle_ns = 1e6 * np.arange(0.5, count, dtype=np.float64)
    captured = np.ones((CLOCKS, count), bool)
    segments = ClockSegments(1e6, middle_ns, after, before, segment, limit_ns, captured)
    potential = feasible(segments, 0.0)
    assert potential is not None

    _, most = bands(segments, potential, 0.0, 0)

    np.testing.assert_allclose(most, searched(segments, reverse=False), rtol=1e-12, atol=1e-6)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7))), st.integers(0, 7))
def test_clocks_are_known_that_reach_the_reference_and_are_reached(
    arcs: list[tuple[int, int]], reference: int
) -> None:
    limit = np.full((8, 8), np.inf)
    for after, before in arcs:
        limit[after, before] = 1.0
    np.fill_diagonal(limit, 0.0)

    known = middles(limit, reference)[1]

    _, part = connected_components(csr_array(np.isfinite(limit)), connection="strong")
    assert known.tolist() == (part == part[reference]).tolist()
