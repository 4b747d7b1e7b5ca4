"""Offsets of clocks: the solver against known truth, and against a linear program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bubbleviz.align.clock_segments import DRIFT
from bubbleviz.align.offsets import Precedences, Solution, solve, together

#: (before clock, after clock, before_ns, after_ns)
Pair = tuple[int, int, int, int]


def precedences(pairs: Sequence[Pair]) -> Precedences:
    """Return the pairs as a table; their rows are named by their place."""
    before, after, before_ns, after_ns = np.array(pairs, np.int64).reshape(-1, 4).T
    place = np.arange(len(pairs), dtype=np.int64)
    return Precedences(
        before, after, before_ns, after_ns, place, place.copy(), np.zeros_like(place)
    )


def solved(pairs: Sequence[Pair], clocks: int = 2, capture: int = 1_000) -> Solution:
    """Return the solution for clocks that all capture [0, capture]."""
    zero = np.zeros(clocks, np.int64)
    return solve(precedences(pairs), zero, zero + capture)


def test_nothing_bounds_a_clock_without_precedences() -> None:
    first, second = solved([]).corrections

    assert (first.offset_ns, first.uncertainty_ns) == (0, 0)
    assert (second.offset_ns, second.uncertainty_ns) == (0, None)


def test_one_clock_is_the_reference() -> None:
    (only,) = solved([], clocks=1).corrections

    assert (only.offset_ns, only.drift, only.uncertainty_ns) == (0, 0.0, 0)


def test_two_bounds_close_the_interval() -> None:
    # ProfileClock 1 moves right by at least -50 (its start) and at most 40 (its end).
    found = solved([(0, 1, 100, 150), (1, 0, 360, 400)])

    assert found.contradiction is None
    assert found.corrections[1].offset_ns == -5
    assert found.corrections[1].uncertainty_ns == 46  # 45, and the capture's drift rounded up


def test_a_bound_from_one_side_is_no_bound() -> None:
    assert solved([(0, 1, 100, 150)]).corrections[1].uncertainty_ns is None


def test_a_tie_gives_an_exact_offset() -> None:
    pairs = [(0, 1, 100, 170), (1, 0, 370, 300), (1, 0, 370, 300), (0, 1, 100, 170)]

    found = solved(pairs).corrections[1]

    assert (found.offset_ns, found.drift, found.uncertainty_ns) == (-70, 0.0, 1)


def test_clocks_are_bounded_through_others() -> None:
    pairs = [(0, 1, 0, 10), (1, 0, 0, 10), (1, 2, 0, 20), (2, 1, 0, 20)]

    found = solved(pairs, clocks=3).corrections

    assert [c.offset_ns for c in found] == [0, 0, 0]
    assert [c.uncertainty_ns for c in found] == [0, 11, 31]


def test_clocks_out_of_reach_agree_with_each_other() -> None:
    pairs = [(1, 2, 0, 110), (2, 1, 100, 10)]

    found = solved(pairs, clocks=3).corrections

    assert [c.uncertainty_ns for c in found] == [0, None, None]
    assert found[2].offset_ns - found[1].offset_ns == -100


def test_bounds_that_miss_each_other_a_little_are_grain() -> None:
    found = solved([(0, 1, 100, 98), (1, 0, 402, 400)])

    assert found.contradiction is None
    assert found.corrections[1].offset_ns == 0
    assert found.corrections[1].uncertainty_ns in range(1, 10)


def test_bounds_that_miss_each_other_contradict() -> None:
    pairs = [(0, 1, 0, 1_000), (0, 1, 100_000, 70_000), (1, 0, 480_000, 450_000)]

    found = solved(pairs, capture=500_000)

    assert found.contradiction is not None
    assert found.contradiction.by_ns == 60_000
    assert sorted(found.contradiction.rows) == [1, 2]
    # Least violation: both give by half.
    assert found.corrections[1].offset_ns == 0
    assert (found.corrections[1].uncertainty_ns or 0) >= 30_000


def test_a_contradiction_names_the_worst_circle() -> None:
    pairs = [
        *((0, 1, 0, 100), (1, 0, 0, 100)),
        *((1, 2, 50_000, 30_000), (2, 1, 90_000, 80_000)),
        *((2, 3, 10_000, 1_000), (3, 2, 20_000, 19_000)),
    ]

    found = solved(pairs, clocks=4, capture=100_000)

    assert found.contradiction is not None
    assert sorted(found.contradiction.rows) == [2, 3]
    assert found.contradiction.by_ns == 30_000


def test_a_circle_of_three_can_contradict() -> None:
    pairs = [(0, 1, 50_000, 30_000), (1, 2, 50_000, 30_000), (2, 0, 50_000, 30_000)]

    found = solved(pairs, clocks=3, capture=100_000)

    assert found.contradiction is not None
    assert sorted(found.contradiction.rows) == [0, 1, 2]
    assert found.contradiction.by_ns == 60_000


def drifting(drift: float, seconds: int, slack_ns: int) -> list[Pair]:
    """Return transfers both ways, every tenth of a second, to a clock that is fast."""
    pairs: list[Pair] = []
    for tenth in range(10 * seconds):
        time = tenth * 100_000_000
        there, back = time + slack_ns, time + 50_000_000
        pairs.append((0, 1, time, there + round(there * drift)))
        pairs.append((1, 0, back + round(back * drift), back + slack_ns))
    return pairs


def test_a_drift_that_a_constant_offset_allows_is_not_applied() -> None:
    found = solved(drifting(20e-6, 1, 100_000), capture=10**9).corrections[1]

    assert found.drift == 0.0


def test_a_drift_is_applied_where_no_constant_offset_is_possible() -> None:
    found = solved(drifting(20e-6, 20, 10_000), capture=20 * 10**9).corrections[1]

    assert found.drift == pytest.approx(-20e-6, rel=0.05)
    assert found.uncertainty_ns is not None
    assert found.uncertainty_ns < 30_000


def test_no_drift_is_faster_than_clocks_are() -> None:
    assert solved(drifting(80e-6, 20, 10_000), capture=20 * 10**9).contradiction is not None


def test_tables_join_without_rows() -> None:
    assert len(together()) == 0
    assert len(together(precedences([]), precedences([(0, 1, 2, 3)]))) == 1


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Pair], list[int], list[int], int]:
    """Draw pairs of events that really were in that order, and what the clocks really show.

    ProfileClock c shows ``offset[c] + t + t drift[c] / 1e9`` at the true time t.
    """
    clocks = draw(st.integers(2, 5))
    length = draw(st.sampled_from([10**6, 10**9, 30 * 10**9]))
    offset = draw(st.lists(st.integers(-(10**9), 10**9), min_size=clocks, max_size=clocks))
    drift = draw(st.lists(st.integers(-20_000, 20_000), min_size=clocks, max_size=clocks))
    longest = draw(st.sampled_from([1_000, 100_000, 10_000_000]))
    pairs = []
    for _ in range(draw(st.integers(1, 40))):
        one, other = draw(st.permutations(range(clocks)))[:2]
        time = draw(st.integers(0, length))
        later = time + draw(st.integers(0, longest))
        pairs.append(
            (one, other, shown(offset, drift, one, time), shown(offset, drift, other, later))
        )
    return pairs, offset, drift, length


def shown(offset: list[int], drift: list[int], clock: int, time: int) -> int:
    return offset[clock] + time + time * drift[clock] // 10**9


@settings(max_examples=150)
@given(worlds())
def test_the_truth_lies_within_the_uncertainty(
    world: tuple[list[Pair], list[int], list[int], int],
) -> None:
    pairs, offset, drift, length = world
    start = np.array([shown(offset, drift, c, 0) for c in range(len(offset))], np.int64)
    end = np.array([shown(offset, drift, c, length) for c in range(len(offset))], np.int64)

    found = solve(precedences(pairs), start, end)

    assert found.contradiction is None
    for clock, correction in enumerate(found.corrections):
        if correction.uncertainty_ns is None:
            continue
        for time in (0, length // 3, length // 2, length):
            own = shown(offset, drift, clock, time)
            moved = own + correction.offset_ns + (own - correction.t0_ns) * correction.drift
            right = shown(offset, drift, 0, time)
            # OperationEnds, clocks and corrections are whole nanoseconds each.
            assert abs(moved - right) <= correction.uncertainty_ns + 6


@settings(max_examples=100)
@given(worlds())
def test_constant_offsets_are_the_middle_of_what_a_linear_program_allows(
    world: tuple[list[Pair], list[int], list[int], int],
) -> None:
    pairs, offset, _, _ = world
    clocks = len(offset)
    steady = [
        (one, other, offset[one] + 1_000, offset[other] + 1_000 + abs(after - before) % 10**6)
        for one, other, before, after in pairs
    ]
    start = np.array(offset, np.int64)

    found = solve(precedences(steady), start, start + 2_000_000).corrections

    # x[before] - x[after] <= after_ns - before_ns, and x[0] = 0.
    rows = np.zeros((len(steady), clocks))
    for row, (one, other, _, _) in enumerate(steady):
        rows[row, one], rows[row, other] = 1, -1
    limits = [after - before for _, _, before, after in steady]
    free = [(0, 0), *[(None, None)] * (clocks - 1)]
    for clock in range(1, clocks):
        goal = np.zeros(clocks)
        goal[clock] = 1
        least = linprog(goal, rows, limits, bounds=free)
        most = linprog(-goal, rows, limits, bounds=free)
        bounded = least.status == most.status == 0
        uncertainty_ns = found[clock].uncertainty_ns
        assert bounded == (uncertainty_ns is not None)
        if bounded and uncertainty_ns is not None:
            low, high = least.fun, -most.fun
            assert found[clock].offset_ns == pytest.approx((low + high) / 2, abs=1)
            half = (high - low) / 2
            assert half - 1 <= uncertainty_ns <= half + DRIFT * 4_000_000 + 2
