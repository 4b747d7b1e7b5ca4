"""Launching: what blocks of calls launched, worked out by the compiled part."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bubbleviz.native.library import Library, pointer
from bubbleviz.native.structures import CallBlock, FoundLaunches, LaunchColumns, LaunchedRows

_Ints = npt.NDArray[np.int64]
_Rows = npt.NDArray[np.int32]
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
        self, library: Library, process: _Ints, bounds: _Ints, known: _Ints, rows: _Rows, ids: _Ids
    ) -> None:
        self._library = library
        self._columns = (process, bounds, known, bounds[:-1].copy(), rows, ids)
        self._index = LaunchedRows(
            *map(pointer, self._columns[:4]), len(process), *map(pointer, self._columns[4:])
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
        found = FoundLaunches(
            place=pointer(place),
            activity=pointer(self._activity),
            of_call=pointer(self._call),
            room=len(self._activity),
            lost=pointer(lost),
            lost_start=pointer(lost_start_ns),
        )
        self._library.functions.bubbleviz_launches(
            ctypes.byref(self._index),
            ctypes.byref(CallBlock(*map(pointer, columns), count)),
            ctypes.byref(LaunchColumns(pointer(launches[0]), pointer(launches[1]))),
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
