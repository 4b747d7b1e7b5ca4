"""Sorting: rows in the order of some columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import Ints
from bubbleviz.native import columns as compiled
from bubbleviz.native.library import library

#: A column that rows are sorted by.
Key = npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_] | npt.NDArray[np.floating[Any]]
Words = npt.NDArray[np.uint64]
#: Fewer rows are sorted before the compiled part would have been called.
_FEW = 512
#: Words lie below this.
_ROOM = 1 << 64


def sorted_rows(*keys: Key) -> Ints:
    """Return the rows in the order of some columns, the first one first; the others break ties.

    Rows that agree in all of them keep their order, and what is no number comes last. Columns are
    packed into one word, digit by digit, which the compiled part sorts several times as fast as
    numpy sorts columns; where they do not fit, into several, from the last to the first.

    Args:
        keys: columns, equally long, at least one.
    """
    native = library() if len(keys[0]) > _FEW else None
    columns = [_whole(key) for key in keys] if native else []
    if native is None or any(column is None for column in columns):
        return np.lexsort(keys[::-1])
    order: Ints = np.arange(len(keys[0]))
    for word in _words([column for column in columns if column is not None]):
        if not compiled.sort(native, word, order):
            return np.lexsort(keys[::-1])
    return order


def _words(columns: list[Ints]) -> Iterator[Words]:
    """Yield the columns as words of digits, the last word first."""
    word, base = np.zeros(len(columns[0]), np.uint64), 1
    for column in reversed(columns):
        least, most = int(column.min()), int(column.max())
        if least == most:
            continue
        size = most - least + 1
        # The difference of any two fits a word without a sign.
        digit = column.view(np.uint64) - np.uint64(least % (1 << 64))
        if base == 1:
            word, base = digit, size
        elif size > _ROOM // base:
            yield word
            word, base = digit, size
        else:
            word += digit * np.uint64(base)
            base *= size
    if base > 1:
        yield word


def _whole(key: Key) -> Ints | None:
    """Return integers in the order of a column's values; None where one is no number."""
    if key.dtype == np.bool_ or np.issubdtype(key.dtype, np.integer):
        return key.astype(np.int64, copy=False)
    if np.isnan(key).any():
        return None
    # Zero has two signs and is one value.
    bits = (key.astype(np.float64) + 0.0).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits)
