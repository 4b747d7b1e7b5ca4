"""Trends against a plain search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.explain.diagnosis.fault import jumps, lines

SERIES = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


def test_nothing_has_no_jump() -> None:
    nothing = np.empty(0, np.int64)

    assert len(jumps(nothing, nothing.astype(float), nothing.astype(float)).begin) == 0


def test_what_never_changes_does_not_jump() -> None:
    found = jumps(np.zeros(9, np.int64), np.arange(9.0), np.full(9, 0.7))

    assert not found.stands_out.any()
    assert found.explained.tolist() == [0.0]


def test_a_jump_without_noise_is_found_where_it_is() -> None:
    series = np.array([0, 0, 0, 0, 0, 0, 0.4, 0.4, 0.4])
    # Points stand in any order.
    order = np.array([8, 3, 1, 0, 2, 7, 4, 6, 5])
    found = jumps(np.zeros(9, np.int64), order.astype(float), series[order])

    assert found.begin.tolist() == [6.0]
    assert np.allclose(found.change, 0.4)
    assert found.stands_out.tolist() == [True]
    assert not jumps(np.zeros(9, np.int64), np.arange(9.0), -series).stands_out.any()


def test_a_line_explains_a_steady_rise_better() -> None:
    group, x = np.zeros(10, np.int64), np.arange(10.0)

    assert lines(group, x, 0.05 * x)[1] > jumps(group, x, 0.05 * x).explained


def test_chance_jumps_in_few_of_many_series() -> None:
    generator = np.random.default_rng(7)
    group, x = np.repeat(np.arange(20_000), 10), np.tile(np.arange(10.0), 20_000)

    found = jumps(group, x, generator.normal(0.0, 0.05, len(group)))

    assert found.stands_out.mean() < 0.001


@given(st.lists(SERIES, min_size=1, max_size=3))
def test_jumps_are_those_of_a_plain_search(series: list[list[int]]) -> None:
    group = np.repeat(np.arange(len(series)), [len(own) for own in series])
    x = np.concatenate([np.arange(float(len(own))) for own in series])
    found = jumps(group, x, np.array([value for own in series for value in own], float))

    for number, own in enumerate(series):
        between = [
            k * (len(own) - k) / len(own) * float(np.mean(own[k:]) - np.mean(own[:k])) ** 2
            for k in range(2, len(own) - 1)
        ]
        variance = np.var(own) * len(own)
        best = max(between, default=0.0)
        assert np.isclose(found.explained[number], best / variance if variance else 0.0)
        if best and between.count(best) == 1:
            begin = int(found.begin[number])
            assert np.isclose(between[begin - 2], best)
            assert np.isclose(found.change[number], np.mean(own[begin:]) - np.mean(own[:begin]))
