"""Sorted rows, held against numpy's order of columns, with and without the compiled part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bubbleviz.model.grouping import Key, sorted_rows
from bubbleviz.native import library as native

#: Enough rows for the compiled part to sort them.
_MANY = 600
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def _part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setenv(native.SWITCH, "0")
    elif native.library() is None:
        pytest.skip(native.absence())


def _check(*keys: Key) -> None:
    assert sorted_rows(*keys).tolist() == np.lexsort(keys[::-1]).tolist()


def test_no_rows() -> None:
    none = np.empty(0, np.int64)
    assert sorted_rows(none).tolist() == []
    assert sorted_rows(none, none).dtype == np.int64


def test_ties_keep_their_order() -> None:
    equal = np.full(_MANY, 7)
    assert sorted_rows(equal, equal).tolist() == list(range(_MANY))
    assert sorted_rows(np.arange(_MANY)[::-1] // 2).tolist()[:4] == [598, 599, 596, 597]


def test_columns_of_all_kinds() -> None:
    rng = np.random.default_rng(1)
    _check(
        rng.random(_MANY) < 0.5,
        rng.integers(-3, 3, _MANY).astype(np.int32),
        rng.normal(size=_MANY).round(1),
        rng.integers(0, 9, _MANY).astype(np.uint8),
    )


def test_numbers_as_far_apart_as_they_can_be() -> None:
    ends = np.tile(np.array([_MOST, 0, _LEAST, -1, 1]), _MANY)
    _check(ends, ends[::-1])
    _check(ends[::-1].astype(np.float64), ends)


def test_floats_without_a_value_come_last() -> None:
    floats = np.tile(np.array([np.nan, -np.inf, 0.0, -0.0, np.inf, -1e-300, -np.nan]), _MANY)
    _check(floats)
    _check(np.where(np.isnan(floats), 1.0, floats), np.arange(len(floats)) % 3)


def test_columns_that_do_not_lie_row_by_row() -> None:
    table = np.random.default_rng(2).integers(-9, 9, (_MANY, 4))
    _check(table[:, 1], table[::-1, 3])


@given(st.data())
def test_any_columns(data: st.DataObject) -> None:
    size = data.draw(st.integers(_MANY, _MANY + 9))
    of_kind = (
        st.integers(_LEAST, _MOST), st.integers(-2, 2), st.sampled_from([_LEAST, 0, _MOST, 5]),
    )  # fmt: skip
    keys = [
        data.draw(hnp.arrays(np.int64, size, elements=elements, fill=elements))
        for elements in data.draw(st.lists(st.sampled_from(of_kind), min_size=1, max_size=4))
    ]
    _check(*keys)
