"""Columns: what the compiled part works out of numpy columns.

The functions that call these give the same without them: the search of orders
(:mod:`bubbleviz.schedules.search.problem`), links and spans (:mod:`bubbleviz.interpret`),
intervals, places and sorting (:mod:`bubbleviz.model`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.native.library import Argument, Library

_Ints = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.int32]
_Bools = npt.NDArray[np.bool_]
_AnyCodes = npt.NDArray[np.signedinteger[Any]]


def improved_orders(
    library: Library,
    placement: _Codes,
    columns: Sequence[_Ints],
    microbatches: int,
    code: _Codes,
    offset: _Codes,
    search: tuple[int, int, int, int, int],
    *,
    of_cost: bool,
) -> tuple[int, _Codes] | None:
    """Return the best length that was found, and its orders; None where the first cannot be run.

    Args:
        library: the compiled part.
        placement: device of each virtual stage.
        columns: lengths of F, B and W, transfers down and up, memory held and kept, all by virtual
            stage; limit by device.
        microbatches: m.
        code: what devices run, one after the other; not changed.
        offset: where each device's begin, and the end of the last.
        search: trials, memory of late acceptance, thousandths that the first may rise, seed, and
            the length that is enough.
        of_cost: whether the longest own window of a device is to be short.
    """
    result = np.array(code, np.int32)
    sizes: tuple[int, ...] = len(columns[-1]), len(placement), microbatches, of_cost
    pipeline: tuple[Argument, ...] = placement, *columns, *sizes
    length = library.call("orders_improved", pipeline, (result, offset), *search)
    return None if length < 0 else (length, result)


def operation_spans(
    library: Library,
    owner: _Codes,
    kinds: tuple[_Bools, _Bools],
    times: tuple[_Ints, _Ints],
    communicates: _Bools,
) -> tuple[_Ints, _Ints, _Ints, _Codes]:
    """Return start and end of each operation, its compute kernels, and its first row.

    An operation without work has the span (0, -1) and the row -1.

    Args:
        library: the compiled part.
        owner: operation of each row of work; -1 none.
        kinds: which rows are compute and which are communication kernels; others are copies.
        times: start and end of each row.
        communicates: which operations are communication.

    Raises:
        IndexError: a row has an owner that there is not.
    """
    count = len(communicates)
    start_ns, end_ns, kernels = (np.empty(count, np.int64) for _ in range(3))
    first, best = np.empty(count, np.int32), np.empty(count, np.uint8)
    work, spans = (owner, *kinds, *times, len(owner)), (start_ns, end_ns, kernels, first, best)
    strays = library.call("spans", work, communicates, (*spans, count))
    if strays:
        raise IndexError(f"{strays} rows have an owner beyond the {count} operations")
    return start_ns, end_ns, kernels, first


# Sets of intervals, intervals around others, and sorted rows.


def union(
    library: Library, start_ns: _Ints, end_ns: _Ints, chosen: _Bools | None
) -> tuple[_Ints, _Ints] | None:
    """Return the union of (chosen) intervals; None where their starts are in no order."""
    out = np.empty(len(start_ns), np.int64), np.empty(len(start_ns), np.int64)
    count = library.call("union", start_ns, end_ns, chosen, len(start_ns), *out)
    return None if count < 0 else (_first(out[0], count), _first(out[1], count))


def _first(column: _Ints, count: int) -> _Ints:
    """Return the first values of a column that nothing else uses, so that the rest is freed.

    Many of them stay where they are; few would lie in the way of the next column as long as this.
    """
    if 2 * count < len(column):
        return column[:count].copy()
    column.resize(count, refcheck=False)
    return column


def difference(
    library: Library, a: tuple[_Ints, _Ints], b: tuple[_Ints, _Ints]
) -> tuple[_Ints, _Ints]:
    """Return what set ``a`` covers and set ``b`` does not."""
    room = len(a[0]) + len(b[0])
    start_ns, end_ns = np.empty(room, np.int64), np.empty(room, np.int64)
    count = library.call("difference", *a, len(a[0]), *b, len(b[0]), start_ns, end_ns)
    return _first(start_ns, count), _first(end_ns, count)


def group_union(
    library: Library,
    group: _AnyCodes,
    groups: int,
    times: tuple[_Ints, _Ints],
    chosen: _Bools | None,
) -> tuple[_Ints, _Ints, _Ints] | None:
    """Return group, start and end of the union of each group's (chosen) intervals.

    None where the starts of a group are in no order.
    """
    scratch = [np.empty(groups, np.int64) for _ in range(3)]
    out = [np.empty(len(group), np.int64) for _ in range(3)]
    numbers = group.astype(np.int32, copy=False)
    count = library.call("group_union", numbers, *times, chosen, len(group), groups, *scratch, *out)
    if count < 0:
        return None
    owner, low_ns, high_ns = (_first(column, count) for column in out)
    return owner, low_ns, high_ns


def group_measure(
    library: Library,
    group: _AnyCodes,
    groups: int,
    times: tuple[_Ints, _Ints],
    chosen: _Bools | None,
) -> _Ints | None:
    """Return the length of the union of each group's (chosen) intervals; None as above."""
    scratch, length_ns = np.empty(2 * groups, np.int64), np.empty(groups, np.int64)
    numbers = group.astype(np.int32, copy=False)
    arguments = numbers, *times, chosen, len(group), groups, scratch, length_ns
    return None if library.call("group_measure", *arguments) < 0 else length_ns


def measure_within(
    library: Library, intervals: tuple[_Ints, _Ints], low_ns: _Ints, high_ns: _Ints
) -> _Ints | None:
    """Return how much of each window a set covers; None where memory is short."""
    covered_ns = np.empty(len(low_ns), np.int64)
    windows = low_ns, high_ns, len(low_ns)
    short = library.call("measure_within", *intervals, len(intervals[0]), *windows, covered_ns)
    return None if short else covered_ns


def places(library: Library, ascending: _Ints, values: _Ints) -> _Ints | None:
    """Return the place of each value among ascending ones; None where one is not among them."""
    place = np.empty(len(values), np.int64)
    found = library.call("places", ascending, len(ascending), values, len(values), place)
    return place if found == len(values) else None


def sort(library: Library, key: npt.NDArray[np.uint64], order: _Ints) -> bool:
    """Put the numbers of rows in the order of their keys, stably; tell whether memory sufficed.

    Args:
        library: the compiled part.
        key: of each row.
        order: each row once; changed.
    """
    return not library.call("sort", key, len(key), order)
