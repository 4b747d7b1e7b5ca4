"""Calls and ranges in memory: what the stages ask of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bubbleviz.model.columns import Ints
from bubbleviz.model.profile import PID_MASK
from bubbleviz.sources.in_memory import thread_numbers


def _column(*values: int) -> Ints:
    return np.array(values, np.int64)


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
