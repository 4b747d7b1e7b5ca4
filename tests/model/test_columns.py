"""Columns of one value, which take no memory, and columns that are two things."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from bubbleviz.model.columns import Ints, Table, compacted, constant, joined
from bubbleviz.model.values import frozen


@frozen
class Pairs(Table):
    """Two columns."""

    first: Ints
    second: Ints


def column(*values: int) -> Ints:
    return np.array(values, np.int64)


def held_bytes(values: Ints) -> int:
    """Return the bytes of the rows of a column."""
    return abs(values.strides[0]) * len(values)


def test_no_rows_are_compact() -> None:
    assert compacted(column()).tolist() == []
    assert joined([Pairs(column(), column())]).first.tolist() == []


def test_a_column_of_one_value_takes_no_memory() -> None:
    one, many = compacted(np.full(100, 7)), compacted(np.arange(100))

    assert one.tolist() == [7] * 100
    assert held_bytes(one) == 0
    assert many.tolist() == list(range(100))
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 3


def test_rows_of_a_column_of_one_value_stay_one_value() -> None:
    table = Pairs(np.arange(100), constant(5, 100))
    taken = table.take(np.array([3, 3, 99]))

    assert (taken.first.tolist(), taken.second.tolist()) == ([3, 3, 99], [5, 5, 5])
    assert held_bytes(taken.second) == 0
    assert table.take(np.zeros(100, bool)).second.tolist() == []


def test_joined_columns_of_one_value_stay_one_value() -> None:
    same = joined([Pairs(np.arange(3), constant(5, 3)), Pairs(np.arange(2), constant(5, 2))])
    other = joined([Pairs(np.arange(3), constant(5, 3)), Pairs(np.arange(2), constant(4, 2))])

    assert (same.second.tolist(), held_bytes(same.second)) == ([5] * 5, 0)
    assert other.second.tolist() == [5, 5, 5, 4, 4]


def test_a_column_that_is_two_things_stays_one() -> None:
    times = np.arange(100)
    table = joined([Pairs(times, times), Pairs(times, times)]).take(np.arange(50, 150))

    assert table.first is table.second
    assert table.first.tolist() == [*range(50, 100), *range(50)]


def test_a_column_of_one_value_is_pickled_once() -> None:
    table = Pairs(np.arange(10_000), constant(5, 10_000))
    data = pickle.dumps(table)
    read = pickle.loads(data)

    assert len(data) < 90_000
    assert (read.first.tolist(), read.second.tolist()) == (list(range(10_000)), [5] * 10_000)
