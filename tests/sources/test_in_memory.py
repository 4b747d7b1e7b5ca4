"""Calls and ranges in memory: what the stages ask of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.columns import Ints
from bubbleviz.model.profile import PID_MASK, Ranges
from bubbleviz.sources.in_memory import InMemoryRanges, thread_numbers


def _column(*values: int) -> Ints:
    return np.array(values, np.int64)


def test_no_thread_has_no_number() -> None:
    assert thread_numbers(_column(), _column()).tolist() == []


def test_threads_of_24_bits_keep_their_numbers() -> None:
    assert thread_numbers(_column(7, 8), _column(3, PID_MASK)).tolist() == [
        (7 << 24) + 3,
        (8 << 24) + PID_MASK,
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.one_of(st.integers(PID_MASK - 3, PID_MASK + 3), st.integers(-(2**63), 2**63 - 1)),
        ),
        max_size=20,
    )
)
def test_distinct_threads_get_distinct_numbers_of_their_process(
    threads: list[tuple[int, int]],
) -> None:
    pid, tid = (_column(*(t[i] for t in threads)) for i in (0, 1))

    numbers = thread_numbers(pid, tid).tolist()

    assert [number >> 24 for number in numbers] == pid.tolist()
    pairs = set(zip(threads, numbers, strict=True))
    assert len(pairs) == len(set(threads)) == len(set(numbers))


@pytest.mark.parametrize(
    ("shortest_ns", "threads", "since", "until", "expected"),
    [
        (0, (1,), (0,), (100,), [0, 1]),
        (10, (1, 2), (0,), (100,), [0, 2]),
        (0, (1, 2), (15,), (16,), [0, 2]),
        (0, (1, 2), (20,), (30,), []),
        (0, (1, 2), (), (), []),
    ],
)
def test_ranges_are_found_by_thread_length_and_time(
    shortest_ns: int,
    threads: tuple[int, ...],
    since: tuple[int, ...],
    until: tuple[int, ...],
    expected: list[int],
) -> None:
    none = np.zeros(3, bool)
    ranges = Ranges(
        start_ns=_column(0, 5, 10),
        end_ns=_column(20, 10, 20),
        thread=_column(1, 1, 2),
        end_thread=_column(-1, -1, -1),
        start_end=none,
        cut=none.copy(),
        name_id=_column(0, 1, 2),
        names=("a", "b", "c"),
    )

    found = InMemoryRanges(ranges).lasting(
        shortest_ns, _column(*threads), _column(*since), _column(*until)
    )

    assert found.name_id.tolist() == expected
