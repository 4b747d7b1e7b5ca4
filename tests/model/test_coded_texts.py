"""Texts that many rows share are held once, and each row keeps its own."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.coded_texts import CodedTexts, coded_texts


def test_no_rows() -> None:
    nothing = np.empty(0, np.int64)
    texts = coded_texts(str, nothing)

    assert texts.listed() == []
    assert texts.at(nothing).listed() == []
    assert texts.at(np.array([-1])).listed() == [""]
    assert CodedTexts(nothing, ["never"]).occurring().texts == []


def test_equal_rows_share_a_text_that_is_made_once() -> None:
    made = []

    def text(first: int, second: int) -> str:
        made.append((first, second))
        return f"{first};{second}"

    texts = coded_texts(text, np.array([1, 0, 1, 1]), np.array([5, 7, 5, 2]))

    assert texts.listed() == ["1;5", "0;7", "1;5", "1;2"]
    assert sorted(made) == [(0, 7), (1, 2), (1, 5)]


def test_rows_without_a_text() -> None:
    texts = CodedTexts(np.array([2, -1, 0, 2]), ["a", "b", "c"])

    assert texts.known.tolist() == [True, False, True, True]
    assert texts.listed("none") == ["c", "none", "a", "c"]
    assert texts.at(np.array([3, -1, 1])).listed("none") == ["c", "none", "none"]


def test_texts_that_do_not_occur_are_left_out() -> None:
    texts = CodedTexts(np.array([2, -1, 0, 2]), ["a", "b", "c"]).occurring()

    assert texts.texts == ["a", "c"]
    assert texts.listed("none") == ["c", "none", "a", "c"]
