"""Columns: what the compiled part works out of numpy columns.

The functions that call these give the same without them: the search of orders
(:mod:`bubbleviz.schedules.search.problem`), spans and launches
(:mod:`bubbleviz.interpret`), intervals, places and sorting (:mod:`bubbleviz.model`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.native import library as native

_Ints = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.int32]


def improved_orders(
    library: native.Library,
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
    offset = np.ascontiguousarray(offset, np.int32)
    trials, memory, rise, seed, enough = search
    length = library.functions.bubbleviz_orders_improved(
        ctypes.byref(
            native.PipelineTimes(
                native.pointer(placement),
                *map(native.pointer, columns),
                len(columns[-1]),
                len(placement),
                microbatches,
                of_cost,
            )
        ),
        ctypes.byref(native.OrderColumns(native.pointer(result), native.pointer(offset))),
        ctypes.c_int64(trials),
        ctypes.c_int32(memory),
        ctypes.c_int64(rise),
        ctypes.c_uint64(seed),
        ctypes.c_int64(enough),
    )
    return None if length < 0 else (int(length), result)


# Operation spans: when operations ran by the work they own, worked out by the compiled part.
#
# :mod:`bubbleviz.interpret.spans`, which calls this, gives the same without it.


_Rows = npt.NDArray[np.int32]
_Bools = npt.NDArray[np.bool_]


def operation_spans(
    library: native.Library,
    owner: _Rows,
    kinds: tuple[_Bools, _Bools],
    times: tuple[_Ints, _Ints],
    communicates: _Bools,
) -> tuple[_Ints, _Ints, _Ints, _Rows]:
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
    columns: tuple[npt.NDArray[np.generic], ...] = (owner, *kinds, *times)
    work = [np.ascontiguousarray(column) for column in columns]
    count = len(communicates)
    start_ns, end_ns, kernels = (np.empty(count, np.int64) for _ in range(3))
    first, best = np.empty(count, np.int32), np.empty(count, np.uint8)
    found: tuple[npt.NDArray[np.generic], ...] = (start_ns, end_ns, kernels, first, best)
    strays = library.functions.bubbleviz_spans(
        ctypes.byref(native.WorkColumns(*map(native.pointer, work), len(owner))),
        native.pointer(np.ascontiguousarray(communicates)),
        ctypes.byref(native.SpanColumns(*map(native.pointer, found), count)),
    )
    if strays:
        raise IndexError(f"{strays} rows have an owner beyond the {count} operations")
    return start_ns, end_ns, kernels, first


# Launching: what blocks of calls launched, worked out by the compiled part.


_Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class FoundPairs:
    """What a block of calls launched, and what it took from calls of earlier blocks.

    A :class:`LaunchFinder` gives the pairs of the next block in the same memory.

    Attributes:
        activity: row of what was launched, shape (pairs,).
        call: place of its call in the block.
        launched: which calls of the block launched something, shape (calls,).
        lost: a row of what each earlier call lost, which has no work after all.
        lost_start_ns: when that call began.
    """

    activity: _Rows
    call: _Rows
    launched: npt.NDArray[np.bool_]
    lost: _Rows
    lost_start_ns: _Ints


class LaunchFinder:
    """Finds what calls launched.

    Args:
        library: the compiled part.
        process: of what was launched, ascending.
        bounds: where the rows of each begin; one more for the end.
        known: how many rows of each have an id; they come first.
        rows: of what was launched, by process and id.
        ids: of what was launched, by row.
    """

    def __init__(
        self,
        library: native.Library,
        process: _Ints,
        bounds: _Ints,
        known: _Ints,
        rows: _Rows,
        ids: _Ids,
    ) -> None:
        self._library = library
        self._columns = (process, bounds, known, bounds[:-1].copy(), rows, ids)
        self._index = native.LaunchedRows(
            *map(native.pointer, self._columns[:4]),
            len(process),
            *map(native.pointer, self._columns[4:]),
        )
        # Memory is used by as many as a block needs.
        self._activity, self._call = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)

    def find(
        self,
        row: _Ints,
        start_ns: _Ints,
        thread: _Ints,
        ids: _Ids,
        launches: tuple[_Rows, _Ints],
    ) -> FoundPairs:
        """Return what a block of calls launched.

        Args:
            row: of each call, ascending and behind those of earlier blocks.
            start_ns: when each began.
            thread: that made each.
            ids: correlation id of each.
            launches: row and start of the call of all that was launched, -1 unknown; changed.
        """
        columns = [np.ascontiguousarray(column) for column in (row, start_ns, thread, ids)]
        count = len(row)
        place, lost = np.empty(count, np.int32), np.empty(count, np.int32)
        lost_start_ns = np.empty(count, np.int64)
        found = native.FoundLaunches(
            place=native.pointer(place),
            activity=native.pointer(self._activity),
            of_call=native.pointer(self._call),
            room=len(self._activity),
            lost=native.pointer(lost),
            lost_start=native.pointer(lost_start_ns),
        )
        self._library.functions.bubbleviz_launches(
            ctypes.byref(self._index),
            ctypes.byref(native.CallBlock(*map(native.pointer, columns), count)),
            ctypes.byref(
                native.LaunchColumns(native.pointer(launches[0]), native.pointer(launches[1]))
            ),
            ctypes.byref(found),
        )
        pairs, losses = slice(0, found.pairs), slice(0, found.losses)
        return FoundPairs(
            self._activity[pairs],
            self._call[pairs],
            place >= 0,
            lost[losses],
            lost_start_ns[losses],
        )


# Columns: sets of intervals, intervals around others, and sorted rows, by the compiled part.
#
# The functions of :mod:`bubbleviz.model` that call these give the same without them.


_AnyCodes = npt.NDArray[np.signedinteger[Any]]
_SIZE = ctypes.c_size_t


def union(
    library: native.Library, start_ns: _Ints, end_ns: _Ints, chosen: _Bools | None
) -> tuple[_Ints, _Ints] | None:
    """Return the union of (chosen) intervals; None where their starts are in no order."""
    start_ns, end_ns = np.ascontiguousarray(start_ns), np.ascontiguousarray(end_ns)
    out_start, out_end = np.empty_like(start_ns), np.empty_like(end_ns)
    count = library.functions.bubbleviz_union(
        native.pointer(start_ns), native.pointer(end_ns), _mask(chosen),
        _SIZE(len(start_ns)), native.pointer(out_start), native.pointer(out_end),
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
    return None if chosen is None else native.pointer(np.ascontiguousarray(chosen))


def difference(
    library: native.Library, a: tuple[_Ints, _Ints], b: tuple[_Ints, _Ints]
) -> tuple[_Ints, _Ints]:
    """Return what set ``a`` covers and set ``b`` does not."""
    columns = [np.ascontiguousarray(column) for column in (*a, *b)]
    room = len(columns[0]) + len(columns[2])
    start_ns, end_ns = np.empty(room, np.int64), np.empty(room, np.int64)
    count = library.functions.bubbleviz_difference(
        native.pointer(columns[0]), native.pointer(columns[1]), _SIZE(len(columns[0])),
        native.pointer(columns[2]), native.pointer(columns[3]), _SIZE(len(columns[2])),
        native.pointer(start_ns), native.pointer(end_ns),
    )  # fmt: skip
    return _first(start_ns, count), _first(end_ns, count)


def group_union(
    library: native.Library,
    group: _AnyCodes,
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
        native.pointer(numbers), *map(native.pointer, times), _mask(chosen),
        _SIZE(len(group)), _SIZE(groups),
        *map(native.pointer, scratch), *map(native.pointer, out),
    )  # fmt: skip
    if count < 0:
        return None
    owner, low_ns, high_ns = (_first(column, count) for column in out)
    return owner, low_ns, high_ns


def places(library: native.Library, ascending: _Ints, values: _Ints) -> _Ints | None:
    """Return the place of each value among ascending ones; None where one is not among them."""
    place = np.empty(len(values), np.int64)
    values = np.ascontiguousarray(values)
    found = library.functions.bubbleviz_places(
        native.pointer(ascending), _SIZE(len(ascending)),
        native.pointer(values), _SIZE(len(values)), native.pointer(place),
    )  # fmt: skip
    return place if found == len(values) else None


def deepen(
    library: native.Library,
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
        *map(native.pointer, columns[:4]), _SIZE(len(columns[0])),
        *map(native.pointer, columns[4:]), _SIZE(len(columns[4])),
        *map(native.pointer, best),
    )  # fmt: skip


def sort(library: native.Library, key: npt.NDArray[np.uint64], order: _Ints) -> bool:
    """Put the numbers of rows in the order of their keys, stably; tell whether memory sufficed.

    Args:
        library: the compiled part.
        key: of each row.
        order: each row once; changed.
    """
    key = np.ascontiguousarray(key)
    return not library.functions.bubbleviz_sort(
        native.pointer(key), _SIZE(len(key)), native.pointer(order)
    )
