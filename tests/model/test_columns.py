"""Tables of columns, coded texts and sorted rows."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bubbleviz.model.columns import Codes, Ints, Table, compact, join_tables, make_constant
from bubbleviz.model.grouping import Key, find_positions, sort_rows
from bubbleviz.model.numbering import CodedTexts, make_coded_texts
from bubbleviz.native import library as native

# Tests of columns with a single value, which take no memory.


@dataclass(frozen=True)
class Pairs(Table):
    first: Ints
    second: Ints


@dataclass(frozen=True)
class Numbers(Table):
    number: Codes


def column(*values: int) -> Ints:
    return np.array(values, np.int64)


def measure_row_bytes(values: Ints) -> int:
    """Return the memory that the rows of a column take, in bytes."""
    return abs(values.strides[0]) * len(values)


def test_a_column_of_one_value_takes_no_memory() -> None:
    constant, varied = compact(np.full(100, 7)), compact(np.arange(100))
    none = column()

    assert compact(none).tolist() == join_tables([Pairs(none, none)]).first.tolist() == []
    assert constant.tolist() == [7] * 100
    assert measure_row_bytes(constant) == 0
    assert varied.tolist() == list(range(100))
    with pytest.raises(ValueError, match="read-only"):
        constant[0] = 3


def test_rows_of_a_column_of_one_value_stay_one_value() -> None:
    table = Pairs(np.arange(100), make_constant(5, 100))
    selected = table.take(np.array([3, 3, 99]))

    assert (selected.first.tolist(), selected.second.tolist()) == ([3, 3, 99], [5, 5, 5])
    assert measure_row_bytes(selected.second) == 0
    assert table.take(np.zeros(100, bool)).second.tolist() == []


def test_joined_columns_of_one_value_stay_one_value() -> None:
    equal_constants = join_tables(
        [Pairs(np.arange(3), make_constant(5, 3)), Pairs(np.arange(2), make_constant(5, 2))]
    )
    different_constants = join_tables(
        [Pairs(np.arange(3), make_constant(5, 3)), Pairs(np.arange(2), make_constant(4, 2))]
    )

    assert (equal_constants.second.tolist(), measure_row_bytes(equal_constants.second)) == (
        [5] * 5,
        0,
    )
    assert different_constants.second.tolist() == [5, 5, 5, 4, 4]


rows_of_tables = st.lists(
    st.lists(st.tuples(st.integers(-3, 3), st.just(7) | st.integers(7, 8)), max_size=20),
    min_size=1,
    max_size=4,
)


@given(rows_of_tables, st.booleans(), st.data())
def test_joined_tables_have_the_rows_of_all_parts_in_order(
    tables: list[list[tuple[int, int]]], compact: bool, data: st.DataObject
) -> None:
    parts = [Pairs(column(*(a for a, _ in t)), column(*(b for _, b in t))) for t in tables]
    concatenated = join_tables([part.compact() if compact else part for part in parts])

    expected = [row for table in tables for row in table]
    assert (
        list(zip(concatenated.first.tolist(), concatenated.second.tolist(), strict=True))
        == expected
    )
    rows = data.draw(st.lists(st.sampled_from(range(len(expected))))) if expected else []
    selected = concatenated.take(column(*rows))
    selected_rows = list(zip(selected.first.tolist(), selected.second.tolist(), strict=True))
    assert selected_rows == [expected[row] for row in rows]
    assert not selected.first.flags.writeable


def test_joined_columns_can_store_the_values_of_all_parts() -> None:
    concatenated = join_tables([Numbers(np.array([1, -1], np.int16)), Numbers(column(1 << 40))])

    assert concatenated.number.tolist() == [1, -1, 1 << 40]


def test_a_column_of_one_value_is_pickled_once() -> None:
    table = Pairs(np.arange(10_000), make_constant(5, 10_000))
    data = pickle.dumps(table)
    read = pickle.loads(data)

    assert len(data) < 90_000
    assert (read.first.tolist(), read.second.tolist()) == (list(range(10_000)), [5] * 10_000)


# Tests of texts that many rows share, which are stored once.


def test_equal_rows_share_a_text_that_is_made_once() -> None:
    calls = []

    def text(first: int, second: int) -> str:
        calls.append((first, second))
        return f"{first};{second}"

    texts = make_coded_texts(text, np.array([1, 0, 1, 1]), np.array([5, 7, 5, 2]))

    assert texts.listed() == ["1;5", "0;7", "1;5", "1;2"]
    assert sorted(calls) == [(0, 7), (1, 2), (1, 5)]


def test_rows_without_a_text_get_the_default() -> None:
    texts = CodedTexts(np.array([2, -1, 0, 2]), ["a", "b", "c"])

    assert texts.has_text.tolist() == [True, False, True, True]
    for version in (texts, texts.drop_unused()):
        assert version.listed("none") == ["c", "none", "a", "c"]
        assert version.at(np.array([3, -1, 1])).listed("none") == ["c", "none", "none"]
    assert texts.drop_unused().texts == ["a", "c"]
    assert make_coded_texts(str, np.empty(0, np.int64)).listed() == []


# Sorted rows agree with numpy.lexsort, with and without the compiled library.


#: A number of rows that is large enough for the compiled library to sort them.
_MANY = 600
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def _part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setenv(native.SWITCH, "0")
    elif native.get_library() is None:
        pytest.skip(native.explain_absence())


def _check(*keys: Key) -> None:
    assert sort_rows(*keys).tolist() == np.lexsort(keys[::-1]).tolist()


_RANDOM = np.random.default_rng(1)
_ENDS = np.tile(np.array([_MOST, 0, _LEAST, -1, 1]), _MANY)
_FLOATS = np.tile(np.array([np.nan, -np.inf, 0.0, -0.0, np.inf, -1e-300, -np.nan]), _MANY)
#: Columns that are not contiguous in memory.
_APART = _RANDOM.integers(-9, 9, (_MANY, 4))


@pytest.mark.parametrize(
    "keys",
    [
        (_ENDS[:0], _ENDS[:0]),
        (_RANDOM.random(_MANY) < 0.5, _RANDOM.integers(-3, 3, _MANY).astype(np.int32)),
        (_ENDS[::-1].astype(np.float64), _ENDS),
        (_FLOATS,),
        (np.where(np.isnan(_FLOATS), 1.0, _FLOATS), np.arange(len(_FLOATS)) % 3),
        (_APART[:, 1], _APART[::-1, 3]),
    ],
)
def test_columns_of_all_kinds_are_sorted_like_numpy(keys: tuple[Key, ...]) -> None:
    _check(*keys)


@given(st.data())
def test_any_columns_are_sorted_like_numpy(data: st.DataObject) -> None:
    size = data.draw(st.integers(_MANY, _MANY + 9))
    of_kind = (
        st.integers(_LEAST, _MOST), st.integers(-2, 2), st.sampled_from([_LEAST, 0, _MOST, 5]),
    )  # fmt: skip
    keys = [
        data.draw(hnp.arrays(np.int64, size, elements=elements, fill=elements))
        for elements in data.draw(st.lists(st.sampled_from(of_kind), min_size=1, max_size=4))
    ]
    _check(*keys)


@given(
    st.lists(st.integers(-9, 9)).map(sorted),
    st.lists(st.integers(-12, 12), min_size=1),
    st.booleans(),
)
@example([3, 4, 5], [2, 3, 5, 6, _LEAST, _MOST], False)
@example([_LEAST, _LEAST + 1], [_MOST, _LEAST, 0], False)
@example([_MOST - 1, _MOST], [_LEAST, _MOST], False)
@example([1, 1, 3], [1, 2, 3], False)
def test_values_are_found_at_their_first_position(
    ascending: list[int], values: list[int], narrow: bool
) -> None:
    of = np.int32 if narrow else np.int64
    places = find_positions(np.array(ascending, of), np.array(values, of))

    expected = [ascending.index(value) if value in ascending else -1 for value in values]
    assert places.tolist() == expected
