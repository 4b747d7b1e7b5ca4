"""Numbers of distinct values: from 0, in the order in which they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.grouping import Numbering


def test_nothing_is_numbered() -> None:
    assert len(Numbering[str]()) == 0
    assert Numbering[str]().values == ()
    assert Numbering[str]().numbers([]).tolist() == []


@given(st.lists(st.integers(0, 5)))
def test_equal_values_have_one_number(values: list[int]) -> None:
    numbering = Numbering[int]()
    numbers = numbering.numbers(values).tolist()

    assert [numbering.values[number] for number in numbers] == values
    assert sorted(set(numbers)) == list(range(len(numbering)))
    assert numbering.numbers(values).tolist() == numbers


def test_known_values_come_first() -> None:
    assert Numbering(["a", "b"]).numbers(["c", "b"]).tolist() == [2, 1]
