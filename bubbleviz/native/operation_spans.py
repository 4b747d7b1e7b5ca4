"""Operation spans: when operations ran by the work they own, worked out by the compiled part.

:mod:`bubbleviz.interpret.spans`, which calls this, gives the same without it.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from bubbleviz.native.library import Library, pointer
from bubbleviz.native.structures import SpanColumns, WorkColumns

_Ints = npt.NDArray[np.int64]
_Rows = npt.NDArray[np.int32]
_Bools = npt.NDArray[np.bool_]


def operation_spans(
    library: Library,
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
        ctypes.byref(WorkColumns(*map(pointer, work), len(owner))),
        pointer(np.ascontiguousarray(communicates)),
        ctypes.byref(SpanColumns(*map(pointer, found), count)),
    )
    if strays:
        raise IndexError(f"{strays} rows have an owner beyond the {count} operations")
    return start_ns, end_ns, kernels, first
