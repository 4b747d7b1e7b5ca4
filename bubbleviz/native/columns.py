"""Columns: sets of intervals, intervals around others, and sorted rows, by the compiled part.

The functions of :mod:`bubbleviz.model` that call these give the same without them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.native.library import Library, pointer

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]
_Codes = npt.NDArray[np.signedinteger[Any]]
_SIZE = ctypes.c_size_t


def union(
    library: Library, start_ns: _Ints, end_ns: _Ints, chosen: _Bools | None
) -> tuple[_Ints, _Ints] | None:
    """Return the union of (chosen) intervals; None where their starts are in no order."""
    start_ns, end_ns = np.ascontiguousarray(start_ns), np.ascontiguousarray(end_ns)
    out_start, out_end = np.empty_like(start_ns), np.empty_like(end_ns)
    count = library.functions.bubbleviz_union(
        pointer(start_ns), pointer(end_ns), _mask(chosen),
        _SIZE(len(start_ns)), pointer(out_start), pointer(out_end),
    )  # fmt: skip
    return None if count < 0 else (_first(out_start, count), _first(out_end, count))


def _first(column: _Ints, count: int) -> _Ints:
    """Return the first values of a column that nothing else uses, so that the rest is freed.

    Many of them stay where they are; few would lie in the way of the next column as long as this.
    """
    if 2 * count < len(column):
        return column[:count].copy()
    column.resize(count, refcheck=False)
    return column


def _mask(chosen: _Bools | None) -> ctypes.c_void_p | None:
    """Return the address of a mask, which keeps it; None for all."""
    return None if chosen is None else pointer(np.ascontiguousarray(chosen))


def difference(
    library: Library, a: tuple[_Ints, _Ints], b: tuple[_Ints, _Ints]
) -> tuple[_Ints, _Ints]:
    """Return what set ``a`` covers and set ``b`` does not."""
    columns = [np.ascontiguousarray(column) for column in (*a, *b)]
    room = len(columns[0]) + len(columns[2])
    start_ns, end_ns = np.empty(room, np.int64), np.empty(room, np.int64)
    count = library.functions.bubbleviz_difference(
        pointer(columns[0]), pointer(columns[1]), _SIZE(len(columns[0])),
        pointer(columns[2]), pointer(columns[3]), _SIZE(len(columns[2])),
        pointer(start_ns), pointer(end_ns),
    )  # fmt: skip
    return _first(start_ns, count), _first(end_ns, count)


def group_union(
    library: Library,
    group: _Codes,
    groups: int,
    start_ns: _Ints,
    end_ns: _Ints,
    chosen: _Bools | None,
) -> tuple[_Ints, _Ints, _Ints] | None:
    """Return group, start and end of the union of each group's (chosen) intervals.

    None where the starts of a group are in no order.
    """
    times = np.ascontiguousarray(start_ns), np.ascontiguousarray(end_ns)
    numbers = np.ascontiguousarray(group, np.int32)
    scratch = [np.empty(groups, np.int64) for _ in range(3)]
    out = [np.empty(len(group), np.int64) for _ in range(3)]
    count = library.functions.bubbleviz_group_union(
        pointer(numbers), *map(pointer, times), _mask(chosen),
        _SIZE(len(group)), _SIZE(groups),
        *map(pointer, scratch), *map(pointer, out),
    )  # fmt: skip
    if count < 0:
        return None
    owner, low_ns, high_ns = (_first(column, count) for column in out)
    return owner, low_ns, high_ns


def places(library: Library, ascending: _Ints, values: _Ints) -> _Ints | None:
    """Return the place of each value among ascending ones; None where one is not among them."""
    place = np.empty(len(values), np.int64)
    values = np.ascontiguousarray(values)
    found = library.functions.bubbleviz_places(
        pointer(ascending), _SIZE(len(ascending)),
        pointer(values), _SIZE(len(values)), pointer(place),
    )  # fmt: skip
    return place if found == len(values) else None


def deepen(
    library: Library,
    layer: tuple[_Ints, _Ints, _Ints, _Ints],
    queries: tuple[_Ints, _Ints],
    best: tuple[_Ints, _Ints],
) -> None:
    """Put in place what is around queries, and deeper than what was found before.

    Args:
        library: the compiled part.
        layer: start, end (inclusive), depth and row of intervals that share no point, ascending.
        queries: start and end of each.
        best: depth and row of what was found for each query; changed.
    """
    columns = [np.ascontiguousarray(column) for column in (*layer, *queries)]
    library.functions.bubbleviz_deeper(
        *map(pointer, columns[:4]), _SIZE(len(columns[0])),
        *map(pointer, columns[4:]), _SIZE(len(columns[4])),
        *map(pointer, best),
    )  # fmt: skip


def sort(library: Library, key: npt.NDArray[np.uint64], order: _Ints) -> bool:
    """Put the numbers of rows in the order of their keys, stably; tell whether memory sufficed.

    Args:
        library: the compiled part.
        key: of each row.
        order: each row once; changed.
    """
    key = np.ascontiguousarray(key)
    return not library.functions.bubbleviz_sort(pointer(key), _SIZE(len(key)), pointer(order))
