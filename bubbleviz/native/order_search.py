"""Order search: the local search of orders, run by the compiled part.

:mod:`bubbleviz.schedules.search.improving`, which calls this, gives the same without it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bubbleviz.native.library import Library, pointer
from bubbleviz.native.structures import OrderColumns, PipelineTimes

_Ints = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.int32]


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
    offset = np.ascontiguousarray(offset, np.int32)
    trials, memory, rise, seed, enough = search
    length = library.functions.bubbleviz_orders_improved(
        ctypes.byref(
            PipelineTimes(
                pointer(placement),
                *map(pointer, columns),
                len(columns[-1]),
                len(placement),
                microbatches,
                of_cost,
            )
        ),
        ctypes.byref(OrderColumns(pointer(result), pointer(offset))),
        ctypes.c_int64(trials),
        ctypes.c_int32(memory),
        ctypes.c_int64(rise),
        ctypes.c_uint64(seed),
        ctypes.c_int64(enough),
    )
    return None if length < 0 else (int(length), result)
