"""Numbers of microbatches: those of all iterations together, worked out one by one."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.recognition.orders import (
    BACKWARD,
    FORWARD,
    Numbers,
    first_of_all,
    microbatches_from_zero,
)


def numbered(*numbers: int, back: bool = True) -> tuple[list[int], Numbers | None]:
    """Return the microbatches of one rank, which go forward and back, from 0 on; and which."""
    number = np.array([*numbers, *(numbers if back else ())], np.int64)
    kind = np.full(len(number), FORWARD)
    kind[len(numbers) :] = BACKWARD
    none = np.zeros(len(number), np.int64)
    found, own = microbatches_from_zero(none, none, kind, number, number >= 0)
    return found.tolist(), own


def test_unknown_microbatches_are_no_numbers() -> None:
    assert numbered(-1, -1) == ([0] * 4, None)
    assert first_of_all([]) is None


def test_alike_ones_count_from_the_least() -> None:
    found, own = numbered(5, 6, 7)
    assert found == [0, 1, 2, 0, 1, 2]
    assert own == Numbers(5, 7, alike=True, back=True)
    assert first_of_all([own, own]) == 5


def test_one_iteration_that_differs_decides_for_all() -> None:
    alike, other = numbered(5, 6, 7)[1], numbered(6, 7)[1]
    assert alike is not None
    assert other is not None
    assert other.alike
    assert first_of_all([alike, other]) is None
    assert first_of_all([alike, Numbers(5, 7, alike=False, back=True)]) is None


def test_an_iteration_that_never_goes_back_follows_the_others() -> None:
    alike, cut = numbered(5, 6, 7)[1], numbered(6, 7, back=False)[1]
    assert alike is not None
    assert cut == Numbers(6, 7, alike=False, back=False)
    assert first_of_all([alike, cut]) == 5
    assert first_of_all([cut]) is None
    assert first_of_all([alike, Numbers(6, 8, alike=False, back=False)]) is None
